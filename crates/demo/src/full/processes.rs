//! The processes of a run: each starts in its own process group, ends with this process, and can be asked for its
//! state.

use command::error::{CliError, describe};
use command::signals;
use libkeel::connection::Connection;
use libkeel::protocol::{self, Kind};
use serde_json::Value;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Where programs see the region.
pub(super) const AT: &str = "/keel-demo";

/// Poll interval.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Timeout of a status request to the node.
const STATUS_MAX: Duration = Duration::from_secs(5);

/// Timeout for a process that was asked to end.
const END_MAX: Duration = Duration::from_secs(15);

/// A process of the run.
pub(super) struct Process {
    name: &'static str,
    child: Child,
    /// Its output.
    log: PathBuf,
}

impl Process {
    /// Starts this program with arguments; its output goes to a file in the folder.
    pub(super) fn start(
        folder: &Path,
        name: &'static str,
        arguments: &[&str],
    ) -> Result<Self, CliError> {
        let failed = |error: std::io::Error| CliError::io(name, &error);
        let program = std::env::current_exe().map_err(failed)?;
        Self::start_command(folder, name, Command::new(program).args(arguments))
    }

    pub(super) fn start_command(
        folder: &Path,
        name: &'static str,
        command: &mut Command,
    ) -> Result<Self, CliError> {
        let failed = |error: std::io::Error| CliError::io(name, &error);
        let log = folder.join(format!("{name}.log"));
        let file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .map_err(failed)?;
        command
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(file.try_clone().map_err(failed)?)
            .stderr(file)
            .process_group(0);
        signals::end_with_this(command);
        let child = command.spawn().map_err(failed)?;
        Ok(Self { name, child, log })
    }

    /// Returns its output.
    pub(super) fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Fails if it has ended.
    pub(super) fn check(&mut self) -> Result<(), CliError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            _ => {
                let said = self.said();
                let last = said.lines().last().unwrap_or("it said nothing");
                Err(CliError::failure(
                    self.name,
                    format!("has ended: {last}"),
                    "try again",
                ))
            }
        }
    }

    /// Kills it and its group, as a power cut does.
    pub(super) fn kill(&mut self) {
        // SAFETY: a plain system call. The leader was not waited for, so the number of the group is its own.
        unsafe { libc::kill(-(self.child.id() as libc::pid_t), libc::SIGKILL) };
        self.child.wait().ok();
    }

    /// Asks it to end and waits. Returns whether it succeeded.
    pub(super) fn end(&mut self) -> bool {
        // SAFETY: as above.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        let until = Instant::now() + END_MAX;
        while Instant::now() < until {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(POLL_INTERVAL),
                Ok(Some(status)) => return status.success(),
                Err(_) => return false,
            }
        }
        self.kill();
        false
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

/// Runs a command of this program to its end.
pub(super) fn ask(folder: &Path, arguments: &[&str]) -> Result<Output, CliError> {
    let failed = |error: std::io::Error| CliError::io("keel", &error);
    let program = std::env::current_exe().map_err(failed)?;
    Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .map_err(failed)
}

/// Like [`ask`], but the command must succeed. Returns what it prints.
pub(super) fn demand(folder: &Path, arguments: &[&str]) -> Result<String, CliError> {
    let output = ask(folder, arguments)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let said = said.lines().last().unwrap_or("it failed").to_owned();
    let what = arguments
        .iter()
        .take(2)
        .copied()
        .collect::<Vec<_>>()
        .join(" ");
    Err(CliError::failure(
        what,
        said.strip_prefix("keel: ").unwrap_or(&said),
        "",
    ))
}

/// Returns the node's status; `None` while it does not answer.
pub(super) fn status(socket: &Path) -> Option<Value> {
    let mut connection = Connection::open(socket, STATUS_MAX).ok()?;
    connection
        .ask(Kind::Status, &protocol::Status {}, Kind::State)
        .ok()
}

/// Waits for an answer, at most for the limit; `Ok(None)` if there was none.
pub(super) fn wait_for<T>(
    limit: Duration,
    mut poll: impl FnMut() -> Result<Option<T>, CliError>,
) -> Result<Option<T>, CliError> {
    let until = Instant::now() + limit;
    loop {
        if let Some(found) = poll()? {
            return Ok(Some(found));
        }
        if signals::stop_requested() {
            return Err(CliError::failure("demo", "was stopped", "run it again"));
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the error of a process that was too late.
pub(super) fn late(what: &str, limit: Duration) -> CliError {
    let seconds = limit.as_secs();
    CliError::failure(
        "demo",
        format!("{what} did not come within {seconds} s"),
        "run it again with --dir, and look at the logs there",
    )
}

/// Writes a file.
pub(super) fn write(path: &Path, text: &str) -> Result<(), CliError> {
    std::fs::write(path, text).map_err(|error| {
        CliError::failure(path.display(), describe(&error), "choose another --dir")
    })
}
