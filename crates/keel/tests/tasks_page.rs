//! The commands of `docs/tasks.md` do what the page describes, and its table contains all figures.

use crate::common::TempDir;
use crate::common::broker::free_port;

/// Ends processes that the page has started, if the page itself did not end them.
struct Leftovers<'a>(&'a TempDir);

impl Drop for Leftovers<'_> {
    fn drop(&mut self) {
        for name in ["keel.pid", "serve.pid"] {
            let pid = std::fs::read_to_string(self.0.file(name)).unwrap_or_default();
            if let Ok(pid) = pid.trim().parse::<libc::pid_t>() {
                // SAFETY: a plain system call; the process was started by this test, or has ended.
                unsafe { libc::kill(pid, libc::SIGTERM) };
            }
        }
    }
}

#[test]
fn the_commands_of_the_page_work() {
    let dir = TempDir::new();
    let _leftovers = Leftovers(&dir);
    let page = crate::page_common::text("tasks.md").replace("7017", &free_port().to_string());
    let has = |thing: &str| match thing {
        "fuse" => base::mount::why_root_cannot_mount().is_none(),
        other => panic!("{other}"),
    };
    let can_mount = has("fuse");
    let compared = crate::page_common::run_text(&page, dir.path(), &[], has);
    assert!(compared >= if can_mount { 6 } else { 4 });
}
