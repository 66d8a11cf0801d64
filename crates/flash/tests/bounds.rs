//! Tests that no call exceeds its bound, with random workloads on a counting device, at three fills and up to 100,000
//! files. Tests also the amortised cost of the important calls. `goals.rs` holds the limits that are independent of the
//! store's own bounds.

use crate::common::bounds_of::bound_of;
use crate::common::meter::Meter;
use crate::common::{Files, Operation, Weights, content, options, read_file, reopen};
use base::block::{BLOCK_BYTES, BlockDevice};
use base::sim::{Random, SimDevice};
use flash::{Error, OpenOptions, PAYLOAD_BYTES, Store};

/// Runs one random call with its bound; opening the file for a call is measured separately.
fn metered(
    store: &mut Store<SimDevice>,
    random: &mut Random,
    names: usize,
    files: &mut Files,
    meter: &mut Meter,
) {
    let weights = Weights {
        reopen: 0,
        sync: 2,
        ..Weights::WITH_PIECES
    };
    let operation = weights.draw(random, files, names, 60_000);
    let bounds = store.bounds();
    let (call, limit) = bound_of(&operation, files, &bounds);
    let Some(name) = operation.changed_file() else {
        let result = meter.measure(store, call, limit, |store| match &operation {
            // Keep the handle open during the measurement: it may be the last one.
            Operation::Create(name) => store.create(name).map(Some),
            other => other.run(store).map(|()| None),
        });
        if let Ok(created) = result {
            created.into_iter().for_each(|file| store.close_file(file));
            operation.apply(files);
        }
        return;
    };
    let opened = meter.measure(store, "open", bounds.open(), |store| store.open_file(name));
    let Ok(file) = opened else {
        return;
    };
    let result = meter.measure(store, call, limit, |store| operation.run_on(store, file));
    let length = store.length(file).unwrap();
    let read_bytes_max = [9_000, 200_000][random.index(2)];
    let mut buffer = vec![0; random.index(read_bytes_max) + 1];
    let offset = random.below(length + 1);
    let limit = bounds.read(buffer.len() as u64);
    meter.measure(store, "read", limit, |store| {
        store.read(file, offset, &mut buffer).unwrap();
    });
    store.close_file(file);
    match result {
        Ok(()) => operation.apply(files),
        Err(Error::Full) => {
            let content = read_file(store, name).unwrap();
            files.insert(name.to_owned(), content.into());
        }
        Err(error) => panic!("{}: {error}", operation.brief()),
    }
}

/// Fills the store to `percent` of its blocks with one file that is never deleted.
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

fn workload(count: u64, device_blocks: u64, percent: u64, calls: usize) {
    let mut random = Random::new(count * 1000 + percent);
    let mut store = Store::format(SimDevice::new(device_blocks, 1), &options(count)).unwrap();
    let mut meter = Meter::default();
    let mut files = Files::new();
    for number in 0..count.saturating_sub(1) {
        let name = format!("file-{number}");
        let limit = store.bounds().create();
        let file = meter.measure(&mut store, "create", limit, |store| store.create(&name));
        store.close_file(file.unwrap());
        files.insert(name, Vec::new().into());
    }
    // Give files content that can be deleted and truncated when the store is full.
    for number in 0..count.saturating_sub(1).min(100) {
        let name = format!("file-{number}");
        let length = random.index(6000) + 1;
        let operation = Operation::Append(name, content(&mut random, length));
        operation.run(&mut store).unwrap();
        operation.apply(&mut files);
    }
    fill(&mut store, percent);
    for _ in 0..calls {
        metered(
            &mut store,
            &mut random,
            count as usize,
            &mut files,
            &mut meter,
        );
    }
    let bounds = store.bounds();
    meter.measure(&mut store, "list", bounds.list(), |store| {
        store.list(&mut |_, _| {}).unwrap();
    });
    // Measure opening after a power cut.
    let device = store.device().crash_image_random(5);
    let before = device.counters();
    let mut store = Store::open(device, &OpenOptions::default()).unwrap();
    meter.judge("mount", before, store.device().counters(), bounds.mount());
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    let before = store.device().counters();
    let device = store.close().unwrap();
    meter.judge("close", before, device.counters(), bounds.close());
    meter.report(&format!("{count} files, {percent} % full"));
}

#[test]
fn one_file_stays_within_the_bounds() {
    for percent in [1, 50, 99] {
        workload(1, 4096, percent, 600);
    }
}

#[test]
fn a_hundred_files_stay_within_the_bounds() {
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
fn ten_thousand_files_stay_within_the_bounds() {
    for percent in [1, 50, 99] {
        workload(10_000, 65_536, percent, 4000);
    }
}

#[test]
fn a_hundred_thousand_files_stay_within_the_bounds() {
    for percent in [1, 50, 99] {
        workload(100_000, 131_072, percent, 4000);
    }
}

/// Returns the amortised cost of one call, by repeating it.
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

    // The same on blocks of a deleted file.
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
