//! The peer's storage: SQLite with a write-ahead log, `synchronous=FULL` and one transaction for each batch, as an
//! engineer with experience of SQLite builds it. It uses one prepared statement and one table of integers and a real
//! number, by row number. The indexed form adds the index that a history query needs.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ingest::intake::{Destination, LogGone, PutError, Reason};
use rusqlite::Connection;

/// Maximum number of readings that wait for a commit, and the number at which a commit starts early. It is the default
/// size of our database's queue.
const WAITING_MAX: usize = 32_768;
const PRESSED: usize = WAITING_MAX / 2;

/// One reading.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) key: u32,
    pub(crate) time_ms: i64,
    pub(crate) value: f64,
}

/// An open database file.
pub(crate) struct SqliteLog {
    connection: Connection,
}

impl SqliteLog {
    /// Opens or creates the database in `folder`.
    pub(crate) fn open(folder: &Path, indexed: bool) -> Result<Self, String> {
        let connection = Connection::open(folder.join("readings.db")).map_err(describe)?;
        connection
            .pragma_update(None, "journal_mode", "WAL")
            .map_err(describe)?;
        connection
            .pragma_update(None, "synchronous", "FULL")
            .map_err(describe)?;
        let mut schema = "CREATE TABLE IF NOT EXISTS keys (id INTEGER PRIMARY KEY, name TEXT NOT NULL);\
             CREATE TABLE IF NOT EXISTS readings (key INTEGER NOT NULL, time INTEGER NOT NULL, value REAL NOT NULL);"
            .to_owned();
        if indexed {
            schema.push_str("CREATE INDEX IF NOT EXISTS readings_by_key ON readings (key, time);");
        }
        connection.execute_batch(&schema).map_err(describe)?;
        Ok(Self { connection })
    }

    /// Makes all rows durable in one transaction; returns after COMMIT.
    pub(crate) fn commit(&mut self, names: &[(u32, String)], rows: &[Row]) -> Result<(), String> {
        self.commit_rows(names, rows).map_err(describe)
    }

    fn commit_rows(&mut self, names: &[(u32, String)], rows: &[Row]) -> rusqlite::Result<()> {
        self.connection
            .prepare_cached("BEGIN IMMEDIATE")?
            .raw_execute()?;
        for (id, name) in names {
            let sql = "INSERT OR IGNORE INTO keys (id, name) VALUES (?1, ?2)";
            self.connection.prepare_cached(sql)?.execute((id, name))?;
        }
        {
            let sql = "INSERT INTO readings (key, time, value) VALUES (?1, ?2, ?3)";
            let mut insert = self.connection.prepare_cached(sql)?;
            for row in rows {
                insert.raw_bind_parameter(1, row.key)?;
                insert.raw_bind_parameter(2, row.time_ms)?;
                insert.raw_bind_parameter(3, row.value)?;
                insert.raw_execute()?;
            }
        }
        self.connection.prepare_cached("COMMIT")?.raw_execute()?;
        Ok(())
    }

    /// Returns the keys of an earlier run, by name.
    fn names(&self) -> Result<HashMap<String, u32>, String> {
        let mut select = self
            .connection
            .prepare("SELECT name, id FROM keys")
            .map_err(describe)?;
        let rows = select
            .query_map((), |row| Ok((row.get(0)?, row.get(1)?)))
            .map_err(describe)?;
        rows.collect::<rusqlite::Result<_>>().map_err(describe)
    }
}

fn describe(error: rusqlite::Error) -> String {
    format!("sqlite: {error}")
}

/// What waits for the next commit.
#[derive(Default)]
struct Waiting {
    rows: Vec<Row>,
    names: Vec<(u32, String)>,
    first: Option<Instant>,
    urgent: bool,
    sleeping: bool,
    stop: bool,
    next: u64,
}

struct Shared {
    waiting: Mutex<Waiting>,
    names: Mutex<HashMap<String, u32>>,
    /// Used only to wait for `end`.
    moved: (Mutex<bool>, Condvar),
    end: AtomicU64,
    interval: Duration,
}

/// Batches readings as our database does: commits at most one interval after the first waiting reading, or when the
/// queue is half full. A steady stream does not wake the commit thread.
pub(crate) struct SqliteDestination {
    shared: Arc<Shared>,
    thread: Thread,
    #[cfg(test)]
    committer: Mutex<Option<std::thread::JoinHandle<()>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SqliteDestination {
    /// Starts the thread that commits to `log` every `interval`.
    pub(crate) fn start(log: SqliteLog, interval: Duration) -> Result<Self, String> {
        let waiting = Waiting {
            rows: Vec::with_capacity(WAITING_MAX),
            ..Waiting::default()
        };
        let shared = Arc::new(Shared {
            waiting: Mutex::new(waiting),
            names: Mutex::new(log.names()?),
            moved: (Mutex::new(false), Condvar::new()),
            end: AtomicU64::new(0),
            interval,
        });
        let runner = Arc::clone(&shared);
        let committer = std::thread::Builder::new()
            .name("sqlite-commit".to_owned())
            .spawn(move || {
                if let Err(error) = runner.run(log) {
                    eprintln!("{error}");
                    *lock(&runner.moved.0) = true;
                    runner.moved.1.notify_all();
                }
            })
            .map_err(|error| error.to_string())?;
        Ok(Self {
            shared,
            thread: committer.thread().clone(),
            #[cfg(test)]
            committer: Mutex::new(Some(committer)),
        })
    }

    /// Commits the waiting readings and ends the thread.
    #[cfg(test)]
    fn stop(&self) {
        lock(&self.shared.waiting).stop = true;
        self.thread.unpark();
        if let Some(committer) = lock(&self.committer).take() {
            let _ = committer.join();
        }
    }
}

impl Shared {
    fn run(&self, mut log: SqliteLog) -> Result<(), String> {
        let (mut rows, mut napped) = (Vec::with_capacity(WAITING_MAX), false);
        loop {
            let mut waiting = lock(&self.waiting);
            let stop = waiting.stop;
            let Some(first) = waiting.first.filter(|_| !waiting.rows.is_empty()) else {
                if stop {
                    return Ok(());
                }
                if napped {
                    waiting.sleeping = true;
                    drop(waiting);
                    std::thread::park();
                } else {
                    napped = true;
                    drop(waiting);
                    std::thread::park_timeout(self.interval);
                }
                continue;
            };
            let left = self.interval.saturating_sub(first.elapsed());
            if !(stop || waiting.urgent || left.is_zero()) {
                drop(waiting);
                std::thread::park_timeout(left);
                continue;
            }
            std::mem::swap(&mut waiting.rows, &mut rows);
            let names = std::mem::take(&mut waiting.names);
            waiting.first = None;
            waiting.urgent = false;
            let end = waiting.next;
            drop(waiting);
            log.commit(&names, &rows)?;
            rows.clear();
            napped = false;
            let guard = lock(&self.moved.0);
            self.end.store(end, Ordering::Release);
            self.moved.1.notify_all();
            drop(guard);
        }
    }
}

impl Destination for SqliteDestination {
    fn resolve(&self, key: &str) -> Result<u32, Reason> {
        let mut names = lock(&self.shared.names);
        if let Some(id) = names.get(key) {
            return Ok(*id);
        }
        let id = names.len() as u32;
        names.insert(key.to_owned(), id);
        lock(&self.shared.waiting).names.push((id, key.to_owned()));
        Ok(id)
    }

    /// The peer takes what comes under a key.
    fn resolve_for(
        &self,
        key: &str,
        _: ingest::intake::KeyOwner<'_>,
        _: &mut String,
    ) -> Result<u32, Reason> {
        self.resolve(key)
    }

    fn put(&self, object: u32, value: &[u8], time: Option<db::Time>) -> Result<u64, PutError> {
        let Ok(value) = value.try_into() else {
            return Err(PutError::Refused(Reason::PayloadInvalid));
        };
        let row = Row {
            key: object,
            time_ms: time.map_or_else(|| self.wall_ms(), db::Time::ms),
            value: f64::from_le_bytes(value),
        };
        let (number, wake) = {
            let mut waiting = lock(&self.shared.waiting);
            if waiting.rows.len() >= WAITING_MAX {
                return Err(PutError::Wait { full: false });
            }
            waiting.rows.push(row);
            if waiting.first.is_none() {
                waiting.first = Some(Instant::now());
            }
            let number = waiting.next;
            waiting.next += 1;
            let hurry = waiting.rows.len() >= PRESSED;
            let wake = waiting.sleeping || (hurry && !waiting.urgent);
            waiting.sleeping = false;
            waiting.urgent |= hurry;
            (number, wake)
        };
        if wake {
            self.thread.unpark();
        }
        Ok(number)
    }

    fn put_retained(
        &self,
        object: u32,
        value: &[u8],
        time: Option<db::Time>,
    ) -> Result<u64, PutError> {
        self.put(object, value, time)
    }

    fn durable_end(&self) -> u64 {
        self.shared.end.load(Ordering::Acquire)
    }

    fn wait_durable_past(&self, seen: u64, timeout: Duration) -> Result<u64, LogGone> {
        let guard = lock(&self.shared.moved.0);
        let still = |failed: &mut bool| !*failed && self.durable_end() <= seen;
        let waited = self
            .shared
            .moved
            .1
            .wait_timeout_while(guard, timeout, still);
        let (failed, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *failed {
            Err(LogGone)
        } else {
            Ok(self.durable_end())
        }
    }

    fn wall_ms(&self) -> i64 {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
    }

    fn wall_trusted(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn durable_rows_are_in_the_table_after_a_reopening() {
        let parent = std::env::temp_dir().join(format!("keel-bench-sqlite-{}", std::process::id()));
        std::fs::create_dir(&parent).unwrap();
        let scratch = Scratch::create(&parent, 1).unwrap();
        let log = SqliteLog::open(scratch.path(), true).unwrap();
        let peer = SqliteDestination::start(log, Duration::from_millis(5)).unwrap();
        let (a, b) = (peer.resolve("a").unwrap(), peer.resolve("b").unwrap());
        assert_eq!((peer.resolve("a").unwrap(), a != b), (a, true));
        let time = Some(db::Time::from_ms(5));
        for n in 0..100_u32 {
            let value = f64::from(n).to_le_bytes();
            assert_eq!(peer.put(b, &value, time).unwrap(), u64::from(n));
        }
        assert!(peer.put(b, b"short", None).is_err());
        let mut end = 0;
        while end < 100 {
            end = peer.wait_durable_past(end, Duration::from_secs(5)).unwrap();
        }
        peer.stop();
        let log = SqliteLog::open(scratch.path(), true).unwrap();
        assert_eq!(log.names().unwrap().get("b"), Some(&b));
        let sum = "SELECT count(*), sum(value) FROM readings WHERE key = ?1 AND time = 5";
        let found: (u32, f64) = log
            .connection
            .query_row(sum, [b], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap();
        assert_eq!(found, (100, 4950.0));
        drop(scratch);
        std::fs::remove_dir(&parent).unwrap();
    }
}
