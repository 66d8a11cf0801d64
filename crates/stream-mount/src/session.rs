//! Mounting, and ending a mount in order.

use std::io::{self, ErrorKind};
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

/// Threads that answer the kernel. They never wait, so more than processors are of no use.
const THREADS_MAX: usize = 4;

/// What the source of each mount begins with, in the list of mounts.
const SOURCE_PREFIX: &str = "stream:";

/// How to mount.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// What the list of mounts shows as the source, behind `stream:`: where it comes from.
    pub source: String,
    /// Let other users in; permission bits then decide.
    pub allows_other_users: bool,
    /// The paths in the tree that appear, each with all that is in it and the directories that lead to it. Empty: all.
    pub redirect: Vec<PathBuf>,
    /// What the kernel may read ahead of programs, KiB, for comparisons: 0 has each page asked for by who needs it.
    pub read_ahead_kib: u32,
}

/// A mounted tree.
pub struct Mounted {
    source: Arc<dyn Source>,
    tasks: Arc<Tasks>,
    pages: Arc<PageCache>,
    /// None once it has been unmounted.
    session: Option<Session>,
    guard: Option<Guard>,
    read_ahead_kib: Option<u32>,
}

/// Shows a tree on an empty directory; when this returns, programs can use it.
///
/// `guard` has been started before anything else, while the process was small. `on_end` runs once on a thread of the
/// mount when nobody answers the kernel any more: it has been unmounted by somebody, or could not be made.
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
    let failed = |error: io::Error| MountError::Refused(error.to_string());
    let view = View::new(source.manifest(), &options.redirect)
        .map_err(|path| MountError::Refused(format!("{} is not in the tree", path.display())))?;
    let view = Arc::new(view);
    let tasks = Arc::new(Tasks::new(Arc::clone(&source), Arc::clone(&view)));
    let loaders = Arc::new(Loaders::default());
    let pages = Arc::new(PageCache::new(Arc::clone(&view), Arc::clone(&loaders)));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let settings = Settings {
        source: &format!("{SOURCE_PREFIX}{}", options.source),
        is_read_only: true,
        allows_other_users: options.allows_other_users,
        threads: threads.clamp(2, THREADS_MAX),
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
    // From here on an error unmounts, as `mounted` is dropped.
    let file_system = FileSystem::at(&directory).map_err(failed)?;
    if let Some(mut guard) = guard {
        guard.tell(&directory, file_system).map_err(failed)?;
        mounted.guard = Some(guard);
    }
    mounted.read_ahead_kib = file_system.read_ahead_kib();
    mounted.tasks.start(file_system).map_err(failed)?;
    mounted.pages.start(&directory, file_system, notifier);
    mounted.source.set_pages(Some(Arc::clone(&mounted.pages)));
    Ok(mounted)
}

/// Takes away the mount of a process that has ended, if there is one of a tree on this directory. Whether it has.
///
/// # Errors
/// It could not be taken away.
pub fn clear_dead(directory: &Path) -> Result<bool, MountError> {
    match check_directory(directory) {
        Err(MountError::DeadMount) => {}
        Err(error @ MountError::Silent) => return Err(error),
        _ => return Ok(false),
    }
    // The directory itself can be asked nothing.
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
        None => Ok(true),
        Some(_) => Err(MountError::DeadMount),
    }
}

impl Mounted {
    /// What the kernel reads ahead on this mount, KiB: 0, so that each page is asked for by who needs it. None: it
    /// cannot be known.
    #[must_use]
    pub fn read_ahead_kib(&self) -> Option<u32> {
        self.read_ahead_kib
    }

    /// The page cache behind the mount.
    #[must_use]
    pub fn pages(&self) -> Arc<PageCache> {
        Arc::clone(&self.pages)
    }

    /// Unmounts, if nobody has done it. Dropping does the same and keeps quiet.
    ///
    /// Programs that run from the mount lose what of them is not in memory: waiting for these would mean that they
    /// decide when this ends.
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
            // Programs that still have files of it open are answered with errors from this process's end on: then the
            // kernel sees that nobody is there, unless a thread sleeps; so the guard stays where one may.
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
