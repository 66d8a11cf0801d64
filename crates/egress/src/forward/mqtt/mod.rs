//! Forwarding over MQTT with QoS 1: one connection, messages in log order, as many in flight as the broker allows.
//!
//! The broker's session state is not used: messages without acknowledgement are in the log, and are published again
//! over the next connection. So nothing depends on what the broker has kept.

pub mod packet;

use super::context::{Context, Leave, POLL_MS_MAX, Serving};
use super::forwarder::Forwarder;
use super::options::{MqttVersion, Target, UpstreamOptions};
use super::wire::{self, Event, Wire};
use crate::secret;
use base::block::BlockDevice;
use packet::{Packet, Welcome};
use std::collections::VecDeque;
use std::time::Duration;
use tls::Progress;
use tokio::io::AsyncWriteExt;

/// Approximate limit of the bytes that wait for the socket.
const OUT_BYTES_MAX: usize = 256 << 10;
/// Size of one read, in bytes.
const READ_BYTES: usize = 16 << 10;
/// Largest number of bytes by which the length field of a packet grows over that of an empty packet.
const LENGTH_BYTES_MAX: usize = 3;
/// Bytes that end an array of readings.
const END_BYTES: usize = 1;
/// A broker that accepts only shorter packets than this is probably misconfigured: what it does not accept is passed
/// over slowly.
const PACKET_BYTES_USUAL: usize = 256;
/// Reason codes of MQTT 5: this client may not publish there; the client exceeds its quota.
const NOT_AUTHORIZED: u8 = 0x87;
const QUOTA_EXCEEDED: u8 = 0x97;
const DENIED: &str = "does not let this client publish there (0x87)";
/// How long a stop waits for outstanding acknowledgements.
const FAREWELL_MS: u64 = 500;

/// A connection that the broker has accepted.
pub(crate) struct Connection {
    pub(crate) wire: Box<dyn Wire>,
    pub(crate) version: MqttVersion,
    pub(crate) keep_alive_ms: u64,
    pub(crate) inflight_max: usize,
    pub(crate) packet_bytes_max: usize,
    pub(crate) input: Vec<u8>,
    pub(crate) out: Vec<u8>,
    pub(crate) written: usize,
    /// Where the last message in `out` ends.
    messages_end: usize,
    /// Messages without an answer, in the order in which they were sent.
    pub(crate) on_the_way: VecDeque<(u16, u64)>,
    packet_id: u16,
    /// Messages that the broker does not allow this client to publish, and since when there are any, in ms.
    denied: Vec<u64>,
    denied_since_ms: u64,
    /// Whether the broker has taken any message.
    has_taken: bool,
    /// Whether the broker is known to deny messages because of their topics.
    denies_topics: bool,
    /// Until when one more sign of that suffices, in ms.
    expected_until_ms: u64,
}

/// Returns what helps with a broker that may speak TLS; `None` if the node does, too.
pub(crate) fn hint(tls: Option<&tls::Client>) -> Option<&'static str> {
    tls.is_none().then_some("tls = true")
}

/// A broker, and the client's identity there.
#[derive(Clone, Copy)]
pub(crate) struct Session<'a> {
    pub(crate) address: &'a str,
    pub(crate) tls: Option<&'a tls::Client>,
    pub(crate) version: MqttVersion,
    pub(crate) client_id: &'a str,
    pub(crate) login: Option<&'a (String, String)>,
    pub(crate) keep_alive_seconds: u16,
    pub(crate) inflight_max: u16,
}

/// Connects to an upstream. The caller sets the timeout.
pub(crate) async fn connect(
    options: &UpstreamOptions,
    progress: &Progress,
) -> Result<Connection, String> {
    let Target::Mqtt {
        address,
        version,
        client_id,
        login,
        keep_alive_seconds,
        inflight_max,
        ..
    } = &options.target
    else {
        return Err("not a broker".into());
    };
    let login = secret::login(login.as_ref())?;
    let session = Session {
        address,
        tls: options.tls.as_ref(),
        version: *version,
        client_id,
        login: login.as_ref(),
        keep_alive_seconds: *keep_alive_seconds,
        inflight_max: *inflight_max,
    };
    connect_to(session, progress).await
}

/// Connects and waits until the broker accepts the connection. The caller sets the timeout.
pub(crate) async fn connect_to(
    session: Session<'_>,
    progress: &Progress,
) -> Result<Connection, String> {
    let Session {
        address,
        tls,
        version,
        client_id,
        login,
        keep_alive_seconds,
        inflight_max,
    } = session;
    let mut wire = wire::connect(address, tls, progress).await?;
    let unanswered =
        |why: String| tls::with_hint(format!("{address}: no answer to CONNECT: {why}"), hint(tls));
    let greeting = packet::connect(version, client_id, login, keep_alive_seconds)
        .ok_or("CONNECT could not be written: client_id, username or password is too long")?;
    let mut written = 0;
    let mut input = Vec::new();
    let welcome = loop {
        match packet::next(&input, version) {
            Err(malformed) => {
                let why = format!("{address}: {}", malformed.0);
                return Err(tls::with_hint(why, hint(tls)));
            }
            Ok(Some((Packet::ConnAck(Ok(welcome)), bytes))) => {
                input.drain(..bytes);
                break welcome;
            }
            Ok(Some((Packet::ConnAck(Err(why)), _))) => {
                return Err(format!("{address}: the broker refuses: {why}"));
            }
            Ok(Some(_)) => return Err(unanswered("something else than CONNACK".to_owned())),
            Ok(None) => {}
        }
        let mut space = [0; 1024];
        let event = wire::either(&mut *wire, &mut space, &greeting[written..]).await;
        match event.map_err(|error| unanswered(wire::why(&error)))? {
            Event::Written(count) => written += count,
            Event::Read(0) => {
                return Err(unanswered(
                    "the broker has closed the connection".to_owned(),
                ));
            }
            Event::Read(count) => input.extend_from_slice(&space[..count]),
        }
    };
    let Welcome {
        keep_alive_seconds: theirs,
        inflight_max: allowed,
        packet_bytes_max,
    } = welcome;
    Ok(Connection {
        wire,
        version,
        keep_alive_ms: u64::from(theirs.unwrap_or(keep_alive_seconds)) * 1000,
        inflight_max: usize::from(allowed.unwrap_or(u16::MAX).min(inflight_max)),
        packet_bytes_max: packet_bytes_max.map_or(usize::MAX, |bytes| bytes as usize),
        input,
        out: Vec::with_capacity(OUT_BYTES_MAX + 4096),
        written: 0,
        messages_end: 0,
        on_the_way: VecDeque::new(),
        packet_id: 0,
        denied: Vec::new(),
        denied_since_ms: 0,
        has_taken: false,
        denies_topics: false,
        expected_until_ms: 0,
    })
}

impl Connection {
    /// Forwards until the connection ends or the node stops.
    pub(crate) async fn serve<D: BlockDevice + 'static>(
        &mut self,
        forwarder: &mut Forwarder<D>,
        context: &mut Context,
    ) -> Leave {
        let (mut heard_ms, mut spoke_ms) = (forwarder.now_ms(), forwarder.now_ms());
        if std::mem::take(&mut context.denies_topics) {
            self.expected_until_ms = heard_ms.saturating_add(context.options.answer_ms_max);
        }
        let mut ping_ms = None;
        // When an answer to a message was last due, or message bytes were last sent or answered. Other traffic does not
        // count.
        let mut asked_ms = heard_ms;
        let mut stopping_until = None;
        let mut space = vec![0; READ_BYTES];
        forwarder
            .engine
            .limit(self.payload_bytes_max(&context.options));
        loop {
            let now_ms = forwarder.now_ms();
            if context.is_stopping() && stopping_until.is_none() {
                stopping_until = Some(now_ms + FAREWELL_MS);
            }
            match self.take_answers(forwarder, context) {
                Ok(has_answered) => {
                    if has_answered {
                        asked_ms = now_ms;
                    }
                }
                Err(leave) => return leave,
            }
            let mut busy = false;
            let mut wait_ms = POLL_MS_MAX;
            match stopping_until {
                Some(until) => {
                    if self.on_the_way.is_empty() || now_ms >= until {
                        self.say_goodbye().await;
                        return Leave::Stopped;
                    }
                }
                None => {
                    let Serving { more, linger_ms } = context.pull(forwarder);
                    busy = more;
                    wait_ms = wait_ms.min(linger_ms);
                    if let Err(leave) = self.fill(forwarder, context) {
                        return leave;
                    }
                    if !more && self.on_the_way.is_empty() && !self.denied.is_empty() {
                        // Wait for a later message that is taken, but with a time limit.
                        let denied_ms = now_ms.saturating_sub(self.denied_since_ms);
                        if !self.has_taken || denied_ms > context.options.answer_ms_max {
                            return Leave::later(format!("the broker {DENIED}"));
                        }
                    }
                }
            }
            context.publish(forwarder);
            let due = self.keep_alive_ms * 3 / 4;
            if self.keep_alive_ms > 0 {
                if ping_ms.is_some_and(|since| now_ms - since > self.keep_alive_ms) {
                    return Leave::Lost("the broker does not answer pings".into());
                }
                let quiet = now_ms - heard_ms >= due || now_ms - spoke_ms >= due;
                if quiet && ping_ms.is_none() {
                    self.out.extend_from_slice(&packet::PINGREQ);
                    ping_ms = Some(now_ms);
                }
            }
            if self.on_the_way.is_empty() {
                asked_ms = now_ms;
            }
            if now_ms.saturating_sub(asked_ms) > context.options.answer_ms_max {
                return Leave::Lost("the broker does not answer messages".into());
            }
            let event = tokio::select! {
                biased;
                event = wire::either(&mut *self.wire, &mut space, &self.out[self.written..]) => Some(event),
                () = context.pause(busy, wait_ms) => None,
            };
            match event {
                None => {}
                Some(Err(error)) => return Leave::Lost(wire::why(&error)),
                Some(Ok(Event::Read(0))) => {
                    return Leave::Lost("the broker has closed the connection".into());
                }
                Some(Ok(Event::Read(count))) => {
                    self.input.extend_from_slice(&space[..count]);
                    heard_ms = forwarder.now_ms();
                    ping_ms = None;
                }
                Some(Ok(Event::Written(count))) => {
                    spoke_ms = forwarder.now_ms();
                    if self.wrote(count) {
                        asked_ms = spoke_ms;
                    }
                    // A ping behind messages is sent only when they are out, so its answer is due from then on.
                    ping_ms = ping_ms.map(|_| spoke_ms);
                }
            }
        }
    }

    /// Returns the longest payload of several readings that the broker accepts in one message, in bytes.
    fn payload_bytes_max(&self, options: &UpstreamOptions) -> usize {
        let topic_bytes = match &options.target {
            Target::Mqtt { topic, .. } => topic.len(),
            Target::Http { .. } => 0,
        };
        let head =
            packet::publish_bytes(self.version, topic_bytes, 0) + LENGTH_BYTES_MAX + END_BYTES;
        self.packet_bytes_max.saturating_sub(head)
    }

    /// Writes messages to the socket's buffer.
    fn fill<D: BlockDevice + 'static>(
        &mut self,
        forwarder: &mut Forwarder<D>,
        context: &mut Context,
    ) -> Result<(), Leave> {
        while self.out.len() < OUT_BYTES_MAX && self.on_the_way.len() < self.inflight_max {
            context.write_cursor(forwarder);
            let Some(unit) = forwarder.engine.send() else {
                return Ok(());
            };
            let (token, readings) = (unit.token, unit.readings);
            let bytes = packet::publish_bytes(self.version, unit.topic.len(), unit.payload.len());
            if bytes > self.packet_bytes_max {
                let why = format!("takes no packets of {bytes} bytes");
                if readings > 1 || self.packet_bytes_max < PACKET_BYTES_USUAL {
                    context.unwanted(forwarder, token, readings, &why)?;
                } else {
                    context.pass_over(forwarder, token, &why);
                }
                if readings > 1 {
                    // The packet ids of in-flight messages still belong to them, so a new connection is needed.
                    return Err(Leave::Again);
                }
                continue;
            }
            let packet_id = next_id(&mut self.packet_id, &self.on_the_way);
            packet::publish(
                self.version,
                packet_id,
                unit.topic,
                unit.payload,
                &mut self.out,
            );
            self.messages_end = self.out.len();
            self.on_the_way.push_back((packet_id, token));
        }
        Ok(())
    }

    /// Processes answers. Returns whether a message was answered.
    fn take_answers<D: BlockDevice + 'static>(
        &mut self,
        forwarder: &mut Forwarder<D>,
        context: &mut Context,
    ) -> Result<bool, Leave> {
        let (mut at, mut has_answered) = (0, false);
        let result = loop {
            match packet::next(&self.input[at..], self.version) {
                Err(malformed) => break Err(Leave::Lost(malformed.0.into())),
                Ok(None) => break Ok(has_answered),
                Ok(Some((found, bytes))) => {
                    at += bytes;
                    match found {
                        Packet::PingResp => {}
                        Packet::ConnAck(_) => break Err(Leave::Lost("a second CONNACK".into())),
                        Packet::Disconnect(code, why) => {
                            let why = format!("the broker ends the connection: {why}");
                            break Err(match may_be_for_a_message(code) {
                                true => Leave::Lost(why),
                                false => Leave::later(why),
                            });
                        }
                        Packet::PubAck(id, reason) => {
                            let place = self.on_the_way.iter().position(|(sent, _)| *sent == id);
                            let Some((_, token)) = place.and_then(|at| self.on_the_way.remove(at))
                            else {
                                context.answers_unknown += 1;
                                continue;
                            };
                            has_answered = true;
                            if let Err(leave) = self.answered(forwarder, context, token, reason) {
                                if matches!(leave, Leave::Lost(_)) {
                                    // The meaning of the answer is unknown, so the message counts as unanswered.
                                    self.on_the_way.push_front((id, token));
                                }
                                break Err(leave);
                            }
                        }
                    }
                }
            }
        };
        self.input.drain(..at);
        result
    }

    fn answered<D: BlockDevice + 'static>(
        &mut self,
        forwarder: &mut Forwarder<D>,
        context: &mut Context,
        token: u64,
        reason: u8,
    ) -> Result<(), Leave> {
        match reason {
            0..=0x7f => {
                context.acknowledged(forwarder, token);
                self.judge_denied(forwarder, context, token)
            }
            NOT_AUTHORIZED => {
                self.deny(forwarder, token);
                Ok(())
            }
            // Topic name invalid, payload format invalid: the reason lies in this message.
            0x90 | 0x99 => {
                let readings = forwarder.engine.readings_of(token);
                let why = format!("refuses a message with reason {reason:#04x}");
                match context.unwanted(forwarder, token, readings, &why) {
                    Ok(()) if readings > 1 => Err(Leave::Again),
                    // The answers to later messages decide about both.
                    Err(_) if self.has_denied() => {
                        self.deny(forwarder, token);
                        Ok(())
                    }
                    result => result,
                }
            }
            QUOTA_EXCEEDED => Err(Leave::later("the broker's quota is exceeded")),
            // It is unknown whether the reason lies in this message.
            other => Err(Leave::Lost(format!(
                "the broker refuses messages with reason {other:#04x}"
            ))),
        }
    }

    pub(crate) fn has_denied(&self) -> bool {
        !self.denied.is_empty()
    }

    fn deny<D: BlockDevice + 'static>(&mut self, forwarder: &Forwarder<D>, token: u64) {
        if self.denied.is_empty() {
            self.denied_since_ms = forwarder.now_ms();
        }
        self.denied.push(token);
    }

    /// Records that a message was taken. If the broker denied earlier messages, it did so because of their topics,
    /// unless its permissions changed in between. So they are sent once more over another connection before they are
    /// passed over.
    fn judge_denied<D: BlockDevice + 'static>(
        &mut self,
        forwarder: &mut Forwarder<D>,
        context: &mut Context,
        taken: u64,
    ) -> Result<(), Leave> {
        self.has_taken = true;
        let (before, behind): (Vec<u64>, Vec<u64>) =
            self.denied.drain(..).partition(|token| *token < taken);
        self.denied = behind;
        if before.is_empty() {
            return Ok(());
        }
        self.denies_topics |= forwarder.now_ms() < self.expected_until_ms;
        if !self.denies_topics {
            context.denies_topics = true;
            return Err(Leave::Again);
        }
        self.denied_since_ms = forwarder.now_ms();
        for token in before {
            if forwarder.engine.readings_of(token) > 1 {
                forwarder.engine.split(token);
                return Err(Leave::Again);
            }
            context.pass_over(forwarder, token, DENIED);
        }
        Ok(())
    }

    /// Records that the socket has taken `count` bytes. Returns whether message bytes were among them.
    pub(crate) fn wrote(&mut self, count: usize) -> bool {
        let has_moved = self.written < self.messages_end;
        self.written += count;
        if self.written == self.out.len() {
            self.out.clear();
            (self.written, self.messages_end) = (0, 0);
        }
        has_moved
    }

    /// Writes one message to the socket's buffer.
    pub(crate) fn publish(&mut self, token: u64, topic: &[u8], payload: &[u8], retain: bool) {
        let packet_id = next_id(&mut self.packet_id, &self.on_the_way);
        let begin = self.out.len();
        packet::publish(self.version, packet_id, topic, payload, &mut self.out);
        if retain && let Some(first) = self.out.get_mut(begin) {
            *first |= packet::RETAIN;
        }
        self.messages_end = self.out.len();
        self.on_the_way.push_back((packet_id, token));
    }

    pub(crate) async fn say_goodbye(&mut self) {
        self.out.extend_from_slice(&packet::DISCONNECT);
        let mut space = [0; 1024];
        let said = async {
            while self.written < self.out.len() {
                let rest = &self.out[self.written..];
                match wire::either(&mut *self.wire, &mut space, rest).await {
                    Ok(Event::Written(count)) => self.written += count,
                    Ok(Event::Read(0)) | Err(_) => return,
                    Ok(Event::Read(_)) => {}
                }
            }
            // What TLS holds back, and the end of its session.
            let _ = self.wire.shutdown().await;
        };
        let _ = tokio::time::timeout(Duration::from_millis(FAREWELL_MS), said).await;
    }
}

/// Returns whether a broker that ends the connection for this reason may do so because of the last message. The reasons
/// are a normal end and an unspecified or implementation-specific error, a malformed packet and a protocol error.
/// Others are a wrong topic, topic alias or payload, and a packet that is too large. All other reasons lie in the
/// broker or in this client.
fn may_be_for_a_message(reason: u8) -> bool {
    matches!(reason, 0 | 0x80..=0x83 | 0x90 | 0x94 | 0x95 | 0x99)
}

/// Returns the next packet identifier that no in-flight message uses. There are always fewer such messages than
/// identifiers.
fn next_id(last: &mut u16, on_the_way: &VecDeque<(u16, u64)>) -> u16 {
    loop {
        *last = last.checked_add(1).unwrap_or(1);
        if on_the_way.iter().all(|(used, _)| used != last) {
            return *last;
        }
    }
}
