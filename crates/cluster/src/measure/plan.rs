//! The plan of one start of the measuring program. It is passed to the program as one argument.

use super::watts::PowerPlan;
use crate::Error;
use crate::error::excerpt;
use crate::results::Benchmark;
use crate::statistics::SAMPLES_MAX;
use serde::{Deserialize, Serialize};

/// Size of the longest message, in bytes.
pub const BYTES_MAX: u64 = 64 << 20;

/// Largest number of cases (sizes and benchmarks) of one start.
pub const CASES_MAX: usize = 1_024;

/// Size of the longest plan as text, in bytes; it is an argument of a command line.
pub const PLAN_BYTES_MAX: usize = 100 << 10;

/// The default sizes: the powers of two from 4 bytes to 4 MiB.
pub const SIZES: [u64; 21] = {
    let mut sizes = [4; 21];
    let mut at = 1;
    while at < sizes.len() {
        sizes[at] = sizes[at - 1] * 2;
        at += 1;
    }
    sizes
};

/// Largest number of operations in a sample.
const ITERATIONS_MAX: u64 = 1_000_000;

/// Largest size in bytes of the memory that is overwritten to empty caches.
const FLUSH_BYTES_MAX: u64 = 1 << 30;

/// Longest idle time before a start in ms: an hour.
const IDLE_MS_MAX: u64 = 3_600_000;

/// Longest duration of a start in seconds: a day, and some time more, so that ranks outlive the waiting programs.
const SECONDS_MAX: u64 = 86_400 + 600;

/// One size of one benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The benchmark.
    pub benchmark: Benchmark,
    /// Size of the message: a multiple of 4, because sums use numbers of 4 bytes.
    pub bytes: u64,
    /// Number of operations in each sample, if an earlier start has determined it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iterations: Option<u64>,
}

/// How samples are taken.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub enum Steps {
    /// Each sample begins with a barrier and is the greatest time over the ranks.
    Sound {
        /// Half of the interval's width ÷ the median at which this start has enough samples.
        half_width_max: f64,
        /// Smallest number of samples.
        samples_min: usize,
        /// Largest number of samples. If equal to the smallest, the number is fixed.
        samples_max: usize,
        /// Shortest sample, reached by repeating the operation; not used if the plan sets the number of operations.
        sample_us_min: f64,
        /// Time for a case in ms. After it the case ends once it has `samples_min` samples.
        case_ms_max: u64,
    },
    /// The original method: for each repetition empty the caches, do the operation once, then the iterations, timed by
    /// rank 0.
    Mpbench {
        /// Number of samples.
        repetitions: usize,
        /// Size in bytes of the memory that is overwritten to empty the caches.
        flush_bytes: u64,
    },
}

/// What one start measures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The expected number of ranks: a launcher of another MPI starts each rank alone.
    pub ranks: u32,
    /// The cases, in this order.
    pub cases: Vec<Case>,
    /// How samples are taken.
    pub steps: Steps,
    /// Whether each rank is bound to its own core, if there are enough.
    pub pin: bool,
    /// Whether and how power is measured on each board.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<PowerPlan>,
    /// After this time each rank ends itself, so that nothing keeps running on an unreachable board.
    pub seconds_max: u64,
}

impl Plan {
    /// Returns the plan as one argument.
    ///
    /// # Errors
    /// It could not be read back.
    pub fn text(&self) -> Result<String, Error> {
        self.check()?;
        let text = serde_json::to_string(self)
            .map_err(|error| Error::invalid("plan", excerpt(&error.to_string())))?;
        if text.len() > PLAN_BYTES_MAX {
            return Err(Error::Limit {
                what: "bytes of a plan",
                value: text.len() as u64,
                limit: PLAN_BYTES_MAX as u64,
            });
        }
        Ok(text)
    }

    /// Reads a plan.
    ///
    /// # Errors
    /// A wrong format, or a number out of its range.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.len() > PLAN_BYTES_MAX {
            return Err(Error::Limit {
                what: "bytes of a plan",
                value: text.len() as u64,
                limit: PLAN_BYTES_MAX as u64,
            });
        }
        let plan: Self = serde_json::from_str(text)
            .map_err(|error| Error::invalid("plan", excerpt(&error.to_string())))?;
        plan.check()?;
        Ok(plan)
    }

    /// Returns the size of the largest message.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.cases.iter().map(|case| case.bytes).max().unwrap_or(0)
    }

    fn check(&self) -> Result<(), Error> {
        within("ranks", u64::from(self.ranks), 2, 65_536)?;
        within(
            "number of cases",
            self.cases.len() as u64,
            1,
            CASES_MAX as u64,
        )?;
        within("seconds_max", self.seconds_max, 1, SECONDS_MAX)?;
        if let Some(power) = &self.power {
            within("idle_ms", power.idle_ms, 0, IDLE_MS_MAX)?;
        }
        for case in &self.cases {
            within("bytes", case.bytes, 4, BYTES_MAX)?;
            if case.bytes % 4 != 0 {
                let wrong = format!("{} is no multiple of 4", case.bytes);
                return Err(Error::invalid("bytes", wrong));
            }
            within(
                "iterations",
                case.iterations.unwrap_or(1),
                1,
                ITERATIONS_MAX,
            )?;
        }
        match self.steps {
            Steps::Sound {
                half_width_max,
                samples_min,
                samples_max,
                sample_us_min,
                case_ms_max,
            } => {
                within("samples_min", samples_min as u64, 1, samples_max as u64)?;
                within("samples_max", samples_max as u64, 1, SAMPLES_MAX as u64)?;
                within("case_ms_max", case_ms_max, 1, SECONDS_MAX * 1_000)?;
                let is_fraction = half_width_max > 0.0 && half_width_max < 1.0;
                if !is_fraction || !(0.0..=1e6).contains(&sample_us_min) {
                    return Err(Error::invalid(
                        "half_width_max or sample_us_min",
                        "is out of its range",
                    ));
                }
            }
            Steps::Mpbench {
                repetitions,
                flush_bytes,
            } => {
                within("repetitions", repetitions as u64, 1, SAMPLES_MAX as u64)?;
                within("flush_bytes", flush_bytes, 0, FLUSH_BYTES_MAX)?;
                if self.cases.iter().any(|case| case.iterations.is_none()) {
                    return Err(Error::invalid(
                        "iterations",
                        "are not said, as the mode mpbench needs",
                    ));
                }
            }
        }
        Ok(())
    }
}

fn within(what: &str, value: u64, least: u64, most: u64) -> Result<(), Error> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(
        what,
        format!("is {value}, must be from {least} to {most}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plan() -> Plan {
        Plan {
            ranks: 2,
            cases: vec![Case {
                benchmark: Benchmark::Bandwidth,
                bytes: 4,
                iterations: None,
            }],
            steps: Steps::Sound {
                half_width_max: 0.05,
                samples_min: 8,
                samples_max: 200,
                sample_us_min: 50.0,
                case_ms_max: 300,
            },
            pin: true,
            power: None,
            seconds_max: 60,
        }
    }

    #[test]
    fn sizes_are_the_powers_of_two_from_4_bytes_to_4_mebibytes() {
        assert_eq!((SIZES[0], SIZES[1], SIZES[20]), (4, 8, 4 << 20));
    }

    #[test]
    fn a_plan_comes_back_as_it_was() {
        let mut plan = plan();
        assert_eq!(Plan::parse(&plan.text().expect("fits")), Ok(plan.clone()));
        plan.steps = Steps::Mpbench {
            repetitions: 3,
            flush_bytes: 16 << 20,
        };
        assert!(plan.text().is_err(), "without iterations");
        plan.cases[0].iterations = Some(100);
        assert_eq!(Plan::parse(&plan.text().expect("fits")), Ok(plan.clone()));
        plan.power = Some(PowerPlan {
            root: "/".into(),
            pmic: true,
            sensor: Some("ina".to_owned()),
            idle_ms: 5_000,
        });
        assert_eq!(Plan::parse(&plan.text().expect("fits")), Ok(plan.clone()));
        // The largest number of cases still fits into a command line.
        plan.cases = vec![
            Case {
                benchmark: Benchmark::Bibandwidth,
                bytes: BYTES_MAX,
                iterations: Some(ITERATIONS_MAX)
            };
            CASES_MAX
        ];
        assert!(plan.text().expect("fits").len() <= PLAN_BYTES_MAX);
    }

    #[test]
    fn a_plan_with_a_value_out_of_range_is_refused() {
        let wrong: [fn(&mut Plan); 9] = [
            |plan| plan.ranks = 1,
            |plan| plan.cases.clear(),
            |plan| plan.cases[0].bytes = 6,
            |plan| plan.cases[0].bytes = 0,
            |plan| plan.cases[0].bytes = BYTES_MAX + 4,
            |plan| plan.cases[0].iterations = Some(0),
            |plan| plan.seconds_max = 0,
            |plan| plan.cases = vec![plan.cases[0]; CASES_MAX + 1],
            |plan| {
                plan.steps = Steps::Mpbench {
                    repetitions: 0,
                    flush_bytes: 0,
                }
            },
        ];
        for (at, change) in wrong.into_iter().enumerate() {
            let mut plan = plan();
            change(&mut plan);
            assert!(plan.text().is_err(), "{at}");
        }
        for text in ["", "{}", "[1]", "{\"ranks\": 2, \"more\": 1}"] {
            assert!(Plan::parse(text).is_err(), "{text}");
        }
        assert!(Plan::parse(&" ".repeat(PLAN_BYTES_MAX + 1)).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_a_plan_or_an_error(text in "\\PC{0,100}") {
            Plan::parse(&text).ok();
        }
    }
}
