//! The kernel's limit of open files for this process.

/// Returns the limit, or `None` if the kernel does not tell it.
pub(crate) fn open_files() -> Option<libc::rlimit> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a structure that lives as long as the call.
    let answer = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    (answer == 0).then_some(limit)
}
