//! `[[alarm]]` and `[[actuator]]`: what a real broker and a real command receive, also when they are unavailable, slow
//! or refuse.

use crate::clients::example;
use crate::common::broker::{Broker, Subscriber, free_port};
use crate::common::node::{Node, SMALL};
use crate::common::wait_until;
use serde_json::Value;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;

/// Returns the configuration of a node with a trusted clock and a broker at this port.
fn config(port: u16, text: &str) -> String {
    format!(
        "{SMALL}[time]\nwall_clock = \"trusted\"\n[[broker]]\nname = \"local\"\naddress = \"127.0.0.1:{port}\"\n\
         client_id = \"keel-alarms\"\nbackoff_ms_min = 20\nbackoff_ms_max = 100\n{text}"
    )
}

const HOT: &str =
    "[[alarm]]\nname = \"hot\"\npattern = \"hall/+/temperature\"\nabove = 60\nclear = 55\n";

fn status(node: &Node) -> Value {
    let output = node.run(&["status", "--json"]);
    assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn codes(node: &Node) -> Vec<String> {
    let status = status(node);
    let reasons = status["reasons"].as_array().unwrap().iter();
    reasons
        .map(|reason| reason["code"].as_str().unwrap().to_owned())
        .collect()
}

fn put(node: &Node, key: &str, value: &str) {
    node.ok(&["put", key, value]);
}

/// Returns alarm, key, state and value of each message.
fn alarms(subscriber: &Subscriber) -> Vec<(String, String, String, Value)> {
    let all = subscriber.all();
    let told = all
        .iter()
        .filter(|(topic, _)| topic.starts_with("keel/alarm/"));
    told.map(|(topic, payload)| {
        let said: Value = serde_json::from_str(payload).unwrap();
        let word = |name: &str| said[name].as_str().unwrap().to_owned();
        assert_eq!(
            *topic,
            format!("keel/alarm/{}/{}", word("alarm"), word("key"))
        );
        assert!(said["time_ms"].as_i64().unwrap() > 1_600_000_000_000);
        (
            word("alarm"),
            word("key"),
            word("state"),
            said["value"].clone(),
        )
    })
    .collect()
}

#[test]
fn a_broker_is_told_once_when_an_alarm_is_raised_and_once_when_it_is_over() {
    let Some(broker) = Broker::start() else {
        return;
    };
    for version in ["5", "3.1.1"] {
        let subscriber = Subscriber::start(broker.port);
        let version = format!("version = \"{version}\"\n");
        let text = format!(
            "{version}{HOT}broker = \"local\"\ndeadline_ms = 600000\n\
             [[alarm]]\nname = \"silent\"\npattern = \"cellar/door\"\nstale_ms = 300\nbroker = \"local\"\n"
        );
        let mut node = Node::start(&config(broker.port, &text));
        put(&node, "cellar/door", "shut");
        for value in ["54", "61.5", "58", "70", "54.5", "59"] {
            put(&node, "hall/1/temperature", value);
        }
        put(&node, "hall/2/temperature", "100");
        let is = |state: &str| {
            let told = alarms(&subscriber);
            told.iter().any(|one| one.0 == "silent" && one.2 == state)
        };
        wait_until("the silence", || is("raised"));
        put(&node, "cellar/door", "open");
        wait_until("its end", || is("cleared"));
        wait_until("the others", || {
            alarms(&subscriber)
                .iter()
                .filter(|one| one.0 == "hot")
                .count()
                == 3
        });
        let told: Vec<String> = alarms(&subscriber)
            .into_iter()
            .filter(|one| one.0 == "hot")
            .map(|(_, key, state, value)| format!("{key} {state} {value}"))
            .collect();
        assert_eq!(
            told,
            [
                "hall/1/temperature raised 61.5",
                "hall/1/temperature cleared 54.5",
                "hall/2/temperature raised 100"
            ]
        );
        wait_until("the figures", || {
            status(&node)["alarms"][0]["mqtt"]["delivered"] == 3
        });
        let found = status(&node);
        let hot = &found["alarms"][0];
        assert_eq!(
            (&hot["raised"], &hot["cleared"], &hot["active"]),
            (&2.into(), &1.into(), &1.into())
        );
        assert_eq!(hot["mqtt"]["late"], 0);
        assert_eq!(hot["command"], Value::Null);
        let active = found["alarms_active"].as_array().unwrap();
        let active = active.iter().find(|one| one["alarm"] == "hot").unwrap();
        assert_eq!(
            (&active["key"], &active["value"]),
            (&"hall/2/temperature".into(), &"100".into())
        );
        // An alarm concerns the hall; it does not degrade the node.
        assert!(codes(&node).is_empty());
        let text = node.ok(&["status"]);
        assert!(
            text.contains("ACTIVE    hot hall/2/temperature since "),
            "{text}"
        );
        assert!(text.contains("alarm     hot, hall/+/temperature above 60, over at 55: 1 active of 2 keys; 2 raised, \
             1 cleared"), "{text}");
        assert!(node.stop().success());
    }
}

/// Forwards connections from one port to another.
fn open_way(from: u16, to: u16) {
    let listener = TcpListener::bind(("127.0.0.1", from)).unwrap();
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let near = near.unwrap();
            let far = TcpStream::connect(("127.0.0.1", to)).unwrap();
            for (mut reads, mut writes) in [
                (near.try_clone().unwrap(), far.try_clone().unwrap()),
                (far, near),
            ] {
                std::thread::spawn(move || std::io::copy(&mut reads, &mut writes));
            }
        }
    });
}

#[test]
fn alarms_while_the_broker_is_away_are_sent_late_skipped_or_dropped_and_never_silently() {
    let port = free_port();
    let text = format!(
        "queue_messages_max = 4\n{HOT}broker = \"local\"\ndeadline_ms = 1\n\
         [[alarm]]\nname = \"fast\"\npattern = \"pump\"\nbelow = 1\nbroker = \"local\"\n\
         deadline_ms = 1\nlate = \"skip\"\n"
    );
    let mut node = Node::start(&config(port, &text));
    put(&node, "pump", "0");
    for _ in 0..3 {
        put(&node, "hall/1/temperature", "90");
        put(&node, "hall/1/temperature", "20");
    }
    wait_until("the complaint", || {
        let codes = codes(&node);
        codes.contains(&"broker_disconnected".to_owned())
            && codes.contains(&"alarm_undelivered".to_owned())
    });
    let waiting = |node: &Node| {
        let found = status(node);
        let (hot, fast) = (&found["alarms"][0]["mqtt"], &found["alarms"][1]["mqtt"]);
        let number = |value: &Value| value.as_u64().unwrap();
        // The first one was either too late for the queue or too old for it.
        let fast = number(&fast["skipped"]) + number(&fast["dropped"]);
        (number(&hot["waiting"]), number(&hot["dropped"]), fast)
    };
    wait_until("all of it", || {
        let (waiting, dropped, fast) = waiting(&node);
        waiting + dropped == 6 && waiting == 4 && fast == 1
    });
    let Some(broker) = Broker::start() else {
        return;
    };
    let subscriber = Subscriber::start(broker.port);
    open_way(port, broker.port);
    wait_until("what waited", || {
        status(&node)["alarms"][0]["mqtt"]["delivered"] == 4
    });
    let found = status(&node);
    let hot = &found["alarms"][0]["mqtt"];
    assert_eq!(
        (&hot["late"], &hot["dropped"], &hot["waiting"]),
        (&4.into(), &2.into(), &0.into())
    );
    let told: Vec<String> = alarms(&subscriber).into_iter().map(|one| one.2).collect();
    assert_eq!(told, ["raised", "cleared", "raised", "cleared"]);
    let text = node.run(&["status"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.starts_with("degraded: alarm_undelivered\n"), "{text}");
    assert!(node.stop().success());
}

#[test]
fn a_command_gets_the_alarm_on_its_input_and_its_words_as_they_are() {
    let mut node = Node::prepare(&config(
        free_port(),
        &format!(
            "{HOT}command = [\"./tell\", \"two words\", \"$HOME *\"]\n\
             [[alarm]]\nname = \"slow\"\npattern = \"slow\"\nabove = 0.5\ncommand = [\"sleep\", \"600\"]\n\
             command_seconds_max = 1\n\
             [[alarm]]\nname = \"wrong\"\npattern = \"wrong\"\nabove = 0.5\ncommand = [\"./none\"]\n"
        ),
    ));
    let script = "#!/bin/sh\nprintf '%s|' \"$@\" >> told\ncat >> told\n";
    std::fs::write(node.dir.file("tell"), script).unwrap();
    std::fs::set_permissions(node.dir.file("tell"), PermissionsExt::from_mode(0o755)).unwrap();
    node.restart();
    put(&node, "hall/1/temperature", "61");
    put(&node, "hall/1/temperature", "20");
    let command = |node: &Node, at: usize| status(node)["alarms"][at]["command"].clone();
    wait_until("both runs", || command(&node, 0)["delivered"] == 2);
    let told = std::fs::read_to_string(node.dir.file("told")).unwrap();
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 2, "{told}");
    for (line, state) in lines.iter().zip(["raised", "cleared"]) {
        let message = line.strip_prefix("two words|$HOME *|").expect("its words");
        let said: Value = serde_json::from_str(message).unwrap();
        assert_eq!(
            (&said["alarm"], &said["state"]),
            (&"hot".into(), &state.into())
        );
    }
    assert!(!codes(&node).contains(&"alarm_undelivered".to_owned()));
    put(&node, "slow", "true");
    put(&node, "wrong", "1");
    wait_until("both failures", || {
        command(&node, 1)["failed"] == 1 && command(&node, 2)["failed"] == 1
    });
    let found = status(&node);
    let error = |at: usize| {
        found["alarms"][at]["last_error"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert!(
        error(1).contains("did not end within 1000 ms"),
        "{}",
        error(1)
    );
    assert!(error(2).contains("cannot be started"), "{}", error(2));
    assert!(codes(&node).contains(&"alarm_undelivered".to_owned()));
    assert!(node.stop().success());
}

#[test]
fn the_latest_value_for_an_actuator_arrives() {
    let port = free_port();
    let text = "[[actuator]]\nname = \"valve\"\npattern = \"valve/+\"\nbroker = \"local\"\ntopic = \"act/{2}\"\n\
                deadline_ms = 600000\n\
                [[actuator]]\nname = \"json\"\npattern = \"lamp\"\nbroker = \"local\"\n\
                payload = \"json\"\nat_start = true\n";
    let mut node = Node::start(&config(port, text));
    for value in ["0.1", "0.2", "0.3"] {
        put(&node, "valve/1", value);
    }
    put(&node, "lamp", "dim");
    put(&node, "other", "7");
    wait_until("what waits", || {
        status(&node)["actuators"][1]["waiting"] == 1
    });
    let Some(broker) = Broker::start() else {
        return;
    };
    let subscriber = Subscriber::start(broker.port);
    open_way(port, broker.port);
    wait_until("the values", || subscriber.all().len() == 2);
    let mut all = subscriber.all();
    all.sort();
    assert_eq!(all[0], ("act/1".to_owned(), "0.3".to_owned()));
    let lamp: Value = serde_json::from_str(&all[1].1).unwrap();
    assert_eq!(
        (all[1].0.as_str(), &lamp["value"]),
        ("keel/actuator/lamp", &"dim".into())
    );
    wait_until("the figures", || {
        status(&node)["actuators"][0]["delivered"] == 1
    });
    let found = status(&node);
    let valve = &found["actuators"][0];
    assert_eq!(
        (&valve["superseded"], &valve["keys"], &valve["late"]),
        (&2.into(), &1.into(), &0.into())
    );
    put(&node, "valve/2", "on");
    wait_until("the next one", || subscriber.all().len() == 3);
    assert_eq!(subscriber.all()[2], ("act/2".to_owned(), "on".to_owned()));
    assert!(node.stop().success());
    // After a start only values configured to be sent again are sent.
    node.restart();
    wait_until("the lamp", || subscriber.all().len() == 4);
    assert_eq!(subscriber.all()[3].0, "keel/actuator/lamp");
    put(&node, "valve/1", "0");
    wait_until("a new value", || subscriber.all().len() == 5);
    assert_eq!(subscriber.all()[4], ("act/1".to_owned(), "0".to_owned()));
    assert!(node.ok(&["status"]).starts_with("ok\n"));
    assert!(node.stop().success());
}

#[test]
fn a_value_that_a_task_writes_reaches_the_actuator() {
    let Some(broker) = Broker::start() else {
        return;
    };
    let subscriber = Subscriber::start(broker.port);
    // The program reads `boiler/celsius` and writes `boiler/valve` through the client library, fifty times a second.
    let text = format!(
        "[[task]]\nname = \"valve\"\ncommand = [{:?}, \"keel-data/keel.sock\", \"1000000\"]\n\
         [[actuator]]\nname = \"valve\"\npattern = \"boiler/valve\"\nbroker = \"local\"\ntopic = \"act/valve\"\n",
        example()
    );
    let mut node = Node::start(&config(broker.port, &text));
    wait_until("the task's declaration", || {
        status(&node)["tasks"][0]["declared_by"] == "program"
    });
    // Without a temperature the task writes nothing, so there is nothing to send.
    assert!(subscriber.all().is_empty());
    for (celsius, opening) in [("60", "40"), ("75", "25")] {
        put(&node, "boiler/celsius", celsius);
        wait_until("the task's value", || {
            let last = subscriber.all().pop();
            last == Some(("act/valve".to_owned(), opening.to_owned()))
        });
    }
    wait_until("the figures", || {
        status(&node)["actuators"][0]["delivered"].as_u64() >= Some(2)
    });
    let found = status(&node);
    let (task, actuator) = (&found["tasks"][0], &found["actuators"][0]);
    assert_eq!(
        (&task["state"], &task["failed"], &actuator["failed"]),
        (&"running".into(), &0.into(), &0.into()),
        "{found}"
    );
    assert!(node.stop().success());
}

#[test]
fn keys_beyond_the_limit_are_said_and_a_reload_waits_for_the_next_start() {
    let text = format!("{HOT}keys_max = 1\ncommand = [\"true\"]\n");
    let mut node = Node::start(&config(free_port(), &text));
    put(&node, "hall/1/temperature", "20");
    put(&node, "hall/2/temperature", "20");
    assert!(codes(&node).contains(&"alarm_unwatched".to_owned()));
    let file = node.dir.file("keel.toml");
    let changed = std::fs::read_to_string(&file)
        .unwrap()
        .replace("keys_max = 1\n", "keys_max = 9\n");
    std::fs::write(&file, changed).unwrap();
    node.signal(libc::SIGHUP);
    wait_until("the reload", || {
        codes(&node).contains(&"config_pending_restart".to_owned())
    });
    assert!(node.stop().success());
    node.restart();
    assert!(!codes(&node).contains(&"alarm_unwatched".to_owned()));
    assert_eq!(status(&node)["alarms"][0]["watched"], 2);
    assert!(node.stop().success());
}

#[test]
fn undelivered_messages_are_logged_when_the_node_ends() {
    let mut node = Node::start(&config(free_port(), &format!("{HOT}broker = \"local\"\n")));
    put(&node, "hall/1/temperature", "61");
    wait_until("the alarm", || {
        status(&node)["alarms"][0]["mqtt"]["waiting"] == 1
    });
    assert!(node.stop().success());
    let log = node.log();
    assert!(
        log.contains("1 message to brokers and 0 runs of commands were not delivered"),
        "{log}"
    );
}

#[test]
fn an_alarm_between_its_thresholds_is_still_raised_after_a_start() {
    let command = "command = [\"sh\", \"-c\", \"cat >> told\"]\n";
    let mut node = Node::start(&format!("{SMALL}{HOT}{command}"));
    let states = |node: &Node| -> Vec<String> {
        let told = std::fs::read_to_string(node.dir.file("told")).unwrap_or_default();
        let state = |line: &str| {
            let said: Value = serde_json::from_str(line).unwrap();
            format!("{} {}", said["state"].as_str().unwrap(), said["value"])
        };
        // The last line may be incomplete.
        let whole = told.rfind('\n').map_or("", |end| &told[..end]);
        whole.lines().map(state).collect()
    };
    let wait_for = |node: &Node, what: &[&str]| wait_until("the words", || states(node) == what);
    put(&node, "hall/1/temperature", "61.5");
    put(&node, "hall/1/temperature", "58");
    // This alarm is never raised.
    put(&node, "hall/2/temperature", "58");
    wait_for(&node, &["raised 61.5"]);
    assert!(node.stop().success());
    node.restart();
    wait_for(&node, &["raised 61.5", "raised 58"]);
    let active = status(&node)["alarms_active"].clone();
    assert_eq!(active[0]["key"], "hall/1/temperature");
    assert_eq!(active.as_array().unwrap().len(), 1);
    put(&node, "hall/1/temperature", "54");
    wait_for(&node, &["raised 61.5", "raised 58", "cleared 54"]);
    assert!(node.stop().success());
    node.restart();
    assert_eq!(status(&node)["alarms_active"].as_array().unwrap().len(), 0);
    // Nothing is reported between the last alarm and the next one.
    put(&node, "hall/1/temperature", "62");
    wait_for(
        &node,
        &["raised 61.5", "raised 58", "cleared 54", "raised 62"],
    );
    node.stop();
}

/// Whether this alarm is raised after a start, with a value between its thresholds.
fn is_raised(node: &Node) -> bool {
    !status(node)["alarms_active"].as_array().unwrap().is_empty()
}

#[test]
fn raised_alarms_outlive_a_crash_and_damage_is_reported() {
    let with_alarm = format!("{SMALL}{HOT}command = [\"true\"]\n");
    let mut node = Node::start(&with_alarm);
    put(&node, "hall/1/temperature", "61.5");
    put(&node, "hall/1/temperature", "58");
    wait_until("the file", || status(&node)["alarms_raised_writes"] == 1);
    node.kill();
    node.restart();
    assert!(is_raised(&node));
    assert!(node.stop().success());
    let image = node.dir.file("keel-data/store.img");
    let garbage = node.dir.file("garbage");
    std::fs::write(&garbage, "keelrais and nothing else").unwrap();
    crate::common::ok(&[
        "flash",
        "put",
        image.to_str().unwrap(),
        "node-raised",
        garbage.to_str().unwrap(),
    ]);
    node.restart();
    assert!(!is_raised(&node));
    wait_until("the complaint", || {
        node.log().contains("the file node-raised is damaged")
    });
    // Without alarms nothing is kept, so a later alarm of this name starts from scratch.
    put(&node, "hall/1/temperature", "61.5");
    put(&node, "hall/1/temperature", "58");
    assert!(node.stop().success());
    std::fs::write(node.dir.file("keel.toml"), SMALL).unwrap();
    node.restart();
    assert!(node.stop().success());
    std::fs::write(node.dir.file("keel.toml"), &with_alarm).unwrap();
    node.restart();
    assert!(!is_raised(&node));
    node.stop();
}

/// A receiver that was told of a raised alarm is also told of its end, if necessary by the next run.
#[test]
fn an_unreported_end_of_an_alarm_is_reported_after_the_start() {
    let script = "while ! test -e go; do sleep 0.05; done; cat >> told";
    let command = format!("command = [\"sh\", \"-c\", \"{script}\"]\n");
    let mut node = Node::start(&format!("{SMALL}{HOT}{command}"));
    put(&node, "hall/1/temperature", "61.5");
    put(&node, "hall/1/temperature", "54");
    wait_until("both runs", || {
        status(&node)["alarms"][0]["command"]["waiting"] == 2
    });
    assert!(node.stop().success());
    std::fs::write(node.dir.file("go"), "").unwrap();
    node.restart();
    wait_until("the end of the alarm", || {
        let told = std::fs::read_to_string(node.dir.file("told")).unwrap_or_default();
        told.contains("\"cleared\"")
    });
    node.stop();
}

#[test]
fn an_alarm_that_flaps_does_not_wear_the_card() {
    let mut node = Node::start(&format!("{SMALL}{HOT}command = [\"true\"]\n"));
    let begun = std::time::Instant::now();
    // Each pause is long enough for the alarm to be reported; without a rate limit, each would also be written.
    for value in ["61", "54"] {
        put(&node, "hall/1/temperature", value);
        std::thread::sleep(std::time::Duration::from_millis(3_500));
    }
    let writes = status(&node)["alarms_raised_writes"].as_u64().unwrap();
    // One write at once, then at most one every 10 s.
    let writes_max = 1 + begun.elapsed().as_secs() / 10;
    assert!((1..=writes_max).contains(&writes), "{writes}");
    node.stop();
}
