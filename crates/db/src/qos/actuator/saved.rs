//! Settings as they were before, in a file that outlives a kill.
//!
//! Text: `evenkeel settings 1`, a line for each setting with its path, a tab and its value, and `end` with the CRC-32C
//! of all before it. It is there before the first setting changes, and gone when all are put back.

use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};

use super::{ActuatorError, Files};

const HEAD: &str = "evenkeel settings 1\n";

/// Bytes of the file at most.
const BYTES_MAX: u64 = 64 << 10;

/// Settings to be put back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// In the order in which they are put back.
    settings: Vec<(PathBuf, String)>,
}

/// Why settings are not saved, or not put back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SavedError {
    /// The file itself.
    #[error("{path}: {text}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        text: String,
    },
    /// It is not what was written.
    #[error(
        "{path}: not the settings that were saved ({what}); put them back by hand and remove it"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
    /// A setting cannot be put back.
    #[error(transparent)]
    Setting(#[from] ActuatorError),
}

impl SavedError {
    fn file(path: &Path, error: &std::io::Error) -> Self {
        Self::File {
            path: path.to_owned(),
            text: error.to_string(),
        }
    }
}

impl Saved {
    /// Adds a setting, which will be put back after those before.
    pub fn add(&mut self, path: &Path, value: &str) {
        self.settings.push((path.to_owned(), value.to_owned()));
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.settings.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.settings.is_empty()
    }

    /// Writes them to `path`, so that they are there or not.
    ///
    /// # Errors
    /// [`SavedError::File`], [`SavedError::Damaged`] for a setting that cannot be written as a line.
    pub fn keep(&self, path: &Path) -> Result<(), SavedError> {
        let mut text = HEAD.to_owned();
        for (setting, value) in &self.settings {
            let shown = setting.to_str().unwrap_or("\n");
            if [shown, value]
                .iter()
                .any(|part| part.contains(['\n', '\t']))
            {
                return Err(SavedError::Damaged {
                    path: setting.clone(),
                    what: "no line can hold it",
                });
            }
            let _ = writeln!(text, "{shown}\t{value}");
        }
        let _ = writeln!(text, "end {:08x}", crc32c::crc32c(text.as_bytes()));
        let draft = path.with_extension("new");
        let failed = |error: std::io::Error| SavedError::file(path, &error);
        // A kill leaves what was written; a power cut takes the settings themselves.
        std::fs::write(&draft, text).map_err(failed)?;
        std::fs::rename(&draft, path).map_err(failed)
    }

    /// What a file of them says; all must lie below `root`.
    ///
    /// # Errors
    /// [`SavedError`].
    pub fn load(path: &Path, root: &Path) -> Result<Option<Self>, SavedError> {
        let damaged = |what| SavedError::Damaged {
            path: path.to_owned(),
            what,
        };
        let bytes = match std::fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(SavedError::file(path, &error)),
            Ok(found) if found.len() > BYTES_MAX => return Err(damaged("too long")),
            Ok(_) => std::fs::read(path).map_err(|error| SavedError::file(path, &error))?,
        };
        let text = String::from_utf8(bytes).map_err(|_| damaged("no text"))?;
        let body = text
            .strip_prefix(HEAD)
            .ok_or_else(|| damaged("no such version"))?;
        let end = text.rfind("end ").ok_or_else(|| damaged("no end"))?;
        let sum = text[end..]
            .strip_prefix("end ")
            .and_then(|sum| sum.strip_suffix('\n'));
        if sum.and_then(|sum| u32::from_str_radix(sum, 16).ok())
            != Some(crc32c::crc32c(&text.as_bytes()[..end]))
        {
            return Err(damaged("its checksum is another"));
        }
        let mut settings = Vec::new();
        for line in body[..end - HEAD.len()].lines() {
            let (setting, value) = line
                .split_once('\t')
                .ok_or_else(|| damaged("a line without a value"))?;
            let setting = PathBuf::from(setting);
            let is_plain = !setting
                .components()
                .any(|part| part == Component::ParentDir);
            if !is_plain || !setting.starts_with(root) {
                return Err(damaged("a setting that is not the machine's"));
            }
            settings.push((setting, value.to_owned()));
        }
        Ok(Some(Self { settings }))
    }

    /// Puts all back, as far as that goes; the first that could not be.
    ///
    /// # Errors
    /// [`ActuatorError::File`].
    pub fn put_back(&self, files: &dyn Files) -> Result<(), ActuatorError> {
        // Some are refused until another one is back: a least value above the greatest one.
        let mut left: Vec<_> = self.settings.iter().collect();
        let mut first = None;
        for _ in 0..2 {
            first = None;
            left.retain(|(path, value)| {
                let Err(error) = files.write(path, value) else {
                    return false;
                };
                if error.kind() == std::io::ErrorKind::NotFound {
                    // A processor that is gone has no settings.
                    return false;
                }
                first.get_or_insert(ActuatorError::file(path, &error));
                true
            });
        }
        first.map_or(Ok(()), Err)
    }

    /// What a program that was killed has left in `path` is put back, and the file removed; how many settings there
    /// were.
    ///
    /// # Errors
    /// [`SavedError`]; the file is left then.
    pub fn put_back_left(path: &Path, root: &Path, files: &dyn Files) -> Result<usize, SavedError> {
        let Some(saved) = Self::load(path, root)? else {
            return Ok(0);
        };
        saved.put_back(files)?;
        std::fs::remove_file(path).map_err(|error| SavedError::file(path, &error))?;
        Ok(saved.len())
    }
}
