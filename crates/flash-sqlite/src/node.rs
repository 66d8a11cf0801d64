//! A file of an image as SQLite names and uses it.

use std::ffi::c_int;
use std::sync::Mutex;

use crate::abi::open;
use crate::locks::{FileLocks, SharedMemory};

/// The suffix that SQLite adds to the name of a database for its journal.
pub(crate) const JOURNAL_ENDING: &str = "-journal";

/// The suffix for its log.
const LOG_ENDING: &str = "-wal";

/// SQLite's use of a file, which determines how much of it may wait and what its end means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Database,
    /// The rollback journal of one database.
    Journal,
    Log,
    /// The list of the journals of a transaction over several databases.
    SuperJournal,
}

impl Kind {
    pub(crate) fn of(flags: c_int) -> Self {
        if flags & open::MAIN_JOURNAL != 0 {
            Self::Journal
        } else if flags & open::WAL != 0 {
            Self::Log
        } else if flags & open::SUPER_JOURNAL != 0 {
            Self::SuperJournal
        } else {
            Self::Database
        }
    }

    /// Returns whether an empty file of this kind is equivalent to no file, so that it is created with its first
    /// content.
    pub(crate) fn may_be_absent(self) -> bool {
        matches!(self, Self::Journal | Self::Log)
    }
}

/// A file by name, with the state that its connections share. A file that is deleted and created again is a different
/// node.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) locks: Mutex<FileLocks>,
    pub(crate) memory: Mutex<SharedMemory>,
}

impl Node {
    pub(crate) fn new(name: &str, kind: Kind) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            locks: Mutex::default(),
            memory: Mutex::default(),
        }
    }

    pub(crate) fn is_journal_of(&self, database: &str) -> bool {
        self.kind == Kind::Journal && self.name.strip_suffix(JOURNAL_ENDING) == Some(database)
    }
}

/// The parameters of opening a file.
#[derive(Clone, Copy)]
pub(crate) struct Opening {
    pub(crate) kind: Kind,
    pub(crate) create: bool,
    pub(crate) exclusive: bool,
}

/// Returns whether a file of this name is equivalent to no file if it is empty.
pub(crate) fn may_be_absent(name: &str) -> bool {
    name.ends_with(JOURNAL_ENDING) || name.ends_with(LOG_ENDING)
}
