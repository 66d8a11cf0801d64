//! Tests the bytes of format 1: an old store must open today, and the same calls must make the same bytes.
//!
//! `golden/format-1.bin` lists the blocks that are not zero: number (u32), length without trailing zeros (u16), bytes;
//! all little-endian. `GOLDEN_UPDATE=1 cargo test -p flash --test it golden::` writes it again, which is right only if
//! the format's version changes.

use std::path::PathBuf;

use crate::common::{Model, lend, options, read_all};
use base::block::{BLOCK_BYTES, BlockDevice};
use base::sim::SimDevice;
use flash::{Error, FORMAT_VERSION, OpenOptions, Store};

const BLOCKS: u64 = 640;
/// Number of pairs of files; one file of each pair is deleted, until the free list spills.
const PAIRS: u8 = 45;

fn path(version: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/format-{version}.bin"))
}

/// Makes calls that use every structure of the format.
fn make() -> SimDevice {
    let mut store = Store::format(SimDevice::new(BLOCKS, 1), &options(100)).unwrap();
    let log = store.create("log").unwrap();
    for number in 0..30_u8 {
        store.append(log, &[number; 1000]).unwrap();
    }
    store.append(log, &[0xee; 40_000]).unwrap();
    store
        .replace("configuration", b"interval_ms = 250\n")
        .unwrap();
    store
        .replace("configuration", b"interval_ms = 100\n")
        .unwrap();
    store.replace("gone", &[9; 70_000]).unwrap();
    store.delete("gone").unwrap();
    let name = "ü".repeat(127);
    let file = store.create(&name).unwrap();
    store.close_file(file);
    // Names and bytes that change.
    store.rename("configuration", "settings").unwrap();
    store.write_at(log, 29_990, &[0x77; 20]).unwrap();
    store.truncate(log, 69_000).unwrap();
    // Enough deleted files that the free list spills.
    for number in 0..PAIRS {
        for name in [format!("a{number}"), format!("b{number}")] {
            store.replace(&name, &[number; 50]).unwrap();
        }
    }
    for number in 0..PAIRS {
        store.delete(&format!("a{number}")).unwrap();
    }
    // The store is not closed: recovery must find the last appends.
    store.append(log, b"the end").unwrap();
    store.device().crash_image(&|_| base::sim::Keep::Whole)
}

fn expected() -> Model {
    let mut log: Vec<u8> = (0..30_u8).flat_map(|number| [number; 1000]).collect();
    log.extend_from_slice(&[0xee; 40_000]);
    log[29_990..30_010].fill(0x77);
    log.truncate(69_000);
    log.extend_from_slice(b"the end");
    let mut model = Model::from([
        ("log".to_owned(), log),
        ("settings".to_owned(), b"interval_ms = 100\n".to_vec()),
        ("ü".repeat(127), Vec::new()),
    ]);
    model.extend((0..PAIRS).map(|number| (format!("b{number}"), vec![number; 50])));
    model
}

fn pack(device: &SimDevice) -> Vec<u8> {
    let mut packed = Vec::new();
    for block in 0..BLOCKS {
        let bytes = device.peek(block);
        let length = bytes
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |last| last + 1);
        if length > 0 {
            packed.extend_from_slice(&(block as u32).to_le_bytes());
            packed.extend_from_slice(&(length as u16).to_le_bytes());
            packed.extend_from_slice(&bytes[..length]);
        }
    }
    packed
}

fn unpack(mut packed: &[u8]) -> SimDevice {
    let mut device = SimDevice::new(BLOCKS, 1);
    while let [a, b, c, d, e, f, rest @ ..] = packed {
        let block = u32::from_le_bytes([*a, *b, *c, *d]);
        let length = usize::from(u16::from_le_bytes([*e, *f]));
        let mut bytes = [0; BLOCK_BYTES];
        bytes[..length].copy_from_slice(&rest[..length]);
        device.poke(u64::from(block), &bytes);
        packed = &rest[length..];
    }
    device
}

/// Returns the committed bytes; writes them again first if requested.
fn golden() -> Vec<u8> {
    if std::env::var_os("GOLDEN_UPDATE").is_some() {
        let new = pack(&make());
        std::fs::write(path(1), &new).unwrap();
        return new;
    }
    std::fs::read(path(1)).unwrap()
}

#[test]
fn the_golden_image_opens_with_its_content() {
    assert_eq!(
        FORMAT_VERSION, 1,
        "a new format needs a new golden file beside the old ones"
    );
    let device = unpack(&golden());
    for read_only in [true, false] {
        let mut store = Store::open(
            device.clone(),
            &OpenOptions {
                read_only,
                ..OpenOptions::default()
            },
        )
        .unwrap();
        assert!(store.check().unwrap().is_clean());
        assert!(read_all(&mut store).unwrap() == expected());
        assert_eq!(read_only, store.device().counters().writes == 0);
    }
}

/// Format 0 was provisional. Its stores are refused because of their version, and nothing is written to them.
#[test]
fn a_store_of_format_0_is_refused_by_its_version() {
    for read_only in [true, false] {
        let options = OpenOptions {
            read_only,
            ..OpenOptions::default()
        };
        let mut device = unpack(&std::fs::read(path(0)).unwrap());
        let before = device.image_hash();
        let error = Store::open(lend(&mut device), &options).err().unwrap();
        assert!(
            matches!(
                error,
                Error::Version {
                    found: 0,
                    supported: 1
                }
            ),
            "{error}"
        );
        assert_eq!(device.image_hash(), before);
    }
}

#[test]
fn the_golden_image_holds_every_structure() {
    let device = unpack(&golden());
    for magic in [&b"KEELFLSH"[..], b"KEELROOT", b"EKTB", b"EKBD", b"EKTR"] {
        let holds = |block: u64| device.peek(block).starts_with(magic);
        assert!((0..BLOCKS).any(holds), "{}", magic.escape_ascii());
    }
}

#[test]
fn the_same_calls_still_make_the_same_bytes() {
    assert!(
        pack(&make()) == golden(),
        "the bytes on the device have changed: the format needs a new version, or the change is a mistake"
    );
}
