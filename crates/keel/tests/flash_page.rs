//! The commands of `docs/flash.md` do what the page describes.

use crate::common::TempDir;
use crate::page_common;

#[test]
fn the_commands_of_the_page_work() {
    let dir = TempDir::new();
    let compared = page_common::run_page("flash.md", dir.path(), &[], |_| true);
    assert!(compared >= 6);
}
