//! `keel stream serve` and `keel stream actions` as processes.

use crate::common::{
    TempDir, fails, keel, keep_alive_runs, ok, ok_json, one_line, run, text, wait_until,
};
use crate::stream_common::{Server, bytes_of, publish, wait_learned};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use stream::publish::publisher;
use stream::wire::{Answer, FrameReader, HeldBlocks, PROTOCOL_VERSION, Request};
use stream::{BlockAt, Token};

/// A published tree with a program of 50 blocks.
fn published(dir: &TempDir) -> PathBuf {
    std::fs::create_dir_all(dir.file("tree/bin")).unwrap();
    std::fs::write(dir.file("tree/bin/task"), bytes_of(3, 50 * 4096)).unwrap();
    publish(dir)
}

/// Sends requests to a server and reads until it has answered a following ping. Returns the bytes of the manifest among
/// the answers.
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

/// Reports one run of the program that reads its first blocks, as a device does.
fn learn(server: SocketAddr, store: &Path, blocks: u32) {
    report(server, store, blocks, Token([5; 16]), true);
}

/// Reports a run that has its blocks. It ends, or loses its connection.
fn report(server: SocketAddr, store: &Path, blocks: u32, token: Token, has_end: bool) {
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
    let blocks = (0..blocks).map(|index| BlockAt { file: task, index });
    let blocks: Vec<BlockAt> = blocks.collect();
    let held = HeldBlocks::of(blocks.clone());
    let mut run = vec![
        Request::Begin { token, task, held },
        Request::Trace { token, blocks },
    ];
    if has_end {
        run.push(Request::End {
            token,
            is_exact: true,
            has_exited: true,
        });
    }
    say(&mut socket, &mut frames, &run);
}

/// A start that ended with its connection may have read a small part of what the program needs.
#[test]
fn a_pin_of_a_program_that_has_no_whole_start_says_so() {
    let dir = TempDir::new();
    let store = published(&dir);
    let name = store.to_str().unwrap();
    let server = Server::start(&store, &[]);
    let (address, cache) = (server.address.to_string(), dir.file("cache"));
    let cache = ["--cache", cache.to_str().unwrap()];
    let pin = [
        &["stream", "pin", &address, "bin/task", "--insecure"],
        &cache[..],
    ]
    .concat();
    let pinned = || {
        let output = run(&[&pin[..], &["--json"]].concat());
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), said)
    };
    let is_whole =
        || ok_json(&["stream", "actions", name, "--json"])["actions"][0]["is_whole"].clone();
    report(server.address, &store, 12, Token([5; 16]), false);
    wait_learned(&store, 1);
    assert_eq!(is_whole(), false);
    let listed = String::from_utf8(ok(&["stream", "actions", name])).unwrap();
    assert!(
        listed.ends_with("  bin/task (in part: no whole run yet)\n"),
        "{listed}"
    );
    let (status, said) = pinned();
    assert_eq!(status, Some(1), "{said}");
    assert_eq!(said["is_complete"], false, "{said}");
    assert_eq!(said["is_learned"], false, "{said}");
    assert_eq!(said["is_learned_in_part"], true, "{said}");
    // The program's file is fetched all the same.
    assert_eq!(
        (&said["blocks_wanted"], &said["blocks_cached"]),
        (&50.into(), &50.into())
    );
    let output = run(&pin);
    let (_, words, _) = text(&output);
    assert!(
        words.contains("bin/task alone: the server has learned no whole start of it yet"),
        "{words}"
    );
    report(server.address, &store, 20, Token([6; 16]), true);
    let (status, said) = pinned();
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(said["is_complete"], true, "{said}");
    assert_eq!(said["learned_by"], "server", "{said}");
    assert_eq!(said["is_learned_in_part"], false, "{said}");
    server.end();
    assert_eq!(is_whole(), true);
}

#[test]
fn learned_actions_are_listed_and_forgotten() {
    let dir = TempDir::new();
    let store = published(&dir);
    let name = store.to_str().unwrap();
    let text = String::from_utf8(ok(&["stream", "actions", name])).unwrap();
    assert_eq!(text, "nothing was learned yet\n");
    let forget = ["stream", "actions", name, "/bin/task", "--forget", "--json"];
    let server = Server::start(&store, &[]);
    learn(server.address, &store, 20);
    // Otherwise the server would overwrite the change with its data in memory.
    let busy = fails(&forget, i32::from(base::error::Code::Busy.exit_status()));
    assert!(busy.contains("a server learns with this store"), "{busy}");
    // An orderly end saves what was learned.
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
    // The store knows no list of tenants, so an unknown one is no error, and is named.
    let other = ["stream", "actions", name, "bin/task", "--tenant", "other"];
    let named = format!(
        "nothing was learned of bin/task for the tenant other yet; `keel stream actions {name}` lists all tenants\n"
    );
    for forget in [None, Some("--forget")] {
        let arguments: Vec<_> = other.into_iter().chain(forget).collect();
        assert_eq!(String::from_utf8(ok(&arguments)).unwrap(), named);
    }
    let line = fails(&["stream", "actions", name, "--tenant", "../other"], 2);
    assert!(
        line.contains("../other: is no name of a tenant; "),
        "{line}"
    );
    fails(&["stream", "actions", name, "bin/none"], 1);
    assert_eq!(ok_json(&forget)["forgotten"], 1);
    assert_eq!(ok_json(&forget)["forgotten"], 0);
    let listed = ok_json(&["stream", "actions", name, "--json"]);
    assert_eq!(listed["actions"].as_array().unwrap().len(), 0);
}

#[test]
fn devices_that_vanish_are_found_out() {
    let dir = TempDir::new();
    let server = Server::start(&published(&dir), &[]);
    let device = TcpStream::connect(server.address).unwrap();
    wait_until("the timer of keep-alive", || keep_alive_runs(&device));
}

#[test]
fn a_device_s_folder_is_refused_as_the_identity_of_a_server() {
    let dir = TempDir::new();
    let store = published(&dir);
    let [authority, device] = ["authority", "device"].map(|name| dir.file(name));
    let [store, authority, device] =
        [&store, &authority, &device].map(|path| path.to_str().unwrap());
    ok(&["stream", "identity", "authority", authority]);
    ok(&[
        "stream", "identity", "device", authority, device, "--name", "a",
    ]);
    let list = format!("{authority}/devices");
    let serve = [
        "stream",
        "serve",
        store,
        "--listen",
        "127.0.0.1:0",
        "--identity",
        device,
    ];
    for more in [&[][..], &["--devices", &list]] {
        let line = fails(&[&serve[..], more].concat(), 1);
        let said =
            "cert.pem: is the certificate of a device, not of a server; name the folder that";
        assert!(line.contains(said), "{line}");
    }
}

/// The size is that of the blocks in the cache, and not that of as many full blocks or of all that is wanted.
#[test]
fn pin_prints_the_size_of_the_blocks_in_the_cache() {
    let dir = TempDir::new();
    std::fs::create_dir_all(dir.file("tree")).unwrap();
    std::fs::write(dir.file("tree/small"), "ten bytes\n").unwrap();
    std::fs::write(dir.file("tree/noise"), bytes_of(9, 16 << 20)).unwrap();
    let server = Server::start(&publish(&dir), &[]);
    let (address, cache) = (server.address.to_string(), dir.file("cache"));
    let cache = ["--cache", cache.to_str().unwrap(), "--cache-size", "4M"];
    let pin = |what| {
        let output = run(&[&["stream", "pin", &address, what, "--insecure"], &cache[..]].concat());
        String::from_utf8(output.stdout).unwrap()
    };
    let said = pin("small");
    assert!(
        said.contains(": 1 of 1 blocks in the cache (10 B): small alone"),
        "{said}"
    );
    let said = pin("--all");
    let sizes = said.split(['(', ')']).nth(1).unwrap();
    let (there, wanted) = sizes.split_once(" of ").unwrap();
    assert!(wanted == "16.0 MiB" && there != wanted, "{said}");
}

#[test]
fn a_store_that_cannot_be_served_is_reported_in_one_line() {
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
    // Neither TLS nor the option to run without it.
    fails(&[&["stream", "serve", name], &listen[..]].concat(), 2);
    for address in ["7007", "localhost:7007", "plant.example"] {
        for option in ["--listen", "--metrics"] {
            let mut options = vec!["stream", "serve", name, "--insecure", option, address];
            if option == "--metrics" {
                options.extend(listen);
            }
            let (status, _, said) = refused(&options);
            assert_eq!(status, Some(2), "{said}");
            assert!(
                said.contains("127.0.0.1:7007 for this machine alone"),
                "{said}"
            );
        }
    }
    let (status, _, said) = refused(
        &[
            &["stream", "serve", name, "--insecure", "--memory", "1"],
            &listen[..],
        ]
        .concat(),
    );
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("give 1M or more"), "{said}");
    // A list of devices that would not be used.
    let devices = ["--devices", missing];
    let (status, _, said) = refused(
        &[
            &["stream", "serve", name, "--insecure"],
            &listen[..],
            &devices,
        ]
        .concat(),
    );
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("--devices"), "{said}");
    let server = Server::start(&store, &[]);
    let taken = server.address.to_string();
    fails(
        &["stream", "serve", name, "--insecure", "--listen", &taken],
        1,
    );
}

/// Returns exit status, standard output and standard error of a refused command.
fn refused(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = run(arguments);
    let (status, said, error) = text(&output);
    (status, said.to_owned(), error.to_owned())
}

/// Returns a server's output on standard error.
fn heard(server: &Path) -> String {
    std::fs::read_to_string(server).unwrap()
}

#[test]
fn a_list_of_devices_that_is_not_understood_is_told_and_mended_while_a_server_runs() {
    let dir = TempDir::new();
    let store = published(&dir);
    let folder = |name: &str| dir.file(name).display().to_string();
    let authority = folder("authority");
    ok(&["stream", "identity", "authority", &authority]);
    let server = [
        "server",
        &authority,
        &folder("server"),
        "--name",
        "127.0.0.1",
    ];
    ok(&[&["stream", "identity"], &server[..]].concat());
    let device = ["device", &authority, &folder("device"), "--name", "device"];
    ok(&[&["stream", "identity"], &device[..]].concat());
    let log = dir.file("serve.log");
    let mut child = keel()
        .args(["stream", "serve"])
        .arg(&store)
        .args(["--listen", "127.0.0.1:0", "--identity", &folder("server")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    said.read_line(&mut line).unwrap();
    let address = line.trim().rsplit(' ').next().unwrap().to_owned();
    let pin = || {
        let cache = folder("cache");
        let arguments = [
            "stream",
            "pin",
            &address,
            "--all",
            "--identity",
            &folder("device"),
            "--cache",
            &cache,
        ];
        let output = run(&arguments);
        std::fs::remove_dir_all(&cache).ok();
        output
    };
    assert!(pin().status.success());
    let list = dir.file("authority/devices");
    let good = std::fs::read(&list).unwrap();
    let broken = [&good[..], b"garbage\n"].concat();
    std::fs::write(&list, broken).unwrap();
    for _ in 0..3 {
        let output = pin();
        let (status, _, said) = text(&output);
        assert_ne!(status, Some(0), "{said}");
        assert!(said.contains("cannot read its list of devices"), "{said}");
    }
    let told = heard(&log);
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(
        told.contains("devices: line 2 is not FINGERPRINT NAME TENANT; mend"),
        "{told}"
    );
    std::fs::write(&list, good).unwrap();
    assert!(pin().status.success());
    wait_until("the good news", || heard(&log).lines().count() == 2);
    assert!(heard(&log).ends_with("devices are let in again\n"));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_folder_of_a_server_without_a_list_is_told_apart() {
    let dir = TempDir::new();
    let store = published(&dir);
    let folder = |name: &str| dir.file(name).display().to_string();
    let authority = folder("authority");
    ok(&["stream", "identity", "authority", &authority]);
    let server = folder("server");
    ok(&[
        "stream",
        "identity",
        "server",
        &authority,
        &server,
        "--name",
        "localhost",
    ]);
    std::fs::remove_file(dir.file("server/devices")).unwrap();
    let serve = |identity: &str| {
        let store = store.to_str().unwrap();
        let options = ["--listen", "127.0.0.1:0", "--identity", identity];
        fails(&[&["stream", "serve", store], &options[..]].concat(), 1)
    };
    let line = serve(&server);
    assert!(
        line.contains(
            "server/devices: no such file or directory; copy the file devices of the authority"
        ),
        "{line}"
    );
    let line = serve(&folder("none"));
    assert!(
        line.contains("none/cert.pem: no such file or directory; name the folder that `keel stream identity server`"),
        "{line}"
    );
}

#[test]
fn a_server_without_write_access_names_the_remedy() {
    let dir = TempDir::new();
    let store = published(&dir);
    std::fs::create_dir(store.join("actions")).unwrap();
    // Where a folder exists, no file can be locked, even by root.
    std::fs::create_dir(store.join("actions/lock")).unwrap();
    let forget = [
        "stream",
        "actions",
        store.to_str().unwrap(),
        "bin/task",
        "--forget",
    ];
    let output = run(&forget);
    let (status, _, said) = text(&output);
    assert_ne!(status, Some(0), "{said}");
    assert!(!said.contains("end the server first"), "{said}");
}

/// Returns a server with these soft and hard limits of open files.
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
fn a_server_raises_its_limit_of_open_files_or_refuses_to_start() {
    let dir = TempDir::new();
    let store = published(&dir);
    let output = with_open_files(256, 1500, &store, 5_000).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let line = one_line(&output.stderr);
    assert!(line.contains("--clients-max 5000: "), "{line}");
    assert!(line.contains("the system allows 1500"), "{line}");
    // The server raises its soft limit up to the hard limit.
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
