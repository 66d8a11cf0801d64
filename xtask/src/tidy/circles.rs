//! Imports between the files of a room: which files lead back to themselves. An import of a name counts as one of the
//! file that defines it, re-exports followed. A file may use the modules that it is in, so such an import is left out,
//! and so are re-exports and tests.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::Finding;
use super::rust::{RustFile, Token};

/// Longest chain of re-exports that is followed.
const CHAIN_MAX: usize = 8;

/// Names in the text of a finding.
const NAMES_MAX: usize = 3;

/// One file of a room as a module.
struct Module<'a> {
    path: &'a str,
    parent: Option<usize>,
    children: BTreeMap<&'a str, usize>,
    defined: BTreeSet<&'a str>,
    imports: Vec<Import<'a>>,
    /// Paths in code other than imports, with their lines.
    paths: Vec<(Vec<&'a str>, usize)>,
}

/// One name in a `use`.
struct Import<'a> {
    segments: Vec<&'a str>,
    name: &'a str,
    line: usize,
    is_public: bool,
}

/// Names that one file uses of others: for each file the first line, and the names.
type Arrows<'a> = BTreeMap<usize, (usize, BTreeSet<&'a str>)>;

/// Finds the files of each room that are in a circle of imports.
pub(crate) fn check_all(files: &[RustFile<'_>]) -> Vec<Finding> {
    let mut rooms: BTreeMap<&str, Vec<&RustFile<'_>>> = BTreeMap::new();
    for file in files {
        if !file.is_test && file.path.contains("/src/") {
            rooms.entry(file.room()).or_default().push(file);
        }
    }
    rooms.values().flat_map(|files| check_room(files)).collect()
}

fn check_room(files: &[&RustFile<'_>]) -> Vec<Finding> {
    let modules = read_modules(files);
    let arrows: Vec<Arrows<'_>> = (0..modules.len())
        .map(|from| arrows_of(&modules, from))
        .collect();
    let reached: Vec<BTreeSet<usize>> = (0..modules.len())
        .map(|from| reach(&arrows, from))
        .collect();
    let mut findings = Vec::new();
    for (from, module) in modules.iter().enumerate() {
        let is_with =
            |other: usize| reached[from].contains(&other) && reached[other].contains(&from);
        let Some((to, (line, names))) = arrows[from].iter().find(|(to, _)| is_with(**to)) else {
            continue;
        };
        let size = (0..modules.len()).filter(|other| is_with(*other)).count();
        let names: Vec<&str> = names.iter().copied().take(NAMES_MAX).collect();
        let text = format!(
            "is in a circle of {size} files, since it imports {} from {}: move what both use into a file of its own",
            names.join(", "),
            modules[*to].path
        );
        findings.push(Finding::new(module.path, *line, "circle", text));
    }
    findings
}

fn read_modules<'a>(files: &[&RustFile<'a>]) -> Vec<Module<'a>> {
    let mut modules: Vec<Module<'a>> = files.iter().map(|file| read_module(file)).collect();
    for (parent, file) in files.iter().enumerate() {
        for declared in file.modules.iter().filter(|module| !module.is_test) {
            let is_it = |file: &&RustFile<'_>| declared.files.iter().any(|path| path == file.path);
            let Some(child) = files.iter().position(is_it) else {
                continue;
            };
            modules[parent].children.insert(declared.name, child);
            if modules[child].parent.is_none() {
                modules[child].parent = Some(parent);
            }
        }
    }
    modules
}

fn read_module<'a>(file: &RustFile<'a>) -> Module<'a> {
    let mut module = Module {
        path: file.path,
        parent: None,
        children: BTreeMap::new(),
        defined: BTreeSet::new(),
        imports: Vec::new(),
        paths: Vec::new(),
    };
    let mut at = 0;
    while let Some(Token { text, line }) = file.tokens.get(at) {
        let next = file.word(at + 1);
        at += 1;
        if file.is_test_line(*line) {
            continue;
        }
        match *text {
            // In a type, `use<'a>` is no import.
            "use" if next != "<" => {
                let is_public = at > 1 && matches!(file.word(at - 2), "pub" | ")");
                let mut found = Vec::new();
                at = read_imports(file, at, &[], &mut found);
                let imports = found.into_iter().map(|(segments, name)| Import {
                    segments,
                    name,
                    line: *line,
                    is_public,
                });
                module.imports.extend(imports);
            }
            "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static" => {
                let name = if next == "mut" {
                    file.word(at + 1)
                } else {
                    next
                };
                module.defined.insert(name);
            }
            "macro_rules" => {
                module.defined.insert(file.word(at + 1));
            }
            first
                if next == "::"
                    && (at == 1 || file.word(at - 2) != "::")
                    && (is_local(first)
                        || file.modules.iter().any(|module| module.name == first)) =>
            {
                let mut segments = vec![first];
                while file.word(at) == "::" && starts_name(file.word(at + 1)) {
                    segments.push(file.word(at + 1));
                    at += 2;
                }
                module.paths.push((segments, *line));
            }
            _ => {}
        }
    }
    module
}

/// Reads one tree of a `use` from `at`, below `above`, to the separator after it; returns the place of the separator.
fn read_imports<'a>(
    file: &RustFile<'a>,
    mut at: usize,
    above: &[&'a str],
    found: &mut Vec<(Vec<&'a str>, &'a str)>,
) -> usize {
    let mut segments = above.to_vec();
    loop {
        match file.word(at) {
            "{" => {
                at += 1;
                while !matches!(file.word(at), "}" | ";" | "") {
                    at = read_imports(file, at, &segments, found);
                    if file.word(at) == "," {
                        at += 1;
                    }
                }
                return at + 1;
            }
            "as" => {
                found.push((segments, file.word(at + 1)));
                return at + 2;
            }
            "," | "}" | ";" | "" => {
                if let Some(name) = segments.last().copied() {
                    found.push((segments, name));
                }
                return at;
            }
            "::" => {}
            "self" if !segments.is_empty() => {}
            segment => segments.push(segment),
        }
        at += 1;
    }
}

/// Returns whether a path that begins with `first` always stays in its room.
fn is_local(first: &str) -> bool {
    matches!(first, "crate" | "super" | "self")
}

fn starts_name(word: &str) -> bool {
    word.starts_with(|letter: char| letter.is_alphabetic() || letter == '_')
}

/// Returns the files that a file imports from, without those of the modules that it is in.
fn arrows_of<'a>(modules: &[Module<'a>], from: usize) -> Arrows<'a> {
    let module = &modules[from];
    let imports = module.imports.iter().filter(|import| !import.is_public);
    let imports = imports.map(|import| (&import.segments, import.line));
    let paths = module.paths.iter().map(|(path, line)| (path, *line));
    let mut arrows: Arrows<'_> = BTreeMap::new();
    for (segments, line) in imports.chain(paths) {
        let Some(to) = resolve(modules, from, segments, CHAIN_MAX) else {
            continue;
        };
        if to != from && !is_within(modules, from, to) {
            let name = segments[segments.len() - 1];
            let (first, names) = arrows.entry(to).or_insert((line, BTreeSet::new()));
            *first = line.min(*first);
            names.insert(name);
        }
    }
    arrows
}

fn is_within(modules: &[Module<'_>], inner: usize, outer: usize) -> bool {
    let mut parents = std::iter::successors(modules[inner].parent, |at| modules[*at].parent);
    parents.any(|parent| parent == outer)
}

/// Returns the file that a path leads to from the file `from`; `None` if that is no file of the room.
fn resolve(modules: &[Module<'_>], from: usize, path: &[&str], chain_max: usize) -> Option<usize> {
    let mut at = from;
    let mut rest = path;
    let first = *path.first()?;
    if !is_local(first) && !modules[from].children.contains_key(first) {
        return None;
    }
    while let [first, after @ ..] = rest {
        match *first {
            "crate" => at = root_of(modules, at),
            "super" => at = modules[at].parent?,
            "self" => {}
            name => match modules[at].children.get(name) {
                Some(child) => at = *child,
                None => break,
            },
        }
        rest = after;
    }
    let name = *rest.first().unwrap_or(&"*");
    if name == "*" || modules[at].defined.contains(name) || chain_max == 0 {
        return Some(at);
    }
    for import in &modules[at].imports {
        let leads = || resolve(modules, at, &import.segments, chain_max - 1);
        if import.name == name {
            return leads().or_else(|| is_local(import.segments[0]).then_some(at));
        }
        if import.name == "*"
            && let Some(to) = leads()
            && modules[to].defined.contains(name)
        {
            return Some(to);
        }
    }
    Some(at)
}

fn root_of(modules: &[Module<'_>], at: usize) -> usize {
    let modules_above = std::iter::successors(Some(at), |at| modules[*at].parent);
    modules_above.last().unwrap_or(at)
}

/// Returns all files that the arrows from a file lead to, over any number of others.
fn reach(arrows: &[Arrows<'_>], from: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut pending = vec![from];
    while let Some(at) = pending.pop() {
        pending.extend(arrows[at].keys().filter(|to| reached.insert(**to)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::super::finding::TextFile;
    use super::super::mask::mask;
    use super::super::rust::read_all;
    use super::*;

    /// Returns the files of a room that are in a circle, each with its line.
    fn found(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        let files: Vec<TextFile> = files
            .iter()
            .map(|(name, text)| TextFile {
                path: format!("crates/db/src/{name}"),
                text: (*text).to_owned(),
            })
            .collect();
        let masked: Vec<_> = files.iter().map(|file| (file, mask(&file.text))).collect();
        let findings = check_all(&read_all(&masked));
        let places = findings.into_iter().map(|one| (one.path, one.line));
        let names = places.map(|(path, line)| (path.replace("crates/db/src/", ""), line));
        names.collect()
    }

    fn places(expected: &[(&str, usize)]) -> Vec<(String, usize)> {
        let places = expected.iter();
        places
            .map(|(name, line)| ((*name).to_owned(), *line))
            .collect()
    }

    const ROOT: (&str, &str) = ("lib.rs", "mod a;\nmod b;\nmod c;\n");

    #[test]
    fn files_that_import_each_other_are_found() {
        let circle = [
            ROOT,
            ("a.rs", "//! A.\nuse crate::b::{self, B};\npub struct A;\n"),
            ("b.rs", "pub struct B;\nfn f() -> super::c::C {}\n"),
            (
                "c.rs",
                "use std::fmt;\nuse super::a::A as Other;\npub struct C;\n",
            ),
        ];
        let expected = places(&[("a.rs", 2), ("b.rs", 2), ("c.rs", 2)]);
        assert_eq!(found(&circle), expected);
        let line = [circle[0], circle[1], circle[2], ("c.rs", "pub struct C;\n")];
        assert_eq!(found(&line), []);
    }

    #[test]
    fn imports_lead_to_the_file_that_defines_the_name() {
        let root = ("lib.rs", "mod a;\nmod b;\npub use a::A;\npub use b::*;\n");
        let a = ("a.rs", "use crate::B;\npub struct A;\n");
        let b = (
            "b.rs",
            "pub struct B;\nimpl B {\n    fn f(_: crate::A) {}\n}\n",
        );
        assert_eq!(found(&[root, a, b]), places(&[("a.rs", 1), ("b.rs", 3)]));
    }

    #[test]
    fn modules_around_a_file_and_tests_are_left_alone() {
        let root = (
            "lib.rs",
            "mod a;\nfn f() {\n    a::f();\n}\npub struct S;\n",
        );
        let child = ("a.rs", "use super::S;\nmod b;\npub fn f() {}\n");
        let test = "use super::f;\n#[cfg(test)]\nmod tests {\n    use crate::a::c::C;\n}\n";
        assert_eq!(found(&[root, child, ("a/b.rs", test)]), []);
        let two = [
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a.rs", "use crate::b::B;\npub struct A;\n"),
            (
                "b.rs",
                "pub struct B;\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
            ),
        ];
        assert_eq!(found(&two), []);
    }
}
