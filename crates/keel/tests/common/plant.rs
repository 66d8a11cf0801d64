//! A tree of files that represents a processor with 19 speeds, task reports, and a thread that simulates a task.

use super::node::Node;
use base::histogram::Histogram;
use db::Monitor;
use libkeel::connection::Connection;
use libkeel::protocol::{Kind, Task, TaskDeclared, TaskKind, TaskNoted, TaskPeriod};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const POLICY: &str = "machine/sys/devices/system/cpu/cpufreq/policy0";
pub const KHZ_MAX: u64 = 2_000_000;

/// Creates, in a folder, a processor with a settable frequency.
pub fn machine(node: &Node) -> PathBuf {
    let folder = node.dir.file(POLICY);
    std::fs::create_dir_all(&folder).unwrap();
    let cores: Vec<String> = (0..64).map(|core| core.to_string()).collect();
    let steps: Vec<String> = (2..=20).map(|step| (step * 100_000).to_string()).collect();
    for (name, text) in [
        ("affected_cpus", cores.join(" ")),
        (
            "scaling_available_governors",
            "userspace schedutil".to_owned(),
        ),
        ("scaling_governor", "schedutil".to_owned()),
        ("scaling_available_frequencies", steps.join(" ")),
        ("scaling_min_freq", "200000".to_owned()),
        ("scaling_max_freq", KHZ_MAX.to_string()),
        ("cpuinfo_min_freq", "200000".to_owned()),
        ("cpuinfo_max_freq", KHZ_MAX.to_string()),
        ("scaling_setspeed", KHZ_MAX.to_string()),
        ("scaling_driver", "acpi-cpufreq".to_owned()),
    ] {
        std::fs::write(folder.join(name), text + "\n").unwrap();
    }
    started_as(node, "6b7c3c64-9f3b-4c7e-8f55-2b0d1f6a9e10");
    // The processor runs at the speed that is set.
    std::os::unix::fs::symlink("scaling_setspeed", folder.join("scaling_cur_freq")).unwrap();
    folder
}

/// Sets the boot ID of the machine, which differs for each boot.
pub fn started_as(node: &Node, boot_id: &str) {
    let path = node.dir.file("machine/proc/sys/kernel/random/boot_id");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, format!("{boot_id}\n")).unwrap();
}

pub fn setting(folder: &Path, name: &str) -> String {
    let text = std::fs::read_to_string(folder.join(name)).unwrap();
    text.trim().to_owned()
}

/// Returns a report of ten instances with this tardiness and data response ratio.
pub fn report(id: u64, tardiness: f64, ratio: f64) -> TaskPeriod {
    let mut histograms = [(); 4].map(|()| Histogram::new());
    for _ in 0..10 {
        let response_ns = (tardiness * 1e6) as u64;
        let data_ns = (ratio * response_ns as f64) as u64;
        for (histogram, ns) in
            histograms
                .iter_mut()
                .zip([response_ns, data_ns, response_ns - data_ns, 0])
        {
            histogram.record(ns);
        }
    }
    let [response_ns, data_ns, compute_ns, jitter_ns] = histograms;
    let figures = Monitor {
        instances: 10,
        deadline_misses: if tardiness > 1.0 { 10 } else { 0 },
        tardiness_sum: 10.0 * tardiness,
        tardiness_max: tardiness,
        response_ns,
        data_ns,
        compute_ns,
        jitter_ns,
        ..Monitor::default()
    };
    TaskPeriod::of(id, &figures.to_sum()).unwrap()
}

/// A connection that reports for a task of this process, until this is dropped or the node ends.
pub struct Played {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Played {
    /// Declares the task, then repeatedly reports ten instances, with this pause in between. `next` returns their
    /// tardiness and data response ratio, or `None` if the node has ended.
    pub fn start(
        node: &Node,
        name: &str,
        pause: Duration,
        mut next: impl FnMut() -> Option<(f64, f64)> + Send + 'static,
    ) -> Self {
        let mut connection = Connection::open(&node.socket(), Duration::from_secs(60)).unwrap();
        let task = Task {
            name: name.to_owned(),
            period_ns: 1_000_000,
            deadline_ns: 1_000_000,
            kind: TaskKind::Soft,
            weight: 1.0,
            process: std::process::id(),
            thread: std::process::id(),
        };
        let declared: TaskDeclared = connection
            .ask(Kind::Task, &task, Kind::TaskDeclared)
            .unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        let run = move || {
            while !theirs.load(Ordering::Relaxed) {
                let Some((tardiness, ratio)) = next() else {
                    return;
                };
                let period = report(declared.id, tardiness, ratio);
                let noted: Result<TaskNoted, _> =
                    connection.ask(Kind::TaskPeriod, &period, Kind::TaskNoted);
                if noted.is_err() {
                    return; // The node has ended, as the test wants.
                }
                std::thread::sleep(pause);
            }
        };
        Self {
            stop,
            thread: Some(std::thread::spawn(run)),
        }
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}
