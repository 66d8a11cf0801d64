//! The source of blocks: what a mount needs from a device.

use std::sync::Arc;
use std::time::Instant;

use stream::manifest::Manifest;
use stream::{BlockAt, FileId, Token};

use crate::pages::PageCache;

/// Why a block cannot be read. The program that wants it gets EIO; the next read tries again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(pub String);

/// Provides the verified blocks of one published tree.
pub trait Source: Send + Sync + 'static {
    /// Returns the manifest of the tree.
    fn manifest(&self) -> Arc<Manifest>;

    /// Notes that the program `task` was executed. Returns at once.
    fn begin(&self, task: FileId) -> Token;

    /// Notes that all processes of the task have ended, or (`has_exited` false) that the mount ends. Returns at once.
    fn end(&self, token: Token, has_exited: bool);

    /// Returns a block that a program waits for, of the length that the manifest says. Waits until it arrives or a
    /// deadline passes. The deadline is counted from `since`, when the kernel's request came.
    ///
    /// # Errors
    /// The block could not be read before the deadline.
    fn read(
        &self,
        token: Option<Token>,
        at: BlockAt,
        since: Instant,
    ) -> Result<Arc<[u8]>, Unreadable>;

    /// Returns the block if it is in memory. Never waits for a network or a disk.
    fn read_now(&self, _token: Option<Token>, _at: BlockAt) -> Option<Arc<[u8]>> {
        None
    }

    /// Notes that these blocks will be read now, one after the other, so that they can be requested together.
    fn want(&self, _token: Option<Token>, _blocks: &[BlockAt]) {}

    /// Returns the counters as a JSON object with at least one member.
    fn counters(&self) -> String;

    /// Sets the page cache when the mount begins, and `None` when it ends.
    fn set_pages(&self, _pages: Option<Arc<PageCache>>) {}
}
