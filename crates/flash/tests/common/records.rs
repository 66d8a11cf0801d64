//! Stores whose newest record is of a certain kind, so that tests can damage that record.

use std::collections::BTreeMap;

use base::sim::{Keep, Random, SimDevice};
use flash::{OpenOptions, Store};

use super::medium::{RecordKind, newest_record};
use super::operation::{Model, Operation, Weights, content};
use super::options;

/// A store after some durable calls, with all their images written in place.
pub struct Settled {
    pub device: SimDevice,
    pub model: Model,
    /// First block of the newest record.
    pub newest: u64,
    pub kind: RecordKind,
    /// Calls since that record was written.
    pub calls_since: usize,
    pub call: String,
}

/// More than the root has slots, and enough that deleting half of them spills lists.
const FILES: usize = 90;
const CALLS: usize = 600;

/// All durable calls.
const WEIGHTS: Weights = Weights {
    append_nosync: 0,
    write_at_nosync: 0,
    sync: 0,
    reopen: 0,
    ..Weights::ALL
};

/// Returns up to `each` stores for each kind of record and each number of calls after it.
pub fn settled_stores(each: usize) -> Vec<Settled> {
    let mut found: BTreeMap<(RecordKind, usize), usize> = BTreeMap::new();
    let mut stores = Vec::new();
    for seed in 0..4 {
        let mut random = Random::new(seed);
        let device = SimDevice::new(1000, seed);
        let mut store = Store::format(device, &options(FILES as u64)).unwrap();
        let mut model = Model::new();
        for round in 0..3 {
            for number in 0..FILES {
                let name = format!("file-{number}");
                let operation = match round {
                    0 => Operation::Create(name),
                    _ => Operation::Append(name, vec![round; 3000]),
                };
                operation.run(&mut store).unwrap();
                operation.apply(&mut model);
            }
        }
        let (mut record, mut calls_since) = (0, 0);
        for number in 0..CALLS {
            let operation = call(&mut random, &model, number);
            let writes_before = newest_record(store.device());
            let number_before = store.device().peek(writes_before);
            if operation.run(&mut store).is_err() {
                // A full store may have done a part of the call, so read its content again.
                model = super::read_all(&mut store).unwrap();
                continue;
            }
            operation.apply(&mut model);
            let newest = newest_record(store.device());
            if newest != record || store.device().peek(newest) != number_before {
                (record, calls_since) = (newest, 0);
            } else {
                calls_since += 1;
            }
            let kind = RecordKind::of(store.device(), newest);
            let count = found.entry((kind.clone(), calls_since.min(4))).or_default();
            if *count < each {
                *count += 1;
                stores.push(Settled {
                    device: store.device().crash_image(&|_| Keep::Whole),
                    model: model.clone(),
                    newest,
                    kind,
                    calls_since,
                    call: format!("seed {seed} call {number} {}", operation.brief()),
                });
            }
        }
    }
    stores
}

/// Returns a call: files are deleted until lists are spilled, and created again; one of them is written repeatedly.
fn call(random: &mut Random, model: &Model, number: usize) -> Operation {
    let any = |random: &mut Random| format!("file-{}", random.index(FILES));
    let log = "file-0".to_owned();
    match number % 120 {
        0..50 => Operation::Delete(any(random)),
        50..70 => Operation::Replace(any(random), content(random, 3000)),
        70..100 => WEIGHTS.draw(random, model, FILES, 9000),
        _ => {
            let Some(length) = model.get(&log).map(Vec::len) else {
                return Operation::Replace(log, vec![1; 6000]);
            };
            match random.below(6) {
                0 => Operation::Truncate(log, length.saturating_sub(random.index(300) + 1) as u64),
                1 => {
                    let offset = length.saturating_sub(random.index(9000) + 1);
                    let bytes = content(random, (length - offset).min(7000));
                    Operation::WriteAt(log, offset as u64, bytes)
                }
                _ => Operation::Append(log, content(random, 300)),
            }
        }
    }
}

/// Returns a store in which deleting a certain file writes a record that spills a list, with one image. Returns also
/// the model and the name of that file.
pub fn before_spilling() -> (SimDevice, Model, String) {
    let mut store = Store::format(SimDevice::new(1000, 1), &options(FILES as u64)).unwrap();
    let mut model = Model::new();
    let name = |number: usize| format!("file-{number}");
    for number in 0..FILES {
        store.replace(&name(number), &[1; 3000]).unwrap();
        model.insert(name(number), vec![1; 3000]);
    }
    for number in (0..FILES).step_by(2) {
        let before = store.device().crash_image(&|_| Keep::Whole);
        store.delete(&name(number)).unwrap();
        let newest = newest_record(store.device());
        if RecordKind::of(store.device(), newest).spilled {
            return (before, model, name(number));
        }
        model.remove(&name(number));
    }
    panic!("no deletion has spilled a list");
}

/// Opens the device read-only, or for writing, with small tables.
pub fn open<D: base::block::BlockDevice>(
    device: D,
    read_only: bool,
) -> Result<Store<D>, flash::Error> {
    let options = OpenOptions {
        open_files_max: 4,
        addresses_max: 256,
        read_only,
    };
    Store::open(device, &options)
}
