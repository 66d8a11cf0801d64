//! Each row of the limits in `docs/security.md` shows the value of a constant or of a key of the configuration. It
//! names a test that exists, or says that there is none. Tests that the rest of the page names exist as well.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The fewest limits that the page must have: fewer would mean that its tables are not understood.
const ROWS_MIN: usize = 130;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Adds the names of the functions in every Rust file below a folder.
fn functions_below(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions_below(&path, names);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let functions = text.split("fn ").skip(1);
            let found = functions.filter_map(|rest| rest.split(['(', '<', ' ', '\n']).next());
            names.extend(found.map(str::to_owned));
        }
    }
}

/// Returns the value of an integer or a duration, the latter in ms and with true.
fn number(source: &str) -> Option<(u64, bool)> {
    let of = |start: &str| source.strip_prefix(start)?.strip_suffix(')');
    if let Some(seconds) = of("Duration::from_secs(") {
        return Some((number(seconds)?.0 * 1000, true));
    }
    if let Some(milliseconds) = of("Duration::from_millis(") {
        return Some((number(milliseconds)?.0, true));
    }
    if let Some((one, other)) = source.rsplit_once(" * ") {
        return Some((number(one)?.0 * number(other)?.0, false));
    }
    if let Some((one, other)) = source.split_once(" << ") {
        return Some((number(one)?.0 << number(other)?.0, false));
    }
    Some((source.replace('_', "").parse().ok()?, false))
}

/// Returns whether a cell such as `64 KiB` shows the value of a constant or key with this name.
fn shows(cell: &str, name: &str, source: &str) -> bool {
    let Some((value, is_time)) = number(source) else {
        return false;
    };
    let (shown, unit) = cell.split_once(' ').unwrap_or((cell, ""));
    let factor = match unit {
        "KiB" if !name.contains("kibibytes") => 1 << 10,
        "MiB" if !name.contains("mebibytes") => 1 << 20,
        "GiB" => 1 << 30,
        "s" if is_time => 1000,
        _ => 1,
    };
    let shown: Option<u64> = shown.replace(',', "").parse().ok();
    shown.is_some_and(|shown| shown * factor == value)
}

/// Returns the default of a key such as `line.connections_max` in the example configuration.
fn default_of(example: &str, key: &str) -> Option<String> {
    let (wanted, key) = key.rsplit_once('.')?;
    let mut section = String::new();
    for line in example.lines() {
        // A setting that is off has no space behind its `#`.
        let line = line.strip_prefix('#').unwrap_or(line);
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']).to_owned();
        } else if section == wanted
            && let Some((name, value)) = line.split_once(" = ")
            && name == key
        {
            return Some(value.to_owned());
        }
    }
    None
}

/// Returns the value of a constant, or of a field with a default.
fn value_in(text: &str, name: &str) -> Option<String> {
    let constant = format!("const {name}: ");
    let field = format!("{name}: ");
    for line in text.lines() {
        if let Some((_, rest)) = line.split_once(&constant) {
            return Some(rest.split_once(" = ")?.1.trim_end_matches(';').to_owned());
        }
        let value = line.trim().strip_prefix(&field).unwrap_or("");
        if value.starts_with(|letter: char| letter.is_ascii_digit()) {
            return Some(value.trim_end_matches(',').to_owned());
        }
    }
    None
}

/// Returns what is wrong with a row.
fn wrong_with(row: &str, example: &str, functions: &BTreeSet<String>) -> Option<String> {
    let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
    let [_, reference, shown, test] = cells[..] else {
        return Some("has not four cells".to_owned());
    };
    let (name, source) = match reference.strip_prefix('[') {
        None => {
            let key = reference.trim_matches('`');
            (key, default_of(example, key))
        }
        Some(link) => {
            let (name, path) = link.split_once("](../").unwrap_or((link, ""));
            let name = name.trim_matches('`');
            let file = workspace().join(path.trim_end_matches(')'));
            let text = fs::read_to_string(file).unwrap_or_default();
            (name, value_in(&text, name))
        }
    };
    let Some(source) = source else {
        return Some(format!("{name} is not there"));
    };
    if !shows(shown, name, &source) {
        return Some(format!("{name} is {source}"));
    }
    let is_gap = test == "gap" || test.starts_with("gap: ");
    let test = test.trim_matches('`');
    (!is_gap && !functions.contains(test)).then(|| format!("there is no test {test}"))
}

#[test]
fn the_limits_on_the_page_match_the_code() {
    let page = crate::page_common::text("security.md");
    let (text, limits) = page.split_once("\n## Limits\n").unwrap();
    let example = crate::common::ok(&["config", "example"]);
    let example = String::from_utf8(example).unwrap();
    let mut functions = BTreeSet::new();
    for folder in ["crates", "xtask/src"] {
        functions_below(&workspace().join(folder), &mut functions);
    }
    let mut rows = 0;
    let mut wrong = Vec::new();
    for row in limits.lines().filter(|line| line.starts_with("| ")) {
        if row.starts_with("| limit |") {
            continue;
        }
        rows += 1;
        let why = wrong_with(row, &example, &functions);
        wrong.extend(why.map(|why| format!("{why}: {row}")));
    }
    // In the text, names of tests are the longest words; names of keys and files are shorter, or have a dot.
    for name in text.split('`').skip(1).step_by(2) {
        let words = name.split('_').count();
        if words > 4
            && name
                .bytes()
                .all(|letter| letter.is_ascii_lowercase() || letter == b'_')
        {
            wrong.extend((!functions.contains(name)).then(|| format!("there is no test {name}")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(rows >= ROWS_MIN, "{rows}");
}

#[test]
fn a_row_with_another_value_or_without_its_test_is_found() {
    let functions = BTreeSet::from(["one_is_enough".to_owned()]);
    let example = "[line]\nbytes_max = 65536\n#[http]\n#write_kibibytes_max = 4096\n";
    let found = |row: &str| wrong_with(row, example, &functions);
    assert_eq!(
        found("| bytes | `line.bytes_max` | 64 KiB | `one_is_enough` |"),
        None
    );
    assert_eq!(
        found("| body | `http.write_kibibytes_max` | 4,096 KiB | gap |"),
        None
    );
    assert!(found("| bytes | `line.bytes_max` | 63 KiB | gap |").is_some());
    assert!(found("| bytes | `line.other_max` | 64 KiB | gap |").is_some());
    assert!(found("| bytes | `line.bytes_max` | 64 KiB | `two_are_enough` |").is_some());
    assert_eq!(number("Duration::from_secs(5 * 60)"), Some((300_000, true)));
    assert_eq!(number("64 << 10"), Some((65_536, false)));
    assert_eq!(
        value_in("pub const A_MAX: u64 = 1 << 4;\n", "A_MAX").unwrap(),
        "1 << 4"
    );
    assert_eq!(
        value_in("    a_max: usize,\n    a_max: 7,\n", "a_max").unwrap(),
        "7"
    );
}
