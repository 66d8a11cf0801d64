//! Learned actions on the disk: one file for each tenant, always replaced as a whole.

use super::system;
use crate::predict::none::NonePredictor;
use crate::predict::paper::{PaperPredictor, PaperSettings};
use crate::predict::task::{TaskPredictor, TaskSettings};
use crate::predict::{Catalogue, LoadError, Mode, Predictor};
use crate::regular;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The maximum size of a file of learned actions, in bytes.
pub const ACTIONS_BYTES_MAX: u64 = crate::predict::FILE_BYTES_MAX as u64;

/// The maximum length of a tenant's name, in characters.
const TENANT_CHARACTERS_MAX: usize = 64;

/// The ending of the names of tenants' files.
const ENDING: &str = ".actions";

/// The lock file, in the folder of learned actions of all modes.
const LOCK_FILE: &str = "lock";

/// Why learned actions could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LearnedError {
    /// The operating system refused.
    #[error("{}: {}", path.display(), base::error::io_text(.source))]
    System {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is damaged.
    #[error("{}: {source}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage.
        source: LoadError,
    },
    /// A running server that learns would overwrite the change.
    #[error("{}: a server learns with this store", .0.display())]
    Busy(PathBuf),
}

impl LearnedError {
    /// Returns the error code that this error maps to.
    #[must_use]
    pub fn code(&self) -> base::error::Code {
        match self {
            Self::System { source, .. } => base::error::Code::from_io(source),
            Self::Damaged { .. } => base::error::Code::Corrupt,
            Self::Busy(_) => base::error::Code::Busy,
        }
    }

    /// Returns what the operator can do about it, if the error says enough to know that.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Busy(_) => Some("end the other one and start this one anew"),
            Self::Damaged { .. } => None,
            Self::System { source, .. } => match source.raw_os_error()? {
                libc::EACCES | libc::EPERM => Some(
                    "let this user write the folder actions of the store, or run as a user with write access",
                ),
                libc::EROFS => Some("put the store on a disk that can be written"),
                libc::ENOSPC | libc::EDQUOT => Some("free some space"),
                libc::EFBIG => Some("raise the limit on the size of files"),
                _ => None,
            },
        }
    }

    /// Returns the error with its remedy, in one line.
    pub(super) fn with_remedy(&self) -> String {
        match self.remedy() {
            Some(remedy) => format!("{self}; {remedy}"),
            None => self.to_string(),
        }
    }

    fn system(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::System { path, source }
    }
}

/// Prevents other processes from changing the learned actions of a store until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, for a server that learns and for a process that changes learned actions on the disk. Such a
    /// server has them in memory and overwrites the files.
    ///
    /// # Errors
    /// [`LearnedError::Busy`] if a server has them in memory, or another process changes them. Also if the lock file
    /// cannot be created, for example in a read-only store.
    pub fn take(store: &Path) -> Result<Self, LearnedError> {
        let folder = store.join("actions");
        fs::create_dir_all(&folder).map_err(LearnedError::system(&folder))?;
        let path = folder.join(LOCK_FILE);
        let mut options = File::options();
        let options = options.create(true).truncate(false).write(true);
        let file = regular::open_with(options, &path).map_err(LearnedError::system(&path))?;
        match system::lock(&file) {
            Ok(()) => Ok(Self { _file: file }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(LearnedError::Busy(store.to_path_buf()))
            }
            Err(error) => Err(LearnedError::system(&path)(error)),
        }
    }
}

/// Returns a predictor that has learned nothing yet. `seg_max` is the number of blocks in a segment in the mode
/// `paper`.
#[must_use]
pub fn predictor(mode: Mode, seg_max: u32) -> Box<dyn Predictor> {
    match mode {
        Mode::Task => Box::new(TaskPredictor::new(TaskSettings::default())),
        Mode::Paper => Box::new(PaperPredictor::new(PaperSettings {
            seg_max,
            ..PaperSettings::default()
        })),
        Mode::None => Box::new(NonePredictor),
    }
}

/// Returns whether a name is valid for a tenant. The tenant's file has this name.
#[must_use]
pub fn is_tenant(name: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=TENANT_CHARACTERS_MAX).contains(&name.len())
        && !name.starts_with('.')
        && name.bytes().all(is_good)
}

/// Returns the folder of learned actions of a mode in a store. Each mode has its own, because each learns different
/// things.
#[must_use]
pub fn folder(store: &Path, mode: Mode) -> PathBuf {
    let folder = store.join("actions");
    match mode {
        Mode::Task | Mode::None => folder,
        Mode::Paper => folder.join("paper"),
    }
}

/// Returns the path of a tenant's file.
#[must_use]
pub fn file(store: &Path, mode: Mode, tenant: &str) -> PathBuf {
    folder(store, mode).join(format!("{tenant}{ENDING}"))
}

/// Returns the tenants with learned actions, sorted.
///
/// # Errors
/// The folder exists and cannot be read.
pub fn tenants(store: &Path, mode: Mode) -> Result<Vec<String>, LearnedError> {
    let folder = folder(store, mode);
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(LearnedError::system(&folder)(error)),
    };
    let mut tenants = Vec::new();
    for entry in entries {
        let name = entry.map_err(LearnedError::system(&folder))?.file_name();
        let tenant = name.to_str().and_then(|name| name.strip_suffix(ENDING));
        tenants.extend(tenant.filter(|name| is_tenant(name)).map(str::to_owned));
    }
    tenants.sort();
    Ok(tenants)
}

/// Loads the learned actions of a tenant. Returns whether there were any.
///
/// # Errors
/// The file cannot be read or is damaged. The predictor is then unchanged.
pub fn load(
    path: &Path,
    predictor: &mut dyn Predictor,
    names: &dyn Catalogue,
) -> Result<bool, LearnedError> {
    let file = match regular::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(LearnedError::system(path)(error)),
    };
    let mut bytes = Vec::new();
    file.take(ACTIONS_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(LearnedError::system(path))?;
    let damaged = |source| LearnedError::Damaged {
        path: path.to_path_buf(),
        source,
    };
    if bytes.len() as u64 > ACTIONS_BYTES_MAX {
        return Err(damaged(LoadError("longer than it may be".into())));
    }
    predictor.load(&bytes, names).map_err(damaged)?;
    Ok(true)
}

/// Renames a damaged file, so that it can be examined and is not overwritten. Returns its new name.
///
/// # Errors
/// It could not be renamed.
pub fn set_aside(path: &Path) -> Result<PathBuf, LearnedError> {
    let mut number = 0;
    let aside = loop {
        let aside = path.with_extension(format!("damaged-{number}"));
        if !aside.exists() {
            break aside;
        }
        number += 1;
    };
    fs::rename(path, &aside).map_err(LearnedError::system(path))?;
    Ok(aside)
}

/// Replaces a file atomically, so that a power cut leaves the old or the new one.
///
/// # Errors
/// The new file could not be written; the old one is still there.
pub fn save(path: &Path, bytes: &[u8]) -> Result<(), LearnedError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(LearnedError::system(folder))?;
    let beside = path.with_extension("actions-new");
    let mut file = regular::create(&beside).map_err(LearnedError::system(path))?;
    let mut write = || -> io::Result<()> {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        regular::open_folder(folder)?.sync_all()
    };
    write().map_err(|error| {
        // A partly written file is useless and takes disk space.
        fs::remove_file(&beside).ok();
        LearnedError::system(path)(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time_may_change_learned_actions() {
        let name = format!("stream-learned-{}", std::process::id());
        let store = std::env::temp_dir().join(name);
        let alone = Lock::take(&store).unwrap();
        assert!(matches!(Lock::take(&store), Err(LearnedError::Busy(_))));
        drop(alone);
        let server = Lock::take(&store).unwrap();
        let error = Lock::take(&store).unwrap_err();
        assert_eq!(error.code(), base::error::Code::Busy);
        drop(server);
        Lock::take(&store).unwrap();
        fs::remove_dir_all(&store).unwrap();
    }
}
