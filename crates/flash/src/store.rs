//! The store in memory: formatting, opening, closing, and reading blocks of the table.
//!
//! Invariant: after a failed write or flush nothing more is written, because the content of the device is then unknown.

use base::block::{BLOCK_BYTES, BlockBuffer, BlockDevice, Counters, DeviceError};

use siphasher::sip::SipHasher24;
use std::hash::Hasher;

use crate::address_cache::AddressCache;
use crate::block::{GROUP_BLOCKS_MAX, Header, NAME_HINT_BYTES, NameHint};
use crate::error::{Error, Part, Result};
use crate::layout::{
    BLOCKS_MIN, CLUSTER_BLOCKS, COUNTER_END, FormatOptions, Layout, RECORD_PLACE_BLOCKS,
    SUPERBLOCK_FIRST, SUPERBLOCK_NEAR, TABLE_COPIES, superblock_far,
};
use crate::root::{FileState, IMAGES_MAX, ImageReferences, Piece, Root, SLOTS_MAX};
use crate::table::{Bucket, format_bucket};
use crate::tail_cache::TailCache;

/// Free pieces that may wait for a barrier at one time.
pub(crate) const QUARANTINE_MAX: usize = 8;
/// Maximum number of blocks of one request, 64 KiB. A run can be four times as long, and a request takes long on a
/// card.
pub(crate) const READ_BLOCKS_MAX: usize = 16;
/// Blocks of the scratch buffer.
const SCRATCH_BLOCKS: usize = 5;

/// Options for opening a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Files that may be open at one time; their memory is allocated when the store is opened.
    pub open_files_max: usize,
    /// Block addresses to remember, 16 bytes each: reads of remembered blocks need no walk.
    pub addresses_max: usize,
    /// Write nothing, not even the changes of recovery: recovery then happens in memory only.
    pub read_only: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            open_files_max: 64,
            addresses_max: 8192,
            read_only: false,
        }
    }
}

/// A handle of an open file. Valid until it is closed, or the file is deleted or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHandle {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// What the store knows about a file without reading its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Bytes in the file.
    pub length_bytes: u64,
    /// Blocks that hold them.
    pub blocks: u64,
    /// Blocks that the file owns, including those reserved for appends.
    pub blocks_owned: u64,
    /// Identity of the content: a replaced file gets a new one.
    pub file_id: u64,
}

impl Stat {
    pub(crate) fn of(state: &FileState) -> Self {
        Self {
            length_bytes: state.length(),
            blocks: u64::from(state.block_count()),
            blocks_owned: state.owned_blocks(),
            file_id: state.file_id,
        }
    }
}

/// Statistics of an open store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Blocks that files may own: those of the data region, minus a cluster that the free list needs.
    pub blocks_total: u64,
    /// Of these, blocks that no file owns.
    pub blocks_free: u64,
    /// Files in the store.
    pub files: u64,
    /// Files that the name table was sized for.
    pub files_max: u64,
    /// How often the store has been opened for writing.
    pub mounts: u64,
    /// Device operations since the store was opened.
    pub device: Counters,
    /// Damaged or outdated copies of table blocks that were replaced by the other copy since the store was opened.
    pub table_blocks_healed: u64,
    /// Free chains that could not be followed since the store was opened; `check` finds their blocks.
    pub free_chains_broken: u64,
}

/// The results of recovery when the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Blocks of the name table and of files written again from a commit record.
    pub blocks_replayed: u64,
    /// Files whose last append was found beyond the recorded tail.
    pub tails_advanced: u64,
    /// Unfinished replacements whose blocks were freed.
    pub replacements_undone: u64,
}

pub(crate) struct OpenFile {
    pub(crate) generation: u32,
    /// Handles on this file; 0 when the place is free.
    pub(crate) references: u32,
    pub(crate) bucket: u32,
    pub(crate) entry: u16,
    /// State of the file while no slot of the root knows it.
    pub(crate) state: FileState,
    /// Beginning of its name, stored in its first block.
    pub(crate) name_hint: NameHint,
}

/// The stages of the images between their change in memory and being durable in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImageStage {
    /// There are no images.
    None,
    /// The next record must carry them.
    Pending,
    /// A record carries them; after the next barrier they may be written in place.
    Recorded,
    /// Written in place since the last flush.
    InPlace,
}

/// A store on a device. See the crate's documentation for what it promises.
pub struct Store<D: BlockDevice> {
    pub(crate) device: D,
    pub(crate) layout: Layout,
    pub(crate) seed: u32,
    pub(crate) root: Root,
    /// The root at the start of the running call, restored when the device fails.
    pub(crate) root_before: Root,
    /// Number of the next group; grows with every append.
    pub(crate) sequence: u64,
    /// Free pieces that the coming barrier releases.
    pub(crate) quarantine: [Piece; QUARANTINE_MAX],
    pub(crate) quarantine_count: usize,
    /// Whether data or a record has been written since the last barrier.
    pub(crate) unflushed: bool,
    /// Whether the root in memory differs from the last record in a way that the next data write depends on.
    pub(crate) root_changed: bool,
    /// Blocks that a record carries, and their stage.
    pub(crate) images: BlockBuffer,
    pub(crate) image_references: ImageReferences,
    pub(crate) image_stage: ImageStage,
    /// Images of the previous call, written in place since the last flush.
    pub(crate) images_before: BlockBuffer,
    pub(crate) image_references_before: ImageReferences,
    /// Counts flushes: writes of the current epoch are not durable.
    pub(crate) epoch: u64,
    pub(crate) read_only: bool,
    pub(crate) failed: bool,
    pub(crate) tails: Vec<TailCache>,
    /// When each slot was last used.
    pub(crate) slot_used: [u64; SLOTS_MAX],
    pub(crate) slot_clock: u64,
    pub(crate) files: Vec<OpenFile>,
    pub(crate) addresses: AddressCache,
    /// A changed table block, twice.
    pub(crate) pair: BlockBuffer,
    pub(crate) record: BlockBuffer,
    pub(crate) group: BlockBuffer,
    /// For single block reads; block 0 data, blocks 1 and 2 buckets, 3 and 4 those of another name.
    pub(crate) scratch: BlockBuffer,
    /// Neighbouring blocks of a file, read in one request.
    pub(crate) neighbours: BlockBuffer,
    /// Blocks held in memory because their places do not hold them: recovery of a read-only store, or a failed device.
    pub(crate) overlay: Vec<(u32, Vec<u8>)>,
    pub(crate) recovery: Recovery,
    pub(crate) table_blocks_healed: u64,
    pub(crate) free_chains_broken: u64,
}

impl<D: BlockDevice> Store<D> {
    /// Creates an empty store on `device` and opens it. Everything on the device is lost.
    ///
    /// # Errors
    /// [`Error::Format`] when the device is too small, [`Error::Device`] when it fails.
    pub fn format(mut device: D, options: &FormatOptions) -> Result<Self> {
        let layout = Layout::plan(device.geometry(), options)?;
        // The superblock is invalid while the rest is written, so an interrupted format leaves no store.
        let zero = BlockBuffer::zeroed(1);
        for place in layout.superblocks() {
            device.write(place, &zero)?;
        }
        device.flush()?;
        let mut request = BlockBuffer::zeroed(GROUP_BLOCKS_MAX);
        for place in 0..2 {
            let first = layout.record_block(place);
            for part in (0..RECORD_PLACE_BLOCKS).step_by(GROUP_BLOCKS_MAX) {
                device.write(first + part, &request)?;
            }
        }
        let buckets_in_request = GROUP_BLOCKS_MAX as u32 / TABLE_COPIES as u32;
        for first in (0..layout.bucket_count).step_by(buckets_in_request as usize) {
            let count = buckets_in_request.min(layout.bucket_count - first);
            for bucket in 0..count {
                for copy in 0..TABLE_COPIES as usize {
                    let block = bucket as usize * TABLE_COPIES as usize + copy;
                    format_bucket(request.block_mut(block), first + bucket, &layout);
                }
            }
            let bytes = count as usize * TABLE_COPIES as usize * BLOCK_BYTES;
            device.write(layout.bucket_block(first), &request[..bytes])?;
        }
        let mut root = Root::new(&layout);
        root.announced = root.frontier;
        root.frontier += CLUSTER_BLOCKS;
        root.free_blocks -= u64::from(CLUSTER_BLOCKS);
        let no_images = ImageReferences::default();
        for copy in 0..2 {
            let block = request.block_mut(copy);
            root.encode(block, &[], &no_images, layout.checksum_seed());
        }
        device.write(layout.record_block(0), &request[..2 * BLOCK_BYTES])?;
        device.flush()?;
        let mut superblock = BlockBuffer::zeroed(1);
        layout.encode(&mut superblock);
        for place in layout.superblocks().into_iter().rev() {
            device.write(place, &superblock)?;
        }
        device.flush()?;
        Self::open(device, &OpenOptions::default())
    }

    /// Opens the store on `device`, running recovery.
    ///
    /// # Errors
    /// [`Error::NotAStore`], [`Error::Version`], [`Error::Damaged`] when a structure that every file depends on is
    /// damaged, [`Error::Device`].
    pub fn open(mut device: D, options: &OpenOptions) -> Result<Self> {
        let layout = read_superblock(&mut device)?;
        let mut store = Self::assemble(device, layout, options);
        store.recover()?;
        // Use the number in the record that recovery wrote.
        let written = store.root.record_sequence.min(COUNTER_END - 1);
        store.root.record_sequence = written;
        if !store.read_only {
            store.drop_claimed_announcement();
            store.settle_superblocks()?;
        }
        Ok(store)
    }

    /// Returns a store in memory that knows only the layout of the device's content.
    pub(crate) fn assemble(device: D, layout: Layout, options: &OpenOptions) -> Self {
        let seed = layout.checksum_seed();
        let root = Root::new(&layout);
        Self {
            device,
            seed,
            root_before: root.clone(),
            root,
            layout,
            sequence: 0,
            quarantine: [Piece::default(); QUARANTINE_MAX],
            quarantine_count: 0,
            unflushed: false,
            root_changed: false,
            images: BlockBuffer::zeroed(IMAGES_MAX),
            image_references: ImageReferences::default(),
            image_stage: ImageStage::None,
            images_before: BlockBuffer::zeroed(IMAGES_MAX),
            image_references_before: ImageReferences::default(),
            epoch: 0,
            read_only: options.read_only,
            failed: false,
            tails: (0..SLOTS_MAX).map(|_| TailCache::new()).collect(),
            slot_used: [0; SLOTS_MAX],
            slot_clock: 0,
            files: (0..options.open_files_max.max(1))
                .map(|_| OpenFile {
                    generation: 0,
                    references: 0,
                    bucket: 0,
                    entry: 0,
                    state: FileState::default(),
                    name_hint: [0; NAME_HINT_BYTES],
                })
                .collect(),
            addresses: AddressCache::new(options.addresses_max),
            pair: BlockBuffer::zeroed(TABLE_COPIES as usize),
            record: BlockBuffer::zeroed(IMAGES_MAX + 2),
            group: BlockBuffer::zeroed(GROUP_BLOCKS_MAX),
            scratch: BlockBuffer::zeroed(SCRATCH_BLOCKS),
            neighbours: BlockBuffer::zeroed(READ_BLOCKS_MAX),
            overlay: Vec::new(),
            recovery: Recovery::default(),
            table_blocks_healed: 0,
            free_chains_broken: 0,
        }
    }

    /// Writes all state to the device, so that the next opening has nothing to recover, and returns the device.
    /// Dropping the store instead is safe: the next opening then recovers as after a power cut.
    ///
    /// # Errors
    /// [`Error::Device`] when the device fails; no acknowledged data is lost by that.
    pub fn close(mut self) -> Result<D> {
        if !self.read_only && !self.failed {
            if !self.root.is_worn_out(self.sequence) {
                self.root.clean = true;
                self.write_record()?;
            }
            self.barrier()?;
            // The barrier may have written a table block in place.
            self.flush_device()?;
        }
        Ok(self.device)
    }

    /// Returns the statistics of the store.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let blocks_total = self.layout.data_blocks() - u64::from(CLUSTER_BLOCKS);
        Statistics {
            blocks_total,
            // For a short time there may be no cluster available for the list, although all are free.
            blocks_free: self.root.free_blocks.min(blocks_total),
            files: self.root.files,
            files_max: self.layout.files_max,
            mounts: self.root.mounts,
            device: self.device.counters(),
            table_blocks_healed: self.table_blocks_healed,
            free_chains_broken: self.free_chains_broken,
        }
    }

    /// Returns the results of recovery when this store was opened.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// Returns the regions of the device.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns a number that only this store has, different for each `purpose`, the same at every opening.
    ///
    /// It lets a layer above tell its own bytes from those of a sender, which cannot know the number. It is no defence
    /// against an attacker with access to the device.
    #[must_use]
    pub fn secret(&self, purpose: &str) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.layout.hash_key);
        // Names never hold a slash, so no name's hash is ever a secret.
        hasher.write(b"/");
        hasher.write(purpose.as_bytes());
        hasher.finish()
    }

    /// Returns whether the store has stopped taking writes because a device write failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Returns the device, to read its counters.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Returns the device, for tests and measurements. Writing through it breaks the store.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Begins a call that will write a record: first makes unflushed writes of earlier calls durable. This costs
    /// nothing extra, because no record may be written before that.
    pub(crate) fn begin_record(&mut self) -> Result<()> {
        self.begin_change()?;
        if self.unflushed {
            self.barrier_for_earlier_calls()?;
        }
        Ok(())
    }

    /// Begins a call that changes the store. Refuses it if the store takes no writes or its numbers are used up. The
    /// latter never happens in a store that only this program has written.
    pub(crate) fn begin_change(&mut self) -> Result<()> {
        self.begin_sync()?;
        if self.root.is_worn_out(self.sequence) {
            return Err(self.record_is_damaged());
        }
        Ok(())
    }

    /// Returns the error for a root whose content cannot be true.
    pub(crate) fn record_is_damaged(&self) -> Error {
        Error::Damaged {
            part: Part::Record,
            block: self.layout.record_block(u64::from(self.root.place)),
            offset: None,
        }
    }

    /// Begins a call that writes nothing new. Refuses it if the store takes no writes.
    pub(crate) fn begin_sync(&mut self) -> Result<()> {
        if self.read_only {
            Err(Error::ReadOnly)
        } else if self.failed {
            Err(Error::Failed)
        } else {
            // This 4 KiB copy lets the store read correctly if the device fails in this call. Earlier writes that were
            // not made durable are then lost, too.
            if !self.unflushed {
                self.root_before.clone_from(&self.root);
            }
            Ok(())
        }
    }

    // ---- the device, with failures remembered ----

    /// Writes the first `blocks` blocks of the group buffer from block `first` of it on.
    pub(crate) fn write_group(&mut self, address: u32, first: usize, blocks: usize) -> Result<()> {
        self.unflushed = true;
        let bytes = &self.group[first * BLOCK_BYTES..(first + blocks) * BLOCK_BYTES];
        match self.device.write(u64::from(address), bytes) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Reads data block `address` into the scratch buffer; `None` if it is not an intact block of a file.
    pub(crate) fn read_data_block(&mut self, address: u32) -> Result<Option<Header>> {
        read_through(
            &mut self.device,
            &self.overlay,
            u64::from(address),
            self.scratch.block_mut(0),
        )?;
        Ok(Header::open(self.scratch.block(0), address, self.seed))
    }

    /// Reads blocks into `neighbours` in one request. If that fails in any way, reads them one by one, because some may
    /// be in memory.
    pub(crate) fn read_neighbours(&mut self, address: u64, count: usize) -> Result<()> {
        let buffer = &mut self.neighbours[..count * BLOCK_BYTES];
        if read_through(&mut self.device, &self.overlay, address, buffer).is_ok() {
            return Ok(());
        }
        self.read_one_by_one(address, count)
    }

    /// Reads blocks into `neighbours`, each in a request of its own. A block that the device cannot read becomes zeros.
    pub(crate) fn read_one_by_one(&mut self, address: u64, count: usize) -> Result<()> {
        for number in 0..count {
            let block = self.neighbours.block_mut(number);
            let place = address + number as u64;
            let read = read_through(&mut self.device, &self.overlay, place, block);
            if !is_readable(read)? {
                block.fill(0);
            }
        }
        Ok(())
    }

    // ---- table blocks ----

    /// Reads bucket `bucket` into block `place` of the scratch buffer, from the newer intact copy.
    pub(crate) fn read_bucket(&mut self, bucket: u32, place: usize) -> Result<()> {
        let address = self.layout.bucket_block(bucket);
        // A block that the device cannot read is treated like one with wrong content. The other copy is used, and
        // without one only the names in this bucket are lost.
        self.read_neighbours(address, TABLE_COPIES as usize)?;
        // Both copies are written in one request, but a card may return an old block as if it were new.
        let sequence = |copy| {
            let block = self.neighbours.block(copy);
            Bucket::open(block, bucket, &self.layout).map(|bucket| bucket.record_sequence())
        };
        let (first, second) = (sequence(0), sequence(1));
        if first.is_none() && second.is_none() {
            return Err(Error::Damaged {
                part: Part::Table,
                block: address,
                offset: None,
            });
        }
        self.table_blocks_healed += u64::from(first != second);
        let newest = self.neighbours.block(usize::from(second > first));
        self.scratch.block_mut(place).copy_from_slice(newest);
        Ok(())
    }

    /// Returns the bucket that [`read_bucket`](Self::read_bucket) put at `place`.
    pub(crate) fn bucket_at(&self, bucket: u32, place: usize) -> Result<Bucket<'_>> {
        Bucket::open(self.scratch.block(place), bucket, &self.layout).ok_or(Error::Damaged {
            part: Part::Table,
            block: self.layout.bucket_block(bucket),
            offset: None,
        })
    }
}

/// Reads blocks from the device, except those that are held in memory instead.
pub(crate) fn read_through<D: BlockDevice>(
    device: &mut D,
    overlay: &[(u32, Vec<u8>)],
    address: u64,
    buffer: &mut [u8],
) -> std::result::Result<(), DeviceError> {
    let read = device.read(address, buffer);
    let mut replaced = false;
    for (place, bytes) in overlay {
        if let Some(offset) = u64::from(*place).checked_sub(address)
            && let Some(block) = buffer.chunks_exact_mut(BLOCK_BYTES).nth(offset as usize)
        {
            block.copy_from_slice(bytes);
            replaced = true;
        }
    }
    if replaced && buffer.len() == BLOCK_BYTES {
        return Ok(());
    }
    read
}

/// Returns whether a read succeeded. A block that the device cannot read is damaged, like one that fails its checksum.
/// Any error other than a failed read stays an error.
pub(crate) fn is_readable(read: std::result::Result<(), DeviceError>) -> Result<bool> {
    match read {
        Ok(()) => Ok(true),
        Err(DeviceError::Io { .. }) => Ok(false),
        Err(error) => Err(Error::Device(error)),
    }
}

/// Reads the superblock from any intact copy.
pub(crate) fn read_superblock<D: BlockDevice>(device: &mut D) -> Result<Layout> {
    let geometry = device.geometry();
    if geometry.block_count < BLOCKS_MIN {
        return Err(Error::NotAStore);
    }
    let mut block = BlockBuffer::zeroed(1);
    let mut worst = None;
    let places = [
        SUPERBLOCK_FIRST,
        SUPERBLOCK_NEAR,
        superblock_far(geometry.block_count),
    ];
    for place in places {
        let result = device.read(place, &mut block).map_err(Error::from);
        match result.and_then(|()| Layout::decode(&block, geometry)) {
            Ok(layout) => return Ok(layout),
            // `NotAStore` from one copy is less specific than the error of another copy.
            Err(found) => {
                if matches!(worst, None | Some(Error::NotAStore)) {
                    worst = Some(found);
                }
            }
        }
    }
    Err(worst.unwrap_or(Error::NotAStore))
}
