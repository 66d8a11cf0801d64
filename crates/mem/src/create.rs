//! Creating, opening and renaming a region.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use crate::error::{Error, Result, system_error};
use crate::file_lock::{FileLock, identity};
use crate::flush::Flush;
use crate::inode::NewInode;
use crate::layout::{Layout, PAGE_BYTES, RegionOptions, state};
use crate::logging::Setting;
use crate::memory::{Memory, is_persistent, take_pages};
use crate::node::ROOT_INODE;
use crate::owner::Owner;
use crate::patience::Patience;
use crate::region::{NO_NAMESPACE, Region, backing};
use crate::run::InvalidLog;
use crate::stub::{RecordLocked, StubName, Stubs, stubs_path};
use crate::superblock::{MAGIC, SUPERBLOCK_BYTES, decode, encode};

/// Bytes of the superblock with the words that change.
const SUPERBLOCK_TABLE_BYTES: u64 = 4096;

impl Region {
    /// Makes a region in a new file, takes all of its memory, and opens it. The region writes cache lines back if the
    /// file lies in memory that keeps its content without power.
    ///
    /// # Errors
    /// [`Error::Invalid`] for numbers that no region can have; [`Error::System`] when the file exists, or the memory
    /// cannot be allocated.
    pub fn create(path: &Path, options: &RegionOptions, new_root: &NewInode) -> Result<Self> {
        Self::create_with_flush(path, options, new_root, None)
    }

    /// As [`create`](Self::create), but `flush` says whether it writes cache lines back; `None` is as there.
    ///
    /// # Errors
    /// As [`create`](Self::create); [`Error::Invalid`] where the processor cannot do it.
    pub fn create_with_flush(
        path: &Path,
        options: &RegionOptions,
        new_root: &NewInode,
        flush: Option<Flush>,
    ) -> Result<Self> {
        let mut layout = Layout::new(options)?;
        flush.unwrap_or_default().require()?;
        let system = |what| system_error(path, what);
        let stubs = stubs_path(path);
        remove_stubs(&stubs)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(system("cannot be made"))?;
        // Most file systems have shorter files than hugetlbfs and tmpfs; then fewer large files fit.
        let made = loop {
            match file.set_len(layout.file_bytes) {
                Ok(()) => {
                    let found = || match is_persistent(&file) {
                        true => Flush::CacheLines,
                        false => Flush::None,
                    };
                    let flush = flush.unwrap_or_else(found);
                    break Self::fill(file, path, layout, flush, new_root);
                }
                Err(error) => match Layout::with_slots(options, layout.slot_count / 2) {
                    Ok(shorter) if error.raw_os_error() == Some(libc::EFBIG) => layout = shorter,
                    _ => break Err(system("cannot be as long as its address space")(error)),
                },
            }
        };
        if made.is_err() {
            let _ = std::fs::remove_file(path);
            let _ = std::fs::remove_dir(&stubs);
        }
        made
    }

    /// Gives an unused region another path, with its folder of stubs. A process killed in the middle leaves the region
    /// under one of the two paths. The stubs that a removed region left at the new path are removed.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn rename(from: &Path, to: &Path) -> Result<()> {
        let stubs = stubs_path(to);
        remove_stubs(&stubs)?;
        let renamed = |path, result: std::io::Result<()>| {
            result.map_err(system_error(path, "cannot be given this name"))
        };
        renamed(&stubs, std::fs::rename(stubs_path(from), &stubs))?;
        renamed(to, std::fs::rename(from, to))
    }

    fn fill(
        file: File,
        path: &Path,
        layout: Layout,
        flush: Flush,
        new_root: &NewInode,
    ) -> Result<Self> {
        let system = |what| system_error(path, what);
        let metadata_pages = layout.metadata_bytes / PAGE_BYTES;
        take_pages(&file, 0, metadata_pages)
            .and_then(|()| take_pages(&file, layout.pool_at, layout.data_pages()))
            .map_err(system("its memory cannot be had"))?;
        let region = Self::assemble(file, path, layout, flush, true)?;
        let memory = &region.memory;
        memory.store(state::POOL_PAGES, layout.data_pages());
        // Number 0 means none.
        memory.store(state::FRESH_INODE, ROOT_INODE);
        memory.write_back(0, SUPERBLOCK_TABLE_BYTES);
        memory
            .sync_pages(&region.file)
            .map_err(system("its memory cannot be had for good"))?;
        region.enter_run(InvalidLog::Refused)?;
        let lane = region.take_lane()?;
        let mut words = region.begin_words(lane)?;
        let root = words.take_inode(new_root, ROOT_INODE)?;
        debug_assert_eq!(root, ROOT_INODE);
        words.change_links(root, 2)?;
        words.commit()?;
        drop(words);
        region.give_back_lane(lane);
        // Write this last: without it the file is no region.
        let superblock = encode(&layout, flush);
        memory.write(8, &superblock[8..]);
        memory.persist([(0, SUPERBLOCK_BYTES as u64)]);
        memory.store(0, u64::from_le_bytes(*MAGIC).to_le());
        memory.persist([(0, 8)]);
        if flush != Flush::None {
            // The directory entry must be durable as well.
            region
                .file
                .sync_all()
                .and_then(|()| {
                    let folder = region.path.parent().unwrap_or(Path::new("/"));
                    OpenOptions::new().read(true).open(folder)
                })
                .and_then(|folder| folder.sync_all())
                .map_err(system("cannot be made for good"))?;
        }
        Ok(region)
    }

    /// Opens a region, for reading and writing or only for reading.
    ///
    /// # Errors
    /// [`Error::NotARegion`], [`Error::Version`], [`Error::System`], or [`Error::Damaged`] when its superblock says
    /// what cannot be.
    pub fn open(path: &Path, writable: bool) -> Result<Self> {
        Self::open_with(path, writable, InvalidLog::Refused)
    }

    /// As [`open`](Self::open); `invalid_log` says how to treat an invalid log that a dead writer of another run left.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn open_with(path: &Path, writable: bool, invalid_log: InvalidLog) -> Result<Self> {
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
        // hugetlbfs supports reads by mapping only.
        let first = Memory::map(&file, path, PAGE_BYTES, false, Flush::None)?;
        let mut superblock = [0; SUPERBLOCK_BYTES];
        first.read(0, &mut superblock);
        drop(first);
        let (layout, flush) = decode(&superblock, path)?;
        if length != layout.file_bytes {
            return Err(Error::Damaged {
                at: 0,
                what: "the file is not as long as its superblock says",
            });
        }
        if writable {
            flush.require()?;
        }
        let region = Self::assemble(file, path, layout, flush, writable)?;
        if writable {
            region.enter_run(invalid_log)?;
            region.settle_predecessor()?;
        }
        Ok(region)
    }

    fn assemble(
        file: File,
        path: &Path,
        layout: Layout,
        flush: Flush,
        writable: bool,
    ) -> Result<Self> {
        let memory = {
            // A process that settles a lane of the program that this process ran before excludes the mapping meanwhile.
            let _locked = writable
                .then(|| FileLock::take(&file, path, libc::LOCK_SH))
                .transpose()?;
            Memory::map(&file, path, layout.file_bytes, writable, flush)?
        };
        let backing =
            backing(&file).map_err(system_error(path, "does not say what file system it is on"))?;
        let stubs = match Stubs::open(path, &file, writable) {
            Ok(stubs) => Some(stubs),
            Err(Error::System { source, .. })
                if !writable && source.kind() == std::io::ErrorKind::NotFound =>
            {
                None
            }
            Err(error) => return Err(error),
        };
        // A relative path changes its meaning with the working directory.
        let path = std::fs::canonicalize(path).map_err(system_error(path, "has no path"))?;
        let identity = identity(&file).map_err(system_error(&path, "cannot be looked at"))?;
        let owner = Owner::current()?;
        let is_mapping_seen = owner.is_alive(layout.file_bytes);
        Ok(Self {
            memory,
            layout,
            file,
            identity,
            path,
            owner: AtomicU64::new(owner.as_word()),
            owner_bytes_min: if is_mapping_seen {
                layout.file_bytes
            } else {
                0
            },
            namespace: AtomicU64::new(NO_NAMESPACE),
            writable,
            stubs,
            logging: Setting::default(),
            record_locked: RecordLocked::default(),
            patience: Patience::default(),
            backing,
        })
    }
}

/// Removes the stubs that a deleted region of that name has left: their numbers would be taken for ours. Any other file
/// there is an error, because it belongs to another program.
fn remove_stubs(folder: &Path) -> Result<()> {
    let failed = system_error(folder, "stands in the way and cannot be removed");
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    for entry in entries {
        let entry = entry.map_err(&failed)?;
        use std::os::unix::ffi::OsStrExt;
        let removed = match StubName::parse(entry.file_name().as_bytes()) {
            Some((_, true)) => std::fs::remove_dir(entry.path()),
            Some((_, false)) => std::fs::remove_file(entry.path()),
            None => Err(std::io::Error::from_raw_os_error(libc::EEXIST)),
        };
        removed.map_err(system_error(
            &entry.path(),
            "stands where the stubs of the region go; move it away",
        ))?;
    }
    std::fs::remove_dir(folder).map_err(&failed)
}
