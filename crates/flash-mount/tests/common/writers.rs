//! Programs that use a mounted store and record what they were promised, and a check against these promises.
//!
//! A file's content follows from its name and a position or a version, so only numbers must be kept. They tell how far
//! each writer was acknowledged, and how far it may have come.

// Two tests use this, and each leaves other parts unused.
#![allow(dead_code)]

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Number of slots in the file that is overwritten.
const SLOTS: usize = 16;
const SLOT_BYTES: usize = 700;
const CONFIG_BYTES: usize = 3_000;

/// The logs stop here, so that the store never fills.
const LOG_BYTES_MAX: u64 = 1_000_000;

/// The progress of a writer.
#[derive(Default)]
struct Progress {
    acknowledged: AtomicU64,
    begun: AtomicU64,
}

/// The promises made to the writers.
#[derive(Default)]
pub struct Promises {
    synced_log: Progress,
    sync_log: Progress,
    slots: [Progress; SLOTS],
    config: Progress,
    temporary: Progress,
    stop: AtomicBool,
}

/// The promises at one moment.
pub struct Acknowledged {
    synced_log: u64,
    sync_log: u64,
    slots: [u64; SLOTS],
    config: u64,
}

impl Promises {
    /// Returns the promises so far. Must be called before the cut.
    pub fn acknowledged(&self) -> Acknowledged {
        let of = |progress: &Progress| progress.acknowledged.load(Ordering::SeqCst);
        Acknowledged {
            synced_log: of(&self.synced_log),
            sync_log: of(&self.sync_log),
            slots: std::array::from_fn(|slot| of(&self.slots[slot])),
            config: of(&self.config),
        }
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }
}

impl Acknowledged {
    /// Returns the sum of all counters, to check that there was something to lose.
    pub fn total(&self) -> u64 {
        self.synced_log + self.sync_log + self.config + self.slots.iter().sum::<u64>()
    }
}

/// Returns bytes `from..to` of the endless text of `stream`.
fn text(stream: u64, from: u64, to: u64) -> Vec<u8> {
    let byte = |at: u64| {
        let mixed = (at / 8 + (stream << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (8 * (at % 8))) as u8
    };
    (from..to).map(byte).collect()
}

fn version(kind: u64, number: u64, bytes: usize) -> Vec<u8> {
    text(kind + 100 * (number + 1), 0, bytes as u64)
}

/// Starts all writers in `directory`. They end on request, or when a call fails, as after a kill.
pub fn start(directory: &Path, promises: &Arc<Promises>) -> Vec<JoinHandle<io::Error>> {
    type Writer = fn(&Path, &Promises) -> io::Result<()>;
    let writers: [Writer; 5] = [
        append_and_sync,
        append_synchronously,
        overwrite,
        replace,
        delete_while_open,
    ];
    let stopped = || io::Error::other("was told to stop");
    let start = |writer: Writer| {
        let (directory, promises) = (directory.to_owned(), Arc::clone(promises));
        let run = move || writer(&directory, &promises).err().unwrap_or_else(stopped);
        std::thread::spawn(run)
    };
    writers.into_iter().map(start).collect()
}

fn append_and_sync(directory: &Path, promises: &Promises) -> io::Result<()> {
    let progress = &promises.synced_log;
    let mut file = File::create(directory.join("synced-log"))?;
    let mut length = 0;
    for round in 0_u64.. {
        if !promises.goes_on() || length > LOG_BYTES_MAX {
            break;
        }
        let end = length + 1 + round * 7_919 % 9_000;
        progress.begun.store(end, Ordering::SeqCst);
        file.write_all(&text(1, length, end))?;
        length = end;
        match round % 5 {
            1 => file.sync_all()?,
            3 => file.sync_data()?,
            _ => continue,
        }
        progress.acknowledged.store(length, Ordering::SeqCst);
    }
    Ok(())
}

fn append_synchronously(directory: &Path, promises: &Promises) -> io::Result<()> {
    let progress = &promises.sync_log;
    let mut options = OpenOptions::new();
    options.append(true).create(true).custom_flags(libc::O_SYNC);
    let mut file = options.open(directory.join("sync-log"))?;
    let mut length = 0;
    for round in 0_u64.. {
        if !promises.goes_on() || length > LOG_BYTES_MAX {
            break;
        }
        let end = length + 100 + round % 50;
        progress.begun.store(end, Ordering::SeqCst);
        file.write_all(&text(2, length, end))?;
        length = end;
        progress.acknowledged.store(length, Ordering::SeqCst);
    }
    Ok(())
}

fn overwrite(directory: &Path, promises: &Promises) -> io::Result<()> {
    // With caching, the kernel may pass on a write that crosses a page in two parts.
    let mut options = OpenOptions::new();
    options
        .write(true)
        .create(true)
        .custom_flags(libc::O_DIRECT);
    let file = options.open(directory.join("slots"))?;
    for slot in 0..SLOTS {
        let first = version(slot as u64, 0, SLOT_BYTES);
        file.write_all_at(&first, (slot * SLOT_BYTES) as u64)?;
    }
    file.sync_all()?;
    for slot in &promises.slots {
        // From here on each slot has a version; 1 is the first one.
        slot.begun.store(1, Ordering::SeqCst);
        slot.acknowledged.store(1, Ordering::SeqCst);
    }
    for round in 0_usize.. {
        if !promises.goes_on() {
            break;
        }
        let slot = round * 7 % SLOTS;
        let progress = &promises.slots[slot];
        let number = progress.acknowledged.load(Ordering::SeqCst);
        progress.begun.store(number + 1, Ordering::SeqCst);
        let content = version(slot as u64, number, SLOT_BYTES);
        file.write_all_at(&content, (slot * SLOT_BYTES) as u64)?;
        file.sync_data()?;
        progress.acknowledged.store(number + 1, Ordering::SeqCst);
    }
    Ok(())
}

/// Changes a file as a whole in the usual way; every second time a reader has the old file open.
fn replace(directory: &Path, promises: &Promises) -> io::Result<()> {
    let progress = &promises.config;
    let (new, name) = (directory.join("config.new"), directory.join("config"));
    for number in 0_u64.. {
        if !promises.goes_on() {
            break;
        }
        let reader = match number % 2 {
            1 => Some(File::open(&name)?),
            _ => None,
        };
        progress.begun.store(number + 1, Ordering::SeqCst);
        let mut file = File::create(&new)?;
        file.write_all(&version(50, number, CONFIG_BYTES))?;
        file.sync_all()?;
        drop(file);
        std::fs::rename(&new, &name)?;
        progress.acknowledged.store(number + 1, Ordering::SeqCst);
        if let Some(reader) = reader {
            let mut old = vec![0; CONFIG_BYTES];
            reader.read_exact_at(&mut old, 0)?;
            assert_eq!(old, version(50, number - 1, CONFIG_BYTES));
        }
    }
    Ok(())
}

fn delete_while_open(directory: &Path, promises: &Promises) -> io::Result<()> {
    for number in 0_u64.. {
        if !promises.goes_on() {
            break;
        }
        promises.temporary.begun.store(number, Ordering::SeqCst);
        let path = directory.join(format!("temporary-{number}"));
        let mut file = File::create(&path)?;
        std::fs::remove_file(&path)?;
        promises
            .temporary
            .acknowledged
            .store(number + 1, Ordering::SeqCst);
        file.write_all(&[1; 20_000])?;
    }
    Ok(())
}

/// Compares a mounted store with the promises before the cut; `promises` tells how far the writers may have come at the
/// cut.
pub fn judge(directory: &Path, before: &Acknowledged, promises: &Promises) {
    let begun = |progress: &Progress| progress.begun.load(Ordering::SeqCst);
    let read = |name: &str| std::fs::read(directory.join(name)).ok();
    for (name, stream, acknowledged, progress) in [
        ("synced-log", 1, before.synced_log, &promises.synced_log),
        ("sync-log", 2, before.sync_log, &promises.sync_log),
    ] {
        let content = read(name).unwrap_or_default();
        let length = content.len() as u64;
        assert!(length >= acknowledged, "{name}: {length} of {acknowledged}");
        assert!(length <= begun(progress), "{name}");
        assert!(content == text(stream, 0, length), "{name} has wrong bytes");
    }
    let slots = read("slots").unwrap_or_default();
    for (slot, progress) in promises.slots.iter().enumerate() {
        let acknowledged = before.slots[slot];
        if acknowledged == 0 {
            continue;
        }
        let content = &slots[slot * SLOT_BYTES..][..SLOT_BYTES];
        let possible = acknowledged - 1..begun(progress);
        let is_version = |number: u64| content == version(slot as u64, number, SLOT_BYTES);
        assert!(
            possible.clone().any(is_version),
            "slot {slot}: none of {possible:?}"
        );
    }
    if before.config > 0 {
        let content = read("config").expect("the name is never missing");
        let possible = before.config - 1..begun(&promises.config);
        let is_version = |number: u64| content == version(50, number, CONFIG_BYTES);
        assert!(
            possible.clone().any(is_version),
            "config: none of {possible:?}"
        );
    }
    let names: BTreeSet<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for name in names {
        match name.strip_prefix("temporary-") {
            Some(number) => {
                let number: u64 = number.parse().unwrap();
                assert!(number <= begun(&promises.temporary), "{name}");
            }
            None => assert!(
                ["synced-log", "sync-log", "slots", "config", "config.new"].contains(&&*name),
                "{name}"
            ),
        }
    }
}
