//! What a commit costs in device operations, which are the same on every machine.

mod common;

use base::block::{BLOCK_BYTES, BlockDevice};
use common::{connect, formatted, insert, remove, value};

const COMMITS: u64 = 3000;

/// Writes, flushes and KiB of one commit of a row of 100 bytes, on average after the first checkpoints.
fn cost(journal: &str, identity: u8) -> (f64, f64, f64) {
    let image = format!("cost-{journal}");
    let machine = insert(&image, formatted(4096, identity));
    let connection = connect("plant.db", &image).unwrap();
    let mode: String = value(&connection, &format!("PRAGMA journal_mode = {journal}")).unwrap();
    assert_eq!(mode, journal);
    connection
        .execute_batch(
            "PRAGMA synchronous = FULL; CREATE TABLE row (id INTEGER PRIMARY KEY, content BLOB)",
        )
        .unwrap();
    let commit = |count| {
        for _ in 0..count {
            connection
                .execute("INSERT INTO row (content) VALUES (zeroblob(100))", [])
                .unwrap();
        }
    };
    commit(1500);
    let counters = || machine.lock().unwrap().device.counters();
    let before = counters();
    let mut worst = (0, 0);
    for _ in 0..COMMITS {
        let start = counters();
        commit(1);
        let end = counters();
        worst = worst.max((end.writes - start.writes, end.flushes - start.flushes));
    }
    let after = counters();
    drop(connection);
    remove(&image);
    let each = |count: u64| count as f64 / COMMITS as f64;
    let costs = (
        each(after.writes - before.writes),
        each(after.flushes - before.flushes),
        each((after.blocks_written - before.blocks_written) * BLOCK_BYTES as u64) / 1024.0,
    );
    println!(
        "{journal}: a commit of 100 bytes is {:.3} writes, {:.3} flushes, {:.2} KiB; at worst {} writes, {} flushes",
        costs.0, costs.1, costs.2, worst.0, worst.1
    );
    costs
}

#[test]
fn a_commit_to_a_log_is_one_write_and_one_flush() {
    let (writes, flushes, kib) = cost("wal", 61);
    assert!(writes <= 1.2 && flushes <= 1.1 && kib <= 10.0);
}

#[test]
fn a_commit_with_a_rollback_journal_is_a_few_of_each() {
    for (journal, identity, writes_max, flushes_max) in [
        ("delete", 62, 11.0, 5.1),
        ("truncate", 63, 8.0, 4.1),
        ("persist", 64, 9.0, 4.1),
    ] {
        let (writes, flushes, _) = cost(journal, identity);
        assert!(writes <= writes_max && flushes <= flushes_max, "{journal}");
    }
}
