//! Quality of service as files and words: what `keel qos identify` and `design` write and a node reads (`QOS.md`
//! specifies both), the names of modes, and what a configuration comes to.
//!
//! **Files:** `file.rs` model and gains, `check.rs` what may stand in them, `out.rs` where they are written,
//! `looked.rs` what `[qos]` comes to, `state.rs` what a node says.

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

/// The name of a mode.
pub(crate) fn mode_name(mode: Mode) -> &'static str {
    let found = MODES.iter().find(|(_, other)| *other == mode);
    found.map_or("open", |(name, _)| name)
}

/// The name of what sets the speed.
pub(crate) fn actuator_name(kind: ActuatorKind) -> &'static str {
    let found = ACTUATORS.iter().find(|(_, other)| *other == kind);
    found.map_or("none", |(name, _)| name)
}
