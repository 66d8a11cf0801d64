//! Which readings go upstream, how many of them, and with which deadline: rules by key.

use super::options::{KeyRule, Late};
use base::pattern;

/// How readings of one object are forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) downsample_ms: u64,
    pub(crate) deadline_ms: u64,
    pub(crate) late: Late,
    /// Written before each of its readings, depending on the format: a topic, or the beginning of a line.
    pub(crate) prefix: Box<[u8]>,
}

/// Returns the rule for a key: the first whose pattern matches. `None` if the key does not go upstream.
pub(crate) fn rule_of<'r>(rules: &'r [KeyRule], key: &str) -> Option<&'r KeyRule> {
    rules
        .iter()
        .find(|rule| pattern::matches(&rule.pattern, key))
        .filter(|rule| rule.forward)
}

/// Down-sampling: for each object at most one reading per slot of its interval, the first that arrives.
///
/// **Going back.** Readings that are read again after a lost connection must get the same decisions. So there are two
/// states: that of the acknowledged readings, and that of the readings read so far. Going back resets the second to the
/// first.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    acknowledged: Vec<i64>,
    read: Vec<i64>,
}

const NONE: i64 = i64::MIN;

impl Slots {
    /// Returns the slot if this reading is the first of it, and marks the slot as taken.
    pub(crate) fn take(&mut self, object: u32, time_ms: i64, interval_ms: u64) -> Option<i64> {
        let interval = i64::try_from(interval_ms).unwrap_or(i64::MAX).max(1);
        let slot = time_ms.div_euclid(interval);
        let last = place(&mut self.read, object);
        if *last == slot {
            return None;
        }
        *last = slot;
        Some(slot)
    }

    /// Records that the reading of this slot is to be decided again.
    pub(crate) fn forget(&mut self, object: u32, slot: i64) {
        let last = place(&mut self.read, object);
        if *last == slot {
            *last = NONE;
        }
    }

    /// Records that a reading has been acknowledged.
    pub(crate) fn acknowledge(&mut self, object: u32, slot: i64) {
        *place(&mut self.acknowledged, object) = slot;
    }

    /// Records that everything unacknowledged will be read again.
    pub(crate) fn go_back(&mut self) {
        self.read.clone_from(&self.acknowledged);
    }
}

fn place(slots: &mut Vec<i64>, object: u32) -> &mut i64 {
    let index = object as usize;
    if slots.len() <= index {
        slots.resize(index + 1, NONE);
    }
    &mut slots[index]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reading_of_a_slot_goes_and_going_back_decides_the_same() {
        let mut slots = Slots::default();
        assert_eq!(slots.take(3, 0, 1000), Some(0));
        assert_eq!(slots.take(3, 999, 1000), None);
        assert_eq!(slots.take(3, 1000, 1000), Some(1));
        assert_eq!(slots.take(9, -1, 1000), Some(-1));
        slots.acknowledge(3, 0);
        slots.go_back();
        // Read again, from after the reading at 0.
        assert_eq!(slots.take(3, 999, 1000), None);
        assert_eq!(slots.take(3, 1000, 1000), Some(1));
        assert_eq!(slots.take(9, -1, 1000), Some(-1));
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let rule = |pattern: &str, forward| KeyRule {
            pattern: pattern.to_owned(),
            forward,
            ..KeyRule::default()
        };
        let rules = [rule("a/secret", false), rule("a/#", true)];
        assert!(rule_of(&rules, "a/secret").is_none());
        assert_eq!(
            rule_of(&rules, "a/b").map(|rule| rule.pattern.as_str()),
            Some("a/#")
        );
        assert!(rule_of(&rules, "b").is_none());
    }
}
