//! The node is killed with SIGKILL repeatedly, under load from all sources. Afterwards, nothing that it or the broker
//! has acknowledged may be missing or altered.
//!
//! `KEEL_KILL_SEED` and `KEEL_KILLS` select other random moments, and more of them. With `KEEL_READY_MS_MAX` each start
//! after a kill must be ready within this time.

use crate::common::broker::Broker;
use crate::common::load::{self, Load, Random, environment};
use crate::common::node::Node;
use std::time::{Duration, Instant};

/// Number of kills in one run.
const KILLS: u64 = 50;

/// Maximum lifetime after the node is ready, in µs.
const LIFE_US_MAX: u64 = 700_000;

/// Maximum lifetime of a node that is killed during its start, in µs.
const START_US_MAX: u64 = 60_000;

/// Every fifth kill, unless it is during a start, finds a node whose commits are suspended for this time.
const SUSPENDED_EVERY: u64 = 5;
const SUSPENDED: Duration = Duration::from_millis(200);

/// Suspends the node's commits for a while, then kills the node. What it acknowledges meanwhile is not durable, so a
/// premature acknowledgement is found however fast the disk is.
fn kill_without_commits(node: &mut Node) {
    let commits = thread(node.pid(), "db-commit");
    let seized = trace(libc::PTRACE_SEIZE, commits);
    if let Err(error) = seized.and_then(|()| trace(libc::PTRACE_INTERRUPT, commits)) {
        println!("skipped: a kill while commits are suspended, since ptrace fails: {error}");
    }
    std::thread::sleep(SUSPENDED);
    node.signal(libc::SIGKILL);
    // The process cannot be waited for before its traced thread has been.
    let mut status = 0;
    // SAFETY: `status` lives until the call returns.
    while unsafe { libc::waitpid(commits, &mut status, libc::__WALL) } == commits {}
    node.ended();
}

/// Returns the ID of the process's thread that has this name.
fn thread(process: u32, name: &str) -> libc::pid_t {
    let mut threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let found = threads.find_map(|thread| {
        let thread = thread.unwrap();
        // Threads of connections may end at any time, and their files with them.
        let its_name = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        (its_name.trim() == name).then(|| thread.file_name().into_string().unwrap())
    });
    found.expect(name).parse().unwrap()
}

fn trace(request: libc::c_uint, thread: libc::pid_t) -> std::io::Result<()> {
    // SAFETY: both requests take no data, and the thread belongs to a child of this process.
    match unsafe { libc::ptrace(request, thread, 0, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[test]
fn acknowledged_readings_outlive_a_killed_node() {
    let seed = environment("KEEL_KILL_SEED", 1);
    let kills = environment("KEEL_KILLS", KILLS);
    let mut random = Random(seed);
    let broker = Broker::start();
    let port = broker.as_ref().map(|broker| broker.port);
    let mut node = Node::start(&load::config("create_mebibytes = 64\n", port));
    let mut load = Load::start(&node);
    if let Some(port) = port {
        // From now on the broker keeps accepted messages for this node.
        load::wait_subscribed(&node, 0);
        load = load.publish_to(port);
    }
    let (mut in_start, mut suspended) = (0, 0);
    let mut longest = Duration::ZERO;
    let mut is_ready = true;
    for kill in 0..kills {
        let life_us = if is_ready {
            random.below(LIFE_US_MAX)
        } else {
            in_start += 1;
            random.below(START_US_MAX)
        };
        std::thread::sleep(Duration::from_micros(life_us));
        if is_ready && kill % SUSPENDED_EVERY == 0 {
            suspended += 1;
            kill_without_commits(&mut node);
        } else {
            node.kill();
        }
        // Every third life ends before the node may have become ready.
        is_ready = random.below(3) > 0;
        let begun = Instant::now();
        node.spawn();
        if is_ready {
            node.wait_ready();
            longest = longest.max(begun.elapsed());
        }
    }
    if !is_ready {
        node.kill();
        node.restart();
    }
    // A last life without a kill, so that each source can finish.
    std::thread::sleep(Duration::from_micros(LIFE_US_MAX));
    let sent = load.end();
    for source in &sent {
        assert!(source.record.acknowledged > kills, "{source:?}");
        assert_eq!(source.record.failed, 0, "{source:?}");
    }
    load::wait_published(&node, &sent);
    // Compare after another restart, to check the stored data instead of memory.
    load::judge(&mut node, &sent, "keel-data/store.img", 0);
    println!(
        "seed {seed}, {kills} kills ({in_start} during a start, {suspended} without commits), the longest start {} ms",
        longest.as_millis()
    );
    let ready_ms_max = u128::from(environment("KEEL_READY_MS_MAX", u64::MAX));
    assert!(longest.as_millis() <= ready_ms_max, "{longest:?}");
}
