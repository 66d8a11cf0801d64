//! Checks that a random sequence of calls on files has the same results in the region as in a plain directory. The
//! results are return values, errno, bytes and attributes.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{AT, Both, is_installed, text_of};

const SEEDS: std::ops::Range<u32> = 1..25;
const CALLS: u32 = 1200;
const CAPACITY_BYTES: u64 = 64 << 20;

/// A compiled program of this folder, which is removed at the end.
struct Program(PathBuf);

impl Program {
    fn compile(both: &Both, name: &str) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/c")
            .join(name);
        let program = Self(both.plain.with_extension(name.replace('.', "-")));
        let done = Command::new("cc")
            .args([
                "-O1",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-Wno-unused-result",
                "-pthread",
                "-o",
            ])
            .arg(&program.0)
            .arg(source)
            .status()
            .expect("the compiler runs");
        assert!(done.success(), "{name} compiles");
        program
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

/// Runs the random calls of some seeds in both.
fn draw_calls(both: &Both, seeds: std::ops::Range<u32>) {
    let program = Program::compile(both, "calls.c");
    for seed in seeds {
        let here = both.plain.join(seed.to_string());
        std::fs::create_dir(&here).expect("a directory");
        let there = format!("{AT}/{seed}");
        let made = both.served("mkdir").arg(&there).status().expect("runs");
        assert!(made.success());
        let arguments = [seed.to_string(), CALLS.to_string()];
        let here = here.display().to_string();
        let served = run(both.served(&program.0), &arguments, &there);
        let plain = run(Command::new(&program.0), &arguments, &here);
        same(&format!("seed {seed}"), &served, &plain);
    }
}

fn run(mut command: Command, arguments: &[String], folder: &str) -> String {
    let output = command
        .args(arguments)
        .arg(folder)
        .env("LC_ALL", "C")
        .output()
        .expect("the program runs");
    text_of(&output, folder)
}

/// Compares the program's output in both, and reports the first line that differs.
fn same(what: &str, served: &str, plain: &str) {
    let first = served
        .lines()
        .zip(plain.lines())
        .enumerate()
        .find(|(_, (served, plain))| served != plain);
    assert!(
        first.is_none() && served.len() == plain.len(),
        "{what}: line, served, plain: {first:?}; the last lines: {:?}, {:?}",
        served.lines().last(),
        plain.lines().last()
    );
    assert!(plain.ends_with("exit status: 0"), "{what}: {plain}");
}

/// Runs groups of related calls in both.
fn together(both: &Both) {
    in_both(both, "others.c");
}

fn in_both(both: &Both, name: &str) {
    let program = Program::compile(both, name);
    let here = both.plain.display().to_string();
    let served = run(both.served(&program.0), &[], AT);
    let plain = run(Command::new(&program.0), &[], &here);
    same(name, &served, &plain);
}

#[test]
fn drawn_calls_answer_as_the_kernel_does() {
    if is_installed("cc") {
        draw_calls(&Both::new(CAPACITY_BYTES), SEEDS);
    }
}

#[test]
fn calls_that_belong_together_answer_as_the_kernel_does() {
    if is_installed("cc") {
        together(&Both::new(CAPACITY_BYTES));
    }
}

#[test]
fn standard_streams_go_where_their_descriptors_go() {
    if !is_installed("cc") {
        return;
    }
    let both = Both::new(CAPACITY_BYTES);
    in_both(&both, "standard.c");
    // An old address of stdout that the program has kept is invalid, and its use returns an error.
    let program = Program::compile(&both, "standard.c");
    let output = both.served(&program.0).args([AT, "kept"]).output();
    let said = text_of(&output.expect("runs"), AT);
    let wanted = "== kept\nended 0 0\na: 0 |\nb: 9 followed\n|\n\n-- errors\n-1 9\n";
    assert!(said.starts_with(wanted), "{said}");
}

#[test]
fn a_crowd_of_threads_leaves_room_for_others() {
    if is_installed("cc") {
        in_both(&Both::new(CAPACITY_BYTES), "crowd.c");
    }
}

#[test]
fn a_file_read_again_shows_its_current_bytes() {
    if is_installed("cc") {
        in_both(&Both::new(CAPACITY_BYTES), "again.c");
    }
}

#[test]
fn cancelled_threads_end_and_hold_nothing() {
    if is_installed("cc") {
        in_both(&Both::new(CAPACITY_BYTES), "cancel.c");
    }
}

#[test]
fn children_started_with_closed_descriptors_run_alike() {
    if is_installed("cc") {
        in_both(&Both::new(CAPACITY_BYTES), "children.c");
    }
}

#[test]
fn on_huge_pages_as_well() {
    if !is_installed("cc") {
        return;
    }
    if let Some(both) = Both::on_huge_pages(CAPACITY_BYTES) {
        draw_calls(&both, 30..34);
        together(&both);
    }
}
