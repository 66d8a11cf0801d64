//! Down-sampling: divides a time range into equal pieces, and computes the least, mean and greatest value of each
//! piece.
//!
//! Peaks survive: an extreme value is the greatest or the least of its piece, however long the range is.

use db::value::Value;
use serde::Serialize;

/// Largest number of pieces of all keys of one query.
pub(crate) const PIECES_MAX: usize = 20_000;

/// Sums are kept as this part of themselves. So no sum of the values of a piece exceeds the range of numbers. A power
/// of two changes no digit of any but the least numbers.
const SUM_PART: f64 = 1.0 / 4_294_967_296.0;

/// One piece of time.
#[derive(Clone, Copy, Debug)]
struct Piece {
    count: u32,
    min: f64,
    max: f64,
    /// Times [`SUM_PART`].
    sum: f64,
}

const EMPTY: Piece = Piece {
    count: 0,
    min: f64::INFINITY,
    max: f64::NEG_INFINITY,
    sum: 0.0,
};

/// The pieces of one key.
#[derive(Debug)]
pub(crate) struct Points {
    from_ms: i64,
    to_ms: i64,
    pieces: Vec<Piece>,
    /// Values that are no numbers.
    not_numbers: u64,
}

/// The pieces that hold values, in columns.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct Columns {
    /// Begin of each piece.
    pub(crate) time_ms: Vec<i64>,
    pub(crate) min: Vec<f64>,
    pub(crate) mean: Vec<f64>,
    pub(crate) max: Vec<f64>,
    pub(crate) count: Vec<u32>,
    pub(crate) not_numbers: u64,
}

impl Points {
    /// Creates the pieces for the times from `from_ms` up to `to_ms`, which is later; at least one piece.
    pub(crate) fn new(from_ms: i64, to_ms: i64, pieces: usize) -> Self {
        Self {
            from_ms,
            to_ms,
            pieces: vec![EMPTY; pieces.max(1)],
            not_numbers: 0,
        }
    }

    /// Adds a value with a time within the range.
    pub(crate) fn add(&mut self, time_ms: i64, bytes: &[u8]) {
        let number = match Value::decode(bytes) {
            Some(Value::Float(value)) => value,
            Some(Value::Integer(value)) => value as f64,
            Some(Value::Unsigned(value)) => value as f64,
            Some(Value::Boolean(value)) => f64::from(u8::from(value)),
            _ => f64::NAN,
        };
        if !number.is_finite() {
            self.not_numbers += 1;
            return;
        }
        let at = self.place(time_ms);
        if let Some(piece) = self.pieces.get_mut(at) {
            piece.count = piece.count.saturating_add(1);
            piece.min = piece.min.min(number);
            piece.max = piece.max.max(number);
            piece.sum += number * SUM_PART;
        }
    }

    /// Returns the piece of a time. Exact for any range of 64-bit times.
    fn place(&self, time_ms: i64) -> usize {
        let span = i128::from(self.to_ms) - i128::from(self.from_ms);
        let into = i128::from(time_ms) - i128::from(self.from_ms);
        if into < 0 || span <= 0 {
            return usize::MAX;
        }
        usize::try_from(into * self.pieces.len() as i128 / span).unwrap_or(usize::MAX)
    }

    fn begin_ms(&self, at: usize) -> i64 {
        let span = i128::from(self.to_ms) - i128::from(self.from_ms);
        // Rounded up: the first time that belongs to the piece.
        let count = self.pieces.len() as i128;
        let into = (span * at as i128 + count - 1) / count;
        i64::try_from(i128::from(self.from_ms) + into).unwrap_or(i64::MAX)
    }

    /// Returns the pieces with values.
    pub(crate) fn columns(&self) -> Columns {
        let mut columns = Columns {
            not_numbers: self.not_numbers,
            ..Columns::default()
        };
        for (at, piece) in self.pieces.iter().enumerate() {
            if piece.count == 0 {
                continue;
            }
            columns.time_ms.push(self.begin_ms(at));
            columns.min.push(piece.min);
            let mean = piece.sum / f64::from(piece.count) / SUM_PART;
            // Rounding, and the loss of digits of the least numbers, must not lead out of the piece.
            columns.mean.push(mean.clamp(piece.min, piece.max));
            columns.max.push(piece.max);
            columns.count.push(piece.count);
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn float(value: f64) -> [u8; 8] {
        value.to_le_bytes()
    }

    #[test]
    fn a_peak_is_seen_however_coarse_the_pieces_are() {
        let mut points = Points::new(0, 1_000, 2);
        for time_ms in 0..500 {
            points.add(time_ms, &float(1.0));
        }
        points.add(333, &float(99.0));
        points.add(334, &float(-5.0));
        let columns = points.columns();
        assert_eq!((columns.time_ms, columns.count), (vec![0], vec![502]));
        assert_eq!((columns.min, columns.max), (vec![-5.0], vec![99.0]));
    }

    #[test]
    fn the_mean_of_the_greatest_numbers_is_a_number() {
        for (values, mean) in [
            ([f64::MAX, f64::MAX], f64::MAX),
            ([f64::MIN, f64::MAX], 0.0),
            ([0.1, 0.2], (0.1 + 0.2) / 2.0),
        ] {
            let mut points = Points::new(0, 10, 1);
            for value in values {
                points.add(0, &float(value));
            }
            assert_eq!(points.columns().mean, [mean]);
        }
    }

    #[test]
    fn values_that_are_no_numbers_are_counted_apart() {
        let mut points = Points::new(0, 10, 1);
        points.add(0, b"topen");
        points.add(0, &float(f64::NAN));
        points.add(0, b"b\x01");
        points.add(0, b"i\xfe\xff\xff\xff\xff\xff\xff\xff");
        let columns = points.columns();
        assert_eq!(columns.not_numbers, 2);
        assert_eq!((columns.min, columns.max), (vec![-2.0], vec![1.0]));
    }

    proptest! {
        #[test]
        fn every_value_is_in_the_piece_that_its_time_is_in(
            from_ms in any::<i64>(),
            span in 1..u64::MAX,
            pieces in 1usize..500,
            part in 0.0..1.0f64,
        ) {
            let to_ms = i64::try_from(i128::from(from_ms) + i128::from(span)).unwrap_or(i64::MAX);
            prop_assume!(to_ms > from_ms);
            let width = i128::from(to_ms) - i128::from(from_ms);
            let into = ((width as f64 * part) as i128).min(width - 1);
            let time_ms = i64::try_from(i128::from(from_ms) + into).unwrap();
            let mut points = Points::new(from_ms, to_ms, pieces);
            points.add(time_ms, &float(7.0));
            let columns = points.columns();
            prop_assert_eq!(&columns.count, &vec![1]);
            let begin_ms = columns.time_ms[0];
            prop_assert!(begin_ms <= time_ms);
            let at = points.place(time_ms);
            prop_assert!(at + 1 == pieces || points.begin_ms(at + 1) > time_ms);
        }
    }
}
