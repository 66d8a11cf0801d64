//! The root: all changing state of the store, in one block.
//!
//! It holds the state of the files that are being appended to, and the free space. That is a frontier of never-used
//! blocks, a short array of free pieces, and the head of a list of spilled pieces. Each move of blocks between free
//! space and files is one new root, so no block is ever lost or owned twice.
//!
//! Invariant: a root that has been made durable describes only durable state.

use base::block::BLOCK_BYTES;

use crate::bytes::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};
use crate::layout::{
    CLUSTER_BLOCKS, COUNTER_END, FILE_ID_END, FORMAT_VERSION, Layout, RUN_BLOCKS_MAX,
};

/// Free pieces that a root can list; more are spilled to blocks of their own.
pub(crate) const PIECES_MAX: usize = 64;
/// Files whose tails the root knows: the most recently appended ones.
pub(crate) const SLOTS_MAX: usize = 32;
/// Bytes of an encoded [`FileState`].
pub(crate) const FILE_STATE_BYTES: usize = 64;
/// Blocks that one record may carry, to be written in place after it is durable.
pub(crate) const IMAGES_MAX: usize = 3;

const MAGIC: &[u8; 8] = b"KEELROOT";
const PIECES_OFFSET: usize = 128;
const PIECE_BYTES: usize = 16;
const SLOTS_OFFSET: usize = PIECES_OFFSET + PIECES_MAX * PIECE_BYTES;
const SLOT_BYTES: usize = 72;
const IMAGES_OFFSET: usize = 80;

/// A contiguous range of blocks given to a file, filled from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: u32,
    /// Blocks in the run; 0 for no run.
    pub(crate) blocks: u8,
    /// Full blocks from the start, which are not overwritten any more; the next write goes here.
    pub(crate) next: u8,
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

/// A run that is full, or too full for the most recent group: the end of the list of a lane's runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClosedRun {
    pub(crate) start: u32,
    /// Blocks that hold data; 0 for no run. The other blocks of its last cluster stay empty.
    pub(crate) used: u8,
}

impl ClosedRun {
    pub(crate) fn is_none(self) -> bool {
        self.used == 0
    }

    /// Returns the number of blocks that belong to it. A run is closed only when less than a cluster of it is left.
    pub(crate) fn blocks(self) -> u32 {
        u32::from(self.used).next_multiple_of(CLUSTER_BLOCKS)
    }
}

/// One of the two places where a file grows: the run that is being filled, and the runs filled before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lane {
    pub(crate) run: Run,
    pub(crate) before: ClosedRun,
}

impl Lane {
    /// Moves the run to the closed ones. It holds at least one block of data.
    pub(crate) fn close(&mut self) -> u32 {
        let blocks = u32::from(self.run.blocks);
        self.before = ClosedRun {
            start: self.run.start,
            used: self.run.next,
        };
        self.run = Run::default();
        blocks
    }
}

/// The last block of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tail {
    /// Its address; 0 if the file is empty.
    pub(crate) address: u32,
    pub(crate) index: u32,
    pub(crate) sequence: u64,
    pub(crate) fill: u16,
    /// The address of the block before it; 0 if it is the first. Recovery needs it when a later append has overwritten
    /// this block.
    pub(crate) previous: u32,
}

/// The state needed to read, extend and free a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileState {
    pub(crate) file_id: u64,
    pub(crate) tail: Tail,
    /// Blocks in all closed runs together.
    pub(crate) closed_blocks: u32,
    /// Two lanes that appends use in turn, so that no write touches the tail it replaces, and a reserve.
    pub(crate) lanes: [Lane; 2],
    /// A run for the next lane that needs one; none of it is written.
    pub(crate) reserve: Run,
}

impl FileState {
    /// An empty file.
    pub(crate) fn empty(file_id: u64) -> Self {
        Self {
            file_id,
            ..Self::default()
        }
    }

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

    /// Returns the runs that the state itself names, as (start, blocks); only the blocks of these runs know the earlier
    /// ones.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let open = [self.lanes[0].run, self.lanes[1].run, self.reserve];
        let open = open.map(|run| (run.start, u32::from(run.blocks)));
        let closed = [self.lanes[0].before, self.lanes[1].before];
        let closed = closed.map(|run| (run.start, run.blocks()));
        open.into_iter()
            .chain(closed)
            .filter(|(_, blocks)| *blocks > 0)
    }

    /// Blocks that the file owns, written or reserved.
    pub(crate) fn owned_blocks(&self) -> u64 {
        u64::from(self.closed_blocks)
            + [self.lanes[0].run, self.lanes[1].run, self.reserve]
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
        put_u32(bytes, 32, self.tail.previous);
        for (index, lane) in self.lanes.iter().enumerate() {
            bytes[26 + 2 * index] = lane.run.blocks;
            bytes[27 + 2 * index] = lane.run.next;
            bytes[30 + index] = lane.before.used;
            put_u32(bytes, 36 + 8 * index, lane.run.start);
            put_u32(bytes, 40 + 8 * index, lane.before.start);
        }
        put_u32(bytes, 52, self.reserve.start);
        bytes[56] = self.reserve.blocks;
        bytes[57..60].fill(0);
        put_u32(bytes, 60, self.closed_blocks);
    }

    /// Decodes a state and refuses one that names blocks outside the data region.
    pub(crate) fn decode(bytes: &[u8], layout: &Layout) -> Option<Self> {
        let lane = |index: usize| Lane {
            run: Run {
                start: get_u32(bytes, 36 + 8 * index),
                blocks: bytes[26 + 2 * index],
                next: bytes[27 + 2 * index],
            },
            before: ClosedRun {
                start: get_u32(bytes, 40 + 8 * index),
                used: bytes[30 + index],
            },
        };
        let state = Self {
            file_id: get_u64(bytes, 0),
            tail: Tail {
                address: get_u32(bytes, 8),
                index: get_u32(bytes, 12),
                sequence: get_u64(bytes, 16),
                fill: get_u16(bytes, 24),
                previous: get_u32(bytes, 32),
            },
            closed_blocks: get_u32(bytes, 60),
            lanes: [lane(0), lane(1)],
            reserve: Run {
                start: get_u32(bytes, 52),
                blocks: bytes[56],
                next: 0,
            },
        };
        // A full run is not kept here, so there is always room for one more block.
        let run_is_sane = |run: &Run| {
            (run.is_none() && run.next == 0)
                || (run.next < run.blocks
                    && u32::from(run.blocks) <= RUN_BLOCKS_MAX
                    && layout.is_data_run(run.start, u32::from(run.blocks)))
        };
        let tail = &state.tail;
        let tail_is_sane = tail.address == 0
            || (layout.is_data_block(tail.address)
                && tail.fill > 0
                && usize::from(tail.fill) <= crate::block::PAYLOAD_BYTES
                && u64::from(tail.index) < layout.data_blocks());
        let before_is_sane = |before: &ClosedRun| {
            before.is_none()
                || (u32::from(before.used) <= RUN_BLOCKS_MAX
                    && layout.is_data_run(before.start, before.blocks()))
        };
        let sane = (1..FILE_ID_END).contains(&state.file_id)
            && state.tail.sequence < COUNTER_END
            && tail_is_sane
            && state
                .lanes
                .iter()
                .all(|lane| run_is_sane(&lane.run) && before_is_sane(&lane.before))
            && run_is_sane(&state.reserve);
        sane.then_some(state)
    }
}

/// One entry of the free list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start: u32,
    pub(crate) blocks: u32,
    /// If 0, the piece is just these blocks. Otherwise they are a run of this file. Its first block names the previous
    /// run in the same lane, which is free too, and so on.
    pub(crate) file_id: u64,
    /// The first run in that list that is not free any more, because the file was truncated behind it. 0 if all are
    /// free.
    pub(crate) end: u32,
}

impl Piece {
    /// Returns a piece of just these blocks.
    pub(crate) fn plain(start: u32, blocks: u32) -> Self {
        Self {
            start,
            blocks,
            file_id: 0,
            end: 0,
        }
    }

    pub(crate) fn encode(&self, bytes: &mut [u8]) {
        put_u32(bytes, 0, self.start);
        if self.file_id == 0 {
            put_u32(bytes, 4, self.blocks);
            put_u64(bytes, 8, 0);
        } else {
            put_u32(bytes, 4, self.end);
            put_u64(bytes, 8, self.file_id << 8 | u64::from(self.blocks as u8));
        }
    }

    pub(crate) fn decode(bytes: &[u8], layout: &Layout) -> Option<Self> {
        let tagged = get_u64(bytes, 8);
        let start = get_u32(bytes, 0);
        let piece = if tagged == 0 {
            Self::plain(start, get_u32(bytes, 4))
        } else {
            Self {
                start,
                blocks: (tagged & 0xff) as u32,
                file_id: tagged >> 8,
                end: get_u32(bytes, 4),
            }
        };
        let tag_is_sane = tagged == 0 || (piece.file_id != 0 && piece.blocks <= RUN_BLOCKS_MAX);
        (tag_is_sane && layout.is_data_run(piece.start, piece.blocks)).then_some(piece)
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
                end: 0,
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

    pub(crate) fn largest_plain(&self) -> Option<Piece> {
        let plain = self.as_slice().iter().filter(|piece| piece.file_id == 0);
        plain.max_by_key(|piece| piece.blocks).copied()
    }

    pub(crate) fn remove(&mut self, index: usize) -> Piece {
        let piece = self.items[index];
        self.count -= 1;
        self.items[index] = self.items[self.count];
        piece
    }

    /// Adds a piece and joins adjacent plain pieces. The caller must have made room; returns false if there is none.
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
                    piece = Piece::plain(other.start.min(piece.start), other.blocks + piece.blocks);
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

/// The use of an active slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SlotKind {
    #[default]
    Free,
    /// A named file; its table entry is at `bucket`, `entry`, and may be older.
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

/// The decoded root.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    /// Number of the commit record that carries this root.
    pub(crate) record_sequence: u64,
    /// The place (0 or 1) of this record or, if it is in an announced cluster, of the record before it.
    pub(crate) place: u8,
    /// Whether this record is in the cluster announced by the previous record, with a spilled list.
    pub(crate) spilled: bool,
    /// A free cluster for the next record that spills a list; 0 for none.
    pub(crate) announced: u32,
    /// First block that was never used; everything from here to the end of the data region is free.
    pub(crate) frontier: u32,
    pub(crate) next_file_id: u64,
    /// Lower bound for the group number of the next append.
    pub(crate) next_sequence: u64,
    pub(crate) files: u64,
    pub(crate) free_blocks: u64,
    /// Cluster of the most recently spilled list of pieces; 0 for none.
    pub(crate) trunk_head: u32,
    pub(crate) trunk_count: u32,
    /// The checksum of the list that this record spills, so that no list from an earlier life of its cluster passes for
    /// it. Then the list spilled before it.
    pub(crate) spilled_checksum: u32,
    pub(crate) spilled_next: u32,
    pub(crate) mounts: u64,
    /// Whether the store was closed after this record: nothing was written since.
    pub(crate) clean: bool,
    pub(crate) pieces: Pieces,
    pub(crate) slots: [Slot; SLOTS_MAX],
}

/// A block that a record carries, to be written in place after the record is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ImageReference {
    /// Its address: a data block, or the first copy of a block of the name table.
    pub(crate) address: u32,
    pub(crate) checksum: u32,
}

/// The images of one record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ImageReferences {
    items: [ImageReference; IMAGES_MAX],
    count: usize,
}

impl ImageReferences {
    pub(crate) fn as_slice(&self) -> &[ImageReference] {
        &self.items[..self.count]
    }

    pub(crate) fn push(&mut self, reference: ImageReference) {
        self.items[self.count] = reference;
        self.count += 1;
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> &mut ImageReference {
        &mut self.items[..self.count][index]
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }
}

impl Root {
    pub(crate) fn new(layout: &Layout) -> Self {
        Self {
            record_sequence: 0,
            place: 0,
            spilled: false,
            announced: 0,
            frontier: layout.data_first,
            next_file_id: 1,
            next_sequence: 1,
            files: 0,
            free_blocks: layout.data_blocks(),
            trunk_head: 0,
            trunk_count: 0,
            spilled_checksum: 0,
            spilled_next: 0,
            mounts: 0,
            clean: false,
            pieces: Pieces::new(),
            slots: [Slot::default(); SLOTS_MAX],
        }
    }

    /// Encodes the root and, in addition, `extra` pieces that are free but must not be allocated yet.
    pub(crate) fn encode(
        &self,
        block: &mut [u8],
        extra: &[Piece],
        images: &ImageReferences,
        seed: u32,
    ) {
        block.fill(0);
        block[..8].copy_from_slice(MAGIC);
        put_u32(block, 8, FORMAT_VERSION);
        // Numbers stay at their end: recovery writes a record at every opening, and must never write one that it would
        // reject. See [`Root::is_worn_out`] for the calls that would need new numbers.
        put_u64(block, 16, self.record_sequence.min(COUNTER_END - 1));
        block[24] = self.place;
        block[25] = images.len() as u8;
        block[26] = u8::from(self.clean);
        block[27] = u8::from(self.spilled);
        put_u32(block, 28, self.announced);
        put_u32(block, 32, self.frontier);
        put_u32(block, 36, self.trunk_head);
        put_u64(block, 40, self.next_file_id.min(FILE_ID_END - 1));
        put_u64(block, 48, self.next_sequence.min(COUNTER_END - 1));
        put_u64(block, 56, self.files);
        put_u64(block, 64, self.free_blocks);
        put_u32(block, 72, self.trunk_count);
        for (index, image) in images.as_slice().iter().enumerate() {
            put_u32(block, IMAGES_OFFSET + 8 * index, image.address);
            put_u32(block, IMAGES_OFFSET + 8 * index + 4, image.checksum);
        }
        put_u64(block, 104, self.mounts);
        if self.spilled {
            put_u32(block, 112, self.spilled_checksum);
            put_u32(block, 116, self.spilled_next);
        }
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
        put_u16(block, 76, count as u16);
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

    /// Decodes a root from untrusted bytes; `None` if it is not intact.
    pub(crate) fn decode(block: &[u8], layout: &Layout) -> Option<(Self, ImageReferences)> {
        let seed = layout.checksum_seed();
        if &block[..8] != MAGIC
            || get_u32(block, 8) != FORMAT_VERSION
            || crc32c::crc32c_append(seed, &block[16..BLOCK_BYTES]) != get_u32(block, 12)
        {
            return None;
        }
        let images = decode_images(block, layout)?;
        let mut root = Self::new(layout);
        root.record_sequence = get_u64(block, 16);
        root.place = block[24];
        root.clean = block[26] == 1;
        root.spilled = block[27] == 1;
        root.announced = get_u32(block, 28);
        root.frontier = get_u32(block, 32);
        root.trunk_head = get_u32(block, 36);
        root.next_file_id = get_u64(block, 40);
        root.next_sequence = get_u64(block, 48);
        root.files = get_u64(block, 56);
        root.free_blocks = get_u64(block, 64);
        root.trunk_count = get_u32(block, 72);
        root.mounts = get_u64(block, 104);
        root.spilled_checksum = get_u32(block, 112);
        root.spilled_next = get_u32(block, 116);
        let frontier_is_sane = (layout.data_first..=layout.data_end).contains(&root.frontier)
            && root.frontier.is_multiple_of(CLUSTER_BLOCKS);
        let clusters_are_sane = [root.trunk_head, root.announced, root.spilled_next]
            .iter()
            .all(|cluster| *cluster == 0 || layout.is_data_run(*cluster, CLUSTER_BLOCKS));
        let counters = [
            root.record_sequence,
            root.next_sequence,
            root.files,
            root.mounts,
        ];
        let counters_are_sane = (1..FILE_ID_END).contains(&root.next_file_id)
            && counters.iter().all(|counter| *counter < COUNTER_END);
        let spill_is_sane = !root.spilled || (root.trunk_head != 0 && images.len() <= 1);
        let count = usize::from(get_u16(block, 76));
        if !frontier_is_sane
            || !counters_are_sane
            || !clusters_are_sane
            || !spill_is_sane
            || root.place > 1
            // One place is reserved for the run that a chain gives up.
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
        // The slots identify a file by its identity.
        let used = |slot: &&Slot| slot.kind != SlotKind::Free;
        let twice = root.slots.iter().enumerate().any(|(index, slot)| {
            let mut before = root.slots[..index].iter().filter(used);
            slot.kind != SlotKind::Free
                && before.any(|other| other.state.file_id == slot.state.file_id)
        });
        (temporary <= 1 && !twice).then_some((root, images))
    }

    /// Slot of the named file with this identity.
    pub(crate) fn slot_of(&self, file_id: u64) -> Option<usize> {
        self.slots
            .iter()
            .position(|slot| slot.kind == SlotKind::Named && slot.state.file_id == file_id)
    }
}

/// Returns the blocks that the record carries, if a record may carry them.
fn decode_images(block: &[u8], layout: &Layout) -> Option<ImageReferences> {
    let count = usize::from(block[25]);
    if count > IMAGES_MAX {
        return None;
    }
    let mut images = ImageReferences::default();
    for index in 0..count {
        let address = get_u32(block, IMAGES_OFFSET + 8 * index);
        let known = layout.is_data_block(address) || layout.bucket_at(u64::from(address)).is_some();
        if !known {
            return None;
        }
        images.push(ImageReference {
            address,
            checksum: get_u32(block, IMAGES_OFFSET + 8 * index + 4),
        });
    }
    Some(images)
}

const _: () = assert!(RUN_BLOCKS_MAX <= u8::MAX as u32);
const _: () = assert!(IMAGES_OFFSET + 8 * IMAGES_MAX <= 104);
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
        assert!(root.pieces.push(Piece::plain(layout.data_first, 8)));
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
                    Lane {
                        run: Run {
                            start: layout.data_first + 8,
                            blocks: 4,
                            next: 1,
                        },
                        before: ClosedRun {
                            start: layout.data_first,
                            used: 3,
                        },
                    },
                    Lane::default(),
                ],
                ..FileState::default()
            },
        };
        root.place = 1;
        root.announced = layout.data_first + 16;
        assert!(root.pieces.push(Piece {
            start: layout.data_first + 20,
            blocks: 64,
            file_id: FILE_ID_END - 1,
            end: layout.data_first + 4,
        }));
        let mut images = ImageReferences::default();
        for (address, checksum) in [(layout.bucket_block(1) as u32, 3), (layout.data_first, 4)] {
            images.push(ImageReference { address, checksum });
        }
        let mut block = vec![0; BLOCK_BYTES];
        root.encode(&mut block, &[], &images, layout.checksum_seed());
        let (back, images_back) = Root::decode(&block, &layout).unwrap();
        assert_eq!(images_back, images);
        assert_eq!((back.place, back.announced), (1, root.announced));
        assert_eq!(back.slots, root.slots);
        assert_eq!(back.pieces.as_slice(), root.pieces.as_slice());
        assert_eq!(back.frontier, root.frontier);
        block[200] ^= 4;
        assert!(Root::decode(&block, &layout).is_none());
    }

    #[test]
    fn touching_plain_pieces_join_and_chains_do_not() {
        let mut pieces = Pieces::new();
        assert!(pieces.push(Piece::plain(100, 4)));
        assert!(pieces.push(Piece::plain(108, 4)));
        assert!(pieces.push(Piece::plain(104, 4)));
        assert_eq!(pieces.as_slice(), &[Piece::plain(100, 12)]);
        assert!(pieces.push(Piece {
            start: 112,
            blocks: 4,
            file_id: 6,
            end: 0,
        }));
        assert_eq!(pieces.len(), 2);
    }
}
