//! The default: one action for a task across all files, sent whole when it begins, learned from every run.
//!
//! Each block that a run has read has a history of the last runs: read, not read, or not known (a block that was
//! pushed is read unseen). The plan is what is read in most runs; it ends where more of it would be sent to nobody
//! than is allowed. What only some runs read (another argument, another input) is not part of the plan: when such a
//! block is asked for, what was read behind it in the runs that read it comes with it.

mod action;
pub(super) mod run;
#[cfg(test)]
mod simulated;
mod store;
#[cfg(test)]
mod tests;

use super::tokens::Tokens;
use super::{ActionInfo, ActionKind, Begun, Catalogue, Counters, LoadError, Plan, Predictor, Push};
use crate::block::{BlockAt, FileId, SEGMENT_BLOCKS, Token};
use crate::wire::Held;
use action::{Action, Observed, Planned};
use run::{Phase, Run};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How the default predictor is set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TaskSettings {
    /// A plan is stopped after so many demands, one after the other, that nothing had predicted.
    pub mismatches_max: u32,
    /// A block is no longer pushed when it was not read in so many runs, one after the other, of those that show it;
    /// and is pushed when it was read in as many. 1 to 32.
    pub drop_runs: u32,
    /// After the second start of a plan every so many starts let all reads be seen; 0: none.
    pub audit_every: u64,
    /// A block becomes part of the plan when at least this share of the runs that show it have read it.
    pub share_min: f64,
    /// And stays while it is at least this.
    pub share_stay_min: f64,
    /// The same for a block of a file that some of these runs have read nothing of: it is no chance that decides about
    /// such a one, but what the program is started for.
    pub share_stay_of_part_min: f64,
    /// Blocks of a plan that are expected to be read by nobody, at most, as a share of the plan.
    pub unread_share_max: f64,
    /// The same of blocks that only chance decides about: what is read now and then is pushed while that costs next to
    /// nothing, since each such block that is read and missing costs a round trip.
    pub chance_share_max: f64,
    /// A block is sent with another one when it was read in at least this share of the runs that read the other one,
    /// with one run counted as read and one as not beside those that were seen (Laplace's rule of succession).
    pub guess_share_min: f64,
    /// Blocks that are sent with one that only some runs read, at most; at most [`SEGMENT_BLOCKS`].
    pub guess_blocks: usize,
    /// Known blocks behind it among which they are looked for.
    pub guess_reach: usize,
    /// Without a new block for so long, an action has ended.
    pub pause_ms: u64,
    /// What began so shortly before the end of its process, after a pause, is its exit.
    pub exit_ms: u64,
    /// Blocks of a workload or exit action, at least: what is shorter is not worth a plan.
    pub later_blocks_min: usize,
    /// Tasks with actions, at most; of the others the one unused for longest is forgotten.
    pub tasks_max: usize,
    /// Workloads of a task, at most.
    pub workloads_max: usize,
    /// Blocks of a task's actions, at most.
    pub blocks_per_task_max: usize,
    /// Blocks of all actions, at most.
    pub blocks_total_max: usize,
    /// Blocks that are recorded of all runs alive, at most.
    pub recorded_max: usize,
    /// Runs alive, at most.
    pub tokens_max: usize,
    /// Tokens of ended runs that are remembered.
    pub ended_max: usize,
}

impl Default for TaskSettings {
    fn default() -> Self {
        Self {
            mismatches_max: 16,
            drop_runs: 3,
            audit_every: 8,
            share_min: 0.75,
            share_stay_min: 0.6,
            share_stay_of_part_min: 0.7,
            unread_share_max: 0.03,
            chance_share_max: 0.005,
            guess_share_min: 0.65,
            guess_blocks: SEGMENT_BLOCKS as usize - 1,
            guess_reach: 1_024,
            pause_ms: 3_000,
            exit_ms: 1_000,
            later_blocks_min: 4,
            tasks_max: 256,
            workloads_max: 16,
            blocks_per_task_max: 32_768,
            blocks_total_max: 1 << 19,
            recorded_max: 1 << 20,
            tokens_max: 1_024,
            ended_max: 4_096,
        }
    }
}

/// How long after its pause a run may tell that it pauses before that is assumed.
const PAUSE_GRACE_MS: u64 = 2_000;

/// What a task is known by.
#[derive(Default)]
struct Task {
    actions: BTreeMap<Phase, Action>,
    /// Grows with each use of any task.
    used: u64,
}

/// Predicts tasks.
pub struct TaskPredictor {
    settings: TaskSettings,
    tasks: BTreeMap<FileId, Task>,
    runs: Tokens<Run>,
    counters: Counters,
    uses: u64,
    blocks_total: usize,
    recorded: usize,
    is_changed: bool,
}

impl TaskPredictor {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(settings: TaskSettings) -> Self {
        let settings = TaskSettings {
            drop_runs: settings.drop_runs.clamp(1, action::RUNS_KEPT),
            guess_blocks: settings.guess_blocks.min(SEGMENT_BLOCKS as usize),
            ..settings
        };
        Self {
            settings,
            tasks: BTreeMap::new(),
            runs: Tokens::new(settings.tokens_max, settings.ended_max),
            counters: Counters::default(),
            uses: 0,
            blocks_total: 0,
            recorded: 0,
            is_changed: false,
        }
    }

    /// Ends the phase of a run and learns from it.
    fn end_phase(&mut self, run: &mut Run, is_exact: bool, has_exited: bool, now_ms: u64) {
        let Some(phase) = run.phase else {
            return;
        };
        let began_ms = run.first_ms;
        let blocks = run.end_phase();
        let is_late = now_ms.saturating_sub(began_ms) <= self.settings.exit_ms;
        let phase = match phase {
            Phase::Workload(_) if has_exited && is_late && !self.knows(run.task, phase) => {
                Phase::Exit
            }
            phase => phase,
        };
        if phase != Phase::Startup
            && blocks.len() < self.settings.later_blocks_min
            && !self.knows(run.task, phase)
        {
            return;
        }
        self.learn(run, phase, &blocks, is_exact);
    }

    fn knows(&self, task: FileId, phase: Phase) -> bool {
        self.tasks
            .get(&task)
            .is_some_and(|task| task.actions.contains_key(&phase))
    }

    fn learn(&mut self, run: &Run, phase: Phase, blocks: &[BlockAt], is_exact: bool) {
        if blocks.is_empty() {
            return;
        }
        self.make_room(run.task);
        let used = self.next_use();
        let task = self.tasks.entry(run.task).or_default();
        task.used = used;
        let workloads = task
            .actions
            .keys()
            .filter(|phase| matches!(phase, Phase::Workload(_)))
            .count();
        if matches!(phase, Phase::Workload(_))
            && !task.actions.contains_key(&phase)
            && workloads >= self.settings.workloads_max
        {
            // The rarest gives way: a workload that never comes again must not keep its place.
            let rarest = task
                .actions
                .iter()
                .filter(|(phase, _)| matches!(phase, Phase::Workload(_)))
                .min_by_key(|(phase, action)| (action.runs, **phase))
                .map(|(phase, _)| *phase);
            if let Some(old) = rarest.and_then(|rarest| task.actions.remove(&rarest)) {
                self.blocks_total -= old.entries.len();
            }
            self.counters.actions_refused += 1;
        }
        let known: usize = task.actions.values().map(|one| one.entries.len()).sum();
        let room = (self.settings.blocks_per_task_max.saturating_sub(known)).min(
            self.settings
                .blocks_total_max
                .saturating_sub(self.blocks_total),
        );
        let action = task.actions.entry(phase).or_default();
        let before = action.entries.len();
        let hidden = run.hidden();
        let observed = Observed {
            blocks,
            is_exact: is_exact && !run.has_company,
            hidden: &hidden,
            was_stopped: run.was_stopped,
            is_ahead: run.is_ahead,
            files: run.files_shown(blocks),
            guessed: &run.guessed,
        };
        action.learn(&observed, &self.settings, room, &mut self.counters);
        self.blocks_total = self.blocks_total - before + action.entries.len();
        self.is_changed = true;
    }

    /// Forgets the task that was unused for longest, where another one comes.
    fn make_room(&mut self, task: FileId) {
        if self.tasks.contains_key(&task) || self.tasks.len() < self.settings.tasks_max {
            return;
        }
        let unused = self.tasks.iter().min_by_key(|(_, task)| task.used);
        if let Some(file) = unused.map(|(file, _)| *file) {
            self.remove(file);
            self.counters.tasks_evicted += 1;
        }
    }

    fn remove(&mut self, file: FileId) -> bool {
        let Some(task) = self.tasks.remove(&file) else {
            return false;
        };
        let blocks: usize = task.actions.values().map(|one| one.entries.len()).sum();
        self.blocks_total -= blocks;
        true
    }

    fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    /// Sends the plan of an action, where there is one and some of it is not there yet; and says whether this start is
    /// to let all reads be seen. That is of use without a plan too: what is only ever guessed is read unseen otherwise.
    fn start(&mut self, run: &mut Run, phase: Phase, may_audit: bool) -> Begun {
        let used = self.next_use();
        let Some(task) = self.tasks.get_mut(&run.task) else {
            return Begun::default();
        };
        task.used = used;
        let Some(action) = task.actions.get_mut(&phase) else {
            return Begun::default();
        };
        let planned = action.planned().cloned();
        let (mut held, mut blocks) = (0, 0);
        if let Some(planned) = &planned {
            blocks = planned.len();
            if !run.held.files.is_empty() || run.recorded() > 0 {
                held = planned.plan.blocks().filter(|at| run.has(*at)).count();
            }
        }
        if planned.is_some() && held == blocks {
            return Begun::default();
        }
        // A start that holds most of it shows little, and is not one of those that are counted for the next audit.
        let is_audit = may_audit && held * 2 <= blocks && action.start(&self.settings);
        let push = planned.as_ref().map_or(Push::Nothing, |planned| {
            Push::Plan(Arc::clone(&planned.plan))
        });
        run.planned = planned;
        Begun { push, is_audit }
    }

    /// A run that was quiet reads something new: which action that is.
    fn resume(&mut self, run: &mut Run, at: BlockAt, now_ms: u64) -> Push {
        let task = self.tasks.get(&run.task);
        let is_exit = task
            .and_then(|task| task.actions.get(&Phase::Exit))
            .and_then(|exit| exit.plan()?.blocks().next())
            .is_some_and(|first| first == at);
        let phase = if is_exit && !self.knows(run.task, Phase::Workload(at)) {
            Phase::Exit
        } else {
            Phase::Workload(at)
        };
        run.begin_phase(phase, now_ms);
        self.start(run, phase, false).push
    }

    fn request_of(&mut self, run: &mut Run, at: BlockAt, now_ms: u64) -> Push {
        if run.has_read(at) {
            // It was there and is not any more (memory was short): nothing that prefetching helps against.
            return Push::Nothing;
        }
        let is_first = !std::mem::replace(&mut run.has_asked, true);
        let mut push = Push::Nothing;
        self.pause(run, now_ms);
        match run.phase {
            None => push = self.resume(run, at, now_ms),
            Some(phase) if is_first && run.planned.is_none() => {
                // Another run may have taught it since this one began.
                let is_known = self
                    .tasks
                    .get(&run.task)
                    .and_then(|task| task.actions.get(&phase)?.entry(at))
                    .is_some_and(|entry| entry.is_planned);
                if is_known {
                    push = self.start(run, phase, false).push;
                }
            }
            Some(_) => {}
        }
        self.note(run, |run| run.ask(at, now_ms), at);
        if push == Push::Nothing {
            push = self.judge(run, at);
            let is_planned = |planned: &Arc<Planned>| planned.has(at);
            run.is_ahead |= !is_first && run.planned.as_ref().is_some_and(is_planned);
        }
        push
    }

    /// Whether what is asked for was predicted, and what to do about it.
    fn judge(&mut self, run: &mut Run, at: BlockAt) -> Push {
        let Some(phase) = run.phase else {
            return Push::Nothing;
        };
        let planned = run.planned.clone();
        let is_planned = |at| planned.as_ref().is_some_and(|planned| planned.has(at));
        let is_sent = planned.is_some() && !run.was_stopped;
        if is_sent && is_planned(at) {
            run.mismatches = 0;
            return Push::Nothing;
        }
        let task = self.tasks.get(&run.task);
        let action = task.and_then(|task| task.actions.get(&phase));
        match action {
            Some(action) if action.entry(at).is_some() => {
                // Part of the action, in some runs: no sign that this one is something else. Where a plan was stopped,
                // what is in it behind a block that was not sent was not sent either.
                let is_left = run.was_stopped && is_planned(at);
                let guessed = action.guess(at, &self.settings, |entry| {
                    (is_left || !is_planned(entry.at)) && !run.has(entry.at)
                });
                for at in &guessed {
                    self.note(run, |run| run.guess(*at), *at);
                }
                if guessed.is_empty() {
                    Push::Nothing
                } else {
                    Push::Blocks(guessed)
                }
            }
            _ if is_sent => {
                run.mismatches += 1;
                if run.mismatches < self.settings.mismatches_max {
                    return Push::Nothing;
                }
                run.was_stopped = true;
                self.counters.plans_stopped += 1;
                Push::Stop
            }
            _ => Push::Nothing,
        }
    }

    /// Records something of a run, where there is room for it.
    fn note(&mut self, run: &mut Run, how: impl FnOnce(&mut Run), at: BlockAt) {
        let is_full = run.recorded() >= self.settings.blocks_per_task_max
            || self.recorded >= self.settings.recorded_max;
        if is_full && !run.has_read(at) {
            self.counters.blocks_refused += 1;
            return;
        }
        let before = run.recorded();
        how(run);
        self.recorded += run.recorded() - before;
    }

    /// Ends the phase of a run that has read nothing new for so long that it should have said so itself.
    fn pause(&mut self, run: &mut Run, now_ms: u64) {
        if run.phase.is_some() && now_ms.saturating_sub(run.last_ms) >= self.settings.pause_ms {
            self.end_phase(run, false, false, now_ms);
        }
    }

    /// Something was heard of a run.
    fn hear<T: Default>(
        &mut self,
        token: Token,
        now_ms: u64,
        what: impl FnOnce(&mut Self, &mut Run) -> T,
    ) -> T {
        match self.runs.hear(token, now_ms, &mut self.counters) {
            Some(_) => self.with(token, what),
            None => T::default(),
        }
    }

    /// Takes a run out, does something with it, and puts it back.
    fn with<T: Default>(&mut self, token: Token, what: impl FnOnce(&mut Self, &mut Run) -> T) -> T {
        let Some(slot) = self.runs.get_mut(token) else {
            return T::default();
        };
        let placeholder = Run::new(slot.task, Held::default(), 0);
        let mut run = std::mem::replace(slot, placeholder);
        let result = what(self, &mut run);
        if let Some(slot) = self.runs.get_mut(token) {
            *slot = run;
        }
        result
    }

    fn begin_run(
        &mut self,
        token: Token,
        task: FileId,
        held: &Held,
        may_audit: bool,
        now_ms: u64,
    ) -> Begun {
        let Ok(forgotten) = self.runs.admit(token, now_ms, &mut self.counters) else {
            return Begun::default();
        };
        if let Some(run) = forgotten {
            self.drop_run(run, false, false, now_ms);
        }
        let mut run = Run::new(task, held.clone(), now_ms);
        let begun = self.start(&mut run, Phase::Startup, may_audit);
        self.runs.insert(token, run, now_ms);
        begun
    }

    fn drop_run(&mut self, mut run: Run, is_exact: bool, has_exited: bool, now_ms: u64) {
        self.end_phase(&mut run, is_exact, has_exited, now_ms);
        self.recorded -= run.recorded();
    }
}

impl Predictor for TaskPredictor {
    fn begin(&mut self, token: Token, task: FileId, held: &Held, now_ms: u64) -> Begun {
        self.begin_run(token, task, held, true, now_ms)
    }

    fn begin_beside(&mut self, token: Token, task: FileId, held: &Held, now_ms: u64) -> Begun {
        self.begin_run(token, task, held, false, now_ms)
    }

    fn beside(&mut self, token: Token, blocks: &[BlockAt]) {
        self.with(token, |this, run| {
            run.has_company |= run.phase.is_some() && !blocks.is_empty();
            for at in blocks {
                this.note(run, |run| run.beside(*at), *at);
            }
        });
    }

    fn request(&mut self, token: Token, at: BlockAt, now_ms: u64) -> Push {
        self.hear(token, now_ms, |this, run| this.request_of(run, at, now_ms))
    }

    fn trace(&mut self, token: Token, blocks: &[BlockAt], now_ms: u64) {
        self.hear(token, now_ms, |this, run| {
            for at in blocks {
                if run.phase.is_none() && !run.has_read(*at) {
                    // It reads what nobody had to be asked for; what it is shows as well.
                    run.begin_phase(Phase::Workload(*at), now_ms);
                }
                if run.phase.is_some() {
                    this.note(run, |run| run.trace(*at, now_ms), *at);
                }
            }
        });
    }

    fn end(&mut self, token: Token, is_exact: bool, has_exited: bool, now_ms: u64) {
        if !has_exited {
            self.hear(token, now_ms, |this, run| {
                this.end_phase(run, is_exact, false, now_ms);
            });
            return;
        }
        match self.runs.end(token) {
            Some(run) => self.drop_run(run, is_exact, true, now_ms),
            None => self.counters.tokens_unknown += 1,
        }
    }

    fn cut(&mut self, token: Token, now_ms: u64) {
        let Some(run) = self.runs.end(token) else {
            self.counters.tokens_unknown += 1;
            return;
        };
        // What such a run has not read it may read later: that would count against blocks that it needs. Only where
        // nothing is known is a part better than nothing, should the device never come back.
        if run.phase.is_some_and(|phase| self.knows(run.task, phase)) {
            self.recorded -= run.recorded();
        } else {
            self.drop_run(run, false, false, now_ms);
        }
    }

    fn tick(&mut self, now_ms: u64) {
        let silent_ms = self.settings.pause_ms + PAUSE_GRACE_MS;
        let mut silent: Vec<Token> = self
            .runs
            .iter()
            .filter(|(_, run)| {
                run.phase.is_some() && now_ms.saturating_sub(run.last_ms) >= silent_ms
            })
            .map(|(token, _)| token)
            .collect();
        // Runs lie in no order; what is learned must not depend on that.
        silent.sort_unstable();
        for token in silent {
            self.with(token, |this, run| this.end_phase(run, false, false, now_ms));
        }
    }

    fn plan(&self, task: FileId) -> Option<Arc<Plan>> {
        let task = self.tasks.get(&task)?;
        task.actions.get(&Phase::Startup)?.plan().cloned()
    }

    fn actions(&self) -> Vec<ActionInfo> {
        let mut listed = Vec::new();
        for (file, task) in &self.tasks {
            for (phase, action) in &task.actions {
                listed.push(ActionInfo {
                    task: *file,
                    kind: kind_of(*phase),
                    segments: action
                        .plan()
                        .map_or_else(Vec::new, |plan| plan.pieces.clone()),
                    runs: action.runs,
                });
            }
        }
        listed
    }

    fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    fn save(&self, catalogue: &dyn Catalogue) -> Vec<u8> {
        store::save(&self.tasks, catalogue)
    }

    fn load(&mut self, bytes: &[u8], catalogue: &dyn Catalogue) -> Result<(), LoadError> {
        let stored = store::load(bytes, catalogue)?;
        self.tasks.clear();
        self.blocks_total = 0;
        for (file, phase, action) in stored {
            let is_known = self.tasks.contains_key(&file);
            let task = self.tasks.get(&file);
            let known: usize = task.map_or(0, |task| {
                task.actions.values().map(|one| one.entries.len()).sum()
            });
            let blocks = action.entries.len();
            if self.knows(file, phase)
                || (!is_known && self.tasks.len() >= self.settings.tasks_max)
                || known + blocks > self.settings.blocks_per_task_max
                || self.blocks_total + blocks > self.settings.blocks_total_max
            {
                self.counters.actions_refused += 1;
                continue;
            }
            self.blocks_total += blocks;
            self.uses += 1;
            let task = self.tasks.entry(file).or_default();
            task.used = self.uses;
            task.actions.insert(phase, action);
        }
        self.is_changed = false;
        Ok(())
    }

    fn forget(&mut self, task: FileId) -> bool {
        let was_known = self.remove(task);
        self.is_changed |= was_known;
        was_known
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn is_used(&self, token: Token) -> bool {
        self.runs.is_used(token)
    }
}

fn kind_of(phase: Phase) -> ActionKind {
    match phase {
        Phase::Startup => ActionKind::Startup,
        Phase::Workload(_) => ActionKind::Workload,
        Phase::Exit => ActionKind::Exit,
    }
}
