//! Publishing trees into stores, and reading them from there.

use crate::common::{Scratch, options, write};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use stream::manifest::{Kind, Manifest, ROOT, publisher, verify};
use stream::publish::{PackProgress, pack};
use stream::store::{Store, StoreError};
use stream::{BLOCK_BYTES, FileId, SEGMENT_BLOCKS};

/// All bytes of a file, out of the store.
fn content(store: &Store, manifest: &Manifest, file: FileId) -> Vec<u8> {
    let (size_bytes, content) = manifest.file(file).unwrap();
    let blocks = manifest.blocks(file);
    let mut bytes = Vec::new();
    for segment in 0..blocks.div_ceil(SEGMENT_BLOCKS) {
        let at = store.locate(&content, segment).unwrap();
        store.advise(&at);
        let left = blocks - segment * SEGMENT_BLOCKS;
        assert_eq!(at.blocks, left.min(SEGMENT_BLOCKS));
        bytes.extend(store.segment(&content, segment).unwrap());
    }
    if blocks > 0 {
        let hashes = store.hashes(&content).unwrap();
        assert_eq!(hashes.0.len(), blocks as usize);
    }
    assert_eq!(bytes.len() as u64, size_bytes);
    bytes
}

/// Compares a directory with what was published of it.
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
    // The socket went: the root's time is another one, and its names are as they were.
    let root = manifest.node(ROOT).unwrap();
    assert!(matches!(root.kind, Kind::Directory));
    compare(&store, manifest, ROOT, &tree);
    assert_eq!(manifest.find(b"bin/program"), manifest.find(b"/lib//again"));
    assert!(matches!(
        store.published(2),
        Err(StoreError::NoSuchVersion { version: 2 })
    ));
}
