//! A communicator that counts the data that passes through it and measures its time.
//!
//! It counts payload, as if each operation goes through rank 0: a library with another algorithm moves more or less on
//! each link. The time of an operation includes the wait for ranks that join it later.

use super::communicator::{Communicator, Failure};
use crate::model::Exchange;
use std::time::{Duration, Instant};

/// Size of a number, in bytes.
const WORD: u64 = 8;

/// The communication of one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Number of operations.
    pub operations: u64,
    /// Payload that this rank has sent to others.
    pub sent_bytes: u64,
    /// Time in operations, including the wait for others.
    pub time: Duration,
    /// The same operations as the model counts them: messages of equal size, each in ceil(log2 n) rounds.
    exchanges: u64,
    exchanged_bytes: u64,
}

impl Traffic {
    /// Returns the equal exchanges that cost as much in the model as these operations: their number and their mean
    /// size.
    ///
    /// Scattering or gathering M bytes in total counts as one exchange of M ÷ 2. Along a tree, rank 0 sends M (n − 1) ÷
    /// n. This is M ÷ 2 in each of the log2 n rounds for 2 ranks, and less for more.
    #[must_use]
    pub fn exchange(&self) -> Exchange {
        let times = self.exchanges as f64;
        let bytes = self.exchanged_bytes as f64 / times.max(1.0);
        Exchange { times, bytes }
    }

    fn count(&mut self, sent: usize, exchanged_bytes: u64, begun: Instant) {
        self.operations += 1;
        self.sent_bytes += WORD * sent as u64;
        self.time += begun.elapsed();
        self.exchanges += 1;
        self.exchanged_bytes += exchanged_bytes;
    }
}

/// A communicator with a counter.
pub struct Counted<'c> {
    inner: &'c mut dyn Communicator,
    traffic: Traffic,
}

impl<'c> Counted<'c> {
    /// Starts counting.
    pub fn new(inner: &'c mut dyn Communicator) -> Self {
        Self {
            inner,
            traffic: Traffic::default(),
        }
    }

    /// Returns the traffic so far.
    #[must_use]
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Returns the number of other ranks, as a factor.
    fn others(&self) -> usize {
        self.inner.size() - 1
    }

    /// Returns how much this rank sends in a reduction through rank 0.
    fn reduced(&self, length: usize) -> usize {
        let hands = if self.inner.rank() == 0 {
            self.others()
        } else {
            1
        };
        hands * length
    }
}

impl Communicator for Counted<'_> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn scatter(&mut self, parts: Option<Vec<Vec<f64>>>) -> Result<Vec<f64>, Failure> {
        let begun = Instant::now();
        let lengths = parts.as_deref().map_or((0, 0), |parts| {
            let all: usize = parts.iter().map(Vec::len).sum();
            (all, all - parts.first().map_or(0, Vec::len))
        });
        let part = self.inner.scatter(parts)?;
        // Only rank 0 knows the total size; its count is the one that is used.
        self.traffic
            .count(lengths.1, WORD * lengths.0 as u64 / 2, begun);
        Ok(part)
    }

    fn gather(&mut self, part: &[f64]) -> Result<Option<Vec<Vec<f64>>>, Failure> {
        let begun = Instant::now();
        let parts = self.inner.gather(part)?;
        let sent = if self.inner.rank() == 0 {
            0
        } else {
            part.len()
        };
        let all: usize = parts.iter().flatten().map(Vec::len).sum();
        self.traffic.count(sent, WORD * all as u64 / 2, begun);
        Ok(parts)
    }

    fn broadcast(&mut self, values: &mut Vec<f64>) -> Result<(), Failure> {
        let begun = Instant::now();
        self.inner.broadcast(values)?;
        let sent = if self.inner.rank() == 0 {
            self.others() * values.len()
        } else {
            0
        };
        self.traffic.count(sent, WORD * values.len() as u64, begun);
        Ok(())
    }

    fn all_reduce_sum(&mut self, values: &mut [i64]) -> Result<(), Failure> {
        let begun = Instant::now();
        self.inner.all_reduce_sum(values)?;
        let sent = self.reduced(values.len());
        self.traffic.count(sent, WORD * values.len() as u64, begun);
        Ok(())
    }

    fn all_reduce_max(&mut self, values: &mut [f64]) -> Result<(), Failure> {
        let begun = Instant::now();
        self.inner.all_reduce_max(values)?;
        let sent = self.reduced(values.len());
        self.traffic.count(sent, WORD * values.len() as u64, begun);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::star::star;
    use std::thread;

    #[test]
    fn counted_bytes_equal_the_bytes_through_a_star() {
        for size in [1, 2, 5] {
            let ranks = star(size, Some(Duration::from_secs(20))).expect("sockets");
            let counts: Vec<(u64, u64, Exchange)> = thread::scope(|scope| {
                let threads: Vec<_> = ranks
                    .into_iter()
                    .map(|mut star| {
                        scope.spawn(move || {
                            let mut counted = Counted::new(&mut star);
                            let is_first = counted.rank() == 0;
                            let parts = is_first.then(|| vec![vec![1.0; 10]; size]);
                            let part = counted.scatter(parts).expect("all are there");
                            counted.gather(&part[..4]).expect("all are there");
                            counted.broadcast(&mut vec![0.0; 6]).expect("all are there");
                            counted.all_reduce_sum(&mut [0; 3]).expect("all are there");
                            counted
                                .all_reduce_max(&mut [0.0; 2])
                                .expect("all are there");
                            let traffic = counted.traffic().clone();
                            (traffic.sent_bytes, star.sent_bytes(), traffic.exchange())
                        })
                    })
                    .collect();
                let ended = threads
                    .into_iter()
                    .map(|thread| thread.join().expect("no panic"));
                ended.collect()
            });
            let others = size as u64 - 1;
            for (rank, (counted, passed, _)) in counts.iter().enumerate() {
                assert_eq!(counted, passed);
                let numbers = if rank == 0 {
                    others * (10 + 6 + 3 + 2)
                } else {
                    4 + 3 + 2
                };
                assert_eq!(*counted, 8 * numbers);
            }
            let exchange = counts[0].2;
            assert_eq!(exchange.times, 5.0);
            let bytes = 8.0 * (5.0 * size as f64 + 2.0 * size as f64 + 6.0 + 3.0 + 2.0);
            assert!((exchange.bytes - bytes / 5.0).abs() < 1e-9);
        }
    }
}
