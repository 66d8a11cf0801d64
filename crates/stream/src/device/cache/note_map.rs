//! Where each note lies, and which lists are evicted first.

use std::collections::HashMap;

use super::format::{Draft, NOTE_NAME_BYTES_MAX, RecordKind, padded};
use super::index::RecordAt;

/// The maximum number of notes.
const NOTES_MAX: usize = 32_768;

/// Of these, the maximum number of notes that are not lists.
pub(super) const KEPT_NOTES_MAX: usize = 1024;

/// The prefixes of the names of lists. Lists can be fetched again from a server, so they are evicted when there is no
/// room.
const LIST_PREFIXES: [&str; 2] = ["hashes", "plan"];

/// The maximum number of places per note: earlier values are kept in case the newest is damaged.
const PLACES_MAX: usize = 3;

/// The maximum number of lists, even if they are short.
pub(super) const LISTS_MAX: usize = NOTES_MAX - KEPT_NOTES_MAX;

/// A note.
pub(super) struct Note {
    /// Where its values lie, the newest last.
    pub(super) places: Vec<RecordAt>,
    /// The clock value of its last use.
    pub(super) used: u64,
    /// The value, if it is kept in memory, too.
    pub(super) small: Option<Box<[u8]>>,
}

impl Note {
    /// Returns the bytes of the newest value in its file.
    pub(super) fn bytes(&self) -> u64 {
        self.places
            .last()
            .map_or(0, |at| padded(u64::from(at.bytes)))
    }
}

/// Where each note lies.
#[derive(Default)]
pub(super) struct NoteMap {
    pub(super) notes: HashMap<Box<str>, Note>,
    pub(super) clock: u64,
    pub(super) list_bytes: u64,
    pub(super) kept_bytes: u64,
    pub(super) kept_count: usize,
}

/// Whether a note is a list.
pub(super) fn is_list(name: &str) -> bool {
    LIST_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether this may be the name of a note.
pub(super) fn is_name(name: &str) -> bool {
    (1..=NOTE_NAME_BYTES_MAX).contains(&name.len())
        && name
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-'))
}

impl NoteMap {
    /// Adds a note that was found in a log; it is newer than all found before.
    pub(super) fn found(&mut self, at: RecordAt, name: &[u8], bytes: u32) {
        let Some(name) = str::from_utf8(name).ok().filter(|name| is_name(name)) else {
            return;
        };
        match bytes {
            0 => drop(self.remove(name)),
            _ => self.place(name, at, None),
        }
    }

    pub(super) fn place(&mut self, name: &str, at: RecordAt, small: Option<Box<[u8]>>) {
        let mut places = self.remove(name).map_or_else(Vec::new, |note| note.places);
        if places.len() == PLACES_MAX {
            places.remove(0);
        }
        places.push(at);
        self.clock += 1;
        let used = self.clock;
        self.insert(
            name,
            Note {
                places,
                used,
                small,
            },
        );
    }

    pub(super) fn insert(&mut self, name: &str, note: Note) {
        match is_list(name) {
            true => self.list_bytes += note.bytes(),
            false => {
                self.kept_bytes += note.bytes();
                self.kept_count += 1;
            }
        }
        self.notes.insert(name.into(), note);
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Note> {
        let note = self.notes.remove(name)?;
        match is_list(name) {
            true => self.list_bytes -= note.bytes(),
            false => {
                self.kept_bytes -= note.bytes();
                self.kept_count -= 1;
            }
        }
        Some(note)
    }

    /// Records that a note now lies only at this place.
    pub(super) fn moved(&mut self, name: &str, at: RecordAt) {
        if let Some(mut note) = self.remove(name) {
            note.places = vec![at];
            self.insert(name, note);
        }
    }

    /// Removes a damaged value: the one before it counts now.
    pub(super) fn lose(&mut self, name: &str, at: RecordAt) {
        if let Some(mut note) = self.remove(name) {
            note.places.retain(|place| *place != at);
            if !note.places.is_empty() {
                self.insert(name, note);
            }
        }
    }

    pub(super) fn live_bytes(&self) -> u64 {
        self.list_bytes + self.kept_bytes
    }

    /// Removes the least recently used lists until `bytes` more bytes can be kept.
    pub(super) fn drop_lists(&mut self, bytes: u64, bytes_max: u64) {
        if self.list_bytes + bytes <= bytes_max && self.notes.len() < NOTES_MAX {
            return;
        }
        let mut lists: Vec<_> = self
            .notes
            .iter()
            .filter(|(name, _)| is_list(name))
            .map(|(name, note)| (note.used, name.clone()))
            .collect();
        lists.sort_unstable();
        // Remove a few more than needed, so that not every new note has to search for the oldest.
        let notes_max = NOTES_MAX - NOTES_MAX / 16;
        let bytes_max = (bytes_max - bytes_max / 16).saturating_sub(bytes);
        for (_, name) in lists {
            if self.list_bytes <= bytes_max && self.notes.len() < notes_max {
                break;
            }
            self.remove(&name);
        }
    }

    /// Whether there is a note; this does not count as a use.
    pub(super) fn has(&self, name: &str) -> bool {
        self.notes.contains_key(name)
    }

    /// Returns the approximate bytes of memory in use.
    pub(super) fn memory_bytes(&self) -> u64 {
        let small: usize = self
            .notes
            .iter()
            .map(|(name, note)| {
                name.len()
                    + note.places.capacity() * size_of::<RecordAt>()
                    + note.small.as_ref().map_or(0, |small| small.len())
            })
            .sum();
        (small + self.notes.capacity() * (size_of::<(Box<str>, Note)>() + 1)) as u64
    }
}

/// Returns the record of a note.
pub(super) fn draft<'d>(name: &'d str, value: &'d [u8]) -> Draft<'d> {
    Draft {
        kind: RecordKind::Note,
        is_compressed: false,
        count: name.len() as u16,
        table: name.as_bytes(),
        payload: value,
        raw_bytes: value.len() as u32,
    }
}
