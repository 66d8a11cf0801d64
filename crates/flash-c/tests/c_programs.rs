//! Compiles programs in C against the header and the library, as a user does, and runs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// Warnings that strict projects enable for their own code, and so for headers that it includes.
const FLAGS: &[&str] = &[
    "-Wall",
    "-Wextra",
    "-Werror",
    "-pedantic",
    "-std=c11",
    "-D_POSIX_C_SOURCE=200809L",
];

const SANITIZERS: &[&str] = &[
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-g",
];

/// A directory that is removed with everything in it.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("keelflash-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Returns the folder with the library of this build: beside the test.
fn library_folder() -> PathBuf {
    let folder = std::env::current_exe()
        .unwrap()
        .parent()
        .unwrap()
        .to_path_buf();
    for name in ["libkeelflash.so", "libkeelflash.a"] {
        assert!(
            folder.join(name).exists(),
            "{name} is not in {}",
            folder.display()
        );
    }
    folder
}

#[derive(Clone, Copy, PartialEq)]
enum Library {
    Shared,
    Static,
}

/// Compiles a program of this crate and returns its path.
fn compile(source: &str, library: Library, more: &[&str], dir: &TempDir) -> Output {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = library_folder();
    let mut command = Command::new("cc");
    command.args(FLAGS).args(more);
    command.arg("-I").arg(here.join("include"));
    command
        .arg(here.join(source))
        .arg("-o")
        .arg(dir.0.join("program"));
    match library {
        Library::Shared => {
            command
                .arg("-L")
                .arg(&folder)
                .arg("-lkeelflash")
                .arg("-lpthread");
            command.arg(format!("-Wl,-rpath,{}", folder.display()));
        }
        Library::Static => {
            command.arg(folder.join("libkeelflash.a"));
            command.args(["-lgcc_s", "-lpthread", "-ldl", "-lm"]);
        }
    }
    command.output().unwrap()
}

fn compiled(source: &str, library: Library, more: &[&str], dir: &TempDir) {
    let output = compile(source, library, more, dir);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn run(dir: &TempDir, arguments: &[&str]) -> Output {
    Command::new(dir.0.join("program"))
        .args(arguments)
        .output()
        .unwrap()
}

fn succeeds(dir: &TempDir, arguments: &[&str]) -> String {
    let output = run(dir, arguments);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{:?}: {stderr}", output.status);
    assert!(stderr.is_empty(), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns whether a program with the sanitizers can be built and run on this machine.
fn has_sanitizers() -> bool {
    let dir = TempDir::new();
    let source = dir.0.join("empty.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let program = dir.0.join("program");
    let built = Command::new("cc")
        .args(SANITIZERS)
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .output();
    let works = built.is_ok_and(|built| built.status.success())
        && Command::new(&program)
            .output()
            .is_ok_and(|run| run.status.success());
    if !works {
        println!("skipped: this compiler has no sanitizers");
    }
    works
}

fn log_readings(library: Library, more: &[&str]) {
    let dir = TempDir::new();
    compiled("examples/log_readings.c", library, more, &dir);
    let image = dir.0.join("store.img").display().to_string();
    let text = succeeds(&dir, &[&image, "300"]);
    assert!(
        text.contains("readings: 4800 bytes in 2 blocks\n300 readings more"),
        "{text}"
    );
    // A second run continues where the first one ended.
    let text = succeeds(&dir, &[&image]);
    assert!(
        text.contains("readings: 6400 bytes in 2 blocks\n100 readings more"),
        "{text}"
    );
    let output = run(&dir, &["/nonexistent/store.img"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("/nonexistent/store.img: ") && text.contains("o such file"),
        "{text}"
    );
    assert_eq!(run(&dir, &[&image, "many"]).status.code(), Some(2));
}

#[test]
fn the_example_runs_with_the_shared_library() {
    log_readings(Library::Shared, &[]);
}

#[test]
fn the_example_runs_with_the_static_library() {
    log_readings(Library::Static, &["-O2"]);
}

#[test]
fn the_example_runs_under_the_sanitizers() {
    if has_sanitizers() {
        log_readings(Library::Shared, SANITIZERS);
    }
}

/// Runs a program that checks the results itself.
fn judge(source: &str, library: Library, more: &[&str]) {
    let dir = TempDir::new();
    compiled(source, library, more, &dir);
    let image = dir.0.join("store.img").display().to_string();
    assert_eq!(succeeds(&dir, &[&image]), "all answers are right\n");
}

#[test]
fn misuse_is_answered_with_a_code() {
    judge("tests/misuse.c", Library::Static, &[]);
}

#[test]
fn misuse_does_no_harm_under_the_sanitizers() {
    if has_sanitizers() {
        judge("tests/misuse.c", Library::Shared, SANITIZERS);
    }
}

#[test]
fn stores_are_checked_mended_and_enlarged_and_children_are_kept_away() {
    judge("tests/upkeep.c", Library::Static, &[]);
}

#[test]
fn upkeep_does_no_harm_under_the_sanitizers() {
    if has_sanitizers() {
        judge("tests/upkeep.c", Library::Shared, SANITIZERS);
    }
}
