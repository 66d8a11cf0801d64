//! The manifests of a store that are known to be damaged.

use crate::sync::locked;
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

/// The minimum age of a file's last change. A younger file may change again without a different mark.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// Identifies the state of a file, to detect a change or a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    device: u64,
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl Mark {
    /// `None` if there is no such file, or it changed less than [`SETTLED_AFTER`] ago.
    pub(super) fn of(path: &Path) -> Option<Self> {
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

/// Known damaged manifests, and their problems, so that they are not read again for each device that connects.
#[derive(Debug, Default)]
pub(super) struct Damage(Mutex<HashMap<u64, (Mark, String)>>);

impl Damage {
    pub(super) fn keep(&self, versions: &[u64]) {
        locked(&self.0).retain(|version, _| versions.binary_search(version).is_ok());
    }

    pub(super) fn known(&self, version: u64, mark: Mark) -> Option<String> {
        let known = locked(&self.0);
        let (of, what) = known.get(&version)?;
        (*of == mark).then(|| what.clone())
    }

    pub(super) fn learn(&self, version: u64, mark: Mark, what: &str) {
        locked(&self.0).insert(version, (mark, what.to_owned()));
    }
}
