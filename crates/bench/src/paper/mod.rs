//! The two experiments of the paper that the store follows (Reif, Gerhorst, Bender, Hönig: "Towards Low-Jitter and
//! Energy-Efficient Data Processing in Cyber-Physical Information Systems"). One has the latency distributions of four
//! scenarios in durable and volatile variants. The other has those of opening files by the depth of their directory.
//!
//! **Invariants:** as in the paper, caches are dropped first and latencies stay in memory until the end. Unlike in the
//! paper, the systems take turns call by call. Device operations are the kernel's counts for a device that only one
//! variant uses, read after all cached data has been written.

pub(crate) mod chart;
mod depth;
#[cfg(feature = "littlefs")]
mod littlefs;
pub(crate) mod render;
mod scenarios;
mod variant;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::json;

use crate::machine::{Machine, file_system_type, today};
use crate::progress::Progress;
use crate::report::{Report, Samples, percentile};
use crate::scratch::Scratch;
use crate::store::{LoopDevice, Options};
use chart::{Color, Series};
use variant::Scenario;

/// Repetitions of `--quick`.
const QUICK_REPETITIONS: u32 = 300;

/// Space for the loop devices in bytes: a fixed part, and a part for each repetition.
const SPACE_BYTES: (u64, u64) = (1 << 30, 170 * 1024);

/// Runs both experiments, and writes tables and plots into the folder given by `--out`.
///
/// # Errors
/// One line that names what failed.
pub(crate) fn run(options: &Options) -> Result<Report, String> {
    let repetitions = if options.quick {
        QUICK_REPETITIONS
    } else {
        options.repetitions
    };
    let out = &options.out;
    fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
    let space = SPACE_BYTES.0 + SPACE_BYTES.1 * u64::from(repetitions);
    let scratch = Scratch::create(&options.dir, space)?;
    LoopDevice::probe(scratch.path()).map_err(|reason| {
        format!("{reason}; the paper's experiments need loop devices: run as root")
    })?;
    let progress = Progress::new();
    let mut show = |text: &str| progress.show(text);
    let mut missing = Vec::new();
    let file_system = file_system_type(scratch.path())?;

    let scenarios = scenarios::run(scratch.path(), repetitions, &mut missing, &mut show)?;
    let depth = depth::run(scratch.path(), repetitions, &mut show)?;
    progress.clear();

    let machine = Machine::detect();
    let subtitle = format!(
        "{repetitions} calls each, taking turns, caches dropped before; loop devices on {}, kernel {}",
        machine.cpu, machine.kernel
    );
    let mut samples = Vec::new();
    for (scenario, of_scenario) in scenarios {
        write_out(
            out,
            scenario.file_name(),
            scenario.title(),
            &subtitle,
            &of_scenario,
        )?;
        samples.extend(of_scenario);
    }
    let title = "open one file of many at random, by the depth of its directory";
    write_out(out, "open-by-depth", title, &subtitle, &depth)?;
    samples.extend(depth);
    let summary = out.join("summary.csv");
    fs::write(&summary, summary_csv(&samples))
        .map_err(|error| format!("{}: {error}", summary.display()))?;
    Ok(Report {
        bench: "flash",
        title: format!(
            "flash, the paper's experiments: {repetitions} calls each on loop devices over {file_system}; times in us; \
             tables and plots in {}",
            out.display()
        ),
        machine,
        ours: "keel-sync",
        samples,
        figures: Vec::new(),
        goals: Vec::new(),
        missing,
        notes: vec![
            "names are always durable in keel: open-new and unlink-empty have no variant with volatile caches"
                .to_owned(),
            "a call without sync costs its device operations later: they are counted when the scenario has ended"
                .to_owned(),
        ],
        method: json!({
            "date": today(),
            "paper": true,
            "quick": options.quick,
            "repetitions": repetitions,
            "file_system": file_system,
            "scenarios": Scenario::ALL.map(Scenario::file_name),
        }),
    })
}

/// Returns the colour and the line style of a system; colour-blind readers can distinguish the colours.
fn looks(system: &str) -> (Color, bool) {
    let color = match system {
        system if system.starts_with("keel") => Color(0x00, 0x5A, 0xA8),
        "ext4-depth-0" => Color(0xF0, 0xB4, 0x29),
        "ext4-depth-4" => Color(0xE0, 0x7B, 0x00),
        system if system.starts_with("ext4") => Color(0xC2, 0x3B, 0x00),
        _ => Color(0x1B, 0x9E, 0x60),
    };
    (color, system.ends_with("-nosync"))
}

/// Returns the label of a system in a plot.
fn label(name: &str, system: &str) -> String {
    if name == "open-by-depth" {
        return match system.strip_prefix("ext4-depth-") {
            Some(depth) => format!("ext4, depth {depth}"),
            None => "keel, flat".to_owned(),
        };
    }
    let is_name_change = matches!(name, "open-new" | "unlink-empty");
    match system.split_once('-') {
        Some(("keel", "sync")) if is_name_change => "keel (always durable)".to_owned(),
        Some((system, "sync")) => format!("{system}, sync"),
        Some((system, "nosync")) => format!("{system}, no sync"),
        _ => system.to_owned(),
    }
}

/// Writes latencies as `name.csv`, with one column for each system, and the plot of their distributions.
fn write_out(
    out: &Path,
    name: &str,
    title: &str,
    subtitle: &str,
    samples: &[Samples],
) -> Result<(), String> {
    let path = out.join(format!("{name}.csv"));
    fs::write(&path, latencies_csv(samples))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    let mut series: Vec<_> = samples
        .iter()
        .map(|samples| {
            let (color, dashed) = looks(samples.system());
            Series {
                label: label(name, samples.system()),
                color,
                dashed,
                latencies_ns: samples.latencies_ns().to_vec(),
            }
        })
        .collect();
    // Our systems first; the peers keep their order.
    series.sort_by_key(|series| (series.dashed, !series.label.starts_with("keel")));
    let shapes = chart::distributions(title, subtitle, series);
    render::write(out, name, &shapes)
}

/// Returns the latency of each call in microseconds, in the order of the run; a cell is empty if a system made fewer
/// calls.
fn latencies_csv(samples: &[Samples]) -> String {
    let names: Vec<_> = samples
        .iter()
        .map(|samples| format!("{}_us", samples.system()))
        .collect();
    let mut text = format!("call,{}\n", names.join(","));
    let calls = samples.iter().map(Samples::calls).max().unwrap_or(0);
    for call in 0..calls {
        let _ = write!(text, "{call}");
        for samples in samples {
            text.push(',');
            if let Some(ns) = samples.latencies_ns().get(call) {
                let _ = write!(text, "{:.3}", *ns as f64 / 1000.0);
            }
        }
        text.push('\n');
    }
    text
}

/// Percentiles of the summary, in parts per thousand.
const SUMMARY_PERCENTILES: [u64; 7] = [1, 100, 250, 500, 900, 990, 999];

/// Returns one line for each experiment and system: calls, percentiles, device operations per call.
fn summary_csv(samples: &[Samples]) -> String {
    let mut text = "experiment,system,calls,min_us,p0.1_us,p10_us,p25_us,p50_us,p90_us,p99_us,p99.9_us,max_us,\
                    device_reads,device_read_kib,device_writes,device_flushes,device_written_kib\n"
        .to_owned();
    for samples in samples {
        let mut sorted = samples.latencies_ns().to_vec();
        let _ = write!(
            text,
            "{},{},{}",
            samples.case(),
            samples.system(),
            samples.calls()
        );
        let us = |ns: u64| ns as f64 / 1000.0;
        let min = sorted.iter().copied().min().unwrap_or(0);
        let _ = write!(text, ",{:.1}", us(min));
        for per_mille in SUMMARY_PERCENTILES {
            let _ = write!(text, ",{:.1}", us(percentile(&mut sorted, per_mille)));
        }
        let _ = write!(text, ",{:.1}", us(samples.max_ns()));
        for what in ["reads", "read", "writes", "flushes", "written"] {
            text.push(',');
            if let Some(value) = samples.count(&format!("device_{what}_per_op")) {
                let _ = write!(text, "{value:.2}");
            }
        }
        text.push('\n');
    }
    text
}
