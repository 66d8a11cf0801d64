//! Quality of service as files and texts. `keel qos identify` and `design` write the files, and a node reads them
//! (`QOS.md` specifies both). The texts are the names of modes, and the effect of a configuration.
//!
//! **Files:** `file.rs` model and gains, `identified.rs` the model in them, `check.rs` their valid content, `out.rs`
//! writing them, `names.rs` names of modes and actuators, `effect.rs` the effect of `[qos]`, `state.rs` the state that
//! a node reports.

mod check;
mod effect;
mod file;
mod identified;
mod names;
mod out;
mod state;

pub(crate) use check::{DATA_RATIO, TARDINESS, clean};
pub(crate) use effect::{Loaded, look, machine_warnings, mode_refused, sentence, undriven};
pub(crate) use file::{Gains, model_bytes};
pub(crate) use identified::{Identified, Limits};
pub(crate) use names::mode_name;
pub(crate) use out::Out;
pub(crate) use state::{
    IdentificationState, PeriodState, QosState, SHED_KEYS_MAX, ShedKey, TaskState, TasksEnded,
    held_name,
};
