//! Pieces of plans, compressed at the high level, in files of the store. With them a restarted server sends as few
//! bytes as before, from the start. These files may be lost without harm, and their hash is checked when they are read.

use crate::block::BlockAt;
use crate::predict::Plan;
use crate::regular;
use crate::store::Published;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The folder in a store.
const FOLDER: &str = "bundles";

/// The ending of its files.
const ENDING: &str = "bundle";

const MAGIC: &[u8; 8] = b"keelbndl";

/// The size of a hash, in bytes.
const HASH_BYTES: usize = 32;

/// The maximum size of a piece, in bytes: that of a message's frame.
const PIECE_BYTES_MAX: usize = 135_168;

/// The files of a store.
pub(super) struct BundleFiles {
    folder: PathBuf,
    bytes_max: u64,
    is_kept: bool,
}

impl BundleFiles {
    /// Limits the files to `bytes_max` bytes together. With `is_kept` new files are written, which only one server of a
    /// store does.
    pub(super) fn new(store: &Path, bytes_max: u64, is_kept: bool) -> Self {
        Self {
            folder: store.join(FOLDER),
            bytes_max,
            is_kept,
        }
    }

    /// Returns the path of a plan's file. The name depends only on the level and on the content of the pieces, so equal
    /// plans share a file.
    fn path(&self, published: &Published, plan: &Plan, level: i32) -> PathBuf {
        let mut hasher = blake3::Hasher::new();
        hasher.update(MAGIC);
        hasher.update(&level.to_le_bytes());
        for piece in &plan.pieces {
            hasher.update(&(piece.len() as u32).to_le_bytes());
            for BlockAt { file, index } in piece {
                if let Some((_, content)) = published.manifest.file(*file) {
                    hasher.update(&content.0);
                }
                hasher.update(&index.to_le_bytes());
            }
        }
        let name = hasher.finalize().to_hex();
        self.folder.join(name.as_str()).with_extension(ENDING)
    }

    /// Returns the pieces of a plan; `None` if the file is missing or damaged.
    pub(super) fn load(
        &self,
        published: &Published,
        plan: &Plan,
        level: i32,
    ) -> Option<Vec<Vec<u8>>> {
        let path = self.path(published, plan, level);
        let file = regular::open(&path).ok()?;
        let mut bytes = Vec::new();
        // Read one byte more than the limit, to detect a file that is too long.
        let mut limited = file.take(self.bytes_max.saturating_add(1));
        limited.read_to_end(&mut bytes).ok()?;
        if bytes.len() as u64 > self.bytes_max {
            return None;
        }
        decode(&bytes, plan.pieces.len())
    }

    /// Writes the pieces of a plan. Deletes the oldest files if there is no room.
    pub(super) fn store(
        &self,
        published: &Published,
        plan: &Plan,
        level: i32,
        pieces: &[Vec<u8>],
    ) -> io::Result<()> {
        let bytes = encode(pieces);
        if !self.is_kept || bytes.len() as u64 > self.bytes_max {
            return Ok(());
        }
        fs::create_dir_all(&self.folder)?;
        self.make_room(bytes.len() as u64)?;
        let path = self.path(published, plan, level);
        let beside = path.with_extension("new");
        // Not synced: after a power cut, the hash detects an incomplete file.
        regular::create(&beside)?.write_all(&bytes)?;
        fs::rename(&beside, &path)
    }

    fn make_room(&self, bytes: u64) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let about = entry.metadata()?;
            if about.is_file() {
                files.push((about.modified()?, entry.path(), about.len()));
            }
        }
        files.sort();
        let mut held: u64 = files.iter().map(|(_, _, bytes)| bytes).sum();
        for (_, path, file_bytes) in files {
            if held + bytes <= self.bytes_max {
                break;
            }
            fs::remove_file(path)?;
            held -= file_bytes;
        }
        Ok(())
    }
}

/// Encodes the magic, each piece with its length before it, and the hash of all that.
fn encode(pieces: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for piece in pieces {
        bytes.extend_from_slice(&(piece.len() as u32).to_le_bytes());
        bytes.extend_from_slice(piece);
    }
    let hash = blake3::hash(&bytes);
    bytes.extend_from_slice(hash.as_bytes());
    bytes
}

fn decode(bytes: &[u8], count: usize) -> Option<Vec<Vec<u8>>> {
    let (body, hash) = bytes.split_at_checked(bytes.len().checked_sub(HASH_BYTES)?)?;
    if *blake3::hash(body).as_bytes() != *hash {
        return None;
    }
    let mut rest = body.strip_prefix(MAGIC)?;
    let mut pieces = Vec::with_capacity(count);
    for _ in 0..count {
        let (length, behind) = rest.split_first_chunk()?;
        let length = u32::from_le_bytes(*length) as usize;
        let (piece, behind) = behind.split_at_checked(length)?;
        if !(1..=PIECE_BYTES_MAX).contains(&length) {
            return None;
        }
        pieces.push(piece.to_vec());
        rest = behind;
    }
    rest.is_empty().then_some(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_damaged_file_is_not_there() {
        let pieces = vec![vec![1; 40], vec![2; 9]];
        let bytes = encode(&pieces);
        assert_eq!(decode(&bytes, 2), Some(pieces));
        assert_eq!((decode(&bytes, 1), decode(&bytes, 3)), (None, None));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            assert_eq!(decode(&damaged, 2), None, "byte {at}");
            assert_eq!(decode(&bytes[..at], 2), None, "{at} bytes");
        }
    }

    #[test]
    fn the_oldest_bundle_file_makes_room() {
        let store =
            std::env::temp_dir().join(format!("stream-bundle-files-{}", std::process::id()));
        let files = BundleFiles::new(&store, 300, true);
        fs::create_dir_all(&files.folder).unwrap();
        for (number, name) in ["a", "b", "c"].iter().enumerate() {
            let file = fs::File::create(files.folder.join(name)).unwrap();
            file.set_len(100).unwrap();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(9 - number as u64);
            file.set_modified(time).unwrap();
        }
        files.make_room(100).unwrap();
        assert!(!files.folder.join("c").exists());
        files.make_room(150).unwrap();
        assert!(!files.folder.join("b").exists() && files.folder.join("a").exists());
        fs::remove_dir_all(&store).unwrap();
    }
}
