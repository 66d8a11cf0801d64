//! The counters that define all promises of the store, compared with those of the kernel's block layer.

use crate::common::{TempDir, wait_until};
use crate::flash_common::{Loop, sparse_file};
use base::block::{BLOCK_BYTES, BlockDevice, Counters, FileDevice, FileDeviceOptions};
use flash::{FormatOptions, OpenOptions, Store};

/// A loop device with direct transfers to its file.
struct Counted {
    device: Loop,
    _dir: TempDir,
}

impl Counted {
    fn attach(bytes: u64) -> Option<Self> {
        let dir = TempDir::new();
        let device = Loop::attach(&sparse_file(&dir, bytes), &["--direct-io=on"])?;
        Some(Self { device, _dir: dir })
    }

    /// Returns the requests that the block layer has completed on this device.
    fn completed(&self) -> Option<Completed> {
        let name = self.device.path.strip_prefix("/dev/")?;
        let text = std::fs::read_to_string(format!("/sys/block/{name}/stat")).ok()?;
        let fields: Vec<u64> = text
            .split_whitespace()
            .filter_map(|field| field.parse().ok())
            .collect();
        Some(Completed {
            writes: *fields.get(4)?,
            sectors_written: *fields.get(6)?,
            // Kernels before 5.5 do not count flushes.
            flushes: *fields.get(15)?,
        })
    }
}

/// Fields 5, 7 and 16 of `/sys/block/*/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Completed {
    writes: u64,
    sectors_written: u64,
    flushes: u64,
}

impl Completed {
    fn since(self, before: Self) -> Self {
        Self {
            writes: self.writes - before.writes,
            sectors_written: self.sectors_written - before.sectors_written,
            flushes: self.flushes - before.flushes,
        }
    }
}

/// The rule for comparing the two counts. Some kernel versions count the empty request that carries a flush as a write;
/// a run of flushes alone shows whether this version does.
struct Rule {
    writes_per_flush: u64,
}

impl Rule {
    fn find(looped: &Counted, device: &mut FileDevice) -> Self {
        const FLUSHES: u64 = 20;
        let before = looped.completed().unwrap();
        for _ in 0..FLUSHES {
            device.flush().unwrap();
        }
        // The kernel wakes the caller before it updates its counters.
        wait_until("the last flush", || {
            looped.completed().unwrap().since(before).flushes >= FLUSHES
        });
        let counted = looped.completed().unwrap().since(before);
        assert_eq!((counted.flushes, counted.sectors_written), (FLUSHES, 0));
        assert!(
            counted.writes == 0 || counted.writes == FLUSHES,
            "{counted:?}"
        );
        Self {
            writes_per_flush: counted.writes / FLUSHES,
        }
    }

    /// Returns the expected kernel counts between two states of our counters.
    fn expected(&self, before: Counters, after: Counters) -> Completed {
        let flushes = after.flushes - before.flushes;
        Completed {
            writes: after.writes - before.writes + flushes * self.writes_per_flush,
            sectors_written: (after.blocks_written - before.blocks_written)
                * (BLOCK_BYTES as u64 / 512),
            flushes,
        }
    }
}

/// Applies the same kind of operation to a store, with a different number each time.
type Work = fn(&mut Store<FileDevice>, u64);

const PHASES: &[(&str, u64, Work)] = &[
    ("appends of 100 bytes", 150, |store, number| {
        append(store, "records", &[number as u8; 100]);
    }),
    ("appends of 4,096 bytes", 150, |store, number| {
        append(store, "blocks", &[number as u8; 4096]);
    }),
    ("appends of 1 to 30,000 bytes", 50, |store, number| {
        append(
            store,
            "pieces",
            &vec![number as u8; (number * 7919 % 30_000 + 1) as usize],
        );
    }),
    ("creates", 100, |store, number| {
        let file = store.create(&format!("file {number}")).unwrap();
        store.close_file(file);
    }),
    ("replacements", 50, |store, number| {
        let content = vec![number as u8; (number * 1009 % 9000) as usize];
        store.replace(&format!("file {number}"), &content).unwrap();
    }),
    (
        "renamings, half of them over another file",
        50,
        |store, number| {
            let to = if number % 2 == 0 {
                51 + number
            } else {
                1000 + number
            };
            store
                .rename(&format!("file {number}"), &format!("file {to}"))
                .unwrap();
        },
    ),
    (
        "overwriting, cutting and filling up",
        40,
        |store, number| {
            let file = store.open_file("records").unwrap();
            store.write_at(file, number * 300, &[7; 500]).unwrap();
            store.truncate(file, 15_000 + number * 10).unwrap();
            store.close_file(file);
        },
    ),
    (
        "appends that are made durable at the end",
        20,
        |store, number| {
            let file = store.open_file("blocks").unwrap();
            for _ in 0..5 {
                store.append_nosync(file, &[number as u8; 1500]).unwrap();
            }
            store.sync().unwrap();
            store.close_file(file);
        },
    ),
    ("deletes", 50, |store, number| {
        let to = if number % 2 == 0 {
            51 + number
        } else {
            1000 + number
        };
        store.delete(&format!("file {to}")).unwrap();
    }),
    ("reading", 20, |store, number| {
        let file = store.open_file("pieces").unwrap();
        store.read(file, number * 1000, &mut [0; 10_000]).unwrap();
        store.close_file(file);
    }),
];

fn append(store: &mut Store<FileDevice>, name: &str, data: &[u8]) {
    let file = match store.open_file(name) {
        Err(flash::Error::NotFound) => store.create(name),
        other => other,
    };
    let file = file.unwrap();
    store.append(file, data).unwrap();
    store.close_file(file);
}

#[test]
fn the_kernel_has_counted_the_same_writes_and_flushes() {
    let Some(looped) = Counted::attach(64 << 20) else {
        return;
    };
    if looped.completed().is_none() {
        println!("skipped: this kernel does not count the flushes of a device");
        return;
    }
    let options = FileDeviceOptions {
        direct: true,
        exclusive: true,
        ..FileDeviceOptions::default()
    };
    let mut device = FileDevice::open(&looped.device.path, &options).unwrap();
    assert!(device.is_direct());
    let rule = Rule::find(&looped, &mut device);
    println!(
        "of each flush this kernel counts {} writes",
        rule.writes_per_flush
    );
    let begun = (device.counters(), looped.completed().unwrap());
    let format = FormatOptions {
        files_max: 1000,
        name_bytes_max: 40,
        uuid: [1; 16],
        hash_key: [2; 16],
    };
    let mut store = Store::format(device, &format).unwrap();
    settle(&rule, &looped, begun, store.device().counters(), "format");
    for (what, repetitions, work) in PHASES {
        let before = (store.device().counters(), looped.completed().unwrap());
        for number in 0..*repetitions {
            work(&mut store, number);
        }
        settle(&rule, &looped, before, store.device().counters(), what);
    }
    let before = (store.device().counters(), looped.completed().unwrap());
    let device = store.close().unwrap();
    let mut store = Store::open(device, &OpenOptions::default()).unwrap();
    settle(
        &rule,
        &looped,
        before,
        store.device().counters(),
        "close and open",
    );
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{report:?}");
    let device = store.close().unwrap();
    settle(&rule, &looped, begun, device.counters(), "everything");
}

/// Checks that the kernel's counts have grown by exactly the amount of ours.
fn settle(
    rule: &Rule,
    looped: &Counted,
    before: (Counters, Completed),
    after: Counters,
    what: &str,
) {
    let expected = rule.expected(before.0, after);
    // The kernel wakes the caller before it updates its counters. The loop waits for at most 2 s; later updates do not
    // occur.
    let mut counted = looped.completed().unwrap().since(before.1);
    for _ in 0..100 {
        if counted.flushes >= expected.flushes && counted.writes >= expected.writes {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        counted = looped.completed().unwrap().since(before.1);
    }
    println!(
        "{what}: {} writes, {} flushes, {} sectors by both counts",
        counted.writes - counted.flushes * rule.writes_per_flush,
        counted.flushes,
        counted.sectors_written
    );
    assert_eq!(counted, expected, "{what}");
}
