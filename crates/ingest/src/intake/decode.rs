//! Decodes payloads of one reading.

use super::json::{self, JsonTake};
use super::value::{self, Decoded, DecodedValue, payload_text};
use super::{PayloadKind, Reason};

pub(crate) fn number(payload: &[u8]) -> Result<DecodedValue<'static>, Reason> {
    let text = payload_text(payload)?;
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
        PayloadKind::Value(rule) => value::of_payload(payload_text(bytes)?, rule)?.into_owned(),
        PayloadKind::Sparkplug(_) => return Err(Reason::SparkplugInvalid),
        PayloadKind::Number | PayloadKind::Line => number(bytes)?,
    };
    Ok(Decoded { value, time: None })
}
