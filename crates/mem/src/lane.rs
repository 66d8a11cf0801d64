//! Lanes: which thread writes, what its call was doing, and the recovery when it dies.
//!
//! A lane belongs to one thread of one process at a time. Its state is one word: idle, or which of its logs is
//! complete. Replaying a log is idempotent, so a process may also die while it recovers another one.

use crate::barrier::barrier_for_all;
use crate::error::{Error, Result};
use crate::file_lock::FileLock;
use crate::flush::Flush;
use crate::layout::{LANE_WORDS_BYTES, LOG_BYTES_MAX, attribute, state};
use crate::memory::{LINE_BYTES, WORDS_IN_LINE};
use crate::owner::{CHECK_INTERVAL, Fate, NO_PROCESS, Owner};
use crate::region::Region;

/// Words of a lane.
pub(crate) mod word {
    /// Process number and start time, or 0.
    pub(crate) const OWNER: u64 = 0;
    /// Which log is complete.
    pub(crate) const STATE: u64 = 8;
    /// Pairs in the log of words.
    pub(crate) const COUNT: u64 = 16;
    /// The inode that the lane locks, or is about to lock.
    pub(crate) const INODE: u64 = 24;
    /// The target or source of the logged bytes, or the place of the pages that are moved.
    pub(crate) const TARGET: u64 = 32;
    /// The number of bytes.
    pub(crate) const LENGTH: u64 = 40;
    /// Size of the file after the write; for an undo log, before it.
    pub(crate) const SIZE: u64 = 48;
    /// Modification time after the write; for an undo log, before it.
    pub(crate) const TIME_NS: u64 = 56;
    /// The number of pages that are moved.
    pub(crate) const PAGES: u64 = 64;
    /// The number of them that exist.
    pub(crate) const PRESENT: u64 = 72;
    /// Pages in the pool before the change.
    pub(crate) const POOL: u64 = 80;
    /// 1: after the words are stored, the pages go to the pool.
    pub(crate) const FREES: u64 = 88;
    /// For an undo log, the inode's time of change before the write.
    pub(crate) const CHANGED_NS: u64 = 96;
    /// Where the owner's last write ended: a write that continues there finds its old bytes in the cache.
    pub(crate) const LAST_END: u64 = 104;
    /// Bytes of the words above: two lines.
    pub(crate) const HEADER_BYTES: u64 = 128;
    /// The notes of the owner's reads, see `notes.rs`: a cache line of their own.
    pub(crate) const NOTES: u64 = 128;
    /// First of the pairs of offset and value.
    pub(crate) const PAIRS: u64 = 192;
}

/// Values of the state.
pub(crate) mod doing {
    /// Nothing that must be finished.
    pub(crate) const NOTHING: u64 = 0;
    /// The log of words is complete.
    pub(crate) const WORDS: u64 = 1;
    /// The log of bytes is complete.
    pub(crate) const BYTES: u64 = 2;
    /// Pages are moving from the pool, and no table records it yet.
    pub(crate) const TAKING: u64 = 3;
    /// The log holds the old bytes and attributes, and new ones are being written.
    pub(crate) const UNDO: u64 = 4;
}

/// The number of pairs that fit in the log of words.
pub(crate) const WORDS_MAX: usize = ((LANE_WORDS_BYTES - word::PAIRS) / 16) as usize;

/// The number of looks at a lock before the first sleep.
const SPINS: u32 = if cfg!(test) { 3 } else { 200 };

/// The number of looks at a lock without a holder until it counts as damaged: 100 ms.
const ORPHANED_MAX: u32 = 50;

/// Flag in a lock, beside the number of the lane: a thread waits for this holder.
const HAS_WAITERS: u64 = 1 << 31;

/// Offset behind a lock of the word that says whether a thread sleeps. The thread that unlocks must wake them all.
pub(crate) const SLEEPERS: u64 = 8;

/// Whether a lane was settled; notes the first one that cannot be.
fn noting(damage: &mut Option<Error>, settled: Result<bool>) -> Result<bool> {
    match settled {
        Err(error @ Error::Damaged { .. }) => {
            damage.get_or_insert(error);
            Ok(false)
        }
        settled => settled,
    }
}

/// A lane that this process owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lane(pub(crate) u64);

impl Region {
    /// Whether the owner of a lane is a process that still runs, and still runs the program that took the lane.
    pub(crate) fn is_alive(&self, owner: u64) -> bool {
        self.fate(owner) == Fate::Runs
    }

    /// What became of the owner of a lane. The caller has loaded the owner from the lane before. Process numbers of
    /// another namespace mean nothing here: where one has entered meanwhile, every owner counts as alive.
    fn fate(&self, owner: u64) -> Fate {
        if !self.is_own_namespace() {
            return Fate::Runs;
        }
        Owner::from_word(owner).fate(self.owner_bytes_min)
    }

    #[inline]
    pub(crate) fn lane_word(&self, lane: Lane, word: u64) -> u64 {
        self.memory.load(self.layout.lane(lane.0) + word)
    }

    #[inline]
    pub(crate) fn set_lane_word(&self, lane: Lane, word: u64, value: u64) {
        self.memory.store(self.layout.lane(lane.0) + word, value);
    }

    /// Sets what a lane does, and continues when that is durable.
    #[inline(always)]
    pub(crate) fn set_doing(&self, lane: Lane, doing: u64) {
        self.set_lane_word(lane, word::STATE, doing);
        let at = self.layout.lane(lane.0) + word::STATE;
        self.memory.persist([(at, 8)]);
    }

    /// The offset of a lane's byte log.
    #[inline]
    pub(crate) fn log_at(&self, lane: Lane) -> u64 {
        self.layout.lane(lane.0) + LANE_WORDS_BYTES
    }

    /// Takes a free lane, or one whose owner is dead.
    ///
    /// # Errors
    /// [`Error::LanesFull`], [`Error::ReadOnly`], [`Error::Namespace`].
    pub(crate) fn take_lane(&self) -> Result<Lane> {
        if !self.writable {
            return Err(Error::ReadOnly);
        }
        let lane = self.take_any_lane()?;
        if let Err(error) = self.require_own_namespace() {
            // A process of the other namespace cannot see that this one is alive, and may have the lane by now.
            let at = self.layout.lane(lane.0) + word::OWNER;
            let _ = self.memory.replace(at, self.owner().as_word(), 0);
            return Err(error);
        }
        // A free lane does nothing, but the region may be damaged. The first change would take what is written here for
        // its own, and move pages that belong to a file.
        if self.lane_word(lane, word::STATE) != doing::NOTHING {
            self.set_doing(lane, doing::NOTHING);
        }
        if self.lane_word(lane, word::FREES) != 0 {
            self.set_lane_word(lane, word::FREES, 0);
        }
        Ok(lane)
    }

    fn take_any_lane(&self) -> Result<Lane> {
        let me = self.owner().as_word();
        let mut damage = None;
        for looks_at_owners in [false, true] {
            for lane in (0..self.layout.lane_count).map(Lane) {
                let owner = self.lane_word(lane, word::OWNER);
                let is_free = owner == 0
                    || looks_at_owners
                        && owner != me
                        && noting(&mut damage, self.settle(lane, owner))?;
                let at = self.layout.lane(lane.0) + word::OWNER;
                if is_free && self.memory.replace(at, 0, me).is_ok() {
                    return Ok(lane);
                }
            }
        }
        damage.map_or(Err(Error::LanesFull), Err)
    }

    /// Settles all lanes whose owners are dead. Returns how many. An invalid log stops no other lane from it.
    ///
    /// # Errors
    /// The first one of [`settle`](Self::settle).
    pub(crate) fn settle_dead_lanes(&self) -> Result<u64> {
        let me = self.owner().as_word();
        let (mut settled, mut damage) = (0, None);
        for lane in (0..self.layout.lane_count).map(Lane) {
            let owner = self.lane_word(lane, word::OWNER);
            if owner != 0 && owner != me && noting(&mut damage, self.settle(lane, owner))? {
                settled += 1;
            }
        }
        damage.map_or(Ok(settled), Err)
    }

    /// The number of lanes that a process owns, or whose owner died.
    #[must_use]
    pub fn lanes_taken(&self) -> u64 {
        let is_taken = |lane: &u64| self.lane_word(Lane(*lane), word::OWNER) != 0;
        (0..self.layout.lane_count).filter(is_taken).count() as u64
    }

    /// Frees an idle lane.
    pub(crate) fn give_back_lane(&self, lane: Lane) {
        self.set_lane_word(lane, word::OWNER, 0);
    }

    /// Frees a lane of this process whose thread has ended. A lane with a change under way stays, for the recovery of
    /// dead writers.
    pub(crate) fn free_idle_lane(&self, lane: Lane) {
        let is_idle = [word::STATE, word::FREES, word::INODE]
            .iter()
            .all(|word| self.lane_word(lane, *word) == 0)
            && !self.holds(lane, state::LOCK);
        if is_idle && self.lane_word(lane, word::OWNER) == self.owner().as_word() {
            self.clear_notes(lane);
            self.give_back_lane(lane);
        }
    }

    /// Clears the notes of a dead reader.
    pub(crate) fn clear_notes(&self, lane: Lane) {
        for note in 0..WORDS_IN_LINE as u64 {
            self.set_lane_word(lane, word::NOTES + note * 8, 0);
        }
    }

    /// Finishes or undoes the change of a lane's dead owner, releases its locks, and frees the lane. Returns `false` if
    /// the owner is alive, or if that cannot be excluded at this moment. Returns `true` also if another process was
    /// faster.
    ///
    /// # Errors
    /// [`Error::Damaged`] when the log holds impossible values.
    pub(crate) fn settle(&self, lane: Lane, dead: u64) -> Result<bool> {
        match self.fate(dead) {
            Fate::Runs => Ok(false),
            Fate::Ended => {
                if self.take_over(lane, dead) {
                    self.settle_owned(lane, dead)?;
                }
                Ok(true)
            }
            Fate::Replaced => self.settle_replaced(lane, dead),
        }
    }

    /// Settles the lane of a program whose process runs another one. The new program has the same owner word. Once it
    /// has the region mapped, it settles the lanes of that owner, and may take them again. So it must not map the
    /// region between the check of the owner and the take-over. Otherwise this process might take a lane that the new
    /// program uses, or free one after the new program has searched for its lanes.
    fn settle_replaced(&self, lane: Lane, dead: u64) -> Result<bool> {
        let Some(file) = self.open_again() else {
            return Ok(false);
        };
        let is_taken_over = {
            let Some(_no_mapping) = FileLock::try_alone_twice(&file) else {
                return Ok(false);
            };
            if self.fate(dead) == Fate::Runs {
                return Ok(false);
            }
            self.take_over(lane, dead)
        };
        if is_taken_over {
            // If the log is invalid, the lane must not go to the new program, which may have looked for its lanes.
            self.settle_owned(lane, NO_PROCESS)?;
        }
        Ok(true)
    }

    /// Makes this process the owner of a dead owner's lane. If it dies too, the next process recovers the lane in the
    /// same way. Returns `false` if another process was faster.
    fn take_over(&self, lane: Lane, dead: u64) -> bool {
        let at = self.layout.lane(lane.0) + word::OWNER;
        self.memory
            .replace(at, dead, self.owner().as_word())
            .is_ok()
    }

    /// Settles a lane of another run of the machine, in which no owner is alive.
    ///
    /// # Errors
    /// As [`settle`](Self::settle).
    pub(crate) fn settle_of_another_run(&self, lane: Lane) -> Result<()> {
        let dead = self.lane_word(lane, word::OWNER);
        if self.take_over(lane, dead) {
            self.settle_owned(lane, dead)?;
        }
        Ok(())
    }

    /// Settles the lanes of the program that this process ran before it executed this one. Their owner is this process,
    /// so no other process takes it for dead while the region is mapped. The region opens despite an invalid log: a
    /// thread that waits for its lane gets the error.
    ///
    /// # Errors
    /// Those of [`settle`](Self::settle), but for [`Error::Damaged`].
    pub(crate) fn settle_predecessor(&self) -> Result<()> {
        let me = self.owner().as_word();
        let lanes = || (0..self.layout.lane_count).map(Lane);
        let is_mine = |lane: &Lane| self.lane_word(*lane, word::OWNER) == me;
        if !lanes().any(|lane| is_mine(&lane)) {
            return Ok(());
        }
        let left: Vec<Lane> = {
            // Otherwise another thread, which uses the region already, may give back a lane between these looks.
            let _no_mapping = FileLock::take(&self.file, &self.path, libc::LOCK_EX)?;
            // A second mapping is another use of the region by this program, and the lanes may be its own.
            if !self.memory.is_only_mapping() {
                return Ok(());
            }
            lanes().filter(is_mine).collect()
        };
        // A lane that frees memory waits for the readers of that memory, which may be these.
        for lane in &left {
            self.clear_notes(*lane);
        }
        for lane in left {
            match self.settle_owned(lane, NO_PROCESS) {
                Err(Error::Damaged { .. }) => {}
                settled => settled?,
            }
        }
        Ok(())
    }

    /// Settles a lane that this process has taken over. If its log is invalid, it goes to `if_invalid`: its lock must
    /// not look like that of a live process.
    fn settle_owned(&self, lane: Lane, if_invalid: u64) -> Result<()> {
        let settled = self.carry_out(lane);
        let owner = if settled.is_ok() { 0 } else { if_invalid };
        self.set_lane_word(lane, word::OWNER, owner);
        settled
    }

    fn carry_out(&self, lane: Lane) -> Result<()> {
        match self.lane_word(lane, word::STATE) {
            doing::NOTHING => {}
            doing::WORDS => self.carry_out_words(lane)?,
            doing::BYTES => self.apply_bytes(lane, word::TIME_NS)?,
            doing::UNDO => self.apply_bytes(lane, word::CHANGED_NS)?,
            doing::TAKING => self.put_pages_back(lane)?,
            _ => return Err(self.lane_damage(lane, "a lane does what no writer does")),
        }
        self.set_doing(lane, doing::NOTHING);
        // This flag is from a change in preparation; the next owner's changes set it again themselves.
        self.set_lane_word(lane, word::FREES, 0);
        self.clear_notes(lane);
        let inode = self.lane_word(lane, word::INODE);
        if inode != 0 {
            let inode_at = self.inode_at(inode)?;
            if self.holds(lane, inode_at + attribute::LOCK) {
                // Readers wait while the number is odd.
                let sequence = self.memory.load(inode_at + attribute::SEQUENCE);
                if sequence % 2 == 1 {
                    self.memory
                        .store(inode_at + attribute::SEQUENCE, sequence.wrapping_add(1));
                }
                self.unlock(inode_at + attribute::LOCK);
            }
            self.set_lane_word(lane, word::INODE, 0);
        }
        if self.holds(lane, state::LOCK) {
            let sequence = self.memory.load(state::SEQUENCE);
            if sequence % 2 == 1 {
                self.memory.store(state::SEQUENCE, sequence.wrapping_add(1));
            }
            self.unlock(state::LOCK);
        }
        Ok(())
    }

    pub(crate) fn lane_damage(&self, lane: Lane, what: &'static str) -> Error {
        Error::Damaged {
            at: self.layout.lane(lane.0),
            what,
        }
    }

    /// Stores the words of the log, and moves the pages that it frees. It is idempotent.
    pub(crate) fn carry_out_words(&self, lane: Lane) -> Result<()> {
        self.apply_words(lane)?;
        self.move_freed_pages(lane)
    }

    fn apply_words(&self, lane: Lane) -> Result<()> {
        let count = self.lane_word(lane, word::COUNT);
        if count as usize > WORDS_MAX {
            return Err(self.lane_damage(lane, "a log of words is longer than there is room for"));
        }
        for pair in 0..count {
            let at = self.lane_word(lane, word::PAIRS + pair * 16);
            // Words change only in tables, and never in lanes.
            let is_table = (state::LOCK + 8..4096).contains(&at)
                || (self.layout.inodes_at..self.layout.metadata_bytes).contains(&at);
            if !is_table || !at.is_multiple_of(8) {
                return Err(self.lane_damage(lane, "a log of words leads outside the tables"));
            }
            let value = self.lane_word(lane, word::PAIRS + pair * 16 + 8);
            self.memory.store(at, value);
        }
        if self.memory.flush() != Flush::None {
            self.persist_words(lane, count);
        }
        Ok(())
    }

    /// Makes the words durable that a log of words has just stored. Adjacent words are persisted together.
    #[cold]
    fn persist_words(&self, lane: Lane, count: u64) {
        let mut last = None;
        for pair in 0..count {
            let at = self.lane_word(lane, word::PAIRS + pair * 16);
            if last.replace(at / LINE_BYTES) != Some(at / LINE_BYTES) {
                self.memory.write_back(at, 8);
            }
        }
        self.memory.persist([]);
    }

    /// Copies a dead writer's logged bytes to their target: the new ones, or for an undo log the old ones. Sets the
    /// size and the times of the file, of which `changed` is the word with the time of change.
    fn apply_bytes(&self, lane: Lane, changed: u64) -> Result<()> {
        let (inode_at, target, length) = self.logged_bytes(lane)?;
        // The dead writer may not have begun the change, or may have completed it: readers would then not notice this.
        self.begin_change(inode_at);
        self.memory.copy(self.log_at(lane), target, length);
        let logged = |word| self.lane_word(lane, word);
        let (size, modified_ns) = (logged(word::SIZE), logged(word::TIME_NS));
        self.set_written(inode_at, size, modified_ns, logged(changed));
        self.memory
            .persist([(target, length), (inode_at, LINE_BYTES)]);
        Ok(())
    }

    /// From a dead lane's log of bytes: offset of the inode, target of the bytes, number of bytes.
    fn logged_bytes(&self, lane: Lane) -> Result<(u64, u64, u64)> {
        let length = self.lane_word(lane, word::LENGTH);
        let target = self.lane_word(lane, word::TARGET);
        let inode_at = self.inode_at(self.lane_word(lane, word::INODE))?;
        let end = target.checked_add(length);
        if length > LOG_BYTES_MAX
            || target < self.layout.packed_at
            || end.is_none_or(|end| end > self.memory.bytes())
        {
            return Err(self.lane_damage(lane, "logged bytes lead outside the files"));
        }
        Ok((inode_at, target, length))
    }

    /// Sets the attributes that change with the bytes of a file.
    #[inline(always)]
    pub(crate) fn set_written(&self, inode_at: u64, size: u64, modified_ns: u64, changed_ns: u64) {
        self.memory.store(inode_at + attribute::SIZE, size);
        self.memory
            .store(inode_at + attribute::MODIFIED_NS, modified_ns);
        self.memory
            .store(inode_at + attribute::CHANGED_NS, changed_ns);
    }

    /// Takes the lock at `at`, after recovering a dead holder.
    ///
    /// # Errors
    /// Those of [`settle`](Self::settle), and [`Error::Damaged`] when a taken lock has no holder.
    #[inline]
    pub(crate) fn lock(&self, lane: Lane, at: u64) -> Result<()> {
        if self.try_lock(lane, at) {
            return Ok(());
        }
        self.wait_for_lock(lane, at)
    }

    /// Takes the lock at `at` if it is free.
    #[inline]
    pub(crate) fn try_lock(&self, lane: Lane, at: u64) -> bool {
        self.memory.replace(at, 0, lane.0 + 1).is_ok()
    }

    #[cold]
    fn wait_for_lock(&self, lane: Lane, at: u64) -> Result<()> {
        let mine = lane.0 + 1;
        let (mut spins, mut orphaned) = (0, 0);
        loop {
            let Err(found) = self.memory.replace(at, 0, mine) else {
                return Ok(());
            };
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
                continue;
            }
            let waited_for = found | HAS_WAITERS;
            if found & HAS_WAITERS == 0 && self.memory.replace(at, found, waited_for).is_err() {
                continue;
            }
            self.memory.store(at + SLEEPERS, 1);
            // The thread that unlocks stores into the lock and then loads the other word, without a fence, so its
            // processor may load first. After this barrier it has done both, or will see the word. If the barrier
            // fails, the sleep is only longer.
            let _ = barrier_for_all();
            self.sleep(at, waited_for);
            let Some(holding) = (found & !HAS_WAITERS)
                .checked_sub(1)
                .filter(|holding| *holding < self.layout.lane_count && *holding != lane.0)
            else {
                let what = "a lock names a lane that cannot hold it";
                return Err(Error::Damaged { at, what });
            };
            let owner = self.lane_word(Lane(holding), word::OWNER);
            if self.memory.load(at) != waited_for {
                orphaned = 0;
            } else if owner == 0 {
                // The moment between the release of a lane and its next owner's lock also looks like this.
                orphaned += 1;
                if orphaned > ORPHANED_MAX {
                    let what = "a lock is held by a lane without an owner";
                    return Err(Error::Damaged { at, what });
                }
            } else if owner != self.owner().as_word() {
                self.settle(Lane(holding), owner)?;
            }
        }
    }

    /// The lane that holds the lock at `at`.
    pub(crate) fn holder(&self, at: u64) -> Option<Lane> {
        (self.memory.load(at) & !HAS_WAITERS)
            .checked_sub(1)
            .filter(|lane| *lane < self.layout.lane_count)
            .map(Lane)
    }

    /// Recovers the holder of the lock at `at`, if it is dead. Returns whether a live process holds the lock.
    ///
    /// # Errors
    /// Those of [`settle`](Self::settle). [`Error::ReadOnly`] when no live process owns the lane that holds the lock,
    /// and this process only reads. [`Error::Namespace`] when the holder may be dead and cannot be checked from here.
    pub(crate) fn look_after(&self, at: u64) -> Result<bool> {
        let Some(holder) = self.holder(at) else {
            return Ok(false);
        };
        let owner = self.lane_word(holder, word::OWNER);
        if owner == self.owner().as_word() {
            return Ok(true);
        }
        if owner != 0 {
            // No process of this namespace can recover the holder, so a reader must not wait for it forever.
            self.require_own_namespace_now()?;
            if self.is_alive(owner) {
                return Ok(true);
            }
        }
        if !self.writable {
            return Err(Error::ReadOnly);
        }
        Ok(owner != 0 && !self.settle(holder, owner)?)
    }

    /// Whether a lane holds the lock at `at`.
    #[inline]
    pub(crate) fn holds(&self, lane: Lane, at: u64) -> bool {
        self.memory.load(at) & !HAS_WAITERS == lane.0 + 1
    }

    /// Releases a lock that the lane holds, and wakes its waiters. It uses a plain store. An exchange would wait until
    /// all bytes written under the lock are in the cache, and the next call would prefetch its own only then.
    #[inline]
    pub(crate) fn unlock(&self, at: u64) {
        self.memory.store(at, 0);
        if self.memory.load(at + SLEEPERS) != 0 {
            self.wake(at);
        }
    }

    #[cold]
    pub(crate) fn wake(&self, at: u64) {
        // A thread that sleeps again sets the word again. If this store overwrites that, the thread sleeps unseen, for
        // 2 ms.
        self.memory.store(at + SLEEPERS, 0);
        self.memory.wake_sleepers(at);
    }

    fn sleep(&self, at: u64, value: u64) {
        self.memory.sleep_while(at, value as u32, CHECK_INTERVAL);
    }
}
