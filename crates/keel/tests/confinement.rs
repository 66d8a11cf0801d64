//! Nodes that the kernel confines: to the system calls of a list, and to the folders of their files.

use crate::common::node::{Node, SMALL};
use std::fs;

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
    crate::common::wait_until("the reload", || node.log().contains(" reload: applied"));
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
