//! Rules about the documentation as a whole. It is one site: every page is reachable, and its links stay inside. A
//! script runs its commands, and the files that it names exist.

use std::collections::BTreeSet;
use std::path::Path;

use super::finding::{Finding, TextFile};
use super::markdown::{links, normalise, prose_lines};
use super::source::has_word;

/// The table of contents: every page of the site, and nothing else.
pub(crate) const SUMMARY: &str = "docs/SUMMARY.md";

/// A page with commands names the files that run them: `<!-- commands: FILE, FILE -->`. The first file names the page,
/// each further one names the previous file, and the last one is run by the script for all tests.
const MARKER: &str = "<!-- commands: ";

/// Languages of blocks that are commands. The runners only recognise the first.
const COMMANDS: &[&str] = &["sh", "bash", "shell", "console", "shell-session"];

/// Beginnings of lines that are commands. Where such a line is indented code, no runner sees it.
const PROGRAMS: &[&str] = &[
    "keel ", "sudo ", "make ", "cargo ", "scripts/", "dpkg", "apt",
];

/// A marker right before a block of commands that is not run, with the reason.
const NOT_RUN: &str = "<!-- not run:";

/// Scripts that run everything else.
const ENDS: &[&str] = &["scripts/test.sh", "scripts/soak.sh"];

/// Top-level folders whose files pages name by their path from the top.
const FOLDERS: &[&str] = &[
    "crates/",
    "docs/",
    "examples/",
    "fuzz/",
    "packaging/",
    "python/",
    "scripts/",
    "xtask/",
];

/// The parts of the site.
pub(crate) struct Site<'a> {
    /// Pages in the order of the table of contents, as paths from the top.
    pub(crate) pages: Vec<&'a TextFile>,
    /// Other files that pages show or link to, as paths from the top.
    pub(crate) others: BTreeSet<String>,
}

impl<'a> Site<'a> {
    /// Collects the pages in the table of contents of `files`, and the files that they link to. Missing files are
    /// skipped: the rule `link` reports them.
    pub(crate) fn of(files: &'a [TextFile]) -> Self {
        let summary = files.iter().find(|file| file.path == SUMMARY);
        let listed = summary.map_or_else(Vec::new, entries);
        let pages: Vec<&TextFile> = listed
            .iter()
            .filter_map(|(_, path)| files.iter().find(|file| file.path == *path))
            .collect();
        let targets = pages.iter().flat_map(|page| {
            let inside = links(&page.text).into_iter();
            inside.filter_map(move |(_, target)| resolve(&page.path, &target))
        });
        let others = targets.filter(|path| !path.ends_with(".md")).collect();
        Self { pages, others }
    }
}

/// Checks every rule of this file.
pub(crate) fn check_all(root: &Path, files: &[TextFile]) -> Vec<Finding> {
    let mut findings = check_summary(files);
    let site = Site::of(files);
    findings.extend(check_inside(root, &site));
    for page in files.iter().filter(|file| is_page(&file.path)) {
        findings.extend(check_commands(page, files));
        findings.extend(check_indented(page));
        findings.extend(check_left_out(page));
    }
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        findings.extend(check_names(root, files, file));
    }
    findings
}

fn is_page(path: &str) -> bool {
    path == "README.md" || (path.starts_with("docs/") && path.ends_with(".md") && path != SUMMARY)
}

/// Returns the path from the top for a link in `from`; `None` for other sites and for anchors on the page itself.
pub(crate) fn resolve(from: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let path = target.split('#').next().filter(|path| !path.is_empty())?;
    let folder = Path::new(from).parent().unwrap_or(Path::new(""));
    normalise(&folder.join(path).to_string_lossy())
}

/// Returns lines and pages of the table of contents.
fn entries(summary: &TextFile) -> Vec<(usize, String)> {
    let listed = links(&summary.text).into_iter();
    listed
        .filter_map(|(line, target)| Some((line, resolve(&summary.path, &target)?)))
        .collect()
}

/// Checks that each page of `docs` is listed, nothing is listed twice, and only pages are.
fn check_summary(files: &[TextFile]) -> Vec<Finding> {
    let Some(summary) = files.iter().find(|file| file.path == SUMMARY) else {
        return vec![Finding::new(SUMMARY, 0, "summary", "is missing")];
    };
    let mut findings = Vec::new();
    let mut listed = BTreeSet::new();
    for (line, path) in entries(summary) {
        if !path.ends_with(".md") {
            let text = format!("`{path}` is no page");
            findings.push(Finding::new(SUMMARY, line, "summary", text));
        }
        if !listed.insert(path.clone()) {
            let text = format!("`{path}` is listed twice");
            findings.push(Finding::new(SUMMARY, line, "summary", text));
        }
    }
    let pages = files.iter().filter(|file| is_page(&file.path));
    for page in pages.filter(|page| !listed.contains(&page.path)) {
        let text = format!("is not in {SUMMARY}, so no reader finds it in the site");
        findings.push(Finding::new(&page.path, 0, "summary", text));
    }
    findings
}

/// Checks that a link from a page of the site leads to another page of it, or to a file that is copied beside them.
fn check_inside(root: &Path, site: &Site<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for page in &site.pages {
        for (line, target) in links(&page.text) {
            let Some(path) = resolve(&page.path, &target) else {
                continue;
            };
            let is_inside = site.pages.iter().any(|page| page.path == path);
            if path.ends_with(".md") && !is_inside {
                let text = format!("`{target}` leads out of the site: list it in {SUMMARY}");
                findings.push(Finding::new(&page.path, line, "site", text));
            } else if root.join(&path).is_dir() {
                let text = format!("`{target}` is a folder, which the site cannot show");
                findings.push(Finding::new(&page.path, line, "site", text));
            }
        }
    }
    findings
}

/// Returns the first lines of the command blocks of a page, and whether runners recognise them.
fn command_blocks(text: &str) -> Vec<(usize, bool)> {
    let mut is_open = false;
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(language) = line.trim_start().strip_prefix("```") else {
            continue;
        };
        let name = language.split([',', ' ']).next().unwrap_or("");
        if !is_open && COMMANDS.contains(&name) {
            found.push((index + 1, line == "```sh"));
        }
        is_open = !is_open;
    }
    found
}

/// Checks that a page with commands names the files that run them, and that this is true.
fn check_commands(page: &TextFile, files: &[TextFile]) -> Vec<Finding> {
    let finding = |line, text: String| Finding::new(&page.path, line, "commands", text);
    let blocks = command_blocks(&page.text);
    let mut findings: Vec<Finding> = blocks
        .iter()
        .filter(|(_, is_seen)| !is_seen)
        .map(|(line, _)| finding(*line, "nothing runs this: it must begin with ```sh".into()))
        .collect();
    let markers: Vec<(usize, &str)> = page
        .text
        .lines()
        .enumerate()
        .filter_map(|(index, line)| Some((index + 1, line.strip_prefix(MARKER)?)))
        .collect();
    match (blocks.first(), markers.as_slice()) {
        (Some((line, _)), []) => {
            let text = format!("nothing runs these commands, or `{MARKER}FILE -->` must say what");
            findings.push(finding(*line, text));
        }
        (None, [(line, _), ..]) => findings.push(finding(*line, "there are no commands".into())),
        (_, [_, (line, _), ..]) => findings.push(finding(*line, "is said twice".into())),
        (_, [(line, said)]) => {
            let wrong = said.strip_suffix(" -->").map_or_else(
                || Some("has no end".to_owned()),
                |said| fault_of_chain(page, said, files),
            );
            findings.extend(wrong.map(|text| finding(*line, text)));
        }
        (None, []) => {}
    }
    findings
}

/// Finds commands in blocks that are indented instead of fenced, which no runner recognises. The README has drawings.
fn check_indented(page: &TextFile) -> Vec<Finding> {
    if page.path == "README.md" {
        return Vec::new();
    }
    let commands = prose_lines(&page.text).into_iter().filter(|(_, line)| {
        line.strip_prefix("    ")
            .is_some_and(|code| PROGRAMS.iter().any(|name| code.starts_with(name)))
    });
    commands
        .map(|(line, _)| {
            let text = "nothing runs this: put it between ```sh and ```, with `<!-- not run: REASON -->` before it if \
                        it cannot be run";
            Finding::new(&page.path, line, "commands", text)
        })
        .collect()
}

/// Checks that each marker of a block that is not run says why, and stands right before a block or its other markers.
fn check_left_out(page: &TextFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines: Vec<&str> = page.text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let Some(reason) = line.strip_prefix(NOT_RUN) else {
            continue;
        };
        let mut finding = |text| {
            findings.push(Finding::new(&page.path, index + 1, "commands", text));
        };
        match reason.strip_suffix("-->") {
            None => finding("this marker has no end on its line"),
            Some(reason) if reason.trim().is_empty() => {
                finding("it does not say why it is not run")
            }
            Some(_) => {}
        }
        let is_block = lines[index + 1..]
            .iter()
            .find(|next| !next.starts_with("<!-- "))
            .is_some_and(|next| *next == "```sh");
        if !is_block {
            finding("no block of commands follows, so it is for another one");
        }
    }
    findings
}

/// Returns the fault in the chain of files from the page to the script for all tests.
fn fault_of_chain(page: &TextFile, said: &str, files: &[TextFile]) -> Option<String> {
    let mut named = page.path.rsplit('/').next().unwrap_or(&page.path);
    let mut last = "";
    for path in said.split(", ") {
        let Some(file) = files.iter().find(|file| file.path == path) else {
            return Some(format!("`{path}` does not exist"));
        };
        if !file.text.lines().any(|line| has_word(line, named)) {
            return Some(format!("`{path}` does not name {named}"));
        }
        (named, last) = (path, path);
    }
    let is_test = last.starts_with("crates/") && last.contains("/tests/") && last.ends_with(".rs");
    (!is_test && !ENDS.contains(&last)).then(|| {
        let ends = ENDS.join(" or ");
        format!("what runs `{last}`? The last file must be a test of a crate, {ends}")
    })
}

/// Checks that files and folders that a document names from the top, in code spans, exist.
fn check_names(root: &Path, files: &[TextFile], file: &TextFile) -> Vec<Finding> {
    // The changelog may name removed files.
    if file.path == "CHANGELOG.md" {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (line, text) in super::markdown::prose_lines(&file.text) {
        for span in text.split('`').skip(1).step_by(2) {
            let is_plain = !span.contains([' ', '*', '{', '…', '<']);
            if !is_plain || !FOLDERS.iter().any(|folder| span.starts_with(folder)) {
                continue;
            }
            let path = span.trim_end_matches('/');
            let is_there = files.iter().any(|file| file.path == path) || root.join(path).exists();
            if !is_there {
                let text = format!("`{span}` does not exist");
                findings.push(Finding::new(&file.path, line, "names", text));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> TextFile {
        TextFile {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    /// Returns findings for a site of two valid pages and `more`, which replaces files with the same path.
    fn findings(more: &[(&str, &str)]) -> Vec<String> {
        let mut all = vec![
            file("README.md", "# X\n\nSee [a](docs/a.md).\n"),
            file(
                "docs/SUMMARY.md",
                "# S\n\n- [X](../README.md)\n- [A](a.md)\n",
            ),
            file("docs/a.md", "# A\n\n[source](../src/main.rs)\n"),
            file("crates/x/tests/page.rs", "//! Runs `docs/a.md`.\n"),
            file("scripts/test.sh", "scripts/page.sh\n"),
            file("scripts/page.sh", "run docs/a.md\n"),
        ];
        for (path, text) in more {
            all.retain(|file| file.path != *path);
            all.push(file(path, text));
        }
        let found = check_all(&crate::workspace().unwrap().join("xtask"), &all);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_site_in_order_is_left_alone() {
        assert_eq!(findings(&[]), [""; 0]);
        let pages = [
            file("docs/SUMMARY.md", "- [A](a.md)"),
            file("docs/a.md", "[b](../b.rs#L1) [c](#d)"),
        ];
        let site = Site::of(&pages);
        assert_eq!(site.pages.len(), 1);
        assert_eq!(site.others.into_iter().collect::<Vec<_>>(), ["b.rs"]);
    }

    #[test]
    fn a_page_that_is_not_listed_or_listed_twice_is_found() {
        let found = findings(&[("docs/b.md", "# B\n")]);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].starts_with("docs/b.md:0: summary: is not in"),
            "{found:?}"
        );
        let twice =
            "- [X](../README.md)\n- [A](a.md)\n- [A](../docs/a.md#a)\n- [B](../src/main.rs)\n";
        let found = findings(&[("docs/SUMMARY.md", twice)]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("docs/SUMMARY.md:3: summary: `docs/a.md` is listed twice"));
        assert!(found[1].starts_with("docs/SUMMARY.md:4: summary: `src/main.rs` is no page"));
        assert_eq!(check_summary(&[])[0].text, "is missing");
    }

    #[test]
    fn a_link_out_of_the_site_is_found() {
        let found = findings(&[(
            "docs/a.md",
            "# A\n\n[d](../crates/x/DESIGN.md)\n[s](../src)\n",
        )]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("docs/a.md:3: site: ") && found[0].contains("leads out"));
        assert!(found[1].starts_with("docs/a.md:4: site: ") && found[1].contains("is a folder"));
    }

    #[test]
    fn commands_that_nothing_runs_are_found() {
        let block = "```sh\nkeel\n```\n";
        let page = |text: &str| findings(&[("docs/a.md", text)]);
        let runs = |files: &str| page(&format!("<!-- commands: {files} -->\n{block}"));
        assert_eq!(runs("crates/x/tests/page.rs"), [""; 0]);
        assert_eq!(runs("scripts/page.sh, scripts/test.sh"), [""; 0]);
        for (found, what) in [
            (page(block), "docs/a.md:1: commands: nothing runs these"),
            (
                runs("scripts/none.sh"),
                "docs/a.md:1: commands: `scripts/none.sh` does not exist",
            ),
            (
                runs("scripts/test.sh"),
                "docs/a.md:1: commands: `scripts/test.sh` does not name a.md",
            ),
            (
                runs("scripts/page.sh"),
                "docs/a.md:1: commands: what runs `scripts/page.sh`?",
            ),
            (
                page("<!-- commands: scripts/page.sh -->\n"),
                "docs/a.md:1: commands: there are no",
            ),
            (
                page("```console\n$ keel\n```\n").split_off(1),
                "docs/a.md:1: commands: nothing runs these",
            ),
            (
                page(" ```sh\nkeel\n ```\n"),
                "docs/a.md:1: commands: nothing runs this: it must begin",
            ),
        ] {
            assert!(
                found.first().is_some_and(|first| first.starts_with(what)),
                "{what}: {found:?}"
            );
        }
        let twice = "<!-- commands: crates/x/tests/page.rs -->\n".repeat(2);
        assert_eq!(
            page(&format!("{twice}{block}")),
            ["docs/a.md:2: commands: is said twice"]
        );
        // A block shown within another block is no command.
        assert_eq!(page("```text\nkeel\n```\n"), [""; 0]);
    }

    #[test]
    fn indented_commands_are_found() {
        let page = |text: &str| findings(&[("docs/a.md", text)]);
        for command in [
            "keel status",
            "sudo reboot",
            "make test",
            "cargo nextest run",
            "scripts/test.sh",
            "dpkg-deb --info x.deb",
            "apt-get update",
        ] {
            let found = page(&format!("# A\n\nRun:\n\n    {command}\n"));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(
                found[0].starts_with("docs/a.md:5: commands: nothing runs this: put it between"),
                "{found:?}"
            );
        }
        // Continued lines of a fenced block, output, and words of a sentence are no indented commands.
        let text = "# A\n\n```text\n    keel status\n```\n\n    keel: b3: is gone\n\nkeel runs.\n  make it so\n";
        assert_eq!(page(text), [""; 0]);
    }

    #[test]
    fn a_block_that_is_left_out_says_why() {
        let page = |marker: &str| {
            let runner = "<!-- commands: crates/x/tests/page.rs -->\n\n";
            findings(&[("docs/a.md", &format!("{runner}{marker}```sh\nkeel\n```\n"))])
        };
        assert_eq!(page("<!-- not run: it takes boards -->\n"), [""; 0]);
        assert_eq!(
            page("<!-- not run: as root -->\n<!-- instead: true -->\n"),
            [""; 0]
        );
        for (marker, what) in [
            ("<!-- not run: -->\n", "it does not say why"),
            (
                "<!-- not run: it takes\nboards -->\n",
                "this marker has no end",
            ),
            (
                "<!-- not run: boards -->\n\n",
                "no block of commands follows",
            ),
            (
                "<!-- not run: boards -->\nWords.\n",
                "no block of commands follows",
            ),
        ] {
            let found = page(marker);
            let first = found.first().map_or("", String::as_str);
            let start = format!("docs/a.md:3: commands: {what}");
            assert!(first.starts_with(&start), "{marker}: {found:?}");
        }
    }

    #[test]
    fn the_name_of_another_page_is_not_the_name_of_this_one() {
        let text = "<!-- commands: crates/x/tests/page.rs -->\n```sh\nkeel\n```\n";
        let runner = ("crates/x/tests/page.rs", "//! Runs `docs/other-a.md`.\n");
        let found = findings(&[("docs/a.md", text), runner]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("does not name a.md"));
    }

    #[test]
    fn a_file_that_is_named_and_not_there_is_found() {
        let text =
            "# A\n\nSee `scripts/page.sh`, `docs/`, `crates/none/src/lib.rs` and `crates/*/x`.\n";
        let found = findings(&[("docs/a.md", text)]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(
            found[1],
            "docs/a.md:3: names: `crates/none/src/lib.rs` does not exist"
        );
        assert_eq!(findings(&[("CHANGELOG.md", text)]), [""; 0]);
    }
}
