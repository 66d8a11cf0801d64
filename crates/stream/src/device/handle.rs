//! The public handle of a device.

use super::counters::{Counters, Counts, Start, add};
use super::disk::Disk;
use super::error::{DeviceError, ReadError};
use super::prefetch::Tasks;
use super::random::random;
use super::reader::{JOBS_MAX, Reader, Residence, background, connection};
use super::settings::Settings;
use super::task_plan::TaskPlan;
use super::transport::{FailureKind, ServerFailure, Transport};
use super::{Cache, Lists, Pages, open};
use crate::block::{BlockAt, FileId, Token};
use crate::manifest::{Manifest, PublicKey};
use crate::sync::locked;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long the stop of a device waits until the server has received what was sent to it.
const SETTLE_MAX: Duration = Duration::from_millis(500);

/// The device side of streaming. Clones share one device, which stops when the last clone is dropped.
#[derive(Clone)]
pub struct Device {
    reader: Arc<Reader>,
    /// The publisher's key, if no publisher was known before this start.
    first_seen: Option<PublicKey>,
    /// The manifest that the cache had before this start, if it was of an older version.
    before: Arc<Mutex<Option<Manifest>>>,
    owner: Arc<Owner>,
}

// The threads hold the reader too, so only the drop of `Owner` marks the last handle outside the threads.
struct Owner {
    reader: Arc<Reader>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Owner {
    fn stop(&self) {
        if self.reader.counters().tasks > 0 {
            self.reader.settle(SETTLE_MAX);
        }
        self.reader.stop();
        let threads = std::mem::take(&mut *locked(&self.threads));
        for thread in threads {
            // The result of a panicked thread is ignored, and no thread joins itself.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }

    fn spawn(
        &self,
        name: &str,
        run: impl FnOnce(&Arc<Reader>) + Send + 'static,
    ) -> Result<(), DeviceError> {
        let reader = Arc::clone(&self.reader);
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run(&reader))
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
        let transport = Arc::new(Transport::new(open::link(&settings)?, device, &settings));
        let counts = Arc::new(Counts::default());
        let opened = open::open(&settings, &transport, &counts)?;
        let (jobs, to_do) = sync_channel(JOBS_MAX);
        let cache = settings.cache.clone();
        let disk = Disk::new(opened.manifest, cache, settings.hashes_bytes_max);
        let reader = Reader::new(settings, counts, transport, disk, opened.hash, jobs);
        let reader = Arc::new(reader);
        let device = Self {
            owner: Arc::new(Owner {
                reader: Arc::clone(&reader),
                threads: Mutex::default(),
            }),
            first_seen: opened.first_seen,
            before: Arc::new(Mutex::new(opened.before)),
            reader,
        };
        // The connection is up before this returns. So a request that follows at once goes to the server, and a task
        // that begins is announced there before it reads.
        let transport = &device.reader.transport;
        let greeted = opened.greeted;
        let mut first = greeted.map(|greeted| (transport.up(greeted.control.clone()), greeted));
        let owner = &device.owner;
        for _ in 0..device.reader.settings.connections {
            let first = first.take();
            owner.spawn("stream-reader", move |reader| {
                connection::keep(reader, first)
            })?;
        }
        owner.spawn("stream-keeper", |reader| background::maintain(reader))?;
        owner.spawn("stream-notes", move |reader| {
            background::note(reader, &to_do)
        })?;
        owner.spawn("stream-storer", |reader| background::store(reader))?;
        if device.reader.settings.pool_is_filled {
            owner.spawn("stream-allocator", |reader| reader.prefetch.fill())?;
        }
        Ok(device)
    }

    /// Returns the manifest that is used.
    #[must_use]
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.reader.disk.manifest
    }

    /// Returns the publisher's key, if no publisher was known before this start and the first one seen was to be
    /// trusted.
    #[must_use]
    pub fn first_seen(&self) -> Option<PublicKey> {
        self.first_seen
    }

    /// Returns the paths of noted programs that the cache does not have as a whole in the version that is used.
    ///
    /// Such a program may not start without a server. Reads the notes of all programs.
    #[must_use]
    pub fn programs_lacking(&self) -> Vec<Vec<u8>> {
        programs(&self.reader.disk, false)
    }

    /// Returns the paths of the programs that the cache had as a whole in the version before. Empty if this start has
    /// moved to no newer version; empty, too, from the second call on, because the older manifest is then dropped.
    #[must_use]
    pub fn programs_before(&self) -> Vec<Vec<u8>> {
        let settings = &self.reader.settings;
        let before = locked(&self.before).take();
        let disk = before
            .map(|before| Disk::new(before, settings.cache.clone(), settings.hashes_bytes_max));
        disk.map_or_else(Vec::new, |disk| programs(&disk, true))
    }

    /// Sets the page cache, or removes it (`None`) before its mount ends.
    pub fn set_pages(&self, pages: Option<Arc<dyn Pages>>) {
        self.reader.set_pages(pages);
    }

    /// Begins a task: announces it to the server, and puts its needed blocks that the cache has into the buffer. May
    /// query the page cache, and so needs another thread of the mount to be free.
    #[must_use]
    pub fn begin(&self, task: FileId) -> Token {
        let reader = &self.reader;
        // Without random numbers the token is not unique; the task is not followed then, but its reads are served.
        let token = Token(random().unwrap_or_default());
        let plan = reader.disk.plan(task);
        let Residence {
            resident,
            others,
            is_known: is_residence_known,
        } = reader.resident(&plan);
        let cached = reader.disk.cached(&others);
        // Where the kernel does not say what the page cache has, every task but the first of a mount may find its
        // blocks there.
        let had_tasks = reader.counts.tasks.load(Ordering::Relaxed) > 0;
        let is_blind = !resident.is_empty() || (had_tasks && !is_residence_known);
        let now = Instant::now();
        let begin = |tasks: &mut Tasks| tasks.begin(token, task, plan, is_blind, now);
        let is_known = reader.prefetch.tasks(begin);
        add(&reader.counts.tasks, 1);
        if !is_known {
            return token;
        }
        if let Some(connection) = reader.transport.idlest() {
            let mut held = resident;
            held.extend(cached.iter().map(|(at, _)| *at));
            reader.begin_on(&connection, token, held);
        }
        if !cached.is_empty() {
            // If the thread cannot be started, each block is read from the cache on demand.
            let _ = self.owner.spawn("stream-feeder", move |reader| {
                background::feed(reader, token, &cached);
            });
        }
        token
    }

    /// Ends a task: its processes have ended (`has_exited`), or the caller stops following it.
    pub fn end(&self, token: Token, has_exited: bool) {
        let reader = &self.reader;
        let Some(mut task) = reader.prefetch.tasks(|tasks| tasks.end(&token)) else {
            return;
        };
        if let Some((wire, connection)) = task.wire {
            if !reader.report_reads(connection, wire, &task.take_unreported()) {
                task.set_blind();
            }
            // Reads after the first reported end do not belong to the start that it reported on.
            let is_exact = task.is_exact() && !task.is_end_reported;
            // A read that was never answered counts as failed: with an end the server would take the rest for unused.
            match task.is_waiting() {
                false => reader.report_end(connection, wire, is_exact, has_exited),
                true => {
                    if let Some(connection) = reader.transport.connection(connection) {
                        connection.close();
                    }
                }
            }
        }
        if let Some(start) = task.unreported_start() {
            reader.prefetch.keep_unreported(start);
        }
        if let Some((start, needed)) = task.end_start() {
            reader.record_start(start, needed, !task.is_incomplete());
        }
        reader.prefetch.end(token);
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
        self.reader.read(token, at, since)
    }

    /// Returns the block if it is in the buffer; never waits for network or disk.
    #[must_use]
    pub fn read_now(&self, token: Option<Token>, at: BlockAt) -> Option<Arc<[u8]>> {
        self.reader.read_now(token, at)
    }

    /// Announces blocks that will be read now, one after the other: missing ones are requested together.
    pub fn want(&self, token: Option<Token>, blocks: &[BlockAt]) {
        self.reader.want(token, blocks);
    }

    /// Returns the blocks that a task needs, in the order in which it needs them. They come from the server, or from
    /// the local note of its last start.
    ///
    /// # Errors
    /// The server refuses, or the device was stopped.
    pub fn plan(&self, task: FileId) -> Result<TaskPlan, DeviceError> {
        self.reader.plan(task)
    }

    /// Like [`plan`](Self::plan), for a device that will run the task without a server. Blocks that only failed starts
    /// on this device have read are left out, unless they add to a list of the server. Notes the list in the cache.
    ///
    /// # Errors
    /// The server refuses, or the device was stopped.
    pub fn plan_noted(&self, task: FileId) -> Result<TaskPlan, DeviceError> {
        self.reader.plan_noted(task)
    }

    /// Whether the cache has a block and its list of hashes, which a later start needs to find it. Determined as far as
    /// possible without reading them.
    #[must_use]
    pub fn is_cached(&self, at: BlockAt) -> bool {
        self.reader.disk.has_with_list(at)
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
        self.reader.fetch(blocks, on_progress)
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.reader.counters()
    }

    /// Returns the message of the cache's last failure, if anything failed.
    #[must_use]
    pub fn cache_failure(&self) -> Option<String> {
        self.reader.disk.cache().and_then(Cache::failure)
    }

    /// Returns why there is no server, or what a connected server cannot provide. `None` if nothing is wrong, or
    /// nothing is known yet.
    #[must_use]
    pub fn server_failure(&self) -> Option<ServerFailure> {
        self.reader.transport.failure().or_else(|| self.damage())
    }

    // Returns the block that was found damaged at the server; it is cleared when the block arrives after all.
    fn damage(&self) -> Option<ServerFailure> {
        let at = (*locked(&self.reader.damage))?;
        let path = self.reader.disk.path(at.file);
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
        self.reader.disk.lists_of(blocks)
    }

    /// Returns the last starts of tasks, the newest first.
    #[must_use]
    pub fn starts(&self) -> Vec<Start> {
        self.reader.prefetch.starts()
    }

    /// Whether a server is connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        !self.reader.transport.connections().is_empty()
    }

    /// Returns when all blocks that were put into the cache are written or dropped.
    pub fn flush_cache(&self) {
        if let Some(cache) = self.reader.disk.cache() {
            cache.flush();
        }
    }

    /// Ends all connections and threads; waiting callers get an error.
    pub fn stop(&self) {
        self.owner.stop();
        if let Some(cache) = self.reader.disk.cache() {
            cache.flush();
        }
    }
}

/// Returns the paths of the known programs that a cache has as a whole, or those that it does not.
fn programs(disk: &Disk, is_whole: bool) -> Vec<Vec<u8>> {
    let programs = disk.programs().into_iter();
    let found = programs.filter(|(_, found)| *found == is_whole);
    found.map(|(path, _)| path).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Publisher;
    use super::super::cache::{BlockCache, CacheOptions, MemoryStorage};
    use super::super::disk::notes;
    use super::super::prefetch::UnreportedStart;
    use super::*;
    use crate::block::BlockHash;
    use crate::manifest::{self, KeyPair, Manifest, Node};
    use std::net::TcpListener;

    #[test]
    fn a_cache_that_has_lost_its_manifest_says_so() {
        let (pair, _) = KeyPair::generate().unwrap();
        let mut settings = Settings::new("127.0.0.1:1", Publisher::Key(pair.public()));
        settings.start_wait = Duration::from_millis(10);
        let storage = Box::new(MemoryStorage::default());
        let cache = BlockCache::open(storage, &CacheOptions::default()).unwrap();
        let block: Arc<[u8]> = Arc::from([7; 100]);
        cache.put(&BlockHash::of(&block), &block);
        cache.flush();
        let cache = Arc::new(cache);
        settings.cache = Some(Arc::clone(&cache) as _);
        let refused = || match Device::start(settings.clone()).err() {
            Some(DeviceError::NoServerNorCache { cache, .. }) => cache,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(), "1 block, and no manifest of this server");
        let seen = notes::Seen {
            publisher: pair.public(),
            version: 1,
            manifest: None,
        };
        notes::set_seen(None, Some(&*cache), &settings.server, &seen).unwrap();
        assert_eq!(refused(), open::MANIFEST_DAMAGED);
    }

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
        // No server listens at the first address, so the device starts from its cache.
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
        let link = crate::link::connect(&Transport::link_settings(&there)).unwrap();
        let reader = &device.reader;
        reader.prefetch.keep_unreported(UnreportedStart {
            file: FileId(0),
            blocks: Vec::new(),
            is_exact: true,
        });
        let connection = reader.transport.up(link.control.clone());
        connection.close();
        reader.connected(&connection);
        assert_eq!(reader.prefetch.unreported(), 1);
        device.stop();
    }
}
