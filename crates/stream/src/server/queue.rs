//! The backlog of a connection, except prefetched blocks. It holds jobs and never their bytes, so that a slow reader
//! costs a few bytes for each request. Pure.

use crate::block::{BlockAt, FileId, SEGMENT_BLOCKS, Token};
use crate::group::GroupAt;
use crate::predict::Plan;
use crate::wire::{Answer, BLOCKS_PER_MESSAGE_MAX};
use std::collections::VecDeque;
use std::sync::Arc;

/// A block that a program waits for, and its neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadJob {
    pub(super) id: u32,
    pub(super) token: Option<Token>,
    pub(super) at: BlockAt,
    /// Its neighbours, sent in the message directly after it.
    pub(super) around: Vec<BlockAt>,
}

/// A long answer, sent in several messages.
#[derive(Debug)]
enum Long {
    Manifest {
        offset: u64,
        bytes: u64,
    },
    List(GroupAt),
    /// The plan is shared by all requests for it, because it is long and a request is short. `pieces` is the number of
    /// pieces that were sent completely, `blocks` the number of blocks sent of the next piece.
    Plan {
        id: u32,
        task: FileId,
        plan: Option<Arc<Plan>>,
        pieces: usize,
        blocks: usize,
    },
}

#[derive(Debug)]
struct Fetch {
    id: u32,
    blocks: VecDeque<BlockAt>,
}

/// The next thing to send.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// A complete message.
    Answer(Answer),
    /// A demanded block.
    Read(ReadJob),
    /// Bytes of the manifest.
    Manifest { offset: u64, bytes: u64 },
    /// A group of hashes; in protocol 1 all hashes of its file.
    Hashes(GroupAt),
    /// Blocks that no program waits for. `is_last` marks the last ones of their request.
    Fetch {
        id: u32,
        blocks: Vec<BlockAt>,
        is_last: bool,
    },
}

/// The maximum number of bytes of the manifest in one message.
const MANIFEST_PIECE_BYTES: u64 = 128 << 10;

/// The queues of a connection.
#[derive(Debug, Default)]
pub(super) struct Queue {
    answers: VecDeque<Answer>,
    groups: VecDeque<GroupAt>,
    reads: VecDeque<ReadJob>,
    longs: VecDeque<Long>,
    fetches: VecDeque<Fetch>,
    fetch_blocks: usize,
}

impl Queue {
    /// Queues a short message, which is sent before everything else.
    pub(super) fn answer(&mut self, answer: Answer) {
        self.answers.push_back(answer);
    }

    pub(super) fn read(&mut self, job: ReadJob) {
        self.reads.push_back(job);
    }

    pub(super) fn manifest(&mut self, bytes: u64) {
        self.longs.push_back(Long::Manifest { offset: 0, bytes });
    }

    /// Queues all hashes of a file.
    pub(super) fn list(&mut self, at: GroupAt) {
        self.longs.push_back(Long::List(at));
    }

    /// Queues a group of hashes. It is sent before blocks: the device has a block already and needs the group to check
    /// it.
    pub(super) fn group(&mut self, at: GroupAt) {
        self.groups.push_back(at);
    }

    /// Queues the plan of a task. Earlier requests for this task that were not begun get the same plan. Otherwise a
    /// device that requests after each change and reads nothing would keep all plans in memory.
    pub(super) fn plan(&mut self, id: u32, task: FileId, plan: Option<&Arc<Plan>>) {
        for long in &mut self.longs {
            if let Long::Plan {
                task: of,
                plan: older,
                pieces: 0,
                blocks: 0,
                ..
            } = long
                && *of == task
            {
                *older = plan.cloned();
            }
        }
        self.longs.push_back(Long::Plan {
            id,
            task,
            plan: plan.cloned(),
            pieces: 0,
            blocks: 0,
        });
    }

    pub(super) fn fetch(&mut self, id: u32, blocks: Vec<BlockAt>) {
        self.fetch_blocks += blocks.len();
        let blocks = blocks.into();
        self.fetches.push_back(Fetch { id, blocks });
    }

    /// Returns the number of waiting requests.
    pub(super) fn requests(&self) -> usize {
        let hashes = self.groups.len() + self.longs.len();
        self.answers.len() + hashes + self.reads.len() + self.fetches.len()
    }

    /// Returns the number of waiting blocks of `Fetch`.
    pub(super) fn fetch_blocks(&self) -> usize {
        self.fetch_blocks
    }

    /// Returns the next job that precedes prefetched blocks.
    pub(super) fn next_urgent(&mut self) -> Option<Job> {
        if let Some(answer) = self.answers.pop_front() {
            return Some(Job::Answer(answer));
        }
        if let Some(at) = self.groups.pop_front() {
            return Some(Job::Hashes(at));
        }
        if let Some(read) = self.reads.pop_front() {
            return Some(Job::Read(read));
        }
        match self.longs.pop_front()? {
            Long::List(at) => Some(Job::Hashes(at)),
            Long::Manifest { offset, bytes } => {
                let piece = (bytes - offset).min(MANIFEST_PIECE_BYTES);
                if offset + piece < bytes {
                    let offset = offset + piece;
                    self.longs.push_front(Long::Manifest { offset, bytes });
                }
                let bytes = piece;
                Some(Job::Manifest { offset, bytes })
            }
            Long::Plan {
                id,
                task,
                plan,
                pieces,
                blocks,
            } => Some(self.next_of_plan((id, task), plan, pieces, blocks)),
        }
    }

    /// Returns the next message of a plan, and puts the rest back at the front of the queue.
    fn next_of_plan(
        &mut self,
        (id, task): (u32, FileId),
        plan: Option<Arc<Plan>>,
        mut piece: usize,
        mut sent: usize,
    ) -> Job {
        let mut message = Vec::new();
        let all = plan.as_ref().map_or(&[][..], |plan| &plan.pieces[..]);
        while let Some(blocks) = all.get(piece)
            && message.len() < BLOCKS_PER_MESSAGE_MAX
        {
            let room = BLOCKS_PER_MESSAGE_MAX - message.len();
            let rest = &blocks[sent..];
            let count = rest.len().min(room);
            message.extend_from_slice(&rest[..count]);
            sent += count;
            if sent == blocks.len() {
                (piece, sent) = (piece + 1, 0);
            }
        }
        let has_more = piece < all.len();
        if has_more {
            self.longs.push_front(Long::Plan {
                id,
                task,
                plan,
                pieces: piece,
                blocks: sent,
            });
        }
        Job::Answer(Answer::Plan {
            id,
            has_more,
            blocks: message,
        })
    }

    /// Drops the rest of a refused request: the device treats blocks that arrive after the refusal as unrequested.
    pub(super) fn end_fetch(&mut self, id: u32) {
        let of_it = self.fetches.iter().filter(|fetch| fetch.id == id);
        self.fetch_blocks -= of_it.map(|fetch| fetch.blocks.len()).sum::<usize>();
        self.fetches.retain(|fetch| fetch.id != id);
    }

    /// Returns the next job to send when nothing else is waiting.
    pub(super) fn next_fetch(&mut self) -> Option<Job> {
        let fetch = self.fetches.front_mut()?;
        let count = fetch.blocks.len().min(SEGMENT_BLOCKS as usize);
        let blocks: Vec<BlockAt> = fetch.blocks.drain(..count).collect();
        let (id, is_last) = (fetch.id, fetch.blocks.is_empty());
        self.fetch_blocks -= blocks.len();
        if is_last {
            self.fetches.pop_front();
        }
        Some(Job::Fetch {
            id,
            blocks,
            is_last,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(count: u32) -> Vec<BlockAt> {
        let file = FileId(1);
        (0..count).map(|index| BlockAt { file, index }).collect()
    }

    #[test]
    fn a_plan_that_is_asked_for_again_and_again_is_in_memory_once() {
        let mut queue = Queue::default();
        let plan = Arc::new(Plan::of(&blocks(100_000)));
        for id in 1..=200 {
            queue.plan(id, FileId(1), Some(&plan));
        }
        assert_eq!(queue.requests(), 200);
        assert_eq!(Arc::strong_count(&plan), 201);
        // A plan that is partly sent is not copied either.
        assert!(queue.next_urgent().is_some());
        assert_eq!(Arc::strong_count(&plan), 201);
        // Another task has its own plan. A newer plan of this task replaces those that were not begun.
        let [other, newer] = [(); 2].map(|()| Arc::new(Plan::of(&blocks(5))));
        queue.plan(201, FileId(2), Some(&other));
        queue.plan(202, FileId(1), Some(&newer));
        assert_eq!(Arc::strong_count(&plan), 2);
        assert_eq!(Arc::strong_count(&other), 2);
        assert_eq!(Arc::strong_count(&newer), 201);
    }

    #[test]
    fn no_block_of_a_refused_request_follows_its_refusal() {
        let mut queue = Queue::default();
        queue.fetch(1, blocks(100));
        queue.fetch(2, blocks(40));
        assert!(matches!(
            queue.next_fetch(),
            Some(Job::Fetch {
                id: 1,
                is_last: false,
                ..
            })
        ));
        queue.end_fetch(1);
        assert_eq!((queue.requests(), queue.fetch_blocks()), (1, 40));
        assert!(matches!(queue.next_fetch(), Some(Job::Fetch { id: 2, .. })));
        // The refused piece was the last one.
        assert!(matches!(
            queue.next_fetch(),
            Some(Job::Fetch { is_last: true, .. })
        ));
        queue.end_fetch(2);
        assert_eq!((queue.requests(), queue.fetch_blocks()), (0, 0));
    }

    #[test]
    fn a_plan_comes_whole_and_in_order_in_any_pieces() {
        let message = BLOCKS_PER_MESSAGE_MAX as u32;
        for count in [
            0,
            1,
            message - 1,
            message,
            message + 1,
            3 * message,
            3 * message + 5,
        ] {
            for piece in [1, 7, 31, 32, 1500] {
                let wanted = blocks(count);
                let mut plan = Plan::of(&[]);
                plan.pieces = wanted.chunks(piece).map(<[BlockAt]>::to_vec).collect();
                let mut queue = Queue::default();
                queue.plan(7, FileId(1), Some(&Arc::new(plan)));
                let (mut came, mut goes_on) = (Vec::new(), true);
                while let Some(job) = queue.next_urgent() {
                    let Job::Answer(Answer::Plan {
                        id,
                        has_more,
                        blocks,
                    }) = job
                    else {
                        panic!("{job:?}");
                    };
                    assert!(goes_on && id == 7 && blocks.len() <= BLOCKS_PER_MESSAGE_MAX);
                    came.extend(blocks);
                    goes_on = has_more;
                }
                assert!(!goes_on && came == wanted, "{count} {piece}");
            }
        }
    }
}
