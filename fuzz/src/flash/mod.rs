//! The bodies of the fuzz targets of the flash store: damage an image, open it, use it.
//!
//! **Holds:** the images, the damage, the watched device, and the conditions that must hold for any image: no panic, no
//! access outside of the device, no call beyond its limit (times a stated factor if there is damage), no write by a
//! store that is open for reading. Unless the fuzzer has made checksums valid again, also: no byte is returned that was
//! never written to that file at that position, and no store is left that cannot be opened again.
//!
//! **Must not know:** the fuzzer. A test of `flash` includes this file and runs the committed corpora through it on the
//! stable toolchain.
//!
//! **Invariants:** a function depends on its input alone.
//!
//! **Files:** this one the input; `images.rs` stores after different histories; `format.rs` fields and checksums;
//! `device.rs` the watched device; `session.rs` calls and their limits; `history.rs` everything ever written.

mod device;
pub(crate) mod format;
mod history;
mod images;
mod session;

use base::block::{BLOCK_BYTES, BlockDevice};
use base::sim::SimDevice;
use flash::{Error, OpenOptions, RepairReport, Store};

use device::Watched;
use format::{Block, Kind, field, fields, kind_of, records, seal, set_field};
use history::History;
use images::{EVERYTHING, IDENTITY, Image, NAME_BYTES_MAX, content, images};
use session::{Call, Session, Trust, repair_allowance};

/// Largest number of changes of the image, and of calls, in one input.
const CHANGES_MAX: usize = 24;
const CALLS_MAX: usize = 24;
/// Number of blocks of the smallest device for raw bytes; the first byte of the input is added to it.
const RAW_BLOCKS_MIN: u64 = 40;
/// Largest size of the data of one call, and largest offset, in bytes.
const CALL_BYTES_MAX: u64 = 70_000;
const OFFSET_MAX: u64 = 1 << 20;

/// Changes one of a few images and makes calls on it. The input: which image; how to open it; then a sequence of
/// changes and calls, each starting with a byte that selects it. Changes are made first, wherever they are in the
/// input.
pub(crate) fn flash_image(data: &[u8]) {
    let mut input = Input { rest: data };
    let all = images();
    let image = &all[usize::from(input.byte()) % all.len()];
    let way = Way::take(&mut input);
    let mut device = image.device.clone();
    let mut unreadable = Vec::new();
    let mut trust = Trust::default();
    let mut calls = Vec::new();
    let mut changes = 0;
    while !input.rest.is_empty() {
        let kind = input.byte();
        if kind < 128 {
            changes += 1;
            let mut change = Change {
                image,
                device: &mut device,
                unreadable: &mut unreadable,
                trust: &mut trust,
            };
            change.take(kind, &mut input, changes <= CHANGES_MAX);
        } else {
            let call = take_call(kind, &mut input, image);
            if calls.len() < CALLS_MAX {
                calls.push(call);
            }
        }
    }
    exercise(
        Watched::new(device, unreadable),
        &image.history,
        trust,
        way,
        &calls,
    );
}

/// Uses raw bytes as the first blocks of a device. The first byte of the input gives its number of blocks.
pub(crate) fn flash_raw(data: &[u8]) {
    let Some((&blocks_more, bytes)) = data.split_first() else {
        return;
    };
    let mut device = SimDevice::new(RAW_BLOCKS_MIN + u64::from(blocks_more), 1);
    for (place, bytes) in (0..).zip(bytes.chunks(BLOCK_BYTES)) {
        device.poke(place, bytes);
    }
    let trust = Trust {
        is_damaged: true,
        is_forged: true,
        is_unreadable: false,
    };
    let calls = [
        Call::Append("one".to_owned(), content(1, 9_000)),
        Call::WriteAt("one".to_owned(), 3_000, content(2, 3_000)),
        Call::Rename("one".to_owned(), "two".to_owned()),
        Call::Delete("two".to_owned()),
    ];
    let device = Watched::new(device, Vec::new());
    exercise(device, &History::default(), trust, Way::default(), &calls);
}

/// How a store is opened and closed.
#[derive(Clone, Copy, Default)]
struct Way {
    /// Whether the caches for files and addresses are small.
    is_narrow: bool,
    /// The power is cut at this write of the calls, with this seed.
    cut: Option<(u64, u64)>,
    /// Whether the process is killed after the last call.
    is_killed: bool,
    /// Whether the image is repaired before it is opened for writing.
    is_repaired: bool,
}

impl Way {
    fn take(input: &mut Input<'_>) -> Self {
        let bits = input.byte();
        Self {
            is_narrow: bits & 1 != 0,
            is_killed: bits & 2 != 0,
            is_repaired: bits & 8 != 0,
            cut: (bits & 4 != 0).then(|| (1 + u64::from(input.byte() % 64), u64::from(bits >> 3))),
        }
    }

    fn open(
        self,
        device: &mut Watched,
        read_only: bool,
        history: History,
        trust: Trust,
    ) -> Result<Session<'_>, Error> {
        let options = OpenOptions {
            open_files_max: if self.is_narrow { 2 } else { 40 },
            addresses_max: if self.is_narrow { 5 } else { 500 },
            read_only,
        };
        Session::open(device, &options, history, trust, images()[0].mount)
    }
}

/// Reads everything, then writes, then reads everything again.
fn exercise(mut device: Watched, history: &History, trust: Trust, way: Way, calls: &[Call]) {
    match way.open(&mut device, true, history.clone(), trust) {
        Ok(mut session) => {
            session.inspect();
            for call in calls {
                let _ = session.call(call);
            }
        }
        Err(error) => assert!(trust.is_damaged, "{error}"),
    }
    let repaired = way
        .is_repaired
        .then(|| repair(&mut device, trust))
        .flatten();
    let mut session = match way.open(&mut device, false, history.clone(), trust) {
        Ok(mut session) => {
            if let Some(report) = repaired {
                session.expect_repaired(&report);
            }
            session
        }
        Err(error) => {
            assert!(
                trust.is_damaged && (trust.is_forged || repaired.is_none()),
                "{error}"
            );
            return;
        }
    };
    if let Some((writes, _)) = way.cut {
        let device = session.store.device_mut();
        device.inner.set_power_cut_after_writes(Some(writes));
    }
    for call in calls {
        let _ = session.call(call);
    }
    session.inspect();
    let history = if way.is_killed {
        session.history
    } else {
        let (history, closed) = session.close();
        assert!(
            closed.is_ok() || !device.inner.is_powered(),
            "close: {closed:?}"
        );
        history
    };
    if let Some((_, seed)) = way.cut
        && !device.inner.is_powered()
    {
        device.inner = device.inner.crash_image_random(seed);
    }
    device.inner.set_power_cut_after_writes(None);
    match way.open(&mut device, false, history, trust) {
        Ok(mut session) => session.inspect(),
        Err(error) => assert!(trust.is_forged, "opened before, but not again: {error}"),
    }
}

/// Repairs the image, if possible.
fn repair(device: &mut Watched, trust: Trust) -> Option<RepairReport> {
    let layout = {
        device.allow("open", EVERYTHING);
        device.is_read_only = true;
        let options = OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        };
        let opened = Store::open(&mut *device, &options);
        opened.map(|store| store.layout().clone())
    };
    let blocks = device.inner.geometry().block_count;
    // Without a root, the limit assumes the largest possible table.
    let (buckets, entries) = layout.map_or((blocks / 2, 64 * blocks), |layout| {
        let buckets = u64::from(layout.bucket_count);
        (buckets, buckets * u64::from(layout.entries_per_bucket))
    });
    device.is_read_only = false;
    device.allow("repair", repair_allowance(blocks, buckets, entries, trust));
    let repaired = Store::repair(&mut *device, &mut |_| {}).map(|(report, _)| report);
    match repaired {
        Ok(report) => {
            // A power cut leaves incomplete copies of records.
            let is_sound =
                report.findings.iter().all(|finding| finding.mended) && !report.data_lost;
            assert!(trust.is_damaged || is_sound, "{report:?}");
            assert!(report.findings.len() as u64 <= report.findings_total);
            Some(report)
        }
        Err(error) => {
            assert!(trust.is_damaged, "{error}");
            None
        }
    }
}

/// A change of the image.
struct Change<'a> {
    image: &'a Image,
    device: &'a mut SimDevice,
    unreadable: &'a mut Vec<u64>,
    trust: &'a mut Trust,
}

impl Change<'_> {
    /// Takes one change from the input and makes it, if it is wanted.
    fn take(&mut self, kind: u8, input: &mut Input<'_>, wanted: bool) {
        let place = self.place(input);
        let mut block = self.device.peek(place);
        let old = block;
        let (is_sealed, has_twins) = (kind & 8 != 0, kind & 16 != 0);
        match kind & 7 {
            0 => {
                let offset = usize::from(input.u16()) % BLOCK_BYTES;
                block[offset] ^= input.byte().max(1);
            }
            1 => {
                let offset = usize::from(input.u16()) % BLOCK_BYTES;
                let count = 1 + usize::from(input.byte() % 16);
                for byte in block[offset..].iter_mut().take(count) {
                    *byte = input.byte();
                }
            }
            2 => {
                let from = usize::from(input.byte()) * 16;
                block[from..].fill(input.byte());
            }
            3 => {
                block = self
                    .device
                    .peek(u64::from(input.u16()) % self.image.block_count)
            }
            4 => {
                let earlier = &self.image.earlier;
                let index = usize::from(input.byte());
                if let Some(device) = earlier.get(index % earlier.len().max(1)) {
                    block = device.peek(place);
                }
            }
            5 if !is_sealed => {
                if wanted {
                    self.unreadable.push(place);
                    self.trust.is_damaged = true;
                    self.trust.is_unreadable = true;
                }
                return;
            }
            6 => copy_record(&mut block, input),
            _ => {
                let given = self.field_value(&block, input);
                if let Some((field, value)) = given {
                    set_field(&mut block, field, value);
                }
                if is_sealed && has_twins && wanted && kind_of(&old) == Some(Kind::Data) {
                    self.change_run(&old, given);
                    return;
                }
            }
        }
        if !wanted || block == old {
            return;
        }
        self.trust.is_damaged = true;
        if let Some(kind) = kind_of(&block).filter(|_| is_sealed) {
            seal(&mut block, kind, &IDENTITY);
            self.trust.is_forged = true;
        }
        let near = place.saturating_sub(2)..(place + 6).min(self.image.block_count);
        let twins = near.filter(|other| has_twins && self.device.peek(*other) == old);
        let twins: Vec<u64> = twins.chain([place]).collect();
        for place in twins {
            self.device.poke(place, &block);
        }
    }

    /// Returns the block to change.
    fn place(&self, input: &mut Input<'_>) -> u64 {
        let (class, number) = (input.byte(), usize::from(input.byte()));
        let places = &self.image.places;
        let list = match class % 8 {
            0 => &places.superblocks,
            1 => &places.roots,
            2 | 3 => &places.buckets,
            4 | 5 => &places.data,
            6 => &places.lists,
            _ => return (u64::from(class / 8) << 8 | number as u64) % self.image.block_count,
        };
        match list.len() {
            0 => number as u64 % self.image.block_count,
            length => list[(usize::from(class / 8) << 8 | number) % length],
        }
    }

    /// Sets one field of all blocks of a run to the same value, with valid checksums: each block contains the links of
    /// a file.
    fn change_run(&mut self, of: &Block, given: Option<((usize, usize), u64)>) {
        let run = |block: &Block| (field(block, (8, 8)), field(block, (36, 4)));
        for place in &self.image.places.data {
            let mut block = self.device.peek(*place);
            if let Some((field, value)) = given.filter(|_| run(&block) == run(of)) {
                set_field(&mut block, field, value);
                seal(&mut block, Kind::Data, &IDENTITY);
                self.device.poke(*place, &block);
                self.trust.is_damaged = true;
                self.trust.is_forged = true;
            }
        }
    }

    /// Returns a field of the block, and a value that may be meaningful for it.
    fn field_value(&self, block: &Block, input: &mut Input<'_>) -> Option<((usize, usize), u64)> {
        let number = usize::from(input.u16());
        let (how, which) = (input.byte(), usize::from(input.byte()));
        let kind = kind_of(block)?;
        let fields = fields(kind, usize::from(NAME_BYTES_MAX));
        let place = fields[number % fields.len()];
        let data = &self.image.places.data;
        let address = data.get(which % data.len().max(1)).copied().unwrap_or(0);
        let data_block = self.device.peek(address);
        let superblock = self.device.peek(0);
        let old = field(block, place);
        let value = match how % 16 {
            0 => input.u64(),
            1 => which as u64,
            2 => field(&superblock, (72, 4)),
            3 => field(&superblock, (76, 4)),
            4 => address,
            5 => u64::MAX >> (which % 64),
            6 => old.wrapping_add(which as u64).wrapping_sub(128),
            7 => address / 4 * 4,
            8 => field(&data_block, (8, 8)),
            9 => field(&data_block, (16, 8)),
            10 => 0,
            11 => 12 + which as u64,
            12 => field(&data_block, (36, 4)),
            13 => field(&data_block, (40, 4)),
            14 => field(block, fields[which % fields.len()]),
            _ => old ^ 1 << (which % 64),
        };
        Some((place, value))
    }
}

/// Copies one entry of a list in the block to other positions of the list.
fn copy_record(block: &mut Block, input: &mut Input<'_>) {
    let (which, list) = (usize::from(input.byte()), usize::from(input.byte()));
    let (to, count) = (
        usize::from(input.byte()),
        1 + usize::from(input.byte() % 32),
    );
    let lists =
        kind_of(block).map_or_else(Vec::new, |kind| records(kind, usize::from(NAME_BYTES_MAX)));
    let Some(&(first, bytes, length)) = lists.get(list % lists.len().max(1)) else {
        return;
    };
    let from = first + bytes * (which % length);
    for place in (to % length..length).take(count) {
        block.copy_within(from..from + bytes, first + bytes * place);
    }
}

fn take_call(kind: u8, input: &mut Input<'_>, image: &Image) -> Call {
    let name = take_name(input, image);
    let take_offset = |input: &mut Input<'_>| {
        let bytes = u64::from(input.u16());
        let shift = input.byte() % 8;
        (bytes << shift).min(OFFSET_MAX)
    };
    let take_data = |input: &mut Input<'_>| {
        let length = (u64::from(input.u16()) << (kind & 1)).min(CALL_BYTES_MAX);
        content(length, length as usize)
    };
    match (kind >> 1) % 16 {
        0 => Call::Create(name),
        1 | 2 => Call::Append(name, take_data(input)),
        3 => Call::AppendNosync(name, take_data(input)),
        4 | 5 => Call::WriteAt(name, take_offset(input), take_data(input)),
        6 => Call::WriteAtNosync(name, take_offset(input), take_data(input)),
        7 | 8 => Call::Truncate(name, take_offset(input)),
        9 => Call::Rename(name, take_name(input, image)),
        10 => Call::Delete(name),
        11 => Call::Replace(name, take_data(input)),
        12 => Call::ReplaceFrom(name, take_data(input)),
        13 => Call::Read(name, take_offset(input), usize::from(input.u16())),
        14 => match input.byte() % 3 {
            0 => Call::Check,
            1 => Call::List,
            _ => Call::Sync,
        },
        _ => Call::CloseFile(name),
    }
}

/// Returns a name that the image has had, or another one.
fn take_name(input: &mut Input<'_>, image: &Image) -> String {
    const OTHERS: [&str; 8] = [
        "new 1",
        "new 2",
        "new 3",
        "new 4",
        "a name of forty bytes, the longest by far",
        "",
        "..",
        "a/b",
    ];
    let number = usize::from(input.byte());
    let known = image.history.names().count();
    match number.checked_sub(known) {
        None => image
            .history
            .names()
            .nth(number)
            .cloned()
            .unwrap_or_default(),
        Some(other) => OTHERS[other % OTHERS.len()].to_owned(),
    }
}

/// The input, read from its beginning; zeros after its end.
struct Input<'a> {
    rest: &'a [u8],
}

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        match self.rest.split_first() {
            Some((first, rest)) => {
                self.rest = rest;
                *first
            }
            None => 0,
        }
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }
}
