//! A cache of compressed pieces of plans. What many starts send alike is compressed once. When a run has ended, it is
//! compressed again at a higher level in the background. These pieces are also kept on the disk (`bundle_files.rs`).

use super::bundle_files::BundleFiles;
use super::counters::{Counters, add};
use super::failure_log::StoreFailure;
use super::system;
use crate::block::{BlockAt, block_bytes};
use crate::predict::Plan;
use crate::provide::Provider;
use crate::store::Published;
use crate::sync::locked;
use crate::wire::pack_blocks;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// The zstd level for data that is sent immediately.
pub(super) const LEVEL_FAST: i32 = 3;

/// The size of an entry beside its content, in bytes.
const ENTRY_BYTES: u64 = 160;

/// The maximum number of plans that wait to be recompressed; more must wait for the end of another run.
const PLANS_WAITING_MAX: usize = 16;

/// The maximum number of plans remembered as done.
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

/// The cached pieces.
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

    /// Ignores poisoning: a panic leaves no update half done.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        locked(&self.kept)
    }

    /// Returns a piece of a plan, compressed.
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

    /// Stores a piece and evicts others if there is no room. Does not replace a piece of the higher level.
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
            // Allow it to be recompressed when it is needed again.
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

    /// Returns the size of all pieces in the cache, in bytes.
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
) -> Result<Vec<u8>, StoreFailure> {
    let bytes = provider.blocks(published, blocks)?;
    compress_bytes(published, blocks, &bytes, level)
}

/// Compresses the bytes of blocks together.
pub(super) fn compress_bytes(
    published: &Published,
    blocks: &[BlockAt],
    bytes: &[u8],
    level: i32,
) -> Result<Vec<u8>, StoreFailure> {
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

/// The thread that recompresses plans.
pub(super) struct Improver {
    queue: Option<SyncSender<(Arc<Published>, Arc<Plan>)>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Improver {
    /// Starts the thread with a zstd level. If the level is not above [`LEVEL_FAST`] or the cache has no room, there is
    /// nothing to do and no thread.
    pub(super) fn start(
        bundles: &Arc<Bundles>,
        provider: &Arc<Provider>,
        counters: &Arc<Counters>,
        files: BundleFiles,
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
            files,
            level,
        };
        // If the thread cannot start, pieces stay at the lower level.
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

    /// Queues the plan of a run that has ended, which the run used or created. Never blocks.
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
    files: BundleFiles,
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
            if let Some(pieces) = self.files.load(&published, &plan, self.level) {
                for (number, piece) in pieces.into_iter().enumerate() {
                    self.bundles.put(plan.number, number, piece.into(), true);
                    add(&self.counters.bundles_improved, 1);
                }
                continue;
            }
            // Lower the priority only here: pieces from the disk must be loaded before the first device connects.
            if !std::mem::replace(&mut is_nice, true) {
                system::be_nice();
            }
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let Some(pieces) = self.compress(&published, &plan) else {
                continue;
            };
            // If it cannot be stored, it is compressed again after a restart.
            self.files
                .store(&published, &plan, self.level, &pieces)
                .ok();
        }
    }

    /// Compresses all pieces of a plan; `None` if that fails or the server stops.
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
