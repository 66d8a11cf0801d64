//! What is said of a backup: the store of a running node, file by file.

use super::{ANSWER_BYTES_MAX, Kind, frame_of};
use serde::{Deserialize, Serialize};

/// Request: everything that is durable now, and what the node needs to start from it.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Backup {}

/// Answer that begins a backup. When another one follows, what came so far is void: the node has replaced its
/// checkpoint meanwhile.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct BackupBegun {
    /// Key of the store's names and seals, 32 hexadecimal digits: a copy without it is not readable.
    pub hash_key: String,
    /// Bytes of the longest name in the store.
    pub name_bytes_max: u16,
    /// Files that follow, at most.
    pub files_max: u64,
    /// Bytes of all of them, at most.
    pub bytes_max: u64,
    /// Readings with numbers below this are in it.
    pub durable_end: u64,
}

/// Answer: the pieces that follow are of this file.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct BackupFile {
    /// Its name.
    pub name: String,
    /// It was sent in part, and retention has deleted it: it is no part of the backup.
    #[serde(default)]
    pub gone: bool,
}

/// Answer that ends a backup: it is whole.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct BackupEnd {
    /// Files in it.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Readings with numbers below this are in it, but for what retention has deleted.
    pub durable_end: u64,
    /// Segments of the log that retention has deleted meanwhile.
    pub segments_gone: u64,
    /// Bytes that the node could not read, which are zeros in the backup.
    pub bytes_unreadable: u64,
    /// Files that could not be taken.
    pub files_left_out: u64,
}

/// The frame of a piece of a file.
#[must_use]
pub fn backup_piece_frame(bytes: &[u8]) -> Vec<u8> {
    frame_of(Kind::BackupPiece, bytes, ANSWER_BYTES_MAX).unwrap_or_default()
}
