//! Reading the directory.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

use crate::Case;
use crate::support::{Directory, Mount, Setup};

pub const CASES: &[Case] = &[
    ("readdir", readdir),
    ("readdir-changes", readdir_changes),
    ("rewinddir", rewinddir),
];

/// More than one reply to the kernel holds.
const FILES: usize = 1500;

fn many() -> Mount {
    let mount = Mount::with(Setup {
        blocks: 4096,
        files_max: 3000,
        ..Setup::default()
    });
    for number in 0..FILES {
        std::fs::File::create(mount.path(name(number))).unwrap();
    }
    mount
}

fn name(number: usize) -> String {
    format!("{number} {}", "n".repeat(number % 90))
}

fn readdir() {
    let mount = many();
    let mut directory = Directory::open(mount.directory());
    let mut seen = BTreeSet::new();
    while let Some((name, inode)) = directory.next().unwrap() {
        if name != "." && name != ".." {
            let known = std::fs::metadata(mount.path(&name)).unwrap().ino();
            assert_eq!(inode, known);
        }
        assert!(seen.insert(name.clone()), "{name} is there twice");
    }
    assert!(seen.remove(".") && seen.remove(".."));
    let all: BTreeSet<String> = (0..FILES).map(name).collect();
    assert_eq!(seen, all);
    // A mount that has not seen the files returns the same inodes.
    let again = mount.again();
    let mut directory = Directory::open(again.directory());
    while let Some((name, inode)) = directory.next().unwrap() {
        if !name.starts_with('.') {
            let known = std::fs::metadata(again.path(&name)).unwrap().ino();
            assert_eq!(inode, known);
        }
    }
}

fn readdir_changes() {
    let mount = many();
    let mut directory = Directory::open(mount.directory());
    let mut seen = Vec::new();
    let mut round = 0;
    while let Some((name, _)) = directory.next().unwrap() {
        seen.push(name);
        // While the names are being read, every third file is deleted, and as many are created.
        if seen.len() % 3 == 0 && round < FILES / 3 {
            std::fs::remove_file(mount.path(self::name(round * 3))).unwrap();
            std::fs::File::create(mount.path(format!("new {round}"))).unwrap();
            round += 1;
        }
    }
    let unique: BTreeSet<&String> = seen.iter().collect();
    assert_eq!(unique.len(), seen.len(), "no name twice");
    for number in (0..FILES).filter(|number| number % 3 != 0) {
        assert!(unique.contains(&name(number)), "{number} is missing");
    }
    assert!(!seen.iter().any(|name| name.starts_with("new")));
    assert_eq!(mount.names().len(), FILES);
    // Most programs do this: read, delete the files read so far, read on.
    let mut directory = Directory::open(mount.directory());
    while let Some((name, _)) = directory.next().unwrap() {
        if name != "." && name != ".." {
            std::fs::remove_file(mount.path(name)).unwrap();
        }
    }
    assert!(mount.names().is_empty());
}

fn rewinddir() {
    let mount = many();
    let mut directory = Directory::open(mount.directory());
    for _ in 0..700 {
        directory.next().unwrap().unwrap();
    }
    let place = directory.position();
    let rest = directory.rest();
    directory.go_to(place);
    assert_eq!(directory.rest(), rest);
    assert!(rest.len() > 700);
    std::fs::File::create(mount.path("new")).unwrap();
    directory.rewind();
    let fresh = directory.rest();
    assert_eq!(fresh.len(), FILES + 1);
    assert!(fresh.contains(&"new".to_owned()));
}
