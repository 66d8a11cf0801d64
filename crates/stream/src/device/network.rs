//! The Networker of SYSFLOW: persistent connections, the distribution of requests over them, and the outstanding
//! requests of each.
//!
//! Each connection has a reader thread and a writer thread. The reader lives as long as the device and reconnects.

use super::counters::{Counts, Reason, add};
use super::failure::ServerFailure;
use super::settings::{QUARANTINE_MAX, Settings};
use crate::block::{BlockAt, FileId, SEGMENT_BLOCKS, Token};
use crate::link::{LinkControl, LinkSettings, LinkWriter};
use crate::wire::Request;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The maximum number of bytes that wait to be sent on one connection; further requests are not sent.
const OUTGOING_BYTES_MAX: usize = 1 << 20;

/// The maximum number of outstanding requests of one connection whose answers are recognised.
const ASKED_MAX: usize = 1024;

/// The first and the longest pause before a reconnect.
const RECONNECT_MIN: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_secs(1);

/// The timeout of one attempt to connect.
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(3);

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

/// Approximate bytes of a block on the wire: zstd compresses the blocks of programs to about this size.
pub(super) const WIRE_BLOCK_BYTES: u64 = 1700;

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The guarded data changes in single steps, so it is consistent even after a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The kind of request that an answer belongs to.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    /// A block that a reader waits for, and `around` blocks behind it.
    Block {
        at: BlockAt,
        around: u32,
        token: Option<Token>,
        // Set when the block itself has arrived: its neighbours may arrive until this time.
        answered_until: Option<Instant>,
    },
    /// Blocks of an aligned run that no reader waits for, a bit for each.
    Ahead { file: FileId, run: u32, mask: u32 },
    /// Blocks to be cached.
    Fetch(Arc<HashSet<BlockAt>>),
    /// The plan of a task: for the task with this token, or for a waiting caller.
    Plan(Option<Token>),
    /// A ping, and when it was sent.
    Ping(Instant),
}

#[derive(Default)]
struct Outgoing {
    urgent: VecDeque<Vec<u8>>,
    later: VecDeque<Vec<u8>>,
    bytes: usize,
    is_closed: bool,
}

/// What to do about a silent connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quiet {
    /// Nothing: bytes were received, or the silence is short.
    Wait,
    /// Send a ping.
    Ask,
    /// Give up the connection: no ping was answered for too long.
    Dead,
}

/// How long a connection has been silent, measured by its received bytes, because a long message may take its time.
/// Times are milliseconds of the network's clock.
#[derive(Clone, Copy, Debug)]
struct Silence {
    received_bytes: u64,
    heard_ms: u64,
    asked_first_ms: Option<u64>,
    asked_last_ms: u64,
}

impl Silence {
    fn since(now_ms: u64) -> Self {
        Self {
            received_bytes: 0,
            heard_ms: now_ms,
            asked_first_ms: None,
            asked_last_ms: 0,
        }
    }

    // Repeats the ping: a peer that gave up the connection, and whose closing packets were lost, resets it when it
    // receives a packet. The first ping may have arrived before the peer gave up.
    fn look(&mut self, received_bytes: u64, now_ms: u64, ask_after: u64, dead_after: u64) -> Quiet {
        if received_bytes != self.received_bytes {
            *self = Self {
                received_bytes,
                ..Self::since(now_ms)
            };
            return Quiet::Wait;
        }
        match self.asked_first_ms {
            None if now_ms.saturating_sub(self.heard_ms) <= ask_after => return Quiet::Wait,
            None => self.asked_first_ms = Some(now_ms),
            Some(first_ms) if now_ms.saturating_sub(first_ms) > dead_after => return Quiet::Dead,
            Some(_) if now_ms.saturating_sub(self.asked_last_ms) <= ask_after => {
                return Quiet::Wait;
            }
            Some(_) => {}
        }
        self.asked_last_ms = now_ms;
        Quiet::Ask
    }
}

/// A connection that is up.
pub(super) struct Connection {
    /// Unique: never reused.
    pub number: u64,
    pub control: LinkControl,
    outgoing: Mutex<Outgoing>,
    wake: Condvar,
    asked: Mutex<BTreeMap<u32, Asked>>,
    blocks_asked: AtomicUsize,
    /// How long the connection is silent, and which pings were sent.
    silence: Mutex<Silence>,
    /// The reader thread waits for room on the stage, so silence means nothing.
    pub is_placing: AtomicBool,
}

impl Connection {
    fn new(number: u64, control: LinkControl, now_ms: u64) -> Self {
        Self {
            number,
            control,
            outgoing: Mutex::default(),
            wake: Condvar::new(),
            asked: Mutex::default(),
            blocks_asked: AtomicUsize::new(0),
            silence: Mutex::new(Silence::since(now_ms)),
            is_placing: AtomicBool::new(false),
        }
    }

    /// Queues a request; an urgent one goes before those that no reader waits for. Returns false if the connection is
    /// closed or its queue is full.
    pub fn send(&self, request: &Request, is_urgent: bool) -> bool {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        let mut outgoing = locked(&self.outgoing);
        if outgoing.is_closed || outgoing.bytes + bytes.len() > OUTGOING_BYTES_MAX {
            return false;
        }
        outgoing.bytes += bytes.len();
        match is_urgent {
            true => outgoing.urgent.push_back(bytes),
            false => outgoing.later.push_back(bytes),
        }
        drop(outgoing);
        self.wake.notify_one();
        true
    }

    /// Records what the answer with this id will belong to.
    pub fn expect(&self, id: u32, what: Asked) {
        let mut asked = locked(&self.asked);
        if matches!(what, Asked::Block { .. }) {
            self.blocks_asked.fetch_add(1, Ordering::Relaxed);
        }
        asked.insert(id, what);
        while asked.len() > ASKED_MAX {
            if let Some((_, old)) = asked.pop_first() {
                self.forgotten(&old);
            }
        }
    }

    fn forgotten(&self, asked: &Asked) {
        if matches!(
            asked,
            Asked::Block {
                answered_until: None,
                ..
            }
        ) {
            self.blocks_asked.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns what an answer with this id belongs to.
    pub fn asked(&self, id: u32) -> Option<Asked> {
        locked(&self.asked).get(&id).cloned()
    }

    /// Marks the request with this id as completely answered.
    pub fn answered(&self, id: u32) -> Option<Asked> {
        let asked = locked(&self.asked).remove(&id)?;
        self.forgotten(&asked);
        Some(asked)
    }

    /// Records that the block itself has arrived; its neighbours may follow within `neighbours_wait`.
    pub fn block_came(&self, id: u32, neighbours_wait: Duration) {
        if let Some(Asked::Block { answered_until, .. }) = locked(&self.asked).get_mut(&id)
            && answered_until.is_none()
        {
            *answered_until = Some(Instant::now() + neighbours_wait);
            self.blocks_asked.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns how long an outstanding request may still bring a block (`None` inside: until it is answered); `None` if
    /// no request does.
    pub fn brings(&self, wanted: BlockAt) -> Option<Option<Duration>> {
        let now = Instant::now();
        let covers = |asked: &Asked| match asked {
            Asked::Block {
                at,
                around,
                answered_until,
                ..
            } if at.file == wanted.file
                && (at.index..=at.index.saturating_add(*around)).contains(&wanted.index) =>
            {
                match answered_until {
                    None => Some(None),
                    Some(until) if *until > now => Some(Some(*until - now)),
                    Some(_) => None,
                }
            }
            Asked::Ahead { file, run, mask } => {
                let is_it = *file == wanted.file
                    && *run == wanted.index / SEGMENT_BLOCKS
                    && mask >> (wanted.index % SEGMENT_BLOCKS) & 1 == 1;
                is_it.then_some(None)
            }
            _ => None,
        };
        locked(&self.asked).values().find_map(covers)
    }

    /// The number of blocks that were requested ahead and have not arrived.
    pub fn blocks_ahead(&self) -> u32 {
        let blocks = |asked: &Asked| match asked {
            Asked::Ahead { mask, .. } => mask.count_ones(),
            _ => 0,
        };
        locked(&self.asked).values().map(blocks).sum()
    }

    /// Removes and returns all outstanding requests.
    pub fn take_asked(&self) -> Vec<(u32, Asked)> {
        std::mem::take(&mut *locked(&self.asked))
            .into_iter()
            .collect()
    }

    /// Returns what the connection's silence requires. A ping after `ask_after` ms without a byte, and again after each
    /// `ask_after` ms without an answer; the connection is dead `dead_after` ms after the first ping.
    pub fn quiet(&self, now_ms: u64, ask_after: u64, dead_after: u64) -> Quiet {
        let mut silence = locked(&self.silence);
        if self.is_placing.load(Ordering::Acquire) {
            *silence = Silence {
                received_bytes: silence.received_bytes,
                ..Silence::since(now_ms)
            };
            return Quiet::Wait;
        }
        silence.look(self.control.received_bytes(), now_ms, ask_after, dead_after)
    }

    /// Closes the connection; nothing is sent any more.
    pub fn close(&self) {
        locked(&self.outgoing).is_closed = true;
        self.wake.notify_one();
        self.control.shutdown();
    }

    // Takes everything that is to be sent; empty if there was nothing within `wait_max`. `None`: the connection is
    // closed.
    fn take_outgoing(&self, wait_max: Option<Duration>) -> Option<Vec<u8>> {
        let outgoing = locked(&self.outgoing);
        let waits = |outgoing: &mut Outgoing| outgoing.bytes == 0 && !outgoing.is_closed;
        let mut outgoing = match wait_max {
            None => self
                .wake
                .wait_while(outgoing, waits)
                .unwrap_or_else(PoisonError::into_inner),
            Some(time) => {
                let waited = self.wake.wait_timeout_while(outgoing, time, waits);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        if outgoing.is_closed {
            return None;
        }
        let mut together = Vec::with_capacity(outgoing.bytes);
        let outgoing = &mut *outgoing;
        for message in outgoing.urgent.drain(..).chain(outgoing.later.drain(..)) {
            together.extend_from_slice(&message);
        }
        outgoing.bytes = 0;
        Some(together)
    }

    /// Sends queued requests until the connection is closed, and pings behind an unanswered request. If one small
    /// packet is lost with nothing behind it, TCP waits 200 ms or more before it retransmits. With data behind it, TCP
    /// detects the loss at once (RFC 8985). The answer to the ping does the same for a lost answer.
    pub fn write(&self, mut writer: LinkWriter, network: &Network) {
        let mut questions = QUESTIONS_MAX;
        let awaits = || self.blocks_asked.load(Ordering::Relaxed) > 0;
        loop {
            let after = (2 * network.round_trip() + QUESTION_SPARE) * (1 << questions);
            let wait_max = (questions < QUESTIONS_MAX && awaits()).then_some(after);
            let Some(mut bytes) = self.take_outgoing(wait_max) else {
                return;
            };
            if !bytes.is_empty() {
                questions = 0;
            } else if awaits() {
                questions += 1;
                let id = network.id();
                Request::Ping { id }.encode(&mut bytes);
            }
            if writer.write_all(&bytes).is_err() {
                self.close();
                return;
            }
        }
    }
}

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
pub(super) struct Network {
    /// How to connect.
    pub link: LinkSettings,
    /// The device id, the same on all its connections.
    pub device: [u8; 16],
    connections: Mutex<Vec<Arc<Connection>>>,
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

impl Network {
    pub fn new(link: LinkSettings, device: [u8; 16], settings: &Settings) -> Self {
        Self {
            link,
            device,
            connections: Mutex::default(),
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
    }
}

#[cfg(test)]
mod tests {
    use super::super::settings::Publisher;
    use super::*;

    #[test]
    fn who_does_not_answer_is_asked_again_and_then_given_up() {
        let (ask_after, dead_after) = (5_000, 10_000);
        let mut silence = Silence::since(1);
        let mut look = |bytes, now_ms| silence.look(bytes, now_ms, ask_after, dead_after);
        assert_eq!(look(100, 500), Quiet::Wait, "something came");
        assert_eq!(look(100, 5_500), Quiet::Wait);
        assert_eq!(look(100, 5_501), Quiet::Ask);
        assert_eq!(look(100, 5_600), Quiet::Wait);
        assert_eq!(look(100, 10_502), Quiet::Ask, "the first may be lost");
        assert_eq!(look(100, 15_501), Quiet::Wait);
        // One byte of a message counts as an answer, too.
        let mut heard = silence;
        assert_eq!(heard.look(101, 15_502, ask_after, dead_after), Quiet::Wait);
        assert_eq!(heard.look(101, 20_502, ask_after, dead_after), Quiet::Wait);
        assert_eq!(heard.look(101, 20_503, ask_after, dead_after), Quiet::Ask);
        assert_eq!(
            silence.look(100, 15_502, ask_after, dead_after),
            Quiet::Dead
        );
    }

    #[test]
    fn a_burst_of_wrong_messages_is_one_reason_to_wait() {
        let mut settings = Settings::new("127.0.0.1:1", Publisher::FirstSeen);
        settings.quarantine = Duration::from_secs(10);
        let network = Network::new(Network::link_settings(&settings), [1; 16], &settings);
        let counts = Counts::default();
        let burst = |connection| {
            for _ in 0..100 {
                network.lied(&counts, Reason::Unrequested, connection);
            }
        };
        let pause = || locked(&network.lies).pause;
        // The first three messages close both connections.
        let connections = [(); 2].map(|()| network.numbers.fetch_add(1, Ordering::Relaxed));
        burst(Some(connections[0]));
        burst(Some(connections[1]));
        assert!(!network.left_alone().is_zero());
        assert!(network.left_alone() <= settings.quarantine);
        assert_eq!(pause(), 2 * settings.quarantine);
        assert_eq!(counts.snapshot().quarantines, 1);
        // A connection made later counts on its own.
        let next = network.numbers.fetch_add(1, Ordering::Relaxed);
        burst(Some(next));
        assert!(network.left_alone() <= 2 * settings.quarantine);
        assert_eq!(pause(), 4 * settings.quarantine);
        assert_eq!(counts.snapshot().quarantines, 2);
    }
}
