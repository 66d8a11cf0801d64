//! Berkeley DB 5.3 through its C interface: an environment with transactions and locks, one B-tree, one transaction for
//! each put.
//!
//! Its handles are tables of function pointers whose layout only its header defines. Version 5.3 exports the functions
//! behind them under their own names, and this file looks them up there.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{null, null_mut};

use super::library::{Library, functions};
use super::{Engine, Key, OpenError, Session, Size};

const CREATE: u32 = 0x1;
const THREAD: u32 = 0x20;
const INIT_LOCK: u32 = 0x100;
const INIT_LOG: u32 = 0x200;
const INIT_MPOOL: u32 = 0x400;
const INIT_TXN: u32 = 0x2000;
const PRIVATE: u32 = 0x10000;
const AUTO_COMMIT: u32 = 0x100;
const TXN_NOSYNC: u32 = 0x1;
const LOG_AUTO_REMOVE: u32 = 0x1;
const LOG_IN_MEMORY: u32 = 0x8;
const FORCE: u32 = 0x1;
const BTREE: c_int = 1;
const LOCK_DEFAULT: u32 = 1;
const USER_MEMORY: u32 = 0x800;
const DEADLOCK: c_int = -30993;

/// Maximum number of attempts of one operation that the lock detector aborts.
const TRIES_MAX: u32 = 100;

/// Size of the log in memory, in bytes, if the log is kept there.
const LOG_BYTES: u32 = 64 << 20;

/// `DBT`.
#[repr(C)]
struct Dbt {
    data: *mut c_void,
    size: u32,
    user_bytes: u32,
    partial_bytes: u32,
    partial_offset: u32,
    application: *mut c_void,
    flags: u32,
}

functions!(Functions {
    env_create = c"db_env_create": fn(*mut *mut c_void, u32) -> c_int;
    env_open = c"__env_open_pp": fn(*mut c_void, *const c_char, u32, c_int) -> c_int;
    env_close = c"__env_close_pp": fn(*mut c_void, u32) -> c_int;
    env_set_flags = c"__env_set_flags": fn(*mut c_void, u32, c_int) -> c_int;
    env_set_cache = c"__memp_set_cachesize": fn(*mut c_void, u32, u32, c_int) -> c_int;
    log_set_config = c"__log_set_config": fn(*mut c_void, u32, c_int) -> c_int;
    log_set_buffer = c"__log_set_lg_bsize": fn(*mut c_void, u32) -> c_int;
    lock_set_detect = c"__lock_set_lk_detect": fn(*mut c_void, u32) -> c_int;
    checkpoint = c"__txn_checkpoint_pp": fn(*mut c_void, u32, u32, u32) -> c_int;
    txn_begin = c"__txn_begin_pp": fn(*mut c_void, *mut c_void, *mut *mut c_void, u32) -> c_int;
    txn_commit = c"__txn_commit": fn(*mut c_void, u32) -> c_int;
    txn_abort = c"__txn_abort": fn(*mut c_void) -> c_int;
    db_create = c"db_create": fn(*mut *mut c_void, *mut c_void, u32) -> c_int;
    db_open = c"__db_open_pp": fn(*mut c_void, *mut c_void, *const c_char, *const c_char, c_int, u32, c_int) -> c_int;
    db_close = c"__db_close_pp": fn(*mut c_void, u32) -> c_int;
    db_get = c"__db_get_pp": fn(*mut c_void, *mut c_void, *mut Dbt, *mut Dbt, u32) -> c_int;
    db_put = c"__db_put_pp": fn(*mut c_void, *mut c_void, *mut Dbt, *mut Dbt, u32) -> c_int;
    text = c"db_strerror": fn(c_int) -> *const c_char;
});

/// An environment with one database.
pub(crate) struct Berkeley {
    functions: Functions,
    environment: *mut c_void,
    database: *mut c_void,
    cache_bytes: u64,
    is_log_in_memory: bool,
}

// SAFETY: the handles are opened with `THREAD`, which lets any thread use them at any time.
unsafe impl Send for Berkeley {}
// SAFETY: as above.
unsafe impl Sync for Berkeley {}

impl Berkeley {
    /// Creates the environment and the database.
    ///
    /// # Errors
    /// [`OpenError`].
    pub(crate) fn create(folder: &Path, size: &Size) -> Result<Self, OpenError> {
        let library = Library::open(&["libdb-5.3.so"], "apt-get install libdb5.3")?;
        let functions = Functions::find(&library)?;
        let path =
            CString::new(folder.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // The cache holds the whole database.
        let cache_bytes = u64::from(size.objects) * (size.value_bytes + 64) as u64 * 2 + (64 << 20);
        let mut made = Self {
            functions,
            environment: null_mut(),
            database: null_mut(),
            cache_bytes,
            is_log_in_memory: size.is_log_in_memory,
        };
        // SAFETY: the handles are new and have no other owner; texts are NUL-terminated and live through the calls.
        unsafe {
            let mut handle = null_mut();
            made.check("db_env_create", (functions.env_create)(&raw mut handle, 0))?;
            made.environment = handle;
            let (gigabytes, bytes) = (
                (cache_bytes >> 30) as u32,
                (cache_bytes & 0x3fff_ffff) as u32,
            );
            let environment = made.environment;
            made.check(
                "set_cachesize",
                (functions.env_set_cache)(environment, gigabytes, bytes, 1),
            )?;
            made.check(
                "set_lk_detect",
                (functions.lock_set_detect)(environment, LOCK_DEFAULT),
            )?;
            if size.is_log_in_memory {
                made.check(
                    "log_set_config",
                    (functions.log_set_config)(environment, LOG_IN_MEMORY, 1),
                )?;
                made.check(
                    "set_lg_bsize",
                    (functions.log_set_buffer)(environment, LOG_BYTES),
                )?;
            } else {
                made.check(
                    "log_set_config",
                    (functions.log_set_config)(environment, LOG_AUTO_REMOVE, 1),
                )?;
            }
            let flags = CREATE | THREAD | PRIVATE | INIT_LOCK | INIT_LOG | INIT_MPOOL | INIT_TXN;
            made.check(
                "DB_ENV->open",
                (functions.env_open)(environment, path.as_ptr(), flags, 0o600),
            )?;
            made.set_sync(false)?;
            let mut handle = null_mut();
            made.check(
                "db_create",
                (functions.db_create)(&raw mut handle, environment, 0),
            )?;
            made.database = handle;
            let flags = CREATE | THREAD | AUTO_COMMIT;
            let name = c"values.db".as_ptr();
            let opened =
                (functions.db_open)(made.database, null_mut(), name, null(), BTREE, flags, 0o600);
            made.check("DB->open", opened)?;
        }
        Ok(made)
    }

    fn check(&self, call: &str, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the library returns a NUL-terminated text that stays valid.
        let text = unsafe { CStr::from_ptr((self.functions.text)(status)) };
        Err(format!("berkeleydb: {call}: {}", text.to_string_lossy()))
    }

    /// Sets whether a transaction waits for the disk. A transaction with its log in memory never does.
    fn set_sync(&self, is_sync: bool) -> Result<(), String> {
        if self.is_log_in_memory {
            return Ok(());
        }
        // SAFETY: the environment is open; this flag may change at any time.
        let set = unsafe {
            (self.functions.env_set_flags)(self.environment, TXN_NOSYNC, c_int::from(!is_sync))
        };
        self.check("set_flags", set)
    }

    /// Attempts one transaction of several puts. Returns its status.
    fn try_together(&self, keys: &[Key], value: &[u8]) -> c_int {
        let functions = &self.functions;
        let mut transaction = null_mut();
        // SAFETY: the environment is open; the transaction is this call's own and ends in it.
        let begun =
            unsafe { (functions.txn_begin)(self.environment, null_mut(), &raw mut transaction, 0) };
        if begun != 0 {
            return begun;
        }
        for key in keys {
            let (mut name, mut data) = (input(&key.name), input(value));
            // SAFETY: as for a put; inputs live through the call and are only read.
            let put = unsafe {
                (functions.db_put)(self.database, transaction, &raw mut name, &raw mut data, 0)
            };
            if put != 0 {
                // SAFETY: the transaction has not ended yet, and does now.
                unsafe { (functions.txn_abort)(transaction) };
                return put;
            }
        }
        // SAFETY: the transaction has not ended yet, and does now.
        unsafe { (functions.txn_commit)(transaction, 0) }
    }

    /// Repeats an operation that the lock detector has aborted.
    fn repeat(&self, call: &str, mut operation: impl FnMut() -> c_int) -> Result<(), String> {
        for _ in 0..TRIES_MAX {
            let status = operation();
            if status != DEADLOCK {
                return self.check(call, status);
            }
        }
        self.check(call, DEADLOCK)
    }
}

impl Drop for Berkeley {
    fn drop(&mut self) {
        // SAFETY: sessions borrow the handles, so none is left; handles that were not opened are not closed.
        unsafe {
            if !self.database.is_null() {
                (self.functions.db_close)(self.database, 0);
            }
            if !self.environment.is_null() {
                (self.functions.env_close)(self.environment, 0);
            }
        }
    }
}

impl Engine for Berkeley {
    fn name(&self) -> &'static str {
        "berkeleydb"
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, String> {
        Ok(Box::new(self))
    }

    fn set_durable(&self, is_durable: bool) -> Result<(), String> {
        self.set_sync(is_durable)
    }

    fn settle(&self) -> Result<(), String> {
        // SAFETY: the environment is open.
        let done = unsafe { (self.functions.checkpoint)(self.environment, 0, 0, FORCE) };
        self.check("txn_checkpoint", done)
    }

    fn setup(&self) -> String {
        format!(
            "B-tree, one transaction for each put, DB_TXN_NOSYNC where puts are not durable; {} MiB of cache, \
             the log {}",
            self.cache_bytes >> 20,
            if self.is_log_in_memory {
                "in memory"
            } else {
                "in files"
            }
        )
    }
}

impl Session for &Berkeley {
    fn get(&mut self, key: &Key, value: &mut [u8]) -> Result<usize, String> {
        let mut name = input(&key.name);
        let mut found = Dbt {
            data: value.as_mut_ptr().cast(),
            size: 0,
            user_bytes: value.len() as u32,
            partial_bytes: 0,
            partial_offset: 0,
            application: null_mut(),
            flags: USER_MEMORY,
        };
        self.repeat("DB->get", || {
            // SAFETY: the handle is open for all threads; key and buffer live through the call, and at most
            // `user_bytes` bytes of the buffer are written.
            unsafe {
                (self.functions.db_get)(self.database, null_mut(), &raw mut name, &raw mut found, 0)
            }
        })?;
        Ok(found.size as usize)
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> Result<bool, String> {
        let (mut name, mut data) = (input(&key.name), input(value));
        self.repeat("DB->put", || {
            // SAFETY: as for a get; input keys and values are only read.
            unsafe {
                (self.functions.db_put)(self.database, null_mut(), &raw mut name, &raw mut data, 0)
            }
        })?;
        Ok(true)
    }

    fn put_together(&mut self, keys: &[Key], value: &[u8]) -> Result<usize, String> {
        self.repeat("DB_TXN", || self.try_together(keys, value))?;
        Ok(keys.len())
    }
}

/// Wraps input bytes.
fn input(bytes: &[u8]) -> Dbt {
    Dbt {
        data: bytes.as_ptr().cast_mut().cast(),
        size: bytes.len() as u32,
        user_bytes: bytes.len() as u32,
        partial_bytes: 0,
        partial_offset: 0,
        application: null_mut(),
        flags: 0,
    }
}
