//! SYSFLOW as published (section III.B): actions of an executable, matched and sent segment by segment.
//!
//! An executable is a file here; a request names one of its blocks. Where the paper leaves details open, this code
//! decides as follows. Positions count from 0. The first request is answered up to position 2 of the first segment (two
//! blocks). The match pointer then stands at position 2 and at SEG_MAX - 2. Where SEG_MAX exceeds 32, a third match is
//! halfway between them, at SEG_MAX / 2, so that a wrong guess costs half a segment at most. Each match is answered up
//! to the next pointer. Positions behind the end of a short segment are skipped. A first request matches an action if
//! its first two blocks include the requested block. Any other block is found by the scan, which sends its whole
//! segment and continues after it.

mod action;
mod store;
#[cfg(test)]
mod tests;

use super::task::run::in_order;
use super::tokens::Tokens;
use super::{ActionInfo, ActionKind, Begun, Catalogue, Counters, LoadError, Plan, Predictor, Push};
use crate::block::{BlockAt, FileId, Token};
use crate::wire::HeldBlocks;
use action::{Action, Delivery, Executable};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
pub(super) use store::{kind_from, kind_number};

/// The minimum of SEG_MAX: first part, match and rest each have a block.
pub const SEG_MAX_MIN: u32 = 4;

/// SEG_MAX of SYSFLOW.
pub const SEG_MAX: u32 = 32;

/// The maximum of SEG_MAX.
pub const SEG_MAX_MAX: u32 = 1024;

/// The settings of the paper's predictor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaperSettings {
    /// The number of blocks in a segment, clamped to [`SEG_MAX_MIN`] to [`SEG_MAX_MAX`].
    pub seg_max: u32,
    /// The duration of the recording of an action, from its first request.
    pub construct_ms: u64,
    /// The maximum number of executables with actions.
    pub executables_max: usize,
    /// The maximum number of actions of an executable.
    pub actions_max: usize,
    /// The maximum number of blocks of an action.
    pub blocks_per_action_max: usize,
    /// The maximum number of blocks of all actions and all recordings.
    pub blocks_total_max: usize,
    /// The maximum number of live runs.
    pub tokens_max: usize,
    /// The number of remembered tokens of ended runs.
    pub ended_max: usize,
}

impl Default for PaperSettings {
    fn default() -> Self {
        Self {
            seg_max: SEG_MAX,
            construct_ms: 3_000,
            executables_max: 4_096,
            actions_max: 16,
            blocks_per_action_max: 32_768,
            blocks_total_max: 1 << 20,
            tokens_max: 1_024,
            ended_max: 4_096,
        }
    }
}

/// One run.
struct Run {
    states: HashMap<FileId, RunState>,
    /// Executables that it has requested before: its next action of them is no startup.
    started: HashSet<FileId>,
}

/// The state of a run for an executable. If there is none, the next request is matched again.
enum RunState {
    Construct(Recording),
    /// Match and generation: the next delivery of an action is sent when its first block is requested.
    Follow {
        action: u64,
        next: usize,
    },
}

struct Recording {
    kind: ActionKind,
    first_ms: u64,
    blocks: Vec<u32>,
    recorded: HashSet<u32>,
    /// The reads that were reported, including neighbours, which need no request.
    traced: Vec<u32>,
    traced_set: HashSet<u32>,
}

impl Recording {
    /// Returns the number of blocks that it counts towards the limit.
    fn held(&self) -> usize {
        self.blocks.len() + self.traced.len()
    }
}

/// Predicts as in SYSFLOW.
pub struct PaperPredictor {
    settings: PaperSettings,
    executables: BTreeMap<FileId, Executable>,
    runs: Tokens<Run>,
    counters: Counters,
    /// A unique name for the next action, so that a run can detect that its action is gone.
    action_next: u64,
    /// The number of blocks of all actions and all recordings.
    blocks_total: usize,
    is_changed: bool,
}

impl PaperPredictor {
    /// Creates a predictor that has learned nothing yet.
    #[must_use]
    pub fn new(settings: PaperSettings) -> Self {
        let seg_max = settings.seg_max.clamp(SEG_MAX_MIN, SEG_MAX_MAX);
        Self {
            settings: PaperSettings {
                seg_max,
                ..settings
            },
            executables: BTreeMap::new(),
            runs: Tokens::new(settings.tokens_max, settings.ended_max),
            counters: Counters::default(),
            action_next: 1,
            blocks_total: 0,
            is_changed: false,
        }
    }

    /// Completes the recording of an executable, and keeps it as an action.
    fn complete(&mut self, file: FileId, recording: Recording, has_exited: bool) {
        self.blocks_total -= recording.held();
        let kind = match recording.kind {
            ActionKind::Workload if has_exited => ActionKind::Exit,
            kind => kind,
        };
        self.counters.runs_learned += 1;
        let blocks = in_order(recording.traced, &recording.blocks);
        self.keep(file, kind, &blocks, 1);
    }

    /// Adds an action to its executable, unless the executable has it already or there is no room.
    fn keep(&mut self, file: FileId, kind: ActionKind, blocks: &[u32], runs: u64) {
        let is_known = self.executables.contains_key(&file);
        if blocks.is_empty()
            || (!is_known && self.executables.len() >= self.settings.executables_max)
            || self.blocks_total + blocks.len() > self.settings.blocks_total_max
        {
            self.counters.actions_refused += u64::from(!blocks.is_empty());
            return;
        }
        let executable = self.executables.entry(file).or_default();
        if let Some(same) = executable
            .actions
            .iter_mut()
            .find(|action| action.blocks().eq(blocks.iter().copied()))
        {
            same.runs += runs;
            self.is_changed = true;
            return;
        }
        if executable.actions.len() >= self.settings.actions_max {
            self.counters.actions_refused += 1;
            return;
        }
        let name = self.action_next;
        self.action_next += 1;
        self.blocks_total += blocks.len();
        let seg_max = self.settings.seg_max;
        executable
            .actions
            .push(Action::new(name, file, kind, blocks, seg_max, runs));
        executable.plan = None;
        let mut known = HashSet::new();
        let all: Vec<BlockAt> = executable
            .actions
            .iter()
            .flat_map(Action::blocks)
            .filter(|index| known.insert(*index))
            .map(|index| BlockAt { file, index })
            .collect();
        executable.plan = Some(Arc::new(Plan::of(&all)));
        self.is_changed = true;
    }

    /// Matches or scans; `None` if the action must be constructed.
    fn match_anew(&mut self, at: BlockAt) -> Option<(Push, Option<RunState>)> {
        let executable = self.executables.get_mut(&at.file)?;
        let actions = &mut executable.actions;
        let first = actions
            .iter()
            .position(|action| action.deliveries[0].blocks.contains(&at.index));
        let (number, delivery) = match first {
            Some(number) => (number, Found::Delivery(0)),
            None => actions.iter().enumerate().find_map(|(number, action)| {
                let segment = action.segment_of(at.index)?;
                Some((number, Found::Segment(segment)))
            })?,
        };
        let action = &mut actions[number];
        let (push, next) = match delivery {
            Found::Delivery(delivery) => (action.deliveries[delivery].push(at), delivery + 1),
            Found::Segment(segment) => (
                action.segment(segment).push(at),
                action.delivery_behind(segment),
            ),
        };
        let state = (next < action.deliveries.len()).then_some(RunState::Follow {
            action: action.name,
            next,
        });
        if state.is_none() {
            action.runs += 1;
            self.is_changed = true;
        }
        Some((push, state))
    }

    /// Returns the next delivery of the action that a run follows, if this request is its first block.
    fn follow(&mut self, at: BlockAt, name: u64, next: usize) -> Option<(Push, Option<RunState>)> {
        let executable = self.executables.get_mut(&at.file)?;
        let action = executable
            .actions
            .iter_mut()
            .find(|action| action.name == name)?;
        let delivery: &Delivery = action.deliveries.get(next)?;
        if delivery.blocks[0] != at.index {
            return None;
        }
        let push = delivery.push(at);
        let next = next + 1;
        if next < action.deliveries.len() {
            return Some((push, Some(RunState::Follow { action: name, next })));
        }
        action.runs += 1;
        self.is_changed = true;
        Some((push, None))
    }

    fn record(&mut self, recording: &mut Recording, at: BlockAt) {
        if recording.recorded.contains(&at.index) {
            return;
        }
        if recording.blocks.len() >= self.settings.blocks_per_action_max
            || self.blocks_total >= self.settings.blocks_total_max
        {
            self.counters.blocks_refused += 1;
            return;
        }
        recording.recorded.insert(at.index);
        recording.blocks.push(at.index);
        self.blocks_total += 1;
    }

    fn is_over(&self, recording: &Recording, now_ms: u64) -> bool {
        now_ms.saturating_sub(recording.first_ms) >= self.settings.construct_ms
    }

    fn end_run(&mut self, run: Run, has_exited: bool) {
        let mut states: Vec<(FileId, RunState)> = run.states.into_iter().collect();
        states.sort_by_key(|state| state.0);
        for (file, state) in states {
            if let RunState::Construct(recording) = state {
                self.complete(file, recording, has_exited);
            }
        }
    }
}

enum Found {
    Delivery(usize),
    Segment(usize),
}

impl Predictor for PaperPredictor {
    fn begin(&mut self, token: Token, _task: FileId, _held: &HeldBlocks, now_ms: u64) -> Begun {
        if let Ok(forgotten) = self.runs.admit(token, now_ms, &mut self.counters) {
            if let Some(run) = forgotten {
                self.end_run(run, false);
            }
            let run = Run {
                states: HashMap::new(),
                started: HashSet::new(),
            };
            self.runs.insert(token, run, now_ms);
        }
        Begun::default()
    }

    fn request(&mut self, token: Token, at: BlockAt, now_ms: u64) -> Push {
        let Some(run) = self.runs.hear(token, now_ms, &mut self.counters) else {
            return Push::Nothing;
        };
        let state = run.states.remove(&at.file);
        let kind = if run.started.contains(&at.file) {
            ActionKind::Workload
        } else if run.started.len() < self.settings.executables_max {
            run.started.insert(at.file);
            ActionKind::Startup
        } else {
            ActionKind::Workload
        };
        let answer = match state {
            Some(RunState::Construct(mut recording)) if !self.is_over(&recording, now_ms) => {
                self.record(&mut recording, at);
                Some((Push::Nothing, Some(RunState::Construct(recording))))
            }
            Some(RunState::Construct(recording)) => {
                self.complete(at.file, recording, false);
                None
            }
            Some(RunState::Follow { action, next }) => {
                let followed = self.follow(at, action, next);
                self.counters.misses += u64::from(followed.is_none());
                followed
            }
            None => None,
        };
        let (push, state) = answer.or_else(|| self.match_anew(at)).unwrap_or_else(|| {
            let mut recording = Recording {
                kind,
                first_ms: now_ms,
                blocks: Vec::new(),
                recorded: HashSet::new(),
                traced: Vec::new(),
                traced_set: HashSet::new(),
            };
            self.record(&mut recording, at);
            (Push::Nothing, Some(RunState::Construct(recording)))
        });
        if let Some(state) = state
            && let Some(run) = self.runs.hear(token, now_ms, &mut self.counters)
        {
            run.states.insert(at.file, state);
        }
        push
    }

    fn trace(&mut self, token: Token, blocks: &[BlockAt], now_ms: u64) {
        let Some(run) = self.runs.hear(token, now_ms, &mut self.counters) else {
            return;
        };
        // While an action is recorded, neighbours are sent with each block. They are part of the action if they are
        // read.
        for at in blocks {
            let Some(RunState::Construct(recording)) = run.states.get_mut(&at.file) else {
                continue;
            };
            if recording.traced_set.contains(&at.index) {
                continue;
            }
            if recording.traced.len() >= self.settings.blocks_per_action_max
                || self.blocks_total >= self.settings.blocks_total_max
            {
                self.counters.blocks_refused += 1;
                continue;
            }
            recording.traced_set.insert(at.index);
            recording.traced.push(at.index);
            self.blocks_total += 1;
        }
    }

    fn end(&mut self, token: Token, _is_exact: bool, has_exited: bool, now_ms: u64) {
        if !has_exited {
            // A pause does not end an action here; the timer does.
            self.runs.hear(token, now_ms, &mut self.counters);
            return;
        }
        match self.runs.end(token) {
            Some(run) => self.end_run(run, true),
            None => self.counters.tokens_unknown += 1,
        }
    }

    fn tick(&mut self, now_ms: u64) {
        let construct_ms = self.settings.construct_ms;
        let mut over = Vec::new();
        for run in self.runs.iter_mut() {
            let ended = run.states.extract_if(|_, state| match state {
                RunState::Construct(recording) => {
                    now_ms.saturating_sub(recording.first_ms) >= construct_ms
                }
                RunState::Follow { .. } => false,
            });
            for (file, state) in ended {
                if let RunState::Construct(recording) = state {
                    over.push((recording.first_ms, file, recording));
                }
            }
        }
        // The runs have no order; the result must not depend on it.
        over.sort_by(|a, b| (a.0, a.1, &a.2.blocks).cmp(&(b.0, b.1, &b.2.blocks)));
        for (_, file, recording) in over {
            self.complete(file, recording, false);
        }
    }

    fn plan(&self, task: FileId) -> Option<Arc<Plan>> {
        self.executables.get(&task)?.plan.clone()
    }

    fn following(&self, token: Token, file: FileId, segments: usize) -> Vec<BlockAt> {
        let state = self.runs.get(token).and_then(|run| run.states.get(&file));
        let (Some(RunState::Follow { action, next }), Some(executable)) =
            (state, self.executables.get(&file))
        else {
            return Vec::new();
        };
        let followed = executable
            .actions
            .iter()
            .find(|known| known.name == *action);
        let indexes = followed
            .into_iter()
            .flat_map(|action| action.behind(*next, segments));
        indexes.map(|index| BlockAt { file, index }).collect()
    }

    /// Which executables a task runs is not recorded, so these are all that have actions.
    fn files(&self, _task: FileId) -> BTreeSet<FileId> {
        self.executables.keys().copied().collect()
    }

    fn actions(&self) -> Vec<ActionInfo> {
        self.executables
            .iter()
            .flat_map(|(file, executable)| {
                let actions = executable.actions.iter();
                actions.map(|action| action.info(*file))
            })
            .collect()
    }

    fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    fn save(&self, catalogue: &dyn Catalogue) -> Vec<u8> {
        store::save(&self.executables, catalogue)
    }

    fn load(&mut self, bytes: &[u8], catalogue: &dyn Catalogue) -> Result<(), LoadError> {
        let stored = store::load(bytes, catalogue)?;
        let known: usize = self
            .executables
            .values()
            .flat_map(|executable| &executable.actions)
            .map(|action| action.blocks().count())
            .sum();
        self.blocks_total -= known;
        self.executables.clear();
        for action in stored {
            let blocks =
                &action.blocks[..action.blocks.len().min(self.settings.blocks_per_action_max)];
            self.keep(action.file, action.kind, blocks, action.runs);
        }
        self.is_changed = false;
        Ok(())
    }

    fn forget(&mut self, task: FileId) -> bool {
        let Some(executable) = self.executables.remove(&task) else {
            return false;
        };
        let known: usize = executable
            .actions
            .iter()
            .map(|action| action.blocks().count())
            .sum();
        self.blocks_total -= known;
        self.is_changed = true;
        true
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn is_used(&self, token: Token) -> bool {
        self.runs.is_used(token)
    }
}
