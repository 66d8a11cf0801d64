//! Evaluates the advisor: the simulation's report for each seed. `scan` evaluates other confidences and penalties;
//! `informed` adds the best decision under the same knowledge. The first number is that of scenarios.
//!
//! ```text
//! cargo run --release -p cluster --example regret -- 10000 501 502 503 504 505 506
//! cargo run --release -p cluster --example regret -- 10000 1 2 3 4 5 6 scan
//! cargo run --release -p cluster --example regret -- 10000 401 402 403 informed
//! ```

use cluster::advisor::{CONFIDENCE, CONFIDENCE_FLOOR, LATE_PENALTY};
use cluster::simulation::{Policy, Report, run, run_informed};

/// Noise of the figures that the advisor sees.
const NOISE: f64 = 0.1;

/// Possible truths that the best decision weighs in each scenario.
const DRAWS: u32 = 200;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<u64> = words.iter().filter_map(|word| word.parse().ok()).collect();
    let [scenarios, seeds @ ..] = numbers.as_slice() else {
        eprintln!("regret: say how many scenarios, then seeds, perhaps `scan`");
        std::process::exit(2);
    };
    let scenarios = u32::try_from(*scenarios).unwrap_or(u32::MAX);
    println!(
        "confidence floor  penalty seed  regret %  median %  max      too much %  cost %  energy %  total cost %  \
         total energy %  violations %  withheld (in time)  judged"
    );
    let is_scan = words.iter().any(|word| word == "scan");
    if words.iter().any(|word| word == "informed") {
        let policy = Policy::default();
        println!("the advisor");
        judge(seeds, policy, false, |seed| {
            run(scenarios, NOISE, policy, seed)
        });
        println!("the best decision under the same knowledge");
        judge(seeds, policy, false, |seed| {
            run_informed(scenarios, NOISE, policy, DRAWS, seed)
        });
        return;
    }
    let (confidences, floors, penalties): (&[f64], &[f64], &[f64]) = if is_scan {
        (
            &[0.8],
            &[0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5],
            &[1.0, 2.0, 3.0, 5.0, 10.0],
        )
    } else {
        (&[CONFIDENCE], &[CONFIDENCE_FLOOR], &[LATE_PENALTY])
    };
    for &confidence in confidences {
        for &confidence_floor in floors {
            for &late_penalty in penalties {
                let policy = Policy {
                    confidence,
                    confidence_floor,
                    late_penalty,
                };
                judge(seeds, policy, is_scan, |seed| {
                    run(scenarios, NOISE, policy, seed)
                });
            }
        }
    }
}

fn judge(
    seeds: &[u64],
    policy: Policy,
    is_scan: bool,
    run: impl Fn(u64) -> Result<Report, cluster::Error> + Sync,
) {
    let run = &run;
    let reports: Vec<_> = std::thread::scope(|scope| {
        let begun: Vec<_> = seeds
            .iter()
            .map(|&seed| scope.spawn(move || (seed, run(seed))))
            .collect();
        let ended = begun.into_iter().map(|one| one.join().expect("a thread"));
        ended.collect()
    });
    let mut all = Vec::new();
    for (seed, report) in reports {
        match report {
            Ok(report) => {
                if !is_scan {
                    line(policy, &seed.to_string(), &report);
                }
                all.push(report);
            }
            Err(error) => eprintln!("regret: seed {seed}: {error}"),
        }
    }
    line(policy, "mean", &mean(&all));
}

fn mean(reports: &[Report]) -> Report {
    let count = reports.len().max(1);
    let of = |value: fn(&Report) -> f64| reports.iter().map(value).sum::<f64>() / count as f64;
    let number = |value: fn(&Report) -> u32| reports.iter().map(value).sum::<u32>();
    Report {
        scenarios: number(|report| report.scenarios),
        judged: number(|report| report.judged),
        regret: of(|report| report.regret),
        cost_regret: of(|report| report.cost_regret),
        energy_regret: of(|report| report.energy_regret),
        cost_regret_total: of(|report| report.cost_regret_total),
        energy_regret_total: of(|report| report.energy_regret_total),
        regret_median: of(|report| report.regret_median),
        regret_max: reports
            .iter()
            .map(|report| report.regret_max)
            .fold(0.0, f64::max),
        part_too_much: of(|report| report.part_too_much),
        violations: number(|report| report.violations),
        withheld: number(|report| report.withheld),
        withheld_in_time: number(|report| report.withheld_in_time),
        impossible: number(|report| report.impossible),
    }
}

fn line(policy: Policy, seed: &str, report: &Report) {
    let Policy {
        confidence,
        confidence_floor,
        late_penalty,
    } = policy;
    println!(
        "{confidence:<10} {confidence_floor:<6} {late_penalty:<7} {seed:<5} {:<9.3} {:<9.3} {:<8.1} \
         {:<11.3} {:<7.3} {:<9.3} {:<13.3} {:<15.3} {:<13.3} {} ({})  {}",
        report.regret * 100.0,
        report.regret_median * 100.0,
        report.regret_max,
        report.part_too_much * 100.0,
        report.cost_regret * 100.0,
        report.energy_regret * 100.0,
        report.cost_regret_total * 100.0,
        report.energy_regret_total * 100.0,
        report.violation_rate() * 100.0,
        report.withheld,
        report.withheld_in_time,
        report.judged,
    );
}
