//! The newest version that can be served: a manifest that is damaged takes its own version away, and no other one.

use super::{Published, Store, StoreError, lock};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// Versions that are passed over, at most: where more are damaged, it is the key or the disk and not a manifest.
pub(crate) const PASSED_MAX: usize = 64;

/// A file that was changed less long ago than this may change again without a mark that differs.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// What was found when the newest version was looked for.
pub(crate) struct Newest {
    /// The newest one that is sound; else why there is none.
    pub(crate) sound: Result<Arc<Published>, StoreError>,
    /// Those newer than it, the newest first.
    pub(crate) passed: Vec<Passed>,
}

/// A version that is there and that nobody can be given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) version: u64,
    /// What is wrong with it, with its file.
    pub(crate) text: String,
}

/// By which it is seen that a file was changed or is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    device: u64,
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl Mark {
    /// None: there is no such file, or it was changed a moment ago.
    fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        let changed = (found.ctime(), found.ctime_nsec());
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let settled = since_epoch.ok()?.checked_sub(SETTLED_AFTER)?;
        let is_settled = u64::try_from(changed.0).is_ok_and(|seconds| seconds < settled.as_secs());
        is_settled.then_some(Self {
            device: found.dev(),
            inode: found.ino(),
            bytes: found.len(),
            changed,
        })
    }
}

/// Manifests that were found damaged, and what was wrong: they are not read again for each device that greets.
#[derive(Debug, Default)]
pub(crate) struct Damage(Mutex<HashMap<u64, (Mark, String)>>);

impl Damage {
    fn keep(&self, versions: &[u64]) {
        lock(&self.0).retain(|version, _| versions.binary_search(version).is_ok());
    }

    fn known(&self, version: u64, mark: Mark) -> Option<String> {
        let known = lock(&self.0);
        let (of, what) = known.get(&version)?;
        (*of == mark).then(|| what.clone())
    }

    fn learn(&self, version: u64, mark: Mark, what: &str) {
        lock(&self.0).insert(version, (mark, what.to_owned()));
    }
}

impl Store {
    /// The newest version that can be served, and what is damaged of those that are newer.
    pub(crate) fn newest_sound(&self) -> Newest {
        let mut passed = Vec::new();
        let sound = self.pass_to_sound(&mut passed);
        Newest { sound, passed }
    }

    fn pass_to_sound(&self, passed: &mut Vec<Passed>) -> Result<Arc<Published>, StoreError> {
        // Before the versions are listed: one that is published meanwhile is not taken for lost.
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
                // It was pruned meanwhile.
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

    /// A version, whose manifest is not read again where it is known to be damaged.
    fn unless_damaged(&self, version: u64) -> Result<Arc<Published>, StoreError> {
        let path = self.layout.manifest(version);
        // Of before it is read: what is put in its place meanwhile has another one.
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

/// Whether this process lacks something: that says nothing of the file, and no older version helps.
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
