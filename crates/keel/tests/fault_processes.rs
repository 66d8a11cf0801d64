//! Every process of a node is stopped for a while or killed at random moments. These are the node itself, its programs,
//! the mount with its guard, and the ranks of a job. All of them come back, and no reading is missing.

use crate::common::load::{self, Load, Rounds};
use crate::common::namespace::in_own_mounts;
use crate::common::node::Node;
use crate::common::{TempDir, wait_until};
use crate::stream_common::{Server, cannot_mount, publish};
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Longest time for which a process is stopped, in ms.
const STOP_MS_MAX: u64 = 300;

/// Of 100 faults, those of the node itself.
const OF_NODE: u64 = 25;

/// Programs that stay and that are started anew, and a job. `KEEL` stands for the program under test.
const PROGRAMS: &str = r#"
[[task]]
name = "beat"
command = ["./beat.sh"]
restart_ms_min = 10
restart_ms_max = 200
restarts_max = 0
[[task]]
name = "pulse"
command = ["sh", "-c", "KEEL put task/pulse 1 --node $KEEL_NODE"]
start = "each-period"
period_ms = 200
[[job]]
name = "bearing"
kernel = "vibration"
key = "pump"
out = "bearing.json"
period_seconds = 1
run_seconds_max = 60
deadline_seconds = 600
window = 64
ranks = 2
"#;

const BEAT: &str = "#!/bin/sh\nwhile :; do\n    n=$((n + 1))\n    \
    KEEL put task/beat \"$n\" --node \"$KEEL_NODE\"\n    sleep 0.1\ndone\n";

/// A process that is stopped until this is dropped.
struct Stopped(libc::pid_t);

impl Stopped {
    fn new(process: libc::pid_t) -> Self {
        send(process, libc::SIGSTOP);
        Self(process)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        send(self.0, libc::SIGCONT);
    }
}

fn send(process: libc::pid_t, signal: libc::c_int) {
    // SAFETY: a plain system call; the process is the node of this test, or was found among what it has started.
    unsafe { libc::kill(process, signal) };
}

/// Returns the processes that a process has started, and what these have started, with their names.
fn descendants(of: libc::pid_t) -> Vec<(libc::pid_t, String)> {
    let mut children: BTreeMap<libc::pid_t, Vec<(libc::pid_t, String)>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if let Some((process, name, parent)) = parse(&stat) {
            children.entry(parent).or_default().push((process, name));
        }
    }
    let mut found = children.remove(&of).unwrap_or_default();
    let mut at = 0;
    while at < found.len() {
        found.extend(children.remove(&found[at].0).unwrap_or_default());
        at += 1;
    }
    found
}

/// Returns number, name and parent from `/proc/NUMBER/stat`: `7 (a name) S 1 …`. What has ended is left out.
fn parse(stat: &str) -> Option<(libc::pid_t, String, libc::pid_t)> {
    let (process, rest) = stat.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (state != "Z").then_some((process.parse().ok()?, name.to_owned(), parent))
}

fn executable(path: &Path, text: &str) {
    let text = text.replace("KEEL ", &format!("{} ", env!("CARGO_BIN_EXE_keel")));
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn each_process_of_a_node_may_be_stopped_and_killed() {
    if cannot_mount() {
        run(None);
        return;
    }
    let dir = TempDir::new();
    std::fs::create_dir_all(dir.file("tree/bin")).unwrap();
    executable(&dir.file("tree/bin/plant"), "#!/bin/sh\nexec sleep 1000\n");
    let server = Server::start(&publish(&dir), &[]);
    if let Err(reason) = in_own_mounts(|| run(Some(&server))) {
        println!("skipped: {reason}");
    }
}

fn run(server: Option<&Server>) {
    let mount = server.map_or(String::new(), |server| {
        format!(
            "[[mount]]\nname = \"plant\"\nserver = \"{}\"\ndirectory = \"keel-data/plant\"\ninsecure = true\n\
             cache = \"plant-cache\"\n[[task]]\nname = \"plant\"\ncommand = [\"bin/plant\"]\nmount = \"plant\"\n\
             restart_ms_min = 10\nrestart_ms_max = 200\nrestarts_max = 0\n",
            server.address
        )
    });
    let programs = PROGRAMS.replace("KEEL ", &format!("{} ", env!("CARGO_BIN_EXE_keel")));
    let config = load::config("create_mebibytes = 64\n", None) + &programs + &mount;
    let mut node = Node::prepare(&config);
    executable(&node.dir.file("beat.sh"), BEAT);
    node.restart();
    crate::periodic::feed(&node, 600);
    let load = Load::start(&node);
    wait_until("all of its processes", || all_run(&load::status(&node), 0));
    let mut faults: BTreeMap<String, [u64; 2]> = BTreeMap::new();
    let mut rounds = Rounds::of(20);
    while rounds.more() {
        rounds.pause(150);
        let started = descendants(node.pid() as libc::pid_t);
        let is_node = rounds.random.below(100) < OF_NODE || started.is_empty();
        let (process, name) = if is_node {
            (node.pid() as libc::pid_t, "the node".to_owned())
        } else {
            started[rounds.random.below(started.len() as u64) as usize].clone()
        };
        let kills = rounds.random.below(2) == 0;
        faults.entry(name).or_default()[usize::from(kills)] += 1;
        if !kills {
            let stopped = Stopped::new(process);
            rounds.pause(STOP_MS_MAX);
            drop(stopped);
        } else if is_node {
            node.kill();
            node.restart();
        } else {
            send(process, libc::SIGKILL);
        }
    }
    let runs = load::status(&node)["jobs"][0]["runs"].as_u64().unwrap();
    wait_until("all of its processes again", || {
        all_run(&load::status(&node), runs)
    });
    let sent = load.end();
    assert!(node.stop().success());
    node.restart();
    load::judge(&mut node, &sent, "keel-data/store.img", 0);
    println!("stopped and killed: {faults:?}");
}

/// Whether each program runs, the tree is mounted, and a job has succeeded after this number of runs.
fn all_run(status: &Value, runs: u64) -> bool {
    let tasks = status["tasks"].as_array().unwrap();
    let mounts = status["mounts"].as_array().unwrap();
    let job = &status["jobs"][0];
    tasks.iter().all(|task| {
        let is_periodic = task["start"] == "each-period";
        task["state"] == "running" || (is_periodic && task["state"] == "between_runs")
    }) && mounts.iter().all(|mount| mount["mounted"] == true)
        && job["runs"].as_u64() > Some(runs)
        && job["running"] == false
        && job["failing"] == false
}
