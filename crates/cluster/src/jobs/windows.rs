//! Windows over readings, and their distribution to ranks.

use super::communicator::Failure;
use super::readings::Readings;
use std::ops::Range;

/// Largest number of windows of a job.
pub const WINDOWS_MAX: usize = 1 << 22;

/// Returns the first rows of all windows, in order. No window reaches across a break.
#[must_use]
pub fn starts(readings: &Readings, window: usize, step: usize) -> Vec<usize> {
    let rows = readings.rows();
    let begins = std::iter::once(0).chain(readings.breaks.iter().copied());
    let ends = readings.breaks.iter().copied().chain([rows]);
    let stretches = begins.zip(ends);
    let starts = stretches.flat_map(|(begin, end)| {
        let last = end.checked_sub(window).filter(|last| *last >= begin);
        let range = last.map_or(0..0, |last| begin..last + 1);
        range.step_by(step.max(1))
    });
    starts.take(WINDOWS_MAX + 1).collect()
}

/// Returns the share of one rank in `count` items: consecutive items, and the sizes of shares differ by at most one.
#[must_use]
pub fn share(count: usize, rank: usize, size: usize) -> Range<usize> {
    let at = |rank: usize| (count as u128 * rank as u128 / size.max(1) as u128) as usize;
    at(rank)..at(rank + 1)
}

/// The share of one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dealt {
    /// Index of its first window, in the whole job.
    pub first: usize,
    /// First rows of its windows, in `columns`.
    pub starts: Vec<usize>,
    /// The rows that its windows need.
    pub columns: Vec<Vec<f64>>,
}

/// Returns the parts for all ranks, in the form for scattering. A part begins with the number of the first window, the
/// number of windows, and the rows. The windows' first rows follow, then the columns one after the other.
#[must_use]
pub fn deal(readings: &Readings, starts: &[usize], window: usize, size: usize) -> Vec<Vec<f64>> {
    let part = |rank: usize| {
        let share = share(starts.len(), rank, size);
        let mine = &starts[share.clone()];
        let (Some(&begin), Some(&last)) = (mine.first(), mine.last()) else {
            return vec![share.start as f64, 0.0, 0.0];
        };
        let end = last + window;
        let mut part = vec![share.start as f64, mine.len() as f64, (end - begin) as f64];
        part.extend(mine.iter().map(|start| (start - begin) as f64));
        for column in &readings.columns {
            part.extend_from_slice(&column[begin..end]);
        }
        part
    };
    (0..size).map(part).collect()
}

/// Decodes the part of a rank from [`deal`].
///
/// # Errors
/// The part is invalid.
pub fn take(part: &[f64], columns: usize, window: usize) -> Result<Dealt, Failure> {
    let wrong = || Failure::of(0, "has handed out a part that is none");
    let whole = |value: f64| {
        let is_whole = (0.0..9e15).contains(&value) && value.fract() == 0.0;
        is_whole.then_some(value as usize)
    };
    let [first, count, rows, rest @ ..] = part else {
        return Err(wrong());
    };
    let (first, count) = (
        whole(*first).ok_or_else(wrong)?,
        whole(*count).ok_or_else(wrong)?,
    );
    let rows = whole(*rows).ok_or_else(wrong)?;
    if count > rest.len() || rows > rest.len() || rest.len() != count + columns * rows {
        return Err(wrong());
    }
    let (starts, values) = rest.split_at(count);
    let starts: Option<Vec<usize>> = starts.iter().map(|&start| whole(start)).collect();
    let starts = starts.ok_or_else(wrong)?;
    if starts.iter().any(|start| start + window > rows) {
        return Err(wrong());
    }
    let columns = match rows {
        0 => vec![Vec::new(); columns],
        rows => values.chunks(rows).map(<[f64]>::to_vec).collect(),
    };
    Ok(Dealt {
        first,
        starts,
        columns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn readings(rows: usize, columns: usize, breaks: Vec<usize>) -> Readings {
        let column = |at: usize| (0..rows).map(|row| (row * 10 + at) as f64).collect();
        Readings {
            names: (0..columns).map(|at| format!("c{at}")).collect(),
            columns: (0..columns).map(column).collect(),
            breaks,
            ..Readings::default()
        }
    }

    #[test]
    fn windows_do_not_reach_across_breaks() {
        assert_eq!(starts(&readings(10, 1, vec![]), 4, 2), [0, 2, 4, 6]);
        assert_eq!(starts(&readings(10, 1, vec![3, 7]), 3, 1), [0, 3, 4, 7]);
        assert_eq!(starts(&readings(10, 1, vec![5]), 6, 1), [] as [usize; 0]);
    }

    #[test]
    fn malformed_parts_are_refused() {
        for part in [
            &[][..],
            &[0.0, 1.0],
            &[0.0, 1.0, 4.0, 1.0, 1.0, 2.0, 3.0, 4.0],
            &[0.0, 1.0, 4.0, 0.0, 1.0],
            &[0.0, -1.0, 4.0],
            &[0.0, 0.5, 4.0],
            &[f64::NAN, 0.0, 0.0],
            &[0.0, 1e15, 1e15],
        ] {
            assert!(take(part, 1, 4).is_err(), "{part:?}");
        }
        assert!(take(&[0.0, 1.0, 4.0, 0.0, 1.0, 2.0, 3.0, 4.0], 1, 4).is_ok());
    }

    proptest! {
        #[test]
        fn each_window_is_dealt_to_one_rank_with_its_readings(
            rows in 1_usize..200, columns in 1_usize..4, window in 1_usize..20, step in 1_usize..20, size in 1_usize..7,
            breaks in proptest::collection::btree_set(1_usize..200, 0..5),
        ) {
            let breaks = breaks.into_iter().filter(|&at| at < rows).collect();
            let readings = readings(rows, columns, breaks);
            let starts = starts(&readings, window, step);
            let mut seen = Vec::new();
            for part in deal(&readings, &starts, window, size) {
                let dealt = take(&part, columns, window).expect("a part");
                prop_assert_eq!(dealt.first, seen.len());
                for start in dealt.starts {
                    let rows: Vec<&[f64]> = dealt.columns.iter().map(|column| &column[start..start + window]).collect();
                    let begin = starts[seen.len()];
                    for (column, rows) in readings.columns.iter().zip(rows) {
                        prop_assert_eq!(&column[begin..begin + window], rows);
                    }
                    seen.push(begin);
                }
            }
            prop_assert_eq!(seen, starts);
        }
    }
}
