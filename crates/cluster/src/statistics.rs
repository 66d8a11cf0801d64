//! Medians, their intervals, and a rule for enough samples. Times of messages have long tails, so nothing here uses a
//! mean as the centre or assumes a distribution (Hunold and Carpen-Amarie, arXiv 1505.07734).

use crate::Error;
use crate::random::Random;

/// Largest number of samples of one measurement.
pub const SAMPLES_MAX: usize = 100_000;

/// Number of resamples of a bootstrap.
pub const RESAMPLES: usize = 1_000;

/// Confidence level of every interval here.
pub const LEVEL: f64 = 0.95;

/// Fixed, so that the same samples have the same interval everywhere.
const SEED: u64 = 0x6b65_656c;

/// An interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// Returns whether a value is within, including the ends.
    #[must_use]
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Returns whether two intervals have a common value.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

/// A median with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Median {
    /// The median.
    pub value: f64,
    /// Its interval at [`LEVEL`].
    pub interval: Interval,
    /// Number of samples.
    pub samples: usize,
}

/// Returns a quantile of sorted values, interpolated between neighbours; 0 if there are none.
#[must_use]
pub fn quantile_sorted(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0.0;
    };
    let at = part.clamp(0.0, 1.0) * last as f64;
    let below = at.floor() as usize;
    let above = (below + 1).min(last);
    let weight = at - below as f64;
    // In this form equal neighbours give exactly their value, without rounding.
    (sorted[below] + (sorted[above] - sorted[below]) * weight).min(sorted[above])
}

/// Returns the median of samples in any order.
///
/// # Errors
/// No samples, too many, or one that is not finite.
pub fn median(samples: &[f64]) -> Result<f64, Error> {
    Ok(quantile_sorted(&sorted(samples)?, 0.5))
}

/// Returns the median and its percentile-bootstrap interval.
///
/// # Errors
/// No samples, too many, or one that is not finite.
pub fn median_interval(samples: &[f64]) -> Result<Median, Error> {
    let sorted = sorted(samples)?;
    let medians = resampled_medians(&sorted, SEED);
    Ok(Median {
        value: quantile_sorted(&sorted, 0.5),
        interval: percentiles(medians),
        samples: sorted.len(),
    })
}

/// Returns the ratio of two medians, `ours` ÷ `theirs`, and its interval.
///
/// # Errors
/// No samples, too many, one that is not finite, or one of `theirs` that is not above 0.
pub fn ratio_interval(ours: &[f64], theirs: &[f64]) -> Result<Median, Error> {
    let (ours, theirs) = (sorted(ours)?, sorted(theirs)?);
    if theirs[0] <= 0.0 {
        return Err(Error::invalid(
            "samples",
            "to divide by are not all above 0",
        ));
    }
    let above = resampled_medians(&ours, SEED);
    let below = resampled_medians(&theirs, SEED ^ u64::MAX);
    let ratios = above.iter().zip(below).map(|(a, b)| a / b).collect();
    Ok(Median {
        value: quantile_sorted(&ours, 0.5) / quantile_sorted(&theirs, 0.5),
        interval: percentiles(ratios),
        samples: ours.len().min(theirs.len()),
    })
}

fn sorted(samples: &[f64]) -> Result<Vec<f64>, Error> {
    if samples.is_empty() {
        return Err(Error::invalid("samples", "are none"));
    }
    if samples.len() > SAMPLES_MAX {
        return Err(Error::Limit {
            what: "samples of one measurement",
            value: samples.len() as u64,
            limit: SAMPLES_MAX as u64,
        });
    }
    if samples.iter().any(|sample| !sample.is_finite()) {
        return Err(Error::invalid("samples", "are not all finite"));
    }
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    Ok(sorted)
}

/// Returns medians of resamples. The samples are sorted, so only how often each was drawn matters: a pass over these
/// counts finds the middle without sorting again.
fn resampled_medians(sorted: &[f64], seed: u64) -> Vec<f64> {
    let count = sorted.len();
    let mut random = Random::new(seed);
    let mut drawn = vec![0_u32; count];
    let (first, second) = ((count - 1) / 2, count / 2);
    (0..RESAMPLES)
        .map(|_| {
            drawn.fill(0);
            for _ in 0..count {
                drawn[random.below(count)] += 1;
            }
            let at = |place: usize| {
                let mut before = 0;
                let found = drawn.iter().position(|&times| {
                    before += times as usize;
                    before > place
                });
                sorted[found.unwrap_or(count - 1)]
            };
            if first == second {
                at(first)
            } else {
                (at(first) + at(second)) / 2.0
            }
        })
        .collect()
}

fn percentiles(mut values: Vec<f64>) -> Interval {
    values.sort_by(f64::total_cmp);
    let tail = (1.0 - LEVEL) / 2.0;
    Interval {
        low: quantile_sorted(&values, tail),
        high: quantile_sorted(&values, 1.0 - tail),
    }
}

/// Determines when a benchmark has enough samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StopRule {
    /// Largest half width of the interval ÷ the median.
    pub half_width_max: f64,
    /// Smallest number of samples.
    pub samples_min: usize,
    /// Largest number of samples.
    pub samples_max: usize,
}

/// The result of a stop rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Take this many more samples before asking again.
    More(usize),
    /// The interval is narrow enough.
    Narrow,
    /// It is not, and no more samples are allowed: the result must report this.
    Exhausted,
}

impl StopRule {
    /// # Errors
    /// The numbers contradict each other or exceed a limit.
    pub fn new(half_width_max: f64, samples_min: usize, samples_max: usize) -> Result<Self, Error> {
        // Below five samples the percentile interval of a median is the whole range, and too narrow.
        if !(half_width_max > 0.0 && half_width_max < 1.0) {
            let wrong = format!("is {half_width_max}, must be above 0 and below 1");
            return Err(Error::invalid("half_width_max", wrong));
        }
        if !(5 <= samples_min && samples_min <= samples_max && samples_max <= SAMPLES_MAX) {
            let wrong =
                format!("are {samples_min} to {samples_max}, must be within 5 to {SAMPLES_MAX}");
            return Err(Error::invalid("samples", wrong));
        }
        Ok(Self {
            half_width_max,
            samples_min,
            samples_max,
        })
    }

    /// Judges whether these samples are enough. Called after each batch, whose size grows with the number of samples:
    /// too frequent checks would stop at a lucky moment.
    ///
    /// # Errors
    /// A sample that is not finite.
    pub fn judge(&self, samples: &[f64]) -> Result<Verdict, Error> {
        if samples.len() < self.samples_min {
            return Ok(Verdict::More(self.samples_min - samples.len()));
        }
        let found = median_interval(samples)?;
        let half_width = (found.interval.high - found.interval.low) / 2.0;
        if half_width <= self.half_width_max * found.value.abs() {
            return Ok(Verdict::Narrow);
        }
        let left = self.samples_max.saturating_sub(samples.len());
        if left == 0 {
            return Ok(Verdict::Exhausted);
        }
        Ok(Verdict::More((samples.len() / 2).clamp(1, left)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_quantile_of_few_values_is_interpolated() {
        assert_eq!(quantile_sorted(&[], 0.5), 0.0);
        assert_eq!(quantile_sorted(&[3.0], 0.9), 3.0);
        assert_eq!(quantile_sorted(&[1.0, 2.0, 4.0, 8.0], 0.5), 3.0);
        assert_eq!(median(&[5.0, 1.0, 3.0]), Ok(3.0));
        for wrong in [&[][..], &[1.0, f64::NAN], &[f64::INFINITY]] {
            assert!(median(wrong).is_err());
        }
    }

    /// Generates samples with a long tail, like times of messages, with median 1.
    fn long_tailed(random: &mut Random, count: usize) -> Vec<f64> {
        (0..count).map(|_| random.normal().exp()).collect()
    }

    #[test]
    fn an_interval_covers_the_true_median_as_often_as_it_says() {
        let mut random = Random::new(11);
        let (runs, count) = (400, 41);
        let covered = (0..runs)
            .filter(|_| {
                let found = median_interval(&long_tailed(&mut random, count)).expect("finite");
                found.interval.contains(1.0)
            })
            .count();
        // 95 % promised; three standard deviations of a binomial are 3.3 %.
        assert!((366..=394).contains(&covered), "{covered} of {runs}");
    }

    #[test]
    fn a_ratio_tells_samples_apart_only_if_they_differ() {
        let mut random = Random::new(3);
        let one = long_tailed(&mut random, 200);
        let same = long_tailed(&mut random, 200);
        let slower: Vec<f64> = long_tailed(&mut random, 200)
            .iter()
            .map(|time| time * 2.0)
            .collect();
        assert!(
            ratio_interval(&same, &one)
                .expect("finite")
                .interval
                .contains(1.0)
        );
        let found = ratio_interval(&slower, &one).expect("finite").interval;
        assert!(found.low > 1.0 && found.contains(2.0), "{found:?}");
        assert!(ratio_interval(&one, &[0.0, 1.0]).is_err());
    }

    #[test]
    fn the_rule_stops_when_narrow_and_says_so_when_it_may_not_go_on() {
        let rule = StopRule::new(0.02, 10, 400).expect("in range");
        let mut random = Random::new(5);
        assert_eq!(rule.judge(&[1.0; 3]), Ok(Verdict::More(7)));
        assert_eq!(rule.judge(&[1.0; 10]), Ok(Verdict::Narrow));
        let wide = long_tailed(&mut random, 20);
        assert_eq!(rule.judge(&wide), Ok(Verdict::More(10)));
        assert_eq!(
            rule.judge(&long_tailed(&mut random, 400)),
            Ok(Verdict::Exhausted)
        );
        for (width, least, most) in [
            (0.0, 10, 20),
            (1.0, 10, 20),
            (0.1, 2, 20),
            (0.1, 30, 20),
            (0.1, 10, 1 << 20),
        ] {
            assert!(StopRule::new(width, least, most).is_err());
        }
    }

    #[test]
    fn a_loop_with_the_rule_ends_with_a_narrow_interval() {
        let rule = StopRule::new(0.05, 10, 100_000).expect("in range");
        let mut random = Random::new(9);
        let mut samples = Vec::new();
        while let Verdict::More(count) = rule.judge(&samples).expect("finite") {
            samples.extend(long_tailed(&mut random, count));
        }
        let found = median_interval(&samples).expect("finite");
        assert!(found.interval.high - found.interval.low <= 0.1 * found.value);
        assert!(samples.len() > 100, "{}", samples.len());
    }

    proptest! {
        #[test]
        fn an_interval_holds_its_median_and_lies_in_the_range(
            samples in proptest::collection::vec(-1e9..1e9, 1..60),
        ) {
            let found = median_interval(&samples).expect("finite");
            let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
            let most = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            prop_assert!(found.interval.low <= found.value && found.value <= found.interval.high);
            prop_assert!(least <= found.interval.low && found.interval.high <= most);
        }

        #[test]
        fn the_median_of_a_resample_is_that_of_its_values(
            samples in proptest::collection::vec(-1e3..1e3, 1..20),
        ) {
            let mut sorted = samples;
            sorted.sort_by(f64::total_cmp);
            let mut random = Random::new(SEED);
            let mut drawn: Vec<f64> = (0..sorted.len()).map(|_| sorted[random.below(sorted.len())]).collect();
            drawn.sort_by(f64::total_cmp);
            let first = resampled_medians(&sorted, SEED)[0];
            prop_assert!((first - quantile_sorted(&drawn, 0.5)).abs() < 1e-9);
        }
    }
}
