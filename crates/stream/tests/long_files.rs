//! Files whose list of hashes exceeds a device's memory. Reading one byte must cost only one group of hashes, on the
//! wire, in a device and in a server.

use crate::common;
use crate::server_support::{Device as Raw, Running, connect, publish, settings, until};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use stream::device::{Device, Publisher, Settings};
use stream::group::GroupAt;
use stream::publish::publisher;
use stream::server::Reason;
use stream::store::{GROUPS_BYTES_MAX, OUTLINES_BYTES_MAX};
use stream::wire::{Answer, FrameReader, Request};
use stream::{BLOCK_BYTES, BlockHash, HashList};

/// The number of blocks of a 512 MiB file, whose list of hashes has 4 MiB.
const LONG_BLOCKS: u32 = 1 << 17;

/// The interval, in blocks, of blocks that are not only zeros.
const STEP: u32 = 1 << 11;

/// The size of a group's hashes and its proof in such a file, in bytes. The tree above has nine rows, of 512 groups and
/// fewer.
const GROUP_BYTES: usize = 32 * (256 + 9);

/// A file with a few bytes that are not zero, and an empty one.
fn published(name: &str) -> common::Scratch {
    let scratch = common::Scratch::new(name);
    fs::create_dir_all(scratch.path("tree")).unwrap();
    let file = File::create(scratch.path("tree/long")).unwrap();
    file.set_len(u64::from(LONG_BLOCKS) * BLOCK_BYTES as u64)
        .unwrap();
    for index in (0..LONG_BLOCKS).step_by(STEP as usize) {
        file.write_all_at(&index.to_le_bytes(), u64::from(index) * BLOCK_BYTES as u64)
            .unwrap();
    }
    File::create(scratch.path("tree/empty")).unwrap();
    common::write(&scratch.path("tree/short"), 300 * BLOCK_BYTES, 3);
    publish(&scratch);
    scratch
}

/// Returns a value of the metrics.
fn metric(running: &Running, name: &str) -> usize {
    let metrics = running.watch.metrics();
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().trim().parse().unwrap()
}

#[test]
fn one_byte_of_a_long_file_costs_one_group_of_hashes() {
    let scratch = published("long-file");
    let running = Running::start(settings(&scratch));
    // Sixty devices read one block each, at different places.
    let mut devices: Vec<Raw> = (1..=60)
        .map(|number| Raw::new(&running, &scratch, number))
        .collect();
    for (number, device) in (0..).zip(&mut devices) {
        device.read(1, None, device.at("long", number * STEP));
        assert_eq!(device.proofs, (1, GROUP_BYTES), "device {number}");
        // A block beside it needs no further proof.
        device.read(2, None, device.at("long", number * STEP + 255));
        assert_eq!(device.proofs, (1, GROUP_BYTES));
    }
    // One group for each device, and perhaps the next one: the server reads the segments behind a block ahead.
    let bytes = metric(&running, "keel_stream_hashes_bytes ");
    assert!((60 * 8192..120 * 9216).contains(&bytes), "{bytes}");
    drop(devices);
    // Now a real device.
    let key = publisher(&scratch.path("store")).unwrap();
    let mut with = Settings::new(&running.address.to_string(), Publisher::Key(key));
    with.around = false;
    with.hashes_bytes_max = 1 << 20;
    let device = Device::start(with).unwrap();
    let file = device.manifest().find(b"long").unwrap();
    let before = device.counters();
    let read = |index: u32| {
        let at = stream::BlockAt { file, index };
        let block = device.read(None, at).unwrap();
        let wanted = if index.is_multiple_of(STEP) { index } else { 0 };
        assert_eq!(block[..4], wanted.to_le_bytes());
        assert!(block[4..].iter().all(|byte| *byte == 0));
    };
    read(100_000);
    let after = device.counters();
    let received = after.bytes_received - before.bytes_received;
    assert!(received < GROUP_BYTES as u64 + 4096, "{received} bytes");
    let grown = after.memory_bytes - before.memory_bytes;
    assert!(grown < 64 << 10, "{grown} bytes");
    // Reads at more places than its memory has room for must not exceed its limit.
    for index in (0..LONG_BLOCKS).step_by(256) {
        read(index);
    }
    let counters = device.counters();
    let grown = counters.memory_bytes - before.memory_bytes;
    assert!(grown < 2 << 20, "{grown} bytes");
    // One group was evicted and requested again, once.
    let unproven = counters.rejected[stream::device::Reason::Unproven as usize];
    assert_eq!((counters.rejected_all, unproven), (1, 1));
    let bytes = metric(&running, "keel_stream_hashes_bytes ");
    assert!(bytes <= GROUPS_BYTES_MAX + OUTLINES_BYTES_MAX, "{bytes}");
}

#[test]
fn an_empty_file_has_an_empty_group() {
    let scratch = published("empty-file");
    File::create(scratch.path("tree/empty")).unwrap();
    publish(&scratch);
    let running = Running::start(settings(&scratch));
    let mut device = Raw::new(&running, &scratch, 1);
    let at = GroupAt {
        file: device.file("empty"),
        group: 0,
    };
    device.send(&Request::AskGroups { groups: vec![at] });
    let Answer::Group { at: of, group } = device.answer() else {
        panic!("no group");
    };
    let (_, content) = device.manifest.file(at.file).unwrap();
    assert!(of == at && group.hashes.is_empty() && group.is_of(&content, 0, 0));
    assert_eq!(running.watch.counters().refused(Reason::Damaged), 0);
    assert!(running.said.lock().unwrap().is_empty());
}

/// A device of protocol 1, which has no groups.
struct Older {
    socket: std::net::TcpStream,
    frames: FrameReader,
}

impl Older {
    fn send(&mut self, protocol: u16, request: &Request) {
        let mut bytes = Vec::new();
        request.encode_for(protocol, &mut bytes);
        self.socket.write_all(&bytes).unwrap();
    }

    fn next(&mut self) -> Option<Answer> {
        loop {
            if let Some(frame) = self.frames.next().unwrap() {
                assert_eq!(frame.version, 1);
                return Some(Answer::decode(frame.kind, 1, frame.payload).unwrap());
            }
            match self.socket.read(self.frames.space()) {
                Ok(0) => return None,
                Ok(count) => self.frames.advance(count),
                // Data that the server has not read when it closes resets the connection.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Receives the list of a file, which is sent in pieces.
    fn list(&mut self, blocks: u32) -> HashList {
        let mut list: Vec<BlockHash> = Vec::new();
        loop {
            let answer = self.next();
            let Some(Answer::Hashes { first, hashes, .. }) = answer else {
                panic!("{answer:?}");
            };
            assert_eq!(first as usize, list.len());
            list.extend(hashes);
            if list.len() >= blocks as usize {
                return HashList(list.into());
            }
        }
    }
}

#[test]
fn a_device_of_protocol_1_is_served_as_before() {
    let scratch = published("protocol-1");
    let running = Running::start(settings(&scratch));
    let manifest = Raw::new(&running, &scratch, 1).manifest.clone();
    let mut older = Older {
        socket: connect(running.address),
        frames: FrameReader::for_answers(),
    };
    let hello = Request::Hello {
        protocol: 1,
        device: [9; 16],
        version: Some(1),
        manifest_held: None,
    };
    older.send(1, &hello);
    let Some(Answer::Welcome { protocol: 1, .. }) = older.next() else {
        panic!("not welcome");
    };
    older.send(1, &Request::Ping { id: 1 });
    // The answers follow the manifest.
    let mut is_behind = [false; 2];
    while is_behind != [true; 2] {
        match older.next() {
            Some(Answer::Pong { .. }) => is_behind[0] = true,
            Some(Answer::Manifest { .. }) => is_behind[1] = true,
            other => panic!("{other:?}"),
        }
    }
    for path in [&b"long"[..], b"short", b"empty"] {
        let file = manifest.find(path).unwrap();
        older.send(1, &Request::AskHashes { files: vec![file] });
        let list = older.list(manifest.blocks(file));
        assert_eq!(list.content(), manifest.file(file).unwrap().1);
    }
    // The hashes were sent already, so the block is sent without them.
    let at = stream::BlockAt {
        file: manifest.find(b"short").unwrap(),
        index: 290,
    };
    let read = Request::Read {
        id: 5,
        token: None,
        at,
        around: 0,
    };
    older.send(1, &read);
    let answer = older.next();
    assert!(
        matches!(answer, Some(Answer::Blocks { id: 5, .. })),
        "{answer:?}"
    );
    assert_eq!(running.watch.counters().refused(Reason::Damaged), 0);
    // A connection must keep its protocol version.
    older.send(2, &Request::Ping { id: 2 });
    while older.next().is_some() {}
    // The client may see the end before the server has counted it.
    until("counted", || {
        running.watch.counters().refused(Reason::Protocol) == 1
    });
}
