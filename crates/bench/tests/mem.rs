//! `keel-bench mem` as a process: it measures what it can, names what it cannot, and leaves nothing behind. No figure
//! is judged here.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("keel-mem-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn bench(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keel-bench"));
        command.args(["mem", "--quick", "--dir"]).arg(&self.0);
        command.stdin(Stdio::null());
        command
    }

    /// Returns the lines of the kernel's list of mounts that belong to this folder.
    fn mounts(&self) -> Vec<String> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let of_this = |line: &&str| line.contains(&*self.0.to_string_lossy());
        mounts.lines().filter(of_this).map(str::to_owned).collect()
    }

    /// Returns the loop devices over files of this folder.
    fn loop_devices(&self) -> Vec<String> {
        let devices = std::fs::read_dir("/sys/block").into_iter().flatten();
        let backing = devices.flatten().filter_map(|device| {
            std::fs::read_to_string(device.path().join("loop/backing_file")).ok()
        });
        backing
            .filter(|file| file.contains(&*self.0.to_string_lossy()))
            .collect()
    }

    fn leftovers(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A mount left by a failed test must not be emptied, so remove the folder only if it is empty.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Returns whether this machine cannot run the bench at all; prints the reason.
fn is_skipped() -> bool {
    // SAFETY: the call only returns the identity of the process.
    let lacking = if unsafe { libc::geteuid() } != 0 {
        Some("mounting file systems takes root")
    } else if available_mebibytes() < 2048 {
        Some("less than 2 GiB of memory are available")
    } else {
        None
    };
    if let Some(lacking) = lacking {
        println!("skipped: {lacking}");
    }
    lacking.is_some()
}

fn available_mebibytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    number.unwrap_or(0_u64) >> 10
}

fn has(report: &Value, list: &str, case: &str, key: &str, name: &str) -> bool {
    let mut rows = report[list].as_array().unwrap().iter();
    rows.any(|row| row["case"] == case && row[key] == name)
}

#[test]
fn a_short_run_measures_and_leaves_nothing_behind() {
    if is_skipped() {
        return;
    }
    let folder = Folder::new("short");
    let file = std::env::temp_dir().join(format!("keel-mem-short-{}.json", std::process::id()));
    let mut command = folder.bench();
    command.args(["--only", "tight,map,attach,takeover", "--json"]);
    let output = command.arg(&file).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(folder.mounts(), [""; 0]);
    assert_eq!(folder.loop_devices(), [""; 0]);
    assert_eq!(folder.leftovers(), Vec::<PathBuf>::new());
    if !output.status.success() && errors.contains("mount:") {
        // For example, in a container without the permission.
        println!("skipped: {}", errors.trim());
        return;
    }
    assert!(output.status.success(), "{errors}");
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let page = std::env::temp_dir().join(format!("keel-mem-short-{}.md", std::process::id()));
    std::fs::copy(results().join("mem.md"), &page).unwrap();
    let made = make_page(&file, &page);
    std::fs::remove_file(&file).unwrap();
    let text = std::fs::read_to_string(&page).unwrap();
    std::fs::remove_file(&page).unwrap();
    assert!(made.status.success(), "{made:?}");
    assert!(text.contains("| random write | "), "{text}");
    assert_eq!(report["bench"], "mem");
    let missing = report["missing"].to_string();
    let case = "tight-random-write-4096";
    assert!(has(&report, "rows", case, "system", "tmpfs"));
    for metric in ["wait_p50", "wait_p99", "wait_max"] {
        let case = "takeover-write-16384";
        assert!(has(&report, "rows", case, "metric", metric), "{metric}");
    }
    // If only this crate is built, the library is missing or has an older format.
    if missing.contains("libkeelmem.so") || missing.contains("is not supported, only") {
        println!("skipped: the preloaded library was not built with this program: {missing}");
    } else {
        for case in [case, "map-16-mib", "open-read-1-mib"] {
            assert!(
                has(&report, "rows", case, "system", "keel"),
                "{case}: {missing}"
            );
            assert!(
                has(&report, "ratios", case, "peer", "tmpfs"),
                "{case}: {missing}"
            );
        }
    }
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["value"].as_f64() >= Some(0.0)));
    assert!(
        rows.iter().all(|row| row.get("goal").is_none()),
        "a short run is not judged"
    );
}

#[test]
fn the_result_page_agrees_with_its_figures() {
    let figures = results().join("mem.json");
    if !figures.is_file() {
        println!("skipped: {} has not been measured yet", figures.display());
        return;
    }
    let before = std::fs::read_to_string(results().join("mem.md")).unwrap();
    let page = std::env::temp_dir().join(format!("keel-mem-page-{}.md", std::process::id()));
    std::fs::write(&page, &before).unwrap();
    let made = make_page(&figures, &page);
    let after = std::fs::read_to_string(&page).unwrap();
    std::fs::remove_file(&page).unwrap();
    assert!(made.status.success(), "{made:?}");
    assert_eq!(after, before);
}

fn results() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results")
}

fn make_page(figures: &Path, page: &Path) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keel-bench"));
    command.arg("mem-page").arg("--json").arg(figures);
    command.arg("--page").arg(page).output().unwrap()
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    if is_skipped() {
        return;
    }
    let folder = Folder::new("interrupted");
    let mut command = folder.bench();
    command.args(["--only", "tight"]);
    // An interruption ends the child as on a terminal, with any signal dispositions that it inherits.
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let number = child.id();
    let is_at_work = |folder: &Path| {
        let name = format!("keel-bench-{number}/ext4");
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let inside = folder.join(name);
        mounts.contains(&*inside.to_string_lossy())
    };
    while !is_at_work(&folder.0) {
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
    assert_eq!(folder.mounts(), [""; 0]);
    assert_eq!(folder.loop_devices(), [""; 0]);
    assert_eq!(folder.leftovers(), Vec::<PathBuf>::new());
}
