//! Checkpoints: the dictionary, the owners of keys and the latest values, with the position from which the log
//! continues them.
//!
//! **Invariants:** a checkpoint counts only if its trailer is there and every record before it is valid. So a file cut
//! short by power loss does not count. The previous checkpoint is deleted only when the new one is complete. Writing
//! goes in pieces of bounded size, between which commits run. Memory is one piece and one value.
//!
//! The number of pieces between two commits depends on the log's growth, not on the commits: [`bytes_due`].
//!
//! Each value is read when its piece is written, after the log position was taken. Replaying the log from that position
//! ends in the same table, because a slot decides by the same rule as before. A reading whose sensor time is older is
//! not taken. Of equal times the last one wins. The last one also wins if the node's clock gave one of the two times.

use std::ops::ControlFlow;

use crate::error::{Error, LogFailure};
use crate::options::{DbOptions, ObjectId};
use crate::store::{SegmentStore, StoreError};
use crate::table::{OWN_NAPS_MAX, Table};

use super::codec::{
    self, CheckpointHead, Dictionary, Latest, OWNER_BYTES_BESIDES, Object, RECORD_BYTES_MAX, Record,
};
use super::owners::SharedOwners;
use super::reader::{Reader, Tail};
use super::seal::Seal;
use super::writer::{NUMBER_TRIES, Position, failure_of};
use super::{checkpoint_name, number_in};

/// Most bytes of an object in a checkpoint, without its key and its value.
const OBJECT_BYTES_BESIDES: u64 = 48;
/// Bytes of a key that are counted at least. Room in a store is kept by these figures, and a file that grows takes more
/// blocks than its bytes need. With the bytes of short keys alone, a full store has refused a checkpoint.
const KEY_BYTES_COUNTED: u64 = 64;
/// Head, trailer, and what the last piece may lack.
const BYTES_BESIDES: u64 = 4096;

/// Returns the most bytes that a checkpoint of this many objects takes, if their keys take `keys_bytes` and their
/// values `values_bytes` together. Keys count as 64 bytes each at least.
#[must_use]
pub fn bytes_max(objects: u32, keys_bytes: u64, values_bytes: u64) -> u64 {
    let objects = u64::from(objects);
    (objects * OBJECT_BYTES_BESIDES + BYTES_BESIDES)
        .saturating_add(keys_bytes.max(objects * KEY_BYTES_COUNTED))
        .saturating_add(values_bytes)
}

/// What a checkpoint is of.
#[derive(Clone, Copy)]
pub(crate) struct Content<'a> {
    pub(crate) table: &'a Table,
    pub(crate) owners: &'a SharedOwners,
}

/// Returns the most bytes that a checkpoint of this takes now.
pub(crate) fn content_bytes_max(Content { table, owners }: Content<'_>) -> u64 {
    bytes_max(table.objects(), table.keys_bytes(), table.values_bytes())
        .saturating_add(owners.lock().bytes())
}

/// Returns the bytes of a checkpoint of `table_bytes` that must be written once the log has grown by `log_bytes` since
/// it began; `u64::MAX`: all of it. It is in proportion to the log, so that the checkpoint is complete when the log has
/// grown by `checkpoint_bytes`. A checkpoint larger than that is complete when the log has grown by its size, so that
/// it never writes more than the log does.
fn bytes_due(table_bytes: u64, checkpoint_bytes: u64, log_bytes: u64) -> u64 {
    let within = checkpoint_bytes.max(table_bytes);
    if log_bytes >= within {
        return u64::MAX;
    }
    // Below `table_bytes`, so it fits.
    (u128::from(table_bytes) * u128::from(log_bytes) / u128::from(within)) as u64
}

/// A checkpoint being written.
pub(crate) struct CheckpointWriter<F> {
    file: F,
    seal: Seal,
    number: u32,
    next_id: u32,
    objects: u32,
    /// Whether the store began with a format before 3; the trailer says it.
    is_older_store: bool,
    piece: Vec<u8>,
    value: Vec<u8>,
    piece_bytes_max: usize,
    bytes: u64,
    /// Most bytes of the whole checkpoint: the maximum since it began, because values that were written may become
    /// shorter, and others longer.
    table_bytes: u64,
}

/// The result of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// More pieces follow.
    More,
    /// The checkpoint is complete; this many bytes in all.
    Done(u64),
    /// The table's memory was overwritten: a checkpoint of it would replace the values that the log has.
    Unfit,
}

impl<F: Copy> CheckpointWriter<F> {
    /// Creates the file, under a later number if the store cannot create one of this name. Call with the log position
    /// at which nothing is staged, and with whether the store began with a format before 3.
    pub(crate) fn begin<S: SegmentStore<File = F>>(
        store: &mut S,
        mut number: u32,
        (at, is_older_store): (Position, bool),
        content: Content<'_>,
        options: &DbOptions,
    ) -> Result<Self, LogFailure> {
        let mut tries = 0;
        let file = loop {
            match store.create(&checkpoint_name(number)) {
                Ok(file) => break file,
                // A damaged part of the directory makes some names unusable, not all.
                Err(StoreError::Exists | StoreError::Damaged { .. }) if tries < NUMBER_TRIES => {
                    tries += 1;
                    number = number.saturating_add(1);
                }
                Err(error) => return Err(failure_of(&error)),
            }
        };
        let piece_bytes_max = options.checkpoint_piece_bytes_max;
        let mut piece = Vec::with_capacity(piece_bytes_max + RECORD_BYTES_MAX);
        let objects = content.table.objects();
        let head = CheckpointHead {
            segment: at.segment,
            offset: at.offset,
            lsn: at.lsn,
            objects,
        };
        let seal = Seal::of(store.secret());
        codec::put_checkpoint(&mut piece, seal, &head);
        let value = vec![0; content.table.value_bytes_max()];
        Ok(Self {
            file,
            seal,
            number,
            next_id: 0,
            objects,
            is_older_store,
            piece,
            value,
            piece_bytes_max,
            bytes: 0,
            table_bytes: content_bytes_max(content),
        })
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Bytes written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes that must be written once the log has grown by `log_bytes` since it began; `u64::MAX`: all.
    pub(crate) fn bytes_due(
        &mut self,
        content: Content<'_>,
        checkpoint_bytes: u64,
        log_bytes: u64,
    ) -> u64 {
        self.table_bytes = self.table_bytes.max(content_bytes_max(content));
        bytes_due(self.table_bytes, checkpoint_bytes, log_bytes)
    }

    /// Writes one piece. A piece that ends before `until`, so that others follow at once, becomes durable with the last
    /// of them.
    pub(crate) fn step<S: SegmentStore<File = F>>(
        &mut self,
        store: &mut S,
        Content { table, owners }: Content<'_>,
        until: u64,
    ) -> Result<Step, LogFailure> {
        // Nothing takes it in a hurry: a new key waits for a piece at most.
        let owners = owners.lock();
        // An empty piece takes any record, so that a record longer than a piece cannot stop the checkpoint for ever.
        let room = |piece: &Vec<u8>, record: usize| {
            piece.is_empty() || piece.len() + record <= self.piece_bytes_max
        };
        while self.next_id < self.objects {
            let id = ObjectId(self.next_id);
            let Some(key) = table.sane_key(id) else {
                return Ok(Step::Unfit);
            };
            let of_owners = owners.of(id.0);
            let owners_bytes_max: usize = of_owners
                .map(|owner| OWNER_BYTES_BESIDES + owner.series.len())
                .sum();
            let record_bytes_max =
                OBJECT_BYTES_BESIDES as usize + key.as_str().len() + self.value.len();
            if !room(&self.piece, record_bytes_max + owners_bytes_max) {
                break;
            }
            let (avi_ms, temporal) = table.validity(id);
            let entry = Dictionary {
                id: id.0,
                key: key.as_str(),
                avi_ms,
                temporal,
            };
            let read = table.read_within(id, &mut self.value, OWN_NAPS_MAX);
            if read == Err(Error::Stalled) {
                // Its memory was overwritten: the previous checkpoint has the value, and so has the log.
                return Ok(Step::Unfit);
            }
            let latest = read.ok().map(|read| Latest {
                time: read.time,
                arrival_ns: read.arrival_ns,
                boot_tag: read.boot_tag,
                wall_trusted: read.wall_trusted,
                node_time: read.node_time,
                retained: read.retained,
                value: &self.value[..read.value_bytes],
            });
            codec::put_object(&mut self.piece, self.seal, &Object { entry, latest });
            for owner in owners.of(id.0) {
                codec::put_owner(&mut self.piece, self.seal, &owner);
            }
            self.next_id += 1;
        }
        drop(owners);
        // Check after reading the values, so that the last ones are covered too.
        if !table.is_intact() || table.objects() < self.objects {
            return Ok(Step::Unfit);
        }
        let done = self.next_id >= self.objects && room(&self.piece, 16);
        if done {
            codec::put_trailer(
                &mut self.piece,
                self.seal,
                self.objects,
                self.is_older_store,
            );
        }
        let appended = if done || self.bytes + self.piece_bytes_max as u64 >= until {
            store.append(self.file, &self.piece)
        } else {
            store.append_unsynced(self.file, &self.piece)
        };
        appended.map_err(|error| failure_of(&error))?;
        self.bytes += self.piece.len() as u64;
        self.piece.clear();
        Ok(if done {
            Step::Done(self.bytes)
        } else {
            Step::More
        })
    }

    /// Closes the file, and deletes it unless `keep`.
    pub(crate) fn end<S: SegmentStore<File = F>>(self, store: &mut S, keep: bool) {
        store.close(self.file);
        if !keep {
            // A leftover file is not a checkpoint; the next checkpoint removes it.
            let _ = store.delete(&checkpoint_name(self.number));
        }
    }
}

/// Returns the head of a checkpoint if it is complete and undamaged. Reads the whole file.
///
/// # Errors
/// [`Error::Version`] for a later version's; [`Error::Store`] when the device is gone.
pub fn verify<S: SegmentStore>(
    store: &mut S,
    number: u32,
) -> Result<Option<CheckpointHead>, Error> {
    let mut head = None;
    let mut objects = 0u32;
    let mut last_id = None;
    let mut trailer = None;
    let visited = visit(store, number, &mut |record| {
        match record {
            Record::Checkpoint { head: found, .. } if head.is_none() && objects == 0 => {
                head = Some(*found)
            }
            Record::Object(object) if trailer.is_none() => {
                objects += 1;
                last_id = Some(object.entry.id);
            }
            // The owners of an object's key follow the object.
            Record::Owner(owner) if trailer.is_none() && last_id == Some(owner.id) => {}
            Record::Trailer { objects, .. } if trailer.is_none() => trailer = Some(*objects),
            _ => return Ok(ControlFlow::Break(())),
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let whole = visited == Some(Tail::Clean) && trailer == Some(objects);
    Ok(head.filter(|head| whole && head.objects == objects))
}

/// Passes every record of a checkpoint to `each`. `None` if the file cannot be read or is damaged.
///
/// # Errors
/// As [`verify`], and what `each` returns.
pub fn visit<S: SegmentStore>(
    store: &mut S,
    number: u32,
    each: &mut dyn FnMut(&Record<'_>) -> Result<ControlFlow<()>, Error>,
) -> Result<Option<Tail>, Error> {
    let file = match store.open(&checkpoint_name(number)) {
        Ok(file) => file,
        Err(StoreError::NotFound | StoreError::Damaged { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut reader = Reader::new();
    let tail = reader.read(store, file, 0, &mut |found| each(&found.record));
    store.close(file);
    let tail = tail?;
    Ok((!reader.damage.any()).then_some(tail))
}

/// Numbers of every checkpoint file, complete or not, ascending.
///
/// # Errors
/// [`Error::Store`] when the store cannot be listed at all.
pub fn numbers<S: SegmentStore>(store: &mut S) -> Result<Vec<u32>, Error> {
    let mut numbers = Vec::new();
    let listed = store.list(&mut |name| numbers.extend(number_in(name, super::CHECKPOINT_PREFIX)));
    numbers.sort_unstable();
    match listed {
        Ok(()) | Err(StoreError::Damaged { .. }) => Ok(numbers),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{KEY_BYTES_MAX, KEY_BYTES_MEAN_MAX};
    use crate::log::codec::Owner;
    use crate::log::owners::Owners;
    use crate::options::TableSize;
    use crate::store::MemoryStore;
    use crate::table::{SlotValue, TableMemory};
    use crate::time::Time;
    use std::sync::LazyLock;

    static NO_OWNERS: LazyLock<SharedOwners> =
        LazyLock::new(|| SharedOwners::new(Owners::default()));

    /// A table whose keys have no owners.
    fn of(table: &Table) -> Content<'_> {
        Content {
            table,
            owners: &NO_OWNERS,
        }
    }

    fn table() -> Table {
        let table = Table::new(40, 64, 1).expect("a table");
        for n in 0..40u32 {
            let (id, _) = table.insert(&format!("sensor {n}"), n, true).expect("room");
            let value = SlotValue {
                time: Time::from_ns(i64::from(n)),
                arrival_ns: 5,
                boot_tag: 6,
                wall_trusted: true,
                node_time: n % 3 == 0,
                retained: n % 2 == 0,
                value: &[n as u8; 50],
            };
            table.write(id, &value).expect("written");
        }
        table
    }

    fn write(store: &mut MemoryStore, pieces: usize) -> Option<Step> {
        let options = DbOptions {
            checkpoint_piece_bytes_max: 512,
            ..DbOptions::default()
        };
        let at = Position {
            segment: 7,
            offset: 99,
            lsn: 1234,
        };
        let table = table();
        let begun = CheckpointWriter::begin(store, 3, (at, false), of(&table), &options);
        let mut writer = begun.expect("begun");
        let mut last = None;
        for _ in 0..pieces {
            last = Some(writer.step(store, of(&table), 0).expect("a piece"));
            if matches!(last, Some(Step::Done(_))) {
                break;
            }
        }
        writer.end(store, true);
        last
    }

    #[test]
    fn pieces_are_bounded_and_the_whole_is_verified() {
        let mut store = MemoryStore::new();
        let bytes = match write(&mut store, usize::MAX) {
            Some(Step::Done(bytes)) => bytes,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            store.file("ckpt-00000003").map(Vec::len),
            Some(bytes as usize)
        );
        assert!(store.appends() >= bytes / 512);
        let head = CheckpointHead {
            segment: 7,
            offset: 99,
            lsn: 1234,
            objects: 40,
        };
        assert_eq!(verify(&mut store, 3), Ok(Some(head)));
        assert_eq!(numbers(&mut store), Ok(vec![3]));
        assert_eq!(verify(&mut store, 4), Ok(None));
    }

    #[test]
    fn bytes_due_follow_the_log_and_never_exceed_it() {
        // Smaller than the interval: due in proportion to the log, and complete at the interval's end.
        for log_bytes in 0..1000 {
            assert_eq!(bytes_due(250, 1000, log_bytes), log_bytes / 4);
        }
        assert_eq!(bytes_due(250, 1000, 1000), u64::MAX);
        // Larger: one byte for each byte of log.
        for log_bytes in 0..4000 {
            assert_eq!(bytes_due(4000, 1000, log_bytes), log_bytes);
        }
        assert_eq!(bytes_due(4000, 1000, 4000), u64::MAX);
        // Any value may stand in the memory of an overwritten table.
        assert_eq!(bytes_due(u64::MAX, 1, u64::MAX - 1), u64::MAX - 1);
        assert_eq!(
            bytes_max(u32::MAX, u64::MAX, u64::MAX),
            u64::MAX,
            "no request overflows"
        );
    }

    #[test]
    fn a_checkpoint_is_never_larger_than_its_stated_maximum() {
        let mut store = MemoryStore::new();
        let Some(Step::Done(bytes)) = write(&mut store, usize::MAX) else {
            panic!("not done");
        };
        assert!(bytes <= bytes_max(40, 40 * 16, 40 * 50));
        // Nor with the longest key, the longest id and the longest times.
        let key = "k".repeat(KEY_BYTES_MAX);
        let value = [7; 300];
        let object = Object {
            entry: Dictionary {
                id: u32::MAX,
                key: &key,
                avi_ms: u32::MAX,
                temporal: true,
            },
            latest: Some(Latest {
                time: Time::from_ns(1 - Time::NS_MAX),
                arrival_ns: u64::MAX,
                boot_tag: u64::MAX,
                wall_trusted: true,
                node_time: true,
                retained: true,
                value: &value,
            }),
        };
        let mut record = Vec::new();
        codec::put_object(&mut record, Seal::of(store.secret()), &object);
        let bytes = (key.len() + value.len()) as u64;
        assert!(record.len() as u64 <= OBJECT_BYTES_BESIDES + bytes);
    }

    /// A table in which all keys are as long as this.
    fn with_keys(objects: u32, value_bytes_max: usize, key_bytes: usize) -> Table {
        let size = TableSize {
            objects_max: objects,
            value_bytes_max,
            key_bytes_mean: KEY_BYTES_MEAN_MAX,
        };
        let lines = Table::lines_needed(size).expect("a size");
        let table = Table::create_in(TableMemory::own(lines), size, 1).expect("a table");
        for n in 0..objects {
            let key = format!("{n:0key_bytes$}");
            table.insert(&key, 1, true).expect("room");
        }
        table
    }

    #[test]
    fn the_stated_maximum_of_a_checkpoint_includes_long_keys() {
        for (key_bytes, object_bytes) in [(16, 112), (64, 112), (65, 128), (255, 304)] {
            let table = with_keys(300, 8, key_bytes);
            let bytes = whole_checkpoint_bytes(&table);
            assert!(bytes > 300 * key_bytes as u64 && bytes <= content_bytes_max(of(&table)));
            assert_eq!(content_bytes_max(of(&table)), 300 * object_bytes + 4096);
        }
        // Less is never said, and keys that take more on average are counted.
        assert_eq!(bytes_max(300, 0, 7), 300 * 112 + 4096 + 7);
        assert_eq!(bytes_max(300, 300 * 65, 7), 300 * 113 + 4096 + 7);
    }

    fn whole_checkpoint_bytes(table: &Table) -> u64 {
        let (mut store, options) = (MemoryStore::new(), DbOptions::default());
        let at = Position {
            segment: 0,
            offset: 0,
            lsn: 0,
        };
        let begun = CheckpointWriter::begin(&mut store, 3, (at, false), of(table), &options);
        let mut writer = begun.expect("begun");
        loop {
            match writer.step(&mut store, of(table), 0).expect("a piece") {
                Step::More => {}
                Step::Done(bytes) => return bytes,
                Step::Unfit => panic!("unfit"),
            }
        }
    }

    /// Values and keys as long as they can be, in pieces as short as they can be.
    #[test]
    fn a_record_longer_than_a_piece_does_not_stop_the_checkpoint() {
        let table = with_keys(3, 300, KEY_BYTES_MAX);
        for n in 0..3 {
            let value = SlotValue {
                time: Time::from_ns(i64::MAX - 1),
                arrival_ns: u64::MAX,
                boot_tag: u64::MAX,
                wall_trusted: true,
                node_time: true,
                retained: true,
                value: &[n as u8; 300],
            };
            table.write(ObjectId(n), &value).expect("written");
        }
        for piece_bytes in [16, 100, 420, 620, 4096] {
            let mut store = MemoryStore::new();
            let options = DbOptions {
                checkpoint_piece_bytes_max: piece_bytes,
                ..DbOptions::default()
            };
            let at = Position {
                segment: 0,
                offset: 0,
                lsn: 0,
            };
            let begun = CheckpointWriter::begin(&mut store, 3, (at, true), of(&table), &options);
            let mut writer = begun.expect("begun");
            let mut steps =
                (0..10).map(|_| writer.step(&mut store, of(&table), 0).expect("a piece"));
            let done = steps.find(|step| *step != Step::More);
            writer.end(&mut store, true);
            assert!(
                matches!(done, Some(Step::Done(_))),
                "{piece_bytes}: {done:?}"
            );
            let mut trailer = None;
            let visited = visit(&mut store, 3, &mut |record| {
                if let Record::Trailer { is_older_store, .. } = record {
                    trailer = Some(*is_older_store);
                }
                Ok(ControlFlow::Continue(()))
            });
            assert_eq!((visited, trailer), (Ok(Some(Tail::Clean)), Some(true)));
            assert!(verify(&mut store, 3).is_ok_and(|head| head.is_some()));
        }
    }

    /// As many as there can be, as long as they can be, in pieces that hold one of them at most.
    #[test]
    fn the_owners_of_a_key_stand_behind_their_object() {
        let table = table();
        let mut owners = Owners::default();
        let text = |id: u32, template: u32| {
            let bytes = [7, 300, codec::SERIES_BYTES_MAX][id as usize % 3];
            format!("{id} {template} {}", "x".repeat(bytes))[..bytes].to_owned()
        };
        let mut expected = Vec::new();
        for id in [0, 2, 3, 17, 39] {
            for template in [u32::MAX, 5, 6, 7].into_iter().take(id as usize % 5) {
                expected.push((id, template, text(id, template)));
            }
        }
        for (id, template, series) in &expected {
            let owner = Owner {
                id: *id,
                template: *template,
                series,
            };
            assert_eq!(owners.claim(&owner), Ok(()));
        }
        let owners = SharedOwners::new(owners);
        let content = Content {
            table: &table,
            owners: &owners,
        };
        for piece_bytes in [16, 512, 4096] {
            let mut store = MemoryStore::new();
            let options = DbOptions {
                checkpoint_piece_bytes_max: piece_bytes,
                ..DbOptions::default()
            };
            let at = Position {
                segment: 0,
                offset: 0,
                lsn: 0,
            };
            let begun = CheckpointWriter::begin(&mut store, 3, (at, false), content, &options);
            let mut writer = begun.expect("begun");
            let mut steps = (0..60).map(|_| writer.step(&mut store, content, 0).expect("a piece"));
            let done = steps.find(|step| *step != Step::More);
            let Some(Step::Done(bytes)) = done else {
                panic!("{piece_bytes}: {done:?}");
            };
            let owners_bytes = content_bytes_max(content) - content_bytes_max(of(&table));
            let lengths = expected.iter().map(|(_, _, series)| series.len() as u64);
            assert_eq!(owners_bytes, lengths.map(|bytes| 16 + bytes).sum::<u64>());
            assert!(bytes <= content_bytes_max(content));
            assert!(verify(&mut store, 3).is_ok_and(|head| head.is_some()));
            let mut found = Vec::new();
            let visited = visit(&mut store, 3, &mut |record| {
                if let Record::Owner(owner) = record {
                    found.push((owner.id, owner.template, owner.series.to_owned()));
                }
                Ok(ControlFlow::Continue(()))
            });
            assert_eq!((visited, &found), (Ok(Some(Tail::Clean)), &expected));
        }
    }

    #[test]
    fn an_unfinished_checkpoint_is_none() {
        for pieces in 0..4 {
            let mut store = MemoryStore::new();
            assert!(!matches!(write(&mut store, pieces), Some(Step::Done(_))));
            assert_eq!(verify(&mut store, 3), Ok(None));
        }
        let mut store = MemoryStore::new();
        write(&mut store, usize::MAX);
        // Any bytes after the trailer, or a record twice, make it invalid.
        let head = store.file("ckpt-00000003").expect("written")[..42].to_vec();
        store.file_mut("ckpt-00000003").extend(head);
        assert_eq!(verify(&mut store, 3), Ok(None));
    }
}
