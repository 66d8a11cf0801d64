//! The file device: what it creates, refuses, counts and requests from the kernel.

use crate::loop_device::Loop;
use base::block::{
    BLOCK_BYTES, BOUNCE_BLOCKS_MAX, BlockBuffer, BlockDevice, Counters, DeviceError, FileDevice,
    FileDeviceOptions,
};
use base::error::Code;
use base::sim::SimDevice;
use proptest::prelude::*;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A path of this test's own on the disk that holds the build, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{name}-{}-{number}", std::process::id()));
        let _ = fs::remove_file(&path);
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn sized(block_count: u64) -> FileDeviceOptions {
    FileDeviceOptions {
        create_bytes: Some(block_count * BLOCK),
        ..FileDeviceOptions::default()
    }
}

fn direct(block_count: u64) -> FileDeviceOptions {
    FileDeviceOptions {
        direct: true,
        ..sized(block_count)
    }
}

/// Returns a slice that starts one byte after a block boundary.
fn unaligned(store: &mut BlockBuffer, bytes: usize) -> &mut [u8] {
    &mut store[1..=bytes]
}

#[test]
fn a_missing_file_is_created_sparse_and_full_of_zeros() {
    let scratch = Scratch::new("creates-sparse");
    let mut device = FileDevice::open(&scratch.0, &sized(25_600)).unwrap();
    assert_eq!(device.geometry().block_count, 25_600);
    assert!(!device.is_block_device() && !device.is_direct());
    let data = fs::metadata(&scratch.0).unwrap();
    assert_eq!(data.len(), 25_600 * BLOCK);
    assert!(
        data.blocks() * 512 < data.len() / 100,
        "{} sectors held",
        data.blocks()
    );
    let mut buffer = [1; BLOCK_BYTES];
    device.read(25_599, &mut buffer).unwrap();
    assert_eq!(buffer, [0; BLOCK_BYTES]);
}

#[test]
fn written_zeros_take_their_space_and_are_not_counted() {
    let scratch = Scratch::new("zeros");
    let mut device = FileDevice::open(&scratch.0, &direct(700)).unwrap();
    device.write(3, &BlockBuffer::zeroed(1)).unwrap();
    let mut told = 0;
    let before = device.counters();
    device.write_zeros(&mut |bytes| told += bytes).unwrap();
    assert_eq!(told, 700 * BLOCK_BYTES);
    assert_eq!(device.counters(), before);
    let found = fs::metadata(&scratch.0).unwrap();
    assert!(
        found.blocks() * 512 >= 700 * BLOCK_BYTES as u64,
        "not sparse"
    );
    assert_eq!(
        found.len(),
        700 * BLOCK_BYTES as u64,
        "and no longer than it was"
    );
}

#[test]
fn zeros_from_a_block_on_leave_the_blocks_before() {
    let scratch = Scratch::new("zeros-from");
    fs::write(&scratch.0, vec![7; 300 * BLOCK_BYTES]).unwrap();
    let mut device = FileDevice::open(&scratch.0, &direct(700)).unwrap();
    let mut told = 0;
    device
        .write_zeros_from(299, &mut |bytes| told += bytes)
        .unwrap();
    assert_eq!(told, 401 * BLOCK_BYTES);
    let content = fs::read(&scratch.0).unwrap();
    let (before, behind) = content.split_at(299 * BLOCK_BYTES);
    assert!(before.iter().all(|byte| *byte == 7) && behind.iter().all(|byte| *byte == 0));
    assert!(fs::metadata(&scratch.0).unwrap().blocks() * 512 >= 700 * BLOCK);
    for beyond in [700, u64::MAX] {
        device
            .write_zeros_from(beyond, &mut |_| panic!("nothing to write"))
            .unwrap();
    }
}

#[test]
fn a_shorter_file_is_extended_and_a_longer_one_is_kept() {
    let scratch = Scratch::new("extends");
    fs::write(&scratch.0, vec![7; 2 * BLOCK_BYTES + 100]).unwrap();
    assert_eq!(
        FileDevice::open(&scratch.0, &FileDeviceOptions::default())
            .unwrap()
            .geometry()
            .block_count,
        2
    );
    let mut device = FileDevice::open(&scratch.0, &sized(4)).unwrap();
    assert_eq!(device.geometry().block_count, 4);
    let mut buffer = [1; 2 * BLOCK_BYTES];
    device.read(1, &mut buffer).unwrap();
    assert!(buffer[..BLOCK_BYTES + 100].iter().all(|byte| *byte == 7));
    assert!(buffer[BLOCK_BYTES + 100..].iter().all(|byte| *byte == 0));
    assert_eq!(
        FileDevice::open(&scratch.0, &sized(1))
            .unwrap()
            .geometry()
            .block_count,
        4
    );
    assert_eq!(fs::metadata(&scratch.0).unwrap().len(), 4 * BLOCK);
}

#[test]
fn an_error_names_the_path_that_cannot_be_opened() {
    let scratch = Scratch::new("is-not-there");
    let missing = FileDevice::open(&scratch.0, &FileDeviceOptions::default()).unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    assert!(missing.to_string().contains("is-not-there"), "{missing}");
    let read_only = FileDeviceOptions {
        read_only: true,
        ..sized(4)
    };
    assert_eq!(
        FileDevice::open(&scratch.0, &read_only).unwrap_err().code(),
        Code::NotFound
    );
    assert!(!scratch.0.exists(), "opening read-only creates nothing");
    for no_device in [env!("CARGO_TARGET_TMPDIR"), "/dev/null"] {
        let error = FileDevice::open(no_device, &FileDeviceOptions::default()).unwrap_err();
        assert!(matches!(error, DeviceError::Open { .. }));
        assert!(error.to_string().contains(no_device), "{error}");
    }
    // The FIFO has no other end; waiting for one would block the test for ever.
    let fifo = Scratch::new("fifo");
    let name = std::ffi::CString::new(fifo.0.to_str().unwrap()).unwrap();
    // SAFETY: the path ends with a zero and outlives the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    FileDevice::open(&fifo.0, &read_only).unwrap_err();
}

#[test]
fn writes_are_refused_when_the_device_is_read_only() {
    let scratch = Scratch::new("read-only");
    fs::write(&scratch.0, vec![7; 4 * BLOCK_BYTES]).unwrap();
    let options = FileDeviceOptions {
        read_only: true,
        ..FileDeviceOptions::default()
    };
    let mut device = FileDevice::open(&scratch.0, &options).unwrap();
    assert_eq!(
        device.write(0, &[0; BLOCK_BYTES]).unwrap_err().code(),
        Code::Denied
    );
    assert_eq!(device.discard(0, 1).unwrap_err().code(), Code::Denied);
    let mut buffer = [0; BLOCK_BYTES];
    device.read(0, &mut buffer).unwrap();
    assert_eq!(buffer, [7; BLOCK_BYTES]);
    assert_eq!(
        device.counters(),
        Counters {
            reads: 1,
            blocks_read: 1,
            ..Counters::default()
        }
    );
}

#[test]
fn an_exclusive_device_cannot_be_opened_exclusively_twice() {
    let scratch = Scratch::new("exclusive");
    let exclusive = FileDeviceOptions {
        exclusive: true,
        ..sized(4)
    };
    let first = FileDevice::open(&scratch.0, &exclusive).unwrap();
    let error = FileDevice::open(
        &scratch.0,
        &FileDeviceOptions {
            create_bytes: Some(8 * BLOCK),
            ..exclusive
        },
    );
    let error = error.unwrap_err();
    assert_eq!(error.code(), Code::Busy);
    assert!(error.to_string().contains("exclusive-"), "{error}");
    assert_eq!(
        fs::metadata(&scratch.0).unwrap().len(),
        4 * BLOCK,
        "the refused one changed nothing"
    );
    FileDevice::open(&scratch.0, &FileDeviceOptions::default()).unwrap();
    drop(first);
    FileDevice::open(&scratch.0, &exclusive).unwrap();
}

#[test]
fn content_outlives_the_device() {
    let scratch = Scratch::new("outlives");
    for options in [sized(8), direct(8)] {
        let mut device = FileDevice::open(&scratch.0, &options).unwrap();
        device.write(3, &[9; 2 * BLOCK_BYTES]).unwrap();
        device.flush().unwrap();
        drop(device);
        let bytes = fs::read(&scratch.0).unwrap();
        for (index, byte) in bytes.iter().enumerate() {
            assert_eq!(*byte == 9, (3..5).contains(&(index / BLOCK_BYTES)));
        }
        fs::remove_file(&scratch.0).unwrap();
    }
}

#[test]
fn an_unaligned_request_stays_one_request_up_to_the_stated_length() {
    let scratch = Scratch::new("bounce");
    let mut device = FileDevice::open(&scratch.0, &direct(256)).unwrap();
    if !device.is_direct() {
        println!(
            "skipped in part: {} takes no direct transfers",
            scratch.0.display()
        );
    }
    let mut store = BlockBuffer::zeroed(2 * BOUNCE_BLOCKS_MAX + 2);
    for (blocks, requests) in [
        (1, 1),
        (4, 1),
        (BOUNCE_BLOCKS_MAX, 1),
        (BOUNCE_BLOCKS_MAX + 1, 2),
    ] {
        let requests = if device.is_direct() { requests } else { 1 };
        let data = unaligned(&mut store, blocks * BLOCK_BYTES);
        for (index, byte) in data.iter_mut().enumerate() {
            *byte = (index % 251) as u8;
        }
        let expected = data.to_vec();
        let before = device.counters();
        device.write(5, data).unwrap();
        data.fill(0);
        device.read(5, data).unwrap();
        assert!(*data == expected);
        let after = device.counters();
        assert_eq!(after.writes - before.writes, requests);
        assert_eq!(after.reads - before.reads, requests);
        assert_eq!(after.blocks_written - before.blocks_written, blocks as u64);
        assert_eq!(after.blocks_read - before.blocks_read, blocks as u64);
    }
    assert!(device.counters().write_blocks_max >= BOUNCE_BLOCKS_MAX as u64);
    let aligned = BlockBuffer::zeroed(256);
    device.reset_write_blocks_max();
    device.write(0, &aligned).unwrap();
    assert_eq!(
        device.counters().write_blocks_max,
        256,
        "an aligned buffer needs no copy and no limit"
    );
}

#[test]
fn discarded_blocks_give_their_space_back_where_the_file_system_can() {
    let scratch = Scratch::new("discard");
    let mut device = FileDevice::open(&scratch.0, &sized(256)).unwrap();
    device.write(0, &BlockBuffer::zeroed(256)).unwrap();
    device.flush().unwrap();
    let before = fs::metadata(&scratch.0).unwrap().blocks();
    device.discard(0, 256).unwrap();
    device.flush().unwrap();
    let after = fs::metadata(&scratch.0).unwrap();
    println!("{before} sectors before, {} after", after.blocks());
    assert!(after.blocks() <= before);
    assert_eq!(after.len(), 256 * BLOCK);
    assert_eq!(device.counters().discards, 1);
}

/// A number from a `name: number` line of the kernel's account of this thread.
fn kernel_count(name: &str) -> Option<u64> {
    // One system call per read of the counters, for any length of the text.
    let mut text = [0; 4096];
    let length = fs::File::open("/proc/thread-self/io")
        .and_then(|mut file| file.read(&mut text))
        .ok()?;
    let text = std::str::from_utf8(&text[..length]).ok()?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))?;
    value.parse().ok()
}

#[test]
fn the_kernel_counts_the_same_requests() {
    if kernel_count("syscw").is_none() {
        println!("skipped: this kernel keeps no input/output account per thread");
        return;
    }
    let scratch = Scratch::new("kernel-counts");
    let mut device = FileDevice::open(&scratch.0, &direct(64)).unwrap();
    let mut store = BlockBuffer::zeroed(5);
    // Reading the counters is itself a read; the cost of one is measured, not assumed.
    let look = {
        let first = kernel_count("syscr").unwrap();
        kernel_count("syscr").unwrap() - first
    };
    let (reads, writes) = (
        kernel_count("syscr").unwrap(),
        kernel_count("syscw").unwrap(),
    );
    for block in 0..10 {
        device
            .write(block, unaligned(&mut store, 4 * BLOCK_BYTES))
            .unwrap();
        device.write(block, &store[..4 * BLOCK_BYTES]).unwrap();
        device.flush().unwrap();
        device
            .read(block, unaligned(&mut store, 4 * BLOCK_BYTES))
            .unwrap();
    }
    let writes_after = kernel_count("syscw").unwrap();
    // Three reads of the counters lie between the two values: two of them for writes, one for the reads before.
    let reads_after = kernel_count("syscr").unwrap() - 3 * look;
    assert_eq!(writes_after - writes, device.counters().writes);
    assert_eq!(reads_after - reads, device.counters().reads);
    assert_eq!(device.counters().flushes, 10);
}

/// A loop device over a file of its own.
struct Looped {
    device: Loop,
    backing: Scratch,
}

impl Looped {
    /// `None`, with the reason printed, if this machine provides no loop device.
    fn new(block_count: u64) -> Option<Self> {
        let backing = Scratch::new("loop-backing");
        fs::File::create(&backing.0)
            .unwrap()
            .set_len(block_count * BLOCK)
            .unwrap();
        let device = Loop::attach(backing.0.to_str().unwrap(), &[])?;
        Some(Self { device, backing })
    }

    fn path(&self) -> &str {
        &self.device.path
    }

    /// Writes and flushes that the block layer has completed on this device.
    fn kernel_counts(&self) -> Option<(u64, u64)> {
        let name = self.path().strip_prefix("/dev/")?;
        let text = fs::read_to_string(format!("/sys/block/{name}/stat")).ok()?;
        let fields: Vec<u64> = text
            .split_whitespace()
            .filter_map(|field| field.parse().ok())
            .collect();
        Some((*fields.get(4)?, *fields.get(15)?))
    }
}

#[test]
fn a_loop_device_is_measured_held_alone_and_counted() {
    let Some(looped) = Looped::new(1024) else {
        return;
    };
    let options = FileDeviceOptions {
        direct: true,
        exclusive: true,
        ..FileDeviceOptions::default()
    };
    let mut device = FileDevice::open(looped.path(), &options).unwrap();
    assert!(device.is_block_device() && device.is_direct());
    assert_eq!(device.geometry().block_count, 1024);
    let error = FileDevice::open(looped.path(), &options).unwrap_err();
    assert_eq!(error.code(), Code::Busy);
    assert!(error.to_string().contains(looped.path()), "{error}");

    let before = looped.kernel_counts();
    let mut data = BlockBuffer::zeroed(4);
    data.fill(0x5a);
    for step in 0..20 {
        device.write(step * 5, &data).unwrap();
        device.flush().unwrap();
    }
    if let (Some(before), Some(after)) = (before, looped.kernel_counts()) {
        let (writes, flushes) = (after.0 - before.0, after.1 - before.1);
        println!(
            "20 writes and 20 flushes: the block layer counted {writes} writes and {flushes} flushes"
        );
        assert_eq!(flushes, 20, "one flush per barrier");
        // Kernels differ in whether the empty request that carries a flush counts as a write, too.
        assert!(writes == 20 || writes == 40, "{writes}");
    } else {
        println!("skipped in part: no statistics for {}", looped.path());
    }
    assert_eq!(
        (device.counters().writes, device.counters().flushes),
        (20, 20)
    );
    let mut read = BlockBuffer::zeroed(4);
    device.read(95, &mut read).unwrap();
    assert_eq!(*read, *data);
    device.discard(0, 1024).unwrap();
    drop(device);

    // A mounted device is claimed by the kernel in this way, without a lock.
    let claim = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_EXCL)
        .open(looped.path())
        .unwrap();
    assert_eq!(
        FileDevice::open(looped.path(), &options)
            .unwrap_err()
            .code(),
        Code::Busy
    );
    drop(claim);
}

#[test]
fn clearing_changes_only_both_ends() {
    let scratch = Scratch::new("ends");
    for blocks in [1, 255, 256, 257, 512, 600] {
        fs::write(&scratch.0, vec![7; blocks * BLOCK_BYTES]).unwrap();
        let mut device = FileDevice::open(&scratch.0, &direct(1)).unwrap();
        device.clear_ends().unwrap();
        assert_eq!(device.counters(), Counters::default());
        let content = fs::read(&scratch.0).unwrap();
        assert_eq!(content.len(), blocks * BLOCK_BYTES);
        for (block, bytes) in content.chunks(BLOCK_BYTES).enumerate() {
            let is_end = block < 256 || block + 256 >= blocks;
            let expected = if is_end { 0 } else { 7 };
            assert!(bytes.iter().all(|byte| *byte == expected), "{block}");
        }
    }
    let Some(looped) = Looped::new(16) else {
        return;
    };
    fs::write(&looped.backing.0, vec![7; 16 * BLOCK_BYTES + 3 * 512]).unwrap();
    let resized = Command::new("losetup")
        .args(["--set-capacity", looped.path()])
        .status();
    assert!(resized.unwrap().success());
    let mut device = FileDevice::open(looped.path(), &direct(1)).unwrap();
    device.clear_ends().unwrap();
    // Transfers are direct again.
    device.write(3, &BlockBuffer::zeroed(1)).unwrap();
    assert!(device.is_direct());
    drop(device);
    assert!(
        fs::read(&looped.backing.0)
            .unwrap()
            .iter()
            .all(|byte| *byte == 0)
    );
}

#[test]
fn readers_share_a_device_and_a_writer_does_not() {
    let scratch = Scratch::new("readers");
    let writer = FileDeviceOptions {
        exclusive: true,
        ..sized(4)
    };
    let reader = FileDeviceOptions {
        read_only: true,
        ..writer
    };
    drop(FileDevice::open(&scratch.0, &writer).unwrap());
    let first = FileDevice::open(&scratch.0, &reader).unwrap();
    let second = FileDevice::open(&scratch.0, &reader).unwrap();
    let refused = FileDevice::open(&scratch.0, &writer).unwrap_err();
    assert_eq!(refused.code(), Code::Busy);
    drop(first);
    FileDevice::open(&scratch.0, &writer).unwrap_err();
    drop(second);
    let held = FileDevice::open(&scratch.0, &writer).unwrap();
    FileDevice::open(&scratch.0, &reader).unwrap_err();
    drop(held);
    FileDevice::open(&scratch.0, &reader).unwrap();
}

#[test]
fn a_file_and_the_loop_device_that_shows_it_are_one_thing() {
    let Some(looped) = Looped::new(1024) else {
        return;
    };
    let writer = FileDeviceOptions {
        exclusive: true,
        ..FileDeviceOptions::default()
    };
    let reader = FileDeviceOptions {
        read_only: true,
        ..writer
    };
    let file = &looped.backing.0;
    let link = Scratch::new("loop-link");
    fs::hard_link(file, &link.0).unwrap();
    let busy = |path: &Path, options| {
        let error = FileDevice::open(path, options).unwrap_err();
        assert_eq!(error.code(), Code::Busy, "{error}");
    };
    let device = Path::new(looped.path());
    for (held, other) in [(file.as_path(), device), (&link.0, device), (device, file)] {
        let held = FileDevice::open(held, &writer).unwrap();
        busy(other, &writer);
        busy(other, &reader);
        drop(held);
        let held = FileDevice::open(other, &reader).unwrap();
        FileDevice::open(&link.0, &reader).unwrap();
        busy(file, &writer);
        busy(device, &writer);
        drop(held);
    }
    // A kernel claim of the device, as a mount makes it, holds the file as well.
    let claim = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_EXCL)
        .open(device)
        .unwrap();
    busy(file, &writer);
    drop(claim);
    FileDevice::open(file, &writer).unwrap();
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        first_block: u64,
        blocks: usize,
        fill: u8,
        is_aligned: bool,
    },
    Read {
        first_block: u64,
        blocks: usize,
        is_aligned: bool,
    },
    Flush,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (0_u64..20, 0_usize..6, any::<bool>());
    prop_oneof![
        4 => (place(), any::<u8>()).prop_map(|((first_block, blocks, is_aligned), fill)| Step::Write {
            first_block, blocks, fill, is_aligned
        }),
        4 => place().prop_map(|(first_block, blocks, is_aligned)| Step::Read { first_block, blocks, is_aligned }),
        1 => Just(Step::Flush),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The real device and the simulated one without faults behave the same.
    #[test]
    fn a_file_device_agrees_with_the_simulated_device(
        steps in prop::collection::vec(step(), 0..40),
        is_direct in any::<bool>(),
    ) {
        let scratch = Scratch::new(if is_direct { "agrees-direct" } else { "agrees-buffered" });
        let options = FileDeviceOptions { direct: is_direct, exclusive: true, ..sized(16) };
        let mut real = Some(FileDevice::open(&scratch.0, &options).unwrap());
        let mut simulated = SimDevice::new(16, 1);
        let mut offset = Counters::default();
        let (mut mine, mut theirs) = (BlockBuffer::zeroed(8), BlockBuffer::zeroed(8));
        for step in steps {
            let device = real.as_mut().unwrap();
            match step {
                Step::Write { first_block, blocks, fill, is_aligned } => {
                    let range = usize::from(!is_aligned)..blocks * BLOCK_BYTES + usize::from(!is_aligned);
                    mine.fill(fill);
                    let outcome = device.write(first_block, &mine[range.clone()]);
                    let expected = simulated.write(first_block, &mine[range]);
                    prop_assert_eq!(outcome.map_err(|error| error.code()), expected.map_err(|error| error.code()));
                }
                Step::Read { first_block, blocks, is_aligned } => {
                    let range = usize::from(!is_aligned)..blocks * BLOCK_BYTES + usize::from(!is_aligned);
                    mine.fill(1);
                    theirs.fill(1);
                    let outcome = device.read(first_block, &mut mine[range.clone()]);
                    let expected = simulated.read(first_block, &mut theirs[range]);
                    prop_assert_eq!(outcome.map_err(|error| error.code()), expected.map_err(|error| error.code()));
                    prop_assert!(*mine == *theirs);
                }
                Step::Flush => {
                    device.flush().unwrap();
                    simulated.flush().unwrap();
                }
                Step::Reopen => {
                    drop(real.take());
                    real = Some(FileDevice::open(&scratch.0, &options).unwrap());
                    offset = simulated.counters();
                    simulated.reset_write_blocks_max();
                }
            }
            let (real, simulated) = (real.as_ref().unwrap().counters(), simulated.counters());
            prop_assert_eq!(real.reads, simulated.reads - offset.reads);
            prop_assert_eq!(real.blocks_read, simulated.blocks_read - offset.blocks_read);
            prop_assert_eq!(real.writes, simulated.writes - offset.writes);
            prop_assert_eq!(real.blocks_written, simulated.blocks_written - offset.blocks_written);
            prop_assert_eq!(real.flushes, simulated.flushes - offset.flushes);
            prop_assert_eq!(real.write_blocks_max, simulated.write_blocks_max);
        }
    }
}
