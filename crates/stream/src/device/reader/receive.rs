//! The server's messages: verified, and only then passed to their receivers.

use super::state::{Job, Reader};
use crate::block::{BlockAt, BlockHash, SEGMENT_BLOCKS, Token};
use crate::device::counters::{Reason, add};
use crate::device::line::WIRE_BLOCK_BYTES;
use crate::device::prefetch::{Arrived, Kind, Message};
use crate::device::transport::{Connection, Exchange, InFlight};
use crate::group::{Group, GroupAt};
use crate::sync::locked;
use crate::wire::{Answer, Refusal, Request, unpack};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long neighbours may arrive after the requested block, in addition to the time that the line takes.
const NEIGHBOURS_WAIT: Duration = Duration::from_millis(3);

/// The receiver of one connection.
pub(crate) struct Receiver<'a> {
    reader: &'a Reader,
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

impl<'a> Receiver<'a> {
    pub fn new(reader: &'a Reader, connection: &'a Connection) -> Self {
        Self { reader, connection }
    }

    /// Processes one message.
    ///
    /// # Errors
    /// It is wrong, and nothing that follows it on this connection can be trusted.
    pub fn take(&self, answer: Answer) -> Checked<()> {
        let reader = self.reader;
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
                let counts = &reader.counts;
                reader.prefetch.tasks(|tasks| {
                    if let Some((_, task)) = tasks.by_wire(&token) {
                        task.begun = Some(blocks);
                        task.is_audit = is_audit;
                        task.is_prefetching = blocks > 0;
                        task.start.is_audit = is_audit;
                        for count in [&counts.tasks_predicted, &counts.tasks_foretold] {
                            add(count, u64::from(blocks > 0));
                        }
                        add(&counts.audits, u64::from(blocks > 0 && is_audit));
                    }
                });
                reader.prefetch.look_again();
            }
            Answer::PrefetchDone { token, .. } => {
                reader.prefetch.tasks(|tasks| {
                    if let Some((_, task)) = tasks.by_wire(&token) {
                        task.prefetch_is_over();
                    }
                });
                reader.prefetch.look_again();
            }
            Answer::Fetched { id } => {
                if let Some(InFlight::Ahead { .. }) = self.connection.answered(id) {
                    reader.prefetch.look_again();
                }
                reader.transport.exchanges.change(id, Exchange::end);
            }
            Answer::Plan {
                id,
                has_more,
                blocks,
            } => return self.plan(id, has_more, &blocks),
            Answer::Refused { id, token, reason } => self.refused(id, token, reason),
            Answer::Pong { id } => {
                if let Some(InFlight::Ping(since)) = self.connection.answered(id) {
                    reader.transport.took(since.elapsed());
                }
            }
            Answer::Welcome { .. } | Answer::Manifest { .. } => return Err(Reason::Greeting),
            // A message of protocol 1, which this device does not support.
            Answer::Hashes { .. } => return Err(Reason::Message),
        }
        Ok(())
    }

    fn group(&self, at: GroupAt, group: Group) -> Checked<()> {
        let reader = self.reader;
        reader.disk.manifest.file(at.file).ok_or(Reason::Place)?;
        reader.disk.put_group(at, group).ok_or(Reason::Hashes)?;
        if reader.disk.cache().is_some() {
            reader.queue(Job::Hashes(at));
        }
        reader.prefetch.look_again();
        Ok(())
    }

    // Returns why these blocks arrived; `None` if they were not requested, and they are ignored.
    fn cause(&self, id: u32, wire: Token, blocks: &[BlockAt]) -> Checked<Option<Cause>> {
        let reader = self.reader;
        if id == 0 {
            return Ok(reader.prefetch.tasks(|tasks| match tasks.by_wire(&wire) {
                Some((token, _)) => Some(Cause::Prefetched { token }),
                None => tasks.has_ended(&wire).then_some(Cause::Late),
            }));
        }
        match self.connection.in_flight(id) {
            Some(InFlight::Block { at, around, .. }) => {
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
            Some(InFlight::Fetch(wanted)) => match blocks.iter().all(|at| wanted.contains(at)) {
                true => Ok(Some(Cause::Fetched { id })),
                false => Err(Reason::Place),
            },
            Some(InFlight::Ahead { file, run, mask }) => {
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
        let reader = self.reader;
        let Some(cause) = self.cause(id, wire, blocks)? else {
            self.unrequested();
            return Ok(());
        };
        let mut lengths = Vec::with_capacity(blocks.len());
        for at in blocks {
            match reader.disk.block_bytes(*at).ok_or(Reason::Place)? {
                0 => return Err(Reason::Place),
                length => lengths.push(length),
            }
        }
        let mut hashes = Vec::with_capacity(blocks.len());
        for at in blocks {
            let Some(hash) = reader.disk.hash_in_memory(*at) else {
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
        let _ = locked(&reader.damage).take_if(is_mended);
        reader.transport.was_right(blocks.len() as u64);
        let pages: Vec<Arc<[u8]>> = pages.into_iter().map(|b| reader.prefetch.page(b)).collect();
        let message = Message {
            blocks,
            pages: &pages,
            lengths: &lengths,
            packed: compressed,
        };
        self.place(&cause, &message);
        reader.disk.put(&hashes, &pages);
        Ok(())
    }

    fn place(&self, cause: &Cause, message: &Message<'_>) {
        let Message { blocks, pages, .. } = *message;
        let (reader, counts) = (self.reader, &self.reader.counts);
        match *cause {
            Cause::Asked { id, at, around } => {
                let neighbours = blocks.iter().filter(|block| **block != at).count();
                if neighbours > 0 {
                    add(&counts.neighbours, neighbours as u64);
                    reader
                        .transport
                        .gives_neighbours
                        .store(true, Ordering::Relaxed);
                }
                // Place all of them together: the reader of the block requests the next one at once.
                reader.prefetch.place(message, Some(at));
                let transport = &reader.transport;
                match neighbours {
                    0 if around > 0 => add_one(&transport.without_neighbours),
                    0 => {}
                    _ => transport.without_neighbours.store(0, Ordering::Relaxed),
                }
                if neighbours < blocks.len() {
                    let behind = reader
                        .transport
                        .line_time(u64::from(around) * WIRE_BLOCK_BYTES);
                    self.connection.block_came(id, 2 * behind + NEIGHBOURS_WAIT);
                }
                // All neighbours arrive in one message: the same one, or a later one.
                if around == 0 || neighbours > 0 {
                    self.connection.answered(id);
                    reader.prefetch.look_again();
                    if !reader.settings.is_persistent {
                        self.connection.close();
                    }
                }
            }
            Cause::Prefetched { token } => {
                add(&counts.pushed, blocks.len() as u64);
                let mut is_storable = vec![false; blocks.len()];
                let mut is_read = vec![false; blocks.len()];
                let now = Instant::now();
                let has_pages = reader.has_pages();
                reader.prefetch.task(&token, |task| {
                    let may_store = !task.is_audit && has_pages;
                    for (place, at) in blocks.iter().enumerate() {
                        is_storable[place] = !task.came(*at, now) && may_store;
                        is_read[place] = task.has_read(*at);
                    }
                });
                let each = blocks.iter().zip(pages);
                let each = each.zip(is_storable.into_iter().zip(is_read));
                self.connection.is_placing.store(true, Ordering::Release);
                for ((at, page), (is_storable, is_read)) in each {
                    let kind = Kind::Prefetched { token, is_storable };
                    // A block that was read already is placed again only if a reader waits for it.
                    let arrived = match is_read && !reader.prefetch.is_requested(*at) {
                        true => Arrived::Repeated,
                        false => reader.prefetch.arrive(*at, Arc::clone(page), kind),
                    };
                    add(
                        &counts.pushed_repeated,
                        u64::from(arrived == Arrived::Repeated),
                    );
                }
                reader.prefetch.store_arrived();
                self.connection.is_placing.store(false, Ordering::Release);
                // Not before: otherwise a reader in between would take a block for lost that is about to be placed.
                reader.prefetch.task(&token, |task| {
                    for at in blocks {
                        task.placed(*at);
                    }
                });
            }
            Cause::Ahead { id } => {
                add(&counts.neighbours, blocks.len() as u64);
                reader.prefetch.place(message, None);
                self.connection.answered(id);
                reader.prefetch.look_again();
            }
            Cause::Fetched { id } => {
                add(&counts.fetched, blocks.len() as u64);
                self.give(message);
                reader
                    .transport
                    .exchanges
                    .change(id, |answer| answer.came(blocks));
            }
            Cause::Late => {
                add(&counts.pushed, blocks.len() as u64);
                self.give(message);
            }
        }
    }

    // Gives blocks to the readers that wait for them, and drops the others.
    fn give(&self, message: &Message<'_>) {
        let prefetch = &self.reader.prefetch;
        for (at, page) in message.blocks.iter().zip(message.pages) {
            if prefetch.is_requested(*at) {
                prefetch.arrive(*at, Arc::clone(page), Kind::Neighbour);
            }
        }
    }

    // Counts blocks that were not requested, or no longer are; they are ignored.
    fn unrequested(&self) {
        let (reader, number) = (self.reader, self.connection.number);
        let transport = &reader.transport;
        transport.lied(&reader.counts, Reason::Unrequested, Some(number));
    }

    // Handles a block whose hashes are missing, because they were evicted or never arrived.
    fn unproven(&self, id: u32, at: BlockAt) {
        let reader = self.reader;
        reader.counts.reject(Reason::Unproven);
        let groups = vec![GroupAt::from(at)];
        self.connection.send(&Request::AskGroups { groups }, true);
        match self.connection.answered(id) {
            Some(InFlight::Block { at, .. }) => reader.prefetch.not_answered(at, None),
            Some(InFlight::Ahead { .. }) => reader.prefetch.look_again(),
            _ => {}
        }
    }

    fn plan(&self, id: u32, has_more: bool, blocks: &[BlockAt]) -> Checked<()> {
        let reader = self.reader;
        let exists = |at: &BlockAt| at.index < reader.disk.manifest.blocks(at.file);
        if !blocks.iter().all(exists) {
            return Err(Reason::Place);
        }
        match self.connection.in_flight(id) {
            Some(InFlight::Plan(Some(token))) => {
                reader.prefetch.task(&token, |task| task.add_plan(blocks));
                if !has_more {
                    reader.queue(Job::Resident(token));
                }
            }
            Some(InFlight::Plan(None)) => reader
                .transport
                .exchanges
                .change(id, |answer| answer.plan(blocks, has_more)),
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
        let reader = self.reader;
        add(&reader.counts.refused, 1);
        let is_damaged = reason == Refusal::Damaged;
        add(&reader.counts.refused_damaged, u64::from(is_damaged));
        if let Some(wire) = wire {
            // The token is not used again: the server would refuse each message that names it.
            reader.prefetch.tasks(|tasks| {
                if let Some(token) = tasks.by_wire(&wire).map(|(token, _)| token) {
                    tasks.lose_wire(&token);
                }
            });
            reader.prefetch.look_again();
        }
        match self.connection.answered(id) {
            Some(InFlight::Block { at, token, .. }) => {
                if is_damaged {
                    *locked(&reader.damage) = Some(at);
                }
                if reason == Refusal::NoSuchToken
                    && let Some(token) = token
                {
                    // The block is requested again, without the task.
                    reader.prefetch.tasks(|tasks| {
                        tasks.lose_wire(&token);
                        if let Some(task) = tasks.get(&token) {
                            task.is_end_reported = true;
                        }
                    });
                    reader.prefetch.not_answered(at, None);
                } else {
                    reader.prefetch.not_answered(at, Some(reason));
                }
            }
            Some(InFlight::Ahead { .. }) => reader.prefetch.look_again(),
            Some(_) => reader
                .transport
                .exchanges
                .change(id, |answer| answer.refuse(reason)),
            None => {}
        }
    }
}
