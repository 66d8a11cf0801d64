//! A program that is started at each release. A run is an instance; the node times, declares and reports it for a
//! program that is unaware of tasks.

use super::output::Output;
use super::process::{self, End, Process};
use super::supervision::{OwnDeclaration, Task};
use super::watch::{self, Event};
use base::clock::{Clock, SystemClock};
use db::{Instance, Monitor, ReleaseTimer};
use std::time::{Duration, Instant};

/// Time between reports until the node sets another one.
const SAMPLING: Duration = Duration::from_secs(1);

/// Runs the program at its releases until the end is requested.
pub(super) fn run(task: &Task<'_>) {
    let clock = SystemClock::new();
    let config = task.config;
    let mut output = Output::new("task", &config.name);
    let mut reports = Reports::new(task);
    let mut timer: Option<ReleaseTimer> = None;
    let mut number = 0;
    while task.wait_for_mount() {
        let now_ns = clock.monotonic_ns();
        let timer = timer.get_or_insert_with(|| ReleaseTimer::new(now_ns, config.period_ns));
        let (release_ns, missed) = timer.next_release(now_ns);
        task.watch.figures().figures.releases_missed += missed;
        task.set_state("between_runs", None);
        reports.send_if_due(task);
        if !wait_until(task, &clock, release_ns, &mut output) {
            return;
        }
        number += 1;
        let begin_ns = clock.monotonic_ns();
        let failed = match task.start(number) {
            Err(why) => Some(why),
            Ok(process) => match attend(task, process, &mut output) {
                Attended::Stopped => return,
                Attended::Ended(end, failed) => {
                    reports.record(
                        task,
                        Instance {
                            release_ns,
                            begin_ns,
                            finish_ns: end.at_ns,
                            releases_missed: missed,
                            ..Instance::default()
                        },
                    );
                    failed
                }
                Attended::Hangs(process) => {
                    let why = "cannot be ended; no other is started before it has";
                    note(task, Some(why.to_owned()), &mut output);
                    task.set_state("hanging", None);
                    if !wait_for_the_hanging(task, process, &mut output) {
                        return;
                    }
                    continue;
                }
            },
        };
        note(task, failed, &mut output);
    }
}

/// Waits until a run that could not be ended has ended, and reaps it. Returns `false` if the end was requested.
fn wait_for_the_hanging(task: &Task<'_>, process: Process, output: &mut Output<'_>) -> bool {
    let number = process.number();
    loop {
        if task.watch.is_stopped() {
            return false;
        }
        match watch::next(task.events, SAMPLING) {
            Some(Event::Line(_, text)) => task.line(output, &text),
            Some(Event::Ended(of, at_ns)) if of == number => {
                process.ended(at_ns);
                return true;
            }
            _ => {}
        }
    }
}

/// Waits for a release. Returns `false` if the end was requested.
fn wait_until(
    task: &Task<'_>,
    clock: &SystemClock,
    release_ns: u64,
    output: &mut Output<'_>,
) -> bool {
    loop {
        if task.watch.is_stopped() {
            return false;
        }
        let now_ns = clock.monotonic_ns();
        if now_ns >= release_ns {
            return true;
        }
        let event = watch::next(task.events, Duration::from_nanos(release_ns - now_ns));
        if let Some(Event::Line(_, text)) = event {
            task.line(output, &text);
        }
    }
}

enum Attended {
    Stopped,
    /// The run has ended, with the reason if it failed.
    Ended(End, Option<String>),
    /// The process cannot be ended.
    Hangs(Process),
}

/// Waits for the end of a run, up to its time limit.
fn attend(task: &Task<'_>, process: Process, output: &mut Output<'_>) -> Attended {
    let number = process.number();
    let until = process.begun + Duration::from_millis(task.config.run_ms_max);
    loop {
        let patience = until.saturating_duration_since(Instant::now());
        match watch::next(task.events, patience) {
            Some(Event::Line(_, text)) => task.line(output, &text),
            Some(Event::Ended(of, at_ns)) if of == number => {
                process::last_lines(task.events, number, |text| task.line(output, text));
                let end = process.ended(at_ns);
                let failed = (!end.is_success()).then(|| end.text());
                return Attended::Ended(end, failed);
            }
            _ => {}
        }
        let is_stopped = task.watch.is_stopped();
        if is_stopped || Instant::now() >= until {
            let ended = process.try_end(task.events, |text| task.line(output, text));
            if is_stopped {
                return Attended::Stopped;
            }
            let end = match ended {
                Ok(end) => end,
                Err(process) => return Attended::Hangs(process),
            };
            let limit = task.config.run_ms_max;
            let why = format!("did not end within {limit} ms (run_ms_max)");
            return Attended::Ended(end, Some(why));
        }
    }
}

/// Records how a run went. A failure that repeats at each period is logged once.
fn note(task: &Task<'_>, failed: Option<String>, output: &mut Output<'_>) {
    let last = output.take_last();
    let Some(why) = failed else {
        let mut known = task.watch.figures();
        if std::mem::replace(&mut known.figures.failing, false) {
            let text = format!("{} succeeds again", task.config.name);
            crate::log::event("task", text);
        }
        return;
    };
    let why = match last {
        Some(last) => format!("a run {why}; its last line: {last}"),
        None => format!("a run {why}"),
    };
    let known = task.watch.figures();
    let is_known = known.figures.failing && known.figures.last_error.as_ref() == Some(&why);
    drop(known);
    if is_known {
        task.watch.figures().figures.failed += 1;
    } else {
        task.fail(&why);
    }
}

/// Reports to the quality of service.
struct Reports<'a> {
    own: OwnDeclaration<'a>,
    figures: Monitor,
    next: Instant,
}

impl<'a> Reports<'a> {
    fn new(task: &Task<'a>) -> Self {
        Self {
            own: OwnDeclaration::new(task, Instant::now()),
            figures: Monitor::default(),
            next: Instant::now() + SAMPLING,
        }
    }

    fn record(&mut self, task: &Task<'_>, instance: Instance) {
        let deadline_ns = task.config.deadline_ns;
        let is_late = instance.finish_ns.saturating_sub(instance.release_ns) > deadline_ns;
        task.watch.figures().figures.late += u64::from(is_late);
        self.figures.record(&instance, deadline_ns);
    }

    /// Declares the task if it is not declared, and reports what it did since.
    fn send_if_due(&mut self, task: &Task<'_>) {
        self.own.declare(task, std::process::id(), None);
        if Instant::now() < self.next {
            return;
        }
        let figures = std::mem::take(&mut self.figures);
        let mut period = SAMPLING;
        if let Some(id) = self.own.id
            && figures.instances > 0
        {
            match task.around.own_tasks.report(id, &figures) {
                Ok(ms) => period = Duration::from_millis(u64::from(ms)),
                Err(failure) => {
                    let text = format!("{}: {}", task.config.name, failure.wrong);
                    crate::log::event("task", text);
                }
            }
        }
        self.next = Instant::now() + period;
    }
}
