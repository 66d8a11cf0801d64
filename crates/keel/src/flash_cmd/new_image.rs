//! An image that has just been created, and is removed unless a store is made in it.

use super::interruption::Interruption;
use std::path::{Path, PathBuf};

/// A file that was created for a store, and is removed unless the store is made.
pub(super) struct NewImage(Option<PathBuf>);

impl NewImage {
    /// Returns a value that removes nothing.
    pub(super) fn nothing() -> Self {
        Self(None)
    }

    /// Removes the file when this is dropped, and when a signal interrupts.
    pub(super) fn new(image: &Path) -> (Self, Interruption) {
        let interruption = Interruption::remove(image);
        (Self(Some(image.to_path_buf())), interruption)
    }

    pub(super) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for NewImage {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            std::fs::remove_file(path).ok();
        }
    }
}
