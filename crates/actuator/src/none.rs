//! No way to set the speed.

use control::actuator::{Actuator, Applied};

use crate::error::ActuatorError;

/// Does nothing: for machines whose speed cannot be set.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoActuator;

impl Actuator for NoActuator {
    type Error = ActuatorError;

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
