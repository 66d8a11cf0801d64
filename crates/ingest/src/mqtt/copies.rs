//! Messages that come once for each filter that fits them, as MQTT 5 lets a broker send them: the first copy is taken,
//! the others are left out.
//!
//! **Invariant:** nothing is left out but what was taken a moment ago, for another subscription. Which copy comes, and
//! whether all do, is the broker's affair: it may queue only those with QoS 1, send one for several filters, or leave
//! some of them out. Two messages that are alike come for the same subscription, so the second is no copy.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use super::packet::Publish;

/// Messages that are remembered. A broker sends the copies of a message one behind the other, or nearly so.
const REMEMBERED_MAX: usize = 64;

/// Subscriptions of one message; with more of them it is taken as it comes.
const NAMES_MAX: usize = 16;

/// A message that was taken.
#[derive(Debug)]
struct Taken {
    hash: u64,
    /// The subscriptions for which it has come.
    names: Vec<u32>,
    /// It is durable when so many readings are.
    lsn_end: u64,
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
    pub(super) fn before(&mut self, copy: &Copy) -> Option<u64> {
        let is_it = |taken: &&mut Taken| {
            taken.hash == copy.hash && copy.names.iter().all(|name| !taken.names.contains(name))
        };
        let taken = self.taken.iter_mut().find(is_it)?;
        taken.names.extend_from_slice(&copy.names);
        Some(taken.lsn_end)
    }

    /// A message was taken, or refused for good.
    pub(super) fn take(&mut self, copy: Copy, lsn_end: u64) {
        if self.taken.len() >= REMEMBERED_MAX {
            self.taken.pop_front();
        }
        self.taken.push_back(Taken {
            hash: copy.hash,
            names: copy.names,
            lsn_end,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays what a broker sends: the number of the filter and the payload; which of these are left out.
    fn play(sent: &[(u8, &str)]) -> Vec<bool> {
        let mut copies = Copies::default();
        let play = |(at, (name, payload)): (usize, &(u8, &str))| {
            let properties = match name {
                0 => Vec::new(),
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
            if copies.before(&copy).is_some() {
                return true;
            }
            copies.take(copy, at as u64);
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
            // Without names each one is a message.
            (&[(0, "a"), (0, "a"), (1, "a"), (0, "a")], &[false; 4]),
        ] {
            assert_eq!(play(sent), left_out, "{sent:?}");
        }
    }

    #[test]
    fn what_was_taken_long_ago_is_forgotten() {
        let texts: Vec<String> = (0..REMEMBERED_MAX).map(|n| n.to_string()).collect();
        let mut sent = vec![(1, "a")];
        sent.extend(texts.iter().map(|text| (1, text.as_str())));
        sent.push((2, "a"));
        assert!(!play(&sent).contains(&true));
    }
}
