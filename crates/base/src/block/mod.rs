//! The block device interface: the flash store reaches its device only through [`BlockDevice`]. Published trees and the
//! cache of streamed blocks are folders of the host's file system.
//!
//! The contract is deliberately weak, because SD cards and eMMC are: a write is neither atomic nor ordered against
//! other writes until [`BlockDevice::flush`] has returned. Code that needs more builds it from checksums and barriers.

mod buffer;
mod call;
mod claim;
mod content;
mod counts;
mod file;

pub use buffer::BlockBuffer;
pub use claim::find_holder;
pub use content::{Content, EMPTY_PROBE_BYTES, find_content};
pub use counts::{CountedDevice, Counts, CountsNow};
pub use file::{BOUNCE_BLOCKS_MAX, FileDevice, FileDeviceOptions};

use std::path::PathBuf;

use crate::error::Code;

/// Bytes in one block. Every offset and length on a device is a multiple of it.
pub const BLOCK_BYTES: usize = 4096;

/// Bytes in one sector, the unit at which an interrupted write may tear.
pub const SECTOR_BYTES: usize = 512;

/// Shape of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Whole blocks of [`BLOCK_BYTES`] that the device holds.
    pub block_count: u64,
}

/// Operations done and bytes moved since the device was opened. Counts are exact: a request counts when it reaches the
/// device, also if the device then fails it. A request refused for its range does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Read requests.
    pub reads: u64,
    /// Blocks read, in all requests together.
    pub blocks_read: u64,
    /// Write requests; one request is one contiguous range.
    pub writes: u64,
    /// Blocks written, in all requests together.
    pub blocks_written: u64,
    /// Flush requests (barriers).
    pub flushes: u64,
    /// Discard requests.
    pub discards: u64,
    /// The largest number of blocks in one write request since [`BlockDevice::reset_write_blocks_max`].
    pub write_blocks_max: u64,
}

/// Why a device call failed. Nothing is known about the affected blocks after a failed write or flush.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The range does not lie on the device or is not a whole number of blocks.
    #[error(
        "device range is invalid: block {first_block}, {bytes} bytes, device has {block_count} blocks"
    )]
    Range {
        /// First block of the refused request.
        first_block: u64,
        /// Length of the refused request in bytes.
        bytes: u64,
        /// Blocks on the device.
        block_count: u64,
    },
    /// The operating system refused or failed the call.
    #[error("device {operation} at block {first_block} failed: {source}")]
    Io {
        /// `read`, `write`, `flush`, `discard` or `open`.
        operation: &'static str,
        /// First block of the request (0 for a flush).
        first_block: u64,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The simulated power is off: the machine has stopped.
    #[error("device has lost power")]
    PowerLost,
    /// The device refuses writes (opened read-only, or full underneath).
    #[error("device does not take writes: {reason}")]
    NotWritable {
        /// Why, for the operator.
        reason: &'static str,
    },
    /// The file or device could not be opened, created or measured.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// What was to be opened.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file or device is taken: a process has locked it, or the kernel has it mounted.
    #[error("{} is in use by another process or mounted: stop that, or name another device", path.display())]
    InUse {
        /// What was to be opened.
        path: PathBuf,
    },
}

impl DeviceError {
    /// The one code this error maps to; see [`crate::error`].
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Range { .. } => Code::Invalid,
            Self::Io { source, .. } if source.raw_os_error() == Some(libc::ENOSPC) => Code::Full,
            Self::Io { .. } | Self::PowerLost => Code::Io,
            Self::NotWritable { .. } => Code::Denied,
            Self::Open { source, .. } => Code::from_io(source),
            Self::InUse { .. } => Code::Busy,
        }
    }
}

impl Counters {
    /// Counts one read request.
    pub(crate) fn count_read(&mut self, block_count: u64) {
        self.reads += 1;
        self.blocks_read += block_count;
    }

    /// Counts one write request.
    pub(crate) fn count_write(&mut self, block_count: u64) {
        self.writes += 1;
        self.blocks_written += block_count;
        self.write_blocks_max = self.write_blocks_max.max(block_count);
    }
}

impl Geometry {
    /// Returns the blocks in a request of `bytes` at `first_block`, for devices made of other devices.
    ///
    /// # Errors
    /// [`DeviceError::Range`] for a range that is off the device, empty or not whole blocks.
    pub fn check(self, first_block: u64, bytes: usize) -> Result<u64, DeviceError> {
        let block_count = (bytes / BLOCK_BYTES) as u64;
        let inside = first_block
            .checked_add(block_count)
            .is_some_and(|end| end <= self.block_count);
        if bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES) || !inside {
            return Err(DeviceError::Range {
                first_block,
                bytes: bytes as u64,
                block_count: self.block_count,
            });
        }
        Ok(block_count)
    }

    /// As [`check`](Self::check), for a request given in blocks.
    pub(crate) fn check_blocks(
        self,
        first_block: u64,
        block_count: u64,
    ) -> Result<(), DeviceError> {
        match first_block.checked_add(block_count) {
            Some(end) if end <= self.block_count && block_count > 0 => Ok(()),
            _ => Err(DeviceError::Range {
                first_block,
                bytes: block_count.saturating_mul(BLOCK_BYTES as u64),
                block_count: self.block_count,
            }),
        }
    }
}

/// A device of fixed-size blocks: a file, a raw device, or the simulated one.
///
/// Buffers are best taken from [`BlockBuffer`], whose alignment lets a file opened with `O_DIRECT` use them without a
/// copy. Any other slice is accepted, and copied where the device demands it.
pub trait BlockDevice: Send {
    /// The device's shape; constant while it is open.
    fn geometry(&self) -> Geometry;

    /// Reads `buffer.len() / BLOCK_BYTES` contiguous blocks starting at `first_block`.
    ///
    /// # Errors
    /// [`DeviceError::Range`] for a range off the device, [`DeviceError::Io`] if the device cannot read.
    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes contiguous blocks in one request. Durable only after a following [`flush`](Self::flush).
    ///
    /// # Errors
    /// As [`read`](Self::read); after an error the blocks hold their old, their new, or mixed content.
    fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError>;

    /// The barrier: when it returns, every earlier write is durable. One flush request to the device.
    ///
    /// # Errors
    /// [`DeviceError::Io`]; earlier writes are then in an unknown state.
    fn flush(&mut self) -> Result<(), DeviceError>;

    /// Tells the device that the blocks' content is no longer needed. Their content is undefined afterwards.
    ///
    /// # Errors
    /// As [`write`](Self::write). A device without discard ignores it.
    fn discard(&mut self, first_block: u64, block_count: u64) -> Result<(), DeviceError>;

    /// Operations since the device was opened.
    fn counters(&self) -> Counters;

    /// Starts a new measurement of [`Counters::write_blocks_max`].
    fn reset_write_blocks_max(&mut self);
}

/// A device behind a pointer is a device.
macro_rules! forward_block_device {
    ($pointer:ty) => {
        impl<D: BlockDevice + ?Sized> BlockDevice for $pointer {
            fn geometry(&self) -> Geometry {
                (**self).geometry()
            }
            fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
                (**self).read(first_block, buffer)
            }
            fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError> {
                (**self).write(first_block, data)
            }
            fn flush(&mut self) -> Result<(), DeviceError> {
                (**self).flush()
            }
            fn discard(&mut self, first_block: u64, block_count: u64) -> Result<(), DeviceError> {
                (**self).discard(first_block, block_count)
            }
            fn counters(&self) -> Counters {
                (**self).counters()
            }
            fn reset_write_blocks_max(&mut self) {
                (**self).reset_write_blocks_max();
            }
        }
    };
}

forward_block_device!(Box<D>);
forward_block_device!(&mut D);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked_without_overflow() {
        let geometry = Geometry { block_count: 4 };
        assert_eq!(geometry.check(0, 4 * BLOCK_BYTES).unwrap(), 4);
        assert_eq!(geometry.check(3, BLOCK_BYTES).unwrap(), 1);
        for (first_block, bytes) in [
            (0, 0),
            (0, 1),
            (0, BLOCK_BYTES + 512),
            (0, 5 * BLOCK_BYTES),
            (4, BLOCK_BYTES),
            (u64::MAX, BLOCK_BYTES),
        ] {
            let error = geometry.check(first_block, bytes).unwrap_err();
            assert_eq!(error.code(), Code::Invalid, "{error}");
        }
        assert!(geometry.check_blocks(1, 3).is_ok());
        for (first_block, block_count) in [(0, 0), (0, 5), (4, 1), (1, u64::MAX), (u64::MAX, 1)] {
            assert!(geometry.check_blocks(first_block, block_count).is_err());
        }
    }

    #[test]
    fn errors_map_to_codes_and_name_their_path() {
        let os = std::io::Error::from_raw_os_error;
        let io = |errno| DeviceError::Io {
            operation: "write",
            first_block: 7,
            source: os(errno),
        };
        assert_eq!(io(libc::ENOSPC).code(), Code::Full);
        assert_eq!(io(libc::EIO).code(), Code::Io);
        assert_eq!(DeviceError::PowerLost.code(), Code::Io);
        assert_eq!(
            DeviceError::NotWritable {
                reason: "opened read-only"
            }
            .code(),
            Code::Denied
        );
        let open = DeviceError::Open {
            path: "/some/where".into(),
            source: os(libc::ENOENT),
        };
        assert_eq!(open.code(), Code::NotFound);
        assert!(open.to_string().contains("/some/where"));
        let in_use = DeviceError::InUse {
            path: "/some/where".into(),
        };
        assert_eq!(in_use.code(), Code::Busy);
        assert!(in_use.to_string().contains("/some/where"));
    }

    #[test]
    fn a_device_behind_a_pointer_is_a_device() {
        fn exercise(mut device: impl BlockDevice) -> Counters {
            let mut buffer = BlockBuffer::zeroed(2);
            device.write(1, &buffer).unwrap();
            device.flush().unwrap();
            device.read(1, &mut buffer).unwrap();
            device.discard(1, 1).unwrap();
            device.reset_write_blocks_max();
            assert_eq!(device.geometry().block_count, 4);
            device.counters()
        }
        let mut device = crate::sim::SimDevice::new(4, 1);
        let by_value = exercise(device.clone());
        assert_eq!(exercise(&mut device), by_value);
        let boxed: Box<dyn BlockDevice> = Box::new(crate::sim::SimDevice::new(4, 1));
        assert_eq!(exercise(boxed), by_value);
        let expected = Counters {
            reads: 1,
            blocks_read: 2,
            writes: 1,
            blocks_written: 2,
            flushes: 1,
            discards: 1,
            write_blocks_max: 0,
        };
        assert_eq!(by_value, expected);
    }
}
