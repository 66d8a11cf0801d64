//! Files that are removed while a process reads them in place, or while the kernel refuses a call that this needs.

use super::*;
use crate::Attachment;
use crate::stub::{StubName, lock_lent};

fn attach(scratch: &Scratch, writable: bool) -> Attachment {
    Attachment::open(&scratch.path, b"/keel", writable).unwrap()
}

#[test]
fn a_removed_file_keeps_its_slot_while_its_memory_is_lent() {
    use std::os::fd::AsRawFd;
    let scratch = Scratch::new("removal-lent");
    drop(scratch.region(32 << 20));
    let here = attach(&scratch, true);
    let (region, writer) = (here.region(), here.writer().unwrap());
    let free = region.free_bytes();
    let made = writer.create(ROOT_INODE, b"file", &FILE).unwrap();
    writer
        .write(made.inode, made.generation, 0, &[7; 3 << 20], 1)
        .unwrap();
    drop(here.lend(&made, 0, 10).unwrap());
    // A process that may only read locks the bytes between the remover's two looks.
    let stubs = region.stubs.as_ref().unwrap();
    let name = StubName::new(made.node(), false);
    let stub = stubs.open_existing(&name, false, true).unwrap();
    lock_lent(stub.as_raw_fd(), 0).unwrap();
    writer.remove(ROOT_INODE, b"file", 2).unwrap();
    assert_eq!(region.orphans(), 1);
    assert!(region.free_bytes() < free);
    // Another file does not get the slot.
    let other = writer.create(ROOT_INODE, b"other", &FILE).unwrap();
    writer
        .write(other.inode, other.generation, 0, &[8; 3 << 20], 3)
        .unwrap();
    drop(stub);
    assert_eq!(here.sweep().unwrap().files, 1);
    writer.remove(ROOT_INODE, b"other", 4).unwrap();
    assert_eq!((region.orphans(), region.free_bytes()), (0, free));
}

#[test]
fn a_file_with_the_number_of_a_removed_one_is_not_lent_in_its_place() {
    let scratch = Scratch::new("removal-reused");
    drop(scratch.region(32 << 20));
    let (here, there) = (attach(&scratch, true), attach(&scratch, false));
    let writer = here.writer().unwrap();
    let gone = writer.create(ROOT_INODE, b"gone", &FILE).unwrap();
    writer.remove(ROOT_INODE, b"gone", 2).unwrap();
    let other = writer.create(ROOT_INODE, b"other", &FILE).unwrap();
    assert_eq!(other.inode, gone.inode);
    writer
        .write(other.inode, other.generation, 0, b"secret", 3)
        .unwrap();
    drop(here.lend(&other, 0, 6).unwrap());
    assert_eq!(there.lend(&other, 0, 6).unwrap().bytes().len(), 6);
    // The stub that a reader has opened just before the removal.
    let name = StubName::new(gone.node(), false);
    let folder = crate::stubs_path(&scratch.path);
    let name = std::str::from_utf8(name.as_bytes()).unwrap();
    std::fs::write(folder.join(name), b"").unwrap();
    let lent = there.lend(&gone, 0, 6);
    assert!(matches!(lent, Err(Error::NotFound)));
}

#[test]
fn a_name_is_gone_although_its_memory_cannot_be_freed_yet() {
    let scratch = Scratch::new("removal-refused");
    drop(scratch.region(32 << 20));
    let here = attach(&scratch, true);
    let writer = here.writer().unwrap();
    for name in [b"a", b"b", b"c"] {
        let made = writer.create(ROOT_INODE, name, &FILE).unwrap();
        // Afterwards it has a stub, which has to be opened to look for locks.
        drop(here.lend(&made, 0, 1).unwrap());
    }
    // SAFETY: plain system calls; each test has a process of its own.
    let limit = |soft: Option<libc::rlim_t>| unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        let before = limit.rlim_cur;
        limit.rlim_cur = soft.unwrap_or(before);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        before
    };
    let before = limit(Some(0));
    let removed = writer.remove(ROOT_INODE, b"a", 2);
    let renamed = writer.rename((ROOT_INODE, b"b"), (ROOT_INODE, b"c"), 2);
    limit(Some(before));
    assert!(
        removed.is_ok() && renamed.is_ok(),
        "{removed:?} {renamed:?}"
    );
    assert_eq!(names(&writer, ROOT_INODE), [b"c"]);
    assert_eq!(here.region().orphans(), 2);
    assert_eq!(here.sweep().unwrap().files, 2);
}

#[test]
fn one_call_can_append_without_the_description_doing_so() {
    use std::io::IoSlice;
    use std::os::fd::{FromRawFd, OwnedFd};
    let scratch = Scratch::new("removal-append");
    drop(scratch.region(16 << 20));
    let here = attach(&scratch, true);
    let made = here.writer().unwrap().create(ROOT_INODE, b"file", &FILE);
    let (descriptor, opened) = here.open_description(&made.unwrap(), libc::O_RDWR).unwrap();
    // SAFETY: opened just now, and no other code knows it.
    let _descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    here.write_at(&opened, 0, b"01234567").unwrap();
    let flags = here.flags(&opened);
    let parts = [IoSlice::new(b"ab"), IoSlice::new(b"cd")];
    assert_eq!(here.append_vectored(&opened, &parts, false).unwrap(), 4);
    assert_eq!(here.write(&opened, b"XX").unwrap(), 2);
    assert_eq!(here.append_vectored(&opened, &parts, true).unwrap(), 4);
    assert_eq!(here.write(&opened, b"YY").unwrap(), 2);
    assert_eq!(here.flags(&opened), flags);
    let mut bytes = [0; 30];
    let count = here.read_at(&opened, 0, &mut bytes).unwrap();
    assert_eq!(&bytes[..count], b"XX234567abcdabcdYY");
}
