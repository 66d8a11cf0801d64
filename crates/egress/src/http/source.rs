//! What the HTTP side needs of a node's database.

use std::ops::ControlFlow;

use db::{Error, Got, HistoryCursor, HistoryEntry, HistoryQuery, Key, ObjectId};

/// A database as the HTTP side reads it. Every call returns at once, except [`history`](Self::history), which reads the
/// device and is called on a separate thread.
pub trait Source: Send + Sync + 'static {
    /// Returns the number of objects; their ids are `0..objects()`.
    fn objects(&self) -> u32;
    /// Returns the key of an object; empty if it is unknown.
    fn key(&self, id: ObjectId) -> Key;
    /// Returns the object with this key.
    fn lookup(&self, key: &str) -> Option<ObjectId>;
    /// Returns validity in ms, and whether readings are expected continuously.
    fn validity(&self, id: ObjectId) -> (u32, bool);
    /// Reads the latest value.
    ///
    /// # Errors
    /// Those of [`db::Database::get`].
    fn get(&self, id: ObjectId, value: &mut [u8]) -> Result<Got, Error>;
    /// Returns how often the object has been put since the start; the count wraps.
    fn puts(&self, id: ObjectId) -> u32;
    /// Reads one slice of a range.
    ///
    /// # Errors
    /// Those of [`db::Database::history`].
    fn history(
        &self,
        query: &HistoryQuery,
        cursor: &mut HistoryCursor,
        visit: &mut dyn FnMut(&HistoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<bool, Error>;
    /// Returns the node's wall clock, in ms since 1970.
    fn wall_ms(&self) -> i64;
    /// Checks a pattern of keys.
    ///
    /// # Errors
    /// What is wrong with it.
    fn check_pattern(&self, pattern: &str) -> Result<(), String>;
    /// Returns whether a key matches a checked pattern.
    fn matches(&self, pattern: &str, key: &str) -> bool;
}
