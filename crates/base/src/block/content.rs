//! Finds what a file or device holds before anything is written to it. Foreign data is recognised by the magic numbers
//! that file systems, partition tables, volume managers and the like keep at fixed places.
//!
//! Each entry is a documented fact of its format. An unknown format does not count as empty either: only zeros do.

use std::fs::File;
use std::io::{Error, ErrorKind, Result, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

/// Bytes at the start of a device that must be zero for it to count as empty.
pub const EMPTY_PROBE_BYTES: u64 = 1 << 20;

/// What [`find_content`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// There is no such file.
    Missing,
    /// A file of no bytes, or a device that begins with zeros and has no known mark elsewhere.
    Empty,
    /// Known formats, each with its article: `an ext4 file system`. Never empty.
    Known(Vec<&'static str>),
    /// Bytes of unknown meaning.
    Unknown,
}

/// Returns what is at `path`, which is a regular file or a block device; nothing is changed.
///
/// # Errors
/// What the operating system says when it cannot be read.
pub fn find_content(path: impl AsRef<Path>) -> Result<Content> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Content::Missing),
        Err(error) => return Err(error),
    };
    let is_block_device = file.metadata()?.file_type().is_block_device();
    // The metadata of a block device has no length.
    let bytes = (&file).seek(SeekFrom::End(0))?;
    if bytes == 0 {
        return Ok(Content::Empty);
    }
    let known = known_content(&file, bytes)?;
    if !known.is_empty() {
        Ok(Content::Known(known))
    } else if is_block_device && begins_with_zeros(&file, bytes)? {
        Ok(Content::Empty)
    } else {
        Ok(Content::Unknown)
    }
}

fn begins_with_zeros(file: &File, bytes: u64) -> Result<bool> {
    let mut start = vec![0; bytes.min(EMPTY_PROBE_BYTES) as usize];
    file.read_exact_at(&mut start, 0)?;
    Ok(start.iter().all(|byte| *byte == 0))
}

/// Where a magic number lies.
#[derive(Clone, Copy)]
enum Place {
    /// This many bytes after the start.
    Start(u64),
    /// This many bytes before the end.
    End(u64),
}

use Place::{End, Start};

const LUKS: &str = "an encrypted volume (LUKS)";
const LVM: &str = "a physical volume of LVM2";
const SWAP: &str = "swap space";
const HIBERNATED: &str = "a hibernated system";
const GPT: &str = "a GPT partition table";
const UDF: &str = "a UDF file system";
const REISER: &str = "a ReiserFS file system";
const OCFS2: &str = "an OCFS2 file system";
const MINIX: &str = "a MINIX file system";
const UFS: &str = "a UFS file system";
const MD_RAID: &str = "a member of a Linux software RAID";
const ZFS: &str = "a member of a ZFS pool";

/// Magic numbers at fixed places.
const MAGICS: &[(&str, Place, &[u8])] = &[
    ("an XFS file system", Start(0), b"XFSB"),
    ("a Btrfs file system", Start(0x1_0040), b"_BHRfS_M"),
    (
        "an F2FS file system",
        Start(1024),
        &[0x10, 0x20, 0xf5, 0xf2],
    ),
    ("a FAT file system", Start(54), b"FAT12   "),
    ("a FAT file system", Start(54), b"FAT16   "),
    ("a FAT file system", Start(54), b"FAT     "),
    ("a FAT file system", Start(82), b"FAT32   "),
    ("an exFAT file system", Start(3), b"EXFAT   "),
    ("an NTFS file system", Start(3), b"NTFS    "),
    ("an encrypted volume (BitLocker)", Start(3), b"-FVE-FS-"),
    ("a SquashFS file system", Start(0), b"hsqs"),
    ("a SquashFS file system", Start(0), b"sqsh"),
    (
        "an EROFS file system",
        Start(1024),
        &[0xe2, 0xe1, 0xf5, 0xe0],
    ),
    ("a cramfs file system", Start(16), b"Compressed ROMFS"),
    ("a cramfs file system", Start(512 + 16), b"Compressed ROMFS"),
    ("a romfs file system", Start(0), b"-rom1fs-"),
    ("an ISO 9660 file system", Start(0x8001), b"CD001"),
    (UDF, Start(0x8001), b"BEA01"),
    (UDF, Start(0x8801), b"NSR02"),
    (UDF, Start(0x8801), b"NSR03"),
    ("UBI volumes", Start(0), b"UBI#"),
    ("a UBIFS file system", Start(0), &[0x31, 0x18, 0x10, 0x06]),
    // A node of JFFS2 begins with its magic and its type: clean marker, directory entry, inode, summary.
    ("a JFFS2 file system", Start(0), &[0x85, 0x19, 0x03, 0x20]),
    ("a JFFS2 file system", Start(0), &[0x85, 0x19, 0x01, 0xe0]),
    ("a JFFS2 file system", Start(0), &[0x85, 0x19, 0x02, 0xe0]),
    ("a JFFS2 file system", Start(0), &[0x85, 0x19, 0x06, 0x20]),
    ("a littlefs file system", Start(8), b"littlefs"),
    ("a NILFS2 file system", Start(1030), &[0x34, 0x34]),
    (
        "a bcache or bcachefs device",
        Start(4096 + 24),
        &[
            0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba,
            0x6d, 0x81,
        ],
    ),
    (
        "a bcachefs file system",
        Start(4096 + 24),
        &[
            0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d,
            0xf7, 0xef,
        ],
    ),
    ("a JFS file system", Start(0x8000), b"JFS1"),
    (REISER, Start(0x1_0034), b"ReIsErFs"),
    (REISER, Start(0x1_0034), b"ReIsEr2Fs"),
    (REISER, Start(0x1_0034), b"ReIsEr3Fs"),
    (REISER, Start(0x2034), b"ReIsErFs"),
    ("a Reiser4 file system", Start(0x1_0000), b"ReIsEr4"),
    ("an HFS+ file system", Start(1024), b"H+\x00\x04"),
    ("an HFS+ file system", Start(1024), b"HX\x00\x05"),
    ("an HFS file system", Start(1024), b"BD"),
    ("an APFS container", Start(32), b"NXSB"),
    (UFS, Start(8192 + 1372), &[0x19, 0x01, 0x54, 0x19]),
    (UFS, Start(65536 + 1372), &[0x19, 0x01, 0x54, 0x19]),
    (OCFS2, Start(1024), b"OCFSV2"),
    (OCFS2, Start(2048), b"OCFSV2"),
    (OCFS2, Start(4096), b"OCFSV2"),
    (OCFS2, Start(8192), b"OCFSV2"),
    (
        "a GFS2 file system",
        Start(0x1_0000),
        &[0x01, 0x16, 0x19, 0x70],
    ),
    (MINIX, Start(1040), &[0x7f, 0x13]),
    (MINIX, Start(1040), &[0x8f, 0x13]),
    (MINIX, Start(1040), &[0x68, 0x24]),
    (MINIX, Start(1040), &[0x78, 0x24]),
    (MINIX, Start(1048), &[0x5a, 0x4d]),
    ("a store of Ceph", Start(0), b"bluestore block device"),
    ("an SQLite database", Start(0), b"SQLite format 3\0"),
    // Swap space ends its first page with a mark; pages have 4 to 64 KiB.
    (SWAP, Start(4096 - 10), b"SWAPSPACE2"),
    (SWAP, Start(4096 - 10), b"SWAP-SPACE"),
    (SWAP, Start(8192 - 10), b"SWAPSPACE2"),
    (SWAP, Start(16384 - 10), b"SWAPSPACE2"),
    (SWAP, Start(32768 - 10), b"SWAPSPACE2"),
    (SWAP, Start(65536 - 10), b"SWAPSPACE2"),
    (HIBERNATED, Start(4096 - 10), b"S1SUSPEND"),
    (HIBERNATED, Start(4096 - 10), b"S2SUSPEND"),
    (HIBERNATED, Start(4096 - 10), b"ULSUSPEND"),
    (HIBERNATED, Start(4096 - 10), b"LINHIB0001"),
    (LUKS, Start(0), b"LUKS\xba\xbe"),
    // The second header of LUKS2 outlives a lost first one; where it lies follows from the size of the header.
    (LUKS, Start(0x4000), b"SKUL\xba\xbe"),
    (LUKS, Start(0x8000), b"SKUL\xba\xbe"),
    (LUKS, Start(0x1_0000), b"SKUL\xba\xbe"),
    (LUKS, Start(0x2_0000), b"SKUL\xba\xbe"),
    (LUKS, Start(0x4_0000), b"SKUL\xba\xbe"),
    (LUKS, Start(0x8_0000), b"SKUL\xba\xbe"),
    (LUKS, Start(0x10_0000), b"SKUL\xba\xbe"),
    (LUKS, Start(0x20_0000), b"SKUL\xba\xbe"),
    (LUKS, Start(0x40_0000), b"SKUL\xba\xbe"),
    ("a dm-integrity volume", Start(0), b"integrt\0"),
    ("a dm-verity hash device", Start(0), b"verity\0\0"),
    ("a VDO volume", Start(0), b"dmvdo001"),
    (
        "a Stratis block device",
        Start(512 + 4),
        b"!Stra0tis\x86\xff\x02^Arh",
    ),
    // The label of LVM2 may lie in any of the first four sectors.
    (LVM, Start(24), b"LVM2 001"),
    (LVM, Start(512 + 24), b"LVM2 001"),
    (LVM, Start(1024 + 24), b"LVM2 001"),
    (LVM, Start(1536 + 24), b"LVM2 001"),
    (MD_RAID, Start(0), &[0xfc, 0x4e, 0x2b, 0xa9]),
    (MD_RAID, Start(4096), &[0xfc, 0x4e, 0x2b, 0xa9]),
    (
        "a member of a firmware RAID (DDF)",
        End(512),
        &[0xde, 0x11, 0xde, 0x11],
    ),
    (
        "a member of a firmware RAID (Intel)",
        End(1024),
        b"Intel Raid ISM Cfg Sig. ",
    ),
    // Sectors of 512 bytes and of 4 KiB, the table and its copy at the end.
    (GPT, Start(512), b"EFI PART"),
    (GPT, Start(4096), b"EFI PART"),
    (GPT, End(512), b"EFI PART"),
    (GPT, End(4096), b"EFI PART"),
];

/// Returns everything known that is found, the most specific first, each once.
fn known_content(file: &File, bytes: u64) -> Result<Vec<&'static str>> {
    let source = Source { file, bytes };
    let mut found = Vec::new();
    let mut add = |what: Option<&'static str>| {
        if let Some(what) = what.filter(|what| !found.contains(what)) {
            found.push(what);
        }
    };
    add(ext(&source)?);
    for (what, place, magic) in MAGICS {
        let at = match place {
            Start(at) => Some(*at),
            End(before) => bytes.checked_sub(*before),
        };
        add(match at {
            Some(at) if source.has(at, magic)? => Some(*what),
            _ => None,
        });
    }
    add(raid_at_the_end(&source)?);
    add(zfs(&source)?);
    let other = found.is_empty();
    add_boot_sector(&source, other, &mut found)?;
    Ok(found)
}

/// A file or device that answers zeros beyond its end.
struct Source<'a> {
    file: &'a File,
    bytes: u64,
}

impl Source<'_> {
    fn read(&self, at: u64, buffer: &mut [u8]) -> Result<()> {
        buffer.fill(0);
        let inside = self.bytes.saturating_sub(at).min(buffer.len() as u64) as usize;
        match self.file.read_exact_at(&mut buffer[..inside], at) {
            // The file has become shorter meanwhile.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(()),
            done => done,
        }
    }

    fn has(&self, at: u64, magic: &[u8]) -> Result<bool> {
        let mut buffer = [0; 32];
        let buffer = buffer
            .get_mut(..magic.len())
            .ok_or_else(|| Error::from(ErrorKind::InvalidInput))?;
        self.read(at, buffer)?;
        Ok(buffer == magic)
    }
}

/// The family of ext file systems shares one magic; their features tell them apart.
fn ext(source: &Source) -> Result<Option<&'static str>> {
    const HAS_JOURNAL: u32 = 0x4;
    const IS_JOURNAL: u32 = 0x8;
    /// Extents, 64 bits, flexible groups, and what else ext3 never had.
    const EXT4_ONLY: u32 = 0x40 | 0x80 | 0x200 | 0x2000;
    let mut superblock = [0; 256];
    source.read(1024, &mut superblock)?;
    if superblock[0x38..0x3a] != [0x53, 0xef] {
        return Ok(None);
    }
    let word = |at: usize| {
        u32::from_le_bytes([
            superblock[at],
            superblock[at + 1],
            superblock[at + 2],
            superblock[at + 3],
        ])
    };
    let (compatible, incompatible) = (word(0x5c), word(0x60));
    Ok(Some(if incompatible & IS_JOURNAL != 0 {
        "a journal of an ext file system"
    } else if incompatible & EXT4_ONLY != 0 {
        "an ext4 file system"
    } else if compatible & HAS_JOURNAL != 0 {
        "an ext3 file system"
    } else {
        "an ext2 file system"
    }))
}

/// Formats 1.0 and 0.90 of Linux software RAID: before the end, at a rounded place.
fn raid_at_the_end(source: &Source) -> Result<Option<&'static str>> {
    const MAGIC: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];
    let version_1_0 = (source.bytes / 512)
        .checked_sub(16)
        .map(|at| at / 8 * 8 * 512);
    let version_0_90 = (source.bytes >> 16).checked_sub(1).map(|at| at << 16);
    for at in [version_1_0, version_0_90].into_iter().flatten() {
        if source.has(at, MAGIC)? {
            return Ok(Some(MD_RAID));
        }
    }
    Ok(None)
}

/// A label of ZFS has an array of 128 KiB in its second half, whose entries begin with a magic. Two labels
/// lie at each end, 256 KiB each.
fn zfs(source: &Source) -> Result<Option<&'static str>> {
    const LABEL_BYTES: u64 = 256 << 10;
    const ENTRY_BYTES: usize = 1 << 10;
    const MAGIC: u64 = 0x00ba_b10c;
    let mut array = vec![0; LABEL_BYTES as usize / 2];
    let aligned = source.bytes / LABEL_BYTES * LABEL_BYTES;
    for label in [Some(0), Some(LABEL_BYTES), aligned.checked_sub(LABEL_BYTES)] {
        let Some(label) = label else { continue };
        source.read(label + LABEL_BYTES / 2, &mut array)?;
        let has_magic =
            |entry: &[u8]| entry[..8] == MAGIC.to_le_bytes() || entry[..8] == MAGIC.to_be_bytes();
        if array.chunks_exact(ENTRY_BYTES).any(has_magic) {
            return Ok(Some(ZFS));
        }
    }
    Ok(None)
}

/// The first sector of a disk ends with a mark. Boot sectors of file systems and the protective table of GPT have it as
/// well. It is named only if nothing more specific is found.
fn add_boot_sector(source: &Source, is_alone: bool, found: &mut Vec<&'static str>) -> Result<()> {
    const TABLE: usize = 446;
    const ENTRY_BYTES: usize = 16;
    let mut sector = [0; 512];
    source.read(0, &mut sector)?;
    if !is_alone || sector[510..] != [0x55, 0xaa] {
        return Ok(());
    }
    // State of the entry: 0, or 0x80 for the one to boot from; then the type, which is never 0.
    let is_entry = |entry: &[u8]| entry[0] & 0x7f == 0 && entry[4] != 0;
    let mut entries = sector[TABLE..510].chunks_exact(ENTRY_BYTES);
    found.push(if entries.any(is_entry) {
        "an MBR partition table"
    } else {
        "a boot sector"
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    const BYTES: u64 = 9 << 20;

    /// A file of zeros with some bytes in it.
    struct Image(PathBuf);

    impl Image {
        fn new(name: &str, bytes: u64) -> Self {
            let name = format!("evenkeel-base-content-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            File::create(&path).unwrap().set_len(bytes).unwrap();
            Self(path)
        }

        fn put(&self, at: u64, bytes: &[u8]) {
            let file = File::options().write(true).open(&self.0).unwrap();
            file.write_all_at(bytes, at).unwrap();
        }

        fn clear(&self, at: u64, bytes: usize) {
            self.put(at, &vec![0; bytes]);
        }

        fn content(&self) -> Content {
            find_content(&self.0).unwrap()
        }
    }

    impl Drop for Image {
        fn drop(&mut self) {
            std::fs::remove_file(&self.0).ok();
        }
    }

    #[test]
    fn every_magic_number_is_found_at_its_place_and_named() {
        let image = Image::new("magics", BYTES);
        for (what, place, magic) in MAGICS {
            let at = match place {
                Start(at) => *at,
                End(before) => BYTES - before,
            };
            image.put(at, magic);
            assert_eq!(
                image.content(),
                Content::Known(vec![*what]),
                "{what} at {at}"
            );
            // One byte further it means nothing.
            image.clear(at, magic.len());
            image.put(at + 1, &magic[..magic.len().min((BYTES - at - 1) as usize)]);
            assert_eq!(image.content(), Content::Unknown, "{what} behind {at}");
            image.clear(at, magic.len() + 1);
        }
    }

    #[test]
    fn places_that_depend_on_the_size_are_found() {
        let md = [0xfc, 0x4e, 0x2b, 0xa9];
        // The sizes are those of the documentation of the format: the last 64 KiB whole, 8 KiB before the end.
        for (bytes, at) in [
            (BYTES, BYTES - 65536),
            (BYTES + 512, BYTES - 65536),
            (BYTES, BYTES - 8192),
            (BYTES + 512, BYTES - 8192),
            (BYTES + 4096, BYTES + 4096 - 8192),
        ] {
            let image = Image::new("places", bytes);
            image.put(at, &md);
            assert_eq!(
                image.content(),
                Content::Known(vec![MD_RAID]),
                "{bytes} {at}"
            );
        }
        let uberblock = 0x00ba_b10c_u64.to_le_bytes();
        for at in [
            0x2_0000,
            0x2_0400,
            0x6_fc00,
            BYTES - 0x2_0000,
            BYTES - 0x400,
        ] {
            let image = Image::new("places", BYTES);
            image.put(at, &uberblock);
            assert_eq!(image.content(), Content::Known(vec![ZFS]), "{at}");
        }
    }

    #[test]
    fn related_file_systems_are_told_apart() {
        let image = Image::new("relatives", BYTES);
        image.put(1080, &[0x53, 0xef]);
        for (compatible, incompatible, what) in [
            (0x38_u32, 0x2_u32, "an ext2 file system"),
            (0x3c, 0x2, "an ext3 file system"),
            (0x3c, 0x42, "an ext4 file system"),
            (0x3c, 0x2c2, "an ext4 file system"),
            (0, 0x8, "a journal of an ext file system"),
        ] {
            image.put(1024 + 0x5c, &compatible.to_le_bytes());
            image.put(1024 + 0x60, &incompatible.to_le_bytes());
            assert_eq!(image.content(), Content::Known(vec![what]));
        }
        let image = Image::new("relatives", BYTES);
        image.put(510, &[0x55, 0xaa]);
        assert_eq!(image.content(), Content::Known(vec!["a boot sector"]));
        image.put(446, &[0x80, 0, 0, 0, 0x83]);
        assert_eq!(
            image.content(),
            Content::Known(vec!["an MBR partition table"])
        );
        // The protective table in front of a GPT, and the boot sector of a file system, add nothing.
        image.put(512, b"EFI PART");
        image.put(BYTES - 512, b"EFI PART");
        assert_eq!(image.content(), Content::Known(vec![GPT]));
        image.put(0x1_0040, b"_BHRfS_M");
        assert_eq!(
            image.content(),
            Content::Known(vec!["a Btrfs file system", GPT])
        );
    }

    #[test]
    fn small_and_absent_files_are_no_error() {
        let absent = std::env::temp_dir().join("evenkeel-base-content-absent");
        assert_eq!(find_content(&absent).unwrap(), Content::Missing);
        for bytes in [0, 1, 2, 511, 512, 4095, 65536] {
            let image = Image::new("small", bytes);
            let expected = if bytes == 0 {
                Content::Empty
            } else {
                // Zeros in a file were written by a program; only a device has them from the start.
                Content::Unknown
            };
            assert_eq!(image.content(), expected, "{bytes}");
        }
        assert!(find_content(std::env::temp_dir()).is_err());
    }
}
