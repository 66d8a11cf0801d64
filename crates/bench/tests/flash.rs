//! The bench as a user runs it: a few repetitions, the report, nothing left behind.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

/// A folder that is removed when the test ends.
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

/// The reports of one run, by case, system and metric.
struct Rows(Vec<Value>);

impl Rows {
    fn value(&self, case: &str, system: &str, metric: &str) -> f64 {
        self.find(case, system, metric)["value"].as_f64().unwrap()
    }

    fn find(&self, case: &str, system: &str, metric: &str) -> &Value {
        let mut of = self.0.iter().filter(|row| {
            (row["case"] == case) && (row["system"] == system) && (row["metric"] == metric)
        });
        let row = of
            .next()
            .unwrap_or_else(|| panic!("{case} {system} {metric}"));
        assert!(of.next().is_none(), "{case} {system} {metric} stands twice");
        row
    }
}

const TIMED: [&str; 7] = [
    "append-4096-sync",
    "read-4096-random",
    "overwrite-4096-sync",
    "truncate-4096-sync",
    "create-sync",
    "rename-sync",
    "delete-sync",
];

#[test]
fn a_short_run_measures_every_case_on_every_system_and_leaves_nothing() {
    let folder = Folder::new("run");
    let dir = folder.0.to_str().unwrap();
    let json = folder.0.join("flash.json");
    let output = bench(&[
        "flash",
        "--quick",
        "--dir",
        dir,
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
    let rows = Rows(report["rows"].as_array().unwrap().clone());
    let ratios = report["ratios"].as_array().unwrap();
    let has_ratio = |case: &str, metric: &str, peer: &dyn Fn(&str) -> bool| {
        let mut of_case = ratios.iter().filter(|ratio| ratio["case"] == case);
        of_case.any(|ratio| ratio["metric"] == metric && peer(ratio["peer"].as_str().unwrap()))
    };
    for case in TIMED {
        for system in ["keel", "floor"] {
            assert!(
                rows.value(case, system, "latency_p50") <= rows.value(case, system, "latency_max")
            );
        }
        for metric in ["latency_p50", "latency_p99", "latency_p999"] {
            assert!(has_ratio(case, metric, &|peer| peer == "floor"));
            assert!(has_ratio(case, metric, &|peer| peer.ends_with("-sync")));
        }
    }
    let record = "record-100-sync";
    assert!(has_ratio(record, "latency_p50", &|peer| peer.starts_with("sqlite-")));

    // Counts do not depend on the machine: one write and one flush are the floor by definition.
    let append = "append-4096-sync";
    assert_eq!(rows.value(append, "floor", "device_writes_per_op"), 1.0);
    assert_eq!(rows.value(append, "floor", "device_flushes_per_op"), 1.0);
    assert_eq!(
        rows.value(append, "floor-8192", "device_written_per_op"),
        8.0
    );
    assert!(rows.value(append, "keel", "device_flushes_per_op") <= 1.0);
    assert!(rows.value(append, "keel", "device_writes_per_op") <= 2.0);
    assert!(
        rows.value("read-4096-random", "keel", "device_reads_per_op") >= 1.0,
        "reads come from the device"
    );

    // An unchanged block would not be written.
    let overwrite = "overwrite-4096-sync";
    assert!(rows.value(overwrite, "keel", "device_flushes_per_op") >= 1.0);
    assert!(rows.value("overwrite-4096-varied", "keel", "device_writes_max") >= 2.0);
    counts_are_judged(&rows);
    on_loops(&report, &rows);

    let left: Vec<_> = std::fs::read_dir(&folder.0)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["flash.json"]);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(dir), "still mounted: {mounts}");
}

/// Checks cases in which only the device operations matter: they are present, plausible, and have the right verdict.
fn counts_are_judged(rows: &Rows) {
    for kind in ["append-4096", "create", "delete"] {
        for place in ["varied", "many-files"] {
            let case = format!("{kind}-{place}");
            assert!(rows.value(&case, "keel", "calls") > 1000.0);
            for what in ["reads", "writes", "flushes"] {
                let row = rows.find(&case, "keel", &format!("device_{what}_max"));
                let (value, goal) = (&row["value"], &row["goal"]);
                let met = value.as_f64().unwrap() <= goal.as_f64().unwrap();
                assert_eq!(row["met"], met, "{row}");
            }
            assert!(rows.value(&case, "keel", "device_writes_max") >= 1.0);
        }
    }
    let blocks = rows.value("read-4096-large-file", "keel", "file_blocks");
    let reads = rows.find("read-4096-large-file", "keel", "device_reads_max");
    assert_eq!(reads["goal"].as_f64().unwrap(), 1.0 + blocks.log2().ceil());
    let mount = rows.find("mount-after-cut-16gib", "keel", "device_blocks_read_max");
    assert!(mount["value"].as_f64().unwrap() > 1.0);
    assert_eq!(mount["met"], true, "{mount}");
    assert!(rows.value("memory-16gib-32-open", "keel", "memory") > 4096.0);
}

/// If loop devices are permitted, the kernel's counts agree with ours; otherwise the report says so.
fn on_loops(report: &Value, rows: &Rows) {
    let missing = report["missing"].as_array().unwrap();
    if missing
        .iter()
        .any(|what| what.as_str().unwrap().contains("loop device"))
    {
        println!("skipped: this machine gives no loop device");
        return;
    }
    for case in TIMED {
        let case = format!("{case}-loop");
        assert!(rows.value(&case, "ext4-sync", "latency_p50") > 0.0);
    }
    assert!(
        rows.value(
            "record-100-sync-loop",
            "sqlite-wal-full",
            "device_written_per_op"
        ) > 4.0
    );
    let agreement = rows.find("counts-agree-loop", "keel", "difference");
    assert_eq!(agreement["value"], 0.0, "{agreement}");
    assert!(rows.value("counts-agree-loop", "block-layer", "flushes") > 500.0);
}

#[test]
fn the_papers_experiments_leave_tables_and_plots_and_nothing_else() {
    let folder = Folder::new("paper");
    let dir = folder.0.to_str().unwrap();
    let out = folder.0.join("out");
    let json = out.join("paper.json");
    let output = bench(&[
        "flash",
        "--paper",
        "--quick",
        "--dir",
        dir,
        "--out",
        out.to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
    ]);
    let error = String::from_utf8_lossy(&output.stderr);
    if error.contains("run as root") {
        println!("skipped: this machine gives no loop device");
        return;
    }
    assert!(output.status.success(), "{error}");
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let rows = Rows(report["rows"].as_array().unwrap().clone());
    let is_missing = |what: &str| {
        let mut missing = report["missing"].as_array().unwrap().iter();
        missing.any(|text| text.as_str().unwrap().contains(what))
    };
    let mut summary = std::fs::read_to_string(out.join("summary.csv")).unwrap();
    for scenario in [
        "append",
        "read",
        "open-new",
        "unlink-empty",
        "open-by-depth",
    ] {
        let table = std::fs::read_to_string(out.join(format!("{scenario}.csv"))).unwrap();
        assert_eq!(table.lines().count(), 301, "{scenario}");
        let columns = table.lines().next().unwrap().split(',').count();
        assert!(table.lines().all(|line| line.split(',').count() == columns));
        let svg = std::fs::read_to_string(out.join(format!("{scenario}.svg"))).unwrap();
        assert!(svg.matches("<polyline").count() > 10 && svg.contains("keel"));
        let png = std::fs::read(out.join(format!("{scenario}.png"))).unwrap();
        assert!(png.starts_with(b"\x89PNG") && png.len() > 10_000);
        summary = summary.replace(&format!("paper-{scenario},keel-sync,300,"), "found ");
    }
    assert_eq!(summary.matches("found ").count(), 5, "{summary}");
    // Durable calls flush; those without sync do not.
    for (system, flushes) in [("keel-sync", 0.9..=1.1), ("ext4-nosync", 0.0..=0.5)] {
        let measured = rows.value("paper-append", system, "device_flushes_per_op");
        assert!(flushes.contains(&measured), "{system}: {measured}");
    }
    // Opening is cold: each directory on the way is read from the device.
    for (system, reads_min) in [
        ("ext4-depth-4", 3.0),
        ("ext4-depth-16", 12.0),
        ("keel-sync", 1.0),
    ] {
        let reads = rows.value("paper-open-by-depth", system, "device_reads_per_op");
        assert!(reads >= reads_min, "{system}: {reads}");
    }
    assert!(is_missing("keel-nosync in open-new"));
    assert_eq!(
        is_missing("littlefs (built without"),
        cfg!(not(feature = "littlefs"))
    );
    let left: Vec<_> = std::fs::read_dir(&folder.0)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["out"]);
}

#[test]
fn appends_alone_are_a_run_of_their_own() {
    let folder = Folder::new("appends");
    let json = folder.0.join("appends.json");
    let output = bench(&[
        "flash",
        "--appends",
        "--quick",
        "--rounds",
        "7",
        "--dir",
        folder.0.to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let cases: std::collections::BTreeSet<_> = report["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["case"].as_str().unwrap().trim_end_matches("-loop"))
        .filter(|case| *case != "counts-agree")
        .collect();
    let expected = ["append-4096-sync", "record-100-sync", "sqlite-commit-wal"];
    assert!(
        cases.iter().all(|case| expected.contains(case)) && cases.len() >= 2,
        "{cases:?}"
    );
    for ratio in report["ratios"].as_array().unwrap() {
        let is_latency = ratio["metric"].as_str().unwrap().starts_with("latency");
        let of_rounds = &ratio["of_rounds"];
        assert_eq!(of_rounds.is_array(), is_latency, "{ratio}");
        assert!(of_rounds[0].as_f64() <= of_rounds[1].as_f64());
    }
}

#[test]
fn the_result_page_has_a_place_for_every_part() {
    let folder = Folder::new("page");
    let results = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let page = folder.0.join("flash.md");
    std::fs::copy(results.join("flash.md"), &page).unwrap();
    let before = std::fs::read_to_string(&page).unwrap();
    let output = bench(&[
        "flash-page",
        "--json",
        results.join("flash.json").to_str().unwrap(),
        "--appends",
        results.join("flash-appends.json").to_str().unwrap(),
        "--paper",
        results.join("flash-paper.json").to_str().unwrap(),
        "--page",
        page.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{output:?}");
    // The committed page is what the committed figures produce.
    assert_eq!(std::fs::read_to_string(&page).unwrap(), before);
}

#[test]
fn wrong_usage_is_status_2_and_an_impossible_folder_status_1() {
    assert_eq!(bench(&["flash", "--rounds", "4"]).status.code(), Some(2));
    assert_eq!(bench(&["tape"]).status.code(), Some(2));
    let output = bench(&["flash", "--dir", "/proc/none"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--dir"));
}
