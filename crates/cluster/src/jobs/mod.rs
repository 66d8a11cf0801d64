//! Jobs on readings: features of vibration, a model of usual windows, a comparison of all windows with each other.
//!
//! A job is a function that every rank calls with its [`Communicator`]; it gives the same answer on any number of
//! ranks, and checks that. It does not depend on what the ranks are: threads, processes of one machine, MPI.
//!
//! **Files:** `communicator.rs` the connection of the ranks of a job, `star.rs` ranks of one machine, `counted.rs`
//! traffic between them, `watch.rs` the progress of a rank; `readings.rs` the input, `columns.rs` its columns,
//! `steps.rs` the steps between readings, `windows.rs` their distribution;
//! `vibration.rs`, `k_means.rs`, `matrix_profile.rs` the jobs; `order.rs` a job with its input in the form that is
//! sent, `answer.rs` the result, `worker.rs` one rank from start to end, `lines.rs` its output, `energy.rs` the energy
//! of a board, `estimate.rs` figures of a job for the advisor.

pub mod answer;
mod columns;
pub mod communicator;
pub mod counted;
pub mod energy;
pub mod estimate;
pub mod k_means;
pub mod lines;
pub mod matrix_profile;
pub mod order;
pub mod readings;
pub mod star;
mod steps;
pub mod vibration;
pub mod watch;
pub mod windows;
pub mod worker;

#[cfg(test)]
pub(crate) mod together;

pub use answer::{Answer, Sameness};
pub use communicator::{Alone, Communicator, Failure};
pub use order::{Order, Settings};
pub use readings::{LeftOut, Readings, Taker};
pub use watch::Watch;

/// Executes a job on this rank. Rank 0 has the checked order, and gets the answer.
///
/// # Errors
/// The ranks no longer work together; rank 0 has no order.
pub fn run(
    communicator: &mut dyn Communicator,
    watch: &Watch,
    order: Option<&Order>,
) -> Result<Option<Answer>, Failure> {
    let mut numbers = order.map_or_else(Vec::new, Order::numbers);
    communicator.broadcast(&mut numbers)?;
    let head = order::Head::from_numbers(&numbers);
    let head = head.ok_or_else(|| Failure::of(0, "has no job to do"))?;
    let readings = order.map(|order| &order.readings);
    let columns = head.columns;
    match head.settings {
        Settings::Vibration { window, step } => {
            let settings = vibration::Settings { window, step };
            let rate = head.rate;
            let answer = vibration::run(communicator, watch, settings, columns, rate, readings)?;
            Ok(answer.map(Answer::Vibration))
        }
        Settings::KMeans {
            window,
            step,
            clusters,
            rounds_max,
            seed,
        } => {
            let settings = k_means::Settings {
                window,
                step,
                clusters,
                rounds_max,
                seed,
            };
            let answer = k_means::run(communicator, watch, settings, columns, readings)?;
            Ok(answer.map(Answer::KMeans))
        }
        Settings::MatrixProfile { window } => {
            let answer = matrix_profile::run(communicator, watch, window, readings)?;
            Ok(answer.map(Answer::MatrixProfile))
        }
    }
}
