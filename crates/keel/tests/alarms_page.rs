//! The commands of `docs/alarms.md` do what the page describes.

use crate::common::TempDir;
use crate::common::broker::free_port;
use std::path::Path;

/// Ends processes that the page has started, if the page itself did not end them.
struct Leftovers<'a>(&'a TempDir);

impl Drop for Leftovers<'_> {
    fn drop(&mut self) {
        for name in ["keel.pid", "broker.pid"] {
            let pid = std::fs::read_to_string(self.0.file(name)).unwrap_or_default();
            if let Ok(pid) = pid.trim().parse::<libc::pid_t>() {
                // SAFETY: a plain system call; the process was started by this test, or has ended.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        }
    }
}

#[test]
fn the_commands_of_the_page_work() {
    let port = free_port().to_string();
    let page = crate::page_common::text("alarms.md").replace("18884", &port);
    let dir = TempDir::new();
    let _leftovers = Leftovers(&dir);
    // The page assumes that `mosquitto` is in the reader's path.
    let path = std::env::var("PATH").unwrap();
    let has = |thing: &str| match thing {
        "mosquitto" => path
            .split(':')
            .chain(["/usr/sbin"])
            .any(|folder| Path::new(folder).join("mosquitto").exists()),
        other => panic!("{other}"),
    };
    let is_there = has("mosquitto");
    let compared = crate::page_common::run_text(&page, dir.path(), &[], has);
    assert!(compared >= 4 || !is_there);
}
