//! The output of rank 0 of the measuring program: one line for each event, JSON after a prefix. Launchers and libraries
//! write to the same stream, so a line without the prefix comes from them.

use crate::Error;
use crate::error::excerpt;
use crate::results::{Benchmark, BenchmarkRow, Host, Known, LINE_BYTES_MAX, PowerRow};
use serde::{Deserialize, Serialize};

/// Prefix of each event line.
pub const LINE_PREFIX: &str = "keel-mpi ";

/// Facts that a rank reports before anything is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankFacts {
    /// Its number.
    pub rank: u32,
    /// The name of its host, as reported by the host.
    pub host: String,
    /// Its process id there.
    pub process: u32,
    /// The core that it is bound to, or why it is not bound.
    pub core: Known<u32>,
    /// Its kernel, identified by the boot id: the same for boards that are only emulated.
    pub boot: String,
    /// Its MPI library.
    pub library: String,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase", deny_unknown_fields)]
pub enum Event {
    /// All ranks have started and agree on the library.
    World {
        /// The library and its version.
        library: String,
        /// Every rank, in order.
        ranks: Vec<RankFacts>,
        /// Their hosts, in the order of the first rank on each.
        hosts: Vec<Host>,
    },
    /// A case begins.
    Begin {
        /// Its index, from 0.
        at: usize,
        /// The benchmark.
        benchmark: Benchmark,
        /// The message size.
        bytes: u64,
    },
    /// A case was measured.
    Row {
        /// The result.
        row: BenchmarkRow,
    },
    /// The power of a board for each benchmark of this start.
    Power {
        /// A row for each benchmark and sensor.
        rows: Vec<PowerRow>,
    },
    /// The program cannot continue.
    Failed {
        /// The reason, in one line.
        why: String,
        /// The host concerned, if it is a single one.
        host: Option<String>,
    },
    /// All cases were measured.
    End {
        /// Their number.
        rows: usize,
    },
}

/// Returns an event as a line, without the line feed.
///
/// # Errors
/// It is too long for a reader.
pub fn event_line(event: &Event) -> Result<String, Error> {
    let json = serde_json::to_string(event)
        .map_err(|error| Error::invalid("event", excerpt(&error.to_string())))?;
    if json.len() > LINE_BYTES_MAX {
        return Err(Error::Limit {
            what: "bytes of an event",
            value: json.len() as u64,
            limit: LINE_BYTES_MAX as u64,
        });
    }
    Ok(format!("{LINE_PREFIX}{json}"))
}

/// Returns the event in a line; `None` if the line has no prefix.
///
/// # Errors
/// It has the prefix but is no event: the two programs are of different versions.
pub fn parse_event(line: &str) -> Option<Result<Event, Error>> {
    let json = line.strip_prefix(LINE_PREFIX)?;
    Some(
        serde_json::from_str(json)
            .map_err(|error| Error::invalid("event", excerpt(&error.to_string()))),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Stopped, Transport};

    #[test]
    fn events_come_back_as_they_were_and_other_lines_are_left_alone() {
        let events = [
            Event::World {
                library: "MPICH 4.0.2".to_owned(),
                ranks: Vec::new(),
                hosts: Vec::new(),
            },
            Event::Begin {
                at: 3,
                benchmark: Benchmark::Reduce,
                bytes: 64,
            },
            Event::Row {
                row: BenchmarkRow {
                    benchmark: Benchmark::Reduce,
                    ranks: 2,
                    transport: Transport::Network,
                    bytes: 64,
                    iterations: 7,
                    samples_us: vec![0.1 + 0.2, 1e-3],
                    starts: Vec::new(),
                    stopped: Stopped::Narrow,
                },
            },
            Event::Power { rows: Vec::new() },
            Event::Failed {
                why: "a \"thing\"\nbroke".to_owned(),
                host: None,
            },
            Event::End { rows: 1 },
        ];
        for event in events {
            let line = event_line(&event).expect("fits");
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(parse_event(&line), Some(Ok(event)));
        }
        assert_eq!(parse_event("[b1:1] a warning"), None);
        assert!(parse_event("keel-mpi {\"event\": \"other\"}").is_some_and(|event| event.is_err()));
    }
}
