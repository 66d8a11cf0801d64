//! How long readings are kept: indexing and deletion, in bounded steps between commits.
//!
//! **Invariants:** only whole segments are deleted, the oldest first, and none that a restart would read. Deleting
//! needs no free space. What is deleted is counted. Age is counted from the arrival, so that a sensor's wrong time
//! neither keeps nor deletes anything. Only a trusted wall clock counts, and for arrivals of this boot the monotonic
//! clock too, so that a clock that jumps deletes nothing early. Readings that a consumer has still to pass on are held
//! back from both limits, up to a limit of their own.

use crate::commit::{Core, Shared};
use crate::error::Error;
use crate::history::index::Limits;
use crate::log::summary::{Outline, Sample};
use crate::mutex::lock;
use crate::options::Retention;
use crate::store::SegmentStore;
use crate::wall::Wall;

impl<S: SegmentStore> Shared<S> {
    /// Runs one step; `true` when there is more to do at once.
    pub(crate) fn maintain(&self, core: &mut Core<S>) -> Result<bool, Error> {
        let wall = self.sample_wall();
        if self
            .clock_changed
            .load(std::sync::atomic::Ordering::Relaxed)
        {
            // Perhaps no reading has arrived for hours: wake the commit side, which logs the clock.
            self.wake();
        }
        let active = core.writer.active();
        let indexing = self.adopt(core)? || {
            let store = core.store.as_mut().ok_or(Error::Closed)?;
            let (segments, live) = (core.writer.segments(), core.writer.summary());
            core.index
                .step(store, segments, active, live, &self.limits())?
        };
        let retention = *lock(&self.retention);
        let mut deleted = false;
        if !indexing && self.has_expired(core, &retention, wall) {
            if self.oldest_is_free(core) {
                let readings = self.delete_oldest(core).map_err(Error::from)?;
                let mut counters = lock(&self.counters);
                counters.segments_expired += 1;
                counters.readings_expired += readings;
                deleted = true;
            } else if core.checkpoint.is_none()
                && core.writer.segments().len() > 1
                && self.may_find_room(core)
            {
                // A restart would still read it: the next round must begin a checkpoint.
                core.log_bytes = core.log_bytes.max(self.options.checkpoint_bytes);
                self.queue.lock().checkpoint_due = true;
                self.wake();
            }
        }
        self.publish(core);
        Ok(indexing || deleted)
    }

    /// Returns whether a checkpoint has a chance. One that failed fails again while log and store are as they were, and
    /// retention, which asks every second, would only wear the card.
    fn may_find_room(&self, core: &Core<S>) -> bool {
        let free_bytes = core.store.as_ref().map_or(0, S::free_bytes);
        core.failed_at.is_none_or(|(appended, free)| {
            let grown = core.writer.bytes_appended().saturating_sub(appended);
            grown >= self.options.checkpoint_bytes || free_bytes > free
        })
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            segment_bytes_max: self.options.segment_bytes_max,
            reserve_bytes: self.reserve_bytes(),
        }
    }

    /// Hands one finished summary of the writer to the index. Returns whether there was one.
    pub(crate) fn adopt(&self, core: &mut Core<S>) -> Result<bool, Error> {
        let Some(summary) = core.writer.take_finished() else {
            return Ok(false);
        };
        let store = core.store.as_mut().ok_or(Error::Closed)?;
        let reserve_bytes = self.reserve_bytes();
        core.index
            .adopt(store, core.writer.segments(), summary, reserve_bytes)?;
        Ok(true)
    }

    /// Updates the figures of the log.
    fn publish(&self, core: &mut Core<S>) {
        let segments = core.writer.segments();
        let history_bytes = core.index.log_bytes(
            segments,
            core.writer.active(),
            self.options.segment_bytes_max,
        );
        let oldest = segments.front().copied();
        let count = segments.len() as u64;
        let unknown = lock(&self.counters).oldest_lsn == 0;
        let oldest_lsn = match (oldest, core.store.as_mut()) {
            (Some(oldest), Some(store)) if unknown => {
                core.index.first_lsn(store, oldest, core.writer.summary())
            }
            _ => None,
        };
        // A segment that vanished without being deleted leaves a gap in the numbers.
        let missing = core.index.readings_missing(core.writer.segments());
        let mut counters = lock(&self.counters);
        counters.segments = count;
        counters.history_bytes = history_bytes;
        counters.damage = core.index.damage;
        let counted = &mut counters.damage.readings_missing;
        *counted = counted.saturating_add(missing);
        if let Some(lsn) = oldest_lsn {
            counters.oldest_lsn = lsn;
        }
    }

    /// Returns both clocks as they are now. By the sample that also dates readings and anchors: corrected times keep
    /// the order of their arrivals, whichever moment corrects them.
    pub(crate) fn present(&self, wall: Wall) -> Sample {
        let arrival_us = self.clock.monotonic_ns() / 1000;
        Sample {
            arrival_us,
            wall_ns: wall.at_us(arrival_us).ns(),
        }
    }

    /// Whether the oldest segment exceeds the limit of size or age.
    fn has_expired(&self, core: &mut Core<S>, retention: &Retention, wall: Wall) -> bool {
        if self.is_too_much(core, retention) {
            return true;
        }
        if retention.history_age_ms_max == 0 || !wall.trusted {
            return false;
        }
        if self.is_oldest_spared(core, retention) {
            return false;
        }
        let segments = core.writer.segments();
        let now = self.present(wall);
        let boots = core
            .index
            .boots(core.writer.summary(), Some((self.boot_id, now)));
        let age_max_ms = i64::try_from(retention.history_age_ms_max).unwrap_or(i64::MAX);
        // The log is in the order of arrival: a reading that cannot be dated arrived before the next one that can.
        for segment in segments.iter() {
            let Some(outline) = core.index.outline(*segment) else {
                return false;
            };
            let arrivals = outline
                .boots
                .iter()
                .map(|part| boots.wall_at(&part.boot_id, part.arrival_max_us));
            let newest = arrivals
                .collect::<Option<Vec<_>>>()
                .and_then(|dated| dated.into_iter().max().filter(|_| !outline.unbounded));
            if let Some(newest) = newest {
                let age_ns = now.wall_ns.saturating_sub(newest.ns());
                let old = age_ns > age_max_ms.saturating_mul(1_000_000);
                return old && self.arrived_long_ago(outline, now, age_max_ms);
            }
        }
        false
    }

    /// Whether the log exceeds its size limit and its oldest segment is not spared.
    pub(crate) fn is_too_much(&self, core: &mut Core<S>, retention: &Retention) -> bool {
        let history = retention.history_bytes_max;
        history > 0 && self.log_bytes(core) > history && !self.is_oldest_spared(core, retention)
    }

    fn log_bytes(&self, core: &mut Core<S>) -> u64 {
        core.index.log_bytes(
            core.writer.segments(),
            core.writer.active(),
            self.options.segment_bytes_max,
        )
    }

    /// Whether the oldest segment is exempt from the limits of the history. It is exempt if one of its readings is held
    /// and the log does not exceed the backlog limit.
    fn is_oldest_spared(&self, core: &mut Core<S>, retention: &Retention) -> bool {
        let backlog = retention.backlog_bytes_max;
        self.is_oldest_held(core) && (backlog == 0 || self.log_bytes(core) <= backlog)
    }

    /// Whether a reading of the oldest segment is held.
    fn is_oldest_held(&self, core: &mut Core<S>) -> bool {
        let held_from = self.held_from.load(std::sync::atomic::Ordering::Relaxed);
        if held_from == u64::MAX {
            return false;
        }
        let live = core.writer.summary();
        let Some(store) = core.store.as_mut() else {
            return true;
        };
        // If no later segment has a number, the oldest holds all there is.
        let later = core.writer.segments().iter().skip(1);
        let mut firsts = later.filter_map(|segment| core.index.first_lsn(store, *segment, live));
        firsts.next().is_none_or(|first| first > held_from)
    }

    /// Whether the arrivals of this boot are that old on the monotonic clock, too.
    fn arrived_long_ago(&self, outline: &Outline, now: Sample, age_max_ms: i64) -> bool {
        outline
            .boots
            .iter()
            .filter(|part| part.boot_id == self.boot_id)
            .all(|part| {
                let since_us = now.arrival_us.saturating_sub(part.arrival_max_us);
                i64::try_from(since_us / 1000).unwrap_or(i64::MAX) > age_max_ms
            })
    }
}
