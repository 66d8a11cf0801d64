//! Requests that no program waits for: fetching blocks into the cache, and asking for the plan of a task.

use super::state::Reader;
use crate::block::{BlockAt, BlockHash, FileId, SEGMENT_BLOCKS};
use crate::device::counters::add;
use crate::device::error::DeviceError;
use crate::device::task_plan::{PlanAnswer, TaskPlan};
use crate::device::transport::{Exchange, InFlight};
use crate::device::{Cache, CacheError};
use crate::group::GroupAt;
use crate::wire::{BLOCKS_PER_MESSAGE_MAX, Refusal, Request};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Blocks of one request: few, so that a program's request does not wait long behind them.
const FETCHED_AT_ONCE: usize = 256;

/// The pause before blocks that did not arrive are requested again.
const LOOK: Duration = Duration::from_millis(100);

/// How many times in a row blocks may arrive without any of them being in the cache afterwards.
const IN_VAIN_MAX: u32 = 3;

/// How long a fetch waits for the first connection, if the device has had no server since its start.
const MEET_WAIT: Duration = Duration::from_secs(1);

/// The number of blocks and lists of hashes fetched first that are checked again later: later blocks must not evict
/// them.
const FIRST_MAX: usize = 64;

const _: () = assert!(FETCHED_AT_ONCE <= BLOCKS_PER_MESSAGE_MAX);

fn not_kept(cache: &dyn Cache, blocks: usize) -> DeviceError {
    match cache.failure() {
        Some(why) => CacheError::Io {
            what: format!("{blocks} blocks are not kept"),
            source: std::io::Error::other(why),
        },
        None => CacheError::Full(format!(
            "{blocks} blocks are not kept, as they make room for each other"
        )),
    }
    .into()
}

/// The blocks and lists that were fetched first.
#[derive(Default)]
struct First {
    blocks: Vec<BlockHash>,
    lists: Vec<GroupAt>,
}

impl Reader {
    /// Fetches blocks into the cache. `on_progress` gets the number of blocks that are there, and the total.
    pub fn fetch(
        &self,
        blocks: &[BlockAt],
        on_progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), DeviceError> {
        let Some(cache) = self.disk.cache() else {
            return Err(DeviceError::Settings("no cache to fetch into".to_owned()));
        };
        if let Some(at) = blocks
            .iter()
            .find(|at| at.index >= self.disk.manifest.blocks(at.file))
        {
            return Err(DeviceError::NoSuchBlock(*at));
        }
        let total = blocks.len() as u64;
        let (mut done, mut damaged_all) = (0, 0);
        let mut first = First::default();
        for chunk in blocks.chunks(FETCHED_AT_ONCE) {
            let mut progress = Instant::now();
            // The first check reads the cached blocks, because only reading finds damage, and this call promises that
            // they are there.
            let mut is_read = true;
            let mut in_vain = 0;
            let mut missing_before = usize::MAX;
            let mut damaged = HashSet::new();
            loop {
                let is_missing = |at: &&BlockAt| {
                    !self.disk.hash(**at).is_some_and(|hash| match is_read {
                        true => self.is_kept(cache, at, &hash),
                        false => cache.has(&hash),
                    })
                };
                let missing = chunk.iter().filter(|at| !damaged.contains(*at));
                let missing: Vec<BlockAt> = missing.filter(is_missing).copied().collect();
                is_read = false;
                if missing.is_empty() {
                    break;
                }
                let asked = missing.len();
                // Without this limit, a cache that keeps none of the blocks would cause an endless fetch.
                in_vain = match asked < missing_before {
                    true => 0,
                    false => in_vain,
                };
                missing_before = asked;
                if in_vain >= IN_VAIN_MAX {
                    return Err(not_kept(cache, asked));
                }
                if !self.has_met_a_server() {
                    return Err(DeviceError::Offline {
                        missing: self.count_missing(cache, blocks),
                    });
                }
                let left = match self.fetch_once(missing.clone()) {
                    Err(DeviceError::Refused(Refusal::Damaged)) => {
                        self.fetch_apart(&missing, &mut damaged)?;
                        0
                    }
                    left => left?,
                };
                if left < asked {
                    // The arrived blocks are in the cache only after a flush.
                    cache.flush();
                    in_vain += 1;
                    progress = Instant::now();
                } else if progress.elapsed() >= self.settings.deadline {
                    return Err(DeviceError::Late(self.settings.deadline));
                } else {
                    self.transport.pause(LOOK);
                }
            }
            damaged_all += damaged.len() as u64;
            self.keep_lists(cache, chunk, &mut first)?;
            done += chunk.len() as u64;
            on_progress(done, total);
        }
        cache.flush();
        match damaged_all {
            0 => Ok(()),
            blocks => Err(DeviceError::Damaged { blocks }),
        }
    }

    // Fetches all blocks except damaged ones: segment by segment, as the server stores them.
    fn fetch_apart(
        &self,
        blocks: &[BlockAt],
        damaged: &mut HashSet<BlockAt>,
    ) -> Result<(), DeviceError> {
        let mut segments: BTreeMap<(FileId, u32), Vec<BlockAt>> = BTreeMap::new();
        for at in blocks {
            let segment = (at.file, at.index / SEGMENT_BLOCKS);
            segments.entry(segment).or_default().push(*at);
        }
        for segment in segments.into_values() {
            match self.fetch_once(segment.clone()) {
                Err(DeviceError::Refused(Refusal::Damaged)) => damaged.extend(segment),
                other => drop(other?),
            }
        }
        Ok(())
    }

    // Blocks are useless without their hashes, so the lists are kept before more is fetched. If the first blocks were
    // evicted, newer ones would be evicted as well, so the fetch stops.
    fn keep_lists(
        &self,
        cache: &dyn Cache,
        chunk: &[BlockAt],
        first: &mut First,
    ) -> Result<(), DeviceError> {
        let lists: BTreeSet<GroupAt> = chunk.iter().map(|at| GroupAt::from(*at)).collect();
        for at in lists {
            if self.disk.keep_list(at)? && first.lists.len() < FIRST_MAX {
                first.lists.push(at);
            }
        }
        if first.blocks.is_empty() {
            let known = chunk.iter().filter_map(|at| self.disk.hash(*at));
            let kept = known.filter(|hash| cache.has(hash));
            first.blocks.extend(kept.take(FIRST_MAX));
        }
        let has_lists = first.lists.iter().all(|at| self.disk.has_list(*at));
        if has_lists && first.blocks.iter().all(|hash| cache.has(hash)) {
            return Ok(());
        }
        let text = "what came first has made room for what came last".to_owned();
        Err(CacheError::Full(text).into())
    }

    // Whether a server was connected since the start. A server that went away may return by the deadline; for one that
    // never was there the start has waited already.
    fn has_met_a_server(&self) -> bool {
        if self.counts.connects.load(Ordering::Relaxed) == 0 {
            self.transport.wait_up(MEET_WAIT);
        }
        self.counts.connects.load(Ordering::Relaxed) > 0
    }

    // Returns how many of these blocks the cache does not have, which it finds by reading them.
    fn count_missing(&self, cache: &dyn Cache, blocks: &[BlockAt]) -> u64 {
        let is_missing = |at: &&BlockAt| {
            let hash = self.disk.hash(**at);
            !hash.is_some_and(|hash| self.is_kept(cache, at, &hash))
        };
        blocks.iter().filter(is_missing).count() as u64
    }

    fn is_kept(&self, cache: &dyn Cache, at: &BlockAt, hash: &BlockHash) -> bool {
        let bytes = self.disk.block_bytes(*at);
        bytes.is_some_and(|bytes| cache.get(hash, bytes).is_some())
    }

    // Requests blocks once. Returns how many of them did not arrive.
    fn fetch_once(&self, blocks: Vec<BlockAt>) -> Result<usize, DeviceError> {
        let missing: HashSet<BlockAt> = blocks.iter().copied().collect();
        let what = InFlight::Fetch(Arc::new(missing.clone()));
        let (count, deadline) = (blocks.len(), self.settings.deadline);
        let request = |id| Request::Fetch { id, blocks };
        let answer = self
            .transport
            .exchange(what, Exchange::of(missing), deadline, request)?;
        Ok(answer.map_or(count, |answer| answer.missing.len()))
    }

    /// Returns the plan of a task, from the server or noted locally.
    pub fn plan(&self, task: FileId) -> Result<TaskPlan, DeviceError> {
        let mut plan = self.ask_plan(task)?;
        if plan.answer != PlanAnswer::Blocks {
            plan.add(&self.disk.plan(task));
        }
        Ok(plan)
    }

    // Returns the server's answer, without what was noted locally.
    fn ask_plan(&self, task: FileId) -> Result<TaskPlan, DeviceError> {
        let (what, deadline) = (InFlight::Plan(None), self.settings.deadline);
        let request = |id| Request::AskPlan { id, task };
        let answer = self
            .transport
            .exchange(what, Exchange::default(), deadline, request);
        let answer = match answer {
            Ok(answer) => answer.unwrap_or_default(),
            Err(DeviceError::Late(_)) => Exchange::default(),
            Err(error) => return Err(error),
        };
        let (is_empty, is_in_part) = (answer.plan.is_empty(), answer.is_in_part);
        let said = match (answer.has_plan, is_empty, is_in_part) {
            // A beginning is no plan: its connection has ended.
            (false, ..) => PlanAnswer::Missing,
            (true, false, _) => return Ok(TaskPlan::new(answer.plan, PlanAnswer::Blocks)),
            (true, true, true) => PlanAnswer::Part,
            (true, true, false) => PlanAnswer::Nothing,
        };
        Ok(TaskPlan::new(Vec::new(), said))
    }

    /// Like [`plan`](Self::plan), with what was noted locally, and without what only failed starts have taught. The
    /// cache notes the list, which is durable with the next blocks.
    pub fn plan_noted(&self, task: FileId) -> Result<TaskPlan, DeviceError> {
        let mut plan = self.ask_plan(task)?;
        plan.add(&match plan.answer {
            PlanAnswer::Blocks => self.disk.plan(task),
            _ => self.disk.whole_plan(task),
        });
        if let Some(kept) = self.disk.set_plan(task, plan.blocks.clone(), true)
            && self.disk.keep_plan(task, &kept).is_err()
        {
            add(&self.counts.notes_failed, 1);
        }
        Ok(plan)
    }
}
