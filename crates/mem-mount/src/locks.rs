//! Record locks of programs on the view, which conflict with each other and with those of preloaded programs.
//!
//! Preloaded programs lock the stub of a file, in the kernel. The view does the same: it keeps an open file description
//! of the stub for each owner of locks on a file. An owner is a process or an open file. When the kernel reports that
//! the owner has released its locks, the description is closed, which releases them.
//!
//! The FUSE library does not pass on interrupts. So a thread of the view regularly checks each waiting thread: once a
//! signal is pending for it, its call ends.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fuser::{Errno, ReplyEmpty};
use mem::LIVENESS_BASE;

use crate::openings::{OpenFile, locked};

/// Maximum number of calls that wait for locks; further calls are refused.
const WAITING_MAX: usize = 1024;

/// Poll interval for waiting calls: the first value, and the maximum after doubling.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(16);

/// A requested lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockRequest {
    pub(crate) inode: u64,
    /// The kernel's number of the owner.
    pub(crate) owner: u64,
    /// The open file of the request.
    pub(crate) handle: u64,
    /// First byte and last byte.
    pub(crate) range: (u64, u64),
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub(crate) kind: i32,
    /// The process or thread that requests it.
    pub(crate) process: u32,
}

impl LockRequest {
    /// The bytes behind this limit are not for programs: their locks show open descriptions.
    fn clipped(mut self) -> Result<Self, Errno> {
        self.range.1 = self.range.1.min(LIVENESS_BASE - 1);
        if self.range.0 <= self.range.1 {
            Ok(self)
        } else {
            Err(Errno::EOVERFLOW)
        }
    }

    fn as_kernel(&self) -> libc::flock64 {
        // SAFETY: all zero is a valid value of this plain structure.
        let mut lock: libc::flock64 = unsafe { std::mem::zeroed() };
        lock.l_type = self.kind as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        lock.l_start = self.range.0 as i64;
        lock.l_len = (self.range.1 - self.range.0 + 1) as i64;
        lock
    }
}

/// An owner that has locks on a file, or had some.
struct Owner {
    stub: OwnedFd,
    /// The open file that it was first seen with: locks of an open file end with it.
    handle: u64,
    process: u32,
}

/// A conflicting lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) range: (u64, u64),
    pub(crate) kind: i32,
    pub(crate) process: u32,
}

#[derive(Default)]
pub(crate) struct Locks(Mutex<HashMap<(u64, u64), Owner>>);

impl Locks {
    /// Takes or releases a lock.
    ///
    /// # Errors
    /// EAGAIN if it would have to wait.
    pub(crate) fn set(&self, wanted: LockRequest, stub: BorrowedFd<'_>) -> Result<(), Errno> {
        let wanted = wanted.clipped()?;
        let key = (wanted.inode, wanted.owner);
        let mut owners = locked(&self.0);
        let owner = match owners.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if wanted.kind == libc::F_UNLCK => return Ok(()),
            Entry::Vacant(place) => place.insert(Owner {
                stub: opened_again(stub).map_err(|error| errno_of(&error))?,
                handle: wanted.handle,
                process: wanted.process,
            }),
        };
        let lock = wanted.as_kernel();
        // SAFETY: an open descriptor, and a structure that lives as long as the call.
        let set =
            unsafe { libc::fcntl(owner.stub.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
        if set == 0 {
            Ok(())
        } else {
            Err(errno_of(&io::Error::last_os_error()))
        }
    }

    /// Returns a lock that conflicts with `wanted`.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn get(
        &self,
        wanted: LockRequest,
        stub: BorrowedFd<'_>,
    ) -> Result<Option<Found>, Errno> {
        let wanted = wanted.clipped()?;
        let owners = locked(&self.0);
        let again;
        let own = match owners.get(&(wanted.inode, wanted.owner)) {
            Some(owner) => owner.stub.as_raw_fd(),
            None => {
                again = opened_again(stub).map_err(|error| errno_of(&error))?;
                again.as_raw_fd()
            }
        };
        let mut lock = wanted.as_kernel();
        // SAFETY: an open descriptor, and a structure that lives as long as the call.
        if unsafe { libc::fcntl(own, libc::F_OFD_GETLK, &raw mut lock) } != 0 {
            return Err(errno_of(&io::Error::last_os_error()));
        }
        let kind = i32::from(lock.l_type);
        if kind == libc::F_UNLCK {
            return Ok(None);
        }
        let start = lock.l_start as u64;
        let end = match lock.l_len {
            0 => i64::MAX as u64,
            length => start + length as u64 - 1,
        };
        // One of our own locks has no process that the kernel knows. If there is exactly one other owner, the lock is
        // its.
        let mut others = owners
            .iter()
            .filter(|((inode, owner), _)| *inode == wanted.inode && *owner != wanted.owner)
            .map(|(_, owner)| owner.process);
        let process = match (u32::try_from(lock.l_pid), others.next(), others.next()) {
            (Ok(process), ..) if process != 0 => process,
            (_, Some(other), None) => other,
            _ => 0,
        };
        Ok(Some(Found {
            // A lock to the end of the lockable range counts as a lock to the end of the file.
            range: (
                start,
                if end >= LIVENESS_BASE - 1 {
                    i64::MAX as u64
                } else {
                    end
                },
            ),
            kind,
            process,
        }))
    }

    /// A process has closed one of its descriptors of the file: all its locks are released.
    pub(crate) fn flush(&self, inode: u64, owner: u64) {
        locked(&self.0).remove(&(inode, owner));
    }

    /// The open file was closed by its last user.
    pub(crate) fn release(&self, handle: u64) {
        locked(&self.0).retain(|_, owner| owner.handle != handle);
    }
}

fn errno_of(error: &io::Error) -> Errno {
    match error.raw_os_error() {
        // Both errnos may mean that it is locked.
        Some(libc::EACCES) => Errno::EAGAIN,
        Some(number) => Errno::from_i32(number),
        None => Errno::EIO,
    }
}

/// Another open file description of a stub, also of a stub without a name.
fn opened_again(stub: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", stub.as_raw_fd());
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(path)?;
    Ok(opened.into())
}

/// A call that waits for a lock.
pub(crate) struct Waiting {
    pub(crate) wanted: LockRequest,
    /// Keeps the stub open.
    pub(crate) file: Arc<OpenFile>,
    pub(crate) reply: ReplyEmpty,
}

/// The thread that serves the waiting calls.
pub(crate) struct Waiters(SyncSender<Waiting>);

impl Waiters {
    /// Starts the thread. It ends when this value is dropped; calls that still wait then return EINTR.
    pub(crate) fn start(locks: Arc<Locks>) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        std::thread::Builder::new()
            .name("mem-mount-locks".to_owned())
            .spawn(move || wait_for_locks(&locks, &receiver))?;
        Ok(Self(sender))
    }

    pub(crate) fn add(&self, waiting: Waiting) {
        match self.0.try_send(waiting) {
            Ok(()) => {}
            Err(TrySendError::Full(waiting) | TrySendError::Disconnected(waiting)) => {
                waiting.reply.error(Errno::ENOLCK);
            }
        }
    }
}

fn wait_for_locks(locks: &Locks, receiver: &Receiver<Waiting>) {
    let mut all: Vec<Waiting> = Vec::new();
    let mut pause = PAUSE_MIN;
    loop {
        let next = if all.is_empty() {
            receiver.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            receiver.recv_timeout(pause)
        };
        match next {
            Ok(waiting) => {
                all.push(waiting);
                pause = PAUSE_MIN;
            }
            Err(RecvTimeoutError::Timeout) => pause = (pause * 2).min(PAUSE_MAX),
            Err(RecvTimeoutError::Disconnected) => {
                all.into_iter()
                    .for_each(|waiting| waiting.reply.error(Errno::EINTR));
                return;
            }
        }
        // First come, first served.
        for waiting in std::mem::take(&mut all) {
            match tried(locks, &waiting) {
                None => all.push(waiting),
                Some(Ok(())) => {
                    waiting.reply.ok();
                    pause = PAUSE_MIN;
                }
                Some(Err(error)) => waiting.reply.error(error),
            }
        }
    }
}

/// The result of a waiting call; `None` if it must wait longer.
fn tried(locks: &Locks, waiting: &Waiting) -> Option<Result<(), Errno>> {
    use std::os::fd::AsFd;
    let Some(description) = &waiting.file.description else {
        return Some(Err(Errno::EBADF));
    };
    if is_interrupted(waiting.wanted.process) {
        return Some(Err(Errno::EINTR));
    }
    match locks.set(waiting.wanted, description.stub.as_fd()) {
        Err(error) if error.code() == libc::EAGAIN => None,
        other => Some(other),
    }
}

/// Whether a thread has a signal that it must handle, or is gone.
fn is_interrupted(thread: u32) -> bool {
    // The thread is in a namespace that is not visible from here, so its state is unknown.
    if thread == 0 {
        return false;
    }
    std::fs::read_to_string(format!("/proc/{thread}/status"))
        .map_or(true, |status| has_signal(&status))
}

fn has_signal(status: &str) -> bool {
    let signals = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
            .unwrap_or(0)
    };
    let pending = signals("SigPnd:") | signals("ShdPnd:");
    pending & !signals("SigBlk:") & !signals("SigIgn:") != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn wanted(owner: u64, range: (u64, u64), kind: i32) -> LockRequest {
        LockRequest {
            inode: 7,
            owner,
            handle: owner * 10,
            range,
            kind,
            process: owner as u32 + 100,
        }
    }

    fn refused(result: Result<(), Errno>) -> i32 {
        result.map_or_else(|error| error.code(), |()| 0)
    }

    #[test]
    fn owners_lock_each_other_out_until_they_let_go() {
        let name = format!("keel-locks-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = std::fs::File::create(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (stub, locks) = (file.as_fd(), Locks::default());
        let to_end = (5, i64::MAX as u64);
        locks.set(wanted(1, to_end, libc::F_WRLCK), stub).unwrap();
        let other = wanted(2, (9, 9), libc::F_RDLCK);
        assert_eq!(refused(locks.set(other, stub)), libc::EAGAIN);
        let found = locks.get(other, stub).unwrap().unwrap();
        assert_eq!((found.range, found.kind), (to_end, libc::F_WRLCK));
        assert_eq!(found.process, 101);
        // The bytes before the lock are free, and the owner may take more locks.
        locks.set(wanted(2, (0, 4), libc::F_WRLCK), stub).unwrap();
        locks.set(wanted(1, (6, 7), libc::F_UNLCK), stub).unwrap();
        locks.set(wanted(2, (6, 7), libc::F_RDLCK), stub).unwrap();
        // The bytes that show open descriptions cannot be locked by programs.
        let behind = (LIVENESS_BASE, i64::MAX as u64);
        let error = refused(locks.set(wanted(1, behind, libc::F_WRLCK), stub));
        assert_eq!(error, libc::EOVERFLOW);
        locks.flush(7, 1);
        locks.set(other, stub).unwrap();
        assert_eq!(
            locks.get(wanted(3, (9, 9), libc::F_RDLCK), stub).unwrap(),
            None
        );
        locks.release(20);
        locks.set(wanted(3, (0, 9), libc::F_WRLCK), stub).unwrap();
        // Releasing a lock that the owner never had succeeds.
        locks.set(wanted(9, (0, 9), libc::F_UNLCK), stub).unwrap();
    }

    #[test]
    fn a_signal_that_must_be_attended_to_is_seen() {
        let status = |shared: u64, blocked: u64, ignored: u64| {
            let sets = [
                ("SigPnd", 0),
                ("ShdPnd", shared),
                ("SigBlk", blocked),
                ("SigIgn", ignored),
            ];
            sets.map(|(name, set)| format!("{name}:\t{set:016x}\n"))
                .concat()
        };
        assert!(!has_signal(&status(0, 0, 0)));
        assert!(has_signal(&status(1 << 8, 0, 0)));
        assert!(!has_signal(&status(2, 2, 0)));
        assert!(!has_signal(&status(2, 0, 2)));
        assert!(!is_interrupted(0));
        assert!(is_interrupted(u32::MAX));
    }
}
