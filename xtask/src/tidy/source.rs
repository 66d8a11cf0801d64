//! Rules about single files: size, width, stubs, access to clocks and files, words, and the four headings that open a
//! library.

use super::allow::AllowList;
use super::finding::{Finding, TextFile};
use super::rust::{RustFile, is_test_path};

/// Largest number of lines in a source file.
const LINES_MAX: usize = 800;

/// Largest number of columns in a line of source; characters, not bytes.
const COLUMNS_MAX: usize = 120;

/// Calls that bypass the interfaces of `base`, and what to use instead.
const SEAM_CALLS: &[(&str, &str)] = &[
    ("Instant::now", "take a base::clock::Clock"),
    ("SystemTime::now", "take a base::clock::Clock"),
    (
        "thread::sleep",
        "wait on a condition, or take a base::clock::Clock",
    ),
    ("File::open", "take a reader or a base::block::BlockDevice"),
];

/// Folders that may use [`SEAM_CALLS`]: the interfaces themselves, the node, the programs, and the benchmarks.
const SEAM_FOLDERS: &[&str] = &[
    "crates/base/",
    "crates/command/",
    "crates/demo/",
    "crates/node/",
    "crates/keel/",
    "crates/bench/",
];

/// Unfinished code, or a test that does not run.
const STUBS: &[&str] = &[
    "todo!",
    "unimplemented!",
    "dbg!",
    "#[ignore",
    ", ignore)]",
    ", ignore =",
];

/// Machine paths and workshop words that have no place in a product. In pieces, so that this file is clean.
const WORDS: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("sub", "agent"),
];

/// Words that the terms of docs/glossary.md have replaced, and the terms. In pieces, as above.
const TERMS: &[(&str, &str)] = &[
    (concat!("fore", "told"), "prefetched, or predicted"),
    (concat!("fore", "tell"), "predict, or prefetch"),
    // Including the space, since other words begin with the same letters.
    (concat!("sha", "ll "), "must, or may"),
];

/// Headings that open each library, in this order.
const OPENING: &[&str] = &["Holds", "Must not know", "Invariants", "Files"];

/// Checks every rule about the text of a single file.
pub(crate) fn check_file(file: &TextFile) -> Vec<Finding> {
    let mut findings = check_words(file);
    let ends_with = |endings: &[&str]| endings.iter().any(|ending| file.path.ends_with(ending));
    if ends_with(&[".rs", ".sh", ".py"]) {
        findings.extend(check_length(file));
    }
    if ends_with(&[".rs", ".sh"]) {
        findings.extend(check_width(file));
    }
    findings
}

/// Checks every rule about the code of a single file.
pub(crate) fn check_code(file: &RustFile<'_>, allowed: &mut AllowList) -> Vec<Finding> {
    let mut findings = check_stubs(file);
    findings.extend(check_seams(file, allowed));
    findings
}

/// Checks that the documentation at the top of a library has the headings in [`OPENING`].
pub(crate) fn check_opening(file: &TextFile) -> Vec<Finding> {
    let opening: Vec<&str> = file
        .text
        .lines()
        .map_while(|line| line.strip_prefix("//!"))
        .map(str::trim)
        .collect();
    let mut from = 0;
    let mut findings = Vec::new();
    for heading in OPENING {
        let titles = [format!("**{heading}"), format!("# {heading}")];
        let is_title = |line: &&str| titles.iter().any(|title| line.starts_with(title.as_str()));
        match opening[from..].iter().position(is_title) {
            Some(offset) => from += offset + 1,
            None => {
                let text =
                    format!("`{heading}` is missing or out of order in the opening documentation");
                findings.push(Finding::new(&file.path, 1, "opening", text));
            }
        }
    }
    findings
}

fn check_length(file: &TextFile) -> Option<Finding> {
    let lines = file.text.lines().count();
    let text = format!("{lines} lines, at most {LINES_MAX}: is it still one subject?");
    (lines > LINES_MAX).then(|| Finding::new(&file.path, lines, "length", text))
}

fn check_width(file: &TextFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let columns = line.chars().count();
        if columns > COLUMNS_MAX {
            let text = format!("{columns} columns, at most {COLUMNS_MAX}");
            findings.push(Finding::new(&file.path, index + 1, "width", text));
        }
    }
    findings
}

fn check_stubs(file: &RustFile<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in file.lines.iter().enumerate() {
        for stub in STUBS.iter().filter(|stub| has_word(line, stub)) {
            let text = format!(
                "`{}`: finish it or leave it out",
                stub.trim_start_matches(", ")
            );
            findings.push(Finding::new(file.path, index + 1, "stub", text));
        }
    }
    findings
}

fn check_seams(file: &RustFile<'_>, allowed: &mut AllowList) -> Vec<Finding> {
    let path = file.path;
    if SEAM_FOLDERS.iter().any(|folder| path.starts_with(folder)) || is_test_path(path) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let lines = file.lines.iter().zip(&file.test_lines).enumerate();
    for (index, (line, _)) in lines.filter(|(_, (_, is_test))| !**is_test) {
        for (call, instead) in SEAM_CALLS.iter().filter(|(call, _)| has_word(line, call)) {
            if !allowed.permits(path, call) {
                let text = format!("{call} outside the seams: {instead}");
                findings.push(Finding::new(path, index + 1, "time-and-files", text));
            }
        }
    }
    findings
}

fn check_words(file: &TextFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let lower = line.to_lowercase();
        for word in WORDS.iter().filter(|word| has_word(&lower, word)) {
            findings.push(Finding::new(
                &file.path,
                index + 1,
                "words",
                format!("`{word}` has no place here"),
            ));
        }
        // The texts of licences are not ours to write.
        let terms = if file.path.starts_with("LICENSE") {
            &[]
        } else {
            TERMS
        };
        for (word, term) in terms.iter().filter(|(word, _)| has_word(&lower, word)) {
            let text = format!("`{word}`: write {term} (docs/glossary.md)");
            findings.push(Finding::new(&file.path, index + 1, "term", text));
        }
    }
    findings
}

/// Returns whether `word` occurs in `line` other than as the tail of a longer name or path.
pub(super) fn has_word(line: &str, word: &str) -> bool {
    let tail_of_name = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '.' | '-');
    let starts_in_name = word.starts_with(|letter: char| letter.is_alphanumeric() || letter == '/');
    line.match_indices(word)
        .any(|(at, _)| !(starts_in_name && line[..at].ends_with(tail_of_name)))
}

#[cfg(test)]
mod tests {
    use super::super::mask::mask;
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<Finding> {
        findings_but(path, text, &mut AllowList::parse(""))
    }

    fn findings_but(path: &str, text: &str, allowed: &mut AllowList) -> Vec<Finding> {
        let file = TextFile {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let mut findings = check_file(&file);
        if path.ends_with(".rs") {
            let masked = mask(text);
            findings.extend(check_code(&RustFile::new(path, &masked), allowed));
        }
        findings
    }

    fn rules(path: &str, text: &str) -> Vec<&'static str> {
        findings(path, text)
            .into_iter()
            .map(|finding| finding.rule)
            .collect()
    }

    #[test]
    fn a_long_file_and_a_wide_line_are_found() {
        assert_eq!(
            rules("crates/db/src/a.rs", &"\n".repeat(LINES_MAX + 1)),
            ["length"]
        );
        assert_eq!(
            rules("scripts/a.sh", &"x".repeat(COLUMNS_MAX + 1)),
            ["width"]
        );
        assert!(
            rules(
                "crates/db/src/a.rs",
                &format!("//{}\n", "é".repeat(COLUMNS_MAX - 2))
            )
            .is_empty()
        );
    }

    #[test]
    fn a_clock_past_the_seam_is_found_with_its_line() {
        let found = findings(
            "crates/db/src/a.rs",
            "fn f() {\n    let t = std::time::Instant::now();\n}\n",
        );
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].rule, found[0].line), ("time-and-files", 2));
        for call in [
            "SystemTime::now()",
            "std::thread::sleep(d)",
            "std::fs::File::open(p)",
        ] {
            assert_eq!(
                rules("crates/flash/src/a.rs", &format!("let _ = {call};")),
                ["time-and-files"],
                "{call}"
            );
        }
    }

    #[test]
    fn seams_tests_and_exceptions_are_left_alone() {
        let text = "let t = Instant::now();";
        assert!(rules("crates/base/src/clock.rs", text).is_empty());
        assert!(rules("crates/db/tests/crash.rs", text).is_empty());
        let module = format!("#[cfg(test)]\nmod tests {{\n    {text}\n}}\n");
        assert!(rules("crates/db/src/a.rs", &module).is_empty());
        assert_eq!(
            rules("crates/db/src/a.rs", &format!("{module}{text}")),
            ["time-and-files"]
        );
        let mut allowed = AllowList::parse("crates/db/src/a.rs Instant::now measured there\n");
        assert!(findings_but("crates/db/src/a.rs", text, &mut allowed).is_empty());
        assert!(allowed.unused().is_empty());
    }

    #[test]
    fn stubs_and_switched_off_tests_are_found_but_not_in_prose() {
        for stub in [
            "todo!()",
            "unimplemented!()",
            "dbg!(x)",
            "#[ignore]",
            "#[ignore = \"slow\"]",
        ] {
            assert_eq!(rules("crates/db/tests/a.rs", stub), ["stub"], "{stub}");
        }
        assert_eq!(
            rules("a.rs", "#[cfg_attr(debug_assertions, ignore)]"),
            ["stub"]
        );
        assert!(
            rules(
                "crates/db/src/a.rs",
                "// todo!() is banned\nlet s = \"dbg!\";"
            )
            .is_empty()
        );
    }

    #[test]
    fn machine_paths_and_workshop_words_are_found() {
        for word in WORDS {
            assert_eq!(
                rules("README.md", &format!("see `{word}x`")),
                ["words"],
                "{word}"
            );
        }
        assert!(rules("README.md", &format!("src/net{}", &WORDS[0][1..])).is_empty());
        assert!(rules("README.md", &format!("a{}", WORDS[0])).is_empty());
    }

    #[test]
    fn words_that_a_term_has_replaced_are_found() {
        for (word, _) in TERMS {
            assert_eq!(
                rules("README.md", &format!("what is {word} here")),
                ["term"]
            );
        }
        // Part of a name that stays for one release.
        assert!(rules("README.md", &format!("`tasks_{}`", TERMS[0].0)).is_empty());
    }

    #[test]
    fn a_library_without_its_opening_is_found() {
        let opening = |text: &str| {
            check_opening(&TextFile {
                path: "crates/x/src/lib.rs".into(),
                text: text.into(),
            })
            .len()
        };
        let full = "//! X.\n//!\n//! **Holds:** a\n//! **Must not know:** b\n//! **Invariants:** c\n//! **Files:** d\n";
        assert_eq!(opening(full), 0);
        assert_eq!(opening("//! Only a title.\n"), 4);
        assert_eq!(opening(&full.replace("//! **Invariants:** c\n", "")), 1);
        assert_eq!(opening(&format!("mod a;\n{full}")), 4);
    }
}
