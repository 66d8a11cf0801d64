//! How lives end: what sets the end off, a stop, a crash, and what is left.

use std::sync::Arc;

use base::sim::SimDevice;
use ingest::intake::LineProgress;

use super::{Life, Run, SECOND_NS, STEPS_MAX, Source};
use crate::device::Device;
use crate::draw::{End, PlannedEnd};
use crate::invariant::{Broken, Invariant};
use crate::report::Step;

/// Longest time between two lives.
const DOWN_NS_MAX: u64 = 3 * SECOND_NS;

impl Run<'_> {
    pub(super) fn is_done(&self, life: &Life) -> bool {
        let is_over =
            |source: &Source| source.next >= self.setup.readings && source.pending.is_empty();
        life.waiting.is_empty() && !life.checkpoint_unfinished && self.sources.iter().all(is_over)
    }

    /// Sets off the planned end once its reading was offered, and the last one once everything is done.
    pub(super) fn set_off_end(&mut self, life: &mut Life) {
        let is_done = self.is_done(life);
        let Some(planned) = life.planned else {
            life.stops = is_done && Self::is_forwarded(life);
            return;
        };
        let is_due = is_done || planned.at.is_none_or(|at| self.offered_end > at);
        if life.is_set_off {
            if is_done {
                // No writes are left to wait for.
                life.device.end_after_writes(0);
            }
        } else if is_due {
            life.is_set_off = true;
            let (end, writes) = (planned.end, planned.writes);
            self.trail
                .note(self.now_ns, Step::EndSetOff { end, writes });
            match end {
                End::Stop { .. } => life.stops = true,
                End::Cut | End::Kill => life.device.end_after_writes(writes),
            }
        }
    }

    /// A life has crashed. Returns what it leaves.
    pub(super) fn crashed(
        &mut self,
        device: &Device,
        planned: Option<PlannedEnd>,
    ) -> Result<SimDevice, Broken> {
        self.count_faults(device);
        self.gone.cut();
        let end = planned.map_or(End::Cut, |planned| planned.end);
        let left = match end {
            End::Kill => {
                self.figures.kills += 1;
                device.left_running()
            }
            End::Cut | End::Stop { .. } => {
                self.figures.cuts += 1;
                device.left_by_cut(self.random.next_u64())
            }
        };
        self.ended(end, &left)?;
        Ok(left)
    }

    /// Everything taken becomes durable and is acknowledged, and the node stops. If it cannot, as it may, it is killed.
    pub(super) fn stop(&mut self, mut life: Life) -> Result<Option<SimDevice>, Broken> {
        if self.alarms.is_some() {
            self.settle_alarms(&mut life)?;
        }
        if let Err(error) = self.close(&mut life)? {
            let is_full = self.is_deleting() && life.node.database.stats().full;
            if is_full || self.may_fail(&life.device) {
                return self.restart(life);
            }
            let found = format!("at a stop: {error}");
            return Err(Broken::new(Invariant::Taken, found));
        }
        self.pass(life.device.take_spent_ns());
        self.note_table(&life.node);
        let end = life
            .planned
            .map_or(End::Stop { reboots: true }, |planned| planned.end);
        let left = life.device.left_running();
        self.figures.stops += 1;
        self.was_stopped = true;
        let is_last = life.planned.is_none();
        self.count_faults(&life.device);
        drop(life);
        self.ended(end, &left)?;
        if !is_last {
            return Ok(Some(left));
        }
        if !self.harm.hides {
            let (ledger, gone_end) = (&self.ledger, self.gone.end());
            self.followed
                .complete(ledger, gone_end, Invariant::NothingLost)?;
        }
        if self.draw.is_quiet {
            self.followed.exact(&self.ledger)?;
        }
        self.check_forwarded()?;
        Ok(None)
    }

    /// Closes the node of a life. The inner error is what the node says.
    fn close(&mut self, life: &mut Life) -> Result<Result<(), String>, Broken> {
        let fails = |error: String| Broken::new(Invariant::Taken, format!("at a stop: {error}"));
        let database = Arc::clone(&life.node.database);
        self.check_timely(life)?;
        self.commit_readings_max = self.commit_readings_max.max(life.waiting.count());
        let mut rounds = 0;
        loop {
            match database.pump() {
                Ok(true) if rounds < STEPS_MAX => rounds += 1,
                Ok(true) => return Err(fails("a checkpoint has no end".to_owned())),
                Ok(false) => break,
                Err(error) => return Ok(Err(error.to_string())),
            }
        }
        self.check_moments(life)?;
        let durable_end = database.durable_end();
        self.announce(life, durable_end);
        if let Some(source) = self
            .sources
            .iter()
            .find(|source| !source.pending.is_empty())
        {
            let number = source.pending.front().map_or(0, |(_, number)| *number);
            return Err(fails(format!("reading {number} is not acknowledged")));
        }
        self.follow(life)?;
        let end = life.cursor.next_lsn();
        if end != durable_end && !self.harm.hides {
            let found = format!("the log ends at {end} for a follower, and at {durable_end}");
            return Err(Broken::new(Invariant::NothingLost, found));
        }
        self.stop_links(life)?;
        let store = match database.close() {
            Ok(store) => store,
            Err(error) => return Ok(Err(error.to_string())),
        };
        self.check_moments(life)?;
        if let Err(error) = store.close() {
            return Ok(Err(error.to_string()));
        }
        self.check_moments(life)?;
        Ok(Ok(()))
    }

    /// Checks what a life has left, and lets the time until the next one pass.
    fn ended(&mut self, end: End, left: &SimDevice) -> Result<(), Broken> {
        let image_hash = left.image_hash();
        self.trail
            .note(self.now_ns, Step::Ended { end, image_hash });
        let known = (self.durable_end, self.is_harmed(None));
        let contents = self.check_image(left.clone(), known, Invariant::NothingLost)?;
        self.take_stock(&contents);
        self.left_first = contents.first;
        for source in &mut self.sources {
            // What is not acknowledged is offered again.
            if let Some((_, first)) = source.pending.front() {
                source.next = *first;
            }
            source.pending.clear();
            source.progress = LineProgress::default();
            source.waits = false;
        }
        let down_ns = self.random.below(DOWN_NS_MAX);
        self.pass(down_ns);
        if matches!(end, End::Cut | End::Stop { reboots: true }) {
            self.clock.reboot();
            self.clock.set_wall_trusted(self.random.coin());
            if let Some(probes) = &mut self.probes {
                probes.boot(&self.clock);
            }
        }
        Ok(())
    }
}
