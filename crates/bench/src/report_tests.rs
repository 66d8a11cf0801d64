//! Tests of figures with known samples.

use super::*;

const CASE: &str = "append-4096-sync";

fn samples(system: &str, latencies_ns: &[u64], writes: u64) -> Samples {
    let round_steps = latencies_ns.len() as u32 / 2;
    let mut samples = Samples::new(CASE, system, Some("exact"), 2, round_steps);
    for latency in latencies_ns {
        let before = DeviceCounts {
            flushes: Some(4),
            ..DeviceCounts::default()
        };
        let after = DeviceCounts {
            writes,
            flushes: Some(5),
            bytes_written: writes * 4096,
            ..before
        };
        samples.record(*latency, Some(before), Some(after));
    }
    samples
}

fn figure(system: &str, unit: &'static str, value: f64) -> Figure {
    Figure {
        case: "mount",
        system: system.to_owned(),
        metric: "speed",
        unit,
        value,
    }
}

fn report(writes: u64) -> Report {
    Report {
        bench: "flash",
        title: "a title".to_owned(),
        machine: Machine {
            cpu: "c".to_owned(),
            kernel: "k".to_owned(),
            cores: 2,
        },
        ours: "keel",
        samples: vec![
            samples("keel", &[2000, 2000, 6000, 6000], writes),
            samples("floor", &[1000, 1000, 3000, 3000], 1),
        ],
        figures: vec![figure("keel", "1/s", 6.0), figure("peer", "1/s", 3.0)],
        goals: vec![
            Goal {
                case: CASE,
                metric: "device_writes_per_op",
                peer: None,
                at_most: 2.0,
            },
            Goal {
                case: CASE,
                metric: "latency_p50",
                peer: Some("floor"),
                at_most: 1.5,
            },
        ],
        missing: vec!["ext4-sync".to_owned()],
        notes: Vec::new(),
        method: serde_json::json!({}),
    }
}

#[test]
fn percentiles_are_ranks_of_the_samples() {
    let mut hundred: Vec<u64> = (1..=100).rev().collect();
    assert_eq!(percentile(&mut hundred, 500), 50);
    assert_eq!(percentile(&mut hundred, 990), 99);
    assert_eq!(percentile(&mut hundred, 999), 100);
    assert_eq!(percentile(&mut [7], 500), 7);
    assert_eq!(percentile(&mut [], 500), 0);
}

#[test]
fn medians_of_odd_and_even_numbers() {
    assert!((median(&mut [3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
    assert!((median(&mut [4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-12);
}

#[test]
fn figures_and_ratios_are_of_the_medians_of_the_rounds() {
    let json = serde_json::to_value(report(2).json()).unwrap();
    let rows = json["rows"].as_array().unwrap().iter();
    let p50: Vec<_> = rows.filter(|row| row["metric"] == "latency_p50").collect();
    assert_eq!(
        (&p50[0]["value"], &p50[1]["value"]),
        (&4.0.into(), &2.0.into())
    );
    let ratio = &json["ratios"][0];
    assert_eq!(ratio["ratio"], 2.0);
    assert_eq!(ratio["peer"], "floor");
    assert_eq!(ratio["metric"], "latency_p50");
    assert_eq!(
        (&ratio["goal"], &ratio["met"]),
        (&1.5.into(), &false.into())
    );
    assert!(json["ratios"][1].get("goal").is_none());
}

#[test]
fn a_judged_ratio_says_where_the_floor_of_the_device_stands() {
    let mut report = report(2);
    report
        .samples
        .push(samples("peer", &[4000, 4000, 9000, 9000], 3));
    report.goals.push(Goal {
        case: CASE,
        metric: "latency_p50",
        peer: Some("peer"),
        at_most: 0.1,
    });
    let ratios = report.ratios();
    let of = |peer: &str| ratios.iter().find(|ratio| ratio.peer == peer).unwrap();
    assert_eq!(of("floor").floor_ratio, None);
    let floor = of("peer").floor_ratio.unwrap();
    assert!((floor - 2.0 / 6.5).abs() < 1e-12, "{floor}");
    assert!(
        report
            .table()
            .contains("MISSED (the device's floor: 0.308)")
    );
}

#[test]
fn figures_have_ratios_too_and_rates_are_better_when_higher() {
    let json = serde_json::to_value(report(2).json()).unwrap();
    let ratios = json["ratios"].as_array().unwrap();
    let speed = ratios.iter().find(|ratio| ratio["metric"] == "speed");
    let speed = speed.unwrap();
    assert_eq!(
        (&speed["ratio"], &speed["better"]),
        (&2.0.into(), &"higher".into())
    );
}

#[test]
fn json_has_the_agreed_shape_and_verdicts_only_where_a_goal_is() {
    let json = serde_json::to_value(report(3).json()).unwrap();
    let keys: Vec<&str> = json
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        keys,
        [
            "bench", "machine", "method", "missing", "ratios", "rows", "version"
        ]
    );
    let rows = json["rows"].as_array().unwrap();
    let row = |system: &str, metric: &str| {
        rows.iter()
            .find(|row| row["system"] == system && row["metric"] == metric)
            .unwrap()
    };
    assert_eq!(row("keel", "latency_p50")["unit"], "us");
    assert!(row("keel", "latency_p50").get("goal").is_none());
    assert_eq!(row("keel", "device_writes_per_op")["met"], false);
    assert_eq!(row("keel", "device_written_per_op")["value"], 12.0);
    assert!(row("floor", "device_writes_per_op").get("goal").is_none());
    let met = serde_json::to_value(report(2).json()).unwrap();
    assert!(
        met["rows"]
            .as_array()
            .unwrap()
            .iter()
            .any(|row| row["met"] == true)
    );
}

#[test]
fn counts_that_were_not_taken_are_absent() {
    let mut samples = Samples::new(CASE, "xfs-sync", None, 1, 1);
    samples.record(5, None, None);
    assert!(samples.count_figures().is_empty());
    let mut disk = Samples::new(CASE, "xfs-sync", Some("whole disk"), 1, 1);
    disk.record(
        5,
        Some(DeviceCounts::default()),
        Some(DeviceCounts::default()),
    );
    let figures = disk.count_figures();
    assert!(
        figures
            .iter()
            .all(|(metric, ..)| !metric.contains("flushes") && !metric.ends_with("_max"))
    );
    assert_eq!(figures.len(), 4);
}

#[test]
fn the_table_names_every_case_system_goal_and_gap() {
    let table = report(3).table();
    for part in [
        "keel",
        "floor",
        "append-4096-sync",
        "MISSED",
        "missing: ext4-sync",
        "speed",
    ] {
        assert!(table.contains(part), "{part} in\n{table}");
    }
}
