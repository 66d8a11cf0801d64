//! `keel cluster measure`: the benchmark suite on several boards, repeated in several starts until its intervals are
//! narrow.

use super::boards::{Boards, BoardsArgs};
use super::power_table::{self, power_json};
use super::ranks::{self, Next, Ranks};
use crate::argument::label;
use crate::error::CliError;
use crate::output::Output;
use crate::power_cmd::sources::check_meter;
use crate::signals;
use crate::temporary::new_file;
use base::clock::{Clock, SystemClock};
use clap::{Args, ValueEnum};
use cluster::measure::{
    ALL_BOARDS, Case, Collected, Event, Plan, PowerPlan, RankFacts, SIZES, Settings, Steps, Watts,
    merge_power, parse_event,
};
use cluster::power::{Meter, Root};
use cluster::results::{
    Benchmark, Header, Host, Known, Link, Mode, Origin, PowerRow, ResultFile, Row,
};
use cluster::statistics::Median;
use cluster::thesis::best_of;
use command::progress::Progress;
use serde_json::json;
use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The least number of starts in the default mode: from this number on, their order alone gives an interval.
const STARTS_MIN: u32 = 9;

/// Iterations of the original program in the thesis.
const MPBENCH_ITERATIONS: u64 = 100;

/// Bytes that the original program overwrites to empty caches.
const FLUSH_BYTES: u64 = 16 << 20;

/// Samples of a case in one start, at least and at most.
const SAMPLES: (usize, usize) = (8, 100);

/// The narrowest useful interval within one start: starts differ by more.
const HALF_WIDTH_WITHIN: f64 = 0.02;

/// Shortest length of a sample, in µs.
const SAMPLE_US_MIN: f64 = 100.0;

/// Longest time for a case in one start, in ms.
const CASE_MS_MAX: u64 = 200;

/// Bytes of the sensors' names in a result file's header, at most.
const SOURCES_BYTES_MAX: usize = 200;

/// How much longer ranks may live than the parent waits for them, in s.
const GRACE_S: u64 = 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compat {
    /// 100 iterations after a first one, caches emptied before each repetition and size, timed by rank 0
    Mpbench,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel cluster measure --hosts hosts                     all sizes, until intervals are narrow\n  \
    keel cluster measure --hosts hosts --compat mpbench    as the original MPBench does it\n  \
    keel cluster measure --hosts hosts --only latency --sizes 4,1024 --json\n\n\
    FILE of --hosts has one board per line: NAME, NAME:RANKS or NAME slots=RANKS. `localhost:2` measures this\n\
    machine. Each board has keel-mpi at the same path, and accepts ssh without a prompt. Messages are checked\n\
    before they are timed. The median of another run lies in the interval with a probability of 95 %.\n\
    crates/cluster/SPEC.md describes the file of --out. docs/boards.md is a guide to a first measurement.")]
pub(crate) struct MeasureArgs {
    #[command(flatten)]
    boards: BoardsArgs,
    /// Name of the run in comparisons
    #[arg(long, value_name = "NAME", default_value = "run", value_parser = label)]
    label: String,
    /// Measure in the way of another suite
    #[arg(long, value_name = "SUITE")]
    compat: Option<Compat>,
    /// New file to write
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Sizes of messages, in bytes, multiples of 4 [default: the powers of two from 4 to 4194304]
    #[arg(long, value_name = "BYTES", value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(4..=cluster::measure::BYTES_MAX))]
    sizes: Vec<u64>,
    /// Run only these benchmarks
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Maximum number of starts, from 3 to 100
    #[arg(long, value_name = "N", default_value_t = 12, conflicts_with_all = ["compat", "samples"],
        value_parser = clap::value_parser!(u32).range(3..=100))]
    starts_max: u32,
    /// Minimum interval between the beginnings of two starts, in s, from 0 to 3600. Other load and the speed of a
    /// machine often stay the same for longer than a start takes
    #[arg(long, value_name = "N", default_value_t = 10, conflicts_with_all = ["compat", "samples"],
        value_parser = clap::value_parser!(u64).range(0..=3_600))]
    start_seconds: u64,
    /// Half width of an interval that is narrow enough, in percent of the median, above 0 and up to 100
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, conflicts_with_all = ["compat", "samples"],
        value_parser = percent)]
    half_width_percent: f64,
    /// Measure one start, with this number of samples of each case
    #[arg(long, value_name = "N", conflicts_with = "compat",
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    samples: Option<u32>,
    /// Number of operations in a sample [default: as many as take 100 µs; with --compat 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    iterations: Option<u64>,
    /// Number of repetitions of each case, with --compat
    #[arg(long, value_name = "N", default_value_t = 5, requires = "compat", conflicts_with = "samples",
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repetitions: u32,
    /// Also measure the power of each board during each benchmark; reads of sensors use a rank's core for a moment
    #[arg(long)]
    power: bool,
    /// Time without load before each start, for idle power, in s, from 0 to 3600
    #[arg(long, value_name = "N", default_value_t = 2, requires = "power",
        value_parser = clap::value_parser!(u64).range(0..=3_600))]
    idle_seconds: u64,
    /// Also read the power chip of each Raspberry Pi 5 with vcgencmd, ten times a second
    #[arg(long, requires = "power")]
    pmic: bool,
    /// Use only power sensors whose name contains this text
    #[arg(long, value_name = "TEXT", requires = "power")]
    sensor: Option<String>,
    /// Folder to use instead of / where boards look for sensors
    #[arg(long, value_name = "DIR", default_value = "/", requires = "power")]
    root: PathBuf,
    /// CSV file that the program of a power meter keeps writing: power of all boards together, besides their own
    /// sensors
    #[arg(long, value_name = "FILE", requires = "power")]
    meter: Option<PathBuf>,
    /// Do not bind ranks to cores
    #[arg(long)]
    no_pin: bool,
    /// Rate of the link, in Mbit/s, to note in the file
    #[arg(long, value_name = "MBIT", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    link_mbit: Option<u64>,
    /// Number of bytes that pass before that rate applies, to note in the file
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    link_burst: Option<u64>,
}

/// A share that is one.
fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent),
        _ => Err("must be a number above 0 and up to 100, such as 5".to_owned()),
    }
}

/// What ranks reported about themselves in the first start.
struct World {
    library: String,
    ranks: Vec<RankFacts>,
    hosts: Vec<Host>,
    /// The power of the boards in all starts so far.
    power: Vec<PowerRow>,
}

pub(super) fn run(arguments: &MeasureArgs) -> Result<u8, CliError> {
    let created_ms = SystemClock::new().wall_ms();
    let cases = cases(arguments)?;
    let settings = settings(arguments);
    enough_time(arguments, settings)?;
    let mut collected = Collected::new(settings, &cases).map_err(|error| {
        CliError::usage(
            "keel cluster measure",
            error,
            "name each size and benchmark once",
        )
    })?;
    let boards = Boards::find(&arguments.boards)?;
    boards.reach()?;
    // Create the file before minutes of measuring: an existing file is not overwritten.
    let file = arguments.out.as_deref().map(new_file).transpose()?;
    signals::catch_stop();
    let done = measure(arguments, &boards, &mut collected).and_then(|world| {
        let result = result_file(arguments, created_ms, &world, &collected);
        if let (Some(mut file), Some(path)) = (file, &arguments.out) {
            let text = result
                .text()
                .map_err(|error| CliError::usage("--label", error, "give another one"))?;
            let written = file
                .write_all(text.as_bytes())
                .and_then(|()| file.sync_all());
            written.map_err(|error| CliError::io(path.display(), &error))?;
        }
        Ok((world, result))
    });
    if done.is_err()
        && let Some(path) = &arguments.out
    {
        std::fs::remove_file(path).ok();
    }
    let (world, result) = done?;
    show(arguments, &world, &result, collected.starts())?;
    Ok(0)
}

/// Checks that `--seconds-max` is enough for the least number of starts.
fn enough_time(arguments: &MeasureArgs, settings: Settings) -> Result<(), CliError> {
    let (count, apart_s) = (settings.starts_min, arguments.start_seconds);
    let needed_s = u64::from(count - 1) * apart_s;
    let given_s = arguments.boards.seconds_max;
    if given_s > needed_s || count == 1 {
        return Ok(());
    }
    Err(CliError::usage(
        "--seconds-max",
        format_args!(
            "{given_s} s are not enough: {count} starts, {apart_s} s apart, take more than {needed_s} s"
        ),
        "give it more, or a smaller --start-seconds",
    ))
}

/// Returns the cases to measure.
fn cases(arguments: &MeasureArgs) -> Result<Vec<Case>, CliError> {
    let sizes = if arguments.sizes.is_empty() {
        &SIZES[..]
    } else {
        &arguments.sizes
    };
    if let Some(size) = sizes.iter().find(|size| *size % 4 != 0) {
        let wrong = format!(
            "{size} is no multiple of 4; sizes are those of all benchmarks, and sums add numbers of 4 bytes"
        );
        return Err(CliError::usage("--sizes", wrong, "name multiples of 4"));
    }
    let twice = |option: &str, what: &dyn Display| {
        CliError::usage(
            option,
            format_args!("{what} is there twice"),
            "name it once",
        )
    };
    if let Some(at) = (1..sizes.len()).find(|&at| sizes[..at].contains(&sizes[at])) {
        return Err(twice("--sizes", &sizes[at]));
    }
    let only = &arguments.only;
    if let Some(at) = (1..only.len()).find(|&at| only[..at].contains(&only[at])) {
        return Err(twice("--only", &only[at]));
    }
    let names = Benchmark::ALL.map(Benchmark::name);
    let mut benchmarks = Vec::new();
    for name in &arguments.only {
        let found = Benchmark::ALL
            .into_iter()
            .find(|benchmark| benchmark.name() == name);
        benchmarks.push(found.ok_or_else(|| {
            CliError::usage(
                "--only",
                format_args!("{name} is no benchmark"),
                format_args!("there are {}", names.join(", ")),
            )
        })?);
    }
    if benchmarks.is_empty() {
        benchmarks = Benchmark::ALL.to_vec();
    }
    let iterations = match arguments.compat {
        Some(Compat::Mpbench) => Some(arguments.iterations.unwrap_or(MPBENCH_ITERATIONS)),
        None => arguments.iterations,
    };
    let of = |benchmark| {
        sizes.iter().map(move |&bytes| Case {
            benchmark,
            bytes,
            iterations,
        })
    };
    Ok(benchmarks.into_iter().flat_map(of).collect())
}

fn settings(arguments: &MeasureArgs) -> Settings {
    let is_single = arguments.compat.is_some() || arguments.samples.is_some();
    let (starts_min, starts_max) = match is_single {
        true => (1, 1),
        false => (STARTS_MIN.min(arguments.starts_max), arguments.starts_max),
    };
    Settings {
        half_width_max: arguments.half_width_percent / 100.0,
        starts_min,
        starts_max,
        seed: 0x6d70_6900,
    }
}

fn steps(arguments: &MeasureArgs) -> Steps {
    if arguments.compat == Some(Compat::Mpbench) {
        let repetitions = arguments.repetitions as usize;
        return Steps::Mpbench {
            repetitions,
            flush_bytes: FLUSH_BYTES,
        };
    }
    let (samples_min, samples_max) = match arguments.samples {
        Some(samples) => (samples as usize, samples as usize),
        None => SAMPLES,
    };
    Steps::Sound {
        half_width_max: HALF_WIDTH_WITHIN,
        samples_min,
        samples_max,
        sample_us_min: SAMPLE_US_MIN,
        case_ms_max: CASE_MS_MAX,
    }
}

/// Repeats starts until there are enough samples of each case.
fn measure(
    arguments: &MeasureArgs,
    boards: &Boards,
    collected: &mut Collected,
) -> Result<World, CliError> {
    let deadline = Instant::now() + Duration::from_secs(arguments.boards.seconds_max);
    let progress = Progress::start(format!("measuring {}", arguments.label));
    let mut world = None;
    let mut begun: Option<Instant> = None;
    loop {
        let mut cases = collected.next_start();
        if cases.is_empty() {
            break;
        }
        if let Some(begun) = begun {
            let next = begun + Duration::from_secs(arguments.start_seconds);
            wait_until(next.min(deadline))?;
        }
        begun = Some(Instant::now());
        if arguments.compat.is_some() {
            // The order of the original program.
            cases.sort_by_key(|case| (case.benchmark, case.bytes));
        } else if arguments.power {
            // Reading power takes time: run one benchmark after the other, in the order in which they were drawn.
            let drawn: Vec<Benchmark> = cases.iter().map(|case| case.benchmark).collect();
            cases.sort_by_key(|case| drawn.iter().position(|one| *one == case.benchmark));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let plan = Plan {
            ranks: boards.ranks(),
            cases,
            steps: steps(arguments),
            pin: !arguments.no_pin,
            power: arguments.power.then(|| PowerPlan {
                root: arguments.root.clone(),
                pmic: arguments.pmic,
                sensor: arguments.sensor.clone(),
                idle_ms: arguments.idle_seconds * 1_000,
            }),
            seconds_max: left.as_secs() + GRACE_S,
        };
        let found = start(arguments, boards, &plan, deadline, collected, &progress)?;
        let before = world
            .take()
            .map_or_else(Vec::new, |world: World| world.power);
        let power = before.into_iter().chain(found.power).collect();
        world = Some(World {
            power: merge_power(power),
            ..found
        });
        let judged = collected.end_start();
        judged.map_err(|error| {
            CliError::failure("keel-mpi", error, "see that it is of the same version")
        })?;
    }
    world.ok_or_else(|| {
        CliError::usage(
            "keel cluster measure",
            "there is nothing to measure",
            "name a size",
        )
    })
}

/// Waits until the next start, or a signal.
fn wait_until(then: Instant) -> Result<(), CliError> {
    loop {
        if signals::stop_requested() {
            return Err(ranks::interrupted());
        }
        let left = then.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(ranks::LOOK));
    }
}

/// Runs one start.
fn start(
    arguments: &MeasureArgs,
    boards: &Boards,
    plan: &Plan,
    deadline: Instant,
    collected: &mut Collected,
    progress: &Progress,
) -> Result<World, CliError> {
    let text = plan
        .text()
        .map_err(|error| CliError::usage("keel cluster measure", error, "name fewer sizes"))?;
    let words = ["measure".to_owned(), text];
    // While ranks wait without load, they send nothing.
    let idle_ms = plan.power.as_ref().map_or(0, |power| power.idle_ms);
    let silence_max =
        Duration::from_secs(arguments.boards.silence_seconds_max) + Duration::from_millis(idle_ms);
    let mut ranks = Ranks::start(boards, &words, deadline, silence_max)?;
    let other_version = |error: cluster::Error| {
        CliError::failure(
            "keel-mpi",
            error,
            "install keel and keel-mpi of the same version",
        )
    };
    let mut world = None;
    let mut said = None;
    let mut power = Vec::new();
    let mut meter = None;
    loop {
        let line = match ranks.next()? {
            Next::Line(line) => line,
            Next::Ended(status) => return Err(ranks.failed(status, said)),
        };
        let Some(event) = parse_event(&line) else {
            ranks.keep(line);
            continue;
        };
        match event.map_err(other_version)? {
            Event::World {
                library,
                ranks,
                hosts,
            } => {
                // From here on the ranks sleep for the measurement of idle power.
                meter = arguments.meter.as_deref().map(read_meter).transpose()?;
                world = Some(World {
                    library,
                    ranks,
                    hosts,
                    power: Vec::new(),
                })
            }
            Event::Begin {
                at,
                benchmark,
                bytes,
            } => {
                if let Some(meter) = &meter {
                    meter.during(Some(benchmark.name()));
                }
                progress.part(&format!(
                    "start {}: {} of {}, {} {bytes}",
                    collected.starts() + 1,
                    at + 1,
                    plan.cases.len(),
                    benchmark.name()
                ));
            }
            Event::Row { row } => collected.add(row).map_err(other_version)?,
            Event::Power { rows } => power.extend(rows),
            // All ranks report it if they do not find each other: keep the first report.
            Event::Failed { why, host } => said = said.or(Some((why, host))),
            Event::End { rows } if rows == plan.cases.len() && said.is_none() => {
                if let Some(world) = world {
                    power.extend(meter.map(Watts::finish).unwrap_or_default());
                    ranks.settle();
                    return Ok(World { power, ..world });
                }
            }
            Event::End { .. } => {}
        }
    }
}

fn result_file(
    arguments: &MeasureArgs,
    created_ms: i64,
    world: &World,
    collected: &Collected,
) -> ResultFile {
    let is_far = world.hosts.len() > 1;
    let link = |said: Option<u64>, option: &str| match said {
        Some(value) => Known::Value(value),
        None if is_far => Known::Unavailable(format!("not said: {option}")),
        None => Known::Unavailable("one host: messages go through memory".to_owned()),
    };
    ResultFile {
        header: Header {
            label: arguments.label.clone(),
            created_ms,
            mode: if arguments.compat.is_some() {
                Mode::Mpbench
            } else {
                Mode::Sound
            },
            mpi: Known::Value(world.library.clone()),
            link: Link {
                rate_bits_per_s: link(
                    arguments.link_mbit.map(|mbit| mbit * 1_000_000),
                    "--link-mbit",
                ),
                burst_bytes: link(arguments.link_burst, "--link-burst"),
            },
            hosts: world.hosts.clone(),
            power_source: power_source(arguments, &world.power),
        },
        rows: collected
            .rows()
            .into_iter()
            .chain(world.power.iter().cloned().map(Row::Power))
            .collect(),
    }
}

/// Returns the sources of power: all sensors that gave a value.
fn power_source(arguments: &MeasureArgs, power: &[PowerRow]) -> Known<String> {
    if !arguments.power {
        return Known::Unavailable("not measured: --power".to_owned());
    }
    let mut names: Vec<&str> = Vec::new();
    let mut reason = "no board has said anything of its power";
    for row in power {
        match &row.origin {
            Origin::Unavailable(why) => reason = why,
            _ if names.contains(&row.source.as_str()) => {}
            _ => names.push(&row.source),
        }
    }
    if names.is_empty() {
        return Known::Unavailable(reason.to_owned());
    }
    let mut text = names.join(", ");
    if text.len() > SOURCES_BYTES_MAX {
        text = format!("{} and others", names[0]);
    }
    Known::Value(text)
}

/// Starts reading the meter that supplies all boards.
fn read_meter(path: &Path) -> Result<Watts, CliError> {
    let Some(text) = path.to_str() else {
        let wrong = "is no UTF-8";
        return Err(CliError::usage(
            path.display(),
            wrong,
            "give the file another name",
        ));
    };
    check_meter(path)?;
    // The meter's file is at the user's path, even if another folder stands for /.
    let meter = Meter::new(&Root::new(""), text, Arc::new(SystemClock::new()));
    Ok(Watts::start(Ok(vec![Box::new(meter)]), ALL_BOARDS))
}

/// Returns the interval of a median as text; a single sample has none.
fn interval(median: &Median) -> String {
    match median.samples {
        0 | 1 => "unknown: one sample".to_owned(),
        _ => format!("{:.3} to {:.3}", median.interval.low, median.interval.high),
    }
}

fn show(
    arguments: &MeasureArgs,
    world: &World,
    result: &ResultFile,
    starts: u32,
) -> Result<(), CliError> {
    let mut out = Output::new();
    let rows = result.rows.iter().filter_map(|row| match row {
        Row::Benchmark(row) => Some(row),
        Row::Power(_) => None,
    });
    let judged = |error| {
        CliError::failure(
            "keel-mpi",
            error,
            "install keel and keel-mpi of the same version",
        )
    };
    if arguments.json {
        let mut cells = Vec::new();
        for row in rows {
            let median = row.median_us().map_err(judged)?;
            cells.push(json!({
                "benchmark": row.benchmark.name(),
                "bytes": row.bytes,
                "iterations": row.iterations,
                "samples": median.samples,
                "median_us": median.value,
                // A single sample gives no uncertainty.
                "low_us": (median.samples > 1).then_some(median.interval.low),
                "high_us": (median.samples > 1).then_some(median.interval.high),
                "result": row.benchmark.result(row.bytes, median.value),
                "unit": row.benchmark.unit(),
                "stopped": row.stopped,
                "wide": row.is_wide(&median),
            }));
        }
        let ranks = world.ranks.iter().map(|rank| {
            json!({"rank": rank.rank, "host": rank.host, "core": rank.core.value(), "library": rank.library})
        });
        let ranks: Vec<_> = ranks.collect();
        let power = world.power.iter();
        let power = power.map(|row| power_json(row, best_of(result, &row.during).as_ref()));
        out.json(&json!({
            "label": arguments.label,
            "mpi": world.library,
            "ranks": ranks,
            "hosts": world.hosts,
            "starts": starts,
            "power": power.collect::<Vec<_>>(),
            "file": arguments.out.as_ref().map(|path| path.display().to_string()),
            "rows": cells,
        }))?;
        return out.flush();
    }
    out.line(format_args!("mpi       {}", world.library))?;
    for rank in &world.ranks {
        let core = match &rank.core {
            Known::Value(core) => format!("core {core}"),
            Known::Unavailable(why) => format!("no core of its own: {why}"),
        };
        out.line(format_args!("rank {:<4} {} ({core})", rank.rank, rank.host))?;
    }
    out.line(format_args!("starts    {starts}"))?;
    out.line("benchmark    bytes     median us    95 % interval           result          unit")?;
    for row in rows {
        let median = row.median_us().map_err(judged)?;
        let note = if row.is_wide(&median) { "  wide" } else { "" };
        out.line(format_args!(
            "{:<11}  {:<8}  {:<11.3}  {:<22}  {:<14.1}  {}{note}",
            row.benchmark.name(),
            row.bytes,
            median.value,
            interval(&median),
            row.benchmark.result(row.bytes, median.value),
            row.benchmark.unit(),
        ))?;
    }
    print_power(world, result, &mut out)?;
    if world.hosts.len() == 1 {
        out.line("one host: messages went through its memory, not through a network")?;
    }
    if let Some(path) = &arguments.out {
        out.line(format_args!("written: {}", path.display()))?;
    }
    out.flush()
}

fn print_power(world: &World, result: &ResultFile, out: &mut Output) -> Result<(), CliError> {
    if world.power.is_empty() {
        return Ok(());
    }
    out.line(format_args!(
        "{:<11}  {:<12}  {:<24}  {}",
        "during",
        "host",
        "source",
        power_table::HEADINGS
    ))?;
    let rows = world.power.iter();
    let bests: Vec<_> = rows.map(|row| best_of(result, &row.during)).collect();
    for (row, best) in world.power.iter().zip(&bests) {
        let first = format!("{:<11}  {:<12}  {:<24}", row.during, row.host, row.source);
        power_table::print_row(&first, row, best.as_ref(), out)?;
    }
    power_table::print_note(bests.iter().map(Option::as_ref), out)
}
