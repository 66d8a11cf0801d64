//! `keel demo` as a process: nothing that was acknowledged is lost, and nothing is left behind.

use crate::common::{TempDir, keel, ok, one_line, signal, wait_until};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// The demo with its temporary files in a directory that the test can look into.
fn demo(dir: &TempDir, arguments: &[&str]) -> Command {
    let mut command = keel();
    command
        .arg("demo")
        .args(arguments)
        .env("TMPDIR", dir.path());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn figures(dir: &TempDir, arguments: &[&str]) -> Value {
    let output = demo(dir, arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(figures["readings_missing"], 0, "{figures}");
    assert_eq!(figures["readings_altered"], 0, "{figures}");
    assert_eq!(figures["readings_unexpected"], 0, "{figures}");
    assert_eq!(figures["table_stale"], 0, "{figures}");
    assert_eq!(figures["log_damaged"], 0, "{figures}");
    assert_eq!(figures["log_readings_missing"], 0, "{figures}");
    assert!(figures["releases_missed"].is_u64(), "{figures}");
    // Each writer that recovered shows its table; at the end there is one with and one without checkpoints.
    let recoveries = figures["recoveries"].as_u64().unwrap();
    assert_eq!(figures["tables_compared"], recoveries + 2, "{figures}");
    assert_eq!(figures["failures"], Value::Array(Vec::new()), "{figures}");
    figures
}

#[test]
fn every_reading_of_a_run_is_acknowledged_and_found_again() {
    let dir = TempDir::new();
    let figures = figures(
        &dir,
        &["--headless", "--json", "--seconds", "20", "--speed", "20"],
    );
    // The trace of 20 s has exactly this number of readings.
    assert_eq!(figures["readings_offered"], 5_209);
    assert_eq!(figures["readings_acknowledged"], 5_209);
    assert_eq!(figures["put_durable_us"]["count"], 5_209);
    for name in ["append_latency_us", "put_durable_us"] {
        let at = |percentile: &str| figures[name][percentile].as_f64().unwrap();
        assert!(
            at("p50") > 0.0
                && at("p50") <= at("p99")
                && at("p99") <= at("p999")
                && at("p999") <= at("max")
        );
    }
    assert!(figures["task_instances"].as_u64().unwrap() > 0, "{figures}");
    assert!(figures["device_writes"].as_u64().unwrap() > 0, "{figures}");
    assert!(figures["device_flushes"].as_u64().unwrap() > 0, "{figures}");
    assert!(
        (0.0..=1.0).contains(&figures["fresh_mean"].as_f64().unwrap()),
        "{figures}"
    );
    assert!(dir.entries().is_empty(), "{:?}", dir.entries());
}

#[test]
fn killing_the_writer_loses_nothing_acknowledged() {
    let dir = TempDir::new();
    let figures = figures(
        &dir,
        &["--kill", "--json", "--seconds", "20", "--speed", "20"],
    );
    let number = |name: &str| figures[name].as_u64().unwrap();
    assert!(number("kills") >= 10, "{figures}");
    assert!(
        2 * number("kills_with_open_tickets") >= number("kills"),
        "{figures}"
    );
    assert_eq!(number("readings_offered"), 5_209, "{figures}");
    assert!(
        10 * number("readings_acknowledged") >= 9 * number("readings_offered"),
        "{figures}"
    );
    assert!(number("recoveries") >= 10, "{figures}");
    assert!(figures["seed"].is_u64());
    assert!(dir.entries().is_empty(), "{:?}", dir.entries());
}

#[test]
fn a_run_rolls_segments_before_its_end() {
    let dir = TempDir::new();
    let figures = figures(&dir, &["--json", "--seconds", "60", "--speed", "60"]);
    assert!(figures["log_segments"].as_u64().unwrap() > 1, "{figures}");
}

#[test]
fn the_output_of_kill_states_its_proof() {
    let dir = TempDir::new();
    let arguments = [
        "--kill",
        "--headless",
        "--seconds",
        "5",
        "--speed",
        "50",
        "--seed",
        "7",
    ];
    let output = demo(&dir, &arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("seed 7"), "{text}");
    assert!(
        text.contains("proves recovery of the software") && text.contains("crash suite"),
        "{text}"
    );
    assert!(text.contains("0 missing, 0 altered"), "{text}");
}

#[test]
fn a_directory_that_is_given_keeps_the_store() {
    let dir = TempDir::new();
    let kept = dir.file("kept").display().to_string();
    let image = dir.file("kept").join("demo.img").display().to_string();
    let figures = figures(
        &dir,
        &["--json", "--seconds", "5", "--speed", "20", "--dir", &kept],
    );
    assert_eq!(figures["image"], Value::from(image.as_str()));
    assert!(
        String::from_utf8(ok(&["flash", "check", &image]))
            .unwrap()
            .contains("whole")
    );
    // A second run does not overwrite it.
    let again = demo(&dir, &["--json", "--seconds", "5", "--dir", &kept])
        .output()
        .unwrap();
    assert_eq!(again.status.code(), Some(1));
    assert!(one_line(&again.stderr).contains("exists already"));
}

/// Starts a long run and waits until readings arrive.
fn running(dir: &TempDir) -> (Child, BufReader<std::process::ChildStdout>) {
    started(
        dir,
        demo(dir, &["--headless", "--seconds", "300", "--speed", "1"]),
    )
}

fn started(dir: &TempDir, mut command: Command) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = command.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("readings/s") {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0);
    }
    assert_eq!(dir.entries().len(), 1);
    (child, out)
}

#[test]
fn sigterm_ends_a_run_in_order() {
    for stop in [libc::SIGTERM, libc::SIGINT] {
        let dir = TempDir::new();
        let (mut child, mut out) = running(&dir);
        signal(&child, stop);
        let mut text = String::new();
        out.read_to_string(&mut text).unwrap();
        assert!(child.wait().unwrap().success(), "{text}");
        assert!(text.contains("stopped early"), "{text}");
        assert!(text.contains("0 missing, 0 altered"), "{text}");
        assert!(dir.entries().is_empty(), "{:?}", dir.entries());
    }
}

#[test]
fn a_signal_that_nohup_has_switched_off_stays_off() {
    let dir = TempDir::new();
    let mut command = demo(&dir, &["--headless", "--seconds", "300", "--speed", "1"]);
    // SAFETY: between fork and exec, only a plain system call that is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGHUP, libc::SIG_IGN);
            Ok(())
        })
    };
    let (mut child, out) = started(&dir, command);
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.unwrap().trim(), 16).unwrap();
    assert_eq!(ignored & 1, 1, "SIGHUP is still ignored");
    signal(&child, libc::SIGTERM);
    drop(out);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_reader_that_goes_away_ends_a_run_in_order() {
    let dir = TempDir::new();
    let (mut child, out) = running(&dir);
    drop(out);
    assert!(child.wait().unwrap().success());
    assert!(dir.entries().is_empty(), "{:?}", dir.entries());
}

#[test]
fn a_writer_without_its_parent_ends_and_cleans_up() {
    let dir = TempDir::new();
    let (mut child, out) = running(&dir);
    signal(&child, libc::SIGKILL);
    child.wait().unwrap();
    drop(out);
    wait_until("the end of the writer", || dir.entries().is_empty());
}
