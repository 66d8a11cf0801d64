//! Reads the whole log in its order: for recovery, verification and history.

use std::ops::ControlFlow;

use crate::error::Error;
use crate::limits::OBJECTS_LIMIT;
use crate::options::ObjectId;
use crate::store::{SegmentStore, StoreError};
use crate::time::Time;

use super::codec::{self, Record};
use super::reader::{Damage, Found, Reader, Tail};
use super::seal::Seal;
use super::{SEGMENT_PREFIX, checkpoint, number_in, segment_name};

/// One logged reading.
#[derive(Clone, Copy, Debug)]
pub struct LogEntry<'a> {
    /// The object's key; `None` when damage took every record that named it.
    pub key: Option<&'a str>,
    /// The object's number.
    pub id: ObjectId,
    /// Sensor time.
    pub time: Time,
    /// Arrival on the monotonic clock of `boot_id`, in µs.
    pub arrival_us: u64,
    /// Boot in which it arrived.
    pub boot_id: [u8; 16],
    /// Whether the wall clock was trusted at arrival.
    pub wall_trusted: bool,
    /// The value.
    pub value: &'a [u8],
    /// Number in the log, the same as the ticket's. After damage it may be low until the next anchor.
    pub lsn: u64,
    /// Segment that holds the record.
    pub segment: u32,
    /// The record's first byte in that segment.
    pub offset: u64,
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanReport {
    /// Segments read.
    pub segments: u64,
    /// Readings passed to the visitor.
    pub readings: u64,
    /// Readings whose object had no name.
    pub readings_unnamed: u64,
    /// Dictionary records that gave a number or key a second meaning; the first meaning stays.
    pub dictionary_conflicts: u64,
    /// Damage found.
    pub damage: Damage,
}

/// Numbers of every log segment, ascending; `false` when part of the store's directory is damaged.
///
/// # Errors
/// [`Error::Store`] when the store cannot be listed at all.
pub fn segments<S: SegmentStore>(store: &mut S) -> Result<(Vec<u32>, bool), Error> {
    let mut numbers = Vec::new();
    let listed = store.list(&mut |name| numbers.extend(number_in(name, SEGMENT_PREFIX)));
    numbers.sort_unstable();
    match listed {
        Ok(()) => Ok((numbers, true)),
        Err(StoreError::Damaged { .. }) => Ok((numbers, false)),
        Err(error) => Err(error.into()),
    }
}

/// Returns the format version in a segment's head; `None` if there is none.
///
/// # Errors
/// [`Error::Store`] when the device is gone.
pub(crate) fn version_of<S: SegmentStore>(
    store: &mut S,
    number: u32,
) -> Result<Option<u32>, Error> {
    let mut head = [0; 64];
    let read = read_head(store, number, &mut head)?;
    Ok(
        match codec::decode(&head[..read], Seal::of(store.secret()), None) {
            Ok((Record::Segment { version, .. }, _)) => Some(version),
            _ => None,
        },
    )
}

/// Reads the first bytes of a segment; none if it cannot be read.
fn read_head<S: SegmentStore>(store: &mut S, number: u32, head: &mut [u8]) -> Result<usize, Error> {
    let file = match store.open(&segment_name(number)) {
        Ok(file) => file,
        Err(StoreError::NotFound | StoreError::Damaged { .. }) => return Ok(0),
        Err(error) => return Err(error.into()),
    };
    let read = store.read(file, 0, head);
    store.close(file);
    match read {
        Ok(read) => Ok(read),
        Err(StoreError::Damaged { .. }) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// Returns the number of the first reading of a segment, from the first anchor in it; `None` if there is none.
pub(crate) fn first_lsn_of<S: SegmentStore>(store: &mut S, number: u32) -> Option<u64> {
    let mut first = None;
    // Many dictionary records may come before the anchor.
    let read = read_segment(store, &mut Reader::new(), number, 0, &mut |found| {
        Ok(match found.record {
            Record::Anchor(anchor) => {
                first = Some(anchor.lsn);
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        })
    });
    read.ok().and(first)
}

/// Reads one segment from `offset`. A segment that cannot be opened is counted and ends torn.
///
/// # Errors
/// As [`Reader::read`].
pub(crate) fn read_segment<S: SegmentStore>(
    store: &mut S,
    reader: &mut Reader,
    number: u32,
    offset: u64,
    visit: &mut dyn FnMut(&Found<'_>) -> Result<ControlFlow<()>, Error>,
) -> Result<Tail, Error> {
    let file = match store.open(&segment_name(number)) {
        Ok(file) => file,
        Err(StoreError::NotFound | StoreError::Damaged { .. }) => {
            reader.damage.files_unreadable += 1;
            return Ok(Tail::Torn);
        }
        Err(error) => return Err(error.into()),
    };
    let tail = reader.read_segment(store, (number, file), offset, visit);
    store.close(file);
    tail
}

/// Keys by number, each in one piece of memory.
#[derive(Debug, Default)]
struct Names {
    text: String,
    spans: Vec<(u32, u8)>,
}

impl Names {
    fn get(&self, id: u32) -> Option<&str> {
        let (start, bytes) = *self.spans.get(id as usize)?;
        self.text
            .get(start as usize..start as usize + usize::from(bytes))
            .filter(|key| !key.is_empty())
    }

    /// Returns `false` if the number already has another key or is beyond every table.
    fn add(&mut self, id: u32, key: &str) -> bool {
        if id >= OBJECTS_LIMIT {
            return false;
        }
        if let Some(known) = self.get(id) {
            return known == key;
        }
        if self.spans.len() <= id as usize {
            self.spans.resize(id as usize + 1, (0, 0));
        }
        self.spans[id as usize] = (self.text.len() as u32, key.len() as u8);
        self.text.push_str(key);
        true
    }
}

/// Passes every reading of the log to `visit`, oldest first, until it breaks. Memory: one buffer and the keys.
///
/// # Errors
/// [`Error::Store`] when the device is gone, [`Error::Version`]. Damage is no error: it is in the report.
pub fn scan_log<S: SegmentStore>(
    store: &mut S,
    visit: &mut dyn FnMut(&LogEntry<'_>) -> ControlFlow<()>,
) -> Result<ScanReport, Error> {
    let mut report = ScanReport::default();
    let mut names = Names::default();
    // Number of readings logged before a checkpoint, by its head.
    let mut written = 0;
    // A checkpoint's names replace dictionary records that were lost to damage.
    for number in checkpoint::numbers(store)?.into_iter().rev() {
        if let Some(head) = checkpoint::verify(store, number)? {
            written = head.lsn;
            checkpoint::visit(store, number, &mut |record| {
                if let Record::Object(object) = record {
                    names.add(object.entry.id, object.entry.key);
                }
                Ok(ControlFlow::Continue(()))
            })?;
            break;
        }
    }
    let mut reader = Reader::new();
    let (numbers, listed_whole) = segments(store)?;
    // The first or the last segment may be one that was not listed; no number tells.
    reader.damage.files_unreadable += u64::from(!listed_whole);
    if numbers.first() == Some(&0) {
        reader.expect_lsn(0);
    }
    let mut stopped = false;
    for number in numbers {
        report.segments += 1;
        let tail = read_segment(store, &mut reader, number, 0, &mut |found| {
            match found.record {
                Record::Dictionary(entry) => {
                    report.dictionary_conflicts += u64::from(!names.add(entry.id, entry.key));
                }
                Record::Reading(reading) => {
                    let key = names.get(reading.id);
                    report.readings += 1;
                    report.readings_unnamed += u64::from(key.is_none());
                    return Ok(visit(&LogEntry {
                        key,
                        id: ObjectId(reading.id),
                        time: reading.time,
                        arrival_us: reading.arrival_us,
                        boot_id: found.boot_id,
                        wall_trusted: reading.wall_trusted,
                        value: reading.value,
                        lsn: found.lsn,
                        segment: number,
                        offset: found.offset,
                    }));
                }
                _ => {}
            }
            Ok(ControlFlow::Continue(()))
        })?;
        stopped = tail == Tail::Stopped;
        if stopped {
            break;
        }
    }
    if !stopped {
        let seen = reader.next_lsn().unwrap_or(written);
        let missing = &mut reader.damage.readings_missing;
        *missing = missing.saturating_add(written.saturating_sub(seen));
    }
    report.damage = reader.damage;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_keeps_its_first_name() {
        let mut names = Names::default();
        assert!(names.add(3, "three"));
        assert!(names.add(3, "three"));
        assert!(!names.add(3, "drei"));
        assert!(!names.add(u32::MAX, "beyond every table"));
        assert!(names.add(0, "zero"));
        assert_eq!(
            (names.get(0), names.get(1), names.get(3)),
            (Some("zero"), None, Some("three"))
        );
    }
}
