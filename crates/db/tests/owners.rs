//! Which series has a key is known after every restart: its record is no later than the first reading of the key.

use std::ops::ControlFlow;

use crate::common::{open, sim_clock, small_options};
use db::{
    Database, DbOptions, Durability, MemoryStore, ObjectId, ObjectSpec, Owner, PowerCut, Retention,
    SegmentStore, Time, scan_log,
};

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
