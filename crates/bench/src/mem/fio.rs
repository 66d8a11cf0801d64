//! fio, unmodified: its command line, which is the same for all systems, and its report.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::case::Pattern;
use super::child::{Limits, output};
use super::systems::System;

const PROGRAM: &str = "fio";

/// Ramp time before the measured time, in milliseconds, so that one-time work is done before.
const RAMP_MS: u64 = 100;

/// The options of fio, equal for all systems. It makes single calls of pread and pwrite, drops nothing from a cache and
/// allocates no memory beforehand. It draws offsets without a map of used ones, and leaves the buffers unchanged in
/// between. It reads clocks for the whole run instead of each call.
pub(crate) const ARGUMENTS: [&str; 10] = [
    "--output-format=json",
    "--ioengine=psync",
    "--thread",
    "--time_based",
    "--invalidate=0",
    "--fallocate=none",
    "--fadvise_hint=0",
    "--norandommap",
    "--gtod_reduce=1",
    "--scramble_buffers=0",
];

/// Further options that avoid unneeded work.
const FURTHER: [&str; 2] = ["--allow_file_create=0", "--disk_util=0"];

/// Returns the version of fio on this machine.
///
/// # Errors
/// One line that says what is missing.
pub(crate) fn version() -> Result<String, String> {
    let found = Command::new(PROGRAM)
        .arg("--version")
        .output()
        .map_err(|error| format!("{PROGRAM}: {error}; it comes with the package fio"))?;
    Ok(String::from_utf8_lossy(&found.stdout).trim().to_owned())
}

/// One job: the operation on the files, with one thread for each file.
pub(crate) struct Job<'a> {
    pub(crate) pattern: Pattern,
    pub(crate) request_bytes: u32,
    pub(crate) files: &'a [&'static str],
    pub(crate) file_bytes: u64,
    pub(crate) runtime: Duration,
}

/// Runs a job on a system. Returns the total throughput of all threads, in MiB/s.
///
/// # Errors
/// One line with the reason that fio gives.
pub(crate) fn run(system: &System, job: &Job<'_>, limits: &Limits<'_>) -> Result<f64, String> {
    let mut command = system.command(PROGRAM.as_ref());
    command.args(ARGUMENTS).args(FURTHER).args([
        format!("--rw={}", direction(job.pattern)),
        format!("--bs={}", job.request_bytes),
        format!("--size={}", job.file_bytes),
        format!("--runtime={}ms", job.runtime.as_millis()),
        format!("--ramp_time={RAMP_MS}ms"),
    ]);
    for file in job.files {
        command.arg(format!("--name={file}"));
        command.arg(format!("--filename={}", system.file(file).display()));
    }
    let text = output(PROGRAM, &mut command, limits)?;
    throughput(&text, job).map_err(|reason| format!("{PROGRAM}: {reason}"))
}

fn direction(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::SequentialRead => "read",
        Pattern::RandomRead => "randread",
        Pattern::SequentialWrite => "write",
        Pattern::RandomWrite => "randwrite",
    }
}

/// Returns the sum over the jobs of a report, in MiB/s.
fn throughput(text: &str, job: &Job<'_>) -> Result<f64, String> {
    // Other output of fio precedes the report.
    let start = text.find('{').ok_or("it reported nothing")?;
    let report: Value = serde_json::Deserializer::from_str(&text[start..])
        .into_iter()
        .next()
        .ok_or("it reported nothing")?
        .map_err(|error| format!("its report cannot be read: {error}"))?;
    let jobs = report["jobs"].as_array().ok_or("its report has no jobs")?;
    if jobs.len() != job.files.len() {
        return Err(format!(
            "its report has {} jobs of {}",
            jobs.len(),
            job.files.len()
        ));
    }
    let side = if job.pattern.is_write() {
        "write"
    } else {
        "read"
    };
    let mut sum = 0.0;
    for one in jobs {
        if one["error"].as_i64() != Some(0) {
            return Err(format!("a job failed with errno {}", one["error"]));
        }
        let bytes = one[side]["bw_bytes"].as_f64().unwrap_or(0.0);
        if bytes <= 0.0 {
            return Err(format!("a job has transferred nothing by {side}"));
        }
        sum += bytes;
    }
    Ok(sum / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(pattern: Pattern, files: &'static [&'static str]) -> Job<'static> {
        Job {
            pattern,
            request_bytes: 1024,
            files,
            file_bytes: 1 << 20,
            runtime: Duration::from_secs(1),
        }
    }

    const TWO: &str = r#"fio: a remark before the report
        {"fio version": "fio-3.33", "jobs": [
        {"jobname": "a", "error": 0, "read": {"bw_bytes": 1048576}, "write": {"bw_bytes": 0}},
        {"jobname": "b", "error": 0, "read": {"bw_bytes": 2097152}, "write": {"bw_bytes": 0}}]}
        a remark behind it"#;

    #[test]
    fn the_jobs_of_a_report_are_added() {
        let read = job(Pattern::RandomRead, &["a", "b"]);
        assert_eq!(throughput(TWO, &read), Ok(3.0));
    }

    #[test]
    fn a_report_that_is_not_of_this_job_is_refused() {
        let written = throughput(TWO, &job(Pattern::RandomWrite, &["a", "b"]));
        assert!(written.unwrap_err().contains("nothing by write"));
        let one = throughput(TWO, &job(Pattern::RandomRead, &["a"]));
        assert!(one.unwrap_err().contains("2 jobs of 1"));
        let failed = TWO.replace("\"b\", \"error\": 0", "\"b\", \"error\": 28");
        let failed = throughput(&failed, &job(Pattern::RandomRead, &["a", "b"]));
        assert!(failed.unwrap_err().contains("errno 28"));
        for text in ["", "no report", "{\"jobs\": 3}", "{\"jobs\": [{]}"] {
            assert!(throughput(text, &job(Pattern::RandomRead, &["a"])).is_err());
        }
    }
}
