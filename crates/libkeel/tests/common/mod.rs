//! The parts of a node that a client sees: a socket, and optionally a slot table in a region.

#![allow(dead_code, reason = "each test uses its part")]

use base::clock::{Clock, SystemClock};
use base::wire::{self, Decoded};
use db::TableSize;
use db::shared::SharedTable;
use db::table::{Now, SlotValue, Table};
use libkeel::whereabouts::{AT, VERSION, Whereabouts, path_beside, run_text};
use mem::{Attachment, NewInode, Region, RegionOptions};
use serde_json::Value as Json;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A temporary folder, in memory if possible.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let shared = Path::new("/dev/shm");
        let folder = match shared.is_dir() {
            true => shared.to_owned(),
            false => std::env::temp_dir(),
        };
        let path = folder.join(format!("libkeel-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn socket(&self) -> PathBuf {
        self.0.join("keel.sock")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

pub const NUMBER: &str = "boiler/celsius";
pub const TEXT: &str = "door";
pub const EMPTY: &str = "nothing/yet";

/// The table of one run, served for the lifetime of this value.
pub struct Served {
    attachment: &'static Attachment,
    shared: &'static SharedTable<'static>,
    table: Table<&'static [db::table::Line]>,
    clock: SystemClock,
}

impl Served {
    /// Creates the region if necessary and a table in it, and announces it beside the socket.
    pub fn start(folder: &Folder, run: u8) -> Self {
        let region = folder.0.join("region");
        if !region.exists() {
            let options = RegionOptions {
                capacity_bytes: 32 << 20,
                files_max: Some(100),
                lanes: 8,
            };
            let root = NewInode {
                mode: 0o040_755,
                user: 0,
                group: 0,
                now_ns: 1,
            };
            Region::create(&region, &options, &root).unwrap();
        }
        let attachment = Attachment::open(&region, AT, true).unwrap();
        let attachment: &'static Attachment = Box::leak(Box::new(attachment));
        let size = TableSize {
            objects_max: 16,
            value_bytes_max: 100,
            key_bytes_mean: 16,
        };
        let shared = SharedTable::make(attachment, "latest", size, 0o644).unwrap();
        let shared: &'static SharedTable<'static> = Box::leak(Box::new(shared));
        let table = Table::create_in(shared.lines(), size, 7).unwrap();
        for key in [NUMBER, TEXT, EMPTY] {
            table.insert(key, 60_000, true).unwrap();
        }
        let served = Self {
            attachment,
            shared,
            table,
            clock: SystemClock::new(),
        };
        served.write(NUMBER, &21.5_f64.to_le_bytes());
        served.write(TEXT, b"tclosed");
        let run = [run; 16];
        served.shared.publish(run).unwrap();
        let whereabouts = Whereabouts {
            version: VERSION,
            region: region.display().to_string(),
            table: "latest".to_owned(),
            run: run_text(run),
        };
        let text = serde_json::to_vec(&whereabouts).unwrap();
        std::fs::write(path_beside(&folder.socket()), text).unwrap();
        served
    }

    pub fn write(&self, key: &str, value: &[u8]) {
        self.write_marked(key, value, false);
    }

    pub fn write_marked(&self, key: &str, value: &[u8], retained: bool) {
        let time = db::Time::from_ms(self.clock.wall_ms());
        self.write_at(key, value, retained, time);
    }

    pub fn write_at(&self, key: &str, value: &[u8], retained: bool, time: db::Time) {
        let now = Now::of(&self.clock);
        let id = self.table.lookup(key).unwrap();
        let value = SlotValue {
            time,
            arrival_ns: now.monotonic_ns,
            boot_tag: now.boot_tag,
            wall_trusted: true,
            node_time: true,
            retained,
            value,
        };
        self.table.write(id, &value).unwrap();
    }

    /// Ends the run cleanly.
    pub fn end(self) {
        self.shared.withdraw();
        self.shared.remove();
        self.attachment.thread_ends();
    }
}

/// How a fake node answers a request: kind and payload, or not at all.
pub type Answering = dyn Fn(u16, &Json) -> Option<(u16, Json)> + Send + Sync;

/// A socket on which each request is recorded and answered.
pub struct FakeNode {
    pub requests: Receiver<(u16, Json)>,
    socket: PathBuf,
    streams: Arc<Mutex<Vec<UnixStream>>>,
}

impl FakeNode {
    pub fn start(
        folder: &Folder,
        answer: impl Fn(u16, &Json) -> Option<(u16, Json)> + Send + Sync + 'static,
    ) -> Self {
        let socket = folder.socket();
        std::fs::remove_file(&socket).ok();
        let listener = UnixListener::bind(&socket).unwrap();
        let (sender, requests) = channel();
        let answer: Arc<Answering> = Arc::new(answer);
        let streams: Arc<Mutex<Vec<UnixStream>>> = Arc::default();
        let all = Arc::clone(&streams);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let (sender, answer) = (sender.clone(), Arc::clone(&answer));
                let mut all = all.lock().unwrap();
                // No more connections are accepted.
                all.push(stream.try_clone().unwrap());
                drop(all);
                std::thread::spawn(move || serve(stream, &sender, &*answer));
            }
        });
        Self {
            requests,
            socket,
            streams,
        }
    }

    /// Closes all connections, and accepts no new one.
    pub fn stop(&self) {
        std::fs::remove_file(&self.socket).ok();
        self.hang_up();
    }

    /// Closes all connections.
    pub fn hang_up(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            stream.shutdown(std::net::Shutdown::Both).ok();
        }
    }

    /// Returns the next request of a kind; others are skipped.
    pub fn request(&self, kind: u16) -> Json {
        loop {
            let next = self.requests.recv_timeout(Duration::from_secs(60));
            let (found, message) = next.expect("a request");
            if found == kind {
                return message;
            }
        }
    }
}

fn serve(mut stream: UnixStream, sender: &Sender<(u16, Json)>, answer: &Answering) {
    let mut input = Vec::new();
    let mut bytes = [0; 65536];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(read) => input.extend_from_slice(&bytes[..read]),
        }
        while let Decoded::Frame(frame) = wire::decode(&input, 64 << 10).unwrap() {
            let kind = frame.kind;
            let message: Json = serde_json::from_slice(frame.payload).unwrap();
            let consumed = frame.consumed;
            input.drain(..consumed);
            let answered = answer(kind, &message);
            sender.send((kind, message)).ok();
            if let Some((kind, payload)) = answered {
                let payload = payload.to_string();
                let mut frame = vec![0; wire::frame_bytes(payload.len())];
                wire::encode(kind, 1, payload.as_bytes(), &mut frame).unwrap();
                if stream.write_all(&frame).is_err() {
                    return;
                }
            }
        }
    }
}

/// Waits until `done`; panics after a minute, which only prevents an endless wait.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{what} does not come"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}
