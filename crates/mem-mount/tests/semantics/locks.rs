//! Locks of programs on the view, against each other and against programs that use the region without it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use mem::ROOT_INODE;

use crate::Case;
use crate::support::{Mount, check, lock_file, lock_record, open_with, refused};

pub const CASES: &[Case] = &[
    ("locks", locks),
    ("locks-closed", locks_closed),
    ("locks-asked", locks_asked),
    ("locks-direct", locks_direct),
    ("locks-waited-for", locks_waited_for),
    ("locks-interrupted", locks_interrupted),
    ("flock", flock),
];

fn lock_of(kind: i32) -> libc::flock {
    // SAFETY: plain data, for which all zero is a valid value; it means the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock
}

fn lock(descriptor: RawFd, command: i32, kind: i32) -> io::Result<i64> {
    let lock = lock_of(kind);
    // SAFETY: the lock lives until the call returns.
    check(unsafe { libc::fcntl(descriptor, command, &raw const lock) })
}

/// Runs this in a child process, which reports its result by its exit status alone; 0 is success.
fn in_child(act: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child calls nothing but the kernel until it exits.
    match unsafe { libc::fork() } {
        0 => {
            let status = i32::from(!act());
            // SAFETY: the child exits without cleanup of the parent's state.
            unsafe { libc::_exit(status) }
        }
        child => child,
    }
}

fn succeeded(child: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: a child of this process, and room for its status.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

fn is_refused(result: &io::Result<i64>) -> bool {
    let number = result.as_ref().err().and_then(io::Error::raw_os_error);
    matches!(number, Some(libc::EAGAIN | libc::EACCES))
}

fn locks() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    let (one, other) = (open_with(&path, 0).unwrap(), open_with(&path, 0).unwrap());
    lock_record(&one).unwrap();
    refused(lock_record(&other), libc::EAGAIN);
    let number = other.as_raw_fd();
    let child = in_child(|| is_refused(&lock(number, libc::F_SETLK, libc::F_WRLCK)));
    assert!(succeeded(child));
    drop(one);
    // The kernel reports a close to the view only after the program's call has returned.
    while lock_record(&other).is_err() {
        std::thread::yield_now();
    }
}

fn locks_closed() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    let (one, other) = (open_with(&path, 0).unwrap(), open_with(&path, 0).unwrap());
    lock(one.as_raw_fd(), libc::F_SETLK, libc::F_WRLCK).unwrap();
    let number = one.as_raw_fd();
    let try_lock = || is_refused(&lock(number, libc::F_SETLK, libc::F_RDLCK));
    assert!(succeeded(in_child(try_lock)));
    // A process that closes any descriptor of a file loses its locks on it.
    drop(other);
    assert!(!succeeded(in_child(try_lock)));
}

fn locks_asked() {
    let mount = Mount::new();
    let file = open_with(&mount.put("file", b"x"), 0).unwrap();
    lock(file.as_raw_fd(), libc::F_SETLK, libc::F_WRLCK).unwrap();
    let (number, own) = (file.as_raw_fd(), std::process::id() as libc::pid_t);
    let child = in_child(|| {
        let mut asked = lock_of(libc::F_RDLCK);
        // SAFETY: the lock lives until the call returns.
        let answer = unsafe { libc::fcntl(number, libc::F_GETLK, &raw mut asked) };
        answer == 0
            && i32::from(asked.l_type) == libc::F_WRLCK
            && asked.l_pid == own
            && (asked.l_start, asked.l_len) == (0, 0)
    });
    assert!(succeeded(child));
}

/// The stub of a file, as a preloaded program opens it.
fn stub(mount: &Mount, name: &[u8]) -> OwnedFd {
    let found = mount.direct.look_up(ROOT_INODE, name).unwrap();
    let (stub, _) = mount
        .direct
        .open_description(&found, libc::O_RDWR | libc::O_CLOEXEC)
        .unwrap();
    // SAFETY: opened just now, and only for this caller.
    unsafe { OwnedFd::from_raw_fd(stub) }
}

/// As the preloaded library does: it does not lock the bytes that show open descriptions.
fn lock_stub(stub: &OwnedFd, kind: i32) -> io::Result<i64> {
    let mut lock = lock_of(kind);
    lock.l_len = mem::LIVENESS_BASE as i64;
    // SAFETY: the descriptor is open, and the lock lives until the call returns.
    check(unsafe { libc::fcntl(stub.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) })
}

fn locks_direct() {
    let mount = Mount::new();
    let file = open_with(&mount.put("file", b"x"), 0).unwrap();
    let stub = stub(&mount, b"file");
    lock_stub(&stub, libc::F_WRLCK).unwrap();
    refused(lock_record(&file), libc::EAGAIN);
    lock_stub(&stub, libc::F_UNLCK).unwrap();
    lock_record(&file).unwrap();
    refused(lock_stub(&stub, libc::F_RDLCK), libc::EAGAIN);
}

fn locks_waited_for() {
    let mount = Mount::new();
    let file = open_with(&mount.put("file", b"x"), 0).unwrap();
    let stub = stub(&mount, b"file");
    lock_stub(&stub, libc::F_WRLCK).unwrap();
    let number = file.as_raw_fd();
    let child = in_child(|| lock(number, libc::F_SETLKW, libc::F_WRLCK).is_ok());
    wait_for_sleep(child);
    lock_stub(&stub, libc::F_UNLCK).unwrap();
    assert!(succeeded(child));
}

/// Waits until a process sleeps in the kernel.
fn wait_for_sleep(process: libc::pid_t) {
    let is_waiting = || {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        stat.contains(") D ") || stat.contains(") S ")
    };
    while !is_waiting() {
        std::thread::yield_now();
    }
}

fn locks_interrupted() {
    let mount = Mount::new();
    let file = open_with(&mount.put("file", b"x"), 0).unwrap();
    let stub = stub(&mount, b"file");
    lock_stub(&stub, libc::F_WRLCK).unwrap();
    let number = file.as_raw_fd();
    let child = in_child(|| lock(number, libc::F_SETLKW, libc::F_WRLCK).is_ok());
    wait_for_sleep(child);
    // SAFETY: a child of this process that has not been waited for.
    unsafe { libc::kill(child, libc::SIGKILL) };
    assert!(!succeeded(child));
}

fn flock() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    let (one, other) = (File::open(&path).unwrap(), File::open(&path).unwrap());
    lock_file(&one).unwrap();
    refused(lock_file(&other), libc::EWOULDBLOCK);
    // Only against other locks through the view.
    let stub = File::from(stub(&mount, b"file"));
    lock_file(&stub).unwrap();
}
