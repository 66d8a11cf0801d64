//! Open files.

use super::store::{keelflash_store, named};
use crate::failure::guard;
use crate::handles::{close_file, open_file, with_file};
use crate::pointer::{data, name};
use c_interface::pointer::{buffer, check_output, put};
use std::ffi::{c_char, c_void};

/// The handle of an open file. Opaque. Opening a file again returns another handle; each handle must be closed.
#[allow(non_camel_case_types)]
pub struct keelflash_file {
    _opaque: (),
}

/// Maximum size of an atomic append, in bytes: after a power cut the file has all of its bytes or none.
pub const KEELFLASH_APPEND_ATOMIC_BYTES_MAX: usize = 11712;
/// Maximum size of an atomic overwrite within a file, in bytes.
pub const KEELFLASH_OVERWRITE_ATOMIC_BYTES_MAX: usize = 7809;
/// Bytes of a file in one block. A damaged block loses this number of bytes, starting at a multiple of it in the file.
pub const KEELFLASH_BLOCK_DATA_BYTES: usize = 3904;

const _: () = assert!(KEELFLASH_BLOCK_DATA_BYTES == flash::PAYLOAD_BYTES);
const _: () = assert!(KEELFLASH_APPEND_ATOMIC_BYTES_MAX == flash::APPEND_ATOMIC_BYTES_MAX);
const _: () = assert!(KEELFLASH_OVERWRITE_ATOMIC_BYTES_MAX == flash::OVERWRITE_ATOMIC_BYTES_MAX);

/// Creates the empty file `name` and opens it. Durable and atomic.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_create_file(
    store: *mut keelflash_store,
    name: *const c_char,
    file: *mut *mut keelflash_file,
) -> i32 {
    guard(|| {
        check_output(file)?;
        // SAFETY: the header's rules for pointers.
        let name = unsafe { self::name(name)? };
        let handle = open_file(store.addr(), |store| named(name, store.create(name)))?;
        // SAFETY: checked above.
        unsafe { put(file, std::ptr::without_provenance_mut(handle)) };
        Ok(())
    })
}

/// Opens the file `name`, which must exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_open_file(
    store: *mut keelflash_store,
    name: *const c_char,
    file: *mut *mut keelflash_file,
) -> i32 {
    guard(|| {
        check_output(file)?;
        // SAFETY: the header's rules for pointers.
        let name = unsafe { self::name(name)? };
        let handle = open_file(store.addr(), |store| named(name, store.open_file(name)))?;
        // SAFETY: checked above.
        unsafe { put(file, std::ptr::without_provenance_mut(handle)) };
        Ok(())
    })
}

/// Closes a file. Writes nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_close_file(file: *mut keelflash_file) -> i32 {
    guard(|| close_file(file.addr()))
}

/// Appends `length` bytes from `data`. They are durable when the call returns. An append of up to
/// KEELFLASH_APPEND_ATOMIC_BYTES_MAX bytes is atomic. Of a longer one, a power cut or a full store may leave only a
/// prefix in the file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_append(
    file: *mut keelflash_file,
    data: *const c_void,
    length: usize,
) -> i32 {
    guard(|| {
        // SAFETY: the header's rules for pointers.
        let data = unsafe { self::data(data, length)? };
        with_file(file.addr(), |store, file| store.append(file, data))
    })
}

/// Like keelflash_append, but the bytes are guaranteed to be durable only after keelflash_sync.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_append_nosync(
    file: *mut keelflash_file,
    data: *const c_void,
    length: usize,
) -> i32 {
    guard(|| {
        // SAFETY: the header's rules for pointers.
        let data = unsafe { self::data(data, length)? };
        with_file(file.addr(), |store, file| store.append_nosync(file, data))
    })
}

/// Writes `length` bytes from `data` at byte `offset`. They are durable when the call returns. A gap between the end of
/// the file and `offset` is filled with zeros. A write of up to KEELFLASH_OVERWRITE_ATOMIC_BYTES_MAX bytes within the
/// file is atomic. Of a longer write, or one that makes the file longer, a power cut may leave only a prefix.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_write_at(
    file: *mut keelflash_file,
    offset: u64,
    data: *const c_void,
    length: usize,
) -> i32 {
    guard(|| {
        // SAFETY: the header's rules for pointers.
        let data = unsafe { self::data(data, length)? };
        with_file(file.addr(), |store, file| {
            store.write_at(file, offset, data)
        })
    })
}

/// Like keelflash_write_at, but the bytes are guaranteed to be durable only after keelflash_sync.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_write_at_nosync(
    file: *mut keelflash_file,
    offset: u64,
    data: *const c_void,
    length: usize,
) -> i32 {
    guard(|| {
        // SAFETY: the header's rules for pointers.
        let data = unsafe { self::data(data, length)? };
        with_file(file.addr(), |store, file| {
            store.write_at_nosync(file, offset, data)
        })
    })
}

/// Sets the length of the file to `file_length` bytes: cuts off its end, or extends it with zeros. Durable; also atomic
/// if the file becomes shorter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_truncate(file: *mut keelflash_file, file_length: u64) -> i32 {
    guard(|| with_file(file.addr(), |store, file| store.truncate(file, file_length)))
}

/// Reads up to `length` bytes, from byte `offset`, into `buffer`. Writes the number of bytes read to `bytes_read`:
/// fewer than `length` only at the end of the file, 0 past the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_read(
    file: *mut keelflash_file,
    offset: u64,
    buffer: *mut c_void,
    length: usize,
    bytes_read: *mut usize,
) -> i32 {
    guard(|| {
        check_output(bytes_read)?;
        // SAFETY: the header's rules for pointers.
        let buffer = unsafe { self::buffer(buffer, length)? };
        let bytes = with_file(file.addr(), |store, file| store.read(file, offset, buffer))?;
        // SAFETY: checked above.
        unsafe { put(bytes_read, bytes) };
        Ok(())
    })
}

/// Writes the length of the file, in bytes, to `length_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_length(
    file: *mut keelflash_file,
    length_bytes: *mut u64,
) -> i32 {
    guard(|| {
        check_output(length_bytes)?;
        let length = with_file(file.addr(), |store, file| store.length(file))?;
        // SAFETY: checked above.
        unsafe { put(length_bytes, length) };
        Ok(())
    })
}
