//! The state of one rule for one object: raised or not, since when, and what was reported last.

use super::rule::{AlarmCondition, AlarmValue};
use crate::options::ObjectId;
use crate::time::Time;

/// An alarm that is raised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActiveAlarm {
    /// The rule, by its index.
    pub rule: u32,
    /// The object.
    pub object: ObjectId,
    /// Since when it is raised, on the monotonic clock.
    pub since_ns: u64,
    /// The time of the reading that raised it, or the node's.
    pub time: Time,
    /// The last comparable value of the object, if it has had one.
    pub value: Option<AlarmValue>,
}

/// The phase of an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Clear,
    /// Values are beyond the threshold, but not yet for long enough.
    Pending,
    Raised,
}

/// The state of one rule for one object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    pub(crate) rule: u32,
    pub(crate) object: u32,
    /// The next state of the same object.
    pub(crate) next: u32,
    pub(crate) phase: Phase,
    /// Whether it was last reported as raised.
    pub(crate) told: bool,
    /// Whether it was reported as raised since the last call of `raised_alarms`.
    pub(crate) was_told: bool,
    /// Begin of this phase; for a staleness that is not raised, the arrival of the last reading.
    pub(crate) since_ns: u64,
    /// The last comparable value.
    pub(crate) value: Option<AlarmValue>,
    /// The time of the event that changed the phase last.
    pub(crate) time_ns: i64,
    /// The time of the last reading, and whether the node's clock gave it.
    last_ns: i64,
    last_node_time: bool,
}

impl State {
    pub(crate) fn new(rule: u32, object: u32, next: u32, now_ns: u64) -> Self {
        Self {
            rule,
            object,
            next,
            phase: Phase::Clear,
            told: false,
            was_told: false,
            since_ns: now_ns,
            value: None,
            time_ns: 0,
            last_ns: i64::MIN,
            last_node_time: false,
        }
    }

    /// Returns whether a reading is newer than the last one, by the table's rule; the table itself does not know
    /// readings that were shed. If so, it becomes the last one.
    pub(crate) fn is_news(&mut self, time: Time, node_time: bool) -> bool {
        let time_ns = time.ns();
        let is_news = node_time || self.last_node_time || time_ns >= self.last_ns;
        if is_news {
            self.last_ns = time_ns;
            self.last_node_time = node_time;
        }
        is_news
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.phase == Phase::Raised
    }

    /// Judges a reading. `None`: the value cannot be compared with a threshold, and changes nothing for one.
    pub(crate) fn reading(
        &mut self,
        condition: &AlarmCondition,
        value: Option<AlarmValue>,
        time: Time,
        now_ns: u64,
    ) {
        let (is_beyond, is_back, raise_after_ms) = match (*condition, value) {
            (AlarmCondition::Stale { .. }, value) => {
                self.value = value;
                if self.is_raised() {
                    self.time_ns = time.ns();
                }
                self.phase = Phase::Clear;
                self.since_ns = now_ns;
                return;
            }
            (_, None) => return,
            (
                AlarmCondition::Above {
                    threshold,
                    clear,
                    raise_after_ms,
                },
                Some(value),
            ) => (
                value.is_above(threshold),
                !value.is_above(clear),
                raise_after_ms,
            ),
            (
                AlarmCondition::Below {
                    threshold,
                    clear,
                    raise_after_ms,
                },
                Some(value),
            ) => (
                value.is_below(threshold),
                !value.is_below(clear),
                raise_after_ms,
            ),
        };
        self.value = value;
        match self.phase {
            Phase::Raised if is_back => self.enter(Phase::Clear, time, now_ns),
            Phase::Raised => {}
            Phase::Clear if is_beyond => {
                self.enter(Phase::Pending, time, now_ns);
                self.raise_if_due(raise_after_ms, time, now_ns);
            }
            Phase::Pending if is_beyond => self.raise_if_due(raise_after_ms, time, now_ns),
            Phase::Pending => self.enter(Phase::Clear, time, now_ns),
            Phase::Clear => {}
        }
    }

    /// Judges the elapsed time.
    pub(crate) fn look(&mut self, condition: &AlarmCondition, wall: Time, now_ns: u64) {
        match (*condition, self.phase) {
            (AlarmCondition::Stale { after_ms }, Phase::Clear) => {
                let silent_ns = now_ns.saturating_sub(self.since_ns);
                if silent_ns > after_ms.saturating_mul(1_000_000) {
                    self.enter(Phase::Raised, wall, now_ns);
                }
            }
            (
                AlarmCondition::Above { raise_after_ms, .. }
                | AlarmCondition::Below { raise_after_ms, .. },
                Phase::Pending,
            ) => self.raise_if_due(raise_after_ms, wall, now_ns),
            _ => {}
        }
    }

    fn raise_if_due(&mut self, raise_after_ms: u64, time: Time, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.since_ns);
        if passed_ns >= raise_after_ms.saturating_mul(1_000_000) {
            self.enter(Phase::Raised, time, now_ns);
        }
    }

    fn enter(&mut self, phase: Phase, time: Time, now_ns: u64) {
        self.phase = phase;
        self.time_ns = time.ns();
        self.since_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;
    const NONE: Time = Time::from_ms(0);

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Value(i64),
        Text,
        Look,
    }

    /// The rule stated over the whole history instead of step by step. Returns whether it is raised after the last
    /// step.
    fn model(condition: &AlarmCondition, steps: &[(u64, Step)]) -> bool {
        let mut raised = false;
        let mut last_heard = 0;
        for end in 1..=steps.len() {
            let (now, step) = steps[end - 1];
            match *condition {
                AlarmCondition::Stale { after_ms } => match step {
                    Step::Look => raised |= now - last_heard > after_ms,
                    Step::Value(_) | Step::Text => {
                        raised = false;
                        last_heard = now;
                    }
                },
                AlarmCondition::Above {
                    threshold,
                    clear,
                    raise_after_ms,
                } => raised = level(raised, &steps[..end], threshold, clear, raise_after_ms, 1.0),
                AlarmCondition::Below {
                    threshold,
                    clear,
                    raise_after_ms,
                } => {
                    raised = level(
                        raised,
                        &steps[..end],
                        threshold,
                        clear,
                        raise_after_ms,
                        -1.0,
                    )
                }
            }
        }
        raised
    }

    /// `sign` turns below into above.
    fn level(
        was_raised: bool,
        steps: &[(u64, Step)],
        threshold: f64,
        clear: f64,
        raise_after_ms: u64,
        sign: f64,
    ) -> bool {
        let numbers: Vec<(u64, f64)> = steps
            .iter()
            .filter_map(|(at, step)| match step {
                Step::Value(value) => Some((*at, *value as f64 * sign)),
                _ => None,
            })
            .collect();
        let Some((_, last)) = numbers.last() else {
            return false;
        };
        // A value that is no number does not cause a check of the time either.
        if matches!(steps.last(), Some((_, Step::Text))) {
            return was_raised;
        }
        if was_raised {
            return *last > clear * sign;
        }
        // How long the values have been beyond without a gap, back from now. An alarm that was over begins again, but a
        // value that ends one is not beyond.
        let run = numbers
            .iter()
            .rev()
            .take_while(|(_, value)| *value > threshold * sign);
        let begin = run.last();
        let now = steps.last().map_or(0, |(at, _)| *at);
        begin.is_some_and(|(at, _)| now - at >= raise_after_ms)
    }

    fn condition() -> impl Strategy<Value = AlarmCondition> {
        let times = || 0..40_u64;
        prop_oneof![
            (-5..5_i64, 0..4_i64, times()).prop_map(|(t, gap, raise_after_ms)| {
                AlarmCondition::Above {
                    threshold: t as f64,
                    clear: (t - gap) as f64,
                    raise_after_ms,
                }
            }),
            (-5..5_i64, 0..4_i64, times()).prop_map(|(t, gap, raise_after_ms)| {
                AlarmCondition::Below {
                    threshold: t as f64,
                    clear: (t + gap) as f64,
                    raise_after_ms,
                }
            }),
            (1..40_u64).prop_map(|after_ms| AlarmCondition::Stale { after_ms }),
        ]
    }

    fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
        let step = prop_oneof![
            6 => (-8..8_i64).prop_map(Step::Value),
            1 => Just(Step::Text),
            3 => Just(Step::Look),
        ];
        prop::collection::vec((0..15_u64, step), 1..60).prop_map(|steps| {
            let mut now = 0;
            steps
                .into_iter()
                .map(|(passed, step)| {
                    now += passed;
                    (now, step)
                })
                .collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn an_alarm_is_raised_when_the_plain_rule_says_so(condition in condition(), steps in steps()) {
            let mut state = State::new(0, 0, 0, 0);
            for (at, (now, step)) in steps.iter().enumerate() {
                match step {
                    Step::Value(value) => {
                        state.reading(&condition, Some(AlarmValue::Integer(*value)), NONE, now * MS);
                    }
                    Step::Text => state.reading(&condition, None, NONE, now * MS),
                    Step::Look => state.look(&condition, NONE, now * MS),
                }
                prop_assert_eq!(state.is_raised(), model(&condition, &steps[..=at]), "after step {}", at);
            }
        }
    }

    #[test]
    fn an_alarm_stays_as_it_is_between_its_thresholds() {
        let condition = AlarmCondition::Above {
            threshold: 60.0,
            clear: 55.0,
            raise_after_ms: 0,
        };
        let mut state = State::new(0, 0, 0, 0);
        let mut raised = Vec::new();
        for value in [54.0, 58.0, 60.0, 60.1, 58.0, 60.5, 55.1, 55.0, 58.0, 61.0] {
            state.reading(&condition, Some(AlarmValue::Float(value)), NONE, 0);
            raised.push(u8::from(state.is_raised()));
        }
        assert_eq!(raised, [0, 0, 0, 1, 1, 1, 1, 0, 0, 1]);
    }

    #[test]
    fn a_value_that_stays_is_raised_without_another_reading() {
        let condition = AlarmCondition::Below {
            threshold: 5.0,
            clear: 5.0,
            raise_after_ms: 10,
        };
        let mut state = State::new(0, 0, 0, 0);
        state.reading(
            &condition,
            Some(AlarmValue::Integer(4)),
            Time::from_ns(7),
            0,
        );
        state.look(&condition, Time::from_ns(8), 10 * MS - 1);
        assert!(!state.is_raised());
        state.look(&condition, Time::from_ns(9), 10 * MS);
        assert!(state.is_raised());
        assert_eq!(
            (state.time_ns, state.value),
            (9, Some(AlarmValue::Integer(4)))
        );
    }
}
