//! Turns waiting entries into records, and appends them to the log's segments.
//!
//! **Invariants:** memory is one staging buffer. A reading is announced as durable only after the append that holds it
//! has returned. Every segment can be read without any other: it begins with its own anchors, and names each object
//! before that object's first reading.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use base::clock::Clock;
use base::seeded_bug::SeededBug;

use crate::error::LogFailure;
use crate::mutex::lock;
use crate::options::{DbOptions, ObjectId};
use crate::store::{SegmentStore, StoreError};
use crate::table::Table;
use crate::ticket::Progress;
use crate::time::Time;
use crate::wall::Wall;

use super::codec::{self, ANCHOR_BYTES, Dictionary, OWNER_BYTES_BESIDES, Owner, Reading, Record};
use super::counters::LogCounters;
use super::entry::{Entries, Entry, EntryKind};
use super::owners::SharedOwners;
use super::reader::Found;
use super::seal::Seal;
use super::segment_name;
use super::summary::Summary;
use super::times::{self, Anchor, Context, Form};

/// Log bytes after which the times are written in full again: about one flash block, the unit of damage.
pub const ANCHOR_EVERY_BYTES: usize = 4000;
/// An arrival this far from its anchor gets a new one; half of the window stays for the previous anchor to stand in.
const REANCHOR_US: i64 = times::ARRIVAL_WINDOW_US / 4;
/// Segment numbers tried when a name is taken although the listing did not show it (a damaged directory block).
pub(super) const NUMBER_TRIES: u32 = 64;
/// Most summaries that wait for the index; beyond, a segment is read again for its summary.
const FINISHED_MAX: usize = 4;
/// Bytes that a name is counted with at least. No key was longer once: segments of short ones end where they always
/// have.
const NAME_BYTES_COUNTED: usize = 64;
/// Marks an object that has no dictionary record in the current segment.
const UNNAMED: u32 = u32::MAX;

/// What the writer needs from the database while it works.
pub(crate) struct Surroundings<'a> {
    pub(crate) table: &'a Table,
    pub(crate) owners: &'a SharedOwners,
    pub(crate) clock: &'a dyn Clock,
    /// The sample that dates this commit.
    pub(crate) wall: Wall,
    pub(crate) boot_id: [u8; 16],
    pub(crate) progress: &'a Progress,
    pub(crate) counters: &'a std::sync::Mutex<LogCounters>,
    /// Arrival of the oldest reading of this commit that is not durable yet, [`NO_READING`] when all are.
    pub(crate) in_flight_since_ns: &'a AtomicU64,
}

/// No reading is in flight.
pub(crate) const NO_READING: u64 = u64::MAX;

/// Where the log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) segment: u32,
    pub(crate) offset: u64,
    pub(crate) lsn: u64,
}

pub(crate) struct LogWriter<F> {
    file: Option<F>,
    seal: Seal,
    /// Number of the open segment, or of the next one to make.
    segment: u32,
    length: u64,
    staged: Vec<u8>,
    staged_readings: u64,
    append_bytes_max: usize,
    segment_bytes_max: u64,
    anchor: Option<Context>,
    /// The previous anchor, while it could stand in for a lost one.
    earlier: Option<Context>,
    since_anchor: usize,
    force_anchor: bool,
    named_in: Vec<u32>,
    /// Number of the next reading to stage.
    next_lsn: u64,
    /// Whether the store began with a format before 3; each anchor says it.
    is_older_store: bool,
    bytes_appended: u64,
    /// Bytes that the store must keep free for a checkpoint.
    reserve_bytes: u64,
    /// Every segment of the log, ascending.
    segments: VecDeque<u32>,
    /// What the growing segment holds; `None` when this writer does not know all of it.
    summary: Option<Summary>,
    /// Summaries of segments that have stopped growing, for the index to take.
    finished: Vec<Summary>,
}

/// Progress of a commit, in bytes of the waiting entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// Turned into records.
    staged: usize,
    /// On flash.
    durable: usize,
}

impl<F: Copy> LogWriter<F> {
    pub(crate) fn new(options: &DbOptions, seal: Seal, next_segment: u32, next_lsn: u64) -> Self {
        Self {
            file: None,
            seal,
            segment: next_segment,
            length: 0,
            staged: Vec::with_capacity(options.append_bytes_max + codec::RECORD_BYTES_MAX),
            staged_readings: 0,
            append_bytes_max: options.append_bytes_max,
            segment_bytes_max: options.segment_bytes_max,
            anchor: None,
            earlier: None,
            since_anchor: 0,
            force_anchor: true,
            named_in: vec![UNNAMED; options.objects_max as usize],
            next_lsn,
            is_older_store: false,
            bytes_appended: 0,
            reserve_bytes: 0,
            segments: VecDeque::new(),
            summary: None,
            finished: Vec::with_capacity(FINISHED_MAX),
        }
    }

    /// What the growing segment holds, if this writer began it.
    pub(crate) fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref().filter(|_| self.file.is_some())
    }

    /// Takes the summary of a segment that has stopped growing.
    pub(crate) fn take_finished(&mut self) -> Option<Summary> {
        self.finished.pop()
    }

    /// Sets the segments that exist already, ascending.
    pub(crate) fn set_segments(&mut self, segments: Vec<u32>) {
        self.segments = segments.into();
    }

    /// Every segment of the log, ascending.
    pub(crate) fn segments(&self) -> &VecDeque<u32> {
        &self.segments
    }

    /// Forgets the oldest segment, which has been deleted.
    pub(crate) fn forget_oldest(&mut self) {
        self.segments.pop_front();
    }

    /// The segment that grows and its bytes, if there is one.
    pub(crate) fn active(&self) -> Option<(u32, u64)> {
        self.file.map(|_| (self.segment, self.length))
    }

    /// Sets whether the store began with a format before 3.
    pub(crate) fn set_older_store(&mut self, is_older_store: bool) {
        self.is_older_store = is_older_store;
    }

    /// Whether the store began with a format before 3.
    pub(crate) fn is_older_store(&self) -> bool {
        self.is_older_store
    }

    /// Number of the next reading.
    pub(crate) fn next_lsn(&self) -> u64 {
        self.next_lsn
    }

    /// Sets how many bytes of the store to keep free.
    pub(crate) fn set_reserve_bytes(&mut self, bytes: u64) {
        self.reserve_bytes = bytes;
    }

    /// Writes the times in full before the next reading: the clock has changed.
    pub(crate) fn anchor_next(&mut self) {
        self.force_anchor = true;
    }

    /// Log bytes appended by this writer.
    pub(crate) fn bytes_appended(&self) -> u64 {
        self.bytes_appended
    }

    /// Continues a segment that ends cleanly.
    pub(crate) fn resume(&mut self, file: F, segment: u32, length: u64) {
        self.file = Some(file);
        self.segment = segment;
        self.length = length;
    }

    /// Returns where the next append goes; readings after it can be read from here without anything before.
    pub(crate) fn mark(&mut self) -> Position {
        debug_assert!(self.staged.is_empty());
        self.force_anchor = true;
        Position {
            segment: self.segment,
            offset: self.length,
            lsn: self.next_lsn,
        }
    }

    /// Makes everything in `waiting` after `done` durable, in appends of at most `append_bytes_max` and one record.
    /// After [`LogFailure::Full`], `done` says what is durable: the call may be repeated once there is room.
    pub(crate) fn commit<S: SegmentStore<File = F>>(
        &mut self,
        store: &mut S,
        around: &Surroundings<'_>,
        waiting: &[u8],
        done: &mut Done,
    ) -> Result<(), LogFailure> {
        self.stage_owners(store, around, waiting, done)?;
        let mut entries = Entries(waiting.get(done.staged..).unwrap_or(&[]));
        while let Some(entry) = entries.next() {
            // Room for the record itself, its object's name, two anchors and a segment head.
            let name_bytes = self.name_bytes(&entry, around.table);
            let need = entry.value.len() + name_bytes + 2 * ANCHOR_BYTES + 128;
            self.make_way(need, store, around, waiting, done)?;
            self.stage(&entry, around);
            done.staged = waiting.len() - entries.0.len();
        }
        self.append(store, around, waiting, done)
    }

    /// Appends what is staged, and ends the segment, if `need` more bytes do not fit.
    fn make_way<S: SegmentStore<File = F>>(
        &mut self,
        need: usize,
        store: &mut S,
        around: &Surroundings<'_>,
        waiting: &[u8],
        done: &mut Done,
    ) -> Result<(), LogFailure> {
        let full = self.length + (self.staged.len() + need) as u64 > self.segment_bytes_max;
        if full || self.staged.len() + need > self.append_bytes_max {
            self.append(store, around, waiting, done)?;
        }
        if full && self.length > 0 {
            self.leave_segment(store);
        }
        Ok(())
    }

    /// Stages the owners of keys that the log does not have yet. They come before the readings of this commit, because
    /// one of these may be the first of its key. A power cut must not leave a key with a history and without its owner.
    fn stage_owners<S: SegmentStore<File = F>>(
        &mut self,
        store: &mut S,
        around: &Surroundings<'_>,
        waiting: &[u8],
        done: &mut Done,
    ) -> Result<(), LogFailure> {
        if SeededBug::OwnerNotLogged.is_on() {
            return Ok(());
        }
        loop {
            let Some(next) = around.owners.lock().next_waiting() else {
                return Ok(());
            };
            // `None`: owners by other templates have taken its place.
            if let Some(series) = &next.series {
                let name_bytes = around.table.key_bytes(ObjectId(next.id)) + 16;
                let need = series.len() + OWNER_BYTES_BESIDES + name_bytes + 128;
                self.make_way(need, store, around, waiting, done)?;
            }
            // Only now: an append settles what is staged before it.
            let Some(next) = around.owners.lock().stage_next() else {
                return Ok(());
            };
            let Some(series) = &next.series else {
                continue;
            };
            let begin = self.staged.len();
            self.begin_segment();
            if self.named_in.get(next.id as usize) != Some(&self.segment) {
                self.stage_name(next.id, around.table);
            }
            let owner = Owner {
                id: next.id,
                template: next.template,
                series,
            };
            codec::put_owner(&mut self.staged, self.seal, &owner);
            self.since_anchor += self.staged.len() - begin;
        }
    }

    /// Writes the times in full now, if there is a segment to write them to. An empty one has no head yet: its first
    /// reading brings head and times.
    pub(crate) fn say_clock<S: SegmentStore<File = F>>(
        &mut self,
        store: &mut S,
        around: &Surroundings<'_>,
    ) -> Result<(), LogFailure> {
        self.force_anchor = true;
        let room = 4 * ANCHOR_BYTES as u64;
        if self.file.is_none() || self.length == 0 || self.length + room > self.segment_bytes_max {
            return Ok(());
        }
        let now_us = around.clock.monotonic_ns() / 1000;
        self.stage_anchor(now_us, around.wall.at_us(now_us), around);
        self.append(store, around, &[], &mut Done::default())
    }

    /// Discards what is staged, because it did not fit; it is staged again later.
    fn unstage(&mut self, around: &Surroundings<'_>, done: &mut Done) {
        self.staged.clear();
        self.next_lsn -= self.staged_readings;
        self.staged_readings = 0;
        done.staged = done.durable;
        // The summary includes records that were never written; the segment will be read again for it.
        self.summary = None;
        // The staged anchors and names were never written.
        self.force_anchor = true;
        self.named_in.fill(UNNAMED);
        around.owners.lock().unstage();
    }

    /// Ends the segment that grows; the next append makes a new one.
    pub(crate) fn leave_segment<S: SegmentStore<File = F>>(&mut self, store: &mut S) {
        if let Some(file) = self.file.take() {
            store.close(file);
        }
        if let Some(mut summary) = self.summary.take()
            && self.finished.len() < FINISHED_MAX
        {
            summary.outline.log_bytes = self.length;
            self.finished.push(summary);
        }
        self.segment = self.segment.saturating_add(1);
        self.length = 0;
    }

    /// Whether a record of the object's name must come before this entry in the present segment.
    fn needs_name(&self, entry: &Entry<'_>) -> bool {
        let named_in = self.named_in.get(entry.id as usize);
        entry.kind == EntryKind::Declared || named_in != Some(&self.segment)
    }

    /// Most bytes of the key that may have to come before this entry. The slot of an object with a name is not touched:
    /// that would cost each reading a cache line.
    fn name_bytes(&self, entry: &Entry<'_>, table: &Table) -> usize {
        let key_bytes = match self.needs_name(entry) {
            true => table.key_bytes(ObjectId(entry.id)),
            false => 0,
        };
        key_bytes.max(NAME_BYTES_COUNTED)
    }

    /// Stages the head of a new segment.
    fn begin_segment(&mut self) {
        if self.length == 0 && self.staged.is_empty() {
            codec::put_segment(&mut self.staged, self.seal, self.segment);
            self.force_anchor = true;
            self.summary = Some(Summary::new(self.segment));
        }
    }

    fn stage(&mut self, entry: &Entry<'_>, around: &Surroundings<'_>) {
        let begin = self.staged.len();
        self.begin_segment();
        if self.needs_name(entry) {
            self.stage_name(entry.id, around.table);
        }
        if entry.kind == EntryKind::Reading {
            let arrival_us = entry.arrival_ns / 1000;
            let time = match SeededBug::TimeTruncated.is_on() {
                true => Time::from_ms(entry.time.ms()),
                false => entry.time,
            };
            let context = self.stage_anchor(arrival_us, time, around);
            let earlier = self.earlier;
            let form = Form::shortest(time, entry.node_time, |form| {
                context.reads_back(form, time, arrival_us)
                    && earlier.is_none_or(|earlier| earlier.reads_back(form, time, arrival_us))
            });
            let reading = Reading {
                id: entry.id,
                time,
                arrival_us,
                wall_trusted: entry.wall_trusted,
                node_time: entry.node_time,
                retained: entry.retained,
                value: entry.value,
            };
            let offset = self.length + self.staged.len() as u64;
            codec::put_reading(&mut self.staged, &reading, &context, form);
            self.sum_up(Record::Reading(reading), offset);
            self.next_lsn += 1;
            self.staged_readings += 1;
        }
        self.since_anchor += self.staged.len() - begin;
    }

    /// Adds a staged record to the summary, as a reader of the segment would.
    fn sum_up(&mut self, record: Record<'_>, offset: u64) {
        if let Some(summary) = &mut self.summary {
            let found = Found {
                record,
                offset,
                lsn: self.next_lsn,
                boot_id: [0; 16],
            };
            summary.add(&found, self.segment_bytes_max);
        }
    }

    fn stage_name(&mut self, id: u32, table: &Table) {
        let key = table.key(ObjectId(id));
        // An object whose key was lost to damage cannot be named; its readings keep their number.
        if !key.as_str().is_empty() {
            let (avi_ms, temporal) = table.validity(ObjectId(id));
            codec::put_dictionary(
                &mut self.staged,
                self.seal,
                &Dictionary {
                    id,
                    key: key.as_str(),
                    avi_ms,
                    temporal,
                },
            );
        }
        if let Some(segment) = self.named_in.get_mut(id as usize) {
            *segment = self.segment;
        }
    }

    /// Writes the times in full where due, and returns the context against which the next reading is abbreviated.
    fn stage_anchor(
        &mut self,
        arrival_us: u64,
        sensor: Time,
        around: &Surroundings<'_>,
    ) -> Context {
        let near = |context: &Context, reach: i64| {
            context.distance_us(arrival_us).unsigned_abs() < reach as u64
        };
        if let Some(context) = self.anchor
            && !self.force_anchor
            && self.since_anchor < ANCHOR_EVERY_BYTES
            && near(&context, REANCHOR_US)
        {
            return context;
        }
        let anchor = Anchor {
            boot_id: around.boot_id,
            arrival_us,
            // As a reader will find it: a time in ms may be one that no anchor can hold.
            sensor: Time::from_ns(sensor.ns()),
            // The wall clock at the arrival: together they date this boot. By the sample that dates readings, so that
            // corrected times keep the order of their arrivals.
            wall: around.wall.at_us(arrival_us),
            wall_trusted: around.wall.trusted,
            is_older_store: self.is_older_store,
            lsn: self.next_lsn,
        };
        let offset = self.length + self.staged.len() as u64;
        codec::put_anchor(&mut self.staged, self.seal, &anchor);
        self.sum_up(Record::Anchor(anchor), offset);
        // If no earlier anchor could stand in for this one, write it twice.
        self.earlier = self
            .anchor
            .filter(|earlier| !self.force_anchor && near(earlier, 2 * REANCHOR_US));
        if self.earlier.is_none() {
            codec::put_anchor(&mut self.staged, self.seal, &anchor);
        }
        self.force_anchor = false;
        self.since_anchor = 0;
        *self.anchor.insert(Context::of(self.seal, &anchor))
    }

    fn append<S: SegmentStore<File = F>>(
        &mut self,
        store: &mut S,
        around: &Surroundings<'_>,
        waiting: &[u8],
        done: &mut Done,
    ) -> Result<(), LogFailure> {
        if self.staged.is_empty() {
            return Ok(());
        }
        // Check before the append, so that a full store is left without a torn record.
        if store.free_bytes() < (self.staged.len() as u64).saturating_add(self.reserve_bytes) {
            self.unstage(around, done);
            return Err(LogFailure::Full);
        }
        if SeededBug::AckBeforeFlush.is_on() {
            around.progress.complete(self.next_lsn);
        }
        let file = match self.open_segment(store) {
            Ok(file) => file,
            Err(failure) => {
                self.unstage(around, done);
                return Err(failure);
            }
        };
        let begin_ns = around.clock.monotonic_ns();
        if let Err(error) = store.append(file, &self.staged) {
            let failure = failure_of(&error);
            if failure == LogFailure::Full && store.length(file) != Ok(self.length) {
                // Part of it was written, which only a start can sort out.
                return Err(LogFailure::Torn);
            }
            self.unstage(around, done);
            return Err(failure);
        }
        let end_ns = around.clock.monotonic_ns();
        self.length += self.staged.len() as u64;
        self.bytes_appended += self.staged.len() as u64;
        {
            // Count before completing the tickets: a caller that asks after an acknowledgement must find the reading
            // counted.
            let mut counters = lock(around.counters);
            counters.append_ns.record(end_ns.saturating_sub(begin_ns));
            counters.appends += 1;
            counters.log_bytes += self.staged.len() as u64;
            counters.readings += self.staged_readings;
        }
        around.owners.lock().settle();
        around.progress.complete(self.next_lsn);
        let mut counters = lock(around.counters);
        for entry in Entries(waiting.get(done.durable..done.staged).unwrap_or(&[])) {
            if entry.kind == EntryKind::Reading {
                counters
                    .put_durable_ns
                    .record(end_ns.saturating_sub(entry.arrival_ns));
            }
        }
        drop(counters);
        done.durable = done.staged;
        self.staged_readings = 0;
        self.staged.clear();
        let oldest = Entries(waiting.get(done.durable..).unwrap_or(&[]))
            .find(|entry| entry.kind == EntryKind::Reading);
        around.in_flight_since_ns.store(
            oldest.map_or(NO_READING, |entry| entry.arrival_ns),
            Ordering::Relaxed,
        );
        Ok(())
    }

    fn open_segment<S: SegmentStore<File = F>>(&mut self, store: &mut S) -> Result<F, LogFailure> {
        if let Some(file) = self.file {
            return Ok(file);
        }
        let mut tries = 0;
        loop {
            match store.create(&segment_name(self.segment)) {
                Ok(file) => {
                    if let Some(summary) = &mut self.summary {
                        summary.segment = self.segment;
                    }
                    self.segments.push_back(self.segment);
                    return Ok(*self.file.insert(file));
                }
                // The staged head carries the first number tried; readers use the number in the name.
                Err(StoreError::Exists | StoreError::Damaged { .. }) if tries < NUMBER_TRIES => {
                    tries += 1;
                    self.segment = self.segment.saturating_add(1);
                }
                Err(error) => return Err(failure_of(&error)),
            }
        }
    }
}

/// Returns what a failed store call means for the log.
pub(crate) fn failure_of(error: &StoreError) -> LogFailure {
    match error {
        StoreError::Full => LogFailure::Full,
        _ => LogFailure::Device,
    }
}

#[cfg(test)]
mod tests;
