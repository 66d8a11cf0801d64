//! The view together with programs that use the region without it, and the end of either.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use mem::{Attachment, ROOT_INODE, now_ns};

use crate::Case;
use crate::support::{Mount, Place, names, refused, sees_file_system, unmount};

pub const CASES: &[Case] = &[
    ("seen-at-once", seen_at_once),
    ("seen-open", seen_open),
    ("whole-writes", whole_writes),
    ("deleted-elsewhere", deleted_elsewhere),
    ("open-elsewhere", open_elsewhere),
    ("number-again", number_again),
    ("read-only", read_only),
    ("killed-program", killed_program),
    ("killed-view", killed_view),
    ("end-open", end_open),
    ("umount", umount),
    ("umount-busy", umount_busy),
];

fn seen_at_once() {
    let mount = Mount::new();
    let directory = mount.place.directory();
    mount.put_direct("new", b"direct");
    assert_eq!(std::fs::read(mount.path("new")).unwrap(), b"direct");
    let writer = mount.direct.writer().unwrap();
    for number in 0..100_u32 {
        let (old, new) = (format!("at-{number}"), format!("at-{}", number + 1));
        if number == 0 {
            std::fs::rename(mount.path("new"), mount.path("at-1")).unwrap();
            continue;
        }
        let content = number.to_string();
        let found = mount.direct.look_up(ROOT_INODE, old.as_bytes()).unwrap();
        writer
            .set_size(found.inode, found.generation, 0, now_ns())
            .unwrap();
        writer
            .write(
                found.inode,
                found.generation,
                0,
                content.as_bytes(),
                now_ns(),
            )
            .unwrap();
        assert_eq!(
            std::fs::metadata(mount.path(&old)).unwrap().len(),
            content.len() as u64
        );
        assert_eq!(std::fs::read(mount.path(&old)).unwrap(), content.as_bytes());
        let (from, to) = ((ROOT_INODE, old.as_bytes()), (ROOT_INODE, new.as_bytes()));
        writer.rename(from, to, now_ns()).unwrap();
        assert_eq!(names(&directory), [new]);
        refused(std::fs::metadata(mount.path(&old)), libc::ENOENT);
    }
    writer.remove(ROOT_INODE, b"at-100", now_ns()).unwrap();
    assert!(names(&directory).is_empty());
    mount.put("back", b"from the view");
    assert_eq!(mount.content_direct("back"), b"from the view");
}

fn seen_open() {
    let mount = Mount::new();
    let mut file = File::open(mount.put("file", b"one")).unwrap();
    let mut content = String::new();
    file.read_to_string(&mut content).unwrap();
    let found = mount.direct.look_up(ROOT_INODE, b"file").unwrap();
    let writer = mount.direct.writer().unwrap();
    writer
        .write(found.inode, found.generation, 3, b" two", now_ns())
        .unwrap();
    file.read_to_string(&mut content).unwrap();
    assert_eq!(content, "one two");
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 7);
    assert_eq!(file.metadata().unwrap().len(), 7);
}

const ROLE: &str = "KEEL_VIEW_ROLE";

/// Whether a case has started this process for a role.
pub fn is_other_process() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// Starts a process with a role. On return, it has reported that it is ready.
fn start(role: &str, place: &Place) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "sharing::the_other_process_plays_its_role",
            "--nocapture",
        ])
        .env(ROLE, role)
        .env("KEEL_VIEW_REGION", place.region())
        .env("KEEL_VIEW_DIRECTORY", place.directory())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let is_ready = lines
        .map(Result::unwrap)
        .any(|line| line.ends_with("ready"));
    assert!(is_ready, "{role} ended early");
    child
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The roles of the processes that cases start.
#[test]
fn the_other_process_plays_its_role() {
    let Some(role) = std::env::var_os(ROLE) else {
        return;
    };
    let path = |name| std::env::var_os(name).unwrap();
    let (region, directory) = (path("KEEL_VIEW_REGION"), path("KEEL_VIEW_DIRECTORY"));
    let attach = || Attachment::open(Path::new(&region), b"/keel", true).unwrap();
    let ready = || {
        let mut out = std::io::stdout();
        writeln!(out, "ready").unwrap();
        out.flush().unwrap();
    };
    let wait = || {
        // Until the process that started this one closes its input.
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    };
    match role.to_str().unwrap() {
        "writer" => write_for_ever(&attach(), ready),
        "opener" => {
            let attachment = attach();
            let found = attachment.look_up(ROOT_INODE, b"file").unwrap();
            attachment.open_description(&found, libc::O_RDWR).unwrap();
            ready();
            wait();
        }
        "view" => {
            let options = mem_mount::MountOptions {
                source: "killed".to_owned(),
                allows_other_users: false,
            };
            let mounted =
                mem_mount::mount(attach(), Path::new(&directory), &options, || {}).unwrap();
            ready();
            wait();
            drop(mounted);
        }
        other => panic!("{other}"),
    }
}

const PIECE_BYTES: usize = 4096;

/// Writes pieces of equal bytes, again and again.
fn write_for_ever(attachment: &Attachment, ready: impl Fn()) {
    let writer = attachment.writer().unwrap();
    let found = attachment.look_up(ROOT_INODE, b"file").unwrap();
    for round in 0_u64.. {
        let piece = [round as u8; PIECE_BYTES];
        let offset = round % 16 * PIECE_BYTES as u64;
        writer
            .write(found.inode, found.generation, offset, &piece, now_ns())
            .unwrap();
        if round == 16 {
            ready();
        }
    }
}

fn whole_writes() {
    let mount = Mount::new();
    let file = File::open(mount.put("file", &[0; PIECE_BYTES * 16])).unwrap();
    let child = start("writer", &mount.place);
    let mut changes = 0;
    let mut before = 0;
    for round in 0..3000_u64 {
        let mut piece = [0; PIECE_BYTES];
        let offset = round % 16 * PIECE_BYTES as u64;
        file.read_exact_at(&mut piece, offset).unwrap();
        assert!(piece.iter().all(|byte| *byte == piece[0]), "torn");
        changes += u32::from(piece[0] != before);
        before = piece[0];
    }
    assert!(changes > 10, "{changes}");
    kill(child);
    // A sweep of the view frees its lane; its unfinished change is completed.
    while mount.direct.sweep().unwrap().lanes == 0
        && std::fs::read(mount.path("file")).unwrap().is_empty()
    {}
    let content = std::fs::read(mount.path("file")).unwrap();
    for piece in content.chunks(PIECE_BYTES) {
        assert!(piece.iter().all(|byte| *byte == piece[0]), "torn by death");
    }
}

fn deleted_elsewhere() {
    let mount = Mount::new();
    let free = mount.direct.region().free_bytes();
    let path = mount.put("file", &[7; 3 << 20]);
    let file = File::open(&path).unwrap();
    let writer = mount.direct.writer().unwrap();
    writer.remove(ROOT_INODE, b"file", now_ns()).unwrap();
    refused(File::open(&path), libc::ENOENT);
    let mut end = [0; 2];
    file.read_exact_at(&mut end, (3 << 20) - 2).unwrap();
    assert_eq!(end, [7, 7]);
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert!(mount.direct.region().free_bytes() < free);
    drop(file);
    wait_for_orphans(&mount, 0);
    // A page for small files may stay allocated.
    assert!(mount.direct.region().free_bytes() + mem::PAGE_BYTES >= free);
}

/// Waits until `count` deleted files are still open; the view's own sweep runs meanwhile.
fn wait_for_orphans(mount: &Mount, count: u64) {
    while mount.direct.region().orphans() != count {
        std::fs::metadata(mount.place.directory()).unwrap();
        std::thread::yield_now();
    }
}

fn open_elsewhere() {
    let mount = Mount::new();
    let path = mount.put("file", b"kept");
    let child = start("opener", &mount.place);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(mount.direct.region().orphans(), 1);
    mount.direct.sweep().unwrap();
    assert_eq!(mount.direct.region().orphans(), 1, "a program has it open");
    kill(child);
    wait_for_orphans(&mount, 0);
}

fn number_again() {
    let mount = Mount::new();
    let path = mount.put("file", b"old");
    // The kernel knows it by number, and nothing in the region holds it.
    let held = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(&path)
        .unwrap();
    let number = held.metadata().unwrap().ino();
    let writer = mount.direct.writer().unwrap();
    writer.remove(ROOT_INODE, b"file", now_ns()).unwrap();
    refused(held.metadata(), libc::ESTALE);
    let again = mount.put_direct("other", b"new");
    assert_eq!(again.inode, number);
    refused(held.metadata(), libc::ESTALE);
    assert_eq!(std::fs::read(mount.path("other")).unwrap(), b"new");
}

fn read_only() {
    let mut mount = Mount::new();
    mount.put("file", b"there");
    std::fs::create_dir(mount.path("directory")).unwrap();
    drop(mount.end());
    let mounted = mount.place.try_mount(false).unwrap();
    let path = mount.path("file");
    assert_eq!(std::fs::read(&path).unwrap(), b"there");
    assert_eq!(names(&mount.place.directory()), ["directory", "file"]);
    refused(std::fs::write(&path, b"x"), libc::EROFS);
    refused(File::create(mount.path("new")), libc::EROFS);
    refused(std::fs::remove_file(&path), libc::EROFS);
    refused(std::fs::create_dir(mount.path("new")), libc::EROFS);
    let found = mount.direct.look_up(ROOT_INODE, b"file").unwrap();
    let writer = mount.direct.writer().unwrap();
    writer
        .write(found.inode, found.generation, 0, b"T", now_ns())
        .unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"There");
    drop(mounted);
    // The region is not even mapped for writing.
    let alone = Place::new();
    let region = alone.region();
    let attachment = Attachment::open(&region, b"/keel", false).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let own: Vec<&str> = maps
        .lines()
        .filter(|line| OsStr::new(line.split(' ').next_back().unwrap()) == region)
        .collect();
    assert!(
        !own.is_empty() && own.iter().all(|line| line.contains(" r--s ")),
        "{own:?}"
    );
    drop(attachment);
}

fn killed_program() {
    let mount = Mount::new();
    let path = mount.put("file", &[7; 3 << 20]);
    let free = mount.direct.region().free_bytes();
    let mut child = Command::new("sh")
        .arg("-c")
        .arg(format!(
            "exec 3<>'{}'; rm '{0}'; echo ready; read x",
            path.display()
        ))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(mount.direct.region().orphans(), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for_orphans(&mount, 0);
    assert!(mount.direct.region().free_bytes() > free);
}

fn killed_view() {
    let place = Place::new();
    let child = start("view", &place);
    let path = place.directory().join("file");
    std::fs::write(&path, vec![7; 3 << 20]).unwrap();
    std::fs::write(place.directory().join("kept"), b"kept").unwrap();
    let file = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    kill(child);
    refused(
        file.metadata()
            .and_then(|_| std::fs::read_dir(place.directory())),
        libc::ENOTCONN,
    );
    drop(file);
    unmount(&place.directory(), libc::MNT_DETACH).unwrap();
    let direct = place.attach(true);
    assert_eq!(direct.region().orphans(), 1);
    let mounted = place.try_mount(true).unwrap();
    assert_eq!(mounted.leftovers().files, 1);
    assert!(mounted.leftovers().lanes > 0);
    assert_eq!(direct.region().orphans(), 0);
    assert_eq!(
        std::fs::read(place.directory().join("kept")).unwrap(),
        b"kept"
    );
    drop(mounted);
}

fn end_open() {
    let mut mount = Mount::new();
    let file = File::open(mount.put("file", b"x")).unwrap();
    std::fs::remove_file(mount.path("file")).unwrap();
    let ending = mount.end();
    assert_eq!((ending.files_open, ending.was_aborted), (1, false));
    assert_eq!(ending.left_at, None);
    assert!(!sees_file_system(&mount.place.directory()));
    assert_eq!(mount.direct.region().orphans(), 0);
    drop(file);
}

fn umount() {
    let mut mount = Mount::new();
    mount.put("file", b"x");
    unmount(&mount.place.directory(), 0).unwrap();
    // The number of open files says nothing: the kernel reports closes with a delay, and not at all after the unmount.
    assert!(!mount.end().was_aborted);
    assert_eq!(mount.content_direct("file"), b"x");
}

fn umount_busy() {
    let mount = Mount::new();
    let file = File::open(mount.put("file", b"x")).unwrap();
    refused(unmount(&mount.place.directory(), 0), libc::EBUSY);
    assert_eq!(std::fs::read(mount.path("file")).unwrap(), b"x");
    assert!(mount.mounted().failure().is_none());
    drop(file);
}
