//! Tests the features that a flat store does not have.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use crate::Case;
use crate::support::{Mount, get_flags, mknod, refused};

pub const CASES: &[Case] = &[
    ("mkdir", mkdir),
    ("rmdir", rmdir),
    ("symlink", symbolic_link),
    ("link", hard_link),
    ("mkfifo", mkfifo),
    ("mknod-device", mknod_device),
    ("socket", socket),
    ("file-as-directory", file_as_directory),
    ("ioctl", ioctl),
];

fn mkdir() {
    let mount = Mount::new();
    refused(std::fs::create_dir(mount.path("new")), libc::EPERM);
    assert!(mount.names().is_empty());
}

fn rmdir() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    refused(std::fs::remove_dir(&path), libc::ENOTDIR);
    refused(std::fs::remove_dir(mount.path("absent")), libc::ENOENT);
    assert_eq!(mount.names(), ["file"]);
}

fn symbolic_link() {
    let mount = Mount::new();
    refused(symlink("target", mount.path("new")), libc::EPERM);
    let path = mount.put("file", b"x");
    refused(std::fs::read_link(&path), libc::EINVAL);
    assert_eq!(mount.names(), ["file"]);
}

fn hard_link() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    refused(std::fs::hard_link(&path, mount.path("new")), libc::EPERM);
    assert_eq!(mount.names(), ["file"]);
}

fn mkfifo() {
    let mount = Mount::new();
    let path = mount.path("new");
    refused(mknod(&path, libc::S_IFIFO | 0o600), libc::EPERM);
    assert!(mount.names().is_empty());
}

fn mknod_device() {
    // Root's call reaches the mount; for other users the kernel returns the same error.
    let mount = Mount::new();
    let path = mount.path("new");
    refused(mknod(&path, libc::S_IFCHR | 0o600), libc::EPERM);
    refused(mknod(&path, libc::S_IFBLK | 0o600), libc::EPERM);
    assert!(mount.names().is_empty());
}

fn socket() {
    let mount = Mount::new();
    refused(UnixListener::bind(mount.path("new")), libc::EPERM);
    assert!(mount.names().is_empty());
}

fn file_as_directory() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    refused(File::open(path.join("below")), libc::ENOTDIR);
    refused(File::create(path.join("below")), libc::ENOTDIR);
    refused(std::fs::read_dir(&path), libc::ENOTDIR);
}

fn ioctl() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    refused(get_flags(&File::open(&path).unwrap()), libc::ENOTTY);
}
