//! Replacing the whole content of a file: the new content grows without a name, and one record gives it the name.

use base::block::BlockDevice;

use crate::error::{Error, Result};
use crate::layout::COUNTER_END;
use crate::names::name_hint;
use crate::root::{FileState, Slot, SlotKind};
use crate::space::PIECES_PER_FILE;
use crate::store::Store;
use crate::table::{set_entry, validate_name};

/// Size of the buffer of [`Store::replace_from`], in bytes.
const SOURCE_BYTES: usize = 256 << 10;

impl<D: BlockDevice> Store<D> {
    /// Replaces the whole content of a file, creating it if it does not exist. Durable and atomic: after a power cut
    /// the file has the old or the new content. Handles on the old content become stale.
    ///
    /// # Errors
    /// As [`create`](Self::create) and [`append`](Self::append); on any error the file keeps the old content.
    pub fn replace(&mut self, name: &str, data: &[u8]) -> Result<()> {
        self.begin_record()?;
        validate_name(name, self.layout.name_bytes_max)?;
        let lookup = self.look_up(name)?;
        if lookup.found.is_none() && lookup.free.is_none() {
            return Err(Error::NameTableFull);
        }
        let content = FileState::empty(self.next_file_id()?);
        self.check_space_for(&content, data.len() as u64)?;
        if data.is_empty() {
            return self.install(name, content, None);
        }
        let slot = self.begin_temporary(name)?;
        let written = self.append_to_slot(slot, data, true);
        self.settle(name, slot, written)
    }

    /// As [`replace`](Self::replace), with content of any length that `read` provides piece by piece, in bounded
    /// memory. `read` fills a part of the buffer it is given and returns its length, 0 at the end. Returns the bytes
    /// stored.
    ///
    /// # Errors
    /// As [`replace`](Self::replace), and [`Error::Source`] when `read` fails; the file then keeps the old content.
    pub fn replace_from(
        &mut self,
        name: &str,
        read: &mut dyn FnMut(&mut [u8]) -> std::io::Result<usize>,
    ) -> Result<u64> {
        let mut buffer = vec![0; SOURCE_BYTES];
        let mut length = fill(&mut buffer, read)?;
        if length < SOURCE_BYTES {
            return self
                .replace(name, &buffer[..length])
                .map(|()| length as u64);
        }
        self.begin_record()?;
        validate_name(name, self.layout.name_bytes_max)?;
        let lookup = self.look_up(name)?;
        if lookup.found.is_none() && lookup.free.is_none() {
            return Err(Error::NameTableFull);
        }
        let slot = self.begin_temporary(name)?;
        let mut total = 0;
        let mut written = Ok(());
        while length > 0 && written.is_ok() {
            written = self.append_to_slot(slot, &buffer[..length], true);
            total += length as u64;
            if written.is_ok() {
                match fill(&mut buffer, read) {
                    Ok(more) => length = more,
                    Err(error) => written = Err(error),
                }
            }
        }
        self.settle(name, slot, written)?;
        Ok(total)
    }

    /// Takes a slot for new content that has no name yet.
    fn begin_temporary(&mut self, name: &str) -> Result<usize> {
        // If an earlier undo failed because of a failed read, undo it now.
        let left = |slot: &Slot| slot.kind == SlotKind::Temporary;
        if let Some(slot) = self.root.slots.iter().position(left) {
            self.undo_temporary(slot)?;
        }
        let file_id = self.next_file_id()?;
        let slot = self.free_slot()?;
        self.root.slots[slot] = Slot {
            kind: SlotKind::Temporary,
            bucket: 0,
            entry: 0,
            state: FileState::empty(file_id),
        };
        self.root.next_file_id += 1;
        self.root_changed = true;
        self.tails[slot].forget();
        self.tails[slot].name_hint = name_hint(name);
        Ok(slot)
    }

    /// Gives the temporary content to `name` if it was written, otherwise frees it.
    fn settle(&mut self, name: &str, slot: usize, written: Result<()>) -> Result<()> {
        let content = self.root.slots[slot].state;
        let done = written.and_then(|()| self.install(name, content, Some(slot)));
        if done.is_err() {
            self.undo_temporary(slot)?;
        }
        done
    }

    /// Gives `name` the new content and frees the old content, in one record.
    fn install(&mut self, name: &str, content: FileState, temporary: Option<usize>) -> Result<()> {
        self.make_piece_room(PIECES_PER_FILE)?;
        // Look up again: evicting another file may have changed the bucket since.
        let lookup = self.look_up(name)?;
        let old = lookup.found.as_ref().map(|(_, state)| *state);
        if let Some((place, state)) = &lookup.found {
            self.require_own_slot(place.bucket, place.entry, state)?;
        }
        let place = lookup
            .found
            .map(|(place, _)| place)
            .or(lookup.free)
            .ok_or(Error::NameTableFull)?;
        let image = self.begin_table_image(place.bucket, place.scratch)?;
        set_entry(
            self.images.block_mut(image),
            place.entry,
            Some((name, &content)),
            &self.layout,
        );
        match old {
            Some(state) => {
                self.forget_file(&state);
                self.keep_something_plain();
            }
            None => self.root.files = (self.root.files + 1).min(COUNTER_END - 1),
        }
        match temporary {
            Some(slot) => {
                self.root.slots[slot] = Slot {
                    kind: SlotKind::Named,
                    bucket: place.bucket,
                    entry: place.entry,
                    state: content,
                };
            }
            None => self.root.next_file_id += 1,
        }
        self.commit()
    }

    /// Frees the blocks written by a failed replace.
    fn undo_temporary(&mut self, slot: usize) -> Result<()> {
        if self.has_failed() {
            // Recovery frees them when the store is opened again.
            return Ok(());
        }
        self.make_piece_room(PIECES_PER_FILE)?;
        let state = self.root.slots[slot].state;
        self.free_file(&state);
        self.keep_something_plain();
        self.root.slots[slot] = Slot::default();
        self.commit()
    }
}

/// Fills the buffer from `read` until it is full or the source ends.
fn fill(
    buffer: &mut [u8],
    read: &mut dyn FnMut(&mut [u8]) -> std::io::Result<usize>,
) -> Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(more) => length = (length + more).min(buffer.len()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::Source(error)),
        }
    }
    Ok(length)
}
