//! The running tasks: what each has read, what is prefetched for it, and whether all of its reads were observed.
//!
//! Pure: the caller passes the time. A task is known here by the token of the mount. The server knows it by another
//! token, which is new on each connection, because a restarted server has forgotten the old one.

use crate::block::{BlockAt, FileId, Token};
use crate::device::counters::Start;
use crate::device::settings::PLAN_BLOCKS_MAX;
use crate::wire::BLOCKS_PER_MESSAGE_MAX;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The maximum number of tasks that are followed at the same time; others run without a plan.
pub(crate) const TASKS_MAX: usize = 256;

/// The maximum number of blocks in the traces of all tasks together (each takes about 24 bytes).
pub(crate) const TRACED_MAX: usize = 128 << 10;

/// After this time without a new block read, the first action of a task is over.
pub(crate) const QUIET: Duration = Duration::from_secs(3);

/// After this time without a new block read, the trace is sent to the server.
pub(crate) const PAUSE: Duration = Duration::from_millis(200);

/// The maximum number of ended tasks whose late prefetched blocks are still recognised.
const ENDED_MAX: usize = 64;

/// The state of a task.
pub(crate) struct Task {
    /// The executable.
    pub file: FileId,
    /// The server's token of the task, and the connection on which it was begun. `None`: no server knows the task.
    pub wire: Option<(Token, u64)>,
    /// The number of prefetched blocks, once the server has answered the begin.
    pub begun: Option<u32>,
    /// Whether the server audits this start: all reads are to be observed.
    pub is_audit: bool,
    /// Prefetched blocks are still arriving.
    pub is_prefetching: bool,
    /// The server's plan, in order.
    pub plan: Vec<BlockAt>,
    positions: HashMap<BlockAt, u32>,
    // Prefetched blocks have been placed up to this position of the plan.
    came_to: u32,
    /// When the last prefetched block arrived.
    pub last_came: Option<Instant>,
    seen: HashSet<BlockAt>,
    trace: Vec<BlockAt>,
    reported: usize,
    last_new: Instant,
    before: Arc<Vec<BlockAt>>,
    // Files of which a prefetched block has arrived.
    probed: HashSet<FileId>,
    // Prefetched blocks that arrived during an audited start.
    prefetched: HashSet<BlockAt>,
    // Some reads may not have been observed.
    is_blind: bool,
    // A read has failed, so what the task would have read after that is unknown.
    is_incomplete: bool,
    // Blocks of the trace whose last read has failed.
    failed: HashSet<BlockAt>,
    /// The end of its first action is handled: it was reported to the server, or no server knew the task.
    pub is_end_reported: bool,
    // The length of the trace at that time, and whether it was reported to a server.
    start_blocks: Option<usize>,
    was_reported: bool,
    // The number of waiting reads: while one waits, the start is slow, not over.
    waits: u32,
    /// Requests in flight: a new request counts as a round trip only if there is none.
    pub in_flight: u32,
    /// The figures of its start.
    pub start: Start,
}

/// A start that ended while no server was reachable.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnreportedStart {
    pub file: FileId,
    pub blocks: Vec<BlockAt>,
    pub is_exact: bool,
}

/// All tasks.
#[derive(Default)]
pub(crate) struct Tasks {
    tasks: HashMap<Token, Task>,
    by_wire: HashMap<Token, Token>,
    ended: Vec<Token>,
    traced: usize,
}

/// What must be reported of a task now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub token: Token,
    pub wire: Token,
    pub connection: u64,
    pub blocks: Vec<BlockAt>,
    /// No new block was read for [`QUIET`]: the end of the action must be reported too.
    pub is_end: bool,
}

impl Tasks {
    /// Begins a task. Returns false if there are too many. `is_blind`: some of its reads may not be observed. `before`:
    /// what it needed last time, as far as that is known here.
    pub fn begin(
        &mut self,
        token: Token,
        file: FileId,
        before: Arc<Vec<BlockAt>>,
        is_blind: bool,
        now: Instant,
    ) -> bool {
        if self.tasks.len() >= TASKS_MAX {
            return false;
        }
        let task = Task {
            file,
            wire: None,
            begun: None,
            is_audit: false,
            is_prefetching: false,
            plan: Vec::new(),
            positions: HashMap::new(),
            came_to: 0,
            last_came: None,
            seen: HashSet::new(),
            trace: Vec::new(),
            reported: 0,
            last_new: now,
            before,
            probed: HashSet::new(),
            prefetched: HashSet::new(),
            is_blind,
            is_incomplete: false,
            failed: HashSet::new(),
            is_end_reported: false,
            start_blocks: None,
            was_reported: false,
            waits: 0,
            in_flight: 0,
            start: Start {
                task: file,
                ..Start::default()
            },
        };
        self.tasks.insert(token, task);
        true
    }

    /// Returns a task.
    pub fn get(&mut self, token: &Token) -> Option<&mut Task> {
        self.tasks.get_mut(token)
    }

    /// Whether nothing is prefetched for a reader; `None` if that is not known yet.
    pub fn is_first(&self, token: Option<Token>) -> Option<bool> {
        match token.and_then(|token| self.tasks.get(&token)) {
            Some(task) if task.wire.is_some() => {
                let blocks = task.begun?;
                Some(blocks == 0 && task.plan.is_empty())
            }
            _ => Some(true),
        }
    }

    /// Whether the server knows a task.
    pub fn is_known(&self, token: Option<Token>) -> bool {
        let task = token.and_then(|token| self.tasks.get(&token));
        task.is_some_and(|task| task.wire.is_some())
    }

    /// Returns the task that the server knows by this token.
    pub fn by_wire(&mut self, wire: &Token) -> Option<(Token, &mut Task)> {
        let token = *self.by_wire.get(wire)?;
        Some((token, self.tasks.get_mut(&token)?))
    }

    /// Whether the server knew a task by this token that has ended here.
    pub fn has_ended(&self, wire: &Token) -> bool {
        self.ended.contains(wire)
    }

    /// Whether the plan of any task brings a block soon.
    pub fn arrives_soon(&self, at: BlockAt, blocks_ahead: u32) -> bool {
        let mut tasks = self.tasks.values();
        tasks.any(|task| task.arrives_soon(at, blocks_ahead))
    }

    /// The number of running tasks.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// The number of blocks in traces and plans.
    pub fn blocks(&self) -> usize {
        self.traced
            + self
                .tasks
                .values()
                .map(|task| task.plan.len())
                .sum::<usize>()
    }

    /// Sets the token under which a task is announced to the server on this connection. All that it has read is
    /// reported again.
    pub fn set_wire(&mut self, token: &Token, wire: Token, connection: u64) {
        let Some(task) = self.tasks.get_mut(token) else {
            return;
        };
        if let Some((before, _)) = task.wire.replace((wire, connection)) {
            self.by_wire.remove(&before);
            remember(&mut self.ended, before);
        }
        self.by_wire.insert(wire, *token);
        task.reported = 0;
        task.begun = None;
        task.is_prefetching = false;
        task.plan.clear();
        task.positions.clear();
        task.came_to = 0;
    }

    /// Removes the server's token of a task that the server no longer knows.
    pub fn lose_wire(&mut self, token: &Token) {
        let Some(task) = self.tasks.get_mut(token) else {
            return;
        };
        if let Some((wire, _)) = task.wire.take() {
            self.by_wire.remove(&wire);
            remember(&mut self.ended, wire);
        }
        task.is_prefetching = false;
    }

    /// Handles the end of a connection: returns the tasks that were begun on it and are still running, which must be
    /// begun again.
    pub fn lost_connection(&mut self, connection: u64) -> Vec<Token> {
        let on_it = |task: &Task| task.wire.is_some_and(|(_, on)| on == connection);
        let lost: Vec<Token> = self
            .tasks
            .iter()
            .filter(|(_, task)| on_it(task))
            .map(|(token, _)| *token)
            .collect();
        for token in &lost {
            self.lose_wire(token);
        }
        lost
    }

    /// Returns the tasks that no server knows and whose start is not over. A start with a failed read is not among
    /// them: it would teach the server less than the task needs.
    pub fn unknown(&self) -> Vec<Token> {
        let is_unknown =
            |task: &Task| task.wire.is_none() && !task.is_incomplete && !task.is_end_reported;
        self.tasks
            .iter()
            .filter(|(_, task)| is_unknown(task))
            .map(|(token, _)| *token)
            .collect()
    }

    /// Records that a read of a task has failed, so that its start counts as incomplete.
    pub fn read_failed(&mut self, token: &Token, at: BlockAt) {
        if let Some(task) = self.tasks.get_mut(token) {
            task.is_incomplete = true;
            if task.seen.contains(&at) && task.failed.insert(at) {
                task.start.read = task.start.read.saturating_sub(1);
            }
        }
    }

    /// Makes the server's token of an incomplete task unused. Returns the connection on which the server follows it, if
    /// any.
    pub fn leave_server(&mut self, token: &Token) -> Option<u64> {
        let (_, connection) = self.tasks.get(token)?.wire?;
        self.lose_wire(token);
        Some(connection)
    }

    /// Records that a program of a task reads a block. Returns false if it was read before or cannot be recorded.
    pub fn read(&mut self, token: &Token, at: BlockAt, now: Instant) -> bool {
        let Some(task) = self.tasks.get_mut(token) else {
            return false;
        };
        if task.seen.contains(&at) {
            // The block is read again after a failure. If it fails again, `read_failed` takes this back.
            if task.failed.remove(&at) {
                task.start.read += 1;
            }
            return false;
        }
        if self.traced >= TRACED_MAX {
            task.is_blind = true;
            return false;
        }
        self.traced += 1;
        task.seen.insert(at);
        task.trace.push(at);
        task.last_new = now;
        task.start.read += 1;
        true
    }

    /// Records that any running task may have read something unobserved.
    pub fn blind(&mut self) {
        for task in self.tasks.values_mut() {
            task.is_blind = true;
        }
    }

    /// Takes what must be reported of all tasks: at a pause, when a message is full, and at the end of the first
    /// action.
    pub fn take_due(&mut self, now: Instant) -> Vec<Report> {
        let mut all = Vec::new();
        for (token, task) in &mut self.tasks {
            let quiet = now.saturating_duration_since(task.last_new);
            let is_end = quiet >= QUIET && task.waits == 0 && !task.is_end_reported;
            let unreported = task.trace.len() - task.reported;
            if unreported >= BLOCKS_PER_MESSAGE_MAX || unreported > 0 && quiet >= PAUSE || is_end {
                if is_end {
                    task.start_blocks.get_or_insert(task.trace.len());
                    task.was_reported |= task.wire.is_some();
                }
                let Some((wire, connection)) = task.wire else {
                    // A task that no server knows ends too, so that its plan is noted locally.
                    if is_end {
                        all.push(Report {
                            token: *token,
                            wire: Token([0; 16]),
                            connection: 0,
                            blocks: Vec::new(),
                            is_end,
                        });
                    }
                    continue;
                };
                all.push(Report {
                    token: *token,
                    wire,
                    connection,
                    blocks: task.take_unreported(),
                    is_end,
                });
            }
        }
        all
    }

    /// Records the token under which an already ended task is reported, so that blocks sent for it are recognised.
    pub fn reported_late(&mut self, wire: Token) {
        remember(&mut self.ended, wire);
    }

    /// Removes a task that has ended and returns it. A read that still waits counts as failed: its program was killed,
    /// or the mount ends.
    pub fn end(&mut self, token: &Token) -> Option<Task> {
        let mut task = self.tasks.remove(token)?;
        task.is_incomplete |= task.is_waiting() && !task.is_end_reported;
        self.traced -= task.trace.len();
        if let Some((wire, _)) = &task.wire {
            self.by_wire.remove(wire);
            remember(&mut self.ended, *wire);
        }
        Some(task)
    }
}

fn remember(ended: &mut Vec<Token>, wire: Token) {
    if ended.len() >= ENDED_MAX {
        ended.remove(0);
    }
    ended.push(wire);
}

impl Task {
    /// Takes the blocks that were read and not reported yet; they count as reported from now on.
    pub fn take_unreported(&mut self) -> Vec<BlockAt> {
        let unreported = self.trace[self.reported..].to_vec();
        self.reported = self.trace.len();
        unreported
    }

    /// Returns what its start read and whether all reads were observed, if this was not reported to any server, to be
    /// reported later. A start with a failed read is never reported: what it did not reach would count as unused.
    pub fn unreported_start(&self) -> Option<UnreportedStart> {
        let blocks = &self.trace[..self.start_blocks.unwrap_or(self.trace.len())];
        let is_unreported = self.wire.is_none() && !self.was_reported && !self.is_incomplete;
        (is_unreported && !blocks.is_empty()).then(|| UnreportedStart {
            file: self.file,
            blocks: blocks.to_vec(),
            is_exact: self.is_exact() || !self.is_blind && self.begun.is_none(),
        })
    }

    /// Records that a read of the task waits; [`read_is_over`](Self::read_is_over) follows.
    pub fn read_waits(&mut self) {
        self.waits += 1;
    }

    /// Records that a read no longer waits: the quiet time is counted from now on. `was_requested`: it sent a request.
    pub fn read_is_over(&mut self, now: Instant, was_requested: bool) {
        self.waits = self.waits.saturating_sub(1);
        self.in_flight = self.in_flight.saturating_sub(u32::from(was_requested));
        self.last_new = self.last_new.max(now);
    }

    /// Whether a read of the task waits. If the task has ended, the read was never answered.
    pub fn is_waiting(&self) -> bool {
        self.waits > 0
    }

    /// Returns the blocks that were read, in order.
    pub fn trace(&self) -> &[BlockAt] {
        &self.trace
    }

    /// Whether a program of the task was observed reading a block.
    pub fn has_read(&self, at: BlockAt) -> bool {
        self.seen.contains(&at)
    }

    /// Adds a piece of the server's plan.
    pub fn add_plan(&mut self, blocks: &[BlockAt]) {
        for at in blocks {
            if self.plan.len() < PLAN_BLOCKS_MAX {
                self.positions.insert(*at, self.plan.len() as u32);
                self.plan.push(*at);
            }
        }
    }

    /// Records that the task may read something unobserved.
    pub fn set_blind(&mut self) {
        self.is_blind = true;
    }

    /// Records a prefetched block that has arrived. Returns whether its read must be observed: the first read of each
    /// file shows the server that the file is used.
    pub fn came(&mut self, at: BlockAt, now: Instant) -> bool {
        self.start.pushed += 1;
        self.last_came = Some(now);
        if self.is_audit && self.prefetched.len() < PLAN_BLOCKS_MAX {
            self.prefetched.insert(at);
        }
        self.probed.insert(at.file)
    }

    /// Returns the first block of each file of its plan.
    pub fn probes(&self) -> Vec<BlockAt> {
        let mut files = HashSet::new();
        let first = |at: &&BlockAt| files.insert(at.file);
        self.plan.iter().filter(first).copied().collect()
    }

    /// Records that a block is in the buffer: a reader that misses an earlier block of the plan need not wait for the
    /// plan.
    pub fn placed(&mut self, at: BlockAt) {
        if let Some(position) = self.positions.get(&at) {
            self.came_to = self.came_to.max(position + 1);
        }
    }

    /// Records that no further prefetched blocks will arrive.
    pub fn prefetch_is_over(&mut self) {
        self.is_prefetching = false;
        self.positions = HashMap::new();
    }

    /// Whether a missing block arrives within the next `blocks_ahead` blocks of the plan. Such a block is in flight, or
    /// will be before a request for it could be answered.
    pub fn arrives_soon(&self, at: BlockAt, blocks_ahead: u32) -> bool {
        let position = self.positions.get(&at).filter(|_| self.is_prefetching);
        position.is_some_and(|position| {
            *position >= self.came_to && position - self.came_to <= blocks_ahead
        })
    }

    /// The number of prefetched blocks that arrived and were not observed being read; known only for an audited start.
    pub fn unread(&self) -> u64 {
        self.prefetched.difference(&self.seen).count() as u64
    }

    /// Whether all reads were observed, and none has failed.
    pub fn is_exact(&self) -> bool {
        !self.is_blind && !self.is_incomplete && (self.is_audit || self.begun == Some(0))
    }

    /// Whether a read has failed, so that what the task needs after that is unknown.
    pub fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// Ends its start, at the end of its first action or of the task. Returns the figures and what its next start will
    /// need; `None` if the start has ended before.
    pub fn end_start(&mut self) -> Option<(Start, Vec<BlockAt>)> {
        if std::mem::replace(&mut self.is_end_reported, true) {
            return None;
        }
        let mut start = self.start;
        start.is_exact = self.is_exact();
        start.unread = self.unread();
        Some((start, self.needed()))
    }

    /// Returns what its next start will need, in order, as far as this one knows. If the start was audited and all
    /// reads were observed, these are the blocks that were read. Else they are also the server's plan and what was
    /// known before. This start may have found blocks in the page cache, or may have failed before it needed them.
    pub fn needed(&self) -> Vec<BlockAt> {
        let parts: [&[BlockAt]; 3] = match (self.is_exact(), self.is_audit) {
            (true, true) => return self.trace.clone(),
            (true, false) => [self.trace.as_slice(), self.before.as_slice(), &[]],
            (false, _) => [
                self.plan.as_slice(),
                self.before.as_slice(),
                self.trace.as_slice(),
            ],
        };
        let mut known = HashSet::new();
        let all = parts.into_iter().flatten().copied();
        let once = all.filter(|at| known.insert(*at));
        once.take(PLAN_BLOCKS_MAX).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(index: u32) -> BlockAt {
        BlockAt {
            file: FileId(7),
            index,
        }
    }

    const TOKEN: Token = Token([1; 16]);
    const WIRE: Token = Token([2; 16]);

    fn running(now: Instant) -> Tasks {
        let mut tasks = Tasks::default();
        let before = Arc::new([1, 2].map(block).to_vec());
        assert!(tasks.begin(TOKEN, FileId(7), before, false, now));
        tasks.set_wire(&TOKEN, WIRE, 1);
        tasks
    }

    #[test]
    fn each_block_is_reported_once_in_order_at_a_pause_and_the_end_after_quiet() {
        let now = Instant::now();
        let mut tasks = running(now);
        for index in [3, 1, 3, 2, 1] {
            tasks.read(&TOKEN, block(index), now);
        }
        assert_eq!(tasks.take_due(now), []);
        let reports = tasks.take_due(now + PAUSE);
        assert_eq!(reports[0].blocks, [3, 1, 2].map(block));
        assert!(!reports[0].is_end && reports[0].wire == WIRE);
        assert_eq!(tasks.take_due(now + PAUSE), []);
        let reports = tasks.take_due(now + QUIET);
        assert!(reports[0].is_end && reports[0].blocks.is_empty());
    }

    #[test]
    fn a_lost_connection_has_all_reported_again() {
        let now = Instant::now();
        let mut tasks = running(now);
        tasks.read(&TOKEN, block(5), now);
        assert_eq!(tasks.take_due(now + PAUSE)[0].blocks, [block(5)]);
        assert_eq!(tasks.lost_connection(2), []);
        assert_eq!(tasks.lost_connection(1), [TOKEN]);
        assert_eq!(tasks.unknown(), [TOKEN]);
        assert!(tasks.has_ended(&WIRE) && tasks.by_wire(&WIRE).is_none());
        tasks.set_wire(&TOKEN, Token([3; 16]), 4);
        assert_eq!(tasks.take_due(now + PAUSE)[0].blocks, [block(5)]);
    }

    #[test]
    fn a_block_is_waited_for_only_while_its_plan_brings_it_soon() {
        let now = Instant::now();
        let mut tasks = running(now);
        let task = tasks.get(&TOKEN).unwrap();
        task.add_plan(&[0, 1, 2, 9, 8].map(block));
        assert!(!task.arrives_soon(block(1), 9), "nothing comes yet");
        task.is_prefetching = true;
        assert!(task.arrives_soon(block(1), 9));
        assert!(!task.arrives_soon(block(8), 3), "too far ahead");
        task.came(block(2), now);
        assert!(task.arrives_soon(block(2), 9));
        task.placed(block(2));
        assert!(!task.arrives_soon(block(1), 9), "passed by");
        assert!(task.arrives_soon(block(8), 3));
        assert!(!task.arrives_soon(block(4), 9), "in no plan");
        task.prefetch_is_over();
        assert!(!task.arrives_soon(block(8), 9));
    }

    #[test]
    fn a_start_is_exact_only_if_nothing_could_be_read_unseen() {
        let now = Instant::now();
        let mut tasks = running(now);
        let task = tasks.get(&TOKEN).unwrap();
        assert!(!task.is_exact(), "the server has not answered");
        task.begun = Some(3);
        assert!(
            !task.is_exact(),
            "prefetched blocks are stored before they are read"
        );
        task.is_audit = true;
        assert!(task.is_exact());
        tasks.blind();
        assert!(!tasks.get(&TOKEN).unwrap().is_exact());
    }

    #[test]
    fn the_next_start_needs_the_plan_and_its_misses_unless_all_reads_were_seen() {
        let now = Instant::now();
        let mut tasks = running(now);
        tasks.read(&TOKEN, block(4), now);
        tasks.read(&TOKEN, block(1), now);
        let task = tasks.get(&TOKEN).unwrap();
        assert_eq!(task.needed(), [1, 2, 4].map(block));
        task.begun = Some(0);
        assert_eq!(task.needed(), [4, 1, 2].map(block));
        task.is_audit = true;
        assert_eq!(task.needed(), [4, 1].map(block));
    }

    #[test]
    fn a_start_that_found_the_program_in_the_page_cache_does_not_shrink_what_is_needed() {
        let now = Instant::now();
        let mut tasks = Tasks::default();
        let before = Arc::new((0..9).map(block).collect::<Vec<_>>());
        assert!(tasks.begin(TOKEN, FileId(7), before, true, now));
        tasks.set_wire(&TOKEN, WIRE, 1);
        // The server's action has less than the device has seen.
        let task = tasks.get(&TOKEN).unwrap();
        task.begun = Some(3);
        task.add_plan(&[4, 5, 6].map(block));
        tasks.read(&TOKEN, block(8), now);
        let mut needed = tasks.get(&TOKEN).unwrap().needed();
        assert_eq!(needed[..3], [4, 5, 6].map(block));
        needed.sort_unstable();
        assert_eq!(needed, (0..9).map(block).collect::<Vec<_>>());
    }

    #[test]
    fn a_start_with_a_failed_read_is_reported_to_no_server() {
        let now = Instant::now();
        let mut tasks = Tasks::default();
        let before = Arc::new([1, 2].map(block).to_vec());
        assert!(tasks.begin(TOKEN, FileId(7), before, false, now));
        tasks.read(&TOKEN, block(1), now);
        assert_eq!(tasks.unknown(), [TOKEN]);
        tasks.read(&TOKEN, block(4), now);
        tasks.read_failed(&TOKEN, block(4));
        assert_eq!(
            tasks.unknown(),
            [],
            "it is not announced to a server that is back"
        );
        assert_eq!(tasks.leave_server(&TOKEN), None);
        let ended = tasks.end(&TOKEN);
        let mut task = ended.unwrap();
        assert_eq!(task.unreported_start(), None);
        let (start, needed) = task.end_start().unwrap();
        assert_eq!((start.read, start.is_exact), (1, false));
        assert_eq!(needed, [1, 2, 4].map(block));

        // An audited start that the server follows: it is not exact, and the server loses sight of it.
        let mut tasks = running(now);
        let task = tasks.get(&TOKEN).unwrap();
        (task.is_audit, task.begun) = (true, Some(2));
        assert!(task.is_exact());
        tasks.read(&TOKEN, block(1), now);
        tasks.read_failed(&TOKEN, block(1));
        assert!(!tasks.get(&TOKEN).unwrap().is_exact());
        assert_eq!(tasks.leave_server(&TOKEN), Some(1));
        assert!(tasks.by_wire(&WIRE).is_none() && tasks.has_ended(&WIRE));
        let reports = tasks.take_due(now + QUIET);
        assert!(
            reports.iter().all(|report| report.connection == 0),
            "{reports:?}"
        );
    }

    #[test]
    fn a_start_that_ends_while_a_read_waits_is_not_whole() {
        let now = Instant::now();
        let begin = || {
            let mut tasks = Tasks::default();
            let before = Arc::new([1, 2].map(block).to_vec());
            assert!(tasks.begin(TOKEN, FileId(7), before, false, now));
            tasks.read(&TOKEN, block(1), now);
            tasks.get(&TOKEN).unwrap().read_waits();
            tasks
        };
        let mut task = begin().end(&TOKEN).unwrap();
        assert!(task.is_waiting());
        assert_eq!(task.unreported_start(), None);
        let (start, needed) = task.end_start().unwrap();
        assert!(!start.is_exact);
        assert_eq!(needed, [1, 2].map(block));

        // The read was answered before the end.
        let mut tasks = begin();
        tasks.get(&TOKEN).unwrap().read_is_over(now, false);
        let task = tasks.end(&TOKEN).unwrap();
        assert!(!task.is_waiting() && task.unreported_start().is_some());

        // The read waits after the start is over.
        let mut tasks = begin();
        let task = tasks.get(&TOKEN).unwrap();
        task.read_is_over(now, false);
        assert!(task.end_start().is_some());
        task.read_waits();
        let task = tasks.end(&TOKEN).unwrap();
        assert!(task.is_waiting() && task.unreported_start().is_some());
    }

    #[test]
    fn a_failed_read_does_not_count_as_read_until_it_succeeds() {
        let now = Instant::now();
        let mut tasks = running(now);
        let read = |tasks: &mut Tasks| tasks.get(&TOKEN).unwrap().start.read;
        tasks.read(&TOKEN, block(1), now);
        for _ in 0..2 {
            tasks.read_failed(&TOKEN, block(1));
            assert_eq!(read(&mut tasks), 0);
            tasks.read(&TOKEN, block(1), now);
            assert_eq!(read(&mut tasks), 1);
        }
        tasks.read_failed(&TOKEN, block(9));
        assert_eq!(read(&mut tasks), 1, "a block that was never in the trace");
    }

    #[test]
    fn a_start_without_a_server_is_kept_up_to_its_quiet() {
        let now = Instant::now();
        let mut tasks = Tasks::default();
        assert!(tasks.begin(TOKEN, FileId(7), Arc::default(), false, now));
        tasks.read(&TOKEN, block(4), now);
        tasks.take_due(now + QUIET);
        tasks.read(&TOKEN, block(5), now + QUIET);
        let unreported = UnreportedStart {
            file: FileId(7),
            blocks: vec![block(4)],
            is_exact: true,
        };
        let task = tasks.get(&TOKEN).unwrap();
        assert_eq!(task.unreported_start(), Some(unreported));
        task.set_blind();
        assert!(!task.unreported_start().unwrap().is_exact);
        tasks.set_wire(&TOKEN, WIRE, 1);
        assert_eq!(tasks.end(&TOKEN).unwrap().unreported_start(), None);

        let mut tasks = running(now);
        tasks.read(&TOKEN, block(4), now);
        tasks.take_due(now + QUIET);
        tasks.lost_connection(1);
        assert_eq!(
            tasks.end(&TOKEN).unwrap().unreported_start(),
            None,
            "it was reported"
        );
    }

    #[test]
    fn a_start_that_waits_for_a_server_is_not_over() {
        let start = Instant::now();
        let mut tasks = running(start);
        tasks.read(&TOKEN, block(1), start);
        tasks.get(&TOKEN).unwrap().read_waits();
        let long = start + 10 * QUIET;
        assert!(tasks.take_due(long).iter().all(|report| !report.is_end));
        tasks.get(&TOKEN).unwrap().read_is_over(long, false);
        assert!(tasks.take_due(long + QUIET / 2).is_empty());
        let ends = tasks.take_due(long + QUIET);
        assert!(ends.len() == 1 && ends[0].is_end, "{ends:?}");
    }

    #[test]
    fn traces_of_all_tasks_are_bounded_together() {
        let now = Instant::now();
        let mut tasks = running(now);
        for index in 0..TRACED_MAX as u32 {
            assert!(tasks.read(&TOKEN, block(index), now));
        }
        tasks.get(&TOKEN).unwrap().begun = Some(0);
        assert!(tasks.get(&TOKEN).unwrap().is_exact());
        assert!(!tasks.read(&TOKEN, block(u32::MAX), now));
        assert!(!tasks.get(&TOKEN).unwrap().is_exact());
        assert_eq!(tasks.end(&TOKEN).unwrap().trace().len(), TRACED_MAX);
        assert_eq!((tasks.blocks(), tasks.len()), (0, 0));
    }
}
