//! Files pin the bytes of manifests, packs and indexes: the test creates them again and compares, and reads the pinned
//! ones.
//!
//! To write them after a change of the format: `KEEL_GOLDEN_WRITE=1 cargo test -p stream --test it golden::`.

use crate::common;
use crate::common::{Scratch, options, write};
use std::fs;
use std::path::{Path, PathBuf};
use stream::manifest::{KeyPair, Kind, Manifest, Name, Node, ROOT, empty_content, sign, verify};
use stream::publish::{PackOptions, pack};
use stream::store::Store;
use stream::{ContentId, FileId};

/// PKCS#8 of a key of 32 equal bytes.
const KEY_HEAD: [u8; 16] = [
    0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20,
];

const LARGE_BYTES: usize = 140_000;
const SMALL_BYTES: usize = 10;

fn secret() -> Vec<u8> {
    [&KEY_HEAD[..], &[0x11; 32]].concat()
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

/// Compares with the file, or writes it if the environment variable is set.
fn pinned(name: &str, bytes: &[u8]) {
    let path = golden(name);
    if std::env::var_os("KEEL_GOLDEN_WRITE").is_some() {
        fs::write(&path, bytes).unwrap();
    }
    assert!(fs::read(&path).unwrap() == bytes, "{name} has other bytes");
}

fn tree(folder: &Path) {
    write(&folder.join("bin/large"), LARGE_BYTES, 1);
    write(&folder.join("copy"), LARGE_BYTES, 1);
    write(&folder.join("small"), SMALL_BYTES, 2);
    write(&folder.join("empty"), 0, 0);
}

/// Returns a version of [`tree`] with attributes that use every column.
fn manifest(large: ContentId, small: ContentId) -> Manifest {
    let node = |kind, mode, user, modified_s, modified_ns| Node {
        kind,
        mode,
        user,
        group: user + 1,
        modified_s,
        modified_ns,
    };
    let file = |size_bytes: usize, content| Kind::File {
        size_bytes: size_bytes as u64,
        content,
    };
    let target = b"../small".as_slice().into();
    let name = |directory, name: &[u8], node| Name {
        directory: FileId(directory),
        name: name.into(),
        node: FileId(node),
    };
    Manifest {
        version: 1,
        nodes: vec![
            node(Kind::Directory, 0o755, 0, 1_700_000_000, 0),
            node(Kind::Directory, 0o1777, 1000, -1, 999_999_999),
            node(file(LARGE_BYTES, large), 0o755, 0, 1_700_000_001, 7),
            node(file(0, empty_content()), 0o644, 0, 1_700_000_001, 7),
            node(file(SMALL_BYTES, small), 0o4755, 70_000, 0, 0),
            node(file(LARGE_BYTES, large), 0o600, 0, i64::MAX, 0),
            node(Kind::Link { target }, 0o777, 0, i64::MIN, 1),
        ],
        names: vec![
            name(0, b"bin", 1),
            name(0, b"copy", 2),
            name(0, b"empty", 3),
            name(0, b"small", 4),
            name(1, b"large", 5),
            name(1, b"large-again", 5),
            name(1, "lärm".as_bytes(), 6),
        ],
    }
}

#[test]
fn published_files_have_the_pinned_bytes() {
    let scratch = Scratch::new("golden");
    let (folder, store_path, key) = (
        scratch.path("tree"),
        scratch.path("store"),
        scratch.path("key"),
    );
    tree(&folder);
    fs::write(&key, secret()).unwrap();
    let options = PackOptions {
        key: Some(key),
        ..options()
    };
    pack(&folder, &store_path, &options, &mut |_| {}).unwrap();
    for name in ["0000000001.pack", "0000000001.index"] {
        let bytes = fs::read(store_path.join("packs").join(name)).unwrap();
        pinned(name, &bytes);
    }
    pinned("format", &fs::read(store_path.join("format")).unwrap());
    let public = fs::read(store_path.join("publisher.pub")).unwrap();
    pinned("publisher.pub", &public);
    let store = Store::open(&store_path).unwrap();
    let published = store.published(1).unwrap();
    let content = |path: &[u8]| {
        let file = published.manifest.find(path).unwrap();
        published.manifest.file(file).unwrap().1
    };
    let manifest = manifest(content(b"copy"), content(b"small"));
    let pair = KeyPair::from_pkcs8(&secret()).unwrap();
    let signed = sign(&manifest.encode(), &pair);
    assert_eq!(verify(&signed, &pair.public()), Ok(manifest));
    pinned("manifest", &signed);
}

#[test]
fn files_of_an_older_program_are_read() {
    let scratch = Scratch::new("golden-read");
    let store_path = scratch.path("store");
    for folder in ["packs", "manifests"] {
        fs::create_dir_all(store_path.join(folder)).unwrap();
    }
    for (name, to) in [
        ("format", "format"),
        ("publisher.pub", "publisher.pub"),
        ("0000000001.pack", "packs/0000000001.pack"),
        ("0000000001.index", "packs/0000000001.index"),
        ("manifest", "manifests/00000000000000000001"),
    ] {
        fs::copy(golden(name), store_path.join(to)).unwrap();
    }
    let store = Store::open(&store_path).unwrap();
    let published = store.published(store.newest().unwrap()).unwrap();
    let found = &published.manifest;
    let content = |path: &[u8]| found.file(found.find(path).unwrap()).unwrap().1;
    let (large, small) = (content(b"bin/large"), content(b"small"));
    assert_eq!(**found, manifest(large, small));
    assert_eq!(found.entries(ROOT).len(), 4);
    let bytes: Vec<u8> = (0..2)
        .flat_map(|segment| store.segment(&large, segment).unwrap())
        .collect();
    assert!(bytes == common::bytes(LARGE_BYTES, 1));
    assert_eq!(
        store.segment(&small, 0).unwrap(),
        common::bytes(SMALL_BYTES, 2)
    );
    let report = stream::publish::check(&store_path, &mut |_| {}).unwrap();
    assert!(report.is_whole(), "{report:?}");
    assert_eq!((report.contents, report.contents_unused), (2, 0));
}
