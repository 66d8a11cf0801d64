//! Alarms and actuators: builds the delivery threads from the configuration and reports their state in the status. An
//! alarm that cannot be used never keeps the node from starting.

use super::database::Db;
use super::image::Device;
use super::log;
use super::raised::{self, Raised};
use crate::status::{ACTIVE_MAX, ActiveFigures, AlarmFigures, UrgentFigures};
use base::clock::Clock;
use config::Config;
use db::AlarmCondition;
use egress::urgent::{Prepared, Surroundings, Urgent, UrgentOptions, UrgentState};
use flash::Store;
use ingest::intake::{Destination, NodeDestination};
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;

/// Capacity of the queue of alarm changes between the table and the delivery threads.
const TRANSITIONS_MAX: u32 = 4096;
/// A delivery thread that has not polled its queue for this long counts as stalled, in ms.
const LOOKED_MS_MAX: u64 = 10_000;

/// Alarms that are already watched, before delivery starts.
pub(crate) struct Alarms {
    prepared: Option<Prepared<Store<Device>>>,
    shown: Shown,
}

/// What the status shows of alarms.
#[derive(Default)]
pub(crate) struct Shown {
    /// Names, patterns and conditions of the alarms.
    alarms: Vec<AlarmFigures>,
    error: Option<String>,
    delivery: Option<(Arc<UrgentOptions>, Arc<UrgentState>)>,
    /// Stores which alarms are raised; `None` if there are no alarms.
    raised: Option<Arc<Raised>>,
}

/// The running delivery.
pub(crate) struct Running {
    urgent: Option<Urgent>,
}

impl Alarms {
    /// Begins to watch. The caller must call this before the node takes readings.
    pub(crate) fn prepare(config: &Config, db: &Arc<Db>, clock: &Arc<dyn Clock>) -> Self {
        let told = config.urgent.room_options(clock);
        for broker in &told.options.brokers {
            log::of_client(broker.tls.as_ref());
        }
        let alarms = config.urgent.alarms.iter().map(|alarm| AlarmFigures {
            name: alarm.options.name.clone(),
            pattern: alarm.pattern.clone(),
            condition: alarm.condition_text(),
            ..AlarmFigures::default()
        });
        let mut shown = Shown {
            alarms: alarms.collect(),
            ..Shown::default()
        };
        let names = shown.alarms.iter().map(|alarm| alarm.name.clone());
        let names: Vec<String> = names.collect();
        let before = raised::read(db);
        let raised = Raised::new(Arc::clone(db), names.clone(), before.clone());
        let before = before.unwrap_or_default();
        if told.rules.is_empty() {
            // Clear what was raised: otherwise it would still be raised if such an alarm is configured again later.
            raised.look(true);
            if told.options.is_empty() {
                return Self {
                    prepared: None,
                    shown,
                };
            }
        }
        let watched = match told.rules.is_empty() {
            true => Ok(()),
            false => {
                let was_raised = move |rule: usize, key: &str| {
                    let name = names.get(rule);
                    name.is_some_and(|name| before.contains(&(name.clone(), key.to_owned())))
                };
                let set = db.set_alarms_after(&told.rules, TRANSITIONS_MAX, Box::new(was_raised));
                set.map_err(|error| error.to_string())
            }
        };
        // Alarms that could not be watched stay raised.
        if watched.is_ok() && !told.rules.is_empty() {
            shown.raised = Some(Arc::new(raised));
        }
        let prepared = watched.and_then(|()| {
            let prepared = Urgent::prepare(Arc::clone(db), Arc::clone(clock), told.options);
            prepared.map_err(|error| error.to_string())
        });
        let prepared = prepared.map_err(|why| shown.fail(why)).ok();
        Self { prepared, shown }
    }

    /// Returns the store of raised alarms; `None` if there are no alarms.
    pub(crate) fn raised(&self) -> Option<Arc<Raised>> {
        self.shown.raised.clone()
    }

    /// Starts the delivery threads. Commands run in `folder`.
    pub(crate) fn start(self, folder: PathBuf) -> (Running, Shown) {
        let Self {
            prepared,
            mut shown,
        } = self;
        let urgent = prepared.and_then(|prepared| {
            let started = prepared.start(Surroundings {
                end: end_group,
                folder,
                say: |alarm, text| match alarm {
                    Some(alarm) => log::event("alarm", format!("{alarm}: {text}")),
                    None => log::event("alarm", text),
                },
            });
            started.map_err(|error| shown.fail(error.to_string())).ok()
        });
        if let Some(urgent) = &urgent {
            if let Some(raised) = &shown.raised {
                raised.delivered_by(urgent.state());
            }
            shown.delivery = Some((Arc::clone(urgent.options()), Arc::clone(urgent.state())));
        }
        (Running { urgent }, shown)
    }
}

impl Running {
    /// Asks the delivery threads to end.
    pub(crate) fn stop(&self) {
        if let Some(urgent) = &self.urgent {
            urgent.stop();
        }
    }

    /// Waits for the delivery threads to end and logs what was not delivered: it exists only in memory.
    pub(crate) fn finish(self) {
        let Some(urgent) = self.urgent else {
            return;
        };
        let state = Arc::clone(urgent.state());
        drop(urgent);
        let figures = state.figures();
        let messages: u64 = figures.brokers.iter().map(|broker| broker.waiting).sum();
        let runs: u64 = figures
            .alarms
            .iter()
            .map(|alarm| alarm.command.waiting)
            .sum();
        if messages + runs > 0 {
            let of = |count: u64, one: &str, many: &str| {
                let noun = if count == 1 { one } else { many };
                format!("{count} {noun}")
            };
            let text = format!(
                "{} to brokers and {} of commands were not delivered",
                of(messages, "message", "messages"),
                of(runs, "run", "runs")
            );
            log::event("stopping", text);
        }
    }
}

impl Shown {
    fn fail(&mut self, why: String) {
        log::event(
            "warning",
            format!("alarms and actuators do not work: {why}"),
        );
        self.error = Some(why);
    }

    pub(crate) fn take(&self, db: &Db) -> UrgentFigures {
        let mut figures = UrgentFigures {
            alarms: self.alarms.clone(),
            urgent_error: self.error.clone(),
            ..UrgentFigures::default()
        };
        if let Some((options, state)) = &self.delivery {
            let found = state.figures();
            let unseen_ms = (db.now_ns() / 1_000_000).saturating_sub(found.looked_ms);
            if figures.urgent_error.is_none() {
                figures.urgent_error = found.error.clone().or_else(|| {
                    let is_stalled = unseen_ms > LOOKED_MS_MAX;
                    is_stalled.then(|| {
                        format!("the delivery thread has not looked for them for {unseen_ms} ms")
                    })
                });
            }
            figures.take(options, &found);
        }
        if self.alarms.is_empty() {
            return figures;
        }
        let counted = db.alarm_figures();
        figures.alarms_queue_full = counted.queue_full;
        figures.alarms_lost = counted.lost;
        if let Some(raised) = &self.raised {
            (
                figures.alarms_raised_writes,
                figures.alarms_raised_bytes_max,
            ) = raised.writes();
        }
        for (shown, found) in figures.alarms.iter_mut().zip(&counted.rules) {
            shown.watched = found.watched;
            shown.unwatched = found.unwatched;
            shown.active = found.active;
            shown.raised = found.raised;
            shown.cleared = found.cleared;
            shown.values_unusable = found.values_unusable;
        }
        let now_ns = db.now_ns();
        for active in db.active_alarms(ACTIVE_MAX) {
            let name = self
                .alarms
                .get(active.rule as usize)
                .map_or("", |alarm| &alarm.name);
            figures.alarms_active.push(ActiveFigures {
                alarm: name.to_owned(),
                key: db.key(active.object).as_str().to_owned(),
                value: active.value.map(|value| value.value().to_string()),
                time_ms: active.time.ms(),
                since_ms: now_ns.saturating_sub(active.since_ns) / 1_000_000,
            });
        }
        figures
    }
}

/// Declares the keys that a silence alarm watches by name, so that a key that never arrives counts as silent, too.
pub(crate) fn declare(config: &Config, destination: &NodeDestination<Store<Device>>) {
    for alarm in &config.urgent.alarms {
        let is_stale = matches!(alarm.options.condition, AlarmCondition::Stale { .. });
        if is_stale
            && base::pattern::is_exact(&alarm.pattern)
            && let Err(reason) = destination.resolve(&alarm.pattern)
        {
            let (name, key) = (&alarm.options.name, &alarm.pattern);
            let why = reason.name();
            log::event(
                "warning",
                format!("alarm {name} watches {key} only after its first reading: {why}"),
            );
        }
    }
}

/// Kills a command and the process group that it leads.
fn end_group(child: &mut Child) {
    let group = child.id() as libc::pid_t;
    // SAFETY: a plain system call. The child has not been waited for, so its number and its group's are its own.
    unsafe { libc::kill(-group, libc::SIGKILL) };
}
