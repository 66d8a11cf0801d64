//! The commands of `docs/stream.md` do what the page describes, and its table contains all figures of a mount.

use crate::common::TempDir;
use crate::page_common;
use std::net::TcpListener;
use std::process::Command;
use stream::device::{CacheCounters, Counters};

/// Ports used on the page; another program may use them on the test machine.
const PORTS: [&str; 3] = ["7007", "7008", "7009"];

/// Ends what a failed block has left in its directory: servers whose process IDs were recorded there, and the mount.
struct Cleanup<'a>(&'a TempDir);

impl Drop for Cleanup<'_> {
    fn drop(&mut self) {
        let end = "umount here 2> unmounted.log; kill \"$(cat serve.pid)\" 2> killed.log";
        let ended = Command::new("sh")
            .args(["-c", end])
            .current_dir(self.0.path())
            .status();
        drop(ended);
    }
}

#[test]
fn the_commands_of_the_page_work() {
    let dir = TempDir::new();
    let _cleanup = Cleanup(&dir);
    // Keep all listeners open until all ports are known, so that they differ.
    let listeners = PORTS.map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = listeners
        .each_ref()
        .map(|listener| listener.local_addr().unwrap().port().to_string());
    drop(listeners);
    let mut page = page_common::text("stream.md");
    for (port, free) in PORTS.iter().zip(&ports) {
        for before in [":", "/dev/tcp/127.0.0.1/"] {
            page = page.replace(&format!("{before}{port}"), &format!("{before}{free}"));
        }
    }
    let has = |thing: &str| match thing {
        "fuse" => base::mount::why_root_cannot_mount().is_none(),
        other => panic!("{other}"),
    };
    let can_mount = has("fuse");
    let compared = page_common::run_text(&page, dir.path(), &[], has);
    assert!(compared >= if can_mount { 11 } else { 5 });
}

#[test]
fn each_figure_of_a_mount_has_a_line_in_the_table() {
    let page = page_common::text("stream.md");
    let counters = Counters {
        cache: Some(CacheCounters::default()),
        ..Counters::default()
    };
    for (name, _) in counters.named() {
        assert!(page.contains(&format!("\n| `{name}` | ")), "{name}");
    }
}
