//! `keel power` and `keel advise` as processes, on folders that represent `/`.

use crate::common;
use crate::common::mpi::FakeMpi;
use crate::common::{TempDir, fails, keel, ok, ok_json, one_line, run, run_with_input, text};
use cluster::results::{Known, Mode, Origin, ResultFile, Row};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Creates a board with a chip that measures its input, and a processor whose counter does not change.
fn board(dir: &TempDir) -> String {
    let root = dir.file("root");
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("sys/class/hwmon/hwmon3/name", "ina219\n");
    write("sys/class/hwmon/hwmon3/power1_input", "4987000\n");
    write("sys/class/hwmon/hwmon3/curr1_input", "997\n");
    std::os::unix::fs::symlink("../../5-0040", root.join("sys/class/hwmon/hwmon3/device")).unwrap();
    write("sys/class/powercap/intel-rapl:0/name", "package-0\n");
    write("sys/class/powercap/intel-rapl:0/energy_uj", "1000\n");
    write(
        "sys/class/powercap/intel-rapl:0/max_energy_range_uj",
        "262143328850\n",
    );
    write("proc/sys/kernel/hostname", "b1\n");
    root.display().to_string()
}

fn source<'a>(sources: &'a Value, name: &str) -> &'a Value {
    let sources = sources.as_array().unwrap();
    sources
        .iter()
        .find(|source| source["source"] == name)
        .unwrap()
}

#[test]
fn watch_says_of_each_value_where_it_comes_from() {
    let dir = TempDir::new();
    let root = board(&dir);
    let said = ok_json(&[
        "power",
        "watch",
        "--root",
        &root,
        "--count",
        "1",
        "--interval-ms",
        "10",
        "--json",
    ]);
    let chip = source(&said["sources"], "ina219 5-0040");
    assert_eq!(
        (&chip["origin"], &chip["watts"]),
        (&"measured".into(), &4.987.into())
    );
    let counter = source(&said["sources"], "rapl package-0");
    assert_eq!(
        (&counter["origin"], &counter["watts"]),
        (&"unavailable".into(), &Value::Null)
    );
    assert!(counter["why"].as_str().unwrap().contains("does not move"));
    let plain = ok(&[
        "power",
        "watch",
        "--root",
        &root,
        "--count",
        "2",
        "--interval-ms",
        "10",
        "--source",
        "ina",
    ]);
    let plain = String::from_utf8(plain).unwrap();
    assert_eq!(
        plain
            .matches("4.987 W measured; the rail of its shunt")
            .count(),
        2,
        "{plain}"
    );
}

#[test]
fn a_machine_without_sensors_is_told_so_and_not_given_zeros() {
    let dir = TempDir::new();
    let root = dir.path().display().to_string();
    let said = fails(&["power", "watch", "--root", &root], 1);
    assert!(
        said.contains("no sensor of power") && said.contains("--meter"),
        "{said}"
    );
    let root = board(&dir);
    let said = fails(&["power", "watch", "--root", &root, "--sensor", "meter"], 1);
    assert!(
        said.contains("there are: ina219 5-0040, rapl package-0"),
        "{said}"
    );
}

/// Counters are readable only by root since an attack was found that derives keys from them.
#[test]
fn a_sensor_that_this_user_may_not_read_is_unavailable_with_its_reason() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let dir = TempDir::new();
    let root = board(&dir);
    let counter = dir.file("root/sys/class/powercap/intel-rapl:0/energy_uj");
    fs::set_permissions(&counter, fs::Permissions::from_mode(0o400)).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // A copy, since other users may lack access to the folder of the program.
    let program = dir.file("keel");
    fs::copy(env!("CARGO_BIN_EXE_keel"), &program).unwrap();
    let mut command = std::process::Command::new(&program);
    command.args([
        "power",
        "watch",
        "--root",
        &root,
        "--count",
        "1",
        "--interval-ms",
        "10",
        "--json",
    ]);
    // SAFETY: a plain system call.
    if unsafe { libc::geteuid() } == 0 {
        command.uid(65_534).gid(65_534);
    } else {
        fs::set_permissions(&counter, fs::Permissions::from_mode(0o000)).unwrap();
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let counter = source(&said["sources"], "rapl package-0");
    assert_eq!(
        (&counter["origin"], &counter["watts"]),
        (&"unavailable".into(), &Value::Null)
    );
    assert!(
        counter["why"].as_str().unwrap().contains("energy_uj"),
        "{counter}"
    );
    assert!(
        counter["why"].as_str().unwrap().contains("ermission"),
        "{counter}"
    );
    assert_eq!(source(&said["sources"], "ina219 5-0040")["watts"], 4.987);
}

/// A firmware's program that prints twelve rails of 0.5 A and 0.75 V, and a PATH that begins with it.
fn firmware(dir: &TempDir) -> String {
    use std::fmt::Write as _;
    use std::os::unix::fs::PermissionsExt;
    let folder = dir.file("bin");
    fs::create_dir_all(&folder).unwrap();
    let mut rails = String::new();
    for rail in 0..12 {
        writeln!(rails, "   RAIL{rail}_A current({rail})=0.50000000A").unwrap();
        writeln!(rails, "   RAIL{rail}_V volt({rail})=0.75000000V").unwrap();
    }
    fs::write(dir.file("rails"), rails).unwrap();
    let program = folder.join("vcgencmd");
    // Reads closer than 5 ms count as one: a short load whose first read takes longer than that has two values.
    let script = format!(
        "#!/bin/sh\ntest \"$*\" = pmic_read_adc && sleep 0.02 && exec cat '{}'\n",
        dir.file("rails").display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{}:{path}", folder.display())
}

/// The power that the community's fit computes from these rails, in W.
const RAILS_W: f64 = 1.1451 * 12.0 * 0.375 + 0.5879;

#[test]
fn the_power_chip_of_a_raspberry_pi_is_read_by_every_command_that_measures() {
    let dir = TempDir::new();
    let path = firmware(&dir);
    // A root without sensors.
    let root = dir.path().display().to_string();
    let with_chip = |words: &[&str]| {
        let output = keel().args(words).env("PATH", &path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let watch = [
        "power",
        "watch",
        "--root",
        &root,
        "--pmic",
        "--count",
        "1",
        "--interval-ms",
        "10",
        "--json",
    ];
    let said = with_chip(&watch);
    let chip = source(&said["sources"], "pi5 pmic");
    assert_eq!(chip["origin"], "modelled", "{chip}");
    assert!(
        (chip["watts"].as_f64().unwrap() - RAILS_W).abs() < 1e-9,
        "{chip}"
    );
    // Without the firmware's program it says so.
    let output = keel().args(watch).env("PATH", &root).output().unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let chip = source(&said["sources"], "pi5 pmic");
    assert_eq!(chip["origin"], "unavailable");
    assert!(
        chip["why"].as_str().unwrap().starts_with("vcgencmd: "),
        "{chip}"
    );

    let input = dir.file("day.csv");
    let rows: String = (0..4_000).map(|row| format!("{}\n", row % 7)).collect();
    fs::write(&input, format!("value\n{rows}")).unwrap();
    let input = input.display().to_string();
    let job = [
        "cluster",
        "run",
        "vibration",
        "--local",
        "2",
        "--input",
        &input,
        "--root",
        &root,
        "--pmic",
        "--idle-seconds",
        "1",
        "--json",
    ];
    let said = with_chip(&job);
    let joules = said["energy"]["joules"].as_f64();
    assert!(joules.is_some_and(|joules| joules > 0.0), "{said}");
    let sources = said["energy"]["sources"].as_str().unwrap();
    assert!(
        sources.contains("pi5 pmic modelled after rails of the PMIC"),
        "{sources}"
    );
    let inputs = said["advice"]["least_energy"]["inputs"].as_array().unwrap();
    let active = inputs
        .iter()
        .find(|input| input["input"] == "board_active_w");
    let active = active.unwrap();
    let watts = active["value"].as_f64().unwrap();
    assert!((watts - RAILS_W).abs() < 1e-9, "{watts}");
    // A modelled value is no measurement.
    assert!(
        active["assumed"].is_string() && active["measured"].is_null(),
        "{active}"
    );
}

/// The ranks of `keel cluster measure` read sensors themselves, so they must be told of the chip.
#[test]
fn ranks_that_measure_are_told_of_the_power_chip() {
    let dir = TempDir::new();
    let told = dir.file("told").display().to_string();
    let tells = format!("printf '%s\\n' \"$@\" >'{told}'; exit 1");
    let mpi = FakeMpi::new(dir.path(), "mpiexec", &tells);
    let hosts = dir.file("hosts");
    fs::write(&hosts, "localhost:2\n").unwrap();
    let hosts = hosts.display().to_string();
    let words = [
        "cluster",
        "measure",
        "--hosts",
        &hosts,
        "--program",
        &mpi.program,
        "--mpirun",
        &mpi.launcher,
        "--samples",
        "3",
        "--only",
        "latency",
        "--sizes",
        "64",
        "--power",
    ];
    for (more, is_told) in [(&["--pmic"][..], true), (&[], false)] {
        fails(&[&words[..], more].concat(), 1);
        let plan = fs::read_to_string(&told).unwrap();
        assert!(plan.contains("\"idle_ms\":2000"), "{plan}");
        assert_eq!(plan.contains("\"pmic\":true"), is_told, "{plan}");
    }
}

#[test]
fn record_writes_a_result_file_with_the_programs_power_and_idle() {
    let dir = TempDir::new();
    let root = board(&dir);
    let out = dir.file("run.jsonl").display().to_string();
    let line = [
        "power",
        "record",
        "--root",
        &root,
        "--out",
        &out,
        "--label",
        "yocto",
        "--idle-seconds",
        "1",
    ];
    let said = ok_json(
        &[
            &line[..],
            &["--interval-ms", "10", "--json", "--", "sleep", "0.3"],
        ]
        .concat(),
    );
    assert_eq!(said["status"], 0);
    let chip = source(&said["sources"], "ina219 5-0040");
    assert!((chip["average_w"].as_f64().unwrap() - 4.987).abs() < 1e-9);
    assert!((chip["idle_w"].as_f64().unwrap() - 4.987).abs() < 1e-9);
    assert!(source(&said["sources"], "rapl package-0")["energy_j"].is_null());
    let file = ResultFile::parse(&fs::read(&out).unwrap()).unwrap();
    assert_eq!(
        (file.header.label.as_str(), file.header.mode),
        ("yocto", Mode::Power)
    );
    assert_eq!(file.header.hosts[0].name, "b1");
    let [Row::Power(chip), Row::Power(counter)] = &file.rows[..] else {
        panic!("{:?}", file.rows);
    };
    assert_eq!(
        (chip.during.as_str(), &chip.origin),
        ("sleep", &Origin::Measured)
    );
    assert!(chip.seconds >= 0.3 && chip.samples >= 2, "{chip:?}");
    assert!(matches!(&counter.idle_w, Known::Unavailable(why) if why.contains("does not move")));
    // An existing file is not overwritten.
    assert!(fails(&[&line[..], &["--seconds", "1"]].concat(), 1).contains("run.jsonl"));
    assert_eq!(ResultFile::parse(&fs::read(&out).unwrap()).unwrap(), file);
}

/// As in the thesis's tables 5.6 and 5.7: a row for each benchmark.
#[test]
fn each_benchmark_has_a_row_of_its_own() {
    let dir = TempDir::new();
    let root = board(&dir);
    let out = dir.file("power.jsonl").display().to_string();
    let line = [
        "power",
        "record",
        "--root",
        &root,
        "--out",
        &out,
        "--sensor",
        "ina",
        "--per-benchmark",
    ];
    let tail = [
        "--idle-seconds",
        "0",
        "--interval-ms",
        "10",
        "--json",
        "--",
        "sh",
        "-c",
    ];
    assert!(fails(&[&line[..], &tail[..], &["sleep 0.1"]].concat(), 2).contains("has no {}"));
    let ran = dir.file("ran").display().to_string();
    let script = format!("echo {{}} >> {ran}; sleep 0.1; test {{}} != latency");
    let failed = run(&[&line[..], &tail[..], &[&script]].concat());
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    let names = [
        "allreduce",
        "reduce",
        "alltoall",
        "bandwidth",
        "bibandwidth",
        "broadcast",
        "latency",
    ];
    assert_eq!(
        fs::read_to_string(&ran)
            .unwrap()
            .lines()
            .collect::<Vec<_>>(),
        names
    );
    let file = ResultFile::parse(&fs::read(&out).unwrap()).unwrap();
    let rows: Vec<(&str, f64)> = file
        .rows
        .iter()
        .map(|row| match row {
            Row::Power(row) => (row.during.as_str(), row.average_w),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(rows.iter().map(|row| row.0).collect::<Vec<_>>(), names);
    assert!(rows.iter().all(|row| (row.1 - 4.987).abs() < 1e-9));
}

#[test]
fn record_fails_with_its_program_and_where_nothing_was_measured() {
    let dir = TempDir::new();
    let root = board(&dir);
    let file = |name: &str| dir.file(name).display().to_string();
    let out = file("a.jsonl");
    let failed = run(&[
        "power",
        "record",
        "--root",
        &root,
        "--out",
        &out,
        "--idle-seconds",
        "0",
        "--",
        "false",
    ]);
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    let line = one_line(&failed.stderr);
    assert!(
        line.starts_with("keel: false: has ended with exit status: 1;"),
        "{line}"
    );
    assert!(Path::new(&out).exists());
    let out = file("b.jsonl");
    let line = [
        "power",
        "record",
        "--root",
        &root,
        "--idle-seconds",
        "0",
        "--sensor",
        "rapl",
        "--out",
        &out,
    ];
    let said = run(&[&line[..], &["--", "sleep", "0.1"]].concat());
    assert_eq!(said.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&said.stderr).contains("no sensor gave a value"),
        "{said:?}"
    );
    let out = file("c.jsonl");
    let line = [
        "power",
        "record",
        "--root",
        &root,
        "--idle-seconds",
        "0",
        "--out",
        &out,
    ];
    assert!(
        fails(&[&line[..], &["--", "/no/such/program"]].concat(), 1).contains("/no/such/program")
    );
    assert!(!Path::new(&out).exists());
    assert!(fails(&line, 2).contains("--seconds"));
}

#[test]
fn a_meters_file_is_a_sensor_while_it_is_fresh() {
    let dir = TempDir::new();
    let meter = dir.file("meter.csv");
    fs::write(&meter, "time_s,watts\n1000000000,7.5\n").unwrap();
    let (root, meter) = (
        dir.path().display().to_string(),
        meter.display().to_string(),
    );
    let line = [
        "power",
        "watch",
        "--root",
        &root,
        "--meter",
        &meter,
        "--count",
        "1",
        "--interval-ms",
        "10",
    ];
    let stale = run(&line);
    assert_eq!(stale.status.code(), Some(1));
    let said = String::from_utf8(stale.stdout).unwrap();
    assert!(said.contains("unavailable (its last value is of"), "{said}");
    let now_s = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    // The rows stay fresh for as long as a slow machine may take to start a program.
    let rows: String = (0..5).map(|at| format!("{},7.5\n", now_s + at)).collect();
    fs::write(&meter, format!("time_s,watts\n{rows}")).unwrap();
    let said = String::from_utf8(ok(&line)).unwrap();
    assert!(said.contains("7.500 W measured"), "{said}");
}

/// Opening a pipe waits for its writer, and a device has no end.
#[test]
fn a_meter_that_is_no_regular_file_is_refused_by_every_command() {
    let dir = TempDir::new();
    let folder = dir.path().display().to_string();
    let out = dir.file("run.jsonl").display().to_string();
    for meter in [folder.as_str(), "/dev/null"] {
        let watch = ["power", "watch", "--count", "1", "--interval-ms", "10"];
        let record = ["power", "record", "--seconds", "1", "--idle-seconds", "0"];
        for (command, more) in [(watch, Vec::new()), (record, vec!["--out", out.as_str()])] {
            let mut words = command.to_vec();
            words.extend(more);
            words.extend(["--root", &folder, "--meter", meter]);
            let said = fails(&words, 1);
            assert!(
                said.contains(": is no regular file; name the CSV"),
                "{said}"
            );
        }
    }
    assert!(!Path::new(&out).exists());
}

const QUESTION: &str = r#"{
    "version": 1, "name": "worked", "boards_max": 4, "boundary": "boards-for-job", "machine": "dedicated",
    "inputs": {
        "single_s": {"value": 10, "measured": "a run"},
        "parallel_fraction": {"value": 0.95, "measured": "runs on one and two boards"},
        "exchange_times": {"value": 200, "stated": "the kernel"},
        "exchange_bytes": {"value": 65536, "stated": "the kernel"},
        "input_bytes": {"value": 1e7, "stated": "the file"},
        "up_bytes_per_s": {"value": 1.25e6, "measured": "a transfer"},
        "down_bytes_per_s": {"value": 1.25e6, "measured": "a transfer"},
        "machine_speed": {"value": 8, "measured": "the same run there"}
    }
}"#;

#[test]
fn advise_refuses_missing_figures_and_names_assumed_ones() {
    let dir = TempDir::new();
    let job = dir.file("job.json").display().to_string();
    fs::write(&job, QUESTION).unwrap();
    let said = fails(&["advise", "--job", &job], 1);
    assert!(
        said.contains("missing: output_bytes, board_active_w, board_idle_w,")
            && said.contains("--assume"),
        "{said}"
    );
    let advice = ok_json(&["advise", "--job", &job, "--assume", "--json"]);
    assert_eq!(advice["advised"], "one board");
    let inputs = advice["inputs"].as_array().unwrap();
    assert!(
        inputs
            .iter()
            .any(|input| input["input"] == "pue" && input["assumed"].is_string())
    );
    let plain = String::from_utf8(ok(&["advise", "--job", &job, "--assume"])).unwrap();
    assert!(
        plain.starts_with("worked: one board\ncounted   boards run for this job alone"),
        "{plain}"
    );
    assert!(plain.contains("assumed   pue 1.58"), "{plain}");
    // Figures that people read have no exponent.
    assert!(plain.contains("changes   single_s at 171."), "{plain}");
    assert!(
        plain.contains(" (now 10.000): the data centre\n"),
        "{plain}"
    );
}

#[test]
fn advice_that_minimises_cost_shows_the_effect_of_each_figure() {
    let dir = TempDir::new();
    let job = dir.file("job.json").display().to_string();
    let prices = "\"version\": 1, \"minimise\": \"cost\",";
    let figures = "\"inputs\": { \"energy_price_per_kwh\": {\"value\": 0.3, \"stated\": \"bill\"},";
    let question =
        QUESTION
            .replacen("\"version\": 1,", prices, 1)
            .replacen("\"inputs\": {", figures, 1);
    fs::write(&job, question).unwrap();
    let near = ["--data-may-go", "neighbours", "--assume"];
    let line = [&["advise", "--job", &job][..], &near].concat();
    let plain = String::from_utf8(ok(&line)).unwrap();
    // The cost is the energy times the price.
    assert!(plain.contains(", cost +1.00 %"), "{plain}");
    let advice = ok_json(&[&line[..], &["--json"]].concat());
    let sensitivity = advice["sensitivity"].as_array().unwrap();
    let price = sensitivity
        .iter()
        .find(|one| one["input"] == "energy_price_per_kwh")
        .unwrap();
    assert!(
        (price["cost"].as_f64().unwrap() - 1.0).abs() < 1e-9,
        "{price}"
    );
    assert_eq!(price["energy"], 0.0);
}

#[test]
fn advise_goes_by_the_deadline_and_ends_with_three_where_nothing_keeps_it() {
    let advised = |deadline: &str| {
        let line = [
            "advise",
            "--job",
            "-",
            "--assume",
            "--json",
            "--deadline",
            deadline,
        ];
        let output = run_with_input(&line, QUESTION.as_bytes());
        let advice: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), advice["advised"].clone())
    };
    assert_eq!(advised("60"), (Some(0), "one board".into()));
    assert_eq!(advised("4"), (Some(0), "4 boards".into()));
    assert_eq!(advised("1"), (Some(3), Value::Null));
}

#[test]
fn files_that_are_no_questions_are_refused_in_one_line() {
    for text in [
        "",
        "{}",
        "[1]",
        "{\"version\": 9}",
        "{\"version\": 1, \"name\": \"a\", \"inputs\": {\"x\": {\"value\": 1}}}",
    ] {
        let output = run_with_input(&["advise", "--job", "-"], text.as_bytes());
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert_eq!(common::one_line(&output.stderr).lines().count(), 1);
    }
    assert!(fails(&["advise", "--job", "/no/such/file"], 1).contains("/no/such/file"));
    // What describes a job to be measured would have no effect.
    for said in [["--window", "32"], ["--input", "day.csv"], ["--key", "a"]] {
        let line = fails(&["advise", "--job", "/no/such/file", said[0], said[1]], 2);
        assert!(
            line.contains(said[0]) && line.contains("--kernel"),
            "{line}"
        );
    }
    let mut command = keel();
    let output = command
        .args(["advise", "--job", "-", "--deadline", "x"])
        .output()
        .unwrap();
    assert_eq!(text(&output).0, Some(2));
}

#[test]
fn watching_sensors_that_all_say_nothing_is_a_failure() {
    let dir = TempDir::new();
    let root = board(&dir);
    let meter = dir.file("none.csv").display().to_string();
    let words = [
        "power",
        "watch",
        "--root",
        &root,
        "--meter",
        &meter,
        "--sensor",
        "meter",
        "--count",
        "1",
        "--interval-ms",
        "10",
    ];
    let said = fails(&words, 1);
    assert!(said.contains("no sensor gave a value"), "{said}");
}

#[test]
fn options_outside_their_range_are_wrong_usage_and_named() {
    let dir = TempDir::new();
    let input = dir.file("in.csv");
    std::fs::write(&input, "value\n1\n2\n3\n4\n5\n").unwrap();
    let input = input.display().to_string();
    for (option, value) in [
        ("--window", "0"),
        ("--step", "0"),
        ("--clusters", "0"),
        ("--rounds", "1001"),
        ("--deadline", "0"),
        ("--deadline", "-1"),
        ("--deadline", "nan"),
    ] {
        for begin in [
            &["cluster", "run", "k-means", "--local", "1"][..],
            &["advise", "--kernel", "k-means"],
        ] {
            let mut words = begin.to_vec();
            words.extend(["--input", &input, option, value]);
            let said = fails(&words, 2);
            assert!(said.contains(option), "{said}");
        }
    }
    // An option that a job does not use is rejected for it.
    for (job, option) in [
        ("vibration", "--clusters"),
        ("matrix-profile", "--step"),
        ("matrix-profile", "--seed"),
    ] {
        let words = [
            "cluster", "run", job, "--local", "1", "--input", &input, option, "2",
        ];
        let said = fails(&words, 2);
        assert!(said.contains(option) && said.contains("no use"), "{said}");
    }
    for words in [
        &[
            "cluster",
            "measure",
            "--hosts",
            "x",
            "--half-width-percent",
            "0",
        ][..],
        &["cluster", "measure", "--hosts", "x", "--label", ""],
        &[
            "power",
            "record",
            "--out",
            "x",
            "--label",
            "",
            "--seconds",
            "1",
        ],
    ] {
        fails(words, 2);
    }
}
