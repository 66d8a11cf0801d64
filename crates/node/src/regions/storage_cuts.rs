//! Checkpoints on a device that loses power at each of its writes.

use super::FlashStorage;
use base::sim::SimDevice;
use flash::{FormatOptions, OpenOptions, Store};
use mem::checkpoint::{SaveOptions, restore, save};
use mem::{NewInode, ROOT_INODE, Region, RegionOptions, Writer};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

const FILE: NewInode = NewInode {
    mode: 0o100_600,
    user: 0,
    group: 0,
    now_ns: 1,
};
const NAME: &str = "cut";
const STEPS: u64 = 3;

struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = PathBuf::from("/dev/shm");
        let folder = if folder.is_dir() {
            folder
        } else {
            std::env::temp_dir()
        };
        let name = format!("keel-storage-cuts-{}-{number}", std::process::id());
        Self {
            path: folder.join(name),
        }
    }

    fn region(&self) -> Region {
        let options = RegionOptions {
            capacity_bytes: 18 << 20,
            files_max: Some(40),
            lanes: 2,
        };
        let root = NewInode {
            mode: 0o040_700,
            ..FILE
        };
        Region::create(&self.path, &options, &root).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        let _ = std::fs::remove_dir_all(mem::stubs_path(&self.path));
    }
}

type Files = BTreeMap<Vec<u8>, Vec<u8>>;

fn files(writer: &Writer<'_>) -> Files {
    let entries = writer.list(ROOT_INODE, 0, 100).unwrap();
    let read = |name: Vec<u8>| {
        let found = writer.look_up(ROOT_INODE, &name).unwrap();
        let mut bytes = vec![0; found.size as usize];
        writer
            .read(found.inode, found.generation, 0, &mut bytes)
            .unwrap();
        (name, bytes)
    };
    entries.into_iter().map(|entry| read(entry.name)).collect()
}

/// Changes files: one stays, one changes in its middle, one is new, one is deleted.
fn change(writer: &Writer<'_>, step: u64) {
    let put = |name: &str, offset: u64, bytes: &[u8]| {
        let name = name.as_bytes();
        let found = writer
            .look_up(ROOT_INODE, name)
            .or_else(|_| writer.create(ROOT_INODE, name, &FILE))
            .unwrap();
        writer
            .write(found.inode, found.generation, offset, bytes, step)
            .unwrap();
    };
    if step == 0 {
        put("stays", 0, &[1; 90_000]);
        put("changes", 0, &[2; 150_000]);
    }
    put("changes", 70_000, &[step as u8 + 10; 100]);
    put(&format!("new-{step}"), 0, &[step as u8; 3000]);
    put("goes", 0, &[step as u8; 10]);
    if step == 1 {
        writer.remove(ROOT_INODE, b"goes", step).unwrap();
    }
}

fn store(cut: Option<u64>) -> FlashStorage<SimDevice> {
    let options = FormatOptions {
        files_max: 20,
        name_bytes_max: 60,
        uuid: [1; 16],
        hash_key: [2; 16],
    };
    let mut store = Store::format(SimDevice::new(1500, 1), &options).unwrap();
    store.device_mut().set_power_cut_after_writes(cut);
    FlashStorage::new(store)
}

/// Takes checkpoints until the power fails. Returns the region's content at each of them, and whether the power failed.
fn run(storage: &mut FlashStorage<SimDevice>) -> (Vec<Files>, bool) {
    let scratch = Scratch::new();
    let region = scratch.region();
    let writer = region.writer().unwrap();
    let mut states = vec![Files::new()];
    for step in 0..STEPS {
        change(&writer, step);
        states.push(files(&writer));
        let options = SaveOptions {
            name: NAME,
            now_ns: step,
            random: 3,
            verify: false,
            left_out: &[],
        };
        if save(&writer, storage, &options, &mut |_, _| {}).is_err() {
            return (states, true);
        }
    }
    (states, false)
}

#[test]
fn a_power_cut_at_any_write_leaves_the_newest_checkpoint_or_the_one_before() {
    let scratch = Scratch::new();
    let (mut cuts, mut older) = (0, 0);
    for after_writes in 0.. {
        let mut storage = store(Some(after_writes));
        let (states, is_cut) = run(&mut storage);
        if !is_cut {
            break;
        }
        cuts += 1;
        for seed in 0..2 {
            let image = storage.store.device().crash_image_random(seed);
            let opened = Store::open(image, &OpenOptions::default()).unwrap();
            let mut after = FlashStorage::new(opened);
            let region = scratch.region();
            let writer = region.writer().unwrap();
            let report = restore(&writer, &mut after, NAME, &mut |_, _| {}).unwrap();
            assert_eq!(report.lost_count + report.older_count, 0, "{report:?}");
            let found = files(&writer);
            let is_newest = found == states[states.len() - 1];
            assert!(
                is_newest || found == states[states.len() - 2],
                "cut after {after_writes} writes: {report:?}"
            );
            older += u64::from(!is_newest);
            drop(writer);
            drop(region);
            std::fs::remove_file(&scratch.path).unwrap();
        }
    }
    assert!(cuts > 20 && older > 20, "{cuts} cuts, {older} older");
    let (states, is_cut) = run(&mut store(None));
    assert!(!is_cut && states.len() as u64 == STEPS + 1);
}
