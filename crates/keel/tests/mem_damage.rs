//! `keel mem` when something is wrong: damaged regions, checkpoints that do not fit, limits of the shell, names that
//! are not text.

use crate::common;
use crate::common::mem::region;
use crate::common::{TempDir, fails, keel, ok, ok_json, run, text};
use mem::{NewInode, ROOT_INODE, Region};
use serde_json::json;
use std::os::unix::fs::FileExt;
use std::path::Path;

const FILE: NewInode = NewInode {
    mode: 0o100_644,
    user: 0,
    group: 0,
    now_ns: 1,
};

/// Creates files that contain the bytes of their names. Returns their inodes.
fn put(region: &str, names: &[&[u8]]) -> Vec<u64> {
    let region = Region::open(Path::new(region), true).unwrap();
    let writer = region.writer().unwrap();
    let put = |name: &&[u8]| {
        let made = writer.create(ROOT_INODE, name, &FILE).unwrap();
        let (inode, generation) = (made.inode, made.generation);
        writer.write(inode, generation, 0, name, 2).unwrap();
        inode
    };
    names.iter().map(put).collect()
}

fn write_over(region: &str, at: u64, bytes: &[u8]) {
    let file = std::fs::File::options().write(true).open(region).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// Makes a file of the region unreadable: it looks as if it were being changed.
fn damage(region: &str, inode: u64) {
    let opened = Region::open(Path::new(region), false).unwrap();
    let tables = opened.layout().tables();
    let inodes = tables.iter().find(|table| table.0 == "inodes").unwrap();
    write_over(region, inodes.1 + inode * 256, &[77]);
}

#[test]
fn a_damaged_file_is_listed_and_says_why() {
    let dir = TempDir::new();
    let region = region(&dir);
    let inodes = put(&region, &[b"one", b"two", b"three"]);
    damage(&region, inodes[1]);
    let reason = "a file was left in the middle of a change";
    let output = run(&["mem", "ls", &region]);
    let (status, said, warning) = text(&output);
    assert_eq!(status, Some(1));
    assert!(
        said.starts_with("one\nthree\ntwo  ! damaged at byte "),
        "{said}"
    );
    assert!(said.ends_with(&format!(": {reason}\n")), "{said}");
    assert!(warning.contains("1 of these cannot be read; "), "{warning}");
    assert!(warning.contains("`keel mem check "), "{warning}");
    let output = run(&["mem", "ls", &region, "-l"]);
    let (status, said, _) = text(&output);
    assert_eq!((status, said.lines().count()), (Some(1), 3));
    assert!(said.contains("\n??????????  two  ! damaged"), "{said}");
    let output = run(&["mem", "ls", &region, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 3);
    assert_eq!(
        (&listed[0]["name"], &listed[0]["error"]),
        (&"one".into(), &().into())
    );
    assert_eq!(
        (
            &listed[2]["name"],
            &listed[2]["length_bytes"],
            &listed[2]["inode"]
        ),
        (&"two".into(), &().into(), &inodes[1].into())
    );
    let error = listed[2]["error"].as_str().unwrap();
    assert!(error.contains(reason), "{error}");
    // Named directly, the damaged file is an error; after the repair it is readable again.
    let line = fails(&["mem", "stat", &region, "two"], 1);
    assert!(
        line.contains(reason) && line.contains("keel mem check"),
        "{line}"
    );
    ok(&["mem", "check", &region, "--repair"]);
    assert_eq!(ok(&["mem", "ls", &region]), b"one\nthree\ntwo\n");
}

#[test]
fn names_that_are_no_text_are_told_apart() {
    let dir = TempDir::new();
    let region = region(&dir);
    put(
        &region,
        &[b"\xff", b"\xfe", "\u{fffd}".as_bytes(), br"\xff"],
    );
    let said = String::from_utf8(ok(&["mem", "ls", &region])).unwrap();
    assert_eq!(said, "\\\\xff\n\u{fffd}\n\\xfe\n\\xff\n");
    let listed = ok_json(&["mem", "ls", &region, "--json"]);
    let hex: Vec<serde_json::Value> = (0..4).map(|it| listed[it]["name_hex"].clone()).collect();
    assert_eq!(hex, [json!(null), json!(null), json!("fe"), json!("ff")]);
    assert_eq!(listed[2]["name"], "\u{fffd}");
}

#[test]
fn damage_that_keeps_a_region_shut_is_repaired_or_reported() {
    let dir = TempDir::new();
    let region = region(&dir);
    put(&region, &[b"one"]);
    // One byte of the number of files.
    write_over(&region, 25, &[0x66]);
    let line = fails(&["mem", "ls", &region], 1);
    assert!(line.contains("keel mem check"), "{line}");
    let output = run(&["mem", "check", &region]);
    let (status, said, _) = text(&output);
    assert_eq!(status, Some(1));
    assert!(said.contains("--repair"), "{said}");
    let output = run(&["mem", "check", &region, "--json"]);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&found["unreadable"], &found["findings"][0]["kind"]),
        (&true.into(), &"superblock".into())
    );
    ok(&["mem", "check", &region, "--repair"]);
    assert_eq!(ok(&["mem", "ls", &region]), b"one\n");
    // The region's file is too long: the output says by how much, and names the repair.
    let file = std::fs::File::options().write(true).open(&region).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length + 4096).unwrap();
    let output = run(&["mem", "check", &region]);
    let (_, said, _) = text(&output);
    assert!(
        said.contains("4096 bytes longer") && said.contains(&format!("truncate -s {length}")),
        "{said}"
    );
    ok(&["mem", "check", &region, "--repair"]);
    assert_eq!(file.metadata().unwrap().len(), length);
    assert_eq!(ok(&["mem", "ls", &region]), b"one\n");
    // Nothing can be repaired: the message must not refer to the command that just ran.
    let refused = |repair: &[&str]| {
        let line = fails(repair, 1);
        assert!(line.contains("keel mem restore"), "{line}");
        assert!(!line.contains("keel mem check"), "{line}");
    };
    write_over(&region, 8, &[0x66; 50]);
    refused(&["mem", "check", &region]);
    refused(&["mem", "check", &region, "--repair"]);
    write_over(&region, 0, &[0; 4096]);
    refused(&["mem", "check", &region]);
    refused(&["mem", "check", &region, "--repair"]);
}

#[test]
fn a_restore_that_misses_something_says_so_with_its_exit_status() {
    let dir = TempDir::new();
    let region = region(&dir);
    let image = dir.file("image").display().to_string();
    ok(&["flash", "format", &image, "--size", "64M", "--files", "50"]);
    // Nothing was ever saved, so nothing is missing.
    let first = dir.file("first").display().to_string();
    ok(&["mem", "restore", &first, &image, "--size", "16M"]);
    let opened = Region::open(Path::new(&region), true).unwrap();
    let writer = opened.writer().unwrap();
    for name in [b"one", b"two"] {
        let made = writer.create(ROOT_INODE, name, &FILE).unwrap();
        let bytes = vec![name[0]; 9 << 20];
        writer
            .write(made.inode, made.generation, 0, &bytes, 2)
            .unwrap();
    }
    drop(writer);
    ok(&["mem", "checkpoint", &region, &image]);
    let small = dir.file("small").display().to_string();
    ok(&["mem", "create", &small, "--size", "16M"]);
    let output = run(&["mem", "restore", &small, &image]);
    let (status, said, warning) = text(&output);
    assert_eq!(status, Some(3), "{said}{warning}");
    assert!(warning.contains("1 file lost"), "{warning}");
    ok(&["mem", "check", &small]);
    // A size that no region can have is refused, although the size is not needed yet.
    let other = dir.file("other").display().to_string();
    let line = fails(&["mem", "restore", &other, &image, "--size", "1K"], 2);
    assert!(line.contains("--size: a region has 16 MiB"), "{line}");
    assert!(!Path::new(&other).exists());
}

#[test]
fn a_limit_of_the_shell_is_named() {
    let dir = TempDir::new();
    let region = region(&dir);
    let limited = |limit: &str, arguments: &str| {
        let library = dir.file("libkeelmem.so");
        std::fs::write(&library, "").unwrap();
        let program = env!("CARGO_BIN_EXE_keel");
        let line = format!("{limit} && exec {program} mem {arguments}");
        let output = std::process::Command::new("sh")
            .args(["-c", &line])
            .env("KEEL_MEM_LIBRARY", library)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        common::one_line(&output.stderr).to_string()
    };
    let line = limited("ulimit -v 4000000", &format!("stat {region}"));
    assert!(
        line.contains("(`ulimit -v`) allows 4000000 KiB; lift it with `ulimit -v unlimited`"),
        "{line}"
    );
    let line = limited("ulimit -n 90", &format!("run {region} --at /keel -- true"));
    assert!(
        line.contains("(`ulimit -n`) allows this program 90, ")
            && line.contains("`ulimit -n 1024`"),
        "{line}"
    );
    let at = format!("/{}", "a".repeat(5000));
    let output = keel()
        .args(["mem", "run", &region, "--at", &at, "--", "true"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let line = common::one_line(&output.stderr);
    assert!(
        line.contains("--at: a path of 5001 bytes, of at most 4094; "),
        "{line}"
    );
}
