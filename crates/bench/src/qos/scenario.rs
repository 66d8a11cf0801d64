//! What all experiments share: the mixes of best-effort transactions, and the interface between a loop and a plant.

use clap::ValueEnum;
use db::qos::admission::Quality;

/// Period of the real-time task, in ms.
pub(crate) const PERIOD_MS: f64 = 100.0;

/// Relative deadline of the task, in ms.
pub(crate) const DEADLINE_MS: f64 = 50.0;

/// Minimum fraction of updates admitted under control.
pub(crate) const ADMITTED_MIN: f64 = 0.5;

/// Minimum fraction that a sweep can set.
pub(crate) const SWEPT_MIN: f64 = 0.05;

/// Best-effort transactions by how they divide their time between computing and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Mix {
    #[value(name = "none")]
    None,
    #[value(name = "C90-D10")]
    C90D10,
    #[value(name = "C70-D30")]
    C70D30,
    #[value(name = "C50-D50")]
    C50D50,
    #[value(name = "C30-D70")]
    C30D70,
    #[value(name = "C10-D90")]
    C10D90,
}

impl Mix {
    /// All mixes, from none to the one with the most data.
    pub(crate) const ALL: [Self; 6] = [
        Self::None,
        Self::C90D10,
        Self::C70D30,
        Self::C50D50,
        Self::C30D70,
        Self::C10D90,
    ];

    /// Returns the name as in the paper's table 3.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::C90D10 => "C90-D10",
            Self::C70D30 => "C70-D30",
            Self::C50D50 => "C50-D50",
            Self::C30D70 => "C30-D70",
            Self::C10D90 => "C10-D90",
        }
    }

    /// Returns the share of its time that a transaction spends with data.
    pub(crate) fn data_share(self) -> f64 {
        match self {
            Self::None => 0.0,
            Self::C90D10 => 0.1,
            Self::C70D30 => 0.3,
            Self::C50D50 => 0.5,
            Self::C30D70 => 0.7,
            Self::C10D90 => 0.9,
        }
    }

    pub(crate) fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mix| mix.name() == name)
    }
}

/// What runs in addition to the real-time task and the updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) mix: Mix,
    /// The number of processors with best-effort transactions.
    pub(crate) cores: u32,
}

impl Load {
    /// No load.
    pub(crate) const NONE: Self = Self {
        mix: Mix::None,
        cores: 0,
    };

    /// Returns the load of a mix on `cores` processors; [`Self::NONE`] if there is none.
    pub(crate) fn of(mix: Mix, cores: u32) -> Self {
        if mix == Mix::None || cores == 0 {
            Self::NONE
        } else {
            Self { mix, cores }
        }
    }
}

/// Properties of a plant that its controller needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Facts {
    pub(crate) speed_min: f64,
    /// The smallest effective change of speed.
    pub(crate) speed_step: f64,
    /// Maximum number of processors with best-effort transactions.
    pub(crate) cores_max: u32,
}

/// The observations of one sampling period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Observed {
    /// Mean tardiness and data response ratio; `None` if no instance has finished.
    pub(crate) outputs: Option<[f64; 2]>,
    /// The inputs as applied: speed and admitted fraction.
    pub(crate) applied: [f64; 2],
    /// Share of the period in which the task occupied its processor.
    pub(crate) busy: f64,
    /// The 95th percentile of tardiness; only on a machine.
    pub(crate) tardiness_p95: Option<f64>,
    /// Fraction of the instances that missed their deadline; only on a machine.
    pub(crate) miss_ratio: Option<f64>,
    /// Fresh objects ÷ all; only on a machine.
    pub(crate) fresh: Option<f64>,
    /// The minimum fraction that can be admitted; only if it follows from the freshness.
    pub(crate) least: Option<f64>,
}

/// The controlled plant: a machine, or a simulation of one.
pub(crate) trait Plant {
    fn facts(&self) -> Facts;

    /// Begins a new run; the seed is for random values.
    fn begin(&mut self, seed: u64) -> Result<(), String>;

    /// Runs one sampling period with these inputs, speed and admitted fraction, under this load.
    fn sample(&mut self, inputs: [f64; 2], load: Load) -> Result<Observed, String>;

    /// Sets the quantity of which a sensor's minimum is a fraction. Returns whether this plant supports it.
    fn set_quality(&mut self, quality: Quality) -> bool {
        quality == Quality::Admitted
    }

    /// Gives the best-effort transactions their own store, or the task's. Returns whether they now have their own.
    fn set_separate(&mut self, _is_separate: bool) -> bool {
        false
    }

    /// Returns notes for readers of its figures.
    fn notes(&self) -> Vec<String>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_found_by_their_names() {
        for mix in Mix::ALL {
            assert_eq!(Mix::of_name(mix.name()), Some(mix));
        }
        assert_eq!(Mix::of_name("C1-D1"), None);
        assert_eq!(Load::of(Mix::C10D90, 0), Load::NONE);
        assert_eq!(Load::of(Mix::None, 3), Load::NONE);
    }
}
