//! One call on a store: its effect on the reference model, its execution, and its allowed results.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::block::BlockDevice;
use base::sim::Random;
use flash::{
    APPEND_ATOMIC_BYTES_MAX, Error, FileHandle, OVERWRITE_ATOMIC_BYTES_MAX, PAYLOAD_BYTES, Store,
};

use super::handles::Kept;
use super::pieces::{Pieces, borrowed, changed_blocks, put, random_pieces};

/// Names to bytes: the expected content of a store.
pub type Model = BTreeMap<String, Vec<u8>>;

/// As [`Model`], cheap to copy: contents are shared until they change.
pub type Files = BTreeMap<String, Arc<Vec<u8>>>;

/// The bytes of a file, in either kind of model.
pub trait Content: From<Vec<u8>> {
    fn edit(&mut self) -> &mut Vec<u8>;
    fn bytes(&self) -> &[u8];
}

impl Content for Vec<u8> {
    fn edit(&mut self) -> &mut Vec<u8> {
        self
    }
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl Content for Arc<Vec<u8>> {
    fn edit(&mut self) -> &mut Vec<u8> {
        Arc::make_mut(self)
    }
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// One call on a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    Create(String),
    Append(String, Vec<u8>),
    Replace(String, Vec<u8>),
    Delete(String),
    /// From, to.
    Rename(String, String),
    WriteAt(String, u64, Vec<u8>),
    Truncate(String, u64),
    AppendNosync(String, Vec<u8>),
    WriteAtNosync(String, u64, Vec<u8>),
    WritePiecesNosync(String, Pieces),
    WritePiecesAtOnce(String, Pieces),
    Sync,
    /// Close the store properly and open it again.
    Reopen,
}

impl Operation {
    /// Changes the model to the state after the call has succeeded.
    pub fn apply<C: Content>(&self, model: &mut BTreeMap<String, C>) {
        match self {
            Self::Create(name) => {
                model.insert(name.clone(), C::from(Vec::new()));
            }
            Self::Replace(name, data) => {
                model.insert(name.clone(), C::from(data.clone()));
            }
            Self::Delete(name) => {
                model.remove(name);
            }
            Self::Rename(from, to) => {
                if let Some(content) = model.remove(from) {
                    model.insert(to.clone(), content);
                }
            }
            Self::Sync | Self::Reopen => {}
            Self::Append(name, _)
            | Self::AppendNosync(name, _)
            | Self::WriteAt(name, ..)
            | Self::WriteAtNosync(name, ..)
            | Self::WritePiecesNosync(name, _)
            | Self::WritePiecesAtOnce(name, _)
            | Self::Truncate(name, _) => {
                if let Some(content) = model.get_mut(name) {
                    self.change(content.edit());
                }
            }
        }
    }

    /// Applies a call to the bytes of one file; other calls have no effect.
    pub fn change(&self, content: &mut Vec<u8>) {
        match self {
            Self::Append(_, data) | Self::AppendNosync(_, data) => content.extend_from_slice(data),
            Self::WriteAt(_, offset, data) | Self::WriteAtNosync(_, offset, data)
                if !data.is_empty() =>
            {
                let (start, end) = (*offset as usize, *offset as usize + data.len());
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[start..end].copy_from_slice(data);
            }
            Self::Truncate(_, length) => content.resize(*length as usize, 0),
            Self::WritePiecesNosync(_, pieces) | Self::WritePiecesAtOnce(_, pieces)
                if self.is_done(content) =>
            {
                put(pieces, content);
            }
            _ => {}
        }
    }

    /// Returns the file that the call touches; for a rename, the renamed one.
    pub fn file(&self) -> Option<&str> {
        match self {
            Self::Create(name)
            | Self::Append(name, _)
            | Self::Replace(name, _)
            | Self::Delete(name)
            | Self::Rename(name, _)
            | Self::WriteAt(name, ..)
            | Self::Truncate(name, _)
            | Self::AppendNosync(name, _)
            | Self::WriteAtNosync(name, ..)
            | Self::WritePiecesNosync(name, _)
            | Self::WritePiecesAtOnce(name, _) => Some(name),
            Self::Sync | Self::Reopen => None,
        }
    }

    /// Returns the file whose bytes the call changes while its name stays.
    pub fn changed_file(&self) -> Option<&str> {
        match self {
            Self::Append(name, _)
            | Self::WriteAt(name, ..)
            | Self::Truncate(name, _)
            | Self::AppendNosync(name, _)
            | Self::WriteAtNosync(name, ..)
            | Self::WritePiecesNosync(name, _)
            | Self::WritePiecesAtOnce(name, _) => Some(name),
            _ => None,
        }
    }

    /// Returns whether everything written before is durable once the call has succeeded. Writing no bytes, or renaming
    /// a file to its own name, promises nothing; for pieces see [`is_durable_on`](Self::is_durable_on).
    pub fn makes_durable(&self) -> bool {
        match self {
            Self::AppendNosync(..)
            | Self::WriteAtNosync(..)
            | Self::WritePiecesNosync(..)
            | Self::WritePiecesAtOnce(..) => false,
            Self::Append(_, data) | Self::WriteAt(_, _, data) => !data.is_empty(),
            Self::Rename(from, to) => from != to,
            _ => true,
        }
    }

    /// As [`makes_durable`](Self::makes_durable), for a file that held `old`: pieces at once are durable if they
    /// change something within it, or make it longer.
    pub fn is_durable_on(&self, old: &[u8]) -> bool {
        match self {
            Self::WritePiecesAtOnce(_, pieces) => {
                let longer = |(offset, data): &(u64, Vec<u8>)| {
                    !data.is_empty() && offset + data.len() as u64 > old.len() as u64
                };
                let changes = !changed_blocks(old, pieces).is_empty() || pieces.iter().any(longer);
                self.is_done(old) && changes
            }
            _ => self.makes_durable(),
        }
    }

    /// Returns whether the store makes the call on a file that holds `old`; otherwise it answers that this is too much
    /// at once.
    pub fn is_done(&self, old: &[u8]) -> bool {
        match self {
            Self::WritePiecesAtOnce(_, pieces) => {
                changed_blocks(old, pieces).len() <= AT_ONCE_BLOCKS_MAX
            }
            _ => true,
        }
    }

    /// Runs the call; `Reopen` must not be passed to this function.
    pub fn run<D: BlockDevice>(&self, store: &mut Store<D>) -> Result<(), Error> {
        self.run_with(store, &Kept::default())
    }

    /// As [`run`](Self::run), with a kept handle on the file if there is one.
    pub fn run_with<D: BlockDevice>(&self, store: &mut Store<D>, kept: &Kept) -> Result<(), Error> {
        self.answer_with(store, kept).map(drop)
    }

    /// As [`run_with`](Self::run_with), and returns the store's answer: false if it has done nothing.
    pub fn answer_with<D: BlockDevice>(
        &self,
        store: &mut Store<D>,
        kept: &Kept,
    ) -> Result<bool, Error> {
        match self {
            Self::Create(name) => store.create(name).map(|file| store.close_file(file)),
            Self::Replace(name, data) => store.replace(name, data),
            Self::Delete(name) => store.delete(name),
            Self::Rename(from, to) => store.rename(from, to),
            Self::Sync => store.sync(),
            Self::Reopen => Ok(()),
            Self::Append(name, _)
            | Self::AppendNosync(name, _)
            | Self::WriteAt(name, ..)
            | Self::WriteAtNosync(name, ..)
            | Self::WritePiecesNosync(name, _)
            | Self::WritePiecesAtOnce(name, _)
            | Self::Truncate(name, _) => {
                if let Some(file) = kept.of(name) {
                    return self.answer_on(store, file);
                }
                let file = store.open_file(name)?;
                let answer = self.answer_on(store, file);
                store.close_file(file);
                return answer;
            }
        }
        .map(|()| true)
    }

    /// Runs a call on the bytes of an open file.
    pub fn run_on<D: BlockDevice>(
        &self,
        store: &mut Store<D>,
        file: FileHandle,
    ) -> Result<(), Error> {
        self.answer_on(store, file).map(drop)
    }

    fn answer_on<D: BlockDevice>(
        &self,
        store: &mut Store<D>,
        file: FileHandle,
    ) -> Result<bool, Error> {
        match self {
            Self::Append(_, data) => store.append(file, data),
            Self::AppendNosync(_, data) => store.append_nosync(file, data),
            Self::WriteAt(_, offset, data) => store.write_at(file, *offset, data),
            Self::WriteAtNosync(_, offset, data) => store.write_at_nosync(file, *offset, data),
            Self::WritePiecesNosync(_, pieces) => {
                borrowed(pieces, |pieces| store.write_pieces_nosync(file, pieces))
            }
            Self::WritePiecesAtOnce(_, pieces) => {
                return borrowed(pieces, |pieces| store.write_pieces_at_once(file, pieces));
            }
            Self::Truncate(_, length) => store.truncate(file, *length),
            _ => Ok(()),
        }
        .map(|()| true)
    }

    /// Returns whether the store may refuse the call for lack of free blocks.
    fn may_need_blocks<C: Content>(&self, model: &BTreeMap<String, C>) -> bool {
        let grows = |name: &str, length: u64| {
            model
                .get(name)
                .is_some_and(|content| length > content.bytes().len() as u64)
        };
        match self {
            Self::Append(..) | Self::AppendNosync(..) | Self::Replace(..) => true,
            Self::WriteAt(name, offset, data) | Self::WriteAtNosync(name, offset, data) => {
                grows(name, offset + data.len() as u64)
            }
            Self::WritePiecesNosync(name, pieces) | Self::WritePiecesAtOnce(name, pieces) => {
                let end = |(offset, data): &(u64, Vec<u8>)| offset + data.len() as u64;
                pieces.iter().any(|piece| grows(name, end(piece)))
            }
            Self::Truncate(name, length) => grows(name, *length),
            Self::Create(_) | Self::Delete(_) | Self::Rename(..) | Self::Sync | Self::Reopen => {
                false
            }
        }
    }

    /// Returns a line for a failure message.
    pub fn brief(&self) -> String {
        match self {
            Self::Append(name, data) => format!("append {name} {}", data.len()),
            Self::AppendNosync(name, data) => format!("append-nosync {name} {}", data.len()),
            Self::Replace(name, data) => format!("replace {name} {}", data.len()),
            Self::WriteAt(name, offset, data) => format!("write {name} {} at {offset}", data.len()),
            Self::WriteAtNosync(name, offset, data) => {
                format!("write-nosync {name} {} at {offset}", data.len())
            }
            Self::WritePiecesNosync(name, pieces) | Self::WritePiecesAtOnce(name, pieces) => {
                let at_once = matches!(self, Self::WritePiecesAtOnce(..));
                let places = pieces.iter().map(|(offset, data)| (*offset, data.len()));
                let places = places.collect::<Vec<_>>();
                format!("write-pieces {name} {places:?} at once: {at_once}")
            }
            other => format!("{other:?}"),
        }
    }
}

/// Maximum number of blocks within a file that pieces at once may change.
const AT_ONCE_BLOCKS_MAX: usize = 3;

/// Returns whether a result is right, given the model.
pub fn outcome_is_right<C: Content>(
    operation: &Operation,
    model: &BTreeMap<String, C>,
    result: &Result<(), Error>,
) -> bool {
    let exists = operation.file().is_none_or(|name| model.contains_key(name));
    match (operation, result) {
        (Operation::Create(_), Err(Error::Exists)) => exists,
        (Operation::Create(_), Ok(()) | Err(Error::NameTableFull)) => !exists,
        (Operation::Replace(..), Ok(()) | Err(Error::Full | Error::NameTableFull)) => true,
        (Operation::Rename(_, to), Err(Error::NameTableFull)) => exists && !model.contains_key(to),
        (_, Ok(())) => exists,
        (Operation::Reopen | Operation::Sync, Err(_)) => false,
        (_, Err(Error::NotFound)) => !exists,
        (_, Err(Error::Full)) => exists && operation.may_need_blocks(model),
        _ => false,
    }
}

/// Returns random bytes that identify the call that wrote them.
pub fn content(random: &mut Random, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}

/// Returns a length that covers the edge cases: nothing, a byte, a block, an atomic append, a long one.
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

/// Returns the offset and the length of a write to a file of `length` bytes. It may be inside, in the last block,
/// across the end, at it, or beyond it with a gap.
pub fn write_place(random: &mut Random, length: usize, long_max: usize) -> (u64, usize) {
    let block = random.index(length / PAYLOAD_BYTES + 1) * PAYLOAD_BYTES;
    let last = length.saturating_sub(1) / PAYLOAD_BYTES * PAYLOAD_BYTES;
    let near = random.index(PAYLOAD_BYTES) + 1;
    let (offset, count) = match random.below(14) {
        0 => (0, near),
        1 => (block, PAYLOAD_BYTES),
        2 => (
            block.saturating_sub(random.index(50)),
            random.index(100) + 1,
        ),
        // Inside the last block, up to the end or less.
        3 | 4 => {
            let offset = last + random.index(length - last + 1);
            (offset, random.index(length - offset + 1).max(1))
        }
        5 => (length.saturating_sub(1), 1),
        // Across the end.
        6 => (length - random.index(length.min(6000) + 1), near + 3000),
        7 => (length, near),
        8 => (length + random.index(100) + 1, near),
        9 => (length + random.index(3 * PAYLOAD_BYTES) + 1, near),
        10 => (
            random.index(length.saturating_sub(OVERWRITE_ATOMIC_BYTES_MAX) + 1),
            OVERWRITE_ATOMIC_BYTES_MAX + random.index(2),
        ),
        11 => (random.index(length + 1), random.index(long_max) + 1),
        _ => (random.index(length + 1), random.index(200) + 1),
    };
    (offset as u64, count.min(long_max))
}

/// Returns a new length for a file of `length` bytes: nothing, the same, the ends of blocks, shorter, longer.
pub fn truncate_length(random: &mut Random, length: usize, long_max: usize) -> u64 {
    let block = random.index(length / PAYLOAD_BYTES + 1) * PAYLOAD_BYTES;
    let target = match random.below(12) {
        0 => 0,
        1 => length,
        2 => length.saturating_sub(1),
        3 | 4 => block,
        5 => block.saturating_sub(1),
        6 => block + 1,
        7 => length.saturating_sub(1) / PAYLOAD_BYTES * PAYLOAD_BYTES,
        8 => length + random.index(5000) + 1,
        9 => length + random.index(long_max / 2) + 1,
        _ => random.index(length + 1),
    };
    target as u64
}

/// Returns a random call on one of `files` names: calls on names alone, appends and replaces.
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

/// How often each kind of call occurs, as shares of the sum.
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    pub create: u64,
    pub append: u64,
    pub replace: u64,
    pub delete: u64,
    pub rename: u64,
    pub write_at: u64,
    pub truncate: u64,
    pub append_nosync: u64,
    pub write_at_nosync: u64,
    pub sync: u64,
    pub reopen: u64,
    pub write_pieces_nosync: u64,
    pub write_pieces_at_once: u64,
}

impl Weights {
    /// All calls, except for those on several pieces.
    pub const ALL: Self = Self {
        create: 3,
        append: 8,
        replace: 3,
        delete: 4,
        rename: 3,
        write_at: 8,
        truncate: 6,
        append_nosync: 5,
        write_at_nosync: 3,
        sync: 1,
        reopen: 1,
        write_pieces_nosync: 0,
        write_pieces_at_once: 0,
    };

    /// All calls.
    pub const WITH_PIECES: Self = Self {
        write_pieces_nosync: 5,
        write_pieces_at_once: 8,
        ..Self::ALL
    };

    /// Returns a random call; places in a file are chosen by its content in the model.
    pub fn draw<C: Content>(
        &self,
        random: &mut Random,
        model: &BTreeMap<String, C>,
        files: usize,
        long_max: usize,
    ) -> Operation {
        let weights = [
            self.create,
            self.append,
            self.replace,
            self.delete,
            self.rename,
            self.write_at,
            self.truncate,
            self.append_nosync,
            self.write_at_nosync,
            self.sync,
            self.reopen,
            self.write_pieces_nosync,
            self.write_pieces_at_once,
        ];
        let mut ticket = random.below(weights.iter().sum());
        let kind = weights
            .iter()
            .position(|weight| {
                let hit = ticket < *weight;
                ticket = ticket.saturating_sub(*weight);
                hit
            })
            .unwrap_or(0);
        let any = format!("file-{}", random.index(files));
        // Mostly use an existing file: a call on a missing name ends early.
        let existing = if model.is_empty() || random.below(10) == 0 {
            any.clone()
        } else {
            let next = model.range(any.clone()..).next();
            let (name, _) = next
                .or(model.iter().next())
                .expect("the model is not empty");
            name.clone()
        };
        let long = model
            .get(&existing)
            .map_or(0, |content| content.bytes().len());
        let data = |random: &mut Random| {
            let count = length(random, long_max);
            content(random, count)
        };
        match kind {
            0 => Operation::Create(any),
            1 => Operation::Append(existing, data(random)),
            2 if random.below(6) == 0 => Operation::Replace(any, Vec::new()),
            2 => Operation::Replace(any, data(random)),
            3 => Operation::Delete(existing),
            4 => Operation::Rename(existing, any),
            5 | 8 => {
                let (offset, count) = write_place(random, long, long_max);
                let data = content(random, count);
                if kind == 5 {
                    Operation::WriteAt(existing, offset, data)
                } else {
                    Operation::WriteAtNosync(existing, offset, data)
                }
            }
            6 => Operation::Truncate(existing, truncate_length(random, long, long_max)),
            7 => Operation::AppendNosync(existing, data(random)),
            9 => Operation::Sync,
            11 | 12 => {
                let old = model.get(&existing).map_or(&[][..], Content::bytes);
                let pieces = random_pieces(random, old, long_max);
                if kind == 11 {
                    Operation::WritePiecesNosync(existing, pieces)
                } else {
                    Operation::WritePiecesAtOnce(existing, pieces)
                }
            }
            _ => Operation::Reopen,
        }
    }
}
