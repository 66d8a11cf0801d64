//! The simulated block device: memory that behaves like a cheap SD card.
//!
//! # Fault model
//!
//! **In order, without faults.** A read sees every earlier write. A write goes into the device's volatile
//! cache; a flush that returns `Ok` moves everything in the cache to the medium. Between two flushes the
//! device is free to write back any part of its cache, in any order, at any time.
//!
//! **Power cut.** Flushed content survives. Any subset of the unflushed writes reaches the medium, in any order. So of
//! two writes to one block either may stay. Each write may be *torn*: any subset of its 512-byte sectors arrives, not
//! merely a prefix. The sectors of a request of several blocks are as independent as those of several requests. A
//! single sector is atomic. The write request during which the power fails is one of the unflushed ones. A machine
//! without power answers every call with [`DeviceError::PowerLost`]. [`SimDevice::crash_image`] and the functions
//! beside it return what it left as a device of its own, switched on.
//!
//! **Discard** leaves the content undefined: by seed, the blocks read as zero from then on, or the request is
//! ignored and they keep their content. A discard that took effect is in the cache as a write is: a power
//! cut may lose it, keep it or tear it.
//!
//! **Silent faults and decay** ([`FaultPlan`], each with its probability per request, all drawn from the one seed). A
//! write is acknowledged and lost, lands whole in another place, or is stored with a flipped bit. A write fails after
//! it has stored nothing, all or some sectors. A read finds a bit decayed, which stays so, or fails once. A flush
//! fails: each unflushed write has then reached the medium or not, as after a power cut, and the machine goes on. A
//! request stalls. [`SimDevice::inject_bit_rot`] decays one chosen bit.
//!
//! **Full.** A device may promise more blocks than it has (a sparse file on a full file system, a worn card). Writes to
//! blocks never written before then fail with `ENOSPC`; blocks already held can be rewritten.
//!
//! **Not modelled:** a sector that tears inside; damage to blocks that no request touched, other than
//! by `inject_bit_rot`; two machines on one device.
//!
//! # Use
//!
//! The whole behaviour is a function of the seed and of the calls made. A clone is independent, and equal in everything
//! including its future choices. It costs about as much as a reference count, so a crash test can take tens of
//! thousands of images. Only an attached [`SimClock`] is shared. Unflushed writes are kept without a limit: a caller
//! that never flushes pays with memory.

use std::ops::Range;
use std::sync::Arc;

use super::clock::SimClock;
use super::fault::{FaultCounters, FaultPlan, LatencyModel};
use super::image::{Block, Image};
use super::random::Random;
use crate::block::{BLOCK_BYTES, BlockDevice, Counters, DeviceError, Geometry, SECTOR_BYTES};

const SECTORS_PER_BLOCK: usize = BLOCK_BYTES / SECTOR_BYTES;

/// The most blocks a simulated device has: 2^48, an exbibyte.
pub const BLOCK_COUNT_MAX: u64 = 1 << 48;

/// What a power cut leaves of one unflushed write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Nothing of it reached the medium.
    Lost,
    /// All of it did.
    Whole,
    /// The sectors whose bit is set did. Bit `i` is sector `i` of a request of up to 64 sectors (32 KiB). In a longer
    /// one each bit stands for equally many neighbouring sectors, rounded up.
    Torn {
        /// One bit per sector, the first sector lowest.
        sector_mask: u64,
    },
}

/// Place and size of one unflushed write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnflushedWrite {
    /// First block of the request.
    pub first_block: u64,
    /// Blocks in the request.
    pub block_count: u64,
    /// Whether it is a discard that took effect, which counts as a write of zeros.
    pub is_discard: bool,
}

#[derive(Clone)]
enum Change {
    Written(Vec<Arc<Block>>),
    /// A discard, with its number of blocks.
    Cleared(u64),
}

#[derive(Clone)]
struct Pending {
    first_block: u64,
    change: Change,
}

impl Pending {
    fn block_count(&self) -> u64 {
        match &self.change {
            Change::Written(blocks) => blocks.len() as u64,
            Change::Cleared(count) => *count,
        }
    }

    fn range(&self) -> Range<u64> {
        self.first_block..self.first_block + self.block_count()
    }

    fn apply_whole(&self, image: &mut Image) {
        match &self.change {
            Change::Written(blocks) => {
                for (block, content) in (self.first_block..).zip(blocks) {
                    image.set(block, Arc::clone(content));
                }
            }
            Change::Cleared(_) => image.clear(&self.range()),
        }
    }

    /// Applies the sectors for which `reached` returns `true`; it is called once for each sector, in order.
    fn apply_torn(
        &self,
        image: &mut Image,
        zero: &Arc<Block>,
        mut reached: impl FnMut(u64) -> bool,
    ) {
        for (index, block) in self.range().enumerate() {
            let content = match &self.change {
                Change::Written(blocks) => &blocks[index],
                Change::Cleared(_) => zero,
            };
            let first_sector = (index * SECTORS_PER_BLOCK) as u64;
            image.set_sectors(block, content, |sector| {
                reached(first_sector + sector as u64)
            });
        }
    }

    fn apply(&self, image: &mut Image, zero: &Arc<Block>, keep: Keep) {
        match keep {
            Keep::Lost => {}
            Keep::Whole => self.apply_whole(image),
            Keep::Torn { sector_mask } => {
                let sectors_per_bit = (self.block_count() * SECTORS_PER_BLOCK as u64)
                    .div_ceil(64)
                    .max(1);
                self.apply_torn(image, zero, |sector| {
                    sector_mask >> (sector / sectors_per_bit) & 1 == 1
                });
            }
        }
    }
}

/// The simulated device. See the module's text for what it does and what it may do.
#[derive(Clone)]
pub struct SimDevice {
    geometry: Geometry,
    /// What a read sees: the medium with everything in the cache on top.
    live: Image,
    /// What survives a power cut for certain.
    durable: Image,
    /// The cache: writes since the last flush, oldest first.
    unflushed: Vec<Arc<Pending>>,
    zero: Arc<Block>,
    random: Random,
    counters: Counters,
    faults: FaultCounters,
    plan: FaultPlan,
    latency: LatencyModel,
    clock: Option<SimClock>,
    /// Write requests until the power fails; the one that finds 1 here is the last.
    writes_until_cut: Option<u64>,
    is_powered: bool,
    is_flush_ignored: bool,
    blocks_held_max: Option<u64>,
}

impl SimDevice {
    /// A device of `block_count` blocks (at most [`BLOCK_COUNT_MAX`], more are cut off), all zero, switched
    /// on and free of faults.
    #[must_use]
    pub fn new(block_count: u64, seed: u64) -> Self {
        let block_count = block_count.min(BLOCK_COUNT_MAX);
        let image = Image::new(block_count);
        Self {
            geometry: Geometry { block_count },
            live: image.clone(),
            durable: image,
            unflushed: Vec::new(),
            zero: Block::new(&[0; BLOCK_BYTES]),
            random: Random::new(seed),
            counters: Counters::default(),
            faults: FaultCounters::default(),
            plan: FaultPlan::default(),
            latency: LatencyModel::default(),
            clock: None,
            writes_until_cut: None,
            is_powered: true,
            is_flush_ignored: false,
            blocks_held_max: None,
        }
    }

    // ---- power ----

    /// Writes (and discards that took effect) since the last flush; the number of choices that a power cut
    /// now would have.
    #[must_use]
    pub fn unflushed_count(&self) -> usize {
        self.unflushed.len()
    }

    /// Place and size of each unflushed write, oldest first; the index is the one that
    /// [`crash_image`](Self::crash_image) asks about.
    pub fn unflushed(&self) -> impl ExactSizeIterator<Item = UnflushedWrite> + '_ {
        self.unflushed.iter().map(|pending| UnflushedWrite {
            first_block: pending.first_block,
            block_count: pending.block_count(),
            is_discard: matches!(pending.change, Change::Cleared(_)),
        })
    }

    /// Cuts the power at the `n`-th write request from now (1 is the next one; 0 cuts at once; `None` calls
    /// it off). That request and every later call fail with [`DeviceError::PowerLost`]; the request itself
    /// counts and is among the unflushed writes.
    pub fn set_power_cut_after_writes(&mut self, n: Option<u64>) {
        if n == Some(0) {
            self.cut_power();
        }
        self.writes_until_cut = n.filter(|n| *n > 0);
    }

    /// Cuts the power now.
    pub fn cut_power(&mut self) {
        self.is_powered = false;
    }

    /// Whether the device answers calls.
    #[must_use]
    pub fn is_powered(&self) -> bool {
        self.is_powered
    }

    /// What a power cut at this moment leaves. `keep` decides about each unflushed write by its index; the writes reach
    /// the medium in the order in which they were made.
    ///
    /// The image is a device of its own: switched on, nothing unflushed, counters at zero, no power cut scheduled.
    /// Fault plan, latencies, clock and limits are those of this device.
    #[must_use]
    pub fn crash_image(&self, keep: &dyn Fn(usize) -> Keep) -> Self {
        let mut image = self.durable.clone();
        for (index, pending) in self.unflushed.iter().enumerate() {
            pending.apply(&mut image, &self.zero, keep(index));
        }
        self.rebooted(image)
    }

    /// As [`crash_image`](Self::crash_image), the unflushed writes reaching the medium in the order of the
    /// indices in `order`. An index that does not occur is lost; one beyond the unflushed writes is ignored.
    #[must_use]
    pub fn crash_image_in_order(&self, order: &[usize], keep: &dyn Fn(usize) -> Keep) -> Self {
        let mut image = self.durable.clone();
        for &index in order {
            if let Some(pending) = self.unflushed.get(index) {
                pending.apply(&mut image, &self.zero, keep(index));
            }
        }
        self.rebooted(image)
    }

    /// What one random power cut leaves: any subset of the unflushed writes, in any order, torn anywhere.
    /// The same `seed` on the same device gives the same image.
    #[must_use]
    pub fn crash_image_random(&self, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut image = self.durable.clone();
        self.settle(&mut image, &mut random);
        self.rebooted(image)
    }

    /// Every image in which each unflushed write arrived wholly or not at all, in order. There are `2^k` of them for
    /// `k` unflushed writes: the first has none of the writes, the last has all. The caller bounds `k`: of more than 63
    /// unflushed writes only the first 63 are varied, and the rest is lost.
    pub fn crash_images_all_subsets(&self) -> impl Iterator<Item = Self> + '_ {
        let subsets = 1_u64 << self.unflushed.len().min(63);
        (0..subsets).map(|subset| {
            self.crash_image(&|index| {
                if index < 63 && subset >> index & 1 == 1 {
                    Keep::Whole
                } else {
                    Keep::Lost
                }
            })
        })
    }

    /// Lets each unflushed write reach `image` or not, as the random numbers decide.
    fn settle(&self, image: &mut Image, random: &mut Random) {
        // Densities and order are drawn once per cut. Independent coins alone would almost never lose nothing, keep
        // nothing, or keep the order, and software errs in just these cases.
        let kept_ppm = [0, 150_000, 500_000, 850_000, 1_000_000][random.index(5)];
        let torn_ppm = [0, 300_000, 1_000_000][random.index(3)];
        let mut order: Vec<usize> = (0..self.unflushed.len()).collect();
        if random.coin() {
            random.shuffle(&mut order);
        }
        for index in order {
            let pending = &self.unflushed[index];
            if !random.chance_ppm(kept_ppm) {
                continue;
            }
            if random.chance_ppm(torn_ppm) {
                tear(pending, image, &self.zero, random);
            } else {
                pending.apply_whole(image);
            }
        }
    }

    fn rebooted(&self, image: Image) -> Self {
        let mut device = self.clone();
        device.live = image.clone();
        device.durable = image;
        device.unflushed = Vec::new();
        device.counters = Counters::default();
        device.faults = FaultCounters::default();
        device.writes_until_cut = None;
        device.is_powered = true;
        device
    }

    // ---- faults ----

    /// Sets the probabilities of random faults, from the next request on.
    pub fn set_fault_plan(&mut self, plan: FaultPlan) {
        self.plan = plan;
    }

    /// Lets requests take time: each one moves `clock` on by what `latency` says. Stalls of the fault plan
    /// move the same clock.
    pub fn set_latency(&mut self, clock: SimClock, latency: LatencyModel) {
        self.clock = Some(clock);
        self.latency = latency;
    }

    /// Makes the device hold at most `n` distinct blocks: a write that would need more fails wholly with
    /// `ENOSPC` and stores nothing. `None` lifts the limit. Blocks once written stay held until a discard
    /// takes effect.
    pub fn set_full_after_blocks(&mut self, n: Option<u64>) {
        self.blocks_held_max = n;
    }

    /// Makes the device lie about barriers: flushes are counted and acknowledged but move nothing to the medium. This
    /// shows that a crash oracle fails when it must.
    pub fn set_ignore_flush(&mut self, ignore: bool) {
        self.is_flush_ignored = ignore;
    }

    /// Flips a bit of `block` in every version that the device holds: medium, cache and unflushed writes. `bit` is 0 to
    /// 32,767, counted from the lowest bit of the first byte; a greater number is taken modulo 32,768. Blocks off the
    /// device are ignored.
    pub fn inject_bit_rot(&mut self, block: u64, bit: u32) {
        self.change_everywhere(block, &|content| content.with_flipped_bit(bit));
    }

    /// Faults committed so far.
    #[must_use]
    pub fn fault_counters(&self) -> FaultCounters {
        self.faults
    }

    // ---- direct access of a test to the medium ----

    /// The content of `block` as a read would see it; not counted, works without power. Zero off the device.
    #[must_use]
    pub fn peek(&self, block: u64) -> [u8; BLOCK_BYTES] {
        let mut bytes = [0; BLOCK_BYTES];
        if block < self.geometry.block_count {
            self.live.read(block, &mut bytes);
        }
        bytes
    }

    /// As [`peek`](Self::peek), what survives a power cut in which every unflushed write is lost.
    #[must_use]
    pub fn peek_durable(&self, block: u64) -> [u8; BLOCK_BYTES] {
        let mut bytes = [0; BLOCK_BYTES];
        if block < self.geometry.block_count {
            self.durable.read(block, &mut bytes);
        }
        bytes
    }

    /// Puts `data` at the start of `block` in every version that the device holds, so that each crash image has it too.
    /// The rest of the block stays. Not counted. Bytes beyond a block, and blocks off the device, are ignored.
    pub fn poke(&mut self, block: u64, data: &[u8]) {
        self.change_everywhere(block, &|content| {
            let mut bytes = *content.bytes();
            for (byte, new) in bytes.iter_mut().zip(data) {
                *byte = *new;
            }
            Block::new(&bytes)
        });
    }

    /// Hash of the whole content as reads see it: equal contents of equally large devices have equal hashes.
    /// Kept up to date by each write, so asking is free.
    #[must_use]
    pub fn image_hash(&self) -> u64 {
        self.live.hash()
    }

    /// Distinct blocks that were written and not cleared by a discard since.
    #[must_use]
    pub fn held_count(&self) -> u64 {
        self.live.held_count()
    }

    fn change_everywhere(&mut self, block: u64, change: &dyn Fn(&Block) -> Arc<Block>) {
        if block >= self.geometry.block_count {
            return;
        }
        for image in [&mut self.live, &mut self.durable] {
            let changed = change(image.get(block).unwrap_or(&self.zero));
            image.set(block, changed);
        }
        for slot in 0..self.unflushed.len() {
            if !self.unflushed[slot].range().contains(&block) {
                continue;
            }
            let pending = Arc::make_mut(&mut self.unflushed[slot]);
            // A discard has no content to change: it becomes the equivalent write of zeros.
            if let Change::Cleared(count) = pending.change {
                pending.change = Change::Written(vec![Arc::clone(&self.zero); count as usize]);
            }
            if let Change::Written(blocks) = &mut pending.change {
                let content = &mut blocks[(block - pending.first_block) as usize];
                *content = change(content);
            }
        }
    }

    // ---- the requests ----

    fn require_power(&self) -> Result<(), DeviceError> {
        if self.is_powered {
            Ok(())
        } else {
            Err(DeviceError::PowerLost)
        }
    }

    /// Draws one fault. Draws nothing if its probability is 0, so that a plan of zeros costs nothing.
    fn strikes(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.random.chance_ppm(ppm)
    }

    fn spend(&mut self, ns: u64) {
        let mut ns = ns;
        if self.strikes(self.plan.stall_ppm) {
            self.faults.stalls += 1;
            ns = ns.saturating_add(self.plan.stall_ns);
        }
        if let Some(clock) = &self.clock {
            clock.advance_ns(ns);
        }
    }

    /// Puts a change into the cache.
    fn cache(&mut self, first_block: u64, change: Change) {
        let pending = Pending {
            first_block,
            change,
        };
        pending.apply_whole(&mut self.live);
        self.unflushed.push(Arc::new(pending));
    }

    fn lacks_room_for(&self, first_block: u64, block_count: u64) -> bool {
        self.blocks_held_max.is_some_and(|max| {
            let new = (first_block..first_block + block_count)
                .filter(|block| self.live.get(*block).is_none());
            self.live.held_count() + new.count() as u64 > max
        })
    }

    /// A write that fails half-way: what it stored is decided now and then behaves like any other write.
    fn write_badly(&mut self, first_block: u64, blocks: Vec<Arc<Block>>) {
        let written = Pending {
            first_block,
            change: Change::Written(blocks),
        };
        let mut mixed = self.live.clone();
        match self.random.index(3) {
            0 => return,
            1 => written.apply_whole(&mut mixed),
            _ => tear(&written, &mut mixed, &self.zero, &mut self.random),
        }
        let outcome = written
            .range()
            .map(|block| Arc::clone(mixed.get(block).unwrap_or(&self.zero)));
        let change = Change::Written(outcome.collect());
        self.cache(first_block, change);
    }
}

/// Applies a random subset of a write's sectors: one run of them as often as scattered ones.
fn tear(pending: &Pending, image: &mut Image, zero: &Arc<Block>, random: &mut Random) {
    let sector_count = pending.block_count() * SECTORS_PER_BLOCK as u64;
    match random.index(3) {
        0 => {
            let end = random.below(sector_count + 1);
            pending.apply_torn(image, zero, |sector| sector < end);
        }
        1 => {
            let start = random.below(sector_count + 1);
            pending.apply_torn(image, zero, |sector| sector >= start);
        }
        _ => pending.apply_torn(image, zero, |_| random.coin()),
    }
}

fn io_error(operation: &'static str, first_block: u64, errno: i32) -> DeviceError {
    DeviceError::Io {
        operation,
        first_block,
        source: std::io::Error::from_raw_os_error(errno),
    }
}

impl BlockDevice for SimDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.require_power()?;
        let block_count = self.geometry.check(first_block, buffer.len())?;
        self.counters.count_read(block_count);
        self.spend(
            self.latency
                .read_ns
                .saturating_add(self.latency.read_block_ns.saturating_mul(block_count)),
        );
        if self.strikes(self.plan.read_error_ppm) {
            self.faults.read_errors += 1;
            return Err(io_error("read", first_block, libc::EIO));
        }
        if self.strikes(self.plan.read_rot_ppm) {
            self.faults.reads_rotten += 1;
            let block = first_block + self.random.below(block_count);
            let bit = self.random.below((BLOCK_BYTES * 8) as u64) as u32;
            self.inject_bit_rot(block, bit);
        }
        for (block, content) in (first_block..).zip(buffer.chunks_exact_mut(BLOCK_BYTES)) {
            self.live.read(block, content);
        }
        Ok(())
    }

    fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.require_power()?;
        let block_count = self.geometry.check(first_block, data.len())?;
        self.counters.count_write(block_count);
        let mut blocks: Vec<Arc<Block>> = data
            .as_chunks::<BLOCK_BYTES>()
            .0
            .iter()
            .map(Block::new)
            .collect();
        if let Some(left) = self.writes_until_cut.as_mut() {
            *left -= 1;
            if *left == 0 {
                self.cache(first_block, Change::Written(blocks));
                self.cut_power();
                return Err(DeviceError::PowerLost);
            }
        }
        self.spend(
            self.latency
                .write_ns
                .saturating_add(self.latency.write_block_ns.saturating_mul(block_count)),
        );
        if self.lacks_room_for(first_block, block_count) {
            self.faults.write_errors += 1;
            return Err(io_error("write", first_block, libc::ENOSPC));
        }
        if self.strikes(self.plan.write_error_ppm) {
            self.faults.write_errors += 1;
            self.write_badly(first_block, blocks);
            return Err(io_error("write", first_block, libc::EIO));
        }
        if self.strikes(self.plan.write_lost_ppm) {
            self.faults.writes_lost += 1;
            return Ok(());
        }
        let mut place = first_block;
        if self.strikes(self.plan.write_misdirected_ppm) {
            // Anywhere that the request fits, except its own place; a device without such a place stores it correctly.
            let other = self.random.below(self.geometry.block_count - block_count);
            if self.geometry.block_count > block_count {
                place = if other >= first_block {
                    other + 1
                } else {
                    other
                };
                self.faults.writes_misdirected += 1;
            }
        }
        if self.strikes(self.plan.write_rot_ppm) {
            self.faults.writes_rotten += 1;
            let index = self.random.index(blocks.len());
            let bit = self.random.below((BLOCK_BYTES * 8) as u64) as u32;
            blocks[index] = blocks[index].with_flipped_bit(bit);
        }
        self.cache(place, Change::Written(blocks));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        self.require_power()?;
        self.counters.flushes += 1;
        self.spend(self.latency.flush_ns);
        if self.strikes(self.plan.flush_error_ppm) {
            self.faults.flush_errors += 1;
            let mut settled = self.durable.clone();
            let mut random = self.random.fork();
            self.settle(&mut settled, &mut random);
            self.live = settled.clone();
            self.durable = settled;
            self.unflushed.clear();
            return Err(io_error("flush", 0, libc::EIO));
        }
        if self.is_flush_ignored {
            self.faults.flushes_ignored += 1;
            return Ok(());
        }
        self.durable = self.live.clone();
        self.unflushed.clear();
        Ok(())
    }

    fn discard(&mut self, first_block: u64, block_count: u64) -> Result<(), DeviceError> {
        self.require_power()?;
        self.geometry.check_blocks(first_block, block_count)?;
        self.counters.discards += 1;
        if self.random.coin() {
            self.cache(first_block, Change::Cleared(block_count));
        }
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn reset_write_blocks_max(&mut self) {
        self.counters.write_blocks_max = 0;
    }
}

impl std::fmt::Debug for SimDevice {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("SimDevice")
            .field("block_count", &self.geometry.block_count)
            .field("held_count", &self.held_count())
            .field("image_hash", &format_args!("{:#018x}", self.image_hash()))
            .field("unflushed", &self.unflushed.len())
            .field("is_powered", &self.is_powered)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
