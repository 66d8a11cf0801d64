//! The bench as a user runs it: a few repetitions, the report, nothing left behind.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

/// A folder that goes when the test does.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("keel-bench-test-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_keel-bench"))
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn a_short_run_measures_every_case_on_every_system_and_leaves_nothing() {
    let folder = Folder::new("run");
    let dir = folder.0.to_str().unwrap();
    let json = folder.0.join("flash.json");
    let output = bench(&[
        "flash",
        "--dir",
        dir,
        "--repetitions",
        "100",
        "--json",
        json.to_str().unwrap(),
    ]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );

    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(report["bench"], "flash");
    assert!(report["machine"]["cores"].as_u64().unwrap() > 0);
    let rows = report["rows"].as_array().unwrap();
    let row = |case: &str, system: &str, metric: &str| {
        let found = rows
            .iter()
            .find(|row| row["case"] == case && row["system"] == system && row["metric"] == metric);
        found.unwrap_or_else(|| panic!("{case} {system} {metric}"))["value"]
            .as_f64()
            .unwrap()
    };
    let ratios = report["ratios"].as_array().unwrap();
    let mut peers = ratios.iter().map(|ratio| ratio["peer"].as_str().unwrap());
    let peer = peers.find(|peer| *peer != "floor").unwrap().to_owned();
    assert!(peer.ends_with("-sync"), "{peer}");
    for case in [
        "append-4096-sync",
        "read-4096-random",
        "create-sync",
        "delete-sync",
    ] {
        for system in ["keel", "floor", &peer] {
            assert!(row(case, system, "latency_p50") <= row(case, system, "latency_max"));
        }
        for metric in ["latency_p50", "latency_p99", "latency_p999"] {
            assert!(
                ratios
                    .iter()
                    .any(|ratio| ratio["case"] == case && ratio["metric"] == metric)
            );
        }
    }
    // Counts do not depend on the machine: one write and one flush are the floor by definition.
    assert_eq!(
        row("append-4096-sync", "floor", "device_writes_per_op"),
        1.0
    );
    assert_eq!(
        row("append-4096-sync", "floor", "device_flushes_per_op"),
        1.0
    );
    assert!(row("append-4096-sync", "keel", "device_flushes_per_op") <= 1.0);
    assert!(row("append-4096-sync", "keel", "device_writes_per_op") <= 2.0);
    assert!(
        row("read-4096-random", "keel", "device_reads_per_op") >= 1.0,
        "reads come from the device"
    );

    let left: Vec<_> = std::fs::read_dir(&folder.0)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["flash.json"]);
}

#[test]
fn wrong_usage_is_status_2_and_an_impossible_folder_status_1() {
    assert_eq!(bench(&["flash", "--rounds", "4"]).status.code(), Some(2));
    assert_eq!(bench(&["tape"]).status.code(), Some(2));
    let output = bench(&["flash", "--dir", "/proc/none"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--dir"));
}
