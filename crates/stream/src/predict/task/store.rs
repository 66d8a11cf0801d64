//! The body of a file of tasks' actions (`ACTIONS.md`).

use super::action::{Action, Entry};
use super::learned::Task;
use super::run::Phase;
use crate::block::FileId;
use crate::predict::file::{Fate, Reader, Writer, damaged};
use crate::predict::paper::{kind_from, kind_number};
use crate::predict::{ActionKind, Catalogue, LoadError, Mode};
use std::collections::{BTreeMap, HashSet};

/// The maximum number of actions in a file.
const ACTIONS_MAX: usize = 1 << 20;

/// The minimum size of an action, in bytes: everything before its blocks in the oldest version.
const ACTION_BYTES_MIN: usize = 30;

/// The first version of the format that says whether a run was whole.
const WHOLE_VERSION_MIN: u16 = 2;

/// The maximum number of blocks of an action.
const BLOCKS_MAX: usize = 1 << 24;

/// The size of a block, in bytes: file, index, read, known, whether it is planned.
const BLOCK_BYTES_EACH: usize = 17;

pub(super) fn save(tasks: &BTreeMap<FileId, Task>, catalogue: &dyn Catalogue) -> Vec<u8> {
    let mut writer = Writer::new(Mode::Task);
    let mut known = Vec::new();
    for (file, task) in tasks {
        let Some(number) = writer.number(*file, catalogue) else {
            continue;
        };
        for (phase, action) in &task.actions {
            let entries: Vec<(u32, &Entry)> = action
                .entries
                .iter()
                .filter_map(|entry| Some((writer.number(entry.at.file, catalogue)?, entry)))
                .collect();
            let key = match phase {
                Phase::Workload(at) => match writer.number(at.file, catalogue) {
                    Some(file) => (file, at.index),
                    None => continue,
                },
                Phase::Startup | Phase::Exit => (number, 0),
            };
            known.push((number, *phase, key, action, entries));
        }
    }
    writer.u32(known.len() as u32);
    for (number, phase, key, action, entries) in known {
        writer.u32(number);
        writer.u8(kind_number(phase.kind()));
        writer.u32(key.0);
        writer.u32(key.1);
        writer.u8(u8::from(action.is_unconfirmed));
        writer.u8(u8::from(action.is_whole));
        writer.u32(action.exact);
        writer.u64(action.runs);
        writer.u32(entries.len() as u32);
        for (file, entry) in entries {
            writer.u32(file);
            writer.u32(entry.at.index);
            writer.u32(entry.read);
            writer.u32(entry.known);
            writer.u8(u8::from(entry.is_planned));
        }
    }
    writer.finish()
}

pub(super) fn load(
    bytes: &[u8],
    catalogue: &dyn Catalogue,
) -> Result<Vec<(FileId, Phase, Action)>, LoadError> {
    let mut reader = Reader::open(bytes, Mode::Task)?;
    let fates = reader.fates(catalogue);
    let mut stored = Vec::new();
    let mut known = HashSet::new();
    for _ in 0..reader.count(ACTIONS_MAX, ACTION_BYTES_MIN)? {
        let task = reader.file()?;
        let kind = kind_from(reader.u8()?)?;
        let key_file = reader.file()?;
        let key_index = reader.u32()?;
        if kind != ActionKind::Workload && (key_file, key_index) != (task, 0) {
            return Err(damaged("a first block that means nothing"));
        }
        if !known.insert((task, kind, key_file, key_index)) {
            return Err(damaged("an action twice"));
        }
        let was_unconfirmed = reader.flag()?;
        // An older server did not tell them apart, and nearly all runs are whole.
        let is_whole = reader.version() < WHOLE_VERSION_MIN || reader.flag()?;
        let exact = reader.u32()?;
        let runs = reader.u64()?;
        let (entries, is_changed) = read_entries(&mut reader, &fates)?;
        let phase = match kind {
            ActionKind::Startup => Some(Phase::Startup),
            ActionKind::Exit => Some(Phase::Exit),
            ActionKind::Workload => fates[key_file]
                .place(key_index)
                .map(|(at, _)| Phase::Workload(at)),
        };
        if let (Some(file), Some(phase)) = (fates[task].file(), phase)
            && !entries.is_empty()
        {
            let is_unconfirmed = was_unconfirmed || is_changed;
            let action = Action::restore(entries, exact, runs, is_unconfirmed, is_whole);
            stored.push((file, phase, action));
        }
    }
    reader.finish()?;
    Ok(stored)
}

fn read_entries(reader: &mut Reader<'_>, fates: &[Fate]) -> Result<(Vec<Entry>, bool), LoadError> {
    let mut entries = Vec::new();
    let (mut seen, mut placed) = (HashSet::new(), HashSet::new());
    let mut is_changed = false;
    for _ in 0..reader.count(BLOCKS_MAX, BLOCK_BYTES_EACH)? {
        let file = reader.file()?;
        let index = reader.index(file)?;
        if !seen.insert((file, index)) {
            return Err(damaged("a block twice in an action"));
        }
        let read = reader.u32()?;
        let known = reader.u32()?;
        let is_planned = reader.flag()?;
        // Only a block that is pushed in each run may have been seen in none.
        if read & !known != 0 || (read == 0 && !(known == 0 && is_planned)) {
            return Err(damaged("a history that cannot be"));
        }
        let Some((at, is_same)) = fates[file].place(index) else {
            continue;
        };
        if !placed.insert(at) {
            // They were two files then, and are one file with two names now.
            continue;
        }
        if is_same {
            entries.push(Entry {
                at,
                read,
                known,
                is_planned,
            });
        } else if is_planned {
            // One vote, so that a single exact run without it removes it from the plan.
            is_changed = true;
            entries.push(Entry {
                at,
                read: 1,
                known: 1,
                is_planned,
            });
        }
    }
    Ok((entries, is_changed))
}
