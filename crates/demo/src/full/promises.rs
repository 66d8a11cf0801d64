//! The promises of the project, each with the figure that shows whether it was kept.

use serde_json::{Value, json};
use std::fmt::Write as _;

/// A promise and its outcome.
#[derive(Clone, Debug)]
pub(super) struct Promise {
    pub(super) text: &'static str,
    /// `None` if it could not be shown here, for lack of a permission or a part.
    pub(super) is_kept: Option<bool>,
    /// The measured figure.
    pub(super) figure: String,
    pub(super) values: Value,
}

pub(super) const DURABLE: &str =
    "A reading that was acknowledged is on flash, also after a power cut at any moment.";
pub(super) const BOUNDED: &str = "Every call costs a fixed, published number of device operations.";
pub(super) const DEADLINES: &str = "Deadlines hold under load.";
/// The other half of that promise.
pub(super) const CONTROLLED: &str = "For that, the node lowers freshness or raises speed, by a controller designed \
                                     from its own measured model.";
pub(super) const SHARED: &str = "Hot files are read and written at memory speed by unmodified programs, and survive \
                                 the death of any of them.";
pub(super) const STREAMED: &str = "A program runs from the network at once, with only the blocks it needs, verified, \
                                   and again later with no network.";
pub(super) const PLACED: &str = "The node says, with its own figures, whether to compute here, on its neighbours or in \
                                 the data centre, and then does it.";
pub(super) const FORWARDED: &str =
    "What was stored goes upstream, and nothing acknowledged there is skipped.";
pub(super) const BACK: &str = "After a power cut everything is back within seconds.";

/// All promises at the end of a run.
pub(super) struct Summary {
    pub(super) promises: Vec<Promise>,
    pub(super) seconds: f64,
    pub(super) trace_seconds: f64,
    pub(super) speed: f64,
    /// Where all files were left, if they were kept.
    pub(super) kept_in: Option<String>,
}

impl Summary {
    /// Returns why the exit status is 1; empty if it is 0.
    pub(super) fn failures(&self) -> Vec<String> {
        let broken = self
            .promises
            .iter()
            .filter(|promise| promise.is_kept == Some(false));
        broken
            .map(|promise| format!("not kept: {} {}", promise.text, promise.figure))
            .collect()
    }

    pub(super) fn json(&self) -> Value {
        let promises = self.promises.iter().map(|promise| {
            json!({
                "promise": promise.text,
                "kept": promise.is_kept,
                "figure": promise.figure,
                "values": promise.values,
            })
        });
        json!({
            "promises": promises.collect::<Vec<_>>(),
            "seconds": self.seconds,
            "trace_seconds": self.trace_seconds,
            "speed": self.speed,
            "directory": self.kept_in,
            "failures": self.failures(),
        })
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string never fails.
        writeln!(
            text,
            "\nkeel demo --full: {:.0} s of trace at {}x, in {:.1} s\n",
            self.trace_seconds, self.speed, self.seconds
        )
        .ok();
        for promise in &self.promises {
            let word = match promise.is_kept {
                Some(true) => "kept",
                Some(false) => "NOT KEPT",
                None => "not shown",
            };
            writeln!(text, "  {word:<9} {}", promise.text).ok();
            for line in promise.figure.split("; ") {
                writeln!(text, "            {line}").ok();
            }
        }
        if let Some(folder) = &self.kept_in {
            writeln!(text, "\n  everything is left in {folder}").ok();
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_promise_is_a_failure_and_one_not_shown_is_none() {
        let promise = |is_kept| Promise {
            text: DURABLE,
            is_kept,
            figure: "3 missing; of 4".to_owned(),
            values: json!({"missing": 3}),
        };
        let mut summary = Summary {
            promises: vec![promise(Some(true)), promise(None)],
            seconds: 1.0,
            trace_seconds: 2.0,
            speed: 3.0,
            kept_in: None,
        };
        assert!(summary.failures().is_empty());
        assert_eq!(summary.json()["promises"][1]["kept"], Value::Null);
        summary.promises.push(promise(Some(false)));
        assert_eq!(
            summary.failures(),
            [format!("not kept: {DURABLE} 3 missing; of 4")]
        );
        let text = summary.text();
        assert!(
            text.contains("  NOT KEPT  A reading") && text.contains("  not shown A reading"),
            "{text}"
        );
        assert!(text.contains("\n            of 4\n"), "{text}");
    }
}
