//! The blocks that a program needs, derived from the blocks of a tree in the page cache.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use stream::{BLOCK_BYTES, SEGMENT_BLOCKS};

/// Block indexes of files, by path from the root of the tree.
pub(crate) type Blocks = BTreeMap<PathBuf, Vec<u32>>;

/// Compression levels of the bound: as published, and the best one, which takes long.
pub(crate) const LEVELS: [i32; 2] = [3, 19];

/// What a program needs.
#[derive(Clone, Debug)]
pub(crate) struct Needed {
    pub(crate) blocks: Blocks,
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    /// Compressed size in segments, at each of [`LEVELS`]; 0 if it was not requested.
    pub(crate) compressed_bytes: [u64; LEVELS.len()],
    /// Total blocks of the files that contain needed blocks.
    pub(crate) blocks_of_files: u64,
}

impl Needed {
    /// Measures these blocks of a tree.
    ///
    /// # Errors
    /// One line with the path.
    pub(crate) fn of(tree: &Path, blocks: Blocks, levels: &[i32]) -> Result<Self, String> {
        let mut needed = Self {
            count: count(&blocks),
            bytes: 0,
            compressed_bytes: [0; LEVELS.len()],
            blocks_of_files: 0,
            blocks: Blocks::new(),
        };
        for (path, indexes) in &blocks {
            let path = tree.join(path);
            let failed = |error: std::io::Error| format!("{}: {error}", path.display());
            let file = File::open(&path).map_err(failed)?;
            needed.blocks_of_files += file
                .metadata()
                .map_err(failed)?
                .len()
                .div_ceil(BLOCK_BYTES as u64);
            for segment in indexes.chunks(SEGMENT_BLOCKS as usize) {
                let mut content = Vec::new();
                for index in segment {
                    let mut block = vec![0; BLOCK_BYTES];
                    let from = u64::from(*index) * BLOCK_BYTES as u64;
                    let read = file.read_at(&mut block, from).map_err(failed)?;
                    block.truncate(read);
                    content.push(block);
                }
                let parts: Vec<&[u8]> = content.iter().map(Vec::as_slice).collect();
                needed.bytes += parts.iter().map(|part| part.len() as u64).sum::<u64>();
                for (total, level) in needed.compressed_bytes.iter_mut().zip(levels) {
                    let packed = stream::wire::pack_blocks(&parts, *level);
                    *total += packed.map_err(|error| error.to_string())?.len() as u64;
                }
            }
        }
        needed.blocks = blocks;
        Ok(needed)
    }
}

/// The number of blocks.
pub(crate) fn count(blocks: &Blocks) -> u64 {
    blocks.values().map(|indexes| indexes.len() as u64).sum()
}

/// The number of blocks in the first set that are not in the second one.
pub(crate) fn count_beyond(blocks: &Blocks, others: &Blocks) -> u64 {
    let beyond = blocks.iter().map(|(path, indexes)| {
        let known = others.get(path).map_or(&[][..], Vec::as_slice);
        indexes
            .iter()
            .filter(|index| known.binary_search(index).is_err())
            .count() as u64
    });
    beyond.sum()
}

/// Returns the blocks of a tree that are in the page cache, without the mount points for kernel file systems.
///
/// # Errors
/// One line with the path.
pub(crate) fn resident(root: &Path) -> Result<Blocks, String> {
    let mut blocks = Blocks::new();
    walk(root, Path::new(""), &mut blocks)?;
    Ok(blocks)
}

fn walk(root: &Path, inside: &Path, blocks: &mut Blocks) -> Result<(), String> {
    let folder = root.join(inside);
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in fs::read_dir(&folder).map_err(failed)? {
        let path = inside.join(entry.map_err(failed)?.file_name());
        let data = fs::symlink_metadata(root.join(&path)).map_err(failed)?;
        if data.is_dir() {
            walk(root, &path, blocks)?;
        } else if data.is_file() && data.len() > 0 {
            let indexes = resident_of(&root.join(&path), data.len())?;
            if !indexes.is_empty() {
                blocks.insert(path, indexes);
            }
        }
    }
    Ok(())
}

/// Returns the blocks of a file that are in the page cache.
fn resident_of(path: &Path, bytes: u64) -> Result<Vec<u32>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = File::open(path).map_err(failed)?;
    let length = bytes as usize;
    // SAFETY: a new mapping of an open file, which is only queried, never read.
    let place = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if place == libc::MAP_FAILED {
        return Err(failed(std::io::Error::last_os_error()));
    }
    let mut pages = vec![0_u8; length.div_ceil(BLOCK_BYTES)];
    // SAFETY: the mapping has this length, and there is a byte for each of its pages.
    let asked = unsafe { libc::mincore(place, length, pages.as_mut_ptr()) };
    let error = std::io::Error::last_os_error();
    // SAFETY: the mapping made above, which is not used any more.
    unsafe { libc::munmap(place, length) };
    if asked != 0 {
        return Err(failed(error));
    }
    let held = pages.iter().enumerate().filter(|(_, page)| **page & 1 == 1);
    Ok(held.map(|(index, _)| index as u32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_apart() {
        let blocks = |entries: &[(&str, &[u32])]| -> Blocks {
            entries
                .iter()
                .map(|(path, indexes)| (PathBuf::from(path), indexes.to_vec()))
                .collect()
        };
        let one = blocks(&[("a", &[0, 1, 5]), ("b", &[2])]);
        let other = blocks(&[("a", &[1, 5, 6])]);
        assert_eq!(
            (
                count(&one),
                count_beyond(&one, &other),
                count_beyond(&other, &one)
            ),
            (4, 2, 1)
        );
    }

    #[test]
    fn blocks_just_written_are_resident_and_measured() {
        let folder = std::env::temp_dir().join(format!("keel-bench-needed-{}", std::process::id()));
        fs::create_dir_all(folder.join("in")).unwrap();
        fs::write(folder.join("in/file"), vec![7; 3 * BLOCK_BYTES + 1]).unwrap();
        fs::write(folder.join("empty"), b"").unwrap();
        let blocks = resident(&folder).unwrap();
        assert_eq!(
            blocks,
            Blocks::from([(PathBuf::from("in/file"), vec![0, 1, 2, 3])])
        );
        let needed = Needed::of(&folder, blocks, &LEVELS[..1]).unwrap();
        assert_eq!(
            (needed.count, needed.bytes),
            (4, 3 * BLOCK_BYTES as u64 + 1)
        );
        assert_eq!(needed.blocks_of_files, 4);
        assert!((1..1000).contains(&needed.compressed_bytes[0]));
        assert_eq!(needed.compressed_bytes[1], 0, "it was not asked for");
        fs::remove_dir_all(&folder).unwrap();
    }
}
