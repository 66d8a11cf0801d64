//! Sizes: code of a room, lines of a function, entries of the changelog, pages.

use std::collections::BTreeMap;

use super::finding::{Finding, TextFile};
use super::rust::{RustFile, indentation};

/// Largest number of lines of a function, from its name to its last brace.
const FUNCTION_LINES_MAX: usize = 60;

/// Largest number of lines of an entry in the changelog.
const ENTRY_LINES_MAX: usize = 2;

/// Pages that a reader takes in at once, and their largest number of lines.
const PAGES: &[(&str, usize)] = &[("README.md", 120), ("ARCHITECTURE.md", 200)];

const CHANGELOG: &str = "CHANGELOG.md";

/// Sections of a version in the changelog, in this order.
const SECTIONS: &[&str] = &["Added", "Changed", "Fixed", "Removed", "Security"];

/// Returns the lines of code of each room, without tests, blank lines and comments.
pub(crate) fn code_lines(files: &[RustFile<'_>]) -> BTreeMap<String, usize> {
    let mut rooms: BTreeMap<String, usize> = BTreeMap::new();
    for file in files.iter().filter(|file| !file.is_test) {
        let mut is_code: Vec<bool> = file
            .lines
            .iter()
            .map(|line| !line.trim().is_empty())
            .collect();
        for string in &file.masked.strings {
            for (index, line) in string.text.lines().enumerate() {
                is_code[string.line - 1 + index] |= !line.trim().is_empty();
            }
        }
        let lines = is_code.iter().zip(&file.test_lines);
        let count = lines
            .filter(|(is_code, is_test)| **is_code && !**is_test)
            .count();
        *rooms.entry(file.room().to_owned()).or_default() += count;
    }
    rooms
}

/// Finds long functions of the product.
pub(crate) fn check_functions(files: &[RustFile<'_>]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        for (at, token) in file.tokens.iter().enumerate() {
            let name = file.word(at + 1);
            // Without a name, it is the type of a pointer.
            if token.text != "fn" || name == "(" || file.is_test_line(token.line) {
                continue;
            }
            let lines = function_lines(&file.lines[token.line - 1..]);
            if lines > FUNCTION_LINES_MAX {
                let text = format!("`{name}` has {lines} lines, at most {FUNCTION_LINES_MAX}");
                findings.push(Finding::new(file.path, token.line, "function", text));
            }
        }
    }
    findings
}

/// Returns the number of lines of the function that the first line begins; 1 if it has no body. Formatted source closes
/// a body at the indentation of its function.
fn function_lines(lines: &[&str]) -> usize {
    let own = indentation(lines[0]);
    let is_end = |line: &str| {
        let line = line.trim();
        line.starts_with('}') || line.ends_with(';')
    };
    if lines[0].trim_end().ends_with(['}', ';']) {
        return 1;
    }
    let mut later = lines.iter().enumerate().skip(1);
    let end = later.find(|(_, line)| indentation(line) == own && is_end(line));
    end.map_or(1, |(index, _)| index + 1)
}

/// Finds long entries of the changelog, and sections out of order.
pub(crate) fn check_changelog(files: &[TextFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(file) = files.iter().find(|file| file.path == CHANGELOG) else {
        return findings;
    };
    let mut entry = (0, 0);
    let mut from = 0;
    for (index, line) in file.text.lines().enumerate() {
        let number = index + 1;
        if line.starts_with("- ") {
            entry = (number, 1);
        } else if line.starts_with("  ") {
            entry.1 += 1;
            if entry.1 == ENTRY_LINES_MAX + 1 {
                let text = format!("an entry has at most {ENTRY_LINES_MAX} lines");
                findings.push(Finding::new(CHANGELOG, entry.0, "changelog", text));
            }
        } else if line.starts_with("## ") {
            from = 0;
        } else if let Some(title) = line.strip_prefix("### ") {
            match SECTIONS[from..]
                .iter()
                .position(|section| *section == title)
            {
                Some(offset) => from += offset,
                None => {
                    let text = format!("`{title}`: the order is {}", SECTIONS.join(", "));
                    findings.push(Finding::new(CHANGELOG, number, "changelog", text));
                }
            }
        }
    }
    findings
}

/// Finds pages that are too long.
pub(crate) fn check_pages(files: &[TextFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, most) in PAGES {
        for file in files.iter().filter(|file| file.path == *path) {
            let lines = file.text.lines().count();
            if lines > *most {
                let text = format!("{lines} lines, at most {most}");
                findings.push(Finding::new(path, lines, "page-length", text));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::mask::mask;
    use super::*;

    fn page(path: &str, text: &str) -> TextFile {
        TextFile {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn code_of_a_room_is_counted_without_tests_and_comments() {
        let text = "//! A.\n\nconst A: &str = \"\n  one\n\n\"; // why\n#[cfg(test)]\nmod tests {}\nfn f() {}\n";
        let masked = mask(text);
        let files = [
            "crates/db/src/a.rs",
            "crates/db/tests/a.rs",
            "fuzz/src/a.rs",
        ];
        let files: Vec<_> = files
            .into_iter()
            .map(|path| RustFile::new(path, &masked))
            .collect();
        let rooms = [("db".to_owned(), 4), ("fuzz".to_owned(), 4)];
        assert_eq!(code_lines(&files), BTreeMap::from(rooms));
    }

    fn functions(text: &str) -> Vec<usize> {
        let masked = mask(text);
        let files = [RustFile::new("crates/db/src/a.rs", &masked)];
        let findings = check_functions(&files).into_iter();
        findings.map(|one| one.line).collect()
    }

    #[test]
    fn long_functions_are_found() {
        let body = |lines: usize| "        f();\n".repeat(lines);
        let method = |lines| {
            format!(
                "impl A {{\n    pub fn f(&self) {{\n{}    }}\n}}\n",
                body(lines)
            )
        };
        assert_eq!(functions(&method(FUNCTION_LINES_MAX - 1)), [2_usize]);
        assert!(functions(&method(FUNCTION_LINES_MAX - 2)).is_empty());
        let test = format!(
            "#[cfg(test)]\nfn f(\n) {{\n{}}}\n",
            body(FUNCTION_LINES_MAX)
        );
        assert!(functions(&test).is_empty());
        let long = body(FUNCTION_LINES_MAX);
        let bodiless =
            format!("trait T {{\n    fn f(\n        &self,\n    );\n    fn g() {{}}\n{long}}}\n");
        assert!(functions(&bodiless).is_empty());
    }

    #[test]
    fn changelog_entries_and_sections_are_checked() {
        let lines = |text: &str| -> Vec<usize> {
            let findings = check_changelog(&[page(CHANGELOG, text)]).into_iter();
            findings.map(|one| one.line).collect()
        };
        let entries = "- One\n  line\n- Two\n  and\n  three\n  lines\n\n";
        assert_eq!(lines(&format!("## 1\n\n### Added\n\n{entries}")), [7_usize]);
        let sections = "## 2\n### Added\n### Fixed\n### Changed\n### Other\n## 1\n### Changed\n";
        assert_eq!(lines(sections), [4_usize, 5]);
    }

    #[test]
    fn long_pages_are_found() {
        for (path, most) in PAGES {
            let found = |lines: usize| check_pages(&[page(path, &"\n".repeat(lines))]).len();
            assert_eq!((found(*most), found(*most + 1)), (0, 1), "{path}");
        }
        assert!(check_pages(&[page("docs/http.md", &"\n".repeat(999))]).is_empty());
    }
}
