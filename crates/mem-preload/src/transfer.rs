//! Copies bytes from one descriptor to another; at least one of them is ours.

use std::ffi::{c_int, c_uint};

use crate::data::{lseek, pread, pwrite, write};
use crate::foreign::{fail, get, put};
use crate::next::serve;
use crate::raw;
use crate::state::ours;

/// The number of bytes that are copied at once.
const PART_BYTES: usize = 256 << 10;

/// A buffer for one part.
struct Room {
    address: *mut std::ffi::c_void,
    bytes: usize,
}

impl Room {
    fn new(count: usize) -> Option<Self> {
        let bytes = count.clamp(1, PART_BYTES).next_multiple_of(4096);
        let address = raw::memory(bytes);
        (!address.is_null()).then_some(Self { address, bytes })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        raw::give_back_memory(self.address, self.bytes);
    }
}

/// Copies up to `count` bytes from an offset of a file; `put_part` returns how much of a part it took. Returns the
/// number of bytes.
fn copy(
    from: c_int,
    mut offset: i64,
    count: usize,
    mut put_part: impl FnMut(*const std::ffi::c_void, usize) -> isize,
) -> Result<usize, c_int> {
    let Some(room) = Room::new(count) else {
        return Err(libc::ENOMEM);
    };
    let mut done = 0;
    while done < count {
        let wanted = (count - done).min(room.bytes);
        let read = pread(from, room.address, wanted, offset);
        let taken = if read > 0 {
            put_part(room.address, read as usize)
        } else {
            read
        };
        if taken < 0 && done == 0 {
            return Err(crate::foreign::errno());
        }
        if taken <= 0 {
            break;
        }
        done += taken as usize;
        offset += taken as i64;
        if taken < read {
            break;
        }
    }
    Ok(done)
}

/// The start offset of a call: the program's offset, or the descriptor's position.
fn start(fd: c_int, offset: *const i64) -> Result<i64, c_int> {
    let at = if offset.is_null() {
        lseek(fd, 0, libc::SEEK_CUR)
    } else {
        get(offset)?
    };
    match at {
        0.. => Ok(at),
        _ if offset.is_null() => Err(crate::foreign::errno()),
        _ => Err(libc::EINVAL),
    }
}

/// Stores the end offset of a call.
fn end(fd: c_int, offset: *mut i64, at: i64) {
    if offset.is_null() {
        lseek(fd, at, libc::SEEK_SET);
    } else {
        let _ = put(offset, at);
    }
}

fn send(to: c_int, from: c_int, offset: *mut i64, count: usize) -> isize {
    let count = count.min(0x7fff_f000);
    let started = match start(from, offset) {
        Ok(started) => started,
        // Only files have positions; other descriptors cannot be the source.
        Err(libc::ESPIPE) => return fail(libc::EINVAL),
        Err(errno) => return fail(errno),
    };
    match copy(from, started, count, |part, bytes| write(to, part, bytes)) {
        Ok(done) => {
            end(from, offset, started + done as i64);
            done as isize
        }
        Err(errno) => fail(errno),
    }
}

pub(crate) fn copy_range(
    from: c_int,
    from_offset: *mut i64,
    to: c_int,
    to_offset: *mut i64,
    count: usize,
) -> isize {
    let count = count.min(0x7fff_f000);
    let (started, target) = match (start(from, from_offset), start(to, to_offset)) {
        (Ok(started), Ok(target)) => (started, target),
        (Err(libc::ESPIPE), _) | (_, Err(libc::ESPIPE)) => return fail(libc::EINVAL),
        (Err(errno), _) | (_, Err(errno)) => return fail(errno),
    };
    let is_directory = |fd| {
        ours(fd).is_some_and(|(_, opened): (_, mem::Opened)| opened.flags & libc::O_DIRECTORY != 0)
    };
    if is_directory(from) || is_directory(to) {
        return fail(libc::EISDIR);
    }
    if ours(from).is_some_and(|(_, one)| one.flags & libc::O_ACCMODE == libc::O_WRONLY) {
        return fail(libc::EBADF);
    }
    let is_for_writing = |(context, other): &(&crate::state::Context, mem::Opened)| {
        other.flags & libc::O_ACCMODE != libc::O_RDONLY
            && context.flags(other) & libc::O_APPEND == 0
    };
    if ours(to).is_some_and(|other| !is_for_writing(&other)) {
        return fail(libc::EBADF);
    }
    if let Some((context, one)) = ours(from) {
        let size = crate::open::attributes_of(context, &one).map_or(0, |found| found.size);
        let (first, last) = (started as u64, target as u64);
        let left = size.saturating_sub(first).min(count as u64);
        if left == 0 {
            // Also if the requested range exceeds the last possible position.
            return 0;
        }
        let is_same = ours(to).is_some_and(|(_, other)| one.node == other.node);
        if is_same && first < last + left && last < first + left {
            return fail(libc::EINVAL);
        }
    }
    let mut at = target;
    let copied = copy(from, started, count, |part, bytes| {
        let written = pwrite(to, part, bytes, at);
        at += written.max(0) as i64;
        written
    });
    match copied {
        Ok(done) => {
            end(from, from_offset, started + done as i64);
            end(to, to_offset, target + done as i64);
            done as isize
        }
        Err(errno) => fail(errno),
    }
}

/// The number of bytes that a pipe accepts and returns at once.
const PIPE_BYTES: usize = 64 << 10;

fn is_pipe(fd: c_int) -> bool {
    let mut found: libc::stat64 = crate::foreign::zeroed();
    let arguments = [fd as usize, &raw mut found as usize, 0, 0, 0, 0];
    // SAFETY: a structure that lives as long as the call.
    unsafe { raw::checked(libc::SYS_fstat, arguments) }.is_ok()
        && found.st_mode & libc::S_IFMT == libc::S_IFIFO
}

/// The number of bytes to move at once: few if the call must not wait, and `EAGAIN` if it would have to.
fn part_for(pipe: c_int, events: i16, count: usize, flags: c_uint) -> Result<usize, c_int> {
    if flags & libc::SPLICE_F_NONBLOCK == 0 {
        return Ok(count.min(PIPE_BYTES));
    }
    let mut polled = libc::pollfd {
        fd: pipe,
        events,
        revents: 0,
    };
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let arguments = [
        &raw mut polled as usize,
        1,
        &raw const time as usize,
        0,
        0,
        0,
    ];
    // SAFETY: structures that live as long as the call.
    unsafe { raw::checked(libc::SYS_ppoll, arguments) }?;
    if polled.revents == 0 {
        Err(libc::EAGAIN)
    } else {
        Ok(count.min(libc::PIPE_BUF))
    }
}

fn into_pipe(
    from: c_int,
    from_offset: *mut i64,
    to: c_int,
    to_offset: *mut i64,
    count: usize,
    flags: c_uint,
) -> isize {
    if !to_offset.is_null() {
        return fail(libc::ESPIPE);
    }
    let moved = start(from, from_offset).and_then(|started| {
        let part = part_for(to, libc::POLLOUT, count, flags)?;
        let done = copy(from, started, part, |part, bytes| write(to, part, bytes))?;
        end(from, from_offset, started + done as i64);
        Ok(done)
    });
    moved.map_or_else(fail, |done| done as isize)
}

fn out_of_pipe(
    from: c_int,
    from_offset: *mut i64,
    to: c_int,
    to_offset: *mut i64,
    count: usize,
    flags: c_uint,
) -> isize {
    if !from_offset.is_null() {
        return fail(libc::ESPIPE);
    }
    // Bytes taken out of a pipe cannot be put back, so check the file first.
    let may_write = ours(to).is_some_and(|(context, opened)| {
        opened.flags & libc::O_ACCMODE != libc::O_RDONLY
            && context.flags(&opened) & libc::O_APPEND == 0
    });
    let moved = start(to, to_offset).and_then(|started| {
        if !may_write {
            return Err(libc::EBADF);
        }
        let part = part_for(from, libc::POLLIN, count, flags)?;
        let Some(room) = Room::new(part) else {
            return Err(libc::ENOMEM);
        };
        let arguments = [from as usize, room.address as usize, part, 0, 0, 0];
        // SAFETY: a buffer of as many bytes as requested.
        let read = unsafe { raw::checked(libc::SYS_read, arguments) }?;
        let written = pwrite(to, room.address, read, started);
        if written < 0 {
            return Err(crate::foreign::errno());
        }
        end(to, to_offset, started + written as i64);
        Ok(written as usize)
    });
    moved.map_or_else(fail, |done| done as isize)
}

serve! {
    fn sendfile [sendfile64](to: c_int, from: c_int, offset: *mut i64, count: usize) -> isize {
        if ours(to).is_none() && ours(from).is_none() {
            return sendfile::pass(to, from, offset, count);
        }
        send(to, from, offset, count)
    }

    fn copy_file_range(
        from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, count: usize,
        flags: c_uint
    ) -> isize {
        if ours(to).is_none() && ours(from).is_none() {
            return copy_file_range::pass(from, from_offset, to, to_offset, count, flags);
        }
        if flags != 0 {
            return fail(libc::EINVAL);
        }
        copy_range(from, from_offset, to, to_offset, count)
    }

    fn splice(
        from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, count: usize,
        flags: c_uint
    ) -> isize {
        match (ours(from).is_some(), ours(to).is_some()) {
            (false, false) => splice::pass(from, from_offset, to, to_offset, count, flags),
            (true, false) if is_pipe(to) => into_pipe(from, from_offset, to, to_offset, count, flags),
            (false, true) if is_pipe(from) => out_of_pipe(from, from_offset, to, to_offset, count, flags),
            _ => fail(libc::EINVAL),
        }
    }
}
