//! Finds the newest version that can be served: a damaged manifest makes only its own version unusable.

use super::Store;
use super::damage::Mark;
use super::error::StoreError;
use super::published::Published;
use std::io;
use std::sync::Arc;

/// The maximum number of versions that are skipped. If more are damaged, the cause is the key or the disk and not a
/// manifest.
pub(crate) const PASSED_MAX: usize = 64;

/// The result of the search for the newest sound version.
pub(crate) struct Newest {
    /// The newest sound version, or the error if there is none.
    pub(crate) sound: Result<Arc<Published>, StoreError>,
    /// The damaged versions that are newer, the newest first.
    pub(crate) passed: Vec<Passed>,
}

/// A version that is in the store, or should be, and cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) version: u64,
    /// The problem, with the file.
    pub(crate) text: String,
}

impl Store {
    /// Returns the newest version that can be served, and the problems of newer ones.
    pub(crate) fn newest_sound(&self) -> Newest {
        let mut passed = Vec::new();
        let sound = self.pass_to_sound(&mut passed);
        Newest { sound, passed }
    }

    fn pass_to_sound(&self, passed: &mut Vec<Passed>) -> Result<Arc<Published>, StoreError> {
        // Read the note before the versions are listed, so that a version published meanwhile is not reported as lost.
        let last = self.layout.published_last().ok().flatten();
        let versions = self.versions()?;
        self.damage.keep(&versions);
        let mut first = None;
        if let (Some(lost), Some(found)) = (last, versions.last())
            && lost > *found
        {
            let path = self.layout.manifest(lost);
            let text = StoreError::damaged(&path, "it is missing").to_string();
            passed.push(Passed {
                version: lost,
                text,
            });
        }
        for &version in versions.iter().rev() {
            let error = match self.unless_damaged(version) {
                // The version was pruned meanwhile.
                Err(StoreError::NoSuchVersion { .. }) => continue,
                Err(error) if !is_for_want(&error) => error,
                other => return other,
            };
            passed.push(Passed {
                version,
                text: error.to_string(),
            });
            first.get_or_insert(error);
            if passed.len() >= PASSED_MAX {
                break;
            }
        }
        Err(first.unwrap_or_else(|| StoreError::Empty {
            path: self.layout.folder.clone(),
        }))
    }

    /// Returns a version. Does not read the manifest again if it is known to be damaged.
    fn unless_damaged(&self, version: u64) -> Result<Arc<Published>, StoreError> {
        let path = self.layout.manifest(version);
        // Take the mark before reading: a file that replaces it meanwhile has another mark.
        let mark = Mark::of(&path);
        if let Some(what) = mark.and_then(|mark| self.damage.known(version, mark)) {
            return Err(StoreError::damaged(&path, what));
        }
        let found = self.published(version);
        if let (Err(StoreError::Damaged { what, .. }), Some(mark)) = (&found, mark) {
            self.damage.learn(version, mark, what);
        }
        found
    }
}

/// Returns whether this process lacks a resource. That says nothing about the file, and an older version does not help.
fn is_for_want(error: &StoreError) -> bool {
    let StoreError::System { source, .. } = error else {
        return false;
    };
    source.kind() == io::ErrorKind::Interrupted
        || matches!(
            source.raw_os_error(),
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)
        )
}
