//! Files, directories, links and their names.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};

use crate::Case;
use crate::support::{Directory, Mount, mknod, names, open_unnamed, refused, rename_with};

pub const CASES: &[Case] = &[
    ("create", create),
    ("create-exclusive", create_exclusive),
    ("create-in-group", create_in_group),
    ("mknod-regular", mknod_regular),
    ("special-files", special_files),
    ("open-missing", open_missing),
    ("name-long", name_long),
    ("name-bytes", name_bytes),
    ("unlink", unlink),
    ("unlink-open", unlink_open),
    ("mkdir", mkdir),
    ("rmdir", rmdir),
    ("rmdir-full", rmdir_full),
    ("symlink", symbolic_link),
    ("link", link),
    ("rename", rename),
    ("rename-over", rename_over),
    ("rename-over-open", rename_over_open),
    ("rename-directory", rename_directory),
    ("rename-into-itself", rename_into_itself),
    ("rename-noreplace", rename_noreplace),
    ("rename-exchange", rename_exchange),
    ("o-tmpfile", o_tmpfile),
    ("readdir", readdir),
    ("readdir-changes", readdir_changes),
    ("rewinddir", rewinddir),
];

fn create() {
    let mount = Mount::new();
    let file = File::create(mount.path("new")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 0);
    assert_eq!(names(&mount.place.directory()), ["new"]);
    assert_eq!(mount.content_direct("new"), b"");
}

fn create_exclusive() {
    let mount = Mount::new();
    let path = mount.path("new");
    File::create_new(&path).unwrap();
    refused(File::create_new(&path), libc::EEXIST);
    mount.put_direct("other", b"");
    refused(File::create_new(mount.path("other")), libc::EEXIST);
}

fn create_in_group() {
    let mount = Mount::new();
    let path = mount.path("shared");
    std::fs::create_dir(&path).unwrap();
    let group = std::fs::metadata(&path).unwrap().gid();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o2775)).unwrap();
    File::create(path.join("file")).unwrap();
    std::fs::create_dir(path.join("directory")).unwrap();
    assert_eq!(std::fs::metadata(path.join("file")).unwrap().gid(), group);
    let made = std::fs::metadata(path.join("directory")).unwrap();
    assert_eq!((made.gid(), made.mode() & 0o2000), (group, 0o2000));
}

fn mknod_regular() {
    let mount = Mount::new();
    let path = mount.path("new");
    mknod(&path, libc::S_IFREG | 0o600).unwrap();
    refused(mknod(&path, libc::S_IFREG | 0o600), libc::EEXIST);
    assert!(std::fs::metadata(&path).unwrap().is_file());
}

fn special_files() {
    let mount = Mount::new();
    refused(
        mknod(&mount.path("fifo"), libc::S_IFIFO | 0o600),
        libc::EPERM,
    );
    // Without the right to make devices, the kernel refuses before it asks the view.
    refused(
        mknod(&mount.path("device"), libc::S_IFCHR | 0o600),
        libc::EPERM,
    );
    let bound = std::os::unix::net::UnixListener::bind(mount.path("socket"));
    refused(bound, libc::EPERM);
    assert!(names(&mount.place.directory()).is_empty());
}

fn open_missing() {
    let mount = Mount::new();
    let path = mount.path("missing");
    refused(File::open(&path), libc::ENOENT);
    refused(std::fs::metadata(&path), libc::ENOENT);
    refused(std::fs::remove_file(&path), libc::ENOENT);
    refused(std::fs::rename(&path, mount.path("new")), libc::ENOENT);
    // No cache remembers that the name was missing.
    mount.put_direct("missing", b"now");
    assert_eq!(std::fs::read(&path).unwrap(), b"now");
}

fn name_long() {
    let mount = Mount::new();
    let longest = "n".repeat(255);
    mount.put(&longest, b"x");
    assert_eq!(names(&mount.place.directory()), [longest]);
    let longer = mount.path(&"n".repeat(256));
    refused(File::create(&longer), libc::ENAMETOOLONG);
    refused(std::fs::metadata(&longer), libc::ENAMETOOLONG);
    refused(std::fs::create_dir(&longer), libc::ENAMETOOLONG);
}

fn name_bytes() {
    use std::os::unix::ffi::OsStringExt;
    let mount = Mount::new();
    let name = std::ffi::OsString::from_vec(vec![b'a', 0xff, b'\n', b' ']);
    std::fs::write(mount.place.directory().join(&name), b"x").unwrap();
    let found = std::fs::read_dir(mount.place.directory()).unwrap();
    let found: Vec<_> = found.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(found, [name]);
}

fn unlink() {
    let mount = Mount::new();
    let path = mount.put("file", b"x");
    std::fs::remove_file(&path).unwrap();
    refused(File::open(&path), libc::ENOENT);
    std::fs::create_dir(&path).unwrap();
    refused(std::fs::remove_file(&path), libc::EISDIR);
}

fn unlink_open() {
    let mount = Mount::new();
    let free = mount.direct.region().free_bytes();
    let path = mount.put("file", &[7; 4 << 20]);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(b"more").unwrap();
    file.seek(SeekFrom::Start((4 << 20) - 1)).unwrap();
    let mut end = Vec::new();
    file.read_to_end(&mut end).unwrap();
    assert_eq!(end, b"\x07more");
    assert_eq!(mount.direct.region().orphans(), 1);
    drop(file);
    // The kernel reports a close only after the program's call has returned; the next request comes after the report.
    wait_until(&mount, || mount.direct.region().orphans() == 0);
    // A page for small files may stay allocated.
    assert!(mount.direct.region().free_bytes() + mem::PAGE_BYTES >= free);
}

/// Waits for something that the view does after its reply.
fn wait_until(mount: &Mount, holds: impl Fn() -> bool) {
    while !holds() {
        std::fs::metadata(mount.place.directory()).unwrap();
        std::thread::yield_now();
    }
}

fn mkdir() {
    let mount = Mount::new();
    let path = mount.path("one/two/three");
    std::fs::create_dir_all(&path).unwrap();
    std::fs::write(path.join("file"), b"x").unwrap();
    assert_eq!(std::fs::metadata(mount.path("one")).unwrap().nlink(), 3);
    refused(std::fs::create_dir(&path), libc::EEXIST);
    refused(std::fs::create_dir(path.join("file/in")), libc::ENOTDIR);
    let with_mode = mount.path("mode");
    DirBuilder::new().mode(0o700).create(&with_mode).unwrap();
    let mode = std::fs::metadata(with_mode).unwrap().mode();
    assert_eq!(mode, libc::S_IFDIR | 0o700);
}

fn rmdir() {
    let mount = Mount::new();
    let path = mount.path("one");
    std::fs::create_dir(&path).unwrap();
    std::fs::remove_dir(&path).unwrap();
    refused(std::fs::read_dir(&path), libc::ENOENT);
    let file = mount.put("file", b"x");
    refused(std::fs::remove_dir(file), libc::ENOTDIR);
}

fn rmdir_full() {
    let mount = Mount::new();
    std::fs::create_dir_all(mount.path("one/two")).unwrap();
    refused(std::fs::remove_dir(mount.path("one")), libc::ENOTEMPTY);
}

fn symbolic_link() {
    let mount = Mount::new();
    std::fs::create_dir(mount.path("one")).unwrap();
    mount.put("one/file", b"there");
    let path = mount.path("link");
    symlink("one/file", &path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"there");
    assert_eq!(
        std::fs::read_link(&path).unwrap().to_str(),
        Some("one/file")
    );
    let found = std::fs::symlink_metadata(&path).unwrap();
    assert!(found.is_symlink() && found.len() == 8);
    std::fs::remove_file(&path).unwrap();
    let far = "x/".repeat(1000);
    symlink(&far, &path).unwrap();
    assert_eq!(
        std::fs::read_link(&path).unwrap().to_str(),
        Some(far.as_str())
    );
    symlink("round", mount.path("round")).unwrap();
    refused(File::open(mount.path("round")), libc::ELOOP);
}

fn link() {
    let mount = Mount::new();
    let (one, other) = (mount.put("one", b"x"), mount.path("other"));
    std::fs::hard_link(&one, &other).unwrap();
    let found = std::fs::metadata(&other).unwrap();
    assert_eq!(found.nlink(), 2);
    assert_eq!(found.ino(), std::fs::metadata(&one).unwrap().ino());
    std::fs::remove_file(&one).unwrap();
    assert_eq!(std::fs::read(&other).unwrap(), b"x");
    std::fs::create_dir(mount.path("directory")).unwrap();
    let refusal = std::fs::hard_link(mount.path("directory"), mount.path("again"));
    refused(refusal, libc::EPERM);
    refused(std::fs::hard_link(&other, &other), libc::EEXIST);
}

fn rename() {
    let mount = Mount::new();
    std::fs::create_dir(mount.path("there")).unwrap();
    let path = mount.put("file", b"x");
    let mut file = File::open(&path).unwrap();
    let inode = file.metadata().unwrap().ino();
    std::fs::rename(&path, mount.path("there/new")).unwrap();
    refused(std::fs::metadata(&path), libc::ENOENT);
    let found = std::fs::metadata(mount.path("there/new")).unwrap();
    assert_eq!(found.ino(), inode);
    let mut content = String::new();
    file.read_to_string(&mut content).unwrap();
    assert_eq!(content, "x");
}

fn rename_over() {
    let mount = Mount::new();
    let (one, other) = (mount.put("one", b"1"), mount.put("other", b"2"));
    std::fs::rename(&one, &other).unwrap();
    assert_eq!(std::fs::read(&other).unwrap(), b"1");
    assert_eq!(names(&mount.place.directory()), ["other"]);
    std::fs::create_dir(mount.path("directory")).unwrap();
    refused(
        std::fs::rename(&other, mount.path("directory")),
        libc::EISDIR,
    );
    refused(
        std::fs::rename(mount.path("directory"), &other),
        libc::ENOTDIR,
    );
}

fn rename_over_open() {
    let mount = Mount::new();
    let (one, other) = (mount.put("one", b"new"), mount.put("other", b"old"));
    let mut file = File::open(&other).unwrap();
    std::fs::rename(&one, &other).unwrap();
    let mut content = String::new();
    file.read_to_string(&mut content).unwrap();
    assert_eq!(content, "old");
    assert_eq!(std::fs::read(&other).unwrap(), b"new");
}

fn rename_directory() {
    let mount = Mount::new();
    std::fs::create_dir_all(mount.path("one/two")).unwrap();
    mount.put("one/two/file", b"x");
    std::fs::create_dir(mount.path("empty")).unwrap();
    std::fs::rename(mount.path("one/two"), mount.path("empty")).unwrap();
    assert_eq!(std::fs::read(mount.path("empty/file")).unwrap(), b"x");
    assert_eq!(std::fs::metadata(mount.path("one")).unwrap().nlink(), 2);
    std::fs::create_dir_all(mount.path("full/one")).unwrap();
    let refusal = std::fs::rename(mount.path("one"), mount.path("full"));
    refused(refusal, libc::ENOTEMPTY);
}

fn rename_into_itself() {
    let mount = Mount::new();
    std::fs::create_dir_all(mount.path("one/two")).unwrap();
    let refusal = std::fs::rename(mount.path("one"), mount.path("one/two/three"));
    refused(refusal, libc::EINVAL);
}

fn rename_noreplace() {
    let mount = Mount::new();
    let (one, other) = (mount.put("one", b"1"), mount.put("other", b"2"));
    refused(
        rename_with(&one, &other, libc::RENAME_NOREPLACE),
        libc::EEXIST,
    );
    rename_with(&one, &mount.path("new"), libc::RENAME_NOREPLACE).unwrap();
    assert_eq!(names(&mount.place.directory()), ["new", "other"]);
}

fn rename_exchange() {
    let mount = Mount::new();
    let one = mount.put("one", b"1");
    std::fs::create_dir(mount.path("other")).unwrap();
    rename_with(&one, &mount.path("other"), libc::RENAME_EXCHANGE).unwrap();
    assert!(one.is_dir());
    assert_eq!(std::fs::read(mount.path("other")).unwrap(), b"1");
    refused(
        rename_with(&one, &mount.path("new"), libc::RENAME_EXCHANGE),
        libc::ENOENT,
    );
    refused(
        rename_with(&one, &mount.path("new"), libc::RENAME_WHITEOUT),
        libc::EINVAL,
    );
}

fn o_tmpfile() {
    let mount = Mount::new();
    refused(open_unnamed(&mount.place.directory()), libc::EOPNOTSUPP);
}

fn readdir() {
    let mount = Mount::new();
    std::fs::create_dir(mount.path("directory")).unwrap();
    symlink("x", mount.path("link")).unwrap();
    // More names than one reply, and one read of the region, can hold.
    for number in 0..900 {
        mount.put(&format!("directory/file-with-a-long-name-{number}"), b"");
    }
    let mut directory = Directory::open(&mount.path("directory"));
    let (dot, own) = directory.next().unwrap().unwrap();
    let (dots, above) = directory.next().unwrap().unwrap();
    assert_eq!((dot.as_str(), dots.as_str()), (".", ".."));
    assert_eq!(
        own,
        std::fs::metadata(mount.path("directory")).unwrap().ino()
    );
    assert_eq!(
        above,
        std::fs::metadata(mount.place.directory()).unwrap().ino()
    );
    let mut found = directory.rest();
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 900);
    for entry in std::fs::read_dir(mount.place.directory()).unwrap() {
        let entry = entry.unwrap();
        let (kind, found) = (entry.file_type().unwrap(), entry.metadata().unwrap());
        assert_eq!(kind, found.file_type());
        assert!(!kind.is_fifo());
        assert_eq!(std::os::unix::fs::DirEntryExt::ino(&entry), found.ino());
    }
}

fn readdir_changes() {
    let mount = Mount::new();
    for number in 0..400 {
        mount.put(&format!("stays-{number}"), b"");
        mount.put(&format!("goes-{number}"), b"");
    }
    let mut directory = Directory::open(&mount.place.directory());
    let mut stayed = Vec::new();
    let mut number = 0;
    while let Some((name, _)) = directory.next().unwrap() {
        if number < 400 {
            std::fs::remove_file(mount.path(&format!("goes-{number}"))).unwrap();
            mount.put_direct(&format!("comes-{number}"), b"");
            number += 1;
        }
        if name.starts_with("stays-") {
            stayed.push(name);
        }
        // The region has no room for more.
        if number % 50 == 0 {
            for gone in number - 50..number {
                let name = format!("comes-{gone}");
                std::fs::remove_file(mount.path(&name)).ok();
            }
        }
    }
    stayed.sort();
    let count = stayed.len();
    stayed.dedup();
    assert_eq!((stayed.len(), count), (400, 400));
}

fn rewinddir() {
    let mount = Mount::new();
    for number in 0..50 {
        mount.put(&format!("file-{number}"), b"");
    }
    let mut directory = Directory::open(&mount.place.directory());
    for _ in 0..10 {
        directory.next().unwrap();
    }
    let position = directory.position();
    let rest = directory.rest();
    directory.go_to(position);
    assert_eq!(directory.rest(), rest);
    mount.put("new", b"");
    directory.rewind();
    assert_eq!(directory.rest().len(), 51);
}
