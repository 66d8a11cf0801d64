//! Removes old versions and everything that only they need.
//!
//! The data that stays is read before anything is removed: the removed versions may be all that is sound. Then the
//! manifests are removed. Then one new index describes what is left and makes all others void. Packs with unneeded
//! segments are copied without these. The rename of that index is the commit: before it the old packs and indexes are
//! all present, and after it no reader needs them.

use super::PublishError;
use super::batch::{IndexFile, PackWriter, finish, next_number};
use crate::block::ContentId;
use crate::manifest::Kind;
use crate::regular::is_of_the_file;
use crate::store::files::{self, Layout, WriterLock};
use crate::store::index::{Index, SEGMENT_BYTES_MAX, word};
use crate::store::{
    Location, PACK_HEADER_BYTES, SEGMENT_HEADER_BYTES, State, StoreError, is_pack_header,
    read_manifest, read_publisher,
};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// If there are more packs than this, all are copied into one, even without unneeded segments.
const PACKS_KEPT_MAX: usize = 64;

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PruneReport {
    /// The versions that were removed.
    pub removed: Vec<u64>,
    /// The versions that are left.
    pub kept: Vec<u64>,
    /// The number of contents that only removed versions needed.
    pub contents_removed: u64,
    /// The size of the store's packs before, in bytes.
    pub pack_bytes_before: u64,
    /// The size of the store's packs after, in bytes.
    pub pack_bytes: u64,
    /// The number of removed files of an interrupted publication or prune.
    pub leftovers: u64,
}

/// Keeps the newest `keep` versions of a store, at least one. `progress` is called with the number of bytes read since
/// its last call.
///
/// # Errors
/// Data to be kept is damaged: nothing is removed then. The store is in use, or cannot be written. After any error the
/// versions that are still listed are complete.
pub fn prune(
    store: &Path,
    keep: usize,
    progress: &mut dyn FnMut(usize),
) -> Result<PruneReport, PublishError> {
    let layout = Layout::new(store);
    layout.check_format()?;
    let _lock = WriterLock::take(&layout)?;
    let mut kept = layout.versions()?;
    let removed = kept
        .drain(..kept.len().saturating_sub(keep.max(1)))
        .collect();
    let mut report = PruneReport {
        removed,
        kept,
        pack_bytes_before: pack_bytes(&layout)?,
        ..PruneReport::default()
    };
    // Detect damage of the indexes before anything is removed.
    let live = live_contents(&layout, &report.kept)?;
    let state = State::load(&layout)?;
    for content in &live {
        if !state.contents.contains_key(content) {
            return Err(StoreError::NoSuchContent { content: *content }.into());
        }
    }
    report.contents_removed = (state.contents.len() - live.len()) as u64;
    let segments = live_segments(&layout, &state, &live)?;
    let rewritten = packs_to_rewrite(&layout, &state, &segments)?;
    if !report.removed.is_empty() {
        for at in &segments {
            progress(read(&layout, &state, at)?.len());
        }
    }
    for version in &report.removed {
        remove(&layout.manifest(*version))?;
    }
    files::sync_folder(&layout.manifests())?;
    let packs_live: HashSet<u32> = segments.iter().map(|at| at.pack).collect();
    // Write a new index if a pack is removed. Otherwise its number could be reused while readers have it open.
    let has_dead_pack = state.packs.keys().any(|pack| !packs_live.contains(pack));
    if report.contents_removed > 0 || !rewritten.is_empty() || has_dead_pack {
        rewrite(&layout, &state, &live, &segments, &rewritten, progress)?;
    }
    for path in leftovers(&layout)? {
        remove(&path)?;
        report.leftovers += u64::from(path.extension().is_some_and(|ending| ending == "new"));
    }
    files::sync_folder(&layout.packs())?;
    report.pack_bytes = pack_bytes(&layout)?;
    Ok(report)
}

fn remove(path: &Path) -> Result<(), StoreError> {
    fs::remove_file(path).map_err(|error| StoreError::system(path, "cannot be removed", error))
}

fn pack_bytes(layout: &Layout) -> Result<u64, StoreError> {
    let (packs, _) = layout.numbers()?;
    packs
        .into_iter()
        .map(|number| {
            let path = layout.pack(number);
            let found = fs::metadata(&path);
            found
                .map(|found| found.len())
                .map_err(|error| StoreError::system(&path, "cannot be read", error))
        })
        .sum()
}

fn live_contents(layout: &Layout, versions: &[u64]) -> Result<BTreeSet<ContentId>, StoreError> {
    let mut live = BTreeSet::new();
    if versions.is_empty() {
        return Ok(live);
    }
    let publisher = read_publisher(layout)?
        .ok_or_else(|| StoreError::damaged(&layout.public_key(), "it is missing"))?;
    for version in versions {
        let (manifest, _) = read_manifest(layout, *version, &publisher)?;
        live.extend(manifest.nodes.iter().filter_map(|node| match node.kind {
            Kind::File {
                size_bytes: 1..,
                content,
            } => Some(content),
            _ => None,
        }));
    }
    Ok(live)
}

/// Returns the segments of these contents, in the order of their location.
fn live_segments(
    layout: &Layout,
    state: &State,
    live: &BTreeSet<ContentId>,
) -> Result<BTreeSet<Location>, StoreError> {
    let mut segments = BTreeSet::new();
    for content in live {
        if let Some(record) = state.record(layout, content)? {
            segments.extend(record.segments.iter().copied());
        }
    }
    Ok(segments)
}

/// Returns the packs that hold needed and unneeded data, or whose header is damaged. Returns all needed packs if there
/// are more than [`PACKS_KEPT_MAX`].
fn packs_to_rewrite(
    layout: &Layout,
    state: &State,
    segments: &BTreeSet<Location>,
) -> Result<HashSet<u32>, StoreError> {
    let mut bytes: HashMap<u32, u64> = HashMap::new();
    for at in segments {
        let whole = u64::from(at.bytes) + SEGMENT_HEADER_BYTES as u64;
        *bytes.entry(at.pack).or_insert(PACK_HEADER_BYTES as u64) += whole;
    }
    let has_many = bytes.len() > PACKS_KEPT_MAX;
    let mut rewritten = HashSet::new();
    for (number, live_bytes) in bytes {
        let path = layout.pack(number);
        let pack = state.packs.get(&number);
        let pack = pack.ok_or_else(|| StoreError::damaged(&path, "it is missing"))?;
        let found = pack
            .metadata()
            .map_err(|error| StoreError::system(&path, "cannot be read", error))?;
        let mut header = [0; PACK_HEADER_BYTES];
        let has_header = pack.read_exact_at(&mut header, 0).is_ok() && is_pack_header(&header);
        if has_many || found.len() != live_bytes || !has_header {
            rewritten.insert(number);
        }
    }
    Ok(rewritten)
}

fn rewrite(
    layout: &Layout,
    state: &State,
    live: &BTreeSet<ContentId>,
    segments: &BTreeSet<Location>,
    rewritten: &HashSet<u32>,
    progress: &mut dyn FnMut(usize),
) -> Result<(), PublishError> {
    let number = next_number(layout)?;
    let mut moved = HashMap::new();
    let mut copied = None;
    if !rewritten.is_empty() {
        let mut pack = PackWriter::begin(layout, number)?;
        for at in segments.iter().filter(|at| rewritten.contains(&at.pack)) {
            let compressed = read(layout, state, at)?;
            let to = pack.add(&compressed, at.blocks)?;
            moved.insert((at.pack, at.offset), to);
            progress(compressed.len());
        }
        copied = Some(pack.write_out()?);
    }
    let mut index = IndexFile::begin(layout, number, true)?;
    for content in live {
        if let Some(mut record) = state.record(layout, content)? {
            for at in &mut record.segments {
                if let Some(to) = moved.get(&(at.pack, at.offset)) {
                    *at = *to;
                }
            }
            index.add(*content, &record.list.0, &record.segments)?;
        }
    }
    let index = index.write_out()?;
    Ok(finish(copied, Some(index))?)
}

/// Returns the compressed bytes of a segment after checking its checksum, so that damage is not copied with a valid
/// checksum.
fn read(layout: &Layout, state: &State, at: &Location) -> Result<Vec<u8>, StoreError> {
    let path = layout.pack(at.pack);
    let damaged = || StoreError::damaged(&path, format!("the segment at byte {}", at.offset));
    let pack = state.packs.get(&at.pack).ok_or_else(damaged)?;
    if at.bytes > SEGMENT_BYTES_MAX || at.offset < SEGMENT_HEADER_BYTES as u64 {
        return Err(damaged());
    }
    let mut head = [0; SEGMENT_HEADER_BYTES];
    let mut bytes = vec![0; at.bytes as usize];
    pack.read_exact_at(&mut head, at.offset - SEGMENT_HEADER_BYTES as u64)
        .and_then(|()| pack.read_exact_at(&mut bytes, at.offset))
        .map_err(|error| crate::store::system(&path, "cannot be read", error))?;
    if word(&head, 0) == at.bytes && word(&head, 4) == crc32c::crc32c(&bytes) {
        Ok(bytes)
    } else {
        Err(damaged())
    }
}

/// Returns the files that no version needs: temporary files of an interrupted process, void indexes, and packs that no
/// index refers to.
pub(crate) fn leftovers(layout: &Layout) -> Result<Vec<PathBuf>, StoreError> {
    let mut found = Vec::new();
    for folder in [layout.folder.clone(), layout.manifests(), layout.packs()] {
        let failed = |error| StoreError::system(&folder, "cannot be read", error);
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|ending| ending == "new") {
                found.push(path);
            }
        }
    }
    let (packs, indexes) = layout.numbers()?;
    let mut needed = HashSet::new();
    let mut is_void = false;
    for number in indexes.iter().rev() {
        let path = layout.index(*number);
        if is_void {
            found.push(path);
            continue;
        }
        let index = match Index::open(&path) {
            Err(StoreError::Damaged { .. }) => return Ok(found),
            Err(StoreError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                continue;
            }
            Err(StoreError::System { source, .. }) if is_of_the_file(&source) => return Ok(found),
            other => other?,
        };
        for row in &index.rows {
            let Ok(record) = row.record(&index.file, &path) else {
                return Ok(found);
            };
            needed.extend(record.segments.iter().map(|at| at.pack));
        }
        is_void = index.is_whole;
    }
    let unneeded = packs.iter().filter(|number| !needed.contains(number));
    found.extend(unneeded.map(|number| layout.pack(*number)));
    Ok(found)
}
