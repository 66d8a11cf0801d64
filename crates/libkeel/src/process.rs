//! The process id, without a system call. A child after `fork` has neither a maintenance thread nor a connection of its
//! own, and must not use those of its parent.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// A page that the kernel clears in a child; `None` if the kernel does not support this.
static PAGE: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();

/// Size of the mapping in bytes; the kernel rounds it up to a page.
const MAPPED_BYTES: usize = 4096;

/// Returns the process id of this process.
pub(crate) fn number() -> u32 {
    match PAGE.get_or_init(map) {
        Some(word) => match word.load(Ordering::Relaxed) {
            // The first call in this process.
            0 => {
                let number = std::process::id();
                word.store(number, Ordering::Relaxed);
                number
            }
            number => number,
        },
        None => std::process::id(),
    }
}

fn map() -> Option<&'static AtomicU32> {
    // SAFETY: a new mapping at an address of the kernel's choice overlaps no other memory.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            MAPPED_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping made above, to which no other reference exists.
    if unsafe { libc::madvise(address, MAPPED_BYTES, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: as above; nothing leads there.
        unsafe { libc::munmap(address, MAPPED_BYTES) };
        return None;
    }
    // SAFETY: the mapping stays as long as the process, is aligned, and zeros are a word; it is only used as one.
    Some(unsafe { &*address.cast() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_another_number() {
        let own = number();
        assert_eq!(own, std::process::id());
        assert!(PAGE.get().unwrap().is_some(), "the kernel wipes pages");
        // SAFETY: the child calls nothing that a lock of another thread could hold up, and ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_other = number() != own && number() == std::process::id();
            // SAFETY: ends the child without running what belongs to its parent.
            unsafe { libc::_exit(i32::from(!is_other)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(number(), own);
    }
}
