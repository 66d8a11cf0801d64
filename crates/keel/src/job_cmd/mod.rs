//! Jobs on several boards, or on several ranks of this machine: `keel cluster run`, `job` and `rank`.
//!
//! **Files:** `run.rs` the job of `keel cluster run`, `rank.rs` one rank of this machine, `periodic.rs` a job of the
//! configuration, placed by the advisor. Shared: `kernel.rs` the options of a job, `input.rs` the origin of readings,
//! `processes.rs` the processes, `parent.rs` the process that started this one, `state.rs` the state of the ranks and
//! the cause of a failure, `output.rs` the output.

pub(crate) mod input;
pub(crate) mod kernel;
mod output;
mod parent;
pub(crate) mod periodic;
mod processes;
pub(crate) mod rank;
pub(crate) mod run;
mod state;
