//! A script of transactions, run through SQLite on a simulated image, and the check of what is left of it.

use base::sim::SimDevice;
use rusqlite::Connection;

use super::{Moment, Shared, connect, formatted, insert, remove, uri, value};

/// Blocks of the simulated device.
pub const BLOCKS: u64 = 1024;

/// Maximum number of states tried in each journal mode; from more, an even selection is taken.
pub const STATES_MAX: usize = 2500;

/// Transactions of the script. Each is a separate commit; a rollback must leave nothing.
pub const SCRIPT: &[&str] = &[
    "CREATE TABLE reading (id INTEGER PRIMARY KEY, sensor TEXT, value REAL, raw BLOB);
     CREATE INDEX by_sensor ON reading (sensor, value)",
    "INSERT INTO reading VALUES (1, 'kitchen', 21.5, zeroblob(100)), (2, 'attic', 17, zeroblob(10))",
    "INSERT INTO reading VALUES (3, 'cellar', 12.25, printf('%.*c', 9000, 'c'))",
    "UPDATE reading SET value = value + 1, sensor = sensor || '-north'",
    "WITH RECURSIVE n(i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n WHERE i < 60)
     INSERT INTO reading SELECT i, 'sensor-' || (i % 7), i * 0.5, printf('%d%.*c', i, 150, 'n') FROM n",
    "DELETE FROM reading WHERE id % 3 = 0",
    "CREATE TABLE event (at INTEGER, what TEXT); INSERT INTO event VALUES (1, 'moved')",
    "UPDATE reading SET raw = printf('%d%.*c', id, 300, 'u') WHERE id < 30",
    "DELETE FROM reading WHERE id > 20",
    "INSERT INTO event SELECT id, sensor FROM reading",
];

/// Many transactions that change few pages: most are small enough for the store to take them without a journal, some
/// are not. The database grows and shrinks between them.
pub const SMALL_SCRIPT: &[&str] = &[
    "CREATE TABLE reading (id INTEGER PRIMARY KEY, sensor TEXT, value REAL, raw BLOB)",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 90)
     INSERT INTO reading SELECT i, 'sensor-' || (i % 7), i * 0.5, printf('%d%.*c', i, 150, 'n') FROM n",
    "INSERT INTO reading VALUES (100, 'kitchen', 21.5, zeroblob(100))",
    "UPDATE reading SET value = 7 WHERE id = 100",
    "UPDATE reading SET value = value + 1 WHERE id = 3",
    "UPDATE reading SET value = value + 1 WHERE id IN (2, 80)",
    "INSERT INTO reading VALUES (101, 'attic', 17, zeroblob(1000))",
    "UPDATE reading SET sensor = 'cellar' WHERE id IN (1, 30, 60, 90)",
    "INSERT INTO reading VALUES (102, 'attic', 18, zeroblob(1500))",
    "INSERT INTO reading VALUES (103, 'attic', 19, zeroblob(1500))",
    "DELETE FROM reading WHERE id = 101",
    "UPDATE reading SET raw = zeroblob(1400) WHERE id = 103",
    "INSERT INTO reading VALUES (104, 'roof', 20, zeroblob(9000))",
    "UPDATE reading SET value = value * 2 WHERE id = 50",
    "DELETE FROM reading WHERE id = 104",
    "UPDATE reading SET value = value * 2 WHERE id = 51",
    "CREATE TABLE event (at INTEGER, what TEXT)",
    "INSERT INTO event VALUES (1, 'moved')",
    "INSERT INTO event VALUES (2, 'moved back')",
    "UPDATE event SET what = 'stayed' WHERE at = 2",
    "INSERT INTO event SELECT id, sensor FROM reading WHERE id < 20",
    "UPDATE reading SET value = 0 WHERE id = 90",
    "DELETE FROM event WHERE at = 1",
    "UPDATE reading SET raw = NULL WHERE id BETWEEN 20 AND 70",
    "INSERT INTO event VALUES (3, 'ended')",
];

/// Transactions that change many pages more than once.
pub const LARGE_SCRIPT: &[&str] = &[
    "CREATE TABLE reading (id INTEGER PRIMARY KEY, sensor TEXT, value REAL, raw BLOB);
     CREATE INDEX by_sensor ON reading (sensor, value)",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 150)
     INSERT INTO reading SELECT i, 'sensor-' || (i % 7), i * 0.5, printf('%d%.*c', i, 700, 'n') FROM n",
    "UPDATE reading SET value = value + 1; UPDATE reading SET raw = zeroblob(700) WHERE id % 2 = 0",
    "UPDATE reading SET value = 5 WHERE id = 7",
    "DELETE FROM reading WHERE id % 3 = 0; UPDATE reading SET sensor = sensor || '-north'",
    "INSERT INTO reading SELECT id + 1000, sensor, value, raw FROM reading; UPDATE reading SET value = value * 2",
];

/// Returns the content of all the databases, as text.
pub fn dump(connection: &Connection, schemas: &[&str]) -> rusqlite::Result<String> {
    let mut text = String::new();
    for schema in schemas {
        for table in ["reading", "event"] {
            let known: i64 = value(
                connection,
                &format!("SELECT count(*) FROM {schema}.sqlite_schema WHERE name = '{table}'"),
            )?;
            if known == 0 {
                text += &format!("{schema}: no {table}\n");
                continue;
            }
            let mut statement =
                connection.prepare(&format!("SELECT * FROM {schema}.{table} ORDER BY 1, 2"))?;
            let columns = statement.column_count();
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                for column in 0..columns {
                    text += &format!("{:?} ", row.get_ref(column)?);
                }
                text.push('\n');
            }
        }
    }
    Ok(text)
}

pub struct Scenario {
    pub name: &'static str,
    pub journal: &'static str,
    /// Whether every transaction changes two databases of the image.
    pub two_databases: bool,
    /// Number of pages of the log after which it is checkpointed in the middle of the script.
    pub checkpoint_pages: u32,
    pub states_max: usize,
    /// `FULL`, or `OFF` for kills instead of power cuts.
    pub synchronous: &'static str,
    pub script: &'static [&'static str],
    /// SQL that runs after each opening.
    pub pragmas: &'static str,
    /// Identity of the store: tests run in parallel, and copies of one store cannot be open together.
    pub identity: u8,
}

impl Scenario {
    pub fn schemas(&self) -> &'static [&'static str] {
        if self.two_databases {
            &["main", "other"]
        } else {
            &["main"]
        }
    }

    pub fn open(&self, image: &str) -> rusqlite::Result<Connection> {
        let connection = connect("plant.db", image)?;
        if self.two_databases {
            connection.execute("ATTACH ?1 AS other", [uri("other.db", image)])?;
        }
        Ok(connection)
    }

    pub fn prepare(&self, image: &str) -> rusqlite::Result<Connection> {
        let connection = self.open(image)?;
        for schema in self.schemas() {
            let mode: String = value(
                &connection,
                &format!("PRAGMA {schema}.journal_mode = {}", self.journal),
            )?;
            assert_eq!(mode, self.journal);
            connection.execute_batch(&format!(
                "PRAGMA {schema}.synchronous = {}",
                self.synchronous
            ))?;
        }
        connection.execute_batch(&format!(
            "PRAGMA wal_autocheckpoint = {}; {}",
            self.checkpoint_pages, self.pragmas
        ))?;
        Ok(connection)
    }

    pub fn statements(&self, sql: &str) -> String {
        if self.two_databases {
            let other =
                ["reading", "event", "by_sensor"]
                    .iter()
                    .fold(sql.to_owned(), |sql, table| {
                        sql.replace(&format!(" INTO {table}"), &format!(" INTO other.{table}"))
                            .replace(&format!("UPDATE {table}"), &format!("UPDATE other.{table}"))
                            .replace(&format!("TABLE {table}"), &format!("TABLE other.{table}"))
                            .replace(&format!("INDEX {table}"), &format!("INDEX other.{table}"))
                            .replace(&format!("FROM {table}"), &format!("FROM other.{table}"))
                    });
            format!("BEGIN; {sql}; {other}; COMMIT")
        } else {
            format!("BEGIN; {sql}; COMMIT")
        }
    }

    /// Runs the script. Returns the state after each number of acknowledged transactions, and every moment at which the
    /// power may be cut.
    pub fn record(&self, image: &str) -> (Vec<String>, Vec<Moment>) {
        let machine = insert(image, formatted(BLOCKS, self.identity));
        let connection = self.prepare(image).expect("opens");
        let mut models = vec![dump(&connection, self.schemas()).expect("dumps")];
        machine.lock().unwrap().records = true;
        for sql in self.script {
            connection
                .execute_batch(&self.statements(sql))
                .expect("commits");
            {
                let mut machine = machine.lock().unwrap();
                machine.acknowledged += 1;
                let moment = Moment {
                    device: machine.device.clone(),
                    acknowledged: machine.acknowledged,
                };
                machine.moments.push(moment);
            }
            models.push(dump(&connection, self.schemas()).expect("dumps"));
            connection
                .execute_batch("BEGIN; INSERT INTO reading (sensor) VALUES ('undone'); ROLLBACK")
                .expect("rolls back");
        }
        // Closing checkpoints a log and deletes it, so power cuts must be tested there too.
        drop(connection);
        let moments = std::mem::take(&mut machine.lock().unwrap().moments);
        remove(image);
        (models, moments)
    }

    /// Opens the image after a cut and returns what is wrong with it. Afterwards the machine holds the moments of
    /// recovery.
    pub fn judge(
        &self,
        image: &str,
        device: SimDevice,
        acknowledged: usize,
        models: &[String],
    ) -> Result<Shared, String> {
        let wrong = |what: &str| format!("{} after {acknowledged} transactions: {what}", self.name);
        let machine = insert(image, device);
        machine.lock().unwrap().records = true;
        let connection = self
            .open(image)
            .map_err(|error| wrong(&format!("does not open: {error}")))?;
        for schema in self.schemas() {
            let check: String = value(&connection, &format!("PRAGMA {schema}.integrity_check"))
                .map_err(|error| wrong(&format!("cannot be checked: {error}")))?;
            if check != "ok" {
                return Err(wrong(&check));
            }
        }
        let found = dump(&connection, self.schemas())
            .map_err(|error| wrong(&format!("cannot be read: {error}")))?;
        if found != models[acknowledged] && models.get(acknowledged + 1) != Some(&found) {
            let which = models.iter().position(|model| *model == found);
            return Err(wrong(&format!("holds what transaction {which:?} left")));
        }
        machine.lock().unwrap().records = false;
        if acknowledged > 0 {
            connection
                .execute_batch(
                    &self.statements("INSERT INTO reading (sensor) VALUES ('afterwards')"),
                )
                .map_err(|error| wrong(&format!("takes no transaction: {error}")))?;
        }
        drop(connection);
        remove(image);
        Ok(machine)
    }
}

/// As [`scenario`], with the script of small transactions.
pub fn small_scenario(name: &'static str, journal: &'static str, identity: u8) -> Scenario {
    Scenario {
        script: SMALL_SCRIPT,
        checkpoint_pages: 1,
        ..scenario(name, journal, identity)
    }
}

/// As [`scenario`], with the script of large transactions.
pub fn large_scenario(name: &'static str, journal: &'static str, identity: u8) -> Scenario {
    Scenario {
        script: LARGE_SCRIPT,
        states_max: 500,
        ..scenario(name, journal, identity)
    }
}

/// The script with one database in a journal mode.
pub fn scenario(name: &'static str, journal: &'static str, identity: u8) -> Scenario {
    Scenario {
        name,
        journal,
        two_databases: false,
        checkpoint_pages: 8,
        states_max: STATES_MAX,
        synchronous: "FULL",
        script: SCRIPT,
        pragmas: "",
        identity,
    }
}
