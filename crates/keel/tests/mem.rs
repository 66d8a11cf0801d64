//! `keel mem` as a process: creating regions, running programs with them, showing and saving them.

use crate::common;
use crate::common::mem::{library, region};
use crate::common::{TempDir, fails, keel, ok, ok_json, one_line, run, signal, text, wait_until};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Returns the command `keel mem run REGION --at /keel` with the options and the program.
fn running(library: &Path, region: &str, arguments: &[&str]) -> Command {
    common::mem::running(library, region, &[&["--at", "/keel"], arguments].concat())
}

#[test]
fn a_region_says_whether_it_writes_cache_lines_back() {
    let dir = TempDir::new();
    let region = dir.file("region").display().to_string();
    let create = ["mem", "create", &region, "--size", "32M", "--flush"];
    let made = ok_json(&[&create[..], &["cache-lines", "--json"]].concat());
    assert_eq!(made["flush"], "cache-lines");
    assert_eq!(made["format"], 2);
    let found = ok_json(&["mem", "stat", &region, "--json"]);
    assert_eq!(found["flush"], "cache-lines");
    // The folder of temporary files is not persistent memory, and the output says so.
    assert_eq!(found["persistent_memory"], false);
    let said = String::from_utf8(ok(&["mem", "stat", &region])).unwrap();
    let line = said.lines().find(|line| line.starts_with("flush"));
    assert!(
        line.is_some_and(|line| line.contains("not persistent memory")),
        "{said}"
    );
    let other = dir.file("other").display().to_string();
    ok(&["mem", "create", &other, "--size", "32M"]);
    let found = ok_json(&["mem", "stat", &other, "--json"]);
    assert_eq!(
        (&found["flush"], &found["format"]),
        (&"none".into(), &1.into())
    );
    let refused = fails(&[&create[..], &["sometimes"]].concat(), 2);
    assert!(refused.contains("cache-lines"), "{refused}");
}

#[test]
fn a_made_region_reports_its_size_and_memory() {
    let dir = TempDir::new();
    let path = dir.file("region");
    let region = path.display().to_string();
    let said = ok(&["mem", "create", &region, "--size", "33M", "--mode", "640"]);
    let said = String::from_utf8(said).unwrap();
    assert!(
        said.contains("an empty region of 32.0 MiB, all of it taken"),
        "{said}"
    );
    assert!(said.contains("\nmemory: "), "{said}");
    let mode = path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o640);
    let stubs = dir.file("region.stubs").metadata().unwrap();
    assert_eq!(stubs.permissions().mode() & 0o777, 0o750);
    let found = ok_json(&["mem", "stat", &region, "--json"]);
    assert_eq!(found["capacity_bytes"], 32 << 20);
    assert_eq!(
        (&found["files"], &found["deleted_open_files"]),
        (&0.into(), &0.into())
    );
    assert_eq!(found["lanes"], 64);
    // An existing file is not overwritten.
    let again = fails(&["mem", "create", &region, "--size", "32M"], 1);
    assert!(again.contains("exists already; "), "{again}");
    let other = dir.file("other").display().to_string();
    let made = ok_json(&[
        "mem", "create", &other, "--size", "32M", "--files", "100", "--lanes", "4", "--json",
    ]);
    assert_eq!(
        (&made["lanes"], &made["files_max"]),
        (&4.into(), &99.into())
    );
    assert!(made["free_bytes"].as_u64().unwrap() > 20 << 20);
}

#[test]
fn a_refused_region_leaves_no_file() {
    let dir = TempDir::new();
    let path = dir.file("region").display().to_string();
    for (arguments, status, said) in [
        (vec!["--size", "1M"], 2, "16 MiB to 1 TiB"),
        (vec!["--size", "1024G"], 1, " free; choose a smaller --size"),
        (
            vec!["--size", "16M", "--files", "1000000"],
            2,
            "more than half",
        ),
        (vec!["--size", "16M", "--lanes", "1"], 2, "--lanes"),
        (vec!["--size", "16M", "--mode", "9"], 2, "must be octal"),
        (vec![], 2, "--size"),
    ] {
        let arguments = [&["mem", "create", &path], &arguments[..]].concat();
        let line = fails(&arguments, status);
        assert!(line.contains(said), "{line}");
        assert!(dir.entries().is_empty(), "{arguments:?}");
    }
    let nowhere = dir.file("no/region").display().to_string();
    let line = fails(&["mem", "create", &nowhere, "--size", "16M"], 1);
    assert!(
        line.ends_with("no such file or directory; check the path"),
        "{line}"
    );
}

#[test]
fn missing_huge_pages_are_counted() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let Some(folder) = mounts
        .lines()
        .filter(|line| line.split(' ').nth(2) == Some("hugetlbfs"))
        .find_map(|line| line.split(' ').nth(1))
    else {
        println!("skipped: no hugetlbfs is mounted");
        return;
    };
    let region = format!("{folder}/keel-test-{}", std::process::id());
    let line = fails(&["mem", "create", &region, "--size", "1024G"], 1);
    assert!(
        line.contains("not enough huge pages: 524288 are needed"),
        "{line}"
    );
    assert!(
        line.contains(" missing; `sysctl vm.nr_hugepages="),
        "{line}"
    );
    assert!(!Path::new(&region).exists());
}

#[test]
fn a_file_that_is_no_region_is_refused_by_all_commands() {
    let dir = TempDir::new();
    let missing = dir.file("missing").display().to_string();
    let other = dir.file("other").display().to_string();
    std::fs::write(&other, vec![7; 4 << 20]).unwrap();
    let here = dir.file("here").display().to_string();
    std::fs::create_dir(&here).unwrap();
    for (region, said) in [(&missing, "no such file"), (&other, "is not a region")] {
        for arguments in [
            vec!["mem", "ls", region],
            vec!["mem", "stat", region],
            vec!["mem", "mount", region, &here],
        ] {
            let line = fails(&arguments, 1);
            assert!(line.contains(said), "{arguments:?}: {line}");
        }
    }
    let image = dir.file("image").display().to_string();
    ok(&["flash", "format", &image, "--size", "8M", "--files", "20"]);
    let line = fails(&["mem", "checkpoint", &other, &image], 1);
    assert!(line.contains("is not a region"), "{line}");
    assert_eq!(std::fs::read(&other).unwrap(), vec![7; 4 << 20]);
}

#[test]
fn a_program_finds_the_region_and_ends_as_it_ends() {
    let (Some(library), dir) = (library(), TempDir::new()) else {
        return;
    };
    let region = region(&dir);
    let of = |shell: &str| {
        running(&library, &region, &["--", "sh", "-c", shell])
            .output()
            .unwrap()
    };
    let output = of("echo one > /keel/file; cat /keel/file; mkdir /keel/d; exit 7");
    assert_eq!(text(&output), (Some(7), "one\n", ""));
    let output = of("cat /keel/file; test -e /keel/other");
    assert_eq!(text(&output), (Some(1), "one\n", ""));
    let output = of("kill -9 $$");
    assert_eq!(text(&output), (Some(128 + 9), "", ""));
    let listed = ok_json(&["mem", "ls", &region, "--json"]);
    assert_eq!(
        (&listed[0]["name"], &listed[0]["type"]),
        (&"d".into(), &"directory".into())
    );
    assert_eq!(
        (&listed[1]["name"], &listed[1]["length_bytes"]),
        (&"file".into(), &4.into())
    );
    let long = String::from_utf8(ok(&["mem", "ls", &region, "-l"])).unwrap();
    assert!(long.starts_with("drwxr-xr-x  2  "), "{long}");
    let found = ok_json(&["mem", "stat", &region, "file", "--json"]);
    assert_eq!(
        (&found["mode"], &found["links"]),
        (&"0644".into(), &1.into())
    );
    let line = fails(&["mem", "stat", &region, "nothing"], 1);
    assert!(line.contains("keel mem ls"), "{line}");
    // A read-only region can be read, but not written.
    let output = running(&library, &region, &["--", "no-such-program"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(one_line(&output.stderr).contains("no-such-program: no such file"));
    let output = running(&library, &region, &["--", "/keel/file"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(one_line(&output.stderr).contains("where this command cannot start it; "));
    let plain = dir.file("plain").display().to_string();
    std::fs::write(&plain, "no program").unwrap();
    let output = running(&library, &region, &["--", &plain])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(126));
}

#[test]
fn the_library_gets_its_variables_and_is_searched_at_its_places() {
    let (Some(library), dir) = (library(), TempDir::new()) else {
        return;
    };
    let region = region(&dir);
    let output = running(&library, &region, &["--mode", "posix", "--", "env"])
        .env("LD_PRELOAD", "libc.so.6")
        .output()
        .unwrap();
    let (status, out, _) = text(&output);
    assert_eq!(status, Some(0));
    let has = |line: &str| out.lines().any(|found| found == line);
    assert!(
        has("KEEL_MEM_MODE=posix") && has("KEEL_MEM_AT=/keel"),
        "{out}"
    );
    let path = Path::new(&region).canonicalize().unwrap();
    assert!(has(&format!("KEEL_MEM_REGION={}", path.display())), "{out}");
    let library = library.canonicalize().unwrap();
    assert!(
        has(&format!("LD_PRELOAD={}:libc.so.6", library.display())),
        "{out}"
    );
    // Signals that this command waits for are not blocked in the program.
    let blocked = ["grep", "SigBlk", "/proc/self/status"];
    let output = running(
        &library,
        &region,
        &["--", blocked[0], blocked[1], blocked[2]],
    )
    .output()
    .unwrap();
    let direct = Command::new(blocked[0])
        .args(&blocked[1..])
        .output()
        .unwrap();
    assert_eq!(text(&output), text(&direct));
    let output = running(Path::new("/no/library.so"), &region, &["--", "true"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(one_line(&output.stderr).contains("KEEL_MEM_LIBRARY must name libkeelmem.so"));
    let line = fails(&["mem", "run", &region, "--at", "keel", "--", "true"], 2);
    assert!(line.contains("--at: "), "{line}");
}

#[test]
fn a_program_that_cannot_be_served_is_told_from_one_that_can() {
    let (Some(library), dir) = (library(), TempDir::new()) else {
        return;
    };
    let region = region(&dir);
    let source = dir.file("program.c");
    std::fs::write(&source, "int main(void) { return 3; }\n").unwrap();
    let program = dir.file("program").display().to_string();
    let built = Command::new("cc")
        .args(["-static", "-o", &program])
        .arg(&source)
        .output();
    if !built.is_ok_and(|built| built.status.success()) {
        println!("skipped: no C compiler that links statically");
        return;
    }
    let output = running(&library, &region, &["--", &program])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    let line = one_line(&output.stderr);
    assert!(
        line.contains("is linked statically: it does not find the region at /keel; "),
        "{line}"
    );
    assert!(
        line.contains(&format!("`keel mem mount {region} DIR`")),
        "{line}"
    );
    let output = running(&library, &region, &["--strict", "--", &program])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    one_line(&output.stderr);
    // A program that drops the library before it starts another one.
    let shell = ["--strict", "--", "env", "-u", "LD_PRELOAD", &program];
    let output = running(&library, &region, &shell).output().unwrap();
    assert_eq!(text(&output), (Some(3), "", ""), "env itself was served");
}

#[test]
fn signals_are_passed_on_and_checkpoints_taken_at_the_end() {
    let (Some(library), dir) = (library(), TempDir::new()) else {
        return;
    };
    let region = region(&dir);
    let image = dir.file("image").display().to_string();
    ok(&["flash", "format", &image, "--size", "16M", "--files", "50"]);
    let shell = "trap 'echo ended > /keel/end; exit 5' TERM; echo begun > /keel/begin; echo ready
        while :; do sleep 0.05; done";
    let mut child = running(
        &library,
        &region,
        &[
            "--checkpoint",
            &image,
            "--every-s",
            "3600",
            "--",
            "sh",
            "-c",
            shell,
        ],
    )
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    signal(&child, libc::SIGTERM);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    let said = one_line(&output.stderr);
    assert!(said.contains(&format!(" in {image}")), "{said}");
    std::fs::remove_file(&region).unwrap();
    let said = String::from_utf8(ok(&["mem", "restore", &region, &image])).unwrap();
    assert!(said.contains(": 2 files of 12 B; "), "{said}");
    let output = running(
        &library,
        &region,
        &["--", "cat", "/keel/begin", "/keel/end"],
    )
    .output()
    .unwrap();
    assert_eq!(text(&output), (Some(0), "begun\nended\n", ""));
    // A mistyped path is reported before anything runs.
    let nowhere = dir.file("nowhere").display().to_string();
    let output = running(
        &library,
        &region,
        &["--checkpoint", &nowhere, "--", "touch", "/keel/x"],
    )
    .output()
    .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        ok_json(&["mem", "ls", &region, "--json"])
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn a_check_names_damage_and_repairs_it() {
    let dir = TempDir::new();
    let region = region(&dir);
    let said = String::from_utf8(ok(&["mem", "check", &region])).unwrap();
    assert!(said.contains(": whole; 0 files, 1 directories, "), "{said}");
    assert_eq!(ok_json(&["mem", "check", &region, "--json"])["clean"], true);
    // The number of pages in the pool, which contradicts the files and the pool itself.
    let file = std::fs::File::options().write(true).open(&region).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[3], 1024 + 64).unwrap();
    let output = run(&["mem", "check", &region]);
    let (status, said, _) = text(&output);
    assert_eq!(status, Some(1));
    assert!(
        said.contains("at byte 1088: ") && said.contains("--repair"),
        "{said}"
    );
    let output = run(&["mem", "check", &region, "--repair"]);
    let (status, said, _) = text(&output);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("nothing is lost; "), "{said}");
    ok(&["mem", "check", &region]);
}

#[test]
fn saved_files_come_back_and_others_are_reported_as_lost() {
    let dir = TempDir::new();
    let region = region(&dir);
    let image = dir.file("image").display().to_string();
    ok(&["flash", "format", &image, "--size", "16M", "--files", "50"]);
    let line = fails(&["mem", "restore", &region, &image], 1);
    assert!(line.contains("holds no checkpoint named mem; "), "{line}");
    let saved = ok_json(&["mem", "checkpoint", &region, &image, "--json"]);
    assert_eq!(
        (&saved["generation"], &saved["missed_count"]),
        (&1.into(), &0.into())
    );
    let found = ok_json(&["mem", "stat", &region, "--checkpoint", &image, "--json"]);
    assert_eq!(found["checkpoint"]["generation"], 1);
    assert!(found["checkpoint"]["age_ms"].as_i64().unwrap() >= 0);
    let shown = ok(&[
        "mem",
        "stat",
        &region,
        "--checkpoint",
        &image,
        "--name",
        "other",
    ]);
    assert!(
        String::from_utf8(shown)
            .unwrap()
            .contains("none: a power cut would take all")
    );
    let again = dir.file("again").display().to_string();
    let restored = ok_json(&["mem", "restore", &again, &image, "--json"]);
    assert_eq!(
        (&restored["whole"], &restored["lost_count"]),
        (&true.into(), &0.into())
    );
    assert_eq!(
        ok_json(&["mem", "stat", &again, "--json"])["capacity_bytes"],
        32 << 20
    );
    // At boot a region is created even if no checkpoint can be read.
    let broken = dir.file("broken").display().to_string();
    std::fs::write(&broken, "no store").unwrap();
    let empty = dir.file("empty").display().to_string();
    fails(&["mem", "restore", &empty, &broken], 1);
    let output = run(&["mem", "restore", &empty, &broken, "--size", "16M"]);
    let (status, said, warning) = text(&output);
    assert_eq!(
        status,
        Some(3),
        "there is a region, and nothing of what was in it"
    );
    assert!(said.contains("an empty region: "), "{said}");
    assert!(
        warning.starts_with(&format!("keel: {broken}: ")),
        "{warning}"
    );
    assert_eq!(ok_json(&["mem", "stat", &empty, "--json"])["files"], 0);
}

/// A running mount; ended and cleared also if the test fails.
struct Mount {
    child: Child,
    directory: PathBuf,
}

impl Mount {
    /// Starts a mount. Returns `None`, and prints the reason, if nothing can be mounted.
    fn start(dir: &TempDir, region: &str, options: &[&str]) -> Option<Self> {
        let directory = dir.file("here");
        std::fs::create_dir_all(&directory).unwrap();
        let mut child = keel()
            .args(["mem", "mount", region])
            .arg(&directory)
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        let output = child.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut ready).unwrap();
        if ready.contains(" is mounted on ") {
            return Some(Self { child, directory });
        }
        let output = child.wait_with_output().unwrap();
        let said = one_line(&output.stderr);
        assert!(
            said.contains("FUSE") || said.contains("mounting failed"),
            "{said}"
        );
        println!("skipped: {said}");
        None
    }

    fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        let mut said = String::new();
        let errors = self.child.stderr.as_mut().unwrap();
        errors.read_to_string(&mut said).unwrap();
        (status.code(), said)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        Command::new("umount")
            .arg("-lq")
            .arg(&self.directory)
            .status()
            .ok();
    }
}

#[test]
fn a_mount_ends_by_a_signal_or_by_unmounting_and_names_open_files() {
    let dir = TempDir::new();
    let region = region(&dir);
    let Some(mount) = Mount::start(&dir, &region, &[]) else {
        return;
    };
    let file = mount.directory.join("file");
    std::fs::write(&file, "x").unwrap();
    let open = std::fs::File::open(&file).unwrap();
    let line = fails(
        &[
            "mem",
            "mount",
            &region,
            &mount.directory.display().to_string(),
        ],
        1,
    );
    assert!(line.contains("is mounted there already; "), "{line}");
    signal(&mount.child, libc::SIGTERM);
    let (status, said) = mount.end();
    assert_eq!(status, Some(0));
    assert!(said.contains(": 1 open file lost the mount; "), "{said}");
    drop(open);
    // Its threads were idle when they ended, so the check reports no interrupted writer.
    let said = String::from_utf8(ok(&["mem", "check", &region])).unwrap();
    assert!(
        said.lines().count() == 1 && said.contains(": whole; "),
        "{said}"
    );
    assert_eq!(
        ok_json(&["mem", "check", &region, "--json"])["interrupted_writers"],
        0
    );
    let Some(mount) = Mount::start(&dir, &region, &["--read-only"]) else {
        return;
    };
    assert!(std::fs::write(mount.directory.join("file"), "y").is_err());
    assert_eq!(std::fs::read(mount.directory.join("file")).unwrap(), b"x");
    let unmounted = Command::new("umount")
        .arg(&mount.directory)
        .status()
        .unwrap();
    assert!(unmounted.success() || base_is_not_root());
    if unmounted.success() {
        assert_eq!(mount.end(), (Some(0), String::new()));
    }
}

/// A user other than root unmounts with another program.
fn base_is_not_root() -> bool {
    base::mount::effective_ids().0 != 0
}

#[test]
fn memory_of_a_killed_program_is_given_back_while_others_run() {
    let (Some(library), dir) = (library(), TempDir::new()) else {
        return;
    };
    let region = region(&dir);
    let mut child = running(
        &library,
        &region,
        &[
            "--",
            "sh",
            "-c",
            "sh -c 'exec 3>/keel/gone; rm /keel/gone; kill -9 $$'; echo ready; exec sleep 1000",
        ],
    )
    .stdout(Stdio::piped())
    .stderr(Stdio::null())
    .spawn()
    .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    wait_until("the sweep", || {
        ok_json(&["mem", "stat", &region, "--json"])["deleted_open_files"] == 0
    });
    signal(&child, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(128 + libc::SIGTERM));
}
