//! The floor: what the device below costs at least. For whatever must be durable, one aligned 4 KiB write past
//! the page cache and one flush; for a read, one aligned 4 KiB read past the page cache. The file is written
//! through once before, so that the file system has nothing to allocate or to log.

use std::fs::OpenOptions;
use std::path::Path;

use base::block::{BLOCK_BYTES, BlockBuffer, BlockDevice, FileDevice, FileDeviceOptions};

use super::{
    Case, DeviceCounts, READ_FILE_BYTES, Step, System, check_pattern, fill_pattern, timed,
};

/// One write and one flush, or one read, on a file of its own.
pub(crate) struct Floor {
    device: FileDevice,
    buffer: BlockBuffer,
    next_block: u64,
}

impl Floor {
    /// Creates the file in `folder`.
    pub(crate) fn create(folder: &Path) -> Result<Self, String> {
        let path = folder.join("floor.img");
        // The lower half is read, the upper half written.
        write_through(&path, 2 * READ_FILE_BYTES, fill_pattern)?;
        Ok(Self {
            device: open_direct(&path)?,
            buffer: BlockBuffer::zeroed(1),
            next_block: 0,
        })
    }

    /// Whether the file system lets transfers past its page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.device.is_direct()
    }
}

/// Opens a prepared file as a device of whole blocks, past the page cache where possible.
pub(crate) fn open_direct(path: &Path) -> Result<FileDevice, String> {
    let options = FileDeviceOptions {
        direct: true,
        exclusive: true,
        ..FileDeviceOptions::default()
    };
    FileDevice::open(path, &options).map_err(|error| error.to_string())
}

/// Creates a file of `bytes` bytes in which every block has been written and flushed once. Blocks that were
/// only reserved would make the file system log a change of its own at their first write.
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
        "floor"
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
        self.next_block = (self.next_block + 1) % half_blocks;
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

/// What a device of ours has counted, exactly.
pub(crate) fn counts_of(device: &impl BlockDevice) -> DeviceCounts {
    let counters = device.counters();
    DeviceCounts {
        reads: counters.reads,
        writes: counters.writes,
        flushes: Some(counters.flushes),
        bytes_written: counters.blocks_written * BLOCK_BYTES as u64,
    }
}
