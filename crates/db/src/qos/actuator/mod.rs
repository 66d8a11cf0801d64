//! Sets the speed of a task's processor: one trait, and an implementation for each kind of machine.
//!
//! Every change is restored: at the end, when the program panics, and after a kill by the next start, from a file that
//! was written before the first change. What cannot be restored stays in that file, and is reported.

mod cpufreq;
mod deadline;
mod lock;
mod rtgroup;
mod saved;

pub use cpufreq::Cpufreq;
pub use deadline::{Deadline, OwnScheduling};
pub use lock::{Lock, LockError};
pub use rtgroup::RtGroup;
pub use saved::{Saved, SavedError, Unset, advice};

use std::path::{Path, PathBuf};

/// Sets a speed.
pub trait Actuator: Send {
    /// Returns the name of this actuator, as configurations use it.
    fn name(&self) -> &'static str;

    /// Sets the speed, a part of the greatest one, above 0 and up to 1. Returns what it has become: machines have
    /// steps, and some do not do what they are told.
    ///
    /// # Errors
    /// [`ActuatorError`]; the speed is then what it was before, as far as the machine permits.
    fn set(&mut self, speed: f64) -> Result<Applied, ActuatorError>;

    /// Returns the smallest change of speed that has an effect.
    fn step(&self) -> f64;

    /// Restores what was there before; may be called again.
    ///
    /// # Errors
    /// The first thing that could not be restored.
    fn restore(&mut self) -> Result<(), ActuatorError>;
}

/// The speed that was applied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Applied {
    /// As the machine reports it.
    pub speed: f64,
    /// Whether that is the requested speed, except for the steps.
    pub is_obeyed: bool,
}

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
    fn file(path: &Path, error: &std::io::Error) -> Self {
        Self::File {
            path: path.to_owned(),
            text: error.to_string(),
            errno: error.raw_os_error().unwrap_or(0),
        }
    }

    /// Makes an error of the file of saved settings.
    fn saved(path: &Path, error: &SavedError) -> Self {
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

/// The machine's settings as files.
pub trait Files: Send {
    /// The text of a file, without the end of its line.
    ///
    /// # Errors
    /// What the system says.
    fn read(&self, path: &Path) -> std::io::Result<String>;

    /// Writes a setting.
    ///
    /// # Errors
    /// What the system says.
    fn write(&self, path: &Path, text: &str) -> std::io::Result<()>;

    /// Names in a folder, in order.
    ///
    /// # Errors
    /// What the system says.
    fn list(&self, path: &Path) -> std::io::Result<Vec<String>>;

    /// Makes a folder, which the system fills.
    ///
    /// # Errors
    /// What the system says.
    fn make(&self, path: &Path) -> std::io::Result<()>;

    /// Removes such a folder.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, path: &Path) -> std::io::Result<()>;
}

/// The files of the system that this program runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemFiles;

/// Most bytes of a setting: a page of the kernel's is less.
const SETTING_BYTES_MAX: u64 = 64 << 10;

/// Most names in a folder of settings.
const NAMES_MAX: usize = 65_536;

/// Opens a setting. A pipe, or any other file that waits for a partner, must not block the caller: a program that sets
/// the speed must be able to end.
fn open(path: &Path, options: &mut std::fs::OpenOptions) -> std::io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    let waits_for_nobody = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = options.custom_flags(waits_for_nobody).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(std::io::Error::other(
            "it is no regular file, so no setting",
        ))
    }
}

impl Files for SystemFiles {
    fn read(&self, path: &Path) -> std::io::Result<String> {
        use std::io::Read;
        let mut text = String::new();
        open(path, std::fs::OpenOptions::new().read(true))?
            .take(SETTING_BYTES_MAX)
            .read_to_string(&mut text)?;
        text.truncate(text.trim_end().len());
        Ok(text)
    }

    fn write(&self, path: &Path, text: &str) -> std::io::Result<()> {
        use std::io::Write;
        // Do not create a missing file. Truncate the old content, for files that are not the system's.
        let mut options = std::fs::OpenOptions::new();
        open(path, options.write(true).truncate(true))?.write_all(text.as_bytes())
    }

    fn list(&self, path: &Path) -> std::io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(path)?.take(NAMES_MAX) {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    fn make(&self, path: &Path) -> std::io::Result<()> {
        std::fs::create_dir(path)
    }

    fn remove(&self, path: &Path) -> std::io::Result<()> {
        std::fs::remove_dir(path)
    }
}

/// Does nothing: for machines whose speed cannot be set.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoActuator;

impl Actuator for NoActuator {
    fn name(&self) -> &'static str {
        "none"
    }

    fn set(&mut self, speed: f64) -> Result<Applied, ActuatorError> {
        if !(speed > 0.0 && speed <= 1.0) {
            return Err(ActuatorError::Speed);
        }
        Ok(Applied {
            speed: 1.0,
            is_obeyed: speed == 1.0,
        })
    }

    fn step(&self) -> f64 {
        1.0
    }

    fn restore(&mut self) -> Result<(), ActuatorError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_setting_keeps_nobody_waiting() {
        let folder = std::env::temp_dir().join(format!("keel-settings-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let pipe = folder.join("pipe");
        let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: the name ends with a zero and lives until the call returns.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let plain = folder.join("plain");
        std::fs::write(&plain, "powersave\n").unwrap();
        for wrong in [&pipe, &folder] {
            assert!(SystemFiles.read(wrong).is_err(), "{wrong:?}");
            assert!(SystemFiles.write(wrong, "1").is_err(), "{wrong:?}");
        }
        assert_eq!(SystemFiles.read(&plain).unwrap(), "powersave");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
