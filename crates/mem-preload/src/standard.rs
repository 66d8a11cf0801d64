//! The standard streams. The C library's streams write to the descriptor directly, without this library. If the
//! descriptor is a file of the region, the variables `stdin`, `stdout` and `stderr` point to streams of ours instead.

use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::FILE;

use crate::state::{context, ours};
use crate::stdio;

// SAFETY: variables of the C library.
unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
    fn __fpending(stream: *mut FILE) -> usize;
    fn __fpurge(stream: *mut FILE);
}

/// The C library's streams that streams of ours replace now.
static ORIGINALS: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 3];
/// Streams of ours, made when they are first needed.
static STREAMS: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 3];

const MODES: [&CStr; 3] = [c"r", c"w", c"w"];

fn variable(fd: usize) -> *mut *mut FILE {
    match fd {
        0 => &raw mut stdin,
        1 => &raw mut stdout,
        _ => &raw mut stderr,
    }
}

/// Checks all three streams, in a program that has just started.
pub(crate) fn look_at_all() {
    for fd in 0..=2 {
        changed(fd);
    }
}

/// The number of the standard stream that a program passes.
pub(crate) fn number_of(stream: *mut FILE) -> Option<c_int> {
    (0..3_usize)
        // SAFETY: variables of the C library, which hold pointers.
        .find(|fd| unsafe { *variable(*fd) } == stream)
        .map(|fd| fd as c_int)
        .or_else(|| replaced(stream))
}

/// The number of a standard stream of the C library that a stream of ours has replaced.
pub(crate) fn replaced(stream: *mut FILE) -> Option<c_int> {
    (0..3)
        .find(|fd| !stream.is_null() && ORIGINALS[*fd].load(Ordering::Relaxed) == stream)
        .map(|fd| fd as c_int)
}

/// Discards the buffer of a stream.
///
/// # Safety
/// A stream of the C library.
pub(crate) unsafe fn purge(stream: *mut FILE) {
    // SAFETY: the caller's promise.
    unsafe { __fpurge(stream) };
}

/// Called when the program closes a stream of ours that replaces a standard one.
pub(crate) fn closes(fd: c_int) {
    let place = fd as usize;
    let closed = STREAMS[place].swap(std::ptr::null_mut(), Ordering::Relaxed);
    let variable = variable(place);
    // SAFETY: a variable of the C library, which holds a pointer; the original lives as long as the process.
    unsafe {
        if *variable == closed {
            let original = ORIGINALS[place].swap(std::ptr::null_mut(), Ordering::Relaxed);
            stdio::set_descriptor(original, fd);
            *variable = original;
        }
    }
}

/// The stream that a standard variable holds.
pub(crate) fn current(fd: c_int) -> *mut FILE {
    // SAFETY: a variable of the C library, which holds a pointer.
    unsafe { *variable(fd as usize) }
}

/// Must be called with each descriptor that a call has made.
pub(crate) fn may_have_changed(fd: c_int) {
    if (0..=2).contains(&fd) {
        changed(fd);
    }
}

/// Must be called, outside of the region's code, when a standard descriptor refers to another file.
pub(crate) fn changed(fd: c_int) {
    if context().is_none() || !(0..=2).contains(&fd) {
        return;
    }
    let place = fd as usize;
    let is_ours = ours(fd).is_some_and(|(_, opened)| opened.flags & libc::O_DIRECTORY == 0);
    let original = &ORIGINALS[place];
    let is_replaced = !original.load(Ordering::Relaxed).is_null();
    if is_ours == is_replaced {
        return;
    }
    let errno = crate::foreign::errno();
    let variable = variable(place);
    // SAFETY: a variable of the C library, which holds a pointer.
    let current = unsafe { *variable };
    let new = if is_ours {
        let mut ours = STREAMS[place].load(Ordering::Relaxed);
        if ours.is_null() {
            ours = stdio::standard_stream(fd, MODES[place]);
            if ours.is_null() {
                return;
            }
            STREAMS[place].store(ours, Ordering::Relaxed);
        }
        original.store(current, Ordering::Relaxed);
        ours
    } else {
        let original = original.swap(std::ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: a stream of the C library.
        unsafe { stdio::set_descriptor(original, fd) };
        original
    };
    if !current.is_null() {
        // SAFETY: streams of the C library, or of ours; the old one is no longer used and the new one not yet.
        unsafe { stdio::take_after(current, new) };
        if place > 0 {
            hand_over(current, new);
        } else {
            give_back(current, new);
        }
        if is_ours {
            // A program that kept its address gets an error: otherwise its writes would silently go to the stub.
            // SAFETY: as above.
            unsafe { stdio::set_descriptor(current, -1) };
        }
    }
    // SAFETY: as above; the new stream lives as long as the process.
    unsafe { *variable = new };
    crate::foreign::set_errno(errno);
}

/// Moves bytes that the C library has read ahead to the new stream: the program reads them next, in every case.
fn give_back(from: *mut FILE, to: *mut FILE) {
    // SAFETY: streams that are open, and that no thread reads now. The C library accepts any number of bytes.
    unsafe {
        let bytes = stdio::unread(from);
        __fpurge(from);
        for byte in bytes.into_iter().rev() {
            libc::ungetc(byte.into(), to);
        }
    }
}

/// Writes unflushed output of the old stream to the new one, so that it goes where the descriptor now points.
fn hand_over(from: *mut FILE, to: *mut FILE) {
    // SAFETY: streams that are open; the pending bytes begin in the buffer at the address in the structure.
    unsafe {
        let pending = __fpending(from);
        if pending == 0 {
            return;
        }
        let begin = stdio::write_base(from);
        let mut copy = Vec::with_capacity(pending);
        copy.extend_from_slice(std::slice::from_raw_parts(begin, pending));
        __fpurge(from);
        libc::fwrite(copy.as_ptr().cast(), 1, copy.len(), to);
    }
}
