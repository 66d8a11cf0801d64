//! The state after the mount's process is killed: no program waits, and the directory is usable again.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use base::mount::{MountError, check_directory};
use stream::device::Pages;
use stream::manifest::ROOT;
use stream::{BLOCK_BYTES, BlockAt};
use stream_mount::{Guard, MountOptions, clear_dead};

use crate::support::*;

/// The environment variable with the place to mount, for this test when it runs again in a separate process.
const PLACE: &str = "KEEL_STREAM_MOUNT_AT";

fn tree() -> (TreeBuilder, stream::FileId) {
    let mut tree = TreeBuilder::new();
    let file = tree.file(ROOT, "file", 0o644, bytes(8 * BLOCK_BYTES, 1));
    (tree, file)
}

/// Not a separate test: this is the process that `killed` kills. It mounts, and one of its threads stores a page whose
/// read never completes.
#[test]
fn process_that_mounts_and_is_killed() {
    let Some(directory) = std::env::var_os(PLACE) else {
        return;
    };
    let guard = Guard::start().unwrap();
    let (tree, file) = tree();
    let source = tree.build();
    source.seen().held.insert(BlockAt { file, index: 1 });
    let options = MountOptions::default();
    let directory = Path::new(&directory);
    let mounted = stream_mount::mount(source.clone(), directory, &options, Some(guard), || {});
    let mounted = mounted.unwrap();
    println!("mounted");
    drop(source.wait_until(|seen| seen.waiting == 1));
    let content = &source.contents[&file];
    println!("storing");
    mounted.pages().store(file, 1, &content[4096..8192]);
    unreachable!("the page is locked by its reader");
}

fn run_again(directory: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "ends::process_that_mounts_and_is_killed",
            "--nocapture",
        ])
        .env(PLACE, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads until a line arrives.
fn until_said(child: &mut Child, line: &str) {
    let mut said = Vec::new();
    let out = child.stdout.as_mut().unwrap();
    while !said.ends_with(line.as_bytes()) {
        let mut byte = [0];
        assert_eq!(out.read(&mut byte).unwrap(), 1, "it has ended");
        said.push(byte[0]);
    }
}

#[test]
fn readers_get_an_error_when_the_process_is_killed_while_it_stores() {
    if cannot_mount() {
        return;
    }
    let folder = Folder::new();
    let mut process = run_again(&folder.directory());
    until_said(&mut process, "mounted\n");
    let path = folder.directory().join("file");
    let content = bytes(8 * BLOCK_BYTES, 1);
    let file = File::open(&path).unwrap();
    let mut block = [0; BLOCK_BYTES];
    file.read_exact_at(&mut block, 0).unwrap();
    let reader = {
        let file = file.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut block = [0; BLOCK_BYTES];
            let read = file.read_at(&mut block, BLOCK_BYTES as u64);
            read.map(|count| block[..count].to_vec())
        })
    };
    until_said(&mut process, "storing\n");
    wait_until_asleep_in_kernel(process.id());
    process.kill().unwrap();
    // The page may be stored after its reader was released.
    match reader.join().unwrap() {
        Ok(read) => assert_eq!(read, content[BLOCK_BYTES..2 * BLOCK_BYTES]),
        Err(error) => println!("the reader got: {error}"),
    }
    process.wait().unwrap();
    // Pages in memory are still readable; the others fail and are not zeros.
    let mut again = [0; BLOCK_BYTES];
    file.read_exact_at(&mut again, 0).unwrap();
    assert_eq!(again[..], content[..BLOCK_BYTES]);
    assert!(file.read_at(&mut again, 2 * BLOCK_BYTES as u64).is_err());
    drop(file);
    // The guard takes the dead mount away, where the kernel gives mounts an identity of their own (Linux 6.8).
    // Elsewhere it is detected, and the directory can be used again.
    let mut found = check_directory(&folder.directory());
    for _ in 0..1_000 {
        if found.is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
        found = check_directory(&folder.directory());
    }
    if found.is_err() {
        assert!(matches!(found, Err(MountError::DeadMount)), "{found:?}");
        assert!(clear_dead(&folder.directory()).unwrap());
    }
    assert!(!clear_dead(&folder.directory()).unwrap());
    check_directory(&folder.directory()).unwrap();
}

/// Waits until a thread of a process sleeps uninterruptibly, and still does so a little later.
fn wait_until_asleep_in_kernel(process: u32) {
    let is_asleep = |thread: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(thread.unwrap().path().join("stat"));
        stat.is_ok_and(|stat| stat[stat.rfind(')').unwrap()..].starts_with(") D"))
    };
    let mut times = 0;
    while times < 10 {
        let mut threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
        times = if threads.any(is_asleep) { times + 1 } else { 0 };
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn a_directory_of_another_program_is_left_alone() {
    if cannot_mount() {
        return;
    }
    let folder = Folder::new();
    assert!(!clear_dead(&folder.directory()).unwrap());
    let (tree, _) = tree();
    let source = tree.build();
    let options = MountOptions::default();
    let mounted = stream_mount::mount(source, &folder.directory(), &options, None, || {}).unwrap();
    assert!(!clear_dead(&folder.directory()).unwrap(), "it lives");
    assert!(folder.directory().join("file").exists());
    drop(mounted);
    assert!(!folder.directory().join("file").exists());
}

#[test]
fn the_guard_goes_with_a_mount_that_ends_in_order() {
    if cannot_mount() {
        return;
    }
    let (tell, told) = std::sync::mpsc::channel();
    let folder = Folder::new();
    let guard = Guard::start().unwrap();
    let process = guard.process();
    let (tree, _) = tree();
    let options = MountOptions::default();
    let mounted = stream_mount::mount(
        tree.build(),
        &folder.directory(),
        &options,
        Some(guard),
        move || tell.send(()).unwrap(),
    )
    .unwrap();
    assert!(Path::new(&format!("/proc/{process}")).exists());
    unmount(&folder.directory(), 0).unwrap();
    told.recv().unwrap();
    let ending = mounted.end();
    assert!(!ending.was_aborted && ending.left_at.is_none());
    assert!(!Path::new(&format!("/proc/{process}")).exists());
}
