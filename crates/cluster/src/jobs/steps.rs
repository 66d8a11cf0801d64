//! The steps between readings, from their times: where readings are missing or the rate changes, mean steps, and steps
//! that differ from these.
//!
//! A step is a break if it is longer than 1.5 times the usual one, which is the median. Times in whole seconds or
//! milliseconds may be rounded: 1.5 ms become steps of 1, 2, 1 and 2 ms. So if a tenth of the steps or more is longer,
//! but by one unit at most, these are no breaks. Many long steps on end are another rate, with one break before them.
//!
//! A change of the rate without a gap is a break, too. So each stretch between breaks has one rate. It has its own mean
//! step where the rates differ.

/// A longer step than this multiple of the usual one is a break.
const BREAK_FACTOR: f64 = 1.5;

/// Units of times that may be rounded, in s, the coarsest first.
const UNITS_S: [f64; 2] = [1.0, 1e-3];

/// Largest error of a time in seconds since 1970, and of a step, as parts of a unit.
const TIME_ERROR: f64 = 5e-4;
const STEP_ERROR: f64 = 1e-2;

/// From this part of the steps on, those that are longer by a unit are due to rounding.
const ROUNDED_PART: f64 = 0.1;

/// From this number on, long steps on end are a stretch with another rate.
const SLOWER_MIN: usize = 16;

/// Number of steps whose mean is compared with that of the steps before, and the smallest one.
const BLOCK: usize = 64;
const BLOCK_MIN: usize = 8;

/// Means that differ by more than this part, and by more than times explain, are different rates.
const CHANGE: f64 = 0.02;

/// Precision of a time in seconds since 1970, in s.
const PRECISION_S: f64 = 5e-7;

/// Least number of breaks, and greatest mean number of readings between them, of bursts.
const BURSTS_MIN: usize = 3;
const BURST_ROWS_MAX: usize = 1_024;

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

/// Returns the first row of each stretch between breaks, and the row behind it.
fn stretches(breaks: &[usize], rows: usize) -> impl Iterator<Item = (usize, usize)> {
    let begins = std::iter::once(0).chain(breaks.iter().copied());
    begins.zip(breaks.iter().copied().chain([rows]))
}

/// Returns all breaks, and the mean step between them. `known` has the breaks that are known already, in order.
pub(super) fn measured(times_s: &[f64], known: Vec<usize>) -> (Vec<usize>, Option<f64>) {
    let Some(usual_s) = usual(times_s, &known) else {
        return (known, None);
    };
    let gaps = gaps(times_s, &known, usual_s);
    let mut breaks = known;
    breaks.extend(gaps);
    breaks.sort_unstable();
    breaks.dedup();
    let resolution_s = resolution(times_s);
    let changes = stretches(&breaks, times_s.len()).flat_map(|(begin, end)| {
        let found = changes(times_s.get(begin..end).unwrap_or_default(), resolution_s);
        found.into_iter().map(move |at| begin + at)
    });
    let changes: Vec<usize> = changes.collect();
    breaks.extend(changes);
    breaks.sort_unstable();
    let mean_s = mean(times_s, &breaks).unwrap_or(usual_s);
    let mean_s = Some(rounded(mean_s)).filter(|mean_s| mean_s.is_finite() && *mean_s > 0.0);
    (breaks, mean_s)
}

/// Returns the mean step of each stretch; none if `mean_s` is that of all.
///
/// A stretch has a step of its own if times that are rounded, or off by half a step, do not explain the difference.
/// Half a step shifts a frequency of a window by at most a quarter of the distance between two frequencies.
pub(super) fn of_stretches(times_s: &[f64], breaks: &[usize], mean_s: f64) -> Vec<f64> {
    let error_s = resolution(times_s) + mean_s / 2.0;
    let own = |(begin, end): (usize, usize)| {
        let [first, .., last] = times_s.get(begin..end)? else {
            return None;
        };
        let (seconds, count) = (last - first, (end - begin - 1) as f64);
        let step_s = rounded(seconds / count);
        let is_own = (seconds - count * mean_s).abs() > error_s;
        (is_own && step_s.is_finite() && step_s > 0.0).then_some(step_s)
    };
    let own: Vec<Option<f64>> = stretches(breaks, times_s.len()).map(own).collect();
    if own.iter().all(Option::is_none) {
        return Vec::new();
    }
    own.into_iter()
        .map(|step_s| step_s.unwrap_or(mean_s))
        .collect()
}

/// Returns the number of uneven steps between breaks. `steps_s` has the mean step of each stretch if they differ.
pub(super) fn uneven(times_s: &[f64], breaks: &[usize], steps_s: &[f64], mean_s: f64) -> usize {
    let stretches = stretches(breaks, times_s.len()).enumerate();
    let counts = stretches.map(|(stretch, (begin, end))| {
        let mean_s = steps_s.get(stretch).copied().unwrap_or(mean_s);
        let is_uneven = |step_s: &f64| (step_s - mean_s).abs() > UNEVEN_PART * mean_s;
        let inner = steps(times_s.get(begin..end).unwrap_or_default());
        inner.map(|(_, step_s)| step_s).filter(is_uneven).count()
    });
    counts.sum()
}

/// Returns the mean number of readings between two breaks if breaks take most of the time.
pub(super) fn burst(times_s: &[f64], breaks: &[usize]) -> Option<usize> {
    let [first, .., last] = times_s else {
        return None;
    };
    let count = times_s.len() / (breaks.len() + 1);
    let within_s: f64 = within(times_s, breaks).sum();
    let is_burst = breaks.len() >= BURSTS_MIN && count <= BURST_ROWS_MAX;
    (is_burst && within_s < (last - first) / 2.0).then_some(count)
}

/// Returns the rows behind steps that are too long.
fn gaps(times_s: &[f64], known: &[usize], usual_s: f64) -> Vec<usize> {
    let longest_s = longest(times_s, known, usual_s);
    let long = steps(times_s).filter(|(_, step_s)| *step_s > longest_s);
    let long: Vec<usize> = long.map(|(at, _)| at).collect();
    let is_next =
        |before: &usize, at: &usize| *at == before + 1 && known.binary_search(at).is_err();
    let mut found = Vec::with_capacity(long.len());
    for run in long.chunk_by(is_next) {
        let [first, .., last] = *run else {
            found.extend_from_slice(run);
            continue;
        };
        let slower = &times_s[first..=last];
        match usual(slower, &[]).filter(|_| run.len() >= SLOWER_MIN) {
            Some(usual_s) => {
                found.push(first);
                // At most half of these steps are longer than their median.
                found.extend(gaps(slower, &[], usual_s).into_iter().map(|at| first + at));
            }
            None => found.extend_from_slice(run),
        }
    }
    found
}

/// Returns the rows of a stretch from which on the rate is another one.
///
/// A drift is cut where it has become a change.
fn changes(times_s: &[f64], resolution_s: f64) -> Vec<usize> {
    let last = times_s.len().saturating_sub(1);
    let block = BLOCK.min(last / 2);
    let mut found = Vec::new();
    if block < BLOCK_MIN {
        return found;
    }
    let mean = |begin: usize, end: usize| (times_s[end] - times_s[begin]) / (end - begin) as f64;
    let (mut from, mut at) = (0, block);
    while at < last {
        let end = (at + block).min(last);
        let before_s = mean(from, at);
        let slack_s = CHANGE * before_s + (resolution_s + before_s) / block as f64;
        if (mean(end - block, end) - before_s).abs() <= slack_s {
            at = end;
            continue;
        }
        // The corner is in this block or, if that was too short to show it, in the one before.
        let begin = from.max(at.saturating_sub(block));
        let step_s = mean(begin, end);
        let off =
            |row: &usize| (times_s[*row] - times_s[begin] - (row - begin) as f64 * step_s).abs();
        let corner = (begin + 1..end).max_by(|one, other| off(one).total_cmp(&off(other)));
        from = corner.unwrap_or(at);
        found.push(from);
        at = from + block;
    }
    found
}

/// Returns the unit of times that are rounded.
fn unit(times_s: &[f64]) -> Option<f64> {
    let is_whole = |unit_s: &f64| {
        let mut parts = times_s.iter().map(|time_s| time_s / unit_s);
        parts.all(|units| (units - units.round()).abs() <= TIME_ERROR)
    };
    UNITS_S.into_iter().find(is_whole)
}

/// Returns the largest error of the time between two readings.
fn resolution(times_s: &[f64]) -> f64 {
    unit(times_s).unwrap_or(PRECISION_S)
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
    let longest_s = BREAK_FACTOR * usual_s;
    let Some(unit_s) = unit(times_s) else {
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
        // No window fits between these breaks.
        assert_eq!(breaks.len(), 1_999);
        assert!(is_near(mean_s, 10e-3), "{mean_s:?}");
        // Rounding could explain these, so the steps are counted.
        let kept = times(1e-3, |row| row % 3 != 2);
        let (breaks, mean_s) = measured(&kept, Vec::new());
        assert_eq!(breaks, Vec::<usize>::new());
        assert_eq!(uneven(&kept, &breaks, &[], mean_s.expect("a step")), 3_999);
        // A quarter of the step is fine enough for times.
        let exact = times(4.3e-3, |_| true);
        let (breaks, mean_s) = measured(&exact, Vec::new());
        assert_eq!(uneven(&exact, &breaks, &[], mean_s.expect("a step")), 0);
    }

    /// Times of readings from their steps.
    fn summed(steps_s: impl Iterator<Item = f64>) -> Vec<f64> {
        let sum = |time_s: &mut f64, step_s: f64| {
            *time_s += step_s;
            Some(*time_s)
        };
        steps_s.scan(1_700_000_000.0, sum).collect()
    }

    /// A signal of 50 Hz had 58 and 42 Hz.
    #[test]
    fn each_stretch_has_the_step_of_its_own_rate() {
        let gap = summed((0..8_000).map(|row| match row {
            0..4_000 => 1e-3,
            4_000 => 3_600.0,
            _ => 1.0 / 1_400.0,
        }));
        let (breaks, mean_s) = measured(&gap, Vec::new());
        let steps_s = of_stretches(&gap, &breaks, mean_s.expect("a step"));
        assert_eq!((breaks, steps_s.len()), (vec![4_000], 2));
        assert!(is_near(steps_s.first().copied(), 1e-3), "{steps_s:?}");
        assert!(
            is_near(steps_s.last().copied(), 1.0 / 1_400.0),
            "{steps_s:?}"
        );
        // One rate on both sides of a gap is one step.
        let same = times(1.5e-3, |row| !(3_000..3_010).contains(&row));
        let (breaks, mean_s) = measured(&same, Vec::new());
        assert!(of_stretches(&same, &breaks, mean_s.expect("a step")).is_empty());
    }

    #[test]
    fn a_change_of_the_rate_without_a_gap_is_a_break() {
        for (before_s, behind_s) in [
            (1.0 / 1_000.0, 1.0 / 1_300.0),
            (1e-3, 1.4e-3),
            (1e-3, 2.5e-3),
        ] {
            let changed =
                summed((0..8_000).map(|row| if row < 4_777 { before_s } else { behind_s }));
            let (breaks, mean_s) = measured(&changed, Vec::new());
            let &[at] = breaks.as_slice() else {
                panic!("{breaks:?}");
            };
            assert!(at.abs_diff(4_777) <= 1, "{at}");
            let steps_s = of_stretches(&changed, &breaks, mean_s.expect("a step"));
            assert!(is_near(steps_s.first().copied(), before_s), "{steps_s:?}");
            assert!(is_near(steps_s.last().copied(), behind_s), "{steps_s:?}");
        }
    }

    #[test]
    fn a_drift_is_cut_into_stretches_of_about_one_rate() {
        let step_s = |row: u32| 1e-3 * (1.0 + f64::from(row) / 20_000.0);
        let drift = summed((0..8_000).map(step_s));
        let (breaks, mean_s) = measured(&drift, Vec::new());
        assert!((3..30).contains(&breaks.len()), "{breaks:?}");
        let steps_s = of_stretches(&drift, &breaks, mean_s.expect("a step"));
        for (row, stretch) in [(100, 0), (7_900, breaks.len())] {
            let found_s = steps_s[stretch];
            assert!(
                (found_s / step_s(row) - 1.0).abs() < 0.05,
                "{found_s} {row}"
            );
        }
    }

    #[test]
    fn times_of_batches_are_recognised() {
        let step_s = |row: u32| {
            if row.is_multiple_of(32) {
                31.69e-3
            } else {
                1e-5
            }
        };
        let batches = summed((0..8_000).map(step_s));
        let (breaks, _) = measured(&batches, Vec::new());
        assert_eq!(burst(&batches, &breaks), Some(32));
        // Some gaps, and many small ones.
        let gap = |row: u32| {
            if row.is_multiple_of(2_000) {
                3_600.0
            } else {
                1e-3
            }
        };
        let gaps = summed((0..8_000).map(gap));
        assert_eq!(burst(&gaps, &measured(&gaps, Vec::new()).0), None);
        let lost = times(10e-3, |row| row % 10 != 9);
        assert_eq!(burst(&lost, &measured(&lost, Vec::new()).0), None);
        assert_eq!(burst(&[], &[]), None);
    }

    #[test]
    fn readings_without_two_times_have_no_step() {
        assert_eq!(measured(&[], vec![3]), (vec![3], None));
        assert_eq!(measured(&[5.0], Vec::new()), (Vec::new(), None));
        // A break at each row leaves the usual step.
        assert_eq!(measured(&[0.0, 2.0], vec![1]), (vec![1], Some(2.0)));
    }
}
