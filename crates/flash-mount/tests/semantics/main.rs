//! Runs every line of `docs/semantics-flash.md`. A line without a case fails, and so does a case without a line.

mod attributes;
mod data;
mod directory;
mod durability;
mod ending;
mod failures;
mod flat;
mod names;
#[path = "../../../fuse/tests/common/page.rs"]
mod page;
mod programs;
#[path = "../common/support.rs"]
mod support;

use page::Case;

const PAGE: &str = include_str!("../../../../docs/semantics-flash.md");

fn cases() -> Vec<Case> {
    [
        names::CASES,
        data::CASES,
        durability::CASES,
        attributes::CASES,
        flat::CASES,
        directory::CASES,
        ending::CASES,
        programs::CASES,
        failures::CASES,
    ]
    .concat()
}

#[test]
fn the_page_has_a_case_for_each_line_and_a_line_for_each_case() {
    page::compare(PAGE, &cases());
}

#[test]
fn every_line_of_the_page_holds() {
    if !support::can_mount() {
        return;
    }
    page::run(cases());
}
