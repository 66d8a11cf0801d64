//! The interface to what sets the speed of the tasks' processors.

use std::fmt::Display;

/// Sets a speed.
pub trait Actuator: Send {
    /// Why a speed is not set, or not restored.
    type Error: Display;

    /// Returns the name of this actuator, as configurations use it.
    fn name(&self) -> &'static str;

    /// Sets the speed, a part of the greatest one, above 0 and up to 1. Returns what it has become: machines have
    /// steps, and some do not do what they are told.
    ///
    /// # Errors
    /// Why it is not set; the speed is then what it was before, as far as the machine permits.
    fn set(&mut self, speed: f64) -> Result<Applied, Self::Error>;

    /// Returns the smallest change of speed that has an effect.
    fn step(&self) -> f64;

    /// Restores what was there before; may be called again.
    ///
    /// # Errors
    /// The first thing that could not be restored.
    fn restore(&mut self) -> Result<(), Self::Error>;
}

/// The speed that was applied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Applied {
    /// As the machine reports it.
    pub speed: f64,
    /// Whether that is the requested speed, except for the steps.
    pub is_obeyed: bool,
}
