//! `keel cluster run --local` and `keel advise --kernel`: the result does not depend on the number of ranks. A rank
//! that dies or hangs is named, and the job continues without it if requested. Ranks started by MPI use the same
//! processes, links and judgement; they are tested where MPI is available.

use crate::common::node::{Node, SMALL};
use crate::common::{TempDir, fails, keel, ok, ok_json, one_line, run, wait_until};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::process::{Child, Output, Stdio};

/// Returns readings of a machine that rotates at 50 Hz, sampled 1,000 times per second. There is a knock in its fifth
/// second and a gap in the middle.
fn readings(rows: usize) -> String {
    let mut text = "time_ms,value,temperature\n".to_owned();
    let mut noise = 1_u32;
    for row in 0..rows {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let phase = row as f64 * 0.05;
        let knock = if row % 20_000 == 4_321 { 25.0 } else { 0.0 };
        let value =
            (phase * std::f64::consts::TAU).sin() + f64::from(noise >> 16) / 65_536.0 + knock;
        let time_ms = row + if row > rows / 2 { 500 } else { 0 };
        writeln!(text, "{time_ms},{value},{}", 20 + row / 1_000).unwrap();
    }
    text
}

struct Place {
    dir: TempDir,
    input: String,
}

impl Place {
    fn new(rows: usize) -> Self {
        let dir = TempDir::new();
        let path = dir.file("day.csv");
        fs::write(&path, readings(rows)).unwrap();
        let input = path.display().to_string();
        Self { dir, input }
    }

    fn start(&self, arguments: &[&str]) -> Running {
        let child = keel()
            .args(["cluster", "run"])
            .args(arguments)
            .args(["--input", &self.input])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Running(child)
    }
}

/// A running job.
struct Running(Child);

impl Running {
    /// Returns the process of a rank, once it exists.
    fn rank(&self, rank: usize) -> i32 {
        let mut found = None;
        wait_until("the rank", || {
            found = ranks_of(self.0.id())
                .into_iter()
                .find(|(number, _)| *number == rank);
            found.is_some()
        });
        found.unwrap().1
    }

    fn ended(self) -> Output {
        self.0.wait_with_output().unwrap()
    }
}

/// Returns the ranks that a process has started, with their processes.
fn ranks_of(parent: u32) -> Vec<(usize, i32)> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let ranks = numbers.filter_map(|number| {
        let status = fs::read_to_string(format!("/proc/{number}/status")).ok()?;
        status
            .lines()
            .find(|line| *line == format!("PPid:\t{parent}"))?;
        let words = fs::read(format!("/proc/{number}/cmdline")).ok()?;
        let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
        let at = words.iter().position(|word| *word == b"--rank")?;
        let rank = std::str::from_utf8(words[at + 1]).ok()?.parse().ok()?;
        Some((rank, number))
    });
    ranks.collect()
}

/// Whether a process has used more processor time than its start takes.
fn is_computing(process: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    // User time in hundredths of a second: field 14 of the line, the 12th after the name.
    let hundredths = fields.split_whitespace().nth(11);
    hundredths.and_then(|text| text.parse::<u64>().ok()) >= Some(30)
}

fn send(process: i32, signal: libc::c_int) {
    // SAFETY: a plain system call; the process is a grandchild of this test that has not been waited for.
    unsafe { libc::kill(process, signal) };
}

const JOBS: [&[&str]; 3] = [
    &["vibration", "--window", "500"],
    &[
        "k-means",
        "--clusters",
        "3",
        "--column",
        "value",
        "--column",
        "temperature",
    ],
    &["matrix-profile", "--window", "40"],
];

#[test]
fn every_job_finds_the_same_on_one_to_six_ranks() {
    let place = Place::new(3_000);
    for job in JOBS {
        let mut first: Option<(Value, String)> = None;
        for ranks in ["1", "2", "6"] {
            let table = place.dir.file(&format!("{}-{ranks}.csv", job[0]));
            let table_text = table.display().to_string();
            let mut line = vec!["cluster", "run"];
            line.extend_from_slice(job);
            line.extend([
                "--local",
                ranks,
                "--input",
                &place.input,
                "--json",
                "--out",
                &table_text,
            ]);
            let said = ok_json(&line);
            assert_eq!(said["compared"], "same", "{said}");
            assert_eq!(said["ranks"].to_string(), ranks);
            assert_eq!(
                (said["rows"].as_u64(), said["breaks"].as_u64()),
                (Some(3_000), Some(1))
            );
            assert_eq!(said["moved_bytes"].as_u64() > Some(0), ranks != "1");
            assert!(said["seconds"].as_f64() > Some(0.0) && said["parallel_fraction"].is_number());
            assert!(
                said["energy"]["joules"].is_number() || said["energy"]["unavailable"].is_string()
            );
            assert!(
                said["advice"]["least_energy"]["advised"].is_string(),
                "{said}"
            );
            let table = fs::read_to_string(table).unwrap();
            assert!(table.lines().count() > 3);
            match &first {
                None => first = Some((said["answer"].clone(), table)),
                Some((answer, lines)) => {
                    assert_eq!(&said["answer"], answer);
                    assert_eq!(&table, lines);
                }
            }
        }
        let (answer, _) = first.unwrap();
        match job[0] {
            "vibration" => assert_eq!(answer["columns"][0]["frequency_median"], 50.0),
            "k-means" => assert_eq!(answer["clusters"].as_array().unwrap().len(), 3),
            _ => assert!(
                answer["motif"]["distance"].as_f64() < answer["discord"]["distance"].as_f64()
            ),
        }
    }
}

#[test]
fn a_job_prints_its_findings_and_cost_in_lines() {
    let place = Place::new(25_000);
    let line = [
        "cluster",
        "run",
        "vibration",
        "--local",
        "2",
        "--input",
        &place.input,
    ];
    let said = String::from_utf8(ok(&line)).unwrap();
    for wanted in [
        "vibration on 2 ranks: 25000 readings in 1 column, 1 break\n",
        "strongest frequency 49.8047 Hz (median)\n",
        "\n  shakes most: line ",
        "\nanswer    bit for bit that of one rank\n",
        "\nmoved     ",
        "\nparallel  ",
        "\ntime      ",
        "\nenergy    ",
        "\nadvice    least energy: one board, ",
        "\n          least time: ",
        "\nassumed   ",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    // The position of one of the two knocks, with the time of its window.
    let knock = said
        .lines()
        .find(|line| line.contains("sharpest knocks"))
        .unwrap();
    let line = knock
        .split("line ")
        .nth(1)
        .and_then(|rest| rest.split([' ', ',']).next())
        .unwrap();
    let line: usize = line.parse().unwrap();
    // Line 1 is the heading, and row 0 is in line 2.
    let row = line - 2;
    let window = row..row + 1_024;
    assert!(
        window.contains(&4_321) || window.contains(&24_321),
        "{knock}"
    );
    assert!(knock.contains(" (1970-01-01T00:00:"), "{knock}");
}

#[test]
fn energy_is_measured_where_the_board_has_a_sensor() {
    let place = Place::new(3_000);
    let hwmon = place.dir.file("root/sys/class/hwmon/hwmon0");
    fs::create_dir_all(&hwmon).unwrap();
    for (name, text) in [
        ("name", "ina226\n"),
        ("power1_input", "6000000\n"),
        ("curr1_input", "1200\n"),
        ("in1_input", "5000\n"),
    ] {
        fs::write(hwmon.join(name), text).unwrap();
    }
    let root = place.dir.file("root").display().to_string();
    let mut line = vec![
        "cluster",
        "run",
        "matrix-profile",
        "--local",
        "2",
        "--json",
        "--input",
        &place.input,
    ];
    line.extend(["--root", &root, "--idle-seconds", "1"]);
    let begun = std::time::Instant::now();
    let said = ok_json(&line);
    let whole_s = begun.elapsed().as_secs_f64();
    let joules = said["energy"]["joules"].as_f64().unwrap();
    // Two ranks on one board: its energy counts once.
    assert!(
        joules > 0.0 && joules <= 6.0 * whole_s,
        "{joules} J in {whole_s} s: {said}"
    );
    let inputs = said["advice"]["least_energy"]["inputs"].as_array().unwrap();
    let active = inputs
        .iter()
        .find(|input| input["input"] == "board_active_w")
        .unwrap();
    assert!(
        active["measured"].is_string() && (active["value"].as_f64().unwrap() - 6.0).abs() < 1e-9,
        "{active}"
    );
    line.extend(["--sensor", "rapl"]);
    let said = ok_json(&line);
    assert!(
        said["energy"]["unavailable"]
            .as_str()
            .unwrap()
            .contains("no sensor has `rapl` in its name")
    );
}

#[test]
fn a_rank_that_dies_in_the_middle_is_named() {
    // Far more work than can be done before the rank is killed.
    let place = Place::new(200_000);
    let out = place.dir.file("profile.csv");
    let out_text = out.display().to_string();
    let job = place.start(&["matrix-profile", "--local", "3", "--out", &out_text]);
    let victim = job.rank(1);
    job.rank(2);
    send(victim, libc::SIGKILL);
    let output = job.ended();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let line = one_line(&output.stderr);
    assert!(
        line.starts_with("keel: local rank 1: was ended by signal: 9"),
        "{line}"
    );
    assert!(
        line.contains("--retry") && output.stdout.is_empty(),
        "{line}"
    );
    assert!(!out.exists(), "half a table is left");
}

#[test]
fn a_job_with_retry_goes_on_without_the_rank() {
    let place = Place::new(3_000);
    let waits = ["--idle-seconds", "2", "--retry", "--json"];
    let arguments: Vec<&str> = ["vibration", "--local", "3"]
        .into_iter()
        .chain(waits)
        .collect();
    let job = place.start(&arguments);
    // While the rank still waits; rank 0 has the readings.
    let victim = job.rank(0);
    job.rank(2);
    send(victim, libc::SIGKILL);
    let output = job.ended();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let line = one_line(&output.stderr);
    assert!(
        line.contains("local rank 0: was ended by signal: 9") && line.contains("other 2 ranks"),
        "{line}"
    );
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (said["ranks"].as_u64(), said["compared"].as_str()),
        (Some(2), Some("same"))
    );
    assert_eq!(said["lost"][0]["board"], "local rank 0");
    let alone = ok_json(&[
        "cluster",
        "run",
        "vibration",
        "--local",
        "1",
        "--json",
        "--input",
        &place.input,
    ]);
    assert_eq!(said["answer"], alone["answer"]);
}

#[test]
fn a_job_without_a_rank_left_is_not_retried() {
    let place = Place::new(3_000);
    let job = place.start(&[
        "vibration",
        "--local",
        "1",
        "--idle-seconds",
        "3600",
        "--retry",
    ]);
    send(job.rank(0), libc::SIGKILL);
    let output = job.ended();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(one_line(&output.stderr).contains("it was the last one"));
}

#[test]
fn a_rank_that_hangs_is_named_in_bounded_time() {
    let place = Place::new(200_000);
    let job = place.start(&[
        "matrix-profile",
        "--local",
        "2",
        "--silence-seconds-max",
        "3",
    ]);
    let victim = job.rank(1);
    // Wait until the ranks have connected: if one were stopped before, all of them would be silent.
    wait_until("the rank to compute", || is_computing(victim));
    send(victim, libc::SIGSTOP);
    let output = job.ended();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let line = one_line(&output.stderr);
    assert!(
        line.starts_with("keel: local rank 1: has said nothing for 3 s"),
        "{line}"
    );
    assert!(
        !std::path::Path::new(&format!("/proc/{victim}")).exists(),
        "it is still there"
    );
}

#[test]
fn time_that_runs_out_and_an_interruption_end_all_ranks() {
    let place = Place::new(200_000);
    let job = place.start(&["matrix-profile", "--local", "2", "--seconds-max", "2"]);
    let ranks = [job.rank(0), job.rank(1)];
    let output = job.ended();
    assert!(
        one_line(&output.stderr).contains("not done within --seconds-max"),
        "{output:?}"
    );
    let job = place.start(&["matrix-profile", "--local", "2"]);
    let others = [job.rank(0), job.rank(1)];
    crate::common::signal(&job.0, libc::SIGINT);
    let output = job.ended();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        one_line(&output.stderr).contains("interrupted"),
        "{output:?}"
    );
    for process in ranks.into_iter().chain(others) {
        assert!(
            !std::path::Path::new(&format!("/proc/{process}")).exists(),
            "a rank is still there"
        );
    }
}

#[test]
fn ranks_end_after_their_starter() {
    let place = Place::new(200_000);
    let mut job = place.start(&["matrix-profile", "--local", "2"]);
    let ranks = [job.rank(0), job.rank(1)];
    job.0.kill().unwrap();
    job.0.wait().unwrap();
    wait_until("the end of the ranks", || {
        ranks.iter().all(|process| !is_running(*process))
    });
}

/// The other rank may not exist yet: only the kernel can notify the first one.
#[test]
fn a_rank_whose_starter_has_gone_before_they_met_ends() {
    let dir = TempDir::new();
    let socket = dir.file("ranks").display().to_string();
    let script = format!(
        "'{}' cluster rank --parent $$ --socket '{socket}' --rank 0 --ranks 2 --patience-seconds 600 -- & echo $!; \
         exec sleep 600",
        env!("CARGO_BIN_EXE_keel")
    );
    let mut starter = std::process::Command::new("sh")
        .args(["-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut output = std::io::BufReader::new(starter.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut said).unwrap();
    let rank: i32 = said.trim().parse().unwrap();
    wait_until("the rank's socket", || fs::exists(&socket).unwrap_or(false));
    starter.kill().unwrap();
    starter.wait().unwrap();
    wait_until("the end of the rank", || !is_running(rank));
}

/// A rank that cannot start does not count as a lost board: a replacement could not start, either.
#[test]
fn a_rank_that_could_not_begin_is_reported_with_its_reason() {
    let place = Place::new(2_000);
    let long = place.dir.file(&"x".repeat(100));
    fs::create_dir(&long).unwrap();
    let words = [
        "cluster",
        "run",
        "vibration",
        "--local",
        "2",
        "--window",
        "64",
        "--retry",
        "--input",
        &place.input,
    ];
    let output = keel().args(words).env("TMPDIR", &long).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let line = one_line(&output.stderr);
    assert!(
        line.contains("local rank 0: ") && line.contains("path"),
        "{line}"
    );
}

/// Whether a process runs: a process that has ended but was not waited for does not count.
fn is_running(process: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status
        .lines()
        .any(|line| line.starts_with("State:") && !line.contains('Z'))
}

#[test]
fn the_history_of_a_node_is_an_input() {
    let node = Node::start(SMALL);
    for row in 0..40 {
        let (value, time) = (
            f64::from(row % 8).to_string(),
            format!("{}", 1_700_000_000 + row),
        );
        node.ok(&["put", "pump/vibration", &value, "--time", &time]);
    }
    node.ok(&["put", "pump/vibration", "stuck", "--time", "1700000100"]);
    let line = [
        "cluster",
        "run",
        "vibration",
        "--window",
        "8",
        "--step",
        "8",
        "--local",
        "2",
        "--json",
    ];
    let line: Vec<&str> = line
        .into_iter()
        .chain(["--key", "pump/vibration"])
        .collect();
    let said = node.json(&line);
    assert_eq!(
        (said["rows"].as_u64(), said["breaks"].as_u64()),
        (Some(40), Some(0)),
        "{said}"
    );
    assert_eq!(said["left_out"]["not a number"], 1);
    assert_eq!(said["columns"][0], "pump/vibration");
    assert_eq!(said["answer"]["columns"][0]["frequency_median"], 0.125);
    let part: Vec<&str> = line.iter().copied().chain(["--to", "1700000016"]).collect();
    let said = node.json(&part);
    assert_eq!(said["rows"], 16);
    let said = node.fails(
        &[
            "cluster",
            "run",
            "vibration",
            "--local",
            "1",
            "--key",
            "no/such",
        ],
        1,
    );
    assert!(said.contains("no/such"), "{said}");
}

#[test]
fn inputs_that_cannot_be_used_are_refused_in_one_line() {
    let place = Place::new(300);
    let job = |more: &[&str]| -> Vec<String> {
        let words = ["cluster", "run"].iter().chain(more);
        words.map(|word| (*word).to_owned()).collect()
    };
    let input = place.input.as_str();
    let text = place.dir.file("text.csv").display().to_string();
    fs::write(&text, "value\nopen\nclosed\n").unwrap();
    for (line, status, said) in [
        (job(&["vibration", "--local", "2"]), 2, "names no readings"),
        (job(&["vibration", "--input", input]), 2, "--hosts"),
        (
            job(&["vibration", "--local", "0", "--input", input]),
            2,
            "--local",
        ),
        (
            job(&[
                "vibration",
                "--local",
                "2",
                "--hosts",
                "x",
                "--input",
                input,
            ]),
            2,
            "cannot be used with",
        ),
        (
            job(&[
                "vibration",
                "--local",
                "2",
                "--input",
                input,
                "--from",
                "-1d",
            ]),
            2,
            "--from",
        ),
        (
            job(&["spectrum", "--local", "2", "--input", input]),
            2,
            "spectrum",
        ),
        (
            job(&["vibration", "--local", "2", "--input", "/no/such"]),
            1,
            "/no/such",
        ),
        (
            job(&["vibration", "--local", "2", "--input", &text]),
            1,
            "2 not a number",
        ),
        (
            job(&[
                "vibration",
                "--local",
                "2",
                "--input",
                input,
                "--column",
                "x",
            ]),
            1,
            "there are: time_ms, value",
        ),
        (
            job(&["vibration", "--local", "2", "--input", input]),
            1,
            "window of 1024 readings fits nowhere",
        ),
        (
            job(&[
                "k-means",
                "--local",
                "2",
                "--input",
                input,
                "--clusters",
                "65",
            ]),
            2,
            "65",
        ),
        (
            job(&[
                "matrix-profile",
                "--local",
                "2",
                "--input",
                input,
                "--window",
                "300",
            ]),
            1,
            "number of readings",
        ),
        (
            job(&[
                "vibration",
                "--local",
                "2",
                "--window",
                "64",
                "--input",
                input,
                "--out",
                input,
            ]),
            1,
            "day.csv",
        ),
    ] {
        let words: Vec<&str> = line.iter().map(String::as_str).collect();
        let line = fails(&words, status);
        assert!(line.contains(said), "{said}: {line}");
    }
    assert!(
        fs::read_to_string(input).unwrap().starts_with("time_ms"),
        "the input was written over"
    );
}

#[test]
fn advice_on_a_job_is_measured_here_and_its_question_can_be_asked_again() {
    let place = Place::new(20_000);
    let job = [
        "advise",
        "--kernel",
        "matrix-profile",
        "--input",
        &place.input,
        "--measure-seconds",
        "1",
    ];
    let said = fails(&job, 1);
    assert!(
        said.contains("missing: board_active_w, ") && said.contains("--data-may-go"),
        "{said}"
    );
    let file = place.dir.file("job.json").display().to_string();
    let near = [
        "--data-may-go",
        "neighbours",
        "--assume",
        "--json",
        "--write",
        &file,
    ];
    let line: Vec<&str> = job.into_iter().chain(near).collect();
    let measured = ok_json(&line);
    let inputs = measured["inputs"].as_array().unwrap();
    let given = |name: &str| inputs.iter().find(|input| input["input"] == name).unwrap();
    assert!(
        given("single_s")["measured"].is_string()
            && given("parallel_fraction")["measured"].is_string()
    );
    assert!(
        given("exchange_bytes")["stated"].is_string()
            && given("board_idle_w")["assumed"].is_string()
    );
    // One exchange sends the series, two combine profiles, one sends the head of the job.
    assert_eq!(given("exchange_times")["value"], 4.0);
    let samples = measured["measured"]["samples"].as_array().unwrap();
    assert!(samples.len() >= 3, "{measured}");
    assert!(measured["advised"].is_string());
    let again = ok_json(&["advise", "--job", &file, "--json"]);
    assert_eq!(
        (&again["advised"], &again["options"]),
        (&measured["advised"], &measured["options"])
    );
    assert!(fails(&line, 1).contains("job.json"), "written over");
    // Figures that were not measured are taken from the file.
    let text = fs::read_to_string(&file).unwrap().replace(
        "\"board_active_w\": {\n      \"assumed\"",
        "\"board_active_w\": {\n      \"stated\"",
    );
    fs::write(&file, text).unwrap();
    let both: Vec<&str> = job.into_iter().chain(["--job", &file]).collect();
    let plain = String::from_utf8(ok(&both)).unwrap();
    assert!(
        plain.contains("stated    board_active_w") && plain.contains("sample    "),
        "{plain}"
    );
}

#[test]
fn jobs_leave_the_temporary_folder_empty() {
    let place = Place::new(3_000);
    let folder = TempDir::new();
    let output = keel()
        .args([
            "cluster",
            "run",
            "vibration",
            "--local",
            "2",
            "--input",
            &place.input,
        ])
        .env("TMPDIR", folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(folder.entries(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_rank_by_hand_is_refused_in_one_line() {
    let dir = TempDir::new();
    let socket = dir.file("ranks").display().to_string();
    let line = [
        "cluster",
        "rank",
        "--socket",
        &socket,
        "--rank",
        "1",
        "--ranks",
        "2",
        "--patience-seconds",
        "1",
    ];
    assert!(fails(&line, 1).contains("rank 0 does not answer"));
    let output = run(&["cluster", "--help"]);
    assert!(
        !String::from_utf8(output.stdout)
            .unwrap()
            .contains("started by it"),
        "the rank is no command for people"
    );
}
