//! The documentation site's source: the pages in the table of contents, and the files that they link to. Paths are
//! those of the tree, so links are the same in the tree and in the site, even those of pages beside the code. `mdbook`
//! builds the site from it.

use std::fs;
use std::io;
use std::path::Path;

use crate::tidy::TextFile;
use crate::tidy::site::{SUMMARY, Site, resolve};

/// Settings and style of `mdbook`, which are beside the pages in the tree and above them in the output.
const SETTINGS: [&str; 2] = ["book.toml", "site.css"];

/// The result of a run.
pub(crate) struct Made {
    pub(crate) pages: usize,
    pub(crate) others: usize,
}

/// Generates the source of the site for the tree at `root` in `folder`, which is replaced.
///
/// # Errors
/// A line that names the file that cannot be read or written.
pub(crate) fn make(root: &Path, files: &[TextFile], folder: &Path) -> Result<Made, String> {
    let error = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    let summary = files.iter().find(|file| file.path == SUMMARY);
    let summary = summary.ok_or_else(|| format!("{SUMMARY} is missing"))?;
    let source = folder.join("src");
    if source.exists() {
        fs::remove_dir_all(&source).map_err(|e| error(&source, e))?;
    }
    let site = Site::of(files);
    let pages = site.pages.iter().map(|page| page.path.as_str());
    for path in pages.chain(site.others.iter().map(String::as_str)) {
        let (from, to) = (root.join(path), source.join(path));
        let parent = to.parent().unwrap_or(&source);
        fs::create_dir_all(parent).map_err(|e| error(parent, e))?;
        fs::copy(&from, &to).map_err(|e| error(&from, e))?;
    }
    let contents = source.join("SUMMARY.md");
    fs::write(&contents, from_the_top(summary)).map_err(|e| error(&contents, e))?;
    for name in SETTINGS {
        let from = root.join("docs").join(name);
        fs::copy(&from, folder.join(name)).map_err(|e| error(&from, e))?;
    }
    Ok(Made {
        pages: site.pages.len(),
        others: site.others.len(),
    })
}

/// Returns the table of contents with its links relative to the top of the tree instead of its own folder.
fn from_the_top(summary: &TextFile) -> String {
    let mut text = String::with_capacity(summary.text.len() * 2);
    for line in summary.text.lines() {
        let target = line
            .split_once("](")
            .and_then(|(before, rest)| Some((before, rest.strip_suffix(')')?)));
        match target.and_then(|(before, path)| Some((before, resolve(&summary.path, path)?))) {
            Some((before, path)) => {
                text.push_str(before);
                text.push_str("](");
                text.push_str(&path);
                text.push(')');
            }
            None => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_the_contents_begin_at_the_top() {
        let summary = TextFile {
            path: SUMMARY.to_owned(),
            text: "# Contents\n\n[X](../README.md)\n  - [A, b](results/a.md)\n---\n".to_owned(),
        };
        assert_eq!(
            from_the_top(&summary),
            "# Contents\n\n[X](README.md)\n  - [A, b](docs/results/a.md)\n---\n"
        );
    }

    #[test]
    fn pages_and_their_linked_files_keep_their_places() {
        let own = std::env::temp_dir().join(format!("xtask-site-{}", std::process::id()));
        let (root, folder) = (own.join("tree"), own.join("made"));
        let texts = [
            (SUMMARY, "- [A](a.md)\n- [D](../crates/x/DESIGN.md)\n"),
            (
                "docs/a.md",
                "# A\n\n![p](plot.svg) [t](../crates/x/src/lib.rs)\n",
            ),
            ("docs/plot.svg", "<svg/>"),
            ("docs/unused.svg", "<svg/>"),
            ("docs/book.toml", "[book]\n"),
            ("docs/site.css", ""),
            ("crates/x/DESIGN.md", "# D\n\n[a](../../docs/a.md)\n"),
            ("crates/x/src/lib.rs", "//! X\n"),
        ];
        let mut files = Vec::new();
        for (path, text) in texts {
            let place = root.join(path);
            fs::create_dir_all(place.parent().expect("has one")).expect("creates a folder");
            fs::write(&place, text).expect("writes a file");
            files.push(TextFile {
                path: path.to_owned(),
                text: text.to_owned(),
            });
        }
        // Files without a link to them must be removed.
        for _ in 0..2 {
            let made = make(&root, &files, &folder).expect("makes the source");
            assert_eq!((made.pages, made.others), (2, 2));
            for path in [
                "docs/a.md",
                "docs/plot.svg",
                "crates/x/DESIGN.md",
                "crates/x/src/lib.rs",
            ] {
                assert!(folder.join("src").join(path).is_file(), "{path}");
            }
            assert!(!folder.join("src/docs/unused.svg").exists());
            assert!(folder.join("book.toml").is_file() && folder.join("src/SUMMARY.md").is_file());
            fs::write(folder.join("src/docs/unused.svg"), "").expect("writes a file");
        }
        let error = make(&root, &files[1..], &folder).err();
        assert_eq!(error.as_deref(), Some("docs/SUMMARY.md is missing"));
        fs::remove_dir_all(&own).expect("removes its folder");
    }
}
