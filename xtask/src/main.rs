//! The workspace's own checks, run as `cargo xtask <command>`.
//!
//! **Holds:** `tidy`, which reads the sources as text and the crate graph as data and reports every violation of the
//! project's rules; `pages`, which has the man pages and completions made for a package; `reference`, which has the
//! pages of docs/reference made from the code; `site`, the source of the documentation site.
//!
//! **Must not know:** how the crates work; it reads names, edges and lines only.
//!
//! **Invariants:** one finding is one line, `path:line: rule: text`; any finding makes the exit status 1;
//! every rule has a test that shows it can fail.
//!
//! **Files:** `tidy/` the rules, one subject each; `site.rs` the input of `mdbook` for the site.

mod site;
mod tidy;

use std::path::Path;
use std::process::{Command, ExitCode};

const USAGE: &str = "usage: cargo xtask tidy         checks the structure of the workspace; prints path:line: rule: text
       cargo xtask pages DIR    makes man pages and completions of keel in DIR
       cargo xtask reference    makes the pages of docs/reference anew from the code
       cargo xtask site DIR     makes in DIR what mdbook makes the documentation site of";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        ["tidy"] => run_tidy(),
        ["pages", folder] => make("pages", Path::new(folder), "man/keel.1"),
        ["reference"] => make_reference(),
        ["site", folder] => make_site(Path::new(folder)),
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

/// Returns the workspace's folder, which contains the manifest's folder, from any working directory.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."))
}

/// Generates files with a test of the program, because the command line is defined within the program.
fn make(what: &str, folder: &Path, proof: &str) -> ExitCode {
    let made = std::fs::create_dir_all(folder).and_then(|()| std::fs::canonicalize(folder));
    let folder = match made {
        Ok(folder) => folder,
        Err(error) => {
            eprintln!("{what}: {}: {error}", folder.display());
            return ExitCode::FAILURE;
        }
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // With a selection by package, libraries would have other features than in the build of the tests, and be built
    // again.
    let arguments = [
        "test",
        "--locked",
        "--quiet",
        "--workspace",
        "--bin",
        "keel",
        "--",
    ];
    let test = format!("cli::{what}::are_made");
    let variable = format!("KEEL_{}_DIR", what.to_uppercase());
    let status = Command::new(cargo)
        .args(arguments)
        .args(["--exact", &test, "--nocapture"])
        .env(variable, &folder)
        .status();
    // cargo reports no failure if a test is not found.
    let is_there = folder.join(proof).is_file();
    match status {
        Ok(status) if status.success() && is_there => ExitCode::SUCCESS,
        Ok(status) => {
            eprintln!("{what}: not made ({status})");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{what}: cargo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Generates into a separate folder first: existing pages would prove nothing.
fn make_reference() -> ExitCode {
    let folder = std::env::temp_dir().join(format!("keel-reference-{}", std::process::id()));
    let status = make("reference", &folder, "commands.md");
    let pages = root().join("docs/reference");
    let copied = std::fs::create_dir_all(&pages)
        .and_then(|()| std::fs::read_dir(&folder))
        .and_then(|mut made| {
            made.try_for_each(|page| {
                let page = page?;
                std::fs::copy(page.path(), pages.join(page.file_name())).map(drop)
            })
        })
        .and_then(|()| std::fs::remove_dir_all(&folder));
    if let Err(error) = copied {
        eprintln!("reference: {}: {error}", pages.display());
        return ExitCode::FAILURE;
    }
    status
}

fn make_site(folder: &Path) -> ExitCode {
    let made = tidy::read_tree(root()).and_then(|files| site::make(root(), &files, folder));
    match made {
        Ok(made) => {
            println!("site: {} pages, {} other files", made.pages, made.others);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("site: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_tidy() -> ExitCode {
    match tidy::check_workspace(root()) {
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
