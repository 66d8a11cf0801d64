//! Loaders and interpreters that programs of the mount name and that are not in the tree.
//!
//! Where such a one is not on the machine either, the program ends with `No such file or directory`, and nobody says
//! which. Whether it is there is looked for by who asks: a path may lead anywhere, through this mount too.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use stream::FileId;
use stream::manifest::Kind;

use crate::device::escaped;
use crate::view::View;

/// Loaders that are kept, each with the first program that names it; further ones are left out.
const LOADERS_MAX: usize = 256;

/// Permission bits with which a file may be executed.
const EXECUTABLE: u16 = 0o111;

#[derive(Default)]
pub(crate) struct Loaders(Mutex<BTreeMap<String, FileId>>);

impl Loaders {
    /// Looks at the beginning of a file, which the kernel is given.
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
        if view.reach(loader.as_bytes()).is_some() {
            return;
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < LOADERS_MAX {
            known.entry(loader).or_insert(file);
        }
    }

    /// As a JSON array of `{"file", "loader"}`, in about `bytes_max`; what has no room is left out.
    pub(crate) fn told(&self, view: &View, bytes_max: usize) -> String {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut told = String::from("[");
        for (loader, file) in known.iter() {
            let Some(path) = view.path(*file) else {
                continue;
            };
            let (path, loader) = (escaped(&path.to_string_lossy()), escaped(loader));
            if told.len() + path.len() + loader.len() > bytes_max {
                continue;
            }
            let comma = if told.len() > 1 { "," } else { "" };
            // A text takes everything.
            write!(
                told,
                "{comma}{{\"file\":\"{path}\",\"loader\":\"{loader}\"}}"
            )
            .ok();
        }
        told + "]"
    }
}
