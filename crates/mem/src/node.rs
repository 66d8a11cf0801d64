//! Which file a call is about: the number of its inode, and the generation that tells it from earlier files.

use crate::error::{Error, Result};

/// A file or directory during its lifetime: the inode number, and the generation that tells it from earlier files with
/// that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Number of the inode.
    pub inode: u64,
    /// Generation of the inode.
    pub generation: u64,
}

impl Node {
    /// The root directory of all paths.
    pub const ROOT: Self = Self {
        inode: ROOT_INODE,
        generation: 1,
    };
}

/// Which file or directory a caller means. A number alone may belong to another file by the time of the call; a
/// [`Node`] is refused as stale then.
#[derive(Clone, Copy, Debug)]
pub struct Meant {
    pub(crate) inode: u64,
    generation: Option<u64>,
}

impl Meant {
    /// # Errors
    /// [`Error::Stale`] when an inode of this generation is free, or another file.
    pub(crate) fn require(self, generation: u64) -> Result<()> {
        if generation == 0 || self.generation.is_some_and(|meant| meant != generation) {
            return Err(Error::Stale);
        }
        Ok(())
    }
}

impl From<u64> for Meant {
    fn from(inode: u64) -> Self {
        Self {
            inode,
            generation: None,
        }
    }
}

impl From<Node> for Meant {
    fn from(node: Node) -> Self {
        Self {
            inode: node.inode,
            generation: Some(node.generation),
        }
    }
}

/// Inode number of the root directory.
pub const ROOT_INODE: u64 = 1;
