//! Helpers shared by the tests of the store: the reference model, random operations, the judge of the state after a
//! cut.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(unused_imports, reason = "as above")]

pub mod bounds_of;
pub mod crash;
pub mod handles;
pub mod lives;
pub mod machine;
pub mod medium;
pub mod meter;
pub mod operation;
pub mod oracle;
pub mod pieces;
pub mod random_scenarios;
pub mod recorder;
pub mod records;
pub mod repaired;
pub mod scenarios;
pub mod scenarios_of_pieces;
pub mod totals;
pub mod worn;

use std::sync::Arc;

use base::block::BlockDevice;
use flash::{Error, FormatOptions, OpenOptions, Store};

pub use operation::{
    Content, Files, Model, Operation, Weights, content, length, operation, outcome_is_right,
};

pub fn options(files_max: u64) -> FormatOptions {
    FormatOptions {
        files_max,
        name_bytes_max: 255,
        uuid: [0x42; 16],
        hash_key: [0x17; 16],
    }
}

/// A device of any kind, as one type: for each type of device the whole store is compiled once more.
pub fn lend(device: &mut dyn BlockDevice) -> &mut dyn BlockDevice {
    device
}

/// Returns everything the store holds, read through its public calls.
pub fn read_all<D: BlockDevice>(store: &mut Store<D>) -> Result<Model, Error> {
    let mut model = Model::new();
    for_each_file(store, &mut |name, bytes| {
        let twice = model.insert(name.to_owned(), bytes.to_vec()).is_some();
        assert!(!twice, "{name} is listed twice");
    })?;
    Ok(model)
}

/// As [`read_all`]; a content that equals the one in `expected` is shared with it.
pub fn read_files<D: BlockDevice>(store: &mut Store<D>, expected: &Files) -> Result<Files, Error> {
    let mut files = Files::new();
    for_each_file(store, &mut |name, bytes| {
        let content = match expected.get(name) {
            Some(known) if known.as_slice() == bytes => Arc::clone(known),
            _ => Arc::new(bytes.to_vec()),
        };
        let twice = files.insert(name.to_owned(), content).is_some();
        assert!(!twice, "{name} is listed twice");
    })?;
    Ok(files)
}

fn for_each_file<D: BlockDevice>(
    store: &mut Store<D>,
    visit: &mut dyn FnMut(&str, &[u8]),
) -> Result<(), Error> {
    let mut names = Vec::new();
    store.list(&mut |name, stat| names.push((name.to_owned(), stat.length_bytes)))?;
    let mut bytes = Vec::new();
    for (name, length) in names {
        let file = store.open_file(&name)?;
        // Bytes of the previous file must not pass for content of this one.
        bytes.clear();
        bytes.resize(length as usize, 0xa5);
        let count = store.read(file, 0, &mut bytes)?;
        assert_eq!(count as u64, length, "{name}: short read");
        assert_eq!(
            store.read(file, length, &mut [0; 1])?,
            0,
            "{name}: it goes on behind its end"
        );
        store.close_file(file);
        visit(&name, &bytes);
    }
    Ok(())
}

/// Returns the content of one file.
pub fn read_file<D: BlockDevice>(store: &mut Store<D>, name: &str) -> Result<Vec<u8>, Error> {
    let file = store.open_file(name)?;
    let mut bytes = vec![0xa5; store.length(file)? as usize];
    let count = store.read(file, 0, &mut bytes)?;
    assert_eq!(count, bytes.len(), "{name}: short read");
    store.close_file(file);
    Ok(bytes)
}

pub fn reopen<D: BlockDevice>(store: Store<D>) -> Store<D> {
    let device = store.close().expect("closes");
    Store::open(device, &OpenOptions::default()).expect("opens")
}
