//! Jobs on readings: features of vibration, a model of what is usual, a comparison of all with all.
//!
//! **Files:** `communicator.rs` what connects the ranks of a job.

pub mod communicator;

pub use communicator::{Alone, Communicator, Failure};
