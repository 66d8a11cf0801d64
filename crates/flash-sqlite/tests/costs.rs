//! Tests the cost of a commit in device operations, which is the same on every machine.

use crate::common::{connect, formatted, insert, remove, value};
use base::block::{BLOCK_BYTES, BlockDevice, Counters};
use rusqlite::Connection;

/// Device operations of one commit.
struct Costs {
    writes: f64,
    flushes: f64,
    reads: f64,
    kib: f64,
    worst_writes: u64,
    worst_flushes: u64,
}

/// Transactions of one kind in one journal mode.
struct Workload<'a> {
    name: &'a str,
    journal: &'a str,
    identity: u8,
    /// SQL that runs before the count begins.
    prepare: &'a str,
    commits_before: u32,
    commits: u32,
    transaction: &'a str,
}

fn cost(workload: &Workload<'_>) -> Costs {
    let image = format!("cost-{}-{}", workload.name, workload.journal);
    let machine = insert(&image, formatted(4096, workload.identity));
    // Another database with another journal, as in the benchmark.
    let other = connect("other.db", &image).unwrap();
    other
        .execute_batch("CREATE TABLE row (id INTEGER PRIMARY KEY, content BLOB)")
        .unwrap();
    let connection = connect("plant.db", &image).unwrap();
    let mode: String = value(
        &connection,
        &format!("PRAGMA journal_mode = {}", workload.journal),
    )
    .unwrap();
    assert_eq!(mode, workload.journal);
    connection
        .execute_batch("CREATE TABLE row (id INTEGER PRIMARY KEY, content BLOB)")
        .unwrap();
    let commit = |connection: &Connection, count| {
        for _ in 0..count {
            connection.execute_batch(workload.transaction).unwrap();
        }
    };
    connection
        .execute_batch(&format!("PRAGMA synchronous = OFF; {}", workload.prepare))
        .unwrap();
    commit(&connection, workload.commits_before);
    connection
        .execute_batch("PRAGMA synchronous = FULL")
        .unwrap();
    commit(&connection, 2);
    let counters = || machine.lock().unwrap().device.counters();
    let before = counters();
    let (mut worst_writes, mut worst_flushes) = (0, 0);
    for _ in 0..workload.commits {
        let start = counters();
        commit(&connection, 1);
        let end = counters();
        worst_writes = worst_writes.max(end.writes - start.writes);
        worst_flushes = worst_flushes.max(end.flushes - start.flushes);
    }
    let after = counters();
    drop((connection, other));
    remove(&image);
    let each = |count: fn(&Counters) -> u64| {
        (count(&after) - count(&before)) as f64 / f64::from(workload.commits)
    };
    let costs = Costs {
        writes: each(|counters| counters.writes),
        flushes: each(|counters| counters.flushes),
        reads: each(|counters| counters.reads),
        kib: each(|counters| counters.blocks_written) * BLOCK_BYTES as f64 / 1024.0,
        worst_writes,
        worst_flushes,
    };
    println!(
        "{}, {}: a commit is {:.3} writes, {:.3} flushes, {:.3} reads, {:.2} KiB; at worst {} writes, {} flushes",
        workload.name,
        workload.journal,
        costs.writes,
        costs.flushes,
        costs.reads,
        costs.kib,
        worst_writes,
        worst_flushes
    );
    costs
}

/// Returns a workload with rows of 100 bytes, each in its own transaction.
fn row<'a>(journal: &'a str, identity: u8) -> Workload<'a> {
    Workload {
        name: "a row of 100 bytes",
        journal,
        identity,
        prepare: "",
        commits_before: 1500,
        commits: 6000,
        transaction: "INSERT INTO row (content) VALUES (zeroblob(100))",
    }
}

/// The workload covers more than five checkpoints, after each of which the log begins again.
#[test]
fn a_commit_to_a_log_is_one_write_and_one_flush() {
    let costs = cost(&row("wal", 61));
    assert!(costs.writes <= 1.15 && costs.flushes <= 1.02);
    assert!(costs.reads <= 0.15 && costs.kib <= 9.5);
    assert!(costs.worst_writes <= 24 && costs.worst_flushes <= 8);
}

#[test]
fn a_commit_with_a_rollback_journal_is_one_record() {
    for (journal, identity) in [("delete", 62), ("truncate", 63), ("persist", 64)] {
        let costs = cost(&row(journal, identity));
        assert!(costs.writes <= 3.05 && costs.flushes <= 1.05, "{journal}");
        assert!(costs.reads <= 0.25 && costs.kib <= 29.0, "{journal}");
        assert!(
            costs.worst_writes <= 6 && costs.worst_flushes <= 2,
            "{journal}"
        );
    }
}

/// The transaction changes four rows in four pages, and the first page: more than a record holds.
#[test]
fn a_larger_transaction_writes_its_journal() {
    for (journal, identity, writes_max, flushes_max) in [
        ("delete", 65, 16.0, 5.0),
        ("truncate", 66, 13.0, 4.0),
        ("persist", 67, 16.0, 6.0),
    ] {
        let costs = cost(&Workload {
            name: "four pages",
            prepare: "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400)
                INSERT INTO row SELECT i, zeroblob(1000) FROM n",
            commits_before: 5,
            commits: 300,
            transaction: "UPDATE row SET content = randomblob(1000) WHERE id IN (50, 150, 250, 350)",
            ..row(journal, identity)
        });
        assert!(
            costs.writes <= writes_max && costs.flushes <= flushes_max,
            "{journal}"
        );
    }
}
