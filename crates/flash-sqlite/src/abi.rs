//! The part of SQLite's C interface that an extension with a VFS uses, declared after `sqlite3.h` and `sqlite3ext.h`.
//! SQLite promises never to change these layouts; `tests/abi.rs` compares them with the header.

use std::ffi::{c_char, c_int, c_void};

/// `sqlite3_file`: the head of an open file; the VFS's own part follows it.
#[repr(C)]
pub struct SqliteFile {
    /// Null while the file is not open.
    pub methods: *const IoMethods,
}

/// `sqlite3_io_methods`, version 2.
#[repr(C)]
#[allow(
    missing_docs,
    reason = "each is the method of that name in SQLite's documentation"
)]
pub struct IoMethods {
    pub version: c_int,
    pub close: unsafe extern "C" fn(*mut SqliteFile) -> c_int,
    pub read: unsafe extern "C" fn(*mut SqliteFile, *mut c_void, c_int, i64) -> c_int,
    pub write: unsafe extern "C" fn(*mut SqliteFile, *const c_void, c_int, i64) -> c_int,
    pub truncate: unsafe extern "C" fn(*mut SqliteFile, i64) -> c_int,
    pub sync: unsafe extern "C" fn(*mut SqliteFile, c_int) -> c_int,
    pub file_size: unsafe extern "C" fn(*mut SqliteFile, *mut i64) -> c_int,
    pub lock: unsafe extern "C" fn(*mut SqliteFile, c_int) -> c_int,
    pub unlock: unsafe extern "C" fn(*mut SqliteFile, c_int) -> c_int,
    pub check_reserved_lock: unsafe extern "C" fn(*mut SqliteFile, *mut c_int) -> c_int,
    pub file_control: unsafe extern "C" fn(*mut SqliteFile, c_int, *mut c_void) -> c_int,
    pub sector_size: unsafe extern "C" fn(*mut SqliteFile) -> c_int,
    pub device_characteristics: unsafe extern "C" fn(*mut SqliteFile) -> c_int,
    pub shm_map:
        unsafe extern "C" fn(*mut SqliteFile, c_int, c_int, c_int, *mut *mut c_void) -> c_int,
    pub shm_lock: unsafe extern "C" fn(*mut SqliteFile, c_int, c_int, c_int) -> c_int,
    pub shm_barrier: unsafe extern "C" fn(*mut SqliteFile),
    pub shm_unmap: unsafe extern "C" fn(*mut SqliteFile, c_int) -> c_int,
}

/// A symbol in a library that SQLite loads.
pub type Symbol = Option<unsafe extern "C" fn()>;

/// `xDlSym` of a VFS.
pub type FindSymbol = unsafe extern "C" fn(*mut SqliteVfs, *mut c_void, *const c_char) -> Symbol;

/// `sqlite3_vfs`, version 2. SQLite documents which pointers to methods may be null; those that are called through this
/// declaration are options.
#[repr(C)]
#[allow(
    missing_docs,
    reason = "each is the member of that name in SQLite's documentation"
)]
pub struct SqliteVfs {
    pub version: c_int,
    pub file_bytes: c_int,
    pub path_bytes_max: c_int,
    pub next: *mut SqliteVfs,
    pub name: *const c_char,
    pub app_data: *mut c_void,
    pub open: Option<
        unsafe extern "C" fn(
            *mut SqliteVfs,
            *const c_char,
            *mut SqliteFile,
            c_int,
            *mut c_int,
        ) -> c_int,
    >,
    pub delete: Option<unsafe extern "C" fn(*mut SqliteVfs, *const c_char, c_int) -> c_int>,
    pub access:
        Option<unsafe extern "C" fn(*mut SqliteVfs, *const c_char, c_int, *mut c_int) -> c_int>,
    pub full_pathname:
        Option<unsafe extern "C" fn(*mut SqliteVfs, *const c_char, c_int, *mut c_char) -> c_int>,
    pub library_open: Option<unsafe extern "C" fn(*mut SqliteVfs, *const c_char) -> *mut c_void>,
    pub library_error: Option<unsafe extern "C" fn(*mut SqliteVfs, c_int, *mut c_char)>,
    pub library_symbol: Option<FindSymbol>,
    pub library_close: Option<unsafe extern "C" fn(*mut SqliteVfs, *mut c_void)>,
    pub randomness: Option<unsafe extern "C" fn(*mut SqliteVfs, c_int, *mut c_char) -> c_int>,
    pub sleep: Option<unsafe extern "C" fn(*mut SqliteVfs, c_int) -> c_int>,
    pub current_time: Option<unsafe extern "C" fn(*mut SqliteVfs, *mut f64) -> c_int>,
    pub last_error: Option<unsafe extern "C" fn(*mut SqliteVfs, c_int, *mut c_char) -> c_int>,
    pub current_time_ms: Option<unsafe extern "C" fn(*mut SqliteVfs, *mut i64) -> c_int>,
}

/// The functions of one SQLite library that the VFS calls. An extension finds them in the table that SQLite passes to
/// it; a program that links SQLite names them.
#[derive(Clone, Copy)]
pub struct Sqlite {
    /// `sqlite3_vfs_find`
    pub vfs_find: unsafe extern "C" fn(*const c_char) -> *mut SqliteVfs,
    /// `sqlite3_vfs_register`
    pub vfs_register: unsafe extern "C" fn(*mut SqliteVfs, c_int) -> c_int,
    /// `sqlite3_uri_parameter`
    pub uri_parameter: unsafe extern "C" fn(*const c_char, *const c_char) -> *const c_char,
    /// `sqlite3_log`
    pub log: unsafe extern "C" fn(c_int, *const c_char, ...),
    /// `sqlite3_mprintf`
    pub mprintf: unsafe extern "C" fn(*const c_char, ...) -> *mut c_char,
}

impl Sqlite {
    /// Returns the functions at the addresses of `sqlite3_vfs_find`, `sqlite3_vfs_register`, `sqlite3_uri_parameter`,
    /// `sqlite3_log` and `sqlite3_mprintf`, in this order: for programs that have other declarations of them.
    ///
    /// # Safety
    /// The addresses must be those of these functions, all of one SQLite library.
    #[must_use]
    pub unsafe fn at(addresses: [*const (); 5]) -> Self {
        let [vfs_find, vfs_register, uri_parameter, log, mprintf] = addresses;
        // SAFETY: the caller guarantees the functions; the members have the types of SQLite's header.
        unsafe {
            Self {
                vfs_find: function(vfs_find),
                vfs_register: function(vfs_register),
                uri_parameter: function(uri_parameter),
                log: function(log),
                mprintf: function(mprintf),
            }
        }
    }
}

/// Returns the function at an address.
///
/// # Safety
/// `F` must be the type of that function, as a function pointer.
unsafe fn function<F: Copy>(address: *const ()) -> F {
    const { assert!(size_of::<F>() == size_of::<*const ()>()) };
    // SAFETY: the caller guarantees the type; a function pointer is an address.
    unsafe { std::mem::transmute_copy(&address) }
}

/// Indices in `sqlite3_api_routines`, the table of function pointers that an extension gets, counted in pointers.
pub mod routine {
    #![allow(
        missing_docs,
        reason = "each is the place of the function of that name"
    )]
    pub const MPRINTF: usize = 69;
    pub const RESULT_NULL: usize = 84;
    pub const RESULT_TEXT: usize = 85;
    pub const VFS_FIND: usize = 141;
    pub const VFS_REGISTER: usize = 142;
    pub const CREATE_FUNCTION_V2: usize = 162;
    pub const LOG: usize = 167;
    pub const URI_PARAMETER: usize = 189;
    pub const AUTO_EXTENSION: usize = 192;
}

/// Result codes.
pub mod code {
    #![allow(
        missing_docs,
        reason = "each is the code of that name with SQLITE_ before it"
    )]
    use std::ffi::c_int;

    pub const OK: c_int = 0;
    pub const ERROR: c_int = 1;
    pub const BUSY: c_int = 5;
    pub const READONLY: c_int = 8;
    pub const IOERR: c_int = 10;
    pub const NOTFOUND: c_int = 12;
    pub const FULL: c_int = 13;
    pub const CANTOPEN: c_int = 14;
    pub const NOTADB: c_int = 26;
    pub const IOERR_READ: c_int = IOERR | 1 << 8;
    pub const IOERR_SHORT_READ: c_int = IOERR | 2 << 8;
    pub const IOERR_WRITE: c_int = IOERR | 3 << 8;
    pub const IOERR_FSYNC: c_int = IOERR | 4 << 8;
    pub const IOERR_TRUNCATE: c_int = IOERR | 6 << 8;
    pub const IOERR_FSTAT: c_int = IOERR | 7 << 8;
    pub const IOERR_DELETE: c_int = IOERR | 10 << 8;
    pub const IOERR_ACCESS: c_int = IOERR | 13 << 8;
    pub const IOERR_LOCK: c_int = IOERR | 15 << 8;
    pub const IOERR_CLOSE: c_int = IOERR | 16 << 8;
    pub const IOERR_SHMLOCK: c_int = IOERR | 20 << 8;
    pub const IOERR_SHMMAP: c_int = IOERR | 21 << 8;
    pub const IOERR_DELETE_NOENT: c_int = IOERR | 23 << 8;
    pub const IOERR_DATA: c_int = IOERR | 32 << 8;
    pub const OK_LOAD_PERMANENTLY: c_int = OK | 1 << 8;
}

/// Flags of `xOpen`.
pub mod open {
    #![allow(
        missing_docs,
        reason = "each is the flag of that name with SQLITE_OPEN_ before it"
    )]
    use std::ffi::c_int;

    pub const READONLY: c_int = 0x1;
    pub const READWRITE: c_int = 0x2;
    pub const CREATE: c_int = 0x4;
    pub const DELETEONCLOSE: c_int = 0x8;
    pub const EXCLUSIVE: c_int = 0x10;
    pub const MAIN_DB: c_int = 0x100;
    pub const TEMP_DB: c_int = 0x200;
    pub const TRANSIENT_DB: c_int = 0x400;
    pub const MAIN_JOURNAL: c_int = 0x800;
    pub const TEMP_JOURNAL: c_int = 0x1000;
    pub const SUBJOURNAL: c_int = 0x2000;
    pub const SUPER_JOURNAL: c_int = 0x4000;
    pub const WAL: c_int = 0x80000;
}

/// Levels of `xLock` and `xUnlock`.
pub mod lock {
    #![allow(
        missing_docs,
        reason = "each is the level of that name with SQLITE_LOCK_ before it"
    )]
    use std::ffi::c_int;

    pub const NONE: c_int = 0;
    pub const SHARED: c_int = 1;
    pub const RESERVED: c_int = 2;
    pub const PENDING: c_int = 3;
    pub const EXCLUSIVE: c_int = 4;
}

/// Flags of `xShmLock`, and the number of locks.
pub mod shm {
    #![allow(
        missing_docs,
        reason = "each is the flag of that name with SQLITE_SHM_ before it"
    )]
    use std::ffi::c_int;

    pub const UNLOCK: c_int = 1;
    pub const LOCK: c_int = 2;
    pub const SHARED: c_int = 4;
    pub const EXCLUSIVE: c_int = 8;
    pub const LOCKS: c_int = 8;
}

/// Operations of `xFileControl`.
pub mod control {
    #![allow(
        missing_docs,
        reason = "each is the operation of that name with SQLITE_FCNTL_ before it"
    )]
    use std::ffi::c_int;

    pub const LOCKSTATE: c_int = 1;
    pub const LAST_ERRNO: c_int = 4;
    pub const SIZE_HINT: c_int = 5;
    pub const CHUNK_SIZE: c_int = 6;
    pub const PERSIST_WAL: c_int = 10;
    pub const VFSNAME: c_int = 12;
    pub const POWERSAFE_OVERWRITE: c_int = 13;
    pub const HAS_MOVED: c_int = 20;
    pub const SYNC: c_int = 21;
    pub const COMMIT_PHASETWO: c_int = 22;
}

/// Results of `xDeviceCharacteristics`.
pub mod characteristic {
    #![allow(
        missing_docs,
        reason = "each is the flag of that name with SQLITE_IOCAP_ before it"
    )]
    use std::ffi::c_int;

    pub const SAFE_APPEND: c_int = 0x200;
    pub const POWERSAFE_OVERWRITE: c_int = 0x1000;
}

/// `SQLITE_ACCESS_EXISTS` of `xAccess`.
pub const ACCESS_EXISTS: c_int = 0;
