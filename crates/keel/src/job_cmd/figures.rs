//! The figures of a job of the configuration: measured on this board, kept beside the result, and updated by each run.
//!
//! `keel advise --job` can also read the file. Each run updates the time on one rank and, if the board has a sensor,
//! its power. With `job.check = "never"` neither the time on one rank nor the power is updated.

use super::text_file;
use crate::error::CliError;
use cluster::advisor::{Input, Origin, Privacy, Question, parse_question, question_text};
use cluster::jobs::{Order, estimate};
use config::{JobConfig, beside};
use serde_json::Value;
use std::path::PathBuf;

/// The figures of a job that are measured and kept.
pub(super) const MEASURED: [Input; 6] = [
    Input::SingleS,
    Input::ParallelFraction,
    Input::ExchangeTimes,
    Input::ExchangeBytes,
    Input::InputBytes,
    Input::OutputBytes,
];

/// The figures of this board that a run gives if there is a sensor.
pub(super) const POWER: [Input; 3] = [
    Input::BoardActiveW,
    Input::BoardIdleW,
    Input::BoardCommunicatingW,
];

/// The job is measured again if the amount of history differs from the measured one by more than this part.
const AMOUNT_DIFFERENCE_MAX: f64 = 0.1;

/// The longest measurement, as a part of the period, and in seconds.
const MEASURE_PART: f64 = 0.1;
const MEASURE_SECONDS_MAX: f64 = 20.0;

/// The most ranks on which a job is measured.
const MEASURE_RANKS_MAX: usize = 4;

fn figures_path(job: &JobConfig) -> PathBuf {
    beside(&job.out, "figures.json")
}

/// Returns the earlier measurements. A file that cannot be read is measured again and replaced.
pub(super) fn kept(job: &JobConfig) -> Option<Question> {
    let question = parse_question(&text_file::read(&figures_path(job)).ok()?).ok()?;
    let is_whole = MEASURED
        .into_iter()
        .all(|input| question.given[input as usize].is_some());
    // Otherwise it belongs to another job with the same name.
    (is_whole && question.name == kept_name(job)).then_some(question)
}

/// Returns the name of the kept figures, which no other job and no other settings have.
pub(super) fn kept_name(job: &JobConfig) -> String {
    // Put the settings first, since a long key is cut.
    let (window, step, clusters) = (job.window, job.step, job.clusters);
    let all = format!(
        "{}: {} ({window}, {step}, {clusters}) of {}",
        job.name,
        job.kernel.name(),
        job.key
    );
    all.chars().take(200).collect()
}

/// Returns whether the figures were measured with about this amount of history, in bytes.
pub(super) fn is_near(kept: &Question, amount: f64) -> bool {
    let before = kept.given[Input::InputBytes as usize]
        .as_ref()
        .map_or(0.0, |given| given.value);
    (amount - before).abs() <= AMOUNT_DIFFERENCE_MAX * before
}

/// Measures the job on this board.
pub(super) fn measure(job: &JobConfig, order: &Order) -> Result<Question, cluster::Error> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let seconds = (f64::from(job.period_seconds) * MEASURE_PART).min(MEASURE_SECONDS_MAX);
    let estimate = estimate::measure(order, seconds, cores.min(MEASURE_RANKS_MAX) as u32, |_| ())?;
    let mut kept = Question::new(kept_name(job));
    estimate.give(&mut kept)?;
    Ok(kept)
}

/// Replaces the earlier measurements.
pub(super) fn write_kept(job: &JobConfig, kept: &Question) -> Result<(), CliError> {
    let mut kept = kept.clone();
    // `keel advise --job` reads the file: the data may go no further than the job's may.
    kept.privacy = match (job.is_board_only, &job.question) {
        (true, _) => Privacy::Board,
        (false, None) => Privacy::Neighbours,
        (false, Some(_)) => kept.privacy,
    };
    let text = question_text(&kept)
        .map_err(|error| CliError::failure(&job.name, error, "rename the job"))?;
    text_file::replace(&figures_path(job), &text)
}

/// Updates the time on one rank, and the power if it was measured, from a run.
pub(super) fn mend(job: &JobConfig, mut kept: Question, result: &Value) -> Result<(), CliError> {
    let inputs = result["advice"]["least_energy"]["inputs"].as_array();
    for given in inputs.into_iter().flatten() {
        let input = given["input"].as_str().and_then(Input::from_name);
        let (Some(input), Some(value), Some(by)) =
            (input, given["value"].as_f64(), given["measured"].as_str())
        else {
            continue;
        };
        if input == Input::SingleS || POWER.contains(&input) {
            // A value out of range does not replace the old one.
            kept.give(input, value, Origin::Measured(by.to_owned()))
                .ok();
        }
    }
    write_kept(job, &kept)
}
