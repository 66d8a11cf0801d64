//! A published version of a tree: its files, and the content of each.
//!
//! The bytes are specified in `SPEC.md`. `encode.rs` and `decode.rs` write and read them, `signature.rs` signs them.
//! Nothing here is trusted before the signature and every rule of `decode.rs` are checked.

mod decode;
mod encode;
mod signature;

pub use signature::{KeyPair, PublicKey, publisher, sign, verify};

use crate::block::{ContentId, FileId, HashList, blocks_of};
use base::error::Code;

/// The root of every tree.
pub const ROOT: FileId = FileId(0);

/// The maximum number of files, directories and links of a version, and also of its names.
pub const NODES_MAX: u32 = 1 << 22;

/// The maximum length of a file, in bytes. Its list of hashes then has 512 MiB.
pub const FILE_BYTES_MAX: u64 = 1 << 36;

/// The maximum nesting depth of directories. A path of the kernel has no more.
pub const DEPTH_MAX: u32 = 2048;

/// The maximum length of a name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// The maximum length of the target of a symbolic link, in bytes.
pub const TARGET_BYTES_MAX: usize = 4095;

/// The permission bits of a node, with set-user-id, set-group-id and sticky bit.
pub const MODE_MAX: u16 = 0o7777;

const MAGIC: [u8; 8] = *b"keelmnft";
const FORMAT: u32 = 1;
const HEADER_BYTES: usize = 40;

/// The maximum size of a manifest's columns before compression, in bytes.
const COLUMN_BYTES_MAX: u32 = 256 << 20;

const KIND_DIRECTORY: u8 = 0;
const KIND_FILE: u8 = 1;
const KIND_LINK: u8 = 2;

/// Why bytes are not accepted as a manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The bytes are not a manifest.
    #[error("not a manifest")]
    NotAManifest,
    /// The format is from another version of this software and not known here.
    #[error("a manifest of format {0}, and only format 1 is known")]
    Format(u32),
    /// The bytes break a rule of the format.
    #[error("damaged manifest: {0}")]
    Damaged(&'static str),
    /// The manifest exceeds a limit.
    #[error("a manifest beyond a limit: {0}")]
    Limit(&'static str),
    /// Another publisher has signed it.
    #[error("signed by {found}, not by {expected}")]
    Publisher {
        /// The publisher that signed it.
        found: PublicKey,
        /// The publisher that the caller expects.
        expected: PublicKey,
    },
    /// The signature does not match the bytes.
    #[error("the signature is wrong")]
    Signature,
    /// The bytes are not a valid key.
    #[error("not an ed25519 key")]
    Key,
}

impl ManifestError {
    /// Returns the error code of the failure.
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

/// Returns the content id of an empty file.
#[must_use]
pub fn empty_content() -> ContentId {
    HashList::default().content()
}

/// A version of a tree. A decoded one is checked. Its names are sorted and unique. Each directory but the root has one
/// name. No directory contains itself, and everything can be reached from the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The version number, which grows with each publication into a store.
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
    /// The nanoseconds of that time, below 1,000,000,000.
    pub modified_ns: u32,
}

/// What a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File {
        /// Its length, in bytes.
        size_bytes: u64,
        /// Its content.
        content: ContentId,
    },
    /// A symbolic link.
    Link {
        /// The path it points to, 1 to 4,095 bytes without a zero byte.
        target: Box<[u8]>,
    },
}

/// A name in a directory. A file may have several (hard links).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The directory.
    pub directory: FileId,
    /// 1 to 255 bytes, neither `.` nor `..`, without slash and zero bytes.
    pub name: Box<[u8]>,
    /// The node that it names.
    pub node: FileId,
}

impl Manifest {
    /// Returns a node.
    #[must_use]
    pub fn node(&self, file: FileId) -> Option<&Node> {
        self.nodes.get(file.0 as usize)
    }

    /// Returns the size, in bytes, and the content of a regular file.
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

    /// Returns the number of blocks of a regular file; 0 for anything else.
    #[must_use]
    pub fn blocks(&self, file: FileId) -> u32 {
        self.file(file).map_or(0, |(size, _)| blocks_of(size))
    }

    /// Returns the entries of a directory, sorted by name.
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

    /// Returns the node that a name in a directory refers to.
    #[must_use]
    pub fn look_up(&self, directory: FileId, name: &[u8]) -> Option<FileId> {
        let entries = self.entries(directory);
        let at = entries
            .binary_search_by(|entry| entry.name.as_ref().cmp(name))
            .ok()?;
        Some(entries[at].node)
    }

    /// Returns the node that a path refers to, from the root, without following links. Skips empty parts and `.`.
    #[must_use]
    pub fn find(&self, path: &[u8]) -> Option<FileId> {
        path.split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty() && *part != b".")
            .try_fold(ROOT, |directory, part| self.look_up(directory, part))
    }
}
