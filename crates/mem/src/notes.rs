//! Notes of readers: which memory they copy from, so that no writer frees it to the kernel meanwhile.
//!
//! A reader stores a note into its lane, checks whether the file is still in the same place, copies, and clears the
//! note. A writer that frees memory first makes sure that no new reader can find it. Then it asks the kernel for a
//! barrier in all processes that have a region, and waits for the notes that name the memory. A note that the writer
//! does not see was stored after the barrier; its reader then checks the file's place after the barrier, too.

use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::time::{Duration, Instant};

use crate::barrier::barrier_for_all;
use crate::error::{Result, system_error};
use crate::lane::{Lane, word};
use crate::layout::PAGE_BYTES;
use crate::memory::WORDS_IN_LINE;
use crate::owner::CHECK_INTERVAL;
use crate::region::Region;
use crate::space::Place;

/// The part of a note that names the place; 0 is none. The rest counts notes, so that two notes can be told apart.
pub(crate) const WHERE: u64 = 0xffff_ffff;
/// Marks a slot instead of a page of the packed zone.
const SLOT: u64 = 1 << 31;

/// The value of a note for a place.
#[inline]
pub(crate) fn named(region: &Region, place: Place) -> u64 {
    match place {
        Place::Nowhere => 0,
        Place::Piece { at, .. } => (at - region.layout.packed_at) / PAGE_BYTES + 1,
        Place::Slot { slot, .. } => SLOT | slot,
    }
}

/// A free word for a note in a reader's lane.
#[derive(Clone, Copy)]
pub(crate) struct Note<'r> {
    word: &'r AtomicU64,
    before: u64,
}

impl Note<'_> {
    /// Notes that this lane's thread reads at a place from now on. The reader must check the place again after this.
    #[inline]
    pub(crate) fn set(self, region: &Region, place: Place) {
        let next = self.before.wrapping_add(1 << 32);
        self.word
            .store(next | named(region, place), Ordering::Relaxed);
        // The processor may still reorder the check before the store; the writer that waits for notes makes it a full
        // barrier.
        compiler_fence(Ordering::SeqCst);
    }

    /// Clears the note.
    #[inline]
    pub(crate) fn clear(self) {
        self.word
            .store(self.before.wrapping_add(1 << 32), Ordering::Release);
    }
}

impl Region {
    /// A word for a note in a reader's lane. `None` if it is in use by the read that a signal handler interrupted.
    #[inline]
    pub(crate) fn free_note(&self, lane: Lane, place: usize) -> Option<Note<'_>> {
        let notes = self.memory.line(self.layout.lane(lane.0) + word::NOTES);
        let word = notes.get(place)?;
        let before = word.load(Ordering::Relaxed);
        (before & WHERE == 0).then_some(Note { word, before })
    }

    /// The first word for a note in a reader's lane.
    pub(crate) fn first_note(&self, lane: Lane) -> &AtomicU64 {
        &self.memory.line(self.layout.lane(lane.0) + word::NOTES)[0]
    }

    /// The first free word for a note; `None` if all are in use.
    pub(crate) fn any_free_note(&self, lane: Lane) -> Option<Note<'_>> {
        (0..WORDS_IN_LINE).find_map(|place| self.free_note(lane, place))
    }

    /// Waits until no reader reads pages of the slot or packed page at `target`. New readers can no longer find them.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) when the kernel refuses a barrier.
    pub(crate) fn wait_for_readers(&self, lane: Lane, target: u64) -> Result<()> {
        let layout = &self.layout;
        let named = if target >= layout.slots_at {
            SLOT | ((target - layout.slots_at) / layout.slot_bytes)
        } else {
            (target - layout.packed_at) / PAGE_BYTES + 1
        };
        barrier_for_all().map_err(system_error(
            &self.path,
            "memory cannot be given back without membarrier",
        ))?;
        // Skip the own lane: a signal handler must not wait for the read that it interrupted.
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

    /// Waits until a note changes. A dead reader's note does not count.
    fn wait_for_note(&self, reader: Lane, note: u64, found: u64) {
        let mut look_at = Instant::now() + CHECK_INTERVAL;
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
                if owner == 0 || owner != self.owner().as_word() && !self.is_alive(owner) {
                    return;
                }
                look_at = Instant::now() + CHECK_INTERVAL;
            }
        }
    }
}
