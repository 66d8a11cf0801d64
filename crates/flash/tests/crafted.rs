//! Tests forged images: every checksum is right but the protected data makes no sense. Opening, checking, reading and
//! writing such a store may fail, and may lose its data. These calls must not panic, must not run forever, and must not
//! leave a store that no longer opens.

use crate::common;
use crate::forge;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::forge::format::{Kind, fields, kind_of};
use crate::forge::{change, exercise, field, newest_root, sample, set_field};
use base::block::BlockDevice;
use base::sim::{Random, SimDevice};

/// Maximum length of names in the images, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// CRC-32C (Castagnoli), computed bit by bit, independent of any crate.
fn crc32c(pieces: &[&[u8]]) -> u32 {
    let mut crc = u32::MAX;
    for byte in pieces.iter().flat_map(|piece| piece.iter()) {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ ((crc & 1) * 0x82f6_3b78);
        }
    }
    !crc
}

#[test]
fn the_checksums_match_the_specification() {
    assert_eq!(crc32c(&[b"1234", b"56789"]), 0xe306_9283);
    let device = sample(1);
    let identity = common::options(1).uuid;
    let mut kinds = BTreeMap::new();
    for place in 0..device.geometry().block_count {
        let block = device.peek(place);
        let Some(kind) = kind_of(&block) else {
            continue;
        };
        let (offset, expected) = match kind {
            Kind::Superblock => (12, crc32c(&[&block[16..]])),
            Kind::Root => (12, crc32c(&[&identity, &block[16..]])),
            Kind::Bucket | Kind::Data | Kind::SpilledList => (4, crc32c(&[&identity, &block[8..]])),
        };
        assert_eq!(
            field(&block, offset, 4),
            u64::from(expected),
            "block {place}, {kind:?}"
        );
        let mut sealed = block;
        forge::seal(&mut sealed, kind);
        assert!(sealed == block, "block {place}, {kind:?}");
        *kinds.entry(format!("{kind:?}")).or_insert(0) += 1;
    }
    assert_eq!(kinds.len(), 5, "{kinds:?}");
}

fn value(old: u64, blocks: u64, random: &mut Random) -> u64 {
    match random.below(12) {
        0 => 0,
        1 => 1,
        2 => u64::MAX,
        3 => u64::MAX - random.below(300),
        4 => old.wrapping_add(1),
        5 => old.wrapping_sub(1),
        6 => old.wrapping_add(4),
        7 => old.wrapping_mul(2),
        8 => random.below(blocks) & !3,
        9 => random.below(blocks),
        10 => random.below(64) * 4,
        _ => random.next_u64(),
    }
}

/// Returns one image with a few fields changed.
fn mutated(original: &SimDevice, places: &[(u64, Kind)], random: &mut Random) -> SimDevice {
    let mut device = original.clone();
    let blocks = device.geometry().block_count;
    let kinds = [
        Kind::Superblock,
        Kind::Root,
        Kind::Root,
        Kind::Root,
        Kind::Bucket,
        Kind::Bucket,
        Kind::Data,
        Kind::SpilledList,
    ];
    let kind = kinds[random.index(kinds.len())];
    let fields = fields(kind, NAME_BYTES_MAX);
    for _ in 0..=random.index(3) {
        let these: Vec<u64> = places
            .iter()
            .filter(|(_, other)| *other == kind)
            .map(|(place, _)| *place)
            .collect();
        let place = match kind {
            Kind::Root if random.below(4) != 0 => newest_root(&device),
            _ => these[random.index(these.len())],
        };
        let (offset, bytes) = fields[random.index(fields.len())];
        let new = value(field(&device.peek(place), offset, bytes), blocks, random);
        change(&mut device, place, |block| {
            set_field(block, offset, bytes, new);
        });
    }
    device
}

#[test]
fn mutated_images_neither_panic_nor_hang_nor_wreck_the_store() {
    let rounds = std::env::var("FLASH_CRAFTED_ROUNDS").map_or(400, |text| text.parse().unwrap());
    let mut failures = BTreeMap::new();
    for sample_seed in 0..3 {
        let original = sample(sample_seed);
        let places: Vec<(u64, Kind)> = (0..original.geometry().block_count)
            .filter_map(|place| kind_of(&original.peek(place)).map(|kind| (place, kind)))
            .collect();
        for round in 0..rounds {
            let mut random = Random::new(sample_seed << 32 | round);
            let device = mutated(&original, &places, &mut random);
            let result = catch_unwind(AssertUnwindSafe(|| exercise(device, &mut random)));
            if let Err(panic) = result {
                let text = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                    .unwrap_or_default();
                let entry = failures.entry(text).or_insert((0, (sample_seed, round)));
                entry.0 += 1;
            }
        }
    }
    for (text, (count, first)) in &failures {
        println!("{count} x {text} (first: sample and round {first:?})");
    }
    assert!(failures.is_empty(), "{} kinds of failure", failures.len());
}
