//! The project's rules, checked in one run over the workspace. Rules are pure functions from text to findings; only
//! this file accesses the disk and starts `cargo metadata`.

mod allow;
mod frames;
mod graph;
mod markdown;
mod mask;
mod programs;
pub(crate) mod site;
mod source;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Larger text files are data, not prose or code, and are not checked.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// One violation of a rule at one place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// Path relative to the workspace, with forward slashes.
    pub(crate) path: String,
    /// Line number from 1; 0 if the finding concerns the whole file.
    pub(crate) line: usize,
    /// Short name of the rule.
    pub(crate) rule: &'static str,
    /// The problem, and the remedy if it is not obvious.
    pub(crate) text: String,
}

impl Finding {
    fn new(path: &str, line: usize, rule: &'static str, text: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            rule,
            text: text.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{}:{}: {}: {}",
            self.path, self.line, self.rule, self.text
        )
    }
}

/// The result of a run.
pub(crate) struct Report {
    pub(crate) findings: Vec<Finding>,
    pub(crate) crates: usize,
    pub(crate) files: usize,
}

/// One text file of the workspace.
pub(crate) struct TextFile {
    /// Path relative to the workspace, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Runs every rule over the workspace at `root`.
///
/// # Errors
/// A message if the tree cannot be read or `cargo metadata` fails: then nothing has been checked.
pub(crate) fn check_workspace(root: &Path) -> Result<Report, String> {
    let files = read_tree(root)?;
    let workspace = graph::Workspace::parse(&cargo_metadata(root)?, root)?;
    let lock = files
        .iter()
        .find(|file| file.path == "Cargo.lock")
        .map_or("", |file| file.text.as_str());
    let list = files
        .iter()
        .find(|file| file.path == allow::LIST_PATH)
        .ok_or_else(|| format!("{} is missing", allow::LIST_PATH))?;
    let mut allowed = allow::AllowList::parse(&list.text);

    let mut findings = graph::check_edges(&workspace);
    findings.extend(graph::check_reserved(&workspace, lock));
    for file in files.iter().filter(|file| file.path != "Cargo.lock") {
        findings.extend(source::check_file(file, &mut allowed));
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
    findings.extend(frames::check_all(&files));
    findings.extend(programs::check_all(&files));
    findings.extend(site::check_all(root, &files));
    findings.sort();
    findings.dedup();
    Ok(Report {
        findings,
        crates: workspace.crates.len(),
        files: files.len(),
    })
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
    fn finding_prints_on_one_line() {
        let finding = Finding::new("crates/db/src/lib.rs", 7, "width", "too wide");
        assert_eq!(
            finding.to_string(),
            "crates/db/src/lib.rs:7: width: too wide"
        );
    }

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
