//! A tree is published, served and read by a device. The device must read what was published, and the second start of a
//! task must need almost no requests.

use crate::common::{Scratch, options, write};
use crate::device_support::{MemoryCache, PageCache, wait_until};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use stream::block::block_bytes;
use stream::device::{Device, Publisher, Settings};
use stream::manifest::{KeyPair, PublicKey};
use stream::publish::pack;
use stream::server::{self, Server};
use stream::{BLOCK_BYTES, BlockAt, FileId, Token};
use tokio::sync::oneshot;

/// A tree, its store, and a server for it.
struct Served {
    scratch: Scratch,
    publisher: PublicKey,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    address: String,
}

impl Served {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let tree = scratch.path("tree");
        write(&tree.join("bin/program"), 300 * BLOCK_BYTES + 17, 1);
        write(&tree.join("lib/library"), 500 * BLOCK_BYTES, 2);
        write(&tree.join("data/small"), 5, 3);
        write(&tree.join("data/empty"), 0, 4);
        pack(&tree, &scratch.path("store"), &options(), &mut |_| {}).unwrap();
        let key = std::fs::read(scratch.path("store").join("publisher.key")).unwrap();
        let publisher = KeyPair::from_pkcs8(&key).unwrap().public();
        let mut served = Self {
            scratch,
            publisher,
            running: None,
            address: "127.0.0.1:0".to_owned(),
        };
        served.serve();
        served
    }

    fn store(&self) -> PathBuf {
        self.scratch.path("store")
    }

    fn serve(&mut self) {
        let mut settings = server::Settings::new(self.store(), self.address.parse().unwrap());
        settings.save_after = Duration::from_millis(10);
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let server = Server::bind(settings).await.unwrap();
                tell.send(server.address().unwrap()).unwrap();
                let shutdown = async {
                    stopped.await.ok();
                };
                server.run(shutdown).await.unwrap();
            });
        });
        self.address = told.recv().unwrap().to_string();
        self.running = Some((stop, thread));
    }

    fn stop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            stop.send(()).ok();
            thread.join().unwrap();
        }
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::new(&self.address, Publisher::Key(self.publisher));
        settings.deadline = Duration::from_secs(10);
        settings
    }

    /// Returns a block as it is in the tree.
    fn block(&self, path: &str, index: u32) -> Vec<u8> {
        let bytes = std::fs::read(self.scratch.path("tree").join(path)).unwrap();
        let start = index as usize * BLOCK_BYTES;
        bytes[start..start + block_bytes(bytes.len() as u64, index)].to_vec()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop();
    }
}

fn find(device: &Device, path: &str) -> FileId {
    device.manifest().find(path.as_bytes()).unwrap()
}

/// Returns what a start reads: some blocks of the program and of the library, with gaps.
fn needed() -> Vec<(&'static str, u32)> {
    let program = (0..100).map(|index| ("bin/program", index * 3 % 301));
    let library = (0..100).map(|index| ("lib/library", index * 13 % 500));
    program.zip(library).flat_map(|(a, b)| [a, b]).collect()
}

fn run(served: &Served, device: &Device) {
    let token = device.begin(find(device, "bin/program"));
    read(served, device, token);
    device.end(token, true);
}

fn read(served: &Served, device: &Device, token: Token) {
    for (path, index) in needed() {
        let at = BlockAt {
            file: find(device, path),
            index,
        };
        let bytes = device.read(Some(token), at).unwrap();
        assert_eq!(bytes[..], *served.block(path, index), "{path} {index}");
    }
}

#[test]
fn all_files_equal_the_published_ones() {
    let served = Served::new("end-all");
    let device = Device::start(Settings {
        connections: 2,
        ..served.settings()
    })
    .unwrap();
    for path in ["bin/program", "lib/library", "data/small", "data/empty"] {
        let file = find(&device, path);
        for index in 0..device.manifest().blocks(file) {
            let bytes = device.read(None, BlockAt { file, index }).unwrap();
            assert_eq!(bytes[..], *served.block(path, index), "{path} {index}");
        }
    }
    assert_eq!(device.counters().rejected_all, 0);
}

#[test]
fn the_second_start_is_prefetched_the_third_after_a_restart_too() {
    let mut served = Served::new("end-learned");
    let first = Device::start(served.settings()).unwrap();
    run(&served, &first);
    let start = first.starts()[0];
    assert!(start.is_exact && start.pushed == 0, "{start:?}");
    first.stop();
    for start in 0..3 {
        if start == 2 {
            served.stop();
            served.serve();
        }
        let device = Device::start(served.settings()).unwrap();
        let token = device.begin(find(&device, "bin/program"));
        // Like a program that starts later than its plan: the needed blocks have arrived.
        wait_until(|| device.counters().pushed >= 200);
        read(&served, &device, token);
        device.end(token, true);
        let (counters, start) = (device.counters(), device.starts()[0]);
        assert!(start.round_trips <= 5, "{start:?} {counters:?}");
        assert_eq!(counters.rejected_all, 0);
        assert_eq!(counters.pushed_repeated, 0, "{counters:?}");
        device.stop();
    }
}

#[test]
fn a_prefetched_start_reads_from_the_page_cache() {
    let served = Served::new("end-pages");
    let first = Device::start(served.settings()).unwrap();
    run(&served, &first);
    drop(first);
    let mut audits = 0;
    for _ in 0..9 {
        let device = Device::start(served.settings()).unwrap();
        let pages = Arc::new(PageCache::default());
        device.set_pages(Some(Arc::clone(&pages) as _));
        let token = device.begin(find(&device, "bin/program"));
        for (path, index) in needed() {
            let at = BlockAt {
                file: find(&device, path),
                index,
            };
            // Like the kernel: nothing is stored in a page that is being read.
            let stored = pages.blocks.lock().unwrap();
            let bytes = match stored.get(&at) {
                Some(bytes) => bytes.clone(),
                None => device.read(Some(token), at).unwrap().to_vec(),
            };
            drop(stored);
            assert_eq!(bytes, served.block(path, index), "{path} {index}");
        }
        device.end(token, true);
        let start = device.starts()[0];
        audits += u32::from(start.is_audit);
        assert!(start.round_trips <= 5, "{start:?} {:?}", device.counters());
        assert!(!start.is_audit || start.unread == 0, "{start:?}");
    }
    assert!(audits >= 1);
}

#[test]
fn a_server_that_is_restarted_on_the_way_costs_no_block() {
    let mut served = Served::new("end-restart");
    let device = Device::start(served.settings()).unwrap();
    let token = device.begin(find(&device, "bin/program"));
    for (count, (path, index)) in needed().into_iter().enumerate() {
        if count % 40 == 20 {
            served.stop();
            served.serve();
        }
        let at = BlockAt {
            file: find(&device, path),
            index,
        };
        let bytes = device.read(Some(token), at).unwrap();
        assert_eq!(bytes[..], *served.block(path, index), "{path} {index}");
    }
    device.end(token, true);
}

#[test]
fn a_program_that_ran_once_runs_offline() {
    let mut served = Served::new("end-offline");
    let cache = Arc::new(MemoryCache::default());
    let settings = Settings {
        cache: Some(Arc::clone(&cache) as _),
        ..served.settings()
    };
    let device = Device::start(settings.clone()).unwrap();
    run(&served, &device);
    wait_until(|| cache.has_note("plan-"));
    device.stop();
    served.stop();
    let device = Device::start(settings).unwrap();
    run(&served, &device);
    assert_eq!(device.counters().requests, 0);
}
