//! Reading the data blocks of one file during a repair. It finds which of them are intact, which last block leads back
//! to the others, and the file's state that follows.
//!
//! Invariant: a state is built only from the headers of intact blocks. A truncation or a rewrite leaves stale blocks of
//! the same file. They are told from live ones by their numbers and by the blocks that overlie them.

use std::collections::{BTreeMap, BTreeSet};

use base::block::{BLOCK_BYTES, BlockDevice, DeviceError};

use crate::block::{Header, MARKER_SEQUENCE, PAYLOAD_BYTES, POINTERS};
use crate::error::{Error, Result};
use crate::layout::{CLUSTER_BLOCKS, Layout};
use crate::repair::state::Repair;
use crate::root::{ClosedRun, FILE_STATE_BYTES, FileState, Lane, Piece, Root, Run, Tail};
use crate::space::{open_trunk, trunk_address};

/// The relevant fields of an intact block's header, without its pointers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brief {
    pub(crate) address: u32,
    pub(crate) index: u32,
    pub(crate) sequence: u64,
    pub(crate) fill: u16,
    pub(crate) group_blocks: u8,
    pub(crate) group_position: u8,
    pub(crate) run_start: u32,
    pub(crate) run_blocks: u8,
    pub(crate) before: ClosedRun,
    pub(crate) lane: u8,
    /// The address of the block before it in the file.
    pub(crate) previous: u32,
}

impl Brief {
    pub(crate) fn of(header: &Header) -> Self {
        Self {
            address: header.address,
            index: header.index,
            sequence: header.sequence,
            fill: header.fill,
            group_blocks: header.group_blocks,
            group_position: header.group_position,
            run_start: header.run_start,
            run_blocks: header.run_blocks,
            before: ClosedRun {
                start: header.before_start,
                used: header.before_used,
            },
            lane: header.lane,
            previous: header.pointers[0],
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        usize::from(self.fill) == PAYLOAD_BYTES
    }

    /// Returns this block as the last one of its file.
    pub(crate) fn tail(&self) -> Tail {
        Tail {
            address: self.address,
            index: self.index,
            sequence: self.sequence,
            fill: self.fill,
            previous: self.previous,
        }
    }

    fn lane_with(&self, used: u8) -> Lane {
        let mut lane = Lane {
            run: Run {
                start: self.run_start,
                blocks: self.run_blocks,
                next: used,
            },
            before: self.before,
        };
        if used == self.run_blocks {
            lane.close();
        }
        lane
    }
}

/// What was found at the place of a file's block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    Intact(Brief),
    /// Not a valid block, or the device cannot read it.
    Rotten,
    /// An intact block that is not this one.
    Foreign,
    /// No intact block tells its address.
    Unreachable,
}

/// One block of a file as found by a walk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// 0 if it is not known.
    pub(crate) address: u32,
    pub(crate) fate: Fate,
}

impl Step {
    pub(crate) fn brief(&self) -> Option<Brief> {
        match self.fate {
            Fate::Intact(brief) => Some(brief),
            _ => None,
        }
    }
}

/// A run that a file owns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundRun {
    pub(crate) start: u32,
    pub(crate) blocks: u32,
    /// Full data blocks from its start, which are not overwritten any more.
    pub(crate) used: u8,
}

/// The runs of a file, as far as the links can be followed.
#[derive(Default)]
pub(crate) struct Runs {
    pub(crate) found: Vec<FoundRun>,
    /// Number of blocks in the closed runs.
    pub(crate) closed_blocks: u32,
    /// The runs whose link to the previous run cannot be read, with their lanes.
    broken: Vec<(u8, ClosedRun)>,
}

/// A file after all its blocks were examined.
pub(crate) struct Settled {
    /// Its state, shortened if the last blocks are damaged.
    pub(crate) state: FileState,
    pub(crate) steps: Vec<Step>,
    /// The runs that its state leads to.
    pub(crate) runs: Vec<FoundRun>,
    /// More runs that hold its blocks, but are hidden by a damaged link.
    pub(crate) hidden: Vec<FoundRun>,
    /// Whether the list of its runs is complete.
    pub(crate) is_linked: bool,
    /// Damaged blocks that were given a header again, so that the list of runs is complete.
    pub(crate) markers: Vec<u32>,
}

impl<D: BlockDevice> Repair<'_, D> {
    /// Returns the header of the block at `address`, if it is an intact block of any file.
    pub(crate) fn read_header(&mut self, address: u32) -> Result<Option<Header>> {
        match self.store.read_data_block(address) {
            Err(Error::Device(DeviceError::Io { .. })) => {
                self.store.scratch.block_mut(0).fill(0);
                Ok(None)
            }
            found => found,
        }
    }

    /// Returns whether the block just read is one of the store's own: part of a record or of the free list.
    fn is_own_structure(&self, address: u32) -> bool {
        let block = self.store.scratch.block(0);
        let cluster = address / CLUSTER_BLOCKS * CLUSTER_BLOCKS;
        Root::decode(block, &self.store.layout).is_some()
            || (trunk_address(cluster) == u64::from(address)
                && open_trunk(block, cluster, self.store.seed).is_some())
    }

    /// Examines every block of the file from its tail back.
    pub(crate) fn walk(&mut self, state: &FileState) -> Result<Vec<Step>> {
        let count = state.block_count() as usize;
        let blank = Step {
            address: 0,
            fate: Fate::Unreachable,
        };
        let mut steps = vec![blank; count];
        if let Some(last) = steps.last_mut() {
            last.address = state.tail.address;
        }
        if count > 1 {
            steps[count - 2].address = state.tail.previous;
        }
        let mut has_runs = false;
        for index in (0..count).rev() {
            if !has_runs && !self.store.layout.is_data_block(steps[index].address) {
                has_runs = true;
                steps[index].address = 0;
                let mut addresses: Vec<u32> = steps.iter().map(|step| step.address).collect();
                self.store.places_in_runs(state, &mut addresses)?;
                for (step, address) in steps.iter_mut().zip(addresses) {
                    step.address = address;
                }
            }
            let address = steps[index].address;
            if !self.store.layout.is_data_block(address) {
                steps[index].address = 0;
                continue;
            }
            let found = self.read_header(address)?;
            let fate = match found {
                None if self.is_own_structure(address) => Fate::Foreign,
                None => Fate::Rotten,
                Some(header) => fate_of(&header, state, index as u32),
            };
            steps[index].fate = fate;
            let (Fate::Intact(_), Some(header)) = (fate, found) else {
                continue;
            };
            note_places(&header, &mut steps);
            self.note_progress();
        }
        Ok(steps)
    }

    /// Returns the runs that `state` leads to.
    pub(crate) fn runs_of(&mut self, state: &FileState) -> Result<Runs> {
        let mut runs = Runs::default();
        let mut seen = BTreeSet::new();
        for (number, lane) in state.lanes.iter().enumerate() {
            if !lane.run.is_none() {
                seen.insert(lane.run.start);
                runs.found.push(FoundRun {
                    start: lane.run.start,
                    blocks: u32::from(lane.run.blocks),
                    used: lane.run.next,
                });
                let filled = ClosedRun {
                    start: lane.run.start,
                    used: lane.run.next,
                };
                // Once the run is full, or freed, its own blocks must tell the link.
                if !filled.is_none() {
                    let piece = piece_of(state, filled);
                    if self.link(&piece)?.is_none() {
                        runs.broken.push((number as u8, filled));
                    }
                }
            }
            let mut closed = lane.before;
            while !closed.is_none() {
                let is_run = self.store.layout.is_data_run(closed.start, closed.blocks());
                if !is_run || !seen.insert(closed.start) {
                    break;
                }
                runs.found.push(FoundRun {
                    start: closed.start,
                    blocks: closed.blocks(),
                    used: closed.used,
                });
                runs.closed_blocks = runs.closed_blocks.saturating_add(closed.blocks());
                match self.link(&piece_of(state, closed))? {
                    Some(before) => closed = before,
                    None => {
                        runs.broken.push((number as u8, closed));
                        break;
                    }
                }
            }
        }
        if !state.reserve.is_none() {
            runs.found.push(FoundRun {
                start: state.reserve.start,
                blocks: u32::from(state.reserve.blocks),
                used: 0,
            });
        }
        Ok(runs)
    }

    /// Returns the run before that of a chain's piece; `None` if no readable block tells it.
    pub(crate) fn link(&mut self, piece: &Piece) -> Result<Option<ClosedRun>> {
        match self.store.run_before(piece) {
            Err(Error::Device(DeviceError::Io { .. })) => Ok(None),
            link => link,
        }
    }

    /// Returns the full blocks of the file within its runs. They are never overwritten, so they are exactly the blocks
    /// of the current file, except for a last block that is not full.
    pub(crate) fn blocks_for_good(&mut self, file_id: u64, runs: &Runs) -> Result<Vec<Brief>> {
        let mut briefs = Vec::new();
        for run in &runs.found {
            for offset in 0..u32::from(run.used) {
                let Some(header) = self.read_header(run.start + offset)? else {
                    continue;
                };
                if header.file_id == file_id
                    && header.run_start == run.start
                    && header.sequence != MARKER_SEQUENCE
                    && usize::from(header.fill) == PAYLOAD_BYTES
                {
                    briefs.push(Brief::of(&header));
                }
            }
        }
        Ok(briefs)
    }

    /// Examines all blocks of a file and changes its state so that the file can be appended to and freed. After that
    /// the last block is intact, and the list of runs is complete as far as possible.
    pub(crate) fn settle(&mut self, state: &FileState) -> Result<Settled> {
        let mut state = *state;
        let mut steps = self.walk(&state)?;
        while steps.last().is_some_and(|step| step.brief().is_none()) {
            let runs = self.runs_of(&state)?;
            let mut briefs = self.blocks_for_good(state.file_id, &runs)?;
            briefs.extend(steps.iter().filter_map(Step::brief));
            briefs.retain(|brief| brief.index < state.tail.index);
            state = state_from(state.file_id, briefs.iter().copied());
            if !is_sane(&state, &self.store.layout) {
                state = FileState::empty(state.file_id);
            }
            steps = self.walk(&state)?;
        }
        let mut markers = Vec::new();
        let mut runs = self.runs_of(&state)?;
        // Each iteration repairs a link, and finds at most one older broken link.
        let is_linked = loop {
            let before = markers.len();
            let is_linked = runs.broken.is_empty();
            for (lane, run) in std::mem::take(&mut runs.broken) {
                if let Some(block) = self.marker(&state, &steps, lane, run)? {
                    markers.push(run.start);
                    self.store.put_overlay(run.start, block);
                }
            }
            if markers.len() == before {
                break is_linked;
            }
            runs = self.runs_of(&state)?;
        };
        state.closed_blocks = runs.closed_blocks;
        let hidden = hidden_runs(&steps, &runs.found);
        Ok(Settled {
            state,
            steps,
            is_linked,
            runs: runs.found,
            hidden,
            markers,
        })
    }

    /// Discards the markers of a file if its settled state is not used.
    pub(crate) fn drop_markers(&mut self, settled: &Settled) {
        let markers = &settled.markers;
        self.store
            .overlay
            .retain(|(address, _)| !markers.contains(address));
    }

    /// Returns a block to replace the damaged first block of a closed run. With it the run's link to the previous run
    /// can be read again. It equals the damaged block of the file except for its bytes. It is marked as not full, which
    /// only a last block may be, so reading it stays an error.
    fn marker(
        &mut self,
        state: &FileState,
        steps: &[Step],
        lane: u8,
        run: ClosedRun,
    ) -> Result<Option<Vec<u8>>> {
        if self.read_header(run.start)?.is_some() || self.is_own_structure(run.start) {
            return Ok(None);
        }
        let at = |step: &Step| step.address == run.start;
        let Some(index) = steps.iter().position(at) else {
            return Ok(None);
        };
        if index + 1 == steps.len() {
            return Ok(None);
        }
        let in_run = |brief: &Brief| brief.run_start == run.start && brief.lane == lane;
        let sibling = steps.iter().filter_map(Step::brief).find(in_run);
        let current = state.lanes[usize::from(lane)];
        let (run_blocks, before) = match sibling {
            _ if current.run.start == run.start => (current.run.blocks, current.before),
            Some(brief) => (brief.run_blocks, brief.before),
            None => match run_before_by_order(steps, index, lane, run.start) {
                Some(before) => (run.blocks() as u8, before),
                None => return Ok(None),
            },
        };
        let header = Header {
            file_id: state.file_id,
            sequence: MARKER_SEQUENCE,
            address: run.start,
            index: index as u32,
            fill: 1,
            group_blocks: 1,
            group_position: 0,
            run_start: run.start,
            run_blocks,
            before_start: before.start,
            before_used: before.used,
            lane,
            pointers: [0; POINTERS],
            name_hint: [0; crate::block::NAME_HINT_BYTES],
        };
        let mut block = vec![0; BLOCK_BYTES];
        header.seal(&mut block, self.store.seed);
        Ok(Some(block))
    }
}

fn piece_of(state: &FileState, run: ClosedRun) -> Piece {
    Piece {
        start: run.start,
        blocks: run.blocks(),
        file_id: state.file_id,
        end: 0,
    }
}

/// Records the addresses that a block gives for itself and earlier blocks, if they are not known yet.
fn note_places(header: &Header, steps: &mut [Step]) {
    for (index, address) in header.places() {
        let step = &mut steps[index as usize];
        if step.address == 0 {
            step.address = address;
        }
    }
}

/// Classifies an intact block of any file that is at the place of block `index` of this one.
fn fate_of(header: &Header, state: &FileState, index: u32) -> Fate {
    if header.file_id != state.file_id || header.index != index {
        return Fate::Foreign;
    }
    if header.sequence == MARKER_SEQUENCE {
        return Fate::Rotten;
    }
    let is_right = if index == state.tail.index {
        header.belongs_at_tail(state)
    } else {
        usize::from(header.fill) == PAYLOAD_BYTES
    };
    if is_right {
        Fate::Intact(Brief::of(header))
    } else {
        Fate::Foreign
    }
}

/// Returns the state of a file whose blocks are `briefs`, the last of them its tail. The closed blocks are not counted
/// yet.
pub(crate) fn state_from(file_id: u64, briefs: impl Iterator<Item = Brief> + Clone) -> FileState {
    let mut state = FileState::empty(file_id);
    let Some(last) = briefs.clone().max_by_key(|brief| brief.index) else {
        return state;
    };
    state.tail = last.tail();
    let used = |brief: &Brief| (brief.address - brief.run_start) as u8 + u8::from(brief.is_full());
    let own = usize::from(last.lane);
    state.lanes[own] = last.lane_with(used(&last));
    // The other lane at the time of the last block's write: its newest block of the file.
    let other = briefs.filter(|brief| brief.lane != last.lane);
    if let Some(newest) = other.max_by_key(|brief| brief.index) {
        state.lanes[1 - own] = newest.lane_with(used(&newest));
    }
    state
}

/// Returns whether the table and the root would accept the state. Forged headers may contain anything.
pub(crate) fn is_sane(state: &FileState, layout: &Layout) -> bool {
    let mut bytes = [0; FILE_STATE_BYTES];
    state.encode(&mut bytes);
    FileState::decode(&bytes, layout).is_some()
}

/// Returns the run before the one that begins with block `index`, if no block of the run is readable. It is the run
/// that holds the nearest earlier block in the same lane. `None` if other damage leaves that open.
fn run_before_by_order(
    steps: &[Step],
    index: usize,
    lane: u8,
    run_start: u32,
) -> Option<ClosedRun> {
    let older = &steps[..index];
    let nearest = older
        .iter()
        .rposition(|step| step.brief().is_some_and(|brief| brief.lane == lane));
    let Some(nearest) = nearest else {
        let all_known = older.iter().all(|step| step.brief().is_some());
        return all_known.then_some(ClosedRun::default());
    };
    let brief = older[nearest].brief()?;
    let offset_in = |address: u32| {
        let offset = address.checked_sub(brief.run_start)?;
        (offset < u32::from(brief.run_blocks)).then_some(offset)
    };
    let mut used = offset_in(brief.address)? + 1;
    for step in &older[nearest + 1..] {
        match (step.brief(), offset_in(step.address)) {
            (Some(_), _) => {}
            (None, Some(offset)) => used = used.max(offset + 1),
            (None, None) => return None,
        }
    }
    // A run is given up only when it has no room for a group.
    let given_up = u32::from(brief.run_blocks) - used < CLUSTER_BLOCKS;
    (given_up && brief.run_start != run_start).then_some(ClosedRun {
        start: brief.run_start,
        used: used as u8,
    })
}

/// Returns the runs that hold blocks of the file but are not among those that its state leads to.
fn hidden_runs(steps: &[Step], runs: &[FoundRun]) -> Vec<FoundRun> {
    let mut known: BTreeMap<u32, u32> = runs.iter().map(|run| (run.start, run.blocks)).collect();
    let mut hidden = Vec::new();
    for step in steps.iter().filter(|step| step.address != 0) {
        let nearest = known.range(..=step.address).next_back();
        if nearest.is_some_and(|(start, blocks)| step.address - start < *blocks) {
            continue;
        }
        // An unreadable block has nothing to lose.
        let Some(brief) = step.brief() else {
            continue;
        };
        let (start, blocks) = (brief.run_start, u32::from(brief.run_blocks));
        known.insert(start, blocks);
        hidden.push(FoundRun {
            start,
            blocks,
            used: 0,
        });
    }
    hidden
}
