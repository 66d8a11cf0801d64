//! One connection: what is to be sent, which requests await an answer, and how long it is silent.

use crate::block::{BlockAt, FileId, SEGMENT_BLOCKS, Token};
use crate::link::LinkControl;
use crate::sync::locked;
use crate::wire::Request;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The maximum number of bytes that wait to be sent on one connection; further requests are not sent.
const OUTGOING_BYTES_MAX: usize = 1 << 20;

/// The maximum number of outstanding requests of one connection whose answers are recognised.
const IN_FLIGHT_MAX: usize = 1024;

/// A request that awaits an answer.
#[derive(Clone, Debug)]
pub(crate) enum InFlight {
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
pub(crate) enum Quiet {
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
pub(crate) struct Connection {
    /// Unique: never reused.
    pub number: u64,
    pub control: LinkControl,
    outgoing: Mutex<Outgoing>,
    wake: Condvar,
    in_flight: Mutex<BTreeMap<u32, InFlight>>,
    pub(super) blocks_asked: AtomicUsize,
    /// How long the connection is silent, and which pings were sent.
    silence: Mutex<Silence>,
    /// The reader thread waits for room in the buffer, so silence means nothing.
    pub is_placing: AtomicBool,
}

impl Connection {
    pub(super) fn new(number: u64, control: LinkControl, now_ms: u64) -> Self {
        Self {
            number,
            control,
            outgoing: Mutex::default(),
            wake: Condvar::new(),
            in_flight: Mutex::default(),
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
    pub fn expect(&self, id: u32, what: InFlight) {
        let mut asked = locked(&self.in_flight);
        if matches!(what, InFlight::Block { .. }) {
            self.blocks_asked.fetch_add(1, Ordering::Relaxed);
        }
        asked.insert(id, what);
        while asked.len() > IN_FLIGHT_MAX {
            if let Some((_, old)) = asked.pop_first() {
                self.forgotten(&old);
            }
        }
    }

    fn forgotten(&self, asked: &InFlight) {
        if matches!(
            asked,
            InFlight::Block {
                answered_until: None,
                ..
            }
        ) {
            self.blocks_asked.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns what an answer with this id belongs to.
    pub fn in_flight(&self, id: u32) -> Option<InFlight> {
        locked(&self.in_flight).get(&id).cloned()
    }

    /// Marks the request with this id as completely answered.
    pub fn answered(&self, id: u32) -> Option<InFlight> {
        let asked = locked(&self.in_flight).remove(&id)?;
        self.forgotten(&asked);
        Some(asked)
    }

    /// Records that the block itself has arrived; its neighbours may follow within `neighbours_wait`.
    pub fn block_came(&self, id: u32, neighbours_wait: Duration) {
        if let Some(InFlight::Block { answered_until, .. }) = locked(&self.in_flight).get_mut(&id)
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
        let covers = |asked: &InFlight| match asked {
            InFlight::Block {
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
            InFlight::Ahead { file, run, mask } => {
                let is_it = *file == wanted.file
                    && *run == wanted.index / SEGMENT_BLOCKS
                    && mask >> (wanted.index % SEGMENT_BLOCKS) & 1 == 1;
                is_it.then_some(None)
            }
            _ => None,
        };
        locked(&self.in_flight).values().find_map(covers)
    }

    /// The number of blocks that were requested ahead and have not arrived.
    pub fn blocks_ahead(&self) -> u32 {
        let blocks = |asked: &InFlight| match asked {
            InFlight::Ahead { mask, .. } => mask.count_ones(),
            _ => 0,
        };
        locked(&self.in_flight).values().map(blocks).sum()
    }

    /// Removes and returns all outstanding requests.
    pub fn take_in_flight(&self) -> Vec<(u32, InFlight)> {
        std::mem::take(&mut *locked(&self.in_flight))
            .into_iter()
            .collect()
    }

    /// Returns what the connection's silence requires. It is a ping after `ask_after` ms without a byte, and again
    /// after each `ask_after` ms without an answer. The connection is dead `dead_after` ms after the first ping.
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

    /// Takes everything that is to be sent; empty if there was nothing within `wait_max`. `None`: the connection is
    /// closed.
    pub(super) fn take_outgoing(&self, wait_max: Option<Duration>) -> Option<Vec<u8>> {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_peer_is_pinged_again_and_then_given_up() {
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
}
