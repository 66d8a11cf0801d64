//! Quality of service as files and texts: the files that `keel qos identify` and `design` write and a node reads
//! (`QOS.md` specifies both), the names of modes, and the effect of a configuration.
//!
//! **Files:** `file.rs` model and gains, `check.rs` their valid content, `out.rs` writing them, `looked.rs` the effect
//! of `[qos]`, `state.rs` the state that a node reports.

mod check;
mod file;
mod looked;
mod out;
mod state;

pub(crate) use check::{DATA_RATIO, TARDINESS, clean};
pub(crate) use file::{Gains, Identified, Limits, model_bytes};
pub(crate) use looked::{Loaded, look, machine_warnings, mode_refused, sentence, undriven};
pub(crate) use out::Out;
pub(crate) use state::{
    IdentificationState, PeriodState, QosState, SHED_KEYS_MAX, ShedKey, TaskState, TasksEnded,
    held_name,
};

use crate::config::{ACTUATORS, ActuatorKind, MODES};
use db::qos::controller::Mode;

/// Returns the name of a mode.
pub(crate) fn mode_name(mode: Mode) -> &'static str {
    let found = MODES.iter().find(|(_, other)| *other == mode);
    found.map_or("open", |(name, _)| name)
}

/// Returns the name of an actuator.
pub(crate) fn actuator_name(kind: ActuatorKind) -> &'static str {
    let found = ACTUATORS.iter().find(|(_, other)| *other == kind);
    found.map_or("none", |(name, _)| name)
}
