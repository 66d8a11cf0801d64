//! Figure 10: a load that starts and ends; and, on the simulated plant, a load that no input can compensate.

use base::sim::Random;
use control::controller::{Saturation, SetPoints};

use super::approach::{Approach, Pilot, Record, run};
use super::averages::{RECORD_HEAD, Summary, record_row, summarise};
use super::findings::{Findings, Goal};
use super::plot::{COLORS, Curve, Horizontal, Panel, panels};
use super::response::{BAND, mean_of_runs, response};
use super::scenario::{ADMITTED_MIN, Load, Mix};
use super::setting::{GOAL, Setting};
use crate::report::median;

/// Position of the paper's second target between its data response ratio at rest and that of DVFS-only under the load:
/// 0.40 between 0.28 and 0.44.
const TARGET_PART: f64 = 0.75;

const SETTLING_MAX: f64 = 3.0;
const OVERSHOOT_MAX: f64 = 0.10;
const RECOVERY_MAX: f64 = 8.0;

/// Samples before, during and after the load that cannot be compensated.
const OVERLOAD: (u32, u32, u32) = (60, 40, 60);

/// Number of runs whose samples are written, each in a row.
const RUNS_IN_TABLE: usize = 25;

/// A mean of a phase.
type Mean = fn(&Summary) -> f64;

/// One approach of the figure.
struct Arm {
    name: String,
    approach: Approach,
    data_ratio: f64,
    runs: Vec<Vec<Record>>,
}

/// Runs the experiment.
pub(crate) fn transient(setting: &mut Setting<'_>, findings: &mut Findings) -> Result<(), String> {
    let (before, during, after) = setting.extent.phases;
    let load = Load::of(Mix::C50D50, 1);
    let low = setting.identified()?.data_ratio_min;
    let speed = setting.identified()?.speed_for(GOAL, 1.0, load)?;
    let pushed = setting.identified()?.settled([speed, 1.0], load)?[1];
    let high = (low + TARGET_PART * (pushed - low)).clamp(0.02, 0.98);
    findings.note(format!(
        "targets of the data response ratio: {low:.3}, its least, and {high:.3}, three quarters of the way to the \
         {pushed:.3} that DVFS-only comes to by the model; in the paper 0.28, and 0.40 on the way to 0.44"
    ));
    let arm = |name: &str, approach, data_ratio| Arm {
        name: name.to_owned(),
        approach,
        data_ratio,
        runs: Vec::new(),
    };
    let mut arms = [
        arm("open", Approach::Open, low),
        arm("dvfs-only", Approach::DvfsOnly, low),
        arm("qod-only-50", Approach::QodOnly(50), low),
        arm("mimo-low", Approach::Mimo, low),
        arm("mimo-high", Approach::Mimo, high),
    ];
    let loads = |sample: u32| {
        if (before..before + during).contains(&sample) {
            load
        } else {
            Load::NONE
        }
    };
    let mut random = Random::new(setting.seed);
    for round in 0..setting.runs {
        let mut order: Vec<usize> = (0..arms.len()).collect();
        random.shuffle(&mut order);
        for place in order {
            let arm = &mut arms[place];
            let shown = format!("run {} of {}: {}", round + 1, setting.runs, arm.name);
            setting.progress.show(&shown);
            let set_points = setting.set_points(arm.data_ratio);
            let seed = random.next_u64();
            let records = one(
                setting,
                arm.approach,
                set_points,
                seed,
                before + during + after,
                &loads,
            )?;
            arm.runs.push(records);
        }
    }
    setting.progress.clear();
    for arm in &arms {
        rows(findings, arm, (before, during, after));
        let rows: Vec<_> = arm
            .runs
            .iter()
            .take(RUNS_IN_TABLE)
            .enumerate()
            .flat_map(|(run, records)| {
                let records = records.iter().enumerate();
                records.map(move |(sample, record)| record_row(run as u32, sample, record))
            })
            .collect();
        findings.table(&format!("transient-{}", arm.name), &RECORD_HEAD, &rows)?;
        draw(setting, findings, arm)?;
    }
    if setting.is_simulated {
        overload(setting, findings)?;
    } else {
        findings.missing(
            "a load that nothing can answer: it is shown on the simulated plant alone".to_owned(),
        );
    }
    Ok(())
}

fn one(
    setting: &mut Setting<'_>,
    approach: Approach,
    set_points: SetPoints,
    seed: u64,
    samples: u32,
    loads: &dyn Fn(u32) -> Load,
) -> Result<Vec<Record>, String> {
    setting.plant.begin(seed)?;
    let facts = setting.plant.facts();
    let mut pilot = Pilot::new(approach, &setting.identified()?.model(), set_points, facts)?;
    run(&mut pilot, setting.plant, samples, loads)
}

fn rows(findings: &mut Findings, arm: &Arm, (before, during, _): (u32, u32, u32)) {
    let (from, to) = (before as usize, (before + during) as usize);
    // The second half of each phase, after all values have settled.
    let of = |begin: usize, end: usize, value: fn(&Summary) -> f64| {
        let runs = arm
            .runs
            .iter()
            .map(|run| value(&summarise(&run[begin..end], (end - begin) / 2)));
        median(&mut runs.collect::<Vec<_>>())
    };
    let is_judged = arm.name == "mimo-low";
    let metrics: [(&'static str, &'static str, Mean); 5] = [
        ("tardiness", "tardiness_loaded", |summary| summary.tardiness),
        ("data_ratio", "data_ratio_loaded", |summary| {
            summary.data_ratio
        }),
        ("admitted", "admitted_loaded", |summary| summary.admitted),
        ("speed", "speed_loaded", |summary| summary.speed),
        ("energy_proxy", "energy_proxy_loaded", |summary| {
            summary.energy
        }),
    ];
    for (rest, loaded, value) in metrics {
        findings.row(
            "transient",
            arm.name.clone(),
            (rest, "1"),
            of(0, from, value),
            None,
        );
        findings.row(
            "transient",
            arm.name.clone(),
            (loaded, "1"),
            of(from, to, value),
            None,
        );
    }
    let change = of(from, to, |summary| summary.speed) / of(0, from, |summary| summary.speed) - 1.0;
    findings.row(
        "transient",
        arm.name.clone(),
        ("speed_change", "1"),
        change,
        None,
    );
    let tardiness = mean_of_runs(&arm.runs);
    for (names, part) in [
        (
            ["settling_on", "peak_on", "overshoot_on"],
            &tardiness[from..to],
        ),
        (
            ["settling_off", "peak_off", "overshoot_off"],
            &tardiness[to..],
        ),
    ] {
        let found = response(part, GOAL);
        let goal = |goal| is_judged.then_some(Goal::AtMost(goal));
        let name = || arm.name.clone();
        findings.row(
            "transient",
            name(),
            (names[0], "samples"),
            found.settling as f64,
            goal(SETTLING_MAX),
        );
        findings.row("transient", name(), (names[1], "1"), found.peak, None);
        findings.row(
            "transient",
            name(),
            (names[2], "1"),
            found.overshoot,
            goal(OVERSHOOT_MAX),
        );
    }
}

/// Draws the curves of the first run, and the mean of all runs for tardiness.
fn draw(setting: &Setting<'_>, findings: &mut Findings, arm: &Arm) -> Result<(), String> {
    let Some(first) = arm.runs.first() else {
        return Ok(());
    };
    let curve = |label: &str, color, value: &dyn Fn(&Record) -> Option<f64>| Curve {
        label: label.to_owned(),
        color: COLORS[color],
        dashed: false,
        marked: false,
        points: first
            .iter()
            .enumerate()
            .filter_map(|(sample, record)| Some((sample as f64, value(record)?)))
            .collect(),
    };
    let mean = mean_of_runs(&arm.runs);
    let mut tardiness = vec![curve("tardiness, one run", 6, &Record::tardiness)];
    tardiness.push(Curve {
        label: "mean of the runs".to_owned(),
        color: COLORS[0],
        points: mean
            .into_iter()
            .enumerate()
            .map(|(sample, value)| (sample as f64, value))
            .collect(),
        ..tardiness[0].clone()
    });
    let panel = |title: &str, goal, curves| Panel {
        title: title.to_owned(),
        curves,
        goal,
        least: 0.0,
        most: 1.0,
    };
    let is_mimo = arm.approach == Approach::Mimo;
    let drawn = [
        panel("mean tardiness", Some(GOAL), tardiness),
        panel(
            "data response ratio",
            is_mimo.then_some(arm.data_ratio),
            vec![curve("data response ratio", 3, &Record::data_ratio)],
        ),
        panel(
            "speed and admitted fraction",
            None,
            vec![
                curve("speed", 1, &|record| Some(record.speed())),
                curve("admitted fraction", 5, &|record| Some(record.admitted())),
            ],
        ),
    ];
    let horizontal = Horizontal::range("sample", 0.0, first.len() as f64);
    let title = format!("transient: {}", arm.name);
    findings.draw(
        &format!("transient-{}", arm.name),
        &panels(&title, &setting.subtitle(), &horizontal, &drawn),
    )
}

/// Runs a load so heavy that both inputs are at their limits. Measures how long tardiness takes to return to its goal
/// after the load has ended.
fn overload(setting: &mut Setting<'_>, findings: &mut Findings) -> Result<(), String> {
    let (before, during, after) = OVERLOAD;
    let heavy = |cores| Load::of(Mix::C10D90, cores);
    let mut cores = 1;
    // Find the first load that the best inputs cannot compensate.
    while setting
        .identified()?
        .settled([1.0, ADMITTED_MIN], heavy(cores))?[0]
        < GOAL * (1.0 + 2.0 * BAND)
    {
        cores += 1;
        if cores > 100 {
            findings.missing(
                "a load that nothing can answer: C10-D90 adds too little for one".to_owned(),
            );
            return Ok(());
        }
    }
    findings.note(format!(
        "overload: {cores} processors with C10-D90, by what one adds"
    ));
    let loads = |sample: u32| {
        if (before..before + during).contains(&sample) {
            heavy(cores)
        } else {
            Load::NONE
        }
    };
    let mut random = Random::new(setting.seed ^ 1);
    let set_points = setting.set_points(setting.identified()?.data_ratio_min);
    let mut runs = Vec::new();
    for _ in 0..setting.runs {
        let seed = random.next_u64();
        let samples = before + during + after;
        runs.push(one(
            setting,
            Approach::Mimo,
            set_points,
            seed,
            samples,
            &loads,
        )?);
    }
    let tardiness = mean_of_runs(&runs);
    let recovery = response(&tardiness[(before + during) as usize..], GOAL).settling;
    findings.row(
        "overload",
        "mimo-low",
        ("recovery", "samples"),
        recovery as f64,
        Some(Goal::AtMost(RECOVERY_MAX)),
    );
    let (untold, reached) = saturation(&runs);
    findings.row(
        "overload",
        "mimo-low",
        ("samples_at_both_limits", "1"),
        f64::from(reached),
        Some(Goal::AtLeast(1.0)),
    );
    findings.row(
        "overload",
        "mimo-low",
        ("samples_untold", "1"),
        f64::from(untold),
        Some(Goal::AtMost(0.0)),
    );
    let rows: Vec<_> = runs
        .iter()
        .take(RUNS_IN_TABLE)
        .enumerate()
        .flat_map(|(run, records)| {
            let records = records.iter().enumerate();
            records.map(move |(sample, record)| record_row(run as u32, sample, record))
        })
        .collect();
    findings.table("transient-overload", &RECORD_HEAD, &rows)?;
    let arm = Arm {
        name: "overload".to_owned(),
        approach: Approach::Mimo,
        data_ratio: set_points.data_ratio,
        runs,
    };
    draw(setting, findings, &arm)
}

/// Counts the samples under the overload with both inputs at their limits. Returns how many of them were not reported
/// as such at once, and the count itself.
fn saturation(runs: &[Vec<Record>]) -> (u32, u32) {
    let loaded = runs
        .iter()
        .flatten()
        .filter(|record| record.load != Load::NONE);
    let at_limits = loaded.filter(|record| record.decision.inputs == [1.0, ADMITTED_MIN]);
    let (mut untold, mut reached) = (0, 0);
    for record in at_limits {
        reached += 1;
        untold += u32::from(record.decision.held != [Saturation::High, Saturation::Low]);
    }
    (untold, reached)
}
