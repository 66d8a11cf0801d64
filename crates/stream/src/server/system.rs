//! What the operating system is asked for that the standard library does not know.

use std::io;
use std::os::fd::AsRawFd;

/// How much the thread that compresses in the background yields to others, 0 to 19.
const NICE: libc::c_int = 15;

/// Bytes that the kernel keeps of a connection before they are sent, at most: so many go before a demand at most. What
/// is on its way and not yet acknowledged does not count, so a long line is filled all the same.
const UNSENT_BYTES_MAX: libc::c_int = 32 << 10;

/// Lets the calling thread yield to all others.
pub(super) fn be_nice() {
    // SAFETY: the call takes no pointers; on Linux 0 means the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

/// Locks a file until it is closed, at once or [`io::ErrorKind::WouldBlock`].
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

/// Lets this process have as many descriptors as it may; how many, or None where that cannot be known.
pub(super) fn raise_limit_of_descriptors() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a structure that lives as long as the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return None;
    }
    let before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: as above.
    let is_raised = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } == 0;
    // They have 32 bits on some boards.
    let allowed = if is_raised { limit.rlim_max } else { before };
    Some(allowed as u64)
}

/// Keeps the kernel's queue of bytes that are not sent yet short.
pub(super) fn keep_unsent_short(socket: &impl AsRawFd) -> io::Result<()> {
    set(
        socket,
        libc::IPPROTO_TCP,
        libc::TCP_NOTSENT_LOWAT,
        UNSENT_BYTES_MAX,
    )
}

/// The size of the kernel's send buffer, of which it takes the double.
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
