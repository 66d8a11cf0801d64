//! A published version of a tree: which files there are, and what each is made of.
//!
//! The bytes are specified in `SPEC.md`; `encode.rs` and `decode.rs` write and read them, `signature.rs` signs them.
//! Nothing here is believed before the signature and every rule of `decode.rs` have been checked.

mod decode;
mod encode;
mod signature;

pub use signature::{KeyPair, PublicKey, publisher, sign, verify};

use crate::block::{ContentId, FileId, HashList, blocks_of};
use base::error::Code;

/// The root of every tree.
pub const ROOT: FileId = FileId(0);

/// Files, directories and links of a version, at most; and its names.
pub const NODES_MAX: u32 = 1 << 22;

/// The length of a file, at most: its list of hashes has 512 MiB then.
pub const FILE_BYTES_MAX: u64 = 1 << 36;

/// Directories in each other, at most. A path of the kernel has no more.
pub const DEPTH_MAX: u32 = 2048;

/// Length of a name, at most.
pub const NAME_BYTES_MAX: usize = 255;

/// Length of what a symbolic link holds, at most.
pub const TARGET_BYTES_MAX: usize = 4095;

/// The permission bits of a node, with those for changing the user and group and the sticky one.
pub const MODE_MAX: u16 = 0o7777;

const MAGIC: [u8; 8] = *b"keelmnft";
const FORMAT: u32 = 1;
const HEADER_BYTES: usize = 40;

/// The columns of a manifest before they are compressed, at most.
const COLUMN_BYTES_MAX: u32 = 256 << 20;

const KIND_DIRECTORY: u8 = 0;
const KIND_FILE: u8 = 1;
const KIND_LINK: u8 = 2;

/// Why bytes are not believed to be a manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// They are something else.
    #[error("not a manifest")]
    NotAManifest,
    /// Made by a version of this software that is not known here.
    #[error("a manifest of format {0}, and only format 1 is known")]
    Format(u32),
    /// They break a rule of the format.
    #[error("damaged manifest: {0}")]
    Damaged(&'static str),
    /// More than is taken from anybody.
    #[error("a manifest beyond a limit: {0}")]
    Limit(&'static str),
    /// Somebody else has signed it.
    #[error("signed by {found}, not by {expected}")]
    Publisher {
        /// Who has.
        found: PublicKey,
        /// Who should have.
        expected: PublicKey,
    },
    /// The signature is not over these bytes.
    #[error("the signature is wrong")]
    Signature,
    /// A key is none.
    #[error("not an ed25519 key")]
    Key,
}

impl ManifestError {
    /// What kind of failure it is.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::NotAManifest | Self::Damaged(_) | Self::Signature => Code::Corrupt,
            Self::Format(_) => Code::Unsupported,
            Self::Limit(_) => Code::Full,
            Self::Publisher { .. } => Code::Denied,
            Self::Key => Code::Invalid,
        }
    }
}

/// What a file without bytes is made of.
#[must_use]
pub fn empty_content() -> ContentId {
    HashList::default().content()
}

/// A version of a tree, checked: names are sorted and unique, each directory but the root has one name, nothing is in
/// itself, everything can be reached from the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Grows with each publication into a store.
    pub version: u64,
    /// Files, directories and links by [`FileId`]; the root is the first.
    pub nodes: Vec<Node>,
    /// All names, sorted by directory and then by their bytes.
    pub names: Vec<Name>,
}

/// A file, directory or link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What it is.
    pub kind: Kind,
    /// Permission bits, octal 0 to 7777.
    pub mode: u16,
    /// Owner.
    pub user: u32,
    /// Group.
    pub group: u32,
    /// Time of its last change, seconds since 1970.
    pub modified_s: i64,
    /// And nanoseconds, below 1,000,000,000.
    pub modified_ns: u32,
}

/// What a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File {
        /// Its length.
        size_bytes: u64,
        /// What it is made of.
        content: ContentId,
    },
    /// A symbolic link.
    Link {
        /// Where it leads, 1 to 4,095 bytes without zero.
        target: Box<[u8]>,
    },
}

/// A name in a directory. A file may have several (hard links).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The directory.
    pub directory: FileId,
    /// 1 to 255 bytes, neither `.` nor `..`, without slash and zero.
    pub name: Box<[u8]>,
    /// What it names.
    pub node: FileId,
}

impl Manifest {
    /// A node.
    #[must_use]
    pub fn node(&self, file: FileId) -> Option<&Node> {
        self.nodes.get(file.0 as usize)
    }

    /// Size and content of a regular file.
    #[must_use]
    pub fn file(&self, file: FileId) -> Option<(u64, ContentId)> {
        match self.node(file)?.kind {
            Kind::File {
                size_bytes,
                content,
            } => Some((size_bytes, content)),
            _ => None,
        }
    }

    /// Blocks of a regular file; 0 for anything else.
    #[must_use]
    pub fn blocks(&self, file: FileId) -> u32 {
        self.file(file).map_or(0, |(size, _)| blocks_of(size))
    }

    /// What a directory holds, sorted by name.
    #[must_use]
    pub fn entries(&self, directory: FileId) -> &[Name] {
        let from = self
            .names
            .partition_point(|name| name.directory < directory);
        let to = self
            .names
            .partition_point(|name| name.directory <= directory);
        &self.names[from..to]
    }

    /// What a name in a directory names.
    #[must_use]
    pub fn look_up(&self, directory: FileId, name: &[u8]) -> Option<FileId> {
        let entries = self.entries(directory);
        let at = entries
            .binary_search_by(|entry| entry.name.as_ref().cmp(name))
            .ok()?;
        Some(entries[at].node)
    }

    /// What a path names, from the root, without following links. Empty parts and `.` are skipped.
    #[must_use]
    pub fn find(&self, path: &[u8]) -> Option<FileId> {
        path.split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty() && *part != b".")
            .try_fold(ROOT, |directory, part| self.look_up(directory, part))
    }
}
