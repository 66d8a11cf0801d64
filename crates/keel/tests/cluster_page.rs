//! The commands of the part on jobs of `docs/cluster.md` do what the page describes. Its other commands need sensors,
//! boards or files of the reader.

use crate::common::TempDir;
use crate::page_common;
use std::fs;

#[test]
fn the_commands_of_the_part_on_jobs_work() {
    let page = page_common::text("cluster.md");
    let (_, part) = page.split_once("\n## Jobs on readings\n").unwrap();
    let (part, _) = part.split_once("\n## ").unwrap();
    let dir = TempDir::new();
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
}
