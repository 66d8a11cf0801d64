//! `keel put`: store one reading; returns when it is on flash.

use super::Connection;
use crate::cli::PutArgs;
use crate::error::CliError;
use crate::node::protocol::{self, Kind, Stored};
use crate::output::Output;
use crate::time_text;
use serde_json::Value;

pub(super) fn run(arguments: &PutArgs) -> Result<u8, CliError> {
    let time_ms = arguments.time.as_deref().map(super::time).transpose()?;
    let put = protocol::Put {
        key: arguments.key.clone(),
        value: value(&arguments.value, arguments.text)?,
        time_ms,
    };
    let mut connection = Connection::open(&arguments.node)?;
    let stored: Stored = connection.ask(Kind::Put, &put, Kind::Stored)?;
    if arguments.json {
        let mut output = Output::new();
        let time = time_ms.map(time_text::format_ms);
        output.json(&serde_json::json!({"key": put.key, "lsn": stored.lsn, "time": time}))?;
        output.flush()?;
    }
    Ok(0)
}

/// A number, a truth value, or else the text itself.
fn value(text: &str, is_text: bool) -> Result<Value, CliError> {
    if is_text {
        return Ok(text.into());
    }
    match text {
        "true" => return Ok(true.into()),
        "false" => return Ok(false.into()),
        _ => {}
    }
    let Ok(number) = text.parse::<f64>() else {
        return Ok(text.into());
    };
    serde_json::Number::from_f64(number)
        .map(Value::Number)
        .ok_or_else(|| {
            let remedy = "give a finite number, or --text to store it as it stands";
            CliError::usage(text, "is no number that can be stored", remedy)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_what_they_look_like() {
        let of = |text: &str| value(text, false).unwrap();
        assert_eq!(of("21.5"), serde_json::json!(21.5));
        assert_eq!(of("-3"), serde_json::json!(-3.0));
        assert_eq!(of("1e3"), serde_json::json!(1000.0));
        assert_eq!(of("true"), serde_json::json!(true));
        assert_eq!(of("open"), serde_json::json!("open"));
        assert_eq!(value("5", true).unwrap(), serde_json::json!("5"));
        for text in ["nan", "inf", "1e999", "-infinity"] {
            assert!(value(text, false).is_err(), "{text}");
        }
    }
}
