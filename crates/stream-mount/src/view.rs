//! The tree as the kernel sees it: inodes, attributes, paths, and which parts are visible.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{FileAttr, FileType, INodeNo};
use stream::FileId;
use stream::manifest::{Kind, Manifest, Name, Node, ROOT};

/// The size of the unit in which `stat` counts the space of a file, in bytes.
const STAT_UNIT_BYTES: u64 = 512;

/// The size of a page, in bytes. All sizes are rounded up to pages.
const PAGE_BYTES: u64 = stream::BLOCK_BYTES as u64;

/// The maximum number of links that a path may lead through, as in the kernel.
const LINKS_MAX: usize = 40;

/// Marks a node without a name.
const NO_NAME: u32 = u32::MAX;

/// A tree, or its visible parts.
pub(crate) struct View {
    manifest: Arc<Manifest>,
    /// By node: the number of its visible names, or for a directory 2 plus the number of its visible subdirectories. 0
    /// if the node is not visible.
    links: Vec<u32>,
    /// By node: the number of one of its names, from which its path is built.
    named_by: Vec<u32>,
    /// By the number of a name: whether it is visible. `None` if all are.
    appearing: Option<Vec<bool>>,
    size_bytes: u64,
}

/// Returns the inode number of a file: the same in every mount of a version.
pub(crate) fn inode_of(file: FileId) -> u64 {
    u64::from(file.0) + 1
}

/// Returns the file of an inode number.
pub(crate) fn file_of(inode: u64) -> Option<FileId> {
    Some(FileId(u32::try_from(inode.checked_sub(1)?).ok()?))
}

impl View {
    /// Creates a view of the whole tree if `redirect` is empty. Otherwise of the parts at these paths, with the
    /// directories that lead to them. Returns the first path that does not exist as an error.
    pub(crate) fn new(manifest: Arc<Manifest>, redirect: &[PathBuf]) -> Result<Self, PathBuf> {
        let appearing = appearing(&manifest, redirect)?;
        let mut links = vec![0_u32; manifest.nodes.len()];
        let mut named_by = vec![NO_NAME; manifest.nodes.len()];
        let is_directory = |file: FileId| {
            matches!(
                manifest.node(file).map(|node| &node.kind),
                Some(Kind::Directory)
            )
        };
        links[ROOT.0 as usize] = 2;
        for (number, name) in manifest.names.iter().enumerate() {
            if appearing.as_ref().is_some_and(|appears| !appears[number]) {
                continue;
            }
            let (node, directory) = (name.node.0 as usize, name.directory.0 as usize);
            if is_directory(name.node) {
                links[node] += 2;
                links[directory] += 1;
            } else {
                links[node] += 1;
            }
            if named_by[node] == NO_NAME {
                named_by[node] = number as u32;
            }
        }
        let size = |(node, links): (&Node, &u32)| match node.kind {
            Kind::File { size_bytes, .. } if *links > 0 => size_bytes,
            _ => 0,
        };
        let size_bytes = manifest.nodes.iter().zip(&links).map(size).sum();
        Ok(Self {
            links,
            named_by,
            appearing,
            size_bytes,
            manifest,
        })
    }

    /// Returns the size of all visible files, in bytes, and the number of visible nodes.
    pub(crate) fn size(&self) -> (u64, u64) {
        let nodes = self.links.iter().filter(|links| **links > 0).count();
        (self.size_bytes, nodes as u64)
    }

    fn appears(&self, file: FileId) -> bool {
        self.links
            .get(file.0 as usize)
            .is_some_and(|links| *links > 0)
    }

    /// Returns a visible node.
    pub(crate) fn node(&self, file: FileId) -> Option<&Node> {
        self.manifest.node(file).filter(|_| self.appears(file))
    }

    /// Returns the size of a visible regular file, in bytes.
    pub(crate) fn size_of(&self, file: FileId) -> Option<u64> {
        match self.node(file)?.kind {
            Kind::File { size_bytes, .. } => Some(size_bytes),
            _ => None,
        }
    }

    pub(crate) fn look_up(&self, directory: FileId, name: &[u8]) -> Option<FileId> {
        let (first, entries) = self.names_in(directory);
        let at = entries
            .binary_search_by(|entry| entry.name.as_ref().cmp(name))
            .ok()?;
        self.name_appears(first + at).then(|| entries[at].node)
    }

    /// Resolves a path from the root of the tree, following links; `None` if it leads to no visible node.
    pub(crate) fn reach(&self, path: &[u8]) -> Option<FileId> {
        let parts = |path: &[u8]| -> Vec<Box<[u8]>> {
            path.split(|byte| *byte == b'/')
                .rev()
                .map(Box::from)
                .collect()
        };
        let mut at = ROOT;
        let mut links = 0;
        // The next part is at the end of the list.
        let mut left = parts(path);
        while let Some(part) = left.pop() {
            match part.as_ref() {
                b"" | b"." => continue,
                b".." => {
                    at = self.parent(at);
                    continue;
                }
                _ => {}
            }
            let found = self.look_up(at, &part)?;
            match &self.node(found)?.kind {
                Kind::Link { target } => {
                    links += 1;
                    if links > LINKS_MAX {
                        return None;
                    }
                    if target.starts_with(b"/") {
                        at = ROOT;
                    }
                    left.extend(parts(target));
                }
                _ => at = found,
            }
        }
        Some(at)
    }

    /// Returns the visible entries of a directory, each with its place in the whole list.
    pub(crate) fn entries(&self, directory: FileId) -> impl Iterator<Item = (usize, &Name)> {
        let (first, entries) = self.names_in(directory);
        let numbered = entries.iter().enumerate();
        numbered.filter(move |(place, _)| self.name_appears(first + place))
    }

    /// Returns the names in a directory, and the number of the first.
    fn names_in(&self, directory: FileId) -> (usize, &[Name]) {
        let names = &self.manifest.names;
        let first = names.partition_point(|name| name.directory < directory);
        (first, self.manifest.entries(directory))
    }

    fn name_appears(&self, number: usize) -> bool {
        self.appearing
            .as_ref()
            .is_none_or(|appearing| appearing[number])
    }

    /// Returns the parent of a directory; the root is its own parent.
    pub(crate) fn parent(&self, directory: FileId) -> FileId {
        self.name_of(directory).map_or(ROOT, |name| name.directory)
    }

    fn name_of(&self, file: FileId) -> Option<&Name> {
        let number = *self.named_by.get(file.0 as usize)?;
        self.manifest.names.get(number as usize)
    }

    /// Returns the last part of one path of a node.
    pub(crate) fn base_name(&self, file: FileId) -> Option<&[u8]> {
        self.name_of(file).map(|name| name.name.as_ref())
    }

    /// Returns one path of a node, from the root, without a leading slash.
    pub(crate) fn path(&self, file: FileId) -> Option<PathBuf> {
        let mut parts = Vec::new();
        let mut at = file;
        while at != ROOT {
            let name = self.name_of(at)?;
            parts.push(name.name.as_ref());
            at = name.directory;
        }
        parts.reverse();
        Some(OsString::from_vec(parts.join(&b'/')).into())
    }

    pub(crate) fn attributes(&self, file: FileId) -> Option<FileAttr> {
        let node = self.node(file)?;
        let size = match &node.kind {
            Kind::Directory => PAGE_BYTES,
            Kind::File { size_bytes, .. } => *size_bytes,
            Kind::Link { target } => target.len() as u64,
        };
        let time = time_of(node);
        Some(FileAttr {
            ino: INodeNo(inode_of(file)),
            size,
            blocks: size.next_multiple_of(PAGE_BYTES) / STAT_UNIT_BYTES,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: kind_of(node),
            perm: node.mode,
            nlink: self.links[file.0 as usize],
            uid: node.user,
            gid: node.group,
            rdev: 0,
            blksize: stream::BLOCK_BYTES as u32,
            flags: 0,
        })
    }
}

/// Returns the kernel's type of the node.
pub(crate) fn kind_of(node: &Node) -> FileType {
    match node.kind {
        Kind::Directory => FileType::Directory,
        Kind::File { .. } => FileType::RegularFile,
        Kind::Link { .. } => FileType::Symlink,
    }
}

fn time_of(node: &Node) -> SystemTime {
    let second = Duration::from_secs(node.modified_s.unsigned_abs());
    let whole = match node.modified_s {
        0.. => SystemTime::UNIX_EPOCH.checked_add(second),
        _ => SystemTime::UNIX_EPOCH.checked_sub(second),
    };
    // A time that this machine cannot express becomes 1970.
    whole
        .and_then(|time| time.checked_add(Duration::from_nanos(node.modified_ns.into())))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Returns which names are visible; `None` if all are.
fn appearing(manifest: &Manifest, redirect: &[PathBuf]) -> Result<Option<Vec<bool>>, PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    if redirect.is_empty() {
        return Ok(None);
    }
    let mut appears = vec![false; manifest.names.len()];
    let number_of = |entry: &Name| {
        let key = (entry.directory, &entry.name);
        manifest
            .names
            .binary_search_by(|name| (name.directory, &name.name).cmp(&key))
    };
    let mut whole = Vec::new();
    for path in redirect {
        let mut at = ROOT;
        let parts = path.as_os_str().as_bytes().split(|byte| *byte == b'/');
        for part in parts.filter(|part| !part.is_empty() && *part != b".") {
            let found = manifest
                .entries(at)
                .iter()
                .find(|entry| *entry.name == *part);
            let entry = found.ok_or_else(|| path.clone())?;
            if let Ok(number) = number_of(entry) {
                appears[number] = true;
            }
            at = entry.node;
        }
        whole.push(at);
    }
    let mut seen = HashSet::new();
    while let Some(directory) = whole.pop() {
        if !seen.insert(directory) {
            continue;
        }
        for entry in manifest.entries(directory) {
            if let Ok(number) = number_of(entry) {
                appears[number] = true;
            }
            whole.push(entry.node);
        }
    }
    Ok(Some(appears))
}
