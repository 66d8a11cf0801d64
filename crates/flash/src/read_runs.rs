//! The way to a block where no pointer leads: by the lists of runs.
//!
//! A pointer leads over damaged neighbours only from a block that has one beyond them. Seven of them from a multiple of
//! a large power of two on cut a file in two: all before them can be whole, and no pointer leads there. Each block of a
//! run knows the run before it in its lane, so the runs lead there, as long as one block that is looked at is intact in
//! each of them.

use base::block::{BlockDevice, DeviceError};

use crate::block::Header;
use crate::error::{Error, Result};
use crate::read::belongs;
use crate::root::{ClosedRun, FileState};
use crate::store::Store;

/// From the beginning of a run, every so many blocks one is looked at until one is intact.
const PROBE_BLOCKS: usize = 8;

impl<D: BlockDevice> Store<D> {
    /// Block `target` of the file, which it leaves in the scratch buffer; `None` where the runs do not lead to it
    /// either. Whoever looks for many blocks of a file keeps `none_below` for them: all with lower numbers are known
    /// not to be led to, which is most often so of all those behind a run that is damaged as a whole.
    pub(crate) fn seek_in_runs(
        &mut self,
        state: &FileState,
        target: u32,
        none_below: &mut u32,
    ) -> Result<Option<Header>> {
        if target < *none_below {
            return Ok(None);
        }
        let mut is_lower = false;
        for lane in &state.lanes {
            let filled = ClosedRun {
                start: lane.run.start,
                used: lane.run.next,
            };
            let mut run = if filled.is_none() {
                lane.before
            } else {
                filled
            };
            // Numbers fall from run to run, so the way ends.
            let mut above = u32::MAX;
            while let Some((offset, header)) = self.probe(state, &run)?
                && header.index < above
            {
                above = header.index;
                let is_this_run = header.index <= target;
                let highest = if is_this_run {
                    // Numbers grow along a run, by one at least.
                    let ahead = u8::try_from(target - header.index).unwrap_or(u8::MAX);
                    Some(offset.saturating_add(ahead).min(run.used - 1))
                } else {
                    // What is before an intact block in its run may still be it.
                    offset.checked_sub(1)
                };
                let (found, has_lower) = match highest {
                    Some(highest) => self.find_below(state, &run, highest, target)?,
                    None => (None, false),
                };
                if found.is_some() {
                    return Ok(found);
                }
                if is_this_run || has_lower {
                    is_lower = true;
                    break;
                }
                run = ClosedRun {
                    start: header.before_start,
                    used: header.before_used,
                };
            }
        }
        if !is_lower {
            *none_below = target + 1;
        }
        Ok(None)
    }

    /// An intact block near the beginning of a run, and its place.
    fn probe(&mut self, state: &FileState, run: &ClosedRun) -> Result<Option<(u8, Header)>> {
        for offset in (0..run.used).step_by(PROBE_BLOCKS) {
            if let Some(header) = self.intact_of_run(state, run, offset)? {
                return Ok(Some((offset, header)));
            }
        }
        Ok(None)
    }

    /// Looks for block `target` in a run, at place `highest` or before; and whether one with a lower number is there.
    fn find_below(
        &mut self,
        state: &FileState,
        run: &ClosedRun,
        highest: u8,
        target: u32,
    ) -> Result<(Option<Header>, bool)> {
        for offset in (0..=highest).rev() {
            match self.intact_of_run(state, run, offset)? {
                Some(header) if header.index > target => {}
                Some(header) if belongs(&header, state, target) => {
                    if target < state.tail.index {
                        self.addresses.put(state.file_id, target, header.address);
                    }
                    return Ok((Some(header), false));
                }
                Some(_) => return Ok((None, true)),
                None => {}
            }
        }
        Ok((None, false))
    }

    /// Block `offset` of a run of the file, where it is intact.
    fn intact_of_run(
        &mut self,
        state: &FileState,
        run: &ClosedRun,
        offset: u8,
    ) -> Result<Option<Header>> {
        match self.block_of_run(state, run, offset) {
            Ok(header) => Ok(Some(header)),
            Err(Error::Damaged { .. } | Error::Device(DeviceError::Io { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
