//! Programs that run from a mount: the first start, a learned one, other arguments, and two at once.

use crate::common::TempDir;
use crate::stream_common::{
    Mount, Server, cannot_mount, expected, is_whole, publish, run_within, runs_well, tree,
    wait_learned,
};
use std::process::Command;
use std::time::Duration;

/// The blocks of the program's table that a start reads; the program itself and its beginning add some blocks.
const ARGUMENTS: &[&str] = &["300-340", "17", "100-130", "18", "590-599"];
const TABLE_BLOCKS_READ: u64 = 41 + 1 + 31 + 1 + 10;

#[test]
fn blocks_learned_at_the_first_start_are_sent_ahead_at_the_second() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let server = Server::of_tree(&dir, &[]);
    let store = dir.file("store");
    let mount = Mount::start(&dir, "first", server.address, &[]);
    runs_well(&dir, &mount, ARGUMENTS);
    assert_eq!(mount.count("pushed"), 0);
    let read = mount.count("reads");
    assert!(read >= TABLE_BLOCKS_READ, "{read}");
    wait_learned(&store, 1);
    is_whole(&dir, &mount);
    drop(mount);
    // The third start observes all reads, so pushed blocks that are not read are known. `--pool-filled` changes nothing
    // for a program.
    let starts: [(&str, &[&str]); 2] = [("second", &["--pool-filled"]), ("third", &[])];
    for (start, options) in starts {
        let mount = Mount::start(&dir, start, server.address, options);
        runs_well(&dir, &mount, ARGUMENTS);
        let status = mount.status();
        let count = |name: &str| status[name].as_u64().unwrap();
        assert!(count("pushed") >= TABLE_BLOCKS_READ, "{start}: {status}");
        assert!(count("pushed") <= read, "{start}: {status}");
        assert!(count("round_trips") <= 5, "{start}: {status}");
        if start == "third" {
            assert_eq!(count("audits"), 1, "{status}");
            // Here a block that is read while in flight counts as read, although not as `pushed_read`.
            assert_eq!(count("audited_pushed"), count("pushed"), "{status}");
            assert!(count("audited_unread") <= read / 50, "{status}");
        }
    }
}

#[test]
fn a_server_without_prediction_prefetches_no_block() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let server = Server::of_tree(&dir, &["--predict", "none"]);
    for start in ["first", "second"] {
        let mount = Mount::start(&dir, start, server.address, &[]);
        runs_well(&dir, &mount, ARGUMENTS);
        assert_eq!(mount.count("pushed"), 0);
    }
}

#[test]
fn mode_paper_sends_segments() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let server = Server::of_tree(&dir, &["--predict", "paper"]);
    let store = dir.file("store");
    let mount = Mount::start(&dir, "first", server.address, &[]);
    runs_well(&dir, &mount, ARGUMENTS);
    drop(mount);
    // An action is recorded for 3 s.
    std::thread::sleep(Duration::from_millis(3_500));
    wait_learned(&store, 1);
    let mount = Mount::start(&dir, "second", server.address, &[]);
    runs_well(&dir, &mount, ARGUMENTS);
    let status = mount.status();
    let pushed = status["pushed"].as_u64().unwrap();
    assert!(pushed >= TABLE_BLOCKS_READ / 2, "{status}");
}

#[test]
fn runs_with_other_arguments_and_two_at_once_read_the_right_bytes() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let server = Server::of_tree(&dir, &[]);
    let store = dir.file("store");
    let runs: [&[&str]; 3] = [ARGUMENTS, &["300-340", "200-220"], &["300-340", "400-410"]];
    for (number, arguments) in runs.iter().enumerate() {
        let mount = Mount::start(&dir, &format!("learn{number}"), server.address, &[]);
        runs_well(&dir, &mount, arguments);
        drop(mount);
        wait_learned(&store, 1);
    }
    let mount = Mount::start(&dir, "both", server.address, &[]);
    std::thread::scope(|scope| {
        for arguments in &runs[1..] {
            let (dir, mount) = (&dir, &mount);
            scope.spawn(move || runs_well(dir, mount, arguments));
        }
    });
}

#[test]
fn scripts_and_children_run() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let tree = tree(&dir);
    let script = tree.join("bin/script");
    std::fs::write(
        &script,
        "#!/bin/sh\n\"$(dirname \"$0\")\"/task 5-9 && cat \"$(dirname \"$0\")\"/../share/short\n",
    )
    .unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    let store = publish(&dir);
    let server = Server::start(&store, &[]);
    let mount = Mount::start(&dir, "at", server.address, &[]);
    let output = run_within(
        &mut Command::new(mount.at.join("bin/script")),
        Duration::from_secs(60),
    )
    .unwrap();
    let mut wanted = expected(&dir, &["5-9"]);
    wanted.extend_from_slice(b"short\n");
    assert_eq!(output.stdout, wanted, "{output:?}");
}
