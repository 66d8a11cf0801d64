//! Tests of the memory of files: writes in pieces, holes, mapping, allocating, and the notes of readers.

use std::io::{IoSlice, IoSliceMut};

use crate::lane::word;
use crate::memory::WORDS_IN_LINE;
use crate::space::Place;
use crate::{At, Attachment, Error, PAGE_BYTES, ROOT_INODE, Region};

use super::{FILE, Scratch, content};

fn region_bytes(region: &Region, at: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; count];
    region.memory.read(at, &mut bytes);
    bytes
}

#[test]
fn directories_have_no_bytes() {
    let scratch = Scratch::new("directories");
    let region = scratch.region(32 << 20);
    let writer = region.writer().unwrap();
    let new = crate::NewInode {
        mode: libc::S_IFDIR | 0o700,
        ..FILE
    };
    let made = writer.create(ROOT_INODE, b"directory", &new).unwrap();
    let (inode, generation) = (made.inode, made.generation);
    let pieces = [IoSlice::new(b"bytes")];
    for refused in [
        writer.write(inode, generation, 0, b"bytes", 2),
        writer
            .write_vectored(inode, generation, At::End, &pieces, 2)
            .map(drop),
        writer.set_size(inode, generation, 10, 2),
        writer.allocate(inode, generation, (0, 10), true, 2),
        writer.map_range(inode, generation, 0, 10).map(drop),
    ] {
        assert!(matches!(refused, Err(Error::IsADirectory)), "{refused:?}");
    }
    assert_eq!(region.attributes(inode).unwrap(), made);
}

#[test]
fn no_bytes_lie_behind_the_last_position() {
    let scratch = Scratch::new("positions");
    drop(scratch.region(32 << 20));
    let attachment = Attachment::open(&scratch.path, b"/keel", true).unwrap();
    let made = attachment.writer().unwrap();
    let made = made.create(ROOT_INODE, b"file", &FILE).unwrap();
    let flags = libc::O_RDWR | libc::O_CLOEXEC;
    let (descriptor, opened) = attachment.open_description(&made, flags).unwrap();
    let is_refused = |done| matches!(done, Err(Error::Invalid { .. }));
    let last = i64::MAX as u64;
    let stands = || attachment.seek(&opened, 0, libc::SEEK_CUR).unwrap();
    attachment.seek(&opened, i64::MAX, libc::SEEK_SET).unwrap();
    let (mut one, mut other) = ([0; 1], [0; 1]);
    assert_eq!(attachment.read(&opened, &mut []).unwrap(), 0);
    assert_eq!(attachment.write(&opened, &[]).unwrap(), 0);
    assert!(is_refused(attachment.read(&opened, &mut one)));
    assert!(is_refused(attachment.write(&opened, &one)));
    assert!(is_refused(attachment.read_at(&opened, last, &mut one)));
    assert!(is_refused(attachment.write_at(&opened, last, &one)));
    let mut both = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut other)];
    assert!(is_refused(attachment.read_vectored(&opened, &mut both)));
    let read = attachment.read_vectored_at(&opened, last - 1, &mut both);
    assert!(is_refused(read));
    assert_eq!(stands(), last);
    // With one byte less the range is valid, and only the file's size and limits decide.
    let read = attachment.read_vectored_at(&opened, last - 2, &mut both);
    assert_eq!(read.unwrap(), 0);
    let written = attachment.write_at(&opened, last - 2, b"12");
    assert!(matches!(written, Err(Error::TooLarge)), "{written:?}");
    // SAFETY: opened above, and closed once.
    unsafe { libc::close(descriptor) };
}

#[test]
fn pieces_are_written_and_read_as_one() {
    let scratch = Scratch::new("pieces");
    let region = scratch.region(32 << 20);
    let writer = region.writer().unwrap();
    let made = writer.create(ROOT_INODE, b"file", &FILE).unwrap();
    let parts: Vec<Vec<u8>> = [3, 0, 5000, 1, 40_000, 100_000, 0]
        .into_iter()
        .enumerate()
        .map(|(place, length)| vec![place as u8 + 1; length])
        .collect();
    let mut model = Vec::new();
    // Each prefix of the pieces: one store, the log, blocks, past the cache.
    for round in 0..3 {
        for count in 0..=parts.len() {
            let slices: Vec<_> = parts[..count]
                .iter()
                .map(|part| IoSlice::new(part))
                .collect();
            let bytes: Vec<u8> = parts[..count].concat();
            let at = if round == 0 {
                At::End
            } else {
                At::Offset(count as u64 * 3)
            };
            let written = writer
                .write_vectored(made.inode, made.generation, at, &slices, 1)
                .unwrap();
            let expected = if round == 0 { model.len() } else { count * 3 };
            assert_eq!(written, expected as u64);
            let end = expected + bytes.len();
            model.resize(model.len().max(end), 0);
            model[expected..end].copy_from_slice(&bytes);
            assert!(
                content(&region, &writer, b"file").unwrap() == model,
                "{round} {count}"
            );
        }
    }
    let mut first = [0; 10];
    let mut second = vec![0; model.len() + 5];
    let count = writer
        .read_vectored(
            made.inode,
            made.generation,
            7,
            &mut [
                IoSliceMut::new(&mut []),
                IoSliceMut::new(&mut first),
                IoSliceMut::new(&mut []),
                IoSliceMut::new(&mut second),
            ],
        )
        .unwrap();
    assert_eq!(count, model.len() - 7);
    assert!(first == model[7..17] && second[..model.len() - 17] == model[17..]);
}

#[test]
fn writes_of_up_to_eight_bytes_change_only_their_place() {
    let scratch = Scratch::new("eight");
    let region = scratch.region(32 << 20);
    let writer = region.writer().unwrap();
    let made = writer.create(ROOT_INODE, b"file", &FILE).unwrap();
    let mut model = vec![0xaa; 64];
    writer
        .write(made.inode, made.generation, 0, &model, 1)
        .unwrap();
    for length in 1..=9 {
        for offset in 0..=40 {
            let data: Vec<u8> = (0..length)
                .map(|place| (offset * 16 + place) as u8)
                .collect();
            writer
                .write(made.inode, made.generation, offset as u64, &data, 1)
                .unwrap();
            model[offset..offset + length].copy_from_slice(&data);
            assert_eq!(content(&region, &writer, b"file").unwrap(), model);
        }
    }
}

#[test]
fn a_mapped_file_lies_in_a_slot_and_stays_there() {
    let scratch = Scratch::new("mapped");
    let region = scratch.region(32 << 20);
    let writer = region.writer().unwrap();
    let pool = region.free_bytes();
    let made = writer.create(ROOT_INODE, b"file", &FILE).unwrap();
    let (inode, generation) = (made.inode, made.generation);
    writer.write(inode, generation, 0, b"hello", 1).unwrap();
    let at = writer.map_range(inode, generation, 0, 3 << 20).unwrap();
    assert!(at.is_multiple_of(PAGE_BYTES));
    assert_eq!(region_bytes(&region, at, 8), b"hello\0\0\0");
    assert_eq!(region_bytes(&region, at + (3 << 20) - 8, 8), [0; 8]);
    assert_eq!(region.attributes(inode).unwrap().size, 5);
    region.memory.write(at, b"jello");
    assert_eq!(content(&region, &writer, b"file").unwrap(), b"jello");
    writer.set_size(inode, generation, 0, 3).unwrap();
    // Another file does not get the place, because it is mapped.
    let other = writer.create(ROOT_INODE, b"other", &FILE).unwrap();
    let other_at = writer
        .map_range(other.inode, other.generation, 0, 1)
        .unwrap();
    assert_ne!(other_at, at);
    writer.write(inode, generation, 0, b"again", 4).unwrap();
    assert_eq!(writer.map_range(inode, generation, 0, 1).unwrap(), at);
    assert_eq!(region_bytes(&region, at, 8), b"again\0\0\0");
    // More bytes than the region has.
    let full = writer.map_range(inode, generation, 0, 40 << 20);
    assert!(matches!(full, Err(Error::Full)), "{full:?}");
    for name in [&b"file"[..], b"other"] {
        writer.remove(ROOT_INODE, name, 6).unwrap();
    }
    assert!(pool - region.free_bytes() <= PAGE_BYTES);
    let next = writer.create(ROOT_INODE, b"next", &FILE).unwrap();
    let next_at = writer.map_range(next.inode, next.generation, 0, 1).unwrap();
    assert!(next_at == at || next_at == other_at, "a slot is lost");
}

#[test]
fn a_read_in_a_signal_handler_leaves_the_note_of_the_read_that_it_interrupts() {
    let scratch = Scratch::new("notes");
    let region = scratch.region(32 << 20);
    let writer = region.writer().unwrap();
    let made = writer.create(ROOT_INODE, b"file", &FILE).unwrap();
    let (inode, generation) = (made.inode, made.generation);
    let model: Vec<u8> = (0..3_000_000u32).map(|place| (place / 100) as u8).collect();
    writer.write(inode, generation, 0, &model, 1).unwrap();
    let mut read = vec![0; 1000];
    // Interrupt as many reads as there are notes, and one more: the last one uses system calls.
    let mut noted = Vec::new();
    for depth in 0..=WORDS_IN_LINE {
        let offset = 1000 * depth;
        let count = writer
            .read(inode, generation, offset as u64, &mut read)
            .unwrap();
        assert!(
            count == 1000 && read == model[offset..offset + 1000],
            "{depth}"
        );
        let note = region.any_free_note(writer.lane);
        assert_eq!(note.is_some(), depth < WORDS_IN_LINE);
        if let Some(note) = note {
            note.set(
                &region,
                Place::Slot {
                    slot: depth as u64,
                    is_kept: false,
                },
            );
            noted.push(note);
        }
    }
    let at = region.layout.lane(writer.lane.0) + word::NOTES;
    for (depth, note) in noted.into_iter().enumerate().rev() {
        let found = region.memory.load(at + depth as u64 * 8) as u32;
        assert_eq!(found, 1 << 31 | depth as u32, "a note is another's");
        note.clear();
        assert_eq!(region.memory.load(at + depth as u64 * 8) as u32, 0);
    }
}

#[test]
fn memory_waits_only_for_living_readers() {
    let scratch = Scratch::new("waits");
    let region = scratch.region(32 << 20);
    let writer = region.writer().unwrap();
    let reader = region.writer().unwrap();
    let made = writer.create(ROOT_INODE, b"file", &FILE).unwrap();
    let (inode, generation) = (made.inode, made.generation);
    let fill = |step| {
        let full = vec![7; 4_000_000];
        writer.write(inode, generation, 0, &full, step).unwrap();
    };
    fill(1);
    let Ok(Place::Slot { slot, is_kept }) = region.place(region.layout.inode(inode)) else {
        panic!("the file has no slot");
    };
    let is_cleared = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let note = region.any_free_note(reader.lane).unwrap();
        note.set(&region, Place::Slot { slot, is_kept });
        let is_cleared = &is_cleared;
        scope.spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            is_cleared.store(true, std::sync::atomic::Ordering::SeqCst);
            note.clear();
        });
        writer.set_size(inode, generation, 0, 2).unwrap();
        assert!(
            is_cleared.load(std::sync::atomic::Ordering::SeqCst),
            "the writer did not wait"
        );
    });
    // A note of another slot, and a note of a dead process.
    fill(3);
    let other = region.any_free_note(reader.lane).unwrap();
    other.set(
        &region,
        Place::Slot {
            slot: slot + 1,
            is_kept,
        },
    );
    writer.set_size(inode, generation, 0, 4).unwrap();
    fill(5);
    let dead = region.any_free_note(reader.lane).unwrap();
    dead.set(&region, Place::Slot { slot, is_kept });
    region.set_lane_word(reader.lane, word::OWNER, super::DEAD);
    writer.set_size(inode, generation, 0, 6).unwrap();
}

#[test]
fn holes_are_made_found_and_filled() {
    let scratch = Scratch::new("holes");
    let region = scratch.region(64 << 20);
    let writer = region.writer().unwrap();
    let made = writer.create(ROOT_INODE, b"file", &FILE).unwrap();
    let (inode, generation) = (made.inode, made.generation);
    let size = 5 * PAGE_BYTES + 100;
    let mut model = vec![7; size as usize];
    writer.write(inode, generation, 0, &model, 1).unwrap();
    let before = region.free_bytes();
    let data = |offset| region.next_data(inode, generation, offset).unwrap();
    let hole = |offset| region.next_hole(inode, generation, offset).unwrap();
    assert_eq!((data(10), hole(10)), (Some(10), Some(size)));
    assert_eq!((data(size), hole(size)), (None, None));
    let punched = (PAGE_BYTES / 2, 3 * PAGE_BYTES + 5);
    writer.punch(inode, generation, punched, 2).unwrap();
    model[punched.0 as usize..punched.1 as usize].fill(0);
    assert!(content(&region, &writer, b"file").unwrap() == model);
    assert_eq!(region.free_bytes() - before, 2 * PAGE_BYTES);
    assert_eq!(hole(10), Some(PAGE_BYTES));
    assert_eq!(data(PAGE_BYTES), Some(3 * PAGE_BYTES));
    assert_eq!(hole(2 * PAGE_BYTES), Some(2 * PAGE_BYTES));
    // Nothing prevents that the range is allocated again.
    writer
        .allocate(inode, generation, (0, size), true, 3)
        .unwrap();
    assert_eq!(region.free_bytes(), before);
    assert!(content(&region, &writer, b"file").unwrap() == model);
    // Behind the end: first without, then with a change of size.
    writer
        .allocate(inode, generation, (0, size + PAGE_BYTES), true, 3)
        .unwrap();
    assert_eq!(region.attributes(inode).unwrap().size, size);
    writer
        .allocate(inode, generation, (0, size + PAGE_BYTES), false, 3)
        .unwrap();
    model.resize((size + PAGE_BYTES) as usize, 0);
    assert!(content(&region, &writer, b"file").unwrap() == model);
    let full = writer.allocate(inode, generation, (0, 200 << 20), false, 3);
    assert!(matches!(full, Err(Error::Full)));
    // A small file, within and across its end.
    let small = writer.create(ROOT_INODE, b"small", &FILE).unwrap();
    writer
        .write(small.inode, small.generation, 0, &[9; 3000], 1)
        .unwrap();
    writer
        .punch(small.inode, small.generation, (1000, 5000), 2)
        .unwrap();
    let mut expected = vec![9; 3000];
    expected[1000..].fill(0);
    assert_eq!(content(&region, &writer, b"small").unwrap(), expected);
}

#[test]
fn a_file_grows_until_the_region_is_full_and_not_only_its_pages_of_pieces() {
    let scratch = Scratch::new("grows");
    let region = scratch.region(16 << 20);
    let free_bytes = region.free_bytes();
    let writer = region.writer().unwrap();
    let made = writer.create(ROOT_INODE, b"log", &FILE).unwrap();
    let mut size = 0_u64;
    let line = [7; 1000];
    let append = |now_ns| {
        let pieces = [IoSlice::new(&line)];
        let write = || writer.write_vectored(made.inode, made.generation, At::End, &pieces, now_ns);
        writer.or_after_reclaiming(write)
    };
    while append(size).is_ok() {
        size += 1000;
        assert!(region.free_bytes() < free_bytes);
    }
    assert!(matches!(append(1), Err(Error::Full)));
    assert_eq!(size, free_bytes / 1000 * 1000);
    assert_eq!(region.free_bytes(), 0);
    assert!(crate::check::check(&region, false).unwrap().is_clean());
    writer.remove(ROOT_INODE, b"log", 1).unwrap();
    writer.reclaim_orphans().unwrap();
    assert_eq!(region.free_bytes(), free_bytes);
}
