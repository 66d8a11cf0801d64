//! The commit side of a life: when it runs, and what it has done. No reading waits for it longer than it may.

use db::{CommitDriver, CommitStep, Error, Health};

use super::upkeep::FULL_RETRY_NS;
use super::{Life, MS_NS, Run};
use crate::event::Event;
use crate::invariant::{Broken, Invariant};
use crate::report::Step;

/// What the commit side has done.
enum Done {
    Round {
        unfinished: bool,
    },
    /// A round that has found the store full.
    Full,
    /// It rests for this time, in ns, or until it is woken.
    Rest(Option<u64>),
    Failed(String),
}

impl Run<'_> {
    /// Whether the loop of the commit thread itself runs, step by step. Otherwise the run decides when to commit.
    fn is_stepped(&self) -> bool {
        self.draw.options.commit_driver == CommitDriver::Stepped
    }

    /// The commit side begins with the life.
    pub(super) fn begin_commits(&self, life: &mut Life) {
        if self.is_stepped() {
            self.want_commit(life, self.now_ns);
        }
    }

    /// A reading was taken: commits when the queue is half full, or after the interval.
    pub(super) fn plan_commit(&self, life: &mut Life) {
        if self.is_stepped() {
            return self.hear_wake_up(life);
        }
        if life.waiting.is_empty() {
            return;
        }
        let options = &self.draw.options;
        // A reading takes 32 bytes of the queue.
        let is_pressed = life.waiting.count() * 64 >= options.queue_bytes_max as u64;
        let wait_ns = match is_pressed {
            true => 0,
            false => u64::from(options.commit_interval_ms) * MS_NS,
        };
        self.want_commit(life, self.now_ns + wait_ns);
    }

    /// A reading finds no room in the queue.
    pub(super) fn press_commit(&self, life: &mut Life) {
        match self.is_stepped() {
            true => self.hear_wake_up(life),
            false => self.want_commit(life, self.now_ns),
        }
    }

    /// A source wants what waits on flash at once.
    pub(super) fn hurry_commit(&self, life: &mut Life) {
        life.node.database.hurry();
        life.waiting.hurry(self.now_ns);
        self.press_commit(life);
    }

    /// Has the commit side run if the node has woken it.
    pub(super) fn hear_wake_up(&self, life: &mut Life) {
        if self.is_stepped() && life.node.database.take_wake_up() {
            self.want_commit(life, self.now_ns);
        }
    }

    /// Has the commit side run at this time, or when it is free; an earlier time that was wanted stays.
    fn want_commit(&self, life: &mut Life, at_ns: u64) {
        let at_ns = at_ns.max(life.free_ns).max(self.now_ns);
        if life.commit_at_ns.is_none_or(|wanted_ns| at_ns < wanted_ns) {
            life.commit_at_ns = Some(at_ns);
            life.queue.push(at_ns, Event::Commit);
        }
    }

    pub(super) fn commit(&mut self, life: &mut Life) -> Result<(), Broken> {
        // An event that an earlier one has replaced, or that comes while the device is busy.
        if life.commit_at_ns != Some(self.now_ns) {
            return Ok(());
        }
        life.commit_at_ns = None;
        let free_ns = life.free_ns;
        if self.now_ns < free_ns {
            self.want_commit(life, free_ns);
            return Ok(());
        }
        self.check_timely(life)?;
        self.commit_readings_max = self.commit_readings_max.max(life.waiting.count());
        let done = self.run_commit(life);
        life.free_ns = self.now_ns + life.device.take_spent_ns();
        let durable_end = life.node.database.durable_end();
        self.check_moments(life)?;
        match done {
            Done::Round { unfinished } => self.note_round(life, unfinished, durable_end),
            Done::Full => self.retry_full(life, durable_end)?,
            Done::Rest(Some(rest_ns)) => self.want_commit(life, self.now_ns + rest_ns),
            Done::Rest(None) => {}
            Done::Failed(_) if life.device.is_gone() || self.may_fail(&life.device) => {
                life.has_failed = true;
                self.trail
                    .note(self.now_ns, Step::CommitFailed { durable_end });
                // What became durable before may have been acknowledged in the last instant.
                if self.random.coin() {
                    self.announce(life, durable_end);
                }
                return Ok(());
            }
            Done::Failed(error) => return Err(Broken::new(Invariant::Taken, error)),
        }
        // It may have been woken before it began to rest.
        self.hear_wake_up(life);
        Ok(())
    }

    /// A round has ended. What it has left, by the durable end, goes on waiting.
    fn note_round(&mut self, life: &mut Life, unfinished: bool, durable_end: u64) {
        let readings = life.waiting.end_below(durable_end);
        life.full_since_ns = None;
        life.checkpoint_unfinished = unfinished;
        let step = Step::Committed {
            readings,
            durable_end,
            checkpoint_unfinished: unfinished,
        };
        self.trail.note(self.now_ns, step);
        life.queue
            .push(life.free_ns, Event::Announce { durable_end });
        if unfinished || self.is_stepped() {
            let free_ns = life.free_ns;
            self.want_commit(life, free_ns);
        }
    }

    /// A round has found the store full, so the commit side tries again.
    ///
    /// # Errors
    /// I6.
    fn retry_full(&mut self, life: &mut Life, durable_end: u64) -> Result<(), Broken> {
        self.fill(life)?;
        // A part of what waited may be durable.
        life.waiting.end_below(durable_end);
        life.queue
            .push(life.free_ns, Event::Announce { durable_end });
        let rest_ns = match self.is_stepped() {
            true => 0,
            false => FULL_RETRY_NS,
        };
        self.want_commit(life, self.now_ns + rest_ns);
        Ok(())
    }

    fn run_commit(&self, life: &Life) -> Done {
        let database = &life.node.database;
        if !self.is_stepped() {
            return match database.pump() {
                Ok(unfinished) => Done::Round { unfinished },
                Err(Error::Full) if self.is_deleting() => Done::Full,
                Err(error) => Done::Failed(error.to_string()),
            };
        }
        match database.commit_step() {
            CommitStep::Round { .. } if database.health() == Health::Full => {
                match self.is_deleting() {
                    true => Done::Full,
                    false => Done::Failed("the store is full".to_owned()),
                }
            }
            CommitStep::Round { unfinished } => Done::Round { unfinished },
            CommitStep::Nap(rest) => Done::Rest(u64::try_from(rest.as_nanos()).ok()),
            CommitStep::Sleep => Done::Rest(None),
            CommitStep::End => {
                let health = database.health();
                Done::Failed(format!("the commit side has ended: {health:?}"))
            }
        }
    }

    /// Checks that no reading waits for its commit longer than the interval and the device, and a hurried one no longer
    /// than the device.
    ///
    /// # Errors
    /// I6.
    pub(super) fn check_timely(&self, life: &Life) -> Result<(), Broken> {
        let interval_ns = u64::from(self.draw.options.commit_interval_ms) * MS_NS;
        let timely = life.waiting.check(self.now_ns, interval_ns, life.free_ns);
        // Without a reason of the run's own, what the node says of itself excuses nothing.
        let has_reason = || self.is_deleting() || self.may_fail(&life.device);
        let says_why = || {
            let health = life.node.database.health();
            matches!(health, Health::Full | Health::LogFailed(_))
        };
        match timely.is_ok() || life.device.is_gone() || has_reason() && says_why() {
            true => Ok(()),
            false => timely,
        }
    }
}
