//! Bytes of files.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::Case;
use crate::support::{
    Map, Mount, bytes, copy_range, fallocate, open_with, posix_fallocate, refused, seek, send,
};

pub const CASES: &[Case] = &[
    ("read-write", read_write),
    ("append", append),
    ("append-together", append_together),
    ("gap", gap),
    ("truncate", truncate),
    ("o-trunc", o_trunc),
    ("too-large", too_large),
    ("full", full),
    ("direct", direct),
    ("mmap-read", mmap_read),
    ("mmap-write", mmap_write),
    ("fallocate", allocate),
    ("punch-hole", punch_hole),
    ("fallocate-other", allocate_otherwise),
    ("seek-hole", seek_hole),
    ("copy-file-range", copy_file_range),
    ("fsync", fsync),
];

fn read_write() {
    let mount = Mount::new();
    let content = bytes(3_000_000, 1);
    let path = mount.put("file", &content);
    assert_eq!(std::fs::read(&path).unwrap(), content);
    assert_eq!(mount.content_direct("file"), content);
    let file = open_with(&path, 0).unwrap();
    let mut expected = content;
    for (offset, length) in [(0, 1), (4095, 2), (1_048_570, 100), (2_999_990, 20)] {
        let piece = bytes(length, offset as u32);
        file.write_all_at(&piece, offset as u64).unwrap();
        expected.resize(expected.len().max(offset + length), 0);
        expected[offset..offset + length].copy_from_slice(&piece);
        let mut back = vec![0; length];
        file.read_exact_at(&mut back, offset as u64).unwrap();
        assert_eq!(back, piece);
    }
    assert_eq!(std::fs::read(&path).unwrap(), expected);
    let mut behind = [0; 10];
    assert_eq!(file.read_at(&mut behind, 1 << 40).unwrap(), 0);
    refused((&File::open(&path).unwrap()).write(b"x"), libc::EBADF);
}

fn append() {
    let mount = Mount::new();
    let path = mount.put("file", b"begin");
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    // The size that the kernel knew is stale by then.
    let begun = mount.direct.look_up(1, b"file").unwrap();
    let writer = mount.direct.writer().unwrap();
    writer
        .write(begun.inode, begun.generation, 5, b" more", mem::now_ns())
        .unwrap();
    file.write_all(b" end").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"begin more end");
    // As on any Linux file system, also for a write with an offset.
    file.write_all_at(b"!", 0).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"begin more end!");
}

fn append_together() {
    let mount = Mount::new();
    let path = mount.put("log", b"");
    std::thread::scope(|scope| {
        for writer in 0..4_u8 {
            let path = &path;
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).open(path).unwrap();
                for _ in 0..100 {
                    file.write_all(&[b'a' + writer; 100]).unwrap();
                }
            });
        }
    });
    let content = std::fs::read(&path).unwrap();
    assert_eq!(content.len(), 40_000);
    let mut counts = [0; 4];
    for line in content.chunks(100) {
        assert!(line.iter().all(|byte| byte == &line[0]), "torn");
        counts[usize::from(line[0] - b'a')] += 1;
    }
    assert_eq!(counts, [100; 4]);
}

fn gap() {
    let mount = Mount::new();
    let path = mount.put("file", b"begin");
    let file = open_with(&path, 0).unwrap();
    file.write_all_at(b"end", 10 << 20).unwrap();
    let content = std::fs::read(&path).unwrap();
    assert_eq!(content.len(), (10 << 20) + 3);
    assert!(content.starts_with(b"begin") && content.ends_with(b"end"));
    assert!(content[5..10 << 20].iter().all(|byte| *byte == 0));
    // 10 MiB of zeros take no memory.
    assert!(mount.direct.region().free_bytes() > 16 << 20);
}

fn truncate() {
    let mount = Mount::new();
    let path = mount.put("file", &[7; 100]);
    let file = open_with(&path, 0).unwrap();
    file.set_len(10).unwrap();
    file.set_len(20).unwrap();
    let mut expected = vec![7; 10];
    expected.resize(20, 0);
    assert_eq!(std::fs::read(&path).unwrap(), expected);
    assert_eq!(mount.content_direct("file"), expected);
}

fn o_trunc() {
    let mount = Mount::new();
    let path = mount.put("file", &[7; 100]);
    let file = File::create(&path).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 0);
    assert_eq!(mount.content_direct("file"), b"");
}

fn too_large() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    let file = open_with(&path, 0).unwrap();
    let slot_bytes = mount.direct.region().layout().slot_bytes;
    refused(file.set_len(slot_bytes + 1), libc::EFBIG);
    refused(file.write_at(b"y", slot_bytes), libc::EFBIG);
    file.set_len(slot_bytes).unwrap();
    file.set_len(1).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"x");
}

fn full() {
    let mount = Mount::new();
    mount.put("kept", &[1; 100]);
    let mut file = File::create(mount.path("large")).unwrap();
    let piece = vec![2; 1 << 20];
    let error = loop {
        if let Err(error) = file.write_all(&piece) {
            break error;
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(std::fs::read(mount.path("kept")).unwrap(), [1; 100]);
    drop(file);
    std::fs::remove_file(mount.path("large")).unwrap();
    mount.put("again", &piece);
    // As many files as the region has room for, and one more.
    let refusal = (0..2000).find_map(|number| {
        let made = File::create(mount.path(&format!("file-{number}")));
        made.err()
    });
    assert_eq!(refusal.unwrap().raw_os_error(), Some(libc::ENOSPC));
    std::fs::remove_file(mount.path("file-7")).unwrap();
    File::create(mount.path("file-7")).unwrap();
}

fn direct() {
    let mount = Mount::new();
    let path = mount.put("file", b"");
    let file = open_with(&path, libc::O_DIRECT).unwrap();
    file.write_all_at(b"odd", 17).unwrap();
    let mut back = [0; 3];
    file.read_exact_at(&mut back, 17).unwrap();
    assert_eq!(&back, b"odd");
}

/// Whether this kernel maps files that it does not cache; prints a message if not.
pub fn can_map(file: &File) -> bool {
    let can = Map::is_possible(file);
    if !can {
        println!(
            "skipped: this kernel (before 6.6) shares no memory maps of files that it does not cache"
        );
    }
    can
}

fn mmap_read() {
    let mount = Mount::new();
    let content = bytes(10_000, 3);
    let path = mount.put("file", &content);
    let file = open_with(&path, 0).unwrap();
    if !can_map(&file) {
        return;
    }
    let map = Map::new(&file, content.len(), false);
    assert!((0..content.len()).all(|at| map.get(at) == content[at]));
    // A write through the view is visible in the map.
    file.write_all_at(&[content[5] ^ 1], 5).unwrap();
    assert_eq!(map.get(5), content[5] ^ 1);
}

fn mmap_write() {
    let mount = Mount::new();
    let path = mount.put("file", &[0; 8192]);
    let file = open_with(&path, 0).unwrap();
    if !can_map(&file) {
        return;
    }
    let map = Map::new(&file, 8192, true);
    map.set(5000, 9);
    map.sync().unwrap();
    assert_eq!(mount.content_direct("file")[5000], 9);
    drop(map);
    Map::set_in_child(&file, 8192, 5001, 8);
    assert_eq!(mount.content_direct("file")[5001], 8);
}

fn allocate() {
    let mount = Mount::new();
    let file = File::create(mount.path("file")).unwrap();
    let free = mount.direct.region().free_bytes();
    fallocate(&file, 0, 5 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 5 << 20);
    let taken = free - mount.direct.region().free_bytes();
    assert!(taken >= 5 << 20, "{taken}");
    fallocate(&file, libc::FALLOC_FL_KEEP_SIZE, 6 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 5 << 20);
    assert_eq!(posix_fallocate(&file, 7 << 20), 0);
    assert_eq!(file.metadata().unwrap().len(), 7 << 20);
    refused(fallocate(&file, 0, 1 << 30), libc::ENOSPC);
}

fn punch_hole() {
    let mount = Mount::new();
    let path = mount.put("file", &vec![7; 6 << 20]);
    let file = open_with(&path, 0).unwrap();
    let free = mount.direct.region().free_bytes();
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    fallocate(&file, mode, (4 << 20) + 5).unwrap();
    let content = std::fs::read(&path).unwrap();
    assert_eq!(content.len(), 6 << 20);
    let zeros = content.iter().take_while(|byte| **byte == 0).count();
    assert_eq!(zeros, (4 << 20) + 5);
    assert!(content[zeros..].iter().all(|byte| *byte == 7));
    assert!(mount.direct.region().free_bytes() >= free + (4 << 20));
}

fn allocate_otherwise() {
    let mount = Mount::new();
    let file = File::create(mount.path("file")).unwrap();
    for mode in [
        libc::FALLOC_FL_COLLAPSE_RANGE,
        libc::FALLOC_FL_INSERT_RANGE,
        libc::FALLOC_FL_ZERO_RANGE,
    ] {
        refused(fallocate(&file, mode, 4096), libc::EOPNOTSUPP);
    }
}

fn seek_hole() {
    let mount = Mount::new();
    let path = mount.put("file", &[7; 100]);
    let file = open_with(&path, 0).unwrap();
    assert_eq!(seek(&file, 3, libc::SEEK_DATA).unwrap(), 3);
    assert_eq!(seek(&file, 3, libc::SEEK_HOLE).unwrap(), 100);
    refused(seek(&file, 100, libc::SEEK_DATA), libc::ENXIO);
    refused(seek(&file, 100, libc::SEEK_HOLE), libc::ENXIO);
    file.write_all_at(b"end", 9 << 20).unwrap();
    let hole = seek(&file, 0, libc::SEEK_HOLE).unwrap();
    let data = seek(&file, hole, libc::SEEK_DATA).unwrap();
    assert!((100..data).contains(&hole), "{hole} {data}");
    assert!(data <= 9 << 20, "{data}");
    assert_eq!(seek(&file, -4, libc::SEEK_END).unwrap(), (9 << 20) - 1);
}

fn copy_file_range() {
    let mount = Mount::new();
    let content = bytes(3_000_000, 5);
    let from = File::open(mount.put("from", &content)).unwrap();
    let mut to = File::create(mount.path("to")).unwrap();
    assert_eq!(copy_range(&from, &to, 2_000_000).unwrap(), 2_000_000);
    assert_eq!(copy_range(&from, &to, 2_000_000).unwrap(), 1_000_000);
    assert_eq!(copy_range(&from, &to, 2_000_000).unwrap(), 0);
    assert_eq!(mount.content_direct("to"), content);
    to.seek(SeekFrom::Start(0)).unwrap();
    let sent = File::open(mount.path("from")).unwrap();
    assert_eq!(send(&sent, &to, 1000).unwrap(), 1000);
    let mut begin = vec![0; 1000];
    File::open(mount.path("to"))
        .unwrap()
        .read_exact(&mut begin)
        .unwrap();
    assert_eq!(begin, content[..1000]);
}

fn fsync() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    File::open(mount.place.directory())
        .unwrap()
        .sync_all()
        .unwrap();
    assert_eq!(file.metadata().unwrap().size(), 1);
}
