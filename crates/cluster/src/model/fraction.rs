//! Figures of a job from measured times: the parallel fraction from runs on several numbers of boards, and the time of
//! a larger input from runs on smaller ones.

use super::hockney::{Point, least_relative};
use crate::Error;

/// T(n) = T1 ((1 − f) + f ÷ n), fitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fraction {
    /// T1.
    pub single_s: f64,
    /// f, from 0 to 1.
    pub parallel_fraction: f64,
    /// Greatest of |fitted ÷ measured − 1|.
    pub error_max: f64,
}

/// Fits the parallel fraction to computing times on numbers of boards, with the least relative squares. `None` if the
/// numbers do not differ or a time is not above 0: then the times do not determine it.
#[must_use]
pub fn fit_fraction(points: &[(u32, f64)]) -> Option<Fraction> {
    let first = points.first()?.0;
    let is_time = |seconds: f64| seconds > 0.0 && seconds.is_finite();
    let differ = points.iter().any(|(boards, _)| *boards != first);
    if !differ
        || points
            .iter()
            .any(|&(boards, seconds)| boards == 0 || !is_time(seconds))
    {
        return None;
    }
    // A line over 1 ÷ n: the value at 0 is the serial part, the slope is the shared part.
    let mut sorted: Vec<Point> = points
        .iter()
        .map(|&(boards, seconds)| Point {
            bytes: 1.0 / f64::from(boards),
            seconds,
        })
        .collect();
    sorted.sort_by(|a, b| a.bytes.total_cmp(&b.bytes));
    let (serial, shared) = least_relative(&sorted);
    let errors = sorted
        .iter()
        .map(|point| ((serial + shared * point.bytes) / point.seconds - 1.0).abs());
    Some(Fraction {
        single_s: serial + shared,
        parallel_fraction: (shared / (serial + shared)).clamp(0.0, 1.0),
        error_max: errors.fold(0.0, f64::max),
    })
}

/// A line of time over work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// Seconds without any work.
    pub fixed_s: f64,
    /// Seconds for a further unit of work.
    pub seconds_per_work: f64,
    /// Greatest of |fitted ÷ measured − 1|.
    pub error_max: f64,
}

impl Growth {
    /// Fits (work, seconds), with the least relative squares and both parameters at 0 or above.
    ///
    /// # Errors
    /// Fewer than two different amounts of work, or a time that is not above 0.
    pub fn fit(points: &[(f64, f64)]) -> Result<Self, Error> {
        let mut sorted: Vec<Point> = points
            .iter()
            .map(|&(bytes, seconds)| Point { bytes, seconds })
            .collect();
        sorted.sort_by(|a, b| a.bytes.total_cmp(&b.bytes));
        let is_sound = |point: &Point| {
            point.seconds > 1e-12 && point.seconds < 1e9 && point.bytes >= 0.0 && point.bytes < 1e18
        };
        let differ = sorted.windows(2).any(|pair| pair[1].bytes > pair[0].bytes);
        if !differ || !sorted.iter().all(is_sound) {
            return Err(Error::invalid(
                "times",
                "must be above 0 and of two amounts of work at least",
            ));
        }
        let (fixed_s, seconds_per_work) = least_relative(&sorted);
        let fitted = |work: f64| fixed_s + work * seconds_per_work;
        let errors = sorted
            .iter()
            .map(|point| (fitted(point.bytes) / point.seconds - 1.0).abs());
        Ok(Self {
            fixed_s,
            seconds_per_work,
            error_max: errors.fold(0.0, f64::max),
        })
    }

    /// Returns the seconds for an amount of work.
    #[must_use]
    pub fn seconds(&self, work: f64) -> f64 {
        self.fixed_s + work * self.seconds_per_work
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_that_say_nothing_give_no_fraction() {
        assert_eq!(fit_fraction(&[]), None);
        assert_eq!(fit_fraction(&[(1, 2.0), (1, 2.1)]), None);
        assert_eq!(fit_fraction(&[(1, 2.0), (2, 0.0)]), None);
        assert_eq!(fit_fraction(&[(0, 2.0), (2, 1.0)]), None);
        // Slower on two boards: nothing can be shared.
        assert_eq!(
            fit_fraction(&[(1, 2.0), (2, 3.0)]).map(|fit| fit.parallel_fraction),
            Some(0.0)
        );
        // More than twice as fast: everything can be shared.
        assert_eq!(
            fit_fraction(&[(1, 2.0), (2, 0.9)]).map(|fit| fit.parallel_fraction),
            Some(1.0)
        );
    }

    #[test]
    fn growth_needs_two_amounts_of_work() {
        assert!(Growth::fit(&[(1.0, 1.0)]).is_err());
        assert!(Growth::fit(&[(1.0, 1.0), (1.0, 2.0)]).is_err());
        assert!(Growth::fit(&[(1.0, 1.0), (2.0, f64::NAN)]).is_err());
        assert!(Growth::fit(&[(1.0, 1.0), (2.0, 2.0)]).is_ok());
    }

    proptest! {
        #[test]
        fn a_fraction_is_found_again(single_s in 1e-3..1e3_f64, parallel in 0.01..0.999_f64, more in 2_u32..40) {
            let time = |boards: u32| single_s * (1.0 - parallel + parallel / f64::from(boards));
            let points = [1, 2, more].map(|boards| (boards, time(boards)));
            let fit = fit_fraction(&points).expect("they differ");
            prop_assert!((fit.parallel_fraction - parallel).abs() < 1e-6);
            prop_assert!((fit.single_s / single_s - 1.0).abs() < 1e-6);
            prop_assert!(fit.error_max < 1e-6);
        }

        #[test]
        fn a_growth_is_found_again(fixed_s in 1e-4..1.0_f64, rate in 1e-9..1e-3_f64, work in 1e3..1e6_f64) {
            let points = [0.25, 0.5, 1.0].map(|part: f64| (part * work, fixed_s + part * work * rate));
            let fit = Growth::fit(&points).expect("two amounts");
            prop_assert!((fit.seconds(4.0 * work) / (fixed_s + 4.0 * work * rate) - 1.0).abs() < 1e-4);
        }
    }
}
