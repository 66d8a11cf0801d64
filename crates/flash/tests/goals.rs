//! Tests the maximum cost of single calls against fixed limits that are independent of `bounds()`. Many files are being
//! appended to, free space is fragmented, there is any fill, and there are very many files.

use crate::common;
use crate::common::bounds_of::bound_of;
use crate::common::medium::free_list;
use crate::common::meter::Meter;
use crate::common::{Files, Operation, Weights, content, lend, options};
use base::block::BlockDevice;
use base::sim::{FlatDevice, Random, SimDevice};
use flash::{Bound, Error, FileHandle, FormatOptions, OpenOptions, PAYLOAD_BYTES, Store};

/// Returns the goal; fields that the goal does not specify come from the published bound.
fn goal(reads: u64, writes: u64, flushes: u64, published: Bound) -> Bound {
    Bound {
        reads,
        writes,
        flushes,
        ..published
    }
}

fn append_goal<D: BlockDevice>(store: &Store<D>) -> Bound {
    goal(4, 3, 2, store.bounds().append(4096))
}

fn create_goal<D: BlockDevice>(store: &Store<D>) -> Bound {
    goal(4, 2, 2, store.bounds().create())
}

fn delete_goal<D: BlockDevice>(store: &Store<D>) -> Bound {
    goal(4, 2, 2, store.bounds().delete())
}

fn many_open() -> OpenOptions {
    OpenOptions {
        open_files_max: 140,
        ..OpenOptions::default()
    }
}

/// Writes files in turn, so that their blocks are mixed, then makes gaps between them.
fn fragment<D: BlockDevice>(store: &mut Store<D>, files: &mut Files, count: usize) {
    let mut random = Random::new(7);
    let run = |store: &mut Store<D>, files: &mut Files, operation: Operation| match operation
        .run(store)
    {
        Ok(()) => operation.apply(files),
        Err(Error::Full) => {}
        Err(error) => panic!("{}: {error}", operation.brief()),
    };
    for round in 0..4 {
        for number in 0..count {
            let name = format!("file-{number}");
            if round == 0 {
                run(store, files, Operation::Create(name.clone()));
            }
            let length = random.index(3 * PAYLOAD_BYTES) + 1;
            let data = content(&mut random, length);
            run(store, files, Operation::Append(name, data));
        }
    }
    for number in (0..count).step_by(3) {
        run(store, files, Operation::Delete(format!("file-{number}")));
    }
    for number in (1..count).step_by(3) {
        let name = format!("file-{number}");
        let length = files.get(&name).map_or(0, |content| content.len());
        run(
            store,
            files,
            Operation::Truncate(name, random.below(length as u64 + 1)),
        );
    }
}

/// Fills the free space except for `percent_free` percent of the store with one file. It goes piece by piece, so that
/// it stops when the store is full.
fn fill<D: BlockDevice>(store: &mut Store<D>, percent_free: u64) {
    let file = store.create("ballast").unwrap();
    let chunk = vec![7; 2 * PAYLOAD_BYTES];
    loop {
        let statistics = store.statistics();
        if statistics.blocks_free * 100 <= statistics.blocks_total * percent_free {
            break;
        }
        match store.append(file, &chunk) {
            Ok(()) => {}
            Err(Error::Full) => break,
            Err(error) => panic!("{error}"),
        }
    }
    store.close_file(file);
}

/// Returns a handle on the file, which is created if it does not exist.
fn handle(
    store: &mut Store<SimDevice>,
    files: &mut Files,
    name: &str,
    meter: &mut Meter,
) -> FileHandle {
    if files.contains_key(name) {
        return store.open_file(name).unwrap();
    }
    let limit = create_goal(store);
    let file = meter.measure(store, "create", limit, |store| store.create(name));
    files.insert(name.to_owned(), Vec::new().into());
    file.unwrap()
}

/// Appends 4,096 bytes to each of 100 files in random order, with all other calls in between.
fn appends(device_blocks: u64, percent_free: u64, calls: usize) -> Meter {
    const FILES: usize = 100;
    let store = Store::format(SimDevice::new(device_blocks, 1), &options(140)).unwrap();
    let mut store = Store::open(store.close().unwrap(), &many_open()).unwrap();
    let mut files = Files::new();
    fragment(&mut store, &mut files, 120);
    fill(&mut store, percent_free);
    let mut random = Random::new(percent_free);
    let mut meter = Meter::default();
    let weights = Weights {
        append: 0,
        create: 0,
        reopen: 0,
        ..Weights::ALL
    };
    for _ in 0..calls {
        let name = format!("file-{}", random.index(FILES));
        if random.below(4) != 0 {
            let operation = Operation::Append(name.clone(), content(&mut random, 4096));
            let file = handle(&mut store, &mut files, &name, &mut meter);
            let limit = append_goal(&store);
            let result = meter.measure(&mut store, "append 4096", limit, |store| {
                operation.run_on(store, file)
            });
            store.close_file(file);
            match result {
                Ok(()) => operation.apply(&mut files),
                Err(Error::Full) => {
                    // Make room, as a program that writes a log does.
                    let victim = Operation::Delete(name);
                    let limit = delete_goal(&store);
                    let deleted =
                        meter.measure(&mut store, "delete", limit, |store| victim.run(store));
                    deleted.unwrap();
                    victim.apply(&mut files);
                }
                Err(error) => panic!("{error}"),
            }
            continue;
        }
        let operation = weights.draw(&mut random, &files, FILES, 20_000);
        let bounds = store.bounds();
        let (call, mut limit) = bound_of(&operation, &files, &bounds);
        if matches!(operation, Operation::Delete(_)) {
            limit = delete_goal(&store);
        }
        let result = match operation.changed_file() {
            None => meter.measure(&mut store, call, limit, |store| operation.run(store)),
            Some(changed) => store.open_file(changed).and_then(|file| {
                let result = meter.measure(&mut store, call, limit, |store| {
                    operation.run_on(store, file)
                });
                store.close_file(file);
                result
            }),
        };
        match (result, operation.changed_file()) {
            (Ok(()), _) => operation.apply(&mut files),
            (Err(Error::Full), Some(changed)) => {
                let found = common::read_file(&mut store, changed).unwrap();
                files.insert(changed.to_owned(), found.into());
            }
            _ => {}
        }
    }
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    meter
}

#[test]
fn a_block_append_never_costs_much_with_a_hundred_files_at_any_fill() {
    for (device_blocks, percent_free) in [
        (32_768, 99),
        (16_384, 50),
        (8192, 10),
        (8192, 1),
        (4000, 1),
        (4000, 0),
    ] {
        let meter = appends(device_blocks, percent_free, 5000);
        meter.report(&format!(
            "appends to 100 files, {device_blocks} blocks, {percent_free} % free"
        ));
        let worst = meter.worst("append 4096");
        assert!(worst.writes > 0, "no append at {percent_free} % free");
    }
}

/// Ten thousand files, some with many runs, are deleted one after the other: the freed pieces of each must go
/// somewhere.
#[test]
fn ten_thousand_deletions_in_a_row_cost_the_same_each() {
    const FILES: usize = 10_000;
    let mut device = FlatDevice::new(160_000);
    let store = Store::format(lend(&mut device), &options(FILES as u64)).unwrap();
    let mut store = Store::open(store.close().unwrap(), &many_open()).unwrap();
    let mut random = Random::new(3);
    let mut meter = Meter::default();
    let mut order: Vec<usize> = (0..FILES).collect();
    let data = content(&mut random, 40_000);
    for number in &order {
        let name = format!("file-{number}");
        let limit = create_goal(&store);
        let file = meter.measure(&mut store, "create", limit, |store| store.create(&name));
        store.close_file(file.unwrap());
    }
    // Two rounds in different orders, so that the runs of a file are apart; a third round for some.
    for round in 0..3 {
        random.shuffle(&mut order);
        for number in order
            .iter()
            .take(if round == 2 { FILES / 4 } else { FILES })
        {
            let file = store.open_file(&format!("file-{number}")).unwrap();
            let length = random.index([4096, 9000, 40_000][round]) + 1;
            store.append(file, &data[..length]).unwrap();
            store.close_file(file);
        }
    }
    random.shuffle(&mut order);
    for number in &order {
        let name = format!("file-{number}");
        let limit = delete_goal(&store);
        let deleted = meter.measure(&mut store, "delete", limit, |store| store.delete(&name));
        deleted.unwrap();
    }
    let statistics = store.statistics();
    // The store may keep a few blocks for the next list of free pieces.
    assert!(statistics.blocks_free + 4 >= statistics.blocks_total);
    // All freed blocks can be allocated again, at the cost of an append.
    let file = store.create("again").unwrap();
    let mut blocks_left = statistics.blocks_total * 9 / 10;
    while blocks_left > 0 {
        let limit = append_goal(&store);
        let appended = meter.measure(&mut store, "append 4096", limit, |store| {
            store.append(file, &data[..4096])
        });
        appended.unwrap();
        blocks_left = blocks_left.saturating_sub(8);
    }
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    meter.report("ten thousand deletions in a row");
}

/// Truncating files one after the other frees as many pieces as deletions do.
#[test]
fn truncations_and_renames_in_a_row_stay_within_their_bounds() {
    const FILES: usize = 2000;
    let mut device = FlatDevice::new(60_000);
    let store = Store::format(lend(&mut device), &options(FILES as u64)).unwrap();
    let mut store = Store::open(store.close().unwrap(), &many_open()).unwrap();
    let mut random = Random::new(4);
    let mut meter = Meter::default();
    let mut files = Files::new();
    for round in 0..2 {
        for number in 0..FILES {
            let name = format!("file-{number}");
            if round == 0 {
                Operation::Create(name.clone()).run(&mut store).unwrap();
                files.insert(name.clone(), Vec::new().into());
            }
            let length = random.index(24_000) + 1;
            let operation = Operation::Append(name, content(&mut random, length));
            operation.run(&mut store).unwrap();
            operation.apply(&mut files);
        }
    }
    for _ in 0..2 {
        for number in 0..FILES {
            let name = format!("file-{number}");
            let length = random.below(files[&name].len() as u64 + 1);
            let operation = Operation::Truncate(name.clone(), length);
            let (call, limit) = bound_of(&operation, &files, &store.bounds());
            let file = store.open_file(&name).unwrap();
            let cut = meter.measure(&mut store, call, limit, |store| {
                operation.run_on(store, file)
            });
            cut.unwrap();
            store.close_file(file);
            operation.apply(&mut files);
        }
    }
    for number in (0..FILES).step_by(2) {
        let operation = Operation::Rename(format!("file-{number}"), format!("file-{}", number + 1));
        let (call, limit) = bound_of(&operation, &files, &store.bounds());
        let renamed = meter.measure(&mut store, call, limit, |store| operation.run(store));
        renamed.unwrap();
        operation.apply(&mut files);
    }
    common::totals::assert_agrees(&mut store, &files, "afterwards");
    meter.report("truncations and renames in a row");
}

/// Renames over files free pieces in records that cannot spill a list; the next call must not pay for them.
#[test]
fn a_delete_after_many_renames_costs_no_more_than_any_delete() {
    const FILES: usize = 1200;
    let store = Store::format(SimDevice::new(40_000, 1), &options(FILES as u64)).unwrap();
    let mut store = Store::open(store.close().unwrap(), &many_open()).unwrap();
    let mut meter = Meter::default();
    for number in 0..FILES {
        store.replace(&format!("file-{number}"), b"").unwrap();
    }
    // In turn, so that the runs of a file are apart; some free one piece, some more.
    for round in 0..4 {
        for number in (0..FILES).filter(|number| number % 7 >= round) {
            let file = store.open_file(&format!("file-{number}")).unwrap();
            store.append(file, &vec![1; 9000 + 1000 * round]).unwrap();
            store.close_file(file);
        }
    }
    let mut numbers = 0..FILES;
    let mut name = || format!("file-{}", numbers.next().unwrap());
    let mut pieces_most = 0;
    // Try every length of the list of free pieces that renames can produce before the delete.
    for pieces in 44..64 {
        for _ in 0..25 {
            if free_list(store.device()).1 >= pieces {
                break;
            }
            let (from, to) = (name(), name());
            let limit = store.bounds().rename();
            let renamed = meter.measure(&mut store, "rename", limit, |store| {
                store.rename(&from, &to)
            });
            renamed.unwrap();
        }
        pieces_most = pieces_most.max(free_list(store.device()).1);
        let victim = name();
        let limit = delete_goal(&store);
        let deleted = meter.measure(&mut store, "delete", limit, |store| store.delete(&victim));
        deleted.unwrap();
    }
    assert!(pieces_most > 48, "only {pieces_most} pieces");
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    meter.report("a delete after many renames");
}

/// One file of a full store is deleted: its runs are the only free space. The next append needs one at once, and also
/// has to write back another file.
#[test]
fn an_append_into_the_space_of_a_deleted_file_costs_no_more_than_any_append() {
    let mut meter = Meter::default();
    for shape in 1..80 {
        let store = Store::format(SimDevice::new(900, 1), &options(60)).unwrap();
        let mut store = Store::open(store.close().unwrap(), &many_open()).unwrap();
        let handles: Vec<FileHandle> = (0..40)
            .map(|number| store.create(&format!("file-{number}")).unwrap())
            .collect();
        let victim = store.create("victim").unwrap();
        for round in 0..shape {
            store.append(victim, &vec![1; 1500 + 97 * shape]).unwrap();
            if round % 3 == 0 {
                let other = handles[round % handles.len()];
                store.append(other, &[2; 5000]).unwrap();
            }
        }
        // Each file gets a run, and more files are appended to than the root has slots.
        for handle in &handles {
            store.append(*handle, &[4; 100]).unwrap();
        }
        // Append until nothing fits any more, so that neither a piece nor a cluster is left.
        let ballast = store.create("ballast").unwrap();
        while store.append(ballast, &[3; PAYLOAD_BYTES]).is_ok() {}
        for handle in &handles {
            while store.append(*handle, &[4; 3000]).is_ok() {}
        }
        let limit = delete_goal(&store);
        let deleted = meter.measure(&mut store, "delete", limit, |store| store.delete("victim"));
        deleted.unwrap();
        for handle in handles.iter().take(3) {
            let limit = append_goal(&store);
            let appended = meter.measure(&mut store, "append 4096", limit, |store| {
                store.append(*handle, &[5; 4096])
            });
            assert!(
                matches!(appended, Ok(()) | Err(Error::Full)),
                "{appended:?}"
            );
        }
        let report = store.check().unwrap();
        assert!(report.is_clean(), "shape {shape}: {:?}", report.problems);
    }
    meter.report("an append that finds nothing but a deleted file");
}

/// Returns the block reads for opening a file by its name: the 99th percentile and the maximum.
fn open_reads(store: &mut Store<&mut dyn BlockDevice>, count: usize) -> (u64, u64) {
    let mut random = Random::new(count as u64);
    let mut costs: Vec<u64> = (0..10_000)
        .map(|_| {
            let name = format!("file-{}", random.index(count));
            let before = store.device().counters().blocks_read;
            let file = store.open_file(&name).unwrap();
            let reads = store.device().counters().blocks_read - before;
            store.close_file(file);
            reads
        })
        .collect();
    costs.sort_unstable();
    (costs[costs.len() * 99 / 100], costs[costs.len() - 1])
}

#[test]
fn opening_by_name_reads_as_much_among_a_million_files_as_among_a_hundred() {
    let mut seen = Vec::new();
    for count in [100, 1_000_000] {
        // Short names make a small table; the number of blocks read does not depend on its size.
        let options = FormatOptions {
            name_bytes_max: 16,
            ..options(count as u64)
        };
        let mut device = FlatDevice::new(140_000);
        let mut store = Store::format(lend(&mut device), &options).unwrap();
        let mut meter = Meter::default();
        for number in 0..count {
            let limit = create_goal(&store);
            let name = format!("file-{number}");
            let file = meter.measure(&mut store, "create", limit, |store| store.create(&name));
            store.close_file(file.unwrap());
        }
        let reads = open_reads(&mut store, count);
        println!(
            "opening by name among {count} files: {} block reads at the 99th percentile, {} at most",
            reads.0, reads.1
        );
        assert!(reads.1 <= store.bounds().open().blocks_read);
        // Delete some names of a full table, at the cost of any other delete.
        for number in (0..count).step_by(count / 100) {
            let limit = delete_goal(&store);
            let name = format!("file-{number}");
            let deleted = meter.measure(&mut store, "delete", limit, |store| store.delete(&name));
            deleted.unwrap();
        }
        meter.report(&format!("{count} files"));
        seen.push(reads);
    }
    assert_eq!(seen[0], seen[1]);
}

/// A cold random read in a file of n blocks follows at most ceil(log2 n) pointers, and reads each block once.
#[test]
fn a_cold_random_read_is_logarithmic() {
    let mut device = FlatDevice::new(40_000);
    let store = Store::format(lend(&mut device), &options(4)).unwrap();
    let mut store = Store::open(store.close().unwrap(), &OpenOptions::default()).unwrap();
    let file = store.create("long").unwrap();
    let chunk = vec![3; 64 * PAYLOAD_BYTES];
    let mut random = Random::new(1);
    for round in 0..9 {
        for _ in 0..1 << round {
            store.append(file, &chunk).unwrap();
        }
        let blocks = store.length(file).unwrap().div_ceil(PAYLOAD_BYTES as u64);
        let levels = u64::from(blocks.next_power_of_two().trailing_zeros());
        let device = store.close().unwrap();
        let cold = OpenOptions {
            addresses_max: 1,
            ..OpenOptions::default()
        };
        let mut cold = Store::open(device, &cold).unwrap();
        let handle = cold.open_file("long").unwrap();
        let mut most = 0;
        for _ in 0..2000 {
            let block = random.below(blocks);
            let before = cold.device().counters().blocks_read;
            let mut bytes = [0; 100];
            let offset = block * PAYLOAD_BYTES as u64 + 1000;
            assert_eq!(cold.read(handle, offset, &mut bytes).unwrap(), 100);
            assert_eq!(bytes, [3; 100]);
            most = most.max(cold.device().counters().blocks_read - before);
        }
        println!("a read in a file of {blocks} blocks: at most {most} block reads");
        assert!(most <= 1 + levels, "{most} reads, {blocks} blocks");
        store = Store::open(cold.close().unwrap(), &OpenOptions::default()).unwrap();
        assert_eq!(store.open_file("long").unwrap(), file);
    }
}

#[test]
fn a_store_of_16_gib_takes_less_than_a_mebibyte_of_memory() {
    let device = SimDevice::new(4 << 20, 1);
    let store = Store::format(device, &options(10_000)).unwrap();
    let few_open = OpenOptions {
        open_files_max: 32,
        ..OpenOptions::default()
    };
    let store = Store::open(store.close().unwrap(), &few_open).unwrap();
    let bytes = store.bounds().memory_bytes();
    println!("a store of 16 GiB with 32 open files takes {bytes} bytes of memory");
    assert!(bytes < 1 << 20);
}
