//! Applies the kernel's requests to the store: one method for each request, under one lock.

use std::ffi::OsStr;
use std::time::{Duration, SystemTime};

use base::block::{BLOCK_BYTES, BlockDevice};
use base::clock::Clock;
use flash::{Error, FileHandle, PAYLOAD_BYTES, Statistics, Store};
use fuse::Change;
use fuse::answer::{Result, Space};
use fuser::{Errno, FileAttr, FileType, INodeNo, TimeOrNow};

use crate::deleted::{Hidden, Leftovers};
use crate::errno;
use crate::limits::{OPEN_FILES_MAX, REQUEST_BYTES_MAX};
use crate::listing::{Listing, Listings};
use crate::nodes::{Node, Nodes, ROOT, Times, inode_of_file};

/// The unit of `st_blocks`, in bytes.
const STAT_BLOCK_BYTES: u64 = 512;

/// Zeros that are appended to a file in one step; as many bytes as one write request can carry.
static ZEROS: [u8; REQUEST_BYTES_MAX as usize] = [0; REQUEST_BYTES_MAX as usize];

/// Attributes of files that the store does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presentation {
    /// Permission bits of every file; the directory's bits follow from them.
    pub mode: u16,
    /// Owner of everything.
    pub uid: u32,
    /// Group of everything.
    pub gid: u32,
}

impl Presentation {
    /// Returns the permission bits of the directory: a user that may read a file may also list the names.
    fn directory_mode(&self) -> u16 {
        let mode = self.mode & 0o777;
        // The owner can always enter: otherwise only root could use the mount.
        mode | (mode & 0o444) >> 2 | 0o700
    }
}

/// Whether data must be on the device before the call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    AtOnce,
    AtSync,
}

/// A store with the additional state of a mount.
pub(crate) struct Files<D: BlockDevice> {
    store: Store<D>,
    nodes: Nodes,
    hidden: Hidden,
    listings: Listings,
    clock: Box<dyn Clock>,
    presentation: Presentation,
    open_files_max: usize,
    /// Number of files that have a handle of the store.
    open_files: usize,
    is_always_durable: bool,
    root_times: Times,
    /// The times of files that this mount has not changed.
    mounted: SystemTime,
    /// Whether some writes may not be durable yet.
    is_unsynced: bool,
    /// The device's first failure, as text.
    failure: Option<String>,
}

impl<D: BlockDevice> Files<D> {
    /// Takes over the store. It must have been opened with room for one more file than `open_files_max`, because files
    /// are opened briefly to be changed by name.
    pub(crate) fn new(
        store: Store<D>,
        clock: Box<dyn Clock>,
        presentation: Presentation,
        open_files_max: usize,
        is_always_durable: bool,
    ) -> Self {
        let mounted = wall_time(&*clock);
        Self {
            hidden: Hidden::of(&store),
            store,
            nodes: Nodes::default(),
            listings: Listings::default(),
            clock,
            presentation,
            open_files_max: open_files_max.min(OPEN_FILES_MAX),
            open_files: 0,
            is_always_durable,
            root_times: Times::all(mounted),
            mounted,
            is_unsynced: false,
            failure: None,
        }
    }

    /// Deletes the remains of a killed mount.
    pub(crate) fn clean_up(&mut self) -> flash::Result<Leftovers> {
        self.hidden.clean_up(&mut self.store)
    }

    /// Returns the files that some program has open, each with its name if the directory shows it.
    pub(crate) fn open_names(&self) -> impl Iterator<Item = Option<&str>> {
        let visible = |node: &Node| node.hidden.is_none();
        self.nodes
            .open()
            .map(move |(node, _)| node.name.as_deref().filter(|_| visible(node)))
    }

    pub(crate) fn statistics(&self) -> Statistics {
        self.store.statistics()
    }

    /// Returns the reason why writes fail since a device write failed.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Makes everything durable, deletes hidden files, which can no longer be opened, and closes the store.
    pub(crate) fn end(mut self) -> flash::Result<D> {
        let numbers: Vec<u16> = self
            .nodes
            .open()
            .filter_map(|(node, _)| node.hidden)
            .collect();
        let handles: Vec<FileHandle> = self.nodes.open().map(|(_, handle)| handle).collect();
        for handle in handles {
            self.store.close_file(handle);
        }
        if self.store.has_failed() {
            return self.store.close();
        }
        let mut tidied = Ok(());
        for number in numbers {
            tidied = tidied.and(self.hidden.delete(&mut self.store, number));
        }
        let tidied = tidied.and_then(|()| self.hidden.end(&mut self.store));
        // Sync even if the cleanup failed: the data that programs have written is more important.
        let synced = self.store.sync();
        let device = self.store.close()?;
        // A read-only store has no hidden files and nothing to sync.
        match synced.and(tidied) {
            Ok(()) | Err(Error::ReadOnly) => Ok(device),
            Err(error) => Err(error),
        }
    }

    // ---- names ----

    pub(crate) fn lookup(&mut self, parent: u64, name: &OsStr) -> Result<FileAttr> {
        is_root(parent)?;
        let name = self.name_to_find(name)?;
        let stat = self.run(|store| store.stat(name))?;
        let inode = self
            .nodes
            .told(name, stat.file_id, Times::all(self.mounted));
        // From here on nothing may fail: the kernel forgets only inodes that it was told of.
        Ok(self.attributes_of_node(inode, stat.length_bytes))
    }

    pub(crate) fn forget(&mut self, inode: u64, count: u64) {
        self.nodes.forget(inode, count);
    }

    /// Creates an empty file; with `is_open` it counts as opened.
    pub(crate) fn create(&mut self, parent: u64, name: &OsStr, is_open: bool) -> Result<FileAttr> {
        is_root(parent)?;
        let name = self.name_to_make(name)?;
        if is_open && self.open_files >= self.open_files_max {
            return Err(Errno::ENFILE);
        }
        let handle = self.run(|store| store.create(name))?;
        let file_id = match self.run(|store| store.stat(name)) {
            Ok(stat) => stat.file_id,
            Err(error) => {
                self.store.close_file(handle);
                return Err(error);
            }
        };
        let now = self.now();
        let inode = self.nodes.told(name, file_id, Times::all(now));
        self.touch_root(now);
        match self.nodes.get_mut(inode) {
            Some(node) if is_open => {
                node.openings = 1;
                node.handle = Some(handle);
                self.open_files += 1;
            }
            _ => self.store.close_file(handle),
        }
        Ok(self.attributes_of_node(inode, 0))
    }

    pub(crate) fn unlink(&mut self, parent: u64, name: &OsStr) -> Result<()> {
        is_root(parent)?;
        let name = self.name_to_find(name)?;
        let now = self.now();
        if self.is_open(name) {
            self.room_to_hide()?;
            let hidden = &mut self.hidden;
            let hiding = hidden.hide(&mut self.store, name);
            let (number, hidden_name) = self.judge(hiding)?;
            self.nodes.hide(name, hidden_name, number, now);
        } else {
            self.run(|store| store.delete(name))?;
            self.nodes.gone(name);
        }
        self.touch_root(now);
        Ok(())
    }

    pub(crate) fn rename(
        &mut self,
        parents: [u64; 2],
        from: &OsStr,
        to: &OsStr,
        is_replacing: bool,
    ) -> Result<()> {
        is_root(parents[0])?;
        is_root(parents[1])?;
        let from = self.name_to_find(from)?;
        let to = self.name_to_make(to)?;
        if !is_replacing && self.exists(to)? {
            return Err(Errno::EEXIST);
        }
        if from == to {
            return self.run(|store| store.stat(from)).map(|_| ());
        }
        let now = self.now();
        if self.is_open(to) {
            // Check this before anything is hidden: the source must exist.
            self.run(|store| store.stat(from))?;
            self.room_to_hide()?;
            let hidden = &mut self.hidden;
            let renamed = hidden.rename_over_open(&mut self.store, from, to);
            let (number, hidden_name) = self.judge(renamed)?;
            self.nodes.hide(to, hidden_name, number, now);
        } else {
            self.run(|store| store.rename(from, to))?;
        }
        self.nodes.rename(from, to, now);
        self.touch_root(now);
        Ok(())
    }

    // ---- open files ----

    pub(crate) fn open(&mut self, inode: u64) -> Result<()> {
        let node = self.nodes.get(inode).ok_or(Errno::ESTALE)?;
        if node.handle.is_none() {
            let name = node.name.clone().ok_or(Errno::ESTALE)?;
            if self.open_files >= self.open_files_max {
                return Err(Errno::ENFILE);
            }
            let handle = self.run(|store| store.open_file(&name))?;
            if let Some(node) = self.nodes.get_mut(inode) {
                node.handle = Some(handle);
                self.open_files += 1;
            }
        }
        if let Some(node) = self.nodes.get_mut(inode) {
            node.openings += 1;
        }
        Ok(())
    }

    /// Releases an opening. If the file was deleted while open, the last release deletes it in the store.
    pub(crate) fn release(&mut self, inode: u64) -> Result<()> {
        let Some(node) = self.nodes.get_mut(inode) else {
            return Ok(());
        };
        node.openings = node.openings.saturating_sub(1);
        if node.openings > 0 {
            return Ok(());
        }
        let handle = node.handle.take();
        let number = node.hidden.take();
        if number.is_some() {
            node.name = None;
        }
        if let Some(handle) = handle {
            self.store.close_file(handle);
            self.open_files -= 1;
        }
        self.nodes.remove_if_forgotten(inode);
        match number {
            Some(number) => {
                let deletion = self.hidden.delete(&mut self.store, number);
                self.judge(deletion)
            }
            None => Ok(()),
        }
    }

    /// Reads into `buffer` and returns the number of bytes.
    pub(crate) fn read(&mut self, inode: u64, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.with_handle(inode, |store, handle| store.read(handle, offset, buffer))
    }

    /// Writes `data`, or as much as there is room for, and returns the number of bytes.
    pub(crate) fn write(
        &mut self,
        inode: u64,
        offset: u64,
        data: &[u8],
        durability: Durability,
    ) -> Result<usize> {
        let end = offset.checked_add(data.len() as u64);
        if end.is_none_or(|end| end > self.length_max()) {
            return Err(Errno::EFBIG);
        }
        let is_durable = durability == Durability::AtOnce || self.is_always_durable;
        // Even a failed write may have written some bytes.
        self.is_unsynced |= !is_durable;
        let written = self.with_handle(inode, |store, handle| {
            let length = store.length(handle)?;
            let result = match (offset == length, is_durable) {
                (true, true) => store.append(handle, data),
                (true, false) => store.append_nosync(handle, data),
                (false, true) => store.write_at(handle, offset, data),
                (false, false) => store.write_at_nosync(handle, offset, data),
            };
            match result {
                Ok(()) => Ok(data.len()),
                Err(Error::Full) => written_although_full(store, handle, length, offset),
                Err(error) => Err(error),
            }
        })?;
        self.changed(inode);
        Ok(written)
    }

    /// Returns the length of a file in bytes.
    pub(crate) fn length(&mut self, inode: u64) -> Result<u64> {
        self.with_handle(inode, |store, handle| store.length(handle))
    }

    /// Returns whether more than one piece of zeros is missing before byte `end`, and there is room for them.
    pub(crate) fn is_far(&mut self, inode: u64, end: u64) -> Result<bool> {
        if inode == ROOT || end > self.length_max() {
            return Ok(false);
        }
        let length = match self.nodes.get(inode).map(|node| node.handle) {
            // The most frequent case, at every write: it needs no look-up and copies no name.
            Some(Some(handle)) => self.run(|store| store.length(handle))?,
            _ => self.length(inode)?,
        };
        let missing = end.saturating_sub(length);
        // The store refuses data that cannot fit before it changes anything.
        let blocks = missing.div_ceil(PAYLOAD_BYTES as u64);
        Ok(missing > ZEROS.len() as u64 && blocks <= self.space().blocks_free)
    }

    /// Adds a piece of zeros if `is_far`. Returns whether it added one.
    pub(crate) fn add_zeros(&mut self, inode: u64, end: u64) -> Result<bool> {
        if !self.is_far(inode, end)? {
            return Ok(false);
        }
        self.is_unsynced = true;
        self.with_handle(inode, |store, handle| store.append_nosync(handle, &ZEROS))?;
        Ok(true)
    }

    /// Removes the bytes that were added behind `length`.
    pub(crate) fn shorten(&mut self, inode: u64, length: u64) -> Result<()> {
        self.with_handle(inode, |store, handle| {
            if store.length(handle)? > length {
                store.truncate(handle, length)?;
            }
            Ok(())
        })
    }

    pub(crate) fn sync(&mut self) -> Result<()> {
        match self.store.sync() {
            Ok(()) => {
                self.is_unsynced = false;
                Ok(())
            }
            // Nothing was written, so everything is on the device.
            Err(Error::ReadOnly) => Ok(()),
            Err(error) => self.judge(Err(error)),
        }
    }

    /// As [`sync`](Self::sync), but only if there are unsynced writes.
    pub(crate) fn sync_if_unsynced(&mut self) {
        if self.is_unsynced && self.failure.is_none() {
            // The failure is kept, and every later call reports it.
            self.sync().ok();
        }
    }

    // ---- attributes ----

    pub(crate) fn attributes(&mut self, inode: u64) -> Result<FileAttr> {
        if inode == ROOT {
            return Ok(self.directory_attributes());
        }
        let node = self.nodes.get(inode).ok_or(Errno::ESTALE)?;
        let length = match (node.handle, node.name.clone()) {
            (Some(handle), _) => self.run(|store| store.length(handle))?,
            (None, Some(name)) => self.run(|store| store.stat(&name))?.length_bytes,
            (None, None) => return Err(Errno::ESTALE),
        };
        Ok(self.attributes_of_node(inode, length))
    }

    pub(crate) fn set_attributes(&mut self, inode: u64, change: &Change) -> Result<FileAttr> {
        let before = self.attributes(inode)?;
        let keeps = |wanted: Option<u32>, is: u32| wanted.is_none_or(|wanted| wanted == is);
        if !keeps(
            change.mode.map(|mode| mode & 0o7777),
            u32::from(before.perm),
        ) || !keeps(change.user, before.uid)
            || !keeps(change.group, before.gid)
        {
            return Err(Errno::EPERM);
        }
        if let Some(length) = change.size {
            if inode == ROOT {
                return Err(Errno::EISDIR);
            }
            if length > self.length_max() {
                return Err(Errno::EFBIG);
            }
            if length != before.size {
                self.with_handle(inode, |store, handle| set_length(store, handle, length))?;
            }
            self.changed(inode);
        }
        let now = self.now();
        let times = match self.nodes.get_mut(inode) {
            Some(node) => &mut node.times,
            None => &mut self.root_times,
        };
        let time = |wanted: TimeOrNow| match wanted {
            TimeOrNow::SpecificTime(time) => time,
            TimeOrNow::Now => now,
        };
        if let Some(wanted) = change.accessed {
            times.accessed = time(wanted);
        }
        if let Some(wanted) = change.modified {
            times.modified = time(wanted);
        }
        times.changed = now;
        self.attributes(inode)
    }

    pub(crate) fn space(&self) -> Space {
        let statistics = self.store.statistics();
        let files = statistics.files_max.max(statistics.files);
        Space {
            block_bytes: BLOCK_BYTES as u32,
            blocks: statistics.blocks_total,
            blocks_free: statistics.blocks_free,
            files,
            files_free: files - statistics.files,
            name_bytes_max: u32::from(self.store.layout().name_bytes_max),
        }
    }

    // ---- the directory ----

    pub(crate) fn open_directory(&mut self, inode: u64) -> Result<u64> {
        is_root(inode)?;
        self.listings.open()
    }

    pub(crate) fn close_directory(&mut self, listing: u64) {
        self.listings.close(listing);
    }

    /// Returns the names from `offset` on; offset 0 reads the names from the store again.
    pub(crate) fn directory(&mut self, listing: u64, offset: u64) -> Result<&Listing> {
        if offset == 0 {
            let (hidden, nodes) = (&self.hidden, &self.nodes);
            let mut fresh = Listing::default();
            let listed = self.store.list(&mut |name, stat| {
                if !hidden.is_hidden(name) {
                    let known = nodes.inode_of(name);
                    fresh.add(name, known.unwrap_or_else(|| inode_of_file(stat.file_id)));
                }
            });
            match listed {
                Ok(()) => {}
                // The readable names are returned first, and then the error.
                Err(error @ Error::Damaged { .. }) => fresh.end_with(errno::of(&error)),
                Err(error) => return self.judge(Err(error)),
            }
            self.listings.set(listing, fresh)?;
        }
        self.listings.get(listing)
    }

    // ---- helpers ----

    /// Runs a call of the store and converts its error into an errno.
    fn run<T>(&mut self, call: impl FnOnce(&mut Store<D>) -> flash::Result<T>) -> Result<T> {
        let result = call(&mut self.store);
        self.judge(result)
    }

    fn judge<T>(&mut self, result: flash::Result<T>) -> Result<T> {
        result.map_err(|error| {
            if self.store.has_failed() && self.failure.is_none() {
                self.failure = Some(error.to_string());
            }
            errno::of(&error)
        })
    }

    /// Runs a call with the handle of a file, and opens the file temporarily if it is not open.
    fn with_handle<T>(
        &mut self,
        inode: u64,
        call: impl FnOnce(&mut Store<D>, FileHandle) -> flash::Result<T>,
    ) -> Result<T> {
        let node = self.nodes.get(inode).ok_or(Errno::ESTALE)?;
        if let Some(handle) = node.handle {
            return self.run(|store| call(store, handle));
        }
        let name = node.name.clone().ok_or(Errno::ESTALE)?;
        self.run(|store| {
            let handle = store.open_file(&name)?;
            let result = call(store, handle);
            store.close_file(handle);
            result
        })
    }

    fn is_open(&self, name: &str) -> bool {
        let node = self
            .nodes
            .inode_of(name)
            .and_then(|inode| self.nodes.get(inode));
        node.is_some_and(|node| node.handle.is_some())
    }

    fn exists(&mut self, name: &str) -> Result<bool> {
        match self.run(|store| store.stat(name)) {
            Ok(_) => Ok(true),
            Err(error) if error.code() == libc::ENOENT => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Refuses to delete an open file if the store's names are too short for a hidden name.
    fn room_to_hide(&self) -> Result<()> {
        if self.hidden.fits() {
            Ok(())
        } else {
            Err(Errno::EBUSY)
        }
    }

    /// Checks a name that may exist.
    fn name_to_find<'a>(&self, name: &'a OsStr) -> Result<&'a str> {
        if name.len() > usize::from(self.store.layout().name_bytes_max) {
            return Err(Errno::ENAMETOOLONG);
        }
        match name.to_str() {
            Some(name) if !self.hidden.is_hidden(name) => Ok(name),
            _ => Err(Errno::ENOENT),
        }
    }

    /// Checks a name that may be created.
    fn name_to_make<'a>(&self, name: &'a OsStr) -> Result<&'a str> {
        if name.len() > usize::from(self.store.layout().name_bytes_max) {
            return Err(Errno::ENAMETOOLONG);
        }
        let name = name.to_str().ok_or(Errno::EILSEQ)?;
        if self.hidden.is_hidden(name) {
            return Err(Errno::EPERM);
        }
        Ok(name)
    }

    /// Returns the maximum length of a file: no file can be longer than the whole store.
    fn length_max(&self) -> u64 {
        self.store.statistics().blocks_total * PAYLOAD_BYTES as u64
    }

    fn now(&self) -> SystemTime {
        wall_time(&*self.clock)
    }

    fn changed(&mut self, inode: u64) {
        let now = self.now();
        if let Some(node) = self.nodes.get_mut(inode) {
            node.times.modified = now;
            node.times.changed = now;
        }
    }

    fn touch_root(&mut self, now: SystemTime) {
        self.root_times.modified = now;
        self.root_times.changed = now;
    }

    fn directory_attributes(&self) -> FileAttr {
        let mut attributes = self.attributes_of(ROOT, self.root_times, 0, 0, 2);
        attributes.kind = FileType::Directory;
        attributes.perm = self.presentation.directory_mode();
        attributes
    }

    /// Returns the attributes of a file of this length.
    fn attributes_of_node(&self, inode: u64, length: u64) -> FileAttr {
        let (times, is_hidden) = self
            .nodes
            .get(inode)
            .map_or((self.root_times, false), |node| {
                (node.times, node.hidden.is_some())
            });
        let blocks =
            length.div_ceil(PAYLOAD_BYTES as u64) * (BLOCK_BYTES as u64 / STAT_BLOCK_BYTES);
        self.attributes_of(inode, times, length, blocks, u32::from(!is_hidden))
    }

    fn attributes_of(
        &self,
        inode: u64,
        times: Times,
        length: u64,
        blocks: u64,
        links: u32,
    ) -> FileAttr {
        FileAttr {
            ino: INodeNo(inode),
            size: length,
            blocks,
            atime: times.accessed,
            mtime: times.modified,
            ctime: times.changed,
            crtime: times.changed,
            kind: FileType::RegularFile,
            perm: self.presentation.mode,
            nlink: links,
            uid: self.presentation.uid,
            gid: self.presentation.gid,
            rdev: 0,
            blksize: BLOCK_BYTES as u32,
            flags: 0,
        }
    }
}

/// Returns the number of bytes that a write has added although the store was too full for all of them. If only zeros of
/// the gap were added, removes them.
fn written_although_full<D: BlockDevice>(
    store: &mut Store<D>,
    handle: FileHandle,
    length_before: u64,
    offset: u64,
) -> flash::Result<usize> {
    let length = store.length(handle)?;
    if length > length_before.max(offset) {
        return Ok((length - offset) as usize);
    }
    if length > length_before {
        store.truncate(handle, length_before)?;
    }
    Err(Error::Full)
}

/// Sets the length. If there is no room, the file keeps its former length.
fn set_length<D: BlockDevice>(
    store: &mut Store<D>,
    handle: FileHandle,
    length: u64,
) -> flash::Result<()> {
    let before = store.length(handle)?;
    let result = store.truncate(handle, length);
    if matches!(result, Err(Error::Full)) && store.length(handle)? > before {
        store.truncate(handle, before)?;
    }
    result
}

fn wall_time(clock: &dyn Clock) -> SystemTime {
    let milliseconds = u64::try_from(clock.wall_ms()).unwrap_or(0);
    SystemTime::UNIX_EPOCH + Duration::from_millis(milliseconds)
}

/// Requires that `inode` is the only directory.
fn is_root(inode: u64) -> Result<()> {
    if inode == ROOT {
        Ok(())
    } else {
        Err(Errno::ENOTDIR)
    }
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
