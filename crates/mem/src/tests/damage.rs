//! Words that a stray store has changed: what a call then changes stays within its own files.

use super::*;
use crate::lane::{Lane, doing};
use crate::layout::PAGE_BYTES;
use crate::space::Place;

#[test]
fn a_free_lane_that_seems_to_move_pages_moves_none() {
    let scratch = Scratch::new("damage-lane");
    let region = scratch.region(32 << 20);
    let writer = region.writer().unwrap();
    let made = writer.create(ROOT_INODE, b"file", &FILE).unwrap();
    let bytes = vec![7; 3 << 20];
    writer
        .write(made.inode, made.generation, 0, &bytes, 1)
        .unwrap();
    let Ok(Place::Slot { slot, .. }) = region.place(region.layout.inode(made.inode)) else {
        panic!("the file has no slot");
    };
    drop(writer);
    let free = region.free_bytes();
    for lane in (0..region.layout.lane_count).map(Lane) {
        region.set_lane_word(lane, word::STATE, doing::TAKING);
        region.set_lane_word(lane, word::TARGET, region.layout.slot(slot));
        region.set_lane_word(lane, word::PAGES, 1);
        region.set_lane_word(lane, word::PRESENT, 1);
        region.set_lane_word(lane, word::FREES, 1);
    }
    let writer = region.writer().unwrap();
    // One change that is given up, and one that is made.
    let again = writer.create(ROOT_INODE, b"file", &FILE);
    assert!(matches!(again, Err(Error::Exists)));
    writer.create(ROOT_INODE, b"other", &FILE).unwrap();
    assert!(content(&region, &writer, b"file").unwrap() == bytes);
    assert_eq!(region.free_bytes() / PAGE_BYTES, free / PAGE_BYTES);
}

#[test]
fn a_size_beyond_its_piece_is_not_copied_over_other_files() {
    let scratch = Scratch::new("damage-size");
    let region = scratch.region(16 << 20);
    region.set_logging(Logging::CopyOnWrite);
    let writer = region.writer().unwrap();
    let made: Vec<_> = (0..20u8)
        .map(|number| {
            let made = writer.create(ROOT_INODE, &[b'a' + number], &FILE).unwrap();
            writer
                .write(made.inode, made.generation, 0, &[number; 1000], 1)
                .unwrap();
            made
        })
        .collect();
    // The new piece lies before those of other files.
    writer.remove(ROOT_INODE, b"b", 2).unwrap();
    let size_at = region.layout.inode(made[0].inode) + attribute::SIZE;
    region.memory.store(size_at, 64 << 10);
    let written = writer.write(made[0].inode, made[0].generation, 0, &[99; 100], 3);
    assert!(matches!(written, Err(Error::Damaged { .. })), "{written:?}");
    region.memory.store(size_at, 1000);
    for number in (0..20).filter(|number| *number != 1) {
        let found = content(&region, &writer, &[b'a' + number]).unwrap();
        assert!(found == [number; 1000], "{number}");
    }
}
