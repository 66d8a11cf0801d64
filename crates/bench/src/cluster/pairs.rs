//! Our suite beside C: both programs run once in each round, and the medians of the same round are compared.

use std::collections::BTreeMap;

use base::sim::Random;
use cluster::measure::{Case, SIZES};
use cluster::results::Benchmark;
use cluster::statistics::{Median, median, median_interval};

use super::bed::{Bed, Found, Program, Way};
use super::cores::{self, Start};
use super::mpi::Mpi;
use crate::figures::{Bound, Figures, Goal, Metric, OURS};
use crate::realtime;

/// Time of one operation.
pub(crate) const TIME: Metric = Metric::compared("time", "us");

/// Distance of the geometric mean of the ratios from one, in either direction.
pub(crate) const AWAY: Metric = Metric::shown("geometric_mean_away", "%");

/// The number of sizes whose whole interval is above [`RATIO_MAX`].
pub(crate) const ABOVE: Metric = Metric::shown("sizes_above", "1");

/// The geometric mean of a benchmark's ratios.
pub(crate) const MEAN: Metric = Metric::shown("geometric_mean", "1");

/// Both ends of the interval of a size's ratio.
pub(crate) const LOW: Metric = Metric::shown("ratio_low", "1");
pub(crate) const HIGH: Metric = Metric::shown("ratio_high", "1");

/// The goals.
const AWAY_PERCENT_MAX: f64 = 5.0;
pub(crate) const RATIO_MAX: f64 = 1.08;

/// The name of the peer.
pub(crate) const C: &str = "c";

/// Sizes of a quick run, in bytes.
const QUICK_SIZES: [u64; 3] = [4, 4_096, 1 << 20];

/// Returns the cases: both programs use the same number of repetitions.
pub(crate) fn cases(way: Way, is_quick: bool) -> Vec<Case> {
    let sizes = if is_quick {
        &QUICK_SIZES[..]
    } else {
        &SIZES[..]
    };
    let of = |benchmark| {
        sizes.iter().map(move |&bytes| Case {
            benchmark,
            bytes,
            iterations: Some(times(way, bytes)),
        })
    };
    Benchmark::ALL.into_iter().flat_map(of).collect()
}

/// Returns the repetitions of an operation in a sample, so that a sample takes about 100 µs in memory and 300 µs on a
/// link.
fn times(way: Way, bytes: u64) -> u64 {
    let (sample_us, one_us) = match way {
        Way::Memory => (100.0, 0.4 + bytes as f64 / 6_000.0),
        Way::Link => (300.0, 10.0 + bytes as f64 / 120.0),
    };
    (sample_us / one_us).ceil().clamp(1.0, 250.0) as u64
}

fn samples(way: Way, is_quick: bool) -> usize {
    match (way, is_quick) {
        (_, true) => 5,
        (Way::Memory, false) => 25,
        (Way::Link, false) => 9,
    }
}

/// The medians of each round.
pub(crate) struct Pairs {
    /// Values of ours and of C, in the order of rounds.
    rounds: BTreeMap<(Benchmark, u64), (Vec<f64>, Vec<f64>)>,
    /// Whether they are of ours, and the starts in the order of rounds; none on a machine with one core.
    starts: BTreeMap<bool, Vec<Start>>,
}

/// Measures all rounds. Returns `None` if boards cannot be emulated here.
///
/// # Errors
/// One line.
pub(crate) fn measure(
    bed: &Bed,
    way: Way,
    cases: &[Case],
    rounds: u32,
    random: &mut Random,
    show: &dyn Fn(u32),
) -> Result<Option<Pairs>, String> {
    let samples = samples(way, cases.len() < 8 * SIZES.len());
    let mut pairs = Pairs {
        rounds: BTreeMap::new(),
        starts: BTreeMap::new(),
    };
    let cores = cores::cores_of_ranks(&realtime::cores());
    for round in 0..rounds {
        show(round);
        let mut order = cases.to_vec();
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last as u64 + 1) as usize);
        }
        let mut programs = [Program::Ours, Program::C];
        if random.below(2) == 1 {
            programs.reverse();
        }
        let mut found: BTreeMap<bool, Found> = BTreeMap::new();
        for program in programs {
            let is_ours = program == Program::Ours;
            let core_to_core_ns = cores.map(cores::core_to_core_ns).transpose()?;
            let Some(one) = bed.run(program, way, &order, samples)? else {
                return Ok(None);
            };
            if let Some((core_to_core_ns, roundtrip_us)) =
                core_to_core_ns.zip(cores::roundtrip_us(&one))
            {
                pairs.starts.entry(is_ours).or_default().push(Start {
                    core_to_core_ns,
                    roundtrip_us,
                });
            }
            found.insert(is_ours, one);
        }
        for case in cases {
            let key = (case.benchmark, case.bytes);
            let middle =
                |is_ours| median(&found[&is_ours][&key]).map_err(|error| error.to_string());
            let place = pairs.rounds.entry(key).or_default();
            place.0.push(middle(true)?);
            place.1.push(middle(false)?);
        }
    }
    Ok(Some(pairs))
}

/// Leaks the text, because names of cases in reports must be static.
pub(crate) fn name(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

/// Returns the name of the case of all sizes of all benchmarks.
pub(crate) fn case_of_all(mpi: Mpi, way: Way) -> String {
    format!("{}-{}", way.name(), mpi.name())
}

/// Returns the name of the case of one size.
pub(crate) fn case_of(benchmark: Benchmark, bytes: u64, mpi: Mpi, way: Way) -> String {
    format!("{}-{bytes}-{}", benchmark.name(), case_of_all(mpi, way))
}

impl Pairs {
    /// Returns the ratio of each size, with its interval.
    fn ratios(&self) -> BTreeMap<(Benchmark, u64), Median> {
        let mut found = BTreeMap::new();
        for (key, (ours, c)) in &self.rounds {
            let ratios: Vec<f64> = ours.iter().zip(c).map(|(ours, c)| ours / c).collect();
            if let Ok(median) = median_interval(&ratios) {
                found.insert(*key, median);
            }
        }
        found
    }

    /// Records times, ratios and goals in the figures.
    pub(crate) fn record(&self, figures: &mut Figures, mpi: Mpi, way: Way, is_judged: bool) {
        for ((benchmark, bytes), (ours, c)) in &self.rounds {
            let case = name(case_of(*benchmark, *bytes, mpi, way));
            for (ours, c) in ours.iter().zip(c) {
                figures.record(case, OURS, TIME, *ours);
                figures.record(case, C, TIME, *c);
            }
        }
        for (is_ours, starts) in &self.starts {
            let system = if *is_ours { OURS } else { C };
            cores::record(figures, name(case_of_all(mpi, way)), system, starts);
        }
        let ratios = self.ratios();
        for ((benchmark, bytes), ratio) in &ratios {
            let case = name(case_of(*benchmark, *bytes, mpi, way));
            figures.record(case, OURS, LOW, ratio.interval.low);
            figures.record(case, OURS, HIGH, ratio.interval.high);
        }
        for benchmark in Benchmark::ALL {
            let of: Vec<f64> = ratios
                .iter()
                .filter(|(key, _)| key.0 == benchmark)
                .map(|(_, one)| one.value)
                .collect();
            let case = name(format!("{}-{}", benchmark.name(), case_of_all(mpi, way)));
            figures.record(case, OURS, MEAN, geometric_mean(&of));
        }
        let all: Vec<f64> = ratios.values().map(|ratio| ratio.value).collect();
        let mean = geometric_mean(&all);
        let case = name(case_of_all(mpi, way));
        figures.record(case, OURS, MEAN, mean);
        figures.record(case, OURS, AWAY, (mean.ln().abs().exp() - 1.0) * 100.0);
        let above = ratios
            .values()
            .filter(|ratio| ratio.interval.low > RATIO_MAX)
            .count();
        figures.record(case, OURS, ABOVE, above as f64);
        if is_judged {
            for (metric, goal) in [(AWAY, AWAY_PERCENT_MAX), (ABOVE, 0.0)] {
                figures.add_goal(Goal {
                    case,
                    metric: metric.name,
                    peer: None,
                    bound: Bound::AtMost(goal),
                });
            }
        }
    }
}

fn geometric_mean(values: &[f64]) -> f64 {
    let logs: f64 = values.iter().map(|value| value.ln()).sum();
    (logs / values.len().max(1) as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(factor: f64) -> Pairs {
        let round = |number: usize| 1.0 + 0.01 * (number % 3) as f64;
        let c: Vec<f64> = (0..9).map(round).collect();
        let ours = |factor: f64| c.iter().map(|us| us * factor).collect::<Vec<f64>>();
        let rounds = SIZES[..4].iter().enumerate().map(|(at, &bytes)| {
            (
                (Benchmark::Reduce, bytes),
                (ours(if at == 0 { factor } else { 1.0 }), c.clone()),
            )
        });
        Pairs {
            rounds: rounds.collect(),
            starts: BTreeMap::new(),
        }
    }

    #[test]
    fn starts_are_recorded_under_the_program_that_they_are_of() {
        let mut pairs = pairs(1.0);
        let start = |core_to_core_ns: f64| Start {
            core_to_core_ns,
            roundtrip_us: 0.5,
        };
        pairs.starts.insert(true, vec![start(50.0), start(70.0)]);
        pairs.starts.insert(false, vec![start(200.0), start(60.0)]);
        let mut figures = Figures::new(Vec::new());
        pairs.record(&mut figures, Mpi::Mpich, Way::Link, true);
        let of = |system| figures.rounds("link-mpich", system, cores::CORE_TO_CORE);
        assert_eq!((of(OURS), of(C)), (&[50.0, 70.0][..], &[200.0, 60.0][..]));
    }

    #[test]
    fn one_size_that_is_slower_for_sure_misses_the_goal() {
        for (factor, above) in [(1.0, 0.0), (1.07, 0.0), (1.09, 1.0), (0.5, 0.0)] {
            let mut figures = Figures::new(Vec::new());
            pairs(factor).record(&mut figures, Mpi::Mpich, Way::Memory, true);
            assert_eq!(
                figures.value("memory-mpich", OURS, ABOVE),
                Some(above),
                "{factor}"
            );
            let away = figures.value("memory-mpich", OURS, AWAY).expect("judged");
            let expected = (f64::powf(factor, 0.25).ln().abs().exp() - 1.0) * 100.0;
            assert!((away - expected).abs() < 1e-9, "{away} {expected}");
        }
    }

    #[test]
    fn samples_are_long_enough_and_not_too_long() {
        for way in [Way::Memory, Way::Link] {
            let of = |bytes| times(way, bytes);
            assert!(of(4) >= 30 && of(4 << 20) == 1, "{} {}", of(4), of(4 << 20));
        }
        assert_eq!(cases(Way::Memory, false).len(), 8 * 21);
    }
}
