//! Memory barriers in all processes that have a region, by the kernel's `membarrier`.

/// Registers this process with the kernel for barriers.
///
/// # Errors
/// The kernel's error: before Linux 4.16 there are no such barriers.
pub(crate) fn take_part_in_barriers() -> std::io::Result<()> {
    membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED)
}

/// Makes every running thread of a process with a region execute a full barrier.
///
/// # Errors
/// The kernel's error.
pub(crate) fn barrier_for_all() -> std::io::Result<()> {
    membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> std::io::Result<()> {
    // SAFETY: plain integers.
    if unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}
