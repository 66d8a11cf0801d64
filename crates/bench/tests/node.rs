//! The node's bench as a user runs it, with few readings: all cases are present, no goal is judged, nothing is left
//! behind.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

/// A folder that is removed when the test ends.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn has_mosquitto() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let beside = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(beside)
        .any(|folder| folder.join("mosquitto").is_file())
}

/// The whole node has every part that this machine permits, and what is missing is named.
fn check_parts(whole: &Value, missing: &[String]) {
    let parts = whole["parts"].as_object().unwrap();
    assert_eq!(parts.len(), 6, "{whole}");
    for (name, part) in parts {
        let is_present = part["present"].as_bool().unwrap();
        let reason = part["reason"].as_str().unwrap();
        let line = format!("whole-node-1024, {name}: {reason}");
        assert_eq!(missing.contains(&line), !is_present, "{whole}");
        let may_be_missing = name == "mount" && base::mount::why_root_cannot_mount().is_some();
        assert!(is_present || may_be_missing, "{line}");
    }
}

/// All that was sent has arrived on flash, upstream and at the page, and all parts have worked.
fn check_counts(whole: &Value) {
    let counts = &whole["counts"];
    let count = |name: &str| {
        counts[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name} in {whole}"))
    };
    // One reading of each sensor, and some for the job.
    assert!(count("readings_sent") > 1024, "{whole}");
    assert_eq!(count("readings_durable"), count("readings_sent"));
    assert_eq!(count("readings_upstream"), count("readings_sent"));
    assert!(
        count("page_sensors") >= 1024 && count("page_messages") > 0,
        "{whole}"
    );
    assert!(count("job_runs") > count("job_failed"), "{whole}");
    assert!(
        count("checkpoints") > 0 && count("region_writes") > 0,
        "{whole}"
    );
    // The start of the program, and a reading.
    assert!(count("task_lines") >= 2, "{whole}");
    if whole["parts"]["mount"]["present"] == true {
        assert!(count("mount_reads") > 0, "{whole}");
    }
}

#[test]
fn a_quick_run_has_every_case_or_says_that_it_is_missing_and_judges_nothing() {
    if !has_mosquitto() {
        println!("skipped: mosquitto is not installed");
        return;
    }
    let folder =
        Folder(std::env::temp_dir().join(format!("keel-bench-test-node-{}", std::process::id())));
    std::fs::create_dir(&folder.0).unwrap();
    let json = folder.0.join("node.json");
    let output = Command::new(env!("CARGO_BIN_EXE_keel-bench"))
        .args([
            "node",
            "--quick",
            "--dir",
            folder.0.to_str().unwrap(),
            "--json",
            json.to_str().unwrap(),
        ])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );

    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(report["bench"], "node");
    assert_eq!(report["method"]["quick"], true);
    assert_eq!(report["method"]["rounds_each"], 1);
    let list = |name: &str| report[name].as_array().unwrap().clone();
    let missing: Vec<String> = list("missing")
        .iter()
        .map(|what| what.as_str().unwrap().to_owned())
        .collect();
    let (rows, ratios) = (list("rows"), list("ratios"));
    // A run with this number of readings meets no goal and misses none.
    assert!(
        rows.iter()
            .chain(&ratios)
            .all(|figure| figure.get("met").is_none())
    );
    // A store of 20,000 readings must not be reported as one of ten million.
    assert!(rows.iter().all(|row| row["case"] != "restart-10m"));
    let value = |case: &str, system: &str, metric: &str| {
        let found = rows
            .iter()
            .find(|row| row["case"] == case && row["system"] == system && row["metric"] == metric);
        found.map(|row| row["value"].as_f64().unwrap())
    };
    let with_broker = [
        ("steady-260", "cpu_of_one_core"),
        ("steady-260", "resident_max"),
        ("acknowledged-rate", "acknowledged_per_second"),
        ("acknowledged-rate", "cpu_per_reading"),
        ("restart-20k", "first_acknowledged"),
    ];
    let has_keel = !missing.iter().any(|what| what.starts_with("keel:"));
    for (case, metric) in with_broker {
        for system in ["keel", "sqlite"] {
            let found = value(case, system, metric);
            if system == "keel" && !has_keel {
                assert_eq!(
                    found, None,
                    "{case} {metric} of a program that is not there"
                );
            } else {
                assert!(found.unwrap_or_else(|| panic!("{case} {system} {metric}")) > 0.0);
            }
        }
    }
    let wear = "bytes-per-reading-260";
    if missing.iter().any(|what| what.starts_with(wear)) {
        assert!(rows.iter().all(|row| row["case"] != wear));
    } else {
        for system in ["keel", "sqlite", "sqlite-indexed"] {
            // A reading has eight bytes of value, and at most 65 readings share a flush.
            assert!(value(wear, system, "device_written_per_reading").unwrap() > 8.0);
            assert!(value(wear, system, "device_flushes_per_reading").unwrap() >= 1.0 / 65.0);
        }
        assert!(
            ratios
                .iter()
                .any(|ratio| ratio["case"] == wear && ratio["peer"] == "sqlite")
        );
    }

    for case in ["times-node", "times-ms", "times-us", "times-ns"] {
        // A reading has eight bytes of value, and takes some of the processor's time.
        assert!(value(case, "keel", "log_bytes_per_reading").unwrap() > 8.0);
        assert!(value(case, "keel", "storage_cpu_per_reading").unwrap() > 0.0);
    }
    let bytes = |case| value(case, "keel", "log_bytes_per_reading").unwrap();
    // Each kind of times has bytes of its own: 23, 24 and 26, and what the log holds besides.
    assert!(bytes("times-ms") < bytes("times-us") && bytes("times-us") < bytes("times-ns"));

    let whole = &report["method"]["whole_node"];
    if whole.is_null() {
        assert!(
            missing
                .iter()
                .any(|what| what == "whole-node-1024: no program keel beside this one")
        );
    } else {
        check_parts(whole, &missing);
        check_counts(whole);
        let of = |metric: &str| value("whole-node-1024", "keel", metric).unwrap();
        assert!(of("cpu_of_node") > 0.0 && of("cpu_of_one_core") >= of("cpu_of_node"));
        assert!(of("resident_max_of_node") > 0.0 && of("resident_max_of_task") > 0.0);
        assert!(of("resident_max") >= of("resident_max_of_node"));
        if whole["parts"]["mount"]["present"] == true {
            assert!(of("resident_max_of_mount") > 0.0);
        }
    }

    let left: Vec<_> = std::fs::read_dir(&folder.0)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["node.json"]);
}
