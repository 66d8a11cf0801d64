//! The calls for alarms.

use std::sync::Arc;

use super::Database;
use crate::alarm::ring::{AlarmTransition, Ring};
use crate::alarm::rule::{ALARM_QUEUE_MAX, ALARM_RULES_MAX, ALARM_WATCHES_MAX, AlarmRule};
use crate::alarm::state::{ActiveAlarm, State};
use crate::alarm::watches::{AlarmFigures, AlarmRuleFigures, AlarmRules, WasRaised, Watches};
use crate::error::Error;
use crate::options::ObjectId;
use crate::store::SegmentStore;
use crate::time::Time;

/// States that are judged under one hold of the queue's lock, which takes about as long as a put.
const PIECE_STATES: usize = 64;

impl<S: SegmentStore> Database<S> {
    /// Watches objects from now on, including those declared later. `transitions_max` is how many transitions can wait
    /// for [`next_alarm`](Self::next_alarm). All memory is allocated here; call this once, before readings arrive.
    ///
    /// The call that puts a reading judges it if it is newer than its object's value. It does so for readings that are
    /// admitted to the table, that are shed, and that [`put`](Self::put) cannot queue. Durations and staleness are
    /// judged by [`scan_alarms`](Self::scan_alarms). Values found by the start are judged as if they arrived now, so an
    /// alarm that holds is raised again.
    ///
    /// # Errors
    /// [`Error::AlarmInvalid`].
    pub fn set_alarms(&self, rules: &[AlarmRule], transitions_max: u32) -> Result<(), Error> {
        self.set_alarms_after(rules, transitions_max, Box::new(|_, _| false))
    }

    /// As [`set_alarms`](Self::set_alarms), after another run: `was_raised` is called once for each rule and each key
    /// that matches it, including keys declared later. An alarm raised then stays raised until its value says
    /// otherwise, also between the two thresholds. It is reported as over, or, if the key exists already, as raised
    /// once more.
    ///
    /// # Errors
    /// [`Error::AlarmInvalid`].
    pub fn set_alarms_after(
        &self,
        rules: &[AlarmRule],
        transitions_max: u32,
        was_raised: WasRaised,
    ) -> Result<(), Error> {
        let invalid = |problem| Error::AlarmInvalid { problem };
        rules.iter().try_for_each(AlarmRule::check)?;
        if rules.len() > ALARM_RULES_MAX {
            return Err(invalid("there are more than 256 alarms"));
        }
        if transitions_max == 0 || transitions_max > ALARM_QUEUE_MAX {
            return Err(invalid("1 to 65536 transitions can wait"));
        }
        let objects_max = self.shared.options.objects_max;
        let watched = rules
            .iter()
            .map(|rule| u64::from(rule.objects_max.min(objects_max)));
        let states_max: u64 = watched.sum();
        if states_max > ALARM_WATCHES_MAX {
            return Err(invalid("all alarms together watch more than 1048576 keys"));
        }
        let ring = Arc::new(Ring::new(transitions_max));
        let watches = Watches::new(rules, objects_max, states_max as usize, Arc::clone(&ring));
        let known = AlarmRules {
            patterns: rules.iter().map(|rule| rule.pattern.clone()).collect(),
            ring,
            was_raised,
        };
        if self.shared.alarms.set(known).is_err() {
            return Err(invalid("alarms can be set once"));
        }
        self.shared.queue.lock().alarms = Some(Box::new(watches));
        for id in 0..self.objects() {
            self.bind(ObjectId(id), true);
        }
        Ok(())
    }

    /// Finds the rules that match an object; once per object.
    pub(crate) fn bind_alarms(&self, id: ObjectId) {
        self.bind(id, false);
    }

    /// `is_start`: the object existed when alarms were set. One declared later is judged by its first reading.
    fn bind(&self, id: ObjectId, is_start: bool) {
        let shared = &*self.shared;
        let Some(rules) = shared.alarms.get() else {
            return;
        };
        let claimed = shared
            .queue
            .lock()
            .alarms
            .as_mut()
            .is_some_and(|all| all.claim(id.0));
        if !claimed {
            return;
        }
        let key = shared.table.key(id);
        // No number is longer; a longer value cannot be compared.
        let mut stored = [0; 9];
        for (rule, pattern) in rules.patterns.iter().enumerate() {
            if !base::pattern::matches(pattern, key.as_str()) {
                continue;
            }
            let goes_on = (rules.was_raised)(rule, key.as_str());
            let now_ns = shared.clock.monotonic_ns();
            let mut queue = shared.queue.lock();
            let added = queue
                .alarms
                .as_mut()
                .and_then(|all| all.add(rule, id.0, goes_on, now_ns));
            drop(queue);
            let Some(at) = added else {
                continue;
            };
            // Read outside the lock: a reader may have to wait if another process writes over the memory.
            let read = shared.table.read(id, &mut stored).ok();
            let wall = Time::from_ns(shared.clock.wall_ns());
            if let Some(alarms) = &mut shared.queue.lock().alarms {
                if let Some(read) = &read {
                    let value = stored.get(..read.value_bytes).unwrap_or_default();
                    alarms.begin_with(at, value, read.time, now_ns);
                }
                if goes_on && is_start {
                    alarms.tell_again(at, read.map_or(wall, |read| read.time));
                }
            }
        }
    }

    /// Judges by time: alarms that have held for their minimum duration, objects without new readings, and transitions
    /// that found no room when they happened. One pass over all watched states; producers wait for at most one piece of
    /// it, as for a put. Call it as often as staleness must be exact.
    pub fn scan_alarms(&self) {
        let shared = &*self.shared;
        if shared.alarms.get().is_none() {
            return;
        }
        loop {
            let wall = Time::from_ns(shared.clock.wall_ns());
            let now_ns = shared.clock.monotonic_ns();
            let mut queue = shared.queue.lock();
            let is_more = queue
                .alarms
                .as_mut()
                .is_some_and(|all| all.scan(PIECE_STATES, wall, now_ns));
            if !is_more {
                return;
            }
        }
    }

    /// Takes the oldest waiting transition. Takes no lock: no producer ever waits for the caller.
    pub fn next_alarm(&self) -> Option<AlarmTransition> {
        self.shared.alarms.get()?.ring.pop()
    }

    /// Returns the counters of the alarms; empty if none are set.
    pub fn alarm_figures(&self) -> AlarmFigures {
        let Some(rules) = self.shared.alarms.get() else {
            return AlarmFigures::default();
        };
        let mut found = vec![AlarmRuleFigures::default(); rules.patterns.len()];
        let queue = self.shared.queue.lock();
        let (queue_full, lost) = queue
            .alarms
            .as_ref()
            .map_or((0, 0), |all| all.counts(&mut found));
        drop(queue);
        AlarmFigures {
            rules: found,
            waiting: rules.ring.waiting(),
            queue_full,
            lost,
        }
    }

    /// Returns the raised alarms, at most `alarms_max`. Producers wait for at most one piece of the pass.
    pub fn active_alarms(&self, alarms_max: usize) -> Vec<ActiveAlarm> {
        self.pick_alarms(alarms_max, |state| {
            state.is_raised().then_some(ActiveAlarm {
                rule: state.rule,
                object: ObjectId(state.object),
                since_ns: state.since_ns,
                time: Time::from_ns(state.time_ns),
                value: state.value,
            })
        })
    }

    /// Returns rule and object of each alarm that is raised, or that was reported as raised since the previous call and
    /// is over. The flag says whether it is raised. Returns at most `alarms_max`. For one caller.
    pub fn raised_alarms(&self, alarms_max: usize) -> Vec<(u32, ObjectId, bool)> {
        self.pick_alarms(alarms_max, |state| {
            let was_told = std::mem::take(&mut state.was_told);
            let is_raised = state.is_raised();
            let raised = (state.rule, ObjectId(state.object), is_raised);
            (was_told || is_raised).then_some(raised)
        })
    }

    /// Returns what `pick` selects from the states of all alarms, at most `alarms_max`.
    fn pick_alarms<T>(
        &self,
        alarms_max: usize,
        mut pick: impl FnMut(&mut State) -> Option<T>,
    ) -> Vec<T> {
        let mut picked = Vec::with_capacity(alarms_max.min(1 << 16));
        let mut from = 0;
        loop {
            let mut queue = self.shared.queue.lock();
            let Some(alarms) = &mut queue.alarms else {
                return picked;
            };
            let is_more = alarms.each(from, PIECE_STATES, |state| {
                // Never more than there is room for: nothing is allocated under the lock.
                if let Some(one) = pick(state)
                    && picked.len() < picked.capacity().min(alarms_max)
                {
                    picked.push(one);
                }
            });
            if !is_more {
                return picked;
            }
            drop(queue);
            from += PIECE_STATES;
        }
    }

    /// Returns how many readings were offered to the table for this object; a change means that its value may be
    /// another one. No lock, no system call. 0 for an unknown object.
    pub fn version(&self, id: ObjectId) -> u64 {
        self.shared.table.version(id)
    }
}
