//! Keys: the pool that holds their text, the index that finds them, the ids that they have.
//!
//! A key takes whole units of 16 bytes of the pool, one behind the other. Its place is part of the slot's validity word
//! (SPEC.md, "Slot words"): one atomic word, so that no reader meets half of a place.
//!
//! **Invariants:** units are given upwards and never given back, and a slot that has a key keeps its place. The text is
//! stored before its place, the place before the index entry and, for a new id, before the count of ids. Each of these
//! three stores is a release. So a reader in any process that loads the place with acquire sees the whole text. A
//! reader that meets the index entry or the new id also meets the place. No reader trusts a place: it counts only if
//! all of its units lie in the pool.

use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};

use base::seeded_bug::SeededBug;

use super::{
    HEADER_LINES, Line, NO_TIMESTAMP, OBJECTS_NEXT, TIMESTAMP, Table, UNITS_GIVEN, VALIDITY,
    WORDS_PER_LINE,
};
use crate::error::Error;
use crate::limits::KEY_BYTES_MAX;
use crate::options::ObjectId;

const UNIT_BYTES: usize = 16;
const UNIT_WORDS: usize = UNIT_BYTES / 8;
pub(super) const UNITS_PER_LINE: usize = WORDS_PER_LINE / UNIT_WORDS;
/// Most units of a pool: the field for the first unit of a key has 26 bits.
const UNITS_MAX: usize = 1 << 26;
/// Most lines of a pool.
pub(super) const POOL_LINES_MAX: usize = UNITS_MAX / UNITS_PER_LINE;
/// Units of the longest key.
const KEY_UNITS_MAX: usize = KEY_BYTES_MAX.div_ceil(UNIT_BYTES);
/// A key is padded to whole units with a byte that UTF-8 never uses, so its length needs no field.
const KEY_PAD: u8 = 0xff;

// The validity word: avi in its low half, then the place of the key.
const FIRST_SHIFT: u32 = 32;
const FIRST_MASK: u64 = UNITS_MAX as u64 - 1;
const COUNT_SHIFT: u32 = 58;
const COUNT_MASK: u64 = 0xf;
const HAS_KEY: u64 = 1 << 62;
const TEMPORAL: u64 = 1 << 63;
/// Bits of the place.
const PLACE: u64 = !(TEMPORAL | u32::MAX as u64);
/// The place of a slot without a key. It is not zero, so that emptied memory is told from it.
const NO_KEY: u64 = PLACE & !HAS_KEY;

const _: () = assert!(KEY_UNITS_MAX as u64 <= COUNT_MASK + 1);

/// A key copied out of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    bytes: [u8; KEY_UNITS_MAX * UNIT_BYTES],
    length: usize,
}

impl Key {
    const EMPTY: Self = Self {
        bytes: [KEY_PAD; KEY_UNITS_MAX * UNIT_BYTES],
        length: 0,
    };

    /// The key's text; empty for a slot whose key was lost to damage.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or("")
    }
}

/// A key in the form that the pool holds.
pub(super) struct Packed {
    words: [u64; KEY_UNITS_MAX * UNIT_WORDS],
    units: usize,
}

impl Packed {
    pub(super) fn of(key: &str) -> Result<Self, Error> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(Error::KeyInvalid { bytes: key.len() });
        }
        let key = match SeededBug::KeyCutAt64.is_on() {
            true => key.get(..64).unwrap_or(key),
            false => key,
        };
        let mut words = [u64::MAX; KEY_UNITS_MAX * UNIT_WORDS];
        for (word, chunk) in words.iter_mut().zip(key.as_bytes().chunks(8)) {
            let mut bytes = [KEY_PAD; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(bytes);
        }
        let units = key.len().div_ceil(UNIT_BYTES);
        Ok(Self { words, units })
    }

    /// The words of its units, with the padding of the last one.
    fn words(&self) -> &[u64] {
        &self.words[..self.units * UNIT_WORDS]
    }

    /// The words that tell it from others. The padding is one of them: without it a key would equal a longer one.
    fn telling_words(&self) -> &[u64] {
        if SeededBug::KeyTailIgnored.is_on() {
            return &self.words[..UNIT_WORDS];
        }
        self.words()
    }
}

/// Where the pool holds a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    first: usize,
    units: usize,
}

impl Place {
    /// The place in a validity word; `None` if there is none in a pool of `pool_units`, for any word.
    fn of(word: u64, pool_units: usize) -> Option<Self> {
        let place = Self {
            first: (word >> FIRST_SHIFT & FIRST_MASK) as usize,
            units: (word >> COUNT_SHIFT & COUNT_MASK) as usize + 1,
        };
        let is_key = word & HAS_KEY != 0
            && place.units <= KEY_UNITS_MAX
            && place.first + place.units <= pool_units;
        is_key.then_some(place)
    }

    fn bits(self) -> u64 {
        HAS_KEY | (self.first as u64) << FIRST_SHIFT | (self.units as u64 - 1) << COUNT_SHIFT
    }
}

/// Avi and temporal mark as the validity word has them.
fn marks(avi_ms: u32, temporal: bool) -> u64 {
    u64::from(avi_ms) | if temporal { TEMPORAL } else { 0 }
}

impl<M: AsRef<[Line]>> Table<M> {
    /// Ids given so far; ids are `0..objects()`.
    pub fn objects(&self) -> u32 {
        (self.word(0, OBJECTS_NEXT).load(Ordering::Acquire) as u32).min(self.objects_max())
    }

    /// Bytes of the pool that keys take: each one has whole units.
    pub fn keys_bytes(&self) -> u64 {
        self.units_given() as u64 * UNIT_BYTES as u64
    }

    /// Bytes of the pool.
    pub fn keys_bytes_max(&self) -> u64 {
        (self.shape.pool_units() * UNIT_BYTES) as u64
    }

    /// The object with this key.
    pub fn lookup(&self, key: &str) -> Option<ObjectId> {
        self.probe(&Packed::of(key).ok()?).ok()
    }

    /// Finds or makes the object with this key and sets its validity. `true` when anything changed.
    ///
    /// # Errors
    /// [`Error::KeyInvalid`], [`Error::TableFull`], [`Error::KeysFull`]; [`Error::RegionInvalid`] if another process
    /// has overwritten the memory: an id would be given a second time.
    pub fn insert(
        &self,
        key: &str,
        avi_ms: u32,
        temporal: bool,
    ) -> Result<(ObjectId, bool), Error> {
        let key = Packed::of(key)?;
        let _guard = self.lock_inserts();
        match self.probe(&key) {
            Ok(id) => Ok((id, self.mark(id, marks(avi_ms, temporal)))),
            Err(_) if !self.is_intact() => Err(Error::RegionInvalid {
                reason: "its memory was written over",
            }),
            Err(entry) => {
                let id = self.name_slot(self.objects(), &key, marks(avi_ms, temporal), entry)?;
                Ok((id, true))
            }
        }
    }

    /// Gives a key the id that it had before a restart. `false` when the id has another key.
    ///
    /// # Errors
    /// [`Error::KeyInvalid`]; [`Error::TableTooSmall`] for an id beyond the table, or a key beyond its pool.
    pub fn restore(
        &self,
        id: ObjectId,
        key: &str,
        avi_ms: u32,
        temporal: bool,
    ) -> Result<bool, Error> {
        let key = Packed::of(key)?;
        self.reserve(id)?;
        let _guard = self.lock_inserts();
        match self.probe(&key) {
            Ok(known) if known == id => {
                self.mark(id, marks(avi_ms, temporal));
            }
            Ok(_) => return Ok(false),
            Err(_) if self.place(id).is_some() => return Ok(false),
            Err(entry) => {
                let named = self.name_slot(id.0, &key, marks(avi_ms, temporal), entry);
                named.map_err(|error| match error {
                    Error::KeysFull { key_bytes_mean } => {
                        // For the keys up to this one. How many follow, and how long they are, is not known here.
                        let bytes = (self.units_given() + key.units) * UNIT_BYTES;
                        Error::TableTooSmall {
                            what: "key_bytes_mean",
                            needed: (bytes as u64).div_ceil(u64::from(self.objects_max())),
                            configured: u64::from(key_bytes_mean),
                        }
                    }
                    other => other,
                })?;
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
        let _guard = self.lock_inserts();
        for next in self.objects()..=id.0 {
            self.clear_slot(next);
            self.give(next);
        }
        Ok(())
    }

    fn lock_inserts(&self) -> MutexGuard<'_, ()> {
        self.insert_lock
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    fn clear_slot(&self, id: u32) {
        self.slot_word(ObjectId(id), TIMESTAMP)
            .store(NO_TIMESTAMP as u64, Ordering::Relaxed);
        self.slot_word(ObjectId(id), VALIDITY)
            .store(NO_KEY, Ordering::Relaxed);
    }

    /// Counts this id as given, and all before it.
    fn give(&self, id: u32) {
        self.word(0, OBJECTS_NEXT)
            .store(u64::from(id) + 1, Ordering::Release);
        self.given.fetch_max(id + 1, Ordering::Release);
    }

    /// Sets what the validity word holds besides the place of the key. Returns whether it was different. For the
    /// holder of the lock.
    fn mark(&self, id: ObjectId, marks: u64) -> bool {
        let word = self.slot_word(id, VALIDITY);
        let before = word.load(Ordering::Relaxed);
        let after = before & PLACE | marks;
        // A reader that loads this word instead of the one before it must see the key as well.
        word.store(after, Ordering::Release);
        after != before
    }

    /// Units given so far, as this handle has counted them: the count in the memory may be overwritten.
    fn units_given(&self) -> usize {
        self.units.load(Ordering::Relaxed) as usize
    }

    /// Stores the key's text, then its place with the marks. Then it gives the id, and stores its index entry last. So
    /// a reader that meets the object sees it whole.
    fn name_slot(
        &self,
        id: u32,
        key: &Packed,
        marks: u64,
        entry: usize,
    ) -> Result<ObjectId, Error> {
        if id >= self.objects_max() {
            return Err(Error::TableFull {
                objects_max: self.objects_max(),
            });
        }
        let place = Place {
            first: self.units_given(),
            units: key.units,
        };
        let units = place.first + place.units;
        if units > self.shape.pool_units() {
            return Err(Error::KeysFull {
                key_bytes_mean: self.shape.key_bytes_mean,
            });
        }
        let given = self.objects();
        if id >= given {
            self.clear_slot(id);
        }
        for (at, word) in key.words().iter().enumerate() {
            self.pool_word(place, at).store(*word, Ordering::Relaxed);
        }
        // The count in the memory first: it must never look smaller than that of this handle.
        self.word(0, UNITS_GIVEN)
            .store(units as u64, Ordering::Release);
        self.units.store(units as u32, Ordering::Release);
        self.slot_word(ObjectId(id), VALIDITY)
            .store(marks | place.bits(), Ordering::Release);
        if id >= given {
            self.give(id);
        }
        let tag = self.hash(key) & !u64::from(u32::MAX);
        self.word(HEADER_LINES, entry)
            .store(tag | (u64::from(id) + 1), Ordering::Release);
        Ok(ObjectId(id))
    }

    /// Whether the counts of ids and units are still those that this handle has reached, or greater.
    pub(super) fn has_its_counts(&self) -> bool {
        // Load these before the counts in the memory: a key made between the two must not look lost.
        let given = self.given.load(Ordering::Acquire);
        let units = u64::from(self.units.load(Ordering::Acquire));
        self.objects() >= given && self.word(0, UNITS_GIVEN).load(Ordering::Relaxed) >= units
    }

    /// The key of an id, empty when it has none; `None` for what no table holds: the memory was emptied or overwritten.
    pub(crate) fn sane_key(&self, id: ObjectId) -> Option<Key> {
        if id.0 >= self.objects() {
            return Some(Key::EMPTY);
        }
        let word = self.slot_word(id, VALIDITY).load(Ordering::Acquire);
        if word & PLACE == NO_KEY {
            return Some(Key::EMPTY);
        }
        let place = Place::of(word, self.shape.pool_units())?;
        let key = self.key_at(place);
        let (text, rest) = key.bytes[..place.units * UNIT_BYTES].split_at(key.length);
        let is_sane = key.length.div_ceil(UNIT_BYTES) == place.units
            && rest.iter().all(|byte| *byte == KEY_PAD)
            && std::str::from_utf8(text).is_ok_and(|text| !text.contains('\0'));
        is_sane.then_some(key)
    }

    /// The key of an id; empty when it has none.
    pub fn key(&self, id: ObjectId) -> Key {
        let place = (id.0 < self.objects()).then(|| self.place(id)).flatten();
        place.map_or(Key::EMPTY, |place| self.key_at(place))
    }

    /// Bytes of the pool that the key of an id takes: at least as many as the key has. 0 without a key.
    pub(crate) fn key_bytes(&self, id: ObjectId) -> usize {
        let place = (id.0 < self.objects()).then(|| self.place(id)).flatten();
        place.map_or(0, |place| place.units * UNIT_BYTES)
    }

    fn key_at(&self, place: Place) -> Key {
        let mut key = Key::EMPTY;
        let units = &mut key.bytes[..place.units * UNIT_BYTES];
        for (at, chunk) in units.chunks_exact_mut(8).enumerate() {
            let word = self.pool_word(place, at).load(Ordering::Relaxed);
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        let end = units.iter().position(|byte| *byte == KEY_PAD);
        let length = end.unwrap_or(units.len());
        // No key is that long: the memory was overwritten.
        key.length = if length > KEY_BYTES_MAX { 0 } else { length };
        key
    }

    /// Validity interval in ms of an id, and whether it is temporal.
    pub fn validity(&self, id: ObjectId) -> (u32, bool) {
        let word = if id.0 < self.objects() {
            self.slot_word(id, VALIDITY).load(Ordering::Relaxed)
        } else {
            0
        };
        (word as u32, word & TEMPORAL != 0)
    }

    /// Returns the index entry's object, or the free entry where the key would go.
    fn probe(&self, key: &Packed) -> Result<ObjectId, usize> {
        let hash = self.hash(key);
        let mask = self.shape.index_entries - 1;
        let mut at = hash as usize & mask;
        // Bounded although an entry is always free: the memory may be shared with a faulty process.
        for _ in 0..self.shape.index_entries {
            let entry = self.word(HEADER_LINES, at).load(Ordering::Acquire);
            if entry == 0 {
                return Err(at);
            }
            let id = ObjectId((entry as u32).wrapping_sub(1));
            if entry >> 32 == hash >> 32 && id.0 < self.objects_max() && self.has_key(id, key) {
                return Ok(id);
            }
            at = (at + 1) & mask;
        }
        Err(at)
    }

    /// Whether a slot has this key. For ids below `objects_max`, given or not.
    fn has_key(&self, id: ObjectId, key: &Packed) -> bool {
        let place = self.place(id).filter(|place| place.units == key.units);
        place.is_some_and(|place| {
            let mut words = key.telling_words().iter().enumerate();
            words.all(|(at, word)| self.pool_word(place, at).load(Ordering::Relaxed) == *word)
        })
    }

    /// Where the key of a slot is. For ids below `objects_max`, given or not.
    fn place(&self, id: ObjectId) -> Option<Place> {
        let word = self.slot_word(id, VALIDITY).load(Ordering::Acquire);
        Place::of(word, self.shape.pool_units())
    }

    /// A word of a key. The place must lie in the pool, and `at` in its units.
    fn pool_word(&self, place: Place, at: usize) -> &AtomicU64 {
        self.word(self.shape.pool_at, place.first * UNIT_WORDS + at)
    }

    pub(super) fn hash(&self, key: &Packed) -> u64 {
        let mut hash = self.hash_seed;
        let words = key.telling_words().iter();
        for word in words.take_while(|word| **word != u64::MAX) {
            let product = u128::from(hash ^ word) * u128::from(0x9e37_79b9_7f4a_7c15_u64);
            hash = (product >> 64) as u64 ^ product as u64;
        }
        hash ^ hash >> 29
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::KEY_BYTES_MEAN_MAX;
    use crate::options::TableSize;
    use crate::table::TableMemory;
    use proptest::prelude::*;

    /// Its units have room for one byte more than a key may have, and a record has one byte for the length.
    #[test]
    fn a_text_that_is_longer_than_any_key_is_none() {
        let size = TableSize {
            objects_max: 1,
            value_bytes_max: 8,
            key_bytes_mean: KEY_BYTES_MEAN_MAX,
        };
        let lines = Table::lines_needed(size).unwrap();
        let table = Table::create_in(TableMemory::own(lines), size, 1).unwrap();
        let longest = "k".repeat(KEY_BYTES_MAX);
        let (id, _) = table.insert(&longest, 1, true).unwrap();
        let key = table.sane_key(id).unwrap();
        assert_eq!((key.as_str(), key), (&*longest, table.key(id)));
        let last = table.pool_word(table.place(id).unwrap(), KEY_UNITS_MAX * UNIT_WORDS - 1);
        last.store(u64::from_le_bytes([b'k'; 8]), Ordering::Relaxed);
        assert_eq!((table.key(id).as_str(), table.sane_key(id)), ("", None));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

        #[test]
        fn no_word_is_a_place_outside_of_its_pool(drawn: u64, units in 0..=UNITS_MAX, near in 0..40_usize) {
            // Any place, and one near the end of the pool.
            let first = (units as u64 + 20).saturating_sub(near as u64) & FIRST_MASK;
            let close = drawn & !(FIRST_MASK << FIRST_SHIFT) | first << FIRST_SHIFT;
            for word in [drawn, drawn | HAS_KEY, close | HAS_KEY, u64::MAX, NO_KEY, 0] {
                if let Some(place) = Place::of(word, units) {
                    prop_assert!(place.first + place.units <= units, "{:x}", word);
                    prop_assert!((1..=KEY_UNITS_MAX).contains(&place.units));
                    prop_assert_eq!(place.bits(), word & PLACE);
                }
            }
            prop_assert_eq!((Place::of(NO_KEY, units), Place::of(0, units)), (None, None));
        }

        #[test]
        fn a_place_comes_back_beside_any_marks(
            first in 0..=UNITS_MAX - KEY_UNITS_MAX,
            units in 1..=KEY_UNITS_MAX,
            avi_ms: u32,
            temporal: bool,
        ) {
            let place = Place { first, units };
            let word = place.bits() | marks(avi_ms, temporal);
            prop_assert_eq!(word & !PLACE, marks(avi_ms, temporal));
            prop_assert_eq!(word as u32, avi_ms);
            prop_assert_eq!(Place::of(word, UNITS_MAX), Some(place));
            // The last unit must lie in the pool, too.
            prop_assert_eq!(Place::of(word, first + units), Some(place));
            prop_assert_eq!(Place::of(word, first + units - 1), None);
        }
    }
}
