//! `keel power record`: average, maximum, minimum, idle power and energy while a program runs.

use super::sources::{self, PowerSourceArgs};
use crate::argument::label;
use crate::error::CliError;
use crate::output::Output;
use crate::signals;
use crate::temporary::new_file;
use base::clock::{Clock, SystemClock};
use clap::Args;
use cluster::power::{Phase, Root, Sampler, Summary};
use cluster::results::{Benchmark, Header, Known, Link, Mode, Origin, ResultFile, Row};
use serde_json::json;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

/// Timeout for a program that was told to stop.
const STOP_TIME_MAX: Duration = Duration::from_secs(10);

/// A shorter time without a value, in s, in which no reading failed, needs no word.
const WITHOUT_S_MIN: f64 = 1.0;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel power record --out run.jsonl -- ./job --input day.csv\n  \
    keel power record --out idle.jsonl --seconds 60\n  \
    keel power record --out power.jsonl --per-benchmark -- keel cluster measure --hosts hosts --only {}\n\n\
    crates/cluster/SPEC.md describes the file. Exit status 1 if no sensor gave a value or the program failed;\n\
    the file is written nevertheless. Without any sensor the program is not started.")]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    sources: PowerSourceArgs,
    /// New file to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Name of the run in comparisons
    #[arg(long, value_name = "NAME", default_value = "power", value_parser = label)]
    label: String,
    /// Time without load before and after, in s, from 0 to 3600
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    idle_seconds: u64,
    /// Time to record, in s, instead of running a program
    #[arg(long, value_name = "N", conflicts_with = "command", required_unless_present = "command",
        value_parser = clap::value_parser!(u64).range(1..=604_800))]
    seconds: Option<u64>,
    /// Run CMD once for each of the eight benchmarks, with {} replaced by its name
    #[arg(long, conflicts_with = "seconds")]
    per_benchmark: bool,
    /// Interval between two readings, in ms, from 10 to 60000
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    interval_ms: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Program to run, with its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(super) fn run(arguments: &RecordArgs) -> Result<u8, CliError> {
    let clock = SystemClock::new();
    let created_ms = clock.wall_ms();
    let found = sources::find(&arguments.sources)?;
    let names: Vec<String> = found
        .iter()
        .map(|source| source.name().to_owned())
        .collect();
    // Create the file before anything runs for hours: an existing file is not overwritten.
    let mut file = new_file(&arguments.out)?;
    signals::catch_stop();
    let recorded = parts(arguments).and_then(|parts| record_all(arguments, &parts, found, &clock));
    if recorded.is_err() {
        std::fs::remove_file(&arguments.out).ok();
    }
    let (recorded, program) = recorded?;
    let host = cluster::host::describe(&Root::new(&arguments.sources.root), 0);
    let rows = recorded.iter().flat_map(|(during, summaries)| {
        summaries
            .iter()
            .map(|summary| Row::Power(summary.row(during, &host.name)))
    });
    let none = |why: &str| Known::Unavailable(why.to_owned());
    let result = ResultFile {
        header: Header {
            label: arguments.label.clone(),
            created_ms,
            mode: Mode::Power,
            mpi: none("no benchmark was run"),
            link: Link {
                rate_bits_per_s: Known::Unavailable("no benchmark was run".to_owned()),
                burst_bytes: Known::Unavailable("no benchmark was run".to_owned()),
            },
            hosts: vec![host.clone()],
            power_source: Known::Value(clean(&names.join(", "))),
        },
        rows: rows.collect(),
    };
    let text = result.text();
    let written = text
        .map_err(|error| CliError::usage("--label", error, "give another one"))
        .and_then(|text| {
            let done = file
                .write_all(text.as_bytes())
                .and_then(|()| file.sync_all());
            done.map_err(|error| CliError::io(arguments.out.display(), &error))
        });
    if written.is_err() {
        std::fs::remove_file(&arguments.out).ok();
    }
    written?;
    show(arguments, &recorded, &program)?;
    if let Some(status) = program.filter(|status| !status.success()) {
        return Err(CliError::failure(
            arguments.command[0].display(),
            format_args!("has ended with {status}"),
            format_args!("its figures until then are in {}", arguments.out.display()),
        ));
    }
    let is_measured = recorded
        .iter()
        .flat_map(|(_, summaries)| summaries)
        .any(|summary| !matches!(summary.origin, Origin::Unavailable(_)));
    if !is_measured {
        return Err(CliError::failure(
            "power",
            format_args!(
                "no sensor gave a value; the reasons are in {}",
                arguments.out.display()
            ),
            "see docs/cluster.md, or name the file of a meter with --meter",
        ));
    }
    Ok(0)
}

type Recorded = (Vec<Summary>, Option<std::process::ExitStatus>);

/// The program that ran, and the values of each sensor during the run.
type During = (String, Vec<Summary>);

/// Returns the commands to run, by name: the program itself, or one run per benchmark.
fn parts(arguments: &RecordArgs) -> Result<Vec<(String, Vec<OsString>)>, CliError> {
    let command = &arguments.command;
    if !arguments.per_benchmark {
        let during = command
            .first()
            .map_or("seconds".to_owned(), |name| clean(&name.to_string_lossy()));
        return Ok(vec![(during, command.clone())]);
    }
    let has_place = |word: &OsString| word.to_str().is_some_and(|word| word.contains("{}"));
    if !command.iter().any(has_place) {
        let wrong = "CMD has no {}, which each benchmark's name is put in place of";
        return Err(CliError::usage(
            "--per-benchmark",
            wrong,
            "write, for example, --only {}",
        ));
    }
    let of = |benchmark: Benchmark| {
        let words = command.iter().map(|word| match word.to_str() {
            Some(text) => OsString::from(text.replace("{}", benchmark.name())),
            None => word.clone(),
        });
        (benchmark.name().to_owned(), words.collect())
    };
    Ok(Benchmark::ALL.into_iter().map(of).collect())
}

/// Records each part until one fails; the figures of that part come last.
fn record_all(
    arguments: &RecordArgs,
    parts: &[(String, Vec<OsString>)],
    found: Vec<Box<dyn cluster::power::Source>>,
    clock: &SystemClock,
) -> Result<(Vec<During>, Option<std::process::ExitStatus>), CliError> {
    let (mut all, mut last) = (Vec::new(), None);
    let mut found = Some(found);
    for (during, command) in parts {
        // Each part starts with new sensors.
        let sources = match found.take() {
            Some(found) => found,
            None => sources::find(&arguments.sources)?,
        };
        let (summaries, status) = record(arguments, command, sources, clock)?;
        all.push((during.clone(), summaries));
        last = status;
        if status.is_some_and(|status| !status.success()) || signals::stop_requested() {
            break;
        }
    }
    Ok((all, last))
}

/// Records idle, load, idle.
fn record(
    arguments: &RecordArgs,
    command: &[OsString],
    found: Vec<Box<dyn cluster::power::Source>>,
    clock: &SystemClock,
) -> Result<Recorded, CliError> {
    let interval = Duration::from_millis(arguments.interval_ms);
    let idle = Duration::from_secs(arguments.idle_seconds);
    let wrong = |error| CliError::failure("power", error, "name one with --sensor");
    let mut sampler = Sampler::new(found, Phase::Idle, clock.monotonic_ns()).map_err(wrong)?;
    wait(&mut sampler, clock, interval, idle);
    sampler.switch(Phase::Load, clock.monotonic_ns());
    let mut status = None;
    if let Some((program, rest)) = command.split_first() {
        let child = Command::new(program).args(rest).spawn();
        let mut child = child.map_err(|error| CliError::io(program.display(), &error))?;
        status = Some(follow(&mut child, &mut sampler, clock, interval)?);
    } else {
        let seconds = Duration::from_secs(arguments.seconds.unwrap_or(1));
        wait(&mut sampler, clock, interval, seconds);
    }
    sampler.switch(Phase::Idle, clock.monotonic_ns());
    wait(&mut sampler, clock, interval, idle);
    Ok((sampler.finish(clock.monotonic_ns()), status))
}

/// Samples for a length of time, or until a stop is requested.
fn wait(sampler: &mut Sampler, clock: &SystemClock, interval: Duration, length: Duration) {
    let end_ns = clock.monotonic_ns() + length.as_nanos() as u64;
    while !signals::stop_requested() {
        let left_ns = end_ns.saturating_sub(clock.monotonic_ns());
        if left_ns == 0 {
            break;
        }
        std::thread::sleep(interval.min(Duration::from_nanos(left_ns)));
        sampler.sample(clock.monotonic_ns());
    }
}

/// Samples until a program has ended. The program gets Ctrl-C itself; a signal sent only to this process is forwarded.
fn follow(
    child: &mut Child,
    sampler: &mut Sampler,
    clock: &SystemClock,
    interval: Duration,
) -> Result<std::process::ExitStatus, CliError> {
    let failed = |error: std::io::Error| CliError::io("the program", &error);
    let mut told_ns = None;
    let mut sampled_ns = clock.monotonic_ns();
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(status);
        }
        let now_ns = clock.monotonic_ns();
        if signals::stop_requested() {
            let first_ns = *told_ns.get_or_insert_with(|| {
                // SAFETY: the child has not been waited for, so its number is still its own.
                unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
                now_ns
            });
            if signals::stop_insisted() || now_ns - first_ns > STOP_TIME_MAX.as_nanos() as u64 {
                child.kill().map_err(failed)?;
            }
        }
        // Poll faster than the sampling interval, so that the end of a short program is noticed early.
        std::thread::sleep(interval.min(Duration::from_millis(20)));
        if clock.monotonic_ns() - sampled_ns >= interval.as_nanos() as u64 {
            sampled_ns = clock.monotonic_ns();
            sampler.sample(sampled_ns);
        }
    }
}

/// Returns a name in a form that a result file accepts.
fn clean(text: &str) -> String {
    text.chars()
        .filter(|letter| !letter.is_control())
        .take(60)
        .collect()
}

fn show(
    arguments: &RecordArgs,
    recorded: &[During],
    program: &Option<std::process::ExitStatus>,
) -> Result<(), CliError> {
    let mut out = Output::new();
    if arguments.json {
        let sources = recorded
            .iter()
            .flat_map(|(during, summaries)| summaries.iter().map(|one| as_json(during, one)));
        let sources: Vec<_> = sources.collect();
        let status = program.and_then(|status| status.code());
        out.json(&json!({"file": arguments.out.display().to_string(), "status": status, "sources": sources}))?;
    } else {
        out.line("source                        average W  maximum  minimum  idle     energy J   seconds")?;
        for (during, one) in recorded
            .iter()
            .flat_map(|(during, all)| all.iter().map(move |one| (during, one)))
        {
            let name = if recorded.len() > 1 {
                format!("{during}, {}", one.source)
            } else {
                one.source.clone()
            };
            if let Origin::Unavailable(why) = &one.origin {
                out.line(format_args!("{name:<28}  unavailable: {why}"))?;
                continue;
            }
            let idle = one
                .idle_w
                .value()
                .map_or("-".to_owned(), |watts| format!("{watts:.3}"));
            let modelled = if matches!(one.origin, Origin::Modelled(_)) {
                "  modelled"
            } else {
                ""
            };
            out.line(format_args!(
                "{name:<28}  {:<9.3}  {:<7.3}  {:<7.3}  {idle:<7}  {:<9.3}  {:.3}{modelled}",
                one.average_w, one.maximum_w, one.minimum_w, one.energy_j, one.seconds
            ))?;
            for text in without_text(one).into_iter().chain(one.remark.clone()) {
                out.line(format_args!("{name:<28}  {text}"))?;
            }
        }
    }
    out.flush()
}

/// Returns how long there was no value, and why, if readings had none or a part of the time is not covered.
fn without_text(summary: &Summary) -> Option<String> {
    let whole_s = summary.seconds + summary.without_s;
    let reasons = summary.reasons.iter();
    let reasons: Vec<String> = reasons
        .map(|(why, count)| format!("{why} ({count} readings)"))
        .collect();
    let why = match reasons.as_slice() {
        [] if summary.without_s < WITHOUT_S_MIN => return None,
        [] => "its readings are too far apart".to_owned(),
        reasons => reasons.join("; "),
    };
    Some(format!(
        "no value for {:.1} of {whole_s:.1} s, which energy and average lack: {why}",
        summary.without_s
    ))
}

fn as_json(during: &str, summary: &Summary) -> serde_json::Value {
    let (origin, text) = match &summary.origin {
        Origin::Measured => ("measured", None),
        Origin::Modelled(after) => ("modelled", Some(after)),
        Origin::Unavailable(why) => ("unavailable", Some(why)),
    };
    // A value beside "unavailable" would be taken for a measurement.
    let value = |watts: f64| {
        if origin == "unavailable" {
            None
        } else {
            Some(watts)
        }
    };
    let reasons = summary.reasons.iter();
    let reasons = reasons.map(|(why, count)| json!({"why": why, "readings": count}));
    json!({
        "during": during,
        "source": summary.source,
        "covers": summary.covers,
        "origin": origin,
        "why": text,
        "seconds": summary.seconds,
        "samples": summary.samples,
        "gap_s_max": summary.gap_s_max,
        "without_s": summary.without_s,
        "without_reasons": reasons.collect::<Vec<_>>(),
        "remark": summary.remark,
        "average_w": value(summary.average_w),
        "maximum_w": value(summary.maximum_w),
        "minimum_w": value(summary.minimum_w),
        "energy_j": value(summary.energy_j),
        "idle_w": summary.idle_w.value(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_a_value_is_told_with_its_reasons() {
        let mut summary = Summary {
            source: "meter m.csv".to_owned(),
            covers: "what hangs on the meter".to_owned(),
            origin: Origin::Measured,
            seconds: 0.5,
            samples: 6,
            gap_s_max: 2.0,
            without_s: 5.5,
            reasons: vec![("it has more fields than the heading".to_owned(), 55)],
            remark: None,
            average_w: 4.0,
            maximum_w: 4.0,
            minimum_w: 4.0,
            energy_j: 2.0,
            idle_w: Known::Value(4.0),
        };
        let said = without_text(&summary).expect("a text");
        assert!(
            said.starts_with("no value for 5.5 of 6.0 s")
                && said.ends_with(": it has more fields than the heading (55 readings)"),
            "{said}"
        );
        let json = as_json("job", &summary);
        assert_eq!(json["without_s"], 5.5);
        assert_eq!(json["without_reasons"][0]["readings"], 55);
        summary.reasons.clear();
        let said = without_text(&summary).expect("a text");
        assert!(said.contains("too far apart"), "{said}");
        summary.without_s = 0.01;
        assert_eq!(without_text(&summary), None);
    }
}
