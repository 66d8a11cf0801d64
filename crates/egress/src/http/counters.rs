//! What the HTTP side counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

/// Why a request or a connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// All allowed connections are in use, and none of them is idle.
    Connections,
    /// A handshake of TLS that failed.
    Handshake,
    /// One that took too long.
    HandshakeSlow,
    /// One that gave up its place to later ones.
    HandshakeEvicted,
    /// The certificate of a client is missing or is not accepted.
    Certificate,
    /// Plain HTTP where TLS is expected.
    NotEncrypted,
    /// No token, or an invalid one.
    Token,
    /// A host name that a browser may have been tricked into using.
    Host,
    /// More requests or handshakes per second than allowed.
    Rate,
    /// More streams than allowed.
    Streams,
    /// A request with a body.
    Body,
    /// More reads of history than may wait.
    History,
    /// A token without the right to do this.
    Right,
    /// Lines that a page in a browser sends.
    Origin,
    /// Lines, where writing is off.
    WriteOff,
    /// More bodies at the same time than allowed.
    Writes,
    /// A body above its limit, packed or unpacked.
    BodyLarge,
    /// A body that does not come in time.
    BodySlow,
    /// A body that is cut or damaged, or packed in a way that is not known.
    BodyBroken,
    /// Lines that the queue of the log has no room for.
    Queue,
    /// Lines that the store does not take: it is full or fails, or the node stops.
    Store,
}

impl Refusal {
    const ALL: [Self; 21] = [
        Self::Connections,
        Self::Handshake,
        Self::HandshakeSlow,
        Self::HandshakeEvicted,
        Self::Certificate,
        Self::NotEncrypted,
        Self::Token,
        Self::Host,
        Self::Rate,
        Self::Streams,
        Self::Body,
        Self::History,
        Self::Right,
        Self::Origin,
        Self::WriteOff,
        Self::Writes,
        Self::BodyLarge,
        Self::BodySlow,
        Self::BodyBroken,
        Self::Queue,
        Self::Store,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Handshake => "handshake",
            Self::HandshakeSlow => "handshake_slow",
            Self::HandshakeEvicted => "handshake_evicted",
            Self::Certificate => "certificate",
            Self::NotEncrypted => "not_encrypted",
            Self::Token => "token",
            Self::Host => "host",
            Self::Rate => "rate",
            Self::Streams => "streams",
            Self::Body => "body",
            Self::History => "history",
            Self::Right => "right",
            Self::Origin => "origin",
            Self::WriteOff => "write_off",
            Self::Writes => "writes",
            Self::BodyLarge => "body_large",
            Self::BodySlow => "body_slow",
            Self::BodyBroken => "body_broken",
            Self::Queue => "queue",
            Self::Store => "store",
        }
    }
}

/// The counters.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) connections: AtomicU64,
    pub(crate) connections_total: AtomicU64,
    /// Connections closed: while idle to make room; because of silence; because a head did not arrive; because a write
    /// made no progress.
    pub(crate) connections_evicted: AtomicU64,
    pub(crate) connections_idle: AtomicU64,
    pub(crate) heads_broken: AtomicU64,
    pub(crate) connections_stalled: AtomicU64,
    pub(crate) accepts_failed: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) requests_failed: AtomicU64,
    pub(crate) streams: AtomicU64,
    pub(crate) stream_messages: AtomicU64,
    pub(crate) stream_bytes: AtomicU64,
    pub(crate) updates_encoded: AtomicU64,
    pub(crate) updates_dropped: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) writes_active: AtomicU64,
    pub(crate) write_bytes: AtomicU64,
    pub(crate) write_readings: AtomicU64,
    pub(crate) write_refused: AtomicU64,
    pub(crate) write_shed: AtomicU64,
    pub(crate) writes_turned_away: AtomicU64,
    refused: [AtomicU64; Refusal::ALL.len()],
    /// Knows whether changed certificates cannot be used.
    pub(crate) tls: OnceLock<Arc<tls::Server>>,
}

impl Counters {
    pub(crate) fn refuse(&self, why: Refusal) {
        if let Some(count) = self.refused.get(why as usize) {
            add(count, 1);
        }
    }

    /// Returns the current values.
    #[must_use]
    pub fn figures(&self) -> HttpFigures {
        let refused = Refusal::ALL.iter().zip(&self.refused);
        HttpFigures {
            listen: String::new(),
            tls: self.tls.get().is_some(),
            certificate_error: self.tls.get().and_then(|server| server.problem()),
            page: super::page::has_page(),
            connections: read(&self.connections),
            connections_total: read(&self.connections_total),
            connections_evicted: read(&self.connections_evicted),
            connections_idle: read(&self.connections_idle),
            connections_stalled: read(&self.connections_stalled),
            heads_broken: read(&self.heads_broken),
            accepts_failed: read(&self.accepts_failed),
            requests: read(&self.requests),
            requests_failed: read(&self.requests_failed),
            streams: read(&self.streams),
            stream_messages: read(&self.stream_messages),
            stream_bytes: read(&self.stream_bytes),
            updates_encoded: read(&self.updates_encoded),
            updates_dropped: read(&self.updates_dropped),
            writes: read(&self.writes),
            writes_active: read(&self.writes_active),
            write_bytes: read(&self.write_bytes),
            write_readings: read(&self.write_readings),
            write_refused: read(&self.write_refused),
            write_shed: read(&self.write_shed),
            writes_turned_away: read(&self.writes_turned_away),
            refused: refused
                .map(|(why, count)| (why.name().to_owned(), read(count)))
                .collect(),
        }
    }
}

pub(crate) fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

pub(crate) fn less(count: &AtomicU64) {
    count.fetch_sub(1, Ordering::Relaxed);
}

pub(crate) fn read(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

/// Figures of the HTTP side; counts start at the node's start.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
pub struct HttpFigures {
    /// Address and port.
    pub listen: String,
    /// Whether connections are encrypted.
    pub tls: bool,
    /// Why changed files of certificates are not used, while those before them are, or why no client accepts the
    /// certificate.
    pub certificate_error: Option<String>,
    /// Whether this build has the live page.
    pub page: bool,
    /// Current connections, and all connections since the start.
    pub connections: u64,
    /// See [`connections`](Self::connections).
    pub connections_total: u64,
    /// Closed between two requests, to make room for others.
    pub connections_evicted: u64,
    /// Closed because they were silent.
    pub connections_idle: u64,
    /// Closed because they did not read their answers.
    pub connections_stalled: u64,
    /// Closed because the head of a request was too long, too slow or not HTTP.
    pub heads_broken: u64,
    /// Connections that the system failed to hand over.
    pub accepts_failed: u64,
    /// Requests answered, and how many of them with an error.
    pub requests: u64,
    /// See [`requests`](Self::requests).
    pub requests_failed: u64,
    /// Current readers of the live stream.
    pub streams: u64,
    /// Messages and bytes put into their queues.
    pub stream_messages: u64,
    /// See [`stream_messages`](Self::stream_messages).
    pub stream_bytes: u64,
    /// Updates encoded, each once for all readers.
    pub updates_encoded: u64,
    /// Updates that slow readers missed.
    pub updates_dropped: u64,
    /// Bodies whose lines were taken, and answered once they were durable.
    pub writes: u64,
    /// Bodies that are received or taken at present.
    pub writes_active: u64,
    /// Bytes of the lines of [`writes`](Self::writes), unpacked.
    pub write_bytes: u64,
    /// Their readings that were stored.
    pub write_readings: u64,
    /// Their lines that were refused as a whole, and single refused readings. The intake has the reasons.
    pub write_refused: u64,
    /// Their readings that were dropped to shed load, as the keys' `shed = "drop"` says.
    pub write_shed: u64,
    /// Requests of permitted writers that were told to come back, because there were too many bodies or requests. Where
    /// writing is on, also refused connections, which may have been theirs.
    pub writes_turned_away: u64,
    /// Refused requests and connections by reason.
    pub refused: std::collections::BTreeMap<String, u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_is_counted_under_its_name() {
        let counters = Counters::default();
        for (at, why) in Refusal::ALL.into_iter().enumerate() {
            for _ in 0..=at {
                counters.refuse(why);
            }
        }
        let figures = counters.figures();
        for (at, why) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(figures.refused[why.name()], at as u64 + 1);
        }
    }
}
