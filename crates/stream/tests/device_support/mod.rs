//! A tree in memory, a server that follows a script, a page cache and a cache in memory.
#![allow(dead_code)]

use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use stream::block::block_bytes;
use stream::device::{
    Cache, CacheCounters, CacheError, Device, Pages, Publisher, Reason, Settings,
};
use stream::group::{Group, GroupAt, split};
use stream::manifest::{KeyPair, Kind, Manifest, Name, Node, PublicKey, sign};
use stream::wire::{Answer, FrameReader, PROTOCOL_VERSION, Request, pack_blocks};
use stream::{BLOCK_BYTES, BlockAt, BlockHash, FileId, HashList, SEGMENT_BLOCKS, Token};

/// The number of rounds to wait for an event that must come.
const PATIENCE_ROUNDS: u32 = 10_000;

pub fn at(file: u32, index: u32) -> BlockAt {
    BlockAt {
        file: FileId(file),
        index,
    }
}

/// Waits until a condition holds.
pub fn wait_until(mut is_so: impl FnMut() -> bool) {
    for _ in 0..PATIENCE_ROUNDS {
        if is_so() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("it never came to that");
}

/// Two files, 1 and 2, in a root.
#[derive(Clone)]
pub struct Tree {
    pub files: Vec<Vec<u8>>,
    groups: Vec<Vec<Group>>,
    pub publisher: PublicKey,
    pub manifest: Manifest,
    pub signed: Vec<u8>,
    key: Arc<Vec<u8>>,
}

impl Tree {
    pub fn usual() -> Self {
        Self::of(vec![
            super::common::bytes(70 * BLOCK_BYTES + 100, 1),
            super::common::bytes(64 * BLOCK_BYTES, 2),
        ])
    }

    /// Builds a tree of these files, numbered from 1.
    pub fn of(files: Vec<Vec<u8>>) -> Self {
        let node = |kind| Node {
            kind,
            mode: 0o755,
            user: 0,
            group: 0,
            modified_s: 0,
            modified_ns: 0,
        };
        let mut nodes = vec![node(Kind::Directory)];
        let mut names = Vec::new();
        for (place, file) in files.iter().enumerate() {
            nodes.push(node(Kind::File {
                size_bytes: file.len() as u64,
                content: list(file).content(),
            }));
            names.push(Name {
                directory: FileId(0),
                name: format!("file-{}", place + 1).into_bytes().into(),
                node: FileId(place as u32 + 1),
            });
        }
        let (pair, key) = KeyPair::generate().unwrap();
        let groups = |file: &Vec<u8>| split(&list(file), &list(file).content()).unwrap();
        let mut tree = Self {
            groups: files.iter().map(groups).collect(),
            files,
            publisher: pair.public(),
            manifest: Manifest {
                version: 1,
                nodes,
                names,
            },
            signed: Vec::new(),
            key: Arc::new(key),
        };
        tree.set_version(1);
        tree
    }

    pub fn set_version(&mut self, version: u64) {
        self.manifest.version = version;
        let pair = KeyPair::from_pkcs8(&self.key).unwrap();
        self.signed = sign(&self.manifest.encode(), &pair);
    }

    /// Gives a file other bytes, in the next version.
    pub fn set_file(&mut self, file: FileId, bytes: Vec<u8>) {
        let (at, hashes) = (file.0 as usize, list(&bytes));
        let content = hashes.content();
        self.manifest.nodes[at].kind = Kind::File {
            size_bytes: bytes.len() as u64,
            content,
        };
        self.groups[at - 1] = split(&hashes, &content).unwrap();
        self.files[at - 1] = bytes;
        self.set_version(self.manifest.version + 1);
    }

    /// Returns all blocks, file by file.
    pub fn all(&self) -> Vec<BlockAt> {
        (1..=self.files.len() as u32)
            .flat_map(|file| (0..self.manifest.blocks(FileId(file))).map(move |i| at(file, i)))
            .collect()
    }

    pub fn block(&self, at: BlockAt) -> Vec<u8> {
        let file = &self.files[at.file.0 as usize - 1];
        let start = at.index as usize * BLOCK_BYTES;
        file[start..start + block_bytes(file.len() as u64, at.index)].to_vec()
    }

    pub fn group(&self, at: GroupAt) -> Group {
        self.groups[at.file.0 as usize - 1][at.group as usize].clone()
    }
}

fn list(bytes: &[u8]) -> HashList {
    HashList(bytes.chunks(BLOCK_BYTES).map(BlockHash::of).collect())
}

/// What to do after the script has seen a request.
pub enum Flow {
    /// Answer like a server that has learned nothing.
    Usual,
    /// The script has answered, or there is no answer.
    Done,
    /// Close the connection.
    Close,
}

type Script = Arc<dyn Fn(&mut Peer, &Request) -> Flow + Send + Sync>;

/// The server's end of a connection.
pub struct Peer {
    pub tree: Tree,
    stream: TcpStream,
    proved: HashSet<GroupAt>,
}

impl Peer {
    pub fn send(&mut self, answer: &Answer) {
        let mut bytes = Vec::new();
        answer.encode(&mut bytes);
        self.send_raw(&bytes);
    }

    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.try_send_raw(bytes);
    }

    /// Sends raw bytes. Returns whether the device still accepts them.
    pub fn try_send_raw(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Sends the group of hashes of a block, once for each connection.
    pub fn prove(&mut self, at: BlockAt) {
        let at = GroupAt::from(at);
        if self.proved.insert(at) {
            let group = self.tree.group(at);
            self.send(&Answer::Group { at, group });
        }
    }

    pub fn encode_blocks(&self, id: u32, blocks: &[BlockAt], bytes: &[Vec<u8>]) -> Vec<u8> {
        self.encode(id, Token([0; 16]), blocks, bytes)
    }

    fn encode(&self, id: u32, token: Token, blocks: &[BlockAt], bytes: &[Vec<u8>]) -> Vec<u8> {
        let slices: Vec<&[u8]> = bytes.iter().map(|bytes| &bytes[..]).collect();
        let mut encoded = Vec::new();
        Answer::Blocks {
            id,
            token,
            blocks: blocks.to_vec(),
            compressed: pack_blocks(&slices, 1).unwrap(),
        }
        .encode(&mut encoded);
        encoded
    }

    pub fn send_blocks(&mut self, id: u32, blocks: &[BlockAt], bytes: &[Vec<u8>]) {
        let encoded = self.encode_blocks(id, blocks, bytes);
        self.send_raw(&encoded);
    }

    /// Sends the correct blocks.
    fn blocks(&mut self, id: u32, token: Token, blocks: &[BlockAt]) {
        for at in blocks {
            self.prove(*at);
        }
        for blocks in blocks.chunks(SEGMENT_BLOCKS as usize) {
            let bytes: Vec<Vec<u8>> = blocks.iter().map(|at| self.tree.block(*at)).collect();
            let encoded = self.encode(id, token, blocks, &bytes);
            self.send_raw(&encoded);
        }
    }

    fn usual(&mut self, request: &Request) {
        match request {
            Request::Hello {
                manifest_held: held,
                ..
            } => {
                let signed = self.tree.signed.clone();
                let is_held = *held == Some(*blake3::hash(&signed).as_bytes());
                self.send(&Answer::Welcome {
                    protocol: PROTOCOL_VERSION,
                    version: self.tree.manifest.version,
                    manifest_bytes: if is_held { 0 } else { signed.len() as u64 },
                });
                if !is_held {
                    let half = signed.len() / 2;
                    for (offset, bytes) in [(0, &signed[..half]), (half, &signed[half..])] {
                        self.send(&Answer::Manifest {
                            offset: offset as u64,
                            bytes: bytes.to_vec(),
                        });
                    }
                }
            }
            Request::Begin { token, .. } => self.send(&Answer::Begun {
                token: *token,
                blocks: 0,
                is_audit: false,
            }),
            Request::Read { id, at, around, .. } => {
                let run = (at.index / SEGMENT_BLOCKS + 1) * SEGMENT_BLOCKS;
                let end = self.tree.manifest.blocks(at.file).min(run);
                let blocks: Vec<BlockAt> = (at.index..end.min(at.index + 1 + u32::from(*around)))
                    .map(|index| BlockAt { index, ..*at })
                    .collect();
                self.blocks(*id, Token([0; 16]), &blocks);
            }
            Request::Fetch { id, blocks } => {
                self.blocks(*id, Token([0; 16]), blocks);
                self.send(&Answer::Fetched { id: *id });
            }
            Request::AskGroups { groups } => {
                for at in groups {
                    let group = self.tree.group(*at);
                    self.send(&Answer::Group { at: *at, group });
                }
            }
            Request::AskPlan { id, .. } => self.send(&Answer::Plan {
                id: *id,
                has_more: false,
                blocks: Vec::new(),
            }),
            Request::Ping { id } => self.send(&Answer::Pong { id: *id }),
            Request::Trace { .. } | Request::End { .. } | Request::AskHashes { .. } => {}
        }
    }
}

/// Returns the script of a server that has this plan for every task.
pub fn learned(plan: Vec<BlockAt>, is_audit: bool) -> impl Fn(&mut Peer, &Request) -> Flow {
    let begun = Mutex::new(None);
    move |peer, request| match request {
        Request::Begin { token, held, .. } => {
            let left: Vec<BlockAt> = plan.iter().filter(|at| !held.has(**at)).copied().collect();
            peer.send(&Answer::Begun {
                token: *token,
                blocks: left.len() as u32,
                is_audit,
            });
            *begun.lock().unwrap() = Some((*token, left));
            Flow::Done
        }
        // Prefetched blocks follow the plan.
        Request::AskPlan { id, .. } => {
            peer.send(&Answer::Plan {
                id: *id,
                has_more: false,
                blocks: plan.clone(),
            });
            if let Some((token, left)) = begun.lock().unwrap().take() {
                peer.blocks(0, token, &left);
                peer.send(&Answer::PrefetchDone {
                    token,
                    was_stopped: false,
                });
            }
            Flow::Done
        }
        _ => Flow::Usual,
    }
}

#[derive(Default)]
struct Shared {
    seen: Mutex<Vec<Request>>,
    streams: Mutex<Vec<TcpStream>>,
    reads: Mutex<HashMap<usize, u64>>,
    tree: Mutex<Option<Tree>>,
    is_stopped: AtomicBool,
}

/// A scripted server.
pub struct Fake {
    pub address: String,
    pub tree: Tree,
    shared: Arc<Shared>,
    script: Script,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    pub fn start(
        tree: Tree,
        script: impl Fn(&mut Peer, &Request) -> Flow + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut fake = Self {
            address: listener.local_addr().unwrap().to_string(),
            shared: Arc::default(),
            script: Arc::new(script),
            tree,
            thread: None,
        };
        fake.serve(listener);
        fake
    }

    fn serve(&mut self, listener: TcpListener) {
        let (shared, script) = (Arc::clone(&self.shared), Arc::clone(&self.script));
        shared.is_stopped.store(false, Ordering::SeqCst);
        shared
            .tree
            .lock()
            .unwrap()
            .get_or_insert_with(|| self.tree.clone());
        self.thread = Some(thread::spawn(move || {
            let mut threads = Vec::new();
            for (number, stream) in listener.incoming().flatten().enumerate() {
                if shared.is_stopped.load(Ordering::SeqCst) {
                    break;
                }
                stream.set_nodelay(true).unwrap();
                let again = stream.try_clone().unwrap();
                shared.streams.lock().unwrap().push(again);
                let (shared, script) = (Arc::clone(&shared), Arc::clone(&script));
                threads.push(thread::spawn(move || {
                    connection(number, stream, &shared, &script);
                }));
            }
            for thread in threads {
                thread.join().unwrap();
            }
        }));
    }

    /// Stops the server abruptly, like a kill.
    pub fn stop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        TcpStream::connect(&self.address).ok();
        // The accepting thread may still add a stream.
        while !thread.is_finished() {
            for stream in self.shared.streams.lock().unwrap().drain(..) {
                stream.shutdown(Shutdown::Both).ok();
            }
            thread::sleep(Duration::from_millis(1));
        }
        thread.join().unwrap();
    }

    /// Starts the server again at the same address.
    pub fn again(&mut self) {
        let listener = TcpListener::bind(&self.address).unwrap();
        self.serve(listener);
    }

    pub fn seen(&self) -> Vec<Request> {
        self.shared.seen.lock().unwrap().clone()
    }

    pub fn wait_for(&self, is_so: impl Fn(&[Request]) -> bool) {
        wait_until(|| is_so(&self.shared.seen.lock().unwrap()));
    }

    pub fn reads_of_connections(&self) -> Vec<u64> {
        self.shared
            .reads
            .lock()
            .unwrap()
            .values()
            .copied()
            .collect()
    }

    pub fn set_version(&self, version: u64) {
        let mut tree = self.shared.tree.lock().unwrap();
        tree.as_mut().unwrap().set_version(version);
    }

    /// Serves the next version from now on, in which a file has other bytes.
    pub fn set_file(&self, file: FileId, bytes: Vec<u8>) {
        let mut tree = self.shared.tree.lock().unwrap();
        tree.as_mut().unwrap().set_file(file, bytes);
    }

    /// Serves another tree under the same version from now on.
    pub fn set_other_tree(&self) {
        let mut tree = self.shared.tree.lock().unwrap();
        let tree = tree.as_mut().unwrap();
        tree.manifest.nodes[1].modified_s += 1;
        tree.set_version(tree.manifest.version);
    }

    /// Signs with another publisher's key from now on.
    pub fn set_publisher(&self) {
        let mut tree = self.shared.tree.lock().unwrap();
        let tree = tree.as_mut().unwrap();
        tree.key = Arc::new(KeyPair::generate().unwrap().1);
        tree.set_version(tree.manifest.version);
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop();
    }
}

fn connection(number: usize, stream: TcpStream, shared: &Shared, script: &Script) {
    let mut peer = Peer {
        tree: shared.tree.lock().unwrap().clone().unwrap(),
        stream: stream.try_clone().unwrap(),
        proved: HashSet::new(),
    };
    let mut frames = FrameReader::for_requests();
    loop {
        while let Ok(Some(frame)) = frames.next() {
            let request = Request::decode(frame.kind, frame.version, frame.payload).unwrap();
            if matches!(request, Request::Read { .. }) {
                *shared.reads.lock().unwrap().entry(number).or_default() += 1;
            }
            shared.seen.lock().unwrap().push(request.clone());
            match script(&mut peer, &request) {
                Flow::Usual => peer.usual(&request),
                Flow::Done => {}
                Flow::Close => {
                    stream.shutdown(Shutdown::Both).ok();
                    return;
                }
            }
        }
        match (&stream).read(frames.space()) {
            Ok(count) if count > 0 => frames.advance(count),
            _ => return,
        }
    }
}

/// A page cache.
#[derive(Default)]
pub struct PageCache {
    pub blocks: Mutex<HashMap<BlockAt, Vec<u8>>>,
    pub stores: AtomicUsize,
    pub refuses: AtomicBool,
}

impl Pages for PageCache {
    fn store(&self, file: FileId, first: u32, bytes: &[u8]) -> bool {
        self.stores.fetch_add(1, Ordering::Relaxed);
        if self.refuses.load(Ordering::Relaxed) {
            return false;
        }
        let mut blocks = self.blocks.lock().unwrap();
        for (index, block) in (first..).zip(bytes.chunks(BLOCK_BYTES)) {
            blocks.insert(BlockAt { file, index }, block.to_vec());
        }
        true
    }

    fn resident(&self, file: FileId, count: u32) -> Option<Vec<bool>> {
        let blocks = self.blocks.lock().unwrap();
        let is_there = |index| blocks.contains_key(&BlockAt { file, index });
        Some((0..count).map(is_there).collect())
    }
}

/// A cache that keeps everything.
#[derive(Default)]
pub struct MemoryCache {
    blocks: Mutex<HashMap<BlockHash, Arc<[u8]>>>,
    notes: Mutex<HashMap<String, Vec<u8>>>,
    pub expected: AtomicU64,
}

impl MemoryCache {
    pub fn has_note(&self, beginning: &str) -> bool {
        let notes = self.notes.lock().unwrap();
        notes.keys().any(|name| name.starts_with(beginning))
    }

    pub fn forget_notes(&self, beginning: &str) {
        let mut notes = self.notes.lock().unwrap();
        notes.retain(|name, _| !name.starts_with(beginning));
    }

    pub fn holds(&self, bytes: &[u8]) -> bool {
        self.has(&BlockHash::of(bytes))
    }
}

impl Cache for MemoryCache {
    fn get(&self, hash: &BlockHash, bytes: usize) -> Option<Arc<[u8]>> {
        let blocks = self.blocks.lock().unwrap();
        blocks
            .get(hash)
            .filter(|block| block.len() == bytes)
            .cloned()
    }

    fn has(&self, hash: &BlockHash) -> bool {
        self.blocks.lock().unwrap().contains_key(hash)
    }

    fn put(&self, hash: &BlockHash, bytes: &Arc<[u8]>) {
        self.blocks.lock().unwrap().insert(*hash, Arc::clone(bytes));
    }

    fn expect(&self, hashes: &[BlockHash]) {
        self.expected
            .fetch_add(hashes.len() as u64, Ordering::Relaxed);
    }

    fn note(&self, name: &str) -> Option<Vec<u8>> {
        self.notes.lock().unwrap().get(name).cloned()
    }

    fn set_note(&self, name: &str, bytes: &[u8]) -> Result<(), CacheError> {
        self.notes
            .lock()
            .unwrap()
            .insert(name.to_owned(), bytes.to_vec());
        Ok(())
    }

    fn counters(&self) -> CacheCounters {
        CacheCounters::default()
    }

    fn flush(&self) {}
}

pub fn settings(fake: &Fake) -> Settings {
    let mut settings = Settings::new(&fake.address, Publisher::Key(fake.tree.publisher));
    settings.deadline = Duration::from_secs(6);
    settings.quarantine = Duration::from_millis(20);
    settings
}

pub fn rejected(device: &Device, reason: Reason) -> u64 {
    device.counters().rejected[reason as usize]
}

/// Reads all of these blocks and compares each with the tree.
pub fn read_all(device: &Device, tree: &Tree, blocks: &[BlockAt]) {
    for at in blocks {
        let bytes = device.read(None, *at).unwrap();
        assert_eq!(bytes[..], *tree.block(*at), "{at:?}");
    }
}

/// The first two answers to a read are `wrong`; all others are correct. The device must still get the blocks.
pub fn survives(tree: Tree, reason: Reason, wrong: fn(&mut Peer, u32, BlockAt)) {
    let told = Mutex::new(0);
    let fake = Fake::start(tree, move |peer, request| match request {
        Request::Read { id, at, .. } => {
            let mut told = told.lock().unwrap();
            *told += 1;
            if *told > 2 {
                return Flow::Usual;
            }
            drop(told);
            wrong(peer, *id, *at);
            Flow::Done
        }
        _ => Flow::Usual,
    });
    let device = Device::start(settings(&fake)).unwrap();
    read_all(&device, &fake.tree, &fake.tree.all());
    let counters = device.counters();
    assert!(
        counters.rejected[reason as usize] >= 1,
        "{reason:?} {counters:?}"
    );
}
