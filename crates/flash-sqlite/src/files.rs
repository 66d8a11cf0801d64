//! The files of an open store, and the writes to them that are still waiting in memory.
//!
//! Only this process changes the store while it is open here, so two caches stay valid. One has the names that do not
//! exist. The other has the first bytes of a file, which SQLite reads at the start of each transaction.

mod puts;

use std::collections::HashMap;
use std::sync::Arc;

use base::block::BlockDevice;
use flash::{Error, FileHandle, Store};

use crate::node::{Kind, Node, Opening, may_be_absent};
use crate::waiting::{Batch, PendingWrite};

/// Files of one image that may be open at one time: databases, journals and logs. Connections to one file count
/// once.
pub const OPEN_FILES_MAX: usize = 128;

/// Appends of up to this many bytes to a log wait for the following write. SQLite writes the head of a frame
/// separately, just before its content; waiting saves one device write for each frame.
const HEAD_WAITS_BYTES_MAX: usize = 64;

/// Number of bytes cached from the start of a file: the head of a database.
const HEAD_BYTES: usize = 100;

/// Maximum number of names cached as not existing.
const ABSENT_MAX: usize = 64;

/// The state of a file in the image.
struct File {
    node: Arc<Node>,
    /// `None` while the store has no such file: it has no content yet, or was deleted.
    handle: Option<FileHandle>,
    /// Number of SQLite's open files for it.
    users: usize,
    /// The cached first bytes of the file in the store.
    head: Option<[u8; HEAD_BYTES]>,
}

pub(crate) struct Files {
    store: Store<Box<dyn BlockDevice>>,
    files: HashMap<String, File>,
    /// Names that the store does not have, oldest first.
    absent: Vec<String>,
    /// A waiting write. It is older than all writes in the batch.
    pending: Option<PendingWrite>,
    /// Waiting writes to a database, which must follow the writes to its journal.
    batch: Option<Batch>,
    /// The last batch given to the store, as long as the store holds exactly that. When its pages are written again,
    /// only the changed parts need to be written.
    last: Option<Batch>,
}

/// The ways in which SQLite ends a journal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Deleted,
    Emptied,
    /// Its head is overwritten with zeros.
    Voided,
}

// ---- files and names ----

impl Files {
    pub(crate) fn new(store: Store<Box<dyn BlockDevice>>) -> Self {
        Self {
            store,
            files: HashMap::new(),
            absent: Vec::new(),
            pending: None,
            batch: None,
            last: None,
        }
    }

    /// Closes the store.
    pub(crate) fn close(mut self) -> Result<(), Error> {
        // Waiting writes of an unfinished transaction are dropped if the store has nothing of it.
        let put = self.put_unless_left_out();
        put.and(self.store.close().map(drop))
    }

    pub(crate) fn is_deleted(&self, node: &Arc<Node>) -> bool {
        self.file(node).is_none()
    }

    /// Returns the state of an open file; `None` if it was deleted.
    fn file(&self, node: &Arc<Node>) -> Option<&File> {
        let file = self.files.get(&node.name)?;
        Arc::ptr_eq(&file.node, node).then_some(file)
    }

    fn file_mut(&mut self, node: &Arc<Node>) -> Option<&mut File> {
        let file = self.files.get_mut(&node.name)?;
        Arc::ptr_eq(&file.node, node).then_some(file)
    }

    fn handle(&self, node: &Arc<Node>) -> Option<FileHandle> {
        self.file(node)?.handle
    }

    /// Returns the handle of the file in the store, and creates the file if it is not there yet.
    fn handle_or_create(&mut self, node: &Arc<Node>) -> Result<FileHandle, Error> {
        let Some(file) = self.file(node) else {
            return Err(Error::StaleHandle);
        };
        if let Some(handle) = file.handle {
            return Ok(handle);
        }
        let handle = self.store.create(&node.name)?;
        self.absent.retain(|absent| *absent != node.name);
        if let Some(file) = self.file_mut(node) {
            file.handle = Some(handle);
        }
        Ok(handle)
    }

    fn is_absent(&self, name: &str) -> bool {
        self.absent.iter().any(|absent| absent == name)
    }

    fn note_absent(&mut self, name: &str) {
        if !self.is_absent(name) {
            if self.absent.len() == ABSENT_MAX {
                self.absent.remove(0);
            }
            self.absent.push(name.to_owned());
        }
    }

    pub(crate) fn open_file(&mut self, name: &str, how: Opening) -> Result<Arc<Node>, Error> {
        if let Some(file) = self.files.get(name) {
            let node = Arc::clone(&file.node);
            if how.exclusive {
                return Err(Error::Exists);
            }
            if node.kind != how.kind {
                // With the wrong kind, its writes would not go to the store when they must.
                return Err(Error::NameInvalid {
                    reason: "a journal or log of that name is in use",
                });
            }
            if how.create || self.length(&node)? > 0 || self.handle(&node).is_some() {
                if let Some(file) = self.file_mut(&node) {
                    file.users += 1;
                }
                return Ok(node);
            }
            return Err(Error::NotFound);
        }
        if self.files.len() >= OPEN_FILES_MAX {
            return Err(Error::TooManyOpenFiles);
        }
        let found = if self.is_absent(name) {
            None
        } else {
            match self.store.open_file(name) {
                Ok(handle) if how.exclusive => {
                    self.store.close_file(handle);
                    return Err(Error::Exists);
                }
                Ok(handle) => Some(handle),
                Err(Error::NotFound) => {
                    self.note_absent(name);
                    None
                }
                Err(error) => return Err(error),
            }
        };
        let handle = match found {
            Some(handle) => Some(handle),
            None if !how.create => return Err(Error::NotFound),
            None if how.kind.may_be_absent() => None,
            None => {
                if how.kind == Kind::SuperJournal {
                    // Waiting writes may be part of the transaction over several databases that this file is for.
                    self.put_all()?;
                } else {
                    self.put_before(name)?;
                }
                let handle = self.store.create(name)?;
                self.absent.retain(|absent| absent != name);
                Some(handle)
            }
        };
        let node = Arc::new(Node::new(name, how.kind));
        let file = File {
            node: Arc::clone(&node),
            handle,
            users: 1,
            head: None,
        };
        self.files.insert(name.to_owned(), file);
        Ok(node)
    }

    pub(crate) fn close_file(&mut self, node: &Arc<Node>) -> Result<(), Error> {
        let Some(file) = self.file_mut(node) else {
            return Ok(());
        };
        file.users -= 1;
        let is_last = file.users == 0;
        let waits = self.waits(node);
        // An unfinished journal may stay in memory: SQLite closes a journal before it deletes it, and the next
        // connection finds a journal that is left.
        let put = if is_last && waits && !self.journal_can_be_left_out() {
            self.put_all()
        } else {
            Ok(())
        };
        if put.is_err() && is_last {
            self.pending
                .take_if(|pending| Arc::ptr_eq(&pending.node, node));
            self.batch.take_if(|batch| Arc::ptr_eq(&batch.node, node));
        }
        self.forget_unused(node);
        put
    }

    /// Returns whether writes to this file are waiting.
    fn waits(&self, node: &Arc<Node>) -> bool {
        let pending = self.pending.as_ref().map(|pending| &pending.node);
        let batch = self.batch.as_ref().map(|batch| &batch.node);
        pending
            .into_iter()
            .chain(batch)
            .any(|waiting| Arc::ptr_eq(waiting, node))
    }

    /// Closes a file in the store if it is not open and no write to it is waiting.
    fn forget_unused(&mut self, node: &Arc<Node>) {
        if !self.waits(node)
            && let Some(file) = self.file(node)
            && file.users == 0
        {
            if let Some(handle) = file.handle {
                self.store.close_file(handle);
            }
            self.forget_last(node);
            self.files.remove(&node.name);
        }
    }

    pub(crate) fn delete(&mut self, name: &str) -> Result<(), Error> {
        if let Some(file) = self.files.get(name) {
            let node = Arc::clone(&file.node);
            if node.kind == Kind::Journal {
                return self.end_journal(&node, End::Deleted);
            }
            self.pending
                .take_if(|pending| Arc::ptr_eq(&pending.node, &node));
            self.batch.take_if(|batch| Arc::ptr_eq(&batch.node, &node));
        }
        if may_be_absent(name) {
            self.put_before(name)?;
        } else {
            // Deleting a super-journal commits the waiting writes.
            self.put_all()?;
        }
        self.delete_now(name)
    }

    fn delete_now(&mut self, name: &str) -> Result<(), Error> {
        let is_in_store = match self.files.get(name) {
            Some(file) => file.handle.is_some(),
            None => !self.is_absent(name),
        };
        let deleted = if is_in_store {
            self.store.delete(name)
        } else if self.files.contains_key(name) || may_be_absent(name) {
            // SQLite may have written and closed a journal that was never put into the store.
            Ok(())
        } else {
            Err(Error::NotFound)
        };
        if matches!(deleted, Ok(()) | Err(Error::NotFound)) {
            // A connection that has it open sees it as empty.
            self.files.remove(name);
            self.last.take_if(|last| last.node.name == name);
            self.note_absent(name);
        }
        deleted
    }

    pub(crate) fn length_by_name(&mut self, name: &str) -> Result<u64, Error> {
        if let Some(file) = self.files.get(name) {
            let node = Arc::clone(&file.node);
            return self.length(&node);
        }
        if self.is_absent(name) {
            return Err(Error::NotFound);
        }
        match self.store.stat(name) {
            Err(Error::NotFound) => {
                self.note_absent(name);
                Err(Error::NotFound)
            }
            found => Ok(found?.length_bytes),
        }
    }
}

// ---- content ----

impl Files {
    /// Returns the length without waiting writes.
    fn length_in_store(&self, node: &Arc<Node>) -> Result<u64, Error> {
        match self.handle(node).map(|handle| self.store.length(handle)) {
            None | Some(Err(Error::StaleHandle)) => Ok(0),
            Some(length) => length,
        }
    }

    pub(crate) fn length(&self, node: &Arc<Node>) -> Result<u64, Error> {
        let mut length = self.length_in_store(node)?;
        if let Some(pending) = self.pending_of(node) {
            length = length.max(pending.end());
        }
        if let Some(batch) = self.batch_of(node) {
            length = length.max(batch.end());
        }
        Ok(length)
    }

    pub(crate) fn read(
        &mut self,
        node: &Arc<Node>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, Error> {
        let mut count = self.read_in_store(node, offset, buffer)?;
        // Waiting writes may begin behind the end.
        buffer[count..].fill(0);
        if let Some(pending) = self.pending_of(node) {
            count = count.max(pending.read(offset, buffer));
        }
        if let Some(batch) = self.batch_of(node) {
            count = count.max(batch.read(offset, buffer));
        }
        Ok(count)
    }

    fn read_in_store(
        &mut self,
        node: &Arc<Node>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, Error> {
        let Some(file) = self.file(node) else {
            return Ok(0);
        };
        let Some(handle) = file.handle else {
            return Ok(0);
        };
        let end = offset.saturating_add(buffer.len() as u64);
        if end > HEAD_BYTES as u64 || self.store.length(handle)? < HEAD_BYTES as u64 {
            return self.store.read(handle, offset, buffer);
        }
        let head = if let Some(head) = file.head {
            head
        } else {
            let mut head = [0; HEAD_BYTES];
            self.store.read(handle, 0, &mut head)?;
            if let Some(file) = self.file_mut(node) {
                file.head = Some(head);
            }
            head
        };
        buffer.copy_from_slice(&head[offset as usize..end as usize]);
        Ok(buffer.len())
    }

    /// Updates the cached first bytes after a write to the store. `data` is `None` if the content is unknown.
    fn note_head(&mut self, node: &Arc<Node>, offset: u64, data: Option<&[u8]>) {
        if let Some(file) = self.file_mut(node)
            && offset < HEAD_BYTES as u64
        {
            let whole = data.filter(|_| offset == 0);
            file.head = whole.and_then(|data| data.first_chunk().copied());
        }
    }

    /// Writes immediately, as cheaply as the store can.
    fn write_now(&mut self, node: &Arc<Node>, offset: u64, data: &[u8]) -> Result<(), Error> {
        let handle = self.handle_or_create(node)?;
        self.note_head(node, offset, None);
        self.forget_last(node);
        if self.store.length(handle)? == offset {
            self.store.append_nosync(handle, data)
        } else {
            self.store.write_at_nosync(handle, offset, data)
        }
    }

    pub(crate) fn truncate(&mut self, node: &Arc<Node>, length: u64) -> Result<(), Error> {
        if node.kind == Kind::Journal && length == 0 {
            return self.end_journal(node, End::Emptied);
        }
        if let Some(pending) = self
            .pending
            .take_if(|pending| Arc::ptr_eq(&pending.node, node))
        {
            self.pending = pending.cut(length);
        }
        let is_batch = |batch: &mut Batch| Arc::ptr_eq(&batch.node, node);
        if let Some(batch) = self.batch.take_if(is_batch) {
            self.batch = batch.cut(length);
            if self.length_in_store(node)? == length {
                // Everything that is cut off was only waiting.
                return Ok(());
            }
        }
        let put = self.put_before(&node.name);
        let has_journal = |pending: &PendingWrite| pending.node.is_journal_of(&node.name);
        if self.pending.as_ref().is_some_and(has_journal) {
            // SQLite truncates a database with an unfinished journal only to roll the transaction back.
            self.given_up(put)?;
        } else {
            put?;
        }
        self.truncate_now(node, length)
    }

    fn truncate_now(&mut self, node: &Arc<Node>, length: u64) -> Result<(), Error> {
        if self.length_in_store(node)? == length {
            return Ok(());
        }
        let handle = self.handle_or_create(node)?;
        self.note_head(node, 0, None);
        self.forget_last(node);
        self.store.truncate(handle, length)
    }
}
