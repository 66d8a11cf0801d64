//! System calls without the C library: this library's own calls to the kernel must not come back to it through the
//! names that it serves.

use std::ffi::{c_int, c_long, c_void};

use crate::foreign::Answer;

/// Makes a system call. Returns the kernel's result, which is the negative errno on failure.
///
/// # Safety
/// As for the system call with this number.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn call(number: c_long, arguments: [usize; 6]) -> isize {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let answer;
    // SAFETY: the kernel's convention; it keeps all other registers. The rest is the caller's promise.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            in("r8") fifth,
            in("r9") sixth,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

/// Makes a system call. Returns the kernel's result, which is the negative errno on failure.
///
/// # Safety
/// As for the system call with this number.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn call(number: c_long, arguments: [usize; 6]) -> isize {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let answer;
    // SAFETY: the kernel's convention; it keeps all other registers. The rest is the caller's promise.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") first as isize => answer,
            in("x1") second,
            in("x2") third,
            in("x3") fourth,
            in("x4") fifth,
            in("x5") sixth,
            options(nostack),
        );
    }
    answer
}

/// As [`call`], with the error as an errno.
///
/// # Safety
/// As for the system call with this number.
pub(crate) unsafe fn checked(number: c_long, arguments: [usize; 6]) -> Answer<usize> {
    // SAFETY: the caller's promise.
    let answer = unsafe { call(number, arguments) };
    if (-4095..0).contains(&answer) {
        Err(-answer as c_int)
    } else {
        Ok(answer as usize)
    }
}

/// As [`call`], but returns -1 and sets errno on failure, like the C library.
///
/// # Safety
/// As for the system call with this number.
pub(crate) unsafe fn answered(number: c_long, arguments: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    match unsafe { checked(number, arguments) } {
        Ok(answer) => answer as isize,
        Err(errno) => crate::foreign::fail(errno),
    }
}

/// Closes a descriptor. This and the next call pass no pointers, so they only do what the program asked for.
pub(crate) fn close(fd: c_int) -> Answer<usize> {
    // SAFETY: no memory is passed.
    unsafe { checked(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) }
}

/// `fcntl` with a number for its argument.
pub(crate) fn control(fd: c_int, command: c_int, argument: usize) -> Answer<usize> {
    let arguments = [fd as usize, command as usize, argument, 0, 0, 0];
    // SAFETY: callers pass commands that take numbers.
    unsafe { checked(libc::SYS_fcntl, arguments) }
}

pub(crate) fn effective_user() -> u32 {
    // SAFETY: no memory is passed.
    unsafe { call(libc::SYS_geteuid, [0; 6]) as u32 }
}

pub(crate) fn effective_group() -> u32 {
    // SAFETY: no memory is passed.
    unsafe { call(libc::SYS_getegid, [0; 6]) as u32 }
}

pub(crate) fn write_all(fd: c_int, text: &[u8]) {
    let arguments = [fd as usize, text.as_ptr() as usize, text.len(), 0, 0, 0];
    // SAFETY: the bytes live as long as the call.
    unsafe { call(libc::SYS_write, arguments) };
}

/// New zeroed private memory; null if there is none.
pub(crate) fn memory(bytes: usize) -> *mut c_void {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    // SAFETY: a new mapping at a place that the kernel chooses touches no memory that is in use.
    match unsafe { checked(libc::SYS_mmap, [0, bytes, protection, flags, usize::MAX, 0]) } {
        Ok(address) => address as *mut c_void,
        Err(_) => std::ptr::null_mut(),
    }
}

/// Frees the memory from [`memory`].
pub(crate) fn give_back_memory(address: *mut c_void, bytes: usize) {
    // SAFETY: callers free their own memory, and do not use it afterwards.
    unsafe { call(libc::SYS_munmap, [address as usize, bytes, 0, 0, 0, 0]) };
}
