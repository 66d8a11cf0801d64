//! Programs of a node that was killed. The kernel tells each program, but not what that one has started, and a program
//! may ignore it. They are ended before any is started, so that no two drive one valve.
//!
//! They are known by their environment: `KEEL_TASK`, and `KEEL_NODE` with the socket of this node, which holds its
//! store alone.

use super::process::{END_TIME_MAX, KILLED_TIME_MAX};
use crate::node::log;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of an environment that are read; what the node sets stands anywhere in it.
const ENVIRONMENT_BYTES_MAX: u64 = 1 << 20;
/// Time between two looks whether they have ended.
const LOOK: Duration = Duration::from_millis(10);

struct Leftover {
    number: libc::pid_t,
    task: String,
    handle: OwnedFd,
}

/// Ends what a killed node of this socket has left, and says so.
pub(super) fn end(socket: &Path) {
    let found = find(socket);
    if found.is_empty() {
        return;
    }
    let names = |them: &[Leftover]| -> String {
        let name = |one: &Leftover| format!("{} (process {})", one.task, one.number);
        them.iter().map(name).collect::<Vec<_>>().join(", ")
    };
    let text = format!(
        "the node was killed before; ended what it had left: {}",
        names(&found)
    );
    log::event("task", text);
    let mut left = found;
    for (signal, patience) in [
        (libc::SIGTERM, END_TIME_MAX),
        (libc::SIGKILL, KILLED_TIME_MAX),
    ] {
        let until = Instant::now() + patience;
        for one in &left {
            one.signal(signal);
        }
        while !left.is_empty() && Instant::now() < until {
            std::thread::sleep(LOOK);
            // Some start others as they end.
            left = find(socket);
        }
    }
    if !left.is_empty() {
        let text = format!(
            "these cannot be ended, and run beside those that are started now: {}",
            names(&left)
        );
        log::event("warning", text);
    }
}

impl Leftover {
    fn signal(&self, signal: libc::c_int) {
        let none: *const libc::siginfo_t = std::ptr::null();
        // SAFETY: a plain system call with a handle that is open. It reaches this process or nobody.
        unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.handle.as_raw_fd(),
                signal,
                none,
                0,
            )
        };
    }
}

fn find(socket: &Path) -> Vec<Leftover> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    entries
        .filter_map(|entry| look(entry.ok().and_then(number)?, socket))
        .collect()
}

/// Whether this process is one. The handle comes first: then the number is nobody else's when it is looked at.
fn look(number: libc::pid_t, socket: &Path) -> Option<Leftover> {
    if number == std::process::id() as libc::pid_t {
        return None;
    }
    // SAFETY: a plain system call.
    let handle = unsafe { libc::syscall(libc::SYS_pidfd_open, number, 0) };
    let handle = libc::c_int::try_from(handle)
        .ok()
        .filter(|handle| *handle >= 0)?;
    // SAFETY: the kernel has just given it to this call.
    let handle = unsafe { OwnedFd::from_raw_fd(handle) };
    let mut environment = Vec::new();
    let file = File::open(format!("/proc/{number}/environ")).ok()?;
    file.take(ENVIRONMENT_BYTES_MAX)
        .read_to_end(&mut environment)
        .ok()?;
    let value = |name: &[u8]| {
        let mut entries = environment.split(|byte| *byte == 0);
        entries.find_map(|entry| entry.strip_prefix(name))
    };
    let task = value(b"KEEL_TASK=")?;
    if value(b"KEEL_NODE=")? != socket.as_os_str().as_bytes() || !sees_what_we_see(number) {
        return None;
    }
    Some(Leftover {
        number,
        task: String::from_utf8_lossy(task).into_owned(),
        handle,
    })
}

/// The same path is another socket in another container.
fn sees_what_we_see(number: libc::pid_t) -> bool {
    let look = |name: &str, process: &str| {
        let found = std::fs::metadata(format!("/proc/{process}/{name}")).ok()?;
        Some((found.dev(), found.ino()))
    };
    let theirs = number.to_string();
    ["root", "ns/mnt"].iter().all(|name| {
        let ours = look(name, "self");
        ours.is_some() && ours == look(name, &theirs)
    })
}
