//! SQLite with a write-ahead log: a table of keys and values without row numbers, prepared statements.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};

use super::{Engine, Key, Session};

/// Busy timeout of a writer.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// A database file. Each session is a connection of its own.
pub(crate) struct Sqlite {
    path: PathBuf,
    is_durable: AtomicBool,
}

impl Sqlite {
    /// Creates the database.
    ///
    /// # Errors
    /// One line.
    pub(crate) fn create(folder: &Path) -> Result<Self, String> {
        let path = folder.join("values.db");
        let connection = Connection::open(&path).map_err(describe)?;
        connection
            .pragma_update(None, "journal_mode", "WAL")
            .map_err(describe)?;
        let schema =
            "CREATE TABLE latest (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID";
        connection.execute_batch(schema).map_err(describe)?;
        Ok(Self {
            path,
            is_durable: AtomicBool::new(false),
        })
    }

    fn connect(&self) -> Result<Connection, String> {
        let connection = Connection::open(&self.path).map_err(describe)?;
        connection.busy_timeout(WAIT_MAX).map_err(describe)?;
        let synchronous = if self.is_durable.load(Ordering::Relaxed) {
            "FULL"
        } else {
            "OFF"
        };
        connection
            .pragma_update(None, "synchronous", synchronous)
            .map_err(describe)?;
        connection
            .pragma_update(None, "cache_size", -(256 << 10))
            .map_err(describe)?;
        Ok(connection)
    }
}

impl Engine for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, String> {
        Ok(Box::new(self.connect()?))
    }

    fn set_durable(&self, is_durable: bool) -> Result<(), String> {
        // Applies only to connections that are opened later.
        self.is_durable.store(is_durable, Ordering::Relaxed);
        Ok(())
    }

    fn settle(&self) -> Result<(), String> {
        let connection = self.connect()?;
        let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
        connection.query_row(sql, [], |_| Ok(())).map_err(describe)
    }

    fn setup(&self) -> String {
        "WAL, one transaction for each put, synchronous=OFF, FULL where puts are durable; 256 MiB of cache".to_owned()
    }
}

impl Session for Connection {
    fn get(&mut self, key: &Key, value: &mut [u8]) -> Result<usize, String> {
        let sql = "SELECT value FROM latest WHERE key = ?1";
        let mut statement = self.prepare_cached(sql).map_err(describe)?;
        let found = statement
            .query_row([&key.name[..]], |row| {
                let bytes = row.get_ref(0)?.as_blob()?;
                Ok(value.get_mut(..bytes.len()).map(|place| {
                    place.copy_from_slice(bytes);
                    bytes.len()
                }))
            })
            .optional()
            .map_err(describe)?;
        found
            .flatten()
            .ok_or_else(|| "sqlite: no such key, or a short buffer".to_owned())
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> Result<bool, String> {
        let sql = "INSERT OR REPLACE INTO latest (key, value) VALUES (?1, ?2)";
        let mut statement = self.prepare_cached(sql).map_err(describe)?;
        statement
            .execute((&key.name[..], value))
            .map_err(describe)?;
        Ok(true)
    }
}

fn describe(error: rusqlite::Error) -> String {
    format!("sqlite: {error}")
}
