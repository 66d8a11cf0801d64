//! The formats, byte for byte: this code writes exactly what the committed files of format 3 hold, and reads back those
//! of every format.
//!
//! `cargo run -p db --example make_golden` writes the files again; a difference means a new format version.

#[path = "golden/scenario.rs"]
mod scenario;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use crate::common::{open, scan, sim_clock, small_options};
use base::clock::Clock;
use db::{
    CommitDriver, Database, DbOptions, Durability, HistoryCursor, HistoryQuery, MemoryStore,
    ObjectId, ObjectSpec, PowerCut, ScanReport, SegmentStore, Ticket, Time, scan_log,
};

fn golden(format: u32) -> MemoryStore {
    golden_of(&format!("format-{format}"))
}

fn golden_of(name: &str) -> MemoryStore {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    let mut store = MemoryStore::with_secret(scenario::SECRET);
    for entry in std::fs::read_dir(directory).expect("the golden files") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("a name");
        *store.file_mut(&name) = std::fs::read(entry.path()).expect("a file");
    }
    store
}

#[test]
fn the_written_bytes_are_the_golden_ones() {
    let (golden, written) = (golden(3), scenario::write());
    let names: Vec<_> = golden.names().collect();
    assert_eq!(names, written.names().collect::<Vec<_>>());
    assert!(
        names.iter().filter(|name| name.starts_with("log-")).count() >= 2,
        "{names:?}"
    );
    for name in names {
        assert!(golden.file(name) == written.file(name), "{name} differs");
    }
}

/// Owners in the log and in a checkpoint: what other programs of format 3 read, too.
#[test]
fn owners_have_their_golden_bytes() {
    let (golden, written) = (golden_of("owners-3"), scenario::write_owners());
    let names: Vec<_> = golden.names().collect();
    assert_eq!(names, ["ckpt-00000001", "log-00000000"]);
    assert_eq!(names, written.names().collect::<Vec<_>>());
    for name in names {
        assert!(golden.file(name) == written.file(name), "{name} differs");
    }
    // Each of the two files says all of them.
    for name in ["ckpt-00000001", "log-00000000"] {
        let mut store = golden_of("owners-3");
        store.delete(name).expect("deleted");
        let db = open(store, &sim_clock(), small_options());
        for (n, key) in scenario::KEYS.into_iter().enumerate() {
            let id = db.lookup(key).expect("known").0;
            for (place, (template, series)) in scenario::OWNERS.into_iter().enumerate() {
                let template = db::Owner::template_of(template);
                let other = db::Owner {
                    id,
                    template,
                    series: "another",
                };
                let expected = if place < n {
                    Err(series.to_owned())
                } else {
                    Ok(())
                };
                assert_eq!(db.claim(&other), expected, "{name} {key} {place}");
            }
        }
    }
}

#[test]
fn the_golden_files_are_read_back() {
    for format in [0, 1, 2, 3] {
        read_back(format);
    }
}

/// Key, time and value of a reading.
type Known = (String, Time, Vec<u8>);

/// Every reading of the log, in order.
fn logged(store: &mut MemoryStore) -> (Vec<Known>, ScanReport) {
    let mut readings = Vec::new();
    let report = scan_log(store, &mut |entry| {
        let key = entry.key.expect("named").to_owned();
        readings.push((key, entry.time, entry.value.to_vec()));
        ControlFlow::Continue(())
    })
    .expect("the log can be scanned");
    (readings, report)
}

fn read_back(format: u32) {
    let mut store = golden(format);
    let (readings, report) = logged(&mut store);
    assert!(
        !report.damage.any() && report.damage.tails_torn == 0,
        "{report:?}"
    );
    let expected: Vec<_> = scenario::readings(format)
        .map(|(object, t, value)| (scenario::KEYS[object].to_owned(), t, value))
        .collect();
    assert_eq!(readings, expected);
    let options = DbOptions {
        commit_driver: CommitDriver::Manual,
        ..DbOptions::default()
    };
    let db =
        Database::open(store, Arc::new(scenario::FixedClock::default()), options).expect("opened");
    assert!(db.recovery().checkpoint.is_some());
    assert_eq!(history(&db), expected);
    for (object, key) in scenario::KEYS.iter().enumerate() {
        // The latest by time, but by arrival if the node gave one of the two times.
        let mut newest = None;
        for (n, reading) in expected.iter().enumerate().filter(|(_, (k, ..))| k == key) {
            let node_time = format > 0 && scenario::node_gives_time(n);
            let replaces = newest.is_none_or(|(old, by_node, _): (&(_, Time, _), bool, usize)| {
                node_time || by_node || old.1 <= reading.1
            });
            if replaces {
                newest = Some((reading, node_time, n));
            }
        }
        let (newest, _, n) = newest.expect("a reading");
        let mut buffer = [0; 64];
        let id = db.lookup(key).expect("known");
        let got = db
            .get_at(id, Time::from_ms(0), &mut buffer)
            .expect("a value");
        assert_eq!(
            (id.0 as usize, got.time, &buffer[..got.value_bytes]),
            (object, newest.1, &newest.2[..])
        );
        assert_eq!(got.retained, format > 1 && scenario::is_retained(n));
        assert_eq!(
            db.validity(id),
            (1100 * key.len() as u32, key.starts_with("hall"))
        );
    }
}

/// Every reading as a range read shows it. Nothing is corrected: the second boot's clock is trusted, the first one's
/// never was.
fn history(db: &Database<MemoryStore>) -> Vec<Known> {
    let query = HistoryQuery {
        id: None,
        from: Time::from_ms(i64::MIN),
        to: Time::from_ms(i64::MAX),
    };
    let (mut cursor, mut found) = (HistoryCursor::default(), Vec::new());
    while db
        .history(&query, &mut cursor, &mut |entry| {
            assert!(!entry.time_corrected);
            found.push((
                db.key(entry.id).as_str().to_owned(),
                entry.time,
                entry.value.to_vec(),
            ));
            ControlFlow::Continue(())
        })
        .expect("read")
    {}
    assert!(!cursor.report().damage.any());
    found
}

#[test]
fn a_segment_of_an_older_format_is_read_and_not_continued() {
    for format in [0, 1, 2] {
        let db = Database::open(
            golden(format),
            Arc::new(scenario::FixedClock::default()),
            DbOptions {
                commit_driver: CommitDriver::Manual,
                ..DbOptions::default()
            },
        )
        .expect("opened");
        let id = db.lookup(scenario::KEYS[0]).expect("known");
        db.put_retained(id, b"new", None, db::Durability::Now)
            .expect("taken");
        let mut buffer = [0; 64];
        let mut store = db.close().expect("closed");
        let again = Database::open(
            store,
            Arc::new(scenario::FixedClock::default()),
            DbOptions {
                commit_driver: CommitDriver::Manual,
                ..DbOptions::default()
            },
        )
        .expect("opened again");
        let got = again
            .get_at(id, Time::from_ms(0), &mut buffer)
            .expect("a value");
        assert_eq!((got.retained, got.fresh), (true, false));
        store = again.close().expect("closed");
        for name in ["log-00000000", "log-00000001"] {
            assert!(
                golden(format).file(name) == store.file(name),
                "{name} changed"
            );
        }
        let (readings, report) = scan(&mut store);
        assert_eq!((readings.len(), report.damage.any()), (91, false));
    }
}

/// Puts and commits readings of the first key until power fails.
fn put_many(db: &Database<MemoryStore>) -> Vec<(Ticket, Known)> {
    let key = scenario::KEYS[0];
    let (id, mut put) = (db.lookup(key).expect("known"), Vec::new());
    for n in 0..120_i64 {
        let time = Time::from_ns(1_700_000_100_000_000_001 + n);
        let ticket = db.put(id, &n.to_le_bytes(), time, Durability::Now);
        let reading = (key.to_owned(), time, n.to_le_bytes().to_vec());
        put.push((ticket.expect("taken"), reading));
        if n % 6 == 5 && db.pump().is_err() {
            break;
        }
    }
    put
}

/// Power fails in every changing call of the first run of this version, and leaves any of several prefixes of the
/// append that it cuts. The run begins two segments, and makes a checkpoint and an index.
#[test]
fn a_power_cut_in_the_upgrade_loses_nothing() {
    let opened = |store: MemoryStore| {
        let clock = Arc::new(scenario::FixedClock::default());
        Database::open(store, clock, small_options()).expect("opened")
    };
    let latest = |db: &Database<MemoryStore>| {
        scenario::KEYS.map(|key| {
            let (id, mut value) = (db.lookup(key).expect("known"), [0; 40]);
            let got = db.get_at(id, Time::from_ms(0), &mut value);
            let got = got.expect("a value");
            (got.time, value[..got.value_bytes].to_vec())
        })
    };
    for format in [0, 1, 2] {
        let before = latest(&opened(golden(format)));
        let (mut after_calls, mut is_over) = (0, false);
        while !is_over {
            for bytes_kept in [0, 1, 30, 150, 4095] {
                let mut store = golden(format);
                store.set_power_cut(PowerCut {
                    after_calls,
                    bytes_kept,
                });
                let db = opened(store);
                let put = put_many(&db);
                while db.maintain().unwrap_or(false) {}
                let is_dead = db.with_store(|store| store.list(&mut |_| {}).is_err());
                is_over = is_dead == Some(false);
                let mut store = db.abandon().expect("the store");
                store.restart();
                // What was acknowledged follows what was there. The append that was cut may have left more.
                let (found, report) = logged(&mut store);
                let mut expected = logged(&mut golden(format)).0;
                let old = expected.len();
                let acknowledged = put.iter().filter(|(ticket, _)| ticket.is_durable());
                let least = old + acknowledged.count();
                expected.extend(put.into_iter().map(|(_, reading)| reading));
                assert!(!report.damage.any(), "{report:?}");
                assert!(found.len() >= least && found == expected[..found.len()]);
                // The next start shows it, goes on, and still knows that the store is an older one.
                let db = opened(store);
                assert_eq!(history(&db), found);
                let after = latest(&db);
                assert_eq!(after[1..], before[1..]);
                let newest = found[old..]
                    .last()
                    .map_or(before[0].0, |(_, time, _)| *time);
                assert_eq!(after[0].0, newest);
                let id = db.lookup(scenario::KEYS[1]).expect("known");
                db.put_now(id, b"on", Durability::Now).expect("taken");
                let store = db.close().expect("closed");
                let checkpoints = store.names().filter(|name| name.starts_with("ckpt-"));
                let name = checkpoints.max().expect("a checkpoint");
                let trailer = store.file(name).and_then(|bytes| bytes.last_chunk::<11>());
                assert!(
                    matches!(trailer, Some([0xc4, 5, 3, 0, 0, 0, 2, ..])),
                    "{trailer:?}"
                );
            }
            after_calls += 1;
        }
        assert!(after_calls > 20, "{after_calls}");
    }
}

/// An index of version 1 says its times in ms. Gigabytes of history are not read again because of that: a segment whose
/// index cannot be used is read, and its index is written again.
#[test]
fn an_index_of_the_version_before_is_used() {
    for format in [1, 2] {
        let options = DbOptions {
            commit_driver: CommitDriver::Manual,
            ..DbOptions::default()
        };
        let clock = Arc::new(scenario::FixedClock::default());
        let db = Database::open(golden(format), clock, options).expect("opened");
        while db.maintain().expect("indexed") {}
        let store = db.abandon().expect("the store");
        let name = "index-00000000";
        let (before, after) = (golden(format), store.file(name));
        assert_eq!(before.file(name).map(|bytes| bytes[8]), Some(1));
        assert!(before.file(name) == after, "it was written again");
        // The last segment had none, and gets one of this version.
        let last = store.file("index-00000001").map(|bytes| bytes[8]);
        assert_eq!(last, Some(2));
    }
}

#[test]
fn a_later_format_is_refused_not_guessed() {
    let seal = db::log::seal::Seal::of(scenario::SECRET);
    let (mut segment, mut checkpoint) = (Vec::new(), Vec::new());
    db::log::codec::put_segment(&mut segment, seal, 9);
    let head = db::log::codec::CheckpointHead {
        segment: 0,
        offset: 0,
        lsn: 0,
        objects: 0,
    };
    db::log::codec::put_checkpoint(&mut checkpoint, seal, &head);
    for (name, mut bytes) in [("log-00000009", segment), ("ckpt-00000009", checkpoint)] {
        // The version lies after kind, length and magic; the checksum is the last four bytes.
        bytes[10] = 4;
        let end = bytes.len() - 4;
        let check = crc32c::crc32c_append(scenario::SECRET as u32, &bytes[..end])
            ^ (scenario::SECRET >> 32) as u32;
        bytes[end..].copy_from_slice(&check.to_le_bytes());
        let mut store = golden(2);
        *store.file_mut(name) = bytes;
        let opened = Database::open(
            store,
            Arc::new(scenario::FixedClock::default()),
            DbOptions::default(),
        );
        assert_eq!(
            opened.err(),
            Some(db::Error::Version { found: 4 }),
            "{name}"
        );
    }
}

#[test]
fn the_slot_table_has_its_golden_words() {
    use db::table::{Line, Table};
    use std::sync::atomic::AtomicU64;
    let golden: &[u8] = include_bytes!("golden/table-5");
    assert_eq!(db::table::FORMAT_VERSION, 5);
    // A difference means another version of the format.
    assert!(scenario::table() == golden, "other words than before");
    let word = |bytes: &[u8]| AtomicU64::new(u64::from_le_bytes(bytes.try_into().expect("eight")));
    let line = |bytes: &[u8]| {
        let words: Vec<AtomicU64> = bytes.chunks(8).map(word).collect();
        Line(words.try_into().expect("eight"))
    };
    let lines_of = |bytes: &[u8]| -> Vec<Line> { bytes.chunks(64).map(line).collect() };
    // A table of an older version is refused, and not read with other words than it has.
    let older: [&[u8]; 2] = [
        include_bytes!("golden/table-3"),
        include_bytes!("golden/table-4"),
    ];
    for older in older {
        let older = lines_of(older);
        let refused = db::Error::RegionInvalid { reason: "version" };
        assert_eq!(Table::attach(&older[..]).err(), Some(refused));
    }
    let lines = lines_of(golden);
    let table = Table::attach(&lines[..]).expect("a table");
    let run = [0x1111_2222_3333_4444, 0x5555_6666_7777_8888];
    assert_eq!(table.served_by(), Some(run));
    let mut value = [0; 20];
    for (n, text) in [&b"a value of 20 bytes."[..], b"a value of 20"]
        .into_iter()
        .enumerate()
    {
        let id = table.lookup(scenario::TABLE_KEYS[n]).expect("known");
        let read = table.read(id, &mut value).expect("a value");
        assert_eq!(&value[..read.value_bytes], text);
        assert_eq!(read.time.ms(), 1_700_000_000_000 - n as i64);
        assert_eq!((read.wall_trusted, read.node_time), (n == 0, n == 1));
        assert_eq!(read.retained, n == 1);
        assert_eq!(
            (read.arrival_ns, read.avi_ms),
            (5_000_000_321, 1_500 + n as u32)
        );
        assert_eq!(table.validity(id), (1_500 + n as u32, n == 0));
    }
    for (n, key) in scenario::TABLE_KEYS.into_iter().enumerate() {
        let id = db::ObjectId(n as u32);
        assert_eq!((table.key(id).as_str(), table.lookup(key)), (key, Some(id)));
    }
    let last = db::ObjectId(2);
    assert_eq!(table.validity(last), (60_000, false));
    assert_eq!(table.read(last, &mut value), Err(db::Error::NoValue));
    assert_eq!((table.objects(), table.keys_bytes()), (3, 5 * 16));
    assert_eq!(table.lookup(scenario::KEYS[2]), None);
}

/// Log bytes of 40,960 readings of 1,024 sensors in whole ms, with values of 8 bytes, once all of them are named. 128
/// ids have one byte and 896 have two, and there is an anchor for every 4,000 bytes.
///
/// With its name such a reading took 23.44 bytes in formats 0 to 2. It must not take more than 0.94 bytes more (4 %) in
/// any later format: the capacity and the life of a card follow from it.
const BYTES_OF_READINGS: u64 = 949_995;
const READINGS: u64 = 40 * 1024;

#[test]
fn a_reading_has_its_golden_bytes() {
    let clock = sim_clock();
    let options = DbOptions {
        objects_max: 20_000,
        commit_driver: CommitDriver::Manual,
        ..DbOptions::default()
    };
    let db = open(MemoryStore::new(), &clock, options);
    for n in 0..16_385 {
        let spec = ObjectSpec {
            key: &format!("{n}"),
            avi_ms: 1_000,
            temporal: true,
        };
        assert_eq!(db.declare(&spec), Ok(ObjectId(n)));
    }
    let value = 21.5_f64.to_le_bytes();
    let (at, batched) = (|| clock.wall_ms() - 40, Durability::Batched);
    // The second of two readings: the first one also has what comes before it, an anchor or its name.
    let bytes = |put: &dyn Fn() -> Result<db::Ticket, db::Error>| {
        let logged = [(); 2].map(|()| {
            clock.advance_ns(1_000_000);
            put().expect("taken");
            db.pump().expect("committed");
            db.stats().log_bytes
        });
        logged[1] - logged[0]
    };
    for (id, expected) in [(0, 22), (127, 22), (128, 23), (16_383, 23), (16_384, 24)] {
        let id = ObjectId(id);
        // No flag costs a byte.
        assert_eq!(
            bytes(&|| db.put(id, &value, Time::from_ms(at()), batched)),
            expected
        );
        assert_eq!(bytes(&|| db.put_now(id, &value, batched)), expected);
        let retained = |sensor_ms: Option<i64>| {
            let sensor = sensor_ms.map(Time::from_ms);
            bytes(&|| db.put_retained(id, &value, sensor, batched))
        };
        assert_eq!([None, Some(at())].map(retained), [expected; 2]);
        // A time in µs or ns takes more, but is no longer than what lies more than two hours from the others.
        for (below_ms_ns, more) in [(1_000, 1), (1, 3)] {
            let time = || Time::from_ns(at() * 1_000_000 + below_ms_ns);
            let put = || db.put(id, &value, time(), batched);
            assert_eq!(bytes(&put), expected + more);
        }
        assert_eq!(
            bytes(&|| db.put(id, &value, Time::from_ms(5), batched)),
            expected + 5
        );
    }
    let round = || {
        for n in 0..1024 {
            clock.advance_ns(1_000_000);
            db.put(ObjectId(n), &value, Time::from_ms(at()), batched)
                .expect("taken");
        }
        db.pump().expect("committed");
        db.stats().log_bytes
    };
    let (before, mut after) = (round(), 0);
    for _ in 0..READINGS / 1024 {
        after = round();
    }
    assert_eq!(after - before, BYTES_OF_READINGS);
    // A time of the node's clock takes no more where it is not in whole ms. The anchor of a clock that has changed
    // comes first, so that none comes between.
    clock.set_wall_trusted(false);
    clock.advance_ns(123_456);
    for (id, expected) in [(0, 22), (128, 23), (16_384, 24)] {
        let id = ObjectId(id);
        assert_eq!(bytes(&|| db.put_now(id, &value, batched)), expected);
        let kept = || db.put_retained(id, &value, None, batched);
        assert_eq!(bytes(&kept), expected);
    }
    assert_eq!(db.stats().checkpoints, 0);
}
