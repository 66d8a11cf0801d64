//! One rank from start to end, with any communicator. It reports its start, waits idle, and computes with the others.
//! Rank 0 checks the answer alone: before or after it is reported, or not at all. The rank regularly reports that it is
//! alive.
//!
//! The starting program reads the ranks' standard output (`lines.rs`). A rank that is silent for long is considered
//! dead, so a separate thread writes for it, and also reads the sensors.

use super::answer::{Answer, Sameness};
use super::communicator::{Alone, Communicator, Failure};
use super::counted::Counted;
use super::energy::{BoardEnergy, of_board};
use super::lines::{Line, ORDER_BYTES_AHEAD, Report};
use super::order::Order;
use super::watch::Watch;
use crate::model::fit_fraction;
use crate::power::{self, Phase, Root, Sampler, read_text};
use crate::results::Known;
use base::clock::{Clock, SystemClock};
use std::io::{BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Largest duration of a job in seconds, and some time more until its last rank has ended.
pub const SECONDS_MAX: u64 = 86_400 + 600;

/// Interval of the signs of life.
pub const BEAT: Duration = Duration::from_millis(200);

/// The board of a rank, as reported to the starting program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Board {
    /// Its host name.
    pub host: String,
    /// Boot id of its kernel: boards with the same id share its cores.
    pub boot: String,
    /// Number of cores that this rank may run on, together with others.
    pub cores: usize,
}

impl Board {
    /// Returns this machine.
    #[must_use]
    pub fn here() -> Self {
        let root = Root::new("/");
        let said = |path: &str| read_text(&root.path(path)).unwrap_or_default();
        Self {
            host: said("proc/sys/kernel/hostname"),
            boot: said("proc/sys/kernel/random/boot_id"),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        }
    }
}

/// When rank 0 compares the answer with its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Before the answer is reported.
    Always,
    /// After the answer is reported.
    After,
    /// Not at all.
    Never,
}

/// Checks and their names.
pub const CHECKS: [(&str, Check); 3] = [
    ("always", Check::Always),
    ("after", Check::After),
    ("never", Check::Never),
];

/// The options on a rank's command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The folder that stands for `/` in the search for sensors.
    pub root: PathBuf,
    /// Whether the power chip of a Raspberry Pi 5 is read, too.
    pub pmic: bool,
    /// Only sensors with this text in their name.
    pub sensor: Option<String>,
    /// Time without load before the job, for idle power.
    pub idle: Duration,
    /// Whether rank 0 writes the whole table of the answer.
    pub has_table: bool,
    /// When rank 0 checks the answer.
    pub check: Check,
    /// An unreachable rank ends itself after this time.
    pub seconds_max: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            root: PathBuf::from("/"),
            pmic: false,
            sensor: None,
            idle: Duration::ZERO,
            has_table: false,
            check: Check::Always,
            seconds_max: SECONDS_MAX,
        }
    }
}

impl Options {
    /// Returns the options as words of a command line, which [`Self::parse`] reads.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let mut words = vec![
            "--root".to_owned(),
            self.root.display().to_string(),
            "--idle-ms".to_owned(),
            self.idle.as_millis().to_string(),
            "--seconds-max".to_owned(),
            self.seconds_max.to_string(),
        ];
        if let Some(sensor) = &self.sensor {
            words.extend(["--sensor".to_owned(), sensor.clone()]);
        }
        if self.pmic {
            words.push("--pmic".to_owned());
        }
        if self.has_table {
            words.push("--table".to_owned());
        }
        let named = CHECKS.iter().find(|(_, check)| *check == self.check);
        if let Some((name, _)) = named.filter(|(_, check)| *check != Check::Always) {
            words.extend(["--check".to_owned(), (*name).to_owned()]);
        }
        words
    }

    /// Reads the words after `job`.
    ///
    /// # Errors
    /// An unknown word, or an option without its value.
    pub fn parse(words: &[&str]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word}: has no value"));
            match word {
                "--root" => options.root = PathBuf::from(value()?),
                "--sensor" => options.sensor = Some((*value()?).to_owned()),
                "--pmic" => options.pmic = true,
                "--table" => options.has_table = true,
                "--check" => {
                    let name = *value()?;
                    let known = CHECKS.iter().find(|(known, _)| *known == name);
                    options.check = known.ok_or("--check: must be always, after or never")?.1;
                }
                "--idle-ms" => {
                    let millis: Result<u32, _> = value()?.parse();
                    let millis =
                        millis.map_err(|_| "--idle-ms: is no number of milliseconds".to_owned())?;
                    options.idle = Duration::from_millis(u64::from(millis));
                }
                "--seconds-max" => {
                    let seconds = value()?.parse().ok();
                    let seconds = seconds.filter(|seconds| (1..=SECONDS_MAX).contains(seconds));
                    options.seconds_max =
                        seconds.ok_or(format!("--seconds-max: must be from 1 to {SECONDS_MAX}"))?;
                }
                other => return Err(format!("{other}: is no option of a job's rank")),
            }
        }
        Ok(options)
    }
}

/// Executes a rank's part on its board. Rank 0 reads the order from `input`; each rank writes its lines to `output`.
/// `deaf` is called, on another thread, when the output has no reader any more: then no program will end the rank,
/// either. Returns whether all went well.
pub fn run(
    communicator: &mut dyn Communicator,
    board: &Board,
    options: &Options,
    input: impl Read,
    output: impl Write + Send + 'static,
    deaf: impl Fn() + Send + 'static,
) -> bool {
    let rank = communicator.rank();
    let host = board.host.as_str();
    let speaker = Arc::new(Speaker(Mutex::new(Box::new(output))));
    let begin = Line::Begin {
        rank,
        ranks: communicator.size(),
        host: host.to_owned(),
        boot: board.boot.clone(),
        cores: board.cores,
    };
    let watch = Arc::new(Watch::new());
    let life = Life::start(rank, host, options, &speaker, &watch, deaf);
    let done = speaker
        .say(&begin)
        .and_then(|()| work(communicator, host, options, input, &speaker, &watch, &life));
    let last = match &done {
        Ok(rows) => Line::Done { rank, rows: *rows },
        Err(failure) => Line::Failed {
            rank,
            blames: failure.rank,
            why: failure.why.clone(),
        },
    };
    // No sign of life may follow the last line.
    drop(life);
    let said = speaker.say(&last);
    done.is_ok() && said.is_ok()
}

fn work(
    communicator: &mut dyn Communicator,
    host: &str,
    options: &Options,
    input: impl Read,
    speaker: &Speaker,
    watch: &Arc<Watch>,
    life: &Life,
) -> Result<usize, Failure> {
    let rank = communicator.rank();
    // Read the order first, so that this is not counted as idle time.
    let order = if rank == 0 {
        let mut input = BufReader::new(Telling {
            input,
            speaker,
            taken: 0,
            told: 0,
        });
        let order = Order::read(&mut input);
        Some(order.map_err(|error| Failure::of(0, format!("has no order: {error}"))))
    } else {
        None
    };
    std::thread::sleep(options.idle);
    meet(communicator)?;
    life.switch(Some(Phase::Load));
    let begun = Instant::now();
    let mut counted = Counted::new(communicator);
    // If the order is invalid, the others are told that there is nothing to do.
    let done = super::run(
        &mut counted,
        watch,
        order.as_ref().and_then(|order| order.as_ref().ok()),
    );
    let length_s = begun.elapsed().as_secs_f64();
    let traffic = counted.traffic().clone();
    let answer = match order {
        Some(Err(failure)) => return Err(failure),
        _ => done?,
    };
    meet(communicator)?;
    let seconds = begun.elapsed().as_secs_f64();
    let board = life.switch(None);
    let energy = Line::Energy {
        rank,
        host: host.to_owned(),
        board,
    };
    speaker.say(&energy)?;
    let communicating_s = traffic.time.as_secs_f64();
    let mine = [
        traffic.sent_bytes as f64,
        traffic.operations as f64,
        length_s - communicating_s,
        communicating_s,
    ];
    let figures = communicator.gather(&mine)?;
    let (Some(figures), Some(answer), Some(Ok(order))) = (figures, answer, order) else {
        return Ok(0);
    };
    let column = |at: usize| figures.iter().filter_map(move |one| one.get(at).copied());
    let most = |at: usize| column(at).fold(0.0, f64::max);
    let checked = match options.check {
        Check::Always => Some(alone(&order, watch, life)?),
        Check::After | Check::Never => None,
    };
    let exchange = traffic.exchange();
    let ranks = communicator.size();
    let computing_s = most(2);
    let report = |checked: Option<&AloneRun>| Report {
        kernel: order.settings.kernel().to_owned(),
        ranks,
        rows: order.readings.rows(),
        input_bytes: order.readings.bytes(),
        output_bytes: answer.bytes(),
        answer: answer.summary(&order.settings, &order.readings),
        compared: checked.map_or(Sameness::Unchecked, |alone| answer.compare(&alone.answer)),
        operations: column(1).sum::<f64>() as u64,
        moved_bytes: column(0).sum::<f64>() as u64,
        exchange_times: exchange.times,
        exchange_bytes: exchange.bytes,
        seconds,
        computing_s,
        communicating_s: most(3),
        alone_s: checked.map(|alone| alone.seconds),
        shared_fraction: checked.map(|alone| alone.shared_fraction),
        fitted_fraction: checked.and_then(|alone| {
            let points = [(1, alone.seconds), (ranks as u32, computing_s)];
            fit_fraction(&points).map(|fit| fit.parallel_fraction)
        }),
    };
    let mut said = Box::new(report(checked.as_ref()));
    speaker.say(&Line::Report {
        report: said.clone(),
    })?;
    let mut rows = 0;
    if options.has_table {
        if ranks > 1 {
            // The others write their last line meanwhile: launchers cut a line when another rank's line arrives in
            // between.
            std::thread::sleep(BEAT);
        }
        for text in answer.table(&order.readings.names) {
            speaker.say(&Line::Row { at: rows, text })?;
            rows += 1;
        }
    }
    if options.check == Check::After {
        speaker.say(&Line::Whole { rows })?;
        *said = report(Some(&alone(&order, watch, life)?));
        speaker.say(&Line::Report {
            report: said.clone(),
        })?;
    }
    if said.compared != Sameness::Different {
        Ok(rows)
    } else {
        let why = format!("finds another answer alone than {ranks} ranks have found");
        Err(Failure::of(0, why))
    }
}

/// The result of the run on one rank.
pub(super) struct AloneRun {
    pub(super) answer: Answer,
    pub(super) seconds: f64,
    pub(super) shared_fraction: f64,
}

fn alone(order: &Order, watch: &Arc<Watch>, life: &Life) -> Result<AloneRun, Failure> {
    watch.at(0, 1);
    life.checks.store(true, Ordering::Relaxed);
    run_alone(order, watch)
}

/// Executes a job alone, and measures it.
pub(super) fn run_alone(order: &Order, watch: &Watch) -> Result<AloneRun, Failure> {
    let before_s = watch.shared_s();
    let begun = Instant::now();
    let answer = super::run(&mut Alone, watch, Some(order))?;
    let seconds = begun.elapsed().as_secs_f64().max(1e-9);
    let shared_s = watch.shared_s() - before_s;
    let answer = answer.ok_or_else(|| Failure::of(0, "has found no answer"))?;
    Ok(AloneRun {
        answer,
        seconds,
        shared_fraction: (shared_s / seconds).clamp(0.0, 1.0),
    })
}

/// Waits for all ranks.
fn meet(communicator: &mut dyn Communicator) -> Result<(), Failure> {
    communicator.all_reduce_max(&mut [0.0])
}

/// The stream of a rank's lines. Each line is written as a whole.
struct Speaker(Mutex<Box<dyn Write + Send>>);

impl Speaker {
    fn say(&self, line: &Line) -> Result<(), Failure> {
        let failed = |why: String| Failure { rank: None, why };
        let mut text = line.text().map_err(|error| failed(error.to_string()))?;
        text.push('\n');
        let mut output = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let written = output
            .write_all(text.as_bytes())
            .and_then(|()| output.flush());
        written.map_err(|error| failed(format!("the lines of this rank have no reader: {error}")))
    }
}

/// Reads an order, and reports to its sender how much of it has arrived.
struct Telling<'a, R> {
    input: R,
    speaker: &'a Speaker,
    taken: u64,
    told: u64,
}

impl<R: Read> Read for Telling<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.taken += count as u64;
        if self.taken - self.told >= ORDER_BYTES_AHEAD / 4 {
            self.told = self.taken;
            // A sender that does not get the report does not continue, and ends this rank.
            self.speaker.say(&Line::Taken { bytes: self.taken }).ok();
        }
        Ok(count)
    }
}

/// A request to the thread that writes for a rank: another phase, or with `None` the energy of the board.
type Request = (Option<Phase>, SyncSender<Known<BoardEnergy>>);

/// The thread that writes for a rank; it ends when this is dropped.
struct Life {
    requests: Option<SyncSender<Request>>,
    thread: Option<std::thread::JoinHandle<()>>,
    checks: Arc<AtomicBool>,
}

impl Life {
    fn start(
        rank: usize,
        host: &str,
        options: &Options,
        speaker: &Arc<Speaker>,
        watch: &Arc<Watch>,
        deaf: impl Fn() + Send + 'static,
    ) -> Self {
        let (sender, receiver) = sync_channel(1);
        let checks = Arc::new(AtomicBool::new(false));
        let (speaker, watch) = (Arc::clone(speaker), Arc::clone(watch));
        let (theirs, options) = (Arc::clone(&checks), options.clone());
        let sensors = move || Sensors::new(&options);
        let live = move || {
            let mut sensors = sensors();
            loop {
                match receiver.recv_timeout(BEAT) {
                    Ok(request) => sensors.answer(request),
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) => {
                        sensors.sample();
                        let beat = Line::Beat {
                            rank,
                            done: watch.done(),
                            checks: theirs.load(Ordering::Relaxed),
                        };
                        if speaker.say(&beat).is_err() {
                            deaf();
                            serve(&receiver, &mut sensors);
                            break;
                        }
                    }
                }
            }
        };
        let builder = std::thread::Builder::new().name(format!("life of {rank} on {host}"));
        // Without the thread the rank works nevertheless, and is considered dead if that takes long.
        let thread = builder.spawn(live).ok();
        Self {
            requests: Some(sender),
            thread,
            checks,
        }
    }

    /// Changes the phase of the sensors; `None` ends the measurement and returns the energy of the board.
    fn switch(&self, phase: Option<Phase>) -> Known<BoardEnergy> {
        let (sender, receiver) = sync_channel(1);
        let sent = self
            .requests
            .as_ref()
            .map(|requests| requests.send((phase, sender)));
        match (sent, receiver.recv()) {
            (Some(Ok(())), Ok(board)) => board,
            _ => Known::Unavailable("the thread that reads the sensors is gone".to_owned()),
        }
    }
}

/// Continues to answer requests when the output has no reader.
fn serve(receiver: &Receiver<Request>, sensors: &mut Sensors) {
    while let Ok(request) = receiver.recv() {
        sensors.answer(request);
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// The sensors of a board, or why there are none.
struct Sensors {
    sampler: Result<Sampler, String>,
    clock: SystemClock,
}

impl Sensors {
    fn new(options: &Options) -> Self {
        let clock = SystemClock::new();
        let found = power::sensors(
            &Root::new(&options.root),
            options.pmic,
            options.sensor.as_deref(),
        );
        let sampler = found.and_then(|found| {
            let sampler = Sampler::new(found, Phase::Idle, clock.monotonic_ns());
            sampler.map_err(|error| error.to_string())
        });
        Self { sampler, clock }
    }

    fn sample(&mut self) {
        if let Ok(sampler) = &mut self.sampler {
            sampler.sample(self.clock.monotonic_ns());
        }
    }

    fn answer(&mut self, (phase, reply): Request) {
        let now_ns = self.clock.monotonic_ns();
        let over = || Err("the job is over".to_owned());
        let known = match (phase, &mut self.sampler) {
            (Some(phase), Ok(sampler)) => {
                sampler.switch(phase, now_ns);
                Err("the job goes on".to_owned())
            }
            (None, Ok(_)) => {
                std::mem::replace(&mut self.sampler, over()).and_then(|mut sampler| {
                    sampler.switch(Phase::Idle, now_ns);
                    of_board(&sampler.finish(now_ns))
                })
            }
            (_, Err(why)) => Err(why.clone()),
        };
        let known = match known {
            Ok(board) => Known::Value(board),
            Err(why) => Known::Unavailable(why),
        };
        // The requester may be gone.
        reply.send(known).ok();
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
