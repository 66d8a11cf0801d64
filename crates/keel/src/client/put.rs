//! `keel put`: stores one reading. Returns when it is on flash, or reports its failure.

use super::{Connection, failed};
use crate::cli::PutArgs;
use crate::error::CliError;
use crate::output::Output;
use crate::time_text;
use base::error::Code;
use db::Time;
use ingest::intake::{TIME_MS_MAX, TIME_MS_MIN};
use libkeel::protocol::{self, Failure, Kind, Nanoseconds, Stored};
use serde_json::Value;

/// Exit status if the node dropped the reading on purpose: nothing failed, and nothing is stored.
const STATUS_SHED: u8 = 3;

pub(super) fn run(arguments: &PutArgs) -> Result<u8, CliError> {
    let now_ms = super::now_ms();
    let time = |text| super::time(text, now_ms);
    let time = arguments.time.as_deref().map(time).transpose()?;
    let value = value(&arguments.value, arguments.text)?;
    let put = protocol::Put::new(arguments.key.clone(), value, time);
    let mut connection = Connection::open(&arguments.node)?;
    let mut is_shed = false;
    let answer: Result<Stored, CliError> =
        connection.ask_or(Kind::Put, &put, Kind::Stored, |failure| {
            is_shed = failure.code == Code::Shed.name();
            failed(&with_time(failure, time), Some(Kind::Put))
        });
    let answer = match answer {
        Err(error) if is_shed => Err(error.with_status(STATUS_SHED)),
        Err(error) => return Err(error),
        Ok(stored) => Ok(stored.lsn),
    };
    if arguments.json {
        let mut output = Output::new();
        let lsn = answer.as_ref().ok();
        output.json(&serde_json::json!({
            "key": put.key,
            "lsn": lsn,
            "shed": is_shed,
            "time": time.map(time_text::format_time),
            "time_ns": time.and_then(Nanoseconds::of),
        }))?;
        output.flush()?;
    }
    answer.map(|_| 0)
}

/// Replaces the remedy for a time that no node accepts: no limit of the configuration helps.
fn with_time(mut failure: Failure, time: Option<Time>) -> Failure {
    let is_impossible = time.is_some_and(|time| !(TIME_MS_MIN..TIME_MS_MAX).contains(&time.ms()));
    // The node's reason is not machine-readable. If its text does not mention the time, the failure has another reason.
    if is_impossible && failure.wrong.contains("time") {
        "give a time in the years 2000 to 2199".clone_into(&mut failure.remedy);
    }
    failure
}

/// Parses a number, a truth value, or else the text itself.
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
        if text.starts_with('-') {
            // This is probably an unknown option: it must not become a value.
            let wrong = "is no number and no option";
            return Err(CliError::usage(
                text,
                wrong,
                "see `keel put --help`; a text that begins with - takes --text",
            ));
        }
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
    fn a_time_that_no_node_takes_is_no_matter_of_configuration() {
        let remedy_of = |wrong: &str, time_ms: Option<i64>| {
            let failure = Failure {
                code: "invalid".to_owned(),
                thing: "a".to_owned(),
                wrong: wrong.to_owned(),
                remedy: "change [time]".to_owned(),
            };
            with_time(failure, time_ms.map(Time::from_ms)).remedy
        };
        for ms in [i64::MIN, 0, TIME_MS_MIN - 1, TIME_MS_MAX, i64::MAX] {
            let remedy = remedy_of("the time lies too far in the past", Some(ms));
            assert_eq!(remedy, "give a time in the years 2000 to 2199");
            assert_eq!(remedy_of("is no key", Some(ms)), "change [time]");
        }
        for ms in [None, Some(TIME_MS_MIN), Some(TIME_MS_MAX - 1)] {
            assert_eq!(remedy_of("the time lies too far", ms), "change [time]");
        }
        assert_eq!(
            crate::time_text::format_ms(TIME_MS_MIN),
            "2000-01-01T00:00:00.000Z"
        );
        assert_eq!(
            crate::time_text::format_ms(TIME_MS_MAX),
            "2200-01-01T00:00:00.000Z"
        );
    }

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
