//! The state that all threads of a device share.

use super::Pages;
use super::ahead::Ahead;
use super::counters::{Counters, Counts, Start, add};
use super::hashes::Groups;
use super::network::{Asked, Connection, Network, locked};
use super::notes::{self, Paths};
use super::settings::Settings;
use super::stage::Stage;
use super::tasks::{PLAN_BLOCKS_MAX, Task, Tasks, Untold};
use crate::block::{BLOCK_BYTES, BlockAt, BlockHash, FileId, Token};
use crate::group::{Group, GroupAt};
use crate::manifest::{Manifest, PublicKey};
use crate::wire::{BLOCKS_PER_MESSAGE_MAX, Held, Refusal, Request};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// The maximum number of tasks whose plans are kept in memory.
const PLANS_MAX: usize = 8;

/// The maximum number of starts that are kept until they can be reported to a server, and of their blocks together;
/// beyond that the oldest start is dropped.
const UNTOLD_MAX: usize = 8;
const UNTOLD_BLOCKS_MAX: usize = PLAN_BLOCKS_MAX;

/// The maximum number of starts whose figures are kept.
const STARTS_MAX: usize = 64;

/// The maximum number of jobs that wait for the notes thread.
pub(super) const JOBS_MAX: usize = 1024;

/// A background job of the notes thread, which may wait for a disk and for the kernel.
pub(super) enum Job {
    /// Keep a group of hashes, if it is still in memory; the waiting job itself does not hold the group.
    Hashes(GroupAt),
    /// Keep what the task of a file needed.
    Plan(FileId, Arc<Vec<BlockAt>>),
    /// Wake the thread to check whether the device was stopped.
    Nothing,
    /// Check whether blocks of a task's plan are in the page cache already.
    Resident(Token),
}

/// An answer that a caller of `fetch` or `plan` waits for, not a program.
#[derive(Default)]
pub(super) struct Waited {
    pub missing: HashSet<BlockAt>,
    pub plan: Vec<BlockAt>,
    pub is_over: bool,
    pub refused: Option<Refusal>,
}

impl Waited {
    pub fn end(&mut self) {
        self.is_over = true;
    }

    pub fn came(&mut self, blocks: &[BlockAt]) {
        for at in blocks {
            self.missing.remove(at);
        }
    }

    pub fn plan(&mut self, blocks: &[BlockAt], has_more: bool) {
        self.plan.extend_from_slice(blocks);
        // Bound the plan of a server that never stops sending.
        self.is_over = !has_more || self.plan.len() > PLAN_BLOCKS_MAX;
    }

    pub fn refuse(&mut self, reason: Refusal) {
        self.refused = Some(reason);
        self.is_over = true;
    }
}

/// A device.
pub(super) struct Inner {
    pub settings: Settings,
    pub manifest: Arc<Manifest>,
    /// The blake3 hash of the signed manifest.
    pub manifest_hash: [u8; 32],
    /// The publisher's key, if no publisher was known before this start.
    pub first_seen: Option<PublicKey>,
    pub paths: Paths,
    pub stage: Stage,
    pub groups: Groups,
    // Lock order: stage, tasks, the network's locks.
    pub tasks: Mutex<Tasks>,
    pub ahead: Mutex<Ahead>,
    pub counts: Arc<Counts>,
    pub network: Arc<Network>,
    pub pages: RwLock<Option<Arc<dyn Pages>>>,
    pub waits: Mutex<HashMap<u32, Waited>>,
    pub waits_changed: Condvar,
    pub jobs: SyncSender<Job>,
    pub starts: Mutex<VecDeque<Start>>,
    pub untold: Mutex<VecDeque<Untold>>,
    pub plans: Mutex<VecDeque<(FileId, Arc<Vec<BlockAt>>)>>,
    /// Blocks that recently missed their deadline, and when.
    pub late: Mutex<VecDeque<(BlockAt, Instant)>>,
    /// A requested block that is damaged at the server.
    pub damage: Mutex<Option<BlockAt>>,
}

impl Inner {
    pub fn has_pages(&self) -> bool {
        self.pages().is_some()
    }

    /// The page cache, while there is a mount.
    pub fn pages(&self) -> Option<Arc<dyn Pages>> {
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner);
        pages.clone()
    }

    /// Queues a background job.
    pub fn note(&self, job: Job) {
        if let Err(TrySendError::Full(_)) = self.jobs.try_send(job) {
            add(&self.counts.notes_failed, 1);
        }
    }

    /// Changes the answer that a caller waits for, and wakes the caller.
    pub fn waited(&self, id: u32, change: impl FnOnce(&mut Waited)) {
        if let Some(waited) = locked(&self.waits).get_mut(&id) {
            change(waited);
        }
        self.waits_changed.notify_all();
    }

    /// Returns the hash that a block must have, from memory or from the cache.
    pub fn hash(&self, at: BlockAt) -> Option<BlockHash> {
        self.group(GroupAt::from(at))?.get(at.index)
    }

    /// Returns a function for the hashes of many blocks. Adjacent blocks share one lookup of their group, and only one
    /// group is held at a time.
    fn hashes(&self) -> impl FnMut(BlockAt) -> Option<BlockHash> {
        let mut last: Option<(GroupAt, Option<Arc<Group>>)> = None;
        move |at| {
            let wanted = GroupAt::from(at);
            if last.as_ref().is_none_or(|(found, _)| *found != wanted) {
                last = Some((wanted, self.group(wanted)));
            }
            last.as_ref()?.1.as_ref()?.get(at.index)
        }
    }

    pub fn group(&self, at: GroupAt) -> Option<Arc<Group>> {
        if let Some(group) = self.groups.get(at) {
            return Some(group);
        }
        let cache = self.settings.cache.as_deref()?;
        let (_, content) = self.manifest.file(at.file)?;
        let blocks = self.manifest.blocks(at.file);
        let group = notes::group(cache, &content, blocks, at.group)?;
        self.groups.put(at, group, &content, blocks)
    }

    /// Returns what a task needed last time, as far as it is known locally.
    pub fn local_plan(&self, task: FileId) -> Arc<Vec<BlockAt>> {
        let plans = locked(&self.plans);
        if let Some((_, plan)) = plans.iter().find(|(of, _)| *of == task) {
            return Arc::clone(plan);
        }
        drop(plans);
        let note = self.settings.cache.as_deref().and_then(|cache| {
            let path = self.paths.get(&self.manifest, task);
            notes::plan(cache, &path)
        });
        let blocks = note.map(|note| notes::plan_blocks(&self.manifest, &note, PLAN_BLOCKS_MAX));
        Arc::new(blocks.unwrap_or_default())
    }

    /// Keeps what a task needed, in memory and in the cache.
    pub fn set_local_plan(&self, task: FileId, plan: Vec<BlockAt>) {
        if plan.is_empty() {
            return;
        }
        let plan = Arc::new(plan);
        let mut plans = locked(&self.plans);
        let before = plans.iter().position(|(of, _)| *of == task);
        let is_new = match before.and_then(|at| plans.remove(at)) {
            Some((_, before)) => before != plan,
            None => true,
        };
        plans.truncate(PLANS_MAX - 1);
        plans.push_front((task, Arc::clone(&plan)));
        drop(plans);
        if is_new && self.settings.cache.is_some() {
            self.note(Job::Plan(task, plan));
        }
    }

    /// Returns which of these blocks are in the page cache, and which others are in the cache, with their hashes.
    pub fn held(&self, blocks: &[BlockAt]) -> (Vec<BlockAt>, Vec<(BlockAt, BlockHash)>) {
        let (mut resident, mut cached) = (Vec::new(), Vec::new());
        let mut files: HashMap<FileId, Vec<bool>> = HashMap::new();
        let cache = self.settings.cache.as_deref();
        let page_cache = self.pages();
        let mut hash_of = self.hashes();
        for at in blocks {
            let pages = files.entry(at.file).or_insert_with(|| {
                let count = self.manifest.blocks(at.file);
                let pages = page_cache.as_ref().and_then(|p| p.resident(at.file, count));
                pages.unwrap_or_default()
            });
            if pages.get(at.index as usize) == Some(&true) {
                resident.push(*at);
            } else if let Some(cache) = cache
                && let Some(hash) = hash_of(*at)
                && cache.has(&hash)
            {
                cached.push((*at, hash));
            }
        }
        (resident, cached)
    }

    /// Announces a task that the server does not know on a connection.
    pub fn begin_on(&self, connection: &Connection, token: Token, held: Vec<BlockAt>) {
        let Some(wire) = random().map(Token) else {
            return;
        };
        let mut tasks = locked(&self.tasks);
        let Some(task) = tasks.get(&token).filter(|task| task.wire.is_none()) else {
            return;
        };
        let file = task.file;
        tasks.set_wire(&token, wire, connection.number);
        let begin = Request::Begin {
            token: wire,
            task: file,
            held: Held::of(held),
        };
        let id = self.network.id();
        connection.expect(id, Asked::Plan(Some(token)));
        // Send under the lock: a read of the task must not be sent before its begin.
        let is_sent = connection.send(&begin, true)
            && connection.send(&Request::AskPlan { id, task: file }, true);
        if !is_sent {
            tasks.lose_wire(&token);
        }
    }

    /// Handles a new connection: tasks that lost theirs continue on it, and waiting readers may send requests.
    pub fn connected(&self, connection: &Connection) {
        let unknown = locked(&self.tasks).unknown();
        for token in unknown {
            let (file, mut held) = match locked(&self.tasks).get(&token) {
                Some(task) => (task.file, task.trace().to_vec()),
                None => continue,
            };
            let plan = self.local_plan(file);
            held.extend(plan.iter().filter(|at| self.stage.has(**at)));
            held.extend(self.held_in_cache(&plan));
            self.begin_on(connection, token, held);
        }
        self.tell_late(connection);
        self.stage.look_again();
        self.waits_changed.notify_all();
    }

    /// Keeps a start until it can be reported to a server.
    pub fn keep_untold(&self, untold: Untold) {
        let mut all = locked(&self.untold);
        let blocks = |all: &VecDeque<Untold>| all.iter().map(|one| one.blocks.len()).sum::<usize>();
        while all.len() >= UNTOLD_MAX
            || !all.is_empty() && blocks(&all) + untold.blocks.len() > UNTOLD_BLOCKS_MAX
        {
            all.pop_front();
        }
        all.push_back(untold);
    }

    // Reports starts that ended while there was no server. They are sent as tasks that hold all they need, so that the
    // server sends nothing for them.
    fn tell_late(&self, connection: &Connection) {
        loop {
            // Not in the head of the loop: the guard would live as long as its body, which keeps a start again.
            let Some(untold) = locked(&self.untold).pop_front() else {
                return;
            };
            let Some(wire) = random().map(Token) else {
                return;
            };
            let mut held = untold.blocks.clone();
            held.extend(self.local_plan(untold.file).iter());
            let begin = Request::Begin {
                token: wire,
                task: untold.file,
                held: Held::of(held),
            };
            locked(&self.tasks).told_late(wire);
            let traces = untold.blocks.chunks(BLOCKS_PER_MESSAGE_MAX);
            let traces = traces.map(|blocks| Request::Trace {
                token: wire,
                blocks: blocks.to_vec(),
            });
            let end = Request::End {
                token: wire,
                is_exact: untold.is_exact,
                has_exited: true,
            };
            let mut all = std::iter::once(begin).chain(traces).chain([end]);
            // Send in this order, behind the requests that programs wait for.
            if !all.all(|request| connection.send(&request, false)) {
                // The server forgets the part that was sent when the connection ends.
                return self.keep_untold(untold);
            }
            add(&self.counts.told_late, 1);
        }
    }

    /// Returns which of these blocks are in the page cache.
    pub fn resident(&self, blocks: &[BlockAt]) -> Vec<BlockAt> {
        let mut files: HashMap<FileId, Vec<bool>> = HashMap::new();
        let mut resident = blocks.to_vec();
        let page_cache = self.pages();
        resident.retain(|at| {
            let pages = files.entry(at.file).or_insert_with(|| {
                let count = self.manifest.blocks(at.file);
                let pages = page_cache.as_ref().and_then(|p| p.resident(at.file, count));
                pages.unwrap_or_default()
            });
            pages.get(at.index as usize) == Some(&true)
        });
        resident
    }

    // The page cache is not queried here: the query could need this very thread.
    fn held_in_cache(&self, blocks: &[BlockAt]) -> Vec<BlockAt> {
        let Some(cache) = self.settings.cache.as_deref() else {
            return Vec::new();
        };
        let mut hash_of = self.hashes();
        let is_cached = |at: &&BlockAt| hash_of(**at).is_some_and(|hash| cache.has(&hash));
        blocks.iter().filter(is_cached).copied().collect()
    }

    /// Handles the end of a connection.
    pub fn disconnected(&self, connection: &Connection) {
        for (id, asked) in connection.take_asked() {
            if !matches!(asked, Asked::Block { .. }) {
                self.waited(id, Waited::end);
            }
        }
        locked(&self.tasks).lost_connection(connection.number);
        self.stage.lost_connection(connection.number);
    }

    /// Handles the end of a task's first action, or of the task: records the figures of its start, and what it needed.
    pub fn start_is_over(&self, task: &mut Task) {
        if std::mem::replace(&mut task.is_told_end, true) {
            return;
        }
        let mut start = task.start;
        start.is_exact = task.is_exact();
        start.unread = task.unread();
        if start.is_audit {
            add(&self.counts.audited_pushed, start.pushed);
            add(&self.counts.audited_unread, start.unread);
        }
        self.set_local_plan(task.file, task.needed());
        let mut starts = locked(&self.starts);
        starts.truncate(STARTS_MAX - 1);
        starts.push_front(start);
    }

    pub fn counters(&self) -> Counters {
        let mut all = self.counts.snapshot();
        let (stage, staged, spare) = self.stage.counts();
        all.pushed_read = stage.prefetched_read;
        all.pushed_stored = stage.stored;
        all.pushed_not_stored = stage.not_stored;
        all.neighbours_read = stage.neighbours_read;
        all.gone_blocks = stage.gone;
        all.asked_anew = stage.asked_anew;
        all.waits_for_room = stage.waits_for_room;
        all.staged = staged as u64;
        all.connected = self.network.connections().len() as u64;
        all.round_trip_us = self.network.round_trip().as_micros() as u64;
        all.bandwidth_bytes_s = self.network.bandwidth();
        (all.bytes_sent, all.bytes_received) = self.network.bytes();
        let tasks = locked(&self.tasks);
        all.tasks_now = tasks.len() as u64;
        let traced = tasks.blocks();
        drop(tasks);
        let names: usize = self.manifest.names.iter().map(|n| n.name.len() + 16).sum();
        let manifest = size_of_val(&self.manifest.nodes[..])
            + size_of_val(&self.manifest.names[..])
            + 4 * self.manifest.nodes.len()
            + names;
        let buffers = self.settings.connections as usize * (2 << 20);
        all.memory_bytes = ((staged + spare) * BLOCK_BYTES
            + self.groups.bytes()
            + 24 * traced
            + manifest
            + buffers) as u64;
        all.cache = self.settings.cache.as_ref().map(|cache| cache.counters());
        if let Some(cache) = &all.cache {
            all.memory_bytes += cache.memory_bytes;
        }
        all
    }

    /// Waits until the server has received everything sent so far, at most `time`.
    pub fn settle(&self, time: Duration) {
        let end = Instant::now() + time;
        for connection in self.network.connections() {
            let id = self.network.id();
            connection.expect(id, Asked::Ping(Instant::now()));
            connection.send(&Request::Ping { id }, false);
            while connection.asked(id).is_some()
                && !connection.control.is_ended()
                && Instant::now() < end
                && !self.is_stopped()
            {
                self.network.pause(Duration::from_millis(1));
            }
        }
    }

    pub fn stop(&self) {
        self.network.stop();
        self.stage.stop();
        self.note(Job::Nothing);
        self.waits_changed.notify_all();
    }

    pub fn is_stopped(&self) -> bool {
        self.network.is_stopped()
    }
}

/// Returns unpredictable random bytes; `None` if the system gives none.
pub(super) fn random<const N: usize>() -> Option<[u8; N]> {
    use ring::rand::{SecureRandom, SystemRandom};
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(bytes)
}
