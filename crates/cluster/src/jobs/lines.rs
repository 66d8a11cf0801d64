//! The output of ranks while they work: one line for each event, JSON after a prefix. Launchers and libraries write to
//! the same stream, so a line without the prefix comes from them.

use super::answer::Sameness;
use super::energy::BoardEnergy;
use crate::Error;
use crate::error::excerpt;
use crate::results::Known;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Prefix of each line.
pub const LINE_PREFIX: &str = "keel-job ";

/// Size of the longest line, in bytes.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// Largest number of unread bytes of an order: half the capacity of a pipe.
pub const ORDER_BYTES_AHEAD: u64 = 32 << 10;

/// An event of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "lowercase", deny_unknown_fields)]
pub enum Line {
    /// The rank has started.
    Begin {
        /// Its number.
        rank: usize,
        /// The number of ranks.
        ranks: usize,
        /// Its board.
        host: String,
        /// Boot id of its kernel: boards with the same id share its cores.
        boot: String,
        /// Cores that the rank may run on.
        cores: usize,
    },
    /// Rank 0 has read this many bytes of its order. The sender stays at most [`ORDER_BYTES_AHEAD`] ahead: MPICH's
    /// launcher aborts a job whose rank reads too slowly for its pipe.
    Taken {
        /// Number of bytes from the beginning.
        bytes: u64,
    },
    /// The rank is still working.
    Beat {
        /// Its number.
        rank: usize,
        /// Completed fraction of its share, 0 to 1.
        done: f64,
        /// Whether this is the check run of rank 0 alone.
        checks: bool,
    },
    /// The energy of its board while it worked; several ranks of one board report the same.
    Energy {
        /// Its number.
        rank: usize,
        /// Its board.
        host: String,
        /// The figure, or why there is none.
        board: Known<BoardEnergy>,
    },
    /// The result, from rank 0 alone. With [`Check::After`](super::worker::Check::After) it comes twice: before the
    /// check and after it.
    Report {
        /// All figures.
        report: Box<Report>,
    },
    /// A line of the answer's table, in order: from rank 0 alone, if requested.
    Row {
        /// Its index, from 0: launchers cut lines that arrive fast.
        at: usize,
        /// CSV.
        text: String,
    },
    /// Report and table have come, and the check follows: from rank 0 alone, with
    /// [`Check::After`](super::worker::Check::After).
    Whole {
        /// Number of lines of the table.
        rows: usize,
    },
    /// The rank has done its part and writes nothing more.
    Done {
        /// Its number.
        rank: usize,
        /// Number of lines of the table that it has written.
        rows: usize,
    },
    /// The rank cannot continue.
    Failed {
        /// The reporting rank.
        rank: usize,
        /// The rank at fault, if known.
        blames: Option<usize>,
        /// The reason.
        why: String,
    },
}

/// Figures of one job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The job.
    pub kernel: String,
    /// Number of ranks.
    pub ranks: usize,
    /// Number of readings in each column.
    pub rows: usize,
    /// Bytes of the input.
    pub input_bytes: u64,
    /// Bytes of the answer.
    pub output_bytes: u64,
    /// A summary of the answer.
    pub answer: Value,
    /// Comparison of the answer with that of a single rank.
    pub compared: Sameness,
    /// Number of operations of all ranks together.
    pub operations: u64,
    /// Payload between boards, of all ranks.
    pub moved_bytes: u64,
    /// Number of equal exchanges, as the model counts them.
    pub exchange_times: f64,
    /// Size of each, in bytes.
    pub exchange_bytes: f64,
    /// Time from the common start to the last rank's end.
    pub seconds: f64,
    /// Longest computing time of a rank.
    pub computing_s: f64,
    /// Longest time of a rank in operations, including waits.
    pub communicating_s: f64,
    /// Time of the same job on rank 0 alone; `None` if it was not run there, or not yet.
    pub alone_s: Option<f64>,
    /// Fraction of that time that is shared out with more ranks, from its sections.
    pub shared_fraction: Option<f64>,
    /// The parallel fraction fitted to the computing times on one rank and on all; `None` with one rank, or without
    /// `alone_s`.
    pub fitted_fraction: Option<f64>,
}

impl Line {
    /// Returns it as a line, without the line feed.
    ///
    /// # Errors
    /// It is too long for a reader.
    pub fn text(&self) -> Result<String, Error> {
        let json = serde_json::to_string(self)
            .map_err(|error| Error::invalid("line", excerpt(&error.to_string())))?;
        if json.len() > LINE_BYTES_MAX {
            return Err(Error::Limit {
                what: "bytes of a rank's line",
                value: json.len() as u64,
                limit: LINE_BYTES_MAX as u64,
            });
        }
        Ok(format!("{LINE_PREFIX}{json}"))
    }

    /// Parses a line; `None` if it has no prefix.
    ///
    /// # Errors
    /// It has the prefix but is invalid: it was torn, or the two programs are of different versions.
    #[must_use]
    pub fn parse(text: &str) -> Option<Result<Self, Error>> {
        let json = text.strip_prefix(LINE_PREFIX)?;
        Some(
            serde_json::from_str(json)
                .map_err(|error| Error::invalid("a rank's line", excerpt(&error.to_string()))),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_come_back_as_they_were_and_others_are_left_alone() {
        let report = Report {
            kernel: "vibration".to_owned(),
            ranks: 3,
            rows: 7,
            input_bytes: 56,
            output_bytes: 96,
            answer: serde_json::json!({"windows": 1}),
            compared: Sameness::Near(1e-12),
            operations: 12,
            moved_bytes: 100,
            exchange_times: 3.0,
            exchange_bytes: 33.5,
            seconds: 0.1 + 0.2,
            computing_s: 0.25,
            communicating_s: 0.05,
            alone_s: Some(0.4),
            shared_fraction: None,
            fitted_fraction: None,
        };
        for line in [
            Line::Begin {
                rank: 1,
                ranks: 3,
                host: "b1".to_owned(),
                boot: "4c5d".to_owned(),
                cores: 4,
            },
            Line::Beat {
                rank: 1,
                done: 0.5,
                checks: false,
            },
            Line::Energy {
                rank: 0,
                host: "b1".to_owned(),
                board: Known::Unavailable("no sensor".to_owned()),
            },
            Line::Report {
                report: Box::new(report),
            },
            Line::Row {
                at: 3,
                text: "1,\"a\n\"".to_owned(),
            },
            Line::Whole { rows: 4 },
            Line::Done { rank: 2, rows: 4 },
            Line::Failed {
                rank: 0,
                blames: Some(2),
                why: "has ended".to_owned(),
            },
        ] {
            let text = line.text().expect("fits");
            assert!(!text.contains('\n'), "{text}");
            assert_eq!(Line::parse(&text), Some(Ok(line)));
        }
        assert_eq!(Line::parse("[b1:1] a warning"), None);
        assert!(Line::parse("keel-job {\"line\": \"other\"}").is_some_and(|line| line.is_err()));
    }

    proptest! {
        #[test]
        fn any_text_is_a_line_or_none(text in "(keel-job )?\\PC{0,80}") {
            let parsed = Line::parse(&text);
            prop_assert_eq!(parsed.is_some(), text.starts_with(LINE_PREFIX));
        }
    }
}
