//! A full store in random runs, and on the file store, whose files grow by long runs of blocks.

use crate::common::{declare, formatted, open, sim_clock, small_options};
use base::sim::Random;
use db::*;

const DROP: Retention = Retention {
    history_bytes_max: 0,
    history_age_ms_max: 0,
    backlog_bytes_max: 0,
    full_policy: FullPolicy::DropOldest,
};

fn keep(retention: Retention) -> DbOptions {
    DbOptions {
        retention,
        ..small_options()
    }
}

/// Returns the number of the reading; nothing is dropped here.
fn number(ticket: &Ticket) -> u64 {
    ticket.lsn().expect("a number")
}

/// Random runs with a store that is sometimes full, restarts and range reads, compared with a model.
#[test]
fn a_full_store_with_restarts_agrees_with_the_model() {
    for seed in 0..150u64 {
        let mut r = Random::new(seed);
        let clock = sim_clock();
        let options = DbOptions {
            checkpoint_bytes: [1024, 2000, 1 << 20][r.index(3)],
            segment_bytes_max: [2000, 3000, 200_000][r.index(3)],
            ..keep(Retention::default())
        };
        let mut store = Some(MemoryStore::new());
        // Every reading taken: number, durable.
        let mut taken: Vec<(u64, u64)> = Vec::new();
        let mut durable: Vec<(u64, u64)> = Vec::new();
        let mut n = 0u64;
        for life in 0..4 {
            let mut s = store.take().unwrap();
            s.set_capacity_bytes(1 << 30);
            let db = open(s, &clock, options);
            let ids = declare(&db, 5);
            let mut tickets = Vec::new();
            for _ in 0..r.below(1200) {
                clock.advance_ns(1_000_000);
                match r.below(100) {
                    0 => {
                        db.with_store(|s| {
                            s.set_capacity_bytes(1 << 40);
                            let used = (1u64 << 40) - s.free_bytes();
                            s.set_capacity_bytes(used + r.below(7_000))
                        });
                    }
                    1 | 2 => {
                        db.with_store(|s| s.set_capacity_bytes(1 << 30));
                    }
                    3..=9 => {
                        let _ = db.pump();
                    }
                    10 => {
                        db.maintain().unwrap();
                    }
                    11 => {
                        // Everything durable is seen once, in order.
                        let end = db.durable_end();
                        let expect: Vec<(u64, u64)> = durable
                            .iter()
                            .copied()
                            .chain(
                                tickets
                                    .iter()
                                    .filter(|(t, _): &&(Ticket, u64)| t.lsn() < Some(end))
                                    .map(|(t, n)| (number(t), *n)),
                            )
                            .collect();
                        let (mut c, mut out) = (HistoryCursor::default(), Vec::new());
                        let from = if r.below(2) == 0 { 0 } else { r.below(n + 1) };
                        let to = if from == 0 {
                            u64::MAX >> 2
                        } else {
                            from + r.below(200)
                        };
                        while db
                            .history(
                                &HistoryQuery {
                                    id: None,
                                    from: db::Time::from_ms(from as i64),
                                    to: db::Time::from_ms(to as i64),
                                },
                                &mut c,
                                &mut |e| {
                                    out.push((
                                        e.lsn,
                                        u64::from_le_bytes(e.value.try_into().unwrap()),
                                    ));
                                    std::ops::ControlFlow::Continue(())
                                },
                            )
                            .unwrap()
                        {}
                        let expect: Vec<_> = expect
                            .into_iter()
                            .filter(|(_, n)| (from..to).contains(n))
                            .collect();
                        assert_eq!(out, expect, "seed {seed} life {life} {from}..{to}");
                    }
                    _ => {
                        if let Ok(t) = db.put(
                            ids[r.index(5)],
                            &n.to_le_bytes(),
                            db::Time::from_ms(n as i64),
                            Durability::Batched,
                        ) {
                            taken.push((number(&t), n));
                            tickets.push((t, n));
                            n += 1;
                        }
                    }
                }
            }
            durable.extend(
                tickets
                    .iter()
                    .filter(|(t, _)| t.is_durable())
                    .map(|(t, n)| (number(t), *n)),
            );
            store = db.abandon();
        }
    }
}

/// The file store gives a growing file long runs at once; the room for the checkpoint must still be there.
#[test]
fn dropping_on_flash_goes_on_with_large_segments() {
    let mut bad = Vec::new();
    for seed in 0..40u64 {
        let mut r = Random::new(seed);
        let clock = sim_clock();
        let blocks = 500 + r.below(1500);
        let store = formatted(blocks, seed);
        let objects = [16u32, 100, 800][r.index(3)];
        let options = DbOptions {
            objects_max: objects,
            value_bytes_max: 400,
            queue_bytes_max: 64 << 10,
            append_bytes_max: 32 << 10,
            segment_bytes_max: [300 << 10, 1 << 20, 4 << 20, 16 << 20][r.index(4)],
            checkpoint_bytes: [100 << 10, 1 << 20, 1 << 30][r.index(3)],
            checkpoint_piece_bytes_max: 16 << 10,
            ..keep(DROP)
        };
        let db = open(store, &clock, options);
        let ids = declare(&db, objects);
        let value = [7u8; 400];
        let (mut full, mut last_ok) = (0, 0u64);
        let total = blocks * 10 * 5;
        for n in 0..total {
            clock.advance_ns(1_000_000);
            match db.put_now(ids[r.index(ids.len())], &value, Durability::Batched) {
                Ok(_) => last_ok = n,
                Err(Error::Full) => full += 1,
                Err(e) => {
                    println!("seed {seed}: {e:?}");
                    full += 1;
                    break;
                }
            }
            if n % 50 == 49 {
                let _ = db.pump();
                let _ = db.maintain();
            }
            if full > 3000 {
                break;
            }
        }
        if full > 0 {
            let s = db.stats();
            bad.push((
                seed,
                blocks,
                objects,
                options.segment_bytes_max >> 10,
                options.checkpoint_bytes >> 10,
                full,
                last_ok,
                total,
                s.checkpoints_failed,
                s.segments,
                s.segments_dropped,
                (
                    db.health(),
                    db.with_store(|s| (s.free_bytes(), s.statistics().blocks_free)),
                ),
            ));
        }
    }
    for b in &bad {
        println!("{b:?}");
    }
    assert!(bad.is_empty(), "{} of 40", bad.len());
}
/// Default sizes; the file store gives a growing file long runs at once; the room for the checkpoint must still be
/// there.
#[test]
fn a_store_on_flash_with_default_sizes_keeps_room_for_the_checkpoint() {
    let mut bad = Vec::new();
    for seed in 0..100u64 {
        let mut r = Random::new(seed);
        let clock = sim_clock();
        let blocks = 900 + 25 * seed;
        let store = formatted(blocks, seed);
        let objects = [16u32, 100, 800][r.index(3)];
        let options = DbOptions {
            objects_max: objects,
            value_bytes_max: 400,
            queue_bytes_max: 64 << 10,
            append_bytes_max: 32 << 10,
            segment_bytes_max: 4 << 20,
            checkpoint_bytes: 2 << 20,
            checkpoint_piece_bytes_max: 16 << 10,
            ..keep(DROP)
        };
        let db = open(store, &clock, options);
        let ids = declare(&db, objects);
        let value = [7u8; 400];
        let (mut full, mut last_ok) = (0, 0u64);
        let total = blocks * 10 * 4;
        for n in 0..total {
            clock.advance_ns(1_000_000);
            match db.put_now(ids[r.index(ids.len())], &value, Durability::Batched) {
                Ok(_) => last_ok = n,
                Err(Error::Full) => full += 1,
                Err(e) => {
                    println!("seed {seed}: {e:?}");
                    full += 1;
                    break;
                }
            }
            if n % 50 == 49 {
                let _ = db.pump();
                let _ = db.maintain();
            }
            if full > 3000 {
                break;
            }
        }
        if full > 0 {
            let s = db.stats();
            bad.push((
                seed,
                blocks,
                objects,
                options.segment_bytes_max >> 10,
                options.checkpoint_bytes >> 10,
                full,
                last_ok,
                total,
                s.checkpoints_failed,
                s.segments,
                s.segments_dropped,
                (
                    db.health(),
                    db.with_store(|s| (s.free_bytes(), s.statistics().blocks_free)),
                ),
            ));
        }
    }
    for b in &bad {
        println!("{b:?}");
    }
    assert!(bad.is_empty(), "{} of 100", bad.len());
}
