//! The project's rules, checked in one run over the workspace. Rules are pure functions from text to findings; only
//! this file accesses the disk and starts `cargo metadata`.

mod allow;
mod circles;
mod finding;
mod frames;
mod graph;
mod markdown;
mod mask;
mod names;
mod programs;
mod prose;
mod ratchet;
mod rust;
pub(crate) mod site;
mod sizes;
mod source;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) use finding::TextFile;

use allow::AllowList;
use finding::Finding;
use mask::{Masked, mask};
use ratchet::{Counts, Ratchet};
use rust::RustFile;

/// Larger text files are data, not prose or code, and are not checked.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The result of a run.
pub(crate) struct Report {
    pub(crate) findings: Vec<Finding>,
    pub(crate) crates: usize,
    pub(crate) files: usize,
}

/// Runs every rule over the workspace at `root`.
///
/// # Errors
/// A message if the tree cannot be read or `cargo metadata` fails: then nothing has been checked.
pub(crate) fn check_workspace(root: &Path) -> Result<Report, String> {
    let files = read_tree(root)?;
    let masked = mask_all(&files);
    let rust = rust::read_all(&masked);
    let workspace = graph::Workspace::parse(&cargo_metadata(root)?, root)?;
    let lock = text_of(&files, "Cargo.lock").unwrap_or_default();
    let exceptions = text_of(&files, allow::LIST_PATH);
    let exceptions = exceptions.ok_or_else(|| format!("{} is missing", allow::LIST_PATH))?;
    let mut allowed = AllowList::parse(exceptions);

    let mut findings = graph::check_edges(&workspace);
    findings.extend(graph::check_reserved(&workspace, lock));
    for file in files.iter().filter(|file| file.path != "Cargo.lock") {
        findings.extend(source::check_file(file));
    }
    for file in &rust {
        findings.extend(source::check_code(file, &mut allowed));
    }
    for library in &workspace.libraries {
        match files.iter().find(|file| &file.path == library) {
            Some(file) => findings.extend(source::check_opening(file)),
            None => findings.push(Finding::new(
                library,
                0,
                "opening",
                "library root is not readable as text",
            )),
        }
    }
    findings.extend(allowed.unused());
    findings.extend(markdown::check_all(root, &files));
    findings.extend(markdown::check_map(&workspace.names(), &files));
    findings.extend(markdown::check_readme(&files));
    findings.extend(markdown::check_glossary(&files));
    findings.extend(frames::check_all(&files));
    findings.extend(programs::check_all(&files));
    findings.extend(site::check_all(root, &files));
    findings.extend(sizes::check_pages(&files));
    findings.extend(limits(&files).check(&counts(&files, &rust)));
    findings.sort();
    findings.dedup();
    Ok(Report {
        findings,
        crates: workspace.crates.len(),
        files: files.len(),
    })
}

/// Returns the places that the limits of [`ratchet`] count.
///
/// # Errors
/// A message if the tree cannot be read.
pub(crate) fn counted_places(root: &Path) -> Result<Vec<Finding>, String> {
    let files = read_tree(root)?;
    let masked = mask_all(&files);
    let mut findings = countable(&files, &rust::read_all(&masked));
    findings.sort();
    Ok(findings)
}

/// Writes the limits of [`ratchet`] anew: lower where the counts are, and with `raise` also higher.
///
/// # Errors
/// A message if the tree cannot be read or the limits cannot be written.
pub(crate) fn write_limits(root: &Path, raise: bool) -> Result<(), String> {
    let files = read_tree(root)?;
    let masked = mask_all(&files);
    let counts = counts(&files, &rust::read_all(&masked));
    let list = limits(&files).rewritten(&counts, raise);
    let path = root.join(ratchet::LIST_PATH);
    fs::write(&path, list).map_err(|error| format!("{}: {error}", path.display()))
}

fn limits(files: &[TextFile]) -> Ratchet {
    Ratchet::parse(text_of(files, ratchet::LIST_PATH).unwrap_or_default())
}

fn counts(files: &[TextFile], rust: &[RustFile<'_>]) -> Counts {
    ratchet::count(countable(files, rust), sizes::code_lines(rust))
}

/// Finds what breaks a rule that the tree does not keep yet.
fn countable(files: &[TextFile], rust: &[RustFile<'_>]) -> Vec<Finding> {
    let mut findings = circles::check_all(rust);
    findings.extend(names::check_all(rust));
    findings.extend(prose::check_all(files, rust));
    findings.extend(sizes::check_functions(rust));
    findings.extend(sizes::check_changelog(files));
    findings
}

fn text_of<'a>(files: &'a [TextFile], path: &str) -> Option<&'a str> {
    let file = files.iter().find(|file| file.path == path);
    file.map(|file| file.text.as_str())
}

/// Takes every Rust file apart, once for all rules.
fn mask_all(files: &[TextFile]) -> Vec<(&TextFile, Masked)> {
    let rust = files.iter().filter(|file| file.path.ends_with(".rs"));
    rust.map(|file| (file, mask(&file.text))).collect()
}

fn cargo_metadata(root: &Path) -> Result<String, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--no-deps",
            "--format-version",
            "1",
            "--offline",
        ])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot start cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "cargo metadata failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    String::from_utf8(output.stdout)
        .map_err(|error| format!("cargo metadata is not UTF-8: {error}"))
}

/// Returns every UTF-8 file below `root` except build output and version-control data, ordered by path.
pub(crate) fn read_tree(root: &Path) -> Result<Vec<TextFile>, String> {
    let mut pending = vec![root.to_path_buf()];
    let mut paths: Vec<PathBuf> = Vec::new();
    while let Some(directory) = pending.pop() {
        let entries = fs::read_dir(&directory)
            .map_err(|error| format!("{}: {error}", directory.display()))?;
        for entry in entries {
            let entry = entry.map_err(|error| format!("{}: {error}", directory.display()))?;
            let kind = entry
                .file_type()
                .map_err(|error| format!("{}: {error}", entry.path().display()))?;
            let name = entry.file_name();
            // A folder, or in an additional working copy of the repository a file that names it.
            if name == ".git" {
                continue;
            }
            if kind.is_dir() && name != "target" {
                pending.push(entry.path());
            } else if kind.is_file() {
                paths.push(entry.path());
            }
        }
    }
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        let size = fs::metadata(&path)
            .map_err(|error| format!("{}: {error}", path.display()))?
            .len();
        if size > FILE_BYTES_MAX {
            continue;
        }
        // A file that vanishes or is not text is not a source.
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        let relative = path
            .strip_prefix(root)
            .unwrap_or(&path)
            .to_string_lossy()
            .replace('\\', "/");
        files.push(TextFile {
            path: relative,
            text,
        });
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_skips_build_output() {
        let root = crate::workspace().unwrap().join("xtask");
        let files = read_tree(&root).expect("own folder is readable");
        assert!(files.iter().any(|file| file.path == "src/tidy/mod.rs"));
        assert!(files.iter().all(|file| !file.path.starts_with("target/")));
    }

    #[test]
    fn tree_skips_version_control_whether_it_is_a_folder_or_a_file() {
        let root = std::env::temp_dir().join(format!("xtask-tree-{}", std::process::id()));
        fs::create_dir_all(root.join("folder/.git")).unwrap();
        for path in [".git", "folder/.git/HEAD", "folder/seen"] {
            fs::write(root.join(path), "text").unwrap();
        }
        let files = read_tree(&root);
        fs::remove_dir_all(&root).unwrap();
        let paths: Vec<String> = files.unwrap().into_iter().map(|file| file.path).collect();
        assert_eq!(paths, ["folder/seen"]);
    }
}
