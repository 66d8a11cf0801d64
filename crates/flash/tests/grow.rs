//! Tests growing: the store uses a device that has become larger. A cut at any write leaves the store with the old or
//! the new size and with every byte, and growing again completes it.

use crate::common;
use crate::common::{Model, Operation, Weights, lend, options, read_all};
use base::block::BlockDevice;
use base::error::Code;
use base::sim::{Random, SimDevice};
use flash::{Error, OpenOptions, PAYLOAD_BYTES, Store};

/// Returns the same content on a larger device.
fn enlarged(device: &SimDevice, blocks: u64) -> SimDevice {
    let mut larger = SimDevice::new(blocks, 7);
    for block in 0..device.geometry().block_count {
        let bytes = device.peek(block);
        if bytes != [0; 4096] {
            larger.poke(block, &bytes);
        }
    }
    larger
}

/// Returns a store after some calls, full if `full`, closed if `closed`.
fn sample(seed: u64, blocks: u64, full: bool, closed: bool) -> (SimDevice, Model) {
    let mut random = Random::new(seed);
    let mut store = Store::format(SimDevice::new(blocks, seed), &options(12)).unwrap();
    let mut model = Model::new();
    for _ in 0..80 {
        let operation = Weights::ALL.draw(&mut random, &model, 12, 20_000);
        if operation == Operation::Reopen {
            store = common::reopen(store);
        } else if operation.run(&mut store).is_ok() {
            operation.apply(&mut model);
        }
    }
    if full {
        common::lives::fill(&mut store, &mut model, 12, &mut random);
    }
    let model = read_all(&mut store).unwrap();
    store.sync().unwrap();
    let device = if closed {
        store.close().unwrap()
    } else {
        store.device().clone()
    };
    (device, model)
}

/// Fills a store to the last block, and reads all of it again.
fn fill_and_read(device: SimDevice, model: &Model, context: &str) {
    let mut store = Store::open(device, &OpenOptions::default()).unwrap();
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{context}: {:?}", report.problems);
    assert!(read_all(&mut store).unwrap() == *model, "{context}");
    let mut model = model.clone();
    common::lives::fill(&mut store, &mut model, 12, &mut Random::new(1));
    let now = read_all(&mut store).unwrap();
    let mut store = common::reopen(store);
    assert!(read_all(&mut store).unwrap() == now, "{context}");
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{context}: {:?}", report.problems);
}

#[test]
fn a_grown_store_has_all_it_had_and_uses_all_of_the_device() {
    for seed in 0..8 {
        for (before, after) in [(120, 132), (120, 135), (121, 400), (123, 1000)] {
            let (device, model) = sample(seed, before, seed % 2 == 0, seed % 3 == 0);
            let context = format!("seed {seed} {before} to {after}");
            let free = Store::open(device.clone(), &OpenOptions::default())
                .unwrap()
                .statistics();
            let (report, device) = Store::grow(enlarged(&device, after)).unwrap();
            assert_eq!(
                (report.blocks_before, report.blocks_after),
                (before, after),
                "{context}"
            );
            let mut store = Store::open(device.clone(), &OpenOptions::default()).unwrap();
            let grown = store.statistics();
            // The store grows by whole clusters at both ends.
            let more = (after / 4 - before / 4) * 4;
            assert_eq!(grown.blocks_total, free.blocks_total + more, "{context}");
            assert_eq!(grown.blocks_free, free.blocks_free + more, "{context}");
            assert_eq!(grown.files_max, free.files_max, "the table stays as it is");
            assert!(store.check().unwrap().is_clean());
            fill_and_read(device, &model, &context);
        }
    }
}

#[test]
fn the_former_end_holds_data_like_any_other_block() {
    let (device, model) = sample(3, 120, true, true);
    let (_, device) = Store::grow(enlarged(&device, 200)).unwrap();
    let mut store = Store::open(device, &OpenOptions::default()).unwrap();
    let data: Vec<u8> = (0..60 * PAYLOAD_BYTES)
        .map(|byte| (byte % 251) as u8)
        .collect();
    store.replace("over the former end", &data).unwrap();
    let device = store.close().unwrap();
    for block in 108..120 {
        assert_eq!(
            &device.peek(block)[..4],
            b"EKBD",
            "block {block} is not a data block"
        );
    }
    let mut store = Store::open(device, &OpenOptions::default()).unwrap();
    assert_eq!(
        common::read_file(&mut store, "over the former end").unwrap(),
        data
    );
    for (name, bytes) in &model {
        assert_eq!(&common::read_file(&mut store, name).unwrap(), bytes);
    }
}

#[test]
fn a_cut_at_any_write_leaves_the_old_store_or_the_new_one() {
    let (mut cuts, mut old, mut new) = (0, 0, 0);
    for seed in 0..6 {
        let (device, model) = sample(seed, 120, seed % 2 == 0, seed % 3 == 0);
        let device = enlarged(&device, 160);
        for write in 1.. {
            let mut cut = device.clone();
            cut.set_power_cut_after_writes(Some(write));
            let Err(error) = Store::grow(lend(&mut cut)) else {
                break;
            };
            assert!(matches!(error, Error::Device(_)), "{error}");
            for image in 0..8 {
                let context = format!("seed {seed} write {write} image {image}");
                let image = cut.crash_image_random(write * 100 + image);
                let mut store = Store::open(image.clone(), &OpenOptions::default())
                    .unwrap_or_else(|error| panic!("{context}: {error}"));
                match store.layout().block_count {
                    120 => old += 1,
                    160 => new += 1,
                    other => panic!("{context}: {other} blocks"),
                }
                assert!(read_all(&mut store).unwrap() == model, "{context}");
                // Changes made before the store is grown again must stay, too.
                let mut model = model.clone();
                store
                    .replace("in between", b"written to either")
                    .unwrap_or_else(|error| {
                        assert!(matches!(error, Error::Full), "{context}: {error}");
                    });
                if let Ok(bytes) = common::read_file(&mut store, "in between") {
                    model.insert("in between".to_owned(), bytes);
                }
                let device = store.device().crash_image_random(write);
                let (report, device) = Store::grow(device).unwrap();
                assert_eq!(report.blocks_after, 160);
                fill_and_read(device, &model, &context);
                cuts += 1;
            }
        }
    }
    println!("growing cut {cuts} times: {old} times the old store, {new} times the new one");
    assert!(cuts > 300 && old > 50 && new > 50);
}

#[test]
fn growing_without_new_blocks_changes_nothing() {
    let (device, model) = sample(1, 120, false, true);
    for blocks in [120, 123, 131] {
        let device = enlarged(&device, blocks);
        let hash = device.image_hash();
        let (report, device) = Store::grow(device).unwrap();
        assert_eq!(report.blocks_before, 120);
        assert_eq!(report.blocks_after, 120, "{blocks}");
        assert_eq!(device.image_hash(), hash, "{blocks}");
        fill_and_read(device, &model, "as before");
    }
}

#[test]
fn a_store_does_not_shrink() {
    let (device, _) = sample(1, 120, false, true);
    let mut short = SimDevice::new(100, 1);
    (0..100).for_each(|block| short.poke(block, &device.peek(block)));
    let error = Store::grow(short).err().unwrap();
    assert!(matches!(error, Error::Truncated { .. }), "{error}");
}

#[test]
fn a_store_grows_to_the_largest_size_and_not_beyond() {
    const BLOCKS_MAX: u64 = 1 << 32;
    let (device, model) = sample(2, 120, false, true);
    for more in [1, 4, 1 << 20] {
        let mut larger = enlarged(&device, BLOCKS_MAX + more);
        let hash = larger.image_hash();
        let error = Store::grow(lend(&mut larger)).err().unwrap();
        assert!(matches!(error, Error::DeviceTooLarge { .. }), "{error}");
        assert_eq!(error.code(), Code::Invalid);
        let text = error.to_string();
        assert!(text.contains("16 TiB") && !text.contains('\n'), "{text}");
        assert_eq!(larger.image_hash(), hash, "{more} blocks too many");
    }
    let (report, device) = Store::grow(enlarged(&device, BLOCKS_MAX)).unwrap();
    // The last number is not the number of a block, and the end is a whole cluster.
    assert_eq!(report.blocks_after, BLOCKS_MAX - 1);
    let mut store = Store::open(device, &OpenOptions::default()).unwrap();
    store.replace("after", &[7; 100_000]).unwrap();
    let mut store = common::reopen(store);
    let mut found = read_all(&mut store).unwrap();
    assert_eq!(found.remove("after").unwrap(), [7; 100_000]);
    assert!(found == model);
    assert!(store.statistics().blocks_total > BLOCKS_MAX - 200);
}

#[test]
fn a_grown_store_survives_the_loss_of_either_end() {
    let (device, model) = sample(5, 120, false, true);
    let (_, device) = Store::grow(enlarged(&device, 300)).unwrap();
    let device = {
        let store = Store::open(device, &OpenOptions::default()).unwrap();
        store.close().unwrap()
    };
    for end in [0..12, 288..300] {
        let mut rotten = device.clone();
        end.clone()
            .for_each(|block| rotten.poke(block, &[0xa5; 4096]));
        let mut store = Store::open(rotten, &OpenOptions::default()).unwrap();
        assert!(read_all(&mut store).unwrap() == model, "{end:?}");
    }
}

#[test]
fn a_rotten_superblock_does_not_bring_the_other_size_back_after_an_interrupted_growth() {
    let (mut old, mut new) = (0, 0);
    for seed in 0..4 {
        let (device, _) = sample(seed, 120, true, seed % 2 == 0);
        let device = enlarged(&device, 240);
        for write in 1.. {
            let mut cut = device.clone();
            cut.set_power_cut_after_writes(Some(write));
            if Store::grow(lend(&mut cut)).is_ok() {
                break;
            }
            for image in 0..4 {
                // The store continues with the size in the first superblock.
                let image = cut.crash_image_random(write * 100 + image);
                let mut store = Store::open(image, &OpenOptions::default()).unwrap();
                let is_new = store.layout().block_count == 240;
                let mut model = read_all(&mut store).unwrap();
                common::lives::fill(&mut store, &mut model, 12, &mut Random::new(write));
                let model = read_all(&mut store).unwrap();
                let device = store.close().unwrap();
                // Opening for writing has settled the size, so damage cannot bring the other size back.
                for rotten in [&[0][..], &[2], &[0, 2]] {
                    let context = format!("seed {seed} write {write} blocks {rotten:?}");
                    let mut device = device.clone();
                    for block in rotten {
                        device.inject_bit_rot(*block, 300);
                    }
                    let opened = Store::open(device, &OpenOptions::default());
                    // If the store does not reach the end of its device, its last superblock is not searched for.
                    assert!(
                        opened.is_ok() || (rotten.len() == 2 && !is_new),
                        "{context}"
                    );
                    if let Ok(mut store) = opened {
                        let blocks = store.layout().block_count;
                        assert_eq!(blocks, if is_new { 240 } else { 120 }, "{context}");
                        assert!(read_all(&mut store).unwrap() == model, "{context}");
                    }
                }
                for rotten in [0, 2, 236] {
                    let context = format!("seed {seed} write {write} block {rotten}");
                    let mut device = device.clone();
                    device.inject_bit_rot(rotten, 300);
                    let (_, device) = Store::repair(device, &mut |_| {}).unwrap();
                    let mut store = Store::open(device, &OpenOptions::default()).unwrap();
                    let blocks = store.layout().block_count;
                    assert_eq!(blocks, if is_new { 240 } else { 120 }, "{context}");
                    assert!(store.check().unwrap().is_clean(), "{context}");
                    assert!(read_all(&mut store).unwrap() == model, "{context}");
                }
                old += u32::from(!is_new);
                new += u32::from(is_new);
            }
        }
    }
    println!("after an interrupted growth: {old} old stores, {new} new ones");
    assert!(old > 20 && new > 5, "{old} {new}");
}
