//! A server that lies, in each message and in many ways. Programs do what they do from disk or get an error, and
//! nothing hangs. Data that the publisher has not signed is never read, neither then nor later.

use crate::common::{TempDir, ok};
use crate::stream_common::device::fails_to_mount;
use crate::stream_common::liar::{Liar, Lie, Said, bytes_of_blocks, file, greeting, packed, said};
use crate::stream_common::{
    Holder, Mount, Server, cannot_mount, is_whole, is_whole_at_last, publish, run_within,
    runs_well, runs_well_at_last, tree,
};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use stream::group::GroupAt;
use stream::manifest::{KeyPair, Manifest, sign};
use stream::wire::{Answer, MANIFEST_BYTES_MAX, PROTOCOL_VERSION, Refusal};
use stream::{BlockAt, BlockHash, FileId, Token};

const ARGUMENTS: &[&str] = &["20-60", "100-110"];

/// A published tree, its server, and a proxy that changes its answers.
struct Told {
    dir: TempDir,
    server: Server,
    liar: Liar,
    manifest: Arc<Manifest>,
    signed: Vec<u8>,
}

impl Told {
    fn new() -> Self {
        let dir = TempDir::new();
        tree(&dir);
        let server = Server::start(&publish(&dir), &[]);
        let liar = Liar::start(server.address);
        let (signed, manifest) = greeting(server.address);
        Self {
            dir,
            server,
            liar,
            manifest: Arc::new(manifest),
            signed,
        }
    }
}

fn lie(lie: impl Fn(&Answer) -> Option<Said> + Send + Sync + 'static) -> Lie {
    Arc::new(lie)
}

/// Returns a lie that replaces an answer if `change` applies to it.
fn other(change: impl Fn(&mut Answer) -> bool + Send + Sync + 'static) -> Lie {
    lie(move |answer| {
        let mut answer = answer.clone();
        change(&mut answer).then(|| Said::Bytes(said(&answer)))
    })
}

/// Returns a lie that inserts bytes before a true answer with blocks.
fn before_blocks(what: impl Fn(&[BlockAt]) -> Vec<u8> + Send + Sync + 'static) -> Lie {
    lie(move |answer| match answer {
        Answer::Blocks { blocks, .. } => Some(Said::Bytes([what(blocks), said(answer)].concat())),
        _ => None,
    })
}

/// Returns a lie that changes the content of blocks and packs them correctly.
fn blocks(
    manifest: &Arc<Manifest>,
    change: impl Fn(&mut Vec<Vec<u8>>) + Send + Sync + 'static,
) -> Lie {
    let manifest = Arc::clone(manifest);
    other(move |answer| match answer {
        Answer::Blocks {
            blocks, compressed, ..
        } => {
            let mut each = bytes_of_blocks(&manifest, blocks, compressed);
            change(&mut each);
            *compressed = packed(&each);
            true
        }
        _ => false,
    })
}

/// Returns a lie that changes the encoded bytes of an answer with blocks.
fn raw_blocks(change: impl Fn(&mut Vec<u8>) + Send + Sync + 'static) -> Lie {
    lie(move |answer| {
        let mut bytes = said(answer);
        matches!(answer, Answer::Blocks { .. }).then(|| {
            change(&mut bytes);
            Said::Bytes(bytes)
        })
    })
}

/// 128 MiB in a few kilobytes: a zstd frame of blocks that each repeat one byte.
fn bomb() -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x50];
    for number in 0..1024_u32 {
        let (is_last, repeats, size) = (u32::from(number == 1023), 1, 128 << 10);
        let header: u32 = is_last | repeats << 1 | size << 3;
        frame.extend_from_slice(&header.to_le_bytes()[..3]);
        frame.push(7);
    }
    frame
}

/// Returns lies about blocks, each with the counter that must show it; the counter is empty if no message is wrong.
/// Prefetched blocks have no request that gives their place: a wrong place means a wrong hash.
fn lies_about_blocks(manifest: &Arc<Manifest>) -> Vec<(&'static str, Lie, &'static str)> {
    let (task, long) = (file(manifest, "bin/task"), file(manifest, "share/long"));
    let at_end = manifest.blocks(task);
    let place = move |change: fn(&mut BlockAt, FileId, u32)| {
        other(move |answer| match answer {
            Answer::Blocks { blocks, .. } => {
                let end = at_end;
                blocks.iter_mut().for_each(|at| change(at, long, end));
                true
            }
            _ => false,
        })
    };
    let unpackable = |bytes: Vec<u8>| {
        other(move |answer| match answer {
            Answer::Blocks { compressed, .. } => {
                compressed.clone_from(&bytes);
                true
            }
            _ => false,
        })
    };
    vec![
        (
            "a flipped bit",
            blocks(manifest, |each| each[0][99] ^= 4),
            "rejected_hash",
        ),
        (
            "zeros",
            blocks(manifest, |each| each[0].fill(0)),
            "rejected_hash",
        ),
        (
            "a block short",
            blocks(manifest, |each| each[0].truncate(1)),
            "rejected_length",
        ),
        (
            "blocks in another order",
            blocks(manifest, |each| each.reverse()),
            "",
        ),
        (
            "no zstd",
            unpackable(b"none of that".to_vec()),
            "rejected_length",
        ),
        ("a bomb", unpackable(bomb()), "rejected_length"),
        (
            "two frames",
            unpackable([packed(&[vec![1]]), packed(&[vec![2]])].concat()),
            "rejected_length",
        ),
        (
            "another file",
            place(|at, long, _| at.file = long),
            "rejected_all",
        ),
        (
            "behind the end",
            place(|at, _, end| at.index = at.index % 32 + end.next_multiple_of(32)),
            "rejected_all",
        ),
        (
            "a file that is none",
            place(|at, _, _| at.file = FileId(4_000_000)),
            "rejected_all",
        ),
        (
            "another place of the file",
            place(|at, _, _| at.index ^= 64),
            "rejected_all",
        ),
    ]
}

/// Returns lies about other answers.
fn lies_beside_blocks(manifest: &Arc<Manifest>) -> Vec<(&'static str, Lie, &'static str)> {
    let hashes = |change: fn(&mut GroupAt, &mut Vec<BlockHash>, &mut Vec<[u8; 32]>)| {
        other(move |answer| match answer {
            Answer::Group { at, group } => {
                let (mut hashes, mut proof) = (group.hashes.to_vec(), group.proof.to_vec());
                change(at, &mut hashes, &mut proof);
                (group.hashes, group.proof) = (hashes.into(), proof.into());
                true
            }
            _ => false,
        })
    };
    let long = file(manifest, "share/long");
    let push = |id, token| {
        before_blocks(move |_| {
            said(&Answer::Blocks {
                id,
                token,
                blocks: vec![BlockAt {
                    file: long,
                    index: 0,
                }],
                compressed: packed(&[vec![9; 4096]]),
            })
        })
    };
    vec![
        (
            "a hash changed",
            hashes(|_, list, _| list[0] = BlockHash([1; 32])),
            "rejected_hashes",
        ),
        (
            "hashes missing in front",
            hashes(|_, list, _| *list = list.split_off(1)),
            "rejected_hashes",
        ),
        (
            "another proof",
            hashes(|_, _, proof| match proof.first_mut() {
                Some(value) => value[0] ^= 1,
                None => proof.push([1; 32]),
            }),
            "rejected_hashes",
        ),
        (
            "no such group",
            hashes(|at, _, _| at.group += 1 << 16),
            "rejected_hashes",
        ),
        (
            "a hash too many",
            hashes(|_, list, _| {
                // The maximum number in a message.
                list.truncate(255);
                list.push(BlockHash([1; 32]));
            }),
            "rejected_hashes",
        ),
        (
            "hashes of no file",
            hashes(|at, _, _| at.file = FileId(4_000_000)),
            "rejected_place",
        ),
        (
            "hashes of another file",
            hashes(|at, _, _| at.file.0 ^= 1),
            "",
        ),
        (
            "no hashes",
            lie(|answer| matches!(answer, Answer::Group { .. }).then_some(Said::Nothing)),
            "rejected_unproven",
        ),
        (
            "an unasked push",
            push(0, Token([0x77; 16])),
            "rejected_unrequested",
        ),
        (
            "an answer to nothing",
            push(4_000_000_000, Token([0; 16])),
            "rejected_unrequested",
        ),
        (
            "a plan that is none",
            before_blocks(move |_| {
                said(&Answer::Plan {
                    id: 4_000_000_000,
                    has_more: true,
                    blocks: vec![BlockAt {
                        file: long,
                        index: 0,
                    }],
                })
            }),
            "rejected_unrequested",
        ),
        (
            "a plan of blocks that are none",
            before_blocks(|_| {
                said(&Answer::Plan {
                    id: 1,
                    has_more: false,
                    blocks: vec![BlockAt {
                        file: FileId(1),
                        index: u32::MAX,
                    }],
                })
            }),
            "rejected_place",
        ),
        (
            "a greeting again",
            before_blocks(|_| {
                said(&Answer::Welcome {
                    protocol: PROTOCOL_VERSION,
                    version: 7,
                    manifest_bytes: 0,
                })
            }),
            "rejected_greeting",
        ),
        (
            "a manifest again",
            before_blocks(|_| {
                said(&Answer::Manifest {
                    offset: 0,
                    bytes: vec![1; 100],
                })
            }),
            "rejected_greeting",
        ),
        (
            "a task that the device did not begin",
            before_blocks(|_| {
                [
                    said(&Answer::Begun {
                        token: Token([3; 16]),
                        blocks: u32::MAX,
                        is_audit: true,
                    }),
                    said(&Answer::PrefetchDone {
                        token: Token([3; 16]),
                        was_stopped: true,
                    }),
                    said(&Answer::Fetched { id: 77_777_777 }),
                    said(&Answer::Pong { id: 77_777_777 }),
                ]
                .concat()
            }),
            "",
        ),
        (
            "a promise that is not kept",
            other(|answer| match answer {
                Answer::Begun { blocks, .. } => {
                    *blocks = u32::MAX;
                    true
                }
                _ => false,
            }),
            "",
        ),
        (
            "an endless frame",
            raw_blocks(|bytes| bytes[..4].fill(0xff)),
            "rejected_frame",
        ),
        (
            "a wrong checksum",
            raw_blocks(|bytes| bytes[9] ^= 1),
            "rejected_frame",
        ),
        (
            "a flipped bit of a frame",
            raw_blocks(|bytes| bytes[14] ^= 1),
            "rejected_frame",
        ),
        (
            "another kind",
            raw_blocks(|bytes| reframe(bytes, 0x7f, 1)),
            "rejected_message",
        ),
        (
            "another version",
            raw_blocks(|bytes| reframe(bytes, 0x84, 9)),
            "rejected_message",
        ),
        (
            "rubbish in a frame",
            raw_blocks(|bytes| {
                bytes[12..].fill(0xff);
                reframe(bytes, 0x84, 1);
            }),
            "rejected_message",
        ),
        (
            "half a frame and the end",
            lie(|answer| {
                let bytes = said(answer);
                let half = bytes[..bytes.len() / 2].to_vec();
                matches!(answer, Answer::Blocks { .. }).then_some(Said::Last(half))
            }),
            "",
        ),
        (
            "said twice",
            lie(|answer| {
                matches!(answer, Answer::Blocks { .. }).then(|| Said::Bytes(said(answer).repeat(2)))
            }),
            "",
        ),
        (
            "not said",
            lie(|answer| matches!(answer, Answer::Blocks { .. }).then_some(Said::Nothing)),
            "",
        ),
        ("a limit", refuse(Refusal::Limit), ""),
        ("no such task", refuse(Refusal::NoSuchToken), ""),
    ]
}

/// Encodes the payload as a frame of another kind and version, with the right checksum.
fn reframe(bytes: &mut Vec<u8>, kind: u16, version: u16) {
    let payload = bytes.split_off(base::wire::HEADER_BYTES);
    let mut frame = vec![0; base::wire::frame_bytes(payload.len())];
    base::wire::encode(kind, version, &payload, &mut frame).unwrap();
    *bytes = frame;
}

/// Returns a lie that sends a refusal in place of blocks.
fn refuse(reason: Refusal) -> Lie {
    other(move |answer| match *answer {
        Answer::Blocks { id, .. } if id != 0 => {
            let token = None;
            *answer = Answer::Refused { id, token, reason };
            true
        }
        _ => false,
    })
}

/// Tells each lie to a separate device, which must still work correctly. A lie is told twice, or only once if nothing
/// but the elapsed time reveals it.
fn survives(told: &Told, lies: Vec<(&'static str, Lie, &'static str)>) {
    for (number, (name, lie, counter)) in lies.into_iter().enumerate() {
        told.liar.tell(&lie, if counter.is_empty() { 1 } else { 2 });
        let deadline = ["--deadline-s", "6"];
        let mount = Mount::start(
            &told.dir,
            &format!("at{number}"),
            told.liar.address,
            &deadline,
        );
        runs_well(&told.dir, &mount, ARGUMENTS);
        is_whole(&told.dir, &mount);
        assert!(told.liar.told() > 0, "{name}: it was never told");
        let status = mount.status();
        assert!(
            counter.is_empty() || status[counter].as_u64().unwrap() > 0,
            "{name}: {status}"
        );
        told.liar.be_honest();
    }
}

#[test]
fn wrong_blocks_are_never_read() {
    if cannot_mount() {
        return;
    }
    let told = Told::new();
    let lies = lies_about_blocks(&told.manifest);
    survives(&told, lies);
}

#[test]
fn false_messages_of_a_server_are_survived() {
    if cannot_mount() {
        return;
    }
    let told = Told::new();
    let lies = lies_beside_blocks(&told.manifest);
    survives(&told, lies);
}

#[test]
fn a_wrong_greeting_is_asked_for_again() {
    if cannot_mount() {
        return;
    }
    let told = Told::new();
    let welcome = |change: fn(&mut u16, &mut u64, &mut u64)| {
        other(move |answer| match answer {
            Answer::Welcome {
                protocol,
                version,
                manifest_bytes,
            } => {
                change(protocol, version, manifest_bytes);
                true
            }
            _ => false,
        })
    };
    let piece = |change: fn(&mut u64, &mut Vec<u8>)| {
        other(move |answer| match answer {
            Answer::Manifest { offset, bytes } => {
                change(offset, bytes);
                true
            }
            _ => false,
        })
    };
    let lies = vec![
        (
            "another protocol",
            welcome(|protocol, _, _| *protocol = PROTOCOL_VERSION + 1),
            "rejected_greeting",
        ),
        (
            "a manifest without end",
            welcome(|_, _, bytes| *bytes = MANIFEST_BYTES_MAX + 1),
            "rejected_message",
        ),
        (
            "a manifest that is held",
            welcome(|_, _, bytes| *bytes = 0),
            "rejected_greeting",
        ),
        (
            "a piece from elsewhere",
            piece(|offset, _| *offset = 5),
            "rejected_greeting",
        ),
        (
            "a piece too long",
            piece(|_, bytes| bytes.extend_from_slice(&[0; 100])),
            "rejected_greeting",
        ),
        (
            "something else",
            lie(|answer| {
                let pong = || Said::Bytes(said(&Answer::Pong { id: 1 }));
                matches!(answer, Answer::Welcome { .. }).then(pong)
            }),
            "rejected_greeting",
        ),
        (
            "half a manifest and the end",
            lie(|answer| match answer {
                Answer::Manifest { bytes, .. } => Some(Said::Last(said(&Answer::Manifest {
                    offset: 0,
                    bytes: bytes[..bytes.len() / 2].to_vec(),
                }))),
                _ => None,
            }),
            "connects_failed",
        ),
    ];
    survives(&told, lies);
}

#[test]
fn a_manifest_that_is_not_the_publishers_newest_is_refused() {
    if cannot_mount() {
        return;
    }
    let told = Told::new();
    let manifest = |change: fn(&Manifest, &[u8]) -> Vec<u8>| {
        let (manifest, signed) = (Arc::clone(&told.manifest), told.signed.clone());
        lie(move |answer| match answer {
            Answer::Welcome { version, .. } => {
                let bytes = change(&manifest, &signed);
                let welcome = Answer::Welcome {
                    protocol: PROTOCOL_VERSION,
                    version: *version,
                    manifest_bytes: bytes.len() as u64,
                };
                let piece = Answer::Manifest { offset: 0, bytes };
                Some(Said::Last([said(&welcome), said(&piece)].concat()))
            }
            _ => None,
        })
    };
    let flipped = manifest(|_, signed| {
        let mut bytes = signed.to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        bytes
    });
    let of_another = manifest(|manifest, _| {
        let (pair, _) = KeyPair::generate().unwrap();
        sign(&manifest.encode(), &pair)
    });
    let cut_short = manifest(|_, signed| signed[..signed.len() - 1].to_vec());
    let of_another_version = lie(|answer| match answer.clone() {
        Answer::Welcome {
            protocol,
            version,
            manifest_bytes,
        } => Some(Said::Bytes(said(&Answer::Welcome {
            protocol,
            version: version + 1,
            manifest_bytes,
        }))),
        _ => None,
    });
    let publisher = stream::publish::publisher(&told.dir.file("store")).unwrap();
    let publisher = publisher.to_string();
    for (number, (lie, words)) in [
        (flipped, "is refused"),
        (of_another, "signed by"),
        (cut_short, "is refused"),
        (of_another_version, "another version"),
    ]
    .into_iter()
    .enumerate()
    {
        told.liar.tell(&lie, u64::MAX);
        let at = format!("at{number}");
        let line = fails_to_mount(
            &told.dir,
            &at,
            told.liar.address,
            &["--publisher", &publisher],
        );
        assert!(line.contains(words), "{line}");
        assert!(told.liar.told() > 0);
        told.liar.be_honest();
    }
    // After a newer version was seen, the old one is offered, which the publisher has signed.
    let old = manifest(|_, signed| signed.to_vec());
    std::fs::write(told.dir.file("tree/share/new"), b"new\n").unwrap();
    let (tree, store) = (told.dir.file("tree"), told.dir.file("store"));
    ok(&[
        "stream",
        "pack",
        tree.to_str().unwrap(),
        store.to_str().unwrap(),
    ]);
    let state = told.dir.file("state");
    std::fs::create_dir(&state).unwrap();
    let state = ["--state", state.to_str().unwrap()];
    let mount = Mount::start(&told.dir, "new", told.liar.address, &state);
    assert_eq!(mount.count("version"), 2);
    drop(mount);
    told.liar.tell(&old, u64::MAX);
    let line = fails_to_mount(&told.dir, "old", told.liar.address, &state);
    assert!(line.contains("older than 2"), "{line}");
    assert!(told.server.id() > 0);
}

#[test]
fn a_server_that_only_lies_causes_errors_and_no_zeros() {
    if cannot_mount() {
        return;
    }
    let told = Told::new();
    let all = [
        blocks(&told.manifest, |each| each[0][0] ^= 1),
        raw_blocks(|bytes| bytes[..4].fill(0xff)),
        refuse(Refusal::Limit),
    ];
    for (number, lie) in all.iter().enumerate() {
        let at = format!("at{number}");
        let mount = Mount::start(&told.dir, &at, told.liar.address, &["--deadline-s", "1"]);
        runs_well_at_last(&told.dir, &mount, &["20-30"]);
        let _mapped = Holder::start(&mount, "20-30");
        told.liar.tell(lie, u64::MAX);
        let error = std::fs::read(mount.at.join("share/long")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
        // Each round uses other blocks, because the server learns those of a round.
        let missing = ["400-420", "500-520", "560-580"][number];
        let mut program = Command::new(mount.program());
        let output = run_within(program.arg(missing), Duration::from_secs(60));
        let output = output.expect("the program has ended within a minute");
        assert!(!output.status.success(), "{output:?}");
        assert_eq!(output.stdout, b"");
        // Blocks that were read before are still available. All others are when the server is honest and no longer
        // distrusted.
        runs_well(&told.dir, &mount, &["20-30"]);
        told.liar.be_honest();
        runs_well_at_last(&told.dir, &mount, &[missing]);
        is_whole_at_last(&told.dir, &mount);
    }
}
