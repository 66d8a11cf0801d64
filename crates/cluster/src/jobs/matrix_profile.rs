//! The matrix profile of a series: for each window the most similar other window, after C.-C. M. Yeh et al., "Matrix
//! Profile I" (2016). A repeated shape is a motif; a window that resembles no other is a discord.
//!
//! Similarity is the correlation of two windows, ρ. Their distance is √(2 m (1 − ρ)), where each window is normalised
//! to mean 0 and deviation 1. Windows within a quarter of a window of each other are not compared. A constant window
//! has no shape. As in other programs, two constant windows are equal (ρ = 1). A constant window is half similar to
//! any other window (ρ = ½, the distance √m).
//!
//! Rank 0 sends the series to all. Pairs of windows are processed along diagonals, where the covariance follows from
//! the previous one in a few operations (T. Zimmerman et al., "Matrix Profile XIV", 2019). At regular intervals it is
//! recalculated from the definition, so that errors do not accumulate. Any rank processes a whole diagonal from the
//! same start. The greatest value wins, and the first window if values are equal. So the answer is bitwise the same on
//! any number of ranks. It is the same on any type of board, since only + − × ÷ √ are used.

use super::communicator::{Communicator, Failure};
use super::readings::Readings;
use super::watch::Watch;

/// Largest number of readings: the work grows with its square.
pub const ROWS_MAX: usize = 1 << 18;

/// Number of diagonals that are distributed together.
const BLOCK: usize = 16;

/// Smallest number of positions on a diagonal after which the covariance is recalculated from the definition. For
/// windows of more than 128 readings the interval is longer: 8 × the window.
const ANCHOR_ROWS: usize = 1_024;

/// No window.
const NONE: usize = usize::MAX;

/// The profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Number of readings in a window.
    pub window: usize,
    /// For each window the correlation with its most similar window; −∞ if there is none.
    pub correlations: Vec<f64>,
    /// The index of that window; `None` if there is none.
    pub neighbours: Vec<Option<usize>>,
}

impl Answer {
    /// Returns the distance of a window to its most similar window.
    #[must_use]
    pub fn distance(&self, at: usize) -> Option<f64> {
        let correlation = *self.correlations.get(at)?;
        let square = 2.0 * self.window as f64 * (1.0 - correlation);
        correlation.is_finite().then(|| square.max(0.0).sqrt())
    }

    /// Returns the two most similar windows: the first of both, its neighbour, their distance.
    #[must_use]
    pub fn motif(&self) -> Option<(usize, usize, f64)> {
        let at = self.extreme(|new, old| new > old)?;
        Some((at, self.neighbours[at]?, self.distance(at)?))
    }

    /// Returns the window that is least similar to any other, its nearest neighbour, their distance.
    #[must_use]
    pub fn discord(&self) -> Option<(usize, usize, f64)> {
        let at = self.extreme(|new, old| new < old)?;
        Some((at, self.neighbours[at]?, self.distance(at)?))
    }

    fn extreme(&self, is_better: impl Fn(f64, f64) -> bool) -> Option<usize> {
        let mut best: Option<(usize, f64)> = None;
        for (at, &correlation) in self.correlations.iter().enumerate() {
            let has_one = correlation.is_finite();
            if has_one && best.is_none_or(|(_, old)| is_better(correlation, old)) {
                best = Some((at, correlation));
            }
        }
        best.map(|(at, _)| at)
    }
}

/// Windows closer to each other than this are not compared.
#[must_use]
pub fn apart(window: usize) -> usize {
    window.div_ceil(4) + 1
}

/// Runs the job on each rank. Rank 0 has the readings, of one column, and gets the answer.
///
/// # Errors
/// The ranks no longer work together.
pub fn run(
    communicator: &mut dyn Communicator,
    watch: &Watch,
    window: usize,
    readings: Option<&Readings>,
) -> Result<Option<Answer>, Failure> {
    // The breaks precede the series in one message: their number, the breaks, the readings.
    let mut message = Vec::new();
    if let Some(readings) = readings {
        message.push(readings.breaks.len() as f64);
        message.extend(readings.breaks.iter().map(|&at| at as f64));
        message.extend(readings.columns.iter().take(1).flatten());
    }
    communicator.broadcast(&mut message)?;
    let breaks = message.first().map_or(0, |count| *count as usize);
    let (Some(places), Some(values)) = (message.get(1..=breaks), message.get(1 + breaks..)) else {
        return Err(Failure::of(0, "has sent a series that is none"));
    };
    if window < 2 || values.len() < window || values.len() > ROWS_MAX {
        let why = format!("has sent {} readings for windows of {window}", values.len());
        return Err(Failure::of(0, why));
    }
    let series = Series::new(values, window, places);
    let count = series.means.len();
    let mut profile = Profile::new(count);
    let blocks = (count.saturating_sub(apart(window))).div_ceil(BLOCK);
    let (rank, size) = (communicator.rank(), communicator.size());
    watch.share(|| {
        for block in 0..blocks {
            if owner(block, size) == rank {
                let begin = apart(window) + block * BLOCK;
                for diagonal in begin..(begin + BLOCK).min(count) {
                    series.follow(diagonal, &mut profile);
                }
                watch.at(block, blocks);
            }
        }
    });
    let mut greatest = profile.correlations.clone();
    communicator.all_reduce_max(&mut greatest)?;
    // The ranks with the greatest value offer their window; the first window is the greatest negated index.
    let mut offers: Vec<f64> = profile
        .neighbours
        .iter()
        .zip(&profile.correlations)
        .zip(&greatest)
        .map(|((&neighbour, mine), greatest)| {
            if neighbour != NONE && mine == greatest {
                -(neighbour as f64)
            } else {
                f64::NEG_INFINITY
            }
        })
        .collect();
    communicator.all_reduce_max(&mut offers)?;
    watch.at(1, 1);
    let neighbour = |offer: f64| offer.is_finite().then_some(-offer as usize);
    Ok(readings.map(|_| Answer {
        window,
        correlations: greatest,
        neighbours: offers.into_iter().map(neighbour).collect(),
    }))
}

/// Returns the rank of a block of diagonals. Later diagonals are shorter, so the order of the ranks alternates.
fn owner(block: usize, size: usize) -> usize {
    let at = block % (2 * size);
    at.min(2 * size - 1 - at)
}

/// The best match of each window so far.
struct Profile {
    correlations: Vec<f64>,
    neighbours: Vec<usize>,
}

impl Profile {
    fn new(count: usize) -> Self {
        Self {
            correlations: vec![f64::NEG_INFINITY; count],
            neighbours: vec![NONE; count],
        }
    }

    /// Keeps the greatest correlation, and the first neighbour if equal: the result does not depend on the order of
    /// offers.
    #[inline]
    fn offer(&mut self, at: usize, neighbour: usize, correlation: f64) {
        let best = self.correlations[at];
        if correlation > best || (correlation == best && neighbour < self.neighbours[at]) {
            self.correlations[at] = correlation;
            self.neighbours[at] = neighbour;
        }
    }
}

/// A series and precalculated values of each of its windows.
struct Series {
    window: usize,
    values: Vec<f64>,
    means: Vec<f64>,
    /// 1 ÷ the root of the sum of squares of the window without its mean; 0 for a constant window.
    inverse: Vec<f64>,
    is_still: Vec<bool>,
    /// Whether it reaches across a break: such a window has no neighbours.
    is_broken: Vec<bool>,
    /// Half the difference of the readings that enter and leave when the window moves by one reading.
    leaves: Vec<f64>,
    /// The sum of the readings that enter and leave, each without the mean of its window.
    changes: Vec<f64>,
}

impl Series {
    fn new(values: &[f64], window: usize, breaks: &[f64]) -> Self {
        // Subtract the mean of all: correlations do not change, and the remaining values are small.
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let values: Vec<f64> = values.iter().map(|value| value - mean).collect();
        let windows = values.windows(window);
        let means: Vec<f64> = windows
            .clone()
            .map(|values| values.iter().sum::<f64>() / window as f64)
            .collect();
        let is_still: Vec<bool> = windows
            .clone()
            .map(|values| values.iter().all(|value| *value == values[0]))
            .collect();
        let norm = |((values, mean), &is_still): ((&[f64], &f64), &bool)| {
            let squares: f64 = values
                .iter()
                .map(|value| (value - mean) * (value - mean))
                .sum();
            if is_still || squares <= 0.0 {
                0.0
            } else {
                1.0 / squares.sqrt()
            }
        };
        let inverse = windows
            .clone()
            .zip(&means)
            .zip(&is_still)
            .map(norm)
            .collect();
        let mut is_broken = vec![false; means.len()];
        for &at in breaks {
            let at = (at as usize).min(values.len());
            let first = at.saturating_sub(window - 1);
            let end = at.min(is_broken.len());
            is_broken[first.min(end)..end].fill(true);
        }
        let mut leaves = vec![0.0; means.len()];
        let mut changes = vec![0.0; means.len()];
        for at in 1..means.len() {
            let (new, old) = (values[at + window - 1], values[at - 1]);
            leaves[at] = (new - old) / 2.0;
            changes[at] = (new - means[at]) + (old - means[at - 1]);
        }
        Self {
            window,
            values,
            means,
            inverse,
            is_still,
            is_broken,
            leaves,
            changes,
        }
    }

    /// Returns the sum of products of two windows without their means, from the definition.
    fn covariance(&self, a: usize, b: usize) -> f64 {
        let pairs = self.values[a..a + self.window]
            .iter()
            .zip(&self.values[b..b + self.window]);
        let products = pairs.map(|(x, y)| (x - self.means[a]) * (y - self.means[b]));
        products.sum()
    }

    /// Compares all windows at this distance from each other.
    fn follow(&self, diagonal: usize, profile: &mut Profile) {
        let anchor = ANCHOR_ROWS.max(8 * self.window);
        let mut covariance = 0.0;
        for first in 0..self.means.len() - diagonal {
            let second = first + diagonal;
            if first % anchor == 0 {
                covariance = self.covariance(first, second);
            } else {
                covariance += self.leaves[first] * self.changes[second]
                    + self.leaves[second] * self.changes[first];
            }
            if self.is_broken[first] || self.is_broken[second] {
                continue;
            }
            let correlation = match (self.is_still[first], self.is_still[second]) {
                (false, false) => {
                    let exact = covariance * self.inverse[first] * self.inverse[second];
                    exact.clamp(-1.0, 1.0)
                }
                (true, true) => 1.0,
                _ => 0.5,
            };
            profile.offer(first, second, correlation);
            profile.offer(second, first, correlation);
        }
    }
}

#[cfg(test)]
#[path = "matrix_profile_tests.rs"]
mod tests;
