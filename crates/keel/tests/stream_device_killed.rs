//! The process of a mount is killed: no reader hangs, and the next mount removes the remains.

use crate::common;
use crate::common::{TempDir, keel, run};
use crate::stream_common::device::{ARGUMENTS, all_blocks, path};
use crate::stream_common::proxy::{Fault, Proxy};
use crate::stream_common::{Mount, Server, cannot_mount, detach, is_whole, learn, runs_well};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Number of readers at the moment of the kill.
const READERS: usize = 4;

fn start(mut command: Command) -> Child {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Requires that a program ends, with any result.
fn ends(mut child: Child, what: &str) {
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(60) {
            child.kill().ok();
            panic!("{what} hangs");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Checks what the next mount on the same directory reports about the remains there.
fn assert_remains_are_reported(dir: &TempDir, at: &str, server: &str, options: &[&str]) {
    let at = dir.file(at);
    let mut child = keel()
        .args(["stream", "mount", server])
        .arg(&at)
        .args(options)
        .arg("--insecure")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.contains("is taken away"), "{line:?}");
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.contains("is mounted on"), "{line:?}");
    common::signal(&child, libc::SIGTERM);
    assert!(child.wait().unwrap().success());
}

#[test]
fn programs_end_and_the_next_mount_is_right_after_a_kill_of_their_mount() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let server = Server::of_tree(&dir, &[]);
    let proxy = Proxy::start(server.address);
    let cache = path(&dir, "cache");
    let all = all_blocks();
    learn(&dir, &server, &[&all]);
    // The prefetch plan stops in its middle, so that programs wait and the storing thread may sleep on a page.
    for (after_bytes, options) in [
        (30_000, &[][..]),
        (600_000, &[]),
        (200_000, &["--cache", &cache]),
    ] {
        let mut mount = Mount::start(&dir, "at", proxy.address, options);
        proxy.set(Fault::StallAfter(after_bytes));
        let programs: Vec<Child> = (0..READERS)
            .map(|number| {
                // Started by a shell, because the start of the program may also wait for the plan, and then fails.
                let mut command = Command::new("sh");
                command
                    .args(["-c", "exec \"$0\" \"$1\""])
                    .arg(mount.program());
                command.arg(format!("{}-599", number * 100));
                start(command)
            })
            .collect();
        common::wait_until("the middle of the plan", || proxy.passed() >= after_bytes);
        let mut copy = Command::new("cat");
        copy.arg(mount.at.join("share/long"));
        let copy = start(copy);
        mount.kill();
        for program in programs {
            ends(program, "a program");
        }
        ends(copy, "a copy");
        proxy.set(Fault::None);
        let again = Mount::start(&dir, "at", proxy.address, options);
        runs_well(&dir, &again, &[&all]);
        is_whole(&dir, &again);
    }
}

#[test]
fn the_next_mount_is_right_after_a_kill_of_an_idle_mount() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let server = Server::of_tree(&dir, &[]);
    let address = server.address.to_string();
    let cache = path(&dir, "cache");
    let options = ["--cache", cache.as_str()];
    let mut mount = Mount::start(&dir, "at", server.address, &options);
    runs_well(&dir, &mount, ARGUMENTS);
    // Blocks that were written to the disk before are not lost.
    common::wait_until("the cache", || mount.count("cache_written") > 50);
    // With an open file, and without its guard, the dead mount stays in place.
    let open = std::fs::File::open(mount.at.join("share/long")).unwrap();
    send(guard_of(&mount), libc::SIGKILL);
    mount.kill();
    // A later access gets an error.
    let error = common::run(&["stream", "status", mount.at.to_str().unwrap()]);
    assert_eq!(error.status.code(), Some(1), "{error:?}");
    let line = common::one_line(&error.stderr);
    assert!(line.contains("has ended"), "{line}");
    let mut look = Command::new("ls");
    look.arg("-R").arg(&mount.at);
    ends(start(look), "a look");
    assert_remains_are_reported(&dir, "at", &address, &options);
    drop(open);
    let again = Mount::start(&dir, "at", server.address, &options);
    runs_well(&dir, &again, ARGUMENTS);
    is_whole(&dir, &again);
    assert!(again.count("cache_hits") > 0);
    // A living mount must not be removed.
    let there = again.at.to_str().unwrap();
    let refused = run(&["stream", "mount", &address, there, "--insecure"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    runs_well(&dir, &again, ARGUMENTS);
}

/// Returns the guard process, which releases the programs of a mount whose process is killed.
fn guard_of(mount: &Mount) -> u32 {
    let children = format!("/proc/{0}/task/{0}/children", mount.id());
    let children = std::fs::read_to_string(children).unwrap();
    let mut children = children.split_whitespace();
    let guard = children.next().unwrap().parse().unwrap();
    assert_eq!(children.next(), None);
    guard
}

fn send(process: u32, signal: libc::c_int) {
    // SAFETY: a plain system call; the guard still waits, so its process ID is not reused.
    unsafe { libc::kill(process as libc::pid_t, signal) };
}

#[test]
fn a_guard_that_is_late_leaves_the_next_mount_alone() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let server = Server::of_tree(&dir, &[]);
    let mut mount = Mount::start(&dir, "at", server.address, &[]);
    let guard = guard_of(&mount);
    send(guard, libc::SIGSTOP);
    mount.kill();
    // The new mount gets the numbers of the dead one as soon as that is gone.
    detach(&mount.at);
    let again = Mount::start(&dir, "at", server.address, &[]);
    send(guard, libc::SIGCONT);
    common::wait_until("the end of the guard", || {
        let stat = std::fs::read_to_string(format!("/proc/{guard}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    });
    runs_well(&dir, &again, ARGUMENTS);
    is_whole(&dir, &again);
}

#[test]
fn a_dead_mount_is_not_taken_for_alive_from_the_cache_of_the_kernel() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let server = Server::of_tree(&dir, &[]);
    let mut mount = Mount::start(&dir, "at", server.address, &[]);
    // From here on the kernel has cached the directory.
    assert_eq!(std::fs::read_dir(&mount.at).unwrap().count(), 2);
    let open = std::fs::File::open(mount.at.join("share/long")).unwrap();
    send(guard_of(&mount), libc::SIGKILL);
    mount.kill();
    assert_remains_are_reported(&dir, "at", &server.address.to_string(), &[]);
    drop(open);
}

/// Names that the kernel has cached would make the dead mount look healthy.
#[test]
fn the_guard_takes_a_dead_mount_away_that_is_in_use() {
    if cannot_mount() {
        return;
    }
    if !has_unique_mount_ids() {
        println!("skipped: this kernel gives mounts no identity of their own (Linux 6.8)");
        return;
    }
    let dir = TempDir::new();
    let server = Server::of_tree(&dir, &[]);
    let mut mount = Mount::start(&dir, "at", server.address, &[]);
    let open = std::fs::File::open(mount.at.join("share/long")).unwrap();
    assert_eq!(std::fs::read_dir(&mount.at).unwrap().count(), 2);
    mount.kill();
    common::wait_until("an empty directory", || {
        std::fs::read_dir(&mount.at).is_ok_and(|names| names.count() == 0)
    });
    drop(open);
    let again = Mount::start(&dir, "at", server.address, &[]);
    runs_well(&dir, &again, ARGUMENTS);
}

/// Whether the kernel is Linux 6.8 or later.
fn has_unique_mount_ids() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|byte: char| !byte.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    (next().unwrap_or(0), next().unwrap_or(0)) >= (6, 8)
}
