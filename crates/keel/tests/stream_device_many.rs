//! Many devices start the same learned task at once, one of them on a line that is stalled for a time. They are 50, or
//! the number given by `KEEL_STREAM_DEVICES` in `make soak`.

use crate::common::TempDir;
use crate::stream_common;
use crate::stream_common::proxy::{Fault, Proxy};
use crate::stream_common::{Server, publish, wait_learned};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use stream::block::block_bytes;
use stream::device::{Counters, Device, Publisher, Settings};
use stream::{BLOCK_BYTES, BlockAt};

const DEVICES: u64 = 50;

const PROGRAM_BLOCKS: usize = 200;

/// Size of its last block, in bytes.
const LAST_BYTES: usize = 1_234;

const LIBRARY_BLOCKS: usize = 150;

/// Returns the blocks that a start reads: parts of two files, not in sequence.
fn needed() -> Vec<(&'static str, u32)> {
    let program = (0..60).map(|at| ("bin/program", at * 17 % (PROGRAM_BLOCKS as u32 + 1)));
    let library = (0..60).map(|at| ("lib/library", at * 7 % LIBRARY_BLOCKS as u32));
    let mut needed: Vec<_> = program.zip(library).flat_map(|(a, b)| [a, b]).collect();
    needed.push(("bin/program", PROGRAM_BLOCKS as u32));
    needed
}

fn device(server: SocketAddr) -> Device {
    let mut settings = Settings::new(&server.to_string(), Publisher::FirstSeen);
    settings.deadline = Duration::from_secs(60);
    settings.start_wait = Duration::from_secs(60);
    Device::start(settings).unwrap()
}

/// Runs the task; each block must equal that of the tree.
fn run(device: &Device, tree: &Path) -> Counters {
    let manifest = device.manifest();
    let task = manifest.find(b"bin/program").unwrap();
    let token = device.begin(task);
    for (path, index) in needed() {
        let file = manifest.find(path.as_bytes()).unwrap();
        let read = device.read(Some(token), BlockAt { file, index });
        let read = read.unwrap_or_else(|error| panic!("block {index} of {path}: {error}"));
        let whole = std::fs::read(tree.join(path)).unwrap();
        let start = index as usize * BLOCK_BYTES;
        let end = start + block_bytes(whole.len() as u64, index);
        assert!(
            *read == whole[start..end],
            "block {index} of {path} differs"
        );
    }
    device.end(token, true);
    device.counters()
}

#[test]
fn many_devices_start_at_once_and_one_of_them_is_slow() {
    let devices = stream_common::longer("KEEL_STREAM_DEVICES", DEVICES) as usize;
    let dir = TempDir::new();
    let tree = dir.file("tree");
    for (name, bytes) in [
        ("bin/program", PROGRAM_BLOCKS * BLOCK_BYTES + LAST_BYTES),
        ("lib/library", LIBRARY_BLOCKS * BLOCK_BYTES),
    ] {
        std::fs::create_dir_all(tree.join(name).parent().unwrap()).unwrap();
        let content = stream_common::bytes_of(bytes as u32, bytes);
        std::fs::write(tree.join(name), content).unwrap();
    }
    let store = publish(&dir);
    let server = Server::start(&store, &[]);
    let proxy = Proxy::start(server.address);
    let first = device(server.address);
    run(&first, &tree);
    first.stop();
    wait_learned(&store, 1);
    let (begin, done) = (Barrier::new(devices), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let (begin, done, tree, proxy) = (&begin, &done, &tree, &proxy);
        // Nothing arrives after the beginning of its plan until all other devices are done.
        let slow = scope.spawn(move || {
            let device = device(proxy.address);
            proxy.set(Fault::StallAfter(10_000));
            begin.wait();
            let counters = run(&device, tree);
            assert_eq!(done.load(Ordering::SeqCst), devices - 1);
            counters
        });
        let quick: Vec<_> = (1..devices)
            .map(|_| {
                scope.spawn(move || {
                    let device = device(server.address);
                    begin.wait();
                    let counters = run(&device, tree);
                    done.fetch_add(1, Ordering::SeqCst);
                    counters
                })
            })
            .collect();
        let mut all: Vec<Counters> = quick.into_iter().map(|run| run.join().unwrap()).collect();
        proxy.set(Fault::None);
        all.push(slow.join().unwrap());
        for counters in &all {
            assert_eq!(
                (counters.reads_late, counters.reads_failed),
                (0, 0),
                "{counters:?}"
            );
            assert_eq!(
                (counters.rejected_all, counters.refused),
                (0, 0),
                "{counters:?}"
            );
        }
        // Learned blocks are sent to each device.
        let pushed = all.iter().filter(|counters| counters.pushed > 0).count();
        assert_eq!(pushed, devices);
    });
}
