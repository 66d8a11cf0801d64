//! Looks of a run at the values and alarms of its node, at drawn moments between jumps of the wall clock.

use std::sync::Arc;

use base::clock::Clock;
use base::sim::Random;
use db::{Error, Got, ObjectId, Time};
use ingest::intake::{LineOutcome, LineProgress};

use super::{Life, Run, STEPS_MAX};
use crate::alarm::{AlarmDraw, Alarms};
use crate::clock::{PROBES, Probes};
use crate::draw::Draw;
use crate::event::Event;
use crate::fault::Profile;
use crate::invariant::{Broken, Invariant};
use crate::node::Node;
use crate::sensors::Feed;

/// Keeps what is drawn here apart from what `draw.rs` draws.
const CLOCK_SEED: u64 = 0x636c_6f63_6b73;
/// Sensors that are looked at each time.
const SENSORS_SEEN: u64 = 4;
/// One look in this many takes all alarms that there are.
const SETTLED_ONE_IN: u64 = 8;
/// Most transitions that any other look takes.
const TAKEN_MAX: u64 = 5;

/// The models of a run whose profile needs them. Changes what the seed decides about the node.
pub(super) fn models(
    profile: Profile,
    seed: u64,
    draw: &mut Draw,
    feed: &Feed<'_>,
) -> (Option<Probes>, Option<Alarms>) {
    if profile != Profile::Clock {
        return (None, None);
    }
    let mut random = Random::new(seed ^ CLOCK_SEED);
    draw.validity_ms = [50, 500, 5_000, 60_000][random.index(4)];
    draw.takes_any_time = true;
    draw.alarms = AlarmDraw::some(&mut random, feed, draw.options.objects_max);
    let alarms = Alarms::new(&draw.alarms, feed);
    let probes = Probes::new(random, draw.validity_ms, feed.sensors().count());
    (Some(probes), Some(alarms))
}

/// What the node shows of an object; `None`: no value.
fn shown<'b>(node: &Node, id: ObjectId, value: &'b mut [u8; 8]) -> Option<(Got, &'b [u8])> {
    match node.database.get(id, value) {
        Ok(got) => Some((got, &value[..got.value_bytes])),
        Err(_) => None,
    }
}

impl Run<'_> {
    /// A life begins. Call this before time passes: alarms are set, and judge what the start has found.
    pub(super) fn begin_looks(&mut self, node: &mut Node) -> Result<(), Broken> {
        let Self {
            probes: Some(probes),
            alarms: Some(alarms),
            feed,
            ledger,
            clock,
            ..
        } = self
        else {
            return Ok(());
        };
        probes.restart(node.database.durable_end());
        alarms.restart();
        let mut value = [0; 8];
        for probe in 0..PROBES {
            let id = node.database.lookup(&Probes::key(probe));
            let shown = id.and_then(|id| shown(node, id, &mut value));
            probes.begin_with(probe, shown, clock)?;
        }
        let now_ns = clock.monotonic_ns();
        let sensors = node.sensors(feed).to_vec();
        for (id, sensor) in (0_u32..).zip(sensors) {
            let Some(sensor) = sensor else {
                continue;
            };
            alarms.watch(sensor, now_ns);
            let mut value = [0; 8];
            let Some(shown) = shown(node, ObjectId(id), &mut value) else {
                continue;
            };
            let number = probes.check_sensor(feed, ledger, sensor, shown, clock)?;
            probes.note(sensor, number);
            let time = shown.0.time;
            alarms.begin_with(sensor, f64::from_le_bytes(value), time, now_ns);
        }
        Ok(())
    }

    /// A reading was offered. `is_taken`: the node had room for it.
    pub(super) fn note_offer(&mut self, number: u64, is_taken: bool) {
        let (Some(probes), Some(alarms)) = (&mut self.probes, &mut self.alarms) else {
            return;
        };
        let sensor = self.feed.sensor(number);
        let told = (self.feed.time(number), probes.is_news(sensor, number));
        let value = f64::from_le_bytes(self.feed.value(number));
        alarms.read(sensor, value, told, self.clock.monotonic_ns());
        if is_taken {
            probes.note(sensor, number);
        }
    }

    /// The wall clock may jump; a probe is offered; values and alarms are looked at.
    pub(super) fn look(&mut self, life: &mut Life) -> Result<(), Broken> {
        let are_done = self
            .sources
            .iter()
            .all(|source| source.next >= self.setup.readings);
        let Self {
            probes: Some(probes),
            clock,
            line,
            figures,
            ..
        } = self
        else {
            return Ok(());
        };
        figures.jumps += u64::from(probes.disturb(clock));
        if !are_done {
            let probe = probes.line(line);
            let mut progress = LineProgress::default();
            match life.node.offer_probe(line, &mut progress) {
                LineOutcome::Done {
                    accepted: 1,
                    refused: 0,
                    shed: 0,
                    lsn_end,
                } => {
                    life.waiting.take(lsn_end, self.now_ns);
                    let id = life.node.database.lookup(&Probes::key(probe.0));
                    let mut value = [0; 8];
                    let shown = id.and_then(|id| shown(&life.node, id, &mut value));
                    let Some(shown) = shown else {
                        let found = format!("probe {} is taken, and not shown", probe.0);
                        return Err(Broken::new(Invariant::Freshness, found));
                    };
                    probes.take(probe, lsn_end - 1, shown, clock)?;
                    figures.probes += 1;
                }
                LineOutcome::Wait { full: false } => {}
                LineOutcome::Failed if life.device.is_gone() => {}
                outcome => {
                    let found = format!("probe {}: {outcome:?}", probe.0);
                    return Err(Broken::new(Invariant::Taken, found));
                }
            }
        }
        self.plan_commit(life);
        self.look_at_values(life)?;
        self.look_at_alarms(life)?;
        if let Some(probes) = &mut self.probes {
            let at_ns = self.now_ns + probes.pause_ns();
            life.queue.push(at_ns, Event::Look);
        }
        Ok(())
    }

    fn look_at_values(&mut self, life: &mut Life) -> Result<(), Broken> {
        let Self {
            probes: Some(probes),
            feed,
            ledger,
            clock,
            figures,
            ..
        } = self
        else {
            return Ok(());
        };
        let mut value = [0; 8];
        for probe in 0..PROBES {
            let id = life.node.database.lookup(&Probes::key(probe));
            let shown = id.and_then(|id| shown(&life.node, id, &mut value));
            probes.check(probe, shown, clock)?;
            figures.values += u64::from(shown.is_some());
        }
        for _ in 0..SENSORS_SEEN {
            let sensor = probes.draw_sensor();
            let Some(id) = life.node.object_of(feed, sensor) else {
                continue;
            };
            match life.node.database.get(id, &mut value) {
                Ok(got) => {
                    let shown = (got, &value[..got.value_bytes]);
                    probes.check_sensor(feed, ledger, sensor, shown, clock)?;
                    figures.values += 1;
                }
                Err(Error::NoValue) if probes.is_unknown(sensor) => {}
                Err(error) => {
                    let found = format!("sensor {sensor} has no value: {error}");
                    return Err(Broken::new(Invariant::Freshness, found));
                }
            }
        }
        Ok(())
    }

    fn look_at_alarms(&mut self, life: &mut Life) -> Result<(), Broken> {
        let Some(probes) = &mut self.probes else {
            return Ok(());
        };
        if probes.below(SETTLED_ONE_IN) == 0 {
            return self.settle_alarms(life);
        }
        let taken_max = probes.below(TAKEN_MAX + 1);
        self.scan_alarms(life);
        self.take_alarms(life, taken_max)?;
        Ok(())
    }

    /// Takes all alarms that there are, and compares them and their figures with the model.
    pub(super) fn settle_alarms(&mut self, life: &mut Life) -> Result<(), Broken> {
        for _ in 0..STEPS_MAX {
            self.scan_alarms(life);
            if self.take_alarms(life, u64::MAX)? > 0 {
                continue;
            }
            let figures = life.node.database.alarm_figures();
            return match &self.alarms {
                Some(alarms) => alarms.check_settled(&figures),
                None => Ok(()),
            };
        }
        Err(Broken::new(
            Invariant::Alarms,
            "there are always more alarms",
        ))
    }

    fn scan_alarms(&mut self, life: &Life) {
        life.node.database.scan_alarms();
        if let Some(alarms) = &mut self.alarms {
            let wall = Time::from_ns(self.clock.wall_ns());
            alarms.scan(wall, self.clock.monotonic_ns());
        }
    }

    /// Takes transitions, as the thread for alarms does. Returns how many there were.
    fn take_alarms(&mut self, life: &mut Life, taken_max: u64) -> Result<u64, Broken> {
        let Some(alarms) = &mut self.alarms else {
            return Ok(0);
        };
        let database = Arc::clone(&life.node.database);
        let mut taken = 0;
        while taken < taken_max
            && let Some(told) = database.next_alarm()
        {
            taken += 1;
            let sensors = life.node.sensors(&self.feed);
            let sensor = sensors.get(told.object.0 as usize).copied().flatten();
            let Some(sensor) = sensor else {
                let found = format!("{told:?} is of no sensor");
                return Err(Broken::new(Invariant::Alarms, found));
            };
            alarms.tell(&told, sensor)?;
        }
        self.figures.alarms += taken;
        Ok(taken)
    }
}
