//! Builds table and owners from what is on flash: the newest complete checkpoint, then the log behind it.
//!
//! **Invariants:** nothing is written; memory is the table, the owners and one buffer; damage is counted by reason and
//! never prevents the start. Only these prevent it: a device that answers nothing, a later format of a file, a table
//! configured smaller than what it must hold.

use std::ops::ControlFlow;

use base::seeded_bug::SeededBug;

use crate::error::Error;
use crate::limits::FORMAT_VERSION;
use crate::log::codec::{Dictionary, Record};
use crate::log::owners::Owners;
use crate::log::reader::{Damage, Reader, Tail};
use crate::log::{checkpoint, scan, segment_name};
use crate::options::ObjectId;
use crate::store::SegmentStore;
use crate::table::{SlotValue, Table};
use crate::wall::boot_tag;

/// How often a checkpoint is tried that is whole, but cannot be read a moment later.
const LOADS_MAX: u32 = 3;
/// The first format with times in ns; the anchors and trailers of earlier ones have no flags of the store.
const NS_FORMAT: u32 = 3;

/// What a start found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The checkpoint used.
    pub checkpoint: Option<u32>,
    /// Checkpoint files that were incomplete (a cut while writing) or damaged.
    pub checkpoints_unusable: u64,
    /// Objects taken from the checkpoint.
    pub objects_from_checkpoint: u64,
    /// Segments read.
    pub segments_read: u64,
    /// Log bytes read.
    pub log_bytes_read: u64,
    /// Readings replayed.
    pub readings_replayed: u64,
    /// Readings of objects of which every naming record was lost.
    pub readings_unnamed: u64,
    /// Naming records that contradict an earlier one.
    pub dictionary_conflicts: u64,
    /// Whether part of the store's directory could not be read: segments may be missing.
    pub directory_damaged: bool,
    /// Damage found.
    pub damage: Damage,
}

/// What the log writer needs to continue.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) report: RecoveryReport,
    /// Segment to continue and its length, if it ends cleanly.
    pub(crate) resume: Option<(u32, u64)>,
    pub(crate) next_segment: u32,
    pub(crate) next_lsn: u64,
    pub(crate) next_checkpoint: u32,
    /// Checkpoint files that are not the one in use.
    pub(crate) stale_checkpoints: Vec<u32>,
    /// Log bytes after the checkpoint.
    pub(crate) log_bytes: u64,
    /// Every segment, ascending.
    pub(crate) segments: Vec<u32>,
    /// First segment that the checkpoint needs, if there is one.
    pub(crate) needed_from: Option<u32>,
    /// Whether the store began with a format before 3.
    pub(crate) is_older_store: bool,
    /// Which series has each key; the log or the checkpoint has all of them.
    pub(crate) owners: Owners,
}

pub(crate) fn recover<S: SegmentStore>(
    store: &mut S,
    table: &Table,
    segment_bytes_max: u64,
) -> Result<Recovered, Error> {
    let mut report = RecoveryReport::default();
    let mut owners = Owners::default();
    let mut is_older_store = false;
    let mut numbers = checkpoint::numbers(store)?;
    let next_checkpoint = numbers.last().map_or(1, |last| last.saturating_add(1));
    let mut head = None;
    for at in (0..numbers.len()).rev() {
        // It is read twice: as a whole, then into the table. A read that fails the second time may succeed again.
        for _ in 0..LOADS_MAX {
            let Some(found) = checkpoint::verify(store, numbers[at])? else {
                break;
            };
            let place = (numbers[at], found.objects);
            let loaded = load_checkpoint(store, place, table, &mut owners, &mut report)?;
            if let Some(is_older) = loaded {
                is_older_store |= is_older;
                head = Some(found);
                break;
            }
        }
        if head.is_some() {
            report.checkpoint = Some(numbers.remove(at));
            break;
        }
        report.checkpoints_unusable += 1;
    }
    let mut reader = Reader::new();
    if let Some(head) = &head {
        reader.expect_lsn(head.lsn);
    }
    let (segments, listed_whole) = scan::segments(store)?;
    report.directory_damaged = !listed_whole;
    if head.is_none() && segments.first() == Some(&0) {
        reader.expect_lsn(0);
    }
    let (from, offset) = head.map_or((0, 0), |head| (head.segment, head.offset));
    if offset > 0 && !segments.contains(&from) {
        // What it held before the position is in the checkpoint; what came after is lost.
        reader.damage.files_unreadable += 1;
        reader.lose(segment_bytes_max);
    }
    let mut resume = None;
    for number in segments.iter().copied().filter(|number| *number >= from) {
        report.segments_read += 1;
        let start = if number == from { offset } else { 0 };
        let place = (number, start);
        let tail = replay(
            store,
            &mut reader,
            place,
            table,
            &mut owners,
            &mut report,
            &mut |older| {
                is_older_store |= older;
            },
        )?;
        let file_bytes = length_of(store, number);
        let missing_bytes = file_bytes.map_or(0, |bytes| start.saturating_sub(bytes));
        if missing_bytes > 0 {
            reader.damage.pieces_unreadable += 1;
            reader.damage.bytes_skipped = reader.damage.bytes_skipped.saturating_add(missing_bytes);
        }
        if missing_bytes > 0 || file_bytes.is_none() {
            // Its length is unknown.
            reader.lose(segment_bytes_max);
        }
        report.log_bytes_read += file_bytes.unwrap_or(0).saturating_sub(start);
        resume = file_bytes
            // If the position lies beyond the end, appended records would lie before it and never be replayed.
            .filter(|bytes| tail == Tail::Clean && *bytes >= start)
            .map(|bytes| (number, bytes));
    }
    if !listed_whole {
        reader.damage.files_unreadable += 1;
        // The last segment may be one that was not listed.
        reader.lose(segment_bytes_max);
    }
    report.damage = reader.damage;
    owners.forget_from(table.objects());
    let next_segment = segments
        .last()
        .map_or(0, |last| last.saturating_add(1))
        .max(from.saturating_add(u32::from(offset > 0)));
    // Only the last segment may grow, and only if it has this version.
    let mut resume = resume.filter(|(number, _)| segments.last() == Some(number));
    // An append reads the end of its segment. After a stop, this start has not read it. In a short segment the head is
    // in the same block, so damage there must be counted before the version is sought.
    if let Some((number, bytes)) = resume
        && bytes > 0
        && (number, bytes) == (from, offset)
        && !is_end_readable(store, number, bytes)
    {
        report.damage.pieces_unreadable += 1;
        resume = None;
    }
    if let Some((number, bytes)) = resume
        && bytes > 0
        && !SeededBug::OldSegmentContinued.is_on()
        && scan::version_of(store, number)? != Some(FORMAT_VERSION)
    {
        resume = None;
    }
    Ok(Recovered {
        resume,
        needed_from: head.map(|head| head.segment),
        next_segment,
        next_lsn: reader.unused_lsn(),
        next_checkpoint,
        stale_checkpoints: numbers,
        log_bytes: report.log_bytes_read,
        segments,
        report,
        is_older_store,
        owners,
    })
}

/// Whether the last byte of a segment of this many bytes can be read.
fn is_end_readable<S: SegmentStore>(store: &mut S, number: u32, bytes: u64) -> bool {
    let Ok(file) = store.open(&segment_name(number)) else {
        return false;
    };
    let read = store.read(file, bytes - 1, &mut [0]);
    store.close(file);
    matches!(read, Ok(1))
}

fn length_of<S: SegmentStore>(store: &mut S, number: u32) -> Option<u64> {
    let file = store.open(&segment_name(number)).ok()?;
    let bytes = store.length(file).ok();
    store.close(file);
    bytes
}

/// Fills table and owners from a checkpoint that `checkpoint::verify` has found whole. Returns whether its store began
/// with a format before 3. Returns `None` if this read finds it damaged: the log is then replayed over the part read.
fn load_checkpoint<S: SegmentStore>(
    store: &mut S,
    (number, objects): (u32, u32),
    table: &Table,
    owners: &mut Owners,
    report: &mut RecoveryReport,
) -> Result<Option<bool>, Error> {
    // A series must not have a key because of a file that does not count.
    owners.clear();
    let mut found = 0;
    let mut is_older_store = false;
    let tail = checkpoint::visit(store, number, &mut |record| {
        if let Record::Object(object) = record {
            let (entry, id) = (&object.entry, ObjectId(object.entry.id));
            table.reserve(id)?;
            if !entry.key.is_empty() && !restore(table, entry)? {
                report.dictionary_conflicts += 1;
            }
            if let Some(latest) = &object.latest {
                let value = SlotValue {
                    time: latest.time,
                    arrival_ns: latest.arrival_ns,
                    boot_tag: latest.boot_tag,
                    wall_trusted: latest.wall_trusted,
                    node_time: latest.node_time,
                    retained: latest.retained,
                    value: latest.value,
                };
                store_value(table, id, &value)?;
            }
            found += 1;
        }
        if let Record::Owner(owner) = record {
            owners.restore(owner);
        }
        if let Record::Trailer {
            is_older_store: is, ..
        } = record
        {
            is_older_store = *is;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let is_whole = tail == Some(Tail::Clean) && found == objects;
    report.objects_from_checkpoint = if is_whole { found.into() } else { 0 };
    if !is_whole {
        owners.clear();
    }
    Ok(is_whole.then_some(is_older_store))
}

/// Fills table and owners from a segment, from a byte in it. `older` is told what the records say of the store: whether
/// it began with a format before 3.
fn replay<S: SegmentStore>(
    store: &mut S,
    reader: &mut Reader,
    (number, start): (u32, u64),
    table: &Table,
    owners: &mut Owners,
    report: &mut RecoveryReport,
    older: &mut dyn FnMut(bool),
) -> Result<Tail, Error> {
    scan::read_segment(store, reader, number, start, &mut |found| {
        match found.record {
            Record::Segment { version, .. } if found.offset == 0 => {
                older(version < NS_FORMAT);
            }
            Record::Anchor(anchor) => older(anchor.is_older_store),
            Record::Dictionary(entry) => {
                report.dictionary_conflicts += u64::from(!restore(table, &entry)?);
            }
            Record::Owner(owner) => owners.restore(&owner),
            Record::Reading(reading) => {
                let id = ObjectId(reading.id);
                // The number stays taken even when its name is lost.
                table.reserve(id)?;
                if table.key(id).as_str().is_empty() {
                    report.readings_unnamed += 1;
                }
                let value = SlotValue {
                    time: reading.time,
                    arrival_ns: reading.arrival_us.saturating_mul(1000),
                    boot_tag: boot_tag(&found.boot_id),
                    wall_trusted: reading.wall_trusted,
                    node_time: reading.node_time,
                    retained: reading.retained,
                    value: reading.value,
                };
                store_value(table, id, &value)?;
                report.readings_replayed += 1;
            }
            _ => {}
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// Gives an object its key. Returns `false` if it has another one.
fn restore(table: &Table, entry: &Dictionary<'_>) -> Result<bool, Error> {
    table.restore(ObjectId(entry.id), entry.key, entry.avi_ms, entry.temporal)
}

fn store_value(table: &Table, id: ObjectId, value: &SlotValue<'_>) -> Result<(), Error> {
    match table.write_alone(id, value) {
        // `put` refuses such a time, so the reading does not come from it; it stays in the log.
        Ok(_) | Err(Error::TimestampInvalid) => Ok(()),
        Err(Error::ValueTooLong {
            bytes,
            value_bytes_max,
        }) => Err(Error::TableTooSmall {
            what: "value_bytes_max",
            needed: bytes as u64,
            configured: value_bytes_max as u64,
        }),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::codec::{self, CheckpointHead, Latest, Object, Owner, Reading, others};
    use crate::log::seal::Seal;
    use crate::log::times::{Anchor, Context, Form};
    use crate::store::{MemoryStore, StoreError};
    use crate::time::Time;

    #[test]
    fn an_empty_store_begins_at_zero() {
        let table = Table::new(4, 8, 1).expect("a table");
        let recovered = recover(&mut MemoryStore::new(), &table, 1 << 20).expect("recovered");
        assert_eq!(
            (
                recovered.next_segment,
                recovered.next_lsn,
                recovered.next_checkpoint
            ),
            (0, 0, 1)
        );
        assert_eq!(
            (recovered.resume, recovered.report),
            (None, RecoveryReport::default())
        );
    }

    /// A store that holds every record of format 3.
    fn records_of_format_3() -> MemoryStore {
        let mut store = MemoryStore::new();
        let seal = Seal::of(store.secret());
        let name = |id, key| Dictionary {
            id,
            key,
            avi_ms: 1000,
            temporal: true,
        };
        let owner = Owner {
            id: 0,
            template: 5,
            series: "disk,path=sda1 used",
        };
        let mut log = Vec::new();
        codec::put_segment(&mut log, seal, 0);
        let anchor = Anchor {
            boot_id: [1; 16],
            arrival_us: 5_000_000,
            sensor: Time::from_ns(1_700_000_000_000_000_001),
            wall: Time::from_ns(1_700_000_005_000_000_000),
            wall_trusted: true,
            is_older_store: false,
            lsn: 0,
        };
        let context = Context::of(seal, &anchor);
        for (id, key) in [(0, "a"), (1, "b")] {
            codec::put_dictionary(&mut log, seal, &name(id, key));
        }
        codec::put_owner(&mut log, seal, &owner);
        codec::put_anchor(&mut log, seal, &anchor);
        codec::put_anchor(&mut log, seal, &anchor);
        for (n, form) in [Form::Ns, Form::Us, Form::Offset, Form::WholeNs]
            .into_iter()
            .enumerate()
        {
            let node_time = form == Form::Offset;
            let reading = Reading {
                id: u32::from(node_time),
                time: Time::from_ns(1_700_000_005_000_999_000 + n as i64 * 1_000_000),
                arrival_us: 5_000_000 + n as u64,
                wall_trusted: true,
                node_time,
                retained: false,
                value: &[n as u8],
            };
            codec::put_reading(&mut log, &reading, &context, form);
        }
        *store.file_mut("log-00000000") = log;
        let mut checkpoint = Vec::new();
        let head = CheckpointHead {
            segment: 0,
            offset: 0,
            lsn: 0,
            objects: 2,
        };
        codec::put_checkpoint(&mut checkpoint, seal, &head);
        let latest = Some(Latest {
            time: Time::from_ns(-1),
            arrival_ns: 5,
            boot_tag: 6,
            wall_trusted: false,
            node_time: false,
            retained: true,
            value: b"old",
        });
        let entry = name(0, "a");
        codec::put_object(&mut checkpoint, seal, &Object { entry, latest });
        codec::put_owner(&mut checkpoint, seal, &owner);
        let (entry, latest) = (name(1, "b"), None);
        codec::put_object(&mut checkpoint, seal, &Object { entry, latest });
        codec::put_trailer(&mut checkpoint, seal, 2, false);
        *store.file_mut("ckpt-00000001") = checkpoint;
        store
    }

    fn latest(store: &mut MemoryStore) -> (RecoveryReport, [(i64, Vec<u8>); 2]) {
        let table = Table::new(4, 8, 1).expect("a table");
        let recovered = recover(store, &table, 1 << 20).expect("recovered");
        let values = ["a", "b"].map(|key| {
            let mut value = [0; 8];
            let id = table.lookup(key).expect("known");
            let read = table.read(id, &mut value).expect("a value");
            (read.time.ns(), value[..read.value_bytes].to_vec())
        });
        (recovered.report, values)
    }

    #[test]
    fn records_of_format_3_keep_their_ns() {
        let mut store = records_of_format_3();
        let (report, values) = latest(&mut store);
        assert_eq!(
            values,
            [
                (1_700_000_005_003_999_000, vec![3]),
                (1_700_000_005_002_999_000, vec![2])
            ]
        );
        assert_eq!((report.checkpoint, report.readings_replayed), (Some(1), 4));
        assert_eq!(
            (report.objects_from_checkpoint, report.damage),
            (2, Damage::default())
        );
        let mut times = Vec::new();
        let scanned = scan::scan_log(&mut store, &mut |entry| {
            times.push((entry.key.map(str::to_owned), entry.time.ns()));
            ControlFlow::Continue(())
        })
        .expect("scanned");
        let expected = [("a", 0), ("a", 1), ("b", 2), ("a", 3)].map(|(key, ms)| {
            (
                Some(key.to_owned()),
                1_700_000_005_000_999_000 + ms * 1_000_000,
            )
        });
        assert_eq!(
            (times, scanned.damage),
            (expected.to_vec(), Damage::default())
        );
        // The checkpoint alone, with a time of 1 ns before 1970.
        store.file_mut("log-00000000").truncate(22);
        let table = Table::new(4, 8, 1).expect("a table");
        let recovered = recover(&mut store, &table, 1 << 20).expect("recovered");
        let read = table.read(ObjectId(0), &mut [0; 8]).expect("a value");
        assert_eq!((read.time, read.retained), (Time::from_ns(-1), true));
        assert_eq!(
            owners_of(&recovered, 0),
            [(5, "disk,path=sda1 used".to_owned())]
        );
        // The log alone.
        let mut store = records_of_format_3();
        store.file_mut("ckpt-00000001").clear();
        let table = Table::new(4, 8, 1).expect("a table");
        let recovered = recover(&mut store, &table, 1 << 20).expect("recovered");
        assert_eq!(
            owners_of(&recovered, 0),
            [(5, "disk,path=sda1 used".to_owned())]
        );
        assert!(owners_of(&recovered, 1).is_empty());
    }

    fn owners_of(recovered: &Recovered, id: u32) -> Vec<(u32, String)> {
        let owners = recovered.owners.of(id);
        owners
            .map(|owner| (owner.template, owner.series.to_owned()))
            .collect()
    }

    #[test]
    fn an_owner_stands_behind_its_object_or_the_checkpoint_is_none() {
        let mut store = records_of_format_3();
        let seal = Seal::of(store.secret());
        let mut stray = Vec::new();
        let owner = Owner {
            id: 1,
            template: 5,
            series: "s",
        };
        codec::put_owner(&mut stray, seal, &owner);
        // 42 bytes of head, then the object 0.
        let place = 42 + codec::claimed_bytes(&store.file_mut("ckpt-00000001")[42..]).expect("one");
        drop(store.file_mut("ckpt-00000001").splice(place..place, stray));
        let (report, values) = latest(&mut store);
        assert_eq!((report.checkpoint, report.checkpoints_unusable), (None, 1));
        assert_eq!(values[0], (1_700_000_005_003_999_000, vec![3]));
    }

    #[test]
    fn a_key_of_each_length_comes_back_from_the_log_and_from_a_checkpoint() {
        for bytes in [1, 64, 65, 254, 255] {
            let key = "k".repeat(bytes);
            let entry = Dictionary {
                id: 0,
                key: &key,
                avi_ms: 1000,
                temporal: true,
            };
            let seal = Seal::of(MemoryStore::new().secret());
            let mut log = Vec::new();
            codec::put_segment(&mut log, seal, 0);
            codec::put_dictionary(&mut log, seal, &entry);
            let head = CheckpointHead {
                segment: 0,
                offset: 0,
                lsn: 0,
                objects: 1,
            };
            let mut checkpoint = Vec::new();
            codec::put_checkpoint(&mut checkpoint, seal, &head);
            let latest = None;
            codec::put_object(&mut checkpoint, seal, &Object { entry, latest });
            codec::put_trailer(&mut checkpoint, seal, 1, false);
            for (name, content) in [("log-00000000", log), ("ckpt-00000001", checkpoint)] {
                let mut store = MemoryStore::new();
                *store.file_mut(name) = content;
                let table = Table::new(4, 8, 1).expect("a table");
                let recovered = recover(&mut store, &table, 1 << 20).expect("recovered");
                assert_eq!(
                    recovered.report.damage,
                    Damage::default(),
                    "{name}: {bytes}"
                );
                assert_eq!(table.lookup(&key), Some(ObjectId(0)), "{name}: {bytes}");
                assert_eq!(table.key(ObjectId(0)).as_str(), key);
            }
        }
        // No program writes a longer one.
        let (key, seal) = ("k".repeat(256), Seal::of(MemoryStore::new().secret()));
        let mut log = Vec::new();
        codec::put_segment(&mut log, seal, 0);
        let entry = Dictionary {
            id: 0,
            key: &key,
            avi_ms: 1000,
            temporal: true,
        };
        codec::put_dictionary(&mut log, seal, &entry);
        let mut store = MemoryStore::new();
        *store.file_mut("log-00000000") = log;
        let table = Table::new(4, 8, 1).expect("a table");
        let recovered = recover(&mut store, &table, 1 << 20).expect("recovered");
        assert_ne!(recovered.report.damage, Damage::default());
        assert_eq!(table.objects(), 0);
    }

    #[test]
    fn an_older_store_is_recognised_by_any_of_its_remaining_files() {
        let seal = Seal::of(MemoryStore::new().secret());
        let is_older = |files: &[(&str, &Vec<u8>)]| {
            let mut store = MemoryStore::new();
            for (name, content) in files {
                store.file_mut(name).extend_from_slice(content);
            }
            let table = Table::new(4, 8, 1).expect("a table");
            let recovered = recover(&mut store, &table, 1 << 20).expect("recovered");
            recovered.is_older_store
        };
        assert!(!is_older(&[]));
        let mut head = Vec::new();
        codec::put_segment(&mut head, seal, 0);
        for (version, expected) in [(0, true), (2, true), (3, false)] {
            others::set_version(&mut head, seal, version);
            assert_eq!(is_older(&[("log-00000000", &head)]), expected, "{version}");
        }
        let anchor = Anchor {
            boot_id: [1; 16],
            arrival_us: 5,
            sensor: Time::from_ns(1),
            wall: Time::from_ns(1),
            wall_trusted: true,
            is_older_store: true,
            lsn: 0,
        };
        let [mut older, mut newer, mut plain] = [head.clone(), head.clone(), head];
        codec::put_anchor(&mut older, seal, &anchor);
        let began_with_3 = Anchor {
            is_older_store: false,
            ..anchor
        };
        codec::put_anchor(&mut newer, seal, &began_with_3);
        others::put_anchor_ms(&mut plain, seal, &began_with_3);
        for (log, expected) in [(&older, true), (&newer, false), (&plain, true)] {
            assert_eq!(is_older(&[("log-00000000", log)]), expected);
        }
        // The checkpoint alone, and a log that began after it.
        for (flags, expected) in [(Some(true), true), (Some(false), false), (None, true)] {
            let mut checkpoint = Vec::new();
            let empty = CheckpointHead {
                segment: 0,
                offset: 0,
                lsn: 0,
                objects: 0,
            };
            codec::put_checkpoint(&mut checkpoint, seal, &empty);
            match flags {
                Some(is_older) => codec::put_trailer(&mut checkpoint, seal, 0, is_older),
                None => others::put_trailer_plain(&mut checkpoint, seal, 0),
            }
            let files = [("ckpt-00000001", &checkpoint), ("log-00000000", &newer)];
            assert_eq!(is_older(&files[..1]), expected);
            assert_eq!(is_older(&files), expected);
        }
    }

    #[test]
    fn a_dead_store_is_an_error_and_not_an_empty_table() {
        let table = Table::new(4, 8, 1).expect("a table");
        let mut store = MemoryStore::new();
        store.kill();
        assert!(matches!(
            recover(&mut store, &table, 1 << 20),
            Err(Error::Store(StoreError::Failed { .. }))
        ));
    }

    #[test]
    fn an_empty_segment_is_gone_on_with() {
        let table = Table::new(4, 8, 1).expect("a table");
        let mut store = MemoryStore::new();
        store.file_mut("log-00000004");
        let recovered = recover(&mut store, &table, 1 << 20).expect("recovered");
        assert_eq!(
            (recovered.resume, recovered.next_segment),
            (Some((4, 0)), 5)
        );
    }
}
