//! The entry point of the loadable extension, and the SQL function `keel_last_error()`, which tells why an opening
//! failed: SQLite's own message has no room for the reason.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use crate::abi::{Sqlite, code, routine};
use crate::image::FileImages;
use crate::name_methods::register;
use crate::vfs::{VFS_NAME, Vfs};

/// `SQLITE_UTF8`.
const UTF8: c_int = 1;

/// `SQLITE_TRANSIENT`: SQLite copies the text before the call returns.
const TRANSIENT: isize = -1;

type Entry = unsafe extern "C" fn(*mut c_void, *mut *mut c_char, *const *const c_void) -> c_int;
type Function = unsafe extern "C" fn(*mut c_void, c_int, *mut *mut c_void);
type Ending = Option<unsafe extern "C" fn(*mut c_void)>;
type CreateFunction = unsafe extern "C" fn(
    *mut c_void,
    *const c_char,
    c_int,
    c_int,
    *mut c_void,
    Option<Function>,
    Option<Function>,
    Ending,
    Ending,
) -> c_int;

/// The function table of the SQLite library that has loaded this one.
static ROUTINES: OnceLock<Routines> = OnceLock::new();

#[derive(Clone, Copy, PartialEq, Eq)]
struct Routines(*const *const c_void);

// SAFETY: the table is a constant of SQLite's.
unsafe impl Send for Routines {}
// SAFETY: as above.
unsafe impl Sync for Routines {}

impl Routines {
    /// Returns the function at `place`.
    ///
    /// # Safety
    /// `F` must be the type of that function, as a function pointer.
    unsafe fn get<F: Copy>(self, place: usize) -> F {
        // SAFETY: the table has had all requested places since version 3.8.7 of SQLite, and a function pointer in each.
        unsafe { self.0.add(place).cast::<F>().read() }
    }

    /// # Safety
    /// The table must be the one that SQLite passes to extensions.
    unsafe fn sqlite(self) -> Sqlite {
        // SAFETY: the members have the types that SQLite's header gives the functions.
        unsafe {
            Sqlite {
                vfs_find: self.get(routine::VFS_FIND),
                vfs_register: self.get(routine::VFS_REGISTER),
                uri_parameter: self.get(routine::URI_PARAMETER),
                log: self.get(routine::LOG),
                mprintf: self.get(routine::MPRINTF),
            }
        }
    }
}

/// The function that SQLite calls when it loads `libkeelsqlite`. It registers the VFS `keel`, and the function
/// `keel_last_error()` with this connection and all later ones. The library stays loaded.
///
/// # Safety
/// Only SQLite may call this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_keelsqlite_init(
    database: *mut c_void,
    _message: *mut *mut c_char,
    table: *const *const c_void,
) -> c_int {
    let registered = catch_unwind(AssertUnwindSafe(|| {
        let routines = Routines(table);
        if *ROUTINES.get_or_init(|| routines) != routines {
            // Another SQLite library in the same process: its objects must not be mixed with those of the first.
            return Err(code::ERROR);
        }
        // SAFETY: SQLite passes its own table, and stays loaded; the code returned below keeps this library loaded.
        unsafe { register(routines.sqlite(), VFS_NAME, Box::new(FileImages)) }?;
        // SAFETY: the type is that of the function; SQLite calls the entry as it calls this one.
        let auto_extension: unsafe extern "C" fn(Entry) -> c_int =
            unsafe { routines.get(routine::AUTO_EXTENSION) };
        // SAFETY: as above.
        result(unsafe { auto_extension(add_function) })?;
        // SAFETY: the arguments are as SQLite passed them.
        result(unsafe { add_function(database, std::ptr::null_mut(), table) })
    }));
    match registered {
        Ok(Ok(())) => code::OK_LOAD_PERMANENTLY,
        Ok(Err(failed)) => failed,
        Err(_) => code::ERROR,
    }
}

fn result(done: c_int) -> Result<(), c_int> {
    match done {
        code::OK => Ok(()),
        failed => Err(failed),
    }
}

/// Adds `keel_last_error()` to a connection.
unsafe extern "C" fn add_function(
    database: *mut c_void,
    _message: *mut *mut c_char,
    table: *const *const c_void,
) -> c_int {
    let none = std::ptr::null_mut();
    // SAFETY: the type is that of the function; the name is a constant.
    unsafe {
        let create: CreateFunction = Routines(table).get(routine::CREATE_FUNCTION_V2);
        create(
            database,
            c"keel_last_error".as_ptr(),
            0,
            UTF8,
            none,
            Some(last_error),
            None,
            None,
            None,
        )
    }
}

/// Returns the line of text for the last failed call of the VFS, or NULL.
unsafe extern "C" fn last_error(context: *mut c_void, _count: c_int, _values: *mut *mut c_void) {
    let Some(routines) = ROUTINES.get() else {
        return;
    };
    // SAFETY: the types are those of the functions; SQLite passes a context.
    unsafe {
        let result_null: unsafe extern "C" fn(*mut c_void) = routines.get(routine::RESULT_NULL);
        let result_text: unsafe extern "C" fn(*mut c_void, *const c_char, c_int, isize) =
            routines.get(routine::RESULT_TEXT);
        let find = routines.sqlite().vfs_find;
        let text = catch_unwind(AssertUnwindSafe(|| {
            let object = find(VFS_NAME.as_ptr());
            (!object.is_null())
                .then(|| Vfs::if_ours(object)?.last_failure_text())
                .flatten()
        }));
        match text {
            Ok(Some(text)) => {
                let bytes = c_int::try_from(text.len()).unwrap_or(0);
                result_text(context, text.as_ptr().cast(), bytes, TRANSIENT);
            }
            _ => result_null(context),
        }
    }
}
