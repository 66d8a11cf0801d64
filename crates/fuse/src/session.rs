//! Starting a mount, and ending it in order.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::mount::{MountError, Place, Whereabouts, check_directory, check_fuse};
use fuser::{Config, Filesystem, MountOption, Notifier, SessionACL};

/// Limits of the number of threads that answer the kernel.
const THREADS_MIN: usize = 2;
const THREADS_MAX: usize = 4;

/// How to mount.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'t> {
    /// What the list of mounts shows as the source.
    pub source: &'t str,
    /// Let the kernel refuse changes.
    pub is_read_only: bool,
    /// Give other users access; permission bits then decide.
    pub allows_other_users: bool,
    /// Threads that answer the kernel.
    pub threads: usize,
}

/// The adapter must keep this as its first field. Its drop with the adapter shows that no thread answers the kernel any
/// more.
pub struct Notice {
    has_ended: Arc<AtomicBool>,
    on_end: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Drop for Notice {
    // The drop runs in every case, also after a panic on the session's thread.
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::SeqCst);
        if let Some(on_end) = self.on_end.take() {
            on_end();
        }
    }
}

/// A mount. It stays until [`Session::end`], also if this value is dropped.
pub struct Session {
    place: Place,
    has_ended: Arc<AtomicBool>,
}

/// The state of a mount after its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndState {
    /// Programs may have had files open: the mount was not unmounted before.
    pub may_be_in_use: bool,
    /// See [`Ending::was_aborted`].
    pub was_aborted: bool,
    /// See [`Ending::left_at`].
    pub left_at: Option<PathBuf>,
}

/// The result of ending a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// Files that programs still had open; they get errors from now on.
    pub files_open: usize,
    /// The mount was not unmounted, but the kernel got no answers any more: the connection was aborted.
    pub was_aborted: bool,
    /// The path of a dead mount that is left: another mount lies on it, or unmounting was refused.
    pub left_at: Option<PathBuf>,
}

impl EndState {
    /// Converts this into an [`Ending`], with the number of files that lost the mount.
    #[must_use]
    pub fn ending(self, files_open: usize) -> Ending {
        Ending {
            files_open,
            was_aborted: self.was_aborted,
            left_at: self.left_at,
        }
    }
}

/// Returns a number of threads that suits this machine: one for each processor, 2 to 4.
#[must_use]
pub fn threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    processors.clamp(THREADS_MIN, THREADS_MAX)
}

/// Returns the reason for not mounting when a step before or after the mount call has failed.
#[must_use]
pub fn failed(error: io::Error) -> MountError {
    MountError::Refused(error.to_string())
}

/// Checks that a directory can be a mount point. Returns its path without symbolic links.
///
/// # Errors
/// The variants of [`MountError`] about directories and the device.
pub fn prepare(directory: &Path) -> Result<PathBuf, MountError> {
    check_directory(directory)?;
    let directory = directory.canonicalize().map_err(MountError::Directory)?;
    check_fuse()?;
    Ok(directory)
}

/// Mounts the adapter that `adapter` makes on a directory returned by [`prepare`]. On return, programs can use the
/// mount.
///
/// `on_end` runs once on a thread of the mount when no thread answers the kernel any more. Either the mount was
/// unmounted, or it could not be made.
///
/// # Errors
/// [`MountError::NoHelper`], [`MountError::Refused`].
pub fn mount<F: Filesystem>(
    directory: &Path,
    settings: &Settings<'_>,
    on_end: impl FnOnce() + Send + Sync + 'static,
    adapter: impl FnOnce(Notice) -> F,
) -> Result<Session, MountError> {
    mount_notifying(directory, settings, on_end, adapter).map(|(session, _)| session)
}

/// As [`mount`], and also returns the notifier for unsolicited messages to the kernel. As long as the notifier exists,
/// the kernel waits for answers: the caller must drop it at the end of the mount.
///
/// # Errors
/// As of [`mount`].
pub fn mount_notifying<F: Filesystem>(
    directory: &Path,
    settings: &Settings<'_>,
    on_end: impl FnOnce() + Send + Sync + 'static,
    adapter: impl FnOnce(Notice) -> F,
) -> Result<(Session, Notifier), MountError> {
    let has_ended = Arc::new(AtomicBool::new(false));
    let adapter = adapter(Notice {
        has_ended: Arc::clone(&has_ended),
        on_end: Some(Box::new(on_end)),
    });
    let session = fuser::Session::new(adapter, directory, &config(settings))
        .map_err(|error| MountError::refused(&error))?;
    let place = Place::of(directory)
        .map_err(|error| MountError::Refused(format!("/proc/self/mountinfo: {error}")))?;
    let session = session.spawn().map_err(failed)?;
    let notifier = session.notifier();
    // Dropping the session, or its own end, would unmount any mount at the directory: the library cannot detect that
    // its own mount is gone. So this crate unmounts, and forgets the session.
    std::mem::forget(session);
    Ok((Session { place, has_ended }, notifier))
}

impl Session {
    /// Unmounts, if it is still mounted. If the mount still answers, calls `before` with its directory first. All
    /// earlier closes by programs have then been reported.
    ///
    /// Does not wait for the threads of the mount. While a program has a file or the directory open, or works in it,
    /// the kernel keeps the connection until this process ends.
    #[must_use]
    pub fn end(self, before: impl FnOnce(&Path)) -> EndState {
        let has_ended = self.has_ended.load(Ordering::SeqCst);
        // Without the mount table, any unmount could hit another mount.
        let whereabouts = self.place.now(!has_ended).unwrap_or(Whereabouts::Gone);
        let was_aborted = has_ended && whereabouts != Whereabouts::Gone;
        if let Whereabouts::At(directory) = &whereabouts
            && !has_ended
        {
            before(directory);
            // The kernel reports a close only after the program's call has returned. This request comes after that
            // report.
            std::fs::read_dir(directory).ok();
        }
        EndState {
            // If the mount has ended by an unmount, no program had a file open.
            may_be_in_use: !has_ended || was_aborted,
            was_aborted,
            left_at: whereabouts.take_out(),
        }
    }
}

fn config(settings: &Settings<'_>) -> Config {
    // The helper takes all options as one text, in which a comma would begin the next option.
    let source = settings.source.replace([',', '\\'], "_");
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(source),
        MountOption::Subtype("keel".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoAtime,
    ];
    if settings.is_read_only {
        config.mount_options.push(MountOption::RO);
    }
    if settings.allows_other_users {
        config.acl = SessionACL::All;
    }
    config.n_threads = Some(settings.threads);
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_cannot_bring_options_of_its_own() {
        let settings = Settings {
            source: "a,allow_other\\,b",
            is_read_only: false,
            allows_other_users: false,
            threads: 1,
        };
        let options = config(&settings).mount_options;
        assert!(options.contains(&MountOption::FSName("a_allow_other__b".to_owned())));
        assert!(!options.contains(&MountOption::RO));
        let read_only = Settings {
            is_read_only: true,
            ..settings
        };
        assert!(config(&read_only).mount_options.contains(&MountOption::RO));
    }

    #[test]
    fn the_end_is_told_once_and_after_it_is_noted() {
        let has_ended = Arc::new(AtomicBool::new(false));
        let (tell, told) = std::sync::mpsc::channel();
        let seen = Arc::clone(&has_ended);
        let notice = Notice {
            has_ended: Arc::clone(&has_ended),
            on_end: Some(Box::new(move || {
                tell.send(seen.load(Ordering::SeqCst)).unwrap();
            })),
        };
        drop(notice);
        assert_eq!(told.iter().collect::<Vec<_>>(), [true]);
    }
}
