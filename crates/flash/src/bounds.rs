//! How many device operations a call may cost: constants of the format, whatever the store holds.
//!
//! The sums below follow the code path by path; `tests/bounds.rs` drives random workloads on a counting
//! device and fails if any call exceeds them. They hold for a damaged name table too. A read that walks around
//! damaged data blocks may repeat its walk up to eight times, and a request for a table block that the device
//! itself fails is repeated copy by copy.

use base::block::{BLOCK_BYTES, BlockDevice};

use crate::block::{GROUP_BLOCKS_MAX, PAYLOAD_BYTES};
use crate::layout::{Layout, RUN_BLOCKS_MAX, TABLE_COPIES};
use crate::root::SLOTS_MAX;
use crate::store::Store;

/// Device operations of one call at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// Blocks read.
    pub reads: u64,
    /// Write requests, each one contiguous range of at most 16 KiB.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Blocks written in all requests together.
    pub blocks_written: u64,
}

impl Bound {
    const fn new(reads: u64, writes: u64, flushes: u64, blocks_written: u64) -> Self {
        Self {
            reads,
            writes,
            flushes,
            blocks_written,
        }
    }

    const fn plus(self, other: Self) -> Self {
        Self {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            flushes: self.flushes + other.flushes,
            blocks_written: self.blocks_written + other.blocks_written,
        }
    }

    const fn times(self, count: u64) -> Self {
        Self {
            reads: self.reads * count,
            writes: self.writes * count,
            flushes: self.flushes * count,
            blocks_written: self.blocks_written * count,
        }
    }
}

/// Two buckets, each with both copies.
const LOOKUP: Bound = Bound::new(2 * TABLE_COPIES, 0, 0, 0);
/// A record without a table block: two copies of the root.
const RECORD: Bound = Bound::new(0, 1, 0, 2);
/// What a table block adds: its place in the record, and then in the table, twice.
const IMAGE: Bound = Bound::new(0, 1, 0, 1 + TABLE_COPIES);
const FLUSH: Bound = Bound::new(0, 0, 1, 0);
/// Spilling the free list: unlink a chain and commit that, if no plain piece is left; write the list.
const SPILL: Bound = Bound::new(1, 0, 0, 0)
    .plus(RECORD)
    .plus(FLUSH)
    .plus(Bound::new(0, 1, 1, 1));
/// Allocating a run: load a spilled list, unlink a chain, each with its commit; unlink another ahead of need.
const ALLOCATE: Bound = Bound::new(1, 0, 0, 0)
    .plus(RECORD)
    .plus(FLUSH)
    .times(2)
    .plus(Bound::new(1, 0, 0, 0));
/// The blocks of a group, in two pieces.
const GROUP: Bound = Bound::new(0, 2, 0, GROUP_BLOCKS_MAX as u64);
/// Writing back the least recently used file: its table block, or that of another if it is damaged.
const EVICT: Bound = Bound::new(2 * TABLE_COPIES, 0, 0, 0).plus(IMAGE);
/// Reading the last block of the file.
const TAIL: Bound = Bound::new(1, 0, 0, 0);
/// The first group of an append to a file that was not being appended to.
const APPEND_FIRST: Bound = SPILL
    .plus(EVICT)
    .plus(TAIL)
    .plus(ALLOCATE)
    .plus(RECORD)
    .plus(GROUP)
    .plus(FLUSH);
/// Each further group of a long append.
const APPEND_MORE: Bound = SPILL.plus(ALLOCATE).plus(RECORD).plus(GROUP).plus(FLUSH);
const CREATE: Bound = LOOKUP.plus(RECORD).plus(IMAGE).plus(FLUSH);
const DELETE: Bound = SPILL.plus(LOOKUP).plus(RECORD).plus(IMAGE).plus(FLUSH);

/// The bounds of a store, functions of its format parameters alone.
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

    /// `replace` with `bytes` bytes.
    #[must_use]
    pub fn replace(&self, bytes: u64) -> Bound {
        let content = if bytes == 0 {
            Bound::default()
        } else {
            self.append(bytes)
        };
        // When it fails for want of space, what it wrote is freed: room for that, and a record.
        LOOKUP
            .plus(content)
            .plus(DELETE)
            .plus(SPILL)
            .plus(RECORD)
            .plus(FLUSH)
    }

    /// `read` of `bytes` bytes at any offset of a file of any length.
    #[must_use]
    pub fn read(&self, bytes: u64) -> Bound {
        let levels = u64::from(self.data_blocks.next_power_of_two().trailing_zeros());
        Bound::new(1 + levels + bytes.div_ceil(PAYLOAD_BYTES as u64), 0, 0, 0)
    }

    /// `list` of the whole name table.
    #[must_use]
    pub fn list(&self) -> Bound {
        Bound::new(self.bucket_count * TABLE_COPIES, 0, 0, 0)
    }

    /// Opening the store after anything, recovery included.
    #[must_use]
    pub fn mount(&self) -> Bound {
        // Each record once, and block by block if that fails.
        let superblocks_and_records = Bound::new(2 + 16 + 2, 0, 0, 0);
        let replay = Bound::new(TABLE_COPIES, 1, 1, TABLE_COPIES).times(2);
        let lanes = Bound::new(SLOTS_MAX as u64 * 3 * u64::from(RUN_BLOCKS_MAX), 0, 0, 0);
        superblocks_and_records
            .plus(FLUSH)
            .plus(replay)
            .plus(lanes)
            .plus(SPILL)
            .plus(RECORD.plus(FLUSH).times(2))
    }

    /// `close`.
    #[must_use]
    pub fn close(&self) -> Bound {
        RECORD.plus(FLUSH).plus(FLUSH)
    }

    /// Bytes of memory that an open store holds, fixed when it is opened.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// The table: operation, bound, for a person to read.
    #[must_use]
    pub fn rows(&self) -> Vec<(String, Bound)> {
        let atomic = crate::APPEND_ATOMIC_BYTES_MAX as u64;
        vec![
            ("open, stat".to_owned(), self.open()),
            ("create".to_owned(), self.create()),
            ("delete, any length".to_owned(), self.delete()),
            ("append 4096 bytes".to_owned(), self.append(4096)),
            (
                format!("append {atomic} bytes, the atomic maximum"),
                self.append(atomic),
            ),
            ("append, each further 15616 bytes".to_owned(), APPEND_MORE),
            ("replace with 4096 bytes".to_owned(), self.replace(4096)),
            ("read 4096 bytes at any offset".to_owned(), self.read(4096)),
            (
                "read, each further 3904 bytes".to_owned(),
                Bound::new(1, 0, 0, 0),
            ),
            ("list".to_owned(), self.list()),
            ("open the store, recovery included".to_owned(), self.mount()),
            ("close the store".to_owned(), self.close()),
        ]
    }
}

/// Groups that an append of `bytes` bytes makes at most.
fn groups(bytes: u64) -> u64 {
    // The first group may start behind a nearly full block.
    let payload = PAYLOAD_BYTES as u64;
    let group = GROUP_BLOCKS_MAX as u64 * payload;
    1 + (bytes + payload - 1).saturating_sub(group).div_ceil(group)
}

impl<D: BlockDevice> Store<D> {
    /// The most device operations that any call on this store costs.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        Bounds::of(&self.layout, self.memory_bytes())
    }

    fn memory_bytes(&self) -> u64 {
        let blocks = self.image.len() + self.group.len() + self.scratch.len() + 9 * BLOCK_BYTES;
        let addresses = self.addresses.memory_bytes();
        let tails = self.tails.len() * (size_of::<crate::append::TailCache>() + PAYLOAD_BYTES);
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
