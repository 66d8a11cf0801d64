//! Mounting, and ending a mount in order.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use base::mount::{MountError, Place, check_directory, path_unasked};
use fuse::{Ending, Session, Settings};

use crate::adapter::Adapter;
use crate::guard::Guard;
use crate::loaders::Loaders;
use crate::pages::PageCache;
use crate::processes::FileSystem;
use crate::readers::Readers;
use crate::source::Source;
use crate::tasks::Tasks;
use crate::view::View;

/// The prefix of each mount's source, in the list of mounts.
const SOURCE_PREFIX: &str = "stream:";

/// The options of a mount.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// The source that the list of mounts shows, after the prefix `stream:`.
    pub source: String,
    /// Whether other users have access; permission bits then decide.
    pub allows_other_users: bool,
    /// The visible paths of the tree, each with everything in it and the directories that lead to it. Empty if
    /// everything is visible.
    pub redirect: Vec<PathBuf>,
    /// The kernel's read-ahead, in KiB, for comparisons. With 0 the kernel requests each page only when a program needs
    /// it.
    pub read_ahead_kib: u32,
}

/// A mounted tree.
pub struct Mounted {
    source: Arc<dyn Source>,
    tasks: Arc<Tasks>,
    pages: Arc<PageCache>,
    /// `None` once it is unmounted.
    session: Option<Session>,
    guard: Option<Guard>,
    read_ahead_kib: Option<u32>,
}

/// Mounts a tree on an empty directory. When this returns, programs can use it.
///
/// The caller must start `guard` before anything else, while the process is small. `on_end` runs once on a thread of
/// the mount when no thread replies to the kernel any more. That is after an unmount by another process, or if the
/// mount could not be made.
///
/// # Errors
/// [`MountError`].
pub fn mount(
    source: Arc<dyn Source>,
    directory: &Path,
    options: &MountOptions,
    guard: Option<Guard>,
    on_end: impl FnOnce() + Send + Sync + 'static,
) -> Result<Mounted, MountError> {
    let directory = fuse::prepare(directory)?;
    let view = View::new(source.manifest(), &options.redirect)
        .map_err(|path| MountError::Refused(format!("{} is not in the tree", path.display())))?;
    let view = Arc::new(view);
    let tasks = Arc::new(Tasks::new(Arc::clone(&source), Arc::clone(&view)));
    let loaders = Arc::new(Loaders::default());
    let pages = Arc::new(PageCache::new(Arc::clone(&view), Arc::clone(&loaders)));
    let settings = Settings {
        source: &format!("{SOURCE_PREFIX}{}", options.source),
        is_read_only: true,
        allows_other_users: options.allows_other_users,
        // They never wait, so more threads than processors are useless.
        threads: fuse::threads(),
    };
    let (session, notifier) =
        fuse::mount_notifying(&directory, &settings, on_end, |notice| Adapter {
            _notice: notice,
            view,
            source: Arc::clone(&source),
            tasks: Arc::clone(&tasks),
            readers: Readers::default(),
            loaders,
            pages: Arc::clone(&pages),
            read_ahead_kib: options.read_ahead_kib,
            fuse_reads: AtomicU64::new(0),
            may_leave_files: false,
            may_leave_directories: false,
        })?;
    let mut mounted = Mounted {
        source,
        tasks,
        pages,
        session: Some(session),
        guard: None,
        read_ahead_kib: None,
    };
    // From here on an error unmounts, because `mounted` is dropped.
    let file_system = FileSystem::at(&directory).map_err(fuse::failed)?;
    if let Some(mut guard) = guard {
        guard.tell(&directory, file_system).map_err(fuse::failed)?;
        mounted.guard = Some(guard);
    }
    mounted.read_ahead_kib = file_system.read_ahead_kib();
    mounted.tasks.start(file_system).map_err(fuse::failed)?;
    mounted.pages.start(&directory, file_system, notifier);
    mounted.source.set_pages(Some(Arc::clone(&mounted.pages)));
    Ok(mounted)
}

/// Removes the dead mount of a tree on this directory, if there is one whose process has ended. Returns whether it did.
///
/// # Errors
/// The mount could not be removed.
pub fn clear_dead(directory: &Path) -> Result<bool, MountError> {
    match check_directory(directory) {
        Err(MountError::DeadMount) => {}
        Err(error @ MountError::Silent) => return Err(error),
        _ => return Ok(false),
    }
    match take_out_dead(directory) {
        // The guard of the dead mount may have taken it away meanwhile.
        Err(MountError::DeadMount)
            if !matches!(
                check_directory(directory),
                Err(MountError::DeadMount | MountError::Silent)
            ) =>
        {
            Ok(true)
        }
        taken => taken.map(|()| true),
    }
}

fn take_out_dead(directory: &Path) -> Result<(), MountError> {
    // The directory itself does not respond.
    let directory = path_unasked(directory).map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => MountError::DeadMount,
        _ => MountError::Directory(error),
    })?;
    let place = Place::of(&directory).map_err(|_| MountError::DeadMount)?;
    if !place
        .source()
        .is_some_and(|source| source.starts_with(SOURCE_PREFIX))
    {
        return Err(MountError::DeadMount);
    }
    let whereabouts = place.now(true).map_err(|_| MountError::DeadMount)?;
    match whereabouts.take_out() {
        None => Ok(()),
        Some(_) => Err(MountError::DeadMount),
    }
}

impl Mounted {
    /// Returns the kernel's read-ahead on this mount, in KiB: with 0 the kernel requests each page only when a program
    /// needs it. `None` if it is unknown.
    #[must_use]
    pub fn read_ahead_kib(&self) -> Option<u32> {
        self.read_ahead_kib
    }

    /// Returns the page cache of the mount.
    #[must_use]
    pub fn pages(&self) -> Arc<PageCache> {
        Arc::clone(&self.pages)
    }

    /// Unmounts, unless that was done already. Dropping does the same and ignores the result.
    ///
    /// Programs that run from the mount lose their pages that are not in memory. Waiting for these programs would let
    /// them decide when the mount ends.
    #[must_use]
    pub fn end(mut self) -> Ending {
        self.finish()
    }

    fn finish(&mut self) -> Ending {
        let Some(session) = self.session.take() else {
            return Ending::default();
        };
        self.source.set_pages(None);
        self.tasks.end();
        let left = session.end(|_| {});
        self.pages.close();
        if let Some(guard) = self.guard.take() {
            // Programs that still have files open get errors once this process ends, because the kernel then closes the
            // connection. A sleeping thread would delay that, so keep the guard where there may be one.
            if left.may_be_in_use {
                guard.leave();
            } else {
                guard.dismiss();
            }
        }
        left.ending(0)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Nothing is left to do after `end`.
        let _ = self.finish();
    }
}
