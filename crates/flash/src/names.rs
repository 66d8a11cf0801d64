//! Files by name: create, open, delete, rename, list, stat. Each change is one record, hence atomic.

use base::block::BlockDevice;

use crate::block::{NAME_HINT_BYTES, NameHint};
use crate::error::{Error, Part, Result};
use crate::layout::{COUNTER_END, FILE_ID_END};
use crate::root::{FileState, Slot};
use crate::space::{PIECES_PER_FILE, PIECES_WITHOUT_SPILL};
use crate::store::{FileHandle, OpenFile, Stat, Store};
use crate::table::{buckets_of, set_entry, validate_name};

/// First scratch block for the buckets of a name, and for the buckets of a second name.
const SCRATCH_NAME: usize = 1;
const SCRATCH_OTHER_NAME: usize = 3;

/// The place of a name, or a place for a new name.
pub(crate) struct Place {
    pub(crate) bucket: u32,
    /// Block of the scratch buffer that holds the bucket.
    pub(crate) scratch: usize,
    pub(crate) entry: u16,
}

/// The result of looking a name up in its two buckets.
pub(crate) struct Lookup {
    pub(crate) found: Option<(Place, FileState)>,
    /// Free entry in the emptier bucket.
    pub(crate) free: Option<Place>,
}

impl<D: BlockDevice> Store<D> {
    /// Creates an empty file and opens it. Durable and atomic.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NameInvalid`], [`Error::NameTableFull`], [`Error::TooManyOpenFiles`],
    /// [`Error::Damaged`], [`Error::Device`], [`Error::Failed`], [`Error::ReadOnly`].
    pub fn create(&mut self, name: &str) -> Result<FileHandle> {
        self.begin_record()?;
        let place = self.place_for_new(name)?;
        // Get the handle first: nothing may fail once the file exists.
        let handle = self.free_handle()?;
        let state = FileState::empty(self.next_file_id()?);
        let image = self.begin_table_image(place.bucket, place.scratch)?;
        set_entry(
            self.images.block_mut(image),
            place.entry,
            Some((name, &state)),
            &self.layout,
        );
        self.root.next_file_id += 1;
        self.root.files = (self.root.files + 1).min(COUNTER_END - 1);
        self.commit()?;
        Ok(self.fill_handle(handle, &place, state, name))
    }

    /// Opens an existing file. Opening it again returns the same handle, which must be closed as often as it was
    /// opened.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NameInvalid`], [`Error::TooManyOpenFiles`], [`Error::Damaged`],
    /// [`Error::Device`].
    pub fn open_file(&mut self, name: &str) -> Result<FileHandle> {
        let (place, state) = self.find(name)?;
        let same = |file: &OpenFile| {
            file.references > 0
                && file.state.file_id == state.file_id
                && (file.bucket, file.entry) == (place.bucket, place.entry)
        };
        if let Some(index) = self.files.iter().position(same) {
            self.files[index].references += 1;
            return Ok(FileHandle {
                index: index as u32,
                generation: self.files[index].generation,
            });
        }
        let handle = self.free_handle()?;
        Ok(self.fill_handle(handle, &place, state, name))
    }

    /// Closes a handle and ignores an unknown one. Writes nothing: every append was durable already.
    pub fn close_file(&mut self, file: FileHandle) {
        if let Ok(index) = self.open_index(file) {
            self.files[index].references -= 1;
        }
    }

    /// Length of an open file in bytes.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub fn length(&self, file: FileHandle) -> Result<u64> {
        Ok(self.state_of(self.open_index(file)?).length())
    }

    /// Returns what the store knows about the file called `name`.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NameInvalid`], [`Error::Damaged`], [`Error::Device`].
    pub fn stat(&mut self, name: &str) -> Result<Stat> {
        self.find(name).map(|(_, state)| Stat::of(&state))
    }

    /// Deletes a file of any length at constant cost. Durable and atomic; works on a full store.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NameInvalid`], [`Error::Damaged`], [`Error::Device`],
    /// [`Error::Failed`], [`Error::ReadOnly`].
    pub fn delete(&mut self, name: &str) -> Result<()> {
        self.begin_record()?;
        validate_name(name, self.layout.name_bytes_max)?;
        self.make_piece_room(PIECES_PER_FILE)?;
        let (place, state) = self.find(name)?;
        self.require_own_slot(place.bucket, place.entry, &state)?;
        let image = self.begin_table_image(place.bucket, place.scratch)?;
        set_entry(
            self.images.block_mut(image),
            place.entry,
            None,
            &self.layout,
        );
        self.forget_file(&state);
        self.root.files = self.root.files.saturating_sub(1);
        self.keep_something_plain();
        self.commit()
    }

    /// Renames the file `from` to `to` and replaces a file of that name if there is one. Durable and atomic. Handles on
    /// the renamed file stay valid; handles on a replaced file become stale.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NameInvalid`], [`Error::NameTableFull`], [`Error::Damaged`],
    /// [`Error::Device`], [`Error::Failed`], [`Error::ReadOnly`].
    pub fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        self.begin_record()?;
        validate_name(to, self.layout.name_bytes_max)?;
        self.make_piece_room(PIECES_WITHOUT_SPILL)?;
        let (source, state) = self.find(from)?;
        if from == to {
            return Ok(());
        }
        self.require_own_slot(source.bucket, source.entry, &state)?;
        let target = self.look_up_at(to, SCRATCH_OTHER_NAME)?;
        let replaced = target.found.as_ref().map(|(_, state)| *state);
        if let Some((place, replaced)) = &target.found {
            self.require_own_slot(place.bucket, place.entry, replaced)?;
        }
        let place = target.found.map(|(place, _)| place).or(target.free);
        let place = match place {
            Some(place) => place,
            // If the new name may be in the same bucket, the renamed file can reuse its own entry.
            None if buckets_of(to, &self.layout).contains(&source.bucket) => Place { ..source },
            None => return Err(Error::NameTableFull),
        };
        // The entry keeps the state that is in the table; the state of a file that is being appended to is newer.
        let recorded = self
            .bucket_at(source.bucket, source.scratch)?
            .get(source.entry)
            .map_or(state, |(_, recorded)| recorded);
        let image = self.begin_table_image(source.bucket, source.scratch)?;
        let block = self.images.block_mut(image);
        set_entry(block, source.entry, None, &self.layout);
        let image = if place.bucket == source.bucket {
            image
        } else {
            self.begin_table_image(place.bucket, place.scratch)?
        };
        let block = self.images.block_mut(image);
        set_entry(block, place.entry, Some((to, &recorded)), &self.layout);
        if let Some(replaced) = replaced {
            self.forget_file(&replaced);
            self.keep_something_plain();
            self.root.files = self.root.files.saturating_sub(1);
        }
        if let Some(slot) = self.root.slot_of(state.file_id) {
            let slot = &mut self.root.slots[slot];
            (slot.bucket, slot.entry) = (place.bucket, place.entry);
        }
        self.commit()?;
        for file in &mut self.files {
            if file.references > 0 && file.state.file_id == state.file_id {
                (file.bucket, file.entry) = (place.bucket, place.entry);
                file.name_hint = name_hint(to);
            }
        }
        Ok(())
    }

    /// Calls `visit` for every file, in no particular order. Reads each block of the name table once. An entry with an
    /// invalid name is damage and not a file.
    ///
    /// # Errors
    /// [`Error::Damaged`] for the first damaged table block, after all others have been visited;
    /// [`Error::Device`].
    pub fn list(&mut self, visit: &mut dyn FnMut(&str, &Stat)) -> Result<()> {
        let mut damaged = None;
        for bucket in 0..self.layout.bucket_count {
            match self.read_bucket(bucket, 1) {
                Ok(()) => {}
                Err(error @ Error::Damaged { .. }) => {
                    damaged.get_or_insert(error);
                    continue;
                }
                Err(error) => return Err(error),
            }
            let opened = self.bucket_at(bucket, 1)?;
            let known = |name: &str| validate_name(name, self.layout.name_bytes_max).is_ok();
            for (_, name, state) in opened.entries().filter(|(_, name, _)| known(name)) {
                let state = self.current(&state);
                visit(name, &Stat::of(&state));
            }
        }
        damaged.map_or(Ok(()), Err)
    }

    // ---- looking up ----

    /// Returns the state of a file from the root if the file is being appended to, otherwise from the table.
    pub(crate) fn current(&self, table: &FileState) -> FileState {
        self.root
            .slot_of(table.file_id)
            .map_or(*table, |slot| self.root.slots[slot].state)
    }

    pub(crate) fn look_up(&mut self, name: &str) -> Result<Lookup> {
        self.look_up_at(name, SCRATCH_NAME)
    }

    /// Looks a name up and leaves its buckets in the scratch buffer from block `scratch_first` on.
    fn look_up_at(&mut self, name: &str, scratch_first: usize) -> Result<Lookup> {
        validate_name(name, self.layout.name_bytes_max)?;
        let mut lookup = Lookup {
            found: None,
            free: None,
        };
        let mut damaged = None;
        let mut used_least = u16::MAX;
        for (choice, bucket) in buckets_of(name, &self.layout).into_iter().enumerate() {
            let scratch = scratch_first + choice;
            match self.read_bucket(bucket, scratch) {
                Ok(()) => {}
                Err(error @ Error::Damaged { .. }) => {
                    damaged = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            }
            let opened = self.bucket_at(bucket, scratch)?;
            if let Some((entry, state)) = opened.find(name) {
                let state = self.current(&state);
                lookup.found = Some((
                    Place {
                        bucket,
                        scratch,
                        entry,
                    },
                    state,
                ));
                return Ok(lookup);
            }
            if let Some(entry) = opened.first_free()
                && opened.used() < used_least
            {
                used_least = opened.used();
                lookup.free = Some(Place {
                    bucket,
                    scratch,
                    entry,
                });
            }
        }
        // The name may be in the block that cannot be read, so the result is unknown.
        damaged.map_or(Ok(lookup), Err)
    }

    pub(crate) fn find(&mut self, name: &str) -> Result<(Place, FileState)> {
        self.look_up(name)?.found.ok_or(Error::NotFound)
    }

    fn place_for_new(&mut self, name: &str) -> Result<Place> {
        let lookup = self.look_up(name)?;
        if lookup.found.is_some() {
            return Err(Error::Exists);
        }
        lookup.free.ok_or(Error::NameTableFull)
    }

    /// Removes a file from memory and frees its blocks, as part of the next record.
    pub(crate) fn forget_file(&mut self, state: &FileState) {
        if let Some(slot) = self.root.slot_of(state.file_id) {
            self.root.slots[slot] = Slot::default();
            self.tails[slot].forget();
        }
        self.free_file(state);
        for file in &mut self.files {
            if file.references > 0 && file.state.file_id == state.file_id {
                file.references = 0;
                file.generation = file.generation.wrapping_add(1);
            }
        }
    }

    /// Returns the identity of the next file. Damage or a forged image may have taken the root's identities to their
    /// end.
    pub(crate) fn next_file_id(&self) -> Result<u64> {
        if self.root.next_file_id < FILE_ID_END - 1 {
            Ok(self.root.next_file_id)
        } else {
            Err(self.record_is_damaged())
        }
    }

    /// Checks that a file that is being appended to owns its slot; its identity tells the slot. If the slot with that
    /// identity belongs to another entry, the entry is forged, or the root is older than the table. Changing one of
    /// them would then change the other.
    pub(crate) fn require_own_slot(
        &self,
        bucket: u32,
        entry: u16,
        state: &FileState,
    ) -> Result<()> {
        let slot = self.root.slot_of(state.file_id);
        let slot = slot.map(|slot| &self.root.slots[slot]);
        if slot.is_none_or(|slot| (slot.bucket, slot.entry) == (bucket, entry)) {
            return Ok(());
        }
        Err(Error::Damaged {
            part: Part::Table,
            block: self.layout.bucket_block(bucket),
            offset: None,
        })
    }

    // ---- handles ----

    pub(crate) fn open_index(&self, file: FileHandle) -> Result<usize> {
        let index = file.index as usize;
        let valid = self
            .files
            .get(index)
            .is_some_and(|open| open.references > 0 && open.generation == file.generation);
        if valid {
            Ok(index)
        } else {
            Err(Error::StaleHandle)
        }
    }

    /// As [`open_index`](Self::open_index), for a call that changes the file.
    pub(crate) fn index_to_change(&self, file: FileHandle) -> Result<usize> {
        let index = self.open_index(file)?;
        let OpenFile { bucket, entry, .. } = self.files[index];
        self.require_own_slot(bucket, entry, &self.files[index].state)?;
        Ok(index)
    }

    pub(crate) fn state_of(&self, index: usize) -> FileState {
        self.current(&self.files[index].state)
    }

    fn free_handle(&self) -> Result<usize> {
        self.files
            .iter()
            .position(|file| file.references == 0)
            .ok_or(Error::TooManyOpenFiles)
    }

    fn fill_handle(
        &mut self,
        index: usize,
        place: &Place,
        state: FileState,
        name: &str,
    ) -> FileHandle {
        let file = &mut self.files[index];
        file.generation = file.generation.wrapping_add(1);
        file.references = 1;
        file.bucket = place.bucket;
        file.entry = place.entry;
        file.state = state;
        file.name_hint = name_hint(name);
        FileHandle {
            index: index as u32,
            generation: file.generation,
        }
    }
}

/// Returns the beginning of a name, for the first block of its file.
pub(crate) fn name_hint(name: &str) -> NameHint {
    let mut hint = [0; NAME_HINT_BYTES];
    let mut count = name.len().min(NAME_HINT_BYTES);
    while !name.is_char_boundary(count) {
        count -= 1;
    }
    hint[..count].copy_from_slice(&name.as_bytes()[..count]);
    hint
}
