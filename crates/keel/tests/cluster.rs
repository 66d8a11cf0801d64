//! `keel cluster measure` and `report` as processes, without MPI: its launcher and keel-mpi are scripts with prepared
//! output. With MPI: crates/keel-mpi/tests.

use crate::common::mpi::{FakeMpi, LIBRARY, script};
use crate::common::{TempDir, fails, keel, ok, ok_json, one_line, run, wait_until};
use cluster::host::describe;
use cluster::measure::{Event, RankFacts, event_line};
use cluster::power::Root;
use cluster::results::{
    Benchmark, BenchmarkRow, Header, Known, Link, Mode, Origin, PowerRow, ResultFile, Row, Stopped,
    Transport,
};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

/// A fake keel-mpi, its launcher that executes `run`, and a list of hosts.
struct Fake {
    dir: TempDir,
    program: String,
    launcher: String,
    hosts: String,
}

impl Fake {
    fn new(hosts: &str, run: &str) -> Self {
        let dir = TempDir::new();
        let mpi = FakeMpi::new(dir.path(), "mpiexec", run);
        let list = dir.file("hosts");
        fs::write(&list, hosts).unwrap();
        let hosts = list.display().to_string();
        Self {
            dir,
            program: mpi.program,
            launcher: mpi.launcher,
            hosts,
        }
    }

    /// A launcher that prints these events and succeeds.
    fn saying(events: &[Event]) -> Self {
        let lines: Vec<String> = events
            .iter()
            .map(|event| event_line(event).unwrap())
            .collect();
        let fake = Self::new("localhost:2\n", "exec cat \"$(dirname \"$0\")/said\"");
        // A line that is not an event belongs to another program.
        fs::write(
            fake.dir.file("said"),
            format!("a warning\n{}\n", lines.join("\n")),
        )
        .unwrap();
        fake
    }

    fn words<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let mut words = vec![
            "cluster",
            "measure",
            "--hosts",
            &self.hosts,
            "--program",
            &self.program,
            "--mpirun",
            &self.launcher,
            "--only",
            "latency",
            "--sizes",
            "64",
        ];
        if !more
            .iter()
            .any(|word| ["--samples", "--compat"].contains(word))
        {
            words.extend(["--start-seconds", "0"]);
        }
        words.extend(more);
        words
    }
}

fn world() -> Event {
    let host = describe(&Root::new("/"), 2);
    let rank = |rank| RankFacts {
        rank,
        host: host.name.clone(),
        process: 100 + rank,
        core: Known::Value(rank),
        boot: "b".to_owned(),
        library: LIBRARY.to_owned(),
    };
    Event::World {
        library: LIBRARY.to_owned(),
        ranks: vec![rank(0), rank(1)],
        hosts: vec![host.clone()],
    }
}

fn row(samples_us: &[f64]) -> BenchmarkRow {
    BenchmarkRow {
        benchmark: Benchmark::Latency,
        ranks: 2,
        transport: Transport::Memory,
        bytes: 64,
        iterations: 10,
        samples_us: samples_us.to_vec(),
        starts: Vec::new(),
        stopped: Stopped::Fixed,
    }
}

#[test]
fn events_of_ranks_become_a_table_and_a_file() {
    let fake = Fake::saying(&[
        world(),
        Event::Begin {
            at: 0,
            benchmark: Benchmark::Latency,
            bytes: 64,
        },
        Event::Row {
            row: row(&[1.0, 2.0, 3.0]),
        },
        Event::End { rows: 1 },
    ]);
    let out = fake.dir.file("run.jsonl").display().to_string();
    let said =
        ok_json(&fake.words(&["--samples", "3", "--label", "fake", "--out", &out, "--json"]));
    assert_eq!(
        (&said["mpi"], &said["starts"]),
        (&LIBRARY.into(), &1.into())
    );
    let cell = &said["rows"][0];
    assert_eq!(
        (&cell["median_us"], &cell["samples"], &cell["unit"]),
        (&2.0.into(), &3.into(), &"us".into())
    );
    let file = ResultFile::parse(&fs::read(&out).unwrap()).unwrap();
    assert_eq!(
        (file.header.label.as_str(), file.header.mode),
        ("fake", Mode::Sound)
    );
    assert_eq!(file.rows, [Row::Benchmark(row(&[1.0, 2.0, 3.0]))]);
    // An existing file is not overwritten, and the error comes before any measurement.
    let line = fails(&fake.words(&["--samples", "3", "--out", &out]), 1);
    assert!(line.contains("run.jsonl: file exists"), "{line}");
    let plain = String::from_utf8(ok(&fake.words(&["--samples", "3"]))).unwrap();
    assert!(plain.contains("latency      64        2.000"), "{plain}");
    assert!(
        plain.contains("one host: messages went through its memory"),
        "{plain}"
    );
}

#[test]
fn the_default_mode_goes_on_until_starts_agree() {
    let fake = Fake::saying(&[
        world(),
        Event::Row {
            row: row(&[1.0; 8]),
        },
        Event::End { rows: 1 },
    ]);
    let said = ok_json(&fake.words(&["--json"]));
    assert_eq!(
        (&said["starts"], &said["rows"][0]["stopped"]),
        (&9.into(), &"narrow".into())
    );
    assert_eq!(said["rows"][0]["samples"], 72);
}

#[test]
fn power_of_boards_becomes_rows_of_all_starts_with_reasons_for_unavailable_sensors() {
    let power = |watts: f64, host: &str, origin: Origin| PowerRow {
        during: "latency".to_owned(),
        host: host.to_owned(),
        source: "ina226 5-0040".to_owned(),
        covers: "its rail".to_owned(),
        origin,
        seconds: if watts > 0.0 { 2.0 } else { 0.0 },
        samples: 20,
        gap_s_max: 0.1,
        average_w: watts,
        maximum_w: watts,
        minimum_w: watts,
        energy_j: 2.0 * watts,
        idle_w: Known::Value(1.5),
    };
    let rows = vec![
        power(4.0, "b1", Origin::Measured),
        power(0.0, "b2", Origin::Unavailable("gone".to_owned())),
    ];
    let fake = Fake::saying(&[
        world(),
        Event::Row {
            row: row(&[1.0; 8]),
        },
        Event::Power { rows },
        Event::End { rows: 1 },
    ]);
    let out = fake.dir.file("run.jsonl").display().to_string();
    let said = String::from_utf8(ok(&fake.words(&["--power", "--out", &out]))).unwrap();
    assert!(
        said.contains("latency      b1            ina226 5-0040             4.000      4.000    4.000    1.500"),
        "{said}"
    );
    assert!(said.contains("unavailable: gone"), "{said}");
    assert!(!said.contains("per W: the"), "one board has no power");
    let file = ResultFile::parse(&fs::read(&out).unwrap()).unwrap();
    assert_eq!(
        file.header.power_source,
        Known::Value("ina226 5-0040".to_owned())
    );
    let found: Vec<&PowerRow> = file
        .rows
        .iter()
        .filter_map(|row| match row {
            Row::Power(row) => Some(row),
            Row::Benchmark(_) => None,
        })
        .collect();
    // Nine starts of 2 s each.
    assert_eq!(
        (found.len(), found[0].seconds, found[0].energy_j),
        (2, 18.0, 72.0)
    );
    // Without the option, power is not measured, and the file says so.
    fs::remove_file(&out).unwrap();
    ok(&fake.words(&["--out", &out]));
    let file = ResultFile::parse(&fs::read(&out).unwrap()).unwrap();
    assert_eq!(
        file.header.power_source,
        Known::Unavailable("not measured: --power".to_owned())
    );
    fails(&fake.words(&["--sensor", "ina"]), 2);
}

#[test]
fn an_incomplete_measurement_fails_and_leaves_no_file() {
    let whole = [
        world(),
        Event::Row { row: row(&[1.0]) },
        Event::End { rows: 1 },
    ];
    for (events, said) in [
        (&whole[..1], "has ended without a result"),
        (&whole[..2], "has ended without a result"),
        (&whole[1..], "has ended without a result"),
        (
            &[whole[0].clone(), whole[2].clone()][..],
            "latency of 64 bytes was not measured",
        ),
    ] {
        let fake = Fake::saying(events);
        let out = fake.dir.file("run.jsonl").display().to_string();
        let line = fails(&fake.words(&["--samples", "1", "--out", &out]), 1);
        assert!(line.contains(said), "{line}");
        assert!(!Path::new(&out).exists());
    }
    let mut other = row(&[1.0]);
    other.bytes = 128;
    let fake = Fake::saying(&[world(), Event::Row { row: other }, Event::End { rows: 1 }]);
    let line = fails(&fake.words(&["--samples", "1"]), 1);
    assert!(
        line.contains("latency of 128 bytes was measured without being asked for"),
        "{line}"
    );
    let fake = Fake::new("localhost:2\n", "echo 'keel-mpi {\"event\": \"new\"}'");
    let line = fails(&fake.words(&[]), 1);
    assert!(line.contains("of the same version"), "{line}");
}

#[test]
fn a_failure_that_a_rank_reports_is_printed_with_its_host() {
    let why = "rank 1 on b2: latency of 64 bytes: the byte at 3 is not what was sent".to_owned();
    let failed = Event::Failed {
        why: why.clone(),
        host: Some("b2".to_owned()),
    };
    let line = fails(
        &Fake::saying(&[world(), failed]).words(&["--samples", "1"]),
        1,
    );
    assert_eq!(line, format!("keel: b2: {why}; see docs/boards.md"));
    // Hydra reports the failure on standard output, while the helper on the other board writes an error.
    let hydra = "echo '=   PID 41 RUNNING AT b2'; echo '[proxy:0:0@b1] assert failed' >&2; exit 9";
    let fake = Fake::new("b1\nb2\n", hydra);
    let shell = script(fake.dir.path(), "shell", "shift; exec \"$@\"");
    let line = fails(&fake.words(&["--launcher", &shell]), 1);
    assert!(
        line.starts_with("keel: b2: the launcher has ended without a result"),
        "{line}"
    );
}

#[test]
fn a_launcher_ends_with_the_command_however_that_ends() {
    let fake = Fake::new(
        "localhost:2\n",
        "echo $$ > \"$(dirname \"$0\")/process\"; exec sleep 1000",
    );
    let words = fake.words(&[]);
    let mut command = keel().args(&words).spawn().unwrap();
    let process = fake.dir.file("process");
    let number = || -> Option<u32> { fs::read_to_string(&process).ok()?.trim().parse().ok() };
    wait_until("the launcher", || number().is_some());
    command.kill().unwrap();
    command.wait().unwrap();
    let line = format!("/proc/{}/cmdline", number().unwrap());
    // A process for which its parent has not waited yet has no command line.
    wait_until("its end", || {
        fs::read(&line).map_or(true, |line| line.is_empty())
    });
}

#[test]
fn boards_are_asked_before_anything_starts() {
    let fake = Fake::new("b1\nb2\n", "touch \"$(dirname \"$0\")/started\"");
    for (answer, said) in [
        (
            "echo 'no route to host' >&2; exit 255",
            "keel: b1: cannot be reached: no route to host; see that",
        ),
        (
            "echo 'Open MPI v4.1.4'",
            "keel: b1: its keel-mpi has Open MPI v4.1.4, that of this machine MPICH",
        ),
        ("echo 'not found' >&2; exit 127", "keel: b1: has no "),
        (
            "echo 'no libmpi' >&2; exit 1",
            "does not run there (exit status: 1): no libmpi",
        ),
    ] {
        let shell = script(fake.dir.path(), "shell", answer);
        let line = fails(&fake.words(&["--launcher", &shell]), 1);
        assert!(line.contains(said), "{line}");
        assert!(!fake.dir.file("started").exists());
    }
    let line = fails(&fake.words(&["--launcher", "nowhere"]), 1);
    assert!(line.starts_with("keel: nowhere: no such file"), "{line}");
}

#[test]
fn a_launcher_that_says_nothing_is_ended() {
    for option in [["--silence-seconds-max", "1"], ["--seconds-max", "1"]] {
        let fake = Fake::new(
            "localhost:2\n",
            "echo $$ > \"$(dirname \"$0\")/process\"; exec sleep 1000",
        );
        let line = fails(&fake.words(&option), 1);
        assert!(
            line.contains("nothing has come for 1 s")
                || line.contains("not done within --seconds-max"),
            "{line}"
        );
        let process = fs::read_to_string(fake.dir.file("process")).unwrap();
        assert!(
            !Path::new("/proc").join(process.trim()).exists(),
            "it still runs"
        );
    }
}

#[test]
fn an_interrupted_measurement_ends_its_launcher() {
    let fake = Fake::new(
        "localhost:2\n",
        "echo $$ > \"$(dirname \"$0\")/process\"; exec sleep 1000",
    );
    let child = keel()
        .args(fake.words(&[]))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let process = fake.dir.file("process");
    wait_until("the launcher", || {
        fs::read_to_string(&process).is_ok_and(|text| text.ends_with('\n'))
    });
    crate::common::signal(&child, libc::SIGTERM);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        one_line(&output.stderr).contains("interrupted"),
        "{output:?}"
    );
    let process = fs::read_to_string(process).unwrap();
    assert!(
        !Path::new("/proc").join(process.trim()).exists(),
        "it still runs"
    );
}

#[test]
fn a_missing_program_is_named_with_the_remedy() {
    let fake = Fake::new("localhost:2\n", "");
    let empty = TempDir::new();
    let output = keel()
        .args([
            "cluster",
            "measure",
            "--hosts",
            &fake.hosts,
            "--program",
            &fake.program,
        ])
        .env("PATH", format!("{}:/usr/bin/none", empty.path().display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    // The scripts need only a shell, whose path they name, and its built-in `echo`.
    let line = one_line(&output.stderr);
    assert!(
        line.contains("MPICH: its launcher is not in PATH")
            && line.contains("apt-get install mpich"),
        "{line}"
    );
    let line = fails(
        &[
            "cluster",
            "measure",
            "--hosts",
            &fake.hosts,
            "--program",
            "nowhere",
        ],
        1,
    );
    assert!(line.starts_with("keel: nowhere: no such file"), "{line}");
    let other = script(fake.dir.path(), "mpirun", "echo 'mpirun (Open MPI) 4.1.4'");
    let mut words = fake.words(&[]);
    words[7] = &other;
    assert!(fails(&words, 1).contains("is no launcher of MPICH"));
    for (hosts, said) in [
        ("", "there is no host"),
        ("localhost\n", "at least 2 ranks are needed"),
        ("a\na\n", "line 2: a is there already"),
        ("-x\n", "line 1: `-x` is no name"),
    ] {
        let fake = Fake::new(hosts, "");
        let line = fails(&fake.words(&[]), 1);
        assert!(line.contains(said), "{line}");
    }
    let fake = Fake::new("localhost:2\n", "");
    for wrong in [
        &["--sizes", "6"][..],
        &["--only", "speed"],
        &["--address", "10.0.0.1"],
        &["--interface", "-x"],
        &["--half-width-percent", "0"],
        &["--starts-max", "2"],
    ] {
        let mut words: Vec<&str> = fake.words(&[])[..8].to_vec();
        words.extend(wrong);
        fails(&words, 2);
    }
    let line = fails(&fake.words(&["--samples", "-1"]), 2);
    assert!(line.contains("--samples"), "{line}");
}

fn file(dir: &TempDir, label: &str, factor: f64) -> String {
    let rows = (0..5_u32).map(|at| {
        // Starts of 10 samples each; the starts differ by up to 2 %.
        let sample = |number: u32| {
            factor
                * f64::from(1 << at)
                * (1.0 + 0.005 * f64::from(number / 10) + 0.001 * f64::from(number % 3))
        };
        Row::Benchmark(BenchmarkRow {
            bytes: 4 << at,
            samples_us: (0..50).map(sample).collect(),
            starts: vec![10; 5],
            ..row(&[])
        })
    });
    let unknown = || Known::Unavailable("a test".to_owned());
    let result = ResultFile {
        header: Header {
            label: label.to_owned(),
            created_ms: 1,
            mode: Mode::Sound,
            mpi: Known::Value(LIBRARY.to_owned()),
            link: Link {
                rate_bits_per_s: Known::Unavailable("a test".to_owned()),
                burst_bytes: Known::Unavailable("a test".to_owned()),
            },
            hosts: vec![describe(&Root::new("/"), 2)],
            power_source: unknown(),
        },
        rows: rows.collect(),
    };
    let path = dir.file(&format!("{label}.jsonl"));
    fs::write(&path, result.text().unwrap()).unwrap();
    path.display().to_string()
}

#[test]
fn options_that_would_fail_after_the_measurement_are_refused_before() {
    let fake = Fake::saying(&[world()]);
    for label in ["a\tb", &"x".repeat(201)] {
        let line = fails(&fake.words(&["--label", label]), 2);
        assert!(line.contains("--label"), "{line}");
    }
    let line = fails(&fake.words(&["--tcp"]), 2);
    assert!(line.contains("--tcp: all ranks are on one host"), "{line}");
    // The longest time stated in the help is accepted.
    let line = fails(&fake.words(&["--seconds-max", "86400"]), 1);
    assert!(!line.contains("seconds_max"), "{line}");
}

#[test]
fn labelled_results_are_compared_in_tables_values_and_drawings() {
    let dir = TempDir::new();
    let files = [
        file(&dir, "fedora", 1.0),
        file(&dir, "clear", 1.001),
        file(&dir, "yocto", 1.4),
    ];
    let (csv, plots) = (dir.file("out.csv"), dir.file("plots"));
    let (csv, plots) = (csv.display().to_string(), plots.display().to_string());
    let words = [
        "cluster", "report", &files[0], &files[1], &files[2], "--csv", &csv, "--plots", &plots,
        "--json",
    ];
    let said = ok_json(&words);
    let cells = &said["rows"][0]["cells"];
    assert_eq!(
        (&cells[1]["verdict"], &cells[2]["verdict"]),
        (&"alike".into(), &"worse".into())
    );
    assert!(
        (cells[2]["ratio"].as_f64().unwrap() - 1.4).abs() < 0.01,
        "{cells}"
    );
    assert_eq!(fs::read_to_string(&csv).unwrap().lines().count(), 1 + 5 * 3);
    // A result in the place of the values stays as it is.
    let before = fs::read(&files[0]).unwrap();
    let line = fails(&["cluster", "report", &files[0], "--csv", &files[0]], 1);
    assert!(line.contains("exists; choose another path"), "{line}");
    assert_eq!(fs::read(&files[0]).unwrap(), before);
    let drawing = fs::read_to_string(Path::new(&plots).join("latency-2-memory.svg")).unwrap();
    assert_eq!(drawing.matches("<polyline").count(), 3);
    assert_eq!(said["plots"].as_array().unwrap().len(), 1);
    let plain = String::from_utf8(ok(&["cluster", "report", &files[0], &files[2]])).unwrap();
    assert!(
        plain.contains(
            "not known to be alike: the link's rate in bits per second is unknown in both"
        ),
        "{plain}"
    );
    assert!(
        plain.contains("latency, 2 ranks, memory [us]") && plain.contains(": worse)"),
        "{plain}"
    );
    let forks = said["hosts"][2]["forks_since_boot"].as_u64().unwrap();
    assert_eq!(said["hosts"][2]["label"], "yocto");
    assert!(
        plain.lines().any(|line| {
            line.trim_start().starts_with("yocto ") && line.ends_with(&format!(" {forks}"))
        }),
        "{plain}"
    );
    // Invalid results: one that is cut off, one that is not a result, and a duplicate.
    let broken = dir.file("broken.jsonl");
    let text = fs::read_to_string(&files[0]).unwrap();
    fs::write(&broken, &text[..text.len() / 2]).unwrap();
    assert!(fails(&["cluster", "report", &broken.display().to_string()], 1).contains("cut off"));
    assert!(
        fails(&["cluster", "report", &files[0], &files[0]], 1).contains("is the label of two runs")
    );
    assert_eq!(run(&["cluster", "report"]).status.code(), Some(2));
}

/// Round trips between two boards: 10 us and 1 GB/s up to 16 KiB, then 150 us and 100 MB/s.
fn link_file(dir: &TempDir, label: &str, transport: Transport, sizes: &[u64]) -> String {
    let rows = sizes.iter().map(|&bytes| {
        let us = if bytes <= 16_384 {
            10.0 + bytes as f64 / 1e3
        } else {
            150.0 + bytes as f64 / 1e2
        };
        Row::Benchmark(BenchmarkRow {
            benchmark: Benchmark::Roundtrip,
            transport,
            bytes,
            samples_us: vec![2.0 * us; 3],
            ..row(&[])
        })
    });
    let result = ResultFile {
        header: Header {
            label: label.to_owned(),
            created_ms: 1_780_272_000_000,
            mode: Mode::Sound,
            mpi: Known::Value(LIBRARY.to_owned()),
            link: Link {
                rate_bits_per_s: Known::Unavailable("not stated".to_owned()),
                burst_bytes: Known::Unavailable("not stated".to_owned()),
            },
            hosts: vec![describe(&Root::new("/"), 2)],
            power_source: Known::Unavailable("not measured".to_owned()),
        },
        rows: rows.collect(),
    };
    let path = dir.file(&format!("{label}.jsonl"));
    fs::write(&path, result.text().unwrap()).unwrap();
    path.display().to_string()
}

#[test]
fn advice_uses_the_measured_cost_of_messages_and_a_report_shows_the_fit() {
    let dir = TempDir::new();
    let sizes: Vec<u64> = (2..=22).map(|power| 1 << power).collect();
    let link = link_file(&dir, "pair", Transport::Network, &sizes);
    let job = dir.file("job.json").display().to_string();
    let question = r#"{
        "version": 1, "name": "linked", "boards_max": 4, "data_may_go": "neighbours",
        "inputs": {
            "single_s": {"value": 10, "measured": "a run"},
            "parallel_fraction": {"value": 0.95, "measured": "runs"},
            "exchange_times": {"value": 200, "stated": "the kernel"},
            "exchange_bytes": {"value": BYTES, "stated": "the kernel"}
        }
    }"#;
    for (bytes, alpha_s, rate) in [("4096", 10e-6, 1e9), ("1e6", 150e-6, 1e8)] {
        fs::write(&job, question.replace("BYTES", bytes)).unwrap();
        let line = [
            "advise", "--job", &job, "--link", &link, "--assume", "--json",
        ];
        let said = ok_json(&line);
        let inputs = said["inputs"].as_array().unwrap();
        for (name, value) in [("message_alpha_s", alpha_s), ("message_bytes_per_s", rate)] {
            let given = inputs.iter().find(|input| input["input"] == name).unwrap();
            let source = given["measured"].as_str().unwrap();
            assert!(source.starts_with("round trips of pair from "), "{given}");
            let found = given["value"].as_f64().unwrap();
            assert!((found / value - 1.0).abs() < 1e-6, "{given}");
            assert!(given["spread"].as_f64().unwrap() < 1e-6, "{given}");
        }
    }
    // Files that give no line are refused in one line each.
    for (file, wrong) in [
        (
            link_file(&dir, "two", Transport::Network, &[4, 8]),
            "round trips of 2 sizes",
        ),
        (
            link_file(&dir, "inside", Transport::Memory, &sizes),
            "round trips of 0 sizes",
        ),
        (job.clone(), "keel cluster measure"),
        ("/no/such".to_owned(), "/no/such: no such file"),
    ] {
        let line = fails(&["advise", "--job", &job, "--link", &file, "--assume"], 1);
        assert!(line.contains(wrong), "{line}");
    }
    let said = ok_json(&["cluster", "report", &link, "--json"]);
    let segments = said["links"][0]["segments"].as_array().unwrap();
    assert_eq!(said["links"][0]["label"], "pair");
    assert_eq!(
        (segments.len(), &segments[1]["from_bytes"]),
        (2, &32_768.0.into())
    );
    let plain = String::from_utf8(ok(&["cluster", "report", &link])).unwrap();
    assert!(
        plain.contains("32768       150.000      100.0        0.0, 0.0 of 8 sizes"),
        "{plain}"
    );
}

#[test]
fn a_job_is_advised_by_the_measured_link() {
    let dir = TempDir::new();
    let link = link_file(&dir, "pair", Transport::Network, &[4, 1_024, 16_384]);
    let input = dir.file("day.csv").display().to_string();
    let readings: String = (0..2_000).map(|row| format!("{}\n", row % 7)).collect();
    fs::write(&input, format!("value\n{readings}")).unwrap();
    let line = [
        "cluster",
        "run",
        "vibration",
        "--local",
        "1",
        "--input",
        &input,
        "--link",
        &link,
        "--json",
    ];
    let said = ok_json(&line);
    let inputs = said["advice"]["least_time"]["inputs"].as_array().unwrap();
    let is_alpha = |input: &&serde_json::Value| input["input"] == "message_alpha_s";
    let alpha = inputs.iter().find(is_alpha).unwrap();
    assert!(alpha["measured"].is_string(), "{inputs:?}");
    let wild = link_file(&dir, "no line", Transport::Network, &[4, 16_384, 32_768]);
    let said = ok_json(&line.map(|word| if word == link { wild.as_str() } else { word }));
    assert!(said["advice"]["link_refused"].is_string(), "{said}");
}

/// Ends the program of the meter, also if the test panics: its scope waits for it.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_meter_gives_the_power_of_all_boards_during_each_benchmark() {
    let events = [
        world(),
        Event::Begin {
            at: 0,
            benchmark: Benchmark::Latency,
            bytes: 64,
        },
        Event::Row {
            row: row(&[1.0, 2.0, 3.0]),
        },
        Event::End { rows: 1 },
    ];
    let said: Vec<String> = events.map(|event| event_line(&event).unwrap()).into();
    // The ranks wait as they do for idle power, and then measure for as long.
    let fake = Fake::new(
        "localhost:2\n",
        "here=$(dirname \"$0\"); head -n 1 \"$here/said\"; sleep 2; sed -n 2p \"$here/said\"; sleep 2; \
         exec tail -n 2 \"$here/said\"",
    );
    fs::write(fake.dir.file("said"), said.join("\n") + "\n").unwrap();
    let meter = fake.dir.file("meter.csv");
    fs::write(&meter, "time_ms,watts\n").unwrap();
    let out = fake.dir.file("run.jsonl").display().to_string();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        // The program of the meter.
        scope.spawn(|| {
            let mut file = fs::File::options().append(true).open(&meter).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                let now = std::time::SystemTime::now();
                let now_ms = now
                    .duration_since(std::time::UNIX_EPOCH)
                    .unwrap()
                    .as_millis();
                writeln!(file, "{now_ms},7.5").unwrap();
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
        });
        let meter = meter.display().to_string();
        let words = [
            "--samples",
            "3",
            "--power",
            "--meter",
            &meter,
            "--out",
            &out,
        ];
        let output = run(&fake.words(&words));
        assert!(output.status.success(), "{output:?}");
        // The median is 2 us, so 500,000 messages/s; at 7.5 W a message takes 15 uJ.
        let said = String::from_utf8(output.stdout).unwrap();
        let columns = "    7.500    66666.7       3.333e10   messages/s, 64 B\n";
        assert!(said.contains(columns), "{said}");
    });
    let said = ok_json(&["cluster", "report", &out, "--json"]);
    let row = &said["power"][0];
    let ratio = |member: &str, value: f64| row[member].as_f64().unwrap() / value;
    assert!((ratio("result_per_watt", 500_000.0 / 7.5) - 1.0).abs() < 1e-6);
    assert!((ratio("result_per_joule", 500_000.0 / 15e-6) - 1.0).abs() < 1e-6);
    assert_eq!(row["result_watts_from"], "measured");
    let file = ResultFile::parse(&fs::read(&out).unwrap()).unwrap();
    let found: Vec<&PowerRow> = file
        .rows
        .iter()
        .filter_map(|row| match row {
            Row::Power(row) => Some(row),
            Row::Benchmark(_) => None,
        })
        .collect();
    let [power] = found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(
        (power.during.as_str(), power.host.as_str(), &power.origin),
        ("latency", "all boards", &Origin::Measured)
    );
    let idle_w = *power.idle_w.value().unwrap();
    for watts in [power.average_w, idle_w] {
        assert!((watts - 7.5).abs() < 1e-9, "{power:?}");
    }
    assert!(power.samples > 0 && power.seconds > 0.0, "{power:?}");
}
