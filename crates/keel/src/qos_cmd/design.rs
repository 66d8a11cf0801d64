//! `keel qos design`: computes gains from a model and writes them to the file that a node loads.

use super::model::{matrix_lines, model_json};
use super::out::Out;
use crate::error::CliError;
use crate::output::Output;
use clap::Args;
use config::qos::{DATA_RATIO, Gains, Identified, TARDINESS};
use control::controller::{Mode, SetPoints};
use control::design::{Design, TARDINESS_GAIN_MAX, Weights};
use serde_json::json;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel qos design qos-model.toml --out qos-gains.toml\n  \
    keel qos design qos-model.toml --tardiness 0.7 --data-ratio 0.4\n  \
    keel qos design qos-model.toml --weight-effort 1,4      prefer speed to fewer updates\n\n\
    The command solves the discrete Riccati equation for the errors and their sums. Gains whose closed loop has\n\
    a pole at or beyond 0.95 are refused, because the loop would respond too slowly. This is the case for both\n\
    inputs together if one of them has no effect, such as updates that disturb no task; --tardiness-only still\n\
    gives the other input its gains.")]
pub(crate) struct DesignArgs {
    /// File written by `keel qos identify`
    model: PathBuf,
    /// File to write, but not the model; an existing regular file is replaced when the new one is complete
    #[arg(long, value_name = "FILE", default_value = "qos-gains.toml")]
    out: PathBuf,
    /// Setpoint of the mean tardiness: response time / deadline
    #[arg(long, value_name = "X", default_value_t = 0.8)]
    tardiness: f64,
    /// Setpoint of the data response ratio: time in the database / response time [default: the model's profiled
    /// minimum]
    #[arg(long, value_name = "X")]
    data_ratio: Option<f64>,
    /// Weights of the errors: of tardiness, of the data response ratio
    #[arg(long, value_name = "X,X", default_value = "10,1", value_parser = pair)]
    weight_error: (f64, f64),
    /// Weights of the sums of errors: of tardiness, of the data response ratio
    #[arg(long, value_name = "X,X", default_value = "5,0.5", value_parser = pair)]
    weight_integral: (f64, f64),
    /// Weights of the changes: of speed, of the admitted fraction
    #[arg(long, value_name = "X,X", default_value = "1,1", value_parser = pair)]
    weight_effort: (f64, f64),
    /// Make gains for one input at a time: for the modes dvfs-only and qod-only
    #[arg(long)]
    tardiness_only: bool,
    /// Print one JSON object: gains, poles, and the file
    #[arg(long)]
    json: bool,
}

impl DesignArgs {
    /// Checks the set points.
    fn check(&self) -> Result<(), CliError> {
        let numbers = [
            ("--tardiness", self.tardiness, TARDINESS),
            ("--data-ratio", self.data_ratio.unwrap_or(0.5), DATA_RATIO),
        ];
        for (option, number, range) in numbers {
            if !range.contains(&number) {
                let remedy = format!("give {} to {}", range.start(), range.end());
                return Err(CliError::usage(option, format!("is {number}"), remedy));
            }
        }
        Ok(())
    }
}

/// `10,1`
fn pair(text: &str) -> Result<(f64, f64), String> {
    let expected = || "two numbers above 0 such as 10,1".to_owned();
    let (one, other) = text.split_once(',').ok_or_else(expected)?;
    let number = |text: &str| {
        let number: f64 = text.trim().parse().ok()?;
        (number.is_finite() && number > 0.0).then_some(number)
    };
    number(one).zip(number(other)).ok_or_else(expected)
}

pub(super) fn run(arguments: &DesignArgs) -> Result<u8, CliError> {
    arguments.check()?;
    let (model, out) = (arguments.model.as_path(), arguments.out.as_path());
    // Check first: the model is the result of seven minutes of driving and must not be overwritten.
    let file = Out::look(out, Some(model))?;
    let identified = Identified::load(model)?;
    let refused =
        |error: String| CliError::failure(model.display(), error, "see `keel qos design --help`");
    identified
        .model
        .check_tardiness()
        .map_err(|error| refused(error.to_string()))?;
    let set_points = SetPoints {
        tardiness: arguments.tardiness,
        data_ratio: arguments.data_ratio.unwrap_or(identified.data_ratio_min),
    };
    let weights = Weights {
        error: arguments.weight_error.into(),
        integral: arguments.weight_integral.into(),
        effort: arguments.weight_effort.into(),
    };
    // If the model explains only tardiness, only gains for a single input are useful.
    let alone = || Design::alone(&identified.model, &weights);
    let design = if arguments.tardiness_only || identified.model.check().is_err() {
        alone().map_err(|error| refused(error.to_string()))?
    } else {
        Design::robust(&identified.model, &weights).map_err(|error| {
            let error = refused(error.to_string());
            match alone() {
                Ok(_) => error.with_remedy(
                    "nothing was written; --tardiness-only makes gains for one input at a time, for the modes \
                     dvfs-only and qod-only",
                ),
                Err(_) => error,
            }
        })?
    };
    let gains = Gains {
        identified,
        design,
        set_points,
    };
    let text = gains.text();
    // Make sure that the written file can be loaded.
    Gains::parse(&text).map_err(|(wrong, _)| refused(wrong))?;
    file.write(&text)?;
    let mut output = Output::new();
    if arguments.json {
        output.json(&json!({
            "file": out.display().to_string(),
            "tardiness_target": set_points.tardiness,
            "data_ratio_target": set_points.data_ratio,
            "proportional": design.proportional,
            "integral": design.integral,
            "poles": design.poles,
            "pole_max": design.pole_max(),
            "pole_max_at_once": design.poles_at_once(&gains.identified.model),
            "riccati_residual": design.riccati_residual,
            "single_pole_max": design.single.map(|single| single.map(|single| single.pole_max)),
            "model": model_json(&gains.identified.model),
        }))?;
    } else {
        said(&mut output, &gains, out)?;
    }
    output.flush()?;
    Ok(0)
}

fn said(output: &mut Output, gains: &Gains, out: &Path) -> Result<(), CliError> {
    let design = &gains.design;
    if design.is_for_both {
        output.line("                            tardiness data ratio")?;
        matrix_lines(output, "gains of errors (speed)", &design.proportional)?;
        matrix_lines(output, "gains of sums (speed)", &design.integral)?;
        let poles: Vec<String> = design.poles.iter().map(|pole| pole_text(*pole)).collect();
        output.line(format_args!(
            "poles of the closed loop   {}",
            poles.join("  ")
        ))?;
        if let Some([same, stronger]) = design.poles_at_once(&gains.identified.model) {
            let name = "largest without memory";
            output.line(format_args!(
                "{name:<26} {same:.3}, and {stronger:.3} where tardiness moves {TARDINESS_GAIN_MAX:.0} times as much"
            ))?;
        }
    }
    for (name, single) in ["speed alone", "updates alone"].iter().zip(&design.single) {
        match single {
            Some(single) => output.line(format_args!(
                "{name:<26} {:.4} {:.4}, largest pole {:.3}",
                single.proportional, single.integral, single.pole_max
            ))?,
            None => output.line(format_args!(
                "{name:<26} cannot hold tardiness: the model gives it too little to move"
            ))?,
        }
    }
    if !gains.explains_both() {
        let modes = [
            (Mode::SpeedOnly, "dvfs-only"),
            (Mode::AdmissionOnly, "qod-only"),
        ];
        let served: Vec<&str> = modes
            .iter()
            .filter(|(mode, _)| gains.is_for(*mode))
            .map(|(_, name)| *name)
            .collect();
        let why = if gains.identified.model.check().is_ok() {
            "one input at a time, as was asked for"
        } else {
            "the model explains too little for mimo"
        };
        output.line(format_args!(
            "modes                      {}; {why}",
            served.join(" and ")
        ))?;
    }
    let held = &gains.set_points;
    output.line(format_args!(
        "holds                      tardiness {:.3}, data response ratio {:.3}",
        held.tardiness, held.data_ratio
    ))?;
    output.line(format_args!(
        "written: {}; name it in qos.gains of the node's configuration and send the node SIGHUP",
        out.display()
    ))
}

fn pole_text([re, im]: [f64; 2]) -> String {
    if im == 0.0 {
        format!("{re:.3}")
    } else {
        format!("{re:.3}{im:+.3}i")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_numbers_are_read() {
        assert_eq!(pair("10, 0.5"), Ok((10.0, 0.5)));
        for wrong in ["", "1", "0,1", "1,-1", "nan,1", "1,inf", "1,2,3"] {
            assert!(pair(wrong).is_err(), "{wrong}");
        }
    }
}
