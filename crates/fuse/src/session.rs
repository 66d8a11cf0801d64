//! Beginning a mount, and ending it in order.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::mount::{MountError, Place, Whereabouts, check_directory, check_fuse};
use fuser::{Config, Filesystem, MountOption, Notifier, SessionACL};

/// How to mount.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'t> {
    /// What the list of mounts shows as the source.
    pub source: &'t str,
    /// Let the kernel refuse changes.
    pub is_read_only: bool,
    /// Let other users in; permission bits then decide.
    pub allows_other_users: bool,
    /// Threads that answer the kernel.
    pub threads: usize,
}

/// To be kept by what answers the kernel, as its first field: dropped with it, this tells that nobody answers any more.
pub struct Notice {
    has_ended: Arc<AtomicBool>,
    on_end: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Drop for Notice {
    // The only thing that happens whatever ends the session, a panic on its thread included.
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::SeqCst);
        if let Some(on_end) = self.on_end.take() {
            on_end();
        }
    }
}

/// A mount. It stays, dropped or not, until [`Session::end`].
pub struct Session {
    place: Place,
    has_ended: Arc<AtomicBool>,
}

/// What became of a mount that is ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Programs may have had files open: nobody had unmounted it before.
    pub may_be_in_use: bool,
    /// See [`Ending::was_aborted`].
    pub was_aborted: bool,
    /// See [`Ending::left_at`].
    pub left_at: Option<PathBuf>,
}

/// How a mount ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// Files that programs had still open; they get errors from now on.
    pub files_open: usize,
    /// Nobody unmounted it, and still the kernel got no answers any more: the connection was aborted.
    pub was_aborted: bool,
    /// Where a mount is left that answers nothing: another one lies on it, or unmounting was refused.
    pub left_at: Option<PathBuf>,
}

impl Left {
    /// The same, with the number of files that lost the mount.
    #[must_use]
    pub fn ending(self, files_open: usize) -> Ending {
        Ending {
            files_open,
            was_aborted: self.was_aborted,
            left_at: self.left_at,
        }
    }
}

/// Whether something can be mounted on a directory; answers the directory without links.
///
/// # Errors
/// The variants of [`MountError`] about directories and the device.
pub fn prepare(directory: &Path) -> Result<PathBuf, MountError> {
    check_directory(directory)?;
    let directory = directory.canonicalize().map_err(MountError::Directory)?;
    check_fuse()?;
    Ok(directory)
}

/// Mounts what `adapter` makes on a directory that [`prepare`] has answered. When this returns, programs can use it.
///
/// `on_end` runs once on a thread of the mount when nobody answers the kernel any more: it has been unmounted by
/// somebody, or could not be made.
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

/// [`mount`], together with what tells the kernel of something unasked. As long as anybody has that, the kernel waits
/// for answers: whoever takes it drops it at the end of the mount.
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
    let refused = |error: io::Error| MountError::Refused(error.to_string());
    let session = session.spawn().map_err(refused)?;
    let notifier = session.notifier();
    // Dropping it, or letting it end by itself, would unmount whatever lies at the directory by then: the library
    // cannot tell that its own mount is gone already. So it is unmounted here, and this is forgotten.
    std::mem::forget(session);
    Ok((Session { place, has_ended }, notifier))
}

impl Session {
    /// Unmounts, if nobody has done it. Where the mount still answers, `before` is called with its directory first, and
    /// all that programs had closed by then has been told.
    ///
    /// The threads of the mount are not waited for: while somebody has a file or the directory open, or works in it,
    /// the kernel keeps the connection until this process ends.
    #[must_use]
    pub fn end(self, before: impl FnOnce(&Path)) -> Left {
        let has_ended = self.has_ended.load(Ordering::SeqCst);
        // Without the table nothing can be done that could not hit another mount.
        let whereabouts = self.place.now(!has_ended).unwrap_or(Whereabouts::Gone);
        let was_aborted = has_ended && whereabouts != Whereabouts::Gone;
        if let Whereabouts::At(directory) = &whereabouts
            && !has_ended
        {
            before(directory);
            // The kernel tells of a close after it has answered it. What it asks now comes after that.
            std::fs::read_dir(directory).ok();
        }
        Left {
            // When it has ended because it was unmounted, nobody had a file open.
            may_be_in_use: !has_ended || was_aborted,
            was_aborted,
            left_at: whereabouts.take_out(),
        }
    }
}

fn config(settings: &Settings<'_>) -> Config {
    // The helper takes options as one text, in which a comma would begin the next one.
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
