//! The effect of the kernel's requests on the region.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuse::Change;
use fuse::answer::{NodeReply, Result, Space};
use fuser::{Errno, FileAttr, FileType, INodeNo, Request, TimeOrNow};
use mem::{
    Attachment, Attributes, Changes, Credentials, Entry, Error, Last, NewInode, Node, PathBuffer,
    ROOT_INODE, Rename, Swept, Walked, now_ns,
};

use crate::locks::Locks;
use crate::nodes::Nodes;
use crate::openings::{Description, Listing, OpenFile, Table, locked};

/// Bytes copied within the region at a time.
const COPY_BYTES: usize = 1 << 20;

/// Maximum number of bytes that one request copies. Other requests wait meanwhile, and no signal reaches the caller.
const COPY_BYTES_MAX: u64 = 64 << 20;

/// The value of `st_blksize`: the size with which programs read and write.
const PREFERRED_BYTES: u32 = 4096;

/// The unit of `st_blocks`.
const SECTOR_BYTES: u64 = 512;

/// Maximum length of a symbolic link's target, in bytes.
const PATH_BYTES_MAX: usize = 4096;

/// The errno for an error of the region.
pub(crate) fn errno(error: &Error) -> Errno {
    Errno::from_i32(error.errno())
}

fn answer<T>(result: mem::Result<T>) -> Result<T> {
    result.map_err(|error| errno(&error))
}

/// A region that is shown as a directory.
pub(crate) struct View {
    attachment: Attachment,
    pub(crate) nodes: Nodes,
    files: Table<OpenFile>,
    directories: Table<(Node, Mutex<Listing>)>,
    pub(crate) locks: Arc<Locks>,
}

impl View {
    pub(crate) fn new(attachment: Attachment) -> Self {
        Self {
            attachment,
            nodes: Nodes::default(),
            files: Table::default(),
            directories: Table::default(),
            locks: Arc::default(),
        }
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.attachment.region().is_writable()
    }

    /// The node that the kernel means by an inode number.
    pub(crate) fn node(&self, inode: INodeNo) -> Result<Node> {
        self.nodes.get(inode.0).ok_or(Errno::ESTALE)
    }

    fn attributes_of(&self, node: Node) -> Result<Attributes> {
        let found = answer(self.attachment.region().attributes(node.inode))?;
        if found.generation == node.generation {
            Ok(found)
        } else {
            Err(Errno::ESTALE)
        }
    }

    /// A directory that the kernel knows and that still exists.
    fn directory(&self, inode: INodeNo) -> Result<Attributes> {
        self.attributes_of(self.node(inode)?)
    }

    /// Counts a lookup of a node by the kernel. Returns the reply.
    fn told(&self, attributes: &Attributes) -> NodeReply {
        self.nodes.add(attributes.node());
        NodeReply {
            attributes: file_attributes(attributes),
            generation: attributes.generation,
        }
    }

    pub(crate) fn look_up(&self, parent: INodeNo, name: &OsStr) -> Result<NodeReply> {
        let directory = self.directory(parent)?;
        if name.len() > mem::NAME_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let found = answer(self.attachment.look_up(directory.node(), name.as_bytes()))?;
        Ok(self.told(&found))
    }

    pub(crate) fn attributes(&self, inode: INodeNo) -> Result<FileAttr> {
        Ok(file_attributes(&self.attributes_of(self.node(inode)?)?))
    }

    pub(crate) fn set_attributes(&self, inode: INodeNo, wanted: &Change) -> Result<FileAttr> {
        let node = self.node(inode)?;
        let now = now_ns();
        let writer = answer(self.attachment.writer())?;
        if let Some(size) = wanted.size {
            answer(writer.set_size(node.inode, node.generation, size, now))?;
        }
        let changes = Changes {
            mode: wanted.mode,
            user: wanted.user,
            group: wanted.group,
            accessed_ns: wanted.accessed.map(|time| nanoseconds(time, now)),
            modified_ns: wanted.modified.map(|time| nanoseconds(time, now)),
        };
        if changes != Changes::default() || wanted.size.is_none() {
            answer(writer.set_attributes(node, &changes, now))?;
        }
        Ok(file_attributes(&self.attributes_of(node)?))
    }

    pub(crate) fn read_link(&self, inode: INodeNo) -> Result<Vec<u8>> {
        let node = self.node(inode)?;
        let mut target = vec![0; PATH_BYTES_MAX];
        let region = self.attachment.region();
        let length = answer(region.read(node.inode, node.generation, 0, &mut target))?;
        target.truncate(length);
        Ok(target)
    }

    /// Makes a file, directory or symbolic link; a symbolic link with its content.
    pub(crate) fn make(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        content: &[u8],
    ) -> Result<NodeReply> {
        Ok(self.told(&self.made(request, parent, name, mode, content)?))
    }

    fn made(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        content: &[u8],
    ) -> Result<Attributes> {
        let directory = self.directory(parent)?;
        let is_inherited = directory.mode & libc::S_ISGID != 0;
        let is_directory = mode & libc::S_IFMT == libc::S_IFDIR;
        let new = NewInode {
            mode: mode
                | if is_inherited && is_directory {
                    libc::S_ISGID
                } else {
                    0
                },
            user: request.uid(),
            group: if is_inherited {
                directory.group
            } else {
                request.gid()
            },
            now_ns: now_ns(),
        };
        let writer = answer(self.attachment.writer())?;
        answer(writer.create_with(directory.node(), name.as_bytes(), &new, content))
    }

    /// Makes a file and opens it.
    pub(crate) fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        flags: i32,
    ) -> Result<(NodeReply, u64)> {
        let made = match self.made(request, parent, name, mode | libc::S_IFREG, &[]) {
            // Another program made it since the kernel's lookup. On ESTALE, the kernel repeats the lookup and checks
            // permissions.
            Err(error) if error.code() == libc::EEXIST && flags & libc::O_EXCL == 0 => {
                return Err(Errno::ESTALE);
            }
            other => other?,
        };
        match self.open_description(&made, flags) {
            Ok(handle) => Ok((self.told(&made), handle)),
            Err(error) => {
                // Undo the creation of a file that cannot be opened.
                self.unlink(parent, name).ok();
                Err(error)
            }
        }
    }

    pub(crate) fn unlink(&self, parent: INodeNo, name: &OsStr) -> Result<()> {
        let directory = self.directory(parent)?;
        let writer = answer(self.attachment.writer())?;
        answer(writer.remove(directory.node(), name.as_bytes(), now_ns()))
    }

    pub(crate) fn remove_directory(&self, parent: INodeNo, name: &OsStr) -> Result<()> {
        let directory = self.directory(parent)?;
        let writer = answer(self.attachment.writer())?;
        answer(writer.remove_directory(directory.node(), name.as_bytes(), now_ns()))
    }

    pub(crate) fn rename(
        &self,
        from: (INodeNo, &OsStr),
        to: (INodeNo, &OsStr),
        how: Rename,
    ) -> Result<()> {
        let (old, new) = (self.directory(from.0)?, self.directory(to.0)?);
        let writer = answer(self.attachment.writer())?;
        answer(writer.rename_as(
            (old.node(), from.1.as_bytes()),
            (new.node(), to.1.as_bytes()),
            now_ns(),
            how,
        ))
    }

    pub(crate) fn link(&self, inode: INodeNo, parent: INodeNo, name: &OsStr) -> Result<NodeReply> {
        let node = self.node(inode)?;
        self.attributes_of(node)?;
        let directory = self.directory(parent)?;
        let writer = answer(self.attachment.writer())?;
        answer(writer.link(node, directory.node(), name.as_bytes(), now_ns()))?;
        Ok(self.told(&self.attributes_of(node)?))
    }

    pub(crate) fn open(&self, inode: INodeNo, flags: i32) -> Result<u64> {
        let attributes = self.attributes_of(self.node(inode)?)?;
        self.open_description(&attributes, flags)
    }

    fn open_description(&self, attributes: &Attributes, flags: i32) -> Result<u64> {
        let description = if self.is_writable() {
            let opened = Description::open(&self.attachment, attributes, flags);
            Some(opened.map_err(|error| match error {
                // It lost its name since the kernel's lookup; on ESTALE the kernel repeats the lookup.
                Error::NotFound => Errno::ESTALE,
                other => errno(&other),
            })?)
        } else {
            None
        };
        Ok(self.files.add(OpenFile {
            node: attributes.node(),
            description,
        }))
    }

    pub(crate) fn file(&self, handle: u64) -> Result<Arc<OpenFile>> {
        self.files.get(handle).ok_or(Errno::EBADF)
    }

    /// Passes to `use_bytes` the existing bytes of `size` bytes from `offset` on.
    pub(crate) fn read<T>(
        &self,
        handle: u64,
        offset: u64,
        size: usize,
        use_bytes: impl FnOnce(Result<&[u8]>) -> T,
    ) -> T {
        thread_local! {
            // It grows to the longest read so far; requests have a maximum size.
            static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let read = self
                .file(handle)
                .and_then(|file| self.read_from(&file, offset, &mut buffer[..size]));
            use_bytes(read.map(|count| &buffer[..count]))
        })
    }

    fn read_from(&self, file: &OpenFile, offset: u64, into: &mut [u8]) -> Result<usize> {
        let Node { inode, generation } = file.node;
        answer(
            self.attachment
                .region()
                .read(inode, generation, offset, into),
        )
    }

    pub(crate) fn write(&self, handle: u64, how: &Write, data: &[u8]) -> Result<usize> {
        let file = self.file(handle)?;
        let node = file.node;
        let writer = answer(self.attachment.writer())?;
        if how.clears_set_id {
            let mode = self.attributes_of(node)?.mode;
            let cleared = without_set_id(mode);
            if cleared != mode {
                let changes = Changes {
                    mode: Some(cleared),
                    ..Changes::default()
                };
                answer(writer.set_attributes(node, &changes, now_ns()))?;
            }
        }
        let Some(description) = file.description.as_ref().filter(|_| !how.is_from_cache) else {
            // A change through a memory map goes to its own offset, even if the file is open with `O_APPEND`.
            answer(writer.write(node.inode, node.generation, how.offset, data, now_ns()))?;
            return Ok(data.len());
        };
        let flags = self.attachment.flags(&description.opened);
        if (flags ^ how.flags) & libc::O_APPEND != 0 {
            self.attachment.set_flags(
                &description.opened,
                flags & !libc::O_APPEND | how.flags & libc::O_APPEND,
            );
        }
        answer(
            self.attachment
                .write_at(&description.opened, how.offset, data),
        )
    }

    pub(crate) fn release(&self, handle: u64) {
        self.locks.release(handle);
        if let Some(file) = self.files.remove(handle) {
            self.close(file);
        }
    }

    fn close(&self, file: Arc<OpenFile>) {
        // A call that waits for a lock through this file holds it slightly longer; a sweep then frees it.
        if let Some(description) = Arc::into_inner(file).and_then(|file| file.description) {
            description.close(&self.attachment);
        }
    }

    /// Closes all that programs have open. Returns the number of files.
    pub(crate) fn close_all(&self) -> usize {
        let files = self.files.take_all();
        let count = files.len();
        files.into_iter().for_each(|file| self.close(file));
        count
    }

    pub(crate) fn open_directory(&self, inode: INodeNo) -> Result<u64> {
        let node = self.node(inode)?;
        self.attributes_of(node)?;
        Ok(self.directories.add((node, Mutex::default())))
    }

    pub(crate) fn close_directory(&self, handle: u64) {
        self.directories.remove(handle);
    }

    /// Passes to `add` the entries of a directory behind `position`: number, position, type, name. `add` returns
    /// whether there is no more room.
    pub(crate) fn list(
        &self,
        handle: u64,
        mut position: u64,
        mut add: impl FnMut(u64, u64, FileType, &OsStr) -> bool,
    ) -> Result<()> {
        let directory = self.directories.get(handle).ok_or(Errno::EBADF)?;
        let (node, listing) = (directory.0, &directory.1);
        // Real positions are far larger than these two.
        for (dot, name) in [(1, "."), (2, "..")] {
            if position >= dot {
                continue;
            }
            let inode = if dot == 1 {
                node.inode
            } else {
                self.parent_of(node)
            };
            if add(inode, dot, FileType::Directory, OsStr::new(name)) {
                return Ok(());
            }
            position = dot;
        }
        if position <= 2 {
            position = 0;
        }
        let mut listing = locked(listing);
        loop {
            let next = listing.next(position, |behind, count| self.names(node, behind, count));
            let Some(entry) = answer(next)? else {
                return Ok(());
            };
            // The entry was deleted since it was listed.
            let Ok(found) = self.attachment.region().attributes(entry.inode) else {
                position = entry.position;
                continue;
            };
            let name = OsStr::from_bytes(&entry.name);
            if add(entry.inode, entry.position, file_type(found.mode), name) {
                listing.put_back(position, entry);
                return Ok(());
            }
            position = entry.position;
        }
    }

    fn names(&self, directory: Node, behind: u64, count: usize) -> mem::Result<Vec<Entry>> {
        if self.is_writable() {
            self.attachment.writer()?.list(directory, behind, count)
        } else {
            self.attachment.region().list(directory, behind, count)
        }
    }

    /// The parent of a directory; the directory itself if it is not known.
    fn parent_of(&self, node: Node) -> u64 {
        if node.inode == ROOT_INODE {
            return ROOT_INODE;
        }
        let root = Credentials {
            user: 0,
            group: 0,
            groups: &[],
        };
        let mut buffer = PathBuffer::new();
        match self
            .attachment
            .walk(node, b"..", Last::NoFollow, &root, &mut buffer)
        {
            Ok(Walked::Found { attributes, .. }) => attributes.inode,
            _ => node.inode,
        }
    }

    pub(crate) fn allocate(
        &self,
        handle: u64,
        (offset, length): (u64, u64),
        mode: i32,
    ) -> Result<()> {
        let file = self.file(handle)?;
        let Node { inode, generation } = file.node;
        let end = offset.checked_add(length).ok_or(Errno::EFBIG)?;
        let writer = answer(self.attachment.writer())?;
        let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => answer(writer.allocate(inode, generation, (offset, end), keeps_size, now_ns())),
            libc::FALLOC_FL_PUNCH_HOLE if keeps_size => {
                answer(writer.punch(inode, generation, (offset, end), now_ns()))
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// The position of the next data or hole; the kernel handles the other kinds of seek itself.
    pub(crate) fn seek(&self, handle: u64, offset: i64, whence: i32) -> Result<i64> {
        let file = self.file(handle)?;
        let Node { inode, generation } = file.node;
        let region = self.attachment.region();
        let size = self.attributes_of(file.node)?.size;
        let offset = u64::try_from(offset)
            .ok()
            .filter(|offset| *offset < size)
            .ok_or(Errno::ENXIO)?;
        let found = match whence {
            libc::SEEK_DATA => answer(region.next_data(inode, generation, offset))?,
            libc::SEEK_HOLE => answer(region.next_hole(inode, generation, offset))?,
            _ => return Err(Errno::EINVAL),
        };
        let found = found.ok_or(Errno::ENXIO)?;
        i64::try_from(found).map_err(|_| Errno::EOVERFLOW)
    }

    /// Copies from one open file to another, or within one. Returns the number of bytes.
    pub(crate) fn copy(&self, from: (u64, u64), to: (u64, u64), length: u64) -> Result<usize> {
        let (source, target) = (self.file(from.0)?, self.file(to.0)?);
        let length = length.min(COPY_BYTES_MAX) as usize;
        let writer = answer(self.attachment.writer())?;
        let Node { inode, generation } = target.node;
        let mut buffer = vec![0; COPY_BYTES.min(length)];
        let mut done = 0;
        while done < length {
            let wanted = (length - done).min(COPY_BYTES);
            let count = self.read_from(&source, from.1 + done as u64, &mut buffer[..wanted])?;
            let at = to.1 + done as u64;
            let written = writer.write(inode, generation, at, &buffer[..count], now_ns());
            match written {
                Ok(_) if count == 0 => break,
                Ok(_) => done += count,
                // Some bytes are copied already.
                Err(_) if done > 0 => break,
                Err(error) => return Err(errno(&error)),
            }
        }
        Ok(done)
    }

    pub(crate) fn space(&self) -> Space {
        let region = self.attachment.region();
        let layout = region.layout();
        let blocks = |bytes: u64| bytes / u64::from(PREFERRED_BYTES);
        let files = layout.inode_count - 1;
        Space {
            name_bytes_max: mem::NAME_BYTES_MAX as u32,
            block_bytes: PREFERRED_BYTES,
            blocks: blocks(layout.data_pages() * mem::PAGE_BYTES),
            blocks_free: blocks(region.free_bytes()),
            files,
            files_free: files.saturating_sub(region.inodes()),
        }
    }

    /// Frees what dead processes have left.
    ///
    /// # Errors
    /// Those of [`Attachment::sweep`].
    pub(crate) fn sweep(&self) -> mem::Result<Swept> {
        if self.is_writable() {
            self.attachment.sweep()
        } else {
            Ok(Swept::default())
        }
    }

    /// Locks the region's memory, if it could be swapped out.
    ///
    /// # Errors
    /// Those of [`keep_resident`](mem::Writer::keep_resident).
    pub(crate) fn keep_resident(&self) -> mem::Result<()> {
        if self.is_writable() && self.attachment.region().may_be_swapped() {
            self.attachment.writer()?.keep_resident()
        } else {
            Ok(())
        }
    }

    /// Must be called when the calling thread ends.
    pub(crate) fn thread_ends(&self) {
        self.attachment.thread_ends();
    }
}

/// The parameters of a write.
pub(crate) struct Write {
    pub(crate) offset: u64,
    /// The current flags of the open file.
    pub(crate) flags: i32,
    /// The data was changed in a memory map; the kernel writes it back at any time.
    pub(crate) is_from_cache: bool,
    /// The writer may not keep the file's set-user-id and set-group-id bits.
    pub(crate) clears_set_id: bool,
}

fn without_set_id(mode: u32) -> u32 {
    let is_group_program = mode & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID | libc::S_IXGRP;
    let group = if is_group_program { libc::S_ISGID } else { 0 };
    mode & !(libc::S_ISUID | group)
}

fn nanoseconds(time: TimeOrNow, now_ns: u64) -> u64 {
    let TimeOrNow::SpecificTime(time) = time else {
        return now_ns;
    };
    // The region stores times as nanoseconds in an `i64`, which ends in the year 2262.
    let signed = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => signed(after) as u64,
        Err(before) => (-signed(before.duration())) as u64,
    }
}

fn system_time(time_ns: u64) -> SystemTime {
    let span = Duration::from_nanos((time_ns as i64).unsigned_abs());
    let time = if (time_ns as i64) < 0 {
        UNIX_EPOCH.checked_sub(span)
    } else {
        UNIX_EPOCH.checked_add(span)
    };
    time.unwrap_or(UNIX_EPOCH)
}

fn file_type(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        _ => FileType::RegularFile,
    }
}

fn file_attributes(found: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(found.inode),
        size: found.size,
        blocks: found.size.div_ceil(SECTOR_BYTES),
        atime: system_time(found.accessed_ns),
        mtime: system_time(found.modified_ns),
        ctime: system_time(found.changed_ns),
        crtime: UNIX_EPOCH,
        kind: file_type(found.mode),
        perm: (found.mode & 0o7777) as u16,
        nlink: found.links,
        uid: found.user,
        gid: found.group,
        rdev: 0,
        blksize: PREFERRED_BYTES,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back_as_they_were_set() {
        for time in [
            UNIX_EPOCH,
            UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789),
            UNIX_EPOCH - Duration::new(5, 7),
        ] {
            let kept = nanoseconds(TimeOrNow::SpecificTime(time), 0);
            assert_eq!(system_time(kept), time);
        }
        assert_eq!(nanoseconds(TimeOrNow::Now, 42), 42);
        let far = UNIX_EPOCH + Duration::from_secs(1 << 40);
        assert_eq!(
            nanoseconds(TimeOrNow::SpecificTime(far), 0),
            i64::MAX as u64
        );
    }

    #[test]
    fn a_write_takes_the_rights_that_a_program_gives() {
        for (mode, expected) in [
            (0o104_755, 0o100_755),
            (0o102_755, 0o100_755),
            // Set-group-id without the execute bit marks mandatory locking, and stays.
            (0o102_644, 0o102_644),
            (0o100_777, 0o100_777),
        ] {
            assert_eq!(without_set_id(mode), expected, "{mode:o}");
        }
    }
}
