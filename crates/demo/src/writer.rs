//! The child process, which alone writes the store. It replays the trace into the database and runs the analysis task.
//! It reports every reading to the parent before it is put and after it is durable.

use super::analysis::{Analysis, Picture};
use super::building;
use super::protocol::{
    BATCH_MAX, FrameReader, FrameWriter, FromParent, LatencyOf, Offered, Ready, Start, Stats,
    TableRow,
};
use base::block::{CountedDevice, Counts, CountsNow};
use base::block::{FileDevice, FileDeviceOptions};
use base::clock::{Clock, SystemClock};
use base::histogram::Histogram;
use command::error::{CliError, describe};
use db::{Database, DbOptions, Durability, Monitor, SegmentStore, TaskHandle, TaskSpec, Ticket};
use flash::{FormatOptions, OpenOptions, Store};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Stdin};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use trace::replay::{self, Offer, Replayer, Step, TraceTime};
use trace::sink::{self, Objects};
use trace::{Sensors, Trace};

/// Size of the store.
const STORE_BYTES: u64 = 256 << 20;

/// Files of the store: log segments and checkpoints, with room.
const FILES_MAX: u64 = 1_024;

/// Period of the analysis task, by the machine's clock.
const TASK_PERIOD: Duration = Duration::from_millis(100);

/// Its deadline.
const TASK_DEADLINE: Duration = Duration::from_millis(50);

/// The longest sleep of the replay loop, which also forwards acknowledgements.
const NAP: Duration = Duration::from_millis(5);

/// Time between two reports of figures.
const STATS_PERIOD: Duration = Duration::from_millis(100);

/// Reports per histogram report: every second report also carries the histograms.
const LATENCY_EVERY: u64 = 2;

/// Timeout for the last readings to become durable.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(30);

type Device = CountedDevice<FileDevice>;
type Db = Database<Store<Device>>;

/// Runs until the trace has ended, the parent asks to stop, or the parent has gone.
pub(crate) fn run(image: &Path, orphan_dir: Option<&Path>) -> Result<u8, CliError> {
    let mut commands = FrameReader::new(io::stdin());
    let Some((start, again)) = read_start(&mut commands)? else {
        return Ok(command::error::STATUS_FAILURE);
    };
    let stop = watch_parent(commands, orphan_dir)?;
    // Do not use `Stdout`: it searches for line ends and would split frames into several writes.
    let stdout = io::stdout()
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| pipe_error(&error))?;
    let mut pipe = FrameWriter::new(File::from(stdout));
    let mut life = Life::open(image, &start)?;
    life.report_ready(&mut pipe)
        .map_err(|error| pipe_error(&error))?;
    let (task, reporter) = life.replay(&mut pipe, &start, &again, &stop)?;
    life.close(&mut pipe, task, reporter)
}

fn pipe_error(error: &io::Error) -> CliError {
    CliError::failure(
        "demo writer",
        format!("the parent does not listen ({})", describe(error)),
        "",
    )
}

fn part_error(part: &'static str) -> impl Fn(&dyn std::error::Error) -> CliError {
    move |error| {
        CliError::failure(
            part,
            error,
            "run the demo again; if it stays, try another --dir",
        )
    }
}

/// Reads the task from the parent; `None` if the parent has already gone.
fn read_start(commands: &mut FrameReader<Stdin>) -> Result<Option<(Start, Vec<u64>)>, CliError> {
    let mut start = None;
    let mut again = Vec::new();
    loop {
        match commands
            .next_from_parent()
            .map_err(|error| part_error("demo writer")(&error))?
        {
            Some(FromParent::Start(found)) => start = Some(found),
            Some(FromParent::Again(numbers)) => again.extend(numbers),
            Some(FromParent::Go) => return Ok(start.map(|start| (start, again))),
            Some(FromParent::Stop) | None => return Ok(None),
        }
    }
}

/// Listens to the parent for the rest of this life. `stop` becomes true when the parent asks for it. When the parent
/// has died, the readings are not needed any more: this process removes what the parent no longer can, and ends.
fn watch_parent(
    mut commands: FrameReader<Stdin>,
    orphan_dir: Option<&Path>,
) -> Result<Arc<AtomicBool>, CliError> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let orphan_dir = orphan_dir.map(Path::to_path_buf);
    let watch = move || {
        loop {
            match commands.next_from_parent() {
                Ok(Some(FromParent::Stop)) => flag.store(true, Ordering::Relaxed),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => {
                    if let Some(dir) = &orphan_dir {
                        std::fs::remove_dir_all(dir).ok();
                    }
                    std::process::exit(i32::from(command::error::STATUS_FAILURE));
                }
            }
        }
    };
    std::thread::Builder::new()
        .name("demo-parent".into())
        .spawn(watch)
        .map_err(|error| CliError::io("demo writer", &error))?;
    Ok(stop)
}

/// Returns the options of the demo's database. Segments and the log between two checkpoints are short, so that a run
/// rolls many of them and kills also occur during that.
pub(crate) fn db_options(sensors: &Sensors) -> DbOptions {
    DbOptions {
        objects_max: u32::try_from(sensors.len()).unwrap_or(u32::MAX).max(1),
        value_bytes_max: sink::VALUE_BYTES,
        segment_bytes_max: 256 << 10,
        checkpoint_bytes: 128 << 10,
        ..DbOptions::default()
    }
}

/// Returns the latest reading of every sensor that has one, according to the database.
pub(crate) fn table_rows<S: SegmentStore>(db: &Database<S>, sensors: &Sensors) -> Vec<TableRow> {
    let mut value = [0; sink::VALUE_BYTES];
    let row = |(sensor, name): (usize, &str)| {
        let now = db::Time::from_ms(0);
        let got = db.get_at(db.lookup(name)?, now, &mut value).ok()?;
        // A shorter value was not written by this demo; without a row its sensor counts as stale.
        (got.value_bytes == value.len()).then_some(TableRow {
            sensor: u16::try_from(sensor).ok()?,
            time_ms: got.time.ms(),
            value,
        })
    };
    let names = sensors.as_slice().iter().map(|sensor| sensor.name.as_str());
    names.enumerate().filter_map(row).collect()
}

/// A reading that is not yet durable.
struct Waiting {
    number: u64,
    ticket: Ticket,
    /// When the put was first tried.
    put_ns: u64,
}

/// An open store with its database.
struct Life {
    clock: Arc<SystemClock>,
    trace: Trace,
    db: Arc<Db>,
    objects: Arc<Objects>,
    counts: Arc<Counts>,
    counts_at_ready: CountsNow,
    ready: Ready,
    waiting: VecDeque<Waiting>,
    /// Numbers to acknowledge; the buffer is reused.
    done: Vec<u64>,
    /// Time from the first try of a put until its ticket is seen complete.
    put_durable_ns: Histogram,
}

impl Life {
    fn open(image: &Path, start: &Start) -> Result<Self, CliError> {
        let trace =
            trace::bundled(start.end_ms).map_err(|error| part_error("fire trace")(&error))?;
        let clock = Arc::new(SystemClock::new());
        let begun_ns = clock.monotonic_ns();
        let (store, counts, direct, formatted) = open_store(image)?;
        let options = db_options(trace.sensors());
        let database = part_error("database");
        let db = Database::open(store, Arc::clone(&clock) as Arc<dyn Clock>, options)
            .map_err(|e| database(&e))?;
        let objects = Objects::declare(&db, trace.sensors()).map_err(|error| database(&error))?;
        db.flush(FLUSH_TIMEOUT).map_err(|error| database(&error))?;
        let recovery = db.recovery();
        let counts_at_ready = counts.now();
        let ready = Ready {
            formatted,
            direct,
            recovery_ns: clock.monotonic_ns().saturating_sub(begun_ns),
            records_recovered: recovery.readings_replayed,
            records_damaged: recovery.damage.places_unreadable() + recovery.damage.readings_missing,
            setup_writes: counts_at_ready.writes,
            setup_flushes: counts_at_ready.flushes,
        };
        Ok(Self {
            clock,
            trace,
            db: Arc::new(db),
            objects: Arc::new(objects),
            counts,
            counts_at_ready,
            ready,
            waiting: VecDeque::new(),
            done: Vec::with_capacity(BATCH_MAX),
            put_durable_ns: Histogram::new(),
        })
    }

    fn report_ready(&self, pipe: &mut FrameWriter<File>) -> io::Result<()> {
        if !self.ready.formatted {
            pipe.table(&table_rows(&self.db, self.trace.sensors()))?;
        }
        pipe.ready(&self.ready)
    }

    /// Starts the analysis task.
    fn start_task(&self, time: TraceClock) -> Result<(TaskHandle, Reporter), CliError> {
        let picture = Arc::new(Mutex::new(Picture::default()));
        let running_since_ns = Arc::new(AtomicU64::new(0));
        let spec = TaskSpec::new(
            "analysis",
            TASK_PERIOD.as_nanos() as u64,
            TASK_DEADLINE.as_nanos() as u64,
        );
        let theirs = Arc::clone(&picture);
        let running = Arc::clone(&running_since_ns);
        let clock = Arc::clone(&self.clock);
        let objects = Arc::clone(&self.objects);
        let mut analysis = Analysis::new(building::assign(self.trace.sensors()));
        let mut values: Vec<Option<f64>> = vec![None; objects.ids().len()];
        let first_release_ns = self.clock.monotonic_ns() + TASK_PERIOD.as_nanos() as u64;
        let task = db::spawn_task(Arc::clone(&self.db), spec, move |context| {
            running.store(context.release_ns(), Ordering::Release);
            let now_ms = time.now_ms(&*clock);
            context.timed(|db| {
                let mut bytes = [0; sink::VALUE_BYTES];
                let now = db::Time::from_ms(now_ms as i64);
                for (value, id) in values.iter_mut().zip(objects.ids()) {
                    let Ok(got) = db.get_at(*id, now, &mut bytes) else {
                        continue;
                    };
                    *value = sink::value_of(&bytes[..got.value_bytes]);
                }
            });
            *lock(&theirs) = *analysis.step(now_ms, |sensor| {
                values.get(usize::from(sensor)).copied().flatten()
            });
            running.store(0, Ordering::Release);
        });
        let task = task.map_err(|error| part_error("analysis task")(&error))?;
        let reporter = Reporter {
            time,
            first_release_ns,
            picture,
            running_since_ns,
            reports: 0,
            last: (0, 0.0),
            tardiness: 0.0,
            fresh_sum: 0.0,
            fresh_samples: 0,
        };
        Ok((task, reporter))
    }

    /// Offers the due readings until the end, and forwards acknowledgements and figures.
    fn replay(
        &mut self,
        pipe: &mut FrameWriter<File>,
        start: &Start,
        again: &[u64],
        stop: &AtomicBool,
    ) -> Result<(TaskHandle, Reporter), CliError> {
        let lost = |error: io::Error| pipe_error(&error);
        let time = TraceTime::start(&*self.clock, start.origin_ms, start.speed)
            .map_err(|error| part_error("replay")(&error))?;
        let time = TraceClock {
            time,
            end_ms: start.end_ms,
        };
        let (task, mut reporter) = self.start_task(time)?;
        for numbers in again.chunks(BATCH_MAX) {
            let offers: Option<Vec<Offer>> = numbers
                .iter()
                .map(|n| replay::offer(&self.trace, *n))
                .collect();
            let offers = offers.ok_or_else(|| {
                CliError::failure(
                    "demo writer",
                    "was asked for a reading that the trace does not have",
                    "",
                )
            })?;
            self.offer(pipe, &offers)?;
            self.acknowledge(pipe)?;
        }
        let trace = std::mem::take(&mut self.trace);
        let mut replayer = Replayer::new(&trace, time.time, start.first, start.end_ms);
        let mut batch = Vec::with_capacity(BATCH_MAX);
        let mut report_ns = 0;
        let mut ended = false;
        loop {
            batch.clear();
            let mut nap = NAP;
            while !ended && batch.len() < BATCH_MAX {
                match replayer.step(&*self.clock) {
                    Step::Ready(offer) => batch.push(offer),
                    Step::Wait { ns } => {
                        nap = nap.min(Duration::from_nanos(ns));
                        break;
                    }
                    Step::End => ended = true,
                }
            }
            self.offer(pipe, &batch)?;
            self.acknowledge(pipe)?;
            check_runs(&task)?;
            let now_ns = self.clock.monotonic_ns();
            if now_ns >= report_ns {
                report_ns = now_ns + STATS_PERIOD.as_nanos() as u64;
                self.report(pipe, &task, &mut reporter).map_err(lost)?;
            }
            if stop.load(Ordering::Relaxed) || (ended && !start.hold) {
                break;
            }
            if batch.len() < BATCH_MAX {
                std::thread::sleep(nap);
            }
        }
        self.db
            .flush(FLUSH_TIMEOUT)
            .map_err(|error| part_error("database")(&error))?;
        self.acknowledge(pipe)?;
        Ok((task, reporter))
    }

    /// Announces the readings, then puts them: the parent must not learn of a reading first from the store.
    fn offer(&mut self, pipe: &mut FrameWriter<File>, offers: &[Offer]) -> Result<(), CliError> {
        if offers.is_empty() {
            return Ok(());
        }
        let announced: Vec<Offered> = offers
            .iter()
            .map(|offer| Offered {
                number: offer.number,
                time_ms: offer.time_ms,
                sensor: offer.sensor,
                value: sink::value_bytes(offer.value),
            })
            .collect();
        pipe.offered(&announced)
            .map_err(|error| pipe_error(&error))?;
        for offer in offers {
            let put_ns = self.clock.monotonic_ns();
            let ticket = loop {
                match self.objects.put(&self.db, offer, Durability::Batched) {
                    Ok(ticket) => break ticket,
                    // The store cannot keep up at the moment: a sensor with QoS 1 would wait, too.
                    Err(trace::Error::Database(db::Error::Busy)) => {
                        self.acknowledge(pipe)?;
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Err(error) => return Err(part_error("database")(&error)),
                }
            };
            self.waiting.push_back(Waiting {
                number: offer.number,
                ticket,
                put_ns,
            });
        }
        Ok(())
    }

    /// Reports to the parent which readings are now on flash. Tickets complete in the order of their puts.
    fn acknowledge(&mut self, pipe: &mut FrameWriter<File>) -> Result<(), CliError> {
        loop {
            self.done.clear();
            while let Some(first) = self.waiting.front() {
                let durable = first
                    .ticket
                    .poll()
                    .map_err(|error| part_error("database")(&error))?;
                if !durable || self.done.len() == BATCH_MAX {
                    break;
                }
                self.put_durable_ns
                    .record(self.clock.monotonic_ns().saturating_sub(first.put_ns));
                self.done.push(first.number);
                self.waiting.pop_front();
            }
            if self.done.is_empty() {
                return Ok(());
            }
            pipe.acknowledged(&self.done)
                .map_err(|error| pipe_error(&error))?;
        }
    }

    fn report(
        &self,
        pipe: &mut FrameWriter<File>,
        task: &TaskHandle,
        reporter: &mut Reporter,
    ) -> io::Result<()> {
        let monitor = task.monitor();
        let stats = self.stats(reporter, &monitor, self.clock.monotonic_ns());
        pipe.stats(&stats)?;
        if reporter.reports.is_multiple_of(LATENCY_EVERY) {
            self.send_latencies(pipe, &monitor)?;
        }
        reporter.reports += 1;
        Ok(())
    }

    /// Returns the current figures; releases are counted until `until_ns`.
    fn stats(&self, reporter: &mut Reporter, monitor: &Monitor, until_ns: u64) -> Stats {
        let now_ns = self.clock.monotonic_ns();
        let trace_ms = reporter.time.now_ms(&*self.clock);
        let now = db::Time::from_ms(trace_ms as i64);
        let count = self.db.fresh_count(now);
        let fresh = f64::from(count.fresh) / f64::from(count.temporal.max(1));
        reporter.fresh_sum += fresh;
        reporter.fresh_samples += 1;
        let (instances, tardiness_sum) = reporter.last;
        let since = monitor.instances.saturating_sub(instances);
        reporter.last = (monitor.instances, monitor.tardiness_sum);
        if since > 0 {
            reporter.tardiness = (monitor.tardiness_sum - tardiness_sum) / since as f64;
        }
        let running_since_ns = reporter.running_since_ns.load(Ordering::Acquire);
        let mut tardiness_last = reporter.tardiness;
        if since == 0 && running_since_ns > 0 {
            let age_ns = now_ns.saturating_sub(running_since_ns);
            tardiness_last = tardiness_last.max(age_ns as f64 / TASK_DEADLINE.as_nanos() as f64);
        }
        // A release whose deadline has not passed need not have an instance yet.
        let counted_ns = until_ns.saturating_sub(TASK_DEADLINE.as_nanos() as u64);
        let running = (1..counted_ns).contains(&running_since_ns);
        let now = self.counts.now();
        Stats {
            trace_ms,
            lag_ns: self
                .waiting
                .front()
                .map_or(0, |first| now_ns.saturating_sub(first.put_ns)),
            instances: monitor.instances,
            deadline_misses: monitor.deadline_misses,
            releases_missed: releases(reporter.first_release_ns, counted_ns)
                .saturating_sub(monitor.instances + u64::from(running)),
            tardiness_sum: monitor.tardiness_sum,
            tardiness_last,
            response_ns_max: monitor.response_ns.max(),
            fresh_sum: reporter.fresh_sum,
            fresh_samples: reporter.fresh_samples,
            fresh_last: fresh,
            device_writes: now.writes - self.counts_at_ready.writes,
            device_blocks_written: now.blocks_written - self.counts_at_ready.blocks_written,
            device_flushes: now.flushes - self.counts_at_ready.flushes,
            picture: *lock(&reporter.picture),
        }
    }

    fn send_latencies(&self, pipe: &mut FrameWriter<File>, monitor: &Monitor) -> io::Result<()> {
        pipe.latency(LatencyOf::Append, &self.db.stats().append_ns)?;
        pipe.latency(LatencyOf::PutDurable, &self.put_durable_ns)?;
        pipe.latency(LatencyOf::Response, &monitor.response_ns)
    }

    /// Ends the task, closes database and store, and sends a last report, because closing writes a checkpoint.
    fn close(
        self,
        pipe: &mut FrameWriter<File>,
        task: TaskHandle,
        mut reporter: Reporter,
    ) -> Result<u8, CliError> {
        let lost = |error: io::Error| pipe_error(&error);
        // The task may have died between two checks, or in the instance that `stop` waited for.
        let until_ns = self.clock.monotonic_ns();
        check_runs(&task)?;
        let monitor = task.stop();
        if reporter.running_since_ns.load(Ordering::Acquire) > 0 {
            return Err(task_died());
        }
        let mut stats = self.stats(&mut reporter, &monitor, until_ns);
        let store = self
            .db
            .close()
            .map_err(|error| part_error("database")(&error))?;
        store
            .close()
            .map_err(|error| part_error("flash store")(&error))?;
        let now = self.counts.now();
        stats.device_writes = now.writes - self.counts_at_ready.writes;
        stats.device_blocks_written = now.blocks_written - self.counts_at_ready.blocks_written;
        stats.device_flushes = now.flushes - self.counts_at_ready.flushes;
        pipe.stats(&stats).map_err(lost)?;
        self.send_latencies(pipe, &monitor).map_err(lost)?;
        pipe.finished().map_err(lost)?;
        Ok(0)
    }
}

/// Returns the number of releases of the analysis task from the first one until `until_ns`.
fn releases(first_ns: u64, until_ns: u64) -> u64 {
    until_ns
        .checked_sub(first_ns)
        .map_or(0, |ns| ns / TASK_PERIOD.as_nanos() as u64 + 1)
}

fn task_died() -> CliError {
    CliError::failure(
        "analysis task",
        "has ended, so the building is no longer watched",
        "this is a defect; please report it",
    )
}

/// The clock of the trace. It stops at the end of what this life may offer. While the writer waits there to be killed,
/// no sensor reports, and readings must not age.
#[derive(Clone, Copy)]
struct TraceClock {
    time: TraceTime,
    end_ms: u64,
}

impl TraceClock {
    fn now_ms(&self, clock: &dyn Clock) -> u64 {
        self.time.now_ms(clock).min(self.end_ms)
    }
}

/// The data of the reports besides the task's monitor.
struct Reporter {
    time: TraceClock,
    /// The first release that must be followed by an instance: one period after the start. The release at the start may
    /// pass before the task's thread runs.
    first_release_ns: u64,
    /// The result of the last instance.
    picture: Arc<Mutex<Picture>>,
    /// Release time of the running instance; 0 between two instances.
    running_since_ns: Arc<AtomicU64>,
    reports: u64,
    /// Instances and sum of tardiness at the last report.
    last: (u64, f64),
    /// Mean tardiness of the most recently ended instances.
    tardiness: f64,
    fresh_sum: f64,
    fresh_samples: u64,
}

/// Checks that the task is alive. A dead task is never late, so its figures would look better without this check.
fn check_runs(task: &TaskHandle) -> Result<(), CliError> {
    if task.is_running() {
        Ok(())
    } else {
        Err(task_died())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Opens the store in the image, or formats one if there is none.
fn open_store(image: &Path) -> Result<(Store<Device>, Arc<Counts>, bool, bool), CliError> {
    let failed = part_error("flash store");
    let is_new = !image.exists();
    let options = FileDeviceOptions {
        create_bytes: Some(STORE_BYTES),
        read_only: false,
        direct: true,
        exclusive: true,
    };
    let mut device = FileDevice::open(image, &options).map_err(|error| failed(&error))?;
    if is_new {
        // Preallocate the blocks: the figures must show the store, not block allocation of the file system below.
        device
            .write_zeros(&mut |_| {})
            .map_err(|error| failed(&error))?;
    }
    let direct = device.is_direct();
    let (device, counts) = CountedDevice::new(device);
    let store = if is_new {
        let options = FormatOptions {
            files_max: FILES_MAX,
            name_bytes_max: 64,
            uuid: command::random::bytes()?,
            hash_key: command::random::bytes()?,
        };
        Store::format(device, &options)
    } else {
        Store::open(device, &OpenOptions::default())
    };
    Ok((
        store.map_err(|error| failed(&error))?,
        counts,
        direct,
        is_new,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_counted_from_the_first_to_the_end() {
        let period_ns = TASK_PERIOD.as_nanos() as u64;
        assert_eq!(releases(500, 499), 0);
        assert_eq!(releases(500, 500), 1);
        assert_eq!(releases(500, 499 + period_ns), 1);
        assert_eq!(releases(500, 500 + 30 * period_ns), 31);
    }
}
