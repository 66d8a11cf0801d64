//! Tests which files may be open at the same time: names, kinds of files, shared caches, released images.

use crate::common::{code_of, connect, formatted, insert, remove, uri, value};
use base::sim::Keep;
use rusqlite::{Connection, OpenFlags, ffi};

/// Connects through another VFS, which does not know the first one's open images, as another process would.
fn connect_from_outside(database: &str, image: &str) -> rusqlite::Result<Connection> {
    let uri = uri(database, image).replace("keelsim", "keelsimother");
    Connection::open_with_flags(uri, OpenFlags::default())
}

#[test]
fn an_image_is_given_back_when_its_last_connection_is_closed_and_when_none_was_made() {
    let image = "given-back";
    insert(image, formatted(512, 90));
    let is_free = || {
        let other = connect_from_outside("other.db", image);
        other.is_ok()
    };
    // Both openings are refused: the first name is too long, the second has a slash.
    connect(&"n".repeat(60), image).unwrap_err();
    assert!(is_free());
    connect("a/b", image).unwrap_err();
    assert!(is_free());
    // The database is not there and must not be created.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_URI;
    let error = Connection::open_with_flags(uri("absent.db", image), flags).unwrap_err();
    assert_eq!(code_of(&error), ffi::SQLITE_CANTOPEN);
    assert!(is_free());
    let connection = connect("plant.db", image).unwrap();
    let error = connect_from_outside("other.db", image).unwrap_err();
    assert_eq!(code_of(&error) & 0xff, ffi::SQLITE_BUSY, "{error}");
    drop(connection);
    assert!(is_free());
    remove(image);
}

#[test]
fn connections_that_share_a_cache_share_the_image_and_give_it_back() {
    let image = "shared-cache";
    insert(image, formatted(512, 91));
    let shared = format!("{}&cache=shared", uri("plant.db", image));
    let open = || Connection::open_with_flags(&shared, OpenFlags::default()).unwrap();
    let one = open();
    one.execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (7)")
        .unwrap();
    // SQLite asks for the full name, but then opens no file.
    let two = open();
    let a: i64 = value(&two, "SELECT a FROM t").unwrap();
    assert_eq!(a, 7);
    drop(one);
    two.execute_batch("UPDATE t SET a = 8").unwrap();
    // The last file is opened before the last full name is requested.
    let three = open();
    let a: i64 = value(&three, "SELECT a FROM t").unwrap();
    assert_eq!(a, 8);
    drop((two, three));
    let outside = connect_from_outside("plant.db", image).unwrap();
    let a: i64 = value(&outside, "SELECT a FROM t").unwrap();
    assert_eq!(a, 8);
    drop(outside);
    remove(image);
}

#[test]
fn names_may_be_anything_that_a_store_takes() {
    let image = "odd-names";
    insert(image, formatted(1024, 92));
    let names = [
        ("plant%20one.db", "plant one.db"),
        ("Anlage-%C3%BC.db", "Anlage-ü.db"),
        ("a%3fb%26c%23d%25.db", "a?b&c#d%.db"),
        ("%27quoted%27%22;--", "'quoted'\";--"),
        ("no-ending", "no-ending"),
        ("-journal.db", "-journal.db"),
        ("x.db-wal2", "x.db-wal2"),
        (".hidden", ".hidden"),
    ];
    for (number, (written, _)) in names.iter().enumerate() {
        for journal in ["delete", "wal"] {
            let connection = connect(written, image).unwrap();
            let mode: String =
                value(&connection, &format!("PRAGMA journal_mode = {journal}")).unwrap();
            assert_eq!(mode, journal, "{written}");
            connection
                .execute_batch(&format!(
                    "CREATE TABLE IF NOT EXISTS t (a); INSERT INTO t VALUES ({number})"
                ))
                .unwrap();
        }
    }
    for (number, (written, name)) in names.iter().enumerate() {
        let connection = connect(written, image).unwrap();
        let sum: i64 = value(&connection, "SELECT sum(a) FROM t").unwrap();
        assert_eq!(sum, 2 * number as i64, "{written}");
        let file: String = value(&connection, "SELECT file FROM pragma_database_list").unwrap();
        assert_eq!(file, format!("{}/{name}", "5c".repeat(16)));
    }
    // An empty name is a temporary database, and uses no space of the image.
    let connection = connect("", image).unwrap();
    connection.execute_batch("CREATE TABLE t (a)").unwrap();
    for refused in ["..", ".", "a%2fb", "%ff", "/absolute"] {
        let error = connect(refused, image).unwrap_err();
        assert_eq!(code_of(&error), ffi::SQLITE_CANTOPEN, "{refused}: {error}");
    }
    drop(connection);
    remove(image);
}

/// SQLite would treat it as the journal or log of another database, and destroy it.
#[test]
fn no_database_is_made_with_the_name_of_a_journal() {
    let image = "journal-names";
    insert(image, formatted(512, 98));
    for ending in ["-journal", "-wal", "-shm"] {
        let name = format!("plant.db{ending}");
        let error = connect(&name, image)
            .and_then(|database| database.execute_batch("CREATE TABLE t (a)"))
            .unwrap_err();
        assert_eq!(code_of(&error), ffi::SQLITE_CANTOPEN, "{name}: {error}");
        let connection = connect("plant.db", image).unwrap();
        let error = connection
            .execute("ATTACH ?1 AS other", [uri(&name, image)])
            .unwrap_err();
        assert_eq!(
            code_of(&error) & 0xff,
            ffi::SQLITE_CANTOPEN,
            "{name}: {error}"
        );
    }
    remove(image);
}

/// A connection opens another connection's journal as a database: it would be written by different rules.
#[test]
fn a_journal_in_use_is_no_database() {
    let image = "journal-as-database";
    insert(image, formatted(512, 93));
    let connection = connect("plant.db", image).unwrap();
    connection
        .execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (1); BEGIN; UPDATE t SET a = 2")
        .unwrap();
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_URI;
    let open = || Connection::open_with_flags(uri("plant.db-journal", image), flags);
    let other = open().and_then(|other| other.execute_batch("CREATE TABLE t (a)"));
    assert_eq!(code_of(&other.unwrap_err()), ffi::SQLITE_CANTOPEN);
    connection.execute_batch("COMMIT").unwrap();
    // In the opposite order, with a journal that stays, the transaction is refused and leaves nothing.
    let mode: String = value(&connection, "PRAGMA journal_mode = persist").unwrap();
    assert_eq!(mode, "persist");
    connection
        .execute_batch("PRAGMA cache_spill = 5; PRAGMA cache_size = 5; CREATE TABLE big (raw); BEGIN;
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60)
            INSERT INTO big SELECT zeroblob(3000) FROM n; COMMIT; UPDATE big SET raw = zeroblob(2999)")
        .unwrap();
    drop(connection);
    let other = open().unwrap();
    let connection = connect("plant.db", image).unwrap();
    let error = connection.execute_batch("UPDATE t SET a = 3").unwrap_err();
    assert_eq!(code_of(&error) & 0xff, ffi::SQLITE_CANTOPEN, "{error}");
    drop(other);
    connection.execute_batch("UPDATE t SET a = 4").unwrap();
    let a: i64 = value(&connection, "SELECT a FROM t").unwrap();
    assert_eq!(a, 4);
    drop(connection);
    remove(image);
}

#[test]
fn an_unfinished_transaction_on_a_read_only_medium_is_reported() {
    let image = "unfinished";
    let machine = insert(image, formatted(512, 94));
    let connection = connect("plant.db", image).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE t (a, b); INSERT INTO t VALUES (7, 0);
             PRAGMA cache_size = 5; PRAGMA cache_spill = 5; BEGIN; UPDATE t SET a = 8;
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300)
             INSERT INTO t SELECT i, randomblob(1000) FROM n",
        )
        .unwrap();
    let device = machine.lock().unwrap().device.crash_image(&|_| Keep::Whole);
    drop(connection);
    let machine = insert(image, device);
    machine.lock().unwrap().refuses_writing = true;
    let connection = connect("plant.db", image).unwrap();
    let error = value::<i64>(&connection, "SELECT count(*) FROM t").unwrap_err();
    assert_eq!(code_of(&error) & 0xff, ffi::SQLITE_READONLY, "{error}");
    drop(connection);
    machine.lock().unwrap().refuses_writing = false;
    let connection = connect("plant.db", image).unwrap();
    let (count, a): (i64, i64) = connection
        .query_row("SELECT count(*), max(a) FROM t", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .unwrap();
    assert_eq!((count, a), (1, 7));
    drop(connection);
    remove(image);
}

/// A connection in exclusive locking mode ends its journal with zeros and keeps it open. When it leaves that mode,
/// SQLite deletes the journal at the end of a transaction that changes nothing.
#[test]
fn a_journal_that_never_came_to_the_store_can_be_deleted() {
    let image = "never-came";
    insert(image, formatted(512, 97));
    let connection = connect("plant.db", image).unwrap();
    connection
        .execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (1)")
        .unwrap();
    for end in ["COMMIT", "ROLLBACK"] {
        let mode: String = value(&connection, "PRAGMA locking_mode = exclusive").unwrap();
        assert_eq!(mode, "exclusive");
        connection.execute_batch("UPDATE t SET a = a + 1").unwrap();
        let mode: String = value(&connection, "PRAGMA locking_mode = normal").unwrap();
        assert_eq!(mode, "normal");
        connection
            .execute_batch(&format!("BEGIN; DELETE FROM t WHERE a = 55; {end}"))
            .unwrap();
    }
    let a: i64 = value(&connection, "SELECT a FROM t").unwrap();
    assert_eq!(a, 3);
    drop(connection);
    remove(image);
}

/// Two databases of one image are written in turn, each in the middle of the other's transaction.
#[test]
fn transactions_of_two_databases_side_by_side_go_to_the_store_in_order() {
    for (journal, identity) in [("delete", 95), ("persist", 96)] {
        let image = format!("side-by-side-{journal}");
        let machine = insert(&image, formatted(1024, identity));
        let connections = ["one.db", "two.db"].map(|name| {
            let connection = connect(name, &image).unwrap();
            let _: String =
                value(&connection, &format!("PRAGMA journal_mode = {journal}")).unwrap();
            connection
                .execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (0)")
                .unwrap();
            connection
        });
        machine.lock().unwrap().records = true;
        let mut sums = vec![(0, 0)];
        for turn in 1..6 {
            for connection in &connections {
                connection
                    .execute_batch(&format!("BEGIN; UPDATE t SET a = {turn}"))
                    .unwrap();
            }
            connections[0].execute_batch("COMMIT").unwrap();
            machine.lock().unwrap().acknowledged += 1;
            sums.push((turn, turn - 1));
            if turn == 3 {
                connections[1]
                    .execute_batch("ROLLBACK; UPDATE t SET a = 3")
                    .unwrap();
            } else {
                connections[1].execute_batch("COMMIT").unwrap();
            }
            machine.lock().unwrap().acknowledged += 1;
            sums.push((turn, turn));
        }
        drop(connections);
        let moments = std::mem::take(&mut machine.lock().unwrap().moments);
        for moment in &moments {
            for device in moment.device.crash_images_all_subsets() {
                insert(&image, device);
                let [one, two] = ["one.db", "two.db"].map(|name| {
                    let connection = connect(name, &image).unwrap();
                    value::<i64>(&connection, "SELECT a FROM t").unwrap()
                });
                let known = &sums[moment.acknowledged..(moment.acknowledged + 2).min(sums.len())];
                assert!(
                    known.contains(&(one, two)),
                    "{journal}: {one}, {two} of {known:?}"
                );
            }
        }
        remove(&image);
    }
}
