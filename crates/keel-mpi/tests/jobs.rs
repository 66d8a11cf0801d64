//! Tests of `keel cluster run` on emulated boards: network namespaces and real sshd, with the MPI of this build. The
//! results of the ranks are compared with the result of `keel` alone, without MPI.

use crate::common::{BRIDGE, Folder, LOOPBACK, beside, json, keel, on_boards};
use serde_json::Value;
use std::fmt::Write as _;
use std::process::{Command, Stdio};

const JOBS: [&[&str]; 3] = [
    &["vibration", "--window", "256"],
    &["k-means", "--clusters", "3"],
    &["matrix-profile", "--window", "40"],
];

/// More bytes than a pipe holds, at which MPICH's launcher gave jobs up.
const ROWS: u32 = 12_000;

/// Readings of a machine that rotates at 50 Hz, sampled 1,000 times a second, with a knock and a gap.
fn readings(folder: &Folder, rows: u32) -> String {
    let mut text = "time_ms,value\n".to_owned();
    let mut noise = 1_u32;
    for row in 0..rows {
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
    let input = readings(&folder, ROWS);
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
fn all_three_jobs_on_six_boards_agree_with_one_rank() {
    assert_all_three("6", &[], BRIDGE);
}

#[test]
fn all_three_jobs_behind_three_real_sshd_agree_with_one_rank() {
    assert_all_three("3", &["--sshd"], LOOPBACK);
}

/// A job that lasts for seconds.
const LONG: [&str; 3] = ["matrix-profile", "--window", "40"];

/// The largest number of readings of a job that is to be disturbed. The first attempt has a quarter of them, as the job
/// takes 1 s on a fast machine and 10 s on a slow one.
const ROWS_MAX: u32 = 8 * ROWS;

/// The exit status if the job has ended before its progress was seen: nothing was disturbed then.
const STATUS_UNSEEN: i32 = 99;

/// How a disturbed job ended.
struct Disturbed {
    status: Option<i32>,
    /// The text on the terminal.
    shown: String,
    /// The result.
    said: String,
    /// The readings that the job had.
    input: String,
}

impl Disturbed {
    /// Returns whether the job ended before the disturbance reached it.
    fn is_missed(&self) -> bool {
        let is_whole = || {
            let said: Value = serde_json::from_str(&self.said).unwrap();
            said["lost"].as_array().is_none_or(Vec::is_empty)
        };
        self.status == Some(STATUS_UNSEEN) || (self.status == Some(0) && is_whole())
    }
}

/// Runs a long job on three boards, and disturbs the second one when the progress of the job is seen. A fast machine
/// gets a longer job, until the disturbance meets it.
fn disturbed(folder: &Folder, word: &str, more: &[&str]) -> Option<Disturbed> {
    let mut rows = 2 * ROWS;
    loop {
        let input = readings(folder, rows);
        let one = disturbed_once(folder, input, word, more)?;
        if !one.is_missed() {
            return Some(one);
        }
        // Twice the rows take four times as long.
        rows *= 2;
        assert!(
            rows <= ROWS_MAX,
            "the job ended undisturbed: {:?} {}",
            one.shown,
            one.said
        );
    }
}

fn disturbed_once(folder: &Folder, input: String, word: &str, more: &[&str]) -> Option<Disturbed> {
    let keel = keel()?.display().to_string();
    let files = ["hosts", "shell"].map(|name| folder.file(name));
    let mut words = vec![keel.as_str(), "cluster", "run"];
    words.extend(LONG);
    words.extend(on_boards(&files, BRIDGE));
    words.extend(["--input", &input, "--json"]);
    words.extend(more);
    let (disturb, shown, said) = (folder.file(word), folder.file("shown"), folder.file("said"));
    // Progress is shown on a terminal only, which `script` is. No path here has a space in it. One disturbance, also if
    // the job is started again.
    let words = words.join(" ");
    let script = format!(
        ": >{shown}; script -qefc '{words} >{said}' {shown} </dev/null >/dev/null & \
         until grep -qE 'on 3 ranks  ([1-9]|[1-9][0-9]) %' {shown}; do \
         kill -0 $! || exit {STATUS_UNSEEN}; sleep 0.05; done; {disturb} b2; wait $!"
    );
    let output = beside(folder, &["--boards", "3"], &["bash", "-c", &script])?;
    let read = |path: &str| {
        let bytes = std::fs::read(path).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Some(Disturbed {
        status: output.status.code(),
        shown: read(&shown),
        said: read(&said),
        input,
    })
}

/// The error line on a terminal, after the progress lines that were erased.
fn error_of(shown: &str) -> &str {
    let mut lines = shown.lines().rev();
    let last = lines.find_map(|line| line.split_once("keel: "));
    last.unwrap_or_else(|| panic!("{shown:?}")).1
}

#[test]
fn a_board_that_dies_in_the_middle_of_a_job_is_named() {
    let folder = Folder::new();
    let Some(Disturbed { status, shown, .. }) = disturbed(&folder, "kill-ranks", &[]) else {
        return;
    };
    assert_eq!(status, Some(1), "{shown:?}");
    let line = error_of(&shown);
    assert!(
        line.starts_with("b2: ") && line.contains("--retry"),
        "{line}"
    );
    assert!(
        line.contains(" % were done") && !line.contains(", 0 % were done"),
        "{line}"
    );
}

/// Runs a long job with `--retry` and further options, disturbs the second board, and asserts that the others give the
/// answer of one rank.
fn assert_others_go_on(word: &str, options: &[&str]) {
    let folder = Folder::new();
    let more = [&["--retry"][..], options].concat();
    let Some(found) = disturbed(&folder, word, &more) else {
        return;
    };
    let Disturbed {
        status,
        shown,
        said,
        input,
    } = found;
    assert_eq!(status, Some(0), "{shown:?}");
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (&said["ranks"], &said["compared"]),
        (&2.into(), &"same".into()),
        "{said}"
    );
    let lost = &said["lost"][0];
    assert_eq!(lost["board"], "b2");
    let how = lost["how"].as_str().unwrap();
    assert!(
        how.ends_with(" % were done") && !how.contains(", 0 % were done"),
        "{how}"
    );
    let keel = keel().unwrap().display().to_string();
    let (answer, _) = alone(&keel, &folder, &input, &LONG);
    assert_eq!(said["answer"], answer);
}

#[test]
fn a_job_with_retry_goes_on_without_the_board_that_is_cut_off() {
    assert_others_go_on("unplug", &["--silence-seconds-max", "3"]);
}

#[test]
fn a_job_with_retry_goes_on_without_the_board_whose_ranks_are_killed() {
    assert_others_go_on("kill-ranks", &[]);
}
