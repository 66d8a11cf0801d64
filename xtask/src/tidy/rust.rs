//! Rust files as rules see them: the words of their code, their modules, and what belongs to tests. Rules rely on the
//! layout that `rustfmt` gives; a macro that makes items is not looked into.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::{TextFile, room_of};
use super::markdown::normalise;
use super::mask::Masked;

/// One Rust file.
pub(crate) struct RustFile<'a> {
    pub(crate) path: &'a str,
    pub(crate) masked: &'a Masked,
    /// Lines of the masked code.
    pub(crate) lines: Vec<&'a str>,
    pub(crate) tokens: Vec<Token<'a>>,
    pub(crate) modules: Vec<Module<'a>>,
    /// Whether a line belongs to an item under `#[cfg(test)]`.
    pub(crate) test_lines: Vec<bool>,
    /// Whether only tests contain the file.
    pub(crate) is_test: bool,
}

/// A word, `::`, or another single character of code.
pub(crate) struct Token<'a> {
    pub(crate) text: &'a str,
    pub(crate) line: usize,
}

/// A module that a file declares and another file holds.
pub(crate) struct Module<'a> {
    pub(crate) name: &'a str,
    /// Where the file may be; one of them exists.
    pub(crate) files: Vec<String>,
    pub(crate) is_test: bool,
}

/// Returns the Rust files among `files`, with the code that [`super::mask::mask`] made of each.
pub(crate) fn read_all<'a>(masked: &'a [(&'a TextFile, Masked)]) -> Vec<RustFile<'a>> {
    let mut files: Vec<RustFile<'_>> = masked
        .iter()
        .map(|(file, masked)| RustFile::new(&file.path, masked))
        .collect();
    let product = product_files(&files);
    for (file, is_product) in files.iter_mut().zip(product) {
        file.is_test = !is_product;
    }
    files
}

impl<'a> RustFile<'a> {
    /// Reads one file, which is taken for a test only by its path.
    pub(crate) fn new(path: &'a str, masked: &'a Masked) -> Self {
        let lines: Vec<&str> = masked.code.lines().collect();
        let test_lines = test_lines(&lines);
        let tokens = tokens(&lines);
        let mut file = Self {
            path,
            masked,
            lines,
            tokens,
            modules: Vec::new(),
            test_lines,
            is_test: is_test_path(path),
        };
        file.modules = file.read_modules();
        file
    }

    pub(crate) fn room(&self) -> &'a str {
        room_of(self.path)
    }

    pub(crate) fn is_test_line(&self, line: usize) -> bool {
        self.is_test
            || self
                .test_lines
                .get(line - 1)
                .is_some_and(|is_test| *is_test)
    }

    /// Returns a word of the code; nothing behind the last one.
    pub(crate) fn word(&self, at: usize) -> &'a str {
        self.tokens.get(at).map_or("", |token| token.text)
    }

    fn read_modules(&self) -> Vec<Module<'a>> {
        let (folder, name) = self.path.rsplit_once('/').unwrap_or(("", self.path));
        let children = match name {
            "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
            _ => self.path.trim_end_matches(".rs").to_owned(),
        };
        let mut modules = Vec::new();
        for (at, token) in self.tokens.iter().enumerate() {
            if token.text != "mod" || self.word(at + 2) != ";" {
                continue;
            }
            let name = self.word(at + 1);
            let files = match self.path_attribute(token.line) {
                Some(path) => normalise(&format!("{folder}/{path}")).into_iter().collect(),
                None => vec![
                    format!("{children}/{name}.rs"),
                    format!("{children}/{name}/mod.rs"),
                ],
            };
            modules.push(Module {
                name,
                files,
                is_test: self.is_test_line(token.line),
            });
        }
        modules
    }

    /// Returns the path in the attributes above a line.
    fn path_attribute(&self, line: usize) -> Option<&'a str> {
        let above = (1..line)
            .rev()
            .take_while(|above| self.lines[above - 1].trim().starts_with("#["));
        let mut with_path =
            above.filter(|above| self.lines[above - 1].trim().starts_with("#[path = "));
        let found = with_path.next()?;
        let strings = self.masked.strings.iter();
        let mut on_line = strings.filter(|string| string.line == found);
        on_line.next().map(|string| string.text.as_str())
    }
}

fn tokens<'a>(lines: &[&'a str]) -> Vec<Token<'a>> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut tokens = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = if is_word(first) {
                rest.find(|letter: char| !is_word(letter))
                    .unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            let (text, after) = rest.split_at(length);
            tokens.push(Token {
                text,
                line: index + 1,
            });
            rest = after.trim_start();
        }
    }
    tokens
}

fn test_lines(lines: &[&str]) -> Vec<bool> {
    let mut tests = vec![false; lines.len()];
    let mut at = 0;
    while at < lines.len() {
        if lines[at].trim() == "#[cfg(test)]" {
            let end = item_end(lines, at);
            tests[at..end].fill(true);
            at = end;
        } else {
            at += 1;
        }
    }
    tests
}

/// Returns the index of the line after the item that the attribute at line `at` belongs to. Formatted source closes an
/// item at the indentation that opened it. A field or a variant ends with a comma.
fn item_end(lines: &[&str], at: usize) -> usize {
    let own = indentation(lines[at]);
    for (index, line) in lines.iter().enumerate().skip(at + 1) {
        let trimmed = line.trim();
        let is_end = trimmed.starts_with('}') || trimmed.ends_with([';', ',', '}']);
        if indentation(line) == own && is_end {
            return index + 1;
        }
    }
    lines.len()
}

pub(crate) fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

pub(crate) fn is_test_path(path: &str) -> bool {
    path.split('/')
        .any(|part| part == "tests" || part == "tests.rs" || part.ends_with("_tests.rs"))
}

/// Returns for each file whether the product contains it: no module declares the file, or a module that is no test.
fn product_files(files: &[RustFile<'_>]) -> Vec<bool> {
    let places: BTreeMap<&str, usize> = files
        .iter()
        .enumerate()
        .map(|(index, file)| (file.path, index))
        .collect();
    let children = |file: &RustFile<'_>, with_tests: bool| -> Vec<usize> {
        let modules = file.modules.iter();
        let modules = modules.filter(|module| with_tests || !module.is_test);
        modules
            .flat_map(|module| &module.files)
            .filter_map(|path| places.get(path.as_str()).copied())
            .collect()
    };
    let declared: BTreeSet<usize> = files.iter().flat_map(|file| children(file, true)).collect();
    let mut product = vec![false; files.len()];
    let mut pending: Vec<usize> = (0..files.len())
        .filter(|index| !declared.contains(index))
        .collect();
    while let Some(index) = pending.pop() {
        if !product[index] && !is_test_path(files[index].path) {
            product[index] = true;
            pending.extend(children(&files[index], false));
        }
    }
    product
}

#[cfg(test)]
mod tests {
    use super::super::mask::mask;
    use super::*;

    /// Returns for each file whether only tests contain it.
    fn tests_of(files: &[(&str, &str)]) -> Vec<bool> {
        let files: Vec<TextFile> = files
            .iter()
            .map(|(path, text)| TextFile {
                path: (*path).to_owned(),
                text: (*text).to_owned(),
            })
            .collect();
        let masked: Vec<_> = files.iter().map(|file| (file, mask(&file.text))).collect();
        let read = read_all(&masked);
        read.iter().map(|file| file.is_test).collect()
    }

    #[test]
    fn code_is_split_into_words() {
        let masked = mask("use super::{a, b_c};\nf(\"text\");\n");
        let file = RustFile::new("a.rs", &masked);
        let words: Vec<&str> = file.tokens.iter().map(|token| token.text).collect();
        let expected = [
            "use", "super", "::", "{", "a", ",", "b_c", "}", ";", "f", "(", "\"", ")", ";",
        ];
        assert_eq!(words, expected);
        assert_eq!((file.tokens[8].line, file.tokens[9].line), (1, 2));
        assert_eq!((file.word(9), file.word(99)), ("f", ""));
    }

    #[test]
    fn lines_of_tests_end_with_their_item() {
        for item in [
            "mod tests {\n    f(a,\n}",
            "f(\n    a,\n);",
            "a: A<\n    B,\n>,",
        ] {
            let text = format!("#[cfg(test)]\n{item}\nfn g() {{}}\n");
            let masked = mask(&text);
            let file = RustFile::new("crates/db/src/a.rs", &masked);
            assert_eq!(file.test_lines, [true, true, true, true, false], "{item}");
            assert!(file.is_test_line(2) && !file.is_test_line(5));
        }
    }

    #[test]
    fn modules_name_the_files_that_may_hold_them() {
        let text = "mod a;\n#[cfg(test)]\n#[path = \"../b_tests.rs\"]\nmod tests;\n";
        let masked = mask(text);
        let file = RustFile::new("crates/db/src/log.rs", &masked);
        assert_eq!(
            file.modules[0].files,
            ["crates/db/src/log/a.rs", "crates/db/src/log/a/mod.rs"]
        );
        assert_eq!(file.modules[1].files, ["crates/db/b_tests.rs"]);
        assert!(file.modules[1].is_test && !file.modules[0].is_test);
    }

    #[test]
    fn a_file_is_of_tests_if_only_tests_contain_it() {
        let root = "mod a;\n#[cfg(test)]\nmod model;\n";
        let files = [
            ("crates/db/src/lib.rs", root),
            ("crates/db/src/a.rs", ""),
            (
                "crates/db/src/model.rs",
                "mod cases;\n#[path = \"a.rs\"]\nmod a;\n",
            ),
            ("crates/db/src/model/cases.rs", ""),
            ("crates/db/tests/it.rs", ""),
        ];
        assert_eq!(tests_of(&files), [false, false, true, true, true]);
    }
}
