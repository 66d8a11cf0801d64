//! A latency histogram: fixed memory, no allocation after construction, mergeable.
//!
//! Buckets are log-linear: values below 128 have a bucket each; above, each power of two is cut into
//! [`BUCKETS_PER_OCTAVE`] buckets of equal width. A percentile is answered with the largest value of its
//! bucket, as the well-known HdrHistogram does, so it is never below the true one and above it by less than
//! 1/64 (1.6 %). Minimum, maximum, count and mean are exact.

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
        // A hair less, so that 7 % of 100 is rank 7 although the product may round to just above it. `as`
        // turns not-a-number into 0.
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

    /// Values recorded that were [`VALUE_LIMIT`] or larger: counted, but told apart only by the maximum.
    #[must_use]
    pub fn saturated_count(&self) -> u64 {
        self.saturated
    }

    /// The buckets that hold something, in ascending order: the largest value of the bucket and its count.
    /// Saturated values are not among them.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let filled = self
            .counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0);
        filled.map(|(bucket, &count)| (bucket_last(bucket), count))
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
    fn empty_answers_zero() {
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
