//! Changes of names, inodes and space: a list of words and their new values, which becomes true as a whole.
//!
//! While the list grows, its author sees the new values and nobody else does. One store says that it is complete;
//! then the words are stored. Whoever finds its author dead after that store stores all of them again.

use crate::error::{Error, Result};
use crate::lane::{Lane, WORDS_MAX, doing, word};
use crate::layout::state;
use crate::region::Region;

/// A change that is being prepared, under the lock of names and space. Dropped before it is committed, it has not
/// happened.
pub(crate) struct Words<'r> {
    pub(crate) region: &'r Region,
    pub(crate) lane: Lane,
    count: usize,
}

impl Region {
    /// Takes the lock of names and space.
    ///
    /// # Errors
    /// Those of [`lock`](Self::lock).
    pub(crate) fn begin_words(&self, lane: Lane) -> Result<Words<'_>> {
        self.lock(lane, state::LOCK)?;
        Ok(Words {
            region: self,
            lane,
            count: 0,
        })
    }
}

impl Words<'_> {
    /// The word at `at` as it will be.
    pub(crate) fn get(&self, at: u64) -> u64 {
        let lane_at = self.region.layout.lane(self.lane.0) + word::PAIRS;
        for pair in (0..self.count as u64).rev() {
            if self.region.memory.load(lane_at + pair * 16) == at {
                return self.region.memory.load(lane_at + pair * 16 + 8);
            }
        }
        self.region.memory.load(at)
    }

    /// Notes that the word at `at` becomes `value`.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the change has more words than a lane has room for, which no call of this crate needs.
    pub(crate) fn set(&mut self, at: u64, value: u64) -> Result<()> {
        if self.count == WORDS_MAX {
            return Err(Error::Invalid {
                what: "a change has more words than a lane has room for",
            });
        }
        let pair = word::PAIRS + self.count as u64 * 16;
        self.region.set_lane_word(self.lane, pair, at);
        self.region.set_lane_word(self.lane, pair + 8, value);
        self.count += 1;
        Ok(())
    }

    /// As [`set`](Self::set), with what `change` makes of the word.
    pub(crate) fn change(&mut self, at: u64, change: impl FnOnce(u64) -> u64) -> Result<()> {
        self.set(at, change(self.get(at)))
    }

    /// Makes all of it true, and goes on with an empty list.
    ///
    /// # Errors
    /// [`Error::Damaged`], before anything is changed, when a word lies outside the tables.
    pub(crate) fn commit(&mut self) -> Result<()> {
        let region = self.region;
        // Whoever looks up a name meanwhile looks again.
        let sequence = region.memory.load(state::SEQUENCE) | 1;
        region.memory.store(state::SEQUENCE, sequence);
        region.set_lane_word(self.lane, word::COUNT, self.count as u64);
        let lane_at = region.layout.lane(self.lane.0);
        // With what lies ready for the change in memory that it takes, and is being written back.
        region.memory.persist([
            (lane_at, word::HEADER_BYTES),
            (lane_at + word::PAIRS, self.count as u64 * 16),
        ]);
        region.set_doing(self.lane, doing::WORDS);
        let applied = region.carry_out_words(self.lane);
        region.set_doing(self.lane, doing::NOTHING);
        region
            .memory
            .store(state::SEQUENCE, sequence.wrapping_add(1));
        self.count = 0;
        applied
    }
}

impl Drop for Words<'_> {
    fn drop(&mut self) {
        // A panic in a test stands for a death, which leaves all as it is.
        if std::thread::panicking() {
            return;
        }
        let region = self.region;
        if region.lane_word(self.lane, word::STATE) == doing::TAKING {
            // What cannot be put back is counted as missing by a check.
            let _ = region.put_pages_back(self.lane);
            region.set_doing(self.lane, doing::NOTHING);
        }
        region.set_lane_word(self.lane, word::FREES, 0);
        region.unlock(state::LOCK);
    }
}
