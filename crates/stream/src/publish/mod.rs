//! From a tree to a store: publishing, checking, pruning.
//!
//! **Files:** `walk.rs` walks a tree, `batch.rs` writes what is new in it, `key.rs` reads and creates keys, `check.rs`
//! checks every byte of a store, `prune.rs` removes versions, `error.rs` defines the errors.
//!
//! A publication is a pack, an index and a manifest, made durable in this order. The rename of the manifest is the
//! commit. What a power cut leaves before it belongs to no version and is removed by pruning.

mod batch;
mod check;
mod error;
pub mod key;
mod needs;
mod prune;
mod walk;

pub use batch::Written;
pub use check::{CheckReport, FINDINGS_MAX, Finding, check};
pub use error::PublishError;
pub use prune::{PruneReport, prune};
pub use walk::{PackProgress, TreeCounts};

use crate::manifest::{self, KeyPair, Manifest, PublicKey};
use crate::store::files::{self, Layout};
use crate::store::{State, StoreError, read_manifest, read_publisher};
use batch::Batch;
use std::path::{Path, PathBuf};
use walk::Walk;

/// The highest version number that a user may request. After a typing error above it, devices would refuse all later
/// versions.
pub const VERSION_MIN_MAX: u64 = 1_000_000_000_000;
/// The default zstd level for segments.
pub const LEVEL_DEFAULT: i32 = 3;

/// The valid zstd levels.
pub const LEVELS: std::ops::RangeInclusive<i32> = 1..=22;

/// How to publish.
#[derive(Clone, Debug)]
pub struct PackOptions {
    /// The zstd level, 1 to 22. Segments that are already in the store stay as they are.
    pub level: i32,
    /// The file of the key to sign with; `None` for the store's own key, which is created with the store.
    pub key: Option<PathBuf>,
    /// Whether to enter directories where other file systems are mounted; otherwise these are published as empty.
    pub crosses_file_systems: bool,
    /// The lowest allowed number for the version, even if the newest version holds exactly this tree. For a store that
    /// replaces a lost one: devices refuse versions older than they have seen. A value from user input must be at most
    /// [`VERSION_MIN_MAX`].
    pub version_min: u64,
}

impl Default for PackOptions {
    fn default() -> Self {
        Self {
            level: LEVEL_DEFAULT,
            key: None,
            crosses_file_systems: false,
            version_min: 1,
        }
    }
}

/// What was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackReport {
    /// The version that now holds the tree.
    pub version: u64,
    /// `false` if the newest version already held exactly this tree and was high enough, so that nothing was published.
    pub is_new: bool,
    /// The publisher that signed it.
    pub publisher: PublicKey,
    /// The counts of the tree.
    pub tree: TreeCounts,
    /// The counts of what was written.
    pub written: Written,
    /// The size of the signed manifest, in bytes, as devices receive it.
    pub manifest_bytes: u64,
    /// Packs of the store that are missing or too short. Their segments that the tree needs were written again;
    /// versions of other trees may lack the rest.
    pub packs_lacking: Vec<PathBuf>,
    /// Packs of the store in which segments of the tree were damaged. These segments were written again; other versions
    /// may lack other ones.
    pub packs_damaged: Vec<PathBuf>,
    /// Indexes of the store with a damaged record of a content. Contents of the tree were written again; versions of
    /// other trees may lack the rest.
    pub indexes_damaged: Vec<PathBuf>,
    /// Files of the tree, each with the loader or interpreter that it needs and that is neither in the tree nor on this
    /// machine.
    pub loaders_missing: Vec<(PathBuf, PathBuf)>,
    /// The same for loaders that are in the tree, at the path that the file names, and not on this machine.
    pub loaders_in_tree: Vec<(PathBuf, PathBuf)>,
    /// The store had content but no version: its versions were lost, or a publication was interrupted.
    pub had_no_version: bool,
    /// The note of the last published version could not be read. So this number may already have been used by a version
    /// whose manifest is lost.
    pub had_no_note: bool,
    /// Why the version number could not be noted. The version is published anyway.
    pub note_failure: Option<String>,
}

/// Publishes a tree into a store, which is created if needed. `progress` is called after each segment and file.
///
/// # Errors
/// The tree cannot be read, or keeps changing; the store cannot be written, is damaged or in use; the key is not the
/// store's. Nothing is published then.
pub fn pack(
    tree: &Path,
    store: &Path,
    options: &PackOptions,
    progress: &mut dyn FnMut(&PackProgress),
) -> Result<PackReport, PublishError> {
    if !LEVELS.contains(&options.level) {
        return Err(PublishError::Level {
            level: options.level,
        });
    }
    let root = walk::root_of(tree)?;
    refuse_inside(&root, tree, store)?;
    // Check the key first, so that an invalid key creates no store.
    if let Some(given) = &options.key {
        key::load(given)?;
    }
    let layout = Layout::new(store);
    let _lock = layout.make()?;
    let pair = key::of_store(&layout, options.key.as_deref())?;
    let state = State::load(&layout)?;
    let mut batch = Batch::begin(&layout, &state, options.level)?;
    let mut walk = Walk::new(options.crosses_file_systems, &mut batch, progress);
    walk.run(&root)?;
    let (nodes, names, tree, loaders) = walk.finish();
    let newest = newest(&layout, &pair)?;
    // A version number is never reused, even if its manifest is lost. A damaged note is rewritten.
    let noted = layout.published_last();
    let had_no_note = noted.is_err();
    let noted = noted.unwrap_or(None);
    let lost = noted.filter(|noted| {
        let found = newest.as_ref();
        found.is_none_or(|(newest, _)| newest.version < *noted)
    });
    let (loaders_missing, loaders_in_tree) = loaders.missing(&root);
    let mut report = PackReport {
        version: 0,
        is_new: true,
        publisher: pair.public(),
        tree,
        written: Written::default(),
        manifest_bytes: 0,
        packs_lacking: batch.packs_lacking(),
        packs_damaged: batch.packs_damaged(),
        indexes_damaged: batch.indexes_damaged(),
        loaders_missing,
        loaders_in_tree,
        had_no_version: newest.is_none() && lost.is_none() && !state.contents.is_empty(),
        had_no_note,
        note_failure: None,
    };
    // Devices that have seen a version above the newest one need a new number, even for the same tree.
    let is_there = |newest: &Manifest| {
        newest.version >= options.version_min
            && lost.is_none()
            && newest.nodes == nodes
            && newest.names == names
    };
    if let Some((before, bytes)) = newest.as_ref().filter(|(newest, _)| is_there(newest)) {
        // What the walk wrote beyond complete contents has only temporary names, and is removed with the batch.
        report.version = before.version;
        report.is_new = false;
        report.manifest_bytes = *bytes;
        if batch.has_new() {
            // The store has lost a part of this very tree.
            report.written = batch.finish()?;
        }
        report.note_failure = note(&layout, before.version);
        return Ok(report);
    }
    let last = newest.map_or(0, |(newest, _)| newest.version);
    let last = last.max(lost.unwrap_or(0));
    let next = last
        .checked_add(1)
        .ok_or_else(|| PublishError::NoVersionLeft {
            path: store.to_path_buf(),
        })?;
    report.written = batch.finish()?;
    let manifest = Manifest {
        version: next.max(options.version_min),
        nodes,
        names,
    };
    let body = manifest.encode();
    // Refuse here what every device would refuse.
    Manifest::decode(&body)?;
    let signed = manifest::sign(&body, &pair);
    report.version = manifest.version;
    report.manifest_bytes = signed.len() as u64;
    files::replace(&layout.manifest(manifest.version), &signed, 0o644)?;
    // Write the note after the manifest: a power cut in between leaves a lower number, which the next publication
    // raises.
    report.note_failure = note(&layout, manifest.version);
    Ok(report)
}

/// Notes the number of a published version. Returns why this failed, if it failed.
fn note(layout: &Layout, version: u64) -> Option<String> {
    let failed = layout.note_published(version).err();
    failed.map(|error| error.to_string())
}

/// Returns the newest version and the size of its signed manifest, in bytes.
fn newest(layout: &Layout, pair: &KeyPair) -> Result<Option<(Manifest, u64)>, PublishError> {
    let Some(version) = layout.versions()?.pop() else {
        return Ok(None);
    };
    let (manifest, signed) = read_manifest(layout, version, &pair.public())?;
    Ok(Some((manifest, signed.len() as u64)))
}

/// Refuses a store inside the tree, because it would contain itself.
fn refuse_inside(root: &Path, tree: &Path, store: &Path) -> Result<(), PublishError> {
    let mut existing = store;
    let absolute = loop {
        if let Ok(found) = existing.canonicalize() {
            break found;
        }
        existing = match existing.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
    };
    if absolute.starts_with(root) {
        return Err(PublishError::StoreInTree {
            store: store.to_path_buf(),
            tree: tree.to_path_buf(),
        });
    }
    Ok(())
}

/// Returns the public key of a store, with which devices are configured.
///
/// # Errors
/// There is no store, or nothing is published in it.
pub fn publisher(store: &Path) -> Result<PublicKey, StoreError> {
    let layout = Layout::new(store);
    layout.check_format()?;
    read_publisher(&layout)?.ok_or(StoreError::Empty {
        path: store.to_path_buf(),
    })
}
