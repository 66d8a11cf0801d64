//! `keel flash` as a process: its effects as a script sees them.

use crate::common::{TempDir, fails, keel, ok, ok_json, one_line, run, run_with_input, wait_until};
use crate::flash_common::{bytes, put, store, text};
use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;

#[test]
fn files_that_were_put_come_out_unchanged() {
    let dir = TempDir::new();
    let image = store(&dir, "16M");
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
    // A put replaces the whole file; an append creates a missing file.
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
    let image = store(&dir, "16M");
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
    let image = store(&dir, "16M");
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
    let image = store(&dir, "16M");
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
    // Without a size, an existing file keeps its size; an empty file may be formatted.
    ok(&["flash", "format", &image, "--force"]);
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 8 << 20);
    let empty = dir.file("empty");
    std::fs::write(&empty, b"").unwrap();
    ok(&["flash", "format", empty.to_str().unwrap(), "--size", "8M"]);
    // A failed format leaves nothing behind.
    let tiny = dir.file("tiny").display().to_string();
    fails(&["flash", "format", &tiny, "--size", "4K"], 2);
    assert!(!dir.file("tiny").exists());
}

#[test]
fn errors_are_one_line_with_the_thing_and_the_right_status() {
    let dir = TempDir::new();
    let image = store(&dir, "16M");
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
    // Content that does not fit is refused before any of it is written.
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

/// Stores `content` as `victim` and changes a byte of the block that contains byte `offset`.
fn put_damaged(image: &str, content: &[u8], offset: usize) {
    put(image, "victim", content);
    let mut raw = std::fs::read(image).unwrap();
    let at = raw
        .windows(64)
        .rposition(|window| window == &content[offset..offset + 64])
        .unwrap();
    raw[at] ^= 0xff;
    std::fs::write(image, raw).unwrap();
}

#[test]
fn damage_is_named_and_costs_the_status() {
    let dir = TempDir::new();
    let image = store(&dir, "16M");
    let content = bytes(40_000);
    put_damaged(&image, &content, 20_000);
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
    let image = store(&dir, "16M");
    run_with_input(&["flash", "put", &image, "big"], &bytes(4 << 20));
    for to in ["-", "/dev/stdout"] {
        let mut child = keel()
            .args(["flash", "get", &image, "big", to])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 10];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), text(&output.stderr).as_str()),
            (Some(0), "")
        );
    }
}

#[test]
fn help_and_version_are_printed() {
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

/// Returns the sorted names of the entries of this directory.
fn names(dir: &TempDir) -> Vec<String> {
    let name = |path: &std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    let mut names: Vec<_> = dir.entries().iter().map(name).collect();
    names.sort_unstable();
    names
}

#[test]
fn the_image_is_neither_source_nor_target_of_a_copy() {
    let dir = TempDir::new();
    let image = store(&dir, "16M");
    run_with_input(&["flash", "put", &image, "kept"], b"precious");
    let before = std::fs::read(&image).unwrap();
    let link = dir.file("link").display().to_string();
    std::os::unix::fs::symlink(&image, &link).unwrap();
    let hard = dir.file("hard").display().to_string();
    std::fs::hard_link(&image, &hard).unwrap();
    for same in [&image, &link, &hard] {
        for command in [
            &["flash", "get", &image, "kept", same][..],
            &["flash", "get", same, "kept", &image],
            &["flash", "get", &image, "kept", same, "--salvage"],
            &["flash", "put", &image, "kept", same],
            &["flash", "append", &image, "kept", same],
        ] {
            let text = fails(command, 2);
            assert!(text.contains("itself; name another file"), "{text}");
        }
    }
    // The same by redirection (`>>`: with `>` the shell would have emptied the file before).
    let redirected = std::fs::File::options().append(true).open(&image).unwrap();
    let output = keel()
        .args(["flash", "get", &image, "kept"])
        .stdout(redirected)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(std::fs::read(&image).unwrap() == before);
}

#[test]
fn a_format_that_cannot_be_done_costs_nothing() {
    let dir = TempDir::new();
    let image = store(&dir, "16M");
    run_with_input(&["flash", "put", &image, "kept"], b"precious");
    let before = std::fs::read(&image).unwrap();
    for wrong in [
        &["--size", "1K"][..],
        &["--size", "0"],
        &["--size", "1M"],
        &["--files", "4294967295"],
    ] {
        fails(
            &[&["flash", "format", &image, "--force"], wrong].concat(),
            2,
        );
        assert!(std::fs::read(&image).unwrap() == before, "{wrong:?}");
    }
    let odd = dir.file("odd").display().to_string();
    std::fs::write(&odd, bytes(5000)).unwrap();
    fails(&["flash", "format", &odd, "--force"], 2);
    assert!(std::fs::read(&odd).unwrap() == bytes(5000));
    // A size above the limit of any file system: the old store and its length stay unchanged.
    let text = fails(
        &["flash", "format", &image, "--force", "--size", "8000000T"],
        1,
    );
    assert!(text.contains("--size"), "{text}");
    assert!(std::fs::read(&image).unwrap() == before);
    // The smallest store of the help text is correct; a size is rounded down.
    let small = dir.file("small").display().to_string();
    fails(
        &["flash", "format", &small, "--size", "303K", "--files", "1"],
        2,
    );
    ok(&["flash", "format", &small, "--size", "307K", "--files", "1"]);
    assert_eq!(std::fs::metadata(&small).unwrap().len(), 304 << 10);
    ok(&["flash", "format", &small, "--force", "--size", "5760K"]);
    fails(
        &["flash", "format", &small, "--force", "--size", "5756K"],
        2,
    );
}

#[test]
fn a_damaged_file_replaces_nothing_unless_salvaged() {
    let dir = TempDir::new();
    let image = store(&dir, "16M");
    // The damage lies in the second of the large reads, and the file ends with a partial block.
    let content = bytes(3_000_000);
    let damaged_at = 2_000_000;
    put_damaged(&image, &content, damaged_at);
    let first = damaged_at / flash::PAYLOAD_BYTES * flash::PAYLOAD_BYTES;
    let end = first + flash::PAYLOAD_BYTES;

    let out = dir.file("out").display().to_string();
    std::fs::write(&out, b"older").unwrap();
    let text = fails(&["flash", "get", &image, "victim", &out], 1);
    assert!(
        text.contains("file data is damaged") && text.contains("--salvage"),
        "{text}"
    );
    assert_eq!(std::fs::read(&out).unwrap(), b"older");
    assert_eq!(names(&dir), ["out", "store.img"]);
    // A pipe receives all content before the damage.
    let output = run(&["flash", "get", &image, "victim"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout == content[..first]);

    let mut saved = content.clone();
    saved[first..end].fill(0);
    let text = fails(&["flash", "get", &image, "victim", &out, "--salvage"], 1);
    let count = format!(
        "{} of 3000000 bytes could not be read",
        flash::PAYLOAD_BYTES
    );
    assert!(text.contains(&count), "{text}");
    assert!(std::fs::read(&out).unwrap() == saved);
    let output = run(&["flash", "get", &image, "victim", "--salvage"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout == saved);
    assert_eq!(names(&dir), ["out", "store.img"]);
}

#[test]
fn get_replaces_a_file_as_a_user_expects() {
    use std::os::unix::fs::PermissionsExt;
    let dir = TempDir::new();
    let image = store(&dir, "16M");
    run_with_input(&["flash", "put", &image, "a"], b"content");
    let out = dir.file("out");
    std::fs::write(&out, b"older and longer than the new one").unwrap();
    std::fs::set_permissions(&out, PermissionsExt::from_mode(0o640)).unwrap();
    let link = dir.file("link");
    std::os::unix::fs::symlink("out", &link).unwrap();
    ok(&["flash", "get", &image, "a", link.to_str().unwrap()]);
    assert_eq!(std::fs::read(&out).unwrap(), b"content");
    assert_eq!(
        std::fs::metadata(&out).unwrap().permissions().mode() & 0o7777,
        0o640
    );
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert_eq!(
        ok(&["flash", "get", &image, "a", "/dev/stdout"]),
        b"content"
    );
    ok(&["flash", "get", &image, "a", "/dev/null"]);
    assert_eq!(names(&dir), ["link", "out", "store.img"]);
    // `out` in the current directory: a name without a parent directory.
    let mut command = keel();
    command
        .args(["flash", "get", &image, "a", "new"])
        .current_dir(dir.path());
    assert!(command.status().unwrap().success());
    assert_eq!(std::fs::read(dir.file("new")).unwrap(), b"content");
}

#[test]
fn a_put_that_does_not_fit_leaves_the_old_content() {
    let dir = TempDir::new();
    let image = store(&dir, "16M");
    run_with_input(&["flash", "put", &image, "a"], b"old");
    let mut child = keel()
        .args(["flash", "put", &image, "a"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The child may end before all is written.
    child.stdin.take().unwrap().write_all(&bytes(20 << 20)).ok();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(one_line(&output.stderr).contains("no room; delete files"));
    assert_eq!(ok(&["flash", "get", &image, "a"]), b"old");
    ok(&["flash", "check", &image]);
}

#[test]
fn piped_pieces_are_stored_as_they_arrive() {
    let dir = TempDir::new();
    let image = store(&dir, "16M");
    let mut child = keel()
        .args(["flash", "append", &image, "log"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"first ").unwrap();
    // A reader needs no lock; it sees what would remain after a power loss.
    wait_until("the first piece", || {
        run(&["flash", "get", &image, "log"]).stdout == b"first "
    });
    assert!(fails(&["flash", "rm", &image, "log"], 1).contains("in use"));
    child.kill().unwrap();
    child.wait().unwrap();
    drop(input);
    assert_eq!(ok(&["flash", "get", &image, "log"]), b"first ");

    let large = dir.file("large").display().to_string();
    std::fs::write(&large, bytes(20 << 20)).unwrap();
    let text = fails(&["flash", "append", &image, "log", &large], 1);
    let stored = ok(&["flash", "get", &image, "log"]).len() - 6;
    assert!(stored > 0, "{text}");
    assert!(
        text.contains(&format!("{stored} bytes stored before that")),
        "{text}"
    );
}

#[test]
fn the_number_of_files_sizes_a_table_and_is_no_limit() {
    let dir = TempDir::new();
    let image = dir.file("store.img").display().to_string();
    ok(&["flash", "format", &image, "--size", "4M", "--files", "3"]);
    for name in ["a", "b", "c", "d", "e"] {
        run_with_input(&["flash", "put", &image, name], b"");
    }
    let text = String::from_utf8(ok(&["flash", "stat", &image])).unwrap();
    assert!(
        text.contains("files         5 (table sized for 3)"),
        "{text}"
    );
    let help = String::from_utf8(ok(&["flash", "format", "--help"])).unwrap();
    for part in ["size the name table", "4294967295", "304K", "4 KiB"] {
        assert!(help.contains(part), "{part}: {help}");
    }
    let text = fails(&["flash", "format", &image, "--files", "4294967296"], 2);
    assert!(text.contains("1..=4294967295"), "{text}");
    assert!(fails(&["flash", "format", &image, "--files", "-1"], 2).contains("-1"));
}

fn mkfifo(path: &Path) {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path is NUL-terminated and outlives the call.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
}

#[test]
fn a_path_that_cannot_be_an_image_is_refused_at_once_and_stays() {
    let dir = TempDir::new();
    let fifo = dir.file("fifo");
    mkfifo(&fifo);
    let socket = dir.file("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let link = dir.file("link");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    for (path, wrong) in [
        (fifo.to_str().unwrap(), "is a FIFO; name an image"),
        (socket.to_str().unwrap(), "is a socket; name an image"),
        (
            dir.path().to_str().unwrap(),
            "is a directory; name an image",
        ),
        ("/dev/null", "is a character device; name an image"),
    ] {
        for arguments in [
            &["flash", "format", path][..],
            &["flash", "format", path, "--force"],
            &["flash", "ls", path],
            &["flash", "put", path, "a", "/dev/null"],
            &["flash", "get", path, "a"],
            &["flash", "append", path, "a", "/dev/null"],
            &["flash", "rm", path, "a"],
            &["flash", "stat", path],
            &["flash", "check", path],
            &["flash", "bounds", path],
            &["flash", "dump", path],
        ] {
            let text = fails(arguments, 1);
            assert!(text.contains(wrong), "{text}");
        }
    }
    for force in [&[][..], &["--force"]] {
        let format = ["flash", "format", link.to_str().unwrap()];
        let text = fails(&[&format, force].concat(), 1);
        assert!(text.contains("symbolic link to nothing"), "{text}");
        assert!(link.symlink_metadata().unwrap().is_symlink());
    }
    assert_eq!(names(&dir), ["fifo", "link", "socket"]);
}

#[test]
fn remedies_fit_the_failures() {
    let dir = TempDir::new();
    let image = store(&dir, "16M");
    run_with_input(&["flash", "put", &image, "a"], b"content");
    let folder = dir.path().to_str().unwrap();
    for arguments in [
        &["flash", "put", &image, "a", folder][..],
        &["flash", "append", &image, "a", folder],
        &["flash", "get", &image, "a", folder],
    ] {
        let text = fails(arguments, 1);
        assert!(text.contains("is a directory; name a file"), "{text}");
    }
    let foreign = dir.file("foreign").display().to_string();
    std::fs::write(&foreign, bytes(1 << 20)).unwrap();
    let text = fails(&["flash", "ls", &foreign], 1);
    assert!(
        text.contains("check the path; `keel flash format` would make a new store"),
        "{text}"
    );

    let whole = std::fs::read(&image).unwrap();
    std::fs::write(&image, &whole[..1 << 20]).unwrap();
    for command in ["ls", "check"] {
        let text = fails(&["flash", command, &image], 1);
        assert!(
            text.contains("cut short") && text.contains("restore"),
            "{text}"
        );
    }
    // Without a commit record the store cannot be opened, and the remedy must not be the same command that just failed.
    let mut blank = whole.clone();
    blank[4096..].fill(0);
    std::fs::write(&image, &blank).unwrap();
    let text = fails(&["flash", "check", &image], 1);
    assert!(text.contains("`keel flash check --repair`"), "{text}");
    // No copy of the superblock is left: only a copy of the image helps.
    blank[100] ^= 1;
    std::fs::write(&image, &blank).unwrap();
    let text = fails(&["flash", "check", &image, "--repair"], 1);
    assert!(
        text.contains("superblock is damaged") && text.contains("from a copy"),
        "{text}"
    );

    std::fs::write(&image, &whole).unwrap();
    std::fs::set_permissions(&image, std::os::unix::fs::PermissionsExt::from_mode(0o444)).unwrap();
    // Root may write to it in spite of the permissions.
    if std::fs::File::options().write(true).open(&image).is_err() {
        let text = fails(&["flash", "rm", &image, "a"], 1);
        assert!(text.contains("is read-only; lift"), "{text}");
    }
}

#[test]
fn wrong_usage_points_to_the_right_help() {
    for (arguments, help) in [
        (&["flash", "put"][..], "see `keel flash put --help`"),
        (
            &["flash", "put", "a", "b", "c", "d"],
            "see `keel flash put --help`",
        ),
        (
            &["flash", "format", "a", "--size", "x"],
            "see `keel flash format --help`",
        ),
        (&["flash", "nonsense"], "see `keel flash --help`"),
        (&["demo", "--speed", "0"], "see `keel demo --help`"),
        (&["help", "nonsense"], "see `keel"),
        (&["nonsense"], "see `keel --help`"),
    ] {
        let text = fails(arguments, 2);
        assert!(text.contains(help), "{text}");
    }
    for command in [&[][..], &["flash"], &["flash", "put"], &["demo"]] {
        assert_eq!(
            ok(&[&["help"], command].concat()),
            ok(&[command, &["--help"]].concat()),
            "{command:?}"
        );
    }
    assert_eq!(
        ok(&["flash", "help", "get"]),
        ok(&["flash", "get", "--help"])
    );
    let help = String::from_utf8(ok(&["demo", "--help"])).unwrap();
    assert!(
        help.contains("from 1 to 14400") && help.contains("from 0.1 to 1000"),
        "{help}"
    );
}
