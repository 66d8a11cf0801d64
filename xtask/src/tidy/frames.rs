//! Frames of results pages, `<!-- begin NAME -->` to `<!-- end NAME -->`, that a script fills with figures: a page that
//! a document calls measured must have no empty frame. `Not measured.` is as empty; with a reason it is not.

use std::path::Path;

use super::finding::{Finding, TextFile};
use super::markdown::normalise;

/// What a page has in a frame for which there are no figures and no reason.
const NOT_MEASURED: &str = "Not measured.";

/// Finds empty frames of pages that are the target of a link with the word `measured`.
pub(crate) fn check_all(files: &[TextFile]) -> Vec<Finding> {
    let documents = || files.iter().filter(|file| file.path.ends_with(".md"));
    let mut findings = Vec::new();
    for from in documents() {
        for target in called_measured(from) {
            for page in documents().filter(|page| page.path == target) {
                for (line, name) in empty_frames(&page.text) {
                    let text = format!(
                        "frame `{name}` is empty, and {} calls this page measured",
                        from.path
                    );
                    findings.push(Finding::new(&page.path, line, "frame", text));
                }
            }
        }
    }
    findings
}

/// Returns paths of the documents that a link calls measured.
fn called_measured(from: &TextFile) -> Vec<String> {
    let base = Path::new(&from.path).parent().unwrap_or(Path::new(""));
    let mut targets = Vec::new();
    for (at, _) in from.text.match_indices("](") {
        let before = &from.text[..at];
        let words = &before[before.rfind('[').map_or(0, |open| open + 1)..];
        let target = from.text[at + 2..].split([')', '#', ' ']).next();
        if words.contains("measured") {
            let target = base.join(target.unwrap_or(""));
            targets.extend(normalise(&target.to_string_lossy()));
        }
    }
    targets
}

/// Returns the names of empty frames, each with its first line.
fn empty_frames(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut open = None;
    for (index, line) in text.lines().enumerate() {
        if let Some(name) = marked(line, "begin") {
            open = Some((index + 1, name));
        } else if let Some(name) = marked(line, "end") {
            found.extend(open.take().filter(|(_, begun)| *begun == name));
        } else if !["", NOT_MEASURED].contains(&line.trim()) {
            open = None;
        }
    }
    found
}

fn marked<'t>(line: &'t str, word: &str) -> Option<&'t str> {
    let inner = line.trim().strip_prefix("<!--")?.strip_suffix("-->")?;
    inner.trim().strip_prefix(word)?.strip_prefix(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(readme: &str, page: &str) -> Vec<(String, usize)> {
        let files =
            [("README.md", readme), ("docs/results/x.md", page)].map(|(path, text)| TextFile {
                path: path.to_owned(),
                text: text.to_owned(),
            });
        let findings = check_all(&files);
        findings
            .into_iter()
            .map(|one| (one.path, one.line))
            .collect()
    }

    #[test]
    fn an_empty_frame_of_a_page_that_is_called_measured_is_found() {
        let link = "It is quick ([measured](docs/results/x.md) on a board).\n";
        let empty = "# X\n\n<!-- begin goals -->\n\n<!-- end goals -->\n";
        assert_eq!(found(link, empty), [("docs/results/x.md".to_owned(), 3)]);
        let filled = empty.replace("goals -->\n\n", "goals -->\n| 1 |\n");
        assert_eq!(found(link, &filled), []);
        assert_eq!(found("[Not yet](docs/results/x.md)\n", empty), []);
        let two = "<!-- begin a -->\n1\n<!-- end a -->\n<!-- begin b -->\n<!-- end b -->\n";
        assert_eq!(found(link, two), [("docs/results/x.md".to_owned(), 4)]);
    }

    #[test]
    fn a_frame_that_says_not_measured_takes_a_reason() {
        let link = "[measured](docs/results/x.md)\n";
        let blank = "<!-- begin a -->\nNot measured.\n<!-- end a -->\n";
        assert_eq!(found(link, blank), [("docs/results/x.md".to_owned(), 1)]);
        let reason = blank.replace("measured.", "measured: it takes four processors.");
        assert_eq!(found(link, &reason), []);
    }
}
