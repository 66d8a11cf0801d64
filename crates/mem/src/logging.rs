//! How overwrites of files stay whole when a process dies.

use std::sync::atomic::{AtomicU8, Ordering};

/// How an overwrite of a file's bytes stays whole when a process dies. New bytes behind the end need no logging.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Logging {
    /// The fastest by measurement: undo for sequential writes of 2 to 8 KiB, else redo.
    #[default]
    BySize,
    /// The new bytes go into the writer's log first. The process that finds the writer dead finishes the write.
    Redo,
    /// The old bytes and attributes go into the log first. The process that finds the writer dead undoes the write.
    Undo,
    /// A packed file gets a new piece, and one store makes it valid. A file in a slot uses [`Redo`](Self::Redo).
    CopyOnWrite,
    /// No logging: names, sizes and space are whole, bytes may be half written.
    None,
}

/// The logging that a region's writers in this process use.
#[derive(Default)]
pub(crate) struct Setting(AtomicU8);

impl Setting {
    #[inline]
    pub(crate) fn get(&self) -> Logging {
        match self.0.load(Ordering::Relaxed) {
            1 => Logging::Redo,
            2 => Logging::Undo,
            3 => Logging::CopyOnWrite,
            4 => Logging::None,
            _ => Logging::BySize,
        }
    }

    pub(crate) fn set(&self, logging: Logging) {
        self.0.store(logging as u8, Ordering::Relaxed);
    }
}
