//! Alarm rules, and the values that thresholds are compared with.

use crate::error::Error;
use crate::value::Value;

/// Most rules of one database.
pub const ALARM_RULES_MAX: usize = 256;
/// Most objects that all rules together can watch.
pub const ALARM_WATCHES_MAX: u64 = 1 << 20;
/// Longest time in a rule, ms: a year.
pub const ALARM_MS_MAX: u64 = 31_536_000_000;
/// Most transitions that can wait for delivery.
pub const ALARM_QUEUE_MAX: u32 = 1 << 16;

/// Which objects are watched, and for what.
#[derive(Clone, Debug, PartialEq)]
pub struct AlarmRule {
    /// Key, or a pattern with `+` and `#` ([`base::pattern`]).
    pub pattern: String,
    /// When it is raised, and when it is over.
    pub condition: AlarmCondition,
    /// Most objects that are watched; those beyond are counted.
    pub objects_max: u32,
}

/// When an alarm is raised, and when it is over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AlarmCondition {
    /// Values above a threshold.
    Above {
        /// Raised by values greater than this.
        threshold: f64,
        /// The alarm ends with a value that is not greater than this, which is at most the threshold.
        clear: f64,
        /// Raised only when values have been above the threshold for this long, ms; 0: by the first one.
        raise_after_ms: u64,
    },
    /// Values below a threshold.
    Below {
        /// Raised by values less than this.
        threshold: f64,
        /// The alarm ends with a value that is not less than this, which is at least the threshold.
        clear: f64,
        /// As above.
        raise_after_ms: u64,
    },
    /// No reading.
    Stale {
        /// Raised when no reading has arrived for longer than this, ms, by the monotonic clock; over with the next one.
        after_ms: u64,
    },
}

impl AlarmCondition {
    /// Checks the condition.
    ///
    /// # Errors
    /// The problem, in a few words.
    pub fn check(&self) -> Result<(), &'static str> {
        match *self {
            Self::Above {
                threshold,
                clear,
                raise_after_ms,
            } => {
                check_numbers(threshold, clear, raise_after_ms)?;
                (clear <= threshold)
                    .then_some(())
                    .ok_or("the clear threshold must not be above the threshold")
            }
            Self::Below {
                threshold,
                clear,
                raise_after_ms,
            } => {
                check_numbers(threshold, clear, raise_after_ms)?;
                (clear >= threshold)
                    .then_some(())
                    .ok_or("the clear threshold must not be below the threshold")
            }
            Self::Stale { after_ms } => (1..=ALARM_MS_MAX)
                .contains(&after_ms)
                .then_some(())
                .ok_or("staleness must be from 1 ms to a year"),
        }
    }

    pub(crate) fn is_stale(&self) -> bool {
        matches!(self, Self::Stale { .. })
    }
}

fn check_numbers(threshold: f64, clear: f64, raise_after_ms: u64) -> Result<(), &'static str> {
    if !threshold.is_finite() || !clear.is_finite() {
        return Err("thresholds must be finite numbers");
    }
    if raise_after_ms > ALARM_MS_MAX {
        return Err("the minimum duration must be at most a year");
    }
    Ok(())
}

impl AlarmRule {
    /// Checks whether the rule can be used.
    ///
    /// # Errors
    /// [`Error::AlarmInvalid`].
    pub fn check(&self) -> Result<(), Error> {
        base::pattern::check(&self.pattern)
            .and_then(|()| self.condition.check())
            .map_err(|problem| Error::AlarmInvalid { problem })?;
        match self.objects_max {
            0 => Err(Error::AlarmInvalid {
                problem: "an alarm must watch at least one key",
            }),
            _ => Ok(()),
        }
    }
}

/// A value that can be compared with a threshold. Texts, NaN and bytes that are no value cannot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AlarmValue {
    /// A double.
    Float(f64),
    /// A signed integer.
    Integer(i64),
    /// An unsigned integer.
    Unsigned(u64),
    /// A truth value: 0 or 1.
    Boolean(bool),
}

impl AlarmValue {
    /// Decodes stored bytes.
    #[must_use]
    pub fn of(stored: &[u8]) -> Option<Self> {
        // No number is longer, so a long text need not be decoded.
        if stored.len() > 9 {
            return None;
        }
        match Value::decode(stored)? {
            Value::Float(value) => (!value.is_nan()).then_some(Self::Float(value)),
            Value::Integer(value) => Some(Self::Integer(value)),
            Value::Unsigned(value) => Some(Self::Unsigned(value)),
            Value::Boolean(value) => Some(Self::Boolean(value)),
            Value::Text(_) => None,
        }
    }

    /// As a typed value.
    #[must_use]
    pub fn value(self) -> Value<'static> {
        match self {
            Self::Float(value) => Value::Float(value),
            Self::Integer(value) => Value::Integer(value),
            Self::Unsigned(value) => Value::Unsigned(value),
            Self::Boolean(value) => Value::Boolean(value),
        }
    }

    /// Whether it is greater than a finite number. Integers are compared exactly: not every integer is a double.
    #[must_use]
    pub fn is_above(self, threshold: f64) -> bool {
        match self.whole() {
            // A whole number is above the threshold if it is above the next whole number below.
            Ok(whole) => whole > threshold.floor() as i128,
            Err(float) => float > threshold,
        }
    }

    /// Whether it is less than a finite number.
    #[must_use]
    pub fn is_below(self, threshold: f64) -> bool {
        match self.whole() {
            Ok(whole) => whole < threshold.ceil() as i128,
            Err(float) => float < threshold,
        }
    }

    fn whole(self) -> Result<i128, f64> {
        match self {
            Self::Float(value) => Err(value),
            Self::Integer(value) => Ok(value.into()),
            Self::Unsigned(value) => Ok(value.into()),
            Self::Boolean(value) => Ok(value.into()),
        }
    }

    /// Packs it into a word and a kind, for the ring.
    pub(crate) fn pack(value: Option<Self>) -> (u64, u64) {
        match value {
            None => (0, 0),
            Some(Self::Float(value)) => (value.to_bits(), 1),
            Some(Self::Integer(value)) => (value as u64, 2),
            Some(Self::Unsigned(value)) => (value, 3),
            Some(Self::Boolean(value)) => (value.into(), 4),
        }
    }

    pub(crate) fn unpack(word: u64, kind: u64) -> Option<Self> {
        match kind {
            1 => Some(Self::Float(f64::from_bits(word))),
            2 => Some(Self::Integer(word as i64)),
            3 => Some(Self::Unsigned(word)),
            4 => Some(Self::Boolean(word != 0)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rules_that_make_no_sense_are_refused() {
        let above = |threshold, clear| AlarmCondition::Above {
            threshold,
            clear,
            raise_after_ms: 0,
        };
        assert_eq!(above(60.0, 55.0).check(), Ok(()));
        assert!(above(60.0, 61.0).check().is_err());
        assert!(above(f64::NAN, 0.0).check().is_err());
        assert!(above(1.0, f64::NEG_INFINITY).check().is_err());
        let below = AlarmCondition::Below {
            threshold: 5.0,
            clear: 4.0,
            raise_after_ms: 0,
        };
        assert!(below.check().is_err());
        assert!(AlarmCondition::Stale { after_ms: 0 }.check().is_err());
        let rule = |pattern: &str, objects_max| AlarmRule {
            pattern: pattern.into(),
            condition: above(1.0, 1.0),
            objects_max,
        };
        assert_eq!(rule("a/+", 1).check(), Ok(()));
        assert!(rule("a/+", 0).check().is_err());
        assert!(rule("a/#/b", 1).check().is_err());
    }

    #[test]
    fn bytes_that_are_no_number_have_no_alarm_value() {
        for bytes in [
            &b"topen"[..],
            b"Tseven77\0",
            &f64::NAN.to_le_bytes(),
            b"x",
            b"",
            b"ta text that is longer than any number",
        ] {
            assert_eq!(AlarmValue::of(bytes), None, "{bytes:?}");
        }
        assert_eq!(AlarmValue::of(b"b\x01"), Some(AlarmValue::Boolean(true)));
        let infinite = AlarmValue::of(&f64::INFINITY.to_le_bytes()).unwrap();
        assert!(infinite.is_above(f64::MAX) && !infinite.is_below(0.0));
    }

    #[test]
    fn integers_beyond_the_precision_of_a_double_are_compared_exactly() {
        let two_53 = 9_007_199_254_740_992.0;
        let next = AlarmValue::Integer(9_007_199_254_740_993);
        assert!(next.is_above(two_53) && !next.is_below(two_53));
        assert!(AlarmValue::Unsigned(u64::MAX).is_below(18_446_744_073_709_551_616.0));
        assert!(AlarmValue::Integer(i64::MIN).is_above(-1e300));
        assert!(AlarmValue::Integer(2).is_above(1.5) && !AlarmValue::Integer(1).is_above(1.5));
        assert!(AlarmValue::Integer(1).is_below(1.5) && !AlarmValue::Integer(2).is_below(1.5));
        assert!(!AlarmValue::Integer(2).is_above(2.0) && !AlarmValue::Integer(2).is_below(2.0));
        assert!(
            AlarmValue::Boolean(true).is_above(0.5) && !AlarmValue::Boolean(false).is_above(0.5)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn small_integers_compare_as_doubles_do(value in -100_000_i64..100_000, threshold in -1e5..1e5_f64) {
            let float = AlarmValue::Float(value as f64);
            let whole = AlarmValue::Integer(value);
            prop_assert_eq!(whole.is_above(threshold), float.is_above(threshold));
            prop_assert_eq!(whole.is_below(threshold), float.is_below(threshold));
        }

        #[test]
        fn values_come_out_of_the_ring_as_they_went_in(word in any::<u64>(), kind in 0..5_u64) {
            let value = AlarmValue::unpack(word, kind);
            let (word, kind) = AlarmValue::pack(value);
            prop_assert_eq!(AlarmValue::pack(AlarmValue::unpack(word, kind)), (word, kind));
        }
    }
}
