//! Runs every line of `docs/semantics-mem-mount.md`. A line without a case fails, and so does a case without a line.

mod attributes;
mod data;
mod locks;
mod names;
mod programs;
mod sharing;
mod support;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A line of the page, and what shows that it is so.
type Case = (&'static str, fn());

const PAGE: &str = include_str!("../../../../docs/semantics-mem-mount.md");

/// Names in the first column of the page's tables of cases.
fn lines_of_page() -> Vec<&'static str> {
    let name = |line: &'static str| {
        let cell = line.strip_prefix("| `")?;
        cell.split_once("` |").map(|(name, _)| name)
    };
    PAGE.lines().filter_map(name).collect()
}

fn cases() -> Vec<Case> {
    [
        names::CASES,
        data::CASES,
        locks::CASES,
        attributes::CASES,
        sharing::CASES,
        programs::CASES,
    ]
    .concat()
}

#[test]
fn the_page_has_a_case_for_each_line_and_a_line_for_each_case() {
    let lines: BTreeSet<&str> = lines_of_page().into_iter().collect();
    let known: BTreeSet<&str> = cases().into_iter().map(|(name, _)| name).collect();
    assert_eq!(lines.len(), lines_of_page().len(), "a line is there twice");
    assert_eq!(known.len(), cases().len(), "a case is there twice");
    assert_eq!(lines, known);
    // A table that lost its form would have no lines.
    assert!(lines.len() > 50, "{}", lines.len());
}

#[test]
fn every_line_of_the_page_is_so() {
    if sharing::is_other_process() || !support::can_mount() {
        return;
    }
    let failed: Vec<&str> = cases()
        .into_iter()
        .filter(|(name, case)| {
            let outcome = catch_unwind(AssertUnwindSafe(case));
            println!("{name}: {}", if outcome.is_ok() { "ok" } else { "FAILED" });
            outcome.is_err()
        })
        .map(|(name, _)| name)
        .collect();
    assert!(failed.is_empty(), "{failed:?}");
}
