//! The format as tests with forged images know it, independent of the crate's own code: kinds of blocks, their
//! checksums, and the positions of their fields. The fuzz targets and the tests of `flash` share it.

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

/// Offset and width of the fields of a file's state.
const STATE: [(usize, usize); 17] = [
    (0, 8),
    (8, 4),
    (12, 4),
    (16, 8),
    (24, 2),
    (26, 1),
    (27, 1),
    (28, 1),
    (29, 1),
    (30, 1),
    (31, 1),
    (32, 4),
    (36, 4),
    (40, 4),
    (44, 4),
    (48, 4),
    (52, 4),
];
const STATE_MORE: [(usize, usize); 2] = [(56, 1), (60, 4)];
const PIECE: [(usize, usize); 4] = [(0, 4), (4, 4), (8, 1), (9, 7)];

/// Offset and width of every field of a block. `name_bytes_max` is that of the store.
pub(crate) fn fields(kind: Kind, name_bytes_max: usize) -> Vec<(usize, usize)> {
    let at = |base: usize, list: &[(usize, usize)]| {
        list.iter()
            .map(|(offset, bytes)| (base + offset, *bytes))
            .collect::<Vec<_>>()
    };
    let state = |base: usize| [at(base, &STATE), at(base, &STATE_MORE)].concat();
    let pieces = |base: usize, count: usize| -> Vec<_> {
        (0..count)
            .flat_map(|index| at(base + 16 * index, &PIECE))
            .collect()
    };
    match kind {
        Kind::Superblock => at(
            0,
            &[
                (8, 4),
                (16, 8),
                (48, 8),
                (56, 8),
                (64, 4),
                (68, 2),
                (70, 2),
                (72, 4),
                (76, 4),
            ],
        ),
        Kind::Root => {
            let mut all = at(
                0,
                &[
                    (16, 8),
                    (24, 1),
                    (25, 1),
                    (26, 1),
                    (27, 1),
                    (28, 4),
                    (32, 4),
                    (36, 4),
                    (40, 8),
                    (48, 8),
                    (56, 8),
                    (64, 8),
                    (72, 4),
                    (76, 2),
                    (80, 4),
                    (84, 4),
                    (88, 4),
                    (92, 4),
                    (96, 4),
                    (100, 4),
                    (104, 8),
                ],
            );
            for slot in (1152..).step_by(72).take(32) {
                all.extend(at(slot, &[(0, 2), (2, 2), (4, 4)]));
                all.extend(state(slot + 8));
            }
            all.extend(pieces(128, 64));
            all
        }
        Kind::Bucket => {
            let mut all = at(0, &[(8, 4), (12, 4), (16, 8), (24, 2)]);
            let entry_bytes = (68 + name_bytes_max).next_multiple_of(8);
            for entry in 0..(BLOCK_BYTES - 32) / entry_bytes {
                let base = 32 + entry * entry_bytes;
                all.extend(at(base, &[(0, 1), (1, 1), (68, 1), (69, 2)]));
                all.extend(state(base + 4));
            }
            all
        }
        Kind::Data => {
            let mut all = at(
                0,
                &[
                    (8, 8),
                    (16, 8),
                    (24, 4),
                    (28, 4),
                    (32, 2),
                    (34, 1),
                    (35, 1),
                    (36, 4),
                    (40, 4),
                    (44, 1),
                    (45, 1),
                    (46, 1),
                    (47, 1),
                ],
            );
            all.extend((48..192).step_by(4).map(|offset| (offset, 4)));
            all
        }
        Kind::SpilledList => [at(0, &[(8, 4), (12, 4), (16, 4)]), pieces(32, 36)].concat(),
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
