//! What ranks say while they work: one line for each event, JSON behind a prefix. Launchers and libraries write to the
//! same stream, so a line without the prefix is somebody else's.

use super::answer::Sameness;
use super::energy::BoardEnergy;
use crate::Error;
use crate::error::excerpt;
use crate::results::Known;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What each line begins with.
pub const LINE_PREFIX: &str = "keel-job ";

/// Bytes of a line at most.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// Bytes of an order that are on their way at most: half of what a pipe holds.
pub const ORDER_BYTES_AHEAD: u64 = 32 << 10;

/// Something that a rank says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "lowercase", deny_unknown_fields)]
pub enum Line {
    /// It is there.
    Begin {
        /// Which.
        rank: usize,
        /// Of how many.
        ranks: usize,
        /// Its board.
        host: String,
        /// Number of the kernel's start: boards that have the same share its cores.
        boot: String,
        /// Cores that the rank may run on.
        cores: usize,
    },
    /// Rank 0 has read so many bytes of its order. Whoever hands it over stays at most [`ORDER_BYTES_AHEAD`] ahead:
    /// MPICH's launcher gives a job up whose rank reads more slowly than a pipe holds.
    Taken {
        /// From the beginning.
        bytes: u64,
    },
    /// It still works.
    Beat {
        /// Which.
        rank: usize,
        /// How much of its share is done, 0 to 1.
        done: f64,
        /// Whether this is the run of rank 0 alone, which checks the answer.
        checks: bool,
    },
    /// What its board used while it worked; several ranks of one board say the same.
    Energy {
        /// Which.
        rank: usize,
        /// Its board.
        host: String,
        /// The figure, or why there is none.
        board: Known<BoardEnergy>,
    },
    /// What came of it: rank 0 alone.
    Report {
        /// All figures.
        report: Box<Report>,
    },
    /// A line of the answer's table, in order: rank 0 alone, where it was asked for.
    Row {
        /// Which, from 0: launchers cut lines that come fast.
        at: usize,
        /// CSV.
        text: String,
    },
    /// It has done its part and says nothing more.
    Done {
        /// Which.
        rank: usize,
        /// Lines of the table that it has said.
        rows: usize,
    },
    /// It cannot go on.
    Failed {
        /// Which one says so.
        rank: usize,
        /// Which one is to blame, where that is known.
        blames: Option<usize>,
        /// Why.
        why: String,
    },
}

/// Figures of one job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Which job.
    pub kernel: String,
    /// Ranks.
    pub ranks: usize,
    /// Readings in each column.
    pub rows: usize,
    /// Bytes of the input.
    pub input_bytes: u64,
    /// Bytes of the answer.
    pub output_bytes: u64,
    /// A summary of the answer.
    pub answer: Value,
    /// The answer compared with the one of a single rank.
    pub compared: Sameness,
    /// Operations of all ranks together.
    pub operations: u64,
    /// Payload from board to board, of all ranks.
    pub moved_bytes: u64,
    /// Equal exchanges, as the model counts them.
    pub exchange_times: f64,
    /// Bytes of each.
    pub exchange_bytes: f64,
    /// From the common beginning to the last rank's end.
    pub seconds: f64,
    /// The longest that a rank computed.
    pub computing_s: f64,
    /// The longest that a rank was in operations, waiting included.
    pub communicating_s: f64,
    /// The same job on rank 0 alone.
    pub alone_s: f64,
    /// Part of that which is shared out with more ranks, by its sections.
    pub shared_fraction: f64,
    /// The parallel fraction fitted to the computing times on one rank and on all; `None` with one rank.
    pub fitted_fraction: Option<f64>,
}

impl Line {
    /// As a line, without the line feed.
    ///
    /// # Errors
    /// It is too long to be read.
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

    /// What stands in a line; `None` where it is somebody else's.
    ///
    /// # Errors
    /// It has the prefix and is none: it was torn, or the two programs are of different versions.
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
            alone_s: 0.4,
            shared_fraction: 0.9,
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
