//! Reading and writing, positions and lengths.

use std::ffi::{c_char, c_int, c_void};
use std::io::{IoSlice, IoSliceMut};

use mem::{Attachment, Last, LastFile, Opened};

use crate::foreign::{Answer, answer, bytes, counted, done, fail, room, values};
use crate::next::serve;
use crate::open::attributes_of;
use crate::raw;
use crate::resolve::{Place, on_path};
use crate::state::{Context, OrErrno, context, ours};
use crate::table;
use crate::thread::{self, Inside};

/// Maximum number of bytes that one call transfers, as in the kernel.
const BYTES_AT_ONCE: usize = 0x7fff_f000;

/// Runs a call on the bytes of an open file. As [`crate::state::served`], but no code in it changes errno.
#[inline]
fn moved(run: impl FnOnce() -> mem::Result<usize>) -> isize {
    let result = {
        let _inside = Inside::enter();
        run()
    };
    match result {
        Ok(count) => count as isize,
        Err(error) => fail(error.errno()),
    }
}

#[inline]
fn offset_of(offset: i64) -> Answer<u64> {
    u64::try_from(offset).map_err(|_| libc::EINVAL)
}

/// The start of a call on `count` bytes. All of them must lie before the last possible position.
#[inline]
fn start_of(offset: i64, count: usize) -> Answer<u64> {
    match offset.checked_add_unsigned(count as u64) {
        Some(_) => offset_of(offset),
        None => Err(libc::EINVAL),
    }
}

/// As the kernel: reads longer than the limit are cut.
fn read_now(fd: c_int, into: *mut c_void, count: usize) -> Option<isize> {
    let (context, opened) = ours(fd)?;
    context.register_thread();
    let into = match room(into, count.min(BYTES_AT_ONCE)) {
        Ok(into) => into,
        Err(errno) => return Some(fail(errno)),
    };
    Some(moved(|| context.attachment.read(&opened, into)))
}

/// The common case of reads and writes: on the file of this thread's last call, which has not changed since. With as
/// few instructions as possible: see [`LastFile`].
#[inline(always)]
fn as_before(
    fd: c_int,
    run: impl FnOnce(&LastFile, &Attachment) -> Option<usize>,
) -> Option<isize> {
    let context = context()?;
    let thread = thread::current();
    if thread.last.key() != (fd as u64, table::word(fd)) {
        return None;
    }
    let _inside = Inside::of(thread);
    run(&thread.last, &context.attachment).map(|count| count as isize)
}

#[inline(always)]
fn read_as_before(fd: c_int, into: *mut c_void, count: usize, offset: i64) -> Option<isize> {
    if into.is_null() || count > isize::MAX as usize {
        return None;
    }
    as_before(fd, |last, attachment| {
        // SAFETY: the program passes a buffer of that many bytes, for the duration of the call.
        let into = unsafe { std::slice::from_raw_parts_mut(into.cast(), count) };
        // An offset below 0 becomes one that no file has.
        last.read(attachment, offset as u64, into)
    })
}

#[inline(always)]
fn write_as_before(fd: c_int, from: *const c_void, count: usize, offset: i64) -> Option<isize> {
    if from.is_null() || count > isize::MAX as usize {
        return None;
    }
    as_before(fd, |last, attachment| {
        // SAFETY: the program passes that many bytes, and keeps them as long as the call lasts.
        let from = unsafe { std::slice::from_raw_parts(from.cast(), count) };
        last.write(attachment, offset as u64, from)
    })
}

/// Called after a long call, so that the next one may be a short one.
fn remember(context: &Context, opened: &Opened, (fd, word): (c_int, u64), is_write: bool) {
    if word != 0 {
        let last = &thread::current().last;
        last.remember(&context.attachment, opened, (fd as u64, word), is_write);
    }
}

#[inline(never)]
fn read_at_now(fd: c_int, into: *mut c_void, count: usize, offset: i64) -> Option<isize> {
    // Read the word before the descriptor's state: if the state changes meanwhile, the word differs.
    let word = table::word(fd);
    let (context, opened) = ours(fd)?;
    match (
        room(into, count.min(BYTES_AT_ONCE)),
        start_of(offset, count),
    ) {
        (Ok(into), Ok(offset)) => {
            let inside = Inside::enter();
            let count = context.attachment.read_undisturbed(&opened, offset, into);
            if let Some(count) = count {
                remember(context, &opened, (fd, word), false);
                return Some(count as isize);
            }
            drop(inside);
            context.register_thread();
            Some(moved(|| context.attachment.read_at(&opened, offset, into)))
        }
        (Err(errno), _) | (_, Err(errno)) => Some(refused(errno, offset, opened.may_read())),
    }
}

/// The error for invalid numbers: EBADF comes first if the descriptor is not open for this, except for a negative
/// offset.
#[cold]
fn refused(errno: c_int, offset: i64, is_open_for_it: bool) -> isize {
    fail(if offset >= 0 && !is_open_for_it {
        libc::EBADF
    } else {
        errno
    })
}

fn write_now(fd: c_int, from: *const c_void, count: usize) -> Option<isize> {
    let (context, opened) = ours(fd)?;
    context.register_thread();
    match bytes(from, count.min(BYTES_AT_ONCE)) {
        Ok(from) => Some(moved(|| context.attachment.write(&opened, from))),
        Err(errno) => Some(fail(errno)),
    }
}

#[inline(never)]
fn write_at_now(fd: c_int, from: *const c_void, count: usize, offset: i64) -> Option<isize> {
    let word = table::word(fd);
    let (context, opened) = ours(fd)?;
    context.register_thread();
    match (
        bytes(from, count.min(BYTES_AT_ONCE)),
        start_of(offset, count),
    ) {
        (Ok(from), Ok(offset)) => Some(moved(|| {
            let written = context.attachment.write_at(&opened, offset, from)?;
            remember(context, &opened, (fd, word), true);
            Ok(written)
        })),
        (Err(errno), _) | (_, Err(errno)) => Some(refused(errno, offset, opened.may_write())),
    }
}

serve! {
    fn read [__read](fd: c_int, into: *mut c_void, count: usize) -> isize {
        crate::cancel::point();
        if let Some(answer) = read_now(fd, into, count) {
            return answer;
        }
        if thread::is_inside() {
            let arguments = [fd as usize, into as usize, count, 0, 0, 0];
            // SAFETY: the library's own call, which is no cancellation point.
            return unsafe { raw::answered(libc::SYS_read, arguments) };
        }
        read::pass(fd, into, count)
    }

    fn write [__write](fd: c_int, from: *const c_void, count: usize) -> isize {
        crate::cancel::point();
        if let Some(answer) = write_now(fd, from, count) {
            return answer;
        }
        if thread::is_inside() {
            let arguments = [fd as usize, from as usize, count, 0, 0, 0];
            // SAFETY: the library's own call, which is no cancellation point.
            return unsafe { raw::answered(libc::SYS_write, arguments) };
        }
        write::pass(fd, from, count)
    }

    fn pread [pread64, __pread64, __libc_pread](fd: c_int, into: *mut c_void, count: usize, offset: i64) -> isize {
        crate::cancel::point();
        if let Some(answer) = read_as_before(fd, into, count, offset) {
            return answer;
        }
        match read_at_now(fd, into, count, offset) {
            Some(answer) => answer,
            None if thread::is_inside() => {
                let arguments = [fd as usize, into as usize, count, offset as usize, 0, 0];
                // SAFETY: the library's own call, which is no cancellation point.
                unsafe { raw::answered(libc::SYS_pread64, arguments) }
            }
            None => pread::pass(fd, into, count, offset),
        }
    }

    fn pwrite [pwrite64, __pwrite64, __libc_pwrite](
        fd: c_int, from: *const c_void, count: usize, offset: i64
    ) -> isize {
        crate::cancel::point();
        if let Some(answer) = write_as_before(fd, from, count, offset) {
            return answer;
        }
        match write_at_now(fd, from, count, offset) {
            Some(answer) => answer,
            None => pwrite::pass(fd, from, count, offset),
        }
    }

    fn __read_chk(fd: c_int, into: *mut c_void, count: usize, room: usize) -> isize {
        crate::cancel::point();
        if count <= room
            && let Some(answer) = read_now(fd, into, count)
        {
            return answer;
        }
        __read_chk::pass(fd, into, count, room)
    }

    fn __pread_chk [__pread64_chk](
        fd: c_int, into: *mut c_void, count: usize, offset: i64, room: usize
    ) -> isize {
        crate::cancel::point();
        if count <= room
            && let Some(answer) = read_at_now(fd, into, count, offset)
        {
            return answer;
        }
        __pread_chk::pass(fd, into, count, offset, room)
    }

    fn readv(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize {
        crate::cancel::point();
        match ours(fd) {
            Some((context, opened)) => read_parts(context, &opened, parts, count, None),
            None => readv::pass(fd, parts, count),
        }
    }

    fn writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize {
        crate::cancel::point();
        match ours(fd) {
            Some((context, opened)) => write_parts(context, &opened, parts, count, None, false),
            None => writev::pass(fd, parts, count),
        }
    }

    fn preadv [preadv64](fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64) -> isize {
        crate::cancel::point();
        match ours(fd) {
            Some((context, opened)) => read_parts(context, &opened, parts, count, Some(offset)),
            None => preadv::pass(fd, parts, count, offset),
        }
    }

    fn pwritev [pwritev64](
        fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64
    ) -> isize {
        crate::cancel::point();
        match ours(fd) {
            Some((context, opened)) => write_parts(context, &opened, parts, count, Some(offset), false),
            None => pwritev::pass(fd, parts, count, offset),
        }
    }

    fn preadv2 [preadv64v2](
        fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int
    ) -> isize {
        crate::cancel::point();
        match ours(fd) {
            Some(_) if flags & !READ_FLAGS != 0 => fail(libc::EOPNOTSUPP),
            Some((context, opened)) => {
                let offset = (offset != -1).then_some(offset);
                read_parts(context, &opened, parts, count, offset)
            }
            None => preadv2::pass(fd, parts, count, offset, flags),
        }
    }

    fn pwritev2 [pwritev64v2](
        fd: c_int, parts: *const libc::iovec, count: c_int, offset: i64, flags: c_int
    ) -> isize {
        crate::cancel::point();
        match ours(fd) {
            Some(_) if flags & !WRITE_FLAGS != 0 => fail(libc::EOPNOTSUPP),
            Some((context, opened)) => {
                let offset = (offset != -1).then_some(offset);
                let appends = flags & libc::RWF_APPEND != 0;
                write_parts(context, &opened, parts, count, offset, appends)
            }
            None => pwritev2::pass(fd, parts, count, offset, flags),
        }
    }
}

/// `RWF_*` flags that memory satisfies anyway.
const READ_FLAGS: c_int = libc::RWF_HIPRI | libc::RWF_NOWAIT;
const WRITE_FLAGS: c_int = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_APPEND;

/// The number of buffers of one call that are checked at once; longer lists are served in several steps.
const PARTS_AT_ONCE: usize = 64;

fn parts<'a>(parts: *const libc::iovec, count: c_int) -> Answer<&'a [libc::iovec]> {
    if !(0..=libc::UIO_MAXIOV).contains(&count) {
        return Err(libc::EINVAL);
    }
    let parts = values(parts, count as usize)?;
    let mut total = 0_usize;
    for part in parts {
        total = total
            .checked_add(part.iov_len)
            .filter(|total| isize::try_from(*total).is_ok())
            .ok_or(libc::EINVAL)?;
    }
    Ok(parts)
}

fn read_parts(
    context: &Context,
    opened: &Opened,
    list: *const libc::iovec,
    count: c_int,
    offset: Option<i64>,
) -> isize {
    context.register_thread();
    counted((|| {
        let mut offset = offset.map(offset_of).transpose()?;
        let mut done = 0;
        let _inside = Inside::enter();
        let list = parts(list, count)?;
        if list.is_empty() {
            return context.attachment.read(opened, &mut []).or_errno();
        }
        for some in list.chunks(PARTS_AT_ONCE) {
            let mut slices: [IoSliceMut<'_>; PARTS_AT_ONCE] =
                std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let mut wanted = 0;
            for (slice, part) in slices.iter_mut().zip(some) {
                *slice = IoSliceMut::new(room(part.iov_base, part.iov_len)?);
                wanted += part.iov_len;
            }
            let slices = &mut slices[..some.len()];
            let read = match offset {
                Some(at) => context.attachment.read_vectored_at(opened, at, slices),
                None => context.attachment.read_vectored(opened, slices),
            };
            match read {
                Ok(read) => {
                    done += read;
                    offset = offset.map(|at| at + read as u64);
                    if read < wanted {
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error.errno()),
                Err(_) => break,
            }
        }
        Ok(done)
    })())
}

fn write_parts(
    context: &Context,
    opened: &Opened,
    list: *const libc::iovec,
    count: c_int,
    offset: Option<i64>,
    appends: bool,
) -> isize {
    context.register_thread();
    counted((|| {
        let mut offset = offset.map(offset_of).transpose()?;
        let mut done = 0;
        let _inside = Inside::enter();
        let list = parts(list, count)?;
        if list.is_empty() {
            return context.attachment.write(opened, &[]).or_errno();
        }
        for some in list.chunks(PARTS_AT_ONCE) {
            let mut slices: [IoSlice<'_>; PARTS_AT_ONCE] =
                std::array::from_fn(|_| IoSlice::new(&[]));
            for (slice, part) in slices.iter_mut().zip(some) {
                *slice = IoSlice::new(bytes(part.iov_base, part.iov_len)?);
            }
            let slices = &slices[..some.len()];
            let attachment = &context.attachment;
            let written = match offset {
                _ if appends => attachment.append_vectored(opened, slices, offset.is_none()),
                Some(at) => attachment.write_vectored_at(opened, at, slices),
                None => attachment.write_vectored(opened, slices),
            };
            match written {
                Ok(written) => {
                    done += written;
                    offset = offset.map(|at| at + written as u64);
                }
                Err(error) if done == 0 => return Err(error.errno()),
                Err(_) => break,
            }
        }
        Ok(done)
    })())
}

serve! {
    fn lseek [lseek64, llseek, __lseek](fd: c_int, offset: i64, whence: c_int) -> i64 {
        match ours(fd) {
            Some(_) if thread::is_inside() => lseek::pass(fd, offset, whence),
            Some((context, opened)) => {
                let _inside = Inside::enter();
                answer(
                    seek_allowed(&opened)
                        .and_then(|()| context.attachment.seek(&opened, offset, whence).or_errno())
                        .map(|position| position as i64),
                )
            }
            None => lseek::pass(fd, offset, whence),
        }
    }

    fn ftruncate [ftruncate64](fd: c_int, size: i64) -> c_int {
        match ours(fd) {
            Some((context, opened)) => {
                context.register_thread();
                let _inside = Inside::enter();
                done((|| {
                    let size = offset_of(size)?;
                    require_for_writing(&opened)?;
                    // As in the kernel: a descriptor that is not open for writing is an invalid argument here.
                    set_size(context, opened.node, size)
                })())
            }
            None => ftruncate::pass(fd, size),
        }
    }

    fn truncate [truncate64](path: *const c_char, size: i64) -> c_int {
        on_path(
            libc::AT_FDCWD,
            path,
            Last::Follow,
            |context, place, _| {
                let size = offset_of(size)?;
                let attributes = match place {
                    Place::Found(found) => found.attributes,
                    Place::Descriptor(opened) => attributes_of(context, &opened)?,
                    Place::Missing(_) => return Err(libc::ENOENT),
                };
                if attributes.is_directory() {
                    return Err(libc::EISDIR);
                }
                crate::open::require(context, &attributes, 2)?;
                if !context.is_writable {
                    return Err(libc::EROFS);
                }
                set_size(context, attributes.node(), size).map(|()| 0)
            },
            |_, path| truncate::pass(path, size),
        )
    }

    fn fallocate [fallocate64](fd: c_int, mode: c_int, offset: i64, length: i64) -> c_int {
        match ours(fd) {
            Some((context, opened)) => {
                context.register_thread();
                let _inside = Inside::enter();
                done(allocate(context, &opened, mode, offset, length))
            }
            None if thread::is_inside() => {
                let arguments = [
                    fd as usize,
                    mode as usize,
                    offset as usize,
                    length as usize,
                    0,
                    0,
                ];
                // SAFETY: the library's own call, which is no cancellation point.
                unsafe { raw::answered(libc::SYS_fallocate, arguments) as c_int }
            }
            None => fallocate::pass(fd, mode, offset, length),
        }
    }

    fn posix_fallocate [posix_fallocate64](fd: c_int, offset: i64, length: i64) -> c_int {
        match ours(fd) {
            Some((context, opened)) => {
                context.register_thread();
                let errno = crate::foreign::errno();
                let _inside = Inside::enter();
                // This call returns the error instead of setting errno.
                let answer = allocate(context, &opened, 0, offset, length).err().unwrap_or(0);
                crate::foreign::set_errno(errno);
                answer
            }
            None => posix_fallocate::pass(fd, offset, length),
        }
    }

    fn fsync(fd: c_int) -> c_int {
        crate::cancel::point();
        match ours(fd) {
            Some((context, opened)) => sync(context, &opened),
            None => fsync::pass(fd),
        }
    }

    fn fdatasync(fd: c_int) -> c_int {
        crate::cancel::point();
        match ours(fd) {
            Some((context, opened)) => sync(context, &opened),
            None => fdatasync::pass(fd),
        }
    }

    fn syncfs(fd: c_int) -> c_int {
        match ours(fd) {
            Some((_, opened)) => require_not_path(&opened),
            None => syncfs::pass(fd),
        }
    }

    fn sync_file_range(fd: c_int, offset: i64, length: i64, flags: u32) -> c_int {
        match ours(fd) {
            Some(_) if offset < 0 || length < 0 || flags & !7 != 0 => fail(libc::EINVAL),
            Some((_, opened)) => require_not_path(&opened),
            None => sync_file_range::pass(fd, offset, length, flags),
        }
    }

    fn posix_fadvise [posix_fadvise64](fd: c_int, offset: i64, length: i64, advice: c_int) -> c_int {
        match ours(fd) {
            // This call returns the error instead of setting errno.
            Some(_) if !(0..=5).contains(&advice) || length < 0 => libc::EINVAL,
            Some((_, opened)) if opened.flags & libc::O_PATH != 0 => libc::EBADF,
            Some(_) => 0,
            None => posix_fadvise::pass(fd, offset, length, advice),
        }
    }

    fn readahead(fd: c_int, offset: i64, count: usize) -> isize {
        match ours(fd) {
            Some((_, opened)) if opened.flags & libc::O_PATH != 0
                || opened.flags & libc::O_ACCMODE == libc::O_WRONLY => fail(libc::EBADF),
            Some((_, opened)) if opened.flags & libc::O_DIRECTORY != 0 => fail(libc::EINVAL),
            Some(_) => 0,
            None => readahead::pass(fd, offset, count),
        }
    }
}

/// Writes of calls need no sync: memory is as durable as it can be. Stores through mappings are made durable if
/// possible. A descriptor opened with `O_PATH` is refused.
pub(crate) fn sync(context: &Context, opened: &Opened) -> c_int {
    match require_not_path(opened) {
        0 => moved(|| context.attachment.sync(opened).map(|()| 0)) as c_int,
        refused => refused,
    }
}

fn require_not_path(opened: &Opened) -> c_int {
    if opened.flags & libc::O_PATH != 0 {
        return fail(libc::EBADF);
    }
    0
}

fn seek_allowed(opened: &Opened) -> Answer<()> {
    if opened.flags & libc::O_PATH != 0 {
        return Err(libc::EBADF);
    }
    Ok(())
}

fn require_for_writing(opened: &Opened) -> Answer<()> {
    if opened.flags & libc::O_PATH != 0 {
        return Err(libc::EBADF);
    }
    if !opened.may_write() || opened.flags & libc::O_DIRECTORY != 0 {
        return Err(libc::EINVAL);
    }
    Ok(())
}

fn set_size(context: &Context, node: mem::Node, size: u64) -> Answer<()> {
    let writer = context.attachment.writer().or_errno()?;
    writer
        .set_size(node.inode, node.generation, size, mem::now_ns())
        .or_errno()
}

/// `fallocate`: the range gets memory, which is zeros where the file had none.
fn allocate(
    context: &Context,
    opened: &Opened,
    mode: c_int,
    offset: i64,
    length: i64,
) -> Answer<()> {
    if opened.flags & libc::O_PATH != 0 {
        return Err(libc::EBADF);
    }
    if offset < 0 || length <= 0 {
        return Err(libc::EINVAL);
    }
    if !opened.may_write() {
        return Err(libc::EBADF);
    }
    let end = offset.checked_add(length).ok_or(libc::EFBIG)? as u64;
    let range = (offset as u64, end);
    let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    let mem::Node { inode, generation } = opened.node;
    let writer = context.attachment.writer().or_errno()?;
    // Each step happens under the lock of the file: another process may be writing to it.
    let allocate = || {
        if keeps_size && end > attributes_of(context, opened)?.size {
            // Memory behind the end of a file is nothing that a region keeps.
            return Err(libc::EOPNOTSUPP);
        }
        writer
            .allocate(inode, generation, range, keeps_size, mem::now_ns())
            .or_errno()
    };
    let punch = || {
        writer
            .punch(inode, generation, range, mem::now_ns())
            .or_errno()
    };
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => allocate(),
        libc::FALLOC_FL_PUNCH_HOLE if keeps_size => punch(),
        libc::FALLOC_FL_ZERO_RANGE => {
            punch()?;
            match keeps_size {
                true => Ok(()),
                false => allocate(),
            }
        }
        _ => Err(libc::EOPNOTSUPP),
    }
}
