//! Goals of learned starts, judged for a server with cold caches. A report has goals of [`KEEL`] only; the page judges
//! the cold server by the same goals.

use serde_json::{Value, json};

use super::bed::{KEEL, UNPREPARED};
use super::cases::{
    BOUNDS, COMPRESSED_BYTES, MOUNT_BYTES, NEEDED_BYTES, RUN_TIME, START, WIRE_BYTES, WIRE_SHARE,
};
use super::net::Rate;
use crate::figures::{Bound, Metric};
use crate::page::{Run, number, text};
use crate::report::median;

/// The key of the reason why a goal was missed.
pub(crate) const WHY: &str = "why";

/// Returns the figures of the cold server, each with the goal of the same figure of ours. `pieces` describe the reports
/// that `run` combines: ratios are derived from their rounds.
pub(crate) fn judged(run: &Run, pieces: &[Value]) -> Run {
    let is_start = |row: &&Value| text(&row["case"]).starts_with(START);
    let rows = run.judged("rows").filter(is_start);
    let rows = rows.filter_map(|row| value_row(run, row));
    let ratios = run.judged("ratios").filter(is_start);
    let ratios = ratios.filter_map(|row| ratio_row(run, pieces, row));
    let [rows, ratios]: [Vec<Value>; 2] = [rows.collect(), ratios.collect()];
    let missing = run.list("missing");
    Run {
        report: json!({"rows": rows, "ratios": ratios, "missing": missing}),
    }
}

fn value_row(run: &Run, row: &Value) -> Option<Value> {
    let [case, metric] = ["case", "metric"].map(|key| text(&row[key]));
    let goal = row["goal"].as_f64()?;
    let value = run.value(case, UNPREPARED, metric)?;
    let is_met = Bound::AtMost(goal).is_met(value);
    let why = (!is_met && metric == WIRE_SHARE.name).then(|| of_wire(run, case));
    let judged = json!({"case": case, "system": UNPREPARED, "metric": metric, "value": value, "goal": goal,
                        "met": is_met, WHY: why.flatten()});
    Some(judged)
}

fn ratio_row(run: &Run, pieces: &[Value], row: &Value) -> Option<Value> {
    let [case, metric, peer] = ["case", "metric", "peer"].map(|key| text(&row[key]));
    let goal = row["goal"].as_f64()?;
    let (cold, theirs) = pieces.iter().find_map(|piece| {
        let of = |system| rounds(piece, case, system, metric);
        Some((of(UNPREPARED)?, of(peer)?))
    })?;
    let each = cold.iter().zip(&theirs);
    let mut ratios: Vec<f64> = each.map(|(cold, peer)| cold / peer).collect();
    let ratio = median(&mut ratios);
    let low = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let high = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let is_met = Bound::AtMost(goal).is_met(ratio);
    let is_of_bound = metric == RUN_TIME.name && peer == BOUNDS[0];
    let why = (!is_met && is_of_bound).then(|| of_bound(run, case));
    let judged = json!({"case": case, "system": UNPREPARED, "metric": metric, "peer": peer, "ratio": ratio,
                        "of_rounds": [low, high], "goal": goal, "met": is_met, WHY: why.flatten()});
    Some(judged)
}

/// Returns the value of each round of a figure in the report that `piece` describes.
fn rounds(piece: &Value, case: &str, system: &str, metric: &str) -> Option<Vec<f64>> {
    let figures = piece["method"]["rounds"].as_array()?;
    let found = figures.iter().find(|figure| {
        figure["case"] == case && figure["system"] == system && figure["metric"] == metric
    });
    let values = found?["values"].as_array()?;
    Some(values.iter().filter_map(Value::as_f64).collect())
}

/// Returns the case with the needs of the program that a start runs.
fn need_of(case: &str) -> Option<String> {
    let program = case.split('-').nth(1)?;
    Some(format!("need-{program}"))
}

/// Says what part of the time beyond the bound the line can have taken.
fn of_bound(run: &Run, case: &str) -> Option<String> {
    let is_rate = |rate: &Rate| case.contains(&format!("-{}-mbit-", rate.mbit));
    let rate = [Rate::SLOW, Rate::FAST].into_iter().find(is_rate)?;
    let start = |system: &str, metric: Metric| run.value(case, system, metric.name);
    let beyond_ms = start(UNPREPARED, RUN_TIME)? - start(BOUNDS[0], RUN_TIME)?;
    let sent = start(UNPREPARED, WIRE_BYTES)? - start(UNPREPARED, MOUNT_BYTES)?;
    let counted = run.value(&need_of(case)?, BOUNDS[0], COMPRESSED_BYTES.name)?;
    let line_ms = (sent - counted) / rate.bytes_per_s() * 1e3;
    Some(format!(
        "The line carries {} MB, compressed at zstd 3 and with headers, and the bound counts {} MB: up to {} of the \
         {} ms beyond the bound.",
        number(sent / 1e6),
        number(counted / 1e6),
        number(line_ms),
        number(beyond_ms)
    ))
}

/// Says what part of the bytes compression and manifest have.
fn of_wire(run: &Run, case: &str) -> Option<String> {
    let need = need_of(case)?;
    let needed = run.value(&need, KEEL, NEEDED_BYTES.name)?;
    let share = |bytes: f64| number(bytes / needed);
    let compressed = |bound: &str| run.value(&need, bound, COMPRESSED_BYTES.name).map(share);
    Some(format!(
        "The server compresses at zstd 3 while it sends: {} of the needed bytes remain ({} with zstd 19), and the \
         manifest adds {}.",
        compressed(BOUNDS[0])?,
        compressed(BOUNDS[1])?,
        share(run.value(case, UNPREPARED, MOUNT_BYTES.name)?)
    ))
}

#[cfg(test)]
mod tests {
    use super::super::bed::READAHEAD;
    use super::*;

    const CASE: &str = "start-perl-100-mbit-2-ms";

    /// A report of one start with goals of ours: the wire's, and the ratio to the bound.
    fn run() -> Run {
        let row = |case: &str, system: &str, metric: Metric, value: f64| {
            let metric = metric.name;
            json!({"case": case, "system": system, "metric": metric, "value": value})
        };
        let mut ours = row(CASE, KEEL, WIRE_SHARE, 0.5);
        ours["goal"] = json!(0.55);
        let rows = [
            ours,
            row(CASE, UNPREPARED, WIRE_SHARE, 0.56),
            row(CASE, UNPREPARED, RUN_TIME, 120.0),
            row(CASE, UNPREPARED, WIRE_BYTES, 1_350_000.0),
            row(CASE, UNPREPARED, MOUNT_BYTES, 100_000.0),
            row(CASE, BOUNDS[0], RUN_TIME, 100.0),
            row("need-perl", KEEL, NEEDED_BYTES, 2_000_000.0),
            row("need-perl", BOUNDS[0], COMPRESSED_BYTES, 1_000_000.0),
            row("need-perl", BOUNDS[1], COMPRESSED_BYTES, 800_000.0),
        ];
        let ratio = |peer: &str, goal: f64| {
            let metric = RUN_TIME.name;
            json!({"case": CASE, "metric": metric, "peer": peer, "ratio": 1.0, "goal": goal})
        };
        let ratios = [ratio(BOUNDS[0], 1.15), ratio(READAHEAD, 0.25)];
        Run {
            report: json!({"rows": rows, "ratios": ratios, "missing": ["x"]}),
        }
    }

    #[test]
    fn a_cold_server_is_judged_by_our_goals_with_the_reason_of_a_miss() {
        let figure = |system: &str, values: [f64; 3]| {
            let metric = RUN_TIME.name;
            json!({"case": CASE, "system": system, "metric": metric, "values": values})
        };
        let rounds = [
            figure(UNPREPARED, [110.0, 120.0, 150.0]),
            figure(BOUNDS[0], [100.0, 100.0, 100.0]),
        ];
        let piece = json!({"method": {"rounds": rounds}});
        let cold = judged(&run(), &[piece]);
        let [row] = cold.list("rows") else {
            panic!("{:?}", cold.report);
        };
        assert_eq!((&row["value"], &row["met"]), (&json!(0.56), &json!(false)));
        let why =
            "0.50 of the needed bytes remain (0.40 with zstd 19), and the manifest adds 0.05.";
        assert!(text(&row[WHY]).ends_with(why), "{row}");
        // No ratio to readahead: its rounds are missing.
        let [ratio] = cold.list("ratios") else {
            panic!("{:?}", cold.report);
        };
        assert_eq!(
            (&ratio["ratio"], &ratio["met"]),
            (&json!(1.2), &json!(false))
        );
        assert_eq!(ratio["of_rounds"], json!([1.1, 1.5]));
        let why = "counts 1 MB: up to 20 of the 20 ms beyond the bound.";
        assert!(text(&ratio[WHY]).ends_with(why), "{ratio}");
        assert_eq!(cold.list("missing").len(), 1);
    }

    #[test]
    fn a_goal_that_is_met_has_no_reason_and_a_report_without_the_cold_server_no_row() {
        let mut run = run();
        run.report["rows"][1]["value"] = json!(0.54);
        let cold = judged(&run, &[]);
        assert_eq!(cold.list("rows")[0]["met"], true);
        assert_eq!(text(&cold.list("rows")[0][WHY]), "");
        assert!(cold.list("ratios").is_empty());
        run.report["rows"].as_array_mut().unwrap().remove(1);
        assert!(judged(&run, &[]).list("rows").is_empty());
    }
}
