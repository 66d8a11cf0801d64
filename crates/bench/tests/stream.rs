//! `keel bench stream` as a process: that it measures what it can, names what it cannot, and leaves nothing behind. No
//! figure is judged here.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("keel-stream-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn bench(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keel-bench"));
        command.args(["stream", "--quick", "--dir"]).arg(&self.0);
        command.stdin(Stdio::null());
        command
    }

    /// Mounts and loop devices of this folder, and what lies in it.
    fn leftovers(&self) -> Vec<String> {
        let name = self.0.to_string_lossy();
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let mut found: Vec<String> = mounts
            .lines()
            .filter(|line| line.contains(&*name))
            .map(str::to_owned)
            .collect();
        for device in std::fs::read_dir("/sys/block")
            .into_iter()
            .flatten()
            .flatten()
        {
            let file = std::fs::read_to_string(device.path().join("loop/backing_file"));
            found.extend(file.ok().filter(|file| file.contains(&*name)));
        }
        let entries = std::fs::read_dir(&self.0).unwrap();
        found.extend(entries.map(|entry| entry.unwrap().path().display().to_string()));
        found
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What a failed test has left mounted must not be emptied.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Why this machine cannot run it at all.
fn is_skipped() -> bool {
    let keel = Path::new(env!("CARGO_BIN_EXE_keel-bench")).with_file_name("keel");
    // SAFETY: the call only says who the process is.
    let lacking = if unsafe { libc::geteuid() } != 0 {
        Some("networks and mounts take root")
    } else if !Path::new("/dev/fuse").exists() {
        Some("there is no /dev/fuse")
    } else if !keel.is_file() {
        Some("the program keel was not built with this one")
    } else {
        None
    };
    if let Some(lacking) = lacking {
        println!("skipped: {lacking}");
    }
    lacking.is_some()
}

/// Whether a run ended at once because the machine does not allow it; says why.
fn is_refused(output: &Output) -> bool {
    let errors = String::from_utf8_lossy(&output.stderr);
    let reasons = [
        "a network:",
        "not installed",
        "mounts of its own",
        "MiB needed",
        "tc:",
        "ip:",
        "RTNETLINK",
    ];
    let is_refused =
        !output.status.success() && reasons.iter().any(|reason| errors.contains(reason));
    if is_refused {
        println!("skipped: {}", errors.trim());
    }
    is_refused
}

#[test]
fn a_short_run_measures_and_leaves_nothing_behind() {
    if is_skipped() {
        return;
    }
    let folder = Folder::new("short");
    let file = std::env::temp_dir().join(format!("keel-stream-short-{}.json", std::process::id()));
    let output = folder.bench().arg("--json").arg(&file).output().unwrap();
    assert_eq!(folder.leftovers(), Vec::<String>::new());
    if is_refused(&output) {
        return;
    }
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(report["bench"], "stream");
    let missing = report["missing"].to_string();
    let rows = report["rows"].as_array().unwrap();
    let has = |case: &str, system: &str, metric: &str| {
        rows.iter()
            .any(|row| row["case"] == case && row["system"] == system && row["metric"] == metric)
    };
    if missing.contains("perl (") {
        println!("skipped: {missing}");
        return;
    }
    let start = "start-perl-100-mbit-10-ms";
    for system in ["keel", "readahead", "ext4", "bound"] {
        assert!(has(start, system, "run_time"), "{system}: {missing}");
    }
    for metric in ["wire_bytes", "round_trips", "page_time", "pushed_blocks"] {
        assert!(has(start, "keel", metric), "{metric}: {missing}");
    }
    assert!(
        has("first-perl-100-mbit-10-ms", "keel", "run_time"),
        "{missing}"
    );
    assert!(
        has("start-perl-1000-mbit-0-ms", "keel", "run_time"),
        "{missing}"
    );
    assert!(rows.iter().all(|row| row["value"].as_f64() >= Some(0.0)));
    assert!(
        rows.iter().all(|row| row.get("goal").is_none()),
        "a short run is not judged"
    );
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    if is_skipped() {
        return;
    }
    let folder = Folder::new("interrupted");
    let mut child = folder
        .bench()
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let at_work = folder
        .0
        .join(format!("keel-bench-{}/perl/ext4.disk", child.id()));
    while !at_work.exists() {
        if let Some(status) = child.try_wait().unwrap() {
            println!("skipped: it ended before it could be interrupted ({status})");
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // SAFETY: a signal to a child that has not been waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(errors.contains("interrupted"), "{errors}");
    assert!(!errors.contains("by hand"), "{errors}");
    assert_eq!(folder.leftovers(), Vec::<String>::new());
}

#[test]
fn the_result_page_is_what_the_figures_beside_it_give() {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let (figures, page) = (results.join("stream"), results.join("stream.md"));
    if !figures.join("paper.json").is_file() || !page.is_file() {
        println!("skipped: {} has not been measured yet", figures.display());
        return;
    }
    let before = std::fs::read_to_string(&page).unwrap();
    let made = std::env::temp_dir().join(format!("keel-stream-page-{}.md", std::process::id()));
    std::fs::write(&made, &before).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_keel-bench"));
    command
        .arg("stream-page")
        .arg("--results")
        .arg(&figures)
        .arg("--page")
        .arg(&made);
    let output = command.output().unwrap();
    let after = std::fs::read_to_string(&made).unwrap();
    std::fs::remove_file(&made).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(after, before);
}
