//! What waits to be written: when it goes to the store, in which order, and what needs not go there at all.
//!
//! Invariant: what waits goes to the store in the order in which SQLite wrote it, with the syncs between. Only a
//! transaction of which the store has nothing yet may go there all at once, without its journal.

use std::sync::Arc;

use flash::Error;

use super::{End, Files, HEAD_WAITS_BYTES_MAX, JOURNAL_ENDING, LOG_ENDING, WAITS_BYTES_MAX};
use crate::image::{Kind, Node};
use crate::waiting::{Batch, Held};

impl Files {
    pub(super) fn held_of(&self, node: &Arc<Node>) -> Option<&Held> {
        self.held
            .as_ref()
            .filter(|held| Arc::ptr_eq(&held.node, node))
    }

    pub(super) fn batch_of(&self, node: &Arc<Node>) -> Option<&Batch> {
        self.batch
            .as_ref()
            .filter(|batch| Arc::ptr_eq(&batch.node, node))
    }

    /// Whether all of a journal that has not ended waits, and nothing of it is in the store; so nothing of what it is
    /// for is there either.
    pub(super) fn journal_can_be_left_out(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.is_whole_journal)
    }

    /// Whether a journal in the store says nothing: it has no content, or zeros for a head.
    pub(super) fn is_void(&mut self, node: &Arc<Node>) -> Result<bool, Error> {
        let mut first = [0];
        let count = self.read_in_store(node, 0, &mut first)?;
        Ok(count == 0 || first == [0])
    }

    /// Whether what waits belongs to the file called `name`, or to its journal, or to the database of that journal.
    pub(super) fn is_concerned(&self, name: &str) -> bool {
        let is_own = |node: &Node| {
            let database = node.name.as_str();
            node.name == name
                || node.is_journal_of(name)
                || name.strip_suffix(JOURNAL_ENDING) == Some(database)
        };
        self.held.as_ref().is_some_and(|held| is_own(&held.node))
            || self.batch.as_ref().is_some_and(|batch| is_own(&batch.node))
    }

    /// Gives the store what waits, before a change of the file called `name`. If that has nothing to do with what
    /// waits, it must not fail for want of room: SQLite rolls back on a full store.
    pub(super) fn put_before(&mut self, name: &str) -> Result<(), Error> {
        let is_concerned = self.is_concerned(name);
        let is_held = self
            .held
            .as_ref()
            .is_some_and(|held| held.node.name == name);
        // Whoever changes something else does not say that a transaction is taken back: pages that wait may still be
        // those of a transaction whose journal has found no room.
        let put = if is_held || !is_concerned {
            self.put_all()
        } else {
            self.put_all_that_fits()
        };
        match put {
            Err(error) if is_no_room(&error) && !is_concerned => Ok(()),
            put => self.told(put),
        }
    }

    /// Takes note that SQLite hears of a journal for which there is no room.
    pub(super) fn told<T>(&mut self, put: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &put
            && is_no_room(error)
            && let Some(held) = &mut self.held
        {
            held.was_refused = true;
        }
        put
    }

    /// Gives the store all that waits, in the order in which it came, with the syncs between. What fails goes on
    /// waiting: SQLite has been told that it was written.
    pub(super) fn put_all(&mut self) -> Result<(), Error> {
        self.put_held()?;
        self.put_rest()
    }

    /// As [`put_all`](Self::put_all), but a journal that was refused for want of room stays behind. SQLite knows that
    /// it was, and can only roll back: what it writes to the database then is what that has held before.
    pub(super) fn put_all_that_fits(&mut self) -> Result<(), Error> {
        let was_refused = self.held.as_ref().is_some_and(|held| held.was_refused);
        match self.put_held() {
            Err(error) if is_no_room(&error) && was_refused => {}
            put => put?,
        }
        self.put_rest()
    }

    /// Gives the store what waits, except for a transaction that has not ended and of which the store has nothing.
    /// Where there is no room for it, it goes on waiting: that is for the sync to tell.
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

    pub(super) fn put_held(&mut self) -> Result<(), Error> {
        if let Some(mut held) = self.held.take() {
            let is_open = self.file(&held.node).is_some();
            if is_open && let Err(error) = self.write_now(&held.node, held.offset, &held.bytes) {
                if held.is_whole_journal && is_no_room(&error) {
                    // A part of it may be there. Nothing depends on that yet, and emptying needs no room.
                    let emptied = self.truncate_now(&held.node, 0);
                    held.is_whole_journal = emptied.is_ok();
                }
                self.held = Some(held);
                return Err(error);
            }
            let is_synced = held.is_synced;
            self.forget_unused(&held.node);
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

    /// The store has a batch now; if SQLite has asked for that, durably.
    pub(super) fn has_put(&mut self, batch: Batch) -> Result<(), Error> {
        let (node, is_synced) = (Arc::clone(&batch.node), batch.is_synced);
        self.last = Some(batch);
        self.forget_unused(&node);
        if is_synced { self.store.sync() } else { Ok(()) }
    }

    /// Takes note that the store holds, or may hold, something else than was put there last.
    pub(super) fn forget_last(&mut self, node: &Arc<Node>) {
        self.last.take_if(|last| Arc::ptr_eq(&last.node, node));
    }

    /// As [`told`](Self::told), of a write to the database, of cutting it, of a sync, or at the end of the journal:
    /// SQLite takes the whole transaction back then, or has a checkpoint fail. Pages that wait are let go, so that
    /// those of before find room.
    pub(super) fn given_up<T>(&mut self, put: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &put
            && is_no_room(error)
        {
            self.batch = None;
            if let Some(held) = &mut self.held {
                held.is_given_up = true;
            }
        }
        self.told(put)
    }

    /// Gives the store a batch; at once, if that is asked for: false if it is too much for that.
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
                    // A new head: the log begins again, and every frame behind the head has become void. Without
                    // them what follows is appended, which costs a fraction of overwriting.
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
        let behind_its_journal = |held: &Held| held.node.is_journal_of(&node.name);
        let may_stay = self.held.as_ref().is_none_or(behind_its_journal)
            && (self.batch.is_none() || self.batch_of(node).is_some());
        if !may_stay {
            self.put_before(&node.name)?;
        }
        if self
            .held
            .as_ref()
            .is_some_and(|held| !behind_its_journal(held))
            || self.batch.is_some() && self.batch_of(node).is_none()
        {
            // Something else has to wait, on a full store.
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
            && let Some(held) = &mut self.held
            && Arc::ptr_eq(&held.node, node)
            && held.add(offset, data)
        {
            return Ok(());
        }
        self.put_before(&node.name)?;
        if self.held.is_some() || self.batch.is_some() || data.len() > WAITS_BYTES_MAX {
            return self.write_now(node, offset, data);
        }
        let mut held = Held::new(Arc::clone(node), offset, data);
        held.is_whole_journal = offset == 0 && self.is_void(node)?;
        self.held = Some(held);
        Ok(())
    }

    pub(super) fn write_log(
        &mut self,
        node: &Arc<Node>,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Error> {
        if let Some(held) = &mut self.held
            && Arc::ptr_eq(&held.node, node)
            && held.end() == offset
        {
            held.bytes.extend_from_slice(data);
            if held.bytes.len() <= HEAD_WAITS_BYTES_MAX {
                return Ok(());
            }
            let put = self.put_all();
            // If it failed: a head without its content is worth nothing, SQLite writes both again.
            self.held = None;
            return put;
        }
        self.put_before(&node.name)?;
        let may_wait = self.held.is_none() && self.batch.is_none();
        if may_wait && data.len() <= HEAD_WAITS_BYTES_MAX && self.length_in_store(node)? == offset {
            self.held = Some(Held::new(Arc::clone(node), offset, data));
            Ok(())
        } else {
            self.write_now(node, offset, data)
        }
    }

    /// Makes durable what was written to the file.
    ///
    /// But for a transaction whose journal has not ended and is not in the store: until then nothing has been
    /// committed, so nothing can be lost. SQLite syncs the journal before it changes the database, and the database
    /// before it ends the journal; when the journal ends, all of that is done at once, or in this order.
    pub(crate) fn sync(&mut self, node: &Arc<Node>) -> Result<(), Error> {
        let is_database = self.batch_of(node).is_some();
        if let Some(held) = &mut self.held
            && held.is_whole_journal
        {
            if Arc::ptr_eq(&held.node, node) {
                held.is_synced = true;
                // If the transaction goes on, pages come next that are not those of before. Once it has been given up,
                // SQLite syncs the journal only to play it back.
                held.was_refused &= held.is_given_up;
                return Ok(());
            }
            if let Some(batch) = &mut self.batch
                && is_database
                && held.is_synced
            {
                batch.is_synced = true;
                return Ok(());
            }
        }
        let is_given_up = self.held_of(node).is_some_and(|held| held.is_given_up);
        let put = if is_given_up {
            // SQLite plays the journal back.
            self.put_all_that_fits()
        } else {
            self.put_before(&node.name)
        };
        self.given_up(put)?;
        self.store.sync()
    }

    /// A journal counts no more: what it was for is committed, or was rolled back.
    pub(super) fn end_journal(&mut self, node: &Arc<Node>, end: End) -> Result<(), Error> {
        if self.held_of(node).is_some() && self.journal_can_be_left_out() {
            let put = self.commit_without_journal();
            self.given_up(put)?;
        }
        if self.batch.is_none() {
            // No change of the database is left behind it.
            self.held.take_if(|held| Arc::ptr_eq(&held.node, node));
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

    /// Makes the changes of a transaction all at once, if they are few enough, so that its journal need not be
    /// written. Otherwise everything goes on waiting.
    pub(super) fn commit_without_journal(&mut self) -> Result<(), Error> {
        let Some(batch) = self.batch.take() else {
            return Ok(());
        };
        match self.put_batch(&batch, true) {
            Ok(true) => {
                self.held = None;
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

/// Whether a file of this name, if it is empty, is as good as none.
pub(super) fn may_be_absent(name: &str) -> bool {
    name.ends_with(JOURNAL_ENDING) || name.ends_with(LOG_ENDING)
}

pub(super) fn is_no_room(error: &Error) -> bool {
    matches!(error, Error::Full | Error::NameTableFull)
}

/// Bytes of a journal's head that SQLite overwrites with zeros.
const VOID_BYTES: usize = 28;
