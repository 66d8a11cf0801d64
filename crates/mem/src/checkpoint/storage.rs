//! The interface to the place where checkpoints are kept: files that only grow.

use std::collections::BTreeMap;

use base::error::Code;

/// Why a storage failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// No file has this name.
    #[error("no such file")]
    NotFound,
    /// No room; the existing content stays readable.
    #[error("full; make it larger, or delete something")]
    Full,
    /// Bytes of the file cannot be read; others can.
    #[error("damaged")]
    Damaged,
    /// The storage or its device failed.
    #[error("{message}")]
    Failed {
        /// The code of the underlying error.
        code: Code,
        /// What the underlying error says.
        message: String,
    },
}

impl StorageError {
    /// The project-wide code of this error.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::NotFound => Code::NotFound,
            Self::Full => Code::Full,
            Self::Damaged => Code::Corrupt,
            Self::Failed { code, .. } => *code,
        }
    }
}

/// Named files that only grow. A power cut may lose the end of what was appended to a file since the last
/// [`sync`](Self::sync), but no other bytes. A file created since then may be gone, and a file deleted since then may
/// exist again.
pub trait Storage {
    /// Visits the names of all files, with their length in bytes.
    ///
    /// # Errors
    /// [`StorageError::Failed`]; damaged files are left out.
    fn list(&mut self, visit: &mut dyn FnMut(&str, u64)) -> Result<(), StorageError>;

    /// Makes an empty file; replaces an existing one of that name.
    ///
    /// # Errors
    /// [`StorageError::Full`], [`StorageError::Failed`].
    fn create(&mut self, name: &str) -> Result<(), StorageError>;

    /// Appends bytes to a file.
    ///
    /// # Errors
    /// [`StorageError::Full`], [`StorageError::NotFound`], [`StorageError::Failed`]; a part may then have been added.
    fn append(&mut self, name: &str, data: &[u8]) -> Result<(), StorageError>;

    /// Makes all earlier changes durable.
    ///
    /// # Errors
    /// [`StorageError::Failed`].
    fn sync(&mut self) -> Result<(), StorageError>;

    /// Fills the buffer from offset `offset` of the file on.
    ///
    /// # Errors
    /// [`StorageError::Damaged`], also when the file ends too early; [`StorageError::NotFound`],
    /// [`StorageError::Failed`].
    fn read(&mut self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError>;

    /// Deletes a file.
    ///
    /// # Errors
    /// [`StorageError::NotFound`], [`StorageError::Failed`].
    fn delete(&mut self, name: &str) -> Result<(), StorageError>;
}

/// The moment of a power cut in a [`MemoryStorage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The number of changing calls that still succeed.
    pub after_calls: u64,
    /// The part of the bytes appended since the last sync that stays, in 256ths.
    pub kept_256ths: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct MemoryFile {
    bytes: Vec<u8>,
    durable: usize,
}

/// A storage in memory, for tests. It can fill up and lose power.
///
/// **Fault model.** A power cut happens before a call that changes something. Of each file, the synced bytes stay, and
/// a prefix of the bytes appended since. Creating and deleting a file is immediately durable. After the cut every call
/// fails until [`restart`](Self::restart).
#[derive(Clone, Debug)]
pub struct MemoryStorage {
    files: BTreeMap<String, MemoryFile>,
    capacity_bytes: u64,
    cut: Option<Cut>,
    is_dead: bool,
    changes: u64,
}

impl Default for MemoryStorage {
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}

impl MemoryStorage {
    /// An empty storage with room for `capacity_bytes` bytes.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            files: BTreeMap::new(),
            capacity_bytes,
            cut: None,
            is_dead: false,
            changes: 0,
        }
    }

    /// Schedules a power cut.
    pub fn set_cut(&mut self, cut: Cut) {
        self.cut = Some(cut);
    }

    /// Restores the power.
    pub fn restart(&mut self) {
        self.cut = None;
        self.is_dead = false;
    }

    /// The number of changing calls so far.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The bytes of a file, to damage them.
    pub fn bytes_mut(&mut self, name: &str) -> Option<&mut Vec<u8>> {
        self.files.get_mut(name).map(|file| &mut file.bytes)
    }

    /// Bytes of all files, in total.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.files
            .values()
            .map(|file| file.bytes.len() as u64)
            .sum()
    }

    fn begin_change(&mut self) -> Result<(), StorageError> {
        self.begin()?;
        if let Some(cut) = self.cut {
            if cut.after_calls == 0 {
                for file in self.files.values_mut() {
                    let since = (file.bytes.len() - file.durable) as u64;
                    let kept = file.durable + (since * cut.kept_256ths / 256) as usize;
                    file.bytes.truncate(kept);
                    file.durable = kept;
                }
                self.is_dead = true;
                return self.begin();
            }
            self.set_cut(Cut {
                after_calls: cut.after_calls - 1,
                ..cut
            });
        }
        self.changes += 1;
        Ok(())
    }

    fn begin(&self) -> Result<(), StorageError> {
        if self.is_dead {
            return Err(StorageError::Failed {
                code: Code::Io,
                message: "the power is gone".to_owned(),
            });
        }
        Ok(())
    }
}

impl Storage for MemoryStorage {
    fn list(&mut self, visit: &mut dyn FnMut(&str, u64)) -> Result<(), StorageError> {
        self.begin()?;
        for (name, file) in &self.files {
            visit(name, file.bytes.len() as u64);
        }
        Ok(())
    }

    fn create(&mut self, name: &str) -> Result<(), StorageError> {
        self.begin_change()?;
        self.files.insert(name.to_owned(), MemoryFile::default());
        Ok(())
    }

    fn append(&mut self, name: &str, data: &[u8]) -> Result<(), StorageError> {
        self.begin_change()?;
        if self.used_bytes() + data.len() as u64 > self.capacity_bytes {
            return Err(StorageError::Full);
        }
        let file = self.files.get_mut(name).ok_or(StorageError::NotFound)?;
        file.bytes.extend_from_slice(data);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        self.begin_change()?;
        for file in self.files.values_mut() {
            file.durable = file.bytes.len();
        }
        Ok(())
    }

    fn read(&mut self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        self.begin()?;
        let file = self.files.get(name).ok_or(StorageError::NotFound)?;
        let from = usize::try_from(offset).map_err(|_| StorageError::Damaged)?;
        let bytes = file
            .bytes
            .get(from..from.saturating_add(into.len()))
            .ok_or(StorageError::Damaged)?;
        into.copy_from_slice(bytes);
        Ok(())
    }

    fn delete(&mut self, name: &str) -> Result<(), StorageError> {
        self.begin_change()?;
        match self.files.remove(name) {
            Some(_) => Ok(()),
            None => Err(StorageError::NotFound),
        }
    }
}
