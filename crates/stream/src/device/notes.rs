//! What a device remembers beyond its end beside blocks: the manifest, hash lists and what tasks needed in the cache,
//! and whose manifests up to which version were seen, which is on the disk before a manifest is used.

use super::settings::DeviceError;
use super::{Cache, CacheError};
use crate::block::{BlockAt, BlockHash, ContentId, FileId, HashList, blocks_of};
use crate::manifest::{Manifest, PublicKey};
use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Bytes of a note of what was seen, at most.
const SEEN_BYTES_MAX: u64 = 4096;

/// Bytes of a note of what a task needed, unpacked, at most.
const PLAN_BYTES_MAX: usize = 4 << 20;

/// zstd's level for the notes of what tasks needed.
const PLAN_LEVEL: i32 = 3;

/// Whose manifests were seen from a server, and the highest version of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub publisher: PublicKey,
    pub version: u64,
}

impl Seen {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.lines();
        let publisher = lines.next()?.strip_prefix("publisher ")?.parse().ok()?;
        let version = lines.next()?.strip_prefix("version ")?.parse().ok()?;
        Some(Self { publisher, version })
    }

    fn text(&self) -> String {
        format!("publisher {}\nversion {}\n", self.publisher, self.version)
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

/// What was seen of a server: from the folder, or from the cache where there is none.
///
/// # Errors
/// It cannot be read. A damaged note is an error, not nothing: an older manifest could be believed then.
pub(super) fn seen(
    state: Option<&Path>,
    cache: Option<&dyn Cache>,
    server: &str,
) -> Result<Option<Seen>, DeviceError> {
    let name = seen_name(server);
    let Some(folder) = state else {
        let notes = cache.map_or_else(Vec::new, |cache| cache.notes(&name));
        // The cache itself finds out what is damaged, and then what is left may be older.
        let mut all = notes.iter().filter_map(|bytes| Seen::parse(bytes));
        let first = all.next();
        return Ok(first.map(|first| {
            let others = all.filter(|other| other.publisher == first.publisher);
            others.fold(first, |highest, other| {
                match other.version > highest.version {
                    true => other,
                    false => highest,
                }
            })
        }));
    };
    let path = folder.join(name);
    let bytes = match fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Ok(data) if data.len() > SEEN_BYTES_MAX => Vec::new(),
        _ => fs::read(&path).map_err(failed("read", &path))?,
    };
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "damaged; remove it to forget");
    let seen = Seen::parse(&bytes).ok_or_else(|| failed("read", &path)(damaged()))?;
    Ok(Some(seen))
}

/// Notes what was seen of a server; on the disk when it returns.
///
/// # Errors
/// It could not be written.
pub(super) fn set_seen(
    state: Option<&Path>,
    cache: Option<&dyn Cache>,
    server: &str,
    seen: &Seen,
) -> Result<(), DeviceError> {
    let name = seen_name(server);
    match (state, cache) {
        (Some(folder), _) => {
            fs::create_dir_all(folder).map_err(failed("make", folder))?;
            let path = folder.join(name);
            write_durably(folder, &path, seen.text().as_bytes()).map_err(failed("write", &path))
        }
        (None, Some(cache)) => Ok(cache.set_note(&name, seen.text().as_bytes())?),
        (None, None) => Ok(()),
    }
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

/// The signed manifest that was used last with a server.
pub(super) fn manifest_name(server: &str) -> String {
    format!("manifest-{}", short(server.as_bytes()))
}

fn hashes_name(content: &ContentId) -> String {
    format!("hashes-{content}")
}

/// The hash list of a content; the caller checks it.
pub(super) fn hashes(cache: &dyn Cache, content: &ContentId, size_bytes: u64) -> Option<HashList> {
    let bytes = cache.note(&hashes_name(content))?;
    let (hashes, rest) = bytes.as_chunks::<32>();
    let is_whole = rest.is_empty() && hashes.len() == blocks_of(size_bytes) as usize;
    is_whole.then(|| HashList(hashes.iter().map(|hash| BlockHash(*hash)).collect()))
}

/// Keeps the hash list of a content.
///
/// # Errors
/// The cache's.
pub(super) fn set_hashes(
    cache: &dyn Cache,
    content: &ContentId,
    list: &HashList,
) -> Result<(), CacheError> {
    let bytes: Vec<u8> = list.0.iter().flat_map(|hash| hash.0).collect();
    cache.set_note(&hashes_name(content), &bytes)
}

/// The paths of a manifest's nodes: where each is named first.
pub(super) struct Paths {
    // Of each node the place of its name; the root has none.
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

    /// The path of a node from the root, without a slash before it.
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

/// What a task needed, as a note that outlives versions: paths, and runs of blocks of them in order. Little-endian:
/// format u8, files u32, for each its path's length u16 and its path, then runs of file u32, first block u32, count
/// u32.
pub(super) fn plan_bytes(manifest: &Manifest, paths: &Paths, blocks: &[BlockAt]) -> Vec<u8> {
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

/// What a note says a task needed, as far as this version has it.
pub(super) fn plan_blocks(manifest: &Manifest, bytes: &[u8], blocks_max: usize) -> Vec<BlockAt> {
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
/// The cache's.
pub(super) fn set_plan(cache: &dyn Cache, path: &[u8], bytes: &[u8]) -> Result<(), CacheError> {
    let packed = zstd::bulk::compress(bytes, PLAN_LEVEL).map_err(|source| CacheError::Io {
        what: "compress a plan".to_owned(),
        source,
    })?;
    cache.set_note(&plan_name(path), &packed)
}

/// What is kept of what the task of a path needed.
pub(super) fn plan(cache: &dyn Cache, path: &[u8]) -> Option<Vec<u8>> {
    let packed = cache.note(&plan_name(path))?;
    zstd::bulk::decompress(&packed, PLAN_BYTES_MAX).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn what_was_seen_is_found_again_and_damage_is_no_nothing() {
        let folder = std::env::temp_dir().join(format!("keel-seen-{}", std::process::id()));
        let state = Some(folder.as_path());
        assert_eq!(seen(state, None, "a:1").unwrap(), None);
        let what = Seen {
            publisher: PublicKey([7; 32]),
            version: 12,
        };
        set_seen(state, None, "a:1", &what).unwrap();
        assert_eq!(seen(state, None, "a:1").unwrap(), Some(what));
        assert_eq!(seen(state, None, "b:1").unwrap(), None);
        fs::write(folder.join(seen_name("a:1")), b"publisher").unwrap();
        assert!(seen(state, None, "a:1").is_err());
        fs::remove_dir_all(folder).unwrap();
    }
}
