//! Streams of the C library on files of the region. Its own streams call the kernel without this library, so ours are
//! made with custom functions for reading, writing, seeking and closing.

use std::ffi::{CStr, c_char, c_int, c_void};

use libc::FILE;
use mem::Last;

use crate::foreign::{bytes, fail, string};
use crate::next::serve;
use crate::open::{close_descriptor, open_at};
use crate::raw;
use crate::resolve::on_path;
use crate::state::{OrErrno, ours, served};

/// Offsets in a stream's structure; all are part of the C library's binary interface. First its flags.
const FLAGS_AT: usize = 0;
/// Bytes that were read ahead and not returned yet.
const READ_AT: usize = 8;
const READ_END_AT: usize = 16;
/// The beginning of the bytes to be written.
const WRITE_BASE_AT: usize = 32;
/// The bytes that follow, while put-back bytes are read.
const SAVED_AT: usize = 72;
const SAVED_END_AT: usize = 88;
/// Its descriptor.
const DESCRIPTOR_AT: usize = 112;

/// Flags of a stream: its buffering, and whether put-back bytes are read.
const UNBUFFERED: c_int = 2;
const LINE_BUFFERED: c_int = 0x200;
const PUT_BACK: c_int = 0x100;
const HAPPENED: c_int = 0x30;

/// Flag in the cookie of a standard stream, beside its descriptor.
const STANDARD: usize = 1 << 32;

#[repr(C)]
struct Functions {
    read: extern "C-unwind" fn(*mut c_void, *mut c_char, usize) -> isize,
    write: extern "C-unwind" fn(*mut c_void, *const c_char, usize) -> isize,
    seek: extern "C-unwind" fn(*mut c_void, *mut i64, c_int) -> c_int,
    close: extern "C-unwind" fn(*mut c_void) -> c_int,
}

// SAFETY: functions of the C library.
unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    fn vasprintf(into: *mut *mut c_char, format: *const c_char, arguments: *mut c_void) -> c_int;
}

fn descriptor(cookie: *mut c_void) -> c_int {
    cookie as usize as c_int
}

extern "C-unwind" fn read_stream(cookie: *mut c_void, into: *mut c_char, count: usize) -> isize {
    crate::data::read(descriptor(cookie), into.cast(), count)
}

extern "C-unwind" fn write_stream(cookie: *mut c_void, from: *const c_char, count: usize) -> isize {
    let written = crate::data::write(descriptor(cookie), from.cast(), count);
    // A short count tells the stream of an error; it would add a negative number to its count.
    written.max(0)
}

extern "C-unwind" fn seek_stream(cookie: *mut c_void, offset: *mut i64, whence: c_int) -> c_int {
    let Ok(wanted) = crate::foreign::get(offset) else {
        return fail(libc::EFAULT);
    };
    let position = crate::data::lseek(descriptor(cookie), wanted, whence);
    if position < 0 {
        return -1;
    }
    crate::foreign::done(crate::foreign::put(offset, position))
}

extern "C-unwind" fn close_stream(cookie: *mut c_void) -> c_int {
    if cookie as usize & STANDARD != 0 {
        crate::standard::closes(descriptor(cookie));
    }
    close_descriptor(descriptor(cookie))
}

/// Makes a stream on a descriptor of ours.
pub(crate) fn stream(fd: c_int, mode: &CStr) -> *mut FILE {
    stream_of(fd, fd as usize, mode)
}

/// Makes a stream that replaces a standard one.
pub(crate) fn standard_stream(fd: c_int, mode: &CStr) -> *mut FILE {
    stream_of(fd, fd as usize | STANDARD, mode)
}

fn stream_of(fd: c_int, cookie: usize, mode: &CStr) -> *mut FILE {
    let functions = Functions {
        read: read_stream,
        write: write_stream,
        seek: seek_stream,
        close: close_stream,
    };
    // Keep only the letters that `fopencookie` accepts.
    let mut plain = [0_u8; 4];
    let mut length = 0;
    for byte in mode.to_bytes() {
        match byte {
            b'r' | b'w' | b'a' | b'+' if length < 3 => {
                plain[length] = *byte;
                length += 1;
            }
            b',' => break,
            _ => {}
        }
    }
    // SAFETY: a string that ends in zero, and functions that live as long as the process.
    let stream = unsafe { fopencookie(cookie as *mut c_void, plain.as_ptr().cast(), functions) };
    if !stream.is_null() {
        // So that `fileno` works; only the functions above use the descriptor.
        // SAFETY: a stream that was made just now.
        unsafe { set_descriptor(stream, fd) };
    }
    stream
}

/// The address of a field in a stream's structure.
///
/// # Safety
/// A stream of the C library, and the offset of a field of this type.
unsafe fn part<T>(stream: *mut FILE, at: usize) -> *mut T {
    // SAFETY: inside the structure, by the caller's promise.
    unsafe { stream.cast::<u8>().add(at).cast() }
}

/// Sets the descriptor of a C library stream; with -1 all its calls fail.
///
/// # Safety
/// A stream of the C library.
pub(crate) unsafe fn set_descriptor(stream: *mut FILE, fd: c_int) {
    // SAFETY: inside the structure, which is part of the binary interface.
    unsafe { part::<c_int>(stream, DESCRIPTOR_AT).write(fd) };
}

/// The address of a stream's pending bytes.
///
/// # Safety
/// A stream of the C library.
pub(crate) unsafe fn write_base(stream: *mut FILE) -> *const u8 {
    // SAFETY: inside the structure, which is part of the binary interface.
    unsafe { part::<*const u8>(stream, WRITE_BASE_AT).read() }
}

/// The bytes that a stream has read ahead and the program has not taken yet.
///
/// # Safety
/// A stream of the C library that no thread uses now.
pub(crate) unsafe fn unread(stream: *mut FILE) -> Vec<u8> {
    let mut found = Vec::new();
    // SAFETY: inside the structure; the addresses point into the stream's buffer, in ascending order.
    unsafe {
        let mut take = |from: usize, to: usize| {
            let from = part::<*const u8>(stream, from).read();
            let to = part::<*const u8>(stream, to).read();
            if !from.is_null() && to > from {
                let count = to.offset_from_unsigned(from);
                found.extend_from_slice(std::slice::from_raw_parts(from, count));
            }
        };
        take(READ_AT, READ_END_AT);
        if part::<c_int>(stream, FLAGS_AT).read() & PUT_BACK != 0 {
            take(SAVED_AT, SAVED_END_AT);
        }
    }
    found
}

/// Copies a stream's buffering mode and its end and error flags to another stream.
///
/// # Safety
/// Streams of the C library that no thread uses now; the second one holds no bytes.
pub(crate) unsafe fn take_after(from: *mut FILE, to: *mut FILE) {
    // SAFETY: inside the structures.
    unsafe {
        let wanted = part::<c_int>(from, FLAGS_AT).read();
        let flags = part::<c_int>(to, FLAGS_AT);
        if (wanted ^ flags.read()) & (UNBUFFERED | LINE_BUFFERED) != 0 {
            let mode = match wanted & (UNBUFFERED | LINE_BUFFERED) {
                0 => libc::_IOFBF,
                LINE_BUFFERED => libc::_IOLBF,
                _ => libc::_IONBF,
            };
            libc::setvbuf(to, std::ptr::null_mut(), mode, 0);
        }
        flags.write(flags.read() & !HAPPENED | wanted & HAPPENED);
    }
}

/// The flags of `open` for a mode of `fopen`.
fn flags_of(mode: &CStr) -> Option<c_int> {
    let (first, rest) = mode.to_bytes().split_first()?;
    let (mut access, more) = match first {
        b'r' => (libc::O_RDONLY, 0),
        b'w' => (libc::O_WRONLY, libc::O_CREAT | libc::O_TRUNC),
        b'a' => (libc::O_WRONLY, libc::O_CREAT | libc::O_APPEND),
        _ => return None,
    };
    let mut flags = more;
    for byte in rest {
        match byte {
            b'+' => access = libc::O_RDWR,
            b'x' => flags |= libc::O_EXCL,
            b'e' => flags |= libc::O_CLOEXEC,
            b',' => break,
            _ => {}
        }
    }
    Some(access | flags)
}

fn open_stream(
    path: *const c_char,
    mode: *const c_char,
    pass: impl FnOnce(*const c_char) -> *mut FILE,
) -> *mut FILE {
    let (Ok(text), false) = (string(mode), path.is_null()) else {
        return pass(path);
    };
    let Some(flags) = flags_of(text) else {
        return pass(path);
    };
    // Only decide where the path leads; the open looks it up again.
    let last = if flags & libc::O_EXCL != 0 && flags & libc::O_CREAT != 0 {
        Last::NoFollow
    } else {
        Last::Follow
    };
    let mut kernel = None;
    on_path(
        libc::AT_FDCWD,
        path,
        last,
        |_, _, _| Ok(0),
        |_, path| {
            kernel = Some(pass(path));
            0
        },
    );
    if let Some(stream) = kernel {
        return stream;
    }
    // The open reports errors of the path.
    let fd = open_at(libc::AT_FDCWD, path, flags, 0o666);
    if fd < 0 {
        return std::ptr::null_mut();
    }
    if flags & libc::O_APPEND != 0 && flags & libc::O_ACCMODE == libc::O_WRONLY {
        // The position of an append-only stream.
        crate::data::lseek(fd, 0, libc::SEEK_END);
    }
    let stream = stream(fd, text);
    if stream.is_null() {
        close_descriptor(fd);
    }
    stream
}

serve! {
    fn fopen [fopen64, _IO_fopen](path: *const c_char, mode: *const c_char) -> *mut FILE {
        open_stream(path, mode, |path| fopen::pass(path, mode))
    }

    fn fdopen [_IO_fdopen](fd: c_int, mode: *const c_char) -> *mut FILE {
        let Some((context, opened)) = ours(fd) else {
            return fdopen::pass(fd, mode);
        };
        let Some((text, flags)) = string(mode).ok().and_then(|text| Some((text, flags_of(text)?))) else {
            return fail(libc::EINVAL);
        };
        let access = opened.flags & libc::O_ACCMODE;
        let wanted = flags & libc::O_ACCMODE;
        if access != libc::O_RDWR && access != wanted {
            return fail(libc::EINVAL);
        }
        if flags & libc::O_APPEND != 0 {
            let now = context.flags(&opened);
            context.set_flags(&opened, now | libc::O_APPEND);
        }
        stream(fd, text)
    }

    fn freopen [freopen64](
        path: *const c_char, mode: *const c_char, old: *mut FILE
    ) -> *mut FILE {
        reopen(path, mode, old)
    }

    fn perror(text: *const c_char) -> () {
        // The C library's `perror` writes to a copy of the descriptor.
        if ours(2).is_none() {
            return perror::pass(text);
        }
        let errno = crate::foreign::errno();
        let mut message = Vec::new();
        if let Ok(text) = string(text)
            && !text.is_empty()
        {
            message.extend_from_slice(text.to_bytes());
            message.extend_from_slice(b": ");
        }
        // SAFETY: the C library returns a string that ends in zero.
        message.extend_from_slice(unsafe { CStr::from_ptr(libc::strerror(errno)) }.to_bytes());
        message.push(b'\n');
        crate::data::write(2, message.as_ptr().cast(), message.len());
        crate::foreign::set_errno(errno);
    }

    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
        if ours(fd).is_none() {
            return vdprintf::pass(fd, format, arguments);
        }
        print(fd, format, arguments)
    }

    fn __vdprintf_chk(
        fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void
    ) -> c_int {
        if ours(fd).is_none() {
            return __vdprintf_chk::pass(fd, flag, format, arguments);
        }
        print(fd, format, arguments)
    }
}

fn print(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    let mut text = std::ptr::null_mut();
    // SAFETY: the program's own format and arguments, and room for a pointer.
    let length = unsafe { vasprintf(&raw mut text, format, arguments) };
    if length < 0 {
        return -1;
    }
    let written = match bytes(text.cast(), length as usize) {
        Ok(text) => crate::data::write(fd, text.as_ptr().cast(), text.len()),
        Err(_) => -1,
    };
    // SAFETY: from the C library's allocator, and no longer used.
    unsafe { libc::free(text.cast()) };
    if written < 0 { -1 } else { length }
}

/// `freopen`: a stream of the C library cannot be turned into one of ours. So the result may be another stream, on the
/// same descriptor; the variables of the standard streams are updated.
fn reopen(path: *const c_char, mode: *const c_char, old: *mut FILE) -> *mut FILE {
    if old.is_null() {
        return freopen::pass(path, mode, old);
    }
    // SAFETY: a stream of the program.
    let fd = crate::standard::replaced(old).unwrap_or_else(|| unsafe { libc::fileno(old) });
    let was_ours = fd >= 0 && ours(fd).is_some();
    let is_ours = if path.is_null() {
        was_ours
    } else {
        crate::resolve::is_inside(libc::AT_FDCWD, path)
    };
    let standard = crate::standard::number_of(old);
    if !is_ours && !was_ours {
        return freopen::pass(path, mode, old);
    }
    let Some((text, flags)) = string(mode)
        .ok()
        .and_then(|text| Some((text, flags_of(text)?)))
    else {
        return fail(libc::EINVAL);
    };
    // SAFETY: as above. Read-ahead bytes belong to the old file.
    unsafe {
        libc::fflush(old);
        crate::standard::purge(old);
    }
    let new = if path.is_null() {
        open_again(fd, flags)
    } else {
        open_at(libc::AT_FDCWD, path, flags, 0o666)
    };
    if new < 0 {
        return std::ptr::null_mut();
    }
    let number = if fd >= 0 {
        let closes_on_exec = flags & libc::O_CLOEXEC;
        let moved = crate::descriptor::dup3(new, fd, closes_on_exec);
        close_descriptor(new);
        if moved < 0 {
            return std::ptr::null_mut();
        }
        fd
    } else {
        new
    };
    if let Some(standard) = standard
        && standard == number
    {
        // The standard variable follows the descriptor.
        crate::standard::changed(number);
        let current = crate::standard::current(number);
        // SAFETY: the stream in the variable now.
        unsafe { libc::clearerr(current) };
        return current;
    }
    if was_ours {
        // Its close function would close the new stream's descriptor.
        let spare = raw::control(number, libc::F_DUPFD_CLOEXEC, 0);
        // SAFETY: a stream of the program, which must not use it after this call.
        unsafe { libc::fclose(old) };
        if let Ok(spare) = spare {
            let spare = spare as c_int;
            crate::descriptor::dup2(spare, number);
            close_descriptor(spare);
        }
    }
    if is_ours {
        stream(number, text)
    } else {
        fdopen::pass(number, mode)
    }
}

/// Opens the file of a descriptor again.
fn open_again(fd: c_int, flags: c_int) -> c_int {
    let Some((context, opened)) = ours(fd) else {
        return fail(libc::EBADF);
    };
    served(|| {
        let attributes = context
            .attachment
            .region()
            .attributes(opened.node.inode)
            .or_errno()?;
        let place = crate::resolve::Place::Found(crate::resolve::Found {
            attributes,
            parent: attributes.node(),
            name: 0..0,
            has_slash: false,
        });
        let names = mem::PathBuffer::new();
        crate::open::open_place(context, &place, &names, flags & !libc::O_EXCL, 0)
    })
}
