//! Receives the requests of the kernel, passes them to [`Files`] and sends the replies.
//!
//! The library answers links with EPERM, and all other requests that are not implemented here with ENOSYS. The kernel
//! reacts to ENOSYS by itself: extended attributes and `fallocate` fail with EOPNOTSUPP; locks and `SEEK_DATA` work as
//! in any file system.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base::block::BlockDevice;
use fuse::answer::{self, NodeReply, Result};
use fuse::{Change, Notice, connection};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};

use crate::files::{Durability, Files};
use crate::limits::REQUEST_BYTES_MAX;
use crate::nodes::ROOT;
use crate::shared::{Shared, Worker};

/// How long the kernel may cache replies. Only this kernel changes the store while it is mounted: the store is locked,
/// and the kernel itself invalidates what its own calls change.
const CACHE_TIME: Duration = Duration::from_secs(3600);

/// Open files need no handle number: the inode identifies everything.
const NO_HANDLE: u64 = 0;

/// The kernel's cached data is still valid, for the reason given at `CACHE_TIME`.
const OPENED: FopenFlags = FopenFlags::FOPEN_KEEP_CACHE;

pub(crate) struct Adapter<D: BlockDevice> {
    pub(crate) _notice: Notice,
    pub(crate) files: Arc<Shared<D>>,
    pub(crate) worker: Worker,
}

impl<D: BlockDevice> Adapter<D> {
    fn with<T>(&self, call: impl FnOnce(&mut Files<D>) -> Result<T>) -> Result<T> {
        self.files.with(call)
    }

    /// Returns whether more zeros are missing before byte `end` than other calls should wait for.
    fn is_far(&self, inode: INodeNo, end: u64) -> bool {
        self.with(|files| files.is_far(inode.0, end))
            .unwrap_or(false)
    }

    fn listed(&self, listing: u64, offset: u64, reply: &mut ReplyDirectory) -> Result<()> {
        self.with(|files| {
            let names = files.directory(listing, offset)?;
            for position in offset.. {
                // An entry's offset is the position of the entry after it.
                let after = position + 1;
                let is_full = match position {
                    0 => reply.add(INodeNo(ROOT), after, FileType::Directory, "."),
                    1 => reply.add(INodeNo(ROOT), after, FileType::Directory, ".."),
                    _ => match names.get(usize::try_from(position - 2).unwrap_or(usize::MAX)) {
                        Some((name, inode)) => {
                            reply.add(INodeNo(inode), after, FileType::RegularFile, name)
                        }
                        // Report the error in a reply of its own: together with entries it would discard them.
                        None if position == offset => return names.end(),
                        None => return Ok(()),
                    },
                };
                if is_full {
                    break;
                }
            }
            Ok(())
        })
    }
}

/// Inode numbers are never reused, so all have one generation.
fn node(attributes: FileAttr) -> NodeReply {
    NodeReply {
        attributes,
        generation: 0,
    }
}

/// `O_SYNC` contains the bit of `O_DSYNC`. The kernel sets it for the write, whether it was given at open, with
/// `fcntl` or for this write alone.
fn durability(flags: OpenFlags) -> Durability {
    if flags.0 & libc::O_DSYNC != 0 {
        Durability::AtOnce
    } else {
        Durability::AtSync
    }
}

impl<D: BlockDevice + Send + 'static> Filesystem for Adapter<D> {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // The write-back cache is not requested: with it the kernel would acknowledge writes that it has not passed on.
        connection::set_max_write(config, REQUEST_BYTES_MAX);
        connection::set_max_readahead(config, REQUEST_BYTES_MAX);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.with(|files| files.lookup(parent.0, name));
        answer::entry(reply, CACHE_TIME, found.map(node));
    }

    fn forget(&self, _request: &Request, inode: INodeNo, count: u64) {
        // This request has no reply.
        self.with(|files| {
            files.forget(inode.0, count);
            Ok(())
        })
        .ok();
    }

    fn getattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let attributes = self.with(|files| files.attributes(inode.0));
        answer::attributes(reply, CACHE_TIME, attributes);
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
        let call = move |files: &mut Files<D>| files.set_attributes(inode.0, &change);
        if let Some(length) = size.filter(|length| self.is_far(inode, *length)) {
            let files = Arc::clone(&self.files);
            self.worker.run(move || {
                answer::attributes(reply, CACHE_TIME, files.grown(inode.0, length, call));
            });
            return;
        }
        answer::attributes(reply, CACHE_TIME, self.with(call));
    }

    fn mknod(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _device: u32,
        reply: ReplyEntry,
    ) {
        let result = match mode & libc::S_IFMT {
            libc::S_IFREG | 0 => self.with(|files| files.create(parent.0, name, false)),
            _ => Err(Errno::EPERM),
        };
        answer::entry(reply, CACHE_TIME, result.map(node));
    }

    fn mkdir(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer::done(reply, self.with(|files| files.unlink(parent.0, name)));
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
        let is_replacing = !flags.contains(RenameFlags::RENAME_NOREPLACE);
        if !(flags - RenameFlags::RENAME_NOREPLACE).is_empty() {
            reply.error(Errno::EINVAL);
            return;
        }
        let parents = [parent.0, new_parent.0];
        answer::done(
            reply,
            self.with(|files| files.rename(parents, name, new_name, is_replacing)),
        );
    }

    fn create(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let made = self.with(|files| files.create(parent.0, name, true));
        let opened = made.map(|attributes| (node(attributes), NO_HANDLE));
        answer::created(reply, CACHE_TIME, OPENED, opened);
    }

    fn open(&self, _request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.with(|files| files.open(inode.0));
        answer::opened(reply, OPENED, opened.map(|()| NO_HANDLE));
    }

    fn read(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // The size is at most what `init` allowed. Never return less than requested: the kernel would take that for the
        // end of the file.
        let mut buffer = vec![0; size as usize];
        let read = self.with(|files| files.read(inode.0, offset, &mut buffer));
        answer::data(reply, read.map(|count| &buffer[..count]));
    }

    fn write(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let durability = durability(flags);
        if self.is_far(inode, offset) {
            let (files, data) = (Arc::clone(&self.files), data.to_vec());
            self.worker.run(move || {
                let call = |files: &mut Files<D>| files.write(inode.0, offset, &data, durability);
                answer::written(reply, files.grown(inode.0, offset, call));
            });
            return;
        }
        let written = self.with(|files| files.write(inode.0, offset, data, durability));
        answer::written(reply, written);
    }

    fn release(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        answer::done(reply, self.with(|files| files.release(inode.0)));
    }

    fn fsync(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        answer::done(reply, self.with(Files::sync));
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        answer::done(reply, self.with(Files::sync));
    }

    fn opendir(&self, _request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.with(|files| files.open_directory(inode.0));
        answer::opened(reply, FopenFlags::empty(), opened);
    }

    fn readdir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.listed(handle.0, offset, &mut reply);
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
        let result = self.with(|files| {
            files.close_directory(handle.0);
            Ok(())
        });
        answer::done(reply, result);
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        answer::space(reply, self.with(|files| Ok(files.space())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_durable_at_once_with_either_flag() {
        for (flags, expected) in [
            (libc::O_WRONLY, Durability::AtSync),
            (
                libc::O_RDWR | libc::O_APPEND | libc::O_DIRECT,
                Durability::AtSync,
            ),
            (libc::O_RDWR | libc::O_DSYNC, Durability::AtOnce),
            (libc::O_WRONLY | libc::O_SYNC, Durability::AtOnce),
        ] {
            assert_eq!(durability(OpenFlags(flags)), expected, "{flags:o}");
        }
    }
}
