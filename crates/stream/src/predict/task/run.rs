//! One run of a task: what it has requested and read, and its phase.

use super::action::Planned;
use crate::block::{BlockAt, FileId};
use crate::predict::ActionKind;
use crate::wire::HeldBlocks;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

/// The action of its task that a run is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Phase {
    /// From the begin of the run to the first pause.
    Startup,
    /// Between pauses: the action that began with this block.
    Workload(BlockAt),
    /// After a pause, as the exit action of the task.
    Exit,
}

impl Phase {
    pub(super) fn kind(self) -> ActionKind {
        match self {
            Self::Startup => ActionKind::Startup,
            Self::Workload(_) => ActionKind::Workload,
            Self::Exit => ActionKind::Exit,
        }
    }
}

const ASKED: u8 = 1;
const TRACED: u8 = 2;
const GUESSED: u8 = 4;
const EARLIER: u8 = 8;
const BESIDE: u8 = 16;

/// The state of one token.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) task: FileId,
    pub(super) held: HeldBlocks,
    /// `None` during a pause.
    pub(super) phase: Option<Phase>,
    /// Whether no later phase has begun.
    is_startup: bool,
    /// The time when the phase began.
    pub(super) first_ms: u64,
    /// The time when something new was last read.
    pub(super) last_ms: u64,
    /// The plan that is being sent to it.
    pub(super) planned: Option<Arc<Planned>>,
    pub(super) was_stopped: bool,
    /// The number of consecutive demands that were not predicted.
    pub(super) mismatches: u32,
    pub(super) has_asked: bool,
    /// Another task of its device was sent something in this phase, and reads of that are not seen.
    pub(super) has_company: bool,
    /// It requested blocks of its plan that had not arrived, so it needs them earlier than the plan has them.
    pub(super) is_ahead: bool,
    /// A read has failed in this phase, its connection was lost, or the device has said nothing of its end. What it did
    /// not reach is unknown.
    pub(super) is_incomplete: bool,
    /// This start is an audit, and its first phase has not ended.
    pub(super) is_audit: bool,
    /// The blocks sent on a guess in this phase.
    pub(super) guessed: Vec<BlockAt>,
    asked: Vec<BlockAt>,
    traced: Vec<BlockAt>,
    flags: HashMap<BlockAt, u8>,
}

impl Run {
    pub(super) fn new(task: FileId, held: HeldBlocks, now_ms: u64) -> Self {
        Self {
            task,
            held,
            phase: Some(Phase::Startup),
            is_startup: true,
            first_ms: now_ms,
            last_ms: now_ms,
            planned: None,
            was_stopped: false,
            mismatches: 0,
            has_asked: false,
            has_company: false,
            is_ahead: false,
            is_incomplete: false,
            is_audit: false,
            guessed: Vec::new(),
            asked: Vec::new(),
            traced: Vec::new(),
            flags: HashMap::new(),
        }
    }

    /// Returns the number of blocks recorded for it.
    pub(super) fn recorded(&self) -> usize {
        self.flags.len()
    }

    /// Returns whether it has requested or read this block, in this phase or before.
    pub(super) fn has_read(&self, at: BlockAt) -> bool {
        self.flags
            .get(&at)
            .is_some_and(|flags| flags & (ASKED | TRACED | EARLIER) != 0)
    }

    /// Returns whether it has or will get this block: read, guessed, sent for another task of its device, or held.
    pub(super) fn has(&self, at: BlockAt) -> bool {
        self.flags.contains_key(&at) || self.held.has(at)
    }

    pub(super) fn begin_phase(&mut self, phase: Phase, now_ms: u64) {
        self.phase = Some(phase);
        self.is_startup = false;
        self.first_ms = now_ms;
        self.planned = None;
        self.was_stopped = false;
        self.mismatches = 0;
        self.has_company = false;
        self.is_ahead = false;
        self.is_incomplete = false;
        self.guessed.clear();
    }

    /// Records a block that it waits for.
    pub(super) fn ask(&mut self, at: BlockAt, now_ms: u64) {
        if self.mark(at, ASKED) {
            self.asked.push(at);
            self.last_ms = now_ms;
        }
    }

    /// Records a block that it has read.
    pub(super) fn trace(&mut self, at: BlockAt, now_ms: u64) {
        if self.mark(at, TRACED) {
            self.traced.push(at);
            self.last_ms = now_ms;
        }
    }

    pub(super) fn guess(&mut self, at: BlockAt) {
        if self.mark(at, GUESSED) {
            self.guessed.push(at);
        }
    }

    /// Records a block that its device gets because of another task.
    pub(super) fn beside(&mut self, at: BlockAt) {
        self.mark(at, BESIDE);
    }

    fn mark(&mut self, at: BlockAt, flag: u8) -> bool {
        let flags = self.flags.entry(at).or_default();
        let is_new = *flags & (flag | EARLIER) == 0;
        *flags |= flag;
        is_new
    }

    /// Ends the phase. Returns the blocks read in it, in order.
    pub(super) fn end_phase(&mut self) -> Vec<BlockAt> {
        self.phase = None;
        let (asked, traced) = (
            std::mem::take(&mut self.asked),
            std::mem::take(&mut self.traced),
        );
        let blocks = in_order(traced, &asked);
        for at in &blocks {
            self.mark(*at, EARLIER);
        }
        blocks
    }

    /// Returns for each file of its plan whether it has read from the file. A device shows the read of the first
    /// prefetched block of each file. So each file shows whether it is used, even if few of its blocks do. `None` if it
    /// cannot be decided: the run has company, was stopped or shows too few blocks. Also after the start, when these
    /// blocks were read already.
    pub(super) fn files_shown(&self, blocks: &[BlockAt]) -> Option<HashMap<FileId, bool>> {
        let planned = self.planned.as_ref()?;
        if self.has_company || self.was_stopped || !self.is_startup {
            return None;
        }
        let mut files: HashMap<FileId, bool> = HashMap::new();
        for at in planned.plan.blocks() {
            files.insert(at.file, false);
        }
        for at in blocks {
            if let Some(is_used) = files.get_mut(&at.file) {
                *is_used = true;
            }
        }
        let is_shown = |at: &BlockAt| files.get(&at.file) == Some(&true);
        let shown = planned.plan.blocks().filter(is_shown).count();
        if shown * 2 < planned.len() {
            return None;
        }
        // Held blocks are read unseen.
        for (file, _) in &self.held.files {
            files.remove(file);
        }
        Some(files)
    }

    /// Returns a test of whether a block may have been read unseen.
    pub(super) fn hidden(&self) -> impl Fn(BlockAt) -> bool + use<'_> {
        move |at| {
            self.planned.as_ref().is_some_and(|planned| planned.has(at))
                || self.held.has(at)
                || self
                    .flags
                    .get(&at)
                    .is_some_and(|flags| flags & (GUESSED | BESIDE) != 0)
        }
    }
}

/// Merges traces and requests. Traces are in the order of reading. A requested block that is in no trace (the device
/// may have lost its last report) is put after the block requested before it.
pub(in crate::predict) fn in_order<T: Copy + Eq + Hash>(traced: Vec<T>, asked: &[T]) -> Vec<T> {
    let known: HashSet<T> = traced.iter().copied().collect();
    if asked.iter().all(|at| known.contains(at)) {
        return traced;
    }
    let mut behind: HashMap<Option<T>, Vec<T>> = HashMap::new();
    let mut last = None;
    for at in asked {
        if known.contains(at) {
            last = Some(*at);
        } else {
            behind.entry(last).or_default().push(*at);
        }
    }
    let mut blocks = behind.remove(&None).unwrap_or_default();
    for at in traced {
        blocks.push(at);
        if let Some(lost) = behind.remove(&Some(at)) {
            blocks.extend(lost);
        }
    }
    blocks
}
