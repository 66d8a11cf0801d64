//! Types of metrics, and the values that they have.

use std::borrow::Cow;

use super::message::{BOOLEAN, Sent};
use crate::intake::Reason;
use crate::intake::value::DecodedValue;

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataType {
    /// A signed integer with this number of bits.
    Signed(u32),
    /// An unsigned integer with this number of bits.
    Unsigned(u32),
    /// A number with a fraction, of 32 or 64 bits.
    Float,
    Boolean,
    /// A text, or an identifier.
    Text,
    /// A moment, in ms since 1970.
    Moment,
    /// A table, metrics in a metric, bytes, a file, an array, or an unknown type: no scalar value.
    Other,
}

impl DataType {
    /// Returns the type with this number; `None` for 0, which stands for none.
    pub(super) fn of(number: u32) -> Option<Self> {
        Some(match number {
            0 => return None,
            1 => Self::Signed(8),
            2 => Self::Signed(16),
            3 => Self::Signed(32),
            4 => Self::Signed(64),
            5 => Self::Unsigned(8),
            6 => Self::Unsigned(16),
            7 => Self::Unsigned(32),
            8 => Self::Unsigned(64),
            9 | 10 => Self::Float,
            BOOLEAN => Self::Boolean,
            12 | 14 | 15 => Self::Text,
            13 => Self::Moment,
            _ => Self::Other,
        })
    }

    /// Returns the value of a metric of this type.
    ///
    /// # Errors
    /// [`Reason::SparkplugType`] if the type has no scalar values; [`Reason::PayloadInvalid`] if the value is not of
    /// the type, or beyond its range; [`Reason::NotFinite`].
    pub(super) fn value(self, sent: &Sent) -> Result<DecodedValue<'_>, Reason> {
        match (self, sent) {
            (Self::Other, _)
            | (_, Sent::Bytes(_) | Sent::DataSet(_) | Sent::Template(_) | Sent::Extension(_)) => {
                Err(Reason::SparkplugType)
            }
            (Self::Signed(bits), Sent::Int(raw)) => signed(i64::from(*raw as i32), bits),
            (Self::Signed(bits), Sent::Long(raw)) => signed(*raw as i64, bits),
            (Self::Unsigned(bits), Sent::Int(raw)) => unsigned(u64::from(*raw), bits),
            (Self::Unsigned(bits), Sent::Long(raw)) => unsigned(*raw, bits),
            (Self::Float, Sent::Float(number)) => finite(f64::from(*number)),
            (Self::Float, Sent::Double(number)) => finite(*number),
            (Self::Boolean, Sent::Boolean(value)) => Ok(DecodedValue::Boolean(*value)),
            (Self::Text, Sent::Text(text)) => Ok(DecodedValue::Text(Cow::Borrowed(text))),
            (Self::Moment, Sent::Long(raw)) => {
                let moment = i64::try_from(*raw).map_err(|_| Reason::PayloadInvalid)?;
                Ok(DecodedValue::Integer(moment))
            }
            _ => Err(Reason::PayloadInvalid),
        }
    }
}

/// Returns a signed integer of `bits` bits. Some senders fill all bits of a negative one that the message has room for,
/// others only those of the type.
fn signed(value: i64, bits: u32) -> Result<DecodedValue<'static>, Reason> {
    let spare = i64::BITS.saturating_sub(bits);
    let cut = value.wrapping_shl(spare).wrapping_shr(spare);
    let is_filled = cut == value;
    // The bits of the type alone, which read as a greater number.
    let is_short = spare > 0 && (value as u64).wrapping_shr(bits) == 0;
    if is_filled || is_short {
        Ok(DecodedValue::Integer(cut))
    } else {
        Err(Reason::PayloadInvalid)
    }
}

fn unsigned(value: u64, bits: u32) -> Result<DecodedValue<'static>, Reason> {
    if bits >= u64::BITS || value.wrapping_shr(bits) == 0 {
        Ok(DecodedValue::Unsigned(value))
    } else {
        Err(Reason::PayloadInvalid)
    }
}

fn finite(number: f64) -> Result<DecodedValue<'static>, Reason> {
    match number.is_finite() {
        true => Ok(DecodedValue::Float(number)),
        false => Err(Reason::NotFinite),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn value(number: u32, sent: &Sent) -> Result<DecodedValue<'_>, Reason> {
        DataType::of(number).unwrap().value(sent)
    }

    #[test]
    fn integers_are_exact_in_both_forms_of_negative_ones() {
        use DecodedValue::{Integer, Unsigned};
        use Sent::{Int, Long};
        let bad = Err(Reason::PayloadInvalid);
        for (number, sent, expected) in [
            (1, Int(127), Ok(Integer(127))),
            (1, Int(0xff), Ok(Integer(-1))),
            (1, Int(0xffff_ffff), Ok(Integer(-1))),
            (1, Int(0xffff_ff80), Ok(Integer(-128))),
            (1, Int(0xffff_ff7f), bad.clone()),
            (1, Int(0x100), bad.clone()),
            (2, Int(0x8000), Ok(Integer(-32_768))),
            (2, Int(0xffff_8000), Ok(Integer(-32_768))),
            (2, Int(0x1_0000), bad.clone()),
            (3, Int(0xffff_fffe), Ok(Integer(-2))),
            (3, Long(0xffff_fffe), Ok(Integer(-2))),
            (3, Long(u64::MAX - 1), Ok(Integer(-2))),
            (3, Long(1 << 32), bad.clone()),
            (4, Long((1 << 53) + 1), Ok(Integer((1 << 53) + 1))),
            (4, Long(u64::MAX), Ok(Integer(-1))),
            (4, Int(5), Ok(Integer(5))),
            (5, Int(255), Ok(Unsigned(255))),
            (5, Int(256), bad.clone()),
            (6, Int(65_535), Ok(Unsigned(65_535))),
            (7, Int(u32::MAX), Ok(Unsigned(u64::from(u32::MAX)))),
            // Java has no unsigned integers of 32 bits, so its library takes the longer field.
            (
                7,
                Long(u64::from(u32::MAX)),
                Ok(Unsigned(u64::from(u32::MAX))),
            ),
            (7, Long(1 << 32), bad.clone()),
            (8, Long(u64::MAX), Ok(Unsigned(u64::MAX))),
            (13, Long(1_700_000_000_123), Ok(Integer(1_700_000_000_123))),
            (13, Long(u64::MAX), bad.clone()),
            (13, Int(5), bad),
        ] {
            assert_eq!(value(number, &sent), expected, "{number} {sent:?}");
        }
    }

    #[test]
    fn floats_booleans_and_texts_have_their_own_types() {
        use DecodedValue::{Boolean, Float};
        let text = |text: &'static str| Ok(DecodedValue::Text(Cow::Borrowed(text)));
        let sent = |text: &str| Sent::Text(text.to_owned());
        let bad = Err(Reason::PayloadInvalid);
        for (number, sent, expected) in [
            (9, Sent::Float(21.5), Ok(Float(21.5))),
            (9, Sent::Double(21.5), Ok(Float(21.5))),
            (10, Sent::Double(0.1), Ok(Float(0.1))),
            (10, Sent::Float(f32::INFINITY), Err(Reason::NotFinite)),
            (10, Sent::Double(f64::NAN), Err(Reason::NotFinite)),
            (10, Sent::Int(1), bad.clone()),
            (11, Sent::Boolean(true), Ok(Boolean(true))),
            (11, Sent::Int(1), bad.clone()),
            (12, sent("open"), text("open")),
            (14, sent(""), text("")),
            (15, sent("9d3a-1"), text("9d3a-1")),
            (12, Sent::Boolean(true), bad.clone()),
            (3, sent("5"), bad),
        ] {
            assert_eq!(value(number, &sent), expected, "{number} {sent:?}");
        }
    }

    #[test]
    fn values_that_are_no_scalars_are_refused_by_their_type() {
        assert_eq!(DataType::of(0), None);
        let none = Bytes::new();
        let scalar = Sent::Boolean(true);
        for number in (16..=34).chain([u32::MAX]) {
            let found = value(number, &scalar);
            assert_eq!(found, Err(Reason::SparkplugType), "{number}");
        }
        for sent in [
            Sent::Bytes(none.clone()),
            Sent::DataSet(none.clone()),
            Sent::Template(none.clone()),
            Sent::Extension(none),
        ] {
            assert_eq!(value(12, &sent), Err(Reason::SparkplugType), "{sent:?}");
        }
    }
}
