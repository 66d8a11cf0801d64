//! Readings that are stored together and before a deadline, or not at all, as a client stores the instance of a firm
//! task.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{declare, open, scan, sim_clock, small_options};
use base::clock::Clock;
use base::sim::{Random, SimDevice};
use db::{
    CommitDriver, Database, DbOptions, Durability, Error, MemoryStore, ObjectId, STAGED_PUTS_MAX,
    SegmentStore, Ticket, TogetherReading,
};
use flash::{FormatOptions, OpenOptions, Store};

fn reading<'a>(id: ObjectId, value: &'a [u8], time_ms: Option<i64>) -> TogetherReading<'a> {
    TogetherReading {
        id,
        value,
        time: time_ms.map(db::Time::from_ms),
    }
}

/// The value of an object that is shown now.
fn shown<S: SegmentStore>(db: &Database<S>, id: ObjectId) -> Option<(i64, Vec<u8>)> {
    let mut buffer = [0; 512];
    let got = db.get_at(id, db::Time::from_ms(0), &mut buffer).ok()?;
    Some((got.time.ms(), buffer[..got.value_bytes].to_vec()))
}

#[test]
fn readings_are_stored_together_in_time_or_not_at_all() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, small_options());
    let ids = declare(&db, 3);
    let both = |value: &'static [u8], ms| ids[..2].iter().map(move |id| reading(*id, value, ms));
    let first: Vec<_> = both(b"first", Some(5)).collect();
    let deadline_ns = clock.monotonic_ns();
    assert_eq!(db.now_ns(), deadline_ns);
    // At the deadline itself it has not passed.
    let ticket = db.put_together(&first, deadline_ns).expect("in time");
    assert_eq!(
        (ticket.lsn(), ticket.is_durable()),
        (Some(1), false),
        "not yet"
    );
    for id in &ids[..2] {
        assert_eq!(shown(&db, *id), Some((5, b"first".to_vec())));
    }
    db.pump().expect("committed");
    assert!(ticket.is_durable());
    clock.advance_ns(1);
    let late: Vec<_> = both(b"late", Some(6)).collect();
    assert_eq!(
        db.put_together(&late, deadline_ns).err(),
        Some(Error::TooLate)
    );
    assert_eq!(db.stats().puts, 2);
    // The node's time is that of the decision, and the next number that of the next reading.
    clock.advance_ns(7_000_000);
    let now: Vec<_> = both(b"now", None).collect();
    let ticket = db.put_together(&now, u64::MAX).expect("in time");
    assert_eq!(ticket.lsn(), Some(3));
    for id in &ids[..2] {
        assert_eq!(shown(&db, *id), Some((clock.wall_ms(), b"now".to_vec())));
        let got = db
            .get_at(*id, db::Time::from_ms(0), &mut [0; 40])
            .expect("a value");
        assert!(got.node_time && got.wall_trusted);
    }
    let mut store = db.close().expect("closed");
    let values: Vec<_> = scan(&mut store).0.into_iter().map(|it| it.2).collect();
    assert_eq!(values, [&b"first"[..], b"first", b"now", b"now"]);
}

/// None of it is visible, none is counted as taken, and the next call finds everything unchanged.
#[test]
fn readings_that_cannot_be_stored_together_are_refused_together() {
    let clock = sim_clock();
    let options = DbOptions {
        value_bytes_max: 400,
        queue_bytes_max: 8192,
        append_bytes_max: 4096,
        segment_bytes_max: 24 << 10,
        checkpoint_piece_bytes_max: 2048,
        ..small_options()
    };
    let db = open(MemoryStore::new(), &clock, options);
    let ids = declare(&db, 2);
    db.pump().expect("declared");
    let good = reading(ids[0], b"good", Some(1));
    let refused = |readings: &[TogetherReading<'_>]| {
        let error = db.put_together(readings, u64::MAX).expect_err("refused");
        assert_eq!((db.stats().puts, shown(&db, ids[0])), (0, None), "{error}");
        error
    };
    let unknown = reading(ObjectId(77), b"bad", Some(1));
    assert_eq!(refused(&[good, unknown]), Error::UnknownObject);
    let long = [0; 401];
    let error = refused(&[good, reading(ids[1], &long, Some(1))]);
    assert!(matches!(error, Error::ValueTooLong { bytes: 401, .. }));
    let never = reading(ids[1], b"bad", Some(i64::MIN));
    assert_eq!(refused(&[good, never]), Error::TimestampInvalid);
    let most = STAGED_PUTS_MAX as usize;
    for count in [0, most + 1] {
        let error = refused(&vec![good; count]);
        assert!(matches!(error, Error::OptionInvalid { .. }), "{error}");
        assert!(error.to_string().contains("between 1 and 128"), "{error}");
    }
    // More than half of the queue: 424 bytes each.
    let large = reading(ids[0], &long[..400], Some(1));
    let error = refused(&[large; 10]);
    assert!(matches!(
        error,
        Error::StagedFull {
            bytes_max: 4096,
            ..
        }
    ));
    // As many readings as are allowed; the rest of the queue is then too small for as many again.
    let small = vec![good; most];
    db.put_together(&small, u64::MAX).expect("there is room");
    db.put(
        ids[1],
        b"one more",
        db::Time::from_ms(1),
        Durability::Batched,
    )
    .expect("there is room");
    assert_eq!(db.put_together(&small, u64::MAX).err(), Some(Error::Busy));
    let stats = db.stats();
    assert_eq!((stats.puts, stats.busy), (129, 128));
    db.pump().expect("committed");
    let ticket = db.put_together(&small, u64::MAX).expect("there is room");
    assert_eq!(ticket.lsn(), Some(256));
}

/// A commit thread that sleeps is woken, and the ticket waits for the flush.
#[test]
fn the_flush_begins_at_once() {
    let clock = sim_clock();
    let options = DbOptions {
        commit_driver: CommitDriver::Thread,
        commit_interval_ms: 60_000,
        ..small_options()
    };
    let db = open(MemoryStore::new(), &clock, options);
    let ids = declare(&db, 2);
    for n in 0..3 {
        let both = [
            reading(ids[0], b"a", Some(n)),
            reading(ids[1], b"b", Some(n)),
        ];
        let ticket = db.put_together(&both, u64::MAX).expect("in time");
        ticket.wait(Duration::from_secs(60)).expect("durable");
    }
}

/// The call that comes too late wakes no thread: the put after it samples the clock itself.
#[test]
fn a_put_after_one_that_was_late_knows_whether_the_clock_is_trusted() {
    let clock = sim_clock();
    let options = DbOptions {
        commit_driver: CommitDriver::Thread,
        commit_interval_ms: 1,
        ..small_options()
    };
    let db = open(MemoryStore::new(), &clock, options);
    let id = declare(&db, 1)[0];
    // Each try lets the commit thread fall asleep; the number of tries depends on the machine.
    let current = (0..20).any(|n| {
        db.flush(Duration::from_secs(60)).expect("flushed");
        std::thread::sleep(Duration::from_millis(20));
        let trusted = n % 2 == 0;
        clock.set_wall_trusted(!trusted);
        let late = db.put_together(&[reading(id, b"late", None)], 0);
        assert_eq!(late.err(), Some(Error::TooLate));
        clock.set_wall_trusted(trusted);
        db.put(id, b"v", db::Time::from_ms(n), Durability::Now)
            .expect("taken");
        let got = db
            .get_at(id, db::Time::from_ms(0), &mut [0; 40])
            .expect("a value");
        got.wall_trusted == trusted
    });
    assert!(current);
}

/// One instance of a firm task, as the test knows it.
struct Known {
    timestamp_ms: i64,
    ticket: Ticket,
}

const READINGS: usize = 6;
const VALUE_BYTES: usize = 300;

/// Returns the value of all readings of an instance.
fn value_of(timestamp_ms: i64) -> Vec<u8> {
    timestamp_ms.to_le_bytes().repeat(VALUE_BYTES / 8)
}

/// Power cuts at random writes under the real store. What was acknowledged is there completely; what came too late is
/// never there. An instance that was taken in time but not acknowledged may leave its first readings without the
/// others, and this does happen.
#[test]
fn a_power_cut_leaves_acknowledged_instances_whole_and_no_late_ones() {
    let (mut acknowledged, mut halves, mut late) = (0, 0, 0);
    for seed in 0..120 {
        let mut random = Random::new(seed);
        let clock = sim_clock();
        let format = FormatOptions {
            files_max: 64,
            name_bytes_max: 255,
            uuid: [1; 16],
            hash_key: [2; 16],
        };
        // Appends that are shorter than an instance, segments that rotate, checkpoints in pieces.
        let options = DbOptions {
            queue_bytes_max: 64 << 10,
            value_bytes_max: VALUE_BYTES,
            append_bytes_max: 1300,
            segment_bytes_max: 24 << 10,
            checkpoint_bytes: 12 << 10,
            checkpoint_piece_bytes_max: 2048,
            ..small_options()
        };
        let mut store = Store::format(SimDevice::new(2048, seed), &format).expect("formatted");
        store
            .device_mut()
            .set_power_cut_after_writes(Some(1 + random.below(200)));
        let db = Database::open(store, Arc::new(clock.clone()), options).expect("opened");
        let ids = declare(&db, READINGS as u32);
        let mut known: Vec<Known> = Vec::new();
        let burst = 1 + random.below(4);
        for n in 1..1000 {
            clock.advance_ns(1_000_000);
            let value = value_of(n);
            let instance: Vec<_> = ids.iter().map(|id| reading(*id, &value, Some(n))).collect();
            // Every third one is late by a nanosecond; its number is never given to another.
            let is_late = n % 3 == 0;
            let deadline_ns = db.now_ns() - u64::from(is_late);
            match db.put_together(&instance, deadline_ns) {
                // If a late one were taken, the log would show it.
                Ok(_) if is_late => {}
                Ok(ticket) => known.push(Known {
                    timestamp_ms: n,
                    ticket,
                }),
                Err(error) if is_late => assert_eq!(error, Error::TooLate),
                Err(_) => break,
            }
            late += u32::from(is_late);
            if (n as u64).is_multiple_of(burst) && db.pump().is_err() {
                break;
            }
        }
        let cut = db.abandon().expect("the store comes back");
        assert!(
            !cut.device().is_powered(),
            "the run was too short for its cut"
        );
        let image = cut.device().crash_image_random(random.next_u64());
        let mut recovered =
            Store::open(image, &OpenOptions::default()).expect("the store recovers");
        let (logged, _) = scan(&mut recovered);
        // The log is a prefix of what was taken, in its order: no late instance, and at most one that is incomplete.
        let taken = known.iter().flat_map(|it| [it.timestamp_ms; READINGS]);
        let found: Vec<_> = logged.iter().map(|it| it.1).collect();
        let expected: Vec<_> = taken.take(found.len()).collect();
        assert_eq!(found, expected, "{seed}");
        for (_, timestamp_ms, value) in &logged {
            assert_eq!(*value, value_of(*timestamp_ms), "{seed}");
        }
        halves += u32::from(!found.len().is_multiple_of(READINGS));
        let whole = found.len() / READINGS;
        let durable = known.iter().filter(|it| it.ticket.is_durable()).count();
        assert!(
            durable <= whole,
            "{seed}: {durable} acknowledged, {whole} whole"
        );
        acknowledged += durable;
        // The table after the start holds nothing that was not taken in time, even if a checkpoint was being written.
        let db = open(recovered, &clock, options);
        for id in (0..READINGS as u32).map(ObjectId) {
            if let Some((timestamp_ms, value)) = shown(&db, id) {
                assert!(known.iter().any(|it| it.timestamp_ms == timestamp_ms));
                assert_eq!(value, value_of(timestamp_ms));
            }
        }
    }
    println!("{acknowledged} instances acknowledged, {halves} left in part, {late} late");
    assert!(acknowledged > 500 && halves > 10 && late > 500);
}
