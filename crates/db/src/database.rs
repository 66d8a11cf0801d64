//! The database as its callers see it.

use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::clock::Clock;
use base::seeded_bug::SeededBug;

use crate::commit::{Core, Pace, Shared};
use crate::error::{Error, LogFailure};
use crate::history::follow::{self, LogCursor, LogStep, StepLimits};
use crate::history::index::Index;
use crate::history::{self, HistoryCursor, HistoryEntry, HistoryQuery};
use crate::log::codec::Owner;
use crate::log::counters::LogCounters;
use crate::log::entry::{Entry, EntryKind};
use crate::log::owners::SharedOwners;
use crate::log::seal::Seal;
use crate::log::writer::{Done, LogWriter, NO_READING};
use crate::log::{checkpoint, segment_name};
use crate::mutex::lock;
use crate::options::{CommitDriver, DbOptions, ObjectId, ObjectSpec, Retention};
use crate::pi_lock::PiLock;
use crate::qos::admission::Admission;
use crate::queue::{Queue, touched_buffer};
use crate::realtime;
use crate::recovery::{self, RecoveryReport};
use crate::stats::{DROPPING_SHOWN_NS, Health, Pulse, Stats};
use crate::store::SegmentStore;
use crate::table::{FreshCount, Key, Now, OWN_NAPS_MAX, Table, TableMemory};
use crate::ticket::Progress;
use crate::time::Time;
use crate::wall::{Latest, Wall, boot_tag};

mod alarms;
mod driven;
pub(crate) mod put;
pub(crate) mod snapshot;

/// Longest sleep of a caller that waits for the queue; a wake-up usually ends it sooner.
const QUEUE_WAIT: Duration = Duration::from_millis(5);

/// What `get` returns besides the value's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Got {
    /// Bytes of the value, at the front of the caller's buffer.
    pub value_bytes: usize,
    /// The sensor's time.
    pub time: Time,
    /// `now - time` in ms, without what is below 1 ms; negative for a reading from the future. If the node's clock gave
    /// the time in this boot, this is the time since the arrival, because that clock may have been set since.
    pub age_ms: i64,
    /// Whether the age is known and within the object's validity interval.
    pub fresh: bool,
    /// Arrival on the monotonic clock; comparable with now only if `this_boot`.
    pub arrival_ns: u64,
    /// Whether the reading arrived since this machine booted.
    pub this_boot: bool,
    /// Whether the wall clock was trusted at arrival.
    pub wall_trusted: bool,
    /// Whether the node's wall clock gave the time, not the sensor.
    pub node_time: bool,
    /// Whether it was kept for an unknown time before it arrived ([`Database::put_retained`]).
    pub retained: bool,
}

/// A real-time database over the store `S`. Share it behind an [`Arc`]; every method takes `&self`.
///
/// Dropping it without [`close`](Self::close) is a crash: what was not durable is lost, and its tickets fail.
pub struct Database<S: SegmentStore> {
    pub(crate) shared: Arc<Shared<S>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Of [`Self::commit_step`].
    pace: Mutex<Pace>,
    recovery: RecoveryReport,
}

impl<S: SegmentStore> std::fmt::Debug for Database<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database")
            .field("objects", &self.shared.table.objects())
            .finish_non_exhaustive()
    }
}

impl<S: SegmentStore> Database<S> {
    /// Recovers what the store holds and starts the commit thread. All memory is allocated here. After a crash that
    /// left much log, a checkpoint is written first; [`Self::health`] tells of a store that cannot be written.
    ///
    /// # Errors
    /// [`Error::OptionInvalid`], [`Error::TableTooSmall`], [`Error::Thread`]; [`Error::Version`] for a file or a key of
    /// a later format; [`Error::Store`] when the device is gone. Damage is no error, see [`Self::recovery`].
    pub fn open(store: S, clock: Arc<dyn Clock>, options: DbOptions) -> Result<Self, Error> {
        options.check()?;
        let lines = Table::lines_needed(options.table_size())?;
        Self::open_in(store, clock, options, TableMemory::own(lines))
    }

    /// As [`open`](Self::open), with the slot table in zeroed memory of the caller: [`Table::lines_needed`] returns how
    /// much.
    ///
    /// # Errors
    /// Those of [`open`](Self::open); [`Error::RegionInvalid`] when the memory is too short.
    pub fn open_in(
        mut store: S,
        clock: Arc<dyn Clock>,
        options: DbOptions,
        memory: TableMemory,
    ) -> Result<Self, Error> {
        options.check()?;
        // Keys may come from the network: an outside sender must not be able to choose keys that collide.
        let seed = RandomState::new().hash_one(clock.monotonic_ns());
        let table = Table::create_in(memory, options.table_size(), seed)?;
        let recovered = recovery::recover(&mut store, &table, options.segment_bytes_max)?;
        let mut writer = LogWriter::new(
            &options,
            Seal::of(store.secret()),
            recovered.next_segment,
            recovered.next_lsn,
        );
        writer.set_older_store(recovered.is_older_store);
        if let Some((segment, length)) = recovered.resume {
            writer.resume(store.open(&segment_name(segment))?, segment, length);
        }
        let admission = Admission::new(
            options.objects_max,
            f64::from(options.admission_percent_min) / 100.0,
            options.admission_quality,
        );
        admission.begin(clock.monotonic_ns(), |object| table.updates(object));
        let capacity_bytes = store.capacity_bytes();
        let segments = recovered.segments;
        writer.set_segments(segments);
        let boot_id = clock.boot_id();
        let shared = Arc::new(Shared {
            table,
            owners: SharedOwners::new(recovered.owners),
            boot_tag: boot_tag(&boot_id),
            boot_id,
            queue: PiLock::new(Queue::new(options.queue_bytes_max, recovered.next_lsn)),
            admission,
            alarms: OnceLock::new(),
            progress: Arc::new(Progress::new(recovered.next_lsn)),
            core: Mutex::new(Core {
                store: Some(store),
                writer,
                drained: touched_buffer(options.queue_bytes_max),
                done: Done::default(),
                checkpoint: None,
                next_checkpoint: recovered.next_checkpoint,
                current_checkpoint: recovered.report.checkpoint,
                needed_from: recovered.needed_from,
                needed_from_next: 0,
                index: Index::default(),
                room_sought_at: None,
                failed_at: None,
                stale_checkpoints: recovered.stale_checkpoints,
                log_bytes: recovered.log_bytes,
                replay_bytes: recovered.log_bytes,
            }),
            counters: Mutex::new(LogCounters {
                replay_bytes: recovered.log_bytes,
                ..LogCounters::default()
            }),
            // Later samples compare with this one.
            wall: Latest::new(Wall::sample(&*clock)),
            asleep: AtomicBool::new(false),
            in_flight_since_ns: AtomicU64::new(NO_READING),
            in_flight: AtomicBool::new(false),
            clock_changed: AtomicBool::new(false),
            clock_steps: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
            retention: Mutex::new(options.retention),
            held_from: AtomicU64::new(u64::MAX),
            capacity_bytes,
            store_waiters: AtomicU32::new(0),
            commit_waits: AtomicBool::new(false),
            thread: OnceLock::new(),
            woken: AtomicBool::new(false),
            clock,
            options,
        });
        shared.catch_up();
        let mut thread = None;
        if options.commit_driver == CommitDriver::Thread {
            let name = "db-commit";
            let runner = Arc::clone(&shared);
            let spawned = std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || runner.run());
            let handle = spawned.map_err(|_| Error::Thread { name })?;
            let _ = shared.thread.set(handle.thread().clone());
            thread = Some(handle);
        }
        Ok(Self {
            shared,
            thread: Mutex::new(thread),
            pace: Mutex::default(),
            recovery: recovered.report,
        })
    }

    /// Returns what the start found on flash.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.recovery
    }

    /// Declares an object, or changes the validity of one that exists. Not for real-time callers: it may wait while the
    /// queue is full. The declaration is on flash no later than the object's first reading.
    ///
    /// # Errors
    /// [`Error::KeyInvalid`], [`Error::TableFull`], [`Error::KeysFull`], [`Error::Closed`], [`Error::LogFailed`],
    /// [`Error::Full`].
    pub fn declare(&self, spec: &ObjectSpec<'_>) -> Result<ObjectId, Error> {
        let table = &self.shared.table;
        let before = table.lookup(spec.key).map(|id| table.validity(id));
        let (id, changed) = table.insert(spec.key, spec.avi_ms, spec.temporal)?;
        if !changed {
            return Ok(id);
        }
        self.bind_alarms(id);
        let entry = self.declaration(id);
        loop {
            {
                let mut queue = self.shared.queue.lock();
                if let Err(error) = Self::check_open(&queue) {
                    drop(queue);
                    // Undo the change: otherwise the same call, repeated, would find nothing to do.
                    let (avi_ms, temporal) = before.unwrap_or((0, false));
                    table.insert(spec.key, avi_ms, temporal)?;
                    return Err(error);
                }
                if queue.has_room(&entry) {
                    queue.push(&entry);
                    let wake = std::mem::take(&mut queue.sleeping);
                    drop(queue);
                    if wake {
                        self.shared.wake();
                    }
                    return Ok(id);
                }
                queue.urgent = true;
            }
            self.push_on(QUEUE_WAIT)?;
        }
    }

    /// As [`declare`](Self::declare), but never waits: for callers that serve other requests meanwhile. If the queue
    /// has no room or the log takes nothing, the object still exists. Its declaration then reaches flash with its first
    /// reading in each segment, or with the next checkpoint.
    ///
    /// # Errors
    /// [`Error::KeyInvalid`], [`Error::TableFull`], [`Error::KeysFull`].
    pub fn try_declare(&self, spec: &ObjectSpec<'_>) -> Result<ObjectId, Error> {
        let (id, changed) = self
            .shared
            .table
            .insert(spec.key, spec.avi_ms, spec.temporal)?;
        if changed {
            self.bind_alarms(id);
            let entry = self.declaration(id);
            let mut queue = self.shared.queue.lock();
            if Self::check_open(&queue).is_ok() && queue.has_room(&entry) {
                queue.push(&entry);
                let wake = std::mem::take(&mut queue.sleeping);
                drop(queue);
                if wake {
                    self.shared.wake();
                }
            }
        }
        Ok(id)
    }

    fn declaration(&self, id: ObjectId) -> Entry<'static> {
        Entry {
            kind: EntryKind::Declared,
            id: id.0,
            time: Time::from_ms(0),
            arrival_ns: self.shared.clock.monotonic_ns(),
            wall_trusted: false,
            node_time: false,
            retained: false,
            value: &[],
        }
    }

    /// Lets the commit side work: wakes the thread and waits for progress, or runs a round here.
    fn push_on(&self, wait: Duration) -> Result<(), Error> {
        match self.shared.options.commit_driver {
            CommitDriver::Manual | CommitDriver::Stepped => {
                self.shared.round().map(|_| ()).map_err(Error::from)
            }
            CommitDriver::Thread => {
                self.shared.wake();
                self.shared.progress.wait_change(wait);
                Ok(())
            }
        }
    }

    pub(crate) fn check_open(queue: &Queue) -> Result<(), Error> {
        match queue.failure {
            Some(failure) => Err(failure.into()),
            None if queue.closed => Err(Error::Closed),
            None if queue.full => Err(Error::Full),
            None => Ok(()),
        }
    }

    /// The object with this key. No allocation, no lock.
    pub fn lookup(&self, key: &str) -> Option<ObjectId> {
        self.shared.table.lookup(key)
    }

    /// The key of an object; empty for an unknown one.
    pub fn key(&self, id: ObjectId) -> Key {
        self.shared.table.key(id)
    }

    /// Objects declared; their ids are `0..objects()`.
    pub fn objects(&self) -> u32 {
        self.shared.table.objects()
    }

    /// Validity interval in ms of an object, and whether it is temporal.
    pub fn validity(&self, id: ObjectId) -> (u32, bool) {
        self.shared.table.validity(id)
    }

    /// Gives the key of an object to a series, unless another one has it by this template. It is on flash no later than
    /// the next reading of the object that is put after this call, and is known after every restart. Not for real-time
    /// callers: it may wait while a piece of a checkpoint is made.
    ///
    /// # Errors
    /// The series that has the key.
    pub fn claim(&self, owner: &Owner<'_>) -> Result<(), String> {
        self.shared.owners.lock().claim(owner)
    }

    /// As [`claim`](Self::claim), for a template with `relatives`: others that make keys of the same form. Of the
    /// series that these and this template know, the first one has the key.
    ///
    /// # Errors
    /// The series that has the key.
    pub fn claim_beside(&self, owner: &Owner<'_>, relatives: &[u32]) -> Result<(), String> {
        self.shared.owners.lock().claim_beside(owner, relatives)
    }

    /// Takes the key of an object from the series that have it, one by each template. The next series by each template
    /// gets it. Returns how many series had it. This holds at once, and over a power cut after
    /// [`flush_owners`](Self::flush_owners).
    pub fn release(&self, id: ObjectId) -> usize {
        self.shared.owners.lock().release(id.0)
    }

    /// Waits until every [`claim`](Self::claim) and [`release`](Self::release) from before this call is on flash, also
    /// without a reading behind it.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::LogFailed`], [`Error::Full`], [`Error::Closed`]; it may be on flash nevertheless.
    pub fn flush_owners(&self, timeout: Duration) -> Result<(), Error> {
        let begin = Instant::now();
        let Some((end, id)) = self.shared.owners.lock().last_waiting() else {
            return Ok(());
        };
        // A commit logs owners before its entries; it takes an entry to have one.
        let entry = self.declaration(ObjectId(id));
        let mut is_queued = false;
        while self.shared.owners.lock().logged() < end {
            {
                let mut queue = self.shared.queue.lock();
                Self::check_open(&queue)?;
                if !is_queued && queue.has_room(&entry) {
                    queue.push(&entry);
                    is_queued = true;
                }
                queue.urgent = true;
            }
            let left = timeout.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(Error::Timeout);
            }
            self.push_on(left.min(QUEUE_WAIT))?;
        }
        Ok(())
    }

    /// Reads the latest value with its age at the wall clock's now. No lock, allocation or system call.
    ///
    /// # Errors
    /// [`Error::UnknownObject`], [`Error::NoValue`], [`Error::BufferTooSmall`]; [`Error::Stalled`] if another process
    /// has overwritten shared memory, until the next put.
    pub fn get(&self, id: ObjectId, value: &mut [u8]) -> Result<Got, Error> {
        // A clock read waits for earlier instructions, but not for prefetches: together they take only as long as the
        // longer one.
        self.shared.table.fetch(id, value.len());
        let now = Time::from_ns(self.shared.clock.wall_ns());
        self.get_at(id, now, value)
    }

    /// Reads the latest value with its age at `now`, a time of the sensors' clock.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_at(&self, id: ObjectId, now: Time, value: &mut [u8]) -> Result<Got, Error> {
        let read = self.shared.table.read_within(id, value, OWN_NAPS_MAX)?;
        // Read the monotonic clock only where it decides: that takes longer than the rest.
        let age_ns = if read.node_time && !SeededBug::AgeByWall.is_on() {
            self.now(now)
                .age_ns(read.time, true, read.arrival_ns, read.boot_tag)
        } else {
            now.since_ns(read.time)
        };
        Ok(Got {
            value_bytes: read.value_bytes,
            time: read.time,
            age_ms: age_ns / 1_000_000,
            fresh: read.is_fresh(age_ns),
            node_time: read.node_time,
            retained: read.retained,
            arrival_ns: read.arrival_ns,
            this_boot: read.boot_tag == self.shared.boot_tag,
            wall_trusted: read.wall_trusted,
        })
    }

    fn now(&self, wall: Time) -> Now {
        Now {
            wall,
            monotonic_ns: self.shared.clock.monotonic_ns(),
            boot_tag: self.shared.boot_tag,
        }
    }

    /// Readings numbered below this are on flash.
    pub fn durable_end(&self) -> u64 {
        self.shared.progress.durable_end()
    }

    /// Blocks until [`durable_end`](Self::durable_end) passes `seen` or `timeout` has passed; returns its value.
    ///
    /// # Errors
    /// [`Error::LogFailed`], [`Error::Full`], [`Error::Closed`] when it will not move any more.
    pub fn wait_durable_past(&self, seen: u64, timeout: Duration) -> Result<u64, Error> {
        self.shared.progress.wait_past(seen, timeout)
    }

    /// Sets what is kept from now on; takes effect with the next [`maintain`](Self::maintain).
    pub fn set_retention(&self, retention: Retention) {
        *lock(&self.shared.retention) = retention;
    }

    /// Runs one bounded step of indexing and retention; `true` when there is more to do at once.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Closed`].
    pub fn maintain(&self) -> Result<bool, Error> {
        let mut core = self.shared.lock_core();
        self.shared.maintain(&mut core)
    }

    /// Reads one bounded slice of a range, in the order of arrival; `true` when there is more. The commit thread waits
    /// for at most one slice.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Closed`], [`Error::Version`].
    pub fn history(
        &self,
        query: &HistoryQuery,
        cursor: &mut HistoryCursor,
        visit: &mut dyn FnMut(&HistoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<bool, Error> {
        let more = self.with_log(|source| history::slice(source, query, cursor))?;
        // Freed after the visit: a cursor may wait for its client between two slices.
        let flow = std::mem::take(&mut cursor.found).visit(visit);
        if flow.is_break() {
            history::stop(cursor);
            return Ok(false);
        }
        Ok(more)
    }

    /// Runs one bounded step of indexing the segments. `true`: more to do. Until all segments are indexed,
    /// [`follow`](Self::follow) cannot date all readings of earlier boots whose time was not trusted.
    ///
    /// # Errors
    /// As [`history`](Self::history).
    pub fn index_step(&self) -> Result<bool, Error> {
        self.with_log(history::index_step)
    }

    /// Runs one bounded step through the log in the order of its numbers, over durable readings numbered below
    /// `end_lsn`. At most `readings_max` readings of the objects that `is_wanted` selects are passed to `visit`, after
    /// the lock is released. The commit thread waits for at most one step, which is a quarter of a slice of
    /// [`Self::history`].
    ///
    /// # Errors
    /// As [`history`](Self::history).
    pub fn follow(
        &self,
        cursor: &mut LogCursor,
        end_lsn: u64,
        readings_max: usize,
        is_wanted: &mut dyn FnMut(ObjectId) -> bool,
        visit: &mut dyn FnMut(&HistoryEntry<'_>),
    ) -> Result<LogStep, Error> {
        if cursor.next_lsn() >= end_lsn.min(self.durable_end()) {
            return Ok(LogStep::default());
        }
        let step = self.with_log(|source| {
            // Under the lock no append runs: exactly the durable readings can be read.
            let end_lsn = end_lsn.min(self.durable_end());
            let mut limits = StepLimits {
                end_lsn,
                readings_max,
                is_wanted,
                is_awaited: &|| self.shared.commit_waits.load(Ordering::Relaxed),
            };
            follow::step(source, cursor, &mut limits)
        })?;
        let _ = cursor.found.visit(&mut |entry| {
            visit(entry);
            ControlFlow::Continue(())
        });
        Ok(step)
    }

    fn with_log<R>(
        &self,
        read: impl FnOnce(&mut history::Source<'_, S>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let shared = &*self.shared;
        let wall = shared.sample_wall();
        let present = wall.trusted.then(|| shared.present(wall));
        let mut guard = shared.lock_core();
        let core = &mut *guard;
        while shared.adopt(core)? {}
        let active = core.writer.active();
        let mut source = history::Source {
            store: core.store.as_mut().ok_or(Error::Closed)?,
            index: &mut core.index,
            segments: core.writer.segments(),
            active,
            live: core.writer.summary(),
            limits: shared.limits(),
            present: present.map(|sample| (shared.boot_id, sample)),
        };
        read(&mut source)
    }

    /// Returns the number of the oldest reading of the log, or of the next one if the log is empty. Reads a segment's
    /// beginning if nothing is known of it yet.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn oldest_lsn(&self) -> Result<u64, Error> {
        let end = self.durable_end();
        self.with_log(|source| {
            let mut segments = source.segments.iter();
            let first = segments
                .find_map(|segment| source.index.first_lsn(source.store, *segment, source.live));
            Ok(first.unwrap_or(end))
        })
    }

    /// Holds readings numbered from `lsn` on: they are not deleted by the limits of the history, but only by
    /// [`Retention::backlog_bytes_max`] or in a full store. `None` holds no readings.
    pub fn hold_from(&self, lsn: Option<u64>) {
        let lsn = lsn.unwrap_or(u64::MAX);
        self.shared.held_from.store(lsn, Ordering::Relaxed);
    }

    /// Counts the temporal objects that are fresh at `now`, and all of them. One pass over the table.
    pub fn fresh_count(&self, now: Time) -> FreshCount {
        self.shared.table.fresh_count(&self.now(now))
    }

    /// Waits until everything that was put or declared before is on flash.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::LogFailed`], [`Error::Full`].
    pub fn flush(&self, timeout: Duration) -> Result<(), Error> {
        let begin = Instant::now();
        loop {
            {
                let mut queue = self.shared.queue.lock();
                if let Some(failure) = queue.failure {
                    return Err(failure.into());
                }
                if queue.full {
                    return Err(Error::Full);
                }
                if queue.is_empty() && !self.shared.in_flight.load(Ordering::Acquire) {
                    return Ok(());
                }
                queue.urgent = true;
            }
            let left = timeout.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(Error::Timeout);
            }
            self.push_on(left.min(QUEUE_WAIT))?;
        }
    }

    /// Locks in memory what readers and producers touch: the slot table, both halves of the queue, the admission state.
    /// Returns one line for each part that the machine did not permit; the database works without. Call this at the
    /// start: it may take long.
    pub fn lock_memory(&self) -> Vec<String> {
        let shared = &*self.shared;
        let table = realtime::lock_memory("the slot table", shared.table.memory().as_ref());
        // Hold the commit side's lock, so that the two buffers are not swapped meanwhile.
        let core = shared.lock_core();
        let (begin, bytes) = shared.queue.lock().memory();
        let waiting = realtime::lock_range("the queue", begin, bytes);
        let (begin, bytes) = (core.drained.as_ptr().addr(), core.drained.capacity());
        let drained = realtime::lock_range("the queue's other half", begin, bytes);
        drop(core);
        let admission = shared.admission.lock_memory();
        [table, waiting, drained, admission]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Lends the store between two rounds of the commit thread, which waits meanwhile. `None` once closed.
    pub fn with_store<R>(&self, use_store: impl FnOnce(&mut S) -> R) -> Option<R> {
        let mut core = self.shared.lock_core();
        core.store.as_mut().map(use_store)
    }

    /// Whether readings become durable.
    pub fn health(&self) -> Health {
        let now_ns = self.shared.clock.monotonic_ns();
        let (failure, full, refused_last_ns) = {
            let queue = self.shared.queue.lock();
            (
                queue.failure.or(queue.closed.then_some(LogFailure::Closed)),
                queue.full,
                queue.busy_last_ns.max(queue.refused_full_last_ns),
            )
        };
        let (checkpoint_failing, dropped_last_ns) = {
            let counters = lock(&self.shared.counters);
            (counters.checkpoint_failing, counters.dropped_last_ns)
        };
        let dropping = refused_last_ns
            .max(dropped_last_ns)
            .is_some_and(|last| now_ns.saturating_sub(last) < DROPPING_SHOWN_NS);
        match failure {
            Some(failure) => Health::LogFailed(failure),
            None if full => Health::Full,
            None if checkpoint_failing.is_some() => Health::CheckpointFailing,
            None if dropping => Health::Dropping,
            None => Health::Ok,
        }
    }

    /// Returns whether the commit thread has work, and its progress: for a watchdog. Waits for no device.
    pub fn pulse(&self) -> Pulse {
        let queue = self.shared.queue.lock();
        Pulse {
            rounds: self.shared.rounds.load(Ordering::Relaxed),
            is_waiting: !queue.is_empty() || self.shared.in_flight.load(Ordering::Acquire),
            is_over: queue.failure.is_some() || queue.closed,
        }
    }

    /// Returns a copy of every figure. Holds the producers' lock for a few loads, and allocates after releasing it.
    pub fn stats(&self) -> Stats {
        let shared = &*self.shared;
        let health = self.health();
        let now_ns = shared.clock.monotonic_ns();
        let queue = shared.queue.lock();
        let (puts, busy) = (queue.puts, queue.busy);
        let (refused, outdated) = (queue.refused, queue.outdated);
        let (shed, dropped_by_admission) = (queue.shed, queue.dropped);
        let (full, refused_full) = (queue.full, queue.refused_full);
        let (next_lsn, queue_bytes) = (queue.next_lsn, queue.bytes() as u64);
        let in_flight_ns = Some(shared.in_flight_since_ns.load(Ordering::Relaxed))
            .filter(|arrival_ns| *arrival_ns != NO_READING);
        let oldest_ns = in_flight_ns.or(queue.first_reading_ns);
        // Release the lock first: the histograms are copied below, and no producer must wait for that.
        drop(queue);
        let table_checkpoint_bytes = checkpoint::content_bytes_max(shared.content());
        let counters = lock(&shared.counters);
        Stats {
            puts,
            busy,
            refused,
            outdated,
            shed,
            dropped_by_admission,
            outstanding: next_lsn.saturating_sub(shared.progress.durable_end()),
            queue_bytes,
            durable_lag_ms: oldest_ns
                .map_or(0.0, |oldest| now_ns.saturating_sub(oldest) as f64 / 1e6),
            batches: counters.batches,
            appends: counters.appends,
            log_bytes: counters.log_bytes,
            readings: counters.readings,
            checkpoints: counters.checkpoints,
            checkpoint_bytes: counters.checkpoint_bytes,
            checkpoints_failed: counters.checkpoints_failed,
            checkpoint_failing: counters.checkpoint_failing,
            replay_bytes: counters.replay_bytes,
            table_checkpoint_bytes,
            store_bytes: shared.capacity_bytes,
            full,
            refused_full,
            segments: counters.segments,
            history_bytes: counters.history_bytes,
            oldest_lsn: counters.oldest_lsn,
            readings_expired: counters.readings_expired,
            segments_expired: counters.segments_expired,
            readings_dropped: counters.readings_dropped,
            segments_dropped: counters.segments_dropped,
            wall_trusted: shared.wall.get().trusted,
            clock_steps: shared.clock_steps.load(Ordering::Relaxed),
            damage: counters.damage,
            objects: shared.table.objects(),
            keys_bytes: shared.table.keys_bytes(),
            keys_bytes_max: shared.table.keys_bytes_max(),
            table_bytes: shared.table.bytes() as u64,
            health,
            append_ns: counters.append_ns.clone(),
            put_durable_ns: counters.put_durable_ns.clone(),
        }
    }

    /// Makes everything durable, writes a checkpoint and returns the store. Later puts return [`Error::Closed`].
    ///
    /// # Errors
    /// [`Error::LogFailed`], [`Error::Full`]; the store is then still available from [`abandon`](Self::abandon).
    pub fn close(&self) -> Result<S, Error> {
        self.shared.queue.lock().closed = true;
        self.stop_thread();
        self.shared.round()?;
        let mut core = lock(&self.shared.core);
        // A running checkpoint may lack the last values; they are in the log after its position.
        if core.checkpoint.is_some() {
            self.shared.finish_checkpoint(&mut core)?;
        }
        if core.log_bytes > 0 || core.current_checkpoint.is_none() {
            self.shared.finish_checkpoint(&mut core)?;
        }
        let store = core.store.take().ok_or(Error::Closed)?;
        drop(core);
        self.shared.fail(LogFailure::Closed);
        Ok(store)
    }

    /// Stops at once, as a crash would, and returns the store: what is not durable is lost, and its tickets fail.
    /// `None` if it was closed before.
    pub fn abandon(&self) -> Option<S> {
        self.shared.queue.lock().closed = true;
        self.stop_thread();
        self.shared.fail(LogFailure::Closed);
        lock(&self.shared.core).store.take()
    }

    fn stop_thread(&self) {
        self.shared.queue.lock().stop = true;
        self.shared.wake();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // A panic of the thread was already reported as a failed log.
            let _ = thread.join();
        }
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared.clock
    }
}

impl<S: SegmentStore> Drop for Database<S> {
    fn drop(&mut self) {
        drop(self.abandon());
    }
}
