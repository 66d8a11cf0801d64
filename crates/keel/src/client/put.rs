//! `keel put`: stores one reading. Returns when it is on flash, or reports its failure.

use super::connection::Connection;
use super::endpoint::NodeArgs;
use super::error::failed;
use super::time::{now_ms, parse_time};
use crate::error::CliError;
use crate::output::Output;
use base::error::Code;
use clap::Args;
use db::Time;
use db::value::{DOUBLE_EXACT_MAX, Value};
use ingest::intake::{TIME_MS_MAX, TIME_MS_MIN};
use libkeel::protocol::{self, Failure, Kind, Nanoseconds, PutValue, Stored};
use node::time_text;

/// Exit status if the node dropped the reading on purpose: nothing failed, and nothing is stored.
const STATUS_SHED: u8 = 3;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel put room/1/temperature 21.5\n  \
    keel put door/1 open\n  \
    keel put room/1/temperature 20.9 --time 2026-03-01T12:30:00Z\n  \
    keel put tide/forecast 3.1 --time +5m\n  \
    keel put batch/7 --text 0042\n\n\
    A value that looks like a number is stored as a number (64-bit floating point), true and false as truth values,\n\
    any other value as text. A whole number above 2^53 is stored as an integer, so that no digit of it is lost; a\n\
    node of an earlier version refuses it. --integer stores any whole number as an integer.\n\
    Without --time the node's clock gives the time. --time +5m is five minutes from now. A time is kept to the\n\
    nanosecond. [time] of the configuration limits how far it may lie in the future and in the past.\n\n\
    Exit status 1 if the node refuses the reading, 2 if the command line itself is wrong, 3 if the node has dropped\n\
    the reading without storing it, as shed = \"drop\" of its [[key]] demands while fewer updates are admitted.")]
pub(crate) struct PutArgs {
    /// Key
    key: String,
    /// Value; a text that begins with - needs --text
    #[arg(allow_hyphen_values = true)]
    value: String,
    /// Time of the measurement: RFC 3339, a local date and time, -15m, +5m, seconds or milliseconds since 1970
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    time: Option<String>,
    /// Store the value as text, even if it looks like a number or a truth value
    #[arg(long)]
    text: bool,
    /// Store the value as an integer of 64 bits
    #[arg(long, conflicts_with = "text")]
    integer: bool,
    /// Print one JSON object: key, lsn (number in the log; null if dropped), shed (whether it was dropped), time and
    /// time_ns (as given, or null)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: NodeArgs,
}

pub(super) fn run(arguments: &PutArgs) -> Result<u8, CliError> {
    let now_ms = now_ms();
    let time = |text| parse_time(text, now_ms);
    let time = arguments.time.as_deref().map(time).transpose()?;
    let value = match (arguments.text, arguments.integer) {
        (true, _) => PutValue::typed(Value::Text(&arguments.value)),
        (false, true) => PutValue::typed(integer(&arguments.value)?),
        (false, false) => PutValue::of(value(&arguments.value)?),
    };
    let value = value.ok_or_else(|| {
        let remedy = "give a finite number, or --text to store it as it stands";
        let wrong = "is no number that can be stored";
        CliError::usage(&arguments.value, wrong, remedy)
    })?;
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

/// Parses an integer.
fn integer(text: &str) -> Result<Value<'static>, CliError> {
    whole(text).ok_or_else(|| {
        let remedy =
            "give one from -9223372036854775808 to 18446744073709551615, or leave out --integer";
        CliError::usage(text, "is no integer of 64 bits", remedy)
    })
}

fn whole(text: &str) -> Option<Value<'static>> {
    let signed = text.parse().map(Value::Integer);
    signed.or_else(|_| text.parse().map(Value::Unsigned)).ok()
}

/// Parses a number, a truth value, or else the text itself.
fn value(text: &str) -> Result<Value<'_>, CliError> {
    match text {
        "true" => return Ok(Value::Boolean(true)),
        "false" => return Ok(Value::Boolean(false)),
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
        return Ok(Value::Text(text));
    };
    // A number with a point or an exponent is one of a measurement: the nearest double.
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_whole = digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_whole || number.abs() < DOUBLE_EXACT_MAX as f64 {
        return Ok(Value::Float(number));
    }
    if let Some(whole) = whole(text) {
        return Ok(whole);
    }
    // The digits of a double are written out in full.
    if format!("{:.0}", number.abs()) == digits.trim_start_matches('0') {
        return Ok(Value::Float(number));
    }
    let remedy = "write it with a point to store the nearest double, or give --text to store it as it stands";
    Err(CliError::usage(
        text,
        "has digits that no type of number holds",
        remedy,
    ))
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
            node::time_text::format_ms(TIME_MS_MIN),
            "2000-01-01T00:00:00.000Z"
        );
        assert_eq!(
            node::time_text::format_ms(TIME_MS_MAX),
            "2200-01-01T00:00:00.000Z"
        );
    }

    #[test]
    fn values_get_the_type_of_their_text() {
        for (text, expected) in [
            ("21.5", Value::Float(21.5)),
            ("-3", Value::Float(-3.0)),
            ("-0", Value::Float(-0.0)),
            ("1e3", Value::Float(1000.0)),
            ("9007199254740992", Value::Integer(1 << 53)),
            ("9007199254740993", Value::Integer((1 << 53) + 1)),
            ("-9007199254740993", Value::Integer(-(1 << 53) - 1)),
            ("009007199254740993", Value::Integer((1 << 53) + 1)),
            ("9007199254740993.0", Value::Float(9_007_199_254_740_992.0)),
            ("-9223372036854775808", Value::Integer(i64::MIN)),
            ("18446744073709551615", Value::Unsigned(u64::MAX)),
            (
                "18446744073709551616",
                Value::Float(18_446_744_073_709_551_616.0),
            ),
            ("true", Value::Boolean(true)),
            ("open", Value::Text("open")),
            ("0x10", Value::Text("0x10")),
        ] {
            let found = value(text).unwrap();
            assert_eq!(found, expected, "{text}");
            assert!(PutValue::of(found).is_some(), "{text}");
        }
        for text in ["18446744073709551617", "-9223372036854775809", "-x"] {
            assert!(value(text).is_err(), "{text}");
        }
        for text in ["nan", "inf", "1e999", "-infinity"] {
            assert_eq!(PutValue::of(value(text).unwrap()), None, "{text}");
        }
        assert_eq!(integer("5").unwrap(), Value::Integer(5));
        assert_eq!(
            integer("18446744073709551615").unwrap(),
            Value::Unsigned(u64::MAX)
        );
        for text in ["5.0", "", "-", "18446744073709551616", "open"] {
            assert!(integer(text).is_err(), "{text}");
        }
    }
}
