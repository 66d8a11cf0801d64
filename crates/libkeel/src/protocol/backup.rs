//! Messages of a backup: the store of a running node, file by file.

use super::{ANSWER_BYTES_MAX, Kind, frame_of};
use serde::{Deserialize, Serialize};

/// Request: everything that is durable now, and what the node needs to start from it.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Backup {}

/// Answer that begins a backup. If another one follows, everything received so far is void: the node has replaced its
/// checkpoint meanwhile.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct BackupBegun {
    /// Key of the store's names and seals, 32 hexadecimal digits: a copy without it is not readable.
    pub hash_key: String,
    /// Size of the longest name in the store, in bytes.
    pub name_bytes_max: u16,
    /// Largest number of files that follow.
    pub files_max: u64,
    /// Largest total size of these files, in bytes.
    pub bytes_max: u64,
    /// The backup contains the readings with numbers below this.
    pub durable_end: u64,
}

/// Answer: the pieces that follow are of this file.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct BackupFile {
    /// Its name.
    pub name: String,
    /// It was sent in part, and retention has deleted it: it is not part of the backup.
    #[serde(default)]
    pub gone: bool,
}

/// Answer that ends a complete backup.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct BackupEnd {
    /// Number of files in it.
    pub files: u64,
    /// Number of bytes in them.
    pub bytes: u64,
    /// The backup contains the readings with numbers below this, except those that retention has deleted.
    pub durable_end: u64,
    /// Segments of the log that retention has deleted meanwhile.
    pub segments_gone: u64,
    /// Number of bytes that the node could not read; they are zeros in the backup.
    pub bytes_unreadable: u64,
    /// Number of files that could not be read.
    pub files_left_out: u64,
}

/// Returns the frame of a piece of a file.
#[must_use]
pub fn backup_piece_frame(bytes: &[u8]) -> Vec<u8> {
    frame_of(Kind::BackupPiece, bytes, ANSWER_BYTES_MAX).unwrap_or_default()
}
