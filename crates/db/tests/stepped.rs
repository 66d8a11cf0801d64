//! The loop of the commit thread, step by step, on a clock that stands still: its rests, and what ends them.

use std::time::Duration;

use base::sim::SimClock;
use db::{
    CommitDriver, CommitStep, Database, DbOptions, Durability, MemoryStore, ObjectId, Ticket, Time,
};

use crate::common::{declare, open, sim_clock, small_options};

const INTERVAL: Duration = Duration::from_millis(5);

fn opened() -> (Database<MemoryStore>, SimClock, Vec<ObjectId>) {
    let options = DbOptions {
        commit_driver: CommitDriver::Stepped,
        ..small_options()
    };
    let clock = sim_clock();
    let db = open(MemoryStore::new(), &clock, options);
    let ids = declare(&db, 2);
    (db, clock, ids)
}

fn put(db: &Database<MemoryStore>, id: ObjectId, n: u64, durability: Durability) -> Ticket {
    let time = Time::from_ms(1_700_000_000_000 + n as i64);
    let put = db.put(id, &n.to_le_bytes(), time, durability);
    put.expect("there is room")
}

/// Steps until the commit side sleeps. Time passes only while it naps.
fn sleep(db: &Database<MemoryStore>, clock: &SimClock) {
    for _ in 0..20 {
        match db.commit_step() {
            CommitStep::Round { .. } => {}
            CommitStep::Nap(time) => clock.advance_ns(time.as_nanos() as u64),
            CommitStep::Sleep => {
                db.take_wake_up();
                return;
            }
            CommitStep::End => panic!("the log has failed"),
        }
    }
    panic!("it does not fall asleep");
}

#[test]
fn a_sleeping_commit_side_is_woken_and_a_reading_waits_for_its_interval() {
    let (db, clock, ids) = opened();
    sleep(&db, &clock);
    let ticket = put(&db, ids[0], 1, Durability::Batched);
    assert!(db.take_wake_up(), "it slept");
    assert_eq!(db.commit_step(), CommitStep::Nap(INTERVAL));
    // A second reading joins the first one, and nobody is woken for it.
    clock.advance_ns(2_000_000);
    let second = put(&db, ids[1], 2, Durability::Batched);
    assert!(!db.take_wake_up() && !ticket.is_durable());
    assert_eq!(
        db.commit_step(),
        CommitStep::Nap(Duration::from_millis(3)),
        "counted from the first reading"
    );
    clock.advance_ns(3_000_000);
    assert!(matches!(db.commit_step(), CommitStep::Round { .. }));
    assert!(ticket.is_durable() && second.is_durable());
}

#[test]
fn an_urgent_reading_ends_a_nap() {
    let (db, clock, ids) = opened();
    sleep(&db, &clock);
    let first = put(&db, ids[0], 1, Durability::Batched);
    assert!(db.take_wake_up());
    assert!(matches!(db.commit_step(), CommitStep::Nap(_)));
    let urgent = put(&db, ids[0], 2, Durability::Now);
    assert!(db.take_wake_up(), "it naps");
    put(&db, ids[0], 3, Durability::Now);
    assert!(!db.take_wake_up(), "it was woken already");
    assert!(matches!(db.commit_step(), CommitStep::Round { .. }));
    assert!(first.is_durable() && urgent.is_durable());
}

#[test]
fn commit_side_naps_once_more_before_it_sleeps_and_ends_with_the_log() {
    let (db, clock, ids) = opened();
    sleep(&db, &clock);
    put(&db, ids[0], 1, Durability::Now);
    assert!(matches!(db.commit_step(), CommitStep::Round { .. }));
    assert_eq!(db.commit_step(), CommitStep::Nap(INTERVAL));
    clock.advance_ns(5_000_000);
    assert_eq!(db.commit_step(), CommitStep::Sleep);
    db.close().expect("closed");
    assert!(db.take_wake_up(), "to end");
    assert_eq!(db.commit_step(), CommitStep::End);
}
