//! The setting of an experiment: its plant, its model, its target, and how long its runs are.

use control::controller::SetPoints;

use super::identified::{Identified, Origin};
use super::scenario::{Mix, Plant};
use crate::progress::Progress;

/// Error text for a controlled experiment on a machine without a model.
pub(crate) const NO_MODEL: &str =
    "this takes a model: name a file of `identification` with --identified";

/// The target of tardiness, as in the paper.
pub(crate) const GOAL: f64 = 1.0;

/// How long runs are, in samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Samples left out at the beginning of a run, while inputs move from full speed.
    pub(crate) starting: u32,
    /// Samples left out after each change of the load; `samples` are counted after them.
    pub(crate) settling: u32,
    pub(crate) samples: u32,
    /// Samples in which the inputs are driven to fit a model.
    pub(crate) driven: u32,
    /// Samples under each load, to measure what it adds.
    pub(crate) loaded: u32,
    /// Samples for each point of a sweep, after those in which it settles.
    pub(crate) swept: u32,
    pub(crate) swept_settling: u32,
    /// Step between the measured ones of ten points of a sweep.
    pub(crate) swept_every: usize,
    /// Samples before, during and after the load of the transient.
    pub(crate) phases: (u32, u32, u32),
}

/// For a simulated plant.
pub(crate) const PAPER: Extent = Extent {
    starting: 0,
    settling: 20,
    samples: 150,
    driven: 400,
    loaded: 30,
    swept: 20,
    swept_settling: 10,
    swept_every: 1,
    phases: (150, 250, 150),
};

/// For a real machine, where each sample takes a second.
pub(crate) const REAL: Extent = Extent {
    starting: 8,
    settling: 4,
    samples: 6,
    driven: 240,
    loaded: 21,
    swept: 8,
    swept_settling: 2,
    swept_every: 1,
    phases: (10, 15, 10),
};

/// For a simulated plant in a quick run.
pub(crate) const QUICK: Extent = Extent {
    starting: 0,
    settling: 10,
    samples: 30,
    driven: 60,
    loaded: 9,
    swept: 3,
    swept_settling: 3,
    swept_every: 1,
    phases: (40, 40, 40),
};

/// For a real machine in a quick run.
pub(crate) const QUICK_REAL: Extent = Extent {
    starting: 0,
    settling: 1,
    samples: 2,
    driven: 45,
    loaded: 3,
    swept: 1,
    swept_settling: 0,
    swept_every: 5,
    phases: (2, 2, 2),
};

/// The setting of an experiment.
pub(crate) struct Setting<'a> {
    pub(crate) plant: &'a mut dyn Plant,
    pub(crate) identified: Option<Identified>,
    /// The origin of the figures, or of the file of the simulated plant.
    pub(crate) origin: Origin,
    pub(crate) is_simulated: bool,
    pub(crate) runs: u32,
    pub(crate) seed: u64,
    pub(crate) extent: Extent,
    pub(crate) driven_under: Mix,
    pub(crate) progress: Progress,
}

impl Setting<'_> {
    pub(crate) fn set_points(&self, data_ratio: f64) -> SetPoints {
        SetPoints {
            tardiness: GOAL,
            data_ratio,
        }
    }

    /// Returns the model.
    ///
    /// # Errors
    /// If no model was named.
    pub(crate) fn identified(&self) -> Result<&Identified, String> {
        self.identified.as_ref().ok_or_else(|| NO_MODEL.to_owned())
    }

    /// Returns the text below a drawing's title.
    pub(crate) fn subtitle(&self) -> String {
        let origin = &self.origin;
        if self.is_simulated {
            format!(
                "simulated plant, identified from {} on {}, {}",
                origin.engine, origin.cpu, origin.date
            )
        } else {
            format!(
                "{}, speed by {}, on {}",
                origin.engine, origin.actuator, origin.cpu
            )
        }
    }
}
