//! How a device starts and how it works without a server: `Hello`, manifests, first starts, caches.

use crate::common;
use crate::common::Scratch;
use crate::device_support as support;
use crate::device_support::{Fake, Flow, MemoryCache, Tree, at, read_all, settings};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stream::device::cache::{
    BlockCache, CacheOptions, MemoryStorage, Storage, StorageError, UnusableCache,
};
use stream::device::{
    Cache, CacheError, Device, DeviceError, FailureKind, Publisher, ReadError, Settings,
};
use stream::wire::{Answer, PROTOCOL_VERSION, Refusal, Request};
use stream::{BlockAt, FileId};

#[test]
fn another_publisher_and_an_older_version_are_refused() {
    let scratch = Scratch::new("device-state");
    let state = Some(scratch.path("state"));
    let mut tree = Tree::usual();
    tree.set_version(5);
    let fake = Fake::start(tree.clone(), |_, _| Flow::Usual);
    let first_seen = |fake: &Fake| Settings {
        publisher: Publisher::FirstSeen,
        state: state.clone(),
        ..settings(fake)
    };
    drop(Device::start(first_seen(&fake)).unwrap());
    for (version, is_right) in [(4, false), (5, true), (7, true), (6, false)] {
        fake.set_version(version);
        match Device::start(first_seen(&fake)) {
            Ok(device) => assert!(is_right && device.manifest().version == version),
            Err(DeviceError::Older { found, .. }) => assert!(!is_right && found == version),
            Err(other) => panic!("{other}"),
        }
    }
    fake.set_version(7);
    drop(Device::start(first_seen(&fake)).unwrap());
    fake.set_other_tree();
    let refused = Device::start(first_seen(&fake));
    assert!(matches!(
        refused,
        Err(DeviceError::OtherTree { version: 7 })
    ));
    fake.set_version(9);
    fake.set_publisher();
    let refused = Device::start(first_seen(&fake));
    assert!(matches!(refused, Err(DeviceError::Manifest { .. })));
    let refused = Device::start(settings(&fake));
    assert!(matches!(refused, Err(DeviceError::Manifest { .. })));
}

/// An older device has noted only the version. The copy in its cache identifies that version.
#[test]
fn a_note_without_the_hash_is_completed_by_the_cache() {
    for is_kept in [true, false] {
        let scratch = Scratch::new("device-upgrade");
        let cache = Arc::new(MemoryCache::default());
        let fake = Fake::start(Tree::usual(), |_, _| Flow::Usual);
        let with_both = Settings {
            publisher: Publisher::FirstSeen,
            state: Some(scratch.path("state")),
            cache: is_kept.then(|| Arc::clone(&cache) as _),
            ..settings(&fake)
        };
        drop(Device::start(with_both.clone()).unwrap());
        let note = std::fs::read_dir(scratch.path("state"))
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
        let text = std::fs::read_to_string(&note).unwrap();
        let (older, _) = text.split_once("manifest ").unwrap();
        std::fs::write(&note, older).unwrap();
        cache.forget_notes("seen-");
        // If the note cannot be written, the existing one is enough.
        let in_the_way = note.with_extension("new");
        std::fs::create_dir(&in_the_way).unwrap();
        let device = Device::start(with_both.clone()).unwrap();
        assert!(device.counters().notes_failed > 0);
        drop(device);
        std::fs::remove_dir(in_the_way).unwrap();
        cache.forget_notes("seen-");
        fake.set_other_tree();
        let refused = Device::start(with_both.clone());
        match is_kept {
            true => assert!(matches!(
                refused,
                Err(DeviceError::OtherTree { version: 1 })
            )),
            // Nothing identifies the version; from now on the note does.
            false => {
                drop(refused.unwrap());
                fake.set_other_tree();
                let refused = Device::start(with_both);
                assert!(matches!(
                    refused,
                    Err(DeviceError::OtherTree { version: 1 })
                ));
            }
        }
    }
}

/// Without a server, the problem of the cached manifest is reported, too.
#[test]
fn a_start_from_the_cache_alone_says_why_that_has_no_use() {
    let cache = Arc::new(MemoryCache::default());
    let mut fake = Fake::start(Tree::usual(), |_, _| Flow::Usual);
    let with_cache = Settings {
        cache: Some(Arc::clone(&cache) as _),
        ..settings(&fake)
    };
    drop(Device::start(with_cache.clone()).unwrap());
    fake.stop();
    drop(Device::start(with_cache.clone()).unwrap());
    let other = Settings {
        publisher: Publisher::Key(Tree::usual().publisher),
        start_wait: Duration::ZERO,
        ..with_cache
    };
    let error = Device::start(other).err().expect("a manifest of another");
    assert!(
        matches!(error, DeviceError::NoServerNorCache { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("signed by"), "{error}");
    let unusable = Settings {
        cache: Some(Arc::new(UnusableCache::new("it is broken".to_owned()))),
        start_wait: Duration::ZERO,
        ..settings(&fake)
    };
    let error = Device::start(unusable).err().expect("no server");
    assert!(error.to_string().contains("it is broken"), "{error}");
}

/// Starts a device with a server that sends this greeting piece by piece, every 10 ms. The device must give up before
/// the greeting is complete.
fn is_given_up(greeting: impl Fn(&Tree) -> Vec<Vec<u8>> + Send + Sync + 'static) {
    let told = Arc::new(AtomicUsize::new(0));
    let total = Arc::new(AtomicUsize::new(0));
    let (now, all) = (Arc::clone(&told), Arc::clone(&total));
    let fake = Fake::start(Tree::usual(), move |peer, _| {
        let pieces = greeting(&peer.tree);
        all.store(pieces.len(), Ordering::SeqCst);
        for (count, piece) in pieces.iter().enumerate() {
            if !peer.try_send_raw(piece) {
                break;
            }
            now.store(count + 1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(10));
        }
        Flow::Close
    });
    let started = Device::start(Settings {
        deadline: Duration::from_secs(3),
        start_wait: Duration::from_millis(500),
        ..settings(&fake)
    });
    let error = started.err().expect("there is no greeting");
    assert!(matches!(error, DeviceError::NoServer(_)), "{error}");
    let (told, total) = (told.load(Ordering::SeqCst), total.load(Ordering::SeqCst));
    assert!(told > 0 && told < total, "{told} of {total}");
}

fn encoded(answer: &Answer) -> Vec<u8> {
    let mut bytes = Vec::new();
    answer.encode(&mut bytes);
    bytes
}

#[test]
fn a_greeting_that_comes_byte_by_byte_is_given_up() {
    is_given_up(|tree| {
        let welcome = encoded(&Answer::Welcome {
            protocol: PROTOCOL_VERSION,
            version: 1,
            manifest_bytes: tree.signed.len() as u64,
        });
        let manifest = encoded(&Answer::Manifest {
            offset: 0,
            bytes: vec![0; 1000],
        });
        let bytes = [welcome, manifest].concat();
        bytes.chunks(1).map(<[u8]>::to_vec).collect()
    });
}

#[test]
fn a_manifest_that_comes_byte_by_byte_is_given_up() {
    is_given_up(|_| {
        let welcome = encoded(&Answer::Welcome {
            protocol: PROTOCOL_VERSION,
            version: 1,
            manifest_bytes: 1000,
        });
        let piece = |offset| Answer::Manifest {
            offset,
            bytes: vec![0],
        };
        let pieces = (0..1000).map(|offset| encoded(&piece(offset)));
        [welcome].into_iter().chain(pieces).collect()
    });
}

#[test]
fn a_program_that_ran_once_runs_without_a_network() {
    let tree = Tree::usual();
    let needed: Vec<BlockAt> = tree.all().into_iter().step_by(2).collect();
    let mut fake = Fake::start(tree, |_, _| Flow::Usual);
    let cache = Arc::new(MemoryCache::default());
    let with_cache = Settings {
        cache: Some(Arc::clone(&cache) as _),
        around: false,
        ..settings(&fake)
    };
    let device = Device::start(with_cache.clone()).unwrap();
    let token = device.begin(FileId(1));
    for at in &needed {
        device.read(Some(token), *at).unwrap();
    }
    device.end(token, true);
    support::wait_until(|| cache.has_note("plan-"));
    device.stop();
    fake.stop();
    let device = Device::start(with_cache).unwrap();
    let token = device.begin(FileId(1));
    for at in &needed {
        assert_eq!(
            device.read(Some(token), *at).unwrap()[..],
            *fake.tree.block(*at)
        );
    }
    assert_eq!(device.counters().requests, 0);
    support::wait_until(|| cache.expected.load(Ordering::Relaxed) == needed.len() as u64);
    // A block that was never needed is missing, and its read does not hang.
    device.stop();
    assert_eq!(device.read(None, at(1, 1)).err(), Some(ReadError::Stopped));
}

/// A glimpse of a newer version must not silently cost a program its start without a network.
#[test]
fn a_newer_version_names_the_programs_that_it_leaves_behind() {
    let mut fake = Fake::start(Tree::usual(), |_, _| Flow::Usual);
    let cache = Arc::new(MemoryCache::default());
    let with_cache = Settings {
        cache: Some(Arc::clone(&cache) as _),
        around: false,
        ..settings(&fake)
    };
    let start = || Device::start(with_cache.clone()).unwrap();
    let device = start();
    assert!(device.programs_lacking().is_empty(), "nothing has run");
    let token = device.begin(FileId(1));
    for index in 0..40 {
        device.read(Some(token), at(1, index)).unwrap();
    }
    device.end(token, true);
    support::wait_until(|| cache.has_note("plan-") && cache.has_note("hashes-"));
    device.stop();
    let device = start();
    assert!(device.programs_before().is_empty() && device.programs_lacking().is_empty());
    device.stop();
    let program = [b"file-1".to_vec()];
    fake.set_file(FileId(1), common::bytes(50 * stream::BLOCK_BYTES, 9));
    let device = start();
    assert_eq!(device.manifest().version, 2);
    assert_eq!(device.programs_before(), program);
    assert_eq!(device.programs_lacking(), program);
    device.stop();
    fake.stop();
    let device = start();
    assert_eq!(device.manifest().version, 2, "no device goes back");
    assert!(device.programs_before().is_empty());
    assert_eq!(device.programs_lacking(), program);
}

#[test]
fn a_start_that_ends_without_a_server_is_told_to_the_next_one() {
    let tree = Tree::usual();
    let needed: Vec<BlockAt> = tree.all().into_iter().step_by(2).collect();
    let mut fake = Fake::start(tree, |_, _| Flow::Usual);
    let cache = Arc::new(MemoryCache::default());
    let device = Device::start(Settings {
        cache: Some(Arc::clone(&cache) as _),
        ..settings(&fake)
    })
    .unwrap();
    device.fetch(&needed, &mut |_, _| {}).unwrap();
    fake.stop();
    support::wait_until(|| !device.is_connected());
    let starts = 10;
    for start in 0..starts {
        let token = device.begin(FileId(1));
        for at in needed.iter().skip(start) {
            device.read(Some(token), *at).unwrap();
        }
        device.end(token, true);
    }
    let ends = |seen: &[Request]| {
        let is_end = |r: &&Request| {
            matches!(
                r,
                Request::End {
                    is_exact: true,
                    has_exited: true,
                    ..
                }
            )
        };
        seen.iter().filter(is_end).count()
    };
    assert_eq!(ends(&fake.seen()), 0);
    fake.again();
    fake.wait_for(|seen| ends(seen) == 8);
    assert_eq!(device.counters().told_late, 8);
    // Each report has the blocks that were read, in order, and marks them as held, so that nothing is sent for it. The
    // two oldest are forgotten.
    let mut told = 2;
    let mut held_of = None;
    for request in fake.seen() {
        match request {
            Request::Begin { held, .. } => held_of = Some(held),
            Request::Trace { blocks, .. } => {
                assert_eq!(blocks, needed[told..]);
                assert!(
                    held_of
                        .take()
                        .is_some_and(|held| blocks.iter().all(|at| held.has(*at)))
                );
                told += 1;
            }
            _ => {}
        }
    }
    assert_eq!(told, starts);
}

/// Returns the number of ends of tasks that a server was told of.
fn ends(seen: &[Request]) -> usize {
    let is_end = |request: &&Request| matches!(request, Request::End { .. });
    seen.iter().filter(is_end).count()
}

/// A program that ends with EIO has not read what it needs. A server that took it for a whole run would forget the
/// rest.
#[test]
fn a_start_that_fails_in_an_outage_is_told_to_no_server() {
    let mut fake = Fake::start(Tree::usual(), |_, _| Flow::Usual);
    let device = Device::start(Settings {
        deadline: Duration::from_secs(2),
        ..settings(&fake)
    })
    .unwrap();
    fake.stop();
    support::wait_until(|| !device.is_connected());
    let token = device.begin(FileId(1));
    assert_eq!(device.read(Some(token), at(1, 0)), Err(ReadError::Late));
    device.end(token, true);
    let start = device.starts()[0];
    assert_eq!((start.read, start.is_exact), (0, false));
    fake.again();
    support::wait_until(|| device.is_connected());
    // The next start teaches again.
    let token = device.begin(FileId(1));
    device.read(Some(token), at(1, 40)).unwrap();
    device.end(token, true);
    fake.wait_for(|seen| ends(seen) > 0);
    assert_eq!((ends(&fake.seen()), device.counters().told_late), (1, 0));
    assert_eq!(device.starts()[0].read, 1);
}

/// The server answers everything but one read, so the task has a server when its read fails.
#[test]
fn a_start_with_a_read_that_is_never_answered_has_no_end_at_the_server() {
    let fake = Fake::start(Tree::usual(), |_, request| match request {
        Request::Read { at, .. } if at.index == 7 => Flow::Done,
        _ => Flow::Usual,
    });
    let device = Device::start(Settings {
        deadline: Duration::from_secs(2),
        around: false,
        ..settings(&fake)
    })
    .unwrap();
    let token = device.begin(FileId(1));
    device.read(Some(token), at(1, 40)).unwrap();
    assert_eq!(device.read(Some(token), at(1, 7)), Err(ReadError::Late));
    device.end(token, true);
    support::wait_until(|| device.is_connected());
    let token = device.begin(FileId(1));
    device.read(Some(token), at(1, 41)).unwrap();
    device.end(token, true);
    fake.wait_for(|seen| ends(seen) > 0);
    assert_eq!(ends(&fake.seen()), 1);
    let starts = device.starts();
    assert_eq!([starts[0].read, starts[1].read], [1, 1]);
    assert!(!starts[1].is_exact);
}

/// A program that is killed while it waits has not read what it needs. A server that took it for a whole run would
/// forget the rest.
#[test]
fn a_start_that_ends_while_a_read_waits_has_no_end_at_the_server() {
    for has_exited in [true, false] {
        let fake = Fake::start(Tree::usual(), |_, request| match request {
            Request::Read { at, .. } if at.index == 7 => Flow::Done,
            _ => Flow::Usual,
        });
        let device = Device::start(Settings {
            deadline: Duration::from_secs(60),
            around: false,
            connections: 1,
            ..settings(&fake)
        })
        .unwrap();
        let token = device.begin(FileId(1));
        device.read(Some(token), at(1, 40)).unwrap();
        let waiting = {
            let device = device.clone();
            std::thread::spawn(move || device.read(Some(token), at(1, 7)))
        };
        let is_asked =
            |request: &Request| matches!(request, Request::Read { at, .. } if at.index == 7);
        fake.wait_for(|seen| seen.iter().any(is_asked));
        device.end(token, has_exited);
        assert!(!device.starts()[0].is_exact);
        // The next start teaches again. Its end is behind all that was sent before.
        let token = device.begin(FileId(1));
        device.read(Some(token), at(1, 41)).unwrap();
        device.end(token, true);
        fake.wait_for(|seen| ends(seen) > 0);
        let seen = fake.seen();
        assert_eq!(ends(&seen), 1);
        let begun = seen.iter().rev().find_map(|request| match request {
            Request::Begin { token, .. } => Some(*token),
            _ => None,
        });
        let ended = seen.iter().find_map(|request| match request {
            Request::End { token, .. } => Some(*token),
            _ => None,
        });
        assert_eq!(ended, begun);
        device.stop();
        assert_eq!(waiting.join().unwrap(), Err(ReadError::Stopped));
    }
}

#[test]
fn a_server_that_gives_no_neighbours_is_asked_for_none() {
    let fake = Fake::start(Tree::usual(), |peer, request| match request {
        Request::Read { id, at, .. } => {
            peer.prove(*at);
            let block = peer.tree.block(*at);
            peer.send_blocks(*id, &[*at], &[block]);
            Flow::Done
        }
        _ => Flow::Usual,
    });
    let device = Device::start(settings(&fake)).unwrap();
    let blocks: Vec<BlockAt> = fake.tree.all().into_iter().step_by(3).collect();
    read_all(&device, &fake.tree, &blocks);
    let mut asked = Vec::new();
    for request in fake.seen() {
        match request {
            Request::Read { around, .. } => asked.push(around),
            Request::Fetch { blocks, .. } => panic!("{blocks:?}"),
            _ => {}
        }
    }
    assert_eq!(asked.len(), blocks.len());
    assert!(
        asked[0] > 0 && asked[20..].iter().all(|around| *around == 0),
        "{asked:?}"
    );
}

#[test]
fn a_first_start_asks_for_runs_and_reports_only_read_blocks() {
    let tree = Tree::usual();
    let needed: Vec<BlockAt> = [0, 5, 1, 40, 33, 69, 6].map(|index| at(1, index)).to_vec();
    let fake = Fake::start(tree, |_, _| Flow::Usual);
    let device = Device::start(settings(&fake)).unwrap();
    let token = device.begin(FileId(1));
    // A plan may arrive until the server has answered that it has none, so the device requests nothing else before.
    fake.wait_for(|seen| seen.iter().any(|r| matches!(r, Request::AskPlan { .. })));
    device.read(None, at(2, 0)).unwrap();
    for at in &needed {
        let bytes = device.read(Some(token), *at).unwrap();
        assert_eq!(bytes[..], *fake.tree.block(*at));
    }
    device.end(token, true);
    fake.wait_for(|seen| seen.iter().any(|r| matches!(r, Request::End { .. })));
    let (mut asked, mut beside, mut told) = (Vec::new(), Vec::new(), Vec::new());
    for request in fake.seen() {
        match request {
            // A server counts a block as read if it is requested for a task.
            Request::Read {
                token: Some(_), at, ..
            } => asked.push(at),
            Request::Fetch { blocks, .. } => beside.extend(blocks),
            Request::Trace { blocks, .. } => told.extend(blocks),
            _ => {}
        }
    }
    assert_eq!(told, needed);
    assert!(asked.iter().all(|at| needed.contains(at)), "{asked:?}");
    assert!(
        asked.len() <= 4,
        "one for each run, and the first two at once: {asked:?}"
    );
    assert!(
        !beside.is_empty() && beside.iter().all(|at| !asked.contains(at)),
        "{beside:?}"
    );
    let counters = device.counters();
    assert!(
        device.starts()[0].is_exact && device.starts()[0].read == 7,
        "{counters:?}"
    );
    assert_eq!(counters.requests, asked.len() as u64 + 1);
}

#[test]
fn fetched_blocks_are_in_the_cache_despite_lost_connections() {
    let count = Mutex::new(0);
    let fake = Fake::start(Tree::usual(), move |_, request| {
        let mut count = count.lock().unwrap();
        if let Request::Fetch { .. } = request {
            *count += 1;
            if *count == 1 {
                return Flow::Close;
            }
        }
        Flow::Usual
    });
    let cache = Arc::new(MemoryCache::default());
    let device = Device::start(Settings {
        cache: Some(Arc::clone(&cache) as _),
        ..settings(&fake)
    })
    .unwrap();
    let all = fake.tree.all();
    let mut progress = Vec::new();
    device
        .fetch(&all, &mut |done, total| progress.push((done, total)))
        .unwrap();
    assert_eq!(progress.last(), Some(&(all.len() as u64, all.len() as u64)));
    for at in &all {
        assert!(cache.holds(&fake.tree.block(*at)));
    }
    assert_eq!(device.counters().staged, 0);
    read_all(&device, &fake.tree, &all);
    assert_eq!(device.counters().requests, 0);
}

/// Returns the result of a call that could wait forever, or until the deadline.
fn soon<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(run()).ok());
    told.recv_timeout(SOON).expect("it comes to an end")
}

/// Far above the normal duration, and far below the deadline.
const SOON: Duration = Duration::from_secs(60);
const FAR_DEADLINE: Duration = Duration::from_secs(1000);

#[test]
fn a_silent_server_holds_up_no_start_that_has_a_manifest() {
    let is_silent = Arc::new(AtomicBool::new(false));
    let silent = Arc::clone(&is_silent);
    let fake = Fake::start(Tree::usual(), move |_, _| {
        match silent.load(Ordering::SeqCst) {
            true => Flow::Done,
            false => Flow::Usual,
        }
    });
    let with_cache = Settings {
        cache: Some(Arc::new(MemoryCache::default()) as _),
        deadline: FAR_DEADLINE,
        start_wait: FAR_DEADLINE,
        ..settings(&fake)
    };
    drop(Device::start(with_cache.clone()).unwrap());
    is_silent.store(true, Ordering::SeqCst);
    let device = soon(move || Device::start(with_cache).unwrap());
    assert_eq!(device.manifest().version, 1);
    assert!(!device.is_connected());
    // Release all threads that wait for the server.
    is_silent.store(false, Ordering::SeqCst);
}

#[test]
fn without_a_server_missing_blocks_are_reported_without_a_wait() {
    let mut fake = Fake::start(Tree::usual(), |_, _| Flow::Usual);
    let with_cache = Settings {
        cache: Some(Arc::new(MemoryCache::default()) as _),
        deadline: FAR_DEADLINE,
        ..settings(&fake)
    };
    let device = Device::start(with_cache.clone()).unwrap();
    let all = fake.tree.all();
    device.fetch(&all[..5], &mut |_, _| {}).unwrap();
    device.stop();
    fake.stop();
    let (fetched, all) = soon(move || {
        let device = Device::start(with_cache).unwrap();
        device.fetch(&all[..5], &mut |_, _| {}).unwrap();
        (device.fetch(&all, &mut |_, _| {}), all)
    });
    let Err(DeviceError::Offline { missing }) = fetched else {
        panic!("{fetched:?}");
    };
    assert_eq!(missing, all.len() as u64 - 5);
}

#[test]
fn a_cache_that_keeps_nothing_is_not_filled_for_ever() {
    let fake = Fake::start(Tree::usual(), |_, _| Flow::Usual);
    let device = Device::start(Settings {
        cache: Some(Arc::new(UnusableCache::new("it is gone".to_owned())) as _),
        deadline: FAR_DEADLINE,
        ..settings(&fake)
    })
    .unwrap();
    assert_eq!(device.counters().notes_failed, 2, "version and manifest");
    assert_eq!(device.cache_failure().as_deref(), Some("it is gone"));
    let all = fake.tree.all();
    let read = device.clone();
    let fetched = soon(move || device.fetch(&all, &mut |_, _| {}));
    let error = fetched.unwrap_err().to_string();
    assert!(error.contains("it is gone"), "{error}");
    read_all(&read, &fake.tree, &fake.tree.all());
}

/// A storage that counts the bytes written to it.
struct Counted(MemoryStorage, Arc<AtomicU64>);

impl Storage for Counted {
    fn list(&self) -> Result<Vec<(String, u64)>, StorageError> {
        self.0.list()
    }
    fn create(&self, name: &str) -> Result<(), StorageError> {
        self.0.create(name)
    }
    fn append(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError> {
        let before = self.0.used_bytes();
        let appended = self.0.append(name, bytes);
        self.1
            .fetch_add(self.0.used_bytes() - before, Ordering::Relaxed);
        appended
    }
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        self.0.read(name, offset, into)
    }
    fn length(&self, name: &str) -> Result<u64, StorageError> {
        self.0.length(name)
    }
    fn delete(&self, name: &str) -> Result<(), StorageError> {
        self.0.delete(name)
    }
    fn sync(&self, name: &str) -> Result<(), StorageError> {
        self.0.sync(name)
    }
}

#[test]
fn a_fetch_onto_a_full_disk_stops_early_and_has_written_little() {
    const DISK_BYTES: u64 = 200_000;
    // Only zeros: all blocks are equal, and their hashes fill the disk.
    let fake = Fake::start(Tree::of(vec![vec![0; 48 << 20]]), |_, _| Flow::Usual);
    let appended = Arc::new(AtomicU64::new(0));
    let disk = Counted(MemoryStorage::new(DISK_BYTES), Arc::clone(&appended));
    let cache = BlockCache::open(Box::new(disk), &CacheOptions::default()).unwrap();
    let cache = Arc::new(cache);
    let device = Device::start(Settings {
        cache: Some(Arc::clone(&cache) as _),
        deadline: FAR_DEADLINE,
        ..settings(&fake)
    })
    .unwrap();
    let all: Vec<BlockAt> = (0..12_288).map(|index| at(1, index)).collect();
    let lists = device.lists_of(&all);
    assert!(
        lists.count == 48 && lists.bytes > 2 * DISK_BYTES,
        "{lists:?}"
    );
    let done = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&done);
    let fetching = device.clone();
    let fetched =
        soon(move || fetching.fetch(&all, &mut |done, _| told.store(done, Ordering::Relaxed)));
    let is_full = matches!(&fetched, Err(DeviceError::Cache(CacheError::Full(_))));
    assert!(is_full, "{fetched:?}");
    let done = done.load(Ordering::Relaxed);
    assert!((1..10_000).contains(&done), "{done}");
    let appended = appended.load(Ordering::Relaxed);
    assert!(appended < 4 * DISK_BYTES, "{appended}");
    assert!(cache.counters().disk_full > 0);
    // Hashes that are only in memory are useless to the next start: their blocks do not count.
    let count = |device: &Device| {
        let there = (0..12_288).filter(|index| device.is_cached(at(1, *index)));
        there.count()
    };
    let there = count(&device);
    device.stop();
    let next = Device::start(Settings {
        cache: Some(cache as _),
        ..settings(&fake)
    })
    .unwrap();
    assert_eq!((there, there > 0), (count(&next), true), "of {done}");
}

#[test]
fn sound_blocks_of_a_damaged_store_are_fetched_and_damage_is_counted() {
    let broken = |at: &BlockAt| at.file == FileId(1) && at.index / 32 == 1;
    let fake = Fake::start(Tree::usual(), move |peer, request| match request {
        Request::Fetch { id, blocks } if blocks.iter().any(broken) => {
            peer.send(&Answer::Refused {
                id: *id,
                token: None,
                reason: Refusal::Damaged,
            });
            Flow::Done
        }
        _ => Flow::Usual,
    });
    let cache = Arc::new(MemoryCache::default());
    let device = Device::start(Settings {
        cache: Some(Arc::clone(&cache) as _),
        ..settings(&fake)
    })
    .unwrap();
    let all = fake.tree.all();
    let mut last = 0;
    let fetched = device.fetch(&all, &mut |done, _| last = done);
    let is_told = matches!(fetched, Err(DeviceError::Damaged { blocks: 32 }));
    assert!(is_told, "{fetched:?}");
    assert_eq!(last, all.len() as u64);
    for at in all.iter().filter(|at| !broken(at)) {
        assert!(cache.holds(&fake.tree.block(*at)), "{at:?}");
    }
    assert!(device.counters().refused_damaged > 1);
}

#[test]
fn damage_at_the_server_is_reported_until_the_block_arrives() {
    let is_broken = Arc::new(AtomicBool::new(true));
    let broken = Arc::clone(&is_broken);
    let fake = Fake::start(Tree::usual(), move |peer, request| match request {
        Request::Read { id, at, .. } if at.index == 40 && broken.load(Ordering::SeqCst) => {
            peer.send(&Answer::Refused {
                id: *id,
                token: None,
                reason: Refusal::Damaged,
            });
            Flow::Done
        }
        _ => Flow::Usual,
    });
    let device = Device::start(Settings {
        around: false,
        ..settings(&fake)
    })
    .unwrap();
    assert_eq!(device.server_failure(), None);
    assert_eq!(device.read(None, at(1, 40)), Err(ReadError::Damaged));
    read_all(&device, &fake.tree, &[at(1, 1), at(2, 3)]);
    let failure = device.server_failure().unwrap();
    assert_eq!(failure.kind, FailureKind::Damaged);
    assert!(failure.text.contains("block 40 of "), "{failure}");
    is_broken.store(false, Ordering::SeqCst);
    read_all(&device, &fake.tree, &[at(1, 40)]);
    assert_eq!(device.server_failure(), None);
}
