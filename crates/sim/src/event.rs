//! The one queue of events: what happens next, at which virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use base::sim::Random;

/// Something that happens in one life of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Event {
    /// A source offers what is due.
    Offer {
        /// Its index.
        source: usize,
    },
    /// The commit side runs.
    Commit,
    /// The sources hear how far the log is durable.
    Announce {
        /// The number below which all readings are.
        durable_end: u64,
    },
    /// A second has passed: a look into the log.
    Second,
    /// The maintenance thread takes a step.
    Maintain,
    /// The wall clock may jump; values and alarms are looked at.
    Look,
    /// Forwarding to an upstream has a turn.
    Forward {
        /// Its index.
        upstream: usize,
    },
    /// An answer of an upstream reaches the node.
    Answer {
        /// Its index.
        upstream: usize,
        /// The connection over which it comes.
        connection: u64,
        /// The unit that it answers.
        token: u64,
    },
    /// The node notices that a connection to an upstream is lost.
    Lost {
        /// Its index.
        upstream: usize,
        /// Number of the connection.
        connection: u64,
    },
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at_ns: u64,
    /// Drawn: the seed orders the events of one time.
    order: u64,
    number: u64,
    event: Event,
}

/// Events by their time.
pub(crate) struct Queue {
    heap: BinaryHeap<Reverse<Due>>,
    random: Random,
    pushed: u64,
}

impl Queue {
    pub(crate) fn new(random: Random) -> Self {
        Self {
            heap: BinaryHeap::new(),
            random,
            pushed: 0,
        }
    }

    /// Adds an event.
    pub(crate) fn push(&mut self, at_ns: u64, event: Event) {
        self.pushed += 1;
        self.heap.push(Reverse(Due {
            at_ns,
            order: self.random.next_u64(),
            number: self.pushed,
            event,
        }));
    }

    /// Takes the next event, with its time.
    pub(crate) fn pop(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|Reverse(due)| (due.at_ns, due.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_orders_and_the_seed_decides_between_equal_times() {
        let order = |seed| {
            let mut queue = Queue::new(Random::new(seed));
            queue.push(9, Event::Second);
            for source in 0..20 {
                queue.push(5, Event::Offer { source });
            }
            queue.push(4, Event::Commit);
            let mut popped = Vec::new();
            while let Some(next) = queue.pop() {
                popped.push(next);
            }
            popped
        };
        let first = order(1);
        assert!(first.is_sorted_by_key(|(at_ns, _)| *at_ns));
        assert_eq!((first[0].1, first[21].1), (Event::Commit, Event::Second));
        assert_eq!(first, order(1));
        assert_ne!(first, order(2));
    }
}
