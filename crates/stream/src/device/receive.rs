//! The server's messages: verified, and only then passed to their receivers.

use super::counters::{Reason, add};
use super::inner::{Inner, Job, Waited};
use super::network::{Asked, Connection, WIRE_BLOCK_BYTES, locked};
use super::stage::{Arrived, Kind};
use crate::block::{BlockAt, BlockHash, SEGMENT_BLOCKS, Token, block_bytes};
use crate::group::{Group, GroupAt};
use crate::wire::{Answer, Refusal, Request, unpack};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long neighbours may arrive after the requested block, in addition to the time that the line takes.
const NEIGHBOURS_WAIT: Duration = Duration::from_millis(3);

/// The receiver of one connection.
pub(super) struct Receiver<'a> {
    inner: &'a Inner,
    connection: &'a Connection,
}

/// Why blocks arrived.
enum Cause {
    Asked { id: u32, at: BlockAt, around: u32 },
    Fetched { id: u32 },
    Ahead { id: u32 },
    Prefetched { token: Token },
    // For a task that has ended already.
    Late,
}

fn add_one(count: &AtomicU32) {
    count.fetch_add(1, Ordering::Relaxed);
}

type Checked<T> = Result<T, Reason>;

/// The verified blocks of one message.
struct Message<'a> {
    blocks: &'a [BlockAt],
    pages: &'a [Arc<[u8]>],
    lengths: &'a [usize],
    compressed: &'a [u8],
}

impl Message<'_> {
    fn shelve(&self, inner: &Inner, asked: Option<BlockAt>) {
        let Self {
            blocks,
            pages,
            lengths,
            compressed,
        } = *self;
        let stage = &inner.stage;
        stage.shelve(blocks, pages, lengths, compressed, asked);
    }
}

impl<'a> Receiver<'a> {
    pub fn new(inner: &'a Inner, connection: &'a Connection) -> Self {
        Self { inner, connection }
    }

    /// Processes one message.
    ///
    /// # Errors
    /// It is wrong, and nothing that follows it on this connection can be trusted.
    pub fn take(&self, answer: Answer) -> Checked<()> {
        let inner = self.inner;
        match answer {
            Answer::Group { at, group } => return self.group(at, group),
            Answer::Blocks {
                id,
                token,
                blocks,
                compressed,
            } => return self.blocks(id, token, &blocks, &compressed),
            Answer::Begun {
                token,
                blocks,
                is_audit,
            } => {
                if let Some((_, task)) = locked(&inner.tasks).by_wire(&token) {
                    task.begun = Some(blocks);
                    task.is_audit = is_audit;
                    task.is_coming = blocks > 0;
                    task.start.is_audit = is_audit;
                    for count in [&inner.counts.tasks_predicted, &inner.counts.tasks_foretold] {
                        add(count, u64::from(blocks > 0));
                    }
                    add(&inner.counts.audits, u64::from(blocks > 0 && is_audit));
                }
                inner.stage.look_again();
            }
            Answer::PrefetchDone { token, .. } => {
                if let Some((_, task)) = locked(&inner.tasks).by_wire(&token) {
                    task.prefetch_is_over();
                }
                inner.stage.look_again();
            }
            Answer::Fetched { id } => {
                if let Some(Asked::Ahead { .. }) = self.connection.answered(id) {
                    inner.stage.look_again();
                }
                inner.waited(id, Waited::end);
            }
            Answer::Plan {
                id,
                has_more,
                blocks,
            } => return self.plan(id, has_more, &blocks),
            Answer::Refused { id, token, reason } => self.refused(id, token, reason),
            Answer::Pong { id } => {
                if let Some(Asked::Ping(since)) = self.connection.answered(id) {
                    inner.network.took(since.elapsed());
                }
            }
            Answer::Welcome { .. } | Answer::Manifest { .. } => return Err(Reason::Greeting),
            // A message of protocol 1, which this device does not support.
            Answer::Hashes { .. } => return Err(Reason::Message),
        }
        Ok(())
    }

    fn group(&self, at: GroupAt, group: Group) -> Checked<()> {
        let inner = self.inner;
        let (_, content) = inner.manifest.file(at.file).ok_or(Reason::Place)?;
        let blocks = inner.manifest.blocks(at.file);
        let kept = inner.groups.put(at, group, &content, blocks);
        kept.ok_or(Reason::Hashes)?;
        if inner.settings.cache.is_some() {
            inner.note(Job::Hashes(at));
        }
        inner.stage.look_again();
        Ok(())
    }

    // Returns why these blocks arrived; `None` if they were not requested, and they are ignored.
    fn cause(&self, id: u32, wire: Token, blocks: &[BlockAt]) -> Checked<Option<Cause>> {
        let inner = self.inner;
        if id == 0 {
            let mut tasks = locked(&inner.tasks);
            if let Some((token, _)) = tasks.by_wire(&wire) {
                return Ok(Some(Cause::Prefetched { token }));
            }
            if tasks.has_ended(&wire) {
                return Ok(Some(Cause::Late));
            }
            return Ok(None);
        }
        match self.connection.asked(id) {
            Some(Asked::Block { at, around, .. }) => {
                // The server chooses which neighbours it sends.
                let run = |index: u32| index / SEGMENT_BLOCKS;
                let fits = |other: &BlockAt| {
                    other.file == at.file
                        && run(other.index) == run(at.index)
                        && (*other == at || around > 0)
                };
                match blocks.iter().all(fits) {
                    true => Ok(Some(Cause::Asked { id, at, around })),
                    false => Err(Reason::Place),
                }
            }
            Some(Asked::Fetch(wanted)) => match blocks.iter().all(|at| wanted.contains(at)) {
                true => Ok(Some(Cause::Fetched { id })),
                false => Err(Reason::Place),
            },
            Some(Asked::Ahead { file, run, mask }) => {
                let fits = |at: &BlockAt| {
                    at.file == file
                        && at.index / SEGMENT_BLOCKS == run
                        && mask >> (at.index % SEGMENT_BLOCKS) & 1 == 1
                };
                match blocks.iter().all(fits) {
                    true => Ok(Some(Cause::Ahead { id })),
                    false => Err(Reason::Place),
                }
            }
            _ => Ok(None),
        }
    }

    fn blocks(&self, id: u32, wire: Token, blocks: &[BlockAt], compressed: &[u8]) -> Checked<()> {
        let inner = self.inner;
        let Some(cause) = self.cause(id, wire, blocks)? else {
            self.unrequested();
            return Ok(());
        };
        let mut lengths = Vec::with_capacity(blocks.len());
        for at in blocks {
            let (size_bytes, _) = inner.manifest.file(at.file).ok_or(Reason::Place)?;
            match block_bytes(size_bytes, at.index) {
                0 => return Err(Reason::Place),
                length => lengths.push(length),
            }
        }
        let mut hashes = Vec::with_capacity(blocks.len());
        for at in blocks {
            let group = inner.groups.get(GroupAt::from(*at));
            let Some(hash) = group.and_then(|group| group.get(at.index)) else {
                self.unproven(id, *at);
                return Ok(());
            };
            hashes.push(hash);
        }
        let bytes = unpack(compressed, &lengths).map_err(|_| Reason::Length)?;
        let mut rest = &bytes[..];
        let mut pages = Vec::with_capacity(blocks.len());
        for (length, hash) in lengths.iter().zip(&hashes) {
            let (block, behind) = rest.split_at_checked(*length).ok_or(Reason::Length)?;
            if BlockHash::of(block) != *hash {
                return Err(Reason::Hash);
            }
            pages.push(block);
            rest = behind;
        }
        // From here on, all blocks are verified against what the publisher has signed.
        let is_mended = |damaged: &mut BlockAt| blocks.contains(damaged);
        let _ = locked(&inner.damage).take_if(is_mended);
        inner.network.was_right(blocks.len() as u64);
        let pages: Vec<Arc<[u8]>> = pages.into_iter().map(|b| inner.stage.page(b)).collect();
        let message = Message {
            blocks,
            pages: &pages,
            lengths: &lengths,
            compressed,
        };
        self.place(&cause, &message);
        if let Some(cache) = &inner.settings.cache {
            for (hash, page) in hashes.iter().zip(&pages) {
                cache.put(hash, page);
            }
        }
        Ok(())
    }

    fn place(&self, cause: &Cause, message: &Message<'_>) {
        let Message { blocks, pages, .. } = *message;
        let (inner, counts) = (self.inner, &self.inner.counts);
        let each = || blocks.iter().zip(pages);
        match *cause {
            Cause::Asked { id, at, around } => {
                let neighbours = blocks.iter().filter(|block| **block != at).count();
                if neighbours > 0 {
                    add(&counts.neighbours, neighbours as u64);
                    inner
                        .network
                        .gives_neighbours
                        .store(true, Ordering::Relaxed);
                }
                // Place all of them together: the reader of the block requests the next one at once.
                message.shelve(inner, Some(at));
                let network = &inner.network;
                match neighbours {
                    0 if around > 0 => add_one(&network.without_neighbours),
                    0 => {}
                    _ => network.without_neighbours.store(0, Ordering::Relaxed),
                }
                if neighbours < blocks.len() {
                    let behind = inner
                        .network
                        .line_time(u64::from(around) * WIRE_BLOCK_BYTES);
                    self.connection.block_came(id, 2 * behind + NEIGHBOURS_WAIT);
                }
                // All neighbours arrive in one message: the same one, or a later one.
                if around == 0 || neighbours > 0 {
                    self.connection.answered(id);
                    inner.stage.look_again();
                    if !inner.settings.is_persistent {
                        self.connection.close();
                    }
                }
            }
            Cause::Prefetched { token } => {
                add(&counts.pushed, blocks.len() as u64);
                let mut is_storable = vec![false; blocks.len()];
                let mut is_read = vec![false; blocks.len()];
                let now = Instant::now();
                if let Some(task) = locked(&inner.tasks).get(&token) {
                    let may_store = !task.is_audit && inner.has_pages();
                    for (place, at) in blocks.iter().enumerate() {
                        is_storable[place] = !task.came(*at, now) && may_store;
                        is_read[place] = task.has_read(*at);
                    }
                }
                let each = each().zip(is_storable.into_iter().zip(is_read));
                self.connection.is_placing.store(true, Ordering::Release);
                for ((at, page), (is_storable, is_read)) in each {
                    let kind = Kind::Prefetched { token, is_storable };
                    // A block that was read already is placed again only if a reader waits for it.
                    let arrived = match is_read && !inner.stage.is_wanted(*at) {
                        true => Arrived::Repeated,
                        false => inner.stage.arrive(*at, Arc::clone(page), kind),
                    };
                    add(
                        &counts.pushed_repeated,
                        u64::from(arrived == Arrived::Repeated),
                    );
                }
                inner.stage.store_arrived();
                self.connection.is_placing.store(false, Ordering::Release);
                // Not before: otherwise a reader in between would take a block for lost that is about to be placed.
                if let Some(task) = locked(&inner.tasks).get(&token) {
                    for at in blocks {
                        task.placed(*at);
                    }
                }
            }
            Cause::Ahead { id } => {
                add(&counts.neighbours, blocks.len() as u64);
                message.shelve(inner, None);
                self.connection.answered(id);
                inner.stage.look_again();
            }
            Cause::Fetched { id } => {
                add(&counts.fetched, blocks.len() as u64);
                for (at, page) in each() {
                    if inner.stage.is_wanted(*at) {
                        inner.stage.arrive(*at, Arc::clone(page), Kind::Neighbour);
                    }
                }
                inner.waited(id, |waited| waited.came(blocks));
            }
            Cause::Late => {
                add(&counts.pushed, blocks.len() as u64);
                for (at, page) in each() {
                    if inner.stage.is_wanted(*at) {
                        inner.stage.arrive(*at, Arc::clone(page), Kind::Neighbour);
                    }
                }
            }
        }
    }

    // Counts blocks that were not requested, or no longer are; they are ignored.
    fn unrequested(&self) {
        let (inner, number) = (self.inner, self.connection.number);
        let network = &inner.network;
        network.lied(&inner.counts, Reason::Unrequested, Some(number));
    }

    // Handles a block whose hashes are missing, because they were evicted or never arrived.
    fn unproven(&self, id: u32, at: BlockAt) {
        let inner = self.inner;
        inner.counts.reject(Reason::Unproven);
        let groups = vec![GroupAt::from(at)];
        self.connection.send(&Request::AskGroups { groups }, true);
        match self.connection.answered(id) {
            Some(Asked::Block { at, .. }) => inner.stage.not_answered(at, None),
            Some(Asked::Ahead { .. }) => inner.stage.look_again(),
            _ => {}
        }
    }

    fn plan(&self, id: u32, has_more: bool, blocks: &[BlockAt]) -> Checked<()> {
        let inner = self.inner;
        let exists = |at: &BlockAt| at.index < inner.manifest.blocks(at.file);
        if !blocks.iter().all(exists) {
            return Err(Reason::Place);
        }
        match self.connection.asked(id) {
            Some(Asked::Plan(Some(token))) => {
                if let Some(task) = locked(&inner.tasks).get(&token) {
                    task.add_plan(blocks);
                }
                if !has_more {
                    inner.note(Job::Resident(token));
                }
            }
            Some(Asked::Plan(None)) => inner.waited(id, |waited| waited.plan(blocks, has_more)),
            _ => {
                self.unrequested();
                return Ok(());
            }
        }
        if !has_more {
            self.connection.answered(id);
        }
        Ok(())
    }

    fn refused(&self, id: u32, wire: Option<Token>, reason: Refusal) {
        let inner = self.inner;
        add(&inner.counts.refused, 1);
        let is_damaged = reason == Refusal::Damaged;
        add(&inner.counts.refused_damaged, u64::from(is_damaged));
        if let Some(wire) = wire {
            // The token is not used again: the server would refuse each message that names it.
            let mut tasks = locked(&inner.tasks);
            if let Some(token) = tasks.by_wire(&wire).map(|(token, _)| token) {
                tasks.lose_wire(&token);
            }
            drop(tasks);
            inner.stage.look_again();
        }
        match self.connection.answered(id) {
            Some(Asked::Block { at, token, .. }) => {
                if is_damaged {
                    *locked(&inner.damage) = Some(at);
                }
                if reason == Refusal::NoSuchToken
                    && let Some(token) = token
                {
                    // The block is requested again, without the task.
                    let mut tasks = locked(&inner.tasks);
                    tasks.lose_wire(&token);
                    if let Some(task) = tasks.get(&token) {
                        task.is_told_end = true;
                    }
                    drop(tasks);
                    inner.stage.not_answered(at, None);
                } else {
                    inner.stage.not_answered(at, Some(reason));
                }
            }
            Some(Asked::Ahead { .. }) => inner.stage.look_again(),
            Some(_) => inner.waited(id, |waited| waited.refuse(reason)),
            None => {}
        }
    }
}
