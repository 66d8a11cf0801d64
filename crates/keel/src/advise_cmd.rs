//! `keel advise`: where a job shall run.

use crate::cli::AdviseArgs;
use crate::error::CliError;
use crate::output::Output;
use cluster::advisor::{Advice, Fit, Origin, Place, Question, advise, parse_question};
use std::io::Read;
use std::path::Path;

/// Bytes of a question that are read; the parser has its own limit.
const FILE_BYTES_MAX: u64 = 2 << 20;

/// Exit status where no option can be advised.
const STATUS_NONE: u8 = 3;

pub(crate) fn run(arguments: &AdviseArgs) -> Result<u8, CliError> {
    let thing = arguments.job.display();
    let text = read(&arguments.job)?;
    let wrong = |error: cluster::Error| {
        let remedy = match &error {
            cluster::Error::Missing { .. } => {
                "measure and add them, or take what is known from elsewhere with --assume (never prices, sizes, speed \
                 and uplink)"
            }
            _ => "correct it; docs/cluster.md describes the file",
        };
        CliError::failure(&thing, error, remedy)
    };
    let mut question = parse_question(&text).map_err(wrong)?;
    question.deadline_s = arguments.deadline.or(question.deadline_s);
    question.boards_max = arguments.boards.unwrap_or(question.boards_max);
    if arguments.assume {
        question.assume();
    }
    let advice = advise(&question).map_err(wrong)?;
    let mut out = Output::new();
    if arguments.json {
        out.json(&advice.json())?;
    } else {
        print(&advice, &mut out)?;
    }
    out.flush()?;
    Ok(if advice.advised().is_some() {
        0
    } else {
        STATUS_NONE
    })
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
            "changes   {} at {:.4e} (now {:.4e}): {}",
            point.input.name(),
            point.at,
            point.now,
            place_text(point.then)
        ))?;
    }
    let mut strongest: Vec<_> = advice.sensitivity.iter().collect();
    strongest.sort_by(|a, b| {
        (b.time.abs() + b.energy.abs()).total_cmp(&(a.time.abs() + a.energy.abs()))
    });
    for one in strongest.into_iter().take(5) {
        out.line(format_args!(
            "1 % more  {}: time {:+.2} %, energy {:+.2} %",
            one.input.name(),
            one.time,
            one.energy
        ))?;
    }
    Ok(())
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
