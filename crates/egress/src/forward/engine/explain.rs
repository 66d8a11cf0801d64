//! What the engine reports about itself.

use super::super::figures::Counters;
use super::{Engine, Part};

impl Engine {
    /// Returns the counters as they were before this run.
    #[must_use]
    pub fn begun(&self) -> &Counters {
        &self.begun
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of readings that cursors have passed after an answer of the upstream.
    #[must_use]
    pub fn answered(&self) -> u64 {
        let refused = self.counters.refused_total();
        self.counters.acknowledged.saturating_add(refused)
    }

    /// Returns the number of unacknowledged readings, wanted or not.
    #[must_use]
    pub fn backlog(&self, durable_end: u64) -> u64 {
        self.parts
            .iter()
            .map(|part| part.end.min(durable_end).saturating_sub(part.next))
            .sum()
    }

    /// Returns the number of answers that matched nothing that was sent.
    #[must_use]
    pub fn answers_unknown(&self) -> u64 {
        self.answers_unknown
    }

    /// Returns the number of readings that were sent and have no answer.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.unanswered_readings
    }

    /// Returns the number of readings that were sent and that the cursor has not passed: a lost connection repeats
    /// them.
    #[must_use]
    pub fn sent_unpassed(&self) -> u64 {
        let sent = self.units.iter().take(self.sent_units);
        sent.map(|unit| u64::from(unit.readings)).sum()
    }

    /// Returns the number of units that were sent and have no answer.
    #[must_use]
    pub fn units_in_flight(&self) -> usize {
        self.unanswered_units
    }

    /// Describes all state that decides what comes next, for error messages of tests.
    #[must_use]
    pub fn explain(&self) -> String {
        let part = |part: &Part| {
            let Part {
                id,
                next,
                end,
                read,
                sent,
                in_doubt,
            } = part;
            format!(
                "part {id}: next {next}, end {end}, read {read}, sent {sent}, in doubt {in_doubt}"
            )
        };
        let parts: Vec<String> = self.parts.iter().map(part).collect();
        let waiting = self
            .units
            .get(self.sent_units)
            .map(|unit| (unit.readings, unit.again));
        format!(
            "{}; window {}, used {}, unwritten {}, units {} of which {} sent, next {waiting:?}, must write {}, \
             cautious {:?}",
            parts.join("; "),
            self.window,
            self.used(),
            self.unwritten,
            self.units.len(),
            self.sent_units,
            self.must_write,
            self.cautious
        )
    }
}
