//! The node's region: other processes read values in it and get the same data as from the socket. The region is saved
//! and restored, and no error of it prevents a node from starting.

use crate::common;
use crate::common::node::Node;
use crate::common::{TempDir, fails, ok_json, wait_until};
use base::block::{FileDevice, FileDeviceOptions};
use db::TableSize;
use db::shared::SharedTable;
use db::table::{SlotValue, Table};
use mem::{Attachment, NewInode, ROOT_INODE, Region, RegionOptions};
use serde_json::Value;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The path of a region, in memory if possible. An existing file is removed at the end.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let shared = Path::new("/dev/shm");
        let folder = match shared.is_dir() {
            true => shared.to_owned(),
            false => std::env::temp_dir(),
        };
        Self(folder.join(format!("keel-region-{}-{number}", std::process::id())))
    }

    /// As after a reboot.
    fn remove(&self) {
        std::fs::remove_file(&self.0).ok();
        let mut stubs = self.0.clone().into_os_string();
        stubs.push(".stubs");
        std::fs::remove_dir_all(stubs).ok();
    }

    fn shown(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn attach(&self) -> Attachment {
        Attachment::open(&self.0, b"/keel", true).unwrap()
    }

    /// Writes a file into the region, as a program does.
    fn write(&self, name: &str, content: &[u8]) {
        let attachment = self.attach();
        let writer = attachment.writer().unwrap();
        let new = inode(0o100_644);
        writer
            .create_with(ROOT_INODE, name.as_bytes(), &new, content)
            .unwrap();
        drop(writer);
        attachment.thread_ends();
    }

    fn read(&self, name: &str) -> Vec<u8> {
        let attachment = Attachment::open(&self.0, b"/keel", false).unwrap();
        let found = attachment.look_up(ROOT_INODE, name.as_bytes()).unwrap();
        let mut content = vec![0; found.size as usize];
        let region = attachment.region();
        let count = region.read(found.inode, found.generation, 0, &mut content);
        assert_eq!(count.unwrap(), content.len());
        content
    }

    fn config(&self, more: &str) -> String {
        format!(
            "[store]\ncreate_mebibytes = 16\n[line]\ntcp_listen = \"\"\nunix_socket = \"line.sock\"\n\
             key = \"{{measurement}}/{{field}}\"\n\
             [[key]]\npattern = \"silent\"\n[[key]]\npattern = \"#\"\nvalidity_ms = 4000000000\n\
             [region]\nfile = \"{}\"\ncreate_mebibytes = 32\n{more}",
            self.0.display()
        )
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.remove();
    }
}

fn inode(mode: u32) -> NewInode {
    NewInode {
        mode,
        user: 0,
        group: 0,
        now_ns: 1,
    }
}

fn region_of(node: &Node) -> Value {
    node.json_degraded(&["status", "--json"])["region"].clone()
}

fn reasons(node: &Node) -> Vec<String> {
    let status = node.json_degraded(&["status", "--json"]);
    let code = |reason: &Value| reason["code"].as_str().unwrap().to_owned();
    status["reasons"]
        .as_array()
        .unwrap()
        .iter()
        .map(code)
        .collect()
}

/// Returns the answer of a get without the parts that change over time.
fn steady(mut found: Value, via: &str) -> Value {
    let fields = found.as_object_mut().unwrap();
    assert_eq!(fields.remove("via").unwrap(), via);
    assert!(fields.remove("age_ms").unwrap().as_i64().unwrap() >= 0);
    found
}

#[test]
fn values_are_read_in_the_region_as_the_socket_tells_them() {
    let place = Place::new();
    let mut node = Node::start(&place.config(""));
    let mut lines = UnixStream::connect(node.dir.file("line.sock")).unwrap();
    let mut sent = String::new();
    for n in 0..100_u64 {
        let bits = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 12 | 1023 << 52;
        let value = match n % 5 {
            0 => format!("{}i", n as i64 - 50),
            1 => (n % 2 == 0).to_string(),
            2 => format!("\"text {n} \u{e4}\""),
            _ => format!("{:?}", f64::from_bits(bits)),
        };
        sent.push_str(&format!("m value{n}={value}\n"));
    }
    lines.write_all(format!("{sent}\n").as_bytes()).unwrap();
    let mut answer = [0; 9];
    std::io::Read::read_exact(&mut lines, &mut answer).unwrap();
    assert_eq!(&answer, b"ok 100 0\n");
    for n in 0..100 {
        let key = format!("m/value{n}");
        let get = |via| node.json(&["get", &key, "--json", "--via", via]);
        let (region, socket) = (get("region"), get("socket"));
        assert_eq!(steady(region, "region"), steady(socket, "socket"));
    }
    // By default `get` reads the region, without a request to the node.
    let before = node.json_degraded(&["status", "--json"])["commands"]["requests"].clone();
    assert_eq!(node.json(&["get", "m/value3", "--json"])["via"], "region");
    let text = |via| node.ok(&["get", "m/value3", "--long", "--via", via]);
    let (region, socket) = (text("region"), text("socket"));
    let same = |text: &str| {
        let kept = |line: &&str| !line.starts_with("age ") && !line.starts_with("via ");
        let lines: Vec<String> = text.lines().filter(kept).map(str::to_owned).collect();
        lines
    };
    assert_eq!(same(&region), same(&socket));
    assert!(region.ends_with("via      region\n") && socket.ends_with("via      socket\n"));
    assert_eq!(
        node.ok(&["get", "m/value2"]),
        node.ok(&["get", "m/value2", "--via", "socket"])
    );
    let after = node.json_degraded(&["status", "--json"])["commands"]["requests"].clone();
    // Two requests through the socket, and this status.
    assert_eq!(after.as_u64(), Some(before.as_u64().unwrap() + 3));
    for key in ["nosuch", "nosuch/+", "silent"] {
        let said = |via| node.fails(&["get", key, "--via", via], 1);
        assert_eq!(said("region"), said("socket"));
    }
    // Other programs find the region without the node.
    let region = place.shown();
    let found = ok_json(&[
        "get", "m/value0", "--json", "--via", "region", "--region", region,
    ]);
    assert_eq!(
        (&found["value"], &found["type"]),
        (&(-50).into(), &"integer".into())
    );
    // A change is visible at once, whichever way it was made.
    node.ok(&["put", "m/value0", "21.5"]);
    assert_eq!(node.ok(&["get", "m/value0", "--via", "region"]), "21.5\n");
    // After an orderly end, no reader finds the values of the ended run.
    assert!(node.stop().success());
    assert!(!node.dir.file("keel-data/keel.sock.region").exists());
    let line = node.fails(&["get", "m/value0"], 1);
    assert!(line.contains("no node answers"), "{line}");
    let line = node.fails(
        &["get", "m/value0", "--via", "region", "--region", region],
        1,
    );
    assert!(line.contains("no node keeps its values there"), "{line}");
}

#[test]
fn values_of_a_node_that_was_killed_are_not_taken_for_the_latest() {
    let place = Place::new();
    let mut node = Node::start(&place.config(""));
    node.ok(&["put", "door", "open"]);
    assert_eq!(node.ok(&["get", "door", "--via", "region"]), "open\n");
    node.kill();
    // Its record beside the socket and its table still exist.
    assert!(node.dir.file("keel-data/keel.sock.region").exists());
    let line = node.fails(&["get", "door"], 1);
    assert!(line.contains("no node answers; start it with"), "{line}");
    let line = node.fails(&["get", "door", "--via", "region"], 1);
    assert!(
        line.contains("the node that kept its values there has ended; start it again"),
        "{line}"
    );
    let line = fails(
        &[
            "get",
            "door",
            "--region",
            place.shown(),
            "--node",
            "/nosuch.sock",
        ],
        1,
    );
    assert!(line.contains("/nosuch.sock"), "{line}");
    node.restart();
    assert_eq!(node.ok(&["get", "door", "--via", "region"]), "open\n");
    // The record of an ended run must not lead to the values of another run.
    let path = node.dir.file("keel-data/keel.sock.region");
    let mut word: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    word["run"] = "00".repeat(16).into();
    std::fs::write(&path, word.to_string()).unwrap();
    assert_eq!(node.json(&["get", "door", "--json"])["via"], "socket");
    for nonsense in ["", "{}", "{\"version\":1}", "[1]", "\u{0}"] {
        std::fs::write(&path, nonsense).unwrap();
        assert_eq!(node.json(&["get", "door", "--json"])["via"], "socket");
    }
    let line = node.fails(&["get", "door", "--via", "region"], 1);
    assert!(line.contains("no node says beside this socket"), "{line}");
    assert!(node.stop().success());
}

#[test]
fn a_get_survives_any_content_of_the_table_and_the_region() {
    let place = Place::new();
    let options = RegionOptions {
        capacity_bytes: 32 << 20,
        files_max: Some(100),
        lanes: 8,
    };
    Region::create(&place.0, &options, &inode(0o040_755)).unwrap();
    let attachment = place.attach();
    let size = TableSize {
        objects_max: 8,
        value_bytes_max: 64,
        key_bytes_mean: 16,
    };
    let shared = SharedTable::make(&attachment, "keel-latest", size, 0o644).unwrap();
    let table = Table::create_in(shared.lines(), size, 3).unwrap();
    let (id, _) = table.insert("door", 1000, true).unwrap();
    let value = SlotValue {
        time: db::Time::from_ms(1000),
        arrival_ns: 5,
        boot_tag: 9,
        wall_trusted: true,
        node_time: false,
        retained: false,
        value: b"topen",
    };
    let kept = SlotValue {
        node_time: true,
        retained: true,
        ..value
    };
    table.write(id, &kept).unwrap();
    shared.publish([7; 16]).unwrap();
    let dir = TempDir::new();
    let get_with = |form: &[&str]| {
        let mut command = common::keel();
        command.current_dir(dir.path());
        let arguments = ["get", "door", "--via", "region", "--region", place.shown()];
        command.args(arguments).args(form).output().unwrap()
    };
    let get = || get_with(&[]);
    // What the broker had kept is marked.
    let json: Value = serde_json::from_slice(&get_with(&["--json"]).stdout).unwrap();
    assert_eq!(
        (&json["retained"], &json["fresh"]),
        (&Value::Bool(true), &Value::Bool(false))
    );
    let text = String::from_utf8(get_with(&["--long"]).stdout).unwrap();
    assert!(text.contains("its age is unknown)\n"), "{text}");
    table.write(id, &value).unwrap();
    let json: Value = serde_json::from_slice(&get_with(&["--json"]).stdout).unwrap();
    assert!(json["retained"].is_null(), "{json}");
    assert_eq!(get().stdout, b"open\n");
    let words: Vec<_> = shared.lines().iter().flat_map(|line| &line.0).collect();
    let whole: Vec<u64> = words
        .iter()
        .map(|word| word.load(Ordering::Relaxed))
        .collect();
    let mut drawn = 1_u64;
    let mut next = || {
        drawn ^= drawn << 13;
        drawn ^= drawn >> 7;
        drawn ^= drawn << 17;
        drawn
    };
    for round in 0..80 {
        let changes = [1, 3, words.len()][round % 3];
        for _ in 0..changes {
            let at = match round % 2 {
                0 => next() as usize % 16,
                _ => next() as usize % words.len(),
            };
            words[at].store(next() >> (next() % 64), Ordering::Relaxed);
        }
        let output = get();
        match output.status.code() {
            Some(0) => {}
            Some(1) => drop(common::one_line(&output.stderr)),
            other => panic!("round {round}: {other:?}: {output:?}"),
        }
        for (word, whole) in words.iter().zip(&whole) {
            word.store(*whole, Ordering::Relaxed);
        }
    }
    assert_eq!(get().stdout, b"open\n");
    // The same for a file that is no longer a region.
    let bytes = std::fs::OpenOptions::new()
        .write(true)
        .open(&place.0)
        .unwrap();
    std::os::unix::fs::FileExt::write_all_at(&bytes, &[0xa5; 64], 0).unwrap();
    let output = get();
    assert_eq!(output.status.code(), Some(1));
    common::one_line(&output.stderr);
}

#[test]
fn files_are_saved_while_the_node_runs_and_at_its_end_and_come_back() {
    let place = Place::new();
    let saved = "checkpoint_image = \"saved.img\"\ncheckpoint_create_mebibytes = 64\n";
    let config =
        |seconds: u32| place.config(&format!("{saved}checkpoint_interval_seconds = {seconds}\n"));
    let mut node = Node::start(&config(86_400));
    node.ok(&["put", "door", "open"]);
    assert_eq!(region_of(&node)["loss_window_seconds"], Value::Null);
    place.write("settings", b"as they were at the end");
    assert!(node.stop().success());
    let log = node.log();
    assert!(log.contains("stopped: everything"), "{log}");
    let image = node.dir.file("saved.img");
    let stat = ok_json(&[
        "mem",
        "stat",
        place.shown(),
        "--checkpoint",
        image.to_str().unwrap(),
        "--json",
    ]);
    assert!(stat.to_string().contains("generation"), "{stat}");
    // A power loss: memory is lost, too.
    place.remove();
    std::thread::sleep(Duration::from_millis(300));
    let restarted = Instant::now();
    node.restart();
    // No program could write before the region was restored, so nothing of that time can be lost.
    let window = region_of(&node)["loss_window_seconds"].as_f64().unwrap();
    assert!(window <= restarted.elapsed().as_secs_f64(), "{window} s");
    assert!(node.stop().success());
    place.remove();
    std::fs::write(node.dir.file("keel.toml"), config(1)).unwrap();
    node.restart();
    let log = node.log();
    assert!(log.contains("since, if anything, is lost"), "{log}");
    assert!(
        log.contains("restored: ") && log.contains(" 1 files of "),
        "{log}"
    );
    assert_eq!(place.read("settings"), b"as they were at the end");
    let figures = region_of(&node);
    assert_eq!(
        (&figures["restored_files"], &figures["served"]),
        (&1.into(), &true.into())
    );
    // Values come from the log, and are read in the region.
    assert_eq!(node.ok(&["get", "door", "--via", "region"]), "open\n");
    place.write("later", b"between two checkpoints");
    let before = region_of(&node)["checkpoints"].as_u64().unwrap();
    wait_until("two checkpoints", || {
        region_of(&node)["checkpoints"].as_u64().unwrap() >= before + 2
    });
    let figures = region_of(&node);
    assert!(
        figures["loss_window_seconds"].as_f64().unwrap() >= 0.0,
        "{figures}"
    );
    assert!(
        figures["checkpoint_generation"].as_u64().unwrap() >= 2,
        "{figures}"
    );
    assert_eq!(figures["checkpoint_error"], Value::Null);
    let text = String::from_utf8(node.run(&["status"]).stdout).unwrap();
    assert!(
        text.contains("a power cut would take what was written in the last "),
        "{text}"
    );
    node.kill();
    place.remove();
    node.restart();
    assert_eq!(place.read("settings"), b"as they were at the end");
    assert_eq!(place.read("later"), b"between two checkpoints");
    // An existing region stays as it is.
    node.kill();
    place.write("newest", b"of no checkpoint");
    node.restart();
    assert!(!node.log().contains("restored: "), "{}", node.log());
    assert_eq!(place.read("newest"), b"of no checkpoint");
    assert!(node.stop().success());
    // Data that the previous run has not saved is saved at once, without waiting for the interval.
    std::fs::write(node.dir.file("keel.toml"), config(86_400)).unwrap();
    node.restart();
    wait_until("a checkpoint", || {
        region_of(&node)["checkpoints"].as_u64().unwrap() >= 1
    });
    assert!(node.stop().success());
}

#[test]
fn a_folder_that_the_node_makes_for_its_region_is_logged() {
    let place = Place::new();
    let folder = place.0.clone();
    let inside = Place(folder.join("of/the-region"));
    let mut node = Node::start(&inside.config(""));
    let log = node.log();
    let line = format!(" folder: {} is new, for ", folder.join("of").display());
    assert!(log.contains(&line), "{log}");
    assert!(node.stop().success());
    node.restart();
    assert!(!node.log().contains(" folder: "), "{}", node.log());
    assert!(node.stop().success());
    drop(inside);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_user_without_access_to_the_word_beside_the_socket_is_told_so() {
    if base::mount::effective_ids().0 != 0 {
        println!("skipped: only root can become another user");
        return;
    }
    let place = Place::new();
    let mut node = Node::start(&place.config(""));
    node.ok(&["put", "door", "open"]);
    let socket = node.socket();
    let mut command = common::keel();
    command
        .args(["get", "door", "--via", "region", "--node"])
        .arg(&socket)
        .uid(65_534)
        .gid(65_534);
    match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            println!("skipped: others cannot reach the program");
        }
        output => {
            let output = output.unwrap();
            assert_eq!(output.status.code(), Some(1));
            let line = common::one_line(&output.stderr);
            let wrong = format!(
                "{}.region: permission denied; join the group",
                socket.display()
            );
            assert!(line.contains(&wrong), "{line}");
        }
    }
    assert!(node.stop().success());
}

#[test]
fn checkpoints_that_cannot_be_read_at_a_start_are_not_pushed_out() {
    let place = Place::new();
    let more = "checkpoint_image = \"saved.img\"\ncheckpoint_create_mebibytes = 16\n";
    let mut node = Node::start(&place.config(more));
    place.write("settings", b"worth keeping");
    assert!(node.stop().success());
    place.remove();
    // The draft of a killed start does not disturb the next one.
    let mut draft = place.0.clone().into_os_string();
    draft.push(".new");
    std::fs::write(&draft, "half a region").unwrap();
    let held = FileDevice::open(
        node.dir.file("saved.img"),
        &FileDeviceOptions {
            exclusive: true,
            ..FileDeviceOptions::default()
        },
    );
    let held = held.unwrap();
    node.restart();
    assert!(
        node.log().contains("nothing was restored ("),
        "{}",
        node.log()
    );
    assert!(reasons(&node).contains(&"region_checkpoint_failing".to_owned()));
    drop(held);
    // The node's end must not save: an empty region would replace the checkpoint, and the following end would overwrite
    // the rest of it.
    assert!(node.stop().success());
    // Nor must a later start save what was written into this region meanwhile.
    place.write("other", b"of a region that was never restored");
    node.restart();
    let log = node.log();
    assert!(log.contains("this one was not restored from"), "{log}");
    assert!(node.stop().success());
    place.remove();
    node.restart();
    assert!(node.log().contains("restored: "), "{}", node.log());
    assert_eq!(region_of(&node)["restored_generation"], 1);
    assert_eq!(place.read("settings"), b"worth keeping");
    assert!(node.stop().success());
    assert!(!Path::new(&draft).exists());
}

#[test]
fn no_region_and_no_checkpoint_keeps_a_node_from_starting() {
    let place = Place::new();
    // The existing file is not a region.
    std::fs::write(&place.0, "a text of another program").unwrap();
    let mut node = Node::start(&place.config(""));
    let log = node.log();
    let warnings = log
        .lines()
        .filter(|line| line.contains(" warning: "))
        .count();
    assert!(
        warnings == 1 && log.contains("is not a region; check the path"),
        "{log}"
    );
    node.ok(&["put", "door", "open"]);
    assert_eq!(node.json(&["get", "door", "--json"])["via"], "socket");
    assert!(reasons(&node).contains(&"region_unusable".to_owned()));
    assert_eq!(region_of(&node)["served"], false);
    assert!(node.stop().success());
    assert_eq!(
        std::fs::read(&place.0).unwrap(),
        b"a text of another program"
    );
    // The existing file is not a checkpoint: it is neither restored nor replaced by one of an empty region.
    place.remove();
    let more = "checkpoint_image = \"saved.img\"\ncheckpoint_interval_seconds = 1\n";
    std::fs::write(node.dir.file("keel.toml"), place.config(more)).unwrap();
    let garbage = vec![0x5a; 1 << 20];
    std::fs::write(node.dir.file("saved.img"), &garbage).unwrap();
    node.restart();
    assert!(
        node.log().contains("nothing was restored ("),
        "{}",
        node.log()
    );
    assert_eq!(node.ok(&["get", "door", "--via", "region"]), "open\n");
    assert!(reasons(&node).contains(&"region_checkpoint_failing".to_owned()));
    assert_eq!(region_of(&node)["checkpoints_failed"], 1);
    assert!(node.stop().success());
    assert!(std::fs::read(node.dir.file("saved.img")).unwrap() == garbage);
}

#[test]
fn two_nodes_in_one_region_keep_out_of_each_others_way() {
    let place = Place::new();
    let first = Node::start(&place.config(""));
    first.ok(&["put", "door", "open"]);
    let mut second = Node::start(&place.config(""));
    let log = second.log();
    assert!(
        log.contains("another node keeps its values there; choose another region.table"),
        "{log}"
    );
    second.ok(&["put", "door", "closed"]);
    let get = |node: &Node| {
        let found = node.json(&["get", "door", "--json"]);
        (found["value"].clone(), found["via"].clone())
    };
    assert_eq!(get(&first), ("open".into(), "region".into()));
    assert_eq!(get(&second), ("closed".into(), "socket".into()));
    assert!(second.stop().success());
    let more = "table = \"second\"\n";
    std::fs::write(second.dir.file("keel.toml"), place.config(more)).unwrap();
    second.restart();
    assert_eq!(get(&first), ("open".into(), "region".into()));
    assert_eq!(get(&second), ("closed".into(), "region".into()));
}
