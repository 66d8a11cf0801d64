//! Tests of opening, paths, and the recovery of dead processes.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

use crate::{
    Attachment, Changes, Credentials, Error, Last, NewInode, Node, PathBuffer, ROOT_INODE, Region,
    RegionOptions, Rename, Walked,
};

const FILE: NewInode = NewInode {
    mode: libc::S_IFREG | 0o644,
    user: 7,
    group: 8,
    now_ns: 1,
};
const DIRECTORY: NewInode = NewInode {
    mode: libc::S_IFDIR | 0o755,
    ..FILE
};
const LINK: NewInode = NewInode {
    mode: libc::S_IFLNK | 0o777,
    ..FILE
};
const ROOT: Credentials<'_> = Credentials {
    user: 0,
    group: 0,
    groups: &[],
};

struct Scratch {
    folder: PathBuf,
}

impl Scratch {
    fn new(name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("keel-mem-open-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        let scratch = Self { folder };
        let options = RegionOptions {
            capacity_bytes: 32 << 20,
            files_max: Some(500),
            lanes: 8,
        };
        drop(Region::create(&scratch.path(), &options, &DIRECTORY).unwrap());
        scratch
    }

    fn path(&self) -> PathBuf {
        self.folder.join("region")
    }

    fn attach(&self) -> Attachment {
        Attachment::open(&self.path(), b"/keel/", true).unwrap()
    }

    fn stubs(&self) -> usize {
        std::fs::read_dir(self.folder.join("region.stubs"))
            .unwrap()
            .count()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn own(descriptor: RawFd) -> OwnedFd {
    // SAFETY: opened by the test just now, and no other code knows it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

#[test]
fn a_deleted_file_lives_until_its_last_descriptor_closes() {
    let scratch = Scratch::new("deleted");
    let (here, there) = (scratch.attach(), scratch.attach());
    let made = here
        .writer()
        .unwrap()
        .create(ROOT_INODE, b"file", &FILE)
        .unwrap();
    let (descriptor, opened) = here.open_description(&made, libc::O_RDWR).unwrap();
    let descriptor = own(descriptor);
    assert_eq!(here.write(&opened, b"hello").unwrap(), 5);
    there
        .writer()
        .unwrap()
        .remove(ROOT_INODE, b"file", 2)
        .unwrap();
    assert!(matches!(
        there.open_description(&made, libc::O_RDONLY),
        Err(Error::NotFound)
    ));
    assert_eq!(there.sweep().unwrap().files, 0);
    assert_eq!(there.region().orphans(), 1);
    let mut bytes = [0; 9];
    assert_eq!(here.read_at(&opened, 0, &mut bytes).unwrap(), 5);
    let link = here
        .writer()
        .unwrap()
        .link(made.inode, ROOT_INODE, b"again", 3);
    assert!(matches!(link, Err(Error::NotFound)), "{link:?}");
    // This simulates that its process was killed.
    drop(descriptor);
    let swept = there.sweep().unwrap();
    assert_eq!((swept.files, swept.descriptions), (1, 1));
    assert_eq!(there.region().orphans(), 0);
    assert_eq!(there.region().inodes(), 1);
    assert_eq!(scratch.stubs(), 0);
}

#[test]
fn the_last_to_close_a_deleted_file_gives_it_back() {
    let scratch = Scratch::new("last");
    let here = scratch.attach();
    let made = here
        .writer()
        .unwrap()
        .create(ROOT_INODE, b"file", &FILE)
        .unwrap();
    let free = here.region().free_bytes();
    let (descriptor, opened) = here.open_description(&made, libc::O_WRONLY).unwrap();
    here.write(&opened, &vec![1; 3 << 20]).unwrap();
    assert!(here.region().free_bytes() < free);
    here.writer()
        .unwrap()
        .remove(ROOT_INODE, b"file", 2)
        .unwrap();
    here.closing(&opened);
    drop(own(descriptor));
    here.closed(&opened).unwrap();
    assert_eq!(here.region().free_bytes(), free);
    assert_eq!(here.region().inodes(), 1);
    assert_eq!(here.sweep().unwrap(), crate::Swept::default());
}

#[test]
fn descriptors_share_the_state_of_their_description() {
    let scratch = Scratch::new("shared");
    let (here, there) = (scratch.attach(), scratch.attach());
    let made = here
        .writer()
        .unwrap()
        .create(ROOT_INODE, b"file", &FILE)
        .unwrap();
    let (descriptor, opened) = here
        .open_description(&made, libc::O_RDWR | libc::O_CLOEXEC)
        .unwrap();
    let descriptor = own(descriptor);
    let copy = descriptor.try_clone().unwrap();
    use std::os::fd::AsRawFd;
    let found = there.description_of(copy.as_raw_fd()).unwrap();
    assert_eq!(found, opened);
    here.write(&opened, b"one ").unwrap();
    there.write(&found, b"two").unwrap();
    assert_eq!(here.seek(&opened, 0, libc::SEEK_CUR).unwrap(), 7);
    assert_eq!(there.seek(&found, -3, libc::SEEK_END).unwrap(), 4);
    let mut bytes = [0; 9];
    assert_eq!(here.read(&opened, &mut bytes).unwrap(), 3);
    assert_eq!(&bytes[..3], b"two");
    assert_eq!(here.read(&opened, &mut bytes).unwrap(), 0);
    here.set_flags(&opened, libc::O_APPEND);
    there.seek(&found, 0, libc::SEEK_SET).unwrap();
    there.write(&found, b"!").unwrap();
    assert_eq!(there.seek(&found, 0, libc::SEEK_CUR).unwrap(), 8);
    assert!(here.flags(&opened) & libc::O_APPEND != 0);
    assert!(matches!(
        here.seek(&opened, -9, libc::SEEK_CUR),
        Err(Error::Invalid { .. })
    ));
    // A foreign descriptor is not taken for one of the region.
    let other = std::fs::File::open(scratch.path()).unwrap();
    assert_eq!(here.description_of(other.as_raw_fd()), None);
    let beside = std::fs::File::create(scratch.folder.join("beside")).unwrap();
    use std::io::{Seek, SeekFrom};
    (&beside)
        .seek(SeekFrom::Start(opened.description.into()))
        .unwrap();
    assert_eq!(here.description_of(beside.as_raw_fd()), None);
    assert_eq!(here.description_of(9999), None);
    // Access modes.
    let (reading, read_only) = here.open_description(&made, libc::O_RDONLY).unwrap();
    let (writing, write_only) = here.open_description(&made, libc::O_WRONLY).unwrap();
    assert!(matches!(
        here.write(&read_only, b"x"),
        Err(Error::NotOpenFor)
    ));
    assert!(matches!(
        here.read(&write_only, &mut bytes),
        Err(Error::NotOpenFor)
    ));
    drop((own(reading), own(writing)));
}

#[test]
fn descriptions_run_out_and_come_back() {
    let scratch = Scratch::new("many");
    let here = scratch.attach();
    let made = here
        .writer()
        .unwrap()
        .create(ROOT_INODE, b"file", &FILE)
        .unwrap();
    let count = here.region().layout().description_count;
    assert_eq!(count, 1024);
    for _ in 0..3 * count {
        // No close is reported, as when a process dies.
        let (descriptor, _) = here.open_description(&made, libc::O_RDONLY).unwrap();
        drop(own(descriptor));
    }
}

fn walk(
    here: &Attachment,
    start: Node,
    path: &str,
    last: Last,
) -> Result<(Walked, String), String> {
    let mut buffer = PathBuffer::new();
    let walked = here
        .walk(start, path.as_bytes(), last, &ROOT, &mut buffer)
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(buffer.as_bytes()).into_owned();
    Ok((walked, text))
}

#[test]
fn paths_lead_through_names_links_and_borders() {
    let scratch = Scratch::new("paths");
    let here = scratch.attach();
    let writer = here.writer().unwrap();
    let a = writer.create(ROOT_INODE, b"a", &DIRECTORY).unwrap();
    let b = writer.create(a.inode, b"b", &DIRECTORY).unwrap();
    let file = writer.create(b.inode, b"file", &FILE).unwrap();
    for (name, target) in [
        ("up", "../a/b/file"),
        ("absolute", "/keel/a/b"),
        ("out", "/etc/passwd"),
        ("beside", "/keeler/x"),
        ("root", "/keel"),
        ("ring", "ring"),
        ("nowhere", "missing"),
        ("border", "../../../tmp/x"),
    ] {
        writer
            .create_with(a.inode, name.as_bytes(), &LINK, target.as_bytes())
            .unwrap();
    }
    let inode = |path: &str| match walk(&here, Node::ROOT, path, Last::Follow) {
        Ok((Walked::Found { attributes, .. }, _)) => attributes.inode,
        other => panic!("{path}: {other:?}"),
    };
    for path in [
        "a/b/file",
        "/a//b/./file",
        "a/up",
        "a/absolute/file",
        "a/b/../b/file",
        "a/root/a/b/file",
    ] {
        assert_eq!(inode(path), file.inode, "{path}");
    }
    for path in ["", "/", ".", "a/..", "a/root", "a/root/"] {
        if !path.is_empty() {
            assert_eq!(inode(path), ROOT_INODE, "{path}");
        }
    }
    assert_eq!(inode("a/absolute/"), b.inode);
    for (path, out) in [
        ("a/out", "/etc/passwd"),
        ("a/beside", "/keeler/x"),
        ("../tmp/y", "/tmp/y"),
        ("..", "/"),
        ("a/../../etc//x/", "/etc//x/"),
        ("a/border", "/../tmp/x"),
        ("a/out/more", "/etc/passwd/more"),
    ] {
        match walk(&here, Node::ROOT, path, Last::Follow) {
            Ok((Walked::Outside, text)) => assert_eq!(text, out, "{path}"),
            other => panic!("{path}: {other:?}"),
        }
    }
    for (path, error) in [
        ("a/ring", "too many symbolic links"),
        ("a/b/file/x", "not a directory"),
        ("a/b/file/", "not a directory"),
        ("a/b/file/..", "not a directory"),
        ("a/x/y", "no such file or directory"),
        ("", "no such file or directory"),
    ] {
        let walked = walk(&here, Node::ROOT, path, Last::Follow);
        assert_eq!(walked.unwrap_err(), error, "{path}");
    }
    let long = "n".repeat(256);
    assert!(walk(&here, Node::ROOT, &long, Last::Follow).is_err());
    assert!(walk(&here, Node::ROOT, &"x/".repeat(3000), Last::Follow).is_err());
    match walk(&here, Node::ROOT, "a/nowhere", Last::Follow) {
        Ok((Walked::Missing { parent, name, .. }, text)) => {
            assert_eq!((parent.inode, &text[name]), (a.inode, "missing"));
        }
        other => panic!("{other:?}"),
    }
    match walk(&here, Node::ROOT, "a/ring", Last::NoFollow) {
        Ok((Walked::Found { attributes, .. }, _)) => assert!(attributes.is_symbolic_link()),
        other => panic!("{other:?}"),
    }
    let mut path = PathBuffer::new();
    here.path_of(b.node(), &mut path).unwrap();
    assert_eq!(path.as_bytes(), b"/keel/a/b");
    here.path_of(Node::ROOT, &mut path).unwrap();
    assert_eq!(path.as_bytes(), b"/keel");
    // A removed directory leads nowhere, also when its inode number is in use again.
    let gone = writer.create(ROOT_INODE, b"gone", &DIRECTORY).unwrap();
    writer.remove_directory(ROOT_INODE, b"gone", 3).unwrap();
    let again = writer.create(ROOT_INODE, b"again", &DIRECTORY).unwrap();
    assert_eq!(gone.inode, again.inode);
    assert!(walk(&here, gone.node(), "x", Last::Follow).is_err());
    assert!(here.path_of(gone.node(), &mut path).is_err());
}

#[test]
fn permissions_are_checked_but_not_for_root() {
    let scratch = Scratch::new("permissions");
    let here = scratch.attach();
    let writer = here.writer().unwrap();
    let closed = writer.create(ROOT_INODE, b"closed", &DIRECTORY).unwrap();
    writer.create(closed.inode, b"file", &FILE).unwrap();
    let changes = Changes {
        mode: Some(0o1050),
        user: Some(5),
        ..Changes::default()
    };
    writer.set_attributes(closed.node(), &changes, 4).unwrap();
    let changed = here.region().attributes(closed.inode).unwrap();
    assert_eq!(changed.mode, libc::S_IFDIR | 0o1050);
    assert_eq!((changed.user, changed.group), (5, 8));
    let may = |user, group, groups: &[u32]| {
        let who = Credentials {
            user,
            group,
            groups,
        };
        here.walk(
            Node::ROOT,
            b"closed/file",
            Last::Follow,
            &who,
            &mut PathBuffer::new(),
        )
        .is_ok()
    };
    assert!(may(0, 0, &[]) && may(9, 8, &[]) && may(9, 9, &[8]));
    assert!(!may(9, 9, &[]) && !may(5, 8, &[]));
    let other = Credentials {
        user: 9,
        group: 8,
        groups: &[],
    };
    let file = here.look_up(closed.inode, b"file").unwrap();
    assert!(!other.may_remove(&changed, &file) && ROOT.may_remove(&changed, &file));
}

#[test]
fn two_names_are_exchanged_as_a_whole() {
    let scratch = Scratch::new("exchange");
    let here = scratch.attach();
    let writer = here.writer().unwrap();
    let directory = writer.create(ROOT_INODE, b"d", &DIRECTORY).unwrap();
    let inner = writer
        .create(directory.inode, b"inner", &DIRECTORY)
        .unwrap();
    let file = writer.create(ROOT_INODE, b"file", &FILE).unwrap();
    let names = ((ROOT_INODE, &b"file"[..]), (directory.inode, &b"inner"[..]));
    assert!(matches!(
        writer.rename_as(names.0, names.1, 2, Rename::Keep),
        Err(Error::Exists)
    ));
    writer
        .rename_as(names.0, names.1, 2, Rename::Exchange)
        .unwrap();
    let found = |directory, name: &[u8]| here.look_up(directory, name).unwrap().inode;
    assert_eq!(found(ROOT_INODE, b"file"), inner.inode);
    assert_eq!(found(directory.inode, b"inner"), file.inode);
    let links = |inode| here.region().attributes(inode).unwrap().links;
    assert_eq!((links(ROOT_INODE), links(directory.inode)), (4, 2));
    let mut path = PathBuffer::new();
    here.path_of(inner.node(), &mut path).unwrap();
    assert_eq!(path.as_bytes(), b"/keel/file");
    let into_itself =
        writer.rename_as((ROOT_INODE, b"d"), (inner.inode, b"x"), 2, Rename::Exchange);
    assert!(matches!(into_itself, Err(Error::NotFound)));
}

#[test]
fn a_region_that_is_only_read_is_not_written_to() {
    let scratch = Scratch::new("reading");
    let here = scratch.attach();
    let made = here
        .writer()
        .unwrap()
        .create(ROOT_INODE, b"file", &FILE)
        .unwrap();
    let (descriptor, opened) = here.open_description(&made, libc::O_RDWR).unwrap();
    here.write(&opened, b"bytes").unwrap();
    drop(own(descriptor));
    let reader = Attachment::open(&scratch.path(), b"/keel", false).unwrap();
    assert!(matches!(reader.writer(), Err(Error::ReadOnly)));
    let found = reader.look_up(ROOT_INODE, b"file").unwrap();
    assert!(matches!(
        reader.open_description(&found, libc::O_RDWR),
        Err(Error::ReadOnly)
    ));
    let (descriptor, opened) = reader.open_description(&found, libc::O_RDONLY).unwrap();
    let mut bytes = [0; 5];
    assert_eq!(reader.read_at(&opened, 0, &mut bytes).unwrap(), 5);
    assert_eq!(&bytes, b"bytes");
    drop(own(descriptor));
    assert_eq!(reader.region().list(ROOT_INODE, 0, 9).unwrap().len(), 1);
}

#[test]
fn directories_are_listed_on_from_where_a_call_stopped() {
    let scratch = Scratch::new("list");
    let here = scratch.attach();
    let writer = here.writer().unwrap();
    for number in 0..100 {
        let name = format!("{number}-{}", "x".repeat(number));
        writer.create(ROOT_INODE, name.as_bytes(), &FILE).unwrap();
    }
    let mut seen = Vec::new();
    let mut position = 0;
    loop {
        let some = writer.list(ROOT_INODE, position, 7).unwrap();
        let Some(last) = some.last() else { break };
        position = last.position;
        // The name at which the next call continues is removed, and its cell is used again.
        writer.remove(ROOT_INODE, &last.name, 3).unwrap();
        if seen.len() < 90 {
            let name = format!("new-{position}");
            writer.create(ROOT_INODE, name.as_bytes(), &FILE).unwrap();
        }
        seen.extend(
            some.into_iter()
                .map(|entry| entry.name)
                .filter(|name| !name.starts_with(b"new-")),
        );
    }
    assert_eq!(seen.len(), 100);
}

#[test]
fn lent_bytes_stay_in_place_and_show_later_writes() {
    let scratch = Scratch::new("lent");
    let (here, there) = (scratch.attach(), scratch.attach());
    let made = here
        .writer()
        .unwrap()
        .create_with(ROOT_INODE, b"file", &FILE, &[7; 5000])
        .unwrap();
    let reading = Attachment::open(&scratch.path(), b"/keel", false).unwrap();
    assert!(reading.lend(&made, 0, 10).is_err());
    let lent = here.lend(&made, 1000, 1 << 30).unwrap();
    let value = |lent: &crate::Lent<'_>, place: usize| {
        lent.bytes()[place].load(std::sync::atomic::Ordering::Relaxed)
    };
    assert_eq!(lent.bytes().len(), 4000);
    assert_eq!((value(&lent, 0), value(&lent, 3999)), (7, 7));
    let moment = lent.moment().unwrap();
    assert!(lent.is_still(moment));
    let write = |bytes: &[u8]| {
        let writer = there.writer().unwrap();
        writer
            .write(made.inode, made.generation, 1000, bytes, 2)
            .unwrap();
    };
    write(&[8; 100]);
    assert!(!lent.is_still(moment));
    assert_eq!((value(&lent, 99), value(&lent, 100)), (8, 7));
    // Also for a read-only process, now that the file lies in a slot.
    let read = reading.lend(&made, 0, 1200).unwrap();
    assert_eq!((value(&read, 999), value(&read, 1000)), (7, 8));
    // The file is made shorter, and deleted: lent bytes can still be read.
    let free = here.region().free_bytes();
    let writer = there.writer().unwrap();
    writer.set_size(made.inode, made.generation, 0, 3).unwrap();
    assert_eq!(here.region().free_bytes(), free);
    assert_eq!(value(&lent, 100), 7);
    writer.remove(ROOT_INODE, b"file", 4).unwrap();
    drop(lent);
    assert_eq!(there.sweep().unwrap().files, 0);
    assert_eq!(value(&read, 999), 7);
    drop(read);
    assert_eq!(there.sweep().unwrap().files, 1);
    assert_eq!(here.region().free_bytes(), free + crate::PAGE_BYTES);
    assert_eq!(scratch.stubs(), 0);
    assert!(here.lend(&made, 0, 10).is_err());
}

#[test]
fn one_process_claims_a_file_until_it_releases_it() {
    let scratch = Scratch::new("claimed");
    let (here, there) = (scratch.attach(), scratch.attach());
    let writer = here.writer().unwrap();
    let made = writer.create(ROOT_INODE, b"file", &FILE).unwrap();
    writer
        .set_size(made.inode, made.generation, 1000, 2)
        .unwrap();
    let lent = here.lend(&made, 0, 1000).unwrap();
    let other = there.lend(&made, 0, 1000).unwrap();
    let reading = Attachment::open(&scratch.path(), b"/keel", false).unwrap();
    let read = reading.lend(&made, 0, 1000).unwrap();
    assert!(!read.is_claimed().unwrap());
    assert!(matches!(read.claim(), Err(Error::ReadOnly)));
    assert!(lent.claim().unwrap());
    // A lender's own claim does not count as another's.
    assert!(!lent.is_claimed().unwrap());
    assert!(read.is_claimed().unwrap() && other.is_claimed().unwrap());
    assert!(!other.claim().unwrap());
    // As words: 15 whole lines of 64 bytes, whose changes others see at once.
    assert_eq!((lent.lines().len(), read.lines().len()), (15, 15));
    let order = std::sync::atomic::Ordering::Relaxed;
    lent.lines()[14].0[7].store(0x55aa, order);
    assert_eq!(read.lines()[14].0[7].load(order), 0x55aa);
    assert_eq!(here.lend(&made, 8, 900).unwrap().lines().len(), 0);
    drop(lent);
    assert!(!read.is_claimed().unwrap());
    assert!(other.claim().unwrap());
}

#[test]
fn memory_on_tmpfs_is_locked_and_nothing_is_made() {
    let folder = std::path::Path::new("/dev/shm");
    if !folder.is_dir() {
        println!("skipped: no tmpfs at /dev/shm");
        return;
    }
    let path = folder.join(format!("keel-mem-resident-{}", std::process::id()));
    let options = RegionOptions {
        capacity_bytes: 32 << 20,
        files_max: Some(500),
        lanes: 8,
    };
    let region = Region::create(&path, &options, &DIRECTORY).unwrap();
    let writer = region.writer().unwrap();
    let made = writer.create(ROOT_INODE, b"file", &FILE).unwrap();
    writer
        .write(made.inode, made.generation, 5 << 20, &[1; 3 << 20], 2)
        .unwrap();
    use std::os::unix::fs::MetadataExt;
    let blocks = || std::fs::metadata(&path).unwrap().blocks();
    let before = blocks();
    let locked = || {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find(|line| line.starts_with("VmLck")).unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let kept = writer.keep_resident();
    let is_kept = kept.is_ok();
    let (locked_kib, after) = (locked(), blocks());
    drop(writer);
    drop(region);
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_dir_all(path.with_extension("stubs")).unwrap();
    if !is_kept {
        println!("skipped: this process may not lock the memory of a region ({kept:?})");
        return;
    }
    assert_eq!(after, before, "memory was made");
    assert!(locked_kib >= 32 << 10, "{locked_kib} KiB locked");
}

/// Threads open, delete, close and sweep at the same time, each from its own attachment: the kernel's locks treat the
/// attachments like separate processes.
#[test]
fn an_open_file_keeps_its_bytes_while_others_delete_and_sweep() {
    const THREADS: u64 = 4;
    let scratch = Scratch::new("races");
    let free = scratch.attach().region().free_bytes();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let scratch = &scratch;
            scope.spawn(move || open_and_delete(scratch, thread));
        }
        let scratch = &scratch;
        scope.spawn(move || {
            let here = scratch.attach();
            for _ in 0..1500 {
                here.sweep().unwrap();
            }
        });
    });
    let here = scratch.attach();
    let writer = here.writer().unwrap();
    for entry in writer.list(ROOT_INODE, 0, 100).unwrap() {
        writer.remove(ROOT_INODE, &entry.name, 9).unwrap();
    }
    here.sweep().unwrap();
    assert_eq!((here.region().inodes(), here.region().orphans()), (1, 0));
    // A page may stay allocated for a piece size.
    assert!(free - here.region().free_bytes() <= 2 * crate::PAGE_BYTES);
}

fn open_and_delete(scratch: &Scratch, thread: u64) {
    let here = scratch.attach();
    let mut random = base::sim::Random::new(thread);
    let mut held: Vec<(OwnedFd, crate::Opened)> = Vec::new();
    let name = |random: &mut base::sim::Random| format!("{}", random.below(6)).into_bytes();
    // The content of a file follows from its generation, which no other file ever has.
    let content = |generation: u64| vec![generation as u8; 700 + generation as usize % 3000];
    for _ in 0..10_000 {
        let writer = here.writer().unwrap();
        match random.below(8) {
            0 | 1 => {
                let temporary = format!("t{thread}");
                match writer.create(ROOT_INODE, temporary.as_bytes(), &FILE) {
                    Ok(made) => {
                        let bytes = content(made.generation);
                        writer
                            .write(made.inode, made.generation, 0, &bytes, 2)
                            .unwrap();
                        let to = name(&mut random);
                        writer
                            .rename((ROOT_INODE, temporary.as_bytes()), (ROOT_INODE, &to), 3)
                            .unwrap();
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            2 => match writer.remove(ROOT_INODE, &name(&mut random), 4) {
                Ok(()) | Err(Error::NotFound) => {}
                Err(error) => panic!("{error}"),
            },
            3..=5 if held.len() < 20 => {
                let found = match here.look_up(ROOT_INODE, &name(&mut random)) {
                    Ok(found) => found,
                    Err(Error::NotFound) => continue,
                    Err(error) => panic!("{error}"),
                };
                match here.open_description(&found, libc::O_RDONLY | libc::O_CLOEXEC) {
                    Ok((descriptor, opened)) => held.push((own(descriptor), opened)),
                    Err(Error::NotFound) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            6 if !held.is_empty() => {
                let (descriptor, opened) = held.swap_remove(random.index(held.len()));
                if random.below(2) == 0 {
                    here.closing(&opened);
                }
                drop(descriptor);
                here.closed(&opened).unwrap();
            }
            _ => {
                for (descriptor, opened) in &held {
                    use std::os::fd::AsRawFd;
                    let mut bytes = [0; 4000];
                    let count = here.read_at(opened, 0, &mut bytes).unwrap();
                    assert_eq!(bytes[..count], content(opened.node.generation)[..]);
                    assert_eq!(here.description_of(descriptor.as_raw_fd()), Some(*opened));
                }
            }
        }
    }
    for (descriptor, opened) in held {
        drop(descriptor);
        here.closed(&opened).unwrap();
    }
}

#[test]
fn a_file_that_is_no_stub_is_not_removed() {
    let scratch = Scratch::new("foreign");
    let options = RegionOptions {
        capacity_bytes: 32 << 20,
        files_max: Some(500),
        lanes: 8,
    };
    let other = scratch.folder.join("other");
    let stubs = scratch.folder.join("other.stubs");
    std::fs::create_dir(&stubs).unwrap();
    std::fs::write(stubs.join("f1-2"), b"").unwrap();
    std::fs::create_dir(stubs.join("d1-1")).unwrap();
    std::fs::write(stubs.join("thesis"), b"mine").unwrap();
    let made = Region::create(&other, &options, &DIRECTORY);
    let text = made.map(drop).unwrap_err().to_string();
    assert!(text.contains("thesis"), "{text}");
    assert_eq!(std::fs::read(stubs.join("thesis")).unwrap(), b"mine");
    assert!(!other.exists());
    std::fs::remove_file(stubs.join("thesis")).unwrap();
    drop(Region::create(&other, &options, &DIRECTORY).unwrap());
    assert_eq!(std::fs::read_dir(&stubs).unwrap().count(), 0);
}

#[test]
fn files_left_by_dead_processes_are_freed_when_memory_is_short() {
    let scratch = Scratch::new("room");
    let here = scratch.attach();
    let fill = |name: &[u8]| {
        let made = here.writer().unwrap().create(ROOT_INODE, name, &FILE)?;
        let (descriptor, opened) = here.open_description(&made, libc::O_RDWR)?;
        let descriptor = own(descriptor);
        let mut bytes = 0;
        while let Ok(count) = here.write(&opened, &[1; 1 << 20]) {
            bytes += count;
        }
        Ok::<_, Error>((descriptor, bytes))
    };
    let (descriptor, bytes) = fill(b"first").unwrap();
    assert!(bytes >= 20 << 20, "{bytes}");
    here.writer()
        .unwrap()
        .remove(ROOT_INODE, b"first", 2)
        .unwrap();
    // A page of pieces may have room for a small file.
    assert!(fill(b"second").unwrap().1 <= 1 << 20);
    here.writer()
        .unwrap()
        .remove(ROOT_INODE, b"second", 2)
        .unwrap();
    // Its process dies, and no process sweeps.
    drop(descriptor);
    assert!(fill(b"third").unwrap().1 >= bytes - (2 << 20));
}

#[test]
fn a_reader_without_write_permission_shares_positions_with_other_processes() {
    use std::os::fd::AsRawFd;
    let scratch = Scratch::new("only-reading");
    let here = scratch.attach();
    let writer = here.writer().unwrap();
    let made = writer
        .create_with(ROOT_INODE, b"file", &FILE, b"0123456789")
        .unwrap();
    let reading = Attachment::open(&scratch.path(), b"/keel", false).unwrap();
    for has_stub in [false, true] {
        let kept = has_stub.then(|| own(here.open_description(&made, libc::O_RDONLY).unwrap().0));
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        let (descriptor, opened) = reading.open_description(&made, flags).unwrap();
        let descriptor = own(descriptor);
        let mut bytes = [0; 4];
        assert_eq!(reading.read(&opened, &mut bytes).unwrap(), 4);
        assert_eq!(reading.seek(&opened, 1, libc::SEEK_CUR).unwrap(), 5);
        // A copy of the descriptor, as another process may get it, also a writing one.
        let copy = descriptor.try_clone().unwrap();
        for attachment in [&reading, &here] {
            let found = attachment.description_of(copy.as_raw_fd()).unwrap();
            assert_eq!((found.node, found.flags), (opened.node, opened.flags));
            assert_eq!(attachment.read(&found, &mut bytes[..2]).unwrap(), 2);
            assert!(matches!(
                attachment.write(&found, b"x"),
                Err(Error::NotOpenFor)
            ));
            assert_eq!(attachment.flags(&found) & libc::O_ACCMODE, libc::O_RDONLY);
            attachment.closing(&found);
        }
        assert_eq!(&bytes[..2], b"78");
        assert_eq!(reading.read(&opened, &mut bytes).unwrap(), 1);
        assert_eq!(reading.seek(&opened, -10, libc::SEEK_END).unwrap(), 0);
        assert!(reading.seek(&opened, -1, libc::SEEK_CUR).is_err());
        assert!(matches!(
            reading.open_description(&made, libc::O_RDWR),
            Err(Error::ReadOnly)
        ));
        let name = own(reading.open_description(&made, libc::O_PATH).unwrap().0);
        let found = here.description_of(name.as_raw_fd()).unwrap();
        assert!(here.read(&found, &mut bytes).is_err());
        drop(kept);
    }
    // A descriptor that a writer has opened and passed on is read from that position on; the writer's position does not
    // change.
    let (descriptor, opened) = here.open_description(&made, libc::O_RDWR).unwrap();
    let descriptor = own(descriptor);
    let mut bytes = [0; 4];
    here.read(&opened, &mut bytes).unwrap();
    let found = reading.description_of(descriptor.as_raw_fd()).unwrap();
    assert_eq!(reading.read(&found, &mut bytes[..3]).unwrap(), 3);
    assert_eq!(reading.read(&found, &mut bytes).unwrap(), 3);
    assert_eq!(&bytes[..3], b"789");
    reading.set_flags(&found, libc::O_APPEND);
    assert!(matches!(reading.write(&found, b"x"), Err(Error::ReadOnly)));
    assert_eq!(here.seek(&opened, 0, libc::SEEK_CUR).unwrap(), 4);
}
