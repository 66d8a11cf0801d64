//! `keel backup` and `keel restore`: the copy contains what was acknowledged, an incomplete copy is recognised as such,
//! and a running node keeps its store.

use crate::common::node::{BACKUP_BEGUN, Node, SMALL, frame};
use crate::common::{TempDir, keel, one_line, wait_until};
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const BACKUP_FILE: u16 = 267;
const BACKUP_PIECE: u16 = 268;

/// Sends readings of `key` with ascending numbers, each of which is acknowledged, until `stop` is set.
fn send(node: &Node, key: &str, acknowledged: &AtomicU64, stop: &AtomicBool) {
    let stream = UnixStream::connect(node.dir.file("line.sock")).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut lines = String::new();
        for _ in 0..50 {
            lines += &format!("{key} n={number}i\n");
            number += 1;
        }
        stream.write_all((lines + "\n").as_bytes()).unwrap();
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        assert_eq!(answer, "ok 50 0\n");
        acknowledged.store(number, Ordering::Relaxed);
    }
}

fn numbers(node: &Node, key: &str) -> Vec<u64> {
    let history = node.json(&["history", key, "--json"]);
    let readings = history.as_array().unwrap().iter();
    readings
        .map(|reading| reading["value"].as_u64().unwrap())
        .collect()
}

/// Returns a node on the store that a backup is restored into.
fn restored(backup: &std::path::Path) -> Node {
    restored_with(SMALL, backup)
}

fn restored_with(config: &str, backup: &std::path::Path) -> Node {
    let mut other = Node::prepare(config);
    let said = other.ok(&["restore", backup.to_str().unwrap()]);
    assert!(said.contains("copied and compared"), "{said}");
    other.restart();
    other
}

#[test]
fn a_backup_contains_all_readings_acknowledged_before_while_others_arrive() {
    let node = Node::start(SMALL);
    let (acknowledged, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(&node, "pump", &acknowledged, &stop));
        let mut before = Vec::new();
        for round in 1..=3 {
            let from = acknowledged.load(Ordering::Relaxed);
            wait_until("readings", || {
                acknowledged.load(Ordering::Relaxed) > from + 1000
            });
            let known = acknowledged.load(Ordering::Relaxed);
            let name = format!("round-{round}.backup");
            let made = node.json(&["backup", &name, "--json"]);
            assert!(made["readings_end"].as_u64().unwrap() >= known, "{made}");
            assert_eq!(made["bytes_unreadable"], 0);
            before.push((name, known));
        }
        stop.store(true, Ordering::Relaxed);
        sender.join().unwrap();
        for (name, known) in before {
            let backup = node.dir.file(&name);
            let checked = node.json(&["flash", "check", &name, "--json"]);
            assert_eq!(checked["clean"], true, "{checked}");
            let other = restored(&backup);
            let found = numbers(&other, "pump/n");
            assert!(
                found.len() as u64 >= known,
                "{} of {known} are there",
                found.len()
            );
            assert!(found.iter().copied().eq(0..found.len() as u64));
            let status = other.json_degraded(&["status", "--json"]);
            assert_eq!(status["log"]["records_damaged"], 0, "{status}");
            assert_eq!(status["log"]["readings_missing"], 0, "{status}");
            // The lifetime counters continue from the original: its start and one more.
            assert!(
                status["lifetime"]["starts"].as_u64().unwrap() >= 1,
                "{status}"
            );
            other.ok(&["put", "pump/n", "7"]);
        }
    });
    assert!(
        !node
            .dir
            .entries()
            .iter()
            .any(|path| path.extension().is_some_and(|end| end == "part"))
    );
}

#[test]
fn a_backup_has_one_name_and_replaces_only_when_told() {
    let node = Node::start(SMALL);
    node.ok(&["put", "a", "1"]);
    let said = node.ok(&["backup", "a.backup"]);
    assert!(
        said.starts_with("a.backup: the readings up to number 1, "),
        "{said}"
    );
    let line = node.fails(&["backup", "a.backup"], 1);
    assert!(
        line.contains("is there already") && line.contains("--force"),
        "{line}"
    );
    node.ok(&["put", "a", "2"]);
    node.ok(&["backup", "a.backup", "--force"]);
    assert_eq!(
        restored(&node.dir.file("a.backup")).ok(&["get", "a"]),
        "2\n"
    );
    let line = node.fails(&["backup", "."], 1);
    assert!(line.contains("is no file"), "{line}");
    let line = node.fails(&["backup", "missing/a.backup"], 1);
    assert!(line.contains("missing/a.backup"), "{line}");
    let line = node.fails(&["backup", "b.backup", "--node", "nobody.sock"], 1);
    assert!(line.contains("no node answers"), "{line}");
    assert!(!node.dir.file("b.backup").exists());
}

#[test]
fn a_backup_never_takes_the_place_of_the_store_of_a_node() {
    let mut node = Node::start(SMALL);
    node.ok(&["put", "a", "1"]);
    let image = node.dir.file("keel-data/store.img");
    std::os::unix::fs::symlink(&image, node.dir.file("link")).unwrap();
    std::fs::hard_link(&image, node.dir.file("hard")).unwrap();
    for name in ["keel-data/store.img", "link", "hard"] {
        for force in [&[][..], &["--force"]] {
            let line = node.fails(&[&["backup", name], force].concat(), 1);
            assert!(line.contains(&format!("process {}", node.pid())), "{line}");
        }
    }
    node.ok(&["put", "a", "2"]);
    assert!(node.stop().success());
    node.restart();
    assert_eq!(node.ok(&["get", "a"]), "2\n");
}

#[test]
fn a_backup_is_for_its_owner_and_follows_a_link() {
    let node = Node::start(SMALL);
    node.ok(&["put", "a", "1"]);
    std::fs::create_dir(node.dir.file("card")).unwrap();
    std::fs::write(node.dir.file("card/kept"), "").unwrap();
    std::os::unix::fs::symlink("card/kept", node.dir.file("a.backup")).unwrap();
    node.ok(&["backup", "a.backup", "--force"]);
    let link = std::fs::symlink_metadata(node.dir.file("a.backup")).unwrap();
    assert!(link.is_symlink());
    let made = std::fs::metadata(node.dir.file("card/kept")).unwrap();
    assert_eq!(made.permissions().mode() & 0o777, 0o600);
    node.ok(&["flash", "check", "card/kept"]);
    std::os::unix::fs::symlink("nowhere", node.dir.file("b.backup")).unwrap();
    let line = node.fails(&["backup", "b.backup"], 1);
    assert!(line.contains("symbolic link to nothing"), "{line}");
    // A symbolic link under the draft's name is not followed, so its target stays unchanged.
    std::fs::write(node.dir.file("mine"), "mine").unwrap();
    std::os::unix::fs::symlink("mine", node.dir.file("c.backup.part")).unwrap();
    let line = node.fails(&["backup", "c.backup"], 1);
    assert!(line.contains("c.backup.part"), "{line}");
    assert_eq!(
        std::fs::read_to_string(node.dir.file("mine")).unwrap(),
        "mine"
    );
}

#[test]
fn a_restore_follows_a_link() {
    let mut node = Node::start(SMALL);
    node.ok(&["put", "a", "1"]);
    node.ok(&["backup", "a.backup"]);
    assert!(node.stop().success());
    let (image, card) = (
        node.dir.file("keel-data/store.img"),
        node.dir.file("card.img"),
    );
    std::fs::rename(&image, &card).unwrap();
    std::os::unix::fs::symlink(&card, &image).unwrap();
    node.ok(&["restore", "a.backup", "--force"]);
    assert!(std::fs::symlink_metadata(&image).unwrap().is_symlink());
    node.restart();
    assert_eq!(node.ok(&["get", "a"]), "1\n");
}

#[test]
fn a_store_that_a_node_has_is_not_replaced() {
    let mut node = Node::start(SMALL);
    node.ok(&["put", "a", "1"]);
    node.ok(&["backup", "a.backup"]);
    node.ok(&["put", "a", "2"]);
    for arguments in [
        &["restore", "a.backup"][..],
        &["restore", "a.backup", "--force"],
    ] {
        let line = node.fails(arguments, 1);
        assert!(line.contains(&format!("process {}", node.pid())), "{line}");
    }
    assert_eq!(node.ok(&["get", "a"]), "2\n");
    assert!(node.stop().success());
    let line = node.fails(&["restore", "a.backup"], 1);
    assert!(
        line.contains("is there already") && line.contains("--force"),
        "{line}"
    );
    // A failed restore leaves the old store unchanged.
    let line = node.fails(&["restore", "a.backup", "--force", "--size", "64K"], 2);
    assert!(line.contains("64.0 KiB"), "{line}");
    let line = node.fails(&["restore", "keel.toml", "--force"], 1);
    assert!(line.contains("keel.toml"), "{line}");
    node.restart();
    assert_eq!(node.ok(&["get", "a"]), "2\n");
    assert!(node.stop().success());
    let made = node.json(&["restore", "a.backup", "--force", "--json"]);
    assert_eq!(made["size_bytes"], 16 << 20);
    node.restart();
    assert_eq!(node.ok(&["get", "a"]), "1\n");
    // A store without a node's log is not restored for a node.
    node.ok(&["flash", "format", "other.img", "--size", "8M", "--sparse"]);
    let line = node.fails(&["restore", "other.img", "--image", "new.img"], 1);
    assert!(line.contains("holds no log of a node"), "{line}");
    assert!(!node.dir.file("new.img").exists());
    let left = node.dir.file("keel-data");
    let left = std::fs::read_dir(left)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    assert!(
        !left
            .into_iter()
            .any(|name| name.to_string_lossy().contains("restore"))
    );
}

#[test]
fn a_copied_store_is_the_store_of_a_node_too() {
    let mut node = Node::start(SMALL);
    node.ok(&["put", "a", "1"]);
    assert!(node.stop().success());
    node.ok(&[
        "flash",
        "copy",
        "keel-data/store.img",
        "larger.img",
        "--size",
        "24M",
    ]);
    std::fs::rename(
        node.dir.file("larger.img"),
        node.dir.file("keel-data/store.img"),
    )
    .unwrap();
    node.restart();
    assert_eq!(node.ok(&["get", "a"]), "1\n");
    assert_eq!(
        node.json(&["history", "a", "--json"])
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn an_unreadable_block_costs_only_itself_and_is_reported() {
    let config = format!("{SMALL}[keys]\nvalue_bytes_max = 256\n");
    let mut node = Node::start(&config);
    for number in 0..40 {
        let text = format!("mark {number:03} {}", "x".repeat(200));
        node.ok(&["put", "text", &text]);
    }
    assert!(node.stop().success());
    let image = node.dir.file("keel-data/store.img");
    let mut bytes = std::fs::read(&image).unwrap();
    let place = bytes
        .windows(8)
        .position(|window| window == b"mark 020")
        .unwrap();
    bytes[place] ^= 1;
    std::fs::write(&image, bytes).unwrap();
    node.restart();
    let output = node.run(&["backup", "a.backup", "--json"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let made: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(made["bytes_unreadable"].as_u64().unwrap() > 0, "{made}");
    assert!(
        one_line(&output.stderr).contains("could not read"),
        "{output:?}"
    );
    // The other readings are there, and the copy records that some are missing.
    let other = restored_with(&config, &node.dir.file("a.backup"));
    assert!(other.ok(&["get", "text"]).starts_with("mark 039"));
    let history = other.run(&["history", "text", "--json"]);
    assert_eq!(history.status.code(), Some(1));
    let found: serde_json::Value = serde_json::from_slice(&history.stdout).unwrap();
    let found = found.as_array().unwrap().len();
    assert!((10..40).contains(&found), "{found}");
}

#[test]
fn only_operators_may_back_up_a_node_with_its_key() {
    let node = Node::start(SMALL);
    for (path, mode) in [(node.socket(), 0o666), (node.dir.path().into(), 0o777)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let data = node.dir.file("keel-data");
    std::fs::set_permissions(data, std::fs::Permissions::from_mode(0o755)).unwrap();
    let socket = node.socket();
    let arguments = ["backup", "a.backup", "--node", socket.to_str().unwrap()];
    let Some(output) = crate::common::as_nobody(&arguments, &node.dir) else {
        return;
    };
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(one_line(&output.stderr).contains("only root"), "{output:?}");
    assert!(!node.dir.file("a.backup").exists() && !node.dir.file("a.backup.part").exists());
}

/// A fake node that sends the beginning of a backup, and then waits.
struct Halting {
    dir: TempDir,
    stream: UnixStream,
    command: Child,
}

impl Halting {
    fn new() -> Self {
        let dir = TempDir::new();
        let listener = UnixListener::bind(dir.file("node.sock")).unwrap();
        let command = keel()
            .args(["backup", "a.backup", "--node", "node.sock"])
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut halting = Self {
            dir,
            stream,
            command,
        };
        // Begin twice: the second begin discards the first one.
        for length in [9_000, 40_000] {
            halting.begin();
            halting.send(
                BACKUP_FILE,
                json!({"name": "log-00000000"}).to_string().as_bytes(),
            );
            halting.send(BACKUP_PIECE, &vec![5; length]);
        }
        let part = halting.dir.file("a.backup.part");
        wait_until("the part", || part.exists());
        halting
    }

    fn begin(&mut self) {
        let begun = json!({"hash_key": "00".repeat(16), "name_bytes_max": 64, "files_max": 2,
            "bytes_max": 100_000, "durable_end": 3});
        self.send(BACKUP_BEGUN, begun.to_string().as_bytes());
    }

    fn send(&mut self, kind: u16, payload: &[u8]) {
        self.stream.write_all(&frame(kind, 1, payload)).unwrap();
    }

    /// Returns the output of the command, and what is left in the folder besides the socket.
    fn end(self) -> (Output, Vec<String>) {
        let output = self.command.wait_with_output().unwrap();
        let entries = self.dir.entries().into_iter();
        let names = entries.map(|path| path.file_name().unwrap().to_string_lossy().into_owned());
        let left = names.filter(|name| name != "node.sock").collect();
        (output, left)
    }
}

#[test]
fn an_interrupted_backup_leaves_nothing() {
    for number in [libc::SIGTERM, libc::SIGINT] {
        let halting = Halting::new();
        // At any point of the backup: the draft is removed, and the error line says so.
        crate::common::signal(&halting.command, number);
        let (output, left) = halting.end();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(
            one_line(&output.stderr).contains("interrupted"),
            "{output:?}"
        );
        assert_eq!(left, [""; 0]);
    }
}

#[test]
fn a_node_that_goes_leaves_no_backup() {
    let halting = Halting::new();
    halting.stream.shutdown(std::net::Shutdown::Both).unwrap();
    let (output, left) = halting.end();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        one_line(&output.stderr).contains("closed the connection"),
        "{output:?}"
    );
    assert_eq!(left, [""; 0]);
}

#[test]
fn a_killed_backup_leaves_no_store() {
    let mut halting = Halting::new();
    halting.command.kill().unwrap();
    let part = halting.dir.file("a.backup.part").display().to_string();
    halting.command.wait().unwrap();
    assert!(!halting.dir.file("a.backup").exists());
    for arguments in [
        &["flash", "check", &part][..],
        &["restore", &part, "--image", "/nonexistent/x"],
    ] {
        crate::common::fails(arguments, 1);
    }
    // The next backup overwrites it.
    let node = Node::start(SMALL);
    let target = halting.dir.file("a.backup").display().to_string();
    node.ok(&["put", "a", "1"]);
    node.ok(&["backup", &target]);
    assert!(!std::path::Path::new(&part).exists());
    crate::common::ok(&["flash", "check", &target]);
}

#[test]
fn a_node_that_sends_nonsense_is_told_apart() {
    for (kind, payload) in [
        (BACKUP_PIECE, &b"early"[..]),
        (BACKUP_FILE, br#"{"name": "log-00000000"}"#),
        (258, br#"{"lsn": 3}"#),
        (BACKUP_BEGUN, br#"{"hash_key": "zz"}"#),
        (BACKUP_FILE, br#"{"name": "../../etc/passwd"}"#),
    ] {
        let mut halting = Halting::new();
        halting.begin();
        if kind == BACKUP_FILE {
            // A name twice, and a name that no store accepts.
            halting.send(BACKUP_FILE, br#"{"name": "log-00000000"}"#);
        }
        halting.send(kind, payload);
        let (output, left) = halting.end();
        assert_eq!(output.status.code(), Some(1), "{kind}: {output:?}");
        one_line(&output.stderr);
        assert_eq!(left, [""; 0], "{kind}");
    }
}

#[test]
fn a_store_that_root_restores_belongs_to_the_user_of_the_node() {
    if base::mount::effective_ids().0 != 0 {
        println!("skipped: only root can give files away");
        return;
    }
    let mut node = Node::start(SMALL);
    node.ok(&["put", "a", "1"]);
    node.ok(&["backup", "a.backup"]);
    assert!(node.stop().success());
    let data = node.dir.file("keel-data");
    let image = data.join("store.img");
    std::os::unix::fs::chown(
        &data,
        Some(crate::common::NOBODY),
        Some(crate::common::NOBODY),
    )
    .unwrap();
    std::fs::remove_file(&image).unwrap();
    node.ok(&["restore", "a.backup"]);
    assert_eq!(
        std::fs::metadata(&image).unwrap().uid(),
        crate::common::NOBODY
    );
    // The owner of a replaced file takes precedence.
    std::os::unix::fs::chown(&image, Some(1), Some(1)).unwrap();
    std::fs::set_permissions(&image, std::fs::Permissions::from_mode(0o640)).unwrap();
    node.ok(&["restore", "a.backup", "--force"]);
    let found = std::fs::metadata(&image).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o777), (1, 0o640));
}
