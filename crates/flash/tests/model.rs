//! Tests random calls against the reference model, without faults: results, content, statistics and structure must
//! agree.

use crate::common;
use std::collections::BTreeMap;

use crate::common::handles::Kept;
use crate::common::oracle::is_refused_half_way;
use crate::common::totals::{
    BLOCKS_OWNED_BEYOND_MAX, assert_agrees, assert_counts, assert_nothing_leaked,
};
use crate::common::{
    Content, Files, Model, Operation, Weights, content, options, outcome_is_right, read_all,
    read_file, reopen,
};
use base::block::BlockDevice;
use base::sim::{Random, SimDevice};
use flash::{Error, OpenOptions, PAYLOAD_BYTES, Store};
use proptest::prelude::{Strategy, prop_assert, prop_oneof};

/// Runs a call, compares its result with the model, and updates the model. A refused call must not have taken any
/// blocks.
fn step<C: Content>(
    store: &mut Store<SimDevice>,
    kept: &mut Kept,
    model: &mut BTreeMap<String, C>,
    operation: &Operation,
    context: &str,
) -> Result<(), Error> {
    let free = store.statistics().blocks_free;
    let answer = operation.answer_with(store, kept);
    if let (Ok(done), Some(name)) = (&answer, operation.changed_file()) {
        assert_eq!(*done, operation.is_done(model[name].bytes()), "{context}");
    }
    let result = answer.map(drop);
    assert!(
        outcome_is_right(operation, model, &result),
        "{context}: {result:?}"
    );
    match (&result, operation.changed_file()) {
        (Ok(()), _) => {
            operation.apply(model);
            kept.after(operation);
        }
        (Err(Error::Full), Some(name)) => {
            // A call with several steps may have done some of them.
            let found = read_file(store, name).unwrap();
            let old = &model[name];
            assert!(
                is_refused_half_way(operation, old.bytes(), &found),
                "{context}: refused, and {} bytes became {}",
                old.bytes().len(),
                found.len()
            );
            if found == old.bytes() {
                // An evicted file may have given back its reserved blocks.
                assert!(
                    store.statistics().blocks_free >= free,
                    "{context}: a refused call took blocks"
                );
            }
            model.insert(name.to_owned(), C::from(found));
        }
        _ => assert!(
            store.statistics().blocks_free >= free,
            "{context}: a refused call took blocks"
        ),
    }
    result
}

/// Runs `calls` random calls, some of them with handles that stay open. Checks each result, and everything from time to
/// time.
fn run(
    seed: u64,
    device_blocks: u64,
    files: usize,
    calls: usize,
    long_max: usize,
    weights: Weights,
) {
    let mut random = Random::new(seed);
    let mut store =
        Store::format(SimDevice::new(device_blocks, seed), &options(files as u64)).unwrap();
    let mut model = Files::new();
    let mut kept = Kept::default();
    for number in 0..calls {
        let operation = weights.draw(&mut random, &model, files, long_max);
        if operation == Operation::Reopen {
            store = reopen(store);
        }
        let context = format!("seed {seed} call {number} {}", operation.brief());
        let _ = step(&mut store, &mut kept, &mut model, &operation, &context);
        match random.below(12) {
            0 if kept.count() < 10 && !model.is_empty() => {
                let place = random.index(model.len());
                let name = model.keys().nth(place).unwrap();
                kept.open(&mut store, name, &context);
            }
            1 => kept.close(&mut store, &mut random),
            2 | 3 => kept.check(&mut store, &model, &mut random, &context),
            _ => {}
        }
        if number % 64 == 0 || number + 1 == calls {
            assert_agrees(&mut store, &model, &context);
        }
    }
    let context = format!("seed {seed}, emptied");
    assert_nothing_leaked(&mut store, &model, &context);
}

/// Only names, appends and replacements.
const PLAIN: Weights = Weights {
    create: 4,
    append: 9,
    replace: 3,
    delete: 3,
    rename: 0,
    write_at: 0,
    truncate: 0,
    append_nosync: 0,
    write_at_nosync: 0,
    sync: 0,
    reopen: 1,
    write_pieces_nosync: 0,
    write_pieces_at_once: 0,
};

/// Mostly changes of existing content.
const EDITING: Weights = Weights {
    rename: 6,
    write_at: 16,
    truncate: 16,
    write_pieces_nosync: 10,
    write_pieces_at_once: 20,
    ..Weights::ALL
};

#[test]
fn few_files_on_a_roomy_store_agree_with_the_model() {
    for seed in 0..8 {
        run(seed, 8192, 6, 600, 200_000, PLAIN);
        run(seed, 8192, 6, 600, 200_000, Weights::WITH_PIECES);
        run(seed, 8192, 6, 600, 100_000, EDITING);
    }
}

#[test]
fn more_files_than_slots_agree_with_the_model() {
    for seed in 100..103 {
        run(seed, 16384, 90, 1500, 30_000, PLAIN);
        run(seed, 16384, 90, 1500, 30_000, Weights::WITH_PIECES);
        run(seed, 16384, 90, 1500, 30_000, EDITING);
    }
}

#[test]
fn a_store_that_is_full_most_of_the_time() {
    for seed in 200..206 {
        run(seed, 320, 24, 1500, 120_000, PLAIN);
        run(seed, 320, 24, 1500, 120_000, Weights::WITH_PIECES);
        run(seed, 320, 24, 1500, 60_000, EDITING);
    }
}

#[test]
fn many_deletions_spill_the_free_list() {
    for seed in 300..304 {
        let mut random = Random::new(seed);
        let mut store = Store::format(SimDevice::new(32768, seed), &options(2000)).unwrap();
        let mut model = Model::new();
        for round in 0..6 {
            for number in 0..400 {
                let name = format!("file-{number}");
                if random.coin() {
                    let length = common::length(&mut random, 20_000);
                    let operation = Operation::Replace(name, common::content(&mut random, length));
                    operation.run(&mut store).unwrap();
                    operation.apply(&mut model);
                }
            }
            for number in 0..400 {
                let name = format!("file-{number}");
                if model.contains_key(&name) && random.below(10) < 8 {
                    store.delete(&name).unwrap();
                    model.remove(&name);
                }
            }
            let report = store.check().unwrap();
            assert!(
                report.is_clean(),
                "seed {seed} round {round}: {:?}",
                report.problems
            );
            store = reopen(store);
        }
        assert!(read_all(&mut store).unwrap() == model);
    }
}

#[test]
fn content_of_any_length_is_replaced_from_a_source_in_bounded_memory() {
    let mut store = Store::format(SimDevice::new(2048, 1), &options(4)).unwrap();
    store.replace("a", b"before").unwrap();
    for length in [0, 1, 262_143, 262_144, 262_145, 3_000_000] {
        let content: Vec<u8> = (0..length).map(|index: u32| (index % 251) as u8).collect();
        let mut rest = &content[..];
        let stored = store
            .replace_from("a", &mut |buffer| std::io::Read::read(&mut rest, buffer))
            .unwrap();
        assert_eq!(stored, u64::from(length));
        assert!(read_all(&mut store).unwrap()["a"] == content);
        assert!(store.check().unwrap().is_clean());
    }
    // A source that fails, and one that does not fit, leave the old content and no lost block.
    let before = store.statistics().blocks_free;
    let mut left = 400_000_usize;
    let failing = store.replace_from("a", &mut |buffer| {
        left = left
            .checked_sub(buffer.len())
            .ok_or_else(|| std::io::Error::other("unplugged"))?;
        Ok(buffer.len())
    });
    assert!(matches!(failing, Err(Error::Source(_))));
    let endless = store.replace_from("b", &mut |buffer| Ok(buffer.len()));
    assert!(matches!(endless, Err(Error::Full)));
    assert_eq!(store.statistics().blocks_free, before);
    assert_eq!(store.stat("a").unwrap().length_bytes, 3_000_000);
    assert!(matches!(store.stat("b"), Err(Error::NotFound)));
    assert!(store.check().unwrap().is_clean());
}

/// A file that repeatedly shrinks and grows must not own more than it needs, and the store must not fill up with lost
/// blocks.
#[test]
fn blocks_do_not_leak_however_often_files_shrink_grow_and_change() {
    for (seed, files, long_max) in [(1, 1, 3 * PAYLOAD_BYTES), (2, 3, 40_000), (3, 40, 6000)] {
        let mut random = Random::new(seed);
        // Room for all files at their longest, and for the additional blocks that each may own.
        let most = files as u64 * (4 * long_max as u64 / PAYLOAD_BYTES as u64 + 48);
        let device_blocks = most + BLOCKS_OWNED_BEYOND_MAX + 200;
        let mut store =
            Store::format(SimDevice::new(device_blocks, seed), &options(files as u64)).unwrap();
        let mut model = Files::new();
        let mut kept = Kept::default();
        for number in 0..files {
            let create = Operation::Create(format!("file-{number}"));
            step(&mut store, &mut kept, &mut model, &create, "create").unwrap();
        }
        let weights = Weights {
            create: 0,
            replace: 0,
            delete: 0,
            reopen: 0,
            rename: 0,
            truncate: 12,
            ..Weights::WITH_PIECES
        };
        for number in 0..4000 {
            let mut operation = weights.draw(&mut random, &model, files, long_max);
            // No file grows beyond three times the longest append.
            if let Some(name) = operation.changed_file()
                && model[name].len() > 2 * long_max
            {
                operation = Operation::Truncate(name.to_owned(), random.below(long_max as u64));
            }
            let context = format!("seed {seed} call {number} {}", operation.brief());
            step(&mut store, &mut kept, &mut model, &operation, &context)
                .unwrap_or_else(|error| panic!("{context}: {error}"));
            if let Some(name) = operation.changed_file() {
                let stat = store.stat(name).unwrap();
                assert!(
                    stat.blocks_owned <= stat.blocks + BLOCKS_OWNED_BEYOND_MAX,
                    "{context}: {stat:?}"
                );
            }
            if number % 200 == 199 {
                assert_counts(&mut store, &model, &context);
                store = reopen(store);
            }
        }
        assert_agrees(&mut store, &model, "afterwards");
        assert_nothing_leaked(&mut store, &model, &format!("seed {seed}"));
    }
}

/// Tests the calls when all handles are in use.
#[test]
fn calls_on_names_need_no_free_handle() {
    let device = SimDevice::new(512, 1);
    let store = Store::format(device, &options(8)).unwrap();
    let two = OpenOptions {
        open_files_max: 2,
        ..OpenOptions::default()
    };
    let mut store = Store::open(store.close().unwrap(), &two).unwrap();
    let first = store.create("a").unwrap();
    store.append(first, b"first").unwrap();
    store.replace("c", b"third").unwrap();
    let second = store.create("b").unwrap();
    store.append(second, b"second").unwrap();
    assert!(matches!(store.open_file("c"), Err(Error::TooManyOpenFiles)));
    assert!(matches!(store.create("d"), Err(Error::TooManyOpenFiles)));
    assert!(matches!(store.stat("d"), Err(Error::NotFound)));
    assert_eq!(store.open_file("a").unwrap(), first);
    store.close_file(first);
    store.rename("c", "d").unwrap();
    store.rename("d", "c").unwrap();
    store.rename("a", "e").unwrap();
    assert_eq!(store.length(first).unwrap(), 5);
    assert_eq!(store.open_file("e").unwrap(), first);
    store.close_file(first);
    store.delete("c").unwrap();
    // A stale handle frees its place.
    store.delete("b").unwrap();
    assert!(matches!(store.length(second), Err(Error::StaleHandle)));
    let third = store.create("b").unwrap();
    assert_ne!(third, second);
    assert!(matches!(
        store.append(second, b"x"),
        Err(Error::StaleHandle)
    ));
    let model = Model::from([
        ("b".to_owned(), Vec::new()),
        ("e".to_owned(), b"first".to_vec()),
    ]);
    assert_agrees(&mut store, &model, "afterwards");
}

/// Handles opened before their files were renamed must support every call, on files whose state is only in the name
/// table. Then appends to enough other files write these files back.
#[test]
fn handles_find_their_files_after_renaming() {
    const FILES: usize = 45;
    for kind in 0..5 {
        let mut store = Store::format(SimDevice::new(2048, 1), &options(100)).unwrap();
        let mut model = Model::new();
        let mut kept = Kept::default();
        let mut random = Random::new(kind);
        for number in 0..FILES {
            let create = Operation::Create(format!("file-{number}"));
            step(&mut store, &mut kept, &mut model, &create, "create").unwrap();
            let append = Operation::Append(format!("file-{number}"), vec![1; 9000]);
            step(&mut store, &mut kept, &mut model, &append, "append").unwrap();
        }
        // The last files get the slots.
        store = reopen(store);
        for number in 0..6 {
            let (from, to) = (format!("file-{number}"), format!("renamed-{number}"));
            kept.open(&mut store, &from, "open");
            // A new name, or the name of another file.
            let to = if number % 2 == 0 {
                to
            } else {
                format!("file-{}", number + 5)
            };
            let rename = Operation::Rename(from, to.clone());
            step(&mut store, &mut kept, &mut model, &rename, "rename").unwrap();
            let data = content(&mut random, 700);
            let operation = match kind {
                0 => Operation::Truncate(to, 5000),
                1 => Operation::Truncate(to, 0),
                2 => Operation::WriteAt(to, 3000, data),
                3 => Operation::Append(to, data),
                _ => Operation::AppendNosync(to, data),
            };
            let context = format!("file {number} {}", operation.brief());
            step(&mut store, &mut kept, &mut model, &operation, &context)
                .unwrap_or_else(|error| panic!("{context}: {error}"));
        }
        kept.check(&mut store, &model, &mut random, "renamed");
        for number in 12..FILES {
            let append = Operation::Append(format!("file-{number}"), vec![2; 500]);
            let context = format!("kind {kind}, {}", append.brief());
            step(&mut store, &mut kept, &mut model, &append, &context)
                .unwrap_or_else(|error| panic!("{context}: {error}"));
        }
        kept.check(&mut store, &model, &mut random, "written back");
        assert_agrees(&mut store, &model, "written back");
        store = reopen(store);
        assert_agrees(&mut store, &model, "opened again");
        assert_nothing_leaked(&mut store, &model, "emptied");
    }
}

#[test]
fn renaming_refuses_missing_files_and_bad_names() {
    let mut store = Store::format(SimDevice::new(512, 1), &options(8)).unwrap();
    store.replace("a", b"1").unwrap();
    for (from, to) in [("none", "b"), ("none", "a"), ("none", "none")] {
        assert!(
            matches!(store.rename(from, to), Err(Error::NotFound)),
            "{from} {to}"
        );
    }
    let long = "x".repeat(256);
    for wrong in ["", ".", "..", "a/b", "a\0b", &long] {
        assert!(
            matches!(store.rename("a", wrong), Err(Error::NameInvalid { .. })),
            "to {wrong:?}"
        );
        assert!(
            matches!(store.rename(wrong, "a"), Err(Error::NameInvalid { .. })),
            "from {wrong:?}"
        );
    }
    store.rename("a", "a").unwrap();
    let longest = "x".repeat(255);
    store.rename("a", &longest).unwrap();
    let model = Model::from([(longest, b"1".to_vec())]);
    assert_agrees(&mut store, &model, "afterwards");
    // A read-only store refuses every change.
    let read_only = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let mut store = Store::open(store.close().unwrap(), &read_only).unwrap();
    let name = model.keys().next().unwrap();
    let file = store.open_file(name).unwrap();
    let refused = [
        store.rename(name, "b"),
        store.write_at(file, 0, b"2"),
        store.write_at_nosync(file, 0, b"2"),
        store.write_pieces_nosync(file, &[(0, b"2")]),
        store.write_pieces_at_once(file, &[(0, b"2")]).map(drop),
        store.append_nosync(file, b"2"),
        store.truncate(file, 0),
        store.sync(),
    ];
    for (call, result) in refused.iter().enumerate() {
        assert!(matches!(result, Err(Error::ReadOnly)), "{call}: {result:?}");
    }
}

/// Offsets and lengths that no file can have are refused completely and at once.
#[test]
fn an_offset_beyond_any_file_is_refused() {
    let mut store = Store::format(SimDevice::new(512, 1), &options(8)).unwrap();
    let file = store.create("a").unwrap();
    store.append(file, &[7; 5000]).unwrap();
    let before = store.device().counters();
    for offset in [u64::MAX, u64::MAX - 3, 1 << 63, 1 << 44, 5000 + 512 * 4096] {
        let refused = [
            store.write_at(file, offset, b"data"),
            store.write_at_nosync(file, offset, b"data"),
            store.write_pieces_nosync(file, &[(0, b"x"), (offset, b"data")]),
            store
                .write_pieces_at_once(file, &[(0, b"x"), (offset, b"data")])
                .map(drop),
            store.truncate(file, offset),
        ];
        for (call, result) in refused.iter().enumerate() {
            assert!(
                matches!(result, Err(Error::Full | Error::TooLarge)),
                "call {call} at {offset}: {result:?}"
            );
        }
    }
    assert_eq!(store.device().counters().writes, before.writes);
    let model = Model::from([("a".to_owned(), vec![7; 5000])]);
    assert_agrees(&mut store, &model, "afterwards");
}

/// A full store still takes every call that needs no block.
#[test]
fn a_full_store_takes_calls_that_need_no_block() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let mut store = Store::format(SimDevice::new(300, seed), &options(50)).unwrap();
        let mut model = Files::new();
        let mut kept = Kept::default();
        // Append to more files than can be active at a time, until nothing fits any more.
        let mut refused = 0;
        while refused < 60 {
            let name = format!("file-{}", random.index(45));
            let operation = if model.contains_key(&name) {
                Operation::Append(name, content(&mut random, 3000))
            } else {
                Operation::Create(name)
            };
            let result = step(&mut store, &mut kept, &mut model, &operation, "filling");
            refused += u32::from(result.is_err());
        }
        for number in 0..120 {
            let place = random.index(model.len());
            let (name, old) = model.iter().nth(place).unwrap();
            let length = old.len();
            let operation = match random.below(4) {
                0 => Operation::Truncate(name.clone(), random.below(length as u64 + 1)),
                1 => Operation::Rename(name.clone(), format!("file-{}", random.index(45))),
                _ => {
                    let offset = random.index(length + 1);
                    let data = content(&mut random, length - offset);
                    Operation::WriteAt(name.clone(), offset as u64, data)
                }
            };
            let context = format!("seed {seed} call {number} {}", operation.brief());
            step(&mut store, &mut kept, &mut model, &operation, &context)
                .unwrap_or_else(|error| panic!("{context}: {error}"));
        }
        assert_agrees(&mut store, &model, &format!("seed {seed}"));
        assert_nothing_leaked(&mut store, &model, &format!("seed {seed}"));
    }
}

// ---- sequences that shrink well ----

/// A call: its kind, its file, its length, and its place in the file, in 256ths of the file's length.
#[derive(Clone, Debug)]
struct Drawn {
    kind: u8,
    file: usize,
    length: usize,
    place: u16,
}

fn calls() -> impl Strategy<Value = Vec<Drawn>> {
    let length = prop_oneof![
        3 => 0..30_000_usize,
        2 => 0..300_usize,
        1 => proptest::sample::select(vec![
            PAYLOAD_BYTES - 1, PAYLOAD_BYTES, PAYLOAD_BYTES + 1, 3 * PAYLOAD_BYTES, 4096,
            flash::OVERWRITE_ATOMIC_BYTES_MAX, flash::APPEND_ATOMIC_BYTES_MAX,
        ]),
    ];
    let call =
        (0..15_u8, 0..4_usize, length, 0..300_u16).prop_map(|(kind, file, length, place)| Drawn {
            kind,
            file,
            length,
            place,
        });
    proptest::collection::vec(call, 1..60)
}

/// Returns the complete call, given the content of the file.
fn operation_of(drawn: &Drawn, number: usize, model: &Model) -> Operation {
    let name = format!("file-{}", drawn.file);
    let length = model.get(&name).map_or(0, Vec::len);
    // Up to a sixth beyond the end.
    let place = (length * usize::from(drawn.place)) as u64 / 256;
    let data: Vec<u8> = (0..drawn.length)
        .map(|index| (index * 7 + number) as u8)
        .collect();
    match drawn.kind {
        0 => Operation::Create(name),
        1 | 2 => Operation::Append(name, data),
        3 => Operation::Replace(name, data),
        4 => Operation::Delete(name),
        5 => Operation::Rename(name, format!("file-{}", drawn.place % 4)),
        6 | 7 => Operation::WriteAt(name, place, data),
        8 => Operation::Truncate(name, place),
        // In steps of whole blocks.
        9 => Operation::Truncate(name, (usize::from(drawn.place) % 12 * PAYLOAD_BYTES) as u64),
        10 => Operation::AppendNosync(name, data),
        11 => Operation::WriteAtNosync(name, place, data),
        12 => Operation::WritePiecesNosync(name, vec![(0, vec![1]), (place, data)]),
        13 => Operation::WritePiecesAtOnce(name, vec![(0, vec![2]), (place, data)]),
        _ => Operation::Sync,
    }
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config {
        cases: 300,
        failure_persistence: None,
        ..proptest::test_runner::Config::default()
    })]

    #[test]
    fn any_sequence_of_calls_agrees_with_the_model(calls in calls()) {
        let mut store = Store::format(SimDevice::new(512, 1), &options(4)).unwrap();
        let mut model = Model::new();
        let mut kept = Kept::default();
        for (number, drawn) in calls.iter().enumerate() {
            let operation = operation_of(drawn, number, &model);
            let context = format!("call {number} {}", operation.brief());
            let _ = step(&mut store, &mut kept, &mut model, &operation, &context);
            // Some calls use handles that were opened long before.
            let name = format!("file-{}", drawn.file);
            if drawn.place % 5 == 0 && model.contains_key(&name) {
                kept.open(&mut store, &name, &context);
            }
        }
        // Every file must read the same as a whole, from any offset, and with old handles.
        assert_agrees(&mut store, &model, "at the end");
        kept.check(&mut store, &model, &mut Random::new(1), "at the end");
        for (name, content) in &model {
            let file = store.open_file(name).unwrap();
            let length = content.len();
            for offset in [0, 1, length / 3, length / 2, length.saturating_sub(1), length] {
                let mut bytes = [0; 5000];
                let count = store.read(file, offset as u64, &mut bytes).unwrap();
                let start = offset.min(length);
                let expected = &content[start..(start + bytes.len()).min(length)];
                prop_assert!(bytes[..count] == *expected);
            }
            store.close_file(file);
        }
        let mut store = reopen(store);
        assert_agrees(&mut store, &model, "after reopening");
        assert_nothing_leaked(&mut store, &model, "emptied");
    }
}
