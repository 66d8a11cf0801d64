//! The commands of `docs/alarms.md` do what the page says.

use crate::common::TempDir;
use crate::common::broker::free_port;
use std::path::Path;

/// Ends what the page has started, should it not have come to that.
struct Leftovers<'a>(&'a TempDir);

impl Drop for Leftovers<'_> {
    fn drop(&mut self) {
        for name in ["keel.pid", "broker.pid"] {
            let pid = std::fs::read_to_string(self.0.file(name)).unwrap_or_default();
            if let Ok(pid) = pid.trim().parse::<libc::pid_t>() {
                // SAFETY: a plain system call; the process is one of this test's, or gone.
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
    // Where a page says `mosquitto`, whoever reads it has it on the path.
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
