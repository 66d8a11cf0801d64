//! What is known about the segments: an outline of each in memory, the whole summary in a file beside the segment.
//!
//! **Invariants:** work comes in steps that read a bounded part of the log. A missing, torn or foreign index file is
//! rebuilt from its segment. Nothing here is needed to start the database, nor to find a reading.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;

use crate::error::Error;
use crate::log::reader::{Damage, Reader, Tail};
use crate::log::scan;
use crate::log::seal::Seal;
use crate::log::summary::{Boots, INDEX_BYTES_MAX, Outline, Sample, Summary};
use crate::log::{number_in, segment_name};
use crate::store::{SegmentStore, StoreError};

/// Prefix of index file names.
pub const INDEX_PREFIX: &str = "index-";
/// Most bytes of log that one step reads (beside what it takes to pass a damaged place).
pub(crate) const STEP_BYTES: u64 = 256 << 10;
/// Index files that one step reads.
pub(crate) const LOADS_PER_STEP: usize = 16;

/// Name of the index file of a segment.
#[must_use]
pub fn name(segment: u32) -> String {
    format!("{INDEX_PREFIX}{segment:08}")
}

/// A segment that is being read for its summary.
struct Building {
    summary: Summary,
    reader: Reader,
    offset: u64,
}

/// Sizes that the index must respect.
pub(crate) struct Limits {
    pub(crate) segment_bytes_max: u64,
    /// Bytes of the store that are reserved for a checkpoint.
    pub(crate) reserve_bytes: u64,
}

/// The index.
#[derive(Default)]
pub(crate) struct Index {
    known: BTreeMap<u32, Outline>,
    /// Segments without a usable index file.
    unindexed: BTreeSet<u32>,
    building: Option<Box<Building>>,
    /// Index files of segments that are gone, found at the start.
    orphans: Vec<u32>,
    orphans_sought: bool,
    pub(crate) damage: Damage,
}

impl Index {
    /// Number of the first reading of a segment.
    pub(crate) fn first_lsn<S: SegmentStore>(
        &self,
        store: &mut S,
        segment: u32,
        live: Option<&Summary>,
    ) -> Option<u64> {
        let growing = live
            .filter(|summary| summary.segment == segment)
            .map(|summary| &summary.outline);
        match growing.or(self.known.get(&segment)) {
            Some(outline) if outline.readings > 0 => Some(outline.first_lsn),
            _ => scan::first_lsn_of(store, segment),
        }
    }

    pub(crate) fn outline(&self, segment: u32) -> Option<&Outline> {
        self.known.get(&segment)
    }

    /// Forgets a segment that is gone.
    pub(crate) fn forget(&mut self, segment: u32) {
        self.known.remove(&segment);
        self.unindexed.remove(&segment);
        if self
            .building
            .as_ref()
            .is_some_and(|building| building.summary.segment == segment)
        {
            self.building = None;
        }
    }

    /// Returns the summary of the segment that grows, at the length in `active`. It comes from the segment's writer
    /// (`live`), or else from having read the segment up to this end.
    pub(crate) fn active<'a>(
        &'a self,
        active: Option<(u32, u64)>,
        segment: u32,
        live: Option<&'a Summary>,
    ) -> Option<&'a Summary> {
        let (_, bytes) = active.filter(|(growing, _)| *growing == segment)?;
        let read = self
            .building
            .as_ref()
            .filter(|building| building.offset >= bytes)
            .map(|building| &building.summary);
        live.or(read).filter(|summary| summary.segment == segment)
    }

    /// Takes the summary that the writer made of a segment.
    pub(crate) fn adopt<S: SegmentStore>(
        &mut self,
        store: &mut S,
        segments: &VecDeque<u32>,
        summary: Summary,
        reserve_bytes: u64,
    ) -> Result<(), Error> {
        // The segment may have been deleted meanwhile.
        if segments.binary_search(&summary.segment).is_ok() {
            keep(store, &summary, reserve_bytes)?;
            self.unindexed.remove(&summary.segment);
            self.known.insert(summary.segment, summary.outline);
        }
        Ok(())
    }

    /// Runs one step of indexing every segment, the growing one up to its present end. `true`: more to do.
    pub(crate) fn step<S: SegmentStore>(
        &mut self,
        store: &mut S,
        segments: &VecDeque<u32>,
        active: Option<(u32, u64)>,
        live: Option<&Summary>,
        limits: &Limits,
    ) -> Result<bool, Error> {
        if self.remove_orphan(store, segments)? {
            return Ok(true);
        }
        let growing = active.map(|(segment, _)| segment);
        let mut loads = 0;
        let mut next = None;
        for segment in segments.iter().copied() {
            if self.known.contains_key(&segment) || growing == Some(segment) {
                continue;
            }
            if !self.unindexed.contains(&segment) && !self.is_building(segment) {
                if loads == LOADS_PER_STEP {
                    return Ok(true);
                }
                loads += 1;
                match load(store, segment) {
                    Some(summary) => {
                        self.known.insert(segment, summary.outline);
                        continue;
                    }
                    None => {
                        self.unindexed.insert(segment);
                    }
                }
            }
            next = next.or(Some(segment));
        }
        match (next, active) {
            (Some(segment), _) => self.build(store, segment, None, limits).map(|()| true),
            (None, Some((segment, _))) if live.is_some_and(|live| live.segment == segment) => {
                self.building = None;
                Ok(loads > 0)
            }
            (None, Some((segment, bytes))) => {
                self.build(store, segment, Some(bytes), limits)?;
                Ok(self
                    .building
                    .as_ref()
                    .is_some_and(|building| building.offset < bytes))
            }
            (None, None) => Ok(loads > 0),
        }
    }

    fn is_building(&self, segment: u32) -> bool {
        self.building
            .as_ref()
            .is_some_and(|building| building.summary.segment == segment)
    }

    /// Continues reading a segment; `grows_to` is the present end of one that still grows.
    fn build<S: SegmentStore>(
        &mut self,
        store: &mut S,
        segment: u32,
        grows_to: Option<u64>,
        limits: &Limits,
    ) -> Result<(), Error> {
        if !self.is_building(segment) {
            self.building = None;
        }
        let building = self.building.get_or_insert_with(|| {
            Box::new(Building {
                summary: Summary::new(segment),
                reader: Reader::new(),
                offset: 0,
            })
        });
        let Building {
            summary,
            reader,
            offset,
        } = &mut **building;
        if grows_to.is_some_and(|end| *offset >= end) {
            return Ok(());
        }
        let until = offset.saturating_add(STEP_BYTES);
        let before = reader.damage;
        let tail = scan::read_segment(store, reader, segment, *offset, &mut |found| {
            summary.add(found, limits.segment_bytes_max);
            Ok(if found.offset >= until {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })?;
        self.damage.add_since(&reader.damage, &before);
        let is_damaged = reader.damage.any();
        // It is unknown what the unreadable places hold, and for how long they stay unreadable.
        summary.outline.unbounded |= is_damaged;
        *offset = reader.position().max(*offset);
        if tail != Tail::Stopped {
            // Unreadable bytes are passed, too.
            *offset = grows_to.map_or(*offset, |end| end.max(*offset));
            summary.outline.log_bytes = *offset;
            if grows_to.is_none() {
                self.unindexed.remove(&segment);
                if let Some(building) = self.building.take() {
                    if !is_damaged {
                        keep(store, &building.summary, limits.reserve_bytes)?;
                    }
                    self.known.insert(segment, building.summary.outline);
                }
            }
        }
        Ok(())
    }

    /// Removes one index file whose segment is gone; searches for such files once.
    fn remove_orphan<S: SegmentStore>(
        &mut self,
        store: &mut S,
        segments: &VecDeque<u32>,
    ) -> Result<bool, Error> {
        if !self.orphans_sought {
            self.orphans_sought = true;
            let mut found = Vec::new();
            let listed = store.list(&mut |name| found.extend(number_in(name, INDEX_PREFIX)));
            match listed {
                Ok(()) => {
                    found.retain(|segment| segments.binary_search(segment).is_err());
                    self.orphans = found;
                }
                // The segment may be among what was not listed.
                Err(StoreError::Damaged { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let Some(segment) = self.orphans.pop() else {
            return Ok(false);
        };
        if segments.binary_search(&segment).is_ok() {
            return Ok(true);
        }
        match store.delete(&name(segment)) {
            Err(error @ StoreError::Failed { .. }) => Err(error.into()),
            _ => Ok(true),
        }
    }

    /// Returns when each boot's clock could be trusted, including what is known of the present boot.
    pub(crate) fn boots(
        &self,
        live: Option<&Summary>,
        present: Option<([u8; 16], Sample)>,
    ) -> Boots {
        let mut boots = Boots::default();
        for outline in self.known.values() {
            boots.add_outline(outline);
        }
        if let Some(building) = &self.building {
            boots.add_outline(&building.summary.outline);
        }
        if let Some(summary) = live {
            boots.add_outline(&summary.outline);
        }
        if let Some((boot_id, sample)) = present {
            boots.add(boot_id, sample);
        }
        boots.sort();
        boots
    }

    /// Returns the number of readings between two neighbouring known segments by their numbers: they existed once.
    pub(crate) fn readings_missing(&self, segments: &VecDeque<u32>) -> u64 {
        let mut missing = 0u64;
        let mut next = None;
        for segment in segments {
            let Some(outline) = self.known.get(segment) else {
                next = None;
                continue;
            };
            if outline.readings == 0 {
                continue;
            }
            if let Some(next) = next {
                missing = missing.saturating_add(outline.first_lsn.saturating_sub(next));
            }
            next = Some(outline.end_lsn());
        }
        missing
    }

    /// Bytes of the segments; one that is not known yet counts as a full one.
    pub(crate) fn log_bytes(
        &self,
        segments: &VecDeque<u32>,
        active: Option<(u32, u64)>,
        segment_bytes_max: u64,
    ) -> u64 {
        let bytes_of = |segment: &u32| match (self.known.get(segment), active) {
            (_, Some((growing, bytes))) if growing == *segment => bytes,
            (Some(outline), _) => outline.log_bytes,
            _ => segment_bytes_max,
        };
        segments.iter().map(bytes_of).sum()
    }
}

/// Reads a segment's index file. `None` if there is no usable one, for any reason; none is needed.
pub(crate) fn load<S: SegmentStore>(store: &mut S, segment: u32) -> Option<Summary> {
    let file = store.open(&name(segment)).ok()?;
    let loaded = load_open(store, file, segment);
    store.close(file);
    let summary = loaded.ok().flatten()?;
    // The segment may have grown since: a start continues a segment that was left and is the last one.
    let file = store.open(&segment_name(segment)).ok()?;
    let length = store.length(file);
    store.close(file);
    (length == Ok(summary.outline.log_bytes)).then_some(summary)
}

fn load_open<S: SegmentStore>(
    store: &mut S,
    file: S::File,
    segment: u32,
) -> Result<Option<Summary>, StoreError> {
    let bytes = usize::try_from(store.length(file)?).unwrap_or(usize::MAX);
    if bytes > INDEX_BYTES_MAX {
        return Ok(None);
    }
    let mut content = vec![0; bytes];
    let read = store.read(file, 0, &mut content)?;
    let seal = Seal::of(store.secret());
    Ok(content
        .get(..read)
        .and_then(|content| Summary::decode(content, segment, seal)))
}

/// Writes a segment's index file, or none if the store has no room.
fn keep<S: SegmentStore>(
    store: &mut S,
    summary: &Summary,
    reserve_bytes: u64,
) -> Result<(), Error> {
    let name = name(summary.segment);
    let bytes = summary.encode(Seal::of(store.secret()));
    if store.free_bytes() < (bytes.len() as u64).saturating_add(reserve_bytes) {
        return Ok(());
    }
    let write = |store: &mut S| {
        match store.delete(&name) {
            Ok(()) | Err(StoreError::NotFound) => {}
            Err(error) => return Err(error),
        }
        let file = store.create(&name)?;
        let written = store.append(file, &bytes);
        store.close(file);
        written
    };
    match write(store) {
        Err(error @ StoreError::Failed { .. }) => Err(error.into()),
        _ => Ok(()),
    }
}
