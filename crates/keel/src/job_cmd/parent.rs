//! The process that started this one.

/// Makes the kernel end this process together with its parent. Returns `false` if the parent has already gone.
pub(super) fn end_with(parent: i32, signal: libc::c_int) -> bool {
    // SAFETY: a plain system call about this process.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) };
    // SAFETY: a plain system call.
    parent == unsafe { libc::getppid() }
}
