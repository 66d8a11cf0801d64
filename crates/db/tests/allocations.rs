//! `get`, `lookup` and `put` allocate nothing, with any durability.
#![allow(unsafe_code, reason = "a counting allocator is unsafe by its trait")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use base::clock::SystemClock;
use common::declare;
use db::table::{Table, TableMemory};
use db::{AlarmCondition, AlarmRule, CommitDriver, Database, DbOptions, Durability, MemoryStore};

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations<R>(work: impl FnOnce() -> R) -> (u64, R) {
    let before = COUNT.with(Cell::get);
    let result = work();
    (COUNT.with(Cell::get) - before, result)
}

/// Rules whose threshold the values of the test cross half-way, and one for staleness.
fn alarms() -> [AlarmRule; 2] {
    let rule = |condition| AlarmRule {
        pattern: "#".to_owned(),
        condition,
        objects_max: 8,
    };
    let threshold = f64::from_bits(1_000);
    [
        rule(AlarmCondition::Above {
            threshold,
            clear: threshold,
            raise_after_ms: 0,
        }),
        rule(AlarmCondition::Stale { after_ms: 1 }),
    ]
}

#[test]
fn the_real_time_path_allocates_nothing() {
    for commit_driver in [CommitDriver::Thread, CommitDriver::Manual] {
        let options = DbOptions {
            commit_driver,
            ..DbOptions::default()
        };
        // As in a node whose table others read: in memory that is given to the table.
        let lines = Table::lines_needed(options.table_size());
        let given = Box::leak(Box::new(TableMemory::own(lines.expect("a size"))));
        let (store, clock) = (MemoryStore::new(), Arc::new(SystemClock::new()));
        let memory = TableMemory::Given((*given).as_ref());
        let db = match commit_driver {
            CommitDriver::Thread => Database::open_in(store, clock, options, memory),
            CommitDriver::Manual | CommitDriver::Stepped => Database::open(store, clock, options),
        }
        .expect("opened");
        db.set_alarms(&alarms(), 16).expect("set");
        let ids = declare(&db, 8);
        let mut buffer = [0; 64];
        let (count, refused) = allocations(|| {
            let mut refused = 0;
            for n in 0..30_000i64 {
                let durability = if n % 3 == 0 {
                    Durability::Now
                } else {
                    Durability::Batched
                };
                let id = ids[n as usize % 8];
                match db.put(id, &n.to_le_bytes(), db::Time::from_ms(n), durability) {
                    Ok(ticket) => refused += u64::from(ticket.poll().is_err()),
                    Err(_) => refused += 1,
                }
                let got = db.get(id, &mut buffer);
                if n % 1000 == 0 {
                    db.scan_alarms();
                }
                if n % 2 == 0 {
                    std::hint::black_box(db.next_alarm());
                }
                refused +=
                    u64::from(got.is_err() || db.lookup("room 3/temperature") != Some(ids[3]));
            }
            (db.fresh_count(db::Time::from_ms(5)), refused)
        });
        assert_eq!(count, 0);
        assert!(db.alarm_figures().rules[0].raised > 0);
        let (fresh, _busy_when_manual) = refused;
        assert_eq!(fresh.temporal, 4);
        let (counted, _) = allocations(|| std::hint::black_box(vec![1u8; 10]));
        assert_eq!(counted, 1, "the counter counts");
    }
}
