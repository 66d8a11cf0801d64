//! The commit side: rounds of group commit and checkpoint pieces, and the thread that drives them.
//!
//! **Locks.** Producers take `queue` alone. The commit side takes `core` for a round (an append, a piece) and
//! `queue` inside it for one buffer swap; `counters` is taken last and never around a store call. So a producer
//! never waits for the store, and a caller of `with_store` waits for at most one round.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use base::clock::Clock;

use crate::error::LogFailure;
use crate::log::checkpoint::{CheckpointWriter, Step};
use crate::log::checkpoint_name;
use crate::log::writer::{LogWriter, NO_READING, Surroundings, failure_of};
use crate::options::DbOptions;
use crate::queue::Queue;
use crate::stats::LogCounters;
use crate::store::{SegmentStore, StoreError};
use crate::table::Table;
use crate::ticket::Progress;

/// Everything that producers, readers and the commit thread share.
pub(crate) struct Shared<S: SegmentStore> {
    pub(crate) table: Table,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: DbOptions,
    pub(crate) boot_id: [u8; 16],
    pub(crate) boot_tag: u64,
    pub(crate) queue: Mutex<Queue>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) core: Mutex<Core<S>>,
    pub(crate) counters: Mutex<LogCounters>,
    /// Sampled by the commit side at each round and after each nap, so that `put` needs no system call for it.
    pub(crate) wall_trusted: AtomicBool,
    /// The commit thread sleeps without a timer: the flag above grows old, `put` samples it itself.
    pub(crate) asleep: AtomicBool,
    /// Arrival of the oldest reading in the round that is not durable yet, or [`NO_READING`].
    pub(crate) in_flight_since_ns: AtomicU64,
    pub(crate) in_flight: AtomicBool,
    pub(crate) store_waiters: AtomicU32,
    pub(crate) thread: OnceLock<Thread>,
}

/// What only the commit side touches.
pub(crate) struct Core<S: SegmentStore> {
    pub(crate) store: Option<S>,
    pub(crate) writer: LogWriter<S::File>,
    pub(crate) drained: Vec<u8>,
    pub(crate) checkpoint: Option<CheckpointWriter<S::File>>,
    pub(crate) next_checkpoint: u32,
    /// The checkpoint that a restart would use.
    pub(crate) current_checkpoint: Option<u32>,
    /// Checkpoint files that are of no use.
    pub(crate) stale_checkpoints: Vec<u32>,
    /// Log bytes since the position of the last checkpoint begun.
    pub(crate) log_bytes: u64,
}

/// What the thread does next.
enum Plan {
    Stop,
    Round,
    Nap(Duration),
    Sleep,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every structure behind these locks is valid between two statements, so a panic elsewhere spoils nothing.
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

impl<S: SegmentStore> Shared<S> {
    /// Commits what waits and writes one checkpoint piece if one is due. `true` while a checkpoint is unfinished.
    pub(crate) fn round(&self) -> Result<bool, LogFailure> {
        let mut guard = lock(&self.core);
        let core = &mut *guard;
        let Some(store) = core.store.as_mut() else {
            return Err(LogFailure::Closed);
        };
        {
            let mut queue = lock(&self.queue);
            if let Some(failure) = queue.failure {
                return Err(failure);
            }
            self.in_flight_since_ns.store(
                queue.first_reading_ns.unwrap_or(NO_READING),
                Ordering::Relaxed,
            );
            self.in_flight.store(!queue.is_empty(), Ordering::Relaxed);
            queue.swap(&mut core.drained);
        }
        self.sample_wall_trusted();
        let around = Surroundings {
            table: &self.table,
            clock: &*self.clock,
            boot_id: self.boot_id,
            progress: &self.progress,
            counters: &self.counters,
            in_flight_since_ns: &self.in_flight_since_ns,
        };
        if !core.drained.is_empty() {
            let before = core.writer.bytes_appended();
            let committed = core.writer.commit(store, &around, &core.drained);
            core.log_bytes += core.writer.bytes_appended() - before;
            core.drained.clear();
            if let Err(failure) = committed {
                self.fail(failure);
                return Err(failure);
            }
            self.in_flight.store(false, Ordering::Release);
            lock(&self.counters).batches += 1;
        }
        let due = core.checkpoint.is_some() || core.log_bytes >= self.options.checkpoint_bytes;
        if due && let Err(failure) = self.checkpoint_piece(core) {
            self.fail(failure);
            return Err(failure);
        }
        Ok(core.checkpoint.is_some())
    }

    /// Begins a checkpoint or writes its next piece. A full store only costs the checkpoint.
    pub(crate) fn checkpoint_piece(&self, core: &mut Core<S>) -> Result<(), LogFailure> {
        let Some(store) = core.store.as_mut() else {
            return Err(LogFailure::Closed);
        };
        let mut writer = match core.checkpoint.take() {
            Some(writer) => writer,
            None => {
                core.log_bytes = 0;
                for number in core.stale_checkpoints.drain(..) {
                    if let Err(StoreError::Failed { .. }) = store.delete(&checkpoint_name(number)) {
                        return Err(LogFailure::Device);
                    }
                }
                let number = core.next_checkpoint;
                core.next_checkpoint = number.saturating_add(1);
                match CheckpointWriter::begin(
                    store,
                    number,
                    core.writer.mark(),
                    &self.table,
                    &self.options,
                ) {
                    Ok(writer) => writer,
                    Err(LogFailure::Full) => return self.checkpoint_failed(),
                    Err(failure) => return Err(failure),
                }
            }
        };
        match writer.step(store, &self.table) {
            Ok(Step::More) => core.checkpoint = Some(writer),
            Ok(Step::Done(bytes)) => {
                let before = core.current_checkpoint.replace(writer.number());
                writer.end(store, true);
                {
                    let mut counters = lock(&self.counters);
                    counters.checkpoints += 1;
                    counters.checkpoint_bytes += bytes;
                    counters.checkpoint_failing = false;
                }
                if let Some(before) = before
                    && let Err(error) = store.delete(&checkpoint_name(before))
                {
                    core.stale_checkpoints.push(before);
                    if matches!(error, StoreError::Failed { .. }) {
                        return Err(failure_of(&error));
                    }
                }
            }
            Err(failure) => {
                writer.end(store, false);
                if failure == LogFailure::Full {
                    return self.checkpoint_failed();
                }
                return Err(failure);
            }
        }
        Ok(())
    }

    fn checkpoint_failed(&self) -> Result<(), LogFailure> {
        let mut counters = lock(&self.counters);
        counters.checkpoints_failed += 1;
        counters.checkpoint_failing = true;
        Ok(())
    }

    /// The log takes nothing more: every open ticket and every later put is told.
    pub(crate) fn fail(&self, failure: LogFailure) {
        let mut queue = lock(&self.queue);
        queue.failure.get_or_insert(failure);
        drop(queue);
        self.progress.fail(failure);
    }

    /// Asks the clock whether its wall time is trusted, for this and later readings.
    pub(crate) fn sample_wall_trusted(&self) -> bool {
        let trusted = self.clock.wall_is_trusted();
        self.wall_trusted.store(trusted, Ordering::Relaxed);
        trusted
    }

    pub(crate) fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn plan(&self, checkpointing: bool, napped: bool) -> Plan {
        let interval = Duration::from_millis(u64::from(self.options.commit_interval_ms));
        let mut queue = lock(&self.queue);
        if queue.stop || queue.failure.is_some() {
            return Plan::Stop;
        }
        if let Some(first) = queue.first {
            let left = interval.saturating_sub(Instant::now().saturating_duration_since(first));
            if queue.urgent || queue.is_pressed() || left.is_zero() || checkpointing {
                return Plan::Round;
            }
            return Plan::Nap(left);
        }
        if checkpointing {
            return Plan::Round;
        }
        queue.urgent = false;
        if !napped {
            // While readings keep coming none of them has to wake this thread.
            return Plan::Nap(interval);
        }
        queue.sleeping = true;
        Plan::Sleep
    }

    /// The commit thread.
    pub(crate) fn run(&self) {
        let _guard = FailOnPanic(self);
        let (mut checkpointing, mut napped) = (false, false);
        loop {
            match self.plan(checkpointing, napped) {
                Plan::Stop => return,
                Plan::Nap(time) => {
                    napped = true;
                    std::thread::park_timeout(time);
                    self.sample_wall_trusted();
                }
                Plan::Sleep => {
                    self.asleep.store(true, Ordering::Relaxed);
                    std::thread::park();
                    self.sample_wall_trusted();
                    self.asleep.store(false, Ordering::Relaxed);
                }
                Plan::Round => {
                    napped = false;
                    match self.round() {
                        Ok(unfinished) => checkpointing = unfinished,
                        Err(_) => return,
                    }
                    if self.store_waiters.load(Ordering::Relaxed) > 0 {
                        // The lock is not fair: let whoever waits for the store have it between two rounds.
                        std::thread::sleep(Duration::from_micros(50));
                    }
                }
            }
        }
    }
}

/// A commit thread that dies must not leave a database that looks healthy.
struct FailOnPanic<'a, S: SegmentStore>(&'a Shared<S>);

impl<S: SegmentStore> Drop for FailOnPanic<'_, S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(LogFailure::Device);
        }
    }
}
