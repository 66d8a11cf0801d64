//! Values of the node's answers, as people and programs read them.

use db::Time;
use db::value::Value as Stored;
use libkeel::protocol::{Digits, Nanoseconds};

/// Returns a value as people write it.
pub(super) fn value_text(value: &serde_json::Value, kind: &str) -> String {
    use db::value::Value;
    use serde_json::Value as Json;
    match value {
        Json::Number(number) => match (kind, number.as_f64()) {
            ("float", Some(float)) => Value::Float(float).to_string(),
            _ => number.to_string(),
        },
        Json::String(text) => text.clone(),
        Json::Null => format!("({kind})"),
        other => other.to_string(),
    }
}

/// Returns a text without characters that could control a terminal.
pub(super) fn printable(text: &str) -> String {
    let escape = |letter: char| -> String {
        if letter.is_control() {
            letter.escape_default().to_string()
        } else {
            letter.to_string()
        }
    };
    text.chars().map(escape).collect()
}

/// Adds the fields that a program may rely on and an answer lacks. These are the ns of a time that is a whole ms, and
/// the digits of a large number. Nodes of earlier versions do not send the digits.
pub(super) fn completed(mut found: serde_json::Value) -> serde_json::Value {
    let Some(fields) = found.as_object_mut() else {
        return found;
    };
    if !fields.contains_key("time_ns")
        && let Some(ms) = fields.get("time_ms").and_then(serde_json::Value::as_i64)
    {
        let ns = Nanoseconds::of(Time::from_ms(ms));
        fields.insert("time_ns".to_owned(), serde_json::json!(ns));
    }
    if let Some(digits) = fields.get("value").and_then(digits) {
        fields.insert("value_text".to_owned(), serde_json::json!(digits));
    }
    found
}

/// Returns the digits of a number of an answer, if it is a whole one that readers of JSON may not keep.
fn digits(value: &serde_json::Value) -> Option<Digits> {
    let value = match (value.as_i64(), value.as_u64()) {
        (Some(number), _) => Stored::Integer(number),
        (None, Some(number)) => Stored::Unsigned(number),
        (None, None) => Stored::Float(value.as_f64()?),
    };
    value.beyond_doubles().map(Digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_fields_that_programs_rely_on() {
        for (before, after) in [
            (
                serde_json::json!({"time_ms": -5}),
                serde_json::json!({"time_ms": -5, "time_ns": "-5000000"}),
            ),
            (
                serde_json::json!({"time_ms": 1, "time_ns": "1000001"}),
                serde_json::json!({"time_ms": 1, "time_ns": "1000001"}),
            ),
            // No ns can count this one.
            (
                serde_json::json!({"time_ms": i64::MAX}),
                serde_json::json!({"time_ms": i64::MAX, "time_ns": null}),
            ),
            (
                serde_json::json!({"value": u64::MAX, "value_text": "18446744073709551615"}),
                serde_json::json!({"value": u64::MAX, "value_text": "18446744073709551615"}),
            ),
            // So answers a node of an earlier version.
            (
                serde_json::json!({"value": i64::MIN}),
                serde_json::json!({"value": i64::MIN, "value_text": "-9223372036854775808"}),
            ),
            (
                serde_json::json!({"value": 9_007_199_254_740_994.0}),
                serde_json::json!({"value": 9_007_199_254_740_994.0, "value_text": "9007199254740994"}),
            ),
            (
                serde_json::json!({"value": 1_i64 << 53}),
                serde_json::json!({"value": 1_i64 << 53}),
            ),
            (
                serde_json::json!({"value": "9007199254740993"}),
                serde_json::json!({"value": "9007199254740993"}),
            ),
            (
                serde_json::json!({"value": null}),
                serde_json::json!({"value": null}),
            ),
            (serde_json::json!([7]), serde_json::json!([7])),
        ] {
            assert_eq!(completed(before), after);
        }
    }
}
