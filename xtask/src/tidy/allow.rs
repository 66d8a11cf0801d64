//! Exceptions to the rule about clocks, files and sleeping, each with its reason. An unused exception is itself a
//! finding.

use super::finding::Finding;

/// Path of the list, one exception per line: `path  call  reason`.
pub(crate) const LIST_PATH: &str = "xtask/allow.txt";

/// Parsed exceptions and whether each was needed.
pub(crate) struct AllowList {
    entries: Vec<Entry>,
    malformed: Vec<Finding>,
}

struct Entry {
    line: usize,
    path: String,
    call: String,
    used: bool,
}

impl AllowList {
    /// Parses `path call reason…` lines; empty lines and lines that start with `#` are skipped.
    pub(crate) fn parse(list: &str) -> Self {
        let mut entries = Vec::new();
        let mut malformed = Vec::new();
        for (index, line) in list.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = line.split_whitespace();
            let (path, call, reason) = (words.next(), words.next(), words.next());
            match (path, call, reason) {
                (Some(path), Some(call), Some(_)) => {
                    let (path, call) = (path.to_owned(), call.to_owned());
                    entries.push(Entry {
                        line: index + 1,
                        path,
                        call,
                        used: false,
                    });
                }
                _ => malformed.push(Finding::new(
                    LIST_PATH,
                    index + 1,
                    "allow",
                    "an exception is `path call reason`",
                )),
            }
        }
        Self { entries, malformed }
    }

    /// Returns whether `call` is excepted in the file at `path`; remembers that the exception was needed.
    pub(crate) fn permits(&mut self, path: &str, call: &str) -> bool {
        let mut permitted = false;
        for entry in &mut self.entries {
            if entry.path == path && entry.call == call {
                entry.used = true;
                permitted = true;
            }
        }
        permitted
    }

    /// Returns findings about the list itself: lines without a reason, unused exceptions.
    pub(crate) fn unused(&self) -> Vec<Finding> {
        let stale = self
            .entries
            .iter()
            .filter(|entry| !entry.used)
            .map(|entry| {
                Finding::new(
                    LIST_PATH,
                    entry.line,
                    "allow",
                    format!(
                        "{} in {} is not used: remove the line",
                        entry.call, entry.path
                    ),
                )
            });
        self.malformed.iter().cloned().chain(stale).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exception_without_reason_is_found() {
        let list = AllowList::parse("crates/db/src/a.rs Instant::now\n");
        assert_eq!(list.unused()[0].rule, "allow");
    }

    #[test]
    fn stale_exception_is_found_and_used_one_is_not() {
        let mut list = AllowList::parse(
            "# comment\na.rs File::open reads the trace\nb.rs File::open no more\n",
        );
        assert!(list.permits("a.rs", "File::open"));
        assert!(!list.permits("a.rs", "thread::sleep"));
        let findings = list.unused();
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].line, 3);
    }
}
