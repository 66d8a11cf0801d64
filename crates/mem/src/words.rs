//! Changes of names, inodes and space: a list of words and their new values, which takes effect atomically.
//!
//! While the list grows, only its writer sees the new values. One store marks the list as complete; then the words are
//! stored. A process that finds the writer dead after that store stores all of them again.

use crate::error::{Error, Result};
use crate::lane::{Lane, WORDS_MAX, doing, word};
use crate::layout::state;
use crate::region::Region;

/// A change that is being prepared, under the lock of names and space. If it is dropped before the commit, it has no
/// effect.
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
    /// The value of the word at `at` after the change.
    pub(crate) fn get(&self, at: u64) -> u64 {
        let lane_at = self.region.layout.lane(self.lane.0) + word::PAIRS;
        for pair in (0..self.count as u64).rev() {
            if self.region.memory.load(lane_at + pair * 16) == at {
                return self.region.memory.load(lane_at + pair * 16 + 8);
            }
        }
        self.region.memory.load(at)
    }

    /// Adds to the list that the word at `at` becomes `value`.
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

    /// As [`set`](Self::set), with the value that `change` computes from the current one.
    pub(crate) fn change(&mut self, at: u64, change: impl FnOnce(u64) -> u64) -> Result<()> {
        self.set(at, change(self.get(at)))
    }

    /// Makes the whole list take effect, and continues with an empty list.
    ///
    /// # Errors
    /// [`Error::Damaged`], before anything is changed, when a word lies outside the tables.
    pub(crate) fn commit(&mut self) -> Result<()> {
        let region = self.region;
        // A concurrent lookup of a name sees the odd number and starts again.
        let sequence = region.memory.load(state::SEQUENCE) | 1;
        region.memory.store(state::SEQUENCE, sequence);
        region.set_lane_word(self.lane, word::COUNT, self.count as u64);
        let lane_at = region.layout.lane(self.lane.0);
        // Also persists the data that was written for the change into newly taken memory, and is being written back.
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
        // A panic in a test simulates a death, which leaves everything as it is.
        if std::thread::panicking() {
            return;
        }
        let region = self.region;
        if region.lane_word(self.lane, word::STATE) == doing::TAKING {
            // If pages cannot be put back, a check reports them as missing.
            let _ = region.put_pages_back(self.lane);
            region.set_doing(self.lane, doing::NOTHING);
        }
        region.set_lane_word(self.lane, word::FREES, 0);
        region.unlock(state::LOCK);
    }
}
