//! The Networker of SYSFLOW: persistent connections, the distribution of requests over them, and the outstanding
//! requests of each.
//!
//! Each connection has a reader thread and a writer thread. The reader lives as long as the device and reconnects.

use super::connection::{Connection, InFlight};
use super::exchange::{Exchange, Exchanges};
use super::failure::ServerFailure;
use crate::block::BlockAt;
use crate::device::counters::{Counts, Reason, add};
use crate::device::error::DeviceError;
use crate::device::line::Line;
use crate::device::settings::{QUARANTINE_MAX, Settings};
use crate::link::{LinkControl, LinkSettings, LinkWriter};
use crate::sync::locked;
use crate::wire::Request;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The first and the longest pause before a reconnect.
const RECONNECT_MIN: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_secs(1);

/// The timeout of one attempt to connect.
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(3);

/// The maximum number of pings behind an unanswered request. The first one waits for two round trips and
/// `QUESTION_SPARE`; each further one waits twice as long.
const QUESTIONS_MAX: u32 = 4;
const QUESTION_SPARE: Duration = Duration::from_millis(10);

/// The read timeout of a reader thread, after which it checks whether the device was stopped.
const READ_MAX: Duration = Duration::from_secs(1);

/// Wrong messages after which a server is quarantined, and right blocks after which the wrong messages are forgotten.
const LIES_MAX: u32 = 3;
const GOOD_BLOCKS: u64 = 1024;

/// Assumed until measured: 2 ms, 100 Mbit/s.
const ROUND_TRIP_US: u64 = 2_000;
const BANDWIDTH_BYTES_S: u64 = 12_500_000;

#[derive(Default)]
struct Lies {
    count: u32,
    good_blocks: u64,
    pause: Duration,
    until: Option<Instant>,
    /// Connections with lower numbers were given up together: further wrong messages on them do not extend the pause.
    given_up_below: u64,
}

/// All connections to the server.
pub(crate) struct Transport {
    /// How to connect.
    pub link: LinkSettings,
    /// The device id, the same on all its connections.
    pub device: [u8; 16],
    connections: Mutex<Vec<Arc<Connection>>>,
    /// The answers that callers of `exchange` wait for.
    pub exchanges: Exchanges,
    numbers: AtomicU64,
    ids: AtomicU32,
    lies: Mutex<Lies>,
    quarantine: Duration,
    // Why the last attempt to connect failed.
    failure: Mutex<Option<ServerFailure>>,
    // Whether a request needs a connection and there is none. Connections that are opened per demand wait for this.
    pause: Mutex<bool>,
    wake: Condvar,
    is_stopped: AtomicBool,
    started: Instant,
    /// The server has sent neighbours of a block.
    pub gives_neighbours: AtomicBool,
    /// Consecutive answers without the requested neighbours.
    pub without_neighbours: AtomicU32,
    round_trip_us: AtomicU64,
    bandwidth_bytes_s: AtomicU64,
    sent_before: AtomicU64,
    received_before: AtomicU64,
}

impl Transport {
    pub fn new(link: LinkSettings, device: [u8; 16], settings: &Settings) -> Self {
        Self {
            link,
            device,
            connections: Mutex::default(),
            exchanges: Exchanges::default(),
            numbers: AtomicU64::new(1),
            ids: AtomicU32::new(1),
            lies: Mutex::new(Lies {
                pause: settings.quarantine,
                ..Lies::default()
            }),
            quarantine: settings.quarantine,
            failure: Mutex::default(),
            pause: Mutex::default(),
            wake: Condvar::new(),
            is_stopped: AtomicBool::new(false),
            started: Instant::now(),
            gives_neighbours: AtomicBool::new(false),
            without_neighbours: AtomicU32::new(0),
            round_trip_us: AtomicU64::new(ROUND_TRIP_US),
            bandwidth_bytes_s: AtomicU64::new(BANDWIDTH_BYTES_S),
            sent_before: AtomicU64::new(0),
            received_before: AtomicU64::new(0),
        }
    }

    /// Returns the link settings without those of TLS (server name and identity).
    pub fn link_settings(settings: &Settings) -> LinkSettings {
        LinkSettings {
            server: settings.server.clone(),
            tls: None,
            connect_max: CONNECT_MAX.min(settings.deadline),
            read_max: Some(READ_MAX.min(settings.deadline / 3)),
            write_max: Some(settings.deadline / 3),
        }
    }

    /// Returns the milliseconds since the start, never 0.
    pub fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64 + 1
    }

    /// Returns a new request id, never 0.
    pub fn id(&self) -> u32 {
        loop {
            let id = self.ids.fetch_add(1, Ordering::Relaxed);
            if id != 0 {
                return id;
            }
        }
    }

    /// Registers a connection that is up.
    pub fn up(&self, control: LinkControl) -> Arc<Connection> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(Connection::new(number, control, self.now_ms()));
        locked(&self.connections).push(Arc::clone(&connection));
        *locked(&self.failure) = None;
        // Taking the lock once ensures that no thread is between its check and its wait.
        drop(locked(&self.pause));
        self.wake.notify_all();
        if self.is_stopped() {
            connection.close();
        }
        connection
    }

    /// Removes a connection that has ended.
    pub fn down(&self, connection: &Connection) {
        connection.close();
        locked(&self.connections).retain(|other| other.number != connection.number);
        add(&self.sent_before, connection.control.sent_bytes());
        add(&self.received_before, connection.control.received_bytes());
    }

    /// Records why there is no connection.
    pub fn failed(&self, failure: ServerFailure) {
        *locked(&self.failure) = Some(failure);
    }

    /// Returns why there is no connection; `None` if there is one, or if the reason is not known yet.
    pub fn failure(&self) -> Option<ServerFailure> {
        let failure = locked(&self.failure).clone();
        failure.filter(|_| locked(&self.connections).is_empty())
    }

    /// Returns the connections that are up.
    pub fn connections(&self) -> Vec<Arc<Connection>> {
        locked(&self.connections).clone()
    }

    /// Returns the connection with this number.
    pub fn connection(&self, number: u64) -> Option<Arc<Connection>> {
        let connections = locked(&self.connections);
        connections.iter().find(|c| c.number == number).cloned()
    }

    /// Returns how long an outstanding request may still bring a block: until it is answered (`None` inside), or at
    /// most this long. `None`: no request brings it.
    pub fn brings(&self, at: BlockAt) -> Option<Option<Duration>> {
        let connections = locked(&self.connections);
        connections
            .iter()
            .find_map(|connection| connection.brings(at))
    }

    /// The number of blocks that were requested ahead and have not arrived.
    pub fn blocks_ahead(&self) -> u64 {
        let connections = locked(&self.connections);
        let blocks = connections.iter().map(|c| u64::from(c.blocks_ahead()));
        blocks.sum()
    }

    /// Returns how long the line takes for `bytes` bytes.
    pub fn line_time(&self, bytes: u64) -> Duration {
        Duration::from_micros(bytes.saturating_mul(1_000_000) / self.bandwidth().max(1))
    }

    /// Returns the connection with the fewest outstanding blocks.
    pub fn idlest(&self) -> Option<Arc<Connection>> {
        let connections = locked(&self.connections);
        let load = |c: &&Arc<Connection>| c.blocks_asked.load(Ordering::Relaxed);
        connections.iter().min_by_key(load).cloned()
    }

    /// Returns the bytes sent and received, including everything that is added to messages above TCP.
    pub fn bytes(&self) -> (u64, u64) {
        let connections = locked(&self.connections);
        let sum =
            |of: fn(&LinkControl) -> u64| connections.iter().map(|c| of(&c.control)).sum::<u64>();
        (
            self.sent_before.load(Ordering::Relaxed) + sum(LinkControl::sent_bytes),
            self.received_before.load(Ordering::Relaxed) + sum(LinkControl::received_bytes),
        )
    }

    /// Counts the bytes of a connection that was never up.
    pub fn count_bytes(&self, control: &LinkControl) {
        add(&self.sent_before, control.sent_bytes());
        add(&self.received_before, control.received_bytes());
    }

    /// Returns the round-trip time; it follows the shortest of the recent round trips.
    pub fn round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip_us.load(Ordering::Relaxed))
    }

    /// Records a measured round trip. A shorter one is adopted at once, a longer one gradually.
    pub fn took(&self, time: Duration) {
        let (now, before) = (
            time.as_micros().min(60_000_000) as u64,
            self.round_trip_us.load(Ordering::Relaxed),
        );
        let next = if now < before {
            now
        } else {
            (7 * before + now) / 8
        };
        self.round_trip_us.store(next.max(1), Ordering::Relaxed);
    }

    /// Returns the measured bandwidth in bytes per second.
    pub fn bandwidth(&self) -> u64 {
        self.bandwidth_bytes_s.load(Ordering::Relaxed)
    }

    /// Records that `bytes` bytes arrived without a gap within `time`.
    pub fn came(&self, bytes: u64, time: Duration) {
        let now = (bytes as f64 / time.as_secs_f64().max(1e-6)) as u64;
        let before = self.bandwidth();
        let next = (3 * before + now) / 4;
        self.bandwidth_bytes_s.store(next.max(1), Ordering::Relaxed);
    }

    /// Sends queued requests of a connection until it is closed, and pings behind an unanswered request. If one small
    /// packet is lost with nothing behind it, TCP waits 200 ms or more before it retransmits. With data behind it, TCP
    /// detects the loss at once (RFC 8985). The answer to the ping does the same for a lost answer.
    pub fn write(&self, connection: &Connection, mut writer: LinkWriter) {
        let mut questions = QUESTIONS_MAX;
        let awaits = || connection.blocks_asked.load(Ordering::Relaxed) > 0;
        loop {
            let after = (2 * self.round_trip() + QUESTION_SPARE) * (1 << questions);
            let wait_max = (questions < QUESTIONS_MAX && awaits()).then_some(after);
            let Some(mut bytes) = connection.take_outgoing(wait_max) else {
                return;
            };
            if !bytes.is_empty() {
                questions = 0;
            } else if awaits() {
                questions += 1;
                let id = self.id();
                Request::Ping { id }.encode(&mut bytes);
            }
            if writer.write_all(&bytes).is_err() {
                connection.close();
                return;
            }
        }
    }

    /// Sends a request and waits for the answer; it fails if nothing arrives within `deadline`. `None`: there is no
    /// connection, or it has ended.
    pub fn exchange(
        &self,
        what: InFlight,
        answer: Exchange,
        deadline: Duration,
        request: impl FnOnce(u32) -> Request,
    ) -> Result<Option<Exchange>, DeviceError> {
        let Some(connection) = self.idlest() else {
            return match self.is_stopped() {
                true => Err(DeviceError::Stopped),
                false => Ok(None),
            };
        };
        let id = self.id();
        self.exchanges.begin(id, answer);
        connection.expect(id, what);
        let is_sent = connection.send(&request(id), false);
        let is_up =
            || is_sent && self.connection(connection.number).is_some() && !self.is_stopped();
        let (answer, is_late) = self.exchanges.wait(id, deadline, is_up);
        connection.answered(id);
        if self.is_stopped() {
            return Err(DeviceError::Stopped);
        }
        if let Some(reason) = answer.refused {
            return Err(DeviceError::Refused(reason));
        }
        if is_late {
            return Err(DeviceError::Late(deadline));
        }
        Ok(Some(answer))
    }

    /// Returns the measured properties of the line.
    pub fn line(&self) -> Line {
        Line {
            round_trip: self.round_trip(),
            bandwidth_bytes_s: self.bandwidth(),
        }
    }

    /// Counts something wrong that the server has sent on a connection (`None`: in a greeting). After `LIES_MAX` of
    /// them the server is quarantined, once for all existing connections: otherwise a burst on one connection would
    /// lead to the longest pause.
    pub fn lied(&self, counts: &Counts, reason: Reason, connection: Option<u64>) {
        counts.reject(reason);
        let mut lies = locked(&self.lies);
        if connection.is_some_and(|number| number < lies.given_up_below) {
            return;
        }
        lies.count += 1;
        lies.good_blocks = 0;
        if lies.count < LIES_MAX {
            return;
        }
        lies.count = 0;
        lies.until = Some(Instant::now() + lies.pause);
        lies.pause = (2 * lies.pause).min(QUARANTINE_MAX);
        lies.given_up_below = self.numbers.load(Ordering::Relaxed);
        drop(lies);
        // A wrong greeting has set its own, more precise reason.
        if connection.is_some() {
            self.failed(ServerFailure::lied(reason.name()));
        }
        add(&counts.quarantines, 1);
        for connection in self.connections() {
            connection.close();
        }
    }

    /// Records that `blocks` blocks were right.
    pub fn was_right(&self, blocks: u64) {
        let mut lies = locked(&self.lies);
        lies.good_blocks += blocks;
        if lies.good_blocks >= GOOD_BLOCKS {
            lies.count = 0;
            lies.pause = self.quarantine;
        }
    }

    /// Returns the rest of the server's quarantine.
    pub fn left_alone(&self) -> Duration {
        let until = locked(&self.lies).until;
        until.map_or(Duration::ZERO, |until| {
            until.saturating_duration_since(Instant::now())
        })
    }

    /// Returns the pause that follows one of this length before the next reconnect.
    pub fn next_pause(pause: Duration) -> Duration {
        (2 * pause).clamp(RECONNECT_MIN, RECONNECT_MAX)
    }

    /// Waits for `time`, or until the device is stopped.
    pub fn pause(&self, time: Duration) {
        self.wait_while(time, || true);
    }

    /// Waits until a connection is up, at most `time`.
    pub fn wait_up(&self, time: Duration) {
        self.wait_while(time, || locked(&self.connections).is_empty());
    }

    fn wait_while(&self, time: Duration, waits: impl Fn() -> bool) {
        let end = Instant::now() + time;
        let mut guard = locked(&self.pause);
        while !self.is_stopped() && waits() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            guard = self
                .wake
                .wait_timeout(guard, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Reports that a connection is needed and there is none.
    pub fn want(&self) {
        *locked(&self.pause) = true;
        self.wake.notify_all();
    }

    /// Waits until a connection is needed, or the device is stopped.
    pub fn wait_for_want(&self) {
        let mut is_wanted = locked(&self.pause);
        while !*is_wanted && !self.is_stopped() {
            is_wanted = self
                .wake
                .wait(is_wanted)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *is_wanted = false;
    }

    /// Whether the device was stopped.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    /// Ends all connections; no new one is made.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        {
            let _guard = locked(&self.pause);
            self.wake.notify_all();
        }
        for connection in self.connections() {
            connection.close();
        }
        self.exchanges.look_again();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::settings::Publisher;

    #[test]
    fn a_burst_of_wrong_messages_is_one_reason_to_wait() {
        let mut settings = Settings::new("127.0.0.1:1", Publisher::FirstSeen);
        settings.quarantine = Duration::from_secs(10);
        let transport = Transport::new(Transport::link_settings(&settings), [1; 16], &settings);
        let counts = Counts::default();
        let burst = |connection| {
            for _ in 0..100 {
                transport.lied(&counts, Reason::Unrequested, connection);
            }
        };
        let pause = || locked(&transport.lies).pause;
        // The first three messages close both connections.
        let connections = [(); 2].map(|()| transport.numbers.fetch_add(1, Ordering::Relaxed));
        burst(Some(connections[0]));
        burst(Some(connections[1]));
        assert!(!transport.left_alone().is_zero());
        assert!(transport.left_alone() <= settings.quarantine);
        assert_eq!(pause(), 2 * settings.quarantine);
        assert_eq!(counts.snapshot().quarantines, 1);
        // A connection made later counts on its own.
        let next = transport.numbers.fetch_add(1, Ordering::Relaxed);
        burst(Some(next));
        assert!(transport.left_alone() <= 2 * settings.quarantine);
        assert_eq!(pause(), 4 * settings.quarantine);
        assert_eq!(counts.snapshot().quarantines, 2);
    }
}
