//! What a program needs that a tree does not say: its loader or interpreter, and attributes that are not published.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::program::loader;

/// Loaders that are kept, each with the first file that needs it; further ones are not looked for.
const LOADERS_MAX: usize = 256;

/// Loaders and interpreters of a tree's programs.
#[derive(Debug, Default)]
pub(crate) struct Loaders(BTreeMap<PathBuf, PathBuf>);

impl Loaders {
    /// An executable file in the tree at `root`, by its beginning.
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

    /// Those that are neither in the tree nor on this machine, each with a file that needs it: such a program ends with
    /// `No such file or directory`, and nobody says which.
    pub(crate) fn missing(self, root: &Path) -> Vec<(PathBuf, PathBuf)> {
        let is_missing = |loader: &Path| {
            let inside = loader.strip_prefix("/").unwrap_or(loader);
            !root.join(inside).exists() && !loader.exists()
        };
        let missing = self.0.into_iter().filter(|(loader, _)| is_missing(loader));
        missing.map(|(loader, file)| (file, loader)).collect()
    }
}

/// Whether what is there has extended attributes, such as capabilities or a list of who may do what.
pub(crate) fn has_attributes(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: a text that ends with zero, and no buffer: only the length of the list is asked for.
    let bytes = unsafe { libc::llistxattr(path.as_ptr(), std::ptr::null_mut(), 0) };
    bytes > 0
}
