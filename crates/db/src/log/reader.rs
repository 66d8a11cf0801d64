//! Reads records back and skips damage.
//!
//! **Holds:** the fixed buffer, resynchronisation, the count of what was lost.
//!
//! **Invariants:** memory is one buffer for any file length. Every byte is decoded, skipped and counted, or part of a
//! torn tail. A damaged record costs nothing of the records around it.
//!
//! **Resynchronisation.** Where no record begins, the reader first tries the length at that place. If a record begins
//! right behind that length, only this damaged record is skipped: its body was hit. If whole records lead from inside
//! it to that place, its length was hit, and the first of them follows. If no record begins there, every following byte
//! is tried until a record's checksum fits. The checksums are sealed with the store's secret, so a value cannot hold
//! one that fits.

use std::ops::ControlFlow;

use crate::error::Error;
use crate::limits::FORMAT_VERSION;
use crate::store::{SegmentStore, StoreError};

use super::codec::{self, NoRecord, READING_BYTES_MIN, RECORD_BYTES_MAX, Record};
use super::seal::Seal;
use super::times::Context;

/// Bytes of the reading buffer: a few records of the longest kind.
pub const READ_BYTES: usize = 64 << 10;

/// Most pieces that a request asks for: more than the buffer holds.
const PIECES_MAX: u64 = READ_BYTES as u64;

/// Number of unreadable pieces in a row after which the device is considered dead.
const FAILURES_MAX: u32 = 8;

/// Damage that reading found, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Places where a record's checksum did not fit, each at least one record.
    pub records_damaged: u64,
    /// Pieces of files that the store could not read, or that are missing at a file's end.
    pub pieces_unreadable: u64,
    /// Bytes skipped for either reason.
    pub bytes_skipped: u64,
    /// Readings that are missing by the log's own numbering, for any reason. If the end of the log was damaged when it
    /// was opened, this counts the most that can have been there.
    pub readings_missing: u64,
    /// Files that ended inside a record: an append cut by power. Nothing acknowledged is in such a tail.
    pub tails_torn: u64,
    /// Files that could not be opened at all.
    pub files_unreadable: u64,
}

impl Damage {
    /// Whether anything but a torn tail was found.
    #[must_use]
    pub fn any(&self) -> bool {
        let counts = [
            self.records_damaged,
            self.pieces_unreadable,
            self.readings_missing,
            self.files_unreadable,
        ];
        counts.iter().any(|count| *count > 0)
    }

    /// Returns the number of places that cannot be read: records, pieces of files and whole files. Each may hide
    /// readings, also where [`readings_missing`](Self::readings_missing) counts none.
    #[must_use]
    pub fn places_unreadable(&self) -> u64 {
        self.records_damaged
            .saturating_add(self.pieces_unreadable)
            .saturating_add(self.files_unreadable)
    }
}

impl Damage {
    /// Adds the counts by which `now` exceeds `before`.
    pub(crate) fn add_since(&mut self, now: &Self, before: &Self) {
        self.records_damaged += now.records_damaged - before.records_damaged;
        self.pieces_unreadable += now.pieces_unreadable - before.pieces_unreadable;
        self.bytes_skipped += now.bytes_skipped - before.bytes_skipped;
        let missing = now.readings_missing - before.readings_missing;
        self.readings_missing = self.readings_missing.saturating_add(missing);
        self.tails_torn += now.tails_torn - before.tails_torn;
        self.files_unreadable += now.files_unreadable - before.files_unreadable;
    }
}

/// A record and its place.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// The record.
    pub record: Record<'a>,
    /// Its first byte in the file.
    pub offset: u64,
    /// For a reading: its number in the log. After damage it may be low until the next anchor.
    pub lsn: u64,
    /// For a reading: the boot in which it arrived.
    pub boot_id: [u8; 16],
}

/// How a file ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// With a whole record, or empty.
    Clean,
    /// Inside a record, or with damage: nothing should be appended here.
    Torn,
    /// The visitor stopped.
    Stopped,
}

/// Reads files record by record; keeps the context from file to file.
#[derive(Debug)]
pub struct Reader {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// File offset of `buffer[end]`.
    read_at: u64,
    length: u64,
    /// An unreadable piece begins at `read_at` and ends here.
    hole_end: Option<u64>,
    failures: u32,
    /// Most pieces of the store that the next request asks for.
    pieces_max: u64,
    context: Option<Context>,
    next_lsn: Option<u64>,
    /// Bytes lost since the last anchor: they may have held numbered readings.
    lost_bytes: u64,
    /// The segment in which the visitor stopped, and where. Its buffered bytes need not be read again, since a segment
    /// only grows.
    stopped: Option<(u32, u64)>,
    /// Damage found so far, in all files.
    pub damage: Damage,
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

impl Reader {
    /// A reader with its buffer.
    #[must_use]
    pub fn new() -> Self {
        Self {
            buffer: vec![0; READ_BYTES],
            start: 0,
            end: 0,
            read_at: 0,
            length: 0,
            hole_end: None,
            failures: 0,
            pieces_max: PIECES_MAX,
            context: None,
            next_lsn: None,
            lost_bytes: 0,
            stopped: None,
            damage: Damage::default(),
        }
    }

    /// Returns where the next record begins, after a read that was stopped; otherwise the end of what was read.
    pub(crate) fn position(&self) -> u64 {
        self.read_at - (self.end - self.start) as u64
    }

    /// Number of the reading that follows the last one found, if any anchor was seen.
    #[must_use]
    pub fn next_lsn(&self) -> Option<u64> {
        self.next_lsn
    }

    /// Returns a number that no reading has had: [`next_lsn`](Self::next_lsn) plus the most readings that the bytes
    /// lost since the last anchor can have held. Torn tails do not count as lost: nothing in them was acknowledged.
    #[must_use]
    pub fn unused_lsn(&self) -> u64 {
        let readings_max = self.lost_bytes / READING_BYTES_MIN as u64;
        self.next_lsn.unwrap_or(0).saturating_add(readings_max)
    }

    /// Counts bytes of log that are gone without having been read.
    pub(crate) fn lose(&mut self, bytes: u64) {
        self.lost_bytes = self.lost_bytes.saturating_add(bytes);
    }

    fn skip(&mut self, bytes: u64) {
        self.damage.bytes_skipped = self.damage.bytes_skipped.saturating_add(bytes);
        self.lose(bytes);
    }

    /// Sets the number of the next reading, when a checkpoint knows it.
    pub fn expect_lsn(&mut self, lsn: u64) {
        self.next_lsn = Some(lsn);
    }

    /// Reads one file from `offset` to its end.
    ///
    /// # Errors
    /// What the visitor returns; [`Error::Store`] when the device is gone; [`Error::Version`] for a file that a
    /// later version wrote.
    pub fn read<S: SegmentStore>(
        &mut self,
        store: &mut S,
        file: S::File,
        offset: u64,
        visit: &mut dyn FnMut(&Found<'_>) -> Result<ControlFlow<()>, Error>,
    ) -> Result<Tail, Error> {
        self.stopped = None;
        self.length = store.length(file)?;
        (self.start, self.end, self.read_at, self.hole_end) = (0, 0, offset.min(self.length), None);
        self.read_on(store, file, visit)
    }

    /// Reads the segment `number` from `offset` to its end: as [`read`](Self::read), but continues with the buffered
    /// bytes if the visitor stopped there.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn read_segment<S: SegmentStore>(
        &mut self,
        store: &mut S,
        (number, file): (u32, S::File),
        offset: u64,
        visit: &mut dyn FnMut(&Found<'_>) -> Result<ControlFlow<()>, Error>,
    ) -> Result<Tail, Error> {
        let tail = if self.stopped.take() == Some((number, offset)) {
            self.length = store.length(file)?;
            self.read_on(store, file, visit)?
        } else {
            self.read(store, file, offset, visit)?
        };
        if tail == Tail::Stopped {
            self.stopped = Some((number, self.position()));
        }
        Ok(tail)
    }

    fn read_on<S: SegmentStore>(
        &mut self,
        store: &mut S,
        file: S::File,
        visit: &mut dyn FnMut(&Found<'_>) -> Result<ControlFlow<()>, Error>,
    ) -> Result<Tail, Error> {
        let seal = Seal::of(store.secret());
        // Set while the bytes ahead belong to damage that has already been counted.
        let mut counted = false;
        let mut tail = Tail::Clean;
        loop {
            if self.end - self.start < 2 * RECORD_BYTES_MAX {
                self.fill(store, file)?;
            }
            let last = self.hole_end.is_some() || self.read_at >= self.length;
            if self.start == self.end {
                let Some(hole_end) = self.hole_end.take() else {
                    return Ok(tail);
                };
                self.damage.pieces_unreadable += 1;
                self.skip(hole_end.min(self.length) - self.read_at);
                self.read_at = hole_end.min(self.length);
                (counted, tail) = (true, Tail::Torn);
                continue;
            }
            let window = &self.buffer[self.start..self.end];
            match codec::decode(window, seal, self.context.as_ref()) {
                Ok((record, bytes)) => {
                    let offset = self.read_at - window.len() as u64;
                    let mut found = Found {
                        record,
                        offset,
                        lsn: 0,
                        boot_id: [0; 16],
                    };
                    match &record {
                        Record::Segment { version, .. } | Record::Checkpoint { version, .. }
                            if offset == 0 && *version > FORMAT_VERSION =>
                        {
                            return Err(Error::Version { found: *version });
                        }
                        Record::Anchor(anchor) => {
                            let expected = self.next_lsn.unwrap_or(anchor.lsn);
                            let missing = anchor.lsn.saturating_sub(expected);
                            let counted = &mut self.damage.readings_missing;
                            *counted = counted.saturating_add(missing);
                            self.next_lsn = Some(anchor.lsn);
                            self.context = Some(Context::of(seal, anchor));
                            self.lost_bytes = 0;
                        }
                        Record::Reading(_) => {
                            found.lsn = self.next_lsn.unwrap_or(0);
                            found.boot_id = self.context.map_or([0; 16], |context| context.boot_id);
                            self.next_lsn = Some(found.lsn.saturating_add(1));
                        }
                        _ => {}
                    }
                    let flow = visit(&found)?;
                    self.start += bytes;
                    (counted, tail) = (false, Tail::Clean);
                    if flow.is_break() {
                        return Ok(Tail::Stopped);
                    }
                }
                Err(why) => {
                    let at_end = last && self.hole_end.is_none();
                    let window_bytes = window.len();
                    match resynchronise(window, seal, self.context.as_ref(), last, at_end) {
                        Some(skip) => {
                            self.damage.records_damaged += u64::from(!counted);
                            self.skip(skip as u64);
                            self.start += skip;
                            (counted, tail) = (true, Tail::Torn);
                        }
                        None if last => {
                            if at_end && why == NoRecord::Short && !counted {
                                self.damage.tails_torn += 1;
                            } else {
                                self.damage.records_damaged += u64::from(!counted);
                                self.skip(window_bytes as u64);
                            }
                            self.start = self.end;
                            (counted, tail) = (true, Tail::Torn);
                        }
                        None => {
                            let skip = window_bytes - RECORD_BYTES_MAX;
                            self.damage.records_damaged += u64::from(!counted);
                            self.skip(skip as u64);
                            self.start += skip;
                            counted = true;
                        }
                    }
                }
            }
        }
    }

    /// Moves the rest to the front and reads until the buffer is full, the file ends or a piece cannot be read.
    ///
    /// A store may read the whole request before it reports damage in it. It may report only the last damaged piece, or
    /// one that stands for all. So the request is halved where a shorter request fails again, and doubled where one
    /// succeeds.
    fn fill<S: SegmentStore>(&mut self, store: &mut S, file: S::File) -> Result<(), StoreError> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let piece = store.payload_bytes().max(1);
        let mut has_failed = false;
        while self.end < self.buffer.len() && self.hole_end.is_none() && self.read_at < self.length
        {
            let room = (self.buffer.len() - self.end) as u64;
            let first = self.read_at / piece;
            let piece_end = (first + 1) * piece;
            let asked_end = piece_end + (self.pieces_max - 1) * piece;
            let end = asked_end.min(self.length).min(self.read_at + room);
            let want = (end - self.read_at) as usize;
            let is_more = end > piece_end;
            match store.read(
                file,
                self.read_at,
                &mut self.buffer[self.end..self.end + want],
            ) {
                Ok(0) => {
                    // The file is shorter than its length said: the missing part is lost.
                    self.hole_end = Some(self.length);
                }
                Ok(count) => {
                    self.end += count;
                    self.read_at += count as u64;
                    (self.failures, has_failed) = (0, false);
                    self.pieces_max = (2 * self.pieces_max).min(PIECES_MAX);
                }
                Err(StoreError::Damaged { offset }) if is_more && offset >= piece_end => {
                    let (pieces, good) = ((end - 1) / piece - first + 1, offset / piece - first);
                    let is_believed = !has_failed && good + 1 < pieces;
                    self.pieces_max = if is_believed {
                        good
                    } else {
                        good.min(pieces / 2)
                    };
                    has_failed = true;
                }
                Err(StoreError::Failed { .. }) if is_more => self.pieces_max = 1,
                Err(StoreError::Damaged { .. }) => self.lose_piece(piece_end),
                Err(error) => {
                    self.failures += 1;
                    if self.failures >= FAILURES_MAX {
                        return Err(error);
                    }
                    self.lose_piece(piece_end);
                }
            }
        }
        Ok(())
    }

    /// Gives up the bytes ahead up to `piece_end`: they cannot be read, and the bytes behind may be no better.
    fn lose_piece(&mut self, piece_end: u64) {
        self.hole_end = Some(piece_end);
        self.pieces_max = 1;
    }
}

/// Bytes to skip until a record begins; `None` when none does in this window.
fn resynchronise(
    window: &[u8],
    seal: Seal,
    context: Option<&Context>,
    last: bool,
    at_end: bool,
) -> Option<usize> {
    if let Some(claimed) = codec::claimed_bytes(window)
        && claimed <= window.len()
        && ((at_end && claimed == window.len())
            || codec::decode(&window[claimed..], seal, context).is_ok())
    {
        // If the length was hit and happens to lead to a later record, the records before that one lead there too.
        let body = &window[..claimed];
        return (1..claimed)
            .find(|at| leads_to_end(&body[*at..], seal, context))
            .or(Some(claimed));
    }
    // Leave a record that may reach beyond the window for the next window.
    let end = if last {
        window.len()
    } else {
        window.len() - RECORD_BYTES_MAX
    };
    (1..end).find(|at| codec::decode(&window[*at..], seal, context).is_ok())
}

/// Whether records without a gap fill this input.
fn leads_to_end(mut input: &[u8], seal: Seal, context: Option<&Context>) -> bool {
    let mut context = context.copied();
    while !input.is_empty() {
        let Ok((record, bytes)) = codec::decode(input, seal, context.as_ref()) else {
            return false;
        };
        if let Record::Anchor(anchor) = &record {
            context = Some(Context::of(seal, anchor));
        }
        input = &input[bytes..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::codec::{Dictionary, Reading, others, put_anchor, put_dictionary, put_reading};
    use crate::log::times::{Anchor, Form};
    use crate::store::MemoryStore;
    use crate::time::Time;

    fn seal() -> Seal {
        Seal::of(MemoryStore::new().secret())
    }

    fn read(store: &mut MemoryStore) -> (Vec<u64>, Tail, Damage) {
        let mut lsns = Vec::new();
        let mut reader = Reader::new();
        let file = store.open("f").unwrap();
        let tail = reader.read(store, file, 0, &mut |found| {
            if let Record::Reading(_) = found.record {
                lsns.push(found.lsn);
            }
            Ok(ControlFlow::Continue(()))
        });
        (lsns, tail.unwrap(), reader.damage)
    }

    /// Makes a file of an earlier format with the readings 10 to 29. Each has a value of 30 bytes. An anchor stands
    /// before every tenth.
    fn file() -> (MemoryStore, Vec<usize>) {
        let (mut out, mut places) = (Vec::new(), Vec::new());
        let mut context = None;
        for lsn in 10..30u64 {
            let (arrival_us, sensor_ms) = (lsn * 1000, lsn as i64);
            if lsn % 10 == 0 {
                let anchor = Anchor {
                    boot_id: [1; 16],
                    arrival_us,
                    sensor: Time::from_ms(sensor_ms),
                    wall: Time::from_ms(0),
                    wall_trusted: false,
                    is_older_store: true,
                    lsn,
                };
                others::put_anchor_ms(&mut out, seal(), &anchor);
                context = Some(Context::of(seal(), &anchor));
            }
            places.push(out.len());
            let reading = Reading {
                id: 0,
                time: Time::from_ms(sensor_ms),
                arrival_us,
                wall_trusted: false,
                node_time: false,
                retained: false,
                value: &[lsn as u8; 30],
            };
            put_reading(&mut out, &reading, &context.unwrap(), Form::Ms);
        }
        let mut store = MemoryStore::new();
        *store.file_mut("f") = out;
        (store, places)
    }

    /// Makes a file of 30 readings of every form of format 3, with an anchor before every fifth, the first one twice.
    /// Returns it with the anchors' places and the readings' times.
    fn file_of_format_3() -> (Vec<u8>, Vec<usize>, Vec<Time>) {
        let (mut out, mut anchors, mut times) = (Vec::new(), Vec::new(), Vec::new());
        let mut context = None;
        for n in 0..30i64 {
            let arrival_us = 5_000_000 + n * 1_000;
            let offset_us = 1_700_000_000_000_000;
            let ns = 1_700_000_000_123_456_789 + n * 100_000_001;
            if n % 5 == 0 {
                let anchor = Anchor {
                    boot_id: [1; 16],
                    arrival_us: arrival_us as u64,
                    sensor: Time::from_ns(ns),
                    wall: Time::from_ns((offset_us + arrival_us) * 1000 + 999),
                    wall_trusted: true,
                    is_older_store: false,
                    lsn: n as u64,
                };
                let copies = if n == 0 { 2 } else { 1 };
                for _ in 0..copies {
                    anchors.push(out.len());
                    put_anchor(&mut out, seal(), &anchor);
                }
                context = Some(Context::of(seal(), &anchor));
            }
            let (form, ns) = match n % 5 {
                0 => (Form::Us, ns / 1000 * 1000),
                1 => (Form::Ns, ns),
                2 => (Form::WholeNs, ns),
                3 => (Form::Offset, (offset_us + arrival_us + n) * 1000),
                _ => (Form::WholeNs, ns + 1),
            };
            let reading = Reading {
                id: 0,
                time: Time::from_ns(ns),
                arrival_us: arrival_us as u64,
                wall_trusted: true,
                node_time: n % 5 >= 3,
                retained: n % 2 == 0,
                value: &[n as u8; 30],
            };
            put_reading(&mut out, &reading, &context.expect("an anchor"), form);
            times.push(reading.time);
        }
        (out, anchors, times)
    }

    #[test]
    fn readings_of_format_3_keep_their_times_when_any_anchor_is_lost() {
        let (file, anchors, times) = file_of_format_3();
        for lost in anchors.into_iter().map(Some).chain([None]) {
            let mut store = MemoryStore::new();
            *store.file_mut("f") = file.clone();
            if let Some(at) = lost {
                store.file_mut("f")[at + 20] ^= 1;
            }
            let (mut reader, mut found) = (Reader::new(), Vec::new());
            let open = store.open("f").unwrap();
            let tail = reader.read(&mut store, open, 0, &mut |record| {
                if let Record::Reading(reading) = record.record {
                    assert_eq!(record.lsn, found.len() as u64);
                    found.push(reading.time);
                }
                Ok(ControlFlow::Continue(()))
            });
            assert_eq!((tail, &found), (Ok(Tail::Clean), &times), "{lost:?}");
            let damage = reader.damage;
            assert_eq!(
                (damage.records_damaged, damage.readings_missing),
                (u64::from(lost.is_some()), 0)
            );
        }
    }

    #[test]
    fn a_whole_file_ends_clean() {
        let (mut store, _) = file();
        assert_eq!(
            read(&mut store),
            ((10..30).collect(), Tail::Clean, Damage::default())
        );
    }

    #[test]
    fn two_neighbours_damaged_are_one_place_and_two_missing() {
        let (mut store, places) = file();
        store.file_mut("f")[places[3] + 9] ^= 1;
        store.file_mut("f")[places[4] + 9] ^= 1;
        let (lsns, tail, damage) = read(&mut store);
        assert_eq!((lsns.len(), tail), (18, Tail::Clean));
        assert_eq!(
            (
                damage.records_damaged,
                damage.readings_missing,
                damage.tails_torn
            ),
            (1, 2, 0)
        );
        // Numbers are right again after the next anchor, and nothing stays unknown.
        assert_eq!(lsns[8..], (20..30).collect::<Vec<_>>());
    }

    #[test]
    fn no_number_of_an_anchor_makes_the_counts_overflow() {
        let mut out = Vec::new();
        for lsn in [0, u64::MAX, 0, u64::MAX] {
            let anchor = Anchor {
                boot_id: [1; 16],
                arrival_us: 0,
                sensor: Time::from_ms(0),
                wall: Time::from_ms(0),
                wall_trusted: false,
                is_older_store: false,
                lsn,
            };
            put_anchor(&mut out, seal(), &anchor);
        }
        let mut store = MemoryStore::new();
        *store.file_mut("f") = out;
        let (lsns, tail, damage) = read(&mut store);
        assert_eq!((lsns.len(), tail), (0, Tail::Clean));
        assert_eq!(damage.readings_missing, u64::MAX);
        let mut sum = damage;
        sum.add_since(&damage, &Damage::default());
        assert_eq!(sum.readings_missing, u64::MAX);
    }

    #[test]
    fn readings_lost_behind_the_last_anchor_keep_their_numbers() {
        let (mut store, places) = file();
        for at in [12, 13, 19] {
            store.file_mut("f")[places[at] + 9] ^= 1;
        }
        let mut reader = Reader::new();
        let file = store.open("f").unwrap();
        let read = reader.read(&mut store, file, 0, &mut |_| Ok(ControlFlow::Continue(())));
        assert_eq!((read, reader.next_lsn()), (Ok(Tail::Torn), Some(27)));
        // 30 was never given; each of the three lost records has room for three of the shortest.
        assert_eq!(reader.unused_lsn(), 36);
    }

    #[test]
    fn every_cut_is_a_torn_tail_and_no_damage() {
        let (store, places) = file();
        let whole = store.file("f").unwrap().len();
        for length in (places[18] + 1..whole).rev() {
            let (mut store, _) = file();
            store.file_mut("f").truncate(length);
            let (lsns, tail, damage) = read(&mut store);
            let kept = places.iter().filter(|place| **place < length).count() - 1;
            if length == places[19] {
                assert_eq!((lsns.len(), tail), (kept + 1, Tail::Clean));
            } else {
                assert_eq!(
                    (lsns.len(), tail, damage.tails_torn),
                    (kept, Tail::Torn, 1),
                    "{length}"
                );
            }
            assert!(!damage.any());
        }
    }

    #[test]
    fn a_dead_device_is_an_error_not_an_empty_log() {
        let (mut store, _) = file();
        let open = store.open("f").unwrap();
        store.kill();
        let read = Reader::new().read(&mut store, open, 0, &mut |_| Ok(ControlFlow::Continue(())));
        assert!(matches!(read, Err(Error::Store(_))));
    }

    #[test]
    fn a_hit_length_that_leads_to_a_later_record_costs_one_record() {
        let mut out = Vec::new();
        for id in 0..9 {
            put_dictionary(
                &mut out,
                seal(),
                &Dictionary {
                    id,
                    key: "key",
                    avi_ms: 1,
                    temporal: false,
                },
            );
        }
        let bytes = out.len() / 9;
        // The claimed length now leads over three records.
        out[bytes + 1] += 2 * bytes as u8;
        assert_eq!(
            resynchronise(&out[bytes..], seal(), None, true, true),
            Some(bytes)
        );
    }
}
