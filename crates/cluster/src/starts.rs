//! Intervals of medians that were measured in several starts of a program. Samples of one start are not independent: they
//! share its pages, its connections and its minute. So what is drawn again is whole starts, and the interval says where
//! the median of another run falls, not how often this run could have looked at itself.

use crate::Error;
use crate::random::Random;
use crate::statistics::{Interval, LEVEL, Median, RESAMPLES, quantile_sorted};

/// Starts below which their spread says nothing.
pub const STARTS_MIN: usize = 3;

/// Student's t at 97.5 % for 2, 3, … degrees of freedom; beyond them the normal value is near enough.
const T: [f64; 29] = [
    4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
    2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052,
    2.048, 2.045, 2.042,
];

/// The normal value at 97.5 %.
const Z: f64 = 1.960;

/// Fixed, so that the same samples have the same interval everywhere.
const SEED: u64 = 0x7374_6172_7473;

/// Samples of several starts, sorted, each with the start that it is of.
struct Pooled {
    sorted: Vec<(f64, u32)>,
    starts: usize,
}

impl Pooled {
    fn new(samples: &[f64], starts: &[u32]) -> Result<Self, Error> {
        let counted: u64 = starts.iter().map(|&count| u64::from(count)).sum();
        if counted != samples.len() as u64 || starts.contains(&0) {
            let wrong = format!("are of {counted} samples, there are {}", samples.len());
            return Err(Error::invalid("starts", wrong));
        }
        if starts.len() < STARTS_MIN {
            let wrong = format!("are {}, at least {STARTS_MIN}", starts.len());
            return Err(Error::invalid("starts", wrong));
        }
        if samples
            .iter()
            .any(|sample| !(sample.is_finite() && *sample > 0.0))
        {
            return Err(Error::invalid("samples", "are not all finite and above 0"));
        }
        let of = (0..)
            .zip(starts)
            .flat_map(|(start, &count)| std::iter::repeat_n(start, count as usize));
        let mut sorted: Vec<(f64, u32)> = samples.iter().copied().zip(of).collect();
        sorted.sort_by(|one, other| one.0.total_cmp(&other.0));
        Ok(Self {
            sorted,
            starts: starts.len(),
        })
    }

    fn median(&self) -> f64 {
        let values: Vec<f64> = self.sorted.iter().map(|(value, _)| *value).collect();
        quantile_sorted(&values, 0.5)
    }

    /// Logarithms of medians of starts that are drawn again.
    fn resampled(&self, random: &mut Random) -> Vec<f64> {
        let mut of_start = vec![0_usize; self.starts];
        for (_, start) in &self.sorted {
            of_start[*start as usize] += 1;
        }
        let mut drawn = vec![0_usize; self.starts];
        let mut draw = || {
            drawn.fill(0);
            for _ in 0..self.starts {
                drawn[random.below(self.starts)] += 1;
            }
            let count: usize = drawn
                .iter()
                .zip(&of_start)
                .map(|(times, count)| times * count)
                .sum();
            // The lower middle is enough: what is compared are such medians with each other.
            let place = (count - 1) / 2;
            let mut before = 0;
            let found = self.sorted.iter().find(|(_, start)| {
                before += drawn[*start as usize];
                before > place
            });
            found.map_or(0.0, |(value, _)| value.ln())
        };
        (0..RESAMPLES).map(|_| draw()).collect()
    }

    /// How much wider the interval of so few starts has to be: drawing again sees only a part of the variance, and does
    /// not know its size well ("expanded percentiles", Hesterberg, What Teachers Should Know about the Bootstrap, 2015).
    fn expansion(&self) -> f64 {
        let count = self.starts as f64;
        let t = T.get(self.starts - STARTS_MIN).copied().unwrap_or(Z);
        (count / (count - 1.0)).sqrt() * t / Z
    }
}

/// The median of a run, and where at [`LEVEL`] the median of another run of as many starts falls.
///
/// # Errors
/// Fewer than [`STARTS_MIN`] starts, one without samples, or a sample that is not above 0.
pub fn repeat_interval(samples: &[f64], starts: &[u32]) -> Result<Median, Error> {
    let pooled = Pooled::new(samples, starts)?;
    let mut random = Random::new(SEED);
    let (one, other) = (pooled.resampled(&mut random), pooled.resampled(&mut random));
    let differences = one
        .iter()
        .zip(&other)
        .map(|(one, other)| (one - other).abs());
    let reach = percentile(differences.collect(), LEVEL) * pooled.expansion();
    let value = pooled.median();
    Ok(Median {
        value,
        interval: Interval {
            low: value * (-reach).exp(),
            high: value * reach.exp(),
        },
        samples: samples.len(),
    })
}

/// The ratio of the medians of two runs, `ours` ÷ `theirs`, each samples and starts, and its interval: the two differ where
/// 1 is not in it.
///
/// # Errors
/// As [`repeat_interval`].
pub fn run_ratio(ours: (&[f64], &[u32]), theirs: (&[f64], &[u32])) -> Result<Median, Error> {
    let (ours, theirs) = (
        Pooled::new(ours.0, ours.1)?,
        Pooled::new(theirs.0, theirs.1)?,
    );
    let mut random = Random::new(SEED);
    let (above, below) = (ours.resampled(&mut random), theirs.resampled(&mut random));
    let value = ours.median() / theirs.median();
    let expansion = ours.expansion().max(theirs.expansion());
    let away = above
        .iter()
        .zip(&below)
        .map(|(above, below)| (above - below - value.ln()) * expansion);
    let mut away: Vec<f64> = away.collect();
    away.sort_by(f64::total_cmp);
    let tail = (1.0 - LEVEL) / 2.0;
    let end = |part: f64| value * quantile_sorted(&away, part).exp();
    Ok(Median {
        value,
        interval: Interval {
            low: end(tail).min(value),
            high: end(1.0 - tail).max(value),
        },
        samples: ours.sorted.len().min(theirs.sorted.len()),
    })
}

fn percentile(mut values: Vec<f64>, part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    quantile_sorted(&values, part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::median_interval;

    /// A run in which starts differ more than samples within one.
    fn run(random: &mut Random, starts: usize, median: f64, between: f64) -> (Vec<f64>, Vec<u32>) {
        let mut samples = Vec::new();
        for _ in 0..starts {
            let middle = median * (between * random.normal()).exp();
            samples.extend((0..20).map(|_| middle * (0.02 * random.normal()).exp()));
        }
        (samples, vec![20; starts])
    }

    #[test]
    fn two_runs_agree_as_often_as_they_should_and_intervals_of_samples_alone_do_not() {
        let mut random = Random::new(17);
        for starts in [5, 8, 12] {
            let (mut agree, mut agree_within, runs) = (0, 0, 300);
            for _ in 0..runs {
                let (one, other) = (
                    run(&mut random, starts, 10.0, 0.05),
                    run(&mut random, starts, 10.0, 0.05),
                );
                let whole =
                    [&one, &other].map(|run| repeat_interval(&run.0, &run.1).expect("enough"));
                let within = [&one, &other].map(|run| median_interval(&run.0).expect("enough"));
                let is_mutual = |of: [Median; 2]| {
                    of[0].interval.contains(of[1].value) && of[1].interval.contains(of[0].value)
                };
                agree += u32::from(is_mutual(whole));
                agree_within += u32::from(is_mutual(within));
            }
            // Each of two 95 % intervals holds the other's median; both fail together more often than not.
            assert!(
                agree >= runs * 88 / 100,
                "{agree} of {runs} with {starts} starts"
            );
            assert!(
                agree_within < runs / 2,
                "{agree_within} of {runs} with {starts} starts"
            );
        }
    }

    #[test]
    fn runs_that_differ_are_told_apart_and_those_that_do_not_are_not() {
        let mut random = Random::new(23);
        let (mut alike, mut apart, runs) = (0, 0, 200);
        for _ in 0..runs {
            let one = run(&mut random, 8, 10.0, 0.05);
            let same = run(&mut random, 8, 10.0, 0.05);
            let slower = run(&mut random, 8, 13.0, 0.05);
            let ratio = |other: &(Vec<f64>, Vec<u32>)| {
                run_ratio((&other.0, &other.1), (&one.0, &one.1))
                    .expect("enough")
                    .interval
            };
            alike += u32::from(ratio(&same).contains(1.0));
            apart += u32::from(ratio(&slower).low > 1.0);
        }
        assert!(
            alike >= runs * 90 / 100 && apart >= runs * 90 / 100,
            "{alike} and {apart} of {runs}"
        );
    }

    #[test]
    fn starts_that_are_all_alike_have_no_width() {
        let found = repeat_interval(&[5.0; 12], &[4; 3]).expect("enough");
        assert_eq!(
            (found.value, found.interval.low, found.interval.high),
            (5.0, 5.0, 5.0)
        );
    }

    #[test]
    fn what_cannot_be_judged_is_refused() {
        assert!(repeat_interval(&[1.0; 4], &[2, 2]).is_err(), "two starts");
        assert!(
            repeat_interval(&[1.0; 4], &[2, 2, 0]).is_err(),
            "an empty start"
        );
        assert!(
            repeat_interval(&[1.0; 4], &[1, 1, 1]).is_err(),
            "a sample of no start"
        );
        assert!(repeat_interval(&[1.0, 0.0, 1.0], &[1, 1, 1]).is_err(), "0");
        assert!(
            repeat_interval(&[1.0, f64::NAN, 1.0], &[1, 1, 1]).is_err(),
            "not a number"
        );
    }
}
