//! Range reads over the log, in slices, and the index that lets them read only the segments they need.
//!
//! **Method.** Before the first slice of a read every segment has an outline (from its index file, or by reading it
//! once). Segments whose times or objects cannot match are skipped; of the others only the pieces that can match are
//! read. A slice reads a bounded part of the log under the store's lock and hands over what it found after the lock is
//! released.
//!
//! **Damage.** What damage may hide of the range is counted. A place that cannot be read counts, and an index made from
//! a damaged segment rules nothing out. Numbers that a segment held, or that lie between two neighbours, and that are
//! not met, count as missing.
//!
//! **Times.** A reading may have got its time from the node's clock before that clock was trusted. It gets the time
//! that the clock would have shown: its arrival on the monotonic clock, dated by a trusted moment of the same boot.
//!
//! **In the log's own order**, for consumers that pass readings on: `follow.rs`.

pub(crate) mod follow;
pub mod index;

use std::ops::ControlFlow;

use crate::error::Error;
use crate::log::codec::{Reading, Record};
use crate::log::reader::{Damage, Found, Reader, Tail};
use crate::log::scan;
use crate::log::summary::{Boots, Outline, Sample, Summary};
use crate::options::ObjectId;
use crate::store::SegmentStore;
use crate::time::Time;

use index::{Index, LOADS_PER_STEP, Limits, STEP_BYTES};

/// The query of a range read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryQuery {
    /// One object, or all of them.
    pub id: Option<ObjectId>,
    /// Earliest time wanted.
    pub from: Time,
    /// First time no longer wanted.
    pub to: Time,
}

/// The position of a range read between two slices.
#[derive(Default)]
pub struct HistoryCursor {
    report: HistoryReport,
    phase: Phase,
    boots: Boots,
    /// Segments still to be read, the next one last.
    plan: Vec<u32>,
    reader: Option<Reader>,
    /// Where the next slice begins and the last one ends, in the segment that is being read.
    place: Option<(u32, u64, u64)>,
    pub(crate) found: Matches,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Index,
    Read,
    Done,
}

impl std::fmt::Debug for HistoryCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HistoryCursor")
            .field("phase", &self.phase)
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}

impl HistoryCursor {
    /// What the read has seen so far.
    #[must_use]
    pub fn report(&self) -> &HistoryReport {
        &self.report
    }
}

/// What a range read has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryReport {
    /// Segments of the log when the read began.
    pub segments_total: u64,
    /// Segments that were read, at least in part.
    pub segments_read: u64,
    /// Segments that the index ruled out.
    pub segments_skipped: u64,
    /// Segments that retention deleted meanwhile.
    pub segments_gone: u64,
    /// Bytes of log read.
    pub bytes_read: u64,
    /// Readings looked at.
    pub readings: u64,
    /// Readings passed to the visitor.
    pub readings_matched: u64,
    /// Damage found.
    pub damage: Damage,
}

/// One reading of a range read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryEntry<'a> {
    /// The object's number.
    pub id: ObjectId,
    /// Its time; corrected if the node's clock gave it before it was trusted and the right time is known now.
    pub time: Time,
    /// The time as it was recorded.
    pub recorded: Time,
    /// Whether the node's clock gave the time, not the sensor.
    pub node_time: bool,
    /// Whether the node's clock was trusted at arrival.
    pub wall_trusted: bool,
    /// Whether `time` is not `recorded` but what the clock would have said had it been right.
    pub time_corrected: bool,
    /// Arrival on the monotonic clock of `boot_id`, µs.
    pub arrival_us: u64,
    /// Boot in which it arrived.
    pub boot_id: [u8; 16],
    /// Number in the log.
    pub lsn: u64,
    /// The value.
    pub value: &'a [u8],
}

/// What a slice found, kept until the lock is released.
#[derive(Debug, Default)]
pub(crate) struct Matches {
    pub(crate) entries: Vec<(HistoryEntry<'static>, usize)>,
    values: Vec<u8>,
}

impl Matches {
    pub(crate) fn push(&mut self, entry: HistoryEntry<'static>, value: &[u8]) {
        self.values.extend_from_slice(value);
        self.entries.push((entry, self.values.len()));
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.values.clear();
    }

    /// Passes everything to the visitor until it breaks.
    pub(crate) fn visit(
        &self,
        visit: &mut dyn FnMut(&HistoryEntry<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut begin = 0;
        for (entry, end) in &self.entries {
            let value = self.values.get(begin..*end).unwrap_or(&[]);
            begin = *end;
            visit(&HistoryEntry { value, ..*entry })?;
        }
        ControlFlow::Continue(())
    }
}

/// What a slice needs from the database.
pub(crate) struct Source<'a, S: SegmentStore> {
    pub(crate) store: &'a mut S,
    pub(crate) index: &'a mut Index,
    pub(crate) segments: &'a std::collections::VecDeque<u32>,
    pub(crate) active: Option<(u32, u64)>,
    /// What the writer knows about the segment that grows.
    pub(crate) live: Option<&'a Summary>,
    pub(crate) limits: Limits,
    /// This boot and a trusted moment of it, if its clock is trusted now.
    pub(crate) present: Option<([u8; 16], Sample)>,
}

/// Ends the read: the visitor has seen enough.
pub(crate) fn stop(cursor: &mut HistoryCursor) {
    cursor.phase = Phase::Done;
    cursor.reader = None;
}

/// Runs one step of indexing every segment. `true`: more to do.
pub(crate) fn index_step<S: SegmentStore>(source: &mut Source<'_, S>) -> Result<bool, Error> {
    source.index.step(
        source.store,
        source.segments,
        source.active,
        source.live,
        &source.limits,
    )
}

/// Reads one slice: fills `cursor.found`. `true`: more to come.
pub(crate) fn slice<S: SegmentStore>(
    source: &mut Source<'_, S>,
    query: &HistoryQuery,
    cursor: &mut HistoryCursor,
) -> Result<bool, Error> {
    cursor.found.clear();
    match cursor.phase {
        Phase::Index => {
            if !index_step(source)? {
                plan(source, query, cursor);
                cursor.phase = Phase::Read;
            }
            Ok(true)
        }
        Phase::Read => {
            if cursor.place.is_none() && !next_place(source, query, cursor) {
                stop(cursor);
                return Ok(false);
            }
            read(source, query, cursor)?;
            Ok(true)
        }
        Phase::Done => Ok(false),
    }
}

/// Chooses the segments to read.
fn plan<S: SegmentStore>(source: &Source<'_, S>, query: &HistoryQuery, cursor: &mut HistoryCursor) {
    cursor.boots = source.index.boots(source.live, source.present);
    cursor.report.segments_total = source.segments.len() as u64;
    cursor.report.damage.readings_missing = missing_between(source, query, &cursor.boots);
    for segment in source.segments.iter().rev().copied() {
        // A segment that damage hides from its beginning to its end has no reading in its outline.
        let meets = outline_of(source, segment).is_none_or(|outline| {
            outline.unbounded
                || outline.readings > 0 && cursor.boots.span_of(outline).meets(query.from, query.to)
        });
        if meets {
            cursor.plan.push(segment);
        } else {
            cursor.report.segments_skipped += 1;
        }
    }
}

fn outline_of<'a, S: SegmentStore>(source: &'a Source<'_, S>, segment: u32) -> Option<&'a Outline> {
    let (index, live) = (&*source.index, source.live);
    index.outline(segment).or_else(|| {
        index
            .active(source.active, segment, live)
            .map(|summary| &summary.outline)
    })
}

/// Returns the number of readings that are missing between neighbouring segments and may lie in the range. They were in
/// a file that is gone, or at an end that looks torn.
fn missing_between<S: SegmentStore>(
    source: &Source<'_, S>,
    query: &HistoryQuery,
    boots: &Boots,
) -> u64 {
    let mut missing = 0u64;
    let mut before: Option<(u32, &Outline)> = None;
    for segment in source.segments.iter().copied() {
        let Some(outline) = outline_of(source, segment) else {
            before = None;
            continue;
        };
        if outline.readings == 0 {
            continue;
        }
        if let Some((number, earlier)) = before.replace((segment, outline)) {
            let gap = outline.first_lsn.saturating_sub(earlier.end_lsn());
            // The end of a damaged segment is unknown. The read of that segment counts its places.
            let is_known = !earlier.unbounded || number.checked_add(1) != Some(segment);
            if gap > 0 && is_known {
                let mut span = boots.span_of(earlier);
                span.join(&boots.span_of(outline));
                if span.meets(query.from, query.to) {
                    missing = missing.saturating_add(gap);
                }
            }
        }
    }
    missing
}

/// Goes to the next segment and the part of it that can match. One call passes at most a few segments, whose files it
/// opens. `false`: there is none left.
fn next_place<S: SegmentStore>(
    source: &mut Source<'_, S>,
    query: &HistoryQuery,
    cursor: &mut HistoryCursor,
) -> bool {
    for _ in 0..LOADS_PER_STEP {
        let Some(segment) = cursor.plan.pop() else {
            return false;
        };
        if source.segments.binary_search(&segment).is_err() {
            cursor.report.segments_gone += 1;
            continue;
        }
        let loaded;
        let summary = match source.index.active(source.active, segment, source.live) {
            // Bytes appended since the index was made lie behind its last piece. What damage hides is in no piece.
            Some(summary) => Some(summary).filter(|summary| !summary.outline.unbounded),
            None => {
                loaded = index::load(source.store, segment);
                loaded.as_ref()
            }
        };
        let range = match summary {
            Some(summary) if query.id.is_some_and(|id| !summary.may_hold(id.0)) => None,
            Some(summary) => summary.range(query.from, query.to),
            None => Some((0, u64::MAX)),
        };
        let Some((begin, end)) = range else {
            cursor.report.segments_skipped += 1;
            continue;
        };
        cursor.report.segments_read += 1;
        cursor.place = Some((segment, begin, end));
        // A segment can be read alone: the context of another one must not stand in for a damaged beginning.
        let mut reader = Reader::new();
        if begin == 0
            && let Some(outline) = source.index.outline(segment)
            && outline.readings > 0
        {
            reader.expect_lsn(outline.first_lsn);
        }
        cursor.reader = Some(reader);
        return true;
    }
    true
}

/// Reads a part of the current segment.
fn read<S: SegmentStore>(
    source: &mut Source<'_, S>,
    query: &HistoryQuery,
    cursor: &mut HistoryCursor,
) -> Result<(), Error> {
    let (Some((segment, begin, end)), Some(reader)) = (cursor.place, cursor.reader.as_mut()) else {
        return Ok(());
    };
    if source.segments.binary_search(&segment).is_err() {
        cursor.report.segments_gone += 1;
        cursor.place = None;
        return Ok(());
    }
    let until = begin.saturating_add(STEP_BYTES).min(end);
    let before = reader.damage;
    let (report, boots, found) = (&mut cursor.report, &cursor.boots, &mut cursor.found);
    let tail = scan::read_segment(source.store, reader, segment, begin, &mut |record| {
        if let Record::Reading(reading) = &record.record {
            report.readings += 1;
            take(query, boots, record, reading, report, found);
        }
        Ok(if record.offset >= until {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        })
    })?;
    let damage = &mut cursor.report.damage;
    damage.add_since(&reader.damage, &before);
    if tail != Tail::Stopped
        && let Some(outline) = source.index.outline(segment)
        && let Some(next_lsn) = reader.next_lsn()
    {
        let missing = outline.end_lsn().saturating_sub(next_lsn);
        damage.readings_missing = damage.readings_missing.saturating_add(missing);
    }
    let position = reader.position();
    cursor.report.bytes_read += position.saturating_sub(begin);
    cursor.place =
        (tail == Tail::Stopped && position < end).then_some((segment, position.max(begin), end));
    Ok(())
}

fn take(
    query: &HistoryQuery,
    boots: &Boots,
    record: &Found<'_>,
    reading: &Reading<'_>,
    report: &mut HistoryReport,
    found: &mut Matches,
) {
    if query.id.is_some_and(|id| id.0 != reading.id) {
        return;
    }
    let recorded = reading.time;
    let corrected = (reading.node_time && !reading.wall_trusted)
        .then(|| boots.wall_at(&record.boot_id, reading.arrival_us))
        .flatten();
    let time = corrected.unwrap_or(recorded);
    if time < query.from || time >= query.to {
        return;
    }
    report.readings_matched += 1;
    let entry = HistoryEntry {
        id: ObjectId(reading.id),
        time,
        recorded,
        node_time: reading.node_time,
        wall_trusted: reading.wall_trusted,
        time_corrected: corrected.is_some(),
        arrival_us: reading.arrival_us,
        boot_id: record.boot_id,
        lsn: record.lsn,
        value: &[],
    };
    found.push(entry, reading.value);
}
