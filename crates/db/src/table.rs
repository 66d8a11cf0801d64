//! The slot table: every object's latest value in one piece of memory, read without locks.
//!
//! **Holds:** the memory layout (SPEC.md, "Slot table"), the keys and their index, the sequence locks.
//!
//! **Files:** `keys.rs` keys, `read.rs` reading, with a copy and in place; this file everything else.
//!
//! **Invariants:** everything is an atomic word found by its offset, so the memory may lie in a region that several
//! processes map. An id, once given, keeps its slot and key. A slot's timestamp never goes back, unless the node's
//! clock gave one of the two times: that clock can be set.
//!
//! **Sequence lock** (after Boehm, "Can seqlocks get along with programming language memory models?", 2012). A writer
//! makes the sequence odd, passes a release fence, stores the words relaxed and makes the sequence even with release.
//! A reader loads the sequence with acquire, the words relaxed, passes an acquire fence and loads the sequence again.
//! A reader that saw any word of a write also sees its odd sequence, and retries.
//! No access is a plain one, so a torn read is a value that is discarded, never undefined behaviour.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use base::clock::Clock;

use crate::error::Error;
use crate::limits::{
    KEY_BYTES_MEAN, KEY_BYTES_MEAN_MAX, KEY_BYTES_MEAN_MIN, OBJECTS_LIMIT, VALUE_BYTES_LIMIT,
};
use crate::options::{ObjectId, TableSize};
use crate::realtime;
use crate::time::Time;
use crate::wall::boot_tag;

mod keys;
mod read;

pub use keys::Key;
pub use mem::Line;
pub use read::{InPlace, SlotRead};

const WORDS_PER_LINE: usize = 8;
/// The first bytes of a table.
pub(crate) const MAGIC: &[u8; 8] = b"EVKTABLE";
/// Version of the layout; SPEC.md says every word. A table of another version is refused.
pub const FORMAT_VERSION: u64 = 5;
const HEADER_LINES: usize = 2;
// Words of the second header line: ids given so far, the run that serves the table, and the pool of keys.
const OBJECTS_NEXT: usize = WORDS_PER_LINE;
const RUN: usize = WORDS_PER_LINE + 1;
const STATE: usize = WORDS_PER_LINE + 3;
const KEY_BYTES: usize = WORDS_PER_LINE + 4;
const UNITS_GIVEN: usize = WORDS_PER_LINE + 5;
const STATE_SERVED: u64 = 1;
const STATE_ENDED: u64 = 2;

// Words of a slot, before its value.
const SEQUENCE: usize = 0;
const TIMESTAMP: usize = 1;
const META: usize = 2;
const ARRIVAL: usize = 3;
const BOOT_TAG: usize = 4;
const VALIDITY: usize = 5;
const VALUE: usize = 6;

const META_LENGTH: u64 = 0xffff;
const META_TRUSTED: u64 = 1 << 16;
const META_NODE_TIME: u64 = 1 << 17;
const META_RETAINED: u64 = 1 << 18;
/// Timestamp of a slot without a value, in ns.
const NO_TIMESTAMP: i64 = i64::MIN;

/// Retries of a read before it sleeps. On one core, a reader of higher priority could otherwise starve the very writer
/// it waits for.
const SPINS_MAX: u32 = 256;
const READ_BACKOFF: Duration = Duration::from_micros(20);

/// Most such naps for a writer that has stopped in the middle of a value: 50 ms and more. For readers of another
/// process, and for a pass over all slots.
pub(crate) const NAPS_MAX: u32 = 1000;
/// The same for readers of the writer's own process: it is not dead, but threads of higher priority may hold it up.
/// After a longer wait no writer is inside: memory that others share was overwritten.
pub(crate) const OWN_NAPS_MAX: u32 = 2_000;

/// One value with its times, as a slot takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotValue<'a> {
    /// The sensor's time. One that ns cannot count is kept as the farthest one.
    pub time: Time,
    /// Arrival on the monotonic clock of the boot that `boot_tag` names.
    pub arrival_ns: u64,
    /// First eight bytes of the boot id.
    pub boot_tag: u64,
    /// Whether the wall clock was trusted at arrival.
    pub wall_trusted: bool,
    /// Whether the node's wall clock gave the time, not the sensor.
    pub node_time: bool,
    /// Whether it was kept for an unknown time before it arrived.
    pub retained: bool,
    /// The value.
    pub value: &'a [u8],
}

/// One moment on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Time on the sensors' clock.
    pub wall: Time,
    /// Monotonic time of this boot, ns.
    pub monotonic_ns: u64,
    /// First eight bytes of this boot's id.
    pub boot_tag: u64,
}

impl Now {
    /// Returns the present moment of these clocks.
    #[must_use]
    pub fn of(clock: &dyn Clock) -> Self {
        Self {
            wall: Time::from_ns(clock.wall_ns()),
            monotonic_ns: clock.monotonic_ns(),
            boot_tag: boot_tag(&clock.boot_id()),
        }
    }

    /// Returns the age of a value in ns. If the node's clock gave the time, the monotonic clock is used where it can
    /// tell: the wall clock may have been set since.
    #[must_use]
    pub fn age_ns(&self, time: Time, node_time: bool, arrival_ns: u64, boot_tag: u64) -> i64 {
        if node_time && boot_tag == self.boot_tag {
            let since_ns = self.monotonic_ns.saturating_sub(arrival_ns);
            return i64::try_from(since_ns).unwrap_or(i64::MAX);
        }
        self.wall.since_ns(time)
    }
}

/// Objects counted by freshness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreshCount {
    /// Temporal objects whose value is fresh.
    pub fresh: u32,
    /// Temporal objects declared, with or without a value.
    pub temporal: u32,
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    objects_max: usize,
    value_bytes_max: usize,
    key_bytes_mean: u32,
    index_entries: usize,
    slot_lines: usize,
    pool_at: usize,
    slots_at: usize,
    lines: usize,
}

impl Shape {
    fn new(size: TableSize) -> Result<Self, Error> {
        let check = |name, value, low, high| {
            if value < low || value > high {
                return Err(Error::OptionInvalid {
                    name,
                    value,
                    low,
                    high,
                });
            }
            Ok(())
        };
        let objects = u64::from(size.objects_max);
        check("objects_max", objects, 1, u64::from(OBJECTS_LIMIT))?;
        let value_bytes = size.value_bytes_max as u64;
        check("value_bytes_max", value_bytes, 1, VALUE_BYTES_LIMIT as u64)?;
        let pool_bytes_max = (keys::POOL_LINES_MAX * size_of::<Line>()) as u64;
        let (mean, mean_min) = (size.key_bytes_mean.into(), KEY_BYTES_MEAN_MIN.into());
        let mean_max = (pool_bytes_max / objects).min(KEY_BYTES_MEAN_MAX.into());
        check("key_bytes_mean", mean, mean_min, mean_max)?;
        let (objects_max, value_bytes_max) = (size.objects_max as usize, size.value_bytes_max);
        // At most half full: a probe soon meets an empty entry.
        let index_entries = (objects_max * 2).next_power_of_two().max(WORDS_PER_LINE);
        let slot_lines = (VALUE + value_bytes_max.div_ceil(8)).div_ceil(WORDS_PER_LINE);
        let pool_at = HEADER_LINES + index_entries / WORDS_PER_LINE;
        let pool_lines = (objects_max * size.key_bytes_mean as usize).div_ceil(size_of::<Line>());
        let slots_at = pool_at + pool_lines;
        let lines = slots_at + objects_max * slot_lines;
        Ok(Self {
            objects_max,
            value_bytes_max,
            key_bytes_mean: size.key_bytes_mean,
            index_entries,
            slot_lines,
            pool_at,
            slots_at,
            lines,
        })
    }

    fn pool_units(&self) -> usize {
        (self.slots_at - self.pool_at) * keys::UNITS_PER_LINE
    }
}

/// Memory for a table: its own, or memory that another owner keeps for as long as the program runs.
#[derive(Debug)]
pub enum TableMemory {
    /// Allocated for it.
    Own(Box<[Line]>),
    /// Given to it, such as a file of a region.
    Given(&'static [Line]),
}

impl TableMemory {
    /// Allocates this many lines of zeros.
    #[must_use]
    pub fn own(lines: usize) -> Self {
        let line = |_| Line([const { AtomicU64::new(0) }; WORDS_PER_LINE]);
        let mut memory = Vec::with_capacity(lines);
        // Call this before the memory is touched. Objects are accessed in random order: with small pages nearly every
        // access also misses the TLB.
        realtime::prefer_large_pages(memory.spare_capacity_mut());
        memory.extend((0..lines).map(line));
        Self::Own(memory.into())
    }
}

impl AsRef<[Line]> for TableMemory {
    #[inline]
    fn as_ref(&self) -> &[Line] {
        match self {
            Self::Own(lines) => lines,
            Self::Given(lines) => lines,
        }
    }
}

/// The slot table over memory `M`.
#[derive(Debug)]
pub struct Table<M: AsRef<[Line]> = TableMemory> {
    memory: M,
    shape: Shape,
    hash_seed: u64,
    insert_lock: Mutex<()>,
    /// Bytes of all values that were written through this handle.
    value_bytes: AtomicU64,
    /// Ids and units of the key pool that this handle has given: the counts in the memory must not fall behind.
    given: AtomicU32,
    units: AtomicU32,
}

impl Table {
    /// A table in memory of its own, allocated here and never again, with the default room for keys.
    ///
    /// # Errors
    /// [`Error::OptionInvalid`].
    pub fn new(objects_max: u32, value_bytes_max: usize, hash_seed: u64) -> Result<Self, Error> {
        let size = TableSize {
            objects_max,
            value_bytes_max,
            key_bytes_mean: KEY_BYTES_MEAN,
        };
        Self::create_in(TableMemory::own(Self::lines_needed(size)?), size, hash_seed)
    }

    /// Cache lines that a table of this size takes.
    ///
    /// # Errors
    /// [`Error::OptionInvalid`].
    pub fn lines_needed(size: TableSize) -> Result<usize, Error> {
        Ok(Shape::new(size)?.lines)
    }
}

impl<M: AsRef<[Line]>> Table<M> {
    /// Lays a table out in zeroed memory.
    ///
    /// # Errors
    /// [`Error::OptionInvalid`]; [`Error::RegionInvalid`] when the memory is too short.
    pub fn create_in(memory: M, size: TableSize, hash_seed: u64) -> Result<Self, Error> {
        let shape = Shape::new(size)?;
        if memory.as_ref().len() < shape.lines {
            return Err(Error::RegionInvalid {
                reason: "too short",
            });
        }
        let table = Self {
            memory,
            shape,
            hash_seed,
            insert_lock: Mutex::new(()),
            value_bytes: AtomicU64::new(0),
            given: AtomicU32::new(0),
            units: AtomicU32::new(0),
        };
        let key_bytes = u64::from(shape.key_bytes_mean);
        table.word(0, KEY_BYTES).store(key_bytes, Ordering::Relaxed);
        let header = [
            u64::from_le_bytes(*MAGIC),
            FORMAT_VERSION,
            shape.objects_max as u64,
            shape.value_bytes_max as u64,
            shape.index_entries as u64,
            shape.slot_lines as u64,
            hash_seed,
            shape.lines as u64,
        ];
        // Store the magic last: an attaching process sees a whole header or none.
        for (at, word) in header.iter().enumerate().rev() {
            table.word(0, at).store(*word, Ordering::Release);
        }
        Ok(table)
    }

    /// Uses a table that [`create_in`](Self::create_in) laid out earlier, perhaps in another process.
    ///
    /// # Errors
    /// [`Error::RegionInvalid`].
    pub fn attach(memory: M) -> Result<Self, Error> {
        let invalid = |reason| Error::RegionInvalid { reason };
        let mut header = [0u64; HEADER_LINES * WORDS_PER_LINE];
        {
            let lines = memory.as_ref().get(..HEADER_LINES);
            let lines = lines.ok_or(invalid("too short"))?;
            for (word, atomic) in header.iter_mut().zip(lines.iter().flat_map(|line| &line.0)) {
                *word = atomic.load(Ordering::Acquire);
            }
        }
        if header[0] != u64::from_le_bytes(*MAGIC) {
            return Err(invalid("magic"));
        }
        if header[1] != FORMAT_VERSION {
            return Err(invalid("version"));
        }
        let size = TableSize {
            objects_max: u32::try_from(header[2]).map_err(|_| invalid("objects_max"))?,
            value_bytes_max: usize::try_from(header[3]).map_err(|_| invalid("value_bytes_max"))?,
            key_bytes_mean: u32::try_from(header[KEY_BYTES]).map_err(|_| invalid("key_bytes"))?,
        };
        let shape = Shape::new(size).map_err(|_| invalid("shape"))?;
        if header[4] != shape.index_entries as u64 || header[5] != shape.slot_lines as u64 {
            return Err(invalid("shape"));
        }
        if header[7] != shape.lines as u64 || memory.as_ref().len() < shape.lines {
            return Err(invalid("too short"));
        }
        Ok(Self {
            memory,
            shape,
            hash_seed: header[6],
            insert_lock: Mutex::new(()),
            value_bytes: AtomicU64::new(0),
            given: AtomicU32::new(0),
            units: AtomicU32::new(header[UNITS_GIVEN].min(shape.pool_units() as u64) as u32),
        })
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Records in the table that the run of this number serves it from now on.
    pub fn serve(&self, run: [u64; 2]) {
        for (at, word) in run.into_iter().enumerate() {
            self.word(0, RUN + at).store(word, Ordering::Relaxed);
        }
        self.word(0, STATE).store(STATE_SERVED, Ordering::Release);
    }

    /// Records in the table that no run serves it any more.
    pub fn end_service(&self) {
        self.word(0, STATE).store(STATE_ENDED, Ordering::Release);
    }

    /// Returns the run that serves the table, as far as the table itself knows: a killed run could not record its end.
    pub fn served_by(&self) -> Option<[u64; 2]> {
        let is_served = self.word(0, STATE).load(Ordering::Acquire) == STATE_SERVED;
        let run = [0, 1].map(|at| self.word(0, RUN + at).load(Ordering::Relaxed));
        is_served.then_some(run)
    }

    /// Bytes of all latest values together.
    pub fn values_bytes(&self) -> u64 {
        // Limit the sum to the possible maximum: lengths in overwritten memory do not add up.
        let most = self.shape.objects_max as u64 * self.shape.value_bytes_max as u64;
        self.value_bytes.load(Ordering::Relaxed).min(most)
    }

    /// Objects the table can hold.
    pub fn objects_max(&self) -> u32 {
        self.shape.objects_max as u32
    }

    /// Bytes of the longest value.
    pub fn value_bytes_max(&self) -> usize {
        self.shape.value_bytes_max
    }

    /// Memory of the table in bytes.
    pub fn bytes(&self) -> usize {
        self.shape.lines * size_of::<Line>()
    }

    /// Whether the memory is still that of this table, with every object that this handle has made. A faulty process
    /// can overwrite or empty memory that it shares.
    pub(crate) fn is_intact(&self) -> bool {
        let header = |at: usize| self.word(0, at).load(Ordering::Relaxed);
        header(0) == u64::from_le_bytes(*MAGIC)
            && header(1) == FORMAT_VERSION
            && header(2) == self.shape.objects_max as u64
            && header(3) == self.shape.value_bytes_max as u64
            && header(KEY_BYTES) == u64::from(self.shape.key_bytes_mean)
            && self.has_its_counts()
    }

    /// Stores a value unless the slot holds a newer one. Returns `true` if it was stored. Of equal timestamps the later
    /// call wins. If the node's clock gave one of the two times, the order of the calls decides. That clock may have
    /// been set in between, and an old time must not outlive what comes after. Safe for several writers, which wait for
    /// each other slot by slot.
    ///
    /// # Errors
    /// [`Error::UnknownObject`], [`Error::ValueTooLong`], [`Error::TimestampInvalid`].
    pub fn write(&self, id: ObjectId, new: &SlotValue<'_>) -> Result<bool, Error> {
        self.write_by::<false>(id, new)
    }

    /// As [`write`](Self::write) by the only writer at this moment. If the slot says that another one is inside,
    /// another process has overwritten the memory, and the call does not wait.
    pub(crate) fn write_alone(&self, id: ObjectId, new: &SlotValue<'_>) -> Result<bool, Error> {
        self.write_by::<true>(id, new)
    }

    #[inline]
    fn write_by<const IS_ALONE: bool>(
        &self,
        id: ObjectId,
        new: &SlotValue<'_>,
    ) -> Result<bool, Error> {
        self.check(id, new.time, new.value.len())?;
        let time_ns = new.time.ns();
        let slot = self.slot(id)?;
        let sequence = self.slot_word(id, SEQUENCE);
        let mut waits = 0;
        let even = loop {
            let seen = sequence.load(Ordering::Relaxed);
            let odd = seen | 1;
            let taken =
                || sequence.compare_exchange(seen, odd, Ordering::Acquire, Ordering::Relaxed);
            if seen != odd && taken().is_ok() {
                break seen;
            }
            if IS_ALONE {
                sequence.store(odd, Ordering::Relaxed);
                break odd & !1;
            }
            back_off(&mut waits);
        };
        fence(Ordering::Release);
        let meta = self.slot_word(id, META).load(Ordering::Relaxed);
        let node_time = new.node_time || meta & META_NODE_TIME != 0;
        let newer =
            node_time || self.slot_word(id, TIMESTAMP).load(Ordering::Relaxed) as i64 <= time_ns;
        if newer {
            let before =
                if self.slot_word(id, TIMESTAMP).load(Ordering::Relaxed) as i64 == NO_TIMESTAMP {
                    0
                } else {
                    meta & META_LENGTH
                };
            // Wraps around to the difference, which is usually zero.
            let more = (new.value.len() as u64).wrapping_sub(before);
            if more != 0 {
                self.value_bytes.fetch_add(more, Ordering::Relaxed);
            }
            let flag = |set, bit| if set { bit } else { 0 };
            let meta = new.value.len() as u64
                | flag(new.wall_trusted, META_TRUSTED)
                | flag(new.node_time, META_NODE_TIME)
                | flag(new.retained, META_RETAINED);
            self.slot_word(id, TIMESTAMP)
                .store(time_ns as u64, Ordering::Relaxed);
            self.slot_word(id, META).store(meta, Ordering::Relaxed);
            self.slot_word(id, ARRIVAL)
                .store(new.arrival_ns, Ordering::Relaxed);
            self.slot_word(id, BOOT_TAG)
                .store(new.boot_tag, Ordering::Relaxed);
            read::store_value(slot, new.value);
        }
        sequence.store(even.wrapping_add(2), Ordering::Release);
        Ok(newer)
    }

    /// Checks whether [`write`](Self::write) would take this.
    ///
    /// # Errors
    /// As `write`.
    pub fn check(&self, id: ObjectId, time: Time, value_bytes: usize) -> Result<(), Error> {
        if id.0 >= self.objects() {
            return Err(Error::UnknownObject);
        }
        if value_bytes > self.shape.value_bytes_max {
            let value_bytes_max = self.shape.value_bytes_max;
            return Err(Error::ValueTooLong {
                bytes: value_bytes,
                value_bytes_max,
            });
        }
        if time.ns() == NO_TIMESTAMP {
            return Err(Error::TimestampInvalid);
        }
        Ok(())
    }

    fn word(&self, line: usize, at: usize) -> &AtomicU64 {
        &self.memory.as_ref()[line + at / WORDS_PER_LINE].0[at % WORDS_PER_LINE]
    }

    fn slot_word(&self, id: ObjectId, at: usize) -> &AtomicU64 {
        self.word(
            self.shape.slots_at + id.0 as usize * self.shape.slot_lines,
            at,
        )
    }
}

/// The freshness rule: no older than the validity interval. A time that lies further than that in the future is wrong,
/// and the age of its value is unknown.
#[must_use]
pub fn is_fresh(age_ns: i64, avi_ms: u32) -> bool {
    age_ns.unsigned_abs() <= u64::from(avi_ms) * 1_000_000
}

#[cold]
fn back_off(waits: &mut u32) {
    *waits += 1;
    if waits.is_multiple_of(SPINS_MAX) {
        std::thread::sleep(READ_BACKOFF);
    } else {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
impl<M: AsRef<[Line]>> Table<M> {
    /// Leaves a slot as a writer does that is killed in the middle of it.
    pub(crate) fn stop_in_the_middle(&self, id: ObjectId) {
        self.slot_word(id, SEQUENCE).fetch_or(1, Ordering::Relaxed);
    }

    /// Stores what a faulty process may store there.
    pub(crate) fn set_validity_word(&self, id: ObjectId, word: u64) {
        self.slot_word(id, VALIDITY).store(word, Ordering::Relaxed);
    }

    pub(crate) fn into_memory(self) -> M {
        self.memory
    }
}

#[cfg(test)]
mod tests;
