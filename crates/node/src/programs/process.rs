//! One process, started as the leader of a group. Its output is read line by line, its end is awaited, and it is ended
//! together with its group.

use super::surroundings::{Surroundings, thread};
use super::watch::{self, Event, Watch};
use base::clock::{Clock, SystemClock};
use std::io::{BufRead, BufReader, PipeReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

/// The longest line of output, in bytes; longer lines are split.
const LINE_BYTES_MAX: u64 = 512;

/// Timeout for a process that was asked to end; then it is killed.
pub(super) const END_TIME_MAX: Duration = Duration::from_secs(2);

/// Timeout for a killed process: a hanging call to a device or a mount can hold it.
pub(super) const KILLED_TIME_MAX: Duration = Duration::from_secs(1);

/// How long the last lines of an ended process may take to arrive.
const LAST_LINES: Duration = Duration::from_millis(50);

/// Variables of the service manager that are meant for the node, not for its programs.
const NOT_PASSED_ON: [&str; 4] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
];

/// A process that was started and not yet reaped.
pub(super) struct Process {
    child: Child,
    number: u64,
    pub(super) begun: Instant,
    has_ended: bool,
}

/// How a process ended.
pub(super) struct End {
    /// `None` if it could not be killed, and hangs.
    pub(super) status: Option<ExitStatus>,
    /// Time of the end by the machine's clock, in ns.
    pub(super) at_ns: u64,
}

impl End {
    pub(super) fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// Returns the description of the end.
    pub(super) fn text(&self) -> String {
        match self.status {
            None => "hangs in a call and cannot be killed".to_owned(),
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("ended with exit status {code}"),
                (None, signal) => format!("was ended by signal {}", signal.unwrap_or(0)),
            },
        }
    }
}

/// Returns the command, with the environment that every program of the node gets.
pub(super) fn command(program: &std::path::Path, around: &Surroundings) -> Command {
    let mut command = Command::new(program);
    command
        .current_dir(&around.folder)
        .env("KEEL_NODE", &around.socket)
        .env("KEEL_STORE", &around.store)
        // The node itself may be a program of another node.
        .env_remove("KEEL_TASK");
    if let Some(region) = &around.region {
        command.env("KEEL_REGION", region);
    }
    for name in NOT_PASSED_ON {
        command.env_remove(name);
    }
    command
}

impl Process {
    /// Starts the process. Its output and its end arrive as events with `number`. If `cores` is not empty, it runs only
    /// on these.
    pub(super) fn start<F: Clone>(
        mut command: Command,
        number: u64,
        cores: &[u16],
        watch: &Watch<F>,
    ) -> std::io::Result<Self> {
        let (reader, writer) = std::io::pipe()?;
        command
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            // A group of its own: Ctrl-C reaches only the node, which then ends the process and all others of its
            // group.
            .process_group(0);
        let node = std::process::id() as libc::pid_t;
        let wanted = (!cores.is_empty()).then(|| core_set(cores));
        // SAFETY: between fork and exec there are only async-signal-safe system calls, and no allocation.
        unsafe {
            command.pre_exec(move || {
                // Send SIGTERM when the node's thread for it ends: after the process, or when the node is killed.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                if libc::getppid() != node {
                    libc::_exit(0);
                }
                if let Some(set) = &wanted {
                    // The result is checked afterwards.
                    libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set);
                }
                for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGPIPE] {
                    libc::signal(signal, libc::SIG_DFL);
                }
                let mut none = std::mem::zeroed();
                libc::sigemptyset(&raw mut none);
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
                Ok(())
            });
        }
        let begun = Instant::now();
        let mut child = command.spawn()?;
        // This closes the writing ends of the pipe.
        drop(command);
        let (lines, unseen) = (watch.sender(), Arc::clone(&watch.lines_unseen));
        let reading = thread("output").spawn(move || read(reader, number, &lines, &unseen));
        let (ends, process) = (watch.sender(), child.id());
        let waiting =
            reading.and_then(|_| thread("end").spawn(move || wait(process, number, &ends)));
        if let Err(error) = waiting {
            child.kill().ok();
            child.wait().ok();
            return Err(error);
        }
        Ok(Self {
            child,
            number,
            begun,
            has_ended: false,
        })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn group(&self) -> libc::pid_t {
        self.child.id() as libc::pid_t
    }

    /// Returns whether it runs on exactly these cores.
    pub(super) fn is_on(&self, cores: &[u16]) -> bool {
        if cores.is_empty() {
            return true;
        }
        let wanted = core_set(cores);
        // SAFETY: all zeros are an empty set of cores.
        let mut found: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: a buffer of the given size, borrowed for the call.
        let got = unsafe {
            libc::sched_getaffinity(self.group(), size_of::<libc::cpu_set_t>(), &raw mut found)
        };
        // SAFETY: both are valid sets.
        got == 0 && unsafe { libc::CPU_EQUAL(&wanted, &found) }
    }

    /// Takes the end that an event reported: reaps the process and ends the rest of its group.
    pub(super) fn ended(mut self, at_ns: u64) -> End {
        self.has_ended = true;
        self.reap(at_ns)
    }

    /// Signals its group and the process itself: it may have moved to another group.
    fn signal(&self, signal: libc::c_int) {
        for number in [-self.group(), self.group()] {
            // SAFETY: a plain system call. The leader was not waited for, so the numbers of both are its own.
            unsafe { libc::kill(number, signal) };
        }
    }

    fn reap(&mut self, at_ns: u64) -> End {
        self.signal(libc::SIGKILL);
        End {
            status: self.child.wait().ok(),
            at_ns,
        }
    }

    /// Asks the process and its group to end, and kills them if they do not. Its last lines go to `line`. A process
    /// that cannot be killed stays until its call returns; the caller does not wait for it.
    pub(super) fn end(self, events: &Receiver<Event>, line: impl FnMut(&str)) -> End {
        self.try_end(events, line).unwrap_or_else(|_| End {
            status: None,
            at_ns: SystemClock::new().monotonic_ns(),
        })
    }

    /// Like [`end`](Self::end); the error is a process that cannot be killed: it runs as another user, or is in an
    /// uninterruptible call.
    pub(super) fn try_end(
        mut self,
        events: &Receiver<Event>,
        mut line: impl FnMut(&str),
    ) -> Result<End, Self> {
        self.signal(libc::SIGTERM);
        let mut patience = END_TIME_MAX;
        loop {
            let until = Instant::now() + patience;
            while let Some(event) =
                watch::next(events, until.saturating_duration_since(Instant::now()))
            {
                match event {
                    Event::Ended(number, at_ns) if number == self.number => {
                        self.has_ended = true;
                        return Ok(self.reap(at_ns));
                    }
                    Event::Line(_, text) => line(&text),
                    _ => {}
                }
            }
            if patience == KILLED_TIME_MAX {
                break;
            }
            self.signal(libc::SIGKILL);
            patience = KILLED_TIME_MAX;
        }
        // Prevent `drop` from killing and waiting.
        self.has_ended = true;
        Err(self)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        self.signal(libc::SIGKILL);
        self.child.wait().ok();
    }
}

/// Takes the lines that are still in flight when a process has ended.
pub(super) fn last_lines(events: &Receiver<Event>, number: u64, mut line: impl FnMut(&str)) {
    let until = Instant::now() + LAST_LINES;
    while let Some(event) = watch::next(events, until.saturating_duration_since(Instant::now())) {
        match event {
            Event::Line(of, text) if of == number => line(&text),
            // A request that arrives here is checked before the next wait.
            _ => {}
        }
    }
}

fn core_set(cores: &[u16]) -> libc::cpu_set_t {
    // SAFETY: all zeros are an empty set of cores.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for core in cores {
        // SAFETY: the set is valid; the check of the configuration refuses numbers beyond it.
        unsafe { libc::CPU_SET(usize::from(*core), &mut set) };
    }
    set
}

/// Reads until all writers have closed the pipe, and never makes a writer wait.
fn read(reader: PipeReader, number: u64, lines: &SyncSender<Event>, unseen: &AtomicU64) {
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while let Ok(1..) = reader
        .by_ref()
        .take(LINE_BYTES_MAX)
        .read_until(b'\n', &mut line)
    {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        line.clear();
        if !text.is_empty() && lines.try_send(Event::Line(number, text)).is_err() {
            unseen.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Waits for the end of a process without reaping it: its number stays reserved until its owner reaps it.
fn wait(process: u32, number: u64, ends: &SyncSender<Event>) {
    loop {
        // SAFETY: all zeros are a valid value.
        let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = libc::WEXITED | libc::WNOWAIT;
        // SAFETY: a valid structure for the result, borrowed for the call.
        let waited = unsafe { libc::waitid(libc::P_PID, process, &raw mut found, flags) };
        let is_interrupted =
            std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted;
        if waited == 0 || !is_interrupted {
            break;
        }
    }
    let at_ns = SystemClock::new().monotonic_ns();
    ends.send(Event::Ended(number, at_ns)).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changes the user of this thread alone; the library function would change all threads.
    fn become_user(user: libc::c_long) {
        // SAFETY: a plain system call.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, user, user, 0 as libc::c_long) };
        assert_eq!(changed, 0);
    }

    fn sleeper(watch: &Watch<()>) -> Process {
        let mut command = Command::new("sleep");
        command.arg("600");
        Process::start(command, 1, &[], watch).unwrap()
    }

    #[test]
    fn a_process_that_cannot_be_ended_is_given_back_for_a_later_end() {
        // SAFETY: a plain system call.
        if unsafe { libc::geteuid() } != 0 {
            println!("skipped: only root can become a user without the right to end the process");
            return;
        }
        let (watch, events) = Watch::new(());
        let process = sleeper(&watch);
        become_user(65_534);
        let ended = process.try_end(&events, |_| {});
        become_user(0);
        let Err(process) = ended else {
            panic!("it was ended by a user without the permission")
        };
        let Ok(end) = process.try_end(&events, |_| {}) else {
            panic!("it was not ended")
        };
        assert_eq!(end.status.unwrap().signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn a_process_in_another_group_is_ended_too() {
        let (watch, events) = Watch::new(());
        let mut command = Command::new("python3");
        command.args([
            "-uc",
            "import os, time\nos.setpgid(0, os.getpgid(os.getppid()))\nprint('moved')\ntime.sleep(600)",
        ]);
        let process = Process::start(command, 1, &[], &watch).unwrap();
        match events.recv_timeout(Duration::from_secs(60)).unwrap() {
            Event::Line(_, text) => assert_eq!(text, "moved"),
            _ => panic!("it ended"),
        }
        let Ok(end) = process.try_end(&events, |_| {}) else {
            panic!("it was not ended")
        };
        assert_eq!(end.status.unwrap().signal(), Some(libc::SIGTERM));
    }
}
