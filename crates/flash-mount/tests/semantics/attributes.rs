//! Tests the results of `stat`, and the attributes that can be changed.

use std::fs::{File, FileTimes, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use crate::Case;
use crate::support::{Mount, Setup, attribute_calls, is_root, open_with, refused, statvfs};

pub const CASES: &[Case] = &[
    ("mode-owner", mode_owner),
    ("chmod", chmod),
    ("chown", change_owner),
    ("times", times),
    ("utimens", utimens),
    ("atime", atime),
    ("size-blocks", size_blocks),
    ("inode", inode),
    ("statfs", statfs),
    ("xattr", xattr),
    ("other-users", other_users),
];

/// A user other than root and, most likely, other than the user that runs the tests.
const OTHER_USER: u32 = 65534;

fn mode_owner() {
    let (uid, gid) = base::mount::effective_ids();
    for (mode, of_directory) in [(0o644, 0o755), (0o600, 0o700), (0o640, 0o750)] {
        let mount = Mount::with(Setup {
            mode,
            ..Setup::default()
        });
        let path = mount.path("file");
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).mode(0o4777);
        let made = options.open(&path).unwrap().metadata().unwrap();
        assert_eq!(made.mode() & 0o7777, u32::from(mode));
        assert_eq!((made.uid(), made.gid()), (uid, gid));
        let directory = std::fs::metadata(mount.directory()).unwrap();
        assert_eq!(directory.mode() & 0o7777, of_directory);
        assert_eq!((directory.uid(), directory.gid()), (uid, gid));
    }
}

fn chmod() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    for mode in [0o600, 0o755, 0o4644] {
        let changed = std::fs::set_permissions(&path, Permissions::from_mode(mode));
        refused(changed, libc::EPERM);
        let changed = std::fs::set_permissions(mount.directory(), Permissions::from_mode(mode));
        if mode != 0o755 {
            refused(changed, libc::EPERM);
        }
    }
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o644);
}

fn change_owner() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    let (uid, gid) = base::mount::effective_ids();
    chown(&path, Some(uid), Some(gid)).unwrap();
    chown(&path, None, None).unwrap();
    refused(chown(&path, Some(uid + 1), None), libc::EPERM);
    refused(chown(&path, None, Some(gid + 1)), libc::EPERM);
    let after = std::fs::metadata(&path).unwrap();
    assert_eq!((after.uid(), after.gid()), (uid, gid));
}

/// Waits until the wall clock shows a later millisecond than `time`.
fn pass(time: SystemTime) {
    while SystemTime::now() < time + Duration::from_millis(2) {
        std::thread::yield_now();
    }
}

fn times() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    let mtime = |path: &Path| std::fs::metadata(path).unwrap().modified().unwrap();
    let made = mtime(&path);
    let of_directory = mtime(mount.directory());
    pass(made);
    let file = open_with(&path, 0).unwrap();
    file.write_all_at(b"y", 0).unwrap();
    let written = mtime(&path);
    assert!(written > made);
    assert_eq!(mtime(mount.directory()), of_directory);
    pass(written);
    file.set_len(0).unwrap();
    assert!(mtime(&path) > written);
    std::fs::rename(&path, mount.path("renamed")).unwrap();
    assert!(mtime(mount.directory()) > of_directory);
    let path = mount.path("renamed");
    let ctime = std::fs::metadata(&path).unwrap().ctime_nsec();
    assert_eq!(ctime % 1_000_000, 0, "milliseconds");
    drop(file);
    let last = mtime(&path);
    pass(last);
    let again = mount.again();
    assert!(mtime(&again.path("renamed")) > last);
    assert_eq!(mtime(&again.path("renamed")), mtime(again.directory()));
}

fn utimens() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    let file = open_with(&path, 0).unwrap();
    for before_1970 in [
        Duration::from_secs(7),
        Duration::new(7, 1),
        Duration::from_nanos(1),
    ] {
        let wanted = SystemTime::UNIX_EPOCH - before_1970;
        file.set_modified(wanted).unwrap();
        assert_eq!(file.metadata().unwrap().modified().unwrap(), wanted);
    }
    let long_ago = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    let wanted = FileTimes::new()
        .set_modified(long_ago)
        .set_accessed(long_ago + Duration::from_secs(1));
    file.set_times(wanted).unwrap();
    drop(file);
    std::fs::rename(&path, mount.path("renamed")).unwrap();
    let seen = std::fs::metadata(mount.path("renamed")).unwrap();
    assert_eq!(seen.modified().unwrap(), long_ago);
    assert_eq!(seen.accessed().unwrap(), long_ago + Duration::from_secs(1));
    let again = mount.again();
    let seen = std::fs::metadata(again.path("renamed")).unwrap();
    assert!(seen.modified().unwrap() > long_ago + Duration::from_secs(1));
}

fn atime() {
    let mount = Mount::new();
    let path = mount.put("file", b"content");
    let before = std::fs::metadata(&path).unwrap().accessed().unwrap();
    pass(before);
    std::fs::read(&path).unwrap();
    let after = std::fs::metadata(&path).unwrap().accessed().unwrap();
    assert_eq!(after, before);
}

fn size_blocks() {
    let mount = Mount::new();
    for (length, blocks) in [(0, 0), (1, 8), (3_000, 8), (4_096, 16), (100_000, 208)] {
        let path = mount.put("file", &vec![1; length]);
        for seen in [
            std::fs::metadata(&path).unwrap(),
            File::open(&path).unwrap().metadata().unwrap(),
        ] {
            assert_eq!(seen.len(), length as u64);
            assert_eq!(seen.blocks(), blocks, "{length}");
            assert_eq!((seen.blksize(), seen.nlink()), (4096, 1));
        }
        // The same must hold when the kernel has to ask again.
        let again = std::fs::metadata(mount.directory().join("./file")).unwrap();
        assert_eq!(again.len(), length as u64);
    }
    let file = File::open(mount.path("file")).unwrap();
    std::fs::remove_file(mount.path("file")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
}

fn inode() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    let other = mount.put("other", b"x");
    let of = |path: &Path| std::fs::metadata(path).unwrap().ino();
    let first = of(&path);
    assert_ne!(first, of(&other));
    std::fs::rename(&path, mount.path("renamed")).unwrap();
    let file = open_with(&mount.path("renamed"), 0).unwrap();
    file.set_len(50_000).unwrap();
    file.write_all_at(&[7; 9_000], 10_000).unwrap();
    assert_eq!(of(&mount.path("renamed")), first);
    assert_eq!(file.metadata().unwrap().ino(), first);
    drop(file);
    std::fs::remove_file(mount.path("renamed")).unwrap();
    let mut seen = vec![first, of(&other)];
    for number in 0..20 {
        let path = mount.put("file", b"x");
        let inode = of(&path);
        assert!(!seen.contains(&inode), "{number}");
        seen.push(inode);
        std::fs::remove_file(&path).unwrap();
    }
}

fn statfs() {
    let mount = Mount::with(Setup {
        name_bytes_max: 100,
        ..Setup::default()
    });
    let empty = statvfs(mount.directory());
    assert_eq!((empty.f_bsize, empty.f_frsize), (4096, 4096));
    assert!(empty.f_blocks > 1500 && empty.f_blocks < 2048);
    assert_eq!(empty.f_bfree, empty.f_blocks);
    assert_eq!((empty.f_files, empty.f_ffree), (200, 200));
    assert_eq!(empty.f_namemax, 100);
    mount.put("one", &[1; 400_000]);
    mount.put("two", b"");
    let after = statvfs(mount.directory());
    let taken = empty.f_bfree - after.f_bfree;
    assert!((103..140).contains(&taken), "{taken}");
    assert_eq!(after.f_bavail, after.f_bfree);
    assert_eq!(after.f_ffree, 198);
    std::fs::remove_file(mount.path("one")).unwrap();
    std::fs::remove_file(mount.path("two")).unwrap();
    assert_eq!(statvfs(mount.directory()).f_ffree, 200);
    // The free space can be filled, except for a rest too small for the last pieces of a file.
    let free = statvfs(mount.directory()).f_bfree;
    let mut file = File::create(mount.path("all")).unwrap();
    let mut written = 0;
    while let Ok(count) = file.write(&[1; 4000]) {
        written += count;
    }
    let payload = flash::PAYLOAD_BYTES;
    println!("{} of {free} blocks filled", written / payload);
    assert!(written > free as usize * payload / 100 * 90);
}

fn xattr() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    for result in attribute_calls(&path) {
        refused(result, libc::EOPNOTSUPP);
    }
    for result in attribute_calls(mount.directory()) {
        refused(result, libc::EOPNOTSUPP);
    }
}

/// Returns whether another user can do this to the file.
fn other_user_can(program: &str, path: &Path) -> bool {
    Command::new(program)
        .arg(path)
        .uid(OTHER_USER)
        .gid(OTHER_USER)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap()
        .success()
}

fn other_users() {
    if !is_root() {
        println!("skipped: other-users: only root can act as another user");
        return;
    }
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    assert!(!other_user_can("cat", &path));
    assert!(!other_user_can("ls", mount.directory()));
    for (mode, can_read) in [(0o644, true), (0o640, false)] {
        let mount = Mount::with(Setup {
            allows_other_users: true,
            mode,
            ..Setup::default()
        });
        let path = mount.put("file", b"x");
        assert_eq!(other_user_can("cat", &path), can_read);
        assert!(!other_user_can("touch", &mount.path("new")));
        assert!(!other_user_can("rm", &path));
    }
}
