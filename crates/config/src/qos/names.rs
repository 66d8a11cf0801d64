//! The names of modes and actuators, as configuration and files write them.

use crate::{ACTUATORS, ActuatorKind, MODES};
use control::controller::Mode;

/// Returns the name of a mode.
#[must_use]
pub fn mode_name(mode: Mode) -> &'static str {
    let found = MODES.iter().find(|(_, other)| *other == mode);
    found.map_or("open", |(name, _)| name)
}

/// Returns the name of an actuator.
pub(crate) fn actuator_name(kind: ActuatorKind) -> &'static str {
    let found = ACTUATORS.iter().find(|(_, other)| *other == kind);
    found.map_or("none", |(name, _)| name)
}
