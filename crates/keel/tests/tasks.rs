//! Programs that the node keeps running, tested with real ones: ended, restarted, given up, and ended with the node.
//! One of them runs from a mount through FUSE if that is permitted.

use crate::common::node::{Node, SMALL};
use crate::common::{TempDir, wait_until};
use crate::stream_common::{Server, cannot_mount, publish};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns a node with these tasks and a small store.
fn node(tasks: &str) -> Node {
    Node::start(&format!("{SMALL}{tasks}"))
}

fn status(node: &Node) -> Value {
    node.json_degraded(&["status", "--json", "--node", "keel-data/keel.sock"])
}

fn task(node: &Node, name: &str) -> Value {
    let status = status(node);
    let all = status["tasks"].as_array().unwrap().clone();
    let found = all.into_iter().find(|task| task["name"] == name);
    found.unwrap_or_else(|| panic!("{status}"))
}

fn has_reason(node: &Node, code: &str) -> bool {
    let status = status(node);
    let reasons = status["reasons"].as_array().unwrap();
    reasons.iter().any(|reason| reason["code"] == code)
}

fn process(node: &Node, name: &str) -> i32 {
    let mut found = None;
    wait_until("the process", || {
        let task = task(node, name);
        found = task["process"]
            .as_i64()
            .filter(|_| task["state"] == "running");
        found.is_some()
    });
    found.unwrap() as i32
}

fn kill(process: i32, signal: libc::c_int) {
    // SAFETY: a plain system call; a node of this test has started the process and not waited for it.
    unsafe { libc::kill(process, signal) };
}

fn is_alive(process: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/stat"));
    status.is_ok_and(|text| !text.rsplit(')').next().unwrap_or("").starts_with(" Z"))
}

fn read(node: &Node, name: &str) -> String {
    fs::read_to_string(node.dir.file(name)).unwrap_or_default()
}

#[test]
fn a_program_that_ends_is_started_again_and_counted() {
    let mut node = Node::prepare(&format!(
        "{SMALL}{}",
        r#"
[[task]]
name = "valve"
command = ["./valve.sh"]
restart_ms_min = 20
restart_ms_max = 200
restarts_max = 0
period_ms = 100
deadline_ms = 50.5
cores = [0]
"#
    ));
    // Records its environment, one line for each start, and a child process.
    let program = "#!/bin/sh\n\
                   echo $KEEL_NODE $KEEL_TASK $KEEL_PERIOD_MS $KEEL_DEADLINE_MS $KEEL_REGION > told\n\
                   echo here >> lives\n\
                   sleep 1000\n";
    executable(&node.dir.file("valve.sh"), program);
    node.restart();
    let first = process(&node, "valve");
    wait_until("its file", || read(&node, "told").ends_with('\n'));
    let socket = node
        .dir
        .path()
        .canonicalize()
        .unwrap()
        .join("keel-data/keel.sock");
    // The path of the test's folder may contain a symbolic link.
    let told = read(&node, "told");
    let (told_socket, rest) = told.split_once(' ').unwrap();
    assert_eq!(Path::new(told_socket).canonicalize().unwrap(), socket);
    assert_eq!(rest, "valve 100 50.5\n");
    let before = task(&node, "valve");
    assert_eq!(
        (&before["failed"], &before["failing"]),
        (&0.into(), &false.into()),
        "{before}"
    );
    assert_eq!(before["cores_refused"], false, "{before}");
    let allowed = fs::read_to_string(format!("/proc/{first}/status")).unwrap();
    assert!(allowed.contains("\nCpus_allowed_list:\t0\n"), "{allowed}");
    // The node declares the task because the program does not, and reports that its instances are not observed.
    wait_until("the declaration", || {
        task(&node, "valve")["declared_by"] == "node"
    });
    let tasks = status(&node)["qos"]["tasks"].clone();
    assert_eq!(tasks[0]["name"], "valve", "{tasks}");
    assert_eq!(
        (
            tasks[0]["period_us"].as_f64(),
            tasks[0]["deadline_us"].as_f64()
        ),
        (Some(100_000.0), Some(50_500.0)),
        "{tasks}"
    );
    kill(first, libc::SIGKILL);
    let mut second = first;
    wait_until("another process", || {
        second = process(&node, "valve");
        second != first
    });
    let after = task(&node, "valve");
    assert_eq!(
        (&after["failed"], &after["starts"], &after["restarts"]),
        (&1.into(), &2.into(), &1.into())
    );
    assert_eq!(after["last_error"], "was ended by signal 9");
    // The children of the killed program end with it.
    wait_until("the end of the first one's child", || {
        let list = Command::new("pgrep")
            .args(["-g", &first.to_string()])
            .output();
        list.map_or(true, |list| list.stdout.is_empty())
    });
    wait_until("that it is well again", || {
        task(&node, "valve")["failing"] == false
    });
    assert!(!has_reason(&node, "task_failing"));
    assert_eq!(read(&node, "lives"), "here\nhere\n");
    let text = node
        .run(&["status", "--node", "keel-data/keel.sock"])
        .stdout;
    let text = String::from_utf8(text).unwrap();
    let line = text.lines().find(|line| line.starts_with("task ")).unwrap();
    assert!(
        line.contains("valve: process ")
            && line.contains(", every 100 ms, deadline 50.5 ms, core 0; 2 starts, 1 failed"),
        "{line}"
    );
    // Stopped instead of killed: otherwise the program's child would not be ended.
    assert!(node.stop().success());
}

#[test]
fn a_program_that_ends_again_and_again_is_given_up_until_the_configuration_is_read_again() {
    let config = r#"
[[task]]
name = "broken"
command = ["sh", "-c", "echo out of oil; exit 7"]
restart_ms_min = 10
restart_ms_max = 60000
restarts_max = 3
[[task]]
name = "missing"
command = ["./nowhere/program"]
restart_ms_min = 10
restart_ms_max = 60000
restarts_max = 1
"#;
    let mut node = node(config);
    wait_until("that it is given up", || {
        task(&node, "broken")["state"] == "given_up"
    });
    let found = task(&node, "broken");
    assert_eq!(
        (&found["starts"], &found["failed"], &found["restarts"]),
        (&4.into(), &4.into(), &3.into())
    );
    assert_eq!(
        found["last_error"],
        "ended with exit status 7; its last line: out of oil"
    );
    assert_eq!(found["output_lines"], 4);
    wait_until("that the other is, too", || {
        task(&node, "missing")["state"] == "given_up"
    });
    let missing = task(&node, "missing")["last_error"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        missing.starts_with("./nowhere/program cannot be started: "),
        "{missing}"
    );
    assert!(has_reason(&node, "task_failing"));
    let output = node.run(&["status", "--node", "keel-data/keel.sock"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("GIVEN UP") && text.contains("after 3 restarts"),
        "{text}"
    );
    assert!(
        node.log().contains(" task: broken: out of oil"),
        "{}",
        node.log()
    );
    // A corrected task is started with the next reload; the other one is tried again unchanged.
    let mended = config.replace("echo out of oil; exit 7", "exec sleep 1000");
    fs::write(node.dir.file("keel.toml"), format!("{SMALL}{mended}")).unwrap();
    node.signal(libc::SIGHUP);
    process(&node, "broken");
    wait_until("that it is given up again", || {
        let found = task(&node, "missing");
        found["starts"].as_u64() > Some(2) && found["state"] == "given_up"
    });
    assert!(
        node.log()
            .contains("applied: task; needs a restart: nothing"),
        "{}",
        node.log()
    );
    // When a task is removed from the configuration, its process ends.
    let mended_process = process(&node, "broken");
    fs::write(node.dir.file("keel.toml"), SMALL).unwrap();
    node.signal(libc::SIGHUP);
    wait_until("the end of the task", || !is_alive(mended_process));
    assert_eq!(status(&node)["tasks"], Value::Array(Vec::new()));
    assert!(node.stop().success());
}

#[test]
fn a_program_that_comes_back_while_it_still_ends_does_not_run_twice() {
    let task = r#"
[[task]]
name = "valve"
command = ["sh", "-c", "trap 'sleep 1; echo end >> steps; exit' TERM; echo begin >> steps; while :; do sleep .1; done"]
"#;
    let mut node = node(task);
    let begun = |node: &Node| read(node, "steps").matches("begin").count();
    wait_until("the program", || begun(&node) == 1);
    for config in ["", task] {
        fs::write(node.dir.file("keel.toml"), format!("{SMALL}{config}")).unwrap();
        let applied = node.log().matches("applied: task").count();
        node.signal(libc::SIGHUP);
        wait_until("that it is applied", || {
            node.log().matches("applied: task").count() > applied
        });
    }
    wait_until("that it runs again", || begun(&node) == 2);
    let steps = read(&node, "steps");
    assert_eq!(steps, "begin\nend\nbegin\n", "{}", node.log());
    assert!(node.stop().success());
}

#[test]
fn programs_end_with_the_node_however_it_ends() {
    let tasks = r#"
[[task]]
name = "polite"
command = ["sh", "-c", "trap 'echo bye > bye; exit 0' TERM; echo ready; while true; do sleep 0.05; done"]
[[task]]
name = "deaf"
command = ["sh", "-c", "trap '' TERM; while true; do sleep 0.05; done"]
"#;
    let mut node = node(tasks);
    let (polite, deaf) = (process(&node, "polite"), process(&node, "deaf"));
    wait_until("its trap", || node.log().contains("polite: ready"));
    assert!(node.stop().success());
    assert_eq!(read(&node, "bye"), "bye\n");
    assert!(!is_alive(polite) && !is_alive(deaf));
    // A killed node cannot end its programs; the kernel signals them.
    let tasks = r#"
[[task]]
name = "plain"
command = ["sleep", "1000"]
"#;
    fs::write(node.dir.file("keel.toml"), format!("{SMALL}{tasks}")).unwrap();
    node.restart();
    let plain = process(&node, "plain");
    node.kill();
    wait_until("the end of the program", || !is_alive(plain));
}

/// A program that ignores the kernel's signal, and a child process that its program has left behind.
#[test]
fn programs_of_a_killed_node_are_ended_by_the_next_start() {
    let mut node = node(
        r#"
[[task]]
name = "deaf"
command = ["sh", "-c", "trap '' TERM; echo $KEEL_STORE > store; echo ready; for n in $(seq 6000); do sleep 0.05; done"]
[[task]]
name = "pair"
command = ["sh", "-c", "sleep 1000 & echo $! > child; echo ready; wait"]
"#,
    );
    for ready in ["deaf: ready", "pair: ready"] {
        wait_until(ready, || node.log().contains(ready));
    }
    let deaf = process(&node, "deaf");
    let child: i32 = read(&node, "child").trim().parse().unwrap();
    // Processes of a node with another store, which may have had the same socket; and one of no node.
    let stranger = |store: &str, task: &str| {
        let mut command = Command::new("sleep");
        command.arg("100").env("KEEL_NODE", node.socket());
        command.env("KEEL_STORE", store).env_remove("KEEL_TASK");
        // Processes of the node's own group would be spared anyway.
        command.process_group(0);
        if !task.is_empty() {
            command.env("KEEL_TASK", task);
        }
        command.spawn().unwrap()
    };
    let store = read(&node, "store");
    let store = store.trim();
    let (identity, file) = store.split_once('-').unwrap();
    let mut strangers = [
        stranger(&format!("0123456789abcdef0123456789abcdef-{file}"), "deaf"),
        // A copy of the store.
        stranger(&format!("{identity}-1-2"), "deaf"),
        stranger(store, ""),
    ];
    node.kill();
    assert!(is_alive(deaf) && is_alive(child));
    node.restart();
    wait_until("other programs", || process(&node, "deaf") != deaf);
    assert!(!is_alive(deaf) && !is_alive(child));
    for stranger in &mut strangers {
        assert!(stranger.try_wait().unwrap().is_none());
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }
    let log = node.log();
    for left in [
        format!("deaf (process {deaf})"),
        format!("pair (process {child})"),
    ] {
        assert!(log.contains(&left), "{left}: {log}");
    }
    node.stop();
}

#[test]
fn a_flood_of_output_is_counted_and_does_not_hide_the_log() {
    let node = node(
        r#"
[[task]]
name = "flood"
command = ["sh", "-c", "seq -f 'line %g' 0 2999; echo over > over; exec sleep 1000"]
"#,
    );
    wait_until("its end", || !read(&node, "over").is_empty());
    wait_until("all lines", || task(&node, "flood")["output_lines"] == 3000);
    let left_out = task(&node, "flood")["output_lines_left_out"]
        .as_u64()
        .unwrap();
    let said = node.log().matches(" task: flood: line ").count() as u64;
    assert!(said <= 40 && said > 0, "{said}");
    assert!(left_out >= 2_900, "{left_out}");
}

#[test]
fn a_program_that_is_started_at_each_period_is_declared_and_reported_by_the_node() {
    let node = node(
        r#"
[[task]]
name = "quick"
command = ["sh", "-c", "echo run >> runs"]
start = "each-period"
period_ms = 100
deadline_ms = 3600000
[[task]]
name = "late"
command = ["sh", "-c", "sleep 0.3"]
start = "each-period"
period_ms = 100
deadline_ms = 1
[[task]]
name = "failing"
command = ["sh", "-c", "echo no sensor >&2; exit 3"]
start = "each-period"
period_ms = 50
[[task]]
name = "hanging"
command = ["sleep", "1000"]
start = "each-period"
period_ms = 50
run_ms_max = 100
"#,
    );
    wait_until("ten runs", || read(&node, "runs").lines().count() >= 10);
    wait_until("late runs", || {
        task(&node, "late")["late"].as_u64() >= Some(3)
    });
    let late = task(&node, "late");
    assert_eq!(late["declared_by"], "node");
    assert!(late["releases_missed"].as_u64() >= Some(3), "{late}");
    assert_eq!(late["failed"], 0, "{late}");
    wait_until("failed runs", || {
        task(&node, "failing")["failed"].as_u64() >= Some(3)
    });
    let failing = task(&node, "failing");
    let why = "a run ended with exit status 3; its last line: no sensor";
    assert_eq!(failing["last_error"], why, "{failing}");
    assert!(has_reason(&node, "task_failing"));
    assert_eq!(
        node.log().matches("failing failed: ").count(),
        1,
        "{}",
        node.log()
    );
    wait_until("runs that were ended", || {
        task(&node, "hanging")["failed"].as_u64() >= Some(2)
    });
    let hanging = task(&node, "hanging")["last_error"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(hanging.contains("did not end within 100 ms"), "{hanging}");
    let of = |name: &str| {
        let tasks = status(&node)["qos"]["tasks"].as_array().unwrap().clone();
        tasks.into_iter().find(|task| task["name"] == name).unwrap()
    };
    wait_until("its instances", || {
        of("quick")["instances"].as_u64() >= Some(5)
    });
    assert_eq!(of("quick")["deadline_misses"], 0);
    wait_until("the other's", || {
        of("late")["instances"].as_u64() >= Some(3)
    });
    let late = of("late");
    assert_eq!(late["instances"], late["deadline_misses"], "{late}");
}

/// Returns the path of an example in cargo's output when all tests of this crate are built.
fn example() -> PathBuf {
    let programs = Path::new(env!("CARGO_BIN_EXE_keel")).parent().unwrap();
    let example = programs.join("examples/valve");
    assert!(
        example.exists(),
        "cargo build -p keel --example valve makes it"
    );
    example
}

#[test]
fn a_program_with_libkeel_declares_its_own_task() {
    let tasks = format!(
        "{SMALL}
[[task]]
name = \"valve\"
command = [\"{}\", \"keel-data/keel.sock\", \"1000000\"]
period_ms = 20
deadline_ms = 10
",
        example().display()
    );
    let mut node = Node::prepare(SMALL);
    node.restart();
    // The program requires keys that have values.
    node.ok(&[
        "put",
        "boiler/celsius",
        "60",
        "--node",
        "keel-data/keel.sock",
    ]);
    node.ok(&["put", "boiler/valve", "0", "--node", "keel-data/keel.sock"]);
    fs::write(node.dir.file("keel.toml"), tasks).unwrap();
    node.signal(libc::SIGHUP);
    wait_until("the declaration", || {
        let tasks = status(&node)["tasks"].clone();
        tasks[0]["declared_by"] == "program"
    });
    let qos = status(&node)["qos"]["tasks"].clone();
    assert_eq!(qos.as_array().unwrap().len(), 1, "{qos}");
    let process = process(&node, "valve");
    assert_eq!(qos[0]["process"].as_i64(), Some(i64::from(process)));
}

fn executable(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Creates a tree with a shell program.
fn plant(dir: &TempDir) {
    let bin = dir.file("tree/bin");
    fs::create_dir_all(&bin).unwrap();
    let program = "#!/bin/sh\necho from the mount as $0\nexec sleep 1000\n";
    executable(&bin.join("plant"), program);
}

#[test]
fn a_program_comes_from_a_mount_that_the_node_keeps() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    plant(&dir);
    let store = publish(&dir);
    let mut server = Server::start(&store, &[]);
    let config = format!(
        r#"{SMALL}
[[mount]]
name = "plant"
server = "{}"
directory = "keel-data/plant"
insecure = true
cache = "plant-cache"
[[task]]
name = "plant"
command = ["bin/plant"]
mount = "plant"
restart_ms_min = 10
restart_ms_max = 50
restarts_max = 0
"#,
        server.address
    );
    let mut node = Node::start(&config);
    let first = process(&node, "plant");
    wait_until("its word", || {
        node.log().contains("plant: from the mount as ")
    });
    let mount = status(&node)["mounts"][0].clone();
    assert_eq!(
        (&mount["mounted"], &mount["failed"]),
        (&true.into(), &0.into()),
        "{mount}"
    );
    // The status has the mount's own figures, which are not in the log.
    wait_until("figures of the mount", || {
        let mount = status(&node)["mounts"][0].clone();
        mount["connections"] == 1 && mount["reads"].as_u64() > Some(0)
    });
    assert!(!node.log().contains("reads_local"), "{}", node.log());
    // If the mount dies, it is restored, and then the program.
    kill(mount["process"].as_i64().unwrap() as i32, libc::SIGKILL);
    wait_until("the failure", || status(&node)["mounts"][0]["failed"] == 1);
    kill(first, libc::SIGKILL);
    wait_until("another process", || process(&node, "plant") != first);
    let mount = status(&node)["mounts"][0].clone();
    assert_eq!(
        (&mount["mounted"], &mount["starts"]),
        (&true.into(), &2.into()),
        "{mount}"
    );
    assert!(node.stop().success());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(
        !mounts.contains(&node.dir.path().display().to_string()),
        "{mounts}"
    );
    // Without a network the program comes from the cache; without cache and network the task waits, and reports it.
    server.kill();
    node.restart();
    process(&node, "plant");
    wait_until("the reason", || has_reason(&node, "mount_disconnected"));
    assert!(node.stop().success());
    fs::remove_dir_all(node.dir.file("plant-cache")).unwrap();
    node.restart();
    wait_until("the reason", || has_reason(&node, "mount_failing"));
    let found = status(&node);
    assert_eq!(found["tasks"][0]["state"], "waiting_for_mount", "{found}");
    assert_eq!(found["mounts"][0]["mounted"], false, "{found}");
    assert!(found["mounts"][0]["last_error"].is_string(), "{found}");
    server.restart();
    process(&node, "plant");
    assert!(!has_reason(&node, "mount_failing"));
}

#[test]
fn programs_of_a_configuration_are_checked_and_described() {
    let dir = TempDir::new();
    let file = dir.file("keel.toml");
    let config = r#"
[[mount]]
name = "plant"
server = "127.0.0.1:7007"
directory = "plant"
insecure = true
[[task]]
name = "valve"
command = ["bin/valve", "--fast"]
mount = "plant"
period_ms = 100
deadline_ms = 50
cores = [0]
[[task]]
name = "hourly"
command = ["./nowhere"]
start = "each-period"
period_ms = 3600000
"#;
    fs::write(&file, config).unwrap();
    let said = String::from_utf8(crate::common::ok(&[
        "config",
        "check",
        file.to_str().unwrap(),
    ]))
    .unwrap();
    let plant = dir.file("plant");
    for line in [
        format!(
            "  mounts    plant: 127.0.0.1:7007 on {}, without TLS, nothing is kept for a start without network",
            plant.display()
        ),
        "  tasks     valve: bin/valve --fast, of a period of 100 ms, deadline 50 ms, core 0, from plant; \
         hourly: ./nowhere every 3600000 ms, deadline 3600000 ms"
            .to_owned(),
        "warning: mount plant has no cache: its programs start only while 127.0.0.1:7007 can be reached".to_owned(),
    ] {
        assert!(said.lines().any(|one| one == line), "{line}\n{said}");
    }
    assert!(
        said.contains("nowhere of task hourly is not there"),
        "{said}"
    );
}
