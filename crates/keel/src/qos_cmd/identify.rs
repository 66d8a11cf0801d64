//! `keel qos identify`: lets the running node drive its inputs, and fits a model to what its tasks did.

use super::model::{matrix_lines, model_json};
use super::out::Out;
use crate::client::{Connection, NodeArgs, now_ms};
use crate::error::CliError;
use crate::output::Output;
use crate::signals;
use clap::Args;
use command::progress;
use config::qos::{Identified, Limits, clean, model_bytes};
use control::controller::ADMISSION;
use control::identify::{Model, R2_MIN, Sample};
use control::regulator::Run;
use libkeel::protocol::{Kind, Qos};
use node::status::QosState;
use serde_json::{Map, Value, json};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Poll interval of the progress, unless a sampling period is shorter. The node ends an identification that is not
/// polled for ten seconds.
const LOOK: Duration = Duration::from_millis(500);

/// The actuator's name from a node that drives no speed.
const NO_ACTUATOR: &str = "none";

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel qos identify --out qos-model.toml\n  \
    keel qos identify --periods 100 --speed 50-90 --updates 60-100\n\n\
    The tasks must run all the time. By default the command takes 420 sampling periods, seven minutes with\n\
    periods of 1 s: first those of --profile at full speed, which give the least data response ratio and should\n\
    see no load beside the tasks; then square waves that change every 7 and every 5 periods, which may make\n\
    tasks late. The node stays within --speed and --updates, and returns to what it did before when the command\n\
    ends for any reason. A model that explains less than 0.8 of either output (R2 over the last quarter, which\n\
    the fit has not seen) is refused.")]
pub(crate) struct IdentifyArgs {
    /// File to write; an existing regular file is replaced when the new one is complete
    #[arg(long, value_name = "FILE", default_value = "qos-model.toml")]
    out: PathBuf,
    /// Number of sampling periods with square waves, from 40 to 2000
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(40..=2_000))]
    periods: u32,
    /// Number of sampling periods at full speed before the square waves, from 1 to 200
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=200))]
    profile: u32,
    /// Range of the speed, in percent of full speed
    #[arg(long, value_name = "LOW-HIGH", default_value = "40-70", value_parser = percents)]
    speed: (u32, u32),
    /// Range of the admitted updates, in percent
    #[arg(long, value_name = "LOW-HIGH", default_value = "60-100", value_parser = percents)]
    updates: (u32, u32),
    /// Accept a model that explains only tardiness, for the modes dvfs-only and qod-only
    #[arg(long)]
    tardiness_only: bool,
    /// Print one JSON object: the model, and the file
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: NodeArgs,
}

impl IdentifyArgs {
    /// Returns the request; the node takes middle and amplitude as parts of 1.
    fn message(&self) -> Map<String, Value> {
        let middle = |(low, high): (u32, u32)| f64::from(low + high) / 200.0;
        let half = |(low, high): (u32, u32)| f64::from(high - low) / 200.0;
        let value = json!({
            "periods": self.periods,
            "profile": self.profile,
            "speed": middle(self.speed),
            "speed_amplitude": half(self.speed),
            "admitted": middle(self.updates),
            "admitted_amplitude": half(self.updates),
        });
        match value {
            Value::Object(object) => object,
            _ => Map::new(),
        }
    }
}

/// `40-70`
fn percents(text: &str) -> Result<(u32, u32), String> {
    let expected =
        || "two percentages such as 40-70, the first below the second, 100 at most".to_owned();
    let (low, high) = text.split_once('-').ok_or_else(expected)?;
    let number = |text: &str| text.trim_end_matches('%').parse().ok();
    let pair: Option<(u32, u32)> = number(low).zip(number(high));
    pair.filter(|(low, high)| low < high && *high <= 100)
        .ok_or_else(expected)
}

pub(super) fn run(arguments: &IdentifyArgs) -> Result<u8, CliError> {
    let out = arguments.out.as_path();
    // Check this first: seven minutes of driving must not end with a file that cannot be written.
    Out::look(out, None)?.try_bytes(model_bytes(arguments.periods))?;
    let mut connection = Connection::open(&arguments.node)?;
    let begin = Qos {
        identify: Some(arguments.message()),
        ..Qos::default()
    };
    let mut state: QosState = connection.ask(Kind::Qos, &begin, Kind::QosState)?;
    signals::catch_stop();
    eprintln!(
        "keel: until this ends, the node's speed goes between {} and {} % and its updates between {} and {} %, and \
         tasks may be late; Ctrl-C ends it",
        arguments.speed.0, arguments.speed.1, arguments.updates.0, arguments.updates.1
    );
    let begun = Instant::now();
    let mut line = Line::default();
    let mut driven = Driven::default();
    driven.complete(&mut state);
    while state.identification.state == "running" {
        if signals::stop_requested() {
            let stop = Qos {
                stop_identify: true,
                ..Qos::default()
            };
            line.clear();
            let _: QosState = connection.ask(Kind::Qos, &stop, Kind::QosState)?;
            return Err(CliError::failure(
                "identification",
                "was ended before its time; the node does what it did before",
                "start it again for a model",
            ));
        }
        line.show(&state, begun);
        let period = Duration::from_millis(state.sampling_period_ms.into());
        std::thread::sleep(LOOK.min(period));
        state = connection.ask(Kind::Qos, &Qos::default(), Kind::QosState)?;
        driven.complete(&mut state);
    }
    line.clear();
    if state.identification.state != "done" {
        let why = state
            .identification
            .why
            .as_deref()
            .unwrap_or("it was ended");
        return Err(CliError::failure(
            "identification",
            format!("was given up: {why}"),
            "mend that, see with `keel qos status` that the tasks run, then start it again",
        ));
    }
    finish(out, &state, arguments.tardiness_only, arguments.json)
}

/// The last actuator and its step: when the tasks end together with the identification, the node no longer reports
/// them.
#[derive(Default)]
struct Driven(Option<(String, f64)>);

impl Driven {
    /// Stores the actuator from the state, or restores the stored one in it.
    fn complete(&mut self, state: &mut QosState) {
        if state.actuator != NO_ACTUATOR {
            self.0 = Some((state.actuator.clone(), state.speed_step));
        } else if let Some((actuator, step)) = &self.0 {
            state.actuator.clone_from(actuator);
            state.speed_step = *step;
        }
    }
}

/// Fits the model, writes it, and prints its quality.
fn finish(out: &Path, state: &QosState, tardiness_only: bool, json: bool) -> Result<u8, CliError> {
    let measured = Run {
        profiled: state.identification.profiled.clone(),
        driven: state
            .identification
            .driven
            .iter()
            .map(|[tardiness, ratio, speed, admitted]| Sample {
                outputs: [*tardiness, *ratio],
                inputs: [*speed, *admitted],
            })
            .collect(),
    };
    let refused = |error: String| CliError::failure("identification", error, "nothing was written");
    let model = Model::fit(&measured.driven).map_err(|error| refused(error.to_string()))?;
    let mut output = Output::new();
    if !json {
        said(&mut output, &model)?;
        output.flush()?;
    }
    let is_enough = model.check();
    if is_enough.is_err() && model.check_tardiness().is_ok() && !tardiness_only {
        let error = is_enough.map_or_else(|error| error.to_string(), |()| String::new());
        let remedy = "nothing was written; --tardiness-only accepts it, for the modes dvfs-only and qod-only";
        return Err(CliError::failure("identification", error, remedy));
    }
    if tardiness_only {
        model.check_tardiness()
    } else {
        is_enough
    }
    .map_err(|error| refused(error.to_string()))?;
    // With `fresh` the possible minimum changes every time, so take the least fraction that was tried.
    let admitted = measured
        .driven
        .iter()
        .map(|sample| sample.inputs[ADMISSION]);
    let admitted_least = admitted.fold(1.0, f64::min);
    let identified = Identified {
        model,
        data_ratio_min: measured
            .data_ratio_min()
            .ok_or_else(|| refused("no period was profiled".to_owned()))?,
        limits: Limits {
            speed_min: state.speed_min,
            speed_step: state.speed_step,
            admission_min: state.admission_min.min(admitted_least),
        },
        actuator: state.actuator.clone(),
        sampling_period_ms: state.sampling_period_ms,
        machine: machine(),
        made: node::time_text::format_ms(now_ms()),
    };
    let text = identified.text(&measured.driven);
    // Make sure that the written file can be read.
    Identified::parse(&text).map_err(|(wrong, _)| refused(wrong))?;
    Out::look(out, None)?.write(&text)?;
    if json {
        let mut object = model_json(&model);
        object.insert("file".to_owned(), out.display().to_string().into());
        object.insert(
            "data_ratio_min".to_owned(),
            identified.data_ratio_min.into(),
        );
        output.json(&Value::Object(object))?;
    } else {
        output.line(format_args!(
            "least data response ratio  {:.4}, at full speed with all updates",
            identified.data_ratio_min
        ))?;
        output.line(format_args!(
            "written: {}; make gains of it with `keel qos design {0}`",
            out.display()
        ))?;
    }
    output.flush()?;
    Ok(0)
}

fn said(output: &mut Output, model: &Model) -> Result<(), CliError> {
    output.line("y(k+1) = A y(k) + B u(k)    y: tardiness, data response ratio; u: speed, admitted fraction")?;
    matrix_lines(output, "A", &model.a)?;
    matrix_lines(output, "B", &model.b)?;
    output.line(format_args!(
        "R2                         {:.3} of tardiness, {:.3} of the data response ratio ({R2_MIN} is needed)",
        model.r2[0], model.r2[1]
    ))?;
    output.line(format_args!(
        "condition number           {:.2}",
        model.condition
    ))?;
    output.line(format_args!(
        "around                     speed {:.2}, admitted {:.2}: tardiness {:.3}, data response ratio {:.3}",
        model.inputs[0], model.inputs[1], model.outputs[0], model.outputs[1]
    ))
}

/// Returns processor and kernel.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let text = read("/proc/cpuinfo");
    let named = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        matches!(name.trim(), "model name" | "Model").then(|| value.trim().to_owned())
    });
    let processor = named.unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    clean(&format!(
        "{processor}, {cores} cores, Linux {}",
        kernel.trim()
    ))
}

/// The progress, if there is a terminal.
#[derive(Default)]
struct Line {
    is_shown: bool,
}

impl Line {
    fn show(&mut self, state: &QosState, begun: Instant) {
        if !std::io::stderr().is_terminal() {
            return;
        }
        let now = &state.identification;
        let (done, wanted) = (now.periods_done, now.periods_wanted.max(1));
        let left = if done == 0 {
            String::new()
        } else {
            let each = begun.elapsed().as_secs_f64() / f64::from(done);
            let seconds = each * f64::from(wanted.saturating_sub(done));
            format!(", about {} left", progress::span_text(seconds as u64))
        };
        self.is_shown = true;
        write!(
            std::io::stderr(),
            "\r\x1b[2Kidentifying  {done} of {wanted} periods{left}"
        )
        .ok();
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            write!(std::io::stderr(), "\r\x1b[2K").ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_percentages_are_read() {
        assert_eq!(percents("40-70"), Ok((40, 70)));
        assert_eq!(percents("60%-100%"), Ok((60, 100)));
        for wrong in ["", "40", "70-40", "40-101", "-1-5", "a-b", "40-40"] {
            assert!(percents(wrong).is_err(), "{wrong}");
        }
    }

    /// A model with steps of the whole speed is refused.
    #[test]
    fn tasks_that_end_with_the_identification_take_no_step_along() {
        let state = |actuator: &str, speed_step| QosState {
            actuator: actuator.to_owned(),
            speed_step,
            ..QosState::default()
        };
        let mut driven = Driven::default();
        let mut early = state(NO_ACTUATOR, 1.0);
        driven.complete(&mut early);
        assert_eq!((early.actuator.as_str(), early.speed_step), ("none", 1.0));
        driven.complete(&mut state("cpufreq", 0.05));
        let mut late = state(NO_ACTUATOR, 1.0);
        driven.complete(&mut late);
        assert_eq!((late.actuator.as_str(), late.speed_step), ("cpufreq", 0.05));
    }
}
