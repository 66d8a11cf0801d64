//! The time by which certificates are judged: the node's wall clock.

use base::clock::Clock;
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The clock for the library.
pub(crate) struct WallTime(pub(crate) Arc<dyn Clock>);

impl fmt::Debug for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WallTime")
    }
}

impl TimeProvider for WallTime {
    fn current_time(&self) -> Option<UnixTime> {
        let ms = u64::try_from(self.0.wall_ms()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_millis(ms)))
    }
}
