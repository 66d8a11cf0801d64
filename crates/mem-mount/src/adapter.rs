//! Passes the kernel's requests to [`View`] and replies to them.
//!
//! Requests that are not here get ENOSYS, which the kernel handles itself: EOPNOTSUPP for extended attributes, and
//! `flock` as for any file system of this machine. The kernel checks `access` by the permission bits. Listings with
//! attributes are not offered, because the kernel would have to ask for each attribute again.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuse::{Change, Notice, answer, connection};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use mem::Rename;

use crate::locks::{LockRequest, Waiters, Waiting};
use crate::view::{View, Write};

/// Maximum size of one read or write request of the kernel, in bytes.
pub const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// The time that the kernel may cache attributes and names. Preloaded programs change everything at any time.
const CACHE_TIME: Duration = Duration::ZERO;

/// The kernel caches no file data, except what is mapped; several programs may write to a file at the same time.
const OPENED: FopenFlags =
    FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

pub(crate) struct Adapter {
    pub(crate) _notice: Notice,
    pub(crate) view: Arc<View>,
    /// `None` if the region is shown read-only: then the kernel handles locks itself.
    pub(crate) waiters: Option<Waiters>,
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // The write-back cache is not requested: with it, other programs would not see a program's writes.
        connection::set_max_write(config, REQUEST_BYTES_MAX);
        let wanted = [
            // Without it, before Linux 6.6, memory maps of files are private.
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            InitFlags::FUSE_PARALLEL_DIROPS,
        ];
        connection::add_capabilities(config, &wanted);
        if self.waiters.is_some() {
            connection::add_capabilities(config, &[InitFlags::FUSE_POSIX_LOCKS]);
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        answer::entry(reply, CACHE_TIME, self.view.look_up(parent, name));
    }

    fn forget(&self, _request: &Request, inode: INodeNo, count: u64) {
        self.view.nodes.forget(inode.0, count);
    }

    fn getattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        answer::attributes(reply, CACHE_TIME, self.view.attributes(inode));
    }

    fn setattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _changed_macos: Option<SystemTime>,
        _backup: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = Change::new(mode, user, group, size, accessed, modified);
        answer::attributes(reply, CACHE_TIME, self.view.set_attributes(inode, &change));
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        answer::data(reply, self.view.read_link(inode));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _device: u32,
        reply: ReplyEntry,
    ) {
        let made = match mode & libc::S_IFMT {
            libc::S_IFREG | 0 => self
                .view
                .make(request, parent, name, mode | libc::S_IFREG, &[]),
            // FIFOs and sockets are kernel objects, and preloaded programs would find no kernel behind them.
            _ => Err(Errno::EPERM),
        };
        answer::entry(reply, CACHE_TIME, made);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let mode = mode & 0o7777 | libc::S_IFDIR;
        let made = self.view.make(request, parent, name, mode, &[]);
        answer::entry(reply, CACHE_TIME, made);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let target = target.as_os_str().as_bytes();
        let mode = libc::S_IFLNK | 0o777;
        let made = self.view.make(request, parent, name, mode, target);
        answer::entry(reply, CACHE_TIME, made);
    }

    fn link(
        &self,
        _request: &Request,
        inode: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        answer::entry(reply, CACHE_TIME, self.view.link(inode, parent, name));
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer::done(reply, self.view.unlink(parent, name));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer::done(reply, self.view.remove_directory(parent, name));
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let how = if flags.is_empty() {
            Rename::Replace
        } else if flags == RenameFlags::RENAME_NOREPLACE {
            Rename::Keep
        } else if flags == RenameFlags::RENAME_EXCHANGE {
            Rename::Exchange
        } else {
            reply.error(Errno::EINVAL);
            return;
        };
        let renamed = self
            .view
            .rename((parent, name), (new_parent, new_name), how);
        answer::done(reply, renamed);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let created = self.view.create(request, parent, name, mode, flags);
        answer::created(reply, CACHE_TIME, OPENED, created);
    }

    fn open(&self, _request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        answer::opened(reply, OPENED, self.view.open(inode, flags.0));
    }

    fn read(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // At most the size that `init` set.
        self.view.read(handle.0, offset, size as usize, |read| {
            answer::data(reply, read);
        });
    }

    fn write(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let how = Write {
            offset,
            flags: flags.0,
            is_from_cache: write_flags.contains(WriteFlags::FUSE_WRITE_CACHE),
            clears_set_id: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        answer::written(reply, self.view.write(handle.0, &how, data));
    }

    fn flush(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.view.locks.flush(inode.0, owner.0);
        reply.ok();
    }

    fn release(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.view.release(handle.0);
        reply.ok();
    }

    // A write is visible to all programs at once; memory has no further durability.
    fn fsync(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn opendir(&self, _request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        answer::opened(reply, FopenFlags::empty(), self.view.open_directory(inode));
    }

    fn readdir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self
            .view
            .list(handle.0, offset, |inode, position, kind, name| {
                reply.add(INodeNo(inode), position, kind, name)
            });
        answer::listed(reply, listed);
    }

    fn releasedir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.view.close_directory(handle.0);
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        answer::space(reply, Ok(self.view.space()));
    }

    fn getlk(
        &self,
        _request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        process: u32,
        reply: ReplyLock,
    ) {
        let wanted = LockRequest {
            inode: inode.0,
            owner: owner.0,
            handle: handle.0,
            range: (start, end),
            kind,
            process,
        };
        let found = self.view.file(handle.0).and_then(|file| {
            let description = file.description.as_ref().ok_or(Errno::EBADF)?;
            self.view.locks.get(wanted, description.stub.as_fd())
        });
        match found {
            Ok(Some(found)) => {
                reply.locked(found.range.0, found.range.1, found.kind, found.process);
            }
            Ok(None) => reply.locked(start, end, libc::F_UNLCK, 0),
            Err(error) => reply.error(error),
        }
    }

    fn setlk(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        process: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let mut wanted = LockRequest {
            inode: inode.0,
            owner: owner.0,
            handle: handle.0,
            range: (start, end),
            kind,
            process,
        };
        let file = match self.view.file(handle.0) {
            Ok(file) => file,
            Err(error) => return reply.error(error),
        };
        let Some(description) = &file.description else {
            return reply.error(Errno::EBADF);
        };
        let set = self.view.locks.set(wanted, description.stub.as_fd());
        match (set, &self.waiters) {
            (Err(error), Some(waiters)) if sleep && error.code() == libc::EAGAIN => {
                // The thread that waits, because its signals count.
                wanted.process = request.pid();
                waiters.add(Waiting {
                    wanted,
                    file,
                    reply,
                });
            }
            (set, _) => answer::done(reply, set),
        }
    }

    fn fallocate(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        answer::done(reply, self.view.allocate(handle.0, (offset, length), mode));
    }

    fn lseek(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        match self.view.seek(handle.0, offset, whence) {
            Ok(found) => reply.offset(found),
            Err(error) => reply.error(error),
        }
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        _inode_in: INodeNo,
        handle_in: FileHandle,
        offset_in: u64,
        _inode_out: INodeNo,
        handle_out: FileHandle,
        offset_out: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let copied = self
            .view
            .copy((handle_in.0, offset_in), (handle_out.0, offset_out), length);
        answer::written(reply, copied);
    }
}
