//! What the server is told of tasks: their begin, what they read, and their end.

use super::state::Reader;
use crate::block::{BlockAt, Token};
use crate::device::counters::{Start, add};
use crate::device::prefetch::{Report, Task, Tasks};
use crate::device::random::random;
use crate::device::transport::{Connection, Exchange, InFlight};
use crate::wire::{BLOCKS_PER_MESSAGE_MAX, HeldBlocks, Request};
use std::time::Instant;

impl Reader {
    /// Announces a task that the server does not know on a connection.
    pub fn begin_on(&self, connection: &Connection, token: Token, held: Vec<BlockAt>) {
        let Some(wire) = random().map(Token) else {
            return;
        };
        let held = HeldBlocks::of(held);
        // Send under the lock: a read of the task must not be sent before its begin.
        self.prefetch.tasks(|tasks| {
            let is_to_begin = |task: &&mut Task| task.wire.is_none() && !task.is_incomplete();
            let Some(task) = tasks.get(&token).filter(is_to_begin) else {
                return;
            };
            let file = task.file;
            tasks.set_wire(&token, wire, connection.number);
            let begin = Request::Begin {
                token: wire,
                task: file,
                held,
            };
            let id = self.transport.id();
            connection.expect(id, InFlight::Plan(Some(token)));
            let is_sent = connection.send(&begin, true)
                && connection.send(&Request::AskPlan { id, task: file }, true);
            if !is_sent {
                tasks.lose_wire(&token);
            }
        });
    }

    /// Handles a new connection: tasks that lost theirs continue on it, and waiting readers may send requests.
    pub fn connected(&self, connection: &Connection) {
        for token in self.prefetch.tasks(|tasks| tasks.unknown()) {
            let known = self
                .prefetch
                .task(&token, |task| (task.file, task.trace().to_vec()));
            let Some((file, mut held)) = known else {
                continue;
            };
            let plan = self.disk.plan(file);
            held.extend(plan.iter().filter(|at| self.prefetch.has(**at)));
            // The page cache is not queried here: the query could need this very thread.
            held.extend(self.disk.cached(&plan).iter().map(|(at, _)| *at));
            self.begin_on(connection, token, held);
        }
        self.report_late(connection);
        self.prefetch.look_again();
        self.transport.exchanges.look_again();
    }

    /// Handles the end of a connection.
    pub fn disconnected(&self, connection: &Connection) {
        for (id, request) in connection.take_in_flight() {
            if !matches!(request, InFlight::Block { .. }) {
                self.transport.exchanges.change(id, Exchange::end);
            }
        }
        self.prefetch.lost_connection(connection.number);
    }

    // Reports starts that ended while there was no server. They are sent as tasks that hold all they need, so that the
    // server sends nothing for them.
    fn report_late(&self, connection: &Connection) {
        while let Some(start) = self.prefetch.take_unreported() {
            let Some(wire) = random().map(Token) else {
                return;
            };
            let mut held = start.blocks.clone();
            held.extend(self.disk.plan(start.file).iter());
            let begin = Request::Begin {
                token: wire,
                task: start.file,
                held: HeldBlocks::of(held),
            };
            self.prefetch.tasks(|tasks| tasks.reported_late(wire));
            let traces = start.blocks.chunks(BLOCKS_PER_MESSAGE_MAX);
            let traces = traces.map(|blocks| Request::Trace {
                token: wire,
                blocks: blocks.to_vec(),
            });
            let end = Request::End {
                token: wire,
                is_exact: start.is_exact,
                has_exited: true,
            };
            let mut all = std::iter::once(begin).chain(traces).chain([end]);
            // Send in this order, behind the requests that programs wait for.
            if !all.all(|request| connection.send(&request, false)) {
                // The server forgets the part that was sent when the connection ends.
                return self.prefetch.keep_unreported(start);
            }
            add(&self.counts.told_late, 1);
        }
    }

    /// Reports what is due of all tasks. Sends under the lock of the tasks. Without it, another thread could end a task
    /// and send its end before a trace that was taken here. The server would then drop the trace. Sending does not
    /// wait.
    pub fn report(&self, now: Instant) {
        let (reports, ended) = self.prefetch.tasks(|tasks| {
            let reports = tasks.take_due(now);
            let ended = reports
                .iter()
                .filter_map(|report| self.send_report(tasks, report));
            let ended: Vec<_> = ended.collect();
            (reports, ended)
        });
        for (start, needed, is_whole) in ended {
            self.record_start(start, needed, is_whole);
        }
        for report in reports.iter().filter(|report| report.is_end) {
            self.prefetch.end(report.token);
        }
    }

    // Returns the figures of a start that ends with this report, what it needed, and whether none of its reads failed.
    fn send_report(
        &self,
        tasks: &mut Tasks,
        report: &Report,
    ) -> Option<(Start, Vec<BlockAt>, bool)> {
        let is_sent = self.report_reads(report.connection, report.wire, &report.blocks);
        let (mut is_exact, mut ended) = (false, None);
        if let Some(task) = tasks.get(&report.token) {
            if !is_sent {
                task.set_blind();
            }
            is_exact = task.is_exact();
            if report.is_end {
                let is_whole = !task.is_incomplete();
                let start = task.end_start();
                ended = start.map(|(start, needed)| (start, needed, is_whole));
            }
        }
        if report.is_end {
            self.report_end(report.connection, report.wire, is_exact, false);
        }
        ended
    }

    /// Reports blocks that a task has read. Returns false if that failed.
    pub fn report_reads(&self, connection: u64, wire: Token, blocks: &[BlockAt]) -> bool {
        if blocks.is_empty() {
            return true;
        }
        let Some(connection) = self.transport.connection(connection) else {
            return false;
        };
        blocks.chunks(BLOCKS_PER_MESSAGE_MAX).all(|blocks| {
            let trace = Request::Trace {
                token: wire,
                blocks: blocks.to_vec(),
            };
            connection.send(&trace, false)
        })
    }

    /// Reports the end of a task, or of its first action.
    pub fn report_end(&self, connection: u64, token: Token, is_exact: bool, has_exited: bool) {
        if let Some(connection) = self.transport.connection(connection) {
            let end = Request::End {
                token,
                is_exact,
                has_exited,
            };
            connection.send(&end, false);
        }
    }
}
