//! A process that lets go of the programs that wait for a mount when the mount's process is killed.
//!
//! A thread of a mount that stores pages may sleep in the kernel until a read is answered. Killed then, the process
//! cannot end, as that thread cannot; its descriptors stay open, the kernel goes on waiting for answers, and so does
//! every program that reads. So a small process of its own notices the death of the first one, which the kernel tells
//! it
//! whatever the other threads do, and aborts the connection.
//!
//! It is forked, before the process has grown, and from then on does nothing but calls to the kernel with memory that
//! was prepared before: other threads may have held locks at that moment, that of the allocator among them.

use std::ffi::{CString, c_char};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::processes::FileSystem;

/// What the guard is told: two texts that end with a zero byte, the file by which the connection is aborted and the
/// mount's directory.
const ORDER_BYTES_MAX: usize = 8192;

/// Time between two looks at the mount's process. The kernel's word is quicker, but it is of the thread that has made
/// the
/// guard, which may be the one that sleeps.
const LOOK_INTERVAL_MS: i32 = 500;

/// How long the guard may take to hold on to what it is told of.
const HOLD_MAX_MS: i32 = 10_000;

/// The signal by which the kernel tells of the death of the thread that has made the guard.
const DEATH: i32 = libc::SIGUSR1;

/// What the guard does at the end: nothing, as the mount has ended in order.
const IN_ORDER: u8 = b'.';

/// A guard that waits. Dropped without [`Guard::dismiss`], it does what it is for.
#[derive(Debug)]
pub struct Guard {
    process: libc::pid_t,
    /// The other end is the guard's.
    orders: Option<std::fs::File>,
}

impl Guard {
    /// Makes a guard of nothing, to be told later of what. The earlier, the less memory it holds.
    ///
    /// # Errors
    /// No process, sockets or signal descriptor could be made.
    pub fn start() -> io::Result<Self> {
        let mut ends: [RawFd; 2] = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: an array of two descriptors that lives until the call returns.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both are new descriptors that nobody else has.
        let [orders, told] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        let own = std::process::id();
        let stat = CString::new(format!("/proc/{own}/stat"))?;
        let mut order = Box::new([0_u8; ORDER_BYTES_MAX]);
        // SAFETY: the child makes calls to the kernel only, with memory that exists already, and ends by `_exit`.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: this is the child, alone in its process, with its own copy of all that is given.
            0 => unsafe { watch(own, orders.as_raw_fd(), &stat, &mut order) },
            process => {
                drop(orders);
                Ok(Self {
                    process,
                    orders: Some(told.into()),
                })
            }
        }
    }

    /// The process, to be left out where processes of a mount are counted.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.process as u32
    }

    /// Tells it what to guard.
    pub(crate) fn tell(&mut self, directory: &Path, file_system: FileSystem) -> io::Result<()> {
        let abort = format!(
            "/sys/fs/fuse/connections/{}/abort",
            file_system.connection()
        );
        let mut order = abort.into_bytes();
        order.push(0);
        order.extend_from_slice(directory.as_os_str().as_bytes());
        order.push(0);
        let Some(orders) = &mut self.orders else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        if order.len() >= ORDER_BYTES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        orders.write_all(&order)?;
        // Until it holds on to what it guards: were this process killed before, and the next mount given the same
        // numbers, the guard would take that one for what it was told of.
        let mut ready = libc::pollfd {
            fd: orders.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one structure that lives until the call returns.
        let found = unsafe { libc::poll(&raw mut ready, 1, HOLD_MAX_MS) };
        let mut held = [0];
        match found {
            1.. if orders.read(&mut held)? == held.len() => Ok(()),
            _ => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Leaves it alone: it acts when this process ends, whatever keeps that from being complete.
    pub(crate) fn leave(mut self) {
        // Its end stays open until then.
        std::mem::forget(self.orders.take());
        std::mem::forget(self);
    }

    /// The mount has ended in order.
    pub fn dismiss(mut self) {
        if let Some(mut orders) = self.orders.take() {
            orders.write_all(&[IN_ORDER]).ok();
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.orders.take());
        // SAFETY: a child of this process, and no place for its status.
        unsafe { libc::waitpid(self.process, std::ptr::null_mut(), 0) };
    }
}

/// The whole life of the guard.
///
/// # Safety
/// To be called right after `fork`, in the child.
unsafe fn watch(mount: u32, orders: RawFd, stat: &CString, order: &mut [u8; ORDER_BYTES_MAX]) -> ! {
    // SAFETY: calls with numbers, and with structures that live until they return. Nothing of this allocates, locks or
    // panics: indices are bounded by the loops' conditions.
    unsafe {
        // A session of its own: a signal from the terminal or to the group is not for it.
        libc::setsid();
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut signals);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const signals, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_PDEATHSIG, DEATH);
        libc::sigemptyset(&raw mut signals);
        libc::sigaddset(&raw mut signals, DEATH);
        let deaths = libc::signalfd(-1, &raw const signals, libc::SFD_CLOEXEC);
        close_all_but(orders, deaths);
        let mut filled = 0;
        let mut target = None;
        loop {
            let mut ready = [orders, deaths].map(|fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            });
            let count = ready.len() as libc::nfds_t;
            let found = libc::poll(ready.as_mut_ptr(), count, LOOK_INTERVAL_MS);
            if ready[0].revents != 0 && found > 0 {
                let room = order.len() - filled;
                let read = libc::read(orders, order.as_mut_ptr().add(filled).cast(), room);
                if read <= 0 {
                    // Nobody has the other end any more.
                    break;
                }
                filled += read as usize;
                if order[filled - 1] == IN_ORDER {
                    libc::_exit(0);
                }
                if target.is_none() {
                    target = Target::of(&order[..filled]);
                    let held = b'h';
                    libc::write(orders, (&raw const held).cast(), 1);
                }
            }
            if ready[1].revents != 0 && found > 0 {
                let mut heard: libc::signalfd_siginfo = std::mem::zeroed();
                let bytes = std::mem::size_of::<libc::signalfd_siginfo>();
                // It may be of another thread than the first, or somebody's.
                libc::read(deaths, (&raw mut heard).cast(), bytes);
            }
            if has_died(mount, stat) {
                break;
            }
        }
        if let Some(target) = target {
            target.abort();
        }
        libc::_exit(0)
    }
}

/// Closes what was inherited: it would keep open whatever the mount's process, or a test, closes.
unsafe fn close_all_but(first: RawFd, second: RawFd) {
    let (low, high) = (first.min(second), first.max(second));
    let close = |from: RawFd, to: RawFd| {
        if from <= to {
            // SAFETY: numbers; nobody here uses the descriptors between them.
            unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) };
        }
    };
    if low < 0 {
        close(0, high - 1);
    } else {
        close(0, low - 1);
        close(low + 1, high - 1);
    }
    close(high + 1, RawFd::MAX);
}

/// Whether a process has ended, or its first thread has while others cannot.
unsafe fn has_died(process: u32, stat: &CString) -> bool {
    let mut text = [0_u8; 512];
    // SAFETY: a C string and bytes that live until the calls return.
    let read = unsafe {
        // Who has lost its parent has another one.
        if libc::getppid() as u32 != process {
            return true;
        }
        let file = libc::open(stat.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return false;
        }
        let read = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        read
    };
    died_by(
        text.get(..usize::try_from(read).unwrap_or(0))
            .unwrap_or(&[]),
    )
}

/// What a process's `stat` says: its first thread has ended, or SIGKILL waits for it where it sleeps and cannot end.
fn died_by(stat: &[u8]) -> bool {
    // The name stands in brackets and may contain some; all else stands behind the last one.
    let Some(name_end) = stat.iter().rposition(|byte| *byte == b')') else {
        return false;
    };
    let mut fields = stat[name_end + 1..]
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|field| !field.is_empty());
    let state = fields.next().unwrap_or(&[]);
    // Field 31 of proc(5), the pending signals; the state is field 3.
    let pending = fields.nth(27).unwrap_or(&[]);
    let pending = pending.iter().fold(0_u64, |number, digit| {
        number
            .wrapping_mul(10)
            .wrapping_add(u64::from(digit.wrapping_sub(b'0')))
    });
    matches!(state, b"Z" | b"X") || pending & 1 << (libc::SIGKILL - 1) != 0
}

/// What is to be aborted. Numbers of connections and mounts are given again, so both are held on to from the beginning.
struct Target {
    /// The kernel's file for it, which never leads to another connection; -1 where there are no such files.
    abort: RawFd,
    directory: *const c_char,
    mount: (u64, u32, u32),
}

impl Target {
    /// Of an order, once it is complete.
    unsafe fn of(order: &[u8]) -> Option<Self> {
        let mut zeros = 0;
        for byte in order {
            zeros += u32::from(*byte == 0);
        }
        if zeros < 2 {
            return None;
        }
        // SAFETY: two texts that end with a zero each, as was counted; they live as long as the process.
        unsafe {
            let file = order.as_ptr().cast::<c_char>();
            let directory = file.add(libc::strlen(file) + 1);
            Some(Self {
                abort: libc::open(file, libc::O_WRONLY | libc::O_CLOEXEC),
                directory,
                mount: mount_at(directory),
            })
        }
    }

    /// Every request is answered with an error, now and later.
    unsafe fn abort(&self) {
        let one = b'1';
        // SAFETY: a C string and a byte that live until the calls return.
        unsafe {
            let is_aborted =
                self.abort >= 0 && libc::write(self.abort, (&raw const one).cast(), 1) == 1;
            // Where the kernel's control files are not mounted. It fails while programs use the mount, which is
            // aborted all the same.
            if !is_aborted && self.abort < 0 && mount_at(self.directory) == self.mount {
                libc::umount2(self.directory, libc::MNT_FORCE | libc::UMOUNT_NOFOLLOW);
            }
        }
    }
}

/// The number of a mount that no other one gets again, from Linux 6.8 on; before, the usual number is given.
const STATX_MNT_ID_UNIQUE: libc::c_uint = 0x4000;

/// What is mounted at a directory, without asking it.
unsafe fn mount_at(directory: *const c_char) -> (u64, u32, u32) {
    // SAFETY: all zero is a valid `statx`; the C string and the structure live until the call returns.
    let found = unsafe {
        let mut found: libc::statx = std::mem::zeroed();
        let flags = libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
        let wanted = libc::STATX_MNT_ID | STATX_MNT_ID_UNIQUE;
        libc::statx(libc::AT_FDCWD, directory, flags, wanted, &raw mut found);
        found
    };
    (found.stx_mnt_id, found.stx_dev_major, found.stx_dev_minor)
}

#[cfg(test)]
mod tests {
    use super::died_by;

    #[test]
    fn a_process_is_dead_when_its_first_thread_is_or_has_to_be() {
        let stat = |state: &str, pending: u64| {
            let between = "1 ".repeat(27);
            format!("17 (a ) name) {state} {between}{pending} 0 0")
        };
        assert!(!died_by(stat("S", 0).as_bytes()));
        assert!(!died_by(stat("D", 1 << 14).as_bytes()));
        assert!(died_by(stat("Z", 0).as_bytes()));
        assert!(died_by(stat("D", 1 << 8).as_bytes()));
        assert!(!died_by(b""));
        // The fields are where this system has them.
        let own = std::fs::read("/proc/self/stat").unwrap();
        assert!(!died_by(&own));
    }
}
