//! The interface to C: pointers become slices and strings, results become -1 and errno.
//!
//! Pointers of a program are trusted as in the C library: an invalid pointer is the program's fault. Only null returns
//! `EFAULT`, as in the kernel.

use std::ffi::{CStr, c_char, c_int, c_void};

/// A result with an errno.
pub(crate) type Answer<T> = Result<T, c_int>;

/// The return value of a C function that fails.
pub(crate) trait Failed {
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: Self = -1;
}

/// For `umask`, which cannot fail.
impl Failed for u32 {
    const FAILED: Self = u32::MAX;
}

/// For `signal`: `SIG_ERR`.
impl Failed for usize {
    const FAILED: Self = usize::MAX;
}

impl Failed for i64 {
    const FAILED: Self = -1;
}

impl Failed for isize {
    const FAILED: Self = -1;
}

impl Failed for () {
    const FAILED: Self = ();
}

impl<T> Failed for *mut T {
    const FAILED: Self = std::ptr::null_mut();
}

impl<T> Failed for *const T {
    const FAILED: Self = std::ptr::null();
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the C library returns the address of this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

pub(crate) fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// Sets errno and returns the failure value of a C function.
#[cold]
pub(crate) fn fail<T: Failed>(errno: c_int) -> T {
    set_errno(errno);
    T::FAILED
}

/// Returns the value, or fails as a C function does.
pub(crate) fn answer<T: Failed>(result: Answer<T>) -> T {
    result.unwrap_or_else(fail)
}

/// 0, or -1 and errno.
pub(crate) fn done(result: Answer<()>) -> c_int {
    answer(result.map(|()| 0))
}

/// A count of bytes, or -1 and errno.
pub(crate) fn counted(result: Answer<usize>) -> isize {
    answer(result.map(|count| count as isize))
}

/// Whether an address cannot be valid: null, or one of the last addresses, which stand for errors.
pub(crate) fn is_nowhere<T>(pointer: *const T) -> bool {
    const LAST: usize = 4096;
    (pointer as usize).wrapping_sub(1) >= usize::MAX - LAST
}

/// A string of the program.
pub(crate) fn string<'a>(pointer: *const c_char) -> Answer<&'a CStr> {
    if is_nowhere(pointer) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the program passes a string that ends, and keeps it as long as the call lasts.
    Ok(unsafe { CStr::from_ptr(pointer) })
}

/// Bytes that the program passes.
pub(crate) fn bytes<'a>(pointer: *const c_void, count: usize) -> Answer<&'a [u8]> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() || count > isize::MAX as usize {
        return Err(libc::EFAULT);
    }
    // SAFETY: the program passes that many bytes and keeps them as long as the call lasts.
    Ok(unsafe { std::slice::from_raw_parts(pointer.cast(), count) })
}

/// A buffer that the program passes.
pub(crate) fn room<'a>(pointer: *mut c_void, count: usize) -> Answer<&'a mut [u8]> {
    if count == 0 {
        return Ok(&mut []);
    }
    if pointer.is_null() || count > isize::MAX as usize {
        return Err(libc::EFAULT);
    }
    // SAFETY: the program passes a buffer of that many bytes, for the duration of the call. Any bytes are valid values
    // of u8.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), count) })
}

/// Values that the program passes.
pub(crate) fn values<'a, T>(pointer: *const T, count: usize) -> Answer<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the program passes that many values and keeps them as long as the call lasts.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Stores a value at the program's address.
pub(crate) fn put<T>(pointer: *mut T, value: T) -> Answer<()> {
    if is_nowhere(pointer) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the program passes the address of a value of this type.
    unsafe { pointer.write_unaligned(value) };
    Ok(())
}

/// Reads a value at the program's address.
pub(crate) fn get<T: Copy>(pointer: *const T) -> Answer<T> {
    if is_nowhere(pointer) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the program passes a value of this type.
    Ok(unsafe { pointer.read_unaligned() })
}

/// A plain structure of C, filled with zeros.
pub(crate) fn zeroed<T: Copy>() -> T {
    // SAFETY: used for structures of numbers and of pointers that may be null.
    unsafe { std::mem::zeroed() }
}
