//! The workspace's own checks, run as `cargo xtask <command>`.
//!
//! **Holds:** `tidy`, which reads the sources as text and the crate graph as data and reports every violation of the
//! project's rules; `pages`, which has the man pages and completions made for a package; `reference`, which has the
//! pages of docs/reference made from the code; `site`, the source of the documentation site; `sbom`, the software
//! bill of materials of a package.
//!
//! **Must not know:** how the crates work; it reads names, edges and lines only.
//!
//! **Invariants:** one finding is one line, `path:line: rule: text`; any finding makes the exit status 1;
//! every rule has a test that shows it can fail.
//!
//! **Files:** `tidy/` the rules, one subject each; `site.rs` the input of `mdbook` for the site; `sbom.rs` the bill.

mod sbom;
mod site;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "usage: cargo xtask tidy         checks the structure of the workspace; prints path:line: rule: text
       cargo xtask tidy --list  prints the places that xtask/ratchet.txt counts
       cargo xtask tidy --write-ratchet [--raise]
                                lowers limits in xtask/ratchet.txt to the counts; --raise raises others as well
       cargo xtask pages DIR    makes man pages and completions of keel in DIR
       cargo xtask reference    makes the pages of docs/reference anew from the code
       cargo xtask site DIR     makes in DIR what mdbook makes the documentation site of
       cargo xtask sbom TARGET CRATE...
                                prints the software bill of materials of these crates, built for this target";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        ["tidy"] => in_workspace(run_tidy),
        ["tidy", "--list"] => in_workspace(list_counted),
        ["tidy", "--write-ratchet"] => in_workspace(|root| write_limits(root, false)),
        ["tidy", "--write-ratchet", "--raise"] => in_workspace(|root| write_limits(root, true)),
        ["pages", folder] => {
            in_workspace(|root| make(root, "pages", Path::new(folder), "man/keel.1"))
        }
        ["reference"] => in_workspace(make_reference),
        ["site", folder] => in_workspace(|root| make_site(root, Path::new(folder))),
        ["sbom", target, crates @ ..] if !crates.is_empty() => {
            in_workspace(|root| print_bill(root, target, crates))
        }
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

/// Runs a command with the workspace's folder.
fn in_workspace(run: impl FnOnce(&Path) -> ExitCode) -> ExitCode {
    match workspace() {
        Ok(root) => run(&root),
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the folder of the workspace that the working directory is in. A folder that is compiled in would be another
/// working copy's if both build into one target folder. Variables of cargo are not there if the program is started by
/// itself.
///
/// # Errors
/// A line with the remedy if the working directory is in no workspace, or cannot be read.
pub(crate) fn workspace() -> Result<PathBuf, String> {
    let from = std::env::current_dir().map_err(|error| format!("working directory: {error}"))?;
    workspace_of(&from)
}

fn workspace_of(from: &Path) -> Result<PathBuf, String> {
    from.ancestors()
        .find(|folder| folder.join("xtask/Cargo.toml").is_file())
        .map(Path::to_path_buf)
        .ok_or_else(|| {
            let from = from.display();
            format!("{from}: not in a working copy of Evenkeel: change to one, and run `cargo xtask` there")
        })
}

/// Generates files with a test of the program, because the command line is defined within the program.
fn make(root: &Path, what: &str, folder: &Path, proof: &str) -> ExitCode {
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
        .current_dir(root)
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
fn make_reference(root: &Path) -> ExitCode {
    let folder = std::env::temp_dir().join(format!("keel-reference-{}", std::process::id()));
    let status = make(root, "reference", &folder, "commands.md");
    let pages = root.join("docs/reference");
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

fn make_site(root: &Path, folder: &Path) -> ExitCode {
    let made = tidy::read_tree(root).and_then(|files| site::make(root, &files, folder));
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

fn print_bill(root: &Path, target: &str, crates: &[&str]) -> ExitCode {
    match sbom::document(root, target, crates) {
        Ok(bill) => {
            println!("{bill}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("sbom: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_tidy(root: &Path) -> ExitCode {
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

fn list_counted(root: &Path) -> ExitCode {
    match tidy::counted_places(root) {
        Ok(places) => {
            for place in &places {
                println!("{place}");
            }
            println!("tidy: {} places are counted", places.len());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("tidy: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write_limits(root: &Path, raise: bool) -> ExitCode {
    match tidy::write_limits(root, raise) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidy: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_that_of_the_working_directory() {
        let root = workspace().unwrap();
        assert!(root.join("xtask/src/tidy/mod.rs").is_file());
        for inside in ["", "xtask", "crates/db/src"] {
            assert_eq!(workspace_of(&root.join(inside)).as_ref(), Ok(&root));
        }
        let error = workspace_of(Path::new("/")).unwrap_err();
        assert!(error.contains("`cargo xtask`") && !error.contains('\n'));
    }
}
