//! Loaders and interpreters that programs of the mount name.
//!
//! If such a loader is not on the machine, the program fails with `No such file or directory`, and the message does not
//! name the loader. If the tree has it, the program must run from the tree's root. The reader of this list must check
//! whether the loader exists on the machine: its path may lead anywhere, even through this mount.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use stream::FileId;
use stream::manifest::Kind;

use crate::json::escaped;
use crate::view::View;

/// The maximum number of recorded loaders, each with the first program that names it; further ones are ignored.
const LOADERS_MAX: usize = 256;

/// The permission bits that allow execution of a file.
const EXECUTABLE: u16 = 0o111;

#[derive(Default)]
pub(crate) struct Loaders(Mutex<BTreeMap<String, FileId>>);

impl Loaders {
    /// Examines the beginning of a file that is passed to the kernel.
    pub(crate) fn look(&self, view: &View, file: FileId, beginning: &[u8]) {
        let is_program = view.node(file).is_some_and(|node| {
            node.mode & EXECUTABLE != 0 && matches!(node.kind, Kind::File { .. })
        });
        if !is_program {
            return;
        }
        let loader = stream::program::loader(beginning).filter(|loader| loader.is_absolute());
        let Some(loader) = loader.and_then(|loader| loader.into_os_string().into_string().ok())
        else {
            return;
        };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < LOADERS_MAX {
            known.entry(loader).or_insert(file);
        }
    }

    /// Returns a JSON array of `{"file", "loader", "in_tree"}`, of about `bytes_max` bytes at most. Skips entries that
    /// do not fit. `in_tree` says whether the tree has the loader at this path.
    pub(crate) fn told(&self, view: &View, bytes_max: usize) -> String {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut told = String::from("[");
        for (loader, file) in known.iter() {
            let Some(path) = view.path(*file) else {
                continue;
            };
            let is_in_tree = view.reach(loader.as_bytes()).is_some();
            let (path, loader) = (escaped(&path.to_string_lossy()), escaped(loader));
            if told.len() + path.len() + loader.len() > bytes_max {
                continue;
            }
            let comma = if told.len() > 1 { "," } else { "" };
            // Writing to a string does not fail.
            write!(
                told,
                "{comma}{{\"file\":\"{path}\",\"loader\":\"{loader}\",\"in_tree\":{is_in_tree}}}"
            )
            .ok();
        }
        told + "]"
    }
}
