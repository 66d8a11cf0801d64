//! A server in a thread, and a device that only does what a test tells it to do.
#![allow(dead_code)]

pub(crate) use crate::common;

use common::Scratch;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use stream::block::block_bytes;
use stream::group::{Group, GroupAt};
use stream::manifest::Manifest;
use stream::publish::{PackOptions, pack, publisher};
use stream::server::{Server, Settings, Watch};
use stream::tls::device_config;
use stream::wire::{Answer, FrameReader, HeldBlocks, PROTOCOL_VERSION, Refusal, Request, unpack};
use stream::{BlockAt, BlockHash, FileId, Token};
use tokio::sync::oneshot;

/// The maximum time that a test waits: a longer wait means a fault.
const PATIENCE: Duration = Duration::from_secs(20);

/// Publishes the tree of a folder into its store, and returns the version.
pub fn publish(scratch: &Scratch) -> u64 {
    let (tree, store) = (scratch.path("tree"), scratch.path("store"));
    let report = pack(&tree, &store, &PackOptions::default(), &mut |_| {});
    report.unwrap().version
}

/// Publishes a tree with a program of 200 blocks and a library of 300 blocks.
pub fn published(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
    common::write(&scratch.path("tree/bin/task"), 200 * 4096 - 7, 1);
    common::write(&scratch.path("tree/bin/other"), 40 * 4096, 2);
    common::write(&scratch.path("tree/lib/lib.so"), 300 * 4096, 3);
    publish(&scratch);
    scratch
}

/// Returns settings without TLS and with any port.
pub fn settings(scratch: &Scratch) -> Settings {
    let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let mut settings = Settings::new(scratch.path("store"), address);
    // Only tests of recompression enable it, because it uses a processor for a while.
    settings.bundle_level = 0;
    settings
}

/// A server that runs until it is ended or dropped.
pub struct Running {
    pub address: SocketAddr,
    pub metrics: Option<SocketAddr>,
    pub watch: Watch,
    pub said: Arc<Mutex<Vec<String>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub fn start(mut settings: Settings) -> Self {
        let said = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&said);
        settings.say = Arc::new(move |line| lines.lock().unwrap().push(line.to_owned()));
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .max_blocking_threads(2)
                .build()
                .unwrap();
            runtime.block_on(async {
                let server = Server::bind(settings).await.unwrap();
                let address = server.address().unwrap();
                ready
                    .send((address, server.metrics_address(), server.watch()))
                    .unwrap();
                let stopped = async {
                    stopped.await.ok();
                };
                server.run(stopped).await.unwrap();
            });
        });
        let (address, metrics, watch) = is_ready.recv().unwrap();
        Self {
            address,
            metrics,
            watch,
            said,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Ends the server in order.
    pub fn end(mut self) {
        self.finish();
    }

    fn finish(&mut self) {
        if let Some(stop) = self.stop.take() {
            stop.send(()).ok();
        }
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Waits until a condition holds.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("never: {what}");
}

/// A device that a test controls.
pub struct Device {
    pub socket: TcpStream,
    tls: Option<rustls::ClientConnection>,
    frames: FrameReader,
    pub manifest: Arc<Manifest>,
    pub version: u64,
    groups: HashMap<GroupAt, Group>,
    /// The numbers of received messages with proofs, and of bytes of hashes and proofs.
    pub proofs: (usize, usize),
}

/// Blocks as they were received.
#[derive(Debug, PartialEq, Eq)]
pub struct Came {
    pub id: u32,
    pub token: Token,
    pub blocks: Vec<BlockAt>,
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

pub fn frame(request: &Request) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    bytes
}

pub fn hello(number: u8, version: Option<u64>) -> Request {
    Request::Hello {
        protocol: PROTOCOL_VERSION,
        device: [number; 16],
        version,
        manifest_held: None,
    }
}

pub fn token(number: u8) -> Token {
    Token([number; 16])
}

impl Device {
    /// Connects and receives the manifest of the newest version.
    pub fn new(running: &Running, scratch: &Scratch, number: u8) -> Self {
        Self::greet(running.address, &scratch.path("store"), number, None).unwrap()
    }

    /// Like [`Self::new`], with the identity in a folder.
    pub fn with_tls(running: &Running, scratch: &Scratch, identity: &Path, number: u8) -> Self {
        Self::try_with_tls(running, scratch, identity, number).unwrap()
    }

    pub fn try_with_tls(
        running: &Running,
        scratch: &Scratch,
        identity: &Path,
        number: u8,
    ) -> Result<Self, Refusal> {
        let (config, name) = device_config(identity, "127.0.0.1:1").unwrap();
        let tls = rustls::ClientConnection::new(config, name).unwrap();
        let store = scratch.path("store");
        Self::greet_over(running.address, Some(tls), &store, number, None)
    }

    pub fn greet(
        address: SocketAddr,
        store: &Path,
        number: u8,
        version: Option<u64>,
    ) -> Result<Self, Refusal> {
        Self::greet_over(address, None, store, number, version)
    }

    fn greet_over(
        address: SocketAddr,
        tls: Option<rustls::ClientConnection>,
        store: &Path,
        number: u8,
        version: Option<u64>,
    ) -> Result<Self, Refusal> {
        let mut device = Self {
            socket: connect(address),
            tls,
            frames: FrameReader::for_answers(),
            manifest: Arc::new(Manifest {
                version: 0,
                nodes: Vec::new(),
                names: Vec::new(),
            }),
            version: 0,
            groups: HashMap::new(),
            proofs: (0, 0),
        };
        device.send(&hello(number, version));
        let total = match device.answer() {
            Answer::Welcome {
                version,
                manifest_bytes,
                ..
            } => {
                device.version = version;
                manifest_bytes
            }
            Answer::Refused { reason, .. } => return Err(reason),
            other => panic!("{other:?}"),
        };
        let mut signed = Vec::new();
        while (signed.len() as u64) < total {
            match device.answer() {
                Answer::Manifest { offset, bytes } => {
                    assert_eq!(offset, signed.len() as u64);
                    signed.extend_from_slice(&bytes);
                }
                other => panic!("{other:?}"),
            }
        }
        let publisher = publisher(store).unwrap();
        let manifest = stream::manifest::verify(&signed, &publisher).unwrap();
        device.manifest = Arc::new(manifest);
        Ok(device)
    }

    pub fn file(&self, path: &str) -> FileId {
        self.manifest.find(path.as_bytes()).unwrap()
    }

    pub fn at(&self, path: &str, index: u32) -> BlockAt {
        let file = self.file(path);
        BlockAt { file, index }
    }

    pub fn send(&mut self, request: &Request) {
        let bytes = frame(request);
        match &mut self.tls {
            None => self.socket.write_all(&bytes).unwrap(),
            Some(tls) => rustls::Stream::new(tls, &mut self.socket)
                .write_all(&bytes)
                .unwrap(),
        }
    }

    /// Returns the next answer; `None` if the server has closed the connection.
    pub fn next(&mut self) -> Option<Answer> {
        loop {
            if let Some(frame) = self.frames.next().unwrap() {
                return Some(Answer::decode(frame.kind, frame.version, frame.payload).unwrap());
            }
            let space = self.frames.space();
            let read = match &mut self.tls {
                None => self.socket.read(space),
                Some(tls) => rustls::Stream::new(tls, &mut self.socket).read(space),
            };
            match read {
                Ok(0) => return None,
                Ok(count) => self.frames.advance(count),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub fn answer(&mut self) -> Answer {
        self.next().expect("the server has closed the connection")
    }

    /// Returns the next answer that is not a list of hashes. Stores the hashes, and verifies blocks.
    pub fn checked(&mut self) -> Answer {
        loop {
            match self.answer() {
                Answer::Group { at, group } => self.prove(at, group),
                Answer::Blocks {
                    id,
                    token,
                    blocks,
                    compressed,
                } => {
                    self.verify(&blocks, &compressed);
                    return Answer::Blocks {
                        id,
                        token,
                        blocks,
                        compressed,
                    };
                }
                other => return other,
            }
        }
    }

    fn prove(&mut self, at: GroupAt, group: Group) {
        let (_, content) = self.manifest.file(at.file).unwrap();
        assert!(group.is_of(&content, self.manifest.blocks(at.file), at.group));
        self.proofs.0 += 1;
        self.proofs.1 += 32 * (group.hashes.len() + group.proof.len());
        self.groups.insert(at, group);
    }

    fn verify(&self, blocks: &[BlockAt], compressed: &[u8]) {
        let sizes: Vec<usize> = blocks
            .iter()
            .map(|at| block_bytes(self.manifest.file(at.file).unwrap().0, at.index))
            .collect();
        let bytes = unpack(compressed, &sizes).unwrap();
        let mut rest = &bytes[..];
        for (at, size) in blocks.iter().zip(&sizes) {
            let (block, behind) = rest.split_at(*size);
            let group = self.groups.get(&GroupAt::from(*at));
            let group = group.expect("hashes come first");
            assert_eq!(Some(BlockHash::of(block)), group.get(at.index));
            rest = behind;
        }
    }

    /// Returns the next blocks.
    pub fn blocks(&mut self) -> Came {
        match self.checked() {
            Answer::Blocks {
                id, token, blocks, ..
            } => Came { id, token, blocks },
            other => panic!("{other:?}"),
        }
    }

    pub fn begin(&mut self, number: u8, path: &str, held: HeldBlocks) {
        let task = self.file(path);
        self.send(&Request::Begin {
            token: token(number),
            task,
            held,
        });
    }

    /// Returns the number of prefetched blocks, and whether the start is an audit.
    pub fn begun(&mut self, number: u8) -> (u32, bool) {
        match self.checked() {
            Answer::Begun {
                token: of,
                blocks,
                is_audit,
            } => {
                assert_eq!(of, token(number));
                (blocks, is_audit)
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn ask(&mut self, id: u32, number: Option<u8>, at: BlockAt, around: u8) {
        let token = number.map(token);
        self.send(&Request::Read {
            id,
            token,
            at,
            around,
        });
    }

    /// Reads a block and waits for it. Drops prefetched blocks that arrive before.
    pub fn read(&mut self, id: u32, number: Option<u8>, at: BlockAt) {
        self.ask(id, number, at, 0);
        loop {
            if let Answer::Blocks { id: of, blocks, .. } = self.checked()
                && of == id
            {
                assert_eq!(blocks, [at]);
                return;
            }
        }
    }

    /// Returns all prefetched blocks of a task, until prefetching is done.
    pub fn prefetched(&mut self, number: u8) -> Vec<BlockAt> {
        let mut all = Vec::new();
        loop {
            match self.checked() {
                Answer::Blocks {
                    id: 0,
                    token: of,
                    blocks,
                    ..
                } => {
                    assert_eq!(of, token(number));
                    all.extend(blocks);
                }
                Answer::PrefetchDone { token: of, .. } => {
                    assert_eq!(of, token(number));
                    return all;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    pub fn trace(&mut self, number: u8, blocks: &[BlockAt]) {
        for blocks in blocks.chunks(1024) {
            self.send(&Request::Trace {
                token: token(number),
                blocks: blocks.to_vec(),
            });
        }
    }

    pub fn end(&mut self, number: u8, is_exact: bool) {
        self.send(&Request::End {
            token: token(number),
            is_exact,
            has_exited: true,
        });
        self.ping();
    }

    /// Waits until the server has handled all previous requests. Drops what arrives meanwhile.
    pub fn ping(&mut self) {
        self.send(&Request::Ping { id: 99 });
        while !matches!(self.checked(), Answer::Pong { id: 99 }) {}
    }

    /// Does one run of a task that reads these blocks, one by one. Returns the prefetched blocks.
    pub fn run(&mut self, number: u8, path: &str, blocks: &[BlockAt]) -> Vec<BlockAt> {
        self.begin(number, path, HeldBlocks::default());
        let (prefetched, _) = self.begun(number);
        let came = match prefetched {
            0 => Vec::new(),
            _ => self.prefetched(number),
        };
        for (id, at) in (1000..).zip(blocks) {
            if !came.contains(at) {
                self.read(id, Some(number), *at);
            }
        }
        self.trace(number, blocks);
        self.end(number, true);
        came
    }
}

/// Returns what the tests' task reads, in order: parts of two files.
pub fn needed(device: &Device) -> Vec<BlockAt> {
    let program = (0..80).map(|index| device.at("bin/task", index));
    let library = (20..60)
        .rev()
        .map(|index| device.at("lib/lib.so", index * 3));
    let end = (190..200).map(|index| device.at("bin/task", index));
    program.chain(library).chain(end).collect()
}
