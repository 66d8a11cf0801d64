//! The time of a `get`, a `put` and a durable `put` on this machine, in the cases of the goals:
//! `cargo run --release -p db --example data_path -- [--hog] [--large] [FOLDER]`.
//!
//! Without arguments: single `get` and `put` of 100,000 and a million objects, and the cost of measuring a task. With
//! `--hog` another thread reads and writes 256 MiB at random meanwhile. With a folder: durable puts on a file there.
//! The measuring thread takes core 0 and a real-time priority where that is permitted. `keel bench db` compares with
//! other databases.

mod durable;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::clock::SystemClock;
use base::histogram::Histogram;
use db::realtime::{self, Cores};
use db::{
    Database, DbOptions, Durability, MemoryStore, ObjectId, ObjectSpec, SegmentStore, TaskSpec,
    spawn_task,
};

/// Numbers that are spread well enough to miss every cache.
pub(crate) struct Spread(u64);

impl Spread {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % bound
    }
}

pub(crate) fn show(name: &str, histogram: &Histogram) {
    let at = |percent| histogram.percentile(percent);
    println!(
        "{name:<44} p50 {:>8} p99 {:>8} p99.9 {:>8} max {:>9} ns",
        at(50.0),
        at(99.0),
        at(99.9),
        histogram.max()
    );
}

pub(crate) fn declare<S: SegmentStore>(
    db: &Database<S>,
    count: u32,
) -> Result<Vec<ObjectId>, db::Error> {
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

/// Requests core and priority for the measuring thread.
fn prefer() {
    for refused in [
        Cores::of(&[0]).and_then(|cores| realtime::set_cores(&cores)),
        realtime::set_fifo(50),
    ]
    .into_iter()
    .flatten()
    {
        println!("note: {refused}");
    }
}

/// One size of table: latencies of single calls, with the timer's own beside them.
fn single(objects: u32, value_bytes: usize) -> Result<(), db::Error> {
    let options = DbOptions {
        objects_max: objects,
        value_bytes_max: value_bytes,
        queue_bytes_max: 256 << 20,
        ..DbOptions::default()
    };
    let db = Database::open(MemoryStore::new(), Arc::new(SystemClock::new()), options)?;
    let ids = declare(&db, objects)?;
    let value = vec![7_u8; value_bytes];
    for id in &ids {
        while db
            .put(*id, &value, db::Time::from_ms(0), Durability::Batched)
            .is_err()
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    db.flush(Duration::from_secs(60))?;
    std::thread::scope(|scope| {
        let measured = scope.spawn(|| {
            prefer();
            let (mut get, mut put, mut floor) =
                (Histogram::new(), Histogram::new(), Histogram::new());
            let (mut spread, mut buffer, mut refused) = (Spread(1), vec![0; value_bytes], 0);
            for n in 0..100_000_i64 {
                let id = ids[spread.below(ids.len())];
                let begin = Instant::now();
                let put_one =
                    black_box(db.put(id, &value, db::Time::from_ms(n), Durability::Batched));
                put.record(begin.elapsed().as_nanos() as u64);
                refused += u64::from(put_one.is_err());
                let id = ids[spread.below(ids.len())];
                let begin = Instant::now();
                let _ = black_box(db.get_at(id, db::Time::from_ms(n), &mut buffer));
                get.record(begin.elapsed().as_nanos() as u64);
                let begin = Instant::now();
                floor.record(black_box(begin.elapsed().as_nanos() as u64));
            }
            let size = format!("{objects} x {value_bytes} B");
            show(&format!("{size}: get"), &get);
            show(&format!("{size}: put, batched ({refused} refused)"), &put);
            show(&format!("{size}: timer alone"), &floor);
        });
        // A panic has already printed its message.
        let _ = measured.join();
    });
    Ok(())
}

/// The cost of measuring a task's data time: gets in closures of this many.
fn measuring() -> Result<(), Box<dyn std::error::Error>> {
    const GETS: u64 = 100_000;
    let options = DbOptions {
        objects_max: 100_000,
        ..DbOptions::default()
    };
    let db = Database::open(MemoryStore::new(), Arc::new(SystemClock::new()), options)?;
    let db = Arc::new(db);
    let ids = declare(&db, 1024)?;
    for id in &ids {
        db.put(*id, &[7; 64], db::Time::from_ms(0), Durability::Batched)?;
    }
    let batches = [0_u64, 1, 10, 100, 1000];
    let took: Arc<Vec<AtomicU64>> =
        Arc::new((0..batches.len() * 9).map(|_| AtomicU64::new(0)).collect());
    let (theirs, done) = (Arc::clone(&took), Arc::new(AtomicBool::new(false)));
    let ended = Arc::clone(&done);
    let task = spawn_task(
        Arc::clone(&db),
        TaskSpec::new("measured", 1_000_000_000, 1_000_000_000),
        move |context| {
            let mut buffer = [0; 64];
            // Rounds take turns, so that a machine that is slow for some time is slow for all.
            for (at, nanos) in theirs.iter().enumerate() {
                let batch = batches[at % batches.len()];
                let begin = Instant::now();
                for first in (0..GETS).step_by(batch.max(1) as usize) {
                    let get = |db: &Database<_>, n: u64, buffer: &mut [u8]| {
                        black_box(
                            db.get_at(
                                ids[(n * 7919) as usize % ids.len()],
                                db::Time::from_ms(5),
                                buffer,
                            )
                            .is_ok(),
                        );
                    };
                    if batch == 0 {
                        context.timed(|_| ());
                        break;
                    }
                    context
                        .timed(|db| (first..first + batch).for_each(|n| get(db, n, &mut buffer)));
                }
                if batch == 0 {
                    context.timed(|db| {
                        for n in 0..GETS {
                            black_box(
                                db.get_at(
                                    ids[(n * 7919) as usize % ids.len()],
                                    db::Time::from_ms(5),
                                    &mut buffer,
                                )
                                .is_ok(),
                            );
                        }
                    });
                }
                nanos.store(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
            }
            ended.store(true, Ordering::Release);
        },
    )?;
    while !done.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = task.stop();
    let median = |at: usize| {
        let mut rounds: Vec<_> = took
            .iter()
            .skip(at)
            .step_by(batches.len())
            .map(|it| it.load(Ordering::Relaxed))
            .collect();
        rounds.sort_unstable();
        rounds[rounds.len() / 2] as f64 / GETS as f64
    };
    println!(
        "a get, all measured by one pair of clock reads: {:.1} ns",
        median(0)
    );
    for (at, batch) in batches.iter().enumerate().skip(1) {
        let each = median(at);
        println!(
            "  a pair for each {batch:>4} gets: {each:.1} ns, {:+.1} %",
            (each / median(0) - 1.0) * 100.0
        );
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|it| it == flag);
    if let Some(folder) = arguments.iter().find(|it| !it.starts_with("--")) {
        return durable::run(folder.as_ref());
    }
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if has("--hog") {
            scope.spawn(|| {
                if let Some(refused) = Cores::of(&[1]).and_then(|cores| realtime::set_cores(&cores))
                {
                    println!("note: {refused}");
                }
                let (mut memory, mut spread) = (vec![0_u64; 32 << 20], Spread(9));
                while !ended.load(Ordering::Relaxed) {
                    for _ in 0..1000 {
                        let at = spread.below(memory.len());
                        memory[at] = memory[at].wrapping_add(1);
                    }
                }
                black_box(&memory);
            });
        }
        let measured = (|| {
            single(100_000, 64)?;
            single(1_000_000, 64)?;
            single(100_000, 1024)?;
            if has("--large") {
                single(1_000_000, 1024)?;
            }
            measuring()
        })();
        ended.store(true, Ordering::Relaxed);
        measured
    })
}
