//! Two runs of the default mode: checks whether each median lies in the other run's interval, as both claim.

use std::path::Path;
use std::process::Command;

use cluster::results::{Benchmark, BenchmarkRow, Known, ResultFile, Row};
use cluster::statistics::median;

use super::bed::Bed;
use super::cores::{self, Start};
use super::launch;
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
        let times = kept.join(format!("{label}.{}", launch::TIMES));
        if !out.exists() {
            let part = bed.folder().join(format!("{label}.part"));
            let launcher = bed.folder().join(format!("{label}.sh"));
            // Times of an earlier run that did not end.
            std::fs::remove_file(&times).ok();
            launch::write_script(bed.mpi, &times, &launcher)?;
            let mut command = Command::new(&keel);
            command
                .args(["cluster", "measure", "--json", "--label", &label, "--hosts"])
                .arg(&hosts)
                .arg("--program")
                .arg(&bed.keel_mpi)
                .arg("--mpirun")
                .arg(&launcher)
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
        let file = read(&out, bed)?;
        if times.exists() {
            let starts = starts(&file, &cores::read_times(&times)?)
                .map_err(|error| format!("{}: {error}", times.display()))?;
            let case = name(format!("two-runs-{label}"));
            cores::record(figures, case, OURS, &starts);
        } else {
            figures.note(format!("{label} has no core_to_core_ns"));
        }
        files.push(file);
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

/// Returns the starts of a run, with the times that were measured before them: the median round trip of each, at the
/// smallest size.
fn starts(file: &ResultFile, times: &[f64]) -> Result<Vec<Start>, String> {
    let rows = file.rows.iter().filter_map(|row| match row {
        Row::Benchmark(row) if row.benchmark == Benchmark::Roundtrip => Some(row),
        _ => None,
    });
    let Some(row) = rows.min_by_key(|row| row.bytes) else {
        return Ok(Vec::new());
    };
    let medians = medians(row)?;
    // A size takes part in the starts from the first on, until its interval is narrow.
    if medians.len() > times.len() {
        return Err(format!(
            "has {} times, and the run has {} starts",
            times.len(),
            medians.len()
        ));
    }
    let pairs = times.iter().zip(medians);
    let starts = pairs.map(|(&core_to_core_ns, roundtrip_us)| Start {
        core_to_core_ns,
        roundtrip_us,
    });
    Ok(starts.collect())
}

/// Returns the median of each start of a row; without starts, that of all samples.
fn medians(row: &BenchmarkRow) -> Result<Vec<f64>, String> {
    let all = [row.samples_us.len() as u32];
    let counts = if row.starts.is_empty() {
        &all[..]
    } else {
        &row.starts
    };
    let mut rest = &row.samples_us[..];
    let mut medians = Vec::new();
    for &count in counts {
        let Some((of_start, behind)) = rest.split_at_checked(count as usize) else {
            return Err("the run has more starts than samples".to_owned());
        };
        medians.push(median(of_start).map_err(|error| error.to_string())?);
        rest = behind;
    }
    Ok(medians)
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
    let half_width_percent = median(&widths).map_err(|error| error.to_string())?;
    Ok(Judged {
        agree_percent: 100.0 * f64::from(agree) / f64::from(all),
        half_width_percent,
        starts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::results::{Header, Link, Mode, Stopped, Transport};

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
    fn each_start_has_the_time_before_it_and_its_own_median() {
        let mut file = file([2.0, 1.0]);
        assert_eq!(starts(&file, &[50.0]), Ok(Vec::new()), "no round trips");
        for row in &mut file.rows {
            let Row::Benchmark(row) = row else {
                continue;
            };
            row.benchmark = Benchmark::Roundtrip;
            let factor = if row.bytes == 4 { 1.0 } else { 10.0 };
            row.samples_us = [3.0, 1.0, 2.0, 9.0, 7.0].map(|us| us * factor).to_vec();
            row.starts = vec![3, 2];
        }
        file.rows.reverse();
        let start = |core_to_core_ns: f64, roundtrip_us: f64| Start {
            core_to_core_ns,
            roundtrip_us,
        };
        let expected = vec![start(50.0, 2.0), start(90.0, 8.0)];
        // The size was narrow after two of three starts.
        assert_eq!(starts(&file, &[50.0, 90.0, 70.0]), Ok(expected));
        let error = starts(&file, &[50.0]).expect_err("a start without a time");
        assert_eq!(error, "has 1 times, and the run has 2 starts");
    }

    #[test]
    fn a_run_without_starts_is_one_start() {
        let Row::Benchmark(mut row) = file([1.0, 1.0]).rows.remove(0) else {
            panic!("no row of a benchmark");
        };
        row.samples_us = vec![4.0, 5.0, 6.0];
        row.starts = Vec::new();
        assert_eq!(medians(&row), Ok(vec![5.0]));
        row.starts = vec![2, 2];
        assert!(medians(&row).is_err());
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
