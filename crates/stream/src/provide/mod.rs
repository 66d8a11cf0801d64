//! What a server caches in memory of the data it serves: SYSFLOW's Provider, in its four arms.
//!
//! `memory.rs` holds the segments. All calls that may read the disk block. They run on threads for blocking work, never
//! on a thread that serves the network.

mod memory;

use crate::block::{BLOCK_BYTES, BlockAt, ContentId, FileId, SEGMENT_BLOCKS, block_bytes};
use crate::predict::ActionInfo;
use crate::predict::variance;
use crate::store::{Published, Store, StoreError};
use crate::sync::locked;
use base::error::Code;
use memory::{Key, Memory};
use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};

/// The number of pieces of an action that are read ahead while it is sent, as in SYSFLOW.
pub const AHEAD_PIECES: usize = 3;

/// The maximum number of waiting read-ahead requests; more are dropped and counted.
const AHEAD_QUEUE: usize = 64;

/// The maximum number of segments of one read-ahead request (32 MiB), however much memory there is.
const AHEAD_SEGMENTS_MAX: usize = 256;

/// What is loaded into memory before it is requested. In all arms, requested segments stay in memory as long as there
/// is room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arm {
    /// Nothing.
    None,
    /// When a task begins, the kernel reads all of its program and of the files that its known actions name. It does so
    /// for one task at a time (`posix_fadvise`).
    Madvise,
    /// At the start of the server: segments above a threshold of normalised variance, and the first segment of each
    /// action.
    Variance,
    /// The same as `Variance`. In addition, a thread reads the next three segments of the action that is being sent. If
    /// no action is known for a file, it reads the next three runs of the file.
    #[default]
    Async,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProviderCounters {
    /// The number of segments that were in memory when they were needed.
    pub hits: u64,
    /// The number of segments that had to be read from the store.
    pub misses: u64,
    /// The number of segments read ahead, at the start or while something was sent.
    pub ahead: u64,
    /// The number of read-ahead segments that were requested.
    pub ahead_used: u64,
    /// The number of read-ahead segments that were evicted before a request.
    pub ahead_unused: u64,
    /// The number of read-ahead requests that found the queue full. Tasks that began while the kernel was asked for the
    /// files of another one count, too.
    pub ahead_dropped: u64,
    /// The number of segments that the kernel was asked to read ahead.
    pub advised: u64,
    /// The number of segments that could not be read, or were damaged.
    pub failures: u64,
    /// The memory that segments take now, in bytes.
    pub memory_bytes: u64,
}

/// Why blocks could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ProvideError {
    /// The version has no such file or block.
    #[error("file {} has no block {}", .0.file.0, .0.index)]
    NoSuchBlock(BlockAt),
    /// The store could not read the segment, or the segment is damaged.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The segment is shorter than the manifest says.
    #[error("content {content}, segment {segment}: shorter than the manifest says")]
    Short {
        /// The content.
        content: ContentId,
        /// The segment of the content.
        segment: u32,
    },
}

impl ProvideError {
    /// Returns the error code that this error maps to.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::NoSuchBlock(_) => Code::NotFound,
            Self::Store(error) => error.code(),
            Self::Short { .. } => Code::Corrupt,
        }
    }
}

#[derive(Default)]
struct Counts {
    hits: AtomicU64,
    misses: AtomicU64,
    ahead: AtomicU64,
    ahead_dropped: AtomicU64,
    advised: AtomicU64,
    failures: AtomicU64,
}

/// Reads blocks of published versions, most of them from memory.
pub struct Provider {
    store: Arc<Store>,
    arm: Arm,
    memory: Mutex<Memory>,
    ahead: Option<SyncSender<Vec<Key>>>,
    ahead_max: usize,
    is_advising: AtomicBool,
    counts: Counts,
}

/// The turn of one task to have its files read ahead by the kernel. A provider gives one turn at a time, so that tasks
/// that begin faster than the disk answers do not pile up work.
pub struct Turn(Arc<Provider>);

impl Provider {
    /// Creates a provider with at most `memory_bytes_max` bytes of segments in memory. In the arm `Async` it starts a
    /// thread, which ends when the last owner drops the provider.
    #[must_use]
    pub fn new(store: Arc<Store>, arm: Arm, memory_bytes_max: u64) -> Arc<Self> {
        let (sender, receiver) = sync_channel(AHEAD_QUEUE);
        let provider = Arc::new(Self {
            store,
            arm,
            memory: Mutex::new(Memory::new(memory_bytes_max)),
            ahead: (arm == Arm::Async).then_some(sender),
            ahead_max: ahead_max(memory_bytes_max),
            is_advising: AtomicBool::new(false),
            counts: Counts::default(),
        });
        if arm == Arm::Async {
            let weak = Arc::downgrade(&provider);
            // If the thread cannot start, only read-ahead is missing.
            std::thread::Builder::new()
                .name("stream-provider".into())
                .spawn(move || read_ahead(&receiver, &weak))
                .ok();
        }
        provider
    }

    /// Returns the arm.
    #[must_use]
    pub fn arm(&self) -> Arm {
        self.arm
    }

    /// Returns the bytes of the blocks, concatenated. May read the disk.
    ///
    /// # Errors
    /// A block does not exist, or cannot be read.
    pub fn blocks(
        &self,
        published: &Published,
        blocks: &[BlockAt],
    ) -> Result<Vec<u8>, ProvideError> {
        let mut bytes = Vec::with_capacity(blocks.len() * BLOCK_BYTES);
        let mut last: Option<(Key, Arc<[u8]>)> = None;
        for at in blocks {
            let (key, size_bytes) = locate(published, *at)?;
            let segment = match last.take() {
                Some((same, segment)) if same == key => segment,
                _ => self.segment(key)?,
            };
            let from = (at.index % SEGMENT_BLOCKS) as usize * BLOCK_BYTES;
            let to = from + block_bytes(size_bytes, at.index);
            let short = ProvideError::Short {
                content: key.0,
                segment: key.1,
            };
            bytes.extend_from_slice(segment.get(from..to).ok_or(short)?);
            last = Some((key, segment));
        }
        Ok(bytes)
    }

    /// Returns whether all of these blocks are in memory, so that [`blocks`](Self::blocks) does not read the disk.
    #[must_use]
    pub fn has(&self, published: &Published, blocks: &[BlockAt]) -> bool {
        let memory = self.memory();
        let has = |at: &BlockAt| locate(published, *at).is_ok_and(|(key, _)| memory.has(&key));
        blocks.iter().all(has)
    }

    /// Reads into memory what the arm requires, at the start or when a new version is served. Reads the disk.
    pub fn prepare(&self, published: &Published, actions: &[ActionInfo], variance_min: f64) {
        if !matches!(self.arm, Arm::Variance | Arm::Async) {
            return;
        }
        let firsts = actions.iter().filter_map(|action| action.segments.first());
        let chosen = variance::choose(actions, variance_min);
        let others = chosen
            .iter()
            .filter_map(|chosen| actions.get(chosen.action)?.segments.get(chosen.segment));
        for segment in firsts.chain(others) {
            self.read_ahead(&keys(published, segment, usize::MAX));
        }
    }

    /// In the arm `Madvise`, returns the turn of a task that begins. Returns `None`, and counts the task, while another
    /// task has the turn. Never blocks.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> Option<Turn> {
        if self.arm != Arm::Madvise {
            return None;
        }
        if self.is_advising.swap(true, Ordering::AcqRel) {
            self.counts.ahead_dropped.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(Turn(Arc::clone(self)))
    }

    fn advise(&self, published: &Published, files: &BTreeSet<FileId>) {
        for file in files {
            let Some((_, content)) = published.manifest.file(*file) else {
                continue;
            };
            let segments = published.manifest.blocks(*file).div_ceil(SEGMENT_BLOCKS);
            for segment in 0..segments {
                if let Ok(at) = self.store.locate(&content, segment)
                    && self.store.advise(&at)
                {
                    self.counts.advised.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Requests read-ahead of these blocks, because they will be requested soon, the first block soonest. Segments that
    /// would take more than half of the memory are left out. Never blocks.
    pub fn expect<'a>(&self, published: &Published, blocks: impl IntoIterator<Item = &'a BlockAt>) {
        let Some(queue) = &self.ahead else { return };
        let mut keys = keys(published, blocks, self.ahead_max);
        {
            let memory = self.memory();
            keys.retain(|key| !memory.has(key));
        }
        if keys.is_empty() {
            return;
        }
        if let Err(TrySendError::Full(_)) = queue.try_send(keys) {
            self.counts.ahead_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counters since the start.
    #[must_use]
    pub fn counters(&self) -> ProviderCounters {
        let (ahead, memory_bytes) = {
            let memory = self.memory();
            (memory.ahead(), memory.bytes())
        };
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ProviderCounters {
            hits: read(&self.counts.hits),
            misses: read(&self.counts.misses),
            ahead: read(&self.counts.ahead),
            ahead_used: ahead.used,
            ahead_unused: ahead.unused,
            ahead_dropped: read(&self.counts.ahead_dropped),
            advised: read(&self.counts.advised),
            failures: read(&self.counts.failures),
            memory_bytes,
        }
    }

    fn segment(&self, key: Key) -> Result<Arc<[u8]>, ProvideError> {
        if let Some(segment) = self.memory().get(&key) {
            self.counts.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(segment);
        }
        self.counts.misses.fetch_add(1, Ordering::Relaxed);
        let segment = self.read(key)?;
        self.memory().put(key, Arc::clone(&segment), false);
        Ok(segment)
    }

    fn read_ahead(&self, keys: &[Key]) {
        for key in keys {
            if self.memory().has(key) {
                continue;
            }
            if let Ok(segment) = self.read(*key) {
                self.memory().put(*key, segment, true);
                self.counts.ahead.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn read(&self, key: Key) -> Result<Arc<[u8]>, StoreError> {
        self.store
            .segment(&key.0, key.1)
            .map(Into::into)
            .inspect_err(|_| {
                self.counts.failures.fetch_add(1, Ordering::Relaxed);
            })
    }

    /// Ignores poisoning: a panic leaves no update half done.
    fn memory(&self) -> MutexGuard<'_, Memory> {
        locked(&self.memory)
    }
}

impl Turn {
    /// Lets the kernel read these files ahead. May read the disk.
    pub fn advise(&self, published: &Published, files: &BTreeSet<FileId>) {
        self.0.advise(published, files);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.is_advising.store(false, Ordering::Release);
    }
}

/// Returns the maximum number of segments of one read-ahead request. They take half of the memory, so that a request
/// evicts neither its own segments nor all that is in use.
fn ahead_max(memory_bytes_max: u64) -> usize {
    let segment_bytes = u64::from(SEGMENT_BLOCKS) * BLOCK_BYTES as u64;
    usize::try_from(memory_bytes_max / 2 / segment_bytes)
        .unwrap_or(usize::MAX)
        .clamp(1, AHEAD_SEGMENTS_MAX)
}

fn read_ahead(receiver: &Receiver<Vec<Key>>, provider: &std::sync::Weak<Provider>) {
    while let Ok(keys) = receiver.recv() {
        let Some(provider) = provider.upgrade() else {
            return;
        };
        provider.read_ahead(&keys);
    }
}

/// Returns the content and segment that hold a block, and the size of its file, in bytes.
fn locate(published: &Published, at: BlockAt) -> Result<(Key, u64), ProvideError> {
    match published.manifest.file(at.file) {
        Some((size_bytes, content)) if block_bytes(size_bytes, at.index) > 0 => {
            Ok(((content, at.index / SEGMENT_BLOCKS), size_bytes))
        }
        _ => Err(ProvideError::NoSuchBlock(at)),
    }
}

/// Returns the first `most` segments of the blocks, each once, in the order of their first block.
fn keys<'a>(
    published: &Published,
    blocks: impl IntoIterator<Item = &'a BlockAt>,
    most: usize,
) -> Vec<Key> {
    let mut keys: Vec<Key> = Vec::new();
    let mut known = HashSet::new();
    for at in blocks {
        if keys.len() == most {
            break;
        }
        if let Ok((key, _)) = locate(published, *at)
            && known.insert(key)
        {
            keys.push(key);
        }
    }
    keys
}
