//! The four arms of the provider: what is in memory, or was asked of the kernel, before a device requests it.

use crate::server_support::common::{self, Scratch};
use crate::server_support::{Device, Running, publish, settings, until};
use std::collections::BTreeSet;
use std::sync::Arc;
use stream::predict::Mode;
use stream::predict::paper::SEG_MAX;
use stream::provide::{Arm, Provider};
use stream::store::{Published, Store};
use stream::wire::HeldBlocks;
use stream::{BLOCK_BYTES, BlockAt, SEGMENT_BLOCKS};

/// The number of segments of the program, in its file and in its action.
const SEGMENTS: u32 = 6;

/// The number of first segments of the actions of the mode `paper`: one of the program, one of the library.
const FIRSTS: u64 = 2;

/// A threshold of normalised variance that no segment exceeds.
const NO_SEGMENT: f64 = 1e9;

/// Publishes a program, a library of two segments, and a file that no task reads. Has a server in this mode learn a
/// task that reads the program, its last segment first, and a block of the library.
fn learned(name: &str, mode: Mode) -> Scratch {
    let scratch = Scratch::new(name);
    let write = |path: &str, blocks: u32, seed| {
        common::write(&scratch.path(path), blocks as usize * 4096, seed);
    };
    write("tree/bin/task", SEGMENTS * SEG_MAX, 1);
    write("tree/lib/lib.so", 40, 2);
    write("tree/lib/other.so", 40, 3);
    publish(&scratch);
    let (running, mut device) = serve(&scratch, mode, Arm::None, NO_SEGMENT);
    let mut blocks = backwards(&device);
    let library = device.at("lib/lib.so", 0);
    device.begin(1, "bin/task", HeldBlocks::default());
    device.begun(1);
    device.read(1, Some(1), blocks[0]);
    device.read(2, Some(1), library);
    blocks.push(library);
    device.trace(1, &blocks);
    device.end(1, true);
    running.end();
    scratch
}

/// Starts a server with nothing in memory but what it reads at its start, and a device.
fn serve(scratch: &Scratch, mode: Mode, arm: Arm, variance_min: f64) -> (Running, Device) {
    let mut with = settings(scratch);
    (with.predict, with.provide, with.variance_min) = (mode, arm, variance_min);
    let running = Running::start(with);
    let device = Device::new(&running, scratch, 1);
    (running, device)
}

/// Publishes a file of this many segments. Returns a provider with room for 8 segments, and a block of each segment of
/// the file.
fn provider(
    scratch: &Scratch,
    arm: Arm,
    segments: u32,
) -> (Arc<Provider>, Arc<Published>, Vec<BlockAt>) {
    let segment_bytes = SEGMENT_BLOCKS as usize * BLOCK_BYTES;
    common::write(
        &scratch.path("tree/data"),
        segments as usize * segment_bytes,
        1,
    );
    let version = publish(scratch);
    let store = Arc::new(Store::open(&scratch.path("store")).unwrap());
    let published = store.published(version).unwrap();
    let file = published.manifest.find(b"data").unwrap();
    // A block more for each segment: the memory counts what it notes of a segment, too.
    let provider = Provider::new(store, arm, 8 * (segment_bytes + BLOCK_BYTES) as u64);
    let indexes = (0..segments).map(|segment| segment * SEGMENT_BLOCKS);
    let blocks = indexes.map(|index| BlockAt { file, index }).collect();
    (provider, published, blocks)
}

/// Returns the blocks of the program, its last segment first: the file, read on from any segment, leads only to
/// segments that were read before.
fn backwards(device: &Device) -> Vec<BlockAt> {
    let segments = (0..SEGMENTS).rev();
    let indexes = segments.flat_map(|segment| segment * SEG_MAX..(segment + 1) * SEG_MAX);
    indexes.map(|index| device.at("bin/task", index)).collect()
}

fn begin(device: &mut Device) {
    device.begin(2, "bin/task", HeldBlocks::default());
    device.begun(2);
}

#[test]
fn arm_none_reads_a_segment_when_it_is_requested() {
    let scratch = learned("arms-none", Mode::Paper);
    let (running, mut device) = serve(&scratch, Mode::Paper, Arm::None, 0.0);
    assert_eq!(running.watch.provider().memory_bytes, 0);
    begin(&mut device);
    let at = backwards(&device)[0];
    device.read(1, Some(2), at);
    let provider = running.watch.provider();
    assert_eq!((provider.ahead, provider.advised), (0, 0));
    assert_eq!(provider.misses, 1);
}

#[test]
fn madvise_asks_the_kernel_for_all_files_that_the_known_actions_name() {
    for mode in [Mode::Paper, Mode::Task] {
        let scratch = learned("arms-madvise", mode);
        let (running, mut device) = serve(&scratch, mode, Arm::Madvise, 0.0);
        assert_eq!(running.watch.provider().advised, 0);
        begin(&mut device);
        until("the program and the library are asked for", || {
            running.watch.provider().advised == u64::from(SEGMENTS) + 2
        });
        assert_eq!(running.watch.provider().ahead, 0);
    }
}

#[test]
fn variance_reads_first_segments_and_segments_above_the_threshold_at_the_start() {
    let scratch = learned("arms-variance", Mode::Paper);
    // The blocks of a segment of the program lie within a sixth of their file: some 0.07.
    for (variance_min, ahead) in [(NO_SEGMENT, FIRSTS), (0.05, u64::from(SEGMENTS) + 1)] {
        let (running, mut device) = serve(&scratch, Mode::Paper, Arm::Variance, variance_min);
        assert_eq!(running.watch.provider().ahead, ahead);
        begin(&mut device);
        let second = backwards(&device)[SEG_MAX as usize];
        device.read(1, Some(2), second);
        let provider = running.watch.provider();
        assert_eq!((provider.ahead, provider.advised), (ahead, 0));
        assert_eq!(provider.misses, u64::from(ahead == FIRSTS));
        running.end();
    }
}

#[test]
fn async_reads_the_next_three_segments_of_the_action_before_they_are_requested() {
    let scratch = learned("arms-async", Mode::Paper);
    let (running, mut device) = serve(&scratch, Mode::Paper, Arm::Async, NO_SEGMENT);
    let ahead = || running.watch.provider().ahead;
    assert_eq!(ahead(), FIRSTS);
    begin(&mut device);
    let blocks = backwards(&device);
    for (segment, blocks) in (0_u32..).zip(blocks.chunks(SEG_MAX as usize)) {
        device.read(1, Some(2), blocks[0]);
        if segment == 0 {
            // The first segment is sent in three parts.
            device.read(2, Some(2), blocks[2]);
            device.read(3, Some(2), blocks[SEG_MAX as usize - 2]);
        }
        let behind = (segment + 3).min(SEGMENTS - 1);
        until("the next three segments are in memory", || {
            ahead() == FIRSTS + u64::from(behind)
        });
    }
    let provider = running.watch.provider();
    assert_eq!((provider.misses, provider.advised), (0, 0));
    assert!(provider.ahead_used >= u64::from(SEGMENTS), "{provider:?}");
}

#[test]
fn madvise_asks_for_the_files_of_one_task_at_a_time() {
    let scratch = Scratch::new("arms-turn");
    let (provider, published, blocks) = provider(&scratch, Arm::Madvise, 3);
    let turn = provider.begin().unwrap();
    assert!(provider.begin().is_none());
    turn.advise(&published, &BTreeSet::from([blocks[0].file]));
    drop(turn);
    assert!(provider.begin().is_some());
    let counters = provider.counters();
    assert_eq!((counters.advised, counters.ahead_dropped), (3, 1));
}

#[test]
fn async_reads_at_most_half_of_the_memory_ahead_and_the_nearest_segments_first() {
    let scratch = Scratch::new("arms-half");
    let (provider, published, blocks) = provider(&scratch, Arm::Async, 21);
    provider.expect(&published, &blocks[..20]);
    // The thread reads one request after the other: with this one in memory, the first one is done.
    provider.expect(&published, &blocks[20..]);
    until("the second request is read", || {
        provider.has(&published, &blocks[20..])
    });
    assert!(provider.has(&published, &blocks[..4]));
    let others = blocks[4..20].iter();
    assert_eq!(
        others
            .filter(|at| provider.has(&published, &[**at]))
            .count(),
        0
    );
    let counters = provider.counters();
    assert!(counters.ahead <= 5, "{counters:?}");
}
