//! What is decided for a scenario, and how risk is weighed.

use crate::advisor::{CONFIDENCE, CONFIDENCE_FLOOR, LATE_PENALTY};

/// How the advisor weighs risk, as in a [`Question`](crate::advisor::Question).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Probability with which at least one option must be in time.
    pub confidence: f64,
    /// The same for the advised option.
    pub confidence_floor: f64,
    /// Cost of a late result, in multiples of a result's cost.
    pub late_penalty: f64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            confidence: CONFIDENCE,
            confidence_floor: CONFIDENCE_FLOOR,
            late_penalty: LATE_PENALTY,
        }
    }
}

/// What is chosen, as numbers of places.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decision {
    pub(super) advised: Option<usize>,
    /// The choice if nothing is advised.
    pub(super) fallback: Option<usize>,
}
