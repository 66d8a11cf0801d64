//! The commands that talk to a node, when something is wrong: with the node, its configuration, or the request.

use crate::common;
use crate::common::node::{Node, SMALL};
use crate::common::{TempDir, fails, keel, wait_until};
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::process::{Child, Output, Stdio};

fn spawn(arguments: &[&str], dir: &TempDir) -> Child {
    keel()
        .args(arguments)
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn clients_give_up_on_a_node_that_does_not_answer() {
    let dir = TempDir::new();
    std::fs::create_dir(dir.file("keel-data")).unwrap();
    std::fs::write(dir.file("keel.toml"), SMALL).unwrap();
    let _mute = UnixListener::bind(dir.file("keel-data/keel.sock")).unwrap();
    let commands: [&[&str]; 4] = [
        &["get", "a"],
        &["status"],
        &["history", "a"],
        &["watch", "a", "--node", "keel-data/keel.sock"],
    ];
    // All at the same time, because each takes as long as its timeout.
    let children: Vec<Child> = commands.iter().map(|each| spawn(each, &dir)).collect();
    for (child, command) in children.into_iter().zip(commands) {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{command:?}: {output:?}");
        assert!(output.stdout.is_empty(), "{command:?}: {output:?}");
        let line = common::one_line(&output.stderr);
        let told = "keel-data/keel.sock: the node has not answered for 10 s; look at its process";
        assert!(line.contains(told), "{command:?}: {line}");
    }
}

#[test]
fn the_socket_of_another_program_is_found_out() {
    // A node's own socket for line protocol, which parses a request as the beginning of a line.
    let node = Node::start(SMALL);
    let line = node.fails(&["status", "--node", "line.sock"], 1);
    assert!(line.contains("line.sock: "), "{line}");
    node.ok(&["put", "a", "1"]);
}

#[test]
fn a_mistake_in_the_configuration_takes_no_tool_away() {
    let mut node = Node::start(&format!("{SMALL}[node]\nsocket = \"moved.sock\"\n"));
    node.ok(&["put", "a", "1"]);
    let whole = std::fs::read_to_string(node.dir.file("keel.toml")).unwrap();
    for mistake in [
        "[keys]\nauto_creat = true\n",
        "[keys\n",
        "[time]\npast_days_max = \"\n",
    ] {
        // The mistake may also come first: the rest of the file is still read.
        for text in [format!("{whole}{mistake}"), format!("{mistake}{whole}")] {
            std::fs::write(node.dir.file("keel.toml"), &text).unwrap();
            for command in [
                &["get", "a"][..],
                &["put", "a", "1"],
                &["history", "a", "--limit", "1"],
                &["watch", "a", "--current", "--count", "1"],
                &["get", "a", "-c", "keel.toml"],
            ] {
                let output = node.run(command);
                assert!(output.status.success(), "{command:?} {text}: {output:?}");
                let warned = stderr(&output);
                let is_warning =
                    warned.starts_with("keel: warning: ") && warned.lines().count() == 1;
                assert!(is_warning && warned.contains("keel.toml:"), "{warned}");
            }
        }
    }
    // The node itself reports that it keeps its current configuration.
    node.signal(libc::SIGHUP);
    wait_until("the refusal", || node.log().contains(" refused, "));
    let output = node.run(&["status"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("config_refused"), "{output:?}");
    // If the socket itself is unknown because of the mistake, that is an error.
    for text in ["[node]\nsocket = 5\n", "node = 1\n"] {
        std::fs::write(node.dir.file("keel.toml"), text).unwrap();
        let line = node.fails(&["get", "a"], 1);
        assert!(line.starts_with("keel: keel.toml:"), "{line}");
    }
    node.fails(&["get", "a", "-c", "absent.toml"], 1);
    std::fs::write(node.dir.file("keel.toml"), whole).unwrap();
    assert!(node.stop().success());
}

#[test]
fn a_file_that_is_no_socket_is_named_as_such() {
    let node = Node::prepare(SMALL);
    for path in ["keel.toml", "."] {
        let line = node.fails(&["get", "a", "--node", path], 1);
        assert!(line.contains(&format!("{path}: is no socket; ")), "{line}");
    }
    // The hint names the configuration file in use.
    std::fs::write(node.dir.file("other.toml"), SMALL).unwrap();
    let line = node.fails(&["get", "a", "-c", "other.toml"], 1);
    assert!(
        line.contains("start it with `keel run -c other.toml`"),
        "{line}"
    );
    std::fs::create_dir_all(node.dir.file("keel-data/keel.sock")).unwrap();
    let line = node.fails(&["get", "a", "-c", "other.toml"], 1);
    assert!(
        line.contains("is no socket; mend node.socket in other.toml"),
        "{line}"
    );
}

#[test]
fn a_refusal_of_the_node_is_a_failure_and_no_wrong_usage() {
    let node = Node::start(&format!("{SMALL}[keys]\nkeys_max = 1\n"));
    node.ok(&["put", "a", "1"]);
    let long = "x".repeat(256);
    for (arguments, told) in [
        (&["put", "a", &long][..], "value_bytes_max"),
        (&["put", &long, "1"], "1 to 255 bytes"),
        (&["put", "", "1"], "1 to 255 bytes"),
        (&["put", "#", "1"], "no level that is + or # alone"),
        (&["put", "a/+", "1"], "no level that is + or # alone"),
        (&["put", "a\u{200b}", "1"], "invisible characters"),
        (&["put", "b", "1"], "keys_max"),
        (&["get", "b"], "no such key"),
    ] {
        let line = node.fails(arguments, 1);
        assert!(line.contains(told), "{line}");
    }
    for time in ["1980-01-01T00:00:00Z", "2200-01-01T00:00:00Z", "0"] {
        let line = node.fails(&["put", "a", "1", "--time", time], 1);
        let told = "; give a time in the years 2000 to 2199";
        assert!(line.ends_with(told), "{line}");
    }
    for arguments in [
        &["put", "a", "nan"][..],
        &["put", "a", "1", "--time", "yesterday"],
        &["watch", "a/#/b"],
        &["watch", ""],
    ] {
        node.fails(arguments, 2);
    }
}

#[test]
fn a_history_of_nothing_is_wrong_usage() {
    let node = Node::start(SMALL);
    node.ok(&["put", "hall/door", "open"]);
    for range in [
        ["--from", "now", "--to", "-1h"],
        ["--from", "now", "--to", "now"],
        ["--from", "-1h", "--to", "-60m"],
        ["--from", "2026-03-02", "--to", "2026-03-01"],
    ] {
        let line = node.fails(&[&["history", "hall/door"][..], &range].concat(), 2);
        assert!(line.contains("no time lies between --from "), "{line}");
    }
    node.ok(&["history", "hall/door", "--from", "-1h", "--to", "now"]);
    let line = node.fails(&["history", "hall/door", "--limit", "0"], 2);
    assert!(line.contains("--limit"), "{line}");
    for command in ["get", "history"] {
        for pattern in ["hall/#", "hall/+", "#"] {
            let line = node.fails(&[command, pattern], 1);
            let told = format!("{pattern}: no such key; patterns work in `keel watch`");
            assert!(line.contains(&told), "{line}");
        }
        let line = node.fails(&[command, "hall"], 1);
        assert!(!line.contains("patterns"), "{line}");
    }
}

#[test]
fn a_watch_ends_with_its_reader_though_nothing_changes() {
    let node = Node::start(SMALL);
    node.ok(&["put", "a", "1"]);
    let mut watch = spawn(&["watch", "#", "--current"], &node.dir);
    let mut output = BufReader::new(watch.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert!(line.contains("  a  1"), "{line}");
    drop(output);
    let mut status = None;
    wait_until("the end of the watch", || {
        status = watch.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.unwrap().success());
}

#[test]
fn ages_are_readable_and_exact_for_programs() {
    let node = Node::start(SMALL);
    for (time, told) in [("-15m", "age      15 min\n"), ("-3d", "age      3 days\n")] {
        // Use a separate key: an older reading would not become the latest value.
        let key = format!("past/{time}");
        node.ok(&["put", &key, "1", "--time", time]);
        let long = node.ok(&["get", &key, "--long"]);
        assert!(long.contains(told), "{long}");
        assert!(node.json(&["get", &key, "--json"])["age_ms"].as_i64() >= Some(900_000));
    }
    node.ok(&["put", "ahead", "1", "--time", "+5m"]);
    let long = node.ok(&["get", "ahead", "--long"]);
    assert!(long.contains("age      in "), "{long}");
    assert!(node.json(&["get", "ahead", "--json"])["age_ms"].is_i64());
}

#[test]
fn a_mistyped_command_is_recognised() {
    let line = fails(&["statsu"], 2);
    assert!(
        line.contains("'statsu'; did you mean `keel status`? "),
        "{line}"
    );
    let line = fails(&["flash", "fromat", "x"], 2);
    assert!(
        line.contains("did you mean `keel flash format`? "),
        "{line}"
    );
    let line = fails(&["get", "a", "--jsno"], 2);
    assert!(line.contains("did you mean `--json`? "), "{line}");
}
