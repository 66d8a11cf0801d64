//! What the HTTP side needs of a node's database.

use std::ops::ControlFlow;

use db::{Error, Got, HistoryCursor, HistoryEntry, HistoryQuery, Key, ObjectId};

/// A database as the HTTP side reads it. Every call returns at once, but for [`history`](Self::history), which reads
/// the device and is called on a thread for that.
pub trait Source: Send + Sync + 'static {
    /// Objects; their numbers are `0..objects()`.
    fn objects(&self) -> u32;
    /// The key of an object; empty for an unknown one.
    fn key(&self, id: ObjectId) -> Key;
    /// The object with this key.
    fn lookup(&self, key: &str) -> Option<ObjectId>;
    /// Validity in ms, and whether readings are expected all the time.
    fn validity(&self, id: ObjectId) -> (u32, bool);
    /// The latest value.
    ///
    /// # Errors
    /// Those of [`db::Database::get`].
    fn get(&self, id: ObjectId, value: &mut [u8]) -> Result<Got, Error>;
    /// How often the object has been put since the start; wraps.
    fn puts(&self, id: ObjectId) -> u32;
    /// One slice of a range read.
    ///
    /// # Errors
    /// Those of [`db::Database::history`].
    fn history(
        &self,
        query: &HistoryQuery,
        cursor: &mut HistoryCursor,
        visit: &mut dyn FnMut(&HistoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<bool, Error>;
    /// The node's wall clock, ms since 1970.
    fn wall_ms(&self) -> i64;
    /// Checks a pattern of keys.
    ///
    /// # Errors
    /// What is wrong with it.
    fn check_pattern(&self, pattern: &str) -> Result<(), String>;
    /// Whether a key fits a pattern that has been checked.
    fn matches(&self, pattern: &str, key: &str) -> bool;
}
