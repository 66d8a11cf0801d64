//! Programs outside the node: the examples in Rust and in C run as a user compiles them, and misuse gets an answer. A
//! client that is killed at any point disturbs no others.

use crate::common::node::Node;
use crate::common::{TempDir, wait_until};
use base::error::Code;
use libkeel::{Outcome, TaskKind, TaskSpec, Value};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// A node that may or may not keep its values in a region.
struct Place {
    node: Node,
    region: Option<TempDir>,
}

impl Place {
    fn start(is_shared: bool) -> Self {
        let mut config = "[store]\ncreate_mebibytes = 16\n[line]\ntcp_listen = \"\"\n\
                          unix_socket = \"line.sock\"\n[[key]]\npattern = \"#\"\nvalidity_ms = 600000\n"
            .to_owned();
        let region = is_shared.then(TempDir::new);
        if let Some(region) = &region {
            let file = region.file("region");
            config += &format!(
                "[region]\nfile = \"{}\"\ncreate_mebibytes = 32\n",
                file.display()
            );
        }
        let node = Node::start(&config);
        Self { node, region }
    }

    fn attach(&self) -> libkeel::Node {
        let attached = libkeel::Node::attach(self.node.socket()).unwrap();
        assert_eq!(attached.is_shared(), self.region.is_some());
        attached
    }

    fn run(&self, program: &Path, more: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.arg(self.node.socket()).args(more);
        command.output().unwrap()
    }
}

/// Checks the output of the example in the normal case.
fn is_well(place: &Place, program: &Path) {
    place.node.ok(&["put", "boiler/celsius", "60"]);
    let output = place.run(program, &["20"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && errors.is_empty(),
        "{:?}: {errors}",
        output.status
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let (first, second) = text.split_once('\n').unwrap();
    assert!(
        first.starts_with("boiler/valve is on flash as reading "),
        "{text}"
    );
    assert!(second.starts_with("20 instances, "), "{text}");
    let values = if place.region.is_some() {
        "shared"
    } else {
        "asked for"
    };
    assert!(
        second.ends_with(&format!(" 0 without a fresh value, values {values}\n")),
        "{text}"
    );
    assert_eq!(place.node.ok(&["get", "boiler/valve"]), "40\n");
}

/// Checks the output after wrong use, and without a node.
fn fails_well(program: &Path) {
    let said = |arguments: &[&str], status| {
        let output = Command::new(program).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    };
    said(&[], 2);
    said(&["keel.sock", "many"], 2);
    let text = said(&["/nonexistent/keel.sock"], 1);
    assert!(
        text.contains("/nonexistent/keel.sock: no connection to the node"),
        "{text}"
    );
}

/// Returns the path of an example in cargo's output when all tests of this crate are built.
pub fn example() -> PathBuf {
    let programs = Path::new(env!("CARGO_BIN_EXE_keel")).parent().unwrap();
    let example = programs.join("examples/valve");
    assert!(
        example.exists(),
        "cargo build -p keel --example valve makes it"
    );
    example
}

#[test]
fn the_example_in_rust_runs() {
    for is_shared in [true, false] {
        is_well(&Place::start(is_shared), &example());
    }
    fails_well(&example());
}

/// Returns cargo's output folder with the libkeel.so of this build: that of the test.
fn library_folder() -> PathBuf {
    let folder = std::env::current_exe()
        .unwrap()
        .parent()
        .unwrap()
        .to_path_buf();
    assert!(folder.join("libkeel.so").exists(), "{}", folder.display());
    folder
}

const SANITIZERS: &[&str] = &[
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-g",
];

/// Compiles a program for the C library; `None` if this compiler does not support the options in `more`.
fn compiled(dir: &TempDir, source: &str, more: &[&str]) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../libkeel-c");
    let program = dir.file("program");
    let folder = library_folder();
    let compile = |source: &Path| {
        let mut command = Command::new("cc");
        command.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-std=c11"]);
        command.arg("-D_POSIX_C_SOURCE=200809L").args(more);
        command.arg("-I").arg(here.join("include"));
        command.arg(source).arg("-o").arg(&program);
        command.arg("-L").arg(&folder).arg("-lkeel");
        command.arg(format!("-Wl,-rpath,{}", folder.display()));
        command.output().unwrap()
    };
    if !more.is_empty() {
        let empty = dir.file("empty.c");
        std::fs::write(&empty, "int main(void) { return 0; }\n").unwrap();
        let works = compile(&empty).status.success()
            && Command::new(&program)
                .status()
                .is_ok_and(|status| status.success());
        if !works {
            println!("skipped: this compiler has no sanitizers");
            return None;
        }
    }
    let output = compile(&here.join(source));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    Some(program)
}

#[test]
fn the_example_in_c_runs() {
    let dir = TempDir::new();
    let program = compiled(&dir, "examples/valve.c", &[]).unwrap();
    for is_shared in [true, false] {
        is_well(&Place::start(is_shared), &program);
    }
    fails_well(&program);
}

#[test]
fn misuse_in_c_is_answered_and_does_no_harm() {
    let cases: [(&[&str], &[bool]); 2] = [(&[], &[true, false]), (SANITIZERS, &[true])];
    for (more, places) in cases {
        let dir = TempDir::new();
        let Some(program) = compiled(&dir, "tests/misuse.c", more) else {
            return;
        };
        for is_shared in places {
            let place = Place::start(*is_shared);
            let output = place.run(&program, &[]);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && errors.is_empty(), "{errors}");
            assert_eq!(output.stdout, b"all answers are right\n");
            let once = place.node.json(&["history", "c/once", "--json"]);
            assert_eq!(once.as_array().map(Vec::len), Some(1), "{once}");
        }
    }
}

/// Returns all values that a key has had.
fn values(place: &Place, key: &str) -> Vec<f64> {
    let history = place.node.json(&["history", key, "--json"]);
    let values: Vec<_> = history
        .as_array()
        .unwrap()
        .iter()
        .map(|reading| reading["value"].as_f64().unwrap())
        .collect();
    assert!(!values.is_empty());
    values
}

#[test]
fn a_firm_instance_in_c_that_the_node_takes_too_late_is_never_seen() {
    let dir = TempDir::new();
    let program = compiled(&dir, "tests/late.c", &[]).unwrap();
    for is_shared in [true, false] {
        let place = Place::start(is_shared);
        let output = place.run(&program, &[&place.node.pid().to_string()]);
        // Also after a failed program: a stopped node would not end.
        place.node.signal(libc::SIGCONT);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{errors}");
        assert_eq!(output.stdout, b"all answers are right\n");
        for key in ["late/one", "late/two"] {
            assert!(values(&place, key).iter().all(|value| *value < 2.0));
        }
    }
}

/// Environment variable with the socket for a child that does everything at once until it is killed.
const SOCKET: &str = "KEEL_TEST_CLIENT_SOCKET";

/// Reads in two threads, puts in another, and runs a task.
fn restless(socket: &str) -> ! {
    let node = libkeel::Node::attach(socket).unwrap();
    for _ in 0..2 {
        let key = node.key("number").unwrap();
        std::thread::spawn(move || {
            loop {
                // Most of the time is spent in the middle of a read.
                let sum = key.with_bytes(|bytes| {
                    (0..1000).fold(0, |sum: u64, _| sum.wrapping_add(bytes.words().sum()))
                });
                std::hint::black_box(sum).ok();
            }
        });
    }
    let key = node.key("put").unwrap();
    std::thread::spawn(move || {
        loop {
            // An error `busy` may occur; ignore it.
            key.put(Value::Float(1.0), None).ok();
        }
    });
    let key = node.key("task").unwrap();
    let mut spec = TaskSpec::new("restless", Duration::from_micros(500), LONG);
    spec.kind = TaskKind::Firm;
    let mut task = node.periodic_task(spec).unwrap();
    task.run(|task| {
        for _ in 0..3 {
            task.put(&key, Value::Text("in one piece"), None).ok();
        }
        ControlFlow::Continue(())
    });
    std::process::exit(1)
}

fn spawn_restless(place: &Place) -> Child {
    let test = "clients::a_killed_client_disturbs_no_other";
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(SOCKET, place.node.socket())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_killed_client_disturbs_no_other() {
    if let Ok(socket) = std::env::var(SOCKET) {
        restless(&socket);
    }
    let place = Place::start(true);
    place.node.ok(&["put", "number", "1"]);
    let attached = place.attach();
    let number = attached.key("number").unwrap();
    let mut moment: u64 = 1;
    for round in 0..15 {
        let children = [spawn_restless(&place), spawn_restless(&place)];
        // The children have begun when the time of the readings advances; from then on any moment is suitable.
        let put = attached.key("put").unwrap();
        let before = put.read().map_or(0, |(_, times)| times.time_ms);
        wait_until("a put of a child", || {
            put.read().is_ok_and(|(_, times)| times.time_ms > before)
        });
        for mut child in children {
            moment = moment
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            std::thread::sleep(Duration::from_micros(moment >> 49));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        // The next reading is stored, and readers get it in full.
        let value = f64::from(round);
        number
            .put(Value::Float(value), None)
            .unwrap()
            .wait(LONG)
            .unwrap();
        assert_eq!(number.float().unwrap().0.to_bits(), value.to_bits());
    }
    // Nothing of the children is left: no task for the loop to wait for, and no lock on the region. The connections are
    // those of this process and of the status command.
    wait_until("the end of their connections", || {
        let status = place.node.json_degraded(&["status", "--json"]);
        let connections = status["commands"]["connections"].as_u64();
        connections.is_some_and(|count| count <= 3)
            && status["qos"]["tasks"] == serde_json::json!([])
    });
    assert!(attached.is_live());
    let mut place = place;
    assert!(place.node.stop().success());
}

#[test]
fn a_firm_instance_that_the_node_takes_too_late_is_never_seen() {
    let place = Place::start(true);
    let attached = place.attach();
    let keys = ["one", "two"].map(|name| attached.key(name).unwrap());
    for key in &keys {
        key.put(Value::Float(1.0), None)
            .unwrap()
            .wait(LONG)
            .unwrap();
    }
    let ms = Duration::from_millis;
    let mut spec = TaskSpec::new("firm", ms(1500), ms(1000));
    spec.kind = TaskKind::Firm;
    let mut task = attached.periodic_task(spec).unwrap();
    let run = |task: &mut libkeel::Task, value| {
        task.next_instance();
        let tickets = keys
            .each_ref()
            .map(|key| task.put(key, Value::Float(value), None).unwrap());
        (task.end_instance(), tickets)
    };
    // Retry if the machine was too slow.
    wait_until("an instance in time", || {
        let (outcome, tickets) = run(&mut task, 2.0);
        outcome == Some(Outcome::InTime) && tickets.iter().all(|ticket| ticket.wait(LONG).is_ok())
    });
    // For its program the instance is in time, but the stopped node only runs after the deadline.
    place.node.signal(libc::SIGSTOP);
    let mut sent = None;
    wait_until("an instance in time", || {
        let (outcome, tickets) = run(&mut task, 3.0);
        sent = Some(tickets);
        outcome == Some(Outcome::InTime)
    });
    let before = task.counts();
    std::thread::sleep(ms(1000));
    place.node.signal(libc::SIGCONT);
    for ticket in sent.unwrap() {
        let error = ticket.wait(LONG).unwrap_err();
        assert_eq!(error.code(), Code::Late);
        assert_eq!(
            error.to_string(),
            "one: the deadline has passed: nothing was stored; \
             look at what slows the node down, or give the task a longer deadline"
        );
    }
    let after = libkeel::Counts {
        deadline_misses: before.deadline_misses + 1,
        aborted: before.aborted + 1,
        ..before
    };
    assert_eq!(task.counts(), after);
    for key in &keys {
        assert_eq!(key.float().unwrap().0.to_bits(), 2.0_f64.to_bits());
    }
    // Nor is it in the log.
    for key in ["one", "two"] {
        assert!(values(&place, key).iter().all(|value| *value < 3.0));
    }
    let state = place.node.run(&["qos", "status", "--json"]).stdout;
    let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
    let task = &state["tasks"][0];
    assert!(task["aborted"].as_u64().unwrap() >= 1, "{state}");
    assert!(task["deadline_misses"].as_u64().unwrap() >= 1, "{state}");
}

#[test]
fn a_node_that_was_killed_is_found_again() {
    let mut place = Place::start(true);
    place.node.ok(&["put", "a", "1"]);
    let attached = place.attach();
    let key = attached.key("a").unwrap();
    assert_eq!(key.float().unwrap().0.to_bits(), 1.0_f64.to_bits());
    place.node.kill();
    wait_until("the end", || key.float().is_err());
    assert!(!attached.is_live());
    place.node.restart();
    wait_until("the next run", || key.float().is_ok());
    let ticket = key.put(Value::Float(2.0), None).unwrap();
    ticket.wait(LONG).unwrap();
    assert_eq!(key.float().unwrap().0.to_bits(), 2.0_f64.to_bits());
    assert_eq!(place.node.ok(&["get", "a"]), "2\n");
}

#[test]
fn the_monitor_of_the_node_counts_the_instances_of_a_task() {
    let place = Place::start(true);
    place.node.ok(&["put", "a", "1"]);
    let attached = place.attach();
    let key = attached.key("a").unwrap();
    let ms = Duration::from_millis;
    let mut spec = TaskSpec::new("watched", ms(10), LONG);
    spec.weight = 2.0;
    let mut task = attached.periodic_task(spec).unwrap();
    // Two whole sampling periods of any length.
    wait_until("reports", || {
        task.next_instance();
        assert!(task.data(|| key.float()).is_ok());
        task.counts().reports >= 2
    });
    assert!(task.is_declared());
    assert_eq!(task.last_error(), None);
    let mut seen = serde_json::Value::Null;
    wait_until("the node's figures", || {
        let output = place.node.run(&["qos", "status", "--json"]).stdout;
        let state: serde_json::Value = serde_json::from_slice(&output).unwrap();
        seen = state["tasks"][0].clone();
        seen["instances"].as_u64().is_some_and(|count| count > 0)
    });
    assert_eq!(
        (&seen["name"], &seen["kind"]),
        (&"watched".into(), &"soft".into())
    );
    assert_eq!(seen["process"], std::process::id());
    assert!(seen["thread"].is_u64(), "{seen}");
    assert_eq!(
        (&seen["weight"], &seen["period_us"]),
        (&2.0.into(), &10_000.0.into())
    );
    assert!(seen["instances"].as_u64().unwrap() <= task.counts().instances);
    assert_eq!(seen["deadline_misses"], 0);
    // The task ends with its connection.
    drop(task);
    wait_until("its end", || {
        let output = place.node.run(&["qos", "status", "--json"]).stdout;
        let state: serde_json::Value = serde_json::from_slice(&output).unwrap();
        state["tasks"].as_array().is_some_and(Vec::is_empty)
    });
}

#[test]
fn the_misses_of_a_task_that_lives_shorter_than_a_sampling_period_are_seen() {
    let place = Place::start(false);
    let attached = place.attach();
    // No instance can meet this deadline.
    let spec = TaskSpec::new("short", Duration::from_millis(1), Duration::from_nanos(1));
    let mut task = attached.periodic_task(spec).unwrap();
    for _ in 0..5 {
        task.next_instance();
    }
    drop(task);
    let mut state = serde_json::Value::Null;
    wait_until("what it did", || {
        state = place.node.json_degraded(&["qos", "status", "--json"]);
        state["last"].is_object() && state["tasks_ended"]["count"] == 1
    });
    assert_eq!(state["tasks"], serde_json::json!([]));
    let ended = &state["tasks_ended"];
    assert_eq!(
        (&ended["instances"], &ended["deadline_misses"]),
        (&5.into(), &5.into()),
        "{state}"
    );
    assert_eq!(state["last"]["miss_ratio"], 1.0, "{state}");
    // The controller has changed nothing.
    assert_eq!(state["admitted"], 1.0);
    let said = String::from_utf8(place.node.run(&["qos", "status"]).stdout).unwrap();
    assert!(
        said.contains("ended     tasks since the node's start: 1, with 5 instances, 5 late"),
        "{said}"
    );
}
