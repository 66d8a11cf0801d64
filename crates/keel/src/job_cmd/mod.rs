//! Jobs on several boards, or on several ranks of this machine: `keel cluster run`, `job` and `rank`.
//!
//! **Files:** `run.rs` the job of `keel cluster run`, `rank.rs` one rank of this machine, `periodic.rs` a job of the
//! configuration, `placed.rs` its place by the advisor, `figures.rs` its measured figures, `overhead.rs` the overhead
//! of earlier runs, `suspects.rs` boards on which no rank has started. Shared: `kernel.rs` the options of a job,
//! `input.rs` the origin of readings, `text_file.rs` small files beside the result, `processes.rs` the processes,
//! `parent.rs` the process that started this one, `state.rs` the state of the ranks and the cause of a failure,
//! `output.rs` the output.

mod figures;
pub(crate) mod input;
pub(crate) mod kernel;
mod output;
mod overhead;
mod parent;
pub(crate) mod periodic;
mod placed;
mod processes;
pub(crate) mod rank;
pub(crate) mod run;
mod state;
mod suspects;
mod text_file;
