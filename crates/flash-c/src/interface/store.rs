//! Functions on whole stores, and on files by name.

use crate::failure::{KEELFLASH_EXISTS, KEELFLASH_IO, guard, of_device, of_store};
use crate::handles::{OpenStore, close_store, insert_store, refuse_visitor, visiting, with_store};
use crate::pointer::{data, name, path};
use base::block::{
    BLOCK_BYTES, BlockDevice, Content, DeviceError, FileDevice, FileDeviceOptions, Geometry,
    find_content, find_holder,
};
use base::error::Code;
use c_interface::Failure;
use c_interface::pointer::{check_output, put};
use flash::{FormatOptions, OpenOptions, Store};
use std::ffi::{CString, c_char, c_int, c_void};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The handle of an open store. Opaque.
#[allow(non_camel_case_types)]
pub struct keelflash_store {
    _opaque: (),
}

/// For keelflash_format: overwrite existing content. Without this flag, keelflash_format accepts only a new or empty
/// file, or a device that begins with zeros and holds no known format. A file or device that is in use or mounted is
/// never overwritten.
pub const KEELFLASH_OVERWRITE: u32 = 1;
/// For keelflash_format and keelflash_grow: do not write the whole image file now. The disk below it may then be full,
/// or slower, when the store needs the space.
pub const KEELFLASH_SPARSE: u32 = 2;
/// For keelflash_open: open read-only and change nothing. Several programs may read a store at the same time while no
/// program writes to it.
pub const KEELFLASH_READ_ONLY: u32 = 4;

/// The maximum name length of a store, in bytes, if the caller passes 0.
const NAME_BYTES_DEFAULT: u32 = 255;

/// Properties of a file that are known without reading it.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct keelflash_file_stat {
    /// Length of the file in bytes.
    pub length_bytes: u64,
    /// Number of blocks of 4 KiB that hold these bytes.
    pub blocks: u64,
    /// Number of blocks that the file owns, including those reserved for appends.
    pub blocks_owned: u64,
    /// Identity of the content: a replaced file gets a new one.
    pub file_id: u64,
}

impl keelflash_file_stat {
    fn of(stat: &flash::Stat) -> Self {
        Self {
            length_bytes: stat.length_bytes,
            blocks: stat.blocks,
            blocks_owned: stat.blocks_owned,
            file_id: stat.file_id,
        }
    }
}

/// Statistics of an open store. A later version may have more fields at the end.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct keelflash_store_statistics {
    /// Number of blocks of 4 KiB that files may own.
    pub blocks_total: u64,
    /// Number of these blocks that no file owns.
    pub blocks_free: u64,
    /// Number of files in the store.
    pub files: u64,
    /// Number of files that the name table was sized for.
    pub files_max: u64,
    /// Number of times the store has been opened for writing.
    pub mounts: u64,
    /// Read requests to the device since the store was opened.
    pub device_reads: u64,
    /// Blocks in these read requests.
    pub device_blocks_read: u64,
    /// Write requests to the device since the store was opened, each one contiguous range.
    pub device_writes: u64,
    /// Blocks in these write requests.
    pub device_blocks_written: u64,
    /// Flushes of the device since the store was opened.
    pub device_flushes: u64,
    /// Blocks of the name table whose other copy was used since the store was opened: one copy was damaged or outdated.
    pub table_blocks_healed: u64,
    /// Memory of the open store in bytes.
    pub memory_bytes: u64,
}

/// The maximum number of device operations of one call, independent of the content of the store.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct keelflash_bound {
    /// Read requests.
    pub reads: u64,
    /// Blocks of 4 KiB in these read requests.
    pub blocks_read: u64,
    /// Write requests, each one contiguous range.
    pub writes: u64,
    /// Blocks of 4 KiB in these write requests.
    pub blocks_written: u64,
    /// Flushes of the device.
    pub flushes: u64,
}

/// A function that is called with each file. A return value other than 0 ends the list. The function must not call the
/// library, and must return: no longjmp, no exception. `name` and `stat` are valid until it returns.
#[allow(non_camel_case_types)]
pub type keelflash_visit_file = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        name: *const c_char,
        stat: *const keelflash_file_stat,
    ) -> c_int,
>;

/// A function that is called with each kind of call and the bound of its device operations. A return value other than 0
/// ends the list. The function must not call the library, and must return. `call` and `bound` are valid until it
/// returns.
#[allow(non_camel_case_types)]
pub type keelflash_visit_bound = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        call: *const c_char,
        bound: *const keelflash_bound,
    ) -> c_int,
>;

/// Creates an empty store in the image file or on the block device at `path`, and opens it for writing.
///
/// `size_bytes`: size of the image file; 0 for a device, which has its own size, and for a file that must keep its
/// size. A file that is already longer always keeps its size. `files_max`: number of files for which the name table is
/// sized; not a limit. `name_bytes_max`: maximum name length in bytes, at most 255; 0 means 255. `flags`:
/// KEELFLASH_OVERWRITE, KEELFLASH_SPARSE, both, or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_format(
    path: *const c_char,
    size_bytes: u64,
    files_max: u64,
    name_bytes_max: u32,
    flags: u32,
    store: *mut *mut keelflash_store,
) -> i32 {
    guard(|| {
        check_output(store)?;
        refuse_visitor()?;
        // SAFETY: the header's rules for pointers.
        let path = unsafe { self::path(path)? };
        check_flags(flags, KEELFLASH_OVERWRITE | KEELFLASH_SPARSE)?;
        let name_bytes_max = match name_bytes_max {
            0 => NAME_BYTES_DEFAULT,
            bytes => bytes,
        };
        let options = FormatOptions {
            files_max,
            name_bytes_max: u16::try_from(name_bytes_max)
                .map_err(|_| Failure::invalid("name_bytes_max is more than 255"))?,
            uuid: random()?,
            hash_key: random()?,
        };
        let about = |failure: Failure| failure.about(&path.display().to_string());
        let made = format(path, size_bytes, &options, flags).map_err(about)?;
        let handle = insert_store(made)?;
        // SAFETY: checked above.
        unsafe { put(store, std::ptr::without_provenance_mut(handle)) };
        Ok(())
    })
}

/// A new file that is removed on drop unless the store in it was created.
struct Created(Option<PathBuf>);

impl Drop for Created {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            std::fs::remove_file(path).ok();
        }
    }
}

fn format(
    path: &Path,
    size_bytes: u64,
    options: &FormatOptions,
    flags: u32,
) -> Result<OpenStore, Failure> {
    let found = std::fs::metadata(path).ok();
    let is_new = found.is_none();
    let is_device = found.is_some_and(|found| found.file_type().is_block_device());
    if is_device && size_bytes != 0 {
        let text = "a block device has the size that it has; pass 0 as size_bytes";
        return Err(Failure::invalid(text));
    }
    let check = |bytes: u64| {
        let geometry = Geometry {
            block_count: bytes / BLOCK_BYTES as u64,
        };
        options.check(geometry).map_err(of_store)
    };
    if is_new {
        check(size_bytes)?;
    }
    // Lock the file before it is examined; this fails if another process has it open.
    let held = open_device(
        path,
        &FileDeviceOptions {
            create_bytes: is_new.then_some(0),
            ..device_options(false)
        },
    )?;
    if is_device || !is_new {
        if flags & KEELFLASH_OVERWRITE == 0 {
            refuse_content(path)?;
        }
    } else if length(path)? > 0 {
        // Another process has created a store in the file before this call locked it.
        let text = "is not empty; KEELFLASH_OVERWRITE would erase it";
        return Err(Failure::new(KEELFLASH_EXISTS, text));
    }
    let mut created = Created(is_new.then(|| path.to_path_buf()));
    let (mut device, held) = if is_device {
        check(held.geometry().block_count * BLOCK_BYTES as u64)?;
        (held, None)
    } else {
        // If this cannot become a store, the existing content must stay.
        let bytes = size_bytes.max(length(path)?);
        check(bytes)?;
        (sized(path, bytes)?, Some(held))
    };
    if flags & KEELFLASH_SPARSE == 0 {
        device.write_zeros(&mut |_| {}).map_err(of_device)?;
    }
    if !is_new {
        device.clear_ends().map_err(of_device)?;
    }
    let store = Store::format(device, options).map_err(of_store)?;
    created.0 = None;
    Ok(OpenStore { store, _held: held })
}

fn length(path: &Path) -> Result<u64, Failure> {
    let found = std::fs::metadata(path).map_err(|error| system_failure(&error))?;
    Ok(found.len())
}

/// Returns the image file with room for `bytes`. It takes no lock of its own: the caller locks the file before it
/// examines the file, and holds the lock until the end.
pub(super) fn sized(path: &Path, bytes: u64) -> Result<FileDevice, Failure> {
    open_device(
        path,
        &FileDeviceOptions {
            create_bytes: Some(bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64),
            exclusive: false,
            ..device_options(false)
        },
    )
}

pub(super) fn system_failure(error: &std::io::Error) -> Failure {
    Failure::of(Code::from_io(error), error)
}

pub(super) fn device_options(read_only: bool) -> FileDeviceOptions {
    FileDeviceOptions {
        create_bytes: None,
        read_only,
        direct: true,
        exclusive: true,
    }
}

/// Opens the device. The caller adds the path to the text of a failure.
pub(super) fn open_device(path: &Path, options: &FileDeviceOptions) -> Result<FileDevice, Failure> {
    FileDevice::open(path, options).map_err(|error| {
        let text = match &error {
            DeviceError::Open { source, .. } => source.to_string(),
            DeviceError::InUse { .. } => find_holder(path).unwrap_or_else(|| {
                "another process has it open, or this one; close it there, then try again".into()
            }),
            other => other.to_string(),
        };
        Failure::of(error.code(), text)
    })
}

fn refuse_content(path: &Path) -> Result<(), Failure> {
    let content = find_content(path).map_err(|error| system_failure(&error))?;
    let wrong = match content {
        Content::Missing | Content::Empty => return Ok(()),
        Content::Known(known) => format!("holds {}", known.join(" and ")),
        Content::Unknown => "is not empty".to_owned(),
    };
    Err(Failure::new(
        KEELFLASH_EXISTS,
        format!("{wrong}; KEELFLASH_OVERWRITE would erase it"),
    ))
}

pub(super) fn check_flags(flags: u32, known: u32) -> Result<(), Failure> {
    if flags & !known != 0 {
        return Err(Failure::invalid(format!(
            "the flags {:#x} mean nothing here",
            flags & !known
        )));
    }
    Ok(())
}

fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0_u8; N];
    // SAFETY: the kernel writes at most the given number of bytes, which `bytes` has.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    // The kernel returns up to 256 bytes completely, even if signals arrive.
    if usize::try_from(got) == Ok(N) {
        Ok(bytes)
    } else {
        let error = std::io::Error::last_os_error();
        Err(Failure::new(
            KEELFLASH_IO,
            format!("the kernel gives no random numbers: {error}"),
        ))
    }
}

/// Opens the store at `path`, and recovers it if a power cut interrupted a change. With KEELFLASH_READ_ONLY nothing is
/// written, and the store is read as if it were recovered.
///
/// `open_files_max`: maximum number of files that are open at one time; their memory is allocated now; 0 means 64.
/// `flags`: KEELFLASH_READ_ONLY or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_open(
    path: *const c_char,
    open_files_max: u32,
    flags: u32,
    store: *mut *mut keelflash_store,
) -> i32 {
    /// The largest `open_files_max`: a higher limit would only cost memory.
    const OPEN_FILES_LIMIT: usize = crate::handles::FILES_MAX;
    guard(|| {
        check_output(store)?;
        refuse_visitor()?;
        // SAFETY: the header's rules for pointers.
        let path = unsafe { self::path(path)? };
        check_flags(flags, KEELFLASH_READ_ONLY)?;
        let read_only = flags & KEELFLASH_READ_ONLY != 0;
        let mut options = OpenOptions {
            read_only,
            ..OpenOptions::default()
        };
        if open_files_max > 0 {
            options.open_files_max = open_files_max as usize;
        }
        if options.open_files_max > OPEN_FILES_LIMIT {
            let text = format!("open_files_max is more than {OPEN_FILES_LIMIT}");
            return Err(Failure::invalid(text));
        }
        let about = |failure: Failure| failure.about(&path.display().to_string());
        let device = open_device(path, &device_options(read_only)).map_err(about)?;
        let store_opened = Store::open(device, &options).map_err(|error| about(of_store(error)))?;
        let handle = insert_store(OpenStore {
            store: store_opened,
            _held: None,
        })?;
        // SAFETY: checked above.
        unsafe { put(store, std::ptr::without_provenance_mut(handle)) };
        Ok(())
    })
}

/// Closes a store and its files. If the device fails, the call returns an error, but the handle is closed all the same,
/// and nothing that was durable is lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_close(store: *mut keelflash_store) -> i32 {
    guard(|| close_store(store.addr()))
}

/// Makes all earlier writes to the store durable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_sync(store: *mut keelflash_store) -> i32 {
    guard(|| with_store(store.addr(), |store| store.sync().map_err(of_store)))
}

/// Replaces the whole content of the file `name` with `length` bytes from `data`; creates a file that does not exist.
/// Durable and atomic: after a power cut the file has the old content or the new one. Handles of the old file become
/// invalid (KEELFLASH_GONE).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_replace(
    store: *mut keelflash_store,
    name: *const c_char,
    data: *const c_void,
    length: usize,
) -> i32 {
    guard(|| {
        // SAFETY: the header's rules for pointers.
        let (name, data) = unsafe { (self::name(name)?, self::data(data, length)?) };
        with_store(store.addr(), |store| named(name, store.replace(name, data)))
    })
}

/// Deletes the file `name`. Durable and atomic. Handles of the file become invalid (KEELFLASH_GONE).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_delete(store: *mut keelflash_store, name: *const c_char) -> i32 {
    guard(|| {
        // SAFETY: the header's rules for pointers.
        let name = unsafe { self::name(name)? };
        with_store(store.addr(), |store| named(name, store.delete(name)))
    })
}

/// Renames the file `from` to `to`; replaces the file `to` if it exists. Durable and atomic. Handles of the renamed
/// file stay valid. Handles of a replaced file become invalid (KEELFLASH_GONE).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_rename(
    store: *mut keelflash_store,
    from: *const c_char,
    to: *const c_char,
) -> i32 {
    guard(|| {
        // SAFETY: the header's rules for pointers.
        let (from, to) = unsafe { (self::name(from)?, self::name(to)?) };
        let both = || format!("{from} to {to}");
        with_store(store.addr(), |store| {
            let renamed = store.rename(from, to);
            renamed.map_err(|error| of_store(error).about(&both()))
        })
    })
}

/// Writes the properties of the file `name` to `stat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_stat(
    store: *mut keelflash_store,
    name: *const c_char,
    stat: *mut keelflash_file_stat,
) -> i32 {
    guard(|| {
        check_output(stat)?;
        // SAFETY: the header's rules for pointers.
        let name = unsafe { self::name(name)? };
        let found = with_store(store.addr(), |store| named(name, store.stat(name)))?;
        // SAFETY: checked above.
        unsafe { put(stat, keelflash_file_stat::of(&found)) };
        Ok(())
    })
}

/// Calls `visit` for every file, in no particular order. `context` is passed to `visit`. If a part of the name table is
/// damaged, `visit` is still called for all files that can be read, and the call returns KEELFLASH_CORRUPT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_list(
    store: *mut keelflash_store,
    visit: keelflash_visit_file,
    context: *mut c_void,
) -> i32 {
    guard(|| {
        let Some(visit) = visit else {
            return Err(Failure::invalid("the function to visit files is NULL"));
        };
        let mut goes_on = true;
        with_store(store.addr(), |store| {
            let listed = store.list(&mut |name, stat| {
                let Ok(name) = CString::new(name) else {
                    return;
                };
                if goes_on {
                    let stat = keelflash_file_stat::of(stat);
                    // SAFETY: the caller's function, with pointers that are valid until it returns.
                    let shown = || unsafe { visit(context, name.as_ptr(), &raw const stat) };
                    goes_on = visiting(shown) == 0;
                }
            });
            if goes_on {
                listed.map_err(of_store)
            } else {
                Ok(())
            }
        })
    })
}

/// Writes the statistics of the store to `statistics`. `statistics_bytes` is sizeof(keelflash_store_statistics) in the
/// caller's header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_statistics(
    store: *mut keelflash_store,
    statistics: *mut keelflash_store_statistics,
    statistics_bytes: usize,
) -> i32 {
    guard(|| {
        check_output(statistics)?;
        if statistics_bytes < size_of::<keelflash_store_statistics>() {
            return Err(Failure::invalid(format!(
                "statistics_bytes is {statistics_bytes}, less than sizeof(keelflash_store_statistics)"
            )));
        }
        let figures = with_store(store.addr(), |store| {
            let figures = store.statistics();
            Ok(keelflash_store_statistics {
                blocks_total: figures.blocks_total,
                blocks_free: figures.blocks_free,
                files: figures.files,
                files_max: figures.files_max,
                mounts: figures.mounts,
                device_reads: figures.device.reads,
                device_blocks_read: figures.device.blocks_read,
                device_writes: figures.device.writes,
                device_blocks_written: figures.device.blocks_written,
                device_flushes: figures.device.flushes,
                table_blocks_healed: figures.table_blocks_healed,
                memory_bytes: store.bounds().memory_bytes(),
            })
        })?;
        // SAFETY: checked above.
        unsafe { put(statistics, figures) };
        Ok(())
    })
}

/// Calls `visit` with the maximum number of device operations that each call can need on this store. A text describes
/// the call. `context` is passed to `visit`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_bounds(
    store: *mut keelflash_store,
    visit: keelflash_visit_bound,
    context: *mut c_void,
) -> i32 {
    guard(|| {
        let Some(visit) = visit else {
            return Err(Failure::invalid("the function to visit bounds is NULL"));
        };
        let rows = with_store(store.addr(), |store| Ok(store.bounds().rows()))?;
        for (call, bound) in rows {
            let call = CString::new(call).unwrap_or_default();
            let bound = keelflash_bound {
                reads: bound.reads,
                blocks_read: bound.blocks_read,
                writes: bound.writes,
                blocks_written: bound.blocks_written,
                flushes: bound.flushes,
            };
            // SAFETY: the caller's function, with pointers that are valid until it returns.
            let shown = || unsafe { visit(context, call.as_ptr(), &raw const bound) };
            if visiting(shown) != 0 {
                break;
            }
        }
        Ok(())
    })
}

/// Adds the file's name to the text of a failure.
pub(super) fn named<T>(name: &str, result: flash::Result<T>) -> Result<T, Failure> {
    result.map_err(|error| of_store(error).about(name))
}
