//! What a real-time thread needs from the machine: locked memory, a stack that is present, a priority, cores.
//!
//! Each call returns what the machine did not permit, as a line that says what it means and what helps. Then it goes
//! on, because a node without these rights works, but later under load.
//!
//! **Only what real-time code touches is locked**: the table, the queue and the stacks, not all of the process
//! (`mlockall`). That would include history, socket buffers and whole regions, and would make each later allocation of
//! any thread touch its pages at once. Where the limit is small, those allocations fail, in threads that never asked
//! for locking.

use std::io;
use std::mem::MaybeUninit;

/// Number of cores that can be named: `0..CORES_MAX`.
pub const CORES_MAX: u16 = 1024;

const PAGE_BYTES: usize = 4096;

/// Below this size large pages, which may be used only in part, cost more in memory than they save in time.
const LARGE_PAGES_FROM_BYTES: usize = 8 << 20;

/// Bytes of a stack that are already in use when a thread touches its stack, or belong to the system: guard page and
/// thread-local storage.
const STACK_IN_USE_BYTES: usize = 48 << 10;

/// Some cores; none named means all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cores {
    words: [u64; CORES_MAX as usize / 64],
}

impl Cores {
    /// Returns a set of these cores; `None` if one is [`CORES_MAX`] or more.
    #[must_use]
    pub fn of(cores: &[u16]) -> Option<Self> {
        let mut found = Self::default();
        for core in cores {
            *found.words.get_mut(usize::from(*core) / 64)? |= 1 << (core % 64);
        }
        Some(found)
    }

    /// Whether none is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Their numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (0..CORES_MAX).filter(|core| self.words[usize::from(*core) / 64] >> (core % 64) & 1 == 1)
    }
}

/// Lets the calling thread run on these cores only; on all, without a call, if none is named. Returns what was not
/// permitted.
#[must_use]
pub fn set_cores(cores: &Cores) -> Option<String> {
    if cores.is_empty() {
        return None;
    }
    let names = || {
        let names: Vec<_> = cores.iter().map(|core| core.to_string()).collect();
        names.join(",")
    };
    let bytes = size_of_val(&cores.words);
    // SAFETY: the words are read for as many bytes as are said; 0 is the calling thread. It changes no memory.
    let set = unsafe { libc::sched_setaffinity(0, bytes, cores.words.as_ptr().cast()) };
    if set != 0 {
        let error = io::Error::last_os_error();
        return Some(format!(
            "the thread is not bound to the cores {}: {error}; it may run on any. The cores must exist and belong to \
             the control group (cpuset) of the process",
            names()
        ));
    }
    let mut found = Cores::default();
    // SAFETY: room for as many bytes as are said, borrowed exclusively for the call.
    let got = unsafe { libc::sched_getaffinity(0, bytes, found.words.as_mut_ptr().cast()) };
    (got == 0 && found != *cores).then(|| {
        let kept: Vec<_> = found.iter().map(|core| core.to_string()).collect();
        format!(
            "the thread is bound to the cores {} only, not to {}: the others do not exist or are not of the control \
             group (cpuset) of the process",
            kept.join(","),
            names()
        )
    })
}

/// The scheduling class, with the flag that makes threads ordinary which a real-time thread starts. A database opened
/// by a real-time thread would otherwise commit at that priority, too.
const FIFO: i32 = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;

/// Gives the calling thread a real-time priority of the class `SCHED_FIFO`, 1 to 99; threads that it starts do not
/// inherit it. Returns what was not permitted.
#[must_use]
pub fn set_fifo(priority: u8) -> Option<String> {
    let wanted = libc::sched_param {
        sched_priority: i32::from(priority),
    };
    // SAFETY: the structure is read during the call; 0 is the calling thread. It changes no memory.
    let set = unsafe { libc::sched_setscheduler(0, FIFO, &raw const wanted) };
    (set != 0).then(|| {
        let error = io::Error::last_os_error();
        format!(
            "the thread runs without real-time priority {priority}: {error}; others can hold it up. Needed is the \
             capability CAP_SYS_NICE or a limit RLIMIT_RTPRIO (LimitRTPRIO= of systemd) of {priority}, and real-time \
             time in its control group"
        )
    })
}

/// Requests large pages under memory that is not touched yet, where they are worth it. Reports nothing if there are
/// none: access is then only slower.
pub(crate) fn prefer_large_pages<T>(untouched: &mut [MaybeUninit<T>]) {
    let begin = untouched.as_ptr().addr().next_multiple_of(PAGE_BYTES);
    let end = (untouched.as_ptr().addr() + size_of_val(untouched)) / PAGE_BYTES * PAGE_BYTES;
    let bytes = end.saturating_sub(begin);
    if bytes >= LARGE_PAGES_FROM_BYTES {
        // SAFETY: whole pages within the slice, which is borrowed exclusively; the call changes no byte of them.
        unsafe {
            libc::madvise(
                std::ptr::without_provenance_mut(begin),
                bytes,
                libc::MADV_HUGEPAGE,
            )
        };
    }
}

/// Keeps the memory of `values` from being swapped out or reclaimed, and brings it in now. `what` names it. Returns
/// what was not permitted.
#[must_use]
pub fn lock_memory<T>(what: &str, values: &[T]) -> Option<String> {
    lock_range(what, values.as_ptr().addr(), size_of_val(values))
}

pub(crate) fn lock_range(what: &str, begin: usize, bytes: usize) -> Option<String> {
    if bytes == 0 {
        return None;
    }
    // SAFETY: locking changes no byte and no mapping; the kernel refuses a range that is none.
    let locked = unsafe { libc::mlock(std::ptr::without_provenance(begin), bytes) };
    (locked != 0).then(|| {
        let error = io::Error::last_os_error();
        let kib = bytes.div_ceil(1024);
        format!(
            "{what} ({kib} KiB) is not locked in memory: {error}; it can be swapped out. Needed is the capability \
             CAP_IPC_LOCK or a higher limit RLIMIT_MEMLOCK (LimitMEMLOCK= of systemd)"
        )
    })
}

/// Touches and locks the rest of the calling thread's stack of `stack_bytes`, so that no page of it is missing later.
/// Call this early in the thread. Returns what was not permitted.
#[must_use]
pub fn prepare_stack(stack_bytes: usize) -> Option<String> {
    let bytes = stack_bytes.saturating_sub(STACK_IN_USE_BYTES);
    let mark = 0_u8;
    let top = (&raw const mark).addr();
    let lowest = touch_stack(top, bytes);
    lock_range("the stack of the thread", lowest, top - lowest)
}

/// Touches the stack page by page, down to `bytes` below `top`; returns the lowest address touched.
#[inline(never)]
fn touch_stack(top: usize, bytes: usize) -> usize {
    let mut page = [0_u8; PAGE_BYTES];
    let here = std::hint::black_box(&raw mut page).addr();
    // This call's frame may be two pages, with a copy of the page.
    let lowest = if top.saturating_sub(here) + 3 * PAGE_BYTES < bytes {
        touch_stack(top, bytes)
    } else {
        here
    };
    // Use the page after the call, so that each call keeps its page.
    std::hint::black_box(&mut page);
    lowest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `work` in a thread of its own: what is set stays with that thread.
    fn apart<R: Send>(work: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| scope.spawn(work).join().expect("no panic"))
    }

    fn is_skipped(refused: &Option<String>) -> bool {
        if let Some(text) = refused {
            println!("skipped: {text}");
        }
        refused.is_some()
    }

    /// A figure of this thread's memory, in KiB, such as `VmLck`.
    fn memory_kib(name: &str) -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("a status");
        let line = status.lines().find(|line| line.starts_with(name));
        let words = line.and_then(|line| line.split_whitespace().nth(1));
        words.and_then(|word| word.parse().ok()).expect("a figure")
    }

    #[test]
    fn cores_are_named_once_and_within_the_limit() {
        let cores = Cores::of(&[1023, 0, 64, 0]).expect("all of them exist");
        assert_eq!(cores.iter().collect::<Vec<_>>(), [0, 64, 1023]);
        assert!(!cores.is_empty() && Cores::default().is_empty());
        assert_eq!(Cores::of(&[1, CORES_MAX]), None);
    }

    #[test]
    fn a_thread_is_bound_to_a_core_and_an_absent_core_is_reported() {
        apart(|| {
            let allowed = {
                let mut found = Cores::default();
                let bytes = size_of_val(&found.words);
                // SAFETY: room for as many bytes as are said.
                let got =
                    unsafe { libc::sched_getaffinity(0, bytes, found.words.as_mut_ptr().cast()) };
                assert_eq!(got, 0);
                found
            };
            let last = allowed.iter().last().expect("this thread runs somewhere");
            let one = Cores::of(&[last]).expect("in range");
            assert_eq!(set_cores(&one), None);
            // SAFETY: no memory is passed.
            assert_eq!(unsafe { libc::sched_getcpu() }, i32::from(last));
            assert_eq!(set_cores(&Cores::default()), None);
            let absent = Cores::of(&[CORES_MAX - 1]).expect("in range");
            let refused = set_cores(&absent).expect("no machine has 1024 processors");
            assert!(refused.contains("cores 1023"), "{refused}");
            let both = Cores::of(&[last, CORES_MAX - 1]).expect("in range");
            let partly = set_cores(&both).expect("one of them is not there");
            assert!(partly.contains(&format!("cores {last} only")), "{partly}");
        });
    }

    #[test]
    fn a_thread_gets_its_priority() {
        let refused = apart(|| set_fifo(0)).expect("there is no priority 0");
        assert!(refused.contains("RLIMIT_RTPRIO"), "{refused}");
        apart(|| {
            if is_skipped(&set_fifo(7)) {
                return;
            }
            // SAFETY: no memory is passed; 0 is the calling thread.
            assert_eq!(unsafe { libc::sched_getscheduler(0) }, FIFO);
            // SAFETY: no memory is passed.
            let child = apart(|| unsafe { libc::sched_getscheduler(0) });
            assert_eq!(child, libc::SCHED_OTHER, "not inherited");
        });
    }

    #[test]
    fn memory_is_locked_and_the_stack_is_there() {
        let refused =
            lock_range("nothing", 1 << 12, PAGE_BYTES).expect("the second page is not mapped");
        assert!(refused.starts_with("nothing (4 KiB)"), "{refused}");
        let values = vec![1_u64; 64 << 10];
        let before_kib = memory_kib("VmLck");
        if is_skipped(&lock_memory("the values", &values)) {
            return;
        }
        let locked_kib = memory_kib("VmLck") - before_kib;
        assert!((512..=516).contains(&locked_kib), "{locked_kib} KiB");
        // SAFETY: unlocking changes no byte.
        unsafe { libc::munlock(values.as_ptr().cast(), size_of_val(&values[..])) };
        let stack_bytes = 1 << 20;
        let prepared_kib = std::thread::Builder::new()
            .stack_size(stack_bytes)
            .spawn(move || {
                let before_kib = memory_kib("VmLck");
                let refused = prepare_stack(stack_bytes);
                let locked_kib = memory_kib("VmLck") - before_kib;
                assert_eq!(refused, None);
                locked_kib
            })
            .expect("a thread")
            .join()
            .expect("the stack is deep enough");
        assert!((900..=1024).contains(&prepared_kib), "{prepared_kib} KiB");
    }
}
