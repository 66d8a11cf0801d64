//! Messages that come once for each filter that fits them, as MQTT 5 lets a broker send them: the first copy is taken,
//! the others are left out.
//!
//! **Invariant:** nothing is left out but what was taken a moment ago, for another subscription. Which copy comes, and
//! whether all do, is the broker's affair: it may queue only those with QoS 1, send one for several filters, or leave
//! some of them out. Two messages that are alike come for the same subscription, so the second is no copy. That holds
//! as long as one subscription brings every message: a shared one does not, as others of its group get a part, nor does
//! one that has just come or gone. So of two shared ones both are taken, and what was taken before such a change is
//! forgotten.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;

use super::packet::Publish;

/// Messages that are remembered. A broker sends the copies of a message one behind the other, or nearly so.
const REMEMBERED_MAX: usize = 64;

/// Subscriptions of one message; with more of them it is taken as it comes.
const NAMES_MAX: usize = 16;

/// The copies of a message come within this time, unless the broker is held up; later ones are taken as messages.
const AGE_MAX: Duration = Duration::from_secs(10);

/// Subscriptions of a message, over all its copies; no broker has more of one client.
const NAMES_OF_ALL_MAX: usize = 1_000;

/// The bit that names of shared subscriptions have.
const SHARED: u32 = 1 << 27;

/// The name of a subscription, 1 to 268,435,455: the same in each run, as messages wait at the broker meanwhile.
pub(super) fn name_of(filter: &str) -> u32 {
    let name = (crc32c::crc32c(filter.as_bytes()) % SHARED).max(1);
    match filter.starts_with("$share/") {
        true => name | SHARED,
        false => name,
    }
}

/// A message that was taken.
#[derive(Debug)]
struct Taken {
    hash: u64,
    /// The subscriptions for which it has come.
    names: Vec<u32>,
    /// It is durable when so many readings are.
    lsn_end: u64,
    /// When that was.
    at: Duration,
}

impl Taken {
    fn is_of(&self, copy: &Copy, now: Duration) -> bool {
        let is_plain = |name: &u32| name & SHARED == 0;
        self.hash == copy.hash
            && now.saturating_sub(self.at) <= AGE_MAX
            && self.names.len() + copy.names.len() <= NAMES_OF_ALL_MAX
            && copy.names.iter().all(|name| !self.names.contains(name))
            && copy.names.iter().chain(&self.names).any(is_plain)
    }
}

/// What identifies a message, and the subscriptions for which this copy comes.
#[derive(Debug)]
pub(super) struct Copy {
    hash: u64,
    names: Vec<u32>,
}

/// The messages that were taken last, over all connections of a session.
#[derive(Debug, Default)]
pub(super) struct Copies {
    hasher: RandomState,
    taken: VecDeque<Taken>,
}

impl Copies {
    /// `None` where the broker says for no subscription, or not so that it can be read: then it is taken.
    pub(super) fn of(&self, publish: &Publish<'_>) -> Option<Copy> {
        let mut names = Vec::new();
        for name in publish.subscriptions() {
            if names.len() >= NAMES_MAX {
                return None;
            }
            names.push(name?);
        }
        let hash = || {
            let message = (publish.topic, publish.payload, publish.retained);
            self.hasher.hash_one(message)
        };
        (!names.is_empty()).then(|| Copy {
            hash: hash(),
            names,
        })
    }

    /// When the message is durable of which this is another copy; `None`: it has not come.
    pub(super) fn before(&mut self, copy: &Copy, now: Duration) -> Option<u64> {
        let taken = self.taken.iter_mut().find(|taken| taken.is_of(copy, now))?;
        taken.names.extend_from_slice(&copy.names);
        Some(taken.lsn_end)
    }

    /// A message was taken, or refused for good.
    pub(super) fn take(&mut self, copy: Copy, lsn_end: u64, now: Duration) {
        if self.taken.len() >= REMEMBERED_MAX {
            self.taken.pop_front();
        }
        self.taken.push_back(Taken {
            hash: copy.hash,
            names: copy.names,
            lsn_end,
            at: now,
        });
    }

    /// Subscriptions have come or gone, or the session is another one: what comes from now on is no copy of what came
    /// before.
    pub(super) fn forget(&mut self) {
        self.taken.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of shared filters; the highest bit of what a variable byte integer holds is theirs.
    const SHARED_A: u8 = 101;
    const SHARED_B: u8 = 102;

    /// Plays what a broker sends, a message each second: the number of the filter and the payload; which of these are
    /// left out.
    fn play(sent: &[(u8, &str)]) -> Vec<bool> {
        let mut copies = Copies::default();
        let play = |(at, (name, payload)): (usize, &(u8, &str))| {
            let properties = match name {
                0 => Vec::new(),
                name @ (&SHARED_A | &SHARED_B) => vec![0x0b, 0x80 | *name, 0x80, 0x80, 0x40],
                name => vec![0x0b, *name],
            };
            let publish = Publish {
                topic: b"t",
                payload: payload.as_bytes(),
                properties: &properties,
                packet_id: 1,
                qos: 1,
                duplicate: false,
                retained: false,
            };
            let Some(copy) = copies.of(&publish) else {
                return false;
            };
            let now = Duration::from_secs(at as u64);
            if copies.before(&copy, now).is_some() {
                return true;
            }
            copies.take(copy, at as u64, now);
            false
        };
        sent.iter().enumerate().map(play).collect()
    }

    #[test]
    fn one_of_the_copies_of_a_message_is_taken_whatever_comes_first() {
        for (sent, left_out) in [
            (
                &[(1, "a"), (2, "a"), (3, "a")][..],
                &[false, true, true][..],
            ),
            (&[(2, "a"), (1, "a")], &[false, true]),
            // Only the second filter brings anything.
            (&[(2, "a"), (2, "b"), (2, "a")], &[false, false, false]),
            // The same value twice, one behind the other and mixed.
            (
                &[(1, "a"), (2, "a"), (1, "a"), (2, "a")],
                &[false, true, false, true],
            ),
            (
                &[(1, "a"), (1, "a"), (2, "a"), (2, "a")],
                &[false, false, true, true],
            ),
            // Of a shared filter another client may have the copy that would stand for this one.
            (&[(SHARED_A, "a"), (SHARED_B, "a")], &[false, false]),
            (
                &[(SHARED_A, "a"), (1, "a"), (SHARED_B, "a")],
                &[false, true, true],
            ),
            // Without names each one is a message.
            (&[(0, "a"), (0, "a"), (1, "a"), (0, "a")], &[false; 4]),
        ] {
            assert_eq!(play(sent), left_out, "{sent:?}");
        }
    }

    #[test]
    fn what_was_taken_long_ago_is_forgotten() {
        let others = |count: usize| {
            let others = ["b", "c", "d", "e"].into_iter().cycle().take(count);
            let mut sent = vec![(1, "a")];
            sent.extend(others.map(|other| (1, other)));
            sent.push((2, "a"));
            play(&sent).contains(&true)
        };
        assert!(others(9) && !others(10));
        // Also by their number.
        let mut copies = Copies::default();
        let copy = |hash, name| Copy {
            hash,
            names: vec![name],
        };
        for hash in 0..=REMEMBERED_MAX as u64 {
            copies.take(copy(hash, 1), 0, Duration::ZERO);
        }
        let mut is_copy = |hash| copies.before(&copy(hash, 2), Duration::ZERO).is_some();
        assert!(is_copy(1) && !is_copy(0));
    }

    #[test]
    fn names_of_shared_filters_say_so() {
        for (filter, is_shared) in [("a/#", false), ("$share/g/a/#", true), ("#", false)] {
            let name = name_of(filter);
            assert_eq!(name & SHARED != 0, is_shared, "{filter}");
            assert!((1..1 << 28).contains(&name));
        }
        assert_ne!(name_of("a"), name_of("b"));
    }
}
