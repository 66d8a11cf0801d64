//! The real plant: this machine. A periodic task reads a store and computes on its own processor. Sensor updates come
//! from a trace. Best-effort transactions run on the other processors, on the same store.
//!
//! All threads are FIFO, as in the paper: the task has the highest priority of the three, then the updates, then the
//! best-effort transactions. Updates precede those because they are short and hold locks that the task may wait for.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use actuator::{AnyActuator, Cpufreq, Deadline, Lock, NoActuator, RtGroup, SystemFiles};
use base::sim::Random;
use clap::ValueEnum;
use control::figures::Figures;
use db::Monitor;
use db::qos::admission::Quality;

use super::line::line_ns;
use super::scenario::{DEADLINE_MS, Facts, Load, Mix, Observed, PERIOD_MS, Plant, SWEPT_MIN};
use super::updates::Updates;
use super::work::{Costs, OBJECTS, TOGETHER, Transaction, VALUE_BYTES, compute};
use crate::engine::kind::Kind;
use crate::engine::{Engine, Key, OpenError, Size, fill};
use crate::realtime::{cores, fifo, measured, pin, pin_to, stay_awake, thread_id};
use crate::report::median;
use crate::scratch::check_interrupted;

/// One sampling period: ten instances.
const SAMPLING: Duration = Duration::from_secs(1);

/// Time of an instance and of a best-effort transaction, alone at full speed. With updates, the task then reaches its
/// deadline near half the speed, so both inputs have room.
const TASK_NOMINAL: Duration = Duration::from_millis(20);
const BEST_EFFORT_NOMINAL: Duration = Duration::from_millis(30);

/// Range of the pause between two best-effort transactions, in ms.
const GAP_MS: (u64, u64) = (50, 150);

/// Interval between batches of updates.
const TICK: Duration = Duration::from_millis(1);

/// Maximum backlog of late updates that are still executed, in seconds of updates.
const BACKLOG_SECONDS: f64 = 0.1;

/// Maximum rate of updates that go to a log on a disk, per second.
const LOGGED_MAX: f64 = 150_000.0;

/// Priorities of the policy FIFO.
const SAMPLER_PRIORITY: i32 = 60;
const LINE_PRIORITY: i32 = 55;
const TASK_PRIORITY: i32 = 50;
const UPDATES_PRIORITY: i32 = 45;
const BEST_EFFORT_PRIORITY: i32 = 40;

/// Maximum number of consecutive sampling periods that are repeated until the processors have the required distance.
const ELSEWHERE_MAX: u32 = 1_800;

/// The lowest speed that is set.
const SPEED_MIN: f64 = 0.2;

/// The engines of the experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineKind {
    /// Ours.
    Native,
    /// Berkeley DB, on which the paper's database is built.
    Bdb,
}

impl EngineKind {
    fn kind(self) -> Kind {
        match self {
            Self::Native => Kind::Keel,
            Self::Bdb => Kind::Berkeley,
        }
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Native => "Evenkeel",
            Self::Bdb => "Berkeley DB 5.3",
        }
    }
}

/// What sets the speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ActuatorKind {
    /// The first of the following that this machine has.
    Auto,
    /// Frequency.
    Cpufreq,
    /// A real-time share of a control group.
    Rtgroup,
    /// SCHED_DEADLINE; the task is then kept to no processor.
    Deadline,
    /// Nothing: full speed.
    None,
}

/// The setup of a real plant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RealOptions {
    pub(crate) engine: EngineKind,
    pub(crate) actuator: ActuatorKind,
    /// Share of a processor that the updates take alone, if all are admitted.
    pub(crate) update_share: f64,
    /// Whether updates may also run on the task's processor while the task does not run.
    pub(crate) are_updates_free: bool,
    /// Whether idle processors are kept from halting.
    pub(crate) is_awake: bool,
    /// Minimum time of a cache line from one processor to the next for a sampling period to count, in ns.
    pub(crate) line_ns_min: f64,
    /// The costs and the rate of updates of the run that the model is from; if present, this run makes the same
    /// transactions.
    pub(crate) before: Option<(Costs, f64)>,
}

/// The data that the threads share.
struct Shared {
    engine: Box<dyn Engine>,
    /// The store of the best-effort transactions in the control arm.
    other: Box<dyn Engine>,
    is_separate: AtomicBool,
    updates: Updates,
    costs: Costs,
    monitor: Mutex<Monitor>,
    /// The mix as an index into `Mix::ALL`, and the number of processors that run it.
    mix: AtomicU32,
    cores: AtomicU32,
    stop: AtomicBool,
    /// Updates that the store refused or that were too late to be executed.
    lost: AtomicU64,
    begin: Instant,
    /// The first error of a thread.
    failure: Mutex<Option<String>>,
}

impl Shared {
    fn fail(&self, what: String) {
        lock(&self.failure).get_or_insert(what);
        self.stop.store(true, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn now_us(&self) -> i64 {
        self.begin.elapsed().as_micros() as i64
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned mutex is still consistent: it holds plain figures, so a panic cannot leave it half-changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The plant.
pub(crate) struct RealPlant {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    actuator: AnyActuator,
    facts: Facts,
    next: Instant,
    speed: Option<f64>,
    notes: Vec<String>,
    /// The task's processor and the next one, and the time of a cache line between them in each sample so far.
    neighbours: [usize; 2],
    lines_ns: Vec<f64>,
    /// The time of a cache line at the end of the last period, and the number of periods that do not count because of
    /// it.
    last_line_ns: Option<f64>,
    line_ns_min: f64,
    elsewhere: u32,
}

impl RealPlant {
    /// Fills a store and starts all threads.
    ///
    /// # Errors
    /// One line that says what this machine lacks.
    pub(crate) fn start(folder: &Path, options: &RealOptions) -> Result<Self, String> {
        let mine = cores();
        if mine.len() < 2 {
            return Err("the real plant takes two processors; use --plant sim".to_owned());
        }
        if let Some(lacking) = crate::realtime::lacking() {
            return Err(format!(
                "the real plant needs real-time threads: {lacking}, or use --plant sim"
            ));
        }
        let engine = open(options.engine.kind(), &folder.join("shared"))?;
        let other = open(options.engine.kind(), &folder.join("separate"))?;
        let neighbours = [mine[0], mine[1]];
        let (costs, per_second) = match options.before {
            Some((costs, per_second)) => (costs, per_second),
            None => {
                let costs = in_place(neighbours, options.line_ns_min, || {
                    measured(mine[0], || Costs::measure(&mut *engine.session()?))
                })?;
                (costs, options.update_share * 1e6 / costs.put_us)
            }
        };
        let most = match options.engine {
            EngineKind::Native => LOGGED_MAX,
            EngineKind::Bdb => f64::INFINITY,
        };
        let updates = Updates::new(per_second.min(most))?;
        let mut notes = vec![format!(
            "{} ({}); alone, a get takes {:.2} µs and a put {:.2} µs; {:.0} updates in a second, the trace {:.0} times \
             as fast, which alone take {:.1} % of a processor",
            options.engine.words(),
            engine.setup(),
            costs.get_us,
            costs.put_us,
            updates.per_second(),
            updates.multiplier(),
            updates.per_second() * costs.put_us / 1e4
        )];
        if options.before.is_some() {
            notes.push("these costs are those of the run that the model is from".to_owned());
        }
        notes.push(if options.are_updates_free {
            "updates run on any processor, also on the task's while it waits".to_owned()
        } else {
            "updates run on any processor but the task's".to_owned()
        });
        notes.push(if options.is_awake {
            "processors are kept from halting by threads of the policy IDLE (--keep-awake)"
                .to_owned()
        } else {
            "processors halt when they have nothing to do".to_owned()
        });
        let shared = Arc::new(Shared {
            engine,
            other,
            is_separate: AtomicBool::new(false),
            updates,
            costs,
            monitor: Mutex::default(),
            mix: AtomicU32::new(0),
            cores: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            lost: AtomicU64::new(0),
            begin: Instant::now(),
            failure: Mutex::default(),
        });
        let mut plant = Self {
            shared,
            threads: Vec::new(),
            actuator: Box::new(NoActuator),
            facts: Facts {
                speed_min: SPEED_MIN,
                speed_step: 1.0,
                cores_max: mine.len() as u32 - 1,
            },
            next: Instant::now(),
            speed: None,
            notes,
            neighbours,
            lines_ns: Vec::new(),
            last_line_ns: None,
            line_ns_min: options.line_ns_min,
            elsewhere: 0,
        };
        let (told, ready) = std::sync::mpsc::channel();
        let is_pinned = options.actuator != ActuatorKind::Deadline;
        let core = is_pinned.then_some(mine[0]);
        plant.spawn("qos-task", move |shared| task(shared, core, &told))?;
        let thread = ready.recv().map_err(|error| format!("the task: {error}"))?;
        plant.actuator = actuator(options.actuator, thread, mine[0], folder)?;
        plant.facts.speed_step = plant.actuator.step().min(0.5);
        if plant.actuator.name() == "none" {
            plant
                .notes
                .push("this machine lets nothing set the speed: it is full throughout".to_owned());
        }
        let rest = (!options.are_updates_free).then(|| mine[1..].to_vec());
        plant.spawn("qos-updates", move |shared| {
            updates_loop(shared, rest.as_deref())
        })?;
        for core in mine.iter().copied().filter(|_| options.is_awake) {
            plant.spawn("qos-awake", move |shared| {
                stay_awake(core, || shared.is_stopped())
            })?;
        }
        for (place, core) in mine[1..].iter().copied().enumerate() {
            plant.spawn("qos-best-effort", move |shared| {
                best_effort(shared, place as u32, core)
            })?;
        }
        // The sampler must not wait for the threads that it samples.
        fifo(SAMPLER_PRIORITY)?;
        plant.next = Instant::now() + SAMPLING;
        Ok(plant)
    }

    /// Returns the name of the actuator that sets the speed.
    pub(crate) fn actuator_name(&self) -> &'static str {
        self.actuator.name()
    }

    pub(crate) fn costs(&self) -> Costs {
        self.shared.costs
    }

    pub(crate) fn updates_per_second(&self) -> f64 {
        self.shared.updates.per_second()
    }

    /// Runs one sampling period, at any distance of the processors. Also returns the time of a cache line from one to
    /// the next at the end of the period, in ns.
    fn period(&mut self, inputs: [f64; 2], load: Load) -> Result<(Observed, Option<f64>), String> {
        let wanted = inputs[0].clamp(SPEED_MIN, 1.0);
        let speed = match self.speed {
            Some(speed) if (speed - wanted).abs() < 1e-6 => speed,
            _ => {
                self.actuator
                    .set(wanted)
                    .map_err(|error| error.to_string())?
                    .speed
            }
        };
        self.speed = Some(speed);
        let fraction = inputs[1].clamp(SWEPT_MIN, 1.0);
        let admitted = self.shared.updates.admit(fraction, self.shared.now_us());
        let place = Mix::ALL
            .iter()
            .position(|mix| *mix == load.mix)
            .unwrap_or(0);
        self.shared.mix.store(place as u32, Ordering::Relaxed);
        self.shared.cores.store(load.cores, Ordering::Relaxed);
        let now = Instant::now();
        if self.next < now {
            self.next = now;
        }
        std::thread::sleep(self.next + SAMPLING - now);
        self.next += SAMPLING;
        check_interrupted()?;
        if let Some(what) = lock(&self.shared.failure).take() {
            return Err(what);
        }
        let monitor = std::mem::take(&mut *lock(&self.shared.monitor));
        let figures = Figures::of(&monitor, DEADLINE_NS);
        let observed = Observed {
            outputs: figures.as_ref().map(Figures::outputs),
            applied: [speed, admitted],
            busy: (monitor.response_ns.sum() as f64 / SAMPLING.as_nanos() as f64).min(1.0),
            tardiness_p95: figures.as_ref().map(|figures| figures.tardiness_p95),
            miss_ratio: figures.as_ref().map(|figures| figures.miss_ratio),
            fresh: Some(self.shared.updates.fresh(self.shared.now_us())),
            least: self.shared.updates.least(),
        };
        Ok((observed, line_ns(self.neighbours, LINE_PRIORITY)))
    }

    fn spawn(
        &mut self,
        name: &str,
        body: impl FnOnce(&Shared) -> Result<(), String> + Send + 'static,
    ) -> Result<(), String> {
        let shared = Arc::clone(&self.shared);
        let run = move || {
            if let Err(what) = body(&shared) {
                shared.fail(what);
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        self.threads
            .push(thread.map_err(|error| format!("{name}: {error}"))?);
        Ok(())
    }
}

impl Drop for RealPlant {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // Restore full speed first: a task with a small share of its processor would take long to end.
        if let Err(error) = self.actuator.restore() {
            eprintln!("keel-bench: {error}");
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        crate::realtime::ordinary();
    }
}

impl Plant for RealPlant {
    fn facts(&self) -> Facts {
        self.facts
    }

    fn begin(&mut self, _seed: u64) -> Result<(), String> {
        // Operations that the previous run left in flight end before the samples of the next one.
        self.sample([1.0, 1.0], Load::NONE).map(|_| ())
    }

    fn sample(&mut self, inputs: [f64; 2], load: Load) -> Result<Observed, String> {
        let mut in_a_row = 0;
        loop {
            let (observed, line_ns) = self.period(inputs, load)?;
            let lines = [self.last_line_ns, line_ns];
            self.last_line_ns = line_ns;
            if lines.iter().flatten().all(|line| *line >= self.line_ns_min) {
                self.lines_ns.extend(line_ns);
                return Ok(observed);
            }
            // Keep the inputs, so that the next period begins in the same state as this one.
            self.elsewhere += 1;
            in_a_row += 1;
            if in_a_row > ELSEWHERE_MAX {
                return Err(too_near(self.line_ns_min));
            }
        }
    }

    fn set_quality(&mut self, quality: Quality) -> bool {
        let now_us = self.shared.now_us();
        self.shared.updates.set_quality(quality, now_us);
        true
    }

    fn set_separate(&mut self, is_separate: bool) -> bool {
        self.shared
            .is_separate
            .store(is_separate, Ordering::Relaxed);
        is_separate
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.notes.clone();
        let mut lines = self.lines_ns.clone();
        if !lines.is_empty() {
            let middle = median(&mut lines);
            let tenth = |part: usize| lines[(lines.len() - 1) * part / 10];
            notes.push(format!(
                "a line of memory took {middle:.0} ns from one processor to the other in the middle of all samples, \
                 and {:.0} to {:.0} ns in eight of ten: a host moves virtual processors, and what they share changes \
                 with it",
                tenth(1),
                tenth(9)
            ));
        }
        if self.line_ns_min > 0.0 {
            notes.push(format!(
                "only sampling periods count in which that was at least {:.0} ns (--line-ns-min); {} others were \
                 waited out, with the inputs as they were",
                self.line_ns_min, self.elsewhere
            ));
        }
        let lost = self.shared.lost.load(Ordering::Relaxed);
        if lost > 0 {
            notes.push(format!(
                "{lost} updates were refused, or came too late to be made up for"
            ));
        }
        notes
    }
}

const DEADLINE_NS: u64 = (DEADLINE_MS * 1e6) as u64;
const PERIOD_NS: u64 = (PERIOD_MS * 1e6) as u64;

fn open(kind: Kind, folder: &Path) -> Result<Box<dyn Engine>, String> {
    std::fs::create_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let size = Size {
        objects: OBJECTS,
        value_bytes: VALUE_BYTES,
        burst: 100_000,
        is_log_in_memory: true,
    };
    let engine = kind.open(folder, &size).map_err(|error| match error {
        OpenError::Missing(what) | OpenError::Failed(what) => what,
    })?;
    fill(&*engine, &size)?;
    Ok(engine)
}

/// Returns what `measure` finds while the processors have the required distance, both before and after it.
fn in_place<T>(
    neighbours: [usize; 2],
    line_ns_min: f64,
    measure: impl Fn() -> Result<T, String>,
) -> Result<T, String> {
    let is_there = || line_ns(neighbours, LINE_PRIORITY).is_none_or(|line| line >= line_ns_min);
    for _ in 0..ELSEWHERE_MAX {
        check_interrupted()?;
        if is_there() {
            let found = measure()?;
            if is_there() {
                return Ok(found);
            }
        }
        std::thread::sleep(SAMPLING);
    }
    Err(too_near(line_ns_min))
}

fn too_near(line_ns_min: f64) -> String {
    format!(
        "the processors were too near each other for {ELSEWHERE_MAX} s (--line-ns-min {line_ns_min}); try again \
         later"
    )
}

fn actuator(
    kind: ActuatorKind,
    thread: u32,
    core: usize,
    folder: &Path,
) -> Result<AnyActuator, String> {
    let root = Path::new("/");
    let cpufreq = || -> Result<AnyActuator, String> {
        // Not in the folder of this run, which is removed with its content even if some setting could not be restored.
        // A node recognises the file by its name.
        let beside = folder.parent().unwrap_or(folder);
        let saved = std::path::absolute(beside.join("keel-qos-experiment.speed"))
            .map_err(|error| format!("{}: {error}", folder.display()))?;
        // Checked before the lock is taken: most machines need no lock.
        Cpufreq::check(&SystemFiles, root, &[core as u32]).map_err(|error| error.to_string())?;
        let lock = Lock::take(root, &saved).map_err(|error| error.to_string())?;
        let opened = Cpufreq::open(Box::new(SystemFiles), root, &[core as u32], &saved, lock);
        Ok(Box::new(opened.map_err(|error| error.to_string())?))
    };
    let rtgroup = || -> Result<AnyActuator, String> {
        let opened = RtGroup::open(
            Box::new(SystemFiles),
            root,
            "keel-qos-experiment",
            &[thread],
        );
        Ok(Box::new(opened.map_err(|error| error.to_string())?))
    };
    match kind {
        ActuatorKind::Auto => Ok(cpufreq()
            .or_else(|_| rtgroup())
            .unwrap_or_else(|_| Box::new(NoActuator))),
        ActuatorKind::Cpufreq => cpufreq(),
        ActuatorKind::Rtgroup => rtgroup(),
        ActuatorKind::Deadline => Ok(Box::new(Deadline::new(&[thread]))),
        ActuatorKind::None => Ok(Box::new(NoActuator)),
    }
}

/// The real-time task.
fn task(
    shared: &Shared,
    core: Option<usize>,
    told: &std::sync::mpsc::Sender<u32>,
) -> Result<(), String> {
    if let Some(core) = core {
        pin(core)?;
    }
    fifo(TASK_PRIORITY)?;
    let mut session = shared.engine.session()?;
    let _ = told.send(thread_id());
    let transaction = Transaction::of_task(&shared.costs, TASK_NOMINAL, shared.updates.sensors());
    let mut random = Random::new(1);
    let is_stopped = || shared.is_stopped();
    run_instances(&shared.monitor, is_stopped, || {
        let data = transaction.access(&mut *session, &mut random)?;
        std::hint::black_box(compute(transaction.rounds));
        Ok(data)
    })
}

/// Runs an instance at each release until it is stopped. `body` returns how long it has accessed data.
fn run_instances(
    monitor: &Mutex<Monitor>,
    is_stopped: impl Fn() -> bool,
    mut body: impl FnMut() -> Result<Duration, String>,
) -> Result<(), String> {
    let start = Instant::now();
    let since = |now: Instant| now.duration_since(start).as_nanos() as u64;
    let mut timer = db::ReleaseTimer::new(0, PERIOD_NS);
    // The first release is at the start; any later time, even by one nanosecond, would miss it.
    let mut now_ns = 0;
    while !is_stopped() {
        let (release_ns, missed) = timer.next_release(now_ns);
        std::thread::sleep(
            (start + Duration::from_nanos(release_ns)).saturating_duration_since(Instant::now()),
        );
        let begin_ns = since(Instant::now());
        let data = body()?;
        let finish_ns = since(Instant::now());
        let (response_ns, data_ns) = (finish_ns.saturating_sub(release_ns), data.as_nanos() as u64);
        let mut monitor = lock(monitor);
        let tardiness = response_ns as f64 / DEADLINE_NS as f64;
        monitor.instances += 1;
        monitor.deadline_misses += u64::from(response_ns > DEADLINE_NS);
        monitor.releases_missed += missed;
        monitor.tardiness_sum += tardiness;
        monitor.tardiness_max = monitor.tardiness_max.max(tardiness);
        monitor.response_ns.record(response_ns);
        monitor.data_ns.record(data_ns);
        monitor
            .compute_ns
            .record((finish_ns - begin_ns).saturating_sub(data_ns));
        monitor
            .jitter_ns
            .record(begin_ns.saturating_sub(release_ns));
        drop(monitor);
        now_ns = since(Instant::now());
    }
    Ok(())
}

/// Stores the trace's readings at their rate, as far as they are admitted.
fn updates_loop(shared: &Shared, cores: Option<&[usize]>) -> Result<(), String> {
    if let Some(cores) = cores {
        pin_to(cores)?;
    }
    fifo(UPDATES_PRIORITY)?;
    let mut session = shared.engine.session()?;
    let updates = &shared.updates;
    let start = Instant::now();
    let mut number = 0_u64;
    let value = [7; VALUE_BYTES];
    let mut keys = Vec::with_capacity(TOGETHER);
    while !shared.is_stopped() {
        let due = (start.elapsed().as_secs_f64() * updates.per_second()) as u64;
        let late = due.saturating_sub(number + (BACKLOG_SECONDS * updates.per_second()) as u64);
        shared.lost.fetch_add(late, Ordering::Relaxed);
        number += late;
        let now_us = shared.now_us();
        while number < due {
            keys.clear();
            while number < due && keys.len() < TOGETHER {
                let (sensor, is_admitted) = updates.next(number, now_us);
                number += 1;
                if is_admitted {
                    keys.push(Key::new(sensor));
                }
            }
            let taken = session.put_together(&keys, &value)?;
            for key in &keys {
                updates.stored(key.number, now_us);
            }
            shared
                .lost
                .fetch_add((keys.len() - taken) as u64, Ordering::Relaxed);
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// Runs the best-effort transactions of one processor.
fn best_effort(shared: &Shared, place: u32, core: usize) -> Result<(), String> {
    pin(core)?;
    fifo(BEST_EFFORT_PRIORITY)?;
    let mut sessions = [shared.engine.session()?, shared.other.session()?];
    let mut random = Random::new(100 + u64::from(place));
    while !shared.is_stopped() {
        let mix = Mix::ALL[shared.mix.load(Ordering::Relaxed) as usize % Mix::ALL.len()];
        if mix == Mix::None || place >= shared.cores.load(Ordering::Relaxed) {
            std::thread::sleep(TICK);
            continue;
        }
        let transaction =
            Transaction::of_best_effort(&shared.costs, BEST_EFFORT_NOMINAL, mix.data_share());
        let session = &mut sessions[usize::from(shared.is_separate.load(Ordering::Relaxed))];
        transaction.access(&mut **session, &mut random)?;
        std::hint::black_box(compute(transaction.rounds));
        let gap_ms = GAP_MS.0 + random.below(GAP_MS.1 - GAP_MS.0 + 1);
        std::thread::sleep(Duration::from_millis(gap_ms));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn the_first_release_is_the_start() {
        let monitor = Mutex::default();
        let runs = Cell::new(0);
        let body = || {
            runs.set(runs.get() + 1);
            Ok(Duration::ZERO)
        };
        run_instances(&monitor, || runs.get() == 1, body).unwrap();
        let monitor = lock(&monitor);
        assert_eq!((monitor.instances, monitor.releases_missed), (1, 0));
    }
}
