//! A share of the processor for real-time tasks: SCHED_DEADLINE, a runtime in each short period.
//!
//! As [`RtGroup`](super::RtGroup), on kernels without groups. The kernel does not let such a thread be kept to one
//! processor.

use super::{Actuator, ActuatorError, Applied};

/// Short against a task of some milliseconds.
const PERIOD_NS: u64 = 5_000_000;

/// Of the period, what the kernel gives such threads at most, unless told otherwise.
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
const BYTES: u32 = size_of::<Scheduling>() as u32;

/// Threads that are scheduled by deadline.
#[derive(Debug)]
pub struct Deadline {
    /// Each with what it had before, once that has been changed.
    threads: Vec<(u32, Option<Scheduling>)>,
}

impl Deadline {
    /// For these threads of this machine. Nothing changes before the first speed is set. What a killed program had
    /// ends with its threads.
    #[must_use]
    pub fn new(threads: &[u32]) -> Self {
        Self {
            threads: threads.iter().map(|thread| (*thread, None)).collect(),
        }
    }
}

impl Actuator for Deadline {
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
            match schedule(*thread, &had) {
                // One that has ended has nothing to be put back.
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

    #[test]
    fn a_thread_gets_a_share_and_what_it_had() {
        // SAFETY: no memory is passed.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
        let before = scheduling(thread).unwrap();
        let mut actuator = Deadline::new(&[thread]);
        assert_eq!(actuator.set(f64::NAN), Err(ActuatorError::Speed));
        match actuator.set(0.5) {
            Err(ActuatorError::Thread { text, .. }) => {
                println!("skipped: the kernel does not let this user schedule by deadline: {text}");
                return;
            }
            other => assert!(other.unwrap().is_obeyed),
        }
        assert_eq!(scheduling(thread).unwrap().runtime_ns, 2_350_000);
        let applied = actuator.set(0.8).unwrap();
        assert!((applied.speed - 0.8).abs() < 1e-6, "{applied:?}");
        actuator.restore().unwrap();
        assert_eq!(scheduling(thread).unwrap(), before);
    }

    #[test]
    fn a_thread_that_is_gone_is_told() {
        let thread = std::thread::spawn(|| {
            // SAFETY: no memory is passed.
            unsafe { libc::syscall(libc::SYS_gettid) as u32 }
        });
        let mut actuator = Deadline::new(&[thread.join().unwrap()]);
        assert!(matches!(
            actuator.set(0.5),
            Err(ActuatorError::Thread { .. })
        ));
        actuator.restore().unwrap();
    }
}
