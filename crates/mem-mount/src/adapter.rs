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

use fuse::answer::Result;
use fuse::{Notice, answer};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use mem::Rename;

use crate::locks::{Waiters, Waiting, Wanted};
use crate::view::{Change, Told, View, Write};

/// Maximum size of one read or write request of the kernel, in bytes.
pub const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// The time that the kernel may cache attributes and names. Preloaded programs change everything at any time.
const BELIEVED: Duration = Duration::ZERO;

/// The kernel caches no file data, except what is mapped; several programs may write to a file at the same time.
const OPENED: FopenFlags =
    FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

pub(crate) struct Adapter {
    pub(crate) _notice: Notice,
    pub(crate) view: Arc<View>,
    /// `None` if the region is shown read-only: then the kernel handles locks itself.
    pub(crate) waiters: Option<Waiters>,
}

fn answer_entry(reply: ReplyEntry, result: Result<Told>) {
    match result {
        Ok(told) => reply.entry(&BELIEVED, &told.attributes, Generation(told.generation)),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // A refused value is answered with the nearest possible one. The write-back cache is not requested: with it,
        // other programs would not see a program's writes.
        if let Err(nearest) = config.set_max_write(REQUEST_BYTES_MAX) {
            config.set_max_write(nearest).ok();
        }
        for wanted in [
            // Without it, before Linux 6.6, memory maps of files are private.
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            InitFlags::FUSE_PARALLEL_DIROPS,
        ] {
            config.add_capabilities(wanted).ok();
        }
        if self.waiters.is_some() {
            config.add_capabilities(InitFlags::FUSE_POSIX_LOCKS).ok();
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        answer_entry(reply, self.view.look_up(parent, name));
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
        match self.view.attributes(inode) {
            Ok(attributes) => reply.attr(&BELIEVED, &attributes),
            Err(error) => reply.error(error),
        }
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
        let change = Change {
            mode,
            user,
            group,
            size,
            accessed,
            modified,
        };
        match self.view.set_attributes(inode, &change) {
            Ok(attributes) => reply.attr(&BELIEVED, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        match self.view.read_link(inode) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(error),
        }
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
        answer_entry(reply, made);
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
        answer_entry(reply, self.view.make(request, parent, name, mode, &[]));
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
        answer_entry(reply, self.view.make(request, parent, name, mode, target));
    }

    fn link(
        &self,
        _request: &Request,
        inode: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        answer_entry(reply, self.view.link(inode, parent, name));
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
        match self.view.create(request, parent, name, mode, flags) {
            Ok((told, handle)) => reply.created(
                &BELIEVED,
                &told.attributes,
                Generation(told.generation),
                FileHandle(handle),
                OPENED,
            ),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.view.open(inode, flags.0) {
            Ok(handle) => reply.opened(FileHandle(handle), OPENED),
            Err(error) => reply.error(error),
        }
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
        self.view
            .read(handle.0, offset, size as usize, |read| match read {
                Ok(bytes) => reply.data(bytes),
                Err(error) => reply.error(error),
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
        match self.view.open_directory(inode) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
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
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
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
        let space = self.view.space();
        reply.statfs(
            space.blocks,
            space.blocks_free,
            space.blocks_free,
            space.files,
            space.files_free,
            space.block_bytes,
            mem::NAME_BYTES_MAX as u32,
            space.block_bytes,
        );
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
        let wanted = Wanted {
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
        let mut wanted = Wanted {
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
