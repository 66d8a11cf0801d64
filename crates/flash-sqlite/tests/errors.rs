//! Tests that SQLite gets an error, and never wrong rows, when the device fails, decays or is full, and that no
//! committed data is lost.

use crate::common;
use crate::common::script::{SCRIPT, Scenario, dump, scenario};
use crate::common::{Folder, Machine, code_of, connect, formatted, insert, remove, uri, value};
use base::block::BlockDevice;
use base::sim::Keep;
use rusqlite::{Connection, ffi};

const IOERR: i32 = 10;
const IOERR_DATA: i32 = IOERR | 32 << 8;

/// Runs the script until a transaction fails. Returns the number of acknowledged transactions and the error.
fn run(
    scenario: &Scenario,
    connection: &Connection,
    models: &[String],
) -> (usize, Option<rusqlite::Error>) {
    for (number, sql) in SCRIPT.iter().enumerate() {
        if let Err(error) = connection.execute_batch(&scenario.statements(sql)) {
            // The connection can still read the committed data, or reports that it cannot.
            match dump(connection, scenario.schemas()) {
                Ok(text) => assert!(text == models[number] || text == models[number + 1]),
                Err(error) => assert_eq!(code_of(&error) & 0xff, IOERR, "{error}"),
            }
            return (number, Some(error));
        }
    }
    (SCRIPT.len(), None)
}

fn fail_at_each_request(scenario: &Scenario, step: usize) {
    let device = formatted(common::script::BLOCKS, scenario.identity);
    let image = format!("failing-{}", scenario.name);
    let set_up = |device| {
        let machine = insert(&image, device);
        let connection = scenario.prepare(&image).expect("opens");
        connection
            .execute_batch("PRAGMA cache_size = 20")
            .expect("sets");
        machine.lock().unwrap().requests = 0;
        (machine, connection)
    };
    // One run without a failure shows the state after each transaction and the number of requests.
    let (machine, connection) = set_up(device.clone());
    let mut models = vec![dump(&connection, scenario.schemas()).unwrap()];
    for sql in SCRIPT {
        connection
            .execute_batch(&scenario.statements(sql))
            .expect("commits");
        models.push(dump(&connection, scenario.schemas()).unwrap());
    }
    let requests = machine.lock().unwrap().requests;
    drop(connection);
    let mut failures = 0;
    for left in (0..requests).step_by(step) {
        let (machine, connection) = set_up(device.clone());
        machine.lock().unwrap().requests_left = Some(left);
        let (acknowledged, error) = run(scenario, &connection, &models);
        if let Some(error) = error {
            failures += 1;
            assert_eq!(
                code_of(&error) & 0xff,
                IOERR,
                "after {left} requests: {error}"
            );
        }
        drop(connection);
        let Machine { device, .. } = &*machine.lock().unwrap();
        let cut = device.crash_image_random(left);
        scenario
            .judge(&image, cut, acknowledged, &models)
            .unwrap_or_else(|what| panic!("device failed after {left} requests: {what}"));
    }
    assert!(failures > 20, "only {failures} failures reached SQLite");
    println!(
        "failing device, {}: {failures} failures told to SQLite, each judged after a power cut",
        scenario.name
    );
}

#[test]
fn a_failing_device_is_an_io_error_with_a_rollback_journal() {
    fail_at_each_request(&scenario("failing-delete", "delete", 21), 3);
}

#[test]
fn a_failing_device_is_an_io_error_with_a_log() {
    fail_at_each_request(&scenario("failing-wal", "wal", 22), 3);
}

#[test]
fn a_decayed_block_is_an_error_and_never_wrong_rows() {
    let image = "decaying";
    let machine = insert(image, formatted(512, 23));
    let connection = connect("plant.db", image).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE reading (id INTEGER PRIMARY KEY, raw BLOB);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40)
             INSERT INTO reading SELECT i, zeroblob(3000) FROM n",
        )
        .unwrap();
    let digest = "SELECT group_concat(id || ':' || length(raw) || ':' || quote(raw)) FROM reading";
    let right: String = value(&connection, digest).unwrap();
    drop(connection);
    let device = machine.lock().unwrap().device.clone();
    let mut told = 0;
    let mut other = 0;
    for block in 0..512 {
        let mut rotten = device.clone();
        rotten.inject_bit_rot(block, 8 * 2000 + 3);
        insert(image, rotten);
        let read =
            connect("plant.db", image).and_then(|connection| value::<String>(&connection, digest));
        match read {
            Ok(text) => assert_eq!(text, right, "block {block}"),
            Err(error) if code_of(&error) == IOERR_DATA => told += 1,
            Err(_) => other += 1,
        }
    }
    assert!(told >= 30, "only {told} of 512 blocks hold rows");
    assert!(other <= 2, "{other} errors of another kind");
    println!("bit rot: {told} blocks of rows are reported as damaged, the others do no harm");
    remove(image);
}

#[test]
fn a_full_store_is_a_full_disk_and_loses_nothing() {
    for (journal, identity) in [("delete", 24), ("wal", 25)] {
        let image = format!("full-{journal}");
        insert(&image, formatted(220, identity));
        let connection = connect("plant.db", &image).unwrap();
        let _: String = value(&connection, &format!("PRAGMA journal_mode = {journal}")).unwrap();
        connection
            .execute_batch("PRAGMA wal_autocheckpoint = 20; CREATE TABLE reading (id INTEGER PRIMARY KEY, raw BLOB)")
            .unwrap();
        let mut committed = 0;
        let error = loop {
            match connection.execute("INSERT INTO reading (raw) VALUES (randomblob(5000))", []) {
                Ok(_) => committed += 1,
                Err(error) => break error,
            }
            assert!(committed < 1000, "{journal}: never full");
        };
        assert_eq!(
            code_of(&error) & 0xff,
            ffi::SQLITE_FULL,
            "{journal}: {error}"
        );
        assert!(committed > 10, "{journal}: only {committed} rows fit");
        let count: i64 = value(&connection, "SELECT count(*) FROM reading").unwrap();
        assert_eq!(count, committed, "{journal}");
        // This transaction overflows the cache, so the database is changed before the store is full.
        let overflow = "PRAGMA cache_spill = 5; PRAGMA cache_size = 5; BEGIN;
            UPDATE reading SET raw = zeroblob(5000);
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)
            INSERT INTO reading (raw) SELECT zeroblob(5000) FROM n";
        let error = connection.execute_batch(overflow).unwrap_err();
        assert_eq!(
            code_of(&error) & 0xff,
            ffi::SQLITE_FULL,
            "{journal}: {error}"
        );
        // SQLite may have rolled back by itself.
        let _ = connection.execute_batch("ROLLBACK");
        let (count, zeros): (i64, i64) = connection
            .query_row(
                "SELECT count(*), sum(raw = zeroblob(5000)) FROM reading",
                [],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .unwrap();
        assert_eq!((count, zeros), (committed, 0), "{journal}");
        drop(connection);
        let connection = connect("plant.db", &image).unwrap();
        let check: String = value(&connection, "PRAGMA integrity_check").unwrap();
        assert_eq!(check, "ok", "{journal}");
        let count: i64 = value(&connection, "SELECT count(*) FROM reading").unwrap();
        assert_eq!(count, committed, "{journal}");
        drop(connection);
        remove(&image);
    }
}

/// A transaction that changes three blocks at most needs no journal, and so no room.
#[test]
fn small_deletes_go_on_in_a_full_store_with_a_rollback_journal() {
    let image = "full-small";
    insert(image, formatted(220, 54));
    let connection = connect("plant.db", image).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE reading (id INTEGER PRIMARY KEY, raw BLOB);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100)
             INSERT INTO reading SELECT i, zeroblob(100) FROM n",
        )
        .unwrap();
    for bytes in [5000, 100, 1] {
        let insert = format!("INSERT INTO reading (raw) VALUES (randomblob({bytes}))");
        let error = (0..10_000).find_map(|_| connection.execute(&insert, []).err());
        let code = error.map(|error| code_of(&error) & 0xff);
        assert_eq!(code, Some(ffi::SQLITE_FULL), "{bytes}");
    }
    let count: i64 = value(&connection, "SELECT count(*) FROM reading").unwrap();
    for id in 1..=10 {
        connection
            .execute("DELETE FROM reading WHERE id = ?1", [id])
            .unwrap_or_else(|error| panic!("row {id}: {error}"));
    }
    let left: i64 = value(&connection, "SELECT count(*) FROM reading").unwrap();
    assert_eq!(left, count - 10);
    drop(connection);
    remove(image);
}

/// SQLite requests a log even if it does not exist any more.
#[test]
fn a_cleanly_closed_database_with_a_log_can_be_read_where_nothing_can_be_written() {
    let image = "readable-closed";
    let machine = insert(image, formatted(512, 55));
    let connection = connect("plant.db", image).unwrap();
    let _: String = value(&connection, "PRAGMA journal_mode = wal").unwrap();
    connection
        .execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (7)")
        .unwrap();
    drop(connection);
    let device = machine.lock().unwrap().device.clone();
    let machine = insert(image, device);
    let before = machine.lock().unwrap().device.counters().writes;
    machine.lock().unwrap().refuses_writing = true;
    for _ in 0..2 {
        let [one, two] = [(); 2].map(|()| connect("plant.db", image).unwrap());
        for connection in [&one, &two] {
            let a: i64 = value(connection, "SELECT a FROM t").unwrap();
            assert_eq!(a, 7);
            let error = connection.execute_batch("UPDATE t SET a = 8").unwrap_err();
            assert_eq!(code_of(&error) & 0xff, ffi::SQLITE_READONLY, "{error}");
            let check: String = value(connection, "PRAGMA integrity_check").unwrap();
            assert_eq!(check, "ok");
        }
    }
    let after = machine.lock().unwrap().device.counters().writes;
    assert_eq!(after, before, "wrote");
    remove(image);
}

#[test]
fn names_and_images_that_cannot_be_are_refused() {
    let image = "refusing";
    insert(image, formatted(256, 26));
    let long = "n".repeat(53);
    for (database, image, code) in [
        ("a/b.db", image, ffi::SQLITE_CANTOPEN),
        (long.as_str(), image, ffi::SQLITE_CANTOPEN),
        ("plant.db", "", ffi::SQLITE_CANTOPEN),
        ("plant.db", "no-such-image", ffi::SQLITE_CANTOPEN),
    ] {
        let error = connect(database, image).unwrap_err();
        assert_eq!(code_of(&error), code, "{database} in {image}: {error}");
    }
    insert("empty-device", base::sim::SimDevice::new(64, 1));
    assert_eq!(
        code_of(&connect("plant.db", "empty-device").unwrap_err()),
        ffi::SQLITE_NOTADB
    );
    // A copy of an open store would be mistaken for it.
    let connection = connect(&long[..52], image).unwrap();
    insert("copy", formatted(256, 26));
    assert_eq!(
        code_of(&connect("plant.db", "copy").unwrap_err()),
        ffi::SQLITE_BUSY
    );
    connection.execute_batch("CREATE TABLE t (a)").unwrap();
    drop(connection);
    connect("plant.db", "copy").unwrap();
    for name in [image, "copy", "empty-device"] {
        remove(name);
    }
}

#[test]
fn a_panic_below_is_an_error_above() {
    let machine = insert("panicking", formatted(512, 53));
    let connection = connect("plant.db", "panicking").unwrap();
    connection
        .execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (7)")
        .unwrap();
    machine.lock().unwrap().panics = true;
    let error = connection.execute_batch("UPDATE t SET a = 8").unwrap_err();
    assert_eq!(code_of(&error) & 0xff, IOERR, "{error}");
    // The store is in an unknown state: the image must be closed first.
    let error = connection.execute_batch("UPDATE t SET a = 8").unwrap_err();
    assert_eq!(code_of(&error) & 0xff, IOERR, "{error}");
    drop(connection);
    let connection = connect("plant.db", "panicking").unwrap();
    let a: i64 = value(&connection, "SELECT a FROM t").unwrap();
    assert_eq!(a, 7);
    connection.execute_batch("UPDATE t SET a = 8").unwrap();
    drop(connection);
    remove("panicking");
}

#[test]
fn a_read_only_image_can_be_read() {
    for (journal, identity) in [("delete", 51), ("wal", 52)] {
        let image = format!("readable-{journal}");
        let machine = insert(&image, formatted(512, identity));
        let connection = connect("plant.db", &image).unwrap();
        let _: String = value(&connection, &format!("PRAGMA journal_mode = {journal}")).unwrap();
        connection
            .execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (7)")
            .unwrap();
        // With a log, including one that no checkpoint has emptied, as a power cut leaves it.
        let device = machine.lock().unwrap().device.crash_image(&|_| Keep::Whole);
        drop(connection);
        let machine = insert(&image, device);
        machine.lock().unwrap().refuses_writing = true;
        let connection = connect("plant.db", &image).unwrap();
        let a: i64 = value(&connection, "SELECT a FROM t").unwrap();
        let error = connection
            .execute_batch("INSERT INTO t VALUES (8)")
            .unwrap_err();
        assert_eq!(
            (a, code_of(&error) & 0xff),
            (7, ffi::SQLITE_READONLY),
            "{journal}"
        );
        assert_eq!(
            code_of(
                &connect("new.db", &image)
                    .and_then(|new| new.execute_batch("CREATE TABLE t (a)"))
                    .unwrap_err()
            ) & 0xff,
            ffi::SQLITE_CANTOPEN
        );
        drop(connection);
        let machine = machine.lock().unwrap();
        assert_eq!(
            (machine.requests, machine.device.counters().writes),
            (0, 0),
            "{journal}: wrote"
        );
        drop(machine);
        remove(&image);
    }
}

/// A transaction covers a database in an image and one outside it: it could not be recovered correctly after a power
/// cut.
#[test]
fn a_transaction_beyond_the_image_is_refused_and_leaves_nothing() {
    let folder = Folder::new("beyond");
    let file = format!("file:{}/outside.db", folder.0.display());
    insert("beyond", formatted(512, 27));
    insert("beyond-2", formatted(512, 28));
    let inside = uri("inside.db", "beyond");
    let other = uri("inside.db", "beyond-2");
    for (main, attached) in [(&file, &inside), (&inside, &file), (&inside, &other)] {
        let connection = Connection::open_with_flags(main, rusqlite::OpenFlags::default()).unwrap();
        // rusqlite opens a plain path with the default VFS; an attached one needs `vfs=`.
        let attached = if attached.contains("vfs=") {
            attached.clone()
        } else {
            format!("{attached}?vfs=unix")
        };
        connection
            .execute("ATTACH ?1 AS other", [&attached])
            .unwrap();
        connection
            .execute_batch(
                "PRAGMA main.journal_mode = delete; PRAGMA other.journal_mode = delete;
                 CREATE TABLE IF NOT EXISTS main.t (a); CREATE TABLE IF NOT EXISTS other.t (a);
                 DELETE FROM main.t; DELETE FROM other.t",
            )
            .unwrap();
        let error = connection
            .execute_batch(
                "BEGIN; INSERT INTO main.t VALUES (1); INSERT INTO other.t VALUES (1); COMMIT",
            )
            .unwrap_err();
        assert_eq!(
            code_of(&error) & 0xff,
            IOERR,
            "{main} with {attached}: {error}"
        );
        connection.execute_batch("ROLLBACK").ok();
        // Committed one by one they succeed.
        connection
            .execute_batch("INSERT INTO main.t VALUES (2); INSERT INTO other.t VALUES (2)")
            .unwrap();
        for schema in ["main", "other"] {
            let sum: i64 = value(&connection, &format!("SELECT sum(a) FROM {schema}.t")).unwrap();
            assert_eq!(sum, 2, "{main} with {attached}: {schema}");
        }
    }
}

/// The power is cut while such a transaction is being refused: the journal names a super-journal that is elsewhere.
#[test]
fn a_cut_while_a_transaction_is_refused_rolls_back() {
    let folder = Folder::new("refused");
    let machine = insert("refused", formatted(512, 29));
    let connection = Connection::open(folder.path("outside.db")).unwrap();
    connection
        .execute("ATTACH ?1 AS other", [uri("inside.db", "refused")])
        .unwrap();
    connection
        .execute_batch(
            "CREATE TABLE main.t (a); CREATE TABLE other.t (a); INSERT INTO other.t VALUES (1)",
        )
        .unwrap();
    machine.lock().unwrap().records = true;
    connection
        .execute_batch("BEGIN; INSERT INTO main.t VALUES (2); UPDATE other.t SET a = 2; COMMIT")
        .unwrap_err();
    drop(connection);
    let moments = std::mem::take(&mut machine.lock().unwrap().moments);
    let mut hot = 0;
    for moment in &moments {
        insert("refused", moment.device.crash_image(&|_| Keep::Whole));
        let connection = connect("inside.db", "refused").unwrap();
        let a: i64 = value(&connection, "SELECT a FROM t").unwrap();
        assert_eq!(a, 1);
        hot += 1;
    }
    assert!(hot >= 4, "only {hot} moments");
}
