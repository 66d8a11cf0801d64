//! The program that is run for an alarm: one run at a time, with the message on its standard input, with a timeout.

use super::figures::UrgentState;
use super::options::AlarmOptions;
use super::outbox::Deadline;
use base::clock::Clock;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Poll interval for the end of a run: short at first, then longer.
const LOOK_MIN: Duration = Duration::from_millis(2);
const LOOK_MAX: Duration = Duration::from_millis(50);
/// Time that the current run has to end after the node stops.
const FAREWELL_MS: u64 = 500;
/// Time that a killed run has to end.
const KILLED_MS_MAX: u64 = 1_000;
/// Largest number of runs that cannot be killed; at this number no further run is started.
const HUNG_MAX: usize = 8;

/// Largest number of lines from the commands of all alarms per time span; further lines are only counted. Longer lines
/// are cut.
const LINES_MAX: u32 = 20;
const LINES_SPAN_MS: u64 = 10_000;
const LINE_BYTES_MAX: u64 = 512;
/// Largest number of threads that read them: a background process that a run has left may hold standard error open for
/// ever. Standard error of further runs is discarded.
const LISTENERS_MAX: usize = 8;
const LISTENER_STACK_BYTES: usize = 128 << 10;

/// System functions that the node provides for runs, and their working directory.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// Kills a run that takes too long, with all its child processes: it is the leader of a process group. The caller
    /// provides this, since it needs system calls.
    pub end: fn(&mut Child),
    /// Working directory of a run.
    pub folder: PathBuf,
    /// Takes a line that a run of this alarm has written to standard error. Without an alarm name, the line reports
    /// that lines were left out.
    pub say: fn(Option<&str>, &str),
}

/// A run that is due.
#[derive(Debug)]
struct Run {
    alarm: usize,
    message: Vec<u8>,
    born_ms: u64,
}

#[derive(Debug, Default)]
struct Waiting {
    runs: VecDeque<Run>,
    is_stopping: bool,
}

/// Queue of runs that wait for their turn.
#[derive(Debug)]
pub(crate) struct CommandQueue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    runs_max: usize,
}

impl CommandQueue {
    pub(crate) fn new(runs_max: usize) -> Self {
        Self {
            waiting: Mutex::default(),
            changed: Condvar::new(),
            runs_max: runs_max.max(1),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a run. Returns the alarm whose oldest run was dropped for it.
    pub(crate) fn push(&self, alarm: usize, message: Vec<u8>, born_ms: u64) -> Option<usize> {
        let mut waiting = self.lock();
        let dropped = match waiting.runs.len() >= self.runs_max {
            true => waiting.runs.pop_front(),
            false => None,
        };
        waiting.runs.push_back(Run {
            alarm,
            message,
            born_ms,
        });
        drop(waiting);
        self.changed.notify_all();
        dropped.map(|run| run.alarm)
    }

    pub(crate) fn stop(&self) {
        self.lock().is_stopping = true;
        self.changed.notify_all();
    }

    fn is_stopping(&self) -> bool {
        self.lock().is_stopping
    }

    /// Returns the next run; `None` when there will be none.
    fn next(&self) -> Option<Run> {
        let waiting = self.lock();
        let idle = |waiting: &mut Waiting| waiting.runs.is_empty() && !waiting.is_stopping;
        let waited = self.changed.wait_while(waiting, idle);
        let mut waiting = waited.unwrap_or_else(PoisonError::into_inner);
        match waiting.is_stopping {
            true => None,
            false => waiting.runs.pop_front(),
        }
    }

    /// Waits. Returns whether the node stops.
    fn pause(&self, pause: Duration) -> bool {
        let waited = self.changed.wait_timeout(self.lock(), pause);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_stopping
    }
}

/// Executes the queued runs until the node stops.
pub(crate) fn work(
    queue: &CommandQueue,
    alarms: &[AlarmOptions],
    clock: &Arc<dyn Clock>,
    state: &UrgentState,
    around: &Surroundings,
) {
    let now_ms = || clock.monotonic_ns() / 1_000_000;
    let mut hung = Vec::new();
    let complaints = Arc::new(Mutex::new(Complaints::new(around.say, Arc::clone(clock))));
    while let Some(run) = queue.next() {
        let Some(alarm) = alarms.get(run.alarm) else {
            continue;
        };
        let deadline = Deadline {
            ms: alarm.deadline_ms,
            late: alarm.late,
        };
        let is_skipped = deadline.is_skipped(run.born_ms, now_ms());
        let ended = match is_skipped {
            true => Ok(()),
            false => {
                let listen = || listen(&alarm.name, &complaints);
                one(
                    queue,
                    alarm,
                    &run.message,
                    &now_ms,
                    around,
                    &listen,
                    &mut hung,
                )
            }
        };
        let is_late = deadline.is_late(run.born_ms, now_ms());
        let mut figures = state.lock();
        let Some(of_alarm) = figures.alarms.get_mut(run.alarm) else {
            continue;
        };
        let delivery = &mut of_alarm.command;
        // A run that was ended by the node's stop counts as not done: it waits for the next start.
        if ended.is_ok() || !queue.is_stopping() {
            delivery.waiting = delivery.waiting.saturating_sub(1);
        }
        match ended {
            _ if is_skipped => delivery.skipped += 1,
            Ok(()) => {
                delivery.delivered += 1;
                delivery.late += u64::from(is_late);
            }
            Err(why) => {
                delivery.failed += 1;
                of_alarm.last_error = Some(format!(
                    "{}: {why}",
                    alarm.command.first().map_or("", String::as_str)
                ));
            }
        }
    }
}

/// Executes one run from start to end.
fn one(
    queue: &CommandQueue,
    alarm: &AlarmOptions,
    message: &[u8],
    now_ms: &dyn Fn() -> u64,
    around: &Surroundings,
    listen: &dyn Fn() -> Stdio,
    hung: &mut Vec<Child>,
) -> Result<(), String> {
    let (program, arguments) = alarm.command.split_first().ok_or("no command")?;
    hung.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    if hung.len() >= HUNG_MAX {
        return Err(format!("{HUNG_MAX} earlier runs cannot be ended"));
    }
    let begun_ms = now_ms();
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(listen())
        .current_dir(&around.folder)
        // The node may itself be a program of another node, but this run is not.
        .env_remove("KEEL_TASK")
        .process_group(0)
        .spawn()
        .map_err(|error| format!("cannot be started: {error}"))?;
    if let Some(mut input) = child.stdin.take() {
        // A message fits into a pipe's buffer, so this never blocks. A run need not read it.
        drop(
            input
                .write_all(message)
                .and_then(|()| input.write_all(b"\n")),
        );
    }
    let mut until_ms = begun_ms.saturating_add(alarm.command_ms_max);
    let mut is_stopping = false;
    let mut pause = LOOK_MIN;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("ended with {status}")),
            Err(error) => return Err(error.to_string()),
            Ok(None) => {}
        }
        if now_ms() >= until_ms {
            (around.end)(&mut child);
            // The run was killed, so it ends, unless it belongs to another user or is in an uninterruptible system
            // call.
            let killed_ms = now_ms();
            while matches!(child.try_wait(), Ok(None)) {
                if now_ms().saturating_sub(killed_ms) > KILLED_MS_MAX {
                    hung.push(child);
                    return Err("cannot be ended".to_owned());
                }
                queue.pause(LOOK_MIN);
            }
            return Err(match is_stopping {
                true => "was ended because the node stops".to_owned(),
                false => format!("did not end within {} ms", alarm.command_ms_max),
            });
        }
        if queue.pause(pause) && !is_stopping {
            is_stopping = true;
            until_ms = until_ms.min(now_ms() + FAREWELL_MS);
        }
        pause = (pause * 2).min(LOOK_MAX);
    }
}

/// What commands write to standard error, rate-limited so that it does not hide other log lines.
struct Complaints {
    say: fn(Option<&str>, &str),
    clock: Arc<dyn Clock>,
    begun_ms: u64,
    said: u32,
    left_out: u64,
}

impl Complaints {
    fn new(say: fn(Option<&str>, &str), clock: Arc<dyn Clock>) -> Self {
        Self {
            say,
            begun_ms: clock.monotonic_ns() / 1_000_000,
            clock,
            said: 0,
            left_out: 0,
        }
    }

    fn line(&mut self, alarm: &str, text: &str) {
        let now_ms = self.clock.monotonic_ns() / 1_000_000;
        if now_ms.saturating_sub(self.begun_ms) >= LINES_SPAN_MS {
            let left_out = std::mem::take(&mut self.left_out);
            if left_out > 0 {
                (self.say)(None, &format!("{left_out} lines of commands were left out"));
            }
            (self.begun_ms, self.said) = (now_ms, 0);
        }
        if self.said < LINES_MAX {
            self.said += 1;
            return (self.say)(Some(alarm), text);
        }
        if self.left_out == 0 {
            let seconds = LINES_SPAN_MS / 1000;
            let text = format!(
                "further lines of commands are left out, {LINES_MAX} in {seconds} s are shown"
            );
            (self.say)(None, &text);
        }
        self.left_out += 1;
    }
}

/// Returns a standard error. A thread of its own reads its lines until every writer has closed it, so that no writer
/// blocks.
fn listen(alarm: &str, complaints: &Arc<Mutex<Complaints>>) -> Stdio {
    // Each thread has one reference.
    if Arc::strong_count(complaints) > LISTENERS_MAX {
        return Stdio::null();
    }
    let begun = std::io::pipe().and_then(|(reader, writer): (PipeReader, PipeWriter)| {
        let (alarm, complaints) = (alarm.to_owned(), Arc::clone(complaints));
        let thread = std::thread::Builder::new()
            .name("alarm-output".to_owned())
            .stack_size(LISTENER_STACK_BYTES);
        thread.spawn(move || read(reader, &alarm, &complaints))?;
        Ok(writer)
    });
    begun.map_or_else(|_| Stdio::null(), Stdio::from)
}

fn read(reader: PipeReader, alarm: &str, complaints: &Mutex<Complaints>) {
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while let Ok(1..) = reader
        .by_ref()
        .take(LINE_BYTES_MAX)
        .read_until(b'\n', &mut line)
    {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        line.clear();
        if !text.is_empty() {
            let mut complaints = complaints.lock().unwrap_or_else(PoisonError::into_inner);
            complaints.line(alarm, &text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::options::Late;
    use base::clock::SystemClock;
    use db::AlarmCondition;

    fn alarm(command: &[&str], command_ms_max: u64, deadline_ms: u64, late: Late) -> AlarmOptions {
        AlarmOptions {
            name: "a".into(),
            condition: AlarmCondition::Stale { after_ms: 1 },
            broker: None,
            topic: String::new(),
            retain: false,
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            command_ms_max,
            deadline_ms,
            late,
        }
    }

    /// Executes the pushed runs until this many have ended, then stops.
    fn run(alarms: &[AlarmOptions], pushed: &[usize]) -> Vec<super::super::figures::AlarmFigures> {
        run_with(alarms, pushed, |_, _| {})
    }

    fn run_with(
        alarms: &[AlarmOptions],
        pushed: &[usize],
        say: fn(Option<&str>, &str),
    ) -> Vec<super::super::figures::AlarmFigures> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let queue = CommandQueue::new(64);
        let state = UrgentState::new(0, alarms.len(), 0, 0);
        for at in pushed {
            assert_eq!(queue.push(*at, b"{\"x\":1}".to_vec(), 0), None);
            state.lock().alarms[*at].command.waiting += 1;
        }
        let around = Surroundings {
            end: |child| drop(child.kill()),
            folder: "/".into(),
            say,
        };
        std::thread::scope(|scope| {
            scope.spawn(|| work(&queue, alarms, &clock, &state, &around));
            while state
                .figures()
                .alarms
                .iter()
                .any(|one| one.command.waiting > 0)
            {
                std::thread::yield_now();
            }
            queue.stop();
        });
        state.figures().alarms
    }

    #[test]
    fn a_run_gets_its_words_and_message_and_failures_are_counted_by_kind() {
        let dir = std::env::temp_dir().join(format!("keel-command-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let out = dir.join("out");
        // An argument with a blank, a star and a dollar stays one argument.
        let script = "printf '%s|' \"$@\" > \"$0\"; cat >> \"$0\"";
        let words = ["sh", "-c", script, out.to_str().unwrap(), "a b * $HOME", ""];
        let alarms = [
            alarm(&words, 60_000, 0, Late::Send),
            alarm(&["sh", "-c", "exit 3"], 60_000, 0, Late::Send),
            alarm(&["sleep", "600"], 30, 0, Late::Send),
            alarm(&["/nonexistent/program"], 60_000, 0, Late::Send),
            // Both are long past their deadline.
            alarm(&["true"], 60_000, 1, Late::Send),
            alarm(&["false"], 60_000, 1, Late::Skip),
        ];
        let found = run(&alarms, &[0, 1, 2, 3, 4, 5]);
        assert_eq!(
            std::fs::read_to_string(&out).unwrap(),
            "a b * $HOME||{\"x\":1}\n"
        );
        std::fs::remove_dir_all(&dir).unwrap();
        let of = |at: usize| {
            let it = found[at].command;
            (it.delivered, it.failed, it.late, it.skipped)
        };
        assert_eq!(
            [of(0), of(1), of(2), of(3)],
            [(1, 0, 0, 0), (0, 1, 0, 0), (0, 1, 0, 0), (0, 1, 0, 0)]
        );
        assert_eq!([of(4), of(5)], [(1, 0, 1, 0), (0, 0, 0, 1)]);
        let error = |at: usize| found[at].last_error.clone().unwrap_or_default();
        assert!(error(1).contains("exit status: 3"), "{}", error(1));
        assert!(error(2).contains("within 30 ms"), "{}", error(2));
        assert!(error(3).contains("cannot be started"), "{}", error(3));
    }

    #[test]
    fn complaints_of_a_command_have_a_limit_and_name_the_alarm() {
        static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let script = "pwd >&2; yes complaint | head -n 100000 >&2";
        let alarms = [alarm(&["sh", "-c", script], 60_000, 0, Late::Send)];
        let found = run_with(&alarms, &[0, 0], |alarm, text| {
            let alarm = alarm.unwrap_or("-");
            SAID.lock().unwrap().push(format!("{alarm}: {text}"));
        });
        assert_eq!(found[0].command.delivered, 2, "{:?}", found[0].last_error);
        let said = SAID.lock().unwrap();
        assert_eq!(said.first().map(String::as_str), Some("a: /"));
        let lines = said.iter().filter(|line| line.starts_with("a: ")).count();
        // The two runs may take longer than one time span.
        assert!(lines >= LINES_MAX as usize, "{said:?}");
        assert!(lines <= 10 * LINES_MAX as usize, "{said:?}");
        assert!(said[LINES_MAX as usize].starts_with("-: further lines"));
    }

    #[test]
    fn processes_that_runs_leave_behind_cost_a_limited_number_of_threads() {
        let complaints = Complaints::new(|_, _| {}, Arc::new(SystemClock::new()));
        let complaints = Arc::new(Mutex::new(complaints));
        let children = (0..2 * LISTENERS_MAX).map(|_| {
            let mut command = Command::new("sleep");
            command.arg("600").stderr(listen("a", &complaints));
            command.spawn().unwrap()
        });
        let mut children: Vec<Child> = children.collect();
        assert_eq!(Arc::strong_count(&complaints), 1 + LISTENERS_MAX);
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let ended = (0..60_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            Arc::strong_count(&complaints) == 1
        });
        assert!(ended);
    }

    #[test]
    fn too_many_runs_cost_the_oldest() {
        let queue = CommandQueue::new(2);
        let pushed = [0, 1, 2, 3].map(|alarm| queue.push(alarm, Vec::new(), 0));
        assert_eq!(pushed, [None, None, Some(0), Some(1)]);
        assert_eq!(queue.next().map(|run| run.alarm), Some(2));
        queue.stop();
        assert!(queue.next().is_none());
    }
}
