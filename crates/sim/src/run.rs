//! One seed: the lives of a node, event by event, on one device.

use std::collections::VecDeque;
use std::sync::Arc;

use base::sim::{Random, SimClock, SimDevice};
use db::LogCursor;
use flash::{FormatOptions, Store};
use ingest::intake::{LineOutcome, LineProgress};

use crate::check::{self, Broken, Found, Invariant, Logged};
use crate::device::Device;
use crate::draw::{Draw, End, PlannedEnd, READING_LOG_BYTES_MAX};
use crate::event::{Event, Queue};
use crate::ledger::Ledger;
use crate::node::Node;
use crate::report::{Failure, Figures, Step, Trail};
use crate::sensors::{BEGIN_MS, Feed, Sensors};

const SECOND_NS: u64 = 1_000_000_000;
const MS_NS: u64 = 1_000_000;
/// Longest time between two lives.
const DOWN_NS_MAX: u64 = 3 * SECOND_NS;
/// Longest time from the first request of a start to its last one.
const READY_NS_MAX: u64 = 2 * SECOND_NS;
/// Longest time without a reading that is taken or acknowledged, while some are left. A node that is slow, but works,
/// needs less than a hundredth of it.
const STUCK_NS: u64 = 1_000 * SECOND_NS;
/// Log bytes of a commit beside its readings.
const COMMIT_LOG_BYTES: u64 = 4_096;
/// Readings that one step of the follower passes on.
const FOLLOWED_MAX: usize = 1_000;
/// Steps of upkeep in a second, and rounds of a stop: more have no end.
const STEPS_MAX: u32 = 10_000;
/// Files of a store. Few, so that they share few blocks of the name table.
const FILES_MAX: u64 = 64;

/// What a run is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// Readings that the sensors offer.
    pub(crate) readings: u64,
    /// The device acknowledges flushes and does nothing. A run must then fail.
    pub(crate) ignores_flushes: bool,
    /// Whether each step is printed.
    pub(crate) prints: bool,
}

/// A sender of lines, over all lives of the node.
struct Source {
    /// The reading that it offers next.
    next: u64,
    /// Readings that were taken and are not acknowledged: the end of the log that they wait for, and their number.
    pending: VecDeque<(u64, u64)>,
    progress: LineProgress,
    /// Its window is full, so an acknowledgement makes it go on.
    waits: bool,
}

struct Run<'s> {
    feed: Feed<'s>,
    setup: Setup,
    draw: Draw,
    random: Random,
    clock: SimClock,
    /// Virtual time since the run began.
    now_ns: u64,
    ledger: Ledger,
    sources: Vec<Source>,
    /// What the follower has found, over all lives.
    followed: Found,
    /// Its place in the log.
    followed_end: u64,
    /// Readings numbered below this were seen to be durable.
    durable_end: u64,
    /// The number after the last reading that was offered.
    offered_end: u64,
    /// When a reading was taken or acknowledged last.
    moved_ns: u64,
    /// Most readings that one commit had to take.
    commit_readings_max: u64,
    /// Most bytes that a checkpoint could take so far.
    table_bytes_max: u64,
    /// Whether the last life was stopped.
    was_stopped: bool,
    life: usize,
    trail: Trail,
    line: String,
    figures: Figures,
}

/// What one life has beside the run.
struct Life {
    node: Node,
    device: Device,
    queue: Queue,
    planned: Option<PlannedEnd>,
    is_set_off: bool,
    stops: bool,
    cursor: LogCursor,
    /// The commit side is busy until then.
    free_ns: u64,
    commit_at_ns: Option<u64>,
    /// Readings taken since the last commit.
    waiting: u64,
    checkpoint_unfinished: bool,
}

/// Runs one seed.
///
/// # Errors
/// The first invariant that did not hold.
pub(crate) fn run(sensors: &Sensors, seed: u64, setup: Setup) -> Result<Figures, Box<Failure>> {
    let mut run = Run::new(sensors, seed, setup);
    let ended = run.lives();
    let (acknowledged, refused) = run.ledger.counts();
    let figures = Figures {
        readings: run.offered_end,
        acknowledged,
        again: run.followed.again(),
        refused,
        virtual_ns: run.now_ns,
        hash: run.trail.hash(),
        ..run.figures
    };
    match ended {
        Ok(()) => Ok(figures),
        Err(broken) => Err(Box::new(Failure {
            broken,
            seed,
            life: run.life,
            last: run.trail.last(),
        })),
    }
}

impl<'s> Run<'s> {
    fn new(sensors: &'s Sensors, seed: u64, setup: Setup) -> Self {
        let mut random = Random::new(seed);
        let draw = Draw::new(&mut random, setup.readings);
        let feed = Feed::new(sensors, draw.speed, seed);
        let clock = SimClock::new(seed);
        clock.set_wall_ms(BEGIN_MS);
        clock.set_wall_trusted(random.coin());
        let mut run = Self {
            followed: Found::new(&feed),
            feed,
            setup,
            sources: Vec::new(),
            draw,
            random,
            clock,
            now_ns: 0,
            ledger: Ledger::default(),
            followed_end: 0,
            durable_end: 0,
            offered_end: 0,
            moved_ns: 0,
            commit_readings_max: 0,
            table_bytes_max: 0,
            was_stopped: false,
            life: 0,
            trail: Trail::new(setup.prints),
            line: String::new(),
            figures: Figures::default(),
        };
        for source in 0..run.draw.sources.len() {
            let next = run.next_of(source, 0);
            run.sources.push(Source {
                next,
                pending: VecDeque::new(),
                progress: LineProgress::default(),
                waits: false,
            });
        }
        run
    }

    /// Returns the first reading of a source from a number on.
    fn next_of(&self, source: usize, from: u64) -> u64 {
        let count = self.draw.sources.len();
        let is_its = |number: &u64| usize::from(self.feed.sensor(*number)) % count == source;
        (from..self.setup.readings)
            .find(is_its)
            .unwrap_or(self.setup.readings)
    }

    fn lives(&mut self) -> Result<(), Broken> {
        let mut device = self.formatted()?;
        loop {
            match self.one_life(device)? {
                Some(left) => device = left,
                None => return Ok(()),
            }
        }
    }

    fn formatted(&mut self) -> Result<SimDevice, Broken> {
        let fails = |error: flash::Error| Broken::new(Invariant::StartEnds, error.to_string());
        let mut options = FormatOptions {
            files_max: FILES_MAX,
            name_bytes_max: 64,
            uuid: [0; 16],
            hash_key: [0; 16],
        };
        self.random.fill(&mut options.uuid);
        self.random.fill(&mut options.hash_key);
        let inner = SimDevice::new(self.draw.device_blocks, self.random.next_u64());
        let device = Device::image(inner);
        let store = Store::format(device.clone(), &options).map_err(fails)?;
        store.close().map_err(fails)?;
        let mut inner = device.left_running();
        inner.set_ignore_flush(self.setup.ignores_flushes);
        Ok(inner)
    }

    /// Lets time pass.
    fn pass(&mut self, ns: u64) {
        self.now_ns += ns;
        self.clock.advance_ns(ns);
    }

    /// One life. Returns what it leaves; `None` after the last one.
    fn one_life(&mut self, left: SimDevice) -> Result<Option<SimDevice>, Broken> {
        let planned = self.draw.ends.get(self.life).copied();
        self.life += 1;
        let device = Device::new(left, self.draw.latency);
        let at_start = planned.filter(|planned| planned.at.is_none());
        if let Some(planned) = at_start {
            device.end_after_writes(planned.writes);
        }
        let random = self.random.fork();
        let node = match Node::start(&device, &self.clock, &self.draw, random) {
            Ok(node) => node,
            Err(_) if device.is_gone() => return self.crashed(&device, planned).map(Some),
            Err(error) => return Err(Broken::new(Invariant::StartEnds, error)),
        };
        let ready_ns = device.take_spent_ns();
        self.pass(ready_ns);
        self.check_start(&node, ready_ns)?;
        let mut life = Life {
            queue: Queue::new(self.random.fork()),
            cursor: LogCursor::new(self.followed_end),
            node,
            device,
            planned,
            is_set_off: at_start.is_some(),
            stops: false,
            free_ns: self.now_ns,
            commit_at_ns: None,
            waiting: 0,
            checkpoint_unfinished: false,
        };
        for source in 0..self.sources.len() {
            life.queue.push(self.now_ns, Event::Offer { source });
        }
        life.queue.push(self.now_ns + SECOND_NS, Event::Second);
        while !life.device.is_gone() && !life.stops {
            let Some((at_ns, event)) = life.queue.pop() else {
                let found = "nothing happens any more";
                return Err(Broken::new(Invariant::Taken, found));
            };
            self.pass(at_ns.saturating_sub(self.now_ns));
            match event {
                Event::Offer { source } => self.offer(&mut life, source)?,
                Event::Commit => self.commit(&mut life)?,
                Event::Announce { durable_end } => self.announce(&mut life, durable_end),
                Event::Second => self.second(&mut life)?,
            }
            self.set_off_end(&mut life);
        }
        if life.stops && !life.device.is_gone() {
            return self.stop(life);
        }
        self.note_table(&life.node);
        drop(life.node.database.abandon());
        self.crashed(&life.device, planned).map(Some)
    }

    /// Notes how large a checkpoint may be. A crash may leave fewer objects than there were.
    fn note_table(&mut self, node: &Node) {
        let table_bytes = node.database.stats().table_checkpoint_bytes;
        self.table_bytes_max = self.table_bytes_max.max(table_bytes);
    }

    /// Checks what a start has found, and how long it took.
    fn check_start(&mut self, node: &Node, ready_ns: u64) -> Result<(), Broken> {
        let recovery = node.database.recovery();
        let replayed_bytes = recovery.log_bytes_read;
        self.trail
            .note(self.now_ns, Step::Started { replayed_bytes });
        let broken = |found: String| Err(Broken::new(Invariant::StartEnds, found));
        if ready_ns > READY_NS_MAX {
            return broken(format!("it took {ready_ns} ns"));
        }
        // However many lives in a row have crashed before their first checkpoint was whole.
        self.note_table(node);
        let options = &self.draw.options;
        let interval = options.checkpoint_bytes.max(self.table_bytes_max);
        let commit = self.commit_readings_max * READING_LOG_BYTES_MAX + COMMIT_LOG_BYTES;
        let bound = 2 * interval + options.checkpoint_piece_bytes_max as u64 + 2 * commit;
        if replayed_bytes > bound {
            return broken(format!(
                "it read {replayed_bytes} bytes of log, more than {bound}"
            ));
        }
        if self.was_stopped && recovery.readings_replayed > 0 {
            let readings = recovery.readings_replayed;
            return broken(format!(
                "it replayed {readings} readings after a clean stop"
            ));
        }
        self.was_stopped = false;
        let durable_end = node.database.durable_end();
        if durable_end < self.durable_end {
            let before = self.durable_end;
            let found =
                format!("readings below {before} were durable, now those below {durable_end}");
            return Err(Broken::new(Invariant::NothingLost, found));
        }
        Ok(())
    }

    // ---- events ----

    /// Returns the next reading of a source if it is due and fits the window. Otherwise the source goes on later.
    fn next_due(&mut self, life: &mut Life, source: usize) -> Option<u64> {
        let draw = self.draw.sources[source];
        let state = &mut self.sources[source];
        let number = state.next;
        if number >= self.setup.readings {
            return None;
        }
        if draw.asks && state.pending.len() >= draw.window {
            state.waits = true;
            return None;
        }
        let due_ns = self.feed.due_ns(number);
        if due_ns > self.now_ns {
            let offer = Event::Offer { source };
            life.queue.push(due_ns + draw.burst_ns, offer);
            return None;
        }
        Some(number)
    }

    /// A source offers all that is due and fits its window.
    fn offer(&mut self, life: &mut Life, source: usize) -> Result<(), Broken> {
        let asks = self.draw.sources[source].asks;
        while let Some(number) = self.next_due(life, source) {
            self.feed.line(number, &mut self.line);
            self.offered_end = self.offered_end.max(number + 1);
            let state = &mut self.sources[source];
            let outcome = life.node.offer(source, &self.line, &mut state.progress);
            match outcome {
                LineOutcome::Done {
                    accepted: 1,
                    refused: 0,
                    shed: 0,
                    lsn_end,
                } if !self.feed.is_absurd(number) => {
                    self.ledger.take(number);
                    self.moved_ns = self.now_ns;
                    if asks {
                        state.pending.push_back((lsn_end, number));
                    }
                    life.waiting += 1;
                }
                LineOutcome::Done {
                    accepted: 0,
                    refused: 1,
                    shed: 0,
                    ..
                } if self.feed.is_absurd(number) => self.ledger.refuse(number),
                LineOutcome::Wait { full: false } => {
                    self.want_commit(life, self.now_ns);
                    life.queue
                        .push(self.now_ns + MS_NS, Event::Offer { source });
                    break;
                }
                // Without power, the sender gets no answer.
                LineOutcome::Failed if life.device.is_gone() => break,
                LineOutcome::Done { .. } | LineOutcome::Wait { .. } | LineOutcome::Failed => {
                    let found = format!("reading {number}: {outcome:?}");
                    return Err(Broken::new(Invariant::Taken, found));
                }
            }
            let next = self.next_of(source, number + 1);
            self.sources[source].next = next;
            self.plan_commit(life);
        }
        let next = self.sources[source].next;
        self.trail.note(self.now_ns, Step::Offered { source, next });
        Ok(())
    }

    /// Commits as the commit thread does: when the queue is half full, or after the interval.
    fn plan_commit(&self, life: &mut Life) {
        if life.waiting == 0 {
            return;
        }
        let options = &self.draw.options;
        // A reading takes 32 bytes of the queue.
        let is_pressed = life.waiting * 64 >= options.queue_bytes_max as u64;
        let wait_ns = match is_pressed {
            true => 0,
            false => u64::from(options.commit_interval_ms) * MS_NS,
        };
        self.want_commit(life, self.now_ns + wait_ns);
    }

    /// Has the commit side run at this time, or when it is free; an earlier time that was wanted stays.
    fn want_commit(&self, life: &mut Life, at_ns: u64) {
        let at_ns = at_ns.max(life.free_ns).max(self.now_ns);
        if life.commit_at_ns.is_none_or(|wanted_ns| at_ns < wanted_ns) {
            life.commit_at_ns = Some(at_ns);
            life.queue.push(at_ns, Event::Commit);
        }
    }

    fn commit(&mut self, life: &mut Life) -> Result<(), Broken> {
        // An event that an earlier one has replaced, or that comes while the device is busy.
        if life.commit_at_ns != Some(self.now_ns) {
            return Ok(());
        }
        life.commit_at_ns = None;
        let free_ns = life.free_ns;
        if self.now_ns < free_ns {
            self.want_commit(life, free_ns);
            return Ok(());
        }
        self.commit_readings_max = self.commit_readings_max.max(life.waiting);
        let pumped = life.node.database.pump();
        life.free_ns = self.now_ns + life.device.take_spent_ns();
        let durable_end = life.node.database.durable_end();
        self.check_moments(life)?;
        match pumped {
            Ok(checkpoint_unfinished) => {
                let readings = std::mem::take(&mut life.waiting);
                life.checkpoint_unfinished = checkpoint_unfinished;
                let step = Step::Committed {
                    readings,
                    durable_end,
                    checkpoint_unfinished,
                };
                self.trail.note(self.now_ns, step);
                life.queue
                    .push(life.free_ns, Event::Announce { durable_end });
                if checkpoint_unfinished {
                    let free_ns = life.free_ns;
                    self.want_commit(life, free_ns);
                }
                Ok(())
            }
            Err(_) if life.device.is_gone() => {
                self.trail
                    .note(self.now_ns, Step::CommitFailed { durable_end });
                // What became durable before may have been acknowledged in the last instant.
                if self.random.coin() {
                    self.announce(life, durable_end);
                }
                Ok(())
            }
            Err(error) => Err(Broken::new(Invariant::Taken, error.to_string())),
        }
    }

    /// The sources hear how far the log is durable.
    fn announce(&mut self, life: &mut Life, durable_end: u64) {
        self.trail
            .note(self.now_ns, Step::Announced { durable_end });
        self.durable_end = self.durable_end.max(durable_end);
        for (index, source) in self.sources.iter_mut().enumerate() {
            while let Some((lsn_end, number)) = source.pending.front().copied()
                && lsn_end <= durable_end
            {
                source.pending.pop_front();
                self.ledger.acknowledge(number);
                self.moved_ns = self.now_ns;
            }
            if std::mem::take(&mut source.waits) {
                life.queue.push(self.now_ns, Event::Offer { source: index });
            }
        }
    }

    /// Upkeep of the log, as the maintenance thread of a node does it, and a look into what has become durable.
    fn second(&mut self, life: &mut Life) -> Result<(), Broken> {
        let mut more = true;
        let mut steps = 0;
        while more {
            steps += 1;
            more = match life.node.database.maintain() {
                Ok(more) if steps < STEPS_MAX => more,
                Ok(_) => return Err(Broken::new(Invariant::Taken, "upkeep has no end")),
                Err(_) if life.device.is_gone() => return Ok(()),
                Err(error) => return Err(Broken::new(Invariant::Taken, error.to_string())),
            };
        }
        if self.now_ns - self.moved_ns > STUCK_NS && !self.is_done(life) {
            let found = "readings are left, and nothing is taken or acknowledged any more";
            return Err(Broken::new(Invariant::Taken, found));
        }
        self.follow(life)?;
        self.check_moments(life)?;
        life.free_ns = life.free_ns.max(self.now_ns) + life.device.take_spent_ns();
        life.queue.push(self.now_ns + SECOND_NS, Event::Second);
        Ok(())
    }

    /// Reads what has become durable since the last time.
    fn follow(&mut self, life: &mut Life) -> Result<(), Broken> {
        let lost = |found: String| Err(Broken::new(Invariant::NothingLost, found));
        let sensors = life.node.sensors(&self.feed).to_vec();
        loop {
            let mut broken = None;
            let (followed, feed, ledger) = (&mut self.followed, &self.feed, &self.ledger);
            let stepped = life.node.database.follow(
                &mut life.cursor,
                u64::MAX,
                FOLLOWED_MAX,
                &mut |_| true,
                &mut |entry| {
                    let logged = Logged {
                        sensor: sensors.get(entry.id.0 as usize).copied().flatten(),
                        time: entry.recorded,
                        value: entry.value,
                    };
                    if broken.is_none() {
                        broken = followed.add(feed, ledger, &logged).err();
                    }
                },
            );
            if let Some(broken) = broken {
                return Err(broken);
            }
            let step = match stepped {
                Ok(step) => step,
                Err(_) if life.device.is_gone() => return Ok(()),
                Err(error) => return lost(format!("the log cannot be followed: {error}")),
            };
            if step.readings_gone > 0 || step.readings_missing > 0 {
                return lost(format!("the log has a gap: {step:?}"));
            }
            // After each step: the device may end before the next one.
            self.followed_end = life.cursor.next_lsn();
            if !step.more {
                break;
            }
        }
        let end = self.followed_end;
        self.durable_end = self.durable_end.max(end);
        self.trail.note(self.now_ns, Step::Followed { end });
        Ok(())
    }

    /// Checks what power cuts at drawn moments of the last step would have left.
    fn check_moments(&mut self, life: &Life) -> Result<(), Broken> {
        for moment in life.device.take_moments() {
            let end = moment.durable_end;
            let torn = moment.with_last_torn(&mut self.random);
            let random = moment.at_random(&mut self.random);
            // What was durable may have been acknowledged then, on another thread.
            self.check_image(moment.without_cache(), end, Invariant::TrueAcknowledgement)?;
            self.check_image(torn, end, Invariant::NothingLost)?;
            self.check_image(random, end, Invariant::NothingLost)?;
        }
        Ok(())
    }

    fn check_image(
        &mut self,
        device: SimDevice,
        durable_end: u64,
        invariant: Invariant,
    ) -> Result<(), Broken> {
        self.figures.images += 1;
        check::image(device, &self.feed, &self.ledger, durable_end, invariant)
    }

    // ---- ends ----

    fn is_done(&self, life: &Life) -> bool {
        let is_over =
            |source: &Source| source.next >= self.setup.readings && source.pending.is_empty();
        life.waiting == 0 && !life.checkpoint_unfinished && self.sources.iter().all(is_over)
    }

    /// Sets off the planned end once its reading was offered, and the last one once everything is done.
    fn set_off_end(&mut self, life: &mut Life) {
        let is_done = self.is_done(life);
        let Some(planned) = life.planned else {
            life.stops = is_done;
            return;
        };
        let is_due = is_done || planned.at.is_none_or(|at| self.offered_end > at);
        if life.is_set_off {
            if is_done {
                // No writes are left to wait for.
                life.device.end_after_writes(0);
            }
        } else if is_due {
            life.is_set_off = true;
            let (end, writes) = (planned.end, planned.writes);
            self.trail
                .note(self.now_ns, Step::EndSetOff { end, writes });
            match end {
                End::Stop { .. } => life.stops = true,
                End::Cut | End::Kill => life.device.end_after_writes(writes),
            }
        }
    }

    /// A life has crashed. Returns what it leaves.
    fn crashed(
        &mut self,
        device: &Device,
        planned: Option<PlannedEnd>,
    ) -> Result<SimDevice, Broken> {
        let end = planned.map_or(End::Cut, |planned| planned.end);
        let left = match end {
            End::Kill => {
                self.figures.kills += 1;
                device.left_running()
            }
            End::Cut | End::Stop { .. } => {
                self.figures.cuts += 1;
                device.left_by_cut(self.random.next_u64())
            }
        };
        self.ended(end, &left)?;
        Ok(left)
    }

    /// Everything taken becomes durable and is acknowledged, and the node stops.
    fn stop(&mut self, mut life: Life) -> Result<Option<SimDevice>, Broken> {
        let fails = |error: String| Broken::new(Invariant::Taken, format!("at a stop: {error}"));
        let database = Arc::clone(&life.node.database);
        self.commit_readings_max = self.commit_readings_max.max(life.waiting);
        let mut rounds = 0;
        while database.pump().map_err(|error| fails(error.to_string()))? {
            rounds += 1;
            if rounds > STEPS_MAX {
                return Err(fails("a checkpoint has no end".to_owned()));
            }
        }
        self.check_moments(&life)?;
        let durable_end = database.durable_end();
        self.announce(&mut life, durable_end);
        if let Some(source) = self
            .sources
            .iter()
            .find(|source| !source.pending.is_empty())
        {
            let number = source.pending.front().map_or(0, |(_, number)| *number);
            return Err(fails(format!("reading {number} is not acknowledged")));
        }
        self.follow(&mut life)?;
        if life.cursor.next_lsn() != durable_end {
            let end = life.cursor.next_lsn();
            let found = format!("the log ends at {end} for a follower, and at {durable_end}");
            return Err(Broken::new(Invariant::NothingLost, found));
        }
        let store = database.close().map_err(|error| fails(error.to_string()))?;
        self.check_moments(&life)?;
        store.close().map_err(|error| fails(error.to_string()))?;
        self.check_moments(&life)?;
        self.pass(life.device.take_spent_ns());
        let end = life
            .planned
            .map_or(End::Stop { reboots: true }, |planned| planned.end);
        let left = life.device.left_running();
        self.figures.stops += 1;
        self.was_stopped = true;
        let is_last = life.planned.is_none();
        drop(life);
        self.ended(end, &left)?;
        if !is_last {
            return Ok(Some(left));
        }
        self.followed
            .complete(&self.ledger, Invariant::NothingLost)?;
        if self.draw.is_quiet {
            self.followed.exact(&self.ledger)?;
        }
        Ok(None)
    }

    /// Checks what a life has left, and lets the time until the next one pass.
    fn ended(&mut self, end: End, left: &SimDevice) -> Result<(), Broken> {
        let image_hash = left.image_hash();
        self.trail
            .note(self.now_ns, Step::Ended { end, image_hash });
        self.check_image(left.clone(), self.durable_end, Invariant::NothingLost)?;
        for source in &mut self.sources {
            // What is not acknowledged is offered again.
            if let Some((_, first)) = source.pending.front() {
                source.next = *first;
            }
            source.pending.clear();
            source.progress = LineProgress::default();
            source.waits = false;
        }
        let down_ns = self.random.below(DOWN_NS_MAX);
        self.pass(down_ns);
        if matches!(end, End::Cut | End::Stop { reboots: true }) {
            self.clock.reboot();
            self.clock.set_wall_trusted(self.random.coin());
        }
        Ok(())
    }
}
