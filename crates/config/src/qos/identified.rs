//! An identified model as a file holds it, and the two texts of each error about such a file.

use control::identify::Model;
use serde::Deserialize;

/// Samples of the longest run that a model file holds.
pub(super) const SAMPLES_MAX: usize = 4_000;

/// An identified model, and the machine on which it was identified.
#[derive(Clone, Debug, PartialEq)]
pub struct Identified {
    /// The model.
    pub model: Model,
    /// The profiled minimum of the data response ratio.
    pub data_ratio_min: f64,
    /// Limits of the inputs during the identification.
    pub limits: Limits,
    /// The actuator that set the speed.
    pub actuator: String,
    /// Length of a sampling period, in ms.
    pub sampling_period_ms: u32,
    /// Processor and kernel, for people.
    pub machine: String,
    /// Time of the identification, RFC 3339.
    pub made: String,
}

/// Limits of the inputs.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Least speed, as a part of the greatest one.
    pub speed_min: f64,
    /// Smallest change of speed that has an effect.
    pub speed_step: f64,
    /// Least admitted fraction.
    pub admission_min: f64,
}

/// Why a file is invalid, and the remedy.
pub(super) type Wrong = (String, &'static str);

/// The remedy for a file whose content is invalid.
pub(super) const AGAIN: &str = "make it anew with `keel qos identify` and `keel qos design`";
