//! Every block of `docs/sources.md` is a configuration, and makes of its messages what the page shows.

use crate::common::{TempDir, ok};

/// Sections of the page that have a configuration, or messages for one.
const SECTIONS: usize = 10;

#[test]
fn the_blocks_of_the_page_work() {
    let dir = TempDir::new();
    // The times of the messages stay where they are, and must never be too old.
    let page = crate::page_common::text("sources.md");
    let page = page.replace("\nEND\n", "\n[time]\npast_days_max = 36500\nEND\n");
    let compared = crate::page_common::run_text(&page, dir.path(), &[], |thing| panic!("{thing}"));
    assert_eq!(compared, SECTIONS);
    // Nothing about their keys surprises, but for what the page says.
    let mut configurations = dir.entries();
    // The others are payloads.
    configurations.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
    assert_eq!(configurations.len(), SECTIONS - 1);
    for path in configurations {
        let answer = ok(&["config", "check", path.to_str().unwrap()]);
        let answer = String::from_utf8(answer).unwrap();
        let is_warned = path.ends_with("chirpstack.toml");
        assert_eq!(answer.contains("mqtt.subscribe"), is_warned, "{answer}");
    }
}
