//! Decodes payloads of one reading.

use std::borrow::Cow;
use std::collections::HashMap;

use db::value::Value;
use serde_json::value::RawValue;

use super::time::rfc3339_ms;
use super::{PayloadKind, Reason};

/// Size of the longest JSON payload, in bytes: a parsed document takes up to about 30 times its size.
pub const JSON_BYTES_MAX: usize = 64 << 10;

/// A decoded payload.
pub(crate) struct Decoded<'a> {
    pub(crate) value: DecodedValue<'a>,
    pub(crate) time_ms: Option<i64>,
}

pub(crate) enum DecodedValue<'a> {
    Float(f64),
    Boolean(bool),
    Text(Cow<'a, str>),
}

impl DecodedValue<'_> {
    pub(crate) fn as_value(&self) -> Value<'_> {
        match self {
            Self::Float(value) => Value::Float(*value),
            Self::Boolean(value) => Value::Boolean(*value),
            Self::Text(text) => Value::Text(text),
        }
    }
}

/// Parses a number as text, with nothing around it.
///
/// # Errors
/// [`Reason::NotFinite`] for NaN, infinities and numbers too great for a double; [`Reason::PayloadInvalid`].
pub(crate) fn finite(text: &str) -> Result<f64, Reason> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        Ok(_) => Err(Reason::NotFinite),
        Err(_) => Err(Reason::PayloadInvalid),
    }
}

/// Returns the text of a payload, without the byte order mark that some tools put in front.
fn text(payload: &[u8]) -> Result<&str, Reason> {
    let text = std::str::from_utf8(payload).map_err(|_| Reason::InvalidUtf8)?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

pub(crate) fn number(payload: &[u8]) -> Result<f64, Reason> {
    finite(text(payload)?.trim_matches(|character: char| character.is_ascii_whitespace()))
}

/// Decodes a payload of any kind except lines, which hold any number of readings.
pub(crate) fn payload<'a>(kind: &PayloadKind, bytes: &'a [u8]) -> Result<Decoded<'a>, Reason> {
    match kind {
        PayloadKind::Number | PayloadKind::Line => Ok(Decoded {
            value: DecodedValue::Float(number(bytes)?),
            time_ms: None,
        }),
        PayloadKind::Json { field, time_field } => json(bytes, field, time_field.as_deref()),
    }
}

fn json<'a>(bytes: &[u8], field: &str, time_field: Option<&str>) -> Result<Decoded<'a>, Reason> {
    if bytes.len() > JSON_BYTES_MAX {
        return Err(Reason::Oversized);
    }
    let text = text(bytes)?;
    // The parser refuses documents nested deeper than 128 levels.
    let document: Option<serde_json::Value> = match serde_json::from_str(text) {
        Ok(document) => Some(document),
        // Some number is too great for a double. It may be one that is not asked for.
        Err(error) if json_reason(&error) == Reason::NotFinite => None,
        Err(error) => return Err(json_reason(&error)),
    };
    let member = |path: &str| match &document {
        Some(document) => Ok(descend(document, path).map(Cow::Borrowed)),
        None => member_alone(text, path).map(|found| found.map(Cow::Owned)),
    };
    let value = match member(field)?.as_deref() {
        Some(serde_json::Value::Number(number)) => match number.as_f64() {
            Some(value) if value.is_finite() => DecodedValue::Float(value),
            _ => return Err(Reason::NotFinite),
        },
        Some(serde_json::Value::Bool(value)) => DecodedValue::Boolean(*value),
        Some(serde_json::Value::String(text)) => DecodedValue::Text(Cow::Owned(text.clone())),
        _ => return Err(Reason::JsonFieldMissing),
    };
    let time_ms = match time_field {
        None => None,
        Some(path) => match member(path)?.as_deref() {
            Some(serde_json::Value::Number(number)) => Some(whole_ms(number)?),
            Some(serde_json::Value::String(text)) => {
                Some(rfc3339_ms(text).ok_or(Reason::TimeAbsurd)?)
            }
            _ => return Err(Reason::JsonFieldMissing),
        },
    };
    Ok(Decoded { value, time_ms })
}

/// A number that is too great for a double is refused like an infinity. Only the parser's message distinguishes it from
/// invalid JSON.
fn json_reason(error: &serde_json::Error) -> Reason {
    if error.to_string().starts_with("number out of range") {
        Reason::NotFinite
    } else {
        Reason::JsonInvalid
    }
}

/// As [`descend`], for a document that does not parse because a number is too great for a double: parses the member at
/// the path and no other. `None` also for a list or an object there.
///
/// # Errors
/// [`Reason::JsonInvalid`]; [`Reason::NotFinite`] if that member is the number.
fn member_alone(text: &str, path: &str) -> Result<Option<serde_json::Value>, Reason> {
    let reason = |error: serde_json::Error| json_reason(&error);
    let mut place: &RawValue = serde_json::from_str(text).map_err(reason)?;
    for step in steps(path).filter(|_| !path.is_empty()) {
        let inside = place.get();
        let found = match inside.as_bytes().first() {
            Some(b'{') => {
                let mut members: HashMap<String, &RawValue> =
                    serde_json::from_str(inside).map_err(reason)?;
                members.remove(step)
            }
            Some(b'[') => {
                let elements: Vec<&RawValue> = serde_json::from_str(inside).map_err(reason)?;
                let at = step.parse::<usize>().ok();
                at.and_then(|at| elements.get(at).copied())
            }
            _ => None,
        };
        match found {
            Some(found) => place = found,
            None => return Ok(None),
        }
    }
    match place.get().as_bytes().first() {
        Some(b'{' | b'[') => Ok(None),
        _ => serde_json::from_str(place.get()).map(Some).map_err(reason),
    }
}

fn whole_ms(number: &serde_json::Number) -> Result<i64, Reason> {
    if let Some(ms) = number.as_i64() {
        return Ok(ms);
    }
    match number.as_f64() {
        // A double this great is no valid time; the conversion would clamp it to the nearest i64.
        Some(ms) if ms.abs() < 1e18 => Ok(ms.floor() as i64),
        _ => Err(Reason::TimeAbsurd),
    }
}

fn descend<'v>(document: &'v serde_json::Value, path: &str) -> Option<&'v serde_json::Value> {
    if path.is_empty() {
        return Some(document);
    }
    steps(path).try_fold(document, |place, step| match place {
        serde_json::Value::Object(members) => members.get(step),
        serde_json::Value::Array(elements) => elements.get(step.parse::<usize>().ok()?),
        _ => None,
    })
}

/// Splits a path at its dots. A part in quotes may contain dots: `"temp.in".value`. A quote that is not closed stands
/// for itself.
fn steps(path: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(path);
    std::iter::from_fn(move || {
        let path = rest?;
        if let Some(quoted) = path.strip_prefix('"')
            && let Some((step, tail)) = quoted.split_once('"')
            && (tail.is_empty() || tail.starts_with('.'))
        {
            rest = tail.strip_prefix('.');
            return Some(step);
        }
        let (step, tail) = match path.split_once('.') {
            Some((step, tail)) => (step, Some(tail)),
            None => (path, None),
        };
        rest = tail;
        Some(step)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_too_great_costs_its_own_member_alone() {
        use Reason::{JsonFieldMissing, JsonInvalid, NotFinite};
        let decoded = |text: &str, field: &str, time_field: Option<&str>| {
            let kind = PayloadKind::Json {
                field: field.to_owned(),
                time_field: time_field.map(str::to_owned),
            };
            payload(&kind, text.as_bytes())
                .map(|decoded| (decoded.value.as_value().to_string(), decoded.time_ms))
        };
        for (text, field, value) in [
            (r#"{"x":1e400,"a":{"c":[-1e999],"b":1}}"#, "a.b", Ok("1")),
            (r#" {"a":{"b":"o\u00fcn"},"x":1e400} "#, "a.b", Ok("oün")),
            (r#"{"\u0061":{"b":true},"x":1e400}"#, "a.b", Ok("true")),
            (r#"{"a":{"b":1e400},"a":{"b":2}}"#, "a.b", Ok("2")),
            (r#"[1e400,{"v":-3}]"#, "1.v", Ok("-3")),
            (r#"{"a":{"b":1e400}}"#, "a.b", Err(NotFinite)),
            ("1e400", "", Err(NotFinite)),
            (r#"{"a":[1e400]}"#, "a", Err(JsonFieldMissing)),
            (r#"{"a":1e400}"#, "a.b", Err(JsonFieldMissing)),
            ("[-1e999]", "1", Err(JsonFieldMissing)),
            (r#"{"x":1e400,"a":1"#, "a", Err(JsonInvalid)),
        ] {
            let expected = value.map(|value: &str| (value.to_owned(), None));
            assert_eq!(decoded(text, field, None), expected, "{text}");
        }
        for (text, expected) in [
            (r#"{"x":1e400,"v":4,"t":7}"#, Ok(("4".to_owned(), Some(7)))),
            (r#"{"v":4,"t":-1e400}"#, Err(NotFinite)),
            (r#"{"v":4,"x":1e400}"#, Err(JsonFieldMissing)),
        ] {
            assert_eq!(decoded(text, "v", Some("t")), expected, "{text}");
        }
    }
}
