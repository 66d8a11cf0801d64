//! Upstreams: what they receive from the node, and the links to them.
//!
//! Engine, cursor and the reading of the log are the node's (`egress::forward::Forwarder`); the link stands for the
//! sockets. An upstream outlives the node: it explains each reading that comes again by the judge's own record.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use base::sim::{Random, SimClock};
use db::{Database, Time};
use egress::forward::{Forwarder, UpstreamOptions};
use flash::Store;
use ingest::line::{FieldValue, parse};

use crate::check::Found;
use crate::device::Device;
use crate::event::{Event, Queue};
use crate::invariant::{Broken, Invariant};
use crate::ledger::Ledger;
use crate::logged::Logged;
use crate::sensors::Feed;

mod draw;

use draw::Kind;
pub(crate) use draw::UpstreamDraw;

/// Time between two looks at what retention has deleted, as in a node.
const LOOK_NS: u64 = 5_000_000_000;
/// Shortest time between two turns of one upstream.
const TURN_NS: u64 = 100_000;
/// Longest time from the break of a link until the node notices it.
const NOTICED_NS_MAX: u64 = 2_000_000_000;
/// Longest time until a connection is there again.
const OUTAGE_NS_MAX: u64 = 4_000_000_000;
/// One answer in this many comes twice, and one in this many is followed by an answer to nothing.
const TWICE_ONE_IN: u64 = 30;
/// A token that is never given out in a run.
const TOKEN_UNKNOWN: u64 = 1 << 60;

/// Why forwarding to an upstream has ended early.
#[derive(Debug)]
pub(crate) enum UpstreamFault {
    /// The node says so; without power it must.
    Failed(egress::Error),
    /// An invariant does not hold.
    Broken(Broken),
}

impl UpstreamFault {
    /// Returns the broken invariant; `invariant` if the node itself has failed.
    pub(crate) fn into_broken(self, invariant: Invariant) -> Broken {
        match self {
            Self::Failed(error) => Broken::new(invariant, error.to_string()),
            Self::Broken(broken) => broken,
        }
    }
}

impl From<egress::Error> for UpstreamFault {
    fn from(error: egress::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Broken> for UpstreamFault {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

/// What was offered to the node, and the time.
#[derive(Clone, Copy)]
pub(crate) struct World<'a, 's> {
    pub(crate) feed: &'a Feed<'s>,
    pub(crate) ledger: &'a Ledger,
    pub(crate) now_ns: u64,
}

/// A message or request that was sent.
struct Message {
    token: u64,
    readings: Vec<u64>,
    /// Whether the upstream has taken its readings.
    has_arrived: bool,
    /// Whether its answer is that the upstream does not take it.
    is_refused: bool,
    is_answered: bool,
}

/// The link to an upstream in one life of the node.
pub(crate) struct Link {
    forwarder: Forwarder<Device>,
    hold: bool,
    is_up: bool,
    /// Number of the connection; what comes over an earlier one is void.
    connection: u64,
    /// When the next connection can be made.
    up_at_ns: u64,
    /// The node has not noticed yet that nothing arrives any more.
    is_broken: bool,
    turn_at_ns: Option<u64>,
    looked_at_ns: u64,
    /// What was sent over this connection and is not answered, or something before it is not.
    sent: VecDeque<Message>,
    /// Number of readings in `sent`.
    sent_readings: u64,
    /// Readings answered, with all before them, since the cursor was written.
    unwritten: Vec<u64>,
}

impl Link {
    /// Whether this is the time of the next turn.
    pub(crate) fn begin_turn(&mut self, now_ns: u64) -> bool {
        let is_due = self.turn_at_ns == Some(now_ns);
        if is_due {
            self.turn_at_ns = None;
        }
        is_due
    }

    /// Has forwarding run at this time; an earlier time that was wanted stays.
    pub(crate) fn want_turn(&mut self, queue: &mut Queue, upstream: usize, at_ns: u64) {
        if self.turn_at_ns.is_none_or(|wanted_ns| at_ns < wanted_ns) {
            self.turn_at_ns = Some(at_ns);
            queue.push(at_ns, Event::Forward { upstream });
        }
    }

    /// Returns the number from which on the log is kept for this upstream, if it is.
    pub(crate) fn held_from(&self) -> Option<u64> {
        self.hold.then(|| self.forwarder.engine.oldest_held())
    }

    /// Whether all of the log has been answered.
    pub(crate) fn is_drained(&self) -> bool {
        let end = self.forwarder.durable_end();
        self.sent.is_empty() && self.forwarder.engine.backlog(end) == 0
    }

    /// Describes what decides about the next unit.
    pub(crate) fn explain(&self) -> String {
        self.forwarder.engine.explain()
    }

    fn unanswered(&self) -> usize {
        let messages = self.sent.iter();
        messages.filter(|message| !message.is_answered).count()
    }

    fn write_cursor_if_due(&mut self) -> Result<(), egress::Error> {
        if self.forwarder.write_cursor_if_due(false)? {
            self.unwritten.clear();
        }
        Ok(())
    }

    /// Moves on over what is answered without a gap.
    fn pass_answered(&mut self) {
        while self.sent.front().is_some_and(|first| first.is_answered)
            && let Some(message) = self.sent.pop_front()
        {
            self.sent_readings -= message.readings.len() as u64;
            self.unwritten.extend(message.readings);
        }
    }

    fn connect(&mut self) {
        self.connection += 1;
        self.is_up = true;
        self.is_broken = false;
        let durable_end = self.forwarder.durable_end();
        self.forwarder.engine.connected(durable_end);
    }
}

/// An upstream, over all lives of the node.
pub(crate) struct Upstream {
    index: usize,
    draw: UpstreamDraw,
    options: UpstreamOptions,
    random: Random,
    /// How often each reading has arrived.
    arrived: Vec<u8>,
    /// How often each reading arrived and may come once more: its connection was lost, or the node crashed before the
    /// cursor was written.
    doubted: Vec<u8>,
    refused: BTreeSet<u64>,
    /// Of each sensor, the last reading that arrived for the first time.
    last: Vec<Option<u64>>,
    received: u64,
    again: u64,
    /// Readings that the last life has counted as deleted, or as hidden by damage, before they were sent.
    gone: u64,
}

fn count_up(counts: &mut Vec<u8>, number: u64) -> u64 {
    let place = number as usize;
    if counts.len() <= place {
        counts.resize(place + 1, 0);
    }
    counts[place] = counts[place].saturating_add(1);
    u64::from(counts[place])
}

fn count_of(counts: &[u8], number: u64) -> u64 {
    counts.get(number as usize).copied().map_or(0, u64::from)
}

impl Upstream {
    pub(crate) fn new(index: usize, draw: UpstreamDraw, feed: &Feed<'_>, random: Random) -> Self {
        Self {
            index,
            options: draw.options(index),
            draw,
            random,
            arrived: Vec::new(),
            doubted: Vec::new(),
            refused: BTreeSet::new(),
            last: vec![None; feed.sensors().count()],
            received: 0,
            again: 0,
            gone: 0,
        }
    }

    /// Returns how many readings have arrived, and how many of them had arrived before.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.received, self.again)
    }

    /// Finds the cursor. Must be called before readings are taken.
    ///
    /// # Errors
    /// What the node says; I12 if the cursor is not usable.
    pub(crate) fn open(
        &self,
        database: &Arc<Database<Store<Device>>>,
        clock: &SimClock,
        now_ns: u64,
    ) -> Result<Link, UpstreamFault> {
        let clock = Arc::new(clock.clone());
        let forwarder = Forwarder::open(Arc::clone(database), clock, self.options.clone())?;
        if forwarder.was_lost() {
            return Err(broken(self.index, "its cursor is not usable".to_owned()).into());
        }
        Ok(Link {
            forwarder,
            hold: self.draw.hold,
            is_up: false,
            connection: 0,
            up_at_ns: now_ns,
            is_broken: false,
            turn_at_ns: None,
            looked_at_ns: now_ns,
            sent: VecDeque::new(),
            sent_readings: 0,
            unwritten: Vec::new(),
        })
    }

    /// Does what forwarding does between two waits. Returns the number of messages that were sent.
    ///
    /// # Errors
    /// What the node says; I2, I3, I4, I5 or I12.
    pub(crate) fn turn(
        &mut self,
        link: &mut Link,
        world: World<'_, '_>,
        queue: &mut Queue,
    ) -> Result<u64, UpstreamFault> {
        let now_ns = world.now_ns;
        if now_ns - link.looked_at_ns >= LOOK_NS {
            link.looked_at_ns = now_ns;
            link.forwarder.look()?;
        }
        if !link.is_up {
            if now_ns < link.up_at_ns {
                link.write_cursor_if_due()?;
                let again_ns = now_ns + self.draw.poll_ns.max(TURN_NS);
                link.want_turn(queue, self.index, again_ns.min(link.up_at_ns));
                return Ok(0);
            }
            link.connect();
        }
        let more = link.forwarder.pull()?;
        let now_ms = link.forwarder.now_ms();
        let linger_ms = link.forwarder.engine.close_due(now_ms).unwrap_or(u64::MAX);
        let sent = self.fill(link, world, queue)?;
        let linger_ns = linger_ms.saturating_mul(1_000_000);
        let wait_ns = match more {
            true => TURN_NS,
            false => self.draw.poll_ns.min(linger_ns).max(TURN_NS),
        };
        link.want_turn(queue, self.index, now_ns + wait_ns);
        Ok(sent)
    }

    /// Sends what may be sent.
    fn fill(
        &mut self,
        link: &mut Link,
        world: World<'_, '_>,
        queue: &mut Queue,
    ) -> Result<u64, UpstreamFault> {
        let mut sent = 0;
        while link.unanswered() < self.draw.unanswered_max {
            link.write_cursor_if_due()?;
            let Some(unit) = link.forwarder.engine.send() else {
                break;
            };
            let (token, count) = (unit.token, unit.readings);
            let readings = self.read(world, unit.topic, unit.payload)?;
            if readings.len() != count as usize {
                let found = format!("a unit of {count} readings holds {}", readings.len());
                return Err(broken(self.index, found).into());
            }
            sent += 1;
            let message = self.carry(link, world, queue, token, readings)?;
            link.sent_readings += message.readings.len() as u64;
            link.sent.push_back(message);
            let beyond = link.sent_readings + link.unwritten.len() as u64;
            let window = self.draw.window;
            if beyond > u64::from(window) {
                let index = self.index;
                let found = format!(
                    "upstream {index}: {beyond} readings are sent beyond the durable cursor, with a window of {window}"
                );
                return Err(Broken::new(Invariant::Bounds, found).into());
            }
        }
        Ok(sent)
    }

    /// Reads a message as its receiver does. Returns the numbers of its readings.
    fn read(&self, world: World<'_, '_>, topic: &[u8], payload: &[u8]) -> Result<Vec<u64>, Broken> {
        let altered = |why: &str| {
            let text = String::from_utf8_lossy(payload);
            let found = format!("upstream {}: {why}: {text:?}", self.index);
            Broken::new(Invariant::NothingAltered, found)
        };
        let text = std::str::from_utf8(payload).map_err(|_| altered("no text"))?;
        let mut readings = Vec::new();
        for line in text.lines() {
            let line = parse(line).map_err(|_| altered("no line"))?;
            let mut key = String::new();
            if let Some(tag) = line.tag("key") {
                tag.push_to(&mut key);
            }
            let Some((_, FieldValue::Float(value))) = line.fields().next() else {
                return Err(altered("no number"));
            };
            let time = line.time().ok_or_else(|| altered("no time"))?;
            let is_its_topic = match self.draw.kind {
                Kind::Messages => topic.strip_prefix(b"t/") == Some(key.as_bytes()),
                Kind::Batches => topic == b"all",
                Kind::Posts => topic.is_empty(),
            };
            if !is_its_topic {
                return Err(altered("another topic"));
            }
            let logged = Logged {
                sensor: world.feed.sensor_of(&key),
                time: Time::from_ns(time),
                value: &value.to_le_bytes(),
            };
            readings.push(logged.number(world.feed, world.ledger)?);
        }
        Ok(readings)
    }

    /// Carries a message over the link, and lets the answer come.
    fn carry(
        &mut self,
        link: &mut Link,
        world: World<'_, '_>,
        queue: &mut Queue,
        token: u64,
        readings: Vec<u64>,
    ) -> Result<Message, Broken> {
        let (upstream, connection) = (self.index, link.connection);
        let (breaks_one_in, mut arrives) = (self.draw.breaks_one_in, !link.is_broken);
        if arrives && breaks_one_in > 0 && self.random.below(breaks_one_in) == 0 {
            // The message may be the last one that arrives. Neither side hears of it.
            link.is_broken = true;
            arrives = self.random.coin();
            let at_ns = world.now_ns + self.random.below(NOTICED_NS_MAX);
            let lost = Event::Lost {
                upstream,
                connection,
            };
            queue.push(at_ns, lost);
        }
        let is_refused = readings.iter().any(|number| self.draw.refuses(*number));
        let has_arrived = arrives && !is_refused;
        if has_arrived {
            self.receive(world, &readings)?;
        }
        if arrives && is_refused && readings.len() == 1 {
            self.refused.extend(&readings);
        }
        if !link.is_broken {
            let answer_ns_max = self.draw.answer_ns_max;
            let mut answer = |random: &mut Random, token: u64| {
                let at_ns = world.now_ns + random.below(answer_ns_max + 1);
                let answer = Event::Answer {
                    upstream,
                    connection,
                    token,
                };
                queue.push(at_ns, answer);
            };
            answer(&mut self.random, token);
            // A server answers a request once.
            let is_broker = self.draw.kind != Kind::Posts;
            if is_broker && self.random.below(TWICE_ONE_IN) == 0 {
                answer(&mut self.random, token);
            }
            if is_broker && self.random.below(TWICE_ONE_IN) == 0 {
                answer(&mut self.random, token + TOKEN_UNKNOWN);
            }
        }
        Ok(Message {
            token,
            readings,
            has_arrived,
            is_refused,
            is_answered: false,
        })
    }

    fn receive(&mut self, world: World<'_, '_>, readings: &[u64]) -> Result<(), Broken> {
        for number in readings.iter().copied() {
            self.received += 1;
            let times = count_up(&mut self.arrived, number);
            // The log has a reading as often as it was taken, at most.
            let taken = u64::from(world.ledger.times_taken(number));
            let explained = taken + count_of(&self.doubted, number);
            if times > explained {
                let found =
                    format!("reading {number} has come {times} times, {explained} are explained");
                return Err(broken(self.index, found));
            }
            if times > 1 {
                self.again += 1;
                continue;
            }
            if !self.draw.keeps_order() {
                continue;
            }
            let last = &mut self.last[usize::from(world.feed.sensor(number))];
            if let Some(before) = *last
                && before >= number
            {
                let index = self.index;
                let found = format!("upstream {index}: reading {number} comes after {before}");
                return Err(Broken::new(Invariant::Order, found));
            }
            *last = Some(number);
        }
        Ok(())
    }

    /// The node gets an answer. Returns whether it was one to a message of this connection.
    ///
    /// # Errors
    /// I12.
    pub(crate) fn answer(
        &mut self,
        link: &mut Link,
        connection: u64,
        token: u64,
    ) -> Result<bool, Broken> {
        if !link.is_up || link.connection != connection {
            return Ok(false);
        }
        let engine = &mut link.forwarder.engine;
        let mut messages = link.sent.iter_mut();
        let Some(message) = messages.find(|message| message.token == token && !message.is_answered)
        else {
            return match engine.acknowledge(token) {
                false => Ok(false),
                true => {
                    let found = format!("the second answer to unit {token} counts for another");
                    Err(broken(self.index, found))
                }
            };
        };
        if message.is_refused && message.readings.len() > 1 {
            engine.split(token);
            self.take_back(link);
            // A new connection, because answers of this one may still come.
            link.connect();
            return Ok(true);
        }
        message.is_answered = true;
        let is_due = match message.is_refused {
            true => engine.refuse(token),
            false => engine.acknowledge(token),
        };
        if !is_due {
            let found = format!("the answer to unit {token} counts for nothing");
            return Err(broken(self.index, found));
        }
        link.pass_answered();
        Ok(true)
    }

    /// The node notices that a connection is lost. Returns whether it was this one.
    pub(crate) fn lose(
        &mut self,
        link: &mut Link,
        connection: u64,
        now_ns: u64,
        queue: &mut Queue,
    ) -> bool {
        if !link.is_up || link.connection != connection {
            return false;
        }
        link.forwarder.engine.go_back();
        self.take_back(link);
        link.is_up = false;
        link.up_at_ns = now_ns + self.random.below(OUTAGE_NS_MAX);
        link.want_turn(queue, self.index, now_ns);
        true
    }

    /// What was sent over the connection will be sent again, and may arrive again.
    fn take_back(&mut self, link: &mut Link) {
        for message in link.sent.drain(..) {
            if message.has_arrived {
                self.doubt(&message.readings);
            }
        }
        link.sent_readings = 0;
    }

    fn doubt(&mut self, readings: &[u64]) {
        for number in readings {
            count_up(&mut self.doubted, *number);
        }
    }

    /// The node has crashed: what is beyond the durable cursor may come again. That is a window at most, by I5.
    pub(crate) fn crashed(&mut self, mut link: Link) {
        self.take_back(&mut link);
        self.doubt(&link.unwritten);
    }

    /// The node stops: with `waits`, answers that are on their way still count. Then nothing of it comes again.
    ///
    /// # Errors
    /// What the node says; I12.
    pub(crate) fn stop(&mut self, link: &mut Link, waits: bool) -> Result<(), UpstreamFault> {
        let (is_up, connection) = (link.is_up && waits, link.connection);
        let messages = link.sent.iter();
        let due = |message: &&Message| message.has_arrived && !message.is_answered;
        let tokens: Vec<u64> = messages.filter(due).map(|message| message.token).collect();
        // Over a broken link, the last answers do not come.
        if is_up && !link.is_broken {
            for token in tokens {
                self.answer(link, connection, token)?;
            }
        }
        link.forwarder.engine.go_back();
        self.take_back(link);
        link.forwarder.write_cursor(true)?;
        link.unwritten.clear();
        let counters = link.forwarder.engine.counters();
        self.gone = counters.lost + counters.missing;
        if self.draw.hold && self.gone > 0 {
            let found = format!("{} readings that it holds are deleted", self.gone);
            return Err(broken(self.index, found).into());
        }
        Ok(())
    }

    /// Checks that everything acknowledged, and everything else that the log has, has arrived. Only readings that are
    /// deleted by the judge's own record may be missing: their numbers in the log are below `gone_end`. The node must
    /// count them.
    ///
    /// # Errors
    /// I12.
    pub(crate) fn complete(
        &self,
        ledger: &Ledger,
        logged: &Found,
        gone_end: u64,
    ) -> Result<(), Broken> {
        let gone = self.gone;
        if gone_end == 0 && gone > 0 {
            let found = format!("{gone} readings are counted as gone, and none is deleted");
            return Err(broken(self.index, found));
        }
        let is_missing = |number: &u64| {
            let is_wanted = ledger.is_acknowledged(*number) || logged.has(*number);
            is_wanted && count_of(&self.arrived, *number) == 0 && !self.refused.contains(number)
        };
        let missing: Vec<u64> = (0..ledger.end()).filter(is_missing).collect();
        let mut kept = missing.iter();
        if let Some(kept) = kept.find(|number| !ledger.is_deleted(**number, gone_end)) {
            let found = format!("reading {kept} never came, and it is not deleted");
            return Err(broken(self.index, found));
        }
        let count = missing.len() as u64;
        if let Some(first) = missing.first()
            && count > gone
        {
            let found = format!(
                "reading {first} never came; {count} did not, and {gone} are counted as gone"
            );
            return Err(broken(self.index, found));
        }
        Ok(())
    }
}

fn broken(upstream: usize, found: String) -> Broken {
    Broken::new(
        Invariant::Forwarded,
        format!("upstream {upstream}: {found}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sensors::Sensors;
    use egress::forward::Order;

    /// What an upstream says of arrivals, readings that come again and readings that never come.
    #[test]
    fn an_upstream_with_an_unexplained_copy_or_a_missing_reading_breaks_i12() {
        let sensors = Sensors::read(1_000).expect("the bundled trace");
        let feed = Feed::new(&sensors, 1, 1);
        let mut ledger = Ledger::default();
        let draw = UpstreamDraw {
            order: Order::OldestFirst,
            ..UpstreamDraw::one(&mut Random::new(1), true)
        };
        let mut upstream = Upstream::new(0, draw, &feed, Random::new(1));
        let first = 10;
        let sensor = feed.sensor(first);
        let later = (first + 1..).find(|number| feed.sensor(*number) == sensor);
        let later = later.expect("each sensor has many readings");
        for number in [first, later, 11] {
            ledger.take(number);
            ledger.acknowledge(number);
        }
        let receive = |upstream: &mut Upstream, number| {
            let world = World {
                feed: &feed,
                ledger: &ledger,
                now_ns: 0,
            };
            let received = upstream.receive(world, &[number]);
            received.err().map(|broken| broken.invariant)
        };
        assert_eq!(receive(&mut upstream, later), None);
        assert_eq!(receive(&mut upstream, first), Some(Invariant::Order));
        assert_eq!(
            receive(&mut upstream, later),
            Some(Invariant::Forwarded),
            "nothing explains that it comes again"
        );
        upstream.doubt(&[later, later]);
        assert_eq!(receive(&mut upstream, later), None);
        assert_eq!(
            receive(&mut upstream, later),
            Some(Invariant::Forwarded),
            "two doubts, and the third time again"
        );
        let logged = Found::new(&feed);
        let complete = |upstream: &Upstream, ledger: &Ledger, gone_end| {
            let completed = upstream.complete(ledger, &logged, gone_end);
            completed.map_err(|broken| broken.to_string())
        };
        let lost = complete(&upstream, &ledger, 0).expect_err("11 is lost");
        assert!(lost.starts_with("I12 (") && lost.contains("reading 11 "));
        ledger.place(11, 7);
        let lost = complete(&upstream, &ledger, 8).expect_err("11 is deleted and not counted");
        assert!(lost.contains("reading 11 "), "{lost}");
        upstream.gone = 1;
        assert_eq!(complete(&upstream, &ledger, 8), Ok(()));
        let skipped = complete(&upstream, &ledger, 7).expect_err("the log has 11");
        assert!(skipped.contains("it is not deleted"), "{skipped}");
        let counted = complete(&upstream, &ledger, 0).expect_err("nothing is deleted");
        assert!(counted.contains("none is deleted"), "{counted}");
        upstream.gone = 0;
        upstream.refused.insert(11);
        assert_eq!(complete(&upstream, &ledger, 7), Ok(()));
    }
}
