//! `keel qos` against a node: a simulated task, and a tree of files that represents a processor with 19 speeds.

use crate::common;
use crate::common::node::{Node, SMALL};
use crate::common::plant::{KHZ_MAX, Played, machine, report, setting};
use crate::common::wait_until;
use libkeel::connection::Connection;
use libkeel::protocol::{Kind, Task, TaskDeclared, TaskKind, TaskNoted};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Returns the speed of the processor, or `None` if a setting is missing, or is being written.
fn speed(folder: &Path) -> Option<f64> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let governor = read("scaling_governor").filter(|name| !name.is_empty())?;
    if governor.trim() != "userspace" {
        return Some(1.0);
    }
    let khz: u64 = read("scaling_setspeed")?.trim().parse().ok()?;
    Some(khz as f64 / KHZ_MAX as f64)
}

/// Starts a task whose tardiness follows a model.
fn start_plant(node: &Node, folder: &Path, load: f64) -> Played {
    let mut asking = Connection::open(&node.socket(), Duration::from_secs(60)).unwrap();
    let folder = folder.to_path_buf();
    let (mut tardiness, mut ratio, mut known) = (1.0, 0.3, 1.0);
    let mut number = 0_u64;
    Played::start(node, "plant", Duration::from_millis(100), move || {
        let empty = libkeel::protocol::Status {};
        let state: Value = asking.ask(Kind::Status, &empty, Kind::State).ok()?;
        let admitted = state["qos"]["admitted"].as_f64().unwrap();
        known = speed(&folder).unwrap_or(known);
        let slow = 0.55 - known;
        number += 1;
        // A small disturbance that the model does not explain.
        let noise = (number * 7919 % 100) as f64 / 100.0 - 0.5;
        tardiness =
            0.2 * tardiness + 0.8 * slow + 0.5 * (admitted - 0.75) + 0.62 + load + 0.01 * noise;
        ratio = 0.2 * ratio - 0.1 * slow + 0.3 * (admitted - 0.75) + 0.24 + 0.005 * noise;
        Some((tardiness.max(0.05), ratio.clamp(0.02, 0.95)))
    })
}

fn config(more: &str) -> String {
    format!(
        "{SMALL}
[qos]
sampling_period_ms = 100
actuator = \"cpufreq\"
machine_root = \"machine\"
speed_percent_min = 10
{more}"
    )
}

fn qos(node: &Node) -> Value {
    // The exit status shows whether the node is well; here only the output matters.
    let output = node.run(&["qos", "status", "--json"]);
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_model_identified_on_the_running_node_holds_tardiness() {
    let mut node = Node::prepare(&config(""));
    let folder = machine(&node);
    node.restart();
    let said = node.fails(&["qos", "identify"], 1);
    assert!(said.contains("no task is declared"), "{said}");
    let plant = start_plant(&node, &folder, 0.0);
    wait_until("the task", || {
        qos(&node)["tasks"]
            .as_array()
            .is_some_and(|tasks| tasks.len() == 1)
    });
    // Modes need gains.
    let said = node.fails(&["qos", "mode", "mimo"], 1);
    assert!(said.contains("there are no gains"), "{said}");

    let args = [
        "qos",
        "identify",
        "--periods",
        "80",
        "--profile",
        "3",
        "--json",
    ];
    let model = node.json(&args);
    for output in 0..2 {
        assert!(model["r2"][output].as_f64().unwrap() > 0.8, "{model}");
    }
    assert!(model["b"][0][0].as_f64().unwrap() < -0.4, "{model}");
    assert_eq!(
        setting(&folder, "scaling_governor"),
        "schedutil",
        "as it was before"
    );

    // A model that explains too little of the data response ratio cannot be used for both inputs.
    let text = std::fs::read_to_string(node.dir.file("qos-model.toml")).unwrap();
    let at = text.find("r2 = [").unwrap();
    let end = at + text[at..].find('\n').unwrap();
    let worse = format!("{}r2 = [0.9, 0.3]{}", &text[..at], &text[end..]);
    std::fs::write(node.dir.file("worse.toml"), worse).unwrap();
    let said = node.ok(&["qos", "design", "worse.toml", "--out", "qos-gains.toml"]);
    assert!(said.contains("too little for mimo"), "{said}");
    let wanted = config("gains = \"qos-gains.toml\"\nmode = \"mimo\"\n");
    std::fs::write(node.dir.file("keel.toml"), wanted).unwrap();
    node.signal(libc::SIGHUP);
    wait_until("the refusal", || {
        let error = qos(&node)["gains_error"].as_str().map(str::to_owned);
        error.is_some_and(|error| error.contains("mode mimo cannot be"))
    });
    assert_eq!(qos(&node)["mode"], "open");
    assert!(
        node.fails(&["qos", "mode", "mimo"], 1)
            .contains("too little")
    );
    assert_eq!(
        node.json(&["qos", "mode", "dvfs-only", "--json"])["mode"],
        "dvfs-only"
    );

    let design = node.json(&["qos", "design", "qos-model.toml", "--json"]);
    assert!(design["pole_max"].as_f64().unwrap() < 0.95, "{design}");
    std::fs::write(
        node.dir.file("keel.toml"),
        config("gains = \"qos-gains.toml\"\n"),
    )
    .unwrap();
    node.signal(libc::SIGHUP);
    wait_until("the gains", || {
        let state = qos(&node);
        state["gains"].is_string() && state["gains_error"].is_null()
    });
    for mode in ["mimo", "dvfs-only", "qod-only", "mimo"] {
        let state = node.json(&["qos", "mode", mode, "--json"]);
        assert_eq!(state["mode"], mode);
        let mut near = 0;
        wait_until("tardiness at its target", || {
            let state = qos(&node);
            let tardiness = state["last"]["tardiness_mean"].as_f64().unwrap();
            let is_near = (tardiness - 0.8).abs() < 0.05;
            // If one input alone does not suffice, the node reports that it is at its limit.
            let is_held = state["admitted_held"] != "free" || state["speed_held"] != "free";
            near = if is_near || (mode == "qod-only" && is_held) {
                near + 1
            } else {
                0
            };
            near >= 5
        });
        // If the mode does not control the speed, the machine's own governor is active, also if the previous mode has
        // set another one.
        let governor = if mode == "qod-only" {
            "schedutil"
        } else {
            "userspace"
        };
        assert_eq!(setting(&folder, "scaling_governor"), governor, "{mode}");
    }
    assert_eq!(setting(&folder, "scaling_governor"), "userspace");
    assert_eq!(qos(&node)["obeyed"], true, "{}", qos(&node));

    // A killed node leaves its settings of the processor; the next start restores them.
    node.kill();
    drop(plant);
    assert_eq!(setting(&folder, "scaling_governor"), "userspace");
    node.restart();
    wait_until("the governor of before", || {
        setting(&folder, "scaling_governor") == "schedutil"
    });
    assert_eq!(
        qos(&node)["mode"],
        "open",
        "what was chosen at run time is for that run"
    );
    assert!(node.stop().success());
}

#[test]
fn an_identification_that_is_interrupted_leaves_nothing_behind() {
    let mut node = Node::prepare(&config(""));
    let folder = machine(&node);
    node.restart();
    let _plant = start_plant(&node, &folder, 0.0);
    wait_until("the task", || {
        qos(&node)["tasks"]
            .as_array()
            .is_some_and(|tasks| tasks.len() == 1)
    });
    let mut child = common::keel()
        .args(["qos", "identify", "--profile", "1"])
        .current_dir(node.dir.path())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the driven speed", || {
        setting(&folder, "scaling_governor") == "userspace"
    });
    common::signal(&child, libc::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    wait_until("the governor of before", || {
        setting(&folder, "scaling_governor") == "schedutil"
    });
    let state = qos(&node);
    assert_eq!(state["identification"]["state"], "none", "{state}");
    assert!(!node.dir.file("qos-model.toml").exists());
    // An identification whose client has died ends as well.
    let begin = serde_json::json!({"identify": {
        "periods": 400, "profile": 1, "speed": 0.55, "speed_amplitude": 0.15,
        "admitted": 0.8, "admitted_amplitude": 0.2,
    }});
    let mut connection = Connection::open(&node.socket(), Duration::from_secs(60)).unwrap();
    let state: Value = connection.ask(Kind::Qos, &begin, Kind::QosState).unwrap();
    assert_eq!(state["identification"]["state"], "running");
    let again: Result<Value, _> = connection.ask(Kind::Qos, &begin, Kind::QosState);
    assert!(again.is_err(), "one at a time");
    drop(connection);
    wait_until("the driven speed", || {
        setting(&folder, "scaling_governor") == "userspace"
    });
    // Status requests of other clients do not keep it alive.
    wait_until("its end", || {
        qos(&node)["identification"]["state"] == "none"
            && setting(&folder, "scaling_governor") == "schedutil"
    });
    assert!(node.stop().success());
}

#[test]
fn tasks_have_limits_and_go_with_their_connections() {
    let node = Node::start(&format!("{SMALL}\n[qos]\ntasks_max = 2\n"));
    let task = |name: &str| Task {
        name: name.to_owned(),
        period_ns: 1_000_000,
        deadline_ns: 1_000_000,
        kind: TaskKind::Firm,
        weight: 1.0,
        process: 1,
        thread: 1,
    };
    let open = || Connection::open(&node.socket(), Duration::from_secs(60)).unwrap();
    let declare = |connection: &mut Connection, name: &str| {
        let declared: Result<TaskDeclared, _> =
            connection.ask(Kind::Task, &task(name), Kind::TaskDeclared);
        declared
            .map(|declared| declared.id)
            .map_err(|error| error.to_string())
    };
    let (mut connection, mut another) = (open(), open());
    let one = declare(&mut connection, "one").unwrap();
    let refused = declare(&mut connection, "second").unwrap_err();
    assert!(refused.contains("carries task"), "{refused}");
    let other = declare(&mut another, "other").unwrap();
    let refused = declare(&mut open(), "third").unwrap_err();
    assert!(refused.contains("2 tasks already"), "{refused}");
    assert!(declare(&mut open(), "").is_err());
    let state = qos(&node);
    assert_eq!(state["tasks_refused"], 1);
    // A task of another process: the node must not slow down threads of that process for this one.
    assert_eq!(state["tasks"][0]["thread"], Value::Null);
    let mut wrong = report(one, 0.8, 0.3);
    wrong.instances = 11;
    let refused: Result<TaskNoted, _> = connection.ask(Kind::TaskPeriod, &wrong, Kind::TaskNoted);
    assert!(refused.is_err());
    // A client cannot report for the task of another connection, either.
    for foreign in [one + 1000, other] {
        let foreign = report(foreign, 0.8, 0.3);
        let refused: Result<TaskNoted, _> =
            connection.ask(Kind::TaskPeriod, &foreign, Kind::TaskNoted);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("not declared on this"), "{refused}");
    }
    let good = report(one, 1.5, 0.3);
    let _: TaskNoted = connection
        .ask(Kind::TaskPeriod, &good, Kind::TaskNoted)
        .unwrap();
    assert_eq!(qos(&node)["tasks"][0]["deadline_misses"], 10);
    drop((connection, another));
    wait_until("the tasks to go", || {
        qos(&node)["tasks"] == serde_json::json!([])
    });
}

/// Creates a processor and gains for a node, and starts the node.
fn start_with_gains(node: &mut Node) -> PathBuf {
    let folder = machine(node);
    let gains = include_str!("golden/qos-gains-1.toml")
        .replace("sampling_period_ms = 1000", "sampling_period_ms = 100")
        .replace("\"rtgroup\"", "\"cpufreq\"");
    std::fs::write(node.dir.file("gains.toml"), gains).unwrap();
    node.restart();
    folder
}

#[test]
fn a_driven_task_that_ends_leaves_nothing_that_does_not_obey() {
    let mut node = Node::prepare(&config("gains = \"gains.toml\"\nmode = \"dvfs-only\"\n"));
    let folder = start_with_gains(&mut node);
    let plant = start_plant(&node, &folder, 0.0);
    wait_until("a driven speed", || {
        qos(&node)["speed"]
            .as_f64()
            .is_some_and(|speed| speed < 0.9)
    });
    drop(plant);
    wait_until("its end", || qos(&node)["actuator"] == "none");
    let state = qos(&node);
    assert_eq!(state["tasks"], serde_json::json!([]));
    assert_eq!(state["obeyed"], true, "{state}");
    assert_eq!(setting(&folder, "scaling_governor"), "schedutil");
    node.ok(&["qos", "status"]);
    assert!(node.stop().success());
}

#[test]
fn a_reading_that_is_thrown_away_is_nowhere_told_to_be_stored() {
    let mut node = Node::prepare(&config(
        "gains = \"gains.toml\"\nmode = \"qod-only\"\n[[key]]\npattern = \"d/#\"\nshed = \"drop\"\n",
    ));
    let folder = start_with_gains(&mut node);
    let _plant = start_plant(&node, &folder, 1.0);
    wait_until("updates to be left out", || {
        qos(&node)["admitted"].as_f64().unwrap() < 0.6
    });
    // Returns the logged values of a key, as (number, value).
    let logged = |key: &str| -> Vec<(u64, f64)> {
        let readings = node.json(&["history", key, "--json"]);
        let readings = readings.as_array().unwrap().iter();
        readings
            .map(|reading| {
                let (lsn, value) = (&reading["lsn"], &reading["value"]);
                (lsn.as_u64().unwrap(), value.as_f64().unwrap())
            })
            .collect()
    };

    // The tickets of a client.
    let attached = libkeel::Node::attach(node.socket()).unwrap();
    let key = attached.key("d/x").unwrap();
    let mut stored = Vec::new();
    let mut number = 0.0;
    // The rate of its readings must be known before any of them is shed.
    wait_until("a ticket that says so", || {
        number += 1.0;
        let ticket = key.put(libkeel::Value::Float(number), None).unwrap();
        match ticket.wait(Duration::from_secs(60)) {
            Ok(lsn) => stored.push((lsn, number)),
            Err(error) => assert_eq!(error.code(), base::error::Code::Shed, "{error}"),
        }
        number > stored.len() as f64
    });
    assert_eq!(logged("d/x"), stored);

    // The command.
    wait_until("a put that is thrown away", || {
        number += 1.0;
        let text = number.to_string();
        let output = node.run(&["put", "d/x", &text, "--json"]);
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        let is_shed = output.status.code() == Some(3);
        assert_eq!(said["shed"], is_shed, "{output:?}");
        if is_shed {
            let line = common::one_line(&output.stderr);
            assert!(line.contains("thrown away"), "{line}");
            assert!(said["lsn"].is_null() && logged("d/x") == stored, "{said}");
        } else {
            stored.push((said["lsn"].as_u64().unwrap(), number));
        }
        is_shed
    });

    // A source: distinguished in its answer and in the node's counters.
    let mut lines = UnixStream::connect(node.dir.file("line.sock")).unwrap();
    let mut answers = BufReader::new(lines.try_clone().unwrap());
    let (mut sent, mut accepted, mut thrown_away) = (0, 0, 0);
    wait_until("a line that is thrown away", || {
        lines
            .write_all(b"d,sensor=y v=1\nd,sensor=y v=2\n\n")
            .unwrap();
        sent += 2;
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        let numbers: Vec<u64> = answer
            .trim()
            .split(' ')
            .skip(1)
            .map(|text| text.parse().unwrap())
            .collect();
        match numbers[..] {
            [taken, 0] => accepted += taken,
            [taken, 0, shed] => (accepted, thrown_away) = (accepted + taken, thrown_away + shed),
            _ => panic!("{answer}"),
        }
        thrown_away > 0
    });
    assert_eq!(accepted + thrown_away, sent);
    assert_eq!(logged("d/sensor=y/v").len() as u64, accepted);
    let intake = &node.json_degraded(&["status", "--json"])["intake"];
    assert_eq!(
        (&intake["readings"], &intake["readings_shed"]),
        (&accepted.into(), &thrown_away.into()),
    );
}

/// Most of the values that are valid for one minute but arrive many times a second may be shed.
#[test]
fn freshness_as_the_quality_of_data_sheds_unneeded_updates() {
    let mut node = Node::prepare(&config(
        "gains = \"gains.toml\"\nmode = \"qod-only\"\nquality_of_data = \"fresh\"\n",
    ));
    let folder = start_with_gains(&mut node);
    let state = qos(&node);
    assert_eq!(state["quality_of_data"], "fresh", "{state}");
    assert_eq!(state["admission_min"], 1.0, "nothing is known: {state}");
    let _plant = start_plant(&node, &folder, 1.0);
    let attached = libkeel::Node::attach(node.socket()).unwrap();
    let key = attached.key("d/x").unwrap();
    let mut number = 0.0;
    wait_until("less than half of the updates", || {
        for _ in 0..20 {
            number += 1.0;
            key.put(libkeel::Value::Float(number), None).unwrap();
        }
        qos(&node)["admitted"].as_f64().unwrap() < 0.4
    });
    let state = qos(&node);
    assert!(state["admission_min"].as_f64().unwrap() < 0.1, "{state}");
    assert!(node.json_degraded(&["status", "--json"])["shedding"] == true);
    let value = node.json(&["get", "d/x", "--json"]);
    assert_eq!(value["fresh"], true, "{value}");
}

#[test]
fn an_identification_ends_at_once_where_the_speed_cannot_be_set_any_more() {
    type Step<'a> = &'a dyn Fn();
    let mut node = Node::prepare(&config(""));
    let folder = machine(&node);
    node.restart();
    let _plant = start_plant(&node, &folder, 0.0);
    wait_until("the actuator", || qos(&node)["actuator"] == "cpufreq");
    let (there, aside) = (node.dir.file("machine"), node.dir.file("aside"));
    let current = folder.join("scaling_cur_freq");
    let told = folder.join("scaling_setspeed");
    let link = |at: &Path| std::os::unix::fs::symlink("scaling_setspeed", at).unwrap();
    let cases: [(&str, Step<'_>, Step<'_>); 4] = [
        // A driver was replaced by one that does not report its speed.
        (
            "scaling_cur_freq",
            &|| std::fs::remove_file(&current).unwrap(),
            &|| link(&current),
        ),
        // Or it reports another speed.
        (
            "cpufreq does not set the speed that it is told, it stays at 90 %",
            &|| {
                std::fs::write(&aside, "1800000\n").unwrap();
                std::fs::rename(&aside, &current).unwrap();
            },
            &|| {
                std::fs::remove_file(&current).unwrap();
                link(&current);
            },
        ),
        // Writing fails, even for root.
        (
            "cpufreq/policy0/scaling_",
            &|| {
                std::fs::remove_file(&told).unwrap();
                std::fs::create_dir(&told).unwrap();
            },
            &|| {
                std::fs::remove_dir(&told).unwrap();
                std::fs::write(&told, "2000000\n").unwrap();
            },
        ),
        (
            "cpufreq/policy0/scaling_",
            &|| std::fs::rename(&there, &aside).unwrap(),
            &|| std::fs::rename(&aside, &there).unwrap(),
        ),
    ];
    for (named, spoil, mend) in cases {
        let mut child = common::keel()
            .args(["qos", "identify", "--profile", "1", "--periods", "2000"])
            .current_dir(node.dir.path())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        wait_until("the driven speed", || {
            setting(&folder, "scaling_governor") == "userspace"
        });
        spoil();
        let mut status = None;
        wait_until("the end of the command", || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        assert_eq!(status.unwrap().code(), Some(1));
        let mut said = String::new();
        std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
        // The warning, and the reason why it has ended.
        let [_, line] = said.lines().collect::<Vec<_>>()[..] else {
            panic!("{said}");
        };
        assert!(
            line.starts_with("keel: identification: was given up: ") && line.contains(named),
            "{line}"
        );
        assert!(!node.dir.file("qos-model.toml").exists());
        mend();
        wait_until("the governor of before", || {
            setting(&folder, "scaling_governor") == "schedutil"
        });
        wait_until("the end of what was driven", || {
            let state = qos(&node);
            state["identification"]["state"] == "given-up"
                && state["admitted"] == 1.0
                && state["obeyed"] == true
        });
    }
    wait_until("the word in the log", || {
        node.log()
            .contains("the identification was given up: the speed")
    });
    assert!(node.stop().success());
}

#[test]
fn a_mode_that_is_chosen_during_an_identification_says_that_it_waits() {
    let mut node = Node::prepare(&config("gains = \"gains.toml\"\n"));
    let folder = start_with_gains(&mut node);
    let _plant = start_plant(&node, &folder, 0.0);
    wait_until("the actuator", || qos(&node)["actuator"] == "cpufreq");
    let log = node.log();
    assert!(log.contains(" speed: set by cpufreq from now on"), "{log}");
    let said = node.ok(&["qos", "mode", "mimo"]);
    let expected = "mode      mimo: drives speed (cpufreq) and updates, from the next sampling period on (100 ms)\n";
    assert_eq!(said, expected);
    let begin = serde_json::json!({"identify": {
        "periods": 2000, "profile": 1, "speed": 0.55, "speed_amplitude": 0.15,
        "admitted": 0.8, "admitted_amplitude": 0.2,
    }});
    let mut connection = Connection::open(&node.socket(), Duration::from_secs(60)).unwrap();
    let _: Value = connection.ask(Kind::Qos, &begin, Kind::QosState).unwrap();
    let said = node.ok(&["qos", "mode", "qod-only"]);
    assert!(said.contains("qod-only, once the identification"), "{said}");
    let end = serde_json::json!({"stop_identify": true});
    let _: Value = connection.ask(Kind::Qos, &end, Kind::QosState).unwrap();
    wait_until("the end", || {
        qos(&node)["identification"]["state"] == "none"
    });
    // Samples of two kinds are not usable for a model.
    let _: Value = connection.ask(Kind::Qos, &begin, Kind::QosState).unwrap();
    wait_until("the driven periods", || {
        qos(&node)["identification"]["periods_done"].as_u64() > Some(2)
    });
    let changed = config("gains = \"gains.toml\"\ninstances_min = 9\n");
    std::fs::write(node.dir.file("keel.toml"), changed).unwrap();
    node.signal(libc::SIGHUP);
    wait_until("the end of it", || {
        let state: Value = connection
            .ask(Kind::Qos, &serde_json::json!({}), Kind::QosState)
            .unwrap();
        let why = state["identification"]["why"].as_str().map(str::to_owned);
        why.is_some_and(|why| why.contains("other instances"))
    });
    assert!(node.stop().success());
}

#[test]
fn an_impossible_request_is_refused_with_the_reason() {
    let ask = |node: &Node, asked: Value| -> String {
        let mut connection = Connection::open(&node.socket(), Duration::from_secs(60)).unwrap();
        let answer: Result<Value, _> = connection.ask(Kind::Qos, &asked, Kind::QosState);
        answer.map_or_else(|error| error.to_string(), |_| "taken".to_owned())
    };
    let identify = |periods: u32, speed: f64| {
        serde_json::json!({"identify": {
            "periods": periods, "profile": 1, "speed": speed, "speed_amplitude": 0.15,
            "admitted": 0.8, "admitted_amplitude": 0.2,
        }})
    };
    let mut node = Node::prepare(&config(""));
    let folder = machine(&node);
    node.restart();
    let said = ask(&node, serde_json::json!({"tardiness": 0.5}));
    assert!(said.contains("no gains to hold them with"), "{said}");
    let _plant = start_plant(&node, &folder, 0.0);
    wait_until("the actuator", || qos(&node)["actuator"] == "cpufreq");
    for (periods, speed, said) in [
        (3, 0.55, "40 to 2000 driven periods"),
        (80, 0.2, "must stay above 10 %"),
        (80, 0.9, "up to 100 %"),
    ] {
        let refused = ask(&node, identify(periods, speed));
        assert!(refused.contains(said), "{refused}");
    }
    assert_eq!(setting(&folder, "scaling_governor"), "schedutil");
    assert_eq!(qos(&node)["identification"]["state"], "none");

    let more = "\n[qos]\nactuator = \"none\"\ngains = \"gains.toml\"\n";
    let mut node = Node::prepare(&format!("{SMALL}{more}"));
    let gains = include_str!("golden/qos-gains-1.toml");
    std::fs::write(node.dir.file("gains.toml"), gains).unwrap();
    let folder = machine(&node);
    node.restart();
    for (field, number) in [
        ("tardiness", 100.0),
        ("tardiness", 0.01),
        ("data_ratio", 1.0),
    ] {
        let refused = ask(&node, serde_json::json!({field: number}));
        assert!(refused.contains("out of their ranges"), "{refused}");
    }
    assert_eq!(ask(&node, serde_json::json!({"tardiness": 0.5})), "taken");
    assert_eq!(qos(&node)["tardiness_target"], 0.5);
    // A target set by command stays when other parts of the configuration change.
    for (changed, tasks_max, target) in [
        ("tasks_max = 5\n", 5, 0.5),
        ("tasks_max = 6\ntardiness_target = 0.6\n", 6, 0.6),
    ] {
        let changed = format!("{SMALL}{more}{changed}");
        std::fs::write(node.dir.file("keel.toml"), changed).unwrap();
        node.signal(libc::SIGHUP);
        wait_until("the reload", || qos(&node)["tasks_max"] == tasks_max);
        assert_eq!(qos(&node)["tardiness_target"], target);
    }
    let refused = node.fails(&["qos", "mode", "mimo"], 1);
    assert!(refused.contains("nothing sets the speed"), "{refused}");
    let _plant = start_plant(&node, &folder, 0.0);
    wait_until("the task", || {
        qos(&node)["tasks"]
            .as_array()
            .is_some_and(|tasks| tasks.len() == 1)
    });
    let refused = ask(&node, identify(80, 0.55));
    assert!(refused.contains("nothing sets the speed"), "{refused}");
}
