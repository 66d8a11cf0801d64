//! Lanes: who writes, what he was doing, and what becomes of it when he dies.
//!
//! A lane belongs to one thread of one process at a time. Its state is one word: idle, or which of its logs is
//! complete. Carrying out a log does the same however often it is done, so whoever dies while carrying out another's
//! is no new case.

use std::io::Write as _;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::flush::Flush;
use crate::inode::attribute;
use crate::layout::{LANE_WORDS_BYTES, LOG_BYTES_MAX, state};
use crate::memory::{LINE_BYTES, WORDS_IN_LINE};
use crate::notes::barrier_for_all;
use crate::region::Region;

/// Words of a lane.
pub(crate) mod word {
    /// Process number and start time, or 0.
    pub(crate) const OWNER: u64 = 0;
    /// Which log is complete.
    pub(crate) const STATE: u64 = 8;
    /// Pairs in the log of words.
    pub(crate) const COUNT: u64 = 16;
    /// The inode that the lane locks, or is about to.
    pub(crate) const INODE: u64 = 24;
    /// Where the logged bytes go or come from, or where the pages are that are moved.
    pub(crate) const TARGET: u64 = 32;
    /// How many bytes.
    pub(crate) const LENGTH: u64 = 40;
    /// Size of the file once the bytes are there; of an undone write, before.
    pub(crate) const SIZE: u64 = 48;
    /// Its time of change then, or before.
    pub(crate) const TIME_NS: u64 = 56;
    /// How many pages are moved.
    pub(crate) const PAGES: u64 = 64;
    /// How many of them are there.
    pub(crate) const PRESENT: u64 = 72;
    /// Pages in the pool before.
    pub(crate) const POOL: u64 = 80;
    /// 1: when the words are stored, the pages go to the pool.
    pub(crate) const FREES: u64 = 88;
    /// Of an undone write, the time of change of the inode before.
    pub(crate) const CHANGED_NS: u64 = 96;
    /// Where the owner's last write ended: whoever goes on there finds its old bytes in the cache.
    pub(crate) const LAST_END: u64 = 104;
    /// Bytes of the words above: two lines.
    pub(crate) const HEADER_BYTES: u64 = 128;
    /// Where the owner reads, see `notes.rs`: a line of their own.
    pub(crate) const NOTES: u64 = 128;
    /// First of the pairs: where, what.
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
    /// Pages are on their way from the pool, and no table says so yet.
    pub(crate) const TAKING: u64 = 3;
    /// The log holds bytes and attributes as they were, and new ones are being written.
    pub(crate) const UNDO: u64 = 4;
}

/// Pairs that the log of words has room for.
pub(crate) const WORDS_MAX: usize = ((LANE_WORDS_BYTES - word::PAIRS) / 16) as usize;

/// How long a waiter sleeps before it looks whether the holder lives.
pub(crate) const LOOK_AFTER: Duration = Duration::from_millis(2);

/// Looks at a lock before the first sleep.
const SPINS: u32 = if cfg!(test) { 3 } else { 200 };

/// Looks at a lock that nobody holds until it counts as damaged: a tenth of a second.
const ORPHANED_MAX: u32 = 50;

/// Beside the number of the lane in a lock: somebody waits for this holder.
const SOMEBODY_WAITS: u64 = 1 << 31;

/// Where, behind a lock, stands whether somebody sleeps: whoever lets go must wake them all.
pub(crate) const SLEEPERS: u64 = 8;

const START_BITS: u32 = 40;

/// A flag of the kernel's for a thread that will not run the program any more.
const PF_EXITING: u64 = 4;

/// Who owns a lane: the number of a process, which comes again one day, with the time of its start, which does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(pub(crate) u64);

impl Owner {
    /// This process.
    ///
    /// # Errors
    /// [`Error::System`] when `/proc` does not say when it started.
    pub(crate) fn current() -> Result<Self> {
        let pid = std::process::id();
        let start = start_ticks(pid).ok_or_else(|| Error::System {
            path: "/proc/self/stat".into(),
            what: "does not say when this process started",
            source: std::io::Error::from_raw_os_error(libc::ENOENT),
        })?;
        Ok(Self::new(pid, start))
    }

    fn new(pid: u32, start_ticks: u64) -> Self {
        Self(u64::from(pid) << START_BITS | start_ticks & ((1 << START_BITS) - 1))
    }

    pub(crate) fn as_word(self) -> u64 {
        self.0
    }

    pub(crate) fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// Whether the process still runs.
    pub(crate) fn is_alive(self) -> bool {
        #[cfg(test)]
        if let Some(is_alive) = crate::interleaving::is_alive(self) {
            return is_alive;
        }
        let pid = (self.0 >> START_BITS) as u32;
        start_ticks(pid).is_some_and(|start| Self::new(pid, start) == self)
    }
}

/// When a process started, in ticks since the machine did; `None` when it does not run, or has ended and not been
/// waited for. Allocates nothing: whoever waits for a lock may be in a signal handler.
fn start_ticks(pid: u32) -> Option<u64> {
    let mut path = [0; 32];
    write!(&mut path[..31], "/proc/{pid}/stat").ok()?;
    // SAFETY: the path ends with a zero byte, for the last one was not written to.
    let fd = unsafe { libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    let mut bytes = [0; 1024];
    // SAFETY: a descriptor that is open and nobody else's, and a buffer that is as long as it says.
    let count = unsafe {
        let count = libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len());
        libc::close(fd);
        count
    };
    start_in(bytes.get(..usize::try_from(count).ok()?)?)
}

/// The start time in a line of `/proc/PID/stat`.
fn start_in(line: &[u8]) -> Option<u64> {
    // The name in parentheses may hold anything, also parentheses.
    let behind_name = line.iter().rposition(|byte| *byte == b')')? + 2;
    let mut fields = line.get(behind_name..)?.split(|byte| *byte == b' ');
    let state = fields.next()?;
    let number = |field: Option<&[u8]>| std::str::from_utf8(field?).ok()?.parse::<u64>().ok();
    let flags = number(fields.nth(5))?;
    let threads = number(fields.nth(10))?;
    // Who is ending makes no store any more, however long the kernel needs to take its memory apart. But the first
    // thread may be gone while another one, killed as well, makes its last stores.
    let is_ending = matches!(state, b"Z" | b"X" | b"x") || flags & PF_EXITING != 0;
    if is_ending && threads <= 1 {
        return None;
    }
    number(fields.nth(1))
}

/// A lane that this process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lane(pub(crate) u64);

impl Region {
    #[inline]
    pub(crate) fn lane_word(&self, lane: Lane, word: u64) -> u64 {
        self.memory.load(self.layout.lane(lane.0) + word)
    }

    #[inline]
    pub(crate) fn set_lane_word(&self, lane: Lane, word: u64, value: u64) {
        self.memory.store(self.layout.lane(lane.0) + word, value);
    }

    /// Says what a lane does, and goes on when that is durable.
    #[inline(always)]
    pub(crate) fn set_doing(&self, lane: Lane, doing: u64) {
        self.set_lane_word(lane, word::STATE, doing);
        let at = self.layout.lane(lane.0) + word::STATE;
        self.memory.persist([(at, 8)]);
    }

    /// Where the bytes of a lane's log begin.
    #[inline]
    pub(crate) fn log_at(&self, lane: Lane) -> u64 {
        self.layout.lane(lane.0) + LANE_WORDS_BYTES
    }

    /// Takes a free lane, or one whose owner is dead.
    ///
    /// # Errors
    /// [`Error::LanesFull`].
    pub(crate) fn take_lane(&self) -> Result<Lane> {
        if !self.writable {
            return Err(Error::ReadOnly);
        }
        let me = self.owner().0;
        for looks_at_owners in [false, true] {
            for lane in (0..self.layout.lane_count).map(Lane) {
                let owner = self.lane_word(lane, word::OWNER);
                if owner == 0 {
                    let at = self.layout.lane(lane.0) + word::OWNER;
                    if self.memory.replace(at, 0, me).is_ok() {
                        return Ok(lane);
                    }
                } else if looks_at_owners && owner != me && !Owner(owner).is_alive() {
                    self.settle(lane, owner)?;
                    let at = self.layout.lane(lane.0) + word::OWNER;
                    if self.memory.replace(at, 0, me).is_ok() {
                        return Ok(lane);
                    }
                }
            }
        }
        Err(Error::LanesFull)
    }

    /// Settles all lanes whose owners are dead; how many.
    ///
    /// # Errors
    /// Those of [`settle`](Self::settle).
    pub(crate) fn settle_dead_lanes(&self) -> Result<u64> {
        let me = self.owner().0;
        let mut settled = 0;
        for lane in (0..self.layout.lane_count).map(Lane) {
            let owner = self.lane_word(lane, word::OWNER);
            if owner != 0 && owner != me && !Owner(owner).is_alive() {
                self.settle(lane, owner)?;
                settled += 1;
            }
        }
        Ok(settled)
    }

    /// Gives a lane back that does nothing.
    pub(crate) fn give_back_lane(&self, lane: Lane) {
        self.set_lane_word(lane, word::OWNER, 0);
    }

    /// Finishes or undoes what the dead owner of a lane was doing, lets go of his locks, and frees the lane. Nothing
    /// happens when somebody else was faster.
    ///
    /// # Errors
    /// [`Error::Damaged`] when the log says what cannot be.
    pub(crate) fn settle(&self, lane: Lane, dead: u64) -> Result<()> {
        let owner_at = self.layout.lane(lane.0) + word::OWNER;
        // From here on the lane is this process's: if it dies as well, the next one comes to the same place.
        if self.memory.replace(owner_at, dead, self.owner().0).is_err() {
            return Ok(());
        }
        let settled = self.settle_owned(lane);
        // A log that makes no sense is the dead one's still: the lock that he holds is not a living one's.
        self.memory
            .store(owner_at, if settled.is_ok() { 0 } else { dead });
        settled
    }

    fn settle_owned(&self, lane: Lane) -> Result<()> {
        match self.lane_word(lane, word::STATE) {
            doing::NOTHING => {}
            doing::WORDS => self.carry_out_words(lane)?,
            doing::BYTES => self.apply_bytes(lane)?,
            doing::UNDO => self.undo_bytes(lane)?,
            doing::TAKING => self.put_pages_back(lane)?,
            _ => return Err(self.lane_damage(lane, "a lane does what no writer does")),
        }
        self.set_doing(lane, doing::NOTHING);
        // Of a change that was being prepared; the next owner's changes free what they say themselves.
        self.set_lane_word(lane, word::FREES, 0);
        for note in 0..WORDS_IN_LINE as u64 {
            self.set_lane_word(lane, word::NOTES + note * 8, 0);
        }
        let inode = self.lane_word(lane, word::INODE);
        if inode != 0 {
            let inode_at = self.inode_at(inode)?;
            if self.holds(lane, inode_at + attribute::LOCK) {
                // Readers wait as long as the number is odd.
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

    /// Stores what the log of words says, and moves the pages that it frees. Done twice it does the same.
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
            // Only tables change by words, and no words of lanes.
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

    /// Makes durable what a log of words has just stored, of words side by side in one go.
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

    /// Copies the logged bytes of a dead writer to their place, and sets size and time of the file.
    fn apply_bytes(&self, lane: Lane) -> Result<()> {
        let (inode_at, target, length) = self.logged_bytes(lane)?;
        // The dead one may not have come to it: then readers would not know.
        self.begin_change(inode_at);
        self.memory.copy(self.log_at(lane), target, length);
        let time_ns = self.lane_word(lane, word::TIME_NS);
        self.set_written(inode_at, self.lane_word(lane, word::SIZE), time_ns, time_ns);
        self.memory
            .persist([(target, length), (inode_at, LINE_BYTES)]);
        Ok(())
    }

    /// Copies the bytes back that a dead writer was writing over, and sets size and times of the file as they were.
    fn undo_bytes(&self, lane: Lane) -> Result<()> {
        let (inode_at, target, length) = self.logged_bytes(lane)?;
        // The dead one may have been through with it: then readers would not know.
        self.begin_change(inode_at);
        self.memory.copy(self.log_at(lane), target, length);
        let (size, modified_ns, changed_ns) = (
            self.lane_word(lane, word::SIZE),
            self.lane_word(lane, word::TIME_NS),
            self.lane_word(lane, word::CHANGED_NS),
        );
        self.set_written(inode_at, size, modified_ns, changed_ns);
        self.memory
            .persist([(target, length), (inode_at, LINE_BYTES)]);
        Ok(())
    }

    /// Of a dead lane's log of bytes: where the inode is, and where the bytes go and how many.
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

    /// Sets what changes with the bytes of a file.
    #[inline(always)]
    pub(crate) fn set_written(&self, inode_at: u64, size: u64, modified_ns: u64, changed_ns: u64) {
        self.memory.store(inode_at + attribute::SIZE, size);
        self.memory
            .store(inode_at + attribute::MODIFIED_NS, modified_ns);
        self.memory
            .store(inode_at + attribute::CHANGED_NS, changed_ns);
    }

    /// Takes the lock at `at`, after finishing what a dead holder has left.
    ///
    /// # Errors
    /// Those of [`settle`](Self::settle), and [`Error::Damaged`] when nobody holds a lock that is taken.
    #[inline]
    pub(crate) fn lock(&self, lane: Lane, at: u64) -> Result<()> {
        if self.try_lock(lane, at) {
            return Ok(());
        }
        self.wait_for_lock(lane, at)
    }

    /// Takes the lock at `at` when nobody has it.
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
            let waited_for = found | SOMEBODY_WAITS;
            if found & SOMEBODY_WAITS == 0 && self.memory.replace(at, found, waited_for).is_err() {
                continue;
            }
            self.memory.store(at + SLEEPERS, 1);
            // Whoever lets go stores into the lock and looks at the other word, with nothing between that would keep
            // his processor from looking first. After this he has done both, or will see the word. Without it the
            // sleep is longer, and no more.
            let _ = barrier_for_all();
            self.sleep(at, waited_for);
            let Some(holding) = (found & !SOMEBODY_WAITS)
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
                // Also the moment between the release of a lane and its next owner's lock looks like this.
                orphaned += 1;
                if orphaned > ORPHANED_MAX {
                    let what = "a lock is held by a lane that nobody has";
                    return Err(Error::Damaged { at, what });
                }
            } else if owner != self.owner().0 && !Owner(owner).is_alive() {
                self.settle(Lane(holding), owner)?;
            }
        }
    }

    /// The lane that holds the lock at `at`.
    pub(crate) fn holder(&self, at: u64) -> Option<Lane> {
        (self.memory.load(at) & !SOMEBODY_WAITS)
            .checked_sub(1)
            .filter(|lane| *lane < self.layout.lane_count)
            .map(Lane)
    }

    /// Finishes what the holder of the lock at `at` was doing, when he is dead; whether somebody alive holds it.
    ///
    /// # Errors
    /// Those of [`settle`](Self::settle); [`Error::ReadOnly`] when the holder is dead and this process cannot help.
    pub(crate) fn look_after(&self, at: u64) -> Result<bool> {
        let Some(holder) = self.holder(at) else {
            return Ok(false);
        };
        let owner = self.lane_word(holder, word::OWNER);
        if owner == self.owner().0 || owner != 0 && Owner(owner).is_alive() {
            return Ok(true);
        }
        if !self.writable {
            return Err(Error::ReadOnly);
        }
        if owner != 0 {
            self.settle(holder, owner)?;
        }
        Ok(false)
    }

    /// Whether a lane holds the lock at `at`.
    #[inline]
    pub(crate) fn holds(&self, lane: Lane, at: u64) -> bool {
        self.memory.load(at) & !SOMEBODY_WAITS == lane.0 + 1
    }

    /// Lets go of a lock that the lane holds, and wakes who waits. By a plain store: an exchange would wait until all
    /// bytes that were written under the lock are in the cache, while the next call could already ask for its own.
    #[inline]
    pub(crate) fn unlock(&self, at: u64) {
        self.memory.store(at, 0);
        if self.memory.load(at + SLEEPERS) != 0 {
            self.wake(at);
        }
    }

    #[cold]
    pub(crate) fn wake(&self, at: u64) {
        // Who sleeps again says so again. If that is wiped out here it falls asleep unseen, for two milliseconds.
        self.memory.store(at + SLEEPERS, 0);
        self.memory.wake_sleepers(at);
    }

    fn sleep(&self, at: u64, value: u64) {
        self.memory.sleep_while(at, value as u32, LOOK_AFTER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dead_are_told_from_the_living() {
        let line = |state: &str, flags: u64, threads: u64| {
            let fields = format!("7 (a ) b) {state} 1 2 3 4 5 {flags} 7 8 9 10 11 12 13 14 15 16");
            start_in(format!("{fields} {threads} 0 4711 99").as_bytes())
        };
        assert_eq!(line("S", 0x40_0100, 3), Some(4711));
        assert_eq!(line("R", 0x40_0100, 1), Some(4711));
        assert_eq!(line("Z", 0x40_010c, 1), None);
        assert_eq!(line("D", 0x40_010c, 1), None);
        // Another of its threads is still there.
        assert_eq!(line("Z", 0x40_010c, 2), Some(4711));
        assert_eq!(start_in(b"7 (a) S"), None);
        let me = Owner::current().unwrap();
        assert!(me.is_alive());
        assert!(!Owner(me.as_word() ^ 1).is_alive());
    }
}
