//! Nodes that the kernel confines: to the system calls of a list, and to the folders of their files.

use crate::common::node::{Node, SMALL};
use crate::common::{TempDir, wait_until};
use std::fs;
use std::os::unix::fs::symlink;

/// Returns whether this kernel has filters that log; prints why not.
fn has_filters() -> bool {
    let actions = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail");
    let has_them = actions.is_ok_and(|text| text.split_whitespace().any(|action| action == "log"));
    if !has_them {
        println!("skipped: this kernel has no filters of system calls that log");
    }
    has_them
}

/// Uses a node as its clients do: values, history, status, a reload, and its end.
fn use_it(node: &mut Node) {
    node.ok(&["put", "door", "open"]);
    node.ok(&["put", "oven", "21.5"]);
    assert!(node.ok(&["get", "door"]).starts_with("open"));
    assert_eq!(
        node.json(&["history", "oven", "--json"])
            .as_array()
            .unwrap()
            .len(),
        1
    );
    node.json_degraded(&["status", "--json"]);
    node.signal(libc::SIGHUP);
    wait_until("the reload", || node.log().contains(" reload: applied"));
    assert!(node.stop().success(), "{}", node.log());
}

#[test]
fn a_node_serves_with_filters_of_its_calls() {
    if !has_filters() {
        return;
    }
    for mode in ["logged", "listed"] {
        let mut node = Node::start(&format!("[node]\nsystem_calls = \"{mode}\"\n{SMALL}"));
        // 2 stands for a filter.
        for thread in fs::read_dir(format!("/proc/{}/task", node.pid())).unwrap() {
            // A thread may end meanwhile.
            let path = thread.unwrap().path().join("status");
            let status = fs::read_to_string(path).unwrap_or_default();
            assert!(
                status.is_empty() || status.contains("Seccomp:\t2"),
                "{mode}: {status}"
            );
        }
        assert!(node.log().contains(" system-calls: "), "{}", node.log());
        use_it(&mut node);
        node.restart();
        assert!(node.ok(&["get", "door"]).starts_with("open"), "{mode}");
        // No part of the node misses a call.
        let told = node.run(&["status"]).stdout;
        let told = String::from_utf8(told).unwrap();
        assert!(!told.contains("not permitted"), "{mode}: {told}");
        assert!(node.stop().success(), "{mode}: {}", node.log());
    }
}

#[test]
fn a_node_serves_within_its_folders() {
    let mut node = Node::start(&format!("[node]\npaths = \"listed\"\n{SMALL}"));
    let log = node.log();
    let said = log.lines().find(|line| line.contains(" paths: "));
    let said = said.unwrap_or_else(|| panic!("{log}"));
    if said.contains("skipped: this kernel has no Landlock") {
        println!("skipped: this kernel has no Landlock");
    }
    use_it(&mut node);
}

#[test]
fn a_reload_that_names_a_file_outside_the_listed_folders_waits_for_a_restart() {
    let with_password = |file: &str| {
        let keys = "address = \"127.0.0.1:1\"\nusername = \"u\"\n";
        format!(
            "[node]\npaths = \"listed\"\n{SMALL}\
             [[upstream]]\nname = \"up\"\nkind = \"mqtt\"\nclient_id = \"up\"\n{keys}password_file = \"of-upstream\"\n\
             [mqtt]\nclient_id = \"in\"\n{keys}password_file = \"{file}\"\n[[mqtt.subscribe]]\nfilter = \"a\"\n"
        )
    };
    let outside = TempDir::new();
    let secret = outside.file("secret");
    fs::write(&secret, "outside\n").unwrap();
    let mut node = Node::prepare(&with_password("first"));
    for name in ["first", "second", "of-upstream"] {
        fs::write(node.dir.file(name), "word\n").unwrap();
    }
    node.restart();
    if node.log().contains("skipped: this kernel has no Landlock") {
        println!("skipped: this kernel has no Landlock");
        return;
    }
    let reload = |file: &str, told: &str, times: usize| {
        fs::write(node.dir.file("keel.toml"), with_password(file)).unwrap();
        node.signal(libc::SIGHUP);
        let words = format!(" reload: applied: {told}");
        wait_until(&words, || node.log().matches(&words).count() == times);
    };
    // A file that is not the one of the start, in a folder that is.
    reload("second", "mqtt; needs a restart: nothing", 1);
    let refused = "nothing; needs a restart: mqtt.password_file";
    reload(secret.to_str().unwrap(), refused, 1);
    let status = node.json_degraded(&["status", "--json"]);
    let pending = &status["node"]["config_pending_restart"];
    assert_eq!(pending[0], "mqtt.password_file", "{status}");
    // A link leads out of the folders as well.
    symlink(&secret, node.dir.file("link")).unwrap();
    reload("link", refused, 2);
    // What is opened without a reload has the remedy.
    fs::remove_file(node.dir.file("of-upstream")).unwrap();
    symlink(&secret, node.dir.file("of-upstream")).unwrap();
    wait_until("the remedy", || {
        let status = node.json_degraded(&["status", "--json"]);
        let why = status["upstream"][0]["last_error"].to_string();
        why.contains("node.paths") && why.contains("start the node again")
    });
    // The restart is the remedy.
    assert!(node.stop().success(), "{}", node.log());
    node.restart();
    let log = node.log();
    assert!(!log.contains("ermission denied"), "{log}");
    assert!(node.stop().success(), "{log}");
}
