//! A supervised program: it is started, and restarted when it ends, after growing pauses and a limited number of times.

use super::output::Output;
use super::process::{self, Process};
use super::surroundings::{Surroundings, absolute};
use super::watch::{self, Event, Watch};
use crate::log;
use crate::qos::{Declared, OwnTasks, TaskId};
use crate::status::{MountFigures, TaskFigures};
use config::{Start, TaskConfig, ms};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Poll interval for changes.
const LOOK: Duration = Duration::from_millis(500);

/// Poll interval for a mount.
const MOUNT_LOOK: Duration = Duration::from_millis(100);

/// How long a program has to declare its task before the node does.
const DECLARE_AFTER: Duration = Duration::from_secs(3);

/// Retry interval of a refused declaration.
const DECLARE_AGAIN: Duration = Duration::from_secs(10);

/// Weight in the figures that the node controls.
const WEIGHT: f64 = 1.0;

/// What is known about a task.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) figures: TaskFigures,
    pub(super) since: Option<Instant>,
}

/// Returns what is known before the first start.
pub(super) fn known(config: &TaskConfig) -> Known {
    let time = |ns: u64| (ns > 0).then(|| ms(ns));
    Known {
        figures: TaskFigures {
            name: config.name.clone(),
            command: config.shown(),
            start: match config.start {
                Start::Stay => "stay",
                Start::EachPeriod => "each-period",
            }
            .to_owned(),
            period_ms: time(config.period_ns),
            deadline_ms: time(config.deadline_ns),
            cores: config.cores.clone(),
            mount: config.mount.clone(),
            state: "pausing".to_owned(),
            ..TaskFigures::default()
        },
        since: None,
    }
}

/// Returns the figures for the status.
pub(super) fn shown(watch: &Watch<Known>) -> TaskFigures {
    let known = watch.figures().clone();
    let unseen = watch.lines_unseen.load(Ordering::Relaxed);
    let since = known.since.map(|since| since.elapsed().as_millis());
    TaskFigures {
        running_since_ms: since.map(|ms| u64::try_from(ms).unwrap_or(u64::MAX)),
        output_lines: known.figures.output_lines + unseen,
        output_lines_left_out: known.figures.output_lines_left_out + unseen,
        ..known.figures
    }
}

/// Shows a task as given up that has no thread.
pub(super) fn give_up(watch: &Watch<Known>, why: String) {
    let figures = &mut watch.figures().figures;
    "given_up".clone_into(&mut figures.state);
    figures.failed += 1;
    figures.failing = true;
    figures.last_error = Some(why);
}

/// The task that a thread runs.
pub(super) struct Task<'a> {
    pub(super) config: &'a TaskConfig,
    pub(super) around: &'a Surroundings,
    pub(super) watch: &'a Watch<Known>,
    pub(super) events: &'a Receiver<Event>,
    /// Its mount; `Some(None)` if the mount becomes available only at the next start of the node.
    pub(super) from: Option<Option<Arc<Watch<MountFigures>>>>,
}

/// The node's declaration of a task for a program.
pub(super) struct OwnDeclaration<'a> {
    own_tasks: &'a OwnTasks,
    pub(super) id: Option<TaskId>,
    next_try: Instant,
}

impl<'a> OwnDeclaration<'a> {
    pub(super) fn new(task: &Task<'a>, first_try: Instant) -> Self {
        Self {
            own_tasks: &task.around.own_tasks,
            id: None,
            next_try: first_try,
        }
    }

    /// Declares the task, if it is not declared and the time has come. `process` and `thread` as numbered by the
    /// kernel.
    pub(super) fn declare(&mut self, task: &Task<'_>, process: u32, thread: Option<u32>) {
        if self.id.is_some() || Instant::now() < self.next_try {
            return;
        }
        let declared = self.own_tasks.declare(Declared {
            name: task.config.name.clone(),
            period_ns: task.config.period_ns,
            deadline_ns: task.config.deadline_ns,
            is_firm: false,
            weight: WEIGHT,
            process,
            thread,
        });
        let figures = &mut task.watch.figures().figures;
        match declared {
            Ok(id) => {
                self.id = Some(id);
                figures.declared_by = Some("node".to_owned());
                figures.declare_error = None;
            }
            Err(failure) => {
                self.next_try = Instant::now() + DECLARE_AGAIN;
                figures.declare_error = Some(format!("{}; {}", failure.wrong, failure.remedy));
            }
        }
    }

    pub(super) fn leave(&mut self) {
        if let Some(id) = self.id.take() {
            self.own_tasks.leave(id);
        }
    }
}

impl Drop for OwnDeclaration<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Task<'_> {
    /// Runs the program until the end is requested.
    pub(super) fn run(&self) {
        let mut output = Output::new("task", &self.config.name);
        let mut number = 0;
        while self.wait_for_mount() {
            number += 1;
            let Some(why) = self.live(number, &mut output) else {
                return;
            };
            self.fail(&why);
            if !self.pause() {
                return;
            }
        }
    }

    /// Waits until the program's mount is available. Returns `false` if the end was requested.
    pub(super) fn wait_for_mount(&self) -> bool {
        let Some(from) = &self.from else {
            return !self.watch.is_stopped();
        };
        let is_there = |mount: &Watch<MountFigures>| mount.figures().mounted;
        let mut is_said = false;
        while !self.watch.is_stopped() {
            match from {
                Some(mount) if is_there(mount) => return true,
                Some(_) => {}
                None if !is_said => {
                    let name = self.config.mount.as_deref().unwrap_or_default();
                    let why = format!("mount {name} waits for the next start of the node");
                    let figures = &mut self.watch.figures().figures;
                    figures.failing = true;
                    figures.last_error = Some(why);
                }
                None => {}
            }
            if !is_said {
                is_said = true;
                self.set_state("waiting_for_mount", None);
            }
            watch::next(self.events, MOUNT_LOOK);
        }
        false
    }

    pub(super) fn set_state(&self, state: &str, process: Option<&Process>) {
        let mut known = self.watch.figures();
        state.clone_into(&mut known.figures.state);
        known.figures.process = process.map(Process::id);
        known.since = process.map(|process| process.begun);
    }

    /// Starts the program.
    pub(super) fn start(&self, number: u64) -> Result<Process, String> {
        let started = Process::start(self.command(), number, &self.config.cores, self.watch);
        self.watch.figures().figures.starts += 1;
        let process = started.map_err(|error| {
            let program = self.config.command.first().map_or("", String::as_str);
            format!(
                "{program} cannot be started: {}",
                command::error::describe(&error)
            )
        })?;
        self.watch.figures().figures.cores_refused = !process.is_on(&self.config.cores);
        self.set_state("running", Some(&process));
        Ok(process)
    }

    fn command(&self) -> Command {
        let config = self.config;
        let program = match config.program.components().count() {
            // Look up a bare name in `PATH`, as a shell does.
            0 | 1 => config.program.clone(),
            _ => absolute(&config.program),
        };
        let rest = config.command.get(1..).unwrap_or_default();
        let mut command = match (&config.region_at, &self.around.region) {
            (Some(at), Some(region)) => {
                let mut command = process::command(&self.around.program, self.around);
                command.args(["mem", "run"]).arg(region).arg("--at").arg(at);
                command.arg("--").arg(program);
                command
            }
            _ => process::command(&program, self.around),
        };
        command.args(rest).env("KEEL_TASK", &config.name);
        for (name, ns) in [
            ("KEEL_PERIOD_MS", config.period_ns),
            ("KEEL_DEADLINE_MS", config.deadline_ns),
        ] {
            if ns > 0 {
                command.env(name, ms(ns).to_string());
            }
        }
        command
    }

    /// Processes a line of output.
    pub(super) fn line(&self, output: &mut Output<'_>, text: &str) {
        let is_in_log = output.line(text);
        let figures = &mut self.watch.figures().figures;
        figures.output_lines += 1;
        figures.output_lines_left_out += u64::from(!is_in_log);
    }

    /// Attends one run from start to end. Returns why it ended; `None` if that was requested.
    fn live(&self, number: u64, output: &mut Output<'_>) -> Option<String> {
        let mut process = match self.start(number) {
            Ok(process) => Some(process),
            Err(why) => return Some(why),
        };
        let begun = Instant::now();
        let mut own = OwnDeclaration::new(self, begun + DECLARE_AFTER);
        let mut next_look = begun;
        let why = loop {
            let event = watch::next(self.events, LOOK);
            match event {
                Some(Event::Line(_, text)) => self.line(output, &text),
                Some(Event::Ended(of, at_ns)) if of == number => {
                    process::last_lines(self.events, number, |text| self.line(output, text));
                    let end = process.take()?.ended(at_ns);
                    break Some(match output.take_last() {
                        Some(last) => format!("{}; its last line: {last}", end.text()),
                        None => end.text(),
                    });
                }
                _ => {}
            }
            if self.watch.is_stopped() {
                self.set_state("ending", process.as_ref());
                let ending = process.take()?;
                ending.end(self.events, |text| self.line(output, text));
                break None;
            }
            if Instant::now() >= next_look
                && let Some(process) = &process
            {
                next_look = Instant::now() + LOOK;
                self.look(process, &mut own);
            }
        };
        own.leave();
        self.watch.figures().figures.declared_by = None;
        why
    }

    /// Checks a running program: which side has declared its task, and whether it has run long enough.
    fn look(&self, process: &Process, own: &mut OwnDeclaration<'_>) {
        let is_declared = self
            .around
            .own_tasks
            .is_declared_by(process.group(), own.id);
        if is_declared {
            own.leave();
            let figures = &mut self.watch.figures().figures;
            figures.declared_by = Some("program".to_owned());
            figures.declare_error = None;
        } else if self.config.period_ns > 0 {
            own.declare(self, process.id(), Some(process.id()));
        } else {
            self.watch.figures().figures.declared_by = None;
        }
        let steady = Duration::from_millis(u64::from(self.config.restart_ms_max));
        let figures = &mut self.watch.figures().figures;
        if figures.failing && process.begun.elapsed() >= steady {
            figures.failing = false;
            figures.restarts_in_row = 0;
            log::event("task", format!("{} runs again", self.config.name));
        }
    }

    /// Records a failure.
    pub(super) fn fail(&self, why: &str) {
        let name = &self.config.name;
        log::event("task", format!("{name} failed: {why}"));
        let figures = &mut self.watch.figures().figures;
        figures.failed += 1;
        figures.failing = true;
        figures.last_error = Some(why.to_owned());
    }

    /// Waits before the next start. Returns `false` if the end was requested.
    fn pause(&self) -> bool {
        let config = self.config;
        let in_row = self.watch.figures().figures.restarts_in_row;
        let is_given_up = config.restarts_max > 0 && in_row >= config.restarts_max;
        // Discard a request to try again that arrived while it ran: it was not about this failure.
        self.watch.is_asked_again();
        let until = if is_given_up {
            self.set_state("given_up", None);
            let text = format!("{} is given up after {in_row} restarts", config.name);
            log::event("task", text);
            None
        } else {
            self.set_state("pausing", None);
            let ms = u64::from(config.restart_ms_min) << in_row.min(16);
            let ms = ms.min(u64::from(config.restart_ms_max));
            Some(Instant::now() + Duration::from_millis(ms))
        };
        loop {
            if self.watch.is_stopped() {
                return false;
            }
            let is_asked = self.watch.is_asked_again();
            if is_asked || until.is_some_and(|until| Instant::now() >= until) {
                let figures = &mut self.watch.figures().figures;
                figures.restarts += 1;
                figures.restarts_in_row = if is_asked {
                    0
                } else {
                    figures.restarts_in_row.saturating_add(1)
                };
                return true;
            }
            let patience = until.map_or(Duration::from_secs(3_600), |until| {
                until.saturating_duration_since(Instant::now())
            });
            watch::next(self.events, patience);
        }
    }
}
