//! The Networker of SYSFLOW: connections that stay, which requests are spread over, and what each still has to answer.
//!
//! Each connection has a reader, which lives as long as the device and connects again, and a writer.

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

/// Bytes that wait to be sent on one connection, at most; what is more is not sent.
const OUTGOING_BYTES_MAX: usize = 1 << 20;

/// Requests of one connection whose answers are recognised, at most.
const ASKED_MAX: usize = 1024;

/// The first pause before connecting again, and the longest.
const RECONNECT_MIN: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_secs(1);

/// How long one attempt to connect may take.
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(3);

/// Questions behind a request that is not answered, and how much longer than two round trips the first of them waits;
/// each next one waits twice as long.
const QUESTIONS_MAX: u32 = 4;
const QUESTION_SPARE: Duration = Duration::from_millis(10);

/// A reader looks up so often, to see whether the device was stopped.
const READ_MAX: Duration = Duration::from_secs(1);

/// Wrong things after which a server is left alone, and right blocks after which they are forgotten.
const LIES_MAX: u32 = 3;
const GOOD_BLOCKS: u64 = 1024;

/// What is assumed until it was measured: 2 ms, 100 Mbit/s.
const ROUND_TRIP_US: u64 = 2_000;
const BANDWIDTH_BYTES_S: u64 = 12_500_000;

/// Bytes that a block takes on the wire, about: what zstd leaves of programs.
pub(super) const WIRE_BLOCK_BYTES: u64 = 1700;

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these guard is changed in single steps, so it is whole even behind a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What an answer belongs to.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    /// A block that somebody waits for, and so many behind it.
    Block {
        at: BlockAt,
        around: u32,
        token: Option<Token>,
        // The block itself has come: until then its neighbours may.
        answered_until: Option<Instant>,
    },
    /// Blocks of an aligned run that nobody waits for, a bit for each.
    Ahead { file: FileId, run: u32, mask: u32 },
    /// Blocks for the cache.
    Fetch(Arc<HashSet<BlockAt>>),
    /// What is known of a task: for the task itself, or for somebody who waits for it.
    Plan(Option<Token>),
    /// Whether anybody is there.
    Ping(Instant),
}

#[derive(Default)]
struct Outgoing {
    urgent: VecDeque<Vec<u8>>,
    later: VecDeque<Vec<u8>>,
    bytes: usize,
    is_closed: bool,
}

/// What is done about a connection on which nothing comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quiet {
    /// Nothing: something came, or not for long.
    Wait,
    /// It is to be asked whether anybody is there.
    Ask,
    /// Nobody has answered for too long.
    Dead,
}

/// Since when nothing came on a connection, by its bytes: a long message may take its time. Times are milliseconds of
/// the network's clock.
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

    // Asked again and again: who has given the connection up, and whose last words were lost, says so to whoever asks,
    // and one question may have come before that.
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
    /// Never used again.
    pub number: u64,
    pub control: LinkControl,
    outgoing: Mutex<Outgoing>,
    wake: Condvar,
    asked: Mutex<BTreeMap<u32, Asked>>,
    blocks_asked: AtomicUsize,
    /// Since when nothing came, and whether it was asked why.
    silence: Mutex<Silence>,
    /// The reader waits for room on the stage: that nothing is heard means nothing.
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

    /// Has a request sent, before those that nobody waits for; false: it is closed, or too much waits already.
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

    /// Notes what the answer with a number will belong to.
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

    /// What an answer with this number belongs to.
    pub fn asked(&self, id: u32) -> Option<Asked> {
        locked(&self.asked).get(&id).cloned()
    }

    /// Everything with this number has been answered.
    pub fn answered(&self, id: u32) -> Option<Asked> {
        let asked = locked(&self.asked).remove(&id)?;
        self.forgotten(&asked);
        Some(asked)
    }

    /// The block itself has come; its neighbours may follow for so long.
    pub fn block_came(&self, id: u32, neighbours_wait: Duration) {
        if let Some(Asked::Block { answered_until, .. }) = locked(&self.asked).get_mut(&id)
            && answered_until.is_none()
        {
            *answered_until = Some(Instant::now() + neighbours_wait);
            self.blocks_asked.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// How long a request that was sent before may still bring a block; None: there is no such request.
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

    /// Blocks that were asked for ahead and have not come.
    pub fn blocks_ahead(&self) -> u32 {
        let blocks = |asked: &Asked| match asked {
            Asked::Ahead { mask, .. } => mask.count_ones(),
            _ => 0,
        };
        locked(&self.asked).values().map(blocks).sum()
    }

    /// All that was asked and not answered.
    pub fn take_asked(&self) -> Vec<(u32, Asked)> {
        std::mem::take(&mut *locked(&self.asked))
            .into_iter()
            .collect()
    }

    /// What its silence asks for: a question after so many milliseconds without a byte, and again after as many without
    /// an answer; given up so long after the first one.
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

    /// Nothing is sent any more.
    pub fn close(&self) {
        locked(&self.outgoing).is_closed = true;
        self.wake.notify_one();
        self.control.shutdown();
    }

    // What is to be sent, all of it; nothing if there was nothing for so long. None: the connection is closed.
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

    /// Sends what is to be sent until the connection is closed, and questions behind a request that is not answered:
    /// where one small packet is lost with nothing behind it, TCP waits a fifth of a second and more before it sends it
    /// again; with something behind it, it sees at once that it is missing (RFC 8985). The answer to the question does
    /// the same for an answer that was lost.
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
    /// Connections with lower numbers were given up together: what more they say does not make the pause longer.
    given_up_below: u64,
}

/// All connections to the server.
pub(super) struct Network {
    /// How to connect.
    pub link: LinkSettings,
    /// The same for all connections of this device.
    pub device: [u8; 16],
    connections: Mutex<Vec<Arc<Connection>>>,
    numbers: AtomicU64,
    ids: AtomicU32,
    lies: Mutex<Lies>,
    quarantine: Duration,
    // Why there was no connection when one was tried last.
    failure: Mutex<Option<ServerFailure>>,
    // Whether somebody wants a connection and there is none: what those wait for that are made for each demand.
    pause: Mutex<bool>,
    wake: Condvar,
    is_stopped: AtomicBool,
    started: Instant,
    /// The server has sent neighbours of a block: one that predicts as SYSFLOW does sends none, and learns of what is
    /// asked for by itself.
    pub gives_neighbours: AtomicBool,
    /// Answers in a row without the neighbours that were asked for.
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

    /// The settings of its links, but for the server's name and identity.
    pub fn link_settings(settings: &Settings) -> LinkSettings {
        LinkSettings {
            server: settings.server.clone(),
            tls: None,
            connect_max: CONNECT_MAX.min(settings.deadline),
            read_max: Some(READ_MAX.min(settings.deadline / 3)),
            write_max: Some(settings.deadline / 3),
        }
    }

    /// Milliseconds since the start, never 0.
    pub fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64 + 1
    }

    /// A number for a request. Never 0.
    pub fn id(&self) -> u32 {
        loop {
            let id = self.ids.fetch_add(1, Ordering::Relaxed);
            if id != 0 {
                return id;
            }
        }
    }

    /// A connection is up.
    pub fn up(&self, control: LinkControl) -> Arc<Connection> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(Connection::new(number, control, self.now_ms()));
        locked(&self.connections).push(Arc::clone(&connection));
        *locked(&self.failure) = None;
        // Behind the lock nobody is between looking and waiting.
        drop(locked(&self.pause));
        self.wake.notify_all();
        if self.is_stopped() {
            connection.close();
        }
        connection
    }

    /// A connection has ended.
    pub fn down(&self, connection: &Connection) {
        connection.close();
        locked(&self.connections).retain(|other| other.number != connection.number);
        add(&self.sent_before, connection.control.sent_bytes());
        add(&self.received_before, connection.control.received_bytes());
    }

    /// There is no connection, for this reason.
    pub fn failed(&self, failure: ServerFailure) {
        *locked(&self.failure) = Some(failure);
    }

    /// Why there is none. None: there is one, or it is not known yet.
    pub fn failure(&self) -> Option<ServerFailure> {
        let failure = locked(&self.failure).clone();
        failure.filter(|_| locked(&self.connections).is_empty())
    }

    /// Those that are up.
    pub fn connections(&self) -> Vec<Arc<Connection>> {
        locked(&self.connections).clone()
    }

    /// One of them.
    pub fn connection(&self, number: u64) -> Option<Arc<Connection>> {
        let connections = locked(&self.connections);
        connections.iter().find(|c| c.number == number).cloned()
    }

    /// How long what was asked for on one of them may still bring a block: until it is answered (None inside), or so
    /// long. None: nothing brings it.
    pub fn brings(&self, at: BlockAt) -> Option<Option<Duration>> {
        let connections = locked(&self.connections);
        connections
            .iter()
            .find_map(|connection| connection.brings(at))
    }

    /// Blocks that were asked for ahead and have not come.
    pub fn blocks_ahead(&self) -> u64 {
        let connections = locked(&self.connections);
        let blocks = connections.iter().map(|c| u64::from(c.blocks_ahead()));
        blocks.sum()
    }

    /// How long the line takes for so many bytes.
    pub fn line_time(&self, bytes: u64) -> Duration {
        Duration::from_micros(bytes.saturating_mul(1_000_000) / self.bandwidth().max(1))
    }

    /// The one that has the fewest blocks to answer.
    pub fn idlest(&self) -> Option<Arc<Connection>> {
        let connections = locked(&self.connections);
        let load = |c: &&Arc<Connection>| c.blocks_asked.load(Ordering::Relaxed);
        connections.iter().min_by_key(load).cloned()
    }

    /// Bytes sent and received, with everything that is added to messages above TCP.
    pub fn bytes(&self) -> (u64, u64) {
        let connections = locked(&self.connections);
        let sum =
            |of: fn(&LinkControl) -> u64| connections.iter().map(|c| of(&c.control)).sum::<u64>();
        (
            self.sent_before.load(Ordering::Relaxed) + sum(LinkControl::sent_bytes),
            self.received_before.load(Ordering::Relaxed) + sum(LinkControl::received_bytes),
        )
    }

    /// Bytes of a connection that was never up.
    pub fn count_bytes(&self, control: &LinkControl) {
        add(&self.sent_before, control.sent_bytes());
        add(&self.received_before, control.received_bytes());
    }

    /// The shortest of the last round trips.
    pub fn round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip_us.load(Ordering::Relaxed))
    }

    /// A round trip took so long: taken at once if it is shorter, slowly if it is longer.
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

    /// Bytes in a second, as measured.
    pub fn bandwidth(&self) -> u64 {
        self.bandwidth_bytes_s.load(Ordering::Relaxed)
    }

    /// So many bytes came one behind the other in this time.
    pub fn came(&self, bytes: u64, time: Duration) {
        let now = (bytes as f64 / time.as_secs_f64().max(1e-6)) as u64;
        let before = self.bandwidth();
        let next = (3 * before + now) / 4;
        self.bandwidth_bytes_s.store(next.max(1), Ordering::Relaxed);
    }

    /// The server has sent something wrong, on a connection (None: in a greeting). After some of that it is left alone
    /// for a while, once for all connections there are: else a burst on one of them would make the pause the longest.
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
        // What a greeting had wrong has its own reason, which says more.
        if connection.is_some() {
            self.failed(ServerFailure::lied(reason.name()));
        }
        add(&counts.quarantines, 1);
        for connection in self.connections() {
            connection.close();
        }
    }

    /// So many blocks were right.
    pub fn was_right(&self, blocks: u64) {
        let mut lies = locked(&self.lies);
        lies.good_blocks += blocks;
        if lies.good_blocks >= GOOD_BLOCKS {
            lies.count = 0;
            lies.pause = self.quarantine;
        }
    }

    /// How long the server is still left alone.
    pub fn left_alone(&self) -> Duration {
        let until = locked(&self.lies).until;
        until.map_or(Duration::ZERO, |until| {
            until.saturating_duration_since(Instant::now())
        })
    }

    /// The pause behind one of this length, before connecting again.
    pub fn next_pause(pause: Duration) -> Duration {
        (2 * pause).clamp(RECONNECT_MIN, RECONNECT_MAX)
    }

    /// Waits so long, or until the device is stopped.
    pub fn pause(&self, time: Duration) {
        self.wait_while(time, || true);
    }

    /// Waits so long for a connection that is up.
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

    /// Somebody wants a connection, and there is none.
    pub fn want(&self) {
        *locked(&self.pause) = true;
        self.wake.notify_all();
    }

    /// Waits until somebody wants a connection, or the device is stopped.
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

    /// Ends all connections; none is made any more.
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
        // One byte of a message is a word, too.
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
        // Both of these connections are given up for the first three messages.
        let connections = [(); 2].map(|()| network.numbers.fetch_add(1, Ordering::Relaxed));
        burst(Some(connections[0]));
        burst(Some(connections[1]));
        assert!(!network.left_alone().is_zero());
        assert!(network.left_alone() <= settings.quarantine);
        assert_eq!(pause(), 2 * settings.quarantine);
        assert_eq!(counts.snapshot().quarantines, 1);
        // The next connection is another matter.
        let next = network.numbers.fetch_add(1, Ordering::Relaxed);
        burst(Some(next));
        assert!(network.left_alone() <= 2 * settings.quarantine);
        assert_eq!(pause(), 4 * settings.quarantine);
        assert_eq!(counts.snapshot().quarantines, 2);
    }
}
