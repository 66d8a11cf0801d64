//! `keel qos identify`: lets the running node drive its inputs, and fits a model to what its tasks did.

use super::{matrix_lines, model_json};
use crate::cli::NodeArgs;
use crate::client::Connection;
use crate::error::CliError;
use crate::output::Output;
use crate::progress;
use crate::qos::{Identified, Limits, Out, QosState, clean, model_bytes};
use crate::signals;
use db::qos::controller::ADMISSION;
use db::qos::identify::{Model, R2_MIN, Sample};
use db::qos::regulator::Run;
use libkeel::protocol::{Kind, Qos};
use serde_json::{Map, Value, json};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Poll interval of the progress, unless a sampling period is shorter. The node ends an identification that is not
/// polled for ten seconds.
const LOOK: Duration = Duration::from_millis(500);

/// The actuator's name from a node that drives no speed.
const NO_ACTUATOR: &str = "none";

/// The request of the command line; in percent.
pub(super) struct Asked {
    pub(super) periods: u32,
    pub(super) profile: u32,
    pub(super) speed: (u32, u32),
    pub(super) updates: (u32, u32),
    pub(super) tardiness_only: bool,
}

impl Asked {
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

pub(super) fn run(out: &Path, asked: &Asked, json: bool, node: &NodeArgs) -> Result<u8, CliError> {
    // Check this first: seven minutes of driving must not end with a file that cannot be written.
    Out::look(out, None)?.try_bytes(model_bytes(asked.periods))?;
    let mut connection = Connection::open(node)?;
    let begin = Qos {
        identify: Some(asked.message()),
        ..Qos::default()
    };
    let mut state: QosState = connection.ask(Kind::Qos, &begin, Kind::QosState)?;
    signals::catch_stop();
    eprintln!(
        "keel: until this ends, the node's speed goes between {} and {} % and its updates between {} and {} %, and \
         tasks may be late; Ctrl-C ends it",
        asked.speed.0, asked.speed.1, asked.updates.0, asked.updates.1
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
    finish(out, &state, asked.tardiness_only, json)
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
        made: crate::time_text::format_ms(crate::client::now_ms()),
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
