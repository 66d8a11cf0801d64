//! A device, whatever connections it has at the moment: its tasks, and which connection each is sent on.

use super::task::{Next, SENT_WORDS_MAX, SentRoom, Task};
use super::tenant::Tenant;
use crate::block::{BlockAt, Token};
use crate::wire::Refusal;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Blocks that a start is told of at most, of those that the others on its device were sent.
const COMPANY_BLOCKS_MAX: usize = 1 << 16;

/// How a device is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SessionKey {
    pub(super) tenant: Arc<str>,
    /// The fingerprint of its certificate; None: the server is without TLS, and nobody can be told from others.
    pub(super) certificate: Option<[u8; 32]>,
    /// The number it chose.
    pub(super) device: [u8; 16],
    /// The version that it mounts.
    pub(super) version: u64,
}

/// A device at one version.
pub(super) struct Session {
    pub(super) tenant: Arc<Tenant>,
    /// For what all of its tasks remember of what was sent.
    pub(super) sent_room: SentRoom,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    tasks: HashMap<Token, Task>,
    /// Tasks that have something to be sent; they take turns.
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

    /// Nothing is half done when a thread panics with it.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection of it, if it has fewer than `connections_max`.
    pub(super) fn join(&self, id: u64, wake: &Arc<Notify>, connections_max: usize) -> bool {
        let mut inner = self.inner();
        let has_room = inner.connections.len() < connections_max;
        if has_room {
            inner.connections.insert(id, Arc::clone(wake));
        }
        has_room
    }

    /// A connection has ended, and with it the tasks that were begun on it: their tokens. The device begins them anew
    /// on another one, since what was on its way is lost.
    pub(super) fn leave(&self, id: u64) -> Vec<Token> {
        let mut inner = self.inner();
        inner.connections.remove(&id);
        let ended = inner.tasks.extract_if(|_, task| task.home == id);
        let ended: Vec<Token> = ended.map(|(token, _)| token).collect();
        inner.turns.retain(|token| !ended.contains(token));
        ended
    }

    /// Connections now.
    pub(super) fn connections(&self) -> usize {
        self.inner().connections.len()
    }

    /// Tasks now.
    pub(super) fn tasks(&self) -> usize {
        self.inner().tasks.len()
    }

    /// Makes room for a task; the token of one that is paused and had to go for it.
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

    /// What the device gets for those of its tasks that start at this time; None: none does.
    pub(super) fn company(&self, now_ms: u64) -> Option<Vec<BlockAt>> {
        let inner = self.inner();
        let starting = inner.tasks.values().filter(|task| task.is_starting(now_ms));
        let mut starting = starting.peekable();
        starting.peek()?;
        let blocks = starting.flat_map(Task::sent_blocks);
        Some(blocks.take(COMPANY_BLOCKS_MAX).collect())
    }

    /// Takes into a task that begins what was sent to the others that start: none of it is sent again. Page cache and
    /// pool of a device are one for all of its tasks.
    pub(super) fn accompany(&self, task: &mut Task, now_ms: u64) {
        let mut inner = self.inner();
        for other in inner.tasks.values_mut() {
            if other.is_starting(now_ms) {
                task.join(other);
            }
        }
    }

    /// Blocks go to the device for one task: the others that start are not sent them again, and what is learned of
    /// them takes into account that they have them.
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

    /// A task begins.
    pub(super) fn begin(&self, task: Task) {
        let mut inner = self.inner();
        let token = task.token;
        if task.has_next() {
            inner.turns.push_back(token);
        }
        inner.tasks.insert(token, task);
    }

    /// Does something with a task; None where there is no such task.
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

    /// A task has ended, with all its processes.
    pub(super) fn end(&self, token: Token) {
        let mut inner = self.inner();
        inner.turns.retain(|other| *other != token);
        inner.tasks.remove(&token);
    }

    /// What is to be sent next on a connection of what is prefetched; and, of that task, what comes `ahead` pieces
    /// later.
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
    use crate::block::FileId;
    use crate::wire::Held;

    #[test]
    fn what_all_tasks_of_a_device_remember_is_bounded_together() {
        let room = SentRoom::new(1000);
        let mut inner = Inner::default();
        for number in 0..64 {
            let mut task = Task::new(Token([number; 16]), FileId(1), 1, Held::default(), &room);
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
