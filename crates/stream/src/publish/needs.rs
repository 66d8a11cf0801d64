//! Requirements of programs that a tree does not contain: loaders, interpreters, and attributes that are not published.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::program::loader;

/// The maximum number of loaders that are collected, each with the first file that needs it; further ones are ignored.
const LOADERS_MAX: usize = 256;

/// A file of a tree, and the loader that it needs.
type Need = (PathBuf, PathBuf);

/// Loaders and interpreters of a tree's programs.
#[derive(Debug, Default)]
pub(crate) struct Loaders(BTreeMap<PathBuf, PathBuf>);

impl Loaders {
    /// Adds the loader of an executable file in the tree at `root`, given the file's beginning.
    pub(crate) fn add(&mut self, root: &Path, path: &Path, beginning: &[u8]) {
        if self.0.len() >= LOADERS_MAX {
            return;
        }
        let Some(loader) = loader(beginning).filter(|loader| loader.is_absolute()) else {
            return;
        };
        let shown = path.strip_prefix(root).unwrap_or(path);
        self.0.entry(loader).or_insert_with(|| shown.to_path_buf());
    }

    /// Returns the loaders that are not on this machine, each with a file that needs it. First come the loaders that
    /// the tree does not have either, then the loaders of the tree. Such a program fails with `No such file or
    /// directory`, and the message does not name the missing file. With a loader of the tree, it runs from the tree's
    /// root.
    pub(crate) fn missing(self, root: &Path) -> (Vec<Need>, Vec<Need>) {
        let is_in_tree = |loader: &Path| {
            let inside = loader.strip_prefix("/").unwrap_or(loader);
            root.join(inside).exists()
        };
        let missing = self.0.into_iter().filter(|(loader, _)| !loader.exists());
        missing
            .map(|(loader, file)| (file, loader))
            .partition(|(_, loader)| !is_in_tree(loader))
    }
}

/// Returns whether a file has extended attributes, such as capabilities or access control lists.
pub(crate) fn has_attributes(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: the path is a zero-terminated string, and there is no buffer: the call only returns the length of the
    // list.
    let bytes = unsafe { libc::llistxattr(path.as_ptr(), std::ptr::null_mut(), 0) };
    bytes > 0
}
