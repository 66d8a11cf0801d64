//! The peer for small records: SQLite with a write-ahead log and `synchronous=FULL`, one prepared statement, one
//! transaction for each row of 100 bytes. Checkpoints are its own, every 1,000 pages, on the committing call.

use std::path::Path;

use rusqlite::Connection;

use super::counts::DeviceCounts;
use super::timed::{Case, RECORD_BYTES, Step, System, timed};
use crate::machine::Disk;

/// Rows inserted beforehand: several checkpoints.
const ROWS_BEFORE: u32 = 3_000;

/// A database in a folder.
pub(crate) struct Sqlite {
    name: &'static str,
    connection: Connection,
    payload: [u8; RECORD_BYTES],
    disk: Option<Disk>,
    counts_source: &'static str,
}

impl Sqlite {
    /// Makes the database in `folder`. `counts_source` says whose the disk below is.
    ///
    /// # Errors
    /// One line with SQLite's reason.
    pub(crate) fn create(
        folder: &Path,
        name: &'static str,
        counts_source: &'static str,
    ) -> Result<Self, String> {
        let connection = Connection::open(folder.join("records.db")).map_err(describe)?;
        connection
            .pragma_update(None, "journal_mode", "WAL")
            .map_err(describe)?;
        connection
            .execute_batch("CREATE TABLE records (id INTEGER PRIMARY KEY, data BLOB NOT NULL);")
            .map_err(describe)?;
        // While the log's file grows for the first time each commit changes the file system's tables too; in the
        // peer's favour that is over before the measurement begins.
        connection
            .pragma_update(None, "synchronous", "OFF")
            .map_err(describe)?;
        let mut sqlite = Self {
            name,
            connection,
            payload: [7; RECORD_BYTES],
            disk: Disk::below(folder),
            counts_source,
        };
        for _ in 0..ROWS_BEFORE {
            sqlite.step(&Step::first(Case::Record, 0))?;
        }
        sqlite
            .connection
            .pragma_update(None, "synchronous", "FULL")
            .map_err(describe)?;
        Ok(sqlite)
    }
}

fn describe(error: rusqlite::Error) -> String {
    format!("sqlite: {error}")
}

impl System for Sqlite {
    fn name(&self) -> &str {
        self.name
    }

    fn takes(&self, case: Case) -> bool {
        case == Case::Record
    }

    fn begin(&mut self, _case: Case, _round: u32, _count: u32) -> Result<(), String> {
        Ok(())
    }

    fn step(&mut self, _step: &Step) -> Result<u64, String> {
        let mut insert = self
            .connection
            .prepare_cached("INSERT INTO records (data) VALUES (?1)")
            .map_err(describe)?;
        insert
            .raw_bind_parameter(1, &self.payload[..])
            .map_err(describe)?;
        let (done, elapsed_ns) = timed(|| insert.raw_execute());
        done.map(|_| elapsed_ns).map_err(describe)
    }

    fn end(&mut self, _case: Case, _round: u32) -> Result<(), String> {
        Ok(())
    }

    fn counts(&self) -> Option<DeviceCounts> {
        self.disk.as_ref().and_then(Disk::counts)
    }

    fn counts_source(&self) -> Option<&'static str> {
        self.disk.as_ref().map(|_| self.counts_source)
    }
}
