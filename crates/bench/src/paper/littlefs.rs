//! The peer littlefs 2.9, in C, as used on a microcontroller but with more memory. It has blocks of 4 KiB, programs and
//! reads of 512 bytes, caches of a whole block, and a lookahead that covers the whole device. It has no wear levelling
//! (the card does that). Below it is a write-through cache of 1 MiB. Transfers bypass the page cache; its `sync` is one
//! `fdatasync`, or nothing in the variant that uses volatile caches.

use std::ffi::{CString, c_int, c_void};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use base::block::BlockBuffer;
use littlefs2_sys as lfs;

use super::variant::{READ_BLOCKS, Scenario, Variant, name};
use crate::store::{OPERATION_BYTES, fill_pattern, timed};

const BLOCK_BYTES: usize = 4096;
const SECTOR_BYTES: usize = 512;
/// Blocks in the cache below littlefs: 1 MiB, the maximum memory of our store.
const CACHE_BLOCKS: usize = 256;

/// The device with its cache, as the callbacks see it.
struct Cached {
    file: File,
    /// Whether flushes do nothing.
    is_volatile: bool,
    bounce: BlockBuffer,
    blocks: BlockBuffer,
    /// The block that each place of the cache holds, and when it was last used.
    held: Vec<(u32, u64)>,
    clock: u64,
}

const NOTHING_HELD: u32 = u32::MAX;

impl Cached {
    /// Returns the place of a block in the cache.
    fn find(&mut self, block: u32) -> Option<usize> {
        let place = self.held.iter().position(|(held, _)| *held == block)?;
        self.clock += 1;
        self.held[place].1 = self.clock;
        Some(place)
    }

    fn read(&mut self, block: u32, offset: usize, out: &mut [u8]) -> std::io::Result<()> {
        let place = match self.find(block) {
            Some(place) => place,
            None => {
                let oldest = self.held.iter().enumerate();
                let oldest = oldest.min_by_key(|(_, (_, used))| *used);
                let place = oldest.map_or(0, |(place, _)| place);
                self.held[place] = (NOTHING_HELD, 0);
                let at = u64::from(block) * BLOCK_BYTES as u64;
                self.file.read_exact_at(self.blocks.block_mut(place), at)?;
                self.clock += 1;
                self.held[place] = (block, self.clock);
                place
            }
        };
        out.copy_from_slice(&self.blocks.block_mut(place)[offset..offset + out.len()]);
        Ok(())
    }

    fn write(&mut self, block: u32, offset: usize, data: &[u8]) -> std::io::Result<()> {
        if let Some(place) = self.find(block) {
            self.blocks.block_mut(place)[offset..offset + data.len()].copy_from_slice(data);
        }
        self.bounce[..data.len()].copy_from_slice(data);
        let at = u64::from(block) * BLOCK_BYTES as u64 + offset as u64;
        self.file.write_all_at(&self.bounce[..data.len()], at)
    }

    fn sync(&self) -> std::io::Result<()> {
        if self.is_volatile {
            return Ok(());
        }
        self.file.sync_data()
    }
}

fn code(done: std::io::Result<()>) -> c_int {
    match done {
        Ok(()) => lfs::lfs_error_LFS_ERR_OK,
        Err(_) => lfs::lfs_error_LFS_ERR_IO,
    }
}

/// Returns the device that a configuration belongs to.
///
/// # Safety
/// `config` must be the one of a living [`Littlefs`], and its device must not be used elsewhere meanwhile.
unsafe fn device<'a>(config: *const lfs::lfs_config) -> &'a mut Cached {
    // SAFETY: guaranteed by the caller; `context` is set once, in `open`, to a box that lives as long.
    unsafe { &mut *(*config).context.cast::<Cached>() }
}

unsafe extern "C" fn read(
    config: *const lfs::lfs_config,
    block: lfs::lfs_block_t,
    offset: lfs::lfs_off_t,
    buffer: *mut c_void,
    size: lfs::lfs_size_t,
) -> c_int {
    // SAFETY: littlefs calls back with the configuration that it was mounted with, one call at a time.
    let device = unsafe { device(config) };
    // SAFETY: littlefs passes a buffer of `size` bytes.
    let out = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), size as usize) };
    code(device.read(block, offset as usize, out))
}

unsafe extern "C" fn prog(
    config: *const lfs::lfs_config,
    block: lfs::lfs_block_t,
    offset: lfs::lfs_off_t,
    buffer: *const c_void,
    size: lfs::lfs_size_t,
) -> c_int {
    // SAFETY: as in `read`.
    let device = unsafe { device(config) };
    // SAFETY: littlefs passes a buffer of `size` bytes.
    let data = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), size as usize) };
    code(device.write(block, offset as usize, data))
}

unsafe extern "C" fn erase(_config: *const lfs::lfs_config, _block: lfs::lfs_block_t) -> c_int {
    // A block device needs no erase.
    lfs::lfs_error_LFS_ERR_OK
}

unsafe extern "C" fn sync(config: *const lfs::lfs_config) -> c_int {
    // SAFETY: as in `read`.
    code(unsafe { device(config) }.sync())
}

/// A mounted littlefs on a block device.
pub(crate) struct Littlefs {
    label: &'static str,
    // All are boxed because littlefs keeps pointers to them.
    state: Box<lfs::lfs_t>,
    config: Box<lfs::lfs_config>,
    device: Box<Cached>,
    file: Option<Box<lfs::lfs_file_t>>,
    payload: Vec<u8>,
}

impl Littlefs {
    /// Formats and mounts a littlefs on the block device `path` of `bytes` bytes.
    ///
    /// # Errors
    /// One line with the error number of littlefs.
    pub(crate) fn create(path: &Path, bytes: u64, is_volatile: bool) -> Result<Self, String> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_DIRECT)
            .open(path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let mut device = Box::new(Cached {
            file,
            is_volatile,
            bounce: BlockBuffer::zeroed(1),
            blocks: BlockBuffer::zeroed(CACHE_BLOCKS),
            held: vec![(NOTHING_HELD, 0); CACHE_BLOCKS],
            clock: 0,
        });
        let block_count = (bytes / BLOCK_BYTES as u64) as u32;
        let config = Box::new(lfs::lfs_config {
            context: std::ptr::from_mut(device.as_mut()).cast(),
            read: Some(read),
            prog: Some(prog),
            erase: Some(erase),
            sync: Some(sync),
            read_size: SECTOR_BYTES as u32,
            prog_size: SECTOR_BYTES as u32,
            block_size: BLOCK_BYTES as u32,
            block_count,
            block_cycles: -1,
            cache_size: BLOCK_BYTES as u32,
            lookahead_size: block_count.div_ceil(64) * 8,
            ..lfs::lfs_config::default()
        });
        let mut littlefs = Self {
            label: if is_volatile {
                "littlefs-nosync"
            } else {
                "littlefs-sync"
            },
            state: Box::default(),
            config,
            device,
            file: None,
            payload: vec![0x5A; OPERATION_BYTES],
        };
        // SAFETY: state and configuration are boxed and outlive the mount; the buffers are littlefs's own.
        let formatted =
            unsafe { lfs::lfs_format(&raw mut *littlefs.state, &raw const *littlefs.config) };
        succeeded("format", formatted)?;
        littlefs.mount()?;
        littlefs.open("read", lfs::lfs_open_flags_LFS_O_CREAT)?;
        for block in 0..READ_BLOCKS {
            fill_pattern(block * OPERATION_BYTES as u64, &mut littlefs.payload);
            littlefs.write()?;
        }
        littlefs.close()?;
        littlefs.open("append", lfs::lfs_open_flags_LFS_O_CREAT)?;
        littlefs.write()?;
        littlefs.close()?;
        Ok(littlefs)
    }

    fn mount(&mut self) -> Result<(), String> {
        self.device.held.fill((NOTHING_HELD, 0));
        // SAFETY: state and configuration are boxed and outlive the mount.
        succeeded("mount", unsafe {
            lfs::lfs_mount(&raw mut *self.state, &raw const *self.config)
        })
    }

    fn unmount(&mut self) -> Result<(), String> {
        // SAFETY: it is mounted, and no file is open.
        succeeded("unmount", unsafe { lfs::lfs_unmount(&raw mut *self.state) })
    }

    fn open(&mut self, name: &str, more: lfs::lfs_open_flags) -> Result<(), String> {
        let mut file = Box::<lfs::lfs_file_t>::default();
        let path = path(name)?;
        let flags =
            (lfs::lfs_open_flags_LFS_O_RDWR | lfs::lfs_open_flags_LFS_O_APPEND | more) as c_int;
        // SAFETY: mounted; the file's box lives until it is closed; the path ends in NUL.
        let opened = unsafe {
            lfs::lfs_file_open(&raw mut *self.state, &raw mut *file, path.as_ptr(), flags)
        };
        succeeded("open", opened)?;
        self.file = Some(file);
        Ok(())
    }

    fn close(&mut self) -> Result<(), String> {
        let Some(mut file) = self.file.take() else {
            return Ok(());
        };
        // SAFETY: mounted; the file is open.
        succeeded("close", unsafe {
            lfs::lfs_file_close(&raw mut *self.state, &raw mut *file)
        })
    }

    fn write(&mut self) -> Result<(), String> {
        let file = self.file.as_mut().ok_or("no file is open")?;
        // SAFETY: mounted; the file is open; the buffer holds the given number of bytes.
        let written = unsafe {
            lfs::lfs_file_write(
                &raw mut *self.state,
                &raw mut **file,
                self.payload.as_ptr().cast(),
                OPERATION_BYTES as u32,
            )
        };
        succeeded("write", written)
    }

    fn sync_file(&mut self) -> Result<(), String> {
        let file = self.file.as_mut().ok_or("no file is open")?;
        // SAFETY: mounted; the file is open.
        succeeded("sync", unsafe {
            lfs::lfs_file_sync(&raw mut *self.state, &raw mut **file)
        })
    }

    fn read_at(&mut self, offset: u64) -> Result<(), String> {
        let file = self.file.as_mut().ok_or("no file is open")?;
        let from_start = lfs::lfs_whence_flags_LFS_SEEK_SET as c_int;
        // SAFETY: mounted; the file is open; the buffer holds the given number of bytes.
        let read = unsafe {
            let sought = lfs::lfs_file_seek(
                &raw mut *self.state,
                &raw mut **file,
                offset as i32,
                from_start,
            );
            if sought < 0 {
                sought
            } else {
                lfs::lfs_file_read(
                    &raw mut *self.state,
                    &raw mut **file,
                    self.payload.as_mut_ptr().cast(),
                    OPERATION_BYTES as u32,
                )
            }
        };
        succeeded("read", read)
    }

    fn remove(&mut self, name: &str) -> Result<(), String> {
        let path = path(name)?;
        // SAFETY: mounted; the path ends in NUL.
        succeeded("remove", unsafe {
            lfs::lfs_remove(&raw mut *self.state, path.as_ptr())
        })
    }
}

fn path(name: &str) -> Result<CString, String> {
    CString::new(name).map_err(|error| error.to_string())
}

fn succeeded(what: &str, code: c_int) -> Result<(), String> {
    if code < 0 {
        return Err(format!("littlefs: {what}: error {code}"));
    }
    Ok(())
}

impl Variant for Littlefs {
    fn label(&self) -> &'static str {
        self.label
    }

    fn prepare(&mut self, scenario: Scenario) -> Result<(), String> {
        self.unmount()?;
        self.mount()?;
        match scenario {
            Scenario::Append => self.open("append", 0),
            Scenario::Read => self.open("read", 0),
            Scenario::OpenNew | Scenario::UnlinkEmpty => Ok(()),
        }
    }

    fn step(&mut self, scenario: Scenario, index: u32, block: u64) -> Result<u64, String> {
        let name = name(index);
        let (done, elapsed_ns) = match scenario {
            Scenario::Append if self.device.is_volatile => timed(|| self.write()),
            Scenario::Append => timed(|| self.write().and_then(|()| self.sync_file())),
            Scenario::Read => {
                let offset = block * OPERATION_BYTES as u64;
                let (read, elapsed_ns) = timed(|| self.read_at(offset));
                let same = || crate::store::check_pattern(offset, &self.payload);
                (read.and_then(|()| same()), elapsed_ns)
            }
            Scenario::OpenNew => {
                let more = lfs::lfs_open_flags_LFS_O_CREAT | lfs::lfs_open_flags_LFS_O_EXCL;
                let (opened, elapsed_ns) = timed(|| self.open(&name, more));
                (opened.and_then(|()| self.close()), elapsed_ns)
            }
            Scenario::UnlinkEmpty => timed(|| self.remove(&name)),
        };
        done.map(|()| elapsed_ns)
    }

    fn finish(&mut self, _scenario: Scenario) -> Result<(), String> {
        self.close()?;
        self.device
            .file
            .sync_all()
            .map_err(|error| error.to_string())
    }
}
