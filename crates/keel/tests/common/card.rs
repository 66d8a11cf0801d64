//! A card: an image file behind FUSE, with errors on demand. The threads that answer for it belong to the test.

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, WriteFlags,
};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, UNIX_EPOCH};

/// The name of the image in the folder of the card.
pub const IMAGE: &str = "store.img";

const IMAGE_INODE: INodeNo = INodeNo(2);

/// Requests that fail with EIO. A write that fails has reached the card with its first half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    None,
    Writes,
    Flushes,
    Reads,
}

/// A mounted card; unmounted when this is dropped.
pub struct Card {
    folder: PathBuf,
    fault: Arc<AtomicU8>,
}

impl Card {
    /// Shows the content of a file as [`IMAGE`] in an empty folder.
    pub fn mount(folder: &Path, content: &Path) -> Self {
        let fault = Arc::new(AtomicU8::new(Fault::None as u8));
        let shown = Shown {
            content: File::options()
                .read(true)
                .write(true)
                .open(content)
                .unwrap(),
            fault: Arc::clone(&fault),
        };
        let session = fuser::Session::new(shown, folder, &Config::default()).unwrap();
        // It ends with the mount.
        std::mem::forget(session.spawn().unwrap());
        Self {
            folder: folder.to_owned(),
            fault,
        }
    }

    pub fn set(&self, fault: Fault) {
        self.fault.store(fault as u8, Ordering::SeqCst);
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        self.set(Fault::None);
        Command::new("umount")
            .arg("-l")
            .arg(&self.folder)
            .status()
            .ok();
    }
}

struct Shown {
    content: File,
    fault: Arc<AtomicU8>,
}

impl Shown {
    fn is_in(&self, fault: Fault) -> bool {
        self.fault.load(Ordering::SeqCst) == fault as u8
    }

    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let (kind, size) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0),
            IMAGE_INODE => (FileType::RegularFile, self.content.metadata().ok()?.len()),
            _ => return None,
        };
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

/// Requests that are not here get ENOSYS, which the kernel handles itself.
impl Filesystem for Shown {
    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let is_image = parent == INodeNo::ROOT && name == IMAGE;
        match self.attributes(IMAGE_INODE).filter(|_| is_image) {
            Some(attributes) => reply.entry(&Duration::ZERO, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&Duration::ZERO, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // The kernel keeps no content, so each request of the node comes here.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; size as usize];
        let mut count = 0;
        while count < bytes.len() {
            match self
                .content
                .read_at(&mut bytes[count..], offset + count as u64)
            {
                Ok(0) => break,
                Ok(read) => count += read,
                Err(_) => return reply.error(Errno::EIO),
            }
        }
        if self.is_in(Fault::Reads) {
            return reply.error(Errno::EIO);
        }
        reply.data(&bytes[..count]);
    }

    fn write(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let fails = self.is_in(Fault::Writes);
        let reached = if fails { data.len() / 2 } else { data.len() };
        let written = self.content.write_all_at(&data[..reached], offset);
        if fails || written.is_err() {
            return reply.error(Errno::EIO);
        }
        reply.written(data.len() as u32);
    }

    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        if self.is_in(Fault::Flushes) {
            return reply.error(Errno::EIO);
        }
        reply.ok();
    }
}
