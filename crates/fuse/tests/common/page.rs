//! Compares a documentation page with the behaviour of a mount: each line of its tables has a case of the same name.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The name of a line of the page, and the test that proves it.
pub type Case = (&'static str, fn());

/// Names in the first column of the page's tables of cases.
fn lines(page: &'static str) -> Vec<&'static str> {
    let name = |line: &'static str| {
        let cell = line.strip_prefix("| `")?;
        cell.split_once("` |").map(|(name, _)| name)
    };
    page.lines().filter_map(name).collect()
}

/// Asserts that each line has a case and each case has a line.
pub fn compare(page: &'static str, cases: &[Case]) {
    let lines = lines(page);
    let lines_known: BTreeSet<&str> = lines.iter().copied().collect();
    let cases_known: BTreeSet<&str> = cases.iter().map(|(name, _)| *name).collect();
    assert_eq!(lines_known.len(), lines.len(), "a line is there twice");
    assert_eq!(cases_known.len(), cases.len(), "a case is there twice");
    assert_eq!(lines_known, cases_known);
    // A table that lost its format would have no lines.
    assert!(lines.len() > 50, "{}", lines.len());
}

/// Runs all cases, also those after a failed one.
pub fn run(cases: Vec<Case>) {
    let failed: Vec<&str> = cases
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
