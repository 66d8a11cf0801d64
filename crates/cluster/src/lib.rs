//! Boards that compute in parallel: their energy, their computing time, and when they are better than a data centre.
//!
//! **Holds:** the energy model, power sources, statistics and files of measurements, and the advisor, after
//! V. M. Rodriguez Bahena, "Technical Comparison of an IoT System and a Traditional Computing System" (2016).
//!
//! **Must not know:** MPI, `ingest`, HTTP, writing of any store.
//!
//! **Invariants:** a value that was not measured is never shown as measured. `model` is pure arithmetic. External input
//! (files, sensors, settings) has limits and is refused with a reason, never by a panic.
//!
//! **Files:** `model/` closed forms, fits and parity, `statistics.rs` medians and their intervals, `random.rs` numbers
//! from a seed, `results/` files of measurements, `compare.rs` comparison of several files, `starts.rs` intervals over
//! several starts of a program, `measure/` measuring on boards except MPI itself, `jobs/` jobs on readings, `plot.rs`
//! drawings, `power/` sensors, `host.rs` facts about a machine, `advisor/` where to run a job, `link.rs` what messages
//! cost, for the advisor, `simulation.rs` and `simulation/` the advisor's test, `thesis.rs` and `thesis/` the thesis's
//! figures, `error.rs` errors. Reasons: `DESIGN.md`; result files: `SPEC.md`.

pub mod advisor;
pub mod compare;
mod csv;
pub mod error;
pub mod host;
pub mod jobs;
pub mod link;
pub mod measure;
pub mod model;
pub mod plot;
pub mod power;
pub mod random;
pub mod results;
pub mod simulation;
pub mod starts;
pub mod statistics;
pub mod thesis;

pub use error::Error;
