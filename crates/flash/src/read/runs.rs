//! Finding a block that no pointer leads to, by the lists of runs.
//!
//! A pointer leads over damaged neighbours only from a block that has one beyond them. Seven damaged blocks, starting
//! at a multiple of a large power of two, cut a file in two. All blocks before them can be intact, but no pointer leads
//! there. Each block of a run knows the run before it in its lane. So a list leads there if one block of each run is
//! intact. Where one lane's list ends, the other's passes nearby blocks, whose pointers lead on.
//!
//! A device that loses writes, or returns to earlier content, shows blocks of earlier lives of a run. So a block is
//! accepted here only if three conditions hold. It belongs to the lane. It is not older than the file's first block.
//! Its pointers agree with those of the file's last block and of the block accepted before it.

use std::ops::ControlFlow;

use base::block::{BlockDevice, DeviceError};

use crate::block::{Header, MARKER_SEQUENCE, POINTERS, pointer_target};
use crate::error::{Error, Result};
use crate::read::belongs;
use crate::root::{ClosedRun, FileState, Run};
use crate::store::Store;

/// Places of a run that are tried before all others.
const PROBES: u8 = 8;

/// Passes a header to `note` if it belongs to the current file and is not a marker. Returns whether it did.
fn note_data(header: &Header, state: &FileState, note: &mut dyn FnMut(&Header)) -> bool {
    let is_data = header.index <= state.tail.index && belongs(header, state, header.index);
    if is_data {
        note(header);
    }
    is_data
}

fn filled(run: &Run) -> ClosedRun {
    ClosedRun {
        start: run.start,
        used: run.next,
    }
}

/// What a block of a file's runs must agree with.
struct Life {
    lane: u8,
    /// The last intact block of the file, and the block that was accepted last.
    accepted: [Option<Header>; 2],
    /// The group number of the file's first block: nothing of this life of the file is older. 0 if it is not known.
    sequence_min: u64,
}

impl Life {
    fn has(&self, header: &Header) -> bool {
        header.lane == self.lane
            && (header.sequence == MARKER_SEQUENCE
                || (header.sequence >= self.sequence_min
                    && self
                        .accepted
                        .iter()
                        .flatten()
                        .all(|known| agree(known, header))))
    }

    fn accept(&mut self, header: &Header) {
        if header.sequence != MARKER_SEQUENCE {
            self.accepted[1] = Some(*header);
        }
    }
}

/// Returns whether two blocks can belong to one life of a file. Where they lead to the same blocks or to each other,
/// their addresses must agree.
fn agree(one: &Header, other: &Header) -> bool {
    let leads_right = |from: &Header, to: &Header| {
        (0..POINTERS).all(|place| match pointer_target(from.index, place) {
            Some(target) if target == to.index => from.pointers[place] == to.address,
            target => {
                target.is_none()
                    || target != pointer_target(to.index, place)
                    || from.pointers[place] == to.pointers[place]
            }
        })
    };
    (one.index != other.index || one.address == other.address)
        && leads_right(one, other)
        && leads_right(other, one)
}

/// A callback for each run, with the first intact block found in it and its place.
type Visit<'a, D> =
    dyn FnMut(&mut Store<D>, &Life, &ClosedRun, u8, &Header) -> Result<ControlFlow<()>> + 'a;

impl<D: BlockDevice> Store<D> {
    /// Returns the number and address of the intact block with the lowest number, `target` or above, that the file's
    /// runs lead to.
    pub(crate) fn nearest_in_runs(
        &mut self,
        state: &FileState,
        target: u32,
    ) -> Result<Option<(u32, u32)>> {
        let mut nearest: Option<(u32, u32)> = None;
        let mut note = |header: &Header| {
            let is_nearer = nearest.is_none_or(|(index, _)| header.index < index);
            if header.index >= target && is_nearer {
                nearest = Some((header.index, header.address));
            }
        };
        self.follow_runs(state, &mut |store, life, run, found, header| {
            // Block numbers grow along a run, by at least one.
            let ahead = target.saturating_sub(header.index);
            let ahead = u8::try_from(ahead).unwrap_or(u8::MAX);
            let highest = found.saturating_add(ahead).min(run.used - 1);
            let (mut is_last, mut has_near) = (false, false);
            for place in (0..=highest).rev() {
                let at_place = match place == found {
                    true => Some(*header),
                    false => store.intact_of_run(state, life, run, place)?,
                };
                let Some(header) = at_place else {
                    continue;
                };
                has_near |= note_data(&header, state, &mut note) && header.index >= target;
                if header.index <= target {
                    is_last = true;
                    break;
                }
            }
            // If all these blocks are damaged, a block behind them is still nearer than any block of the later run.
            for place in highest + 1..run.used {
                if has_near {
                    break;
                }
                if let Some(header) = store.intact_of_run(state, life, run, place)? {
                    has_near = note_data(&header, state, &mut note);
                }
            }
            Ok(match is_last {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            })
        })?;
        Ok(nearest)
    }

    /// Fills in the unknown addresses (0) of a file's blocks. The runs must lead to these blocks, or to a block that
    /// points to them. A block's own header takes precedence over a pointer from another block.
    pub(crate) fn places_in_runs(
        &mut self,
        state: &FileState,
        addresses: &mut [u32],
    ) -> Result<()> {
        let mut is_led_to = vec![false; addresses.len()];
        let mut note = |header: &Header| {
            for (index, address) in header.places() {
                let (number, is_own) = (index as usize, index == header.index);
                if addresses[number] == 0 || (is_own && is_led_to[number]) {
                    addresses[number] = address;
                    is_led_to[number] = !is_own;
                }
            }
        };
        self.follow_runs(state, &mut |store, life, run, _, _| {
            for place in 0..run.used {
                if let Some(header) = store.intact_of_run(state, life, run, place)? {
                    note_data(&header, state, &mut note);
                }
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Passes each run of each lane to `visit`, the newest first, with its first intact block and its place. Stops
    /// when the list ends or `visit` ends this lane.
    fn follow_runs(&mut self, state: &FileState, visit: &mut Visit<'_, D>) -> Result<()> {
        let (last, sequence_min) = self.ends_of(state)?;
        // At most as many runs as the file has blocks, plus the last run: forged links cost no more.
        let mut left = state.block_count() + 1;
        for (number, lane) in state.lanes.iter().enumerate() {
            let mut life = Life {
                lane: number as u8,
                accepted: [last, None],
                sequence_min,
            };
            // The state names the newest run and the one before it: one of them may be damaged completely.
            let newest = filled(&lane.run);
            // Block numbers fall from run to run, so the loop ends.
            let mut above = u32::MAX;
            let mut run = newest;
            let mut has_begun = false;
            while u32::from(run.used) <= left {
                left -= u32::from(run.used);
                let Some((place, header)) = self.probe(state, &life, &run)? else {
                    if has_begun || run == lane.before {
                        break;
                    }
                    run = lane.before;
                    continue;
                };
                has_begun = true;
                if header.index >= above || visit(self, &life, &run, place, &header)?.is_break() {
                    break;
                }
                above = header.index;
                life.accept(&header);
                run = ClosedRun {
                    start: header.before_start,
                    used: header.before_used,
                };
            }
        }
        Ok(())
    }

    /// Returns the last intact block of the file, and the group number of its first block, as far as they can be read.
    fn ends_of(&mut self, state: &FileState) -> Result<(Option<Header>, u64)> {
        let tail = state.tail;
        let ends = [
            (tail.index, tail.address),
            (tail.index.wrapping_sub(1), tail.previous),
        ];
        for (index, address) in ends {
            let last = match self.read_file_block(state, address, index) {
                Ok(header) => header,
                Err(Error::Damaged { .. }) => continue,
                Err(error) => return Err(error),
            };
            let first = (0..POINTERS)
                .find(|place| pointer_target(index, *place) == Some(0))
                .map_or(address, |place| last.pointers[place]);
            return match self.read_file_block(state, first, 0) {
                Ok(header) => Ok((Some(last), header.sequence)),
                Err(Error::Damaged { .. }) => Ok((Some(last), 0)),
                Err(error) => Err(error),
            };
        }
        Ok((None, 0))
    }

    /// Returns the first intact block found in a run, and its place.
    fn probe(
        &mut self,
        state: &FileState,
        life: &Life,
        run: &ClosedRun,
    ) -> Result<Option<(u8, Header)>> {
        let step = (run.used / PROBES).max(1);
        let is_probe = |place: &u8| place.is_multiple_of(step);
        let probes = (0..run.used).filter(is_probe);
        let others = (0..run.used).filter(|place| !is_probe(place));
        for place in probes.chain(others) {
            if let Some(header) = self.intact_of_run(state, life, run, place)? {
                return Ok(Some((place, header)));
            }
        }
        Ok(None)
    }

    /// Returns the block at a place of a run, if it is intact and of this life of the file.
    fn intact_of_run(
        &mut self,
        state: &FileState,
        life: &Life,
        run: &ClosedRun,
        place: u8,
    ) -> Result<Option<Header>> {
        match self.block_of_run(state, run, place) {
            Ok(header) => Ok(Some(header).filter(|header| life.has(header))),
            Err(Error::Damaged { .. } | Error::Device(DeviceError::Io { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
