//! Influx line protocol: its grammar and its sockets. `LINE.md` says what is accepted.
//!
//! **Files:** `parse.rs` the grammar, `format.rs` its reverse, `end.rs` where a line ends, `buffer.rs` lines from a
//! stream, `body.rs` lines of a whole body, `options.rs` and `state.rs` options and figures of listeners, `listen.rs`
//! sockets, `connection.rs` one sender, `tally.rs` its counts, `places.rs` which connection makes room for a new one.

mod body;
mod buffer;
mod connection;
mod end;
mod format;
mod listen;
mod options;
mod parse;
mod places;
mod state;
mod tally;

pub use body::{BodyStopped, BodyTaken, LineBody, REFUSED_LINES_MAX, RefusedLine};
pub use buffer::{LineBuffer, Piece};
pub use connection::ACKS_PENDING_MAX;
pub use end::first_line_bytes;
pub use format::write_line;
pub use listen::{Ended, LineListeners, run};
pub use options::LineOptions;
pub(crate) use parse::{ESCAPED, push_tag};
pub use parse::{Escaped, FIELDS_MAX, FieldValue, Line, Quoted, TAGS_MAX, parse};
pub use state::{Control, Controller, LineFigures, LineState, control};

use db::Time;

/// Unit of the timestamps in lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Nanoseconds, the protocol's default.
    #[default]
    Nanoseconds,
    /// Microseconds.
    Microseconds,
    /// Milliseconds.
    Milliseconds,
    /// Seconds.
    Seconds,
    /// Minutes, in requests of version 1 of the protocol alone.
    Minutes,
    /// Hours, likewise.
    Hours,
}

impl Precision {
    /// Returns the unit with this name: `ns`, `us`, `ms` or `s`.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        match name {
            "ns" => Some(Self::Nanoseconds),
            "us" => Some(Self::Microseconds),
            "ms" => Some(Self::Milliseconds),
            "s" => Some(Self::Seconds),
            _ => None,
        }
    }

    /// Returns the time that is `count` of this unit after 1970, exactly; `None` if it lies too far for that.
    #[must_use]
    pub fn time(self, count: i64) -> Option<Time> {
        let ms = match self {
            Self::Nanoseconds => return Some(Time::from_ns(count)),
            Self::Microseconds => return count.checked_mul(1000).map(Time::from_ns),
            Self::Milliseconds => 1,
            Self::Seconds => 1000,
            Self::Minutes => 60_000,
            Self::Hours => 3_600_000,
        };
        count.checked_mul(ms).map(Time::from_ms)
    }
}
