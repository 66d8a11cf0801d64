//! The root: everything about the store that changes, in one block.
//!
//! It holds the free space (a frontier of never-used blocks, a short array of free pieces, and the head of a
//! list of spilled pieces) and the state of the files that are being appended to. Whatever moves blocks
//! between free space and files is one new root, so no block is ever lost or owned twice.
//!
//! Invariant: a root in memory that has been made durable describes durable state only.

use base::block::BLOCK_BYTES;

use crate::bytes::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};
use crate::layout::{CLUSTER_BLOCKS, FORMAT_VERSION, Layout, RUN_BLOCKS_MAX};

/// Free pieces that a root can list; more are spilled to blocks of their own.
pub(crate) const PIECES_MAX: usize = 64;
/// Files whose tails the root knows: those appended to most recently.
pub(crate) const SLOTS_MAX: usize = 32;
/// Bytes of an encoded [`FileState`].
pub(crate) const FILE_STATE_BYTES: usize = 68;

/// Numbers that grow over a store's life never come near this; an image that says otherwise is not believed.
pub(crate) const COUNTER_END: u64 = 1 << 63;

const MAGIC: &[u8; 8] = b"KEELROOT";
const PIECES_OFFSET: usize = 128;
const PIECE_BYTES: usize = 16;
const SLOTS_OFFSET: usize = PIECES_OFFSET + PIECES_MAX * PIECE_BYTES;
const SLOT_BYTES: usize = 88;
const NO_IMAGE: u32 = u32::MAX;

/// A contiguous range of blocks given to a file, filled from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: u32,
    /// Blocks in the run; 0 for no run.
    pub(crate) blocks: u16,
    /// Blocks from the start that hold data for good; the next write goes here.
    pub(crate) next: u16,
}

impl Run {
    pub(crate) fn is_none(self) -> bool {
        self.blocks == 0
    }

    pub(crate) fn room(self) -> u32 {
        u32::from(self.blocks - self.next)
    }

    pub(crate) fn contains(self, address: u32) -> bool {
        address >= self.start && address - self.start < u32::from(self.blocks)
    }
}

/// The last block of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tail {
    /// Where it is; 0 when the file is empty.
    pub(crate) address: u32,
    pub(crate) index: u32,
    pub(crate) sequence: u64,
    pub(crate) fill: u16,
    /// Where the block before it is; 0 when it is the first. Recovery needs it when a later append has been
    /// written over this block.
    pub(crate) previous: u32,
}

/// Everything that is needed to read, extend and free a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileState {
    pub(crate) file_id: u64,
    pub(crate) tail: Tail,
    /// The most recently filled run: head of the list of runs that the blocks link.
    pub(crate) closed_start: u32,
    pub(crate) closed_blocks: u32,
    /// Blocks in all filled runs together.
    pub(crate) closed_total: u32,
    /// Two lanes that appends take in turn, so that no write touches the tail it supersedes, and a reserve.
    pub(crate) lanes: [Run; 2],
    pub(crate) reserve: Run,
}

impl FileState {
    pub(crate) fn length(&self) -> u64 {
        if self.tail.address == 0 {
            0
        } else {
            u64::from(self.tail.index) * crate::block::PAYLOAD_BYTES as u64
                + u64::from(self.tail.fill)
        }
    }

    pub(crate) fn block_count(&self) -> u32 {
        if self.tail.address == 0 {
            0
        } else {
            self.tail.index + 1
        }
    }

    /// Blocks that the file owns, written or reserved.
    pub(crate) fn owned_blocks(&self) -> u64 {
        u64::from(self.closed_total)
            + [self.lanes[0], self.lanes[1], self.reserve]
                .iter()
                .map(|run| u64::from(run.blocks))
                .sum::<u64>()
    }

    pub(crate) fn encode(&self, bytes: &mut [u8]) {
        put_u64(bytes, 0, self.file_id);
        put_u32(bytes, 8, self.tail.address);
        put_u32(bytes, 12, self.tail.index);
        put_u64(bytes, 16, self.tail.sequence);
        put_u16(bytes, 24, self.tail.fill);
        put_u16(bytes, 26, 0);
        put_u32(bytes, 28, self.closed_start);
        put_u32(bytes, 32, self.closed_blocks);
        put_u32(bytes, 36, self.closed_total);
        for (index, run) in [self.lanes[0], self.lanes[1], self.reserve]
            .iter()
            .enumerate()
        {
            let offset = 40 + 8 * index;
            put_u32(bytes, offset, run.start);
            put_u16(bytes, offset + 4, run.blocks);
            put_u16(bytes, offset + 6, run.next);
        }
        put_u32(bytes, 64, self.tail.previous);
    }

    /// Decodes a state and refuses one that names blocks outside the data region.
    pub(crate) fn decode(bytes: &[u8], layout: &Layout) -> Option<Self> {
        let run = |index: usize| {
            let offset = 40 + 8 * index;
            Run {
                start: get_u32(bytes, offset),
                blocks: get_u16(bytes, offset + 4),
                next: get_u16(bytes, offset + 6),
            }
        };
        let state = Self {
            file_id: get_u64(bytes, 0),
            tail: Tail {
                address: get_u32(bytes, 8),
                index: get_u32(bytes, 12),
                sequence: get_u64(bytes, 16),
                fill: get_u16(bytes, 24),
                previous: get_u32(bytes, 64),
            },
            closed_start: get_u32(bytes, 28),
            closed_blocks: get_u32(bytes, 32),
            closed_total: get_u32(bytes, 36),
            lanes: [run(0), run(1)],
            reserve: run(2),
        };
        // A run that is full is not kept here; so there is always room for one more block.
        let run_is_sane = |run: &Run| {
            (run.is_none() && run.next == 0)
                || (run.next < run.blocks
                    && u32::from(run.blocks) <= RUN_BLOCKS_MAX
                    && layout.is_data_run(run.start, u32::from(run.blocks)))
        };
        let tail = &state.tail;
        let tail_is_sane = tail.address == 0
            || ((layout.data_first..layout.data_end).contains(&tail.address)
                && tail.fill > 0
                && usize::from(tail.fill) <= crate::block::PAYLOAD_BYTES
                && u64::from(tail.index) < layout.data_blocks());
        let closed_is_sane =
            state.closed_blocks == 0 || layout.is_data_run(state.closed_start, state.closed_blocks);
        let sane = (1..COUNTER_END).contains(&state.file_id)
            && state.tail.sequence < COUNTER_END
            && tail_is_sane
            && closed_is_sane
            && [state.lanes[0], state.lanes[1], state.reserve]
                .iter()
                .all(run_is_sane);
        sane.then_some(state)
    }
}

/// One entry of the free list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start: u32,
    pub(crate) blocks: u32,
    /// 0: just these blocks. Otherwise they are the last full run of this deleted file, and the last block of
    /// the run says where the file's run before it lies.
    pub(crate) file_id: u64,
}

impl Piece {
    pub(crate) fn encode(&self, bytes: &mut [u8]) {
        put_u32(bytes, 0, self.start);
        put_u32(bytes, 4, self.blocks);
        put_u64(bytes, 8, self.file_id);
    }

    pub(crate) fn decode(bytes: &[u8], layout: &Layout) -> Option<Self> {
        let piece = Self {
            start: get_u32(bytes, 0),
            blocks: get_u32(bytes, 4),
            file_id: get_u64(bytes, 8),
        };
        layout
            .is_data_run(piece.start, piece.blocks)
            .then_some(piece)
    }
}

/// A short list of free pieces that never grows beyond its array.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pieces {
    items: [Piece; PIECES_MAX],
    count: usize,
}

impl Pieces {
    pub(crate) const fn new() -> Self {
        Self {
            items: [Piece {
                start: 0,
                blocks: 0,
                file_id: 0,
            }; PIECES_MAX],
            count: 0,
        }
    }

    pub(crate) fn as_slice(&self) -> &[Piece] {
        &self.items[..self.count]
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> &mut Piece {
        &mut self.items[..self.count][index]
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn remove(&mut self, index: usize) -> Piece {
        let piece = self.items[index];
        self.count -= 1;
        self.items[index] = self.items[self.count];
        piece
    }

    /// Adds a piece, joining plain pieces that touch. The caller has made room; false when there is none.
    #[must_use]
    pub(crate) fn push(&mut self, mut piece: Piece) -> bool {
        if piece.blocks == 0 {
            return true;
        }
        if piece.file_id == 0 {
            let mut index = 0;
            while index < self.count {
                let other = self.items[index];
                let touches = other.start + other.blocks == piece.start
                    || piece.start + piece.blocks == other.start;
                if other.file_id == 0 && touches {
                    piece = Piece {
                        start: other.start.min(piece.start),
                        blocks: other.blocks + piece.blocks,
                        file_id: 0,
                    };
                    self.remove(index);
                    index = 0;
                } else {
                    index += 1;
                }
            }
        }
        if self.count == PIECES_MAX {
            return false;
        }
        self.items[self.count] = piece;
        self.count += 1;
        true
    }
}

/// What an active slot is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SlotKind {
    #[default]
    Free,
    /// A named file; its table entry is at `bucket`, `entry`, and may lag behind.
    Named,
    /// New content for a replace that has not committed; recovery frees its blocks.
    Temporary,
}

/// A file that is being appended to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) kind: SlotKind,
    pub(crate) bucket: u32,
    pub(crate) entry: u16,
    pub(crate) state: FileState,
}

/// The root, decoded.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    /// Number of the commit record that carries this root.
    pub(crate) record_sequence: u64,
    /// First block that was never used; everything from here to the end of the data region is free.
    pub(crate) frontier: u32,
    pub(crate) next_file_id: u64,
    /// Lower bound for the group number of the next append.
    pub(crate) next_sequence: u64,
    pub(crate) files: u64,
    pub(crate) free_blocks: u64,
    /// First block of the list of spilled pieces; 0 for none.
    pub(crate) trunk_head: u32,
    pub(crate) trunk_count: u32,
    pub(crate) mounts: u64,
    /// The store was closed after this record: nothing was written since.
    pub(crate) clean: bool,
    pub(crate) pieces: Pieces,
    pub(crate) slots: [Slot; SLOTS_MAX],
}

/// The table block that a record carries along, to be written in its place after the record is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImageReference {
    pub(crate) bucket: u32,
    pub(crate) checksum: u32,
}

impl Root {
    pub(crate) fn new(layout: &Layout) -> Self {
        Self {
            record_sequence: 0,
            frontier: layout.data_first,
            next_file_id: 1,
            next_sequence: 1,
            files: 0,
            free_blocks: layout.data_blocks(),
            trunk_head: 0,
            trunk_count: 0,
            mounts: 0,
            clean: false,
            pieces: Pieces::new(),
            slots: [Slot::default(); SLOTS_MAX],
        }
    }

    /// Encodes the root and, beside it, `extra` pieces that are free but must not be handed out yet.
    pub(crate) fn encode(
        &self,
        block: &mut [u8],
        extra: &[Piece],
        image: Option<ImageReference>,
        seed: u32,
    ) {
        block.fill(0);
        block[..8].copy_from_slice(MAGIC);
        put_u32(block, 8, FORMAT_VERSION);
        put_u64(block, 16, self.record_sequence);
        put_u32(block, 28, image.map_or(NO_IMAGE, |image| image.bucket));
        put_u32(block, 32, image.map_or(0, |image| image.checksum));
        put_u32(block, 36, self.frontier);
        put_u64(block, 40, self.next_file_id);
        put_u64(block, 48, self.next_sequence);
        put_u64(block, 56, self.files);
        put_u64(block, 64, self.free_blocks);
        put_u32(block, 72, self.trunk_head);
        put_u32(block, 76, self.trunk_count);
        put_u16(block, 82, u16::from(self.clean));
        put_u64(block, 88, self.mounts);
        let pieces = self.pieces.as_slice().iter().chain(extra);
        let mut count = 0;
        for (piece, bytes) in
            pieces.zip(block[PIECES_OFFSET..SLOTS_OFFSET].chunks_exact_mut(PIECE_BYTES))
        {
            piece.encode(bytes);
            count += 1;
        }
        debug_assert_eq!(
            count,
            self.pieces.len() + extra.len(),
            "room for pieces is made before a commit"
        );
        put_u16(block, 80, count as u16);
        for (slot, bytes) in self
            .slots
            .iter()
            .zip(block[SLOTS_OFFSET..].chunks_exact_mut(SLOT_BYTES))
        {
            let kind = match slot.kind {
                SlotKind::Free => continue,
                SlotKind::Named => 1,
                SlotKind::Temporary => 2,
            };
            put_u16(bytes, 0, kind);
            put_u16(bytes, 2, slot.entry);
            put_u32(bytes, 4, slot.bucket);
            slot.state.encode(&mut bytes[8..8 + FILE_STATE_BYTES]);
        }
        let checksum = crc32c::crc32c_append(seed, &block[16..BLOCK_BYTES]);
        put_u32(block, 12, checksum);
    }

    /// Reads a root that may be anything; `None` when it is not intact.
    pub(crate) fn decode(block: &[u8], layout: &Layout) -> Option<(Self, Option<ImageReference>)> {
        let seed = layout.checksum_seed();
        if &block[..8] != MAGIC
            || get_u32(block, 8) != FORMAT_VERSION
            || crc32c::crc32c_append(seed, &block[16..BLOCK_BYTES]) != get_u32(block, 12)
        {
            return None;
        }
        let image = match get_u32(block, 28) {
            NO_IMAGE => None,
            bucket if bucket < layout.bucket_count => Some(ImageReference {
                bucket,
                checksum: get_u32(block, 32),
            }),
            _ => return None,
        };
        let mut root = Self::new(layout);
        root.record_sequence = get_u64(block, 16);
        root.frontier = get_u32(block, 36);
        root.next_file_id = get_u64(block, 40);
        root.next_sequence = get_u64(block, 48);
        root.files = get_u64(block, 56);
        root.free_blocks = get_u64(block, 64);
        root.trunk_head = get_u32(block, 72);
        root.trunk_count = get_u32(block, 76);
        root.clean = get_u16(block, 82) == 1;
        root.mounts = get_u64(block, 88);
        let frontier_is_sane = (layout.data_first..=layout.data_end).contains(&root.frontier)
            && root.frontier.is_multiple_of(CLUSTER_BLOCKS);
        let trunk_is_sane =
            root.trunk_head == 0 || layout.is_data_run(root.trunk_head, CLUSTER_BLOCKS);
        let counters = [
            root.record_sequence,
            root.next_file_id,
            root.next_sequence,
            root.files,
            root.mounts,
        ];
        let counters_are_sane =
            root.next_file_id != 0 && counters.iter().all(|counter| *counter < COUNTER_END);
        let count = usize::from(get_u16(block, 80));
        if !frontier_is_sane
            || !counters_are_sane
            || !trunk_is_sane
            // One place is left for the run that a chain gives up.
            || count >= PIECES_MAX
            || root.free_blocks > layout.data_blocks()
        {
            return None;
        }
        for bytes in block[PIECES_OFFSET..SLOTS_OFFSET]
            .chunks_exact(PIECE_BYTES)
            .take(count)
        {
            if !root.pieces.push(Piece::decode(bytes, layout)?) {
                return None;
            }
        }
        for (slot, bytes) in root
            .slots
            .iter_mut()
            .zip(block[SLOTS_OFFSET..].chunks_exact(SLOT_BYTES))
        {
            slot.kind = match get_u16(bytes, 0) {
                0 => continue,
                1 => SlotKind::Named,
                2 => SlotKind::Temporary,
                _ => return None,
            };
            slot.entry = get_u16(bytes, 2);
            slot.bucket = get_u32(bytes, 4);
            slot.state = FileState::decode(&bytes[8..8 + FILE_STATE_BYTES], layout)?;
            if slot.bucket >= layout.bucket_count || slot.entry >= layout.entries_per_bucket {
                return None;
            }
        }
        // Replacing is one call, and calls do not overlap.
        let temporary = root
            .slots
            .iter()
            .filter(|slot| slot.kind == SlotKind::Temporary)
            .count();
        (temporary <= 1).then_some((root, image))
    }

    /// Slot of the named file with this identity.
    pub(crate) fn slot_of(&self, file_id: u64) -> Option<usize> {
        self.slots
            .iter()
            .position(|slot| slot.kind == SlotKind::Named && slot.state.file_id == file_id)
    }
}

const _: () = assert!(SLOTS_OFFSET + SLOTS_MAX * SLOT_BYTES <= BLOCK_BYTES);
const _: () = assert!(8 + FILE_STATE_BYTES <= SLOT_BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::FormatOptions;
    use base::block::Geometry;

    fn layout() -> Layout {
        let options = FormatOptions {
            files_max: 100,
            name_bytes_max: 255,
            uuid: [1; 16],
            hash_key: [2; 16],
        };
        Layout::plan(Geometry { block_count: 4096 }, &options).unwrap()
    }

    #[test]
    fn a_root_round_trips() {
        let layout = layout();
        let mut root = Root::new(&layout);
        root.record_sequence = 9;
        root.frontier = layout.data_first + 40;
        assert!(root.pieces.push(Piece {
            start: layout.data_first,
            blocks: 8,
            file_id: 0
        }));
        root.slots[3] = Slot {
            kind: SlotKind::Named,
            bucket: 2,
            entry: 1,
            state: FileState {
                file_id: 5,
                tail: Tail {
                    address: layout.data_first + 9,
                    index: 1,
                    sequence: 77,
                    fill: 12,
                    previous: layout.data_first,
                },
                lanes: [
                    Run {
                        start: layout.data_first + 8,
                        blocks: 4,
                        next: 1,
                    },
                    Run::default(),
                ],
                ..FileState::default()
            },
        };
        let image = Some(ImageReference {
            bucket: 1,
            checksum: 3,
        });
        let mut block = vec![0; BLOCK_BYTES];
        root.encode(&mut block, &[], image, layout.checksum_seed());
        let (back, image_back) = Root::decode(&block, &layout).unwrap();
        assert_eq!(image_back, image);
        assert_eq!(back.slots, root.slots);
        assert_eq!(back.pieces.as_slice(), root.pieces.as_slice());
        assert_eq!(back.frontier, root.frontier);
        block[200] ^= 4;
        assert!(Root::decode(&block, &layout).is_none());
    }

    #[test]
    fn touching_plain_pieces_join_and_chains_do_not() {
        let mut pieces = Pieces::new();
        assert!(pieces.push(Piece {
            start: 100,
            blocks: 4,
            file_id: 0
        }));
        assert!(pieces.push(Piece {
            start: 108,
            blocks: 4,
            file_id: 0
        }));
        assert!(pieces.push(Piece {
            start: 104,
            blocks: 4,
            file_id: 0
        }));
        assert_eq!(
            pieces.as_slice(),
            &[Piece {
                start: 100,
                blocks: 12,
                file_id: 0
            }]
        );
        assert!(pieces.push(Piece {
            start: 112,
            blocks: 4,
            file_id: 6
        }));
        assert_eq!(pieces.len(), 2);
    }
}
