//! Reading and writing.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::Case;
use crate::support::{
    Map, Mount, Setup, bytes, copy_range, fallocate, lock_file, lock_record, open_with,
    posix_fallocate, refused, seek, send, statvfs,
};

pub const CASES: &[Case] = &[
    ("read-write", read_write),
    ("append", append),
    ("gap", gap),
    ("truncate", truncate),
    ("grow", grow),
    ("too-large", too_large),
    ("full", full),
    ("direct", direct),
    ("mmap-read", mmap_read),
    ("mmap-write", mmap_write),
    ("fallocate", preallocate),
    ("seek-hole", seek_hole),
    ("copy-file-range", copy_file_range),
    ("locks", locks),
];

fn read_write() {
    let mount = Mount::new();
    let path = mount.path("file");
    let mut model = bytes(50_000, 1);
    std::fs::write(&path, &model).unwrap();
    let file = open_with(&path, 0).unwrap();
    for (round, offset) in [0, 1, 3_903, 3_904, 4_095, 12_345, 40_000, 49_999, 50_000]
        .into_iter()
        .enumerate()
    {
        for length in [1, 511, 4_096, 9_999] {
            let data = bytes(length, round as u32 + 2);
            file.write_all_at(&data, offset as u64).unwrap();
            model.resize(model.len().max(offset + length), 0);
            model[offset..offset + length].copy_from_slice(&data);
            let mut back = vec![0; length];
            file.read_exact_at(&mut back, offset as u64).unwrap();
            assert_eq!(back, data);
        }
    }
    assert_eq!(std::fs::read(&path).unwrap(), model);
    assert_eq!(file.read_at(&mut [0; 8], model.len() as u64).unwrap(), 0);
    drop(file);
    let again = mount.again();
    assert_eq!(std::fs::read(again.path("file")).unwrap(), model);
}

fn append() {
    let mount = Mount::new();
    let path = mount.path("log");
    let open = || {
        let mut options = OpenOptions::new();
        options.append(true).create(true).open(&path).unwrap()
    };
    let (mut one, mut two) = (open(), open());
    let mut expected = Vec::new();
    for round in 0..200_u32 {
        let line = format!("line {round} {}\n", "x".repeat(round as usize));
        let writer = if round % 3 == 0 { &mut one } else { &mut two };
        writer.write_all(line.as_bytes()).unwrap();
        expected.extend(line.as_bytes());
    }
    assert_eq!(std::fs::read(&path).unwrap(), expected);
    // With two writers at once, no line is lost or mixed with another.
    let writers = [open(), open()].map(|mut file| {
        std::thread::spawn(move || {
            for _ in 0..100 {
                file.write_all(&[b'a'; 99]).unwrap();
            }
        })
    });
    for writer in writers {
        writer.join().unwrap();
    }
    let length = std::fs::metadata(&path).unwrap().len();
    assert_eq!(length, expected.len() as u64 + 200 * 99);
}

fn gap() {
    let mount = Mount::new();
    let path = mount.put("file", b"start");
    let before = statvfs(mount.directory()).f_bfree;
    let file = open_with(&path, 0).unwrap();
    file.write_all_at(b"end", 1_000_000).unwrap();
    let content = std::fs::read(&path).unwrap();
    assert_eq!(content.len(), 1_000_003);
    assert!(content.starts_with(b"start\0") && content.ends_with(b"\0end"));
    assert!(content[5..1_000_000].iter().all(|byte| *byte == 0));
    let taken = before - statvfs(mount.directory()).f_bfree;
    assert!(taken * 4096 >= 990_000, "{taken} blocks");
    assert!(file.metadata().unwrap().blocks() * 512 >= 1_000_000);
}

fn truncate() {
    let mount = Mount::new();
    let content = bytes(30_000, 3);
    let path = mount.put("file", &content);
    let file = open_with(&path, 0).unwrap();
    file.set_len(12_345).unwrap();
    assert_eq!(mount.durable("file").unwrap(), &content[..12_345]);
    file.set_len(20_000).unwrap();
    let longer = mount.durable("file").unwrap();
    assert_eq!(longer.len(), 20_000);
    assert_eq!(longer[..12_345], content[..12_345]);
    assert!(longer[12_345..].iter().all(|byte| *byte == 0));
    assert_eq!(std::fs::read(&path).unwrap(), longer);
    File::create(&path).unwrap();
    assert_eq!(mount.durable("file").unwrap(), b"");
    assert_eq!(file.metadata().unwrap().len(), 0);
}

/// Makes the file long in a separate thread. Returns whether other calls saw an intermediate length.
fn is_seen_growing(mount: &Mount, path: &Path, length: u64, by_writing: bool) -> bool {
    let free = || statvfs(mount.directory()).f_bfree;
    let file = open_with(path, 0).unwrap();
    file.set_len(7).unwrap();
    let before = free();
    let worker = std::thread::spawn(move || match by_writing {
        true => file.write_all_at(b"x", length - 1),
        false => file.set_len(length),
    });
    let mut seen = BTreeSet::new();
    while !worker.is_finished() {
        seen.insert(free());
    }
    worker.join().unwrap().unwrap();
    seen.remove(&before);
    seen.remove(&free());
    let content = std::fs::read(path).unwrap();
    assert_eq!(content.len() as u64, length);
    assert!(content.starts_with(b"content\0"));
    let (last, zeros) = content[7..].split_last().unwrap();
    assert!(zeros.iter().all(|byte| *byte == 0));
    assert_eq!(*last, if by_writing { b'x' } else { 0 });
    !seen.is_empty()
}

fn grow() {
    const LENGTH: u64 = 12_000_000;
    let mount = Mount::with(Setup {
        blocks: 8192,
        ..Setup::default()
    });
    let path = mount.put("file", b"content");
    for by_writing in [false, true] {
        // The scheduler decides when other calls get their turn, but they must get it at some time.
        let is_seen = (0..20).any(|_| is_seen_growing(&mount, &path, LENGTH, by_writing));
        assert!(is_seen, "no other call was answered meanwhile");
    }
    File::open(&path).unwrap().sync_all().unwrap();
    assert_eq!(mount.durable("file").unwrap().len() as u64, LENGTH);
    let mut store = mount.end();
    assert!(store.check().unwrap().is_clean());
}

fn too_large() {
    let mount = Mount::new();
    let path = mount.put("file", b"content");
    let file = open_with(&path, 0).unwrap();
    for length in [1 << 30, 1 << 40, i64::MAX as u64] {
        refused(file.set_len(length), libc::EFBIG);
    }
    refused(file.write_all_at(b"x", 1 << 40), libc::EFBIG);
    assert_eq!(std::fs::read(&path).unwrap(), b"content");
}

fn full() {
    let mount = Mount::with(Setup {
        blocks: 512,
        ..Setup::default()
    });
    let kept = bytes(100_000, 4);
    mount.put("kept", &kept);
    let mut file = File::create(mount.path("filler")).unwrap();
    let chunk = bytes(10_000, 5);
    let mut written = 0;
    let refusal = loop {
        match file.write(&chunk) {
            Ok(count) => written += count,
            Err(error) => break error,
        }
        assert!(written < 512 * 4096);
    };
    refused::<()>(Err(refusal), libc::ENOSPC);
    assert!(written > 100_000);
    assert_eq!(file.metadata().unwrap().len(), written as u64);
    let filled = std::fs::read(mount.path("filler")).unwrap();
    assert_eq!(filled.len(), written);
    assert_eq!(filled[..chunk.len()], chunk);
    assert_eq!(std::fs::read(mount.path("kept")).unwrap(), kept);
    refused(file.set_len(written as u64 + 200_000), libc::ENOSPC);
    assert_eq!(file.metadata().unwrap().len(), written as u64);
    // Fill the store to the last byte. Then an open file can be deleted, but not renamed over, because that writes an
    // intent first.
    while file.write(b"x").is_ok() {}
    let new = mount.path("new");
    File::create(&new).unwrap();
    refused(std::fs::rename(&new, mount.path("filler")), libc::ENOSPC);
    assert_eq!(mount.names(), ["filler", "kept", "new"]);
    std::fs::remove_file(mount.path("filler")).unwrap();
    drop(file);
    mount.put("another", &kept);
}

fn direct() {
    let mount = Mount::new();
    let content = bytes(20_000, 6);
    let path = mount.put("file", &content);
    let file = open_with(&path, libc::O_DIRECT).unwrap();
    let mut back = vec![0; 777];
    file.read_exact_at(&mut back, 4_321).unwrap();
    assert_eq!(back, content[4_321..5_098]);
    // Programs that read through the cache see these writes.
    file.write_all_at(b"direct", 4_999).unwrap();
    let seen = std::fs::read(&path).unwrap();
    assert_eq!(&seen[4_999..5_005], b"direct");
    assert_eq!(seen.len(), content.len());
}

fn mmap_read() {
    let mount = Mount::new();
    let content = bytes(10_000, 7);
    let path = mount.put("file", &content);
    let file = open_with(&path, 0).unwrap();
    let map = Map::new(&file, content.len(), false);
    for offset in [0, 1, 4_095, 4_096, 9_999] {
        assert_eq!(map.get(offset), content[offset]);
    }
    file.write_all_at(&[content[5_000] ^ 0xff], 5_000).unwrap();
    assert_eq!(map.get(5_000), content[5_000] ^ 0xff);
    // The mapping keeps the file, like an open descriptor.
    drop(file);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(map.get(9_000), content[9_000]);
}

fn mmap_write() {
    let mount = Mount::new();
    let path = mount.put("file", &[1; 10_000]);
    let file = open_with(&path, 0).unwrap();
    file.sync_all().unwrap();
    let map = Map::new(&file, 10_000, true);
    map.set(5_000, 77);
    assert_eq!(std::fs::read(&path).unwrap()[5_000], 77);
    file.sync_all().unwrap();
    assert_eq!(mount.durable("file").unwrap()[5_000], 77);
    drop(map);
    Map::set_in_child(&file, 10_000, 6_000, 78);
    drop(file);
    let again = mount.again();
    let content = std::fs::read(again.path("file")).unwrap();
    assert_eq!((content[5_000], content[6_000]), (77, 78));
}

fn preallocate() {
    let mount = Mount::new();
    let path = mount.put("file", b"content");
    let file = open_with(&path, 0).unwrap();
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    for mode in [
        0,
        libc::FALLOC_FL_KEEP_SIZE,
        punch,
        libc::FALLOC_FL_ZERO_RANGE,
    ] {
        refused(fallocate(&file, mode, 100_000), libc::EOPNOTSUPP);
    }
    assert_eq!(posix_fallocate(&file, 50_000), 0);
    let content = std::fs::read(&path).unwrap();
    assert!(content.len() == 50_000 && content.starts_with(b"content\0"));
}

fn seek_hole() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    let file = open_with(&path, 0).unwrap();
    file.write_all_at(b"y", 100_000).unwrap();
    assert_eq!(seek(&file, 50_000, libc::SEEK_DATA).unwrap(), 50_000);
    assert_eq!(seek(&file, 50_000, libc::SEEK_HOLE).unwrap(), 100_001);
    refused(seek(&file, 100_001, libc::SEEK_DATA), libc::ENXIO);
    refused(seek(&file, 200_000, libc::SEEK_HOLE), libc::ENXIO);
}

fn copy_file_range() {
    let mount = Mount::new();
    let content = bytes(60_000, 8);
    let path = mount.put("from", &content);
    let mut from = File::open(&path).unwrap();
    let mut to = File::create_new(mount.path("to")).unwrap();
    let mut copied = 0;
    while copied < 30_000 {
        copied += copy_range(&from, &to, 30_000 - copied).unwrap() as usize;
    }
    while copied < content.len() {
        copied += send(&from, &to, content.len() - copied).unwrap() as usize;
    }
    to.flush().unwrap();
    assert_eq!(std::fs::read(mount.path("to")).unwrap(), content);
    from.seek(SeekFrom::Start(0)).unwrap();
    let mut start = [0; 16];
    from.read_exact(&mut start).unwrap();
    assert_eq!(start, content[..16]);
}

fn locks() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    let (one, two) = (open_with(&path, 0).unwrap(), open_with(&path, 0).unwrap());
    lock_file(&one).unwrap();
    refused(lock_file(&two), libc::EWOULDBLOCK);
    drop(one);
    lock_file(&two).unwrap();
    let one = open_with(&path, 0).unwrap();
    lock_record(&one).unwrap();
    refused(lock_record(&two), libc::EAGAIN);
    drop(one);
    lock_record(&two).unwrap();
}
