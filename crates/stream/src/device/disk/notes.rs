//! What a device keeps across restarts in addition to blocks. The cache holds the manifest, hashes and what tasks
//! needed. The publisher and the highest version seen are written to the disk before a manifest is used.

use crate::block::{BlockAt, BlockHash, ContentId, FileId, HashList};
use crate::device::error::DeviceError;
use crate::device::{Cache, CacheError, Lists, cache};
use crate::group::{self, GROUP_BLOCKS, Group, GroupAt, group_blocks, proof_values};
use crate::manifest::{Manifest, PublicKey};
use crate::regular;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The maximum size of a note of what was seen, in bytes.
const SEEN_BYTES_MAX: u64 = 4096;

/// The line that begins the seal of a note in a folder. `CACHE.md` defines each line.
const SEEN_FORMAT: &str = "format 2";

/// The maximum size of a note of what a task needed, in bytes, unpacked.
const PLAN_BYTES_MAX: usize = 4 << 20;

/// The zstd level for the notes of what tasks needed.
const PLAN_LEVEL: i32 = 3;

/// The publisher seen at a server, and the highest version of its manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub publisher: PublicKey,
    pub version: u64,
    /// The hash of the signed manifest of that version. Notes of older devices do not have it.
    pub manifest: Option<[u8; 32]>,
}

impl Seen {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.lines();
        let publisher = lines.next()?.strip_prefix("publisher ")?.parse().ok()?;
        let version = lines.next()?.strip_prefix("version ")?.parse().ok()?;
        let manifest = match lines.next().filter(|line| *line != SEEN_FORMAT) {
            Some(line) => {
                let hash = blake3::Hash::from_hex(line.strip_prefix("manifest ")?).ok()?;
                Some(*hash.as_bytes())
            }
            None => None,
        };
        Some(Self {
            publisher,
            version,
            manifest,
        })
    }

    /// Parses a note of a folder. Returns it, and whether it is sealed: notes of older devices are not.
    fn parse_file(bytes: &[u8]) -> Result<(Self, bool), &'static str> {
        let damaged = "it is damaged";
        let text = std::str::from_utf8(bytes).map_err(|_| damaged)?;
        let seen = Self::parse(bytes).ok_or(damaged)?;
        // Compared as a whole, so that damage to the seal itself does not make a note of the older form.
        if text == seen.text() {
            return Ok((seen, false));
        }
        match text == seen.sealed() {
            true => Ok((seen, true)),
            false => Err("its checksum is wrong, or its format is unknown"),
        }
    }

    /// Returns the note of a folder: the text, its format, and the checksum of all lines before.
    fn sealed(&self) -> String {
        let text = format!("{}{SEEN_FORMAT}\n", self.text());
        let sum = crc32c::crc32c(text.as_bytes());
        format!("{text}checksum {sum:08x}\n")
    }

    fn text(&self) -> String {
        let mut text = format!("publisher {}\nversion {}\n", self.publisher, self.version);
        if let Some(hash) = self.manifest {
            let hash = blake3::Hash::from_bytes(hash);
            text.push_str(&format!("manifest {hash}\n"));
        }
        text
    }
}

fn short(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..32].to_owned()
}

fn seen_name(server: &str) -> String {
    format!("seen-{}", short(server.as_bytes()))
}

fn failed(what: &str, path: &Path) -> impl FnOnce(io::Error) -> DeviceError {
    let what = format!("{what} {}", path.display());
    move |source| DeviceError::State { what, source }
}

/// Returns what was seen of a server. If there are a folder and a cache, both hold the note, so that neither alone can
/// be rolled back. The highest version counts, of the publisher that the folder names; among equal versions, the
/// folder's note.
///
/// # Errors
/// It cannot be read. A damaged note in the folder is an error, not a missing note: otherwise an older manifest could
/// be accepted.
pub(crate) fn seen(
    state: Option<&Path>,
    cache: Option<&dyn Cache>,
    server: &str,
) -> Result<Option<Seen>, DeviceError> {
    let name = seen_name(server);
    let noted = match state {
        Some(folder) => sealed_in(folder, &name)?,
        None => None,
    };
    // The cache detects damaged values itself; the values that are left may be older.
    let kept = cache.map_or_else(Vec::new, |cache| cache.notes(&name));
    let kept = kept.iter().filter_map(|bytes| Seen::parse(bytes));
    let mut all = noted.into_iter().chain(kept);
    let first = all.next();
    Ok(first.map(|first| {
        let others = all.filter(|other| other.publisher == first.publisher);
        // Of notes of one version, the one with the manifest's hash counts.
        let rank = |seen: &Seen| (seen.version, seen.manifest.is_some());
        others.fold(first, |highest, other| {
            match rank(&other) > rank(&highest) {
                true => other,
                false => highest,
            }
        })
    }))
}

/// Reads a note of the folder. A note of the older form, which has no checksum, is written again with one.
fn sealed_in(folder: &Path, name: &str) -> Result<Option<Seen>, DeviceError> {
    let path = folder.join(name);
    let Some((seen, is_sealed)) = seen_in(&path)? else {
        return Ok(None);
    };
    // A note without the manifest's hash is written again when the manifest is known.
    if !is_sealed && seen.manifest.is_some() {
        // If the folder cannot be written now, the next start tries again: the older note is still there.
        write_durably(folder, &path, seen.sealed().as_bytes()).ok();
    }
    Ok(Some(seen))
}

/// Reads a note file of the folder. Returns whether it is sealed, too.
fn seen_in(path: &Path) -> Result<Option<(Seen, bool)>, DeviceError> {
    let file = match regular::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(failed("read", path))?,
    };
    let mut bytes = Vec::new();
    file.take(SEEN_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(failed("read", path))?;
    if bytes.len() as u64 > SEEN_BYTES_MAX {
        bytes.clear();
    }
    let damaged = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let noted = Seen::parse_file(&bytes).map_err(|what| failed("read", path)(damaged(what)))?;
    Ok(Some(noted))
}

/// Writes what was seen of a server to the folder and the cache. It is on the disk when the call returns.
///
/// # Errors
/// It could not be written. [`DeviceError::Cache`]: not to the cache, but it is in the folder, if there is one.
pub(crate) fn set_seen(
    state: Option<&Path>,
    cache: Option<&dyn Cache>,
    server: &str,
    seen: &Seen,
) -> Result<(), DeviceError> {
    let name = seen_name(server);
    if let Some(folder) = state {
        let path = folder.join(&name);
        if !matches!(seen_in(&path), Ok(Some((before, _))) if before == *seen) {
            fs::create_dir_all(folder).map_err(failed("make", folder))?;
            write_durably(folder, &path, seen.sealed().as_bytes())
                .map_err(failed("write", &path))?;
        }
    }
    if let Some(cache) = cache {
        cache.set_note(&name, seen.text().as_bytes())?;
    }
    Ok(())
}

fn write_durably(folder: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new: PathBuf = path.to_owned();
    new.set_extension("new");
    let mut file = fs::File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    fs::File::open(folder)?.sync_all()
}

/// Returns the name of the note of the signed manifest that was used last with a server.
pub(crate) fn manifest_name(server: &str) -> String {
    format!("manifest-{}", short(server.as_bytes()))
}

/// The single group of a short file has the name and the bytes that whole lists had before groups were introduced.
fn group_name(content: &ContentId, blocks: u32, group: u32) -> String {
    match blocks <= GROUP_BLOCKS {
        true => list_name(content),
        false => format!("hashes-{content}-{group}"),
    }
}

fn list_name(content: &ContentId) -> String {
    format!("hashes-{content}")
}

/// Returns a group of hashes of a content; the caller must verify it.
pub(crate) fn group(
    cache: &dyn Cache,
    content: &ContentId,
    blocks: u32,
    group: u32,
) -> Option<Group> {
    let count = group_blocks(blocks, group)?.len();
    let Some(bytes) = cache.note(&group_name(content, blocks, group)) else {
        return split_list(cache, content, blocks)?
            .into_iter()
            .nth(group as usize);
    };
    let (values, rest) = bytes.as_chunks::<32>();
    let (hashes, proof) = values.split_at_checked(count)?;
    rest.is_empty().then(|| Group {
        hashes: hashes.iter().map(|hash| BlockHash(*hash)).collect(),
        proof: proof.into(),
    })
}

/// Keeps a group: its hashes, and behind them their proof.
///
/// # Errors
/// An error of the cache.
pub(crate) fn set_group(
    cache: &dyn Cache,
    manifest: &Manifest,
    at: GroupAt,
    group: &Group,
) -> Result<(), CacheError> {
    let Some((_, content)) = manifest.file(at.file) else {
        return Ok(());
    };
    let name = group_name(&content, manifest.blocks(at.file), at.group);
    cache.set_note(&name, &group_bytes(group))
}

/// Whether the cache has a group of hashes.
pub(crate) fn keeps_group(cache: &dyn Cache, manifest: &Manifest, at: GroupAt) -> bool {
    manifest.file(at.file).is_some_and(|(_, content)| {
        cache.keeps_note(&group_name(&content, manifest.blocks(at.file), at.group))
    })
}

/// Returns the lists of hashes that are needed for blocks, as a cache keeps them: one for all files of the same
/// content.
pub(crate) fn lists_of(manifest: &Manifest, blocks: &[BlockAt]) -> Lists {
    let mut lists = Lists::default();
    let mut known = HashSet::new();
    let mut last = None;
    for at in blocks.iter().map(|at| GroupAt::from(*at)) {
        if last.replace(at) == Some(at) {
            continue;
        }
        let Some((_, content)) = manifest.file(at.file) else {
            continue;
        };
        let blocks = manifest.blocks(at.file);
        if let Some(hashes) = group_blocks(blocks, at.group)
            && known.insert((content, at.group))
        {
            let values = hashes.len() + proof_values(blocks, at.group);
            let name = group_name(&content, blocks, at.group);
            lists.count += 1;
            lists.bytes += cache::note_bytes(name.len(), values * 32);
        }
    }
    lists
}

fn group_bytes(group: &Group) -> Vec<u8> {
    let hashes = group.hashes.iter().map(|hash| hash.0);
    hashes
        .chain(group.proof.iter().copied())
        .flatten()
        .collect()
}

/// Splits a long file's list of hashes, which an older device has kept as a whole, into groups. From now on they are
/// kept one by one, so that this is done once.
fn split_list(cache: &dyn Cache, content: &ContentId, blocks: u32) -> Option<Vec<Group>> {
    if blocks <= GROUP_BLOCKS {
        return None;
    }
    let name = list_name(content);
    let bytes = cache.note(&name)?;
    let (hashes, rest) = bytes.as_chunks::<32>();
    let is_whole = rest.is_empty() && hashes.len() == blocks as usize;
    let list = is_whole.then(|| HashList(hashes.iter().map(|hash| BlockHash(*hash)).collect()));
    let groups = list.and_then(|list| group::split(&list, content));
    let kept = (0..)
        .zip(groups.iter().flatten())
        .try_for_each(|(at, group)| {
            let name = group_name(content, blocks, at);
            cache.set_note(&name, &group_bytes(group))
        });
    // The old list is removed once all its groups are kept. A group that is lost later is requested from a server
    // again.
    if kept.is_ok() {
        cache.set_note(&name, &[]).ok();
    }
    groups
}

/// The paths of a manifest's nodes: for each node, its first name.
pub(crate) struct Paths {
    // For each node, the position of its name; the root has none.
    names: Vec<u32>,
}

impl Paths {
    pub fn of(manifest: &Manifest) -> Self {
        let mut names = vec![u32::MAX; manifest.nodes.len()];
        for (place, name) in manifest.names.iter().enumerate().rev() {
            if let Some(of) = names.get_mut(name.node.0 as usize) {
                *of = place as u32;
            }
        }
        Self { names }
    }

    /// Returns the path of a node from the root, without a leading slash.
    pub fn get(&self, manifest: &Manifest, file: FileId) -> Vec<u8> {
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut node = file;
        while let Some(place) = self.names.get(node.0 as usize)
            && let Some(name) = manifest.names.get(*place as usize)
            && parts.len() <= self.names.len()
        {
            parts.push(&name.name);
            node = name.directory;
        }
        parts.reverse();
        parts.join(&b'/')
    }
}

fn plan_name(path: &[u8]) -> String {
    format!("plan-{}", short(path))
}

/// Encodes what a task needed, as a note that stays valid across versions: paths, and runs of their blocks in order.
/// Little-endian: format u8, number of files u32, for each its path's length u16 and its path. Then runs follow: file
/// u32, first block u32, count u32.
pub(crate) fn plan_bytes(manifest: &Manifest, paths: &Paths, blocks: &[BlockAt]) -> Vec<u8> {
    let mut files: HashMap<FileId, u32> = HashMap::new();
    let (mut table, mut runs) = (Vec::new(), Vec::<(u32, u32, u32)>::new());
    for at in blocks {
        let count = files.len() as u32;
        let file = *files.entry(at.file).or_insert_with(|| {
            let path = paths.get(manifest, at.file);
            table.extend_from_slice(&(path.len() as u16).to_le_bytes());
            table.extend_from_slice(&path);
            count
        });
        match runs.last_mut() {
            Some((last, first, count)) if *last == file && at.index == *first + *count => {
                *count += 1;
            }
            _ => runs.push((file, at.index, 1)),
        }
    }
    let mut bytes = vec![1];
    bytes.extend_from_slice(&(files.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&table);
    for (file, first, count) in runs {
        for number in [file, first, count] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
    }
    bytes
}

/// Returns what a task needed according to a note, as far as this version has it.
pub(crate) fn plan_blocks(manifest: &Manifest, bytes: &[u8], blocks_max: usize) -> Vec<BlockAt> {
    plan_parsed(manifest, bytes, blocks_max).unwrap_or_default()
}

fn plan_parsed(manifest: &Manifest, bytes: &[u8], blocks_max: usize) -> Option<Vec<BlockAt>> {
    let (format, bytes) = bytes.split_first()?;
    if *format != 1 {
        return None;
    }
    let (count, mut bytes) = bytes.split_first_chunk::<4>()?;
    let mut files = Vec::new();
    for _ in 0..u32::from_le_bytes(*count) {
        let (length, rest) = bytes.split_first_chunk::<2>()?;
        let (path, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        files.push(manifest.find(path));
        bytes = rest;
    }
    let mut blocks = Vec::new();
    let (runs, _) = bytes.as_chunks::<12>();
    for run in runs {
        let number =
            |at: usize| u32::from_le_bytes([run[at], run[at + 1], run[at + 2], run[at + 3]]);
        let Some(file) = files.get(number(0) as usize).copied().flatten() else {
            continue;
        };
        let end = number(4)
            .saturating_add(number(8))
            .min(manifest.blocks(file));
        for index in number(4)..end {
            if blocks.len() >= blocks_max {
                return Some(blocks);
            }
            blocks.push(BlockAt { file, index });
        }
    }
    Some(blocks)
}

/// Keeps what the task of a path needed.
///
/// # Errors
/// An error of the cache.
pub(crate) fn set_plan(cache: &dyn Cache, path: &[u8], bytes: &[u8]) -> Result<(), CacheError> {
    let packed = zstd::bulk::compress(bytes, PLAN_LEVEL).map_err(|source| CacheError::Io {
        what: "compress a plan".to_owned(),
        source,
    })?;
    cache.set_note(&plan_name(path), &packed)
}

/// Returns what the task of a path needed, as kept in the cache.
pub(crate) fn plan(cache: &dyn Cache, path: &[u8]) -> Option<Vec<u8>> {
    let packed = cache.note(&plan_name(path))?;
    zstd::bulk::decompress(&packed, PLAN_BYTES_MAX).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cache::{BlockCache, CacheOptions, MemoryStorage};
    use crate::manifest::{Kind, Name, Node};

    fn manifest() -> Manifest {
        let node = |kind| Node {
            kind,
            mode: 0o755,
            user: 0,
            group: 0,
            modified_s: 0,
            modified_ns: 0,
        };
        let file = || {
            node(Kind::File {
                size_bytes: 40_000,
                content: ContentId([0; 32]),
            })
        };
        let name = |directory, name: &[u8], node| Name {
            directory: FileId(directory),
            name: name.into(),
            node: FileId(node),
        };
        Manifest {
            version: 3,
            nodes: vec![node(Kind::Directory), node(Kind::Directory), file(), file()],
            names: vec![name(0, b"bin", 1), name(1, b"a", 2), name(1, b"b", 3)],
        }
    }

    fn at(file: u32, index: u32) -> BlockAt {
        BlockAt {
            file: FileId(file),
            index,
        }
    }

    #[test]
    fn a_plan_outlives_a_version_as_far_as_its_paths_do() {
        let mut manifest = manifest();
        let paths = Paths::of(&manifest);
        assert_eq!(paths.get(&manifest, FileId(3)), b"bin/b");
        assert_eq!(paths.get(&manifest, FileId(0)), b"");
        let blocks = [at(2, 1), at(2, 2), at(3, 9), at(2, 0), at(3, 0)];
        let bytes = plan_bytes(&manifest, &paths, &blocks);
        assert_eq!(plan_blocks(&manifest, &bytes, 99), blocks);
        assert_eq!(plan_blocks(&manifest, &bytes, 2), blocks[..2]);
        manifest.names.remove(1);
        assert_eq!(plan_blocks(&manifest, &bytes, 99), [at(3, 9), at(3, 0)]);
        for end in 0..bytes.len() {
            plan_blocks(&manifest, &bytes[..end], 99);
        }
    }

    #[test]
    fn hashes_are_kept_in_groups_and_older_lists_are_split_once() {
        let cache =
            BlockCache::open(Box::new(MemoryStorage::default()), &CacheOptions::default()).unwrap();
        for blocks in [10, GROUP_BLOCKS, GROUP_BLOCKS + 1, 5 * GROUP_BLOCKS + 7] {
            let hash = |number: u32| BlockHash::of(&number.to_le_bytes());
            let list = HashList((0..blocks).map(hash).collect());
            let content = list.content();
            let find = |at| group(&cache, &content, blocks, at);
            assert!((0..7).all(|at| find(at).is_none()));
            // As an older device has kept it.
            let bytes: Vec<u8> = list.0.iter().flat_map(|hash| hash.0).collect();
            cache.set_note(&list_name(&content), &bytes).unwrap();
            for _ in 0..2 {
                for (at, expected) in (0..).zip(group::split(&list, &content).unwrap()) {
                    assert_eq!(find(at).unwrap(), expected);
                }
                let has_list = cache.note(&list_name(&content)).is_some();
                assert_eq!(has_list, blocks <= GROUP_BLOCKS);
            }
            assert!(find(group::groups_of(blocks)).is_none());
        }
        // A damaged list counts as missing and is removed.
        let content = ContentId([3; 32]);
        cache
            .set_note(&list_name(&content), &[1; 320 * 32])
            .unwrap();
        assert!(group(&cache, &content, 320, 0).is_none());
        assert!(cache.note(&list_name(&content)).is_none());
    }

    #[test]
    fn a_seen_version_is_found_again_and_a_damaged_note_is_an_error() {
        let folder = std::env::temp_dir().join(format!("keel-seen-{}", std::process::id()));
        let state = Some(folder.as_path());
        assert_eq!(seen(state, None, "a:1").unwrap(), None);
        // As an older device has noted it, and as this one does.
        for manifest in [None, Some([0xab; 32])] {
            let what = Seen {
                publisher: PublicKey([7; 32]),
                version: 12,
                manifest,
            };
            set_seen(state, None, "a:1", &what).unwrap();
            assert_eq!(seen(state, None, "a:1").unwrap(), Some(what));
        }
        let (publisher, hash) = ("07".repeat(32), "ab".repeat(32));
        let older = format!("publisher {publisher}\nversion 12\nmanifest {hash}\n");
        let golden = include_str!("../../../tests/golden/seen-2");
        let path = folder.join(seen_name("a:1"));
        assert_eq!(fs::read_to_string(&path).unwrap(), golden);
        // A note of an older device is read, and from then on it is sealed.
        fs::write(&path, &older).unwrap();
        assert_eq!(seen(state, None, "a:1").unwrap().unwrap().version, 12);
        assert_eq!(fs::read_to_string(&path).unwrap(), golden);
        fs::write(&path, &older[..older.len() - 2]).unwrap();
        assert!(seen(state, None, "a:1").is_err());
        assert_eq!(seen(state, None, "b:1").unwrap(), None);
        fs::write(folder.join(seen_name("a:1")), b"publisher").unwrap();
        assert!(seen(state, None, "a:1").is_err());
        // A FIFO without a writer: opening it must not block.
        fs::remove_file(&path).unwrap();
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a C string that lives until the call returns.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let refused = seen(state, None, "a:1").err().unwrap().to_string();
        assert!(refused.contains("it is no regular file"), "{refused}");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn no_changed_byte_of_a_seen_note_is_believed() {
        let folder = std::env::temp_dir().join(format!("keel-seen-flip-{}", std::process::id()));
        let state = Some(folder.as_path());
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(seen_name("a:1"));
        let golden = include_bytes!("../../../tests/golden/seen-2");
        for at in 0..golden.len() {
            let mut bytes = golden.to_vec();
            bytes[at] ^= 1;
            fs::write(&path, &bytes).unwrap();
            assert!(seen(state, None, "a:1").is_err(), "byte {at}");
            assert_eq!(fs::read(&path).unwrap(), bytes, "a refused note stays");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn neither_of_two_places_can_be_rolled_back_alone() {
        let folder = std::env::temp_dir().join(format!("keel-seen-both-{}", std::process::id()));
        let state = Some(folder.as_path());
        let open = || {
            let storage = Box::new(MemoryStorage::default());
            BlockCache::open(storage, &CacheOptions::default()).unwrap()
        };
        let of = |key, version| Seen {
            publisher: PublicKey([key; 32]),
            version,
            manifest: Some([version as u8; 32]),
        };
        let path = folder.join(seen_name("a:1"));
        let (cache, emptied) = (open(), open());
        set_seen(state, Some(&cache), "a:1", &of(7, 3)).unwrap();
        let before = fs::read(&path).unwrap();
        set_seen(state, Some(&cache), "a:1", &of(7, 9)).unwrap();
        let highest = Some(of(7, 9));
        assert_eq!(seen(state, Some(&emptied), "a:1").unwrap(), highest);
        fs::write(&path, before).unwrap();
        assert_eq!(seen(state, Some(&cache), "a:1").unwrap(), highest);
        fs::remove_file(&path).unwrap();
        assert_eq!(seen(state, Some(&cache), "a:1").unwrap(), highest);
        // Both places are written again, although one of them has the note.
        set_seen(state, Some(&cache), "a:1", &of(7, 9)).unwrap();
        assert_eq!(seen(state, None, "a:1").unwrap(), highest);
        // A note with the manifest's hash takes precedence over one of an older device.
        let short = Seen {
            manifest: None,
            ..of(7, 9)
        };
        set_seen(state, None, "a:1", &short).unwrap();
        assert_eq!(seen(state, None, "a:1").unwrap(), Some(short));
        assert_eq!(seen(state, Some(&cache), "a:1").unwrap(), highest);
        set_seen(state, Some(&cache), "a:1", &of(7, 9)).unwrap();
        // A version of another publisher is not compared.
        set_seen(None, Some(&emptied), "a:1", &of(8, 99)).unwrap();
        assert_eq!(seen(state, Some(&emptied), "a:1").unwrap(), highest);
        fs::remove_dir_all(folder).unwrap();
    }
}
