//! Reads of programs: a block comes from the stage, from the cache, or from the server, by a deadline.

use super::Cache;
use super::ahead::{self, Line};
use super::counters::add;
use super::inner::Inner;
use super::network::{Asked, WIRE_BLOCK_BYTES, locked};
use super::notes;
use super::settings::ReadError;
use super::stage::{Step, Wanted};
use super::tasks::{Coming, Task};
use crate::block::{BLOCK_BYTES, BlockAt, FileId, SEGMENT_BLOCKS, Token};
use crate::wire::{Refusal, Request};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The number of neighbours requested with a block that a plan has missed.
const AROUND_MIN: u32 = 8;

/// After this many answers without neighbours, a server that never gave any is no longer asked for them.
const WITHOUT_NEIGHBOURS_MAX: u32 = 8;

/// Bytes that may wait in the send buffers of the server's system and are not on the wire yet.
const SERVER_BUFFER_BYTES: u64 = 128 << 10;

/// A reader waits for a prefetched block that arrives within this many milliseconds, even if a request would bring it
/// sooner. The line is busy with the blocks needed next, and a request would take bandwidth from them.
const AHEAD_MS: u64 = 60;

/// The minimum wait for an expected block: on a loaded machine a late block is not a lost one.
const EXPECTED_MIN: Duration = Duration::from_millis(20);

/// The same for a block of a plan, counted from the last block of the plan that arrived.
const PREFETCH_WAIT_MIN: Duration = Duration::from_millis(100);

/// The kernel retries a page that could not be read. A retry within this time fails at once, because its reader has
/// waited already.
const ASKED_AGAIN: Duration = Duration::from_secs(1);

/// The maximum number of late blocks that are remembered for that.
const LATE_MAX: usize = 64;

/// Poll interval of a waiting reader while there is no connection, or while the server is at a limit.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What is requested together with a block.
#[derive(Debug, Default)]
struct Beside {
    /// The number of neighbours that the server chooses, in the same request.
    around: u32,
    /// Runs and their requested blocks (a bit for each), in separate requests.
    runs: Vec<(u32, u32)>,
}

impl Inner {
    /// Returns a block that a program reads. The deadline is counted from `since`.
    pub fn read(
        &self,
        token: Option<Token>,
        at: BlockAt,
        since: Instant,
    ) -> Result<Arc<[u8]>, ReadError> {
        let started = Instant::now();
        let result = self.read_counted(token, at, since);
        let counts = &self.counts;
        add(&counts.reads, 1);
        add(&counts.read_us, started.elapsed().as_micros() as u64);
        match result {
            Err(ReadError::Late) => {
                add(&counts.reads_late, 1);
                self.note_late(at, Instant::now());
            }
            Err(_) => add(&counts.reads_failed, 1),
            Ok(_) => {}
        }
        result
    }

    /// Returns a block if it is on the stage.
    pub fn read_now(&self, token: Option<Token>, at: BlockAt) -> Option<Arc<[u8]>> {
        let bytes = self.stage.take(at)?;
        if let Some(token) = &token {
            locked(&self.tasks).read(token, at, Instant::now());
        }
        add(&self.counts.reads, 1);
        add(&self.counts.reads_staged, 1);
        self.look_ahead(token, at);
        Some(bytes)
    }

    /// Requests those of these blocks that are neither here nor requested yet; blocks of one run share a request.
    pub fn want(&self, token: Option<Token>, blocks: &[BlockAt]) {
        let is_missing = |at: &&BlockAt| {
            at.index < self.manifest.blocks(at.file)
                && !self.stage.is_staged(**at)
                && !self.stage.is_wanted(**at)
                && self.network.brings(**at).is_none()
                && !self.is_cached(**at)
        };
        let mut run: Option<(BlockAt, u32)> = None;
        for at in blocks.iter().filter(is_missing) {
            if let Some((first, around)) = &mut run
                && first.file == at.file
                && at.index == first.index + *around + 1
                && at.index % SEGMENT_BLOCKS != 0
            {
                *around += 1;
                continue;
            }
            if let Some((first, around)) = run.replace((*at, 0)) {
                self.send_read(token, first, around, false);
            }
        }
        if let Some((first, around)) = run {
            self.send_read(token, first, around, false);
        }
    }

    pub fn is_cached(&self, at: BlockAt) -> bool {
        let Some(cache) = self.settings.cache.as_deref() else {
            return false;
        };
        self.hash(at).is_some_and(|hash| cache.has(&hash))
    }

    /// Whether the cache has a block and its list of hashes: hashes that are only in memory are useless to the next
    /// start.
    pub fn is_kept_for_later(&self, at: BlockAt) -> bool {
        let keeps_list = |cache: &dyn Cache| notes::keeps_group(cache, &self.manifest, at.into());
        self.is_cached(at) && self.settings.cache.as_deref().is_some_and(keeps_list)
    }

    fn read_counted(
        &self,
        token: Option<Token>,
        at: BlockAt,
        since: Instant,
    ) -> Result<Arc<[u8]>, ReadError> {
        let now = Instant::now();
        if at.index >= self.manifest.blocks(at.file) {
            return Err(ReadError::NoSuchBlock);
        }
        if let Some(token) = &token {
            locked(&self.tasks).read(token, at, now);
        }
        // Take the block instead of checking for it: it may be evicted before the reader returns, and the reader would
        // then wait for the server although the cache has it.
        if let Some(bytes) = self.stage.take(at) {
            self.look_ahead(token, at);
            add(&self.counts.reads_staged, 1);
            return Ok(bytes);
        }
        if let Some(bytes) = self.cached(at) {
            self.stage.delivered(at);
            add(&self.counts.reads_cached, 1);
            return Ok(bytes);
        }
        if self.is_asked_again(at, now) {
            add(&self.counts.reads_late_again, 1);
            return Err(ReadError::Late);
        }
        self.read_waiting(token, at, since)
    }

    fn is_asked_again(&self, at: BlockAt, now: Instant) -> bool {
        let mut late = locked(&self.late);
        late.retain(|(_, since)| now.saturating_duration_since(*since) < ASKED_AGAIN);
        late.iter().any(|(block, _)| *block == at)
    }

    // Keep the time of the failed wait: a reader that keeps retrying must wait again after `ASKED_AGAIN`.
    fn note_late(&self, at: BlockAt, now: Instant) {
        if !self.is_asked_again(at, now) {
            let mut late = locked(&self.late);
            late.truncate(LATE_MAX - 1);
            late.push_front((at, now));
        }
    }

    fn cached(&self, at: BlockAt) -> Option<Arc<[u8]>> {
        let cache = self.settings.cache.as_deref()?;
        let hash = self.hash(at)?;
        let (size_bytes, _) = self.manifest.file(at.file)?;
        cache.get(&hash, crate::block::block_bytes(size_bytes, at.index))
    }

    fn read_waiting(
        &self,
        token: Option<Token>,
        at: BlockAt,
        since: Instant,
    ) -> Result<Arc<[u8]>, ReadError> {
        // Checked before the stage's lock is taken; a change in between does no harm.
        let is_coming = self.stage.is_wanted(at) || self.network.brings(at).is_some();
        let beside = match is_coming || self.stage.is_staged(at) {
            true => {
                self.look_ahead(token, at);
                Beside::default()
            }
            false => self.beside(token, at),
        };
        let mut has_asked = false;
        self.of_task(token, Task::read_waits);
        let read = self.stage.read(at, |wanted| {
            self.next_step(wanted, token, at, &beside, since, &mut has_asked)
        });
        self.of_task(token, |task| {
            task.read_is_over(Instant::now());
            task.under_way -= u32::from(has_asked).min(task.under_way);
        });
        let (bytes, has_waited) = read?;
        let counts = &self.counts;
        match (has_waited, has_asked) {
            (false, _) => add(&counts.reads_staged, 1),
            (true, false) => add(&counts.reads_expected, 1),
            (true, true) => add(&counts.reads_requested, 1),
        }
        Ok(bytes)
    }

    fn of_task(&self, token: Option<Token>, change: impl FnOnce(&mut Task)) {
        if let Some(token) = &token
            && let Some(task) = locked(&self.tasks).get(token)
        {
            change(task);
        }
    }

    // Called under the stage's lock.
    fn next_step(
        &self,
        wanted: &mut Wanted,
        token: Option<Token>,
        at: BlockAt,
        beside: &Beside,
        since: Instant,
        has_asked: &mut bool,
    ) -> Step<ReadError> {
        if self.is_stopped() {
            return Step::Fail(ReadError::Stopped);
        }
        let (now, deadline) = (Instant::now(), self.settings.deadline);
        let left = (since + deadline).saturating_duration_since(now);
        if left.is_zero() {
            return Step::Fail(ReadError::Late);
        }
        match wanted.refused {
            Some(Refusal::NoSuchBlock) => return Step::Fail(ReadError::NoSuchBlock),
            Some(Refusal::Damaged) => return Step::Fail(ReadError::Damaged),
            Some(_) => {
                // The server is at a limit: a later request may work.
                wanted.refused = None;
                return Step::Wait(left.min(LOOK_AGAIN));
            }
            None => {}
        }
        if let Some((connection, since)) = wanted.asked {
            let due = (since + deadline / 3).saturating_duration_since(now);
            if !due.is_zero() {
                return Step::Wait(due.min(left));
            }
            // The request timed out: treat the connection as dead, so that a new one is made.
            wanted.asked = None;
            if let Some(connection) = self.network.connection(connection) {
                connection.close();
                add(&self.counts.connections_dead, 1);
            }
        }
        if let Some(time) = self.expected(wanted, token, at, now) {
            return Step::Wait(time.min(left));
        }
        match self.ask(wanted, token, at, beside, now) {
            true => {
                *has_asked = true;
                Step::Wait(left.min(deadline / 3))
            }
            false => {
                self.network.want();
                Step::Wait(left.min(LOOK_AGAIN))
            }
        }
    }

    // Returns how long to wait for a plan or a request that brings the block; `None`: the block must be requested.
    fn expected(
        &self,
        wanted: &mut Wanted,
        token: Option<Token>,
        at: BlockAt,
        now: Instant,
    ) -> Option<Duration> {
        let round_trip = self.network.round_trip();
        let under_way = self
            .network
            .bandwidth()
            .saturating_mul(round_trip.as_micros() as u64)
            / 1_000_000
            + SERVER_BUFFER_BYTES;
        let under_way = under_way.max(self.network.bandwidth() / 1_000 * AHEAD_MS);
        let mut last_came = None;
        let is_prefetched = token.is_some_and(|token| {
            let mut tasks = locked(&self.tasks);
            let ahead = (under_way / WIRE_BLOCK_BYTES) as u32;
            let coming = |task: &mut Task| {
                last_came = task.last_came;
                task.coming(at, ahead) == Coming::Soon
            };
            // A block that arrives for another start serves all readers.
            tasks.get(&token).is_some_and(coming) || tasks.coming(at, ahead)
        });
        let limit = match is_prefetched {
            true => PREFETCH_WAIT_MIN.max(3 * round_trip + self.network.line_time(under_way)),
            false if wanted.tries > 0 => return None,
            // It arrives as a neighbour of a requested block: wait as long as that may take.
            false => match self.network.brings(at)? {
                Some(left) => return Some(left),
                None => {
                    let ahead = self.network.blocks_ahead() * WIRE_BLOCK_BYTES;
                    3 * round_trip + self.network.line_time(SERVER_BUFFER_BYTES + ahead)
                }
            },
        };
        let limit = limit.max(EXPECTED_MIN).min(self.settings.deadline / 4);
        let since = *wanted.expected_since.get_or_insert(now);
        // A plan that still progresses brings the block; on a loaded machine or a lossy line this may take long.
        let since = since.max(last_came.filter(|_| is_prefetched).unwrap_or(since));
        let left = (since + limit).saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    // Sends a request. Returns false if no connection accepts it.
    fn ask(
        &self,
        wanted: &mut Wanted,
        token: Option<Token>,
        at: BlockAt,
        beside: &Beside,
        now: Instant,
    ) -> bool {
        let is_first = wanted.tries == 0;
        let Some(connection) = self.send_read(token, at, beside.around, is_first) else {
            return false;
        };
        for (run, mask) in beside.runs.iter().filter(|_| is_first) {
            let is_own = *run == at.index / SEGMENT_BLOCKS;
            let from = if is_own {
                at.index % SEGMENT_BLOCKS + 1
            } else {
                0
            };
            self.fetch_ahead(Some(connection), at.file, *run, *mask, from);
        }
        add(&self.counts.requests_repeated, u64::from(!is_first));
        wanted.tries += 1;
        wanted.asked = Some((connection, now));
        true
    }

    // Sends a request on one of the connections. `is_awaited`: a reader waits for the answer, and this is its first
    // request.
    fn send_read(
        &self,
        token: Option<Token>,
        at: BlockAt,
        around: u32,
        is_awaited: bool,
    ) -> Option<u64> {
        let mut tasks = locked(&self.tasks);
        let mut task = token.as_ref().and_then(|token| tasks.get(token));
        let wire = task.as_ref().and_then(|task| task.wire);
        // Until the server has answered the begin, no request of the task may overtake it, so the task stays on its
        // connection.
        let home = wire
            .filter(|_| task.as_ref().is_some_and(|task| task.begun.is_none()))
            .and_then(|(_, home)| self.network.connection(home));
        let connection = home.or_else(|| self.network.idlest())?;
        let id = self.network.id();
        let request = Request::Read {
            id,
            token: wire.map(|(wire, _)| wire),
            at,
            around: around as u8,
        };
        let asked = Asked::Block {
            at,
            around,
            token,
            answered_until: None,
        };
        connection.expect(id, asked);
        if !connection.send(&request, true) {
            connection.answered(id);
            return None;
        }
        add(&self.counts.requests, 1);
        match &mut task {
            Some(task) => {
                task.start.requests += 1;
                if is_awaited {
                    if task.under_way == 0 {
                        task.start.round_trips += 1;
                        add(&self.counts.round_trips, 1);
                    }
                    task.under_way += 1;
                }
            }
            None => add(&self.counts.round_trips, u64::from(is_awaited)),
        }
        Some(connection.number)
    }

    // Whether the server knows the task.
    fn is_known(&self, token: Option<Token>) -> bool {
        token.is_some_and(|token| {
            let mut tasks = locked(&self.tasks);
            tasks.get(&token).is_some_and(|task| task.wire.is_some())
        })
    }

    // Whether nothing is prefetched for the reader; `None` if that is not known yet.
    fn is_first(&self, token: Option<Token>) -> Option<bool> {
        let Some(token) = &token else {
            return Some(true);
        };
        match locked(&self.tasks).get(token) {
            Some(task) if task.wire.is_some() => {
                let blocks = task.begun?;
                Some(blocks == 0 && task.plan.is_empty())
            }
            _ => Some(true),
        }
    }

    /// Returns what to request together with a block: nothing while a plan may bring it; a few neighbours if a plan
    /// exists and missed it; else its run and the further runs that the reader will reach. Blocks that are here already
    /// are left out.
    fn beside(&self, token: Option<Token>, at: BlockAt) -> Beside {
        let mut beside = Beside::default();
        if !self.settings.around || self.stage.is_staged(at) {
            return beside;
        }
        let Some(is_first) = self.is_first(token) else {
            return beside;
        };
        let run = at.index / SEGMENT_BLOCKS;
        let missing = self.missing(at.file, run);
        if is_first && self.gives_ahead() {
            let was_here = self.stage.is_gone(at);
            let is_scattered = self.stage.is_scattered();
            let mask = ahead::beside(at, missing, was_here, is_scattered, self.line());
            beside.runs.push((run, mask));
            let further = self.further(at, true);
            beside
                .runs
                .extend(further.map(|run| (run, self.missing(at.file, run))));
            return beside;
        }
        let width = if is_first {
            SEGMENT_BLOCKS - 1
        } else {
            AROUND_MIN
        };
        let place = at.index % SEGMENT_BLOCKS;
        let following = (u64::from(missing) >> (place + 1)) as u32;
        let span = match self.settings.cache.is_none() && self.is_known(token) {
            // The server leaves out the blocks that it has sent for the task.
            true => u32::BITS - following.leading_zeros(),
            false => following.trailing_ones(),
        };
        if !self.is_refused_neighbours() {
            beside.around = width.min(span);
        }
        beside
    }

    /// Requests the runs that the reader of an available block will reach, unless a plan brings them.
    fn look_ahead(&self, token: Option<Token>, at: BlockAt) {
        if !self.settings.around || !self.gives_ahead() || self.is_first(token) != Some(true) {
            return;
        }
        for run in self.further(at, false) {
            let mask = self.missing(at.file, run);
            self.fetch_ahead(None, at.file, run, mask, 0);
        }
    }

    // Whether the server gives no neighbours, so that a wait for them has no result.
    fn is_refused_neighbours(&self) -> bool {
        let network = &self.network;
        !network.gives_neighbours.load(Ordering::Relaxed)
            && network.without_neighbours.load(Ordering::Relaxed) >= WITHOUT_NEIGHBOURS_MAX
    }

    // Whether this server gives blocks that no reader waits for, on a persistent connection.
    fn gives_ahead(&self) -> bool {
        self.settings.is_persistent && self.network.gives_neighbours.load(Ordering::Relaxed)
    }

    fn further(&self, at: BlockAt, is_missing: bool) -> Range<u32> {
        let blocks = self.manifest.blocks(at.file);
        let line = self.line();
        locked(&self.ahead).read(at, blocks, is_missing, line)
    }

    fn line(&self) -> Line {
        Line {
            round_trip: self.network.round_trip(),
            bandwidth_bytes_s: self.network.bandwidth(),
        }
    }

    // Returns which blocks of an aligned run are neither here nor in flight, a bit for each.
    fn missing(&self, file: FileId, run: u32) -> u32 {
        let mut missing = self
            .stage
            .missing_of_run(file, run, self.manifest.blocks(file));
        for place in 0..SEGMENT_BLOCKS {
            let index = run * SEGMENT_BLOCKS + place;
            let at = BlockAt { file, index };
            if missing >> place & 1 == 1
                && (self.network.brings(at).is_some() || self.is_cached(at))
            {
                missing &= !(1 << place);
            }
        }
        missing
    }

    // Requests blocks of a run that no reader waits for. They have a lower priority than awaited ones and name no task,
    // so that the server does not count them as read.
    fn fetch_ahead(&self, on: Option<u64>, file: FileId, run: u32, mask: u32, from: u32) {
        let connection = on.and_then(|number| self.network.connection(number));
        let Some(connection) = connection.or_else(|| self.network.idlest()) else {
            return;
        };
        if mask == 0 {
            return;
        }
        let id = self.network.id();
        connection.expect(id, Asked::Ahead { file, run, mask });
        let blocks = ahead::blocks_of(file, run, mask, from);
        match connection.send(&Request::Fetch { id, blocks }, false) {
            true => add(&self.counts.requests_ahead, 1),
            false => drop(connection.answered(id)),
        }
    }
}

const _: () = assert!(BLOCK_BYTES as u64 > WIRE_BLOCK_BYTES);
