//! A damaged record costs that record alone and is counted; no bytes at all make a reader fail.

use std::ops::ControlFlow;

use crate::common::{Known, declare, open, scan, sim_clock, small_options};
use db::log::codec::{self, Record};
use db::log::reader::Reader;
use db::log::seal::Seal;
use db::{Database, DbOptions, Durability, MemoryStore, SegmentStore, Time};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Spot {
    segment: u32,
    offset: usize,
    bytes: usize,
    reading: Option<usize>,
}

/// Writes readings of these objects, times in ns and values, and returns where every record of the log lies.
fn logged(
    values: &[(u8, i64, Vec<u8>)],
    options: DbOptions,
) -> (MemoryStore, Vec<Known>, Vec<Spot>) {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, options);
    let ids = declare(&db, 4);
    for (at, (object, time_ns, value)) in values.iter().enumerate() {
        clock.advance_ns(40_000_000);
        db.put(
            ids[usize::from(*object) % 4],
            value,
            Time::from_ns(*time_ns),
            Durability::Now,
        )
        .expect("taken");
        if at % 3 == 0 {
            db.pump().expect("committed");
        }
    }
    db.pump().expect("committed");
    let mut store = db.abandon().expect("the store comes back");
    let (readings, report) = scan(&mut store);
    assert_eq!((readings.len(), report.damage.any()), (values.len(), false));
    let mut spots = Vec::new();
    let mut count = 0;
    let mut reader = Reader::new();
    for number in 0..report.segments as u32 {
        let name = db::log::segment_name(number);
        let content = store.file(&name).expect("a segment").clone();
        let file = store.open(&name).expect("opened");
        reader
            .read(&mut store, file, 0, &mut |found| {
                let offset = found.offset as usize;
                let is_reading = matches!(found.record, Record::Reading(_));
                let bytes = codec::claimed_bytes(&content[offset..]).expect("a record");
                spots.push(Spot {
                    segment: number,
                    offset,
                    bytes,
                    reading: is_reading.then_some(count),
                });
                count += usize::from(is_reading);
                Ok(ControlFlow::Continue(()))
            })
            .expect("read");
    }
    (store, readings, spots)
}

/// The number that the next reading gets.
fn next_number(db: &Database<MemoryStore>) -> u64 {
    let id = declare(db, 1)[0];
    let ticket = db
        .put(id, b"next", Time::from_ms(1), Durability::Now)
        .expect("taken");
    ticket.lsn().expect("logged")
}

fn without_names(readings: &[Known]) -> Vec<(i64, &[u8])> {
    readings
        .iter()
        .map(|(_, timestamp_ms, value)| (*timestamp_ms, value.as_slice()))
        .collect()
}

fn values() -> impl Strategy<Value = Vec<(u8, i64, Vec<u8>)>> {
    // In each unit that a record has, in ns.
    let near = |unit: i64| {
        let count = 1_000_000_000 / unit;
        (1_700_000_000 * count..1_700_000_600 * count).prop_map(move |time| time * unit)
    };
    let anywhere = 1 - Time::NS_MAX..Time::NS_MAX;
    let time = prop_oneof![8 => near(1_000_000), 3 => near(1_000), 3 => near(1), 1 => anywhere];
    proptest::collection::vec(
        (
            any::<u8>(),
            time,
            proptest::collection::vec(any::<u8>(), 0..40),
        ),
        1..150,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    #[test]
    fn a_damaged_record_costs_that_record_alone(
        values in values(),
        which: prop::sample::Index,
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..6),
    ) {
        let (mut store, readings, spots) = logged(&values, small_options());
        let spot = which.get(&spots).clone();
        let record = &mut store.file_mut(&db::log::segment_name(spot.segment))[spot.offset..][..spot.bytes];
        let before = record.to_vec();
        for (at, flip) in flips {
            record[at.index(spot.bytes)] ^= flip;
        }
        prop_assume!(record != before);
        let (found, report) = scan(&mut store);
        let mut expected = without_names(&readings);
        if let Some(reading) = spot.reading {
            expected.remove(reading);
        }
        prop_assert!(without_names(&found) == expected, "{spot:?}: {} of {}", found.len(), expected.len());
        // A last record whose length was damaged cannot be told from a torn append.
        prop_assert_eq!(report.damage.records_damaged + report.damage.tails_torn, 1);
        let clock = sim_clock();
        let db = open(store, &clock, small_options());
        prop_assert!(db.recovery().damage.records_damaged + db.recovery().damage.tails_torn <= 1);
        let torn = report.damage.tails_torn > 0;
        let next = next_number(&db);
        prop_assert!(torn || next >= values.len() as u64, "{next} was given to a durable reading");
    }

    #[test]
    fn an_unreadable_piece_costs_only_its_readings(values in values(), at: prop::sample::Index) {
        let options = DbOptions { segment_bytes_max: 1 << 20, checkpoint_bytes: 1 << 20, ..small_options() };
        let (mut store, readings, spots) = logged(&values, options);
        let name = db::log::segment_name(0);
        let length = store.file(&name).expect("a segment").len();
        let piece = at.index(length) / 4000 * 4000;
        store.damage(&name, piece as u64 + 17);
        let (found, report) = scan(&mut store);
        let outside = |spot: &&Spot| spot.offset + spot.bytes <= piece || spot.offset >= piece + 4000;
        let kept: Vec<_> = spots.iter().filter(outside).filter_map(|spot| spot.reading).collect();
        let all = without_names(&readings);
        let found = without_names(&found);
        let expected: Vec<_> = kept.iter().map(|at| all[*at]).collect();
        if piece > 0 {
            prop_assert_eq!(&found, &expected);
        } else {
            // The first anchors are in the piece: what follows them is read from the next anchor on.
            prop_assert!(expected.ends_with(&found));
        }
        prop_assert_eq!(report.damage.pieces_unreadable, 1);
        let next = next_number(&open(store, &sim_clock(), options));
        prop_assert!(next >= values.len() as u64, "{next} was given to a durable reading");
    }

    #[test]
    fn arbitrary_files_are_survived(
        log in proptest::collection::vec(any::<u8>(), 0..30_000),
        checkpoint in proptest::collection::vec(any::<u8>(), 0..3000),
    ) {
        let mut store = MemoryStore::new();
        *store.file_mut("log-00000000") = log;
        *store.file_mut("ckpt-00000001") = checkpoint;
        let clock = sim_clock();
        let db = open(store, &clock, small_options());
        prop_assert_eq!(db.recovery().readings_replayed, 0);
        prop_assert_eq!(db.recovery().checkpoints_unusable, 1);
        let id = declare(&db, 1)[0];
        let ticket = db.put(id, b"on", Time::from_ms(1), Durability::Now).expect("taken");
        db.pump().expect("committed");
        prop_assert!(ticket.is_durable());
        prop_assert_eq!(scan(&mut db.close().expect("closed")).0.len(), 1);
    }
}

/// A value may hold the bytes of a record: if its own record is damaged in the body, the forged record is skipped.
#[test]
fn a_record_inside_a_damaged_value_is_not_believed() {
    let mut forged = Vec::new();
    codec::put_dictionary(
        &mut forged,
        // Even with the valid seal.
        Seal::of(MemoryStore::new().secret()),
        &codec::Dictionary {
            id: 3,
            key: "forged",
            avi_ms: 1,
            temporal: true,
        },
    );
    let values: Vec<_> = (0..9)
        .map(|n| (n, 1_700_000_000_000 + i64::from(n), forged.clone()))
        .collect();
    let (mut store, readings, spots) = logged(&values, small_options());
    for spot in spots.iter().filter(|spot| spot.reading.is_some()) {
        let mut store = store.clone();
        store.file_mut(&db::log::segment_name(spot.segment))[spot.offset + 5] ^= 0x40;
        let (found, report) = scan(&mut store);
        assert_eq!(found.len(), readings.len() - 1);
        assert_eq!(
            (report.dictionary_conflicts, report.damage.records_damaged),
            (0, 1)
        );
        assert!(found.iter().all(|(key, ..)| key != "forged"));
    }
    assert_eq!(scan(&mut store).0, readings);
}

/// Every byte of the checkpoint in turn is damaged: the start falls back to the whole log and ends in the same table.
#[test]
fn a_damaged_checkpoint_costs_time_only() {
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, small_options());
    let ids = declare(&db, 4);
    for n in 0..100u32 {
        db.put(
            ids[n as usize % 4],
            &n.to_le_bytes(),
            Time::from_ms(i64::from(n)),
            Durability::Now,
        )
        .expect("taken");
        db.pump().expect("committed");
    }
    let store = db.close().expect("closed");
    let name = store
        .names()
        .find(|name| name.starts_with("ckpt"))
        .expect("a checkpoint")
        .to_owned();
    let table = |db: &Database<MemoryStore>| -> Vec<_> {
        let mut buffer = [0; 40];
        ids.iter()
            .map(|id| {
                (
                    db.get_at(*id, Time::from_ms(0), &mut buffer)
                        .expect("a value"),
                    buffer[..4].to_vec(),
                )
            })
            .collect()
    };
    let whole = open(store.clone(), &clock, small_options());
    assert_eq!(
        (
            whole.recovery().checkpoint.is_some(),
            whole.recovery().readings_replayed
        ),
        (true, 0)
    );
    for at in 0..store.file(&name).expect("a checkpoint").len() {
        let mut store = store.clone();
        store.file_mut(&name)[at] ^= 0x10;
        let db = open(store, &clock, small_options());
        assert_eq!(
            (db.recovery().checkpoint, db.recovery().checkpoints_unusable),
            (None, 1)
        );
        assert_eq!(db.recovery().readings_replayed, 100);
        let ignore_rounding =
            |(got, value): (db::Got, Vec<u8>)| (got.time.ms(), got.fresh, got.value_bytes, value);
        assert!(
            table(&db)
                .into_iter()
                .map(ignore_rounding)
                .eq(table(&whole).into_iter().map(ignore_rounding))
        );
    }
}
