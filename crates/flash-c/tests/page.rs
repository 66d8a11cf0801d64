//! Tests that the commands of `docs/c-interface.md` do what the page says, and that its tables match the header.

use std::path::{Path, PathBuf};
use std::process::Command;

struct TempDir(PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

fn page() -> String {
    std::fs::read_to_string(repository().join("docs/c-interface.md")).unwrap()
}

/// Returns the code blocks of a page, each with its language.
fn blocks(page: &str) -> Vec<(&str, String)> {
    let mut blocks: Vec<(&str, String)> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(_) if inside => inside = false,
            Some(language) => {
                inside = true;
                blocks.push((language, String::new()));
            }
            None if inside => {
                let text = &mut blocks.last_mut().unwrap().1;
                text.push_str(line);
                text.push('\n');
            }
            None => {}
        }
    }
    blocks
}

/// Returns whether a line matches the page's text, where … stands for any text.
fn fits(shown: &str, line: &str) -> bool {
    let mut rest = line;
    let parts: Vec<&str> = shown.split('…').collect();
    for (index, part) in parts.iter().enumerate() {
        let found = match index {
            0 => rest.starts_with(part).then_some(0),
            _ if index + 1 == parts.len() => rest
                .ends_with(part)
                .then(|| rest.len().saturating_sub(part.len())),
            _ => rest.find(part),
        };
        let Some(at) = found else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.is_empty()
}

#[test]
fn the_commands_of_the_page_work() {
    let dir = TempDir(std::env::temp_dir().join(format!("keelflash-page-{}", std::process::id())));
    std::fs::create_dir_all(dir.0.join("target")).unwrap();
    std::os::unix::fs::symlink(repository().join("crates"), dir.0.join("crates")).unwrap();
    // The libraries of this build replace those that the page builds.
    let built = std::env::current_exe()
        .unwrap()
        .parent()
        .unwrap()
        .to_path_buf();
    std::os::unix::fs::symlink(built, dir.0.join("target/release")).unwrap();
    let page = page();
    let blocks = blocks(&page);
    let mut commands = 0;
    for (index, (language, text)) in blocks.iter().enumerate() {
        match *language {
            "c" => std::fs::write(dir.0.join("shortest.c"), text).unwrap(),
            "sh" => {
                commands += 1;
                let script = format!("set -eu\ncargo() {{ echo \"cargo $*\"; }}\n{text}");
                let output = Command::new("sh")
                    .args(["-c", &script])
                    .current_dir(&dir.0)
                    .output()
                    .unwrap();
                let stderr = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{text}{stderr}");
                assert!(stderr.is_empty(), "{text}{stderr}");
                let printed = String::from_utf8(output.stdout).unwrap();
                let shown = match blocks.get(index + 1) {
                    Some(("text", shown)) => shown.as_str(),
                    // The package of that name is this test's package.
                    _ if text.starts_with("cargo") => {
                        concat!("cargo build --release --package ", env!("CARGO_PKG_NAME"))
                    }
                    _ => "",
                };
                let is_same = shown.lines().count() == printed.lines().count()
                    && shown
                        .lines()
                        .zip(printed.lines())
                        .all(|(shown, line)| fits(shown, line));
                assert!(is_same, "{text}prints\n{printed}");
            }
            "text" => {}
            other => panic!("a block of {other:?}"),
        }
    }
    println!("{commands} blocks of commands");
    assert!(commands >= 5);
}

#[test]
fn the_page_names_every_function_and_code_of_the_header() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/keelflash.h");
    let header = std::fs::read_to_string(header).unwrap();
    let page = page();
    let mut functions = 0;
    for line in header
        .lines()
        .filter(|line| line.contains(" keelflash_") || line.contains(" *keelflash_"))
    {
        let is_declaration = ["int32_t ", "uint32_t ", "const char *"]
            .iter()
            .any(|start| line.starts_with(start));
        if is_declaration {
            let name = line
                .split('(')
                .next()
                .unwrap()
                .rsplit([' ', '*'])
                .next()
                .unwrap();
            assert!(page.contains(&format!("`{name}`")), "{name}");
            functions += 1;
        }
    }
    assert!(functions > 20, "{functions}");
    for line in header.lines() {
        let mut words = line.strip_prefix("#define ").unwrap_or("").split(' ');
        if let (Some(name), Some(number)) = (words.next(), words.next())
            && (number.starts_with('-') || number == "0")
        {
            assert!(page.contains(&format!("| `{name}` | {number} |")), "{name}");
        }
    }
}

#[test]
fn dots_match_any_part_of_a_line() {
    assert!(fits("a … b … c", "a 1 b 22 c"));
    assert!(fits("…", "anything"));
    assert!(fits("a", "a"));
    for (shown, line) in [
        ("a", "ab"),
        ("a …", "b 1"),
        ("… b", "b c"),
        ("a … c", "a b"),
    ] {
        assert!(!fits(shown, line), "{shown} {line}");
    }
}
