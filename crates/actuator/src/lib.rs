//! What sets the speed of a task's processor: an implementation for each kind of machine.
//!
//! **Holds:** actuators by frequency ([`Cpufreq`]), by groups of real-time threads ([`RtGroup`]) and by deadline
//! ([`Deadline`]), what restores the settings of a killed program ([`Saved`], [`Lock`], [`OwnScheduling`]).
//!
//! **Must not know:** the law that chooses a speed, the database.
//!
//! **Invariants:** Every change is restored: at the end, when the program panics, and after a kill by the next start.
//! For this, a file with the settings is written before the first change. Settings that cannot be restored stay in that
//! file, and are reported.
//!
//! **Files:** `cpufreq.rs`, `rtgroup.rs`, `deadline.rs`, `none.rs` for machines without any, `error.rs`, `files.rs`
//! settings as files, `saved.rs` original settings, `lock.rs` the lock of the program that sets the speed.

mod cpufreq;
mod deadline;
mod error;
mod files;
mod lock;
mod none;
mod rtgroup;
mod saved;

pub use control::actuator::{Actuator, Applied};
pub use cpufreq::Cpufreq;
pub use deadline::{Deadline, OwnScheduling};
pub use error::{ActuatorError, SavedError, Unset, advice};
pub use files::{Files, SystemFiles};
pub use lock::{Lock, LockError};
pub use none::NoActuator;
pub use rtgroup::RtGroup;
pub use saved::Saved;

/// An actuator of any kind.
pub type AnyActuator = Box<dyn Actuator<Error = ActuatorError>>;
