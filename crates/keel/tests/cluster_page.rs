//! The commands of `docs/cluster.md` and `docs/results/cluster-thesis.md` do what the pages describe. Those that need
//! sensors, boards or files of the reader are marked as not run.

use crate::common::TempDir;
use crate::common::node::{Node, SMALL};
use crate::page_common;
use crate::periodic::feed;
use std::fs;
use std::path::Path;

#[test]
fn the_commands_of_the_page_work() {
    let page = page_common::text("cluster.md");
    let (before, rest) = page.split_once("\n## Jobs on readings\n").unwrap();
    let (part, after) = rest.split_once("\n## ").unwrap();
    // The node whose history one of the commands takes.
    let node = Node::start(&format!("{SMALL}[time]\nwall_clock = \"trusted\"\n"));
    feed(&node, 2_000);
    let dir = &node.dir;
    // First the part that makes the readings, which earlier commands take, too.
    let compared = page_common::run_text(part, dir.path(), &[], |_| true);
    assert_eq!(compared, 1);
    let clusters = fs::read_to_string(dir.file("clusters.csv")).unwrap();
    assert_eq!(clusters.lines().count(), 4);
    let profile: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(dir.file("profile.json")).unwrap()).unwrap();
    assert_eq!(profile["compared"], "same");
    let advice = fs::read_to_string(dir.file("advice.txt")).unwrap();
    assert!(advice.starts_with("vibration of day.csv: "), "{advice}");
    assert!(dir.file("job.json").exists());

    // The question of the page is the file `night.json` of its commands.
    let (_, question) = before.split_once("\n```json\n").unwrap();
    let (question, _) = question.split_once("\n```\n").unwrap();
    fs::write(dir.file("night.json"), question).unwrap();
    // The figures of a site: a question of which nothing is missing.
    node.ok(&[
        "advise",
        "--job",
        "night.json",
        "--assume",
        "--write",
        "site.json",
    ]);
    let compared =
        page_common::run_text(&format!("{before}\n## {after}"), dir.path(), &[], |_| true);
    assert_eq!(compared, 1);
    let answer: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(dir.file("answer.json")).unwrap()).unwrap();
    assert!(answer["break_even"].is_array(), "{answer}");
    // The job is measured on the history of the node; the site's figures stay.
    let asked = fs::read_to_string(dir.file("pump.json")).unwrap();
    let asked: serde_json::Value = serde_json::from_str(&asked).unwrap();
    let inputs = &asked["inputs"];
    let measured = inputs["single_s"]["measured"].as_str();
    assert!(
        measured.is_some_and(|text| text.contains("k-means")),
        "{asked}"
    );
    assert_eq!(inputs["machine_speed"]["value"], 8.0, "{asked}");
}

#[test]
fn the_command_of_the_thesis_page_makes_its_figures() {
    let page = page_common::text("results/cluster-thesis.md");
    let dir = TempDir::new();
    page_common::run_text(&page, dir.path(), &[], |_| true);
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let made = dir.file("docs/results/cluster-thesis");
    for name in ["power.svg", "needed.svg", "parity.csv"] {
        let shown = fs::read(docs.join("cluster-thesis").join(name)).unwrap();
        assert_eq!(fs::read(made.join(name)).unwrap(), shown, "{name}");
    }
}

/// The table itself is compared in the crate `cluster` (`the_table_of_results_per_watt_is_that_of_the_values`).
#[test]
fn the_thesis_page_names_the_shares_the_width_and_the_commit_of_the_files_beside_it() {
    let page = page_common::text("results/cluster-thesis.md");
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let values = fs::read_to_string(docs.join("cluster-thesis/efficiency.csv")).unwrap();
    let mut lines = values
        .lines()
        .map(|line| line.split(',').collect::<Vec<_>>());
    let heading = lines.next().unwrap();
    let rows: Vec<_> = lines.collect();
    let per_watt = |label: &str, benchmark: &str| -> f64 {
        let of = |row: &[&str], column: &str| {
            let at = heading.iter().position(|name| *name == column).unwrap();
            row[at].to_owned()
        };
        let found = rows.iter().find(|row| {
            [of(row, "label"), of(row, "benchmark"), of(row, "bytes")] == [label, benchmark, "64"]
        });
        of(found.unwrap(), "result_per_watt").parse().unwrap()
    };
    let [roundtrip, latency] = ["roundtrip", "latency"]
        .map(|name| 100.0 * per_watt("mpich-boards", name) / per_watt("mpich-1", name));
    let run = fs::read_to_string(docs.join("cluster/agreement-mpich.json")).unwrap();
    let run: serde_json::Value = serde_json::from_str(&run).unwrap();
    let mut metrics = run["rows"].as_array().unwrap().iter();
    let half_width = metrics.find(|row| row["metric"] == "half_width").unwrap();
    let half_width = half_width["value"].as_f64().unwrap();
    let commit = run["method"]["commit"].as_str().unwrap();
    for text in [
        format!("give {roundtrip:.1} % (round trip) and {latency:.1} % (latency)"),
        format!("Half of a 95 % interval's width is {half_width:.0} % of the median"),
        format!("commit {}.", &commit[..8]),
    ] {
        assert!(page.contains(&text), "{text}");
    }
}
