//! The simulated device: the guarantees of its fault model, as properties over random programs.

use base::block::{BLOCK_BYTES, BlockDevice, DeviceError, SECTOR_BYTES};
use base::error::Code;
use base::sim::{Keep, Random, SimDevice};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashSet};

const BLOCK_COUNT: u64 = 48;
const SECTORS: usize = BLOCK_BYTES / SECTOR_BYTES;

#[derive(Clone, Debug)]
enum Step {
    Write {
        first_block: u64,
        block_count: u64,
        fill: u8,
    },
    Discard {
        first_block: u64,
        block_count: u64,
    },
    Flush,
}

fn range() -> impl Strategy<Value = (u64, u64)> {
    (0..BLOCK_COUNT, 1_u64..6).prop_map(|(first, count)| (first, count.min(BLOCK_COUNT - first)))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (range(), 1..=u8::MAX)
            .prop_map(|((first_block, block_count), fill)| Step::Write { first_block, block_count, fill }),
        1 => range().prop_map(|(first_block, block_count)| Step::Discard { first_block, block_count }),
        2 => Just(Step::Flush),
    ];
    prop::collection::vec(step, 0..30)
}

fn run(device: &mut SimDevice, steps: &[Step]) {
    for step in steps {
        match *step {
            Step::Write {
                first_block,
                block_count,
                fill,
            } => {
                device
                    .write(first_block, &vec![fill; block_count as usize * BLOCK_BYTES])
                    .unwrap();
            }
            Step::Discard {
                first_block,
                block_count,
            } => device.discard(first_block, block_count).unwrap(),
            Step::Flush => device.flush().unwrap(),
        }
    }
}

/// For each sector the bytes that it may hold after a power cut: the durable one, and each unflushed one.
fn allowed(device: &SimDevice, steps: &[Step]) -> BTreeMap<(u64, usize), HashSet<u8>> {
    let mut allowed: BTreeMap<_, HashSet<u8>> = BTreeMap::new();
    for block in 0..BLOCK_COUNT {
        let bytes = device.peek_durable(block);
        for sector in 0..SECTORS {
            allowed.insert(
                (block, sector),
                HashSet::from([bytes[sector * SECTOR_BYTES]]),
            );
        }
    }
    let since = steps
        .iter()
        .rposition(|step| matches!(step, Step::Flush))
        .map_or(0, |flush| flush + 1);
    for step in &steps[since..] {
        let (first_block, block_count, fill) = match *step {
            Step::Write {
                first_block,
                block_count,
                fill,
            } => (first_block, block_count, fill),
            Step::Discard {
                first_block,
                block_count,
            } => (first_block, block_count, 0),
            Step::Flush => continue,
        };
        for block in first_block..first_block + block_count {
            for sector in 0..SECTORS {
                allowed.entry((block, sector)).or_default().insert(fill);
            }
        }
    }
    allowed
}

fn contents(device: &SimDevice) -> Vec<[u8; BLOCK_BYTES]> {
    (0..device.geometry().block_count)
        .map(|block| device.peek(block))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_crash_leaves_only_flushed_bytes_or_later_writes(steps in steps(), seed in any::<u64>()) {
        let mut device = SimDevice::new(BLOCK_COUNT, seed);
        run(&mut device, &steps);
        let allowed = allowed(&device, &steps);
        for cut in 0..8 {
            let image = device.crash_image_random(seed.wrapping_add(cut));
            for ((block, sector), values) in &allowed {
                let bytes = image.peek(*block);
                let bytes = &bytes[sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES];
                prop_assert!(values.contains(&bytes[0]), "block {block} sector {sector}");
                prop_assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a sector is atomic");
            }
        }
    }

    #[test]
    fn flushed_writes_survive_every_crash(steps in steps(), seed in any::<u64>()) {
        let mut device = SimDevice::new(BLOCK_COUNT, seed);
        run(&mut device, &steps);
        device.flush().unwrap();
        prop_assert_eq!(device.unflushed_count(), 0);
        let image = device.crash_image_random(seed);
        prop_assert_eq!(image.image_hash(), device.image_hash());
        prop_assert_eq!(contents(&image), contents(&device));
        prop_assert_eq!(device.crash_images_all_subsets().count(), 1);
    }

    #[test]
    fn a_crash_that_keeps_all_is_the_live_content_and_one_that_loses_all_the_durable(
        steps in steps(), seed in any::<u64>()
    ) {
        let mut device = SimDevice::new(BLOCK_COUNT, seed);
        run(&mut device, &steps);
        let whole = device.crash_image(&|_| Keep::Whole);
        prop_assert_eq!(contents(&whole), contents(&device));
        prop_assert_eq!(whole.image_hash(), device.image_hash());
        let torn = device.crash_image(&|_| Keep::Torn { sector_mask: u64::MAX });
        prop_assert_eq!(torn.image_hash(), device.image_hash());
        let lost = device.crash_image(&|_| Keep::Lost);
        let durable: Vec<_> = (0..BLOCK_COUNT).map(|block| device.peek_durable(block)).collect();
        prop_assert_eq!(contents(&lost), durable);
        let untouched = device.crash_image(&|_| Keep::Torn { sector_mask: 0 });
        prop_assert_eq!(untouched.image_hash(), lost.image_hash());
        prop_assert!(whole.is_powered() && whole.unflushed_count() == 0 && whole.counters() == Default::default());
    }

    #[test]
    fn the_hash_stands_for_the_content(steps in steps(), seed in any::<u64>()) {
        let mut device = SimDevice::new(BLOCK_COUNT, seed);
        run(&mut device, &steps);
        let mut images: Vec<SimDevice> = (0..12).map(|cut| device.crash_image_random(cut)).collect();
        images.push(device.clone());
        for first in &images {
            let mut copy = SimDevice::new(BLOCK_COUNT, 0);
            for block in 0..BLOCK_COUNT {
                copy.poke(block, &first.peek(block));
            }
            prop_assert_eq!(copy.image_hash(), first.image_hash());
            for second in &images {
                prop_assert_eq!(first.image_hash() == second.image_hash(), contents(first) == contents(second));
            }
        }
    }

    #[test]
    fn one_seed_makes_one_run(steps in steps(), seed in any::<u64>()) {
        let mut first = SimDevice::new(BLOCK_COUNT, seed);
        let mut second = SimDevice::new(BLOCK_COUNT, seed);
        run(&mut first, &steps);
        run(&mut second, &steps);
        let mut clone = first.clone();
        for cut in 0..4 {
            let image = first.crash_image_random(cut);
            prop_assert_eq!(image.image_hash(), second.crash_image_random(cut).image_hash());
            prop_assert_eq!(image.image_hash(), clone.crash_image_random(cut).image_hash());
        }
        // A clone does not change with the original. Afterwards it does the same.
        let before = clone.image_hash();
        run(&mut first, &steps);
        prop_assert_eq!(clone.image_hash(), before);
        run(&mut clone, &steps);
        prop_assert_eq!(clone.image_hash(), first.image_hash());
        prop_assert_eq!(clone.counters(), first.counters());
    }

    #[test]
    fn a_power_cut_strikes_at_the_write_it_was_set_for(steps in steps(), n in 1_u64..12, seed in any::<u64>()) {
        let mut device = SimDevice::new(BLOCK_COUNT, seed);
        device.set_power_cut_after_writes(Some(n));
        let mut writes = 0;
        for step in &steps {
            let result = match *step {
                Step::Write { first_block, block_count, fill } => {
                    writes += 1;
                    device.write(first_block, &vec![fill; block_count as usize * BLOCK_BYTES])
                }
                Step::Discard { first_block, block_count } => device.discard(first_block, block_count),
                Step::Flush => device.flush(),
            };
            let is_on = writes < n;
            prop_assert_eq!(result.is_ok(), is_on);
            prop_assert_eq!(device.is_powered(), is_on);
            if let Err(error) = result {
                prop_assert!(matches!(error, DeviceError::PowerLost));
                prop_assert!(device.read(0, &mut [0; BLOCK_BYTES]).is_err());
                prop_assert!(device.unflushed_count() >= 1);
            }
        }
        prop_assert_eq!(device.counters().writes, writes.min(n));
        let mut image = device.crash_image(&|_| Keep::Whole);
        prop_assert!(image.read(0, &mut [0; BLOCK_BYTES]).is_ok());
        prop_assert!(image.write(0, &[1; BLOCK_BYTES]).is_ok());
    }
}

fn write(device: &mut SimDevice, block: u64, fill: u8) {
    device.write(block, &[fill; BLOCK_BYTES]).unwrap();
}

#[test]
fn every_subset_of_writes_has_a_crash_image() {
    let mut device = SimDevice::new(8, 1);
    for block in 0..4 {
        write(&mut device, block, 9);
    }
    let images: Vec<SimDevice> = device.crash_images_all_subsets().collect();
    assert_eq!(images.len(), 16);
    for (subset, image) in images.iter().enumerate() {
        for block in 0..4 {
            assert_eq!(image.peek(block)[0] == 9, subset >> block & 1 == 1);
        }
    }
    let hashes: HashSet<u64> = images.iter().map(SimDevice::image_hash).collect();
    assert_eq!(hashes.len(), 16);
}

#[test]
fn random_crashes_reach_every_order_and_every_tear() {
    let mut device = SimDevice::new(4, 1);
    write(&mut device, 0, 1);
    device.flush().unwrap();
    write(&mut device, 0, 2);
    write(&mut device, 0, 3);
    let mut seen = HashSet::new();
    let mut scattered = false;
    for seed in 0..2000 {
        let bytes = device.crash_image_random(seed).peek(0);
        let sectors: Vec<u8> = (0..SECTORS)
            .map(|sector| bytes[sector * SECTOR_BYTES])
            .collect();
        scattered |= sectors.windows(2).filter(|pair| pair[0] != pair[1]).count() > 2;
        seen.insert(sectors);
    }
    for fill in 1..=3 {
        assert!(seen.contains(&vec![fill; SECTORS]), "whole {fill}");
    }
    // Sectors of the older write over those of the newer one: only possible if the two were reordered.
    assert!(scattered && seen.len() > 200, "{}", seen.len());
    let reversed = device.crash_image_in_order(&[1, 0, 77], &|_| Keep::Whole);
    assert_eq!(reversed.peek(0)[0], 2);
}

#[test]
fn random_crashes_change_the_order_of_whole_writes_often() {
    let mut device = SimDevice::new(4, 1);
    device.write(0, &[1; 2 * BLOCK_BYTES]).unwrap();
    device.write(1, &[2; 2 * BLOCK_BYTES]).unwrap();
    // The older write is complete and lies over the newer one. A tear just there can look the same, but seldom does.
    let is_reversed = |seed| {
        let image = device.crash_image_random(seed);
        [(0, 1), (1, 1), (2, 2)]
            .into_iter()
            .all(|(block, fill)| image.peek(block) == [fill; BLOCK_BYTES])
    };
    let reversed = (0..2000).filter(|seed| is_reversed(*seed)).count();
    assert!(reversed > 60, "{reversed}");
}

#[test]
fn masks_tear_at_sectors_and_long_requests_at_groups_of_them() {
    let mut device = SimDevice::new(64, 1);
    device.write(2, &[5; 2 * BLOCK_BYTES]).unwrap();
    let image = device.crash_image(&|_| Keep::Torn {
        sector_mask: 1 << 15 | 1 << 3,
    });
    for (block, sector, fill) in [
        (2, 3, 5),
        (3, 7, 5),
        (2, 2, 0),
        (2, 4, 0),
        (3, 0, 0),
        (3, 6, 0),
    ] {
        assert_eq!(
            image.peek(block)[sector * SECTOR_BYTES],
            fill,
            "block {block} sector {sector}"
        );
        assert_eq!(image.peek(block)[(sector + 1) * SECTOR_BYTES - 1], fill);
    }
    // 16 blocks are 128 sectors: each bit stands for two of them.
    let mut device = SimDevice::new(64, 1);
    device.write(0, &[6; 16 * BLOCK_BYTES]).unwrap();
    let image = device.crash_image(&|_| Keep::Torn {
        sector_mask: 1 << 63,
    });
    let held: usize = contents(&image)
        .iter()
        .map(|block| block.iter().filter(|byte| **byte == 6).count())
        .sum();
    assert_eq!(held, 2 * SECTOR_BYTES);
    assert_eq!(image.peek(15)[BLOCK_BYTES - 1], 6);
}

#[test]
fn unflushed_writes_are_listed_in_order() {
    let mut device = SimDevice::new(64, 1);
    write(&mut device, 7, 1);
    device.flush().unwrap();
    device.write(3, &[1; 2 * BLOCK_BYTES]).unwrap();
    write(&mut device, 4, 2);
    let listed: Vec<_> = device
        .unflushed()
        .map(|write| (write.first_block, write.block_count))
        .collect();
    assert_eq!(listed, [(3, 2), (4, 1)]);
    assert_eq!(device.unflushed().len(), device.unflushed_count());
}

#[test]
fn an_ignored_flush_is_counted_and_makes_nothing_durable() {
    let mut device = SimDevice::new(8, 1);
    device.set_ignore_flush(true);
    write(&mut device, 0, 1);
    device.flush().unwrap();
    assert_eq!(
        (device.unflushed_count(), device.counters().flushes),
        (1, 1)
    );
    assert_eq!(device.fault_counters().flushes_ignored, 1);
    assert_eq!(
        device.crash_image(&|_| Keep::Lost).peek(0),
        [0; BLOCK_BYTES]
    );
    device.set_ignore_flush(false);
    device.flush().unwrap();
    assert_eq!(
        device.crash_image(&|_| Keep::Lost).peek(0),
        [1; BLOCK_BYTES]
    );
}

#[test]
fn a_cut_can_be_called_off_or_made_at_once() {
    let mut device = SimDevice::new(8, 1);
    device.set_power_cut_after_writes(Some(1));
    device.set_power_cut_after_writes(None);
    write(&mut device, 0, 1);
    device.set_power_cut_after_writes(Some(0));
    assert!(matches!(device.flush(), Err(DeviceError::PowerLost)));
    assert_eq!(device.counters().flushes, 0);
    assert_eq!(device.unflushed_count(), 1);
}

#[test]
fn poke_and_rot_show_in_every_crash_image() {
    let mut device = SimDevice::new(8, 1);
    write(&mut device, 0, 1);
    device.flush().unwrap();
    write(&mut device, 0, 2);
    write(&mut device, 0, 3);
    device.inject_bit_rot(0, 4095 * 8 + 7);
    device.poke(0, b"mark");
    for seed in 0..50 {
        let bytes = device.crash_image_random(seed).peek(0);
        assert_eq!(&bytes[..4], b"mark");
        assert!(bytes[4095] & 0x80 != 0 && bytes[4094] & 0x80 == 0);
    }
    let before = device.image_hash();
    device.poke(99, b"off the device");
    device.inject_bit_rot(99, 0);
    assert_eq!(device.image_hash(), before);
    assert_eq!(device.peek(99), [0; BLOCK_BYTES]);
    // Also under a discard that has not been flushed.
    while !device.unflushed().any(|write| write.is_discard) {
        device.discard(0, 2).unwrap();
    }
    device.poke(1, b"more");
    for seed in 0..50 {
        assert_eq!(&device.crash_image_random(seed).peek(1)[..4], b"more");
    }
}

#[test]
fn discards_take_effect_or_not_and_are_unflushed() {
    let (mut cleared, mut kept) = (0, 0);
    for seed in 0..64 {
        let mut device = SimDevice::new(1 << 22, seed);
        write(&mut device, 5, 1);
        device.flush().unwrap();
        device.discard(0, 1 << 22).unwrap();
        if device.peek(5) == [0; BLOCK_BYTES] {
            cleared += 1;
            assert_eq!(device.held_count(), 0);
            assert_eq!(
                device.crash_image(&|_| Keep::Lost).peek(5),
                [1; BLOCK_BYTES]
            );
            device.flush().unwrap();
            assert_eq!(
                device.crash_image(&|_| Keep::Lost).peek(5),
                [0; BLOCK_BYTES]
            );
        } else {
            kept += 1;
            assert_eq!((device.unflushed_count(), device.held_count()), (0, 1));
        }
    }
    assert!(cleared > 10 && kept > 10, "{cleared} {kept}");
}

#[test]
fn counts_are_exact_and_refused_ranges_do_not_count() {
    let mut device = SimDevice::new(8, 1);
    device.write(0, &[1; 4 * BLOCK_BYTES]).unwrap();
    write(&mut device, 7, 1);
    device.read(0, &mut [0; 2 * BLOCK_BYTES]).unwrap();
    device.flush().unwrap();
    device.discard(0, 1).unwrap();
    assert_eq!(
        device.write(8, &[0; BLOCK_BYTES]).unwrap_err().code(),
        Code::Invalid
    );
    assert_eq!(
        device.write(0, &[0; 100]).unwrap_err().code(),
        Code::Invalid
    );
    assert_eq!(
        device
            .read(7, &mut [0; 2 * BLOCK_BYTES])
            .unwrap_err()
            .code(),
        Code::Invalid
    );
    assert_eq!(device.discard(8, 1).unwrap_err().code(), Code::Invalid);
    let counters = device.counters();
    assert_eq!((counters.reads, counters.blocks_read), (1, 2));
    assert_eq!(
        (
            counters.writes,
            counters.blocks_written,
            counters.write_blocks_max
        ),
        (2, 5, 4)
    );
    assert_eq!((counters.flushes, counters.discards), (1, 1));
    device.reset_write_blocks_max();
    write(&mut device, 7, 1);
    assert_eq!(device.counters().write_blocks_max, 1);
}

#[test]
fn a_large_device_costs_memory_for_its_content_only() {
    let mut device = SimDevice::new(16 << 18, 1);
    let mut random = Random::new(2);
    for _ in 0..100 {
        write(&mut device, random.below(16 << 18), 1);
    }
    let mut hashes = HashSet::new();
    for seed in 0..5000 {
        hashes.insert(device.crash_image_random(seed).image_hash());
    }
    assert!(hashes.len() > 2000);
    assert!(SimDevice::new(u64::MAX, 1).geometry().block_count == base::sim::BLOCK_COUNT_MAX);
    assert!(SimDevice::new(0, 1).read(0, &mut [0; BLOCK_BYTES]).is_err());
}
