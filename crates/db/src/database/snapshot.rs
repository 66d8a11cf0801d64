//! A copy of the store while it is written to: which files belong to it, and their bytes piece by piece. Each piece is
//! read between two rounds of the commit thread.
//!
//! **Invariants:** nothing is held back for the copying caller: no segment stays longer, no commit waits for more than
//! one piece. The copy begins with the checkpoint and the log from its position on, because the next start needs them.
//! If a file of these is deleted meanwhile, the copy begins again. An older segment that retention deletes meanwhile is
//! left out and reported. Everything that was durable when the snapshot was taken is in the files it names, or has been
//! deleted since by retention.

use std::collections::BTreeSet;

use super::Database;
use crate::commit::Core;
use crate::error::Error;
use crate::history::index::INDEX_PREFIX;
use crate::log::{CHECKPOINT_PREFIX, SEGMENT_PREFIX, checkpoint_name, number_in, segment_name};
use crate::store::{SegmentStore, StoreError};

/// Limits of the files of the layer above that are copied whole with the snapshot: bytes of each, and how many.
const OTHER_BYTES_MAX: usize = 64 << 10;
const OTHERS_MAX: usize = 64;

/// One file of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFile {
    /// Its name in the store.
    pub name: String,
    /// Where it ends in the snapshot; `None` if it has stopped growing.
    pub end: Option<u64>,
    /// Without it the copy would be no database: if it is gone, begin again.
    pub is_needed: bool,
}

/// What belongs to a copy of the store at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Files that the database did not make, whole.
    pub others: Vec<(String, Vec<u8>)>,
    /// Such files that could not be taken: too long, too many, or damaged.
    pub others_left_out: u64,
    /// Files of the database, in the order in which they must be copied.
    pub files: Vec<SnapshotFile>,
    /// Most bytes of all of them together.
    pub bytes_max: u64,
    /// Readings numbered below this are in the snapshot.
    pub durable_end: u64,
}

/// One piece of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotRead {
    /// The bytes read; 0 at the end of the file. Unreadable bytes are zeros, with which no record begins.
    Bytes {
        /// Bytes of the buffer that are filled.
        bytes: usize,
        /// How many of them could not be read.
        unreadable: usize,
    },
    /// The file does not exist any more.
    Gone,
}

impl<S: SegmentStore> Database<S> {
    /// Returns what a copy of the store must hold now.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Closed`].
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        let mut guard = self.shared.lock_core();
        let core = &mut *guard;
        let segments: Vec<u32> = core.writer.segments().iter().copied().collect();
        let segment_bytes_max = self.shared.options.segment_bytes_max;
        let bytes = core.index.log_bytes(
            core.writer.segments(),
            core.writer.active(),
            segment_bytes_max,
        );
        let needed_from = match core.current_checkpoint {
            Some(_) => core.needed_from.unwrap_or(0),
            // Without a checkpoint a start reads the whole log.
            None => 0,
        };
        let checkpoint = core.current_checkpoint.map(checkpoint_name);
        let store = core.store.as_mut().ok_or(Error::Closed)?;
        let mut snapshot = Snapshot {
            durable_end: self.shared.progress.durable_end(),
            bytes_max: bytes.saturating_add(segment_bytes_max),
            ..Snapshot::default()
        };
        take_others(store, &mut snapshot)?;
        if let Some(name) = checkpoint {
            let end = length(store, &name)?;
            snapshot.bytes_max += end.unwrap_or(0);
            snapshot.files.push(SnapshotFile {
                name,
                end,
                is_needed: true,
            });
        }
        let last = segments.last().copied();
        let (needed, mut older): (Vec<u32>, Vec<u32>) = segments
            .into_iter()
            .partition(|number| *number >= needed_from);
        // Copy the newest of them first. Retention deletes the oldest first, so deleted segments are the end of the
        // list, and the copy has no gap.
        older.reverse();
        for (numbers, is_needed) in [(needed, true), (older, false)] {
            for number in numbers {
                let name = segment_name(number);
                // Only the last segment grows.
                let end = match Some(number) == last {
                    true => length(store, &name)?,
                    false => None,
                };
                snapshot.files.push(SnapshotFile {
                    name,
                    end,
                    is_needed,
                });
            }
        }
        Ok(snapshot)
    }

    /// Reads the bytes of a file of a snapshot from `offset` on, as far as `buffer` reaches.
    ///
    /// # Errors
    /// [`Error::Store`] when the device fails; [`Error::Closed`].
    pub fn read_snapshot(
        &self,
        file: &SnapshotFile,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<SnapshotRead, Error> {
        let left = file.end.map_or(u64::MAX, |end| end.saturating_sub(offset));
        let wanted = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let buffer = &mut buffer[..wanted];
        let mut core = self.shared.lock_core();
        read(&mut core, &file.name, offset, buffer)
    }
}

/// Whether the name is one that the database gives.
fn is_own(name: &str) -> bool {
    [SEGMENT_PREFIX, CHECKPOINT_PREFIX, INDEX_PREFIX]
        .iter()
        .any(|prefix| number_in(name, prefix).is_some())
}

fn take_others<S: SegmentStore>(store: &mut S, snapshot: &mut Snapshot) -> Result<(), Error> {
    let mut names = BTreeSet::new();
    let mut left_out = 0;
    let listed = store.list(&mut |name| {
        if is_own(name) {
        } else if names.len() < OTHERS_MAX {
            names.insert(name.to_owned());
        } else {
            left_out += 1;
        }
    });
    match listed {
        Ok(()) => {}
        // A backup is wanted just when a card begins to fail: go on, and count what the damage hides as one file.
        Err(StoreError::Damaged { .. }) => left_out += 1,
        Err(error) => return Err(error.into()),
    }
    for name in names {
        match read_whole(store, &name) {
            Ok(Some(bytes)) => {
                snapshot.bytes_max += bytes.len() as u64;
                snapshot.others.push((name, bytes));
            }
            Ok(None) | Err(StoreError::Damaged { .. } | StoreError::NotFound) => left_out += 1,
            Err(error) => return Err(error.into()),
        }
    }
    snapshot.others_left_out = left_out;
    Ok(())
}

/// Returns a file's bytes; `None` if there are too many.
fn read_whole<S: SegmentStore>(store: &mut S, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
    let file = store.open(name)?;
    let mut bytes = vec![0; OTHER_BYTES_MAX + 1];
    let read = store.read(file, 0, &mut bytes);
    store.close(file);
    bytes.truncate(read?);
    Ok((bytes.len() <= OTHER_BYTES_MAX).then_some(bytes))
}

/// Returns a file's length; `None` if it cannot be read, which the later read will show.
fn length<S: SegmentStore>(store: &mut S, name: &str) -> Result<Option<u64>, Error> {
    let file = match store.open(name) {
        Ok(file) => file,
        Err(StoreError::Damaged { .. } | StoreError::NotFound) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let length = store.length(file);
    store.close(file);
    Ok(Some(length?))
}

fn read<S: SegmentStore>(
    core: &mut Core<S>,
    name: &str,
    offset: u64,
    buffer: &mut [u8],
) -> Result<SnapshotRead, Error> {
    let store = core.store.as_mut().ok_or(Error::Closed)?;
    let file = match store.open(name) {
        Ok(file) => file,
        Err(StoreError::NotFound) => return Ok(SnapshotRead::Gone),
        // Its length is unknown.
        Err(StoreError::Damaged { .. }) => {
            return Ok(SnapshotRead::Bytes {
                bytes: 0,
                unreadable: usize::try_from(store.payload_bytes()).unwrap_or(1),
            });
        }
        Err(error) => return Err(error.into()),
    };
    let found = read_over_damage(store, file, offset, buffer);
    store.close(file);
    Ok(found?)
}

/// Reads what can be read. A damaged piece costs only itself, as it does for a reader of the log.
fn read_over_damage<S: SegmentStore>(
    store: &mut S,
    file: S::File,
    offset: u64,
    buffer: &mut [u8],
) -> Result<SnapshotRead, StoreError> {
    let end = store.length(file)?;
    let bytes = usize::try_from(end.saturating_sub(offset))
        .map_or(buffer.len(), |left| left.min(buffer.len()));
    let buffer = &mut buffer[..bytes];
    match store.read(file, offset, buffer) {
        Ok(read) => {
            return Ok(SnapshotRead::Bytes {
                bytes: read,
                unreadable: 0,
            });
        }
        Err(StoreError::Damaged { .. }) => {}
        Err(error) => return Err(error),
    }
    let payload_bytes = store.payload_bytes();
    let (mut at, mut unreadable) = (0, 0);
    while at < bytes {
        let here = offset + at as u64;
        let to_next = payload_bytes - here % payload_bytes;
        let piece = usize::try_from(to_next).map_or(bytes - at, |piece| piece.min(bytes - at));
        let part = &mut buffer[at..at + piece];
        match store.read(file, here, part) {
            Ok(_) => {}
            Err(StoreError::Damaged { .. }) => {
                part.fill(0);
                unreadable += piece;
            }
            Err(error) => return Err(error),
        }
        at += piece;
    }
    Ok(SnapshotRead::Bytes { bytes, unreadable })
}
