//! Reads of programs: a block comes from the buffer, from the cache, or from the server, by a deadline.

use super::state::Reader;
use crate::block::{BLOCK_BYTES, BlockAt, FileId, SEGMENT_BLOCKS, Token};
use crate::device::counters::add;
use crate::device::error::ReadError;
use crate::device::line::WIRE_BLOCK_BYTES;
use crate::device::prefetch::{
    Fault, RequestPlan, RequestedBlock, Runs, Source, Step, Tasks, blocks_of,
};
use crate::device::transport::InFlight;
use crate::sync::locked;
use crate::wire::{Refusal, Request};
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
struct RequestBatch {
    /// The number of neighbours that the server chooses, in the same request.
    around: u32,
    /// Runs and their requested blocks (a bit for each), in separate requests.
    runs: Runs,
}

impl Reader {
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
        if let (Some(token), Err(error)) = (token, &result) {
            self.note_failed(&token, at, *error);
        }
        result
    }

    // Records that a read of a task has failed. Its server must not take the task for complete. The program ends early
    // or does without the rest, and what it did not reach would count as unused. No message says so. A task whose
    // connection ends teaches nothing that an action does not have, so the connection is ended. A server that has
    // answered that a block is damaged knows by itself.
    fn note_failed(&self, token: &Token, at: BlockAt, error: ReadError) {
        if error == ReadError::NoSuchBlock {
            return;
        }
        let connection = self.prefetch.tasks(|tasks| {
            tasks.read_failed(token, at);
            match error {
                ReadError::Damaged => None,
                _ => tasks.leave_server(token),
            }
        });
        let connection = connection.and_then(|number| self.transport.connection(number));
        if let Some(connection) = connection.filter(|_| error == ReadError::Late) {
            connection.close();
        }
    }

    /// Returns a block if it is in the buffer.
    pub fn read_now(&self, token: Option<Token>, at: BlockAt) -> Option<Arc<[u8]>> {
        let bytes = self.take(&self.fault(token, at), false)?;
        add(&self.counts.reads, 1);
        Some(bytes)
    }

    /// Requests those of these blocks that are neither here nor requested yet; blocks of one run share a request.
    pub fn want(&self, token: Option<Token>, blocks: &[BlockAt]) {
        let is_missing = |at: &&BlockAt| {
            at.index < self.disk.manifest.blocks(at.file)
                && !self.prefetch.is_buffered(**at)
                && !self.prefetch.is_requested(**at)
                && self.transport.brings(**at).is_none()
                && !self.disk.has(**at)
        };
        let request = |(first, around)| {
            let send = |tasks: &mut Tasks| self.send_read(tasks, token, first, around, false);
            self.prefetch.tasks(send);
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
            if let Some(before) = run.replace((*at, 0)) {
                request(before);
            }
        }
        if let Some(last) = run {
            request(last);
        }
    }

    fn fault(&self, token: Option<Token>, at: BlockAt) -> Fault {
        let has_readahead = self.settings.around && self.gives_ahead();
        Fault {
            token,
            at,
            file_blocks: self.disk.manifest.blocks(at.file),
            line: has_readahead.then(|| self.transport.line()),
            now: Instant::now(),
        }
    }

    // Takes a block if it is in the buffer, and requests what its reader will reach.
    fn take(&self, fault: &Fault, waits: bool) -> Option<Arc<[u8]>> {
        let (bytes, ahead) = self.prefetch.take(fault, waits)?;
        add(&self.counts.reads_staged, 1);
        self.request_ahead(fault.at.file, self.prefetch.missing(fault, ahead));
        Some(bytes)
    }

    fn read_counted(
        &self,
        token: Option<Token>,
        at: BlockAt,
        since: Instant,
    ) -> Result<Arc<[u8]>, ReadError> {
        let fault = self.fault(token, at);
        if at.index >= fault.file_blocks {
            return Err(ReadError::NoSuchBlock);
        }
        // Take the block instead of checking for it: it may be evicted before the reader returns. The reader would then
        // wait for the server although the cache has it.
        if let Some(bytes) = self.take(&fault, true) {
            return Ok(bytes);
        }
        if let Some(bytes) = self.disk.get(at) {
            self.prefetch.delivered(at);
            add(&self.counts.reads_cached, 1);
            return Ok(bytes);
        }
        if self.is_asked_again(at, fault.now) {
            add(&self.counts.reads_late_again, 1);
            return Err(ReadError::Late);
        }
        self.read_waiting(&fault, since)
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

    fn read_waiting(&self, fault: &Fault, since: Instant) -> Result<Arc<[u8]>, ReadError> {
        let batch = match self.settings.around {
            true => self.batch(fault),
            false => RequestBatch::default(),
        };
        let next = |requested: &mut RequestedBlock, tasks: &mut Tasks| {
            self.next_step(requested, tasks, fault, &batch, since)
        };
        let (bytes, source) = self.prefetch.wait(fault.token, fault.at, next)?;
        let counts = &self.counts;
        let count = match source {
            Source::Buffered => &counts.reads_staged,
            Source::Expected => &counts.reads_expected,
            Source::Requested => &counts.reads_requested,
        };
        add(count, 1);
        Ok(bytes)
    }

    // Called under the lock of the prefetch part.
    fn next_step(
        &self,
        requested: &mut RequestedBlock,
        tasks: &mut Tasks,
        fault: &Fault,
        batch: &RequestBatch,
        since: Instant,
    ) -> Step<ReadError> {
        if self.is_stopped() {
            return Step::Fail(ReadError::Stopped);
        }
        let (now, deadline) = (Instant::now(), self.settings.deadline);
        let left = (since + deadline).saturating_duration_since(now);
        if left.is_zero() {
            return Step::Fail(ReadError::Late);
        }
        match requested.refused {
            Some(Refusal::NoSuchBlock) => return Step::Fail(ReadError::NoSuchBlock),
            Some(Refusal::Damaged) => return Step::Fail(ReadError::Damaged),
            Some(_) => {
                // The server is at a limit: a later request may work.
                requested.refused = None;
                return Step::Wait(left.min(LOOK_AGAIN));
            }
            None => {}
        }
        if let Some((connection, since)) = requested.asked {
            let due = (since + deadline / 3).saturating_duration_since(now);
            if !due.is_zero() {
                return Step::Wait(due.min(left));
            }
            // The request timed out: treat the connection as dead, so that a new one is made.
            requested.asked = None;
            if let Some(connection) = self.transport.connection(connection) {
                connection.close();
                add(&self.counts.connections_dead, 1);
            }
        }
        if let Some(time) = self.expected(requested, tasks, fault, now) {
            return Step::Wait(time.min(left));
        }
        match self.ask(requested, tasks, fault, batch, now) {
            true => Step::Requested(left.min(deadline / 3)),
            false => {
                self.transport.want();
                Step::Wait(left.min(LOOK_AGAIN))
            }
        }
    }

    // Returns how long to wait for a plan or a request that brings the block; `None`: the block must be requested.
    fn expected(
        &self,
        requested: &mut RequestedBlock,
        tasks: &mut Tasks,
        fault: &Fault,
        now: Instant,
    ) -> Option<Duration> {
        let at = fault.at;
        let round_trip = self.transport.round_trip();
        let under_way = self
            .transport
            .bandwidth()
            .saturating_mul(round_trip.as_micros() as u64)
            / 1_000_000
            + SERVER_BUFFER_BYTES;
        let under_way = under_way.max(self.transport.bandwidth() / 1_000 * AHEAD_MS);
        let mut last_came = None;
        let is_prefetched = fault.token.is_some_and(|token| {
            let ahead = (under_way / WIRE_BLOCK_BYTES) as u32;
            let of_own = tasks.get(&token).is_some_and(|task| {
                last_came = task.last_came;
                task.arrives_soon(at, ahead)
            });
            // A block that arrives for another start serves all readers.
            of_own || tasks.arrives_soon(at, ahead)
        });
        let limit = match is_prefetched {
            true => PREFETCH_WAIT_MIN.max(3 * round_trip + self.transport.line_time(under_way)),
            false if requested.tries > 0 => return None,
            // It arrives as a neighbour of a requested block: wait as long as that may take.
            false => match self.transport.brings(at)? {
                Some(left) => return Some(left),
                None => {
                    let ahead = self.transport.blocks_ahead() * WIRE_BLOCK_BYTES;
                    3 * round_trip + self.transport.line_time(SERVER_BUFFER_BYTES + ahead)
                }
            },
        };
        let limit = limit.max(EXPECTED_MIN).min(self.settings.deadline / 4);
        let since = *requested.expected_since.get_or_insert(now);
        // A plan that still progresses brings the block; on a loaded machine or a lossy line this may take long.
        let since = since.max(last_came.filter(|_| is_prefetched).unwrap_or(since));
        let left = (since + limit).saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    // Sends a request. Returns false if no connection accepts it.
    fn ask(
        &self,
        requested: &mut RequestedBlock,
        tasks: &mut Tasks,
        fault: &Fault,
        batch: &RequestBatch,
        now: Instant,
    ) -> bool {
        let at = fault.at;
        let is_first = requested.tries == 0;
        let Some(connection) = self.send_read(tasks, fault.token, at, batch.around, is_first)
        else {
            return false;
        };
        for (run, mask) in batch.runs.iter().filter(|_| is_first) {
            let is_own = *run == at.index / SEGMENT_BLOCKS;
            let from = if is_own {
                at.index % SEGMENT_BLOCKS + 1
            } else {
                0
            };
            self.fetch_ahead(Some(connection), at.file, *run, *mask, from);
        }
        add(&self.counts.requests_repeated, u64::from(!is_first));
        requested.tries += 1;
        requested.asked = Some((connection, now));
        true
    }

    // Sends a request on one of the connections. `is_awaited`: a reader waits for the answer, and this is its first
    // request.
    fn send_read(
        &self,
        tasks: &mut Tasks,
        token: Option<Token>,
        at: BlockAt,
        around: u32,
        is_awaited: bool,
    ) -> Option<u64> {
        let mut task = token.and_then(|token| tasks.get(&token));
        let wire = task.as_ref().and_then(|task| task.wire);
        // Until the server has answered the begin, no request of the task may overtake it, so the task stays on its
        // connection.
        let home = wire
            .filter(|_| task.as_ref().is_some_and(|task| task.begun.is_none()))
            .and_then(|(_, home)| self.transport.connection(home));
        let connection = home.or_else(|| self.transport.idlest())?;
        let id = self.transport.id();
        let request = Request::Read {
            id,
            token: wire.map(|(wire, _)| wire),
            at,
            around: around as u8,
        };
        let block = InFlight::Block {
            at,
            around,
            token,
            answered_until: None,
        };
        connection.expect(id, block);
        if !connection.send(&request, true) {
            connection.answered(id);
            return None;
        }
        add(&self.counts.requests, 1);
        match &mut task {
            Some(task) => {
                task.start.requests += 1;
                if is_awaited {
                    if task.in_flight == 0 {
                        task.start.round_trips += 1;
                        add(&self.counts.round_trips, 1);
                    }
                    task.in_flight += 1;
                }
            }
            None => add(&self.counts.round_trips, u64::from(is_awaited)),
        }
        Some(connection.number)
    }

    /// Returns what to request together with a block. This is nothing while a plan may bring it. It is a few neighbours
    /// if a plan exists and missed it, else its run and the further runs that the reader will reach. Blocks that are
    /// here already are left out.
    fn batch(&self, fault: &Fault) -> RequestBatch {
        let (file, run) = (fault.at.file, fault.at.index / SEGMENT_BLOCKS);
        let mut batch = RequestBatch::default();
        let is_in_flight = self.transport.brings(fault.at).is_some();
        match self.prefetch.request_plan(fault, is_in_flight) {
            RequestPlan::Ahead(runs) => self.request_ahead(file, runs),
            RequestPlan::Alone => {}
            RequestPlan::WithRuns(runs) => {
                let missing = |(run, mask)| (run, self.missing(file, run, mask));
                batch.runs = runs.into_iter().map(missing).collect();
            }
            RequestPlan::WithNeighbours {
                missing,
                is_first,
                is_known,
            } => {
                let missing = self.missing(file, run, missing);
                let width = if is_first {
                    SEGMENT_BLOCKS - 1
                } else {
                    AROUND_MIN
                };
                let place = fault.at.index % SEGMENT_BLOCKS;
                let following = (u64::from(missing) >> (place + 1)) as u32;
                let span = match self.disk.cache().is_none() && is_known {
                    // The server leaves out the blocks that it has sent for the task.
                    true => u32::BITS - following.leading_zeros(),
                    false => following.trailing_ones(),
                };
                if !self.is_refused_neighbours() {
                    batch.around = width.min(span);
                }
            }
        }
        batch
    }

    // Whether the server gives no neighbours, so that a wait for them has no result.
    fn is_refused_neighbours(&self) -> bool {
        let transport = &self.transport;
        !transport.gives_neighbours.load(Ordering::Relaxed)
            && transport.without_neighbours.load(Ordering::Relaxed) >= WITHOUT_NEIGHBOURS_MAX
    }

    // Whether this server gives blocks that no reader waits for, on a persistent connection.
    fn gives_ahead(&self) -> bool {
        self.settings.is_persistent && self.transport.gives_neighbours.load(Ordering::Relaxed)
    }

    // Returns which of these blocks of an aligned run are neither in flight nor cached, a bit for each.
    fn missing(&self, file: FileId, run: u32, mut mask: u32) -> u32 {
        for place in 0..SEGMENT_BLOCKS {
            let index = run * SEGMENT_BLOCKS + place;
            let at = BlockAt { file, index };
            if mask >> place & 1 == 1 && (self.transport.brings(at).is_some() || self.disk.has(at))
            {
                mask &= !(1 << place);
            }
        }
        mask
    }

    // Requests runs that the reader of an available block will reach.
    fn request_ahead(&self, file: FileId, runs: Runs) {
        for (run, mask) in runs {
            let mask = self.missing(file, run, mask);
            self.fetch_ahead(None, file, run, mask, 0);
        }
    }

    // Requests blocks of a run that no reader waits for. They have a lower priority than awaited ones and name no task,
    // so that the server does not count them as read.
    fn fetch_ahead(&self, on: Option<u64>, file: FileId, run: u32, mask: u32, from: u32) {
        let connection = on.and_then(|number| self.transport.connection(number));
        let Some(connection) = connection.or_else(|| self.transport.idlest()) else {
            return;
        };
        if mask == 0 {
            return;
        }
        let id = self.transport.id();
        connection.expect(id, InFlight::Ahead { file, run, mask });
        let blocks = blocks_of(file, run, mask, from);
        match connection.send(&Request::Fetch { id, blocks }, false) {
            true => add(&self.counts.requests_ahead, 1),
            false => drop(connection.answered(id)),
        }
    }
}

const _: () = assert!(BLOCK_BYTES as u64 > WIRE_BLOCK_BYTES);
