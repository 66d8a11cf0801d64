//! `keel cluster run`: a job on several boards, or on several ranks of this machine.

use super::input::{self, ReadingsArgs};
use super::kernel::{KernelArgs, kernel_parser};
use super::output;
use super::processes::{END_TIME_MAX, Heard, Processes};
use super::state::{Failed, SETTLE, SETTLE_LAUNCHER, Settled, State};
use crate::argument::seconds;
use crate::cluster_cmd::boards::{Boards, BoardsArgs, is_here, last_line, listed};
use crate::cluster_cmd::ranks::blamed;
use crate::cluster_cmd::result_file;
use crate::error::CliError;
use crate::signals;
use crate::temporary::new_file;
use clap::Args;
use cluster::jobs::lines::Line;
use cluster::jobs::worker::{Check, Options};
use cluster::jobs::{Order, Sameness};
use command::progress::Progress;
use config::Kernel;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Poll interval for signals of the user and for processes that have ended.
const LOOK: Duration = Duration::from_millis(50);

/// The same if a board is cut off. The launcher ends the ranks that it reaches within this time, and would then wait
/// for the others.
const END_CUT_OFF: Duration = Duration::from_secs(1);

/// Timeout for a launcher to end after all ranks have reported that they are done.
const END_LAUNCHER: Duration = Duration::from_secs(4);

/// The most ranks of this machine, as --local takes them.
const LOCAL_RANKS_MAX: u32 = 64;

/// What is left of a job that ends during its check.
const UNCHECKED: &str = "the answer is written, and its check is not complete";

/// Why boards that answer may not start a rank, and what to do.
const UNHEARD: &str =
    "the boards answer, but MPI may not pass between them: a firewall, an interface or an address";
const UNHEARD_REMEDY: &str = "let TCP pass between the boards, see --interface and --address, or run without them with \
                              --retry";

/// How much longer ranks may live than the parent waits for them, in s.
const GRACE_S: u64 = 60;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel cluster run vibration --hosts hosts --input day.csv --out features.csv\n  \
    keel cluster run k-means --hosts hosts --key pump/vibration --from -1d --retry\n  \
    keel cluster run matrix-profile --local 2 --input day.csv --column current --window 120 --json\n\n\
    Each board needs keel-mpi and an MPI, but not the readings: rank 0 sends them. Unusable rows are left out\n\
    and counted; no window spans a gap. The result is compared with that of one rank: exit status 1 if they\n\
    differ. A board that dies or is silent for --silence-seconds-max is named; --retry runs again on the other\n\
    boards. --local needs no MPI.")]
pub(crate) struct RunArgs {
    /// Job to run
    #[arg(value_parser = kernel_parser())]
    pub(crate) kernel: Kernel,
    /// File with one board per line: NAME, NAME:RANKS or NAME slots=RANKS
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "local",
        conflicts_with = "local"
    )]
    pub(crate) hosts: Option<PathBuf>,
    /// Number of ranks on this machine instead, without MPI, from 1 to 64
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) local: Option<u32>,
    #[command(flatten)]
    pub(crate) readings: ReadingsArgs,
    #[command(flatten)]
    pub(crate) settings: KernelArgs,
    /// Leave out boards that cannot be reached; if a board is lost, run again on the others, as often as needed
    #[arg(long)]
    pub(crate) retry: bool,
    /// New file for the complete result, as CSV
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Timeout after which a silent board counts as lost, in s, from 1 to 3600
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub(crate) silence_seconds_max: u64,
    /// Maximum duration of the command, in s, from 1 to 86400
    #[arg(long, value_name = "N", default_value_t = 3_600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds_max: u64,
    /// Time without load before the job, for idle power, in s, from 0 to 3600
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    pub(crate) idle_seconds: u64,
    /// Also read the power chip of each Raspberry Pi 5 with vcgencmd, five times a second
    #[arg(long)]
    pub(crate) pmic: bool,
    /// Use only power sensors whose name contains this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) sensor: Option<String>,
    /// Folder to use instead of / where boards look for sensors
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) root: PathBuf,
    /// Deadline for the result, in s, for the advice
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) deadline: Option<f64>,
    /// Result of `keel cluster measure` with round trips between boards, for the advice
    #[arg(long, value_name = "FILE")]
    pub(crate) link: Option<PathBuf>,
    /// Path of the program keel-mpi on each board [default: beside keel, or in PATH]
    #[arg(long, value_name = "PATH", conflicts_with = "local")]
    pub(crate) program: Option<PathBuf>,
    /// Launcher of MPI [default: launcher of the MPI that keel-mpi is built with, in PATH]
    #[arg(long, value_name = "PATH", conflicts_with = "local")]
    pub(crate) mpirun: Option<PathBuf>,
    /// Program to use instead of ssh, called as PROGRAM [options] HOST COMMAND
    #[arg(long, value_name = "PATH", conflicts_with = "local")]
    pub(crate) launcher: Option<PathBuf>,
    /// Address at which boards reach this machine, such as 10.77.0.254/24
    #[arg(long, value_name = "ADDRESS/BITS", conflicts_with = "local")]
    pub(crate) address: Option<String>,
    /// Network interface of the boards that carries messages, such as eth0
    #[arg(long, value_name = "NAME", conflicts_with = "local")]
    pub(crate) interface: Option<String>,
    /// Send through TCP only, even between ranks that share memory
    #[arg(long, conflicts_with = "local")]
    pub(crate) tcp: bool,
    /// Additional argument for MPI's launcher; may be repeated
    #[arg(
        long,
        value_name = "WORD",
        allow_hyphen_values = true,
        conflicts_with = "local"
    )]
    pub(crate) mpi_arg: Vec<String>,
}

impl RunArgs {
    /// The boards, where they are not this machine alone.
    pub(super) fn boards(&self) -> Option<BoardsArgs> {
        Some(BoardsArgs {
            hosts: self.hosts.clone()?,
            program: self.program.clone(),
            mpirun: self.mpirun.clone(),
            launcher: self.launcher.clone(),
            address: self.address.clone(),
            interface: self.interface.clone(),
            tcp: self.tcp,
            mpi_arg: self.mpi_arg.clone(),
            seconds_max: self.seconds_max,
            silence_seconds_max: self.silence_seconds_max,
        })
    }
}

/// The boards of an attempt: the number of ranks of each, and how they are reached.
enum Place {
    /// Ranks of this machine, by the numbers that they had in the first attempt.
    Local(Vec<usize>),
    /// Boards.
    Boards(Box<Boards>),
}

impl Place {
    fn ranks(&self) -> usize {
        match self {
            Self::Local(names) => names.len(),
            Self::Boards(boards) => boards.ranks() as usize,
        }
    }

    /// Returns the names of the boards; each rank of this machine stands for one board.
    fn names(&self) -> Vec<String> {
        match self {
            Self::Local(names) => names
                .iter()
                .map(|name| format!("local rank {name}"))
                .collect(),
            Self::Boards(boards) => boards.hosts.iter().map(|host| host.name.clone()).collect(),
        }
    }

    /// Returns the board of a rank: launchers fill one board after the other.
    fn board(&self, rank: usize) -> usize {
        match self {
            Self::Local(_) => rank,
            Self::Boards(boards) => {
                let mut first = 0;
                let on = boards.hosts.iter().position(|host| {
                    first += host.ranks as usize;
                    rank < first
                });
                on.unwrap_or(0)
            }
        }
    }

    /// Returns the first rank of a board.
    fn first_rank(&self, board: usize) -> usize {
        match self {
            Self::Local(_) => board,
            Self::Boards(boards) => boards
                .hosts
                .iter()
                .take(board)
                .map(|host| host.ranks as usize)
                .sum(),
        }
    }

    /// Removes boards. Returns whether any are left.
    fn without(&mut self, lost: &[usize]) -> bool {
        let mut at = 0;
        let mut is_kept = || {
            at += 1;
            !lost.contains(&(at - 1))
        };
        match self {
            Self::Local(names) => names.retain(|_| is_kept()),
            Self::Boards(boards) => boards.hosts.retain(|_| is_kept()),
        }
        self.ranks() > 0
    }

    /// Returns this machine alone, with the ranks that it has as a board; `None` for ranks of this machine.
    fn alone(&self) -> Option<Self> {
        let Self::Boards(boards) = self else {
            return None;
        };
        let mut hosts = boards.hosts.iter();
        let here = hosts.find(|host| is_here(&host.name));
        let ranks = here.or(boards.hosts.first())?.ranks.min(LOCAL_RANKS_MAX);
        Some(Self::Local((0..ranks as usize).collect()))
    }
}

/// The result of an attempt.
enum Outcome {
    Done(Box<State>),
    Lost {
        boards: Vec<usize>,
        how: String,
        /// Whether no rank of these boards has ever started, although the boards may answer.
        is_unheard: bool,
    },
}

pub(crate) fn run(arguments: &RunArgs) -> Result<u8, CliError> {
    run_with(arguments, Check::Always, &mut |_| Ok(()), &mut |shown| {
        output::print(shown, arguments.json)
    })
}

/// Continues after a loss: on the boards that are left, or on this machine alone if no rank has started on any board.
/// Adds the boards that are no longer used to `lost`.
fn go_on(
    place: &mut Place,
    boards: &[usize],
    how: &str,
    is_unheard: bool,
    lost: &mut Vec<(String, String)>,
) -> Result<(), CliError> {
    let names = place.names();
    let mut gone: Vec<&String> = boards.iter().filter_map(|&at| names.get(at)).collect();
    let shown = listed(&gone);
    let alone = place.alone().filter(|_| is_unheard);
    if place.without(boards) {
        let left = place.ranks();
        eprintln!("keel: {shown}: {how}; running again on the other {left} ranks");
    } else {
        let Some(alone) = alone else {
            let remedy = "it was the last one: see what ended them";
            return Err(CliError::failure(shown, how, remedy));
        };
        let ranks = alone.ranks();
        eprintln!("keel: {shown}: {how}; running again on this machine alone, ranks: {ranks}");
        *place = alone;
        gone.retain(|name| !is_here(name));
    }
    lost.extend(gone.into_iter().map(|name| (name.clone(), how.to_owned())));
    Ok(())
}

/// Runs a job and passes its result to `seen`. With [`Check::After`] `seen` gets the result before the check, and again
/// when the check has ended, also if it failed. Calls `suspected` with boards on which no rank has started. Returns
/// what `seen` returned last.
pub(super) fn run_with<T>(
    arguments: &RunArgs,
    check: Check,
    suspected: &mut dyn FnMut(&[String]) -> Result<(), CliError>,
    seen: &mut dyn FnMut(&output::Shown<'_>) -> Result<T, CliError>,
) -> Result<T, CliError> {
    let link = arguments
        .link
        .as_deref()
        .map(result_file::link)
        .transpose()?;
    let name = input::name(&arguments.readings);
    let (readings, left_out) = input::read(&arguments.readings)?;
    let times = readings.times_s.clone();
    let settings = arguments.settings.checked(arguments.kernel)?;
    let help = "see `keel cluster run --help` for what a job takes";
    let order = input::order(&name, settings, (readings, &left_out), help)?;
    let order = Arc::new(order);
    let mut lost: Vec<(String, String)> = Vec::new();
    let mut place = match arguments.boards() {
        Some(boards) => {
            let mut boards = Boards::find(&boards)?;
            if arguments.retry {
                let missing = boards.leave_out_missing()?;
                lost.extend(missing.into_iter().map(|board| (board.name, board.how)));
            } else {
                boards.reach()?;
            }
            Place::Boards(Box::new(boards))
        }
        None => Place::Local((0..arguments.local.unwrap_or(1) as usize).collect()),
    };
    let table = arguments.out.as_deref();
    let table = table.map(|path| Table::create(path, Arc::clone(&order)));
    let mut table = table.transpose()?;
    signals::catch_stop();
    let begun = Instant::now();
    let deadline = begun + Duration::from_secs(arguments.seconds_max);
    for (name, how) in &lost {
        eprintln!("keel: {name}: {how}; running without it");
    }
    let mut is_published = false;
    let state = loop {
        let mut whole = |state: &State| {
            is_published = true;
            let shown = output::Shown {
                order: &order,
                left_out: &left_out,
                times: &times,
                state,
                lost: &lost,
                deadline_s: arguments.deadline,
                link: link.as_ref(),
            };
            seen(&shown).map(|_| ())
        };
        let task = Task {
            arguments,
            order: &order,
            check,
            deadline,
        };
        match attempt(&task, &place, table.as_mut(), &mut whole)? {
            Outcome::Done(state) => break state,
            Outcome::Lost {
                boards,
                how,
                is_unheard,
            } => {
                let names = place.names();
                let gone = boards.iter().filter_map(|&at| names.get(at).cloned());
                let mut gone: Vec<String> = gone.collect();
                let shown = listed(&gone);
                if is_published {
                    return Err(CliError::failure(shown, how, UNCHECKED));
                }
                if !arguments.retry {
                    let remedy = match is_unheard {
                        true => UNHEARD_REMEDY,
                        false => "see what ended it, or run on the others with --retry",
                    };
                    return Err(CliError::failure(shown, how, remedy));
                }
                go_on(&mut place, &boards, &how, is_unheard, &mut lost)?;
                if is_unheard {
                    gone.retain(|name| !is_here(name));
                    suspected(&gone)?;
                }
            }
        }
    };
    // The line with the result of the check may have been cut.
    let compared = state.report.as_ref().map(|report| report.compared);
    if check == Check::After && compared == Some(Sameness::Unchecked) {
        return Err(CliError::failure(
            "keel cluster run",
            "the result of the check has not come whole",
            "run it again",
        ));
    }
    if let Some(table) = &mut table {
        table.finish()?;
    }
    let shown = output::Shown {
        order: &order,
        left_out: &left_out,
        times: &times,
        state: &state,
        lost: &lost,
        deadline_s: arguments.deadline,
        link: link.as_ref(),
    };
    seen(&shown)
}

/// A job, independent of the boards.
struct Task<'a> {
    arguments: &'a RunArgs,
    order: &'a Arc<Order>,
    check: Check,
    deadline: Instant,
}

/// Runs one attempt on the current boards. Calls `whole` when the answer is complete and its check follows. Calls it
/// again when the result of the check has come. The job may fail because of that result.
fn attempt(
    task: &Task<'_>,
    place: &Place,
    mut table: Option<&mut Table>,
    whole: &mut dyn FnMut(&State) -> Result<(), CliError>,
) -> Result<Outcome, CliError> {
    let Task {
        arguments,
        order,
        check,
        deadline,
    } = *task;
    let options = Options {
        root: arguments.root.clone(),
        pmic: arguments.pmic,
        sensor: arguments.sensor.clone(),
        idle: Duration::from_secs(arguments.idle_seconds),
        has_table: table.is_some(),
        check,
        seconds_max: deadline.saturating_duration_since(Instant::now()).as_secs() + GRACE_S,
    };
    let ranks = place.ranks();
    let mut processes = match place {
        Place::Local(_) => Processes::local(ranks, order, &options)?,
        Place::Boards(boards) => Processes::on(boards, order, &options)?,
    };
    if let Some(table) = &mut table {
        table.restart()?;
    }
    let kernel = order.settings.kernel();
    let progress = Progress::start(format!("{kernel} on {ranks} ranks"));
    let mut state = State::new(ranks, Instant::now());
    let silence_max = Duration::from_secs(arguments.silence_seconds_max);
    let settle = match place {
        Place::Local(_) => SETTLE,
        Place::Boards(_) => SETTLE_LAUNCHER,
    };
    let mut settled = Settled::default();
    let mut done_since: Option<Instant> = None;
    loop {
        let heard = processes.hear(LOOK);
        let now = Instant::now();
        let is_end = matches!(heard, Heard::End);
        match heard {
            Heard::Line(Line::Row { at, text }) => {
                if let Some(table) = &mut table {
                    table.line(at, &text)?;
                }
            }
            Heard::Line(line) => {
                let is_whole = matches!(line, Line::Whole { .. });
                let is_checked = matches!(line, Line::Report { .. }) && state.whole.is_some();
                state.hear(line, now);
                if let (true, Some(rows)) = (is_whole, state.whole) {
                    if let Some(table) = &mut table {
                        table.check(rows)?;
                        table.finish()?;
                    }
                    whole(&state)?;
                }
                if is_checked {
                    whole(&state)?;
                }
            }
            Heard::Nothing => {}
            // The pipes are closed; the processes will end very soon.
            Heard::End => std::thread::sleep(LOOK),
        }
        if let Some(name) = &state.twin {
            let wrong = format!("two boards are both called {name}, and cannot be told apart");
            let remedy = "give each board a host name of its own";
            return Err(CliError::failure("keel cluster run", wrong, remedy));
        }
        progress.part(&state.progress());
        if signals::stop_requested() {
            let remedy = match (
                &state.whole,
                state.report.as_ref().map(|report| report.compared),
            ) {
                (Some(_), Some(Sameness::Same | Sameness::Near(_))) => {
                    "the answer is written and checked"
                }
                (Some(_), _) => UNCHECKED,
                (None, _) => "nothing of it is kept",
            };
            return Err(CliError::failure("keel cluster run", "interrupted", remedy));
        }
        if now >= deadline {
            let wrong = format!(
                "not done within --seconds-max, {:.0} % are",
                state.done() * 100.0
            );
            return Err(CliError::failure(
                kernel,
                wrong,
                "give it more time, or more boards",
            ));
        }
        let statuses = processes.statuses();
        let has_died = statuses.iter().flatten().any(|status| !status.success());
        let is_over = statuses.iter().all(Option::is_some);
        if state.is_done() {
            // The last line of each rank reports this. The end of MPI no longer matters. With more ranks than cores it
            // takes minutes, and a launcher whose ranks do not wait for that complains.
            let since = *done_since.get_or_insert(now);
            let is_late = now.saturating_duration_since(since) > END_LAUNCHER;
            let is_launched = matches!(place, Place::Boards(_));
            if (is_over && is_end && (is_launched || !has_died)) || (is_launched && is_late) {
                if let Some(table) = &table {
                    table.check(state.table_rows)?;
                }
                return Ok(Outcome::Done(Box::new(state)));
            }
            if is_launched {
                continue;
            }
        }
        let has_ended = is_over && is_end;
        let is_failing = has_died || has_ended || state.is_failing(silence_max, now);
        let is_cut_off = !has_died && state.is_cut_off(silence_max, now);
        if has_ended || settled.is_complete(is_failing, is_cut_off, settle, now) {
            return judge(place, &mut processes, &state, is_cut_off, silence_max, now);
        }
    }
}

/// Determines the cause of a failure.
fn judge(
    place: &Place,
    processes: &mut Processes,
    state: &State,
    is_cut_off: bool,
    silence_max: Duration,
    now: Instant,
) -> Result<Outcome, CliError> {
    let mut died = Vec::new();
    let mut named = None;
    if let Place::Local(_) = place {
        let statuses = processes.statuses();
        let ended = statuses
            .iter()
            .enumerate()
            .filter_map(|(rank, status)| Some((rank, (*status)?)));
        let ended: Vec<_> = ended.filter(|(_, status)| !status.success()).collect();
        let by_signal = ended.iter().filter(|(_, status)| status.code().is_none());
        died.extend(by_signal.map(|(rank, status)| (*rank, format!("was ended by {status}"))));
        // A rank that ends by itself without a line could not start; its replacement could not start either.
        let by_itself = ended
            .iter()
            .find(|(rank, status)| status.code().is_some() && !state.has_word(*rank));
        if let Some((rank, status)) = by_itself.filter(|_| died.is_empty()) {
            processes.end(END_TIME_MAX);
            let complaints = processes.complaints();
            let last = complaints.iter().rev().find(|line| !line.trim().is_empty());
            let why = last.map_or_else(|| format!("ended with {status}"), Clone::clone);
            let remedy = "correct that, then run it again";
            return Err(CliError::failure(
                format!("local rank {rank}"),
                why.trim(),
                remedy,
            ));
        }
    }
    processes.end(if is_cut_off {
        END_CUT_OFF
    } else {
        END_TIME_MAX
    });
    let complaints = processes.complaints();
    if let Place::Boards(boards) = place {
        let names = place.names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let at = |name: &str| names.iter().position(|known| *known == name);
        named = blamed(&complaints, &names)
            .and_then(|(name, line)| Some((vec![place.first_rank(at(&name)?)], line)))
            // Whether a board that is cut off answers takes long to ask, and its ranks are known.
            .or_else(|| {
                let silent = (!is_cut_off).then(|| unanswering(boards, &names))?;
                let ranks: Vec<usize> = silent.iter().map(|&at| place.first_rank(at)).collect();
                (!ranks.is_empty()).then(|| (ranks, "no longer answers".to_owned()))
            });
    }
    let is_on_boards = matches!(place, Place::Boards(_));
    let is_named = named.is_some();
    match state.judge(&died, named, silence_max, now) {
        Failed::Lost { ranks, how } => {
            let mut lost: Vec<usize> = ranks.iter().map(|&rank| place.board(rank)).collect();
            lost.dedup();
            let is_unheard = is_on_boards && !is_named && state.is_unheard(&ranks);
            let how = format!("{how}, {:.0} % were done", state.done() * 100.0);
            Ok(Outcome::Lost {
                boards: lost,
                how,
                is_unheard,
            })
        }
        Failed::Unheard(why) if is_on_boards => Ok(Outcome::Lost {
            boards: (0..place.names().len()).collect(),
            how: format!("{why}; {UNHEARD}"),
            is_unheard: true,
        }),
        Failed::Job(why) => Err(CliError::failure(
            "keel cluster run",
            why,
            "see docs/cluster.md",
        )),
        Failed::Unheard(why) | Failed::Unknown(why) => {
            let last = last_line(complaints.join("\n").as_bytes());
            Err(CliError::failure(
                "keel cluster run",
                format!("{why}; {last}"),
                "see docs/cluster.md",
            ))
        }
    }
}

/// Returns the boards that cannot be reached, or the first one whose program no longer runs.
fn unanswering(boards: &Boards, names: &[&str]) -> Vec<usize> {
    let at = |name: &str| names.iter().position(|known| *known == name);
    match boards.missing() {
        Ok(missing) => missing.iter().filter_map(|board| at(&board.name)).collect(),
        Err(error) => {
            let error = error.to_string();
            let mut found = names.iter();
            let found = found.position(|name| error.starts_with(&format!("{name}: ")));
            found.into_iter().collect()
        }
    }
}

/// The answer's table as a file, written completely or not at all.
struct Table {
    writer: BufWriter<File>,
    path: std::path::PathBuf,
    /// The job, whose readings have the times of the rows.
    order: Arc<Order>,
    /// Whether each line gets the time of the row with which it begins.
    has_times: bool,
    rows: usize,
    is_finished: bool,
}

impl Table {
    fn create(path: &Path, order: Arc<Order>) -> Result<Self, CliError> {
        Ok(Self {
            writer: BufWriter::new(new_file(path)?),
            path: path.to_path_buf(),
            order,
            has_times: false,
            rows: 0,
            is_finished: false,
        })
    }

    fn failed(&self, error: &std::io::Error) -> CliError {
        CliError::io(self.path.display(), error)
    }

    /// Removes what a lost attempt has written.
    fn restart(&mut self) -> Result<(), CliError> {
        use std::io::Seek;
        self.rows = 0;
        let done = self
            .writer
            .rewind()
            .and_then(|()| self.writer.get_ref().set_len(0));
        done.map_err(|error| self.failed(&error))
    }

    /// Writes the line with this number. Launchers may cut lines that come fast, and a table with a gap is invalid.
    fn line(&mut self, at: usize, text: &str) -> Result<(), CliError> {
        if at != self.rows {
            return Err(self.incomplete(at + 1));
        }
        self.rows += 1;
        let time = self.time(at, text);
        let done = writeln!(self.writer, "{text}{time}");
        done.map_err(|error| self.failed(&error))
    }

    /// Returns the last field of a line: the time of its row, if lines are of rows that have times.
    fn time(&mut self, at: usize, text: &str) -> String {
        let times_s = &self.order.readings.times_s;
        let (first, _) = text.split_once(',').unwrap_or((text, ""));
        if at == 0 {
            self.has_times = first == "row" && !times_s.is_empty();
            return if self.has_times {
                ",time_s".to_owned()
            } else {
                String::new()
            };
        }
        if !self.has_times {
            return String::new();
        }
        let time_s = first.parse::<usize>().ok().and_then(|row| times_s.get(row));
        time_s.map_or(",".to_owned(), |time_s| format!(",{time_s}"))
    }

    /// Checks that all lines have arrived.
    fn check(&self, rows: usize) -> Result<(), CliError> {
        if rows == self.rows {
            Ok(())
        } else {
            Err(self.incomplete(rows))
        }
    }

    fn incomplete(&self, rows: usize) -> CliError {
        let wrong = format!("only {} of {rows} lines or more have come whole", self.rows);
        CliError::failure(self.path.display(), wrong, "run it again")
    }

    fn finish(&mut self) -> Result<(), CliError> {
        let done = self
            .writer
            .flush()
            .and_then(|()| self.writer.get_ref().sync_all());
        done.map_err(|error| self.failed(&error))?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if !self.is_finished {
            std::fs::remove_file(&self.path).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::temporary::Folder;
    use cluster::jobs::{Readings, Settings};

    fn written(head: &str, times_s: Vec<f64>) -> String {
        let readings = Readings {
            names: vec!["value".to_owned()],
            columns: vec![(0..8).map(f64::from).collect()],
            times_s,
            ..Readings::default()
        };
        let settings = Settings::Vibration { window: 4, step: 4 };
        let order = Order::new(settings, readings).expect("an order");
        let folder = Folder::create("table").expect("a folder");
        let path = folder.path().join("features.csv");
        let mut table = Table::create(&path, Arc::new(order)).expect("a file");
        table.line(0, head).expect("written");
        table.line(1, "4,0.5").expect("written");
        table.finish().expect("written");
        std::fs::read_to_string(&path).expect("a table")
    }

    #[test]
    fn a_line_of_a_row_ends_with_its_time() {
        let times_s = vec![10.0, 10.5, 11.0, 11.5, 12.25, 12.5, 13.0, 13.5];
        let table = written("row,value mean", times_s.clone());
        assert_eq!(table, "row,value mean,time_s\n4,0.5,12.25\n");
        // A cluster has no row, and some readings have no times.
        assert_eq!(
            written("cluster,windows", times_s),
            "cluster,windows\n4,0.5\n"
        );
        assert_eq!(
            written("row,value mean", Vec::new()),
            "row,value mean\n4,0.5\n"
        );
    }
}
