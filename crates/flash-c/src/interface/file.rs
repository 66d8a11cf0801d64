//! Open files.

use super::store::{keelflash_store, named};
use crate::failure::guard;
use crate::handles::{close_file, open_file, with_file};
use crate::pointer::{buffer, check_output, data, name, put};
use std::ffi::{c_char, c_void};

/// An open file of a store. Opaque. Opening a file again gives another handle; each must be closed.
#[allow(non_camel_case_types)]
pub struct keelflash_file {
    _opaque: (),
}

/// Bytes of one append that are atomic: after a power cut all of them are there or none.
pub const KEELFLASH_APPEND_ATOMIC_BYTES_MAX: usize = 11712;
/// Bytes of one overwrite within a file that are atomic.
pub const KEELFLASH_OVERWRITE_ATOMIC_BYTES_MAX: usize = 7809;
/// Bytes of a file in one block. Damage to a block costs as many, from a multiple of it on.
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

/// Opens the file `name`, which must be there.
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

/// Closes a file. Nothing is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_close_file(file: *mut keelflash_file) -> i32 {
    guard(|| close_file(file.addr()))
}

/// Appends `length` bytes; when it returns they are durable. Up to KEELFLASH_APPEND_ATOMIC_BYTES_MAX bytes are atomic;
/// of more a power cut, or a full store, may leave a part at the front.
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

/// As keelflash_append, but durable only after keelflash_sync.
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

/// Writes `length` bytes at byte `offset`; when it returns they are durable. A gap between the end of the file and
/// `offset` is filled with zeros. Up to KEELFLASH_OVERWRITE_ATOMIC_BYTES_MAX bytes within the file are atomic; of more
/// a power cut may leave a part at the front.
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

/// As keelflash_write_at, but durable only after keelflash_sync.
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

/// Makes the file `file_length` bytes long, cutting its end off or filling it up with zeros. Durable and, when the file
/// gets shorter, atomic.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keelflash_truncate(file: *mut keelflash_file, file_length: u64) -> i32 {
    guard(|| with_file(file.addr(), |store, file| store.truncate(file, file_length)))
}

/// Reads up to `length` bytes from byte `offset` on into `buffer`. `bytes_read` is how many there were: fewer than
/// `length` only at the end of the file, 0 behind it.
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

/// The length of the file in bytes.
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
