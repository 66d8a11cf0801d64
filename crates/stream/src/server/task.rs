//! The blocks of a task that were sent and that are still to be sent. Pure: no clock, no socket.

use crate::block::{BlockAt, FileId, SEGMENT_BLOCKS, Token};
use crate::predict::{Plan, Push};
use crate::wire::HeldBlocks;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The maximum number of words of 64 blocks in the records of sent blocks, for all tasks of a device (some 2.5 MiB).
/// Beyond that a block may be prefetched twice.
pub(super) const SENT_WORDS_MAX: usize = 1 << 16;

/// The maximum duration of a start. A task that runs longer without a pause is no longer starting.
const START_MS_MAX: u64 = 60_000;

/// The maximum number of waiting blocks outside plans; more are not prefetched.
const LOOSE_BLOCKS_MAX: usize = 4096;

/// The number of words that the records of a device's tasks may still use.
#[derive(Clone, Debug)]
pub(super) struct SentRoom(Arc<AtomicUsize>);

impl SentRoom {
    /// Allows `words_max` words.
    pub(super) fn new(words_max: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(words_max)))
    }

    fn take(&self) -> bool {
        let less = |left: usize| left.checked_sub(1);
        let (order, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        self.0.fetch_update(order, failed, less).is_ok()
    }

    fn give_back(&self, words: usize) {
        self.0.fetch_add(words, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The set of blocks that were sent.
#[derive(Debug)]
struct Sent {
    words: HashMap<(FileId, u32), u64>,
    room: SentRoom,
}

impl Drop for Sent {
    fn drop(&mut self) {
        self.room.give_back(self.words.len());
    }
}

impl Sent {
    fn new(room: &SentRoom) -> Self {
        Self {
            words: HashMap::new(),
            room: room.clone(),
        }
    }

    fn has(&self, at: BlockAt) -> bool {
        self.words
            .get(&(at.file, at.index / 64))
            .is_some_and(|word| word >> (at.index % 64) & 1 == 1)
    }

    fn add(&mut self, at: BlockAt) {
        self.add_word((at.file, at.index / 64), 1 << (at.index % 64));
    }

    fn add_word(&mut self, key: (FileId, u32), bits: u64) {
        if let Some(word) = self.words.get_mut(&key) {
            *word |= bits;
        } else if self.room.take() {
            self.words.insert(key, bits);
        }
    }

    fn remove(&mut self, at: BlockAt) {
        if let Some(word) = self.words.get_mut(&(at.file, at.index / 64)) {
            *word &= !(1 << (at.index % 64));
        }
    }

    fn add_all(&mut self, other: &Self) {
        for (key, word) in &other.words {
            self.add_word(*key, *word);
        }
    }

    fn blocks(&self) -> impl Iterator<Item = BlockAt> {
        self.words.iter().flat_map(|((file, word_at), word)| {
            let set = (0..64).filter(move |bit| word >> bit & 1 == 1);
            set.map(move |bit| BlockAt {
                file: *file,
                index: word_at * 64 + bit,
            })
        })
    }

    fn count(&self) -> usize {
        let words = self.words.values();
        words.map(|word| word.count_ones() as usize).sum()
    }
}

/// What to send next for a task.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// These blocks.
    Piece {
        /// The number of the plan and the index of the piece, if these are all blocks of that piece.
        whole: Option<(u64, usize)>,
        /// 1 to [`SEGMENT_BLOCKS`].
        blocks: Vec<BlockAt>,
    },
    /// The end of prefetching.
    Done {
        /// Whether it was stopped because the task did not follow the prediction.
        was_stopped: bool,
    },
}

/// A task that has begun.
#[derive(Debug)]
pub(super) struct Task {
    /// The token of the run.
    pub(super) token: Token,
    /// The executable.
    pub(super) task: FileId,
    /// The connection that it was begun on. Its prefetched blocks go there, and it ends with that connection.
    pub(super) home: u64,
    /// It has ended, but its processes are still alive.
    pub(super) is_paused: bool,
    /// The latest end of its start. What is sent to it until then also counts as present for other tasks of its device.
    /// Later the device may have evicted it.
    starts_until_ms: u64,
    /// Another task of its device started at the same time.
    has_company: bool,
    held: HeldBlocks,
    sent: Sent,
    /// Prefetched and sent blocks that are in no trace.
    unread: Sent,
    plan: Option<(Arc<Plan>, usize)>,
    loose: VecDeque<BlockAt>,
    is_open: bool,
    was_stopped: bool,
}

impl Task {
    /// Creates a task. `room` limits the records of sent blocks of this and the other tasks of its device.
    pub(super) fn new(
        token: Token,
        task: FileId,
        home: u64,
        held: HeldBlocks,
        room: &SentRoom,
    ) -> Self {
        Self {
            token,
            task,
            home,
            is_paused: false,
            starts_until_ms: 0,
            has_company: false,
            held,
            sent: Sent::new(room),
            unread: Sent::new(room),
            plan: None,
            loose: VecDeque::new(),
            is_open: false,
            was_stopped: false,
        }
    }

    /// Notes that it starts now.
    pub(super) fn starts_at(&mut self, now_ms: u64) {
        self.starts_until_ms = now_ms + START_MS_MAX;
    }

    /// Notes that its first action is over.
    pub(super) fn has_started(&mut self) {
        self.starts_until_ms = 0;
    }

    /// Returns whether its first action is still running.
    pub(super) fn is_starting(&self, now_ms: u64) -> bool {
        now_ms < self.starts_until_ms
    }

    /// Notes that everything sent to `other`, which is another start of the same device, is on the device.
    pub(super) fn join(&mut self, other: &mut Self) {
        self.sent.add_all(&other.sent);
        self.has_company = true;
        other.has_company = true;
    }

    /// Returns the blocks sent to it and to the starts that it has joined, in no order.
    pub(super) fn sent_blocks(&self) -> impl Iterator<Item = BlockAt> {
        self.sent.blocks()
    }

    /// Takes what the predictor wants to prefetch. Returns the number of blocks of the plan that will be sent.
    pub(super) fn push(&mut self, push: Push) -> u32 {
        match push {
            Push::Nothing => return 0,
            Push::Blocks(blocks) => {
                let room = LOOSE_BLOCKS_MAX - self.loose.len();
                self.loose.extend(blocks.into_iter().take(room));
            }
            Push::Plan(plan) => self.plan = Some((plan, 0)),
            Push::Stop => {
                self.was_stopped = self.is_open;
                self.drop_rest();
                return 0;
            }
        }
        self.is_open = true;
        let rest = self.plan.iter().flat_map(|(plan, _)| plan.blocks());
        let is_wanted = |at: &BlockAt| self.is_wanted(*at);
        u32::try_from(rest.filter(is_wanted).count()).unwrap_or(u32::MAX)
    }

    /// Returns the number of blocks of the current plan that the device holds.
    pub(super) fn held_blocks(&self) -> usize {
        let blocks = self.plan.iter().flat_map(|(plan, _)| plan.blocks());
        blocks.filter(|at| self.held.has(*at)).count()
    }

    /// Drops the rest of what is to be prefetched.
    pub(super) fn drop_rest(&mut self) {
        self.plan = None;
        self.loose.clear();
    }

    /// Notes that a program waits for this block. It is sent now, and not again with the plan.
    pub(super) fn demand(&mut self, at: BlockAt) {
        self.sent.add(at);
    }

    /// Returns which of the `around` blocks after a demanded one in its aligned run are sent after it. None of them was
    /// sent before, and the device holds none of them.
    pub(super) fn around(&mut self, at: BlockAt, around: u8, file_blocks: u32) -> Vec<BlockAt> {
        let blocks = around_of(at, around, file_blocks, |at| self.is_wanted(at));
        for at in &blocks {
            self.sent.add(*at);
        }
        blocks
    }

    /// Returns what to send next, and marks it as sent.
    pub(super) fn next(&mut self) -> Option<Next> {
        while let Some((plan, at)) = &mut self.plan {
            let (plan, piece) = (Arc::clone(plan), *at);
            let Some(blocks) = plan.pieces.get(piece) else {
                self.plan = None;
                break;
            };
            *at += 1;
            let wanted = self.claim(blocks.iter().copied());
            if !wanted.is_empty() {
                let whole = (wanted.len() == blocks.len()).then_some((plan.number, piece));
                return Some(Next::Piece {
                    whole,
                    blocks: wanted,
                });
            }
        }
        while !self.loose.is_empty() {
            let count = self.loose.len().min(SEGMENT_BLOCKS as usize);
            let blocks: Vec<BlockAt> = self.loose.drain(..count).collect();
            let blocks = self.claim(blocks);
            if !blocks.is_empty() {
                return Some(Next::Piece {
                    whole: None,
                    blocks,
                });
            }
        }
        if std::mem::take(&mut self.is_open) {
            return Some(Next::Done {
                was_stopped: std::mem::take(&mut self.was_stopped),
            });
        }
        None
    }

    /// Returns the blocks of the next `pieces` pieces of the plan, after what [`next`](Self::next) returned.
    pub(super) fn ahead(&self, pieces: usize) -> impl Iterator<Item = &BlockAt> {
        let rest = self.plan.iter().flat_map(move |(plan, at)| {
            let from = (*at).min(plan.pieces.len());
            plan.pieces[from..].iter().take(pieces)
        });
        rest.flatten()
    }

    /// Returns whether there is something to send.
    pub(super) fn has_next(&self) -> bool {
        self.is_open
    }

    /// Notes that programs have read these blocks.
    pub(super) fn trace(&mut self, blocks: &[BlockAt]) {
        for at in blocks {
            self.unread.remove(*at);
        }
    }

    /// Returns the number of blocks that were prefetched, sent, and are in no trace; 0 if another task may have read
    /// them.
    pub(super) fn unread_blocks(&self) -> usize {
        if self.has_company {
            return 0;
        }
        self.unread.count()
    }

    fn is_wanted(&self, at: BlockAt) -> bool {
        !self.sent.has(at) && !self.held.has(at)
    }

    fn claim(&mut self, blocks: impl IntoIterator<Item = BlockAt>) -> Vec<BlockAt> {
        let mut wanted = Vec::new();
        for at in blocks {
            if self.is_wanted(at) {
                self.sent.add(at);
                self.unread.add(at);
                wanted.push(at);
            }
        }
        wanted
    }
}

/// See [`Task::around`]; the caller decides which blocks are wanted.
pub(super) fn around_of(
    at: BlockAt,
    around: u8,
    file_blocks: u32,
    is_wanted: impl Fn(BlockAt) -> bool,
) -> Vec<BlockAt> {
    let run_end = (at.index / SEGMENT_BLOCKS + 1).saturating_mul(SEGMENT_BLOCKS);
    let behind = at.index.saturating_add(1);
    let end = behind
        .saturating_add(u32::from(around))
        .min(run_end)
        .min(file_blocks);
    (behind..end)
        .map(|index| BlockAt { index, ..at })
        .filter(|at| is_wanted(*at))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(index: u32) -> BlockAt {
        let file = FileId(3);
        BlockAt { file, index }
    }

    fn task(held: HeldBlocks) -> Task {
        Task::new(Token([1; 16]), FileId(3), 7, held, &SentRoom::new(1 << 10))
    }

    fn all(indexes: std::ops::Range<u32>) -> Vec<BlockAt> {
        indexes.map(at).collect()
    }

    #[test]
    fn a_plan_goes_piece_by_piece_and_whole_pieces_are_known_as_such() {
        let plan = Arc::new(Plan::of(&all(0..70)));
        let mut task = task(HeldBlocks::of(vec![at(40)]));
        assert_eq!(task.push(Push::Plan(Arc::clone(&plan))), 69);
        assert_eq!(task.held_blocks(), 1);
        let piece = |whole, blocks| Some(Next::Piece { whole, blocks });
        assert_eq!(task.next(), piece(Some((plan.number, 0)), all(0..32)));
        task.demand(at(50));
        let rest = all(32..64);
        let rest = rest.into_iter().filter(|b| ![40, 50].contains(&b.index));
        assert_eq!(task.next(), piece(None, rest.collect()));
        assert_eq!(task.ahead(3).count(), 6);
        assert_eq!(task.next(), piece(Some((plan.number, 2)), all(64..70)));
        let was_stopped = false;
        assert_eq!(task.next(), Some(Next::Done { was_stopped }));
        assert_eq!((task.next(), task.has_next()), (None, false));
        task.trace(&all(0..60));
        assert_eq!(task.unread_blocks(), 10);
    }

    #[test]
    fn a_stopped_plan_is_told_once() {
        let mut task = task(HeldBlocks::default());
        task.push(Push::Stop);
        assert_eq!(task.next(), None);
        task.push(Push::Plan(Arc::new(Plan::of(&all(0..70)))));
        task.next();
        task.push(Push::Stop);
        let was_stopped = true;
        assert_eq!(task.next(), Some(Next::Done { was_stopped }));
        assert_eq!(task.next(), None);
        // Another plan for the same task begins from the start, except for blocks that were sent.
        assert_eq!(task.push(Push::Plan(Arc::new(Plan::of(&all(0..70))))), 38);
    }

    #[test]
    fn single_blocks_are_sent_together_once_and_as_many_as_may_wait() {
        let mut task = task(HeldBlocks::default());
        task.demand(at(1));
        task.push(Push::Blocks(all(0..40)));
        task.push(Push::Blocks(all(0..40)));
        let mut sent = Vec::new();
        while let Some(Next::Piece { blocks, .. }) = task.next() {
            assert!(blocks.len() <= SEGMENT_BLOCKS as usize);
            sent.extend(blocks);
        }
        let expected = all(0..40).into_iter().filter(|block| *block != at(1));
        assert_eq!(sent, expected.collect::<Vec<_>>());
        task.push(Push::Blocks(all(100..10_000)));
        assert_eq!(task.loose.len(), LOOSE_BLOCKS_MAX);
    }

    #[test]
    fn sent_blocks_are_remembered_while_the_device_has_room() {
        let room = SentRoom::new(100);
        let new = || Task::new(Token([1; 16]), FileId(3), 7, HeldBlocks::default(), &room);
        let (mut first, mut second) = (new(), new());
        for word in 0..70 {
            first.demand(at(word * 64));
            second.demand(at(word * 64));
        }
        assert_eq!(first.sent.count() + second.sent.count(), 100);
        assert_eq!(room.left(), 0);
        // A word that is recorded already costs nothing more, and one task cannot take the words of the other.
        first.demand(at(1));
        assert!(first.sent.has(at(1)) && second.sent.has(at(49 * 64)));
        assert!(!second.sent.has(at(50 * 64)));
        let mut third = new();
        third.join(&mut first);
        assert_eq!(third.sent.count(), 0);
        // A block that is not recorded is sent again, not left out.
        assert_eq!(third.push(Push::Plan(Arc::new(Plan::of(&all(0..5))))), 5);
        drop(first);
        assert_eq!(room.left(), 50);
        drop((second, third));
        assert_eq!(room.left(), 100);
    }

    #[test]
    fn neighbours_stay_in_their_run_and_file() {
        let around = |index, around, blocks| around_of(at(index), around, blocks, |_| true);
        assert_eq!(around(3, 4, 100), all(4..8));
        assert_eq!(around(30, 32, 100), all(31..32));
        assert_eq!(around(64, 255, 70), all(65..70));
        assert_eq!(around(u32::MAX, 255, u32::MAX), []);
        assert_eq!(around(3, 0, 100), []);
    }
}
