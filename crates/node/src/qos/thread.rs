//! The sampling thread: waits for the end of a period, takes its figures, lets the loop decide, and shows the result.

use super::speed;
use super::state::{Inner, Shared, Wishes, identification};
use super::tasks::PATIENCE;
use super::unrestored::{Places, RETRY, Unrestored};
use crate::database::Db;
use crate::log;
use crate::status::{PeriodState, QosState, SHED_KEYS_MAX, ShedKey, held_name};
use actuator::{Actuator, ActuatorError, NoActuator, RtGroup};
use control::controller::{ADMISSION, Mode, SPEED};
use control::figures::Figures;
use control::regulator::{Identification, Regulator};
use db::{ObjectId, SegmentStore};
use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// The fraction of a sampling period that must have passed before it can end.
const SHORTEST: f64 = 0.9;

/// Lease of an identification: it ends if its client does not poll it for this time.
const LEASE: Duration = Duration::from_secs(10);

/// What to do next.
enum Event {
    Stop,
    /// Restore settings that an earlier attempt did not restore.
    Restore,
    /// Show what tasks did that ended before anything was driven for them.
    Departed(Option<Figures>, Duration),
    Period(Ended),
}

/// A period that has ended.
struct Ended {
    figures: Option<Figures>,
    length: Duration,
    /// All tasks that the loop considers have been silent for too long.
    is_unheard: bool,
    /// No task exists any more: the measurements are shown, but drive nothing.
    is_without_task: bool,
    wishes: Wishes,
    /// Whether gains or limits have changed.
    is_changed: bool,
}

struct Loop {
    regulator: Regulator<ActuatorError>,
    /// Threads, their processors and the kind of the current actuator.
    threads: Vec<u32>,
    cores: Vec<u32>,
    kind: config::ActuatorKind,
    /// Why there is no actuator.
    actuator_error: Option<String>,
    /// When an actuator was last opened, or the attempt failed.
    opened_at: Instant,
    /// Settings that could not be restored.
    unrestored: Unrestored,
    begun: Instant,
    periods: u64,
    missing: u64,
    last: Option<PeriodState>,
    was_blind: bool,
    /// Whether an identification was given up and that is logged.
    is_given_up: bool,
    /// The settings with which the identification is measured.
    measured_with: MeasuredWith,
}

/// Length of a sampling period in ms, its instances, and the actuator: samples with other values belong to another
/// model.
type MeasuredWith = (u32, u32, config::ActuatorKind);

/// Runs until the node ends.
pub(super) fn run(shared: &Shared, db: &Db, places: Places) {
    let root = speed::root(&shared.lock().config.machine_root);
    let mut here = Loop::new(Unrestored::new(places));
    here.unrestored.restore(&root);
    here.show(shared, db);
    while here.next(shared, db) {}
    if let Err(error) = here
        .regulator
        .end(&mut |fraction| db.set_admission(fraction))
    {
        let said = match error {
            // This error already describes itself and the remedy.
            ActuatorError::NotPutBack { .. } => error.to_string(),
            error => format!("the original speed is not restored: {error}"),
        };
        log::event("warning", said);
    }
}

impl Loop {
    fn new(unrestored: Unrestored) -> Self {
        Self {
            regulator: Regulator::new(Box::new(NoActuator)),
            threads: Vec::new(),
            cores: Vec::new(),
            kind: config::ActuatorKind::None,
            actuator_error: None,
            opened_at: Instant::now(),
            unrestored,
            begun: Instant::now(),
            periods: 0,
            missing: 0,
            last: None,
            was_blind: false,
            is_given_up: false,
            measured_with: (0, 0, config::ActuatorKind::None),
        }
    }

    /// Runs one period. Returns `false` when the node ends.
    fn next(&mut self, shared: &Shared, db: &Db) -> bool {
        let ended = match self.wait(shared) {
            Event::Stop => return false,
            Event::Restore => {
                let root = speed::root(&shared.lock().config.machine_root);
                self.unrestored.restore(&root);
                self.show(shared, db);
                return true;
            }
            Event::Departed(figures, length) => {
                self.note(figures.as_ref(), length);
                self.show(shared, db);
                return true;
            }
            Event::Period(ended) => ended,
        };
        let figures = ended.figures;
        self.heed(shared, ended.wishes, ended.is_changed);
        if ended.is_unheard {
            self.regulator.lose();
        }
        let followed = figures.as_ref().filter(|_| !ended.is_without_task);
        self.regulator.set_admission_min(db.admission().least);
        let decision = self
            .regulator
            .period(followed, &mut |fraction| db.set_admission(fraction))
            .clone();
        if let Identification::GivenUp(why) = self.regulator.identification()
            && !std::mem::replace(&mut self.is_given_up, true)
        {
            log::event("qos", format!("the identification was given up: {why}"));
        }
        self.note(figures.as_ref(), ended.length);
        let is_driven = !matches!(self.regulator.mode(), Mode::Open);
        if is_driven && decision.is_blind != self.was_blind {
            self.was_blind = decision.is_blind;
            log::event(
                "qos",
                if decision.is_blind {
                    "no instance of any task: full speed, all updates"
                } else {
                    "tasks are seen again"
                },
            );
        }
        self.show(shared, db);
        true
    }

    /// Counts a period.
    fn note(&mut self, figures: Option<&Figures>, length: Duration) {
        self.periods += 1;
        match figures {
            Some(figures) => self.last = Some(shown(figures, length)),
            None => self.missing += 1,
        }
    }

    /// Waits until a period has ended, or something must be done at once.
    fn wait(&mut self, shared: &Shared) -> Event {
        let mut inner = shared.lock();
        loop {
            if inner.stop {
                return Event::Stop;
            }
            let is_at_rest = inner.tasks.is_empty() && self.is_at_rest();
            if is_at_rest && !self.unrestored.is_empty() && self.unrestored.due_in().is_zero() {
                return Event::Restore;
            }
            let sampling = inner.sampling();
            let (period, patience) = (sampling.period, inner.tasks.span(sampling) * PATIENCE);
            let elapsed = self.begun.elapsed();
            let until_unheard = inner.tasks.until_unheard(sampling);
            let is_unheard = !inner.tasks.is_empty() && until_unheard.is_zero();
            let is_over = self.is_over(&inner, elapsed);
            if let Some(since) = inner.tasks.departed_since().filter(|_| is_at_rest)
                && elapsed >= period
            {
                self.begun = Instant::now();
                let figures = inner.tasks.take(sampling);
                inner.figures_at = Some(self.begun);
                return Event::Departed(figures, elapsed.min(since.elapsed()));
            }
            if is_over {
                self.begun = Instant::now();
                let figures = inner.tasks.take(sampling);
                if figures.is_some() {
                    inner.figures_at = Some(self.begun);
                }
                let wishes = std::mem::take(&mut inner.wishes);
                let is_changed = std::mem::take(&mut inner.is_changed);
                let is_forgotten = inner.asked_at.is_none_or(|asked| asked.elapsed() > LEASE);
                let mut wishes = wishes;
                wishes.stop_identification |= is_forgotten;
                return Event::Period(Ended {
                    figures,
                    length: elapsed,
                    is_unheard,
                    is_without_task: inner.tasks.is_empty(),
                    wishes,
                    is_changed,
                });
            }
            let wait = if inner.tasks.is_empty() {
                if is_at_rest && inner.tasks.departed_since().is_some() {
                    period.saturating_sub(elapsed)
                } else if is_at_rest && !self.unrestored.is_empty() {
                    self.unrestored.due_in()
                } else if is_at_rest {
                    Duration::from_secs(3600)
                } else {
                    period.saturating_sub(elapsed)
                }
            } else {
                let until = period.mul_f64(SHORTEST).saturating_sub(elapsed);
                if until.is_zero() {
                    patience.saturating_sub(elapsed).min(until_unheard)
                } else {
                    until
                }
            };
            let waited = shared
                .changed
                .wait_timeout(inner, wait.max(Duration::from_millis(1)));
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns whether a period that has lasted `elapsed` ends now.
    fn is_over(&self, inner: &Inner, elapsed: Duration) -> bool {
        let (tasks, sampling) = (&inner.tasks, inner.sampling());
        if tasks.is_empty() {
            // End one period without tasks, so that the loop releases the speed; then there is nothing to sample.
            return elapsed >= sampling.period && !self.is_at_rest();
        }
        if elapsed < sampling.period.mul_f64(SHORTEST) {
            return false;
        }
        // Silent tasks delay nothing, however long their instances may take. A change of mode waits for no task's
        // instances. An identification, however, needs complete samples.
        let is_asked =
            inner.wishes.stop_identification || inner.is_changed && !self.is_identifying();
        is_asked
            || tasks.until_unheard(sampling).is_zero()
            || tasks.have_enough(sampling)
            || elapsed >= tasks.span(sampling) * PATIENCE
    }

    fn is_identifying(&self) -> bool {
        matches!(self.regulator.identification(), Identification::Running(..))
    }

    /// Returns whether nothing is driven and nothing must be released.
    fn is_at_rest(&self) -> bool {
        !self.is_identifying()
            && self.threads.is_empty()
            && self.regulator.decision().inputs == [1.0, 1.0]
    }

    /// Applies the requests since the last period.
    fn heed(&mut self, shared: &Shared, wishes: Wishes, changed: bool) {
        let inner = shared.lock();
        let (threads, kind) = (inner.tasks.threads(), inner.actuator());
        let is_without_task = inner.tasks.is_empty();
        let root = speed::root(&inner.config.machine_root);
        let sampling = (inner.config.sampling_period_ms, inner.config.instances_min);
        let with = (sampling.0, sampling.1, kind);
        if changed {
            let gains = inner.gains.clone();
            let config = inner.config.clone();
            let (mode, set_points) = (inner.mode, inner.set_points);
            drop(inner);
            let part = |percent: u32| f64::from(percent) / 100.0;
            let controller = gains.and_then(|mut gains| {
                gains.identified.limits.speed_min = part(config.speed_percent_min);
                gains.identified.limits.admission_min = part(config.admitted_percent_min);
                let change_max = [
                    part(config.speed_change_percent_max),
                    part(config.admitted_change_percent_max),
                ];
                let mut controller = gains
                    .controller(change_max, config.samples_missing_max)
                    .ok()?;
                if let Some(set_points) = set_points {
                    controller.set_points(set_points).ok()?;
                }
                Some(controller)
            });
            self.regulator.set_controller(controller);
            self.regulator.set_mode(mode);
        } else {
            drop(inner);
        }
        // Retry: another user of the actuator may have ended, or missing processors may be back.
        let is_idle = self.regulator.actuator_name() == NoActuator.name();
        let is_wanting = self.actuator_error.is_some() || is_idle && !self.unrestored.is_empty();
        let is_due = is_wanting && self.opened_at.elapsed() >= RETRY;
        // A task may move to another processor, and a processor that is switched off serves no task.
        let cores = match is_told_by_files(kind) {
            true => speed::cores_of(&threads),
            false => Vec::new(),
        };
        let is_other = threads != self.threads || cores != self.cores || kind != self.kind;
        if is_other || is_due {
            self.open(kind, &threads, &root);
            (self.threads, self.cores, self.kind) = (threads, cores, kind);
        }
        if wishes.stop_identification
            && matches!(self.regulator.identification(), Identification::Running(..))
        {
            self.regulator.stop_identification();
            log::event("qos", "the identification was ended before its time");
        }
        if let Some(excitation) = wishes.identify {
            let least = shared.lock().least();
            // The request was checked when it arrived; the lower limits may have changed since.
            match self.regulator.identify(excitation, least) {
                Ok(()) => {
                    self.is_given_up = false;
                    self.measured_with = with;
                    log::event(
                        "qos",
                        format!(
                            "identification: speed and updates are driven for {} periods",
                            excitation.profiled + excitation.driven
                        ),
                    );
                }
                Err(error) => self.regulator.give_up(&error.to_string()),
            }
        }
        if !self.is_identifying() {
            return;
        }
        if self.measured_with != with {
            let why = "the configuration has another sampling period, other instances or another actuator now";
            self.regulator.give_up(why);
        } else if !is_without_task && let Some(why) = self.why_no_speed() {
            // Seven minutes at a constant speed would end with a model that cannot distinguish the inputs.
            self.regulator.give_up(&why);
        }
    }

    /// Returns why the speed of the tasks cannot be set.
    fn why_no_speed(&self) -> Option<String> {
        match &self.actuator_error {
            Some(error) => Some(format!("the speed cannot be set: {error}")),
            None if self.threads.is_empty() => Some(
                "the speed cannot be set: no task's thread is known here; a program in a container needs the process \
                 numbers of the node's"
                    .to_owned(),
            ),
            None if self.regulator.actuator_name() == RtGroup::NAME
                && !self.threads.iter().any(|id| speed::is_real_time(*id)) =>
            {
                Some(speed::NONE_SLOWED.to_owned())
            }
            None => None,
        }
    }

    /// Opens another actuator for these threads.
    fn open(&mut self, kind: config::ActuatorKind, threads: &[u32], root: &Path) {
        let before = self.regulator.actuator_name();
        // Restore what the old actuator changed before the new one reads the current settings.
        self.regulator.set_actuator(Box::new(NoActuator));
        self.unrestored.restore(root);
        self.opened_at = Instant::now();
        let is_told_by_files = is_told_by_files(kind);
        let opened = match self.unrestored.unsure().filter(|_| is_told_by_files) {
            Some(why) if !threads.is_empty() => Err(why.to_owned()),
            _ => speed::open(kind, threads, root, self.unrestored.saved_path()),
        };
        match opened {
            Ok(actuator) => {
                let name = actuator.name();
                if name != before {
                    let name = if name == "none" { "nothing" } else { name };
                    log::event("speed", format!("set by {name} from now on"));
                }
                self.regulator.set_actuator(actuator);
                self.actuator_error = None;
            }
            Err(error) => {
                if self.actuator_error.as_ref() != Some(&error) {
                    log::event("warning", format!("the speed cannot be set: {error}"));
                }
                self.actuator_error = Some(error);
            }
        }
    }

    fn show(&mut self, shared: &Shared, db: &Db) {
        let settings_left = self.unrestored.lines();
        let is_identifying = matches!(self.regulator.identification(), Identification::Running(..));
        let mode = self.regulator.mode();
        let drives_speed = is_identifying || matches!(mode, Mode::SpeedOnly | Mode::Both);
        let decision = self.regulator.decision();
        let (failures, failure) = self.regulator.failures();
        let stats = db.admission();
        let state = QosState {
            actuator: self.regulator.actuator_name().to_owned(),
            speed_step: self.regulator.speed_step(),
            speed: decision.inputs[SPEED],
            admitted: decision.inputs[ADMISSION],
            admission_min: stats.least,
            speed_held: held_name(decision.held[SPEED]).to_owned(),
            admitted_held: held_name(decision.held[ADMISSION]).to_owned(),
            saturated: decision.is_saturated(),
            single: decision.is_single,
            blind: decision.is_blind,
            model_true: decision.is_model_true,
            // Without an actuator the speed is not controlled, so it is not obeyed, even while full speed is requested.
            obeyed: decision.is_obeyed && !(drives_speed && self.actuator_error.is_some()),
            actuator_failures: failures,
            actuator_error: self
                .actuator_error
                .clone()
                .or_else(|| failure.map(ToString::to_string)),
            settings_left,
            periods: self.periods,
            periods_missing: self.missing,
            last: self.last,
            readings_shed: stats.shed,
            readings_shed_dropped: stats.dropped,
            shed_keys: shed_keys(db, stats.shed),
            identification: identification(self.regulator.identification()),
            ..QosState::default()
        };
        let mut inner: std::sync::MutexGuard<'_, Inner> = shared.lock();
        let asked = inner.wishes.identify.is_some();
        inner.state = state;
        // With the last task its processors were released, and no further setting is made.
        inner.state.obeyed |= inner.tasks.is_empty();
        inner.actuator_error.clone_from(&self.actuator_error);
        if asked {
            // It was requested meanwhile and begins with the next period.
            "running".clone_into(&mut inner.state.identification.state);
        }
    }
}

/// Returns whether the speed may be a setting of processors.
fn is_told_by_files(kind: config::ActuatorKind) -> bool {
    use config::ActuatorKind::{Auto, Cpufreq};
    matches!(kind, Cpufreq | Auto)
}

/// Returns the keys that lost the most readings.
fn shed_keys<S: SegmentStore>(db: &db::Database<S>, shed: u64) -> Vec<ShedKey> {
    if shed == 0 {
        return Vec::new();
    }
    let mut all: Vec<(u64, ObjectId)> = (0..db.objects())
        .map(ObjectId)
        .map(|id| (db.shed(id), id))
        .filter(|(shed, _)| *shed > 0)
        .collect();
    all.sort_unstable_by_key(|(shed, id)| (std::cmp::Reverse(*shed), *id));
    all.truncate(SHED_KEYS_MAX);
    all.into_iter()
        .map(|(readings_shed, id)| ShedKey {
            key: db.key(id).as_str().to_owned(),
            readings_shed,
        })
        .collect()
}

fn shown(figures: &Figures, length: Duration) -> PeriodState {
    PeriodState {
        length_ms: u64::try_from(length.as_millis()).unwrap_or(u64::MAX),
        instances: figures.instances,
        tardiness_mean: figures.tardiness_mean,
        tardiness_p95: figures.tardiness_p95,
        miss_ratio: figures.miss_ratio,
        data_ratio: figures.data_ratio,
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::{at_rest, short};
    use super::super::tasks::Declared;
    use super::*;
    use crate::answer::framed;
    use crate::status::TaskState;
    use config::Config;
    use control::identify::Sample;
    use control::regulator::{DRIVEN_MAX, PROFILED_MAX, Run};
    use libkeel::protocol::Kind;

    #[test]
    fn another_mode_waits_for_no_ten_instances() {
        let text = "[qos]\nsampling_period_ms = 1000\ninstances_min = 10\n";
        let config = Config::parse(text, "test", Path::new("/nowhere")).unwrap();
        let mut inner = Inner::new(&config.qos, Vec::new());
        let here = Loop::new(Unrestored::new(Places::of(&config)));
        let declared = Declared {
            name: "slow".to_owned(),
            period_ns: 900_000_000,
            deadline_ns: 900_000_000,
            is_firm: false,
            weight: 1.0,
            process: 1,
            thread: None,
        };
        inner.tasks.declare(declared, 1).unwrap();
        inner.is_changed = false;
        let after = |inner: &Inner, ms: u64| here.is_over(inner, Duration::from_millis(ms));
        assert!(!after(&inner, 26_900) && after(&inner, 27_000));
        inner.is_changed = true;
        assert!(!after(&inner, 800) && after(&inner, 950));
        inner.is_changed = false;
        inner.wishes.stop_identification = true;
        assert!(after(&inner, 950));
    }

    #[test]
    fn the_longest_state_fits_an_answer() {
        let uneven = |number: u32| f64::from(number).sqrt() / 50.0;
        let outputs = |number| [uneven(number), uneven(number + 7)];
        let run = Run {
            profiled: (0..PROFILED_MAX).map(outputs).collect(),
            driven: (0..DRIVEN_MAX)
                .map(|number| Sample {
                    outputs: outputs(number),
                    inputs: outputs(number + 3),
                })
                .collect(),
        };
        // In JSON text each of these characters takes two bytes.
        let name = "\"".repeat(64);
        let task = TaskState {
            name: name.clone(),
            process: u32::MAX,
            thread: Some(u32::MAX),
            kind: "soft".to_owned(),
            weight: 0.1 + 0.2,
            period_us: 3_599_999_999.999,
            deadline_us: 3_599_999_999.999,
            instances: u64::from(u32::MAX),
            deadline_misses: u64::from(u32::MAX),
            aborted: u64::from(u32::MAX),
            releases_missed: u64::from(u32::MAX),
            tardiness_mean: 0.1 + 0.2,
            tardiness_max: 0.1 + 0.7,
            ..TaskState::default()
        };
        let shed = ShedKey {
            key: name,
            readings_shed: u64::from(u32::MAX),
        };
        let state = QosState {
            // The largest value of qos.tasks_max.
            tasks: vec![task; 256],
            shed_keys: vec![shed; SHED_KEYS_MAX],
            identification: identification(&Identification::Done(run)),
            ..at_rest()
        };
        let answer = framed(Kind::QosState, &state);
        assert!(answer.is_ok(), "{:?}", answer.err());
        assert_eq!(short(0.123_456_789_4), 0.123_456_789);
        assert_eq!(short(f64::MAX), f64::MAX);
    }
}
