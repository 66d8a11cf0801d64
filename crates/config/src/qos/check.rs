//! The valid content of a model or gains file; `QOS.md` gives every range. Content outside the ranges was not written
//! by `keel qos`, or was written after a nonsensical measurement, and the node must not be driven by it.

use super::identified::{AGAIN, Identified, Limits, SAMPLES_MAX, Wrong};
use crate::{ACTUATORS, ActuatorKind};
use control::controller::SetPoints;
use control::design::NUMBER_MAX;
use control::identify::{Model, SAMPLES_MIN};
use std::ops::RangeInclusive;

/// Range of the set point of the mean tardiness.
pub const TARDINESS: RangeInclusive<f64> = 0.05..=10.0;
/// Range of the set point of the data response ratio.
pub const DATA_RATIO: RangeInclusive<f64> = 0.001..=0.999;

/// Bytes of the longest text.
const TEXT_BYTES_MAX: usize = 256;

/// The greatest plausible tardiness: an instance of an hour with a deadline of a few seconds.
const TARDINESS_MAX: f64 = 1_000.0;

/// How far a model's settled outputs may exceed the possible range: they are an estimate.
const ESTIMATE: f64 = 0.1;

/// Returns the error of the first of these numbers that is outside its range.
fn check_ranges(numbers: &[(&str, f64, RangeInclusive<f64>)]) -> Result<(), Wrong> {
    // NaN is in no range.
    let wrong = numbers
        .iter()
        .find(|(_, number, range)| !range.contains(number));
    match wrong {
        None => Ok(()),
        Some((name, number, range)) => {
            let (low, high) = (range.start(), range.end());
            let wrong = match (*low, *high) {
                (_, f64::INFINITY) => format!("{name} is {number:?}, it is at least {low}"),
                (f64::NEG_INFINITY, _) => format!("{name} is {number:?}, it is at most {high}"),
                _ => format!("{name} is {number:?}, it lies between {low} and {high}"),
            };
            Err((wrong, AGAIN))
        }
    }
}

/// Checks a line for people, which may be shown on a terminal.
fn check_text(name: &str, text: &str) -> Result<(), Wrong> {
    if text.len() > TEXT_BYTES_MAX {
        return Err((
            format!("{name} is longer than {TEXT_BYTES_MAX} bytes"),
            AGAIN,
        ));
    }
    if text.chars().any(char::is_control) {
        return Err((format!("{name} has a control character"), AGAIN));
    }
    Ok(())
}

/// Returns a text with only the characters that a file may contain.
#[must_use]
pub fn clean(text: &str) -> String {
    let mut clean: String = text.chars().filter(|letter| !letter.is_control()).collect();
    let end = (0..=TEXT_BYTES_MAX.min(clean.len()))
        .rev()
        .find(|end| clean.is_char_boundary(*end));
    clean.truncate(end.unwrap_or(0));
    clean
}

impl Identified {
    pub(super) fn check(&self) -> Result<(), Wrong> {
        check_text("made", &self.made)?;
        check_text("machine", &self.machine)?;
        self.kind()?;
        if !(100..=60_000).contains(&self.sampling_period_ms) {
            let wrong = format!("sampling_period_ms is {}", self.sampling_period_ms);
            return Err((wrong, "it lies between 100 and 60000"));
        }
        if !(self.data_ratio_min > 0.0 && self.data_ratio_min < 1.0) {
            let wrong = format!("data_ratio_min is {}", self.data_ratio_min);
            return Err((wrong, "it lies between 0 and 1"));
        }
        let Limits {
            speed_min,
            speed_step,
            admission_min,
        } = self.limits;
        let is_range = (0.0..1.0).contains(&speed_min)
            && speed_min > 0.0
            && (0.0..=0.5).contains(&speed_step)
            && (0.0..1.0).contains(&admission_min);
        if !is_range {
            return Err((
                "limits are no parts of 1, or leave no room".to_owned(),
                "speed_min and admission_min lie below 1, speed_step is at most 0.5",
            ));
        }
        check_model(&self.model)
    }

    /// Returns the actuator that was used for the measurement.
    ///
    /// # Errors
    /// Its name is none of an actuator that sets a speed; the reason and the remedy.
    pub fn kind(&self) -> Result<ActuatorKind, Wrong> {
        let found = ACTUATORS.iter().find(|(name, _)| *name == self.actuator);
        match found {
            Some((_, kind)) if !matches!(kind, ActuatorKind::None | ActuatorKind::Auto) => {
                Ok(*kind)
            }
            _ => {
                let said = clean(&self.actuator);
                let wrong = format!("actuator is \"{said}\", it is cpufreq, rtgroup or deadline");
                Err((wrong, AGAIN))
            }
        }
    }
}

fn check_model(model: &Model) -> Result<(), Wrong> {
    let any = || -NUMBER_MAX..=NUMBER_MAX;
    for (name, rows) in [("a", &model.a), ("b", &model.b)] {
        for number in rows.iter().flatten() {
            check_ranges(&[(name, *number, any())])?;
        }
    }
    let [speed, admitted] = model.inputs;
    let [tardiness, ratio] = model.outputs;
    check_ranges(&[
        ("inputs: the speed", speed, 0.0..=1.0),
        ("inputs: the admitted fraction", admitted, 0.0..=1.0),
        (
            "outputs: the tardiness",
            tardiness,
            -ESTIMATE..=TARDINESS_MAX,
        ),
        (
            "outputs: the data response ratio",
            ratio,
            -ESTIMATE..=1.0 + ESTIMATE,
        ),
        ("condition", model.condition, 1.0..=f64::INFINITY),
    ])?;
    for output in 0..2 {
        check_ranges(&[
            ("r2", model.r2[output], f64::NEG_INFINITY..=1.0),
            ("residual", model.residual[output], 0.0..=NUMBER_MAX),
        ])?;
    }
    // Both ranges are open at one end, and an infinite value cannot be used in computations.
    let open = [model.condition, model.r2[0], model.r2[1]];
    if !open.iter().all(|number| number.is_finite()) {
        return Err(("condition or r2 is no number".to_owned(), AGAIN));
    }
    if !(SAMPLES_MIN..=SAMPLES_MAX).contains(&(model.samples as usize)) {
        let wrong = format!(
            "samples is {}, it lies between {SAMPLES_MIN} and {SAMPLES_MAX}",
            model.samples
        );
        return Err((wrong, AGAIN));
    }
    Ok(())
}

/// Checks the periods that a model was fitted to: tardiness, data response ratio, speed, admitted fraction.
pub(super) fn check_run(run: &[[f64; 4]]) -> Result<(), Wrong> {
    if run.is_empty() {
        return Err(("its run is missing or empty".to_owned(), AGAIN));
    }
    if run.len() > SAMPLES_MAX {
        let wrong = format!("its run has more than {SAMPLES_MAX} periods");
        return Err((wrong, AGAIN));
    }
    for [tardiness, ratio, speed, admitted] in run {
        check_ranges(&[
            ("run: a tardiness", *tardiness, 0.0..=NUMBER_MAX),
            ("run: a data response ratio", *ratio, 0.0..=1.0),
            ("run: a speed", *speed, 0.0..=1.0),
            ("run: an admitted fraction", *admitted, 0.0..=1.0),
        ])?;
    }
    Ok(())
}

/// Checks set points.
pub(super) fn check_set_points(wanted: SetPoints) -> Result<(), Wrong> {
    check_ranges(&[
        ("set_points: tardiness", wanted.tardiness, TARDINESS),
        ("set_points: data_ratio", wanted.data_ratio, DATA_RATIO),
    ])
}
