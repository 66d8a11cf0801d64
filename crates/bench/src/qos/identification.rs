//! Figure 6: the model against the plant. On a real machine this also writes the file of a simulated plant.

use base::sim::Random;
use control::identify::{HALF_PERIODS, Model, R2_MIN, Sample, square_wave};

use super::findings::{Findings, Goal, cell};
use super::identified::{Added, FORMAT, Identified, Origin};
use super::plot::{COLORS, Curve, Horizontal, Panel, panels};
use super::scenario::{Load, Mix, Observed};
use super::setting::{GOAL, Setting};
use crate::scratch::check_interrupted;

/// Centre values around which both inputs are driven, and the amplitudes.
const CENTERS: [f64; 2] = [0.6, 0.75];
const AMPLITUDES: [f64; 2] = [0.15, 0.25];

/// Number of passes over the loads, each in its own order.
const PASSES: u32 = 3;

/// Error text for a sample without outputs.
const UNFINISHED: &str = "no instance of the task has finished in a sampling period";

/// Number of samples in the drawing.
const SHOWN: usize = 100;

/// Runs the experiment.
///
/// # Errors
/// The plant's; a run to which no model can be fitted.
pub(crate) fn identification(
    setting: &mut Setting<'_>,
    findings: &mut Findings,
) -> Result<(), String> {
    setting.plant.begin(setting.seed)?;
    let driven = drive(setting)?;
    let run = &driven[..];
    let model = Model::fit(run).map_err(|error| error.to_string())?;
    for (metric, value) in [
        ("r2_tardiness", model.r2[0]),
        ("r2_data_ratio", model.r2[1]),
    ] {
        findings.row(
            "identification",
            "model",
            (metric, "1"),
            value,
            Some(Goal::AtLeast(R2_MIN)),
        );
    }
    findings.row(
        "identification",
        "model",
        ("condition", "1"),
        model.condition,
        None,
    );
    let names = [["a11", "a12", "a21", "a22"], ["b11", "b12", "b21", "b22"]];
    for (names, matrix) in names.iter().zip([model.a, model.b]) {
        for (name, value) in names.iter().zip(matrix.iter().flatten()) {
            findings.row("identification", "model", (name, "1"), *value, None);
        }
    }
    let predicted: Vec<[f64; 2]> = run.windows(2).map(|pair| model.predict(&pair[0])).collect();
    table_and_drawing(setting, findings, run, &predicted)?;
    if let Some(known) = setting.identified.clone() {
        let found = [model.a, model.b];
        let truth = [known.model().a, known.model().b];
        let misses = found
            .iter()
            .flatten()
            .flatten()
            .zip(truth.iter().flatten().flatten());
        let worst = misses
            .map(|(found, truth)| (found - truth).abs())
            .fold(0.0, f64::max);
        findings.row(
            "identification",
            "model",
            ("miss_of_plant", "1"),
            worst,
            None,
        );
    }
    if setting.is_simulated {
        return Ok(());
    }
    let identified = measured(setting, findings, run, model, &predicted)?;
    findings.write("identified.json", &identified.text()?)
}

/// Returns the load that runs while the inputs are driven.
fn base(setting: &Setting<'_>) -> Load {
    Load::of(setting.driven_under, 1)
}

/// Drives both inputs. Returns the samples.
fn drive(setting: &mut Setting<'_>) -> Result<Vec<Sample>, String> {
    let wanted = setting.extent.driven as usize;
    let mut observed: Vec<Observed> = Vec::with_capacity(wanted + 1);
    // Inputs set at the end of a period apply to the next one.
    while observed.len() <= wanted {
        check_interrupted()?;
        let k = observed.len();
        setting
            .progress
            .show(&format!("driving the inputs: {k} of {wanted}"));
        let inputs = [0, 1].map(|input| {
            square_wave(
                k as u64,
                HALF_PERIODS[input],
                CENTERS[input],
                AMPLITUDES[input],
            )
        });
        observed.push(setting.plant.sample(inputs, base(setting))?);
    }
    setting.progress.clear();
    let samples = observed.windows(2).map(|pair| {
        Ok(Sample {
            outputs: pair[0].outputs.ok_or(UNFINISHED)?,
            inputs: pair[1].applied,
        })
    });
    samples.collect()
}

/// Returns the mean outputs under a load at fixed inputs.
fn mean(
    setting: &mut Setting<'_>,
    inputs: [f64; 2],
    load: Load,
    samples: u32,
) -> Result<[f64; 2], String> {
    for _ in 0..setting.extent.swept_settling {
        setting.plant.sample(inputs, load)?;
    }
    let mut sums = [0.0; 2];
    for _ in 0..samples {
        check_interrupted()?;
        let sample = setting.plant.sample(inputs, load)?;
        let outputs = sample.outputs.ok_or(UNFINISHED)?;
        sums = [0, 1].map(|output| sums[output] + outputs[output]);
    }
    Ok(sums.map(|sum| sum / f64::from(samples)))
}

/// Measures what each load adds. Returns the complete file.
fn measured(
    setting: &mut Setting<'_>,
    findings: &mut Findings,
    run: &[Sample],
    model: Model,
    predicted: &[[f64; 2]],
) -> Result<Identified, String> {
    let each = setting.extent.loaded.div_ceil(PASSES);
    let mut random = Random::new(setting.seed);
    let mut sums = [[0.0; 2]; Mix::ALL.len()];
    for pass in 0..PASSES {
        let mut order: Vec<usize> = (0..Mix::ALL.len()).collect();
        random.shuffle(&mut order);
        for place in order {
            let mix = Mix::ALL[place];
            setting
                .progress
                .show(&format!("pass {} of {PASSES}: {}", pass + 1, mix.name()));
            let found = mean(setting, model.inputs, Load::of(mix, 1), each)?;
            sums[place] =
                [0, 1].map(|output| sums[place][output] + found[output] / f64::from(PASSES));
        }
    }
    setting.progress.clear();
    let loads: Vec<Added> = Mix::ALL
        .iter()
        .enumerate()
        .filter(|(_, mix)| **mix != Mix::None)
        .map(|(place, mix)| Added {
            mix: mix.name().to_owned(),
            cores: 1,
            outputs: [0, 1].map(|output| sums[place][output] - sums[0][output]),
            samples: each * PASSES,
        })
        .collect();
    for (mix, added) in Mix::ALL[1..].iter().zip(&loads) {
        for (metric, value) in ["added_tardiness", "added_data_ratio"]
            .into_iter()
            .zip(added.outputs)
        {
            findings.row(mix.name(), "plant", (metric, "1"), value, None);
        }
    }
    let under = setting.driven_under.name();
    let base = loads.iter().find(|added| added.mix == under);
    let base = base.map_or([0.0; 2], |added| added.outputs);
    let residuals: Vec<[f64; 2]> = run[1..]
        .iter()
        .zip(predicted)
        .map(|(sample, predicted)| [0, 1].map(|output| sample.outputs[output] - predicted[output]))
        .collect();
    let facts = setting.plant.facts();
    let mut identified = Identified {
        format: FORMAT.to_owned(),
        origin: Origin {
            notes: setting.plant.notes(),
            ..setting.origin.clone()
        },
        speed_min: facts.speed_min,
        speed_step: facts.speed_step,
        // Subtract the load that ran while the inputs were driven, because it is one of the loads.
        model: Model {
            outputs: [0, 1].map(|output| model.outputs[output] - base[output]),
            ..model
        }
        .into(),
        residuals,
        data_ratio_min: 0.5,
        loads,
    };
    let speed = identified
        .speed_for(GOAL, 1.0, Load::NONE)?
        .clamp(facts.speed_min, 1.0);
    let rest = mean(setting, [speed, 1.0], Load::NONE, each * 2)?;
    identified.data_ratio_min = rest[1].clamp(0.01, 0.99);
    findings.row("none", "plant", ("data_ratio_min", "1"), rest[1], None);
    findings.row("none", "plant", ("speed_at_goal", "1"), speed, None);
    findings.row("none", "plant", ("tardiness_there", "1"), rest[0], None);
    Ok(identified)
}

fn table_and_drawing(
    setting: &Setting<'_>,
    findings: &mut Findings,
    run: &[Sample],
    predicted: &[[f64; 2]],
) -> Result<(), String> {
    let head = [
        "sample",
        "speed",
        "admitted",
        "tardiness",
        "tardiness_model",
        "data_ratio",
        "data_ratio_model",
    ];
    let rows: Vec<Vec<String>> = run
        .iter()
        .enumerate()
        .map(|(place, sample)| {
            let model = place.checked_sub(1).map(|before| predicted[before]);
            vec![
                place.to_string(),
                cell(Some(sample.inputs[0])),
                cell(Some(sample.inputs[1])),
                cell(Some(sample.outputs[0])),
                cell(model.map(|model| model[0])),
                cell(Some(sample.outputs[1])),
                cell(model.map(|model| model[1])),
            ]
        })
        .collect();
    findings.table("identification", &head, &rows)?;
    let from = run.len().saturating_sub(SHOWN).max(1);
    let curve = |label: &str, color: usize, dashed, value: &dyn Fn(usize) -> f64| Curve {
        label: label.to_owned(),
        color: COLORS[color],
        dashed,
        marked: false,
        points: (from..run.len())
            .map(|place| (place as f64, value(place)))
            .collect(),
    };
    let outputs = |output: usize| {
        vec![
            curve("measured", 0, false, &|place| run[place].outputs[output]),
            curve("model", 4, true, &|place| predicted[place - 1][output]),
        ]
    };
    let panel = |title: &str, curves: Vec<Curve>| {
        let values = curves
            .iter()
            .flat_map(|curve| curve.points.iter().map(|point| point.1));
        let (least, most) = values.fold(
            (f64::INFINITY, f64::NEG_INFINITY),
            |(least, most), value| (least.min(value), most.max(value)),
        );
        Panel {
            title: title.to_owned(),
            goal: None,
            least,
            most: most.max(least + 1e-3),
            curves,
        }
    };
    let drawn = [
        panel("mean tardiness", outputs(0)),
        panel("data response ratio", outputs(1)),
        panel(
            "inputs",
            vec![
                curve("speed", 1, false, &|place| run[place].inputs[0]),
                curve("admitted fraction", 5, false, &|place| run[place].inputs[1]),
            ],
        ),
    ];
    let horizontal = Horizontal::range("sample", from as f64, run.len() as f64);
    let shapes = panels(
        "identification: one step ahead",
        &setting.subtitle(),
        &horizontal,
        &drawn,
    );
    findings.draw("identification", &shapes)
}
