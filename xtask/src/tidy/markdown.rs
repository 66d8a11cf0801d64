//! Rules about documents: links resolve, the map names every crate, the README starts with its two commands, files of
//! the glossary exist.

use std::path::Path;

use super::finding::{Finding, TextFile};

/// The README's first two code blocks, which do everything on a fresh machine.
const FIRST_BLOCKS: [&str; 2] = ["make demo", "make test"];

const GLOSSARY: &str = "docs/glossary.md";

/// Finds relative links of every document whose target, or whose heading in the target, does not exist.
pub(crate) fn check_all(root: &Path, files: &[TextFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        for (line, target) in links(&file.text) {
            if let Some(text) = check_link(root, files, file, &target) {
                findings.push(Finding::new(&file.path, line, "link", text));
            }
        }
    }
    findings
}

/// Finds crates that the map does not name as `` `name` ``.
pub(crate) fn check_map(crates: &[String], files: &[TextFile]) -> Vec<Finding> {
    let Some(map) = files.iter().find(|file| file.path == "ARCHITECTURE.md") else {
        return vec![Finding::new("ARCHITECTURE.md", 0, "map", "is missing")];
    };
    let absent = crates
        .iter()
        .filter(|name| !map.text.contains(&format!("`{name}`")));
    absent
        .map(|name| {
            Finding::new(
                &map.path,
                0,
                "map",
                format!("crate `{name}` is not on the map"),
            )
        })
        .collect()
}

/// Checks that the README's first two code blocks are the two commands and nothing else.
pub(crate) fn check_readme(files: &[TextFile]) -> Vec<Finding> {
    let Some(readme) = files.iter().find(|file| file.path == "README.md") else {
        return vec![Finding::new("README.md", 0, "readme", "is missing")];
    };
    let blocks = code_blocks(&readme.text);
    let mut findings = Vec::new();
    for (index, command) in FIRST_BLOCKS.iter().enumerate() {
        let block = blocks.get(index);
        if block.is_none_or(|block| block.body.trim() != *command) {
            let line = block.map_or(0, |block| block.line);
            let text = format!("code block {} must be `{command}` alone", index + 1);
            findings.push(Finding::new(&readme.path, line, "readme", text));
        }
    }
    findings
}

/// Finds files in the tables of the glossary that do not exist: `db/table.rs` is `crates/db/src/table.rs`.
pub(crate) fn check_glossary(files: &[TextFile]) -> Vec<Finding> {
    let Some(glossary) = files.iter().find(|file| file.path == GLOSSARY) else {
        return vec![Finding::new(GLOSSARY, 0, "glossary", "is missing")];
    };
    let mut findings = Vec::new();
    let rows = prose_lines(&glossary.text).into_iter();
    for (line, row) in rows.filter(|(_, row)| row.starts_with('|')) {
        let spans = row.split('`').skip(1).step_by(2);
        for span in spans.filter(|span| span.ends_with(".rs")) {
            let (room, name) = span.split_once('/').unwrap_or(("", span));
            let path = format!("crates/{room}/src/{name}");
            if !files.iter().any(|file| file.path == path) {
                let text = format!("`{path}` does not exist");
                findings.push(Finding::new(GLOSSARY, line, "glossary", text));
            }
        }
    }
    findings
}

fn check_link(root: &Path, files: &[TextFile], from: &TextFile, target: &str) -> Option<String> {
    let is_external = target.contains("://") || target.starts_with("mailto:");
    if is_external {
        return None;
    }
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let base = Path::new(&from.path).parent().unwrap_or(Path::new(""));
    let resolved = if path.is_empty() {
        from.path.clone()
    } else {
        normalise(&base.join(path).to_string_lossy())?
    };
    if !files.iter().any(|file| file.path == resolved) && !root.join(&resolved).exists() {
        return Some(format!("`{target}` does not exist"));
    }
    if heading.is_empty() || !resolved.ends_with(".md") {
        return None;
    }
    let document = files.iter().find(|file| file.path == resolved)?;
    let found = headings(&document.text)
        .iter()
        .any(|anchor| anchor == heading);
    (!found).then(|| format!("`{target}`: no such heading in {resolved}"))
}

/// Returns `a/../b` as `b`; `None` if the path leaves the workspace, which is forbidden for links.
pub(super) fn normalise(path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Returns targets of `[text](target)` and `[name]: target`, outside code, with their line.
pub(super) fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in prose_lines(text) {
        let line = without_code_spans(line);
        if line.starts_with('[')
            && let Some((_, target)) = line.split_once("]: ")
        {
            found.push((
                index,
                target.split_whitespace().next().unwrap_or("").to_owned(),
            ));
            continue;
        }
        for (at, _) in line.match_indices("](") {
            let rest = &line[at + 2..];
            let end = rest.find(')').unwrap_or(rest.len());
            let target = rest[..end].split_whitespace().next().unwrap_or("");
            found.push((index, target.trim_matches(['<', '>']).to_owned()));
        }
    }
    found
}

/// Returns anchors as the usual renderers derive them from headings.
fn headings(text: &str) -> Vec<String> {
    let titles = prose_lines(text)
        .into_iter()
        .filter(|(_, line)| line.starts_with('#'));
    titles
        .map(|(_, line)| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title
                .chars()
                .filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
            kept.map(|letter| if letter == ' ' { '-' } else { letter })
                .collect()
        })
        .collect()
}

/// Returns lines outside fenced code, numbered from 1.
pub(super) fn prose_lines(text: &str) -> Vec<(usize, &str)> {
    let mut in_code = false;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            lines.push((index + 1, line));
        }
    }
    lines
}

fn without_code_spans(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

struct CodeBlock {
    line: usize,
    body: String,
}

fn code_blocks(text: &str) -> Vec<CodeBlock> {
    let mut blocks = Vec::new();
    let mut open: Option<CodeBlock> = None;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            match open.take() {
                Some(block) => blocks.push(block),
                None => {
                    open = Some(CodeBlock {
                        line: index + 1,
                        body: String::new(),
                    })
                }
            }
        } else if let Some(block) = &mut open {
            block.body.push_str(line);
            block.body.push('\n');
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(path: &str, text: &str) -> TextFile {
        TextFile {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    fn link_findings(text: &str) -> Vec<Finding> {
        let files = [
            document("src/README.md", text),
            document("src/other.md", "# A first, `code` title\n"),
        ];
        check_all(&crate::workspace().unwrap().join("xtask"), &files)
    }

    #[test]
    fn a_broken_link_is_found_with_its_line() {
        let found = link_findings("fine\n\nsee [x](absent.md)\n");
        assert_eq!((found.len(), found[0].line, found[0].rule), (1, 3, "link"));
        assert_eq!(link_findings("[x]: nowhere.md\n").len(), 1);
        assert_eq!(link_findings("[x](#no-such-title)\n").len(), 1);
    }

    #[test]
    fn good_external_and_quoted_links_are_left_alone() {
        let text = "# A title\n[a](main.rs) [b](../Cargo.toml) [c](https://example.org) [d](#a-title) `[e](no.md)`\n\
                    ```\n[f](no.md)\n```\n[g]: tidy/mod.rs\n";
        assert!(link_findings(text).is_empty(), "{:?}", link_findings(text));
    }

    #[test]
    fn a_crate_off_the_map_is_found() {
        let crates = ["db".to_owned(), "mem".to_owned()];
        let found = check_map(&crates, &[document("ARCHITECTURE.md", "The room `db` …")]);
        assert_eq!(found.len(), 1);
        assert!(found[0].text.contains("`mem`"));
        assert_eq!(check_map(&crates, &[])[0].text, "is missing");
    }

    #[test]
    fn files_of_the_glossary_exist() {
        let text =
            "A path: `a/b.rs`.\n\n| term | where |\n|---|---|\n| `PUBACK` | `db/log/codec.rs` |\n";
        let glossary = document(GLOSSARY, text);
        let found = check_glossary(&[glossary]);
        assert_eq!((found.len(), found[0].line), (1, 5));
        let files = [
            document(GLOSSARY, text),
            document("crates/db/src/log/codec.rs", ""),
        ];
        assert!(check_glossary(&files).is_empty());
        assert_eq!(check_glossary(&[])[0].text, "is missing");
    }

    #[test]
    fn a_readme_that_starts_otherwise_is_found() {
        let readme = |text: &str| check_readme(&[document("README.md", text)]);
        assert!(readme("# X\n```sh\nmake demo\n```\n\n```sh\nmake test\n```\n").is_empty());
        assert_eq!(
            readme("```sh\nmake test\n```\n```sh\nmake demo\n```\n").len(),
            2
        );
        assert_eq!(
            readme("```sh\napt-get install x\nmake demo\n```\n").len(),
            2
        );
    }
}
