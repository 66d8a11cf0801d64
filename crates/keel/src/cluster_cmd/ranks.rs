//! A supervised run of MPI's launcher: its lines as they arrive, in bounded time, and the cause of a failure.

use super::boards::{Boards, last_line, wait_within};
use crate::error::CliError;
use crate::signals;
use crate::temporary::Folder;
use cluster::measure::LINE_PREFIX;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of a line, at most; a longer line is cut.
const LINE_BYTES_MAX: u64 = 5 << 20;

/// Capacity of the queue of lines.
const LINES_MAX: usize = 64;

/// The most lines kept of the complaints of launcher and libraries.
const COMPLAINT_LINES_MAX: usize = 400;

/// The most characters kept of each line.
const COMPLAINT_LETTERS_MAX: usize = 500;

/// Timeout for a launcher that was asked to end: it ends the ranks on all boards.
const END_TIME_MAX: Duration = Duration::from_secs(5);

/// Timeout for a launcher to end after all ranks have done their work.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(4);

/// Poll interval for signals of the user.
pub(super) const LOOK: Duration = Duration::from_millis(100);

/// Returns a line in the form in which it is kept.
fn cut(line: String) -> String {
    line.chars().take(COMPLAINT_LETTERS_MAX).collect()
}

/// The next event of a run.
pub(crate) enum Next {
    /// A line of standard output.
    Line(String),
    /// The launcher has ended, with this status.
    Ended(std::process::ExitStatus),
}

/// Ranks on boards.
pub(crate) struct Ranks<'a> {
    boards: &'a Boards,
    child: Child,
    lines: Receiver<String>,
    complaints: Option<JoinHandle<VecDeque<String>>>,
    /// The launcher reads it, possibly again when a board is lost.
    _folder: Folder,
    deadline: Instant,
    silence_max: Duration,
    /// When the last line of a rank arrived.
    heard: Instant,
    is_over: bool,
    /// Lines of standard output that no rank wrote: hydra reports there how a rank has ended.
    others: Vec<String>,
}

impl<'a> Ranks<'a> {
    /// Starts the ranks.
    ///
    /// # Errors
    /// The launcher cannot be started.
    pub(crate) fn start(
        boards: &'a Boards,
        arguments: &[String],
        deadline: Instant,
        silence_max: Duration,
    ) -> Result<Self, CliError> {
        let folder = Folder::create("cluster")?;
        let mut command = boards.command(arguments, &folder.path().join("hosts"))?;
        // A group of its own: Ctrl-C reaches only this program, which ends the launcher, which ends the ranks.
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        signals::end_with_this(&mut command);
        let mut child = command
            .spawn()
            .map_err(|error| CliError::io(boards.launcher().display(), &error))?;
        let (sender, lines) = sync_channel(LINES_MAX);
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                for_each_line(stdout, |line| sender.send(line).is_ok());
            });
        }
        let complaints = child.stderr.take().map(|stderr| {
            std::thread::spawn(move || {
                let mut kept = VecDeque::new();
                for_each_line(stderr, |line| {
                    if kept.len() == COMPLAINT_LINES_MAX {
                        kept.pop_front();
                    }
                    kept.push_back(cut(line));
                    true
                });
                kept
            })
        });
        Ok(Self {
            boards,
            child,
            lines,
            complaints,
            _folder: folder,
            deadline,
            silence_max,
            heard: Instant::now(),
            is_over: false,
            others: Vec::new(),
        })
    }

    /// Returns the next line, or the end.
    ///
    /// # Errors
    /// No line came for too long, the deadline has passed, or the user interrupted the run. In these cases the ranks
    /// are ended, and the error names a board that no longer answers, if there is one.
    pub(crate) fn next(&mut self) -> Result<Next, CliError> {
        loop {
            // Check these first: they must also work while a launcher prints warnings without end.
            if signals::stop_requested() {
                self.end();
                return Err(interrupted());
            }
            if Instant::now() >= self.deadline {
                return Err(self.give_up("not done within --seconds-max"));
            }
            if self.heard.elapsed() >= self.silence_max {
                let wrong = format!("nothing has come for {} s", self.silence_max.as_secs());
                return Err(self.give_up(&wrong));
            }
            match self.lines.recv_timeout(LOOK) {
                Ok(line) => {
                    if line.starts_with(LINE_PREFIX) {
                        self.heard = Instant::now();
                    }
                    return Ok(Next::Line(line));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let left = self
                        .silence_max
                        .min(self.deadline.saturating_duration_since(Instant::now()));
                    let status = wait_within(&mut self.child, left.max(LOOK));
                    let status = status
                        .map_err(|error| CliError::io(self.boards.launcher().display(), &error))?;
                    if let Some(status) = status {
                        self.is_over = true;
                        return Ok(Next::Ended(status));
                    }
                    return Err(self.give_up("the launcher does not end"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Waits briefly for the launcher to end after all results have arrived. With more ranks than cores MPICH takes
    /// minutes for that, in which nothing happens any more.
    pub(crate) fn settle(mut self) {
        if let Ok(Some(_)) = wait_within(&mut self.child, SETTLE_TIME_MAX) {
            self.is_over = true;
        }
        self.end();
    }

    /// Keeps a line that no rank wrote, for the report of a failure.
    pub(crate) fn keep(&mut self, line: String) {
        if self.others.len() < COMPLAINT_LINES_MAX {
            self.others.push(cut(line));
        }
    }

    /// Ends the ranks and determines which board no longer answers.
    fn give_up(&mut self, wrong: &str) -> CliError {
        let complaints = self.end();
        self.blame(wrong, &complaints)
    }

    /// Returns why a run that ended has failed. `said`: the report of the ranks, with the host, if there was one.
    pub(crate) fn failed(
        &mut self,
        status: std::process::ExitStatus,
        said: Option<(String, Option<String>)>,
    ) -> CliError {
        let complaints = self.end();
        if let Some((why, host)) = said {
            let thing = host.unwrap_or_else(|| "keel-mpi".to_owned());
            return CliError::failure(thing, why, "see docs/boards.md");
        }
        let wrong = format!("the launcher has ended without a result ({status})");
        self.blame(&wrong, &complaints)
    }

    fn blame(&self, wrong: &str, complaints: &[String]) -> CliError {
        let names: Vec<&str> = self
            .boards
            .hosts
            .iter()
            .map(|host| host.name.as_str())
            .collect();
        if let Err(error) = self.boards.reach() {
            return error.with_note(wrong);
        }
        let all: Vec<String> = complaints.iter().chain(&self.others).cloned().collect();
        match blamed(&all, &names) {
            Some((host, line)) => CliError::failure(
                host,
                format_args!("{wrong}; {line}"),
                "see what ended it there, then run again",
            ),
            None => {
                let last = last_line(complaints.join("\n").as_bytes());
                CliError::failure(
                    self.boards.launcher().display(),
                    format_args!("{wrong}; {last}"),
                    "see docs/boards.md",
                )
            }
        }
    }

    /// Ends the launcher if it is still running. Returns its complaints.
    fn end(&mut self) -> Vec<String> {
        if !self.is_over {
            self.is_over = true;
            let group = self.child.id() as libc::pid_t;
            // SAFETY: a plain system call. The child has not been waited for, so its number is its own.
            unsafe { libc::kill(group, libc::SIGTERM) };
            if !matches!(wait_within(&mut self.child, END_TIME_MAX), Ok(Some(_))) {
                // SAFETY: as above; the launcher's whole group.
                unsafe { libc::kill(-group, libc::SIGKILL) };
                self.child.wait().ok();
            }
        }
        // A rank that outlives the launcher may hold the pipe open, so wait only for a limited time.
        let complaints = self.complaints.take().filter(|thread| {
            let begun = Instant::now();
            while !thread.is_finished() && begun.elapsed() < Duration::from_secs(2) {
                std::thread::sleep(Duration::from_millis(10));
            }
            thread.is_finished()
        });
        complaints
            .and_then(|thread| thread.join().ok())
            .map(Vec::from)
            .unwrap_or_default()
    }
}

impl Drop for Ranks<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns the error of a run that was interrupted.
pub(super) fn interrupted() -> CliError {
    CliError::failure(
        "cluster",
        "interrupted",
        "what was measured so far is not kept",
    )
}

/// Passes each line as text to `wanted`, until the stream ends or `wanted` returns `false`.
fn for_each_line(stream: impl Read, mut wanted: impl FnMut(String) -> bool) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut bytes = Vec::new();
        match reader
            .by_ref()
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut bytes)
        {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let line = String::from_utf8_lossy(&bytes)
            .trim_end_matches(['\n', '\r'])
            .to_owned();
        if !wanted(line) {
            return;
        }
    }
}

/// Returns the board that a launcher names when a rank dies or a connection to a board is lost, and how it was lost.
pub(crate) fn blamed(complaints: &[String], hosts: &[&str]) -> Option<(String, String)> {
    // Hydra: "PID 12 RUNNING AT b3"; Open MPI: "on node b3 exited on signal 9", "Remote daemon: … on node b3".
    let after = |line: &str, mark: &str, is_sure: bool| -> Option<String> {
        let rest = line.split_once(mark)?.1;
        let name: String = rest
            .chars()
            .take_while(|letter| !letter.is_whitespace() && !"]),:".contains(*letter))
            .collect();
        // Open MPI calls a board by its own name, not by the name in the file of hosts. With one board, a line that is
        // about a lost rank is about that board.
        match hosts {
            [one] if is_sure => Some((*one).to_owned()),
            _ => hosts.contains(&name.as_str()).then_some(name),
        }
    };
    let sure = |line: &&String| {
        line.contains("RUNNING AT")
            || line.contains("exited on signal")
            || line.contains("Remote daemon")
    };
    let named = |line: &String, is_sure: bool| {
        let host = ["RUNNING AT ", "on node "]
            .iter()
            .find_map(|mark| after(line, mark, is_sure))?;
        Some((host, how_lost(line, complaints)))
    };
    let found = complaints
        .iter()
        .filter(sure)
        .find_map(|line| named(line, true));
    if found.is_some() {
        return found;
    }
    // Hydra's helpers on the other boards complain, too ("[proxy:0:0@b1] …"): they are victims, and name no board.
    complaints.iter().find_map(|line| named(line, false))
}

/// Returns how a rank was lost, from the line that names its board, or from those that hydra writes behind it.
fn how_lost(line: &str, complaints: &[String]) -> String {
    let plain = |line: &str| -> String {
        let text = line
            .trim_matches(|letter: char| letter == '=' || letter == '|' || letter.is_whitespace());
        text.chars().take(160).collect()
    };
    if let Some((_, signal)) = line.split_once("exited on signal ") {
        return format!("a rank has ended: signal {}", signal.trim_end_matches('.'));
    }
    if !line.contains("RUNNING AT") {
        return plain(line);
    }
    let behind = |mark: &str| {
        let found = complaints.iter().find_map(|line| line.split_once(mark));
        found.map(|(_, rest)| plain(rest))
    };
    // "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)"
    if let Some(how) = behind("EXIT STRING:") {
        return format!("a rank has ended: {how}");
    }
    match behind("EXIT CODE:") {
        Some(code) => format!("a rank has ended with exit code {code}"),
        None => plain(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_board_that_a_launcher_names_is_found() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let hosts = ["b1", "b2", "b3"];
        let of = |text: &str| blamed(&lines(text), &hosts).map(|(host, _)| host);
        let hydra = "=====\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 41 RUNNING AT b3\n\
                     =   EXIT CODE: 9\n[proxy:0:0@b1] HYDT_dmxu_poll_wait_for_event: demux engine error";
        assert_eq!(of(hydra).as_deref(), Some("b3"));
        let how = |text: &str| blamed(&lines(text), &hosts).map(|(_, how)| how);
        let code = "a rank has ended with exit code 9";
        assert_eq!(how(hydra).as_deref(), Some(code));
        let killed =
            format!("{hydra}\nYOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)");
        let signal = "a rank has ended: Killed (signal 9)";
        assert_eq!(how(&killed).as_deref(), Some(signal));
        let victim = "[proxy:0:1@b2] HYD_pmcd_pmip_control_cmd_cb: assert failed";
        assert_eq!(of(victim), None);
        let open =
            "mpirun noticed that process rank 1 with PID 0 on node b2 exited on signal 9 (Killed).";
        assert_eq!(of(open).as_deref(), Some("b2"));
        let signal = "a rank has ended: signal 9 (Killed)";
        assert_eq!(how(open).as_deref(), Some(signal));
        // The file of hosts says `localhost`, Open MPI the name of this machine.
        let alone = blamed(&lines(open), &["localhost"]).map(|(host, _)| host);
        assert_eq!(alone.as_deref(), Some("localhost"));
        let warning = lines("There are not enough slots available on node elsewhere");
        assert_eq!(blamed(&warning, &["localhost"]), None);
        let lost =
            "  HNP daemon   : [[1,0],0] on node master\n  Remote daemon: [[1,0],2] on node b3";
        assert_eq!(of(lost).as_deref(), Some("b3"));
        assert_eq!(of("nothing of it; on node elsewhere"), None);
    }
}
