//! Threads that are measured: which processor they run on, and before whom.

/// Priority of a measured thread among those of the policy FIFO.
pub(crate) const MEASURED_PRIORITY: i32 = 50;

/// Processors that this program may use, in order.
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

/// Keeps the calling thread to one processor.
///
/// # Errors
/// One line.
pub(crate) fn pin(core: usize) -> Result<(), String> {
    pin_to(&[core])
}

/// Keeps the calling thread to some processors.
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

/// Lets the calling thread run before all others of a lower priority until it waits.
///
/// # Errors
/// One line: it takes root, or a limit that allows it.
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

/// Lets the calling thread run only where a processor has nothing else to do.
pub(crate) fn idle() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters are readable; 0 is the calling thread. Giving up a priority is always allowed.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
}

/// Does nothing wherever a processor has nothing to do, until it is to end. One that halts begins its next work with
/// cold caches and a low clock; and a virtual one is moved by its host, nearer to the others or further away from them,
/// so that what a line of memory takes between two processors changes by a factor of five from one second to the next.
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

/// Lets the calling thread run like any other again.
pub(crate) fn ordinary() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters are readable; 0 is the calling thread. Giving up a priority is always allowed.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const parameters) };
}

/// The number that the kernel knows the calling thread by.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: the call only tells a number.
    unsafe { libc::gettid() as u32 }
}

/// Runs `body` on a thread of its own on one processor, before all others where that is permitted.
///
/// # Errors
/// Those of `body`, and of a thread that cannot be had.
pub(crate) fn measured<R: Send>(
    core: usize,
    body: impl FnOnce() -> Result<R, String> + Send,
) -> Result<R, String> {
    std::thread::scope(|scope| {
        let runner = scope.spawn(|| {
            // Without the right to it the figures are noisier; the report says so.
            let _ = pin(core).and_then(|()| fifo(MEASURED_PRIORITY));
            body()
        });
        runner
            .join()
            .map_err(|_| "a measured thread has panicked".to_owned())?
    })
}

/// Why measured threads run like any others here; `None` where they do not.
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
    fn what_a_measured_thread_finds_comes_back() {
        assert_eq!(measured(cores()[0], || Ok(7)), Ok(7));
        assert_eq!(
            measured::<()>(cores()[0], || Err("no".to_owned())),
            Err("no".to_owned())
        );
    }
}
