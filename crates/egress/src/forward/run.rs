//! One upstream from connection to connection, for as long as the node runs.

use super::backoff::Backoff;
use super::figures::UpstreamState;
use super::forwarder::Forwarder;
use super::options::{Target, UpstreamOptions};
use super::{mqtt, post};
use base::block::BlockDevice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// Longest pause between two looks at the log, ms.
pub(crate) const POLL_MS_MAX: u64 = 20;
/// Time between two looks at what retention has deleted, ms.
const LOOK_MS: u64 = 5_000;
/// Time between two tries to write a cursor that the store does not take, ms.
const CURSOR_RETRY_MS: u64 = 1_000;
/// Time between two updates of the figures, ms.
const PUBLISH_MS: u64 = 100;
/// Readings refused one after the other, with nothing taken between them, after which the upstream may be at fault and
/// not they: then they are kept, and no more than so many are passed over in each `give_up_ms_min`.
const REFUSED_IN_A_ROW_MAX: u32 = 16;
/// Connections that end with the same unit unanswered, after which that unit is sent in halves; and after which a
/// single reading is passed over, if it was for long enough that they did.
const SAME_ENDS_MAX: u32 = 3;
const SAME_ENDS_OF_ONE_MAX: u32 = 10;

/// A unit that was the first without an answer when a connection ended.
#[derive(Clone, Copy, Debug)]
struct Blamed {
    /// The number of its first reading, or of an unwanted one before that.
    first: u64,
    /// How often in a row, and since when, ms.
    times: u32,
    since_ms: u64,
}

/// Why a connection is left.
#[derive(Debug)]
pub(crate) enum Leave {
    /// The node stops.
    Stopped,
    /// It is lost, or of no use.
    Lost(String),
    /// The upstream takes nothing now, which is no judgement of a reading.
    Later {
        why: String,
        /// How long it said to wait at least.
        wait_ms: u64,
        /// Whether it may be for the length of what was sent.
        may_be_size: bool,
    },
    /// Another one is wanted at once.
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

/// What one look at the log came to.
pub(crate) struct Serving {
    /// There is more to be read at once.
    pub(crate) more: bool,
    /// How long what has been read may still wait for company.
    pub(crate) linger_ms: u64,
}

/// What the two ways out share.
pub(crate) struct Context {
    pub(crate) options: UpstreamOptions,
    state: Arc<UpstreamState>,
    stop: watch::Receiver<bool>,
    /// Number from which on this upstream wants the log kept.
    held: Arc<AtomicU64>,
    hold: Box<dyn Fn()>,
    published_ms: u64,
    looked_ms: u64,
    /// When the cursor could not be written last.
    cursor_failed_ms: Option<u64>,
    refused_in_a_row: u32,
    /// When the first of them was refused, ms.
    refused_since_ms: u64,
    ended_with: Option<Blamed>,
    /// What was sent over the last connection was not acknowledged: another connection alone does not show that it will
    /// be.
    is_doubtful: bool,
    /// The connection before has denied messages, and taken others behind them: perhaps it is for their topics.
    pub(crate) denies_topics: bool,
    /// Units that the upstream has not taken for what they hold.
    judged_units: u64,
    /// The oldest reading that is not acknowledged, and since when it is that one, ms.
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

    /// Returns once the node has been stopping for so long.
    pub(crate) async fn stopped_for(&mut self, time: Duration) {
        // Whoever would say so is gone: then there is nothing to wait for.
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

    /// Waits: for a turn of others while there is work, else for so long at most.
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

    /// Writes the cursor when it is due. A failure is shown; the window then holds back what goes beyond it.
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

    fn hold<D: BlockDevice + 'static>(&self, forwarder: &Forwarder<D>) {
        if self.options.hold {
            self.held
                .store(forwarder.engine.oldest_held(), Ordering::Relaxed);
            (self.hold)();
        }
    }

    /// A unit has been acknowledged.
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

    /// The upstream has taken something, or there is nothing to be taken.
    fn is_of_use(&mut self) {
        if std::mem::take(&mut self.is_doubtful) {
            self.reached();
        }
    }

    /// The upstream will not have a unit for what it holds. Several readings are sent in smaller units; one alone is
    /// passed over, unless nothing but refusals has come for a while.
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

    /// Whoever judges is there.
    fn is_judging(&mut self) {
        self.is_doubtful = false;
        self.reached();
        self.judged_units += 1;
    }

    /// The upstream will not have a unit of one reading, and it is certain that it is for this one.
    pub(crate) fn pass_over<D: BlockDevice + 'static>(
        &mut self,
        forwarder: &mut Forwarder<D>,
        token: u64,
        why: &str,
    ) {
        self.say(&format!("{} {why}", self.options.address()));
        forwarder.engine.refuse(token);
    }

    /// A connection has ended. A unit at which one ends after the other, as a packet that is too large for a broker
    /// without a word for it, or one that takes longer than a slow line has, is sent in halves; a reading that does so
    /// alone is passed over at last, so that it costs itself. Where the upstream has said that it takes nothing now,
    /// no reading is passed over for that.
    fn ended<D: BlockDevice + 'static>(
        &mut self,
        forwarder: &mut Forwarder<D>,
        leave: &Leave,
        is_progress: bool,
    ) {
        let is_silent = matches!(leave, Leave::Lost(_));
        let may_be_size = match leave {
            // What was refused is in halves already, and what the node's end has cut off is at no fault.
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
            // The halves are counted anew.
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

    fn say(&self, error: &str) {
        let mut figures = self.state.lock();
        if figures.last_error.as_deref() != Some(error) {
            figures.last_error = Some(error.to_owned());
        }
    }

    /// Brings the figures up to date, not too often.
    pub(crate) fn publish<D: BlockDevice + 'static>(&mut self, forwarder: &mut Forwarder<D>) {
        let now_ms = forwarder.now_ms();
        if now_ms.saturating_sub(self.published_ms) >= PUBLISH_MS {
            self.publish_now(forwarder);
        }
    }

    fn publish_now<D: BlockDevice + 'static>(&mut self, forwarder: &mut Forwarder<D>) {
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

/// Forwards until the node stops.
pub(crate) async fn run<D: BlockDevice + 'static>(
    mut forwarder: Forwarder<D>,
    mut context: Context,
) {
    let mut backoff = Backoff::new();
    context.hold(&forwarder);
    context.publish_now(&mut forwarder);
    while !context.is_stopping() {
        let before = (forwarder.engine.answered(), context.judged_units);
        let leave = one_connection(&mut forwarder, &mut context).await;
        // What was taken behind something that was not has to go again, and is none.
        let is_progress = forwarder.engine.answered() > before.0;
        let is_taken_back = forwarder.engine.in_flight() > 0;
        context.ended(&mut forwarder, &leave, is_progress);
        if matches!(leave, Leave::Lost(_) | Leave::Later { .. }) && !is_progress && is_taken_back {
            context.is_doubtful = true;
        }
        let mut wait = Duration::ZERO;
        let (min, max) = (
            context.options.backoff_ms_min,
            context.options.backoff_ms_max,
        );
        if is_progress || context.judged_units > before.1 {
            backoff.reset();
        }
        let is_http = matches!(context.options.target, Target::Http { .. });
        match leave {
            Leave::Stopped => break,
            // A server ends connections as it likes. A broker does not, and may be asked for one too often.
            Leave::Again if is_progress && is_http => {}
            Leave::Again => wait = backoff.next(min, max),
            Leave::Lost(why) => {
                wait = backoff.next(min, max);
                lost(&context, &why);
            }
            Leave::Later { why, wait_ms, .. } => {
                wait = backoff.next(min, max).max(Duration::from_millis(wait_ms));
                lost(&context, &why);
            }
        }
        context.publish_now(&mut forwarder);
        let mut left = wait;
        // Meanwhile retention goes on, and the backlog grows: that is shown.
        while !left.is_zero() && !context.is_stopping() {
            let step = left.min(Duration::from_millis(LOOK_MS));
            tokio::select! {
                () = sleep(step) => left -= step,
                _ = context.stop.changed() => {}
            }
            context.write_cursor(&mut forwarder);
            context.publish_now(&mut forwarder);
        }
    }
    // Readings that a last moment acknowledged are not repeated by the next start.
    if let Err(error) = forwarder.write_cursor(true) {
        context.say(&error.to_string());
    }
    context.publish_now(&mut forwarder);
}

fn lost(context: &Context, why: &str) {
    let mut figures = context.state.lock();
    if figures.last_error.as_deref() != Some(why) {
        figures.last_error = Some(why.to_owned());
    }
    if figures.connected {
        figures.losses += 1;
    }
    figures.connected = false;
}

async fn one_connection<D: BlockDevice + 'static>(
    forwarder: &mut Forwarder<D>,
    context: &mut Context,
) -> Leave {
    enum Way {
        Mqtt(mqtt::Connection),
        Post(post::Connection),
    }
    let limit = Duration::from_millis(context.options.answer_ms_max);
    let options = context.options.clone();
    let connecting = async {
        match options.target {
            Target::Mqtt { .. } => mqtt::connect(&options).await.map(Way::Mqtt),
            Target::Http { .. } => post::connect(&options).await.map(Way::Post),
        }
    };
    let mut stop = context.stop.clone();
    let connected = tokio::select! {
        connected = timeout(limit, connecting) => connected,
        _ = stop.wait_for(|stop| *stop) => return Leave::Stopped,
    };
    let way = match connected {
        Err(_) => {
            let address = options.address();
            return Leave::Lost(format!("{address}: no connection within {limit:?}"));
        }
        Ok(Err(why)) => return Leave::Lost(why),
        Ok(Ok(way)) => way,
    };
    forwarder.engine.connected(forwarder.durable_end());
    match way {
        Way::Mqtt(mut connection) => {
            if !context.is_doubtful {
                context.reached();
            }
            let leave = connection.serve(forwarder, context).await;
            // No message is to blame where each has its answer; the first that is not done with may be a denied one.
            match leave {
                Leave::Lost(why) if connection.on_the_way.is_empty() => Leave::later(why),
                leave => leave,
            }
        }
        // Whether an HTTP server is of use shows with its first answer.
        Way::Post(mut connection) => connection.serve(forwarder, context).await,
    }
}

impl Context {
    /// The upstream does what it is there for.
    pub(crate) fn reached(&self) {
        let mut figures = self.state.lock();
        if !figures.connected {
            figures.connected = true;
            figures.connects += 1;
        }
    }
}
