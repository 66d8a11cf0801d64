//! The format as tests with forged images know it, independent of the crate's own code. It has the kinds of blocks,
//! their checksums, and the positions of their fields. The fuzz targets and the tests of `flash` share it.

use base::block::BLOCK_BYTES;
use base::sim::SimDevice;

pub(crate) type Block = [u8; BLOCK_BYTES];

/// The kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Superblock,
    Root,
    Bucket,
    Data,
    SpilledList,
}

pub(crate) fn kind_of(block: &Block) -> Option<Kind> {
    match &block[..8] {
        b"KEELFLSH" => Some(Kind::Superblock),
        b"KEELROOT" => Some(Kind::Root),
        magic => match &magic[..4] {
            b"EKTB" => Some(Kind::Bucket),
            b"EKBD" => Some(Kind::Data),
            b"EKTR" => Some(Kind::SpilledList),
            _ => None,
        },
    }
}

/// Sets the valid checksum. The identity of the store seeds it.
pub(crate) fn seal(block: &mut Block, kind: Kind, identity: &[u8; 16]) {
    let seed = crc32c::crc32c(identity);
    let (place, checksum) = match kind {
        Kind::Superblock => (12, crc32c::crc32c(&block[16..])),
        Kind::Root => (12, crc32c::crc32c_append(seed, &block[16..])),
        Kind::Bucket | Kind::Data | Kind::SpilledList => {
            (4, crc32c::crc32c_append(seed, &block[8..]))
        }
    };
    block[place..place + 4].copy_from_slice(&checksum.to_le_bytes());
}

pub(crate) fn field(block: &Block, (offset, bytes): (usize, usize)) -> u64 {
    let mut raw = [0; 8];
    raw[..bytes].copy_from_slice(&block[offset..offset + bytes]);
    u64::from_le_bytes(raw)
}

pub(crate) fn set_field(block: &mut Block, (offset, bytes): (usize, usize), value: u64) {
    block[offset..offset + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
}

/// Returns offset and width of fields that follow each other without a gap, by their widths.
fn run(mut offset: usize, widths: &[usize]) -> Vec<(usize, usize)> {
    let mut fields = Vec::with_capacity(widths.len());
    for bytes in widths {
        fields.push((offset, *bytes));
        offset += bytes;
    }
    fields
}

/// The fields of a file's state.
fn state(base: usize) -> Vec<(usize, usize)> {
    let widths = [8, 4, 4, 8, 2, 1, 1, 1, 1, 1, 1, 4, 4, 4, 4, 4, 4, 1];
    [run(base, &widths), run(base + 60, &[4])].concat()
}

/// The fields of a list of free pieces.
fn pieces(base: usize, count: usize) -> Vec<(usize, usize)> {
    let places = (base..).step_by(16).take(count);
    places.flat_map(|place| run(place, &[4, 4, 1, 7])).collect()
}

/// Offset and width of every field of a block. `name_bytes_max` is that of the store. Inputs of the fuzz targets select
/// a field by its index.
pub(crate) fn fields(kind: Kind, name_bytes_max: usize) -> Vec<(usize, usize)> {
    match kind {
        Kind::Superblock => [run(8, &[4]), run(16, &[8]), run(48, &[8, 8, 4, 2, 2, 4, 4])].concat(),
        Kind::Root => {
            let mut all = run(16, &[8, 1, 1, 1, 1, 4, 4, 4, 8, 8, 8, 8, 4, 2]);
            all.extend(run(80, &[4, 4, 4, 4, 4, 4, 8]));
            for slot in (1152..).step_by(72).take(32) {
                all.extend(run(slot, &[2, 2, 4]));
                all.extend(state(slot + 8));
            }
            all.extend(pieces(128, 64));
            all
        }
        Kind::Bucket => {
            let mut all = run(8, &[4, 4, 8, 2]);
            let entry_bytes = (68 + name_bytes_max).next_multiple_of(8);
            for entry in 0..(BLOCK_BYTES - 32) / entry_bytes {
                let base = 32 + entry * entry_bytes;
                all.extend(run(base, &[1, 1]));
                all.extend(run(base + 68, &[1, 2]));
                all.extend(state(base + 4));
            }
            all
        }
        Kind::Data => {
            let widths = [8, 8, 4, 4, 2, 1, 1, 4, 4, 1, 1, 1, 1];
            [run(8, &widths), run(48, &[4; 36])].concat()
        }
        Kind::SpilledList => [run(8, &[4, 4, 4]), pieces(32, 36)].concat(),
    }
}

/// Lists of equal structures in a block: offset of the first, size of each in bytes, their number.
pub(crate) fn records(kind: Kind, name_bytes_max: usize) -> Vec<(usize, usize, usize)> {
    let entry_bytes = (68 + name_bytes_max).next_multiple_of(8);
    match kind {
        Kind::Superblock => Vec::new(),
        Kind::Root => vec![(128, 16, 64), (1152, 72, 32), (80, 8, 3)],
        Kind::Bucket => vec![(32, entry_bytes, (BLOCK_BYTES - 32) / entry_bytes)],
        Kind::Data => vec![(48, 4, 36)],
        Kind::SpilledList => vec![(32, 16, 36)],
    }
}

/// The positions of the blocks of each kind.
pub(crate) struct Places {
    pub(crate) superblocks: Vec<u64>,
    /// The newest record first.
    pub(crate) roots: Vec<u64>,
    /// Buckets that contain names first.
    pub(crate) buckets: Vec<u64>,
    pub(crate) data: Vec<u64>,
    pub(crate) lists: Vec<u64>,
}

impl Places {
    pub(crate) fn find(device: &SimDevice, block_count: u64) -> Self {
        let of = |kind: Kind| -> Vec<u64> {
            (0..block_count)
                .filter(|place| kind_of(&device.peek(*place)) == Some(kind))
                .collect()
        };
        let mut roots = of(Kind::Root);
        roots.sort_by_key(|place| std::cmp::Reverse(field(&device.peek(*place), (16, 8))));
        let mut buckets = of(Kind::Bucket);
        buckets.sort_by_key(|place| device.peek(*place)[32..].iter().all(|byte| *byte == 0));
        Self {
            superblocks: of(Kind::Superblock),
            roots,
            buckets,
            data: of(Kind::Data),
            lists: of(Kind::SpilledList),
        }
    }
}
