//! Pieces of plans, kept compressed: what many starts send alike is compressed once, and when a run has ended anew at a
//! higher level, in the background; these are kept on the disk, too (`shelf.rs`).

use super::counters::{Counters, add};
use super::shelf::Shelf;
use super::system;
use super::trouble::Trouble;
use crate::block::{BlockAt, block_bytes};
use crate::predict::Plan;
use crate::provide::Provider;
use crate::store::Published;
use crate::wire::pack_blocks;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The level of zstd for what is sent at once.
pub(super) const LEVEL_FAST: i32 = 3;

/// Bytes that an entry takes beside its content.
const ENTRY_BYTES: u64 = 160;

/// Plans that may wait to be compressed anew; more wait for the end of another run.
const PLANS_WAITING_MAX: usize = 16;

/// Plans that are remembered to be done already.
const PLANS_DONE_MAX: usize = 4096;

type Key = (u64, usize);

struct Entry {
    bytes: Arc<[u8]>,
    is_best: bool,
    used_at: u64,
}

#[derive(Default)]
struct Kept {
    entries: HashMap<Key, Entry>,
    by_use: BTreeMap<u64, Key>,
    uses: u64,
    bytes: u64,
    done: HashSet<u64>,
}

/// The pieces.
pub(super) struct Bundles {
    kept: Mutex<Kept>,
    bytes_max: u64,
}

impl Bundles {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            kept: Mutex::default(),
            bytes_max,
        }
    }

    /// Nothing is half done when a thread panics with it.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A piece of a plan, compressed.
    pub(super) fn get(&self, plan: u64, piece: usize) -> Option<Arc<[u8]>> {
        let mut kept = self.kept();
        let kept = &mut *kept;
        let entry = kept.entries.get_mut(&(plan, piece))?;
        kept.by_use.remove(&entry.used_at);
        kept.uses += 1;
        entry.used_at = kept.uses;
        kept.by_use.insert(kept.uses, (plan, piece));
        Some(Arc::clone(&entry.bytes))
    }

    /// Keeps a piece; others go where there is no room. A better one is not replaced by a worse one.
    pub(super) fn put(&self, plan: u64, piece: usize, bytes: Arc<[u8]>, is_best: bool) {
        let key = (plan, piece);
        let cost = ENTRY_BYTES + bytes.len() as u64;
        let mut kept = self.kept();
        if cost > self.bytes_max || kept.entries.get(&key).is_some_and(|entry| entry.is_best) {
            return;
        }
        kept.remove(&key);
        while kept.bytes + cost > self.bytes_max {
            let Some((_, oldest)) = kept.by_use.first_key_value() else {
                break;
            };
            let oldest = *oldest;
            kept.remove(&oldest);
            // It is worth compressing anew when it is needed again.
            kept.done.remove(&oldest.0);
        }
        kept.uses += 1;
        let used_at = kept.uses;
        kept.by_use.insert(used_at, key);
        kept.bytes += cost;
        let entry = Entry {
            bytes,
            is_best,
            used_at,
        };
        kept.entries.insert(key, entry);
    }

    /// Bytes that are kept.
    pub(super) fn bytes(&self) -> u64 {
        self.kept().bytes
    }
}

impl Kept {
    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.by_use.remove(&entry.used_at);
            self.bytes -= ENTRY_BYTES + entry.bytes.len() as u64;
        }
    }
}

/// Compresses blocks together. May read the disk.
pub(super) fn compress(
    provider: &Provider,
    published: &Published,
    blocks: &[BlockAt],
    level: i32,
) -> Result<Vec<u8>, Trouble> {
    let bytes = provider.blocks(published, blocks)?;
    compress_bytes(published, blocks, &bytes, level)
}

/// Compresses the bytes of blocks together.
pub(super) fn compress_bytes(
    published: &Published,
    blocks: &[BlockAt],
    bytes: &[u8],
    level: i32,
) -> Result<Vec<u8>, Trouble> {
    let mut rest = bytes;
    let mut slices = Vec::with_capacity(blocks.len());
    for at in blocks {
        let size = published.manifest.file(at.file).map_or(0, |file| file.0);
        let (block, behind) = rest
            .split_at_checked(block_bytes(size, at.index))
            .ok_or("fewer bytes than blocks")?;
        slices.push(block);
        rest = behind;
    }
    pack_blocks(&slices, level).map_err(|error| error.to_string().into())
}

/// The thread that compresses anew.
pub(super) struct Improver {
    queue: Option<SyncSender<(Arc<Published>, Arc<Plan>)>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Improver {
    /// At a level of zstd; at that of what is sent at once, or with no room, there is nothing to do and no thread.
    pub(super) fn start(
        bundles: &Arc<Bundles>,
        provider: &Arc<Provider>,
        counters: &Arc<Counters>,
        shelf: Shelf,
        level: i32,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        if level <= LEVEL_FAST || bundles.bytes_max == 0 {
            return Self {
                queue: None,
                stop,
                thread: None,
            };
        }
        let (queue, waiting) = sync_channel(PLANS_WAITING_MAX);
        let worker = Worker {
            bundles: Arc::clone(bundles),
            provider: Arc::clone(provider),
            counters: Arc::clone(counters),
            stop: Arc::clone(&stop),
            shelf,
            level,
        };
        // Without the thread pieces stay at the lower level.
        let thread = std::thread::Builder::new()
            .name("stream-bundles".into())
            .spawn(move || worker.run(&waiting))
            .ok();
        Self {
            queue: Some(queue),
            stop,
            thread,
        }
    }

    /// A run has ended that used this plan, or made it. Never blocks.
    pub(super) fn plan(&self, published: &Arc<Published>, plan: &Arc<Plan>) {
        if let Some(queue) = &self.queue {
            queue
                .try_send((Arc::clone(published), Arc::clone(plan)))
                .ok();
        }
    }
}

impl Drop for Improver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

struct Worker {
    bundles: Arc<Bundles>,
    provider: Arc<Provider>,
    counters: Arc<Counters>,
    stop: Arc<AtomicBool>,
    shelf: Shelf,
    level: i32,
}

impl Worker {
    fn run(&self, waiting: &Receiver<(Arc<Published>, Arc<Plan>)>) {
        let mut is_nice = false;
        while let Ok((published, plan)) = waiting.recv() {
            {
                let mut kept = self.bundles.kept();
                if kept.done.len() >= PLANS_DONE_MAX {
                    kept.done.clear();
                }
                if !kept.done.insert(plan.number) {
                    continue;
                }
            }
            if let Some(pieces) = self.shelf.load(&published, &plan, self.level) {
                for (number, piece) in pieces.into_iter().enumerate() {
                    self.bundles.put(plan.number, number, piece.into(), true);
                    add(&self.counters.bundles_improved, 1);
                }
                continue;
            }
            // Not before: what was kept is to be there when the first device comes.
            if !std::mem::replace(&mut is_nice, true) {
                system::be_nice();
            }
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let Some(pieces) = self.compress(&published, &plan) else {
                continue;
            };
            // It is made anew where it cannot be kept.
            self.shelf
                .store(&published, &plan, self.level, &pieces)
                .ok();
        }
    }

    /// All pieces of a plan. None: not all of them.
    fn compress(&self, published: &Published, plan: &Plan) -> Option<Vec<Vec<u8>>> {
        let mut pieces = Vec::with_capacity(plan.pieces.len());
        for (number, piece) in plan.pieces.iter().enumerate() {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            let packed = compress(&self.provider, published, piece, self.level).ok()?;
            let kept = packed.as_slice().into();
            self.bundles.put(plan.number, number, kept, true);
            add(&self.counters.bundles_improved, 1);
            pieces.push(packed);
        }
        Some(pieces)
    }
}
