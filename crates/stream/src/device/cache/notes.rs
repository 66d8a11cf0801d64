//! Small values by name: manifests, versions, lists of hashes, plans.

use super::core::{Core, count};
use super::format::{
    ALIGNMENT, Draft, LOG_HEADER_BYTES, LogKind, NOTE_NAME_BYTES_MAX, RECORD_HEADER_BYTES,
    RecordHeader, RecordKind, log_name, padded, sum,
};
use super::index::RecordAt;
use super::logs::{Current, Logs, NotAdded};
use super::note_map::{KEPT_NOTES_MAX, Note, draft, is_list, is_name};
use super::storage::StorageError;
use crate::device::CacheError;

/// Values up to this size are also kept in memory, so that they survive the loss of their file.
const SMALL_BYTES: usize = 1024;

/// Up to this many bytes of outdated notes, a rewrite of the others is not worth it.
const OUTDATED_BYTES_MAX: u64 = 256 << 10;

/// The maximum number of note files.
const FILES_MAX: usize = 4;

/// The maximum number of attempts, which are repeated when files changed or a full disk was given room.
const ATTEMPTS_MAX: u32 = 64;

/// The maximum number of bytes of notes that are held in memory while their files are deleted to make room.
const MOVED_BYTES_MAX: u64 = 16 << 20;

fn cannot(error: &StorageError) -> CacheError {
    match error {
        StorageError::Full => CacheError::Full("for a note in the cache".to_owned()),
        other => CacheError::Io {
            what: "writing a note to the cache".to_owned(),
            source: std::io::Error::other(other.to_string()),
        },
    }
}

/// Returns the value of a note.
pub(super) fn read_note(core: &Core, name: &str) -> Option<Vec<u8>> {
    match find_note(core, name) {
        Ok(value) => value,
        Err(error) => {
            core.fail("reading a note", &error);
            None
        }
    }
}

fn find_note(core: &Core, name: &str) -> Result<Option<Vec<u8>>, StorageError> {
    loop {
        let at = {
            let mut map = core.notes();
            map.clock += 1;
            let now = map.clock;
            let Some(note) = map.notes.get_mut(name) else {
                return Ok(None);
            };
            note.used = now;
            if let Some(small) = &note.small {
                return Ok(Some(small.to_vec()));
            }
            let Some(at) = note.places.last() else {
                return Ok(None);
            };
            *at
        };
        match read_value(core, at, name) {
            Ok(value) => return Ok(Some(value)),
            Err(StorageError::NotFound | StorageError::Damaged) => {
                let mut map = core.notes();
                // If it was rewritten to another place meanwhile, the loop looks there.
                let is_there = map.notes.get(name).and_then(|note| note.places.last()) == Some(&at);
                if is_there {
                    map.lose(name, at);
                    count(&core.counts.damaged, 1);
                }
            }
            Err(other) => return Err(other),
        }
    }
}

fn read_value(core: &Core, at: RecordAt, name: &str) -> Result<Vec<u8>, StorageError> {
    let salt = core.index().salt(at.log).ok_or(StorageError::NotFound)?;
    let mut bytes = vec![0; at.bytes as usize];
    let file = log_name(LogKind::Notes, at.log);
    let offset = u64::from(at.offset);
    core.storage.read(&file, offset, &mut bytes)?;
    let value_at = RECORD_HEADER_BYTES + name.len();
    let is_right = RecordHeader::decode(&bytes, salt, offset).is_some_and(|header| {
        header.kind == RecordKind::Note
            && header.record_bytes() == bytes.len() as u64
            && bytes.get(RECORD_HEADER_BYTES..value_at) == Some(name.as_bytes())
            && sum(salt, offset, &bytes[value_at..]) == header.payload_sum
    });
    match is_right {
        true => Ok(bytes.split_off(value_at)),
        false => Err(StorageError::Damaged),
    }
}

impl Logs {
    /// Keeps a value under a name. It is durable afterwards, except that a list becomes durable only with the next
    /// [`settle`](Self::settle).
    pub(super) fn set_note(
        &mut self,
        core: &Core,
        name: &str,
        value: &[u8],
    ) -> Result<(), CacheError> {
        if !is_name(name) {
            return Err(CacheError::Refused(format!(
                "a note's name has 1 to {NOTE_NAME_BYTES_MAX} letters, digits, points, dashes and underscores"
            )));
        }
        let is_same = match find_note(core, name) {
            Ok(Some(before)) => before == value,
            Ok(None) => value.is_empty(),
            Err(_) => false,
        };
        if is_same {
            return Ok(());
        }
        let bytes = padded((RECORD_HEADER_BYTES + name.len() + value.len()) as u64);
        self.check_limits(core, name, bytes)?;
        if is_list(name) && !self.backoff.may_try() {
            core.fail("writing a note", &StorageError::Full);
            return Err(cannot(&StorageError::Full));
        }
        for _ in 0..ATTEMPTS_MAX {
            match self.write_note(core, name, value) {
                Ok(()) => {
                    self.backoff.worked();
                    return Ok(());
                }
                Err(NotAdded::Changed) => {}
                Err(NotAdded::Storage(error)) => {
                    let is_over = self.total_bytes + bytes > self.budget.bytes_max;
                    if error != StorageError::Full
                        || is_over && self.oldest().is_none()
                        || self.make_room_on_disk(core).is_err()
                    {
                        self.backoff.failed();
                        core.fail("writing a note", &error);
                        return Err(cannot(&error));
                    }
                }
            }
        }
        Err(CacheError::Damaged(
            "another process changes the files of the cache".to_owned(),
        ))
    }

    fn check_limits(&self, core: &Core, name: &str, bytes: u64) -> Result<(), CacheError> {
        let mut map = core.notes();
        let is_allowed = match is_list(name) {
            true => {
                let bytes_max = self.lists_bytes_max();
                map.drop_lists(bytes, bytes_max);
                map.list_bytes + bytes <= bytes_max
            }
            false => {
                // A replaced value does not count twice.
                let before = map.notes.get(name).map_or(0, Note::bytes);
                bytes <= self.budget.bytes_max / 4
                    && map.kept_bytes - before + bytes <= self.budget.bytes_max / 3
                    && map.kept_count < KEPT_NOTES_MAX
            }
        };
        match is_allowed {
            true => Ok(()),
            false => Err(CacheError::Full(format!(
                "the note {name} has {bytes} bytes, too many beside the others in a cache of {}",
                self.budget.bytes_max
            ))),
        }
    }

    fn write_note(&mut self, core: &Core, name: &str, value: &[u8]) -> Result<(), NotAdded> {
        let draft = draft(name, value);
        let number = self.notes.as_ref().map(|current| current.header.number);
        let is_changed = number.is_some_and(|number| !self.measure(core, number));
        if is_changed {
            self.rewrite_notes(core)?;
        } else if self.is_outdated(core) && self.may_rewrite() {
            match self.rewrite_notes(core) {
                // Outdated notes stay until there is room to rewrite the current ones.
                Ok(()) | Err(NotAdded::Storage(StorageError::Full)) => {}
                Err(other) => return Err(other),
            }
        }
        let bytes = draft.padded_bytes() + LOG_HEADER_BYTES as u64;
        self.make_room_for_notes(core, bytes)
            .map_err(NotAdded::Storage)?;
        let mut current = match self.notes.take() {
            Some(current) => current,
            None => self
                .begin(core, LogKind::Notes)
                .map_err(NotAdded::Storage)?,
        };
        let at = self.add_note(core, &current, &draft)?;
        self.notes_given_bytes += draft.padded_bytes();
        current.is_synced = false;
        if !is_list(name) {
            core.storage
                .sync(&current.header.name())
                .map_err(NotAdded::Storage)?;
            current.is_synced = true;
        }
        self.notes = Some(current);
        let mut map = core.notes();
        match value.is_empty() {
            true => drop(map.remove(name)),
            false => {
                let small = (value.len() <= SMALL_BYTES).then(|| value.into());
                map.place(name, at, small);
            }
        }
        Ok(())
    }

    fn add_note(
        &mut self,
        core: &Core,
        current: &Current,
        draft: &Draft<'_>,
    ) -> Result<RecordAt, NotAdded> {
        let offset = self.length(current);
        debug_assert_eq!(offset % ALIGNMENT as u64, 0);
        let mut bytes = Vec::with_capacity(draft.padded_bytes() as usize);
        draft.encode(current.header.salt, offset, &mut bytes);
        self.add(core, current, &bytes)?;
        Ok(RecordAt {
            log: current.header.number,
            offset: offset as u32,
            bytes: (RECORD_HEADER_BYTES + draft.table.len() + draft.payload.len()) as u32,
        })
    }

    fn notes_files(&self) -> Vec<u32> {
        self.files
            .iter()
            .filter(|(_, file)| file.kind == LogKind::Notes)
            .map(|(number, _)| *number)
            .collect()
    }

    fn is_outdated(&self, core: &Core) -> bool {
        let live = core.notes().live_bytes();
        let slack = (self.notes_share() / 4).min(OUTDATED_BYTES_MAX);
        self.notes_bytes() > live + live / 2 + slack || self.notes_files().len() > FILES_MAX
    }

    /// Writes the current notes to a new file and deletes the old files.
    fn rewrite_notes(&mut self, core: &Core) -> Result<(), NotAdded> {
        let old = self.notes_files();
        let bytes = core.notes().live_bytes() + LOG_HEADER_BYTES as u64;
        self.make_room_for_notes(core, bytes)
            .map_err(NotAdded::Storage)?;
        let mut current = self
            .begin(core, LogKind::Notes)
            .map_err(NotAdded::Storage)?;
        let moved = match self.copy_notes(core, &current) {
            Ok(moved) => moved,
            Err(error) => {
                self.notes_rewritten_bytes += self.length(&current);
                // An incomplete copy adds nothing, so delete it.
                let _ = self.delete(core, current.header.number);
                return Err(error);
            }
        };
        {
            let mut map = core.notes();
            for (name, at) in moved {
                map.moved(&name, at);
            }
        }
        for number in old {
            if let Err(error) = self.delete(core, number) {
                core.fail("deleting outdated notes", &error);
            }
        }
        current.is_synced = true;
        self.notes_rewritten_bytes += self.length(&current);
        self.notes = Some(current);
        Ok(())
    }

    /// Makes room on a full disk that holds only notes: removes most lists, and writes the rest to a new file. There is
    /// no room for it beside the old files, so these are deleted first; a seen version has its second place meanwhile.
    /// Returns false if this would free too little.
    pub(super) fn give_up_lists(&mut self, core: &Core) -> bool {
        let (mut names, mut lists): (Vec<_>, Vec<_>) = {
            let map = core.notes();
            let entry = |(name, note): (_, &Note)| (note.used, Box::clone(name), note.bytes());
            map.notes
                .iter()
                .map(entry)
                .partition(|(_, name, _)| !is_list(name))
        };
        // The most recently used lists stay.
        lists.sort_unstable();
        let mut left = self.lists_bytes_max() / 2;
        while let Some(list) = lists.pop().filter(|(_, _, bytes)| *bytes <= left) {
            left -= list.2;
            names.push(list);
        }
        names.sort_unstable();
        let bytes: u64 = names.iter().map(|(_, _, bytes)| bytes).sum();
        let is_worth_it = self.notes_bytes() > 2 * (bytes + LOG_HEADER_BYTES as u64);
        if bytes > MOVED_BYTES_MAX || !is_worth_it {
            return false;
        }
        let value = |(_, name, _): (u64, Box<str>, u64)| {
            let value = find_note(core, &name).ok().flatten()?;
            Some((name, value))
        };
        let values: Vec<_> = names.into_iter().filter_map(value).collect();
        for number in self.notes_files() {
            if let Err(error) = self.delete(core, number) {
                core.fail("making room on a full disk", &error);
                return false;
            }
        }
        let moved = self.write_moved(core, &values);
        let mut map = core.notes();
        map.notes.retain(|_, note| note.small.is_some());
        (map.list_bytes, map.kept_bytes, map.kept_count) = (0, 0, 0);
        let small: Vec<_> = map.notes.drain().collect();
        for (name, mut note) in small {
            // Its old place no longer exists; the next rewrite writes it again.
            note.places.clear();
            map.insert(&name, note);
        }
        for ((name, value), at) in values.iter().zip(moved) {
            let small = (value.len() <= SMALL_BYTES).then(|| value.as_slice().into());
            map.place(name, at, small);
        }
        true
    }

    /// Writes notes to a new file, as many as there is room for. Returns where they lie.
    fn write_moved(&mut self, core: &Core, values: &[(Box<str>, Vec<u8>)]) -> Vec<RecordAt> {
        let mut moved = Vec::with_capacity(values.len());
        let Ok(mut current) = self.begin(core, LogKind::Notes) else {
            return moved;
        };
        for (name, value) in values {
            match self.add_note(core, &current, &draft(name, value)) {
                Ok(at) => moved.push(at),
                Err(_) => return moved,
            }
        }
        self.notes_rewritten_bytes += self.length(&current);
        if let Err(error) = core.storage.sync(&current.header.name()) {
            core.fail("making room on a full disk", &error);
            return moved;
        }
        current.is_synced = true;
        self.notes = Some(current);
        moved
    }

    fn copy_notes(
        &mut self,
        core: &Core,
        current: &Current,
    ) -> Result<Vec<(Box<str>, RecordAt)>, NotAdded> {
        let mut names: Vec<_> = {
            let map = core.notes();
            let entry = |(name, note): (_, &Note)| (note.used, Box::clone(name));
            map.notes.iter().map(entry).collect()
        };
        // The order in the file tells the next process which notes were used least recently.
        names.sort_unstable();
        let mut moved = Vec::with_capacity(names.len());
        for (used, name) in names {
            let value = find_note(core, &name).map_err(NotAdded::Storage)?;
            let Some(value) = value else { continue };
            if let Some(note) = core.notes().notes.get_mut(&name) {
                note.used = used;
            }
            let at = self.add_note(core, current, &draft(&name, &value))?;
            moved.push((name, at));
        }
        core.storage
            .sync(&current.header.name())
            .map_err(NotAdded::Storage)?;
        Ok(moved)
    }
}
