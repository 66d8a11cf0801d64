//! Tests of `keel cluster run` on emulated boards: network namespaces and real sshd, with the MPI of this build. The
//! results of the ranks are compared with the result of `keel` alone, without MPI.

use crate::common::{BRIDGE, Folder, LOOPBACK, beside, failure, json, keel, on_boards};
use serde_json::Value;
use std::fmt::Write as _;
use std::process::{Command, Stdio};

const JOBS: [&[&str]; 3] = [
    &["vibration", "--window", "256"],
    &["k-means", "--clusters", "3"],
    &["matrix-profile", "--window", "40"],
];

/// Readings of a machine that rotates at 50 Hz, sampled 1,000 times a second, with a knock and a gap.
/// Twelve thousand readings are more bytes than a pipe holds, at which MPICH's launcher gave jobs up.
fn readings(folder: &Folder) -> String {
    let mut text = "time_ms,value\n".to_owned();
    let mut noise = 1_u32;
    for row in 0..12_000 {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let knock = if row == 1_234 { 25.0 } else { 0.0 };
        let turn = (f64::from(row) * 0.05 * std::f64::consts::TAU).sin();
        let value = turn + f64::from(noise >> 16) / 65_536.0 + knock;
        let time_ms = row + if row > 2_000 { 500 } else { 0 };
        writeln!(text, "{time_ms},{value}").unwrap();
    }
    let path = folder.file("day.csv");
    std::fs::write(&path, text).unwrap();
    path
}

/// The result of one rank without MPI, and its table.
fn alone(keel: &str, folder: &Folder, input: &str, job: &[&str]) -> (Value, String) {
    let table = folder.file(&format!("{}-alone.csv", job[0]));
    let output = Command::new(keel)
        .args(["cluster", "run"])
        .args(job)
        .args(["--local", "1", "--input", input, "--json", "--out", &table])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = json(&output);
    (
        said["answer"].clone(),
        std::fs::read_to_string(table).unwrap(),
    )
}

/// Runs all three jobs on this number of boards, if that is permitted.
fn assert_all_three(boards: &str, options: &[&str], network: [&str; 2]) {
    let Some(keel) = keel() else { return };
    let keel = keel.display().to_string();
    let folder = Folder::new();
    let input = readings(&folder);
    let files = ["hosts", "shell"].map(|name| folder.file(name));
    let file = |job: &[&str], ending: &str| folder.file(&format!("{}.{ending}", job[0]));
    // The boards are set up only once. No path here has a space in it.
    let mut script = "set -e\n".to_owned();
    for job in JOBS {
        let (words, network) = (job.join(" "), on_boards(&files, network).join(" "));
        let (table, said) = (file(job, "csv"), file(job, "json"));
        writeln!(
            script,
            "{keel} cluster run {words} {network} --input {input} --out {table} --json > {said}"
        )
        .unwrap();
    }
    let mut all = vec!["--boards", boards];
    all.extend(options);
    let Some(output) = beside(&folder, &all, &["bash", "-c", &script]) else {
        return;
    };
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{complaints}");
    for job in JOBS {
        let said: Value =
            serde_json::from_slice(&std::fs::read(file(job, "json")).unwrap()).unwrap();
        assert_eq!(said["ranks"].to_string(), boards);
        assert_eq!(said["compared"], "same", "{said}");
        assert!(said["moved_bytes"].as_u64() > Some(0), "{said}");
        let (answer, lines) = alone(&keel, &folder, &input, job);
        assert_eq!(said["answer"], answer, "{}", job[0]);
        let table = std::fs::read_to_string(file(job, "csv")).unwrap();
        assert_eq!(table, lines, "{}", job[0]);
    }
}

#[test]
fn all_three_jobs_find_on_six_boards_what_one_rank_finds() {
    assert_all_three("6", &[], BRIDGE);
}

#[test]
fn all_three_jobs_find_behind_three_real_sshd_what_one_rank_finds() {
    assert_all_three("3", &["--sshd"], LOOPBACK);
}

/// Runs a job on three boards, and disturbs the second one while all of them still wait for the job to begin.
fn disturbed(word: &str, more: &[&str]) -> Option<(std::process::Output, Value)> {
    let keel = keel()?.display().to_string();
    let folder = Folder::new();
    let input = readings(&folder);
    let files = ["hosts", "shell"].map(|name| folder.file(name));
    let mut words = vec![keel.as_str(), "cluster", "run", "vibration"];
    words.extend(on_boards(&files, BRIDGE));
    words.extend(["--input", &input, "--json", "--idle-seconds", "2"]);
    words.extend(more);
    let disturb = folder.file(word);
    // Wait until the rank is there; disturb only once, also if the job is started again.
    let script = "disturb=$1; shift; \"$@\" & until ip netns pids b2 | xargs -I{} cat /proc/{}/comm 2>/dev/null | \
                  grep -q keel-mpi || ! kill -0 $!; do sleep 0.1; done; sleep 0.3; \"$disturb\" b2; wait $!";
    words.splice(0..0, ["bash", "-c", script, "disturbed", &disturb]);
    let output = beside(&folder, &["--boards", "3"], &words)?;
    let (answer, _) = alone(&keel, &folder, &input, &["vibration"]);
    Some((output, answer))
}

#[test]
fn a_board_that_dies_in_the_middle_of_a_job_is_named() {
    let Some((output, _)) = disturbed("kill-ranks", &[]) else {
        return;
    };
    let line = failure(&output);
    assert!(
        line.starts_with("keel: b2: ") && line.contains("--retry"),
        "{line}"
    );
}

#[test]
fn with_retry_a_job_goes_on_without_the_board_that_is_cut_off() {
    let more = ["--retry", "--silence-seconds-max", "3"];
    let Some((output, answer)) = disturbed("unplug", &more) else {
        return;
    };
    let said = json(&output);
    assert_eq!(
        (&said["ranks"], &said["compared"]),
        (&2.into(), &"same".into()),
        "{said}"
    );
    assert_eq!(said["lost"][0]["board"], "b2");
    assert_eq!(said["answer"], answer);
}
