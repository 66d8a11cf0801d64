//! The owner of a lane: a process with its start time, and whether it still runs.

use std::io::Write as _;
use std::time::Duration;

use crate::error::{Error, Result};

/// The time a waiter sleeps before it checks whether the holder is alive.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(2);

const START_BITS: u32 = 40;

/// A kernel flag of a thread that will not run the program any more.
const PF_EXITING: u64 = 4;

/// The owner word of a process that never existed: real process numbers are smaller. It marks a lane with an invalid
/// log whose owner may run again.
pub(crate) const NO_PROCESS: u64 = 0x7f_ffff << START_BITS | 1;

/// What became of the owner of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It still runs the program that took the lane.
    Runs,
    /// The process still runs, but does not have the region mapped. It has executed another program, which may map the
    /// region at any moment and is then the same owner.
    Replaced,
    /// The process has ended. No other process will ever have the same number and start time.
    Ended,
}

/// The owner of a lane: the process number, which may be reused, with its start time, which makes it unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u64);

impl Owner {
    /// This process.
    ///
    /// # Errors
    /// [`Error::System`] when `/proc` does not have its start time.
    pub(crate) fn current() -> Result<Self> {
        let pid = std::process::id();
        match start_of(pid) {
            Start::At { ticks, .. } => Ok(Self::new(pid, ticks)),
            Start::Ending | Start::Unknown => Err(Error::System {
                path: "/proc/self/stat".into(),
                what: "does not say when this process started",
                source: std::io::Error::from_raw_os_error(libc::ENOENT),
            }),
        }
    }

    fn new(pid: u32, start_ticks: u64) -> Self {
        Self(u64::from(pid) << START_BITS | start_ticks & ((1 << START_BITS) - 1))
    }

    pub(crate) fn as_word(self) -> u64 {
        self.0
    }

    pub(crate) fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// Whether the process still runs, and has at least `mapped_bytes_min` mapped.
    pub(crate) fn is_alive(self, mapped_bytes_min: u64) -> bool {
        self.fate(mapped_bytes_min) == Fate::Runs
    }

    /// What became of the process. A process that executed another program has the same number and start time as
    /// before. It no longer has the region mapped, so it has less than `mapped_bytes_min` mapped.
    pub(crate) fn fate(self, mapped_bytes_min: u64) -> Fate {
        #[cfg(test)]
        if let Some(is_alive) = crate::interleaving::is_alive(self) {
            return if is_alive { Fate::Runs } else { Fate::Ended };
        }
        let pid = (self.0 >> START_BITS) as u32;
        if pid == 0 {
            // Damage: no process has this number, and `kill` means the caller's group by it.
            return Fate::Ended;
        }
        match start_of(pid) {
            Start::At { ticks, .. } if Self::new(pid, ticks) != self => Fate::Ended,
            Start::At { mapped_bytes, .. } if mapped_bytes < mapped_bytes_min => Fate::Replaced,
            Start::At { .. } => Fate::Runs,
            // The lane of a process that is wrongly called dead would be taken from it in the middle of a change. This
            // process may be out of descriptors, or `/proc` hidden from it.
            Start::Unknown if is_process_there(pid) => Fate::Runs,
            Start::Ending | Start::Unknown => Fate::Ended,
        }
    }
}

/// Whether a process of this number exists, as far as the kernel says it.
pub(crate) fn is_process_there(pid: u32) -> bool {
    // SAFETY: signal 0 is not delivered; the kernel only checks whether it could be.
    let answer = unsafe { libc::kill(pid as libc::pid_t, 0) };
    answer == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// When a process started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    At {
        /// Since boot.
        ticks: u64,
        /// Size of its address space; the maximum if its first thread no longer knows it.
        mapped_bytes: u64,
    },
    /// It is a zombie, or its last thread is exiting.
    Ending,
    /// `/proc` does not say it: there is no such process, it cannot be read, or its last thread is being removed.
    Unknown,
}

/// Allocates nothing: a thread that waits for a lock may be in a signal handler.
fn start_of(pid: u32) -> Start {
    let start = match read_start(pid) {
        // The kernel takes the values of a line one after the other. If a thread executes a program or makes another
        // thread meanwhile, a line that mixes both moments says of a running process that it ends. A new line does not.
        Some(Start::Ending) => read_start(pid),
        start => start,
    };
    start.unwrap_or(Start::Unknown)
}

fn read_start(pid: u32) -> Option<Start> {
    let mut path = [0; 32];
    write!(&mut path[..31], "/proc/{pid}/stat").ok()?;
    // SAFETY: the path ends with a zero byte, because the last byte was not written to.
    let fd = unsafe { libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    let mut bytes = [0; 1024];
    // SAFETY: an open descriptor that no other code uses, and a buffer of the given length.
    let count = unsafe {
        let count = libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len());
        libc::close(fd);
        count
    };
    start_in(bytes.get(..usize::try_from(count).ok()?)?)
}

/// The start time in a line of `/proc/PID/stat`; `None` if it is no such line.
fn start_in(line: &[u8]) -> Option<Start> {
    // The name in parentheses may contain anything, also parentheses.
    let behind_name = line.iter().rposition(|byte| *byte == b')')? + 2;
    let mut fields = line.get(behind_name..)?.split(|byte| *byte == b' ');
    let state = fields.next()?;
    let number = |field: Option<&[u8]>| std::str::from_utf8(field?).ok()?.parse::<u64>().ok();
    let flags = number(fields.nth(5))?;
    let threads = number(fields.nth(10))?;
    // An exiting thread makes no more stores, even if the kernel needs long to free its memory. But the first thread
    // may be gone while another killed thread makes its last stores.
    let is_ending = matches!(state, b"Z" | b"X" | b"x") || flags & PF_EXITING != 0;
    match threads {
        // The kernel could not count them: another thread may have this number by now.
        0 if is_ending => return Some(Start::Unknown),
        1 if is_ending => return Some(Start::Ending),
        _ => {}
    }
    let ticks = number(fields.nth(1))?;
    // An exiting thread has no address space any more, but the other threads have.
    let mapped_bytes = if is_ending {
        u64::MAX
    } else {
        number(fields.next())?
    };
    Some(Start::At {
        ticks,
        mapped_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_owners_are_told_from_living_ones() {
        let line = |state: &str, flags: u64, threads: u64| {
            let fields = format!("7 (a ) b) {state} 1 2 3 4 5 {flags} 7 8 9 10 11 12 13 14 15 16");
            start_in(format!("{fields} {threads} 0 4711 99 5").as_bytes())
        };
        let at = |mapped_bytes| {
            let ticks = 4711;
            Some(Start::At {
                ticks,
                mapped_bytes,
            })
        };
        assert_eq!(line("S", 0x40_0100, 3), at(99));
        assert_eq!(line("R", 0x40_0100, 1), at(99));
        assert_eq!(line("Z", 0x40_010c, 1), Some(Start::Ending));
        assert_eq!(line("D", 0x40_010c, 1), Some(Start::Ending));
        // Another thread of the process is still there.
        assert_eq!(line("Z", 0x40_010c, 2), at(u64::MAX));
        // A thread that executes a program has taken the number of the first one, which is being removed.
        assert_eq!(line("D", 0x40_010c, 0), Some(Start::Unknown));
        assert_eq!(Owner(START_BITS.into()).fate(0), Fate::Ended);
        assert_eq!(start_in(b"7 (a) S"), None);
        let me = Owner::current().unwrap();
        assert!(me.is_alive(0));
        assert!(!me.is_alive(1 << 60));
        assert!(!Owner(me.as_word() ^ 1).is_alive(0));
    }

    #[test]
    fn a_process_that_cannot_read_proc_takes_no_owner_for_dead() {
        let me = Owner::current().unwrap();
        // A process that has ended and was waited for.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = Owner::new(child.id(), 1);
        child.wait().unwrap();
        // SAFETY: plain system calls; each test has a process of its own.
        unsafe {
            let mut before: libc::rlimit = std::mem::zeroed();
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before), 0);
            let limit = libc::rlimit {
                rlim_cur: 0,
                ..before
            };
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
            let alive = (me.is_alive(1 << 60), gone.is_alive(0));
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const before), 0);
            assert_eq!(alive, (true, false));
        }
    }
}
