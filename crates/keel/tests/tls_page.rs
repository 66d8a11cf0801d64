//! The commands of `docs/tls.md` do what the page describes.

use crate::common::TempDir;
use crate::common::broker::free_port;
use std::path::Path;

/// Ends the node that the page has started.
struct Leftover<'a>(&'a TempDir);

impl Drop for Leftover<'_> {
    fn drop(&mut self) {
        let pid = std::fs::read_to_string(self.0.file("keel.pid")).unwrap_or_default();
        if let Ok(pid) = pid.trim().parse::<libc::pid_t>() {
            // SAFETY: a plain system call; the process was started by this test, or has ended.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

#[test]
fn the_commands_of_the_page_work() {
    let port = free_port().to_string();
    let page = crate::page_common::text("tls.md").replace("18895", &port);
    let dir = TempDir::new();
    let _leftover = Leftover(&dir);
    let path = std::env::var("PATH").unwrap();
    let has = |program: &str| {
        let mut folders = path.split(':');
        folders.any(|folder| Path::new(folder).join(program).exists())
    };
    let are_there = has("openssl") && has("curl");
    let compared = crate::page_common::run_text(&page, dir.path(), &[], has);
    assert!(compared == 2 || !are_there, "{compared}");
}
