//! One broker from connection to connection, for as long as the node runs.

use super::figures::UrgentState;
use super::options::BrokerOptions;
use super::outbox::{Outbox, Source};
use crate::forward::backoff::Backoff;
use crate::forward::mqtt::packet::{self, Packet};
use crate::forward::mqtt::{Connection, Session, connect_to, hint};
use crate::forward::wire::{self, Event};
use crate::secret;
use base::clock::Clock;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tls::Progress;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

/// Longest poll interval, in ms.
const POLL_MS_MAX: u64 = 100;
/// Size of one read, in bytes.
const READ_BYTES: usize = 4 << 10;
/// Approximate limit of the bytes that wait for the socket.
const OUT_BYTES_MAX: usize = 64 << 10;
/// How long a stop waits for outstanding acknowledgements.
const FAREWELL_MS: u64 = 500;

/// Why a connection ends.
enum Leave {
    Stopped,
    Lost(String),
}

/// One broker and its outbox.
pub(crate) struct Publisher {
    pub(crate) at: usize,
    pub(crate) options: BrokerOptions,
    pub(crate) outbox: Rc<RefCell<Outbox>>,
    /// Notified when a new message waits.
    pub(crate) wake: Rc<Notify>,
    pub(crate) state: Arc<UrgentState>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) stop: watch::Receiver<bool>,
}

impl Publisher {
    fn now_ms(&self) -> u64 {
        self.clock.monotonic_ns() / 1_000_000
    }

    fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Publishes until the node stops.
    pub(crate) async fn run(mut self) {
        let mut backoff = Backoff::new();
        while !self.is_stopping() {
            let delivered_before = self.acknowledged();
            let leave = self.one_connection().await;
            self.outbox.borrow_mut().connection_lost();
            let Leave::Lost(why) = leave else { break };
            self.lost(why);
            if self.acknowledged() > delivered_before {
                backoff.reset();
            }
            let wait = backoff.next(self.options.backoff_ms_min, self.options.backoff_ms_max);
            tokio::select! {
                () = sleep(wait) => {}
                _ = self.stop.changed() => {}
            }
        }
    }

    fn acknowledged(&self) -> u64 {
        let (alarms, actuators) = self.outbox.borrow().deliveries();
        alarms
            .iter()
            .chain(&actuators)
            .map(|one| one.delivered)
            .sum()
    }

    fn lost(&self, why: String) {
        let mut figures = self.state.lock();
        if let Some(broker) = figures.brokers.get_mut(self.at) {
            broker.losses += u64::from(broker.connected);
            broker.connected = false;
            broker.last_error = Some(why);
        }
    }

    async fn one_connection(&mut self) -> Leave {
        let limit = Duration::from_millis(self.options.answer_ms_max);
        let options = self.options.clone();
        let login = match secret::login(options.login.as_ref()) {
            Ok(login) => login,
            Err(why) => return Leave::Lost(why),
        };
        let progress = Progress::default();
        let session = Session {
            address: &options.address,
            tls: options.tls.as_ref(),
            version: options.version,
            client_id: &options.client_id,
            login: login.as_ref(),
            keep_alive_seconds: options.keep_alive_seconds,
            inflight_max: options.inflight_max,
        };
        let connecting = connect_to(session, &progress);
        let mut stop = self.stop.clone();
        let connected = tokio::select! {
            connected = timeout(limit, connecting) => connected,
            _ = stop.wait_for(|stop| *stop) => return Leave::Stopped,
        };
        match connected {
            Err(_) => {
                let hint = hint(options.tls.as_ref());
                Leave::Lost(progress.late(&options.address, limit, hint))
            }
            Ok(Err(why)) => Leave::Lost(why),
            Ok(Ok(mut connection)) => {
                if let Some(broker) = self.state.lock().brokers.get_mut(self.at) {
                    broker.connected = true;
                    broker.connects += 1;
                }
                self.serve(&mut connection).await
            }
        }
    }

    async fn serve(&mut self, connection: &mut Connection) -> Leave {
        let (mut heard_ms, mut spoke_ms) = (self.now_ms(), self.now_ms());
        let mut ping_ms = None;
        // When an answer to a message was last due, or message bytes were last sent or answered. Other traffic does not
        // count.
        let mut asked_ms = heard_ms;
        let mut stopping_until = None;
        let mut space = vec![0; READ_BYTES];
        loop {
            let now_ms = self.now_ms();
            if self.is_stopping() && stopping_until.is_none() {
                stopping_until = Some(now_ms + FAREWELL_MS);
            }
            match self.take_answers(connection, now_ms) {
                Ok(true) => asked_ms = now_ms,
                Ok(false) => {}
                Err(why) => return Leave::Lost(why),
            }
            // Waiting messages are sent also while the node stops: they happened before.
            self.fill(connection, now_ms);
            if stopping_until
                .is_some_and(|until| connection.on_the_way.is_empty() || now_ms >= until)
            {
                connection.say_goodbye().await;
                return Leave::Stopped;
            }
            if connection.keep_alive_ms > 0 {
                let due = connection.keep_alive_ms * 3 / 4;
                if ping_ms.is_some_and(|since| now_ms - since > connection.keep_alive_ms) {
                    return Leave::Lost("the broker does not answer pings".into());
                }
                let quiet = now_ms - heard_ms >= due || now_ms - spoke_ms >= due;
                if quiet && ping_ms.is_none() {
                    connection.out.extend_from_slice(&packet::PINGREQ);
                    ping_ms = Some(now_ms);
                }
            }
            if connection.on_the_way.is_empty() {
                asked_ms = now_ms;
            }
            if now_ms.saturating_sub(asked_ms) > self.options.answer_ms_max {
                return Leave::Lost("the broker does not answer messages".into());
            }
            let wake = Rc::clone(&self.wake);
            let pause = Duration::from_millis(POLL_MS_MAX);
            let event = tokio::select! {
                biased;
                event = wire::either(
                    &mut *connection.wire,
                    &mut space,
                    &connection.out[connection.written..],
                ) => Some(event),
                () = wake.notified() => None,
                () = sleep(pause) => None,
            };
            match event {
                None => {}
                Some(Err(error)) => return Leave::Lost(wire::why(&error)),
                Some(Ok(Event::Read(0))) => {
                    return Leave::Lost("the broker has closed the connection".into());
                }
                Some(Ok(Event::Read(count))) => {
                    connection.input.extend_from_slice(&space[..count]);
                    heard_ms = self.now_ms();
                    ping_ms = None;
                }
                Some(Ok(Event::Written(count))) => {
                    spoke_ms = self.now_ms();
                    if connection.wrote(count) {
                        asked_ms = spoke_ms;
                    }
                    ping_ms = ping_ms.map(|_| spoke_ms);
                }
            }
        }
    }

    /// Writes waiting messages to the socket's buffer.
    fn fill(&self, connection: &mut Connection, now_ms: u64) {
        let mut outbox = self.outbox.borrow_mut();
        while connection.out.len() < OUT_BYTES_MAX
            && connection.on_the_way.len() < connection.inflight_max
        {
            let Some(message) = outbox.next(now_ms) else {
                return;
            };
            let token = message.token;
            let bytes = packet::publish_bytes(
                connection.version,
                message.topic.len(),
                message.payload.len(),
            );
            if bytes > connection.packet_bytes_max {
                let source = outbox.answered(token, false, now_ms);
                self.say(
                    source,
                    &format!("the broker takes no packets of {bytes} bytes"),
                );
                continue;
            }
            connection.publish(token, message.topic, message.payload, message.retain);
        }
    }

    /// Processes answers. Returns whether a message was answered.
    fn take_answers(&self, connection: &mut Connection, now_ms: u64) -> Result<bool, String> {
        let (mut at, mut has_answered) = (0, false);
        let result = loop {
            match packet::next(&connection.input[at..], connection.version) {
                Err(malformed) => break Err(malformed.0.to_owned()),
                Ok(None) => break Ok(has_answered),
                Ok(Some((found, bytes))) => {
                    at += bytes;
                    match found {
                        Packet::PingResp => {}
                        Packet::ConnAck(_) => break Err("a second CONNACK".to_owned()),
                        Packet::Disconnect(_, why) => {
                            break Err(format!("the broker ends the connection: {why}"));
                        }
                        Packet::PubAck(id, reason) => {
                            has_answered = true;
                            let way = &mut connection.on_the_way;
                            let place = way.iter().position(|(sent, _)| *sent == id);
                            let token = place
                                .and_then(|at| way.remove(at))
                                .map_or(0, |(_, token)| token);
                            // With these reasons the broker may accept another message; with all others it accepts
                            // none.
                            let is_its_own = matches!(reason, 0x80 | 0x83 | 0x87 | 0x90 | 0x99);
                            if reason >= 0x80 && !is_its_own {
                                break Err(format!(
                                    "the broker refuses messages with reason {reason:#04x}"
                                ));
                            }
                            let source =
                                self.outbox
                                    .borrow_mut()
                                    .answered(token, reason < 0x80, now_ms);
                            if reason >= 0x80 {
                                self.say(
                                    source,
                                    &format!("the broker refuses it with reason {reason:#04x}"),
                                );
                            }
                        }
                    }
                }
            }
        };
        connection.input.drain(..at);
        result
    }

    /// Records why a message was not accepted.
    fn say(&self, source: Option<Source>, why: &str) {
        let mut figures = self.state.lock();
        let error = match source {
            Some(Source::Alarm(at)) => figures.alarms.get_mut(at).map(|one| &mut one.last_error),
            Some(Source::Actuator(at)) => {
                figures.actuators.get_mut(at).map(|one| &mut one.last_error)
            }
            None => None,
        };
        if let Some(error) = error {
            *error = Some(why.to_owned());
        }
    }
}
