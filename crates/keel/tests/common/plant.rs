//! A tree of files that is a processor with 19 speeds, and what tasks report.

use super::node::Node;
use base::histogram::Histogram;
use db::Monitor;
use libkeel::protocol::TaskPeriod;
use std::path::{Path, PathBuf};

const POLICY: &str = "machine/sys/devices/system/cpu/cpufreq/policy0";
pub const KHZ_MAX: u64 = 2_000_000;

/// A processor whose frequency can be told, in a folder.
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
    // What was told is what it does.
    std::os::unix::fs::symlink("scaling_setspeed", folder.join("scaling_cur_freq")).unwrap();
    folder
}

/// The machine's start, which is another one after each.
pub fn started_as(node: &Node, boot_id: &str) {
    let path = node.dir.file("machine/proc/sys/kernel/random/boot_id");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, format!("{boot_id}\n")).unwrap();
}

pub fn setting(folder: &Path, name: &str) -> String {
    let text = std::fs::read_to_string(folder.join(name)).unwrap();
    text.trim().to_owned()
}

/// Ten instances with this tardiness and data response ratio.
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
