//! What a task will need: learned from what it needed before.
//!
//! Pure: no clock, no file, no socket. Whoever uses this says the time and what came in, and is told what to send.
//! Whether a block exists in the version is for the caller to check before it says that it came in.
//!
//! `task/` is the default, `paper/` SYSFLOW as it is written, `none.rs` neither; `tokens.rs` the runs that are alive,
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
use crate::wire::Held;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How to predict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// One action for a task across all files, sent whole on its first match.
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
    /// Ends with the program.
    Exit,
}

/// Something to be sent whole, in order. The same plan has the same number as long as its blocks do not change, so
/// that its pieces can be kept compressed.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    /// Unique in this process.
    pub number: u64,
    /// Pieces of 1 to [`crate::SEGMENT_BLOCKS`] blocks.
    pub pieces: Vec<Vec<BlockAt>>,
}

impl Plan {
    /// A new one of these blocks, in pieces as long as they may be.
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

    /// Its blocks, in order.
    pub fn blocks(&self) -> impl Iterator<Item = BlockAt> + '_ {
        self.pieces.iter().flatten().copied()
    }
}

/// What to send because of something that came in, beside what was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Push {
    /// Nothing new.
    #[default]
    Nothing,
    /// These blocks, in order, 1 to [`crate::SEGMENT_BLOCKS`].
    Blocks(Vec<BlockAt>),
    /// All of a plan but what the device holds and what is asked for.
    Plan(Arc<Plan>),
    /// No more of the plan that is being sent.
    Stop,
}

/// What a task that begins is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Begun {
    /// What to send.
    pub push: Push,
    /// Let all reads be seen.
    pub is_audit: bool,
}

/// Names for blocks that outlive a version: what learned actions are kept by.
pub trait Catalogue {
    /// Path and content of a file of the version.
    fn describe(&self, file: FileId) -> Option<(&[u8], ContentId, u32)>;
    /// The file of that path in the version: number, content, blocks.
    fn find(&self, path: &[u8]) -> Option<(FileId, ContentId, u32)>;
}

/// Predicts and learns for one tenant and one version. Times are milliseconds of any clock that does not go back.
pub trait Predictor: Send {
    /// A task begins.
    fn begin(&mut self, token: Token, task: FileId, held: &Held, now_ms: u64) -> Begun;
    /// The same while another task of the same device starts: what one of the two has read, the other one reads unseen,
    /// so no audit is spent on it.
    fn begin_beside(&mut self, token: Token, task: FileId, held: &Held, now_ms: u64) -> Begun {
        self.begin(token, task, held, now_ms)
    }
    /// The device of this task gets these because of another task: that this one does not ask for them says nothing.
    fn beside(&mut self, _token: Token, _blocks: &[BlockAt]) {}
    /// A program of the task waits for a block; what is to be sent beside it.
    fn request(&mut self, token: Token, at: BlockAt, now_ms: u64) -> Push;
    /// Programs of the task have read these, in order.
    fn trace(&mut self, token: Token, blocks: &[BlockAt], now_ms: u64);
    /// The task has ended.
    fn end(&mut self, token: Token, is_exact: bool, has_exited: bool, now_ms: u64);
    /// The connection of the task was lost. Its device begins it anew and tells all of it again, so what was heard
    /// until now counts only where it would be missed.
    fn cut(&mut self, token: Token, now_ms: u64) {
        self.end(token, false, true, now_ms);
    }
    /// Time passes: actions that were recorded for long enough end.
    fn tick(&mut self, now_ms: u64);
    /// What is known of a task, in order.
    fn plan(&self, task: FileId) -> Option<Arc<Plan>>;
    /// All actions, for listing and for what is read ahead into memory.
    fn actions(&self) -> Vec<ActionInfo>;
    /// Whether anything was learned since this was asked last; it is to be saved then.
    fn take_changed(&mut self) -> bool;
    /// All that is learned, as the bytes of a file (`ACTIONS.md`).
    fn save(&self, catalogue: &dyn Catalogue) -> Vec<u8>;
    /// Puts what a file holds in place of what is known; what does not fit the version any more is left out.
    ///
    /// # Errors
    /// The file is damaged; nothing has changed then.
    fn load(&mut self, bytes: &[u8], catalogue: &dyn Catalogue) -> Result<(), LoadError>;
    /// Forgets a task; whether it was known.
    fn forget(&mut self, task: FileId) -> bool;
    /// What was refused or given up so far, and what was learned.
    fn counters(&self) -> Counters;
    /// Whether a task has this token or had it, as far as that is remembered: another one is to be refused.
    fn is_used(&self, token: Token) -> bool;
}

/// What a predictor counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Tasks refused because their token was used before.
    pub tokens_reused: u64,
    /// Tasks refused because too many are alive.
    pub tokens_refused: u64,
    /// Tasks given up for others because nothing had been heard of them for long.
    pub tokens_forgotten: u64,
    /// Messages about tasks that nobody began, or that have ended.
    pub tokens_unknown: u64,
    /// Tasks whose actions were given up for those of others.
    pub tasks_evicted: u64,
    /// Actions that were not kept because an executable or task has too many.
    pub actions_refused: u64,
    /// Blocks that were not recorded because of a limit.
    pub blocks_refused: u64,
    /// Blocks no longer known because they were not read for long.
    pub blocks_dropped: u64,
    /// Runs that something was learned from.
    pub runs_learned: u64,
    /// Plans that were stopped because the task did other things.
    pub plans_stopped: u64,
    /// Requests that were other than the predicted one, in mode `paper`.
    pub misses: u64,
}

/// One action, as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionInfo {
    /// The executable.
    pub task: FileId,
    /// What it is.
    pub kind: ActionKind,
    /// Its segments.
    pub segments: Vec<Vec<BlockAt>>,
    /// Runs that it was learned from or confirmed by.
    pub runs: u64,
}

/// A file of learned actions is not one, or is damaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("learned actions: {0}")]
pub struct LoadError(pub String);
