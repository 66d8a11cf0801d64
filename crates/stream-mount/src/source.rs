//! Where blocks come from: what a mount wants of a device.

use std::sync::Arc;

use stream::manifest::Manifest;
use stream::{BlockAt, FileId, Token};

use crate::pages::PageCache;

/// Why a block cannot be had. The program that wants it gets EIO; the next read asks anew.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(pub String);

/// Gives the blocks of one published tree, each verified.
pub trait Source: Send + Sync + 'static {
    /// The tree.
    fn manifest(&self) -> Arc<Manifest>;

    /// The program `task` has been executed. Returns at once.
    fn begin(&self, task: FileId) -> Token;

    /// All processes of the task have ended, or (`has_exited` false) the mount ends. Returns at once.
    fn end(&self, token: Token, has_exited: bool);

    /// A block that a program waits for, as long as the manifest says. Waits until it is there or a deadline has
    /// passed.
    ///
    /// # Errors
    /// It could not be had in time.
    fn read(&self, token: Option<Token>, at: BlockAt) -> Result<Arc<[u8]>, Unreadable>;

    /// The same where the block is at hand: never waits for a network or a disk.
    fn read_now(&self, _token: Option<Token>, _at: BlockAt) -> Option<Arc<[u8]>> {
        None
    }

    /// These blocks will be read at once, one after the other: they are better asked for together.
    fn want(&self, _token: Option<Token>, _blocks: &[BlockAt]) {}

    /// What happened so far, as a JSON object with one figure at least.
    fn counters(&self) -> String;

    /// The page cache, from the beginning of the mount; None from its end on.
    fn set_pages(&self, _pages: Option<Arc<PageCache>>) {}
}
