//! Predicts which blocks a task will need, from its earlier runs.
//!
//! Pure: no clock, no file, no socket. The caller passes the time and the events, and gets back what to send. The
//! caller must check that a block exists in the version before it reports the block.
//!
//! `task/` is the default, `paper/` is SYSFLOW as published, `none.rs` predicts nothing; `tokens.rs` the live runs,
//! `file.rs` the frame of the files of `ACTIONS.md`, `variance.rs` which segments a server keeps in memory.

mod file;
pub mod none;
pub mod paper;
#[cfg(test)]
mod stored;
pub mod task;
mod tokens;
pub mod variance;

pub(crate) use file::FILE_BYTES_MAX;

use crate::block::{BlockAt, ContentId, FileId, SEGMENT_BLOCKS, Token};
use crate::wire::HeldBlocks;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The prediction mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// One action for a task across all files, sent completely on its first match.
    #[default]
    Task,
    /// As in SYSFLOW: actions of an executable, segment by segment.
    Paper,
    /// Nothing is prefetched or learned.
    None,
}

/// The kinds of actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ActionKind {
    /// From the execution to the first pause.
    Startup,
    /// Between two pauses.
    Workload,
    /// The last action before the program exits.
    Exit,
}

/// Blocks that are sent completely, in order. A plan keeps its number as long as its blocks do not change, so that its
/// pieces can be cached compressed.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    /// Unique in this process.
    pub number: u64,
    /// Pieces of 1 to [`crate::SEGMENT_BLOCKS`] blocks.
    pub pieces: Vec<Vec<BlockAt>>,
}

impl Plan {
    /// Creates a plan of these blocks, in pieces of the maximum length.
    #[must_use]
    pub fn of(blocks: &[BlockAt]) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            pieces: blocks
                .chunks(SEGMENT_BLOCKS as usize)
                .map(<[BlockAt]>::to_vec)
                .collect(),
        }
    }

    /// Returns its blocks, in order.
    pub fn blocks(&self) -> impl Iterator<Item = BlockAt> + '_ {
        self.pieces.iter().flatten().copied()
    }
}

/// What to send in response to an event, beside the requested block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Push {
    /// Nothing new.
    #[default]
    Nothing,
    /// These blocks, in order, 1 to [`crate::SEGMENT_BLOCKS`].
    Blocks(Vec<BlockAt>),
    /// All of a plan except what the device holds and what is requested.
    Plan(Arc<Plan>),
    /// Stop the current plan.
    Stop,
}

/// The response to the begin of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Begun {
    /// What to send.
    pub push: Push,
    /// Whether the device must make all reads visible.
    pub is_audit: bool,
}

/// What a device needs to run a task without a server, as far as it was learned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Needed {
    /// Nothing was learned.
    #[default]
    Nothing,
    /// No start was learned that is whole: each one has failed or was cut off before it had read what it needs.
    Part,
    /// Every block that may be sent, those of the task's plan first.
    Plan(Arc<Plan>),
}

/// Names of files that are stable across versions. Learned actions are stored by them.
pub trait Catalogue {
    /// Returns the path, content and number of blocks of a file of the version.
    fn describe(&self, file: FileId) -> Option<(&[u8], ContentId, u32)>;
    /// Returns the file at that path in the version: number, content, blocks.
    fn find(&self, path: &[u8]) -> Option<(FileId, ContentId, u32)>;
}

/// Predicts and learns for one tenant and one version. Times are in milliseconds of any monotonic clock.
pub trait Predictor: Send {
    /// Handles the begin of a task.
    fn begin(&mut self, token: Token, task: FileId, held: &HeldBlocks, now_ms: u64) -> Begun;
    /// Like `begin`, while another task of the same device starts. Blocks that one of the two has read are read unseen
    /// by the other one, so no audit is used for it.
    fn begin_beside(
        &mut self,
        token: Token,
        task: FileId,
        held: &HeldBlocks,
        now_ms: u64,
    ) -> Begun {
        self.begin(token, task, held, now_ms)
    }
    /// Notes blocks that the device of this task gets because of another task. That this task does not request them
    /// proves nothing.
    fn beside(&mut self, _token: Token, _blocks: &[BlockAt]) {}
    /// Handles a block that a program of the task waits for. Returns what to send beside it.
    fn request(&mut self, token: Token, at: BlockAt, now_ms: u64) -> Push;
    /// Handles blocks that programs of the task have read, in order.
    fn trace(&mut self, token: Token, blocks: &[BlockAt], now_ms: u64);
    /// Handles the end of the task.
    fn end(&mut self, token: Token, is_exact: bool, has_exited: bool, now_ms: u64);
    /// Handles the loss of the task's connection. Its device begins the task again and reports everything again. So
    /// what was reported so far is used only if nothing else is known.
    fn cut(&mut self, token: Token, now_ms: u64) {
        self.end(token, false, true, now_ms);
    }
    /// Notes that a program of the task gets an error in place of a block. What the task does not read from then on
    /// proves nothing.
    fn failed(&mut self, _token: Token) {}
    /// Ends actions whose recording time is over.
    fn tick(&mut self, now_ms: u64);
    /// Returns the plan of a task, in order.
    fn plan(&self, task: FileId) -> Option<Arc<Plan>>;
    /// Returns every block that may be sent for a task. A device needs them to run the task without a server.
    fn needed(&mut self, task: FileId) -> Needed {
        self.plan(task).map_or(Needed::Nothing, Needed::Plan)
    }
    /// Returns what is likely to be requested next of this file, in order. It is the rest of the segment that answered
    /// the task's last request of the file, and the next `segments` segments of that action. Empty if the task follows
    /// no action there. Plans are not included: what is sent whole is not requested.
    fn following(&self, _token: Token, _file: FileId, _segments: usize) -> Vec<BlockAt> {
        Vec::new()
    }
    /// Returns the files that the known actions of a task name.
    fn files(&self, task: FileId) -> BTreeSet<FileId> {
        let plan = self.plan(task);
        let blocks = plan.iter().flat_map(|plan| plan.blocks());
        blocks.map(|at| at.file).collect()
    }
    /// Returns all actions, for listings and for read-ahead into memory.
    fn actions(&self) -> Vec<ActionInfo>;
    /// Returns whether anything was learned since the last call and must be saved.
    fn take_changed(&mut self) -> bool;
    /// Returns everything learned as the bytes of a file (`ACTIONS.md`).
    fn save(&self, catalogue: &dyn Catalogue) -> Vec<u8>;
    /// Replaces everything learned with the content of a file. Skips what does not match the version any more.
    ///
    /// # Errors
    /// The file is damaged; nothing changes then.
    fn load(&mut self, bytes: &[u8], catalogue: &dyn Catalogue) -> Result<(), LoadError>;
    /// Forgets a task. Returns whether it was known.
    fn forget(&mut self, task: FileId) -> bool;
    /// Returns the counters.
    fn counters(&self) -> Counters;
    /// Returns whether a task has or had this token, as far as that is remembered. A new task with it must be refused.
    fn is_used(&self, token: Token) -> bool;
}

/// The counters of a predictor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The number of tasks refused because their token was used before.
    pub tokens_reused: u64,
    /// The number of tasks refused because too many are alive.
    pub tokens_refused: u64,
    /// The number of tasks dropped for new ones because they were silent for long.
    pub tokens_forgotten: u64,
    /// The number of messages about tasks that were never begun or have ended.
    pub tokens_unknown: u64,
    /// The number of tasks whose actions were evicted for those of others.
    pub tasks_evicted: u64,
    /// The number of actions refused, or evicted for others, because of a limit.
    pub actions_refused: u64,
    /// The number of blocks not recorded because of a limit.
    pub blocks_refused: u64,
    /// The number of blocks dropped because they were not read for long.
    pub blocks_dropped: u64,
    /// The number of runs that something was learned from.
    pub runs_learned: u64,
    /// The number of plans stopped because the task did not follow them.
    pub plans_stopped: u64,
    /// The number of requests that did not match the prediction, in mode `paper`.
    pub misses: u64,
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, one: Self) {
        self.tokens_reused += one.tokens_reused;
        self.tokens_refused += one.tokens_refused;
        self.tokens_forgotten += one.tokens_forgotten;
        self.tokens_unknown += one.tokens_unknown;
        self.tasks_evicted += one.tasks_evicted;
        self.actions_refused += one.actions_refused;
        self.blocks_refused += one.blocks_refused;
        self.blocks_dropped += one.blocks_dropped;
        self.runs_learned += one.runs_learned;
        self.plans_stopped += one.plans_stopped;
        self.misses += one.misses;
    }
}

/// One action, as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionInfo {
    /// The executable.
    pub task: FileId,
    /// Its kind.
    pub kind: ActionKind,
    /// Its segments.
    pub segments: Vec<Vec<BlockAt>>,
    /// The number of further blocks that only some of the last runs have read. They are sent when one of them is
    /// requested.
    pub others: usize,
    /// The number of runs that it was learned from or confirmed by.
    pub runs: u64,
    /// One of these runs is whole. Any other one has failed or was cut off, so the task may need more than is known.
    pub is_whole: bool,
}

/// The error for a file of learned actions that is invalid or damaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("learned actions: {0}")]
pub struct LoadError(pub String);
