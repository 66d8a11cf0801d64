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

use std::ffi::OsString;
use std::path::{Path, PathBuf};
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
        ["tidy"] => in_workspace(run_tidy),
        ["pages", folder] => {
            in_workspace(|root| make(root, "pages", Path::new(folder), "man/keel.1"))
        }
        ["reference"] => in_workspace(make_reference),
        ["site", folder] => in_workspace(|root| make_site(root, Path::new(folder))),
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

/// Runs a command with the workspace's folder, which contains the manifest's folder, from any working directory.
fn in_workspace(run: impl FnOnce(&Path) -> ExitCode) -> ExitCode {
    match manifest_folder() {
        Ok(folder) => run(folder.parent().unwrap_or(Path::new("."))),
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the folder of this program's manifest, in the working copy from which cargo was started.
///
/// # Errors
/// A line with the remedy if something else started the program.
pub(crate) fn manifest_folder() -> Result<PathBuf, &'static str> {
    folder_of(std::env::var_os("CARGO_MANIFEST_DIR"))
}

/// The variable of the running program: a folder that is compiled in is another working copy's if both build into one
/// target folder.
fn folder_of(variable: Option<OsString>) -> Result<PathBuf, &'static str> {
    variable
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from)
        .ok_or("CARGO_MANIFEST_DIR is not set: run `cargo xtask`")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_the_one_that_cargo_names_now() {
        let named = folder_of(Some("/elsewhere/xtask".into()));
        assert_eq!(named, Ok(PathBuf::from("/elsewhere/xtask")));
        let own = manifest_folder().unwrap();
        assert!(own.join("src/tidy/mod.rs").is_file(), "{}", own.display());
    }

    #[test]
    fn without_the_folder_there_is_one_line_with_the_remedy() {
        for variable in [None, Some(OsString::new())] {
            let error = folder_of(variable).unwrap_err();
            assert!(error.contains("`cargo xtask`") && !error.contains('\n'));
        }
    }
}
