//! The body of the fuzz target of the database's files: segments, checkpoints and index files. A test of `db` includes
//! this file too and runs the committed corpus through it.
//!
//! Records and their checksums are read here a second time, by SPEC.md. So any bytes become records, and what the
//! reader finds is compared with what they say.

use std::ops::ControlFlow;
use std::sync::Arc;

use base::sim::SimClock;
use crc32c::crc32c_append;
use db::log::codec::{self, Record};
use db::log::reader::{Damage, Reader, Tail};
use db::log::{checkpoint, segment_name};
use db::{
    CommitDriver, Database, DbOptions, Error, HistoryCursor, HistoryQuery, MemoryStore,
    SegmentStore, Time, scan_log,
};

/// Longer inputs are left alone: the reader's buffer holds this much at once, however it is cut.
const BYTES_MAX: usize = 32 << 10;
/// The secret of the golden files.
const SECRET: u64 = 0x0123_4567_89ab_cdef;
/// Readings in the golden files.
const GOLDEN_READINGS: u64 = 90;

/// The first byte chooses: a segment, a checkpoint, or an index; 0x80: the checksums are put right.
pub(crate) fn db_log(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_first() else {
        return;
    };
    if bytes.len() > BYTES_MAX {
        return;
    }
    let mut file = bytes.to_vec();
    let is_sealed = choice & 0x80 != 0;
    match choice & 3 {
        0 if is_sealed => {
            let said = put_right(&mut file);
            segment(&file, &said);
        }
        0 => segment(&file, &Said::default()),
        1 => {
            if is_sealed {
                put_right(&mut file);
            }
            checkpoint_file(&file);
        }
        _ => {
            if is_sealed && let Some((body, end)) = file.split_last_chunk_mut::<4>() {
                *end = checksum(&[], body);
            }
            index(file);
        }
    }
}

/// One reading.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    offset: u64,
    id: u32,
    time: Time,
    arrival_us: u64,
    boot_id: [u8; 16],
    flags: [bool; 3],
    value: Vec<u8>,
}

/// What a segment says.
#[derive(Default)]
struct Said {
    readings: Vec<Known>,
    /// It is nothing but right records.
    is_plain: bool,
}

/// The times of an anchor.
struct Base {
    boot_id: [u8; 16],
    arrival_us: u64,
    sensor_ms: i64,
    sensor_ns: i64,
    wall_us: i64,
}

fn checksum(before: &[u8], bytes: &[u8]) -> [u8; 4] {
    let check = crc32c_append(crc32c_append(SECRET as u32, before), bytes);
    (check ^ (SECRET >> 32) as u32).to_le_bytes()
}

/// Gives each record the right checksum, from the first byte on, as far as the lengths lead.
fn put_right(file: &mut [u8]) -> Said {
    let mut said = Said {
        readings: Vec::new(),
        is_plain: true,
    };
    let mut base: Option<Base> = None;
    let mut at = 0;
    while let Some(total) = codec::claimed_bytes(&file[at..])
        && at + total <= file.len()
    {
        let (framed, check) = file[at..at + total].split_at_mut(total - 4);
        let kind = framed[0];
        let body = varint(&framed[1..]).map_or(&[][..], |(_, body)| body);
        let mut before = Vec::new();
        let is_right = match kind {
            0x80..=0xaf => match base.as_ref().and_then(|base| reading(kind, body, base)) {
                Some((mut known, sealed)) => {
                    known.offset = at as u64;
                    before.extend(known.boot_id);
                    before.extend(sealed.to_le_bytes());
                    before.extend(known.arrival_us.to_le_bytes());
                    said.readings.push(known);
                    true
                }
                None => false,
            },
            0xb1 => {
                let version = body.get(8..12).map(number);
                body.len() == 16
                    && body.starts_with(b"EVKLOG\r\n")
                    && (at > 0 || version <= Some(3))
            }
            0xb2 | 0xb3 if body.len() == 49 => {
                base = Some(anchor(body, kind == 0xb3));
                true
            }
            0xb4 => dictionary(body).is_some(),
            0xb5 => owner(body).is_some(),
            _ => false,
        };
        said.is_plain &= is_right;
        check.copy_from_slice(&checksum(&before, framed));
        at += total;
    }
    said.is_plain &= at == file.len();
    said
}

fn varint(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let end = bytes.iter().take(5).position(|byte| byte & 0x80 == 0)?;
    let low_first = bytes[..=end].iter().rev();
    let value = low_first.fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f));
    let is_shortest = end == 0 || bytes[end] != 0;
    Some((
        u32::try_from(value).ok().filter(|_| is_shortest)?,
        &bytes[end + 1..],
    ))
}

/// A number of up to eight bytes.
fn number(bytes: &[u8]) -> u64 {
    let low_first = bytes.iter().rev();
    low_first.fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn anchor(body: &[u8], is_ns: bool) -> Base {
    let [sensor, wall] = [24, 32].map(|at| number(&body[at..at + 8]) as i64);
    let in_ns = |time: i64| match time.checked_mul(1_000_000) {
        _ if is_ns => time,
        Some(ns) => ns,
        None => time.signum() * (i64::MAX - 1),
    };
    Base {
        boot_id: body[..16].try_into().expect("16 bytes"),
        arrival_us: number(&body[16..24]),
        sensor_ms: if is_ns {
            sensor.div_euclid(1_000_000)
        } else {
            sensor
        },
        sensor_ns: in_ns(sensor),
        wall_us: in_ns(wall).div_euclid(1000),
    }
}

fn dictionary(body: &[u8]) -> Option<()> {
    let (_, rest) = varint(body)?;
    let (_, key) = varint(rest.get(1..)?)?;
    ((1..=255).contains(&key.len()) && std::str::from_utf8(key).is_ok()).then_some(())
}

fn owner(body: &[u8]) -> Option<()> {
    let series = varint(body)?.1.get(4..)?;
    ((1..=1024).contains(&series.len()) && std::str::from_utf8(series).is_ok()).then_some(())
}

/// Returns the number nearest to `base` with these low bits.
fn nearest(base: i128, low: u64, bits: u32) -> i128 {
    let window = 1i128 << bits;
    let near = base - base.rem_euclid(window) + i128::from(low);
    let is_near = |number: &i128| (-window / 2..window / 2).contains(&(number - base));
    let candidates = [near - window, near, near + window];
    candidates.into_iter().find(is_near).expect("one is near")
}

/// Returns the reading, and its whole time as the checksum covers it.
fn reading(kind: u8, body: &[u8], base: &Base) -> Option<(Known, i64)> {
    let (is_wide, by_node) = (kind & 2 != 0, kind & 4 != 0);
    let bytes = match kind & 0xf0 {
        0xa0 if !is_wide => 3,
        0xa0 | 0x80 if is_wide => 8,
        0x80 if by_node => 3,
        0x80 => 6,
        0x90 if !is_wide && !by_node => 4,
        _ => return None,
    };
    let (id, rest) = varint(body)?;
    let (low, rest) = rest.split_at_checked(bytes)?;
    let (arrival, value) = rest.split_at_checked(4)?;
    let arrival_us = nearest(i128::from(base.arrival_us), number(arrival), 32) as u64;
    let low = number(low);
    let whole = match kind & 0xf0 {
        _ if is_wide => low as i64,
        0xa0 => nearest(i128::from(base.sensor_ms), low, 24) as i64,
        0x90 => {
            let us = nearest(i128::from(base.sensor_ns.div_euclid(1000)), low, 32);
            i64::try_from(us * 1000).ok()?
        }
        _ if by_node => {
            let offset = (i128::from(base.wall_us) - i128::from(base.arrival_us)) as i64;
            let offset = nearest(i128::from(offset), low, 24) as i64;
            let us = i128::from(arrival_us) + i128::from(offset);
            i64::try_from(us * 1000).ok()?
        }
        _ => nearest(i128::from(base.sensor_ns), low, 48) as i64,
    };
    let known = Known {
        offset: 0,
        id,
        time: if kind & 0xf0 == 0xa0 {
            Time::from_ms(whole)
        } else {
            Time::from_ns(whole)
        },
        arrival_us,
        boot_id: base.boot_id,
        flags: [kind & 1 != 0, by_node, kind & 8 != 0],
        value: value.to_vec(),
    };
    (value.len() <= 8192).then_some((known, whole))
}

fn options() -> DbOptions {
    DbOptions {
        objects_max: 16,
        value_bytes_max: 40,
        queue_bytes_max: 4096,
        append_bytes_max: 1024,
        segment_bytes_max: 3000,
        checkpoint_bytes: 2000,
        checkpoint_piece_bytes_max: 512,
        commit_driver: CommitDriver::Manual,
        ..DbOptions::default()
    }
}

fn open(store: MemoryStore) -> Result<Database<MemoryStore>, Error> {
    Database::open(store, Arc::new(SimClock::new(1)), options())
}

/// A segment alone. Read as a whole and in parts it is the same, and it says what SPEC.md says. It may prevent a start
/// only with a reason.
fn segment(file: &[u8], said: &Said) {
    let mut store = MemoryStore::with_secret(SECRET);
    *store.file_mut(&segment_name(0)) = file.to_vec();
    let whole = read(&mut store, usize::MAX);
    for records in [1, 2, 5] {
        assert_eq!(read(&mut store, records), whole);
    }
    let (found, tail, damage) = whole;
    if said.is_plain {
        assert_eq!((tail, damage.records_damaged), (Ok(Tail::Clean), 0));
        assert!(found.iter().map(|(_, known)| known).eq(&said.readings));
    }
    for (_, known) in &found {
        if let Ok(at) = (said.readings).binary_search_by_key(&known.offset, |known| known.offset) {
            assert_eq!(*known, said.readings[at]);
        }
    }
    let scanned = scan_log(&mut store, &mut |_| ControlFlow::Continue(()));
    if let Ok(report) = &scanned {
        assert_eq!(report.readings, found.len() as u64);
    }
    if let Ok(db) = open(store) {
        let (read, readings) = (history(&db), found.len() as u64);
        assert!(read <= readings);
        // A time of the node's untrusted clock may be corrected to any other; the range ends before the last ms.
        let is_in_range = |(_, known): &(u64, Known)| {
            let [wall_trusted, by_node, _] = known.flags;
            known.time < Time::from_ms(i64::MAX) && (wall_trusted || !by_node)
        };
        if said.is_plain && found.iter().all(is_in_range) {
            assert_eq!(read, readings);
        }
    }
}

/// Returns every reading of the segment with its number, how the segment ends and what was damaged. Reading stops after
/// every `records_max` records and begins anew there.
fn read(
    store: &mut MemoryStore,
    records_max: usize,
) -> (Vec<(u64, Known)>, Result<Tail, Error>, Damage) {
    let name = segment_name(0);
    let content = store.file(&name).expect("it is there").clone();
    let file = store.open(&name).expect("it is there");
    let (mut reader, mut found) = (Reader::new(), Vec::new());
    let (mut at, mut records) = (0, 0usize);
    loop {
        let mut end = at;
        let tail = reader.read(store, file, at, &mut |record| {
            let bytes = codec::claimed_bytes(&content[record.offset as usize..]);
            end = record.offset + bytes.expect("a record") as u64;
            if let Record::Reading(reading) = record.record {
                let known = Known {
                    offset: record.offset,
                    id: reading.id,
                    time: reading.time,
                    arrival_us: reading.arrival_us,
                    boot_id: record.boot_id,
                    flags: [reading.wall_trusted, reading.node_time, reading.retained],
                    value: reading.value.to_vec(),
                };
                found.push((record.lsn, known));
            }
            records += 1;
            Ok(if records.is_multiple_of(records_max) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        });
        if tail != Ok(Tail::Stopped) {
            store.close(file);
            return (found, tail, reader.damage);
        }
        at = end;
    }
}

/// Readings that a range read of everything finds.
fn history(db: &Database<MemoryStore>) -> u64 {
    let query = HistoryQuery {
        id: None,
        from: Time::from_ms(i64::MIN),
        to: Time::from_ms(i64::MAX),
    };
    let (mut cursor, mut found) = (HistoryCursor::default(), 0);
    let mut visit = |_: &db::HistoryEntry<'_>| {
        found += 1;
        ControlFlow::Continue(())
    };
    while db.history(&query, &mut cursor, &mut visit) == Ok(true) {}
    found
}

/// A checkpoint alone: one that is not whole never prevents a start, and of a whole one nothing is missing.
fn checkpoint_file(file: &[u8]) {
    let mut store = MemoryStore::with_secret(SECRET);
    *store.file_mut("ckpt-00000001") = file.to_vec();
    let opened = open(store.clone());
    match checkpoint::verify(&mut store, 1) {
        Ok(None) => {
            let db = opened.unwrap_or_else(|error| panic!("it prevents the start: {error}"));
            assert_eq!(db.recovery().checkpoint, None);
        }
        Ok(Some(head)) => {
            let mut objects = 0;
            let visited = checkpoint::visit(&mut store, 1, &mut |record| {
                objects += u32::from(matches!(record, Record::Object(_)));
                Ok(ControlFlow::Continue(()))
            });
            assert_eq!((visited, objects), (Ok(Some(Tail::Clean)), head.objects));
            if let Ok(db) = opened {
                let recovery = db.recovery();
                assert_eq!(recovery.checkpoint, Some(1));
                assert_eq!(recovery.objects_from_checkpoint, u64::from(objects));
            }
        }
        Err(error) => assert_eq!(opened.err(), Some(error)),
    }
}

/// The index of a segment of the golden files. The start does not need it, and succeeds with any content of it.
fn index(file: Vec<u8>) {
    const FILES: [(&str, &[u8]); 3] = [
        (
            "log-00000000",
            include_bytes!("../../crates/db/tests/golden/format-2/log-00000000"),
        ),
        (
            "log-00000001",
            include_bytes!("../../crates/db/tests/golden/format-2/log-00000001"),
        ),
        (
            "ckpt-00000003",
            include_bytes!("../../crates/db/tests/golden/format-2/ckpt-00000003"),
        ),
    ];
    let mut store = MemoryStore::with_secret(SECRET);
    for (name, content) in FILES {
        *store.file_mut(name) = content.to_vec();
    }
    *store.file_mut("index-00000000") = file;
    let db = open(store).unwrap_or_else(|error| panic!("it prevents the start: {error}"));
    assert!(history(&db) <= GOLDEN_READINGS);
}
