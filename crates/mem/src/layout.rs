//! Offsets of all tables of a region. All of them follow from the few numbers of the superblock. Offsets count bytes
//! from the beginning of the region's file; there are no addresses.

use crate::error::{Error, Result};

/// The unit of space allocation for files: a huge page.
pub const PAGE_BYTES: u64 = 2 << 20;
/// Alignment of the mapping and of slots, so that processes can share page tables.
pub const SLOT_ALIGNMENT_BYTES: u64 = 1 << 30;
/// Smallest piece of the packed zone.
pub const PIECE_BYTES_MIN: u64 = 1 << 10;
/// Largest piece of the packed zone; a longer file has a slot of its own.
pub const PIECE_BYTES_MAX: u64 = 1 << 20;
/// Sizes of pieces: powers of two.
pub const PIECE_CLASSES: u32 = (PIECE_BYTES_MAX / PIECE_BYTES_MIN).ilog2() + 1;
/// Bytes of an inode.
pub const INODE_BYTES: u64 = 256;
/// Bytes of a cell of a name.
pub const CELL_BYTES: u64 = 64;
/// Bytes of a lane: its words, and the log for bytes of a file.
pub const LANE_BYTES: u64 = LANE_WORDS_BYTES + LOG_BYTES_MAX;
/// Bytes of a lane before its log.
pub const LANE_WORDS_BYTES: u64 = 4096;
/// Bytes that one write may log, and so write atomically.
pub const LOG_BYTES_MAX: u64 = 16 << 10;
/// Longest name of a file, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Minimum size of a region, in bytes.
pub const CAPACITY_BYTES_MIN: u64 = 16 << 20;
/// Maximum size of a region, in bytes.
pub const CAPACITY_BYTES_MAX: u64 = 1 << 40;

/// Maximum number of files that a region can be made for.
const FILES_MAX: u64 = 1 << 24;

/// Maximum number of lanes of a region.
pub(crate) const LANES_MAX: u32 = 4096;

/// Maximum number of cells of a region.
pub(crate) const CELLS_MAX: u64 = 2 * (FILES_MAX + 1);

/// Maximum address space of all slots of a region: a quarter of the address space of a process.
const SLOTS_BYTES_MAX: u64 = 1 << 45;
const SLOTS_MAX: u64 = 4096;
/// Minimum number of slots, also for a small region.
const SLOTS_MIN: u64 = 64;
/// Minimum size of a slot, in bytes: files with holes may be longer than the region has memory.
const SLOT_BYTES_MIN: u64 = 8 << 30;

/// Minimum and maximum number of open file descriptions of a region.
const DESCRIPTIONS: std::ops::RangeInclusive<u64> = 512..=65_536;
/// Bytes of an open file description.
pub(crate) const DESCRIPTION_BYTES: u64 = 64;
const WORDS_IN_PAGE_MAP: u64 = 64;

/// Words of an inode, as offsets from its beginning. The first line changes with the file's bytes, under the inode's
/// lock. The other lines change by lists of words, under the lock of names and space.
pub(crate) mod attribute {
    /// Odd while the line or the bytes change.
    pub(crate) const SEQUENCE: u64 = 0;
    /// Bytes of the file.
    pub(crate) const SIZE: u64 = 8;
    /// When its bytes changed, in nanoseconds since 1970.
    pub(crate) const MODIFIED_NS: u64 = 16;
    /// When any of its attributes changed.
    pub(crate) const CHANGED_NS: u64 = 24;
    /// The encoded place of its bytes.
    pub(crate) const PLACE: u64 = 32;
    /// When it was read.
    pub(crate) const ACCESSED_NS: u64 = 40;
    /// The number of the lane that writes, plus 1; or 0.
    pub(crate) const LOCK: u64 = 48;
    // The word behind it says whether a thread sleeps until the lock is free.
    /// Tells this file from earlier files with the same inode number; 0: the inode is free.
    pub(crate) const GENERATION: u64 = 64;
    /// Type and permissions as `st_mode` has them, low; number of names, high.
    pub(crate) const MODE_LINKS: u64 = 72;
    /// User low, group high.
    pub(crate) const OWNER: u64 = 80;
    /// Of a directory: its parent. Of a free inode: the next free one, plus 1.
    pub(crate) const PARENT: u64 = 88;
    /// Of a directory: the first cell, plus 1.
    pub(crate) const FIRST_CELL: u64 = 96;
    /// Of a directory: the last cell, plus 1.
    pub(crate) const LAST_CELL: u64 = 104;
    /// Of a directory: the number of names in it.
    pub(crate) const ENTRIES: u64 = 112;
    /// Of a directory: the position that the next name gets.
    pub(crate) const NEXT_POSITION: u64 = 120;
    /// 1: it may have a stub.
    pub(crate) const HAS_STUB: u64 = 128;
    /// Of a file without names: the next such file, plus 1.
    pub(crate) const NEXT_ORPHAN: u64 = FIRST_CELL;
    /// The previous such file, plus 1.
    pub(crate) const ORPHAN_BEFORE: u64 = LAST_CELL;
}

/// Words of the superblock that change. They follow the words that do not.
pub(crate) mod state {
    /// First word that changes.
    const AT: u64 = 1024;
    /// The lock of names and space: a lane's number plus 1, or 0.
    pub(crate) const LOCK: u64 = AT;
    /// Pages in the pool.
    pub(crate) const POOL_PAGES: u64 = AT + 64;
    /// Inodes in use.
    pub(crate) const INODES: u64 = AT + 72;
    /// The first free inode plus 1, or 0.
    pub(crate) const FREE_INODE: u64 = AT + 80;
    /// Inodes from this one on have never been used.
    pub(crate) const FRESH_INODE: u64 = AT + 88;
    /// The first free cell plus 1, or 0.
    pub(crate) const FREE_CELL: u64 = AT + 96;
    /// Cells from this one on have never been used.
    pub(crate) const FRESH_CELL: u64 = AT + 104;
    /// Cells in use.
    pub(crate) const CELLS: u64 = AT + 112;
    /// Grows with each inode that is allocated, so that two files with the same inode number can be told apart.
    pub(crate) const GENERATION: u64 = AT + 120;
    /// For each piece size, a page that may have a free piece, plus 1; or 0.
    pub(crate) const CLASS_PAGE: u64 = AT + 128;
    /// The first file without names that a process may still have open, plus 1; or 0.
    pub(crate) const FIRST_ORPHAN: u64 = AT + 256;
    /// The number of such files.
    pub(crate) const ORPHANS: u64 = AT + 264;
    /// The run of the machine in which the region was last used: two words. Process numbers of another run mean
    /// nothing.
    pub(crate) const BOOT: u64 = AT + 272;
    /// The namespace that process numbers belong to.
    pub(crate) const NAMESPACE: u64 = AT + 288;
    /// Odd while names and space change.
    pub(crate) const SEQUENCE: u64 = AT + 320;
    /// Identity of this region for its checkpoints; 0: there is none yet.
    pub(crate) const CHECKPOINT_TOKEN: u64 = AT + 1024;
    /// When the newest checkpoint was begun, in nanoseconds since 1970.
    pub(crate) const CHECKPOINT_NS: u64 = AT + 1032;
    /// Its generation; 0: there is none.
    pub(crate) const CHECKPOINT_GENERATION: u64 = AT + 1040;
}

/// The parameters of a new region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionOptions {
    /// Bytes of memory of the region, a multiple of [`PAGE_BYTES`].
    pub capacity_bytes: u64,
    /// Files and directories that it can hold; `None` is one for each 32 KiB, up to 16,777,216.
    pub files_max: Option<u64>,
    /// The number of threads that can write at the same time, in all processes; [`lanes_for`](Self::lanes_for) is a
    /// good number.
    pub lanes: u32,
}

impl RegionOptions {
    /// The default number of lanes for a region of this size: one for each 4 MiB, 64 to 1,024.
    #[must_use]
    pub fn lanes_for(capacity_bytes: u64) -> u32 {
        (capacity_bytes >> 22).clamp(64, 1024) as u32
    }
}

/// The offsets and sizes of all tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of memory, in total.
    pub capacity_bytes: u64,
    /// Inodes, the unused number 0 included.
    pub inode_count: u64,
    /// Cells for names.
    pub cell_count: u64,
    /// Hash buckets: chains of names.
    pub bucket_count: u64,
    /// Lanes.
    pub lane_count: u64,
    /// Open file descriptions, the unused number 0 included.
    pub description_count: u64,
    /// Slots for large files.
    pub slot_count: u64,
    /// Address space of each slot.
    pub slot_bytes: u64,
    /// Pages of the packed zone, of which few may have memory.
    pub packed_pages: u64,
    pub(crate) lanes_at: u64,
    pub(crate) descriptions_at: u64,
    pub(crate) inodes_at: u64,
    pub(crate) cells_at: u64,
    pub(crate) buckets_at: u64,
    /// One bit for each page of each slot: whether it has memory.
    pub(crate) slot_maps_at: u64,
    /// The inode that owns each slot.
    pub(crate) slot_owners_at: u64,
    /// For each packed page: its class, free pieces, neighbours in the class's list, a bit for each piece.
    pub(crate) packed_maps_at: u64,
    /// Bytes of all of the above, in whole pages.
    pub(crate) metadata_bytes: u64,
    pub(crate) packed_at: u64,
    pub(crate) pool_at: u64,
    pub(crate) slots_at: u64,
    /// Length of the region's file.
    pub(crate) file_bytes: u64,
}

/// Bytes of the record of a packed page.
pub(crate) const PACKED_MAP_BYTES: u64 = 64 + PAGE_BYTES / PIECE_BYTES_MIN / 8;

impl Layout {
    /// A layout with as many slots as the address space of processes allows.
    ///
    /// # Errors
    /// [`Error::Invalid`], which names the number that is out of its range.
    pub fn new(options: &RegionOptions) -> Result<Self> {
        Self::with_slots(options, SLOTS_MAX)
    }

    /// A layout with at most `slots_max` slots: some file systems do not allow files as long as all slots together.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn with_slots(options: &RegionOptions, slots_max: u64) -> Result<Self> {
        let capacity_bytes = options.capacity_bytes;
        if !(CAPACITY_BYTES_MIN..=CAPACITY_BYTES_MAX).contains(&capacity_bytes)
            || !capacity_bytes.is_multiple_of(PAGE_BYTES)
        {
            return Err(Error::Invalid {
                what: "a region has 16 MiB to 1 TiB, in steps of 2 MiB",
            });
        }
        let files_max = options
            .files_max
            .unwrap_or((capacity_bytes >> 15).min(FILES_MAX));
        if !(16..=FILES_MAX).contains(&files_max) {
            return Err(Error::Invalid {
                what: "a region has room for 16 to 16,777,216 files",
            });
        }
        if !(2..=LANES_MAX).contains(&options.lanes) {
            return Err(Error::Invalid {
                what: "a region has 2 to 4,096 lanes",
            });
        }
        let inode_count = files_max + 1;
        // A name of up to 16 bytes takes one cell, a longer one another cell for each further 56 bytes.
        let cell_count = 2 * inode_count;
        let bucket_count = inode_count.next_power_of_two();
        let lane_count = u64::from(options.lanes);
        // One description for each 32 KiB, within bounds.
        let description_count =
            (capacity_bytes >> 15).clamp(*DESCRIPTIONS.start(), *DESCRIPTIONS.end());
        let slot_bytes = capacity_bytes.next_power_of_two().max(SLOT_BYTES_MIN);
        let packed_pages = capacity_bytes / PAGE_BYTES;
        // Twice as many slots as could have a page: the other files consist of holes only.
        let slot_count = (2 * packed_pages)
            .clamp(SLOTS_MIN, SLOTS_MAX)
            .min(SLOTS_BYTES_MAX / slot_bytes)
            .min(slots_max);
        if slot_count == 0 {
            return Err(Error::Invalid {
                what: "a region has at least one slot for a large file",
            });
        }
        let mut next = PAGE_BYTES;
        let mut place = |bytes: u64| {
            let at = next;
            next += bytes.next_multiple_of(4096);
            at
        };
        let lanes_at = place(lane_count * LANE_BYTES);
        let descriptions_at = place(description_count * DESCRIPTION_BYTES);
        let inodes_at = place(inode_count * INODE_BYTES);
        let cells_at = place(cell_count * CELL_BYTES);
        let buckets_at = place(bucket_count * 8);
        let slot_maps_at = place(slot_count * slot_map_bytes(slot_bytes));
        let slot_owners_at = place(slot_count * 8);
        let packed_maps_at = place(packed_pages * PACKED_MAP_BYTES);
        let metadata_bytes = next.next_multiple_of(PAGE_BYTES);
        if metadata_bytes > capacity_bytes / 2 {
            return Err(Error::Invalid {
                what: "the tables would take more than half of the region: make it larger, or for fewer files or lanes",
            });
        }
        let align = |at: u64| at.next_multiple_of(SLOT_ALIGNMENT_BYTES);
        let packed_at = align(metadata_bytes);
        let pool_at = align(packed_at + packed_pages * PAGE_BYTES);
        let slots_at = (pool_at + capacity_bytes).next_multiple_of(slot_bytes);
        Ok(Self {
            capacity_bytes,
            inode_count,
            cell_count,
            bucket_count,
            lane_count,
            description_count,
            slot_count,
            slot_bytes,
            packed_pages,
            lanes_at,
            descriptions_at,
            inodes_at,
            cells_at,
            buckets_at,
            slot_maps_at,
            slot_owners_at,
            packed_maps_at,
            metadata_bytes,
            packed_at,
            pool_at,
            slots_at,
            file_bytes: slots_at + slot_count * slot_bytes,
        })
    }

    /// The tables, in their order: name, offset, bytes. All of them consist of words, except the log of a lane.
    #[must_use]
    pub fn tables(&self) -> [(&'static str, u64, u64); 9] {
        let slot_maps = self.slot_count * slot_map_bytes(self.slot_bytes);
        [
            ("superblock", 0, 4096),
            ("lanes", self.lanes_at, self.lane_count * LANE_BYTES),
            (
                "descriptions",
                self.descriptions_at,
                self.description_count * DESCRIPTION_BYTES,
            ),
            ("inodes", self.inodes_at, self.inode_count * INODE_BYTES),
            ("cells", self.cells_at, self.cell_count * CELL_BYTES),
            ("buckets", self.buckets_at, self.bucket_count * 8),
            ("slot_maps", self.slot_maps_at, slot_maps),
            ("slot_owners", self.slot_owners_at, self.slot_count * 8),
            (
                "packed_maps",
                self.packed_maps_at,
                self.packed_pages * PACKED_MAP_BYTES,
            ),
        ]
    }

    /// The number of pages for files, in total.
    #[must_use]
    pub fn data_pages(&self) -> u64 {
        (self.capacity_bytes - self.metadata_bytes) / PAGE_BYTES
    }

    pub(crate) fn lane(&self, lane: u64) -> u64 {
        debug_assert!(lane < self.lane_count);
        self.lanes_at + lane * LANE_BYTES
    }

    pub(crate) fn description(&self, description: u64) -> u64 {
        debug_assert!(description < self.description_count);
        self.descriptions_at + description * DESCRIPTION_BYTES
    }

    pub(crate) fn inode(&self, inode: u64) -> u64 {
        debug_assert!(inode < self.inode_count);
        self.inodes_at + inode * INODE_BYTES
    }

    pub(crate) fn cell(&self, cell: u64) -> u64 {
        debug_assert!(cell < self.cell_count);
        self.cells_at + cell * CELL_BYTES
    }

    pub(crate) fn slot(&self, slot: u64) -> u64 {
        debug_assert!(slot < self.slot_count);
        self.slots_at + slot * self.slot_bytes
    }

    /// The words with a bit for each page of a slot.
    pub(crate) fn slot_map(&self, slot: u64) -> u64 {
        self.slot_maps_at + slot * slot_map_bytes(self.slot_bytes)
    }

    pub(crate) fn packed_map(&self, page: u64) -> u64 {
        debug_assert!(page < self.packed_pages);
        self.packed_maps_at + page * PACKED_MAP_BYTES
    }
}

/// Bytes of the page map of a slot. A slot of 1 TiB has 524,288 pages.
fn slot_map_bytes(slot_bytes: u64) -> u64 {
    (slot_bytes / PAGE_BYTES).div_ceil(WORDS_IN_PAGE_MAP) * 8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(capacity_bytes: u64, files_max: Option<u64>) -> Result<Layout> {
        Layout::new(&RegionOptions {
            capacity_bytes,
            files_max,
            lanes: 64,
        })
    }

    #[test]
    fn areas_follow_each_other_and_fit_the_address_space() {
        for shift in 26..=40 {
            let layout = layout(1 << shift, None).unwrap();
            let areas = [
                (layout.lanes_at, layout.lane_count * LANE_BYTES),
                (
                    layout.descriptions_at,
                    layout.description_count * DESCRIPTION_BYTES,
                ),
                (layout.inodes_at, layout.inode_count * INODE_BYTES),
                (layout.cells_at, layout.cell_count * CELL_BYTES),
                (layout.buckets_at, layout.bucket_count * 8),
                (
                    layout.slot_maps_at,
                    layout.slot_count * slot_map_bytes(layout.slot_bytes),
                ),
                (layout.slot_owners_at, layout.slot_count * 8),
                (
                    layout.packed_maps_at,
                    layout.packed_pages * PACKED_MAP_BYTES,
                ),
                (layout.packed_at, layout.packed_pages * PAGE_BYTES),
                (layout.pool_at, layout.capacity_bytes),
                (layout.slots_at, layout.slot_count * layout.slot_bytes),
            ];
            let mut end = PAGE_BYTES;
            for (at, bytes) in areas {
                assert!(at >= end, "2^{shift}: an area at {at} begins before {end}");
                end = at + bytes;
            }
            assert_eq!(end, layout.file_bytes);
            assert!(layout.file_bytes < 1 << 46, "2^{shift}");
            assert!(layout.slot_count >= 32 && layout.slot_bytes >= layout.capacity_bytes);
            assert!(layout.slots_at.is_multiple_of(layout.slot_bytes));
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for (capacity_bytes, files_max) in [
            (0, None),
            (CAPACITY_BYTES_MIN - PAGE_BYTES, None),
            (CAPACITY_BYTES_MAX + PAGE_BYTES, None),
            (CAPACITY_BYTES_MIN + 1, None),
            (u64::MAX, None),
            (1 << 30, Some(0)),
            (1 << 30, Some(u64::MAX)),
            (CAPACITY_BYTES_MIN, Some(1 << 20)),
        ] {
            let made = layout(capacity_bytes, files_max);
            assert!(
                matches!(made, Err(Error::Invalid { .. })),
                "{capacity_bytes} {files_max:?}"
            );
        }
    }
}
