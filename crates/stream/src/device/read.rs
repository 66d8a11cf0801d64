//! A program reads a block: from the stage, from the cache, or from the server, by a deadline.

use super::counters::add;
use super::inner::Inner;
use super::network::{Asked, WIRE_BLOCK_BYTES, locked};
use super::settings::ReadError;
use super::stage::{Step, Wanted};
use super::tasks::{Coming, Task};
use crate::block::{BLOCK_BYTES, BlockAt, SEGMENT_BLOCKS, Token};
use crate::wire::{Refusal, Request};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Neighbours that are asked for at least, whatever the line.
const AROUND_MIN: u32 = 8;

/// Bytes that a server may have given to its system and that are not on the wire yet.
const SERVER_BUFFER_BYTES: u64 = 128 << 10;

/// A foretold block that comes within so many milliseconds is waited for, even where a request would bring it sooner:
/// the line is busy with what is needed next, and what is asked for takes room from that.
const AHEAD_MS: u64 = 60;

/// A block that is expected is waited for so long at least: a loaded machine is no lost block.
const EXPECTED_MIN: Duration = Duration::from_millis(20);

/// The same for a block of a plan of which nothing has come for so long.
const FORETOLD_MIN: Duration = Duration::from_millis(100);

/// Who waits looks again after so long when there is no connection, or a server at its limit.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

impl Inner {
    pub fn read(&self, token: Option<Token>, at: BlockAt) -> Result<Arc<[u8]>, ReadError> {
        let started = Instant::now();
        let result = self.read_counted(token, at, started);
        let counts = &self.counts;
        add(&counts.reads, 1);
        add(&counts.read_us, started.elapsed().as_micros() as u64);
        match result {
            Err(ReadError::Late) => add(&counts.reads_late, 1),
            Err(_) => add(&counts.reads_failed, 1),
            Ok(_) => {}
        }
        result
    }

    /// A block that waits on the stage.
    pub fn read_now(&self, token: Option<Token>, at: BlockAt) -> Option<Arc<[u8]>> {
        let bytes = self.stage.take(at)?;
        if let Some(token) = &token {
            locked(&self.tasks).read(token, at, Instant::now());
        }
        add(&self.counts.reads, 1);
        add(&self.counts.reads_staged, 1);
        Some(bytes)
    }

    /// Asks for those of these blocks that are neither here nor asked for, together where they lie in one run.
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

    fn is_cached(&self, at: BlockAt) -> bool {
        let Some(cache) = self.settings.cache.as_deref() else {
            return false;
        };
        let hash = self.list(at.file).and_then(|list| list.get(at.index));
        hash.is_some_and(|hash| cache.has(&hash))
    }

    fn read_counted(
        &self,
        token: Option<Token>,
        at: BlockAt,
        started: Instant,
    ) -> Result<Arc<[u8]>, ReadError> {
        if at.index >= self.manifest.blocks(at.file) {
            return Err(ReadError::NoSuchBlock);
        }
        if let Some(token) = &token {
            locked(&self.tasks).read(token, at, started);
        }
        if !self.stage.is_staged(at)
            && let Some(bytes) = self.cached(at)
        {
            self.stage.delivered(at);
            add(&self.counts.reads_cached, 1);
            return Ok(bytes);
        }
        self.read_waiting(token, at, started)
    }

    fn cached(&self, at: BlockAt) -> Option<Arc<[u8]>> {
        let cache = self.settings.cache.as_deref()?;
        let hash = self.list(at.file)?.get(at.index)?;
        let (size_bytes, _) = self.manifest.file(at.file)?;
        cache.get(&hash, crate::block::block_bytes(size_bytes, at.index))
    }

    fn read_waiting(
        &self,
        token: Option<Token>,
        at: BlockAt,
        started: Instant,
    ) -> Result<Arc<[u8]>, ReadError> {
        // Counted before the stage's lock is taken; nobody is hurt if it is another number meanwhile.
        let around = self.around(token, at);
        let mut has_asked = false;
        let read = self.stage.read(at, |wanted| {
            self.next_step(wanted, token, at, around, started, &mut has_asked)
        });
        if has_asked
            && let Some(token) = &token
            && let Some(task) = locked(&self.tasks).get(token)
        {
            task.under_way = task.under_way.saturating_sub(1);
        }
        let (bytes, has_waited) = read?;
        let counts = &self.counts;
        match (has_waited, has_asked) {
            (false, _) => add(&counts.reads_staged, 1),
            (true, false) => add(&counts.reads_expected, 1),
            (true, true) => add(&counts.reads_requested, 1),
        }
        Ok(bytes)
    }

    // Under the stage's lock.
    fn next_step(
        &self,
        wanted: &mut Wanted,
        token: Option<Token>,
        at: BlockAt,
        around: u32,
        started: Instant,
        has_asked: &mut bool,
    ) -> Step<ReadError> {
        if self.is_stopped() {
            return Step::Fail(ReadError::Stopped);
        }
        let (now, deadline) = (Instant::now(), self.settings.deadline);
        let left = (started + deadline).saturating_duration_since(now);
        if left.is_zero() {
            return Step::Fail(ReadError::Late);
        }
        match wanted.refused {
            Some(Refusal::NoSuchBlock) => return Step::Fail(ReadError::NoSuchBlock),
            Some(Refusal::Damaged) => return Step::Fail(ReadError::Damaged),
            Some(_) => {
                // A limit of the server: later it may work.
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
            // It has had its time: the connection is taken for dead, and another is made.
            wanted.asked = None;
            if let Some(connection) = self.network.connection(connection) {
                connection.close();
                add(&self.counts.connections_dead, 1);
            }
        }
        if let Some(time) = self.expected(wanted, token, at, now) {
            return Step::Wait(time.min(left));
        }
        match self.ask(wanted, token, at, around, now) {
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

    // How long to wait for a plan that is bringing the block; None: it is to be asked for.
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
        let is_foretold = token.is_some_and(|token| {
            let mut tasks = locked(&self.tasks);
            let ahead = (under_way / WIRE_BLOCK_BYTES) as u32;
            let coming = |task: &mut Task| {
                last_came = task.last_came;
                task.coming(at, ahead) == Coming::Soon
            };
            // What comes for another start is there for all.
            tasks.get(&token).is_some_and(coming) || tasks.coming(at, ahead)
        });
        let limit = match is_foretold {
            true => FORETOLD_MIN.max(3 * round_trip + self.network.line_time(under_way)),
            false if wanted.tries > 0 => return None,
            // As a neighbour of what was asked for: as long as that may take.
            false => match self.network.brings(at)? {
                Some(left) => return Some(left),
                None => 3 * round_trip + self.network.line_time(SERVER_BUFFER_BYTES),
            },
        };
        let limit = limit.max(EXPECTED_MIN).min(self.settings.deadline / 4);
        let since = *wanted.expected_since.get_or_insert(now);
        // A plan that goes on brings it: on a loaded machine or a lossy line that may take long.
        let since = since.max(last_came.filter(|_| is_foretold).unwrap_or(since));
        let left = (since + limit).saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    // Sends a request; false: there is no connection that takes it.
    fn ask(
        &self,
        wanted: &mut Wanted,
        token: Option<Token>,
        at: BlockAt,
        around: u32,
        now: Instant,
    ) -> bool {
        let is_first = wanted.tries == 0;
        let Some(connection) = self.send_read(token, at, around, is_first) else {
            return false;
        };
        add(&self.counts.requests_repeated, u64::from(!is_first));
        wanted.tries += 1;
        wanted.asked = Some((connection, now));
        true
    }

    // Sends a request on one of the connections. `is_awaited`: somebody waits for the answer, and has not before.
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
        // Until the server has answered the begin, nothing of the task may overtake it.
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

    /// How many neighbours are wanted with a block: none while a plan may bring them, few where there is one and it
    /// missed, else as many as fill the line for a round trip; none that are here already.
    fn around(&self, token: Option<Token>, at: BlockAt) -> u32 {
        if !self.settings.around || self.stage.is_staged(at) {
            return 0;
        }
        let begun = match &token {
            None => Some(0),
            Some(token) => match locked(&self.tasks).get(token) {
                Some(task) if task.wire.is_some() => task.begun,
                _ => Some(0),
            },
        };
        let bytes = self
            .network
            .bandwidth()
            .saturating_mul(self.network.round_trip().as_micros() as u64)
            / 1_000_000;
        let width = match begun {
            None => return 0,
            Some(0) => (bytes / WIRE_BLOCK_BYTES).clamp(u64::from(AROUND_MIN), 31) as u32,
            Some(_) => AROUND_MIN,
        };
        if self.settings.cache.is_none() && begun.is_some() && self.is_known(token) {
            // The server leaves out what it has sent for the task, and goes on before the block.
            let missing = self.stage.missing_in_run(at, self.manifest.blocks(at.file));
            return width.min(missing);
        }
        let in_run = SEGMENT_BLOCKS - 1 - at.index % SEGMENT_BLOCKS;
        let in_file = self.manifest.blocks(at.file) - 1 - at.index;
        let missing = self
            .stage
            .missing_behind(at, width.min(in_run).min(in_file));
        let Some((cache, list)) = self.settings.cache.as_deref().zip(self.lists.get(at.file))
        else {
            return missing;
        };
        let is_missing = |behind: &u32| {
            let hash = list.get(at.index + behind);
            !hash.is_some_and(|hash| cache.has(&hash))
        };
        (1..=missing).take_while(is_missing).count() as u32
    }
}

const _: () = assert!(BLOCK_BYTES as u64 > WIRE_BLOCK_BYTES);
