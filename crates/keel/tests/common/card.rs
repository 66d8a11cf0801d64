//! A card: an image file behind FUSE, with errors on demand. A flush that fails takes back what was written since the
//! last one. The threads that answer for the card belong to the test.

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, WriteFlags,
};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
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

/// What a card and its test share.
#[derive(Default)]
struct Switch {
    fault: AtomicU8,
    /// Requests that have failed by each fault.
    failed: [AtomicU64; 4],
    taken_back: AtomicU64,
}

impl Switch {
    /// Returns whether a request fails now by this fault, and counts it.
    fn strikes(&self, fault: Fault) -> bool {
        let strikes = self.fault.load(Ordering::SeqCst) == fault as u8;
        self.failed[fault as usize].fetch_add(u64::from(strikes), Ordering::SeqCst);
        strikes
    }
}

/// A mounted card; unmounted when this is dropped.
pub struct Card {
    folder: PathBuf,
    switch: Arc<Switch>,
}

impl Card {
    /// Shows the content of a file as [`IMAGE`] in an empty folder.
    pub fn mount(folder: &Path, content: &Path) -> Self {
        let switch = Arc::new(Switch::default());
        let shown = Shown {
            content: File::options()
                .read(true)
                .write(true)
                .open(content)
                .unwrap(),
            switch: Arc::clone(&switch),
            unflushed: Mutex::new(Vec::new()),
        };
        let session = fuser::Session::new(shown, folder, &Config::default()).unwrap();
        // It ends with the mount.
        std::mem::forget(session.spawn().unwrap());
        Self {
            folder: folder.to_owned(),
            switch,
        }
    }

    pub fn set(&self, fault: Fault) {
        self.switch.fault.store(fault as u8, Ordering::SeqCst);
    }

    /// Returns how many requests have failed by this fault.
    pub fn failed(&self, fault: Fault) -> u64 {
        self.switch.failed[fault as usize].load(Ordering::SeqCst)
    }

    /// Returns how many writes were taken back by flushes that failed.
    pub fn taken_back(&self) -> u64 {
        self.switch.taken_back.load(Ordering::SeqCst)
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
    switch: Arc<Switch>,
    /// Offsets and old bytes of what was written since the last flush.
    unflushed: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl Shown {
    /// Returns this number of bytes; at the end of the content, fewer.
    fn get(&self, count: usize, offset: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        let mut known = 0;
        while known < count {
            match self
                .content
                .read_at(&mut bytes[known..], offset + known as u64)?
            {
                0 => break,
                read => known += read,
            }
        }
        bytes.truncate(known);
        Ok(bytes)
    }

    /// Writes bytes, and keeps the old ones until the next flush.
    fn put(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut unflushed = self.unflushed.lock().unwrap();
        unflushed.push((offset, self.get(bytes.len(), offset)?));
        self.content.write_all_at(bytes, offset)
    }

    /// Flushes what was written, or takes all of it back: the newest write first.
    fn settle(&self) -> io::Result<()> {
        let mut unflushed = self.unflushed.lock().unwrap();
        if !self.switch.strikes(Fault::Flushes) {
            unflushed.clear();
            return Ok(());
        }
        let count = unflushed.len() as u64;
        self.switch.taken_back.fetch_add(count, Ordering::SeqCst);
        for (offset, bytes) in unflushed.drain(..).rev() {
            self.content.write_all_at(&bytes, offset)?;
        }
        Err(io::Error::from_raw_os_error(libc::EIO))
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
        if self.switch.strikes(Fault::Reads) {
            return reply.error(Errno::EIO);
        }
        match self.get(size as usize, offset) {
            Ok(bytes) => reply.data(&bytes),
            Err(_) => reply.error(Errno::EIO),
        }
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
        let fails = self.switch.strikes(Fault::Writes);
        let reached = if fails { data.len() / 2 } else { data.len() };
        let written = self.put(&data[..reached], offset);
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
        match self.settle() {
            Ok(()) => reply.ok(),
            Err(_) => reply.error(Errno::EIO),
        }
    }
}
