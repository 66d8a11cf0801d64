//! A latency histogram: fixed memory, no allocation after construction, mergeable.
//!
//! Buckets are log-linear: values below 128 have a bucket each; above, each power of two is cut into
//! [`BUCKETS_PER_OCTAVE`] buckets of equal width. A percentile is the largest value of its bucket, as in HdrHistogram.
//! So it is never below the true one, and above it by less than 1/64 (1.6 %). Minimum, maximum, count and mean are
//! exact.

/// Buckets that share one power of two; the relative error of a percentile is below its inverse.
pub const BUCKETS_PER_OCTAVE: usize = 64;

/// Values from here on (2^42 ns, 73 minutes) share one bucket; see [`Histogram::saturated_count`].
pub const VALUE_LIMIT: u64 = 1 << 42;

const OCTAVE_BITS: u32 = BUCKETS_PER_OCTAVE.trailing_zeros();
/// Octaves that need cutting, plus the two octaves' worth of exact buckets at the bottom.
const BUCKET_COUNT: usize = (42 - OCTAVE_BITS as usize + 1) * BUCKETS_PER_OCTAVE;

/// Counts of values, usually nanoseconds, by size. About 19 KiB, allocated once by [`new`](Self::new).
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: Box<[u64; BUCKET_COUNT]>,
    saturated: u64,
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
}

impl Histogram {
    /// An empty histogram. The only call here that allocates, beside `clone`.
    #[must_use]
    pub fn new() -> Self {
        Self {
            counts: Box::new([0; BUCKET_COUNT]),
            saturated: 0,
            count: 0,
            sum: 0,
            min: u64::MAX,
            max: 0,
        }
    }

    /// Counts one value. Constant time, no allocation, any value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.record_n(value, 1);
    }

    /// Counts `value` as often as `times` says.
    #[inline]
    pub fn record_n(&mut self, value: u64, times: u64) {
        if times == 0 {
            return;
        }
        if value < VALUE_LIMIT {
            let slot = &mut self.counts[bucket_of(value)];
            *slot = slot.saturating_add(times);
        } else {
            self.saturated = self.saturated.saturating_add(times);
        }
        self.count = self.count.saturating_add(times);
        self.sum = self
            .sum
            .saturating_add(u128::from(value) * u128::from(times));
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Adds everything that `other` counted, as if it had been recorded here.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(other.counts.iter()) {
            *mine = mine.saturating_add(*theirs);
        }
        self.saturated = self.saturated.saturating_add(other.saturated);
        self.count = self.count.saturating_add(other.count);
        self.sum = self.sum.saturating_add(other.sum);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// The smallest value such that at least `percent` of all values are no larger, within the bucket error.
    ///
    /// `percent` is 0 to 100 and is clamped to that; 0 (and not-a-number) answers the minimum, 100 the
    /// maximum, both exact. A percentile that falls among the saturated values answers the maximum. An empty
    /// histogram answers 0.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> u64 {
        if self.count == 0 {
            return 0;
        }
        let exact = percent.clamp(0.0, 100.0) * self.count as f64 / 100.0;
        // Slightly less, so that 7 % of 100 is rank 7 although the product may round to just above it. `as` turns
        // not-a-number into 0.
        let rank = (exact - exact * 1e-12).ceil() as u64;
        if rank == 0 {
            return self.min;
        }
        if rank >= self.count {
            return self.max;
        }
        let mut seen = 0_u64;
        for (bucket, &count) in self.counts.iter().enumerate() {
            seen = seen.saturating_add(count);
            if seen >= rank {
                return bucket_last(bucket).clamp(self.min, self.max);
            }
        }
        self.max
    }

    /// The largest value recorded, exact; 0 when empty.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The smallest value recorded, exact; 0 when empty.
    #[must_use]
    pub fn min(&self) -> u64 {
        if self.count == 0 { 0 } else { self.min }
    }

    /// The mean of all values, from their exact sum; 0 when empty.
    #[must_use]
    pub fn mean(&self) -> f64 {
        if self.count == 0 {
            0.0
        } else {
            self.sum as f64 / self.count as f64
        }
    }

    /// Values recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Sum of all values recorded, exact.
    #[must_use]
    pub fn sum(&self) -> u128 {
        self.sum
    }

    /// Recorded values of [`VALUE_LIMIT`] or more: they are counted, but only their maximum is known.
    #[must_use]
    pub fn saturated_count(&self) -> u64 {
        self.saturated
    }

    /// Returns the buckets that are not empty, in ascending order: the largest value of the bucket and its count.
    /// Saturated values are not among them.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let filled = self
            .counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0);
        filled.map(|(bucket, &count)| (bucket_last(bucket), count))
    }

    /// Returns the content without empty buckets: a form to pass on.
    #[must_use]
    pub fn parts(&self) -> Parts {
        let filled = self.counts.iter().enumerate().filter(|(_, n)| **n > 0);
        Parts {
            buckets: filled.map(|(at, count)| (at as u32, *count)).collect(),
            saturated: self.saturated,
            sum: u64::try_from(self.sum).unwrap_or(u64::MAX),
            min: self.min(),
            max: self.max,
        }
    }

    /// Rebuilds the histogram that [`parts`](Self::parts) was taken from. The parts may come from any sender: those
    /// that no recorded values can have are refused.
    ///
    /// # Errors
    /// Says what is impossible.
    pub fn from_parts(parts: &Parts) -> Result<Self, PartsError> {
        let mut found = Self::new();
        let (mut before, mut least, mut most) = (None, 0_u128, 0_u128);
        for (bucket, count) in &parts.buckets {
            let at = *bucket as usize;
            let slot = found.counts.get_mut(at).ok_or(PartsError::Bucket)?;
            if *count == 0 || before.is_some_and(|before| before >= at) {
                return Err(PartsError::Order);
            }
            *slot = *count;
            found.count = found.count.checked_add(*count).ok_or(PartsError::TooMany)?;
            let first = bucket_first(at);
            least += u128::from(first) * u128::from(*count);
            most += u128::from(bucket_last(at)) * u128::from(*count);
            if before.is_none() && !(first..=bucket_last(at)).contains(&parts.min) {
                return Err(PartsError::Bounds);
            }
            before = Some(at);
        }
        let saturated = parts.saturated;
        found.count = found
            .count
            .checked_add(saturated)
            .ok_or(PartsError::TooMany)?;
        least += u128::from(VALUE_LIMIT) * u128::from(saturated);
        most = most.saturating_add(u128::from(u64::MAX) * u128::from(saturated));
        let is_max = match before {
            _ if saturated > 0 => parts.max >= VALUE_LIMIT,
            Some(last) => (bucket_first(last)..=bucket_last(last)).contains(&parts.max),
            None => parts.max == 0 && parts.min == 0,
        };
        let is_min = before.is_some() || saturated == 0 || parts.min >= VALUE_LIMIT;
        if !is_max || !is_min || parts.min > parts.max {
            return Err(PartsError::Bounds);
        }
        let sum = u128::from(parts.sum);
        // A sum beyond the range of its type was cut to the greatest number.
        let is_cut = parts.sum == u64::MAX;
        if sum > most || (sum < least && !is_cut) {
            return Err(PartsError::Sum);
        }
        found.saturated = saturated;
        found.sum = sum;
        found.max = parts.max;
        if found.count > 0 {
            found.min = parts.min;
        }
        Ok(found)
    }

    /// Forgets everything, keeps the memory.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.saturated = 0;
        self.count = 0;
        self.sum = 0;
        self.min = u64::MAX;
        self.max = 0;
    }
}

/// The content of a [`Histogram`], in few numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Number and count of each bucket that holds something, ascending. The numbers are those of this module's buckets.
    pub buckets: Vec<(u32, u64)>,
    /// Values of [`VALUE_LIMIT`] and more.
    pub saturated: u64,
    /// Sum of all values; `u64::MAX` stands for all above.
    pub sum: u64,
    /// The smallest value, 0 without any.
    pub min: u64,
    /// The largest value, 0 without any.
    pub max: u64,
}

/// Why parts belong to no histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartsError {
    /// A bucket that does not exist.
    #[error("it has a bucket that does not exist")]
    Bucket,
    /// Buckets are not in ascending order, or empty.
    #[error("its buckets are out of order or empty")]
    Order,
    /// More values than can be counted.
    #[error("it has more values than can be counted")]
    TooMany,
    /// The smallest or the largest value is not in its bucket.
    #[error("its smallest or largest value is not in its buckets")]
    Bounds,
    /// The sum is impossible for such values.
    #[error("its sum is not one of such values")]
    Sum,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Histogram")
            .field("count", &self.count)
            .field("min", &self.min())
            .field("p50", &self.percentile(50.0))
            .field("p99", &self.percentile(99.0))
            .field("max", &self.max)
            .field("saturated", &self.saturated)
            .finish()
    }
}

/// The bucket of a value below [`VALUE_LIMIT`].
#[inline]
fn bucket_of(value: u64) -> usize {
    // The octaves below the first cut one all have buckets of width 1, as that one has.
    let shift = (63 - (value | BUCKETS_PER_OCTAVE as u64).leading_zeros()) - OCTAVE_BITS;
    shift as usize * BUCKETS_PER_OCTAVE + (value >> shift) as usize
}

/// The smallest value that falls into a bucket.
fn bucket_first(bucket: usize) -> u64 {
    bucket
        .checked_sub(1)
        .map_or(0, |before| bucket_last(before) + 1)
}

/// The largest value that falls into a bucket.
fn bucket_last(bucket: usize) -> u64 {
    let shift = (bucket / BUCKETS_PER_OCTAVE).saturating_sub(1);
    let within = (bucket - shift * BUCKETS_PER_OCTAVE) as u64;
    ((within + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bucket_ends_where_the_next_begins() {
        for bucket in 0..BUCKET_COUNT {
            let last = bucket_last(bucket);
            assert_eq!(bucket_of(last), bucket);
            if bucket + 1 < BUCKET_COUNT {
                assert_eq!(bucket_of(last + 1), bucket + 1);
            }
        }
        assert_eq!(bucket_last(BUCKET_COUNT - 1), VALUE_LIMIT - 1);
        assert_eq!(bucket_of(0), 0);
    }

    #[test]
    fn an_empty_histogram_has_zero_figures() {
        let histogram = Histogram::new();
        assert_eq!(
            (histogram.min(), histogram.max(), histogram.count()),
            (0, 0, 0)
        );
        assert_eq!(histogram.percentile(50.0), 0);
        assert_eq!(histogram.mean().to_bits(), 0.0_f64.to_bits());
        assert_eq!(histogram.buckets().count(), 0);
    }

    #[test]
    fn a_histogram_comes_back_from_its_parts_and_nothing_else_does() {
        let mut histogram = Histogram::new();
        for value in [0, 5, 5, 127, 1_000_000, VALUE_LIMIT - 1, VALUE_LIMIT + 9] {
            histogram.record(value);
        }
        let good = histogram.parts();
        assert_eq!(Histogram::from_parts(&good), Ok(histogram));
        assert_eq!(
            Histogram::from_parts(&Parts::default()),
            Ok(Histogram::new())
        );
        type Change = fn(&mut Parts);
        let changes: [(PartsError, Change); 11] = [
            (PartsError::Bucket, |parts| {
                parts.buckets[4].0 = BUCKET_COUNT as u32
            }),
            (PartsError::Order, |parts| parts.buckets.swap(1, 2)),
            (PartsError::Order, |parts| parts.buckets[1].1 = 0),
            (PartsError::TooMany, |parts| parts.buckets[1].1 = u64::MAX),
            (PartsError::TooMany, |parts| parts.saturated = u64::MAX),
            (PartsError::Bounds, |parts| parts.min = 1),
            (PartsError::Bounds, |parts| parts.max = VALUE_LIMIT - 1),
            (PartsError::Bounds, |parts| parts.saturated = 0),
            (PartsError::Bounds, |parts| parts.buckets.clear()),
            (PartsError::Sum, |parts| parts.sum = VALUE_LIMIT),
            (PartsError::Sum, |parts| {
                parts.saturated = 0;
                parts.max = VALUE_LIMIT - 1;
                parts.sum = VALUE_LIMIT * 7;
            }),
        ];
        for (at, (error, change)) in changes.into_iter().enumerate() {
            let mut parts = good.clone();
            change(&mut parts);
            assert_eq!(Histogram::from_parts(&parts), Err(error), "{at}");
        }
    }

    #[test]
    fn small_values_are_exact() {
        let mut histogram = Histogram::new();
        for value in 1..=100 {
            histogram.record(value);
        }
        for percent in 1..=100_u32 {
            assert_eq!(histogram.percentile(f64::from(percent)), u64::from(percent));
        }
        assert_eq!(histogram.percentile(0.0), 1);
        assert_eq!(histogram.percentile(f64::NAN), 1);
        assert_eq!(histogram.percentile(-3.0), 1);
        assert_eq!(histogram.percentile(1e9), 100);
        assert_eq!(histogram.mean().to_bits(), 50.5_f64.to_bits());
    }

    #[test]
    fn values_past_the_limit_are_counted_apart() {
        let mut histogram = Histogram::new();
        histogram.record(10);
        histogram.record(VALUE_LIMIT);
        histogram.record_n(u64::MAX, 2);
        histogram.record_n(5, 0);
        assert_eq!(histogram.count(), 4);
        assert_eq!(histogram.saturated_count(), 3);
        assert_eq!(histogram.percentile(25.0), 10);
        assert_eq!(histogram.percentile(50.0), u64::MAX);
        assert_eq!(histogram.max(), u64::MAX);
        assert_eq!(
            histogram.sum(),
            10 + u128::from(VALUE_LIMIT) + 2 * u128::from(u64::MAX)
        );
        histogram.clear();
        assert_eq!(histogram, Histogram::default());
    }
}
