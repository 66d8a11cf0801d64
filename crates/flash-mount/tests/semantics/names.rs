//! Files and names.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;

use base::sim::Keep;
use flash::Store;

use crate::Case;
use crate::support::{
    Mount, Setup, content, mknod, open_unnamed, open_with, refused, rename_with, statvfs,
};

pub const CASES: &[Case] = &[
    ("create", create),
    ("create-exclusive", create_exclusive),
    ("mknod-regular", mknod_regular),
    ("open-missing", open_missing),
    ("name-long", name_long),
    ("name-encoding", name_encoding),
    ("name-reserved", name_reserved),
    ("name-table-full", name_table_full),
    ("open-limit", open_limit),
    ("unlink", unlink),
    ("unlink-open", unlink_open),
    ("unlink-open-killed", unlink_open_killed),
    ("unlink-open-short-names", unlink_open_short_names),
    ("rename", rename),
    ("rename-over", rename_over),
    ("rename-over-open", rename_over_open),
    ("rename-itself", rename_itself),
    ("rename-noreplace", rename_noreplace),
    ("rename-exchange", rename_exchange),
    ("o-tmpfile", o_tmpfile),
];

fn create() {
    let mount = Mount::new();
    let file = File::create(mount.path("new")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 0);
    assert_eq!(mount.durable("new").unwrap(), b"");
    assert_eq!(mount.names(), ["new"]);
}

fn create_exclusive() {
    let mount = Mount::new();
    let path = mount.path("new");
    File::create_new(&path).unwrap();
    refused(File::create_new(&path), libc::EEXIST);
}

fn mknod_regular() {
    let mount = Mount::new();
    let path = mount.path("new");
    mknod(&path, libc::S_IFREG | 0o600).unwrap();
    refused(mknod(&path, libc::S_IFREG | 0o600), libc::EEXIST);
    assert_eq!(mount.durable("new").unwrap(), b"");
    std::fs::write(&path, "used").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"used");
}

fn open_missing() {
    let mount = Mount::new();
    let path = mount.path("absent");
    refused(File::open(&path), libc::ENOENT);
    refused(std::fs::metadata(&path), libc::ENOENT);
    refused(std::fs::remove_file(&path), libc::ENOENT);
    refused(std::fs::rename(&path, mount.path("b")), libc::ENOENT);
}

fn name_long() {
    for name_bytes_max in [255_u16, 40] {
        let mount = Mount::with(Setup {
            name_bytes_max,
            ..Setup::default()
        });
        let longest = "n".repeat(usize::from(name_bytes_max));
        let longer = mount.path(format!("{longest}n"));
        mount.put(&longest, b"x");
        assert_eq!(mount.names(), [longest.as_str()]);
        refused(File::create(&longer), libc::ENAMETOOLONG);
        refused(File::open(&longer), libc::ENAMETOOLONG);
        refused(std::fs::remove_file(&longer), libc::ENAMETOOLONG);
        let renamed = std::fs::rename(mount.path(&longest), &longer);
        refused(renamed, libc::ENAMETOOLONG);
    }
}

fn name_encoding() {
    let mount = Mount::new();
    let name = std::ffi::OsString::from_vec(b"gr\xf6\xdfe".to_vec());
    refused(File::create(mount.path(&name)), libc::EILSEQ);
    refused(File::open(mount.path(&name)), libc::ENOENT);
    let path = mount.put("größe", b"x");
    refused(std::fs::rename(&path, mount.path(&name)), libc::EILSEQ);
    assert_eq!(mount.names(), ["größe"]);
}

/// Returns the names in the store, including hidden ones.
fn stored(mount: &Mount) -> Vec<String> {
    let image = mount.after_power_cut();
    let mut store = Store::open(image, &flash::OpenOptions::default()).unwrap();
    let mut names = Vec::new();
    store
        .list(&mut |name, _| names.push(name.to_owned()))
        .unwrap();
    names.sort();
    names
}

fn name_reserved() {
    let mount = Mount::new();
    let open = File::create(mount.path("open")).unwrap();
    std::fs::remove_file(mount.path("open")).unwrap();
    // Hidden names look like this; a user could read them in the image.
    let hidden = stored(&mount);
    assert!(hidden.iter().all(|name| name.starts_with(".deleted-")));
    assert_eq!(hidden.len(), 2);
    for name in &hidden {
        refused(File::open(mount.path(name)), libc::ENOENT);
        refused(std::fs::remove_file(mount.path(name)), libc::ENOENT);
        refused(File::create(mount.path(name)), libc::EPERM);
    }
    let other = mount.put("other", b"x");
    refused(std::fs::rename(&other, mount.path(&hidden[1])), libc::EPERM);
    assert_eq!(mount.names(), ["other"]);
    // Without the number it is an ordinary name.
    mount.put(".deleted-notes", b"x");
    drop(open);
}

fn name_table_full() {
    let mount = Mount::with(Setup {
        files_max: 1,
        ..Setup::default()
    });
    let mut made = 0;
    let refusal = loop {
        match File::create_new(mount.path(format!("file {made}"))) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
        assert!(made < 10_000);
    };
    refused::<()>(Err(refusal), libc::ENOSPC);
    assert_eq!(mount.names().len(), made);
    for number in 0..made {
        std::fs::remove_file(mount.path(format!("file {number}"))).unwrap();
    }
    File::create_new(mount.path(format!("file {made}"))).unwrap();
}

fn open_limit() {
    let mount = Mount::with(Setup {
        open_files_max: 3,
        ..Setup::default()
    });
    mount.put("more", b"x");
    let mut open: Vec<File> = (0..3)
        .map(|number| File::create(mount.path(format!("{number}"))).unwrap())
        .collect();
    refused(File::open(mount.path("more")), libc::ENFILE);
    refused(File::create(mount.path("new")), libc::ENFILE);
    assert!(!mount.names().contains(&"new".to_owned()));
    // Opening the same file again needs no further room, and calls that need no open file work.
    open.push(File::open(mount.path("1")).unwrap());
    std::fs::rename(mount.path("more"), mount.path("moved")).unwrap();
    std::fs::remove_file(mount.path("2")).unwrap();
    let cut = OpenOptions::new().write(true).open(mount.path("1"));
    cut.unwrap().set_len(10).unwrap();
    open.remove(0);
    File::open(mount.path("moved")).unwrap();
}

fn unlink() {
    let mount = Mount::new();
    let path = mount.put("gone", b"x");
    assert!(mount.durable("gone").is_some());
    std::fs::remove_file(&path).unwrap();
    assert_eq!(mount.durable("gone"), None);
    assert!(mount.names().is_empty());
}

fn unlink_open() {
    let mount = Mount::new();
    let path = mount.put("open", &[1; 100_000]);
    let free_before = statvfs(mount.directory()).f_bfree;
    let mut file = open_with(&path, 0).unwrap();
    std::fs::remove_file(&path).unwrap();
    refused(File::open(&path), libc::ENOENT);
    assert!(mount.names().is_empty());
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    // A new file of that name is a different file.
    mount.put("open", b"new");
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(b"more").unwrap();
    file.sync_all().unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut read = Vec::new();
    file.read_to_end(&mut read).unwrap();
    assert_eq!(read.len(), 100_004);
    assert!(read.ends_with(b"\x01more"));
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
    file.set_len(3).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3);
    drop(file);
    std::fs::remove_file(&path).unwrap();
    // The kernel reports the last close a little later than `close` returns, but in order.
    let figures = statvfs(mount.directory());
    assert!(figures.f_bfree > free_before);
    let mut store = mount.end();
    assert_eq!(store.statistics().files, 0, "not even the marker is left");
    assert!(store.check().unwrap().is_clean());
}

fn unlink_open_killed() {
    let mount = Mount::new();
    let path = mount.put("open", &[1; 100_000]);
    mount.put("kept", b"x");
    let file = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(stored(&mount).len(), 3);
    let again = Mount::of(mount.after_power_cut(), Setup::default());
    assert_eq!(again.mounted().leftovers().files_deleted, 1);
    assert_eq!(again.names(), ["kept"]);
    assert_eq!(stored(&again), ["kept"]);
    drop(file);
}

fn unlink_open_short_names() {
    let mount = Mount::with(Setup {
        name_bytes_max: 28,
        ..Setup::default()
    });
    let path = mount.put("open", b"x");
    let other = mount.put("other", b"y");
    let file = File::open(&path).unwrap();
    refused(std::fs::remove_file(&path), libc::EBUSY);
    refused(std::fs::rename(&other, &path), libc::EBUSY);
    assert_eq!(mount.names(), ["open", "other"]);
    drop(file);
    std::fs::remove_file(&path).unwrap();
    // One more byte is enough.
    let mount = Mount::with(Setup {
        name_bytes_max: 29,
        ..Setup::default()
    });
    let path = mount.put("open", b"x");
    let _file = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
}

fn rename() {
    let mount = Mount::new();
    let path = mount.put("before", b"content");
    let mut file = open_with(&path, 0).unwrap();
    file.sync_all().unwrap();
    std::fs::rename(&path, mount.path("after")).unwrap();
    assert_eq!(mount.names(), ["after"]);
    assert_eq!(mount.durable("before"), None);
    assert_eq!(mount.durable("after").unwrap(), b"content");
    file.write_all(b"CON").unwrap();
    assert_eq!(std::fs::read(mount.path("after")).unwrap(), b"CONtent");
}

fn rename_over() {
    let mount = Mount::new();
    let old = mount.put("config", b"old");
    let new = mount.put("config.new", b"new");
    File::open(&old).unwrap().sync_all().unwrap();
    let device = mount.device.clone();
    std::fs::rename(&new, &old).unwrap();
    assert_eq!(std::fs::read(&old).unwrap(), b"new");
    assert_eq!(mount.names(), ["config"]);
    assert_eq!(mount.durable("config").unwrap(), b"new");
    assert_eq!(mount.durable("config.new"), None);
    // For any part of the other writes that reaches the device, the name shows one of the two files.
    for torn in 0..64 {
        let image = device.with(|device| device.crash_image_random(torn));
        let mut store = Store::open(image, &flash::OpenOptions::default()).unwrap();
        assert_eq!(store.stat("config").unwrap().length_bytes, 3);
    }
}

fn rename_over_open() {
    let mount = Mount::new();
    let old = mount.put("config", b"old");
    let mut reader = File::open(&old).unwrap();
    reader.sync_all().unwrap();
    let new = mount.put("config.new", b"new");
    let mut writer = open_with(&new, 0).unwrap();
    writer.sync_all().unwrap();
    std::fs::rename(&new, &old).unwrap();
    let mut read = String::new();
    reader.read_to_string(&mut read).unwrap();
    assert_eq!(read, "old");
    assert_eq!(std::fs::read(&old).unwrap(), b"new");
    assert_eq!(mount.names(), ["config"]);
    // A program that had the new file open can still write to it.
    writer.write_all(b"NEW").unwrap();
    writer.sync_all().unwrap();
    assert_eq!(std::fs::read(&old).unwrap(), b"NEW");
    // Check the next mount, after a power cut at this moment.
    let again = Mount::of(mount.after_power_cut(), Setup::default());
    assert_eq!(std::fs::read(again.path("config")).unwrap(), b"NEW");
    assert_eq!(again.names(), ["config"]);
    drop(reader);
    drop(writer);
    let mut store = mount.end();
    assert_eq!(content(&mut store, "config").unwrap(), b"NEW");
    assert_eq!(store.statistics().files, 1);
}

fn rename_itself() {
    let mount = Mount::new();
    let path = mount.put("same", b"content");
    let writes = mount.device.with(|device| device.unflushed_count());
    std::fs::rename(&path, &path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"content");
    assert_eq!(
        mount.device.with(|device| device.unflushed_count()),
        writes,
        "nothing was written"
    );
}

fn rename_noreplace() {
    let mount = Mount::new();
    let path = mount.put("one", b"1");
    let other = mount.put("two", b"2");
    let flags = libc::RENAME_NOREPLACE;
    refused(rename_with(&path, &other, flags), libc::EEXIST);
    assert_eq!(std::fs::read(&other).unwrap(), b"2");
    rename_with(&path, &mount.path("three"), flags).unwrap();
    assert_eq!(mount.names(), ["three", "two"]);
}

fn rename_exchange() {
    let mount = Mount::new();
    let path = mount.put("one", b"1");
    let other = mount.put("two", b"2");
    refused(
        rename_with(&path, &other, libc::RENAME_EXCHANGE),
        libc::EINVAL,
    );
    refused(
        rename_with(&path, &other, libc::RENAME_WHITEOUT),
        libc::EINVAL,
    );
    assert_eq!(std::fs::read(&path).unwrap(), b"1");
    assert_eq!(std::fs::read(&other).unwrap(), b"2");
}

fn o_tmpfile() {
    let mount = Mount::new();
    refused(open_unnamed(mount.directory()), libc::EOPNOTSUPP);
    let all_lost = mount
        .device
        .with(|device| device.crash_image(&|_| Keep::Lost));
    let store = Store::open(all_lost, &flash::OpenOptions::default()).unwrap();
    assert_eq!(store.statistics().files, 0);
}
