//! Manifests: encoding and decoding must round-trip, and a manifest that breaks a rule is refused.

use proptest::prelude::*;
use std::collections::BTreeMap;
use stream::manifest::{
    DEPTH_MAX, FILE_BYTES_MAX, KeyPair, Kind, Manifest, ManifestError, NODES_MAX, Name, Node, ROOT,
    empty_content, publisher, sign, verify,
};
use stream::{ContentId, FileId};

fn node(kind: Kind) -> Node {
    Node {
        kind,
        mode: 0o644,
        user: 0,
        group: 0,
        modified_s: 1_700_000_000,
        modified_ns: 0,
    }
}

fn file(size_bytes: u64, content: u8) -> Node {
    node(Kind::File {
        size_bytes,
        content: ContentId([content; 32]),
    })
}

fn link(target: &[u8]) -> Node {
    node(Kind::Link {
        target: target.into(),
    })
}

fn name(directory: u32, name: &[u8], node: u32) -> Name {
    Name {
        directory: FileId(directory),
        name: name.into(),
        node: FileId(node),
    }
}

/// The root, a directory in it, a program in that, with two names, and a link.
fn small() -> Manifest {
    Manifest {
        version: 1,
        nodes: vec![
            node(Kind::Directory),
            node(Kind::Directory),
            file(5000, 1),
            link(b"bin/program"),
        ],
        names: vec![
            name(0, b"again", 2),
            name(0, b"bin", 1),
            name(0, b"link", 3),
            name(1, b"program", 2),
        ],
    }
}

fn refused(manifest: &Manifest) -> ManifestError {
    Manifest::decode(&manifest.encode()).unwrap_err()
}

fn refused_after(change: impl Fn(&mut Manifest)) -> ManifestError {
    let mut manifest = small();
    assert_eq!(Manifest::decode(&manifest.encode()).as_ref(), Ok(&manifest));
    change(&mut manifest);
    refused(&manifest)
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let long = [b'n'; 256];
    for bad in [
        &b".."[..],
        b".",
        b"",
        b"a/b",
        b"/",
        b"../../etc",
        b"a\0b",
        b"\0",
        &long,
    ] {
        let mut manifest = small();
        manifest.names[3].name = bad.into();
        let error = refused(&manifest);
        assert!(
            matches!(error, ManifestError::Damaged(_)),
            "{bad:?}: {error}"
        );
    }
}

#[test]
fn trees_that_are_none_are_refused() {
    let damaged = |change: &dyn Fn(&mut Manifest)| match refused_after(change) {
        ManifestError::Damaged(what) => what,
        other => panic!("{other}"),
    };
    // Twice the same name, and names out of order.
    assert_eq!(
        damaged(&|manifest| manifest.names[1].name = b"again".as_slice().into()),
        "names out of order"
    );
    assert_eq!(
        damaged(&|manifest| manifest.names.swap(0, 2)),
        "names out of order"
    );
    // A directory with two names, a node with none, the root with one.
    assert_eq!(
        damaged(&|manifest| manifest.names[3].node = FileId(1)),
        "a directory with two names"
    );
    assert_eq!(
        damaged(&|manifest| manifest.nodes.push(file(1, 2))),
        "a node without a name"
    );
    assert_eq!(
        damaged(&|manifest| manifest.names[3].node = ROOT),
        "a name of nothing"
    );
    assert_eq!(
        damaged(&|manifest| manifest.names[3].node = FileId(4)),
        "a name of nothing"
    );
    // Names in a file.
    assert_eq!(
        damaged(&|manifest| manifest.names.push(name(2, b"x", 2))),
        "names without a directory"
    );
    // Two directories that contain each other, and one that contains itself.
    let cycle = |manifest: &mut Manifest| {
        manifest.nodes.push(node(Kind::Directory));
        manifest.nodes.push(node(Kind::Directory));
        manifest.names.push(name(4, b"x", 5));
        manifest.names.push(name(5, b"x", 4));
    };
    assert_eq!(damaged(&cycle), "directories too deep or in themselves");
    let itself = |manifest: &mut Manifest| {
        manifest.nodes.push(node(Kind::Directory));
        manifest.names.push(name(4, b"x", 4));
    };
    assert_eq!(damaged(&itself), "directories too deep or in themselves");
    assert_eq!(
        damaged(&|manifest| manifest.nodes[0] = file(1, 1)),
        "the kind of a node"
    );
}

#[test]
fn directories_have_a_greatest_depth() {
    let deep = |depth: u32| Manifest {
        version: 1,
        nodes: vec![node(Kind::Directory); depth as usize],
        names: (1..depth).map(|at| name(at - 1, b"d", at)).collect(),
    };
    let deepest = deep(DEPTH_MAX);
    assert_eq!(Manifest::decode(&deepest.encode()), Ok(deepest));
    assert!(matches!(
        refused(&deep(DEPTH_MAX + 1)),
        ManifestError::Damaged(_)
    ));
}

#[test]
fn absurd_numbers_are_refused() {
    let changes: [&dyn Fn(&mut Manifest); 9] = [
        &|manifest| manifest.nodes[2] = file(FILE_BYTES_MAX + 1, 1),
        &|manifest| manifest.nodes[2] = file(u64::MAX, 1),
        &|manifest| manifest.nodes[2].mode = 0o10_000,
        &|manifest| manifest.nodes[2].mode = u16::MAX,
        &|manifest| manifest.nodes[2].modified_ns = 1_000_000_000,
        &|manifest| manifest.nodes[3] = link(b""),
        &|manifest| manifest.nodes[3] = link(b"a\0b"),
        &|manifest| manifest.nodes[3] = link(&[b'x'; 4096]),
        // A content with two sizes: lists of hashes are stored by content.
        &|manifest| {
            manifest.nodes.push(file(4096, 1));
            manifest.names.push(name(1, b"q", 4));
        },
    ];
    for (number, change) in changes.iter().enumerate() {
        let error = refused_after(change);
        assert!(
            matches!(error, ManifestError::Damaged(_)),
            "{number}: {error}"
        );
    }
    // Counts that do not match the bytes, and limits, are refused before memory is allocated.
    let body = small().encode();
    let patched = |at: usize, value: u32| {
        let mut body = body.clone();
        body[at..at + 4].copy_from_slice(&value.to_le_bytes());
        Manifest::decode(&body).unwrap_err()
    };
    assert_eq!(patched(8, 2), ManifestError::Format(2));
    for at in [12, 24] {
        let error = patched(at, NODES_MAX + 1);
        assert!(matches!(error, ManifestError::Limit(_)), "{error}");
        let error = patched(at, NODES_MAX);
        assert!(matches!(error, ManifestError::Damaged(_)), "{error}");
    }
    assert!(matches!(patched(32, u32::MAX), ManifestError::Limit(_)));
    for at in [12, 24, 28, 32, 36] {
        for value in [0, 1000, u32::MAX] {
            patched(at, value);
        }
    }
    assert_eq!(patched(0, 0), ManifestError::NotAManifest);
    for cut in 0..body.len() {
        assert!(Manifest::decode(&body[..cut]).is_err());
    }
    assert!(Manifest::decode(&[&body[..], &[0]].concat()).is_err());
}

#[test]
fn every_flipped_bit_of_a_signed_manifest_is_refused() {
    let (pair, secret) = KeyPair::generate().unwrap();
    let signed = sign(&small().encode(), &pair);
    let public = KeyPair::from_pkcs8(&secret).unwrap().public();
    assert_eq!(verify(&signed, &public), Ok(small()));
    assert_eq!(publisher(&signed), Some(public));
    for bit in 0..signed.len() * 8 {
        let mut flipped = signed.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(verify(&flipped, &public).is_err(), "bit {bit}");
    }
    for length in 0..signed.len() {
        // The bytes in the key's place are then no publisher's key.
        let cut = verify(&signed[..length], &public);
        assert!(
            matches!(
                cut,
                Err(ManifestError::NotAManifest | ManifestError::Signature)
            ),
            "{cut:?}"
        );
    }
    let (other, _) = KeyPair::generate().unwrap();
    assert!(matches!(
        verify(&sign(&small().encode(), &other), &public),
        Err(ManifestError::Publisher { .. })
    ));
    // The right key with the signature of another key.
    let mut forged = sign(&small().encode(), &other);
    let at = forged.len() - 96;
    forged[at..at + 32].copy_from_slice(&public.0);
    assert_eq!(verify(&forged, &public), Err(ManifestError::Signature));
    assert_eq!(KeyPair::from_pkcs8(b"").unwrap_err(), ManifestError::Key);
    assert!("12".parse::<stream::manifest::PublicKey>().is_err());
}

/// A node of a random tree: its parent, name, kind, and attributes.
type Part = (usize, Vec<u8>, u8, (u16, u32, i64, u32), u64);

fn tree(parts: Vec<Part>, links: Vec<(usize, usize, Vec<u8>)>, version: u64) -> Manifest {
    let mut nodes = vec![node(Kind::Directory)];
    let mut directories = vec![FileId(0)];
    let mut names = BTreeMap::new();
    for (parent, text, kind, (mode, user, modified_s, modified_ns), size) in parts {
        let directory = directories[parent % directories.len()];
        let number = FileId(nodes.len() as u32);
        if names.contains_key(&(directory, text.clone())) {
            continue;
        }
        names.insert((directory, text), number);
        let kind = match kind % 3 {
            0 => {
                directories.push(number);
                Kind::Directory
            }
            // Some contents occur several times, always with the same size.
            1 => Kind::File {
                size_bytes: size % 5 * 3000,
                content: match size % 5 {
                    0 => empty_content(),
                    size => ContentId([size as u8; 32]),
                },
            },
            _ => Kind::Link {
                target: size.to_string().into_bytes().into(),
            },
        };
        nodes.push(Node {
            kind,
            mode: mode & 0o7777,
            user,
            group: user / 2,
            modified_s,
            modified_ns,
        });
    }
    for (parent, to, text) in links {
        let to = FileId((to % nodes.len()) as u32);
        if !matches!(nodes[to.0 as usize].kind, Kind::Directory) {
            let directory = directories[parent % directories.len()];
            names.entry((directory, text)).or_insert(to);
        }
    }
    let names = names
        .into_iter()
        .map(|((directory, text), node)| name(directory.0, &text, node.0))
        .collect();
    Manifest {
        version,
        nodes,
        names,
    }
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_filter("no name has it", |byte| !matches!(byte, 0 | b'/' | b'.'));
    prop::collection::vec(byte, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn random_trees_come_back(
        parts in prop::collection::vec(
            (
                any::<usize>(),
                text(),
                any::<u8>(),
                (any::<u16>(), any::<u32>(), any::<i64>(), 0..1_000_000_000_u32),
                any::<u64>(),
            ),
            0..60,
        ),
        links in prop::collection::vec((any::<usize>(), any::<usize>(), text()), 0..10),
        version in any::<u64>(),
    ) {
        let manifest = tree(parts, links, version);
        let again = Manifest::decode(&manifest.encode());
        prop_assert_eq!(again, Ok(manifest));
    }

    #[test]
    fn random_bytes_are_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..400), has_head in any::<bool>()) {
        if has_head {
            let body = small().encode();
            let length = bytes.len().min(40);
            bytes[..length].copy_from_slice(&body[..length]);
        }
        prop_assert!(Manifest::decode(&bytes).is_err());
    }

    #[test]
    fn changed_columns_never_panic(changes in prop::collection::vec((any::<u16>(), any::<u8>()), 1..4)) {
        let body = small().encode();
        let length = u32::from_le_bytes([body[36], body[37], body[38], body[39]]) as usize;
        let plain = u32::from_le_bytes([body[32], body[33], body[34], body[35]]) as usize;
        let mut columns = zstd::bulk::decompress(&body[40..40 + length], plain).unwrap();
        for (at, value) in changes {
            let at = usize::from(at) % columns.len();
            columns[at] = value;
        }
        let compressed = zstd::bulk::compress(&columns, 1).unwrap();
        let mut changed = body[..36].to_vec();
        changed.extend((compressed.len() as u32).to_le_bytes());
        changed.extend(compressed);
        changed.extend(&body[40 + length..]);
        if let Ok(manifest) = Manifest::decode(&changed) {
            prop_assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
        }
    }
}
