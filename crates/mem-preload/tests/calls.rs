//! A sequence of calls on files, drawn from a seed, answers the same in the region as in a plain directory: results,
//! errno, bytes, attributes.

mod support;

use std::path::Path;
use std::process::Command;

use support::{AT, Both, is_installed, text_of};

const SEEDS: std::ops::Range<u32> = 1..25;
const CALLS: u32 = 1200;

/// Compiles a program of this folder.
fn compile(both: &Both, name: &str) -> std::path::PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/c")
        .join(name);
    let program = both.plain.with_extension(name);
    let done = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .arg(source)
        .status()
        .expect("the compiler runs");
    assert!(done.success(), "{name} compiles");
    program
}

#[test]
fn drawn_calls_answer_as_the_kernel_does() {
    if !is_installed("cc") {
        return;
    }
    let both = Both::new(64 << 20);
    let program = compile(&both, "calls.c");
    for seed in SEEDS {
        let here = both.plain.join(seed.to_string());
        std::fs::create_dir(&here).expect("a directory");
        let there = format!("{AT}/{seed}");
        let made = both.served("mkdir").arg(&there).status().expect("runs");
        assert!(made.success());
        let run = |mut command: Command, folder: &str| {
            let output = command
                .args([&seed.to_string(), &CALLS.to_string(), folder])
                .output()
                .expect("the program runs");
            assert!(output.status.success(), "seed {seed}: {}", output.status);
            text_of(&output, folder)
        };
        let here = here.display().to_string();
        let served = run(both.served(&program), &there);
        let plain = run(Command::new(&program), &here);
        let first = served
            .lines()
            .zip(plain.lines())
            .enumerate()
            .find(|(_, (served, plain))| served != plain);
        assert!(
            first.is_none() && served.len() == plain.len(),
            "seed {seed}: line, served, plain: {first:?}"
        );
    }
    std::fs::remove_file(program).ok();
}
