//! A full disk: the file system beside the image of the store, and the device that is the store. Both are small loop
//! devices.

use crate::common::TempDir;
use crate::common::load::{self, END_TIME, Load, Record, Rounds, Sent};
use crate::common::namespace::{in_own_mounts, tool};
use crate::common::node::Node;
use crate::common::wait_until;
use crate::flash_common::{Loop, sparse_file};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

#[test]
fn a_file_system_that_fills_up_beside_the_store_costs_no_reading() {
    if let Err(reason) = in_own_mounts(beside) {
        println!("skipped: {reason}");
    }
}

fn beside() {
    let dir = TempDir::new();
    let card = dir.file("card");
    std::fs::create_dir(&card).unwrap();
    let device = sparse_file(&dir, 48 << 20);
    let place = card.to_str().unwrap();
    // The loop device lives as long as the mount, and the mount at most as long as the namespace.
    let mounted = tool("mkfs.ext4", &["-q", "-F", &device])
        .and_then(|_| tool("mount", &["-o", "loop", &device, place]));
    if let Err(reason) = mounted {
        println!("skipped: {reason}");
        return;
    }
    let _mounted = Mounted(place);
    let config = |image: &Path| {
        let store = format!("image = \"{}\"\ncreate_mebibytes = 16\n", image.display());
        load::config(&store, None)
    };
    let (image, another) = (card.join("store.img"), card.join("another.img"));
    let mut node = Node::start(&config(&image));
    let load = Load::start(&node);
    let mut rounds = Rounds::of(3);
    while rounds.more() {
        rounds.pause(300);
        fill(&card.join("filling"));
        rounds.pause(500);
        node.kill();
        node.restart();
        rounds.pause(500);
        std::fs::remove_file(card.join("filling")).unwrap();
    }
    // A store that finds no room is not made, and leaves nothing behind.
    fill(&card.join("filling"));
    let mut late = Node::prepare(&config(&another));
    late.spawn();
    assert!(!late.ended().success());
    let left = std::fs::read_dir(&card).unwrap();
    let left = left.filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().starts_with("another")
    });
    assert_eq!(left.count(), 0);
    let sent = load.end();
    load::judge(&mut node, &sent, image.to_str().unwrap(), 0);
}

/// A mount; unmounted when this is dropped.
struct Mounted<'t>(&'t str);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(self.0).status().ok();
    }
}

/// Writes a file until the file system has no room left.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    let bytes = [1; 4096];
    let error = loop {
        if let Err(error) = file.write_all(&bytes) {
            break error;
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
}

/// Texts in one batch.
const BATCH: u64 = 32;

#[test]
fn a_device_full_of_readings_loses_what_retention_counts_and_nothing_else() {
    let dir = TempDir::new();
    // The store is made in a file, which then is a device.
    let small = "[keys]\nkeys_max = 16\nvalue_bytes_max = 8192\n";
    let config = |image: &str, history: u32| {
        let store = format!(
            "image = \"{image}\"\ncreate_mebibytes = 16\nhistory_mebibytes_max = {history}\n"
        );
        load::config(&store, None) + small
    };
    let content = dir.file("content").display().to_string();
    let mut node = Node::start(&config(&content, 0));
    assert!(node.stop().success());
    let Some(device) = Loop::attach(&content, &[]) else {
        return;
    };
    // The note of its holder lies beside the link, not in `/dev`.
    let link = dir.file("store.img");
    std::os::unix::fs::symlink(&device.path, &link).unwrap();
    let image = link.display().to_string();
    // More than the store: then it takes no readings instead of deleting the oldest.
    let (all, few) = (config(&image, 1_000), config(&image, 4));
    let mut node = Node::start(&all);
    let load = Load::start(&node);
    let lines = node.dir.file("line.sock");
    let filler = Filler::start(&lines, Record::default());
    wait_until("a full store", || {
        load::status(&node)["store"]["full"] == true
    });
    // A full store recovers, and is still full.
    node.kill();
    let texts = filler.end();
    node.restart();
    let filler = Filler::start(&lines, texts);
    wait_until("the store that is full again", || {
        load::status(&node)["store"]["full"] == true
    });
    filler.stop.store(true, Ordering::Relaxed);
    reload(&node, &few);
    // Its last texts have waited for room.
    let texts = filler.end();
    wait_until("room", || load::status(&node)["store"]["full"] == false);
    // From here on nothing expires, so the count does not change any more.
    reload(&node, &all);
    let before = load::status(&node)["log"]["readings_durable"].clone();
    wait_until("new readings", || {
        load::status(&node)["log"]["readings_durable"].as_u64() > before.as_u64()
    });
    let mut sent = load.end();
    // Most of what expires are texts.
    sent.push(Sent::filled(texts));
    let found = load::status(&node);
    let expired = found["history"]["readings_expired"].as_u64().unwrap();
    assert!(expired > 0, "{found}");
    assert_eq!(found["history"]["readings_dropped"], 0, "{found}");
    load::judge(&mut node, &sent, &image, expired);
}

/// Sends texts until it is told to stop, or the node ends. While the store is full, it waits for an acknowledgement.
struct Filler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Record>>,
}

impl Filler {
    /// Goes on behind what was acknowledged in an earlier life of the node.
    fn start(path: &Path, record: Record) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(END_TIME)).unwrap();
        stream.set_write_timeout(Some(END_TIME)).unwrap();
        Self {
            stop,
            thread: Some(std::thread::spawn(move || {
                fill_store(stream, record, &theirs)
            })),
        }
    }

    /// Waits for its last answer, or the end of its connection. Returns what it has sent in all lives.
    fn end(mut self) -> Record {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn fill_store(mut stream: UnixStream, mut record: Record, stop: &AtomicBool) -> Record {
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    while !stop.load(Ordering::Relaxed) {
        let last = record.acknowledged + BATCH;
        let mut batch = String::new();
        for number in record.acknowledged + 1..=last {
            batch.push_str(&format!("{} t=\"{}\"\n", load::TEXTS, load::text(number)));
        }
        batch.push('\n');
        record.offered = record.offered.max(last);
        let mut answer = String::new();
        let sent = stream.write_all(batch.as_bytes());
        let answered = sent.and_then(|()| answers.read_line(&mut answer));
        if answered.is_err() || !answer.ends_with('\n') {
            return record;
        }
        assert_eq!(answer, format!("ok {BATCH} 0\n"));
        record.acknowledged = last;
    }
    record
}

/// Gives the node another configuration.
fn reload(node: &Node, config: &str) {
    std::fs::write(node.dir.file("keel.toml"), config).unwrap();
    let applied = || {
        node.log()
            .matches(" reload: applied: store.history_mebibytes_max")
            .count()
    };
    let before = applied();
    node.signal(libc::SIGHUP);
    wait_until("the other configuration", || applied() > before);
}
