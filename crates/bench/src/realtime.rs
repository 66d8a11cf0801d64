//! Measured threads: the processors they run on, and their priority.

/// FIFO priority of a measured thread.
pub(crate) const MEASURED_PRIORITY: i32 = 50;

/// Returns the processors that this program may use, in order.
pub(crate) fn cores() -> Vec<usize> {
    // SAFETY: all-zero is a valid value of this set of bits.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is writable for its size; 0 is the calling thread.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } != 0 {
        return vec![0];
    }
    let may_use = |core: &usize| {
        // SAFETY: the number is below the bits of the set.
        unsafe { libc::CPU_ISSET(*core, &set) }
    };
    (0..libc::CPU_SETSIZE as usize).filter(may_use).collect()
}

/// Restricts the calling thread to one processor.
///
/// # Errors
/// One line.
pub(crate) fn pin(core: usize) -> Result<(), String> {
    pin_to(&[core])
}

/// Restricts the calling thread to some processors.
///
/// # Errors
/// One line.
pub(crate) fn pin_to(cores: &[usize]) -> Result<(), String> {
    if let Some(core) = cores
        .iter()
        .find(|core| **core >= libc::CPU_SETSIZE as usize)
    {
        return Err(format!("processor {core}: no such processor"));
    }
    // SAFETY: all-zero is a valid value of this set of bits.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for core in cores {
        // SAFETY: the number is below the bits of the set.
        unsafe { libc::CPU_SET(*core, &mut set) };
    }
    // SAFETY: the set is readable for its size; 0 is the calling thread.
    if unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } != 0 {
        return Err(format!(
            "processors {cores:?}: {}",
            std::io::Error::last_os_error()
        ));
    }
    Ok(())
}

/// Gives the calling thread the policy FIFO: it runs before all threads of a lower priority until it waits.
///
/// # Errors
/// One line: this requires root, or a limit that allows it.
pub(crate) fn fifo(priority: i32) -> Result<(), String> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the parameters are readable; 0 is the calling thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) } != 0 {
        return Err(format!(
            "SCHED_FIFO: {}; run as root",
            std::io::Error::last_os_error()
        ));
    }
    Ok(())
}

/// Lets the calling thread run only on an otherwise idle processor.
pub(crate) fn idle() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters are readable; 0 is the calling thread. Giving up a priority is always allowed.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
}

/// Runs an idle loop on a processor until `ends` returns true. A processor that halts begins its next work with cold
/// caches and a low clock. A host may also move a halted virtual processor nearer to the others or further away. The
/// time of a cache line between two processors then changes by a factor of five from one second to the next.
///
/// # Errors
/// One line.
pub(crate) fn stay_awake(core: usize, ends: impl Fn() -> bool) -> Result<(), String> {
    pin(core)?;
    idle();
    while !ends() {
        std::hint::spin_loop();
    }
    Ok(())
}

/// Returns the calling thread to the ordinary policy.
pub(crate) fn ordinary() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters are readable; 0 is the calling thread. Giving up a priority is always allowed.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const parameters) };
}

/// Returns the kernel's ID of the calling thread.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: the call only returns a number.
    unsafe { libc::gettid() as u32 }
}

/// Runs `body` on its own thread on one processor, with real-time priority if that is permitted.
///
/// # Errors
/// Those of `body`, and an error if the thread cannot be started.
pub(crate) fn measured<R: Send>(
    core: usize,
    body: impl FnOnce() -> Result<R, String> + Send,
) -> Result<R, String> {
    std::thread::scope(|scope| {
        let runner = scope.spawn(|| {
            // Without the permission the figures are noisier; the report says so.
            let _ = pin(core).and_then(|()| fifo(MEASURED_PRIORITY));
            body()
        });
        runner
            .join()
            .map_err(|_| "a measured thread has panicked".to_owned())?
    })
}

/// Returns why measured threads have no real-time priority here, or `None` if they have it.
pub(crate) fn lacking() -> Option<String> {
    std::thread::scope(|scope| {
        let tried = scope.spawn(|| pin(cores()[0]).and_then(|()| fifo(MEASURED_PRIORITY)));
        tried.join().ok()?.err()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_is_where_it_was_put() {
        let core = *cores().last().unwrap();
        let place = std::thread::spawn(move || {
            pin(core).unwrap();
            cores()
        });
        assert_eq!(place.join().unwrap(), [core]);
        assert!(pin(1 << 20).unwrap_err().contains("no such processor"));
    }

    #[test]
    fn a_measured_thread_returns_its_result() {
        assert_eq!(measured(cores()[0], || Ok(7)), Ok(7));
        assert_eq!(
            measured::<()>(cores()[0], || Err("no".to_owned())),
            Err("no".to_owned())
        );
    }
}
