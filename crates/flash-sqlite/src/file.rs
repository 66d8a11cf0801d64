//! The methods of an open file.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use base::block::BLOCK_BYTES;
use base::error::Code;
use flash::Error;

use crate::abi::{IoMethods, SqliteFile, characteristic, code, control, lock, open, shm};
use crate::failure::Failure;
use crate::image::poisoned;
use crate::locks::ShmHold;
use crate::node::Node;
use crate::process::Process;
use crate::vfs::{ImageUse, Vfs, split_full_name};

/// The content of the memory that SQLite keeps for an open file.
#[repr(C)]
pub(crate) struct KeelFile {
    head: SqliteFile,
    /// The pointer from `Box::into_raw`, valid until the file is closed.
    open: *mut OpenFile,
}

/// One connection's use of a file.
pub(crate) struct OpenFile {
    vfs: &'static Vfs,
    image: ImageUse,
    node: Arc<Node>,
    /// Distinguishes connections.
    id: u64,
    lock_level: c_int,
    hold: ShmHold,
    is_read_only: bool,
    is_super_journal: bool,
    delete_on_close: bool,
    keep_log: bool,
    powersafe_overwrite: bool,
}

static METHODS: IoMethods = IoMethods {
    version: 2,
    close: close_method,
    read: read_method,
    write: write_method,
    truncate: truncate_method,
    sync: sync_method,
    file_size: file_size_method,
    lock: lock_method,
    unlock: unlock_method,
    check_reserved_lock: check_reserved_lock_method,
    file_control: file_control_method,
    sector_size: sector_size_method,
    device_characteristics: device_characteristics_method,
    shm_map: shm_map_method,
    shm_lock: shm_lock_method,
    shm_barrier: shm_barrier_method,
    shm_unmap: shm_unmap_method,
};

/// Makes `file` an open file.
///
/// # Safety
/// `file` must have room for a [`KeelFile`], and no file open in it.
pub(crate) unsafe fn put_open_file(file: *mut SqliteFile, opened: OpenFile) {
    let open = Box::into_raw(Box::new(opened));
    let head = SqliteFile {
        methods: &raw const METHODS,
    };
    // SAFETY: the caller guarantees the space.
    unsafe { file.cast::<KeelFile>().write(KeelFile { head, open }) };
}

/// Returns the open file behind a pointer that SQLite passes to one of its methods.
///
/// # Safety
/// `file` must come from [`put_open_file`] and not be closed. SQLite lets one thread at a time use a file.
unsafe fn open_file<'a>(file: *mut SqliteFile) -> &'a mut OpenFile {
    // SAFETY: the caller guarantees the pointer.
    unsafe { &mut *(*file.cast::<KeelFile>()).open }
}

impl OpenFile {
    pub(crate) fn new(
        vfs: &'static Vfs,
        image: ImageUse,
        node: Arc<Node>,
        id: u64,
        flags: c_int,
        is_read_only: bool,
    ) -> Self {
        Self {
            vfs,
            image,
            node,
            id,
            lock_level: lock::NONE,
            hold: ShmHold::default(),
            is_read_only,
            is_super_journal: flags & open::SUPER_JOURNAL != 0,
            delete_on_close: flags & open::DELETEONCLOSE != 0,
            keep_log: false,
            powersafe_overwrite: true,
        }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn failed(&self, otherwise: c_int) -> impl FnOnce(Error) -> Failure + '_ {
        move |error| Failure::of_store(&error, otherwise, &self.node.name)
    }

    fn close(mut self) -> Result<c_int, Failure> {
        if let Ok(mut locks) = self.node.locks.lock() {
            locks.lower(self.id, self.lock_level, lock::NONE);
        }
        if let Ok(mut memory) = self.node.memory.lock() {
            memory.unmap(&mut self.hold);
        }
        let name = self.node.name.clone();
        let mut closed = self.image.close_file(&self.node);
        if self.delete_on_close && closed.is_ok() {
            closed = self.image.delete(&name);
        }
        closed.map_err(|error| Failure::of_store(&error, code::IOERR_CLOSE, &name))?;
        Ok(code::OK)
    }

    /// Checks that a super-journal lies in this image. A transaction over several databases commits by deleting its
    /// super-journal. All databases must be in this one store. After a power cut SQLite looks for the super-journal
    /// here, and another store may not be open then.
    fn require_same_image(&self, name: &[u8], code: c_int) -> Result<(), Failure> {
        let in_image = std::str::from_utf8(name)
            .ok()
            .and_then(split_full_name)
            .is_some_and(|(identity, _)| identity == self.image.identity);
        if in_image {
            return Ok(());
        }
        let text = format!(
            "{}: one transaction cannot change databases inside and outside of this image; commit them one by one",
            self.node.name
        );
        Err(Failure::new(code, Code::Unsupported, text))
    }

    fn control(&mut self, operation: c_int, argument: *mut c_void) -> Result<c_int, Failure> {
        let number = argument.cast::<c_int>();
        // SAFETY: SQLite documents for each of these operations what the argument points to.
        unsafe {
            match operation {
                control::LOCKSTATE => *number = self.lock_level,
                control::LAST_ERRNO => *number = self.vfs.last_errno(),
                // These are hints; the store allocates space when it is needed.
                control::SIZE_HINT | control::CHUNK_SIZE => {}
                control::PERSIST_WAL => switch(&mut self.keep_log, number),
                control::POWERSAFE_OVERWRITE => switch(&mut self.powersafe_overwrite, number),
                control::VFSNAME => {
                    let copy = (self.vfs.sqlite.mprintf)(c"%s".as_ptr(), self.vfs.name.as_ptr());
                    *argument.cast::<*mut c_char>() = copy;
                }
                control::HAS_MOVED => *number = c_int::from(self.image.is_deleted(&self.node)),
                // A transaction has ended. Without syncs its writes may still be waiting in memory, and must not be
                // lost if the process is killed.
                control::COMMIT_PHASETWO => {
                    let put = self.image.put_waiting();
                    put.map_err(self.failed(code::IOERR_WRITE))?;
                }
                control::SYNC if !argument.is_null() => {
                    let name = CStr::from_ptr(argument.cast()).to_bytes();
                    self.require_same_image(name, code::IOERR_FSYNC)?;
                }
                _ => return Ok(code::NOTFOUND),
            }
        }
        Ok(code::OK)
    }
}

/// Reads or changes a setting: SQLite reads it with a negative number and sets it with 0 or 1.
///
/// # Safety
/// `number` must point to a number.
unsafe fn switch(setting: &mut bool, number: *mut c_int) {
    // SAFETY: the caller guarantees the pointer.
    unsafe {
        if *number < 0 {
            *number = c_int::from(*setting);
        } else {
            *setting = *number != 0;
        }
    }
}

/// Runs a method on an open file.
///
/// # Safety
/// As [`open_file`].
unsafe fn method(
    file: *mut SqliteFile,
    otherwise: c_int,
    call: impl FnOnce(&mut OpenFile) -> Result<c_int, Failure>,
) -> c_int {
    // SAFETY: the caller guarantees the pointer.
    let open = unsafe { open_file(file) };
    let vfs = open.vfs;
    vfs.guard(otherwise, || {
        open.image
            .process
            .refuse_child(otherwise, &open.node.name)?;
        call(open)
    })
}

// ---- content ----

unsafe extern "C" fn close_method(file: *mut SqliteFile) -> c_int {
    // SAFETY: SQLite passes an open file.
    let process = unsafe { open_file(file) }.image.process;
    // SAFETY: SQLite closes an open file, and does so once.
    let open = unsafe {
        (*file).methods = std::ptr::null();
        if process != Process::current() {
            // A child process may close files that it has inherited; they all belong to the parent.
            return code::OK;
        }
        Box::from_raw((*file.cast::<KeelFile>()).open)
    };
    let vfs = open.vfs;
    vfs.guard(code::IOERR_CLOSE, || open.close())
}

unsafe extern "C" fn read_method(
    file: *mut SqliteFile,
    out: *mut c_void,
    bytes: c_int,
    offset: i64,
) -> c_int {
    // SAFETY: SQLite passes an open file and room for this number of bytes.
    unsafe {
        method(file, code::IOERR_READ, |open| {
            let (Ok(bytes), Ok(offset)) = (usize::try_from(bytes), u64::try_from(offset)) else {
                return Ok(code::IOERR_READ);
            };
            // The bytes may be uninitialised: clear them, so that nothing reads them before they are written.
            std::ptr::write_bytes(out.cast::<u8>(), 0, bytes);
            let buffer = std::slice::from_raw_parts_mut(out.cast::<u8>(), bytes);
            let read = open.image.read(&open.node, offset, buffer);
            let count = read.map_err(open.failed(code::IOERR_READ))?;
            buffer[count..].fill(0);
            Ok(if count < bytes {
                code::IOERR_SHORT_READ
            } else {
                code::OK
            })
        })
    }
}

unsafe extern "C" fn write_method(
    file: *mut SqliteFile,
    data: *const c_void,
    bytes: c_int,
    offset: i64,
) -> c_int {
    // SAFETY: SQLite passes an open file and this number of bytes.
    unsafe {
        method(file, code::IOERR_WRITE, |open| {
            let (Ok(bytes), Ok(offset)) = (usize::try_from(bytes), u64::try_from(offset)) else {
                return Ok(code::IOERR_WRITE);
            };
            let data = std::slice::from_raw_parts(data.cast::<u8>(), bytes);
            if open.is_super_journal {
                // Each write is the name of one journal followed by a NUL.
                open.require_same_image(
                    data.strip_suffix(b"\0").unwrap_or(data),
                    code::IOERR_WRITE,
                )?;
            }
            open.image
                .write(&open.node, offset, data)
                .map_err(open.failed(code::IOERR_WRITE))?;
            Ok(code::OK)
        })
    }
}

unsafe extern "C" fn truncate_method(file: *mut SqliteFile, length: i64) -> c_int {
    // SAFETY: SQLite passes an open file.
    unsafe {
        method(file, code::IOERR_TRUNCATE, |open| {
            let Ok(length) = u64::try_from(length) else {
                return Ok(code::IOERR_TRUNCATE);
            };
            let truncated = open.image.truncate(&open.node, length);
            truncated.map_err(open.failed(code::IOERR_TRUNCATE))?;
            Ok(code::OK)
        })
    }
}

unsafe extern "C" fn sync_method(file: *mut SqliteFile, _flags: c_int) -> c_int {
    // SAFETY: SQLite passes an open file.
    unsafe {
        method(file, code::IOERR_FSYNC, |open| {
            let synced = open.image.sync(&open.node);
            synced.map_err(open.failed(code::IOERR_FSYNC))?;
            Ok(code::OK)
        })
    }
}

unsafe extern "C" fn file_size_method(file: *mut SqliteFile, out: *mut i64) -> c_int {
    // SAFETY: SQLite passes an open file and room for a number.
    unsafe {
        method(file, code::IOERR_FSTAT, |open| {
            let length = open
                .image
                .length(&open.node)
                .map_err(open.failed(code::IOERR_FSTAT))?;
            *out = i64::try_from(length).unwrap_or(i64::MAX);
            Ok(code::OK)
        })
    }
}

// ---- locks ----

unsafe extern "C" fn lock_method(file: *mut SqliteFile, level: c_int) -> c_int {
    // SAFETY: SQLite passes an open file.
    unsafe {
        method(file, code::IOERR_LOCK, |open| {
            let mut locks = open
                .node
                .locks
                .lock()
                .map_err(|_| poisoned(code::IOERR_LOCK))?;
            let (reached, done) = locks.raise(open.id, open.lock_level, level);
            open.lock_level = reached;
            Ok(if done { code::OK } else { code::BUSY })
        })
    }
}

unsafe extern "C" fn unlock_method(file: *mut SqliteFile, level: c_int) -> c_int {
    // SAFETY: SQLite passes an open file.
    unsafe {
        method(file, code::IOERR_LOCK, |open| {
            // As above, for a version of SQLite that does not send `COMMIT_PHASETWO`.
            let put = if open.lock_level > lock::SHARED {
                open.image.put_waiting()
            } else {
                Ok(())
            };
            let mut locks = open
                .node
                .locks
                .lock()
                .map_err(|_| poisoned(code::IOERR_LOCK))?;
            locks.lower(open.id, open.lock_level, level);
            drop(locks);
            open.lock_level = open.lock_level.min(level);
            put.map_err(open.failed(code::IOERR_WRITE))?;
            Ok(code::OK)
        })
    }
}

unsafe extern "C" fn check_reserved_lock_method(file: *mut SqliteFile, out: *mut c_int) -> c_int {
    // SAFETY: SQLite passes an open file and room for a number.
    unsafe {
        method(file, code::IOERR_LOCK, |open| {
            let locks = open
                .node
                .locks
                .lock()
                .map_err(|_| poisoned(code::IOERR_LOCK))?;
            *out = c_int::from(locks.is_reserved());
            Ok(code::OK)
        })
    }
}

// ---- properties ----

unsafe extern "C" fn file_control_method(
    file: *mut SqliteFile,
    operation: c_int,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: SQLite passes an open file.
    unsafe { method(file, code::IOERR, |open| open.control(operation, argument)) }
}

unsafe extern "C" fn sector_size_method(_file: *mut SqliteFile) -> c_int {
    BLOCK_BYTES as c_int
}

/// Returns only the properties that the store guarantees; `DESIGN.md` has the reason for each.
unsafe extern "C" fn device_characteristics_method(file: *mut SqliteFile) -> c_int {
    // SAFETY: SQLite passes an open file.
    let open = unsafe { open_file(file) };
    if open.powersafe_overwrite {
        characteristic::SAFE_APPEND | characteristic::POWERSAFE_OVERWRITE
    } else {
        characteristic::SAFE_APPEND
    }
}

// ---- memory that connections in WAL mode share ----

unsafe extern "C" fn shm_map_method(
    file: *mut SqliteFile,
    region: c_int,
    bytes: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: SQLite passes an open file and room for a pointer.
    unsafe {
        *out = std::ptr::null_mut();
        method(file, code::IOERR_SHMMAP, |open| {
            let (Ok(region), Ok(bytes)) = (usize::try_from(region), usize::try_from(bytes)) else {
                return Ok(code::IOERR_SHMMAP);
            };
            let mut memory = open
                .node
                .memory
                .lock()
                .map_err(|_| poisoned(code::IOERR_SHMMAP))?;
            match memory.map(&mut open.hold, region, bytes, extend != 0) {
                Ok(mapped) => {
                    *out = mapped.unwrap_or(std::ptr::null_mut());
                    Ok(code::OK)
                }
                Err(()) => {
                    let text = format!(
                        "{}: the log is too long; let a checkpoint finish",
                        open.node.name
                    );
                    Err(Failure::new(code::FULL, Code::Full, text))
                }
            }
        })
    }
}

unsafe extern "C" fn shm_lock_method(
    file: *mut SqliteFile,
    first: c_int,
    count: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: SQLite passes an open file.
    unsafe {
        method(file, code::IOERR_SHMLOCK, |open| {
            if first < 0 || count < 1 || first + count > shm::LOCKS {
                return Ok(code::IOERR_SHMLOCK);
            }
            let mask = (((1_u16 << count) - 1) << first) as u8;
            let mut memory = open
                .node
                .memory
                .lock()
                .map_err(|_| poisoned(code::IOERR_SHMLOCK))?;
            let done = memory.lock(&mut open.hold, mask, flags);
            Ok(if done { code::OK } else { code::BUSY })
        })
    }
}

unsafe extern "C" fn shm_barrier_method(file: *mut SqliteFile) {
    fence(Ordering::SeqCst);
    // Also for a thread that orders its own accesses only by a mutex, as SQLite's own VFS does.
    // SAFETY: SQLite passes an open file.
    let open = unsafe { open_file(file) };
    if open.image.process == Process::current() {
        drop(open.node.memory.lock());
    }
}

unsafe extern "C" fn shm_unmap_method(file: *mut SqliteFile, _delete: c_int) -> c_int {
    // SAFETY: SQLite passes an open file.
    unsafe {
        method(file, code::IOERR_SHMMAP, |open| {
            let mut memory = open
                .node
                .memory
                .lock()
                .map_err(|_| poisoned(code::IOERR_SHMMAP))?;
            memory.unmap(&mut open.hold);
            Ok(code::OK)
        })
    }
}
