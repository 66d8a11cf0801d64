//! Power sensors. Each value is measured, modelled or unavailable with the reason; "none" is never shown as zero.
//!
//! Every path is below a [`Root`], which is `/` on a machine and a folder in a test. At each read a sensor is found
//! again by its identity, never by the number of its folder, which may belong to another sensor after the next start.
//!
//! **Files:** `rapl.rs` counters of processors, `hwmon.rs` chips on a board, `battery.rs` batteries, `pmic.rs` the
//! power chip of a Raspberry Pi 5, `meter.rs` the file of a meter, `sampler.rs` averages and energy from values.

mod battery;
mod hwmon;
mod meter;
mod pmic;
mod rapl;
mod sampler;

pub use battery::Battery;
pub use hwmon::Channel;
pub use meter::{Meter, MeterLog, MeterPoint};
pub use pmic::{Pmic, PmicText, parse_pmic};
pub use rapl::Zone;
pub use sampler::{Phase, Sampler, Summary};

use base::error::io_text;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Largest number of bytes read of a file below `/sys`.
const FILE_BYTES_MAX: u64 = 4_096;

/// Largest number of sensors of one machine.
pub const SOURCES_MAX: usize = 256;

/// Largest number of entries read of one folder.
const ENTRIES_MAX: usize = 1_024;

/// A power value.
#[derive(Clone, Debug, PartialEq)]
pub enum Power {
    /// From a sensor.
    Measured {
        /// Watts.
        watts: f64,
    },
    /// Calculated from other values.
    Modelled {
        /// Watts.
        watts: f64,
        /// Source of the formula.
        source: String,
    },
    /// Unavailable.
    Unavailable {
        /// The reason.
        why: String,
    },
}

impl Power {
    /// Returns an unavailable value.
    pub(crate) fn unavailable(why: impl Into<String>) -> Self {
        Self::Unavailable { why: why.into() }
    }

    /// Returns its watts, if available.
    #[must_use]
    pub fn watts(&self) -> Option<f64> {
        match self {
            Self::Measured { watts } | Self::Modelled { watts, .. } => Some(*watts),
            Self::Unavailable { .. } => None,
        }
    }
}

impl fmt::Display for Power {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Measured { watts } => write!(formatter, "{watts:.3} W measured"),
            Self::Modelled { watts, source } => {
                write!(formatter, "{watts:.3} W modelled ({source})")
            }
            Self::Unavailable { why } => write!(formatter, "unavailable ({why})"),
        }
    }
}

/// What time a value refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The mean since the previous value: energy is the sum of values times their intervals.
    MeanSinceLast,
    /// The moment of reading: energy needs the trapezoid rule between two values.
    Moment,
}

/// A sensor.
pub trait Source: Send {
    /// Returns its name, the same after each start.
    fn name(&self) -> &str;
    /// Returns what its value covers.
    fn covers(&self) -> &str;
    /// Returns what time a value refers to.
    fn meaning(&self) -> Meaning;
    /// Reads it at a time of the monotonic clock.
    fn read(&mut self, now_ns: u64) -> Power;
}

/// The folder that stands for `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// Creates a root; `/` on a machine.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    /// Returns a path below it; `path` has no leading slash.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// Returns the names in a folder, in order; empty if there is no folder.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten();
        let names = entries.flatten().take(ENTRIES_MAX);
        let mut names: Vec<String> = names
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        // "intel-rapl:10" after "intel-rapl:9".
        names.sort_by_key(|name| (name.len(), name.clone()));
        names
    }
}

/// Largest number of bytes read of a larger file of the kernel or the system.
const LARGE_BYTES_MAX: u64 = 1 << 20;

/// Returns the raw text of a small file, or why it cannot be read.
fn read_raw(path: &Path) -> Result<String, String> {
    read_limited(path, FILE_BYTES_MAX)
}

/// Returns the raw text of a larger file: its first megabyte.
pub(crate) fn read_large(path: &Path) -> Result<String, String> {
    read_limited(path, LARGE_BYTES_MAX)
}

fn read_limited(path: &Path, bytes_max: u64) -> Result<String, String> {
    let failed = |error: &std::io::Error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            format!("permission denied: {}; read it as root", path.display())
        }
        std::io::ErrorKind::NotFound => format!("no such file: {}", path.display()),
        _ => format!("{}: {}", path.display(), io_text(error)),
    };
    let file = std::fs::OpenOptions::new().read(true).open(path);
    let mut text = String::new();
    let read = file.and_then(|file| file.take(bytes_max).read_to_string(&mut text));
    read.map_err(|error| failed(&error))?;
    Ok(text)
}

/// Returns the text of a small file without surrounding white space, or why it cannot be read.
pub(crate) fn read_text(path: &Path) -> Result<String, String> {
    let text = read_raw(path)?;
    let text = text.trim();
    if text.is_empty() {
        return Err(format!("{} is empty", path.display()));
    }
    Ok(text.to_owned())
}

/// Returns the integer in a small file. Files of the kernel end with a line feed: a number without one was cut.
pub(crate) fn read_number(path: &Path) -> Result<i64, String> {
    let raw = read_raw(path)?;
    if raw.is_empty() {
        return Err(format!("{} is empty", path.display()));
    }
    let Some(text) = raw.strip_suffix('\n') else {
        return Err(format!("{}: the number was cut", path.display()));
    };
    text.trim().parse().map_err(|_| {
        format!(
            "{}: `{}` is no whole number",
            path.display(),
            crate::error::excerpt(text)
        )
    })
}

/// Finds every sensor of a machine that is always read in the same way: processors, chips, batteries. The caller must
/// name a meter's file and the power chip of a Raspberry Pi 5.
#[must_use]
pub fn discover(root: &Root) -> Vec<Box<dyn Source>> {
    let mut found: Vec<Box<dyn Source>> = Vec::new();
    found.extend(
        hwmon::discover(root)
            .into_iter()
            .map(|one| Box::new(one) as Box<dyn Source>),
    );
    found.extend(
        rapl::discover(root)
            .into_iter()
            .map(|one| Box::new(one) as Box<dyn Source>),
    );
    found.extend(
        battery::discover(root)
            .into_iter()
            .map(|one| Box::new(one) as Box<dyn Source>),
    );
    found.truncate(SOURCES_MAX);
    found
}

/// Finds the sensors of a board for one of its ranks: those of [`discover`], and the power chip if it is `pmic`; only
/// those with `wanted` in their name.
///
/// # Errors
/// Why there are none.
pub fn sensors(
    root: &Root,
    pmic: bool,
    wanted: Option<&str>,
) -> Result<Vec<Box<dyn Source>>, String> {
    let mut found = discover(root);
    if pmic {
        found.push(Box::new(Pmic::of_this_board()));
    }
    if found.is_empty() {
        return Err(why_none(root));
    }
    let wanted = wanted.unwrap_or_default();
    found.retain(|source| source.name().contains(wanted));
    if found.is_empty() {
        return Err(format!("no sensor has `{wanted}` in its name"));
    }
    Ok(found)
}

/// Returns why a machine has no sensor, if [`discover`] finds none.
#[must_use]
pub fn why_none(root: &Root) -> String {
    let there = |path: &str| {
        if root.path(path).is_dir() {
            "has none"
        } else {
            "is not there"
        }
    };
    format!(
        "no sensor of power: /sys/class/powercap {} (virtual machines and ARM boards have none), no INA219, INA226 or \
         INA3221 in /sys/class/hwmon, no battery in /sys/class/power_supply; name the file of a meter with --meter, or \
         the power chip of a Raspberry Pi 5 with --pmic",
        there("sys/class/powercap")
    )
}

#[cfg(test)]
pub(crate) mod fake;
