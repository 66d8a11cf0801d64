//! Which series has a key is known after every restart: its record is no later than the first reading of the key.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::common::{open, sim_clock, small_options};
use db::{
    Database, DbOptions, Durability, MemoryStore, ObjectId, ObjectSpec, Owner, PowerCut, Retention,
    SegmentStore, Time, scan_log,
};

/// Nothing here waits for a device, so only a fault takes as long.
const PATIENCE: Duration = Duration::from_secs(5);

fn owner(id: ObjectId, template: u32, series: &str) -> Owner<'_> {
    Owner {
        id: id.0,
        template,
        series,
    }
}

fn spec(key: &str) -> ObjectSpec<'_> {
    ObjectSpec {
        key,
        avi_ms: 1000,
        temporal: true,
    }
}

/// What another series is told that would have the key "a".
fn refusal(db: &Database<MemoryStore>) -> Result<(), String> {
    let id = db.lookup("a").expect("known");
    db.claim(&owner(id, 1, "another"))
}

#[test]
fn an_owner_is_known_over_a_restart() {
    let clock = sim_clock();
    let first = Err("first".to_owned());
    let db = open(MemoryStore::new(), &clock, small_options());
    let id = db.declare(&spec("a")).unwrap();
    assert_eq!(db.claim(&owner(id, 1, "first")), Ok(()));
    db.put_now(id, &[1], Durability::Now).unwrap();
    db.pump().unwrap();
    assert_eq!(refusal(&db), first);
    // From the log alone, twice: the second run writes nothing about it.
    let db = open(db.abandon().unwrap(), &clock, small_options());
    assert_eq!(refusal(&db), first);
    db.put_now(id, &[2], Durability::Now).unwrap();
    db.pump().unwrap();
    let db = open(db.abandon().unwrap(), &clock, small_options());
    assert_eq!(refusal(&db), first);
    assert_eq!(db.claim(&owner(id, 1, "first")), Ok(()));
    // From the checkpoint alone.
    let mut store = db.close().unwrap();
    let logs: Vec<_> = store
        .names()
        .filter(|name| name.starts_with("log-"))
        .map(str::to_owned)
        .collect();
    for name in logs {
        store.delete(&name).unwrap();
    }
    let db = open(store, &clock, small_options());
    assert!(db.recovery().checkpoint.is_some());
    assert_eq!(refusal(&db), first);
    // After its segment is gone, and every checkpoint of that time.
    let keep = DbOptions {
        retention: Retention {
            history_bytes_max: 20_000,
            ..Retention::default()
        },
        ..small_options()
    };
    let db = open(db.abandon().unwrap(), &clock, keep);
    for n in 0..3000_u64 {
        clock.advance_ns(1_000_000);
        db.put_now(id, &n.to_le_bytes(), Durability::Batched)
            .unwrap();
        if n % 16 == 15 {
            db.pump().unwrap();
            db.maintain().unwrap();
        }
    }
    assert!(db.stats().readings_expired > 0 && db.stats().checkpoints > 2);
    let db = open(db.abandon().unwrap(), &clock, keep);
    assert_eq!(refusal(&db), first);
}

/// Readings of eight keys, by two templates each, and a value that names the template. Power fails in every changing
/// call, and leaves any of several prefixes of the append that it cuts.
#[test]
fn no_power_cut_leaves_a_key_with_a_history_and_without_its_owner() {
    let clock = sim_clock();
    let (mut after_calls, mut is_over, mut compared) = (0, false, 0);
    while !is_over {
        for bytes_kept in [0, 1, 60, 150, 400, 4095] {
            let mut store = MemoryStore::new();
            store.set_power_cut(PowerCut {
                after_calls,
                bytes_kept,
            });
            let db = open(store, &clock, small_options());
            for n in 0..120_u32 {
                let (key, template) = (format!("key {}", n % 8), n / 24 % 2);
                // The log has failed once the power has.
                let Ok(id) = db.declare(&spec(&key)) else {
                    break;
                };
                let series = format!("series of {key}");
                assert_eq!(db.claim(&owner(id, template, &series)), Ok(()));
                let value = [template as u8];
                let put = db.put(id, &value, Time::from_ms(n.into()), Durability::Batched);
                if put.is_err() || n % 5 == 4 && db.pump().is_err() {
                    break;
                }
            }
            let is_dead = db.with_store(|store| store.list(&mut |_| {}).is_err());
            is_over = is_dead == Some(false);
            let mut store = db.abandon().expect("the store");
            store.restart();
            let mut logged = Vec::new();
            scan_log(&mut store, &mut |entry| {
                let key = entry.key.expect("named").to_owned();
                logged.push((key, u32::from(entry.value[0])));
                ControlFlow::Continue(())
            })
            .expect("the log can be scanned");
            let db = open(store, &clock, small_options());
            for (key, template) in logged {
                let id = db.lookup(&key).expect("known");
                let found = db.claim(&owner(id, template, "another"));
                assert_eq!(found, Err(format!("series of {key}")), "{after_calls}");
                compared += 1;
            }
        }
        after_calls += 1;
    }
    assert!(
        after_calls > 20 && compared > 1000,
        "{after_calls} {compared}"
    );
}

/// A key is released, and another series takes it. Power fails in every call that changes the store, and leaves any of
/// several prefixes of the append that it cuts. A release that was acknowledged holds. No key has a reading of the new
/// series and belongs to the old one.
#[test]
fn no_power_cut_undoes_a_release_that_was_acknowledged() {
    let clock = sim_clock();
    let (mut after_calls, mut is_over) = (0, false);
    let (mut held, mut undone, mut taken_over) = (0, 0, 0);
    while !is_over {
        for bytes_kept in [0, 1, 20, 40, 60, 80, 120, 4095] {
            let db = open(MemoryStore::new(), &clock, small_options());
            let [a, b] = ["a", "b"].map(|key| db.declare(&spec(key)).unwrap());
            for (id, template) in [(a, 1), (a, 2), (b, 1)] {
                assert_eq!(db.claim(&owner(id, template, "first")), Ok(()));
            }
            for id in [a, b] {
                db.put_now(id, &[1], Durability::Now).unwrap();
            }
            db.pump().unwrap();
            let mut store = db.abandon().expect("the store");
            store.set_power_cut(PowerCut {
                after_calls,
                bytes_kept,
            });
            let db = open(store, &clock, small_options());
            assert_eq!((db.release(a), db.release(a)), (2, 0));
            let flushed = db.flush_owners(PATIENCE);
            assert_ne!(flushed, Err(db::Error::Timeout), "nothing was logged");
            let is_released = flushed.is_ok();
            if is_released {
                assert_eq!(db.flush_owners(Duration::ZERO), Ok(()));
                assert_eq!(db.claim(&owner(a, 1, "second")), Ok(()));
                let put = db.put_now(a, &[2], Durability::Now);
                let _ = put.and_then(|_| db.pump());
            }
            let is_dead = db.with_store(|store| store.list(&mut |_| {}).is_err());
            is_over = is_dead == Some(false);
            let mut store = db.abandon().expect("the store");
            store.restart();
            let mut logged = Vec::new();
            scan_log(&mut store, &mut |entry| {
                logged.push(entry.value.to_vec());
                ControlFlow::Continue(())
            })
            .expect("the log can be scanned");
            let has_second = logged.contains(&vec![2]);
            let db = open(store, &clock, small_options());
            // Another key and its owner are as they were.
            let of_b = db.claim(&owner(b, 1, "another"));
            assert_eq!(of_b, Err("first".to_owned()), "{after_calls} {bytes_kept}");
            let is_first = [1, 2].map(|template| {
                let claimed = db.claim(&owner(a, template, "another"));
                claimed.err().as_deref() == Some("first")
            });
            if is_released {
                assert_eq!(is_first, [false; 2], "{after_calls} {bytes_kept}");
                held += 1;
            } else {
                undone += usize::from(is_first == [true; 2]);
            }
            if has_second {
                let of_a = db.claim(&owner(a, 1, "first"));
                assert_eq!(of_a, Err("second".to_owned()), "{after_calls} {bytes_kept}");
                taken_over += 1;
            }
        }
        after_calls += 1;
    }
    assert!(
        held > 10 && undone > 1 && taken_over > 7,
        "{held} {undone} {taken_over}"
    );
}

/// From the checkpoint alone, too; the next series then has the key as any other.
#[test]
fn a_released_key_is_free_after_every_restart() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, small_options());
    let id = db.declare(&spec("a")).unwrap();
    assert_eq!(db.claim(&owner(id, 1, "first")), Ok(()));
    db.put_now(id, &[1], Durability::Now).unwrap();
    db.pump().unwrap();
    assert_eq!(db.release(id), 1);
    assert_eq!(db.flush_owners(PATIENCE), Ok(()));
    let db = open(db.close().unwrap(), &clock, small_options());
    assert_eq!(db.release(id), 0);
    assert_eq!(refusal(&db), Ok(()));
    assert_eq!(db.claim(&owner(id, 1, "first")), Err("another".to_owned()));
    // What waits and cannot be logged any more is no success.
    assert_eq!(db.release(id), 1);
    drop(db.close().unwrap());
    assert_eq!(db.flush_owners(PATIENCE), Err(db::Error::Closed));
}
