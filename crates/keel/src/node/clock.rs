//! The machine's clock, with the operator's word on whether it is right.

use base::clock::{Clock, SystemClock};

/// As [`SystemClock`]; `wall_trusted` vouches for its wall time whatever the kernel knows.
#[derive(Debug)]
pub(crate) struct NodeClock {
    pub(crate) system: SystemClock,
    pub(crate) wall_trusted: bool,
}

impl Clock for NodeClock {
    fn monotonic_ns(&self) -> u64 {
        self.system.monotonic_ns()
    }
    fn wall_ms(&self) -> i64 {
        self.system.wall_ms()
    }
    fn wall_is_trusted(&self) -> bool {
        self.wall_trusted || self.system.wall_is_trusted()
    }
    fn boot_id(&self) -> [u8; 16] {
        self.system.boot_id()
    }
}
