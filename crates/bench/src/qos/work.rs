//! The work of the real plant's threads: transactions that read and write a store and compute, in a measured
//! proportion.

use std::hint::black_box;
use std::time::{Duration, Instant};

use base::sim::Random;
use serde::{Deserialize, Serialize};

use crate::engine::{Key, Session};
use crate::report::median;

/// The number of objects in the store; the first ones are the trace's sensors, and the others are not temporal data.
pub(crate) const OBJECTS: u32 = 10_000;

/// Size of a value, in bytes.
pub(crate) const VALUE_BYTES: usize = 64;

/// Maximum number of values stored in one transaction.
pub(crate) const TOGETHER: usize = 32;

/// Rounds of the computation between two readings of the clock.
const BATCH: u64 = 64;

/// The cost of each kind of work, alone on a processor at full speed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Costs {
    pub(crate) get_us: f64,
    pub(crate) put_us: f64,
    pub(crate) compute_us: f64,
}

impl Costs {
    /// Measures the costs on the calling thread.
    ///
    /// # Errors
    /// The errors of the engine.
    pub(crate) fn measure(session: &mut dyn Session) -> Result<Self, String> {
        const TRIES: usize = 9;
        const OPERATIONS: u32 = 4_000;
        let mut random = Random::new(7);
        let mut value = [0; VALUE_BYTES];
        let (mut gets, mut puts, mut computes) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..TRIES {
            let begin = Instant::now();
            for _ in 0..OPERATIONS {
                session.get(
                    &Key::new(random.below(u64::from(OBJECTS)) as u32),
                    &mut value,
                )?;
            }
            gets.push(begin.elapsed().as_secs_f64() * 1e6 / f64::from(OPERATIONS));
            let (begin, mut done) = (Instant::now(), 0_u32);
            for _ in 0..OPERATIONS / 4 {
                done += u32::from(
                    session.put(&Key::new(random.below(u64::from(OBJECTS)) as u32), &value)?,
                );
            }
            puts.push(begin.elapsed().as_secs_f64() * 1e6 / f64::from(done.max(1)));
            let begin = Instant::now();
            black_box(compute(u64::from(OPERATIONS)));
            computes.push(begin.elapsed().as_secs_f64() * 1e6 / f64::from(OPERATIONS));
        }
        Ok(Self {
            get_us: median(&mut gets),
            put_us: median(&mut puts),
            compute_us: median(&mut computes),
        })
    }
}

/// Runs rounds of a computation that touches no memory.
pub(crate) fn compute(rounds: u64) -> u64 {
    let mut state = rounds | 1;
    for _ in 0..rounds {
        for _ in 0..BATCH {
            state = black_box(state.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (state >> 29));
        }
    }
    state
}

/// One transaction: the amount of each kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transaction {
    pub(crate) gets: u32,
    pub(crate) puts: u32,
    pub(crate) rounds: u64,
    /// The number of objects from which it draws those that it reads and writes.
    pub(crate) objects: u32,
}

impl Transaction {
    /// The real-time task's transaction: equal time with data and with computing, and only reads, of sensor objects.
    pub(crate) fn of_task(costs: &Costs, nominal: Duration, sensors: u32) -> Self {
        let half_us = nominal.as_secs_f64() * 1e6 / 2.0;
        Self {
            gets: (half_us / costs.get_us).max(1.0) as u32,
            puts: 0,
            rounds: (half_us / costs.compute_us).max(1.0) as u64,
            objects: sensors,
        }
    }

    /// A best-effort transaction: half of its time with data is reads and half is writes, of any object.
    pub(crate) fn of_best_effort(costs: &Costs, nominal: Duration, data_share: f64) -> Self {
        let us = nominal.as_secs_f64() * 1e6;
        let data_us = us * data_share;
        Self {
            gets: (data_us / 2.0 / costs.get_us) as u32,
            puts: (data_us / 2.0 / costs.put_us) as u32,
            rounds: ((us - data_us) / costs.compute_us) as u64,
            objects: OBJECTS,
        }
    }

    /// Reads and writes in alternating batches. Returns the time taken.
    pub(crate) fn access(
        &self,
        session: &mut dyn Session,
        random: &mut Random,
    ) -> Result<Duration, String> {
        let mut value = [0; VALUE_BYTES];
        let mut draw = || Key::new(random.below(u64::from(self.objects)) as u32);
        let (mut gets, mut puts) = (self.gets as usize, self.puts as usize);
        let mut keys = Vec::with_capacity(TOGETHER);
        let begin = Instant::now();
        while gets + puts > 0 {
            for _ in 0..gets.min(TOGETHER) {
                session.get(&draw(), &mut value)?;
            }
            gets -= gets.min(TOGETHER);
            keys.clear();
            keys.extend((0..puts.min(TOGETHER)).map(|_| draw()));
            if !keys.is_empty() {
                session.put_together(&keys, &value)?;
            }
            puts -= keys.len();
        }
        Ok(begin.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_divide_their_time_by_the_given_shares() {
        let costs = Costs {
            get_us: 1.0,
            put_us: 4.0,
            compute_us: 0.5,
        };
        let task = Transaction::of_task(&costs, Duration::from_millis(20), 1024);
        assert_eq!((task.gets, task.puts, task.rounds), (10_000, 0, 20_000));
        assert_eq!(task.objects, 1024);
        let mostly_data = Transaction::of_best_effort(&costs, Duration::from_millis(10), 0.9);
        assert_eq!(
            (mostly_data.gets, mostly_data.puts, mostly_data.rounds),
            (4500, 1125, 2000)
        );
        assert_eq!(mostly_data.objects, OBJECTS);
        let idle = Transaction::of_best_effort(&costs, Duration::from_millis(10), 0.0);
        assert_eq!((idle.gets, idle.puts, idle.rounds), (0, 0, 20_000));
    }
}
