//! Turns waiting entries into records, and appends them to the log's segments.
//!
//! **Invariants:** memory is one staging buffer; a reading is announced as durable only after the append that
//! holds it has returned; every segment can be read without any other (it begins with its own anchors, and names
//! each object before that object's first reading).

use base::clock::Clock;

use crate::error::LogFailure;
use crate::options::{DbOptions, KEY_BYTES_MAX, ObjectId};
use crate::queue::{Entries, Entry, EntryKind};
use crate::stats::LogCounters;
use crate::store::{SegmentStore, StoreError};
use crate::table::Table;
use crate::ticket::Progress;

use super::codec::{self, ANCHOR_BYTES, Anchor, Context, Dictionary, Reading};
use super::segment_name;

/// Log bytes after which the times are said in full again: about one flash block, the unit of damage.
pub const ANCHOR_EVERY_BYTES: usize = 4000;
/// An arrival this far from its anchor gets a new one; half of it stays for the anchor before to stand in.
const REANCHOR_US: i64 = codec::ARRIVAL_WINDOW_US / 4;
/// Segment numbers tried when a name is taken that the listing did not show (a damaged directory block).
const NUMBER_TRIES: u32 = 64;
/// No dictionary record of the object in the current segment.
const UNNAMED: u32 = u32::MAX;

/// What the writer needs of the database while it works.
pub(crate) struct Surroundings<'a> {
    pub(crate) table: &'a Table,
    pub(crate) clock: &'a dyn Clock,
    pub(crate) boot_id: [u8; 16],
    pub(crate) progress: &'a Progress,
    pub(crate) counters: &'a std::sync::Mutex<LogCounters>,
}

/// Where the log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) segment: u32,
    pub(crate) offset: u64,
    pub(crate) lsn: u64,
}

pub(crate) struct LogWriter<F> {
    file: Option<F>,
    /// Number of the open segment, or of the next one to make.
    segment: u32,
    length: u64,
    staged: Vec<u8>,
    staged_readings: u64,
    append_bytes_max: usize,
    segment_bytes_max: u64,
    anchor: Option<Context>,
    /// The anchor before, while it could stand in for a lost one.
    earlier: Option<Context>,
    since_anchor: usize,
    force_anchor: bool,
    named_in: Vec<u32>,
    /// Number of the next reading to stage.
    next_lsn: u64,
    bytes_appended: u64,
}

impl<F: Copy> LogWriter<F> {
    pub(crate) fn new(options: &DbOptions, next_segment: u32, next_lsn: u64) -> Self {
        Self {
            file: None,
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
            bytes_appended: 0,
        }
    }

    /// Log bytes appended by this writer.
    pub(crate) fn bytes_appended(&self) -> u64 {
        self.bytes_appended
    }

    /// Goes on in a segment that ends cleanly.
    pub(crate) fn resume(&mut self, file: F, segment: u32, length: u64) {
        self.file = Some(file);
        self.segment = segment;
        self.length = length;
    }

    /// Where the next append goes; readings after it can be read from here without anything before.
    pub(crate) fn mark(&mut self) -> Position {
        debug_assert!(self.staged.is_empty());
        self.force_anchor = true;
        Position {
            segment: self.segment,
            offset: self.length,
            lsn: self.next_lsn,
        }
    }

    /// Makes everything in `waiting` durable, in appends of at most `append_bytes_max` and one record.
    pub(crate) fn commit<S: SegmentStore<File = F>>(
        &mut self,
        store: &mut S,
        around: &Surroundings<'_>,
        waiting: &[u8],
    ) -> Result<(), LogFailure> {
        let mut unflushed = Entries(waiting);
        for entry in Entries(waiting) {
            // Room for the record itself, its object's name, two anchors and a segment head.
            let need = entry.value.len() + KEY_BYTES_MAX + 2 * ANCHOR_BYTES + 128;
            let full = self.length + (self.staged.len() + need) as u64 > self.segment_bytes_max;
            if full || self.staged.len() + need > self.append_bytes_max {
                self.append(store, around, &mut unflushed)?;
            }
            if full && self.length > 0 {
                self.leave_segment(store);
            }
            self.stage(&entry, around);
        }
        self.append(store, around, &mut unflushed)
    }

    fn leave_segment<S: SegmentStore<File = F>>(&mut self, store: &mut S) {
        if let Some(file) = self.file.take() {
            store.close(file);
        }
        self.segment = self.segment.saturating_add(1);
        self.length = 0;
    }

    fn stage(&mut self, entry: &Entry<'_>, around: &Surroundings<'_>) {
        let begin = self.staged.len();
        if self.length == 0 && begin == 0 {
            codec::put_segment(&mut self.staged, self.segment);
            self.force_anchor = true;
        }
        let named = self
            .named_in
            .get(entry.id as usize)
            .is_some_and(|segment| *segment == self.segment);
        if !named || entry.kind == EntryKind::Declared {
            self.stage_name(entry.id, around.table);
        }
        if entry.kind == EntryKind::Reading {
            let arrival_us = entry.arrival_ns / 1000;
            let context = self.stage_anchor(arrival_us, entry.timestamp_ms, around);
            let narrow = context.is_narrow(entry.timestamp_ms)
                && self
                    .earlier
                    .is_none_or(|earlier| earlier.is_narrow(entry.timestamp_ms));
            let (id, timestamp_ms, wall_trusted) =
                (entry.id, entry.timestamp_ms, entry.wall_trusted);
            let reading = Reading {
                id,
                timestamp_ms,
                arrival_us,
                wall_trusted,
                value: entry.value,
            };
            codec::put_reading(&mut self.staged, &reading, &context, narrow);
            self.next_lsn += 1;
            self.staged_readings += 1;
        }
        self.since_anchor += self.staged.len() - begin;
    }

    fn stage_name(&mut self, id: u32, table: &Table) {
        let key = table.key(ObjectId(id));
        // A key that damage has taken cannot be named; its readings keep their number.
        if !key.as_str().is_empty() {
            let (avi_ms, temporal) = table.validity(ObjectId(id));
            codec::put_dictionary(
                &mut self.staged,
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

    /// Says the times in full where it is due, and returns what the next reading is abbreviated against.
    fn stage_anchor(
        &mut self,
        arrival_us: u64,
        sensor_ms: i64,
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
            sensor_ms,
            wall_ms: around.clock.wall_ms(),
            wall_trusted: around.clock.wall_is_trusted(),
            lsn: self.next_lsn,
        };
        codec::put_anchor(&mut self.staged, &anchor);
        // Where no earlier anchor could stand in for this one, it is written twice.
        self.earlier = self
            .anchor
            .filter(|earlier| !self.force_anchor && near(earlier, 2 * REANCHOR_US));
        if self.earlier.is_none() {
            codec::put_anchor(&mut self.staged, &anchor);
        }
        self.force_anchor = false;
        self.since_anchor = 0;
        *self.anchor.insert(Context::of(&anchor))
    }

    fn append<S: SegmentStore<File = F>>(
        &mut self,
        store: &mut S,
        around: &Surroundings<'_>,
        unflushed: &mut Entries<'_>,
    ) -> Result<(), LogFailure> {
        if self.staged.is_empty() {
            return Ok(());
        }
        if cfg!(feature = "seeded-bug-ack-before-flush") {
            around.progress.complete(self.next_lsn);
        }
        let file = self.open_segment(store)?;
        let begin_ns = around.clock.monotonic_ns();
        store
            .append(file, &self.staged)
            .map_err(|error| failure_of(&error))?;
        let end_ns = around.clock.monotonic_ns();
        self.length += self.staged.len() as u64;
        self.bytes_appended += self.staged.len() as u64;
        around.progress.complete(self.next_lsn);
        let mut counters = around
            .counters
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        counters.append_ns.record(end_ns.saturating_sub(begin_ns));
        counters.appends += 1;
        counters.log_bytes += self.staged.len() as u64;
        counters.readings += self.staged_readings;
        while self.staged_readings > 0 {
            let Some(entry) = unflushed.next() else { break };
            if entry.kind == EntryKind::Reading {
                counters
                    .put_durable_ns
                    .record(end_ns.saturating_sub(entry.arrival_ns));
                self.staged_readings -= 1;
            }
        }
        self.staged_readings = 0;
        self.staged.clear();
        Ok(())
    }

    fn open_segment<S: SegmentStore<File = F>>(&mut self, store: &mut S) -> Result<F, LogFailure> {
        if let Some(file) = self.file {
            return Ok(file);
        }
        let mut tries = 0;
        loop {
            match store.create(&segment_name(self.segment)) {
                Ok(file) => return Ok(*self.file.insert(file)),
                // The head that is staged carries the first number tried; readers go by the name.
                Err(StoreError::Exists) if tries < NUMBER_TRIES => {
                    tries += 1;
                    self.segment = self.segment.saturating_add(1);
                }
                Err(error) => return Err(failure_of(&error)),
            }
        }
    }
}

/// What a failed store call means for the log.
pub(crate) fn failure_of(error: &StoreError) -> LogFailure {
    match error {
        StoreError::Full => LogFailure::Full,
        _ => LogFailure::Device,
    }
}
