//! Tests a child that is forked while its parent has an image open: its calls are refused, and it causes no damage.

mod common;

use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use base::block::{BlockDevice, Counters, DeviceError, Geometry};
use common::{Folder, code_of, device, format, linked_sqlite, value};
use flash::{OpenOptions, Store};
use keelsqlite::{FileImages, Images, register};
use rusqlite::{Connection, OpenFlags, ffi};

const VFS: &CStr = c"keelfork";

const IMAGE_BYTES: u64 = 4 << 20;

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
    fn alarm(seconds: u32) -> u32;
}

/// While this is set, threads stop that write to a device, or open the image of this name.
static IS_STOPPED: AtomicBool = AtomicBool::new(false);
/// Whether the writer and the opener have stopped.
static HAS_STOPPED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
const SLOW_IMAGE: &str = "slow.img";

fn stop(place: usize) {
    while IS_STOPPED.load(Ordering::SeqCst) {
        HAS_STOPPED[place].store(true, Ordering::SeqCst);
        std::thread::yield_now();
    }
}

struct StoppingDevice(Box<dyn BlockDevice>);

impl BlockDevice for StoppingDevice {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read(first_block, buffer)
    }
    fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError> {
        stop(0);
        self.0.write(first_block, data)
    }
    fn flush(&mut self) -> Result<(), DeviceError> {
        self.0.flush()
    }
    fn discard(&mut self, first_block: u64, block_count: u64) -> Result<(), DeviceError> {
        self.0.discard(first_block, block_count)
    }
    fn counters(&self) -> Counters {
        self.0.counters()
    }
    fn reset_write_blocks_max(&mut self) {
        self.0.reset_write_blocks_max();
    }
}

/// Images that are files, on devices that stop on request.
struct StoppingImages;

impl Images for StoppingImages {
    fn locate(&self, path: &Path) -> std::io::Result<PathBuf> {
        FileImages.locate(path)
    }
    fn open(&self, path: &Path, read_only: bool) -> Result<Box<dyn BlockDevice>, DeviceError> {
        if path.ends_with(SLOW_IMAGE) {
            stop(1);
        }
        let device = FileImages.open(path, read_only)?;
        Ok(Box::new(StoppingDevice(device)))
    }
}

/// Allows one test at a time: another thread must not hold one of SQLite's mutexes during a fork.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    static REGISTERED: OnceLock<()> = OnceLock::new();
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    REGISTERED.get_or_init(|| {
        // SAFETY: the functions are those of the linked SQLite.
        unsafe { register(linked_sqlite(), VFS, Box::new(StoppingImages)) }.expect("registers");
    });
    guard
}

fn connect(database: &str, image: &Path) -> rusqlite::Result<Connection> {
    let uri = format!("file:{database}?vfs=keelfork&image={}", image.display());
    Connection::open_with_flags(uri, OpenFlags::default())
}

/// Returns the VFS's text for its last failure.
fn last_text() -> String {
    let mut text: [c_char; 300] = [0; 300];
    // SAFETY: the VFS is registered forever, and the array has the stated size.
    unsafe {
        let vfs = ffi::sqlite3_vfs_find(VFS.as_ptr());
        let last = (*vfs).xGetLastError.expect("has the method");
        last(vfs, 300, text.as_mut_ptr());
        CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned()
    }
}

/// Requires that `done` has failed with this primary code of SQLite, and a text that contains `part`.
fn require_refused<T>(what: &str, done: rusqlite::Result<T>, code: i32, part: &str) {
    let found = done.err().map(|error| code_of(&error) & 0xff);
    let text = last_text();
    assert_eq!(found, Some(code), "{what}: {text}");
    assert!(text.contains(part), "{what}: {text}");
}

/// A forked child that runs `call`.
struct Forked(i32);

impl Forked {
    fn start(call: impl FnOnce()) -> Self {
        // SAFETY: no memory is passed. The child runs only this thread; no other thread holds a mutex of SQLite, and
        // the C library prepares the allocator.
        let process = unsafe { fork() };
        if process != 0 {
            assert!(process > 0, "cannot fork");
            return Self(process);
        }
        // A child that waits for a mutex for ever must not outlive the test run.
        // SAFETY: no memory is passed.
        unsafe { alarm(120) };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
        if let Err(cause) = &done {
            let text = cause.downcast_ref::<String>();
            eprintln!("child: {}", text.map_or("failed", String::as_str));
        }
        // Exit through the exit handlers.
        std::process::exit(i32::from(done.is_err()));
    }

    /// Waits for the end of the child, which must succeed.
    fn join(self, what: &str) {
        let mut status = 0;
        // SAFETY: `status` is room for a number.
        while unsafe { waitpid(self.0, &raw mut status, 0) } != self.0 {}
        assert_eq!(status, 0, "{what}: the child has ended badly");
    }
}

fn require_whole(what: &str, image: &Path, expected_rows: i64) {
    let connection = connect("plant.db", image).unwrap();
    let check: String = value(&connection, "PRAGMA integrity_check").unwrap();
    let rows: i64 = value(&connection, "SELECT count(*) FROM t").unwrap();
    assert_eq!((check.as_str(), rows), ("ok", expected_rows), "{what}");
    drop(connection);
    let mut store = Store::open(device(image, None), &OpenOptions::default()).unwrap();
    assert!(store.check().unwrap().is_clean(), "{what}");
}

#[test]
fn a_child_gets_nothing_of_an_image_that_its_parent_has_and_takes_nothing_away() {
    let _alone = alone();
    let folder = Folder::new("fork");
    for (number, (journal, begin)) in [
        ("delete", ""),
        ("delete", "BEGIN IMMEDIATE"),
        ("delete", "BEGIN; INSERT INTO t VALUES (0, NULL)"),
        ("persist", "BEGIN; UPDATE t SET b = zeroblob(2000)"),
        ("wal", ""),
        ("wal", "BEGIN; SELECT * FROM t"),
        ("wal", "BEGIN; INSERT INTO t VALUES (0, NULL)"),
    ]
    .into_iter()
    .enumerate()
    {
        let what = format!("{journal}, {begin}");
        let image = folder.path(&format!("{number}.img"));
        format(&image, IMAGE_BYTES, 1 + number as u8);
        let connection = connect("plant.db", &image).unwrap();
        let mode: String = value(&connection, &format!("PRAGMA journal_mode = {journal}")).unwrap();
        assert_eq!(mode, journal);
        connection
            .execute_batch("CREATE TABLE t (a, b); INSERT INTO t VALUES (1, randomblob(2000))")
            .unwrap();
        connection.execute_batch(begin).unwrap();
        for _ in 0..2 {
            let child = Forked::start(|| {
                let busy = |what: &str| {
                    for database in ["plant.db", "other.db"] {
                        let opened = connect(database, &image);
                        require_refused(
                            what,
                            opened,
                            ffi::SQLITE_BUSY,
                            "in use by another process",
                        );
                    }
                };
                busy("a new connection");
                let mut refused = 0;
                for sql in [
                    "SELECT count(*) FROM t",
                    "INSERT INTO t VALUES (2, randomblob(9000))",
                    "COMMIT",
                ] {
                    if connection.is_autocommit() && sql == "COMMIT" {
                        continue;
                    }
                    let done = connection.execute_batch(sql);
                    // In a transaction SQLite may still use only its own memory.
                    if done.is_err()
                        || connection.is_autocommit() && begin != "BEGIN; SELECT * FROM t"
                    {
                        require_refused(sql, done, ffi::SQLITE_IOERR, "after fork()");
                        refused += 1;
                    }
                }
                assert!(refused > 0, "nothing was refused");
                busy("after the use of an inherited connection");
                // SAFETY: the handle is open; this child ends without using it again.
                unsafe { ffi::sqlite3_close(connection.handle()) };
                busy("after the end of an inherited connection");
            });
            child.join(&what);
        }
        let rows = if begin.contains("INSERT") { 2 } else { 1 };
        if !begin.is_empty() {
            connection.execute_batch("COMMIT").unwrap();
        }
        for row in 0..20 {
            connection
                .execute("INSERT INTO t VALUES (?1, randomblob(3000))", [row])
                .unwrap();
        }
        let count: i64 = value(&connection, "SELECT count(*) FROM t").unwrap();
        assert_eq!(count, rows + 20, "{what}");
        drop(connection);
        require_whole(&what, &image, rows + 20);
    }
}

#[test]
fn a_child_opens_the_image_once_its_parent_has_closed_it() {
    let _alone = alone();
    let folder = Folder::new("fork-later");
    let image = folder.path("plant.img");
    format(&image, IMAGE_BYTES, 40);
    for (journal, rows) in [("delete", 2), ("wal", 4)] {
        let connection = connect("plant.db", &image).unwrap();
        let _: String = value(&connection, &format!("PRAGMA journal_mode = {journal}")).unwrap();
        connection
            .execute_batch("CREATE TABLE IF NOT EXISTS t (a, b); INSERT INTO t VALUES (1, NULL)")
            .unwrap();
        let child = Forked::start(|| {
            let own = loop {
                match connect("plant.db", &image) {
                    Ok(own) => break own,
                    Err(error) => assert_eq!(code_of(&error) & 0xff, ffi::SQLITE_BUSY, "{error}"),
                }
                std::thread::yield_now();
            };
            own.execute_batch("INSERT INTO t VALUES (2, randomblob(9000))")
                .unwrap();
            // The inherited connection is as dead as before, and closing it does not affect the new one.
            let count = value::<i64>(&connection, "SELECT count(*) FROM t");
            require_refused("inherited", count, ffi::SQLITE_IOERR, "after fork()");
            // SAFETY: the handle is open; this child ends without using it again.
            unsafe { ffi::sqlite3_close(connection.handle()) };
            let count: i64 = value(&own, "SELECT count(*) FROM t").unwrap();
            assert_eq!(count, rows);
        });
        drop(connection);
        child.join(journal);
        require_whole(journal, &image, rows);
    }
}

/// Other threads of the parent are in the middle of a write, and of opening another image, during the fork.
#[test]
fn a_child_does_not_wait_for_threads_that_it_does_not_have() {
    let _alone = alone();
    let folder = Folder::new("fork-threads");
    let image = folder.path("plant.img");
    let slow = folder.path(SLOW_IMAGE);
    format(&image, IMAGE_BYTES, 50);
    format(&slow, IMAGE_BYTES, 51);
    let [writer, idle] = ["plant.db", "idle.db"].map(|name| {
        let connection = connect(name, &image).unwrap();
        connection.execute_batch("CREATE TABLE t (a, b)").unwrap();
        connection
    });
    IS_STOPPED.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            writer
                .execute_batch("INSERT INTO t VALUES (1, NULL)")
                .unwrap()
        });
        let wait_for = |place: usize| {
            while !HAS_STOPPED[place].load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        };
        wait_for(0);
        // Start this only now: until an image is open no other thread can access the list of open images.
        scope.spawn(|| drop(connect("slow.db", &slow).unwrap()));
        wait_for(1);
        let child = Forked::start(|| {
            IS_STOPPED.store(false, Ordering::SeqCst);
            let opened = connect("plant.db", &image);
            require_refused("new", opened, ffi::SQLITE_BUSY, "in use by another process");
            let count = value::<i64>(&idle, "SELECT count(*) FROM t");
            require_refused("inherited", count, ffi::SQLITE_IOERR, "after fork()");
            // SAFETY: the handle is open; this child ends without using it again.
            unsafe { ffi::sqlite3_close(idle.handle()) };
        });
        // Join before anything can fail, because the scope waits for the threads.
        let joined = std::panic::catch_unwind(|| child.join("threads"));
        IS_STOPPED.store(false, Ordering::SeqCst);
        joined.unwrap();
    });
    idle.execute_batch("INSERT INTO t VALUES (1, NULL)")
        .unwrap();
    drop(idle);
    require_whole("threads", &image, 1);
}
