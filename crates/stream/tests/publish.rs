//! Publishing trees into stores, and reading them back.

use crate::common::{Scratch, options, write};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Barrier;
use stream::group::groups_of;
use stream::manifest::{Kind, Manifest, ROOT, publisher, verify};
use stream::publish::{PackProgress, PublishError, pack};
use stream::store::{Store, StoreError};
use stream::{BLOCK_BYTES, FileId, SEGMENT_BLOCKS};

/// Returns all bytes of a file from the store.
fn content(store: &Store, manifest: &Manifest, file: FileId) -> Vec<u8> {
    let (size_bytes, content) = manifest.file(file).unwrap();
    let blocks = manifest.blocks(file);
    let mut bytes = Vec::new();
    for segment in 0..blocks.div_ceil(SEGMENT_BLOCKS) {
        let at = store.locate(&content, segment).unwrap();
        assert!(store.advise(&at));
        let left = blocks - segment * SEGMENT_BLOCKS;
        assert_eq!(at.blocks, left.min(SEGMENT_BLOCKS));
        bytes.extend(store.segment(&content, segment).unwrap());
    }
    for number in 0..groups_of(blocks) {
        let group = store.group(&content, number).unwrap();
        assert!(group.is_of(&content, blocks, number));
    }
    let none = store.group(&content, groups_of(blocks));
    assert!(matches!(none, Err(StoreError::NoSuchContent { .. })));
    assert_eq!(bytes.len() as u64, size_bytes);
    bytes
}

/// Compares a directory with its published version.
fn compare(store: &Store, manifest: &Manifest, directory: FileId, path: &Path) {
    let mut names: Vec<_> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    let entries = manifest.entries(directory);
    assert_eq!(entries.len(), names.len());
    for (entry, name) in entries.iter().zip(&names) {
        assert_eq!(&*entry.name, name.as_encoded_bytes());
        let path = path.join(name);
        let found = fs::symlink_metadata(&path).unwrap();
        let node = manifest.node(entry.node).unwrap();
        assert_eq!(u32::from(node.mode), found.mode() & 0o7777, "{path:?}");
        assert_eq!((node.user, node.group), (found.uid(), found.gid()));
        assert_eq!(node.modified_s, found.mtime());
        assert_eq!(i64::from(node.modified_ns), found.mtime_nsec());
        match &node.kind {
            Kind::Directory => compare(store, manifest, entry.node, &path),
            Kind::File { .. } => {
                assert!(content(store, manifest, entry.node) == fs::read(&path).unwrap());
            }
            Kind::Link { target } => {
                let found = fs::read_link(&path).unwrap();
                assert_eq!(&**target, found.as_os_str().as_encoded_bytes());
            }
        }
    }
}

#[test]
fn a_tree_comes_back_as_it_was() {
    let scratch = Scratch::new("tree");
    let tree = scratch.path("tree");
    write(&tree.join("bin/program"), 300_001, 1);
    write(&tree.join("bin/exact"), 32 * BLOCK_BYTES, 2);
    write(&tree.join("lib/deep/er/small"), 5, 3);
    write(&tree.join("empty"), 0, 0);
    fs::create_dir(tree.join("nothing")).unwrap();
    symlink("../bin/program", tree.join("lib/link")).unwrap();
    symlink("/nowhere", tree.join("lib/dangling")).unwrap();
    fs::hard_link(tree.join("bin/program"), tree.join("lib/again")).unwrap();
    fs::set_permissions(tree.join("bin/program"), PermissionsExt::from_mode(0o4751)).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(tree.join("socket")).unwrap();
    let store_path = scratch.path("store");
    let mut last = PackProgress::default();
    let report = pack(&tree, &store_path, &options(), &mut |now| last = *now).unwrap();
    assert_eq!((report.version, report.is_new), (1, true));
    let tree_counts = report.tree;
    assert_eq!((tree_counts.files, tree_counts.directories), (4, 6));
    assert_eq!((tree_counts.links, tree_counts.hard_links), (2, 1));
    assert_eq!(tree_counts.special, 1);
    assert_eq!(last.read_bytes, tree_counts.bytes);
    fs::remove_file(tree.join("socket")).unwrap();
    let store = Store::open(&store_path).unwrap();
    assert_eq!(store.newest().unwrap(), 1);
    let published = store.published(1).unwrap();
    assert_eq!(publisher(&published.signed), Some(*store.publisher()));
    let verified = verify(&published.signed, store.publisher());
    assert_eq!(verified.as_ref(), Ok(&*published.manifest));
    let manifest = &published.manifest;
    // The socket was removed, so the root's time has changed, and its names are as before.
    let root = manifest.node(ROOT).unwrap();
    assert!(matches!(root.kind, Kind::Directory));
    compare(&store, manifest, ROOT, &tree);
    assert_eq!(manifest.find(b"bin/program"), manifest.find(b"/lib//again"));
    assert!(matches!(
        store.published(2),
        Err(StoreError::NoSuchVersion { version: 2 })
    ));
}

#[test]
fn lost_content_of_a_store_is_packed_again_from_the_tree() {
    use stream::publish::check;
    let scratch = Scratch::new("lost");
    write(&scratch.path("tree/first"), 300_000, 1);
    let publish = || {
        pack(
            &scratch.path("tree"),
            &scratch.path("store"),
            &options(),
            &mut |_| {},
        )
    };
    publish().unwrap();
    write(&scratch.path("tree/second"), 300_000, 2);
    publish().unwrap();
    let packs = scratch.path("store/packs");
    let find = |ending: &str| {
        let entries = fs::read_dir(&packs)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let mut found: Vec<_> = entries
            .filter(|path| path.extension().is_some_and(|found| found == ending))
            .collect();
        found.sort();
        found.remove(0)
    };
    let is_whole = || {
        check(&scratch.path("store"), &mut |_| {})
            .unwrap()
            .is_whole()
    };
    type Lose = fn(&Path);
    let lose: [(&str, Lose); 4] = [
        ("pack", |path| fs::remove_file(path).unwrap()),
        ("pack", |path| {
            fs::write(path, &fs::read(path).unwrap()[..100_000]).unwrap()
        }),
        ("pack", |path| fs::write(path, "").unwrap()),
        ("index", |path| fs::remove_file(path).unwrap()),
    ];
    for (turn, (ending, lose)) in lose.into_iter().enumerate() {
        // The tree needs what this file holds.
        let path = find(ending);
        lose(&path);
        let report = publish().unwrap();
        assert!(
            !report.is_new && report.written.contents > 0,
            "{turn}: {report:?}"
        );
        assert_eq!(report.packs_lacking.is_empty(), ending == "index", "{turn}");
        let again = publish().unwrap();
        assert!(
            !again.is_new && again.written.contents == 0,
            "{turn}: {again:?}"
        );
        let store = Store::open(&scratch.path("store")).unwrap();
        let published = store.published(store.newest().unwrap()).unwrap();
        compare(&store, &published.manifest, ROOT, &scratch.path("tree"));
        if !is_whole() {
            fs::remove_dir_all(scratch.path("store")).unwrap();
            publish().unwrap();
        }
    }
    // Also for a changed tree: the new version is complete.
    fs::remove_dir_all(scratch.path("store")).unwrap();
    publish().unwrap();
    let path = find("pack");
    fs::remove_file(&path).unwrap();
    write(&scratch.path("tree/third"), 100_000, 3);
    let report = publish().unwrap();
    assert!(
        report.is_new && report.packs_lacking == [path],
        "{report:?}"
    );
    let store = Store::open(&scratch.path("store")).unwrap();
    let published = store.published(report.version).unwrap();
    compare(&store, &published.manifest, ROOT, &scratch.path("tree"));
    assert!(!report.had_no_version);
    fs::remove_dir_all(scratch.path("store/manifests")).unwrap();
    fs::create_dir(scratch.path("store/manifests")).unwrap();
    fs::remove_file(scratch.path("store/newest")).unwrap();
    assert!(publish().unwrap().had_no_version);
}

/// A version that takes damaged content from the store could not be read.
#[test]
fn changed_bytes_of_a_pack_are_packed_again_from_the_tree() {
    use stream::publish::check;
    let scratch = Scratch::new("changed-bytes");
    let (tree, store) = (scratch.path("tree"), scratch.path("store"));
    write(&scratch.path("tree/first"), 2_000_000, 1);
    write(&scratch.path("tree/same"), 2_000_000, 1);
    let publish = || pack(&tree, &store, &options(), &mut |_| {}).unwrap();
    let first = publish();
    assert!(first.is_new && first.packs_damaged.is_empty(), "{first:?}");
    let packed = scratch.path("store/packs/0000000001.pack");
    let damage = || {
        let mut bytes = fs::read(&packed).unwrap();
        let middle = bytes.len() / 2;
        for byte in &mut bytes[middle..middle + 400] {
            *byte ^= 0x55;
        }
        fs::write(&packed, bytes).unwrap();
    };
    let is_right = |version: u64| {
        let opened = Store::open(&store).unwrap();
        let published = opened.published(version).unwrap();
        compare(&opened, &published.manifest, ROOT, &tree);
        let report = check(&store, &mut |_| {}).unwrap();
        assert_eq!(report.damage.newest_lacking, None, "{report:?}");
    };
    // The next version takes the content that has not changed.
    damage();
    write(&scratch.path("tree/second"), 100_000, 2);
    let second = publish();
    assert!(second.is_new && second.written.contents == 2, "{second:?}");
    assert_eq!(second.packs_damaged, std::slice::from_ref(&packed));
    is_right(second.version);
    let again = publish();
    let is_mended = !again.is_new && again.written.contents == 0 && again.packs_damaged.is_empty();
    assert!(is_mended, "{again:?}");
    // A tree without changes mends its own version.
    fs::remove_dir_all(&store).unwrap();
    fs::remove_file(scratch.path("tree/second")).unwrap();
    publish();
    damage();
    let same = publish();
    let is_mended = !same.is_new && same.written.contents == 1;
    assert!(
        is_mended && same.packs_damaged == [packed.clone()],
        "{same:?}"
    );
    is_right(1);
}

/// One changed byte of a record must not end in advice that refuses itself: `check`, `pack` and `prune` go on.
#[test]
fn a_damaged_record_of_an_index_is_written_again_from_the_tree() {
    use stream::publish::{check, prune};
    let scratch = Scratch::new("record");
    let (tree, store) = (scratch.path("tree"), scratch.path("store"));
    let publish = || pack(&tree, &store, &options(), &mut |_| {}).unwrap();
    let index = scratch.path("store/packs/0000000001.index");
    let lacking = || check(&store, &mut |_| {}).unwrap().damage.newest_lacking;
    // The record has 74 hashes and the places of 3 segments: one byte of a hash, one of a place.
    for at in [16 + 100, 16 + 74 * 32 + 1] {
        write(&tree.join("file"), 300_001, 1);
        let first = publish();
        assert!(first.indexes_damaged.is_empty(), "{first:?}");
        let mut bytes = fs::read(&index).unwrap();
        bytes[at] ^= 1;
        fs::write(&index, bytes).unwrap();
        assert_eq!(lacking(), Some(1));
        let same = publish();
        assert!(
            !same.is_new && same.written.contents == 1 && same.packs_lacking.is_empty(),
            "{same:?}"
        );
        assert_eq!(same.indexes_damaged, std::slice::from_ref(&index));
        assert_eq!(lacking(), None);
        let again = publish();
        assert!(
            !again.is_new && again.indexes_damaged.is_empty(),
            "{again:?}"
        );
        prune(&store, 1, &mut |_| {}).unwrap();
        assert!(check(&store, &mut |_| {}).unwrap().is_whole());
        let opened = Store::open(&store).unwrap();
        let published = opened.published(1).unwrap();
        compare(&opened, &published.manifest, ROOT, &tree);
        fs::remove_dir_all(&store).unwrap();
    }
}

#[test]
fn two_first_publications_at_once_make_one_store() {
    for _ in 0..20 {
        let scratch = Scratch::new("publish-at-once");
        write(&scratch.path("tree/one"), 5000, 1);
        let both = Barrier::new(2);
        let publish = || {
            both.wait();
            pack(
                &scratch.path("tree"),
                &scratch.path("store"),
                &options(),
                &mut |_| {},
            )
        };
        let results = std::thread::scope(|scope| {
            let other = scope.spawn(publish);
            [publish(), other.join().unwrap()]
        });
        // The other one is told to wait, or comes so late that the version is there.
        for result in &results {
            match result {
                Ok(report) => assert_eq!(report.version, 1),
                Err(PublishError::Store(StoreError::Busy { .. })) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert!(results.iter().any(Result::is_ok));
        let store = Store::open(&scratch.path("store")).unwrap();
        assert_eq!(store.newest().unwrap(), 1);
    }
}
