//! `keel flash mv`, `truncate` and `copy` as processes.

use crate::common::{TempDir, fails, keel, ok, ok_json, run, signal};
use crate::flash_common::{Writer, bytes, put, store};
use std::process::Stdio;

#[test]
fn a_file_gets_another_name_and_takes_the_place_of_another() {
    let dir = TempDir::new();
    let image = store(&dir, "8M");
    put(&image, "a", b"first");
    put(&image, "b", b"second");
    assert!(ok(&["flash", "mv", &image, "a", "c"]).is_empty());
    assert_eq!(ok(&["flash", "get", &image, "c"]), b"first");
    ok(&["flash", "mv", &image, "c", "b"]);
    assert_eq!(ok(&["flash", "get", &image, "b"]), b"first");
    assert_eq!(ok_json(&["flash", "stat", &image, "--json"])["files"], 1);
    ok(&["flash", "mv", &image, "b", "b"]);
    assert_eq!(ok(&["flash", "get", &image, "b"]), b"first");
    let text = fails(&["flash", "mv", &image, "a", "d"], 1);
    assert!(
        text.contains("keel: a: no such file in the store"),
        "{text}"
    );
    let text = fails(&["flash", "mv", &image, "b", "with/slash"], 2);
    assert!(
        text.contains("keel: with/slash: invalid file name"),
        "{text}"
    );
    ok(&["flash", "check", &image]);
}

#[test]
fn a_file_is_cut_and_filled_up() {
    let dir = TempDir::new();
    let image = store(&dir, "8M");
    let content = bytes(20_000);
    put(&image, "a", &content);
    ok(&["flash", "truncate", &image, "a", "12345"]);
    assert!(ok(&["flash", "get", &image, "a"]) == content[..12_345]);
    ok(&["flash", "truncate", &image, "a", "16K"]);
    let filled = ok(&["flash", "get", &image, "a"]);
    assert!(filled[..12_345] == content[..12_345]);
    assert_eq!(filled.len(), 16 << 10);
    assert!(filled[12_345..].iter().all(|byte| *byte == 0));
    ok(&["flash", "truncate", &image, "a", "0"]);
    assert!(ok(&["flash", "get", &image, "a"]).is_empty());
    assert!(fails(&["flash", "truncate", &image, "b", "0"], 1).contains("no such file"));
    fails(&["flash", "truncate", &image, "a", "-1"], 2);
    for too_much in ["9M", "8000000T"] {
        let text = fails(&["flash", "truncate", &image, "a", too_much], 1);
        assert!(text.contains("more than the free space"), "{text}");
    }
    ok(&["flash", "check", &image]);
}

#[test]
fn a_copy_has_the_same_files_and_another_shape() {
    let dir = TempDir::new();
    let image = store(&dir, "8M");
    let large = bytes(3_000_000);
    put(&image, "large", &large);
    put(&image, "empty", b"");
    put(&image, "größe", b"text");
    let before = std::fs::read(&image).unwrap();
    let copy = dir.file("copy.img").display().to_string();
    let text = ok(&[
        "flash", "copy", &image, &copy, "--size", "20M", "--files", "5000",
    ]);
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains("3 files, 2.9 MiB copied and compared"),
        "{text}"
    );
    assert!(
        std::fs::read(&image).unwrap() == before,
        "the original is only read"
    );
    assert_eq!(std::fs::metadata(&copy).unwrap().len(), 20 << 20);
    assert!(ok(&["flash", "get", &copy, "large"]) == large);
    assert_eq!(ok(&["flash", "get", &copy, "größe"]), b"text");
    assert!(ok(&["flash", "get", &copy, "empty"]).is_empty());
    let dump = ok_json(&["flash", "dump", &copy, "--json"]);
    assert_eq!(dump["superblock"]["files_max"], 5000);
    let original = ok_json(&["flash", "dump", &image, "--json"]);
    assert_ne!(dump["superblock"]["uuid"], original["superblock"]["uuid"]);
    ok(&["flash", "check", &copy]);

    // Without options the copy has the properties of the original; a smaller copy is possible if the files fit.
    let same = dir.file("same.img").display().to_string();
    let report = ok_json(&["flash", "copy", &image, &same, "--json"]);
    assert_eq!(report["files"], 3);
    assert_eq!(report["bytes"], 3_000_004);
    assert_eq!(report["size_bytes"], 8 << 20);
    assert_eq!(report["files_max"], 100);
    assert_eq!(report["name_bytes_max"], 255);
    let small = dir.file("small.img").display().to_string();
    ok(&[
        "flash",
        "copy",
        &copy,
        &small,
        "--size",
        "5M",
        "--files",
        "3",
        "--name-bytes",
        "10",
    ]);
    assert!(ok(&["flash", "get", &small, "large"]) == large);
}

#[test]
fn a_copy_overwrites_nothing_unasked_and_leaves_no_wreck() {
    let dir = TempDir::new();
    let image = store(&dir, "8M");
    put(&image, "a", &bytes(1_000_000));
    let other = dir.file("other.img").display().to_string();
    ok(&["flash", "format", &other, "--size", "8M"]);
    put(&other, "kept", b"precious");
    assert!(
        fails(&["flash", "copy", &image, &other], 1).contains("holds a store already; add --force")
    );
    assert_eq!(ok(&["flash", "get", &other, "kept"]), b"precious");
    for too_small in ["900K", "1M"] {
        let size = [
            "flash", "copy", &image, &other, "--force", "--files", "1", "--size", too_small,
        ];
        let text = fails(&size, 1);
        assert!(text.contains("choose a larger --size"), "{text}");
    }
    let new = dir.file("new.img").display().to_string();
    fails(
        &[
            "flash", "copy", &image, &new, "--size", "1100K", "--files", "1",
        ],
        1,
    );
    assert!(!dir.file("new.img").exists());
    let name = "n".repeat(40);
    put(&image, &name, b"");
    let text = fails(&["flash", "copy", &image, &new, "--name-bytes", "39"], 2);
    assert!(text.contains("--name-bytes"), "{text}");
    assert!(!dir.file("new.img").exists());
    for same in [
        &image,
        &dir.path().join("./store.img").display().to_string(),
    ] {
        assert!(fails(&["flash", "copy", &image, same, "--force"], 2).contains("itself"));
    }
    ok(&["flash", "copy", &image, &other, "--force"]);
    assert!(fails(&["flash", "get", &other, "kept"], 1).contains("no such file"));
    assert_eq!(ok_json(&["flash", "stat", &other, "--json"])["files"], 2);

    // A damaged original is not copied in part.
    let mut raw = std::fs::read(&image).unwrap();
    let part = &bytes(1_000_000)[500_000..500_064];
    let at = raw.windows(64).rposition(|window| window == part).unwrap();
    raw[at] ^= 1;
    std::fs::write(&image, raw).unwrap();
    let text = fails(&["flash", "copy", &image, &new], 1);
    assert!(
        text.contains("keel: a: file data is damaged") && text.contains("--salvage"),
        "{text}"
    );
    assert!(!dir.file("new.img").exists());
}

#[test]
fn two_programs_do_not_write_to_one_store() {
    let dir = TempDir::new();
    let image = store(&dir, "8M");
    let link = dir.file("link").display().to_string();
    std::os::unix::fs::symlink(&image, &link).unwrap();
    let hard = dir.file("hard").display().to_string();
    std::fs::hard_link(&image, &hard).unwrap();
    let copy = dir.file("copy.img").display().to_string();
    let writer = Writer::start(&hard);
    for name in [&image, &link, &hard] {
        for arguments in [
            &["flash", "put", name, "x", "/dev/null"][..],
            &["flash", "append", name, "x", "/dev/null"],
            &["flash", "rm", name, "log"],
            &["flash", "mv", name, "log", "x"],
            &["flash", "truncate", name, "log", "0"],
            &["flash", "format", name],
            &["flash", "format", name, "--force"],
            // These commands read the whole store, which must not change meanwhile.
            &["flash", "check", name],
            &["flash", "copy", name, &copy],
        ] {
            let text = fails(arguments, 1);
            let who = format!("in use by another program (keel, process {});", writer.id());
            assert!(text.contains(&who), "{text}");
        }
        // Commands that only show the current state are not refused.
        for command in ["ls", "stat", "bounds", "dump"] {
            ok(&["flash", command, name]);
        }
    }
    drop(writer);
    ok(&["flash", "check", &link]);
    ok(&["flash", "copy", &image, &copy]);
    assert_eq!(ok(&["flash", "get", &copy, "log"]), b"more");
    // A store that another program writes to cannot be the target of a copy, either.
    let writer = Writer::start(&copy);
    assert!(fails(&["flash", "copy", &image, &copy, "--force"], 1).contains("in use"));
    drop(writer);
}

#[test]
fn a_copy_that_is_interrupted_leaves_no_store() {
    let dir = TempDir::new();
    let image = store(&dir, "8M");
    for number in 0..400 {
        if number % 20 == 0 {
            put(&image, &format!("file {number}"), &bytes(number * 100));
        }
    }
    let copy = dir.file("copy.img").display().to_string();
    let arguments = ["flash", "copy", &image, &copy, "--size", "16M", "--force"];
    let (mut ended, mut left) = (0, 0);
    for attempt in 0..16 {
        let is_kill = attempt % 2 == 0;
        let mut child = keel()
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // At an arbitrary moment: the result must be correct at any moment.
        std::thread::sleep(std::time::Duration::from_millis(attempt * 12));
        signal(&child, if is_kill { libc::SIGKILL } else { libc::SIGINT });
        ended += u32::from(child.wait().unwrap().success());
        let output = run(&["flash", "ls", &copy]);
        if output.status.success() {
            assert_eq!(ok_json(&["flash", "stat", &copy, "--json"])["files"], 20);
            ok(&["flash", "check", &copy]);
        } else {
            left += 1;
        }
    }
    println!("{ended} copies were complete, {left} left no store");
    ok(&arguments);
    ok(&["flash", "check", &copy]);
}
