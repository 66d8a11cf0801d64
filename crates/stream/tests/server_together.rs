//! Concurrent starts of one device, runs that lose their connection, and servers that share a store.

use crate::server_support::{Device, Running, needed, published, settings, token, until};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use stream::BlockAt;
use stream::predict::Mode;
use stream::wire::{Answer, HeldBlocks, Request};

#[test]
fn two_starts_at_once_are_sent_each_block_once() {
    let scratch = published("server-two-at-once");
    let running = Running::start(settings(&scratch));
    let mut device = Device::new(&running, &scratch, 1);
    let needed = needed(&device);
    device.run(1, "bin/task", &needed);
    for number in [2, 3] {
        device.begin(number, "bin/task", HeldBlocks::default());
    }
    let (mut came, mut over) = (Vec::new(), 0);
    while over < 2 {
        match device.checked() {
            Answer::Blocks { blocks, .. } => came.extend(blocks),
            Answer::PrefetchDone { .. } => over += 1,
            Answer::Begun { is_audit, .. } => assert!(!is_audit),
            other => panic!("{other:?}"),
        }
    }
    let sorted = |mut blocks: Vec<BlockAt>| {
        blocks.sort_unstable();
        blocks
    };
    assert_eq!(sorted(came), sorted(needed.clone()));
    // A block that one of them requests is not sent to the other one either, and both claim to have shown everything.
    for number in [2, 3] {
        device.send(&Request::Trace {
            token: token(number),
            blocks: needed[..4].to_vec(),
        });
        device.send(&Request::End {
            token: token(number),
            is_exact: true,
            has_exited: true,
        });
    }
    let counters = running.watch.counters();
    // Another device, or this one later, gets all of it again: nothing was unlearned.
    let mut other = Device::new(&running, &scratch, 2);
    device.read(9, None, needed[0]);
    assert_eq!(other.run(4, "bin/task", &needed), needed);
    assert_eq!(device.run(5, "bin/task", &needed), needed);
    assert_eq!(counters.blocks_unread.load(Ordering::Relaxed), 0);
}

#[test]
fn a_lost_connection_unlearns_nothing() {
    let scratch = published("server-lost");
    let running = Running::start(settings(&scratch));
    let mut device = Device::new(&running, &scratch, 1);
    let needed = needed(&device);
    let some: Vec<BlockAt> = (30..39)
        .map(|index| device.at("bin/other", index))
        .collect();
    let all = [needed.clone(), some].concat();
    device.run(1, "bin/task", &all);
    for number in 2..6 {
        let mut lost = Device::new(&running, &scratch, number);
        lost.begin(number, "bin/task", HeldBlocks::default());
        lost.begun(number);
        lost.send(&Request::Trace {
            token: token(number),
            blocks: needed[..2].to_vec(),
        });
        lost.read(1, Some(number), needed[1]);
        drop(lost);
        until("the server has seen it", || {
            running.watch.metrics().contains("keel_stream_clients 1\n")
        });
    }
    let mut device = Device::new(&running, &scratch, 7);
    assert_eq!(device.run(7, "bin/task", &all), all);
}

#[test]
fn the_second_server_on_a_store_keeps_nothing_and_says_so() {
    let scratch = published("server-two");
    let first = Running::start(settings(&scratch));
    let second = Running::start(settings(&scratch));
    let said = second.said.lock().unwrap().join("\n");
    assert!(
        said.contains("what this server learns is not kept"),
        "{said}"
    );
    assert!(first.said.lock().unwrap().is_empty());
    let mut device = Device::new(&first, &scratch, 1);
    let needed = needed(&device);
    device.run(1, "bin/task", &needed);
    drop(device);
    // It predicts from what it has learned itself, as long as it runs.
    let mut device = Device::new(&second, &scratch, 1);
    device.run(1, "bin/other", &needed[..30]);
    assert_eq!(device.run(2, "bin/other", &needed[..30]), needed[..30]);
    drop(device);
    first.end();
    let file = scratch.path("store/actions/local.actions");
    let kept = fs::read(&file).unwrap();
    second.end();
    assert_eq!(fs::read(&file).unwrap(), kept);
    // The next one learns again.
    let third = Running::start(settings(&scratch));
    assert!(third.said.lock().unwrap().is_empty());
    let mut device = Device::new(&third, &scratch, 1);
    assert_eq!(device.run(1, "bin/task", &needed), needed);
}

#[test]
fn neighbours_come_while_an_action_is_recorded_in_mode_paper() {
    let scratch = published("server-paper-neighbours");
    let mut with = settings(&scratch);
    with.predict = Mode::Paper;
    let running = Running::start(with);
    let mut device = Device::new(&running, &scratch, 1);
    let at = |device: &Device, index| device.at("bin/task", index);
    device.begin(1, "bin/task", HeldBlocks::default());
    device.begun(1);
    device.ask(1, Some(1), at(&device, 4), 3);
    assert_eq!(device.blocks().blocks, [at(&device, 4)]);
    let around: Vec<BlockAt> = (5..8).map(|index| at(&device, index)).collect();
    assert_eq!(device.blocks().blocks, around);
    let read: Vec<BlockAt> = (4..7).map(|index| at(&device, index)).collect();
    device.send(&Request::Trace {
        token: token(1),
        blocks: read.clone(),
    });
    device.send(&Request::End {
        token: token(1),
        is_exact: true,
        has_exited: true,
    });
    // The recorded action has the blocks that were read. The next block of it is sent, and no neighbour.
    device.begin(2, "bin/task", HeldBlocks::default());
    device.begun(2);
    device.ask(2, Some(2), read[0], 9);
    assert_eq!(device.blocks().blocks, [read[0]]);
    let pushed = device.blocks();
    assert_eq!((pushed.id, pushed.blocks), (0, vec![read[1]]));
}

/// Two blocks are sent before the first match. Then follows the rest of the segment, whose length is SEG_MAX.
#[test]
fn segments_in_mode_paper_have_the_length_that_is_set() {
    for seg_max in [8, 16] {
        let scratch = published(&format!("server-seg-max-{seg_max}"));
        let mut with = settings(&scratch);
        (with.predict, with.seg_max) = (Mode::Paper, seg_max);
        let running = Running::start(with);
        let mut device = Device::new(&running, &scratch, 1);
        let read: Vec<BlockAt> = (0..30).map(|index| device.at("bin/task", index)).collect();
        device.begin(1, "bin/task", HeldBlocks::default());
        device.begun(1);
        device.ask(1, Some(1), read[0], 0);
        assert_eq!(device.blocks().blocks, [read[0]]);
        device.send(&Request::Trace {
            token: token(1),
            blocks: read.clone(),
        });
        device.send(&Request::End {
            token: token(1),
            is_exact: true,
            has_exited: true,
        });
        device.begin(2, "bin/task", HeldBlocks::default());
        device.begun(2);
        device.ask(2, Some(2), read[0], 0);
        assert_eq!(device.blocks().blocks, [read[0]]);
        assert_eq!(device.prefetched(2), [read[1]]);
        // The second match position, which was not sent before: the answer goes up to the last one, SEG_MAX - 2.
        device.ask(3, Some(2), read[2], 0);
        assert_eq!(device.blocks().blocks, [read[2]]);
        let last = seg_max as usize - 2;
        assert_eq!(device.prefetched(2), read[3..last]);
    }
}

#[test]
fn well_compressed_pieces_outlive_the_server() {
    let scratch = published("server-bundle-files");
    let start = || {
        let mut with = settings(&scratch);
        with.bundle_level = 6;
        Running::start(with)
    };
    let pieces = |running: &Running, count: usize| {
        let counters = running.watch.counters();
        until("the pieces are there", || {
            counters.bundles_improved.load(Ordering::Relaxed) == count as u64
        });
    };
    let files = || -> Vec<PathBuf> {
        let entries = fs::read_dir(scratch.path("store/bundles"));
        let entries = entries.into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let running = start();
    let mut device = Device::new(&running, &scratch, 1);
    let needed = needed(&device);
    let count = needed.len().div_ceil(32);
    device.run(1, "bin/task", &needed);
    pieces(&running, count);
    until("they are kept", || {
        files()
            .iter()
            .any(|path| path.extension() == Some("bundle".as_ref()))
    });
    drop(device);
    running.end();
    let [kept] = &files()[..] else {
        panic!("{:?}", files());
    };
    let (number, bytes) = (fs::metadata(kept).unwrap().ino(), fs::read(kept).unwrap());
    // Loaded from the disk before the first request, not compressed again.
    let running = start();
    pieces(&running, count);
    assert_eq!(fs::metadata(kept).unwrap().ino(), number);
    let mut device = Device::new(&running, &scratch, 1);
    assert_eq!(device.run(2, "bin/task", &needed), needed);
    let hits = &running.watch.counters().bundles_hits;
    assert_eq!(hits.load(Ordering::Relaxed), count as u64);
    drop(device);
    running.end();
    // Damaged pieces are compressed again.
    let mut damaged = bytes.clone();
    damaged[bytes.len() / 2] ^= 1;
    fs::write(kept, damaged).unwrap();
    let running = start();
    pieces(&running, count);
    until("they are right again", || fs::read(kept).unwrap() == bytes);
}
