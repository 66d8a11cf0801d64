//! The slot table: every object's latest value in one piece of memory, read without locks.
//!
//! **Holds:** the memory layout (SPEC.md, "Slot table"), the key index, the sequence locks.
//!
//! **Files:** `read.rs` reading, with a copy and in place; this file everything else.
//!
//! **Invariants:** everything is an atomic word found by its offset, so the memory may lie in a region that
//! several processes map; an id, once given, keeps its slot and key; a slot's timestamp never goes back, unless the
//! node's clock gave one of the two times: that clock can be set.
//!
//! **Sequence lock** (after Boehm, "Can seqlocks get along with programming language memory models?", 2012):
//! a writer makes the sequence odd, passes a release fence, stores the words relaxed and makes the sequence
//! even with release; a reader loads the sequence with acquire, the words relaxed, passes an acquire fence
//! and loads the sequence again. A reader that saw any word of a write also sees its odd sequence, and retries.
//! No access is a plain one, so a torn read is a value that is discarded, never undefined behaviour.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use base::clock::Clock;

use crate::error::Error;
use crate::options::{KEY_BYTES_MAX, OBJECTS_LIMIT, ObjectId, VALUE_BYTES_LIMIT};
use crate::realtime;
use crate::recovery::boot_tag;

mod read;

pub use mem::Line;
pub use read::{InPlace, SlotRead};

const WORDS_PER_LINE: usize = 8;
/// The first bytes of a table.
pub(crate) const MAGIC: &[u8; 8] = b"EVKTABLE";
/// Version of the layout; SPEC.md says every word. A table of another version is refused.
pub const FORMAT_VERSION: u64 = 3;
const HEADER_LINES: usize = 2;
// Words of the second header line: ids given so far, and the run that serves the table.
const OBJECTS_NEXT: usize = WORDS_PER_LINE;
const RUN: usize = WORDS_PER_LINE + 1;
const STATE: usize = WORDS_PER_LINE + 3;
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
const VALIDITY_TEMPORAL: u64 = 1 << 63;
/// Timestamp of a slot without a value.
const NO_TIMESTAMP: i64 = i64::MIN;
/// A key is padded with a byte that UTF-8 never uses, so its length needs no word.
const KEY_PAD: u8 = 0xff;

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
    /// The sensor's time in ms.
    pub timestamp_ms: i64,
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

/// A key copied out of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    bytes: [u8; KEY_BYTES_MAX],
    length: usize,
}

impl Key {
    /// The key's text; empty for a slot whose key was lost to damage.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or("")
    }
}

/// One moment on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Time on the sensors' clock, ms.
    pub wall_ms: i64,
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
            wall_ms: clock.wall_ms(),
            monotonic_ns: clock.monotonic_ns(),
            boot_tag: boot_tag(&clock.boot_id()),
        }
    }

    /// Returns the age of a value in ms. If the node's clock gave the time, the monotonic clock is used where it can
    /// tell: the wall clock may have been set since.
    #[must_use]
    pub fn age_ms(
        &self,
        timestamp_ms: i64,
        node_time: bool,
        arrival_ns: u64,
        boot_tag: u64,
    ) -> i64 {
        if node_time && boot_tag == self.boot_tag {
            return (self.monotonic_ns.saturating_sub(arrival_ns) / 1_000_000) as i64;
        }
        self.wall_ms.saturating_sub(timestamp_ms)
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
    index_entries: usize,
    slot_lines: usize,
    keys_at: usize,
    slots_at: usize,
    lines: usize,
}

impl Shape {
    fn new(objects_max: u32, value_bytes_max: usize) -> Result<Self, Error> {
        let invalid = |name, value, high| Error::OptionInvalid {
            name,
            value,
            low: 1,
            high,
        };
        if objects_max == 0 || objects_max > OBJECTS_LIMIT {
            return Err(invalid(
                "objects_max",
                u64::from(objects_max),
                u64::from(OBJECTS_LIMIT),
            ));
        }
        if value_bytes_max == 0 || value_bytes_max > VALUE_BYTES_LIMIT {
            return Err(invalid(
                "value_bytes_max",
                value_bytes_max as u64,
                VALUE_BYTES_LIMIT as u64,
            ));
        }
        let objects_max = objects_max as usize;
        // At most half full: a probe soon meets an empty entry.
        let index_entries = (objects_max * 2).next_power_of_two().max(WORDS_PER_LINE);
        let slot_lines = (VALUE + value_bytes_max.div_ceil(8)).div_ceil(WORDS_PER_LINE);
        let keys_at = HEADER_LINES + index_entries / WORDS_PER_LINE;
        let slots_at = keys_at + objects_max;
        let lines = slots_at + objects_max * slot_lines;
        Ok(Self {
            objects_max,
            value_bytes_max,
            index_entries,
            slot_lines,
            keys_at,
            slots_at,
            lines,
        })
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
    /// Ids that this handle has given: the count in the memory must not fall behind it.
    given: AtomicU32,
}

impl Table {
    /// A table in memory of its own, allocated here and never again.
    ///
    /// # Errors
    /// [`Error::OptionInvalid`].
    pub fn new(objects_max: u32, value_bytes_max: usize, hash_seed: u64) -> Result<Self, Error> {
        let memory = TableMemory::own(Self::lines_needed(objects_max, value_bytes_max)?);
        Self::create_in(memory, objects_max, value_bytes_max, hash_seed)
    }

    /// Cache lines that a table of this size takes.
    ///
    /// # Errors
    /// [`Error::OptionInvalid`].
    pub fn lines_needed(objects_max: u32, value_bytes_max: usize) -> Result<usize, Error> {
        Ok(Shape::new(objects_max, value_bytes_max)?.lines)
    }
}

impl<M: AsRef<[Line]>> Table<M> {
    /// Lays a table out in zeroed memory.
    ///
    /// # Errors
    /// [`Error::OptionInvalid`]; [`Error::RegionInvalid`] when the memory is too short.
    pub fn create_in(
        memory: M,
        objects_max: u32,
        value_bytes_max: usize,
        hash_seed: u64,
    ) -> Result<Self, Error> {
        let shape = Shape::new(objects_max, value_bytes_max)?;
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
        };
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
        let mut header = [0u64; WORDS_PER_LINE];
        {
            let lines = memory.as_ref();
            let first = lines.first().ok_or(invalid("too short"))?;
            for (word, atomic) in header.iter_mut().zip(&first.0) {
                *word = atomic.load(Ordering::Acquire);
            }
        }
        if header[0] != u64::from_le_bytes(*MAGIC) {
            return Err(invalid("magic"));
        }
        if header[1] != FORMAT_VERSION {
            return Err(invalid("version"));
        }
        let objects_max = u32::try_from(header[2]).map_err(|_| invalid("objects_max"))?;
        let value_bytes_max = usize::try_from(header[3]).map_err(|_| invalid("value_bytes_max"))?;
        let shape = Shape::new(objects_max, value_bytes_max).map_err(|_| invalid("shape"))?;
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

    /// Ids given so far; ids are `0..objects()`.
    pub fn objects(&self) -> u32 {
        (self.word(0, OBJECTS_NEXT).load(Ordering::Acquire) as u32).min(self.objects_max())
    }

    /// Memory of the table in bytes.
    pub fn bytes(&self) -> usize {
        self.shape.lines * size_of::<Line>()
    }

    /// The object with this key.
    pub fn lookup(&self, key: &str) -> Option<ObjectId> {
        let words = pack_key(key)?;
        self.probe(&words).ok()
    }

    /// Finds or makes the object with this key and sets its validity. `true` when anything changed.
    ///
    /// # Errors
    /// [`Error::KeyInvalid`], [`Error::TableFull`]; [`Error::RegionInvalid`] if another process has overwritten the
    /// memory: an id would be given a second time.
    pub fn insert(
        &self,
        key: &str,
        avi_ms: u32,
        temporal: bool,
    ) -> Result<(ObjectId, bool), Error> {
        let words = pack_key(key).ok_or(Error::KeyInvalid { bytes: key.len() })?;
        let _guard = self
            .insert_lock
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        let validity = validity(avi_ms, temporal);
        match self.probe(&words) {
            Ok(id) => {
                let word = self.slot_word(id, VALIDITY);
                Ok((id, word.swap(validity, Ordering::Relaxed) != validity))
            }
            Err(_) if !self.is_intact() => Err(Error::RegionInvalid {
                reason: "its memory was written over",
            }),
            Err(entry) => {
                let id = self.name_slot(self.objects(), &words, validity, entry)?;
                Ok((id, true))
            }
        }
    }

    /// Gives a key the id that it had before a restart. `false` when the id has another key.
    ///
    /// # Errors
    /// [`Error::KeyInvalid`]; [`Error::TableTooSmall`] for an id beyond the table.
    pub fn restore(
        &self,
        id: ObjectId,
        key: &str,
        avi_ms: u32,
        temporal: bool,
    ) -> Result<bool, Error> {
        let words = pack_key(key).ok_or(Error::KeyInvalid { bytes: key.len() })?;
        self.reserve(id)?;
        let _guard = self
            .insert_lock
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        match self.probe(&words) {
            Ok(known) if known == id => {
                self.slot_word(id, VALIDITY)
                    .store(validity(avi_ms, temporal), Ordering::Relaxed);
            }
            Ok(_) => return Ok(false),
            Err(_) if self.key(id).length > 0 => return Ok(false),
            Err(entry) => {
                self.name_slot(id.0, &words, validity(avi_ms, temporal), entry)?;
            }
        }
        Ok(true)
    }

    /// Marks ids up to this one as given, so that none is given twice; the slots get no key.
    ///
    /// # Errors
    /// [`Error::TableTooSmall`].
    pub fn reserve(&self, id: ObjectId) -> Result<(), Error> {
        if id.0 >= self.objects_max() {
            let (needed, configured) = (u64::from(id.0) + 1, u64::from(self.objects_max()));
            return Err(Error::TableTooSmall {
                what: "objects_max",
                needed,
                configured,
            });
        }
        let _guard = self
            .insert_lock
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        for next in self.objects()..=id.0 {
            self.clear_slot(next);
            self.word(0, OBJECTS_NEXT)
                .store(u64::from(next) + 1, Ordering::Release);
            self.given.fetch_max(next + 1, Ordering::Release);
        }
        Ok(())
    }

    fn clear_slot(&self, id: u32) {
        self.slot_word(ObjectId(id), TIMESTAMP)
            .store(NO_TIMESTAMP as u64, Ordering::Relaxed);
        for at in 0..WORDS_PER_LINE {
            self.word(self.shape.keys_at + id as usize, at)
                .store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// Writes validity and key of a slot, then gives the id, then its index entry: a reader that meets the object sees
    /// it whole.
    fn name_slot(
        &self,
        id: u32,
        words: &[u64; WORDS_PER_LINE],
        validity: u64,
        entry: usize,
    ) -> Result<ObjectId, Error> {
        if id >= self.objects_max() {
            return Err(Error::TableFull {
                objects_max: self.objects_max(),
            });
        }
        let given = self.objects();
        if id >= given {
            self.clear_slot(id);
        }
        self.slot_word(ObjectId(id), VALIDITY)
            .store(validity, Ordering::Relaxed);
        for (at, word) in words.iter().enumerate() {
            self.word(self.shape.keys_at + id as usize, at)
                .store(*word, Ordering::Relaxed);
        }
        if id >= given {
            self.word(0, OBJECTS_NEXT)
                .store(u64::from(id) + 1, Ordering::Release);
            self.given.fetch_max(id + 1, Ordering::Release);
        }
        let tag = self.hash(words) & !u64::from(u32::MAX);
        self.word(HEADER_LINES, entry)
            .store(tag | (u64::from(id) + 1), Ordering::Release);
        Ok(ObjectId(id))
    }

    /// Whether the memory is still that of this table, with every object that this handle has made. A faulty process
    /// can overwrite or empty memory that it shares.
    pub(crate) fn is_intact(&self) -> bool {
        // Load this before the count in the memory: a key made between the two must not look lost.
        let given = self.given.load(Ordering::Acquire);
        let header = |at: usize| self.word(0, at).load(Ordering::Relaxed);
        header(0) == u64::from_le_bytes(*MAGIC)
            && header(1) == FORMAT_VERSION
            && header(2) == self.shape.objects_max as u64
            && header(3) == self.shape.value_bytes_max as u64
            && self.objects() >= given
    }

    /// Whether an id has no key, or a plausible one: not the content of memory that was emptied.
    pub(crate) fn has_sane_key(&self, id: ObjectId) -> bool {
        let key = self.key(id);
        let (text, rest) = key.bytes.split_at(key.length);
        rest.iter().all(|byte| *byte == KEY_PAD)
            && std::str::from_utf8(text).is_ok_and(|text| !text.contains('\0'))
    }

    /// The key of an id; empty when it has none.
    pub fn key(&self, id: ObjectId) -> Key {
        let mut key = Key {
            bytes: [KEY_PAD; KEY_BYTES_MAX],
            length: 0,
        };
        if id.0 < self.objects() {
            for (at, chunk) in key.bytes.chunks_exact_mut(8).enumerate() {
                let word = self
                    .word(self.shape.keys_at + id.0 as usize, at)
                    .load(Ordering::Relaxed);
                chunk.copy_from_slice(&word.to_le_bytes());
            }
            key.length = key
                .bytes
                .iter()
                .position(|byte| *byte == KEY_PAD)
                .unwrap_or(KEY_BYTES_MAX);
        }
        key
    }

    /// Validity interval in ms of an id, and whether it is temporal.
    pub fn validity(&self, id: ObjectId) -> (u32, bool) {
        let word = if id.0 < self.objects() {
            self.slot_word(id, VALIDITY).load(Ordering::Relaxed)
        } else {
            0
        };
        (word as u32, word & VALIDITY_TEMPORAL != 0)
    }

    /// Stores a value unless the slot holds a newer one. Returns `true` if it was stored. Of equal timestamps the later
    /// call wins. If the node's clock gave one of the two times, the order of the calls decides: that clock may have
    /// been set in between, and an old time must not outlive what comes after. Safe for several writers, which wait for
    /// each other slot by slot.
    ///
    /// # Errors
    /// [`Error::UnknownObject`], [`Error::ValueTooLong`], [`Error::TimestampInvalid`].
    pub fn write(&self, id: ObjectId, new: &SlotValue<'_>) -> Result<bool, Error> {
        self.write_by::<false>(id, new)
    }

    /// As [`write`](Self::write) by the only writer at this moment: if the slot says that another one is inside,
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
        self.check(id, new.timestamp_ms, new.value.len())?;
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
        let newer = node_time
            || self.slot_word(id, TIMESTAMP).load(Ordering::Relaxed) as i64 <= new.timestamp_ms;
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
                .store(new.timestamp_ms as u64, Ordering::Relaxed);
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
    pub fn check(&self, id: ObjectId, timestamp_ms: i64, value_bytes: usize) -> Result<(), Error> {
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
        if timestamp_ms == NO_TIMESTAMP {
            return Err(Error::TimestampInvalid);
        }
        Ok(())
    }

    /// Returns the index entry's object, or the free entry where the key would go.
    fn probe(&self, words: &[u64; WORDS_PER_LINE]) -> Result<ObjectId, usize> {
        let hash = self.hash(words);
        let mask = self.shape.index_entries - 1;
        let mut at = hash as usize & mask;
        // Bounded although an entry is always free: the memory may be shared with a faulty process.
        for _ in 0..self.shape.index_entries {
            let entry = self.word(HEADER_LINES, at).load(Ordering::Acquire);
            if entry == 0 {
                return Err(at);
            }
            let id = (entry as u32).wrapping_sub(1);
            if entry >> 32 == hash >> 32 && id < self.objects_max() {
                let line = self.shape.keys_at + id as usize;
                if words
                    .iter()
                    .enumerate()
                    .all(|(i, word)| self.word(line, i).load(Ordering::Relaxed) == *word)
                {
                    return Ok(ObjectId(id));
                }
            }
            at = (at + 1) & mask;
        }
        Err(at)
    }

    fn hash(&self, words: &[u64; WORDS_PER_LINE]) -> u64 {
        let mut hash = self.hash_seed;
        for word in words.iter().take_while(|word| **word != u64::MAX) {
            let product = u128::from(hash ^ word) * u128::from(0x9e37_79b9_7f4a_7c15_u64);
            hash = (product >> 64) as u64 ^ product as u64;
        }
        hash ^ hash >> 29
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
pub fn is_fresh(age_ms: i64, avi_ms: u32) -> bool {
    age_ms.unsigned_abs() <= u64::from(avi_ms)
}

fn validity(avi_ms: u32, temporal: bool) -> u64 {
    u64::from(avi_ms) | if temporal { VALIDITY_TEMPORAL } else { 0 }
}

fn pack_key(key: &str) -> Option<[u64; WORDS_PER_LINE]> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return None;
    }
    let mut bytes = [KEY_PAD; KEY_BYTES_MAX];
    bytes[..key.len()].copy_from_slice(key.as_bytes());
    let mut words = [0; WORDS_PER_LINE];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(chunk.try_into().unwrap_or([KEY_PAD; 8]));
    }
    Some(words)
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

    pub(crate) fn into_memory(self) -> M {
        self.memory
    }
}

#[cfg(test)]
mod tests;
