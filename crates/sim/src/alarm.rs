//! Alarms of a run: the rules that a seed draws, and a model of them by which the judge knows each crossing.
//!
//! A *crossing* is a change of an alarm: it is raised, or over. The model has all crossings of a life in their order,
//! for each rule and sensor. What the node tells must be among them, in their order and none twice. Crossings that are
//! never told come in pairs, are counted as lost, and leave the last told state as it is. The model begins anew with
//! each life, as the node does: what was raised before a restart is known to `keel` alone.

use base::sim::Random;
use db::{AlarmCondition, AlarmFigures, AlarmRule, AlarmTransition, AlarmValue, Time};

use crate::invariant::{Broken, Invariant};
use crate::sensors::Feed;

const NS_PER_MS: u64 = 1_000_000;
/// Readings from which thresholds are drawn.
const READINGS_DRAWN: u64 = 2_000;

/// The rules of a run, and how many transitions can wait.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AlarmDraw {
    pub(crate) rules: Vec<AlarmRule>,
    pub(crate) transitions_max: u32,
}

impl AlarmDraw {
    /// Draws a rule of each kind, each for the sensors of one measurement. The thresholds are values of the trace, so
    /// that they are crossed.
    pub(crate) fn some(random: &mut Random, feed: &Feed<'_>, objects_max: u32) -> Self {
        let above = |low: f64, high: f64, raise_after_ms| AlarmCondition::Above {
            threshold: high,
            clear: low,
            raise_after_ms,
        };
        let below = |low: f64, high: f64, raise_after_ms| AlarmCondition::Below {
            threshold: low,
            clear: high,
            raise_after_ms,
        };
        let (above_after_ms, below_after_ms) = (delay_ms(random), delay_ms(random));
        let (pattern, low, high) = thresholds(random, feed);
        let first = (pattern, above(low, high, above_after_ms));
        let (pattern, low, high) = thresholds(random, feed);
        let second = (pattern, below(low, high, below_after_ms));
        let (pattern, ..) = thresholds(random, feed);
        let after_ms = [200, 2_000, 20_000][random.index(3)];
        let third = (pattern, AlarmCondition::Stale { after_ms });
        let rules = [first, second, third].map(|(pattern, condition)| AlarmRule {
            pattern,
            condition,
            objects_max,
        });
        Self {
            rules: rules.into(),
            transitions_max: [1, 4, 64, 4_096][random.index(4)],
        }
    }
}

fn delay_ms(random: &mut Random) -> u64 {
    [0, 0, 200, 2_000][random.index(4)]
}

/// Returns the pattern of the keys of one measurement and two of its values, the lower one first.
fn thresholds(random: &mut Random, feed: &Feed<'_>) -> (String, f64, f64) {
    let number = random.below(READINGS_DRAWN);
    let measurement = feed.sensors().measurement(feed.sensor(number));
    let is_same = |other: &u64| feed.sensors().measurement(feed.sensor(*other)) == measurement;
    let from = random.below(READINGS_DRAWN);
    let other = (from..from + READINGS_DRAWN).find(is_same);
    let value =
        |number: u64| Some(f64::from_le_bytes(feed.value(number))).filter(|v| v.is_finite());
    let one = value(number).unwrap_or(0.0);
    let other = other.and_then(value).unwrap_or(one);
    (format!("{measurement}/#"), one.min(other), one.max(other))
}

/// What the node tells with a crossing at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Telling {
    /// Bits of the last comparable value.
    value: Option<u64>,
    time: Time,
}

/// A crossing: whether it is raised, and what may be told with that.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Crossing {
    is_raised: bool,
    /// At the crossing, and then by a late report, which tells the present value.
    tellings: Vec<Telling>,
}

/// A rule at one sensor.
#[derive(Clone, Debug, Default)]
struct State {
    /// Whether the node has an object of the sensor.
    is_watched: bool,
    is_raised: bool,
    /// Since when values are beyond the threshold without raising it.
    pending_ns: Option<u64>,
    /// The last reading.
    heard_ns: u64,
    /// Bits of the last comparable value.
    value: Option<u64>,
    crossings: Vec<Crossing>,
    /// Crossings up to the one that was told last.
    passed: usize,
    told: u64,
    is_told_raised: bool,
}

impl State {
    fn cross(&mut self, is_raised: bool, time: Time) {
        self.is_raised = is_raised;
        self.pending_ns = None;
        let value = self.value;
        self.crossings.push(Crossing {
            is_raised,
            tellings: vec![Telling { value, time }],
        });
    }

    /// A late report of the last crossing tells the present value from now on, and this time if there is one.
    fn renew(&mut self, time: Option<Time>) {
        if self.passed == self.crossings.len() {
            // It is told.
            return;
        }
        let tellings = self.crossings.last_mut().map(|last| &mut last.tellings);
        if let Some(tellings) = tellings
            && let Some(before) = tellings.last().copied()
        {
            let telling = Telling {
                value: self.value,
                time: time.unwrap_or(before.time),
            };
            if telling != before {
                tellings.push(telling);
            }
        }
    }

    fn raise_if_due(&mut self, raise_after_ms: u64, time: Time, now_ns: u64) {
        let begins = self.pending_ns.is_none();
        let since_ns = *self.pending_ns.get_or_insert(now_ns);
        match now_ns - since_ns >= raise_after_ms * NS_PER_MS {
            true => self.cross(true, time),
            false => self.renew(begins.then_some(time)),
        }
    }

    /// A value with this time. One that is no number changes nothing.
    fn read(&mut self, condition: AlarmCondition, value: f64, time: Time, now_ns: u64) {
        let (is_beyond, is_back, raise_after_ms) = match condition {
            AlarmCondition::Stale { .. } => return,
            AlarmCondition::Above {
                threshold,
                clear,
                raise_after_ms,
            } => (value > threshold, value <= clear, raise_after_ms),
            AlarmCondition::Below {
                threshold,
                clear,
                raise_after_ms,
            } => (value < threshold, value >= clear, raise_after_ms),
        };
        let Some(bits) = bits_of(value) else {
            return;
        };
        self.value = Some(bits);
        match self.is_raised {
            true if is_back => self.cross(false, time),
            true => self.renew(None),
            false if is_beyond => self.raise_if_due(raise_after_ms, time, now_ns),
            false => {
                let was_pending = self.pending_ns.take().is_some();
                self.renew(was_pending.then_some(time));
            }
        }
    }

    /// Any reading, also an old one.
    fn hear(&mut self, condition: AlarmCondition, value: f64, time: Time, now_ns: u64) {
        self.heard_ns = now_ns;
        if !matches!(condition, AlarmCondition::Stale { .. }) {
            return;
        }
        self.value = bits_of(value);
        match self.is_raised {
            true => self.cross(false, time),
            false => self.renew(None),
        }
    }

    /// Time has passed.
    fn look(&mut self, condition: AlarmCondition, wall: Time, now_ns: u64) {
        match condition {
            AlarmCondition::Stale { after_ms } => {
                let silent_ns = now_ns - self.heard_ns;
                if !self.is_raised && silent_ns > after_ms * NS_PER_MS {
                    self.cross(true, wall);
                }
            }
            AlarmCondition::Above { raise_after_ms, .. }
            | AlarmCondition::Below { raise_after_ms, .. } => {
                if self.pending_ns.is_some() {
                    self.raise_if_due(raise_after_ms, wall, now_ns);
                }
            }
        }
    }

    /// The node tells a crossing.
    fn tell(&mut self, is_raised: bool, telling: Telling) -> bool {
        let is_it = |one: &Crossing| one.is_raised == is_raised && one.tellings.contains(&telling);
        let rest = self.crossings.get(self.passed..).unwrap_or_default();
        let Some(at) = rest.iter().position(is_it) else {
            return false;
        };
        let is_news = is_raised != self.is_told_raised;
        self.passed += at + 1;
        self.told += 1;
        self.is_told_raised = is_raised;
        is_news
    }
}

/// The bits of a value; `None`: it is no number, and cannot be compared.
fn bits_of(value: f64) -> Option<u64> {
    (!value.is_nan()).then_some(value.to_bits())
}

/// The model of all alarms of a life.
#[derive(Clone, Debug)]
pub(crate) struct Alarms {
    conditions: Vec<AlarmCondition>,
    /// Of each rule, which sensors match it.
    matching: Vec<Vec<bool>>,
    /// Of each rule, the state of each sensor.
    states: Vec<Vec<State>>,
}

impl Alarms {
    pub(crate) fn new(draw: &AlarmDraw, feed: &Feed<'_>) -> Self {
        let count = feed.sensors().count();
        let matching = draw.rules.iter().map(|rule| {
            let mut is_matching = vec![false; count];
            for sensor in feed.sensors().matching(&rule.pattern) {
                is_matching[usize::from(sensor)] = true;
            }
            is_matching
        });
        Self {
            conditions: draw.rules.iter().map(|rule| rule.condition).collect(),
            matching: matching.collect(),
            states: vec![vec![State::default(); count]; draw.rules.len()],
        }
    }

    /// A life begins: nothing is watched, nothing is raised.
    pub(crate) fn restart(&mut self) {
        for states in &mut self.states {
            states.fill(State::default());
        }
    }

    /// Calls `visit` with the state of each rule that matches a sensor.
    fn each(&mut self, sensor: u16, mut visit: impl FnMut(&mut State, AlarmCondition)) {
        let at = usize::from(sensor);
        let rules = self.states.iter_mut().zip(&self.matching);
        for ((states, matching), condition) in rules.zip(&self.conditions) {
            if matching[at] {
                visit(&mut states[at], *condition);
            }
        }
    }

    /// The node has an object of this sensor.
    pub(crate) fn watch(&mut self, sensor: u16, now_ns: u64) {
        self.each(sensor, |state, _| {
            if !state.is_watched {
                state.is_watched = true;
                state.heard_ns = now_ns;
            }
        });
    }

    /// The start has found this value of a sensor. It is judged as if it came now, but it ends no silence.
    pub(crate) fn begin_with(&mut self, sensor: u16, value: f64, time: Time, now_ns: u64) {
        self.each(sensor, |state, condition| {
            state.read(condition, value, time, now_ns);
        });
    }

    /// A reading was offered, whether or not the node had room for it. `is_news`: it is not older than the latest one.
    pub(crate) fn read(
        &mut self,
        sensor: u16,
        value: f64,
        (time, is_news): (Time, bool),
        now_ns: u64,
    ) {
        self.watch(sensor, now_ns);
        self.each(sensor, |state, condition| {
            if is_news {
                state.read(condition, value, time, now_ns);
            }
            state.hear(condition, value, time, now_ns);
        });
    }

    /// The node judges elapsed time.
    pub(crate) fn scan(&mut self, wall: Time, now_ns: u64) {
        for (states, condition) in self.states.iter_mut().zip(&self.conditions) {
            let watched = states.iter_mut().filter(|state| state.is_watched);
            watched.for_each(|state| state.look(*condition, wall, now_ns));
        }
    }

    /// The node tells a transition of a sensor's object.
    ///
    /// # Errors
    /// I9.
    pub(crate) fn tell(&mut self, told: &AlarmTransition, sensor: u16) -> Result<(), Broken> {
        let rule = told.rule as usize;
        let states = self.states.get_mut(rule);
        let Some(state) = states.and_then(|states| states.get_mut(usize::from(sensor))) else {
            return broken(format!("there is no rule for {told:?}"));
        };
        let value = match told.value {
            None => Some(None),
            Some(AlarmValue::Float(value)) => Some(Some(value.to_bits())),
            // Sensors send no other numbers.
            Some(_) => None,
        };
        let telling = value.map(|value| Telling {
            value,
            time: told.time,
        });
        match telling.is_some_and(|telling| state.tell(told.raised, telling)) {
            true => Ok(()),
            false => broken(format!(
                "sensor {sensor}: {told:?} is told, and the model has {state:?}"
            )),
        }
    }

    /// Checks, once everything is told that the node has to tell, what it has told and what it has counted.
    ///
    /// # Errors
    /// I9.
    pub(crate) fn check_settled(&self, figures: &AlarmFigures) -> Result<(), Broken> {
        let (mut crossed, mut told) = (0, 0);
        for (rule, states) in self.states.iter().enumerate() {
            let is_untold = |state: &State| state.is_raised != state.is_told_raised;
            if let Some(sensor) = states.iter().position(is_untold) {
                let state = &states[sensor];
                return broken(format!(
                    "rule {rule}, sensor {sensor}: {state:?} is not told"
                ));
            }
            let all = states.iter().flat_map(|state| &state.crossings);
            let raised = all.clone().filter(|one| one.is_raised).count() as u64;
            let cleared = all.count() as u64 - raised;
            let counted = figures.rules.get(rule).copied().unwrap_or_default();
            if (counted.raised, counted.cleared) != (raised, cleared) {
                return broken(format!(
                    "rule {rule}: {counted:?}, and it was raised {raised} times and over {cleared} times"
                ));
            }
            crossed += raised + cleared;
            told += states.iter().map(|state| state.told).sum::<u64>();
        }
        if crossed != told + figures.lost {
            let lost = figures.lost;
            return broken(format!(
                "of {crossed} crossings {told} are told and {lost} are counted as lost"
            ));
        }
        Ok(())
    }
}

fn broken<T>(found: String) -> Result<T, Broken> {
    Err(Broken::new(Invariant::Alarms, found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sensors::Sensors;
    use db::{AlarmRuleFigures, ObjectId};

    const MS: u64 = NS_PER_MS;

    fn time(ms: i64) -> Time {
        Time::from_ms(ms)
    }

    #[test]
    fn a_threshold_raises_and_the_other_one_ends_it() {
        let above = |raise_after_ms| AlarmCondition::Above {
            threshold: 5.0,
            clear: 3.0,
            raise_after_ms,
        };
        let mut state = State::default();
        for (at, value) in [(0, 5.0), (1, 6.0), (2, 4.0), (3, 3.0), (4, 4.0), (5, 7.0)] {
            state.read(above(0), value, time(at), at as u64 * MS);
        }
        let crossings = state.crossings.iter();
        let crossings: Vec<_> = crossings.map(|one| one.tellings[0].time.ms()).collect();
        assert_eq!(crossings, [1, 3, 5]);
        let mut state = State::default();
        state.read(above(10), 6.0, time(0), 0);
        state.look(above(10), time(9), 9 * MS);
        assert!(!state.is_raised);
        state.look(above(10), time(10), 10 * MS);
        assert!(state.is_raised);
        let stale = AlarmCondition::Stale { after_ms: 10 };
        let mut state = State::default();
        state.look(stale, time(10), 10 * MS);
        assert!(!state.is_raised);
        state.look(stale, time(11), 11 * MS);
        state.hear(stale, 4.0, time(12), 12 * MS);
        assert_eq!(state.crossings.len(), 2);
    }

    /// A report that finds no room comes later, and tells what the value is by then.
    #[test]
    fn a_late_report_tells_a_value_and_a_time_since_the_crossing() {
        let condition = AlarmCondition::Above {
            threshold: 5.0,
            clear: 3.0,
            raise_after_ms: 10,
        };
        let told = |value: f64, ms| Telling {
            value: bits_of(value),
            time: time(ms),
        };
        let mut state = State::default();
        let values = [(0, 6.0), (10, 7.0), (11, 4.0), (12, 2.0), (13, 8.0)];
        for (at, value) in values {
            state.read(condition, value, time(at), at as u64 * MS);
        }
        assert_eq!(state.crossings.len(), 2);
        for wrong in [told(6.0, 10), told(4.0, 11), told(2.0, 10)] {
            assert!(!state.clone().tell(true, wrong), "{wrong:?}");
        }
        for right in [told(7.0, 10), told(4.0, 10)] {
            assert!(state.clone().tell(true, right), "{right:?}");
        }
        assert!(state.tell(true, told(7.0, 10)));
        for wrong in [told(2.0, 13), told(8.0, 12), told(4.0, 10)] {
            assert!(!state.clone().tell(false, wrong), "{wrong:?}");
        }
        for right in [told(2.0, 12), told(8.0, 13)] {
            assert!(state.clone().tell(false, right), "{right:?}");
        }
    }

    /// What the judge says of tales that are right, late, out of order and false.
    #[test]
    fn each_crossing_is_told_once_in_order_or_counted() {
        let sensors = Sensors::read(1_000).expect("the bundled trace");
        let feed = Feed::new(&sensors, 1, 1);
        let sensor = feed.sensor(0);
        let measurement = sensors.measurement(sensor);
        let draw = AlarmDraw {
            rules: vec![AlarmRule {
                pattern: format!("{measurement}/#"),
                condition: AlarmCondition::Above {
                    threshold: 5.0,
                    clear: 5.0,
                    raise_after_ms: 0,
                },
                objects_max: 1,
            }],
            transitions_max: 1,
        };
        let mut alarms = Alarms::new(&draw, &feed);
        let values = [(1, 6.0), (2, 1.0), (3, 6.0), (4, 1.0), (5, 6.0)];
        for (ms, value) in values {
            alarms.read(sensor, value, (time(ms), true), ms as u64 * MS);
        }
        let told = |raised, ms| AlarmTransition {
            rule: 0,
            object: ObjectId(0),
            raised,
            value: Some(AlarmValue::Float(if raised { 6.0 } else { 1.0 })),
            time: time(ms),
            at_ns: 0,
        };
        let figures = |lost| AlarmFigures {
            rules: vec![AlarmRuleFigures {
                raised: 3,
                cleared: 2,
                ..AlarmRuleFigures::default()
            }],
            lost,
            ..AlarmFigures::default()
        };
        assert!(alarms.check_settled(&figures(4)).is_err(), "it is raised");
        let mut late = alarms.clone();
        assert_eq!(late.tell(&told(true, 5), sensor), Ok(()));
        assert_eq!(late.check_settled(&figures(4)), Ok(()));
        assert!(
            late.check_settled(&figures(2)).is_err(),
            "two are not counted"
        );
        assert!(late.tell(&told(true, 5), sensor).is_err(), "twice");
        let mut all = alarms.clone();
        for (raised, ms) in [(true, 1), (false, 2), (true, 3), (false, 4), (true, 5)] {
            assert_eq!(all.tell(&told(raised, ms), sensor), Ok(()));
        }
        assert_eq!(all.check_settled(&figures(0)), Ok(()));
        assert!(
            alarms.clone().tell(&told(false, 2), sensor).is_err(),
            "over first"
        );
        assert!(
            alarms.clone().tell(&told(true, 2), sensor).is_err(),
            "another time"
        );
        let another_value = AlarmTransition {
            value: Some(AlarmValue::Float(5.5)),
            ..told(true, 1)
        };
        assert!(alarms.clone().tell(&another_value, sensor).is_err());
        assert!(alarms.tell(&told(true, 1), sensor.wrapping_add(1)).is_err());
    }

    #[test]
    fn the_drawn_rules_are_possible() {
        let sensors = Sensors::read(3_000).expect("the bundled trace");
        let feed = Feed::new(&sensors, 1, 1);
        for seed in 0..50 {
            let draw = AlarmDraw::some(&mut Random::new(seed), &feed, 1_100);
            for rule in &draw.rules {
                assert_eq!(rule.check(), Ok(()), "{rule:?}");
                assert!(!sensors.matching(&rule.pattern).is_empty(), "{rule:?}");
            }
        }
    }
}
