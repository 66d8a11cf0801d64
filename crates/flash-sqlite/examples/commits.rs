//! Measures commits per second through SQLite, in a flash store or in the file system, in any journal mode. Each
//! transaction inserts one row of 100 bytes, with `synchronous = FULL`. Prints one JSON object.
//!
//! ```text
//! commits --image plant.img --journal wal --commits 10000
//! commits --file /var/tmp/plant.db --journal delete --commits 10000
//! ```
//!
//! `--image` takes a store made by `keel flash format` and adds the database `commits.db` to it; `--file` creates the
//! database itself. The database must not exist yet.

use std::process::ExitCode;

use base::clock::{Clock, SystemClock};
use base::histogram::Histogram;
use keelsqlite::abi::Sqlite;
use keelsqlite::{FileImages, VFS_NAME, register};
use rusqlite::{Connection, OpenFlags, ffi};

const USAGE: &str = "usage: commits (--image IMAGE | --file FILE) [--journal MODE] [--commits N]";

/// Bytes of one row.
const ROW_BYTES: usize = 100;

/// Rows that are committed before the measurement begins.
const ROWS_BEFORE: u32 = 500;

struct Arguments {
    image: Option<String>,
    file: Option<String>,
    journal: String,
    commits: u32,
}

fn arguments() -> Option<Arguments> {
    let mut arguments = Arguments {
        image: None,
        file: None,
        journal: "wal".to_owned(),
        commits: 10_000,
    };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let value = given.next()?;
        match name.as_str() {
            "--image" => arguments.image = Some(value),
            "--file" => arguments.file = Some(value),
            "--journal" => arguments.journal = value,
            "--commits" => arguments.commits = value.parse().ok()?,
            _ => return None,
        }
    }
    (arguments.image.is_some() != arguments.file.is_some() && arguments.commits > 0)
        .then_some(arguments)
}

/// Returns the functions of the SQLite that this program is linked with.
fn linked_sqlite() -> Sqlite {
    // SAFETY: the functions are those of the linked SQLite, in the required order.
    unsafe {
        Sqlite::at([
            ffi::sqlite3_vfs_find as *const (),
            ffi::sqlite3_vfs_register as *const (),
            ffi::sqlite3_uri_parameter as *const (),
            ffi::sqlite3_log as *const (),
            ffi::sqlite3_mprintf as *const (),
        ])
    }
}

fn measure(arguments: &Arguments) -> rusqlite::Result<Histogram> {
    let connection = match (&arguments.image, &arguments.file) {
        (Some(image), _) => Connection::open_with_flags(
            format!("file:commits.db?vfs=keel&image={image}"),
            OpenFlags::default(),
        )?,
        (None, file) => Connection::open(file.as_deref().unwrap_or_default())?,
    };
    let pragma = format!("PRAGMA journal_mode = {}", arguments.journal);
    let _: String = connection.query_row(&pragma, [], |row| row.get(0))?;
    connection.execute_batch(
        "PRAGMA synchronous = FULL; CREATE TABLE row (id INTEGER PRIMARY KEY, content BLOB)",
    )?;
    let mut insert = connection.prepare("INSERT INTO row (content) VALUES (?1)")?;
    let content = [0x5a; ROW_BYTES];
    for _ in 0..ROWS_BEFORE {
        insert.execute([&content[..]])?;
    }
    let clock = SystemClock::new();
    let mut latencies_ns = Histogram::new();
    for _ in 0..arguments.commits {
        let started_ns = clock.monotonic_ns();
        insert.execute([&content[..]])?;
        latencies_ns.record(clock.monotonic_ns() - started_ns);
    }
    Ok(latencies_ns)
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    // SAFETY: the functions are those of the linked SQLite.
    if let Err(code) = unsafe { register(linked_sqlite(), VFS_NAME, Box::new(FileImages)) } {
        eprintln!("commits: the VFS cannot be registered: SQLite's code {code}");
        return ExitCode::FAILURE;
    }
    match measure(&arguments) {
        Ok(latencies_ns) => {
            let us = |ns: u64| ns as f64 / 1000.0;
            let total_s = latencies_ns.sum() as f64 / 1e9;
            println!(
                "{{\"system\": \"{}\", \"journal\": \"{}\", \"commits\": {}, \"commits_per_s\": {:.0}, \
                 \"p50_us\": {:.1}, \"p99_us\": {:.1}, \"p99_9_us\": {:.1}, \"max_us\": {:.1}}}",
                if arguments.image.is_some() {
                    "keel"
                } else {
                    "file"
                },
                arguments.journal,
                arguments.commits,
                f64::from(arguments.commits) / total_s,
                us(latencies_ns.percentile(50.0)),
                us(latencies_ns.percentile(99.0)),
                us(latencies_ns.percentile(99.9)),
                us(latencies_ns.max()),
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("commits: {error}");
            ExitCode::FAILURE
        }
    }
}
