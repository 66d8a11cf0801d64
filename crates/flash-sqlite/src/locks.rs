//! Locks for reading and writing a file, and the memory that connections in WAL mode share. All of it is in this
//! process: the device is locked against every other process.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use crate::abi::{lock, shm};

/// Maximum number of regions of shared memory for one file. SQLite requests 32 KiB each, one for about 4,000 frames of
/// the log, so this allows a log of 8 GiB.
pub(crate) const REGIONS_MAX: usize = 512;

/// Locks of all connections on one file, as SQLite defines them.
#[derive(Debug, Default)]
pub(crate) struct FileLocks {
    /// Connections that hold SHARED or more.
    shared: usize,
    /// The one connection that holds more than SHARED, and its level.
    writer: Option<(u64, c_int)>,
}

impl FileLocks {
    /// Raises the lock of connection `id` from `from` to `to`. Returns the level that it then holds, and whether that
    /// is the requested level. If EXCLUSIVE is not possible the lock stays PENDING, which keeps new readers out.
    pub(crate) fn raise(&mut self, id: u64, from: c_int, to: c_int) -> (c_int, bool) {
        if from >= to {
            return (from, true);
        }
        let others = self.writer.filter(|(holder, _)| *holder != id);
        if from == lock::NONE {
            if others.is_some_and(|(_, level)| level >= lock::PENDING) {
                return (from, false);
            }
            self.shared += 1;
            return self.raise(id, lock::SHARED, to);
        }
        if others.is_some() {
            return (from, false);
        }
        if to == lock::EXCLUSIVE && self.shared > 1 {
            self.writer = Some((id, lock::PENDING));
            return (lock::PENDING, false);
        }
        self.writer = Some((id, to));
        (to, true)
    }

    /// Lowers the lock of connection `id` from `from` to `to`, which is SHARED or NONE.
    pub(crate) fn lower(&mut self, id: u64, from: c_int, to: c_int) {
        if from <= to {
            return;
        }
        if self.writer.is_some_and(|(holder, _)| holder == id) {
            self.writer = None;
        }
        if to == lock::NONE {
            self.shared -= 1;
        }
    }

    /// Returns whether any connection holds RESERVED or more.
    pub(crate) fn is_reserved(&self) -> bool {
        self.writer.is_some()
    }
}

/// One connection's locks on the shared memory of its file.
#[derive(Debug, Default)]
pub(crate) struct ShmHold {
    is_mapped: bool,
    shared_mask: u8,
    exclusive_mask: u8,
}

/// Memory that lives until the last connection has unmapped it.
struct Region {
    words: NonNull<[AtomicU64]>,
}

// SAFETY: the region owns its memory, and any thread may access atomics.
unsafe impl Send for Region {}

impl Region {
    fn new(bytes: usize) -> Self {
        let words: Box<[AtomicU64]> = (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        Self {
            words: NonNull::from(Box::leak(words)),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `Box::leak` in `new`, and is freed once.
        drop(unsafe { Box::from_raw(self.words.as_ptr()) });
    }
}

/// The shared memory of one file and the locks on it.
#[derive(Default)]
pub(crate) struct SharedMemory {
    regions: Vec<Region>,
    connections: usize,
    /// For each lock, the number of connections that share it.
    shared: [usize; shm::LOCKS as usize],
    /// Locks that one connection holds exclusively.
    exclusive_mask: u8,
}

impl SharedMemory {
    /// Returns region `index` of `bytes` bytes, all zero if it is new; `None` if it does not exist and must not be
    /// created, `Err` if there would be too many.
    pub(crate) fn map(
        &mut self,
        hold: &mut ShmHold,
        index: usize,
        bytes: usize,
        extend: bool,
    ) -> Result<Option<*mut c_void>, ()> {
        if !hold.is_mapped {
            hold.is_mapped = true;
            self.connections += 1;
        }
        if index >= self.regions.len() {
            if !extend {
                return Ok(None);
            }
            if index >= REGIONS_MAX {
                return Err(());
            }
            self.regions.resize_with(index + 1, || Region::new(bytes));
        }
        Ok(Some(self.regions[index].words.as_ptr().cast()))
    }

    /// Takes or releases the locks in `mask`. Returns false if a lock of another connection conflicts.
    pub(crate) fn lock(&mut self, hold: &mut ShmHold, mask: u8, flags: c_int) -> bool {
        let slots = (0..shm::LOCKS as usize).filter(|slot| mask >> slot & 1 == 1);
        if flags & shm::UNLOCK != 0 {
            self.exclusive_mask &= !(hold.exclusive_mask & mask);
            hold.exclusive_mask &= !mask;
            for slot in slots.filter(|slot| hold.shared_mask >> slot & 1 == 1) {
                self.shared[slot] -= 1;
            }
            hold.shared_mask &= !mask;
            return true;
        }
        if self.exclusive_mask & mask & !hold.exclusive_mask != 0 {
            return false;
        }
        if flags & shm::SHARED != 0 {
            for slot in slots.filter(|slot| hold.shared_mask >> slot & 1 == 0) {
                self.shared[slot] += 1;
            }
            hold.shared_mask |= mask;
            return true;
        }
        let mut readers =
            slots.map(|slot| self.shared[slot] - usize::from(hold.shared_mask >> slot & 1));
        if readers.any(|others| others > 0) {
            return false;
        }
        self.exclusive_mask |= mask;
        hold.exclusive_mask |= mask;
        true
    }

    /// Ends a connection's use of the memory; the last connection frees it. The log holds the same information, so the
    /// next connection builds the content again.
    pub(crate) fn unmap(&mut self, hold: &mut ShmHold) {
        if !hold.is_mapped {
            return;
        }
        self.lock(hold, u8::MAX, shm::UNLOCK);
        hold.is_mapped = false;
        self.connections -= 1;
        if self.connections == 0 {
            self.regions.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_admit_many_readers_or_one_writer() {
        let mut locks = FileLocks::default();
        assert_eq!(
            locks.raise(1, lock::NONE, lock::SHARED),
            (lock::SHARED, true)
        );
        assert_eq!(
            locks.raise(2, lock::NONE, lock::SHARED),
            (lock::SHARED, true)
        );
        assert_eq!(
            locks.raise(1, lock::SHARED, lock::RESERVED),
            (lock::RESERVED, true)
        );
        assert!(locks.is_reserved());
        assert_eq!(
            locks.raise(2, lock::SHARED, lock::RESERVED),
            (lock::SHARED, false)
        );
        assert_eq!(
            locks.raise(2, lock::SHARED, lock::EXCLUSIVE),
            (lock::SHARED, false)
        );
        // A reader holds SHARED; no new reader gets in while the writer waits for it.
        assert_eq!(
            locks.raise(1, lock::RESERVED, lock::EXCLUSIVE),
            (lock::PENDING, false)
        );
        assert_eq!(
            locks.raise(3, lock::NONE, lock::SHARED),
            (lock::NONE, false)
        );
        locks.lower(2, lock::SHARED, lock::NONE);
        assert_eq!(
            locks.raise(1, lock::PENDING, lock::EXCLUSIVE),
            (lock::EXCLUSIVE, true)
        );
        assert_eq!(
            locks.raise(2, lock::NONE, lock::SHARED),
            (lock::NONE, false)
        );
        locks.lower(1, lock::EXCLUSIVE, lock::SHARED);
        assert!(!locks.is_reserved());
        assert_eq!(
            locks.raise(2, lock::NONE, lock::SHARED),
            (lock::SHARED, true)
        );
        locks.lower(1, lock::SHARED, lock::NONE);
        locks.lower(2, lock::SHARED, lock::NONE);
        assert_eq!((locks.shared, locks.writer), (0, None));
    }

    #[test]
    fn a_hot_journal_is_taken_without_the_step_between() {
        let mut locks = FileLocks::default();
        locks.raise(1, lock::NONE, lock::SHARED);
        locks.raise(2, lock::NONE, lock::SHARED);
        assert_eq!(
            locks.raise(1, lock::SHARED, lock::EXCLUSIVE),
            (lock::PENDING, false)
        );
        assert_eq!(
            locks.raise(2, lock::SHARED, lock::EXCLUSIVE),
            (lock::SHARED, false)
        );
        locks.lower(1, lock::PENDING, lock::SHARED);
        locks.lower(2, lock::SHARED, lock::NONE);
        assert_eq!(
            locks.raise(1, lock::SHARED, lock::EXCLUSIVE),
            (lock::EXCLUSIVE, true)
        );
    }

    #[test]
    fn memory_is_shared_stays_put_and_goes_with_the_last_connection() {
        let mut memory = SharedMemory::default();
        let (mut one, mut two) = (ShmHold::default(), ShmHold::default());
        assert_eq!(memory.map(&mut one, 0, 32768, false), Ok(None));
        let first = memory.map(&mut one, 0, 32768, true).unwrap().unwrap();
        // SAFETY: the region is 32 KiB long and no other thread touches it.
        unsafe { first.cast::<u8>().add(32767).write(7) };
        memory.map(&mut two, 9, 32768, true).unwrap().unwrap();
        assert_eq!(memory.map(&mut two, 0, 32768, false), Ok(Some(first)));
        assert_eq!(memory.map(&mut two, REGIONS_MAX, 32768, true), Err(()));
        memory.unmap(&mut one);
        // SAFETY: as above; the second connection keeps the region.
        assert_eq!(unsafe { first.cast::<u8>().add(32767).read() }, 7);
        memory.unmap(&mut two);
        memory.unmap(&mut two);
        assert_eq!((memory.connections, memory.regions.len()), (0, 0));
    }

    #[test]
    fn locks_on_memory_are_shared_or_exclusive_and_end_with_the_mapping() {
        let mut memory = SharedMemory::default();
        let (mut one, mut two) = (ShmHold::default(), ShmHold::default());
        memory.map(&mut one, 0, 8, true).unwrap();
        memory.map(&mut two, 0, 8, true).unwrap();
        let (take, share) = (shm::LOCK | shm::EXCLUSIVE, shm::LOCK | shm::SHARED);
        assert!(memory.lock(&mut one, 0b1000, share));
        assert!(
            memory.lock(&mut one, 0b1000, share),
            "taking it twice counts once"
        );
        assert!(memory.lock(&mut two, 0b1000, share));
        assert!(!memory.lock(&mut two, 0b1100, take));
        assert!(memory.lock(&mut one, 0b1000, shm::UNLOCK | shm::SHARED));
        assert!(
            memory.lock(&mut two, 0b1100, take),
            "its own share is not in the way"
        );
        assert!(!memory.lock(&mut one, 0b0100, share));
        assert!(!memory.lock(&mut one, 0b0100, take));
        assert!(memory.lock(&mut one, 0b0010, take));
        memory.unmap(&mut two);
        assert!(memory.lock(&mut one, 0b1100, take));
        memory.unmap(&mut one);
        assert_eq!((memory.exclusive_mask, memory.shared), (0, [0; 8]));
    }
}
