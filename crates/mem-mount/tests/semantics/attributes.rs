//! Attributes of files, without names and bytes.

use std::fs::{File, FileTimes, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use mem::ROOT_INODE;

use crate::Case;
use crate::support::{Mount, attribute_calls, get_flags, is_root, refused, statvfs};

pub const CASES: &[Case] = &[
    ("mode-owner", mode_owner),
    ("chmod", chmod),
    ("chown", change_owner),
    ("write-clears-setuid", write_clears_setuid),
    ("times", times),
    ("utimens", utimens),
    ("size-blocks", size_blocks),
    ("inode", inode),
    ("statfs", statfs),
    ("xattr", xattr),
    ("ioctl", ioctl),
    ("other-users", other_users),
    ("sticky", sticky),
];

fn mode_owner() {
    let mount = Mount::new();
    let path = mount.path("file");
    let shell = format!("umask 027; : > '{}'", path.display());
    assert!(
        Command::new("sh")
            .arg("-c")
            .arg(shell)
            .status()
            .unwrap()
            .success()
    );
    let found = std::fs::metadata(&path).unwrap();
    let (user, group) = base::mount::effective_ids();
    assert_eq!(
        (found.mode() & 0o7777, found.uid(), found.gid()),
        (0o640, user, group)
    );
    let direct = mount.direct.look_up(ROOT_INODE, b"file").unwrap();
    assert_eq!((direct.mode & 0o7777, direct.user), (0o640, user));
}

fn chmod() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    for mode in [0o4755, 0o600, 0o1777] {
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, mode);
        let direct = mount.direct.look_up(ROOT_INODE, b"file").unwrap();
        assert_eq!(direct.mode, libc::S_IFREG | mode);
    }
}

fn change_owner() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    if !is_root() {
        refused(chown(&path, Some(0), None), libc::EPERM);
        return;
    }
    std::fs::set_permissions(&path, Permissions::from_mode(0o4755)).unwrap();
    chown(&path, Some(12), Some(34)).unwrap();
    let found = std::fs::metadata(&path).unwrap();
    assert_eq!(
        (found.uid(), found.gid(), found.mode() & 0o7777),
        (12, 34, 0o755)
    );
}

fn write_clears_setuid() {
    if !is_root() {
        println!("skipped: write-clears-setuid: only root can act as another user");
        return;
    }
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    std::fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
    as_nobody(&format!("printf y >> '{}'", path.display()), true);
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
}

/// Runs a shell command as user 65534 and asserts whether it succeeds.
fn as_nobody(shell: &str, works: bool) {
    let status = Command::new("sh")
        .arg("-c")
        .arg(format!("({shell}) 2>/dev/null"))
        .uid(65534)
        .gid(65534)
        .status()
        .unwrap();
    assert_eq!(status.success(), works, "{shell}");
}

fn times() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    let long_ago = FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_secs(1000));
    let file = File::options().write(true).open(&path).unwrap();
    file.set_times(long_ago).unwrap();
    let before = std::fs::metadata(&path).unwrap();
    assert_eq!(before.mtime(), 1000);
    assert!(before.ctime() > 1000);
    std::fs::write(&path, b"y").unwrap();
    assert!(std::fs::metadata(&path).unwrap().mtime() > 1000);
    // A read does not change the access time.
    let read = std::fs::metadata(&path).unwrap().atime();
    std::fs::read(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().atime(), read);
}

fn utimens() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    let file = File::options().write(true).open(&path).unwrap();
    let exact = UNIX_EPOCH + Duration::new(1_234_567_890, 123_456_789);
    let early = UNIX_EPOCH - Duration::new(7, 1);
    let times = FileTimes::new().set_modified(exact).set_accessed(early);
    file.set_times(times).unwrap();
    let found = std::fs::metadata(&path).unwrap();
    assert_eq!(found.modified().unwrap(), exact);
    assert_eq!(found.accessed().unwrap(), early);
}

fn size_blocks() {
    let mount = Mount::new();
    let path = mount.put("file", &[1; 1000]);
    let found = std::fs::metadata(&path).unwrap();
    assert_eq!(
        (found.size(), found.blocks(), found.blksize()),
        (1000, 2, 4096)
    );
    assert_eq!(found.nlink(), 1);
}

fn inode() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    let inode = std::fs::metadata(&path).unwrap().ino();
    let direct = mount.direct.look_up(ROOT_INODE, b"file").unwrap();
    assert_eq!(direct.inode, inode);
    std::fs::rename(&path, mount.path("new")).unwrap();
    assert_eq!(std::fs::metadata(mount.path("new")).unwrap().ino(), inode);
}

fn statfs() {
    let mount = Mount::new();
    let before = statvfs(&mount.place.directory());
    let data_bytes = mount.direct.region().layout().data_pages() * mem::PAGE_BYTES;
    assert_eq!(before.f_blocks * before.f_frsize, data_bytes);
    assert_eq!((before.f_files, before.f_namemax), (1000, 255));
    mount.put("file", &vec![1; 4 << 20]);
    let after = statvfs(&mount.place.directory());
    assert_eq!(before.f_ffree - after.f_ffree, 1);
    assert!((before.f_bfree - after.f_bfree) * before.f_frsize >= 4 << 20);
}

fn xattr() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    for result in attribute_calls(&path) {
        refused(result, libc::EOPNOTSUPP);
    }
}

fn ioctl() {
    let mount = Mount::new();
    let file = File::open(mount.put("file", b"x")).unwrap();
    refused(get_flags(&file), libc::ENOTTY);
}

fn may(path: &Path, test: &str, works: bool) {
    as_nobody(&format!("test {test} '{}'", path.display()), works);
}

fn other_users() {
    if !is_root() {
        println!("skipped: other-users: only root can act as another user");
        return;
    }
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    may(&path, "-r", true);
    may(&path, "-w", false);
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    may(&path, "-r", false);
    as_nobody(&format!("cat '{}'", path.display()), false);
    as_nobody(&format!("rm -f '{}'", path.display()), false);
    as_nobody(&format!(": > '{}'", mount.path("new").display()), false);
    // A change outside the view is visible at once.
    let found = mount.direct.look_up(ROOT_INODE, b"file").unwrap();
    let changes = mem::Changes {
        mode: Some(0o644),
        ..mem::Changes::default()
    };
    let writer = mount.direct.writer().unwrap();
    writer
        .set_attributes(found.node(), &changes, mem::now_ns())
        .unwrap();
    as_nobody(&format!("cat '{}'", path.display()), true);
}

fn sticky() {
    if !is_root() {
        println!("skipped: sticky: only root can act as another user");
        return;
    }
    let mount = Mount::new();
    let directory = mount.path("all");
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, Permissions::from_mode(0o1777)).unwrap();
    let path = mount.put("all/file", b"x");
    as_nobody(&format!("rm -f '{}'", path.display()), false);
    as_nobody(
        &format!("d='{}'; : > $d/own && rm $d/own", directory.display()),
        true,
    );
    std::fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
    as_nobody(&format!("rm -f '{}'", path.display()), true);
}
