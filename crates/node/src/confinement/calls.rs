//! The system calls that a node needs which starts no program. `scripts/system-calls.sh` compares the list with what
//! nodes call in tests, and names what is missing and what no node has called.

/// Calls by name. Those that a C library prefers on newer kernels are in the list, with what it falls back to.
macro_rules! calls {
    ($($name:ident)*) => {
        &[$((stringify!($name), libc::$name as u32)),*]
    };
}

/// The name of a call in the C library's constants, and its number.
pub(super) type Call = (&'static str, u32);

/// Calls that all machines have.
const COMMON: &[Call] = calls! {
    // Files. What is opened, made and removed is what the user may, and `node.paths`.
    SYS_openat SYS_close SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev
    SYS_lseek SYS_fstat SYS_statx SYS_fstatfs SYS_statfs SYS_faccessat SYS_faccessat2 SYS_readlinkat SYS_getcwd
    SYS_getdents64 SYS_fcntl SYS_flock SYS_ioctl SYS_fsync SYS_fdatasync SYS_ftruncate SYS_fallocate SYS_renameat2
    SYS_unlinkat SYS_mkdirat SYS_fchmod SYS_fchmodat SYS_umask SYS_dup SYS_dup3 SYS_pipe2 SYS_copy_file_range
    // Memory.
    SYS_munmap SYS_mprotect SYS_mremap SYS_madvise SYS_brk SYS_mlock SYS_mlock2 SYS_munlock SYS_msync
    SYS_memfd_create
    // Sockets.
    SYS_socket SYS_socketpair SYS_bind SYS_listen SYS_accept SYS_accept4 SYS_connect SYS_shutdown SYS_getsockname
    SYS_getpeername SYS_getsockopt SYS_setsockopt SYS_sendto SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_sendmmsg
    SYS_recvmmsg
    // Waiting.
    SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_eventfd2 SYS_ppoll SYS_pselect6 SYS_nanosleep
    SYS_clock_nanosleep SYS_futex SYS_restart_syscall
    // Clocks. `adjtimex` only asks whether the clock is set; setting it takes a right that the node has not.
    SYS_clock_gettime SYS_clock_getres SYS_gettimeofday SYS_adjtimex SYS_clock_adjtime
    // Threads.
    SYS_clone SYS_clone3 SYS_set_robust_list SYS_get_robust_list SYS_set_tid_address SYS_rseq SYS_membarrier
    SYS_sched_yield SYS_sched_getaffinity SYS_sched_setaffinity SYS_sched_getscheduler SYS_sched_setscheduler
    SYS_sched_getparam SYS_sched_setparam SYS_sched_get_priority_max SYS_sched_get_priority_min SYS_sched_getattr
    SYS_sched_setattr SYS_getpriority SYS_setpriority SYS_prctl SYS_exit SYS_exit_group
    // Signals. A reader in another process is asked for by signal 0.
    SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_sigaltstack SYS_kill SYS_tgkill
    // Programs that an earlier run has left are looked for at each start.
    SYS_pidfd_open SYS_pidfd_send_signal
    // What it is and has.
    SYS_getpid SYS_gettid SYS_getppid SYS_getpgid SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_getgroups
    SYS_getrusage SYS_prlimit64 SYS_uname SYS_sysinfo SYS_getrandom
};

#[cfg(target_arch = "x86_64")]
const OF_MACHINE: &[Call] = calls! {
    SYS_newfstatat SYS_mmap SYS_stat SYS_lstat SYS_open SYS_access SYS_readlink SYS_rename SYS_renameat SYS_unlink
    SYS_mkdir SYS_rmdir SYS_chmod SYS_poll SYS_select SYS_epoll_wait SYS_getrlimit SYS_arch_prctl
    SYS_sync_file_range SYS_fadvise64
};

#[cfg(target_arch = "aarch64")]
const OF_MACHINE: &[Call] = &[
    ("SYS_newfstatat", libc::SYS_newfstatat as u32),
    ("SYS_mmap", libc::SYS_mmap as u32),
    ("SYS_fadvise64", libc::SYS_fadvise64 as u32),
    // The crate `libc` has no constant for it.
    ("SYS_renameat", 38),
];

/// Times of 64 bits have calls of their own, which the crate `libc` has no constants for.
#[cfg(target_arch = "arm")]
const OF_MACHINE: &[Call] = &[
    ("SYS_fstatat64", libc::SYS_fstatat64 as u32),
    ("SYS_fstat64", libc::SYS_fstat64 as u32),
    ("SYS_stat64", libc::SYS_stat64 as u32),
    ("SYS_lstat64", libc::SYS_lstat64 as u32),
    ("SYS__llseek", libc::SYS__llseek as u32),
    ("SYS_mmap2", libc::SYS_mmap2 as u32),
    ("SYS_fcntl64", libc::SYS_fcntl64 as u32),
    ("SYS_ftruncate64", libc::SYS_ftruncate64 as u32),
    ("SYS_statfs64", libc::SYS_statfs64 as u32),
    ("SYS_fstatfs64", libc::SYS_fstatfs64 as u32),
    ("SYS_open", libc::SYS_open as u32),
    ("SYS_access", libc::SYS_access as u32),
    ("SYS_readlink", libc::SYS_readlink as u32),
    ("SYS_rename", libc::SYS_rename as u32),
    ("SYS_renameat", libc::SYS_renameat as u32),
    ("SYS_unlink", libc::SYS_unlink as u32),
    ("SYS_mkdir", libc::SYS_mkdir as u32),
    ("SYS_rmdir", libc::SYS_rmdir as u32),
    ("SYS_chmod", libc::SYS_chmod as u32),
    ("SYS_poll", libc::SYS_poll as u32),
    ("SYS__newselect", libc::SYS__newselect as u32),
    ("SYS_epoll_wait", libc::SYS_epoll_wait as u32),
    ("SYS_getuid32", libc::SYS_getuid32 as u32),
    ("SYS_geteuid32", libc::SYS_geteuid32 as u32),
    ("SYS_getgid32", libc::SYS_getgid32 as u32),
    ("SYS_getegid32", libc::SYS_getegid32 as u32),
    ("SYS_ugetrlimit", libc::SYS_ugetrlimit as u32),
    ("SYS_send", libc::SYS_send as u32),
    ("SYS_recv", libc::SYS_recv as u32),
    ("SYS_arm_fadvise64_64", libc::SYS_arm_fadvise64_64 as u32),
    ("SYS_clock_gettime64", 403),
    ("SYS_clock_adjtime64", 405),
    ("SYS_clock_getres_time64", 406),
    ("SYS_clock_nanosleep_time64", 407),
    ("SYS_pselect6_time64", 413),
    ("SYS_ppoll_time64", 414),
    ("SYS_recvmmsg_time64", 417),
    ("SYS_futex_time64", 422),
    // Thread-local storage, of the kernel for ARM alone.
    ("ARM_set_tls", 0x000f_0005),
];

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "arm")))]
const OF_MACHINE: &[Call] = &[];

/// The two lists.
pub(super) static LISTED: Lists = Lists {
    common: COMMON,
    of_machine: OF_MACHINE,
};

/// Calls that all machines have, and more calls that this one has.
pub(super) struct Lists {
    common: &'static [Call],
    of_machine: &'static [Call],
}

impl Lists {
    pub(super) fn len(&self) -> usize {
        self.common.len() + self.of_machine.len()
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> {
        let calls = self.common.iter().chain(self.of_machine);
        calls.map(|(_, number)| *number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_listed_call_is_there_twice_or_starts_a_program() {
        let calls = COMMON.iter().chain(OF_MACHINE);
        let numbers: BTreeSet<u32> = LISTED.numbers().collect();
        assert_eq!(numbers.len(), LISTED.len());
        for (name, number) in calls {
            assert!(!name.contains("exec") && *number < 1 << 20, "{name}");
        }
        for refused in [
            libc::SYS_execve,
            libc::SYS_ptrace,
            libc::SYS_mount,
            libc::SYS_setresuid,
        ] {
            assert!(!numbers.contains(&(refused as u32)), "{refused}");
        }
    }
}
