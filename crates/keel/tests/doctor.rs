//! `keel doctor`: each line has a verdict and a remedy, the exit status says whether all is well, and the page contains
//! nothing that identifies the machine's owner.

use crate::common::{TempDir, one_line, text};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

#[test]
fn every_line_has_a_verdict_and_the_status_follows() {
    let dir = TempDir::new();
    let place = dir.path().to_str().unwrap();
    let output = crate::common::run(&["doctor", "--dir", place, "--json"]);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = found["findings"].as_array().unwrap();
    let subjects: Vec<_> = findings
        .iter()
        .map(|finding| finding["subject"].as_str().unwrap())
        .collect();
    assert_eq!(
        subjects,
        [
            "real-time scheduling",
            "kernel preemption",
            "locked memory",
            "huge pages",
            "frequency control",
            "power sources",
            "FUSE",
            "clock trust",
            "open files",
            "write latency",
        ]
    );
    for finding in findings {
        let is_ok = match finding["verdict"].as_str().unwrap() {
            "ok" => true,
            "limited" | "missing" => false,
            other => panic!("{other}"),
        };
        assert_eq!(
            is_ok,
            finding["remedy"].as_str().unwrap().is_empty(),
            "{finding}"
        );
    }
    let all_ok = findings.iter().all(|finding| finding["verdict"] == "ok");
    assert_eq!(output.status.code(), Some(if all_ok { 0 } else { 3 }));
    assert!(found["card"]["writes"].as_u64().unwrap() > 0, "{found}");
    assert!(found["machine"]["cores"].as_u64().unwrap() > 0, "{found}");
    let output = crate::common::run(&["doctor", "--dir", place]);
    let (status, printed, _) = text(&output);
    assert_eq!(status, Some(if all_ok { 0 } else { 3 }));
    for subject in subjects {
        assert!(printed.contains(subject), "{printed}");
    }
    let left = dir.entries();
    assert!(left.is_empty(), "the measured file is there: {left:?}");
}

#[test]
fn a_user_without_rights_is_told_what_is_missing() {
    let dir = TempDir::new();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let Some(output) = crate::common::as_nobody(&["doctor", "--json"], &dir) else {
        return;
    };
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let verdict = |subject: &str| {
        let mut findings = found["findings"].as_array().unwrap().iter();
        findings
            .find(|finding| finding["subject"] == subject)
            .unwrap()["verdict"]
            .clone()
    };
    assert_eq!(verdict("real-time scheduling"), "missing");
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn what_cannot_be_found_out_is_a_failure() {
    let dir = TempDir::new();
    let missing = dir.file("missing").display().to_string();
    let line = crate::common::fails(&["doctor", "--dir", &missing], 1);
    assert!(line.contains("is no folder"), "{line}");
    // A folder without a measurable card is a finding, and suppresses no other finding.
    let said = crate::common::run(&["doctor", "--dir", "/proc"]);
    assert_eq!(said.status.code(), Some(3));
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("\nmissing  write latency"), "{said}");
    assert!(said.contains("open files"), "{said}");
    let place = dir.path().to_str().unwrap();
    let page = dir.file("page.txt").display().to_string();
    let line = crate::common::fails(&["doctor", "--dir", place, "--report", &page], 2);
    assert!(line.contains(".md or .html"), "{line}");
    std::fs::write(dir.file("there.md"), "mine").unwrap();
    let page = dir.file("there.md").display().to_string();
    crate::common::fails(&["doctor", "--dir", place, "--report", &page], 1);
    assert_eq!(std::fs::read_to_string(page).unwrap(), "mine");
}

/// Returns the program in its own folder, with a `keel-bench` beside it that measures nothing.
fn beside_a_bench(dir: &TempDir) -> Command {
    let (keel, bench) = (dir.file("keel"), dir.file("keel-bench"));
    let built = env!("CARGO_BIN_EXE_keel");
    if std::fs::hard_link(built, &keel).is_err() {
        std::fs::copy(built, &keel).unwrap();
    }
    let script = r#"#!/bin/sh
case $1 in flash) ;; *) exit 1 ;; esac
[ "$2 $3 $5" = "--quick --dir --json" ] || exit 2
printf '{"bench": "flash", "rows": [{"case": "append-4096-sync", "system": "keel", "metric": "latency_p50",
    "unit": "us", "value": 12.25}], "ratios": [], "missing": ["%s"]}' "$4" > "$6"
"#;
    std::fs::write(&bench, script).unwrap();
    std::fs::set_permissions(&bench, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(keel);
    command.stdin(Stdio::null()).current_dir(dir.path());
    command
}

#[test]
fn the_page_can_be_shared() {
    let dir = TempDir::new();
    std::fs::create_dir(dir.file("card")).unwrap();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for name in ["page.md", "page.html"] {
        let mut command = beside_a_bench(&dir);
        let output = command
            .args(["doctor", "--dir", "card", "--report", name])
            .output()
            .unwrap();
        assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
        let page = std::fs::read_to_string(dir.file(name)).unwrap();
        for there in [
            "append-4096-sync",
            "12.250",
            "write latency",
            "exit status 1",
        ] {
            assert!(page.contains(there), "{there}: {page}");
        }
        for absent in [
            host.trim(),
            dir.path().to_str().unwrap(),
            "card/",
            "/home",
            "/root",
            "/tmp",
        ] {
            assert!(!page.contains(absent), "{absent}: {page}");
        }
        std::fs::remove_file(dir.file("keel")).unwrap();
    }
    let output = beside_a_bench(&dir)
        .args(["doctor", "--report"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    one_line(&output.stderr);
}
