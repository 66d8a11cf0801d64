//! Times that the user has written.

use crate::error::CliError;
use db::Time;

/// Returns the current time by this machine's clock; times such as -15m count from it.
pub(crate) fn now_ms() -> i64 {
    base::clock::Clock::wall_ms(&base::clock::SystemClock::new())
}

/// Parses a time that the user has written.
pub(super) fn parse_time(text: &str, now_ms: i64) -> Result<Time, CliError> {
    node::time_text::parse(text, now_ms).map_err(|forms| CliError::usage(text, "is no time", forms))
}
