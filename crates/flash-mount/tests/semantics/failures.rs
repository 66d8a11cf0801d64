//! Tests damage, failing devices, and a read-only mount.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;

use base::block::BlockDevice;
use base::sim::{FaultPlan, Keep};
use flash::Store;

use crate::Case;
use crate::support::{Directory, Mount, Setup, bytes, open_with, refused};

pub const CASES: &[Case] = &[
    ("damage-data", damage_data),
    ("damage-names", damage_names),
    ("damage-end", damage_end),
    ("device-fails", device_fails),
    ("fsync-fails", fsync_fails),
    ("read-only", read_only),
];

/// Flips a bit in every device block that contains these bytes.
fn damage_blocks_with(mount: &Mount, bytes: &[u8]) -> usize {
    mount.device.with(|device| {
        let blocks = device.geometry().block_count;
        let hit = |block: &u64| {
            let content = device.peek(*block);
            content.windows(bytes.len()).any(|window| window == bytes)
        };
        let damaged: Vec<u64> = (0..blocks).filter(hit).collect();
        for block in &damaged {
            device.inject_bit_rot(*block, 12_345);
        }
        damaged.len()
    })
}

fn damage_data() {
    let mount = Mount::new();
    let content = bytes(40_000, 9);
    mount.put("damaged", &content);
    mount.put("whole", b"whole");
    // Use a new mount: the kernel would still have the bytes in its cache.
    let mount = mount.again();
    assert!(damage_blocks_with(&mount, &content[20_000..20_032]) > 0);
    let file = File::open(mount.path("damaged")).unwrap();
    refused(file.read_at(&mut [0; 100], 20_000), libc::EIO);
    assert!(std::fs::read(mount.path("damaged")).is_err());
    let mut start = vec![0; 10_000];
    file.read_exact_at(&mut start, 0).unwrap();
    assert_eq!(start, content[..10_000]);
    let mut end = vec![0; 5_000];
    file.read_exact_at(&mut end, 35_000).unwrap();
    assert_eq!(end, content[35_000..]);
    assert_eq!(std::fs::read(mount.path("whole")).unwrap(), b"whole");
}

fn damage_names() {
    let mount = Mount::new();
    for number in 0..50 {
        mount.put(&format!("file {number}"), b"x");
    }
    let mount = mount.again();
    assert!(damage_blocks_with(&mount, b"file 33") > 0);
    refused(File::open(mount.path("file 33")), libc::EUCLEAN);
    let mut directory = Directory::open(mount.directory());
    let mut names = Vec::new();
    let error = loop {
        match directory.next() {
            Ok(Some((name, _))) => names.push(name),
            Ok(None) => panic!("no error at the end"),
            Err(error) => break error,
        }
    };
    refused::<()>(Err(error), libc::EUCLEAN);
    assert!(names.len() > 30 && names.len() < 52, "{}", names.len());
    assert!(!names.contains(&"file 33".to_owned()));
    for name in names.iter().filter(|name| !name.starts_with('.')) {
        // A name may also belong in the damaged block; then the store cannot tell whether it exists twice.
        match std::fs::read(mount.path(name)) {
            Ok(content) => assert_eq!(content, b"x"),
            other => refused(other, libc::EUCLEAN),
        }
    }
}

fn damage_end() {
    let mount = Mount::new();
    let open = File::open(mount.put("gone", b"x")).unwrap();
    std::fs::remove_file(mount.path("gone")).unwrap();
    mount.put("log", b"line\n");
    // The hidden names of files deleted while open can be anywhere in the table.
    damage_blocks_with(&mount, b".deleted-");
    let device = mount.device.clone();
    mount.end_badly();
    let lost = device.with(|device| device.crash_image(&|_| Keep::Lost));
    let mut store = Store::open(lost, &flash::OpenOptions::default()).unwrap();
    let file = store.open_file("log").unwrap();
    let mut read = [0; 16];
    assert_eq!(store.read(file, 0, &mut read).unwrap(), 5);
    assert!(read.starts_with(b"line\n"));
    drop(open);
    // The next mount reports this, and keeps the hidden file.
    let mount = Mount::of(device, Setup::default());
    assert!(mount.mounted().leftovers().is_damaged);
    assert_eq!(std::fs::read(mount.path("log")).unwrap(), b"line\n");
}

/// Returns a mount with a file, whose device fails each write or each flush from now on.
fn failing(plan: FaultPlan) -> (Mount, File, Vec<u8>) {
    let mount = Mount::new();
    let content = bytes(20_000, 10);
    let path = mount.put("file", &content);
    let file = open_with(&path, 0).unwrap();
    file.sync_all().unwrap();
    mount.device.with(|device| device.set_fault_plan(plan));
    (mount, file, content)
}

fn device_fails() {
    let every_write = FaultPlan {
        write_error_ppm: 1_000_000,
        ..FaultPlan::default()
    };
    let (mount, file, content) = failing(every_write);
    refused(File::create(mount.path("new")), libc::EIO);
    assert!(mount.mounted().failure().is_some());
    // The device works again, but the store does not trust it.
    mount
        .device
        .with(|device| device.set_fault_plan(FaultPlan::default()));
    refused(file.write_all_at(b"x", 0), libc::EIO);
    refused(file.set_len(10), libc::EIO);
    refused(std::fs::remove_file(mount.path("file")), libc::EIO);
    refused(File::create(mount.path("new")), libc::EIO);
    let mut read = Vec::new();
    File::open(mount.path("file"))
        .unwrap()
        .read_to_end(&mut read)
        .unwrap();
    assert_eq!(read, content);
    let direct = open_with(&mount.path("file"), libc::O_DIRECT).unwrap();
    let mut back = vec![0; content.len()];
    direct.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(back, content);
    assert_eq!(mount.names(), ["file"]);
    drop((file, direct));
    let again = mount.again();
    assert_eq!(again.mounted().failure(), None);
    let mut file = File::create(again.path("new")).unwrap();
    file.write_all(b"works").unwrap();
    file.sync_all().unwrap();
    assert_eq!(std::fs::read(again.path("file")).unwrap(), content);
}

fn fsync_fails() {
    let every_flush = FaultPlan {
        flush_error_ppm: 1_000_000,
        ..FaultPlan::default()
    };
    let (mount, file, _) = failing(every_flush);
    // The write itself may succeed, because it does not flush.
    file.write_all_at(b"changed", 0).ok();
    refused(file.sync_all(), libc::EIO);
    mount
        .device
        .with(|device| device.set_fault_plan(FaultPlan::default()));
    refused(file.sync_all(), libc::EIO);
    refused(file.sync_data(), libc::EIO);
    let again = File::open(mount.path("file")).unwrap();
    refused(again.sync_all(), libc::EIO);
}

fn read_only() {
    let mount = Mount::new();
    let content = bytes(20_000, 11);
    mount.put("file", &content);
    let device = mount.device.clone();
    drop(mount);
    let before = device.with(|device| device.image_hash());
    let mount = Mount::of(
        device,
        Setup {
            is_read_only: true,
            ..Setup::default()
        },
    );
    let path = mount.path("file");
    assert_eq!(std::fs::read(&path).unwrap(), content);
    refused(open_with(&path, 0), libc::EROFS);
    refused(File::create(mount.path("new")), libc::EROFS);
    refused(std::fs::remove_file(&path), libc::EROFS);
    refused(std::fs::rename(&path, mount.path("b")), libc::EROFS);
    refused(std::fs::create_dir(mount.path("d")), libc::EROFS);
    File::open(&path).unwrap().sync_all().unwrap();
    assert_eq!(mount.names(), ["file"]);
    let device = mount.device.clone();
    drop(mount);
    assert_eq!(device.with(|device| device.image_hash()), before);
}
