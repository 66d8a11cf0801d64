//! `keel flash` from the outside: what a script sees.

mod common;

use common::{TempDir, fails, keel, ok, ok_json, one_line, run, run_with_input};
use std::io::Read;
use std::process::Stdio;

/// Bytes without a pattern that a fault could hide in.
fn bytes(count: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..count).map(next).collect()
}

/// A small store in a directory.
fn store(dir: &TempDir) -> String {
    let image = dir.file("store.img").display().to_string();
    ok(&["flash", "format", &image, "--size", "16M", "--files", "100"]);
    image
}

#[test]
fn files_go_in_and_come_out() {
    let dir = TempDir::new();
    let image = store(&dir);
    let content = bytes(3 << 20);
    let source = dir.file("source").display().to_string();
    std::fs::write(&source, &content).unwrap();

    assert!(ok(&["flash", "put", &image, "big", &source]).is_empty());
    assert_eq!(ok(&["flash", "get", &image, "big"]), content);
    let copy = dir.file("copy");
    ok(&["flash", "get", &image, "big", copy.to_str().unwrap()]);
    assert_eq!(std::fs::read(&copy).unwrap(), content);

    let small = run_with_input(&["flash", "put", &image, "größe"], b"first");
    assert!(small.status.success(), "{small:?}");
    let more = run_with_input(&["flash", "append", &image, "größe", "-"], b" and more");
    assert!(more.status.success(), "{more:?}");
    assert_eq!(ok(&["flash", "get", &image, "größe"]), b"first and more");
    // A replacement is whole; an append makes the file that it needs.
    run_with_input(&["flash", "put", &image, "größe"], b"second");
    assert_eq!(ok(&["flash", "get", &image, "größe", "-"]), b"second");
    let made = run_with_input(&["flash", "append", &image, "log"], &content[..100_000]);
    assert!(made.status.success(), "{made:?}");
    assert_eq!(ok(&["flash", "get", &image, "log"]), &content[..100_000]);

    let list = ok_json(&["flash", "ls", &image, "--json"]);
    let mut names: Vec<_> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file["name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["big", "größe", "log"]);
    let plain = String::from_utf8(ok(&["flash", "ls", &image])).unwrap();
    assert_eq!(plain.lines().count(), 3);
    assert!(plain.contains("3145728  big"), "{plain}");

    assert_eq!(
        ok_json(&["flash", "stat", &image, "log", "--json"])["length_bytes"],
        100_000
    );
    assert!(
        String::from_utf8(ok(&["flash", "stat", &image, "log"]))
            .unwrap()
            .contains("100000 bytes")
    );
    assert_eq!(ok_json(&["flash", "stat", &image, "--json"])["files"], 3);
    assert!(!ok(&["flash", "stat", &image]).is_empty());
    ok(&["flash", "rm", &image, "big"]);
    assert_eq!(ok_json(&["flash", "stat", &image, "--json"])["files"], 2);
    let report = ok_json(&["flash", "check", &image, "--json"]);
    assert_eq!(
        (&report["clean"], &report["files"]),
        (&true.into(), &2.into())
    );
    assert!(
        String::from_utf8(ok(&["flash", "check", &image]))
            .unwrap()
            .contains("whole")
    );
}

#[test]
fn the_tables_are_printed_for_people_and_for_programs() {
    let dir = TempDir::new();
    let image = store(&dir);
    let bounds = ok_json(&["flash", "bounds", &image, "--json"]);
    let calls = bounds["calls"].as_array().unwrap();
    assert!(
        calls
            .iter()
            .any(|call| call["call"].as_str().unwrap().contains("create"))
    );
    assert!(
        calls
            .iter()
            .all(|call| call["writes"].is_u64() && call["flushes"].is_u64())
    );
    let text = String::from_utf8(ok(&["flash", "bounds", &image])).unwrap();
    assert!(
        text.contains("flushes") && text.contains("append 4096 bytes"),
        "{text}"
    );
    let dump = ok_json(&["flash", "dump", &image, "--json"]);
    assert_eq!(dump["superblock"]["files_max"], 100);
    assert!(
        String::from_utf8(ok(&["flash", "dump", &image]))
            .unwrap()
            .contains("superblock")
    );
}

#[test]
fn looking_at_a_store_does_not_change_it() {
    let dir = TempDir::new();
    let image = store(&dir);
    run_with_input(&["flash", "put", &image, "a"], b"content");
    let before = std::fs::read(&image).unwrap();
    for command in ["ls", "stat", "check", "bounds", "dump"] {
        ok(&["flash", command, &image]);
    }
    ok(&["flash", "get", &image, "a"]);
    assert!(std::fs::read(&image).unwrap() == before);
}

#[test]
fn format_overwrites_nothing_unless_told_to() {
    let dir = TempDir::new();
    let image = store(&dir);
    run_with_input(&["flash", "put", &image, "kept"], b"precious");
    assert!(fails(&["flash", "format", &image], 1).contains("holds a store already; add --force"));
    assert_eq!(ok(&["flash", "get", &image, "kept"]), b"precious");
    let other = dir.file("other");
    std::fs::write(&other, b"letters").unwrap();
    let other = other.to_str().unwrap();
    assert!(fails(&["flash", "format", other, "--size", "16M"], 1).contains("is not empty"));
    assert_eq!(std::fs::read(other).unwrap(), b"letters");

    let made = ok_json(&[
        "flash", "format", &image, "--force", "--size", "8M", "--json",
    ]);
    assert_eq!(made["size_bytes"], 8 << 20);
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 8 << 20);
    assert!(ok(&["flash", "ls", &image]).is_empty());
    // Without a size, a file keeps its own; an empty file may be formatted.
    ok(&["flash", "format", &image, "--force"]);
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 8 << 20);
    let empty = dir.file("empty");
    std::fs::write(&empty, b"").unwrap();
    ok(&["flash", "format", empty.to_str().unwrap(), "--size", "8M"]);
    // What cannot become a store leaves nothing behind.
    let tiny = dir.file("tiny").display().to_string();
    fails(&["flash", "format", &tiny, "--size", "4K"], 2);
    assert!(!dir.file("tiny").exists());
}

#[test]
fn errors_are_one_line_with_the_thing_and_the_right_status() {
    let dir = TempDir::new();
    let image = store(&dir);
    let absent = dir.file("absent.img").display().to_string();
    assert!(
        fails(&["flash", "ls", &absent], 1)
            .contains("absent.img: no such file or directory; check the path")
    );
    assert!(
        fails(&["flash", "get", &image, "nothing"], 1)
            .contains("keel: nothing: no such file in the store; list")
    );
    assert!(fails(&["flash", "rm", &image, "nothing"], 1).contains("nothing"));
    assert!(fails(&["flash", "put", &image, "x", &absent], 1).contains("absent.img"));
    assert!(
        fails(&["flash", "put", &image, &"n".repeat(300), "/dev/null"], 2)
            .contains("invalid file name")
    );
    assert!(fails(&["flash", "put", &image, "", "/dev/null"], 2).contains("invalid file name"));
    let foreign = dir.file("foreign").display().to_string();
    std::fs::write(&foreign, bytes(1 << 20)).unwrap();
    assert!(fails(&["flash", "check", &foreign], 1).contains("not an Evenkeel flash store"));
    // More than fits is refused before anything of it is written.
    let large = dir.file("large").display().to_string();
    std::fs::File::create(&large)
        .unwrap()
        .set_len(17 << 20)
        .unwrap();
    assert!(
        fails(&["flash", "put", &image, "x", &large], 1).contains("larger than the free space")
    );

    for usage in [
        &["flash", "format", &image, "--size", "12Q"][..],
        &["flash", "nothing"],
        &["flash", "ls"],
        &["nonsense"],
        &["demo", "--speed", "0"],
        &["demo", "--seed", "1"],
    ] {
        fails(usage, 2);
    }
}

#[test]
fn damage_is_named_and_costs_the_status() {
    let dir = TempDir::new();
    let image = store(&dir);
    let content = bytes(40_000);
    assert!(
        run_with_input(&["flash", "put", &image, "victim"], &content)
            .status
            .success()
    );
    let mut raw = std::fs::read(&image).unwrap();
    let at = raw
        .windows(64)
        .rposition(|window| window == &content[20_000..20_064])
        .unwrap();
    raw[at] ^= 0xff;
    std::fs::write(&image, raw).unwrap();
    let output = run(&["flash", "check", &image]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stdout).unwrap().contains("victim"));
    let output = run(&["flash", "check", &image, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&report["clean"], &report["problems"][0]["file"]),
        (&false.into(), &"victim".into())
    );
    let output = run(&["flash", "get", &image, "victim"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(one_line(&output.stderr).contains("keel: victim: file data is damaged"));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let dir = TempDir::new();
    let image = store(&dir);
    run_with_input(&["flash", "put", &image, "big"], &bytes(4 << 20));
    let mut child = keel()
        .args(["flash", "get", &image, "big"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), &output.stderr[..]),
        (Some(0), &b""[..])
    );
}

#[test]
fn help_and_version_are_there() {
    assert!(
        String::from_utf8(ok(&["--version"]))
            .unwrap()
            .starts_with("keel ")
    );
    for command in [
        &["--help"][..],
        &["demo", "--help"],
        &["flash", "--help"],
        &["flash", "format", "--help"],
        &["flash", "put", "--help"],
    ] {
        let text = String::from_utf8(ok(command)).unwrap();
        assert!(text.contains("Example"), "{command:?}: {text}");
    }
    assert_eq!(run(&[]).status.code(), Some(2));
}
