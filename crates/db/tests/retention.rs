//! Retention and the full store: the oldest is deleted, is counted, and makes room where none was left.

use std::time::Duration;

use crate::common::{declare, formatted, open, scan, sim_clock, small_options};
use base::sim::{Random, SimClock, SimDevice};
use db::{
    Database, DbOptions, Durability, Error, FullPolicy, Health, MemoryStore, PowerCut, Retention,
    SegmentStore, Ticket,
};
use flash::Store;

fn keep(retention: Retention) -> DbOptions {
    DbOptions {
        retention,
        ..small_options()
    }
}

fn indexed<S: SegmentStore>(db: &Database<S>) {
    while db.maintain().expect("maintained") {
        // Retention may wait for a checkpoint.
        let _ = db.pump();
    }
}

/// Returns the numbers of the readings in the log; each value is its number.
fn numbers<S: SegmentStore>(store: &mut S) -> Vec<u64> {
    let (readings, report) = scan(store);
    assert!(!report.damage.any(), "{report:?}");
    // Names are repeated in each segment; otherwise deleting a segment would lose them.
    assert_eq!(report.readings_unnamed, 0);
    readings
        .iter()
        .map(|(_, _, value)| u64::from_le_bytes(value.as_slice().try_into().unwrap()))
        .collect()
}

fn fill<S: SegmentStore>(db: &Database<S>, clock: &SimClock, numbers: std::ops::Range<u64>) {
    let ids = declare(db, 4);
    for n in numbers {
        clock.advance_ns(100_000_000);
        db.put_now(ids[(n % 4) as usize], &n.to_le_bytes(), Durability::Batched)
            .unwrap();
        if n % 16 == 15 {
            db.pump().unwrap();
            db.maintain().unwrap();
        }
    }
    db.pump().unwrap();
}

/// Checks that what is left is an unbroken end of what was put, and that the rest was counted.
fn check_end(left: &[u64], put: u64, counted: u64) {
    let first = left.first().copied().unwrap_or(put);
    assert_eq!(left, (first..put).collect::<Vec<_>>());
    assert_eq!(counted, first, "every reading that went was counted");
}

#[test]
fn retention_by_size_deletes_the_oldest_segments() {
    let clock = sim_clock();
    let retention = Retention {
        history_bytes_max: 12_000,
        ..Retention::default()
    };
    let db = open(MemoryStore::new(), &clock, keep(retention));
    fill(&db, &clock, 0..3000);
    indexed(&db);
    let stats = db.stats();
    assert!(
        stats.history_bytes <= 12_000 && stats.history_bytes > 5_000,
        "{}",
        stats.history_bytes
    );
    assert!(stats.segments_expired > 5 && stats.readings_dropped == 0);
    assert_eq!(stats.oldest_lsn, stats.readings_expired);
    // Less is kept from now on; a larger limit does not bring anything back.
    db.set_retention(Retention {
        history_bytes_max: 6_000,
        ..retention
    });
    indexed(&db);
    assert!(db.stats().history_bytes <= 6_000);
    let counted = db.stats().readings_expired;
    let mut store = db.close().unwrap();
    check_end(&numbers(&mut store), 3000, counted);
    let indexes = store.names().filter(|name| name.starts_with("index-"));
    let segments = store.names().filter(|name| name.starts_with("log-"));
    assert!(indexes.count() <= segments.count());
    // After a restart the rest is known from the log itself.
    let db = open(store, &clock, keep(retention));
    indexed(&db);
    assert_eq!(db.stats().oldest_lsn, counted);
}

#[test]
fn retention_by_age_deletes_only_certainly_old_readings() {
    let clock = sim_clock();
    let retention = Retention {
        history_age_ms_max: 60_000,
        ..Retention::default()
    };
    let db = open(MemoryStore::new(), &clock, keep(retention));
    // Five minutes of readings.
    fill(&db, &clock, 0..3000);
    indexed(&db);
    let expired = db.stats().readings_expired;
    assert!((2000..=2400).contains(&expired), "{expired}");
    // The clock is set forward by a year: in this boot the monotonic clock corrects it.
    let right_ms = base::clock::Clock::wall_ms(&clock);
    clock.set_wall_ms(right_ms + 365 * 86_400_000);
    indexed(&db);
    assert_eq!(db.stats().readings_expired, expired);
    clock.set_wall_ms(right_ms);
    // The time is unknown: nothing is deleted.
    clock.set_wall_trusted(false);
    clock.advance_ns(600_000_000_000);
    indexed(&db);
    assert_eq!(db.stats().readings_expired, expired);
    clock.set_wall_trusted(true);
    fill(&db, &clock, 3000..3100);
    indexed(&db);
    let counted = db.stats().readings_expired;
    assert!(counted > 2900, "{counted}");
    check_end(&numbers(&mut db.close().unwrap()), 3100, counted);
}

fn small_store(capacity_bytes: u64) -> MemoryStore {
    let mut store = MemoryStore::new();
    store.set_capacity_bytes(capacity_bytes);
    store
}

#[test]
fn a_full_store_that_rejects_takes_again_once_there_is_room() {
    let clock = sim_clock();
    let db = open(small_store(40_000), &clock, keep(Retention::default()));
    let ids = declare(&db, 4);
    let mut tickets: Vec<Ticket> = Vec::new();
    let mut refused = 0;
    for n in 0..3000u64 {
        match db.put_now(ids[0], &n.to_le_bytes(), Durability::Now) {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => {
                assert_eq!(error, Error::Full);
                refused += 1;
            }
        }
        let _ = db.pump();
    }
    let stats = db.stats();
    assert!(stats.full && stats.refused_full == refused && refused > 1000);
    assert_eq!(
        (db.health(), db.flush(Duration::ZERO)),
        (Health::Full, Err(Error::Full))
    );
    let durable = tickets.iter().filter(|ticket| ticket.is_durable()).count();
    assert!(
        durable < tickets.len(),
        "some were taken before it was noticed"
    );
    // Keeping less makes room: waiting readings become durable, and new readings are taken.
    db.set_retention(Retention {
        history_bytes_max: 20_000,
        ..Retention::default()
    });
    indexed(&db);
    db.pump().unwrap();
    assert!(tickets.iter().all(Ticket::is_durable));
    assert!(!db.stats().full);
    let last = tickets.len() as u64;
    let ticket = db
        .put_now(ids[0], &u64::MAX.to_le_bytes(), Durability::Now)
        .unwrap();
    db.pump().unwrap();
    assert!(ticket.is_durable());
    // Readings put in between were refused; the log has no gap.
    assert_eq!(ticket.lsn(), Some(last));
    let expired = db.stats().readings_expired;
    let mut store = db.close().unwrap();
    let mut left = numbers(&mut store);
    assert_eq!(left.pop(), Some(u64::MAX));
    check_end(&left, last, expired);
}

#[test]
fn a_full_store_that_drops_goes_on_for_ever() {
    // For every append that may find the store full.
    for capacity_bytes in (24_000..30_000).step_by(229) {
        drop_for_ever(capacity_bytes);
    }
}

fn drop_for_ever(capacity_bytes: u64) {
    let clock = sim_clock();
    let retention = Retention {
        full_policy: FullPolicy::DropOldest,
        ..Retention::default()
    };
    let db = open(small_store(capacity_bytes), &clock, keep(retention));
    fill(&db, &clock, 0..6_000);
    let stats = db.stats();
    assert!(stats.readings_dropped > 4_000 && stats.refused_full == 0 && stats.busy == 0);
    assert_eq!(
        stats.health,
        Health::Dropping,
        "it is said while it happens"
    );
    clock.advance_ns(61_000_000_000);
    assert_eq!(db.health(), Health::Ok);
    let counted = stats.readings_dropped;
    let mut store = db.close().unwrap();
    check_end(&numbers(&mut store), 6_000, counted);
    // Each segment names its objects itself: they are known even without the checkpoint.
    let checkpoints: Vec<_> = store
        .names()
        .filter(|name| name.starts_with("ckpt-"))
        .map(str::to_owned)
        .collect();
    for name in checkpoints {
        store.delete(&name).unwrap();
    }
    check_end(&numbers(&mut store), 6_000, counted);
}

#[test]
fn a_limit_below_the_store_is_kept_however_fast_readings_come() {
    let clock = sim_clock();
    let retention = Retention {
        history_bytes_max: 15_000,
        ..Retention::default()
    };
    let db = open(small_store(30_000), &clock, keep(retention));
    let ids = declare(&db, 4);
    // Retention does not run meanwhile, and the policy for a full store would refuse.
    for n in 0..5_000u64 {
        clock.advance_ns(1_000_000);
        db.put_now(ids[(n % 4) as usize], &n.to_le_bytes(), Durability::Batched)
            .unwrap();
        if n % 16 == 15 {
            db.pump().unwrap();
        }
    }
    db.pump().unwrap();
    let stats = db.stats();
    assert!(stats.readings_expired > 1000 && stats.readings_dropped == 0 && !stats.full);
    let expired = stats.readings_expired;
    check_end(&numbers(&mut db.close().unwrap()), 5_000, expired);
}

#[test]
fn a_segment_limit_above_the_store_does_not_block_dropping() {
    let clock = sim_clock();
    let options = DbOptions {
        segment_bytes_max: 1 << 20,
        ..keep(Retention {
            full_policy: FullPolicy::DropOldest,
            ..Retention::default()
        })
    };
    let db = open(small_store(30_000), &clock, options);
    fill(&db, &clock, 0..5_000);
    let counted = db.stats().readings_dropped;
    assert!(counted > 0);
    check_end(&numbers(&mut db.close().unwrap()), 5_000, counted);
}

#[test]
fn a_cut_at_any_change_of_a_store_that_drops_loses_nothing_acknowledged() {
    for after_calls in 0..400 {
        for bytes_kept in [0, 7, 300, usize::MAX] {
            let clock = sim_clock();
            let retention = Retention {
                full_policy: FullPolicy::DropOldest,
                ..Retention::default()
            };
            // Checkpoints at their usual pace, or only where room must be made.
            let options = DbOptions {
                checkpoint_bytes: if after_calls % 2 == 0 { 2000 } else { 1 << 30 },
                ..keep(retention)
            };
            let mut store = small_store(16_000);
            store.set_power_cut(PowerCut {
                after_calls,
                bytes_kept,
            });
            let db = open(store, &clock, options);
            let ids = declare(&db, 3);
            let mut acknowledged = 0;
            for n in 0..1500u64 {
                let put = db.put_now(ids[(n % 3) as usize], &n.to_le_bytes(), Durability::Now);
                let Ok(ticket) = put else { break };
                if n % 8 == 7 && (db.pump().is_err() || db.maintain().is_err()) {
                    break;
                }
                if ticket.is_durable() {
                    acknowledged = n + 1;
                }
            }
            let mut store = db.abandon().unwrap();
            store.restart();
            let left = numbers(&mut store);
            let (first, end) = (
                left.first().copied().unwrap_or(0),
                left.last().map_or(0, |last| last + 1),
            );
            assert_eq!(left, (first..end).collect::<Vec<_>>());
            assert!(
                end >= acknowledged,
                "{acknowledged} acknowledged, {end} there: cut {after_calls}/{bytes_kept}"
            );
            // The database continues from there, and the table has not gone back.
            let db = open(store, &clock, keep(retention));
            assert!(!db.recovery().damage.any(), "{:?}", db.recovery());
            let mut buffer = [0; 8];
            if end > 3 {
                let id = ids[((end - 1) % 3) as usize];
                assert!(db.get(id, &mut buffer).is_ok());
                assert!(u64::from_le_bytes(buffer) >= end - 1);
            }
            fill(&db, &clock, end..end + 400);
            let mut store = db.close().unwrap();
            assert_eq!(numbers(&mut store).last(), Some(&(end + 399)));
        }
    }
}

fn flash_store(blocks: u64, seed: u64) -> Store<SimDevice> {
    formatted(blocks, seed)
}

/// What is promised to an append is there, with everything else that the store needs, until nothing is promised any
/// more.
#[test]
fn the_file_store_keeps_its_promised_space_until_it_is_full() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let mut store = flash_store(600 + random.below(600), seed);
        let mut files = Vec::new();
        loop {
            let free = store.free_bytes();
            if free == 0 {
                break;
            }
            let bytes = (1 + random.below(70_000)).min(free) as usize;
            if files.is_empty() || random.below(6) == 0 {
                let name = format!("f{}", files.len());
                files.push(SegmentStore::create(&mut store, &name).expect("promised"));
            }
            let file = files[random.index(files.len())];
            SegmentStore::append(&mut store, file, &vec![7; bytes]).expect("promised");
        }
        // Deleting needs no room.
        for (n, file) in files.drain(..).enumerate() {
            SegmentStore::close(&mut store, file);
            SegmentStore::delete(&mut store, &format!("f{n}")).expect("deleted in a full store");
        }
        assert!(store.free_bytes() > 1_500_000);
    }
}

#[test]
fn dropping_on_the_file_store_goes_on_for_ever_and_survives_power_cuts() {
    let options = DbOptions {
        append_bytes_max: 20 << 10,
        segment_bytes_max: 60 << 10,
        checkpoint_bytes: 30 << 10,
        queue_bytes_max: 32 << 10,
        ..keep(Retention {
            full_policy: FullPolicy::DropOldest,
            ..Retention::default()
        })
    };
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let clock = sim_clock();
        let mut store = Some(flash_store(256, seed));
        let (mut next, mut dropped) = (0u64, 0);
        for life in 0..4 {
            let mut powered = store.take().unwrap();
            if life < 3 {
                powered
                    .device_mut()
                    .set_power_cut_after_writes(Some(50 + random.below(1500)));
            }
            let db = open(powered, &clock, options);
            assert!(!db.recovery().damage.any(), "{:?}", db.recovery());
            let ids = declare(&db, 5);
            let mut acknowledged = next;
            let burst = 1 + random.below(200);
            for n in next..next + 60_000 {
                clock.advance_ns(1_000_000);
                let put = db.put_now(ids[(n % 5) as usize], &n.to_le_bytes(), Durability::Batched);
                let Ok(ticket) = put else {
                    assert!(life < 3, "{:?}", db.health());
                    break;
                };
                if n % burst == 0 && (db.pump().is_err() || db.maintain().is_err()) {
                    break;
                }
                if ticket.is_durable() {
                    acknowledged = n + 1;
                }
            }
            dropped += db.stats().readings_dropped;
            let mut cut = db.abandon().unwrap();
            if life < 3 {
                let image = cut.device().crash_image_random(random.next_u64());
                cut = Store::open(image, &flash::OpenOptions::default()).expect("recovers");
            }
            let left = numbers(&mut cut);
            let end = left.last().map_or(0, |last| last + 1);
            assert_eq!(left, (end - left.len() as u64..end).collect::<Vec<_>>());
            assert!(end >= acknowledged, "{end} of {acknowledged}");
            next = end;
            store = Some(cut);
        }
        assert!(dropped > 10_000, "{dropped}");
    }
}
