//! `keel bench` as a process. This file contains only one test: it executes files that it has just written. That fails
//! while a child process of another thread still has them open.

use crate::common::{TempDir, one_line};

#[test]
fn bench_is_another_program_and_its_absence_is_reported() {
    let dir = TempDir::new();
    let alone = dir.file("keel");
    std::fs::copy(env!("CARGO_BIN_EXE_keel"), &alone).unwrap();
    let bench = |path: &std::path::Path| {
        let mut command = std::process::Command::new(&alone);
        command
            .args(["bench", "flash", "--json", "out.json"])
            .env("PATH", path);
        command.output().unwrap()
    };
    let output = bench(std::path::Path::new("/nonexistent"));
    assert_eq!(output.status.code(), Some(1));
    assert!(one_line(&output.stderr).starts_with("keel: keel-bench: not found"));
    // The program is found in the folder of `keel`; arguments and exit status are passed through.
    let script = dir.file("keel-bench");
    let text = "#!/bin/sh\n\
        case $2 in --wrong) printf 'error: unexpected --wrong\\n\\nUsage: x\\n' >&2; exit 2;; esac\n\
        echo \"$@\"\nexit 3\n";
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let output = bench(std::path::Path::new("/usr/bin:/bin"));
    assert_eq!(
        (output.status.code(), &output.stdout[..]),
        (Some(3), &b"flash --json out.json\n"[..])
    ); // Wrong arguments are one line, as everywhere.
    for (arguments, wrong, command) in [
        (
            &["bench", "flash", "--wrong"][..],
            "unexpected --wrong",
            "bench",
        ),
        (&["bench"], "nothing to measure", "bench"),
        (
            &["qos", "experiment", "--wrong"],
            "unexpected --wrong",
            "qos experiment",
        ),
        (
            &["qos", "experiment"],
            "no experiment was named",
            "qos experiment",
        ),
    ] {
        let remedy = format!("see `keel {command} --help`");
        let mut program = std::process::Command::new(&alone);
        let output = program.args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let line = one_line(&output.stderr);
        assert!(line.starts_with("keel: command line: "), "{line}");
        assert!(line.contains(wrong), "{line}");
        assert!(line.ends_with(&remedy), "{line}");
    }
}
