//! The steps between readings, from their times: where readings are missing, the mean step, and steps that differ from
//! it.
//!
//! A step is a break if it is longer than 1.5 times the usual one, which is the median. Times in whole seconds or
//! milliseconds may be rounded: 1.5 ms become steps of 1, 2, 1 and 2 ms. So if a tenth of the steps or more is longer,
//! but by one unit at most, these are no breaks.

/// A longer step than this multiple of the usual one is a break.
const BREAK_FACTOR: f64 = 1.5;

/// Units of times that may be rounded, in s, the coarsest first.
const UNITS_S: [f64; 2] = [1.0, 1e-3];

/// Largest error of a time in seconds since 1970, and of a step, as parts of a unit.
const TIME_ERROR: f64 = 5e-4;
const STEP_ERROR: f64 = 1e-2;

/// From this part of the steps on, those that are longer by a unit are due to rounding.
const ROUNDED_PART: f64 = 0.1;

/// A step that differs from the mean by more than this part is uneven.
const UNEVEN_PART: f64 = 0.25;

/// Returns each step's length, and the number of the row behind it.
fn steps(times_s: &[f64]) -> impl Iterator<Item = (usize, f64)> {
    let pairs = times_s.windows(2).enumerate();
    pairs.map(|(at, pair)| (at + 1, pair[1] - pair[0]))
}

/// Returns the steps that do not cross a break.
fn within(times_s: &[f64], breaks: &[usize]) -> impl Iterator<Item = f64> {
    let inner = steps(times_s).filter(move |(at, _)| breaks.binary_search(at).is_err());
    inner.map(|(_, step_s)| step_s)
}

/// Returns all breaks, and the mean step between them. `known` has the breaks that are known already, in order.
pub(super) fn measured(times_s: &[f64], known: Vec<usize>) -> (Vec<usize>, Option<f64>) {
    let Some(usual_s) = usual(times_s, &known) else {
        return (known, None);
    };
    let longest_s = longest(times_s, &known, usual_s);
    let mut breaks = known;
    let long = steps(times_s).filter(|(_, step_s)| *step_s > longest_s);
    breaks.extend(long.map(|(at, _)| at));
    breaks.sort_unstable();
    breaks.dedup();
    let mean_s = mean(times_s, &breaks).unwrap_or(usual_s);
    let mean_s = Some(rounded(mean_s)).filter(|mean_s| mean_s.is_finite() && *mean_s > 0.0);
    (breaks, mean_s)
}

/// Returns the number of uneven steps between breaks.
pub(super) fn uneven(times_s: &[f64], breaks: &[usize], mean_s: f64) -> usize {
    let is_uneven = |step_s: &f64| (step_s - mean_s).abs() > UNEVEN_PART * mean_s;
    within(times_s, breaks).filter(is_uneven).count()
}

/// Returns the median step; of two in the middle, the shorter one.
fn usual(times_s: &[f64], breaks: &[usize]) -> Option<f64> {
    let mut lengths: Vec<f64> = within(times_s, breaks).collect();
    if lengths.is_empty() {
        lengths = steps(times_s).map(|(_, step_s)| step_s).collect();
    }
    let middle = lengths.len().checked_sub(1)? / 2;
    Some(*lengths.select_nth_unstable_by(middle, f64::total_cmp).1)
}

/// Returns the longest step that is no break. Only steps within `breaks` show whether times are rounded.
fn longest(times_s: &[f64], breaks: &[usize], usual_s: f64) -> f64 {
    let is_whole = |unit_s: &f64| {
        let mut parts = times_s.iter().map(|time_s| time_s / unit_s);
        parts.all(|units| (units - units.round()).abs() <= TIME_ERROR)
    };
    let longest_s = BREAK_FACTOR * usual_s;
    let Some(unit_s) = UNITS_S.into_iter().find(is_whole) else {
        return longest_s;
    };
    let longest_s = longest_s + STEP_ERROR * unit_s;
    let rounded_s = usual_s + (1.0 + STEP_ERROR) * unit_s;
    let is_rounded = |step_s: &f64| *step_s > longest_s && *step_s <= rounded_s;
    let rounded = within(times_s, breaks).filter(is_rounded).count() as f64;
    let all = within(times_s, breaks).count() as f64;
    if rounded >= ROUNDED_PART * all {
        longest_s.max(rounded_s)
    } else {
        longest_s
    }
}

/// Returns the mean step: of each stretch between breaks only the first and the last time count, so rounding cancels.
fn mean(times_s: &[f64], breaks: &[usize]) -> Option<f64> {
    let ends = breaks.iter().copied().chain([times_s.len()]);
    let (mut begin, mut seconds, mut count) = (0, 0.0, 0);
    for end in ends {
        if let Some([first, .., last]) = times_s.get(begin..end) {
            seconds += last - first;
            count += end - begin - 1;
        }
        begin = end;
    }
    (count > 0).then(|| seconds / count as f64)
}

/// Rounds to nine digits: differences of times in seconds since 1970 are not more precise.
fn rounded(step_s: f64) -> f64 {
    format!("{step_s:.8e}").parse().unwrap_or(step_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of readings at a step in s, rounded down to whole ms, some of them left out.
    fn times(step_s: f64, is_kept: impl Fn(usize) -> bool) -> Vec<f64> {
        let rows = (0..6_000).filter(|row| is_kept(*row));
        rows.map(|row| 1_700_000_000.0 + (row as f64 * step_s * 1e3 + 1e-6).floor() / 1e3)
            .collect()
    }

    /// Sums of times since 1970 are exact to some digits only.
    fn is_near(found_s: Option<f64>, wanted_s: f64) -> bool {
        found_s.is_some_and(|found_s| (found_s / wanted_s - 1.0).abs() < 1e-3)
    }

    fn assert_step(times_s: &[f64], step_s: f64) {
        let (breaks, mean_s) = measured(times_s, Vec::new());
        assert_eq!(breaks, Vec::<usize>::new(), "{step_s}");
        assert!(is_near(mean_s, step_s), "{mean_s:?} {step_s}");
    }

    /// The median of 3, 3 and 4 ms is 3 ms: 20 Hz were 22 Hz.
    #[test]
    fn times_rounded_to_ms_have_the_step_of_the_sensor() {
        for step_s in [3.3e-3, 1.5e-3, 1.3e-3, 1.8e-3, 2.5e-3, 2.1e-3, 10e-3] {
            assert_step(&times(step_s, |_| true), step_s);
        }
        // The unit of these is 1 s.
        let seconds: Vec<f64> = (0..100).map(|row| (f64::from(row) * 1.5).floor()).collect();
        assert_step(&seconds[..99], 1.5);
    }

    #[test]
    fn a_step_that_rounding_does_not_explain_is_a_break() {
        let mut gap = times(10e-3, |row| row != 3_000);
        let (breaks, mean_s) = measured(&gap, Vec::new());
        assert_eq!(breaks, [3_000]);
        assert!(is_near(mean_s, 10e-3), "{mean_s:?}");
        // The same where times are rounded, if the gap is longer than a unit.
        gap = times(1.5e-3, |row| !(3_000..3_010).contains(&row));
        let (breaks, mean_s) = measured(&gap, Vec::new());
        assert_eq!(breaks, [3_000]);
        assert!(is_near(mean_s, 1.5e-3), "{mean_s:?}");
        // A single reading of a sensor of 1 Hz.
        let seconds: Vec<f64> = (0..100).filter(|row| *row != 40).map(f64::from).collect();
        assert_eq!(measured(&seconds, Vec::new()), (vec![40], Some(1.0)));
    }

    #[test]
    fn a_third_of_the_rows_missing_is_not_taken_for_another_rate_in_silence() {
        let kept = times(10e-3, |row| row % 3 != 2);
        let (breaks, mean_s) = measured(&kept, Vec::new());
        // No window fits between so many breaks.
        assert_eq!(breaks.len(), 1_999);
        assert!(is_near(mean_s, 10e-3), "{mean_s:?}");
        // Rounding could explain these, so the steps are counted.
        let kept = times(1e-3, |row| row % 3 != 2);
        let (breaks, mean_s) = measured(&kept, Vec::new());
        assert_eq!(breaks, Vec::<usize>::new());
        assert_eq!(uneven(&kept, &breaks, mean_s.expect("a step")), 3_999);
        // A quarter of the step is fine enough for times.
        let exact = times(4.3e-3, |_| true);
        let (breaks, mean_s) = measured(&exact, Vec::new());
        assert_eq!(uneven(&exact, &breaks, mean_s.expect("a step")), 0);
    }

    #[test]
    fn readings_without_two_times_have_no_step() {
        assert_eq!(measured(&[], vec![3]), (vec![3], None));
        assert_eq!(measured(&[5.0], Vec::new()), (Vec::new(), None));
        // A break at each row leaves the usual step.
        assert_eq!(measured(&[0.0, 2.0], vec![1]), (vec![1], Some(2.0)));
    }
}
