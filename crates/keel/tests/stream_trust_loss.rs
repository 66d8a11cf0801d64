//! A line that loses packets: programs get the published content, but later. Each run has its own network, which
//! disappears with its last process.

use crate::common::TempDir;
use crate::stream_common::{Mount, Server, cannot_mount, is_whole, publish, runs_well, tree};
use std::process::Command;

/// Packet loss, in packets per 100,000.
const LOST: [u32; 4] = [1, 100, 1_000, 5_000];

/// Runs a function in a separate network. Returns the reason if that is not possible.
fn in_own_network(work: impl FnOnce() + Send) -> Result<(), String> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the call takes no pointers, and affects only this thread and its later children.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                let error = std::io::Error::last_os_error();
                return Err(format!("no network of its own: {error}"));
            }
            // As on a real line, a lost packet is 1,500 bytes instead of a whole window.
            tool("ip", &["link", "set", "lo", "up", "mtu", "1500"])?;
            tool("ip", &["link", "set", "lo", "gso_max_segs", "1"])?;
            tool("nft", &["add table inet line"])?;
            tool(
                "nft",
                &["add chain inet line in { type filter hook input priority 0; }"],
            )?;
            lose(0)?;
            work();
            Ok(())
        });
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn tool(name: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(name).args(arguments).output();
    let output = output.map_err(|error| format!("{name}: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name} {arguments:?}: {said}"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Drops this number of every 100,000 packets from now on, at random.
fn lose(packets: u32) -> Result<(), String> {
    tool("nft", &["flush chain inet line in"])?;
    let rule = format!("add rule inet line in numgen random mod 100000 < {packets} counter drop");
    tool("nft", &[&rule])?;
    Ok(())
}

/// The number of packets lost since then.
fn lost() -> u64 {
    let rules = tool("nft", &["list chain inet line in"]).unwrap();
    let mut words = rules
        .split_whitespace()
        .skip_while(|word| *word != "packets");
    words
        .nth(1)
        .and_then(|count| count.parse().ok())
        .unwrap_or_else(|| panic!("{rules}"))
}

#[test]
fn packets_that_a_line_loses_come_later_and_whole() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    tree(&dir);
    let store = publish(&dir);
    let ran = in_own_network(|| {
        let server = Server::start(&store, &[]);
        for packets in LOST {
            lose(packets).unwrap();
            let at = format!("at{packets}");
            let mount = Mount::start(&dir, &at, server.address, &[]);
            runs_well(&dir, &mount, &["20-60", "300-340"]);
            is_whole(&dir, &mount);
            let lost = lost();
            println!("{packets} of 100,000: {lost} lost");
            assert!(packets < 5_000 || lost > 0, "nothing was lost");
            drop(mount);
        }
        lose(0).unwrap();
        server.end();
    });
    if let Err(reason) = ran {
        println!("skipped: {reason}");
    }
}
