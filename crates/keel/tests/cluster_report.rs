//! `keel cluster report` on files of power and on files of a larger machine.

use crate::common::{TempDir, fails, ok, ok_json};
use cluster::host::describe;
use cluster::power::Root;
use cluster::results::{
    Benchmark, BenchmarkRow, Header, Known, Link, Mode, Origin, PowerRow, ResultFile, Row, Stopped,
    Transport,
};
use serde_json::Value;
use std::fs;

/// A file of one host with these rows.
fn written(dir: &TempDir, label: &str, rows: Vec<Row>) -> String {
    let why = || Known::Unavailable("not looked for".to_owned());
    let mut host = describe(&Root::new(dir.path()), 2);
    host.name = label.to_owned();
    let file = ResultFile {
        header: Header {
            label: label.to_owned(),
            created_ms: 1_780_272_000_000,
            mode: Mode::Power,
            mpi: why(),
            link: Link {
                rate_bits_per_s: Known::Unavailable("not looked for".to_owned()),
                burst_bytes: Known::Unavailable("not looked for".to_owned()),
            },
            hosts: vec![host],
            power_source: why(),
        },
        rows,
    };
    let path = dir.file(&format!("{label}.jsonl"));
    fs::write(&path, file.text().unwrap()).unwrap();
    path.display().to_string()
}

fn power(label: &str, during: &str, watts: Result<f64, &str>) -> Row {
    let value = watts.unwrap_or(0.0);
    Row::Power(PowerRow {
        during: during.to_owned(),
        host: label.to_owned(),
        source: "ina219".to_owned(),
        covers: "a board".to_owned(),
        origin: match watts {
            Ok(_) => Origin::Measured,
            Err(why) => Origin::Unavailable(why.to_owned()),
        },
        seconds: 2.0,
        samples: 20,
        gap_s_max: 0.1,
        average_w: value,
        maximum_w: value,
        minimum_w: value,
        energy_j: 2.0 * value,
        idle_w: Known::Value(2.5),
    })
}

#[test]
fn power_of_files_is_listed_by_benchmark_and_label() {
    let dir = TempDir::new();
    let of = |label: &str, watts: Result<f64, &str>| {
        let rows = ["latency", "allreduce"].map(|during| power(label, during, watts));
        written(&dir, label, rows.into())
    };
    let files = [of("yocto", Ok(4.25)), of("fedora", Err("switched off"))];
    let csv = dir.file("power.csv").display().to_string();
    let words = [
        "cluster",
        "report",
        &files[0],
        &files[1],
        "--power-csv",
        &csv,
    ];
    let said = String::from_utf8(ok(&words)).unwrap();
    let lines: Vec<Vec<&str>> = said
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let at = |words: &[&str]| {
        let place = lines.iter().position(|line| line.as_slice() == words);
        place.unwrap_or_else(|| panic!("{words:?} is not in {said}"))
    };
    let yocto = |during| {
        at(&[
            during, "yocto", "yocto", "ina219", "4.250", "4.250", "4.250", "2.500", "-", "-",
        ])
    };
    let fedora = |during| {
        at(&[
            during,
            "fedora",
            "fedora",
            "ina219",
            "unavailable:",
            "switched",
            "off",
        ])
    };
    let order = [
        yocto("allreduce"),
        fedora("allreduce"),
        yocto("latency"),
        fedora("latency"),
    ];
    assert!(order.is_sorted(), "{said}");
    let text = fs::read_to_string(&csv).unwrap();
    assert!(
        text.contains("allreduce,yocto,yocto,ina219,measured,4.25,4.25,4.25,2.5,8.5,2,,,,,,\n"),
        "{text}"
    );
    assert!(
        fails(&words, 1).contains("power.csv"),
        "it is there already"
    );
    let said = ok_json(&["cluster", "report", &files[0], &files[1], "--json"]);
    let rows = said["power"].as_array().unwrap();
    let labels: Vec<_> = rows
        .iter()
        .map(|row| row["label"].as_str().unwrap())
        .collect();
    assert_eq!(labels, ["yocto", "fedora", "yocto", "fedora"]);
    assert_eq!(rows[0]["average_w"], 4.25);
    assert!(rows[0]["result_per_watt"].is_null(), "{}", rows[0]);
    assert_eq!(rows[0]["result_why_none"], "the file has no result of it");
    // What is unavailable is no zero.
    assert!(
        rows[1]["average_w"].is_null() && rows[1]["energy_j"].is_null(),
        "{}",
        rows[1]
    );
}

#[test]
fn a_larger_machine_is_beside_the_boards_with_the_power_of_its_own_table() {
    let dir = TempDir::new();
    let of = |label: &str, us: f64| {
        let row = |bytes: u64| {
            Row::Benchmark(BenchmarkRow {
                benchmark: Benchmark::Bandwidth,
                ranks: 2,
                transport: Transport::Memory,
                bytes,
                iterations: 1,
                samples_us: vec![us; 5],
                starts: Vec::new(),
                stopped: Stopped::Fixed,
            })
        };
        written(&dir, label, vec![row(64), row(1_024)])
    };
    let (board, nuc) = (of("board", 1.0), of("nuc", 0.5));
    let plots = dir.file("plots");
    let folder = plots.display().to_string();
    let words = [
        "cluster",
        "report",
        "--thesis",
        &board,
        "--machine",
        &nuc,
        "--plots",
        &folder,
        "--json",
    ];
    let said = ok_json(&words);
    let rows = said["efficiency"].as_array().unwrap();
    let found: Vec<_> = rows
        .iter()
        .map(|row| {
            [
                &row["label"],
                &row["kind"],
                &row["transport"],
                &row["watts"],
            ]
        })
        .collect();
    let board_row: [Value; 4] = [
        "board".into(),
        "boards".into(),
        "memory".into(),
        4.9871.into(),
    ];
    let nuc_row: [Value; 4] = [
        "nuc".into(),
        "machine".into(),
        "memory".into(),
        18.2385.into(),
    ];
    assert_eq!(
        found,
        [&board_row, &board_row, &nuc_row, &nuc_row].map(|row| row.each_ref())
    );
    let drawn = fs::read_to_string(plots.join("per-watt-bandwidth.csv")).unwrap();
    assert!(drawn.contains("\nmachine nuc,1024,"), "{drawn}");
    // The share that three and four boards must reach.
    let parity = said["parity"].as_array().unwrap();
    let row = parity
        .iter()
        .find(|row| row["benchmark"] == "bandwidth")
        .unwrap();
    for (member, boards) in [("share_for_3", 3.0), ("share_for_4", 4.0)] {
        let share = row[member].as_f64().unwrap();
        assert!((share - boards * 4.9871 / 18.2385).abs() < 1e-9, "{row}");
    }
    assert!(fails(&["cluster", "report", &board, "--machine", &nuc], 2).contains("--thesis"));
}
