//! An open store shared by the connections of this process.

use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use base::block::{BlockDevice, DeviceError, FileDevice, FileDeviceOptions};
use base::error::Code;
use flash::{Error, OpenOptions, Store};

use crate::failure::Failure;
use crate::files::{Files, OPEN_FILES_MAX};
use crate::node::{Node, Opening};

/// The source of images.
pub trait Images: Send + Sync {
    /// Returns the canonical path of the image that a user calls `path`, so that two spellings refer to one image.
    ///
    /// # Errors
    /// The error of the operating system, for instance that there is no such file.
    fn locate(&self, path: &Path) -> std::io::Result<PathBuf>;

    /// Opens the device of the image at a located path, locked against other processes.
    ///
    /// # Errors
    /// [`DeviceError::InUse`] when another process has it open, [`DeviceError::Open`] for other errors.
    fn open(&self, path: &Path, read_only: bool) -> Result<Box<dyn BlockDevice>, DeviceError>;
}

/// Images that are files, block devices or loop devices of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileImages;

impl Images for FileImages {
    fn locate(&self, path: &Path) -> std::io::Result<PathBuf> {
        path.canonicalize()
    }

    fn open(&self, path: &Path, read_only: bool) -> Result<Box<dyn BlockDevice>, DeviceError> {
        let options = FileDeviceOptions {
            read_only,
            direct: true,
            exclusive: true,
            ..FileDeviceOptions::default()
        };
        Ok(Box::new(FileDevice::open(path, &options)?))
    }
}

/// A store that is open in this process.
pub(crate) struct Image {
    pub(crate) path: PathBuf,
    /// Identity of the store as 32 hexadecimal digits: the first part of full names.
    pub(crate) identity: String,
    pub(crate) name_bytes_max: usize,
    pub(crate) is_read_only: bool,
    /// `None` once the image is closed.
    inner: Mutex<Option<Files>>,
}

/// A guard of the mutex. A thread that panicked in the store has left it in an unknown state.
struct Access<'a>(MutexGuard<'a, Option<Files>>);

impl Access<'_> {
    fn inner(&mut self) -> Result<&mut Files, Error> {
        self.0.as_mut().ok_or(Error::Failed)
    }
}

impl Image {
    pub(crate) fn open(images: &dyn Images, path: &Path) -> Result<Self, Failure> {
        let mut is_read_only = false;
        let device = match images.open(path, false) {
            // A medium or a user without write access can still read.
            Err(error) if error.code() == Code::Denied => {
                is_read_only = true;
                images.open(path, true)
            }
            opened => opened,
        }
        .map_err(|error| Failure::of_device(&error, path))?;
        let options = OpenOptions {
            open_files_max: OPEN_FILES_MAX,
            read_only: is_read_only,
            ..OpenOptions::default()
        };
        let store = Store::open(device, &options)
            .map_err(|error| Failure::of_image(&error, &path.to_string_lossy()))?;
        let layout = store.layout();
        Ok(Self {
            path: path.to_path_buf(),
            identity: layout
                .uuid
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
            name_bytes_max: usize::from(layout.name_bytes_max),
            is_read_only,
            inner: Mutex::new(Some(Files::new(store))),
        })
    }

    fn access(&self) -> Result<Access<'_>, Error> {
        match self.inner.lock() {
            Ok(guard) => Ok(Access(guard)),
            Err(_) => Err(Error::Failed),
        }
    }

    /// Runs `call` on the open store.
    fn with<T>(&self, call: impl FnOnce(&mut Files) -> Result<T, Error>) -> Result<T, Error> {
        let mut access = self.access()?;
        call(access.inner()?)
    }

    /// Opens a file.
    pub(crate) fn open_file(&self, name: &str, how: Opening) -> Result<Arc<Node>, Error> {
        self.with(|inner| inner.open_file(name, how))
    }

    /// Closes a file. An error means that its waiting writes are not in the store.
    pub(crate) fn close_file(&self, node: &Arc<Node>) -> Result<(), Error> {
        self.with(|inner| inner.close_file(node))
    }

    /// Reads at `offset`. Returns how many bytes of the buffer the file fills. A file that was deleted is empty.
    pub(crate) fn read(
        &self,
        node: &Arc<Node>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, Error> {
        self.with(|inner| inner.read(node, offset, buffer))
    }

    /// Writes at `offset`; durable after [`sync`](Self::sync), or at the latest when the transaction ends.
    pub(crate) fn write(&self, node: &Arc<Node>, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.with(|inner| inner.write(node, offset, data))
    }

    /// Puts waiting writes into the store, as far as there is room, except for a transaction that has not ended.
    pub(crate) fn put_waiting(&self) -> Result<(), Error> {
        self.with(Files::put_waiting)
    }

    pub(crate) fn truncate(&self, node: &Arc<Node>, length: u64) -> Result<(), Error> {
        self.with(|inner| inner.truncate(node, length))
    }

    /// Makes all writes to the file durable; see [`Files::sync`] for writes that may still wait.
    pub(crate) fn sync(&self, node: &Arc<Node>) -> Result<(), Error> {
        self.with(|inner| inner.sync(node))
    }

    /// Returns the length in bytes; it is 0 for a deleted file.
    pub(crate) fn length(&self, node: &Arc<Node>) -> Result<u64, Error> {
        self.with(|inner| inner.length(node))
    }

    /// Returns whether the file was deleted while it is open.
    pub(crate) fn is_deleted(&self, node: &Arc<Node>) -> bool {
        self.with(|inner| Ok(inner.is_deleted(node)))
            .unwrap_or(false)
    }

    /// Returns the length of the file called `name`.
    pub(crate) fn length_by_name(&self, name: &str) -> Result<u64, Error> {
        self.with(|inner| inner.length_by_name(name))
    }

    pub(crate) fn delete(&self, name: &str) -> Result<(), Error> {
        self.with(|inner| inner.delete(name))
    }

    /// Closes the store; every later call fails. No committed data depends on its success.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        let failed = |error: &Error| Failure::of_image(error, &self.path.to_string_lossy());
        let inner = self.access().map_err(|error| failed(&error))?.0.take();
        match inner {
            Some(inner) => inner.close().map_err(|error| failed(&error)),
            None => Ok(()),
        }
    }
}

/// Returns the failure of a call that found the state of the locks unusable.
pub(crate) fn poisoned(code: c_int) -> Failure {
    Failure::new(
        code,
        Code::Io,
        "an earlier call has failed in the middle; close the connection",
    )
}

#[cfg(test)]
#[path = "image_tests.rs"]
mod tests;
