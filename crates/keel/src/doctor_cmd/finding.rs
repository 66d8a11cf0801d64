//! What the checks give: facts about the machine, and findings about a feature.

use serde::Serialize;
use serde_json::Value;
use std::path::Path;

/// A property of this machine.
#[derive(Clone, Debug)]
pub(super) struct Fact {
    /// Names are stable.
    pub(super) name: &'static str,
    /// The value, or why it is unknown. It names no host, address, path of this machine or serial number.
    pub(super) value: Result<Value, String>,
}

impl Fact {
    pub(super) fn known(name: &'static str, value: impl Into<Value>) -> Self {
        let value = Ok(value.into());
        Self { name, value }
    }

    pub(super) fn new(name: &'static str, value: Option<impl Into<Value>>, why_none: &str) -> Self {
        let value = value.map(Into::into).ok_or_else(|| why_none.to_owned());
        Self { name, value }
    }
}

/// Returns facts as one JSON object; what is unknown is null.
pub(super) fn as_object(facts: &[Fact]) -> Value {
    let entry = |fact: &Fact| {
        (
            fact.name.to_owned(),
            fact.value.clone().unwrap_or(Value::Null),
        )
    };
    Value::Object(facts.iter().map(entry).collect())
}

/// Returns the text of a file of the kernel without what surrounds it; `None` if it is empty or cannot be read.
pub(super) fn text_of(path: impl AsRef<Path>) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    // Texts of a device tree end with a NUL.
    let text = text.trim_matches(|letter: char| letter.is_whitespace() || letter == '\0');
    (!text.is_empty()).then(|| text.to_owned())
}

/// The state of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Ok,
    /// It is available, but limited.
    Limited,
    Missing,
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::Missing => "missing",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    /// Its subject; names are stable.
    pub(super) subject: &'static str,
    pub(super) verdict: Verdict,
    /// The condition. It names no host, address, path of this machine or serial number.
    pub(super) text: String,
    /// The remedy; empty if none is needed.
    pub(super) remedy: String,
}

impl Finding {
    pub(super) fn ok(subject: &'static str, text: impl Into<String>) -> Self {
        Self {
            subject,
            verdict: Verdict::Ok,
            text: text.into(),
            remedy: String::new(),
        }
    }

    pub(super) fn limited(
        subject: &'static str,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            subject,
            verdict: Verdict::Limited,
            text: text.into(),
            remedy: remedy.into(),
        }
    }

    pub(super) fn missing(
        subject: &'static str,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Missing,
            ..Self::limited(subject, text, remedy)
        }
    }
}
