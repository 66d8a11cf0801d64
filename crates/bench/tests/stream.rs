//! `keel bench stream` as a process: it measures what it can, names what it cannot, and leaves nothing behind. No
//! figure is judged here.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
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

    /// Returns mounts, loop devices and processes of this folder, groups and loop devices of these runs, and the
    /// content of the folder.
    fn leftovers(&self, runs: &[u32]) -> Vec<String> {
        let name = self.0.to_string_lossy();
        let is_of_a_run = |path: &str| {
            path.contains("keel-bench-") && runs.iter().any(|run| path.contains(&format!("-{run}")))
        };
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let mut found: Vec<String> = mounts
            .lines()
            .filter(|line| line.contains(&*name))
            .map(str::to_owned)
            .collect();
        for device in entries("/sys/block") {
            let file = std::fs::read_to_string(device.join("loop/backing_file"));
            found.extend(
                file.ok()
                    .filter(|file| file.contains(&*name) || is_of_a_run(file)),
            );
        }
        for process in entries("/proc") {
            let words = std::fs::read(process.join("cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).replace('\0', " ");
            found.extend(words.contains(&*name).then_some(words));
        }
        for parent in [
            "/sys/fs/cgroup/blkio",
            "/sys/fs/cgroup/memory",
            "/sys/fs/cgroup",
        ] {
            let groups = entries(parent).map(|group| group.display().to_string());
            found.extend(groups.filter(|group| is_of_a_run(group)));
        }
        found.extend(entries(&name).map(|path| path.display().to_string()));
        found
    }

    /// Starts a run, and kills it when it has disks, groups and mounts. Returns its process ID, or `None` if it has
    /// ended before.
    fn kill_one(&self) -> Option<u32> {
        let mut child = self
            .bench()
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let id = child.id();
        if !wait_for(
            &mut child,
            &self.0.join(format!("keel-bench-{id}/perl/store")),
        ) {
            return None;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        Some(id)
    }
}

fn entries(folder: &str) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// Waits until the path exists. Returns false if the child has ended before.
fn wait_for(child: &mut Child, path: &Path) -> bool {
    while !path.exists() {
        if let Some(status) = child.try_wait().unwrap() {
            println!(
                "skipped: it ended before {} was there ({status})",
                path.display()
            );
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A mount left by a failed test must not be emptied, so remove the folder only if it is empty.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Returns whether this machine cannot run the bench at all; prints the reason.
fn is_skipped() -> bool {
    let keel = Path::new(env!("CARGO_BIN_EXE_keel-bench")).with_file_name("keel");
    // SAFETY: the call only returns the identity of the process.
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

/// Whether a run ended at once because the machine does not allow it; prints the reason.
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
fn a_short_run_measures_leaves_nothing_behind_and_removes_the_rest_of_a_killed_run() {
    if is_skipped() {
        return;
    }
    let folder = Folder::new("short");
    let file = std::env::temp_dir().join(format!("keel-stream-short-{}.json", std::process::id()));
    let csv = file.with_extension("csv");
    let killed = folder.kill_one();
    let left = folder.leftovers(killed.as_slice());
    assert_eq!(
        killed.is_some(),
        left.iter().any(|what| what.contains(".disk")),
        "{left:?}"
    );
    let mut command = folder.bench();
    command.arg("--json").arg(&file).arg("--csv").arg(&csv);
    command
        .args(["--commit", "abc"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let runs: Vec<u32> = killed.into_iter().chain([child.id()]).collect();
    let output = child.wait_with_output().unwrap();
    assert_eq!(folder.leftovers(&runs), Vec::<String>::new(), "{output:?}");
    if is_refused(&output) {
        return;
    }
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(killed.is_some(), said.contains("taken away"), "{said}");
    let table = std::fs::read_to_string(&csv).unwrap();
    std::fs::remove_file(&csv).unwrap();
    assert!(
        table.contains("\nstart-perl-100-mbit-10-ms,keel,run_time,ms,1,"),
        "{table}"
    );
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(report["bench"], "stream");
    let method = &report["method"];
    assert_eq!(method["commit"], "abc");
    assert_eq!(method["command"], "keel bench stream --quick");
    assert_eq!(
        method["readahead_kib"]["readahead"],
        serde_json::json!([128])
    );
    assert_eq!(method["readahead_kib"]["keel"], serde_json::json!([0]));
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
    let id = child.id();
    if !wait_for(
        &mut child,
        &folder.0.join(format!("keel-bench-{id}/perl/ext4.disk")),
    ) {
        return;
    }
    // SAFETY: a signal to a child that has not been waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(errors.contains("interrupted"), "{errors}");
    assert!(!errors.contains("by hand"), "{errors}");
    assert_eq!(folder.leftovers(&[id]), Vec::<String>::new());
}

#[test]
fn the_result_page_agrees_with_its_figures() {
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
