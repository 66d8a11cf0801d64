//! The floor: the minimum cost of the device. For durable operations, it is one aligned write of 4 KiB that bypasses
//! the page cache, and one flush. For a read, it is one aligned read of 4 KiB that bypasses it. The file is written
//! through once before, so that the file system has nothing to allocate or to log.

use std::fs::OpenOptions;
use std::path::Path;

use base::block::{BLOCK_BYTES, BlockBuffer, BlockDevice, FileDevice, FileDeviceOptions};

use super::counts::{DeviceCounts, counts_of};
use super::timed::{Case, READ_FILE_BYTES, Step, System, check_pattern, fill_pattern, timed};
use crate::report::FLOOR;

/// Size of the floor's file in bytes: the lower half is read, the upper half written.
pub(crate) const FLOOR_BYTES: u64 = 2 * READ_FILE_BYTES;

/// The system with writes of 8 KiB.
pub(crate) const WIDE: &str = "floor-8192";

/// One write and one flush, or one read, on its own file or device.
pub(crate) struct Floor {
    name: &'static str,
    device: FileDevice,
    buffer: BlockBuffer,
    blocks_in_write: u64,
    next_block: u64,
}

impl Floor {
    /// Creates a floor on the file or block device `path`; a missing file is created.
    ///
    /// # Errors
    /// One line that names the path.
    pub(crate) fn create(path: &Path) -> Result<Self, String> {
        Self::with_write(path, FLOOR, 1)
    }

    /// As [`create`](Self::create), with writes of 8 KiB and only for appends: shows the cost of a second block in a
    /// write.
    ///
    /// # Errors
    /// One line that names the path.
    pub(crate) fn create_wide(path: &Path) -> Result<Self, String> {
        Self::with_write(path, WIDE, 2)
    }

    fn with_write(path: &Path, name: &'static str, blocks_in_write: u64) -> Result<Self, String> {
        if !path.exists() {
            write_through(path, FLOOR_BYTES, fill_pattern)?;
        }
        let mut device = open_direct(path)?;
        if device.is_block_device() {
            let mut chunk = BlockBuffer::zeroed(64);
            let chunk_bytes = chunk.len() as u64;
            for offset in (0..FLOOR_BYTES).step_by(chunk.len()) {
                fill_pattern(offset, &mut chunk);
                let done = device.write(offset / chunk_bytes * 64, &chunk);
                done.map_err(|error| error.to_string())?;
            }
        }
        Ok(Self {
            name,
            device,
            buffer: BlockBuffer::zeroed(blocks_in_write as usize),
            blocks_in_write,
            next_block: 0,
        })
    }

    /// Whether the file system allows transfers that bypass its page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.device.is_direct()
    }
}

/// Opens a prepared file as a device of whole blocks, bypassing the page cache if possible.
pub(crate) fn open_direct(path: &Path) -> Result<FileDevice, String> {
    let options = FileDeviceOptions {
        direct: true,
        exclusive: true,
        ..FileDeviceOptions::default()
    };
    FileDevice::open(path, &options).map_err(|error| error.to_string())
}

/// Creates a file of `bytes` bytes in which every block has been written and flushed once. If blocks were only
/// reserved, their first write would make the file system log its own change.
pub(crate) fn write_through(
    path: &Path,
    bytes: u64,
    fill: fn(u64, &mut [u8]),
) -> Result<(), String> {
    use std::io::Write;
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(failed)?;
    let mut chunk = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < bytes {
        let length = (bytes - offset).min(chunk.len() as u64);
        fill(offset, &mut chunk[..length as usize]);
        file.write_all(&chunk[..length as usize]).map_err(failed)?;
        offset += length;
    }
    file.sync_all().map_err(failed)
}

impl System for Floor {
    fn name(&self) -> &str {
        self.name
    }

    fn takes(&self, case: Case) -> bool {
        case == Case::Append || (self.blocks_in_write == 1 && case.is_of_store())
    }

    fn begin(&mut self, _case: Case, _round: u32, _count: u32) -> Result<(), String> {
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<u64, String> {
        let block_bytes = BLOCK_BYTES as u64;
        let half_blocks = READ_FILE_BYTES / block_bytes;
        if step.case == Case::Read {
            let (read, elapsed_ns) = timed(|| {
                self.device
                    .read(step.offset / block_bytes, &mut self.buffer)
            });
            read.map_err(|error| error.to_string())?;
            check_pattern(step.offset, &self.buffer)?;
            return Ok(elapsed_ns);
        }
        let block = half_blocks + self.next_block;
        self.next_block = (self.next_block + self.blocks_in_write) % half_blocks;
        let (written, elapsed_ns) = timed(|| {
            self.device.write(block, &self.buffer)?;
            self.device.flush()
        });
        written.map_err(|error| error.to_string())?;
        Ok(elapsed_ns)
    }

    fn end(&mut self, _case: Case, _round: u32) -> Result<(), String> {
        Ok(())
    }

    fn counts(&self) -> Option<DeviceCounts> {
        Some(counts_of(&self.device))
    }

    fn counts_source(&self) -> Option<&'static str> {
        Some("exact")
    }
}
