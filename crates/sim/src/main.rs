//! `sim`: the whole device in one process, under one seed and in virtual time. `DESIGN.md` says what it proves.
//!
//! **Holds:** the lives of a node on the simulated device, what a seed decides about them, and the invariants.
//!
//! **Must not know:** how a room does what it promises.
//!
//! **Invariants:** a run is a function of its seed; the judge uses its own record, the answers that senders get, and
//! what can be read. Figures of the accused excuse what is missing, and bound what a start reads. `DESIGN.md` lists
//! them.
//!
//! **Files:** `run.rs` one seed, with its commits, forwarding, upkeep, looks, harm and ends in `run/`, `draw.rs` what
//! it decides, `fault.rs` what else goes wrong, `event.rs` what happens next, `node.rs` the node, `device.rs` its
//! device, `sensors.rs` what is offered to it, `ledger.rs` what was offered and acknowledged, `logged.rs` a
//! reading as the log has it, `upstream.rs` the receivers of readings, `clock.rs` times and ages, `alarm.rs` a model of
//! alarms, `invariant.rs` the invariants, `check.rs` their checks of a log, `ranges.rs` those of range reads,
//! `report.rs` what a run tells.

mod alarm;
mod check;
mod clock;
mod device;
mod draw;
mod event;
mod fault;
mod invariant;
mod ledger;
mod logged;
mod node;
mod ranges;
mod report;
mod run;
mod sensors;
mod upstream;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode};
use std::time::Instant;

use base::seeded_bug::SeededBug;
use clap::Parser;

use fault::Profile;
use invariant::Invariant;
use report::Figures;
use run::{Setup, run};
use sensors::Sensors;

/// Seeds that are tried to find a bug.
const BUG_SEEDS: Range<u64> = 1..1_001;
/// Most readings of a run: the log is in memory, on the simulated device.
const READINGS_MAX: u64 = 10_000_000;

/// Run the whole device in one process and check what must hold
#[derive(Debug, Parser)]
#[command(name = "sim", version)]
struct Arguments {
    /// The seed to run
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(..u64::MAX))]
    seed: u64,
    /// Seeds to run instead, without B
    #[arg(long, value_name = "A..B", value_parser = seeds_of, conflicts_with = "seed")]
    seeds: Option<Range<u64>>,
    /// Readings that the sensors offer in a run
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=READINGS_MAX))]
    readings: u64,
    /// What goes wrong beside the ends of lives. By default cuts, and for a bug what finds it
    #[arg(long, value_enum)]
    profile: Option<Profile>,
    /// Run seeds with this seeded bug until an invariant fails: the bug's own. Needs a build without --release
    #[arg(long, value_name = "BUG", value_parser = bug_of, conflicts_with_all = ["seed", "seeds"])]
    until: Option<SeededBug>,
    /// Let the device acknowledge flushes and do nothing: a run must then fail
    #[arg(long)]
    ignore_flushes: bool,
    /// Run each seed twice and compare every step
    #[arg(long)]
    twice: bool,
    /// Print each step
    #[arg(long)]
    trace: bool,
}

fn seeds_of(text: &str) -> Result<Range<u64>, String> {
    let range = text
        .split_once("..")
        .and_then(|(first, end)| Some(first.parse::<u64>().ok()?..end.parse::<u64>().ok()?));
    range
        .filter(|range| !range.is_empty())
        .ok_or_else(|| "give two numbers, the first below the second: 1..201".to_owned())
}

fn bug_of(text: &str) -> Result<SeededBug, String> {
    let bug = SeededBug::ALL.into_iter().find(|bug| bug.name() == text);
    bug.ok_or_else(|| {
        let names: Vec<&str> = SeededBug::ALL.iter().map(|bug| bug.name()).collect();
        format!("no bug has this name; there are {}", names.join(", "))
    })
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let sensors = match Sensors::read(arguments.readings) {
        Ok(sensors) => sensors,
        Err(error) => {
            eprintln!("sim: {error}");
            return ExitCode::FAILURE;
        }
    };
    match arguments.until {
        Some(bug) => until(bug, &sensors, &arguments),
        None => all(&sensors, &arguments),
    }
}

fn setup(arguments: &Arguments) -> Setup {
    let of_bug = arguments.until.map(profile_of);
    Setup {
        readings: arguments.readings,
        profile: arguments.profile.or(of_bug).unwrap_or_default(),
        ignores_flushes: arguments.ignore_flushes,
        prints: arguments.trace,
    }
}

/// Runs the seeds that were asked for.
fn all(sensors: &Sensors, arguments: &Arguments) -> ExitCode {
    let one = arguments.seed..arguments.seed.saturating_add(1);
    let seeds = arguments.seeds.clone().unwrap_or(one);
    let count = seeds.end - seeds.start;
    let begin = Instant::now();
    let mut sum = Figures::default();
    for seed in seeds {
        match checked(sensors, seed, arguments) {
            Ok(figures) => sum.add(&figures),
            Err(failure) => {
                let readings = arguments.readings;
                let lies = match arguments.ignore_flushes {
                    true => " --ignore-flushes",
                    false => "",
                };
                let profile = setup(arguments).profile.name();
                eprintln!("sim: {failure}");
                eprintln!(
                    "once more: sim --profile {profile} --seed {seed} --readings {readings}{lies} --trace"
                );
                return ExitCode::FAILURE;
            }
        }
    }
    let seeds = match count {
        1 => "seed",
        _ => "seeds",
    };
    println!("every invariant held, in {count} {seeds}");
    print!("{sum}");
    let hours = sum.virtual_ns as f64 / 3.6e12;
    let rate = hours / (begin.elapsed().as_secs_f64() / 60.0);
    println!("virtual time: {hours:.2} hours, {rate:.1} hours a minute");
    ExitCode::SUCCESS
}

/// Runs a seed, or its two runs, and returns why it failed as text.
fn checked(sensors: &Sensors, seed: u64, arguments: &Arguments) -> Result<Figures, String> {
    let once = || {
        let ran = catch_unwind(AssertUnwindSafe(|| run(sensors, seed, setup(arguments))));
        match ran {
            Ok(ended) => ended.map_err(|failure| failure.to_string()),
            Err(_) => Err(format!("seed {seed}: a panic, which is shown above")),
        }
    };
    let figures = once()?;
    if arguments.twice && once()? != figures {
        return Err(format!("seed {seed}: a second run took other steps"));
    }
    Ok(figures)
}

/// The invariants of which one must fail with a bug; `None`: any.
fn finders(bug: SeededBug) -> Option<&'static [Invariant]> {
    match bug {
        SeededBug::AckBeforeFlush => {
            Some(&[Invariant::NothingLost, Invariant::TrueAcknowledgement])
        }
        // It may hit a cursor instead of the log.
        SeededBug::SwappedBarrier => Some(&[
            Invariant::NothingLost,
            Invariant::TrueAcknowledgement,
            Invariant::Forwarded,
        ]),
        SeededBug::WakeUpLost => Some(&[Invariant::Taken]),
        SeededBug::TimeTruncated => Some(&[Invariant::NothingAltered]),
        SeededBug::ExpiryUncounted => {
            Some(&[Invariant::NothingLost, Invariant::TrueAcknowledgement])
        }
        SeededBug::AgeByWall => Some(&[Invariant::Freshness]),
        SeededBug::AlarmWithoutHysteresis | SeededBug::AlarmForgetsWhenFull => {
            Some(&[Invariant::Alarms])
        }
        SeededBug::CursorBeforeAck => Some(&[Invariant::Forwarded]),
        // What is acknowledged too early leaves the window too early.
        SeededBug::AckOfAnother | SeededBug::WindowUnbounded => {
            Some(&[Invariant::Bounds, Invariant::Forwarded])
        }
        _ => None,
    }
}

/// The profile whose runs find a bug.
fn profile_of(bug: SeededBug) -> Profile {
    match bug {
        SeededBug::ExpiryUncounted => Profile::Full,
        SeededBug::AgeByWall
        | SeededBug::AlarmWithoutHysteresis
        | SeededBug::AlarmForgetsWhenFull => Profile::Clock,
        _ => Profile::Cuts,
    }
}

/// Runs seeds with a bug until an invariant fails.
fn until(bug: SeededBug, sensors: &Sensors, arguments: &Arguments) -> ExitCode {
    if !cfg!(debug_assertions) {
        eprintln!("sim: this build has no seeded bugs: build it without --release");
        return ExitCode::from(2);
    }
    if !bug.is_on() {
        return with_bug(bug);
    }
    for seed in BUG_SEEDS {
        let Err(failure) = run(sensors, seed, setup(arguments)) else {
            continue;
        };
        let invariant = failure.broken.invariant;
        println!("{} found: {failure}", bug.name());
        return match finders(bug) {
            Some(finders) if !finders.contains(&invariant) => {
                eprintln!("sim: {} is another bug's invariant", invariant.name());
                ExitCode::FAILURE
            }
            _ => ExitCode::SUCCESS,
        };
    }
    let end = BUG_SEEDS.end;
    eprintln!("sim: {} is not found by the seeds below {end}", bug.name());
    ExitCode::FAILURE
}

/// Starts this program again, with the bug: a process has the one that it found in its environment.
fn with_bug(bug: SeededBug) -> ExitCode {
    let started = std::env::current_exe().and_then(|program| {
        Command::new(program)
            .args(std::env::args_os().skip(1))
            .env("KEEL_SEEDED_BUG", bug.name())
            .status()
    });
    match started {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sim: cannot start itself: {error}");
            ExitCode::FAILURE
        }
    }
}
