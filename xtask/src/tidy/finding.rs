//! What rules take and give: text files of the workspace, and findings.

use std::fmt;

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
    pub(crate) fn new(
        path: &str,
        line: usize,
        rule: &'static str,
        text: impl Into<String>,
    ) -> Self {
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

/// One text file of the workspace.
pub(crate) struct TextFile {
    /// Path relative to the workspace, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Returns the room of a path: the crate, another folder at the top, or a file at the top.
pub(crate) fn room_of(path: &str) -> &str {
    let mut parts = path.split('/');
    match (parts.next(), parts.next()) {
        (Some("crates"), Some(room)) => room,
        (first, _) => first.unwrap_or(path),
    }
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
    fn room_is_the_crate_or_the_top_folder() {
        for (path, room) in [
            ("crates/db/src/lib.rs", "db"),
            ("docs/http.md", "docs"),
            ("README.md", "README.md"),
        ] {
            assert_eq!(room_of(path), room);
        }
    }
}
