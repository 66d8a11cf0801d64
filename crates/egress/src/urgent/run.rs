//! The threads: one for all brokers, separate from everything that takes readings; one that checks times; one that runs
//! commands.

use super::collect::Collector;
use super::command::{self, CommandQueue, Surroundings};
use super::figures::UrgentState;
use super::options::UrgentOptions;
use super::publish::Publisher;
use crate::Error;
use base::clock::Clock;
use db::{Database, ObjectId, SegmentStore};
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{LocalSet, spawn_local, yield_now};
use tokio::time::sleep;

/// Stack size of the threads.
const STACK_BYTES: usize = 512 << 10;
/// Poll interval: the longest time that an alarm or a value waits here while a broker keeps up.
const LOOK: Duration = Duration::from_millis(10);
/// Number of polls between two updates of the figures.
const LOOKS_PER_UPDATE: u32 = 10;
/// Largest number of polls after the stop: enough to take everything that the database's ring can hold.
const LAST_LOOKS_MAX: u32 = 64;
/// Interval of the check of durations and staleness.
const SCAN: Duration = Duration::from_millis(100);

/// The state prepared before readings are taken.
pub struct Prepared<S: SegmentStore> {
    db: Arc<Database<S>>,
    clock: Arc<dyn Clock>,
    options: UrgentOptions,
    versions: Vec<u64>,
}

/// Running delivery of alarms and actuator values. Dropping it stops it cleanly.
pub struct Urgent {
    options: Arc<UrgentOptions>,
    state: Arc<UrgentState>,
    stop: watch::Sender<bool>,
    commands: Arc<CommandQueue>,
    scanner: Arc<Scanner>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Scanner {
    is_stopping: Mutex<bool>,
    changed: Condvar,
}

impl Scanner {
    /// Waits. Returns whether the thread must end.
    fn pause(&self) -> bool {
        let stop = self
            .is_stopping
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(stop, SCAN, |stop| !*stop);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn stop(&self) {
        *self
            .is_stopping
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}

impl Urgent {
    /// Prepares the delivery. Must be called before readings are taken, so that no value is missed. The database has
    /// the alarms' rules already ([`Database::set_alarms`]).
    ///
    /// # Errors
    /// [`Error::OptionInvalid`].
    pub fn prepare<S: SegmentStore>(
        db: Arc<Database<S>>,
        clock: Arc<dyn Clock>,
        options: UrgentOptions,
    ) -> Result<Prepared<S>, Error> {
        options.check()?;
        let versions = match options.actuators.is_empty() {
            true => Vec::new(),
            false => (0..db.objects())
                .map(|id| db.version(ObjectId(id)))
                .collect(),
        };
        Ok(Prepared {
            db,
            clock,
            options,
            versions,
        })
    }

    /// Returns the options.
    #[must_use]
    pub fn options(&self) -> &Arc<UrgentOptions> {
        &self.options
    }

    /// Returns the figures.
    #[must_use]
    pub fn state(&self) -> &Arc<UrgentState> {
        &self.state
    }

    /// Stops: later events are not delivered; waiting messages have half a second.
    pub fn stop(&self) {
        self.stop.send_replace(true);
        self.commands.stop();
        self.scanner.stop();
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        self.stop();
        for thread in self.threads.drain(..) {
            // The thread itself has reported its panic.
            let _ = thread.join();
        }
    }
}

impl<S: SegmentStore + Send + 'static> Prepared<S> {
    /// Starts the threads. `around` is for commands.
    ///
    /// # Errors
    /// [`Error::Thread`].
    pub fn start(self, around: Surroundings) -> Result<Urgent, Error> {
        let Self {
            db,
            clock,
            options,
            versions,
        } = self;
        let options = Arc::new(options);
        let (brokers, alarms) = (options.brokers.len(), options.alarms.len());
        let now_ms = clock.monotonic_ns() / 1_000_000;
        let actuators = options.actuators.len();
        let state = Arc::new(UrgentState::new(brokers, alarms, actuators, now_ms));
        let (stop, stopped) = watch::channel(false);
        let mut urgent = Urgent {
            commands: Arc::new(CommandQueue::new(options.command_queue_max as usize)),
            options: Arc::clone(&options),
            state: Arc::clone(&state),
            stop,
            scanner: Arc::default(),
            threads: Vec::new(),
        };
        if options.alarms.iter().any(|alarm| !alarm.command.is_empty()) {
            let (queue, clock) = (Arc::clone(&urgent.commands), Arc::clone(&clock));
            let (options, state) = (Arc::clone(&options), Arc::clone(&state));
            let work = move || command::work(&queue, &options.alarms, &clock, &state, &around);
            urgent.threads.push(spawn("alarm-command", work)?);
        }
        if !options.alarms.is_empty() {
            let (scanner, db) = (Arc::clone(&urgent.scanner), Arc::clone(&db));
            let scan = move || {
                while !scanner.pause() {
                    db.scan_alarms();
                }
            };
            urgent.threads.push(spawn("alarm-scan", scan)?);
        }
        let commands = Arc::clone(&urgent.commands);
        let deliver = move || deliver(db, &clock, &options, &state, commands, versions, &stopped);
        urgent.threads.push(spawn("urgent", deliver)?);
        Ok(urgent)
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK_BYTES)
        .spawn(work)
        .map_err(|error| Error::Thread(error.to_string()))
}

fn deliver<S: SegmentStore + Send + 'static>(
    db: Arc<Database<S>>,
    clock: &Arc<dyn Clock>,
    options: &Arc<UrgentOptions>,
    state: &Arc<UrgentState>,
    commands: Arc<CommandQueue>,
    versions: Vec<u64>,
    stopped: &watch::Receiver<bool>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            state.lock().error = Some(format!("no runtime: {error}"));
            return;
        }
    };
    let links = Collector::<S>::outboxes(options);
    // Publishers end once they have received every event.
    let (end, ends) = watch::channel(false);
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let mut tasks = Vec::new();
        for (at, (link, broker)) in links.iter().zip(&options.brokers).enumerate() {
            let publisher = Publisher {
                at,
                options: broker.clone(),
                outbox: Rc::clone(&link.outbox),
                wake: Rc::clone(&link.wake),
                state: Arc::clone(state),
                clock: Arc::clone(clock),
                stop: ends.clone(),
            };
            tasks.push(spawn_local(publisher.run()));
        }
        let (clock, options, state) = (Arc::clone(clock), Arc::clone(options), Arc::clone(state));
        let mut collector = Collector::new(db, clock, options, state, commands, links, versions);
        let mut stopped = stopped.clone();
        let mut looks = 0_u32;
        while !*stopped.borrow() {
            let is_more = collector.look();
            if looks.is_multiple_of(LOOKS_PER_UPDATE) {
                collector.publish();
            }
            looks = looks.wrapping_add(1);
            if is_more {
                yield_now().await;
                continue;
            }
            tokio::select! {
                () = sleep(LOOK) => {}
                _ = stopped.changed() => {}
            }
        }
        for _ in 0..LAST_LOOKS_MAX {
            if !collector.look() {
                break;
            }
        }
        end.send_replace(true);
        for task in tasks {
            // The runtime has reported the panic.
            let _ = task.await;
        }
        collector.publish();
    });
}
