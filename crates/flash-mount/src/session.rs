//! Mounting a store, and ending a mount properly.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::block::BlockDevice;
use base::clock::Clock;
use flash::{Statistics, Store};
use fuse::{Ending, Session, Settings};

use crate::adapter::Adapter;
use crate::deleted::Leftovers;
use crate::files::{Files, Presentation};
use crate::shared::{Shared, Worker};

/// Options for mounting.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The source shown in the list of mounts: the image.
    pub source: String,
    /// Refuse changes; the store must be open read-only, too.
    pub is_read_only: bool,
    /// Give other users access; permission bits then decide.
    pub allows_other_users: bool,
    /// Make every write durable before it returns, as if each file were open with `O_SYNC`.
    pub is_always_durable: bool,
    /// Files that programs may hold open at one time, at most [`crate::OPEN_FILES_MAX`]. The store must have
    /// been opened with room for one more.
    pub open_files_max: usize,
    /// Attributes of the files.
    pub presentation: Presentation,
}

/// The reason why a store is not mounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// An error of the directory, FUSE or the kernel.
    #[error(transparent)]
    Mount(#[from] base::mount::MountError),
    /// The store failed before the mount was ready.
    #[error(transparent)]
    Store(#[from] flash::Error),
}

/// A mounted store.
pub struct Mounted<D: BlockDevice> {
    files: Arc<Shared<D>>,
    /// `None` once it has been unmounted.
    session: Option<Session>,
    leftovers: Leftovers,
}

/// Mounts a store on an empty directory. When this returns, programs can use it.
///
/// `on_end` runs once on a thread of the mount when the kernel's requests are no longer answered. Either the mount was
/// unmounted from outside, or it could not be made. In both cases the store stays open until [`Mounted::end`].
///
/// # Errors
/// [`MountError`]; the store is then closed.
pub fn mount<D: BlockDevice + Send + 'static>(
    store: Store<D>,
    directory: &Path,
    options: &MountOptions,
    clock: Box<dyn Clock>,
    on_end: impl FnOnce() + Send + Sync + 'static,
) -> Result<Mounted<D>, MountError> {
    let mut files = Files::new(
        store,
        clock,
        options.presentation,
        options.open_files_max,
        options.is_always_durable,
    );
    let prepared = prepare(&mut files, directory, options);
    let files = Shared::new(files);
    let mounted = prepared.and_then(|(directory, leftovers)| {
        let worker = Worker::start().map_err(fuse::failed)?;
        let settings = Settings {
            source: &options.source,
            is_read_only: options.is_read_only,
            allows_other_users: options.allows_other_users,
            // All calls to the store are made under one lock.
            threads: 1,
        };
        let session = fuse::mount(&directory, &settings, on_end, |notice| Adapter {
            _notice: notice,
            files: Arc::clone(&files),
            worker,
        })?;
        Ok(Mounted {
            files: Arc::clone(&files),
            session: Some(session),
            leftovers,
        })
    });
    if mounted.is_err()
        && let Some(files) = files.lock().take()
    {
        // Return the first error.
        files.end().ok();
    }
    mounted
}

/// Prepares for mounting. Returns the directory's path without symbolic links.
fn prepare<D: BlockDevice>(
    files: &mut Files<D>,
    directory: &Path,
    options: &MountOptions,
) -> Result<(PathBuf, Leftovers), MountError> {
    let directory = fuse::prepare(directory)?;
    if options.is_read_only {
        return Ok((directory, Leftovers::default()));
    }
    Ok((directory, files.clean_up()?))
}

impl<D: BlockDevice> Mounted<D> {
    /// Returns statistics of the store; `None` once the mount has ended.
    #[must_use]
    pub fn statistics(&self) -> Option<Statistics> {
        self.files.lock().as_ref().map(Files::statistics)
    }

    /// Returns the remains that an earlier mount had left.
    #[must_use]
    pub fn leftovers(&self) -> Leftovers {
        self.leftovers
    }

    /// Makes all writes durable and waits for that. The caller must call this periodically, because the kernel does not
    /// pass `sync` on to a FUSE file system. Programs that never call `fsync` rely on it.
    pub fn sync_if_unsynced(&self) {
        if let Some(files) = self.files.lock().as_mut() {
            files.sync_if_unsynced();
        }
    }

    /// Returns the reason why writes fail since a device write failed.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.files
            .lock()
            .as_ref()
            .and_then(|files| files.failure().map(str::to_owned))
    }

    /// Unmounts unless already unmounted, makes everything durable and closes the store. Dropping does the same and
    /// ignores errors.
    ///
    /// Programs that have files open lose them: if this waited for them, they would decide when the mount ends.
    ///
    /// # Errors
    /// [`flash::Error`] when the store could not be closed properly; synced data is still safe.
    pub fn end(mut self) -> Result<Ending, flash::Error> {
        self.finish()
    }

    fn finish(&mut self) -> Result<Ending, flash::Error> {
        let left = self
            .session
            .take()
            .map(|session| session.end(|directory| self.write_back(directory)));
        let mut files_open = 0;
        let files = self.files.lock().take();
        if let Some(files) = files {
            if left.as_ref().is_some_and(|left| left.may_be_in_use) {
                files_open = files.open_names().count();
            }
            files.end()?;
        }
        Ok(left.map_or_else(Ending::default, |left| left.ending(files_open)))
    }

    /// Waits until the kernel has passed on the changes that programs made through memory maps. A failure shows in the
    /// writes themselves.
    fn write_back(&self, directory: &Path) {
        let names: Vec<String> = match self.files.lock().as_ref() {
            Some(files) => files.open_names().flatten().map(str::to_owned).collect(),
            None => return,
        };
        for name in names {
            let opened = OpenOptions::new().read(true).open(directory.join(name));
            opened.and_then(|file| file.sync_all()).ok();
        }
    }
}

impl<D: BlockDevice> Drop for Mounted<D> {
    fn drop(&mut self) {
        // After `end` nothing is left to do.
        self.finish().ok();
    }
}
