//! A model as people and programs read it.

use crate::error::CliError;
use crate::output::Output;
use serde_json::{Map, Value, json};

/// Prints the two rows of a matrix, as people read them.
pub(super) fn matrix_lines(
    output: &mut Output,
    name: &str,
    rows: &[[f64; 2]; 2],
) -> Result<(), CliError> {
    for (row, [one, other]) in rows.iter().enumerate() {
        let name = if row == 0 { name } else { "" };
        output.line(format_args!("{name:<26} {one:>10.4} {other:>10.4}"))?;
    }
    Ok(())
}

/// Returns a model as JSON.
pub(super) fn model_json(model: &control::identify::Model) -> Map<String, Value> {
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
