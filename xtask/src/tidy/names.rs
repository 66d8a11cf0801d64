//! Names of files, types and tests: none that a term of docs/glossary.md has replaced, and tests named by a subject.

use super::finding::Finding;
use super::rust::RustFile;

/// Names of files and types that are no terms: docs/glossary.md has a noun for what each of these stood for.
const REPLACED: &[&str] = &[
    "beside",
    "coming",
    "held",
    "keeper",
    "lasting",
    "left",
    "looked",
    "shelf",
    "stage",
    "trouble",
    "unfinished",
    "wanted",
    "withheld",
];

/// First words of tests that name no subject.
const NO_SUBJECTS: &[&str] = &[
    "everything",
    "it",
    "nobody",
    "none",
    "nothing",
    "other",
    "others",
    "so",
    "that",
    "there",
    "they",
    "those",
    "what",
    "whatever",
    "when",
    "where",
    "whether",
    "which",
    "who",
    "whoever",
];

/// Finds names of files and types, and names of tests.
pub(crate) fn check_all(files: &[RustFile<'_>]) -> Vec<Finding> {
    files.iter().flat_map(check_file).collect()
}

fn check_file(file: &RustFile<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let stem = file.path.rsplit('/').next().unwrap_or(file.path);
    let stem = stem.trim_end_matches(".rs");
    let mut check_name = |name: &str, line: usize| {
        if REPLACED.contains(&name.to_lowercase().as_str()) {
            let text = format!("`{name}`: name it by what it is (docs/glossary.md)");
            findings.push(Finding::new(file.path, line, "name", text));
        }
    };
    check_name(stem, 0);
    for (at, token) in file.tokens.iter().enumerate() {
        if matches!(token.text, "struct" | "enum" | "union" | "trait" | "type") {
            check_name(file.word(at + 1), token.line);
        }
    }
    for (name, line) in test_names(file) {
        let first = name.split('_').next().unwrap_or(name);
        if NO_SUBJECTS.contains(&first) {
            let text = format!("`{name}` begins with `{first}`: name the subject");
            findings.push(Finding::new(file.path, line, "test-name", text));
        }
    }
    findings
}

/// Returns names and lines of functions with an attribute `test`, of any crate.
fn test_names<'a>(file: &RustFile<'a>) -> Vec<(&'a str, usize)> {
    let mut found = Vec::new();
    let mut is_test = false;
    for (at, token) in file.tokens.iter().enumerate() {
        match token.text {
            "test" if matches!(file.word(at + 1), "]" | "(") => {
                let mut first = at;
                while first > 2 && file.word(first - 1) == "::" {
                    first -= 2;
                }
                is_test |= first > 1 && file.word(first - 1) == "[" && file.word(first - 2) == "#";
            }
            "fn" if is_test => {
                found.push((file.word(at + 1), token.line));
                is_test = false;
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::mask::mask;
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(&'static str, usize)> {
        let masked = mask(text);
        let file = RustFile::new(path, &masked);
        let findings = check_all(&[file]).into_iter();
        findings.map(|one| (one.rule, one.line)).collect()
    }

    #[test]
    fn replaced_names_of_files_and_types_are_found() {
        for name in REPLACED {
            let path = format!("crates/db/src/{name}.rs");
            assert_eq!(found(&path, ""), [("name", 0)], "{name}");
        }
        let types = "//! Held.\npub struct Held;\nenum Stage {}\nfn held(wanted: Leases) {}\n";
        assert_eq!(found("a.rs", types), [("name", 2), ("name", 3)]);
        assert_eq!(found("crates/db/src/left_join.rs", "struct Holder;\n"), []);
    }

    #[test]
    fn names_of_tests_without_a_subject_are_found() {
        for word in NO_SUBJECTS {
            let text = format!("#[test]\nfn {word}_is_kept() {{}}\n");
            assert_eq!(found("a.rs", &text), [("test-name", 2)], "{word}");
        }
        let other = "#[tokio::test(start_paused = true)]\n#[cfg(unix)]\nasync fn it_ends() {}\n";
        assert_eq!(found("a.rs", other), [("test-name", 3)]);
        for sound in [
            "#[test]\nfn append_is_durable() {}\nfn it_helps() {}\n",
            "#[cfg(test)]\nfn so() {}\n",
            "fn f() {\n    [test]\n}\nfn it() {}\n",
        ] {
            assert_eq!(found("a.rs", sound), [], "{sound}");
        }
    }
}
