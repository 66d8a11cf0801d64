//! The maximum number of device operations of each call: constants of the format, independent of the store's content.
//!
//! The sums below follow the code path by path; `tests/bounds.rs` drives random workloads on a counting device and
//! fails if any call exceeds them. A call after unsynced calls may have to flush for them: that flush is counted. Only
//! damage costs more, in three cases. A read that walks around damaged data blocks may repeat its walk up to eight
//! times. Then it may follow the runs, usually one block of each, and walk again. A request that the device fails is
//! repeated; a long one is repeated without the guessed blocks, and then block by block. An append that finds nothing
//! ready, because a list of free blocks is damaged, commits up to two more times.

use base::block::BlockDevice;

use crate::block::{GROUP_BLOCKS_MAX, PAYLOAD_BYTES};
use crate::layout::{Layout, RUN_BLOCKS_MAX, TABLE_COPIES};
use crate::root::{IMAGES_MAX, SLOTS_MAX};
use crate::store::Store;

/// The maximum number of device operations of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// Read requests, each one contiguous range. Its limit is 64 KiB where a file is read, 20 KiB when a store is
    /// opened, and 16 KiB otherwise.
    pub reads: u64,
    /// Blocks read in all requests together.
    pub blocks_read: u64,
    /// Write requests, each one contiguous range of at most 16 KiB (20 KiB for a record with three blocks).
    pub writes: u64,
    /// Blocks written in all requests together.
    pub blocks_written: u64,
    /// Flushes.
    pub flushes: u64,
}

impl Bound {
    const fn new(
        reads: u64,
        blocks_read: u64,
        writes: u64,
        blocks_written: u64,
        flushes: u64,
    ) -> Self {
        Self {
            reads,
            blocks_read,
            writes,
            blocks_written,
            flushes,
        }
    }

    /// The sum of both calls, made one after the other.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            reads: self.reads + other.reads,
            blocks_read: self.blocks_read + other.blocks_read,
            writes: self.writes + other.writes,
            blocks_written: self.blocks_written + other.blocks_written,
            flushes: self.flushes + other.flushes,
        }
    }

    const fn times(self, count: u64) -> Self {
        Self {
            reads: self.reads * count,
            blocks_read: self.blocks_read * count,
            writes: self.writes * count,
            blocks_written: self.blocks_written * count,
            flushes: self.flushes * count,
        }
    }
}

/// Two buckets, each with both copies: one request for each bucket.
const LOOKUP: Bound = Bound::new(2, 2 * TABLE_COPIES, 0, 0, 0);
/// A record without images: two copies of the root.
const RECORD: Bound = Bound::new(0, 0, 1, 2, 0);
/// The cost of a table block: written once in the record, and then twice in the table.
const TABLE_IMAGE: Bound = Bound::new(0, 0, 1, 1 + TABLE_COPIES, 0);
/// The cost of a data block.
const DATA_IMAGE: Bound = Bound::new(0, 0, 1, 2, 0);
const FLUSH: Bound = Bound::new(0, 0, 0, 0, 1);
/// A record that spills a list of free pieces holds the list and a place for an image.
const SPILL: Bound = Bound::new(0, 0, 0, 2, 0);
const READ: Bound = Bound::new(1, 1, 0, 0, 0);
/// A block of a longer read. Blocks are guessed only where seven are known, so at most nine of the 16 blocks in a
/// request are transferred without use.
const READ_MORE: Bound = Bound::new(1, 3, 0, 0, 0);
/// The blocks of a group, contiguous.
const GROUP: Bound = Bound::new(0, 0, 1, GROUP_BLOCKS_MAX as u64, 0);
/// Writing back the least recently used file: its table block.
const EVICT: Bound = Bound::new(1, TABLE_COPIES, 0, 0, 0).plus(TABLE_IMAGE);
/// The first group of an append: write back another file, read the last block, reclaim a free piece, record, group,
/// flush. A second piece is reclaimed when no cluster is reserved for the next list. Unflushed writes of an earlier
/// call cost one more flush.
const APPEND_FIRST: Bound = EVICT
    .plus(READ)
    .plus(READ)
    .plus(READ)
    .plus(RECORD)
    .plus(SPILL)
    .plus(GROUP)
    .plus(FLUSH)
    .plus(FLUSH);
/// Each further group of a long append.
const APPEND_MORE: Bound = READ
    .plus(READ)
    .plus(RECORD)
    .plus(SPILL)
    .plus(GROUP)
    .plus(FLUSH)
    .plus(FLUSH);
const CREATE: Bound = LOOKUP
    .plus(RECORD)
    .plus(SPILL)
    .plus(TABLE_IMAGE)
    .plus(FLUSH)
    .plus(FLUSH);
/// Like `CREATE`, plus a read for a chain if no cluster is left for the next list of free pieces.
const DELETE: Bound = CREATE.plus(READ);
/// A record with two images cannot spill a list. After many such calls in a row, one call makes room with its own
/// record.
const ROOM: Bound = READ.plus(RECORD).plus(SPILL).plus(FLUSH);
/// A record with the maximum number of data blocks.
const OVERWRITE_RECORD: Bound = RECORD.plus(DATA_IMAGE.times(IMAGES_MAX as u64)).plus(FLUSH);
const RENAME: Bound = DELETE.plus(LOOKUP).plus(TABLE_IMAGE).plus(ROOM);

/// The bounds of a store; they depend only on its format parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    data_blocks: u64,
    bucket_count: u64,
    memory_bytes: u64,
}

impl Bounds {
    /// Finding a name: `open_file`, `stat`.
    #[must_use]
    pub fn open(&self) -> Bound {
        LOOKUP
    }

    /// `create`.
    #[must_use]
    pub fn create(&self) -> Bound {
        CREATE
    }

    /// `delete`, of a file of any length.
    #[must_use]
    pub fn delete(&self) -> Bound {
        DELETE
    }

    /// `append` of `bytes` bytes to an open file.
    #[must_use]
    pub fn append(&self, bytes: u64) -> Bound {
        APPEND_FIRST.plus(APPEND_MORE.times(groups(bytes).saturating_sub(1)))
    }

    /// `rename`, whether or not it replaces a file.
    #[must_use]
    pub fn rename(&self) -> Bound {
        RENAME
    }

    /// `replace` with `bytes` bytes.
    #[must_use]
    pub fn replace(&self, bytes: u64) -> Bound {
        let content = if bytes == 0 {
            Bound::default()
        } else {
            self.append(bytes)
        };
        // If the call fails for lack of space, the written blocks are freed: one more record.
        LOOKUP
            .plus(content)
            .plus(DELETE)
            .plus(RECORD)
            .plus(SPILL)
            .plus(FLUSH)
    }

    /// `write_at` of `bytes` bytes within a file.
    #[must_use]
    pub fn overwrite(&self, bytes: u64) -> Bound {
        let blocks = blocks_touched(bytes);
        self.change_within(blocks, blocks.div_ceil(IMAGES_MAX as u64))
            .plus(FLUSH)
    }

    /// Returns the cost of changing `blocks` blocks of a file, which are first read in `rows` rows of neighbours.
    fn change_within(&self, blocks: u64, rows: u64) -> Bound {
        let images = IMAGES_MAX as u64;
        let records = blocks.div_ceil(images);
        // Blocks at known places are read in one request, without result if they have moved. Each further record starts
        // by reading the blocks that did not fit into the previous one.
        let row = self
            .seek()
            .plus(READ.times(images - 1))
            .plus(Bound::new(1, images, 0, 0, 0));
        row.times(rows + records.saturating_sub(1))
            .plus(OVERWRITE_RECORD.times(records))
    }

    /// `write_at` of `bytes` bytes that begins `gap` bytes behind the end of the file.
    #[must_use]
    pub fn write_beyond(&self, gap: u64, bytes: u64) -> Bound {
        // Zeros are appended in pieces of a group's length. Each piece may take two groups.
        let group = GROUP_BLOCKS_MAX as u64 * PAYLOAD_BYTES as u64;
        let pieces = 2 * gap.div_ceil(group);
        self.append(bytes).plus(APPEND_MORE.times(pieces))
    }

    /// `write_pieces_nosync` or `write_pieces_at_once` to a file of `length` bytes. `pieces` holds the offset and the
    /// length in bytes of each piece.
    #[must_use]
    pub fn write_pieces(&self, length: u64, pieces: &[(u64, u64)]) -> Bound {
        let (mut blocks, mut rows) = (0, 0);
        let mut end = length;
        let mut bound = FLUSH;
        for (offset, bytes) in pieces {
            let touched = blocks_touched(length.saturating_sub(*offset).min(*bytes));
            blocks += touched;
            rows += touched.div_ceil(IMAGES_MAX as u64);
            // Behind the old end of the file, this is one write after the other.
            let (from, to) = (length.max(*offset), offset.saturating_add(*bytes));
            if from < to.min(end) {
                bound = bound.plus(self.overwrite(to.min(end) - from));
            }
            if to > end && *bytes > 0 {
                let gap = from.saturating_sub(end);
                bound = bound.plus(self.write_beyond(gap, to - from.max(end)));
                end = to;
            }
        }
        if end > length {
            // At once: before anything is appended, the code must know that the rest fits into one record. The append
            // must be durable even if no record follows.
            rows *= 2;
            bound = bound.plus(FLUSH);
        }
        bound.plus(self.change_within(blocks, rows))
    }

    /// `truncate` to a length that is shorter by `bytes` bytes. It finds the new end, and reads once for each run of
    /// blocks that is cut off. Each run holds at least one block.
    #[must_use]
    pub fn truncate(&self, bytes: u64) -> Bound {
        let runs = bytes.div_ceil(PAYLOAD_BYTES as u64) + 2;
        let halving = u64::from(RUN_BLOCKS_MAX.ilog2()) + 1;
        self.seek()
            .plus(READ.times(runs + halving))
            .plus(Bound::new(1, TABLE_COPIES, 0, 0, 0))
            .plus(RECORD)
            .plus(SPILL)
            .plus(DATA_IMAGE)
            .plus(TABLE_IMAGE)
            .plus(FLUSH)
            .plus(FLUSH)
            .plus(READ)
            .plus(ROOM)
    }

    /// `sync`.
    #[must_use]
    pub fn sync(&self) -> Bound {
        FLUSH
    }

    /// Finding a block of a file.
    fn seek(&self) -> Bound {
        let levels = u64::from(self.data_blocks.next_power_of_two().trailing_zeros());
        READ.times(1 + levels)
    }

    /// `read` of `bytes` bytes at any offset of a file of any length.
    #[must_use]
    pub fn read(&self, bytes: u64) -> Bound {
        self.seek()
            .plus(READ_MORE.times(bytes.div_ceil(PAYLOAD_BYTES as u64)))
    }

    /// `list` of the whole name table.
    #[must_use]
    pub fn list(&self) -> Bound {
        Bound::new(self.bucket_count, self.bucket_count * TABLE_COPIES, 0, 0, 0)
    }

    /// Opening the store in any state, recovery included.
    #[must_use]
    pub fn mount(&self) -> Bound {
        let images = IMAGES_MAX as u64;
        // The superblocks are read, compared and made equal; a superblock left by an interrupted growth is included.
        let superblocks = READ
            .times(3)
            .plus(READ.plus(Bound::new(0, 0, 1, 1, 1)).times(4));
        // Both places, and both clusters that their records may have announced.
        let records = Bound::new(1, images + 2, 0, 0, 0).times(4);
        let complete = READ.times(TABLE_COPIES * images).times(4);
        let replay = READ
            .times(TABLE_COPIES)
            .plus(Bound::new(0, 0, 1, TABLE_COPIES, 0))
            .times(2 * images);
        let blocks = u64::from(RUN_BLOCKS_MAX);
        let requests = blocks.div_ceil(GROUP_BLOCKS_MAX as u64);
        let lanes = Bound::new(requests, blocks, 0, 0, 0).times(3 * SLOTS_MAX as u64);
        // The list of a spilling record whose list block is torn.
        let list = Bound::new(0, 0, 1, 1, 0);
        superblocks
            .plus(list)
            .plus(records)
            .plus(complete)
            .plus(FLUSH)
            .plus(replay)
            .plus(FLUSH)
            .plus(lanes)
            .plus(RECORD.plus(SPILL).plus(FLUSH).times(2))
    }

    /// `close`.
    #[must_use]
    pub fn close(&self) -> Bound {
        RECORD.plus(FLUSH).plus(FLUSH).plus(FLUSH)
    }

    /// Bytes of memory that an open store holds, fixed when it is opened.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// The table of operations and bounds, for people to read.
    #[must_use]
    pub fn rows(&self) -> Vec<(String, Bound)> {
        let atomic = crate::APPEND_ATOMIC_BYTES_MAX as u64;
        let apart = 100_000;
        let three = [(0, 28), (apart, 28), (2 * apart, 28)];
        vec![
            ("open, stat".to_owned(), self.open()),
            ("create".to_owned(), self.create()),
            ("delete, any length".to_owned(), self.delete()),
            ("rename".to_owned(), self.rename()),
            ("append 4096 bytes".to_owned(), self.append(4096)),
            (
                format!("append {atomic} bytes, the atomic maximum"),
                self.append(atomic),
            ),
            ("append, each further 15616 bytes".to_owned(), APPEND_MORE),
            ("replace with 4096 bytes".to_owned(), self.replace(4096)),
            (
                "overwrite 4096 bytes within a file".to_owned(),
                self.overwrite(4096),
            ),
            (
                "write 28 bytes to each of three places within a file".to_owned(),
                self.write_pieces(3 * apart, &three),
            ),
            (
                "write 4096 bytes, 4096 behind the end".to_owned(),
                self.write_beyond(4096, 4096),
            ),
            ("truncate by 4096 bytes".to_owned(), self.truncate(4096)),
            ("sync".to_owned(), self.sync()),
            ("read 4096 bytes at any offset".to_owned(), self.read(4096)),
            ("read, each further 3904 bytes".to_owned(), READ_MORE),
            ("list".to_owned(), self.list()),
            ("open the store, recovery included".to_owned(), self.mount()),
            ("close the store".to_owned(), self.close()),
        ]
    }
}

/// Returns the maximum number of blocks that `bytes` bytes within a file touch.
fn blocks_touched(bytes: u64) -> u64 {
    if bytes == 0 {
        0
    } else {
        (bytes - 1).div_ceil(PAYLOAD_BYTES as u64) + 1
    }
}

/// Returns the maximum number of groups that an append of `bytes` bytes makes.
fn groups(bytes: u64) -> u64 {
    // The first group may start behind a nearly full block.
    let payload = PAYLOAD_BYTES as u64;
    let group = GROUP_BLOCKS_MAX as u64 * payload;
    1 + (bytes + payload - 1).saturating_sub(group).div_ceil(group)
}

impl<D: BlockDevice> Store<D> {
    /// Returns the maximum number of device operations of each call on this store.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        Bounds::of(&self.layout, self.memory_bytes())
    }

    fn memory_bytes(&self) -> u64 {
        let buffers = [
            &self.images,
            &self.images_before,
            &self.pair,
            &self.record,
            &self.group,
            &self.scratch,
            &self.neighbours,
        ];
        let blocks: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let addresses = self.addresses.memory_bytes();
        let tails = self.tails.len() * (size_of::<crate::tail_cache::TailCache>() + PAYLOAD_BYTES);
        let files = self.files.len() * size_of::<crate::store::OpenFile>();
        (size_of::<Self>() + blocks + addresses + tails + files) as u64
    }
}

impl Bounds {
    fn of(layout: &Layout, memory_bytes: u64) -> Self {
        Self {
            data_blocks: layout.data_blocks(),
            bucket_count: u64::from(layout.bucket_count),
            memory_bytes,
        }
    }
}
