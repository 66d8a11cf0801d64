//! `keel mem` when the user's assumptions are wrong: its messages, and what it does nevertheless.

use crate::common::mem::{library, region, running};
use crate::common::{NOBODY, TempDir, as_nobody, fails, ok, ok_json, one_line, run, text};
use base::block::{FileDevice, FileDeviceOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

/// Creates a store for checkpoints.
fn image(dir: &TempDir) -> String {
    let image = dir.file("image").display().to_string();
    ok(&["flash", "format", &image, "--size", "16M", "--files", "50"]);
    image
}

#[test]
fn an_option_that_is_none_is_no_program() {
    let dir = TempDir::new();
    let region = region(&dir);
    for arguments in [
        ["--mod", "posix", "--at", "/keel"],
        ["--at", "/keel", "--mod", "posix"],
    ] {
        let run = ["mem", "run", &region];
        let line = fails(&[&run[..], &arguments, &["--", "true"]].concat(), 2);
        assert!(line.contains("did you mean `--mode`?"), "{line}");
    }
    let Some(library) = library() else { return };
    // The program's own options are not parsed, even without a separator before it.
    for separator in [&["--"][..], &[]] {
        let program = ["sh", "-c", "echo $0 $1; exit 5", "--mode", "--strict"];
        let arguments = [&["--at", "/keel"], separator, &program].concat();
        let output = running(&library, &region, &arguments).output().unwrap();
        assert_eq!(text(&output), (Some(5), "--mode --strict\n", ""));
    }
}

#[test]
fn a_program_runs_while_the_image_of_its_checkpoints_is_in_use() {
    let (Some(library), dir) = (library(), TempDir::new()) else {
        return;
    };
    let (region, image) = (region(&dir), image(&dir));
    let hold = || {
        let options = FileDeviceOptions {
            exclusive: true,
            ..FileDeviceOptions::default()
        };
        FileDevice::open(Path::new(&image), &options).unwrap()
    };
    let saves = ["--at", "/keel", "--checkpoint", &image, "--every-s", "3600"];
    let waits = "echo kept > /keel/file; echo ready; read line";
    for is_free_again in [true, false] {
        let held = hold();
        let program = [&saves[..], &["--", "sh", "-c", waits]].concat();
        let mut child = running(&library, &region, &program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(
            line.contains("in use by another program")
                && line.ends_with(
                    "; the program runs without checkpoints until it is free, which is tried every 3600 s\n"
                ),
            "{line}"
        );
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut ready = String::new();
        out.read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        let held = (!is_free_again).then_some(held);
        child.stdin.take().unwrap().write_all(b"end\n").unwrap();
        assert!(child.wait().unwrap().success());
        let mut end = String::new();
        said.read_to_string(&mut end).unwrap();
        let end = one_line(end.as_bytes());
        if is_free_again {
            assert!(end.contains(": checkpoint 1 in "), "{end}");
        } else {
            let remedy = format!("save it with `keel mem checkpoint {region} {image}`");
            assert!(end.ends_with(&remedy), "{end}");
        }
        drop(held);
    }
    let nowhere = dir.file("nowhere").display().to_string();
    let saves = ["--at", "/keel", "--checkpoint", &nowhere, "--", "true"];
    let output = running(&library, &region, &saves).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    one_line(&output.stderr);
}

#[test]
fn files_that_the_region_hides_are_reported() {
    let (Some(library), dir) = (library(), TempDir::new()) else {
        return;
    };
    let region = region(&dir);
    let there = dir.file("there");
    let at = there.display().to_string();
    let run = || {
        let shell = format!("echo x > {at}/file; ls {at}");
        let arguments = ["--at", &at, "--", "sh", "-c", &shell];
        let output = running(&library, &region, &arguments).output().unwrap();
        let (status, out, said) = text(&output);
        assert_eq!((status, out), (Some(0), "file\n"));
        said.to_owned()
    };
    assert_eq!(run(), "");
    std::fs::create_dir(&there).unwrap();
    assert_eq!(run(), "");
    std::fs::write(there.join("of the kernel's"), "x").unwrap();
    let line = one_line(run().as_bytes());
    assert!(
        line.contains(&format!(
            "keel: {at}: has files, which the program does not see"
        )),
        "{line}"
    );
    std::fs::remove_dir_all(&there).unwrap();
    std::fs::write(&there, "x").unwrap();
    let line = one_line(run().as_bytes());
    assert!(
        line.contains(": is a file, which the program does not"),
        "{line}"
    );
    assert_eq!(std::fs::read(&there).unwrap(), b"x");
}

#[test]
fn a_place_that_can_hold_no_region_is_named() {
    let dir = TempDir::new();
    let folder = dir.path().display().to_string();
    let line = fails(&["mem", "create", &folder, "--size", "16M"], 1);
    let remedy =
        format!("is a folder, and a region is a file; name a file in it, such as {folder}/plant");
    assert!(line.ends_with(&remedy), "{line}");
    let line = fails(&["mem", "create", "/proc/region", "--size", "16M"], 1);
    assert!(
        line.contains("/proc holds no files of users; choose a folder"),
        "{line}"
    );
}

#[test]
fn a_restored_region_flushes_as_requested() {
    let dir = TempDir::new();
    let image = image(&dir);
    let path = |name: &str| dir.file(name).display().to_string();
    let made = path("made");
    let create = [
        "mem",
        "create",
        &made,
        "--size",
        "16M",
        "--flush",
        "cache-lines",
    ];
    ok(&create);
    ok(&["mem", "checkpoint", &made, &image]);
    let restore = |name: &str, more: &[&str]| {
        let path = path(name);
        let output = run(&[&["mem", "restore", &path, &image], more].concat());
        let (status, out, said) = text(&output);
        assert_eq!(status, Some(0), "{said}");
        (out.to_owned(), said.to_owned())
    };
    // The folder of temporary files is not persistent memory.
    let (out, said) = restore("plain", &[]);
    assert!(!out.contains("flush"), "{out}");
    assert!(
        one_line(said.as_bytes()).contains(
            "flush is none here, and was cache-lines when it was saved; to have it so again, remove this region and \
             restore it with --flush cache-lines"
        ),
        "{said}"
    );
    let (out, said) = restore("alike", &["--flush", "cache-lines"]);
    assert!(
        out.contains("\nflush: cache-lines") && said.is_empty(),
        "{out}{said}"
    );
    assert_eq!(
        ok_json(&["mem", "stat", &path("alike"), "--json"])["format"],
        2
    );
    assert_eq!(restore("wanted", &["--flush", "none"]).1, "");
    let found = ok_json(&["mem", "restore", &path("json"), &image, "--json"]);
    assert_eq!(
        (&found["flush"], &found["saved_flush"]),
        (&"none".into(), &"cache-lines".into())
    );
    // An existing region keeps its properties and its size.
    let larger = path("larger");
    ok(&["mem", "create", &larger, "--size", "48M"]);
    let refused = ["mem", "restore", &larger, &image, "--flush", "cache-lines"];
    let line = fails(&refused, 1);
    assert!(
        line.contains("was made with flush none, which stays; "),
        "{line}"
    );
    restore("larger", &[]);
    assert_eq!(
        ok_json(&["mem", "stat", &larger, "--json"])["capacity_bytes"],
        48 << 20
    );
}

#[test]
fn a_first_checkpoint_without_room_does_not_speak_of_one_before() {
    let (Some(library), dir) = (library(), TempDir::new()) else {
        return;
    };
    let (region, image) = (region(&dir), image(&dir));
    let fill = |name: &str, bytes: u32| {
        let shell = format!("head -c {bytes} /dev/urandom > /keel/{name}");
        let arguments = ["--at", "/keel", "--", "sh", "-c", &shell];
        let output = running(&library, &region, &arguments).output().unwrap();
        assert_eq!(text(&output), (Some(0), "", ""));
    };
    fill("large", 17 << 20);
    let line = fails(&["mem", "checkpoint", &region, &image], 1);
    assert!(
        line.contains("no room for the checkpoint; nothing is saved yet; delete files"),
        "{line}"
    );
    fill("large", 1 << 20);
    ok(&["mem", "checkpoint", &region, &image]);
    fill("more", 17 << 20);
    let line = fails(&["mem", "checkpoint", &region, &image], 1);
    assert!(
        line.contains("the checkpoint before is there still; "),
        "{line}"
    );
}

#[test]
fn a_reader_without_write_permission_is_told_how_to_mount() {
    let dir = TempDir::new();
    let region = region(&dir);
    std::fs::set_permissions(&region, std::fs::Permissions::from_mode(0o644)).unwrap();
    let stubs = dir.file("region.stubs");
    std::fs::set_permissions(stubs, std::fs::Permissions::from_mode(0o755)).unwrap();
    let here = dir.file("here").display().to_string();
    std::fs::create_dir(&here).unwrap();
    std::os::unix::fs::chown(&here, Some(NOBODY), Some(NOBODY)).ok();
    let Some(output) = as_nobody(&["mem", "mount", &region, &here], &dir) else {
        return;
    };
    assert_eq!(output.status.code(), Some(1));
    let line = one_line(&output.stderr);
    assert!(
        line.contains("may be read, but not written; mount it with --read-only"),
        "{line}"
    );
    // A user without read permission does not get this advice.
    std::fs::set_permissions(&region, std::fs::Permissions::from_mode(0o600)).unwrap();
    let output = as_nobody(&["mem", "mount", &region, &here], &dir).unwrap();
    let line = one_line(&output.stderr);
    assert!(
        line.contains("permission denied; check the permissions"),
        "{line}"
    );
}

#[test]
fn files_are_counted_with_directories_and_say_so() {
    let (Some(library), dir) = (library(), TempDir::new()) else {
        return;
    };
    let region = region(&dir);
    let shell = "mkdir /keel/folder; touch /keel/folder/file";
    let arguments = ["--at", "/keel", "--", "sh", "-c", shell];
    let output = running(&library, &region, &arguments).output().unwrap();
    assert_eq!(text(&output), (Some(0), "", ""));
    let said = String::from_utf8(ok(&["mem", "stat", &region])).unwrap();
    assert!(
        said.contains("\nfiles         2, directories included (room for 499)\n"),
        "{said}"
    );
    let (stat, check) = (
        ok_json(&["mem", "stat", &region, "--json"]),
        ok_json(&["mem", "check", &region, "--json"]),
    );
    // The root directory, which each region has, is counted only by the check.
    let count = |found: &serde_json::Value, name: &str| found[name].as_u64().unwrap();
    assert_eq!(
        count(&stat, "files") + 1,
        count(&check, "files") + count(&check, "directories")
    );
}
