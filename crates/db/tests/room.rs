//! Tables that are large for their store: those whose checkpoints always have room, and what is reported and kept where
//! they have none.

use crate::common::{Oracle, open, scan, sim_clock, small_options};
use db::*;

const VALUE_BYTES: usize = 400;
/// Bytes of each key: as many as there are by default for as many keys as there can be.
const KEY_BYTES: usize = KEY_BYTES_MEAN as usize;

fn options(objects: u32, store_bytes: u64, full_policy: FullPolicy) -> DbOptions {
    DbOptions {
        objects_max: objects,
        value_bytes_max: VALUE_BYTES,
        queue_bytes_max: 8 << 10,
        append_bytes_max: 4 << 10,
        segment_bytes_max: store_bytes / 8,
        checkpoint_bytes: store_bytes / 10,
        checkpoint_piece_bytes_max: 2 << 10,
        retention: Retention {
            full_policy,
            ..Retention::default()
        },
        ..small_options()
    }
}

/// Returns the most bytes that a checkpoint of a full table takes; with keys this long it takes hardly less.
fn checkpoint_bytes(objects: u32) -> u64 {
    let each = |bytes: usize| u64::from(objects) * bytes as u64;
    checkpoint_bytes_max(objects, each(KEY_BYTES), each(VALUE_BYTES))
}

/// Declares keys that take all bytes that there are for them.
fn declare_long<S: SegmentStore>(db: &Database<S>, objects: u32) -> Vec<ObjectId> {
    let ids = (0..objects)
        .map(|n| {
            let spec = ObjectSpec {
                key: &format!("{n:0KEY_BYTES$}"),
                avi_ms: u32::MAX,
                temporal: true,
            };
            db.declare(&spec).expect("declared")
        })
        .collect();
    db.pump().expect("there is room");
    ids
}

/// Fills the table, then puts far more than the store holds; returns the figures, and how many puts were refused.
fn run<S: SegmentStore>(store: S, objects: u32, store_bytes: u64) -> (Stats, u64) {
    let clock = sim_clock();
    let db = open(
        store,
        &clock,
        options(objects, store_bytes, FullPolicy::DropOldest),
    );
    let ids = declare_long(&db, objects);
    let mut refused = 0;
    for n in 0..8 * store_bytes / VALUE_BYTES as u64 {
        clock.advance_ns(1_000_000);
        let id = ids[n as usize % ids.len()];
        match db.put_now(id, &[7; VALUE_BYTES], Durability::Batched) {
            Ok(_) => {}
            Err(Error::Full) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        if n % 8 == 7 {
            let _ = db.pump();
            db.maintain().expect("kept in order");
        }
    }
    (db.stats(), refused)
}

#[test]
fn a_table_of_a_quarter_of_the_store_always_has_its_checkpoints() {
    for objects in [40, 120, 300] {
        let bytes = checkpoint_bytes(objects);
        for store_bytes in [4 * bytes, 5 * bytes, 9 * bytes] {
            let mut store = MemoryStore::new();
            store.set_capacity_bytes(store_bytes);
            let (stats, refused) = run(store, objects, store_bytes);
            let fit = TableFit::of(stats.table_checkpoint_bytes, stats.store_bytes);
            assert_eq!(fit, TableFit::Sure);
            let told = (refused, stats.checkpoints_failed, stats.checkpoint_failing);
            assert_eq!(told, (0, 0, None), "{objects} in {store_bytes}: {stats:?}");
            assert!(stats.checkpoints > 5 && stats.segments_dropped > 5);
        }
    }
}

/// The same on the file store, which gives growing files room ahead.
#[test]
fn a_table_of_a_quarter_of_the_file_store_has_its_checkpoints() {
    for blocks in [700, 1500] {
        let format = flash::FormatOptions {
            files_max: 64,
            name_bytes_max: 64,
            uuid: [1; 16],
            hash_key: [2; 16],
        };
        let device = base::sim::SimDevice::new(blocks, blocks);
        let store = flash::Store::format(device, &format).expect("formatted");
        let store_bytes = SegmentStore::capacity_bytes(&store);
        let objects = ((store_bytes / 4 - 4096) / (VALUE_BYTES as u64 + 112)) as u32;
        let (stats, refused) = run(store, objects, store_bytes);
        let fit = |bytes| TableFit::of(bytes, stats.store_bytes);
        assert_eq!(fit(stats.table_checkpoint_bytes), TableFit::Sure);
        assert_eq!(fit(checkpoint_bytes(objects + 1)), TableFit::Perhaps);
        let told = (refused, stats.checkpoints_failed, stats.checkpoint_failing);
        assert_eq!(told, (0, 0, None), "{objects} in {blocks}: {stats:?}");
        assert!(stats.checkpoints > 5 && stats.segments_dropped > 5);
    }
}

#[test]
fn a_larger_table_ends_with_a_full_store() {
    let objects = 300;
    let bytes = checkpoint_bytes(objects);
    for (store_bytes, fit) in [
        (bytes * 11 / 5, TableFit::Perhaps),
        (bytes * 9 / 5, TableFit::Never),
    ] {
        let mut store = MemoryStore::new();
        store.set_capacity_bytes(store_bytes);
        let (stats, refused) = run(store, objects, store_bytes);
        assert_eq!(TableFit::of(bytes, stats.store_bytes), fit);
        // This is also reported for the values that are there, though the store may be full before all of them are.
        let now = TableFit::of(stats.table_checkpoint_bytes, stats.store_bytes);
        assert!(now > TableFit::Sure && now <= fit, "{now:?}");
        assert!(refused > 0 && stats.full, "{stats:?}");
        // It is reported beside the full store, not hidden behind it.
        assert_eq!(stats.health, Health::Full);
        assert_eq!(stats.checkpoint_failing, Some(CheckpointFailure::NoRoom));
        assert!(stats.checkpoints_failed > 0);
    }
}

#[test]
fn without_room_for_a_checkpoint_the_log_goes_on_and_nothing_acknowledged_is_lost() {
    let objects = 300;
    let store_bytes = checkpoint_bytes(objects) * 11 / 5;
    let options = options(objects, store_bytes, FullPolicy::RejectNew);
    let mut store = MemoryStore::new();
    store.set_capacity_bytes(store_bytes);
    let clock = sim_clock();
    let db = open(store, &clock, options);
    let ids = declare_long(&db, objects);
    let mut oracle = Oracle::default();
    let (mut at_failure, mut rounds_full) = (None, 0);
    let mut n = 0u64;
    while rounds_full < 200 {
        for _ in 0..4 {
            clock.advance_ns(1_000_000);
            let mut value = [7; VALUE_BYTES];
            value[..8].copy_from_slice(&n.to_le_bytes());
            oracle.put(&db, ids[n as usize % ids.len()], n as i64, &value);
            n += 1;
        }
        // Checkpoints end before the log has grown much, so that one of them fails long before it is full.
        for _ in 0..100 {
            let _ = db.pump();
        }
        let stats = db.stats();
        if stats.checkpoint_failing.is_some() {
            at_failure.get_or_insert(db.durable_end());
        }
        rounds_full = if stats.full { rounds_full + 1 } else { 0 };
    }
    let stats = db.stats();
    let at_failure = at_failure.expect("one failed");
    assert!(db.durable_end() > at_failure, "{stats:?}");
    assert_eq!(stats.checkpoint_failing, Some(CheckpointFailure::NoRoom));
    // A full store is left alone: it is not written again and again for a checkpoint that has no room.
    let written = |db: &Database<MemoryStore>| db.with_store(|store| store.appends());
    let before = (written(&db), stats.checkpoints_failed);
    for _ in 0..50 {
        let _ = db.pump();
    }
    assert_eq!((written(&db), db.stats().checkpoints_failed), before);
    let durable = db.durable_end();
    assert_eq!(oracle.acknowledged().len() as u64, durable);
    let replay_bytes = stats.replay_bytes;
    let store = db.abandon().expect("the store");
    let mut store = oracle.check(store, &clock, options);
    assert_eq!(scan(&mut store).0.len() as u64, durable);
    // The remedy that the error names: with more room the database continues where it was.
    store.set_capacity_bytes(3 * store_bytes);
    let db = open(store, &clock, options);
    assert_eq!(db.recovery().log_bytes_read, replay_bytes);
    let mut least_replay_bytes = replay_bytes;
    for more in 0..300 {
        let time = n as i64 + more;
        db.put(
            ids[0],
            &[8; VALUE_BYTES],
            db::Time::from_ms(time),
            Durability::Now,
        )
        .expect("taken");
        db.pump().expect("durable");
        least_replay_bytes = least_replay_bytes.min(db.stats().replay_bytes);
    }
    let stats = db.stats();
    assert_eq!((stats.full, stats.checkpoint_failing), (false, None));
    assert!(
        stats.checkpoints > 0 && least_replay_bytes < replay_bytes,
        "{least_replay_bytes} of {replay_bytes} {stats:?}"
    );
}
