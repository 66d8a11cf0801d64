//! The one value of a put, as a client writes it in JSON.

use serde_json::value::RawValue;

use super::Reason;
use super::value::{DecodedValue, Sent, ValueRule, finite, integer, of_member};

/// The type of a number that a put asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutType {
    /// The nearest double.
    Float,
    /// A signed integer of 64 bits.
    Integer,
    /// An unsigned integer of 64 bits.
    Unsigned,
}

/// Writes the stored form of a value to the front of `bytes`; returns its length. Without a type, a number becomes what
/// it becomes in a message of JSON. A number with a type may be written as a text: many programs cannot write each
/// digit of a large number in JSON.
///
/// # Errors
/// - [`Reason::PayloadInvalid`]: it is no single value, or none of this type.
/// - [`Reason::NumberInexact`]: it is a whole number that this integer type does not hold, or without a type no type.
/// - [`Reason::NotFinite`]: a double does not hold the number.
/// - [`Reason::ValueTooLong`]: `bytes` is too short.
pub fn encode_put(
    json: &RawValue,
    wanted: Option<PutType>,
    bytes: &mut [u8],
) -> Result<usize, Reason> {
    let sent = sent(json.get())?;
    let value = match wanted {
        None => of_member(&sent, &ValueRule::default())?,
        Some(wanted) => number(&sent, wanted)?,
    };
    let written = value.as_value().encode(bytes);
    written.map_err(|_| Reason::ValueTooLong)
}

/// Returns the value that a text of valid JSON is.
fn sent(text: &str) -> Result<Sent<'_>, Reason> {
    match text.as_bytes().first() {
        Some(b'"') => serde_json::from_str(text)
            .map(Sent::Text)
            .map_err(|_| Reason::PayloadInvalid),
        Some(b't') => Ok(Sent::Boolean(true)),
        Some(b'f') => Ok(Sent::Boolean(false)),
        Some(b'-' | b'0'..=b'9') => Ok(Sent::Number(text)),
        _ => Err(Reason::PayloadInvalid),
    }
}

fn number(sent: &Sent<'_>, wanted: PutType) -> Result<DecodedValue<'static>, Reason> {
    let digits = match sent {
        Sent::Number(_) | Sent::Text(_) => sent.as_text(),
        Sent::Boolean(_) => return Err(Reason::PayloadInvalid),
    };
    match wanted {
        PutType::Float => finite(digits).map(DecodedValue::Float),
        PutType::Integer => match integer(digits)? {
            value @ DecodedValue::Integer(_) => Ok(value),
            _ => Err(Reason::NumberInexact),
        },
        PutType::Unsigned => match integer(digits)? {
            DecodedValue::Integer(value) => u64::try_from(value)
                .map(DecodedValue::Unsigned)
                .map_err(|_| Reason::NumberInexact),
            value => Ok(value),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use db::VALUE_BYTES_LIMIT;
    use db::value::Value;
    use proptest::prelude::*;

    fn encode(json: &str, wanted: Option<PutType>) -> Result<Vec<u8>, Reason> {
        let json = RawValue::from_string(json.to_owned()).unwrap();
        let mut bytes = [0; VALUE_BYTES_LIMIT];
        let length = encode_put(&json, wanted, &mut bytes)?;
        Ok(bytes[..length].to_vec())
    }

    fn stored(value: Value<'_>) -> Vec<u8> {
        let mut bytes = [0; VALUE_BYTES_LIMIT];
        let length = value.encode(&mut bytes).unwrap();
        bytes[..length].to_vec()
    }

    /// `of_member` for every put, or `as f64` in `number`, makes it red.
    #[test]
    fn a_put_has_the_type_that_it_asks_for() {
        use PutType::{Float, Integer, Unsigned};
        use Reason::{NotFinite, NumberInexact, PayloadInvalid};
        for (json, wanted, expected) in [
            ("21", None, Ok(Value::Float(21.0))),
            (
                "9007199254740992",
                None,
                Ok(Value::Float(9_007_199_254_740_992.0)),
            ),
            (
                "9007199254740993",
                None,
                Ok(Value::Integer(9_007_199_254_740_993)),
            ),
            (
                "9007199254740993.0",
                None,
                Ok(Value::Float(9_007_199_254_740_992.0)),
            ),
            ("18446744073709551615", None, Ok(Value::Unsigned(u64::MAX))),
            ("18446744073709551617", None, Err(NumberInexact)),
            ("1e400", None, Err(NotFinite)),
            ("true", None, Ok(Value::Boolean(true))),
            ("false", None, Ok(Value::Boolean(false))),
            (r#""o\u00fcn""#, None, Ok(Value::Text("oün"))),
            ("\"21\"", None, Ok(Value::Text("21"))),
            ("null", None, Err(PayloadInvalid)),
            ("[1]", None, Err(PayloadInvalid)),
            ("{\"v\":1}", None, Err(PayloadInvalid)),
            ("21", Some(Float), Ok(Value::Float(21.0))),
            (
                "9007199254740993",
                Some(Float),
                Ok(Value::Float(9_007_199_254_740_992.0)),
            ),
            ("\"0.5\"", Some(Float), Ok(Value::Float(0.5))),
            ("1e400", Some(Float), Err(NotFinite)),
            ("21", Some(Integer), Ok(Value::Integer(21))),
            (
                "-9223372036854775808",
                Some(Integer),
                Ok(Value::Integer(i64::MIN)),
            ),
            (
                "9223372036854775807",
                Some(Integer),
                Ok(Value::Integer(i64::MAX)),
            ),
            (
                "\"9007199254740993\"",
                Some(Integer),
                Ok(Value::Integer(9_007_199_254_740_993)),
            ),
            ("9223372036854775808", Some(Integer), Err(NumberInexact)),
            ("21.5", Some(Integer), Err(PayloadInvalid)),
            ("\"open\"", Some(Integer), Err(PayloadInvalid)),
            ("true", Some(Integer), Err(PayloadInvalid)),
            ("null", Some(Integer), Err(PayloadInvalid)),
            ("0", Some(Unsigned), Ok(Value::Unsigned(0))),
            (
                "18446744073709551615",
                Some(Unsigned),
                Ok(Value::Unsigned(u64::MAX)),
            ),
            ("18446744073709551616", Some(Unsigned), Err(NumberInexact)),
            ("-1", Some(Unsigned), Err(NumberInexact)),
        ] {
            assert_eq!(
                encode(json, wanted),
                expected.map(stored),
                "{json} {wanted:?}"
            );
        }
        let long = format!("\"{}\"", "x".repeat(VALUE_BYTES_LIMIT));
        assert_eq!(encode(&long, None), Err(Reason::ValueTooLong));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_integer_is_exact(signed in any::<i64>(), unsigned in any::<u64>(), shift in 0_u32..64) {
            let (signed, unsigned) = (signed >> shift, unsigned >> shift);
            let (json, text) = (signed.to_string(), format!("\"{unsigned}\""));
            prop_assert_eq!(encode(&json, Some(PutType::Integer)), Ok(stored(Value::Integer(signed))));
            prop_assert_eq!(encode(&text, Some(PutType::Unsigned)), Ok(stored(Value::Unsigned(unsigned))));
            // Without a type a number may become a double, but no other number.
            for (json, number) in [(json, i128::from(signed)), (unsigned.to_string(), i128::from(unsigned))] {
                let bytes = encode(&json, None).unwrap();
                let found = match Value::decode(&bytes) {
                    Some(Value::Float(value)) => value as i128,
                    Some(Value::Integer(value)) => i128::from(value),
                    Some(Value::Unsigned(value)) => i128::from(value),
                    other => panic!("{other:?}"),
                };
                prop_assert_eq!(found, number);
            }
        }
    }
}
