//! Experiments about averages: each approach under each load, in turns, with a new random order for each run.

use base::sim::Random;
use control::controller::Saturation;

use super::approach::{Approach, Pilot, Record, run};
use super::findings::{Findings, Goal, cell};
use super::plot::{COLORS, Curve, Horizontal, Panel, panels};
use super::response::BAND;
use super::scenario::{Load, Mix};
use super::setting::{GOAL, Setting};
use crate::report::median;

/// The approaches of the figures on averages, with the two fixed speeds of the paper: 1000 and 1800 MHz of 2000. The
/// last one requires a plant that knows freshness.
pub(crate) const APPROACHES: [Approach; 6] = [
    Approach::Open,
    Approach::DvfsOnly,
    Approach::QodOnly(50),
    Approach::QodOnly(90),
    Approach::Mimo,
    Approach::MimoFresh,
];

/// Returns those approaches that the plant supports.
fn approaches(setting: &mut Setting<'_>) -> Vec<Approach> {
    let can = |approach: &Approach| setting.plant.set_quality(approach.quality());
    APPROACHES.into_iter().filter(can).collect()
}

/// Maximum speed of ours under C10-D90, divided by that of DVFS-only.
const SPEED_RATIO_MAX: f64 = 0.85;

/// The result of one run of an approach under a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) tardiness: f64,
    pub(crate) tardiness_p95: Option<f64>,
    pub(crate) miss_ratio: Option<f64>,
    pub(crate) fresh: Option<f64>,
    pub(crate) data_ratio: f64,
    pub(crate) admitted: f64,
    pub(crate) admitted_min: f64,
    pub(crate) speed: f64,
    pub(crate) energy: f64,
    /// Fraction of the samples in which both inputs were at their limits and the controller wanted more.
    pub(crate) both_held: f64,
}

/// Returns the means over the samples of a run, without the samples in which it settled.
pub(crate) fn summarise(records: &[Record], settling: usize) -> Summary {
    let records = &records[settling.min(records.len().saturating_sub(1))..];
    let mean = |value: &dyn Fn(&Record) -> Option<f64>| {
        let known: Vec<f64> = records.iter().filter_map(value).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    };
    let all = |value: &dyn Fn(&Record) -> Option<f64>| mean(value).unwrap_or(f64::NAN);
    let is_held = |record: &Record| record.decision.held == [Saturation::High, Saturation::Low];
    Summary {
        tardiness: all(&Record::tardiness),
        tardiness_p95: mean(&|record| record.observed.tardiness_p95),
        miss_ratio: mean(&|record| record.observed.miss_ratio),
        fresh: mean(&|record| record.observed.fresh),
        data_ratio: all(&Record::data_ratio),
        admitted: all(&|record| Some(record.admitted())),
        admitted_min: records.iter().map(Record::admitted).fold(1.0, f64::min),
        speed: all(&|record| Some(record.speed())),
        energy: all(&|record| Some(record.energy())),
        both_held: all(&|record| Some(f64::from(u8::from(is_held(record))))),
    }
}

/// One measurement: an approach under a load.
struct Cell {
    approach: Approach,
    load: Load,
    case: &'static str,
    runs: Vec<Summary>,
}

impl Cell {
    fn median(&self, value: fn(&Summary) -> f64) -> f64 {
        median(&mut self.runs.iter().map(value).collect::<Vec<_>>())
    }

    fn median_known(&self, value: fn(&Summary) -> Option<f64>) -> Option<f64> {
        let mut known: Vec<_> = self.runs.iter().filter_map(value).collect();
        (!known.is_empty()).then(|| median(&mut known))
    }
}

/// Runs all cells, run by run. An approach continues from one load to the next without a reset, as on a node whose
/// loads change. Only its first samples contain the way from full speed; they are left out.
fn measure(setting: &mut Setting<'_>, cells: &mut [Cell]) -> Result<(), String> {
    let mut random = Random::new(setting.seed);
    let set_points = setting.set_points(setting.identified()?.data_ratio_min);
    let extent = setting.extent;
    let each = extent.settling + extent.samples;
    for round in 0..setting.runs {
        let mut approaches = approaches(setting);
        random.shuffle(&mut approaches);
        let count = approaches.len();
        for (place, approach) in approaches.into_iter().enumerate() {
            let is_its = |cell: &usize| cells[*cell].approach == approach;
            let mut order: Vec<usize> = (0..cells.len()).filter(is_its).collect();
            random.shuffle(&mut order);
            setting.progress.show(&format!(
                "run {} of {}, {place} of {}: {} under {} loads",
                round + 1,
                setting.runs,
                count,
                approach.name(),
                order.len()
            ));
            setting.plant.set_quality(approach.quality());
            setting.plant.begin(random.next_u64())?;
            let facts = setting.plant.facts();
            let model = setting.identified()?.model();
            let mut pilot = Pilot::new(approach, &model, set_points, facts)?;
            let loads: Vec<Load> = order.iter().map(|cell| cells[*cell].load).collect();
            let load =
                |sample: u32| loads[(sample.saturating_sub(extent.starting) / each) as usize];
            let samples = extent.starting + each * order.len() as u32;
            let records = run(&mut pilot, setting.plant, samples, &load)?;
            let parts = records[extent.starting as usize..].chunks(each as usize);
            for (cell, part) in order.into_iter().zip(parts) {
                cells[cell]
                    .runs
                    .push(summarise(part, extent.settling as usize));
            }
        }
    }
    setting.progress.clear();
    Ok(())
}

/// Figure 7: mixes on one processor.
pub(crate) fn workloads(setting: &mut Setting<'_>, findings: &mut Findings) -> Result<(), String> {
    let mut cells = Vec::new();
    for approach in approaches(setting) {
        for mix in Mix::ALL {
            cells.push(Cell {
                approach,
                load: Load::of(mix, 1),
                case: mix.name(),
                runs: Vec::new(),
            });
        }
    }
    measure(setting, &mut cells)?;
    let mut in_reach = 0;
    for mix in Mix::ALL {
        let is_in_reach = setting.identified()?.is_in_reach(GOAL, Load::of(mix, 1))?;
        in_reach += u32::from(is_in_reach);
        if !is_in_reach {
            findings.note(format!(
                "{}: the inputs cannot hold tardiness at {GOAL} by the model; not judged",
                mix.name()
            ));
        }
        for cell in cells.iter().filter(|cell| cell.case == mix.name()) {
            rows(findings, cell, is_in_reach);
        }
    }
    findings.row(
        "all",
        "mimo",
        ("mixes_in_reach", "1"),
        f64::from(in_reach),
        Some(Goal::AtLeast(3.0)),
    );
    let of = |approach: Approach| {
        let found = cells
            .iter()
            .find(|cell| cell.approach == approach && cell.case == Mix::C10D90.name());
        found.map_or(&[][..], |cell| &cell.runs)
    };
    let ratios: Vec<f64> = of(Approach::Mimo)
        .iter()
        .zip(of(Approach::DvfsOnly))
        .map(|(ours, theirs)| ours.speed / theirs.speed)
        .collect();
    let range = ratios
        .iter()
        .fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], ratio| {
            [low.min(*ratio), high.max(*ratio)]
        });
    let ratio = median(&mut ratios.clone());
    findings.ratio(
        Mix::C10D90.name(),
        "speed",
        "dvfs-only",
        (ratio, range),
        SPEED_RATIO_MAX,
    );
    let names: Vec<String> = Mix::ALL.iter().map(|mix| mix.name().to_owned()).collect();
    write(
        setting,
        findings,
        "workloads",
        &cells,
        &names,
        "mix of best-effort transactions on one processor",
    )
}

/// Figures 8 and 9: processors with best-effort transactions.
pub(crate) fn cores(setting: &mut Setting<'_>, findings: &mut Findings) -> Result<(), String> {
    let cores_max = setting.plant.facts().cores_max.min(3);
    if cores_max < 2 {
        let missing = "more than one processor with best-effort transactions: this machine has none; `workloads` has \
                       the same loads on none and on one";
        findings.missing(missing.to_owned());
        return Ok(());
    }
    let cases: [(Mix, [&'static str; 4]); 2] = [
        (
            Mix::C90D10,
            ["0 x C90-D10", "1 x C90-D10", "2 x C90-D10", "3 x C90-D10"],
        ),
        (
            Mix::C10D90,
            ["0 x C10-D90", "1 x C10-D90", "2 x C10-D90", "3 x C10-D90"],
        ),
    ];
    if cores_max < 3 {
        findings.missing(format!(
            "more than {cores_max} processors with best-effort transactions: this machine has no more"
        ));
    }
    let mut cells = Vec::new();
    for approach in approaches(setting) {
        for (mix, names) in &cases {
            for (count, case) in (0..=cores_max).zip(names) {
                cells.push(Cell {
                    approach,
                    load: Load::of(*mix, count),
                    case,
                    runs: Vec::new(),
                });
            }
        }
    }
    measure(setting, &mut cells)?;
    for cell in &cells {
        rows(findings, cell, false);
    }
    for (mix, names) in cases {
        let part: Vec<Cell> = cells
            .iter()
            .filter(|cell| cell.case.ends_with(mix.name()))
            .map(|cell| Cell {
                runs: cell.runs.clone(),
                ..*cell
            })
            .collect();
        let labels: Vec<String> = names[..=cores_max as usize]
            .iter()
            .map(|name| name[..1].to_owned())
            .collect();
        let name = format!("cores-{}", mix.name().to_lowercase());
        let label = format!("processors with {} transactions", mix.name());
        let ordered: Vec<&str> = names[..=cores_max as usize].to_vec();
        write_named(setting, findings, (&name, &label), &part, &labels, &ordered)?;
    }
    Ok(())
}

fn rows(findings: &mut Findings, cell: &Cell, is_judged: bool) {
    let name = cell.approach.name();
    let is_ours = cell.approach == Approach::Mimo;
    let tardiness = cell.median(|summary| summary.tardiness);
    findings.row(cell.case, name.clone(), ("tardiness", "1"), tardiness, None);
    if is_ours {
        let error = (tardiness - GOAL).abs() / GOAL;
        let goal = is_judged.then_some(Goal::AtMost(BAND));
        findings.row(
            cell.case,
            name.clone(),
            ("tardiness_error", "1"),
            error,
            goal,
        );
        let least = cell
            .runs
            .iter()
            .map(|run| run.admitted_min)
            .fold(1.0, f64::min);
        let goal = Goal::AtLeast(super::scenario::ADMITTED_MIN);
        findings.row(
            cell.case,
            name.clone(),
            ("admitted_min", "1"),
            least,
            Some(goal),
        );
    }
    let known = [
        (
            "tardiness_p95",
            cell.median_known(|summary| summary.tardiness_p95),
        ),
        (
            "miss_ratio",
            cell.median_known(|summary| summary.miss_ratio),
        ),
        ("fresh", cell.median_known(|summary| summary.fresh)),
        (
            "data_ratio",
            Some(cell.median(|summary| summary.data_ratio)),
        ),
        ("admitted", Some(cell.median(|summary| summary.admitted))),
        ("speed", Some(cell.median(|summary| summary.speed))),
        ("energy_proxy", Some(cell.median(|summary| summary.energy))),
        ("both_held", Some(cell.median(|summary| summary.both_held))),
    ];
    for (metric, value) in known {
        if let Some(value) = value {
            findings.row(cell.case, name.clone(), (metric, "1"), value, None);
        }
    }
}

fn write(
    setting: &Setting<'_>,
    findings: &mut Findings,
    name: &str,
    cells: &[Cell],
    labels: &[String],
    horizontal: &str,
) -> Result<(), String> {
    let ordered: Vec<&str> = labels.iter().map(String::as_str).collect();
    write_named(
        setting,
        findings,
        (name, horizontal),
        cells,
        labels,
        &ordered,
    )
}

/// Writes the table of all runs, and the drawing of their medians.
fn write_named(
    setting: &Setting<'_>,
    findings: &mut Findings,
    (name, horizontal): (&str, &str),
    cells: &[Cell],
    labels: &[String],
    cases: &[&str],
) -> Result<(), String> {
    let head = [
        "approach",
        "case",
        "run",
        "tardiness",
        "tardiness_p95",
        "miss_ratio",
        "fresh",
        "data_ratio",
        "admitted",
        "admitted_min",
        "speed",
        "energy_proxy",
        "both_held",
    ];
    let mut table = Vec::new();
    for cell in cells {
        for (run, summary) in cell.runs.iter().enumerate() {
            let mut row = vec![cell.approach.name(), cell.case.to_owned(), run.to_string()];
            row.extend([
                super::findings::cell(Some(summary.tardiness)),
                super::findings::cell(summary.tardiness_p95),
                super::findings::cell(summary.miss_ratio),
                super::findings::cell(summary.fresh),
                super::findings::cell(Some(summary.data_ratio)),
                super::findings::cell(Some(summary.admitted)),
                super::findings::cell(Some(summary.admitted_min)),
                super::findings::cell(Some(summary.speed)),
                super::findings::cell(Some(summary.energy)),
                super::findings::cell(Some(summary.both_held)),
            ]);
            table.push(row);
        }
    }
    findings.table(name, &head, &table)?;
    let panel = |title: &str, goal, most, value: fn(&Summary) -> f64| Panel {
        title: title.to_owned(),
        goal,
        least: 0.0,
        most,
        curves: APPROACHES
            .iter()
            .zip(COLORS)
            .map(|(approach, color)| Curve {
                label: approach.name(),
                color,
                dashed: *approach == Approach::Open,
                marked: true,
                points: cases
                    .iter()
                    .enumerate()
                    .filter_map(|(place, case)| {
                        let cell = cells
                            .iter()
                            .find(|cell| cell.approach == *approach && cell.case == *case)?;
                        Some((place as f64, cell.median(value)))
                    })
                    .collect(),
            })
            .filter(|curve: &Curve| !curve.points.is_empty())
            .collect(),
    };
    let drawn = [
        panel("mean tardiness", Some(GOAL), 1.0, |summary| {
            summary.tardiness
        }),
        panel("admitted fraction", None, 1.0, |summary| summary.admitted),
        panel("speed", None, 1.0, |summary| summary.speed),
        panel("energy proxy", None, 0.1, |summary| summary.energy),
    ];
    let subtitle = setting.subtitle();
    let title = format!("{name}: medians of {} runs", setting.runs);
    findings.draw(
        name,
        &panels(
            &title,
            &subtitle,
            &Horizontal::names(horizontal, labels),
            &drawn,
        ),
    )
}

/// Returns one sample as a row of a table.
pub(crate) fn record_row(run: u32, sample: usize, record: &Record) -> Vec<String> {
    let held = |held: Saturation| match held {
        Saturation::Free => "free",
        Saturation::Low => "low",
        Saturation::High => "high",
    };
    vec![
        run.to_string(),
        sample.to_string(),
        record.load.mix.name().to_owned(),
        record.load.cores.to_string(),
        cell(record.tardiness()),
        cell(record.observed.tardiness_p95),
        cell(record.observed.miss_ratio),
        cell(record.data_ratio()),
        cell(Some(record.inputs[0])),
        cell(Some(record.speed())),
        cell(Some(record.inputs[1])),
        cell(Some(record.admitted())),
        cell(record.observed.fresh),
        cell(Some(record.energy())),
        held(record.decision.held[0]).to_owned(),
        held(record.decision.held[1]).to_owned(),
    ]
}

/// The columns of [`record_row`].
pub(crate) const RECORD_HEAD: [&str; 16] = [
    "run",
    "sample",
    "mix",
    "cores",
    "tardiness",
    "tardiness_p95",
    "miss_ratio",
    "data_ratio",
    "speed_asked",
    "speed",
    "admitted_asked",
    "admitted",
    "fresh",
    "energy_proxy",
    "speed_held",
    "admission_held",
];
