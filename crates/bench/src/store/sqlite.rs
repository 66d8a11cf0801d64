//! SQLite in two roles. As a peer for small records: a write-ahead log and `synchronous=FULL`, one prepared statement,
//! one transaction for each row of 100 bytes. As a user of the store: the same rows in a database inside the store,
//! through the VFS. A database on ext4 is beside it, with either journal. Checkpoints are SQLite's own, every 1,000
//! pages, during the committing call.

use std::path::Path;

use flash::Store;
use keelsqlite::abi::Sqlite as Functions;
use keelsqlite::{FileImages, VFS_NAME};
use rusqlite::{Connection, OpenFlags, ffi};

use super::counts::DeviceCounts;
use super::floor::open_direct;
use super::keel::{describe as describe_store, format_options};
use super::timed::{Case, RECORD_BYTES, Step, System, timed};
use crate::machine::Disk;

/// Rows inserted before the measurement: with a write-ahead log that is more than one checkpoint.
const ROWS_BEFORE: u32 = 1_500;

/// With a rollback journal nothing has to grow: its file is created and deleted with each row.
const ROWS_BEFORE_ROLLBACK: u32 = 50;

/// Databases in one place, one for each case.
pub(crate) struct Sqlite {
    name: &'static str,
    databases: Vec<(Case, Connection)>,
    payload: [u8; RECORD_BYTES],
    disk: Option<Disk>,
    counts_source: &'static str,
}

impl Sqlite {
    /// Creates the databases of `cases` in `folder`. `counts_source` names the users of the disk below.
    ///
    /// # Errors
    /// One line with SQLite's reason.
    pub(crate) fn in_folder(
        folder: &Path,
        name: &'static str,
        cases: &[Case],
        counts_source: &'static str,
    ) -> Result<Self, String> {
        let open = |case: Case| Connection::open(folder.join(database(case)));
        let disk = Disk::below(folder);
        Self::with(name, cases, disk, counts_source, &open)
    }

    /// Formats a store on the block device `device` and creates the databases of `cases` inside it.
    ///
    /// # Errors
    /// One line with SQLite's reason or the store's.
    pub(crate) fn in_store(device: &Path, cases: &[Case]) -> Result<Self, String> {
        let store = Store::format(open_direct(device)?, &format_options(16));
        store
            .and_then(Store::close)
            .map_err(describe_store)
            .map(drop)?;
        // SAFETY: the functions belong to the SQLite that this program is linked with, so they stay valid.
        let registered =
            unsafe { keelsqlite::register(functions(), VFS_NAME, Box::new(FileImages)) };
        registered.map_err(|code| format!("sqlite: registering the VFS: error {code}"))?;
        let open = |case: Case| {
            let uri = format!(
                "file:{}?vfs=keel&image={}",
                database(case),
                device.display()
            );
            Connection::open_with_flags(uri, OpenFlags::default() | OpenFlags::SQLITE_OPEN_URI)
        };
        Self::with("keel", cases, Disk::at(device), "own disk", &open)
    }

    fn with(
        name: &'static str,
        cases: &[Case],
        disk: Option<Disk>,
        counts_source: &'static str,
        open: &dyn Fn(Case) -> rusqlite::Result<Connection>,
    ) -> Result<Self, String> {
        let mut databases = Vec::new();
        for case in cases {
            let connection = open(*case).map_err(describe)?;
            prepare(*case, &connection).map_err(describe)?;
            databases.push((*case, connection));
        }
        let mut sqlite = Self {
            name,
            databases,
            payload: [7; RECORD_BYTES],
            disk,
            counts_source,
        };
        // While the log's file grows for the first time, each commit also changes the file system's tables. In the
        // peer's favour, this growth ends before the measurement begins.
        for case in cases {
            sqlite.set(*case, "synchronous", "OFF")?;
            let rows = if *case == Case::CommitRollback {
                ROWS_BEFORE_ROLLBACK
            } else {
                ROWS_BEFORE
            };
            for _ in 0..rows {
                sqlite.step(&Step::first(*case, 0))?;
            }
            sqlite.set(*case, "synchronous", "FULL")?;
        }
        Ok(sqlite)
    }

    fn connection(&self, case: Case) -> Result<&Connection, String> {
        let found = self.databases.iter().find(|(of, _)| *of == case);
        found
            .map(|(_, connection)| connection)
            .ok_or_else(|| "no database for this case".to_owned())
    }

    fn set(&self, case: Case, pragma: &str, value: &str) -> Result<(), String> {
        let connection = self.connection(case)?;
        connection
            .pragma_update(None, pragma, value)
            .map_err(describe)
    }
}

fn database(case: Case) -> String {
    format!("{case:?}.db").to_lowercase()
}

/// Creates the journal and the table of the database of `case`.
fn prepare(case: Case, connection: &Connection) -> rusqlite::Result<()> {
    let journal = if case == Case::CommitRollback {
        "DELETE"
    } else {
        "WAL"
    };
    let set: String =
        connection.query_row(&format!("PRAGMA journal_mode={journal}"), (), |row| {
            row.get(0)
        })?;
    if !set.eq_ignore_ascii_case(journal) {
        return Err(rusqlite::Error::InvalidParameterName(format!(
            "journal_mode stays {set}"
        )));
    }
    connection.execute_batch("CREATE TABLE records (id INTEGER PRIMARY KEY, data BLOB NOT NULL);")
}

fn describe(error: rusqlite::Error) -> String {
    format!("sqlite: {error}")
}

/// Returns the functions of the SQLite that this program is linked with.
fn functions() -> Functions {
    // SAFETY: each is the function of that name, and both sides declare the same C functions. Only the names of the
    // types behind their pointers differ.
    unsafe {
        Functions {
            vfs_find: function(ffi::sqlite3_vfs_find as *const ()),
            vfs_register: function(ffi::sqlite3_vfs_register as *const ()),
            uri_parameter: function(ffi::sqlite3_uri_parameter as *const ()),
            log: function(ffi::sqlite3_log as *const ()),
            mprintf: function(ffi::sqlite3_mprintf as *const ()),
        }
    }
}

/// Returns a function by its address.
///
/// # Safety
/// `F` must be the type of that function, as a function pointer.
unsafe fn function<F: Copy>(address: *const ()) -> F {
    const { assert!(size_of::<F>() == size_of::<*const ()>()) };
    // SAFETY: the caller guarantees the type; the sizes agree.
    unsafe { std::mem::transmute_copy(&address) }
}

impl System for Sqlite {
    fn name(&self) -> &str {
        self.name
    }

    fn takes(&self, case: Case) -> bool {
        self.connection(case).is_ok()
    }

    fn begin(&mut self, _case: Case, _round: u32, _count: u32) -> Result<(), String> {
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<u64, String> {
        let mut insert = self
            .connection(step.case)?
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
