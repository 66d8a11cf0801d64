//! One connection, from the broker's CONNACK to its end.

use super::Consumer;
use super::acks::{self, Acks};
use super::codec::{self, Farewell};
use super::control::{Control, Wish};
use super::copies::Copies;
use super::filters::Filters;
use super::link::{Link, Ready};
use super::options::MqttOptions;
use super::pace::{self, Pace};
use super::packet::{self, Kind, Malformed, Reader, Step};
use super::received::Received;
use super::state::{MqttState, Pause};
use crate::durable::DurableWatch;
use crate::intake::{Outcome, Reason};
use base::clock::Clock;
use std::cell::RefCell;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::sleep;

/// Acknowledgements stay in their queue while more than this many bytes wait to be written.
const OUT_BYTES_MAX: usize = 64 << 10;
/// First and longest wait before a message that was not taken is offered again.
const RETRY: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));
/// Longest sleep of an idle session; pings and timeouts are checked at this interval.
const TICK: Duration = Duration::from_secs(1);
/// Time for messages in flight before a connection is replaced by another one: acknowledged messages are not sent again
/// on the new one.
const RECONNECT_WAIT: Duration = Duration::from_secs(1);
/// Longest time to send the last bytes, and for the broker to close the connection.
const FAREWELL: Duration = Duration::from_millis(250);
/// Poll interval of a socket that is closing.
const FAREWELL_STEP: Duration = Duration::from_millis(5);

/// Why a connection ended.
pub(super) enum Leave {
    Stop(Duration),
    /// Continue with these options on another connection.
    Reconnect(Arc<MqttOptions>),
    Lost(String),
    Malformed(Malformed),
    LogFailed,
}

impl From<Malformed> for Leave {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl From<std::io::Error> for Leave {
    fn from(error: std::io::Error) -> Self {
        let why = tls::reason(&error).unwrap_or_else(|| error.to_string());
        Self::Lost(format!("the connection to the broker is lost: {why}"))
    }
}

/// Returns the time since an arbitrary moment, by this clock.
pub(super) fn now_of(clock: &dyn Clock) -> Duration {
    Duration::from_nanos(clock.monotonic_ns())
}

fn lost<T>(why: &str) -> Result<T, Leave> {
    Err(Leave::Lost(why.into()))
}

/// State while nothing is read.
struct Halt {
    pause: Pause,
    retry: Duration,
    accounted: Duration,
}

pub(super) struct Session<'a, C> {
    /// The options in force: a reload may have changed them.
    pub options: Arc<MqttOptions>,
    consumer: &'a RefCell<C>,
    durable: &'a mut DurableWatch,
    filters: &'a mut Filters,
    received: &'a mut Received,
    copies: &'a mut Copies,
    state: &'a MqttState,
    clock: &'a dyn Clock,
    link: Link,
    reader: Reader,
    acks: Acks,
    out: Vec<u8>,
    /// Number of bytes at the beginning of `out` that have been written.
    written: usize,
    /// Number of bytes of the first payload in the reader that the consumer has finished.
    offset: usize,
    /// The size limit at which the first message in the reader was already offered. A lower limit must not reject it
    /// now: some of its readings may have been taken.
    offered_bytes_max: Option<usize>,
    halt: Option<Halt>,
    pace: Pace,
    /// The last read filled its buffer: there is more.
    eager: bool,
    keep_alive: Duration,
    /// This and the two below are times of `clock`.
    sent: Duration,
    heard: Duration,
    /// When an unanswered ping was sent.
    ping: Option<Duration>,
}

impl<'a, C: Consumer> Session<'a, C> {
    /// `reader` may hold packets that arrived right after CONNACK.
    pub(super) fn new(
        options: Arc<MqttOptions>,
        consumer: &'a RefCell<C>,
        durable: &'a mut DurableWatch,
        (filters, received, copies): (&'a mut Filters, &'a mut Received, &'a mut Copies),
        state: &'a MqttState,
        clock: &'a dyn Clock,
        connection: super::connect::Connection,
    ) -> Self {
        let now = now_of(clock);
        let seconds = connection
            .keep_alive_seconds
            .unwrap_or(options.keep_alive_seconds);
        Self {
            options,
            consumer,
            durable,
            filters,
            received,
            copies,
            state,
            clock,
            link: connection.link,
            reader: connection.reader,
            acks: Acks::default(),
            out: Vec::new(),
            written: 0,
            offset: 0,
            offered_bytes_max: None,
            halt: None,
            pace: Pace::new(now),
            eager: false,
            keep_alive: Duration::from_secs(seconds.into()),
            sent: now,
            heard: now,
            ping: None,
        }
    }

    /// Serves until there is a reason to leave, and ends the connection as that reason demands.
    pub(super) async fn serve(&mut self, control: &mut Control) -> Leave {
        let Err(leave) = self.loop_until(control).await;
        match &leave {
            Leave::Stop(wait) => self.finish(*wait).await,
            Leave::Reconnect(_) => self.finish(RECONNECT_WAIT).await,
            Leave::LogFailed => self.farewell(Farewell::Normal).await,
            Leave::Malformed(_) => self.farewell(Farewell::Malformed).await,
            Leave::Lost(_) => {}
        }
        leave
    }

    async fn loop_until(&mut self, control: &mut Control) -> Result<Infallible, Leave> {
        self.reconcile()?;
        loop {
            if let Some(wish) = control.take() {
                self.obey(wish)?;
            }
            // Acknowledge before messages are taken, to make room in the window; and after, for those that were
            // refused.
            self.acknowledge()?;
            let now = now_of(self.clock);
            self.drain(now)?;
            self.publish()?;
            self.acknowledge()?;
            self.check_answers(now)?;
            self.keep_alive(now)?;
            self.wait(control, now).await?;
        }
    }

    fn obey(&mut self, wish: Wish) -> Result<(), Leave> {
        match wish {
            Wish::Stop(wait) => Err(Leave::Stop(wait)),
            Wish::Reload(options) if self.options.same_session(&options) => {
                self.options = options;
                self.filters.changed();
                // A refused subscription that is no longer wanted is not reported any more.
                self.filters
                    .publish(&self.options.subscriptions, self.state);
                self.reconcile()
            }
            Wish::Reload(options) => Err(Leave::Reconnect(options)),
        }
    }

    fn reconcile(&mut self) -> Result<(), Leave> {
        self.filters
            .reconcile(
                self.options.version,
                &self.options.subscriptions,
                &mut self.out,
                now_of(self.clock),
            )
            .or_else(lost)
    }

    /// Takes the messages in the reader, until it is empty or the consumer accepts no more.
    fn drain(&mut self, now: Duration) -> Result<(), Leave> {
        let mut consumer = self.consumer.borrow_mut();
        let (mut taken, mut redelivered, mut retained, mut oversized) = (0, 0, 0, 0);
        let mut copies = 0;
        let mut progress = false;
        let inflight_max = usize::from(self.options.inflight_max);
        let result = loop {
            let bytes_max = self
                .offered_bytes_max
                .unwrap_or(self.options.packet_bytes_max);
            let step = match self.reader.peek(self.options.version, bytes_max) {
                Ok(step) => step,
                Err(malformed) => break Err(malformed.into()),
            };
            let (qos, packet_id, lsn_end, bytes) = match step {
                Step::More(_) => break Ok(None),
                Step::Publish(publish, bytes) => {
                    if publish.qos > 0 && self.acks.len() >= inflight_max {
                        break Ok(Some(Pause::Busy));
                    }
                    let before = match publish.qos {
                        2 => self.received.before(publish.packet_id),
                        _ => None,
                    };
                    let rest = publish.payload.get(self.offset..).unwrap_or_default();
                    let copy = self.copies.of(&publish);
                    // A message that was partly offered is not checked again: it was not a copy then.
                    let other = copy
                        .as_ref()
                        .filter(|_| self.offset == 0 && before.is_none());
                    let other = other.and_then(|copy| self.copies.before(copy, now));
                    copies += u64::from(other.is_some());
                    let outcome = match before.or(other) {
                        Some(lsn_end) => Outcome::Accepted { lsn_end },
                        None => consumer.message(publish.topic, rest, publish.retained),
                    };
                    let lsn_end = match outcome {
                        Outcome::Accepted { lsn_end } => lsn_end,
                        Outcome::Refused => 0,
                        Outcome::Wait { consumed, full } => {
                            self.offset += consumed.min(rest.len());
                            self.offered_bytes_max = Some(bytes_max);
                            progress |= consumed > 0;
                            break Ok(Some(if full { Pause::Full } else { Pause::Busy }));
                        }
                        Outcome::Failed => break Err(Leave::LogFailed),
                    };
                    if let Some(copy) = copy.filter(|_| before.or(other).is_none()) {
                        self.copies.take(copy, lsn_end, now);
                    }
                    redelivered += u64::from(publish.duplicate);
                    retained += u64::from(publish.retained);
                    (publish.qos, publish.packet_id, lsn_end, bytes)
                }
                Step::Oversized(found, bytes) => {
                    if found.qos > 0 && self.acks.len() >= inflight_max {
                        break Ok(Some(Pause::Busy));
                    }
                    consumer.refuse(Reason::Oversized);
                    oversized += 1;
                    (found.qos, found.packet_id, 0, bytes)
                }
                // A broker that sends requests without reading the answers must wait.
                Step::Control(Kind::PubRel, ..) if self.out.len() >= OUT_BYTES_MAX => {
                    break Ok(Some(Pause::Busy));
                }
                Step::Control(kind, packet, header) => {
                    let bytes = packet.len();
                    let mut parts = Parts {
                        options: &self.options,
                        filters: self.filters,
                        received: self.received,
                        copies: self.copies,
                        state: self.state,
                        out: &mut self.out,
                        now,
                    };
                    if let Err(leave) = parts.control(kind, packet, header) {
                        break Err(leave);
                    }
                    self.reader.advance(bytes);
                    continue;
                }
            };
            if qos == 2 {
                self.received.take(packet_id, lsn_end);
            }
            if qos > 0 {
                self.acks.push(packet_id, qos, lsn_end);
            }
            self.reader.advance(bytes);
            self.offset = 0;
            self.offered_bytes_max = None;
            taken += 1;
        };
        drop(consumer);
        if taken > 0 {
            self.pace.count(taken);
            self.state.redelivered.fetch_add(redelivered, Relaxed);
            self.state.retained.fetch_add(retained, Relaxed);
            self.state.copies.fetch_add(copies, Relaxed);
            self.state.oversized.fetch_add(oversized, Relaxed);
            self.state.messages.fetch_add(taken, Relaxed);
        }
        let pause = result?;
        self.note_pause(pause, progress || taken > 0, now);
        Ok(())
    }

    fn note_pause(&mut self, pause: Option<Pause>, progress: bool, now: Duration) {
        if let Some(halt) = &mut self.halt {
            let time = now.saturating_sub(halt.accounted);
            halt.accounted = now;
            let counter = match halt.pause {
                Pause::Busy => &self.state.busy_us,
                Pause::Full => &self.state.full_us,
            };
            counter.fetch_add(u64::try_from(time.as_micros()).unwrap_or(0), Relaxed);
            self.filters.paused(time);
        }
        match (&mut self.halt, pause) {
            (None, None) => return,
            (Some(_), None) => {
                self.halt = None;
                // Nothing was read during the pause, so silence does not mean that the broker is gone.
                self.heard = now;
                self.ping = None;
                self.filters.heard(now);
            }
            (Some(halt), Some(pause)) => {
                halt.pause = pause;
                halt.retry = match progress {
                    true => RETRY.0,
                    false => (halt.retry * 2).min(RETRY.1),
                };
            }
            (None, Some(pause)) => {
                self.halt = Some(Halt {
                    pause,
                    retry: RETRY.0,
                    accounted: now,
                });
            }
        }
        self.state.set_pause(pause);
    }

    /// Takes over what the consumer sends. It is written with the next acknowledgements.
    fn publish(&mut self) -> Result<(), Leave> {
        while self.out.len() < OUT_BYTES_MAX {
            let Some(message) = self.consumer.borrow_mut().outgoing() else {
                break;
            };
            let (version, topic) = (self.options.version, message.topic.as_str());
            let packet = codec::publish(version, topic, &message.payload).or_else(lost)?;
            self.out.extend_from_slice(&packet);
            self.state.sent.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Writes the acknowledgements that are allowed now.
    fn acknowledge(&mut self) -> Result<(), Leave> {
        let durable = self.durable.get();
        let mut total = 0;
        loop {
            let count = self.acks.collect(durable.end, &mut self.out, OUT_BYTES_MAX);
            total += count;
            self.flush()?;
            if count == 0 || !self.out.is_empty() {
                break;
            }
        }
        if total > 0 {
            self.state.acknowledged.fetch_add(total, Relaxed);
        }
        self.state.in_flight.store(self.acks.len() as u64, Relaxed);
        match durable.failed {
            true => Err(Leave::LogFailed),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<(), Leave> {
        while self.written < self.out.len() {
            match self.link.write(&self.out[self.written..])? {
                None | Some(0) => return Ok(()),
                Some(count) => {
                    self.written += count;
                    self.sent = now_of(self.clock);
                }
            }
        }
        self.out.clear();
        self.written = 0;
        // Encrypted bytes may wait behind a full socket.
        self.link.flush()?;
        Ok(())
    }

    /// Leaves a broker that does not answer a subscription, and counts the subscriptions that have waited for long.
    fn check_answers(&self, now: Duration) -> Result<(), Leave> {
        if self.halt.is_some() {
            // The answer may have come, and is not read.
            return Ok(());
        }
        let wait_max = Duration::from_millis(self.options.connect_ms_max);
        let unanswered = self.filters.unanswered(now, wait_max);
        self.state
            .subscriptions_unanswered
            .store(unanswered, Relaxed);
        match self.filters.is_overdue(now, wait_max) {
            true => lost("the broker does not answer a subscription"),
            false => Ok(()),
        }
    }

    /// Sends pings when they are due, and detects a broker that is gone without a notice.
    fn keep_alive(&mut self, now: Duration) -> Result<(), Leave> {
        let since = |moment: Duration| now.saturating_sub(moment);
        if self.keep_alive.is_zero() {
            return Ok(());
        }
        if !self.out.is_empty() && since(self.sent) > self.keep_alive * 2 {
            return lost("the broker takes no bytes any more");
        }
        let halted = self.halt.is_some();
        if !halted && self.ping.is_some_and(|ping| since(ping) >= self.keep_alive) {
            return lost("the broker does not answer pings");
        }
        let due = self.keep_alive * 3 / 4;
        let silent = self.ping.is_none() && !halted && since(self.heard) >= due;
        if self.out.is_empty() && (silent || since(self.sent) >= due) {
            self.out.extend_from_slice(&codec::PINGREQ);
            self.ping.get_or_insert(now);
            self.flush()?;
        }
        Ok(())
    }

    async fn wait(&mut self, control: &mut Control, now: Duration) -> Result<(), Leave> {
        if let Some(halt) = &self.halt {
            let retry = halt.retry.min(self.tick());
            self.link.unwatch()?;
            tokio::select! {
                () = sleep(retry) => {}
                () = self.durable.changed(), if !self.acks.is_empty() => {}
                () = control.wait() => {}
            }
            return Ok(());
        }
        if self.pace.paced(now) {
            self.link.unwatch()?;
            match self.eager {
                true => tokio::task::yield_now().await,
                false => sleep(pace::STEP).await,
            }
            let space = self.reader.space();
            let asked = space.len();
            if let Some(count) = self.link.read(space)? {
                self.read(count, asked)?;
            } else {
                self.eager = false;
            }
            return Ok(());
        }
        self.link.watch()?;
        let tick = self.tick();
        let space = self.reader.space();
        let asked = space.len();
        let read = tokio::select! {
            ready = self.link.wait(space, !self.out.is_empty()) => match ready {
                Ready::Read(read) => Some(read?),
                Ready::Room => None,
            },
            () = self.durable.changed(), if !self.acks.is_empty() => None,
            () = control.wait() => None,
            () = sleep(tick) => None,
        };
        match read {
            Some(count) => self.read(count, asked),
            None => Ok(()),
        }
    }

    fn read(&mut self, count: usize, asked: usize) -> Result<(), Leave> {
        if count == 0 {
            return lost("the broker has closed the connection");
        }
        self.reader.filled(count);
        self.eager = count == asked;
        self.heard = now_of(self.clock);
        self.ping = None;
        // On a slow link, kept messages take long. A lone answer to a ping is no message.
        if count > codec::PINGRESP_BYTES {
            self.filters.heard(self.heard);
        }
        self.state.bytes.fetch_add(count as u64, Relaxed);
        Ok(())
    }

    fn tick(&self) -> Duration {
        if self.keep_alive.is_zero() {
            return TICK;
        }
        (self.keep_alive / 8).min(TICK)
    }

    /// Gives messages in flight the time to become durable, then disconnects.
    async fn finish(&mut self, wait: Duration) {
        let over = sleep(wait);
        tokio::pin!(over);
        while self.acknowledge().is_ok() && !(self.acks.is_empty() && self.out.is_empty()) {
            tokio::select! {
                () = &mut over => break,
                () = self.durable.changed(), if !self.acks.is_empty() => {}
                () = sleep(FAREWELL_STEP), if !self.out.is_empty() => {}
            }
        }
        self.farewell(Farewell::Normal).await;
    }

    /// Sends DISCONNECT and waits for a short time until the broker has closed the connection. Closing a socket with
    /// unread bytes would reset the connection and could lose the last acknowledgements.
    async fn farewell(&mut self, farewell: Farewell) {
        let until = now_of(self.clock) + FAREWELL;
        let bytes = codec::farewell(self.options.version, farewell);
        self.out.extend_from_slice(bytes);
        if self.link.unwatch().is_err() {
            return;
        }
        let mut said = false;
        let mut waste = vec![0; packet::READ_BYTES];
        while now_of(self.clock) < until {
            if !said {
                if self.flush().is_err() {
                    return;
                }
                said = self.out.is_empty() && self.link.end_writes();
            }
            match self.link.read(&mut waste) {
                Ok(Some(0)) | Err(_) => return,
                Ok(Some(_)) => {}
                Ok(None) => sleep(FAREWELL_STEP).await,
            }
        }
    }
}

/// The parts of a session that a control packet changes; the packet itself borrows the rest.
struct Parts<'a> {
    options: &'a MqttOptions,
    filters: &'a mut Filters,
    received: &'a mut Received,
    copies: &'a mut Copies,
    state: &'a MqttState,
    out: &'a mut Vec<u8>,
    now: Duration,
}

impl Parts<'_> {
    fn control(&mut self, kind: Kind, packet: &[u8], header: usize) -> Result<(), Leave> {
        let version = self.options.version;
        let id = packet::packet_id(packet, header);
        let id = || id.ok_or(Malformed("an answer without a packet id"));
        match kind {
            Kind::PingResp => return Ok(()),
            Kind::PubRel => {
                let id = id()?;
                self.received.release(id);
                acks::complete(self.out, id);
                return Ok(());
            }
            Kind::SubAck => {
                let (packet_id, grants) = codec::grants(version, packet)?;
                let wanted = &self.options.subscriptions;
                self.filters
                    .granted(packet_id, grants, wanted, self.state)?;
            }
            Kind::UnsubAck => {
                self.filters
                    .released(id()?, &self.options.subscriptions, self.state)?;
                self.copies.forget();
            }
            Kind::ConnAck => return Err(Malformed("a second CONNACK").into()),
            Kind::Disconnect => {
                let reason = codec::reason_of_disconnect(packet, header);
                return lost(&format!("the broker ends the connection: {reason}"));
            }
        }
        // Apply changes that were made while the answer was outstanding.
        self.filters
            .reconcile(version, &self.options.subscriptions, self.out, self.now)
            .or_else(lost)
    }
}
