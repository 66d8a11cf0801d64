//! When and in which order waiting writes go to the store, and which of them need not go there at all.
//!
//! Invariant: waiting writes go to the store in the order in which SQLite wrote them, with the syncs between. Only a
//! transaction that the store has nothing of yet may go there all at once, without its journal.

use std::sync::Arc;

use flash::Error;

use super::{End, Files, HEAD_WAITS_BYTES_MAX};
use crate::node::{JOURNAL_ENDING, Kind, Node};
use crate::waiting::{Batch, PendingWrite, WAITS_BYTES_MAX};

impl Files {
    pub(super) fn pending_of(&self, node: &Arc<Node>) -> Option<&PendingWrite> {
        self.pending
            .as_ref()
            .filter(|pending| Arc::ptr_eq(&pending.node, node))
    }

    pub(super) fn batch_of(&self, node: &Arc<Node>) -> Option<&Batch> {
        self.batch
            .as_ref()
            .filter(|batch| Arc::ptr_eq(&batch.node, node))
    }

    /// Returns whether all of an unfinished journal is waiting, and nothing of it is in the store. Then nothing of its
    /// transaction is in the store either.
    pub(super) fn journal_can_be_left_out(&self) -> bool {
        self.pending
            .as_ref()
            .is_some_and(|pending| pending.is_whole_journal)
    }

    /// Returns whether a journal in the store is void: it has no content, or zeros as its head.
    pub(super) fn is_void(&mut self, node: &Arc<Node>) -> Result<bool, Error> {
        let mut first = [0];
        let count = self.read_in_store(node, 0, &mut first)?;
        Ok(count == 0 || first == [0])
    }

    /// Returns whether the waiting writes belong to the file called `name`, to its journal, or to the database of that
    /// journal.
    pub(super) fn is_concerned(&self, name: &str) -> bool {
        let is_own = |node: &Node| {
            let database = node.name.as_str();
            node.name == name
                || node.is_journal_of(name)
                || name.strip_suffix(JOURNAL_ENDING) == Some(database)
        };
        self.pending
            .as_ref()
            .is_some_and(|pending| is_own(&pending.node))
            || self.batch.as_ref().is_some_and(|batch| is_own(&batch.node))
    }

    /// Puts waiting writes into the store before a change of the file called `name`. If they do not concern that file,
    /// the change must not fail for lack of room, because SQLite also rolls back on a full store.
    pub(super) fn put_before(&mut self, name: &str) -> Result<(), Error> {
        let is_concerned = self.is_concerned(name);
        let is_pending = self
            .pending
            .as_ref()
            .is_some_and(|pending| pending.node.name == name);
        // A change of another file does not mean a rollback: waiting pages may still belong to a transaction whose
        // journal has found no room.
        let put = if is_pending || !is_concerned {
            self.put_all()
        } else {
            self.put_all_that_fits()
        };
        match put {
            Err(error) if is_no_room(&error) && !is_concerned => Ok(()),
            put => self.told(put),
        }
    }

    /// Records that SQLite is told of a journal for which there is no room.
    pub(super) fn told<T>(&mut self, put: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &put
            && is_no_room(error)
            && let Some(pending) = &mut self.pending
        {
            pending.was_refused = true;
        }
        put
    }

    /// Puts all waiting writes into the store, in their original order, with the syncs between. Failed writes stay
    /// waiting, because SQLite has been told that they were written.
    pub(super) fn put_all(&mut self) -> Result<(), Error> {
        self.put_pending()?;
        self.put_rest()
    }

    /// As [`put_all`](Self::put_all), but a journal that was refused for lack of room stays in memory. SQLite knows
    /// this and can only roll back, so its writes to the database restore the former content.
    pub(super) fn put_all_that_fits(&mut self) -> Result<(), Error> {
        let was_refused = self
            .pending
            .as_ref()
            .is_some_and(|pending| pending.was_refused);
        match self.put_pending() {
            Err(error) if is_no_room(&error) && was_refused => {}
            put => put?,
        }
        self.put_rest()
    }

    /// Puts waiting writes into the store, except for an unfinished transaction that the store has nothing of. If there
    /// is no room they stay waiting, and the sync reports it.
    pub(crate) fn put_waiting(&mut self) -> Result<(), Error> {
        match self.put_unless_left_out() {
            Err(error) if is_no_room(&error) => Ok(()),
            put => put,
        }
    }

    pub(super) fn put_unless_left_out(&mut self) -> Result<(), Error> {
        if self.journal_can_be_left_out() {
            Ok(())
        } else {
            self.put_all_that_fits()
        }
    }

    pub(super) fn put_pending(&mut self) -> Result<(), Error> {
        if let Some(mut pending) = self.pending.take() {
            let is_open = self.file(&pending.node).is_some();
            if is_open
                && let Err(error) = self.write_now(&pending.node, pending.offset, &pending.bytes)
            {
                if pending.is_whole_journal && is_no_room(&error) {
                    // A part of it may be in the store. Nothing depends on that yet, and emptying needs no room.
                    let emptied = self.truncate_now(&pending.node, 0);
                    pending.is_whole_journal = emptied.is_ok();
                }
                self.pending = Some(pending);
                return Err(error);
            }
            let is_synced = pending.is_synced;
            self.forget_unused(&pending.node);
            if is_synced {
                self.store.sync()?;
            }
        }
        Ok(())
    }

    pub(super) fn put_rest(&mut self) -> Result<(), Error> {
        if let Some(batch) = self.batch.take() {
            let put = self.put_batch(&batch, false);
            if let Err(error) = put {
                self.batch = Some(batch);
                return Err(error);
            }
            self.has_put(batch)?;
        }
        Ok(())
    }

    /// Records that the store holds a batch now, and makes it durable if SQLite has asked for that.
    pub(super) fn has_put(&mut self, batch: Batch) -> Result<(), Error> {
        let (node, is_synced) = (Arc::clone(&batch.node), batch.is_synced);
        self.last = Some(batch);
        self.forget_unused(&node);
        if is_synced { self.store.sync() } else { Ok(()) }
    }

    /// Records that the file in the store may differ from the last batch put there.
    pub(super) fn forget_last(&mut self, node: &Arc<Node>) {
        self.last.take_if(|last| Arc::ptr_eq(&last.node, node));
    }

    /// As [`told`](Self::told), for an error at a write to the database, its truncation, a sync, or the end of the
    /// journal: SQLite then rolls the whole transaction back, or lets a checkpoint fail. Waiting pages are dropped, so
    /// that the original pages find room.
    pub(super) fn given_up<T>(&mut self, put: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &put
            && is_no_room(error)
        {
            self.batch = None;
            if let Some(pending) = &mut self.pending {
                pending.is_given_up = true;
            }
        }
        self.told(put)
    }

    /// Puts a batch into the store. If `at_once`, returns false if the batch is too large to be put atomically.
    pub(super) fn put_batch(&mut self, batch: &Batch, at_once: bool) -> Result<bool, Error> {
        if self.file(&batch.node).is_none() {
            return Ok(true);
        }
        let handle = self.handle_or_create(&batch.node)?;
        let last = self
            .last
            .take_if(|last| Arc::ptr_eq(&last.node, &batch.node));
        let joined = batch.joined(last.as_ref());
        let pieces: Vec<(u64, &[u8])> = joined
            .iter()
            .map(|(offset, data)| (*offset, data.as_slice()))
            .collect();
        let put = if at_once {
            self.store.write_pieces_at_once(handle, &pieces)
        } else {
            self.store
                .write_pieces_nosync(handle, &pieces)
                .map(|()| true)
        };
        if matches!(put, Ok(false)) {
            self.last = last;
        } else {
            for (offset, data) in batch.pieces() {
                let known = put.is_ok().then_some(data);
                self.note_head(&batch.node, offset, known);
            }
        }
        put
    }

    pub(crate) fn write(
        &mut self,
        node: &Arc<Node>,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Error> {
        if self.is_deleted(node) {
            return Err(Error::StaleHandle);
        }
        match node.kind {
            Kind::Database => self.write_database(node, offset, data),
            Kind::Journal => self.write_journal(node, offset, data),
            Kind::Log => {
                if offset == 0 {
                    // A new head: the log begins again, and every frame behind the head becomes void. After truncating,
                    // the following frames are appended, which costs a fraction of overwriting.
                    self.truncate(node, 0)?;
                }
                self.write_log(node, offset, data)
            }
            Kind::SuperJournal => {
                self.put_all()?;
                self.write_now(node, offset, data)
            }
        }
    }

    pub(super) fn write_database(
        &mut self,
        node: &Arc<Node>,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Error> {
        let behind_its_journal = |pending: &PendingWrite| pending.node.is_journal_of(&node.name);
        let may_stay = self.pending.as_ref().is_none_or(behind_its_journal)
            && (self.batch.is_none() || self.batch_of(node).is_some());
        if !may_stay {
            self.put_before(&node.name)?;
        }
        if self
            .pending
            .as_ref()
            .is_some_and(|pending| !behind_its_journal(pending))
            || self.batch.is_some() && self.batch_of(node).is_none()
        {
            // Other writes are waiting on a full store, so this one cannot wait.
            return self.write_now(node, offset, data);
        }
        let batch = self
            .batch
            .get_or_insert_with(|| Batch::new(Arc::clone(node)));
        if batch.add(offset, data) {
            return Ok(());
        }
        let put = self.put_all_that_fits();
        self.given_up(put)?;
        if data.len() > WAITS_BYTES_MAX {
            return self.write_now(node, offset, data);
        }
        let mut batch = Batch::new(Arc::clone(node));
        batch.add(offset, data);
        self.batch = Some(batch);
        Ok(())
    }

    pub(super) fn write_journal(
        &mut self,
        node: &Arc<Node>,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Error> {
        if offset == 0 && data.first() == Some(&0) {
            return self.end_journal(node, End::Voided);
        }
        if self.batch.is_none()
            && let Some(pending) = &mut self.pending
            && Arc::ptr_eq(&pending.node, node)
            && pending.add(offset, data)
        {
            return Ok(());
        }
        self.put_before(&node.name)?;
        if self.pending.is_some() || self.batch.is_some() || data.len() > WAITS_BYTES_MAX {
            return self.write_now(node, offset, data);
        }
        let mut pending = PendingWrite::new(Arc::clone(node), offset, data);
        pending.is_whole_journal = offset == 0 && self.is_void(node)?;
        self.pending = Some(pending);
        Ok(())
    }

    pub(super) fn write_log(
        &mut self,
        node: &Arc<Node>,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Error> {
        if let Some(pending) = &mut self.pending
            && Arc::ptr_eq(&pending.node, node)
            && pending.end() == offset
        {
            pending.bytes.extend_from_slice(data);
            if pending.bytes.len() <= HEAD_WAITS_BYTES_MAX {
                return Ok(());
            }
            let put = self.put_all();
            // If this failed, drop the head: it is useless without its content, and SQLite writes both again.
            self.pending = None;
            return put;
        }
        self.put_before(&node.name)?;
        let may_wait = self.pending.is_none() && self.batch.is_none();
        if may_wait && data.len() <= HEAD_WAITS_BYTES_MAX && self.length_in_store(node)? == offset {
            self.pending = Some(PendingWrite::new(Arc::clone(node), offset, data));
            Ok(())
        } else {
            self.write_now(node, offset, data)
        }
    }

    /// Makes all writes to the file durable.
    ///
    /// The exception is a transaction whose journal has not ended and is not in the store. Until its end nothing has
    /// been committed, so nothing can be lost. SQLite syncs the journal before it changes the database, and the
    /// database before it ends the journal. When the journal ends, all of that is done at once, or in this order.
    pub(crate) fn sync(&mut self, node: &Arc<Node>) -> Result<(), Error> {
        let is_database = self.batch_of(node).is_some();
        if let Some(pending) = &mut self.pending
            && pending.is_whole_journal
        {
            if Arc::ptr_eq(&pending.node, node) {
                pending.is_synced = true;
                // If the transaction continues, the next pages are not the original ones. Once it has been given up,
                // SQLite syncs the journal only to play it back.
                pending.was_refused &= pending.is_given_up;
                return Ok(());
            }
            if let Some(batch) = &mut self.batch
                && is_database
                && pending.is_synced
            {
                batch.is_synced = true;
                return Ok(());
            }
        }
        let is_given_up = self
            .pending_of(node)
            .is_some_and(|pending| pending.is_given_up);
        let put = if is_given_up {
            // SQLite is about to play the journal back.
            self.put_all_that_fits()
        } else {
            self.put_before(&node.name)
        };
        self.given_up(put)?;
        self.store.sync()
    }

    /// Ends a journal: its transaction is committed, or was rolled back.
    pub(super) fn end_journal(&mut self, node: &Arc<Node>, end: End) -> Result<(), Error> {
        if self.pending_of(node).is_some() && self.journal_can_be_left_out() {
            let put = self.commit_without_journal();
            self.given_up(put)?;
        }
        if self.batch.is_none() {
            // No change of the database depends on it any more.
            self.pending
                .take_if(|pending| Arc::ptr_eq(&pending.node, node));
        }
        let is_concerned = self.is_concerned(&node.name);
        match self.put_all_that_fits() {
            Err(error) if is_no_room(&error) && !is_concerned => {}
            put => self.given_up(put)?,
        }
        match end {
            End::Deleted => self.delete_now(&node.name)?,
            End::Emptied => self.truncate_now(node, 0)?,
            End::Voided => {
                if !self.is_void(node)? {
                    self.write_now(node, 0, &[0; VOID_BYTES])?;
                }
            }
        }
        self.forget_unused(node);
        Ok(())
    }

    /// Makes the changes of a transaction atomically, if they are few enough, so that its journal need not be written.
    /// Otherwise everything stays waiting.
    pub(super) fn commit_without_journal(&mut self) -> Result<(), Error> {
        let Some(batch) = self.batch.take() else {
            return Ok(());
        };
        match self.put_batch(&batch, true) {
            Ok(true) => {
                self.pending = None;
                self.has_put(batch)
            }
            Ok(false) => {
                self.batch = Some(batch);
                Ok(())
            }
            Err(error) => {
                self.batch = Some(batch);
                Err(error)
            }
        }
    }
}

pub(super) fn is_no_room(error: &Error) -> bool {
    matches!(error, Error::Full | Error::NameTableFull)
}

/// Bytes of a journal's head that SQLite overwrites with zeros.
const VOID_BYTES: usize = 28;
