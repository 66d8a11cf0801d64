//! A share of the processor for real-time tasks: SCHED_DEADLINE, a runtime in each short period.
//!
//! Like [`RtGroup`](crate::RtGroup), for kernels without groups. The kernel does not let such a thread be bound to one
//! processor.

use control::actuator::{Actuator, Applied};

use crate::error::ActuatorError;

/// Short against a task of some milliseconds. No other program chooses this number: it marks threads set by a node.
const PERIOD_NS: u64 = 5_000_003;

/// Largest part of the period that the kernel gives such threads by default.
const PART_MAX: f64 = 0.94;

/// Steps that are worth setting: enforcement is by the clock tick, where there is no finer clock.
const STEP: f64 = 0.05;

/// How the kernel schedules a thread: `struct sched_attr`, the first version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Scheduling {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

const SCHED_DEADLINE: u32 = 6;

/// Threads started by such a thread are ordinary ones. Without this flag it could start no thread and no process.
const RESET_ON_FORK: u64 = 1;

const BYTES: u32 = size_of::<Scheduling>() as u32;

/// Threads that are scheduled by deadline.
#[derive(Debug)]
pub struct Deadline {
    /// Each thread with its original scheduling, once that has been changed.
    threads: Vec<(u32, Option<Scheduling>)>,
}

impl Scheduling {
    /// Returns the scheduling of threads that request nothing.
    fn ordinary() -> Self {
        Self {
            size: BYTES,
            ..Self::default()
        }
    }

    /// Whether a node has set it.
    fn is_driven(&self) -> bool {
        self.policy == SCHED_DEADLINE
            && (self.deadline_ns, self.period_ns) == (PERIOD_NS, PERIOD_NS)
    }
}

impl Deadline {
    /// Makes the actuator for these threads of this machine. Nothing changes before the first speed is set or the
    /// original is restored. A thread that a killed program has left with a share is then made an ordinary thread. Only
    /// its own program knows its original scheduling ([`OwnScheduling`]).
    #[must_use]
    pub fn new(threads: &[u32]) -> Self {
        let before = |thread: u32| {
            let found = scheduling(thread).ok()?;
            found.is_driven().then(Scheduling::ordinary)
        };
        Self {
            threads: threads.iter().map(|it| (*it, before(*it))).collect(),
        }
    }
}

/// A thread's scheduling before a node drove it: kept by its own program in case that node is killed.
#[derive(Clone, Copy, Debug)]
pub struct OwnScheduling {
    thread: u32,
    had: Scheduling,
}

impl OwnScheduling {
    /// Returns that of the calling thread; `None` if the system does not report it, or a node drives it already.
    #[must_use]
    pub fn of_this_thread() -> Option<Self> {
        let thread = this_thread();
        let had = scheduling(thread).ok()?;
        (!had.is_driven()).then_some(Self { thread, had })
    }

    /// Restores the scheduling of the calling thread, if it is the same thread and a node has set it; returns whether
    /// that was so. If the original is not permitted, the thread becomes an ordinary one, which is better than a part
    /// of the processor.
    ///
    /// # Errors
    /// [`ActuatorError::Thread`]; it is then an ordinary thread, or what it was.
    pub fn take_back(&self) -> Result<bool, ActuatorError> {
        let is_driven = || scheduling(self.thread).is_ok_and(|found| found.is_driven());
        if this_thread() != self.thread || !is_driven() {
            return Ok(false);
        }
        schedule(self.thread, &self.had).inspect_err(|_| {
            let _ = schedule(self.thread, &Scheduling::ordinary());
        })?;
        Ok(true)
    }
}

fn this_thread() -> u32 {
    // SAFETY: a plain system call that cannot fail.
    unsafe { libc::gettid() }.unsigned_abs()
}

impl Actuator for Deadline {
    type Error = ActuatorError;

    fn name(&self) -> &'static str {
        "deadline"
    }

    fn set(&mut self, speed: f64) -> Result<Applied, ActuatorError> {
        if !(speed > 0.0 && speed <= 1.0) {
            return Err(ActuatorError::Speed);
        }
        let runtime_ns = (speed * PART_MAX * PERIOD_NS as f64) as u64;
        let wanted = Scheduling {
            size: BYTES,
            policy: SCHED_DEADLINE,
            flags: RESET_ON_FORK,
            runtime_ns,
            deadline_ns: PERIOD_NS,
            period_ns: PERIOD_NS,
            ..Scheduling::default()
        };
        let mut applied = Applied {
            speed,
            is_obeyed: true,
        };
        for (thread, before) in &mut self.threads {
            let had = scheduling(*thread)?;
            before.get_or_insert(had);
            schedule(*thread, &wanted)?;
            let found = scheduling(*thread)?;
            let part = found.runtime_ns as f64 / (found.period_ns.max(1) as f64 * PART_MAX);
            applied.speed = applied.speed.min(part);
            applied.is_obeyed &= found.policy == SCHED_DEADLINE && found.runtime_ns == runtime_ns;
        }
        Ok(applied)
    }

    fn step(&self) -> f64 {
        STEP
    }

    fn restore(&mut self) -> Result<(), ActuatorError> {
        let mut first = Ok(());
        for (thread, before) in &mut self.threads {
            let Some(had) = *before else {
                continue;
            };
            // Another thread may have its number, or another program may have set it: that must not be undone.
            if scheduling(*thread).is_ok_and(|found| !found.is_driven()) {
                *before = None;
                continue;
            }
            match schedule(*thread, &had) {
                // A thread that has ended needs nothing restored.
                Ok(())
                | Err(ActuatorError::Thread {
                    errno: libc::ESRCH, ..
                }) => *before = None,
                Err(error) => first = first.and(Err(error)),
            }
        }
        first
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        let _ = self.restore();
    }
}

fn failed(thread: u32) -> ActuatorError {
    let error = std::io::Error::last_os_error();
    ActuatorError::Thread {
        thread,
        text: error.to_string(),
        errno: error.raw_os_error().unwrap_or(0),
    }
}

fn scheduling(thread: u32) -> Result<Scheduling, ActuatorError> {
    let mut found = Scheduling::default();
    // SAFETY: room for as many bytes as are said.
    let done = unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut found, BYTES, 0) };
    if done == 0 {
        Ok(found)
    } else {
        Err(failed(thread))
    }
}

fn schedule(thread: u32, wanted: &Scheduling) -> Result<(), ActuatorError> {
    // SAFETY: a structure that says its own size and lives as long as the call.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const *wanted, 0) };
    if done == 0 {
        Ok(())
    } else {
        Err(failed(thread))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// The kernel counts a share for up to a period longer than it is held. So parallel tests may find for a moment
    /// that none is left.
    fn set(actuator: &mut Deadline, speed: f64) -> Result<Applied, ActuatorError> {
        let mut tries = 0..5_000;
        loop {
            match actuator.set(speed) {
                Err(ActuatorError::Thread { errno, .. })
                    if errno == libc::EBUSY && tries.next().is_some() =>
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                other => return other,
            }
        }
    }

    #[test]
    fn a_thread_gets_a_share_and_later_its_former_scheduling() {
        let thread = this_thread();
        let before = scheduling(thread).unwrap();
        let mut actuator = Deadline::new(&[thread]);
        assert_eq!(actuator.set(f64::NAN), Err(ActuatorError::Speed));
        match set(&mut actuator, 0.5) {
            Err(ActuatorError::Thread { text, .. }) => {
                println!("skipped: the kernel does not let this user schedule by deadline: {text}");
                return;
            }
            other => assert!(other.unwrap().is_obeyed),
        }
        assert_eq!(scheduling(thread).unwrap().runtime_ns, 2_350_001);
        let child = std::thread::Builder::new();
        let child = child.spawn(|| scheduling(this_thread()).unwrap().policy);
        let policy = child.expect("it may start others").join().unwrap();
        assert_eq!(policy, 0, "they are ordinary ones");
        let applied = set(&mut actuator, 0.8).unwrap();
        assert!((applied.speed - 0.8).abs() < 1e-6, "{applied:?}");
        actuator.restore().unwrap();
        assert_eq!(scheduling(thread).unwrap(), before);
        // What another program has set meanwhile is not undone.
        set(&mut actuator, 0.5).unwrap();
        let nicer = Scheduling { nice: 3, ..before };
        schedule(thread, &nicer).unwrap();
        actuator.restore().unwrap();
        assert_eq!(scheduling(thread).unwrap().nice, 3);
    }

    #[test]
    fn scheduling_left_by_a_killed_node_is_found_and_ends() {
        let thread = this_thread();
        let before = scheduling(thread).unwrap();
        let own = OwnScheduling::of_this_thread().unwrap();
        assert!(!own.take_back().unwrap(), "no node drives it");
        let mut killed = Deadline::new(&[thread]);
        if let Err(error) = set(&mut killed, 0.3) {
            println!("skipped: {error}");
            return;
        }
        std::mem::forget(killed);
        assert!(OwnScheduling::of_this_thread().is_none());
        // Its own program knows the original scheduling.
        assert!(own.take_back().unwrap());
        assert_eq!(scheduling(thread).unwrap(), before);
        let elsewhere = std::thread::spawn(move || own.take_back().unwrap());
        assert!(!elsewhere.join().unwrap());
        // A thread of another program is released by the next node, whether that sets a speed or not.
        let mut killed = Deadline::new(&[thread]);
        set(&mut killed, 0.3).unwrap();
        std::mem::forget(killed);
        Deadline::new(&[thread]).restore().unwrap();
        assert_eq!(scheduling(thread).unwrap().policy, 0);
        let mut killed = Deadline::new(&[thread]);
        set(&mut killed, 0.3).unwrap();
        std::mem::forget(killed);
        let mut next = Deadline::new(&[thread]);
        set(&mut next, 0.8).unwrap();
        drop(next);
        assert_eq!(scheduling(thread).unwrap().policy, 0);
    }

    #[test]
    fn a_thread_that_is_gone_is_reported() {
        let thread = std::thread::spawn(this_thread).join().unwrap();
        // The kernel is done with a thread a little later than the join returns.
        while std::path::Path::new(&format!("/proc/self/task/{thread}")).exists() {
            std::thread::yield_now();
        }
        let mut actuator = Deadline::new(&[thread]);
        assert!(matches!(
            set(&mut actuator, 0.5),
            Err(ActuatorError::Thread { .. })
        ));
        actuator.restore().unwrap();
    }
}
