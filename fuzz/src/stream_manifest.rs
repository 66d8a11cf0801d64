//! The body of the fuzz target of manifests. It reads the bytes as a body or as the columns within one, or changes a
//! signed manifest with them.
//!
//! **Holds:** the readings, and the conditions for every accepted manifest: every name can be looked up and is a valid
//! file name, everything has a name, and after writing and reading it is the same.
//!
//! **Must not know:** the fuzzer. A test of `stream` includes this file and runs the committed corpus through it on the
//! stable toolchain.
//!
//! **Invariants:** a function depends on its input alone.

use stream::manifest::{KeyPair, Kind, Manifest, Name, Node, ROOT, sign, verify};
use stream::{ContentId, FileId};

const HEADER_BYTES: usize = 40;
const HASH_BYTES: usize = 32;

/// A key without value: PKCS#8 of 32 equal bytes.
const KEY_HEAD: [u8; 16] = [
    0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20,
];

/// The first byte selects the meaning of the others.
pub(crate) fn stream_manifest(data: &[u8]) {
    let Some((way, rest)) = data.split_first() else {
        return;
    };
    match way % 3 {
        0 => taken(Manifest::decode(rest)),
        1 => {
            if let Some(body) = body_of(rest) {
                taken(Manifest::decode(&body));
            }
        }
        _ => changed(rest),
    }
}

fn taken(read: Result<Manifest, stream::manifest::ManifestError>) {
    let manifest = match read {
        Ok(manifest) => manifest,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let mut is_named = vec![false; manifest.nodes.len()];
    for name in &manifest.names {
        let text = &name.name;
        assert!((1..=255).contains(&text.len()) && **text != *b"." && **text != *b"..");
        assert!(!text.contains(&b'/') && !text.contains(&0));
        assert_eq!(manifest.look_up(name.directory, text), Some(name.node));
        let directory = manifest.node(name.directory).map(|node| &node.kind);
        assert_eq!(directory, Some(&Kind::Directory));
        is_named[name.node.0 as usize] = true;
    }
    assert!(!is_named[0] && is_named[1..].iter().all(|is_named| *is_named));
    assert_eq!(manifest.find(b"/"), Some(ROOT));
    assert_eq!(Manifest::decode(&manifest.encode()).as_ref(), Ok(&manifest));
}

/// Returns a body with a valid header around columns: nodes, names and contents (a byte each), the contents, the
/// columns.
fn body_of(data: &[u8]) -> Option<Vec<u8>> {
    let ([nodes, names, contents], rest) = data.split_first_chunk::<3>()?;
    let (hashes, columns) = rest.split_at_checked(*contents as usize * HASH_BYTES)?;
    let compressed = zstd::bulk::compress(columns, 1).ok()?;
    let mut body = Vec::with_capacity(HEADER_BYTES + compressed.len() + hashes.len());
    body.extend_from_slice(b"keelmnft");
    for word in [1, u32::from(*nodes), 1, 0, u32::from(*names)] {
        body.extend_from_slice(&word.to_le_bytes());
    }
    for word in [
        u32::from(*contents),
        columns.len() as u32,
        compressed.len() as u32,
    ] {
        body.extend_from_slice(&word.to_le_bytes());
    }
    body.extend_from_slice(&compressed);
    body.extend_from_slice(hashes);
    Some(body)
}

/// Changes a signed manifest: positions (two bytes) and the value added there (one). Only the manifest itself is
/// accepted.
fn changed(data: &[u8]) {
    let secret = [&KEY_HEAD[..], &[7; 32]].concat();
    let Ok(pair) = KeyPair::from_pkcs8(&secret) else {
        panic!("the key is right");
    };
    let whole = sign(&small().encode(), &pair);
    let mut signed = whole.clone();
    for [high, low, by] in data.as_chunks::<3>().0 {
        let place = usize::from(u16::from_be_bytes([*high, *low]));
        // A position far behind the end gives the length to cut at.
        if place >= 0x8000 {
            signed.truncate(place - 0x8000);
        } else if let Some(byte) = signed.get_mut(place) {
            *byte = byte.wrapping_add(*by);
        }
    }
    let read = verify(&signed, &pair.public());
    assert_eq!(read.is_ok(), signed == whole);
}

fn small() -> Manifest {
    let node = |kind| Node {
        kind,
        mode: 0o755,
        user: 1,
        group: 2,
        modified_s: 1_700_000_000,
        modified_ns: 5,
    };
    let name = |name: &[u8], node| Name {
        directory: ROOT,
        name: name.into(),
        node: FileId(node),
    };
    Manifest {
        version: 3,
        nodes: vec![
            node(Kind::Directory),
            node(Kind::File {
                size_bytes: 5000,
                content: ContentId([9; 32]),
            }),
            node(Kind::Link {
                target: b"program".as_slice().into(),
            }),
        ],
        names: vec![name(b"link", 2), name(b"program", 1)],
    }
}
