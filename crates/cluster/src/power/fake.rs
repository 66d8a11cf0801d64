//! A folder that stands for `/` in tests.

use super::root::Root;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Removed when dropped.
pub(crate) struct Tree {
    folder: PathBuf,
}

impl Tree {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("keel-power-{}-{next}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Self { folder }
    }

    pub(crate) fn root(&self) -> Root {
        Root::new(&self.folder)
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }

    /// Writes a file, with the folders above it.
    pub(crate) fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().expect("below the root")).expect("folders");
        std::fs::write(path, text).expect("a file");
    }

    pub(crate) fn remove(&self, path: &str) {
        std::fs::remove_file(self.path(path)).expect("a file");
    }

    pub(crate) fn rename(&self, from: &str, to: &str) {
        std::fs::rename(self.path(from), self.path(to)).expect("a path");
    }

    /// Creates a link like the kernel's from a sensor to its device.
    pub(crate) fn link(&self, path: &str, target: impl AsRef<Path>) {
        std::os::unix::fs::symlink(target, self.path(path)).expect("a link");
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).ok();
    }
}
