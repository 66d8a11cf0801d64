//! System calls that the standard library does not offer.

use std::io;
use std::os::fd::AsRawFd;

/// The nice value of the thread that compresses in the background, 0 to 19.
const NICE: libc::c_int = 15;

/// The maximum number of unsent bytes that the kernel queues for a connection. At most these are sent before a demanded
/// block. In-flight bytes that are not yet acknowledged do not count, so a line with a long delay is still filled.
const UNSENT_BYTES_MAX: libc::c_int = 32 << 10;

/// Lowers the priority of the calling thread.
pub(super) fn be_nice() {
    // SAFETY: the call takes no pointers; on Linux 0 means the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

/// Locks a file until it is closed. Does not wait: returns [`io::ErrorKind::WouldBlock`] if another process holds the
/// lock.
pub(super) fn lock(file: &impl AsRawFd) -> io::Result<()> {
    let how = libc::LOCK_EX | libc::LOCK_NB;
    loop {
        // SAFETY: the descriptor is open, and the call has no other argument.
        if unsafe { libc::flock(file.as_raw_fd(), how) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Raises the limit of open descriptors to the hard limit. Returns the limit, or `None` if it is unknown.
pub(super) fn raise_limit_of_descriptors() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to a structure that lives as long as the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return None;
    }
    let before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: as above.
    let is_raised = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } == 0;
    // The limits have 32 bits on some boards.
    let allowed = if is_raised { limit.rlim_max } else { before };
    Some(allowed as u64)
}

/// Limits the kernel's queue of unsent bytes.
pub(super) fn keep_unsent_short(socket: &impl AsRawFd) -> io::Result<()> {
    set(
        socket,
        libc::IPPROTO_TCP,
        libc::TCP_NOTSENT_LOWAT,
        UNSENT_BYTES_MAX,
    )
}

/// Sets the size of the kernel's send buffer. The kernel doubles the value.
pub(super) fn send_buffer(socket: &impl AsRawFd, bytes: u32) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes)
}

fn set(
    socket: &impl AsRawFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the pointer and length are those of one int that lives through the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
