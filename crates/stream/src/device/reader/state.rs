//! What the threads of a device share: the three parts, and a few values that belong to none of them.

use crate::block::{BLOCK_BYTES, BlockAt, FileId, Token};
use crate::device::counters::{Counters, Counts, Start, add};
use crate::device::disk::Disk;
use crate::device::prefetch::Prefetch;
use crate::device::settings::Settings;
use crate::device::transport::{InFlight, Transport};
use crate::device::{Cache, Pages};
use crate::group::GroupAt;
use crate::wire::Request;
use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// The maximum number of jobs that wait for the notes thread.
pub(crate) const JOBS_MAX: usize = 1024;

/// How long a full buffer without progress delays a thread that brings a new block.
const PATIENCE: Duration = Duration::from_secs(2);

/// A background job of the notes thread, which may wait for a disk and for the kernel.
pub(crate) enum Job {
    /// Keep a group of hashes, if it is still in memory; the waiting job itself does not hold the group.
    Hashes(GroupAt),
    /// Keep what the task of a file needed.
    Plan(FileId, Arc<Vec<BlockAt>>),
    /// Wake the thread to check whether the device was stopped.
    Nothing,
    /// Check whether blocks of a task's plan are in the page cache already.
    Resident(Token),
}

/// Which blocks are in the page cache of the mount.
pub(crate) struct Residence {
    pub resident: Vec<BlockAt>,
    /// The others, also those for which the kernel does not say it.
    pub others: Vec<BlockAt>,
    /// The kernel said it for all of them.
    pub is_known: bool,
}

/// A device.
pub(crate) struct Reader {
    pub settings: Settings,
    /// The blake3 hash of the signed manifest.
    pub manifest_hash: [u8; 32],
    pub counts: Arc<Counts>,
    pub transport: Arc<Transport>,
    pub prefetch: Prefetch,
    pub disk: Disk,
    pages: RwLock<Option<Arc<dyn Pages>>>,
    jobs: SyncSender<Job>,
    /// Blocks that recently missed their deadline, and when.
    pub late: Mutex<VecDeque<(BlockAt, Instant)>>,
    /// A requested block that is damaged at the server.
    pub damage: Mutex<Option<BlockAt>>,
}

impl Reader {
    pub fn new(
        settings: Settings,
        counts: Arc<Counts>,
        transport: Arc<Transport>,
        disk: Disk,
        manifest_hash: [u8; 32],
        jobs: SyncSender<Job>,
    ) -> Self {
        Self {
            prefetch: Prefetch::new(
                settings.pool_pages,
                settings.pool_is_filled,
                PATIENCE.min(settings.deadline / 8),
            ),
            settings,
            manifest_hash,
            counts,
            transport,
            disk,
            pages: RwLock::default(),
            jobs,
            late: Mutex::default(),
            damage: Mutex::default(),
        }
    }

    /// Sets the page cache, or removes it (`None`) before its mount ends.
    pub fn set_pages(&self, pages: Option<Arc<dyn Pages>>) {
        *self.pages.write().unwrap_or_else(PoisonError::into_inner) = pages;
    }

    /// The page cache, while there is a mount.
    pub fn pages(&self) -> Option<Arc<dyn Pages>> {
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner);
        pages.clone()
    }

    pub fn has_pages(&self) -> bool {
        self.pages().is_some()
    }

    /// Returns which of these blocks are in the page cache, and which are not. May wait for a thread of the mount.
    pub fn resident(&self, blocks: &[BlockAt]) -> Residence {
        let Some(page_cache) = self.pages() else {
            return Residence {
                resident: Vec::new(),
                others: blocks.to_vec(),
                is_known: true,
            };
        };
        let mut is_known = true;
        let mut files: HashMap<FileId, Vec<bool>> = HashMap::new();
        let (resident, others) = blocks.iter().copied().partition(|at| {
            let pages = files.entry(at.file).or_insert_with(|| {
                let count = self.disk.manifest.blocks(at.file);
                let pages = page_cache.resident(at.file, count);
                is_known &= pages.is_some();
                pages.unwrap_or_default()
            });
            pages.get(at.index as usize) == Some(&true)
        });
        Residence {
            resident,
            others,
            is_known,
        }
    }

    /// Queues a background job.
    pub fn queue(&self, job: Job) {
        if let Err(TrySendError::Full(_)) = self.jobs.try_send(job) {
            add(&self.counts.notes_failed, 1);
        }
    }

    /// Records the figures of a start that has ended, and what it needed. `is_whole`: none of its reads failed.
    pub fn record_start(&self, start: Start, needed: Vec<BlockAt>, is_whole: bool) {
        if start.is_audit {
            add(&self.counts.audited_pushed, start.pushed);
            add(&self.counts.audited_unread, start.unread);
        }
        if let Some(plan) = self.disk.set_plan(start.task, needed, is_whole) {
            self.queue(Job::Plan(start.task, plan));
        }
        self.prefetch.add_start(start);
    }

    pub fn counters(&self) -> Counters {
        let mut all = self.counts.snapshot();
        let prefetch = self.prefetch.counts();
        all.pushed_read = prefetch.buffer.prefetched_read;
        all.pushed_stored = prefetch.buffer.stored;
        all.pushed_not_stored = prefetch.buffer.not_stored;
        all.neighbours_read = prefetch.buffer.neighbours_read;
        all.gone_blocks = prefetch.buffer.gone;
        all.asked_anew = prefetch.buffer.asked_anew;
        all.waits_for_room = prefetch.buffer.waits_for_room;
        all.staged = prefetch.used as u64;
        all.tasks_now = prefetch.tasks as u64;
        all.connected = self.transport.connections().len() as u64;
        all.round_trip_us = self.transport.round_trip().as_micros() as u64;
        all.bandwidth_bytes_s = self.transport.bandwidth();
        (all.bytes_sent, all.bytes_received) = self.transport.bytes();
        let tree = &self.disk.manifest;
        let names: usize = tree.names.iter().map(|n| n.name.len() + 16).sum();
        let manifest = size_of_val(&tree.nodes[..])
            + size_of_val(&tree.names[..])
            + 4 * tree.nodes.len()
            + names;
        let buffers = self.settings.connections as usize * (2 << 20);
        all.memory_bytes = ((prefetch.used + prefetch.spare) * BLOCK_BYTES
            + self.disk.hashes_bytes()
            + 24 * prefetch.traced
            + manifest
            + buffers) as u64;
        all.cache = self.disk.cache().map(Cache::counters);
        if let Some(cache) = &all.cache {
            all.memory_bytes += cache.memory_bytes;
        }
        all
    }

    /// Waits until the server has received everything sent so far, at most `time`.
    pub fn settle(&self, time: Duration) {
        let end = Instant::now() + time;
        for connection in self.transport.connections() {
            let id = self.transport.id();
            connection.expect(id, InFlight::Ping(Instant::now()));
            connection.send(&Request::Ping { id }, false);
            while connection.in_flight(id).is_some()
                && !connection.control.is_ended()
                && Instant::now() < end
                && !self.is_stopped()
            {
                self.transport.pause(Duration::from_millis(1));
            }
        }
    }

    pub fn stop(&self) {
        self.transport.stop();
        self.prefetch.stop();
        self.queue(Job::Nothing);
    }

    pub fn is_stopped(&self) -> bool {
        self.transport.is_stopped()
    }
}
