//! The bytes of the messages: `golden/wire-1.bin` holds one frame of each kind and more, one behind the other; they are
//! read today, and the same messages make the same bytes. `WIRE.md` shows them.
//!
//! `GOLDEN_UPDATE=1 cargo test -p stream --test it wire_golden::` writes them anew, which is right only when the
//! version of the protocol changes, or before it was ever used; with `-- --nocapture` it shows them as `WIRE.md`
//! does.

use std::path::{Path, PathBuf};
use stream::wire::{Answer, FrameReader, Held, Refusal, Request, unpack};
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

/// One of each kind and of each form, with what they are called in `WIRE.md`.
fn messages() -> Vec<(&'static str, Message)> {
    let scattered = vec![
        at(300, 7),
        at(300, 8),
        at(300, 9),
        at(300, 2),
        at(12, 64),
        at(300, 1000),
        at(300, u32::MAX),
    ];
    let held = Held::of(vec![at(1, 0), at(1, 1), at(1, 3), at(5, 200), at(300, 7)]);
    let request = Message::Request;
    let answer = Message::Answer;
    vec![
        (
            "Hello, everything",
            request(Request::Hello {
                protocol: 1,
                device: *b"a device's nonce",
                version: Some(300),
                manifest_held: Some([0x5a; 32]),
            }),
        ),
        (
            "Hello, for the first time",
            request(Request::Hello {
                protocol: 1,
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
        (
            "AskHashes",
            request(Request::AskHashes {
                files: [5, 4, 300].map(FileId).to_vec(),
            }),
        ),
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
                protocol: 1,
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
        (
            "Hashes",
            answer(Answer::Hashes {
                file: FileId(300),
                first: 1,
                hashes: vec![BlockHash([0x11; 32]), BlockHash([0x22; 32])],
            }),
        ),
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
            "Blocks, foretold",
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
            "Foretold",
            answer(Answer::Foretold {
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
        (
            "Refused",
            answer(Answer::Refused {
                id: 4,
                reason: Refusal::NoSuchToken,
            }),
        ),
        ("Pong", answer(Answer::Pong { id: 200 })),
    ]
}

fn encoded(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    match message {
        Message::Request(request) => request.encode(&mut bytes),
        Message::Answer(answer) => answer.encode(&mut bytes),
    }
    bytes
}

fn beside(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// As `WIRE.md` shows them: sixteen bytes in a line.
fn shown(frame: &[u8]) -> String {
    let line = |bytes: &[u8]| {
        let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("    {}\n", bytes.join(" "))
    };
    frame.chunks(16).map(line).collect()
}

#[test]
fn the_same_messages_make_the_same_bytes() {
    let golden = beside("tests/golden/wire-1.bin");
    let made: Vec<u8> = messages()
        .iter()
        .flat_map(|message| encoded(&message.1))
        .collect();
    if std::env::var_os("GOLDEN_UPDATE").is_some() {
        std::fs::write(&golden, &made).unwrap();
        for (name, message) in messages() {
            println!("{name}:\n\n{}", shown(&encoded(&message)));
        }
    }
    assert_eq!(std::fs::read(&golden).unwrap(), made);
}

#[test]
fn bytes_made_before_are_read_today() {
    let bytes = std::fs::read(beside("tests/golden/wire-1.bin")).unwrap();
    let (mut reader, mut rest) = (FrameReader::for_answers(), &bytes[..]);
    let mut expected = messages().into_iter();
    while !rest.is_empty() {
        rest = &rest[reader.push(rest)..];
        while let Some(frame) = reader.next().unwrap() {
            let (name, message) = expected.next().unwrap();
            let (kind, version, payload) = (frame.kind, frame.version, frame.payload);
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
    assert_eq!(unpack(PACKED, &[5]).unwrap(), b"hello");
    assert_eq!(unpack(PACKED, &[2, 3]).unwrap(), b"hello");
}

#[test]
fn the_specification_shows_these_bytes() {
    let text = std::fs::read_to_string(beside("WIRE.md")).unwrap();
    for (name, message) in messages() {
        let part = format!("{name}:\n\n{}", shown(&encoded(&message)));
        assert!(text.contains(&part), "WIRE.md lacks:\n{part}");
    }
}
