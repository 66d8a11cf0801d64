//! What the faults of the device do to a run: a node that fails is started again, and what is lost is counted.
//!
//! **The rule.** While the device keeps its contract, nothing is lost, even if requests fail. Once it has broken it, an
//! acknowledged reading may be missing. Then the log, its names or the store must be found to be damaged, or the end of
//! the log was taken back. Nothing is altered and nothing invented even then. A bit that rots between two lives is
//! judged by the log before and after it: what it costs lies together in one segment.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};

use base::sim::{FaultCounters, FaultPlan, SimDevice};
use db::{LogStep, scan_log};
use flash::{OpenOptions, Store};

use super::{Life, Run};
use crate::check::{Contents, Found};
use crate::device::Device;
use crate::draw::{End, PlannedEnd};
use crate::fault::{self, Profile};
use crate::invariant::{Broken, Invariant};

/// Starts in a row of nodes that failed before they acknowledged anything.
const RESTARTS_MAX: u32 = 30;
/// Bytes of log within which one bit costs readings: the block, and records that reach into it.
const REACH_BYTES: u64 = 2 * 4_096;
/// The node is killed because it has failed.
const KILLED: PlannedEnd = PlannedEnd {
    end: End::Kill,
    at: None,
    writes: 0,
};

/// What faults have done in a run so far.
#[derive(Debug, Default)]
pub(super) struct Harm {
    /// Faults of lives that are over that broke the contract of the device.
    silent: u64,
    /// Requests that failed in lives that are over.
    failed: u64,
    /// What the device had counted when the life began.
    base: FaultCounters,
    /// The follower has missed readings.
    pub(super) hides: bool,
    /// A checkpoint found no room, so a start may read more.
    pub(super) checkpoints_fail: bool,
    /// The burst is over.
    has_burst: bool,
    /// Starts since the device has no more room.
    starts_full: Option<u64>,
    /// Starts since the last acknowledgement, and how many acknowledgements there were by then.
    restarts: (u32, u64),
    /// Nothing more can be done with this store.
    pub(super) is_over: bool,
}

/// A reading of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    segment: u32,
    offset: u64,
    /// `None` without a name.
    number: Option<u64>,
}

impl Entry {
    fn place(&self) -> (u32, u64) {
        (self.segment, self.offset)
    }
}

/// What a log holds, and what damage is counted in it.
struct Inventory {
    entries: Vec<Entry>,
    damage: u64,
    files_unreadable: u64,
    /// Blocks of the store that hold data.
    blocks: Range<u64>,
}

impl Run<'_> {
    // ---- a life and its device ----

    /// Sets what goes wrong while a life starts.
    pub(super) fn begin_faults(&mut self, device: &Device) {
        self.harm.base = device.faults();
        device.set_faults(self.faults.starting);
        if let (Some(starts), Some(no_room)) = (&mut self.harm.starts_full, self.faults.no_room) {
            *starts += 1;
            if *starts > no_room.starts {
                device.set_room(None);
            }
        }
    }

    /// Sets what goes wrong while it runs.
    pub(super) fn go_on_with_faults(&self, device: &Device) {
        if self.faults.running != FaultPlan::default() {
            device.set_faults(self.faults.running);
        }
    }

    /// Sets off faults whose reading was offered.
    pub(super) fn set_off_faults(&mut self, life: &Life) {
        if let Some(burst) = self.faults.burst
            && !self.harm.has_burst
            && self.offered_end > burst.at
        {
            self.harm.has_burst = true;
            life.device.fail(burst.requests);
        }
        if let Some(no_room) = self.faults.no_room
            && self.harm.starts_full.is_none()
            && self.offered_end > no_room.at
        {
            self.harm.starts_full = Some(0);
            life.device.set_room(Some(no_room.blocks));
        }
    }

    /// Counts the faults since the last call, or since the life began.
    pub(super) fn count_faults(&mut self, device: &Device) {
        let now = device.faults();
        self.figures.stalls += now.stalls - self.harm.base.stalls;
        self.harm.silent += fault::silent(&now) - fault::silent(&self.harm.base);
        self.harm.failed += fault::failed(&now) - fault::failed(&self.harm.base);
        self.harm.base = now;
        self.figures.faults = self.harm.silent + self.harm.failed;
    }

    /// Returns how long the requests of this life have stalled, in ns.
    pub(super) fn stalled_ns(&self, device: &Device) -> u64 {
        let stalls = device.faults().stalls - self.harm.base.stalls;
        stalls * self.faults.running.stall_ns
    }

    /// Whether the device of this life, or of one before, has broken its contract.
    pub(super) fn is_harmed(&self, device: Option<&Device>) -> bool {
        let now = device.map_or(0, |device| {
            fault::silent(&device.faults()) - fault::silent(&self.harm.base)
        });
        self.faults.profile == Profile::Damage && self.harm.silent + now > 0
    }

    /// Whether the node has a reason to fail.
    pub(super) fn may_fail(&self, device: &Device) -> bool {
        let now = device.faults();
        let failed = self.harm.failed + fault::failed(&now) - fault::failed(&self.harm.base);
        let has_reason = failed > 0 || self.is_harmed(Some(device));
        self.faults.profile.may_fail() && has_reason
    }

    // ---- a node that has failed ----

    /// A start has failed, as it may. The operator starts the node again, or has a store that does not open any more.
    pub(super) fn start_failed(&mut self, device: &Device) -> Result<Option<SimDevice>, Broken> {
        if self.is_harmed(Some(device)) {
            self.count_faults(device);
            self.give_up();
            return Ok(None);
        }
        self.count_restart()?;
        self.crashed(device, Some(KILLED)).map(Some)
    }

    /// The log has failed, as it may: the node is started again.
    pub(super) fn restart(&mut self, mut life: Life) -> Result<Option<SimDevice>, Broken> {
        self.note_table(&life.node);
        self.crash_links(std::mem::take(&mut life.links));
        drop(life.node.database.abandon());
        self.gone.cut();
        self.count_restart()?;
        self.crashed(&life.device, Some(KILLED)).map(Some)
    }

    fn count_restart(&mut self) -> Result<(), Broken> {
        self.figures.restarts += 1;
        let (acknowledged, _) = self.ledger.counts();
        let (restarts, before) = self.harm.restarts;
        self.harm.restarts = match before == acknowledged {
            true => (restarts + 1, before),
            false => (1, acknowledged),
        };
        if self.harm.restarts.0 < RESTARTS_MAX {
            return Ok(());
        }
        if self.faults.profile == Profile::Damage {
            self.give_up();
            return Ok(());
        }
        let found = format!("the node was started {RESTARTS_MAX} times, and acknowledges nothing");
        Err(Broken::new(Invariant::Taken, found))
    }

    fn give_up(&mut self) {
        self.figures.given_up += 1;
        self.harm.is_over = true;
    }

    // ---- what is lost ----

    /// The store does not open any more, or readings are lost and counted.
    pub(super) fn take_stock(&mut self, contents: &Contents) {
        if !contents.opens {
            return self.give_up();
        }
        for number in &contents.lost {
            self.figures.lost += u64::from(self.ledger.damage(*number));
        }
    }

    /// The log is followed from its beginning once it may be damaged: its numbers are not those from before.
    pub(super) fn follow_anew(&mut self) {
        if self.is_harmed(None) {
            self.followed = Found::new(&self.feed);
            self.followed.miss_copies();
            self.followed_end = 0;
            self.harm.hides = true;
        }
    }

    /// The follower has not found all numbers from `from` on.
    ///
    /// # Errors
    /// I1, unless what it has not found is deleted and counted, or could not be read.
    pub(super) fn check_gap(
        &mut self,
        life: &Life,
        from: u64,
        step: &LogStep,
    ) -> Result<(), Broken> {
        let is_deleted = step.readings_missing == 0 && from + step.readings_gone <= self.gone.end();
        let is_hidden = !self.is_deleting() && self.may_fail(&life.device);
        self.harm.hides |= is_hidden;
        self.followed.miss_copies();
        if is_hidden || is_deleted && self.is_deleting() {
            return Ok(());
        }
        let found = format!("the log has a gap: {step:?}");
        Err(Broken::new(Invariant::NothingLost, found))
    }

    /// Lets bits rot between two lives, and checks what each of them costs.
    pub(super) fn decay(&mut self, mut left: SimDevice) -> Result<SimDevice, Broken> {
        if self.faults.profile != Profile::Damage {
            return Ok(left);
        }
        let rots = self.faults.rots();
        let mut before = None;
        for _ in 0..rots {
            let Some(earlier) = before.take().or_else(|| self.inventory(&left)) else {
                break;
            };
            let block = self.faults.rot(&mut left, earlier.blocks.clone());
            self.harm.silent += 1;
            let Some(after) = self.inventory(&left) else {
                self.give_up();
                break;
            };
            self.compare(&earlier, &after, block)?;
            before = Some(after);
        }
        Ok(left)
    }

    /// Returns what a device holds; `None` if the store does not open.
    fn inventory(&self, device: &SimDevice) -> Option<Inventory> {
        let image = Device::image(device.clone());
        let mut store = Store::open(image, &OpenOptions::default()).ok()?;
        let layout = store.layout();
        let blocks = u64::from(layout.data_first)..u64::from(layout.data_end);
        let mut entries = Vec::new();
        let report = scan_log(&mut store, &mut |entry| {
            let sensor = entry.key.and_then(|key| self.feed.sensor_of(key));
            entries.push(Entry {
                segment: entry.segment,
                offset: entry.offset,
                number: sensor.and_then(|sensor| self.feed.number_of(sensor, entry.time)),
            });
            ControlFlow::Continue(())
        });
        let report = report.ok()?;
        let damage = report.damage;
        Some(Inventory {
            entries,
            damage: damage.records_damaged
                + damage.pieces_unreadable
                + damage.readings_missing
                + damage.files_unreadable
                + damage.tails_torn
                + report.readings_unnamed,
            files_unreadable: damage.files_unreadable,
            blocks,
        })
    }

    /// Compares a log before and after a bit of this block has rotted.
    fn compare(&mut self, before: &Inventory, after: &Inventory, block: u64) -> Result<(), Broken> {
        let broken = |invariant, what: &str| {
            let found = format!("a bit of block {block} rots: {what}");
            Err(Broken::new(invariant, found))
        };
        let mut missing = Vec::new();
        let mut unnamed = Vec::new();
        let mut rest = after.entries.iter().peekable();
        for entry in &before.entries {
            match rest.next_if(|found| found.place() == entry.place()) {
                None => missing.push(*entry),
                Some(found) if found.number == entry.number => {}
                Some(Entry { number: None, .. }) => unnamed.push(*entry),
                Some(found) => {
                    let what = format!("{found:?} stands for {entry:?}");
                    return broken(Invariant::NothingAltered, &what);
                }
            }
        }
        if let Some(found) = rest.next() {
            let what = format!("{found:?} was not there before");
            return broken(Invariant::NothingInvented, &what);
        }
        let is_counted = after.damage > before.damage;
        let last = after.entries.last().map(Entry::place);
        // The last call before a cut cannot be told from one that the cut has torn.
        let is_taken_back =
            unnamed.is_empty() && !self.was_stopped && missing.first().map(Entry::place) > last;
        let is_lost = !missing.is_empty() || !unnamed.is_empty();
        if is_lost && !is_counted && !is_taken_back {
            let (missing, unnamed) = (missing.len(), unnamed.len());
            let what = format!("{missing} readings and the names of {unnamed} are lost uncounted");
            return broken(Invariant::NothingLost, &what);
        }
        if let (Some(first), Some(last)) = (missing.first(), missing.last())
            && !is_taken_back
            && after.files_unreadable == before.files_unreadable
            && (first.segment != last.segment || last.offset - first.offset > REACH_BYTES)
        {
            let what = format!("it costs all from {first:?} to {last:?}");
            return broken(Invariant::NothingLost, &what);
        }
        let kept: BTreeSet<u64> = after.entries.iter().filter_map(|one| one.number).collect();
        for entry in missing.iter().chain(&unnamed) {
            if let Some(number) = entry.number.filter(|number| !kept.contains(number))
                && self.ledger.is_acknowledged(number)
            {
                self.figures.lost += u64::from(self.ledger.damage(number));
            }
        }
        Ok(())
    }
}
