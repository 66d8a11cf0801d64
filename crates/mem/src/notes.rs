//! Notes of readers: which memory they copy from, so that nobody gives it back to the kernel under them.
//!
//! A reader stores a note into the lane that it has, looks whether the file is still where it was, copies, and takes
//! the note away. Whoever gives memory back has made sure before that nobody finds the way there any more; then he
//! asks the kernel for a barrier in all processes that have a region, and waits for the notes that name the memory. A
//! note that he does not see was stored behind the barrier, and its author looks at the file behind that.

use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::lane::{LOOK_AFTER, Lane, Owner, word};
use crate::layout::PAGE_BYTES;
use crate::memory::WORDS_IN_LINE;
use crate::region::Region;
use crate::space::Place;

/// The part of a note that says where: 0 nowhere. The rest counts notes, so that two are told apart.
pub(crate) const WHERE: u64 = 0xffff_ffff;
/// Names a slot, not a page of the packed zone.
const SLOT: u64 = 1 << 31;

/// What a note says of a place.
#[inline]
pub(crate) fn named(region: &Region, place: Place) -> u64 {
    match place {
        Place::Nowhere => 0,
        Place::Piece { at, .. } => (at - region.layout.packed_at) / PAGE_BYTES + 1,
        Place::Slot { slot, .. } => SLOT | slot,
    }
}

/// A free place for a note in a reader's lane.
#[derive(Clone, Copy)]
pub(crate) struct Note<'r> {
    word: &'r AtomicU64,
    before: u64,
}

impl Note<'_> {
    /// Says that this lane's thread reads at a place, from now on. What it knows of the place it must look at again.
    #[inline]
    pub(crate) fn set(self, region: &Region, place: Place) {
        let next = self.before.wrapping_add(1 << 32);
        self.word
            .store(next | named(region, place), Ordering::Relaxed);
        // The processor may still look first: who waits for notes makes it a full barrier from outside.
        compiler_fence(Ordering::SeqCst);
    }

    /// Takes the note away.
    #[inline]
    pub(crate) fn clear(self) {
        self.word
            .store(self.before.wrapping_add(1 << 32), Ordering::Release);
    }
}

/// Tells the kernel that this process takes part in barriers.
///
/// # Errors
/// What the kernel says: before Linux 4.16 it has none.
pub(crate) fn take_part_in_barriers() -> std::io::Result<()> {
    membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED)
}

/// Makes every thread that runs in a process with a region pass a full barrier.
///
/// # Errors
/// What the kernel says.
pub(crate) fn barrier_for_all() -> std::io::Result<()> {
    membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> std::io::Result<()> {
    // SAFETY: plain integers.
    if unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

impl Region {
    /// A place for a note in a reader's lane; `None` when it is in use, by the read that a signal handler interrupts.
    #[inline]
    pub(crate) fn free_note(&self, lane: Lane, place: usize) -> Option<Note<'_>> {
        let notes = self.memory.line(self.layout.lane(lane.0) + word::NOTES);
        let word = notes.get(place)?;
        let before = word.load(Ordering::Relaxed);
        (before & WHERE == 0).then_some(Note { word, before })
    }

    /// The first place for a note in a reader's lane.
    pub(crate) fn first_note(&self, lane: Lane) -> &AtomicU64 {
        &self.memory.line(self.layout.lane(lane.0) + word::NOTES)[0]
    }

    /// The first free place for a note; `None` when all are in use.
    pub(crate) fn any_free_note(&self, lane: Lane) -> Option<Note<'_>> {
        (0..WORDS_IN_LINE).find_map(|place| self.free_note(lane, place))
    }

    /// Waits until nobody reads pages of the slot or packed page at `target`, to which no way leads any more.
    ///
    /// # Errors
    /// [`Error::System`] when the kernel refuses a barrier.
    pub(crate) fn wait_for_readers(&self, lane: Lane, target: u64) -> Result<()> {
        let layout = &self.layout;
        let named = if target >= layout.slots_at {
            SLOT | ((target - layout.slots_at) / layout.slot_bytes)
        } else {
            (target - layout.packed_at) / PAGE_BYTES + 1
        };
        barrier_for_all().map_err(|source| Error::System {
            path: self.path.clone(),
            what: "memory cannot be given back without membarrier",
            source,
        })?;
        // A signal handler does not wait for the read that it interrupts.
        for reader in (0..layout.lane_count).filter(|reader| *reader != lane.0) {
            for place in 0..WORDS_IN_LINE as u64 {
                let note = layout.lane(reader) + word::NOTES + place * 8;
                let found = self.memory.load(note);
                if found & WHERE == named {
                    self.wait_for_note(Lane(reader), note, found);
                }
            }
        }
        Ok(())
    }

    /// Waits until a note is another; the note of a dead reader is none.
    fn wait_for_note(&self, reader: Lane, note: u64, found: u64) {
        let mut look_at = Instant::now() + LOOK_AFTER;
        let mut looks = 0;
        while self.memory.load(note) == found {
            looks += 1;
            if looks < 1000 {
                std::hint::spin_loop();
                continue;
            }
            crate::nap(Duration::from_micros(20));
            if Instant::now() >= look_at {
                let owner = self.lane_word(reader, word::OWNER);
                if owner == 0 || owner != self.owner().0 && !Owner(owner).is_alive() {
                    return;
                }
                look_at = Instant::now() + LOOK_AFTER;
            }
        }
    }
}
