//! One seed: the lives of a node, event by event, on one device.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use base::sim::{Random, SimClock, SimDevice};
use db::LogCursor;
use flash::{FormatOptions, Store};
use ingest::intake::{LineOutcome, LineProgress};

use crate::alarm::Alarms;
use crate::check::{self, Contents, Expected, Found};
use crate::clock::Probes;
use crate::device::Device;
use crate::draw::{Draw, PlannedEnd, READING_LOG_BYTES_MAX};
use crate::event::{Event, Queue};
use crate::fault::{Faults, Profile};
use crate::invariant::{Broken, Invariant};
use crate::ledger::Ledger;
use crate::logged::Logged;
use crate::node::Node;
use crate::ranges::RANGES_SEED;
use crate::report::{Failure, Figures, Step, Trail};
use crate::sensors::{BEGIN_MS, Feed, Sensors};
use crate::upstream::{Link, Upstream};

mod commit;
mod ends;
mod forwarding;
mod harm;
mod looking;
mod upkeep;
mod waiting;

use harm::Harm;
use upkeep::{FULL_RETRY_NS, Gone};
use waiting::Waiting;

const SECOND_NS: u64 = 1_000_000_000;
const MS_NS: u64 = 1_000_000;
/// Longest time from the first request of a start to its last one.
const READY_NS_MAX: u64 = 2 * SECOND_NS;
/// Longest time without a reading that is taken, acknowledged or forwarded, while some are left. A node that is slow,
/// but works, needs less than a hundredth of it.
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
    /// What goes wrong beside the ends of lives.
    pub(crate) profile: Profile,
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
    /// The last reading that it sent twice.
    twice: Option<u64>,
    /// Its window is full, so an acknowledgement makes it go on.
    waits: bool,
}

struct Run<'s> {
    feed: Feed<'s>,
    setup: Setup,
    draw: Draw,
    random: Random,
    /// Draws range reads, and nothing else.
    ranges: Random,
    clock: SimClock,
    /// Virtual time since the run began.
    now_ns: u64,
    ledger: Ledger,
    sources: Vec<Source>,
    upstreams: Vec<Upstream>,
    /// What the follower has found, over all lives.
    followed: Found,
    /// Its place in the log.
    followed_end: u64,
    /// Readings numbered below this were seen to be durable.
    durable_end: u64,
    /// The number after the last reading that was offered.
    offered_end: u64,
    /// When a reading was taken, acknowledged or forwarded last.
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
    /// What goes wrong beside the ends of lives, and what it has done.
    faults: Faults,
    harm: Harm,
    /// What retention has deleted.
    gone: Gone,
    /// Number of the first reading of the log that the last life has left.
    left_first: Option<u64>,
    /// Times and ages, in runs whose clock jumps.
    probes: Option<Probes>,
    /// Alarms, in the same runs.
    alarms: Option<Alarms>,
}

/// What one life has beside the run.
struct Life {
    node: Node,
    /// To each upstream, in their order.
    links: Vec<Link>,
    device: Device,
    queue: Queue,
    planned: Option<PlannedEnd>,
    is_set_off: bool,
    stops: bool,
    cursor: LogCursor,
    /// The commit side is busy until then.
    free_ns: u64,
    commit_at_ns: Option<u64>,
    /// Readings that are taken and not durable.
    waiting: Waiting,
    checkpoint_unfinished: bool,
    /// Since when the store is full.
    full_since_ns: Option<u64>,
    /// Steps of upkeep since the last one that found nothing to do.
    upkeep_steps: u32,
    /// The node must be started again.
    has_failed: bool,
}

/// Runs one seed.
///
/// # Errors
/// The first invariant that did not hold.
pub(crate) fn run(sensors: &Sensors, seed: u64, setup: Setup) -> Result<Figures, Box<Failure>> {
    let mut run = Run::new(sensors, seed, setup);
    let ended = run.lives();
    let (acknowledged, refused) = run.ledger.counts();
    let (mut forwarded, mut forwarded_again) = (0, 0);
    for (received, again) in run.upstreams.iter().map(Upstream::counts) {
        forwarded += received;
        forwarded_again += again;
    }
    let figures = Figures {
        readings: run.offered_end,
        acknowledged,
        again: run.followed.again(),
        refused,
        deleted: run.gone.total(),
        forwarded,
        forwarded_again,
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
        let mut draw = Draw::new(&mut random, setup.readings);
        let faults = Faults::draw(setup.profile, seed, setup.readings, &mut draw);
        let feed = Feed::new(sensors, draw.speed, seed);
        let (probes, alarms) = looking::models(setup.profile, seed, &mut draw, &feed);
        let clock = SimClock::new(seed);
        clock.set_wall_ms(BEGIN_MS);
        clock.set_wall_trusted(random.coin());
        let drawn = draw.upstreams.iter().enumerate();
        let upstreams = drawn
            .map(|(index, draw)| Upstream::new(index, *draw, &feed, random.fork()))
            .collect();
        let gone = Gone::new(setup.profile, draw.options.segment_bytes_max);
        let mut run = Self {
            followed: Found::new(&feed),
            feed,
            setup,
            sources: Vec::new(),
            upstreams,
            draw,
            random,
            ranges: Random::new(seed ^ RANGES_SEED),
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
            harm: Harm::default(),
            gone,
            left_first: None,
            faults,
            probes,
            alarms,
        };
        for source in 0..run.draw.sources.len() {
            let next = run.next_of(source, 0);
            run.sources.push(Source {
                next,
                pending: VecDeque::new(),
                progress: LineProgress::default(),
                twice: None,
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
                Some(left) if !self.harm.is_over => device = self.decay(left)?,
                _ => return Ok(()),
            }
            if self.harm.is_over {
                return Ok(());
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
        if let Some(planned) = planned.filter(PlannedEnd::is_at_start) {
            device.end_after_writes(planned.writes);
        }
        self.begin_faults(&device);
        let random = self.random.fork();
        let mut node = match Node::start(&device, &self.clock, &self.draw, random) {
            Ok(node) => node,
            Err(_) if device.is_gone() => return self.crashed(&device, planned).map(Some),
            Err(_) if self.may_fail(&device) => return self.start_failed(&device),
            Err(error) => return Err(Broken::new(Invariant::StartEnds, error)),
        };
        let links = match self.open_links(&node) {
            Ok(links) => links,
            Err(_) if device.is_gone() => {
                drop(node.database.abandon());
                return self.crashed(&device, planned).map(Some);
            }
            Err(fault) => return Err(fault.into_broken(Invariant::Forwarded)),
        };
        self.pass_start(&device, &mut node)?;
        let mut life = self.begin_life(node, links, device, planned);
        self.run_events(&mut life)?;
        self.end_life(life)
    }

    /// Lets the time of a start pass, and checks what it has found and how long it took.
    fn pass_start(&mut self, device: &Device, node: &mut Node) -> Result<(), Broken> {
        self.begin_looks(node)?;
        let ready_ns = device.take_spent_ns();
        self.pass(ready_ns);
        let working_ns = ready_ns.saturating_sub(self.stalled_ns(device));
        self.count_faults(device);
        self.check_start(node, working_ns)?;
        self.go_on_with_faults(device);
        Ok(())
    }

    /// Begins a life of a node that has started: with its first events.
    fn begin_life(
        &mut self,
        node: Node,
        links: Vec<Link>,
        device: Device,
        planned: Option<PlannedEnd>,
    ) -> Life {
        let mut life = Life {
            queue: Queue::new(self.random.fork()),
            cursor: LogCursor::new(self.followed_end),
            node,
            links,
            device,
            planned,
            is_set_off: planned.as_ref().is_some_and(PlannedEnd::is_at_start),
            stops: false,
            free_ns: self.now_ns,
            commit_at_ns: None,
            waiting: Waiting::default(),
            checkpoint_unfinished: false,
            full_since_ns: None,
            upkeep_steps: 0,
            has_failed: false,
        };
        for source in 0..self.sources.len() {
            life.queue.push(self.now_ns, Event::Offer { source });
        }
        for (upstream, link) in life.links.iter_mut().enumerate() {
            link.want_turn(&mut life.queue, upstream, self.now_ns);
        }
        life.queue.push(self.now_ns + SECOND_NS, Event::Second);
        life.queue.push(self.now_ns, Event::Maintain);
        if self.probes.is_some() {
            life.queue.push(self.now_ns, Event::Look);
        }
        self.begin_commits(&mut life);
        life
    }

    /// Runs the events of a life until its end.
    fn run_events(&mut self, life: &mut Life) -> Result<(), Broken> {
        while !life.device.is_gone() && !life.stops && !life.has_failed {
            let Some((at_ns, event)) = life.queue.pop() else {
                let found = "nothing happens any more";
                return Err(Broken::new(Invariant::Taken, found));
            };
            self.pass(at_ns.saturating_sub(self.now_ns));
            self.run_event(life, event)?;
            self.set_off_faults(life);
            self.set_off_end(life);
        }
        Ok(())
    }

    fn run_event(&mut self, life: &mut Life, event: Event) -> Result<(), Broken> {
        match event {
            Event::Offer { source } => self.offer(life, source),
            Event::Commit => self.commit(life),
            Event::Announce { durable_end } => {
                self.announce(life, durable_end);
                Ok(())
            }
            Event::Second => self.second(life),
            Event::Maintain => self.maintain(life),
            Event::Look => self.look(life),
            Event::Forward { upstream } => self.forward(life, upstream),
            Event::Answer {
                upstream,
                connection,
                token,
            } => self.answer(life, upstream, connection, token),
            Event::Lost {
                upstream,
                connection,
            } => {
                self.lose(life, upstream, connection);
                Ok(())
            }
        }
    }

    /// A life is over: by its stop, because the node has failed, or with its device. Returns what it leaves; `None` if
    /// it was the last one.
    fn end_life(&mut self, mut life: Life) -> Result<Option<SimDevice>, Broken> {
        if !life.device.is_gone() {
            return match life.has_failed {
                true => self.restart(life),
                false => self.stop(life),
            };
        }
        self.note_table(&life.node);
        self.crash_links(std::mem::take(&mut life.links));
        drop(life.node.database.abandon());
        self.crashed(&life.device, life.planned).map(Some)
    }

    /// Notes how large a checkpoint may be. A crash may leave fewer objects than there were.
    fn note_table(&mut self, node: &Node) {
        let stats = node.database.stats();
        self.table_bytes_max = self.table_bytes_max.max(stats.table_checkpoint_bytes);
        self.harm.checkpoints_fail |= stats.checkpoints_failed > 0;
    }

    /// Checks what a start has found, and how long it took.
    fn check_start(&mut self, node: &Node, ready_ns: u64) -> Result<(), Broken> {
        let recovery = node.database.recovery();
        let replayed_bytes = recovery.log_bytes_read;
        self.trail
            .note(self.now_ns, Step::Started { replayed_bytes });
        let broken = |found: String| Err(Broken::new(Invariant::StartEnds, found));
        let durable_end = node.database.durable_end();
        if self.is_deleting() {
            self.gone.begin(self.left_first.unwrap_or(durable_end));
        }
        if self.is_harmed(None) {
            // More may have to be read, and numbers are not those from before.
            self.note_table(node);
            self.was_stopped = false;
            self.durable_end = durable_end;
            self.follow_anew();
            return Ok(());
        }
        if ready_ns > READY_NS_MAX {
            return broken(format!("it took {ready_ns} ns"));
        }
        // However many lives in a row have crashed before their first checkpoint was whole.
        self.note_table(node);
        let options = &self.draw.options;
        let interval = options.checkpoint_bytes.max(self.table_bytes_max);
        let commit = self.commit_readings_max * READING_LOG_BYTES_MAX + COMMIT_LOG_BYTES;
        let bound = 2 * interval + options.checkpoint_piece_bytes_max as u64 + 2 * commit;
        // Without room for a checkpoint there is no bound.
        let is_bounded = !self.harm.checkpoints_fail;
        if replayed_bytes > bound && is_bounded {
            return broken(format!(
                "it read {replayed_bytes} bytes of log, more than {bound}"
            ));
        }
        if self.was_stopped && recovery.readings_replayed > 0 && is_bounded {
            let readings = recovery.readings_replayed;
            return broken(format!(
                "it replayed {readings} readings after a clean stop"
            ));
        }
        self.was_stopped = false;
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

    /// Whether a source sends a line once more at once.
    fn sends_again(&mut self, source: usize, number: u64) -> bool {
        let one_in = self.draw.sources[source].twice_one_in;
        let state = &mut self.sources[source];
        let is_sent = state.twice == Some(number) || one_in == 0 || self.random.below(one_in) > 0;
        if !is_sent {
            state.twice = Some(number);
        }
        !is_sent
    }

    /// A source offers all that is due and fits its window.
    fn offer(&mut self, life: &mut Life, source: usize) -> Result<(), Broken> {
        let waiting = life.waiting.count();
        while let Some(number) = self.next_due(life, source) {
            let outcome = self.offer_line(life, source, number);
            if self.hear_outcome(life, source, number, outcome)?.is_break() {
                break;
            }
            if !self.sends_again(source, number) {
                let next = self.next_of(source, number + 1);
                self.sources[source].next = next;
            }
            self.plan_commit(life);
        }
        if self.draw.sources[source].hurries && life.waiting.count() > waiting {
            self.hurry_commit(life);
        }
        let next = self.sources[source].next;
        self.trail.note(self.now_ns, Step::Offered { source, next });
        Ok(())
    }

    /// A source offers the line of a reading.
    fn offer_line(&mut self, life: &mut Life, source: usize, number: u64) -> LineOutcome {
        self.feed.line(number, &mut self.line);
        self.offered_end = self.offered_end.max(number + 1);
        let progress = &mut self.sources[source].progress;
        life.node.offer(source, &self.line, progress)
    }

    /// A source hears what became of its line. Returns `Break` if it offers no more for now.
    ///
    /// # Errors
    /// I6 if the node has no reason for the outcome.
    fn hear_outcome(
        &mut self,
        life: &mut Life,
        source: usize,
        number: u64,
        outcome: LineOutcome,
    ) -> Result<ControlFlow<()>, Broken> {
        match outcome {
            LineOutcome::Done {
                accepted: 1,
                refused: 0,
                shed: 0,
                lsn_end,
            } if !self.feed.is_absurd(number) => {
                self.note_taken(life, source, number, lsn_end);
                return Ok(ControlFlow::Continue(()));
            }
            LineOutcome::Done {
                accepted: 0,
                refused: 1,
                shed: 0,
                ..
            } if self.feed.is_absurd(number) => {
                self.ledger.refuse(number);
                return Ok(ControlFlow::Continue(()));
            }
            LineOutcome::Wait { full: true } if self.is_deleting() => {
                let at_ns = self.now_ns + FULL_RETRY_NS;
                life.queue.push(at_ns, Event::Offer { source });
            }
            LineOutcome::Wait { full: false } => {
                self.note_offer(number, false);
                self.press_commit(life);
                life.queue
                    .push(self.now_ns + MS_NS, Event::Offer { source });
            }
            // Without power, the sender gets no answer.
            LineOutcome::Failed if life.device.is_gone() => {}
            // A damaged list of free space may look like a full store.
            LineOutcome::Failed | LineOutcome::Wait { full: true }
                if self.may_fail(&life.device) =>
            {
                life.has_failed = true;
            }
            LineOutcome::Done { .. } | LineOutcome::Wait { .. } | LineOutcome::Failed => {
                let found = format!("reading {number}: {outcome:?}");
                return Err(Broken::new(Invariant::Taken, found));
            }
        }
        Ok(ControlFlow::Break(()))
    }

    /// The node has taken a reading of a source as the last one below `lsn_end`.
    fn note_taken(&mut self, life: &mut Life, source: usize, number: u64, lsn_end: u64) {
        self.ledger.take(number);
        self.moved_ns = self.now_ns;
        if self.draw.sources[source].asks {
            self.sources[source].pending.push_back((lsn_end, number));
        }
        if self.is_deleting() {
            self.ledger.place(number, lsn_end - 1);
        }
        self.note_offer(number, true);
        life.waiting.take(lsn_end, self.now_ns);
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

    /// A look into what has become durable.
    fn second(&mut self, life: &mut Life) -> Result<(), Broken> {
        if self.now_ns - self.moved_ns > STUCK_NS {
            if !self.is_done(life) {
                let found = "readings are left, and nothing is taken or acknowledged any more";
                return Err(Broken::new(Invariant::Taken, found));
            }
            Self::check_not_stuck(life)?;
        }
        self.follow(life)?;
        self.check_moments(life)?;
        self.check_timely(life)?;
        life.free_ns = life.free_ns.max(self.now_ns) + life.device.take_spent_ns();
        self.hear_wake_up(life);
        life.queue.push(self.now_ns + SECOND_NS, Event::Second);
        Ok(())
    }

    /// Reads what has become durable since the last time.
    fn follow(&mut self, life: &mut Life) -> Result<(), Broken> {
        let lost = |found: String| Err(Broken::new(Invariant::NothingLost, found));
        let sensors = life.node.sensors(&self.feed).to_vec();
        // Probes, and objects whose names are lost, are judged where the whole log is read.
        let is_harmed = self.is_harmed(Some(&life.device));
        let skips_unknown = self.probes.is_some() || is_harmed;
        if is_harmed {
            self.followed.miss_copies();
            self.harm.hides = true;
        }
        loop {
            let from = life.cursor.next_lsn();
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
                    if broken.is_none() && !(skips_unknown && logged.sensor.is_none()) {
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
                Err(_) if self.may_fail(&life.device) => {
                    self.harm.hides = true;
                    return Ok(());
                }
                Err(error) => return lost(format!("the log cannot be followed: {error}")),
            };
            if step.readings_gone > 0 || step.readings_missing > 0 {
                self.check_gap(life, from, &step)?;
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
        self.count_deleted(life);
        let is_harmed = self.is_harmed(Some(&life.device));
        for moment in life.device.take_moments() {
            let end = moment.durable_end;
            let torn = moment.with_last_torn(&mut self.random);
            let random = moment.at_random(&mut self.random);
            // What was durable may have been acknowledged then, on another thread.
            let acknowledged = Invariant::TrueAcknowledgement;
            self.check_image(moment.without_cache(), (end, is_harmed), acknowledged)?;
            self.check_image(torn, (end, is_harmed), Invariant::NothingLost)?;
            self.check_image(random, (end, is_harmed), Invariant::NothingLost)?;
        }
        Ok(())
    }

    fn check_image(
        &mut self,
        device: SimDevice,
        (durable_end, is_harmed): (u64, bool),
        invariant: Invariant,
    ) -> Result<Contents, Broken> {
        self.figures.images += 1;
        let expected = Expected {
            feed: &self.feed,
            ledger: &self.ledger,
            durable_end,
            gone_end: self.gone.end(),
            is_harmed,
            probes: self.probes.as_ref(),
            options: self.draw.options,
            invariant,
        };
        let contents = check::image(device, &expected, &mut self.ranges)?;
        self.figures.range_reads += contents.range_reads;
        Ok(contents)
    }
}
