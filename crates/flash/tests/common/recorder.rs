//! A device that records its state after each write.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base::block::{BlockDevice, Counters, DeviceError, Geometry};
use base::sim::SimDevice;

/// The state of a device just after one write request, or when a call had returned.
#[derive(Clone)]
pub struct Moment {
    pub device: SimDevice,
    /// Calls that had returned by then.
    pub calls_returned: usize,
    /// Whether another call was running.
    pub is_inside: bool,
}

/// Passes every request to a simulated device and keeps a clone of it after each write.
pub struct Recorder {
    pub inner: SimDevice,
    pub moments: Arc<Mutex<Vec<Moment>>>,
    pub calls_returned: Arc<AtomicUsize>,
}

impl Recorder {
    pub fn new(inner: SimDevice) -> Self {
        Self {
            inner,
            moments: Arc::default(),
            calls_returned: Arc::default(),
        }
    }

    /// Records that one more call has returned, and the state of the device.
    pub fn call_has_returned(&self) {
        self.calls_returned.fetch_add(1, Ordering::Relaxed);
        self.keep(false);
    }

    fn keep(&self, is_inside: bool) {
        self.moments.lock().unwrap().push(Moment {
            device: self.inner.clone(),
            calls_returned: self.calls_returned.load(Ordering::Relaxed),
            is_inside,
        });
    }
}

impl BlockDevice for Recorder {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(first_block, buffer)
    }
    fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.inner.write(first_block, data)?;
        self.keep(true);
        Ok(())
    }
    fn flush(&mut self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn discard(&mut self, first_block: u64, block_count: u64) -> Result<(), DeviceError> {
        self.inner.discard(first_block, block_count)
    }
    fn counters(&self) -> Counters {
        self.inner.counters()
    }
    fn reset_write_blocks_max(&mut self) {
        self.inner.reset_write_blocks_max();
    }
}
