//! Messages that arrive once for each matching filter, which MQTT 5 permits: the first copy is taken, the others are
//! left out.
//!
//! **Invariant:** a message is left out only if the same message was just taken for another subscription. The broker
//! decides which copies are sent. It may queue only those with QoS 1, send one for several filters, or omit some. Two
//! equal messages for the same subscription are two messages, so the second is no copy. This holds only if one
//! subscription delivers every message. A shared one does not, since other clients of its group get a part, nor does
//! one that was just added or removed. So with two shared subscriptions both messages are taken, and a removal clears
//! the memory of taken messages. So does each connection: a broker that went back to an older save of the session lacks
//! later subscriptions.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;

use super::packet::Publish;

/// Number of messages that are remembered. A broker sends the copies of a message in succession, or nearly so.
const REMEMBERED_MAX: usize = 64;

/// Largest number of subscriptions of one message; with more of them it is always taken.
const NAMES_MAX: usize = 16;

/// The copies of a message arrive within this time, unless the broker is delayed; later ones are taken as messages.
const AGE_MAX: Duration = Duration::from_secs(10);

/// Largest number of subscriptions of a message, over all its copies; no broker has more for one client.
const NAMES_OF_ALL_MAX: usize = 1_000;

/// The bit that marks names of shared subscriptions.
const SHARED: u32 = 1 << 27;

/// Returns the name of a subscription, 1 to 268,435,455: the same in each run, because messages wait at the broker
/// between runs.
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
    /// The subscriptions for which it has arrived.
    names: Vec<u32>,
    /// It is durable when this many readings are.
    lsn_end: u64,
    /// When it was taken.
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

/// The messages taken last on this connection.
#[derive(Debug, Default)]
pub(super) struct Copies {
    hasher: RandomState,
    taken: VecDeque<Taken>,
}

impl Copies {
    /// Returns the identity of a message. `None` if the broker names no subscription, or not readably: then the message
    /// is taken.
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

    /// Returns when the message that `copy` repeats is durable (its `lsn_end`); `None` if there is no such message.
    pub(super) fn before(&mut self, copy: &Copy, now: Duration) -> Option<u64> {
        let taken = self.taken.iter_mut().find(|taken| taken.is_of(copy, now))?;
        taken.names.extend_from_slice(&copy.names);
        Some(taken.lsn_end)
    }

    /// Remembers a message that was taken, or refused for good.
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

    /// Forgets all messages, because a subscription is gone or may be: later messages are no copies of earlier ones.
    /// Between two connections a broker may go back to an older save of the session.
    pub(super) fn forget(&mut self) {
        self.taken.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of shared filters have the highest bit of a variable byte integer.
    const SHARED_A: u8 = 101;
    const SHARED_B: u8 = 102;

    /// Plays what a broker sends, one message per second: the number of the filter and the payload. Returns which of
    /// them are left out.
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
    fn one_copy_of_a_message_is_taken_in_any_order() {
        for (sent, left_out) in [
            (
                &[(1, "a"), (2, "a"), (3, "a")][..],
                &[false, true, true][..],
            ),
            (&[(2, "a"), (1, "a")], &[false, true]),
            // Only the second filter delivers anything.
            (&[(2, "a"), (2, "b"), (2, "a")], &[false, false, false]),
            // The same value twice, in succession and interleaved.
            (
                &[(1, "a"), (2, "a"), (1, "a"), (2, "a")],
                &[false, true, false, true],
            ),
            (
                &[(1, "a"), (1, "a"), (2, "a"), (2, "a")],
                &[false, false, true, true],
            ),
            // With a shared filter another client may have got the original of this copy.
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
    fn messages_taken_long_ago_are_forgotten() {
        let others = |count: usize| {
            let others = ["b", "c", "d", "e"].into_iter().cycle().take(count);
            let mut sent = vec![(1, "a")];
            sent.extend(others.map(|other| (1, other)));
            sent.push((2, "a"));
            play(&sent).contains(&true)
        };
        assert!(others(9) && !others(10));
        // Also by the number of messages.
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
