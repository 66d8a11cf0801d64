//! Long commands on stores that are interrupted by a signal: one line, exit status 1, and nothing partial left behind.

use crate::common;
use crate::common::{TempDir, keel, ok, ok_json, one_line, signal, wait_until};
use crate::flash_common::{bytes, put, store};
use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Output, Stdio};

/// Size of an image whose creation takes long enough for a signal, also on a fast disk.
const LARGE: &str = "2G";

fn spawn(arguments: &[&str]) -> Child {
    keel()
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Whether the program has installed a handler for the signal, or has ended.
fn is_ready(child: &mut Child, number: libc::c_int) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
    let status = status.unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & (1 << (number - 1)) != 0)
        || child.try_wait().unwrap().is_some()
}

/// Whether the program has the file open.
fn has_open(child: &Child, path: &str) -> bool {
    let files = std::fs::read_dir(format!("/proc/{}/fd", child.id()));
    let mut files = files.into_iter().flatten().flatten();
    files.any(|file| std::fs::read_link(file.path()).is_ok_and(|found| found == Path::new(path)))
}

/// Sends the signal as soon as `begun` returns true, and waits for the end.
fn interrupt(mut child: Child, number: libc::c_int, begun: impl Fn(&mut Child) -> bool) -> Output {
    wait_until("the command", || {
        begun(&mut child) || child.try_wait().unwrap().is_some()
    });
    signal(&child, number);
    child.wait_with_output().unwrap()
}

/// Requires one line about the interruption, unless the command was faster than the signal. Returns whether it was
/// interrupted.
fn is_interrupted(output: &Output, left: &str) -> bool {
    if output.status.success() {
        println!("quicker than the signal");
        return false;
    }
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let line = one_line(&output.stderr);
    assert!(line.contains(": interrupted; "), "{line}");
    assert!(line.contains(left), "{line}");
    assert!(output.stdout.is_empty(), "{output:?}");
    true
}

fn length(path: &str) -> u64 {
    std::fs::metadata(path).map_or(0, |found| found.len())
}

#[test]
fn format_and_copy_make_nothing_and_an_empty_file_stays_empty() {
    let dir = TempDir::new();
    let source = store(&dir, "8M");
    let target = dir.file("new.img").display().to_string();
    for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        for arguments in [
            &["flash", "format", &target, "--size", LARGE][..],
            &["flash", "copy", &source, &target, "--size", LARGE],
        ] {
            let output = interrupt(spawn(arguments), number, |_| length(&target) > 0);
            if is_interrupted(&output, "nothing was made") {
                assert!(!Path::new(&target).exists());
            } else {
                std::fs::remove_file(&target).unwrap();
            }
        }
    }
    File::create(&target).unwrap();
    let child = spawn(&["flash", "format", &target, "--size", LARGE]);
    let output = interrupt(child, libc::SIGINT, |_| length(&target) > 0);
    if is_interrupted(&output, "the file is empty, as it was") {
        assert!(Path::new(&target).exists() && length(&target) == 0);
    }
    std::fs::remove_file(&target).unwrap();
    // A store that is being formatted again is lost; the message says so.
    let child = spawn(&["flash", "format", &source, "--force", "--size", LARGE]);
    let output = interrupt(child, libc::SIGINT, |_| length(&source) > 8 << 20);
    is_interrupted(&output, "begin again with --force");
}

#[test]
fn an_image_that_does_not_grow_has_its_former_length() {
    let dir = TempDir::new();
    let image = store(&dir, "8M");
    put(&image, "kept", b"content");
    let child = spawn(&["flash", "grow", &image, "--size", LARGE]);
    let output = interrupt(child, libc::SIGINT, |_| length(&image) > 8 << 20);
    if is_interrupted(&output, "the store and its file are as they were") {
        assert_eq!(length(&image), 8 << 20);
        ok(&["flash", "grow", &image, "--size", "16M"]);
        assert_eq!(length(&image), 16 << 20);
    }
    ok(&["flash", "check", &image]);
    assert_eq!(ok(&["flash", "get", &image, "kept"]), b"content");
}

#[test]
fn the_size_of_a_store_is_told_from_that_of_its_file() {
    let dir = TempDir::new();
    let image = store(&dir, "8M");
    put(&image, "kept", b"content");
    // As after a power loss during `grow`.
    let file = File::options().write(true).open(&image).unwrap();
    file.set_len(32 << 20).unwrap();
    let said = common::fails(&["flash", "grow", &image, "--size", "16M"], 2);
    assert!(
        said.ends_with(
            "the store has 8.0 MiB, but its file 32.0 MiB already, and no file is cut; leave --size away: then the \
             store uses the whole file"
        ),
        "{said}"
    );
    let said = common::fails(&["flash", "grow", &image, "--size", "4M"], 2);
    assert!(
        said.contains("the store has 8.0 MiB already, and no store shrinks"),
        "{said}"
    );
    let report = ok_json(&["flash", "grow", &image, "--json"]);
    assert_eq!(report["size_bytes"], 32 << 20);
    assert_eq!(ok(&["flash", "get", &image, "kept"]), b"content");
    // Giving the full size has the same effect, and unallocated parts get disk space.
    file.set_len(48 << 20).unwrap();
    let report = ok_json(&["flash", "grow", &image, "--size", "48M", "--json"]);
    assert_eq!(report["size_bytes"], 48 << 20);
    let blocks = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&image).unwrap());
    assert!(blocks * 512 >= (8 + 16) << 20, "{blocks}");
    ok(&["flash", "check", &image]);
}

#[test]
fn a_check_says_that_it_was_interrupted() {
    let dir = TempDir::new();
    let image = store(&dir, "256M");
    put(&image, "large", &bytes(200 << 20));
    for (arguments, left) in [
        (&["flash", "check", &image][..], "nothing was changed"),
        (&["flash", "check", "--repair", &image], "repair it again"),
    ] {
        let output = interrupt(spawn(arguments), libc::SIGINT, |child| {
            has_open(child, &image) && is_ready(child, libc::SIGINT)
        });
        is_interrupted(&output, left);
    }
    ok(&["flash", "check", &image]);
}

fn fifo(dir: &TempDir) -> String {
    let path = dir.file("fifo").display().to_string();
    let name = CString::new(path.clone()).unwrap();
    // SAFETY: the path is NUL-terminated.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    path
}

#[test]
fn a_put_that_waits_for_its_input_stores_nothing() {
    let dir = TempDir::new();
    let image = store(&dir, "8M");
    put(&image, "a", b"old");
    let fifo = fifo(&dir);
    // First without a process at the other end of the FIFO, then with one that has written a part.
    for is_open in [false, true] {
        let child = spawn(&["flash", "put", &image, "a", &fifo]);
        let mut writer = None;
        if is_open {
            let mut file = File::options().write(true).open(&fifo).unwrap();
            file.write_all(&bytes(50_000)).unwrap();
            writer = Some(file);
        }
        let output = interrupt(child, libc::SIGINT, |child| is_ready(child, libc::SIGINT));
        drop(writer);
        assert!(is_interrupted(&output, "nothing was stored"));
        assert_eq!(ok(&["flash", "get", &image, "a"]), b"old");
        ok(&["flash", "check", &image]);
    }
}

#[test]
fn a_command_that_ignores_signals_goes_on() {
    let dir = TempDir::new();
    let image = store(&dir, "8M");
    let fifo = fifo(&dir);
    let mut command = keel();
    command.args(["flash", "put", &image, "a", &fifo]);
    // SAFETY: between fork and exec, only plain system calls that are async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            for number in [libc::SIGINT, libc::SIGTERM] {
                libc::signal(number, libc::SIG_IGN);
            }
            Ok(())
        });
    }
    let mut child = command.spawn().unwrap();
    wait_until("the program", || is_ready(&mut child, libc::SIGHUP));
    signal(&child, libc::SIGINT);
    signal(&child, libc::SIGTERM);
    let mut writer = File::options().write(true).open(&fifo).unwrap();
    writer.write_all(b"new").unwrap();
    drop(writer);
    assert!(child.wait().unwrap().success());
    assert_eq!(ok(&["flash", "get", &image, "a"]), b"new");
}
