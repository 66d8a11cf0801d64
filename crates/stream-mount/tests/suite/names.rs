//! Names, attributes, links, directories, refused operations.

use std::collections::BTreeSet;
use std::ffi::{CString, OsString};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use stream::BLOCK_BYTES;
use stream::manifest::ROOT;
use stream_mount::COUNTERS_NAME;

use crate::support::*;

fn tree() -> TreeBuilder {
    let mut tree = TreeBuilder::new();
    let inner = tree.directory(ROOT, "inner");
    tree.directory(ROOT, "empty");
    let deep = tree.directory(inner, "deep");
    let file = tree.file(inner, "a", 0o4751, bytes(2 * BLOCK_BYTES + 1, 1));
    tree.name(deep, "b", file);
    tree.name(ROOT, "z", file);
    tree.link(ROOT, "link", "inner/deep/../a");
    tree.link(inner, "nowhere", "/nonexistent/place");
    tree
}

fn names_in(directory: &Path) -> BTreeSet<OsString> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
fn attributes_match_the_manifest() {
    if cannot_mount() {
        return;
    }
    let mount = Mount::new(tree());
    let file = fs::metadata(mount.path("inner/a")).unwrap();
    assert_eq!(file.size(), 2 * BLOCK_BYTES as u64 + 1);
    assert_eq!(file.blocks(), 3 * 8);
    assert_eq!(file.mode(), libc::S_IFREG | 0o4751);
    assert_eq!(
        (file.mtime(), file.mtime_nsec()),
        (MODIFIED.0, i64::from(MODIFIED.1))
    );
    assert_eq!(file.nlink(), 3);
    let other = fs::metadata(mount.path("inner/deep/b")).unwrap();
    assert_eq!((other.ino(), other.dev()), (file.ino(), file.dev()));
    assert_eq!(file.ino(), u64::from(mount.source.file("z").0) + 1);
    let links = |path: &str| fs::metadata(mount.path(path)).unwrap().nlink();
    assert_eq!(
        ["", "inner", "inner/deep", "empty"].map(links),
        [4, 3, 2, 2]
    );
    assert_eq!(fs::metadata(mount.path("")).unwrap().ino(), 1);
    assert_eq!(
        fs::read_link(mount.path("link")).unwrap(),
        Path::new("inner/deep/../a")
    );
    assert_eq!(fs::metadata(mount.path("link")).unwrap().ino(), file.ino());
    let link = fs::symlink_metadata(mount.path("link")).unwrap();
    assert_eq!((link.size(), link.mode()), (15, libc::S_IFLNK | 0o777));
    refused(File::open(mount.path("inner/nowhere")), libc::ENOENT);
    let space = statvfs(&mount.path(""));
    assert_eq!((space.f_blocks, space.f_bfree, space.f_files), (3, 0, 7));
}

#[test]
fn directories_list_each_name_once() {
    if cannot_mount() {
        return;
    }
    let mut tree = tree();
    let many = tree.directory(ROOT, "many");
    let names: BTreeSet<_> = (0..3000).map(|number| format!("name-{number}")).collect();
    for name in &names {
        tree.file(many, name, 0o600, Vec::new());
    }
    let mount = Mount::new(tree);
    for _ in 0..2 {
        let found = names_in(&mount.path("many"));
        assert_eq!(found, names.iter().map(OsString::from).collect());
        let found = names_in(&mount.path("inner"));
        assert_eq!(found, ["a", "deep", "nowhere"].map(OsString::from).into());
        assert!(names_in(&mount.path("empty")).is_empty());
    }
    for entry in fs::read_dir(mount.path("many")).unwrap() {
        let entry = entry.unwrap();
        let metadata = entry.metadata().unwrap();
        assert!(metadata.is_file() && entry.file_type().unwrap().is_file());
    }
    let above = fs::metadata(mount.path("inner/deep/..")).unwrap();
    assert_eq!(above.ino(), u64::from(mount.source.file("inner").0) + 1);
    refused(fs::read_dir(mount.path("z")), libc::ENOTDIR);
    refused(File::open(mount.path("missing")), libc::ENOENT);
    refused(File::open(mount.path("missing")), libc::ENOENT);
    refused(File::open(mount.path(&"n".repeat(256))), libc::ENAMETOOLONG);
}

#[test]
fn every_change_is_refused() {
    if cannot_mount() {
        return;
    }
    let mount = Mount::new(tree());
    let (file, new) = (mount.path("inner/a"), mount.path("new"));
    refused(File::create(&new), libc::EROFS);
    refused(OpenOptions::new().write(true).open(&file), libc::EROFS);
    refused(fs::create_dir(&new), libc::EROFS);
    refused(fs::remove_file(&file), libc::EROFS);
    refused(fs::remove_dir(mount.path("empty")), libc::EROFS);
    refused(fs::rename(&file, &new), libc::EROFS);
    refused(fs::hard_link(&file, &new), libc::EROFS);
    refused(symlink("a", &new), libc::EROFS);
    refused(
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)),
        libc::EROFS,
    );
    refused(mknod(&new, libc::S_IFIFO | 0o600), libc::EROFS);
    refused(set_attribute(&mount.path(""), COUNTERS_NAME), libc::EROFS);
}

fn set_attribute(path: &Path, name: &str) -> std::io::Result<i64> {
    let (path, name) = (c_path(path), CString::new(name).unwrap());
    // SAFETY: C strings and no value.
    check(unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), std::ptr::null(), 0, 0) })
}

pub fn attribute(path: &Path, name: &str, room: usize) -> std::io::Result<Vec<u8>> {
    let (path, name) = (c_path(path), CString::new(name).unwrap());
    let mut value = vec![0_u8; room];
    let to = value.as_mut_ptr().cast();
    // SAFETY: C strings, and a buffer of the given length.
    let length = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), to, room) };
    value.resize(check(length as i64)? as usize, 0);
    Ok(value)
}

#[test]
fn the_root_tells_the_counters() {
    if cannot_mount() {
        return;
    }
    let mount = Mount::new(tree());
    let root = mount.path("");
    assert_eq!(
        attribute(&root, COUNTERS_NAME, 100).unwrap(),
        b"{\"fuse_reads\":0,\"loaders\":[],\"reads\":0}"
    );
    fs::read(mount.path("z")).unwrap();
    let counters = attribute(&root, COUNTERS_NAME, 100).unwrap();
    // The kernel may request the blocks one by one, or together.
    let expected = [1, 2, 3]
        .map(|calls| format!("{{\"fuse_reads\":{calls},\"loaders\":[],\"reads\":3}}").into_bytes());
    assert!(expected.contains(&counters), "{counters:?}");
    refused(attribute(&root, COUNTERS_NAME, 5), libc::ERANGE);
    assert_eq!(
        attribute(&root, COUNTERS_NAME, 0).unwrap().len(),
        39,
        "only how long"
    );
    refused(
        attribute(&mount.path("z"), COUNTERS_NAME, 100),
        libc::ENODATA,
    );
    refused(attribute(&root, "user.other", 100), libc::ENODATA);
}

#[test]
fn only_redirected_paths_appear() {
    if cannot_mount() {
        return;
    }
    let mut builder = tree();
    let other = builder.directory(ROOT, "other");
    builder.file(other, "unseen", 0o644, bytes(9 * BLOCK_BYTES, 2));
    let mount = Mount::with(builder, &["/inner/deep", "link"]);
    assert_eq!(
        names_in(&mount.path("")),
        ["inner", "link"].map(OsString::from).into()
    );
    assert_eq!(
        names_in(&mount.path("inner")),
        ["deep"].map(OsString::from).into()
    );
    assert_eq!(
        fs::read(mount.path("inner/deep/b")).unwrap().len(),
        2 * BLOCK_BYTES + 1
    );
    assert_eq!(fs::metadata(mount.path("inner/deep/b")).unwrap().nlink(), 1);
    for name in ["other", "other/unseen", "inner/a", "z", "link"] {
        refused(File::open(mount.path(name)), libc::ENOENT);
    }
    assert_eq!(statvfs(&mount.path("")).f_blocks, 3);
}
