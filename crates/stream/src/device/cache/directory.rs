//! A directory as the storage of a cache.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use base::error::Code;

use super::format::parse_log_name;
use super::storage::{Storage, StorageError};
use crate::device::CacheError;
use crate::sync::locked;

/// The maximum number of files that are kept open.
const OPEN_FILES_MAX: usize = 32;

/// Logs in a directory, which one process holds at a time. Any other file in the directory is left alone.
pub struct DirectoryStorage {
    path: PathBuf,
    /// Holds the lock as well.
    directory: File,
    identity: (u64, u64),
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    files: HashMap<String, Arc<File>>,
    /// Whether a file was created or deleted since the directory was synced.
    names_changed: bool,
}

impl DirectoryStorage {
    /// Locks a directory for this process, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`CacheError::Refused`]: another process has it. [`CacheError::Io`]: it cannot be created or read.
    pub fn open(path: &Path) -> Result<Self, CacheError> {
        let io = |what: &str, source| CacheError::Io {
            what: format!("{what} {}", path.display()),
            source,
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|error| io("making the cache", error))?;
        let directory = File::open(path).map_err(|error| io("opening the cache", error))?;
        let metadata = directory
            .metadata()
            .map_err(|error| io("opening the cache", error))?;
        // SAFETY: the descriptor is open, and the call touches no memory.
        if unsafe { libc::flock(directory.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let error = std::io::Error::last_os_error();
            return Err(match error.kind() {
                ErrorKind::WouldBlock => CacheError::Refused(format!(
                    "another process has the cache {}; give each mount its own",
                    path.display()
                )),
                _ => io("locking the cache", error),
            });
        }
        Ok(Self {
            path: path.to_owned(),
            directory,
            identity: identity(&metadata),
            open: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        locked(&self.open)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns everything in the directory that has the name of a log.
    fn logs(&self) -> Result<Vec<(String, Metadata)>, StorageError> {
        let mut logs = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(|error| failed(&error))? {
            let entry = entry.map_err(|error| failed(&error))?;
            let name = entry.file_name();
            let Some(name) = OsStr::to_str(&name).filter(|name| parse_log_name(name).is_some())
            else {
                continue;
            };
            if let Ok(metadata) = entry.metadata() {
                logs.push((name.to_owned(), metadata));
            }
        }
        Ok(logs)
    }

    fn file(&self, name: &str) -> Result<Arc<File>, StorageError> {
        let mut open = self.lock();
        if let Some(file) = open.files.get(name) {
            return Ok(Arc::clone(file));
        }
        let open_as = |is_written: bool| {
            File::options()
                .read(true)
                .append(is_written)
                .custom_flags(libc::O_NOFOLLOW)
                .open(self.path(name))
        };
        let file = open_as(true)
            .or_else(|error| match error.kind() {
                ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => open_as(false),
                _ => Err(error),
            })
            .map_err(|error| match error.raw_os_error() {
                // A link or a directory lies in its place.
                Some(libc::ELOOP | libc::EISDIR) => StorageError::NotFound,
                _ => failed(&error),
            })?;
        let file = Arc::new(file);
        open.keep(name, &file);
        Ok(file)
    }
}

impl Open {
    fn keep(&mut self, name: &str, file: &Arc<File>) {
        if self.files.len() >= OPEN_FILES_MAX {
            self.files.clear();
        }
        self.files.insert(name.to_owned(), Arc::clone(file));
    }
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn failed(error: &std::io::Error) -> StorageError {
    match error.kind() {
        ErrorKind::NotFound => StorageError::NotFound,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StorageError::Full,
        // The file has become shorter: the bytes are lost.
        ErrorKind::UnexpectedEof => StorageError::Damaged,
        _ => StorageError::Failed {
            code: Code::Io,
            message: error.to_string(),
        },
    }
}

impl Storage for DirectoryStorage {
    fn list(&self) -> Result<Vec<(String, u64)>, StorageError> {
        let logs = self.logs()?.into_iter();
        let files = logs.filter(|(_, metadata)| metadata.is_file());
        Ok(files
            .map(|(name, metadata)| (name, metadata.len()))
            .collect())
    }

    fn list_irregular(&self) -> Vec<String> {
        let logs = self.logs().unwrap_or_default().into_iter();
        let others = logs.filter(|(_, metadata)| !metadata.is_file());
        others.map(|(name, _)| name).collect()
    }

    fn create(&self, name: &str) -> Result<(), StorageError> {
        self.check_is_there()?;
        match fs::remove_file(self.path(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(&error)),
            _ => {}
        }
        let file = File::options()
            .read(true)
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(self.path(name))
            .map_err(|error| failed(&error))?;
        let mut open = self.lock();
        open.names_changed = true;
        open.keep(name, &Arc::new(file));
        Ok(())
    }

    fn append(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError> {
        let file = self.file(name)?;
        (&*file)
            .write_all(bytes)
            .map_err(|error| match error.raw_os_error() {
                // The file was opened read-only.
                Some(libc::EBADF) => StorageError::Failed {
                    code: Code::Denied,
                    message: "it cannot be written to".to_owned(),
                },
                _ => failed(&error),
            })
    }

    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        let file = self.file(name)?;
        file.read_exact_at(into, offset)
            .map_err(|error| failed(&error))
    }

    fn length(&self, name: &str) -> Result<u64, StorageError> {
        let there = fs::symlink_metadata(self.path(name));
        let mut open = self.lock();
        let is_same = match (&there, open.files.get(name)) {
            (Ok(there), Some(file)) => file
                .metadata()
                .is_ok_and(|held| identity(&held) == identity(there)),
            _ => false,
        };
        if !is_same {
            open.files.remove(name);
        }
        match there {
            Ok(there) if there.is_file() => Ok(there.len()),
            Ok(_) => Err(StorageError::NotFound),
            Err(error) => Err(failed(&error)),
        }
    }

    fn delete(&self, name: &str) -> Result<(), StorageError> {
        {
            let mut open = self.lock();
            open.files.remove(name);
            open.names_changed = true;
        }
        fs::remove_file(self.path(name)).map_err(|error| failed(&error))
    }

    fn sync(&self, name: &str) -> Result<(), StorageError> {
        let file = self.file(name)?;
        file.sync_data().map_err(|error| failed(&error))?;
        if std::mem::take(&mut self.lock().names_changed) {
            let synced = self.directory.sync_all();
            if let Err(error) = synced {
                self.lock().names_changed = true;
                return Err(failed(&error));
            }
        }
        Ok(())
    }

    fn check_is_there(&self) -> Result<(), StorageError> {
        let message = match fs::metadata(&self.path) {
            Ok(metadata) if identity(&metadata) == self.identity => return Ok(()),
            Ok(_) => "the directory was replaced by another one",
            Err(error) if error.kind() == ErrorKind::NotFound => "the directory was removed",
            Err(error) => return Err(failed(&error)),
        };
        Err(StorageError::Failed {
            code: Code::Stale,
            message: message.to_owned(),
        })
    }

    fn advise(&self, name: &str, offset: u64, bytes: u64) {
        let Ok(file) = self.file(name) else { return };
        let (offset, bytes) = (libc::off_t::try_from(offset), libc::off_t::try_from(bytes));
        let (Ok(offset), Ok(bytes)) = (offset, bytes) else {
            return;
        };
        // SAFETY: the descriptor is open, and the call touches no memory. Whether the advice is taken does not matter.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, bytes, libc::POSIX_FADV_WILLNEED) };
    }
}
