//! The histogram against sorted values and against the `hdrhistogram` crate.

use base::histogram::{BUCKETS_PER_OCTAVE, Histogram, VALUE_LIMIT};
use proptest::prelude::*;

/// Values of every magnitude, many of them next to a power of two.
fn value() -> impl Strategy<Value = u64> {
    prop_oneof![
        (0_u32..42, any::<u64>())
            .prop_map(|(bits, word)| (1_u64 << bits) | (word & ((1 << bits) - 1))),
        (1_u32..42, 0_u64..3).prop_map(|(bits, offset)| (1_u64 << bits) + offset - 1),
        0_u64..300,
    ]
    .prop_map(|value| value.min(VALUE_LIMIT - 1))
}

fn filled(values: &[u64]) -> Histogram {
    let mut histogram = Histogram::new();
    values.iter().for_each(|value| histogram.record(*value));
    histogram
}

/// Percentiles as multiples of 1/1024, which binary fractions hold exactly: rounding in the rank, where two correct
/// implementations may differ, does not matter.
fn percentiles() -> impl Iterator<Item = (f64, f64, usize)> {
    (1..=1024_u32).map(|step| {
        (
            f64::from(step) * 25.0 / 256.0,
            f64::from(step) / 1024.0,
            step as usize,
        )
    })
}

fn is_close(answer: u64, truth: u64) -> bool {
    answer >= truth
        && (answer - truth) as u128 * (BUCKETS_PER_OCTAVE as u128) < u128::from(truth.max(1))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn percentiles_agree_with_the_sorted_values(values in prop::collection::vec(value(), 1..500)) {
        let histogram = filled(&values);
        let mut sorted = values;
        sorted.sort_unstable();
        for (percent, _, step) in percentiles() {
            let truth = sorted[(sorted.len() * step).div_ceil(1024) - 1];
            let answer = histogram.percentile(percent);
            prop_assert!(is_close(answer, truth), "{percent} %: {answer}, truly {truth}");
            prop_assert!(answer <= histogram.max());
        }
        prop_assert_eq!(histogram.min(), sorted[0]);
        prop_assert_eq!(histogram.max(), sorted[sorted.len() - 1]);
        prop_assert_eq!(histogram.percentile(100.0), histogram.max());
        prop_assert_eq!(histogram.percentile(0.0), histogram.min());
        prop_assert_eq!(histogram.count(), sorted.len() as u64);
        prop_assert_eq!(histogram.sum(), sorted.iter().map(|value| u128::from(*value)).sum::<u128>());
    }

    #[test]
    fn percentiles_agree_with_hdrhistogram(values in prop::collection::vec(value(), 1..2000)) {
        let histogram = filled(&values);
        let mut peer = hdrhistogram::Histogram::<u64>::new_with_bounds(1, VALUE_LIMIT, 3).unwrap();
        values.iter().for_each(|value| peer.record(*value).unwrap());
        for (percent, quantile, _) in percentiles() {
            // Both return the last value of the true value's bucket: theirs at most 1/1000 above, ours 1/64.
            let ours = histogram.percentile(percent);
            let theirs = peer.value_at_quantile(quantile);
            prop_assert!(ours.saturating_sub(theirs) <= theirs / 64 + 1, "{percent} %: {ours} against {theirs}");
            prop_assert!(theirs.saturating_sub(ours) <= ours / 1000 + 1, "{percent} %: {ours} against {theirs}");
        }
        prop_assert_eq!(histogram.count(), peer.len());
        // The peer's mean is taken from its buckets.
        prop_assert!((histogram.mean() - peer.mean()).abs() <= histogram.mean() / 1000.0 + 1.0);
    }

    #[test]
    fn merging_equals_recording_in_one_histogram(
        first in prop::collection::vec(any::<u64>(), 0..100),
        second in prop::collection::vec(value(), 0..100),
    ) {
        let mut merged = filled(&first);
        merged.merge(&filled(&second));
        prop_assert_eq!(&merged, &filled(&[first, second].concat()));
        let listed: u64 = merged.buckets().map(|(_, count)| count).sum();
        prop_assert_eq!(listed + merged.saturated_count(), merged.count());
        prop_assert!(merged.buckets().is_sorted());
    }

    #[test]
    fn record_n_is_record_repeated(value in any::<u64>(), times in 0_u64..50) {
        let mut histogram = Histogram::new();
        histogram.record_n(value, times);
        prop_assert_eq!(histogram, filled(&vec![value; times as usize]));
    }
}

#[test]
fn every_rank_of_round_percentages_is_right() {
    // Percentages such as 99.9 have no exact binary form; the rank must not change because of that.
    for count in [100_u64, 1000, 10_000, 100_000] {
        let mut histogram = Histogram::new();
        histogram.record_n(1, count - count / 1000);
        histogram.record_n(2, count / 1000);
        assert_eq!(histogram.percentile(99.9), 1, "{count}");
        if count >= 1000 {
            assert_eq!(histogram.percentile(99.95), 2, "{count}");
        }
    }
}
