//! Figures of a job from measured times. Runs on several numbers of boards give the parallel fraction. Runs on smaller
//! inputs give the time of a larger one.

use super::hockney::{Curve, Point, least_relative};
use crate::Error;

/// Largest number of segments of time over work: a machine's time per unit of work can jump once, as where data outgrow
/// a cache.
const GROWTH_SEGMENTS_MAX: usize = 2;

/// Spread of a forecast for each doubling of the largest measured work. The greatest error measured in
/// docs/results/cluster.md is 14 % at 2.8 times the work, of a fit within 2.4 %.
const SPREAD_PER_DOUBLING: f64 = 0.1;

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

/// Time over work: a line, or two from an amount of work on.
#[derive(Clone, Debug, PartialEq)]
pub struct Growth {
    curve: Curve,
    /// Greatest of |fitted ÷ measured − 1|.
    pub error_max: f64,
    /// Largest measured amount of work.
    work_max: f64,
}

impl Growth {
    /// Fits (work, seconds), with the least relative squares and both parameters at 0 or above. Two segments must each
    /// have three points, and the second must justify itself.
    ///
    /// # Errors
    /// Fewer than three points or two different amounts of work, or a time that is not above 0.
    pub fn fit(points: &[(f64, f64)]) -> Result<Self, Error> {
        let works = || points.iter().map(|point| point.0);
        let (least, work_max) = (
            works().fold(f64::INFINITY, f64::min),
            works().fold(0.0, f64::max),
        );
        if least >= work_max {
            return Err(Error::invalid(
                "times",
                "must be of two amounts of work at least",
            ));
        }
        let points: Vec<Point> = points
            .iter()
            .map(|&(bytes, seconds)| Point { bytes, seconds })
            .collect();
        let curve = Curve::fit(&points, GROWTH_SEGMENTS_MAX)?;
        let errors = curve.segments().iter().map(|segment| segment.error_max);
        Ok(Self {
            error_max: errors.fold(0.0, f64::max),
            curve,
            work_max,
        })
    }

    /// Returns the seconds for an amount of work.
    #[must_use]
    pub fn seconds(&self, work: f64) -> f64 {
        self.curve.seconds(work)
    }

    /// Returns the relative standard deviation of a forecast. It is the greatest error of the fit, and grows with the
    /// distance of the work from the largest measured one.
    #[must_use]
    pub fn spread(&self, work: f64) -> f64 {
        let doublings = (work / self.work_max).log2().max(0.0);
        self.error_max + SPREAD_PER_DOUBLING * doublings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn insufficient_times_give_no_fraction() {
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
        assert!(Growth::fit(&[(1.0, 1.0), (2.0, 2.0)]).is_err());
        assert!(Growth::fit(&[(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]).is_err());
        assert!(Growth::fit(&[(1.0, 1.0), (2.0, f64::NAN), (3.0, 3.0)]).is_err());
        assert!(Growth::fit(&[(1.0, 1.0), (1.0, 1.0), (2.0, 2.0)]).is_ok());
    }

    /// Above an amount of work each unit takes twice as long: a line through all points is right nowhere.
    #[test]
    fn a_jump_in_the_time_of_work_is_followed() {
        let time = |work: f64| if work < 1e6 { work * 1e-9 } else { work * 2e-9 };
        let points: Vec<(f64, f64)> = (0..8)
            .map(|doublings| 4e4 * f64::from(1_u32 << doublings))
            .map(|work| (work, time(work)))
            .collect();
        let growth = Growth::fit(&points).expect("enough");
        for work in [5e4, 4e6, 2e7] {
            assert!(
                (growth.seconds(work) / time(work) - 1.0).abs() < 1e-6,
                "{work}"
            );
        }
        assert!(growth.error_max < 1e-6);
    }

    /// The measured times of a matrix profile (docs/results/cluster/fit.csv). The fit is within 2.4 %, and the forecast
    /// for 2.8 times the work is wrong by 14 %.
    #[test]
    fn a_forecast_is_less_certain_the_further_it_goes() {
        let work = |rows: f64| rows * rows;
        let points = [
            (4_096.0, 0.037382045),
            (6_144.0, 0.078148464),
            (8_192.0, 0.142349085),
            (12_288.0, 0.314732622),
        ];
        let growth = Growth::fit(&points.map(|(rows, seconds)| (work(rows), seconds)));
        let growth = growth.expect("enough");
        assert!(growth.error_max < 0.03, "{growth:?}");
        let error = (growth.seconds(work(20_480.0)) / 1.014960706 - 1.0).abs();
        assert!(error > 0.1, "{error}");
        assert!(growth.spread(work(20_480.0)) > error, "{growth:?}");
        // Between the measured ones it is the error of the fit.
        assert_eq!(growth.spread(work(8_000.0)), growth.error_max);
        assert!(growth.spread(work(40_960.0)) > growth.spread(work(20_480.0)));
    }

    proptest! {
        #[test]
        fn a_fit_recovers_the_fraction(single_s in 1e-3..1e3_f64, parallel in 0.01..0.999_f64, more in 2_u32..40) {
            let time = |boards: u32| single_s * (1.0 - parallel + parallel / f64::from(boards));
            let points = [1, 2, more].map(|boards| (boards, time(boards)));
            let fit = fit_fraction(&points).expect("they differ");
            prop_assert!((fit.parallel_fraction - parallel).abs() < 1e-6);
            prop_assert!((fit.single_s / single_s - 1.0).abs() < 1e-6);
            prop_assert!(fit.error_max < 1e-6);
        }

        #[test]
        fn a_fit_recovers_the_growth_of_work(fixed_s in 1e-4..1.0_f64, rate in 1e-9..1e-3_f64, work in 1e3..1e6_f64) {
            let points = [0.25, 0.5, 1.0].map(|part: f64| (part * work, fixed_s + part * work * rate));
            let fit = Growth::fit(&points).expect("two amounts");
            prop_assert!((fit.seconds(4.0 * work) / (fixed_s + 4.0 * work * rate) - 1.0).abs() < 1e-4);
        }
    }
}
