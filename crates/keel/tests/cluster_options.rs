//! Options of `keel cluster`, `keel advise` and `keel cluster report` that have no effect or contradict each other.
//! Commands that fail or are interrupted are here, too. All of them say what is wrong, and leave nothing behind.

use crate::common::mpi::{FakeMpi, LIBRARY, script};
use crate::common::{TempDir, fails, keel, one_line, run, wait_until};
use cluster::results::{ResultFile, Row};
use std::fmt::Write as _;
use std::fs;
use std::process::Stdio;

/// Writes readings of 1 kHz.
fn readings(dir: &TempDir, rows: u32) -> String {
    let mut text = "time_ms,value\n".to_owned();
    for row in 0..rows {
        writeln!(text, "{row},{}", row * 7_919 % 1_000).unwrap();
    }
    let path = dir.file("day.csv");
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn options_of_a_measurement_without_effect_are_refused_with_their_names() {
    let dir = TempDir::new();
    let hosts = dir.file("hosts");
    fs::write(&hosts, "localhost:2\n").unwrap();
    let hosts = hosts.display().to_string();
    let cases: [(&[&str], &str); 7] = [
        (
            &["--interface", "eth0"],
            "--interface: all ranks are on one host",
        ),
        (
            &["--address", "10.0.0.5/24"],
            "--address: all ranks are on one host",
        ),
        (&["--samples", "3", "--repetitions", "2"], "--repetitions"),
        (
            &["--sizes", "4,4"],
            "--sizes: 4 is there twice; name it once",
        ),
        (
            &["--only", "reduce,reduce"],
            "--only: reduce is there twice; name it once",
        ),
        (
            &["--only", "roundtrip", "--sizes", "5"],
            "sizes are those of all benchmarks",
        ),
        (
            &["--seconds-max", "2"],
            "9 starts, 10 s apart, take more than 80 s",
        ),
    ];
    for (more, said) in cases {
        let words = ["cluster", "measure", "--hosts", &hosts];
        let words: Vec<&str> = words.iter().chain(more).copied().collect();
        let line = fails(&words, 2);
        assert!(line.contains(said), "{said}: {line}");
    }
    let line = fails(&["advise"], 2);
    assert!(
        line.contains("--job") && line.contains("--kernel"),
        "{line}"
    );
}

#[test]
fn a_report_that_cannot_draw_leaves_no_table_behind() {
    let dir = TempDir::new();
    // A drawing takes two sizes.
    let golden = include_bytes!("../../cluster/tests/golden/result-v1.jsonl");
    let mut file = ResultFile::parse(golden).unwrap();
    let Row::Benchmark(mut row) = file.rows[0].clone() else {
        panic!("{file:?}");
    };
    row.bytes *= 2;
    file.rows.insert(1, Row::Benchmark(row));
    let result = dir.file("result.jsonl");
    fs::write(&result, file.text().unwrap()).unwrap();
    let result = result.to_str().unwrap();
    let csv = dir.file("out.csv");
    let words = [
        "cluster",
        "report",
        result,
        "--csv",
        csv.to_str().unwrap(),
        "--plots",
        "/dev/null",
    ];
    let line = fails(&words, 1);
    assert!(line.contains("/dev/null"), "{line}");
    assert!(!csv.exists(), "the table is there");
    // Drawings are replaced, and the last line says so.
    let plots = dir.file("plots");
    let words = [
        "cluster",
        "report",
        result,
        "--plots",
        plots.to_str().unwrap(),
    ];
    let said = |words: &[&str]| String::from_utf8(run(words).stdout).unwrap();
    assert!(!said(&words).contains("replaced: "));
    let again = said(&words);
    assert!(
        again.contains("replaced: ") && again.contains("were there before"),
        "{again}"
    );
}

#[test]
fn an_advice_that_fails_or_is_interrupted_writes_no_file() {
    let dir = TempDir::new();
    let input = readings(&dir, 20_000);
    let written = dir.file("job.json");
    let words = [
        "advise",
        "--kernel",
        "matrix-profile",
        "--input",
        &input,
        "--measure-seconds",
        "1",
        "--write",
        written.to_str().unwrap(),
    ];
    // Power is missing, which is told before the measurement.
    let line = fails(&words, 1);
    assert!(line.contains("missing: ") && !written.exists(), "{line}");
    // An interruption in the middle.
    let longer = words.map(|word| if word == "1" { "600" } else { word });
    let child = keel()
        .args(longer)
        .args(["--assume", "--data-may-go", "neighbours"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    // SIGINT is caught once the measurement has begun.
    wait_until("the measurement", || {
        let status = fs::read_to_string(&status).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        caught.is_some_and(|mask| mask & (1 << (libc::SIGINT - 1)) != 0)
    });
    crate::common::signal(&child, libc::SIGINT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let line = one_line(&output.stderr);
    assert!(line.contains("interrupted; nothing is kept"), "{line}");
    assert!(!written.exists(), "a file is there");
}

/// The board that cannot be reached is left out; the launcher then fails, which ends the command.
#[test]
fn a_run_with_retry_leaves_out_a_board_that_cannot_be_reached() {
    let dir = TempDir::new();
    let input = readings(&dir, 4_000);
    let mpi = FakeMpi::new(dir.path(), "mpiexec", "exit 3");
    let refuses = "echo 'no route to host' >&2; exit 255";
    let shell = script(dir.path(), "shell", refuses);
    let hosts = dir.file("hosts");
    fs::write(&hosts, "b1\nlocalhost:2\n").unwrap();
    let words = [
        "cluster",
        "run",
        "vibration",
        "--hosts",
        hosts.to_str().unwrap(),
        "--input",
        &input,
        "--program",
        &mpi.program,
        "--mpirun",
        &mpi.launcher,
        "--launcher",
        &shell,
    ];
    let line = fails(&words, 1);
    assert!(
        line.contains("b1: cannot be reached: no route to host"),
        "{line}"
    );
    let output = keel()
        .args(words)
        .arg("--retry")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let wanted = "keel: b1: cannot be reached: no route to host; running without it\n";
    assert!(said.starts_with(wanted), "{said}");
    assert_eq!(output.status.code(), Some(1), "{said}");
    // No board is left.
    fs::write(&hosts, "b1\nb2\n").unwrap();
    let line = fails(&[&words[..], &["--retry"]].concat(), 1);
    assert!(
        line.contains("b1: cannot be reached") && line.contains("not reached either: b2"),
        "{line}"
    );
}

/// Boards that answer through the shell, while no rank ever starts there.
#[test]
fn a_run_whose_ranks_never_start_names_the_boards_and_with_retry_ends_on_this_machine() {
    let dir = TempDir::new();
    let input = readings(&dir, 4_000);
    let mpi = FakeMpi::new(dir.path(), "mpiexec", "exec sleep 1000");
    let answers = format!("echo '{LIBRARY}'");
    let shell = script(dir.path(), "shell", &answers);
    let hosts = dir.file("hosts");
    fs::write(&hosts, "b1\nlocalhost\n").unwrap();
    let words = [
        "cluster",
        "run",
        "vibration",
        "--hosts",
        hosts.to_str().unwrap(),
        "--input",
        &input,
        "--program",
        &mpi.program,
        "--mpirun",
        &mpi.launcher,
        "--launcher",
        &shell,
        "--silence-seconds-max",
        "3",
    ];
    for (more, said) in [
        (
            ["--address", "192.0.2.77/24"],
            "--address: 192.0.2.77 is no address of this machine; name",
        ),
        (
            ["--interface", "keel-none0"],
            "--interface: keel-none0 is no interface of this machine",
        ),
    ] {
        let line = fails(&[&words[..], &more].concat(), 1);
        assert!(line.contains(said), "{line}");
    }
    let line = fails(&words, 1);
    let wanted = "keel: b1, localhost: no rank has started within 3 s; the boards answer, but";
    assert!(
        line.starts_with(wanted) && line.contains("firewall") && line.contains("--retry"),
        "{line}"
    );
    let output = keel()
        .args(words)
        .args(["--retry", "--json"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["ranks"], 1, "{said}");
    let lost = said["lost"].as_array().unwrap();
    assert_eq!(lost.len(), 1, "{said}");
    assert_eq!(lost[0]["board"], "b1", "{said}");
}
