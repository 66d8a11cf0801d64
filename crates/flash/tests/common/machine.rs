//! A machine whose process may be killed, and the ways a life on it ends.

use base::block::{BlockDevice, Counters, DeviceError, Geometry};
use base::sim::SimDevice;

/// A machine whose process may be killed: the device then keeps its power and its unflushed writes.
pub struct Machine {
    pub device: SimDevice,
    /// Number of writes until the process is killed; the write that finds 1 here is the last.
    pub writes_until_kill: Option<u64>,
    /// Whether that last write still reaches the device.
    pub last_write_arrives: bool,
}

impl Machine {
    pub fn new(device: SimDevice) -> Self {
        Self {
            device,
            writes_until_kill: None,
            last_write_arrives: false,
        }
    }

    fn require_life(&self) -> Result<(), DeviceError> {
        if self.writes_until_kill == Some(0) {
            Err(DeviceError::PowerLost)
        } else {
            Ok(())
        }
    }
}

impl BlockDevice for Machine {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.require_life()?;
        self.device.read(first_block, buffer)
    }
    fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError> {
        let was_alive = self.require_life().is_ok();
        if let Some(left) = &mut self.writes_until_kill {
            *left = left.saturating_sub(1);
        }
        let is_alive = self.require_life();
        if is_alive.is_ok() || (was_alive && self.last_write_arrives) {
            self.device.write(first_block, data)?;
        }
        is_alive
    }
    fn flush(&mut self) -> Result<(), DeviceError> {
        self.require_life()?;
        self.device.flush()
    }
    fn discard(&mut self, first_block: u64, block_count: u64) -> Result<(), DeviceError> {
        self.require_life()?;
        self.device.discard(first_block, block_count)
    }
    fn counters(&self) -> Counters {
        self.device.counters()
    }
    fn reset_write_blocks_max(&mut self) {
        self.device.reset_write_blocks_max();
    }
}

/// The ways a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The power fails at a write, or between two calls.
    PowerCut,
    /// The process is killed; the data in the device's cache stays.
    Killed,
    /// A write or a flush fails and the store is opened again without a power cut.
    Failed,
    Closed,
}
