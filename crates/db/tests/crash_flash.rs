//! Power cuts under the real store. The simulated device loses power at a random write while readings arrive. It keeps
//! any subset of what was not flushed, whole or torn. Then store and database recover.
//!
//! A seeded bug, which completes tickets before their append, shows that this test can fail:
//! `KEEL_SEEDED_BUG=ack-before-flush cargo nextest run -p db crash_flash::`

use crate::common;
use crate::common::{Oracle, declare, formatted, long_log_options, open, sim_clock, small_options};
use base::block::{BLOCK_BYTES, BlockDevice};
use base::sim::{Random, SimDevice};
use db::{CommitDriver, DbOptions, Durability, Health, ObjectSpec, SegmentStore};
use flash::{OpenOptions, Store};
use std::collections::BTreeMap;

const RUNS: u64 = 250;
const WRITES_MAX: u64 = 700;

fn options() -> DbOptions {
    // Appends of one to several groups of the store, segments that rotate, checkpoints in pieces.
    DbOptions {
        append_bytes_max: 20 << 10,
        segment_bytes_max: 24 << 10,
        checkpoint_bytes: 12 << 10,
        ..wide()
    }
}

fn wide() -> DbOptions {
    DbOptions {
        queue_bytes_max: 64 << 10,
        value_bytes_max: 400,
        checkpoint_piece_bytes_max: 2048,
        key_bytes_mean: db::KEY_BYTES_MEAN_MAX,
        ..small_options()
    }
}

/// After a stop the checkpoint has all of the log, so a start does not read its end. An append does, and would fail at
/// each start.
#[test]
fn a_rotten_end_of_the_log_fails_no_commit_after_a_stop() {
    // The end of the segment is in the block of its head, or in a later one.
    for (value_words, has_more_blocks) in [(1, false), (75, true)] {
        let clock = sim_clock();
        let db = open(formatted(400, 1), &clock, options());
        let ids = declare(&db, 4);
        let put = |db: &db::Database<Store<SimDevice>>, n: u32| {
            let (id, time) = (ids[n as usize % 4], db::Time::from_ms(i64::from(n)));
            let value = n.to_le_bytes().repeat(value_words);
            let ticket = db.put(id, &value, time, Durability::Now);
            let ticket = ticket.expect("taken");
            db.pump().expect("committed");
            assert!(ticket.is_durable());
        };
        for n in 0..30 {
            put(&db, n);
        }
        let mut store = db.close().expect("closed");
        let mut last = String::new();
        let listed = SegmentStore::list(&mut store, &mut |name| {
            if name.starts_with("log-") && *name > *last {
                last = name.to_owned();
            }
        });
        listed.expect("listed");
        let device = store.close().expect("closed");
        let mut hit = 0;
        for block in 0..device_blocks(&device) {
            let mut rotten = device.clone();
            rotten.inject_bit_rot(block, 9_999);
            let mut store = Store::open(rotten, &OpenOptions::default()).expect("the store opens");
            let file = store.open_file(&last).expect("the segment opens");
            let length = store.length(file).expect("its length");
            assert_eq!(length > BLOCK_BYTES as u64, has_more_blocks, "{length}");
            let is_rotten = store.read(file, length - 1, &mut [0]).is_err();
            store.close_file(file);
            if is_rotten {
                hit += 1;
                let db = open(store, &clock, options());
                assert_eq!(db.recovery().damage.pieces_unreadable, 1);
                put(&db, 100);
            }
        }
        assert!(hit > 0, "no block is the end of {last}");
    }
}

#[test]
fn acknowledged_readings_survive_every_power_cut() {
    let keys: Vec<_> = (0..12).map(|n| format!("room {n}/temperature")).collect();
    let (cuts, acknowledged) = cut_power(0..RUNS, &keys);
    assert!(cuts == 3 * RUNS && acknowledged > 10_000);
}

/// The same with keys of all lengths, which differ in their last bytes alone; a few of them fill a checkpoint's piece.
#[test]
fn acknowledged_readings_of_long_keys_survive_every_power_cut() {
    let lengths: [usize; 12] = [2, 16, 17, 63, 64, 65, 128, 200, 253, 254, 255, 255];
    let named = lengths.iter().enumerate();
    let keys: Vec<_> = named.map(|(n, &length)| format!("{n:0length$}")).collect();
    let (cuts, acknowledged) = cut_power(1000..1060, &keys);
    assert!(cuts == 3 * 60 && acknowledged > 1000);
}

/// Cuts the power of three lives of a device for each seed. Returns how many cuts there were, and how many acknowledged
/// readings were compared.
fn cut_power(seeds: std::ops::Range<u64>, keys: &[String]) -> (u64, usize) {
    let mut cuts = 0;
    let mut acknowledged = 0;
    for seed in seeds {
        let mut random = Random::new(seed);
        let clock = sim_clock();
        let store = formatted(2048, seed);
        let mut oracle = Oracle::default();
        let mut store = Some(store);
        // Up to three lives of the device, each ended by its own cut.
        for _life in 0..3 {
            let mut powered = store.take().expect("a store");
            powered
                .device_mut()
                .set_power_cut_after_writes(Some(1 + random.below(WRITES_MAX / 3)));
            let db =
                match db::Database::open(powered, std::sync::Arc::new(clock.clone()), options()) {
                    Ok(db) => db,
                    Err(error) => panic!("recovery needs no writes: {error}"),
                };
            let name = |key: &String| {
                let declared = db.declare(&ObjectSpec {
                    key,
                    avi_ms: 1000,
                    temporal: key.len().is_multiple_of(2),
                });
                declared.expect("declared")
            };
            let ids: Vec<_> = keys.iter().map(name).collect();
            let burst = 1 + random.below(60);
            for n in 0..4000u64 {
                clock.advance_ns(random.below(4_000_000));
                let timestamp_ms = clock_ms(n) - random.below(30) as i64;
                let mut value = vec![0; random.index(399) + 1];
                random.fill(&mut value);
                oracle.put(&db, ids[random.index(ids.len())], timestamp_ms, &value);
                if n % burst == 0 && db.pump().is_err() {
                    break;
                }
            }
            let cut = db.abandon().expect("the store comes back");
            assert!(
                !cut.device().is_powered(),
                "the run was too short for its cut"
            );
            let image = cut.device().crash_image_random(random.next_u64());
            let recovered =
                |image| Store::open(image, &OpenOptions::default()).expect("the store recovers");
            acknowledged += oracle.acknowledged().len();
            // A copy: what a start writes is to be written in the next life, and cut there.
            oracle.check(recovered(image.clone()), &clock, options());
            store = Some(recovered(image));
            clock.reboot();
            cuts += 1;
        }
    }
    println!("power cuts: {cuts}, acknowledged readings compared: {acknowledged}");
    (cuts, acknowledged)
}

/// The same with the commit thread running beside the producer, as it does in use.
#[test]
fn acknowledged_readings_survive_with_the_commit_thread() {
    let mut acknowledged = 0;
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let clock = sim_clock();
        let mut store = formatted(2048, seed);
        store
            .device_mut()
            .set_power_cut_after_writes(Some(1 + random.below(120)));
        let threaded = DbOptions {
            commit_driver: CommitDriver::Thread,
            commit_interval_ms: 1,
            ..options()
        };
        let db = open(store, &clock, threaded);
        let mut oracle = Oracle::default();
        let ids: Vec<_> = (0..12)
            .map(|n| {
                db.declare(&ObjectSpec {
                    key: KEYS[n],
                    avi_ms: 9,
                    temporal: true,
                })
            })
            .collect();
        for n in 0.. {
            if db.health() != Health::Ok && db.health() != Health::Dropping {
                break;
            }
            let Ok(id) = ids[random.index(12)] else { break };
            let mut value = vec![0; random.index(399) + 1];
            random.fill(&mut value);
            oracle.put(&db, id, clock_ms(n), &value);
            if n % 64 == 0 {
                std::thread::yield_now();
            }
        }
        let cut = db.abandon().expect("the store comes back");
        let image = cut.device().crash_image_random(random.next_u64());
        let recovered = Store::open(image, &OpenOptions::default()).expect("the store recovers");
        acknowledged += oracle.acknowledged().len();
        oracle.check(recovered, &clock, options());
    }
    println!("acknowledged readings compared: {acknowledged}");
    assert!(acknowledged > 1000);
}

const KEYS: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];

fn clock_ms(n: u64) -> i64 {
    1_700_000_000_000 + n as i64 * 3
}

/// Damaged neighbouring blocks, as of one lost erase block, cost what they held. The time of a read and of a start is
/// bounded by the length of the log, for any number of them.
#[test]
fn damaged_neighbours_cost_few_requests() {
    const READINGS: u64 = 60_000;
    const MAGIC: &[u8] = b"EKBD";
    let clock = sim_clock();
    let store = formatted(2048, 1);
    let db = open(store, &clock, long_log_options());
    let ids = declare(&db, 5);
    for n in 0..READINGS {
        let id = ids[n as usize % 5];
        db.put(
            id,
            &n.to_le_bytes(),
            db::Time::from_ms(n as i64),
            Durability::Batched,
        )
        .expect("taken");
        if n % 500 == 499 {
            db.pump().expect("committed");
        }
    }
    let device = db.close().expect("closed").device().clone();
    let field = |block: &[u8], at: usize, bytes: usize| {
        let read = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
        block[at..at + bytes].iter().rev().fold(0, read)
    };
    // The log is the file with the most blocks; of each block number, take the block that was written last.
    let mut files: BTreeMap<u64, BTreeMap<u64, (u64, u64)>> = BTreeMap::new();
    for block in 0..device_blocks(&device) {
        let content = device.peek(block);
        if content.starts_with(MAGIC) {
            let (file, number) = (field(&content, 8, 8), field(&content, 28, 4));
            let found = (field(&content, 16, 8), block);
            let newest = files.entry(file).or_default().entry(number);
            newest
                .and_modify(|known| *known = found.max(*known))
                .or_insert(found);
        }
    }
    let log = files.values().max_by_key(|blocks| blocks.len());
    let log = log.expect("a file");
    let blocks = log.len() as u64;
    assert!(blocks > 200, "{blocks}");
    // No intact block has a pointer to the block before seven or more damaged ones, unless its number is a multiple of
    // eight. There the reader follows the lists of runs.
    let cases = [
        (0, 0),
        (100, 1),
        (100, 4),
        (100, 8),
        (128, 7),
        (37, 16),
        (200, 16),
        (60, 64),
    ];
    for (first, count) in cases {
        let mut device = device.clone();
        for number in first..first + count {
            device.inject_bit_rot(log[&number].1, 9000);
        }
        let mut store = Store::open(device, &OpenOptions::default()).expect("opened");
        let opened = store.device().counters();
        let (readings, report) = common::scan(&mut store);
        let read = store.device().counters().reads - opened.reads;
        let lost = READINGS - readings.len() as u64;
        let pieces = report.damage.pieces_unreadable;
        println!("{count} damaged: {pieces} pieces, {lost} readings lost, {read} requests");
        assert_eq!(lost == 0, count == 0);
        assert_eq!(report.damage.any(), count > 0, "{report:?}");
        assert_eq!(pieces, count);
        // A reading is there or not; a torn reading at each end of the lost part is not.
        assert!(lost <= (pieces + 1) * READINGS.div_ceil(blocks - 1));
        for (_, time_ms, value) in &readings {
            assert_eq!(value[..], time_ms.to_le_bytes());
        }
        let times = readings.iter().map(|(_, time_ms, _)| *time_ms);
        assert!(times.is_sorted());
        // Each piece that cannot be read, and each read beyond them, costs some walks, of some requests each.
        assert!(read < 100 * pieces + 10 * blocks, "{read} requests");
        let db = open(store, &clock, long_log_options());
        let reads = db.with_store(|store| store.device().counters().reads);
        let reads = reads.expect("a store") - opened.reads;
        assert!(reads < 5 * read, "{reads} requests for a start");
        db.close().expect("closed");
    }
}

/// A block that rots under a finished segment costs readings around it, is counted, and prevents nothing else.
#[test]
fn a_rotten_block_never_prevents_the_start() {
    let clock = sim_clock();
    let store = formatted(2048, 1);
    let db = open(store, &clock, options());
    let ids = declare(&db, 12);
    let mut oracle = Oracle::default();
    for n in 0..600u32 {
        oracle.put(
            &db,
            ids[n as usize % 12],
            i64::from(n),
            &n.to_le_bytes().repeat(12),
        );
        if n % 8 == 0 {
            db.pump().expect("committed");
        }
    }
    let store = db.close().expect("closed");
    let device = store.device().clone();
    let mut damaged = 0;
    for block in 0..device_blocks(&device) {
        if device.peek(block) == [0; BLOCK_BYTES] {
            continue;
        }
        let mut device = device.clone();
        device.inject_bit_rot(block, 9000);
        let Ok(mut store) = Store::open(device, &OpenOptions::default()) else {
            continue;
        };
        let (readings, report) = common::scan(&mut store);
        if report.damage.any() || readings.len() < 600 {
            assert!(
                report.damage.any() || report.damage.tails_torn > 0 || listing_fails(&mut store),
                "{report:?}"
            );
            damaged += 1;
            println!(
                "block {block}: {} of 600 readings, {report:?}",
                readings.len()
            );
        }
        let mut known = oracle.puts.iter();
        for reading in &readings {
            assert!(
                reading.0.is_empty() || known.any(|(known, _)| known == reading),
                "never put: {reading:?}"
            );
        }
        let db = open(store, &clock, options());
        let id = db
            .declare(&db::ObjectSpec {
                key: "new",
                avi_ms: 1,
                temporal: true,
            })
            .expect("declared");
        let ticket = db
            .put(id, b"goes on", db::Time::from_ms(1), db::Durability::Now)
            .expect("taken");
        // The store itself may be too damaged to be written; then the ticket says so.
        let pumped = db.pump();
        assert_eq!(ticket.is_durable(), pumped.is_ok());
    }
    assert!(damaged > 0, "no block of the log was hit");
}

fn device_blocks(device: &SimDevice) -> u64 {
    use base::block::BlockDevice;
    device.geometry().block_count
}

fn listing_fails(store: &mut Store<SimDevice>) -> bool {
    SegmentStore::list(store, &mut |_| ()).is_err()
}
