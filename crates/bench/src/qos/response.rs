//! The response of tardiness to a load that starts or ends.

use super::approach::Record;

/// Half the width of the band around the goal in which tardiness counts as settled, as a fraction of the goal.
pub(crate) const BAND: f64 = 0.05;

/// The response to a change of load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Response {
    /// The number of samples, from the first one under the new load, until tardiness stays in the band.
    pub(crate) settling: usize,
    /// Maximum distance from the goal on the side to which the load pushes tardiness, as a fraction of the goal. The
    /// first sample is the effect of the load itself, which no feedback can know in advance.
    pub(crate) peak: f64,
    /// Maximum distance on the other side.
    pub(crate) overshoot: f64,
}

/// Returns the tardiness of each sample, averaged over runs: this shows the response of the loop, without the noise of
/// single runs.
pub(crate) fn mean_of_runs(runs: &[Vec<Record>]) -> Vec<f64> {
    let samples = runs.iter().map(Vec::len).min().unwrap_or(0);
    let mean = |sample: usize| {
        let known: Vec<f64> = runs
            .iter()
            .filter_map(|run| run[sample].tardiness())
            .collect();
        known.iter().sum::<f64>() / known.len().max(1) as f64
    };
    (0..samples).map(mean).collect()
}

/// Returns the response in `tardiness`, which begins with the first sample under the new load.
pub(crate) fn response(tardiness: &[f64], goal: f64) -> Response {
    let outside = tardiness
        .iter()
        .rposition(|value| (value - goal).abs() > goal * BAND);
    // If a load raises tardiness, values below the goal are overshoot.
    let sign = match tardiness.first() {
        Some(first) if *first < goal => -1.0,
        _ => 1.0,
    };
    let part = |value: &f64| sign * (value - goal) / goal;
    Response {
        settling: outside.map_or(0, |last| last + 1),
        peak: tardiness.iter().map(part).fold(0.0, f64::max),
        overshoot: tardiness
            .iter()
            .map(|value| -part(value))
            .fold(0.0, f64::max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_off_a_curve() {
        let rises = response(&[1.25, 1.08, 0.93, 0.97, 1.02], 1.0);
        assert_eq!(rises.settling, 3);
        assert!((rises.peak - 0.25).abs() < 1e-9 && (rises.overshoot - 0.07).abs() < 1e-9);
        let falls = response(&[0.6, 0.92, 1.12, 1.0], 1.0);
        assert_eq!(falls.settling, 3);
        assert!((falls.peak - 0.4).abs() < 1e-9 && (falls.overshoot - 0.12).abs() < 1e-9);
        assert_eq!(response(&[1.0, 1.01], 1.0).settling, 0);
        assert_eq!(response(&[1.0, 1.2], 1.0).settling, 2, "never");
    }
}
