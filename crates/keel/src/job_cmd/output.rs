//! The output of `keel cluster run`: the answer, whether one rank gets the same, bytes moved, parallel fraction, time,
//! energy, and where such a job should run.

use super::input::{self, number_of};
use super::state::State;
use crate::error::CliError;
use crate::output::Output;
use cluster::advisor::{Advice, Estimate, Fit, Input, Minimise, Origin, Privacy, Question, advise};
use cluster::jobs::energy::BoardEnergy;
use cluster::jobs::estimate::{FRACTION_SPREAD_MAX, fraction_contradiction, fraction_remark};
use cluster::jobs::lines::Report;
use cluster::jobs::{LeftOut, Order, Sameness};
use cluster::link::LinkCurve;
use cluster::results::Known;
use command::progress::bytes_text;
use node::time_text::format_ms;
use serde_json::{Value, json};

/// All results at the end of a run.
pub(super) struct Shown<'a> {
    pub(super) order: &'a Order,
    pub(super) left_out: &'a LeftOut,
    /// Times of the rows; may be empty.
    pub(super) times: &'a [f64],
    pub(super) state: &'a State,
    /// Boards that were lost during the run, and how.
    pub(super) lost: &'a [(String, String)],
    pub(super) deadline_s: Option<f64>,
    /// What messages between boards cost, if a measurement was named.
    pub(super) link: Option<&'a LinkCurve>,
}

pub(super) fn print(shown: &Shown<'_>, is_json: bool) -> Result<u8, CliError> {
    let Some(report) = &shown.state.report else {
        return Err(CliError::failure(
            "keel cluster run",
            "has no report",
            "see docs/cluster.md",
        ));
    };
    let energy = energy(shown);
    let fraction = fraction(shown, report);
    let advice = Advised::new(shown, report, fraction.as_ref(), &energy)?;
    let mut out = Output::new();
    if is_json {
        out.json(&as_json(
            shown,
            report,
            fraction.as_ref(),
            &energy,
            advice.as_ref(),
        ))?;
    } else {
        lines(
            shown,
            report,
            fraction.as_ref(),
            &energy,
            advice.as_ref(),
            &mut out,
        )?;
    }
    out.flush()?;
    Ok(0)
}

/// Returns the same as JSON, for programs.
pub(super) fn json(shown: &Shown<'_>) -> Result<Value, CliError> {
    let Some(report) = &shown.state.report else {
        return Err(CliError::failure(
            "keel cluster run",
            "has no report",
            "see docs/cluster.md",
        ));
    };
    let energy = energy(shown);
    let fraction = fraction(shown, report);
    let advice = Advised::new(shown, report, fraction.as_ref(), &energy)?;
    Ok(as_json(
        shown,
        report,
        fraction.as_ref(),
        &energy,
        advice.as_ref(),
    ))
}

/// Returns the energy of all boards, if each has a figure.
fn energy(shown: &Shown<'_>) -> Result<(f64, String), String> {
    let boards = &shown.state.energy;
    let (mut joules, mut sources) = (0.0, Vec::new());
    for (host, board) in boards {
        match board {
            Known::Value(board) => {
                joules += board.energy_j;
                sources.push(source_text(host, board));
            }
            Known::Unavailable(why) => return Err(format!("{host}: {why}")),
        }
    }
    if sources.is_empty() {
        return Err("no board has said anything about it".to_owned());
    }
    Ok((joules, sources.join(", ")))
}

fn source_text(host: &str, board: &BoardEnergy) -> String {
    match &board.modelled {
        Some(after) => format!("{host} {} modelled after {after}", board.source),
        None => format!("{host} {}", board.source),
    }
}

/// A parallel fraction and its origin.
struct Fraction {
    value: f64,
    from: String,
    /// Why it says little, if so.
    remark: Option<String>,
    /// Whether the sections contradict it.
    is_contradicted: bool,
}

/// Returns the fitted fraction, if each rank had its own core; else the fraction of the sections. `None` without a run
/// on one rank.
fn fraction(shown: &Shown<'_>, report: &Report) -> Option<Fraction> {
    let remark = report.alone_s.and_then(fraction_remark);
    let sections = |why: &str| {
        Some(Fraction {
            value: report.shared_fraction?,
            from: format!("sections of the run on one rank ({why})"),
            remark: remark.clone(),
            is_contradicted: false,
        })
    };
    match report.fitted_fraction {
        None => sections("there was no other"),
        Some(_) if !shown.state.has_core_each() => {
            sections(&format!("{} ranks shared cores", report.ranks))
        }
        Some(value) => {
            let sections = report.shared_fraction;
            let contradiction = sections.and_then(|part| fraction_contradiction(value, part));
            Some(Fraction {
                value,
                from: format!("computing times on 1 and {} ranks", report.ranks),
                is_contradicted: contradiction.is_some(),
                remark: contradiction.or(remark),
            })
        }
    }
}

/// Where such a job should run, for least energy and for least time.
struct Advised {
    energy: Advice,
    time: Advice,
    assumed: Vec<String>,
    /// Why the link's figures were not taken, if so.
    link_refused: Option<String>,
}

impl Advised {
    /// `None` without a run on one rank, whose figures the advice takes.
    fn new(
        shown: &Shown<'_>,
        report: &Report,
        fraction: Option<&Fraction>,
        energy: &Result<(f64, String), String>,
    ) -> Result<Option<Self>, CliError> {
        let (Some(alone_s), Some(fraction)) = (report.alone_s, fraction) else {
            return Ok(None);
        };
        let wrong =
            |error: cluster::Error| CliError::failure("advice", error, "see docs/cluster.md");
        let mut question = Question::new(report.kernel.clone());
        question.boards_max = (report.ranks.max(2) as u32).min(cluster::advisor::BOARDS_MAX);
        // The data centre is unknown here: `keel advise --kernel` asks about it.
        question.privacy = Privacy::Neighbours;
        question.deadline_s = shown.deadline_s;
        let mut give = |input: Input, value: f64, origin: Origin| {
            let (least, most) = input.range();
            question.give(input, value.clamp(least, most), origin)
        };
        let measured = |by: &str| Origin::Measured(by.to_owned());
        let counted = || Origin::Stated("counted in this run".to_owned());
        give(Input::SingleS, alone_s, measured("this run on one rank")).map_err(wrong)?;
        give(
            Input::ParallelFraction,
            fraction.value,
            measured(&fraction.from),
        )
        .map_err(wrong)?;
        give(Input::ExchangeTimes, report.exchange_times, counted()).map_err(wrong)?;
        give(Input::ExchangeBytes, report.exchange_bytes, counted()).map_err(wrong)?;
        if energy.is_ok()
            && let Some((host, Known::Value(board))) = shown.state.energy.first()
        {
            let by = source_text(host, board);
            let origin = || match board.modelled {
                Some(_) => Origin::Assumed(by.clone()),
                None => Origin::Measured(by.clone()),
            };
            give(Input::BoardActiveW, board.average_w, origin()).map_err(wrong)?;
            give(Input::BoardCommunicatingW, board.average_w, origin()).map_err(wrong)?;
            if let Known::Value(idle_w) = board.idle_w {
                // By noise, the measured idle power may exceed that of a light load.
                let idle_w = idle_w.min(board.average_w);
                give(Input::BoardIdleW, idle_w, origin()).map_err(wrong)?;
            }
        }
        // The job is done: a line that says nothing must not cost its answer.
        let refused = shown.link.and_then(|link| link.give(&mut question).err());
        let link_refused = refused.map(|error| error.to_string());
        if let Some(given) = &mut question.given[Input::ParallelFraction as usize]
            && fraction.is_contradicted
        {
            given.spread = FRACTION_SPREAD_MAX;
        }
        question.assume();
        let assumed = question.needed().into_iter().filter_map(|input| {
            let given = question.given[input as usize].as_ref()?;
            let is_assumed = matches!(given.origin, Origin::Assumed(_));
            is_assumed.then(|| format!("{} {}", input.name(), given.value))
        });
        let assumed = assumed.collect();
        let energy = advise(&question).map_err(wrong)?;
        question.minimise = Minimise::Time;
        let time = advise(&question).map_err(wrong)?;
        Ok(Some(Self {
            energy,
            time,
            assumed,
            link_refused,
        }))
    }

    /// Returns one side in words: the fitting option with the least value of a figure. The advisor itself chooses by
    /// expected values under uncertainty. If two options are nearly the same, its choice may differ, which would look
    /// like an error beside the figures.
    fn text(advice: &Advice, figure: impl Fn(&Estimate) -> f64) -> String {
        let Some(at) = advice.choice.advised else {
            return advice.why_none().unwrap_or_default();
        };
        let options = &advice.choice.options;
        let fitting = options.iter().filter(|option| option.fit == Fit::Fits);
        let least = fitting.min_by(|a, b| figure(a).total_cmp(&figure(b)));
        let option = least.unwrap_or(&options[at]);
        format!(
            "{}, {:.3} s, {:.3} J",
            option.place, option.time_s, option.energy_j
        )
    }
}

fn sameness_text(compared: Sameness) -> String {
    match compared {
        Sameness::Same => "bit for bit that of one rank".to_owned(),
        Sameness::Near(by) => {
            format!("that of one rank within {by:.1e} (boards of different kinds)")
        }
        Sameness::Different => "NOT that of one rank".to_owned(),
        Sameness::Unchecked => "not compared with that of one rank".to_owned(),
    }
}

/// Returns a row of the readings, with its time.
fn row_text(shown: &Shown<'_>, row: &Value) -> String {
    let Some(row) = row.as_u64() else {
        return "-".to_owned();
    };
    let place = match shown.order.readings.line(row as usize) {
        Some(line) => format!("line {line}"),
        None => format!("row {row}"),
    };
    match shown.times.get(row as usize) {
        Some(time_s) => format!("{place} ({})", format_ms((time_s * 1e3) as i64)),
        None => place,
    }
}

fn number_text(value: &Value) -> String {
    value
        .as_f64()
        .map_or("-".to_owned(), |value| format!("{value:.4}"))
}

fn lines(
    shown: &Shown<'_>,
    report: &Report,
    fraction: Option<&Fraction>,
    energy: &Result<(f64, String), String>,
    advice: Option<&Advised>,
    out: &mut Output,
) -> Result<(), CliError> {
    input_lines(shown, report, out)?;
    answer_lines(shown, report, out)?;
    out.line(format_args!("answer    {}", sameness_text(report.compared)))?;
    out.line(format_args!(
        "moved     {} in {} operations",
        bytes_text(report.moved_bytes),
        report.operations
    ))?;
    if let Some(fraction) = fraction {
        let remark = fraction.remark.as_deref();
        let remark = remark.map_or(String::new(), |remark| format!("; {remark}"));
        out.line(format_args!(
            "parallel  {:.4} by {}{remark}",
            fraction.value, fraction.from
        ))?;
    }
    let alone = report
        .alone_s
        .map_or(String::new(), |alone_s| format!("; alone {alone_s:.3} s"));
    out.line(format_args!(
        "time      {:.3} s: {:.3} s computing, {:.3} s in exchanges with the wait for others{alone}",
        report.seconds, report.computing_s, report.communicating_s
    ))?;
    match energy {
        Ok((joules, sources)) => out.line(format_args!("energy    {joules:.3} J ({sources})"))?,
        Err(why) => out.line(format_args!("energy    unavailable ({why})"))?,
    }
    let Some(advice) = advice else {
        return Ok(());
    };
    out.line(format_args!(
        "advice    least energy: {}",
        Advised::text(&advice.energy, |option| option.energy_j)
    ))?;
    out.line(format_args!(
        "          least time: {}",
        Advised::text(&advice.time, |option| option.time_s)
    ))?;
    if !advice.assumed.is_empty() {
        out.line(format_args!("assumed   {}", advice.assumed.join(", ")))?;
    }
    if let Some(why) = &advice.link_refused {
        out.line(format_args!("link      {why}"))?;
    }
    Ok(())
}

/// Prints what the job had: readings, and boards that were lost.
fn input_lines(shown: &Shown<'_>, report: &Report, out: &mut Output) -> Result<(), CliError> {
    let readings = &shown.order.readings;
    out.line(format_args!(
        "{} on {}: {} in {}, {}",
        report.kernel,
        number_of(report.ranks as u64, "rank"),
        number_of(report.rows as u64, "reading"),
        number_of(readings.columns.len() as u64, "column"),
        number_of(readings.breaks.len() as u64, "break")
    ))?;
    for line in input::remarks(readings, shown.left_out) {
        out.line(format_args!("{line}"))?;
    }
    for (board, how) in shown.lost {
        out.line(format_args!("lost      {board}: {how}"))?;
    }
    Ok(())
}

fn answer_lines(shown: &Shown<'_>, report: &Report, out: &mut Output) -> Result<(), CliError> {
    let answer = &report.answer;
    out.line(format_args!("windows   {}", answer["windows"]))?;
    for column in answer["columns"].as_array().into_iter().flatten() {
        let name = column["column"].as_str().unwrap_or_default();
        let unit = column["frequency_unit"].as_str().unwrap_or_default();
        let frequency = number_text(&column["frequency_median"]);
        out.line(format_args!(
            "{name}: strongest frequency {frequency} {unit} (median)"
        ))?;
        for (what, at) in [
            ("shakes most", "rms_max"),
            ("sharpest knocks", "kurtosis_max"),
        ] {
            let found = &column[at];
            let value = number_text(&found["value"]);
            out.line(format_args!(
                "  {what}: {}, {at} {value}",
                row_text(shown, &found["row"])
            ))?;
        }
    }
    if let Some(clusters) = answer["clusters"].as_array() {
        let settled = if answer["settled"] == true {
            "settled"
        } else {
            "not settled"
        };
        out.line(format_args!(
            "clusters  {} after {} rounds ({settled}), distance {}",
            clusters.len(),
            answer["rounds"],
            number_text(&answer["distance"])
        ))?;
        for (at, cluster) in clusters.iter().enumerate() {
            let means = cluster["columns"].as_array().into_iter().flatten();
            let means: Vec<String> = means
                .map(|column| {
                    let name = column["column"].as_str().unwrap_or_default();
                    let mean = number_text(&column["centre"]["mean"]);
                    format!(
                        "{name} {mean} ± {}",
                        number_text(&column["centre"]["deviation"])
                    )
                })
                .collect();
            out.line(format_args!(
                "  {at}: {} windows, {}",
                cluster["windows"],
                means.join(", ")
            ))?;
        }
        for unusual in answer["unusual"].as_array().into_iter().flatten().take(3) {
            let score = number_text(&unusual["score"]);
            out.line(format_args!(
                "unusual   {}, score {score}",
                row_text(shown, &unusual["row"])
            ))?;
        }
    }
    for (what, at) in [("alike", "motif"), ("unlike", "discord")] {
        let pair = &answer[at];
        if pair.is_object() {
            out.line(format_args!(
                "{what:<8}  {} and {}, distance {}",
                row_text(shown, &pair["row"]),
                row_text(shown, &pair["like"]),
                number_text(&pair["distance"])
            ))?;
        }
    }
    Ok(())
}

fn energy_json(energy: &Result<(f64, String), String>) -> Value {
    match energy {
        Ok((joules, sources)) => json!({"joules": joules, "sources": sources}),
        Err(why) => json!({"unavailable": why}),
    }
}

fn as_json(
    shown: &Shown<'_>,
    report: &Report,
    fraction: Option<&Fraction>,
    energy: &Result<(f64, String), String>,
    advice: Option<&Advised>,
) -> Value {
    let left_out: serde_json::Map<String, Value> = shown
        .left_out
        .reasons()
        .map(|(reason, count)| (reason.to_owned(), json!(count)))
        .collect();
    let lost = shown.lost.iter();
    let lost = lost.map(|(board, how)| json!({"board": board, "how": how}));
    let lost: Vec<Value> = lost.collect();
    let (compared, difference) = match report.compared {
        Sameness::Same => ("same", Some(0.0)),
        Sameness::Near(by) => ("near", Some(by)),
        Sameness::Different => ("different", None),
        Sameness::Unchecked => ("unchecked", None),
    };
    json!({
        "kernel": report.kernel,
        "settings": shown.order.settings,
        "ranks": report.ranks,
        "rows": report.rows,
        "columns": shown.order.readings.names,
        "breaks": shown.order.readings.breaks.len(),
        "left_out": left_out,
        "uneven_steps": shown.order.readings.uneven_steps(),
        "suspect": input::suspects(&shown.order.readings),
        "lost": lost,
        "answer": report.answer,
        "compared": compared,
        "difference": difference,
        "moved_bytes": report.moved_bytes,
        "operations": report.operations,
        "exchange_times": report.exchange_times,
        "exchange_bytes": report.exchange_bytes,
        "parallel_fraction": fraction.map(|fraction| fraction.value),
        "parallel_fraction_from": fraction.map(|fraction| &fraction.from),
        "parallel_fraction_remark": fraction.and_then(|fraction| fraction.remark.as_ref()),
        "seconds": report.seconds,
        "computing_s": report.computing_s,
        "communicating_s": report.communicating_s,
        "alone_s": report.alone_s,
        "energy": energy_json(energy),
        "advice": advice.map(|advice| {
            json!({
                "least_energy": advice.energy.json(),
                "least_time": advice.time.json(),
                "assumed": advice.assumed,
                "link_refused": advice.link_refused,
            })
        }),
    })
}
