//! Cuts the power at every device write of a script of transactions that runs through SQLite. After each cut SQLite
//! must open the database and find it intact. Every acknowledged transaction must be there, and the next one completely
//! or not at all.

use std::collections::HashSet;

use crate::common::script::{
    BLOCKS, SCRIPT, Scenario, dump, large_scenario, scenario, small_scenario,
};
use crate::common::{Moment, connect, formatted, insert, remove, uri, value};
use base::sim::{Keep, Random, SimDevice};
use rusqlite::{Connection, OpenFlags};

/// Up to this many unflushed writes every subset is tried.
const SUBSETS_ALL_MAX: usize = 5;

/// Makes SQLite write pages to the database before a transaction ends.
const OVERFLOWING: &str = "PRAGMA cache_size = 5; PRAGMA cache_spill = 5";

/// Maximum number of kills checked in each scenario.
const KILLS_MAX: usize = 60;

/// Number of random images for each cut with more unflushed writes than that.
const SAMPLES: usize = 4;

/// Returns the images that a cut at this moment may leave.
fn images(moment: &Moment, random: &mut Random) -> Vec<SimDevice> {
    let device = &moment.device;
    let mut images = Vec::new();
    let unflushed = device.unflushed_count();
    if unflushed <= SUBSETS_ALL_MAX {
        images.extend(device.crash_images_all_subsets());
    }
    if let Some(last) = unflushed.checked_sub(1) {
        let sector_mask = random.next_u64();
        images.push(device.crash_image(&|index| {
            if index == last {
                Keep::Torn { sector_mask }
            } else {
                Keep::Whole
            }
        }));
    }
    images.extend((0..SAMPLES).map(|_| device.crash_image_random(random.next_u64())));
    images
}

/// Every `n`th of `items`, so that at most `count` remain.
fn selection<T>(items: Vec<T>, count: usize) -> Vec<T> {
    let step = items.len().div_ceil(count).max(1);
    items.into_iter().step_by(step).collect()
}

fn explore(scenario: &Scenario) {
    let recorded = format!("recorded-{}", scenario.name);
    let (models, moments) = scenario.record(&recorded);
    let cuts = moments.len();
    let mut random = Random::new(0x5eed);
    let mut seen = HashSet::new();
    let mut states = Vec::new();
    for moment in &moments {
        for device in images(moment, &mut random) {
            // The same bytes with more acknowledged transactions must be checked separately.
            if seen.insert((device.image_hash(), moment.acknowledged)) {
                states.push((device, moment.acknowledged));
            }
        }
    }
    let found = states.len();
    let image = format!("cut-{}", scenario.name);
    let mut second_cuts = 0;
    let chosen = selection(states, scenario.states_max);
    let judged = chosen.len();
    for (device, acknowledged) in chosen {
        let machine = scenario
            .judge(&image, device, acknowledged, &models)
            .unwrap_or_else(|what| panic!("{what}"));
        // A second cut while the store and SQLite recover, at one random moment.
        let moments = std::mem::take(&mut machine.lock().unwrap().moments);
        if random.coin()
            && let Some(moment) = moments.get(random.index(moments.len().max(1)))
        {
            let device = moment.device.crash_image_random(random.next_u64());
            second_cuts += 1;
            scenario
                .judge(&image, device, acknowledged, &models)
                .unwrap_or_else(|what| panic!("after a second cut: {what}"));
        }
    }
    assert!(judged >= 200, "{}: only {judged} states", scenario.name);
    println!(
        "power cuts through SQLite, {}: {cuts} cuts, {found} distinct states, {judged} of them and \
         {second_cuts} after a second cut opened and judged",
        scenario.name
    );
}

#[test]
fn a_deleted_rollback_journal_survives_power_cuts() {
    explore(&scenario("delete", "delete", 1));
}

#[test]
fn a_truncated_rollback_journal_survives_power_cuts() {
    explore(&scenario("truncate", "truncate", 2));
}

#[test]
fn an_overwritten_rollback_journal_survives_power_cuts() {
    explore(&scenario("persist", "persist", 3));
}

#[test]
fn a_write_ahead_log_survives_power_cuts() {
    explore(&scenario("wal", "wal", 4));
}

/// The transactions change few pages, so they go to the store without their journal.
#[test]
fn small_transactions_without_a_journal_survive_power_cuts() {
    for (name, journal, identity) in [
        ("small delete", "delete", 71),
        ("small truncate", "truncate", 72),
        ("small persist", "persist", 73),
    ] {
        explore(&small_scenario(name, journal, identity));
    }
}

/// The database stays locked between the transactions, and SQLite ends a journal by writing zeros over its head.
#[test]
fn small_transactions_of_an_exclusive_connection_survive_power_cuts() {
    for (name, journal, identity) in [("alone", "delete", 74), ("alone, wal", "wal", 75)] {
        explore(&Scenario {
            pragmas: "PRAGMA locking_mode = exclusive",
            ..small_scenario(name, journal, identity)
        });
    }
}

/// Pages go to the database before the transaction ends, and the journal grows further after them.
#[test]
fn transactions_that_overflow_the_cache_survive_power_cuts() {
    for (name, journal, identity) in [
        ("overflowing", "delete", 76),
        ("overflowing persist", "persist", 77),
    ] {
        explore(&Scenario {
            pragmas: OVERFLOWING,
            ..large_scenario(name, journal, identity)
        });
    }
}

/// A checkpoint follows nearly every transaction, and the log begins again with the next one.
#[test]
fn a_log_that_begins_again_and_again() {
    explore(&small_scenario("restarting", "wal", 78));
}

/// With `FULL` the name of the super-journal is apart from the rest of a journal, with `NORMAL` it follows directly.
#[test]
fn small_transactions_over_two_databases_survive_power_cuts() {
    for (name, synchronous, identity) in [
        ("small, two databases", "FULL", 79),
        ("small, two databases, normal", "NORMAL", 80),
    ] {
        explore(&Scenario {
            two_databases: true,
            synchronous,
            states_max: 600,
            ..small_scenario(name, "delete", identity)
        });
    }
}

#[test]
fn journals_that_are_kept_short_survive_power_cuts() {
    explore(&Scenario {
        pragmas: "PRAGMA journal_size_limit = 4096",
        ..small_scenario("short persist", "persist", 81)
    });
}

#[test]
fn a_transaction_over_two_databases_survives_power_cuts() {
    explore(&Scenario {
        two_databases: true,
        ..scenario("two databases", "delete", 5)
    });
}

/// The process is killed at every device write: its writes are there, the data in its memory is lost. SQLite promises
/// to survive that even without any sync.
#[test]
fn a_kill_is_borne_without_syncs() {
    let exclusive = "PRAGMA locking_mode = exclusive";
    for (name, journal, pragmas, identity) in [
        ("killed-delete", "delete", "", 11),
        ("killed-truncate", "truncate", "", 12),
        ("killed-persist", "persist", "", 13),
        ("killed-wal", "wal", "", 14),
        ("killed-alone", "persist", exclusive, 18),
        ("killed-alone-wal", "wal", exclusive, 19),
        ("killed-overflowing", "delete", OVERFLOWING, 20),
    ] {
        for scenario in [
            scenario(name, journal, identity),
            small_scenario(name, journal, identity),
            large_scenario(name, journal, identity),
        ] {
            let scenario = Scenario {
                synchronous: "OFF",
                pragmas,
                ..scenario
            };
            let (models, moments) = scenario.record(name);
            let kills = moments.len();
            for moment in selection(moments, KILLS_MAX) {
                let device = moment.device.crash_image(&|_| Keep::Whole);
                scenario
                    .judge(name, device, moment.acknowledged, &models)
                    .unwrap_or_else(|what| panic!("{what}"));
            }
            println!(
                "kills of SQLite without syncs, {name}: {kills}, up to {KILLS_MAX} of them judged"
            );
        }
    }
}

/// The same while a statement still reads, so that no file is closed and no lock is released completely.
#[test]
fn a_commit_beside_a_reader_is_in_the_store_when_it_returns() {
    for (journal, identity) in [("truncate", 15), ("persist", 16), ("wal", 17)] {
        let image = format!("reading-{journal}");
        let scenario = Scenario {
            synchronous: "OFF",
            ..scenario("reading", journal, identity)
        };
        let machine = insert(&image, formatted(BLOCKS, identity));
        let connection = scenario.prepare(&image).expect("opens");
        connection
            .execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (1), (2), (3)")
            .expect("commits");
        let mut statement = connection.prepare("SELECT a FROM t").expect("prepares");
        let mut rows = statement.query([]).expect("begins");
        rows.next().expect("reads").expect("has a row");
        connection
            .execute("UPDATE t SET a = a + 10", [])
            .expect("commits");
        let device = machine.lock().unwrap().device.crash_image(&|_| Keep::Whole);
        drop(rows);
        drop(statement);
        drop(connection);
        insert(&image, device);
        let connection = scenario.open(&image).expect("opens");
        let sum: i64 = value(&connection, "SELECT sum(a) FROM t").expect("reads");
        assert_eq!(sum, 36, "{journal}");
        drop(connection);
        remove(&image);
    }
}

/// After each commit nothing of it is only in memory: it survives a power cut with syncs, and a kill without them. This
/// also holds without a journal whose end would put the pages into the store, and while the database stays locked.
#[test]
fn committed_data_is_in_the_store_in_every_mode() {
    let image = "durable";
    let machine = insert(image, formatted(BLOCKS, 85));
    let connection = connect("plant.db", image).expect("opens");
    connection
        .execute_batch(
            "CREATE TABLE t (a, b); INSERT INTO t VALUES (0, 0); INSERT INTO t VALUES (1, zeroblob(20000))",
        )
        .expect("commits");
    let modes = [
        "delete", "truncate", "persist", "memory", "off", "wal", "delete",
    ];
    let mut a = 0;
    for (locking, synchronous, keep) in [
        ("normal", "FULL", Keep::Lost),
        ("normal", "OFF", Keep::Whole),
        ("exclusive", "FULL", Keep::Lost),
        ("exclusive", "OFF", Keep::Whole),
    ] {
        connection
            .execute_batch(&format!(
                "PRAGMA locking_mode = {locking}; PRAGMA synchronous = {synchronous}"
            ))
            .expect("sets");
        for journal in modes {
            let mode: String =
                value(&connection, &format!("PRAGMA journal_mode = {journal}")).expect("sets");
            assert_eq!(mode, journal);
            for sql in [
                "UPDATE t SET a = a + 1 WHERE b = 0",
                "UPDATE t SET a = a + 1 WHERE b = 0; UPDATE t SET b = randomblob(20000) WHERE b <> 0",
                "UPDATE t SET a = a + 1 WHERE b = 0; INSERT INTO t VALUES (1, zeroblob(2000))",
            ] {
                connection
                    .execute_batch(&format!("BEGIN; {sql}; COMMIT"))
                    .expect("commits");
                a += 1;
                let device = machine.lock().unwrap().device.crash_image(&|_| keep);
                insert("durable-cut", device);
                let uri = uri("plant.db", "durable-cut").replace("keelsim", "keelsimother");
                let cut = Connection::open(uri).expect("opens");
                let found: i64 =
                    value(&cut, "SELECT a FROM t WHERE typeof(b) = 'integer'").expect("reads");
                assert_eq!(found, a, "{locking}, {synchronous}, {journal}: {sql}");
                let check: String = value(&cut, "PRAGMA integrity_check").expect("reads");
                assert_eq!(check, "ok", "{locking}, {synchronous}, {journal}: {sql}");
            }
        }
    }
    drop(connection);
    remove(image);
    remove("durable-cut");
}

#[test]
fn the_judge_notices_a_device_that_lies_about_flushes() {
    let scenario = scenario("lying", "delete", 6);
    let machine = insert("lying", formatted(BLOCKS, scenario.identity));
    let connection = scenario.prepare("lying").expect("opens");
    let mut models = vec![dump(&connection, scenario.schemas()).expect("dumps")];
    machine.lock().unwrap().device.set_ignore_flush(true);
    for sql in SCRIPT {
        connection
            .execute_batch(&scenario.statements(sql))
            .expect("commits");
        models.push(dump(&connection, scenario.schemas()).expect("dumps"));
    }
    let device = machine.lock().unwrap().device.crash_image(&|_| Keep::Lost);
    drop(connection);
    let found = scenario.judge("lying", device.clone(), SCRIPT.len(), &models);
    assert!(found.is_err(), "a lost transaction goes unnoticed");
    insert("lying", device);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_URI;
    assert!(Connection::open_with_flags(uri("nothing.db", "lying"), flags).is_err());
    remove("lying");
}
