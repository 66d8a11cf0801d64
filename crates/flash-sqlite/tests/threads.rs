//! Tests several connections of one process that use one database at the same time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{code_of, connect, formatted, insert, remove, value};
use base::sim::Random;
use rusqlite::{Connection, ffi};

const WRITERS: usize = 3;
const READERS: usize = 2;
const TRANSFERS: usize = 400;
const ACCOUNTS: usize = 20;

fn open(image: &str) -> Connection {
    let connection = connect("bank.db", image).expect("opens");
    connection.busy_timeout(Duration::from_secs(60)).unwrap();
    connection
}

/// Writers move amounts between accounts. The sum must be the same for every reader at any time, and no move may be
/// lost.
fn work_together(journal: &str, identity: u8) {
    let image = format!("bank-{journal}");
    insert(&image, formatted(2048, identity));
    let keeper = open(&image);
    let mode: String = value(&keeper, &format!("PRAGMA journal_mode = {journal}")).unwrap();
    assert_eq!(mode, journal);
    keeper
        .execute_batch(&format!(
            "CREATE TABLE account (id INTEGER PRIMARY KEY, amount INTEGER);
             CREATE TABLE move (writer INTEGER, number INTEGER);
             WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {ACCOUNTS})
             INSERT INTO account SELECT i, 100 FROM n"
        ))
        .unwrap();
    let finished = AtomicBool::new(false);
    let looks = AtomicUsize::new(0);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let image = &image;
                scope.spawn(move || {
                    let mut random = Random::new(writer as u64);
                    let mut connection = open(image);
                    for number in 0..TRANSFERS {
                        if number % 20 == 19 {
                            // Files are opened and closed while others use them.
                            connection = open(image);
                        }
                        let (from, to) = (random.index(ACCOUNTS), random.index(ACCOUNTS));
                        connection
                            .execute_batch(&format!(
                                "BEGIN IMMEDIATE;
                                 UPDATE account SET amount = amount - 1 WHERE id = {from};
                                 INSERT INTO move VALUES ({writer}, {number});
                                 UPDATE account SET amount = amount + 1 WHERE id = {to};
                                 COMMIT"
                            ))
                            .unwrap_or_else(|error| panic!("writer {writer}: {error}"));
                    }
                })
            })
            .collect();
        for _ in 0..READERS {
            scope.spawn(|| {
                let connection = open(&image);
                while !finished.load(Ordering::Relaxed) {
                    let sum: i64 =
                        value(&connection, "SELECT sum(amount) FROM account").expect("reads");
                    assert_eq!(sum, 100 * ACCOUNTS as i64);
                    looks.fetch_add(1, Ordering::Relaxed);
                    // Readers that never pause would keep a rollback journal's writer waiting forever.
                    thread::sleep(Duration::from_millis(1));
                }
            });
        }
        // The readers must also end if a writer has failed.
        let ended: Vec<_> = writers
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        finished.store(true, Ordering::Relaxed);
        for writer in ended {
            writer.expect("works to the end");
        }
    });
    let moves: i64 = value(
        &keeper,
        "SELECT count(DISTINCT writer * 1000 + number) FROM move",
    )
    .unwrap();
    assert_eq!(moves as usize, WRITERS * TRANSFERS);
    let check: String = value(&keeper, "PRAGMA integrity_check").unwrap();
    assert_eq!(check, "ok");
    println!(
        "{journal}: {moves} transactions of {WRITERS} writers beside {READERS} readers, {} looks",
        looks.load(Ordering::Relaxed)
    );
    drop(keeper);
    // Everything is closed: the image can be opened again, and holds the same content.
    let again = open(&image);
    let sum: i64 = value(&again, "SELECT sum(amount) FROM account").unwrap();
    assert_eq!(sum, 100 * ACCOUNTS as i64);
    drop(again);
    remove(&image);
}

#[test]
fn threads_share_a_database_with_a_rollback_journal() {
    work_together("delete", 41);
}

#[test]
fn threads_share_a_database_with_a_persistent_journal() {
    work_together("persist", 42);
}

#[test]
fn threads_share_a_database_with_a_log() {
    work_together("wal", 43);
}

#[test]
fn a_writer_waits_for_readers_and_a_reader_of_a_log_keeps_its_view() {
    insert("waiting", formatted(512, 44));
    let (one, two) = (
        connect("bank.db", "waiting").unwrap(),
        connect("bank.db", "waiting").unwrap(),
    );
    // rusqlite waits five seconds by default.
    two.busy_timeout(Duration::ZERO).unwrap();
    one.busy_timeout(Duration::ZERO).unwrap();
    one.execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (1)")
        .unwrap();
    one.execute_batch("BEGIN; SELECT * FROM t").unwrap();
    let seen: i64 = value(&one, "SELECT a FROM t").unwrap();
    let error = two.execute_batch("UPDATE t SET a = 2").unwrap_err();
    assert_eq!((seen, code_of(&error)), (1, ffi::SQLITE_BUSY));
    one.execute_batch("COMMIT").unwrap();
    two.execute_batch("UPDATE t SET a = 2").unwrap();

    let _: String = value(&one, "PRAGMA journal_mode = wal").unwrap();
    one.execute_batch("BEGIN").unwrap();
    let before: i64 = value(&one, "SELECT a FROM t").unwrap();
    two.execute_batch("UPDATE t SET a = 3").unwrap();
    let still: i64 = value(&one, "SELECT a FROM t").unwrap();
    let error = one.execute_batch("UPDATE t SET a = 4").unwrap_err();
    assert_eq!(
        (before, still, code_of(&error) & 0xff),
        (2, 2, ffi::SQLITE_BUSY)
    );
    // A checkpoint proceeds as far as the reader allows.
    let busy: i64 = value(&two, "PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    assert_eq!(busy, 1);
    one.execute_batch("COMMIT").unwrap();
    let busy: i64 = value(&two, "PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let after: i64 = value(&one, "SELECT a FROM t").unwrap();
    assert_eq!((busy, after), (0, 3));
    drop((one, two));
    remove("waiting");
}
