//! Malicious devices: each is refused and counted, and neither the server nor other devices are affected.

use crate::common::{TempDir, ok, ok_json, wait_until};
use crate::stream_common::device::fails_to_mount_as;
use crate::stream_common::liar::{file, greeting};
use crate::stream_common::{Mount, Server, cannot_mount, is_whole, publish, runs_well, tree};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;
use stream::group::GroupAt;
use stream::link::{Link, LinkSettings, connect};
use stream::manifest::Manifest;
use stream::tls::device_config;
use stream::wire::{Answer, FrameReader, HeldBlocks, PROTOCOL_VERSION, Refusal, Request};
use stream::{BlockAt, FileId, Token};

/// Timeout after which a test has found an error.
const PATIENCE: Duration = Duration::from_secs(60);

/// Maximum bytes sent by a client that reads no answers.
const FLOOD_BYTES_MAX: usize = 64 << 20;

const METRICS: [&str; 2] = ["--metrics", "127.0.0.1:0"];

fn hello(device: u8) -> Request {
    Request::Hello {
        protocol: PROTOCOL_VERSION,
        device: [device; 16],
        version: None,
        manifest_held: None,
    }
}

fn encoded(requests: &[Request]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for request in requests {
        request.encode(&mut bytes);
    }
    bytes
}

fn framed(kind: u16, version: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; base::wire::frame_bytes(payload.len())];
    base::wire::encode(kind, version, payload, &mut frame).unwrap();
    frame
}

fn connected(server: &Server) -> TcpStream {
    let socket = TcpStream::connect(server.address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Sends these bytes and a following ping. Returns the answers until the pong or the end of the connection, and whether
/// the connection has ended.
fn answers(socket: &mut TcpStream, bytes: &[u8]) -> (Vec<Answer>, bool) {
    answers_behind(socket, &mut FrameReader::for_answers(), bytes)
}

/// As [`answers`], on a connection that stays open: part of an answer may have arrived after the last pong.
fn answers_behind(
    socket: &mut TcpStream,
    frames: &mut FrameReader,
    bytes: &[u8],
) -> (Vec<Answer>, bool) {
    const LAST: u32 = 3_999_999_999;
    let all = [bytes, &encoded(&[Request::Ping { id: LAST }])].concat();
    // The server may have closed the connection before all was sent.
    socket.write_all(&all).ok();
    let mut answers = Vec::new();
    loop {
        while let Some(frame) = frames.next().unwrap() {
            match Answer::decode(frame.kind, frame.version, frame.payload).unwrap() {
                Answer::Pong { id: LAST } => return (answers, false),
                answer => answers.push(answer),
            }
        }
        match socket.read(frames.space()) {
            Ok(0) => return (answers, true),
            Ok(count) => frames.advance(count),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                return (answers, true);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn token(number: u8) -> Token {
    Token([number; 16])
}

fn begin(number: u8, task: FileId) -> Request {
    Request::Begin {
        token: token(number),
        task,
        held: HeldBlocks::default(),
    }
}

fn end(number: u8) -> Request {
    Request::End {
        token: token(number),
        is_exact: true,
        has_exited: true,
    }
}

/// Returns messages that end the connection, each with the reason.
fn ends_by(task: FileId) -> Vec<(&'static str, Vec<u8>)> {
    let greeted = |bytes: &[u8]| [&encoded(&[hello(1)]), bytes].concat();
    let ping = encoded(&[Request::Ping { id: 1 }]);
    let mut flipped = ping.clone();
    flipped[9] ^= 1;
    let mut oversized = ping.clone();
    oversized[..4].copy_from_slice(&(64 * 1024 + 1_u32).to_le_bytes());
    let with_more = [&ping[base::wire::HEADER_BYTES..], &[0][..]].concat();
    let read = |at| Request::Read {
        id: 1,
        token: None,
        at,
        around: 32,
    };
    let read = encoded(&[read(BlockAt {
        file: task,
        index: 0,
    })]);
    let mut too_many_around = read[base::wire::HEADER_BYTES..].to_vec();
    *too_many_around.last_mut().unwrap() = 33;
    let ping_payload = &ping[base::wire::HEADER_BYTES..];
    let of_another_protocol = Request::Hello {
        protocol: PROTOCOL_VERSION + 1,
        device: [1; 16],
        version: None,
        manifest_held: None,
    };
    let of_version_99 = Request::Hello {
        protocol: PROTOCOL_VERSION,
        device: [1; 16],
        version: Some(99),
        manifest_held: None,
    };
    vec![
        ("bad_frame", b"GET / HTTP/1.1\r\n\r\n".repeat(10)),
        ("bad_frame", vec![0xff; 5000]),
        ("bad_frame", greeted(&u32::MAX.to_le_bytes().repeat(3))),
        ("bad_frame", greeted(&oversized)),
        ("bad_frame", greeted(&flipped)),
        (
            "bad_message",
            greeted(&framed(0x7f, PROTOCOL_VERSION, b"?")),
        ),
        (
            "bad_message",
            greeted(&framed(0x84, PROTOCOL_VERSION, b"an answer")),
        ),
        (
            "bad_message",
            greeted(&framed(0x09, PROTOCOL_VERSION, &with_more)),
        ),
        (
            "bad_message",
            greeted(&framed(0x03, PROTOCOL_VERSION, &too_many_around)),
        ),
        (
            "bad_message",
            greeted(&framed(0x07, PROTOCOL_VERSION, &[0xff; 60_000])),
        ),
        // An unsupported protocol version, and one that differs from that of the greeting.
        (
            "protocol",
            greeted(&framed(0x09, PROTOCOL_VERSION + 1, ping_payload)),
        ),
        ("protocol", greeted(&framed(0x09, 1, ping_payload))),
        ("protocol", encoded(&[of_another_protocol])),
        ("no_such_version", encoded(&[of_version_99])),
        ("out_of_order", ping.clone()),
        ("out_of_order", greeted(&encoded(&[hello(1)]))),
    ]
}

/// Returns requests that are refused while the connection stays open: the counter, the refusal, and the requests.
fn refused(manifest: &Manifest) -> Vec<(&'static str, Refusal, Vec<Request>)> {
    let task = file(manifest, "bin/task");
    let blocks = manifest.blocks(task);
    let at = |file, index| BlockAt { file, index };
    let read = |at| Request::Read {
        id: 1,
        token: None,
        at,
        around: 0,
    };
    let none = FileId(4_000_000);
    let trace = |number, blocks| Request::Trace {
        token: token(number),
        blocks,
    };
    let fetches = (1..=65).map(|id| Request::Fetch {
        id,
        blocks: (0..1024).map(|index| at(task, index % blocks)).collect(),
    });
    vec![
        (
            "no_such_block",
            Refusal::NoSuchBlock,
            vec![read(at(task, blocks))],
        ),
        (
            "no_such_block",
            Refusal::NoSuchBlock,
            vec![read(at(none, 0))],
        ),
        (
            "no_such_block",
            Refusal::NoSuchBlock,
            vec![read(at(FileId(0), 0))],
        ),
        ("no_such_block", Refusal::NoSuchBlock, vec![begin(1, none)]),
        (
            "no_such_block",
            Refusal::NoSuchBlock,
            vec![Request::AskPlan { id: 1, task: none }],
        ),
        (
            "no_such_block",
            Refusal::NoSuchBlock,
            vec![Request::AskGroups {
                groups: vec![GroupAt::from(at(none, 0))],
            }],
        ),
        (
            "no_such_block",
            Refusal::NoSuchBlock,
            vec![Request::Fetch {
                id: 1,
                blocks: vec![at(task, u32::MAX)],
            }],
        ),
        (
            "no_such_block",
            Refusal::NoSuchBlock,
            vec![begin(2, task), trace(2, vec![at(task, blocks)]), end(2)],
        ),
        (
            "token_reused",
            Refusal::TokenReused,
            vec![begin(3, task), begin(3, task), end(3)],
        ),
        (
            "token_reused",
            Refusal::TokenReused,
            vec![begin(4, task), end(4), begin(4, task)],
        ),
        (
            "no_such_token",
            Refusal::NoSuchToken,
            vec![trace(5, vec![at(task, 0)])],
        ),
        ("no_such_token", Refusal::NoSuchToken, vec![end(5)]),
        (
            "no_such_token",
            Refusal::NoSuchToken,
            vec![trace(99, vec![at(task, 0)])],
        ),
        (
            "tokens",
            Refusal::Limit,
            (100..=165).map(|number| begin(number, task)).collect(),
        ),
        ("waiting", Refusal::Limit, fetches.collect()),
    ]
}

/// Returns the maximum memory that a process has had, in KiB.
fn memory_kib_max(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.unwrap().trim().strip_suffix(" kB").unwrap();
    number.trim().parse().unwrap()
}

#[test]
fn a_misbehaving_client_is_refused_and_counted_and_does_not_disturb_others() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let options = [&METRICS[..], &["--memory", "16M"]].concat();
    let server = Server::of_tree(&dir, &options);
    let mount = Mount::start(&dir, "at", server.address, &[]);
    runs_well(&dir, &mount, &["20-60"]);
    let manifest = greeting(server.address).1;
    let task = file(&manifest, "bin/task");
    // Token 99 belongs to a well-behaved device: other devices cannot affect its task.
    let (mut other, mut other_frames) = (connected(&server), FrameReader::for_answers());
    let (_, is_over) = answers_behind(
        &mut other,
        &mut other_frames,
        &encoded(&[hello(7), begin(99, task)]),
    );
    assert!(!is_over);

    // Slowly sends single bytes during the rest of the test: the server must not wait beyond its deadline.
    let mut slow = connected(&server);
    let slow = std::thread::spawn(move || {
        for byte in encoded(&[hello(8)]).iter().cycle() {
            // After the end of the connection writing fails.
            if slow.write_all(&[*byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(400));
        }
    });
    for (number, (reason, bytes)) in ends_by(task).into_iter().enumerate() {
        let before = server.refused(reason);
        let (_, is_over) = answers(&mut connected(&server), &bytes);
        assert!(is_over, "{number}: {reason}");
        wait_until(reason, || server.refused(reason) > before);
    }
    for (number, (reason, refusal, requests)) in refused(&manifest).into_iter().enumerate() {
        let before = server.refused(reason);
        let bytes = [encoded(&[hello(2)]), encoded(&requests)].concat();
        let (answers, is_over) = answers(&mut connected(&server), &bytes);
        let is_refusal = |answer: &Answer| matches!(answer, Answer::Refused { reason, .. } if *reason == refusal);
        assert!(
            !is_over && answers.iter().any(is_refusal),
            "{number}: {reason}"
        );
        assert!(server.refused(reason) > before, "{number}: {reason}");
    }
    // An incomplete frame.
    let before = server.refused("broken");
    let whole = encoded(&[hello(1), begin(6, task)]);
    connected(&server)
        .write_all(&whole[..whole.len() - 3])
        .unwrap();
    wait_until("broken", || server.refused("broken") > before);
    wait_until("the deadline of the slow one", || {
        server.refused("handshake_deadline") > 0
    });
    slow.join().unwrap();
    // More silent connections than their limit: the oldest ones are closed.
    let silent: Vec<TcpStream> = (0..400).map(|_| connected(&server)).collect();
    wait_until("half_open", || server.refused("half_open") > 0);
    runs_well(&dir, &mount, &["100-130"]);
    drop(silent);
    // Endless requests whose answers are not read.
    let flood: Vec<TcpStream> = (1..=4)
        .map(|number| {
            let mut socket = connected(&server);
            socket.set_nonblocking(true).unwrap();
            let read = |id| Request::Read {
                id,
                token: None,
                at: BlockAt {
                    file: task,
                    index: id % manifest.blocks(task),
                },
                around: 31,
            };
            let plans = (1..2000).map(|id| Request::AskPlan { id, task });
            let hashes = (1..2000).map(|_| Request::AskGroups {
                groups: vec![
                    GroupAt {
                        file: task,
                        group: 0
                    };
                    1024
                ],
            });
            let all = (1..50_000).map(read).chain(plans).chain(hashes);
            let bytes = encoded(
                &[hello(20 + number)]
                    .into_iter()
                    .chain(all)
                    .collect::<Vec<_>>(),
            );
            // Until the server accepts no more, or has accepted far more than sockets and queues can hold.
            let (mut sent, mut pauses) = (0, 0);
            while sent < FLOOD_BYTES_MAX && pauses < 50 {
                match socket.write(&bytes[sent % bytes.len()..]) {
                    Ok(count) => (sent, pauses) = (sent + count, 0),
                    Err(_) => {
                        std::thread::sleep(Duration::from_millis(5));
                        pauses += 1;
                    }
                }
            }
            assert!(sent < FLOOD_BYTES_MAX, "all of the flood was taken");
            socket
        })
        .collect();
    runs_well(&dir, &mount, &["200-260"]);
    let memory_kib = memory_kib_max(server.id());
    assert!(memory_kib < 128 << 10, "{memory_kib} KiB");
    drop(flood);
    // The task of the other device is unchanged.
    let (told, is_over) = answers_behind(&mut other, &mut other_frames, &encoded(&[end(99)]));
    let is_refusal = |answer: &Answer| matches!(answer, Answer::Refused { .. });
    assert!(!is_over && !told.iter().any(is_refusal));
    is_whole(&dir, &mount);
    drop(mount);
    let mount = Mount::start(&dir, "again", server.address, &[]);
    runs_well(&dir, &mount, &["20-60"]);
    drop(mount);
    server.end();
}

/// Starts a server with TLS and its authority, and creates devices with their tenants.
fn with_identities(dir: &TempDir, devices: &[(&str, &str)], options: &[&str]) -> Server {
    tree(dir);
    let store = publish(dir);
    let path = |name: &str| dir.file(name).display().to_string();
    let identity = |arguments: &[&str]| ok(&[&["stream", "identity"], arguments].concat());
    identity(&["authority", &path("authority")]);
    identity(&[
        "server",
        &path("authority"),
        &path("server"),
        "--name",
        "127.0.0.1",
    ]);
    for (name, tenant) in devices {
        let folder = path(name);
        identity(&[
            "device",
            &path("authority"),
            &folder,
            "--name",
            name,
            "--tenant",
            tenant,
        ]);
    }
    let folder = path("server");
    let options = [&["--identity", &folder], &METRICS[..], options].concat();
    Server::start_at(&store, "127.0.0.1:0", &options)
}

/// Opens a connection with the identity of a folder.
fn link(server: &Server, folder: &Path) -> Link {
    connect(&LinkSettings {
        server: server.address.to_string(),
        tls: Some(device_config(folder, "127.0.0.1").unwrap()),
        connect_max: PATIENCE,
        read_max: Some(PATIENCE),
        write_max: Some(PATIENCE),
    })
    .unwrap()
}

/// Sends requests and reads until a following ping is answered.
fn say(link: &mut Link, frames: &mut FrameReader, requests: &[Request]) {
    const LAST: u32 = 3_999_999_999;
    let all = [encoded(requests), encoded(&[Request::Ping { id: LAST }])].concat();
    link.writer.write_all(&all).unwrap();
    loop {
        while let Some(frame) = frames.next().unwrap() {
            let answer = Answer::decode(frame.kind, frame.version, frame.payload).unwrap();
            if answer == (Answer::Pong { id: LAST }) {
                return;
            }
        }
        let count = link.reader.read(frames.space()).unwrap();
        assert!(count > 0, "the server has closed the connection");
        frames.advance(count);
    }
}

fn actions(dir: &TempDir, tenant: &str) -> serde_json::Value {
    let store = dir.file("store").display().to_string();
    ok_json(&["stream", "actions", &store, "--tenant", tenant, "--json"])["actions"].clone()
}

#[test]
fn actions_of_a_tenant_are_changed_by_that_tenant_alone() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let server = with_identities(&dir, &[("good", "hall"), ("evil", "yard")], &[]);
    let path = |name: &str| dir.file(name).display().to_string();
    let mount = Mount::start_as(&dir, "at", server.address, &["--identity", &path("good")]);
    runs_well(&dir, &mount, &["20-60"]);
    wait_until("what was learned", || {
        actions(&dir, "hall").as_array().unwrap().len() == 1
    });
    drop(mount);
    let address = server.address;
    server.end();
    let learned = actions(&dir, "hall");
    // At the same address, so that the publisher's note applies to the same server.
    let folder = path("server");
    let options = [&["--identity", &folder], &METRICS[..]].concat();
    let server = Server::start_at(&dir.file("store"), &address.to_string(), &options);
    let published = stream::store::Store::open(&dir.file("store")).unwrap();
    let published = published.published(published.newest().unwrap()).unwrap();
    let task = file(&published.manifest, "bin/task");
    let (mut evil, mut frames) = (link(&server, &dir.file("evil")), FrameReader::for_answers());
    // With the number of any device: the certificate identifies the owner of a connection.
    say(&mut evil, &mut frames, &[hello(1)]);
    for number in 1..=40 {
        let blocks = (0..30).map(|index| BlockAt {
            file: task,
            index: 500 + (index * 7 + u32::from(number)) % 90,
        });
        let trace = Request::Trace {
            token: token(number),
            blocks: blocks.collect(),
        };
        say(
            &mut evil,
            &mut frames,
            &[begin(number, task), trace, end(number)],
        );
    }
    drop(evil);
    server.end();
    assert_eq!(actions(&dir, "hall"), learned);
    assert_eq!(actions(&dir, "yard").as_array().unwrap().len(), 1);
    // The other devices do not receive it, either.
    let server = Server::start_at(&dir.file("store"), &address.to_string(), &options);
    let mount = Mount::start_as(&dir, "at", server.address, &["--identity", &path("good")]);
    runs_well(&dir, &mount, &["20-60"]);
    is_whole(&dir, &mount);
    let status = mount.status();
    assert!(status["pushed"].as_u64().unwrap() >= 41, "{status}");
    assert!(
        status["pushed"].as_u64() <= learned[0]["blocks"].as_u64(),
        "{status} {learned}"
    );
}

#[test]
fn a_refused_client_is_told_the_reason() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let devices = [("good", "hall"), ("greedy", "hall"), ("gone", "hall")];
    let server = with_identities(&dir, &devices, &["--clients-max-per-device", "2"]);
    let path = |name: &str| dir.file(name).display().to_string();
    ok(&["stream", "identity", "revoke", &path("authority"), "gone"]);
    let trust = |name: &str| ["--identity".to_owned(), path(name)];
    let refused = |at: &str, trust: &[String]| {
        let options: Vec<&str> = trust.iter().map(String::as_str).collect();
        fails_to_mount_as(&dir, at, server.address, &options)
    };
    // A device removed from the list.
    let line = refused("gone.at", &trust("gone"));
    assert!(line.contains("list of devices"), "{line}");
    assert!(server.refused("unknown_device") >= 1);
    // A device of another authority.
    ok(&["stream", "identity", "authority", &path("others")]);
    ok(&[
        "stream",
        "identity",
        "device",
        &path("others"),
        &path("alien"),
        "--name",
        "alien",
    ]);
    std::fs::copy(dir.file("authority/ca.pem"), dir.file("alien/ca.pem")).unwrap();
    let line = refused("alien.at", &trust("alien"));
    assert!(line.contains("authority"), "{line}");
    // Without TLS.
    let (_, is_over) = answers(&mut connected(&server), &encoded(&[hello(1)]));
    assert!(is_over);
    wait_until("both are counted", || server.refused("tls") >= 2);
    // More mounts than one certificate may have; further connections of a mount count as the same mount.
    let many = |name: &str, at: &str| {
        let trust = trust(name);
        let options = [&trust[0], &trust[1], "--connections", "4"];
        Mount::start_as(&dir, at, server.address, &options)
    };
    let mounts = [many("greedy", "one"), many("greedy", "two")];
    wait_until("all connections", || {
        mounts.iter().all(|mount| mount.count("connected") == 4)
    });
    let line = refused("three", &trust("greedy"));
    assert!(line.contains("at a limit"), "{line}");
    assert!(server.refused("clients_of_certificate") >= 1);
    let good = many("good", "good.at");
    for mount in mounts.iter().chain([&good]) {
        runs_well(&dir, mount, &["20-60"]);
        is_whole(&dir, mount);
    }
    drop(mounts);
    let mount = many("greedy", "three");
    runs_well(&dir, &mount, &["20-60"]);
}
