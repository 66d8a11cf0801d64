//! Walks a tree, directory by directory, and reads each file once.

use super::PublishError;
use super::batch::Batch;
use super::needs::{Loaders, has_attributes};
use crate::block::{BLOCK_BYTES, FileId, SEGMENT_BLOCKS};
use crate::manifest::{DEPTH_MAX, FILE_BYTES_MAX, Kind, MODE_MAX, NODES_MAX, Name, Node};
use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The maximum number of attempts to read a file that changes while it is read.
const READS_MAX: u32 = 3;

const SEGMENT_BYTES: usize = SEGMENT_BLOCKS as usize * BLOCK_BYTES;

/// The progress of publishing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackProgress {
    /// The number of files, directories and links seen.
    pub nodes: u64,
    /// The number of bytes read.
    pub read_bytes: u64,
}

/// The counts of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeCounts {
    /// The number of regular files.
    pub files: u64,
    /// The number of directories, including the root.
    pub directories: u64,
    /// The number of symbolic links.
    pub links: u64,
    /// The number of names beyond the first of each file.
    pub hard_links: u64,
    /// The size of all files, in bytes.
    pub bytes: u64,
    /// The number of sockets, FIFOs and devices, which are skipped.
    pub special: u64,
    /// The number of names that were deleted before they could be read.
    pub vanished: u64,
    /// The number of times that a file was read again because it changed meanwhile.
    pub read_again: u64,
    /// The number of directories published as empty because another file system is mounted there.
    pub other_file_systems: u64,
    /// The number of nodes with extended attributes, such as capabilities, which are not published.
    pub with_attributes: u64,
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

/// Returns the directory to publish, with all links resolved.
pub(crate) fn root_of(tree: &Path) -> Result<PathBuf, PublishError> {
    let failed = |error| PublishError::tree(tree, "cannot be read", error);
    let root = tree.canonicalize().map_err(failed)?;
    if root.is_dir() {
        Ok(root)
    } else {
        Err(failed(io::Error::from(io::ErrorKind::NotADirectory)))
    }
}

struct Directory {
    number: FileId,
    path: PathBuf,
    depth: u32,
}

pub(crate) struct Walk<'w, 's> {
    crosses_file_systems: bool,
    batch: &'w mut Batch<'s>,
    progress: &'w mut dyn FnMut(&PackProgress),
    done: PackProgress,
    nodes: Vec<Node>,
    names: Vec<Name>,
    counts: TreeCounts,
    /// Files with several names, by device and inode.
    linked: HashMap<(u64, u64), FileId>,
    left: VecDeque<Directory>,
    buffer: Vec<u8>,
    root: PathBuf,
    loaders: Loaders,
}

impl<'w, 's> Walk<'w, 's> {
    pub(crate) fn new(
        crosses_file_systems: bool,
        batch: &'w mut Batch<'s>,
        progress: &'w mut dyn FnMut(&PackProgress),
    ) -> Self {
        Self {
            crosses_file_systems,
            batch,
            progress,
            done: PackProgress::default(),
            nodes: Vec::new(),
            names: Vec::new(),
            counts: TreeCounts::default(),
            linked: HashMap::new(),
            left: VecDeque::new(),
            buffer: vec![0; SEGMENT_BYTES],
            root: PathBuf::new(),
            loaders: Loaders::default(),
        }
    }

    pub(crate) fn run(&mut self, root: &Path) -> Result<(), PublishError> {
        let found = fs::symlink_metadata(root)
            .map_err(|error| PublishError::tree(root, "cannot be read", error))?;
        let device = found.dev();
        root.clone_into(&mut self.root);
        let number = self.add(root, &found, Kind::Directory)?;
        self.left.push_back(Directory {
            number,
            path: root.to_path_buf(),
            depth: 1,
        });
        // Breadth first, so that adjacent names get consecutive numbers.
        while let Some(directory) = self.left.pop_front() {
            self.directory(&directory, device)?;
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> (Vec<Node>, Vec<Name>, TreeCounts, Loaders) {
        (self.nodes, self.names, self.counts, self.loaders)
    }

    fn directory(&mut self, directory: &Directory, device: u64) -> Result<(), PublishError> {
        let names = match names_in(&directory.path) {
            Err(PublishError::Tree { source, .. })
                if source.kind() == io::ErrorKind::NotFound && directory.depth > 1 =>
            {
                self.counts.vanished += 1;
                return Ok(());
            }
            names => names?,
        };
        for name in names {
            let path = directory.path.join(&name);
            let found = match fs::symlink_metadata(&path) {
                Ok(found) => found,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.counts.vanished += 1;
                    continue;
                }
                Err(error) => return Err(PublishError::tree(&path, "cannot be read", error)),
            };
            let key = (found.dev(), found.ino());
            let may_be_linked = !found.is_dir() && found.nlink() > 1;
            let node = match self.linked.get(&key).filter(|_| may_be_linked) {
                Some(node) => {
                    self.counts.hard_links += 1;
                    *node
                }
                None => {
                    let Some(node) = self.node(&path, found, device, directory.depth)? else {
                        continue;
                    };
                    if may_be_linked {
                        self.linked.insert(key, node);
                    }
                    node
                }
            };
            if self.names.len() >= NODES_MAX as usize {
                return Err(PublishError::TooMany { path });
            }
            self.names.push(Name {
                directory: directory.number,
                name: name.into_vec().into(),
                node,
            });
        }
        Ok(())
    }

    /// Adds a node that is not known yet; `None` if it is skipped.
    fn node(
        &mut self,
        path: &Path,
        found: Metadata,
        device: u64,
        depth: u32,
    ) -> Result<Option<FileId>, PublishError> {
        let kind = found.file_type();
        if kind.is_dir() {
            if depth >= DEPTH_MAX {
                return Err(PublishError::TooDeep {
                    path: path.to_path_buf(),
                });
            }
            let number = self.add(path, &found, Kind::Directory)?;
            if found.dev() == device || self.crosses_file_systems {
                self.left.push_back(Directory {
                    number,
                    path: path.to_path_buf(),
                    depth: depth + 1,
                });
            } else {
                self.counts.other_file_systems += 1;
            }
            return Ok(Some(number));
        }
        let made = if kind.is_symlink() {
            fs::read_link(path).map(|target| {
                let target = target.into_os_string().into_vec().into();
                Some((found, Kind::Link { target }))
            })
        } else if kind.is_file() {
            match self.file(path, &found) {
                Err(PublishError::Tree { source, .. })
                    if source.kind() == io::ErrorKind::NotFound =>
                {
                    Err(source)
                }
                other => Ok(other?),
            }
        } else {
            debug_assert!(
                kind.is_socket()
                    || kind.is_fifo()
                    || kind.is_block_device()
                    || kind.is_char_device()
            );
            self.counts.special += 1;
            return Ok(None);
        };
        match made {
            Ok(Some((found, kind))) => self.add(path, &found, kind).map(Some),
            Ok(None) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.counts.vanished += 1;
                Ok(None)
            }
            Err(error) => Err(PublishError::tree(path, "cannot be read", error)),
        }
    }

    fn add(&mut self, path: &Path, found: &Metadata, kind: Kind) -> Result<FileId, PublishError> {
        if self.nodes.len() >= NODES_MAX as usize {
            return Err(PublishError::TooMany {
                path: path.to_path_buf(),
            });
        }
        count(&mut self.counts, &kind);
        self.counts.with_attributes += u64::from(has_attributes(path));
        self.nodes.push(Node {
            kind,
            mode: (found.mode() & u32::from(MODE_MAX)) as u16,
            user: found.uid(),
            group: found.gid(),
            modified_s: found.mtime(),
            modified_ns: u32::try_from(found.mtime_nsec()).unwrap_or(0),
        });
        self.done.nodes += 1;
        (self.progress)(&self.done);
        Ok(FileId(self.nodes.len() as u32 - 1))
    }

    /// Reads a file, and retries if it changes meanwhile; `None` if it is no regular file of the listed device any
    /// more.
    fn file(
        &mut self,
        path: &Path,
        listed: &Metadata,
    ) -> Result<Option<(Metadata, Kind)>, PublishError> {
        let failed = |error| PublishError::tree(path, "cannot be read", error);
        for _ in 0..READS_MAX {
            // Follow no link and do not block, in case the file was replaced by something else.
            let file = File::options()
                .read(true)
                .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
                .open(path)
                .map_err(failed)?;
            let before = file.metadata().map_err(failed)?;
            if !before.is_file() || before.dev() != listed.dev() {
                break;
            }
            if before.len() > FILE_BYTES_MAX {
                return Err(PublishError::TooLong {
                    path: path.to_path_buf(),
                    bytes: before.len(),
                });
            }
            let is_program = before.mode() & 0o111 != 0;
            let size_bytes = self.read(&file, path, before.len(), is_program)?;
            let after = file.metadata().map_err(failed)?;
            if size_bytes == before.len() && state_of(&before) == state_of(&after) {
                let content = self.batch.end_file()?;
                let kind = Kind::File {
                    size_bytes,
                    content,
                };
                return Ok(Some((after, kind)));
            }
            self.counts.read_again += 1;
        }
        Err(PublishError::Changing {
            path: path.to_path_buf(),
        })
    }

    /// Reads a file up to its known length plus one byte, to detect growth.
    fn read(
        &mut self,
        file: &File,
        path: &Path,
        length: u64,
        is_program: bool,
    ) -> Result<u64, PublishError> {
        self.batch.begin_file();
        let mut source = file.take(length + 1);
        let mut size_bytes = 0;
        loop {
            let filled = fill(&mut source, &mut self.buffer)
                .map_err(|error| PublishError::tree(path, "cannot be read", error))?;
            if is_program && size_bytes == 0 {
                self.loaders.add(&self.root, path, &self.buffer[..filled]);
            }
            if filled > 0 {
                self.batch.add_segment(&self.buffer[..filled])?;
                size_bytes += filled as u64;
                self.done.read_bytes += filled as u64;
                (self.progress)(&self.done);
            }
            if filled < SEGMENT_BYTES {
                break;
            }
        }
        Ok(size_bytes)
    }
}

/// Returns the attributes that change when a file is written to.
fn state_of(found: &Metadata) -> (u64, i64, i64, i64, i64) {
    (
        found.len(),
        found.mtime(),
        found.mtime_nsec(),
        found.ctime(),
        found.ctime_nsec(),
    )
}

fn fill(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn names_in(directory: &Path) -> Result<Vec<OsString>, PublishError> {
    let failed = |error| PublishError::tree(directory, "cannot be read", error);
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        names.push(entry.map_err(failed)?.file_name());
        if names.len() > NODES_MAX as usize {
            return Err(PublishError::TooMany {
                path: directory.to_path_buf(),
            });
        }
    }
    names.sort_unstable_by(|left, right| left.as_bytes().cmp(right.as_bytes()));
    Ok(names)
}
