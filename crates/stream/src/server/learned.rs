//! Learned actions on the disk: one file for each tenant, replaced as a whole.

use super::system;
use crate::predict::none::NonePredictor;
use crate::predict::paper::{PaperPredictor, PaperSettings};
use crate::predict::task::{TaskPredictor, TaskSettings};
use crate::predict::{Catalogue, LoadError, Mode, Predictor};
use crate::regular;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Bytes of a file of learned actions, at most.
pub const ACTIONS_BYTES_MAX: u64 = crate::predict::FILE_BYTES_MAX as u64;

/// Characters of a tenant's name, at most.
const TENANT_CHARACTERS_MAX: usize = 64;

/// What the files of tenants end with.
const ENDING: &str = ".actions";

/// What is locked, in the folder of learned actions of all modes.
const LOCK_FILE: &str = "lock";

/// Why learned actions could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LearnedError {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
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
        /// In what.
        source: LoadError,
    },
    /// A server that learns would write over the change.
    #[error("{}: a server learns with this store", .0.display())]
    Busy(PathBuf),
}

impl LearnedError {
    /// The one code this error maps to.
    #[must_use]
    pub fn code(&self) -> base::error::Code {
        match self {
            Self::System { source, .. } => base::error::Code::from_io(source),
            Self::Damaged { .. } => base::error::Code::Corrupt,
            Self::Busy(_) => base::error::Code::Busy,
        }
    }

    /// What whoever runs the server can do about it, where the error says enough to know that.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Busy(_) => Some("end the other one and start this one anew"),
            Self::Damaged { .. } => None,
            Self::System { source, .. } => match source.raw_os_error()? {
                libc::EACCES | libc::EPERM => Some(
                    "let this user write the folder actions of the store, or run as a user who may",
                ),
                libc::EROFS => Some("put the store on a disk that can be written"),
                libc::ENOSPC | libc::EDQUOT => Some("free some space"),
                libc::EFBIG => Some("raise the limit on the size of files"),
                _ => None,
            },
        }
    }

    /// The error with what can be done about it, in a line.
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

/// Keeps the learned actions of a store from being changed by others until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// For a server that learns, which has them in memory and writes over what is there, and for whoever changes them
    /// on the disk.
    ///
    /// # Errors
    /// [`LearnedError::Busy`]: a server has them in memory, or another process is changing them. The lock cannot be
    /// made, for example in a store that cannot be written.
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

/// A predictor that knows nothing yet. `seg_max`: blocks of a segment in the mode `paper`.
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

/// Whether a name can be that of a tenant: its file is called so.
#[must_use]
pub fn is_tenant(name: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=TENANT_CHARACTERS_MAX).contains(&name.len())
        && !name.starts_with('.')
        && name.bytes().all(is_good)
}

/// The folder of learned actions of a mode in a store: each mode learns other things.
#[must_use]
pub fn folder(store: &Path, mode: Mode) -> PathBuf {
    let folder = store.join("actions");
    match mode {
        Mode::Task | Mode::None => folder,
        Mode::Paper => folder.join("paper"),
    }
}

/// The file of a tenant.
#[must_use]
pub fn file(store: &Path, mode: Mode, tenant: &str) -> PathBuf {
    folder(store, mode).join(format!("{tenant}{ENDING}"))
}

/// The tenants that something was learned for, sorted.
///
/// # Errors
/// The folder is there and cannot be read.
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

/// Loads what was learned for a tenant; whether there was anything.
///
/// # Errors
/// The file cannot be read or is damaged; the predictor is as it was then.
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

/// Takes a damaged file out of the way, so that it can be looked at and nothing is written over it: its new name.
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

/// Puts a file in place of another, so that a power cut leaves one of the two.
///
/// # Errors
/// It could not be written; the file before is there still.
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
        // Half of it is of no use to anybody, and takes room.
        fs::remove_file(&beside).ok();
        LearnedError::system(path)(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_may_change_what_was_learned() {
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
