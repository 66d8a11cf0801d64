//! Runs every line of `docs/semantics-mem-mount.md`. A line without a case fails, and so does a case without a line.

mod attributes;
mod data;
mod locks;
mod names;
#[path = "../../../fuse/tests/common/page.rs"]
mod page;
mod programs;
mod sharing;
mod support;

use page::Case;

const PAGE: &str = include_str!("../../../../docs/semantics-mem-mount.md");

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
    page::compare(PAGE, &cases());
}

#[test]
fn every_line_of_the_page_holds() {
    if sharing::is_other_process() || !support::can_mount() {
        return;
    }
    page::run(cases());
}
