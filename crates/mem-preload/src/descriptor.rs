//! Descriptors: duplicated, sent, received, controlled; record locks.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

use mem::{LIVENESS_BASE, Opened};

use crate::foreign::{Answer, done, fail, get, put};
use crate::next::serve;
use crate::open::{attributes_of, share_descriptors, sharings};
use crate::raw;
use crate::state::{Context, OrErrno, context, ours, served};
use crate::table;
use crate::thread;

/// Flags of a description that `fcntl` may change.
const CHANGING_FLAGS: c_int =
    libc::O_APPEND | libc::O_NONBLOCK | libc::O_ASYNC | libc::O_DIRECT | libc::O_NOATIME;

/// Records the state of a new descriptor that was duplicated from another.
fn duplicated(from: c_int, to: c_int) {
    if to < 0 {
        return;
    }
    table::copy(from, to);
    crate::standard::may_have_changed(to);
}

/// `dup3` onto a number that may be open: the kernel closes the old file of that number.
fn duplicate_onto(from: c_int, to: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let Some(context) = context() else {
        return call();
    };
    if context.is_own(to) || context.is_own(from) {
        return fail(libc::EBADF);
    }
    let before = context.opened(to);
    let exclusive = table::exclusive_since(to) == Some(sharings());
    table::forget(to);
    let answer = call();
    if answer < 0 {
        if let Some(before) = before {
            table::set_ours(to, &before);
        }
        return answer;
    }
    if let Some(before) = before {
        let errno = crate::foreign::errno();
        let _inside = thread::Inside::enter();
        if exclusive {
            context.attachment.closing(&before);
        }
        let _ = context.attachment.closed(&before);
        crate::foreign::set_errno(errno);
    }
    duplicated(from, to);
    answer
}

serve! {
    fn dup(fd: c_int) -> c_int {
        let new = dup::pass(fd);
        duplicated(fd, new);
        new
    }

    fn dup2 [__dup2](from: c_int, to: c_int) -> c_int {
        if from == to {
            return dup2::pass(from, to);
        }
        duplicate_onto(from, to, || dup2::pass(from, to))
    }

    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
        if from == to {
            return dup3::pass(from, to, flags);
        }
        duplicate_onto(from, to, || dup3::pass(from, to, flags))
    }

    fn fcntl [fcntl64, __fcntl](fd: c_int, command: c_int, argument: usize) -> c_int {
        if thread::is_inside() {
            let arguments = [fd as usize, command as usize, argument, 0, 0, 0];
            // SAFETY: the library's own call.
            return unsafe { raw::answered(libc::SYS_fcntl, arguments) as c_int };
        }
        control(fd, command, argument)
    }

    fn lockf [lockf64](fd: c_int, command: c_int, length: i64) -> c_int {
        if ours(fd).is_none() {
            return lockf::pass(fd, command, length);
        }
        let (kind, how) = match command {
            libc::F_ULOCK => (libc::F_UNLCK, libc::F_SETLK),
            libc::F_LOCK => (libc::F_WRLCK, libc::F_SETLKW),
            libc::F_TLOCK => (libc::F_WRLCK, libc::F_SETLK),
            libc::F_TEST => (libc::F_WRLCK, libc::F_GETLK),
            _ => return fail(libc::EINVAL),
        };
        let mut lock: libc::flock64 = crate::foreign::zeroed();
        lock.l_type = kind as i16;
        lock.l_whence = libc::SEEK_CUR as i16;
        lock.l_len = length;
        let answer = control(fd, how, &raw mut lock as usize);
        if answer == 0 && command == libc::F_TEST && c_int::from(lock.l_type) != libc::F_UNLCK {
            return fail(libc::EACCES);
        }
        answer
    }

    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
        match ours(fd) {
            Some((context, opened)) => io_control(context, fd, &opened, request, argument),
            None => ioctl::pass(fd, request, argument),
        }
    }

    fn recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize {
        let received = recvmsg::pass(fd, message, flags);
        if received >= 0 {
            forget_received(message);
        }
        received
    }

    fn recvmmsg(
        fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int,
        timeout: *mut libc::timespec
    ) -> c_int {
        let received = recvmmsg::pass(fd, messages, count, flags, timeout);
        for place in 0..usize::try_from(received).unwrap_or(0) {
            // SAFETY: the kernel has filled in that many messages.
            forget_received(unsafe { &raw mut (*messages.add(place)).msg_hdr });
        }
        received
    }

    fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
        if get(message).is_ok_and(|message| message.msg_controllen > 0) {
            share_descriptors();
        }
        sendmsg::pass(fd, message, flags)
    }

    fn sendmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int) -> c_int {
        share_descriptors();
        sendmmsg::pass(fd, messages, count, flags)
    }

    fn pidfd_getfd(pidfd: c_int, fd: c_int, flags: c_uint) -> c_int {
        let new = pidfd_getfd::pass(pidfd, fd, flags);
        if new >= 0 {
            table::forget(new);
            crate::standard::may_have_changed(new);
        }
        new
    }

    fn fork [__fork, __libc_fork]() -> c_int {
        share_descriptors();
        fork::pass()
    }

    fn vfork [__vfork]() -> c_int {
        // A child that shares the parent's memory would write its descriptors into the parent's table.
        share_descriptors();
        fork::pass()
    }

    #[allow(non_snake_case, reason = "the C library's name")]
    fn _Fork() -> c_int {
        share_descriptors();
        let child = _Fork::pass();
        if child == 0 {
            crate::state::forked();
        }
        child
    }

    fn daemon(keeps_directory: c_int, keeps_streams: c_int) -> c_int {
        share_descriptors();
        let answer = daemon::pass(keeps_directory, keeps_streams);
        if answer == 0 {
            if keeps_directory == 0 && let Some(context) = context() {
                context.set_directory(None);
            }
            if keeps_streams == 0 {
                standard_replaced();
            }
        }
        answer
    }

    fn login_tty(fd: c_int) -> c_int {
        let answer = login_tty::pass(fd);
        standard_replaced();
        answer
    }

    fn forkpty(
        primary: *mut c_int, name: *mut c_char, terminal: *const c_void, size: *const c_void
    ) -> c_int {
        share_descriptors();
        let child = forkpty::pass(primary, name, terminal, size);
        if child == 0 {
            standard_replaced();
        }
        child
    }
}

/// The C library has replaced the standard descriptors.
fn standard_replaced() {
    for fd in 0..=2 {
        table::forget(fd);
        crate::standard::changed(fd);
    }
}

/// Forgets the descriptors that came with a message.
fn forget_received(message: *mut libc::msghdr) {
    if context().is_none() {
        return;
    }
    // SAFETY: the kernel has just filled it in; the macros of the C library walk it.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let list = libc::CMSG_DATA(header).cast::<c_int>();
                for place in 0..bytes / size_of::<c_int>() {
                    let fd = list.add(place).read_unaligned();
                    table::forget(fd);
                    crate::standard::may_have_changed(fd);
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// `fcntl`, for all names of the function.
pub(crate) fn control(fd: c_int, command: c_int, argument: usize) -> c_int {
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        let new = fcntl::pass(fd, command, argument);
        duplicated(fd, new);
        return new;
    }
    if command == libc::F_SETFD && context().is_some_and(|context| context.is_own(fd)) {
        return 0;
    }
    let Some((context, opened)) = ours(fd) else {
        return fcntl::pass(fd, command, argument);
    };
    match command {
        libc::F_GETFL => context.flags(&opened),
        libc::F_SETFL => {
            let flags = context.flags(&opened) & !CHANGING_FLAGS;
            let changed = flags | argument as c_int & CHANGING_FLAGS;
            context.set_flags(&opened, changed);
            0
        }
        libc::F_GETLK
        | libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_OFD_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW => lock(context, fd, &opened, command, argument),
        libc::F_NOTIFY | libc::F_SETLEASE | libc::F_ADD_SEALS | libc::F_GET_SEALS => {
            fail(libc::EINVAL)
        }
        _ => fcntl::pass(fd, command, argument),
    }
}

/// Record locks are locks on the stub, at the program's offsets. Locks behind all file offsets show which descriptions
/// are open.
fn lock(context: &Context, fd: c_int, opened: &Opened, command: c_int, argument: usize) -> c_int {
    let pointer = argument as *mut libc::flock64;
    let wanted = match get(pointer).and_then(|lock| clipped(context, opened, &lock)) {
        Ok(wanted) => wanted,
        Err(errno) => return fail(errno),
    };
    let access = opened.flags & libc::O_ACCMODE;
    let is_query = matches!(command, libc::F_GETLK | libc::F_OFD_GETLK);
    let is_refused = match c_int::from(wanted.l_type) {
        libc::F_RDLCK => access == libc::O_WRONLY,
        libc::F_WRLCK => access == libc::O_RDONLY,
        _ => false,
    };
    if opened.flags & libc::O_PATH != 0 || is_refused && !is_query {
        return fail(libc::EBADF);
    }
    if matches!(command, libc::F_SETLK | libc::F_SETLKW) {
        context.attachment.region().takes_record_lock(opened.node);
    }
    let mut lock = wanted;
    let answer = fcntl::pass(fd, command, &raw mut lock as usize);
    if answer == 0 && is_query {
        if c_int::from(lock.l_type) == libc::F_UNLCK {
            // All other fields stay as the program set them.
            return done(get(pointer).and_then(|mut given| {
                given.l_type = lock.l_type;
                put(pointer, given)
            }));
        }
        if lock.l_len > 0 && lock.l_start + lock.l_len >= LIVENESS_BASE as i64 {
            lock.l_len = 0;
        }
        return done(put(pointer, lock));
    }
    answer
}

/// A lock's range from the beginning of the file, cut to the offsets that files can have.
fn clipped(context: &Context, opened: &Opened, lock: &libc::flock64) -> Answer<libc::flock64> {
    let from = match c_int::from(lock.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => {
            let _inside = thread::Inside::enter();
            context
                .attachment
                .seek(opened, 0, libc::SEEK_CUR)
                .or_errno()? as i64
        }
        libc::SEEK_END => attributes_of(context, opened)?.size as i64,
        _ => return Err(libc::EINVAL),
    };
    let mut start = from.checked_add(lock.l_start).ok_or(libc::EOVERFLOW)?;
    let mut length = lock.l_len;
    if length < 0 {
        start = start.checked_add(length).ok_or(libc::EINVAL)?;
        length = -length;
    }
    if start < 0 {
        return Err(libc::EINVAL);
    }
    let end = LIVENESS_BASE as i64;
    if start >= end {
        return Err(libc::EOVERFLOW);
    }
    let to_end = length == 0 || start.checked_add(length).is_none_or(|last| last > end);
    let mut clipped = *lock;
    clipped.l_whence = libc::SEEK_SET as i16;
    clipped.l_start = start;
    clipped.l_len = if to_end { end - start } else { length };
    Ok(clipped)
}

fn io_control(
    context: &Context,
    fd: c_int,
    opened: &Opened,
    request: c_ulong,
    argument: usize,
) -> c_int {
    const FIGETBSZ: c_ulong = 2;
    const FICLONE: c_ulong = 0x4004_9409;
    const FICLONERANGE: c_ulong = 0x4020_940d;
    const FS_IOC_FIEMAP: c_ulong = 0xc020_660b;
    match request {
        libc::FIOCLEX | libc::FIONCLEX => ioctl::pass(fd, request, argument),
        libc::FIONBIO => 0,
        libc::FIONREAD => served(|| {
            let size = attributes_of(context, opened)?.size;
            let at = context
                .attachment
                .seek(opened, 0, libc::SEEK_CUR)
                .or_errno()?;
            let left = i64::wrapping_sub(size as i64, at as i64);
            put(argument as *mut c_int, left as c_int).map(|()| 0)
        }),
        FIGETBSZ => done(put(argument as *mut c_int, 4096)),
        FICLONE | FICLONERANGE | FS_IOC_FIEMAP => fail(libc::EOPNOTSUPP),
        _ => fail(libc::ENOTTY),
    }
}
