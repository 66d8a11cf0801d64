//! Decodes payloads of one reading.

use std::borrow::Cow;

use db::value::Value;

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
    let document: serde_json::Value =
        serde_json::from_str(text).map_err(|error| json_reason(&error))?;
    let value = match descend(&document, field) {
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
        Some(path) => match descend(&document, path) {
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
