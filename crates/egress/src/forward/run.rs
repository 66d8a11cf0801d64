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
/// Readings refused one after the other, with nothing taken between them, after which the upstream is left. At the next
/// connection it may refuse twice as many: there may be as many that nobody wants.
const REFUSED_IN_A_ROW_MIN: u32 = 16;
const REFUSED_IN_A_ROW_MAX: u32 = 1 << 16;
/// Connections that end with the same unit unanswered, after which that unit is sent in halves, or if it is a single
/// reading alone; and after which others are tried instead of such a reading.
const SAME_ENDS_MAX: u32 = 3;
const SAME_ENDS_OF_ONE_MAX: u32 = 10;
/// Readings that are skipped at once at most to find one that the upstream takes.
const SKIPPED_MAX: usize = 1 << 10;

/// A unit that was the first without an answer when a connection ended.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    /// Its last number.
    last: u64,
    /// How often in a row.
    times: u32,
    /// How many readings are skipped when it is next tried without it.
    skip: usize,
    /// Without it the upstream has taken a reading.
    is_alone: bool,
}

/// Why a connection is left.
#[derive(Debug)]
pub(crate) enum Leave {
    /// The node stops.
    Stopped,
    /// It is lost, or of no use.
    Lost(String),
    /// The same, and the upstream said how long to wait, ms.
    Later(String, u64),
    /// Another one is wanted at once.
    Again,
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
    refused_in_a_row_max: u32,
    suspect: Option<Suspect>,
    /// What was sent over the last connection was not acknowledged: another connection alone does not show that it will.
    is_doubtful: bool,
    /// It has taken something since it last failed.
    takes: bool,
    /// When a reading was refused last, ms.
    refused_ms: u64,
    acknowledged_units: u64,
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
            refused_in_a_row_max: REFUSED_IN_A_ROW_MIN,
            suspect: None,
            is_doubtful: false,
            takes: false,
            refused_ms: 0,
            acknowledged_units: 0,
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
    ///
    /// # Errors
    /// The connection has shown what it was made for.
    pub(crate) fn acknowledged<D: BlockDevice + 'static>(
        &mut self,
        forwarder: &mut Forwarder<D>,
        token: u64,
    ) -> Result<(), Leave> {
        if !forwarder.engine.acknowledge(token) {
            return Ok(());
        }
        self.refused_in_a_row = 0;
        self.refused_in_a_row_max = REFUSED_IN_A_ROW_MIN;
        self.acknowledged_units += 1;
        self.is_doubtful = false;
        self.takes = true;
        self.reached();
        if forwarder.engine.has_weak_doubts() {
            return Err(Leave::Again);
        }
        if forwarder.engine.is_skipping() {
            if let Some(suspect) = &mut self.suspect {
                suspect.is_alone = true;
            }
            return Err(Leave::Again);
        }
        if self.suspect.take().is_some() {
            forwarder.engine.one_at_a_time(false);
        }
        Ok(())
    }

    /// The upstream will not have a unit for what it holds. Several readings are sent in smaller units; one alone is
    /// passed over once another is taken.
    pub(crate) fn unwanted<D: BlockDevice + 'static>(
        &mut self,
        forwarder: &mut Forwarder<D>,
        token: u64,
        readings: u32,
        why: &str,
    ) -> Result<(), Leave> {
        let said = format!("{} {why}", self.options.address());
        self.say(&said);
        if readings > 1 {
            // What was refused before is sent again, too.
            self.refused_in_a_row = 0;
            forwarder.engine.split(token);
            return Ok(());
        }
        self.refused_ms = forwarder.now_ms();
        forwarder.engine.doubt(token, self.takes);
        self.refused_in_a_row = self.refused_in_a_row.saturating_add(1);
        if self.refused_in_a_row >= self.refused_in_a_row_max {
            self.refused_in_a_row_max = (2 * self.refused_in_a_row_max).min(REFUSED_IN_A_ROW_MAX);
            return Err(Leave::Lost(format!("{why}, and so everything else")));
        }
        Ok(())
    }

    /// Decides of readings that were refused when nothing has come since that the upstream could have taken.
    ///
    /// # Errors
    /// It takes nothing.
    pub(crate) fn settle<D: BlockDevice + 'static>(
        &mut self,
        forwarder: &mut Forwarder<D>,
    ) -> Result<(), Leave> {
        let waited_ms = forwarder.now_ms().saturating_sub(self.refused_ms);
        if !forwarder.engine.waits_for_proof() || waited_ms < self.options.answer_ms_max {
            return Ok(());
        }
        if forwarder.engine.has_weak_doubts() {
            return Err(Leave::Lost("nothing else has come that it takes".into()));
        }
        forwarder.engine.settle();
        Ok(())
    }

    /// A reading is longer than anything that the upstream says it takes.
    pub(crate) fn too_large<D: BlockDevice + 'static>(
        &mut self,
        forwarder: &mut Forwarder<D>,
        token: u64,
        why: &str,
    ) {
        self.say(&format!("{} {why}", self.options.address()));
        forwarder.engine.refuse(token);
    }

    /// A connection has ended. A unit that ends one after the other, as a packet that is too large for a broker without
    /// a word for it, or one that takes longer than a slow line has, is sent in halves. A reading that does so alone is
    /// skipped to see whether the upstream takes another; if it does, and the reading ends the connection once more, it
    /// is passed over.
    fn ended<D: BlockDevice + 'static>(&mut self, forwarder: &mut Forwarder<D>, is_progress: bool) {
        self.refused_in_a_row = 0;
        self.takes = false;
        let engine = &mut forwarder.engine;
        if engine.is_skipping() {
            if let Some(suspect) = &mut self.suspect {
                // None of those either, or nobody's fault: the next time one further on.
                suspect.skip = match suspect.skip < SKIPPED_MAX {
                    true => 2 * suspect.skip,
                    false => 1,
                };
            }
            return engine.go_back();
        }
        let (Some((token, last, readings)), false) = (engine.front(), is_progress) else {
            self.suspect = None;
            engine.one_at_a_time(false);
            return engine.go_back();
        };
        self.is_doubtful = true;
        let before = self.suspect.filter(|suspect| suspect.last == last);
        let mut suspect = before.unwrap_or(Suspect {
            last,
            times: 0,
            skip: 1,
            is_alone: false,
        });
        suspect.times = suspect.times.saturating_add(1);
        self.suspect = Some(suspect);
        if readings > 1 && suspect.times >= SAME_ENDS_MAX {
            // The halves end with other numbers, and are counted anew.
            engine.shrink(token);
            return engine.split(token);
        }
        if readings == 1 && suspect.is_alone {
            self.suspect = None;
            engine.refuse(token);
            engine.one_at_a_time(false);
            engine.go_back();
            self.say("a reading is passed over: each connection ended when it was sent, and others were taken");
            return;
        }
        engine.go_back();
        engine.one_at_a_time(readings == 1 && suspect.times >= SAME_ENDS_MAX);
        if readings == 1 && suspect.times >= SAME_ENDS_OF_ONE_MAX {
            engine.skip(suspect.skip);
        }
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
        let before = context.acknowledged_units;
        let leave = one_connection(&mut forwarder, &mut context).await;
        let is_progress = context.acknowledged_units > before;
        match leave {
            // What was refused is in halves already, and what the node's end has cut off is at no fault.
            Leave::Again | Leave::Stopped => forwarder.engine.go_back(),
            Leave::Lost(_) | Leave::Later(..) => context.ended(&mut forwarder, is_progress),
        }
        let mut wait = Duration::ZERO;
        let (min, max) = (
            context.options.backoff_ms_min,
            context.options.backoff_ms_max,
        );
        if is_progress {
            backoff.reset();
        }
        match leave {
            Leave::Stopped => break,
            Leave::Again if is_progress => {}
            Leave::Again => wait = backoff.next(min, max),
            Leave::Lost(why) => {
                wait = backoff.next(min, max);
                lost(&context, &why);
            }
            Leave::Later(why, wait_ms) => {
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
    context.say(why);
    let mut figures = context.state.lock();
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
            connection.serve(forwarder, context).await
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
