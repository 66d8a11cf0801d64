//! Values in messages that JSON alone does not carry: the type that a put asks for, and the digits of large numbers.
//!
//! A put is written with a type only where an older node would store another number. Such a node refuses the field.
//! Every other put is the same for all nodes.

use std::fmt;

use db::value::{DOUBLE_EXACT_MAX, Value};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

/// The type that the number of a put is stored with.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PutType {
    /// The nearest double.
    Float,
    /// A signed integer of 64 bits.
    Integer,
    /// An unsigned integer of 64 bits.
    Unsigned,
}

/// A value of JSON as it was written, so that no digit of a number is lost.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Json(Box<RawValue>);

impl Json {
    /// Returns its text.
    #[must_use]
    pub fn raw(&self) -> &RawValue {
        &self.0
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

/// A value and its type as a put gives them.
#[derive(Clone, Debug, PartialEq)]
pub struct PutValue {
    pub(super) json: Json,
    pub(super) kind: Option<PutType>,
}

impl PutValue {
    /// Returns the value as clients put it. An integer that a double holds exactly becomes a double, so that a key with
    /// 21 and 21.5 has one type. Any other stays an integer. `None` for a number that is not finite.
    #[must_use]
    pub fn of(value: Value<'_>) -> Option<Self> {
        match value {
            Value::Integer(number) if number.unsigned_abs() <= DOUBLE_EXACT_MAX => {
                Self::written(&(number as f64), None)
            }
            Value::Unsigned(number) if number <= DOUBLE_EXACT_MAX => {
                Self::written(&(number as f64), None)
            }
            other => Self::typed(other),
        }
    }

    /// Returns the value with the type that it has. `None` for a number that is not finite.
    #[must_use]
    pub fn typed(value: Value<'_>) -> Option<Self> {
        match value {
            // JSON has no such number.
            Value::Float(number) if !number.is_finite() => None,
            Value::Float(number) => Self::written(&number, None),
            Value::Integer(number) => Self::written(&number, Some(PutType::Integer)),
            Value::Unsigned(number) => Self::written(&number, Some(PutType::Unsigned)),
            Value::Boolean(truth) => Self::written(&truth, None),
            Value::Text(text) => Self::written(text, None),
        }
    }

    fn written(value: &(impl Serialize + ?Sized), kind: Option<PutType>) -> Option<Self> {
        // Writing a plain value to memory does not fail.
        let json = Json(to_raw_value(value).ok()?);
        Some(Self { json, kind })
    }
}

/// A whole number of an answer: a decimal text in JSON, beside the number itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digits(pub i128);

impl fmt::Display for Digits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Serialize for Digits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Put;

    fn message(value: Option<PutValue>) -> Option<String> {
        let put = Put::new("a".to_owned(), value?, None);
        Some(serde_json::to_string(&put).unwrap())
    }

    /// `<` instead of `<=` in `PutValue::of`, or no type in `PutValue::typed`, makes it red.
    #[test]
    fn a_type_is_written_where_an_older_node_would_round() {
        const EXACT: i64 = 1 << 53;
        for (value, of, typed) in [
            (Value::Float(21.5), "21.5", "21.5"),
            (Value::Float(1e300), "1e+300", "1e+300"),
            (Value::Integer(21), "21.0", "21,\"type\":\"integer\""),
            (Value::Unsigned(0), "0.0", "0,\"type\":\"unsigned\""),
            (
                Value::Integer(-EXACT),
                "-9007199254740992.0",
                "-9007199254740992,\"type\":\"integer\"",
            ),
            (
                Value::Integer(EXACT + 1),
                "9007199254740993,\"type\":\"integer\"",
                "9007199254740993,\"type\":\"integer\"",
            ),
            (
                Value::Unsigned(u64::MAX),
                "18446744073709551615,\"type\":\"unsigned\"",
                "18446744073709551615,\"type\":\"unsigned\"",
            ),
            (Value::Boolean(true), "true", "true"),
            (Value::Text("\n"), "\"\\n\"", "\"\\n\""),
        ] {
            let expected = |value: &str| Some(format!("{{\"key\":\"a\",\"value\":{value}}}"));
            assert_eq!(message(PutValue::of(value)), expected(of), "{value:?}");
            assert_eq!(
                message(PutValue::typed(value)),
                expected(typed),
                "{value:?}"
            );
        }
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(PutValue::of(Value::Float(number)), None);
            assert_eq!(PutValue::typed(Value::Float(number)), None);
        }
    }

    #[test]
    fn a_value_is_read_as_it_was_written() {
        let read = |text: &str| serde_json::from_str::<Put>(text);
        let text =
            "{\"key\":\"a\",\"value\":18446744073709551617,\"type\":\"unsigned\",\"time_ms\":5}";
        let put = read(text).unwrap();
        assert_eq!(put.value.raw().get(), "18446744073709551617");
        assert_eq!(put.kind, Some(PutType::Unsigned));
        assert_eq!(serde_json::to_string(&put).unwrap(), text);
        for (text, wrong) in [
            (
                "{\"key\":\"a\",\"value\":1,\"type\":\"text\"}",
                "unknown variant",
            ),
            ("{\"key\":\"a\",\"type\":\"float\"}", "missing field"),
            (
                "{\"key\":\"a\",\"value\":1,\"kind\":\"float\"}",
                "unknown field",
            ),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(wrong), "{error}");
        }
    }
}
