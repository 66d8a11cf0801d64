//! LMDB through its C interface. Each session has one reader, renewed for each get so that it sees the latest value.
//! Each put is one transaction.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;

use super::library::{Library, functions};
use super::{Engine, Key, OpenError, Session, Size};

const NO_SYNC: c_uint = 0x10000;
const NO_TLS: c_uint = 0x20_0000;
const NO_READ_AHEAD: c_uint = 0x80_0000;
const READ_ONLY: c_uint = 0x20000;

/// Maximum number of simultaneous sessions.
const READERS_MAX: c_uint = 126;

/// `MDB_val`.
#[repr(C)]
struct Val {
    bytes: usize,
    data: *mut c_void,
}

functions!(Functions {
    env_create = c"mdb_env_create": fn(*mut *mut c_void) -> c_int;
    env_set_mapsize = c"mdb_env_set_mapsize": fn(*mut c_void, usize) -> c_int;
    env_set_maxreaders = c"mdb_env_set_maxreaders": fn(*mut c_void, c_uint) -> c_int;
    env_open = c"mdb_env_open": fn(*mut c_void, *const c_char, c_uint, c_uint) -> c_int;
    env_set_flags = c"mdb_env_set_flags": fn(*mut c_void, c_uint, c_int) -> c_int;
    env_sync = c"mdb_env_sync": fn(*mut c_void, c_int) -> c_int;
    env_close = c"mdb_env_close": fn(*mut c_void);
    txn_begin = c"mdb_txn_begin": fn(*mut c_void, *mut c_void, c_uint, *mut *mut c_void) -> c_int;
    txn_commit = c"mdb_txn_commit": fn(*mut c_void) -> c_int;
    txn_abort = c"mdb_txn_abort": fn(*mut c_void);
    txn_reset = c"mdb_txn_reset": fn(*mut c_void);
    txn_renew = c"mdb_txn_renew": fn(*mut c_void) -> c_int;
    dbi_open = c"mdb_dbi_open": fn(*mut c_void, *const c_char, c_uint, *mut c_uint) -> c_int;
    get = c"mdb_get": fn(*mut c_void, c_uint, *mut Val, *mut Val) -> c_int;
    put = c"mdb_put": fn(*mut c_void, c_uint, *mut Val, *mut Val, c_uint) -> c_int;
});

/// An environment with one database.
pub(crate) struct Lmdb {
    functions: Functions,
    environment: *mut c_void,
    database: c_uint,
}

// SAFETY: LMDB's environments may be used by any thread; each session has a transaction of its own.
unsafe impl Send for Lmdb {}
// SAFETY: as above.
unsafe impl Sync for Lmdb {}

impl Lmdb {
    /// Creates the environment.
    ///
    /// # Errors
    /// [`OpenError`].
    pub(crate) fn create(folder: &Path, size: &Size) -> Result<Self, OpenError> {
        let names = ["liblmdb.so.0", "liblmdb.so"];
        let library = Library::open(&names, "apt-get install liblmdb0")?;
        let functions = Functions::find(&library)?;
        let path =
            CString::new(folder.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // Twice the data, since each transaction copies the pages it changes, and room beside.
        let map_bytes = (size.objects as usize * (size.value_bytes + 64) * 4)
            .next_multiple_of(1 << 20)
            + (256 << 20);
        let mut environment = null_mut();
        // SAFETY: LMDB fills in the handle.
        check("mdb_env_create", unsafe {
            (functions.env_create)(&raw mut environment)
        })?;
        let mut made = Self {
            functions,
            environment,
            database: 0,
        };
        // SAFETY: the environment is new and has no other owner; the path is NUL-terminated.
        unsafe {
            check(
                "mdb_env_set_mapsize",
                (functions.env_set_mapsize)(environment, map_bytes),
            )?;
            check(
                "mdb_env_set_maxreaders",
                (functions.env_set_maxreaders)(environment, READERS_MAX),
            )?;
            let flags = NO_SYNC | NO_TLS | NO_READ_AHEAD;
            check(
                "mdb_env_open",
                (functions.env_open)(environment, path.as_ptr(), flags, 0o600),
            )?;
            let mut transaction = null_mut();
            check(
                "mdb_txn_begin",
                (functions.txn_begin)(environment, null_mut(), 0, &raw mut transaction),
            )?;
            let opened =
                (functions.dbi_open)(transaction, std::ptr::null(), 0, &raw mut made.database);
            check("mdb_dbi_open", opened)?;
            check("mdb_txn_commit", (functions.txn_commit)(transaction))?;
        }
        Ok(made)
    }
}

impl Drop for Lmdb {
    fn drop(&mut self) {
        // SAFETY: sessions borrow the environment, so none is left.
        unsafe { (self.functions.env_close)(self.environment) };
    }
}

impl Engine for Lmdb {
    fn name(&self) -> &'static str {
        "lmdb"
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, String> {
        let mut reader = null_mut();
        // SAFETY: the environment is open; with `NO_TLS` a thread may have a reader beside others.
        unsafe {
            let begun = (self.functions.txn_begin)(
                self.environment,
                null_mut(),
                READ_ONLY,
                &raw mut reader,
            );
            check("mdb_txn_begin", begun)?;
            (self.functions.txn_reset)(reader);
        }
        Ok(Box::new(Reader {
            engine: self,
            reader,
        }))
    }

    fn set_durable(&self, is_durable: bool) -> Result<(), String> {
        // SAFETY: the environment is open; this flag may change at any time.
        let set = unsafe {
            (self.functions.env_set_flags)(self.environment, NO_SYNC, c_int::from(!is_durable))
        };
        check("mdb_env_set_flags", set)
    }

    fn settle(&self) -> Result<(), String> {
        // SAFETY: the environment is open.
        check("mdb_env_sync", unsafe {
            (self.functions.env_sync)(self.environment, 1)
        })
    }

    fn setup(&self) -> String {
        "a reader renewed for each get, one transaction for each put, MDB_NOSYNC where puts are not durable".to_owned()
    }
}

/// One thread's reader.
struct Reader<'a> {
    engine: &'a Lmdb,
    /// Reset between two gets, so that it blocks the reuse of no page.
    reader: *mut c_void,
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        // SAFETY: the transaction is this session's own.
        unsafe { (self.engine.functions.txn_abort)(self.reader) };
    }
}

impl Session for Reader<'_> {
    fn get(&mut self, key: &Key, value: &mut [u8]) -> Result<usize, String> {
        let functions = &self.engine.functions;
        let mut name = val(&key.name);
        let mut found = Val {
            bytes: 0,
            data: null_mut(),
        };
        // SAFETY: the reader is reset and this session's own; key and result live through the call. The value stays
        // valid in the map until the reader is reset, which happens after the copy.
        unsafe {
            check("mdb_txn_renew", (functions.txn_renew)(self.reader))?;
            let got = (functions.get)(
                self.reader,
                self.engine.database,
                &raw mut name,
                &raw mut found,
            );
            if got == 0 && found.bytes <= value.len() {
                std::ptr::copy_nonoverlapping(found.data.cast(), value.as_mut_ptr(), found.bytes);
            }
            (functions.txn_reset)(self.reader);
            check("mdb_get", got)?;
        }
        if found.bytes > value.len() {
            return Err("lmdb: the buffer is short".to_owned());
        }
        Ok(found.bytes)
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> Result<bool, String> {
        let functions = &self.engine.functions;
        let (mut name, mut data) = (val(&key.name), val(value));
        let mut transaction = null_mut();
        // SAFETY: the environment is open, key and value live through the call, and the transaction ends here.
        unsafe {
            let begun =
                (functions.txn_begin)(self.engine.environment, null_mut(), 0, &raw mut transaction);
            check("mdb_txn_begin", begun)?;
            let put = (functions.put)(
                transaction,
                self.engine.database,
                &raw mut name,
                &raw mut data,
                0,
            );
            if put != 0 {
                (functions.txn_abort)(transaction);
                return check("mdb_put", put).map(|()| false);
            }
            check("mdb_txn_commit", (functions.txn_commit)(transaction))?;
        }
        Ok(true)
    }
}

/// Wraps `bytes`. LMDB does not write to the keys and values that it is given.
fn val(bytes: &[u8]) -> Val {
    Val {
        bytes: bytes.len(),
        data: bytes.as_ptr().cast_mut().cast(),
    }
}

fn check(call: &str, status: c_int) -> Result<(), String> {
    if status == 0 {
        Ok(())
    } else {
        Err(format!("lmdb: {call}: error {status}"))
    }
}
