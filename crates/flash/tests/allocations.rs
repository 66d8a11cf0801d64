//! Tests that after a store is open no call on it allocates memory, whether it succeeds or is refused. (Exceptions:
//! `replace_from`, which allocates its buffer, and `check`, which counts every block.)
#![allow(unsafe_code, reason = "a counting allocator is unsafe by its trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;

use crate::common::{Files, Operation, Weights, lend, options, read_file};
use base::block::BlockDevice;
use base::sim::{FlatDevice, Random};
use flash::{Error, FileHandle, OpenOptions, Store};

thread_local! {
    // Of one thread, because other tests may run beside this one.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn note() {
    // A thread that is ending has no counter any more.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller keeps the contract, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note();
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, new_size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations by kind of call, and the number of calls.
#[derive(Default)]
struct Tally {
    calls: BTreeMap<&'static str, (u64, u64)>,
}

impl Tally {
    fn count<R>(&mut self, call: &'static str, work: impl FnOnce() -> R) -> R {
        let before = COUNT.with(Cell::get);
        let result = work();
        let allocations = COUNT.with(Cell::get) - before;
        let entry = self.calls.entry(call).or_default();
        entry.0 += 1;
        entry.1 += allocations;
        result
    }
}

/// Returns the name of a file; some names have the maximum length.
fn name_of(number: usize) -> String {
    let length = [3, 20, 240][number % 3];
    format!("{number}-{}", "n".repeat(length))
}

fn open(
    store: &mut Store<&mut dyn BlockDevice>,
    tally: &mut Tally,
    name: &str,
) -> Option<FileHandle> {
    tally.count("open_file", || store.open_file(name)).ok()
}

/// Runs one call of a workload; for a call on a file it opens a handle first.
fn run(
    store: &mut Store<&mut dyn BlockDevice>,
    tally: &mut Tally,
    operation: &Operation,
    buffer: &mut [u8],
) -> Result<(), Error> {
    match operation {
        Operation::Create(name) => {
            let file = tally.count("create", || store.create(name))?;
            tally.count("close_file", || store.close_file(file));
            Ok(())
        }
        Operation::Replace(name, data) => tally.count("replace", || store.replace(name, data)),
        Operation::Delete(name) => tally.count("delete", || store.delete(name)),
        Operation::Rename(from, to) => tally.count("rename", || store.rename(from, to)),
        Operation::Sync => tally.count("sync", || store.sync()),
        Operation::Reopen => Ok(()),
        _ => {
            let name = operation.file().unwrap();
            let Some(file) = open(store, tally, name) else {
                return Err(Error::NotFound);
            };
            let call = match operation {
                Operation::Append(..) => "append",
                Operation::AppendNosync(..) => "append_nosync",
                Operation::WriteAt(..) => "write_at",
                Operation::WriteAtNosync(..) => "write_at_nosync",
                Operation::WritePiecesNosync(..) => "write_pieces_nosync",
                Operation::WritePiecesAtOnce(..) => "write_pieces_at_once",
                _ => "truncate",
            };
            let result = tally.count(call, || operation.run_on(store, file));
            let length = tally.count("length", || store.length(file)).unwrap();
            let read = tally.count("read", || store.read(file, length / 3, buffer));
            read.unwrap();
            tally.count("close_file", || store.close_file(file));
            tally.count("stat", || store.stat(name)).unwrap();
            result
        }
    }
}

/// Returns the same call on files with names of all lengths.
fn with_real_names(operation: Operation) -> Operation {
    let real = |name: &str| {
        let number = name.trim_start_matches("file-").parse().unwrap_or(0);
        name_of(number)
    };
    match operation {
        Operation::Create(name) => Operation::Create(real(&name)),
        Operation::Append(name, data) => Operation::Append(real(&name), data),
        Operation::Replace(name, data) => Operation::Replace(real(&name), data),
        Operation::Delete(name) => Operation::Delete(real(&name)),
        Operation::Rename(from, to) => Operation::Rename(real(&from), real(&to)),
        Operation::WriteAt(name, offset, data) => Operation::WriteAt(real(&name), offset, data),
        Operation::Truncate(name, length) => Operation::Truncate(real(&name), length),
        Operation::AppendNosync(name, data) => Operation::AppendNosync(real(&name), data),
        Operation::WriteAtNosync(name, offset, data) => {
            Operation::WriteAtNosync(real(&name), offset, data)
        }
        Operation::WritePiecesNosync(name, pieces) => {
            Operation::WritePiecesNosync(real(&name), pieces)
        }
        Operation::WritePiecesAtOnce(name, pieces) => {
            Operation::WritePiecesAtOnce(real(&name), pieces)
        }
        other => other,
    }
}

#[test]
fn no_call_allocates_once_the_store_is_open() {
    let mut tally = Tally::default();
    let mut full = 0;
    // One device with much room, and one so small that it is full most of the time; more files than the root has slots.
    for (device_blocks, files, long_max) in [(16_384, 60, 30_000), (240, 60, 40_000)] {
        let mut device = FlatDevice::new(device_blocks);
        let store = Store::format(lend(&mut device), &options(80)).unwrap();
        let options = OpenOptions {
            open_files_max: 16,
            ..OpenOptions::default()
        };
        let mut store = Store::open(store.close().unwrap(), &options).unwrap();
        let mut random = Random::new(device_blocks);
        let mut buffer = vec![0; 9000];
        // The model uses short names in the order of the draw.
        let mut model = Files::new();
        let weights = Weights {
            reopen: 0,
            ..Weights::WITH_PIECES
        };
        for _ in 0..6000 {
            let operation = weights.draw(&mut random, &model, files, long_max);
            let real = with_real_names(operation.clone());
            let result = run(&mut store, &mut tally, &real, &mut buffer);
            match (&result, operation.changed_file(), real.file()) {
                (Ok(()), ..) => operation.apply(&mut model),
                (Err(Error::Full), Some(name), Some(real)) => {
                    full += 1;
                    let content = read_file(&mut store, real).unwrap();
                    model.insert(name.to_owned(), content.into());
                }
                _ => {}
            }
        }
        let mut listed = 0_u64;
        tally
            .count("list", || store.list(&mut |_, _| listed += 1))
            .unwrap();
        assert_eq!(listed, model.len() as u64);
        tally.count("statistics", || store.statistics());
        tally.count("bounds", || store.bounds());
        let report = store.check().unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
    }
    for (call, (calls, allocations)) in &tally.calls {
        println!("{call}: {allocations} allocations in {calls} calls");
        assert_eq!(*allocations, 0, "{call}");
    }
    assert!(full > 50, "{full}");
    assert!(tally.calls.len() >= 20, "{:?}", tally.calls.keys());
}
