//! What every sensor has: its value, which is measured, modelled or unavailable, and the time that the value refers to.

use std::fmt;

/// Largest number of sensors of one machine.
pub const SOURCES_MAX: usize = 256;

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
    /// Returns what is doubtful about its values so far, if anything.
    fn remark(&self) -> Option<String> {
        None
    }
}
