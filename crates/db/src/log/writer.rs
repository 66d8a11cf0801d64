//! Turns waiting entries into records, and appends them to the log's segments.
//!
//! **Invariants:** memory is one staging buffer; a reading is announced as durable only after the append that
//! holds it has returned; every segment can be read without any other (it begins with its own anchors, and names
//! each object before that object's first reading).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use base::clock::Clock;
use base::seeded_bug::SeededBug;

use crate::error::LogFailure;
use crate::history::summary::Summary;
use crate::options::{DbOptions, KEY_BYTES_MAX, ObjectId};
use crate::queue::{Entries, Entry, EntryKind};
use crate::stats::LogCounters;
use crate::store::{SegmentStore, StoreError};
use crate::table::Table;
use crate::ticket::Progress;
use crate::wall;

use super::codec::{self, ANCHOR_BYTES, Anchor, Dictionary, Reading, Record, Seal};
use super::reader::Found;
use super::segment_name;
use super::times::{self, Context, Form, Time};

/// Log bytes after which the times are written in full again: about one flash block, the unit of damage.
pub const ANCHOR_EVERY_BYTES: usize = 4000;
/// An arrival this far from its anchor gets a new one; half of the window stays for the previous anchor to stand in.
const REANCHOR_US: i64 = times::ARRIVAL_WINDOW_US / 4;
/// Segment numbers tried when a name is taken although the listing did not show it (a damaged directory block).
pub(super) const NUMBER_TRIES: u32 = 64;
/// Most summaries that wait for the index; beyond, a segment is read again for its summary.
const FINISHED_MAX: usize = 4;
/// Marks an object that has no dictionary record in the current segment.
const UNNAMED: u32 = u32::MAX;

/// What the writer needs from the database while it works.
pub(crate) struct Surroundings<'a> {
    pub(crate) table: &'a Table,
    pub(crate) clock: &'a dyn Clock,
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
        let mut entries = Entries(waiting.get(done.staged..).unwrap_or(&[]));
        while let Some(entry) = entries.next() {
            // Room for the record itself, its object's name, two anchors and a segment head.
            let need = entry.value.len() + KEY_BYTES_MAX + 2 * ANCHOR_BYTES + 128;
            let full = self.length + (self.staged.len() + need) as u64 > self.segment_bytes_max;
            if full || self.staged.len() + need > self.append_bytes_max {
                self.append(store, around, waiting, done)?;
            }
            if full && self.length > 0 {
                self.leave_segment(store);
            }
            self.stage(&entry, around);
            done.staged = waiting.len() - entries.0.len();
        }
        self.append(store, around, waiting, done)
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
        let sensor = Time::from_ms(around.clock.wall_ms());
        self.stage_anchor(around.clock.monotonic_ns() / 1000, sensor, around);
        self.append(store, around, &[], &mut Done::default())
    }

    /// Discards what is staged, because it did not fit; it is staged again later.
    fn unstage(&mut self, done: &mut Done) {
        self.staged.clear();
        self.next_lsn -= self.staged_readings;
        self.staged_readings = 0;
        done.staged = done.durable;
        // The summary includes records that were never written; the segment will be read again for it.
        self.summary = None;
        // The staged anchors and names were never written.
        self.force_anchor = true;
        self.named_in.fill(UNNAMED);
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

    fn stage(&mut self, entry: &Entry<'_>, around: &Surroundings<'_>) {
        let begin = self.staged.len();
        if self.length == 0 && begin == 0 {
            codec::put_segment(&mut self.staged, self.seal, self.segment);
            self.force_anchor = true;
            self.summary = Some(Summary::new(self.segment));
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
        // The wall clock at the arrival, computed from the clock as it is now: with the arrival it dates this boot.
        let wall_trusted = around.clock.wall_is_trusted();
        let (now_ns, now_ms) = wall::both(around.clock);
        let since_us = (now_ns / 1000).saturating_sub(arrival_us);
        let wall = Time::from_ms(now_ms.saturating_sub_unsigned(since_us / 1000));
        // As a reader will find them: a clock may show a time that no anchor can hold.
        let [sensor, wall] = [sensor, wall].map(|time| Time::from_ns(time.ns()));
        let anchor = Anchor {
            boot_id: around.boot_id,
            arrival_us,
            sensor,
            wall,
            wall_trusted,
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
            self.unstage(done);
            return Err(LogFailure::Full);
        }
        if SeededBug::AckBeforeFlush.is_on() {
            around.progress.complete(self.next_lsn);
        }
        let file = match self.open_segment(store) {
            Ok(file) => file,
            Err(failure) => {
                self.unstage(done);
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
            self.unstage(done);
            return Err(failure);
        }
        let end_ns = around.clock.monotonic_ns();
        self.length += self.staged.len() as u64;
        self.bytes_appended += self.staged.len() as u64;
        let count = || {
            around
                .counters
                .lock()
                .unwrap_or_else(|poison| poison.into_inner())
        };
        {
            // Count before completing the tickets: a caller that asks after an acknowledgement must find the reading
            // counted.
            let mut counters = count();
            counters.append_ns.record(end_ns.saturating_sub(begin_ns));
            counters.appends += 1;
            counters.log_bytes += self.staged.len() as u64;
            counters.readings += self.staged_readings;
        }
        around.progress.complete(self.next_lsn);
        let mut counters = count();
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
mod tests {
    use super::*;
    use crate::log::codec::decode;
    use crate::queue::Queue;
    use crate::store::MemoryStore;
    use base::sim::SimClock;

    struct Bench {
        table: Table,
        clock: SimClock,
        progress: Progress,
        counters: std::sync::Mutex<LogCounters>,
        in_flight_since_ns: AtomicU64,
        store: MemoryStore,
        writer: LogWriter<usize>,
        waiting: Vec<u8>,
    }

    impl Bench {
        fn new(segment_bytes_max: u64) -> Self {
            let options = DbOptions {
                segment_bytes_max,
                append_bytes_max: 2048,
                ..DbOptions::default()
            };
            let table = Table::new(4, 64, 1).expect("a table");
            table.insert("a", 1, true).expect("room");
            Self {
                table,
                clock: SimClock::new(1),
                progress: Progress::new(0),
                counters: std::sync::Mutex::default(),
                in_flight_since_ns: AtomicU64::new(NO_READING),
                store: MemoryStore::new(),
                writer: LogWriter::new(&options, Seal::of(MemoryStore::new().secret()), 0, 0),
                waiting: Vec::with_capacity(1 << 16),
            }
        }

        /// Commits readings with these times in ms and arrivals in ns.
        fn commit(&mut self, readings: &[(i64, u64)]) -> Result<(), LogFailure> {
            let in_ns: Vec<_> = readings
                .iter()
                .map(|(ms, arrival_ns)| (ms * 1_000_000, *arrival_ns))
                .collect();
            self.commit_ns(&in_ns)
        }

        fn commit_ns(&mut self, readings: &[(i64, u64)]) -> Result<(), LogFailure> {
            let mut queue = Queue::new(1 << 16, 0);
            for (ns, arrival_ns) in readings {
                queue.push(&Entry {
                    kind: EntryKind::Reading,
                    id: 0,
                    time: Time::from_ns(*ns),
                    arrival_ns: *arrival_ns,
                    wall_trusted: true,
                    node_time: false,
                    retained: false,
                    value: b"value",
                });
            }
            self.waiting.clear();
            queue.swap(&mut self.waiting);
            let around = Surroundings {
                table: &self.table,
                clock: &self.clock,
                boot_id: [3; 16],
                progress: &self.progress,
                counters: &self.counters,
                in_flight_since_ns: &self.in_flight_since_ns,
            };
            self.writer.commit(
                &mut self.store,
                &around,
                &self.waiting,
                &mut Done::default(),
            )
        }

        /// Passes each record of a segment and its bytes.
        fn each(&self, segment: u32, mut visit: impl FnMut(&Record<'_>, &[u8])) {
            let mut input = self
                .store
                .file(&segment_name(segment))
                .map(Vec::as_slice)
                .unwrap_or_default();
            let mut context = None;
            while !input.is_empty() {
                let (record, bytes) =
                    decode(input, self.writer.seal, context.as_ref()).expect("a whole record");
                if let Record::Anchor(anchor) = &record {
                    context = Some(Context::of(self.writer.seal, anchor));
                }
                visit(&record, &input[..bytes]);
                input = &input[bytes..];
            }
        }

        /// One letter for each record of a segment.
        fn kinds(&self, segment: u32) -> String {
            let mut kinds = String::new();
            self.each(segment, |record, _| {
                kinds.push(match record {
                    Record::Segment { .. } => 'S',
                    Record::Anchor(_) => 'A',
                    Record::Dictionary(_) => 'D',
                    Record::Reading(_) => 'r',
                    _ => '?',
                });
            });
            kinds
        }
    }

    /// Every unit, near the anchor and far from it, with the bytes of the whole record.
    #[test]
    fn each_time_is_written_in_the_greatest_unit_that_it_is_whole_in() {
        let mut bench = Bench::new(1 << 20);
        let (begin, hour) = (1_700_000_000_123_000_000, 3_600_000_000_000);
        let later = [
            (0, 0xa1, 19),
            (1_000, 0x91, 20),
            (1, 0x81, 22),
            (hour + 1_000, 0x81, 22),
            (3 * hour, 0xa3, 24),
            (-50 * hour - 1, 0x83, 24),
        ];
        let readings = later.map(|(ns, ..)| (begin + ns, 5_000));
        bench.commit_ns(&readings).expect("committed");
        let (mut times, mut forms) = (Vec::new(), Vec::new());
        bench.each(0, |record, bytes| match record {
            Record::Reading(reading) => {
                times.push((reading.time.ns(), reading.arrival_us * 1_000));
                forms.push((bytes[0], bytes.len()));
            }
            Record::Anchor(anchor) => {
                assert_eq!((bytes[0], anchor.sensor.ns()), (0xb3, begin));
                assert!(!anchor.is_older_store);
            }
            _ => {}
        });
        assert_eq!(times, readings);
        assert_eq!(forms, later.map(|(_, kind, bytes)| (kind, bytes)));
    }

    /// If the second of two anchors is lost, the first one stands in: a time that only the second one reads back right
    /// is written whole.
    #[test]
    fn a_time_is_short_only_if_the_anchor_before_reads_it_too() {
        let mut bench = Bench::new(1 << 20);
        let (begin, hour) = (1_700_000_000_123_456_789, 3_600_000_000_000);
        let minute_ns = 60_000_000_000;
        // The second arrival is far enough for an anchor of its own, which the first one can stand in for.
        let readings = [(begin, 0), (begin + 40 * hour, 10 * minute_ns)];
        bench.commit_ns(&readings).expect("committed");
        let mut kinds = Vec::new();
        bench.each(0, |_, bytes| kinds.push(bytes[0]));
        assert_eq!(kinds, [0xb1, 0xb4, 0xb3, 0xb3, 0x81, 0xb3, 0x83]);
    }

    #[test]
    fn anchors_stand_where_times_are_far_and_twice_where_none_stands_in() {
        let mut bench = Bench::new(1 << 20);
        let minute = 60_000_000_000;
        bench
            .commit(&[(0, 0), (1, 1), (2, 8 * minute)])
            .expect("committed");
        assert_eq!(bench.kinds(0), "SDAArrr");
        // Ten minutes after its anchor a reading gets a new one; hours later it gets two.
        bench
            .commit(&[(3, 10 * minute), (4, 600 * minute)])
            .expect("committed");
        assert_eq!(bench.kinds(0), "SDAArrrArAAr");
        bench.writer.mark();
        bench.commit(&[(5, 600 * minute)]).expect("committed");
        assert_eq!(bench.kinds(0), "SDAArrrArAArAAr");
        assert_eq!(bench.progress.durable_end(), 6);
    }

    #[test]
    fn anchors_come_with_every_block_of_log() {
        let mut bench = Bench::new(1 << 20);
        let readings: Vec<_> = (0..1000).map(|n| (n, n as u64 * 1_000_000)).collect();
        bench.commit(&readings).expect("committed");
        let bytes = bench.store.file("log-00000000").map_or(0, Vec::len);
        let anchors = bench.kinds(0).matches('A').count();
        assert!(
            anchors > bytes / (ANCHOR_EVERY_BYTES + 200)
                && anchors <= bytes / ANCHOR_EVERY_BYTES + 2
        );
    }

    #[test]
    fn every_segment_names_and_dates_its_own_records() {
        let mut bench = Bench::new(1500);
        let readings: Vec<_> = (0..300).map(|n| (n, n as u64 * 1_000_000)).collect();
        bench.commit(&readings).expect("committed");
        let segments = bench.store.names().count() as u32;
        assert!(segments >= 4);
        for segment in 0..segments {
            assert!(
                bench.kinds(segment).starts_with("SDAAr"),
                "{}",
                bench.kinds(segment)
            );
            assert!(bench.store.file(&segment_name(segment)).map_or(0, Vec::len) <= 1500);
        }
        assert_eq!(
            (0..segments)
                .map(|n| bench.kinds(n).matches('r').count())
                .sum::<usize>(),
            300
        );
    }

    /// A power cut, or an append that found no room, leaves a segment without bytes.
    #[test]
    fn an_empty_segment_begins_with_its_head_and_not_with_the_clock() {
        let mut bench = Bench::new(1 << 20);
        let file = bench.store.create(&segment_name(0)).expect("made");
        bench.writer.resume(file, 0, 0);
        for expected in ["", "SDAArAA"] {
            let around = Surroundings {
                table: &bench.table,
                clock: &bench.clock,
                boot_id: [3; 16],
                progress: &bench.progress,
                counters: &bench.counters,
                in_flight_since_ns: &bench.in_flight_since_ns,
            };
            let said = bench.writer.say_clock(&mut bench.store, &around);
            assert_eq!((said, bench.kinds(0).as_str()), (Ok(()), expected));
            bench.commit(&[(0, 0)]).expect("committed");
        }
    }

    #[test]
    fn nothing_is_announced_that_was_not_appended() {
        let mut bench = Bench::new(1 << 20);
        bench.commit(&[(0, 0)]).expect("committed");
        assert_eq!(bench.in_flight_since_ns.load(Ordering::Relaxed), NO_READING);
        bench.store.set_capacity_bytes(300);
        let readings: Vec<_> = (0..100).map(|n| (n, 0)).collect();
        assert_eq!(bench.commit(&readings), Err(LogFailure::Full));
        assert_eq!(bench.progress.durable_end(), 1);
    }

    #[test]
    fn the_oldest_reading_in_flight_moves_with_each_append() {
        let mut bench = Bench::new(1 << 20);
        bench.store.set_capacity_bytes(3000);
        let readings: Vec<_> = (0..200).map(|n| (n, n as u64 * 1000)).collect();
        assert_eq!(bench.commit(&readings), Err(LogFailure::Full));
        let durable = bench.progress.durable_end();
        assert!(durable > 0 && durable < 200, "{durable}");
        let since_ns = bench.in_flight_since_ns.load(Ordering::Relaxed);
        assert_eq!(since_ns, durable * 1000);
    }
}
