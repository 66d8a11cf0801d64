//! Why a speed was not set, or settings were not saved or restored.

use std::path::{Path, PathBuf};

use crate::lock::LockError;

/// Most settings that a line for people names; the file has them all.
pub(crate) const NAMED_MAX: usize = 8;

/// Why a speed was not set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ActuatorError {
    /// There is nothing that could be set.
    #[error("{path}: {what}")]
    Missing {
        /// Where it was searched.
        path: PathBuf,
        /// What is missing.
        what: &'static str,
    },
    /// A file could not be read or written.
    #[error("{path}: {text}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        text: String,
        /// Its errno, 0 when there is none.
        errno: i32,
    },
    /// The content of a file cannot be understood.
    #[error("{path}: '{text}' is no frequency")]
    NoNumber {
        /// The file.
        path: PathBuf,
        /// What it says.
        text: String,
    },
    /// The kernel refuses to schedule a thread this way.
    #[error(
        "thread {thread} cannot be scheduled by deadline: {text}; it takes root, and a thread that may run on all \
         processors"
    )]
    Thread {
        /// Its number.
        thread: u32,
        /// What the system says.
        text: String,
        /// Its errno.
        errno: i32,
    },
    /// Settings are not as they were before.
    #[error("{}", advice(.saved, .unset))]
    NotPutBack {
        /// The file that has them.
        saved: PathBuf,
        /// Which ones.
        unset: Vec<Unset>,
    },
    /// Another program sets the speed.
    #[error(transparent)]
    Locked(#[from] LockError),
    /// The speed is out of range.
    #[error("a speed is above 0 and at most 1")]
    Speed,
}

impl ActuatorError {
    pub(crate) fn file(path: &Path, error: &std::io::Error) -> Self {
        Self::File {
            path: path.to_owned(),
            text: error.to_string(),
            errno: error.raw_os_error().unwrap_or(0),
        }
    }

    /// Makes an error of the file of saved settings.
    pub(crate) fn saved(path: &Path, error: &SavedError) -> Self {
        let text = match error {
            SavedError::File { text, .. } => text.clone(),
            error => error.to_string(),
        };
        Self::File {
            path: path.to_owned(),
            text,
            errno: 0,
        }
    }
}

/// A setting that could not be restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unset {
    /// The setting.
    pub path: PathBuf,
    /// What it was before.
    pub value: String,
    /// What the system says.
    pub text: String,
    /// Whether the setting does not exist at present.
    pub is_gone: bool,
}

/// Why settings are not saved, or not restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SavedError {
    /// The file itself failed.
    #[error("{path}: {text}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        text: String,
    },
    /// The content is not what was written.
    #[error(
        "{path}: not the settings that were saved ({what}){readable}; put back by hand what the processors had \
         before, then remove the file"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
        /// What can still be read of it, as a part of a line; empty if nothing.
        readable: String,
    },
    /// Another user may have written it.
    #[error(
        "{path}: {what}, so what it says is not put back; look at it, then remove it, or give it to the node's user"
    )]
    Untrusted {
        /// The file.
        path: PathBuf,
        /// Why.
        what: &'static str,
    },
    /// A setting cannot be restored, or not be read.
    #[error(transparent)]
    Setting(#[from] ActuatorError),
}

impl SavedError {
    pub(crate) fn file(path: &Path, error: &std::io::Error) -> Self {
        Self::File {
            path: path.to_owned(),
            text: error.to_string(),
        }
    }
}

/// Returns what to do about settings that are not as they were, in one line.
#[must_use]
pub fn advice(saved: &Path, unset: &[Unset]) -> String {
    let named = unset.iter().take(NAMED_MAX).map(|unset| {
        let Unset {
            path, value, text, ..
        } = unset;
        format!("write {value} to {} ({text})", path.display())
    });
    let named = named.collect::<Vec<_>>().join(", ");
    let more = match unset.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "the processors are not set as they were before: {named}{more}; {} has what to put back, a node tries again \
         as long as it lies there; where a setting is gone for good, remove the file",
        saved.display()
    )
}
