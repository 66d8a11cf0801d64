//! Two runs of the default mode: checks whether each median lies in the other run's interval, as both claim.

use std::path::Path;
use std::process::Command;

use cluster::results::{Known, ResultFile, Row};

use super::bed::Bed;
use super::pairs::name;
use crate::figures::{Bound, Figures, Goal, Metric, OURS};

/// Share of the sizes for which each run's median lies in the other's interval.
pub(crate) const AGREE: Metric = Metric::shown("sizes_that_agree", "%");

/// Median width of the intervals.
pub(crate) const WIDTH: Metric = Metric::shown("half_width", "%");

/// Number of starts of the longer run.
pub(crate) const STARTS: Metric = Metric::shown("starts", "1");

/// The goal, in percent.
const AGREE_PERCENT_MIN: f64 = 90.0;

/// Makes two runs and compares them.
///
/// # Errors
/// One line.
pub(crate) fn measure(
    bed: &Bed,
    is_quick: bool,
    keep: Option<&Path>,
    figures: &mut Figures,
) -> Result<(), String> {
    let keel = std::env::current_exe()
        .ok()
        .and_then(|own| Some(own.parent()?.join("keel")));
    let Some(keel) = keel.filter(|path| path.is_file()) else {
        figures.missing("two runs (keel is not beside keel-bench: cargo build -p keel)".to_owned());
        return Ok(());
    };
    let hosts = bed.folder().join("here");
    std::fs::write(&hosts, "localhost:2\n")
        .map_err(|error| format!("{}: {error}", hosts.display()))?;
    let kept = keep.map_or_else(|| bed.folder().to_path_buf(), Path::to_path_buf);
    std::fs::create_dir_all(&kept).map_err(|error| format!("{}: {error}", kept.display()))?;
    let mut files = Vec::new();
    for number in 1..=2 {
        let label = format!("{}-{number}", bed.mpi.name());
        let out = kept.join(format!("{label}.jsonl"));
        if !out.exists() {
            let part = bed.folder().join(format!("{label}.part"));
            let mut command = Command::new(&keel);
            command
                .args(["cluster", "measure", "--json", "--label", &label, "--hosts"])
                .arg(&hosts)
                .arg("--program")
                .arg(&bed.keel_mpi)
                .arg("--mpirun")
                .arg(bed.launcher())
                .arg("--out")
                .arg(&part);
            if is_quick {
                command.args([
                    "--sizes",
                    "64,65536",
                    "--starts-max",
                    "5",
                    "--start-seconds",
                    "0",
                ]);
            }
            bed.said(&mut command)?;
            // A file under its final name is complete.
            std::fs::copy(&part, &out).map_err(|error| format!("{}: {error}", out.display()))?;
        }
        files.push(read(&out, bed)?);
    }
    let judged = judge(&files[0], &files[1])?;
    let case = name(format!("two-runs-{}", bed.mpi.name()));
    figures.record(case, OURS, AGREE, judged.agree_percent);
    figures.record(case, OURS, WIDTH, judged.half_width_percent);
    figures.record(case, OURS, STARTS, judged.starts as f64);
    if !is_quick {
        let bound = Bound::AtLeast(AGREE_PERCENT_MIN);
        figures.add_goal(Goal {
            case,
            metric: AGREE.name,
            peer: None,
            bound,
        });
    }
    Ok(())
}

/// Reads a run's result file, which an earlier run of this program may have written.
fn read(path: &Path, bed: &Bed) -> Result<ResultFile, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let bytes = std::fs::read(path).map_err(|error| failed(&error))?;
    let file = ResultFile::parse(&bytes).map_err(|error| failed(&error))?;
    match &file.header.mpi {
        Known::Value(library) if *library == bed.library_text => Ok(file),
        _ => Err(failed(&format_args!("is not of {}", bed.library_text))),
    }
}

/// The comparison of two runs.
struct Judged {
    agree_percent: f64,
    half_width_percent: f64,
    starts: usize,
}

fn judge(one: &ResultFile, other: &ResultFile) -> Result<Judged, String> {
    let (mut agree, mut all, mut starts) = (0, 0, 0);
    let mut widths = Vec::new();
    for (one, other) in one.rows.iter().zip(&other.rows) {
        let (Row::Benchmark(one), Row::Benchmark(other)) = (one, other) else {
            continue;
        };
        if (one.benchmark, one.bytes) != (other.benchmark, other.bytes) {
            return Err("the two runs have measured different cases".to_owned());
        }
        let medians = [one.median_us(), other.median_us()]
            .map(|median| median.map_err(|error| error.to_string()));
        let [first, second] = medians;
        let (first, second) = (first?, second?);
        all += 1;
        agree += u32::from(
            first.interval.contains(second.value) && second.interval.contains(first.value),
        );
        for median in [first, second] {
            widths.push((median.interval.high - median.interval.low) / 2.0 / median.value * 100.0);
        }
        starts = starts.max(one.starts.len()).max(other.starts.len());
    }
    if all == 0 {
        return Err("the two runs have measured nothing".to_owned());
    }
    let half_width_percent =
        cluster::statistics::median(&widths).map_err(|error| error.to_string())?;
    Ok(Judged {
        agree_percent: 100.0 * f64::from(agree) / f64::from(all),
        half_width_percent,
        starts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::results::{Benchmark, BenchmarkRow, Header, Link, Mode, Stopped, Transport};

    fn file(times: [f64; 2]) -> ResultFile {
        let unknown = || Known::Unavailable("a test".to_owned());
        let row = |(at, us): (u64, f64)| {
            let samples_us = (0..15)
                .map(|sample| us * (1.0 + 0.002 * f64::from(sample % 5)))
                .collect();
            Row::Benchmark(BenchmarkRow {
                benchmark: Benchmark::Reduce,
                ranks: 2,
                transport: Transport::Memory,
                bytes: 4 << at,
                iterations: 1,
                samples_us,
                // Starts of 4, 5 and 6 samples, whose medians differ.
                starts: vec![4, 5, 6],
                stopped: Stopped::Narrow,
            })
        };
        ResultFile {
            header: Header {
                label: "a".to_owned(),
                created_ms: 0,
                mode: Mode::Sound,
                mpi: Known::Unavailable("a test".to_owned()),
                link: Link {
                    rate_bits_per_s: Known::Unavailable("a test".to_owned()),
                    burst_bytes: Known::Unavailable("a test".to_owned()),
                },
                hosts: Vec::new(),
                power_source: unknown(),
            },
            rows: (0..).zip(times).map(row).collect(),
        }
    }

    #[test]
    fn runs_agree_where_each_median_is_in_the_other_s_interval() {
        let judged = judge(&file([1.0, 2.0]), &file([1.0, 2.0])).expect("comparable");
        assert_eq!((judged.agree_percent, judged.starts), (100.0, 3));
        let judged = judge(&file([1.0, 2.0]), &file([1.0, 3.0])).expect("comparable");
        assert_eq!(judged.agree_percent, 50.0);
        let mut other = file([1.0, 2.0]);
        other.rows.reverse();
        assert!(judge(&file([1.0, 2.0]), &other).is_err());
        other.rows.clear();
        assert!(judge(&file([1.0, 2.0]), &other).is_err());
    }
}
