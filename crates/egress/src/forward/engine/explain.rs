//! The engine in words.

use super::{Engine, Part};

impl Engine {
    /// Everything that decides what comes next, for errors of tests.
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
