//! A process that releases the programs waiting for a mount when the mount's process is killed.
//!
//! A thread of a mount that stores pages may sleep in the kernel until a read is answered. If the process is killed
//! then, it cannot end, because that thread cannot end. Its descriptors stay open, so the kernel keeps waiting for
//! replies, and so does every program that reads. Therefore a small separate process notices the death of the mount's
//! process and aborts the connection. The kernel reports the death independently of the other threads. Then the process
//! takes the mount away, as names that the kernel has cached would make it look healthy.
//!
//! It is forked before the process has grown. From then on it only makes system calls with memory that was prepared
//! before. Other threads may have held locks at that moment, for example the allocator's.

use std::ffi::{CString, c_char};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::processes::FileSystem;

/// The maximum size of the order to the guard, in bytes. It has two zero-terminated strings: the file that aborts the
/// connection, and the mount's directory.
const ORDER_BYTES_MAX: usize = 8192;

/// The poll interval for the state of the mount's process. The kernel's signal is faster, but it reports the thread
/// that has created the guard, which may be the sleeping one.
const LOOK_INTERVAL_MS: i32 = 500;

/// The timeout for the guard to open the connection's file and to confirm.
const HOLD_MAX_MS: i32 = 10_000;

/// The signal by which the kernel reports the death of the thread that created the guard.
const DEATH: i32 = libc::SIGUSR1;

/// The message that the mount has ended in order, so the guard has nothing to do.
const IN_ORDER: u8 = b'.';

/// A waiting guard. If it is dropped without [`Guard::dismiss`], it aborts the mount.
#[derive(Debug)]
pub struct Guard {
    process: libc::pid_t,
    /// This process's end of the socket pair; the guard has the other one.
    orders: Option<std::fs::File>,
}

impl Guard {
    /// Starts a guard without a mount, which is set later. The earlier it starts, the less memory it holds.
    ///
    /// # Errors
    /// The process or the sockets could not be created.
    pub fn start() -> io::Result<Self> {
        let mut ends: [RawFd; 2] = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: an array of two descriptors that lives until the call returns.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both are new descriptors that nothing else owns.
        let [orders, told] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        let own = std::process::id();
        let stat = CString::new(format!("/proc/{own}/stat"))?;
        let mut order = Box::new([0_u8; ORDER_BYTES_MAX]);
        // SAFETY: the child makes calls to the kernel only, with memory that exists already, and ends by `_exit`.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: this is the child, the only thread of its process, with its own copy of all arguments.
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

    /// Returns the guard's process id, to exclude it when processes of a mount are counted.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.process as u32
    }

    /// Tells the guard which mount to guard.
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
        // Wait until the guard has opened its target. If this process were killed before, and the next mount got the
        // same numbers, the guard would abort that mount.
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

    /// Detaches the guard: it acts when this process ends, even if the end is incomplete.
    pub(crate) fn leave(mut self) {
        // Keep this end of the socket pair open until then.
        std::mem::forget(self.orders.take());
        std::mem::forget(self);
    }

    /// Dismisses the guard, because the mount has ended in order.
    pub fn dismiss(mut self) {
        if let Some(mut orders) = self.orders.take() {
            orders.write_all(&[IN_ORDER]).ok();
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.orders.take());
        // SAFETY: a child of this process; a null pointer for the status is allowed.
        unsafe { libc::waitpid(self.process, std::ptr::null_mut(), 0) };
    }
}

/// Runs the guard until it exits.
///
/// # Safety
/// Must be called right after `fork`, in the child.
unsafe fn watch(mount: u32, orders: RawFd, stat: &CString, order: &mut [u8; ORDER_BYTES_MAX]) -> ! {
    // SAFETY: calls with numbers, and with structures that live until the calls return. This code does not allocate,
    // lock or panic: the conditions of the loops bound the indices.
    unsafe {
        // Start a new session, so that signals from the terminal or to the process group do not reach the guard.
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
                    // The other end is closed.
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
                // The signal may be about another thread than the first, or from another process.
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

/// Closes inherited descriptors: they would keep open what the mount's process, or a test, closes.
unsafe fn close_all_but(first: RawFd, second: RawFd) {
    let (low, high) = (first.min(second), first.max(second));
    let close = |from: RawFd, to: RawFd| {
        if from <= to {
            // SAFETY: the arguments are numbers; this process does not use the descriptors between them.
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

/// Returns whether a process has ended, or its first thread has while others cannot.
unsafe fn has_died(process: u32, stat: &CString) -> bool {
    let mut text = [0_u8; 512];
    // SAFETY: a C string and bytes that live until the calls return.
    let read = unsafe {
        // After the death of its parent, a process has another parent.
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

/// Returns whether a process's `stat` shows that its first thread has ended, or that SIGKILL is pending while it sleeps
/// and cannot end.
fn died_by(stat: &[u8]) -> bool {
    // The name is in brackets and may contain brackets; all other fields follow the last one.
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

/// The connection to abort. The kernel reuses numbers of connections and mounts, so the guard opens the abort file and
/// records the mount from the beginning.
struct Target {
    /// The kernel's abort file, open from the beginning, which never refers to another connection; -1 if there are no
    /// such files.
    abort: RawFd,
    directory: *const c_char,
    mount: MountId,
}

impl Target {
    /// Parses an order, once it is complete.
    unsafe fn of(order: &[u8]) -> Option<Self> {
        let mut zeros = 0;
        for byte in order {
            zeros += u32::from(*byte == 0);
        }
        if zeros < 2 {
            return None;
        }
        // SAFETY: two zero-terminated strings, as was counted; they live as long as the process.
        unsafe {
            let file = order.as_ptr().cast::<c_char>();
            let directory = file.add(libc::strlen(file) + 1);
            Some(Self {
                abort: libc::open(file, libc::O_WRONLY | libc::O_CLOEXEC),
                directory,
                mount: mount_at(libc::AT_FDCWD, directory, 0),
            })
        }
    }

    /// Aborts the connection: every request now and later fails. Takes the mount away.
    unsafe fn abort(&self) {
        let one = b'1';
        // SAFETY: a C string and a byte that live until the calls return.
        unsafe {
            let is_aborted =
                self.abort >= 0 && libc::write(self.abort, (&raw const one).cast(), 1) == 1;
            // Use this only if the kernel's control files are not mounted. The unmount fails while programs use the
            // mount, but the connection is aborted anyway.
            let is_there = || mount_at(libc::AT_FDCWD, self.directory, 0) == self.mount;
            if !is_aborted && self.abort < 0 && is_there() {
                libc::umount2(self.directory, libc::MNT_FORCE | libc::UMOUNT_NOFOLLOW);
            }
            self.take_away();
        }
    }

    /// Removes the mount from the directory. Programs keep the files of it that they have open. The mount is held
    /// meanwhile and removed through that hold, so the next mount on the directory cannot be hit.
    unsafe fn take_away(&self) {
        if !self.mount.is_unique {
            return;
        }
        // SAFETY: C strings that live until the calls return. The hold ends with this process, which ends next.
        unsafe {
            let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
            let held = libc::open(self.directory, flags);
            if held < 0 || mount_at(held, c"".as_ptr(), libc::AT_EMPTY_PATH) != self.mount {
                return;
            }
            let path = path_of(held);
            libc::umount2(path.as_ptr().cast(), libc::MNT_DETACH);
        }
    }
}

/// The bytes of the path of a descriptor, with its zero.
const PATH_BYTES: usize = 32;

/// Returns the path of a descriptor that is not negative, with a zero behind it. Does not allocate.
fn path_of(descriptor: RawFd) -> [u8; PATH_BYTES] {
    const FOLDER: &[u8] = b"/proc/self/fd/";
    let mut path = [0; PATH_BYTES];
    path[..FOLDER.len()].copy_from_slice(FOLDER);
    let (mut end, mut rest) = (FOLDER.len() + 1, descriptor / 10);
    while rest > 0 {
        end += 1;
        rest /= 10;
    }
    rest = descriptor;
    for digit in path[FOLDER.len()..end].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    path
}

/// The identity of a mount.
#[derive(Clone, Copy, PartialEq, Eq)]
struct MountId {
    id: u64,
    device: (u32, u32),
    /// No other mount ever has this identity.
    is_unique: bool,
}

/// Requests the mount id that is never reused, from Linux 6.8 on; older kernels return the usual id.
const STATX_MNT_ID_UNIQUE: libc::c_uint = 0x4000;

/// Returns the identity of the mount at a path, without a request to the mount.
unsafe fn mount_at(folder: RawFd, path: *const c_char, flags: libc::c_int) -> MountId {
    // SAFETY: all zero is a valid `statx`; the C string and the structure live until the call returns.
    let found = unsafe {
        let mut found: libc::statx = std::mem::zeroed();
        let flags = libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT | flags;
        let wanted = libc::STATX_MNT_ID | STATX_MNT_ID_UNIQUE;
        libc::statx(folder, path, flags, wanted, &raw mut found);
        found
    };
    MountId {
        id: found.stx_mnt_id,
        device: (found.stx_dev_major, found.stx_dev_minor),
        is_unique: found.stx_mask & STATX_MNT_ID_UNIQUE != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::{died_by, path_of};

    #[test]
    fn the_path_of_a_descriptor_has_all_of_its_digits() {
        for descriptor in [0, 7, 10, 1_024, i32::MAX] {
            let path = path_of(descriptor);
            let path = std::ffi::CStr::from_bytes_until_nul(&path).unwrap();
            let expected = format!("/proc/self/fd/{descriptor}");
            assert_eq!(path.to_str().unwrap(), expected);
        }
    }

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
        // The fields are at the positions that this system uses.
        let own = std::fs::read("/proc/self/stat").unwrap();
        assert!(!died_by(&own));
    }
}
