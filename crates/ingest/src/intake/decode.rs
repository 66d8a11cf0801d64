//! Decodes payloads of one reading.

use db::Time;

use super::json::{self, JsonTake};
use super::value::{self, DecodedValue};
use super::{PayloadKind, Reason};

/// A decoded payload.
pub(crate) struct Decoded {
    pub(crate) value: DecodedValue<'static>,
    pub(crate) time: Option<Time>,
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
pub(super) fn text(payload: &[u8]) -> Result<&str, Reason> {
    let text = std::str::from_utf8(payload).map_err(|_| Reason::InvalidUtf8)?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

pub(crate) fn number(payload: &[u8]) -> Result<DecodedValue<'static>, Reason> {
    let text = text(payload)?;
    value::exact(text.trim_matches(|character: char| character.is_ascii_whitespace()))
}

/// Decodes a payload that holds one reading.
///
/// # Errors
/// The reason to refuse it.
pub(crate) fn payload(kind: &PayloadKind, bytes: &[u8]) -> Result<Decoded, Reason> {
    let value = match kind {
        PayloadKind::Json(json) => {
            return match &json.take {
                JsonTake::One(path, rule) => json::one(bytes, json, path, rule),
                JsonTake::Several(_) => Err(Reason::JsonFieldMissing),
            };
        }
        PayloadKind::Value(rule) => value::of_payload(text(bytes)?, rule)?.into_owned(),
        PayloadKind::Sparkplug(_) => return Err(Reason::SparkplugInvalid),
        PayloadKind::Number | PayloadKind::Line => number(bytes)?,
    };
    Ok(Decoded { value, time: None })
}
