//! The figures that DESIGN.md quotes: `cargo run --release -p db --example measure`.
//!
//! A simulated device without latency counts writes and flushes; times are this machine's and do not apply to a card.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use base::block::BlockDevice;
use base::clock::{Clock, SystemClock};
use base::histogram::Histogram;
use base::sim::{SimClock, SimDevice};
use db::{CommitDriver, Database, DbOptions, Durability, ObjectId, ObjectSpec};
use flash::{FormatOptions, Store};

type SimDatabase = Database<Store<SimDevice>>;

fn open(
    options: DbOptions,
    clock: Arc<dyn Clock>,
) -> Result<SimDatabase, Box<dyn std::error::Error>> {
    let format = FormatOptions {
        files_max: 256,
        name_bytes_max: 64,
        uuid: [1; 16],
        hash_key: [2; 16],
    };
    let store = Store::format(SimDevice::new(65_536, 1), &format)?;
    Ok(Database::open(store, clock, options)?)
}

fn declare(db: &SimDatabase, count: u32) -> Result<Vec<ObjectId>, db::Error> {
    let declare = |n| {
        let key = format!("storey {}/room {}/sensor {n}", n / 256, n / 32);
        db.declare(&ObjectSpec {
            key: &key,
            avi_ms: 5000,
            temporal: true,
        })
    };
    (0..count).map(declare).collect()
}

/// 1,024 sensors, 260 readings a second of 8 bytes for ten minutes, a commit every `batch` readings.
fn wear(batch: u64) -> Result<(), Box<dyn std::error::Error>> {
    let clock = SimClock::new(1);
    let options = DbOptions {
        commit_driver: CommitDriver::Manual,
        ..DbOptions::default()
    };
    let db = open(options, Arc::new(clock.clone()))?;
    let ids = declare(&db, 1024)?;
    db.flush(std::time::Duration::from_secs(10))?;
    let before = db
        .with_store(|store| store.device().counters())
        .unwrap_or_default();
    let readings = 156_000u64;
    for n in 0..readings {
        clock.advance_ns(3_846_153);
        let id = ids[(n.wrapping_mul(7919) % 1024) as usize];
        db.put(
            id,
            &(n as f64).to_le_bytes(),
            db::Time::from_ms(1_700_000_000_000 + n as i64 * 4),
            Durability::Batched,
        )?;
        if n % batch == batch - 1 {
            db.pump()?;
        }
    }
    db.flush(std::time::Duration::from_secs(10))?;
    let (stats, after) = (
        db.stats(),
        db.with_store(|store| store.device().counters())
            .unwrap_or_default(),
    );
    let per = |count: u64| count as f64 / readings as f64;
    println!(
        "commit every {batch:>3}: log {:.2} B/reading (of it 8 value), checkpoint {:.2} B, \
         device {:.1} B, {:.3} writes, {:.3} flushes",
        per(stats.log_bytes),
        per(stats.checkpoint_bytes),
        per((after.blocks_written - before.blocks_written) * 4096),
        per(after.writes - before.writes),
        per(after.flushes - before.flushes),
    );
    Ok(())
}

fn show(name: &str, histogram: &Histogram) {
    let at = |percent| histogram.percentile(percent);
    println!(
        "{name}: p50 {} ns, p99 {} ns, p99.9 {} ns, max {} ns",
        at(50.0),
        at(99.0),
        at(99.9),
        histogram.max()
    );
}

fn speed() -> Result<(), Box<dyn std::error::Error>> {
    let clock = SystemClock::new();
    let options = DbOptions {
        objects_max: 100_000,
        queue_bytes_max: 16 << 20,
        ..DbOptions::default()
    };
    let db = open(options, Arc::new(clock.clone()))?;
    let ids = declare(&db, 100_000)?;
    let (mut get, mut put, mut floor) = (Histogram::new(), Histogram::new(), Histogram::new());
    let (mut at, mut buffer, mut busy) = (1u64, [0; 64], 0);
    for n in 0..200_000i64 {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let id = ids[(at >> 33) as usize % ids.len()];
        let begin = Instant::now();
        busy += u64::from(
            black_box(db.put(
                id,
                &[n as u8; 64],
                db::Time::from_ms(n),
                Durability::Batched,
            ))
            .is_err(),
        );
        put.record(begin.elapsed().as_nanos() as u64);
        let begin = Instant::now();
        let _ = black_box(db.get_at(id, db::Time::from_ms(n), &mut buffer));
        get.record(begin.elapsed().as_nanos() as u64);
        let begin = Instant::now();
        floor.record(black_box(begin.elapsed().as_nanos() as u64));
    }
    let begin = Instant::now();
    for n in 0..2_000_000i64 {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let _ = black_box(db.get_at(
            ids[(at >> 33) as usize % ids.len()],
            db::Time::from_ms(n),
            &mut buffer,
        ));
    }
    println!(
        "get, 100k objects of 64 B, untimed loop: {} ns each",
        begin.elapsed().as_nanos() / 2_000_000
    );
    show("get_at (timed singly)", &get);
    show("put, batched", &put);
    show("timer alone", &floor);
    println!("busy: {busy}");
    let mut now = Histogram::new();
    for n in 0..20_000i64 {
        let begin = Instant::now();
        db.put(
            ids[0],
            &[1; 64],
            db::Time::from_ms(1_000_000 + n),
            Durability::Now,
        )?
        .wait(std::time::Duration::from_secs(10))?;
        now.record(begin.elapsed().as_nanos() as u64);
    }
    show("put now + wait, device without latency", &now);
    let begin = Instant::now();
    let store = db.close()?;
    println!(
        "close with checkpoint of 100k objects: {} ms",
        begin.elapsed().as_millis()
    );
    let begin = Instant::now();
    let db = Database::open(store, Arc::new(clock), options)?;
    println!(
        "open: {} ms, {:?}",
        begin.elapsed().as_millis(),
        db.recovery()
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for batch in [1, 4, 65, 650] {
        wear(batch)?;
    }
    speed()
}
