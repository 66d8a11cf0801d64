//! What a connection has to send beside what was foretold: lists of things to do, never their bytes, so that a slow
//! reader costs a few bytes for each request. Pure.

use crate::block::{BlockAt, FileId, SEGMENT_BLOCKS, Token};
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
    /// Sent in a message directly behind it.
    pub(super) around: Vec<BlockAt>,
}

/// Something long: sent message by message.
#[derive(Debug)]
enum Long {
    Manifest { offset: u64, bytes: u64 },
    Hashes(FileId),
    Plan { id: u32, blocks: Vec<BlockAt> },
}

#[derive(Debug)]
struct Fetch {
    id: u32,
    blocks: VecDeque<BlockAt>,
}

/// What is to be sent next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// A message as it is.
    Answer(Answer),
    /// A demanded block.
    Read(ReadJob),
    /// Bytes of the manifest.
    Manifest { offset: u64, bytes: u64 },
    /// The hashes of a file.
    Hashes(FileId),
    /// Blocks that nobody waits for; the last ones of their request.
    Fetch {
        id: u32,
        blocks: Vec<BlockAt>,
        is_last: bool,
    },
}

/// Bytes of the manifest in one message.
const MANIFEST_PIECE_BYTES: u64 = 128 << 10;

/// The lists.
#[derive(Debug, Default)]
pub(super) struct Queue {
    answers: VecDeque<Answer>,
    reads: VecDeque<ReadJob>,
    longs: VecDeque<Long>,
    fetches: VecDeque<Fetch>,
    fetch_blocks: usize,
}

impl Queue {
    /// A short message, sent before all else.
    pub(super) fn answer(&mut self, answer: Answer) {
        self.answers.push_back(answer);
    }

    pub(super) fn read(&mut self, job: ReadJob) {
        self.reads.push_back(job);
    }

    pub(super) fn manifest(&mut self, bytes: u64) {
        self.longs.push_back(Long::Manifest { offset: 0, bytes });
    }

    pub(super) fn hashes(&mut self, file: FileId) {
        self.longs.push_back(Long::Hashes(file));
    }

    pub(super) fn plan(&mut self, id: u32, plan: Option<&Arc<Plan>>) {
        let blocks = plan.map_or_else(Vec::new, |plan| plan.blocks().collect());
        self.longs.push_back(Long::Plan { id, blocks });
    }

    pub(super) fn fetch(&mut self, id: u32, blocks: Vec<BlockAt>) {
        self.fetch_blocks += blocks.len();
        let blocks = blocks.into();
        self.fetches.push_back(Fetch { id, blocks });
    }

    /// Requests that wait.
    pub(super) fn requests(&self) -> usize {
        self.answers.len() + self.reads.len() + self.longs.len() + self.fetches.len()
    }

    /// Blocks of `Fetch` that wait.
    pub(super) fn fetch_blocks(&self) -> usize {
        self.fetch_blocks
    }

    /// What goes before anything foretold.
    pub(super) fn next_urgent(&mut self) -> Option<Job> {
        if let Some(answer) = self.answers.pop_front() {
            return Some(Job::Answer(answer));
        }
        if let Some(read) = self.reads.pop_front() {
            return Some(Job::Read(read));
        }
        match self.longs.pop_front()? {
            Long::Hashes(file) => Some(Job::Hashes(file)),
            Long::Manifest { offset, bytes } => {
                let piece = (bytes - offset).min(MANIFEST_PIECE_BYTES);
                if offset + piece < bytes {
                    let offset = offset + piece;
                    self.longs.push_front(Long::Manifest { offset, bytes });
                }
                let bytes = piece;
                Some(Job::Manifest { offset, bytes })
            }
            Long::Plan { id, mut blocks } => {
                let rest = blocks.split_off(blocks.len().min(BLOCKS_PER_MESSAGE_MAX));
                let has_more = !rest.is_empty();
                if has_more {
                    self.longs.push_front(Long::Plan { id, blocks: rest });
                }
                Some(Job::Answer(Answer::Plan {
                    id,
                    has_more,
                    blocks,
                }))
            }
        }
    }

    /// What goes when nothing else is to be sent.
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
