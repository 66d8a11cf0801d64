//! Whose fault it is that a reading is not taken: its own, or the upstream's. It is passed over only where the upstream
//! takes another one, so that an upstream at fault costs no reading however long it is so.

use super::{Engine, State};

impl Engine {
    /// The first unit that was sent and has no answer: its token, its last number, and its readings.
    #[must_use]
    pub fn front(&self) -> Option<(u64, u64, u32)> {
        let mut sent = self.units.iter().take(self.sent_units);
        let index = sent.position(|unit| unit.state == State::Sent)?;
        let unit = self.units.get(index)?;
        Some((self.first_token + index as u64, unit.end_lsn, unit.readings))
    }

    /// The upstream will not have a unit of one reading, for what that is. `firm`: it has taken another one a moment
    /// before. Then the reading is counted and passed over once it takes another one again. Otherwise, and if the
    /// connection ends before, it is read and sent again.
    pub fn doubt(&mut self, token: u64, firm: bool) -> bool {
        self.answer(token, State::Doubted { firm })
    }

    /// Whether readings were refused before the upstream had taken one. Now that it has they must be sent again: it may
    /// have been mended meanwhile.
    #[must_use]
    pub fn has_weak_doubts(&self) -> bool {
        let mut sent = self.units.iter().take(self.sent_units);
        sent.any(|unit| unit.state == State::Doubted { firm: false })
    }

    /// Whether nothing is on its way but refusals that wait for the upstream to take something.
    #[must_use]
    pub fn waits_for_proof(&self) -> bool {
        let mut sent = self.units.iter().take(self.sent_units);
        self.unanswered_units == 0 && sent.any(|unit| matches!(unit.state, State::Doubted { .. }))
    }

    /// Nothing comes that could prove it: what was refused just after the upstream had taken something is refused.
    pub fn settle(&mut self) {
        self.confirm();
        self.pass_answered();
    }

    /// The upstream has taken a unit.
    pub(super) fn confirm(&mut self) {
        for unit in self.units.iter_mut().take(self.sent_units) {
            if unit.state == (State::Doubted { firm: true }) {
                unit.state = State::Refused;
                self.fresh_readings += unit.fresh();
            }
        }
    }

    /// Whether a unit is sent only when the one before has been answered: then the connection ends because of it, or
    /// because of none.
    pub fn one_at_a_time(&mut self, alone: bool) {
        self.is_alone = alone;
    }

    /// Over the next connection so many units are not sent, and the one behind them is, if there is one. It ends with
    /// [`go_back`](Self::go_back).
    pub fn skip(&mut self, units: usize) {
        self.skip = units;
    }

    /// Whether units are skipped over this connection.
    #[must_use]
    pub fn is_skipping(&self) -> bool {
        let first = self.units.front().filter(|_| self.sent_units > 0);
        first.is_some_and(|unit| unit.state == State::Skipped)
    }

    /// Whether the next unit may be sent, as far as those before it go; skips those that are to be skipped.
    pub(super) fn may_send(&mut self) -> bool {
        if self.is_alone && self.unanswered_units > 0 {
            return false;
        }
        if self.skip == 0 || self.sent_units > 0 {
            return true;
        }
        if self.units.len() <= self.skip && self.draft.is_some() {
            // Another one comes in a moment.
            return false;
        }
        let count = self.skip.min(self.units.len().saturating_sub(1));
        self.skip = 0;
        let fresh = |units: usize| -> u64 {
            let units = self.units.iter().take(units);
            units.map(super::Unit::fresh).sum()
        };
        // What is skipped counts as sent, as it will do when it is read again: so the window has to have room for it.
        if self.used() + fresh(count + 1) > self.window {
            return true;
        }
        for unit in self.units.iter_mut().take(count) {
            unit.state = State::Skipped;
            self.fresh_readings += unit.fresh();
            self.waiting_bytes = self.waiting_bytes.saturating_sub(unit.bytes.len());
            let readings = u64::from(unit.readings);
            self.waiting_readings = self.waiting_readings.saturating_sub(readings);
        }
        self.sent_units = count;
        true
    }
}
