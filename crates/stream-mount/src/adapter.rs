//! The requests of the kernel and their replies.
//!
//! Reading a directory, a link or attributes needs only the manifest. The thread that receives a read answers it if the
//! blocks are in memory, and otherwise hands it to a thread that may wait. Opening is answered with ENOSYS; the kernel
//! then opens files and directories by itself and keeps what it has read. The kernel refuses all changes, because the
//! mount is read-only.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use fuse::{Notice, answer, connection};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyXattr, Request,
};
use stream::manifest::Kind;
use stream::{BLOCK_BYTES, BlockAt, FileId, Token};

use crate::loaders::Loaders;
use crate::pages::PageCache;
use crate::readers::Readers;
use crate::source::Source;
use crate::tasks::Tasks;
use crate::view::{View, file_of, inode_of, kind_of};

/// The extended attribute of the mount's root with the counters, as JSON.
pub const COUNTERS_NAME: &str = "user.keel.stream";

/// The approximate maximum size of the counters, in bytes: the kernel accepts 64 KiB for an attribute.
const COUNTERS_BYTES_MAX: usize = 63 << 10;

/// The maximum size of one read request of the kernel, in bytes: a segment.
const REQUEST_BYTES_MAX: u32 = stream::SEGMENT_BLOCKS * BLOCK_BYTES as u32;

/// The maximum number of concurrent background requests, which includes page faults. With the default of `fuser`, 16,
/// as many waiting reads would block all others.
const BACKGROUND_MAX: u16 = 4096;

/// How long the kernel may cache replies: a version never changes. The kernel reduces a longer time.
const CACHE_TIME: Duration = Duration::from_secs(1 << 30);

/// The maximum length of a name, in bytes.
const NAME_BYTES_MAX: u32 = 255;

/// Flag of an open file that the kernel passes with each read: it was opened for execution.
const OPENED_TO_EXECUTE: i32 = 0x20;

/// The generation of each inode: inode numbers are never reused.
const GENERATION: Generation = Generation(0);

pub(crate) struct Adapter {
    pub(crate) _notice: Notice,
    pub(crate) view: Arc<View>,
    pub(crate) source: Arc<dyn Source>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) readers: Readers,
    pub(crate) loaders: Arc<Loaders>,
    pub(crate) pages: Arc<PageCache>,
    pub(crate) read_ahead_kib: u32,
    /// The number of read requests of the kernel, each for one block or several adjacent ones.
    pub(crate) fuse_reads: AtomicU64,
    /// Whether the kernel opens files by itself after an ENOSYS reply.
    pub(crate) may_leave_files: bool,
    /// The same for directories.
    pub(crate) may_leave_directories: bool,
}

impl Drop for Adapter {
    fn drop(&mut self) {
        // The notifier keeps the connection open. No thread answers any more, so no program should wait.
        self.pages.close();
    }
}

/// The reply for a name that does not exist, which the kernel caches.
fn nothing() -> FileAttr {
    let time = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// The range of a read: its first and last block, and which bytes of them.
#[derive(Clone, Copy)]
struct ReadRange {
    file: FileId,
    first: u32,
    last: u32,
    /// The offset of the read in the first block, in bytes.
    skip: usize,
    bytes: usize,
    /// The file's length, in bytes.
    size_bytes: u64,
}

impl ReadRange {
    /// Returns the range; `None` if it begins at or behind the end of the file.
    fn of(file: FileId, size_bytes: u64, offset: u64, bytes: u32) -> Option<Self> {
        let end = size_bytes.min(offset.saturating_add(bytes.into()));
        let block = BLOCK_BYTES as u64;
        (offset < end).then(|| Self {
            file,
            // The number of blocks of a file fits into a u32.
            first: (offset / block) as u32,
            last: ((end - 1) / block) as u32,
            skip: (offset % block) as usize,
            bytes: (end - offset) as usize,
            size_bytes,
        })
    }

    fn blocks(&self) -> impl Iterator<Item = BlockAt> + use<> {
        let file = self.file;
        (self.first..=self.last).map(move |index| BlockAt { file, index })
    }

    /// Replies with the requested part of these blocks.
    fn answer(&self, blocks: &[Arc<[u8]>], reply: ReplyData) {
        let is_whole = |(index, block): (u32, &Arc<[u8]>)| {
            block.len() == stream::block::block_bytes(self.size_bytes, index)
        };
        // The kernel would fill missing bytes with zeros.
        if !(self.first..=self.last).zip(blocks).all(is_whole) {
            return reply.error(Errno::EIO);
        }
        let part = self.skip..self.skip + self.bytes;
        match blocks {
            [block] => reply.data(&block[part]),
            _ => reply.data(&blocks.concat()[part]),
        }
    }
}

/// Waits for the blocks, and replies. All blocks have one deadline, counted from `since`. If the read includes the
/// beginning of the file, passes that to `look`.
fn read(
    source: &dyn Source,
    token: Option<Token>,
    wanted: &ReadRange,
    since: Instant,
    look: impl FnOnce(&[u8]),
    reply: ReplyData,
) {
    if wanted.first < wanted.last {
        source.want(token, &wanted.blocks().collect::<Vec<_>>());
    }
    let blocks: Result<Vec<_>, _> = wanted
        .blocks()
        .map(|block| source.read(token, block, since))
        .collect();
    match blocks {
        Ok(blocks) => {
            if let (0, Some(block)) = (wanted.first, blocks.first()) {
                look(block);
            }
            wanted.answer(&blocks, reply);
        }
        Err(_) => reply.error(Errno::EIO),
    }
}

impl Adapter {
    fn found(&self, file: Option<FileId>) -> Option<FileAttr> {
        self.view.attributes(file?)
    }

    /// Lists the entries of a directory from a position on: `.`, `..`, names. Passes each with the position after it.
    fn list(
        &self,
        inode: INodeNo,
        offset: u64,
        mut add: impl FnMut(FileId, u64, &OsStr) -> bool,
    ) -> Result<(), Errno> {
        let directory = file_of(inode.0).ok_or(Errno::ENOENT)?;
        let node = self.view.node(directory).ok_or(Errno::ENOENT)?;
        if !matches!(node.kind, Kind::Directory) {
            return Err(Errno::ENOTDIR);
        }
        let parent = self.view.parent(directory);
        let dots = [(directory, "."), (parent, "..")].map(|(file, name)| (file, OsStr::new(name)));
        for (place, (file, name)) in dots.into_iter().enumerate().skip(offset.min(2) as usize) {
            if add(file, place as u64 + 1, name) {
                return Ok(());
            }
        }
        let from = offset.saturating_sub(2) as usize;
        let names = self
            .view
            .entries(directory)
            .skip_while(|(place, _)| *place < from);
        for (place, entry) in names {
            if add(entry.node, place as u64 + 3, OsStr::from_bytes(&entry.name)) {
                break;
            }
        }
        Ok(())
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Less than a page means no read-ahead, and the library refuses 0.
        let read_ahead_bytes = self.read_ahead_kib.saturating_mul(1024).max(1);
        connection::set_max_readahead(config, read_ahead_bytes);
        connection::set_max_write(config, REQUEST_BYTES_MAX);
        config.set_max_background(BACKGROUND_MAX).ok();
        config.set_congestion_threshold(BACKGROUND_MAX).ok();
        let offered = config.capabilities();
        self.may_leave_files = offered.contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        self.may_leave_directories = offered.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        let wanted = [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
        ];
        connection::add_capabilities(config, &wanted);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name.len() > NAME_BYTES_MAX as usize {
            return reply.error(Errno::ENAMETOOLONG);
        }
        let found =
            file_of(parent.0).and_then(|directory| self.view.look_up(directory, name.as_bytes()));
        let attributes = self.found(found).unwrap_or_else(nothing);
        reply.entry(&CACHE_TIME, &attributes, GENERATION);
    }

    fn getattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let found = self.found(file_of(inode.0)).ok_or(Errno::ENOENT);
        answer::attributes(reply, CACHE_TIME, found);
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        match file_of(inode.0).and_then(|file| self.view.node(file)) {
            Some(node) => match &node.kind {
                Kind::Link { target } => reply.data(target),
                _ => reply.error(Errno::EINVAL),
            },
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.may_leave_files {
            return reply.error(Errno::ENOSYS);
        }
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn opendir(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.may_leave_directories {
            return reply.error(Errno::ENOSYS);
        }
        let keeps = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR;
        reply.opened(FileHandle(0), keeps);
    }

    fn read(
        &self,
        request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let file = file_of(inode.0).and_then(|file| Some((file, self.view.size_of(file)?)));
        let Some((file, size_bytes)) = file else {
            return reply.error(Errno::EINVAL);
        };
        if size > REQUEST_BYTES_MAX {
            // The request exceeds the negotiated size. A shorter reply is not allowed: it would mean the end of the
            // file.
            return reply.error(Errno::EINVAL);
        }
        let Some(wanted) = ReadRange::of(file, size_bytes, offset, size) else {
            return reply.data(&[]);
        };
        self.fuse_reads.fetch_add(1, Ordering::Relaxed);
        // Taken here: the request may wait for a reader's thread. This thread itself never waits.
        let since = Instant::now();
        let is_executed = flags.0 & OPENED_TO_EXECUTE != 0;
        let thread = request.pid();
        let known = self.tasks.known(thread, is_executed);
        let only = wanted
            .blocks()
            .next()
            .filter(|_| wanted.first == wanted.last);
        if let (Some(token), Some(block)) = (known, only)
            && let Some(bytes) = self.source.read_now(token, block)
        {
            if wanted.first == 0 {
                self.loaders.look(&self.view, file, &bytes);
            }
            return wanted.answer(&[bytes], reply);
        }
        let (source, tasks) = (Arc::clone(&self.source), Arc::clone(&self.tasks));
        let (loaders, view) = (Arc::clone(&self.loaders), Arc::clone(&self.view));
        // If the job is dropped, its reply becomes EIO.
        self.readers.give(move || {
            let token = known.unwrap_or_else(|| tasks.find(thread, file, is_executed));
            let look = |beginning: &[u8]| loaders.look(&view, file, beginning);
            read(source.as_ref(), token, &wanted, since, look, reply);
        });
    }

    fn readdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.list(inode, offset, |file, behind, name| {
            let kind = self.view.node(file).map_or(FileType::RegularFile, kind_of);
            reply.add(INodeNo(inode_of(file)), behind, kind, name)
        });
        answer::listed(reply, listed);
    }

    fn readdirplus(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = self.list(inode, offset, |file, behind, name| {
            let attributes = self.found(Some(file)).unwrap_or_else(nothing);
            let inode = INodeNo(inode_of(file));
            reply.add(inode, behind, name, &CACHE_TIME, &attributes, GENERATION)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        let (size_bytes, nodes) = self.view.size();
        let blocks = size_bytes.div_ceil(BLOCK_BYTES as u64);
        let block = BLOCK_BYTES as u32;
        reply.statfs(blocks, 0, 0, nodes, 0, block, NAME_BYTES_MAX, block);
    }

    fn getxattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        if inode != INodeNo::ROOT || name != COUNTERS_NAME {
            return reply.error(Errno::ENODATA);
        }
        let counters = self.source.counters();
        let room = COUNTERS_BYTES_MAX.saturating_sub(counters.len());
        let own = format!(
            "{{\"fuse_reads\":{},\"loaders\":{},",
            self.fuse_reads.load(Ordering::Relaxed),
            self.loaders.told(&self.view, room)
        );
        let counters = counters.replacen('{', &own, 1);
        answer_attribute(reply, counters.as_bytes(), size);
    }

    fn listxattr(&self, _request: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        let names = match inode {
            INodeNo::ROOT => [COUNTERS_NAME.as_bytes(), b"\0"].concat(),
            _ => Vec::new(),
        };
        answer_attribute(reply, &names, size);
    }

    // Nothing is written, so closing a file needs no action. After ENOSYS the kernel does not ask again.
    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }
}

fn answer_attribute(reply: ReplyXattr, value: &[u8], size: u32) {
    match (size as usize, value.len()) {
        (0, length) => reply.size(length as u32),
        (room, length) if room < length => reply.error(Errno::ERANGE),
        _ => reply.data(value),
    }
}
