//! The actions of an executable, each cut into deliveries.

use super::super::{ActionInfo, ActionKind, Plan, Push};
use crate::block::{BlockAt, FileId, SEGMENT_BLOCKS};
use std::sync::Arc;

/// Above this SEG_MAX the first segment has three match positions instead of two.
const TWO_MATCHES_SEG_MAX: u32 = 32;

/// The position in the first segment up to which the first request is answered, and of the first match.
const FIRST_MATCH: usize = 2;

/// An action as it was recorded.
pub(super) struct Action {
    /// Unique among all actions.
    pub(super) name: u64,
    pub(super) kind: ActionKind,
    /// The number of runs that recorded it or followed it to its end.
    pub(super) runs: u64,
    /// The deliveries: the parts of the first segment between its match positions, then one for each segment.
    pub(super) deliveries: Vec<Delivery>,
    /// The number of deliveries of the first segment.
    first_segment: usize,
    /// The whole first segment, which the scan sends.
    first_whole: Delivery,
}

/// The learned actions of an executable.
#[derive(Default)]
pub(super) struct Executable {
    pub(super) actions: Vec<Action>,
    /// All its blocks, in the order of their first recording.
    pub(super) plan: Option<Arc<Plan>>,
}

/// Blocks that are sent together when the first of them is requested.
pub(super) struct Delivery {
    pub(super) blocks: Vec<u32>,
    /// Set if they are more than one message can hold.
    plan: Option<Arc<Plan>>,
}

impl Delivery {
    fn new(file: FileId, blocks: &[u32]) -> Self {
        let is_long = blocks.len() > SEGMENT_BLOCKS as usize;
        Self {
            blocks: blocks.to_vec(),
            plan: is_long.then(|| {
                let blocks: Vec<BlockAt> = blocks
                    .iter()
                    .map(|&index| BlockAt { file, index })
                    .collect();
                Arc::new(Plan::of(&blocks))
            }),
        }
    }

    /// Returns what to send beside the requested block.
    pub(super) fn push(&self, asked: BlockAt) -> Push {
        if let Some(plan) = &self.plan {
            return Push::Plan(Arc::clone(plan));
        }
        let blocks: Vec<BlockAt> = self
            .blocks
            .iter()
            .map(|&index| BlockAt { index, ..asked })
            .filter(|at| *at != asked)
            .collect();
        if blocks.is_empty() {
            Push::Nothing
        } else {
            Push::Blocks(blocks)
        }
    }
}

impl Action {
    /// Creates an action of these blocks, at least one.
    pub(super) fn new(
        name: u64,
        file: FileId,
        kind: ActionKind,
        blocks: &[u32],
        seg_max: u32,
        runs: u64,
    ) -> Self {
        let mut segments = blocks.chunks(seg_max as usize);
        let first = segments.next().unwrap_or_default();
        let mut deliveries = Vec::new();
        let mut from = 0;
        for to in match_positions(seg_max) {
            if from < to && to < first.len() {
                deliveries.push(Delivery::new(file, &first[from..to]));
                from = to;
            }
        }
        deliveries.push(Delivery::new(file, &first[from..]));
        let first_segment = deliveries.len();
        deliveries.extend(segments.map(|segment| Delivery::new(file, segment)));
        Self {
            name,
            kind,
            runs,
            deliveries,
            first_segment,
            first_whole: Delivery::new(file, first),
        }
    }

    /// Returns all blocks, in order.
    pub(super) fn blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.deliveries
            .iter()
            .flat_map(|delivery| delivery.blocks.iter().copied())
    }

    /// Returns the segment that has this block.
    pub(super) fn segment_of(&self, index: u32) -> Option<usize> {
        let delivery = self
            .deliveries
            .iter()
            .position(|delivery| delivery.blocks.contains(&index))?;
        Some((delivery + 1).saturating_sub(self.first_segment))
    }

    /// Returns a whole segment.
    pub(super) fn segment(&self, segment: usize) -> &Delivery {
        match segment {
            0 => &self.first_whole,
            _ => &self.deliveries[self.first_segment + segment - 1],
        }
    }

    /// Returns the index of the first delivery after a segment.
    pub(super) fn delivery_behind(&self, segment: usize) -> usize {
        self.first_segment + segment
    }

    /// Returns the blocks of the deliveries from `next` on. These are the blocks of the segment that the delivery
    /// before `next` belongs to, and of the next `segments` segments.
    pub(super) fn behind(&self, next: usize, segments: usize) -> impl Iterator<Item = u32> + '_ {
        let segment = next.saturating_sub(self.first_segment);
        let end = (self.first_segment + segment + segments).min(self.deliveries.len());
        let deliveries = self.deliveries.get(next..end).unwrap_or_default();
        deliveries
            .iter()
            .flat_map(|delivery| delivery.blocks.iter().copied())
    }

    /// Returns the action for listings.
    pub(super) fn info(&self, file: FileId) -> ActionInfo {
        let segments = (0..=self.deliveries.len() - self.first_segment)
            .map(|segment| {
                let blocks = self.segment(segment).blocks.iter();
                blocks.map(|&index| BlockAt { file, index }).collect()
            })
            .collect();
        ActionInfo {
            task: file,
            kind: self.kind,
            segments,
            others: 0,
            runs: self.runs,
            is_whole: true,
        }
    }
}

/// Returns the positions in the first segment where a request must match the recorded block.
fn match_positions(seg_max: u32) -> Vec<usize> {
    let last = seg_max as usize - 2;
    if seg_max > TWO_MATCHES_SEG_MAX {
        vec![FIRST_MATCH, seg_max as usize / 2, last]
    } else {
        vec![FIRST_MATCH, last]
    }
}
