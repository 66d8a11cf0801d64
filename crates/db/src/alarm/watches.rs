//! All states, behind the queue's lock: what a put judges, what a scan judges, and the counters. Beside them, what is
//! read without a lock.

use std::sync::Arc;

use base::seeded_bug::SeededBug;

use super::ring::{AlarmTransition, Ring};
use super::rule::{AlarmCondition, AlarmRule, AlarmValue};
use super::state::{Phase, State};
use crate::log::entry::Entry;
use crate::options::ObjectId;
use crate::time::Time;

/// `UNBOUND`: an object that was not examined yet. `NONE`: one that no rule matches, or the end of its states.
const UNBOUND: u32 = u32::MAX;
const NONE: u32 = u32::MAX - 1;

/// The counters of one rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlarmRuleFigures {
    /// Objects watched. `unwatched`: objects that match but are not watched, because there were `objects_max` already.
    pub watched: u64,
    /// See `watched`.
    pub unwatched: u64,
    /// Alarms that are raised now.
    pub active: u64,
    /// Times that an alarm was raised. `cleared`: times that one was over.
    pub raised: u64,
    /// See `raised`.
    pub cleared: u64,
    /// Readings that no threshold can be compared with: texts, NaN, bytes that are no value.
    pub values_unusable: u64,
}

/// The counters of all rules since they were set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlarmFigures {
    /// One for each rule, by its index.
    pub rules: Vec<AlarmRuleFigures>,
    /// Transitions that wait to be taken.
    pub waiting: u64,
    /// Transitions that found no room. What the alarm is by then is reported later.
    pub queue_full: u64,
    /// Transitions that will never be reported, because the alarm was back in its earlier state before there was room.
    /// The transition back counts too, so this is at most twice `queue_full`.
    pub lost: u64,
}

/// Returns whether the rule with this index was raised for this key when the previous run ended.
pub type WasRaised = Box<dyn Fn(usize, &str) -> bool + Send + Sync>;

/// State that does not change once alarms are set: read without a lock.
pub(crate) struct AlarmRules {
    pub(crate) patterns: Box<[String]>,
    pub(crate) ring: Arc<Ring>,
    pub(crate) was_raised: WasRaised,
}

#[derive(Debug)]
pub(crate) struct Watches {
    conditions: Box<[AlarmCondition]>,
    objects_max: Box<[u32]>,
    counts: Box<[AlarmRuleFigures]>,
    /// The first state of each object.
    first: Box<[u32]>,
    /// Never longer than what was reserved.
    states: Vec<State>,
    ring: Arc<Ring>,
    /// Where the scan continues.
    scanned: usize,
    queue_full: u64,
    lost: u64,
}

impl Watches {
    /// Allocates all memory, and touches it.
    pub(crate) fn new(
        rules: &[AlarmRule],
        objects_max: u32,
        states_max: usize,
        ring: Arc<Ring>,
    ) -> Self {
        let mut states = vec![State::new(NONE, NONE, NONE, 1); states_max];
        states.clear();
        Self {
            conditions: rules.iter().map(|rule| rule.condition).collect(),
            objects_max: rules.iter().map(|rule| rule.objects_max).collect(),
            counts: vec![AlarmRuleFigures::default(); rules.len()].into(),
            first: vec![UNBOUND; objects_max as usize].into(),
            states,
            ring,
            scanned: 0,
            queue_full: 0,
            lost: 0,
        }
    }

    /// Returns whether the rules that match this object must be added; `true` once per object.
    pub(crate) fn claim(&mut self, object: u32) -> bool {
        match self.first.get_mut(object as usize) {
            Some(first) if *first == UNBOUND => {
                *first = NONE;
                true
            }
            _ => false,
        }
    }

    /// Adds a rule that matches an object. Returns the place of its state, if there is room for it. `goes_on`: it was
    /// raised when the previous run ended, and was reported as raised.
    pub(crate) fn add(
        &mut self,
        rule: usize,
        object: u32,
        goes_on: bool,
        now_ns: u64,
    ) -> Option<usize> {
        let first = self.first.get_mut(object as usize)?;
        let counts = self.counts.get_mut(rule)?;
        let limit = *self.objects_max.get(rule)?;
        let has_room = self.states.len() < self.states.capacity();
        if counts.watched >= u64::from(limit) || !has_room {
            counts.unwatched += 1;
            return None;
        }
        counts.watched += 1;
        let at = self.states.len();
        let mut state = State::new(rule as u32, object, *first, now_ns);
        if goes_on {
            (state.phase, state.told) = (Phase::Raised, true);
            counts.active += 1;
        }
        self.states.push(state);
        *first = at as u32;
        Some(at)
    }

    /// Reports an alarm that has gone on once more if it still holds, because the earlier report may not have arrived.
    /// If there is no room for that, its end is still reported.
    pub(crate) fn tell_again(&mut self, at: usize, time: Time) {
        let Some(state) = self.states.get_mut(at).filter(|state| state.is_raised()) else {
            return;
        };
        state.time_ns = time.ns();
        state.told = false;
        self.settle(at, true);
        self.states[at].told = true;
    }

    /// Judges the value that an object had before it was watched, unless a reading came first. The lack of readings
    /// since is judged by time alone.
    pub(crate) fn begin_with(&mut self, at: usize, stored: &[u8], time: Time, now_ns: u64) {
        let Some(state) = self.states.get(at) else {
            return;
        };
        if state.value.is_none() && !self.conditions[state.rule as usize].is_stale() {
            self.judge(at, AlarmValue::of(stored), time, now_ns);
        }
    }

    /// Judges a reading of an object; `newer` says whether it is newer than the object's value. An older one also ends
    /// staleness, but not one that was kept for an unknown time before it arrived: its sensor may be dead.
    #[inline]
    pub(crate) fn reading(&mut self, reading: &Entry<'_>, newer: bool) {
        let mut at = self.first.get(reading.id as usize).copied().unwrap_or(NONE);
        if at >= NONE {
            return;
        }
        let value = AlarmValue::of(reading.value);
        while let Some(state) = self.states.get_mut(at as usize) {
            let next = state.next;
            let is_stale = self.conditions[state.rule as usize].is_stale();
            let is_judged = match is_stale {
                true => !reading.retained,
                false => newer && state.is_news(reading.time, reading.node_time),
            };
            if is_judged {
                self.judge(at as usize, value, reading.time, reading.arrival_ns);
            }
            at = next;
        }
    }

    fn judge(&mut self, at: usize, value: Option<AlarmValue>, time: Time, now_ns: u64) {
        let state = &mut self.states[at];
        let rule = state.rule as usize;
        let mut condition = self.conditions[rule];
        if SeededBug::AlarmWithoutHysteresis.is_on()
            && let AlarmCondition::Above {
                threshold, clear, ..
            }
            | AlarmCondition::Below {
                threshold, clear, ..
            } = &mut condition
        {
            *clear = *threshold;
        }
        if value.is_none() && !condition.is_stale() {
            self.counts[rule].values_unusable += 1;
        }
        let was_raised = state.is_raised();
        state.reading(&condition, value, time, now_ns);
        self.settle(at, was_raised);
    }

    /// Judges the next states by time; `true`: there are more in this round.
    pub(crate) fn scan(&mut self, states_max: usize, wall: Time, now_ns: u64) -> bool {
        let end = (self.scanned + states_max).min(self.states.len());
        for at in self.scanned..end {
            let state = &mut self.states[at];
            let was_raised = state.is_raised();
            state.look(&self.conditions[state.rule as usize], wall, now_ns);
            self.settle(at, was_raised);
        }
        let is_more = end < self.states.len();
        self.scanned = if is_more { end } else { 0 };
        is_more
    }

    /// Counts a change, and reports what is not known yet.
    fn settle(&mut self, at: usize, was_raised: bool) {
        let state = &mut self.states[at];
        let is_raised = state.is_raised();
        let has_changed = is_raised != was_raised;
        if has_changed {
            let counts = &mut self.counts[state.rule as usize];
            match is_raised {
                true => {
                    counts.raised += 1;
                    counts.active += 1;
                }
                false => {
                    counts.cleared += 1;
                    counts.active -= 1;
                }
            }
            if state.told == is_raised {
                // The change before this one was not reported, and there is nothing to report now.
                self.lost += 2;
            }
        }
        if state.told == is_raised {
            return;
        }
        let transition = AlarmTransition {
            rule: state.rule,
            object: ObjectId(state.object),
            raised: is_raised,
            value: state.value,
            time: Time::from_ns(state.time_ns),
            at_ns: state.since_ns,
        };
        if self.ring.push(&transition) {
            state.told = is_raised;
            state.was_told |= is_raised;
        } else {
            self.queue_full += u64::from(has_changed);
            if SeededBug::AlarmForgetsWhenFull.is_on() {
                state.told = is_raised;
            }
        }
    }

    pub(crate) fn counts(&self, into: &mut [AlarmRuleFigures]) -> (u64, u64) {
        for (to, from) in into.iter_mut().zip(&self.counts) {
            *to = *from;
        }
        (self.queue_full, self.lost)
    }

    /// Visits at most `states_max` states from `from` on. Returns whether there are more.
    pub(crate) fn each(
        &mut self,
        from: usize,
        states_max: usize,
        mut visit: impl FnMut(&mut State),
    ) -> bool {
        let rest = self.states.get_mut(from..).unwrap_or_default();
        rest.iter_mut().take(states_max).for_each(&mut visit);
        rest.len() > states_max
    }
}
