//! The errors of the node and of its answers, in terms of the command line.

use crate::error::CliError;
use base::error::Code;
use libkeel::protocol::{Failure, Kind};
use std::fmt::Display;

/// The remedy for a full store, if the node does not give one.
const FULL_REMEDY: &str = "keep less history (store.history_mebibytes_max), or let the oldest readings make room \
                           (store.full_policy = \"drop-oldest\")";

pub(super) fn strange(shown: &str, wrong: impl Display) -> CliError {
    let wrong = format!("the answer is not what this version expects ({wrong})");
    CliError::failure(shown, wrong, "use keel of the node's version")
}

/// Returns the error of a request that the node refused or that failed there. It never counts as wrong usage: errors
/// visible in the command line are found before the request.
pub(super) fn failed(failure: &Failure, asked: Option<Kind>) -> CliError {
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
    fn a_refusal_of_the_node_is_no_wrong_usage() {
        for code in Code::ALL {
            for kind in [Kind::Get, Kind::Put, Kind::Watch, Kind::History] {
                let (status, line) = refused(code, "a", "mend it", kind);
                assert_eq!((status, line.as_str()), (1, "a: is refused; mend it"));
            }
        }
    }

    #[test]
    fn remedies_fit_the_request() {
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
