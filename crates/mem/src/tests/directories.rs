//! Directories that are removed while a process has them open, or is about to use them.

use std::os::fd::{FromRawFd, OwnedFd};

use super::*;
use crate::{Attachment, Node};

#[test]
fn a_removed_directory_keeps_its_description_while_it_is_open() {
    let scratch = Scratch::new("directories-open");
    drop(scratch.region(16 << 20));
    let here = Attachment::open(&scratch.path, b"/keel", true).unwrap();
    let stubs = || {
        std::fs::read_dir(crate::stubs_path(&scratch.path))
            .unwrap()
            .count()
    };
    // Once by its removal, once by another directory that gets its name.
    for replaces in [false, true] {
        let writer = here.writer().unwrap();
        let made = writer.create(ROOT_INODE, b"one", &DIRECTORY).unwrap();
        let (descriptor, opened) = here.open_description(&made, libc::O_RDONLY).unwrap();
        // SAFETY: opened just now, and no other code knows it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        if replaces {
            writer.create(ROOT_INODE, b"two", &DIRECTORY).unwrap();
            writer
                .rename((ROOT_INODE, b"two"), (ROOT_INODE, b"one"), 2)
                .unwrap();
        } else {
            writer.remove_directory(ROOT_INODE, b"one", 2).unwrap();
        }
        let swept = here.sweep().unwrap();
        assert_eq!((swept.descriptions, swept.stubs), (0, 0), "{replaces}");
        // A caller that still has its attributes cannot open it, and does not disturb processes that have it open.
        let again = here.open_description(&made, libc::O_RDONLY);
        assert!(matches!(again, Err(Error::NotFound)));
        assert_eq!(here.sweep().unwrap().descriptions, 0, "{replaces}");
        drop(descriptor);
        here.closed(&opened).unwrap();
        assert_eq!(stubs(), 0, "{replaces}");
        assert_eq!(here.sweep().unwrap().descriptions, 1, "{replaces}");
    }
}

#[test]
fn a_directory_with_the_number_of_a_removed_one_is_not_meant() {
    let scratch = Scratch::new("directories-reused");
    let region = scratch.region(16 << 20);
    let writer = region.writer().unwrap();
    let file = writer.create(ROOT_INODE, b"file", &FILE).unwrap().node();
    let gone = writer.create(ROOT_INODE, b"gone", &DIRECTORY).unwrap();
    writer.remove_directory(ROOT_INODE, b"gone", 2).unwrap();
    let other = writer.create(ROOT_INODE, b"other", &DIRECTORY).unwrap();
    assert_eq!(other.inode, gone.inode);
    let gone = gone.node();
    writer.create(other.inode, b"inside", &FILE).unwrap();
    writer.create(other.inode, b"folder", &DIRECTORY).unwrap();

    let root = Node::ROOT;
    let results = [
        writer.create(gone, b"new", &FILE).map(drop),
        writer.create_with(gone, b"new", &FILE, b"x").map(drop),
        writer.link(file, gone, b"new", 3),
        writer.remove(gone, b"inside", 3),
        writer.remove_directory(gone, b"folder", 3),
        writer.rename((gone, b"inside"), (root, b"new"), 3),
        writer.rename((root, b"file"), (gone, b"new"), 3),
        writer.look_up(gone, b"inside").map(drop),
        writer.list(gone, 0, 9).map(drop),
        region.look_up(gone, b"inside").map(drop),
        region.list(gone, 0, 9).map(drop),
    ];
    for (place, result) in results.into_iter().enumerate() {
        assert!(matches!(result, Err(Error::Stale)), "{place}: {result:?}");
    }
    // A file of the same number is not linked either.
    let before = Node {
        generation: file.generation + 1000,
        ..file
    };
    let linked = writer.link(before, root, b"new", 3);
    assert!(matches!(linked, Err(Error::Stale)), "{linked:?}");
    assert_eq!(
        names(&writer, other.inode),
        [b"folder".to_vec(), b"inside".to_vec()]
    );
}
