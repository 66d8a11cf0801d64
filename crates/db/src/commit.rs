//! The commit side: rounds of group commit and checkpoint pieces, and the thread that drives them.
//!
//! **Locks.** Producers take `queue` alone. The commit side takes `core` for a round (an append, a piece) and
//! `queue` inside it for one buffer swap; `counters` is taken last and never around a store call. So a producer
//! never waits for the store, and a caller of `with_store` waits for at most one round.
//!
//! **Pace of checkpoints.** After each commit, a checkpoint that is due gets at least one piece. It gets more if it
//! needs them to keep pace with the log's growth since it began. So the log that a start reads is bounded under any
//! load. A round writes little more of a checkpoint than of the log, and a lone put waits for one piece. A start that
//! finds as much log as a checkpoint is written within writes a checkpoint before it takes readings:
//! [`Shared::catch_up`].

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use base::clock::Clock;
use base::seeded_bug::SeededBug;

use crate::alarm::watches::AlarmRules;
use crate::error::LogFailure;
use crate::history::index::{self, Index};
use crate::log::checkpoint::{self, CheckpointWriter, Content, Step};
use crate::log::counters::{CheckpointFailure, LogCounters};
use crate::log::owners::SharedOwners;
use crate::log::writer::{Done, LogWriter, NO_READING, Surroundings, failure_of};
use crate::log::{checkpoint_name, segment_name};
use crate::mutex::lock;
use crate::options::{CommitDriver, DbOptions, FullPolicy, Retention};
use crate::pi_lock::PiLock;
use crate::qos::admission::Admission;
use crate::queue::Queue;
use crate::room;
use crate::store::{SegmentStore, StoreError};
use crate::table::Table;
use crate::ticket::Progress;
use crate::wall::{Latest, Wall};

/// Everything that producers, readers and the commit thread share.
pub(crate) struct Shared<S: SegmentStore> {
    pub(crate) table: Table,
    /// Which series has each key.
    pub(crate) owners: SharedOwners,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: DbOptions,
    pub(crate) boot_id: [u8; 16],
    pub(crate) boot_tag: u64,
    pub(crate) queue: PiLock<Queue>,
    pub(crate) admission: Admission,
    /// Alarms, if they are set.
    pub(crate) alarms: OnceLock<AlarmRules>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) core: Mutex<Core<S>>,
    pub(crate) counters: Mutex<LogCounters>,
    /// Sampled by the commit side at each round and after each nap, so that `put` needs no system call for it.
    pub(crate) wall: Latest,
    /// The commit thread sleeps without a timer: `wall` becomes stale, so `put` samples it itself.
    pub(crate) asleep: AtomicBool,
    /// Arrival of the oldest reading in the round that is not durable yet, or [`NO_READING`].
    pub(crate) in_flight_since_ns: AtomicU64,
    pub(crate) in_flight: AtomicBool,
    /// The clock was set, or its trust changed: the log must record the times again.
    pub(crate) clock_changed: AtomicBool,
    /// Steps of the wall clock seen.
    pub(crate) clock_steps: AtomicU64,
    /// Rounds that the commit thread has ended, with any result.
    pub(crate) rounds: AtomicU64,
    pub(crate) retention: Mutex<Retention>,
    /// Readings numbered from this on are held; `u64::MAX`: none.
    pub(crate) held_from: AtomicU64,
    /// Bytes that the store can hold.
    pub(crate) capacity_bytes: u64,
    /// Callers that wait for the store; the commit side lets them take it between two rounds.
    pub(crate) store_waiters: AtomicU32,
    /// The commit side waits for the store: other callers let it go first.
    pub(crate) commit_waits: AtomicBool,
    pub(crate) thread: OnceLock<Thread>,
    /// Without a thread: somebody has woken the commit side.
    pub(crate) woken: AtomicBool,
}

/// State of the commit side, behind its lock.
pub(crate) struct Core<S: SegmentStore> {
    pub(crate) store: Option<S>,
    pub(crate) writer: LogWriter<S::File>,
    pub(crate) drained: Vec<u8>,
    /// How much of `drained` is on flash.
    pub(crate) done: Done,
    pub(crate) checkpoint: Option<CheckpointWriter<S::File>>,
    pub(crate) next_checkpoint: u32,
    /// The checkpoint that a restart would use.
    pub(crate) current_checkpoint: Option<u32>,
    /// First segment that a restart from the current checkpoint would read.
    pub(crate) needed_from: Option<u32>,
    /// First segment that a restart from the checkpoint being written would read.
    pub(crate) needed_from_next: u32,
    /// What is known about the segments.
    pub(crate) index: Index,
    /// Log bytes appended when the commit side last tried to make room in a full store.
    pub(crate) room_sought_at: Option<u64>,
    /// Log bytes appended, and bytes free, when a checkpoint failed last; `None` since one was complete.
    pub(crate) failed_at: Option<(u64, u64)>,
    /// Checkpoint files that are not used any more.
    pub(crate) stale_checkpoints: Vec<u32>,
    /// Log bytes since the log position of the checkpoint that was begun last.
    pub(crate) log_bytes: u64,
    /// Log bytes since the log position of the current checkpoint: what a restart would read.
    pub(crate) replay_bytes: u64,
}

/// The outcome of a call for a checkpoint piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// The piece is written; others may follow.
    Written,
    /// The checkpoint has been given up.
    GivenUp,
}

impl<S: SegmentStore> Core<S> {
    /// Counts the log's growth since the writer had appended `before` bytes.
    fn count_log(&mut self, before: u64) {
        let grown = self.writer.bytes_appended() - before;
        self.log_bytes += grown;
        self.replay_bytes += grown;
    }
}

/// A change of the offset between the clocks above this is a step, not a rate correction.
const CLOCK_STEP_US: u64 = 1_000_000;
/// Poll interval for room in a full store.
const FULL_RETRY: Duration = Duration::from_millis(200);

/// Time for which one side leaves the store to the other.
const TURN: Duration = Duration::from_micros(50);
/// Most turns that a caller leaves to a waiting commit; a commit gets the lock in the first one.
const COMMIT_FIRST_TRIES: u32 = 100;

/// What the commit thread does next.
enum Plan {
    Stop,
    Round,
    Nap(Duration),
    Sleep,
}

/// What a step of the commit side was; see [`crate::Database::commit_step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitStep {
    /// A round. The next step follows at once.
    Round {
        /// A checkpoint is unfinished.
        unfinished: bool,
    },
    /// The beginning of a rest: the next step follows after this time, or when the commit side is woken.
    Nap(Duration),
    /// The beginning of a rest: the next step follows when the commit side is woken.
    Sleep,
    /// The end: the log has failed or is closed.
    End,
}

/// What the commit side knows from one step to the next.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    checkpointing: bool,
    napped: bool,
    rest: Option<Rest>,
}

/// A rest that the next step ends.
#[derive(Debug)]
enum Rest {
    Nap,
    Sleep,
}

impl<S: SegmentStore> Shared<S> {
    /// Commits the waiting entries and advances the checkpoint if one is due. Returns whether a checkpoint is
    /// unfinished.
    pub(crate) fn round(&self) -> Result<bool, LogFailure> {
        self.commit_waits.store(true, Ordering::Relaxed);
        let mut guard = lock(&self.core);
        self.commit_waits.store(false, Ordering::Relaxed);
        let core = &mut *guard;
        if core.store.is_none() {
            return Err(LogFailure::Closed);
        }
        self.sample_wall();
        {
            let mut queue = self.queue.lock();
            queue.checkpoint_due = false;
            if let Some(failure) = queue.failure {
                return Err(failure);
            }
        }
        let before = core.writer.bytes_appended();
        // First commit the entries that could not be written while the store was full.
        let mut committed = self.commit_drained(core);
        if committed.is_ok() {
            {
                let mut queue = self.queue.lock();
                self.in_flight_since_ns.store(
                    queue.first_reading_ns.unwrap_or(NO_READING),
                    Ordering::Relaxed,
                );
                self.in_flight.store(!queue.is_empty(), Ordering::Relaxed);
                queue.swap(&mut core.drained);
            }
            committed = self.commit_drained(core);
        }
        if let Err(failure) = committed
            && failure != LogFailure::Full
        {
            return Err(failure);
        }
        // Do this in a full store too: retention may wait for the checkpoint, and its room is reserved.
        let grown = core.writer.bytes_appended() - before;
        let advanced = self.advance_checkpoint(core, grown);
        lock(&self.counters).replay_bytes = core.replay_bytes;
        if let Err(failure) = advanced {
            self.fail(failure);
            return Err(failure);
        }
        committed.map(|()| core.checkpoint.is_some())
    }

    /// Makes the entries taken from the queue durable; when the store is full, makes room first, as configured.
    fn commit_drained(&self, core: &mut Core<S>) -> Result<(), LogFailure> {
        let clock_changed = self.clock_changed.swap(false, Ordering::Relaxed);
        if core.drained.is_empty() && !clock_changed {
            return Ok(());
        }
        let around = Surroundings {
            table: &self.table,
            owners: &self.owners,
            clock: &*self.clock,
            wall: self.wall.get(),
            boot_id: self.boot_id,
            progress: &self.progress,
            counters: &self.counters,
            in_flight_since_ns: &self.in_flight_since_ns,
        };
        core.writer.set_reserve_bytes(self.reserve_bytes());
        if clock_changed && let Some(store) = core.store.as_mut() {
            // Log the clock now: perhaps no reading follows, and earlier readings are dated by this.
            let before = core.writer.bytes_appended();
            let said = core.writer.say_clock(store, &around);
            core.count_log(before);
            match said {
                Ok(()) => {}
                Err(LogFailure::Full) => core.writer.anchor_next(),
                Err(failure) => {
                    self.fail(failure);
                    return Err(failure);
                }
            }
            if core.drained.is_empty() {
                return Ok(());
            }
        }
        loop {
            let Some(store) = core.store.as_mut() else {
                return Err(LogFailure::Closed);
            };
            let before = core.writer.bytes_appended();
            let committed = core
                .writer
                .commit(store, &around, &core.drained, &mut core.done);
            core.count_log(before);
            match committed {
                Ok(()) => break,
                Err(LogFailure::Full) => {
                    let made = self.make_room(core);
                    if let Err(failure) = made {
                        self.fail(failure);
                        return Err(failure);
                    }
                    if made == Ok(false) {
                        self.queue.lock().full = true;
                        return Err(LogFailure::Full);
                    }
                }
                Err(failure) => {
                    core.drained.clear();
                    self.fail(failure);
                    return Err(failure);
                }
            }
        }
        core.drained.clear();
        core.done = Done::default();
        self.in_flight.store(false, Ordering::Release);
        self.queue.lock().full = false;
        lock(&self.counters).batches += 1;
        Ok(())
    }

    /// What checkpoints are of.
    pub(crate) fn content(&self) -> Content<'_> {
        Content {
            table: &self.table,
            owners: &self.owners,
        }
    }

    /// Returns the bytes to keep free for a checkpoint of all objects, limited so that the log keeps enough room.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        let bytes = checkpoint::content_bytes_max(self.content());
        room::reserve_bytes(bytes, self.capacity_bytes)
    }

    /// Deletes the oldest segment if it exceeds the history limit or the policy says so, and a restart does not need
    /// it. Returns `false` if no room can be made.
    fn make_room(&self, core: &mut Core<S>) -> Result<bool, LogFailure> {
        let retention = *lock(&self.retention);
        // Readings may arrive faster than retention runs: what exceeds the history limit is deleted first.
        let too_much = self.is_too_much(core, &retention);
        if !too_much && retention.full_policy != FullPolicy::DropOldest {
            return Ok(false);
        }
        let appended = core.writer.bytes_appended();
        if !self.oldest_is_free(core) && core.room_sought_at != Some(appended) {
            // Only once per state of the log: another try would only wear the card.
            core.room_sought_at = Some(appended);
            // Write a checkpoint now, into the room reserved for it: the log before it can then be deleted.
            if core.writer.segments().len() == 1
                && core.writer.active().is_some_and(|(_, bytes)| bytes > 0)
                && let Some(store) = core.store.as_mut()
            {
                core.writer.leave_segment(store);
            }
            let failed = lock(&self.counters).checkpoints_failed;
            // A checkpoint that was already running may have begun too early.
            for _ in 0..2 {
                self.finish_checkpoint(core)?;
                if self.oldest_is_free(core) || lock(&self.counters).checkpoints_failed > failed {
                    break;
                }
            }
        }
        if !self.oldest_is_free(core) {
            return Ok(false);
        }
        let readings = self.delete_oldest(core)?;
        let mut counters = lock(&self.counters);
        if too_much {
            counters.segments_expired += 1;
            counters.readings_expired += readings;
        } else {
            counters.segments_dropped += 1;
            counters.readings_dropped += readings;
            counters.dropped_last_ns = Some(self.clock.monotonic_ns());
        }
        Ok(true)
    }

    /// Whether the oldest segment neither grows nor is needed by a restart.
    pub(crate) fn oldest_is_free(&self, core: &Core<S>) -> bool {
        let Some(oldest) = core.writer.segments().front() else {
            return false;
        };
        core.writer
            .active()
            .is_none_or(|(active, _)| *oldest < active)
            && core.needed_from.is_some_and(|needed| *oldest < needed)
    }

    /// Deletes the oldest segment and its index; returns the number of readings that it held.
    pub(crate) fn delete_oldest(&self, core: &mut Core<S>) -> Result<u64, LogFailure> {
        let Some(store) = core.store.as_mut() else {
            return Err(LogFailure::Closed);
        };
        let mut segments = core.writer.segments().iter();
        let Some(oldest) = segments.next().copied() else {
            return Ok(0);
        };
        let live = core.writer.summary();
        // A segment may have no first number: its first append was cut.
        let begin = core.index.first_lsn(store, oldest, live);
        let known = lock(&self.counters).oldest_lsn;
        let end = segments
            .find_map(|later| core.index.first_lsn(store, *later, live))
            .unwrap_or(core.writer.next_lsn());
        // Without any known number, nothing is known to be deleted: counting from 0 would count the whole log.
        let begin = begin.unwrap_or(if known == 0 { end } else { known });
        // Delete the index first: an index without a segment is found and removed, a segment without an index is only
        // read again.
        for name in [index::name(oldest), segment_name(oldest)] {
            match store.delete(&name) {
                Ok(()) | Err(StoreError::NotFound) => {}
                // Its directory entry cannot be read: the file stays, and deletion goes on with the next one.
                Err(StoreError::Damaged { .. }) => core.index.damage.files_unreadable += 1,
                Err(error) => return Err(failure_of(&error)),
            }
        }
        core.index.forget(oldest);
        core.writer.forget_oldest();
        lock(&self.counters).oldest_lsn = end;
        if SeededBug::ExpiryUncounted.is_on() {
            return Ok(0);
        }
        Ok(end.saturating_sub(begin))
    }

    /// Takes the store for a caller. The lock is not fair: a caller that calls again at once would get it again before
    /// the commit side has woken up. A range read calls slice after slice. So a caller lets a waiting commit go first.
    pub(crate) fn lock_core(&self) -> MutexGuard<'_, Core<S>> {
        for _ in 0..COMMIT_FIRST_TRIES {
            if !self.commit_waits.load(Ordering::Relaxed) {
                break;
            }
            std::thread::sleep(TURN);
        }
        self.store_waiters.fetch_add(1, Ordering::Relaxed);
        let core = lock(&self.core);
        self.store_waiters.fetch_sub(1, Ordering::Relaxed);
        core
    }

    /// Begins a checkpoint if one is due, and continues it as far as the log has grown since it began. Writes at least
    /// one piece, so that the checkpoint ends even if little arrives. The round has committed `grown` bytes.
    fn advance_checkpoint(&self, core: &mut Core<S>, grown: u64) -> Result<(), LogFailure> {
        let interval = self.options.checkpoint_bytes;
        // After a finished checkpoint the next one begins at once; otherwise a large round would come in between. Not
        // after a small commit: a producer may then wait for a single reading.
        let is_large = grown >= self.options.checkpoint_piece_bytes_max as u64;
        let mut is_first = true;
        loop {
            let until = match &mut core.checkpoint {
                Some(writer) => {
                    let due = writer.bytes_due(self.content(), interval, core.log_bytes);
                    if !is_first && writer.bytes() >= due {
                        return Ok(());
                    }
                    due
                }
                None if core.log_bytes >= interval && (is_first || is_large) => 0,
                None => return Ok(()),
            };
            is_first = false;
            if self.checkpoint_piece(core, until)? == Piece::GivenUp {
                // The store is full: the next round may find room.
                return Ok(());
            }
        }
    }

    /// Writes a checkpoint if the start has read as much log as a checkpoint is written within. Call before anything is
    /// taken: lives that end before their first checkpoint is whole then add nothing to this log, and no put waits.
    pub(crate) fn catch_up(&self) {
        let mut core = lock(&self.core);
        let within =
            checkpoint::content_bytes_max(self.content()).max(self.options.checkpoint_bytes);
        if core.replay_bytes < within {
            return;
        }
        if let Err(failure) = self.finish_checkpoint(&mut core) {
            // As in a round. The values that were found can be read, so this is no reason not to start.
            self.fail(failure);
        }
    }

    /// Writes all that is left of a checkpoint, or all of a new one.
    pub(crate) fn finish_checkpoint(&self, core: &mut Core<S>) -> Result<(), LogFailure> {
        loop {
            self.checkpoint_piece(core, u64::MAX)?;
            if core.checkpoint.is_none() {
                return Ok(());
            }
        }
    }

    /// Begins a checkpoint or writes its next piece; others follow at once up to `until` bytes of it. A full store
    /// costs only the checkpoint.
    fn checkpoint_piece(&self, core: &mut Core<S>, until: u64) -> Result<Piece, LogFailure> {
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
                let position = core.writer.mark();
                core.needed_from_next = position.segment;
                let at = (position, core.writer.is_older_store());
                match CheckpointWriter::begin(store, number, at, self.content(), &self.options) {
                    Ok(writer) => {
                        core.next_checkpoint = writer.number().saturating_add(1);
                        writer
                    }
                    Err(LogFailure::Full) => {
                        return Ok(self.checkpoint_failed(core, CheckpointFailure::NoRoom));
                    }
                    Err(failure) => return Err(failure),
                }
            }
        };
        match writer.step(store, self.content(), until) {
            Ok(Step::More) => core.checkpoint = Some(writer),
            Ok(Step::Unfit) => {
                writer.end(store, false);
                return Ok(self.checkpoint_failed(core, CheckpointFailure::TableSpoilt));
            }
            Ok(Step::Done(bytes)) => {
                let before = core.current_checkpoint.replace(writer.number());
                writer.end(store, true);
                core.needed_from = Some(core.needed_from_next);
                core.failed_at = None;
                core.replay_bytes = core.log_bytes;
                {
                    let mut counters = lock(&self.counters);
                    counters.checkpoints += 1;
                    counters.checkpoint_bytes += bytes;
                    counters.checkpoint_failing = None;
                    counters.replay_bytes = core.replay_bytes;
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
                    return Ok(self.checkpoint_failed(core, CheckpointFailure::NoRoom));
                }
                return Err(failure);
            }
        }
        Ok(Piece::Written)
    }

    /// Counts a checkpoint given up. The log goes on, and the next start reads more of it.
    fn checkpoint_failed(&self, core: &mut Core<S>, why: CheckpointFailure) -> Piece {
        let free_bytes = core.store.as_ref().map_or(0, S::free_bytes);
        let at = (core.writer.bytes_appended(), free_bytes);
        core.failed_at = (why == CheckpointFailure::NoRoom).then_some(at);
        let mut counters = lock(&self.counters);
        counters.checkpoints_failed += 1;
        counters.checkpoint_failing = Some(why);
        Piece::GivenUp
    }

    /// Stops the log: every open ticket and every later put fails.
    pub(crate) fn fail(&self, failure: LogFailure) {
        let mut queue = self.queue.lock();
        queue.failure.get_or_insert(failure);
        drop(queue);
        self.progress.fail(failure);
    }

    /// Samples the wall clock, its trust and its offset, for this and later readings.
    pub(crate) fn sample_wall(&self) -> Wall {
        let (before, wall) = self.wall.renew(&*self.clock);
        let stepped = before.offset_us.abs_diff(wall.offset_us) > CLOCK_STEP_US;
        if stepped {
            self.clock_steps.fetch_add(1, Ordering::Relaxed);
        }
        if before.trusted != wall.trusted || stepped {
            self.clock_changed.store(true, Ordering::Relaxed);
        }
        wall
    }

    pub(crate) fn wake(&self) {
        match self.thread.get() {
            Some(thread) => thread.unpark(),
            None => self.woken.store(true, Ordering::Relaxed),
        }
    }

    fn plan(&self, checkpointing: bool, napped: bool) -> Plan {
        let interval = Duration::from_millis(u64::from(self.options.commit_interval_ms));
        let mut queue = self.queue.lock();
        if queue.stop || queue.failure.is_some() {
            return Plan::Stop;
        }
        if queue.full {
            // No put waits for a checkpoint now, and room may come only when the checkpoint ends.
            return if napped || checkpointing {
                Plan::Round
            } else {
                Plan::Nap(FULL_RETRY)
            };
        }
        if let Some(first) = queue.first {
            let waited = match self.options.commit_driver {
                CommitDriver::Thread | CommitDriver::Manual => {
                    Instant::now().saturating_duration_since(first)
                }
                // Time passes on the caller's clock alone.
                CommitDriver::Stepped => {
                    let now_ns = self.clock.monotonic_ns();
                    Duration::from_nanos(now_ns.saturating_sub(queue.first_ns))
                }
            };
            let left = interval.saturating_sub(waited);
            if queue.urgent || queue.is_pressed() || left.is_zero() || checkpointing {
                return Plan::Round;
            }
            return Plan::Nap(left);
        }
        if checkpointing || queue.checkpoint_due || self.clock_changed.load(Ordering::Relaxed) {
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

    /// Ends the rest that the step before has begun, if any. Then runs a round or begins a rest.
    pub(crate) fn step(&self, pace: &mut Pace) -> CommitStep {
        match pace.rest.take() {
            None => {}
            Some(Rest::Nap) => {
                self.sample_wall();
            }
            Some(Rest::Sleep) => {
                self.sample_wall();
                self.asleep.store(false, Ordering::Relaxed);
            }
        }
        match self.plan(pace.checkpointing, pace.napped) {
            Plan::Stop => CommitStep::End,
            Plan::Nap(time) => {
                pace.napped = true;
                pace.rest = Some(Rest::Nap);
                CommitStep::Nap(time)
            }
            Plan::Sleep => {
                self.asleep.store(true, Ordering::Relaxed);
                pace.rest = Some(Rest::Sleep);
                CommitStep::Sleep
            }
            Plan::Round => {
                pace.napped = false;
                let ended = self.round();
                self.rounds.fetch_add(1, Ordering::Relaxed);
                match ended {
                    Ok(unfinished) => pace.checkpointing = unfinished,
                    // Room may return.
                    Err(LogFailure::Full) => {
                        pace.checkpointing = lock(&self.core).checkpoint.is_some();
                    }
                    Err(_) => return CommitStep::End,
                }
                let unfinished = pace.checkpointing;
                CommitStep::Round { unfinished }
            }
        }
    }

    /// The commit thread.
    pub(crate) fn run(&self) {
        let _guard = FailOnPanic(self);
        let mut pace = Pace::default();
        loop {
            match self.step(&mut pace) {
                CommitStep::End => return,
                CommitStep::Nap(time) => std::thread::park_timeout(time),
                CommitStep::Sleep => std::thread::park(),
                CommitStep::Round { .. } => {
                    if self.store_waiters.load(Ordering::Relaxed) > 0 {
                        // The lock is not fair: let callers that wait for the store take it between two rounds.
                        std::thread::sleep(TURN);
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
