//! RocksDB through its C interface, with its default options.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::library::{Library, functions};
use super::{Engine, Key, OpenError, Session};

functions!(Functions {
    options_create = c"rocksdb_options_create": fn() -> *mut c_void;
    options_destroy = c"rocksdb_options_destroy": fn(*mut c_void);
    options_set_create = c"rocksdb_options_set_create_if_missing": fn(*mut c_void, c_uchar);
    read_options = c"rocksdb_readoptions_create": fn() -> *mut c_void;
    read_options_destroy = c"rocksdb_readoptions_destroy": fn(*mut c_void);
    write_options = c"rocksdb_writeoptions_create": fn() -> *mut c_void;
    write_options_destroy = c"rocksdb_writeoptions_destroy": fn(*mut c_void);
    write_options_set_sync = c"rocksdb_writeoptions_set_sync": fn(*mut c_void, c_uchar);
    open = c"rocksdb_open": fn(*const c_void, *const c_char, *mut *mut c_char) -> *mut c_void;
    close = c"rocksdb_close": fn(*mut c_void);
    get = c"rocksdb_get_pinned": fn(*mut c_void, *const c_void, *const c_char, usize, *mut *mut c_char) -> *mut c_void;
    value = c"rocksdb_pinnableslice_value": fn(*const c_void, *mut usize) -> *const c_char;
    value_destroy = c"rocksdb_pinnableslice_destroy": fn(*mut c_void);
    put = c"rocksdb_put":
        fn(*mut c_void, *const c_void, *const c_char, usize, *const c_char, usize, *mut *mut c_char);
    property = c"rocksdb_property_int": fn(*mut c_void, *const c_char, *mut u64) -> c_int;
    free = c"rocksdb_free": fn(*mut c_void);
});

/// A database with its options.
pub(crate) struct RocksDb {
    functions: Functions,
    database: *mut c_void,
    reading: *mut c_void,
    writing: *mut c_void,
    writing_through: *mut c_void,
    is_durable: AtomicBool,
}

// SAFETY: a database of RocksDB and options that do not change may be used by any thread.
unsafe impl Send for RocksDb {}
// SAFETY: as above.
unsafe impl Sync for RocksDb {}

impl RocksDb {
    /// Creates the database.
    ///
    /// # Errors
    /// [`OpenError`].
    pub(crate) fn create(folder: &Path) -> Result<Self, OpenError> {
        let names = [
            "librocksdb.so.7.8",
            "librocksdb.so.9",
            "librocksdb.so.8",
            "librocksdb.so",
        ];
        let library = Library::open(&names, "apt-get install librocksdb7.8")?;
        let functions = Functions::find(&library)?;
        let path =
            CString::new(folder.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        let mut error = null_mut();
        // SAFETY: options are made, used and freed here; the path is NUL-terminated; RocksDB fills in the error.
        unsafe {
            let options = (functions.options_create)();
            (functions.options_set_create)(options, 1);
            let database = (functions.open)(options, path.as_ptr(), &raw mut error);
            (functions.options_destroy)(options);
            check(&functions, "open", error)?;
            let (writing, writing_through) =
                ((functions.write_options)(), (functions.write_options)());
            (functions.write_options_set_sync)(writing_through, 1);
            Ok(Self {
                functions,
                database,
                reading: (functions.read_options)(),
                writing,
                writing_through,
                is_durable: AtomicBool::new(false),
            })
        }
    }
}

/// Properties that show running and pending background work.
const WORK: [&CStr; 4] = [
    c"rocksdb.mem-table-flush-pending",
    c"rocksdb.num-running-flushes",
    c"rocksdb.compaction-pending",
    c"rocksdb.num-running-compactions",
];

/// Timeout for the background work.
const SETTLING_MAX: Duration = Duration::from_secs(120);

impl RocksDb {
    /// Whether its background threads write tables, or soon will, on the processors and the disk used for the other
    /// systems.
    fn is_working(&self) -> Result<bool, String> {
        for name in WORK {
            let mut value = 0;
            // SAFETY: the database is open, the name is NUL-terminated, and the value is written during the call.
            let asked =
                unsafe { (self.functions.property)(self.database, name.as_ptr(), &raw mut value) };
            if asked != 0 {
                return Err(format!("rocksdb: no {}", name.to_string_lossy()));
            }
            if value != 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Drop for RocksDb {
    fn drop(&mut self) {
        // SAFETY: sessions borrow the handles, so none is left.
        unsafe {
            (self.functions.close)(self.database);
            (self.functions.read_options_destroy)(self.reading);
            (self.functions.write_options_destroy)(self.writing);
            (self.functions.write_options_destroy)(self.writing_through);
        }
    }
}

impl Engine for RocksDb {
    fn name(&self) -> &'static str {
        "rocksdb"
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, String> {
        Ok(Box::new(self))
    }

    fn set_durable(&self, is_durable: bool) -> Result<(), String> {
        self.is_durable.store(is_durable, Ordering::Relaxed);
        Ok(())
    }

    fn settle(&self) -> Result<(), String> {
        let end = Instant::now() + SETTLING_MAX;
        // There may be a short pause between two steps of the background work.
        let mut idle = 0;
        while idle < 3 {
            crate::scratch::check_interrupted()?;
            if Instant::now() > end {
                return Err(format!(
                    "rocksdb: still writing its tables anew after {} s",
                    SETTLING_MAX.as_secs()
                ));
            }
            idle = if self.is_working()? { 0 } else { idle + 1 };
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn setup(&self) -> String {
        "the default options; sync where puts are durable".to_owned()
    }
}

impl Session for &RocksDb {
    fn get(&mut self, key: &Key, value: &mut [u8]) -> Result<usize, String> {
        let (mut error, mut bytes) = (null_mut(), 0);
        let name = key.name.as_ptr().cast();
        // SAFETY: the database is open and the key lives through the call. The value stays valid until it is destroyed,
        // which happens after the copy.
        unsafe {
            let found = (self.functions.get)(
                self.database,
                self.reading,
                name,
                key.name.len(),
                &raw mut error,
            );
            check(&self.functions, "get", error)?;
            if found.is_null() {
                return Err("rocksdb: no such key".to_owned());
            }
            let data = (self.functions.value)(found, &raw mut bytes);
            if bytes <= value.len() {
                std::ptr::copy_nonoverlapping(data.cast(), value.as_mut_ptr(), bytes);
            }
            (self.functions.value_destroy)(found);
        }
        if bytes > value.len() {
            return Err("rocksdb: the buffer is short".to_owned());
        }
        Ok(bytes)
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> Result<bool, String> {
        let mut error = null_mut();
        let is_durable = self.is_durable.load(Ordering::Relaxed);
        let options = if is_durable {
            self.writing_through
        } else {
            self.writing
        };
        let (name, data) = (key.name.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: the database is open; key and value live through the call and are only read.
        unsafe {
            (self.functions.put)(
                self.database,
                options,
                name,
                key.name.len(),
                data,
                value.len(),
                &raw mut error,
            );
        }
        check(&self.functions, "put", error)?;
        Ok(true)
    }
}

/// Takes ownership of an error text and frees it.
fn check(functions: &Functions, call: &str, error: *mut c_char) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: RocksDB hands over a NUL-terminated text, which is freed by its own function.
    let text = unsafe {
        let text = CStr::from_ptr(error).to_string_lossy().into_owned();
        (functions.free)(error.cast());
        text
    };
    Err(format!("rocksdb: {call}: {text}"))
}
