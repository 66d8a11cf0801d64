//! Figures 3 and 4: how a task's time with data and with computing changes. Other processors use the same store, at
//! each speed, or fewer updates are admitted, at half speed.

use super::findings::{Findings, cell};
use super::plot::{COLORS, Curve, Horizontal, Panel, panels};
use super::scenario::{DEADLINE_MS, Load, Mix};
use super::setting::Setting;
use crate::scratch::check_interrupted;

/// The mix that interferes: mostly with data.
const MIX: Mix = Mix::C10D90;

/// Speed of the second figure.
const HALF: f64 = 0.5;

/// One point: the input, and the mean time with data and with computing in ms.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    at: f64,
    data_ms: f64,
    compute_ms: f64,
}

/// A curve of points under a load.
struct Sweep {
    name: &'static str,
    case: &'static str,
    points: Vec<Point>,
}

/// Runs the experiment.
pub(crate) fn interference(
    setting: &mut Setting<'_>,
    findings: &mut Findings,
) -> Result<(), String> {
    let facts = setting.plant.facts();
    setting.plant.begin(setting.seed)?;
    let mut by_speed = Vec::new();
    let arms: [(u32, bool, &'static str); 4] = [
        (0, false, "0 processors"),
        (1, false, "1 processor"),
        (3, false, "3 processors"),
        (1, true, "1 processor, a store of its own"),
    ];
    for (cores, is_separate, name) in arms {
        if cores > facts.cores_max {
            findings.missing(format!(
                "{cores} interfering processors: this machine has {}",
                facts.cores_max
            ));
            continue;
        }
        if setting.plant.set_separate(is_separate) != is_separate {
            findings.missing(format!("{name}: only a machine has it"));
            continue;
        }
        let mut points = Vec::new();
        for tenths in (1..=10_u32).step_by(setting.extent.swept_every) {
            let speed = f64::from(tenths) / 10.0;
            if speed + 1e-9 >= facts.speed_min {
                setting.progress.show(&format!("{name}, speed {speed:.1}"));
                points.push(point(setting, [speed, 1.0], Load::of(MIX, cores), speed)?);
            }
        }
        by_speed.push(Sweep {
            name,
            case: "by-speed",
            points,
        });
    }
    setting.plant.set_separate(false);
    let cores = facts.cores_max.min(3);
    let mut points = Vec::new();
    for tenths in (1..=10_u32).step_by(setting.extent.swept_every) {
        let fraction = f64::from(tenths) / 10.0;
        setting.progress.show(&format!("admitted {fraction:.1}"));
        points.push(point(
            setting,
            [HALF, fraction],
            Load::of(MIX, cores),
            fraction,
        )?);
    }
    setting.progress.clear();
    let by_admission = [Sweep {
        name: match cores {
            1 => "1 processor",
            2 => "2 processors",
            _ => "3 processors",
        },
        case: "by-admission",
        points,
    }];
    // The mean ratio of the time with data, with interference to without, over all speeds.
    if let Some((alone, rest)) = by_speed.split_first() {
        for sweep in rest {
            let pairs = || alone.points.iter().zip(&sweep.points);
            let mean = |value: fn(&Point) -> f64| {
                pairs()
                    .map(|(alone, beside)| value(beside) / value(alone))
                    .sum::<f64>()
                    / pairs().count().max(1) as f64
            };
            findings.row(
                "by-speed",
                sweep.name,
                ("data_time_ratio", "1"),
                mean(|point| point.data_ms),
                None,
            );
            findings.row(
                "by-speed",
                sweep.name,
                ("compute_time_ratio", "1"),
                mean(|point| point.compute_ms),
                None,
            );
        }
    }
    for sweep in by_speed.iter().chain(&by_admission) {
        if let (Some(first), Some(last)) = (sweep.points.first(), sweep.points.last()) {
            findings.row(
                sweep.case,
                sweep.name,
                ("data_time_first", "ms"),
                first.data_ms,
                None,
            );
            findings.row(
                sweep.case,
                sweep.name,
                ("data_time_last", "ms"),
                last.data_ms,
                None,
            );
        }
    }
    write(
        setting,
        findings,
        "interference-speed",
        &by_speed,
        "speed, all updates admitted",
    )?;
    write(
        setting,
        findings,
        "interference-admission",
        &by_admission,
        "admitted fraction, at half speed",
    )
}

fn point(
    setting: &mut Setting<'_>,
    inputs: [f64; 2],
    load: Load,
    at: f64,
) -> Result<Point, String> {
    let (samples, settling) = (setting.extent.swept, setting.extent.swept_settling);
    let (mut data, mut compute) = (0.0, 0.0);
    for sample in 0..samples + settling {
        check_interrupted()?;
        let outputs = setting.plant.sample(inputs, load)?.outputs;
        let [tardiness, ratio] =
            outputs.ok_or("no instance of the task has finished in a sampling period")?;
        if sample >= settling {
            data += tardiness * DEADLINE_MS * ratio / f64::from(samples);
            compute += tardiness * DEADLINE_MS * (1.0 - ratio) / f64::from(samples);
        }
    }
    Ok(Point {
        at,
        data_ms: data,
        compute_ms: compute,
    })
}

fn write(
    setting: &Setting<'_>,
    findings: &mut Findings,
    name: &str,
    sweeps: &[Sweep],
    horizontal: &str,
) -> Result<(), String> {
    let rows: Vec<Vec<String>> = sweeps
        .iter()
        .flat_map(|sweep| {
            sweep.points.iter().map(|point| {
                vec![
                    sweep.name.replace(',', ";"),
                    cell(Some(point.at)),
                    cell(Some(point.data_ms)),
                    cell(Some(point.compute_ms)),
                ]
            })
        })
        .collect();
    findings.table(
        name,
        &["interference", "at", "data_ms", "compute_ms"],
        &rows,
    )?;
    let curves = |value: fn(&Point) -> f64| {
        sweeps
            .iter()
            .enumerate()
            .map(|(place, sweep)| Curve {
                label: sweep.name.to_owned(),
                color: COLORS[[0, 1, 4, 5][place % 4]],
                dashed: sweep.name.contains("own"),
                marked: true,
                points: sweep
                    .points
                    .iter()
                    .map(|point| (point.at, value(point)))
                    .collect(),
            })
            .collect()
    };
    let panel = |title: &str, curves| Panel {
        title: title.to_owned(),
        curves,
        goal: None,
        least: 0.0,
        most: 1.0,
    };
    let drawn = [
        panel("time with data, ms", curves(|point| point.data_ms)),
        panel("time with computing, ms", curves(|point| point.compute_ms)),
        panel("both, ms", curves(|point| point.data_ms + point.compute_ms)),
    ];
    let title = format!("{name}: {} transactions beside the task", MIX.name());
    let shapes = panels(
        &title,
        &setting.subtitle(),
        &Horizontal::range(horizontal, 0.0, 1.0),
        &drawn,
    );
    findings.draw(name, &shapes)
}
