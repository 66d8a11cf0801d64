//! Keeping a region's memory out of swap. hugetlbfs is never swapped; tmpfs is, unless a process locks it. The lock
//! ends with its process, so a long-lived process takes it: the mount, the launcher, the node. It renews the lock,
//! because pages that move from the pool into a file are new pages.

use crate::error::{Result, system_error};
use crate::layout::{PAGE_BYTES, state};
use crate::region::{Backing, Region};
use crate::writer::Writer;

/// The number of pages locked before other writers can change names and space again: well below a millisecond.
const PAGES_AT_ONCE: u64 = 16;

impl Writer<'_> {
    /// Locks the memory that the region has now, so that it is not swapped out while this process lives. Must be called
    /// again from time to time (for example with each sweep), to lock memory that was given to files since. Does
    /// nothing on hugetlbfs.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System): usually the limit of locked memory (`RLIMIT_MEMLOCK`).
    pub fn keep_resident(&self) -> Result<()> {
        let region = self.region;
        if region.backing() == Backing::HugePages {
            return Ok(());
        }
        for (at, pages) in region.pages_there() {
            let mut done = 0;
            while done < pages {
                let some = PAGES_AT_ONCE.min(pages - done);
                let first = at + done * PAGE_BYTES;
                // Under this lock no page moves. Locking a page that is gone would allocate a new one that belongs to
                // no file.
                let words = region.begin_words(self.lane)?;
                if region.are_there(first, some) {
                    let what = "its memory cannot be locked (raise the limit of locked memory, `ulimit -l`)";
                    let locked = region.memory.lock_pages(first, some);
                    locked.map_err(system_error(&region.path, what))?;
                }
                drop(words);
                done += some;
            }
        }
        Ok(())
    }
}

impl Region {
    /// Whether its memory may be swapped out now, unless a process [locks it](Writer::keep_resident).
    #[must_use]
    pub fn may_be_swapped(&self) -> bool {
        // The first line names the columns.
        self.backing() == Backing::SharedMemory
            && std::fs::read_to_string("/proc/swaps").is_ok_and(|table| table.lines().count() > 1)
    }

    /// Ranges that have memory now.
    fn pages_there(&self) -> Vec<(u64, u64)> {
        let layout = &self.layout;
        let pool_pages = self.memory.load(state::POOL_PAGES).min(layout.data_pages());
        let mut runs = Runs::default();
        runs.add(0, layout.metadata_bytes / PAGE_BYTES);
        runs.add(layout.pool_at, pool_pages);
        for page in 0..layout.packed_pages {
            // The first word of a packed page's record is 0 if the page does not exist.
            if self.memory.load(layout.packed_map(page)) != 0 {
                runs.add(layout.packed_at + page * PAGE_BYTES, 1);
            }
        }
        for slot in 0..layout.slot_count {
            if self.memory.load(layout.slot_owners_at + slot * 8) == 0 {
                continue;
            }
            for page in 0..layout.slot_bytes / PAGE_BYTES {
                if self.is_present(slot, page) {
                    runs.add(layout.slot(slot) + page * PAGE_BYTES, 1);
                }
            }
        }
        runs.0
    }

    /// Whether all of these pages of one area exist.
    fn are_there(&self, first: u64, pages: u64) -> bool {
        let layout = &self.layout;
        let end = first + pages * PAGE_BYTES;
        if end <= layout.metadata_bytes {
            return true;
        }
        if (layout.pool_at..layout.slots_at).contains(&first) {
            let pool = self.memory.load(state::POOL_PAGES).min(layout.data_pages());
            return end <= layout.pool_at + pool * PAGE_BYTES;
        }
        (first..end).step_by(PAGE_BYTES as usize).all(|at| {
            if at < layout.pool_at {
                let page = (at - layout.packed_at) / PAGE_BYTES;
                return self.memory.load(layout.packed_map(page)) != 0;
            }
            let slot = (at - layout.slots_at) / layout.slot_bytes;
            self.is_present(slot, (at - layout.slot(slot)) / PAGE_BYTES)
        })
    }
}

/// Ranges of pages; adjacent ranges are merged.
#[derive(Default)]
struct Runs(Vec<(u64, u64)>);

impl Runs {
    fn add(&mut self, at: u64, pages: u64) {
        match self.0.last_mut() {
            Some((last, count)) if *last + *count * PAGE_BYTES == at => *count += pages,
            _ if pages > 0 => self.0.push((at, pages)),
            _ => {}
        }
    }
}
