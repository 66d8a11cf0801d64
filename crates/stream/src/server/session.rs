//! A device with all its current connections: its tasks, and the connection on which each is sent.

use super::task::{Next, SENT_WORDS_MAX, SentRoom, Task};
use super::tenant::Tenant;
use crate::block::{BlockAt, FileId, Token};
use crate::sync::locked;
use crate::wire::Refusal;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;

/// The maximum number of blocks sent to other starting tasks of a device that a new start is told of.
const COMPANY_BLOCKS_MAX: usize = 1 << 16;

/// Identifies a device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SessionKey {
    pub(super) tenant: Arc<str>,
    /// The fingerprint of its certificate; `None` if the server runs without TLS and cannot tell devices apart by
    /// certificate.
    pub(super) certificate: Option<[u8; 32]>,
    /// The number it chose.
    pub(super) device: [u8; 16],
    /// The version that it mounts.
    pub(super) version: u64,
}

/// A device at one version.
pub(super) struct Session {
    pub(super) tenant: Arc<Tenant>,
    /// Limits the records of sent blocks of all its tasks together.
    pub(super) sent_room: SentRoom,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    tasks: HashMap<Token, Task>,
    /// Tasks that have something to send; they take turns.
    turns: VecDeque<Token>,
    connections: HashMap<u64, Arc<Notify>>,
}

impl Session {
    pub(super) fn new(tenant: Arc<Tenant>) -> Self {
        Self {
            tenant,
            sent_room: SentRoom::new(SENT_WORDS_MAX),
            inner: Mutex::default(),
        }
    }

    /// Ignores poisoning: a panic leaves no update half done.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        locked(&self.inner)
    }

    /// Adds a connection, if the device has fewer than `connections_max`.
    pub(super) fn join(&self, id: u64, wake: &Arc<Notify>, connections_max: usize) -> bool {
        let mut inner = self.inner();
        let has_room = inner.connections.len() < connections_max;
        if has_room {
            inner.connections.insert(id, Arc::clone(wake));
        }
        has_room
    }

    /// Removes a connection that has ended, and the tasks that were begun on it. Returns their tokens. The device
    /// begins them again on another connection, since in-flight blocks are lost.
    pub(super) fn leave(&self, id: u64) -> Vec<Token> {
        let mut inner = self.inner();
        inner.connections.remove(&id);
        let ended = inner.tasks.extract_if(|_, task| task.home == id);
        let ended: Vec<Token> = ended.map(|(token, _)| token).collect();
        inner.turns.retain(|token| !ended.contains(token));
        ended
    }

    /// Returns the number of connections now.
    pub(super) fn connections(&self) -> usize {
        self.inner().connections.len()
    }

    /// Returns the number of tasks now.
    pub(super) fn tasks(&self) -> usize {
        self.inner().tasks.len()
    }

    /// Returns whether the device runs this executable now.
    pub(super) fn runs(&self, task: FileId) -> bool {
        let inner = self.inner();
        inner.tasks.values().any(|running| running.task == task)
    }

    /// Makes room for a task. Returns the token of a paused task that was removed for it.
    pub(super) fn admit(&self, token: Token, tasks_max: usize) -> Result<Option<Token>, Refusal> {
        let mut inner = self.inner();
        if inner.tasks.contains_key(&token) {
            return Err(Refusal::TokenReused);
        }
        if inner.tasks.len() < tasks_max {
            return Ok(None);
        }
        let paused = inner.tasks.values().find(|task| task.is_paused);
        let paused = paused.map(|task| task.token).ok_or(Refusal::Limit)?;
        inner.tasks.remove(&paused);
        Ok(Some(paused))
    }

    /// Returns the blocks that were sent for the device's tasks that start now; `None` if no task starts.
    pub(super) fn company(&self, now_ms: u64) -> Option<Vec<BlockAt>> {
        let inner = self.inner();
        let starting = inner.tasks.values().filter(|task| task.is_starting(now_ms));
        let mut starting = starting.peekable();
        starting.peek()?;
        let blocks = starting.flat_map(Task::sent_blocks);
        Some(blocks.take(COMPANY_BLOCKS_MAX).collect())
    }

    /// Marks in a new task what was sent to the other starting tasks, so that none of it is sent again. All tasks of a
    /// device share its page cache and pool.
    pub(super) fn accompany(&self, task: &mut Task, now_ms: u64) {
        let mut inner = self.inner();
        for other in inner.tasks.values_mut() {
            if other.is_starting(now_ms) {
                task.join(other);
            }
        }
    }

    /// Notes blocks that go to the device for one task. They are not sent again to the other starting tasks, and the
    /// predictor learns that these tasks have them.
    pub(super) fn share(&self, token: Token, blocks: &[BlockAt], now_ms: u64) {
        let mut company = Vec::new();
        {
            let mut inner = self.inner();
            if inner.tasks.len() < 2 {
                return;
            }
            for (other, task) in &mut inner.tasks {
                if *other != token && task.is_starting(now_ms) {
                    for at in blocks {
                        task.demand(*at);
                    }
                    company.push(*other);
                }
            }
        }
        let mut predictor = self.tenant.predictor();
        for other in company {
            predictor.beside(other, blocks);
        }
    }

    /// Adds a task that begins.
    pub(super) fn begin(&self, task: Task) {
        let mut inner = self.inner();
        let token = task.token;
        if task.has_next() {
            inner.turns.push_back(token);
        }
        inner.tasks.insert(token, task);
    }

    /// Runs `work` on a task; `None` if there is no such task.
    pub(super) fn with<T>(&self, token: Token, work: impl FnOnce(&mut Task) -> T) -> Option<T> {
        let mut inner = self.inner();
        let Inner {
            tasks,
            turns,
            connections,
            ..
        } = &mut *inner;
        let task = tasks.get_mut(&token)?;
        let done = work(task);
        if task.has_next() && !turns.contains(&token) {
            turns.push_back(token);
            if let Some(wake) = connections.get(&task.home) {
                wake.notify_one();
            }
        }
        Some(done)
    }

    /// Removes a task that has ended, with all its processes.
    pub(super) fn end(&self, token: Token) {
        let mut inner = self.inner();
        inner.turns.retain(|other| *other != token);
        inner.tasks.remove(&token);
    }

    /// Returns what to prefetch next on a connection, and the blocks that this task sends within the next `ahead`
    /// pieces.
    pub(super) fn next(&self, id: u64, ahead: usize) -> Option<(Token, Next, Vec<BlockAt>)> {
        let mut inner = self.inner();
        for _ in 0..inner.turns.len() {
            let token = inner.turns.pop_front()?;
            let Some(task) = inner.tasks.get_mut(&token) else {
                continue;
            };
            if task.home != id {
                inner.turns.push_back(token);
                continue;
            }
            let Some(next) = task.next() else { continue };
            let ahead = task.ahead(ahead).copied().collect();
            if task.has_next() {
                inner.turns.push_back(token);
            }
            return Some((token, next, ahead));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::HeldBlocks;

    #[test]
    fn sent_blocks_of_all_tasks_of_a_device_are_bounded_together() {
        let room = SentRoom::new(1000);
        let mut inner = Inner::default();
        for number in 0..64 {
            let mut task = Task::new(
                Token([number; 16]),
                FileId(1),
                1,
                HeldBlocks::default(),
                &room,
            );
            task.starts_at(0);
            for other in inner.tasks.values_mut() {
                task.join(other);
            }
            for index in 0..1000 {
                task.demand(BlockAt {
                    file: FileId(u32::from(number)),
                    index: index * 64,
                });
            }
            inner.tasks.insert(task.token, task);
        }
        let blocks = inner.tasks.values().map(|task| task.sent_blocks().count());
        assert_eq!(blocks.sum::<usize>(), 1000);
        inner.tasks.clear();
        assert_eq!(room.left(), 1000);
    }
}
