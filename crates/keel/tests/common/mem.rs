//! Regions, and the preloaded library.

use super::{TempDir, keel, ok};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Creates an empty region of 32 MiB.
pub fn region(dir: &TempDir) -> String {
    let region = dir.file("region").display().to_string();
    ok(&["mem", "create", &region, "--size", "32M", "--files", "500"]);
    region
}

/// Returns the library of this build; `None` if it was not built.
pub fn library() -> Option<PathBuf> {
    let programs = Path::new(env!("CARGO_BIN_EXE_keel")).parent().unwrap();
    let found = [programs.to_owned(), programs.join("deps")]
        .iter()
        .map(|folder| folder.join("libkeelmem.so"))
        .find(|library| library.exists());
    if found.is_none() {
        println!("skipped: libkeelmem.so is not built");
    }
    found
}

/// Returns the command `keel mem run REGION` with the options and the program.
pub fn running(library: &Path, region: &str, arguments: &[&str]) -> Command {
    let mut command = keel();
    command
        .args(["mem", "run", region])
        .args(arguments)
        .env("KEEL_MEM_LIBRARY", library)
        .env_remove("KEEL_MEM_AT")
        .stdin(Stdio::null());
    command
}
