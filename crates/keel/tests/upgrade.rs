//! Stores that an older node left: a node reads all of them, and goes on.
//!
//! `golden/store-2.bin` is the image of a store with log format 2, as a node left it. It has the blocks that are not
//! zero. Each has its number (u32), its length without trailing zeros (u16) and its bytes, all little-endian.
//! `golden/store-2.json` is what `keel history` said of its keys then. `GOLDEN_UPDATE=1 cargo nextest run -p keel
//! upgrade::` writes both again, which is right only before anything of the formats has changed.

use crate::common::node::{Node, SMALL};
use base::block::{BLOCK_BYTES, FileDevice, FileDeviceOptions};
use base::clock::Clock;
use base::sim::SimClock;
use db::{CommitDriver, Damage, Database, DbOptions, Durability, ObjectSpec, Time, scan_log};
use flash::{FormatOptions, OpenOptions, Store};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const IMAGE_BYTES: u64 = 16 << 20;

/// A key of 64 bytes, two others, and three that lines make.
const KEYS: [&str; 6] = [
    "plant/line-07/oven/zone-3/thermocouple/upper/left/degree-celsius",
    "hall/temperature",
    "küche/door",
    "disk/sda1/used",
    "disk/sda1/free",
    "note/text",
];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}"))
}

/// Makes a store with short segments, so that there are several and the finished ones have an index. Two boots write
/// to it: the clock of the first one is never trusted.
fn make_log(image: &Path) {
    std::fs::create_dir_all(image.parent().unwrap()).unwrap();
    let device = FileDeviceOptions {
        create_bytes: Some(IMAGE_BYTES),
        ..FileDeviceOptions::default()
    };
    let format = FormatOptions {
        files_max: 64,
        name_bytes_max: 64,
        uuid: [1; 16],
        hash_key: [2; 16],
    };
    let device = FileDevice::open(image, &device).unwrap();
    let mut store = Store::format(device, &format).unwrap();
    let clock = SimClock::new(7);
    clock.set_wall_ms(1_700_000_000_000);
    let options = DbOptions {
        append_bytes_max: 1024,
        segment_bytes_max: 2048,
        checkpoint_bytes: 2000,
        checkpoint_piece_bytes_max: 512,
        commit_driver: CommitDriver::Manual,
        ..DbOptions::default()
    };
    for boot in 0..2 {
        if boot == 1 {
            clock.reboot();
            clock.set_wall_trusted(true);
        }
        let db = Database::open(store, Arc::new(clock.clone()), options).unwrap();
        for n in 0..60_u32 {
            clock.advance_ns(250_000_321);
            let key = KEYS[n as usize % 3];
            let id = db.declare(&ObjectSpec {
                key,
                avi_ms: 1000 + n % 3,
                temporal: n % 3 != 2,
            });
            let id = id.unwrap();
            let value = match n % 3 {
                2 => format!("tit is open, said reading {n} of boot {boot}").into_bytes(),
                _ => (f64::from(n) / 4.0).to_le_bytes().to_vec(),
            };
            let sensor = Time::from_ms(clock.wall_ms() - 40);
            let batched = Durability::Batched;
            match n % 5 {
                0 => db.put_now(id, &value, batched),
                1 => db.put_retained(id, &value, None, batched),
                2 => db.put_retained(id, &value, Some(sensor), batched),
                _ => db.put(id, &value, sensor, batched),
            }
            .unwrap();
            db.pump().unwrap();
        }
        while db.maintain().unwrap() {}
        store = db.close().unwrap();
    }
    store.close().unwrap();
}

/// Lets a node continue the store in two runs.
fn make(node: &mut Node) {
    make_log(&image(node));
    for run in 0..2 {
        node.restart();
        let stream = UnixStream::connect(node.dir.file("line.sock")).unwrap();
        let mut answers = BufReader::new(stream.try_clone().unwrap());
        let mut lines = String::new();
        for n in 0..6_i64 {
            let time_ns = (1_700_000_100_000 + run * 10_000 + n * 250) * 1_000_000;
            lines += &format!(
                "disk,path=sda1 used={n}i,free={}u {time_ns}\n",
                u64::MAX - 1
            );
            lines += &format!("note text=\"run {run}, line {n}\" {time_ns}\n");
        }
        (&stream).write_all((lines + "\n").as_bytes()).unwrap();
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        assert!(
            answer.starts_with("ok ") && answer.ends_with(" 0\n"),
            "{answer}"
        );
        assert!(node.stop().success());
    }
}

fn image(node: &Node) -> PathBuf {
    node.dir.file("keel-data/store.img")
}

fn pack(image: &Path) -> Vec<u8> {
    let bytes = std::fs::read(image).unwrap();
    let mut packed = Vec::new();
    for (number, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
        if let Some(last) = block.iter().rposition(|byte| *byte != 0) {
            packed.extend_from_slice(&(number as u32).to_le_bytes());
            packed.extend_from_slice(&(last as u16 + 1).to_le_bytes());
            packed.extend_from_slice(&block[..=last]);
        }
    }
    packed
}

fn unpack(mut packed: &[u8], image: &Path) {
    std::fs::create_dir_all(image.parent().unwrap()).unwrap();
    let file = File::create_new(image).unwrap();
    file.set_len(IMAGE_BYTES).unwrap();
    while let Some((head, rest)) = packed.split_first_chunk::<6>() {
        let [a, b, c, d, low, high] = *head;
        let (number, length) = (
            u32::from_le_bytes([a, b, c, d]),
            u16::from_le_bytes([low, high]),
        );
        let (block, rest) = rest.split_at(usize::from(length));
        let offset = u64::from(number) * BLOCK_BYTES as u64;
        file.write_all_at(block, offset).unwrap();
        packed = rest;
    }
}

/// Returns all damage of the log; a node does not report torn tails.
fn damage(image: &Path) -> Damage {
    let device = FileDevice::open(image, &FileDeviceOptions::default()).unwrap();
    let mut store = Store::open(device, &OpenOptions::default()).unwrap();
    let scanned = scan_log(&mut store, &mut |_| ControlFlow::Continue(())).unwrap();
    store.close().unwrap();
    scanned.damage
}

fn histories(node: &Node) -> Map<String, Value> {
    let history = |key: &str| node.json(&["history", key, "--json"]);
    KEYS.map(|key| (key.to_owned(), history(key)))
        .into_iter()
        .collect()
}

/// Whether `now` says at least what `then` said: later versions may say more.
fn says(now: &Value, then: &Value) -> bool {
    match (now, then) {
        (Value::Object(now), Value::Object(then)) => then
            .iter()
            .all(|(name, then)| now.get(name).is_some_and(|now| says(now, then))),
        (Value::Array(now), Value::Array(then)) => {
            now.len() == then.len() && now.iter().zip(then).all(|(now, then)| says(now, then))
        }
        _ => now == then,
    }
}

fn golden() -> (Vec<u8>, Map<String, Value>) {
    if std::env::var_os("GOLDEN_UPDATE").is_some() {
        let mut node = Node::prepare(SMALL);
        make(&mut node);
        std::fs::write(path("store-2.bin"), pack(&image(&node))).unwrap();
        node.restart();
        // A line for each key.
        let lines: Vec<_> = histories(&node)
            .iter()
            .map(|(key, readings)| format!("{}: {readings}", Value::from(key.as_str())))
            .collect();
        let text = format!("{{\n{}\n}}\n", lines.join(",\n"));
        std::fs::write(path("store-2.json"), text).unwrap();
    }
    let text = std::fs::read(path("store-2.json")).unwrap();
    (
        std::fs::read(path("store-2.bin")).unwrap(),
        serde_json::from_slice(&text).unwrap(),
    )
}

#[test]
fn a_store_of_format_2_is_read_whole_and_gone_on_with() {
    let (packed, then) = golden();
    let count = |key: &str| then[key].as_array().unwrap().len();
    assert_eq!(KEYS.map(count), [40, 40, 40, 12, 12, 12]);
    let mut node = Node::prepare(SMALL);
    // Look at a copy, because an open store is not left as it was.
    let copy = node.dir.file("copy.img");
    unpack(&packed, &copy);
    assert_eq!(damage(&copy), Damage::default());
    unpack(&packed, &image(&node));
    node.restart();
    let is_same = |node: &Node| {
        let now = histories(node);
        for key in KEYS {
            assert!(says(&now[key], &then[key]), "{key}: {}", now[key]);
        }
    };
    is_same(&node);
    let status = node.json_degraded(&["status", "--json"]);
    assert_eq!(status["keys"]["count"], 6, "{status}");
    for figure in [
        "records_damaged",
        "pieces_unreadable",
        "files_unreadable",
        "readings_missing",
    ] {
        assert_eq!(status["log"][figure], 0, "{status}");
    }
    // Its lifetime goes on, too: two starts of its own before this one.
    assert_eq!(status["lifetime"]["starts"], 3, "{status}");
    assert!(
        status["history"]["segments"].as_u64().unwrap() >= 3,
        "{status}"
    );
    // The latest values: by arrival where the node's clock gave a time, with the ones that a broker had retained.
    for (key, value) in [
        (KEYS[0], Value::from(14.25)),
        (KEYS[1], Value::from(14.5)),
        (
            KEYS[2],
            Value::from("it is open, said reading 59 of boot 1"),
        ),
        (KEYS[3], Value::from(5)),
        (KEYS[4], Value::from(u64::MAX - 1)),
        (KEYS[5], Value::from("run 1, line 5")),
    ] {
        assert_eq!(node.json(&["get", key, "--json"])["value"], value, "{key}");
    }
    // A reading more, and another start: everything is there.
    node.ok(&["put", "later", "7"]);
    is_same(&node);
    assert!(node.stop().success());
    node.restart();
    is_same(&node);
    assert_eq!(node.ok(&["get", "later"]), "7\n");
    // The keys of its lines stay what they are, although the configuration leaves `{tags}` to the store.
    let status = node.json_degraded(&["status", "--json"]);
    assert_eq!(status["keys"]["tags_form"], "values", "{status}");
    let note = status["keys"]["tags_note"].as_str().unwrap();
    for form in ["{values}", "{pairs}"] {
        assert!(
            note.contains(&format!("{{measurement}}/{form}/{{field}}")),
            "{note}"
        );
    }
    let mut stream = UnixStream::connect(node.dir.file("line.sock")).unwrap();
    stream.write_all(b"disk,path=sda1 used=9i\n\n").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    assert_eq!(answer, "ok 1 0\n");
    assert_eq!(node.json(&["get", KEYS[3], "--json"])["value"], 9);
    assert!(node.stop().success());
}
