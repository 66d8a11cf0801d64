//! How well a line over the amount of work predicts the time of a job: fitted to some sizes of the input, judged on
//! others.
//!
//! Held-out sizes lie between those of the fit and above them, since a forecast also covers sizes beyond the measured
//! ones.

use base::sim::Random;
use cluster::jobs::estimate::sample;
use cluster::jobs::{Readings, Settings};
use cluster::model::Growth;
use cluster::statistics::median;

use super::pairs::name;
use crate::figures::{Bound, Figures, Goal, Metric, OURS};

/// Maximum of |fitted ÷ measured − 1| over the held-out sizes.
pub(crate) const ERROR: Metric = Metric::shown("fit_error", "%");

/// Time of a size in seconds, as measured and as fitted.
pub(crate) const MEASURED: Metric = Metric::shown("job_time", "s");
const FITTED: Metric = Metric::shown("job_time_fitted", "s");

/// The goal, in percent.
const ERROR_PERCENT_MAX: f64 = 15.0;

/// Returns each job with the number of readings of its smallest fitted size. All sizes take tens of milliseconds at
/// least: a shorter job is done before a decision where to run it. Those of vibration are beyond a jump of its time per
/// reading, at about three million readings on the machine of the results. The cause of this jump was not investigated.
fn jobs(is_quick: bool) -> [(Settings, usize); 3] {
    let part = if is_quick { 64 } else { 1 };
    [
        (
            Settings::Vibration {
                window: 1_024,
                step: 512,
            },
            (3 << 20) / part,
        ),
        (
            Settings::KMeans {
                window: 32,
                step: 16,
                clusters: 8,
                rounds_max: 25,
                seed: 1,
            },
            (1 << 18) / part,
        ),
        (
            Settings::MatrixProfile { window: 64 },
            (1 << 12) / part.min(8),
        ),
    ]
}

/// Sizes of the fit, in multiples of the smallest size; then the held-out sizes.
const FITTED_SIZES: [f64; 4] = [1.0, 1.5, 2.0, 3.0];
const HELD_OUT: [f64; 3] = [1.75, 2.5, 5.0];

/// Measures all jobs.
///
/// # Errors
/// One line.
pub(crate) fn measure(
    is_quick: bool,
    rounds: u32,
    random: &mut Random,
    figures: &mut Figures,
    show: &dyn Fn(&str),
) -> Result<(), String> {
    for (settings, smallest) in jobs(is_quick) {
        let kernel = settings.kernel();
        let rows = |part: f64| (smallest as f64 * part) as usize;
        let readings = readings(rows(5.0));
        let parts: Vec<f64> = FITTED_SIZES.into_iter().chain(HELD_OUT).collect();
        let mut times: Vec<(f64, Vec<f64>)> = vec![(0.0, Vec::new()); parts.len()];
        for round in 0..rounds {
            show(&format!("{kernel}: round {}", round + 1));
            // Sizes are shuffled, so that a temporary disturbance of this machine does not affect only one of them.
            let mut order: Vec<usize> = (0..parts.len()).collect();
            for at in (1..order.len()).rev() {
                order.swap(at, random.below(at as u64 + 1) as usize);
            }
            for at in order {
                let sample = sample(settings, &readings, rows(parts[at]))
                    .map_err(|error| error.to_string())?;
                times[at].0 = sample.work;
                times[at].1.push(sample.seconds);
            }
        }
        let points = times
            .iter()
            .map(|(work, seconds)| Ok((*work, median(seconds).map_err(|error| error.to_string())?)))
            .collect::<Result<Vec<(f64, f64)>, String>>()?;
        let growth =
            Growth::fit(&points[..FITTED_SIZES.len()]).map_err(|error| error.to_string())?;
        for (part, (work, seconds)) in parts.iter().zip(&points) {
            let case = name(format!("fit-{kernel}-{}", rows(*part)));
            figures.record(case, OURS, MEASURED, *seconds);
            figures.record(case, OURS, FITTED, growth.seconds(*work));
        }
        let case = name(format!("fit-{kernel}"));
        figures.record(
            case,
            OURS,
            ERROR,
            error_percent(&growth, &points[FITTED_SIZES.len()..]),
        );
        if !is_quick {
            figures.add_goal(Goal {
                case,
                metric: ERROR.name,
                peer: None,
                bound: Bound::AtMost(ERROR_PERCENT_MAX),
            });
        }
    }
    Ok(())
}

fn error_percent(growth: &Growth, held_out: &[(f64, f64)]) -> f64 {
    let errors = held_out
        .iter()
        .map(|(work, seconds)| (growth.seconds(*work) / seconds - 1.0).abs());
    100.0 * errors.fold(0.0, f64::max)
}

/// Returns readings of a rotating machine, with noise.
fn readings(rows: usize) -> Readings {
    let mut random = Random::new(7);
    let value = |row: usize| {
        let noise = random.below(1 << 16) as f64 / 65_536.0;
        (row as f64 * 0.05 * std::f64::consts::TAU).sin() + noise
    };
    Readings {
        names: vec!["value".to_owned()],
        columns: vec![(0..rows).map(value).collect()],
        ..Readings::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_the_greatest_over_sizes_that_the_fit_has_not_seen() {
        let growth = Growth::fit(&[(1.0, 1.0), (2.0, 2.0), (4.0, 4.0)]).expect("a line");
        assert!(error_percent(&growth, &[(3.0, 3.0), (8.0, 8.0)]) < 1e-6);
        // The measured time is twice that of the line, so the error is 50 %.
        assert!((error_percent(&growth, &[(3.0, 3.0), (8.0, 16.0)]) - 50.0).abs() < 1e-6);
    }

    #[test]
    fn every_job_is_measured_at_every_size() {
        let mut figures = Figures::new(Vec::new());
        measure(true, 1, &mut Random::new(1), &mut figures, &|_| ()).expect("measured");
        let csv = figures.csv();
        for kernel in ["vibration", "k-means", "matrix-profile"] {
            assert!(csv.contains(&format!("fit-{kernel},")), "{csv}");
        }
        assert_eq!(csv.matches("job_time_fitted").count(), 21, "{csv}");
    }
}
