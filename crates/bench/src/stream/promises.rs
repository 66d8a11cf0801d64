//! The table of goals as stated originally, each line with the result of all its figures.

use std::fmt::Write;

use serde_json::Value;

use super::bed::{CARD, EXT4, KEEL, READAHEAD, SSHFS, UNPREPARED};
use super::cases::{BOUNDS, PAGE_TIME, ROUND_TRIPS, RUN_TIME, WIRE_SHARE};
use super::clients::OF_FAIR_SHARE;
use super::cold_server::WHY;
use super::limits::{
    LOSSES_PERCENT, MEMORY_CAPPED, MEMORY_MEBIBYTES, SLOWDOWN, TCP_COPY, UNREAD_SHARE,
};
use super::tasks::Program;
use crate::figures::Metric;
use crate::page::{Run, cell, head, number, text};

/// The goals, line by line: text, figure, peer, and prefixes that names of its cases have and do not have.
type Promise = (
    &'static str,
    Metric,
    Option<&'static str>,
    &'static str,
    Option<&'static str>,
);

const PROMISES: [Promise; 15] = [
    (
        "learned start, 100 Mbit/s, 2 and 10 ms ÷ the bound",
        RUN_TIME,
        Some(BOUNDS[0]),
        STARTS,
        None,
    ),
    (
        "learned start, 100 Mbit/s, 10 ms ÷ readahead on demand",
        RUN_TIME,
        Some(READAHEAD),
        STARTS,
        None,
    ),
    (
        "learned start, 100 Mbit/s, 10 ms ÷ sshfs",
        RUN_TIME,
        Some(SSHFS),
        STARTS,
        None,
    ),
    (
        "1 Gbit/s ÷ the card: run time",
        RUN_TIME,
        Some(CARD),
        STARTS,
        None,
    ),
    (
        "1 Gbit/s ÷ the card: time of a page",
        PAGE_TIME,
        Some(CARD),
        STARTS,
        None,
    ),
    (
        "round trips in a learned start",
        ROUND_TRIPS,
        None,
        STARTS,
        None,
    ),
    (
        "bytes on the wire ÷ bytes needed",
        WIRE_SHARE,
        None,
        STARTS,
        None,
    ),
    ("the run after ÷ ext4", RUN_TIME, Some(EXT4), "warm-", None),
    ("offline ÷ ext4", RUN_TIME, Some(EXT4), "offline-", None),
    (
        "first run, unlearned ÷ readahead on demand",
        RUN_TIME,
        Some(READAHEAD),
        "first-",
        None,
    ),
    (
        "pushed and not read, same arguments",
        UNREAD_SHARE,
        None,
        "unread-",
        Some("unread-varied-"),
    ),
    (
        "pushed and not read, varied arguments",
        UNREAD_SHARE,
        None,
        "unread-varied-",
        None,
    ),
    (
        "client memory beyond the page cache, MiB",
        MEMORY_MEBIBYTES,
        None,
        "memory-",
        None,
    ),
    (
        "200 clients: p99 ÷ fair share",
        OF_FAIR_SHARE,
        None,
        "clients-200-",
        None,
    ),
    (
        "slowdown by losses ÷ that of a TCP copy",
        SLOWDOWN,
        Some(TCP_COPY),
        LOSSES,
        None,
    ),
];

/// Returns the number of programs that were measured.
fn measured(run: &Run) -> usize {
    let names = Program::ALL.map(Program::name).into_iter();
    let time = |name| run.value(&format!("need-{name}"), EXT4, RUN_TIME.name);
    names.filter_map(time).count()
}

/// Returns the limit of figures, or the range of their limits if each has its own.
fn limit(judged: &[&Value]) -> String {
    let goals = || judged.iter().filter_map(|row| row["goal"].as_f64());
    let least = goals().fold(f64::INFINITY, f64::min);
    let most = goals().fold(f64::NEG_INFINITY, f64::max);
    if least < most {
        format!("its own limit, {} to {}", number(least), number(most))
    } else {
        format!("at most {}", number(most))
    }
}

/// The beginning of the cases of learned starts.
const STARTS: &str = "start-";
/// The beginning of the cases of losses.
const LOSSES: &str = "loss-";

/// The result of one goal, as a line of the table.
struct Line {
    text: String,
    is_met: bool,
}

/// Returns the result of each goal: its figure that is furthest from the goal, and how many figures meet it. `cold` has
/// the figures of a cold server, which the goals of learned starts judge as well.
pub(crate) fn summary(run: &Run, cold: &Run) -> String {
    let mut lines: Vec<Line> = PROMISES.map(|promise| line(run, KEEL, promise)).into();
    lines.push(line_of_groups(run));
    let starts = PROMISES.into_iter().filter(|promise| promise.3 == STARTS);
    lines.extend(starts.map(|promise| line(cold, UNPREPARED, promise)));
    let met = lines.iter().filter(|line| line.is_met).count();
    let mut out = format!("{met} of {} goals are met.\n\n", lines.len());
    out.push_str(&head("case | goal | worst | where | met |"));
    for line in lines {
        let _ = writeln!(out, "{}", line.text);
    }
    out
}

/// Returns the result of a goal, judged by the figures of `system`.
fn line(run: &Run, system: &str, (words, metric, peer, begin, other): Promise) -> Line {
    let words = match system {
        UNPREPARED => format!("keel, cold server: {words}"),
        _ => words.to_owned(),
    };
    let is_of_goal =
        |case: &str| case.starts_with(begin) && other.is_none_or(|other| !case.starts_with(other));
    let (list, key) = match peer {
        Some(_) => ("ratios", "ratio"),
        None => ("rows", "value"),
    };
    let judged: Vec<&Value> = run
        .judged(list)
        .filter(|row| row["metric"] == metric.name)
        .filter(|row| peer.is_none_or(|peer| row["peer"] == peer))
        .filter(|row| is_of_goal(text(&row["case"])))
        .collect();
    let beyond = |row: &Value| {
        row[key].as_f64().unwrap_or(f64::NAN) / row["goal"].as_f64().unwrap_or(f64::NAN)
    };
    let worst = judged
        .iter()
        .max_by(|one, two| beyond(one).total_cmp(&beyond(two)));
    let Some(worst) = worst else {
        return Line {
            text: format!("| {words} | | | | | not measured |"),
            is_met: false,
        };
    };
    let met = judged.iter().filter(|row| row["met"] == true).count();
    let mut left_out = missing_cases(run, system, is_of_goal);
    if begin == LOSSES {
        // A run that took fewer programs does not list the comparisons of losses that it left out.
        let expected = measured(run) * LOSSES_PERCENT.len();
        left_out = left_out.max(expected.saturating_sub(judged.len()));
    }
    let verdict = verdict(met == judged.len(), left_out, text(&worst[WHY]));
    Line {
        text: format!(
            "| {words} | {} | {} | {} | {met} of {} | {verdict} |",
            limit(&judged),
            cell(worst[key].as_f64()),
            text(&worst["case"]),
            judged.len() + left_out,
        ),
        is_met: met == judged.len() && left_out == 0,
    }
}

/// Returns the number of cases that the run lists as missing. A case that was left out must not look as if it had met
/// the goal.
fn missing_cases(run: &Run, system: &str, is_of_goal: impl Fn(&str) -> bool) -> usize {
    let before = format!("{system} in ");
    let missing = run.list("missing").iter().map(text);
    missing
        .filter_map(|line| line.strip_prefix(before.as_str()))
        .filter(|case| is_of_goal(case))
        .count()
}

fn verdict(is_met: bool, left_out: usize, why: &str) -> String {
    let verdict = match (is_met, left_out) {
        (true, 0) => "met".to_owned(),
        (true, _) => format!("partly; {left_out} not measured"),
        (false, 0) => "**missed**".to_owned(),
        (false, _) => format!("**missed**; {left_out} not measured"),
    };
    match why {
        "" => verdict,
        why => format!("{verdict}: {why}"),
    }
}

/// Returns the result of the starts with the mount in a group of processes with a limit of memory.
fn line_of_groups(run: &Run) -> Line {
    let names = Program::ALL.map(Program::name);
    let ran = |part: &str| {
        let has = |name: &&&str| {
            let case = format!("{part}-{name}");
            run.value(&case, KEEL, RUN_TIME.name).is_some()
        };
        names.iter().filter(has).count()
    };
    let (inside, asked) = (ran(MEMORY_CAPPED), measured(run));
    let verdict = match inside {
        0 => "not measured",
        inside if inside == asked => "met",
        _ => "**missed**",
    };
    Line {
        text: format!(
            "| starts with the mount in a group of 64 MiB | all | | | {inside} of {asked} | {verdict} |"
        ),
        is_met: verdict == "met",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_goal_with_cases_left_out_is_met_in_part_and_limits_of_their_own_are_said() {
        let judged = |case: &str, peer: Option<&str>, metric: Metric, value: f64, goal: f64| {
            json!({"case": case, "system": KEEL, "peer": peer, "metric": metric.name, "value": value, "ratio": value,
                   "goal": goal, "met": value <= goal})
        };
        let mut run = Run {
            report: json!({
                "rows": [
                    judged("clients-200-perl", None, OF_FAIR_SHARE, 1.1, 1.5),
                    judged("unread-perl", None, UNREAD_SHARE, 0.01, 0.02),
                    judged("memory-perl", None, MEMORY_MEBIBYTES, 4.5, 24.0),
                ],
                "ratios": [
                    judged("loss-gcc-1", Some(TCP_COPY), SLOWDOWN, 1.02, 1.01),
                    judged("loss-gcc-5", Some(TCP_COPY), SLOWDOWN, 1.2, 1.45),
                ],
                "missing": ["keel in clients-200-gcc (83 s)", "keel in clients-200-java (132 s)",
                            "keel in unread-varied-perl (why)"],
            }),
        };
        let cold = Run {
            report: json!({
                "rows": [
                    {"case": "start-perl-100-mbit-2-ms", "metric": WIRE_SHARE.name, "value": 0.56, "goal": 0.55,
                     "met": false, WHY: "It is cold."},
                ],
                "missing": ["keel-unprepared in start-gcc-100-mbit-2-ms (why)",
                            "keel in start-java-100-mbit-2-ms (why)"],
            }),
        };
        let summary = summary(&run, &cold);
        assert!(summary.starts_with("2 of 23 goals are met.\n\n| case |"));
        for line in [
            "keel, cold server: bytes on the wire ÷ bytes needed | at most 0.55 | 0.56 | start-perl-100-mbit-2-ms | \
             0 of 2 | **missed**; 1 not measured: It is cold. |",
            "keel, cold server: round trips in a learned start | | | | | not measured |",
            "p99 ÷ fair share | at most 1.50 | 1.10 | clients-200-perl | 1 of 3 | partly; 2 not measured |",
            "same arguments | at most 0.02 | 0.01 | unread-perl | 1 of 1 | met |",
            "beyond the page cache, MiB | at most 24 | 4.50 | memory-perl | 1 of 1 | met |",
            "a TCP copy | its own limit, 1.01 to 1.45 | 1.02 | loss-gcc-1 | 1 of 2 | **missed** |",
        ] {
            assert!(summary.contains(line), "{line} in\n{summary}");
        }
        // With two programs measured, twelve comparisons of losses are due.
        let need = |name: &str| {
            let case = format!("need-{name}");
            json!({"case": case, "system": EXT4, "metric": RUN_TIME.name, "value": 9.0})
        };
        let rows = run.report["rows"].as_array_mut().unwrap();
        rows.extend(["gcc", "perl"].map(need));
        let summary = super::summary(&run, &cold);
        let line = "loss-gcc-1 | 1 of 12 | **missed**; 10 not measured |";
        assert!(summary.contains(line), "{line} in\n{summary}");
    }
}
