//! Tests the effect of the kernel's requests on the store, without a kernel.

use super::*;
use base::clock::SystemClock;
use base::sim::SimDevice;
use flash::FormatOptions;

fn files(blocks: u64) -> Files<SimDevice> {
    let options = FormatOptions {
        files_max: 200,
        name_bytes_max: 255,
        uuid: [1; 16],
        hash_key: [2; 16],
    };
    let store = Store::format(SimDevice::new(blocks, 1), &options).unwrap();
    let presentation = Presentation {
        mode: 0o644,
        uid: 0,
        gid: 0,
    };
    Files::new(store, Box::new(SystemClock::new()), presentation, 8, false)
}

/// Returns the inode of a new, open file; `None` if the store has no room for it.
fn created(files: &mut Files<SimDevice>, name: &str) -> Option<u64> {
    let made = files.create(ROOT, OsStr::new(name), true);
    made.ok().map(|attributes| attributes.ino.0)
}

#[test]
fn a_write_into_a_full_store_says_how_much_it_wrote() {
    let (mut refused, mut cut_short) = (0, 0);
    for seed in 0..24_u64 {
        let mut state = seed;
        let mut random = |limit: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % limit
        };
        // Split the free space into many small pieces, so that it runs out in the middle of a write.
        let mut files = files(600);
        let mut names = Vec::new();
        for round in 0..300 {
            if random(3) == 0 && !names.is_empty() {
                let name: String = names.swap_remove(random(names.len() as u64) as usize);
                files.unlink(ROOT, OsStr::new(&name)).unwrap();
            } else if let Some(inode) = created(&mut files, &format!("file {round}")) {
                let content = vec![1; 1 + random(30_000) as usize];
                files.write(inode, 0, &content, Durability::AtSync).ok();
                files.release(inode).unwrap();
                names.push(format!("file {round}"));
            }
        }
        let Some(inode) = created(&mut files, "log") else {
            continue;
        };
        let mut length = 0;
        while let Some(name) = names.pop() {
            let data = vec![7; 1 + random(100_000) as usize];
            let gap = random(4) / 3 * random(40_000);
            match files.write(inode, length + gap, &data, Durability::AtSync) {
                Ok(count) => {
                    length += gap + count as u64;
                    cut_short += u32::from(count < data.len());
                }
                Err(error) => {
                    assert_eq!(error.code(), libc::ENOSPC);
                    refused += 1;
                    files.unlink(ROOT, OsStr::new(&name)).unwrap();
                }
            }
            assert_eq!(files.attributes(inode).unwrap().size, length, "{seed}");
        }
    }
    assert!(refused > 20 && cut_short > 5, "{refused} {cut_short}");
}

#[test]
fn looking_a_file_up_reads_the_table_once() {
    let mut files = files(600);
    files.create(ROOT, OsStr::new("file"), false).unwrap();
    let reads = |files: &Files<SimDevice>| files.statistics().device.reads;
    let before = reads(&files);
    files.store.stat("file").unwrap();
    let once = reads(&files) - before;
    files.lookup(ROOT, OsStr::new("file")).unwrap();
    assert_eq!(reads(&files) - before, 2 * once);
}

#[test]
fn the_kernel_can_forget_every_node_it_got() {
    let mut files = files(600);
    for round in 0..50 {
        let name = format!("file {round}");
        let inode = created(&mut files, &name).unwrap();
        files.lookup(ROOT, OsStr::new(&name)).unwrap();
        files.open(inode).unwrap();
        match round % 3 {
            0 => files.unlink(ROOT, OsStr::new(&name)).unwrap(),
            1 => {
                let names = [OsStr::new(&name), OsStr::new("target")];
                files.rename([ROOT; 2], names[0], names[1], true).unwrap();
            }
            _ => {}
        }
        files.forget(inode, 2);
        files.release(inode).unwrap();
        files.release(inode).unwrap();
    }
    assert_eq!((files.nodes.len(), files.open_files), (0, 0));
    assert_eq!(files.open_names().count(), 0);
    files.end().unwrap();
}
