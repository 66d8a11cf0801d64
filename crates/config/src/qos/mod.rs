//! Quality of service as files and texts. `keel qos identify` and `design` write the files, and a node reads them
//! (`crates/keel/QOS.md` specifies both). The texts are the names of modes, and the effect of a configuration.
//!
//! **Files:** `file.rs` model and gains, `identified.rs` the model in them, `check.rs` their valid content, `names.rs`
//! names of modes and actuators, `effect.rs` the effect of `[qos]`.

mod check;
mod effect;
mod file;
mod identified;
mod names;

pub use check::{DATA_RATIO, TARDINESS, clean};
pub use effect::{Loaded, machine_warnings, mode_refused, sentence, undriven};
pub use file::{Gains, model_bytes};
pub use identified::{Identified, Limits};
pub use names::mode_name;

pub(crate) use effect::look;
