//! Regions: creating, opening, mapping.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::bytes::Setting;
use crate::error::{Error, Result};
use crate::file_lock::{FileLock, identity};
use crate::flush::Flush;
use crate::inode::{NewInode, ROOT_INODE, attribute};
use crate::lane::{Lane, Owner, word};
use crate::layout::{Layout, PAGE_BYTES, RegionOptions, state};
use crate::memory::{Memory, WORDS_IN_LINE, is_persistent, take_pages};
use crate::read::Patience;
use crate::stub::{RecordLocked, StubName, Stubs};

/// Version of the layout and of the protocols between processes; SPEC.md specifies every byte. A region of another
/// version is refused: a checkpoint, which does not depend on the version, carries its content into a new region. A
/// region that writes cache lines back has the newest format, because a program that does not know of that must not
/// write to it. All other regions have format 1, which all versions of this crate know.
pub const FORMAT_VERSION: u32 = 2;

/// The format of regions without [`Flush`].
const FORMAT_VERSION_PLAIN: u32 = 1;

pub(crate) const MAGIC: &[u8; 8] = b"KEELMEM\0";

/// The kind of memory of a region, which decides its speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Huge pages of hugetlbfs: fastest, never swapped.
    HugePages,
    /// tmpfs.
    SharedMemory,
    /// A file of any other file system: as slow as its write-back.
    File,
}

/// How to treat an invalid log of a dead writer.
#[derive(Clone, Copy)]
pub(crate) enum Senseless {
    /// The region is not opened.
    Refused,
    /// The log stays as it is, for a repair of the region.
    Left,
}

/// A region, mapped into this process.
pub struct Region {
    pub(crate) memory: Memory,
    pub(crate) layout: Layout,
    pub(crate) file: File,
    /// Device and inode of the file.
    pub(crate) identity: (u64, u64),
    pub(crate) path: PathBuf,
    /// As [`Owner`] stores it; a forked child has another one.
    owner: AtomicU64,
    /// The least that a process has mapped while it has this region; 0 if the kernel does not say how much that is.
    pub(crate) owner_bytes_min: u64,
    /// The namespace of process numbers in which this process entered the region.
    namespace: AtomicU64,
    pub(crate) writable: bool,
    /// `None` only if a region is attached for reading and its folder of stubs does not exist.
    pub(crate) stubs: Option<Stubs>,
    pub(crate) logging: Setting,
    pub(crate) record_locked: RecordLocked,
    pub(crate) patience: Patience,
    backing: Backing,
}

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
        region.enter_run(Senseless::Refused)?;
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
        Self::open_with(path, writable, Senseless::Refused)
    }

    /// As [`open`](Self::open); `senseless` says how to treat an invalid log that a dead writer of another run left.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn open_with(path: &Path, writable: bool, senseless: Senseless) -> Result<Self> {
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
            region.enter_run(senseless)?;
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
            // Who settles a lane of the program that this process ran before excludes the mapping meanwhile.
            let _locked = writable
                .then(|| FileLock::take(&file, path, libc::LOCK_SH))
                .transpose()?;
            Memory::map(&file, path, layout.file_bytes, writable, flush)?
        };
        let backing = backing(&file).map_err(|source| Error::System {
            path: path.to_owned(),
            what: "does not say what file system it is on",
            source,
        })?;
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

    /// Makes the region belong to this run of the machine: owners from another run are dead, even if a live process now
    /// has the same number.
    pub(crate) fn enter_run(&self, senseless: Senseless) -> Result<()> {
        let run = RunOfMachine::current()?;
        self.namespace.store(run.namespace, Ordering::Relaxed);
        if self.run() == run {
            return Ok(());
        }
        let _locked = FileLock::take(&self.file, &self.path, libc::LOCK_EX)?;
        self.enter_run_alone(&run, senseless)
    }

    fn enter_run_alone(&self, run: &RunOfMachine, senseless: Senseless) -> Result<()> {
        let before = self.run();
        if before == *run {
            return Ok(());
        }
        if before.boot != run.boot {
            self.settle_after_reboot(senseless)?;
        } else {
            let namespace = before.namespace & !LEFT;
            if namespace == run.namespace {
                // A process of another namespace died while it was entering.
                self.memory.store(state::NAMESPACE, namespace);
                return Ok(());
            }
            self.leave_namespace(namespace)?;
        }
        self.memory.store(state::BOOT, run.boot[0]);
        self.memory.store(state::BOOT + 8, run.boot[1]);
        self.memory.store(state::NAMESPACE, run.namespace);
        Ok(())
    }

    /// Takes the region from another namespace of the same run, if no process has a lane: it may be alive, and cannot
    /// be checked from here. Until the caller enters its own namespace, the region is marked, so that no process of
    /// either namespace uses the region before it is ready. If the caller dies, the region still says to which
    /// namespace the lanes belong that were taken meanwhile.
    fn leave_namespace(&self, before: u64) -> Result<()> {
        if self.lanes_taken() == 0 {
            // A process of the other namespace may be taking its first lane. It takes the lane and then looks at the
            // namespace; here it is the other way round. So one of the two sees the other.
            self.memory.store(state::NAMESPACE, before | LEFT);
            fence(Ordering::SeqCst);
            if self.lanes_taken() == 0 {
                return Ok(());
            }
        }
        self.memory.store(state::NAMESPACE, before);
        Err(self.namespace_error())
    }

    /// Refuses what only processes of the region's namespace may do: use a lane that was taken just now, or check the
    /// owner of a lane.
    ///
    /// # Errors
    /// [`Error::Namespace`].
    pub(crate) fn require_own_namespace(&self) -> Result<()> {
        if self.is_own_namespace() || self.is_own_namespace_again(true) {
            return Ok(());
        }
        Err(self.namespace_error())
    }

    /// As [`require_own_namespace`](Self::require_own_namespace), but does not wait for a process that enters.
    ///
    /// # Errors
    /// [`Error::Namespace`].
    pub(crate) fn require_own_namespace_now(&self) -> Result<()> {
        if self.is_own_namespace() || self.is_own_namespace_again(false) {
            return Ok(());
        }
        Err(self.namespace_error())
    }

    /// Removes the mark of a process of another namespace that died while it entered. Such a process that lives is
    /// waited for if `waits`. Returns whether the region still belongs to this namespace. Allocates nothing.
    #[cold]
    fn is_own_namespace_again(&self, waits: bool) -> bool {
        let own = self.namespace.load(Ordering::Relaxed);
        if self.memory.load(state::NAMESPACE) != own | LEFT {
            return false;
        }
        let Some(file) = self.open_again() else {
            return false;
        };
        let locked = if waits {
            FileLock::wait(&file, libc::LOCK_EX).ok()
        } else {
            FileLock::try_alone(&file)
        };
        if locked.is_some() && self.memory.load(state::NAMESPACE) == own | LEFT {
            self.memory.store(state::NAMESPACE, own);
        }
        locked.is_some() && self.is_own_namespace()
    }

    /// Whether the region belongs to the namespace that this process entered. A region that is only read has entered
    /// none, and no lane is taken or settled through it.
    pub(crate) fn is_own_namespace(&self) -> bool {
        // A lane that was taken or seen before this must not be one that a process of another namespace has overlooked
        // when it entered.
        fence(Ordering::SeqCst);
        let own = self.namespace.load(Ordering::Relaxed);
        own == NO_NAMESPACE || own == self.memory.load(state::NAMESPACE)
    }

    fn namespace_error(&self) -> Error {
        Error::Namespace {
            path: self.path.clone(),
        }
    }

    /// Settles all lanes, and resets the words that mean nothing in another run of the machine. Locks and process
    /// numbers are such words. They are never written back, so memory that kept its content may hold any value of them.
    fn settle_after_reboot(&self, senseless: Senseless) -> Result<()> {
        let lanes = || (0..self.layout.lane_count).map(Lane);
        for lane in lanes() {
            // No reader exists, so a writer that frees memory need not wait for notes.
            for note in 0..WORDS_IN_LINE as u64 {
                self.clear_word(self.layout.lane(lane.0) + word::NOTES + note * 8);
            }
        }
        for lane in lanes() {
            // The log may be durable although the owner word is not.
            match (self.settle_of_another_run(lane), senseless) {
                (Err(Error::Damaged { .. }), Senseless::Left) => {}
                (settled, _) => settled?,
            }
        }
        let memory = &self.memory;
        let make_even = |at| {
            let sequence = memory.load(at);
            if sequence % 2 == 1 {
                memory.store(at, sequence.wrapping_add(1));
            }
        };
        self.clear_word(state::LOCK);
        make_even(state::SEQUENCE);
        let inodes = memory.load(state::FRESH_INODE).min(self.layout.inode_count);
        for inode in ROOT_INODE..inodes {
            let at = self.layout.inode(inode);
            self.clear_word(at + attribute::LOCK);
            make_even(at + attribute::SEQUENCE);
        }
        // A file's bytes may differ although its sequence number is the same, so the next checkpoint reads all files.
        self.clear_word(state::CHECKPOINT_TOKEN);
        // Not so in another namespace: a process without a lane may have a file open, which the lock of its stub shows.
        for description in 0..self.layout.description_count {
            self.clear_word(self.layout.description(description));
        }
        Ok(())
    }

    /// Most of these words are zero already, so store only where needed.
    fn clear_word(&self, at: u64) {
        if self.memory.load(at) != 0 {
            self.memory.store(at, 0);
        }
    }

    fn run(&self) -> RunOfMachine {
        RunOfMachine {
            boot: [
                self.memory.load(state::BOOT),
                self.memory.load(state::BOOT + 8),
            ],
            namespace: self.memory.load(state::NAMESPACE),
        }
    }

    /// The identity of this process for other processes.
    pub(crate) fn owner(&self) -> Owner {
        Owner::from_word(self.owner.load(Ordering::Relaxed))
    }

    /// In tests: gives this region's process another identity.
    #[cfg(test)]
    pub(crate) fn set_owner(&self, owner: Owner) {
        self.owner.store(owner.as_word(), Ordering::Relaxed);
    }

    /// Updates the owner after a fork: the child is another process.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(crate) fn forked(&self) -> Result<()> {
        // The child may be in another namespace of process numbers: then it is refused a lane.
        let namespace = namespace_of_this()?;
        self.owner
            .store(Owner::current()?.as_word(), Ordering::Relaxed);
        if self.namespace.load(Ordering::Relaxed) != NO_NAMESPACE {
            self.namespace.store(namespace, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The region's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Must be called before this process takes a record lock of the old kind (`F_SETLK`, `lockf`) on a descriptor of
    /// the file. Closing any other descriptor of the file would release that lock. So from then on this process opens
    /// none to check the file's locks. If the file is deleted, another process's sweep frees it.
    pub fn takes_record_lock(&self, node: crate::Node) {
        self.record_locked.add(node.generation);
    }

    /// Whether it was opened for writing as well.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The number of files and directories, with deleted ones that are still open.
    #[must_use]
    pub fn inodes(&self) -> u64 {
        self.memory.load(state::INODES)
    }

    /// The number of deleted files that a process may still have open.
    #[must_use]
    pub fn orphans(&self) -> u64 {
        self.memory.load(state::ORPHANS)
    }

    /// The number of lanes that a process owns, or whose owner died.
    #[must_use]
    pub fn lanes_taken(&self) -> u64 {
        let is_taken = |lane: &u64| self.lane_word(Lane(*lane), word::OWNER) != 0;
        (0..self.layout.lane_count).filter(is_taken).count() as u64
    }

    /// The offsets of all tables.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether it writes cache lines back.
    #[must_use]
    pub fn flush(&self) -> Flush {
        self.memory.flush()
    }

    /// Whether its memory itself keeps its content without power. This is only checked in a region that [writes cache
    /// lines back](Self::flush).
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.memory.is_persistent()
    }

    /// Version of its format, at most [`FORMAT_VERSION`].
    #[must_use]
    pub fn format_version(&self) -> u32 {
        format_version(self.flush())
    }

    /// The kind of its memory.
    #[must_use]
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// Minimum free space for files, in bytes; small files may also find room beside others.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        (self.memory.load(state::POOL_PAGES) + self.empty_pages().count() as u64) * PAGE_BYTES
    }
}

/// The folder of stubs beside a region.
#[must_use]
pub fn stubs_path(region: &Path) -> PathBuf {
    let mut path = region.as_os_str().to_owned();
    path.push(".stubs");
    path.into()
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

/// Makes an error from the kernel's error for an operation on the region's file.
pub(crate) fn system_error(path: &Path, what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::System {
        path: path.to_owned(),
        what,
        source,
    }
}

pub(crate) fn backing(file: &File) -> std::io::Result<Backing> {
    const HUGETLBFS_MAGIC: i64 = 0x958458f6;
    const TMPFS_MAGIC: i64 = 0x01021994;
    // SAFETY: all zeros is a valid value of this plain structure.
    let mut found: libc::statfs64 = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor, and a structure that lives as long as the call.
    if unsafe { libc::fstatfs64(file.as_raw_fd(), &raw mut found) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // The type is signed on some systems and unsigned on others; these numbers are the same in both.
    #[allow(clippy::unnecessary_cast, reason = "the type depends on the system")]
    Ok(match found.f_type as i64 {
        HUGETLBFS_MAGIC => Backing::HugePages,
        TMPFS_MAGIC => Backing::SharedMemory,
        _ => Backing::File,
    })
}

/// One run of a machine, with the namespace that process numbers belong to.
#[derive(PartialEq, Eq)]
struct RunOfMachine {
    boot: [u64; 2],
    namespace: u64,
}

/// The inode of no namespace: of a region that is only read.
const NO_NAMESPACE: u64 = 0;

/// Flag beside the inode of a namespace: a process of another one is entering. The kernel's inodes are smaller.
pub(crate) const LEFT: u64 = 1 << 63;

/// The namespace of this process's number. Allocates nothing: a child may be in a signal handler.
fn namespace_of_this() -> Result<u64> {
    const NAMESPACE: &str = "/proc/self/ns/pid";
    let found = std::fs::metadata(NAMESPACE);
    let found = found.map_err(system_error(Path::new(NAMESPACE), "cannot be read"))?;
    Ok(found.ino())
}

impl RunOfMachine {
    fn current() -> Result<Self> {
        const BOOT: &str = "/proc/sys/kernel/random/boot_id";
        let failed = |path: &'static str| system_error(Path::new(path), "cannot be read");
        let text = std::fs::read_to_string(BOOT).map_err(failed(BOOT))?;
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        let number = u128::from_str_radix(&digits, 16)
            .map_err(|_| failed(BOOT)(std::io::Error::from_raw_os_error(libc::EINVAL)))?;
        Ok(Self {
            boot: [number as u64, (number >> 64) as u64],
            namespace: namespace_of_this()?,
        })
    }
}

pub(crate) const SUPERBLOCK_BYTES: usize = 64;

/// Bytes of the superblock with the words that change.
const SUPERBLOCK_TABLE_BYTES: u64 = 4096;

pub(crate) fn format_version(flush: Flush) -> u32 {
    match flush {
        Flush::None => FORMAT_VERSION_PLAIN,
        Flush::CacheLines => FORMAT_VERSION,
    }
}

/// The part of the superblock that never changes.
pub(crate) fn encode(layout: &Layout, flush: Flush) -> [u8; SUPERBLOCK_BYTES] {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&format_version(flush).to_le_bytes());
    bytes[16..24].copy_from_slice(&layout.capacity_bytes.to_le_bytes());
    bytes[24..32].copy_from_slice(&(layout.inode_count - 1).to_le_bytes());
    bytes[32..36].copy_from_slice(&(layout.lane_count as u32).to_le_bytes());
    bytes[36..40].copy_from_slice(&(layout.slot_count as u32).to_le_bytes());
    bytes[40..44].copy_from_slice(&flush.as_number().to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

pub(crate) fn decode(bytes: &[u8; SUPERBLOCK_BYTES], path: &Path) -> Result<(Layout, Flush)> {
    let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|place| bytes[at + place]));
    if &bytes[..8] != MAGIC {
        return Err(Error::NotARegion {
            path: path.to_owned(),
        });
    }
    if !(FORMAT_VERSION_PLAIN..=FORMAT_VERSION).contains(&half(8)) {
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
    made_of(bytes).ok_or(damaged)
}

/// The numbers of a superblock, unchecked.
pub(crate) fn options_of(bytes: &[u8; SUPERBLOCK_BYTES]) -> RegionOptions {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|place| bytes[at + place]));
    RegionOptions {
        capacity_bytes: word(16),
        files_max: Some(word(24)),
        lanes: word(32) as u32,
    }
}

/// The layout and flush mode that a superblock's numbers give, if they are valid for a region.
pub(crate) fn made_of(bytes: &[u8; SUPERBLOCK_BYTES]) -> Option<(Layout, Flush)> {
    let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|place| bytes[at + place]));
    let flush = match half(8) {
        FORMAT_VERSION_PLAIN => Flush::None,
        _ => Flush::from_number(half(40)).filter(|flush| *flush != Flush::None)?,
    };
    let slots = u64::from(half(36));
    let layout = Layout::with_slots(&options_of(bytes), slots).ok()?;
    (layout.slot_count == slots).then_some((layout, flush))
}
