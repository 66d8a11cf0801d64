//! The common part of the commands that mount: when they end, their messages at the end, and their errors.

use crate::error::CliError;
use crate::output::counted;
use base::mount::MountError;
use flash_mount::Ending;
use std::path::Path;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end a mount. They are caught from the creation of this value on.
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Option<Signal>,
}

impl StopSignals {
    pub(crate) fn catch() -> Result<Self, CliError> {
        let on = |kind| signal(kind).map_err(|error| CliError::io("signals", &error));
        Ok(Self {
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
            // Under `nohup` the mount outlives its terminal.
            hangup: match is_ignored(libc::SIGHUP) {
                true => None,
                false => Some(on(SignalKind::hangup())?),
            },
        })
    }

    /// Waits for one of the signals.
    pub(crate) async fn wait(&mut self) {
        self.wait_number().await;
    }

    /// Waits for one of the signals and returns its number.
    pub(crate) async fn wait_number(&mut self) -> libc::c_int {
        tokio::select! {
            _ = self.terminate.recv() => libc::SIGTERM,
            _ = self.interrupt.recv() => libc::SIGINT,
            () = received(&mut self.hangup) => libc::SIGHUP,
        }
    }
}

/// Returns the runtime of a mount: one thread, with signals and timers.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, CliError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::io("signals", &error))
}

/// Returns whether the parent process made this one ignore the signal.
fn is_ignored(number: libc::c_int) -> bool {
    // SAFETY: all zeros are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is set, and `action` lives until the call returns.
    let asked = unsafe { libc::sigaction(number, std::ptr::null(), &raw mut action) };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// Waits for a signal, forever if it is ignored.
async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Returns the unmount command; users other than root have mounted through a helper, too.
pub(crate) fn unmount_command() -> &'static str {
    match base::mount::effective_ids() {
        (0, _) => "umount",
        _ => "fusermount3 -u",
    }
}

/// Returns the command that removes a mount which does not answer.
fn detach_command() -> &'static str {
    match base::mount::effective_ids() {
        (0, _) => "umount -l",
        _ => "fusermount3 -uz",
    }
}

/// Prints the messages about a mount's end. `kept_in`: where programs' writes are; `state`: the state of the mounted
/// object when the kernel gets no more answers.
pub(crate) fn tell_end(directory: &Path, ending: &Ending, kept_in: &str, state: &str) {
    let directory = directory.display();
    if ending.files_open > 0 {
        eprintln!(
            "keel: {directory}: {} lost the mount; what programs had written there is {kept_in}",
            counted(ending.files_open as u64, "open file")
        );
    }
    if ending.was_aborted {
        eprintln!(
            "keel: {directory}: the connection to the kernel was aborted; {state}, mount it again"
        );
    }
    if let Some(place) = &ending.left_at {
        let place = place.display();
        eprintln!(
            "keel: {place}: the mount is closed but still there, under another one or for want of permission; clear \
             it with `{} {place}`",
            unmount_command()
        );
    }
}

pub(crate) fn mount_error(directory: &Path, error: &MountError) -> CliError {
    let shown = directory.display();
    match error {
        MountError::Directory(source) if source.kind() == std::io::ErrorKind::NotFound => {
            CliError::io(&shown, source).with_remedy(format!("make it with `mkdir -p {shown}`"))
        }
        MountError::Directory(source) => CliError::io(shown, source),
        MountError::NotADirectory => CliError::failure(shown, error, "name an empty directory"),
        MountError::NotEmpty => CliError::failure(
            shown,
            error,
            "name an empty directory: what is in this one could not be reached",
        ),
        MountError::MountedAlready(_) => CliError::failure(
            &shown,
            error,
            format!(
                "use that, name another directory, or end it with `{} {shown}`",
                unmount_command()
            ),
        ),
        MountError::DeadMount => CliError::failure(
            &shown,
            error,
            format!("clear it with `{} {shown}`", unmount_command()),
        ),
        MountError::Silent => CliError::failure(
            &shown,
            error,
            format!(
                "look whether its process is stopped, or waits for a disk that does not answer; `{} {shown}` takes it \
                 away",
                detach_command()
            ),
        ),
        MountError::NoFuse => CliError::failure(
            "FUSE",
            error,
            "load it with `modprobe fuse`, or give the container /dev/fuse",
        ),
        MountError::FuseDenied => {
            CliError::failure("FUSE", error, "run as root, or ask for access to /dev/fuse")
        }
        MountError::NoHelper => {
            CliError::failure("FUSE", error, "install the package fuse3, or run as root")
        }
        MountError::Refused(text) if text.contains("user_allow_other") => CliError::failure(
            shown,
            "--allow-other is not permitted to users other than root",
            "leave it out, or have root write the line user_allow_other to /etc/fuse.conf",
        ),
        other => CliError::failure(
            shown,
            other,
            "run as root where mounting is permitted; in many containers it is not",
        ),
    }
}
