//! The public handle of a device.

use super::ahead::Ahead;
use super::counters::{Counters, Counts, Start, add};
use super::failure::{FailureKind, ServerFailure};
use super::hashes::Groups;
use super::inner::{Inner, JOBS_MAX, random};
use super::network::{Network, locked};
use super::notes::Paths;
use super::settings::{DeviceError, HASHES_BYTES_MIN, ReadError, Settings};
use super::stage::{STAGED_MAX_DEFAULT, Stage};
use super::{Lists, Pages, keeper, notes, open, slot};
use crate::block::{BlockAt, FileId, Token};
use crate::manifest::{Manifest, PublicKey};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a full stage without progress delays a thread that brings a new block.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long the stop of a device waits until the server has received what was sent to it.
const SETTLE_MAX: Duration = Duration::from_millis(500);

/// The device side of streaming. Clones share one device, which stops when the last clone is dropped.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
    owner: Arc<Owner>,
}

// The threads hold `Inner` too, so only the drop of `Owner` marks the last handle outside the threads.
struct Owner {
    inner: Arc<Inner>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Owner {
    fn stop(&self) {
        if self.inner.counters().tasks > 0 {
            self.inner.settle(SETTLE_MAX);
        }
        self.inner.stop();
        let threads = std::mem::take(&mut *locked(&self.threads));
        for thread in threads {
            // The result of a panicked thread is ignored, and no thread joins itself.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }

    fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), DeviceError> {
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(run)
            .map_err(DeviceError::Thread)?;
        let mut threads = locked(&self.threads);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }
}

impl Device {
    /// Connects, gets the newest manifest and verifies it. Without a server it uses the newest cached manifest, and
    /// keeps trying to connect.
    ///
    /// # Errors
    /// The settings are invalid, what the server sends is refused, or there is neither a server nor a cached manifest.
    pub fn start(settings: Settings) -> Result<Self, DeviceError> {
        open::check(&settings)?;
        let no_random = || DeviceError::Settings("the system gives no random numbers".to_owned());
        let device = random().ok_or_else(no_random)?;
        let network = Arc::new(Network::new(open::link(&settings)?, device, &settings));
        let counts = Arc::new(Counts::default());
        let opened = open::open(&settings, &network, &counts)?;
        let (jobs, to_do) = sync_channel(JOBS_MAX);
        let new_stage = match settings.pool_is_filled {
            true => Stage::filled,
            false => Stage::new,
        };
        let inner = Arc::new(Inner {
            paths: Paths::of(&opened.manifest),
            manifest: Arc::new(opened.manifest),
            manifest_hash: opened.hash,
            first_seen: opened.first_seen,
            stage: new_stage(settings.pool_pages, PATIENCE.min(settings.deadline / 8)),
            groups: Groups::new(settings.hashes_bytes_max.max(HASHES_BYTES_MIN)),
            tasks: Mutex::default(),
            ahead: Mutex::new(Ahead::new(match settings.pool_pages {
                0 => STAGED_MAX_DEFAULT,
                pages => pages,
            })),
            counts,
            network,
            pages: RwLock::default(),
            waits: Mutex::default(),
            waits_changed: Condvar::new(),
            jobs,
            starts: Mutex::default(),
            untold: Mutex::default(),
            plans: Mutex::default(),
            late: Mutex::default(),
            damage: Mutex::default(),
            settings,
        });
        let device = Self {
            owner: Arc::new(Owner {
                inner: Arc::clone(&inner),
                threads: Mutex::default(),
            }),
            inner,
        };
        // The connection is up before this returns. So a request that follows at once goes to the server, and a task
        // that begins is announced there before it reads.
        let network = &device.inner.network;
        let greeted = opened.greeted;
        let mut first = greeted.map(|greeted| (network.up(greeted.control.clone()), greeted));
        for _ in 0..device.inner.settings.connections {
            let (inner, first) = (Arc::clone(&device.inner), first.take());
            device
                .owner
                .spawn("stream-reader", move || slot::keep(&inner, first))?;
        }
        let inner = Arc::clone(&device.inner);
        device
            .owner
            .spawn("stream-keeper", move || keeper::keep(&inner))?;
        let inner = Arc::clone(&device.inner);
        device
            .owner
            .spawn("stream-notes", move || keeper::note(&inner, &to_do))?;
        let inner = Arc::clone(&device.inner);
        device
            .owner
            .spawn("stream-storer", move || keeper::store(&inner))?;
        if device.inner.settings.pool_is_filled {
            let inner = Arc::clone(&device.inner);
            device
                .owner
                .spawn("stream-allocator", move || inner.stage.fill())?;
        }
        Ok(device)
    }

    /// Returns the manifest that is used.
    #[must_use]
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.inner.manifest
    }

    /// Returns the publisher's key, if no publisher was known before this start and the first one seen was to be
    /// trusted.
    #[must_use]
    pub fn first_seen(&self) -> Option<PublicKey> {
        self.inner.first_seen
    }

    /// Sets the page cache, or removes it (`None`) before its mount ends.
    pub fn set_pages(&self, pages: Option<Arc<dyn Pages>>) {
        let mut now = self
            .inner
            .pages
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *now = pages;
    }

    /// Begins a task: announces it to the server, and puts its needed blocks that the cache has onto the stage. May
    /// query the page cache, and so needs another thread of the mount to be free.
    #[must_use]
    pub fn begin(&self, task: FileId) -> Token {
        let inner = &self.inner;
        // Without random numbers the token is not unique; the task is not followed then, but its reads are served.
        let token = Token(random().unwrap_or_default());
        let plan = inner.local_plan(task);
        let (resident, cached) = inner.held(&plan);
        let now = Instant::now();
        let is_known = locked(&inner.tasks).begin(token, task, plan, !resident.is_empty(), now);
        add(&inner.counts.tasks, 1);
        if !is_known {
            return token;
        }
        if let Some(connection) = inner.network.idlest() {
            let mut held = resident;
            held.extend(cached.iter().map(|(at, _)| *at));
            inner.begin_on(&connection, token, held);
        }
        if !cached.is_empty() {
            let inner = Arc::clone(inner);
            // If the thread cannot be started, each block is read from the cache on demand.
            let _ = self.owner.spawn("stream-feeder", move || {
                keeper::feed(&inner, token, &cached)
            });
        }
        token
    }

    /// Ends a task: its processes have ended (`has_exited`), or the caller stops following it.
    pub fn end(&self, token: Token, has_exited: bool) {
        let inner = &self.inner;
        let mut tasks = locked(&inner.tasks);
        let Some(mut task) = tasks.end(&token) else {
            return;
        };
        drop(tasks);
        if let Some((wire, connection)) = task.wire {
            if !keeper::trace(inner, connection, wire, &task.take_untold()) {
                task.set_blind();
            }
            // Reads after the first reported end do not belong to the start that it reported on.
            let is_exact = task.is_exact() && !task.is_told_end;
            keeper::end(inner, connection, wire, is_exact, has_exited);
        }
        if let Some(untold) = task.unheard() {
            inner.keep_untold(untold);
        }
        inner.start_is_over(&mut task);
        inner.stage.end(token);
    }

    /// Returns a verified block that a program reads. Waits for it until the deadline at most.
    ///
    /// # Errors
    /// There is no such block, or it did not arrive.
    pub fn read(&self, token: Option<Token>, at: BlockAt) -> Result<Arc<[u8]>, ReadError> {
        self.read_since(token, at, Instant::now())
    }

    /// Like [`read`](Self::read), with the deadline counted from `since`: a request that has waited for a thread, or
    /// that is for several blocks, has one deadline. After it, blocks that are here are still returned.
    ///
    /// # Errors
    /// There is no such block, or it did not arrive.
    pub fn read_since(
        &self,
        token: Option<Token>,
        at: BlockAt,
        since: Instant,
    ) -> Result<Arc<[u8]>, ReadError> {
        self.inner.read(token, at, since)
    }

    /// Returns the block if it is on the stage; never waits for network or disk.
    #[must_use]
    pub fn read_now(&self, token: Option<Token>, at: BlockAt) -> Option<Arc<[u8]>> {
        self.inner.read_now(token, at)
    }

    /// Announces blocks that will be read now, one after the other: missing ones are requested together.
    pub fn want(&self, token: Option<Token>, blocks: &[BlockAt]) {
        self.inner.want(token, blocks);
    }

    /// Returns the blocks that a task needs, in the order in which it needs them: from the server, or as noted locally
    /// at its last start.
    ///
    /// # Errors
    /// Nothing is known of the task, or the server refuses.
    pub fn plan(&self, task: FileId) -> Result<Vec<BlockAt>, DeviceError> {
        self.inner.plan(task)
    }

    /// Whether the cache has a block and its list of hashes, which a later start needs to find it. Determined as far as
    /// possible without reading them.
    #[must_use]
    pub fn is_cached(&self, at: BlockAt) -> bool {
        self.inner.is_kept_for_later(at)
    }

    /// Fetches blocks into the cache, with lower priority than everything that programs wait for. `on_progress` gets
    /// the number of blocks that are there, and the total.
    ///
    /// # Errors
    /// There is no cache or no such block; nothing arrived within the deadline; the server refuses.
    pub fn fetch(
        &self,
        blocks: &[BlockAt],
        on_progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), DeviceError> {
        self.inner.fetch(blocks, on_progress)
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.inner.counters()
    }

    /// Returns the message of the cache's last failure, if anything failed.
    #[must_use]
    pub fn cache_failure(&self) -> Option<String> {
        let cache = self.inner.settings.cache.as_ref();
        cache.and_then(|cache| cache.failure())
    }

    /// Returns why there is no server, or what a connected server cannot provide. `None` if nothing is wrong, or
    /// nothing is known yet.
    #[must_use]
    pub fn server_failure(&self) -> Option<ServerFailure> {
        self.inner.network.failure().or_else(|| self.damage())
    }

    // Returns the block that was found damaged at the server; it is cleared when the block arrives after all.
    fn damage(&self) -> Option<ServerFailure> {
        let at = (*locked(&self.inner.damage))?;
        let path = self.inner.paths.get(&self.inner.manifest, at.file);
        let path = String::from_utf8_lossy(&path).replace(char::is_control, "?");
        let text = format!(
            "block {} of {path} is damaged in the server's store",
            at.index
        );
        Some(ServerFailure::new(FailureKind::Damaged, text))
    }

    /// Returns the lists of hashes that a cache needs for blocks, in addition to the blocks themselves.
    #[must_use]
    pub fn lists_of(&self, blocks: &[BlockAt]) -> Lists {
        notes::lists_of(&self.inner.manifest, blocks)
    }

    /// Returns the last starts of tasks, the newest first.
    #[must_use]
    pub fn starts(&self) -> Vec<Start> {
        locked(&self.inner.starts).iter().copied().collect()
    }

    /// Whether a server is connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        !self.inner.network.connections().is_empty()
    }

    /// Returns when all blocks that were put into the cache are written or dropped.
    pub fn flush_cache(&self) {
        if let Some(cache) = &self.inner.settings.cache {
            cache.flush();
        }
    }

    /// Ends all connections and threads; waiting callers get an error.
    pub fn stop(&self) {
        self.owner.stop();
        if let Some(cache) = &self.inner.settings.cache {
            cache.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cache::{BlockCache, CacheOptions, MemoryStorage};
    use super::super::tasks::Untold;
    use super::super::{Cache, Publisher, notes};
    use super::*;
    use crate::block::FileId;
    use crate::manifest::{self, KeyPair, Manifest, Node};
    use std::net::TcpListener;

    #[test]
    fn a_late_report_that_cannot_be_sent_is_kept_and_stops_nothing() {
        let (pair, _) = KeyPair::generate().unwrap();
        let root = Node {
            kind: manifest::Kind::Directory,
            mode: 0o755,
            user: 0,
            group: 0,
            modified_s: 0,
            modified_ns: 0,
        };
        let published = Manifest {
            version: 1,
            nodes: vec![root],
            names: Vec::new(),
        };
        // Nobody listens at the first address, so the device starts from its cache.
        let mut settings = Settings::new("127.0.0.1:1", Publisher::Key(pair.public()));
        let storage = Box::new(MemoryStorage::default());
        let cache = BlockCache::open(storage, &CacheOptions::default()).unwrap();
        let name = notes::manifest_name(&settings.server);
        let signed = manifest::sign(&published.encode(), &pair);
        cache.set_note(&name, &signed).unwrap();
        settings.cache = Some(Arc::new(cache));
        let device = Device::start(settings).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let there = Settings::new(&address, Publisher::FirstSeen);
        let link = crate::link::connect(&Network::link_settings(&there)).unwrap();
        let inner = &device.inner;
        inner.keep_untold(Untold {
            file: FileId(0),
            blocks: Vec::new(),
            is_exact: true,
        });
        let connection = inner.network.up(link.control.clone());
        connection.close();
        inner.connected(&connection);
        assert_eq!(locked(&inner.untold).len(), 1);
        device.stop();
    }
}
