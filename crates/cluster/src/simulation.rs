//! Tests the advisor: it simulates jobs as events on boards, a network and a data centre whose true figures the advisor
//! never sees. It shares no formula with `model`.
//!
//! The truth contains effects that the model does not. Boards have unequal speed, and messages have varying times. A
//! board leaves an exchange only when its partners' messages have arrived. Some packets of an upload are sent again.
//! Machines of the data centre begin late.
//!
//! The advisor gets each measured figure times a lognormal factor (10 % by default); for the parallel part the factor
//! applies to the serial one. It gets counted figures (sizes, prices) as they are.
//!
//! **Regret** is the mean, over the scenarios, of (true cost of the choice ÷ true cost of the best choice − 1). Cost is
//! the money or energy that the scenario minimises. The best choice is the cheapest option that in truth keeps privacy
//! and deadline. The choice is the advised option. If the advisor has said that nothing is safe, it is the option with
//! the least expected loss, which a periodic job takes then. Scenarios in which no option keeps the deadline, and those
//! whose choice was late, have no such ratio. The former are counted as impossible. The latter are counted as
//! **violations** if the option was advised, and as late otherwise.
//!
//! These criteria were fixed before any tuning, but for one point: where nothing is safe, the choice was the likeliest
//! option at first. This was changed with the advisor, after the seeds 301 to 306 and 401 to 406. The parameters were
//! tuned on the seeds 1 to 30; `docs/cluster.md` names the seeds that judge. The bench runs 201 to 206 again.
//! [`run_informed`] computes the best result that is possible with figures of this noise.

mod decision;
mod events;
mod informed;
mod scenario;

pub use decision::Policy;

use crate::Error;
use crate::advisor::{Minimise, Origin, Place, Privacy, Question, choose};
use crate::random::Random;
use decision::Decision;
use events::{Played, play};
use scenario::{consistent, draw, observe};

/// The results over many scenarios.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Number of scenarios.
    pub scenarios: u32,
    /// Scenarios with a choice that was in time; regret is the mean over these.
    pub judged: u32,
    /// Mean of (true cost of the choice ÷ true cost of the best − 1).
    pub regret: f64,
    /// The same over the scenarios that minimise money.
    pub cost_regret: f64,
    /// The same over those that minimise energy.
    pub energy_regret: f64,
    /// Total true cost of the choices ÷ total true cost of the best − 1, over the scenarios that minimise money.
    pub cost_regret_total: f64,
    /// The same for energy. Joules and money cannot be added.
    pub energy_regret_total: f64,
    /// The median, which is what a user usually gets.
    pub regret_median: f64,
    /// The greatest value of a single scenario.
    pub regret_max: f64,
    /// Mean of the unnecessary part of the choice's cost, 0 to 1: a few scenarios cannot dominate it.
    pub part_too_much: f64,
    /// Scenarios with advice that was late in truth.
    pub violations: u32,
    /// Scenarios without advice, although an option would have kept everything.
    pub withheld: u32,
    /// In how many of these the option with the least expected loss kept the deadline.
    pub withheld_in_time: u32,
    /// Scenarios in which no option keeps the deadline.
    pub impossible: u32,
}

impl Report {
    /// Returns violations ÷ scenarios.
    #[must_use]
    pub fn violation_rate(&self) -> f64 {
        f64::from(self.violations) / f64::from(self.scenarios.max(1))
    }
}

/// Runs scenarios.
///
/// # Errors
/// None, unless a drawn question is out of the advisor's ranges.
pub fn run(scenarios: u32, noise: f64, policy: Policy, seed: u64) -> Result<Report, Error> {
    run_with(scenarios, noise, policy, seed, |question, places, _| {
        let choice = choose(question)?;
        let find = |at: usize| {
            let place = choice.options[at].place;
            places.iter().position(|other| *other == place)
        };
        Ok(Decision {
            advised: choice.advised.and_then(find),
            fallback: choice.least_loss.and_then(find),
        })
    })
}

/// Runs the scenarios of [`run`] with the best decision under the same knowledge instead of the advisor: see
/// [`informed`]. `draws` possible truths are played for each.
///
/// # Errors
/// As [`run`].
pub fn run_informed(
    scenarios: u32,
    noise: f64,
    policy: Policy,
    draws: u32,
    seed: u64,
) -> Result<Report, Error> {
    run_with(
        scenarios,
        noise,
        policy,
        seed,
        |question, places, random| {
            Ok(informed::decide(
                question, places, policy, noise, draws, random,
            ))
        },
    )
}

fn run_with(
    scenarios: u32,
    noise: f64,
    policy: Policy,
    seed: u64,
    decide: impl Fn(&Question, &[Place], &mut Random) -> Result<Decision, Error>,
) -> Result<Report, Error> {
    let mut report = Report {
        scenarios,
        ..Report::default()
    };
    // For money and energy: ratios, and totals of the choices and of the best options.
    let mut ratios: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
    let mut totals = [[0.0_f64; 2]; 2];
    for scenario in 0..scenarios {
        let mut random = Random::new(seed ^ (u64::from(scenario) << 20));
        let (truth, mut question) = draw(&mut random);
        question.confidence = policy.confidence;
        question.confidence_floor = policy.confidence_floor;
        question.late_penalty = policy.late_penalty;
        let places: Vec<Place> = (1..=question.boards_max)
            .map(Place::Boards)
            .chain([Place::DataCentre])
            .filter(|place| {
                let is_near = *place == Place::Boards(1);
                let is_beside =
                    question.privacy == Privacy::Neighbours && *place != Place::DataCentre;
                is_near || is_beside || question.privacy == Privacy::Anywhere
            })
            .collect();
        let played: Vec<Played> = places
            .iter()
            .map(|place| play(&truth, &question, *place))
            .collect();
        if random.unit() < 0.7 {
            let fastest_s = played
                .iter()
                .map(|one| one.time_s)
                .fold(f64::INFINITY, f64::min);
            // From impossible to idle.
            question.deadline_s = Some(fastest_s * random.between_log(0.8, 30.0));
        }
        let deadline_s = question.deadline_s.unwrap_or(f64::INFINITY);
        for input in question.needed() {
            let seen = observe(input, truth.of[input as usize], noise, &mut random);
            let origin = Origin::Measured("the simulation".to_owned());
            question.give(input, seen, origin)?;
        }
        consistent(&mut question);
        let value = |one: &Played| one.value(&question);
        let in_time = played.iter().filter(|one| one.time_s <= deadline_s);
        let best = in_time.map(value).fold(f64::INFINITY, f64::min);
        let Decision { advised, fallback } = decide(&question, &places, &mut random)?;
        let is_in_time = |at: usize| played[at].time_s <= deadline_s;
        let mut judge = |report: &mut Report, at: usize| {
            let objective = usize::from(question.minimise != Minimise::Cost);
            report.judged += 1;
            let chosen = value(&played[at]);
            ratios[objective].push(chosen / best - 1.0);
            totals[objective][0] += chosen;
            totals[objective][1] += best;
        };
        match (advised, best.is_finite()) {
            (Some(at), is_possible) if !is_in_time(at) => {
                report.violations += 1;
                report.impossible += u32::from(!is_possible);
            }
            (Some(at), _) => judge(&mut report, at),
            (None, false) => report.impossible += 1,
            (None, true) => {
                report.withheld += 1;
                if let Some(at) = fallback.filter(|at| is_in_time(*at)) {
                    report.withheld_in_time += 1;
                    judge(&mut report, at);
                }
            }
        }
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let [cost, energy] = ratios;
    (report.cost_regret, report.energy_regret) = (mean(&cost), mean(&energy));
    let total = |[chosen, best]: [f64; 2]| if best > 0.0 { chosen / best - 1.0 } else { 0.0 };
    (report.cost_regret_total, report.energy_regret_total) = (total(totals[0]), total(totals[1]));
    let mut all = [cost, energy].concat();
    all.sort_by(f64::total_cmp);
    report.regret = mean(&all);
    report.regret_median = all.get(all.len() / 2).copied().unwrap_or(0.0);
    report.regret_max = all.last().copied().unwrap_or(0.0);
    let parts: Vec<f64> = all.iter().map(|ratio| 1.0 - 1.0 / (1.0 + ratio)).collect();
    report.part_too_much = mean(&parts);
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advisor::CONFIDENCE;

    /// Two of the seeds 501 to 506, which judge the finished advisor (`docs/cluster.md`). Of the six, 504 has the
    /// largest regret and 506 the most late choices. The parameters were tuned on 1 to 30, and nothing was changed
    /// because of these two. A change because of them needs other seeds here.
    const SEEDS: [u64; 2] = [504, 506];

    fn is_within_goals(report: &Report) {
        assert!(report.violation_rate() < 0.01, "{report:?}");
        assert!(report.regret <= 0.03, "{report:?}");
        assert!(
            report.cost_regret_total <= 0.03 && report.energy_regret_total <= 0.03,
            "{report:?}"
        );
        // The test would prove nothing if few scenarios were evaluated, or many were skipped.
        let scenarios = report.scenarios;
        assert!(
            report.judged > scenarios / 10 * 9 && report.impossible > scenarios / 100,
            "{report:?}"
        );
        assert!(report.withheld < scenarios / 100 * 3, "{report:?}");
    }

    /// The goals. `examples/regret.rs` evaluates all six seeds.
    #[test]
    fn the_advisor_meets_its_goals_on_seeds_that_it_was_not_tuned_on() {
        for seed in SEEDS {
            let report = run(10_000, 0.1, Policy::default(), seed).expect("in range");
            println!("{report:?}, violations {:.4}", report.violation_rate());
            is_within_goals(&report);
        }
    }

    /// What an advisor could reach that knows the simulation itself is not much less.
    #[test]
    fn the_best_decision_under_the_same_knowledge_costs_little_less() {
        let ours = run(1_000, 0.1, Policy::default(), 306).expect("in range");
        let best = run_informed(1_000, 0.1, Policy::default(), 50, 306).expect("in range");
        println!("{ours:?} {best:?}");
        assert!(best.part_too_much < ours.part_too_much, "{best:?} {ours:?}");
        assert!(
            ours.part_too_much < 2.0 * best.part_too_much,
            "{best:?} {ours:?}"
        );
        // With figures without noise it hardly ever errs.
        let seeing = run_informed(300, 0.0, Policy::default(), 5, 8).expect("in range");
        assert!(seeing.regret < 0.002, "{seeing:?}");
    }

    /// A risk is taken if it pays. Without that, few choices are late, but the few safe ones cost a multiple.
    #[test]
    fn a_policy_without_risk_pays_more() {
        let careful = Policy {
            confidence_floor: CONFIDENCE,
            ..Policy::default()
        };
        let careful = run(4_000, 0.1, careful, 1).expect("in range");
        let ours = run(4_000, 0.1, Policy::default(), 1).expect("in range");
        assert!(careful.regret > 3.0 * ours.regret, "{careful:?} {ours:?}");
        assert!(careful.violations < ours.violations, "{careful:?} {ours:?}");
    }

    #[test]
    fn regret_is_the_mean_of_true_cost_over_the_best_less_one() {
        // Evaluated again from the played scenarios, with an advisor that sees everything: it is hardly ever wrong.
        let seeing = run(1_000, 0.0, Policy::default(), 8).expect("in range");
        assert!(
            seeing.regret < 0.02 && seeing.regret_median == 0.0,
            "{seeing:?}"
        );
        // With much noise the advisor pays for it.
        let blind = run(1_000, 0.8, Policy::default(), 8).expect("in range");
        assert!(
            blind.regret > 0.1 && blind.regret >= blind.part_too_much,
            "{blind:?}"
        );
        assert!(blind.regret_max >= blind.regret && blind.regret_median <= blind.regret);
    }

    #[test]
    fn too_many_choices_are_late_without_a_margin() {
        let policy = Policy {
            confidence: 0.5,
            late_penalty: 0.0,
            ..Policy::default()
        };
        let report = run(4_000, 0.1, policy, 8).expect("in range");
        assert!(report.violation_rate() > 0.01, "{report:?}");
    }

    #[test]
    fn the_same_seed_plays_the_same() {
        let run = |seed| run(50, 0.1, Policy::default(), seed);
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }
}
