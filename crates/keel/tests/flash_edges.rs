//! `keel flash` in unexpected situations: names with terminal control characters, stores that others change meanwhile,
//! interruptions, several processes that create the same store.

use crate::common::{TempDir, fails, keel, ok, ok_json, one_line, run, signal, wait_until};
use crate::flash_common::{Writer, bytes, put, store, text};
use std::process::Stdio;

#[test]
fn names_do_not_steer_the_terminal_and_read_well_otherwise() {
    let dir = TempDir::new();
    let image = store(&dir, "8M");
    let names = [
        ("it's \"quoted\"", "it's \"quoted\""),
        ("\x1b[31mred\n", "\\u{1b}[31mred\\n"),
        ("c1 \u{9b}31m", "c1 \\u{9b}31m"),
        ("\u{202e}gpj.exe", "\\u{202e}gpj.exe"),
        ("back\\slash", "back\\\\slash"),
        ("gro\u{308}ße", "gro\u{308}ße"),
    ];
    for (name, _) in names {
        put(&image, name, b"x");
    }
    let listed = text(&ok(&["flash", "ls", &image]));
    assert_eq!(listed.lines().count(), names.len(), "{listed}");
    for (name, shown) in names {
        assert!(listed.contains(&format!("  {shown}\n")), "{listed}");
        let one = text(&ok(&["flash", "stat", &image, name]));
        assert!(
            one.starts_with(&format!("name          {shown}\n")),
            "{one}"
        );
    }
    let all = ok_json(&["flash", "ls", &image, "--json"]);
    for (name, _) in names {
        let is_there = |file: &serde_json::Value| file["name"] == name;
        assert!(all.as_array().unwrap().iter().any(is_there), "{name:?}");
    }
    assert!(fails(&["flash", "rm", &image, ""], 2).contains("keel: '': invalid file name"));
    let odd = dir.file("odd\x1b[31m.img").display().to_string();
    let said = text(&ok(&[
        "flash", "format", &odd, "--size", "8M", "--files", "1",
    ]));
    assert!(
        said.contains("odd\\u{1b}[31m.img: an empty store"),
        "{said}"
    );
}

#[test]
fn a_store_that_another_program_writes_is_not_called_damaged() {
    let dir = TempDir::new();
    let image = store(&dir, "8M");
    let content = bytes(40_000);
    put(&image, "victim", &content);
    let mut raw = std::fs::read(&image).unwrap();
    let part = &content[20_000..20_064];
    let at = raw.windows(64).rposition(|window| window == part).unwrap();
    raw[at] ^= 1;
    std::fs::write(&image, raw).unwrap();
    let out = dir.file("out").display().to_string();
    let writer = Writer::start(&image);
    for to in ["-", &out] {
        let said = fails(&["flash", "get", &image, "victim", to], 1);
        assert!(said.contains("another program has changed it"), "{said}");
        // It would be wrong to return zeros for blocks that another program is writing.
        let said = fails(&["flash", "get", &image, "victim", to, "--salvage"], 1);
        assert!(said.contains("in use by another program"), "{said}");
    }
    assert!(!dir.file("out").exists());
    drop(writer);
    let said = fails(&["flash", "get", &image, "victim", &out], 1);
    assert!(said.contains("victim: file data is damaged"), "{said}");
    // The content before the damage is returned once, although it was read twice.
    let got = run(&["flash", "get", &image, "victim"]).stdout;
    assert!(got.len() > 10_000 && content.starts_with(&got));
}

#[test]
fn a_format_that_is_interrupted_leaves_no_image() {
    let dir = TempDir::new();
    let image = dir.file("store.img");
    let mut interrupted = 0;
    for kind in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let mut child = keel()
            .args(["flash", "format", image.to_str().unwrap(), "--size", "384M"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("the image", || {
            std::fs::metadata(&image).is_ok_and(|found| found.len() > 0)
        });
        signal(&child, kind);
        // The command may have been faster than the signal.
        if child.wait().unwrap().success() {
            std::fs::remove_file(&image).unwrap();
        } else {
            interrupted += 1;
            assert!(!image.exists());
        }
    }
    println!("{interrupted} of 3 were interrupted");
    // A file that existed before stays, because it may be a link, or have another owner.
    let kept = store(&dir, "8M");
    assert!(dir.file("store.img").exists() && ok(&["flash", "ls", &kept]).is_empty());
}

#[test]
fn a_limit_on_the_size_of_files_is_explained() {
    use std::os::unix::process::CommandExt;
    let dir = TempDir::new();
    let image = store(&dir, "8M");
    put(&image, "large", &bytes(3 << 20));
    let limited = |arguments: &[&str]| {
        let mut command = keel();
        command.args(arguments);
        let limit = libc::rlimit {
            rlim_cur: 1 << 20,
            rlim_max: 1 << 20,
        };
        // SAFETY: `setrlimit` is async-signal-safe, and `limit` lives in the closure.
        unsafe {
            command.pre_exec(move || {
                libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
                Ok(())
            });
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        one_line(&output.stderr)
    };
    let other = dir.file("other.img").display().to_string();
    let said = limited(&["flash", "format", &other, "--size", "8M", "--files", "1"]);
    assert!(
        said.contains("allows no file of this size; choose a smaller --size"),
        "{said}"
    );
    assert!(!dir.file("other.img").exists());
    let out = dir.file("out").display().to_string();
    let said = limited(&["flash", "get", &image, "large", &out]);
    assert!(
        said.contains("a limit of this user allows no file of this size"),
        "{said}"
    );
    assert_eq!(dir.entries().len(), 1);
}

#[test]
fn one_of_several_formats_of_one_store_succeeds_and_its_store_stays() {
    let dir = TempDir::new();
    for round in 0..6 {
        let image = dir.file(&format!("{round}.img")).display().to_string();
        let start = |_| {
            keel()
                .args(["flash", "format", &image, "--size", "1M", "--files", "1"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        let children: Vec<_> = (0..5).map(start).collect();
        let made = children
            .into_iter()
            .map(|mut child| child.wait().unwrap())
            .filter(std::process::ExitStatus::success);
        assert_eq!(made.count(), 1, "round {round}");
        ok(&["flash", "check", &image]);
    }
}
