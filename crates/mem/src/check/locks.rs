//! Lanes and locks: dead writers, and locks without a holder.

use crate::error::Result;
use crate::lane::{Lane, doing, word};
use crate::layout::{attribute, state};
use crate::open::entry;
use crate::region::Region;

use super::report::{CheckReport, Kind};

/// The number of looks at a state that a live writer may cause for a moment: two words are not read at one moment.
const LOOKS_MAX: u32 = 20;

/// Recovers dead writers. If `mends` is set, an invalid log is given up.
pub(super) fn settle(region: &Region, mends: bool, report: &mut CheckReport) -> Result<()> {
    for lane in (0..region.layout.lane_count).map(Lane) {
        let owner = region.lane_word(lane, word::OWNER);
        let at = region.layout.lane(lane.0);
        if owner == 0 {
            // It may be taken at this moment.
            let is_left_in_use = || {
                region.lane_word(lane, word::OWNER) == 0
                    && (region.lane_word(lane, word::STATE) != doing::NOTHING
                        || region.lane_word(lane, word::FREES) != 0)
            };
            if is_so_for_long(is_left_in_use) {
                report.find(Kind::Lane, at, "a lane without an owner is in use");
                if mends {
                    reset(region, lane, report);
                }
            }
        } else if owner != region.owner().as_word() {
            let is_at_rest = [word::STATE, word::FREES, word::INODE]
                .iter()
                .all(|word| region.lane_word(lane, *word) == 0);
            match region.settle(lane, owner) {
                Ok(is_settled) => {
                    report.settled += u64::from(is_settled);
                    report.interrupted += u64::from(is_settled && !is_at_rest);
                }
                Err(error) => {
                    report.find(Kind::Lane, at, error.to_string());
                    if mends {
                        reset(region, lane, report);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Frees a lane with an invalid log. The state of the file that its owner was changing is not known.
fn reset(region: &Region, lane: Lane, report: &mut CheckReport) {
    let inode = region.lane_word(lane, word::INODE);
    let had_begun = region.lane_word(lane, word::STATE) != doing::NOTHING;
    if had_begun && (1..region.layout.inode_count).contains(&inode) && region.is_live(inode) {
        report.lose(format!(
            "file {inode}: what a writer that is gone was writing into it; look whether it is as it should be"
        ));
    }
    region.set_lane_word(lane, word::STATE, doing::NOTHING);
    region.set_lane_word(lane, word::FREES, 0);
    region.set_lane_word(lane, word::INODE, 0);
    region.clear_notes(lane);
    region.set_lane_word(lane, word::OWNER, 0);
}

/// Checks the locks of all inodes.
pub(super) fn look(region: &Region, lane: Option<Lane>, report: &mut CheckReport) {
    if lane.is_none() && region.memory.load(state::LOCK) != 0 {
        // A reader takes no lock, so the holder may be at work.
        if is_orphaned(region, state::LOCK, None) {
            let text = "the lock of names and space has no living holder";
            report.find(Kind::Lock, state::LOCK, text);
        }
    }
    for inode in 1..region.layout.inode_count {
        let at = region.layout.inode(inode);
        if is_orphaned(region, at + attribute::LOCK, Some(inode)) {
            let text = format!("the lock of file {inode} has no living holder");
            report.find(Kind::Lock, at, text);
        }
        if is_left_in_a_change(region, at) {
            let text = format!("file {inode} was left in the middle of a change");
            report.find(Kind::Change, at, text);
        }
    }
}

/// Whether a lock is taken and its holder does not have it.
fn is_orphaned(region: &Region, at: u64, inode: Option<u64>) -> bool {
    let is_orphaned_now = || {
        let found = region.memory.load(at);
        let is_held = region.holder(at).is_some_and(|holder| {
            let owner = region.lane_word(holder, word::OWNER);
            let has = region.lane_word(holder, word::INODE);
            owner != 0 && inode.is_none_or(|inode| has == inode)
        });
        found != 0 && !is_held
    };
    is_so_for_long(is_orphaned_now)
}

fn is_left_in_a_change(region: &Region, at: u64) -> bool {
    is_so_for_long(|| {
        region.memory.load(at + attribute::SEQUENCE) % 2 == 1
            && region.memory.load(at + attribute::LOCK) == 0
    })
}

fn is_so_for_long(is_so: impl Fn() -> bool) -> bool {
    (0..LOOKS_MAX).all(|look| {
        if look > 1 {
            std::thread::yield_now();
        }
        is_so()
    })
}

/// Frees a lock without a holder.
pub(super) fn free(region: &Region, at: u64) {
    region.unlock(at);
}

/// Frees all locks of inodes without a holder, and ends changes without a writer.
pub(super) fn free_all(region: &Region) {
    for inode in 1..region.layout.inode_count {
        let at = region.layout.inode(inode);
        if is_orphaned(region, at + attribute::LOCK, Some(inode)) {
            free(region, at + attribute::LOCK);
        }
        if is_left_in_a_change(region, at) {
            let sequence = region.memory.load(at + attribute::SEQUENCE);
            region
                .memory
                .store(at + attribute::SEQUENCE, sequence.wrapping_add(1));
        }
    }
}

/// Open file descriptions that name a file that cannot be open: they would never be freed.
fn invalid_descriptions(region: &Region) -> impl Iterator<Item = u64> {
    (1..region.layout.description_count).filter(|description| {
        let at = region.layout.description(*description);
        is_so_for_long(|| {
            let inode = region.memory.load(at + entry::INODE);
            is_open_claim(region.memory.load(at + entry::CLAIM))
                && !(1..region.layout.inode_count).contains(&inode)
        })
    })
}

pub(super) fn descriptions(region: &Region, report: &mut CheckReport) {
    for description in invalid_descriptions(region) {
        let text = format!("open file description {description} describes nothing");
        report.find(
            Kind::Description,
            region.layout.description(description),
            text,
        );
    }
}

pub(super) fn free_descriptions(region: &Region) {
    for description in invalid_descriptions(region) {
        let at = region.layout.description(description) + entry::CLAIM;
        let claim = region.memory.load(at);
        // Keep only the counter in the high half.
        region.memory.store(at, claim >> 32 << 32);
    }
}

fn is_open_claim(claim: u64) -> bool {
    claim & 1 << 31 != 0
}
