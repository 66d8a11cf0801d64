//! The commands that talk to a running node: `get`, `put`, `watch`, `history`, `export`, `keys`, `status`, `top` and
//! `backup`.

mod backup;
mod connection;
mod export;
mod get;
mod history;
mod keys;
mod place;
mod put;
mod region;
mod status;
mod top;
mod top_view;
mod watch;

use crate::cli::ClientCommand;
use crate::error::CliError;
pub(crate) use backup::run as backup;
use base::error::Code;
pub(crate) use connection::Connection;
use db::Time;
use db::value::Value as Stored;
pub(crate) use history::numbers as history_numbers;
use libkeel::protocol::{Digits, Failure, Kind, Nanoseconds};
pub(crate) use place::{config_in_place, find_config};
use std::fmt::Display;

/// The remedy for a full store, if the node does not give one.
const FULL_REMEDY: &str = "keep less history (store.history_mebibytes_max), or let the oldest readings make room \
                           (store.full_policy = \"drop-oldest\")";

/// Runs one command. Returns the exit status.
pub(crate) fn run(command: &ClientCommand) -> Result<u8, CliError> {
    match command {
        ClientCommand::Get(arguments) => get::run(arguments),
        ClientCommand::Put(arguments) => put::run(arguments),
        ClientCommand::Watch(arguments) => watch::run(arguments),
        ClientCommand::History(arguments) => history::run(arguments),
        ClientCommand::Export(arguments) => export::run(arguments),
        ClientCommand::Keys(arguments) => keys::run(arguments),
        ClientCommand::Status(arguments) => status::run(arguments),
        ClientCommand::Top(arguments) => top::run(arguments),
    }
}

fn strange(shown: &str, wrong: impl Display) -> CliError {
    let wrong = format!("the answer is not what this version expects ({wrong})");
    CliError::failure(shown, wrong, "use keel of the node's version")
}

/// Returns the error of a request that the node refused or that failed there. It never counts as wrong usage: errors
/// visible in the command line are found before the request.
fn failed(failure: &Failure, asked: Option<Kind>) -> CliError {
    let is = |code: Code| failure.code == code.name();
    let remedy = match asked {
        Some(Kind::Get | Kind::History)
            if is(Code::NotFound) && !ingest::pattern::is_exact(&failure.thing) =>
        {
            "patterns work in `keel watch`"
        }
        Some(Kind::Put) if is(Code::Full) && failure.remedy.is_empty() => FULL_REMEDY,
        _ => &failure.remedy,
    };
    // Show an empty key as a name, too.
    let thing = match failure.thing.as_str() {
        "" => "\"\"",
        thing => thing,
    };
    CliError::failure(thing, &failure.wrong, remedy)
}

/// Returns a value as people write it.
fn value_text(value: &serde_json::Value, kind: &str) -> String {
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
fn printable(text: &str) -> String {
    let escape = |letter: char| -> String {
        if letter.is_control() {
            letter.escape_default().to_string()
        } else {
            letter.to_string()
        }
    };
    text.chars().map(escape).collect()
}

/// Returns the current time by this machine's clock; times such as -15m count from it.
pub(crate) fn now_ms() -> i64 {
    base::clock::Clock::wall_ms(&base::clock::SystemClock::new())
}

/// Adds what an answer lacks of what a program may rely on: the ns of a time that is a whole ms; and the digits of a
/// large number, which nodes of earlier versions do not send.
fn completed(mut found: serde_json::Value) -> serde_json::Value {
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

/// Parses a time that the user has written.
fn time(text: &str, now_ms: i64) -> Result<Time, CliError> {
    crate::time_text::parse(text, now_ms)
        .map_err(|forms| CliError::usage(text, "is no time", forms))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: Code, thing: &str, remedy: &str, asked: Kind) -> (u8, String) {
        let failure = Failure {
            code: code.name().to_owned(),
            thing: thing.to_owned(),
            wrong: "is refused".to_owned(),
            remedy: remedy.to_owned(),
        };
        let error = failed(&failure, Some(asked));
        (error.status(), error.to_string())
    }

    #[test]
    fn what_the_node_refuses_is_no_wrong_usage() {
        for code in Code::ALL {
            for kind in [Kind::Get, Kind::Put, Kind::Watch, Kind::History] {
                let (status, line) = refused(code, "a", "mend it", kind);
                assert_eq!((status, line.as_str()), (1, "a: is refused; mend it"));
            }
        }
    }

    #[test]
    fn what_a_program_may_rely_on_is_always_there() {
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

    #[test]
    fn remedies_fit_what_was_asked() {
        for kind in [Kind::Get, Kind::History] {
            for key in ["hall/#", "+/door", "#"] {
                let (_, line) = refused(Code::NotFound, key, "see", kind);
                assert!(line.ends_with("; patterns work in `keel watch`"), "{line}");
            }
            let (_, line) = refused(Code::NotFound, "hall/a#", "see", kind);
            assert!(line.ends_with("; see"), "{line}");
        }
        let (_, line) = refused(Code::Invalid, "", "see", Kind::Put);
        assert_eq!(line, "\"\": is refused; see");
        let (_, line) = refused(Code::Full, "a", "", Kind::Put);
        assert!(
            line.contains("store.history_mebibytes_max") && line.contains("store.full_policy"),
            "{line}"
        );
    }
}
