//! No call exceeds its bound: random workloads on a counting device, at three fills and up to 100,000 files;
//! and the amortised cost of the calls that matter.

mod common;

use base::block::{BLOCK_BYTES, BlockDevice, Counters};
use base::sim::{Random, SimDevice};
use common::{Operation, options, reopen};
use flash::{Bound, Error, OpenOptions, PAYLOAD_BYTES, Store};

struct Meter {
    before: Counters,
    worst: std::collections::BTreeMap<&'static str, Bound>,
    calls: u64,
}

impl Meter {
    fn new() -> Self {
        Self {
            before: Counters::default(),
            worst: std::collections::BTreeMap::new(),
            calls: 0,
        }
    }

    fn start(&mut self, store: &mut Store<SimDevice>) {
        store.device_mut().reset_write_blocks_max();
        self.before = store.device().counters();
    }

    fn stop(&mut self, store: &Store<SimDevice>, call: &'static str, bound: Bound) {
        let now = store.device().counters();
        let cost = Bound {
            reads: now.blocks_read - self.before.blocks_read,
            writes: now.writes - self.before.writes,
            flushes: now.flushes - self.before.flushes,
            blocks_written: now.blocks_written - self.before.blocks_written,
        };
        assert!(
            cost.reads <= bound.reads
                && cost.writes <= bound.writes
                && cost.flushes <= bound.flushes
                && cost.blocks_written <= bound.blocks_written,
            "{call}: {cost:?} exceeds {bound:?}"
        );
        assert!(
            now.write_blocks_max <= 4,
            "{call}: a request of {} blocks",
            now.write_blocks_max
        );
        let worst = self.worst.entry(call).or_default();
        worst.reads = worst.reads.max(cost.reads);
        worst.writes = worst.writes.max(cost.writes);
        worst.flushes = worst.flushes.max(cost.flushes);
        worst.blocks_written = worst.blocks_written.max(cost.blocks_written);
        self.calls += 1;
    }

    fn report(&self, name: &str) {
        println!(
            "bounds, {name}: {} calls within their bounds; most seen:",
            self.calls
        );
        for (call, worst) in &self.worst {
            println!(
                "  {call:8} {:3} reads {:2} writes {:2} flushes {:3} KiB",
                worst.reads,
                worst.writes,
                worst.flushes,
                worst.blocks_written * 4
            );
        }
    }
}

/// Runs one random call with its bound.
fn metered(store: &mut Store<SimDevice>, random: &mut Random, names: usize, meter: &mut Meter) {
    let operation = common::operation(random, names, 60_000);
    let bounds = store.bounds();
    match &operation {
        Operation::Create(name) => {
            meter.start(store);
            let created = store.create(name);
            meter.stop(store, "create", bounds.create());
            if let Ok(file) = created {
                store.close_file(file);
            }
        }
        Operation::Append(name, data) => {
            meter.start(store);
            let opened = store.open_file(name);
            meter.stop(store, "open", bounds.open());
            if let Ok(file) = opened {
                meter.start(store);
                let _ = store.append(file, data);
                meter.stop(store, "append", bounds.append(data.len() as u64));
                let length = store.length(file).unwrap();
                let mut buffer = vec![0; random.index(9000) + 1];
                let offset = random.below(length + 1);
                meter.start(store);
                store.read(file, offset, &mut buffer).unwrap();
                meter.stop(store, "read", bounds.read(buffer.len() as u64));
                store.close_file(file);
            }
        }
        Operation::Replace(name, data) => {
            meter.start(store);
            let _ = store.replace(name, data);
            meter.stop(store, "replace", bounds.replace(data.len() as u64));
        }
        Operation::Delete(name) => {
            meter.start(store);
            let _ = store.delete(name);
            meter.stop(store, "delete", bounds.delete());
        }
        Operation::Reopen => {}
    }
}

/// Fills the store to `percent` of its blocks with one file that stays.
fn fill(store: &mut Store<SimDevice>, percent: u64) {
    let statistics = store.statistics();
    let used = statistics.blocks_total - statistics.blocks_free;
    let wanted = (statistics.blocks_total * percent / 100).saturating_sub(used);
    let file = store.create("ballast").unwrap();
    let chunk = vec![7; 256 * PAYLOAD_BYTES];
    let mut left = wanted as usize * PAYLOAD_BYTES;
    while left > 0 {
        let length = left.min(chunk.len());
        match store.append(file, &chunk[..length]) {
            Ok(()) => {}
            Err(Error::Full) => break,
            Err(error) => panic!("{error}"),
        }
        left -= length;
    }
    store.close_file(file);
}

fn workload(files: u64, device_blocks: u64, percent: u64, calls: usize) {
    let mut random = Random::new(files * 1000 + percent);
    let mut store = Store::format(SimDevice::new(device_blocks, 1), &options(files)).unwrap();
    let mut meter = Meter::new();
    for number in 0..files.saturating_sub(1) {
        let bounds = store.bounds();
        meter.start(&mut store);
        let file = store.create(&format!("file-{number}")).unwrap();
        meter.stop(&store, "create", bounds.create());
        store.close_file(file);
    }
    fill(&mut store, percent);
    for _ in 0..calls {
        metered(&mut store, &mut random, files as usize, &mut meter);
    }
    let bounds = store.bounds();
    // Opening after a power cut.
    let device = store.device().crash_image_random(5);
    let before = device.counters();
    let mut store = Store::open(device, &OpenOptions::default()).unwrap();
    meter.before = before;
    meter.stop(&store, "mount", bounds.mount());
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    meter.report(&format!("{files} files, {percent} % full"));
}

#[test]
fn one_file() {
    for percent in [1, 50, 99] {
        workload(1, 4096, percent, 600);
    }
}

#[test]
fn a_hundred_files() {
    for percent in [1, 50, 99] {
        workload(100, 8192, percent, 4000);
    }
}

#[test]
fn a_hundred_files_churning_on_a_small_store() {
    for percent in [1, 50, 99] {
        workload(100, 1200, percent, 6000);
    }
}

#[test]
fn ten_thousand_files() {
    for percent in [1, 50, 99] {
        workload(10_000, 65_536, percent, 4000);
    }
}

#[test]
fn a_hundred_thousand_files() {
    for percent in [1, 50, 99] {
        workload(100_000, 131_072, percent, 4000);
    }
}

/// Amortised cost of one call, by repeating it.
fn amortised(
    calls: u64,
    store: &mut Store<SimDevice>,
    mut call: impl FnMut(&mut Store<SimDevice>, u64),
) -> [f64; 4] {
    let before = store.device().counters();
    for number in 0..calls {
        call(store, number);
    }
    let after = store.device().counters();
    let each = |now: u64, then: u64| (now - then) as f64 / calls as f64;
    [
        each(after.writes, before.writes),
        each(after.flushes, before.flushes),
        each(after.blocks_written, before.blocks_written) * BLOCK_BYTES as f64 / 1024.0,
        each(after.blocks_read, before.blocks_read),
    ]
}

#[test]
fn a_durable_block_append_costs_little_more_than_one_write_and_exactly_one_flush() {
    let mut store = Store::format(SimDevice::new(65_536, 1), &options(100)).unwrap();
    let file = store.create("log").unwrap();
    let data = [5; 4096];
    let [writes, flushes, kibibytes, reads] = amortised(10_000, &mut store, |store, _| {
        store.append(file, &data).unwrap()
    });
    println!(
        "append 4096 B: {writes:.3} writes, {flushes:.3} flushes, {kibibytes:.2} KiB, {reads:.3} reads"
    );
    assert!(
        writes <= 1.05 && flushes <= 1.0 && kibibytes <= 8.5,
        "{writes} {flushes} {kibibytes}"
    );

    // The same on blocks that a deleted file leaves behind.
    let mut store = reopen(store);
    store.delete("log").unwrap();
    fill(&mut store, 1);
    let file = store.create("again").unwrap();
    let frontier_filler = store.statistics().blocks_free;
    assert!(frontier_filler > 20_000);
    let [writes, flushes, kibibytes, reads] = amortised(10_000, &mut store, |store, _| {
        store.append(file, &data).unwrap()
    });
    println!(
        "  on freed blocks: {writes:.3} writes, {flushes:.3} flushes, {kibibytes:.2} KiB, {reads:.3} reads"
    );
    assert!(
        writes <= 1.05 && flushes <= 1.0 && kibibytes <= 8.5,
        "{writes} {flushes} {kibibytes}"
    );

    let file = store.create("small").unwrap();
    let [writes, flushes, kibibytes, _] = amortised(10_000, &mut store, |store, _| {
        store.append(file, &data[..100]).unwrap()
    });
    println!("append 100 B: {writes:.3} writes, {flushes:.3} flushes, {kibibytes:.2} KiB");
    assert!(writes <= 1.05 && flushes <= 1.0 && kibibytes <= 4.5);

    let [writes, flushes, kibibytes, reads] = amortised(10_000, &mut store, |store, number| {
        let file = store.create(&format!("new-{}", number % 90)).unwrap();
        store.close_file(file);
        if number % 90 == 89 {
            for name in 0..90 {
                store.delete(&format!("new-{name}")).unwrap();
            }
        }
    });
    println!(
        "create and delete: {writes:.3} writes, {flushes:.3} flushes, {kibibytes:.2} KiB, {reads:.3} reads"
    );
}
