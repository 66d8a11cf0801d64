//! Intervals of medians that were measured in several starts of a program. Samples of one start are not independent:
//! they share its pages, its connections and its minute. So the unit is a whole start. The interval says where the
//! median of another run falls, not how well this run could repeat itself.

use crate::Error;
use crate::random::Random;
use crate::statistics::{Interval, LEVEL, Median, RESAMPLES, quantile_sorted};

/// Below this number of starts their spread is meaningless.
pub const STARTS_MIN: usize = 3;

/// Student's t at 97.5 % for 2, 3, … degrees of freedom; beyond that the normal value is close enough.
const T: [f64; 29] = [
    4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
    2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052,
    2.048, 2.045, 2.042,
];

/// The normal value at 97.5 %.
const Z: f64 = 1.960;

/// Fixed, so that the same samples have the same interval everywhere.
const SEED: u64 = 0x7374_6172_7473;

/// The median of each start, sorted. A start with more variation took more samples, but each start counts once.
struct Starts {
    medians: Vec<f64>,
    samples: usize,
}

impl Starts {
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
        let mut rest = samples;
        let mut medians: Vec<f64> = starts
            .iter()
            .map(|&count| {
                let (of_start, behind) = rest.split_at(count as usize);
                rest = behind;
                percentile(of_start.to_vec(), 0.5)
            })
            .collect();
        medians.sort_by(f64::total_cmp);
        Ok(Self {
            medians,
            samples: samples.len(),
        })
    }

    fn median(&self) -> f64 {
        quantile_sorted(&self.medians, 0.5)
    }

    /// Returns logarithms of medians of resampled starts.
    fn resampled(&self, random: &mut Random) -> Vec<f64> {
        let count = self.medians.len();
        let mut draw = || {
            let drawn = (0..count).map(|_| self.medians[random.below(count)]);
            percentile(drawn.collect(), 0.5).ln()
        };
        (0..RESAMPLES).map(|_| draw()).collect()
    }

    /// Returns the starts between which the median of the same number of other starts falls, and whether it does so at
    /// [`LEVEL`]. Both runs have one common distribution, which may be any. So all orders of their starts are equally
    /// likely, and the chance follows from counting (David and Nagaraja, Order Statistics, 2003, chapter 7).
    fn ordered(&self) -> (Interval, bool) {
        let count = self.medians.len();
        let middle = count.div_ceil(2);
        // The chance that exactly this many of these starts are below the middle one of the others, from none on.
        let mut chance: f64 = (0..count)
            .map(|at| (2 * count - middle - at) as f64 / (2 * count - at) as f64)
            .product();
        let outside_max = (1.0 - LEVEL) / 2.0;
        let is_sure = chance <= outside_max;
        let (mut left_out, mut outside) = (0, chance);
        while left_out + 1 < middle {
            chance *= (left_out + middle) as f64 / (left_out + 1) as f64;
            chance *= (count - left_out) as f64 / (2 * count - left_out - middle) as f64;
            outside += chance;
            if outside > outside_max {
                break;
            }
            left_out += 1;
        }
        let interval = Interval {
            low: self.medians[left_out],
            high: self.medians[count - 1 - left_out],
        };
        (interval, is_sure)
    }

    /// Returns the factor by which the interval of few starts must be widened. Resampling sees only a part of the
    /// variance, and estimates its size badly ("expanded percentiles", Hesterberg, What Teachers Should Know about the
    /// Bootstrap, 2015).
    fn expansion(&self) -> f64 {
        let count = self.medians.len() as f64;
        let t = T.get(self.medians.len() - STARTS_MIN).copied().unwrap_or(Z);
        (count / (count - 1.0)).sqrt() * t / Z
    }
}

/// Returns the median of a run's starts, and its interval. At [`LEVEL`] the median of another run with the same number
/// of starts falls into it.
///
/// The state of a machine varies, and a whole start may be twice as slow as the next one. So no distribution of the
/// starts is assumed. From nine starts on their order gives the interval. Fewer starts do not reach the level in this
/// way, so they are also resampled, and the wider of the two intervals counts.
///
/// # Errors
/// Fewer than [`STARTS_MIN`] starts, one without samples, or a sample that is not above 0.
pub fn repeat_interval(samples: &[f64], starts: &[u32]) -> Result<Median, Error> {
    let starts = Starts::new(samples, starts)?;
    let value = starts.median();
    let (mut interval, is_sure) = starts.ordered();
    if !is_sure {
        let mut random = Random::new(SEED);
        let (one, other) = (starts.resampled(&mut random), starts.resampled(&mut random));
        let differences = one
            .iter()
            .zip(&other)
            .map(|(one, other)| (one - other).abs());
        let reach = percentile(differences.collect(), LEVEL) * starts.expansion();
        interval.low = interval.low.min(value * (-reach).exp());
        interval.high = interval.high.max(value * reach.exp());
    }
    Ok(Median {
        value,
        interval,
        samples: starts.samples,
    })
}

/// Returns the ratio of the medians of two runs, `ours` ÷ `theirs`, each with samples and starts, and its interval. The
/// two runs differ if the interval does not contain 1.
///
/// # Errors
/// As [`repeat_interval`].
pub fn run_ratio(ours: (&[f64], &[u32]), theirs: (&[f64], &[u32])) -> Result<Median, Error> {
    let (ours, theirs) = (
        Starts::new(ours.0, ours.1)?,
        Starts::new(theirs.0, theirs.1)?,
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
        samples: ours.samples.min(theirs.samples),
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

    /// Generates a run in which starts differ more than samples within one.
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
            // Each of two 95 % intervals contains the other's median; both fail together more often than not.
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

    /// Like two virtual cores that sometimes share a real one: whole starts are fast or slow.
    #[test]
    fn two_runs_of_a_machine_with_moods_agree_as_often_as_they_should() {
        let mut random = Random::new(31);
        for slow_of_10 in [1, 3, 5] {
            let (mut agree, runs) = (0, 300);
            for _ in 0..runs {
                let mut one = || {
                    let mut all = (Vec::new(), Vec::new());
                    for _ in 0..12 {
                        let median = if random.below(10) < slow_of_10 {
                            23.0
                        } else {
                            10.0
                        };
                        let (samples, starts) = run(&mut random, 1, median, 0.01);
                        all.0.extend(samples);
                        all.1.extend(starts);
                    }
                    repeat_interval(&all.0, &all.1).expect("enough")
                };
                let (one, other) = (one(), one());
                agree += u32::from(
                    one.interval.contains(other.value) && other.interval.contains(one.value),
                );
            }
            assert!(
                agree >= runs * 90 / 100,
                "{agree} of {runs}, {slow_of_10} of 10 slow"
            );
        }
    }

    #[test]
    fn the_order_of_starts_gives_the_intervals_of_counting() {
        // Chances calculated by hand. Of 9 and 9 starts none is below the other middle one in C(13, 9) of C(18, 9)
        // orders, 1.5 %. Of 8 and 8 none is in C(12, 8) of C(16, 8), 3.8 %.
        let of = |count: u32| {
            let samples: Vec<f64> = (1..=count).map(f64::from).collect();
            let starts = vec![1; count as usize];
            Starts::new(&samples, &starts).expect("enough").ordered()
        };
        let (nine, is_sure) = of(9);
        assert!(is_sure && (nine.low, nine.high) == (1.0, 9.0));
        assert!(!of(8).1);
        let choose =
            |n: u64, k: u64| (0..k).fold(1.0, |all, at| all * (n - at) as f64 / (at + 1) as f64);
        for count in 9..=40_u64 {
            let middle = count.div_ceil(2);
            let exactly = |below: u64| {
                choose(below + middle - 1, below)
                    * choose(2 * count - below - middle, count - below)
                    / choose(2 * count, count)
            };
            let (found, _) = of(count as u32);
            let low = found.low as u64;
            let outside: f64 = (0..low).map(exactly).sum();
            assert!(
                outside <= 0.025 && outside + exactly(low) > 0.025,
                "{count}: {low}"
            );
            assert_eq!(found.high as u64, count + 1 - low);
        }
    }

    #[test]
    fn runs_are_told_apart_only_if_they_differ() {
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
    fn samples_without_three_full_starts_are_refused() {
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
