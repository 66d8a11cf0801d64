//! `keel qos`: state, modes, identification and design of the quality of service.

mod design;
mod identify;
mod status;

use crate::cli::QosCommand;
use crate::error::CliError;
use crate::output::Output;
use serde_json::{Map, Value, json};

/// Runs one command. Returns the exit status.
pub(crate) fn run(command: &QosCommand) -> Result<u8, CliError> {
    match command {
        QosCommand::Status { json, node } => status::run(*json, node),
        QosCommand::Mode { mode, json, node } => status::mode(mode, *json, node),
        QosCommand::Identify {
            out,
            periods,
            profile,
            speed,
            updates,
            tardiness_only,
            json,
            node,
        } => {
            let asked = identify::Asked {
                periods: *periods,
                profile: *profile,
                speed: *speed,
                updates: *updates,
                tardiness_only: *tardiness_only,
            };
            identify::run(out, &asked, *json, node)
        }
        QosCommand::Design {
            model,
            out,
            tardiness,
            data_ratio,
            weight_error,
            weight_integral,
            weight_effort,
            tardiness_only,
            json,
        } => {
            let wanted = design::Wanted {
                tardiness: *tardiness,
                data_ratio: *data_ratio,
                error: *weight_error,
                integral: *weight_integral,
                effort: *weight_effort,
                tardiness_only: *tardiness_only,
            };
            design::run(model, out, &wanted, *json)
        }
        QosCommand::Experiment { arguments } => crate::bench_cmd::experiment(arguments),
    }
}

/// Prints the two rows of a matrix, as people read them.
fn matrix_lines(output: &mut Output, name: &str, rows: &[[f64; 2]; 2]) -> Result<(), CliError> {
    for (row, [one, other]) in rows.iter().enumerate() {
        let name = if row == 0 { name } else { "" };
        output.line(format_args!("{name:<26} {one:>10.4} {other:>10.4}"))?;
    }
    Ok(())
}

/// Returns a model as JSON.
fn model_json(model: &db::qos::identify::Model) -> Map<String, Value> {
    let value = json!({
        "a": model.a,
        "b": model.b,
        "inputs": model.inputs,
        "outputs": model.outputs,
        "r2": model.r2,
        "residual": model.residual,
        "condition": model.condition,
        "samples": model.samples,
    });
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}
