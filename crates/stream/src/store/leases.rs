//! Versions in use: the files of a version that is pruned while mounted stay open until no device uses it.

use super::published::Published;
use crate::sync::locked;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The number of calls of [`Leases::pass`] after which an unused version is dropped. Until then its devices may
/// reconnect.
pub(crate) const ROUNDS_UNUSED: u32 = 30;

/// A version, and how many leases it has.
#[derive(Debug)]
struct LeasedVersion {
    published: Arc<Published>,
    users: usize,
    /// The number of rounds without a user.
    rounds_unused: u32,
}

/// The versions that are in use, or were until recently.
#[derive(Debug, Default)]
pub(crate) struct Leases(Mutex<HashMap<u64, LeasedVersion>>);

impl Leases {
    /// Adds a user of a version.
    pub(crate) fn lease(self: &Arc<Self>, published: &Arc<Published>) -> Lease {
        let version = published.version;
        let mut all = locked(&self.0);
        let leased = all.entry(version).or_insert_with(|| LeasedVersion {
            published: Arc::clone(published),
            users: 0,
            rounds_unused: 0,
        });
        leased.users += 1;
        leased.rounds_unused = 0;
        let leases = Arc::clone(self);
        Lease { leases, version }
    }

    /// Returns a version that has a lease, or had one until recently.
    pub(crate) fn get(&self, version: u64) -> Option<Arc<Published>> {
        let all = locked(&self.0);
        all.get(&version)
            .map(|leased| Arc::clone(&leased.published))
    }

    /// Returns all such versions.
    pub(crate) fn all(&self) -> Vec<Arc<Published>> {
        let all = locked(&self.0);
        all.values()
            .map(|leased| Arc::clone(&leased.published))
            .collect()
    }

    /// Counts a round, and drops versions that were unused for [`ROUNDS_UNUSED`] rounds.
    pub(crate) fn pass(&self) {
        locked(&self.0).retain(|_, leased| {
            if leased.users == 0 {
                leased.rounds_unused += 1;
            }
            leased.rounds_unused < ROUNDS_UNUSED
        });
    }
}

/// Keeps a version open until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    leases: Arc<Leases>,
    version: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(leased) = locked(&self.leases.0).get_mut(&self.version) {
            leased.users = leased.users.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::{PackOptions, pack, prune};
    use crate::store::{Store, StoreError};
    use std::fs;

    #[test]
    fn a_pruned_version_stays_open_while_it_is_in_use_and_no_longer() {
        let folder = std::env::temp_dir().join(format!("stream-leases-{}", std::process::id()));
        let (tree, path) = (folder.join("tree"), folder.join("store"));
        fs::create_dir_all(&tree).unwrap();
        let publish = |seed: u64| {
            let mut state = seed;
            let bytes: Vec<u8> = (0..200_000)
                .map(|_| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(seed | 1);
                    (state >> 33) as u8
                })
                .collect();
            fs::write(tree.join("file"), &bytes).unwrap();
            pack(&tree, &path, &PackOptions::default(), &mut |_| {}).unwrap();
            bytes
        };
        let read = |store: &Store, published: &Published| {
            let file = published.manifest.find(b"file").unwrap();
            let (_, content) = published.manifest.file(file).unwrap();
            let mut bytes = store.segment(&content, 0)?;
            bytes.extend(store.segment(&content, 1)?);
            Ok::<_, StoreError>(bytes)
        };
        let first = publish(1);
        let store = Store::open(&path).unwrap();
        let published = store.published(1).unwrap();
        let (lease, again) = (store.lease(&published), store.lease(&published));
        for version in 2..=10 {
            let bytes = publish(version);
            prune(&path, 1, &mut |_| {}).unwrap();
            store.tidy().unwrap();
            let newest = store.published(version).unwrap();
            assert!(read(&store, &newest).unwrap() == bytes);
            assert!(read(&store, &published).unwrap() == first);
            // The packs of the newest version and of the one in use.
            assert_eq!(store.state().packs.len(), 2, "version {version}");
            assert_eq!(store.published(1).unwrap().version, 1);
        }
        drop(lease);
        for _ in 0..2 * ROUNDS_UNUSED {
            store.tidy().unwrap();
        }
        assert_eq!(store.state().packs.len(), 2);
        // A device that comes back at once finds its version.
        drop(again);
        store.tidy().unwrap();
        drop(store.lease(&store.published(1).unwrap()));
        for _ in 0..ROUNDS_UNUSED {
            assert!(read(&store, &published).unwrap() == first);
            store.tidy().unwrap();
        }
        assert_eq!(store.state().packs.len(), 1);
        assert!(matches!(
            store.published(1),
            Err(StoreError::NoSuchVersion { version: 1 })
        ));
        fs::remove_dir_all(&folder).unwrap();
    }
}
