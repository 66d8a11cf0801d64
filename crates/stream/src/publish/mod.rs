//! From a tree to a store: publishing, checking, pruning.
//!
//! `walk.rs` goes through a tree, `batch.rs` writes what is new of it, `key.rs` knows who signs, `check.rs` looks at
//! every byte of a store, `prune.rs` throws versions away, `error.rs` says what can go wrong.
//!
//! A publication is a pack, an index and a manifest, made lasting in this order; the manifest's rename is what
//! publishes. Whatever a power cut leaves before it is of no version, and goes when the store is pruned.

mod batch;
mod check;
mod error;
pub mod key;
mod needs;
mod prune;
mod walk;

pub use check::{CheckReport, FINDINGS_MAX, Finding, check};
pub use error::PublishError;
pub use prune::{PruneReport, prune};

use crate::manifest::{self, KeyPair, Kind, Manifest, PublicKey};
use crate::store::files::{self, Layout, WriterLock};
use crate::store::{State, StoreError, read_publisher};
use batch::Batch;
use std::path::{Path, PathBuf};
use walk::Walk;

/// Highest number that may be asked for: with a slip of the finger above it, devices would refuse all that comes later.
pub const VERSION_MIN_MAX: u64 = 1_000_000_000_000;
/// The level of zstd that segments are compressed with unless another one is asked for.
pub const LEVEL_DEFAULT: i32 = 3;

/// The levels that zstd has.
pub const LEVELS: std::ops::RangeInclusive<i32> = 1..=22;

/// How to publish.
#[derive(Clone, Debug)]
pub struct PackOptions {
    /// The level of zstd, 1 to 22. Segments that the store has already stay as they are.
    pub level: i32,
    /// The file of the key to sign with; None: the key of the store, which is made with it.
    pub key: Option<PathBuf>,
    /// Go into directories where other file systems are mounted; they are empty otherwise.
    pub crosses_file_systems: bool,
    /// The version is this one or higher, also where the newest one holds exactly this tree. For a store that takes the
    /// place of a lost one: devices refuse older versions than they have seen. Who takes it from people
    /// takes [`VERSION_MIN_MAX`] at most.
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

/// How far publishing has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackProgress {
    /// Files, directories and links seen.
    pub nodes: u64,
    /// Bytes read.
    pub read_bytes: u64,
}

/// What was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackReport {
    /// The version that holds the tree now.
    pub version: u64,
    /// False: the newest version held exactly this tree already, was no lower than asked for, and nothing was
    /// published.
    pub is_new: bool,
    /// Who signed it.
    pub publisher: PublicKey,
    /// What the tree holds.
    pub tree: TreeCounts,
    /// What was written for it.
    pub written: Written,
    /// Bytes of the manifest, signed, as devices get it.
    pub manifest_bytes: u64,
    /// Packs of the store that are missing or too short. What the tree has of them was written again; versions of
    /// other trees may lack the rest.
    pub packs_lacking: Vec<PathBuf>,
    /// Files of the tree, each with the loader or interpreter that it needs and that is neither in the tree nor on this
    /// machine.
    pub loaders_missing: Vec<(PathBuf, PathBuf)>,
    /// The store had content and no version, so it has lost them, or a publication was cut off.
    pub had_no_version: bool,
    /// The note which version was published last could not be read: a version whose manifest is lost, too, may have had
    /// this number.
    pub had_no_note: bool,
    /// Why the number could not be noted. The version is published all the same.
    pub note_failure: Option<String>,
}

/// What a tree holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeCounts {
    /// Regular files.
    pub files: u64,
    /// Directories with the root.
    pub directories: u64,
    /// Symbolic links.
    pub links: u64,
    /// Names beyond the first of a file.
    pub hard_links: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Sockets, FIFOs and devices, which are left out.
    pub special: u64,
    /// Names that had gone when they were to be looked at.
    pub vanished: u64,
    /// Files that were read again because they changed meanwhile.
    pub read_again: u64,
    /// Directories that are empty because another file system is mounted there.
    pub other_file_systems: u64,
    /// Files and directories with extended attributes, such as capabilities, which are left out.
    pub with_attributes: u64,
}

/// What a publication added to a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Contents of files that the store did not have.
    pub contents: u64,
    /// Segments that it did not have.
    pub segments: u64,
    /// Bytes of these segments.
    pub segment_bytes: u64,
    /// And compressed.
    pub compressed_bytes: u64,
    /// Segments that were there already.
    pub shared_segments: u64,
}

/// Publishes a tree into a store, which is made where none is. `progress` is called after each segment and file.
///
/// # Errors
/// The tree cannot be read, or changes all the time; the store cannot be written, is damaged or in use; the key is not
/// the store's. Nothing is published then.
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
    // What is no key makes no store.
    if let Some(given) = &options.key {
        key::load(given)?;
    }
    let layout = Layout::new(store);
    layout.make()?;
    let _lock = WriterLock::take(&layout)?;
    let pair = key::of_store(&layout, options.key.as_deref())?;
    let state = State::load(&layout)?;
    let mut batch = Batch::begin(&layout, &state, options.level)?;
    let mut walk = Walk::new(options.crosses_file_systems, &mut batch, progress);
    walk.run(&root)?;
    let (nodes, names, tree, loaders) = walk.finish();
    let newest = newest(&layout, &pair)?;
    // A number that was given away is not given again, also where its manifest is lost. A note that is damaged is
    // written again.
    let noted = layout.published_last();
    let had_no_note = noted.is_err();
    let noted = noted.unwrap_or(None);
    let lost = noted.filter(|noted| {
        let found = newest.as_ref();
        found.is_none_or(|(newest, _)| newest.version < *noted)
    });
    let mut report = PackReport {
        version: 0,
        is_new: true,
        publisher: pair.public(),
        tree,
        written: Written::default(),
        manifest_bytes: 0,
        packs_lacking: batch.packs_lacking(),
        loaders_missing: loaders.missing(&root),
        had_no_version: newest.is_none() && lost.is_none() && !state.contents.is_empty(),
        had_no_note,
        note_failure: None,
    };
    // Devices that have seen a higher version than the newest one need a new number, also for the same tree.
    let is_there = |newest: &Manifest| {
        newest.version >= options.version_min
            && lost.is_none()
            && newest.nodes == nodes
            && newest.names == names
    };
    if let Some((before, bytes)) = newest.as_ref().filter(|(newest, _)| is_there(newest)) {
        // What the walk wrote beside whole contents is under names that nobody knows yet, and goes with the batch.
        report.version = before.version;
        report.is_new = false;
        report.manifest_bytes = *bytes;
        if batch.has_new() {
            // The store has lost something of this very tree.
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
    // Whatever a device would refuse is better refused here.
    Manifest::decode(&body)?;
    let signed = manifest::sign(&body, &pair);
    report.version = manifest.version;
    report.manifest_bytes = signed.len() as u64;
    files::replace(&layout.manifest(manifest.version), &signed, 0o644)?;
    // Behind it: a power cut in between leaves a lower number, which the next publication raises.
    report.note_failure = note(&layout, manifest.version);
    Ok(report)
}

/// Notes the number of a version that is published; or says why it could not.
fn note(layout: &Layout, version: u64) -> Option<String> {
    let failed = layout.note_published(version).err();
    failed.map(|error| error.to_string())
}

/// The newest version with the bytes of its signed manifest.
fn newest(layout: &Layout, pair: &KeyPair) -> Result<Option<(Manifest, u64)>, PublishError> {
    let Some(version) = layout.versions()?.pop() else {
        return Ok(None);
    };
    let path = layout.manifest(version);
    let signed = files::read_limited(&path, crate::wire::MANIFEST_BYTES_MAX)
        .map_err(|error| StoreError::system(&path, "cannot be read", error))?;
    let read = manifest::verify(&signed, &pair.public())
        .map_err(|error| StoreError::damaged(&path, error))?;
    if read.version != version {
        return Err(StoreError::damaged(&path, "it is another version").into());
    }
    Ok(Some((read, signed.len() as u64)))
}

/// A store in the tree would have itself in itself.
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

/// Counts the kinds of nodes.
fn count(counts: &mut TreeCounts, kind: &Kind) {
    match kind {
        Kind::Directory => counts.directories += 1,
        Kind::File { size_bytes, .. } => {
            counts.files += 1;
            counts.bytes += size_bytes;
        }
        Kind::Link { .. } => counts.links += 1,
    }
}

/// The key of a store, as devices are told it.
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
