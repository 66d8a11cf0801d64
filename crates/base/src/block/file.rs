//! A block device that is a regular file, a raw device or a loop device.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

// Plain `off_t` has 32 bits on 32-bit systems with this C library.
#[cfg(not(target_env = "gnu"))]
use libc::{fallocate, off_t};
#[cfg(target_env = "gnu")]
use libc::{fallocate64 as fallocate, off64_t as off_t};

use super::call::{retry, uninterrupted};
use super::claim::{Claim, Hold, unlock};
use super::{BLOCK_BYTES, BlockBuffer, BlockDevice, Counters, DeviceError, Geometry};

/// The longest request, in blocks, that stays one request when its buffer is not aligned to a block: 256 KiB. It
/// applies to direct transfers. Aligned buffers have no such limit.
pub const BOUNCE_BLOCKS_MAX: usize = 64;

/// `_IOR(0x12, 114, size_t)`: the size of a block device in bytes.
const BLKGETSIZE64: libc::Ioctl = libc::_IOR::<usize>(0x12, 114);
/// `_IO(0x12, 119)`: discard a byte range.
const BLKDISCARD: libc::Ioctl = libc::_IO(0x12, 119);

/// Blocks in one request of [`FileDevice::write_zeros`].
const ZEROS_BLOCKS: usize = 256;

/// Blocks at each end that [`FileDevice::clear_ends`] clears.
const CLEARED_BLOCKS: u64 = (1 << 20) / BLOCK_BYTES as u64;

/// How to open a [`FileDevice`]. The default opens an existing one for reading and writing, buffered, shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileDeviceOptions {
    /// Make sure that there is a regular file of at least this many bytes. A missing file is created sparse, a shorter
    /// one is extended (sparse), a longer one stays as it is. Content is kept in every case. Ignored for block devices,
    /// whose size is fixed, and when opened read-only.
    pub create_bytes: Option<u64>,
    /// Refuse writes and discards; the file is opened for reading only.
    pub read_only: bool,
    /// Transfer directly between buffers and the device (`O_DIRECT`), past the page cache. Where the file
    /// system refuses that, transfers are buffered, with the same durability; see [`FileDevice::is_direct`].
    pub direct: bool,
    /// Hold the file alone, by an advisory lock on the file (`flock`), which every opening with this option respects. A
    /// block device gets the kernel's own exclusive claim, too, which also refuses a mounted one. A loop device and the
    /// file that it shows count as one. With `read_only`, other openings that only read may hold it at the same time.
    pub exclusive: bool,
}

/// A block device in a file: requests are one `pwrite` or `pread` each, a flush is one `fdatasync`.
///
/// Never `O_DSYNC`: on a device without forced unit access the kernel would send two flushes for every write.
/// Bytes beyond the last whole block are not part of the device.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    geometry: Geometry,
    counters: Counters,
    /// Copies of unaligned buffers, allocated at open; only for direct transfers.
    bounce: Option<BlockBuffer>,
    is_block_device: bool,
    claim: Option<Claim>,
    read_only: bool,
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        if self.claim.is_some() {
            unlock(&self.file);
        }
    }
}

impl FileDevice {
    /// Opens the device at `path`, and creates it if requested.
    ///
    /// A file that this call has created or extended is durable, name and length, when it returns.
    ///
    /// # Errors
    /// [`DeviceError::InUse`] when exclusive holding is refused, [`DeviceError::Open`] with the path for
    /// everything else.
    pub fn open(path: impl AsRef<Path>, options: &FileDeviceOptions) -> Result<Self, DeviceError> {
        Self::open_path(path.as_ref(), options)
    }

    fn open_path(path: &Path, options: &FileDeviceOptions) -> Result<Self, DeviceError> {
        let failed = |source| DeviceError::Open {
            path: path.to_path_buf(),
            source,
        };
        // Check this before opening, because O_EXCL without O_CREAT has a meaning only for block devices.
        let kind = std::fs::metadata(path).map(|data| data.file_type()).ok();
        if kind.is_some_and(|kind| !kind.is_file() && !kind.is_block_device()) {
            // Opening a FIFO would wait for its other end.
            return Err(failed(no_device()));
        }
        let is_block_device = kind.is_some_and(|kind| kind.is_block_device());
        let creates = options
            .create_bytes
            .filter(|_| !is_block_device && !options.read_only);
        let mut flags = 0;
        if is_block_device && options.exclusive && !options.read_only {
            flags |= libc::O_EXCL;
        }
        let (file, is_new) =
            open_file(path, options.read_only, creates.is_some(), flags).map_err(|source| {
                if flags & libc::O_EXCL != 0 && source.raw_os_error() == Some(libc::EBUSY) {
                    DeviceError::InUse {
                        path: path.to_path_buf(),
                    }
                } else {
                    failed(source)
                }
            })?;
        let hold = match options {
            FileDeviceOptions {
                exclusive: false, ..
            } => None,
            FileDeviceOptions {
                read_only: true, ..
            } => Some(Hold::WithReaders),
            _ => Some(Hold::Alone),
        };
        let claim = hold.map(|hold| Claim::take(&file, hold)).transpose();
        let claim = claim.map_err(|source| match source.kind() {
            ErrorKind::WouldBlock => DeviceError::InUse {
                path: path.to_path_buf(),
            },
            _ => failed(source),
        })?;
        let kind = file.metadata().map_err(failed)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(failed(no_device()));
        }
        // Only now, with the lock held: no other process can be deciding about the length.
        let bytes = if is_block_device {
            block_device_bytes(&file)
        } else {
            ensure_length(&file, creates)
        }
        .map_err(failed)?;
        if is_new {
            sync_parent(path).map_err(failed)?;
        }
        let is_direct = options.direct && set_direct(&file, bytes);
        Ok(Self {
            file,
            geometry: Geometry {
                block_count: bytes / BLOCK_BYTES as u64,
            },
            counters: Counters::default(),
            bounce: is_direct.then(|| BlockBuffer::zeroed(BOUNCE_BLOCKS_MAX)),
            is_block_device,
            claim,
            read_only: options.read_only,
        })
    }

    /// Whether transfers bypass the page cache, as requested, unless the file system refused it.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.bounce.is_some()
    }

    /// Whether this is a raw or loop device rather than a regular file.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Allocates every block of a regular file on the disk below and fills it with zeros; everything in the file is
    /// lost. Does nothing to a block device. Its writes are not counted.
    ///
    /// In a sparse file the file system below allocates at the first write to each block. This is slower, comes in
    /// bursts, and fails if the disk is full by then. Written blocks cost what the device costs. `progress` receives
    /// the bytes written by each request.
    ///
    /// # Errors
    /// [`DeviceError::Io`], whose code is [`Full`](crate::error::Code::Full) when the disk has no room.
    pub fn write_zeros(&mut self, progress: &mut dyn FnMut(usize)) -> Result<(), DeviceError> {
        self.write_zeros_from(0, progress)
    }

    /// As [`write_zeros`](Self::write_zeros), for the blocks from `first_block` on.
    ///
    /// # Errors
    /// As [`write_zeros`](Self::write_zeros).
    pub fn write_zeros_from(
        &mut self,
        first_block: u64,
        progress: &mut dyn FnMut(usize),
    ) -> Result<(), DeviceError> {
        let block_count = self.geometry.block_count;
        if self.is_block_device || first_block >= block_count {
            return Ok(());
        }
        self.require_writable()?;
        let counters = self.counters;
        let start = first_block * BLOCK_BYTES as u64;
        let length = block_count * BLOCK_BYTES as u64 - start;
        let fd = self.file.as_raw_fd();
        // Reserving all of it first reports at once if there is no room.
        // SAFETY: plain integers; both fit `off_t`, because the length of the file does.
        let reserved = retry(|| unsafe { fallocate(fd, 0, start as off_t, length as off_t) });
        match reserved {
            Err(error)
                if !matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) =>
            {
                return Err(DeviceError::Io {
                    operation: "write",
                    first_block,
                    source: error,
                });
            }
            _ => {}
        }
        let zeros = BlockBuffer::zeroed(ZEROS_BLOCKS);
        let mut block = first_block;
        while block < block_count {
            let blocks = (block_count - block).min(ZEROS_BLOCKS as u64);
            let bytes = blocks as usize * BLOCK_BYTES;
            self.write(block, &zeros[..bytes])?;
            progress(bytes);
            block += blocks;
        }
        self.flush()?;
        self.counters = counters;
        Ok(())
    }

    /// Writes zeros over the first and the last MiB, on a block device also over what lies behind its last whole block.
    /// Magic numbers of other formats lie there. If the new content does not overwrite one, another program takes the
    /// device for what it was. Durable; its writes are not counted.
    ///
    /// # Errors
    /// [`DeviceError::NotWritable`], [`DeviceError::Io`].
    pub fn clear_ends(&mut self) -> Result<(), DeviceError> {
        self.require_writable()?;
        let counters = self.counters;
        let block_count = self.geometry.block_count;
        let blocks = block_count.min(CLEARED_BLOCKS);
        if blocks > 0 {
            let zeros = BlockBuffer::zeroed(blocks as usize);
            self.write(0, &zeros)?;
            self.write(block_count - blocks, &zeros)?;
        }
        if self.is_block_device {
            self.clear_rest(block_count * BLOCK_BYTES as u64)
                .map_err(|source| DeviceError::Io {
                    operation: "write",
                    first_block: block_count,
                    source,
                })?;
        }
        self.flush()?;
        self.counters = counters;
        Ok(())
    }

    /// Clears the rest of a block device from byte `from` on, which is less than a block.
    fn clear_rest(&self, from: u64) -> Result<(), Error> {
        let rest = block_device_bytes(&self.file)?.saturating_sub(from);
        let rest = rest.min(BLOCK_BYTES as u64) as usize;
        if rest == 0 {
            return Ok(());
        }
        // Such a short transfer cannot be direct.
        let fd = self.file.as_raw_fd();
        // SAFETY: the descriptor is open; F_GETFL and F_SETFL take and return plain integers.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        // SAFETY: as above.
        retry(|| unsafe { libc::fcntl(fd, libc::F_SETFL, flags & !libc::O_DIRECT) })?;
        let written = self.file.write_all_at(&[0; BLOCK_BYTES][..rest], from);
        let written = written.and_then(|()| self.file.sync_data());
        // SAFETY: as above.
        retry(|| unsafe { libc::fcntl(fd, libc::F_SETFL, flags) })?;
        written
    }

    fn require_writable(&self) -> Result<(), DeviceError> {
        if self.read_only {
            Err(DeviceError::NotWritable {
                reason: "opened read-only",
            })
        } else {
            Ok(())
        }
    }
}

impl BlockDevice for FileDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.geometry.check(first_block, buffer.len())?;
        let failed = |source| DeviceError::Io {
            operation: "read",
            first_block,
            source,
        };
        let (file, counters) = (&self.file, &mut self.counters);
        match &mut self.bounce {
            Some(bounce) if !is_aligned(buffer) => {
                for (index, part) in buffer
                    .chunks_mut(BOUNCE_BLOCKS_MAX * BLOCK_BYTES)
                    .enumerate()
                {
                    let aligned = &mut bounce[..part.len()];
                    let block = first_block + (index * BOUNCE_BLOCKS_MAX) as u64;
                    read_all(file, block, aligned, counters).map_err(failed)?;
                    part.copy_from_slice(aligned);
                }
                Ok(())
            }
            _ => read_all(file, first_block, buffer, counters).map_err(failed),
        }
    }

    fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.require_writable()?;
        self.geometry.check(first_block, data.len())?;
        let failed = |source| DeviceError::Io {
            operation: "write",
            first_block,
            source,
        };
        let (file, counters) = (&self.file, &mut self.counters);
        match &mut self.bounce {
            Some(bounce) if !is_aligned(data) => {
                for (index, part) in data.chunks(BOUNCE_BLOCKS_MAX * BLOCK_BYTES).enumerate() {
                    let aligned = &mut bounce[..part.len()];
                    let block = first_block + (index * BOUNCE_BLOCKS_MAX) as u64;
                    aligned.copy_from_slice(part);
                    write_all(file, block, aligned, counters).map_err(failed)?;
                }
                Ok(())
            }
            _ => write_all(file, first_block, data, counters).map_err(failed),
        }
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        self.counters.flushes += 1;
        let failed = |source| DeviceError::Io {
            operation: "flush",
            first_block: 0,
            source,
        };
        // One fdatasync, repeated only when a signal interrupts it.
        self.file.sync_data().map_err(failed)
    }

    fn discard(&mut self, first_block: u64, block_count: u64) -> Result<(), DeviceError> {
        self.require_writable()?;
        self.geometry.check_blocks(first_block, block_count)?;
        self.counters.discards += 1;
        let start = first_block * BLOCK_BYTES as u64;
        let length = block_count * BLOCK_BYTES as u64;
        let fd = self.file.as_raw_fd();
        let done = if self.is_block_device {
            let range = [start, length];
            // SAFETY: BLKDISCARD reads two 64-bit integers through the pointer, which `range` provides.
            retry(|| unsafe { libc::ioctl(fd, BLKDISCARD, range.as_ptr()) })
        } else {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: plain integers; both fit `off_t`, because the device's length in bytes does.
            retry(|| unsafe { fallocate(fd, mode, start as off_t, length as off_t) })
        };
        match done {
            Ok(_) => Ok(()),
            // A device without discard ignores it.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY)
                ) =>
            {
                Ok(())
            }
            Err(source) => Err(DeviceError::Io {
                operation: "discard",
                first_block,
                source,
            }),
        }
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn reset_write_blocks_max(&mut self) {
        self.counters.write_blocks_max = 0;
    }
}

fn no_device() -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        "neither a regular file nor a block device",
    )
}

/// Opens the file; the second value says whether this call created it.
fn open_file(
    path: &Path,
    read_only: bool,
    creates: bool,
    flags: i32,
) -> Result<(File, bool), Error> {
    let mut how = OpenOptions::new();
    how.read(true).write(!read_only).custom_flags(flags);
    match how.open(path) {
        Err(error) if creates && error.kind() == ErrorKind::NotFound => {
            match how.clone().create_new(true).open(path) {
                Ok(file) => Ok((file, true)),
                // Another process created it in between: use that file.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    Ok((how.open(path)?, false))
                }
                Err(error) => Err(error),
            }
        }
        opened => Ok((opened?, false)),
    }
}

/// Extends the file to `bytes` if it is shorter, durably; returns its length.
fn ensure_length(file: &File, bytes: Option<u64>) -> Result<u64, Error> {
    let length = file.metadata()?.len();
    match bytes {
        Some(bytes) if bytes > length => {
            file.set_len(bytes)?;
            file.sync_all()?;
            Ok(bytes)
        }
        _ => Ok(length),
    }
}

/// Makes a newly created name durable.
fn sync_parent(path: &Path) -> Result<(), Error> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    match File::open(parent)?.sync_all() {
        // Some file systems have directories that cannot be synchronised; they do not need it then.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        done => done,
    }
}

fn block_device_bytes(file: &File) -> Result<u64, Error> {
    let mut bytes = 0_u64;
    // SAFETY: BLKGETSIZE64 writes one 64-bit integer through the pointer, on every width of `size_t`.
    retry(|| unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut bytes) })?;
    Ok(bytes)
}

/// Switches the descriptor to direct transfers and tries one, since some file systems take the flag and then
/// refuse the transfer. Returns whether transfers are direct now.
fn set_direct(file: &File, bytes: u64) -> bool {
    let fd = file.as_raw_fd();
    // SAFETY: the descriptor is open; F_GETFL and F_SETFL take and return plain integers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    if flags == -1 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_DIRECT) } == -1 {
        return false;
    }
    let mut block = BlockBuffer::zeroed(1);
    if bytes < BLOCK_BYTES as u64 || read_all(file, 0, &mut block, &mut Counters::default()).is_ok()
    {
        return true;
    }
    // SAFETY: as above.
    unsafe { libc::fcntl(fd, libc::F_SETFL, flags) };
    false
}

fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(BLOCK_BYTES)
}

/// Reads the whole buffer. One request unless the kernel returns short, as for a signal in the middle of a large
/// transfer. The rest is then requested again, which counts as another request.
fn read_all(
    file: &File,
    first_block: u64,
    buffer: &mut [u8],
    counters: &mut Counters,
) -> Result<(), Error> {
    let start = first_block * BLOCK_BYTES as u64;
    let mut done = 0;
    while done < buffer.len() {
        let rest = &mut buffer[done..];
        counters.count_read((rest.len() / BLOCK_BYTES) as u64);
        let got = uninterrupted(|| file.read_at(rest, start + done as u64))?;
        done += whole_blocks(got, ErrorKind::UnexpectedEof)?;
    }
    Ok(())
}

/// Writes all of `data`; requests and counting as in [`read_all`].
fn write_all(
    file: &File,
    first_block: u64,
    data: &[u8],
    counters: &mut Counters,
) -> Result<(), Error> {
    let start = first_block * BLOCK_BYTES as u64;
    let mut done = 0;
    while done < data.len() {
        let rest = &data[done..];
        counters.count_write((rest.len() / BLOCK_BYTES) as u64);
        let got = uninterrupted(|| file.write_at(rest, start + done as u64))?;
        done += whole_blocks(got, ErrorKind::WriteZero)?;
    }
    Ok(())
}

/// Returns progress in whole blocks, so that the next part of a direct transfer is aligned again. A call that moved
/// less than a block has met the end of the file or of the space, and retrying would never end.
fn whole_blocks(bytes: usize, otherwise: ErrorKind) -> Result<usize, Error> {
    match bytes - bytes % BLOCK_BYTES {
        0 => Err(Error::from(otherwise)),
        whole => Ok(whole),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_direct_transfer_falls_back() {
        // A kernel-made file has no device behind it to transfer from directly.
        let file = File::open("/proc/self/stat").unwrap();
        assert!(!set_direct(&file, BLOCK_BYTES as u64));
        // SAFETY: the descriptor is open; F_GETFL takes and returns plain integers.
        let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
        assert_eq!(flags & libc::O_DIRECT, 0);
    }

    #[test]
    fn short_transfers_go_on_at_a_whole_block_and_none_is_an_error() {
        assert_eq!(
            whole_blocks(3 * BLOCK_BYTES + 512, ErrorKind::WriteZero).unwrap(),
            3 * BLOCK_BYTES
        );
        assert_eq!(
            whole_blocks(512, ErrorKind::WriteZero).unwrap_err().kind(),
            ErrorKind::WriteZero
        );
        assert_eq!(
            whole_blocks(0, ErrorKind::UnexpectedEof)
                .unwrap_err()
                .kind(),
            ErrorKind::UnexpectedEof
        );
    }

    #[test]
    fn a_file_cut_short_underneath_is_an_error() {
        let path =
            std::env::temp_dir().join(format!("evenkeel-base-cut-short-{}", std::process::id()));
        let options = FileDeviceOptions {
            create_bytes: Some(3 * BLOCK_BYTES as u64),
            ..Default::default()
        };
        let mut device = FileDevice::open(&path, &options).unwrap();
        std::fs::remove_file(&path).unwrap();
        device.file.set_len(BLOCK_BYTES as u64 + 100).unwrap();
        let mut buffer = [0; 3 * BLOCK_BYTES];
        let error = device.read(0, &mut buffer).unwrap_err();
        assert_eq!(error.code(), crate::error::Code::Io, "{error}");
        assert_eq!(
            device.counters().reads,
            2,
            "the rest was asked for once more"
        );
        device.read(0, &mut buffer[..BLOCK_BYTES]).unwrap();
    }
}
