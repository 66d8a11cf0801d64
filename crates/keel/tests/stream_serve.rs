//! `keel stream serve` and `keel stream actions` as processes.

mod common;
mod stream_common;

use common::{TempDir, fails, keel, ok, ok_json, one_line};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use stream::publish::publisher;
use stream::wire::{Answer, FrameReader, Held, PROTOCOL_VERSION, Request};
use stream::{BlockAt, Token};
use stream_common::{Server, bytes_of, publish};

/// A published tree with a program of 50 blocks.
fn published(dir: &TempDir) -> PathBuf {
    std::fs::create_dir_all(dir.file("tree/bin")).unwrap();
    std::fs::write(dir.file("tree/bin/task"), bytes_of(3, 50 * 4096)).unwrap();
    publish(dir)
}

/// Says something to a server and hears until it has answered a ping behind it: the bytes of the manifest among that.
fn say(socket: &mut TcpStream, frames: &mut FrameReader, requests: &[Request]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for request in requests {
        request.encode(&mut bytes);
    }
    Request::Ping { id: 1 }.encode(&mut bytes);
    socket.write_all(&bytes).unwrap();
    let (mut signed, mut total, mut is_answered) = (Vec::new(), 0, false);
    while !is_answered || signed.len() as u64 != total {
        while let Some(frame) = frames.next().unwrap() {
            match Answer::decode(frame.kind, frame.version, frame.payload).unwrap() {
                Answer::Welcome { manifest_bytes, .. } => total = manifest_bytes,
                Answer::Manifest { bytes, .. } => signed.extend(bytes),
                Answer::Pong { .. } => is_answered = true,
                Answer::Begun { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        if !is_answered || signed.len() as u64 != total {
            let count = socket.read(frames.space()).unwrap();
            assert!(count > 0, "the server has closed the connection");
            frames.advance(count);
        }
    }
    signed
}

/// One run of the program that reads its first blocks, as a device would tell it.
fn learn(server: SocketAddr, store: &Path, blocks: u32) {
    let mut socket = TcpStream::connect(server).unwrap();
    let mut frames = FrameReader::for_answers();
    let hello = Request::Hello {
        protocol: PROTOCOL_VERSION,
        device: [1; 16],
        version: None,
        manifest_held: None,
    };
    let signed = say(&mut socket, &mut frames, &[hello]);
    let publisher = publisher(store).unwrap();
    let manifest = stream::manifest::verify(&signed, &publisher).unwrap();
    let task = manifest.find(b"bin/task").unwrap();
    let token = Token([5; 16]);
    let blocks = (0..blocks).map(|index| BlockAt { file: task, index });
    let run = [
        Request::Begin {
            token,
            task,
            held: Held::default(),
        },
        Request::Trace {
            token,
            blocks: blocks.collect(),
        },
        Request::End {
            token,
            is_exact: true,
            has_exited: true,
        },
    ];
    say(&mut socket, &mut frames, &run);
}

#[test]
fn what_a_server_learned_is_listed_and_forgotten() {
    let dir = TempDir::new();
    let store = published(&dir);
    let name = store.to_str().unwrap();
    let text = String::from_utf8(ok(&["stream", "actions", name])).unwrap();
    assert_eq!(text, "nothing was learned yet\n");
    let forget = ["stream", "actions", name, "/bin/task", "--forget", "--json"];
    let server = Server::start(&store, &[]);
    learn(server.address, &store, 20);
    // The server would write over the change what it has in memory.
    let busy = fails(&forget, i32::from(base::error::Code::Busy.exit_status()));
    assert!(busy.contains("a server learns with this store"), "{busy}");
    // In order: what was learned is saved.
    server.end();
    let listed = ok_json(&["stream", "actions", name, "--json"]);
    let action = &listed["actions"][0];
    assert_eq!(action["tenant"], "local");
    assert_eq!(action["task"], "bin/task");
    assert_eq!(action["kind"], "startup");
    assert_eq!(
        (&action["blocks"], &action["files"]),
        (&20.into(), &1.into())
    );
    let text = String::from_utf8(ok(&["stream", "actions", name, "bin/task"])).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.ends_with("  bin/task\n"), "{text}");
    let other = ok_json(&["stream", "actions", name, "--tenant", "other", "--json"]);
    assert_eq!(other["actions"].as_array().unwrap().len(), 0);
    fails(&["stream", "actions", name, "bin/none"], 1);
    assert_eq!(ok_json(&forget)["forgotten"], 1);
    assert_eq!(ok_json(&forget)["forgotten"], 0);
    let listed = ok_json(&["stream", "actions", name, "--json"]);
    assert_eq!(listed["actions"].as_array().unwrap().len(), 0);
}

#[test]
fn what_cannot_be_served_is_said_in_one_line() {
    let dir = TempDir::new();
    let store = published(&dir);
    let name = store.to_str().unwrap();
    let open = [
        "stream",
        "serve",
        name,
        "--insecure",
        "--listen",
        "0.0.0.0:0",
    ];
    assert!(fails(&open, 2).contains("loopback"));
    let missing = dir.file("missing");
    let missing = missing.to_str().unwrap();
    let listen = ["--listen", "127.0.0.1:0"];
    fails(
        &[&["stream", "serve", missing, "--insecure"], &listen[..]].concat(),
        1,
    );
    fails(
        &[
            &["stream", "serve", name, "--identity", missing],
            &listen[..],
        ]
        .concat(),
        1,
    );
    // Neither TLS nor the word that it is not wanted.
    fails(&[&["stream", "serve", name], &listen[..]].concat(), 2);
    let server = Server::start(&store, &[]);
    let taken = server.address.to_string();
    fails(
        &["stream", "serve", name, "--insecure", "--listen", &taken],
        1,
    );
}

/// A server that may have so many open files at first, and so many when it asks for them.
fn with_open_files(soft: u32, hard: u32, store: &Path, clients_max: u32) -> Command {
    let mut command = Command::new("sh");
    let script = format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$0\" \"$@\"");
    command
        .args(["-c", &script])
        .arg(keel().get_program())
        .args(["stream", "serve"])
        .arg(store)
        .args(["--insecure", "--listen", "127.0.0.1:0"])
        .args(["--clients-max", &clients_max.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[test]
fn as_many_files_are_opened_as_devices_need_or_that_is_refused() {
    let dir = TempDir::new();
    let store = published(&dir);
    let output = with_open_files(256, 1500, &store, 5_000).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let line = one_line(&output.stderr);
    assert!(line.contains("--clients-max 5000: "), "{line}");
    assert!(line.contains("the system allows 1500"), "{line}");
    // What is allowed and not given is taken.
    let mut server = with_open_files(64, 1500, &store, 500).spawn().unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(server.stdout.take().unwrap());
    said.read_line(&mut line).unwrap();
    assert!(line.starts_with("serving"), "{line}");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.id())).unwrap();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let numbers: Vec<&str> = files.unwrap().split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers, ["1500", "1500"]);
    server.kill().unwrap();
    server.wait().unwrap();
}
