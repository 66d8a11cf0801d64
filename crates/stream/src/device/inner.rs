//! What all threads of a device share.

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

/// Tasks whose needs are remembered in memory, at most.
const PLANS_MAX: usize = 8;

/// Starts that are kept until a server can be told, and their blocks together, at most; then the oldest goes.
const UNTOLD_MAX: usize = 8;
const UNTOLD_BLOCKS_MAX: usize = PLAN_BLOCKS_MAX;

/// Starts whose figures are remembered, at most.
const STARTS_MAX: usize = 64;

/// Notes that wait to be kept, at most.
pub(super) const JOBS_MAX: usize = 1024;

/// What is done beside, by the thread that may wait for a disk and for the kernel.
pub(super) enum Job {
    /// Keep a group of hashes, if it is still in memory: what waits here takes none.
    Hashes(GroupAt),
    /// Keep what the task of a file needed.
    Plan(FileId, Arc<Vec<BlockAt>>),
    /// Look whether the device was stopped.
    Nothing,
    /// See whether something of a task's plan is in the page cache already.
    Resident(Token),
}

/// An answer that somebody waits for who is not a program: of `fetch` and `plan`.
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
        // A server that never stops telling is not listened to for ever.
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
    /// Who publishes, if nobody was known to before this start.
    pub first_seen: Option<PublicKey>,
    pub paths: Paths,
    pub stage: Stage,
    pub groups: Groups,
    // Locks are taken in this order: stage, tasks, those of the network.
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
    /// Blocks that have just not come by their deadline, and when that was.
    pub late: Mutex<VecDeque<(BlockAt, Instant)>>,
    /// A block that the server was asked for and that is damaged there.
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

    /// Has something done beside.
    pub fn note(&self, job: Job) {
        if let Err(TrySendError::Full(_)) = self.jobs.try_send(job) {
            add(&self.counts.notes_failed, 1);
        }
    }

    /// Changes what somebody waits for, and wakes him.
    pub fn waited(&self, id: u32, change: impl FnOnce(&mut Waited)) {
        if let Some(waited) = locked(&self.waits).get_mut(&id) {
            change(waited);
        }
        self.waits_changed.notify_all();
    }

    /// The hash that a block must have: from memory, or as the cache has it.
    pub fn hash(&self, at: BlockAt) -> Option<BlockHash> {
        self.group(GroupAt::from(at))?.get(at.index)
    }

    /// The hashes of many blocks, one after the other: a group is looked for once for those that lie side by side, and
    /// one at a time is held.
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

    /// What a task needed last time, as far as it is known here.
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

    /// Remembers what a task needed.
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

    /// Which of these blocks are in the page cache, and which are not but in the cache, with their hashes.
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

    /// Tells the server on a connection of a task that it does not know.
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
        // Under the lock: what a program of the task reads now must not be sent before it.
        let is_sent = connection.send(&begin, true)
            && connection.send(&Request::AskPlan { id, task: file }, true);
        if !is_sent {
            tasks.lose_wire(&token);
        }
    }

    /// A connection is up: tasks that lost theirs go on on it, and who waits may ask.
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

    /// Keeps a start until a server can be told of it.
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

    // Starts that ended while there was no server: as tasks that hold all they need, so that nothing is sent for them.
    fn tell_late(&self, connection: &Connection) {
        while let Some(untold) = locked(&self.untold).pop_front() {
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
            // In this order, behind what programs wait for.
            if !all.all(|request| connection.send(&request, false)) {
                // What was said of it is given up with the connection.
                return self.keep_untold(untold);
            }
            add(&self.counts.told_late, 1);
        }
    }

    /// Which of these blocks are in the page cache.
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

    // The page cache is not asked here: that could need this very thread.
    fn held_in_cache(&self, blocks: &[BlockAt]) -> Vec<BlockAt> {
        let Some(cache) = self.settings.cache.as_deref() else {
            return Vec::new();
        };
        let mut hash_of = self.hashes();
        let is_cached = |at: &&BlockAt| hash_of(**at).is_some_and(|hash| cache.has(&hash));
        blocks.iter().filter(is_cached).copied().collect()
    }

    /// A connection has ended.
    pub fn disconnected(&self, connection: &Connection) {
        for (id, asked) in connection.take_asked() {
            if !matches!(asked, Asked::Block { .. }) {
                self.waited(id, Waited::end);
            }
        }
        locked(&self.tasks).lost_connection(connection.number);
        self.stage.lost_connection(connection.number);
    }

    /// The first action of a task is over, or the task: what its start was is noted, and what it needed.
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

    /// What was told is sent, and has come, unless that takes longer than this.
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

/// Bytes that nobody can foresee. None: the system gives none.
pub(super) fn random<const N: usize>() -> Option<[u8; N]> {
    use ring::rand::{SecureRandom, SystemRandom};
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(bytes)
}
