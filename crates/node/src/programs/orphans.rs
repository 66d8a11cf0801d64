//! Programs that earlier runs of the node have left. When a node is killed, the kernel signals each program, but not
//! the processes that the program has started. A program may also ignore the signal. They are ended before any program
//! is started, so that no two programs drive one valve.
//!
//! They are recognized by their environment: `KEEL_TASK`, and `KEEL_STORE` with the identity of the store and of its
//! file, which only one node can hold. A copy of the file is another store.

use super::process::{END_TIME_MAX, KILLED_TIME_MAX};
use super::surroundings::thread;
use crate::log;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The most bytes read of an environment; the node's variables may be anywhere in it.
const ENVIRONMENT_BYTES_MAX: u64 = 1 << 20;
/// Poll interval for their end.
const LOOK: Duration = Duration::from_millis(10);
/// Timeout of the whole search for a start: the kernel may block any look at a hanging process.
const TIME_MAX: Duration = Duration::from_secs(5);
/// The most processes between this one and the first process of the machine.
const ANCESTORS_MAX: usize = 64;

struct Orphan {
    number: libc::pid_t,
    task: String,
    handle: OwnedFd,
}

/// Parameters and state of the search.
struct Search {
    store: String,
    /// Ancestors of this process.
    spared: BTreeSet<libc::pid_t>,
    own_group: libc::pid_t,
    /// Whether the start has stopped waiting: from then on, programs may belong to this run.
    is_over: Mutex<bool>,
}

/// Ends what earlier runs with this store have left, and logs it. Returns what it could not end or check.
pub(super) async fn end(store: String) -> Option<String> {
    // SAFETY: a plain system call.
    let own_group = unsafe { libc::getpgid(0) };
    let search = Arc::new(Search {
        store,
        spared: ancestors(),
        own_group,
        is_over: Mutex::new(false),
    });
    let (tell, told) = oneshot::channel();
    let theirs = Arc::clone(&search);
    let work = move || drop(tell.send(theirs.end()));
    let begun = thread("orphans").spawn(work);
    let ended = match begun {
        Ok(_) => tokio::time::timeout(TIME_MAX, told).await.ok(),
        Err(_) => None,
    };
    let unknown = || {
        let text = "programs of an earlier run may still run: the system does not let the node look for them";
        Some(text.to_owned())
    };
    let warning = ended.and_then(Result::ok).unwrap_or_else(|| {
        *search.lock() = true;
        unknown()
    });
    if let Some(warning) = &warning {
        log::event("warning", warning);
    }
    warning
}

impl Search {
    fn lock(&self) -> std::sync::MutexGuard<'_, bool> {
        self.is_over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) -> Option<String> {
        if let Err(error) = handle(std::process::id() as libc::pid_t) {
            return Some(format!(
                "programs of an earlier run may still run: the node cannot look for them: {error}"
            ));
        }
        let mut left = self.find();
        let mut found: BTreeSet<String> = left.iter().map(Orphan::name).collect();
        for (signal, patience) in [
            (libc::SIGTERM, END_TIME_MAX),
            (libc::SIGKILL, KILLED_TIME_MAX),
        ] {
            let until = Instant::now() + patience;
            let mut told = BTreeSet::new();
            while !left.is_empty() && Instant::now() < until {
                let is_over = self.lock();
                if *is_over {
                    return None;
                }
                // Signal new ones, too: some programs start others as they end.
                for one in left.iter().filter(|one| told.insert(one.number)) {
                    one.signal(signal);
                }
                drop(is_over);
                std::thread::sleep(LOOK);
                left = self.find();
                found.extend(left.iter().map(Orphan::name));
            }
        }
        let names = |them: BTreeSet<String>| them.into_iter().collect::<Vec<_>>().join(", ");
        let hanging: BTreeSet<String> = left.iter().map(Orphan::name).collect();
        let ended: BTreeSet<String> = found.difference(&hanging).cloned().collect();
        if !ended.is_empty() {
            let text = format!("ended programs of an earlier run: {}", names(ended));
            log::event("task", text);
        }
        (!hanging.is_empty()).then(|| {
            format!(
                "programs of an earlier run cannot be ended, and run beside the new ones: {}",
                names(hanging)
            )
        })
    }

    fn find(&self) -> Vec<Orphan> {
        let Ok(entries) = std::fs::read_dir("/proc") else {
            return Vec::new();
        };
        let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        entries
            .filter_map(|entry| self.look(entry.ok().and_then(number)?))
            .collect()
    }

    /// Returns this process if it is an orphan. Takes the handle first: then the number cannot be reused during the
    /// checks.
    fn look(&self, number: libc::pid_t) -> Option<Orphan> {
        // SAFETY: a plain system call.
        let group = unsafe { libc::getpgid(number) };
        if self.spared.contains(&number) || group == self.own_group {
            return None;
        }
        let handle = handle(number).ok()?;
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
        if value(b"KEEL_STORE=")? != self.store.as_bytes() || !shares_our_file_system(number) {
            return None;
        }
        Some(Orphan {
            number,
            task: String::from_utf8_lossy(task).into_owned(),
            handle,
        })
    }
}

/// Returns a handle of a process.
fn handle(number: libc::pid_t) -> std::io::Result<OwnedFd> {
    // SAFETY: a plain system call.
    let handle = unsafe { libc::syscall(libc::SYS_pidfd_open, number, 0) };
    match libc::c_int::try_from(handle) {
        // SAFETY: the kernel has just given it to this call.
        Ok(handle) if handle >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(handle) }),
        _ => Err(std::io::Error::last_os_error()),
    }
}

impl Orphan {
    fn name(&self) -> String {
        format!("{} (process {})", self.task, self.number)
    }

    fn signal(&self, signal: libc::c_int) {
        let none: *const libc::siginfo_t = std::ptr::null();
        // SAFETY: a plain system call with a handle that is open. It reaches only this process, or none.
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

/// Returns this process and its ancestors: a program may start the node of its own store again. The node's own process
/// group, such as the reader of its output, is spared as well.
fn ancestors() -> BTreeSet<libc::pid_t> {
    let mut found = BTreeSet::new();
    let mut number = std::process::id() as libc::pid_t;
    while number > 0 && found.len() < ANCESTORS_MAX && found.insert(number) {
        let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        // The process name before it may contain any character; it ends with the last parenthesis.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let parent = fields.split_whitespace().nth(1);
        number = parent.and_then(|parent| parent.parse().ok()).unwrap_or(0);
    }
    found
}

/// Returns whether the process sees the same file system: a copy of the store may be in another container.
fn shares_our_file_system(number: libc::pid_t) -> bool {
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
