//! Readings for a job: from a CSV file, or from the history of a node, which reads it from its database.

use crate::client::{NodeArgs, history_numbers};
use crate::error::CliError;
use clap::Args;
use cluster::jobs::{LeftOut, Order, Readings, Settings, Taker};
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// What to do about times of batches.
const OWN_TIMES: &str = "give each reading a time of its own, or leave the times out";

/// Mean steps whose ratio is greater are shown as a change of the rate.
const RATE_CHANGE: f64 = 1.02;

/// The readings that a job works on.
#[derive(Debug, Args)]
pub(crate) struct ReadingsArgs {
    /// CSV file with a header, as `keel history --csv` writes it; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "key")]
    pub(crate) input: Option<PathBuf>,
    /// Column of the file; may be repeated [default: value, or the only column]
    #[arg(long, value_name = "NAME", requires = "input")]
    pub(crate) column: Vec<String>,
    /// Key of the node whose history to use
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Start of the time range of the history, included
    #[arg(
        long,
        value_name = "T",
        allow_hyphen_values = true,
        requires = "key",
        conflicts_with = "input"
    )]
    pub(crate) from: Option<String>,
    /// End of the time range, not included
    #[arg(
        long,
        value_name = "T",
        allow_hyphen_values = true,
        requires = "key",
        conflicts_with = "input"
    )]
    pub(crate) to: Option<String>,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}

/// Returns a time in seconds. Readings of a fast sensor lie in one ms, and a job needs them apart. A whole ms becomes
/// the number that is nearest to it.
fn seconds(time_ns: i64) -> f64 {
    let (ms, below_ns) = (time_ns.div_euclid(1_000_000), time_ns.rem_euclid(1_000_000));
    ms as f64 / 1e3 + below_ns as f64 / 1e9
}

/// Returns the readings, and how many were left out.
pub(crate) fn read(arguments: &ReadingsArgs) -> Result<(Readings, LeftOut), CliError> {
    let node = &arguments.node;
    if arguments.input.is_some() && (node.node.is_some() || node.config.is_some()) {
        let option = if node.node.is_some() {
            "--node"
        } else {
            "--config"
        };
        return Err(CliError::usage(
            option,
            "names the node of a history, but the readings are those of a file",
            "leave it out, or name a key with --key in place of --input",
        ));
    }
    match (&arguments.input, &arguments.key) {
        (Some(path), _) => from_file(path, &arguments.column),
        (None, Some(key)) => from_node(arguments, key),
        (None, None) => Err(CliError::usage(
            "command line",
            "names no readings",
            "name a CSV file with --input, or a key of the node with --key",
        )),
    }
}

/// Returns the name of the readings for use in sentences.
pub(crate) fn name(arguments: &ReadingsArgs) -> String {
    let path = arguments
        .input
        .as_ref()
        .map(|path| path.display().to_string());
    path.or_else(|| arguments.key.clone()).unwrap_or_default()
}

/// Returns what uneven steps between readings mean, if there are any.
pub(crate) fn uneven_text(readings: &Readings) -> Option<String> {
    let uneven = readings.uneven_steps();
    let mean_s = readings.step_s.filter(|_| uneven > 0)?;
    let count = readings.rows() - 1 - readings.breaks.len();
    let mean = if readings.steps_s.is_empty() {
        format!("their mean of {mean_s} s")
    } else {
        "the mean between their breaks".to_owned()
    };
    Some(format!(
        "{uneven} of {count} steps between readings differ from {mean} by more than a quarter: rows are missing, the \
         times are too coarse, or the rate changes; frequencies may be wrong"
    ))
}

/// Returns the mean steps between breaks, if the rate changes.
pub(crate) fn rate_text(readings: &Readings) -> Option<String> {
    let shortest_s = readings.steps_s.iter().copied().reduce(f64::min)?;
    let longest_s = readings.steps_s.iter().copied().reduce(f64::max)?;
    (longest_s > RATE_CHANGE * shortest_s).then(|| {
        format!(
            "changes: mean steps between breaks are from {shortest_s} to {longest_s} s; frequencies of a window follow \
             its own"
        )
    })
}

/// Returns a number with what it counts.
pub(super) fn number_of(count: u64, one: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {one}{plural}")
}

/// Returns lines about rows that were left out, and about readings that look wrong.
pub(crate) fn remarks(readings: &Readings, left_out: &LeftOut) -> Vec<String> {
    let reasons = left_out.reasons().map(|(reason, count)| {
        let (rows, place) = (number_of(count, "row"), left_out.place(reason));
        format!("left out  {rows}: {reason}{place}")
    });
    let rate = rate_text(readings).map(|text| format!("rate      {text}"));
    let uneven = uneven_text(readings).map(|text| format!("uneven    {text}"));
    let suspects = suspects(readings).into_iter();
    let suspects = suspects.map(|text| format!("suspect   {text}"));
    reasons.chain(rate).chain(uneven).chain(suspects).collect()
}

/// Returns why the readings may not be what the sensor measured.
pub(crate) fn suspects(readings: &Readings) -> Vec<String> {
    let mut texts = readings.suspects.clone();
    let breaks = readings.breaks.len();
    texts.extend(readings.burst().map(|count| {
        format!(
            "{breaks} breaks take most of the time, with {count} readings between two of them (mean): if times are \
             those of batches, frequencies are wrong; {OWN_TIMES}"
        )
    }));
    texts
}

/// Returns the job with its input. If it cannot be done, the error names the rows that were left out, and the remedy
/// is that of the most frequent reason.
///
/// # Errors
/// As [`Order::new`].
pub(crate) fn order(
    name: &str,
    settings: Settings,
    (readings, left_out): (Readings, &LeftOut),
    help: &'static str,
) -> Result<Order, CliError> {
    let breaks = readings.breaks.len() as u64;
    let is_burst = readings.burst().is_some() && left_out.total() < breaks;
    Order::new(settings, readings).map_err(|error| {
        let most = left_out.reasons().max_by_key(|(_, count)| *count);
        let is_of_window = match &error {
            cluster::Error::Invalid { what, wrong } => {
                what == "window" && wrong.contains("fits nowhere")
            }
            _ => false,
        };
        let remedy = match most {
            // Shorter windows would have the steps within a batch.
            _ if is_of_window && is_burst => OWN_TIMES,
            Some((reason, _)) if is_of_window => remedy_of(reason),
            None if is_of_window => "give a smaller --window, or readings with fewer gaps",
            _ => help,
        };
        match left_out.text() {
            Some(text) => CliError::failure(name, format_args!("{error}; {text}"), remedy),
            None => CliError::failure(name, error, remedy),
        }
    })
}

/// Returns what to do about rows that were left out for this reason.
fn remedy_of(reason: &str) -> &'static str {
    match reason {
        "not later than the rows before" => {
            "give times that tell readings apart, in time_ms or time_ns, and in their order"
        }
        "not a number" | "too many fields" | "too few fields" => {
            "write numbers with a decimal point, and as many fields as headings"
        }
        "no time" => "give each row a time that is a number",
        _ => "correct these rows, or give a smaller --window",
    }
}

fn from_file(path: &Path, columns: &[String]) -> Result<(Readings, LeftOut), CliError> {
    let read = if path == Path::new("-") {
        Readings::from_csv(std::io::stdin().lock(), columns)
    } else {
        let file =
            std::fs::File::open(path).map_err(|error| CliError::io(path.display(), &error))?;
        Readings::from_csv(BufReader::with_capacity(1 << 16, file), columns)
    };
    read.map_err(|error| {
        let remedy = match &error {
            cluster::Error::Limit { .. } => "give a shorter file, or fewer columns",
            cluster::Error::Invalid { wrong, .. } if wrong.contains("looks like a time") => {
                "rename the column in the file"
            }
            _ => "name a CSV file with headings, and its columns with --column",
        };
        CliError::failure(path.display(), error, remedy)
    })
}

/// Reads from a node. Readings arrive in another order than that of their times; a job needs them sorted by time.
fn from_node(arguments: &ReadingsArgs, key: &str) -> Result<(Readings, LeftOut), CliError> {
    let mut rows: Vec<(i64, Option<f64>)> = Vec::new();
    let limit = cluster::jobs::readings::VALUES_MAX;
    let (from, to) = (arguments.from.as_deref(), arguments.to.as_deref());
    let missing = history_numbers(&arguments.node, key, from, to, |time, number| {
        rows.push((time.ns(), number));
        rows.len() <= limit
    })?;
    if rows.len() > limit {
        let wrong = format!("has more than {limit} readings");
        return Err(CliError::failure(
            key,
            wrong,
            "take fewer with --from and --to",
        ));
    }
    rows.sort_by_key(|(time_ns, _)| *time_ns);
    let mut taker = Taker::new(vec![key.to_owned()], true);
    for (time_ns, number) in rows {
        let value = number.ok_or("not a number");
        taker
            .take(Some(seconds(time_ns)), std::iter::once(value))
            .map_err(|error| CliError::failure(key, error, "take fewer with --from and --to"))?;
    }
    let (readings, mut left_out) = taker.finish();
    for _ in 0..missing {
        left_out.count("hidden by damage");
    }
    if readings.rows() == 0 {
        return Err(CliError::failure(
            key,
            "has no readings that are numbers in this time",
            "see `keel history`, or give other times with --from and --to",
        ));
    }
    Ok((readings, left_out))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let (readings, left_out) = Readings::from_csv(text.as_bytes(), &[]).expect("readings");
        let settings = Settings::Vibration {
            window: 1_024,
            step: 512,
        };
        let refused = order("day.csv", settings, (readings, &left_out), "help");
        refused.expect_err("no window fits").to_string()
    }

    #[test]
    fn the_node_of_a_history_is_refused_beside_a_file() {
        let arguments = |node: Option<&str>, config: Option<&str>| ReadingsArgs {
            input: Some("day.csv".into()),
            column: Vec::new(),
            key: None,
            from: None,
            to: None,
            node: NodeArgs {
                node: node.map(Into::into),
                config: config.map(Into::into),
            },
        };
        for (arguments, option) in [
            (arguments(Some("node.sock"), None), "--node: "),
            (arguments(None, Some("keel.toml")), "--config: "),
        ] {
            let said = read(&arguments).expect_err("refused").to_string();
            assert!(said.starts_with(option), "{said}");
        }
    }

    #[test]
    fn a_window_that_fits_nowhere_names_the_rows_left_out_and_what_to_do_about_them() {
        // A sensor of 1 kHz, whose times are in whole seconds.
        let rows = (0..3_000).map(|row| format!("{},{}\n", row / 1_000, row % 7));
        let said = refused(&format!("time_s,value\n{}", rows.collect::<String>()));
        for wanted in [
            "fits nowhere between breaks",
            "rows left out: 2997 not later than the rows before",
            "time_ms or time_ns",
        ] {
            assert!(said.contains(wanted), "{wanted}: {said}");
        }
        let said = refused("value\n1\n2,5\n3\n");
        assert!(
            said.contains("1 too many fields") && said.contains("decimal point"),
            "{said}"
        );
        let said = refused("value\n1\n2\n3\n");
        assert!(
            said.contains("a smaller --window") && !said.contains("left out"),
            "{said}"
        );
    }

    /// 32 readings arrive every 32 ms, and the times are those of the arrival.
    fn batches() -> String {
        let row = |row: u32| {
            format!(
                "{},{}\n",
                f64::from(row / 32 * 32) + f64::from(row % 32) / 100.0,
                row % 7
            )
        };
        format!("time_ms,value\n{}", (0..3_200).map(row).collect::<String>())
    }

    #[test]
    fn times_of_batches_are_suspected_and_lead_to_no_smaller_window() {
        let said = refused(&batches());
        assert!(
            said.contains(OWN_TIMES) && !said.contains("smaller --window"),
            "{said}"
        );
        let (readings, _) = Readings::from_csv(batches().as_bytes(), &[]).expect("readings");
        let texts = suspects(&readings);
        assert_eq!(texts.len(), 1, "{texts:?}");
        assert!(
            texts[0].contains("99 breaks") && texts[0].contains("32 readings"),
            "{texts:?}"
        );
    }

    #[test]
    fn a_change_of_the_rate_is_shown_and_is_a_cause_of_uneven_steps() {
        let time_ms = |row: u32| if row < 4_000 { row * 10 } else { row * 14 };
        let rows = (0..8_000).map(|row| format!("{},{}\n", time_ms(row), row % 7));
        let text = format!("time_ms,value\n{}", rows.collect::<String>());
        let (readings, _) = Readings::from_csv(text.as_bytes(), &[]).expect("readings");
        let said = rate_text(&readings).expect("another rate");
        assert!(said.contains("from 0.01 to 0.014 s"), "{said}");
        let text = "time_ms,value\n0,1\n10,2\n20,3\n25,4\n35,5\n45,6\n";
        let (uneven, _) = Readings::from_csv(text.as_bytes(), &[]).expect("readings");
        let said = uneven_text(&uneven).expect("a short step");
        assert!(said.contains("or the rate changes"), "{said}");
        assert_eq!(rate_text(&uneven), None);
    }

    #[test]
    #[allow(clippy::float_cmp)] // They are the same numbers.
    fn readings_of_one_ms_have_times_of_their_own() {
        let ms = 1_700_000_000_123_i64;
        let times = [0, 100_000, 200_000].map(|below_ns| seconds(ms * 1_000_000 + below_ns));
        assert_eq!(times[0], ms as f64 / 1e3);
        assert!(times[0] < times[1] && times[1] < times[2], "{times:?}");
        assert_eq!(seconds(-1_000_000), -1e-3);
    }
}
