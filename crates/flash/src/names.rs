//! Files by name: create, open, delete, replace, list, stat. Each is one record, hence atomic.

use base::block::BlockDevice;

use crate::error::{Error, Result};
use crate::layout::TABLE_COPIES;
use crate::root::{FileState, Slot, SlotKind};
use crate::space::PIECES_PER_FILE;
use crate::store::{FileHandle, OpenFile, Stat, Store};
use crate::table::{buckets_of, set_entry, validate_name};

/// Bytes that [`Store::replace_from`] holds in memory.
const SOURCE_BYTES: usize = 256 << 10;

/// Where a name is, or where it would go.
pub(crate) struct Place {
    pub(crate) bucket: u32,
    /// Block of the scratch buffer that holds the bucket.
    pub(crate) scratch: usize,
    pub(crate) entry: u16,
}

/// Result of looking a name up in its two buckets.
struct Lookup {
    found: Option<(Place, FileState)>,
    /// Free entry in the emptier bucket.
    free: Option<Place>,
}

impl<D: BlockDevice> Store<D> {
    /// Creates an empty file and opens it. Durable and atomic.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NameInvalid`], [`Error::NameTableFull`], [`Error::TooManyOpenFiles`],
    /// [`Error::Damaged`], [`Error::Device`], [`Error::Failed`], [`Error::ReadOnly`].
    pub fn create(&mut self, name: &str) -> Result<FileHandle> {
        self.begin_change()?;
        let place = self.place_for_new(name)?;
        // A handle first: nothing may fail once the file exists.
        let handle = self.free_handle()?;
        let state = FileState {
            file_id: self.root.next_file_id,
            ..FileState::default()
        };
        self.begin_image(place.bucket, place.scratch);
        set_entry(
            self.image.block_mut(0),
            place.entry,
            Some((name, &state)),
            &self.layout,
        );
        self.root.next_file_id += 1;
        self.root.files += 1;
        self.commit()?;
        Ok(self.fill_handle(handle, &place, state, name))
    }

    /// Opens an existing file. Opening it again gives the same handle; close it as often.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NameInvalid`], [`Error::TooManyOpenFiles`], [`Error::Damaged`],
    /// [`Error::Device`].
    pub fn open_file(&mut self, name: &str) -> Result<FileHandle> {
        let (place, state) = self.find(name)?;
        let same = |file: &OpenFile| file.references > 0 && file.state.file_id == state.file_id;
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

    /// Closes a handle; an unknown one is ignored. Nothing is written: every append was durable already.
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

    /// What is known of the file called `name`.
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
        self.begin_change()?;
        validate_name(name, self.layout.name_bytes_max)?;
        self.make_piece_room(PIECES_PER_FILE)?;
        let (place, state) = self.find(name)?;
        self.begin_image(place.bucket, place.scratch);
        set_entry(self.image.block_mut(0), place.entry, None, &self.layout);
        self.forget_file(&state);
        self.root.files = self.root.files.saturating_sub(1);
        self.commit()
    }

    /// Replaces the whole content of a file, creating it when absent. Durable and atomic: after a power cut
    /// the file is the old one or the new one. Handles on the old content become stale.
    ///
    /// # Errors
    /// As [`create`](Self::create) and [`append`](Self::append); on any error the file is the old one.
    pub fn replace(&mut self, name: &str, data: &[u8]) -> Result<()> {
        self.begin_change()?;
        validate_name(name, self.layout.name_bytes_max)?;
        let lookup = self.look_up(name)?;
        if lookup.found.is_none() && lookup.free.is_none() {
            return Err(Error::NameTableFull);
        }
        let content = FileState {
            file_id: self.root.next_file_id,
            ..FileState::default()
        };
        self.check_space_for(&content, data.len())?;
        if data.is_empty() {
            return self.install(name, content, None);
        }
        let slot = self.begin_temporary()?;
        let written = self.append_to_slot(slot, data);
        self.settle(name, slot, written)
    }

    /// As [`replace`](Self::replace), with content of any length that `read` hands over piece by piece, in
    /// bounded memory. `read` fills a part of the buffer it is given and returns its length, 0 at the end.
    /// Returns the bytes stored.
    ///
    /// # Errors
    /// As [`replace`](Self::replace), and [`Error::Source`] when `read` fails; the file is then the old one.
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
        self.begin_change()?;
        validate_name(name, self.layout.name_bytes_max)?;
        let lookup = self.look_up(name)?;
        if lookup.found.is_none() && lookup.free.is_none() {
            return Err(Error::NameTableFull);
        }
        let slot = self.begin_temporary()?;
        let mut total = 0;
        let mut written = Ok(());
        while length > 0 && written.is_ok() {
            written = self.append_to_slot(slot, &buffer[..length]);
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

    /// A slot for new content that no name has yet.
    fn begin_temporary(&mut self) -> Result<usize> {
        let slot = self.free_slot()?;
        self.root.slots[slot] = Slot {
            kind: SlotKind::Temporary,
            bucket: 0,
            entry: 0,
            state: FileState {
                file_id: self.root.next_file_id,
                ..FileState::default()
            },
        };
        self.root.next_file_id += 1;
        self.root_changed = true;
        self.tails[slot].forget();
        Ok(slot)
    }

    /// Gives the temporary content to `name` if it was written, or frees it.
    fn settle(&mut self, name: &str, slot: usize, written: Result<()>) -> Result<()> {
        let content = self.root.slots[slot].state;
        let done = written.and_then(|()| self.install(name, content, Some(slot)));
        if done.is_err() {
            self.undo_temporary(slot)?;
        }
        done
    }

    /// Gives `name` the new content and frees the old, in one record.
    fn install(&mut self, name: &str, content: FileState, temporary: Option<usize>) -> Result<()> {
        self.make_piece_room(PIECES_PER_FILE)?;
        // Looked up anew: evicting another file may have changed the bucket since.
        let lookup = self.look_up(name)?;
        let old = lookup.found.as_ref().map(|(_, state)| *state);
        let place = lookup
            .found
            .map(|(place, _)| place)
            .or(lookup.free)
            .ok_or(Error::NameTableFull)?;
        self.begin_image(place.bucket, place.scratch);
        set_entry(
            self.image.block_mut(0),
            place.entry,
            Some((name, &content)),
            &self.layout,
        );
        match old {
            Some(state) => self.forget_file(&state),
            None => self.root.files += 1,
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

    /// Frees what an unsuccessful replace had written.
    fn undo_temporary(&mut self, slot: usize) -> Result<()> {
        if self.has_failed() {
            // Recovery will do it when the store is opened again.
            return Ok(());
        }
        self.make_piece_room_to_undo()?;
        let state = self.root.slots[slot].state;
        self.free_file(&state);
        self.root.slots[slot] = Slot::default();
        self.commit()
    }

    /// Calls `visit` for every file, in no particular order. Reads each block of the name table once.
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
            for (_, name, state) in opened.entries() {
                let state = self.current(&state);
                visit(name, &Stat::of(&state));
            }
        }
        damaged.map_or(Ok(()), Err)
    }

    // ---- looking up ----

    /// The state of a file as the root knows it, if it is being appended to, else as the table does.
    pub(crate) fn current(&self, table: &FileState) -> FileState {
        self.root
            .slot_of(table.file_id)
            .map_or(*table, |slot| self.root.slots[slot].state)
    }

    fn look_up(&mut self, name: &str) -> Result<Lookup> {
        validate_name(name, self.layout.name_bytes_max)?;
        let mut lookup = Lookup {
            found: None,
            free: None,
        };
        let mut damaged = None;
        let mut used_least = u16::MAX;
        for (choice, bucket) in buckets_of(name, &self.layout).into_iter().enumerate() {
            let scratch = 1 + choice;
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
        // The name may be in the block that cannot be read; so nothing can be said of it.
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

    /// Drops a file from memory and frees its blocks, as part of the next record.
    fn forget_file(&mut self, state: &FileState) {
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
        name.clone_into(&mut file.name);
        FileHandle {
            index: index as u32,
            generation: file.generation,
        }
    }
}

const _: () = assert!(
    TABLE_COPIES == 2,
    "scratch blocks 1 and 2 hold the two buckets of a name"
);

/// Fills the buffer from `read` as far as there is something.
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
