//! The default predictor: one action for a task across all files, sent completely when the task begins, learned from
//! every run.
//!
//! Each block that a run has read has a history of the last runs: read, not read, or unknown (a pushed block is read
//! unseen). The plan has the blocks that most runs read. It ends where the expected share of unread blocks would exceed
//! the limit. Blocks that only some runs read (another argument, another input) are not part of the plan. When such a
//! block is requested, the blocks that were read after it in the same runs are sent with it.

mod action;
mod learned;
pub(super) mod run;
mod settings;
#[cfg(test)]
mod simulated;
mod store;
#[cfg(test)]
mod tests;

use super::tokens::Tokens;
use super::{ActionInfo, Begun, Catalogue, Counters, LoadError, Needed, Plan, Predictor, Push};
use crate::block::{BlockAt, FileId, SEGMENT_BLOCKS, Token};
use crate::wire::HeldBlocks;
use action::{Observed, Planned};
use learned::Task;
use run::{Phase, Run};
use std::collections::BTreeMap;
use std::sync::Arc;

pub use settings::TaskSettings;

/// The time that a run has to report its pause before the pause is assumed.
const PAUSE_GRACE_MS: u64 = 2_000;

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
    /// Creates a predictor that has learned nothing yet.
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
        self.end_audit(run);
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

    /// Makes the next start an audit, if this one was an audit and ends before it has shown what is not read.
    fn end_audit(&mut self, run: &mut Run) {
        if !std::mem::take(&mut run.is_audit) || !run.is_incomplete {
            return;
        }
        let task = self.tasks.get_mut(&run.task);
        if let Some(startup) = task.and_then(|task| task.actions.get_mut(&Phase::Startup)) {
            startup.is_unconfirmed = true;
            self.is_changed = true;
        }
    }

    fn knows(&self, task: FileId, phase: Phase) -> bool {
        self.tasks
            .get(&task)
            .is_some_and(|task| task.actions.contains_key(&phase))
    }

    fn knows_all(&self, task: FileId, phase: Phase, blocks: &[BlockAt]) -> bool {
        let task = self.tasks.get(&task);
        let action = task.and_then(|task| task.actions.get(&phase));
        action.is_some_and(|action| blocks.iter().all(|at| action.entry(*at).is_some()))
    }

    fn learn(&mut self, run: &Run, phase: Phase, blocks: &[BlockAt], is_exact: bool) {
        if blocks.is_empty() || (run.is_incomplete && self.knows_all(run.task, phase, blocks)) {
            // An incomplete run only adds blocks: what it did not reach is unknown, not unread.
            return;
        }
        self.make_room(run.task);
        let used = self.next_use();
        let task = self.tasks.entry(run.task).or_default();
        task.used = used;
        task.needed = None;
        let workloads = task
            .actions
            .keys()
            .filter(|phase| matches!(phase, Phase::Workload(_)))
            .count();
        if matches!(phase, Phase::Workload(_))
            && !task.actions.contains_key(&phase)
            && workloads >= self.settings.workloads_max
        {
            // Evict the rarest: a workload that never occurs again must not keep its place.
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
            is_incomplete: run.is_incomplete,
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

    /// Evicts the task that was unused for longest, if a new one needs room.
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

    /// Sends the plan of an action, if there is one and the device lacks some of it. Also decides whether this start is
    /// an audit. An audit is useful without a plan too: guessed blocks are read unseen otherwise.
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
        // A start that holds most of the plan shows little, so it does not count for the next audit.
        let is_audit = may_audit && held * 2 <= blocks && action.start(&self.settings);
        let push = planned.as_ref().map_or(Push::Nothing, |planned| {
            Push::Plan(Arc::clone(&planned.plan))
        });
        run.planned = planned;
        Begun { push, is_audit }
    }

    /// Selects the action of a run that reads something new after a pause.
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
            // The block was evicted because memory was short. Prefetching does not help against that.
            return Push::Nothing;
        }
        let is_first = !std::mem::replace(&mut run.has_asked, true);
        let mut push = Push::Nothing;
        self.pause(run, now_ms);
        match run.phase {
            None => push = self.resume(run, at, now_ms),
            Some(phase) if is_first && run.planned.is_none() => {
                // Another run may have taught the action since this one began.
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

    /// Checks whether the requested block was predicted, and decides what to send.
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
                // The block is part of the action in some runs, so this run is not something else. If a plan was
                // stopped, the blocks in it after an unsent block were not sent either.
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

    /// Records something of a run, if there is room.
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

    /// Ends the phase of a run that has read nothing new for `pause_ms` and has not reported the pause itself.
    fn pause(&mut self, run: &mut Run, now_ms: u64) {
        if run.phase.is_some() && now_ms.saturating_sub(run.last_ms) >= self.settings.pause_ms {
            self.end_phase(run, false, false, now_ms);
        }
    }

    /// Notes that a run was heard of, and runs `what` on it.
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

    /// Takes a run out, runs `what` on it, and puts it back.
    fn with<T: Default>(&mut self, token: Token, what: impl FnOnce(&mut Self, &mut Run) -> T) -> T {
        let Some(slot) = self.runs.get_mut(token) else {
            return T::default();
        };
        let placeholder = Run::new(slot.task, HeldBlocks::default(), 0);
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
        held: &HeldBlocks,
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
        run.is_audit = begun.is_audit;
        self.runs.insert(token, run, now_ms);
        begun
    }

    fn drop_run(&mut self, mut run: Run, is_exact: bool, has_exited: bool, now_ms: u64) {
        self.end_phase(&mut run, is_exact, has_exited, now_ms);
        self.recorded -= run.recorded();
    }
}

impl Predictor for TaskPredictor {
    fn begin(&mut self, token: Token, task: FileId, held: &HeldBlocks, now_ms: u64) -> Begun {
        self.begin_run(token, task, held, true, now_ms)
    }

    fn begin_beside(
        &mut self,
        token: Token,
        task: FileId,
        held: &HeldBlocks,
        now_ms: u64,
    ) -> Begun {
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
                    // It reads blocks without a request; they identify the action as well.
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
        let Some(mut run) = self.runs.end(token) else {
            self.counters.tokens_unknown += 1;
            return;
        };
        run.is_incomplete = true;
        // Such a run may read later what it has not read yet. Learning from it would count against blocks that it
        // needs. Only if nothing is known is a partial run better than nothing, in case the device does not come back.
        if run.phase.is_some_and(|phase| self.knows(run.task, phase)) {
            self.end_audit(&mut run);
            self.recorded -= run.recorded();
        } else {
            self.drop_run(run, false, false, now_ms);
        }
    }

    fn failed(&mut self, token: Token) {
        self.with(token, |_, run| run.is_incomplete = true);
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
        // The runs have no order; the result of learning must not depend on it.
        silent.sort_unstable();
        for token in silent {
            self.with(token, |this, run| {
                // Its device may wait for a block, so the rest of the start may follow.
                run.is_incomplete = true;
                this.end_phase(run, false, false, now_ms);
            });
        }
    }

    fn plan(&self, task: FileId) -> Option<Arc<Plan>> {
        let task = self.tasks.get(&task)?;
        task.actions.get(&Phase::Startup)?.plan().cloned()
    }

    fn needed(&mut self, task: FileId) -> Needed {
        let Some(task) = self.tasks.get_mut(&task) else {
            return Needed::Nothing;
        };
        if task.needed.is_none() {
            task.needed = Some(task.all_needed());
        }
        task.needed.clone().unwrap_or_default()
    }

    fn actions(&self) -> Vec<ActionInfo> {
        let mut listed = Vec::new();
        for (file, task) in &self.tasks {
            for (phase, action) in &task.actions {
                listed.push(ActionInfo {
                    task: *file,
                    kind: phase.kind(),
                    segments: action
                        .plan()
                        .map_or_else(Vec::new, |plan| plan.pieces.clone()),
                    others: action.others().count(),
                    runs: action.runs,
                    is_whole: action.is_whole,
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
            task.needed = None;
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
