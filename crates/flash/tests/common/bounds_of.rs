//! The bound of each call on a store, depending on the call's arguments.

use flash::{Bound, Bounds};

use super::operation::{Content, Operation};
use std::collections::BTreeMap;

/// Returns name and bound of a call on an open file, or on names, given the content of the store.
pub fn bound_of<C: Content>(
    operation: &Operation,
    model: &BTreeMap<String, C>,
    bounds: &Bounds,
) -> (&'static str, Bound) {
    let length = operation
        .changed_file()
        .and_then(|name| model.get(name))
        .map_or(0, |content| content.bytes().len() as u64);
    let write = |offset: u64, bytes: u64| {
        if bytes == 0 {
            ("write nothing", Bound::default())
        } else if offset + bytes <= length {
            ("overwrite", bounds.overwrite(bytes))
        } else if offset >= length {
            ("write beyond", bounds.write_beyond(offset - length, bytes))
        } else {
            // A write across the end: first the part within the file, then the rest.
            let within = length - offset;
            let rest = bounds.write_beyond(0, bytes - within);
            ("write across", bounds.overwrite(within).plus(rest))
        }
    };
    let places = |pieces: &[(u64, Vec<u8>)]| -> Vec<(u64, u64)> {
        let each = pieces
            .iter()
            .map(|(offset, data)| (*offset, data.len() as u64));
        each.collect()
    };
    match operation {
        Operation::Create(_) => ("create", bounds.create()),
        Operation::Append(_, data) => ("append", bounds.append(data.len() as u64)),
        Operation::AppendNosync(_, data) => ("append nosync", bounds.append(data.len() as u64)),
        Operation::Replace(_, data) => ("replace", bounds.replace(data.len() as u64)),
        Operation::Delete(_) => ("delete", bounds.delete()),
        Operation::Rename(..) => ("rename", bounds.rename()),
        Operation::WriteAt(_, offset, data) => write(*offset, data.len() as u64),
        Operation::WriteAtNosync(_, offset, data) => {
            let (_, bound) = write(*offset, data.len() as u64);
            ("write nosync", bound)
        }
        Operation::WritePiecesNosync(_, pieces) => (
            "write pieces nosync",
            bounds.write_pieces(length, &places(pieces)),
        ),
        Operation::WritePiecesAtOnce(_, pieces) => (
            "write pieces at once",
            bounds.write_pieces(length, &places(pieces)),
        ),
        Operation::Truncate(_, to) if *to > length => {
            ("lengthen", bounds.write_beyond(*to - length, 0))
        }
        Operation::Truncate(_, to) => ("truncate", bounds.truncate(length - to)),
        Operation::Sync => ("sync", bounds.sync()),
        Operation::Reopen => ("reopen", Bound::default()),
    }
}

/// As [`bound_of`], for a call that opens its file first.
pub fn bound_with_open<C: Content>(
    operation: &Operation,
    model: &BTreeMap<String, C>,
    bounds: &Bounds,
) -> (&'static str, Bound) {
    let (name, bound) = bound_of(operation, model, bounds);
    if operation.changed_file().is_some() {
        (name, bounds.open().plus(bound))
    } else {
        (name, bound)
    }
}
