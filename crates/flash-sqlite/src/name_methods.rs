//! The methods of the VFS on names, as SQLite calls them. Calls that do not concern a file of a store are passed to the
//! default VFS.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use base::error::Code;
use flash::Error;

use crate::abi::{ACCESS_EXISTS, Sqlite, SqliteFile, SqliteVfs, Symbol, code, open};
use crate::failure::Failure;
use crate::file::{KeelFile, OpenFile, put_open_file};
use crate::image::Images;
use crate::node::{Kind, Opening};
use crate::process::PerProcess;
use crate::vfs::{IDENTITY_DIGITS, Vfs, split_full_name, text_of};

/// Maximum length of a full name in bytes: identity, slash, and the longest name that a store takes.
const PATH_BYTES_MAX: usize = IDENTITY_DIGITS + 1 + 255;

/// Registers a VFS called `name` with this SQLite, not as its default. Registering a name again changes nothing.
///
/// # Errors
/// SQLite's result code.
///
/// # Safety
/// `sqlite` must hold the functions of one SQLite library, and both it and this code must stay loaded.
pub unsafe fn register(sqlite: Sqlite, name: &CStr, images: Box<dyn Images>) -> Result<(), c_int> {
    // SAFETY: the caller guarantees the function; the name ends with a NUL.
    if !unsafe { (sqlite.vfs_find)(name.as_ptr()) }.is_null() {
        return Ok(());
    }
    // SAFETY: as above; null asks for the default.
    let parent = unsafe { (sqlite.vfs_find)(std::ptr::null()) };
    if parent.is_null() {
        return Err(code::NOTFOUND);
    }
    // SAFETY: SQLite's own VFS objects outlive the library's use.
    let parent_file_bytes = unsafe { (*parent).file_bytes };
    let vfs: &'static Vfs = Box::leak(Box::new(Vfs {
        sqlite,
        name: name.to_owned(),
        process: PerProcess::new(),
        images,
        parent,
        connections: AtomicU64::new(0),
    }));
    let object = Box::leak(Box::new(SqliteVfs {
        version: 2,
        // Temporary files are opened by the default VFS in the same place.
        file_bytes: parent_file_bytes.max(size_of::<KeelFile>() as c_int),
        path_bytes_max: PATH_BYTES_MAX as c_int,
        next: std::ptr::null_mut(),
        name: vfs.name.as_ptr(),
        app_data: std::ptr::from_ref(vfs).cast_mut().cast(),
        open: Some(open_method),
        delete: Some(delete_method),
        access: Some(access_method),
        full_pathname: Some(full_pathname_method),
        library_open: Some(library_open_method),
        library_error: Some(library_error_method),
        library_symbol: Some(library_symbol_method),
        library_close: Some(library_close_method),
        randomness: Some(randomness_method),
        sleep: Some(sleep_method),
        current_time: Some(current_time_method),
        last_error: Some(last_error_method),
        current_time_ms: Some(current_time_ms_method),
    }));
    // SAFETY: the object is complete and lives forever.
    match unsafe { (sqlite.vfs_register)(object, 0) } {
        code::OK => Ok(()),
        failed => Err(failed),
    }
}

impl Vfs {
    /// Returns the VFS behind an object that SQLite knows by our name; `None` if another copy of this library has
    /// registered it, because its memory layout may differ.
    ///
    /// # Safety
    /// `object` must be one that is registered with SQLite.
    pub(crate) unsafe fn if_ours(object: *mut SqliteVfs) -> Option<&'static Self> {
        let ours: unsafe extern "C" fn(_, _, _, _, _) -> c_int = open_method;
        // SAFETY: the caller guarantees the object; one with this method was made by `register` above.
        unsafe {
            (*object)
                .open
                .filter(|open| std::ptr::fn_addr_eq(*open, ours))
                .map(|_| Self::of(object))
        }
    }

    /// Opens a file of a store. Returns `None` if it is not a file of any open store.
    fn open_file(
        &'static self,
        name: *const c_char,
        text: &str,
        flags: c_int,
    ) -> Result<Option<OpenFile>, Failure> {
        let parameter = self
            .image_parameter(name)
            .filter(|_| flags & open::MAIN_DB != 0);
        let found = self.find(text);
        if flags & open::MAIN_DB != 0
            && flags & open::CREATE != 0
            && let Some((_, flat)) = split_full_name(text)
        {
            require_database_name(flat)?;
        }
        let (image, flat) = match (parameter, &found, split_full_name(text)) {
            (Some(path), _, Some((_, flat))) => (self.acquire_by_parameter(path)?, flat),
            (None, Some((image, flat)), _) => (self.acquire(&image.path)?, *flat),
            _ => return Ok(None),
        };
        let create = flags & open::CREATE != 0;
        let how = Opening {
            kind: Kind::of(flags),
            // A log is created only with its first content, so on a read-only store it stays empty. SQLite requests the
            // log of a database even if all of it is checkpointed.
            create: create && (!image.is_read_only || flags & open::WAL != 0),
            exclusive: create && flags & open::EXCLUSIVE != 0,
        };
        let node = image.open_file(flat, how).map_err(|error| {
            let otherwise = match error.code() {
                Code::Io => code::IOERR,
                _ => code::CANTOPEN,
            };
            Failure::of_store(&error, otherwise, flat)
        })?;
        let id = self.connections.fetch_add(1, Ordering::Relaxed);
        let is_read_only = image.is_read_only || flags & open::READWRITE == 0;
        Ok(Some(OpenFile::new(
            self,
            image,
            node,
            id,
            flags,
            is_read_only,
        )))
    }
}

/// Refuses names that SQLite treats as the journal or the log of another database, because it would delete such files.
fn require_database_name(flat: &str) -> Result<(), Failure> {
    let endings = ["-journal", "-wal", "-shm"];
    let Some(ending) = endings.iter().find(|ending| flat.ends_with(**ending)) else {
        return Ok(());
    };
    let text = format!(
        "{flat}: a database whose name ends in {ending} would be destroyed by its neighbour, as its journal or log; \
         choose another name"
    );
    Err(Failure::new(code::CANTOPEN, Code::Invalid, text))
}

unsafe extern "C" fn open_method(
    object: *mut SqliteVfs,
    name: *const c_char,
    file: *mut SqliteFile,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite passes the object that was registered, and room for a file.
    let vfs = unsafe {
        (*file).methods = std::ptr::null();
        Vfs::of(object)
    };
    const TEMPORARY: c_int =
        open::TEMP_DB | open::TRANSIENT_DB | open::TEMP_JOURNAL | open::SUBJOURNAL;
    if name.is_null() || flags & TEMPORARY != 0 {
        // SAFETY: arguments as SQLite passed them; `file_bytes` leaves room for a file of the default VFS.
        return unsafe { open_in_parent(vfs, name, file, flags, out_flags) };
    }
    let mut is_foreign = false;
    let done = vfs.guard(code::IOERR, || {
        // SAFETY: SQLite passes a string.
        let text = text_of(unsafe { CStr::from_ptr(name) })?;
        let opened = vfs.open_file(name, text, flags);
        vfs.park(None);
        let Some(opened) = opened? else {
            if flags & open::SUPER_JOURNAL != 0 && flags & open::CREATE == 0 {
                is_foreign = true;
                return Ok(code::OK);
            }
            if let Some(parent) = vfs.process.parent() {
                // A connection from before the fork has begun a transaction.
                parent.refuse_child(code::IOERR, text)?;
            }
            let text = format!("{text}: its image is not open");
            return Err(Failure::new(code::CANTOPEN, Code::NotFound, text));
        };
        if !out_flags.is_null() {
            let granted = if opened.is_read_only() {
                flags & !(open::READWRITE | open::CREATE) | open::READONLY
            } else {
                flags
            };
            // SAFETY: not null, and SQLite passes room for a number.
            unsafe { *out_flags = granted };
        }
        // SAFETY: SQLite passes room for `file_bytes` bytes, in which no file is open.
        unsafe { put_open_file(file, opened) };
        Ok(code::OK)
    });
    if done == code::OK && is_foreign {
        // This is a super-journal whose transaction is refused, see `access_method`: it names no databases.
        let flags = open::READWRITE
            | open::CREATE
            | open::EXCLUSIVE
            | open::DELETEONCLOSE
            | open::TEMP_JOURNAL;
        // SAFETY: as above; a file without a name is a temporary one.
        return unsafe { open_in_parent(vfs, std::ptr::null(), file, flags, std::ptr::null_mut()) };
    }
    done
}

unsafe fn open_in_parent(
    vfs: &Vfs,
    name: *const c_char,
    file: *mut SqliteFile,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: the default VFS lives as long as SQLite; the caller vouches for the arguments.
    unsafe {
        match (*vfs.parent).open {
            Some(open) => open(vfs.parent, name, file, flags, out_flags),
            None => code::CANTOPEN,
        }
    }
}

unsafe extern "C" fn delete_method(
    object: *mut SqliteVfs,
    name: *const c_char,
    _sync: c_int,
) -> c_int {
    // SAFETY: SQLite passes the object that was registered.
    let vfs = unsafe { Vfs::of(object) };
    vfs.guard(code::IOERR_DELETE, || {
        // SAFETY: SQLite passes a string.
        let text = text_of(unsafe { CStr::from_ptr(name) })?;
        let Some((image, flat)) = vfs.find(text) else {
            // A super-journal elsewhere belongs to another VFS.
            return Ok(if split_full_name(text).is_some() {
                code::IOERR_DELETE_NOENT
            } else {
                code::OK
            });
        };
        match image.delete(flat) {
            Ok(()) => Ok(code::OK),
            Err(Error::NotFound) => Ok(code::IOERR_DELETE_NOENT),
            Err(error) => Err(Failure::of_store(&error, code::IOERR_DELETE, flat)),
        }
    })
}

unsafe extern "C" fn access_method(
    object: *mut SqliteVfs,
    name: *const c_char,
    flags: c_int,
    result: *mut c_int,
) -> c_int {
    // SAFETY: SQLite passes the object that was registered.
    let vfs = unsafe { Vfs::of(object) };
    vfs.guard(code::IOERR_ACCESS, || {
        // SAFETY: SQLite passes a string.
        let text = text_of(unsafe { CStr::from_ptr(name) })?;
        let exists = if split_full_name(text).is_some() {
            match vfs
                .find(text)
                .map(|(image, flat)| (image.length_by_name(flat), image, flat))
            {
                // An empty journal counts as no journal, as in SQLite's own VFS.
                Some((Ok(length), image, _)) => {
                    flags == ACCESS_EXISTS && length > 0
                        || flags != ACCESS_EXISTS && !image.is_read_only
                }
                None | Some((Err(Error::NotFound), ..)) => false,
                Some((Err(error), _, flat)) => {
                    return Err(Failure::of_store(&error, code::IOERR_ACCESS, flat));
                }
            }
        } else if flags == ACCESS_EXISTS {
            // SQLite asks whether a super-journal named in a journal of ours still exists. If it lies outside the
            // store, its transaction was refused before it could commit (`file.rs`), so the journal is valid.
            true
        } else {
            // SAFETY: the default VFS lives as long as SQLite; arguments as SQLite passed them.
            return Ok(unsafe {
                match (*vfs.parent).access {
                    Some(access) => access(vfs.parent, name, flags, result),
                    None => code::IOERR_ACCESS,
                }
            });
        };
        // SAFETY: SQLite passes room for a number.
        unsafe { *result = c_int::from(exists) };
        Ok(code::OK)
    })
}

unsafe extern "C" fn full_pathname_method(
    object: *mut SqliteVfs,
    name: *const c_char,
    out_bytes: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: SQLite passes the object that was registered.
    let vfs = unsafe { Vfs::of(object) };
    vfs.guard(code::IOERR, || {
        let full = vfs.full_pathname(name)?;
        // SAFETY: SQLite passes room for this number of bytes.
        unsafe { put_text(&full, out_bytes, out) }
            .then_some(code::OK)
            .ok_or_else(|| {
                Failure::new(
                    code::CANTOPEN,
                    Code::Invalid,
                    format!("{full}: the name is too long"),
                )
            })
    })
}

/// Copies `text` followed by a NUL. Returns false, and copies nothing, if there is no room.
///
/// # Safety
/// `out` must have room for `out_bytes` bytes.
unsafe fn put_text(text: &str, out_bytes: c_int, out: *mut c_char) -> bool {
    if usize::try_from(out_bytes).is_ok_and(|room| text.len() < room) {
        // SAFETY: there is room for the text and the NUL, and `text` lies elsewhere.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), out.cast(), text.len());
            *out.add(text.len()) = 0;
        }
        true
    } else {
        false
    }
}

unsafe extern "C" fn last_error_method(
    object: *mut SqliteVfs,
    out_bytes: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: SQLite passes the object that was registered.
    let vfs = unsafe { Vfs::of(object) };
    let copied = catch_unwind(AssertUnwindSafe(|| {
        let text = vfs.last_failure_text().unwrap_or_default();
        let mut end = text
            .len()
            .min(usize::try_from(out_bytes).unwrap_or(0).saturating_sub(1));
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        if !out.is_null() {
            // SAFETY: SQLite passes room for this number of bytes.
            unsafe { put_text(&text[..end], out_bytes, out) };
        }
        vfs.last_errno()
    }));
    copied.unwrap_or(0)
}

// ---- passed on to the default VFS ----

/// Calls a method of the default VFS, which may not have it.
macro_rules! pass_on {
    ($method:ident, $member:ident, ($($argument:ident: $type:ty),*) -> $result:ty, $otherwise:expr) => {
        unsafe extern "C" fn $method(object: *mut SqliteVfs, $($argument: $type),*) -> $result {
            // SAFETY: SQLite passes the object that was registered; the default VFS lives as long as SQLite, and gets
            // the arguments unchanged.
            unsafe {
                let parent = Vfs::of(object).parent;
                match (*parent).$member {
                    Some(method) => method(parent, $($argument),*),
                    None => $otherwise,
                }
            }
        }
    };
}

pass_on!(library_open_method, library_open, (path: *const c_char) -> *mut c_void, std::ptr::null_mut());
pass_on!(library_error_method, library_error, (bytes: c_int, out: *mut c_char) -> (), ());
pass_on!(library_symbol_method, library_symbol, (library: *mut c_void, name: *const c_char) -> Symbol, None);
pass_on!(library_close_method, library_close, (library: *mut c_void) -> (), ());
pass_on!(randomness_method, randomness, (bytes: c_int, out: *mut c_char) -> c_int, 0);
pass_on!(sleep_method, sleep, (time_us: c_int) -> c_int, 0);
pass_on!(current_time_method, current_time, (out: *mut f64) -> c_int, code::ERROR);

unsafe extern "C" fn current_time_ms_method(object: *mut SqliteVfs, out: *mut i64) -> c_int {
    /// Milliseconds in a day, the unit of the older method.
    const DAY_MS: f64 = 86_400_000.0;
    // SAFETY: SQLite passes the object that was registered and room for a number; the default VFS has the newer
    // method only if its version says so.
    unsafe {
        let parent = Vfs::of(object).parent;
        if (*parent).version >= 2
            && let Some(method) = (*parent).current_time_ms
        {
            return method(parent, out);
        }
        let mut days = 0.0;
        let done = current_time_method(object, &raw mut days);
        *out = (days * DAY_MS) as i64;
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_goes_only_where_there_is_room() {
        let mut out = [1; 4];
        // SAFETY: the array has the stated size.
        unsafe {
            assert!(!put_text("four", 4, out.as_mut_ptr()));
            assert!(!put_text("", 0, out.as_mut_ptr()));
            assert!(!put_text("", -1, out.as_mut_ptr()));
            assert_eq!(out, [1; 4]);
            assert!(put_text("abc", 4, out.as_mut_ptr()));
        }
        assert_eq!(out.map(|byte| byte as u8), *b"abc\0");
    }
}
