//! Reads the log in its own order, from any reading on: for a consumer that passes readings on and must skip none.
//!
//! **Invariants:** every durable reading is passed once, in the order of the numbers, with any time. A step reads a
//! bounded part of the log under the store's lock. Numbers that no longer exist are counted, by reason, and never
//! skipped silently. A step that counts some ends with the first reading behind them. So the gap
//! lies right before the last reading of a step. A consumer that has passed this reading has passed the gap too.
//!
//! **Why not by time.** A range read finds the readings of a time interval. A sensor may send a reading that is older
//! than those read already. So a position in time is no position in the log, but a number is one.

use std::ops::ControlFlow;

use crate::error::Error;
use crate::log::codec::{Reading, Record};
use crate::log::reader::{Found, Reader, Tail};
use crate::log::scan;
use crate::log::summary::Boots;
use crate::options::ObjectId;
use crate::store::SegmentStore;
use crate::time::Time;

use super::{HistoryEntry, Matches, Source};

/// Most bytes of log that one step reads (beside what it takes to pass a damaged place). A follower goes on for hours,
/// beside commits: if a commit waits, the step ends sooner. One buffer's length is read at a time, and buffered bytes
/// are not read again.
const STEP_BYTES: u64 = 64 << 10;

/// Records after which the step checks whether a commit waits: some ten microseconds.
const LOOK_RECORDS: u64 = 64;

/// The position of a follower of the log.
pub struct LogCursor {
    next_lsn: u64,
    /// Segment and offset of what follows; `None` if it must be found by the number.
    place: Option<(u32, u64)>,
    reader: Reader,
    pub(crate) found: Matches,
}

impl std::fmt::Debug for LogCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogCursor")
            .field("next_lsn", &self.next_lsn)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

impl LogCursor {
    /// A cursor before the reading with this number.
    #[must_use]
    pub fn new(next_lsn: u64) -> Self {
        Self {
            next_lsn,
            place: None,
            reader: Reader::new(),
            found: Matches::default(),
        }
    }

    /// Number of the next reading.
    #[must_use]
    pub fn next_lsn(&self) -> u64 {
        self.next_lsn
    }

    /// Moves to another reading, earlier or later.
    pub fn seek(&mut self, next_lsn: u64) {
        if next_lsn != self.next_lsn {
            self.next_lsn = next_lsn;
            self.place = None;
        }
    }
}

/// The result of one step. Readings that are gone or missing lie right before the last reading of the step, or behind
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStep {
    /// Whether another step may find more at once.
    pub more: bool,
    /// Readings looked at, wanted or not.
    pub readings: u64,
    /// Readings that were deleted before they were read.
    pub readings_gone: u64,
    /// Readings that damage hides.
    pub readings_missing: u64,
}

/// Which readings a step searches, and when it ends.
pub(crate) struct StepLimits<'a> {
    /// Only readings below this number, which are durable.
    pub(crate) end_lsn: u64,
    /// Most readings to find.
    pub(crate) readings_max: usize,
    pub(crate) is_wanted: &'a mut dyn FnMut(ObjectId) -> bool,
    /// Whether a commit waits for the store: then the step ends.
    pub(crate) is_awaited: &'a dyn Fn() -> bool,
}

/// One step: fills `cursor.found`.
pub(crate) fn step<S: SegmentStore>(
    source: &mut Source<'_, S>,
    cursor: &mut LogCursor,
    limits: &mut StepLimits<'_>,
) -> Result<LogStep, Error> {
    let mut step = LogStep::default();
    cursor.found.clear();
    if cursor.next_lsn >= limits.end_lsn || limits.readings_max == 0 {
        return Ok(step);
    }
    let is_there = |segment: u32| source.segments.binary_search(&segment).is_ok();
    if !cursor.place.is_some_and(|(segment, _)| is_there(segment)) {
        let Some((segment, first)) = locate(source, cursor.next_lsn) else {
            return Ok(step);
        };
        if first > cursor.next_lsn {
            let first = first.min(limits.end_lsn);
            step.readings_gone = first - cursor.next_lsn;
            cursor.next_lsn = first;
        }
        cursor.place = Some((segment, 0));
        cursor.reader = Reader::new();
        if cursor.next_lsn >= limits.end_lsn {
            return Ok(step);
        }
    }
    read(source, cursor, limits, &mut step)?;
    Ok(step)
}

/// Returns a segment and the number of its first reading. It is the last segment that begins at or before `lsn`, or
/// else the first one whose number is known.
fn locate<S: SegmentStore>(source: &mut Source<'_, S>, lsn: u64) -> Option<(u32, u64)> {
    let (mut low, mut high) = (0, source.segments.len());
    let mut best = None;
    let mut later = None;
    while low < high {
        let middle = low + (high - low) / 2;
        // A segment without any number, because its first append was cut, is taken together with what follows it.
        let mut at = middle;
        let mut first = None;
        while at < high && first.is_none() {
            first = source.segments.get(at).and_then(|segment| {
                source
                    .index
                    .first_lsn(source.store, *segment, source.live)
                    .map(|first| (*segment, first))
            });
            at += 1;
        }
        match first {
            Some((segment, first)) if first <= lsn => {
                best = Some((segment, first));
                low = at;
            }
            Some(found) => {
                later = Some(found);
                high = middle;
            }
            None => high = middle,
        }
    }
    best.or(later)
}

fn read<S: SegmentStore>(
    source: &mut Source<'_, S>,
    cursor: &mut LogCursor,
    limits: &mut StepLimits<'_>,
    step: &mut LogStep,
) -> Result<(), Error> {
    let Some((segment, begin)) = cursor.place else {
        return Ok(());
    };
    let LogCursor {
        next_lsn,
        reader,
        found: matches,
        ..
    } = cursor;
    let until = begin.saturating_add(STEP_BYTES);
    let (index, live, present) = (&*source.index, source.live, source.present);
    let mut boots: Option<Boots> = None;
    let mut is_over = false;
    let mut records: u64 = 0;
    let tail = scan::read_segment(source.store, reader, segment, begin, &mut |found| {
        records += 1;
        let mut is_behind_gap = false;
        if let Record::Reading(reading) = &found.record
            && found.lsn >= *next_lsn
        {
            if found.lsn >= limits.end_lsn {
                is_over = true;
                return Ok(ControlFlow::Break(()));
            }
            step.readings += 1;
            step.readings_missing += found.lsn - *next_lsn;
            is_behind_gap = step.readings_gone > 0 || step.readings_missing > 0;
            *next_lsn = found.lsn + 1;
            if (limits.is_wanted)(ObjectId(reading.id)) {
                let dated = || {
                    let boots = boots.get_or_insert_with(|| index.boots(live, present));
                    boots.wall_at(&found.boot_id, reading.arrival_us)
                };
                matches.push(entry(found, reading, dated), reading.value);
            }
        }
        let is_enough = is_behind_gap
            || found.offset >= until
            || matches.entries.len() >= limits.readings_max
            || records.is_multiple_of(LOOK_RECORDS) && (limits.is_awaited)();
        Ok(if is_enough {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        })
    })?;
    let position = reader.position().max(begin);
    if is_over {
        // The reading that was met is not passed, and nothing of this range follows it.
        step.readings_missing += limits.end_lsn - *next_lsn;
        *next_lsn = limits.end_lsn;
        cursor.place = None;
        return Ok(());
    }
    step.more = *next_lsn < limits.end_lsn;
    if tail == Tail::Stopped {
        cursor.place = Some((segment, position));
        return Ok(());
    }
    let place = source.segments.binary_search(&segment).unwrap_or(0);
    match source.segments.get(place + 1) {
        Some(next) => {
            cursor.place = Some((*next, 0));
            // A segment can be read alone: the context of another one must not stand in for a damaged beginning.
            cursor.reader = Reader::new();
        }
        None => {
            cursor.place = Some((segment, position));
            step.more = false;
            // The end of the log has been read, so readings that were not met do not exist.
            if tail == Tail::Clean {
                step.readings_missing += limits.end_lsn - *next_lsn;
                *next_lsn = limits.end_lsn;
            }
        }
    }
    Ok(())
}

fn entry(
    found: &Found<'_>,
    reading: &Reading<'_>,
    dated: impl FnOnce() -> Option<Time>,
) -> HistoryEntry<'static> {
    let recorded = reading.time;
    let corrected = (reading.node_time && !reading.wall_trusted)
        .then(dated)
        .flatten();
    HistoryEntry {
        id: ObjectId(reading.id),
        time: corrected.unwrap_or(recorded),
        recorded,
        node_time: reading.node_time,
        wall_trusted: reading.wall_trusted,
        time_corrected: corrected.is_some(),
        arrival_us: reading.arrival_us,
        boot_id: found.boot_id,
        lsn: found.lsn,
        value: &[],
    }
}
