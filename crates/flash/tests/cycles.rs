//! Many lives of one store: random calls, an end without warning, recovery, then more calls on the recovered store.
//!
//! The next life must cope with the remains of the previous one. These are blocks of an append that no record knows, a
//! spilled list that no root names, numbers that were given out and forgotten. A test that cuts the power once never
//! sees this. The stores are small, nearly full and hold more files than the root has slots.

use crate::common::lives::{Mood, SETTINGS, fill, random_call, run, settle};
use crate::common::machine::{Ending, Machine};
use crate::common::medium::newest_record;
use crate::common::oracle::{Ledger, shared};
use crate::common::{Model, Operation, options, read_all, read_files};
use base::block::DeviceError;
use base::sim::{FaultPlan, Keep, Random, SimDevice};
use flash::{Error, OpenOptions, PAYLOAD_BYTES, Store};

#[test]
fn power_cuts_lose_nothing_acknowledged() {
    run(
        "power cuts",
        &[Ending::PowerCut, Ending::PowerCut, Ending::Closed],
    );
}

#[test]
fn kills_lose_nothing_acknowledged() {
    run("kills", &[Ending::Killed, Ending::PowerCut]);
}

#[test]
fn failing_writes_and_flushes_lose_nothing_acknowledged() {
    run("failures", &[Ending::Failed, Ending::PowerCut]);
}

// ---- failures found by the lives above, each made as short as possible ----

fn small_store() -> Store<SimDevice> {
    Store::format(SimDevice::new(192, 1), &options(4)).unwrap()
}

fn opened(device: SimDevice) -> Store<SimDevice> {
    Store::open(device, &OpenOptions::default()).unwrap()
}

/// Runs `call` on a store whose power fails at its `writes`-th write. Then keeps those unflushed writes whose bit is
/// set in `kept`.
fn cut(
    mut store: Store<SimDevice>,
    writes: u64,
    kept: u64,
    call: impl FnOnce(&mut Store<SimDevice>) -> Result<(), Error>,
) -> SimDevice {
    store.device_mut().set_power_cut_after_writes(Some(writes));
    let result = call(&mut store);
    assert!(matches!(result, Err(Error::Device(DeviceError::PowerLost))));
    store.device().crash_image(&|index| {
        if kept >> index & 1 == 1 {
            Keep::Whole
        } else {
            Keep::Lost
        }
    })
}

fn append(store: &mut Store<SimDevice>, name: &str, data: &[u8]) -> Result<(), Error> {
    Operation::Append(name.to_owned(), data.to_vec()).run(store)
}

/// The first cut keeps the data of an append and loses the record that gives the file its blocks, so the append has not
/// happened. The second cut keeps the record of another append to the same blocks and loses its data. Recovery must not
/// take the first append's blocks for the second's.
#[test]
fn an_append_that_was_lost_does_not_come_back() {
    let mut store = small_store();
    Operation::Create("log".to_owned()).run(&mut store).unwrap();
    let store = opened(store.close().unwrap());
    // Unflushed: the record, then the data.
    let device = cut(store, 2, 0b10, |store| {
        append(store, "log", b"never happened")
    });
    let mut store = opened(device);
    assert_eq!(store.stat("log").unwrap().length_bytes, 0);
    assert!(store.check().unwrap().is_clean());
    let device = cut(store, 2, 0b01, |store| append(store, "log", b"in flight"));
    let mut store = opened(device);
    let found = read_all(&mut store).unwrap();
    assert!(
        found["log"].is_empty() || found["log"] == b"in flight",
        "{:?}",
        String::from_utf8_lossy(&found["log"])
    );
}

/// As above, through a replacement whose file identity was given out again: the bytes of one file would appear in
/// another.
#[test]
fn a_replacement_that_was_lost_does_not_appear_in_another_file() {
    let store = opened(small_store().close().unwrap());
    let device = cut(store, 2, 0b10, |store| {
        store.replace("secret", b"not yours")
    });
    let mut store = opened(device);
    Operation::Create("public".to_owned())
        .run(&mut store)
        .unwrap();
    let store = opened(store.device().crash_image(&|_| Keep::Whole));
    let device = cut(store, 2, 0b01, |store| {
        append(store, "public", b"in flight")
    });
    let mut store = opened(device);
    let found = read_all(&mut store).unwrap();
    assert!(
        found["public"].is_empty() || found["public"] == b"in flight",
        "{:?}",
        String::from_utf8_lossy(&found["public"])
    );
}

/// The record of a long append was lost. Then the record and the second group of another one arrived, but not its first
/// group. The old first group must not be joined to the new second one.
#[test]
fn two_long_appends_are_not_mixed() {
    let mut store = small_store();
    Operation::Create("log".to_owned()).run(&mut store).unwrap();
    let store = opened(store.close().unwrap());
    let long = |byte: u8| vec![byte; 8 * PAYLOAD_BYTES];
    // Record, first group, second group.
    let device = cut(store, 3, 0b010, |store| append(store, "log", &long(1)));
    let store = opened(device);
    let device = cut(store, 3, 0b101, |store| append(store, "log", &long(2)));
    let mut store = opened(device);
    let found = read_all(&mut store).unwrap();
    assert!(found["log"].iter().all(|byte| *byte == 2));
}

/// A killed process leaves its last writes in the device's cache. The next process that opens the store must not
/// overwrite the older record while the newer one is not durable.
#[test]
fn the_power_may_fail_while_recovering_from_a_kill() {
    let mut machine = Machine::new(small_store().close().unwrap());
    let mut store = Store::open(&mut machine, &OpenOptions::default()).unwrap();
    Operation::Create("log".to_owned()).run(&mut store).unwrap();
    for byte in 0..3 {
        Operation::Append("log".to_owned(), vec![byte; 100])
            .run(&mut store)
            .unwrap();
    }
    // Its record reaches the cache; then the process is killed.
    store.device_mut().writes_until_kill = Some(2);
    assert!(store.replace("new", b"in flight").is_err());
    drop(store);
    machine.writes_until_kill = None;
    machine.device.set_power_cut_after_writes(Some(1));
    assert!(Store::open(&mut machine, &OpenOptions::default()).is_err());
    // The killed process's record and the record of recovery are both torn, in both copies of the root.
    let device = machine.device.crash_image(&|_| Keep::Torn {
        sector_mask: 0x0101,
    });
    let mut store = opened(device);
    assert_eq!(read_all(&mut store).unwrap()["log"].len(), 300);
    assert!(store.check().unwrap().is_clean());
}

/// The device fails while the last block of a file is being filled up: the acknowledged part must still be readable.
#[test]
fn the_last_block_is_read_after_a_failed_append() {
    let mut store = small_store();
    let file = store.create("log").unwrap();
    store.append(file, &[1; 5 * PAYLOAD_BYTES + 100]).unwrap();
    store.append(file, &[1; 100]).unwrap();
    store.device_mut().set_fault_plan(FaultPlan {
        flush_error_ppm: 1_000_000,
        ..FaultPlan::default()
    });
    assert!(store.append(file, &[2; PAYLOAD_BYTES]).is_err());
    let mut bytes = vec![0; 5 * PAYLOAD_BYTES + 200];
    let count = store.read(file, 0, &mut bytes).unwrap();
    assert!(count == bytes.len() && bytes.iter().all(|byte| *byte == 1));
}

/// One block of the newest record rots when its table block is already in place. The previous record, with an older
/// state of the same table block, must not be written over it.
#[test]
fn a_rotten_newest_record_does_not_bring_a_deleted_file_back() {
    let mut store = small_store();
    store.replace("gone", &[1; 20_000]).unwrap();
    let mut store = opened(store.close().unwrap());
    store.replace("gone", b"").unwrap();
    store.delete("gone").unwrap();
    let mut device = store.device().crash_image(&|_| Keep::Whole);
    device.inject_bit_rot(newest_record(&device) + 1, 999);
    let mut store = opened(device);
    let report = store.check().unwrap();
    assert!(
        report
            .problems
            .iter()
            .all(|problem| problem.block.is_some()),
        "more than the rotten block: {:?}",
        report.problems
    );
    assert!(matches!(store.stat("gone"), Err(Error::NotFound)));
}

/// A read that fails once makes only its own call fail: no block is lost, no unfinished replacement remains.
#[test]
fn reads_that_fail_once_lose_nothing() {
    let setting = &SETTINGS[4];
    let mut failures = 0;
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let sim = SimDevice::new(setting.device_blocks, seed);
        let mut store = Store::format(sim, &options(setting.files as u64)).unwrap();
        let mut model = Model::new();
        fill(&mut store, &mut model, setting.files, &mut random);
        let mut ledger = Ledger::new(shared(&model));
        store.device_mut().set_fault_plan(FaultPlan {
            read_error_ppm: 150_000,
            ..FaultPlan::default()
        });
        for number in 0..400 {
            let mood = match number / 30 % 4 {
                0 | 2 => Mood::Emptying,
                1 => Mood::Filling,
                _ => Mood::Editing,
            };
            let operation = random_call(&mut random, setting, mood, ledger.now());
            let result = operation.run(&mut store);
            store.device_mut().set_fault_plan(FaultPlan::default());
            let context = format!(
                "seed {seed} call {number} {}: {result:?}",
                operation.brief()
            );
            assert!(!store.has_failed(), "{context}");
            failures += u64::from(matches!(result, Err(Error::Device(_))));
            settle(&mut store, &mut ledger, &operation, &result, &context);
            let report = store.check().unwrap();
            assert!(report.is_clean(), "{context}: {:?}", report.problems);
            store.device_mut().set_fault_plan(FaultPlan {
                read_error_ppm: 150_000,
                ..FaultPlan::default()
            });
        }
        store.device_mut().set_fault_plan(FaultPlan::default());
        let found = read_files(&mut store, ledger.now()).unwrap();
        assert!(found == *ledger.now(), "seed {seed}");
    }
    assert!(failures > 50, "{failures}");
}
