//! The goals of the experiments, on a simulated plant.

use super::findings::Findings;
use super::identified::{Identified, worked_out};
use super::scenario::{Mix, Plant};
use super::setting::{PAPER, QUICK, Setting};
use super::sim::SimPlant;
use super::{Experiment, Options, measure};
use crate::progress::Progress;

struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("keel-qos-{name}-{}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn found(experiment: Experiment, identified: &Identified, runs: u32, folder: &Folder) -> Findings {
    let mut plant = SimPlant::new(identified, 1);
    let mut findings = Findings::new(experiment.name(), &folder.0).unwrap();
    let mut setting = Setting {
        plant: &mut plant,
        identified: Some(identified.clone()),
        origin: identified.origin.clone(),
        is_simulated: true,
        runs,
        seed: 1,
        extent: PAPER,
        driven_under: Mix::C50D50,
        progress: Progress::new(),
    };
    measure(experiment, &mut setting, &mut findings).unwrap();
    findings
}

/// Returns the measured plants, each with the name of its file.
fn measured() -> Vec<(String, Identified)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|ending| ending == "json"))
        .map(|path| (path.display().to_string(), Identified::load(&path).unwrap()))
        .collect()
}

#[test]
fn goals_are_met_on_every_plant_that_was_measured() {
    let plants = measured();
    assert!(!plants.is_empty());
    for (number, (name, plant)) in plants.iter().enumerate() {
        for (experiment, runs) in [(Experiment::Workloads, 25), (Experiment::Transient, 400)] {
            let folder = Folder::new(&format!("measured-{number}-{}", experiment.name()));
            let findings = found(experiment, plant, runs, &folder);
            assert_eq!(findings.missed(), [""; 0], "{name}");
            assert!(findings.judged() > 5, "{name}");
        }
    }
}

#[test]
fn goals_of_averages_are_met_on_a_plant_that_was_worked_out() {
    let folder = Folder::new("workloads");
    let findings = found(Experiment::Workloads, &worked_out(), 5, &folder);
    assert_eq!(findings.missed(), [""; 0]);
    // 14 goals: an error and a minimum admitted fraction for each of six mixes, the number of mixes, and the ratio of
    // speeds.
    assert_eq!(findings.judged(), 14);
    let value = |case, system, metric| findings.value(case, system, metric).unwrap();
    assert!(value("C10-D90", "dvfs-only", "admitted") == 1.0);
    // A mix with more reads disturbs more: our approach responds with both inputs, the others with one.
    let change =
        |system, metric| value("C10-D90", system, metric) - value("C90-D10", system, metric);
    assert!(
        change("mimo", "admitted") < -0.05,
        "{}",
        change("mimo", "admitted")
    );
    assert!(change("dvfs-only", "speed") > change("mimo", "speed"));
    assert!(change("qod-only-50", "speed").abs() < 1e-9);
    for file in ["workloads.csv", "workloads.svg", "workloads.png"] {
        assert!(
            folder.0.join(file).metadata().unwrap().len() > 500,
            "{file}"
        );
    }
}

#[test]
fn goals_of_transients_are_met_on_a_plant_that_was_worked_out() {
    let folder = Folder::new("transient");
    let findings = found(Experiment::Transient, &worked_out(), 25, &folder);
    assert_eq!(findings.missed(), [""; 0]);
    assert_eq!(findings.judged(), 7);
    let value = |system, metric| findings.value("transient", system, metric).unwrap();
    assert!(value("dvfs-only", "speed_change") > value("mimo-low", "speed_change"));
    assert!(value("mimo-high", "admitted_loaded") > value("mimo-low", "admitted_loaded"));
}

#[test]
fn more_processors_change_little_where_they_compute_and_much_where_they_read() {
    let folder = Folder::new("cores");
    let findings = found(Experiment::Cores, &worked_out(), 3, &folder);
    let speed = |case| findings.value(case, "dvfs-only", "speed").unwrap();
    let (computing, reading) = (
        speed("3 x C90-D10") / speed("0 x C90-D10"),
        speed("3 x C10-D90") / speed("0 x C10-D90"),
    );
    assert!(computing < reading, "{computing} {reading}");
}

#[test]
fn a_quick_run_lists_the_files_that_it_wrote() {
    let folder = Folder::new("quick");
    let identified = worked_out();
    let mut plant = SimPlant::new(&identified, 1);
    assert!(plant.facts().cores_max == 3);
    let mut findings = Findings::new("qos-workloads", &folder.0).unwrap();
    let mut setting = Setting {
        plant: &mut plant,
        identified: Some(identified),
        origin: super::identified::Origin::default(),
        is_simulated: true,
        runs: 1,
        seed: 1,
        extent: QUICK,
        driven_under: Mix::C50D50,
        progress: Progress::new(),
    };
    measure(Experiment::Workloads, &mut setting, &mut findings).unwrap();
    assert!(findings.judged() > 0);
    findings.unjudged();
    let machine = crate::machine::Machine::detect();
    let (report, text) = findings.finish(&machine, serde_json::json!({})).unwrap();
    let report = serde_json::to_value(report).unwrap();
    assert_eq!(report["bench"], "qos-workloads");
    assert!(report["method"]["date"].as_str().is_some());
    assert!(
        text.contains("workloads.svg") && text.contains("tardiness_error"),
        "{text}"
    );
    assert!(
        text.contains("QUICK") && !text.contains("at most"),
        "{text}"
    );
    assert!(
        !text.contains("MISSED") && !text.contains(": met"),
        "{text}"
    );
    assert!(folder.0.join("qos-workloads.json").is_file());
}

#[test]
fn a_driven_plant_is_found_again_and_its_outputs_are_swept() {
    let folder = Folder::new("identification");
    let findings = found(Experiment::Identification, &worked_out(), 1, &folder);
    assert_eq!(findings.missed(), [""; 0]);
    assert!(
        findings
            .value("identification", "model", "miss_of_plant")
            .unwrap()
            < 0.08
    );
    let findings = found(Experiment::Interference, &worked_out(), 1, &folder);
    let slower = findings
        .value("by-speed", "3 processors", "data_time_ratio")
        .unwrap();
    assert!(
        slower
            > findings
                .value("by-speed", "1 processor", "data_time_ratio")
                .unwrap()
    );
    let first = findings
        .value("by-admission", "3 processors", "data_time_first")
        .unwrap();
    assert!(
        first
            < findings
                .value("by-admission", "3 processors", "data_time_last")
                .unwrap()
    );
    for file in [
        "identification.csv",
        "identification.png",
        "interference-speed.svg",
        "interference-admission.csv",
    ] {
        assert!(folder.0.join(file).is_file(), "{file}");
    }
}

#[test]
fn a_report_has_the_number_of_runs_that_are_made() {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }
    for (text, runs) in [
        ("workloads", 25),
        ("transient", 400),
        ("transient --plant real", 5),
        ("cores --quick", 1),
        ("cores --runs 7", 7),
        // No approaches are compared, so there is nothing to repeat.
        ("identification", 1),
        ("interference --plant real --runs 7", 1),
    ] {
        let text = format!("qos {text} --out x");
        let line = <Line as clap::Parser>::try_parse_from(text.split(' ')).unwrap();
        assert_eq!(line.options.runs(), runs, "{text}");
    }
}
