//! A run from the first life of the writer to the comparison of the reopened store with the record.

use super::compare::{self, Reopened};
use super::directory::StoreDirectory;
use super::options::RunOptions;
use super::progress::Progress;
use super::protocol::{FromWriter, LatencyOf, Ready, Start, Stats, TableRow};
use super::recorder::{Record, RecordError, TablesFound};
use super::state::{Phase, Rate, Snapshot, Sums, remember};
use super::summary::{Figures, Totals};
use super::supervisor::{Event, KillAt, Life, PlannedLife, plan};
use base::histogram::Histogram;
use command::error::CliError;
use command::signals;
use std::time::{Duration, Instant};

/// Time between two frames of the live view.
const FRAME: Duration = Duration::from_millis(100);

/// Timeout for a writer that was asked to finish.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a kill waits for a reading that is not yet durable: two commits, between which readings arrive.
const OPEN_TIMEOUT: Duration = Duration::from_millis(500);

/// Timeout for a silent writer; it reports ten times per second.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);

/// How a life ended.
enum Ended {
    Finished,
    Killed,
}

/// Messages of the current writer.
#[derive(Default)]
struct Present {
    /// The recovered table.
    table: Vec<TableRow>,
    ready: Option<Ready>,
    stats: Option<Box<Stats>>,
    latency: [Option<Histogram>; LatencyOf::ALL.len()],
    finished: bool,
}

/// The parent's side of a run.
pub(crate) struct Run<'p> {
    directory: &'p StoreDirectory,
    options: RunOptions,
    begun: Instant,
    record: Record,
    rate: Rate,
    lag_history: Vec<u64>,
    totals: Totals,
    present: Present,
    /// The last report of an ended life, shown during the next start.
    last_stats: Option<Box<Stats>>,
    phase: Phase,
    direct: bool,
    kills: u64,
    kills_planned: u64,
    kills_with_open_tickets: u64,
    kills_during_recovery: u64,
    kills_after_acknowledgement: u64,
    /// Results of the tables that the writers recovered.
    tables: TablesFound,
    killed_at: Option<Instant>,
    downtime: Duration,
    shown_at: Option<Instant>,
    stop_wanted: bool,
}

impl<'p> Run<'p> {
    pub(crate) fn new(directory: &'p StoreDirectory, options: &RunOptions) -> Self {
        let now = Instant::now();
        Self {
            directory,
            options: *options,
            begun: now,
            record: Record::default(),
            rate: Rate::default(),
            lag_history: Vec::new(),
            totals: Totals::default(),
            present: Present::default(),
            last_stats: None,
            phase: Phase::Starting,
            direct: false,
            kills: 0,
            kills_planned: 0,
            kills_with_open_tickets: 0,
            kills_during_recovery: 0,
            kills_after_acknowledgement: 0,
            tables: TablesFound::default(),
            killed_at: None,
            downtime: Duration::ZERO,
            shown_at: None,
            stop_wanted: false,
        }
    }

    /// Runs all lives, then compares.
    pub(crate) fn run(mut self, progress: &mut Progress) -> Result<Figures, CliError> {
        let lives = plan(self.options.end_ms, self.options.speed, self.options.seed);
        self.kills_planned = lives.iter().filter(|life| life.kill.is_some()).count() as u64;
        for planned in &lives {
            if self.stop_wanted {
                break;
            }
            self.live(planned, progress)?;
        }
        if self.stop_wanted && self.killed_at.is_some() {
            // Stopped between a kill and the next start: recover once more, so that the compared store has been
            // reopened by its owner.
            self.live(
                &PlannedLife {
                    end_ms: self.record.time_ms_last(),
                    kill: None,
                },
                progress,
            )?;
        }
        let seconds = self.begun.elapsed().as_secs_f64();
        self.phase = Phase::Comparing;
        self.show(progress, true)?;
        let begun = Instant::now();
        let mut reopened = compare::reopen(&self.directory.image(), &self.record)?;
        reopened.comparison.tables.add(&self.tables);
        let reopen_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(self.figures(seconds, &reopened, reopen_ns))
    }

    /// Runs one life of the writer.
    fn live(&mut self, planned: &PlannedLife, progress: &mut Progress) -> Result<(), CliError> {
        self.record.begin_life();
        let open = self.record.open();
        let start = Start {
            end_ms: planned.end_ms,
            hold: planned.kill.is_some(),
            speed: self.options.speed,
            first: self.record.offered_count(),
            origin_ms: self.record.time_ms_last(),
        };
        let mut life = Life::begin(
            &self.directory.image(),
            self.directory.temporary_dir(),
            &start,
            &open,
        )?;
        let ended = self.watch(&mut life, planned.kill, progress);
        let killed = matches!(ended, Ok(Ended::Killed));
        if ended.is_err() {
            life.kill();
        }
        let (status, complaint) = life.end();
        self.end_of_life();
        ended?;
        let finished = std::mem::take(&mut self.present).finished;
        if killed || (finished && status.is_some_and(|status| status.success())) {
            return Ok(());
        }
        // The writer's own message already names the object and the remedy.
        if let Some(said) = complaint
            .lines()
            .last()
            .and_then(|line| line.strip_prefix("keel: "))
        {
            return Err(CliError::failure("demo writer", said, ""));
        }
        let how = status.map_or("vanished".to_owned(), |status| {
            format!("ended unexpectedly ({status})")
        });
        Err(CliError::failure("demo writer", how, "run the demo again"))
    }

    /// Receives the messages of a life until it ends; kills it when its time has come.
    fn watch(
        &mut self,
        life: &mut Life,
        kill: Option<KillAt>,
        progress: &mut Progress,
    ) -> Result<Ended, CliError> {
        let mut kill_at = match kill {
            Some(KillAt::Start { delay }) => Some(life.begun + delay),
            _ => None,
        };
        // The time of the acknowledgement that the kill waited for, plus its delay.
        let mut struck_at: Option<Instant> = None;
        let mut stopped_at: Option<Instant> = None;
        let mut heard_at = Instant::now();
        loop {
            match life.next_event(pause(struck_at.or(kill_at))) {
                Some(Event::Message(message)) => {
                    heard_at = Instant::now();
                    let acknowledged = matches!(message, FromWriter::Acknowledged(_));
                    self.hear(message)?;
                    if let Some(KillAt::Trace {
                        acknowledged: Some(after),
                        ..
                    }) = kill
                        && acknowledged
                        && struck_at.is_none()
                        && kill_at.is_some_and(|at| heard_at >= at)
                        && self.record.open_in_life_count() > 0
                    {
                        struck_at = Some(heard_at + after);
                    }
                }
                Some(Event::Ended(Ok(()))) => return Ok(Ended::Finished),
                Some(Event::Ended(Err(error))) => return Err(nonsense(&error)),
                None => {}
            }
            let now = Instant::now();
            if let Some(KillAt::Trace { time_ms, delay, .. }) = kill
                && kill_at.is_none()
                && self.record.offered_count() > 0
                && self.record.time_ms_last() >= time_ms
            {
                kill_at = Some(now + delay);
            }
            let due = match kill {
                None => false,
                Some(KillAt::Start { .. }) => kill_at.is_some_and(|at| now >= at),
                Some(KillAt::Trace {
                    acknowledged,
                    open_by_ms,
                    ..
                }) => kill_at.is_some_and(|at| {
                    let open = self.record.open_in_life_count() > 0;
                    let last_chance = open && self.record.time_ms_last() >= open_by_ms;
                    let chosen = match acknowledged {
                        None => open && now >= at,
                        Some(_) => struck_at.is_some_and(|at| now >= at),
                    };
                    chosen || (last_chance && struck_at.is_none()) || now >= at + OPEN_TIMEOUT
                }),
            };
            if due && stopped_at.is_none() {
                self.kills_after_acknowledgement += u64::from(struck_at.is_some());
                return self.kill(life);
            }
            self.show(progress, false)?;
            if self.stop_wanted && stopped_at.is_none() {
                stopped_at = Some(now);
                self.phase = Phase::Finishing;
                life.stop();
            }
            if stopped_at.is_some_and(|at| now >= at + STOP_TIMEOUT) || signals::stop_insisted() {
                return Err(CliError::failure(
                    "demo",
                    "interrupted before it could finish",
                    "run it again",
                ));
            }
            if now.duration_since(heard_at) > SILENCE_TIMEOUT {
                return Err(CliError::failure(
                    "demo writer",
                    "says nothing any more",
                    "check the disk, then run it again",
                ));
            }
        }
    }

    /// Sends SIGKILL, then reads all that the writer had sent before it died.
    fn kill(&mut self, life: &mut Life) -> Result<Ended, CliError> {
        let recovering = self.present.ready.is_none();
        let knew_of_open = self.record.open_in_life_count() > 0;
        life.kill();
        let now = Instant::now();
        // Killing a start continues the downtime that began with the previous kill.
        self.killed_at.get_or_insert(now);
        loop {
            match life.next_event(SILENCE_TIMEOUT) {
                Some(Event::Message(message)) => self.hear(message)?,
                Some(Event::Ended(Ok(()))) => break,
                Some(Event::Ended(Err(error))) => return Err(nonsense(&error)),
                None => {
                    return Err(CliError::failure(
                        "demo writer",
                        "survived SIGKILL",
                        "check the disk",
                    ));
                }
            }
        }
        self.kills += 1;
        if recovering {
            self.kills_during_recovery += 1;
        } else if knew_of_open && self.record.open_in_life_count() > 0 {
            // Open when the kill was decided, and still open after all messages were read.
            self.kills_with_open_tickets += 1;
        }
        self.phase = Phase::Recovering;
        Ok(Ended::Killed)
    }

    fn hear(&mut self, message: FromWriter) -> Result<(), CliError> {
        let refused = |error: RecordError| nonsense(&error);
        match message {
            FromWriter::Table(rows) => self.present.table.extend(rows),
            FromWriter::Ready(ready) => {
                if !ready.formatted {
                    let rows = std::mem::take(&mut self.present.table);
                    self.tables.add(&self.record.compare_table(&rows));
                }
                self.direct = ready.direct;
                self.totals.setup_writes += ready.setup_writes;
                self.totals.setup_flushes += ready.setup_flushes;
                self.totals.records_damaged += ready.records_damaged;
                if !ready.formatted {
                    self.totals.recoveries += 1;
                    self.totals.recovery_ns_sum += ready.recovery_ns;
                    self.totals.recovery_ns_max =
                        self.totals.recovery_ns_max.max(ready.recovery_ns);
                }
                if let Some(killed_at) = self.killed_at.take() {
                    self.downtime += killed_at.elapsed();
                }
                self.present.ready = Some(ready);
                if self.phase != Phase::Finishing {
                    self.phase = Phase::Running;
                }
            }
            FromWriter::Offered(batch) => {
                batch
                    .iter()
                    .try_for_each(|reading| self.record.offered(reading))
                    .map_err(refused)?;
            }
            FromWriter::Acknowledged(numbers) => {
                numbers
                    .iter()
                    .try_for_each(|number| self.record.acknowledged(*number))
                    .map_err(refused)?;
            }
            FromWriter::Stats(stats) => {
                remember(&mut self.lag_history, stats.lag_ns);
                self.present.stats = Some(stats);
            }
            FromWriter::Latency(of, histogram) => {
                self.present.latency[of as usize] = Some(histogram)
            }
            FromWriter::Finished => self.present.finished = true,
        }
        Ok(())
    }

    /// Adds the last figures of the current writer to the totals.
    fn end_of_life(&mut self) {
        if let Some(stats) = self.present.stats.take() {
            self.totals.add(&stats);
            self.last_stats = Some(stats);
        }
        for (total, present) in self
            .totals
            .latency
            .iter_mut()
            .zip(&mut self.present.latency)
        {
            if let Some(histogram) = present.take() {
                total.merge(&histogram);
            }
        }
    }

    /// Shows the snapshot if it is time for the next frame; notes whether a stop is wanted.
    fn show(&mut self, progress: &mut Progress, now_please: bool) -> Result<(), CliError> {
        self.stop_wanted |= signals::stop_requested();
        let now = Instant::now();
        if !now_please
            && self
                .shown_at
                .is_some_and(|at| now.duration_since(at) < FRAME)
        {
            return Ok(());
        }
        self.shown_at = Some(now);
        self.rate.note(now, self.record.acknowledged_count());
        let present = self.present.stats.as_deref();
        let snapshot = Snapshot {
            phase: self.phase,
            end_ms: self.options.end_ms,
            speed: self.options.speed,
            elapsed_s: self.begun.elapsed().as_secs_f64(),
            acknowledged: self.record.acknowledged_count(),
            open: self.record.open_count(),
            rate_per_s: self.rate.per_s(),
            lag_history: &self.lag_history,
            stats: present.or(self.last_stats.as_deref()),
            figures: Sums::of(&self.totals, present),
            kills: self.kills,
            kills_planned: self.kills_planned,
            direct: self.direct,
        };
        self.stop_wanted |= progress.show(&snapshot)?;
        Ok(())
    }

    fn figures(self, seconds: f64, reopened: &Reopened, reopen_ns: u64) -> Figures {
        let offered = self.record.offered_count();
        let trace_ms = if self.stop_wanted {
            self.record.time_ms_last()
        } else {
            self.options.end_ms
        };
        Figures {
            offered,
            acknowledged: self.record.acknowledged_count(),
            offered_again: self.record.again_count(),
            comparison: reopened.comparison,
            totals: self.totals,
            seconds,
            trace_seconds: trace_ms as f64 / 1e3,
            speed: self.options.speed,
            passes: trace_ms / BUNDLED_TRACE_MS + 1,
            stopped_early: self.stop_wanted,
            kill_asked: self.options.seed.is_some(),
            kills: self.kills,
            kills_with_open_tickets: self.kills_with_open_tickets,
            kills_during_recovery: self.kills_during_recovery,
            kills_after_acknowledgement: self.kills_after_acknowledgement,
            seed: self.options.seed,
            downtime_s: self.downtime.as_secs_f64(),
            log_damaged: reopened.log_damaged,
            log_readings_missing: reopened.log_readings_missing,
            log_segments: reopened.log_segments,
            reopen_ns,
            direct: self.direct,
            kept_image: None,
        }
    }
}

/// Returns how long to wait for the next event.
fn pause(kill_at: Option<Instant>) -> Duration {
    let now = Instant::now();
    let until_kill = kill_at.map_or(FRAME, |at| at.saturating_duration_since(now));
    until_kill.clamp(Duration::from_micros(200), FRAME / 2)
}

/// Duration of one pass of the bundled trace, in ms; longer runs repeat it.
const BUNDLED_TRACE_MS: u64 = 597_996;

/// Returns the error of a writer that broke the protocol: a defect, not a problem of the device.
fn nonsense(error: &dyn std::error::Error) -> CliError {
    CliError::failure(
        "demo writer",
        format!("makes no sense: {error}"),
        "this is a defect; please report it",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_pass_is_that_of_the_bundled_trace() {
        let trace = trace::bundled(u64::MAX).unwrap();
        assert_eq!(trace::replay::pass_ms(&trace), BUNDLED_TRACE_MS);
    }
}
