//! Mounting, and ending a mount in order.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use base::mount::MountError as PlaceError;
use fuse::{Ending, Session, Settings};
use mem::{Attachment, Swept};

use crate::adapter::Adapter;
use crate::locks::Waiters;
use crate::openings::locked;
use crate::view::View;

/// Interval between sweeps for dead processes.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The memory is locked once every this many sweeps.
const SWEEPS_PER_LOCK: u32 = 10;

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What the list of mounts shows as the source: the region's file.
    pub source: String,
    /// Give other users access; permission bits then decide.
    pub allows_other_users: bool,
}

/// The reason why a region cannot be mounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// An error of the directory, FUSE or the kernel.
    #[error(transparent)]
    Mount(#[from] PlaceError),
    /// The region failed before the mount was ready.
    #[error(transparent)]
    Region(#[from] mem::Error),
}

/// A mounted region.
pub struct Mounted {
    view: Arc<View>,
    /// `None` after the unmount.
    session: Option<Session>,
    leftovers: Swept,
    sweeper: Option<Sweeper>,
}

/// Shows a region on an empty directory. On return, programs can use it. A region that is attached for reading is shown
/// read-only.
///
/// `on_end` runs once on a thread of the mount when no thread answers the kernel any more. Either the mount was
/// unmounted, or it could not be made.
///
/// # Errors
/// [`MountError`].
pub fn mount(
    attachment: Attachment,
    directory: &Path,
    options: &MountOptions,
    on_end: impl FnOnce() + Send + Sync + 'static,
) -> Result<Mounted, MountError> {
    let directory = fuse::prepare(directory)?;
    let view = Arc::new(View::new(attachment));
    let leftovers = view.sweep()?;
    let waiters = if view.is_writable() {
        Some(Waiters::start(Arc::clone(&view.locks)).map_err(fuse::failed)?)
    } else {
        None
    };
    let settings = Settings {
        source: &options.source,
        is_read_only: !view.is_writable(),
        allows_other_users: options.allows_other_users,
        threads: fuse::threads(),
    };
    let session = fuse::mount(&directory, &settings, on_end, |notice| Adapter {
        _notice: notice,
        view: Arc::clone(&view),
        waiters,
    })?;
    let mut mounted = Mounted {
        view: Arc::clone(&view),
        session: Some(session),
        leftovers,
        sweeper: None,
    };
    if view.is_writable() {
        mounted.sweeper = Some(Sweeper::start(view).map_err(fuse::failed)?);
    }
    Ok(mounted)
}

impl Mounted {
    /// What dead processes had left before the mount.
    #[must_use]
    pub fn leftovers(&self) -> Swept {
        self.leftovers
    }

    /// The current failure: of the sweep for dead processes, or of keeping the region out of swap.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let sweeper = self.sweeper.as_ref()?;
        locked(&sweeper.shared.state).failure.clone()
    }

    /// Unmounts, if it is still mounted, and closes what programs had open. A drop does the same and returns nothing.
    ///
    /// Programs that have files open lose them: otherwise these programs would decide when the mount ends.
    #[must_use]
    pub fn end(mut self) -> Ending {
        self.finish()
    }

    fn finish(&mut self) -> Ending {
        drop(self.sweeper.take());
        let Some(session) = self.session.take() else {
            return Ending::default();
        };
        session.end(|_| {}).ending(self.view.close_all())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // After `end`, this does nothing.
        let _ = self.finish();
    }
}

#[derive(Default)]
struct SweepState {
    is_over: bool,
    failure: Option<String>,
}

#[derive(Default)]
struct SweepShared {
    state: Mutex<SweepState>,
    changed: Condvar,
}

/// The thread that sweeps for dead processes, until this value is dropped.
struct Sweeper {
    shared: Arc<SweepShared>,
    thread: Option<JoinHandle<()>>,
}

impl Sweeper {
    fn start(view: Arc<View>) -> io::Result<Self> {
        let shared = Arc::new(SweepShared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("mem-mount-sweep".to_owned())
            .spawn(move || sweep_now_and_then(&view, &theirs))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        locked(&self.shared.state).is_over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

fn sweep_now_and_then(view: &View, shared: &SweepShared) {
    let mut state = locked(&shared.state);
    let mut sweeps = 0_u32;
    loop {
        let waited = shared
            .changed
            .wait_timeout_while(state, SWEEP_INTERVAL, |state| !state.is_over);
        state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        if state.is_over {
            break;
        }
        drop(state);
        let mut failure = view
            .sweep()
            .err()
            .map(|error| format!("what dead processes leave cannot be cleared up: {error}"));
        // Memory that files got since the last lock is not locked yet.
        if sweeps.is_multiple_of(SWEEPS_PER_LOCK)
            && let Err(error) = view.keep_resident()
        {
            failure.get_or_insert(format!("it may be swapped out: {error}"));
        }
        sweeps += 1;
        state = locked(&shared.state);
        state.failure = failure;
    }
    drop(state);
    view.thread_ends();
}
