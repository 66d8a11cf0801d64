//! The files of a store, and how they are replaced so that a power cut leaves the old or the new one.

use super::StoreError;
use crate::regular;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The store format that this software writes and reads.
pub(crate) const FORMAT: u32 = 1;

/// The limit for files that are read whole, except manifests, in bytes.
const SMALL_FILE_BYTES_MAX: u64 = 64 << 10;

const FORMAT_HEAD: &str = "keel stream store, format ";

/// Returns the content of the file `format` of a store.
#[must_use]
pub fn format_line() -> String {
    format!("{FORMAT_HEAD}{FORMAT}")
}

/// The names of a store's files.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) folder: PathBuf,
}

/// Returns the note of a version number: decimal digits, and their checksum.
fn noted(version: u64) -> String {
    let digits = version.to_string();
    format!("{digits} {:08x}\n", crc32c::crc32c(digits.as_bytes()))
}

impl Layout {
    pub(crate) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_path_buf(),
        }
    }

    pub(crate) fn format(&self) -> PathBuf {
        self.folder.join("format")
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.folder.join("lock")
    }

    pub(crate) fn secret_key(&self) -> PathBuf {
        self.folder.join("publisher.key")
    }

    pub(crate) fn public_key(&self) -> PathBuf {
        self.folder.join("publisher.pub")
    }

    pub(crate) fn manifests(&self) -> PathBuf {
        self.folder.join("manifests")
    }

    pub(crate) fn manifest(&self, version: u64) -> PathBuf {
        self.manifests().join(format!("{version:020}"))
    }

    /// Returns the path of the note of the last published version number. That number is not reused even if its
    /// manifest is lost.
    pub(crate) fn newest(&self) -> PathBuf {
        self.folder.join("newest")
    }

    /// Returns that number. `Ok(None)` if there is no note, as in stores of older versions of Evenkeel.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::System`].
    pub(crate) fn published_last(&self) -> Result<Option<u64>, StoreError> {
        let path = self.newest();
        let bytes = match read_small(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes.map_err(|error| StoreError::system(&path, "cannot be read", error))?,
        };
        let parsed = || {
            let text = std::str::from_utf8(&bytes).ok()?;
            let (digits, _) = text.split_once(' ')?;
            let version = digits.parse().ok()?;
            (text == noted(version)).then_some(version)
        };
        let version = parsed().ok_or_else(|| StoreError::damaged(&path, "it is damaged"))?;
        Ok(Some(version))
    }

    /// Writes the note, unless it has this number or a higher one.
    pub(crate) fn note_published(&self, version: u64) -> Result<(), StoreError> {
        match self.published_last() {
            Ok(Some(noted)) if noted >= version => Ok(()),
            Err(error @ StoreError::System { .. }) => Err(error),
            _ => replace(&self.newest(), noted(version).as_bytes(), 0o644),
        }
    }

    pub(crate) fn packs(&self) -> PathBuf {
        self.folder.join("packs")
    }

    pub(crate) fn pack(&self, number: u32) -> PathBuf {
        self.packs().join(format!("{number:010}.pack"))
    }

    pub(crate) fn index(&self, number: u32) -> PathBuf {
        self.packs().join(format!("{number:010}.index"))
    }

    /// Checks that there is a store of a known format.
    pub(crate) fn check_format(&self) -> Result<(), StoreError> {
        let path = self.format();
        let text = match read_small(&path) {
            Ok(text) => text,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Err(StoreError::NotAStore {
                    path: self.folder.clone(),
                });
            }
            Err(error) => return Err(StoreError::system(&path, "cannot be read", error)),
        };
        let found = String::from_utf8_lossy(&text)
            .trim_end()
            .strip_prefix(FORMAT_HEAD)
            .and_then(|number| number.parse().ok());
        match found {
            Some(FORMAT) => Ok(()),
            Some(found) => Err(StoreError::Format {
                path: self.folder.clone(),
                found,
            }),
            // The other parts of a store are there.
            None if self.packs().is_dir() && self.manifests().is_dir() => {
                let what = format!("it does not say `{}`", format_line());
                Err(StoreError::damaged(&path, what))
            }
            None => Err(StoreError::NotAStore {
                path: self.folder.clone(),
            }),
        }
    }

    /// Creates a store, unless there is one already, and takes its lock.
    pub(crate) fn make(&self) -> Result<WriterLock, StoreError> {
        if self.format().exists() {
            self.check_format()?;
            return WriterLock::take(self);
        }
        let folder = &self.folder;
        fs::create_dir_all(folder)
            .map_err(|error| StoreError::system(folder, "cannot be made", error))?;
        let mut entries = fs::read_dir(folder)
            .map_err(|error| StoreError::system(folder, "cannot be read", error))?;
        // Allow what an interrupted creation has left: the format is written last.
        let is_ours = |name: &str| {
            ["packs", "manifests", "lock"].contains(&name) || name.ends_with(TEMPORARY)
        };
        let has_others = entries
            .any(|entry| !entry.is_ok_and(|entry| entry.file_name().to_str().is_some_and(is_ours)));
        // Another process may have made the store meanwhile. Checked before the lock, which would leave its file in a
        // folder that is no store.
        if has_others && !self.format().exists() {
            return Err(StoreError::NotAStore {
                path: folder.clone(),
            });
        }
        // From here on only one process makes the store: two would take each other's temporary file away.
        let lock = WriterLock::take(self)?;
        if self.format().exists() {
            self.check_format()?;
            return Ok(lock);
        }
        for part in [self.packs(), self.manifests()] {
            fs::create_dir_all(&part)
                .map_err(|error| StoreError::system(&part, "cannot be made", error))?;
        }
        let text = format!("{}\n", format_line());
        replace(&self.format(), text.as_bytes(), 0o644)?;
        Ok(lock)
    }

    /// Returns the published versions, ascending.
    pub(crate) fn versions(&self) -> Result<Vec<u64>, StoreError> {
        let mut versions = names(&self.manifests())?
            .iter()
            .filter(|name| name.len() == 20)
            .filter_map(|name| name.parse().ok())
            .collect::<Vec<u64>>();
        versions.sort_unstable();
        Ok(versions)
    }

    /// Returns the numbers of packs and of indexes, ascending.
    pub(crate) fn numbers(&self) -> Result<(Vec<u32>, Vec<u32>), StoreError> {
        let names = names(&self.packs())?;
        let of = |ending: &str| {
            let mut numbers: Vec<u32> = names
                .iter()
                .filter_map(|name| name.strip_suffix(ending))
                .filter(|number| number.len() == 10)
                .filter_map(|number| number.parse().ok())
                .collect();
            numbers.sort_unstable();
            numbers
        };
        Ok((of(".pack"), of(".index")))
    }
}

const TEMPORARY: &str = ".new";

fn names(folder: &Path) -> Result<Vec<String>, StoreError> {
    let failed = |error| StoreError::system(folder, "cannot be read", error);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
            names.push(name);
        }
    }
    Ok(names)
}

/// Reads a file that must be small.
pub(crate) fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    read_limited(path, SMALL_FILE_BYTES_MAX)
}

/// Reads a file. Fails if it is longer than `bytes_max`.
pub(crate) fn read_limited(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = regular::open(path)?;
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge));
    }
    Ok(bytes)
}

/// Creates or replaces a file, durably.
pub(crate) fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), StoreError> {
    let (mut file, new) = begin(path, mode)?;
    file.write_all(bytes).map_err(|error| new.failed(error))?;
    new.finish(&file)
}

/// A temporary file that will replace another one. It is deleted if this is dropped before: a partly written file is
/// useless, and on a full disk it would occupy space.
#[must_use]
pub(crate) struct New {
    /// Its temporary path; empty once the file has its final name.
    now: PathBuf,
    /// Its final path.
    path: PathBuf,
}

impl New {
    /// Returns the error of a failed write.
    pub(crate) fn failed(&self, error: io::Error) -> StoreError {
        StoreError::system(&self.now, "cannot be written", error)
    }

    /// Completes [`begin`]: makes the file durable, under its final name.
    pub(crate) fn finish(mut self, file: &File) -> Result<(), StoreError> {
        file.sync_all().map_err(|error| self.failed(error))?;
        fs::rename(&self.now, &self.path)
            .map_err(|error| StoreError::system(&self.path, "cannot be replaced", error))?;
        self.now = PathBuf::new();
        sync_folder(self.path.parent().unwrap_or(Path::new(".")))
    }
}

impl Drop for New {
    fn drop(&mut self) {
        if !self.now.as_os_str().is_empty() {
            fs::remove_file(&self.now).ok();
        }
    }
}

/// Opens a temporary file that will replace another one.
pub(crate) fn begin(path: &Path, mode: u32) -> Result<(File, New), StoreError> {
    let mut new = path.as_os_str().to_owned();
    new.push(TEMPORARY);
    let new = PathBuf::from(new);
    // A leftover of an interrupted writer: the lock of the store is held, so no other writer uses it.
    fs::remove_file(&new).ok();
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&new)
        .map_err(|error| StoreError::system(&new, "cannot be made", error))?;
    let path = path.to_path_buf();
    Ok((file, New { now: new, path }))
}

/// Makes the entries of a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), StoreError> {
    // A bare name is in the working directory.
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    regular::open_folder(folder)
        .and_then(|file| file.sync_all())
        .map_err(|error| StoreError::system(folder, "cannot be written", error))
}

/// The lock that each writer of a store holds.
pub(crate) struct WriterLock {
    _file: File,
}

impl WriterLock {
    pub(crate) fn take(layout: &Layout) -> Result<Self, StoreError> {
        let path = layout.lock();
        let mut options = File::options();
        let options = options.create(true).truncate(false).write(true).mode(0o644);
        let file = regular::open_with(options, &path)
            .map_err(|error| StoreError::system(&path, "cannot be opened", error))?;
        // SAFETY: the descriptor is open, and the call has no other argument.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(Self { _file: file });
        }
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::WouldBlock {
            Err(StoreError::Busy {
                path: layout.folder.clone(),
            })
        } else {
            Err(StoreError::system(&path, "cannot be locked", error))
        }
    }
}
