//! The body of a file of the paper's actions (`ACTIONS.md`).

use super::super::file::{Reader, Writer, damaged};
use super::super::{ActionKind, Catalogue, LoadError, Mode};
use super::action::Executable;
use crate::block::FileId;
use std::collections::{BTreeMap, HashSet};

/// The maximum number of actions in a file.
const ACTIONS_MAX: usize = 1 << 20;

/// The minimum size of an action, in bytes: file, kind, runs, number of blocks.
const ACTION_BYTES_MIN: usize = 17;

/// The maximum number of blocks of an action.
const BLOCKS_MAX: usize = 1 << 24;

/// An action, mapped to the current version.
pub(super) struct Stored {
    pub(super) file: FileId,
    pub(super) kind: ActionKind,
    pub(super) runs: u64,
    pub(super) blocks: Vec<u32>,
}

pub(super) fn save(
    executables: &BTreeMap<FileId, Executable>,
    catalogue: &dyn Catalogue,
) -> Vec<u8> {
    let mut writer = Writer::new(Mode::Paper);
    let known: Vec<_> = executables
        .iter()
        .filter_map(|(file, executable)| Some((writer.number(*file, catalogue)?, executable)))
        .collect();
    let count: usize = known.iter().map(|(_, one)| one.actions.len()).sum();
    writer.u32(count as u32);
    for (number, executable) in known {
        for action in &executable.actions {
            writer.u32(number);
            writer.u8(kind_number(action.kind));
            writer.u64(action.runs);
            writer.u32(action.blocks().count() as u32);
            for index in action.blocks() {
                writer.u32(index);
            }
        }
    }
    writer.finish()
}

pub(super) fn load(bytes: &[u8], catalogue: &dyn Catalogue) -> Result<Vec<Stored>, LoadError> {
    let mut reader = Reader::open(bytes, Mode::Paper)?;
    let fates = reader.fates(catalogue);
    let mut stored = Vec::new();
    for _ in 0..reader.count(ACTIONS_MAX, ACTION_BYTES_MIN)? {
        let number = reader.file()?;
        let kind = kind_from(reader.u8()?)?;
        let runs = reader.u64()?;
        let count = reader.count(BLOCKS_MAX, 4)?;
        let mut seen = HashSet::new();
        let mut blocks = Vec::new();
        for _ in 0..count {
            let index = reader.index(number)?;
            if !seen.insert(index) {
                return Err(damaged("a block twice in an action"));
            }
            // A changed executable mostly keeps its layout. Where it does not, the match fails and the action is
            // recorded again.
            if let Some((at, _)) = fates[number].place(index) {
                blocks.push(at.index);
            }
        }
        if let Some(file) = fates[number].file() {
            stored.push(Stored {
                file,
                kind,
                runs,
                blocks,
            });
        }
    }
    reader.finish()?;
    Ok(stored)
}

pub(in crate::predict) fn kind_number(kind: ActionKind) -> u8 {
    match kind {
        ActionKind::Startup => 0,
        ActionKind::Workload => 1,
        ActionKind::Exit => 2,
    }
}

pub(in crate::predict) fn kind_from(number: u8) -> Result<ActionKind, LoadError> {
    match number {
        0 => Ok(ActionKind::Startup),
        1 => Ok(ActionKind::Workload),
        2 => Ok(ActionKind::Exit),
        _ => Err(damaged("no such kind of action")),
    }
}
