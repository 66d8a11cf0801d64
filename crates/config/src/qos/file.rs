//! The model file and the gains file, version 1; `QOS.md` describes every field.
//!
//! Both are TOML, because people read them and copy them between boards. The loaded file decides how fast a node runs,
//! so its content is not trusted. Numbers must be in their ranges (`check.rs`). The poles of the closed loop are
//! computed again from the model and the gains in the file.

use super::check::{check_run, check_set_points};
use super::identified::{AGAIN, Identified, Limits, SAMPLES_MAX, Wrong};
use crate::read_bounded;
use command::error::CliError;
use control::controller::{ADMISSION, Controller, Mode, Range, SPEED, SetPoints};
use control::design::{Design, POLE_MAX, SingleGains};
use control::identify::{Model, Sample};
use serde::Deserialize;
use std::fmt::Write as _;
use std::path::Path;

/// Version of both formats.
const VERSION: u32 = 1;

/// Bytes of the longest file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Gains with all data that they were made from.
#[derive(Clone, Debug, PartialEq)]
pub struct Gains {
    /// The model that they were made for.
    pub identified: Identified,
    /// The gains of the controller.
    pub design: Design,
    /// What the controller holds.
    pub set_points: SetPoints,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    kind: String,
    made: String,
    machine: String,
    actuator: String,
    sampling_period_ms: u32,
    data_ratio_min: f64,
    limits: Limits,
    model: ModelTable,
    set_points: Option<SetPointsTable>,
    gains: Option<GainsTable>,
    /// Tardiness, data response ratio, speed and admitted fraction of each period.
    run: Option<Vec<[f64; 4]>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelTable {
    a: [[f64; 2]; 2],
    b: [[f64; 2]; 2],
    inputs: [f64; 2],
    outputs: [f64; 2],
    r2: [f64; 2],
    residual: [f64; 2],
    condition: f64,
    samples: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetPointsTable {
    tardiness: f64,
    data_ratio: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GainsTable {
    both: Option<BothTable>,
    speed_alone: Option<SingleTable>,
    admission_alone: Option<SingleTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BothTable {
    proportional: [[f64; 2]; 2],
    integral: [[f64; 2]; 2],
    riccati_residual: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SingleTable {
    proportional: f64,
    integral: f64,
    pole_max: f64,
}

const OTHER_VERSION: &str = "use the version of keel that wrote it, or make it anew";

impl Identified {
    /// Reads a model file.
    ///
    /// # Errors
    /// The file cannot be read, or has invalid content; exit status 1.
    pub fn load(path: &Path) -> Result<Self, CliError> {
        let text = read_bounded(path, FILE_BYTES_MAX)?;
        Self::parse(&text)
            .map_err(|(wrong, remedy)| CliError::failure(path.display(), wrong, remedy))
    }

    /// Parses the text of a model file.
    ///
    /// # Errors
    /// The first invalid line or field: the reason and the remedy.
    pub fn parse(text: &str) -> Result<Self, Wrong> {
        Ok(parse(text, "model")?.0)
    }

    /// Returns the text of a model file. `run`: the samples that the model was fitted to.
    #[must_use]
    pub fn text(&self, run: &[Sample]) -> String {
        let mut text = String::from(
            "# A model of an Evenkeel node, made by `keel qos identify`. `keel qos design` makes gains of it.\n",
        );
        let mut rows = String::from(
            "# Each period: mean tardiness, data response ratio, and the speed and admitted fraction set at its end.\n\
             run = [\n",
        );
        for sample in run.iter().take(SAMPLES_MAX) {
            let ([tardiness, ratio], [speed, admission]) = (sample.outputs, sample.inputs);
            let _ = writeln!(
                rows,
                "  [{tardiness:?}, {ratio:?}, {speed:?}, {admission:?}],"
            );
        }
        rows.push_str("]\n");
        self.write(&mut text, "model", &rows);
        text
    }

    /// Writes the model. `run` must come before the first table; otherwise it would belong to the last one.
    fn write(&self, text: &mut String, kind: &str, run: &str) {
        let model = &self.model;
        // Writing to a string never fails.
        let _ = write!(
            text,
            "version = {VERSION}\nkind = \"{kind}\"\nmade = {made}\nmachine = {machine}\nactuator = {actuator}\n\
             sampling_period_ms = {period}\n\
             data_ratio_min = {ratio:?}\n{run}\n[limits]\nspeed_min = {speed_min:?}\nspeed_step = {speed_step:?}\n\
             admission_min = {admission_min:?}\n\n\
             # y(k+1) = A y(k) + B u(k), as differences from outputs and inputs.\n\
             # y: tardiness, data response ratio; u: speed, admitted fraction.\n[model]\n\
             a = {a:?}\nb = {b:?}\ninputs = {inputs:?}\noutputs = {outputs:?}\nr2 = {r2:?}\nresidual = {residual:?}\n\
             condition = {condition:?}\nsamples = {samples}\n",
            made = quoted(&self.made),
            machine = quoted(&self.machine),
            actuator = quoted(&self.actuator),
            period = self.sampling_period_ms,
            ratio = self.data_ratio_min,
            speed_min = self.limits.speed_min,
            speed_step = self.limits.speed_step,
            admission_min = self.limits.admission_min,
            a = model.a,
            b = model.b,
            inputs = model.inputs,
            outputs = model.outputs,
            r2 = model.r2,
            residual = model.residual,
            condition = model.condition,
            samples = model.samples,
        );
    }
}

impl Gains {
    /// Reads a gains file.
    ///
    /// # Errors
    /// The file cannot be read, or has invalid content; exit status 1.
    pub fn load(path: &Path) -> Result<Self, CliError> {
        let text = read_bounded(path, FILE_BYTES_MAX)?;
        Self::parse(&text)
            .map_err(|(wrong, remedy)| CliError::failure(path.display(), wrong, remedy))
    }

    /// Parses the text of a gains file.
    ///
    /// # Errors
    /// The first invalid line or field, or gains without a stable loop: the reason and the remedy.
    pub fn parse(text: &str) -> Result<Self, Wrong> {
        let (identified, rest) = parse(text, "gains")?;
        let (Some(set_points), Some(gains)) = (rest.set_points, rest.gains) else {
            return Err(("[set_points] or [gains] is missing".to_owned(), AGAIN));
        };
        let single = |table: Option<SingleTable>| {
            table.map(|table| SingleGains {
                proportional: table.proportional,
                integral: table.integral,
                pole_max: table.pole_max,
            })
        };
        let single = [single(gains.speed_alone), single(gains.admission_alone)];
        let none = || {
            let wrong = "the gains have a number that is none, or no poles are found for them";
            (wrong.to_owned(), AGAIN)
        };
        let is_number = |number: &f64| number.is_finite() && *number >= 0.0;
        if gains
            .both
            .as_ref()
            .is_some_and(|both| !is_number(&both.riccati_residual))
        {
            return Err(none());
        }
        let design = match gains.both {
            Some(both) => Design {
                proportional: both.proportional,
                integral: both.integral,
                poles: Design::poles(&identified.model, &both.proportional, &both.integral)
                    .ok_or_else(none)?,
                riccati_residual: both.riccati_residual,
                single,
                is_for_both: true,
            },
            None => Design::of_single(single),
        };
        if !design.is_for_both && design.single.iter().all(Option::is_none) {
            return Err(("there are no gains in it".to_owned(), AGAIN));
        }
        let set_points = SetPoints {
            tardiness: set_points.tardiness,
            data_ratio: set_points.data_ratio,
        };
        check_set_points(set_points)?;
        let gains = Self {
            identified,
            design,
            set_points,
        };
        let pole = gains.design.pole_max();
        let is_quick = pole < POLE_MAX;
        if !is_quick {
            let wrong = format!(
                "with these gains the closed loop has a pole at {pole:.3}, {POLE_MAX} is too slow"
            );
            return Err((wrong, AGAIN));
        }
        for (input, single) in gains.design.single.iter().enumerate() {
            if let Some(single) = single {
                check_single(&gains.identified.model, input, single)?;
            }
        }
        // A controller may refuse the gains for other reasons.
        gains
            .controller([1.0; 2], 3)
            .map_err(|error| (error, AGAIN))?;
        Ok(gains)
    }

    /// Returns whether the model explains both outputs, which a controller of both requires.
    #[must_use]
    pub fn explains_both(&self) -> bool {
        self.design.is_for_both && self.identified.model.check().is_ok()
    }

    /// Returns whether there are gains for the inputs that a mode drives.
    #[must_use]
    pub fn is_for(&self, mode: Mode) -> bool {
        match mode {
            Mode::Open => true,
            Mode::SpeedOnly => self.design.single[SPEED].is_some(),
            Mode::AdmissionOnly => self.design.single[ADMISSION].is_some(),
            Mode::Both => self.explains_both(),
        }
    }

    /// Returns the controller with these gains. `change_max`: the largest change of an input from one sample to the
    /// next. `missing_max`: samples in a row that may be missing until both inputs go to full.
    ///
    /// # Errors
    /// The gains, the ranges or the set points are refused by the controller; its reason.
    pub fn controller(&self, change_max: [f64; 2], missing_max: u32) -> Result<Controller, String> {
        let limits = self.identified.limits;
        let ranges = [
            Range {
                min: limits.speed_min,
                max: 1.0,
                change_max: change_max[0],
                dead_band: limits.speed_step / 2.0,
            },
            Range {
                min: limits.admission_min,
                max: 1.0,
                change_max: change_max[1],
                dead_band: 0.0,
            },
        ];
        Controller::new(
            self.identified.model,
            &self.design,
            ranges,
            self.set_points,
            missing_max,
        )
        .map_err(|error| error.to_string())
    }

    /// Returns the text of a gains file.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::from(
            "# Gains of an Evenkeel node's quality of service, made by `keel qos design`; qos.gains of the\n\
             # configuration names this file.\n",
        );
        self.identified.write(&mut text, "gains", "");
        let design = &self.design;
        let _ = write!(
            text,
            "\n[set_points]\ntardiness = {:?}\ndata_ratio = {:?}\n",
            self.set_points.tardiness, self.set_points.data_ratio,
        );
        if design.is_for_both {
            let _ = write!(
                text,
                "\n# u = -(P e + I x): e the errors, x their sums. Rows: speed, admitted fraction.\n[gains.both]\n\
                 proportional = {:?}\nintegral = {:?}\nriccati_residual = {:?}\n",
                design.proportional, design.integral, design.riccati_residual,
            );
        }
        for (name, single) in SINGLE_NAMES.iter().zip(&design.single) {
            if let Some(single) = single {
                let _ = write!(
                    text,
                    "\n# Tardiness by this input alone.\n[gains.{name}]\nproportional = {:?}\nintegral = {:?}\n\
                     pole_max = {:?}\n",
                    single.proportional, single.integral, single.pole_max
                );
            }
        }
        text
    }
}

/// Tables of the gains for a single input, by input.
const SINGLE_NAMES: [&str; 2] = ["speed_alone", "admission_alone"];

/// Largest difference between a pole in a file and the computed one. Processors add in different orders, and a multiple
/// pole moves by the root of the rounding error.
const POLE_DIFFERENCE_MAX: f64 = 1e-6;

/// Checks whether the loop of a single input is fast enough, and has the pole that the file gives.
fn check_single(model: &Model, input: usize, single: &SingleGains) -> Result<(), Wrong> {
    let name = SINGLE_NAMES.get(input).copied().unwrap_or_default();
    let pole = single
        .pole_max_with(model, input)
        .ok_or_else(|| ("the gains have a number that is none".to_owned(), AGAIN))?;
    let is_quick = pole < POLE_MAX;
    if !is_quick {
        let wrong = format!(
            "with the gains of {name} the closed loop has a pole at {pole:.3}, {POLE_MAX} is too slow"
        );
        return Err((wrong, AGAIN));
    }
    let said = single.pole_max;
    // Gains or model were changed later, or belong to another file.
    let is_same = (said - pole).abs() <= POLE_DIFFERENCE_MAX;
    if !is_same {
        let wrong = format!("pole_max of {name} is {said:.6}, but its gains have {pole:.6}");
        return Err((wrong, AGAIN));
    }
    Ok(())
}

/// The fields after the model in a file.
struct Rest {
    set_points: Option<SetPointsTable>,
    gains: Option<GainsTable>,
}

fn parse(text: &str, kind: &str) -> Result<(Identified, Rest), Wrong> {
    let document: Document = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| {
            text[..span.start.min(text.len())].lines().count().max(1)
        });
        // The expected names would make a long list; they are in QOS.md.
        let message = error.message();
        let message = message
            .split_once(", expected one of")
            .map_or(message, |(wrong, _)| wrong);
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        let wrong: String = message.chars().take(160).map(plain).collect();
        (format!("line {line}: {wrong}"), AGAIN)
    })?;
    if document.version != VERSION {
        let wrong = format!(
            "has version {}, this program reads {VERSION}",
            document.version
        );
        return Err((wrong, OTHER_VERSION));
    }
    if document.kind != kind {
        let remedy = match kind {
            "gains" => "make gains of it with `keel qos design`",
            _ => "name a file of `keel qos identify`",
        };
        let found: String = document.kind.chars().take(40).collect();
        let wrong = format!("is a {} file, no {kind} file", found.escape_debug());
        return Err((wrong, remedy));
    }
    let is_gains = kind == "gains";
    let foreign = match (is_gains, &document) {
        (true, Document { run: Some(_), .. }) => Some("run"),
        (
            false,
            Document {
                set_points: Some(_),
                ..
            },
        ) => Some("[set_points]"),
        (false, Document { gains: Some(_), .. }) => Some("[gains]"),
        _ => None,
    };
    if let Some(field) = foreign {
        return Err((format!("{field} does not belong into a {kind} file"), AGAIN));
    }
    if !is_gains {
        check_run(document.run.as_deref().unwrap_or_default())?;
    }
    let table = document.model;
    let identified = Identified {
        model: Model {
            a: table.a,
            b: table.b,
            inputs: table.inputs,
            outputs: table.outputs,
            r2: table.r2,
            residual: table.residual,
            condition: table.condition,
            samples: table.samples,
        },
        data_ratio_min: document.data_ratio_min,
        limits: document.limits,
        actuator: document.actuator,
        sampling_period_ms: document.sampling_period_ms,
        machine: document.machine,
        made: document.made,
    };
    identified.check()?;
    let (set_points, gains) = (document.set_points, document.gains);
    Ok((identified, Rest { set_points, gains }))
}

/// Returns a text in TOML notation.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", letter as u32);
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns an upper bound of the bytes of a model file with this number of periods.
#[must_use]
pub fn model_bytes(periods: u32) -> usize {
    // Four numbers of at most 24 digits, plus the surrounding characters.
    4_096 + periods as usize * 112
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
