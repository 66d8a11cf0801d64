//! Bytes from outside, in a value, must never be taken for records of the log. Bytes that a store has lost must not
//! cost readings that are acknowledged afterwards.

use std::sync::Arc;

use crate::common::{declare, formatted, open, scan, sim_clock, small_options};
use db::log::codec::{self, Dictionary, Reading};
use db::log::seal::Seal;
use db::log::times::{Anchor, Context, Form};
use db::{Database, DbOptions, Durability, MemoryStore, PowerCut, SegmentStore, Time};

fn options() -> DbOptions {
    DbOptions {
        value_bytes_max: 200,
        queue_bytes_max: 64 << 10,
        append_bytes_max: 8192,
        segment_bytes_max: 1 << 20,
        checkpoint_bytes: 1 << 20,
        checkpoint_piece_bytes_max: 2048,
        ..small_options()
    }
}

/// A sender knows every rule but not the store's secret, which it can only guess.
fn stranger() -> Seal {
    Seal::of(0)
}

/// Returns a store whose power failed in the append of one reading with this value; the record lacks its last byte.
fn torn_after(value: &[u8]) -> MemoryStore {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, options());
    let ids = declare(&db, 3);
    for id in &ids {
        db.put(
            *id,
            b"good",
            db::Time::from_ms(1_700_000_000_000),
            Durability::Now,
        )
        .expect("taken");
    }
    db.pump().expect("committed");
    // The record: kind, length (1 or 2), id, time (3), arrival (4), value, checksum.
    let record = 1 + 1 + usize::from(value.len() + 8 > 127) + 8 + value.len() + 4;
    db.with_store(|store| {
        store.set_power_cut(PowerCut {
            after_calls: 0,
            bytes_kept: record - 1,
        })
    });
    db.put(
        ids[1],
        value,
        db::Time::from_ms(1_700_000_000_001),
        Durability::Now,
    )
    .expect("taken");
    assert!(db.pump().is_err());
    let mut store = db.abandon().expect("the store comes back");
    store.restart();
    store
}

/// Returns a segment's head of the next version, with the checksum that a store with this secret would give it.
fn later_version(secret: u64) -> Vec<u8> {
    let mut head = Vec::new();
    codec::put_segment(&mut head, Seal::of(secret), 0);
    head[10..14].copy_from_slice(&(codec::FORMAT_VERSION + 1).to_le_bytes());
    let check = crc32c::crc32c_append(secret as u32, &head[..18]) ^ (secret >> 32) as u32;
    head[18..].copy_from_slice(&check.to_le_bytes());
    head
}

#[test]
fn a_value_that_looks_like_a_later_version_does_not_prevent_the_start() {
    // Only a file's first record can refuse a start: even a correctly guessed secret does not help.
    for secret in [0, MemoryStore::new().secret()] {
        let store = torn_after(&later_version(secret));
        let opened = Database::open(store, Arc::new(sim_clock()), options());
        assert_eq!(opened.err(), None);
    }
}

#[test]
fn a_value_that_looks_like_a_name_does_not_prevent_the_start() {
    let mut value = Vec::new();
    let entry = Dictionary {
        id: u32::MAX,
        key: "x",
        avi_ms: 1,
        temporal: true,
    };
    codec::put_dictionary(&mut value, stranger(), &entry);
    let opened = Database::open(torn_after(&value), Arc::new(sim_clock()), options());
    assert_eq!(opened.err(), None);
}

#[test]
fn a_value_cannot_change_another_object() {
    let anchor = Anchor {
        boot_id: [66; 16],
        arrival_us: 1,
        sensor: Time::from_ms(i64::MAX),
        wall: Time::from_ms(0),
        wall_trusted: true,
        is_older_store: true,
        lsn: 4,
    };
    let mut value = Vec::new();
    codec::put_anchor(&mut value, stranger(), &anchor);
    let forged = Reading {
        id: 0,
        time: Time::from_ms(i64::MAX),
        arrival_us: 1,
        wall_trusted: true,
        node_time: false,
        retained: false,
        value: b"forged",
    };
    codec::put_reading(
        &mut value,
        &forged,
        &Context::of(stranger(), &anchor),
        Form::WholeMs,
    );
    let db = open(torn_after(&value), &sim_clock(), options());
    let id = db.lookup("room 0/temperature").expect("known");
    let mut buffer = [0; 200];
    let got = db
        .get_at(id, db::Time::from_ms(0), &mut buffer)
        .expect("a value");
    assert_eq!(
        (got.time.ms(), &buffer[..got.value_bytes]),
        (1_700_000_000_000, &b"good"[..])
    );
}

/// Readings, a checkpoint, readings; returns the store, crashed.
fn with_checkpoint() -> MemoryStore {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, options());
    let id = declare(&db, 1)[0];
    for n in 0..40 {
        db.put(id, &[1; 40], db::Time::from_ms(n), Durability::Now)
            .expect("taken");
    }
    db.close().expect("closed")
}

/// Acknowledges one more reading, crashes, and returns what a restart shows.
fn acknowledged_then_shown(store: MemoryStore) -> (i64, i64) {
    let clock = sim_clock();
    let db = open(store, &clock, options());
    assert!(db.recovery().damage.any(), "the loss is told");
    let id = db.lookup("room 0/temperature").expect("known");
    let ticket = db
        .put(id, b"new", db::Time::from_ms(1000), Durability::Now)
        .expect("taken");
    db.pump().expect("committed");
    assert!(ticket.is_durable());
    assert!(ticket.lsn() >= Some(40), "40 readings were durable before");
    let mut store = db.abandon().expect("the store");
    assert!(scan(&mut store).0.iter().any(|reading| reading.1 == 1000));
    let db = open(store, &clock, options());
    (
        1000,
        db.get_at(id, db::Time::from_ms(0), &mut [0; 200])
            .expect("a value")
            .time
            .ms(),
    )
}

#[test]
fn a_cut_segment_does_not_hide_later_acknowledged_readings() {
    let mut store = with_checkpoint();
    store.file_mut("log-00000000").truncate(300);
    let (put, shown) = acknowledged_then_shown(store);
    assert_eq!(put, shown);
}

#[test]
fn a_lost_segment_does_not_hide_later_acknowledged_readings() {
    let mut store = with_checkpoint();
    store.delete("log-00000000").expect("deleted");
    let (put, shown) = acknowledged_then_shown(store);
    assert_eq!(put, shown);
}

#[test]
fn a_number_is_never_given_twice() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, options());
    let id = declare(&db, 1)[0];
    let tickets: Vec<_> = (0..10)
        .map(|n| {
            db.put(id, &[n as u8; 20], db::Time::from_ms(n), Durability::Now)
                .expect("taken")
        })
        .collect();
    db.pump().expect("committed");
    assert!(tickets.iter().all(db::Ticket::is_durable));
    let mut store = db.abandon().expect("the store");
    // The body of the fifth reading from the end is damaged.
    let file = store.file_mut("log-00000000");
    let at = file.len() - 5 * 34 + 12;
    file[at] ^= 1;
    let db = open(store, &clock, options());
    let again = db
        .put(id, b"new", db::Time::from_ms(1000), Durability::Now)
        .expect("taken");
    assert!(
        again.lsn() > tickets[9].lsn(),
        "{:?} was acknowledged before",
        again.lsn()
    );
    db.pump().expect("committed");
    let report = scan(&mut db.abandon().expect("the store")).1;
    // 34 bytes are gone: room for two of the shortest readings, and no number may be given twice.
    assert_eq!(report.damage.readings_missing, 2, "{:?}", report.damage);
}

/// One rotten block under the log, in which every value holds bytes that look like a later version's segment.
#[test]
fn a_rotten_block_does_not_make_a_value_a_record() {
    use base::block::BlockDevice;
    use flash::{OpenOptions, Store};
    let clock = sim_clock();
    let store = formatted(512, 1);
    let db = open(store, &clock, options());
    let ids = declare(&db, 4);
    let mut value = vec![b'.'; 42];
    value.extend(later_version(0));
    for n in 0..600 {
        db.put(
            ids[n as usize % 4],
            &value,
            db::Time::from_ms(n),
            Durability::Now,
        )
        .expect("taken");
        db.pump().expect("committed");
    }
    let device = db.abandon().expect("the store").device().clone();
    let (mut refused, mut opened) = (0, 0);
    for block in 0..device.geometry().block_count {
        let mut device = device.clone();
        device.inject_bit_rot(block, 9000);
        let Ok(store) = Store::open(device, &OpenOptions::default()) else {
            continue;
        };
        match Database::open(store, Arc::new(clock.clone()), options()) {
            Ok(_) => opened += 1,
            Err(error) => {
                refused += 1;
                println!("block {block}: {error}");
            }
        }
    }
    assert_eq!(refused, 0, "{opened} opened");
}
