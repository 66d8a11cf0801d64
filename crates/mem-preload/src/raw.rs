//! System calls without the C library: what this library itself needs of the kernel must not come back to it by the
//! names that it serves.

use std::ffi::{c_int, c_long, c_void};

use crate::foreign::Answer;

/// A system call; what the kernel answered, which for errors is the negative errno.
///
/// # Safety
/// As for the call that `number` stands for.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn call(number: c_long, arguments: [usize; 6]) -> isize {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let answer;
    // SAFETY: the kernel's convention; it keeps all registers but these. The rest is the caller's promise.
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

/// A system call; what the kernel answered, which for errors is the negative errno.
///
/// # Safety
/// As for the call that `number` stands for.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn call(number: c_long, arguments: [usize; 6]) -> isize {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let answer;
    // SAFETY: the kernel's convention; it keeps all registers but these. The rest is the caller's promise.
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

/// As [`call`], with the error taken apart.
///
/// # Safety
/// As for the call that `number` stands for.
pub(crate) unsafe fn checked(number: c_long, arguments: [usize; 6]) -> Answer<usize> {
    // SAFETY: the caller's promise.
    let answer = unsafe { call(number, arguments) };
    if (-4095..0).contains(&answer) {
        Err(-answer as c_int)
    } else {
        Ok(answer as usize)
    }
}

/// As the C library answers: -1, with errno set.
///
/// # Safety
/// As for the call that `number` stands for.
pub(crate) unsafe fn answered(number: c_long, arguments: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    match unsafe { checked(number, arguments) } {
        Ok(answer) => answer as isize,
        Err(errno) => crate::foreign::fail(errno),
    }
}

/// Calls that take numbers alone, and so can break nothing but what the program asked to break.
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

/// New zeroed memory of this process alone; null when there is none.
pub(crate) fn memory(bytes: usize) -> *mut c_void {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    // SAFETY: a new mapping at a place that the kernel chooses touches no memory that is in use.
    match unsafe { checked(libc::SYS_mmap, [0, bytes, protection, flags, usize::MAX, 0]) } {
        Ok(address) => address as *mut c_void,
        Err(_) => std::ptr::null_mut(),
    }
}

/// Gives back what [`memory`] gave.
pub(crate) fn give_back_memory(address: *mut c_void, bytes: usize) {
    // SAFETY: callers give back what is theirs, and use it no more.
    unsafe { call(libc::SYS_munmap, [address as usize, bytes, 0, 0, 0, 0]) };
}
