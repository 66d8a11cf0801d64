//! The bytes of the messages: `golden/wire-N.bin` holds concatenated frames of each kind and more in version N of the
//! protocol. They must still decode, and the same messages must encode to the same bytes. `WIRE.md` shows them.
//!
//! `GOLDEN_UPDATE=1 cargo test -p stream --test it wire_golden::` writes those of the newest version again, which is
//! allowed only before that version was ever used. With `-- --nocapture` it prints them as `WIRE.md` does.

use base::wire::HEADER_BYTES;
use std::path::{Path, PathBuf};
use stream::group::{Group, GroupAt};
use stream::wire::{
    Answer, FrameReader, HeldBlocks, PROTOCOL_VERSION, PROTOCOL_VERSION_MIN, Refusal, Request,
    unpack,
};
use stream::{BlockAt, BlockHash, FileId, Token};

const TOKEN: Token = Token(*b"token of a task.");

/// A zstd frame by hand: magic, single segment with a size of one byte, one last raw block of five bytes.
const PACKED: &[u8] = b"\x28\xb5\x2f\xfd\x20\x05\x29\x00\x00hello";

#[derive(Debug, PartialEq)]
enum Message {
    Request(Request),
    Answer(Answer),
}

fn at(file: u32, index: u32) -> BlockAt {
    let file = FileId(file);
    BlockAt { file, index }
}

/// Returns one message of each kind and form, with its name in `WIRE.md`.
fn messages(protocol: u16) -> Vec<(&'static str, Message)> {
    let scattered = vec![
        at(300, 7),
        at(300, 8),
        at(300, 9),
        at(300, 2),
        at(12, 64),
        at(300, 1000),
        at(300, u32::MAX),
    ];
    let held = HeldBlocks::of(vec![at(1, 0), at(1, 1), at(1, 3), at(5, 200), at(300, 7)]);
    let request = Message::Request;
    let answer = Message::Answer;
    vec![
        (
            "Hello, everything",
            request(Request::Hello {
                protocol,
                device: *b"a device's nonce",
                version: Some(300),
                manifest_held: Some([0x5a; 32]),
            }),
        ),
        (
            "Hello, for the first time",
            request(Request::Hello {
                protocol,
                device: *b"a device's nonce",
                version: None,
                manifest_held: None,
            }),
        ),
        (
            "Begin",
            request(Request::Begin {
                token: TOKEN,
                task: FileId(300),
                held,
            }),
        ),
        (
            "Read, of a task",
            request(Request::Read {
                id: 1,
                token: Some(TOKEN),
                at: at(300, 7),
                around: 32,
            }),
        ),
        (
            "Read, of no task",
            request(Request::Read {
                id: u32::MAX,
                token: None,
                at: at(0, 0),
                around: 0,
            }),
        ),
        (
            "Fetch",
            request(Request::Fetch {
                id: 2,
                blocks: scattered.clone(),
            }),
        ),
        match protocol {
            1 => (
                "AskHashes",
                request(Request::AskHashes {
                    files: [5, 4, 300].map(FileId).to_vec(),
                }),
            ),
            _ => (
                "AskGroups",
                request(Request::AskGroups {
                    groups: vec![group(5, 0), group(5, 1), group(300, 10_239)],
                }),
            ),
        },
        (
            "AskPlan",
            request(Request::AskPlan {
                id: 3,
                task: FileId(300),
            }),
        ),
        (
            "Trace",
            request(Request::Trace {
                token: TOKEN,
                blocks: vec![at(300, 0), at(0, 0)],
            }),
        ),
        (
            "End",
            request(Request::End {
                token: TOKEN,
                is_exact: false,
                has_exited: true,
            }),
        ),
        ("Ping", request(Request::Ping { id: 200 })),
        (
            "Welcome",
            answer(Answer::Welcome {
                protocol,
                version: 300,
                manifest_bytes: 268_435_456,
            }),
        ),
        (
            "Manifest",
            answer(Answer::Manifest {
                offset: 128,
                bytes: b"piece".to_vec(),
            }),
        ),
        match protocol {
            1 => (
                "Hashes",
                answer(Answer::Hashes {
                    file: FileId(300),
                    first: 1,
                    hashes: vec![BlockHash([0x11; 32]), BlockHash([0x22; 32])],
                }),
            ),
            _ => (
                "Group",
                answer(Answer::Group {
                    at: group(300, 1),
                    group: Group {
                        hashes: Box::new([BlockHash([0x11; 32]), BlockHash([0x22; 32])]),
                        proof: Box::new([[0x33; 32]]),
                    },
                }),
            ),
        },
        (
            "Blocks, asked for",
            answer(Answer::Blocks {
                id: 1,
                token: Token([0; 16]),
                blocks: vec![at(300, 7)],
                compressed: PACKED.to_vec(),
            }),
        ),
        (
            "Blocks, prefetched",
            answer(Answer::Blocks {
                id: 0,
                token: TOKEN,
                blocks: scattered,
                compressed: PACKED.to_vec(),
            }),
        ),
        (
            "Begun",
            answer(Answer::Begun {
                token: TOKEN,
                blocks: 1000,
                is_audit: true,
            }),
        ),
        (
            "Prefetch done",
            answer(Answer::PrefetchDone {
                token: TOKEN,
                was_stopped: true,
            }),
        ),
        ("Fetched", answer(Answer::Fetched { id: 2 })),
        (
            "Plan",
            answer(Answer::Plan {
                id: 3,
                has_more: true,
                blocks: vec![at(0, 0), at(0, 1), at(0, 3)],
            }),
        ),
        (
            "Plan, nothing known",
            answer(Answer::Plan {
                id: 3,
                has_more: false,
                blocks: Vec::new(),
            }),
        ),
        match protocol {
            1 => ("Refused", refused(4, None)),
            _ => ("Refused, a token", refused(0, Some(TOKEN))),
        },
        ("Pong", answer(Answer::Pong { id: 200 })),
    ]
}

fn group(file: u32, group: u32) -> GroupAt {
    let file = FileId(file);
    GroupAt { file, group }
}

fn refused(id: u32, token: Option<Token>) -> Message {
    let reason = Refusal::NoSuchToken;
    Message::Answer(Answer::Refused { id, token, reason })
}

fn encoded(protocol: u16, message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    match message {
        Message::Request(request) => request.encode_for(protocol, &mut bytes),
        Message::Answer(answer) => answer.encode_for(protocol, &mut bytes),
    }
    bytes
}

fn golden(protocol: u16) -> PathBuf {
    beside(&format!("tests/golden/wire-{protocol}.bin"))
}

fn beside(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Formats bytes as in `WIRE.md`: sixteen in a line.
fn shown(frame: &[u8]) -> String {
    let line = |bytes: &[u8]| {
        let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("    {}\n", bytes.join(" "))
    };
    frame.chunks(16).map(line).collect()
}

#[test]
fn the_same_messages_make_the_same_bytes() {
    for protocol in PROTOCOL_VERSION_MIN..=PROTOCOL_VERSION {
        let all = messages(protocol);
        let made: Vec<u8> = all
            .iter()
            .flat_map(|message| encoded(protocol, &message.1))
            .collect();
        if std::env::var_os("GOLDEN_UPDATE").is_some() && protocol == PROTOCOL_VERSION {
            std::fs::write(golden(protocol), &made).unwrap();
            for (name, message) in &all {
                println!("{name}:\n\n{}", shown(&encoded(protocol, message)));
            }
        }
        assert_eq!(std::fs::read(golden(protocol)).unwrap(), made);
    }
}

#[test]
fn messages_of_the_golden_file_are_read() {
    for protocol in PROTOCOL_VERSION_MIN..=PROTOCOL_VERSION {
        let bytes = std::fs::read(golden(protocol)).unwrap();
        let (mut reader, mut rest) = (FrameReader::for_answers(), &bytes[..]);
        let mut expected = messages(protocol).into_iter();
        while !rest.is_empty() {
            rest = &rest[reader.push(rest)..];
            while let Some(frame) = reader.next().unwrap() {
                let (name, message) = expected.next().unwrap();
                let (kind, version, payload) = (frame.kind, frame.version, frame.payload);
                assert_eq!(version, protocol);
                let read = match message {
                    Message::Request(_) => {
                        Message::Request(Request::decode(kind, version, payload).unwrap())
                    }
                    Message::Answer(_) => {
                        Message::Answer(Answer::decode(kind, version, payload).unwrap())
                    }
                };
                assert_eq!(read, message, "{name}");
            }
        }
        assert!(expected.next().is_none());
    }
    assert_eq!(unpack(PACKED, &[5]).unwrap(), b"hello");
    assert_eq!(unpack(PACKED, &[2, 3]).unwrap(), b"hello");
}

#[test]
fn a_message_of_one_version_is_none_of_the_other() {
    for (protocol, other) in [(1, 2), (2, 1), (2, 3), (2, 0)] {
        for (name, message) in messages(protocol) {
            let is_common = !matches!(name, "AskHashes" | "Hashes" | "AskGroups" | "Group");
            if is_common && other == 3 - protocol {
                continue;
            }
            let frame = encoded(protocol, &message);
            let payload = &frame[HEADER_BYTES..];
            let kind = u16::from_le_bytes([frame[4], frame[5]]);
            let is_refused = match message {
                Message::Request(_) => Request::decode(kind, other, payload).is_err(),
                Message::Answer(_) => Answer::decode(kind, other, payload).is_err(),
            };
            assert!(is_refused, "{name} of {protocol} as {other}");
        }
    }
}

#[test]
fn the_specification_shows_the_golden_bytes() {
    let text = std::fs::read_to_string(beside("WIRE.md")).unwrap();
    for (name, message) in messages(PROTOCOL_VERSION) {
        let part = format!("{name}:\n\n{}", shown(&encoded(PROTOCOL_VERSION, &message)));
        assert!(text.contains(&part), "WIRE.md lacks:\n{part}");
    }
    // Of the older version, only the messages that the newer one does not have.
    for (name, message) in messages(1) {
        let part = format!("{name}:\n\n{}", shown(&encoded(1, &message)));
        let is_own = matches!(name, "AskHashes" | "Hashes" | "Refused");
        assert!(
            !is_own || text.contains(&part),
            "WIRE.md lacks in protocol 1:\n{part}"
        );
    }
}
