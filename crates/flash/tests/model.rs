//! Random calls against the reference model, without faults: results, content and structure agree.

mod common;

use base::sim::{Random, SimDevice};
use common::{Model, Operation, options, outcome_is_right, read_all, reopen};
use flash::{Error, Store};

/// Runs `calls` random calls; checks each result, and now and then everything.
fn run(seed: u64, device_blocks: u64, files: usize, calls: usize, long_max: usize) {
    let mut random = Random::new(seed);
    let mut store =
        Store::format(SimDevice::new(device_blocks, seed), &options(files as u64)).unwrap();
    let mut model = Model::new();
    for number in 0..calls {
        let operation = common::operation(&mut random, files, long_max);
        if operation == Operation::Reopen {
            store = reopen(store);
        }
        let before = store.statistics().blocks_free;
        let result = operation.run(&mut store);
        let context = format!(
            "seed {seed} call {number} {operation:?}",
            operation = brief(&operation)
        );
        assert!(
            outcome_is_right(&operation, &model, &result),
            "{context}: {result:?}"
        );
        if result.is_ok() {
            operation.apply(&mut model);
        } else if let (Operation::Append(name, data), Err(Error::Full)) = (&operation, &result) {
            // A long append may have added a prefix; an atomic one nothing.
            let length = store.stat(name).unwrap().length_bytes as usize;
            let content = model.get_mut(name).unwrap();
            let added = length - content.len();
            assert!(
                added == 0 || data.len() > flash::APPEND_ATOMIC_BYTES_MAX,
                "{context}"
            );
            content.extend_from_slice(&data[..added]);
        } else {
            assert_eq!(
                store.statistics().blocks_free,
                before,
                "{context}: a refused call took blocks"
            );
        }
        if number % 64 == 0 || number + 1 == calls {
            assert!(
                read_all(&mut store).unwrap() == model,
                "{context}: content differs"
            );
            let report = store.check().unwrap();
            assert!(report.is_clean(), "{context}: {:?}", report.problems);
        }
    }
}

fn brief(operation: &Operation) -> String {
    match operation {
        Operation::Append(name, data) => format!("append {name} {}", data.len()),
        Operation::Replace(name, data) => format!("replace {name} {}", data.len()),
        other => format!("{other:?}"),
    }
}

#[test]
fn few_files_on_a_roomy_store() {
    for seed in 0..12 {
        run(seed, 8192, 6, 600, 200_000);
    }
}

#[test]
fn more_files_than_slots() {
    for seed in 100..106 {
        run(seed, 16384, 90, 1500, 30_000);
    }
}

#[test]
fn a_store_that_is_full_most_of_the_time() {
    for seed in 200..212 {
        run(seed, 320, 24, 1500, 120_000);
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

/// A call in a form that shrinks well: which, on which file, how long.
fn operations() -> impl proptest::strategy::Strategy<Value = Vec<(u8, usize, usize)>> {
    proptest::collection::vec((0..5_u8, 0..4_usize, 0..30_000_usize), 1..60)
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config {
        cases: 200,
        failure_persistence: None,
        ..proptest::test_runner::Config::default()
    })]

    #[test]
    fn any_sequence_of_calls_agrees_with_the_model(calls in operations()) {
        let mut store = Store::format(SimDevice::new(512, 1), &options(4)).unwrap();
        let mut model = Model::new();
        for (number, (kind, file, length)) in calls.into_iter().enumerate() {
            let name = format!("file-{file}");
            let data: Vec<u8> = (0..length).map(|index| (index * 7 + number) as u8).collect();
            let operation = match kind {
                0 => Operation::Create(name),
                1 | 2 => Operation::Append(name, data),
                3 => Operation::Replace(name, data),
                _ => Operation::Delete(name),
            };
            let result = operation.run(&mut store);
            proptest::prop_assert!(outcome_is_right(&operation, &model, &result), "{}", brief(&operation));
            match (&operation, &result) {
                (_, Ok(())) => operation.apply(&mut model),
                (Operation::Append(name, data), Err(Error::Full)) => {
                    let length = store.stat(name).unwrap().length_bytes as usize;
                    let content = model.get_mut(name).unwrap();
                    let added = length - content.len();
                    content.extend_from_slice(&data[..added]);
                }
                _ => {}
            }
        }
        // Every file reads the same whole, and from any offset.
        proptest::prop_assert!(read_all(&mut store).unwrap() == model);
        for (name, content) in &model {
            let file = store.open_file(name).unwrap();
            for offset in [0, 1, content.len() / 3, content.len() / 2, content.len().saturating_sub(1), content.len()] {
                let mut bytes = [0; 5000];
                let count = store.read(file, offset as u64, &mut bytes).unwrap();
                let start = offset.min(content.len());
                let expected = &content[start..(start + bytes.len()).min(content.len())];
                proptest::prop_assert!(bytes[..count] == *expected);
            }
            store.close_file(file);
        }
        let report = store.check().unwrap();
        proptest::prop_assert!(report.is_clean(), "{:?}", report.problems);
        let mut store = reopen(store);
        proptest::prop_assert!(read_all(&mut store).unwrap() == model);
    }
}
