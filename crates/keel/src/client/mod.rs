//! The commands that talk to a running node: `get`, `put`, `watch`, `history`, `export`, `status`,
//! `top` and `backup`.

mod backup;
mod connection;
mod export;
mod get;
mod history;
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
pub(crate) use history::numbers as history_numbers;
use libkeel::protocol::{Failure, Kind, Nanoseconds};
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

/// Adds the ns to an answer whose time is a whole ms: in what a program reads they are always there.
fn with_ns(found: &mut serde_json::Value) {
    if let Some(fields) = found.as_object_mut()
        && !fields.contains_key("time_ns")
        && let Some(ms) = fields.get("time_ms").and_then(serde_json::Value::as_i64)
    {
        let ns = Nanoseconds::of(Time::from_ms(ms));
        fields.insert("time_ns".to_owned(), serde_json::json!(ns));
    }
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
    fn ns_stand_beside_every_time() {
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
            (serde_json::json!({"a": 1}), serde_json::json!({"a": 1})),
            (serde_json::json!([7]), serde_json::json!([7])),
        ] {
            let mut found = before;
            with_ns(&mut found);
            assert_eq!(found, after);
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
