//! The link is cut for a time or for ever, and bytes are changed in transit.

use crate::common::TempDir;
use crate::stream_common::proxy::{Fault, Proxy};
use crate::stream_common::{
    Holder, Mount, Server, cannot_mount, is_whole, is_whole_at_last, longer, run_within, runs_well,
    runs_well_at_last, runs_well_within, wait_learned,
};
use std::process::Command;
use std::time::Duration;

const ARGUMENTS: &[&str] = &["20-60", "sleep:600", "100-160"];

/// Creates a published tree, its server, and a connection to it that can be disturbed.
fn published(dir: &TempDir) -> (Server, Proxy) {
    let server = Server::of_tree(dir, &[]);
    let proxy = Proxy::start(server.address);
    (server, proxy)
}

/// The cut lasts 1 s, or the time given by `KEEL_STREAM_CUT_SECONDS` in `make soak`.
#[test]
fn a_link_that_is_cut_for_a_while_costs_time_alone() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let (_server, proxy) = published(&dir);
    let cut = Duration::from_secs(longer("KEEL_STREAM_CUT_SECONDS", 1));
    let limit = cut + Duration::from_secs(60);
    let deadline_s = limit.as_secs().to_string();
    for (number, fault) in [Fault::Cut, Fault::Stall].into_iter().enumerate() {
        let options = ["--deadline-s", &deadline_s];
        let mount = Mount::start(&dir, &format!("at{number}"), proxy.address, &options);
        std::thread::scope(|scope| {
            let runs = scope.spawn(|| runs_well_within(&dir, &mount, ARGUMENTS, limit));
            std::thread::sleep(Duration::from_millis(300));
            proxy.set(fault);
            std::thread::sleep(cut);
            proxy.set(Fault::None);
            runs.join().unwrap();
        });
        is_whole(&dir, &mount);
    }
}

#[test]
fn without_a_link_cached_reads_go_on_and_others_fail_by_the_deadline() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let (_server, proxy) = published(&dir);
    for (number, fault) in [Fault::Cut, Fault::Stall].into_iter().enumerate() {
        let mount = Mount::start(
            &dir,
            &format!("at{number}"),
            proxy.address,
            &["--deadline-s", "2"],
        );
        runs_well_at_last(&dir, &mount, &["20-60"]);
        let _mapped = Holder::start(&mount, "20-60");
        proxy.set(fault);
        // Blocks that were read are in the page cache.
        runs_well(&dir, &mount, &["20-60"]);
        // A missing block of a file is an error of the call.
        let error = std::fs::read(mount.at.join("share/long")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
        // A missing page of a program causes SIGBUS: the program ends, and neither hangs nor computes with zeros. Each
        // round uses other blocks: the server learns those of a round, and may prefetch them in the next.
        let missing = ["400-420", "500-520"][number];
        let output = run_within(
            Command::new(mount.program()).arg(missing),
            Duration::from_secs(60),
        );
        let output = output.expect("the program has ended");
        let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
        assert_eq!(signal, Some(libc::SIGBUS), "{output:?}");
        assert_eq!(output.stdout, b"");
        assert!(mount.count("reads_late") >= 2);
        // No error remains when the link is back.
        proxy.set(Fault::None);
        runs_well_at_last(&dir, &mount, &[missing]);
        is_whole_at_last(&dir, &mount);
    }
}

#[test]
fn a_changed_byte_is_never_seen_by_a_program() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let (_server, proxy) = published(&dir);
    let store = dir.file("store");
    let mut changed = 0;
    for number in 0..14_u64 {
        let mount = Mount::start(&dir, &format!("at{number}"), proxy.address, &[]);
        proxy.set(Fault::Flip(number * 1_777));
        runs_well(&dir, &mount, &["20-60"]);
        is_whole(&dir, &mount);
        let status = mount.status();
        let rejected = status["rejected_all"]
            .as_u64()
            .unwrap_or_else(|| panic!("{status}"));
        changed += u64::from(rejected > 0 || status["disconnects"].as_u64().unwrap() > 0);
        drop(mount);
        wait_learned(&store, 1);
    }
    assert!(changed >= 10, "{changed}");
}
