//! Reading a slot: a copy of its value, or the value in place with a check afterwards.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::{
    ARRIVAL, BOOT_TAG, FreshCount, Line, META, META_LENGTH, META_NODE_TIME, META_RETAINED,
    META_TRUSTED, NAPS_MAX, NO_TIMESTAMP, Now, SEQUENCE, SPINS_MAX, TIMESTAMP, Table, VALIDITY,
    VALUE, WORDS_PER_LINE, back_off, is_fresh,
};
use crate::error::Error;
use crate::options::ObjectId;
use crate::time::Time;

/// The time that a slot without a value shows.
const NO_TIME: Time = Time::from_ns(NO_TIMESTAMP);

/// What a read of a slot returns besides the value bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRead {
    /// Bytes of the value.
    pub value_bytes: usize,
    /// The sensor's time.
    pub time: Time,
    /// Arrival on the monotonic clock of the boot that `boot_tag` names.
    pub arrival_ns: u64,
    /// First eight bytes of the boot id of the arrival.
    pub boot_tag: u64,
    /// Whether the wall clock was trusted at arrival.
    pub wall_trusted: bool,
    /// Whether the node's wall clock gave the time, not the sensor.
    pub node_time: bool,
    /// Whether it was kept for an unknown time before it arrived.
    pub retained: bool,
    /// Absolute validity interval in ms.
    pub avi_ms: u32,
}

impl SlotRead {
    /// Returns whether the value is fresh at this age. The time since the arrival is no age of a retained value. Only a
    /// time of the sensor can make such a value fresh.
    #[must_use]
    pub fn is_fresh(&self, age_ns: i64) -> bool {
        !(self.retained && self.node_time) && is_fresh(age_ns, self.avi_ms)
    }
}

/// A value in place. Its writer does not wait for readers: what was read counts only if [`is_whole`](Self::is_whole)
/// says afterwards that it was one value.
#[derive(Clone, Copy, Debug)]
pub struct InPlace<'t> {
    slot: &'t [Line],
    sequence: u64,
    read: SlotRead,
}

impl<'t> InPlace<'t> {
    /// The value as it is now; `None` while a writer is inside.
    fn of(slot: &'t [Line], value_bytes_max: usize) -> Option<Self> {
        let word = |at: usize| &slot[at / WORDS_PER_LINE].0[at % WORDS_PER_LINE];
        let sequence = word(SEQUENCE).load(Ordering::Acquire);
        if sequence & 1 != 0 {
            return None;
        }
        let meta = word(META).load(Ordering::Relaxed);
        Some(Self {
            slot,
            sequence,
            read: SlotRead {
                // Do not trust the length: the memory may be shared with a faulty process.
                value_bytes: ((meta & META_LENGTH) as usize).min(value_bytes_max),
                time: Time::from_ns(word(TIMESTAMP).load(Ordering::Relaxed) as i64),
                arrival_ns: word(ARRIVAL).load(Ordering::Relaxed),
                boot_tag: word(BOOT_TAG).load(Ordering::Relaxed),
                wall_trusted: meta & META_TRUSTED != 0,
                node_time: meta & META_NODE_TIME != 0,
                retained: meta & META_RETAINED != 0,
                avi_ms: word(VALIDITY).load(Ordering::Relaxed) as u32,
            },
        })
    }

    /// Its times and its length.
    #[must_use]
    pub fn times(&self) -> SlotRead {
        self.read
    }

    /// Its bytes, eight in a word, the first one lowest; after its end the last word has zeros.
    pub fn words(&self) -> impl Iterator<Item = u64> + use<'t> {
        let slot = self.slot;
        let words = VALUE..VALUE + self.read.value_bytes.div_ceil(8);
        words
            .map(move |at| slot[at / WORDS_PER_LINE].0[at % WORDS_PER_LINE].load(Ordering::Relaxed))
    }

    /// The word at `index` of [`words`](Self::words); `None` after the last one.
    #[must_use]
    pub fn word(&self, index: usize) -> Option<u64> {
        if index >= self.read.value_bytes.div_ceil(8) {
            return None;
        }
        let at = VALUE + index;
        let word = &self.slot[at / WORDS_PER_LINE].0[at % WORDS_PER_LINE];
        Some(word.load(Ordering::Relaxed))
    }

    /// The number, if the value is one: the form `float` of SPEC.md.
    #[must_use]
    pub fn float(&self) -> Option<f64> {
        let word = self.words().next()?;
        (self.read.value_bytes == 8).then_some(f64::from_bits(word))
    }

    /// Whether everything that was read of it belongs to one value.
    #[must_use]
    #[inline]
    pub fn is_whole(&self) -> bool {
        fence(Ordering::Acquire);
        self.slot[0].0[SEQUENCE].load(Ordering::Relaxed) == self.sequence
    }

    fn copy(&self, into: &mut [u8]) {
        // Prefetch many lines at once: a copy by words looks ahead by only a few lines.
        let lines = into.len() / LINE_BYTES;
        if lines > 2 {
            self.slot[2..lines.min(FETCH_LINES_MAX)]
                .iter()
                .for_each(fetch_line);
        }
        let (first, rest) = into.split_at_mut(into.len().min(8 * (WORDS_PER_LINE - VALUE)));
        copy_words(&self.slot[0].0[VALUE..], first);
        for (line, bytes) in self.slot[1..].iter().zip(rest.chunks_mut(LINE_BYTES)) {
            match <&mut [u8; LINE_BYTES]>::try_from(&mut *bytes) {
                // A fixed length becomes loads and stores without a branch between them: a long value has many lines,
                // and their misses must overlap.
                Ok(bytes) => copy_words(&line.0, bytes),
                Err(_) => copy_words(&line.0, bytes),
            }
        }
    }
}

/// Most lines that a processor fetches at once; more would only wait.
const FETCH_LINES_MAX: usize = 12;

#[inline(always)]
fn fetch_line(line: &Line) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which reads and writes nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>((&raw const *line).cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint, which reads and writes nothing.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{0}]", in(reg) &raw const *line, options(nostack, preserves_flags));
    }
    let _ = line;
}

const LINE_BYTES: usize = 8 * WORDS_PER_LINE;

#[inline(always)]
fn copy_words(words: &[AtomicU64], into: &mut [u8]) {
    for (chunk, word) in into.chunks_mut(8).zip(words) {
        let bytes = word.load(Ordering::Relaxed).to_le_bytes();
        match <&mut [u8; 8]>::try_from(&mut *chunk) {
            Ok(chunk) => *chunk = bytes,
            Err(_) => chunk.copy_from_slice(&bytes[..chunk.len()]),
        }
    }
}

#[inline(always)]
fn store_words(words: &[AtomicU64], value: &[u8]) {
    for (chunk, word) in value.chunks(8).zip(words) {
        let bytes = match <[u8; 8]>::try_from(chunk) {
            Ok(bytes) => bytes,
            Err(_) => {
                let mut bytes = [0; 8];
                bytes[..chunk.len()].copy_from_slice(chunk);
                bytes
            }
        };
        word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    }
}

/// Stores a value's bytes into the words of its slot, with zeros after its end in the last one.
pub(super) fn store_value(slot: &[Line], value: &[u8]) {
    let (first, rest) = value.split_at(value.len().min(8 * (WORDS_PER_LINE - VALUE)));
    store_words(&slot[0].0[VALUE..], first);
    for (line, bytes) in slot[1..].iter().zip(rest.chunks(LINE_BYTES)) {
        match <&[u8; LINE_BYTES]>::try_from(bytes) {
            Ok(bytes) => store_words(&line.0, bytes),
            Err(_) => store_words(&line.0, bytes),
        }
    }
}

impl<M: AsRef<[Line]>> Table<M> {
    pub(super) fn slot(&self, id: ObjectId) -> Result<&[Line], Error> {
        if id.0 >= self.objects() {
            return Err(Error::UnknownObject);
        }
        let first = self.shape.slots_at + id.0 as usize * self.shape.slot_lines;
        Ok(&self.memory.as_ref()[first..first + self.shape.slot_lines])
    }

    /// Prefetches the lines that a value of this many bytes will be written to, while the caller does something else.
    #[inline]
    pub(crate) fn fetch(&self, id: ObjectId, value_bytes: usize) {
        let lines = (VALUE + value_bytes.div_ceil(8)).div_ceil(WORDS_PER_LINE);
        if let Ok(slot) = self.slot(id) {
            for line in slot.iter().take(lines.min(FETCH_LINES_MAX)) {
                fetch_line(line);
            }
        }
    }

    /// Whether an id has a value.
    pub(crate) fn has_value(&self, id: ObjectId) -> bool {
        self.slot(id)
            .is_ok_and(|slot| slot[0].0[TIMESTAMP].load(Ordering::Relaxed) as i64 != NO_TIMESTAMP)
    }

    /// Returns whether the object has a value whose age is known.
    pub(crate) fn has_known_age(&self, id: ObjectId) -> bool {
        let unknown = META_NODE_TIME | META_RETAINED;
        self.has_value(id) && self.slot_word(id, META).load(Ordering::Relaxed) & unknown != unknown
    }

    /// Returns the readings offered to the slot of a temporal object, including older ones that it refused; `None` for
    /// other objects. Costs the writers nothing: each write advances the sequence by two.
    pub(crate) fn updates(&self, object: usize) -> Option<u64> {
        let id = ObjectId(u32::try_from(object).ok()?);
        let (_, is_temporal) = self.validity(id);
        let slot = self.slot(id).ok().filter(|_| is_temporal)?;
        Some(slot[0].0[SEQUENCE].load(Ordering::Relaxed) / 2)
    }

    /// Readings that were offered to the table for this object; 0 for an unknown one.
    pub(crate) fn version(&self, id: ObjectId) -> u64 {
        let slot = self.slot(id).ok();
        slot.map_or(0, |slot| slot[0].0[SEQUENCE].load(Ordering::Acquire) / 2)
    }

    /// Whether [`write`](Self::write) would store a reading with this time, if no other thread writes.
    pub(crate) fn is_news(&self, id: ObjectId, time: Time, node_time: bool) -> bool {
        let Ok(slot) = self.slot(id) else {
            return false;
        };
        let word = |at: usize| slot[0].0[at].load(Ordering::Relaxed);
        node_time || word(META) & META_NODE_TIME != 0 || word(TIMESTAMP) as i64 <= time.ns()
    }

    /// Copies the value into `value` and returns its times. No lock, no allocation, no system call unless a
    /// writer has been suspended inside its few stores.
    ///
    /// # Errors
    /// [`Error::UnknownObject`], [`Error::NoValue`], [`Error::BufferTooSmall`].
    pub fn read(&self, id: ObjectId, value: &mut [u8]) -> Result<SlotRead, Error> {
        let slot = self.slot(id)?;
        let mut waits = 0;
        loop {
            if let Some(read) = self.read_once(slot, value) {
                return read;
            }
            back_off(&mut waits);
        }
    }

    /// As [`read`](Self::read), for readers of a table that another process writes. That process may have died in the
    /// middle. So the reader waits for a writer that stays inside at most `naps_max` naps of 20 µs and more.
    ///
    /// # Errors
    /// Those of [`read`](Self::read), and [`Error::Stalled`].
    pub fn read_within(
        &self,
        id: ObjectId,
        value: &mut [u8],
        naps_max: u32,
    ) -> Result<SlotRead, Error> {
        let slot = self.slot(id)?;
        within(naps_max, || self.read_once(slot, value)).and_then(|read| read)
    }

    /// Lets `look` see the value in place, and repeats that until it has seen one value from beginning to end. Returns
    /// the result of that call. Waits as [`read_within`](Self::read_within) does.
    ///
    /// # Errors
    /// [`Error::UnknownObject`], [`Error::NoValue`], [`Error::Stalled`].
    pub fn with_value<R>(
        &self,
        id: ObjectId,
        naps_max: u32,
        mut look: impl FnMut(&InPlace<'_>) -> R,
    ) -> Result<R, Error> {
        let slot = self.slot(id)?;
        within(naps_max, || {
            let value = InPlace::of(slot, self.shape.value_bytes_max)?;
            let seen = look(&value);
            let has_value = value.read.time != NO_TIME;
            value
                .is_whole()
                .then_some(has_value.then_some(seen).ok_or(Error::NoValue))
        })
        .and_then(|seen| seen)
    }

    #[inline]
    fn read_once(&self, slot: &[Line], value: &mut [u8]) -> Option<Result<SlotRead, Error>> {
        let found = InPlace::of(slot, self.shape.value_bytes_max)?;
        let read = found.read;
        let copied = read.value_bytes.min(value.len());
        found.copy(&mut value[..copied]);
        if !found.is_whole() {
            return None;
        }
        Some(if read.time == NO_TIME {
            Err(Error::NoValue)
        } else if copied < read.value_bytes {
            Err(Error::BufferTooSmall {
                needed_bytes: read.value_bytes,
                buffer_bytes: value.len(),
            })
        } else {
            Ok(read)
        })
    }
}

impl<M: AsRef<[Line]>> Table<M> {
    /// Fresh temporal objects at `now`. One pass over the table.
    pub fn fresh_count(&self, now: &Now) -> FreshCount {
        let mut count = FreshCount::default();
        let mut waits = 0;
        for id in (0..self.objects()).map(ObjectId) {
            let (avi_ms, temporal) = self.validity(id);
            if temporal {
                count.temporal += 1;
                count.fresh += u32::from(
                    self.age_ns(id, now, &mut waits)
                        .is_some_and(|age_ns| is_fresh(age_ns, avi_ms)),
                );
            }
        }
        count
    }

    /// Returns the age of an object's value at `now`; `None` if there is no value, none that can be read, or one of an
    /// unknown age.
    fn age_ns(&self, id: ObjectId, now: &Now, waits: &mut u32) -> Option<i64> {
        loop {
            let word = |at| self.slot_word(id, at);
            let before = word(SEQUENCE).load(Ordering::Acquire);
            let time_ns = word(TIMESTAMP).load(Ordering::Relaxed) as i64;
            let meta = word(META).load(Ordering::Relaxed);
            let arrival_ns = word(ARRIVAL).load(Ordering::Relaxed);
            let boot_tag = word(BOOT_TAG).load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if before & 1 == 0 && word(SEQUENCE).load(Ordering::Relaxed) == before {
                let node_time = meta & META_NODE_TIME != 0;
                let has_age = !(node_time && meta & META_RETAINED != 0);
                let time = Time::from_ns(time_ns);
                return (time_ns != NO_TIMESTAMP && has_age)
                    .then(|| now.age_ns(time, node_time, arrival_ns, boot_tag));
            }
            if *waits / SPINS_MAX >= NAPS_MAX {
                return None;
            }
            back_off(waits);
        }
    }
}

/// Tries until there is an answer, with at most `naps_max` naps.
fn within<R>(naps_max: u32, mut attempt: impl FnMut() -> Option<R>) -> Result<R, Error> {
    let mut waits = 0;
    loop {
        if let Some(answer) = attempt() {
            return Ok(answer);
        }
        if waits / SPINS_MAX >= naps_max {
            return Err(Error::Stalled);
        }
        back_off(&mut waits);
    }
}
