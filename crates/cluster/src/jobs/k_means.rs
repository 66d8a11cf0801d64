//! A model of usual windows: windows of readings in k clusters (S. Lloyd, "Least squares quantization in PCM", 1982;
//! initial centres after D. Arthur and S. Vassilvitskii, "k-means++", 2007), and the windows that fit none of them.
//!
//! Each rank describes its windows by a few features. It converts these to integers in units of 2^-24 of half their
//! range, and adds them up by cluster. The ranks add their sums after each round. Sums of integers do not depend on the
//! order, so any number of ranks has bitwise equal centres. Only + − × ÷ √ are used, so boards of other types get the
//! same bits, too.
//!
//! A cluster is usual if it has at least a tenth of an even share of the windows. A window's score is its distance to
//! the nearest usual centre ÷ the usual distance. The usual distance is the root of the mean square over the windows in
//! usual clusters. So an outlier with a cluster of its own is still far from the usual.

use super::communicator::{Communicator, Failure};
use super::readings::Readings;
use super::watch::Watch;
use super::windows::{deal, starts, take};
use crate::random::Random;

/// Number of features of a window, for each column.
pub const FEATURES: usize = 5;

/// Their names.
pub const NAMES: [&str; FEATURES] = ["mean", "deviation", "least", "greatest", "roughness"];

/// Largest number of unusual windows that are reported.
pub const UNUSUAL_MAX: usize = 10;

/// Largest number of clusters.
pub const CLUSTERS_MAX: usize = 64;

/// Number of integer steps in half the range of a feature.
const UNIT: f64 = (1 << 24) as f64;

/// Squares of distances are summed in units of 2^18, so that a sum over 2^22 windows of 80 numbers stays below 2^63.
const SQUARE_UNIT: f64 = (1 << 18) as f64;

/// Largest number of windows from which the initial centres are drawn.
const SAMPLE_MAX: usize = 1_024;

/// A cluster with less than an even share divided by this is not usual.
const USUAL_PART: u64 = 10;

/// The settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Number of readings in a window.
    pub window: usize,
    /// Number of readings from one window's beginning to the next one's.
    pub step: usize,
    /// Number of clusters.
    pub clusters: usize,
    /// Largest number of rounds; fewer if nothing changes any more.
    pub rounds_max: usize,
    /// Seed of the random initial centres.
    pub seed: u64,
}

/// One cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Its centre: the features of each column.
    pub centre: Vec<f64>,
    /// Number of windows in it.
    pub windows: u64,
}

/// A window that fits no usual cluster well.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unusual {
    /// Its first row.
    pub row: usize,
    /// Distance to the nearest usual centre ÷ the usual distance.
    pub score: f64,
}

/// The learned model.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Number of windows.
    pub windows: usize,
    /// Clusters; fewer than requested if there are not enough different windows.
    pub clusters: Vec<Cluster>,
    /// Number of rounds until nothing changed, or the allowed maximum.
    pub rounds: usize,
    /// Whether the last round changed nothing.
    pub has_settled: bool,
    /// Root of the mean square of distances to the nearest centre, in halves of each feature's range.
    pub distance: f64,
    /// The most unusual windows, in descending order of score.
    pub unusual: Vec<Unusual>,
}

/// Runs the job on each rank. Rank 0 has the readings and gets the answer.
///
/// # Errors
/// The ranks no longer work together.
pub fn run(
    communicator: &mut dyn Communicator,
    watch: &Watch,
    settings: Settings,
    columns: usize,
    readings: Option<&Readings>,
) -> Result<Option<Answer>, Failure> {
    let window = settings.window;
    let size = communicator.size();
    let starts = readings.map(|readings| starts(readings, window, settings.step));
    let parts = readings.zip(starts.as_deref());
    let parts = parts.map(|(readings, starts)| deal(readings, starts, window, size));
    let part = communicator.scatter(parts)?;
    let dealt = take(&part, columns, window)?;
    drop(part);
    let width = columns * FEATURES;
    let mut points = watch.share(|| {
        let mut points = Vec::with_capacity(dealt.starts.len() * width);
        for &start in &dealt.starts {
            for column in &dealt.columns {
                points.extend(describe(&column[start..start + window]));
            }
        }
        points
    });
    let ranges = ranges(communicator, &points, width)?;
    watch.share(|| {
        for point in points.chunks_mut(width) {
            for (value, range) in point.iter_mut().zip(&ranges) {
                *value = range.to_units(*value);
            }
        }
    });
    let mut centres = begin(communicator, &points, dealt.first, width, settings)?;
    let mut assigned = vec![usize::MAX; dealt.starts.len()];
    let (mut rounds, mut has_settled) = (0, false);
    while rounds < settings.rounds_max && !has_settled {
        rounds += 1;
        let mut sums = watch.share(|| add_up(&points, width, &centres, &mut assigned));
        communicator.all_reduce_sum(&mut sums)?;
        has_settled = move_centres(&mut centres, &sums, width);
        watch.at(rounds, settings.rounds_max + 1);
    }
    judge(communicator, watch, &points, &centres, &ranges, dealt.first).map(|judged| {
        watch.at(1, 1);
        let (judged, starts) = judged.zip(starts)?;
        let unusual = judged.unusual.iter().filter_map(|&(window, score)| {
            let row = *starts.get(window)?;
            Some(Unusual { row, score })
        });
        Some(Answer {
            windows: starts.len(),
            unusual: unusual.collect(),
            clusters: judged.clusters,
            rounds,
            has_settled,
            distance: judged.distance,
        })
    })
}

/// Returns mean, standard deviation, minimum, maximum, and root mean square of the steps from one reading to the next.
fn describe(values: &[f64]) -> [f64; FEATURES] {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let square = |value: f64| value * value;
    let spread = values.iter().map(|value| square(value - mean)).sum::<f64>() / count;
    let steps = values.windows(2).map(|pair| square(pair[1] - pair[0]));
    let rough = steps.sum::<f64>() / (count - 1.0).max(1.0);
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    [mean, spread.sqrt(), least, most, rough.sqrt()]
}

/// The range of one feature over all windows.
#[derive(Clone, Copy, Debug)]
struct Range {
    middle: f64,
    half: f64,
}

impl Range {
    fn to_units(self, value: f64) -> f64 {
        if self.half > 0.0 {
            let units = ((value - self.middle) / self.half * UNIT).round();
            // A feature that overflowed because of very large readings is put at the end of the range.
            if units.is_nan() {
                UNIT
            } else {
                units.clamp(-UNIT, UNIT)
            }
        } else {
            0.0
        }
    }

    fn of_units(self, units: f64) -> f64 {
        self.middle + units / UNIT * self.half
    }
}

/// Returns the ranges of all features over all ranks.
fn ranges(
    communicator: &mut dyn Communicator,
    points: &[f64],
    width: usize,
) -> Result<Vec<Range>, Failure> {
    // Maxima and negated minima: one operation for both ends.
    let mut ends = vec![f64::NEG_INFINITY; 2 * width];
    for point in points.chunks(width) {
        for (at, value) in point.iter().enumerate() {
            ends[at] = ends[at].max(*value);
            ends[width + at] = ends[width + at].max(-value);
        }
    }
    communicator.all_reduce_max(&mut ends)?;
    let (most, least) = ends.split_at(width);
    let range = |(most, least): (&f64, &f64)| {
        // Divide by two first: the difference of the ends may overflow.
        let (high, low) = (most / 2.0, -least / 2.0);
        let half = high - low;
        Range {
            middle: if half.is_finite() { high + low } else { 0.0 },
            half: if half.is_finite() { half } else { 0.0 },
        }
    };
    Ok(most.iter().zip(least).map(range).collect())
}

fn distance_squared(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

/// Determines the initial centres: rank 0 draws them from a sample of all windows, which does not depend on how the
/// windows are distributed.
fn begin(
    communicator: &mut dyn Communicator,
    points: &[f64],
    first: usize,
    width: usize,
    settings: Settings,
) -> Result<Vec<f64>, Failure> {
    let mut count = [(points.len() / width) as i64];
    communicator.all_reduce_sum(&mut count)?;
    let stride = (count[0].max(0) as usize).div_ceil(SAMPLE_MAX).max(1);
    let sample = points.chunks(width).enumerate();
    let sample = sample.filter(|(at, _)| (first + at).is_multiple_of(stride));
    let mine: Vec<f64> = sample
        .flat_map(|(_, point)| point.iter().copied())
        .collect();
    let gathered = communicator.gather(&mine)?;
    let mut centres = Vec::new();
    if let Some(parts) = gathered {
        let sample: Vec<f64> = parts.into_iter().flatten().collect();
        centres = draw(&sample, width, settings.clusters, settings.seed);
    }
    communicator.broadcast(&mut centres)?;
    Ok(centres)
}

/// Draws centres from a sample: the probability of each further centre is proportional to the squared distance to the
/// earlier ones.
fn draw(sample: &[f64], width: usize, clusters: usize, seed: u64) -> Vec<f64> {
    let points: Vec<&[f64]> = sample.chunks(width).collect();
    let mut random = Random::new(seed);
    let mut centres = Vec::new();
    let mut squares = vec![f64::INFINITY; points.len()];
    while !points.is_empty() && centres.len() < clusters * width {
        let chosen = if centres.is_empty() {
            random.below(points.len())
        } else {
            let total: f64 = squares.iter().sum();
            if total <= 0.0 {
                break;
            }
            let mut left = total * random.unit();
            let mut at = squares
                .iter()
                .rposition(|square| *square > 0.0)
                .unwrap_or(0);
            for (place, square) in squares.iter().enumerate() {
                left -= square;
                if left < 0.0 {
                    at = place;
                    break;
                }
            }
            at
        };
        let centre = points[chosen];
        centres.extend_from_slice(centre);
        for (square, point) in squares.iter_mut().zip(&points) {
            *square = square.min(distance_squared(point, centre));
        }
    }
    centres
}

/// Returns the nearest centre (the first if equal), and the square of its distance.
fn nearest(point: &[f64], centres: &[f64], width: usize) -> (usize, f64) {
    let mut best = (0, f64::INFINITY);
    for (at, centre) in centres.chunks(width).enumerate() {
        let square = distance_squared(point, centre);
        if square < best.1 {
            best = (at, square);
        }
    }
    best
}

/// Executes one round: returns the sums of the windows of each cluster, their numbers, and how many windows have
/// changed their cluster.
fn add_up(points: &[f64], width: usize, centres: &[f64], assigned: &mut [usize]) -> Vec<i64> {
    let clusters = centres.len() / width;
    let mut sums = vec![0; clusters * (width + 1) + 1];
    for (point, place) in points.chunks(width).zip(assigned) {
        let (cluster, _) = nearest(point, centres, width);
        for (sum, value) in sums[cluster * width..].iter_mut().zip(point) {
            *sum += *value as i64;
        }
        sums[clusters * width + cluster] += 1;
        if *place != cluster {
            *place = cluster;
            sums[clusters * (width + 1)] += 1;
        }
    }
    sums
}

/// Moves the centres to the means of their windows. Returns whether no window has changed its cluster.
fn move_centres(centres: &mut [f64], sums: &[i64], width: usize) -> bool {
    let clusters = centres.len() / width;
    for (cluster, centre) in centres.chunks_mut(width).enumerate() {
        let count = sums[clusters * width + cluster];
        // A cluster without windows keeps its centre.
        if count > 0 {
            for (value, sum) in centre.iter_mut().zip(&sums[cluster * width..]) {
                *value = *sum as f64 / count as f64;
            }
        }
    }
    sums[clusters * (width + 1)] == 0
}

/// The result of the rounds.
struct Judged {
    clusters: Vec<Cluster>,
    distance: f64,
    /// Indices of unusual windows, and their scores.
    unusual: Vec<(usize, f64)>,
}

/// Counts once more with the last centres, and finds the windows that are far from the usual centres.
fn judge(
    communicator: &mut dyn Communicator,
    watch: &Watch,
    points: &[f64],
    centres: &[f64],
    ranges: &[Range],
    first: usize,
) -> Result<Option<Judged>, Failure> {
    let width = ranges.len();
    let clusters = centres.len() / width;
    let mut sums = watch.share(|| {
        let mut sums = vec![0_i64; 2 * clusters];
        for point in points.chunks(width) {
            let (cluster, square) = nearest(point, centres, width);
            sums[cluster] += 1;
            sums[clusters + cluster] += (square / SQUARE_UNIT).round() as i64;
        }
        sums
    });
    communicator.all_reduce_sum(&mut sums)?;
    let (counts, squares) = sums.split_at(clusters);
    let windows: i64 = counts.iter().sum();
    let enough = windows
        .unsigned_abs()
        .div_ceil(USUAL_PART * clusters.max(1) as u64);
    let is_usual: Vec<bool> = counts
        .iter()
        .map(|&count| count.unsigned_abs() >= enough.max(1))
        .collect();
    let mean_distance = |is_in: &dyn Fn(usize) -> bool| {
        let of = |values: &[i64]| -> i64 {
            let values = values.iter().enumerate().filter(|(at, _)| is_in(*at));
            values.map(|(_, value)| value).sum()
        };
        (of(squares) as f64 * SQUARE_UNIT / of(counts).max(1) as f64).sqrt()
    };
    // At least one unit: if all usual windows are equal, any other window is far away.
    let usual_distance = mean_distance(&|at| is_usual[at]).max(1.0);
    let usual: Vec<f64> = centres
        .chunks(width)
        .zip(&is_usual)
        .filter(|(_, is_usual)| **is_usual)
        .flat_map(|(centre, _)| centre.iter().copied())
        .collect();
    let mine = watch.share(|| {
        let mut scores: Vec<(usize, f64)> = Vec::new();
        for (at, point) in points.chunks(width).enumerate() {
            let (_, square) = nearest(point, &usual, width);
            keep_best(&mut scores, (first + at, square.sqrt() / usual_distance));
        }
        scores
    });
    let mine: Vec<f64> = mine
        .iter()
        .flat_map(|&(window, score)| [window as f64, score])
        .collect();
    let Some(parts) = communicator.gather(&mine)? else {
        return Ok(None);
    };
    let mut unusual = Vec::new();
    for pair in parts.iter().flat_map(|part| part.as_chunks::<2>().0) {
        keep_best(&mut unusual, (pair[0] as usize, pair[1]));
    }
    let clusters = centres
        .chunks(width)
        .zip(counts)
        .map(|(centre, &windows)| Cluster {
            centre: centre
                .iter()
                .zip(ranges)
                .map(|(&units, range)| range.of_units(units))
                .collect(),
            windows: windows.unsigned_abs(),
        });
    Ok(Some(Judged {
        clusters: clusters.collect(),
        distance: mean_distance(&|_| true) / UNIT,
        unusual,
    }))
}

/// Keeps the greatest scores, and for equal scores the first windows, in that order.
fn keep_best(kept: &mut Vec<(usize, f64)>, new: (usize, f64)) {
    let is_before = |old: &(usize, f64)| old.1 > new.1 || (old.1 == new.1 && old.0 < new.0);
    let at = kept.partition_point(is_before);
    if at < UNUSUAL_MAX {
        kept.insert(at, new);
        kept.truncate(UNUSUAL_MAX);
    }
}

#[cfg(test)]
#[path = "k_means_tests.rs"]
mod tests;
