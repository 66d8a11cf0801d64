//! Combines several starts of the measuring program into one row for each case.
//!
//! Times of one start have common effects that another start does not repeat. Such are the pages of its buffers, the
//! queues of its connections, and the machine's other load. So a case is measured in several starts, in a new random
//! order for each (Hunold and Carpen-Amarie, arXiv 1505.07734). It is complete when the interval in which another run's
//! median falls is narrow.

use super::plan::Case;
use crate::Error;
use crate::random::Random;
use crate::results::{BenchmarkRow, Row, Stopped};
use crate::starts::{STARTS_MIN, repeat_interval};
use crate::statistics::SAMPLES_MAX;

/// When there are enough starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Largest half width of the interval ÷ the median.
    pub half_width_max: f64,
    /// Smallest number of starts.
    pub starts_min: u32,
    /// Largest number of starts.
    pub starts_max: u32,
    /// Seed of the random orders.
    pub seed: u64,
}

/// A case and its results.
#[derive(Clone, Debug, PartialEq)]
struct CaseSamples {
    /// The case; its iterations are those of the first start.
    case: Case,
    /// Samples of all starts.
    row: Option<BenchmarkRow>,
    /// Whether it has enough samples.
    is_done: bool,
}

/// The results so far.
#[derive(Clone, Debug)]
pub struct Collected {
    settings: Settings,
    cases: Vec<CaseSamples>,
    random: Random,
    starts: u32,
    judge_at: u32,
}

impl Collected {
    /// Creates an empty collection.
    ///
    /// # Errors
    /// Numbers that contradict each other, no case, or a duplicate case.
    pub fn new(settings: Settings, cases: &[Case]) -> Result<Self, Error> {
        let Settings {
            half_width_max,
            starts_min,
            starts_max,
            seed,
        } = settings;
        if !(half_width_max > 0.0 && half_width_max < 1.0) {
            let wrong = format!("is {half_width_max}, must be above 0 and below 1");
            return Err(Error::invalid("half_width_max", wrong));
        }
        if !(1 <= starts_min && starts_min <= starts_max && starts_max <= 1_000) {
            let wrong = format!("are {starts_min} to {starts_max}, must be within 1 to 1000");
            return Err(Error::invalid("starts", wrong));
        }
        let is_twice = |(at, case): (usize, &Case)| {
            cases[..at]
                .iter()
                .any(|other| (other.benchmark, other.bytes) == (case.benchmark, case.bytes))
        };
        if cases.is_empty() || cases.iter().enumerate().any(is_twice) {
            return Err(Error::invalid("cases", "are none, or one is there twice"));
        }
        let cases = cases.iter().map(|case| CaseSamples {
            case: *case,
            row: None,
            is_done: false,
        });
        Ok(Self {
            settings,
            cases: cases.collect(),
            random: Random::new(seed),
            starts: 0,
            judge_at: starts_min,
        })
    }

    /// Returns the cases for the next start, in their order; empty if every case is complete.
    pub fn next_start(&mut self) -> Vec<Case> {
        if self.starts == self.settings.starts_max {
            return Vec::new();
        }
        let mut cases: Vec<Case> = self
            .cases
            .iter()
            .filter(|one| !one.is_done)
            .map(|one| one.case)
            .collect();
        for last in (1..cases.len()).rev() {
            cases.swap(last, self.random.below(last + 1));
        }
        cases
    }

    /// Adds a start's result for a case.
    ///
    /// # Errors
    /// The case was not asked for, arrived twice, or was measured differently than before.
    pub fn add(&mut self, found: BenchmarkRow) -> Result<(), Error> {
        let starts = self.starts as usize;
        let unfit = |wrong: &str| {
            let what = format!("{} of {} bytes", found.benchmark.name(), found.bytes);
            Err(Error::invalid(what, wrong))
        };
        let asked = self.cases.iter_mut().find(|one| {
            !one.is_done && (one.case.benchmark, one.case.bytes) == (found.benchmark, found.bytes)
        });
        let Some(asked) = asked else {
            return unfit("was measured without being asked for");
        };
        if found.samples_us.is_empty() || found.iterations == 0 {
            return unfit("has no sample");
        }
        let count = found.samples_us.len() as u32;
        match &mut asked.row {
            None if starts > 0 => return unfit("was missing in an earlier start"),
            None => {
                asked.case.iterations = Some(found.iterations);
                asked.row = Some(BenchmarkRow {
                    starts: vec![count],
                    ..found
                });
            }
            Some(row) => {
                let is_alike = (row.iterations, row.ranks, row.transport)
                    == (found.iterations, found.ranks, found.transport);
                if !is_alike {
                    return unfit("was measured otherwise than in an earlier start");
                }
                if row.starts.len() != starts {
                    return unfit("came twice in a start");
                }
                if row.samples_us.len() + found.samples_us.len() > SAMPLES_MAX {
                    return unfit("has too many samples");
                }
                row.samples_us.extend(found.samples_us);
                row.starts.push(count);
            }
        }
        Ok(())
    }

    /// Ends a start. The checks for completeness become rarer with the number of starts, since a check after each start
    /// would stop at a lucky moment.
    ///
    /// # Errors
    /// A case that was asked for is missing.
    pub fn end_start(&mut self) -> Result<(), Error> {
        self.starts += 1;
        let is_last = self.starts == self.settings.starts_max;
        let is_judged = is_last || self.starts >= self.judge_at;
        for one in self.cases.iter_mut().filter(|one| !one.is_done) {
            let row = one
                .row
                .as_mut()
                .filter(|row| row.starts.len() as u32 == self.starts);
            let Some(row) = row else {
                let what = format!("{} of {} bytes", one.case.benchmark.name(), one.case.bytes);
                return Err(Error::invalid(what, "was not measured"));
            };
            if is_judged && self.starts as usize >= STARTS_MIN {
                let found = repeat_interval(&row.samples_us, &row.starts)?;
                let half_width = (found.interval.high - found.interval.low) / 2.0;
                one.is_done = half_width <= self.settings.half_width_max * found.value;
            }
            row.stopped = match (one.is_done, is_last && self.settings.starts_max == 1) {
                (true, _) => Stopped::Narrow,
                (false, true) => Stopped::Fixed,
                (false, false) => Stopped::Exhausted,
            };
        }
        if is_judged {
            self.judge_at = self.starts + (self.starts / 2).max(1);
        }
        Ok(())
    }

    /// Returns the number of starts so far.
    #[must_use]
    pub fn starts(&self) -> u32 {
        self.starts
    }

    /// Returns the results, in the order of the cases. Rows of a single start contain no start counts.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let rows = self.cases.iter().filter_map(|one| one.row.clone());
        rows.map(|mut row| {
            if row.starts.len() < 2 {
                row.starts.clear();
            }
            Row::Benchmark(row)
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Benchmark, Transport};

    fn settings(starts_min: u32, starts_max: u32) -> Settings {
        Settings {
            half_width_max: 0.05,
            starts_min,
            starts_max,
            seed: 1,
        }
    }

    fn cases(sizes: &[u64]) -> Vec<Case> {
        let case = |&bytes| Case {
            benchmark: Benchmark::Reduce,
            bytes,
            iterations: None,
        };
        sizes.iter().map(case).collect()
    }

    fn found(case: Case, us: f64) -> BenchmarkRow {
        BenchmarkRow {
            benchmark: case.benchmark,
            ranks: 2,
            transport: Transport::Memory,
            bytes: case.bytes,
            iterations: case.iterations.unwrap_or(10),
            samples_us: vec![us, us * 1.01, us * 1.02],
            starts: Vec::new(),
            stopped: Stopped::Narrow,
        }
    }

    #[test]
    fn starts_go_on_until_their_spread_is_known_well_enough() {
        let mut collected = Collected::new(settings(5, 12), &cases(&[4, 8])).expect("fit");
        let mut asked = Vec::new();
        loop {
            let cases = collected.next_start();
            if cases.is_empty() {
                break;
            }
            asked.push(cases.len());
            for case in cases {
                // For 8 bytes each start has another time, by far more than its samples show.
                let between = if case.bytes == 8 {
                    1.0 + 0.5 * f64::from(collected.starts() % 3)
                } else {
                    1.0
                };
                collected
                    .add(found(case, 10.0 * between))
                    .expect("was asked for");
            }
            collected.end_start().expect("complete");
        }
        assert_eq!(asked, [2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1]);
        let rows = collected.rows();
        let row = |at: usize| match &rows[at] {
            Row::Benchmark(row) => row,
            Row::Power(_) => panic!("power"),
        };
        assert_eq!(
            (row(0).stopped, row(0).starts.len(), row(0).iterations),
            (Stopped::Narrow, 5, 10)
        );
        assert_eq!(
            (row(1).stopped, row(1).starts.len(), row(1).samples_us.len()),
            (Stopped::Exhausted, 12, 36)
        );
    }

    #[test]
    fn a_single_start_is_fixed_and_has_no_list_of_starts() {
        let mut collected = Collected::new(settings(1, 1), &cases(&[4])).expect("fit");
        let next = collected.next_start();
        collected.add(found(next[0], 10.0)).expect("was asked for");
        collected.end_start().expect("complete");
        assert!(collected.next_start().is_empty());
        let Row::Benchmark(row) = &collected.rows()[0] else {
            panic!("power");
        };
        assert_eq!((row.stopped, row.starts.len()), (Stopped::Fixed, 0));
    }

    /// If the largest number of starts equals the smallest, the rows did not report that the intervals had stayed wide.
    #[test]
    fn a_case_that_stays_wide_says_so_however_few_starts_there_may_be() {
        let mut collected = Collected::new(settings(3, 3), &cases(&[4])).expect("fit");
        for us in [10.0, 20.0, 40.0] {
            let next = collected.next_start();
            collected.add(found(next[0], us)).expect("was asked for");
            collected.end_start().expect("complete");
        }
        assert!(collected.next_start().is_empty());
        let Row::Benchmark(row) = &collected.rows()[0] else {
            panic!("power");
        };
        assert_eq!(row.stopped, Stopped::Exhausted);
    }

    #[test]
    fn orders_are_drawn_anew() {
        let mut collected =
            Collected::new(settings(9, 9), &cases(&[4, 8, 16, 32, 64, 128])).expect("fit");
        let (one, other) = (collected.next_start(), collected.next_start());
        assert_ne!(one, other);
        let mut sorted = one;
        sorted.sort();
        assert_eq!(sorted, cases(&[4, 8, 16, 32, 64, 128]));
    }

    #[test]
    fn an_unrequested_or_missing_case_is_an_error() {
        let mut collected = Collected::new(settings(2, 3), &cases(&[4, 8])).expect("fit");
        let next = collected.next_start();
        let mut other = found(next[0], 1.0);
        other.bytes = 64;
        assert!(collected.add(other).is_err());
        collected.add(found(next[0], 1.0)).expect("was asked for");
        assert!(collected.add(found(next[0], 1.0)).is_err(), "twice");
        assert!(collected.clone().end_start().is_err(), "one is missing");
        collected.add(found(next[1], 1.0)).expect("was asked for");
        collected.end_start().expect("complete");
        let mut slower = found(next[0], 1.0);
        slower.iterations = 11;
        assert!(collected.add(slower).is_err(), "other iterations");
        assert!(Collected::new(settings(3, 2), &cases(&[4])).is_err());
        assert!(Collected::new(settings(1, 2), &cases(&[4, 4])).is_err());
        assert!(Collected::new(settings(1, 2), &[]).is_err());
    }
}
