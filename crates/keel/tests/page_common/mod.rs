//! Runs the commands of a page, and compares their output with the output on the page. Checks the configurations of all
//! pages.

use crate::common::{TempDir, keel};
use std::path::Path;
use std::process::Command;

/// A command of the page and the output that the page shows.
struct Block {
    commands: String,
    shown: Option<String>,
    /// The things named in a line `<!-- needs: THINGS -->` before the block.
    needs: Vec<String>,
    /// Why the block is not run: the reason in a line `<!-- not run: REASON -->` before it.
    not_run: Option<String>,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open = None;
    let mut needs = Vec::new();
    let mut not_run = None;
    for line in page.lines() {
        if let Some(reason) = line.strip_prefix("<!-- not run: ") {
            not_run = Some(reason.strip_suffix(" -->").unwrap().to_owned());
            continue;
        }
        if let Some(things) = line.strip_prefix("<!-- needs: ") {
            let things = things.strip_suffix(" -->").unwrap();
            needs = things.split(' ').map(str::to_owned).collect();
            continue;
        }
        let text = match line.strip_prefix("```") {
            Some(_) if open.is_some() => {
                open = None;
                continue;
            }
            Some(language) => {
                open = Some(language);
                match (language, blocks.last_mut()) {
                    ("text", Some(last)) => last.shown = Some(String::new()),
                    // A file to copy: it is neither run nor printed.
                    ("ini" | "json" | "toml", _) => {}
                    ("sh", _) => blocks.push(Block {
                        commands: String::new(),
                        shown: None,
                        needs: std::mem::take(&mut needs),
                        not_run: not_run.take(),
                    }),
                    other => panic!("a block of {:?}", other.0),
                }
                continue;
            }
            None => line,
        };
        let Some(last) = blocks.last_mut() else {
            continue;
        };
        let into = match open {
            Some("sh") => &mut last.commands,
            Some("text") => last.shown.as_mut().unwrap(),
            _ => continue,
        };
        into.push_str(text);
        into.push('\n');
    }
    blocks
}

/// Returns the configurations of a page: its blocks of `ini` and `toml`, each of which is a whole one. Right before a
/// block of another program there is a line `<!-- configuration of: PROGRAM -->`.
fn configurations(page: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    // Whether the open block is a configuration.
    let mut open = None;
    let mut is_of_another = false;
    for line in page.lines() {
        match (open, line.strip_prefix("```")) {
            (Some(_), Some(_)) => open = None,
            (Some(is_ours), None) => {
                if let (true, Some(last)) = (is_ours, found.last_mut()) {
                    last.push_str(line);
                    last.push('\n');
                }
            }
            (None, Some(language)) => {
                let is_ours = matches!(language, "ini" | "toml") && !is_of_another;
                open = Some(is_ours);
                is_of_another = false;
                if is_ours {
                    found.push(String::new());
                }
            }
            (None, None) => is_of_another = line.starts_with("<!-- configuration of: "),
        }
    }
    found
}

/// Whether a line matches the page; … stands for any text within the line.
fn line_fits(shown: &str, line: &str) -> bool {
    let Some((before, after)) = shown.split_once('…') else {
        return shown == line;
    };
    let Some(rest) = line.strip_prefix(before) else {
        return false;
    };
    let starts = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    let mut rests = starts.map(|at| &rest[at..]);
    rests.any(|rest| line_fits(after, rest))
}

/// Whether lines match the page; a line of … alone stands for any number of lines.
pub fn fits(shown: &[&str], lines: &[&str]) -> bool {
    match (shown, lines) {
        ([], []) => true,
        (["…", more @ ..], _) => (0..=lines.len()).any(|skip| fits(more, &lines[skip..])),
        ([first, more @ ..], [line, rest @ ..]) => line_fits(first, line) && fits(more, rest),
        _ => false,
    }
}

/// Runs the blocks of a page in their order in a directory. `has` returns whether a thing that a block needs is
/// available; without it the block is skipped. `variables` are set for all blocks. Returns how many outputs were
/// compared.
#[allow(dead_code)]
pub fn run_page(
    name: &str,
    directory: &Path,
    variables: &[(&str, &Path)],
    has: impl Fn(&str) -> bool,
) -> usize {
    run_text(&text(name), directory, variables, has)
}

/// Returns the text of a page.
pub fn text(name: &str) -> String {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    std::fs::read_to_string(pages.join(name)).unwrap()
}

/// As [`run_page`], for the text of a page in which a test may have replaced ports.
pub fn run_text(
    page: &str,
    directory: &Path,
    variables: &[(&str, &Path)],
    has: impl Fn(&str) -> bool,
) -> usize {
    let programs = Path::new(env!("CARGO_BIN_EXE_keel")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let mut compared = 0;
    for block in blocks(page) {
        let commands = &block.commands;
        if let Some(reason) = block.not_run {
            println!("not run: {reason}: {commands}");
            continue;
        }
        if let Some(missing) = block.needs.iter().find(|thing| !has(thing)) {
            println!("skipped: no {missing}: {commands}");
            continue;
        }
        let output = Command::new("bash")
            .args(["-euc", &format!("exec 2>&1\n{commands}")])
            .env("PATH", &path)
            .envs(variables.iter().copied())
            .current_dir(directory)
            .output()
            .unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{commands}{printed}");
        if let Some(expected) = block.shown {
            compared += 1;
            let expected: Vec<&str> = expected.lines().collect();
            let lines: Vec<&str> = printed.lines().collect();
            assert!(fits(&expected, &lines), "{commands}prints\n{printed}");
        }
    }
    println!("the page shows the output of {compared} blocks");
    compared
}

#[test]
fn a_block_marked_as_not_run_is_not_run_and_its_output_not_compared() {
    let page = |marker: &str| {
        format!("{marker}```sh\ntouch ran\n```\n\n```text\nboards\n```\n\n```sh\ntrue\n```\n")
    };
    let dir = TempDir::new();
    let marked = page("<!-- not run: it takes boards -->\n");
    assert_eq!(run_text(&marked, dir.path(), &[], |_| true), 0);
    assert!(!dir.file("ran").exists());
    let last = blocks(&marked).pop().unwrap();
    assert!(last.not_run.is_none(), "the marker is for one block");
    let first = blocks(&page("")).remove(0);
    assert!(first.not_run.is_none() && first.shown.is_some());
}

#[test]
fn the_node_takes_every_configuration_of_the_pages() {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let mut checked = 0;
    let mut faults = Vec::new();
    for entry in std::fs::read_dir(pages).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "md") {
            continue;
        }
        for block in configurations(&std::fs::read_to_string(&path).unwrap()) {
            let dir = TempDir::new();
            std::fs::write(dir.file("keel.toml"), &block).unwrap();
            let output = keel()
                .args(["config", "check", "keel.toml"])
                .current_dir(dir.path())
                .output()
                .unwrap();
            checked += 1;
            if !output.status.success() {
                let why = String::from_utf8(output.stderr).unwrap();
                faults.push(format!("{}: {why}{block}", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(checked >= 6, "{checked}");
}

#[test]
fn a_configuration_of_another_program_is_marked_right_before_it() {
    let page = "```ini\na = 1\n```\n<!-- configuration of: systemd -->\n```ini\n[Unit]\n```\n\n\
                <!-- configuration of: systemd -->\n\n```toml\nb = 1\nc = 1\n```\n```sh\nd = 1\n```\n";
    assert_eq!(configurations(page), ["a = 1\n", "b = 1\nc = 1\n"]);
}

#[test]
fn dots_stand_for_anything_and_letters_for_themselves() {
    assert!(line_fits("a … b … c", "a 1 b 2 b c"));
    assert!(line_fits("…é…", "xéy") && line_fits("…", ""));
    assert!(!line_fits("a", "ab") && !line_fits("a …", "b 1") && !line_fits("a … c", "a b"));
    assert!(fits(&["a", "…", "c"], &["a", "c"]));
    assert!(fits(&["a", "…", "c"], &["a", "b", "b", "c"]));
    assert!(!fits(&["a", "…", "c"], &["a", "b"]));
    assert!(!fits(&["a"], &["a", "b"]) && !fits(&["a", "b"], &["a"]));
}
