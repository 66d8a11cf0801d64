//! How good the advisor is: an independent simulation of events judges it, with the seeds for judging.

use cluster::simulation::{Policy, Report, run};

use crate::figures::{Bound, Figures, Goal, Metric, OURS};

/// Mean over scenarios of (true cost of the choice ÷ true cost of the best − 1).
pub(crate) const REGRET: Metric = Metric::shown("regret", "%");

/// Scenarios in which the choice is late in truth.
pub(crate) const VIOLATIONS: Metric = Metric::shown("violations", "%");

/// The goals, in percent.
const REGRET_PERCENT_MAX: f64 = 3.0;
const VIOLATIONS_PERCENT_MAX: f64 = 1.0;

/// Scenarios of each seed.
const SCENARIOS: u32 = 10_000;
const SCENARIOS_QUICK: u32 = 100;

/// Noise of the figures that the advisor sees.
const NOISE: f64 = 0.1;

/// Seeds for judging, as docs/cluster.md has them; the advisor's parameters were tuned on others.
const SEEDS: std::ops::RangeInclusive<u64> = 501..=506;

/// The case of both figures.
pub(crate) const CASE: &str = "advisor";

/// Runs the simulation with each seed.
///
/// # Errors
/// One line.
pub(crate) fn measure(
    is_quick: bool,
    figures: &mut Figures,
    show: &dyn Fn(&str),
) -> Result<(), String> {
    let scenarios = if is_quick { SCENARIOS_QUICK } else { SCENARIOS };
    let mut reports = Vec::new();
    for seed in SEEDS {
        show(&format!("advisor: seed {seed}"));
        let report = run(scenarios, NOISE, Policy::default(), seed);
        reports.push(report.map_err(|error| error.to_string())?);
    }
    let mean =
        |of: fn(&Report) -> f64| 100.0 * reports.iter().map(of).sum::<f64>() / reports.len() as f64;
    figures.record(CASE, OURS, REGRET, mean(|report| report.regret));
    figures.record(CASE, OURS, VIOLATIONS, mean(Report::violation_rate));
    if !is_quick {
        for (metric, bound) in [
            (REGRET, Bound::AtMost(REGRET_PERCENT_MAX)),
            (VIOLATIONS, Bound::AtMost(VIOLATIONS_PERCENT_MAX)),
        ] {
            figures.add_goal(Goal {
                case: CASE,
                metric: metric.name,
                peer: None,
                bound,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_figures_are_the_mean_over_the_seeds() {
        let mut figures = Figures::new(Vec::new());
        measure(true, &mut figures, &|_| ()).expect("simulated");
        let reports = SEEDS
            .map(|seed| run(SCENARIOS_QUICK, NOISE, Policy::default(), seed).expect("simulated"));
        let reports: Vec<Report> = reports.collect();
        let late: u32 = reports.iter().map(|report| report.violations).sum();
        let regret: f64 = reports.iter().map(|report| report.regret).sum();
        let value = |metric| figures.value(CASE, OURS, metric).expect("recorded");
        assert!((value(VIOLATIONS) - f64::from(late) / 6.0).abs() < 1e-9);
        assert!((value(REGRET) - 100.0 * regret / 6.0).abs() < 1e-9);
        assert!(value(REGRET) > 0.0);
    }
}
