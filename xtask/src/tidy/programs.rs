//! Test programs: a file of tests that no program contains would never run, and no other check would report it.

use super::finding::{Finding, TextFile};

/// Checks that each file in `crates/*/tests` is a module of `it.rs`, or a program that the manifest names. A manifest
/// with automatic test programs is left alone.
pub(crate) fn check_all(files: &[TextFile]) -> Vec<Finding> {
    let text_of = |path: &str| {
        let file = files.iter().find(|file| file.path == path);
        file.map_or("", |file| file.text.as_str())
    };
    let mut findings = Vec::new();
    for file in files {
        let mut parts = file.path.split('/');
        let (Some("crates"), Some(room), Some("tests"), Some(name), None) = (
            parts.next(),
            parts.next(),
            parts.next(),
            parts.next(),
            parts.next(),
        ) else {
            continue;
        };
        let Some(name) = name.strip_suffix(".rs") else {
            continue;
        };
        let manifest = text_of(&format!("crates/{room}/Cargo.toml"));
        let has = |text: &str, wanted: &str| text.lines().any(|line| line.trim() == wanted);
        if has(manifest, "autotests = false")
            && !has(manifest, &format!("name = \"{name}\""))
            && !has(
                text_of(&format!("crates/{room}/tests/it.rs")),
                &format!("mod {name};"),
            )
        {
            findings.push(Finding::new(
                &file.path,
                0,
                "programs",
                "its tests never run: add it to it.rs beside it, or to the manifest as a [[test]]",
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(manifest: &str, program: &str, path: &str) -> usize {
        let file = |path: &str, text: &str| TextFile {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        check_all(&[
            file("crates/db/Cargo.toml", manifest),
            file("crates/db/tests/it.rs", program),
            file(path, ""),
        ])
        .len()
    }

    #[test]
    fn a_file_of_tests_that_no_program_contains_is_found() {
        let manifest = "autotests = false\n[[test]]\nname = \"it\"\n[[test]]\nname = \"alone\"\n";
        let program = "mod common;\nmod crash;\n";
        assert_eq!(found(manifest, program, "crates/db/tests/crash.rs"), 0);
        assert_eq!(found(manifest, program, "crates/db/tests/alone.rs"), 0);
        assert_eq!(found(manifest, program, "crates/db/tests/lost.rs"), 1);
        // A module shared by tests, and a manifest that relies on cargo's automatic programs.
        assert_eq!(found(manifest, program, "crates/db/tests/common/mod.rs"), 0);
        assert_eq!(found("", program, "crates/db/tests/lost.rs"), 0);
    }
}
