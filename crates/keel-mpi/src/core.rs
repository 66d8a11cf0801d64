//! Binding a rank to a core. Launchers can also bind, but each in a different way, and none for emulated boards. So it
//! is done here, in the same way for each library.

use std::mem::size_of;

/// The cores that this process may use, in ascending order.
pub(crate) fn allowed() -> Vec<u32> {
    // SAFETY: all zero is a valid set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most the given number of bytes, which is the size of the set.
    let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    if result != 0 {
        return Vec::new();
    }
    // SAFETY: the number is below the set's size.
    let is_in = |core: &u32| unsafe { libc::CPU_ISSET(*core as usize, &set) };
    (0..libc::CPU_SETSIZE as u32).filter(is_in).collect()
}

/// Binds this thread to a core.
pub(crate) fn bind(core: u32) -> Result<(), String> {
    // SAFETY: all zero is a valid set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if core as usize >= libc::CPU_SETSIZE as usize {
        return Err(format!("core {core} is beyond what the kernel's set holds"));
    }
    // SAFETY: the number is below the set's size.
    unsafe { libc::CPU_SET(core as usize, &mut set) };
    // SAFETY: the set lives until the call returns; 0 is the calling thread.
    let result =
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    if result == 0 {
        Ok(())
    } else {
        Err(format!("core {core}: {}", std::io::Error::last_os_error()))
    }
}
