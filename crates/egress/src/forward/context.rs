//! The state of one upstream that MQTT and HTTP share: its figures, its stop, and what ended its connections.

use super::figures::UpstreamState;
use super::forwarder::Forwarder;
use super::options::UpstreamOptions;
use base::block::BlockDevice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

/// Longest poll interval of the log, in ms.
pub(crate) const POLL_MS_MAX: u64 = 20;
/// Time between two checks of what retention has deleted, in ms.
pub(super) const LOOK_MS: u64 = 5_000;
/// Retry interval of a failed cursor write, in ms.
const CURSOR_RETRY_MS: u64 = 1_000;
/// Time between two updates of the figures, in ms.
pub(crate) const PUBLISH_MS: u64 = 100;
/// Number of readings refused in a row, without an accepted one between them, after which the fault may lie in the
/// upstream. Then readings are kept, and at most this many are passed over per `give_up_ms_min`.
const REFUSED_IN_A_ROW_MAX: u32 = 16;
/// Number of connections that end with the same unit unanswered, after which the unit is sent in halves.
const SAME_ENDS_MAX: u32 = 3;
/// The same number, after which a single reading is passed over, if that lasted long enough.
const SAME_ENDS_OF_ONE_MAX: u32 = 10;

/// The unit that was the first without an answer when a connection ended.
#[derive(Clone, Copy, Debug)]
struct Blamed {
    /// The number of its first reading, or of an unwanted reading before it.
    first: u64,
    /// How often in a row, and since when, in ms.
    times: u32,
    since_ms: u64,
}

/// Why a connection ends.
#[derive(Debug)]
pub(crate) enum Leave {
    /// The node stops.
    Stopped,
    /// It is lost, or unusable.
    Lost(String),
    /// The upstream accepts nothing now, which says nothing about a reading.
    Later {
        why: String,
        /// The minimum wait that the upstream requested, in ms.
        wait_ms: u64,
        /// Whether the reason may be the length of what was sent.
        may_be_size: bool,
    },
    /// A new connection is wanted at once.
    Again,
}

impl Leave {
    pub(crate) fn later(why: impl Into<String>) -> Self {
        Self::Later {
            why: why.into(),
            wait_ms: 0,
            may_be_size: false,
        }
    }
}

/// The result of one step of reading the log.
pub(crate) struct Serving {
    /// There is more to be read at once.
    pub(crate) more: bool,
    /// How long the readings may still wait for others to share their message, in ms.
    pub(crate) linger_ms: u64,
}

/// The state that MQTT and HTTP forwarding share.
pub(crate) struct Context {
    pub(crate) options: UpstreamOptions,
    state: Arc<UpstreamState>,
    pub(super) stop: watch::Receiver<bool>,
    /// The log must be kept for this upstream from this number on.
    held: Arc<AtomicU64>,
    hold: Box<dyn Fn()>,
    published_ms: u64,
    looked_ms: u64,
    /// When the last write of the cursor failed, if it did.
    cursor_failed_ms: Option<u64>,
    refused_in_a_row: u32,
    /// When the first of them was refused, in ms.
    refused_since_ms: u64,
    ended_with: Option<Blamed>,
    /// What was sent over the last connection was not acknowledged, so a new connection alone is no proof that the
    /// upstream works.
    pub(super) is_doubtful: bool,
    /// The previous connection denied messages and took later ones: the reason may be their topics.
    pub(crate) denies_topics: bool,
    /// Units that the upstream has rejected because of their content.
    pub(super) judged_units: u64,
    /// The oldest unacknowledged reading, and since when it is the oldest, in ms.
    oldest: (u64, u64),
    pub(crate) answers_unknown: u64,
}

impl Context {
    pub(crate) fn new(
        options: UpstreamOptions,
        state: Arc<UpstreamState>,
        stop: watch::Receiver<bool>,
        held: Arc<AtomicU64>,
        hold: Box<dyn Fn()>,
    ) -> Self {
        Self {
            options,
            state,
            stop,
            held,
            hold,
            published_ms: 0,
            looked_ms: 0,
            cursor_failed_ms: None,
            refused_in_a_row: 0,
            refused_since_ms: 0,
            ended_with: None,
            is_doubtful: false,
            denies_topics: false,
            judged_units: 0,
            oldest: (0, 0),
            answers_unknown: 0,
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Returns once the node has been stopping for `time`.
    pub(crate) async fn stopped_for(&mut self, time: Duration) {
        // The sender is gone: there is nothing to wait for.
        let _ = self.stop.wait_for(|stop| *stop).await;
        sleep(time).await;
    }

    /// Reads a step of the log.
    pub(crate) fn pull<D: BlockDevice + 'static>(
        &mut self,
        forwarder: &mut Forwarder<D>,
    ) -> Serving {
        let more = forwarder.pull().unwrap_or_else(|error| {
            self.say(&error.to_string());
            false
        });
        if self.is_doubtful && forwarder.engine.backlog(forwarder.durable_end()) == 0 {
            self.is_of_use();
        }
        let now_ms = forwarder.now_ms();
        let linger_ms = forwarder.engine.close_due(now_ms).unwrap_or(u64::MAX);
        Serving { more, linger_ms }
    }

    /// Waits: if there is work, only for a turn of other tasks; otherwise for at most `wait_ms`.
    pub(crate) async fn pause(&mut self, busy: bool, wait_ms: u64) {
        if busy {
            return tokio::task::yield_now().await;
        }
        if self.is_stopping() {
            return sleep(Duration::from_millis(wait_ms.min(POLL_MS_MAX))).await;
        }
        tokio::select! {
            () = sleep(Duration::from_millis(wait_ms.max(1))) => {}
            _ = self.stop.changed() => {}
        }
    }

    /// Writes the cursor when it is due. A failure is shown in the figures; the window then limits what is sent.
    pub(crate) fn write_cursor<D: BlockDevice + 'static>(&mut self, forwarder: &mut Forwarder<D>) {
        let now_ms = forwarder.now_ms();
        let is_early = |failed: u64| now_ms.saturating_sub(failed) < CURSOR_RETRY_MS;
        if self.cursor_failed_ms.is_some_and(is_early) {
            return;
        }
        match forwarder.write_cursor_if_due(false) {
            Ok(false) => {}
            Ok(true) => {
                self.cursor_failed_ms = None;
                self.state.lock().cursor_error = None;
                self.hold(forwarder);
            }
            Err(error) => {
                self.cursor_failed_ms = Some(now_ms);
                self.state.lock().cursor_error = Some(error.to_string());
            }
        }
    }

    pub(super) fn hold<D: BlockDevice + 'static>(&self, forwarder: &Forwarder<D>) {
        if self.options.hold {
            self.held
                .store(forwarder.engine.oldest_held(), Ordering::Relaxed);
            (self.hold)();
        }
    }

    /// Records that a unit has been acknowledged.
    pub(crate) fn acknowledged<D: BlockDevice + 'static>(
        &mut self,
        forwarder: &mut Forwarder<D>,
        token: u64,
    ) {
        if forwarder.engine.acknowledge(token) {
            self.refused_in_a_row = 0;
            self.is_of_use();
        }
    }

    /// Records that the upstream has accepted something, or that there is nothing to send.
    fn is_of_use(&mut self) {
        if std::mem::take(&mut self.is_doubtful) {
            self.reached();
        }
    }

    /// Handles a unit that the upstream rejects because of its content. Several readings are sent in smaller units. A
    /// single reading is passed over, unless only refusals have come recently.
    pub(crate) fn unwanted<D: BlockDevice + 'static>(
        &mut self,
        forwarder: &mut Forwarder<D>,
        token: u64,
        readings: u32,
        why: &str,
    ) -> Result<(), Leave> {
        if readings > 1 {
            self.is_judging();
            self.say(&format!("{} {why}", self.options.address()));
            forwarder.engine.split(token);
            return Ok(());
        }
        let now_ms = forwarder.now_ms();
        if self.refused_in_a_row >= REFUSED_IN_A_ROW_MAX {
            if now_ms.saturating_sub(self.refused_since_ms) < self.options.give_up_ms_min {
                return Err(Leave::later(format!("{why}, and so everything else")));
            }
            self.refused_in_a_row = 0;
        }
        if self.refused_in_a_row == 0 {
            self.refused_since_ms = now_ms;
        }
        self.refused_in_a_row += 1;
        self.is_judging();
        self.pass_over(forwarder, token, why);
        Ok(())
    }

    /// Records that the upstream is reachable and judges units.
    fn is_judging(&mut self) {
        self.is_doubtful = false;
        self.reached();
        self.judged_units += 1;
    }

    /// Passes over a unit of one reading that the upstream certainly rejects because of this reading.
    pub(crate) fn pass_over<D: BlockDevice + 'static>(
        &mut self,
        forwarder: &mut Forwarder<D>,
        token: u64,
        why: &str,
    ) {
        self.say(&format!("{} {why}", self.options.address()));
        forwarder.engine.refuse(token);
    }

    /// Handles the end of a connection. Some units end one connection after the other: for example a packet that is too
    /// large for a broker that does not say so. Another one takes too long on a slow link. Such a unit is sent in
    /// halves. A single reading that does so is finally passed over, so that it affects only itself. If the upstream
    /// has said that it accepts nothing now, no reading is passed over for that.
    pub(super) fn ended<D: BlockDevice + 'static>(
        &mut self,
        forwarder: &mut Forwarder<D>,
        leave: &Leave,
        is_progress: bool,
    ) {
        let is_silent = matches!(leave, Leave::Lost(_));
        let may_be_size = match leave {
            // A refused unit has already been split, and a unit cut off by the node's stop is not at fault.
            Leave::Again | Leave::Stopped => return forwarder.engine.go_back(),
            Leave::Lost(_) => true,
            Leave::Later { may_be_size, .. } => *may_be_size,
        };
        if is_progress {
            self.ended_with = None;
        }
        let front = forwarder.engine.front();
        let blamed = front
            .filter(|(_, _, readings)| !is_progress && may_be_size && (is_silent || *readings > 1));
        let Some((token, first, readings)) = blamed else {
            return forwarder.engine.go_back();
        };
        let now_ms = forwarder.now_ms();
        let before = self.ended_with.filter(|blamed| blamed.first == first);
        let (times, since_ms) = before.map_or((1, now_ms), |blamed| {
            (blamed.times.saturating_add(1), blamed.since_ms)
        });
        self.ended_with = Some(Blamed {
            first,
            times,
            since_ms,
        });
        if readings > 1 && times >= SAME_ENDS_MAX {
            // The halves start with a new count.
            self.ended_with = None;
            forwarder.engine.shrink(token);
            return forwarder.engine.split(token);
        }
        let blamed_ms = now_ms.saturating_sub(since_ms);
        if readings == 1
            && times >= SAME_ENDS_OF_ONE_MAX
            && blamed_ms >= self.options.give_up_ms_min
        {
            self.ended_with = None;
            self.say("a reading is passed over: each connection ended when it was sent");
            forwarder.engine.refuse(token);
        }
        forwarder.engine.go_back();
    }

    pub(super) fn say(&self, error: &str) {
        let mut figures = self.state.lock();
        if figures.last_error.as_deref() != Some(error) {
            figures.last_error = Some(error.to_owned());
        }
    }

    /// Records that the upstream works.
    pub(crate) fn reached(&self) {
        let mut figures = self.state.lock();
        if !figures.connected {
            figures.connected = true;
            figures.connects += 1;
        }
    }

    /// Records that a connection is lost, or was not made.
    pub(super) fn lost(&self, why: &str) {
        let mut figures = self.state.lock();
        if figures.last_error.as_deref() != Some(why) {
            figures.last_error = Some(why.to_owned());
        }
        if figures.connected {
            figures.losses += 1;
        }
        figures.connected = false;
    }

    /// Updates the figures, at most every `PUBLISH_MS`.
    pub(crate) fn publish<D: BlockDevice + 'static>(&mut self, forwarder: &mut Forwarder<D>) {
        let now_ms = forwarder.now_ms();
        if now_ms.saturating_sub(self.published_ms) >= PUBLISH_MS {
            self.publish_now(forwarder);
        }
    }

    /// Updates the figures.
    pub(crate) fn publish_now<D: BlockDevice + 'static>(&mut self, forwarder: &mut Forwarder<D>) {
        let now_ms = forwarder.now_ms();
        self.published_ms = now_ms;
        if now_ms.saturating_sub(self.looked_ms) >= LOOK_MS {
            self.looked_ms = now_ms;
            if let Err(error) = forwarder.look() {
                self.say(&error.to_string());
            }
            self.hold(forwarder);
        }
        let age_ms = forwarder.backlog_age_ms();
        let durable_end = forwarder.durable_end();
        let oldest = forwarder.engine.oldest_wanted();
        let backlog = forwarder.engine.backlog(durable_end);
        if self.oldest.0 != oldest || backlog == 0 {
            self.oldest = (oldest, now_ms);
        }
        let mut figures = self.state.lock();
        figures.counters = *forwarder.engine.counters();
        figures.backlog_readings = backlog;
        figures.unmoved_ms = now_ms.saturating_sub(self.oldest.1);
        figures.waits_for_clock = forwarder.waits_for_clock();
        figures.durable_end = durable_end;
        figures.backlog_age_ms = age_ms;
        figures.in_flight = forwarder.engine.in_flight();
        figures.cursor_was_lost = forwarder.was_lost();
        figures.cursor_writes = forwarder.cursor_writes();
        figures.answers_unknown = self.answers_unknown + forwarder.engine.answers_unknown();
    }
}
