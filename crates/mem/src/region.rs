//! Regions: made, opened, mapped.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::inode::{NewInode, ROOT_INODE};
use crate::lane::Owner;
use crate::layout::{Layout, PAGE_BYTES, RegionOptions, state};
use crate::memory::{Memory, take_pages};

/// Version of the layout and of the protocols between processes. 0 is provisional: it may change without a way to
/// keep what a region holds.
pub const FORMAT_VERSION: u32 = 0;

const MAGIC: &[u8; 8] = b"KEELMEM\0";

/// What the memory of a region is, which decides how fast it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Huge pages of hugetlbfs: fastest, never swapped.
    HugePages,
    /// tmpfs.
    SharedMemory,
    /// A file of any other file system: as slow as its write-back.
    File,
}

/// A region, mapped into this process.
pub struct Region {
    pub(crate) memory: Memory,
    pub(crate) layout: Layout,
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    pub(crate) owner: Owner,
    pub(crate) writable: bool,
    backing: Backing,
}

impl Region {
    /// Makes a region in a new file, takes all of its memory, and opens it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for numbers that no region can have; [`Error::System`] when the file exists, or the memory
    /// cannot be had.
    pub fn create(path: &Path, options: &RegionOptions, new_root: &NewInode) -> Result<Self> {
        let layout = Layout::new(options)?;
        let system = |what| system_error(path, what);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(system("cannot be made"))?;
        let made = Self::fill(file, path, layout, new_root);
        if made.is_err() {
            let _ = std::fs::remove_file(path);
        }
        made
    }

    fn fill(file: File, path: &Path, layout: Layout, new_root: &NewInode) -> Result<Self> {
        let system = |what| system_error(path, what);
        file.set_len(layout.file_bytes)
            .map_err(system("cannot be as long as its address space"))?;
        let metadata_pages = layout.metadata_bytes / PAGE_BYTES;
        take_pages(&file, 0, metadata_pages)
            .and_then(|()| take_pages(&file, layout.pool_at, layout.data_pages()))
            .map_err(system("its memory cannot be had"))?;
        let region = Self::assemble(file, path, layout, true)?;
        let memory = &region.memory;
        memory.store(state::POOL_PAGES, layout.data_pages());
        // Number 0 stands for none.
        memory.store(state::FRESH_INODE, ROOT_INODE);
        let lane = region.take_lane()?;
        let mut words = region.begin_words(lane)?;
        let root = words.take_inode(new_root, ROOT_INODE)?;
        debug_assert_eq!(root, ROOT_INODE);
        words.change_links(root, 2)?;
        words.commit()?;
        drop(words);
        region.give_back_lane(lane);
        // Last: without it this is no region.
        let superblock = encode(&layout);
        memory.write(8, &superblock[8..]);
        memory.store(0, u64::from_le_bytes(*MAGIC).to_le());
        Ok(region)
    }

    /// Opens a region, for reading and writing or only for reading.
    ///
    /// # Errors
    /// [`Error::NotARegion`], [`Error::Version`], [`Error::System`], or [`Error::Damaged`] when its superblock says
    /// what cannot be.
    pub fn open(path: &Path, writable: bool) -> Result<Self> {
        let system = |what| system_error(path, what);
        let file = OpenOptions::new()
            .read(true)
            .write(writable)
            .open(path)
            .map_err(system("cannot be opened"))?;
        let length = file
            .metadata()
            .map_err(system("cannot be looked at"))?
            .len();
        if length < PAGE_BYTES {
            return Err(Error::NotARegion {
                path: path.to_owned(),
            });
        }
        // hugetlbfs reads only by mapping.
        let first = Memory::map(&file, path, PAGE_BYTES, false)?;
        let mut superblock = [0; SUPERBLOCK_BYTES];
        first.read(0, &mut superblock);
        drop(first);
        let layout = decode(&superblock, path)?;
        if length != layout.file_bytes {
            return Err(Error::Damaged {
                at: 0,
                what: "the file is not as long as its superblock says",
            });
        }
        Self::assemble(file, path, layout, writable)
    }

    fn assemble(file: File, path: &Path, layout: Layout, writable: bool) -> Result<Self> {
        let memory = Memory::map(&file, path, layout.file_bytes, writable)?;
        let backing = backing(&file).map_err(|source| Error::System {
            path: path.to_owned(),
            what: "does not say what file system it is on",
            source,
        })?;
        Ok(Self {
            memory,
            layout,
            file,
            path: path.to_owned(),
            owner: Owner::current()?,
            writable,
            backing,
        })
    }

    /// Where everything lies.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What its memory is.
    #[must_use]
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// Bytes that files can still take, at least; small ones may find room beside others.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.memory.load(state::POOL_PAGES) * PAGE_BYTES
    }
}

/// Makes an error of the kernel's answer to what was done with the region's file.
fn system_error(path: &Path, what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::System {
        path: path.to_owned(),
        what,
        source,
    }
}

fn backing(file: &File) -> std::io::Result<Backing> {
    use std::os::fd::AsRawFd;
    const HUGETLBFS_MAGIC: i64 = 0x958458f6;
    const TMPFS_MAGIC: i64 = 0x01021994;
    // SAFETY: all zeros is a valid value of this plain structure.
    let mut found: libc::statfs64 = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor, and a structure that lives as long as the call.
    if unsafe { libc::fstatfs64(file.as_raw_fd(), &raw mut found) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // Signed on some systems, unsigned on others; these numbers are the same in both.
    #[allow(clippy::unnecessary_cast, reason = "the type depends on the system")]
    Ok(match found.f_type as i64 {
        HUGETLBFS_MAGIC => Backing::HugePages,
        TMPFS_MAGIC => Backing::SharedMemory,
        _ => Backing::File,
    })
}

const SUPERBLOCK_BYTES: usize = 64;

/// The part of the superblock that never changes.
fn encode(layout: &Layout) -> [u8; SUPERBLOCK_BYTES] {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes[16..24].copy_from_slice(&layout.capacity_bytes.to_le_bytes());
    bytes[24..32].copy_from_slice(&(layout.inode_count - 1).to_le_bytes());
    bytes[32..36].copy_from_slice(&(layout.lane_count as u32).to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; SUPERBLOCK_BYTES], path: &Path) -> Result<Layout> {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|place| bytes[at + place]));
    let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|place| bytes[at + place]));
    if &bytes[..8] != MAGIC {
        return Err(Error::NotARegion {
            path: path.to_owned(),
        });
    }
    if half(8) != FORMAT_VERSION {
        return Err(Error::Version {
            path: path.to_owned(),
            found: half(8),
            supported: FORMAT_VERSION,
        });
    }
    let damaged = Error::Damaged {
        at: 0,
        what: "the superblock does not match its checksum",
    };
    if half(60) != crc32c::crc32c(&bytes[..60]) {
        return Err(damaged);
    }
    Layout::new(&RegionOptions {
        capacity_bytes: word(16),
        files_max: Some(word(24)),
        lanes: half(32),
    })
    .map_err(|_| damaged)
}
