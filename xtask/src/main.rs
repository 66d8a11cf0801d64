//! The workspace's own checks, run as `cargo xtask <command>`.
//!
//! **Holds:** `tidy`, which reads the sources as text and the crate graph as data and reports every place
//! that breaks a rule of the house.
//!
//! **Must not know:** how the rooms work; it sees names, edges and lines only.
//!
//! **Invariants:** one finding is one line, `path:line: rule: text`; any finding makes the exit status 1;
//! every rule has a test that shows it can fail.
//!
//! **Files:** `tidy/` the rules, one subject each.

mod tidy;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask tidy    checks the structure of the workspace; prints path:line: rule: text";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        ["tidy"] => run_tidy(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn run_tidy() -> ExitCode {
    // The manifest lies one folder below the workspace, wherever the command was typed.
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."));
    match tidy::check_workspace(root) {
        Ok(report) if report.findings.is_empty() => {
            println!(
                "tidy: {} crates, {} files, no findings",
                report.crates, report.files
            );
            ExitCode::SUCCESS
        }
        Ok(report) => {
            for finding in &report.findings {
                println!("{finding}");
            }
            println!(
                "tidy: {} findings in {} files",
                report.findings.len(),
                report.files
            );
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("tidy: {error}");
            ExitCode::FAILURE
        }
    }
}
