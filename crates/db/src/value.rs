//! Typed values and their stored bytes (SPEC.md, "Values").
//!
//! The database itself stores any bytes; sources write and people read this form. Every value has exactly one form, so
//! equal values have equal bytes.

use std::fmt;

use crate::error::Error;

/// Bytes of a stored [`Value::Float`]. No other kind has this length.
pub const FLOAT_BYTES: usize = 8;

/// Up to this magnitude a double holds every whole number. Many programs keep the numbers of JSON as doubles.
pub const DOUBLE_EXACT_MAX: u64 = 1 << 53;

/// One typed value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// An IEEE 754 double.
    Float(f64),
    /// A signed integer.
    Integer(i64),
    /// An unsigned integer.
    Unsigned(u64),
    /// A truth value.
    Boolean(bool),
    /// UTF-8 text.
    Text(&'a str),
}

impl<'a> Value<'a> {
    /// Bytes that [`encode`](Self::encode) writes.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        match self {
            Self::Float(_) => FLOAT_BYTES,
            Self::Integer(_) | Self::Unsigned(_) => 9,
            Self::Boolean(_) => 2,
            Self::Text(text) if text.len() + 1 == FLOAT_BYTES => FLOAT_BYTES + 1,
            Self::Text(text) => text.len() + 1,
        }
    }

    /// Writes the stored form to the front of `buffer` and returns its length in bytes.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`]; then `buffer` is unchanged.
    pub fn encode(&self, buffer: &mut [u8]) -> Result<usize, Error> {
        let needed_bytes = self.encoded_bytes();
        let buffer_bytes = buffer.len();
        let Some(target) = buffer.get_mut(..needed_bytes) else {
            return Err(Error::BufferTooSmall {
                needed_bytes,
                buffer_bytes,
            });
        };
        let (tag, rest) = match self {
            Self::Float(value) => {
                target.copy_from_slice(&value.to_le_bytes());
                return Ok(needed_bytes);
            }
            Self::Integer(value) => (b'i', &value.to_le_bytes()[..]),
            Self::Unsigned(value) => (b'u', &value.to_le_bytes()[..]),
            Self::Boolean(value) => (b'b', &[u8::from(*value)][..]),
            Self::Text(text) if text.len() + 1 == FLOAT_BYTES => (b'T', text.as_bytes()),
            Self::Text(text) => (b't', text.as_bytes()),
        };
        target[0] = tag;
        target[1..=rest.len()].copy_from_slice(rest);
        // The padding byte after a text of seven bytes.
        target[1 + rest.len()..].fill(0);
        Ok(needed_bytes)
    }

    /// Decodes stored bytes; `None` if they are not a value in its one form.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        if let Ok(float) = <[u8; FLOAT_BYTES]>::try_from(bytes) {
            return Some(Self::Float(f64::from_le_bytes(float)));
        }
        let (tag, rest) = bytes.split_first()?;
        match tag {
            b'i' => Some(Self::Integer(i64::from_le_bytes(rest.try_into().ok()?))),
            b'u' => Some(Self::Unsigned(u64::from_le_bytes(rest.try_into().ok()?))),
            b'b' => match rest {
                [0] => Some(Self::Boolean(false)),
                [1] => Some(Self::Boolean(true)),
                _ => None,
            },
            b't' => std::str::from_utf8(rest).ok().map(Self::Text),
            b'T' if bytes.len() == FLOAT_BYTES + 1 => {
                let text = rest.strip_suffix(&[0])?;
                std::str::from_utf8(text).ok().map(Self::Text)
            }
            _ => None,
        }
    }

    /// Returns a whole number above [`DOUBLE_EXACT_MAX`] in magnitude, whose digits a program that keeps numbers as
    /// doubles may not have; `None` for any other value, and for a double above 2^64 in magnitude.
    #[must_use]
    pub fn beyond_doubles(&self) -> Option<i128> {
        const FLOAT_MIN: f64 = DOUBLE_EXACT_MAX as f64;
        const FLOAT_MAX: f64 = u64::MAX as f64;
        let number = match self {
            Self::Integer(value) => i128::from(*value),
            Self::Unsigned(value) => i128::from(*value),
            // Such a double is whole.
            Self::Float(value) if (FLOAT_MIN..=FLOAT_MAX).contains(&value.abs()) => *value as i128,
            _ => return None,
        };
        (number.unsigned_abs() > u128::from(DOUBLE_EXACT_MAX)).then_some(number)
    }
}

impl fmt::Display for Value<'_> {
    /// As a person writes it: `21.5`, `1e300`, `-3`, `true`, the text itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(value) => {
                let size = value.abs();
                // Outside this range a plain number is a row of zeros.
                if size != 0.0 && size.is_finite() && !(1e-5..1e16).contains(&size) {
                    write!(f, "{value:e}")
                } else {
                    write!(f, "{value}")
                }
            }
            Self::Integer(value) => write!(f, "{value}"),
            Self::Unsigned(value) => write!(f, "{value}"),
            Self::Boolean(value) => write!(f, "{value}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round(value: Value<'_>) -> Vec<u8> {
        let mut buffer = [0xaa; 300];
        let length = value.encode(&mut buffer).unwrap();
        assert_eq!(length, value.encoded_bytes());
        assert_eq!(Value::decode(&buffer[..length]), Some(value));
        assert_eq!(
            value.encode(&mut buffer[..length - 1]),
            Err(Error::BufferTooSmall {
                needed_bytes: length,
                buffer_bytes: length - 1
            })
        );
        buffer[..length].to_vec()
    }

    #[test]
    fn every_kind_has_its_bytes() {
        assert_eq!(round(Value::Float(1.0)), 1.0_f64.to_le_bytes());
        assert_eq!(
            round(Value::Integer(-2)),
            b"i\xfe\xff\xff\xff\xff\xff\xff\xff"
        );
        assert_eq!(round(Value::Unsigned(258)), b"u\x02\x01\0\0\0\0\0\0");
        assert_eq!(round(Value::Boolean(true)), b"b\x01");
        assert_eq!(round(Value::Text("")), b"t");
        assert_eq!(round(Value::Text("open")), b"topen");
        assert_eq!(round(Value::Text("sixsix")), b"tsixsix");
        assert_eq!(round(Value::Text("seven77")), b"Tseven77\0");
        assert_eq!(round(Value::Text("eight888")), b"teight888");
    }

    #[test]
    fn malformed_bytes_are_no_value() {
        for bytes in [
            &b""[..],
            b"b",
            b"b\x02",
            b"b\0\0",
            b"i\0",
            b"x1",
            b"t\xff",
            b"Tseven77\x01",
            b"Tsix666\0",
            b"Teight888\0",
            b"T\xff\xff\xff\xff\xff\xff\xff\0",
        ] {
            let is_float = bytes.len() == FLOAT_BYTES;
            assert_eq!(Value::decode(bytes).is_some(), is_float, "{bytes:?}");
        }
    }

    #[test]
    fn values_are_shown_in_their_input_form() {
        for (value, text) in [
            (Value::Float(21.5), "21.5"),
            (Value::Float(20.0), "20"),
            (Value::Float(-0.0), "-0"),
            (Value::Float(1e300), "1e300"),
            (Value::Float(0.001), "0.001"),
            (Value::Float(-2.5e-9), "-2.5e-9"),
            (Value::Integer(-3), "-3"),
            (Value::Unsigned(u64::MAX), "18446744073709551615"),
            (Value::Boolean(false), "false"),
            (Value::Text("on"), "on"),
        ] {
            assert_eq!(value.to_string(), text);
        }
    }

    /// `>=` instead of `>` in `beyond_doubles`, or `i64::MAX` as its limit for doubles, makes it red.
    #[test]
    fn numbers_beyond_doubles_have_each_digit() {
        const EXACT: i64 = 1 << 53;
        for (value, digits) in [
            (Value::Integer(EXACT), None),
            (Value::Integer(-EXACT), None),
            (Value::Integer(EXACT + 1), Some("9007199254740993")),
            (Value::Integer(-EXACT - 1), Some("-9007199254740993")),
            (Value::Integer(i64::MIN), Some("-9223372036854775808")),
            (Value::Unsigned(DOUBLE_EXACT_MAX), None),
            (Value::Unsigned(u64::MAX), Some("18446744073709551615")),
            (Value::Float(EXACT as f64), None),
            (
                Value::Float(9_007_199_254_740_994.0),
                Some("9007199254740994"),
            ),
            (Value::Float(i64::MIN as f64), Some("-9223372036854775808")),
            (Value::Float(u64::MAX as f64), Some("18446744073709551616")),
            (Value::Float(1e20), None),
            (Value::Float(f64::NAN), None),
            (Value::Float(f64::NEG_INFINITY), None),
            (Value::Float(21.5), None),
            (Value::Text("9007199254740993"), None),
            (Value::Boolean(true), None),
        ] {
            let found = value.beyond_doubles().map(|number| number.to_string());
            assert_eq!(found.as_deref(), digits, "{value:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn texts_and_numbers_come_back(text in ".{0,60}", integer in any::<i64>(), bits in any::<u64>()) {
            round(Value::Text(&text));
            round(Value::Integer(integer));
            round(Value::Unsigned(bits));
            let bytes = bits.to_le_bytes();
            let Some(Value::Float(value)) = Value::decode(&bytes) else { panic!() };
            prop_assert_eq!(value.to_bits(), bits);
        }

        #[test]
        fn a_decoded_value_has_no_second_form(bytes in prop::collection::vec(any::<u8>(), 0..12), tag in 0..5_usize) {
            let mut bytes = bytes;
            if let (Some(first), Some(tag)) = (bytes.first_mut(), b"iubtT".get(tag)) {
                *first = *tag;
            }
            if let Some(value) = Value::decode(&bytes) {
                let mut buffer = [0; 16];
                let length = value.encode(&mut buffer).unwrap();
                prop_assert_eq!(&buffer[..length], &bytes[..]);
            }
        }

        #[test]
        fn a_printed_float_parses_back(value in any::<f64>().prop_filter("finite", |value| value.is_finite())) {
            let parsed: f64 = Value::Float(value).to_string().parse().unwrap();
            prop_assert_eq!(parsed.to_bits(), value.to_bits());
        }
    }
}
