//! `keel-bench db` and `keel-bench qos` as a user runs them, with little work: all cases are present, no goal is
//! judged, nothing is left behind. The result pages show what the stored figures give.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A folder that is removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("keel-bench-test-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn bench(arguments: &[&str], paths: &[(&str, &Path)]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keel-bench"));
    command.args(arguments);
    for (option, path) in paths {
        command.arg(option).arg(path);
    }
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_quick_run_of_the_data_path_has_every_case_and_judges_nothing() {
    let folder = Folder::new("db");
    let (json, out) = (folder.0.join("db.json"), folder.0.join("drawn"));
    let output = bench(
        &["db", "--quick"],
        &[("--dir", &folder.0), ("--json", &json), ("--out", &out)],
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(report["bench"], "db");
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| row.get("goal").is_none()));
    let missing = report["missing"].to_string();
    let has = |case: &str, system: &str, metric: &str| {
        rows.iter()
            .any(|row| row["case"] == case && row["system"] == system && row["metric"] == metric)
    };
    for system in ["keel", "dashmap", "lmdb", "berkeleydb", "sqlite", "rocksdb"] {
        if missing.contains(system) {
            println!("skipped: {system} is not installed");
            continue;
        }
        for case in ["get-100k-64", "get-1m-1024", "put-1m-64", "put-100k-1024"] {
            assert!(
                has(case, system, "latency_p50") && has(case, system, "latency_max"),
                "{case} {system}"
            );
        }
        assert_eq!(
            has("durable-lone", system, "latency_p50"),
            system != "dashmap"
        );
        assert_eq!(
            has("durable-64-writers", system, "rate_to_lone"),
            system != "dashmap"
        );
    }
    assert!(has("durable-lone", "write-and-flush", "latency_p50"));
    for metric in [
        "data_time_ratio",
        "puts_of_the_other",
        "refused_puts_of_the_other",
    ] {
        assert!(has("data-time", "keel", metric) || missing.contains("two processors"));
    }
    assert!(out.join("get-100k-64.svg").is_file() && out.join("durable-lone.png").is_file());
    let left: Vec<_> = std::fs::read_dir(&folder.0)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

/// The pages of the data path, of quality of service and of messages between boards.
#[test]
fn the_result_pages_agree_with_their_figures() {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let folder = Folder::new("pages");
    // The page of messages draws into its folder.
    let figures = folder.0.join("cluster");
    std::fs::create_dir(&figures).unwrap();
    for entry in std::fs::read_dir(results.join("cluster")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, figures.join(path.file_name().unwrap())).unwrap();
    }
    for (command, name, option, figures) in [
        ("db-page", "db.md", "--json", results.join("db.json")),
        ("node-page", "node.md", "--json", results.join("node.json")),
        ("qos-page", "qos.md", "--results", results.join("qos")),
        ("cluster-page", "cluster.md", "--results", figures),
    ] {
        let (page, made) = (results.join(name), folder.0.join(name));
        std::fs::copy(&page, &made).unwrap();
        let output = bench(&[command], &[(option, &figures), ("--page", &made)]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let [before, after] = [page, made].map(|page| std::fs::read_to_string(page).unwrap());
        assert_eq!(after, before, "{name}");
    }
}

#[test]
fn experiments_name_missing_options_in_one_line() {
    let folder = Folder::new("qos");
    let out = folder.0.join("found");
    let output = bench(&["qos", "workloads", "--plant", "real"], &[("--out", &out)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("--identified"),
        "{}",
        text(&output.stderr)
    );
    let wrong = folder.0.join("wrong.json");
    std::fs::write(&wrong, "{}").unwrap();
    let output = bench(
        &["qos", "workloads"],
        &[("--out", &out), ("--identified", &wrong)],
    );
    let line = text(&output.stderr);
    assert!(
        line.starts_with("keel-bench: ")
            && line.contains("wrong.json")
            && line.lines().count() == 1,
        "{line}"
    );
    let output = bench(&["qos", "no-such-experiment"], &[("--out", &out)]);
    assert_eq!(output.status.code(), Some(2));
}

/// Runs the real plant for some seconds: its threads run, are slowed and end. No figure is judged.
#[test]
fn a_quick_sweep_of_the_real_plant_leaves_nothing_behind() {
    let folder = Folder::new("qos-real");
    let out = folder.0.join("found");
    for engine in ["bdb", "native"] {
        let arguments = [
            "qos",
            "interference",
            "--keep-awake",
            "--plant",
            "real",
            "--quick",
            "--json",
            "--engine",
            engine,
        ];
        let output = bench(&arguments, &[("--dir", &folder.0), ("--out", &out)]);
        let line = text(&output.stderr);
        let is_lacking = [
            "takes two processors",
            "real-time threads",
            "is not installed",
        ];
        if !output.status.success() && is_lacking.iter().any(|lacking| line.contains(lacking)) {
            println!("skipped: {}", line.trim());
            continue;
        }
        assert!(output.status.success(), "{line}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["method"]["plant"], "real");
        assert!(out.join("interference-speed.csv").is_file());
        let left: Vec<_> = std::fs::read_dir(&folder.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, ["found"]);
        for place in ["cpu", "cpu,cpuacct"] {
            assert!(
                !Path::new("/sys/fs/cgroup")
                    .join(place)
                    .join("keel-qos-experiment")
                    .exists()
            );
        }
    }
}
