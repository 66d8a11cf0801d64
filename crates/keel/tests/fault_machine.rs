//! A machine that has little left for the node: its memory is capped by a control group, or all processors are busy.

use crate::common::broker::Broker;
use crate::common::group::Group;
use crate::common::load::{self, Load, Rounds};
use crate::common::node::Node;
use crate::flash_common::sparse_file;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const IMAGE: &str = "keel-data/store.img";

/// Memory of the group. A debug build takes more than the 17 MiB of a released node.
const GROUP_BYTES: u64 = 64 << 20;

/// Bytes of a file that another program of the group reads.
const READ_BYTES: u64 = 2 * GROUP_BYTES;

/// Senders that leave a long line unfinished, and its bytes: just below `line_bytes_max`.
const SENDERS: usize = 16;
const LINE_BYTES: usize = 60_000;

#[test]
fn a_node_with_capped_memory_costs_no_reading() {
    let Some(group) = Group::with(GROUP_BYTES) else {
        return;
    };
    let mut node = Node::prepare(&load::config("create_mebibytes = 64\n", None));
    node.spawn();
    group.take(node.pid());
    node.wait_ready();
    let file = sparse_file(&node.dir, READ_BYTES);
    let load = Load::start(&node);
    let mut rounds = Rounds::of(3);
    while rounds.more() {
        fill(&group, &file);
        // The group is full: what the node keeps for its senders and answers must come from the pages of the file.
        let senders: Vec<UnixStream> = (0..SENDERS).map(|_| long_line(&node)).collect();
        for key in [load::LINES, load::PUTS] {
            node.run(&["history", key]);
        }
        node.ok(&["export", "--format", "line"]);
        rounds.pause(500);
        drop(senders);
    }
    let sent = load.end();
    // The same process from the beginning: its memory has been enough.
    let counted = load::counted(&node);
    let met = group.limit_met();
    let held = load::judge(&mut node, &sent, IMAGE, 0);
    assert_eq!(held, counted);
    println!("the limit was met {met} times");
    assert!(met > 0, "the limit was never met");
}

/// Lets a program in the group read a file. Its pages stay in the group until others need the memory.
fn fill(group: &Group, file: &str) {
    let mut reader = Command::new("cat")
        .args(["-", file])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // It reads the file after the end of its input, and by then is in the group.
    group.take(reader.id());
    drop(reader.stdin.take());
    assert!(reader.wait().unwrap().success());
}

fn long_line(node: &Node) -> UnixStream {
    let mut stream = UnixStream::connect(node.dir.file("line.sock")).unwrap();
    let line = format!("long v={}", "1".repeat(LINE_BYTES));
    stream.write_all(line.as_bytes()).unwrap();
    stream
}

/// Threads that compute, until this is dropped.
struct Busy(Arc<AtomicBool>);

impl Busy {
    /// Two for each processor, at the priority of the node.
    fn start() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let processors = std::thread::available_parallelism().unwrap().get();
        for _ in 0..2 * processors {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self(is_over)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_node_beside_busy_processors_costs_no_reading() {
    let broker = Broker::start();
    let port = broker.as_ref().map(|broker| broker.port);
    let mut node = Node::start(&load::config("create_mebibytes = 64\n", port));
    let busy = Busy::start();
    let mut load = Load::start(&node);
    if let Some(port) = port {
        load::wait_subscribed(&node, 0);
        load = load.publish_to(port);
    }
    let mut rounds = Rounds::of(3);
    while rounds.more() {
        rounds.pause(1_000);
    }
    let sent = load.end();
    load::wait_published(&node, &sent);
    drop(broker);
    let counted = load::counted(&node);
    // The node is also killed, and starts, while all processors are busy.
    let held = load::judge(&mut node, &sent, IMAGE, 0);
    drop(busy);
    assert_eq!(held, counted);
}
