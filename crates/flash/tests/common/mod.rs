//! What the tests of the store share: the reference model, random operations, a recording device.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod crash;
pub mod lives;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base::block::{BlockDevice, Counters, DeviceError, Geometry};
use base::sim::{Random, SimDevice};
use flash::{APPEND_ATOMIC_BYTES_MAX, Error, FormatOptions, OpenOptions, PAYLOAD_BYTES, Store};

/// Names to bytes: what a store should hold.
pub type Model = BTreeMap<String, Vec<u8>>;

/// One call on a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    Create(String),
    Append(String, Vec<u8>),
    Replace(String, Vec<u8>),
    Delete(String),
    /// Close the store in order and open it again.
    Reopen,
}

impl Operation {
    /// What the model holds after the call has succeeded.
    pub fn apply(&self, model: &mut Model) {
        match self {
            Self::Create(name) => {
                model.insert(name.clone(), Vec::new());
            }
            Self::Append(name, data) => {
                if let Some(content) = model.get_mut(name) {
                    content.extend_from_slice(data);
                }
            }
            Self::Replace(name, data) => {
                model.insert(name.clone(), data.clone());
            }
            Self::Delete(name) => {
                model.remove(name);
            }
            Self::Reopen => {}
        }
    }

    /// The file that the call touches.
    pub fn file(&self) -> Option<&str> {
        match self {
            Self::Create(name)
            | Self::Append(name, _)
            | Self::Replace(name, _)
            | Self::Delete(name) => Some(name),
            Self::Reopen => None,
        }
    }

    /// Runs the call; `Reopen` is not for this function.
    pub fn run<D: BlockDevice>(&self, store: &mut Store<D>) -> Result<(), Error> {
        match self {
            Self::Create(name) => {
                let file = store.create(name)?;
                store.close_file(file);
                Ok(())
            }
            Self::Append(name, data) => {
                let file = store.open_file(name)?;
                let result = store.append(file, data);
                store.close_file(file);
                result
            }
            Self::Replace(name, data) => store.replace(name, data),
            Self::Delete(name) => store.delete(name),
            Self::Reopen => Ok(()),
        }
    }
}

/// What to expect of a call that the model has judged possible or not.
pub fn outcome_is_right(operation: &Operation, model: &Model, result: &Result<(), Error>) -> bool {
    let exists = operation
        .file()
        .is_some_and(|name| model.contains_key(name));
    match (operation, result) {
        (Operation::Create(_), Err(Error::Exists)) => exists,
        (Operation::Create(_), Err(Error::NameTableFull)) => !exists,
        (Operation::Create(_), Ok(())) => !exists,
        (Operation::Append(..) | Operation::Delete(_), Err(Error::NotFound)) => !exists,
        (Operation::Append(..) | Operation::Delete(_), Ok(())) => exists,
        (Operation::Append(..), Err(Error::Full)) => exists,
        (Operation::Replace(..), Ok(()) | Err(Error::Full | Error::NameTableFull)) => true,
        (Operation::Reopen, Ok(())) => true,
        _ => false,
    }
}

pub fn options(files_max: u64) -> FormatOptions {
    FormatOptions {
        files_max,
        name_bytes_max: 255,
        uuid: [0x42; 16],
        hash_key: [0x17; 16],
    }
}

/// Bytes that tell from which call they came.
pub fn content(random: &mut Random, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}

/// A length that visits the edges: nothing, a byte, a block, an atomic append, a long one.
pub fn length(random: &mut Random, long_max: usize) -> usize {
    match random.below(12) {
        0 => 1,
        1 => random.index(100) + 1,
        2..=4 => random.index(PAYLOAD_BYTES) + 1,
        5 => PAYLOAD_BYTES,
        6 => PAYLOAD_BYTES + 1,
        7 => 4096,
        8 => random.index(APPEND_ATOMIC_BYTES_MAX) + 1,
        9 => APPEND_ATOMIC_BYTES_MAX,
        _ => random.index(long_max) + 1,
    }
}

/// A random call on one of `files` names.
pub fn operation(random: &mut Random, files: usize, long_max: usize) -> Operation {
    let name = format!("file-{}", random.index(files));
    match random.below(20) {
        0..=3 => Operation::Create(name),
        4..=12 => {
            let length = length(random, long_max);
            Operation::Append(name, content(random, length))
        }
        13..=15 => {
            let length = if random.below(6) == 0 {
                0
            } else {
                length(random, long_max)
            };
            Operation::Replace(name, content(random, length))
        }
        16..=18 => Operation::Delete(name),
        _ => Operation::Reopen,
    }
}

/// Everything the store holds, read through its public calls.
pub fn read_all<D: BlockDevice>(store: &mut Store<D>) -> Result<Model, Error> {
    let mut names = Vec::new();
    store.list(&mut |name, stat| names.push((name.to_owned(), stat.length_bytes)))?;
    let mut model = Model::new();
    for (name, length) in names {
        let file = store.open_file(&name)?;
        let mut bytes = vec![0; length as usize];
        let count = store.read(file, 0, &mut bytes)?;
        assert_eq!(count as u64, length, "{name}: short read");
        store.close_file(file);
        assert!(
            model.insert(name.clone(), bytes).is_none(),
            "{name} is listed twice"
        );
    }
    Ok(model)
}

/// A device as it was just after one write request, with the number of calls that had returned by then.
#[derive(Clone)]
pub struct Moment {
    pub device: SimDevice,
    pub calls_returned: usize,
}

/// Passes everything on to a simulated device and keeps a clone of it after each write.
pub struct Recorder {
    pub inner: SimDevice,
    pub moments: Arc<Mutex<Vec<Moment>>>,
    pub calls_returned: Arc<AtomicUsize>,
}

impl Recorder {
    pub fn new(inner: SimDevice) -> Self {
        Self {
            inner,
            moments: Arc::default(),
            calls_returned: Arc::default(),
        }
    }
}

impl BlockDevice for Recorder {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(first_block, buffer)
    }
    fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.inner.write(first_block, data)?;
        let calls_returned = self.calls_returned.load(Ordering::Relaxed);
        self.moments.lock().unwrap().push(Moment {
            device: self.inner.clone(),
            calls_returned,
        });
        Ok(())
    }
    fn flush(&mut self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn discard(&mut self, first_block: u64, block_count: u64) -> Result<(), DeviceError> {
        self.inner.discard(first_block, block_count)
    }
    fn counters(&self) -> Counters {
        self.inner.counters()
    }
    fn reset_write_blocks_max(&mut self) {
        self.inner.reset_write_blocks_max();
    }
}

pub fn reopen<D: BlockDevice>(store: Store<D>) -> Store<D> {
    let device = store.close().expect("closes");
    Store::open(device, &OpenOptions::default()).expect("opens")
}
