//! Tests logs that begin again: the file is truncated while connections have it open, and every connection must notice.

use std::time::Duration;

use crate::common::script::BLOCKS;
use crate::common::{connect, formatted, insert, remove, uri, value};
use base::sim::{Keep, Random};
use rusqlite::{Connection, ffi};

const ROWS: i64 = 40;

fn open(image: &str) -> Connection {
    let connection = connect("plant.db", image).expect("opens");
    connection.busy_timeout(Duration::ZERO).unwrap();
    connection
        .execute_batch(
            "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 3; PRAGMA cache_size = 0",
        )
        .unwrap();
    connection
}

fn sum(connection: &Connection) -> i64 {
    value(connection, "SELECT sum(amount) FROM t").expect("reads")
}

/// Makes SQLite keep the log when the last connection is closed.
fn keep_log(connection: &Connection) {
    let mut keep: std::ffi::c_int = 1;
    // SAFETY: the connection is open, and the operation takes a number.
    let done = unsafe {
        ffi::sqlite3_file_control(
            connection.handle(),
            c"main".as_ptr(),
            ffi::SQLITE_FCNTL_PERSIST_WAL,
            (&raw mut keep).cast(),
        )
    };
    assert_eq!(done, ffi::SQLITE_OK);
}

/// Connections read, write, run checkpoints, open and close in random order. Each reader sees the state at its begin;
/// at any time a cut or a kill keeps all committed data.
#[test]
fn readers_keep_their_view_and_cuts_lose_nothing_while_logs_begin_again() {
    let mut restarts = 0;
    let mut states = 0;
    for seed in 0..12 {
        let image = format!("restarts-{seed}");
        let cut_image = format!("restarts-cut-{seed}");
        let machine = insert(&image, formatted(BLOCKS, 80 + seed as u8));
        let mut random = Random::new(seed);
        let mut connections: Vec<_> = (0..3).map(|_| open(&image)).collect();
        let mode: String = value(&connections[0], "PRAGMA journal_mode = wal").unwrap();
        assert_eq!(mode, "wal");
        connections[0]
            .execute_batch(&format!(
                "CREATE TABLE t (id INTEGER PRIMARY KEY, amount INTEGER, padding BLOB);
                 WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})
                 INSERT INTO t SELECT i, i, zeroblob(500) FROM n"
            ))
            .unwrap();
        let mut committed = sum(&connections[0]);
        let mut views: Vec<Option<i64>> = vec![None; connections.len()];
        for step in 0..250 {
            let which = random.index(connections.len());
            let connection = &connections[which];
            match (random.below(10), views[which]) {
                (0..=3, None) => {
                    let id = 1 + random.below(ROWS as u64);
                    let sql = format!("UPDATE t SET amount = amount + 1 WHERE id = {id}");
                    connection.execute_batch(&sql).expect("commits");
                    committed += 1;
                }
                (4, None) => {
                    connection.execute_batch("BEGIN").unwrap();
                    assert_eq!(sum(connection), committed, "seed {seed}, step {step}");
                    views[which] = Some(committed);
                }
                (5, _) => {
                    let modes = ["PASSIVE", "FULL", "RESTART", "TRUNCATE"];
                    let mode = modes[random.index(modes.len())];
                    // The checkpoint may be busy, or not possible within a transaction.
                    let done: Result<i64, _> =
                        value(connection, &format!("PRAGMA wal_checkpoint({mode})"));
                    restarts += u32::from(done == Ok(0));
                }
                (6, _) => {
                    views[which] = None;
                    // The last connection to close runs a checkpoint, and deletes the log or leaves it.
                    if random.coin() {
                        keep_log(connection);
                    }
                    if random.below(4) == 0 {
                        connections.clear();
                        views.fill(None);
                        connections.extend((0..views.len()).map(|_| open(&image)));
                    } else {
                        connections[which] = open(&image);
                    }
                }
                (_, Some(view)) => {
                    assert_eq!(sum(connection), view, "seed {seed}, step {step}");
                    if random.below(3) == 0 {
                        connection.execute_batch("COMMIT").unwrap();
                        views[which] = None;
                    }
                }
                (_, None) => assert_eq!(sum(connection), committed, "seed {seed}, step {step}"),
            }
            if random.below(5) == 0 {
                let device = machine.lock().unwrap().device.clone();
                for cut in [
                    device.crash_image(&|_| Keep::Whole),
                    device.crash_image(&|_| Keep::Lost),
                    device.crash_image_random(random.next_u64()),
                ] {
                    insert(&cut_image, cut);
                    let uri = uri("plant.db", &cut_image).replace("keelsim", "keelsimother");
                    let connection = Connection::open(uri).unwrap();
                    let found = sum(&connection);
                    let check: String = value(&connection, "PRAGMA integrity_check").unwrap();
                    assert_eq!(check, "ok", "seed {seed}, step {step}: after a cut");
                    drop(connection);
                    remove(&cut_image);
                    assert_eq!(found, committed, "seed {seed}, step {step}: after a cut");
                    states += 1;
                }
            }
        }
        drop(connections);
        let connection = open(&image);
        let check: String = value(&connection, "PRAGMA integrity_check").unwrap();
        assert_eq!((check.as_str(), sum(&connection)), ("ok", committed));
        drop(connection);
        remove(&image);
    }
    assert!(restarts > 50, "only {restarts} checkpoints were complete");
    println!(
        "logs that begin again: {restarts} complete checkpoints, {states} states after cuts judged"
    );
}
