//! `keel demo --full` as a process: each promise has a figure, the exit status agrees with the figures, and nothing is
//! left behind.

use crate::common::{TempDir, keel, mem};
use serde_json::Value;
use std::process::{Output, Stdio};

/// Runs the demo. Checks that nothing of its region is left.
fn demo(dir: &TempDir, arguments: &[&str]) -> Option<Output> {
    let library = mem::library()?;
    let demo = keel()
        .args(["demo", "--full"])
        .args(arguments)
        .env("TMPDIR", dir.path())
        .env("KEEL_MEM_LIBRARY", library)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let name = format!("keel-demo-{}.", demo.id());
    let output = demo.wait_with_output().unwrap();
    if let Ok(entries) = std::fs::read_dir("/dev/shm") {
        let left = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let left: Vec<_> = left.filter(|left| left.starts_with(&name)).collect();
        assert_eq!(left, [""; 0]);
    }
    Some(output)
}

/// Returns whether each promise was kept, in the order of the summary.
fn kept(summary: &Value) -> Vec<Option<bool>> {
    let promises = summary["promises"].as_array().unwrap();
    promises
        .iter()
        .map(|promise| promise["kept"].as_bool())
        .collect()
}

#[test]
fn every_promise_has_its_figure_and_nothing_is_left() {
    let dir = TempDir::new();
    let Some(output) = demo(&dir, &["--json", "--seconds", "120", "--speed", "10"]) else {
        return;
    };
    let summary: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let all = kept(&summary);
    assert_eq!(all.len(), 8, "{summary}");
    let failures = summary["failures"].as_array().unwrap();
    assert_eq!(
        all.contains(&Some(false)),
        !failures.is_empty(),
        "{summary}"
    );
    assert_eq!(
        output.status.code(),
        Some(i32::from(!failures.is_empty())),
        "{summary}"
    );
    // Lateness is allowed on a loaded machine; nothing else may fail because of it.
    let late = ["Deadlines hold", "After a power cut"];
    let promise = |begin: &str| {
        let promises = summary["promises"].as_array().unwrap();
        let found = promises
            .iter()
            .find(|one| one["promise"].as_str().unwrap().starts_with(begin));
        found
            .unwrap_or_else(|| panic!("{begin}: {summary}"))
            .clone()
    };
    for failure in failures {
        let text = failure.as_str().unwrap();
        assert!(
            late.iter()
                .any(|begin| text.starts_with(&format!("not kept: {begin}"))),
            "{text}"
        );
    }
    let durable = promise("A reading that was acknowledged");
    assert_eq!(durable["values"]["missing"], 0);
    assert!(
        durable["values"]["acknowledged"].as_u64() > Some(20_000),
        "{durable}"
    );
    let back = promise("After a power cut");
    assert!(
        back["values"]["restored_generation"].as_u64() > Some(0),
        "{back}"
    );
    assert!(
        back["values"]["readings_ms"].is_number() && back["values"]["task_ms"].is_number(),
        "{back}"
    );
    let shared = promise("Hot files");
    assert!(shared["values"]["reads"].as_u64() > Some(20), "{shared}");
    let streamed = promise("A program runs from the network");
    if streamed["kept"].is_null() {
        println!("skipped: {}", streamed["figure"]);
    } else {
        assert_eq!(streamed["values"]["connects"], 0, "{streamed}");
    }
    assert!(promise("The node says")["values"]["runs"].as_u64() > Some(0));
    assert!(promise("What was stored goes upstream")["values"]["lines"].as_u64() > Some(20_000));
    assert!(dir.entries().is_empty(), "{:?}", dir.entries());
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(
        !mounts.contains(&dir.path().display().to_string()),
        "{mounts}"
    );
}
