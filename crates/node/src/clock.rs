//! The machine's clock, with the operator's setting that its wall time can be trusted.

use base::clock::{Clock, SystemClock};
use config::Config;
use std::sync::Arc;

/// Like [`SystemClock`]; with `wall_trusted`, its wall time counts as trusted even if the kernel does not confirm it.
#[derive(Debug)]
pub(crate) struct NodeClock {
    pub(crate) system: SystemClock,
    pub(crate) wall_trusted: bool,
}

impl NodeClock {
    /// Returns the clock that a configuration describes.
    pub(crate) fn of(config: &Config) -> Arc<dyn Clock> {
        Arc::new(Self {
            system: SystemClock::new(),
            wall_trusted: config.time.wall_clock_trusted,
        })
    }
}

impl Clock for NodeClock {
    fn monotonic_ns(&self) -> u64 {
        self.system.monotonic_ns()
    }
    fn wall_ms(&self) -> i64 {
        self.system.wall_ms()
    }
    fn wall_ns(&self) -> i64 {
        self.system.wall_ns()
    }
    fn wall_is_trusted(&self) -> bool {
        self.wall_trusted || self.system.wall_is_trusted()
    }
    fn boot_id(&self) -> [u8; 16] {
        self.system.boot_id()
    }
}
