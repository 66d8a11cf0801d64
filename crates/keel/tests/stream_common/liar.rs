//! A lying server: it forwards the answers of a real one, and changes them on the way.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stream::block::block_bytes;
use stream::manifest::Manifest;
use stream::wire::{Answer, FrameReader, PROTOCOL_VERSION, Request, pack_blocks, unpack};
use stream::{BlockAt, FileId};

/// What is sent in place of an answer.
pub enum Said {
    /// These bytes.
    Bytes(Vec<u8>),
    /// Nothing.
    Nothing,
    /// These bytes, and then the connection ends.
    Last(Vec<u8>),
}

/// A lie about an answer; `None` if the answer is forwarded unchanged.
pub type Lie = Arc<dyn Fn(&Answer) -> Option<Said> + Send + Sync>;

#[derive(Default)]
struct Shared {
    lie: Mutex<Option<Lie>>,
    /// The number of lies that remain to be told.
    left: AtomicU64,
    told: AtomicU64,
    is_over: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

/// Forwards the messages of a server until it is dropped, and lies when requested.
pub struct Liar {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl Liar {
    pub fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let theirs = Arc::clone(&shared);
        std::thread::spawn(move || {
            for device in listener.incoming().flatten() {
                if theirs.is_over.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(server) = TcpStream::connect(server) {
                    pass(&theirs, &device, &server);
                }
            }
        });
        Self { address, shared }
    }

    /// Replaces the next `count` answers to which the lie applies.
    pub fn tell(&self, lie: &Lie, count: u64) {
        *self.shared.lie.lock().unwrap() = Some(Arc::clone(lie));
        self.shared.told.store(0, Ordering::SeqCst);
        self.shared.left.store(count, Ordering::SeqCst);
    }

    /// Stops lying.
    pub fn be_honest(&self) {
        self.shared.left.store(0, Ordering::SeqCst);
    }

    /// The number of lies since the last request to lie.
    pub fn told(&self) -> u64 {
        self.shared.told.load(Ordering::SeqCst)
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        for stream in self.shared.open.lock().unwrap().drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
        TcpStream::connect(self.address).ok();
    }
}

fn pass(shared: &Arc<Shared>, device: &TcpStream, server: &TcpStream) {
    for stream in [device, server] {
        stream.set_nodelay(true).ok();
        shared
            .open
            .lock()
            .unwrap()
            .push(stream.try_clone().unwrap());
    }
    let both = || (device.try_clone().unwrap(), server.try_clone().unwrap());
    let (mut device_reads, mut server_writes) = both();
    std::thread::spawn(move || {
        std::io::copy(&mut device_reads, &mut server_writes).ok();
        server_writes.shutdown(Shutdown::Both).ok();
    });
    let (mut device_writes, mut server_reads) = both();
    let shared = Arc::clone(shared);
    std::thread::spawn(move || {
        answers(&shared, &mut server_reads, &mut device_writes);
        device_writes.shutdown(Shutdown::Both).ok();
        server_reads.shutdown(Shutdown::Both).ok();
    });
}

fn answers(shared: &Shared, server: &mut TcpStream, device: &mut TcpStream) {
    let mut frames = FrameReader::for_answers();
    loop {
        while let Some(frame) = frames.next().unwrap() {
            let answer = Answer::decode(frame.kind, frame.version, frame.payload).unwrap();
            let (bytes, is_last) = match shared.lie_about(&answer) {
                None => (said(&answer), false),
                Some(Said::Bytes(bytes)) => (bytes, false),
                Some(Said::Nothing) => (Vec::new(), false),
                Some(Said::Last(bytes)) => (bytes, true),
            };
            if device.write_all(&bytes).is_err() || is_last {
                return;
            }
        }
        match server.read(frames.space()) {
            Ok(count) if count > 0 => frames.advance(count),
            _ => return,
        }
    }
}

impl Shared {
    fn lie_about(&self, answer: &Answer) -> Option<Said> {
        let left = self.left.load(Ordering::SeqCst);
        if left == 0 {
            return None;
        }
        let lie = self.lie.lock().unwrap().clone()?;
        let said = lie(answer)?;
        self.left.store(left - 1, Ordering::SeqCst);
        self.told.fetch_add(1, Ordering::SeqCst);
        Some(said)
    }
}

/// Returns the bytes of an answer.
pub fn said(answer: &Answer) -> Vec<u8> {
    let mut bytes = Vec::new();
    answer.encode(&mut bytes);
    bytes
}

/// Returns a server's answers about its newest version: the encoded signed manifest, in as many answers as it is split
/// into, and the manifest itself.
pub fn greeting(server: SocketAddr) -> (Vec<u8>, Manifest) {
    let mut socket = TcpStream::connect(server).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut hello = Vec::new();
    Request::Hello {
        protocol: PROTOCOL_VERSION,
        device: [9; 16],
        version: None,
        manifest_held: None,
    }
    .encode(&mut hello);
    socket.write_all(&hello).unwrap();
    let mut frames = FrameReader::for_answers();
    let (mut signed, mut total) = (Vec::new(), None);
    while total.is_none_or(|total| (signed.len() as u64) < total) {
        while let Some(frame) = frames.next().unwrap() {
            match Answer::decode(frame.kind, frame.version, frame.payload).unwrap() {
                Answer::Welcome { manifest_bytes, .. } => total = Some(manifest_bytes),
                Answer::Manifest { bytes, .. } => signed.extend(bytes),
                other => panic!("{other:?}"),
            }
        }
        if total.is_none_or(|total| (signed.len() as u64) < total) {
            let count = socket.read(frames.space()).unwrap();
            assert!(count > 0, "the server has closed the connection");
            frames.advance(count);
        }
    }
    let publisher = stream::manifest::publisher(&signed).unwrap();
    let manifest = stream::manifest::verify(&signed, &publisher).unwrap();
    (signed, manifest)
}

/// Returns the single blocks of an answer.
pub fn bytes_of_blocks(manifest: &Manifest, blocks: &[BlockAt], compressed: &[u8]) -> Vec<Vec<u8>> {
    let length = |at: &BlockAt| block_bytes(manifest.file(at.file).unwrap().0, at.index);
    let lengths: Vec<usize> = blocks.iter().map(length).collect();
    let all = unpack(compressed, &lengths).unwrap();
    let mut rest = &all[..];
    let mut each = Vec::new();
    for length in lengths {
        let (block, behind) = rest.split_at(length);
        each.push(block.to_vec());
        rest = behind;
    }
    each
}

/// Returns the compressed bytes of blocks.
pub fn packed(blocks: &[Vec<u8>]) -> Vec<u8> {
    let slices: Vec<&[u8]> = blocks.iter().map(|block| &block[..]).collect();
    pack_blocks(&slices, 1).unwrap()
}

/// Returns a file of the tree by its path.
pub fn file(manifest: &Manifest, path: &str) -> FileId {
    manifest.find(path.as_bytes()).unwrap()
}
