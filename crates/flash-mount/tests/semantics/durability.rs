//! Tests which data survives a power cut, and from when on.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

use base::block::BlockDevice;
use base::sim::Keep;
use flash::Store;

use crate::Case;
use crate::support::{Map, Mount, Setup, content, open_with, sync_file_system, write_with};

pub const CASES: &[Case] = &[
    ("fsync", fsync),
    ("fdatasync", fdatasync),
    ("fsync-directory", fsync_directory),
    ("o-sync", o_sync),
    ("o-dsync", o_dsync),
    ("rwf-dsync", rwf_dsync),
    ("msync", msync),
    ("mount-sync", mount_sync),
    ("unsynced", unsynced),
    ("atomic", atomic),
    ("syncfs", syncfs),
    ("end", end),
];

const OLD: &[u8] = &[b'o'; 20_000];

/// Returns a file whose old content is durable.
fn with_old(mount: &Mount) -> File {
    let path = mount.put("file", OLD);
    let file = open_with(&path, 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(mount.durable("file").unwrap(), OLD);
    file
}

/// Returns the durable content that is expected once `new` was written at the start and `more` at the end.
fn changed() -> Vec<u8> {
    let mut expected = OLD.to_vec();
    expected[..3].copy_from_slice(b"new");
    expected.extend(b"more");
    expected
}

fn change(file: &File) {
    file.write_all_at(b"new", 0).unwrap();
    file.write_all_at(b"more", OLD.len() as u64).unwrap();
}

/// Checks that without the barrier data would be lost: otherwise the test would prove nothing.
fn assert_not_durable_yet(mount: &Mount) {
    assert_ne!(mount.durable("file").unwrap(), changed());
}

fn fsync() {
    let mount = Mount::new();
    let file = with_old(&mount);
    let other = File::create(mount.path("other")).unwrap();
    other.write_all_at(b"of another file", 0).unwrap();
    change(&file);
    assert_not_durable_yet(&mount);
    file.sync_all().unwrap();
    assert_eq!(mount.durable("file").unwrap(), changed());
    assert_eq!(mount.durable("other").unwrap(), b"of another file");
}

fn fdatasync() {
    let mount = Mount::new();
    let file = with_old(&mount);
    change(&file);
    assert_not_durable_yet(&mount);
    file.sync_data().unwrap();
    assert_eq!(mount.durable("file").unwrap(), changed());
}

fn fsync_directory() {
    let mount = Mount::new();
    let file = with_old(&mount);
    change(&file);
    assert_not_durable_yet(&mount);
    File::create(mount.path("new")).unwrap();
    assert_eq!(mount.durable("new").unwrap(), b"");
    let directory = File::open(mount.directory()).unwrap();
    directory.sync_all().unwrap();
    assert_eq!(mount.durable("file").unwrap(), changed());
}

fn through(flags: i32) {
    let mount = Mount::new();
    with_old(&mount);
    let file = open_with(&mount.path("file"), flags).unwrap();
    change(&file);
    assert_eq!(mount.durable("file").unwrap(), changed());
    // The same without the kernel's cache.
    let file = open_with(&mount.path("file"), flags | libc::O_DIRECT).unwrap();
    file.write_all_at(&[b'd'; 9_000], 1_000).unwrap();
    let durable = mount.durable("file").unwrap();
    assert!(durable[1_000..10_000].iter().all(|byte| *byte == b'd'));
}

fn o_sync() {
    through(libc::O_SYNC);
}

fn o_dsync() {
    through(libc::O_DSYNC);
}

fn rwf_dsync() {
    for flags in [libc::RWF_DSYNC, libc::RWF_SYNC] {
        let mount = Mount::new();
        let file = with_old(&mount);
        write_with(&file, b"more", OLD.len(), 0).unwrap();
        assert_eq!(mount.durable("file").unwrap(), OLD);
        write_with(&file, b"more", OLD.len() + 4, flags).unwrap();
        assert!(mount.durable("file").unwrap().ends_with(b"omoremore"));
    }
}

fn msync() {
    let mount = Mount::new();
    let file = with_old(&mount);
    let map = Map::new(&file, OLD.len(), true);
    map.set(12_345, 1);
    assert_eq!(mount.durable("file").unwrap(), OLD);
    map.sync().unwrap();
    assert_eq!(mount.durable("file").unwrap()[12_345], 1);
}

fn mount_sync() {
    let mount = Mount::with(Setup {
        is_always_durable: true,
        ..Setup::default()
    });
    let file = with_old(&mount);
    change(&file);
    assert_eq!(mount.durable("file").unwrap(), changed());
    let mut appended = File::create(mount.path("log")).unwrap();
    for _ in 0..5 {
        appended.write_all(b"line\n").unwrap();
    }
    assert_eq!(mount.durable("log").unwrap(), b"line\n".repeat(5));
}

fn unsynced() {
    let mount = Mount::new();
    let file = with_old(&mount);
    change(&file);
    drop(file);
    assert_not_durable_yet(&mount);
    // The program calls this periodically.
    mount.mounted().sync_if_unsynced();
    assert_eq!(mount.durable("file").unwrap(), changed());
    // With nothing to do it does nothing.
    let flushes = || mount.device.with(|device| device.counters().flushes);
    let before = flushes();
    mount.mounted().sync_if_unsynced();
    assert_eq!(flushes(), before);
}

fn atomic() {
    let length = flash::OVERWRITE_ATOMIC_BYTES_MAX;
    assert_eq!(length, 7809, "as the page says");
    let mut seen = [0, 0];
    for offset in [0, 100, 3_500, 4_000, 12_000] {
        let mut new = OLD.to_vec();
        new[offset..offset + length].fill(b'n');
        // Cut the power at each write of the device, with any part of the unflushed writes surviving.
        for cut in 1.. {
            let mount = Mount::new();
            with_old(&mount);
            let file = open_with(&mount.path("file"), libc::O_DIRECT).unwrap();
            mount
                .device
                .with(|device| device.set_power_cut_after_writes(Some(cut)));
            let written = file.write_all_at(&new[offset..offset + length], offset as u64);
            for seed in 0..20 {
                let image = mount.after_some_power_cut(seed);
                let mut store = Store::open(image, &flash::OpenOptions::default()).unwrap();
                let content = content(&mut store, "file").unwrap();
                assert!(content == OLD || content == new, "{offset}, {cut}, {seed}");
                seen[usize::from(content == new)] += 1;
            }
            if written.is_ok() && mount.device.with(|device| device.is_powered()) {
                break;
            }
        }
    }
    assert!(seen[0] > 20 && seen[1] > 20, "{seen:?}");
}

fn syncfs() {
    let mount = Mount::new();
    let file = with_old(&mount);
    let map = Map::new(&file, OLD.len(), true);
    map.set(0, 1);
    let counters = || mount.device.with(|device| device.counters());
    let before = counters();
    sync_file_system(&file).unwrap();
    // The kernel passes the page on without waiting for the write.
    while counters().writes == before.writes {
        std::thread::yield_now();
    }
    mount.mounted().sync_if_unsynced();
    assert_eq!(mount.durable("file").unwrap()[0], 1);
}

fn end() {
    let mount = Mount::new();
    let file = with_old(&mount);
    change(&file);
    let map = Map::new(&file, OLD.len(), true);
    map.set(10_000, b'm');
    assert_not_durable_yet(&mount);
    // End the mount with the file open and mapped: the program loses the file, but no data is lost.
    let device = mount.device.clone();
    let mut store = mount.end();
    let mut expected = changed();
    expected[10_000] = b'm';
    assert_eq!(content(&mut store, "file").unwrap(), expected);
    assert_eq!(store.recovery(), flash::Recovery::default());
    drop(store);
    let lost = device.with(|device| device.crash_image(&|_| Keep::Lost));
    Store::open(lost, &flash::OpenOptions::default()).unwrap();
    assert!(file.write_at(b"x", 0).is_err());
}
