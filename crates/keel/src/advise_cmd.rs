//! `keel advise`: where to run a job.

use crate::argument::seconds;
use crate::cluster_cmd::result_file::link;
use crate::error::CliError;
use crate::job_cmd::input::{self, ReadingsArgs};
use crate::job_cmd::kernel::{KernelArgs, kernel_parser};
use crate::output::Output;
use crate::signals;
use crate::temporary::Written;
use clap::{Args, ValueEnum};
use cluster::advisor::{
    Advice, Fit, Origin, Place, Privacy, Question, Sensitivity, advise, parse_question,
    question_text,
};
use cluster::jobs::estimate::{self, Estimate, Sample};
use cluster::jobs::{LeftOut, Order};
use cluster::link::LinkCurve;
use command::progress::Progress;
use config::Kernel;
use serde_json::{Value, json};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Bytes of a question that are read, at most; the parser has its own limit.
const FILE_BYTES_MAX: u64 = 2 << 20;

/// Default number of boards to consider, if neither file nor command line gives one.
const BOARDS_DEFAULT: u32 = 4;

/// The most ranks on which a job is measured.
const RANKS_MAX: usize = 4;

/// Poll interval for signals of the user.
const LOOK: Duration = Duration::from_millis(50);

/// Exit status if no option can be advised.
const STATUS_NONE: u8 = 3;

/// Where data may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DataMayGo {
    /// Data stays on this board
    Board,
    /// Data may go to the neighbouring boards
    Neighbours,
    /// Data may also go to a data centre
    Anywhere,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel advise --job job.json\n  \
    keel advise --job job.json --deadline 30 --assume --json | jq .advised\n  \
    keel advise --kernel vibration --input day.csv --data-may-go neighbours --assume\n  \
    keel advise --kernel k-means --key pump/vibration --job prices.json --write job.json\n  \
    keel advise --job job.json --link yocto.jsonl\n\n\
    The file contains figures, each with its source; docs/cluster.md has an example. --kernel measures a job on\n\
    this board, on growing parts of the readings, and takes time, parallel fraction, messages and sizes from that;\n\
    all other figures come from the file. Missing figures are an error, unless --assume replaces them by values\n\
    known from elsewhere; the answer then names them. Exit status 3 if no option meets the deadline with the\n\
    required probability.")]
pub(crate) struct AdviseArgs {
    /// File with the question, in JSON; - is standard input
    #[arg(long, value_name = "FILE")]
    job: Option<PathBuf>,
    /// Measure this job on this board
    #[arg(long, value_name = "JOB", value_parser = kernel_parser())]
    kernel: Option<Kernel>,
    #[command(flatten)]
    readings: ReadingsArgs,
    #[command(flatten)]
    settings: KernelArgs,
    /// Approximate time for measuring, in s, from 1 to 86400
    #[arg(long, value_name = "N", default_value_t = 20, requires = "kernel",
        value_parser = clap::value_parser!(u64).range(1..=86_400))]
    measure_seconds: u64,
    /// Result of `keel cluster measure` with round trips between boards, for the time of messages
    #[arg(long, value_name = "FILE")]
    link: Option<PathBuf>,
    /// New file for the question with all of its figures, to use with --job
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Use values known from elsewhere for missing figures
    #[arg(long)]
    assume: bool,
    /// Deadline for the result, in s, instead of the file's
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    deadline: Option<f64>,
    /// Number of boards that could be used, instead of the file's [default without a file: 4]
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(cluster::advisor::BOARDS_MAX)))]
    boards: Option<u32>,
    /// Where data may go, instead of the file's [default without a file: anywhere]
    #[arg(long, value_enum, value_name = "WHERE")]
    data_may_go: Option<DataMayGo>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl AdviseArgs {
    /// Returns an option that says something of the job to be measured.
    fn said_of_job(&self) -> Option<&'static str> {
        let readings = [
            ("--input", self.readings.input.is_some()),
            ("--key", self.readings.key.is_some()),
        ];
        let mut said = readings.into_iter().chain(self.settings.said());
        said.find(|(_, is_said)| *is_said).map(|(option, _)| option)
    }
}

pub(crate) fn run(arguments: &AdviseArgs) -> Result<u8, CliError> {
    let thing = match (&arguments.job, arguments.kernel) {
        (Some(path), _) => path.display().to_string(),
        (None, _) => "keel advise".to_owned(),
    };
    let wrong = |error: cluster::Error| {
        let remedy = match &error {
            cluster::Error::Missing { .. } if arguments.job.is_none() => {
                "add them in a file with --job, take what is known from elsewhere with --assume (never prices, speed \
                 and uplink), or keep the data near with --data-may-go neighbours"
            }
            cluster::Error::Missing { .. } => {
                "measure and add them, or take what is known from elsewhere with --assume (never time and fraction of \
                 the job, messages, input, speed, uplink and prices)"
            }
            _ => "correct it; docs/cluster.md describes the file",
        };
        CliError::failure(&thing, error, remedy)
    };
    if let (None, Some(option)) = (arguments.kernel, arguments.said_of_job()) {
        return Err(CliError::usage(
            option,
            "is for a job that is measured here",
            "name the job with --kernel, or leave it out",
        ));
    }
    if arguments.job.is_none() && arguments.kernel.is_none() {
        return Err(CliError::usage(
            "keel advise",
            "has no question",
            "name a file with --job, or a job to measure here with --kernel",
        ));
    }
    let link = arguments.link.as_deref().map(link).transpose()?;
    let mut question = asked(arguments, wrong)?;
    // Minutes of measuring must not end at a link without a usable line, nor at a file that exists, which is not
    // overwritten.
    if let (Some(link), Some(_)) = (&link, arguments.kernel) {
        link.check().map_err(wrong)?;
    }
    if let Some(path) = &arguments.write {
        drop(Written::create(path)?);
    }
    let mut measured = None;
    if let Some(kernel) = arguments.kernel {
        let found = measure(arguments, kernel, |order| {
            let assumed = as_assumed(arguments, &question);
            check_before(&assumed, link.as_ref(), order).map_err(wrong)
        })?;
        found.estimate.give(&mut question).map_err(wrong)?;
        if arguments.job.is_none() {
            question.name = format!("{} of {}", found.estimate.kernel, question.name);
        }
        measured = Some(found);
    }
    if let Some(link) = &link {
        let is_needed = lacks_messages(&as_assumed(arguments, &question));
        let kept_in = measured.as_mut().filter(|_| !is_needed);
        give_link(link, &mut question, kept_in).map_err(wrong)?;
    }
    if arguments.assume {
        question.assume();
    }
    let advice = advise(&question).map_err(wrong)?;
    // Without an answer nothing is written: the file would be in the way of the next attempt.
    if let Some(path) = &arguments.write {
        let text = question_text(&question).map_err(wrong)?;
        Written::create(path)?.finish(&text)?;
    }
    let mut out = Output::new();
    if arguments.json {
        let mut json = advice.json();
        if let (Some(measured), Some(json)) = (&measured, json.as_object_mut()) {
            json.insert("measured".to_owned(), measured.json());
        }
        out.json(&json)?;
    } else {
        print(&advice, &mut out)?;
        if let Some(measured) = &measured {
            measured.print(&mut out)?;
        }
    }
    out.flush()?;
    Ok(if advice.advised().is_some() {
        0
    } else {
        STATUS_NONE
    })
}

/// Returns the question of the file and the command line.
fn asked(
    arguments: &AdviseArgs,
    wrong: impl FnOnce(cluster::Error) -> CliError,
) -> Result<Question, CliError> {
    let mut question = match &arguments.job {
        Some(path) => parse_question(&read(path)?).map_err(wrong)?,
        None => {
            let mut question = Question::new(input::name(&arguments.readings));
            question.boards_max = BOARDS_DEFAULT;
            question
        }
    };
    question.deadline_s = arguments.deadline.or(question.deadline_s);
    question.boards_max = arguments.boards.unwrap_or(question.boards_max);
    question.privacy = match arguments.data_may_go {
        Some(DataMayGo::Board) => Privacy::Board,
        Some(DataMayGo::Neighbours) => Privacy::Neighbours,
        Some(DataMayGo::Anywhere) => Privacy::Anywhere,
        None => question.privacy,
    };
    Ok(question)
}

/// Returns the question with the figures that the command line allows to assume.
fn as_assumed(arguments: &AdviseArgs, question: &Question) -> Question {
    let mut question = question.clone();
    if arguments.assume {
        question.assume();
    }
    question
}

/// Whether a question needs the cost of messages, and has none.
fn lacks_messages(question: &Question) -> bool {
    let needed = question.needed();
    let mut inputs = LinkCurve::INPUTS.into_iter();
    inputs.any(|input| needed.contains(&input) && question.given[input as usize].is_none())
}

/// Checks before the measurement that it will lead to an answer, because a measurement takes minutes. Figures that
/// neither it nor the link gives must be there. The link must have a line for messages as this job sends them.
fn check_before(
    question: &Question,
    link: Option<&LinkCurve>,
    order: &Order,
) -> Result<(), cluster::Error> {
    let of_link = link.iter().flat_map(|_| LinkCurve::INPUTS);
    question.check_with(Estimate::INPUTS.into_iter().chain(of_link))?;
    if let Some(link) = link.filter(|link| link.has_unusable() && lacks_messages(question)) {
        link.check_near(estimate::predict_exchange(order)?.bytes)?;
    }
    Ok(())
}

/// Gives a question the figures of a link. If the job was measured, a refusal goes to its figures, which are kept.
fn give_link(
    link: &LinkCurve,
    question: &mut Question,
    measured: Option<&mut Measured>,
) -> Result<(), cluster::Error> {
    match (link.give(question), measured) {
        (Err(error), Some(measured)) => measured.link_refused = Some(error.to_string()),
        (given, _) => given?,
    }
    Ok(())
}

/// The measured figures of a job.
struct Measured {
    estimate: Estimate,
    left_out: LeftOut,
    /// Lines about rows that were left out, and about readings that look wrong.
    remarks: Vec<String>,
    /// Why the link's figures were not taken, if so: the measured figures must not be lost.
    link_refused: Option<String>,
    /// What uneven steps between readings mean, if there are any.
    uneven: Option<String>,
}

fn interrupted() -> CliError {
    CliError::failure("keel advise", "interrupted", "nothing is kept")
}

/// Ends the process when the user interrupts it, as long as this lives: a part of the readings may take minutes.
struct Interruption(Arc<AtomicBool>);

impl Interruption {
    fn watch() -> Result<Self, CliError> {
        signals::catch_stop();
        let is_over = Arc::new(AtomicBool::new(false));
        let watched = Arc::clone(&is_over);
        let watch = move || {
            while !watched.load(Ordering::Relaxed) {
                if signals::stop_requested() {
                    let error = interrupted();
                    eprintln!("keel: {error}");
                    std::process::exit(i32::from(error.status()));
                }
                std::thread::sleep(LOOK);
            }
        };
        let thread = std::thread::Builder::new().name("interruption".into());
        let started = thread.spawn(watch);
        started.map_err(|error| CliError::io("keel advise", &error))?;
        Ok(Self(is_over))
    }
}

impl Drop for Interruption {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Measures a job on this board, if the check of its input succeeds.
fn measure(
    arguments: &AdviseArgs,
    kernel: Kernel,
    check: impl FnOnce(&Order) -> Result<(), CliError>,
) -> Result<Measured, CliError> {
    let name = input::name(&arguments.readings);
    let (readings, left_out) = input::read(&arguments.readings)?;
    let settings = arguments.settings.checked(kernel)?;
    let help = "see `keel advise --help` for what a job takes";
    let order = input::order(&name, settings, (readings, &left_out), help)?;
    check(&order)?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let ranks_max = cores.min(RANKS_MAX) as u32;
    let seconds = arguments.measure_seconds as f64;
    let progress = Progress::start(format!("measuring {}", settings.kernel()));
    let rows = order.readings.rows();
    let seen = |sample: &Sample| progress.part(&format!("{} of {rows} readings", sample.rows));
    let interruption = Interruption::watch()?;
    let estimate = estimate::measure(&order, seconds, ranks_max, seen)
        .map_err(|error| CliError::failure(&name, error, help))?;
    drop(interruption);
    if signals::stop_requested() {
        return Err(interrupted());
    }
    Ok(Measured {
        remarks: input::remarks(&order.readings, &left_out),
        uneven: input::uneven_text(&order.readings),
        estimate,
        left_out,
        link_refused: None,
    })
}

impl Measured {
    fn print(&self, out: &mut Output) -> Result<(), CliError> {
        for line in &self.remarks {
            out.line(format_args!("{line}"))?;
        }
        if let Some(why) = &self.link_refused {
            out.line(format_args!("link      {why}"))?;
        }
        if let Some(remark) = self.estimate.fraction_remark() {
            out.line(format_args!("parallel  {remark}"))?;
        }
        for sample in &self.estimate.samples {
            out.line(format_args!(
                "sample    {} readings: {:.6} s on one rank, {:.4} of it shared out",
                sample.rows, sample.seconds, sample.shared_fraction
            ))?;
        }
        if let Some(growth) = &self.estimate.growth {
            let kind = if self.estimate.is_forecast {
                "forecast"
            } else {
                "measured"
            };
            out.line(format_args!(
                "{kind:<8}  {:.6} s for {} readings; a fit over the work is within {:.1} % of the samples",
                self.estimate.single_s,
                self.estimate.rows,
                growth.error_max * 100.0
            ))?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let estimate = &self.estimate;
        let samples = estimate.samples.iter().map(|sample| {
            json!({
                "rows": sample.rows,
                "rounds": sample.rounds,
                "work": sample.work,
                "seconds": sample.seconds,
                "shared_fraction": sample.shared_fraction,
            })
        });
        let left_out: serde_json::Map<String, Value> = self
            .left_out
            .reasons()
            .map(|(reason, count)| (reason.to_owned(), json!(count)))
            .collect();
        json!({
            "kernel": estimate.kernel,
            "rows": estimate.rows,
            "samples": samples.collect::<Vec<_>>(),
            "single_s": estimate.single_s,
            "is_forecast": estimate.is_forecast,
            "fit_error_max": estimate.growth.as_ref().map(|growth| growth.error_max),
            "parallel_fraction": estimate.parallel_fraction,
            "parallel_fraction_remark": estimate.fraction_remark(),
            "left_out": left_out,
            "uneven": self.uneven,
            "link_refused": self.link_refused,
        })
    }
}

fn read(path: &Path) -> Result<String, CliError> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::InvalidData => {
            CliError::failure(path.display(), "is not UTF-8", "name a JSON file")
        }
        _ => CliError::io(path.display(), &error),
    };
    let mut text = String::new();
    if path == Path::new("-") {
        std::io::stdin()
            .take(FILE_BYTES_MAX)
            .read_to_string(&mut text)
            .map_err(failed)?;
    } else {
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(FILE_BYTES_MAX)
            .read_to_string(&mut text)
            .map_err(failed)?;
    }
    Ok(text)
}

fn print(advice: &Advice, out: &mut Output) -> Result<(), CliError> {
    match (advice.advised(), advice.why_none()) {
        (Some(place), _) => out.line(format_args!("{}: {place}", advice.question.name))?,
        (None, why) => {
            out.line(format_args!(
                "{}: no advice, {}",
                advice.question.name,
                why.unwrap_or_default()
            ))?;
        }
    }
    if let Some((advised, safe)) = advice.risked() {
        out.line(format_args!(
            "risked    it is late with {:.0} %; {}, the cheapest safe one, costs {:.1} times as much",
            advised.late_probability * 100.0,
            safe.place,
            safe.expected / advised.expected
        ))?;
    }
    out.line(format_args!(
        "counted   {}",
        advice.question.boundary.text()
    ))?;
    out.line("option              time s     with margin  late %    energy J   cost")?;
    for option in &advice.choice.options {
        let place = option.place.to_string();
        let said = match option.fit {
            Fit::Private => {
                out.line(format_args!("{place:<18}  data may not go there"))?;
                continue;
            }
            Fit::Fits => "",
            Fit::Late => "  late",
            Fit::Risky => "  too near the deadline",
        };
        let cost = option
            .cost
            .map_or("-".to_owned(), |cost| format!("{cost:.3e}"));
        out.line(format_args!(
            "{place:<18}  {:<9.4}  {:<11.4}  {:<8.2}  {:<9.4}  {cost}{said}",
            option.time_s,
            option.time_with_margin_s,
            option.late_probability * 100.0,
            option.energy_j,
        ))?;
    }
    inputs(&advice.question, out)?;
    let place_text = |place: Option<Place>| {
        place.map_or("nothing in time".to_owned(), |place| place.to_string())
    };
    for point in &advice.break_even {
        out.line(format_args!(
            "changes   {} at {} (now {}): {}",
            point.input.name(),
            short(point.at),
            short(point.now),
            place_text(point.then)
        ))?;
    }
    let mut strongest: Vec<_> = advice.sensitivity.iter().collect();
    let effect =
        |one: &Sensitivity| one.time.abs() + one.energy.abs() + one.cost.map_or(0.0, f64::abs);
    strongest.sort_by(|a, b| effect(b).total_cmp(&effect(a)));
    for one in strongest.into_iter().take(5) {
        let cost = one
            .cost
            .map_or(String::new(), |cost| format!(", cost {cost:+.2} %"));
        out.line(format_args!(
            "1 % more  {}: time {:+.2} %, energy {:+.2} %{cost}",
            one.input.name(),
            one.time,
            one.energy
        ))?;
    }
    Ok(())
}

/// Returns a figure with five digits or more, without an exponent where that is readable.
fn short(value: f64) -> String {
    let magnitude = value.abs().log10().floor();
    if value == 0.0 {
        "0".to_owned()
    } else if (-4.0..9.0).contains(&magnitude) {
        let decimals = (4.0 - magnitude).max(0.0) as usize;
        format!("{value:.decimals$}")
    } else {
        format!("{value:.4e}")
    }
}

fn inputs(question: &Question, out: &mut Output) -> Result<(), CliError> {
    for input in question.needed() {
        let Some(given) = &question.given[input as usize] else {
            continue;
        };
        let (kind, source) = match &given.origin {
            Origin::Measured(by) => ("measured", by),
            Origin::Stated(by) => ("stated", by),
            Origin::Assumed(after) => ("assumed", after),
        };
        out.line(format_args!(
            "{kind:<8}  {} {} ({source})",
            input.name(),
            given.value
        ))?;
    }
    Ok(())
}
