//! Periodic tasks on a running database. No assertion here is about how fast the machine is.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::clock::SystemClock;
use common::declare;
use db::{Database, DbOptions, Durability, MemoryStore, TaskSpec, spawn_task};

#[test]
fn a_task_is_released_measured_and_stopped() {
    let db = Database::open(
        MemoryStore::new(),
        Arc::new(SystemClock::new()),
        DbOptions::default(),
    )
    .expect("opened");
    let db = Arc::new(db);
    let ids = declare(&db, 4);
    let runs = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&runs);
    let spec = TaskSpec {
        name: "analysis",
        period_ns: 2_000_000,
        deadline_ns: 1_000_000,
    };
    let task = spawn_task(Arc::clone(&db), spec, move |context| {
        assert_eq!(context.instance(), counted.load(Ordering::Relaxed));
        let value = context.instance().to_le_bytes();
        context
            .put(
                ids[0],
                &value,
                context.instance() as i64,
                Durability::Batched,
            )
            .expect("taken");
        let mut buffer = [0; 64];
        assert!(context.get(ids[0], &mut buffer).is_ok());
        // One instance in eight overruns its period several times.
        if context.instance() % 8 == 3 {
            std::thread::sleep(Duration::from_millis(9));
        }
        counted.fetch_add(1, Ordering::Relaxed);
    })
    .expect("started");
    while runs.load(Ordering::Relaxed) < 20 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(task.is_running());
    assert_eq!(task.spec().period_ns, 2_000_000);
    let early = task.take_monitor();
    let late = task.stop();
    assert_eq!(
        early.instances + late.instances,
        runs.load(Ordering::Relaxed)
    );
    let monitor = early;
    for histogram in [
        &monitor.response_ns,
        &monitor.data_ns,
        &monitor.compute_ns,
        &monitor.jitter_ns,
    ] {
        assert_eq!(histogram.count(), monitor.instances);
    }
    // Two sleeps of 9 ms at least: each passes at least three releases of 2 ms and misses a deadline of 1 ms.
    assert!(
        monitor.releases_missed >= 6 && monitor.deadline_misses >= 2,
        "{monitor:?}"
    );
    assert!(monitor.tardiness_max >= 9.0 && monitor.tardiness_mean() > 0.0);
    assert!(monitor.data_ns.min() > 0 && monitor.data_ratio() > 0.0 && monitor.data_ratio() < 1.0);
    assert!(monitor.response_ns.sum() >= monitor.data_ns.sum() + monitor.compute_ns.sum());
    let stopped = runs.load(Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(8));
    assert_eq!(runs.load(Ordering::Relaxed), stopped);
}

#[test]
fn a_task_without_a_period_is_refused() {
    let db = Database::open(
        MemoryStore::new(),
        Arc::new(SystemClock::new()),
        DbOptions::default(),
    )
    .expect("opened");
    let spec = TaskSpec {
        name: "never",
        period_ns: 0,
        deadline_ns: 1,
    };
    assert!(spawn_task(Arc::new(db), spec, |_| ()).is_err());
}
