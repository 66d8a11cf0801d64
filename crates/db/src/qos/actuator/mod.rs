//! What sets the speed of a task's processor: one trait, and a way for each kind of machine.
//!
//! Whatever is changed is put back: at the end, when the program panics, and after a kill by the next start, from a
//! file that was written before the first change.

mod cpufreq;
mod deadline;
mod rtgroup;
mod saved;

pub use cpufreq::Cpufreq;
pub use deadline::Deadline;
pub use rtgroup::RtGroup;
pub use saved::{Saved, SavedError};

use std::path::{Path, PathBuf};

/// Sets a speed.
pub trait Actuator: Send {
    /// Which way this is, as configurations name it.
    fn name(&self) -> &'static str;

    /// Sets the speed, a part of the greatest one, above 0 and up to 1; what it has become: machines have steps, and
    /// some do not do what they are told.
    ///
    /// # Errors
    /// [`ActuatorError`]; the speed is then what it was before, as far as the machine lets that be.
    fn set(&mut self, speed: f64) -> Result<Applied, ActuatorError>;

    /// The smallest change of speed that does anything.
    fn step(&self) -> f64;

    /// Puts back what was there before; may be called again.
    ///
    /// # Errors
    /// The first thing that could not be put back.
    fn restore(&mut self) -> Result<(), ActuatorError>;
}

/// What a speed has become.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Applied {
    /// As the machine says.
    pub speed: f64,
    /// Whether that is what was asked for, but for the steps.
    pub is_obeyed: bool,
}

/// Why a speed was not set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ActuatorError {
    /// Nothing there that could be set.
    #[error("{path}: {what}")]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
        /// What is not there.
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
    /// A file says what cannot be understood.
    #[error("{path}: '{text}' is no frequency")]
    NoNumber {
        /// The file.
        path: PathBuf,
        /// What it says.
        text: String,
    },
    /// The kernel refuses to schedule a thread so.
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
    /// A speed that is none.
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

/// Those of the system that this runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemFiles;

impl Files for SystemFiles {
    fn read(&self, path: &Path) -> std::io::Result<String> {
        std::fs::read_to_string(path).map(|text| text.trim_end().to_owned())
    }

    fn write(&self, path: &Path, text: &str) -> std::io::Result<()> {
        use std::io::Write;
        // Not made where it is not there.
        std::fs::OpenOptions::new()
            .write(true)
            .open(path)?
            .write_all(text.as_bytes())
    }

    fn list(&self, path: &Path) -> std::io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(path)? {
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
