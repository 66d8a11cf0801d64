//! Positions that this process keeps for open file descriptions of other processes.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Positions of descriptions that other processes have opened, in a process that cannot change theirs.
#[derive(Default)]
pub(crate) struct OwnPositions(OnceLock<Box<[OwnPosition]>>);

#[derive(Default)]
struct OwnPosition {
    /// The description's claim when this entry was begun: the number may be in use for another description since.
    claim: AtomicU64,
    offset: AtomicU64,
}

impl OwnPositions {
    /// The position of a description, of which the region has `count`. Unless it is known already for this `claim`, it
    /// begins at what `offset` returns. `None` if there is no description of this number.
    pub(crate) fn of(
        &self,
        count: u64,
        description: u32,
        claim: u64,
        offset: impl FnOnce() -> u64,
    ) -> Option<&AtomicU64> {
        let all = self
            .0
            .get_or_init(|| (0..count).map(|_| OwnPosition::default()).collect());
        let own = all.get(description as usize)?;
        if own.claim.swap(claim, Ordering::Relaxed) != claim {
            own.offset.store(offset(), Ordering::Relaxed);
        }
        Some(&own.offset)
    }
}
