//! A process that executes another program keeps its number and start time, but not its lanes. Each process is this
//! program again; an environment variable gives it its role.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use super::*;
use crate::Attachment;
use crate::file_lock::FileLock;
use crate::lane::{Lane, doing, word};
use crate::region::LEFT;
use crate::space::Place;

const ROLE: &str = "KEEL_MEM_TEST_IMAGE";
const REGION: &str = "KEEL_MEM_TEST_IMAGE_REGION";

fn again(test: &str, role: &str, region: &std::path::Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(REGION, region);
    command
}

/// The region, if this process has the role.
fn in_role(role: &str) -> Option<Region> {
    (std::env::var(ROLE).ok()? == role)
        .then(|| Region::open(std::env::var_os(REGION).unwrap().as_ref(), true).unwrap())
}

/// Takes a lane, notes a read and holds the lock of names, as another thread may while this one executes a program.
fn be_in_the_middle(region: &Region) -> Lane {
    let lane = region.take_lane().unwrap();
    region.lock(lane, state::LOCK).unwrap();
    let note = region.free_note(lane, 0).unwrap();
    note.set(
        region,
        Place::Slot {
            slot: 1,
            is_kept: false,
        },
    );
    lane
}

/// Starts a process in a role in which it executes `cat`, and returns when it has done so.
fn cat(test: &str, role: &str, scratch: &Scratch) -> (Child, ChildStdin) {
    let mut child = again(test, role, &scratch.path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to_child = child.stdin.take().unwrap();
    to_child.write_all(b"another program\n").unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // The test harness may have begun the line.
    assert!(lines.any(|line| line.unwrap().ends_with("another program")));
    (child, to_child)
}

#[test]
fn a_program_without_the_region_has_no_lanes() {
    if let Some(region) = in_role("first") {
        be_in_the_middle(&region);
        panic!("{}", Command::new("cat").exec());
    }
    let scratch = Scratch::new("images-without");
    let region = scratch.region(16 << 20);
    let test = "tests::images::a_program_without_the_region_has_no_lanes";
    let (mut child, to_child) = cat(test, "first", &scratch);
    // The program could be the one that maps the region at this moment.
    let opener = File::open(&scratch.path).unwrap();
    let mapping = FileLock::take(&opener, &scratch.path, libc::LOCK_SH).unwrap();
    let too_early = region.settle_dead_lanes();
    drop(mapping);
    let taken = region.lanes_taken();
    let settled = region.settle_dead_lanes();
    drop(to_child);
    child.wait().unwrap();
    assert_eq!((too_early.unwrap(), taken, settled.unwrap()), (0, 1, 1));
    let writer = region.writer().unwrap();
    writer.create(ROOT_INODE, b"file", &FILE).unwrap();
}

#[test]
fn a_program_frees_the_lanes_of_its_predecessor() {
    let test = "tests::images::a_program_frees_the_lanes_of_its_predecessor";
    if let Some(region) = in_role("first") {
        // A thread frees the memory that another one reads.
        let lane = region.take_lane().unwrap();
        let slot_1 = region.layout.slots_at + region.layout.slot_bytes;
        for (word, value) in [
            (word::TARGET, slot_1),
            (word::PAGES, 1),
            (word::PRESENT, 1),
            (word::POOL, region.memory.load(state::POOL_PAGES) - 1),
            (word::COUNT, 0),
            (word::FREES, 1),
            (word::STATE, doing::WORDS),
        ] {
            region.set_lane_word(lane, word, value);
        }
        be_in_the_middle(&region);
        panic!("{}", again(test, "second", region.path()).exec());
    }
    if let Some(region) = in_role("second") {
        assert_eq!(region.lanes_taken(), 0);
        let writer = region.writer().unwrap();
        writer.create(ROOT_INODE, b"file", &FILE).unwrap();
        // A second use by the same program is not a second program.
        let beside = Region::open(region.path(), true).unwrap();
        assert_eq!(beside.lanes_taken(), 1);
        return;
    }
    let scratch = Scratch::new("images-with");
    let region = scratch.region(16 << 20);
    let ended = again(test, "first", &scratch.path).status().unwrap();
    assert!(ended.success());
    assert_eq!(region.lanes_taken(), 0);
}

/// Otherwise the program may search for the lanes of its predecessor while another process has taken one of them over.
/// That process would then find the program alive.
#[test]
fn no_program_maps_the_region_while_a_lane_is_taken_over() {
    let scratch = Scratch::new("images-mapping");
    let region = scratch.region(16 << 20);
    let settler = File::open(&scratch.path).unwrap();
    let taking_over = FileLock::try_alone(&settler).unwrap();
    // The error names the lock that another process keeps; no process waits for it forever.
    let refused = Region::open(&scratch.path, true).map(drop).unwrap_err();
    assert!(refused.to_string().contains("locked"), "{refused}");
    assert!(region.memory.is_only_mapping());
    drop(taking_over);
    drop(Region::open(&scratch.path, true).unwrap());
}

#[test]
fn an_invalid_log_of_the_predecessor_refuses_no_region_and_is_not_inherited() {
    let test =
        "tests::images::an_invalid_log_of_the_predecessor_refuses_no_region_and_is_not_inherited";
    let roles = ["first", "first-alone"].map(in_role);
    if let Some(region) = roles.iter().flatten().next() {
        for _ in 0..2 {
            let lane = region.take_lane().unwrap();
            region.set_lane_word(lane, word::STATE, 99);
        }
        if roles[1].is_some() {
            panic!("{}", Command::new("cat").exec());
        }
        panic!("{}", again(test, "second", region.path()).exec());
    }
    if let Some(region) = in_role("second") {
        let me = crate::owner::Owner::current().unwrap().as_word();
        for lane in [0, 1].map(Lane) {
            let owner = region.lane_word(lane, word::OWNER);
            assert!(owner != 0 && owner != me && !region.is_alive(owner));
        }
        return;
    }
    let scratch = Scratch::new("images-invalid");
    let region = scratch.region(16 << 20);
    let ended = again(test, "first", &scratch.path).status().unwrap();
    assert!(ended.success());
    // The same if another process settles the lane while the program without the region runs.
    let scratch = Scratch::new("images-invalid-alone");
    drop(region);
    let region = scratch.region(16 << 20);
    let (mut child, _to_child) = cat(test, "first-alone", &scratch);
    let replaced = region.lane_word(Lane(0), word::OWNER);
    let settled = region.settle_dead_lanes();
    assert!(matches!(settled, Err(Error::Damaged { .. })), "{settled:?}");
    let owner = region.lane_word(Lane(0), word::OWNER);
    assert!(owner != 0 && owner != replaced && !region.is_alive(owner));
    drop(_to_child);
    child.wait().unwrap();
}

#[test]
fn a_region_is_not_lost_to_a_process_that_dies_while_it_enters() {
    let scratch = Scratch::new("images-entering");
    let region = scratch.region(16 << 20);
    let own = region.memory.load(state::NAMESPACE);
    // A process of another namespace is between its two looks at the lanes. This lane was taken meanwhile.
    let writer = region.writer().unwrap();
    let entering = File::open(&scratch.path).unwrap();
    let locked = FileLock::try_alone(&entering).unwrap();
    region.memory.store(state::NAMESPACE, own | LEFT);
    assert!(matches!(region.writer(), Err(Error::Namespace { .. })));
    // It has died: the next lane, and the next opening, take the region back.
    drop(locked);
    drop(region.writer().unwrap());
    assert_eq!(region.memory.load(state::NAMESPACE), own);
    region.memory.store(state::NAMESPACE, own | LEFT);
    drop(Region::open(&scratch.path, true).unwrap());
    assert_eq!(region.memory.load(state::NAMESPACE), own);
    drop(region.writer().unwrap());
    // The same in the namespace of others: it stays theirs.
    region.memory.store(state::NAMESPACE, (own + 1) | LEFT);
    let refused = Region::open(&scratch.path, true);
    assert!(matches!(refused, Err(Error::Namespace { .. })));
    assert_eq!(region.memory.load(state::NAMESPACE), own + 1);
    region.memory.store(state::NAMESPACE, own);
    drop(writer);
}

/// A process without a lane may have a file open, in any namespace.
#[test]
fn open_files_stay_open_when_another_namespace_enters() {
    let scratch = Scratch::new("images-open");
    // A region gives its lane back; an attachment keeps it.
    let region = scratch.region(16 << 20);
    let attach = || Attachment::open(&scratch.path, b"/keel/", true).unwrap();
    let here = attach();
    let made = region
        .writer()
        .unwrap()
        .create(ROOT_INODE, b"file", &FILE)
        .unwrap();
    let (descriptor, opened) = here.open_description(&made, libc::O_RDWR).unwrap();
    // SAFETY: opened just now, and no other code knows it.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let memory = &here.region().memory;
    let claim = here.region().layout.description(opened.description.into());
    let claimed = memory.load(claim);
    let own_namespace = memory.load(state::NAMESPACE);
    memory.store(state::NAMESPACE, own_namespace + 1);
    let there = attach();
    assert_eq!(memory.load(state::NAMESPACE), own_namespace);
    assert_eq!(there.sweep().unwrap().descriptions, 0);
    assert_eq!(memory.load(claim), claimed);
    drop(descriptor);
    assert_eq!(there.sweep().unwrap().descriptions, 1);
}

#[test]
fn a_reader_does_not_wait_without_end_for_a_writer_of_another_namespace() {
    let scratch = Scratch::new("images-reader");
    let region = scratch.region(16 << 20);
    let own = region.memory.load(state::NAMESPACE);
    let writer = region.writer().unwrap();
    let file = writer
        .create_with(ROOT_INODE, b"file", &FILE, b"bytes")
        .unwrap();
    writer.lock_inode(file.inode, file.generation).unwrap();
    let sequence = region.layout.inode(file.inode) + attribute::SEQUENCE;
    let before = region.memory.load(sequence);
    region.memory.store(sequence, before + 1);
    region.set_lane_word(writer.lane, word::OWNER, DEAD);
    std::mem::forget(writer);
    region.memory.store(state::NAMESPACE, own + 1);
    let mut bytes = [0; 5];
    let refused = region.read(file.inode, file.generation, 0, &mut bytes);
    assert!(
        matches!(refused, Err(Error::Namespace { .. })),
        "{refused:?}"
    );
    region.memory.store(state::NAMESPACE, own);
    let read = region.read(file.inode, file.generation, 0, &mut bytes);
    assert_eq!((read.unwrap(), &bytes), (5, b"bytes"));
}

#[test]
fn a_first_lane_is_refused_if_another_namespace_came_first() {
    let scratch = Scratch::new("images-namespace");
    let region = scratch.region(16 << 20);
    let own = region.memory.load(state::NAMESPACE);
    // A process of another namespace has entered, since no process had a lane.
    region.memory.store(state::NAMESPACE, own + 1);
    let refused = region.writer();
    assert!(matches!(refused, Err(Error::Namespace { .. })));
    assert_eq!(region.lanes_taken(), 0);
    // The other way round: this process enters, unless another process has a lane.
    let other = Region::open(&scratch.path, true).unwrap();
    assert_eq!(region.memory.load(state::NAMESPACE), own);
    let writer = other.writer().unwrap();
    region.memory.store(state::NAMESPACE, own + 1);
    let refused = Region::open(&scratch.path, true);
    assert!(matches!(refused, Err(Error::Namespace { .. })));
    assert_eq!(region.memory.load(state::NAMESPACE), own + 1);
    // Nor does a process settle what belongs to processes that it cannot check.
    let dead = writer.lane;
    region.memory.store(
        region.layout.lane(dead.0) + word::OWNER,
        u64::from(u32::MAX >> 8) << 40 | 1,
    );
    assert_eq!(region.settle_dead_lanes().unwrap(), 0);
    region.memory.store(state::NAMESPACE, own);
    assert_eq!(region.settle_dead_lanes().unwrap(), 1);
    std::mem::forget(writer);
}

/// A child in a namespace of its own has a number there that belongs to another process here.
#[test]
fn a_child_in_another_namespace_is_refused_a_lane() {
    let scratch = Scratch::new("images-child");
    let region = scratch.region(16 << 20);
    let ended = |child| {
        let mut status = 0;
        // SAFETY: a child of this process and a valid place.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        libc::WEXITSTATUS(status)
    };
    const NOT_HERE: i32 = 77;
    // SAFETY: the children make only system calls and calls of the region, and `_exit`. The first one changes the
    // namespace of its children, so that those of other tests stay where they are.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        let code = match unsafe { libc::unshare(libc::CLONE_NEWPID) } {
            // SAFETY: as above.
            0 => match unsafe { libc::fork() } {
                0 => {
                    let is_refused = region.forked().is_ok()
                        && matches!(region.writer(), Err(Error::Namespace { .. }))
                        && region.lanes_taken() == 0;
                    i32::from(!is_refused)
                }
                grandchild => ended(grandchild),
            },
            _ => NOT_HERE,
        };
        // SAFETY: ends this process only.
        unsafe { libc::_exit(code) };
    }
    match ended(child) {
        NOT_HERE => println!("skipped: this process may not make namespaces"),
        code => assert_eq!(code, 0),
    }
    assert!(region.writer().is_ok());
}
