//! Tests of the bytes that readers accept while another process finishes or undoes the write of a dead writer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use crate::layout::attribute;
use crate::memory::Killed;
use crate::space::Place;
use crate::{Logging, ROOT_INODE, Region};

use super::{FILE, REGION_BYTES, Scratch, bury};

const LENGTH: usize = 2000;

/// Lets `call` die at its store number `stores`. Returns whether it died.
fn dies_at(region: &Region, stores: u64, call: impl FnOnce()) -> bool {
    let left = &region.memory.stores_left;
    left.store(stores, Ordering::Relaxed);
    let done = catch_unwind(AssertUnwindSafe(call));
    left.store(u64::MAX, Ordering::Relaxed);
    match done {
        Ok(()) => false,
        Err(reason) if reason.is::<Killed>() => true,
        Err(reason) => std::panic::resume_unwind(reason),
    }
}

/// The writer dies at each of its stores, and after each death its rescuer dies at each of its own. While the file's
/// number is even, all bytes are the old ones or all are the new ones. A reader would copy them and find the number
/// unchanged.
#[test]
fn an_even_number_never_stands_over_half_written_bytes() {
    for logging in [Logging::Redo, Logging::Undo] {
        let scratch = Scratch::new(&format!("rescue-{logging:?}"));
        let region = scratch.region(REGION_BYTES);
        region.set_logging(logging);
        let writer = region.writer().unwrap();
        let made = writer.create(ROOT_INODE, b"file", &FILE).unwrap();
        let (inode, generation) = (made.inode, made.generation);
        let (mut old, mut new) = (1u8, 2u8);
        let write = |byte: u8| {
            let writer = region.writer().unwrap();
            writer
                .write(inode, generation, 0, &[byte; LENGTH], 1)
                .unwrap();
        };
        write(old);
        drop(writer);
        let inode_at = region.layout.inode(inode);
        let Ok(Place::Piece { at, .. }) = region.place(inode_at) else {
            panic!("the file has no piece");
        };
        let (mut rescues, mut settled_to) = (0, [0, 0]);
        let look = |what: &str, of: [u8; 2]| {
            if region.memory.load(inode_at + attribute::SEQUENCE) % 2 == 1 {
                return None;
            }
            let mut bytes = [0; LENGTH];
            region.memory.read(at, &mut bytes);
            let first = bytes[0];
            assert!(
                of.contains(&first) && bytes.iter().all(|byte| *byte == first),
                "{logging:?}, {what}: a torn read"
            );
            Some(first)
        };
        'writer: for stores in 0.. {
            for rescuer_stores in 0.. {
                let what =
                    format!("{stores} stores of the writer, {rescuer_stores} of the rescuer");
                // The lane is taken with a compare-and-exchange, at which no process dies.
                if !dies_at(&region, stores, || write(new)) {
                    assert!(stores > 8, "only {stores} stores");
                    break 'writer;
                }
                bury(&region);
                look(&what, [old, new]);
                let died = dies_at(&region, rescuer_stores, || {
                    region.settle_dead_lanes().unwrap();
                });
                look(&what, [old, new]);
                if died {
                    rescues += 1;
                    bury(&region);
                    region.settle_dead_lanes().unwrap();
                }
                let found = look(&what, [old, new]).expect("the rescue makes the number even");
                settled_to[usize::from(found == new)] += 1;
                if found == new {
                    std::mem::swap(&mut old, &mut new);
                }
                assert_eq!(region.memory.load(inode_at + attribute::LOCK), 0);
                if !died {
                    break;
                }
            }
        }
        assert!(rescues > 100, "{logging:?}: only {rescues} rescuers died");
        assert!(settled_to.iter().all(|count| *count > 10), "{settled_to:?}");
        assert!(
            matches!(region.place(inode_at), Ok(Place::Piece { at: found, .. }) if found == at)
        );
    }
}
