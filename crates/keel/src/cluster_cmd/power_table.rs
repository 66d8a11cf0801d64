//! The power table of `keel cluster measure` and `report`. It has the power of each source during a benchmark, and the
//! result of that benchmark per watt and per joule of all boards.

use crate::error::CliError;
use crate::output::Output;
use cluster::results::{Origin, PowerRow};
use cluster::thesis::{Efficiency, unit};
use serde_json::{Value, json};

/// The headings of the columns after the source.
pub(super) const HEADINGS: &str =
    "average W  maximum  minimum  idle     per W         per J      of the result";

/// Prints a row. `first`: its columns up to the source.
pub(super) fn print_row(
    first: &str,
    row: &PowerRow,
    best: Option<&Efficiency>,
    out: &mut Output,
) -> Result<(), CliError> {
    if let Origin::Unavailable(why) = &row.origin {
        return out.line(format_args!("{first}  unavailable: {why}"));
    }
    let idle = row.idle_w.value();
    let idle = idle.map_or("-".to_owned(), |watts| format!("{watts:.3}"));
    let best = best.filter(|best| best.per_watt().is_some());
    let is_modelled = row.origin != Origin::Measured || best.is_some_and(Efficiency::is_modelled);
    let line = format!(
        "{first}  {:<9.3}  {:<7.3}  {:<7.3}  {idle:<7}  {}{}",
        row.average_w,
        row.maximum_w,
        row.minimum_w,
        efficiency(best),
        if is_modelled { "  modelled" } else { "" }
    );
    out.line(line.trim_end())
}

/// Prints what the columns of results mean, if a row has them.
pub(super) fn print_note<'a>(
    mut all: impl Iterator<Item = Option<&'a Efficiency>>,
    out: &mut Output,
) -> Result<(), CliError> {
    if !all.any(|best| best.is_some_and(|best| best.per_watt().is_some())) {
        return Ok(());
    }
    out.line(
        "per W: the greatest result of that benchmark ÷ the average power of all boards; per J: ÷ the energy of one \
         operation",
    )
}

/// Returns the columns of a result per watt and per joule.
fn efficiency(best: Option<&Efficiency>) -> String {
    let columns = best.and_then(|best| {
        let (per_watt, per_joule) = (best.per_watt()?, best.per_joule()?);
        let decimals = if per_watt < 100.0 { 3 } else { 1 };
        let per_watt = format!("{per_watt:.decimals$}");
        let (unit, bytes) = (unit(best.benchmark), best.bytes);
        Some(format!(
            "{per_watt:<12}  {per_joule:<9.3e}  {unit}, {bytes} B"
        ))
    });
    columns.unwrap_or_else(|| format!("{:<12}  -", "-"))
}

/// Returns a power row as JSON. The numbers of an unavailable one are null; in files they are 0. Results per watt and
/// per joule are those of the benchmark, also in the row of a single board.
pub(super) fn power_json(row: &PowerRow, best: Option<&Efficiency>) -> Value {
    let mut value = json!(row);
    if matches!(row.origin, Origin::Unavailable(_)) {
        for member in ["average_w", "maximum_w", "minimum_w", "energy_j"] {
            value[member] = Value::Null;
        }
    }
    let why_none = match best.map(|best| &best.watts) {
        Some(Ok(_)) => None,
        Some(Err(why)) => Some(why.as_str()),
        None => Some("the file has no result of it"),
    };
    let watts_from = best.filter(|best| best.watts.is_ok());
    value["result_per_watt"] = json!(best.and_then(Efficiency::per_watt));
    value["result_per_joule"] = json!(best.and_then(Efficiency::per_joule));
    value["result_unit"] = json!(best.map(|best| unit(best.benchmark)));
    value["result_bytes"] = json!(best.map(|best| best.bytes));
    value["result_watts_from"] = json!(watts_from.map(|best| best.watts_from.as_str()));
    value["result_why_none"] = json!(why_none);
    value
}
