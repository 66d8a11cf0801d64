//! Prose: sentences of at most 25 words, no phrase that hides its subject or number, and no plural in brackets. It is
//! read in comments, documents and the commented configuration; phrases and plurals in strings and scripts too.

use super::finding::{Finding, TextFile};
use super::markdown::prose_lines;
use super::rust::RustFile;

/// Largest number of words in a sentence.
const WORDS_MAX: usize = 25;

/// Phrases that hide the subject, or a number and its unit; an empty word stands for any.
const PHRASES: &[&[&str]] = &[
    &["who", ""],
    &["those", "who"],
    &["of", "those"],
    &["so", "many"],
    &["so", "much"],
    &["so", "few"],
    &["so", "long"],
    &["so", "often"],
    &["look", "again"],
    &["looks", "again"],
    &["a", "moment", "ago"],
    &["in", "vain"],
    &["without", "a", "word"],
    &["whoever"],
    &["whatever"],
    &["whomever"],
    &["nobody"],
    &["anybody"],
    &["somebody"],
    &["everybody"],
];

/// Documents that are made from code or figures.
const GENERATED: &[&str] = &["docs/reference/", "docs/results/"];

/// Openings of lists, in which a comma ends a sentence.
const LISTS: &[&str] = &["**Files:**", "**Holds:**"];

/// One paragraph or list item: its lines, each with its number.
type Block<'a> = Vec<(usize, &'a str)>;

/// A word as it is written, with its line.
struct Word {
    line: usize,
    text: String,
}

/// Finds long sentences, phrases and plurals in brackets.
pub(crate) fn check_all(files: &[TextFile], rust: &[RustFile<'_>]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in rust {
        for block in comment_blocks(file) {
            check_block(file.path, &block, true, &mut findings);
        }
        // A single word is a name or a key.
        let strings = file.masked.strings.iter();
        for string in strings.filter(|string| string.text.contains(' ')) {
            let lines = string.text.lines().enumerate();
            let block: Block<'_> = lines
                .map(|(index, line)| (string.line + index, line))
                .collect();
            check_block(file.path, &block, false, &mut findings);
        }
    }
    for file in files {
        let is_generated = GENERATED.iter().any(|path| file.path.starts_with(path));
        let blocks = if file.path.ends_with(".md") && !is_generated {
            document_blocks(prose_lines(&file.text).into_iter())
        } else if file.path.ends_with("/example.toml") {
            let lines = file.text.lines().enumerate();
            let comments = lines.map(|(index, line)| {
                let comment = line.strip_prefix('#').unwrap_or("");
                (index + 1, comment.strip_prefix(' ').unwrap_or(comment))
            });
            document_blocks(comments)
        } else if file.path.ends_with(".sh") {
            let lines = file.text.lines().enumerate();
            lines.map(|(index, line)| vec![(index + 1, line)]).collect()
        } else {
            continue;
        };
        let with_length = !file.path.ends_with(".sh");
        for block in blocks {
            check_block(&file.path, &block, with_length, &mut findings);
        }
    }
    findings
}

/// Returns the paragraphs of a file's comments, without code and tables.
fn comment_blocks<'a>(file: &RustFile<'a>) -> Vec<Block<'a>> {
    let mut blocks: Vec<Block<'a>> = vec![Vec::new()];
    let mut last = (0, "");
    let mut in_code = false;
    for comment in &file.masked.comments {
        let kinds = ["//!", "///", "//"];
        let kind = kinds
            .into_iter()
            .find(|kind| comment.text.starts_with(kind));
        let kind = kind.unwrap_or("");
        let text = comment.text[kind.len()..].trim();
        let is_beside_code = !file.lines[comment.line - 1].trim().is_empty();
        if is_beside_code || last != (comment.line - 1, kind) {
            in_code = false;
            blocks.push(Vec::new());
        }
        last = (comment.line, if is_beside_code { "" } else { kind });
        if text.starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            add_line(&mut blocks, comment.line, text);
        }
    }
    blocks
}

/// Returns the paragraphs of a document, without indented code, tables and remarks.
fn document_blocks<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<Block<'a>> {
    let mut blocks: Vec<Block<'a>> = vec![Vec::new()];
    for (number, line) in lines {
        let is_first = blocks.last().is_none_or(Vec::is_empty);
        if !(is_first && line.starts_with("    ")) {
            add_line(&mut blocks, number, line.trim());
        }
    }
    blocks
}

/// Adds a line to the last block, or begins the next block with it.
fn add_line<'a>(blocks: &mut Vec<Block<'a>>, number: usize, line: &'a str) {
    let number_of_item = line.split_once(". ").map_or("", |(number, _)| number);
    let is_numbered = number_of_item.parse::<u32>().is_ok();
    let is_prose = !line.is_empty() && !line.starts_with('|') && !line.starts_with("<!--");
    if !is_prose || is_numbered || line.starts_with(['-', '*', '#']) {
        blocks.push(Vec::new());
    }
    if is_prose && let Some(block) = blocks.last_mut() {
        block.push((number, line));
    }
}

fn check_block(path: &str, block: &Block<'_>, with_length: bool, findings: &mut Vec<Finding>) {
    for sentence in sentences(block) {
        let words: Vec<String> = sentence
            .iter()
            .map(|word| {
                let bare = word
                    .text
                    .trim_matches(|letter: char| !letter.is_alphanumeric());
                bare.to_lowercase()
            })
            .collect();
        let length = words.iter().filter(|word| !word.is_empty()).count();
        if with_length && length > WORDS_MAX {
            let text = format!("{length} words, at most {WORDS_MAX}: split it");
            findings.push(Finding::new(path, sentence[0].line, "sentence", text));
        }
        for (at, word) in sentence.iter().enumerate() {
            let of_word = PHRASES.iter().filter(|phrase| phrase[0] == words[at]);
            let phrase = of_word.copied().find(|phrase| is_at(&words[at..], phrase));
            if let Some(phrase) = phrase {
                let phrase = phrase.join(" ");
                let text = format!(
                    "`{}`: name the subject, or the number with its unit",
                    phrase.trim()
                );
                findings.push(Finding::new(path, word.line, "phrase", text));
            }
            if is_bracketed_plural(&word.text) {
                let text = format!("`{}`: write the form that the count has", word.text);
                findings.push(Finding::new(path, word.line, "plural", text));
            }
        }
    }
}

fn is_at(words: &[String], phrase: &[&str]) -> bool {
    words.len() >= phrase.len()
        && phrase
            .iter()
            .zip(words)
            .all(|(expected, word)| expected.is_empty() || word == expected)
}

fn is_bracketed_plural(word: &str) -> bool {
    word.split_once("(s)")
        .is_some_and(|(before, _)| before.ends_with(char::is_alphabetic))
}

/// Splits a block into sentences. Code counts as one word, a link as its text.
fn sentences(block: &Block<'_>) -> Vec<Vec<Word>> {
    let is_list = block
        .first()
        .is_some_and(|(_, line)| LISTS.iter().any(|opening| line.starts_with(opening)));
    let mut sentences = vec![Vec::new()];
    let mut is_end = false;
    let mut may_end = false;
    for (line, text) in plain(block) {
        for word in text.split_whitespace() {
            let starts = word.starts_with(|letter: char| letter.is_uppercase() || letter == '(');
            if is_end || (may_end && starts) {
                sentences.push(Vec::new());
            }
            let bare = word.trim_end_matches([')', '"', '\'', '*', '_', '”']);
            is_end = bare.ends_with(['.', '!', '?']) || (is_list && bare.ends_with([',', ';']));
            may_end = bare.ends_with([':', ';']);
            if let Some(sentence) = sentences.last_mut() {
                let text = word.to_owned();
                sentence.push(Word { line, text });
            }
        }
    }
    sentences.retain(|sentence| !sentence.is_empty());
    sentences
}

/// Returns the lines of a block with `CODE` for code and without the targets of links.
fn plain(block: &Block<'_>) -> Vec<(usize, String)> {
    let mut in_code = false;
    let mut lines = Vec::new();
    for (number, line) in block {
        let mut text = String::with_capacity(line.len());
        for (index, part) in line.split('`').enumerate() {
            if index > 0 {
                in_code = !in_code;
                text.push_str(if in_code { "CODE" } else { "" });
            }
            if !in_code {
                text.push_str(part);
            }
        }
        while let Some((at, length)) = target(&text) {
            text.replace_range(at..at + length, "");
        }
        lines.push((*number, text));
    }
    lines
}

/// Returns place and length of the first target of a link.
fn target(text: &str) -> Option<(usize, usize)> {
    let at = text.find("](")?;
    let length = text[at..].find(')')?;
    Some((at, length + 1))
}

#[cfg(test)]
mod tests {
    use super::super::mask::mask;
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(&'static str, usize)> {
        let file = TextFile {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let masked = mask(text);
        let rust = RustFile::new(path, &masked);
        let findings = if path.ends_with(".rs") {
            check_all(&[], &[rust])
        } else {
            check_all(&[file], &[])
        };
        let findings = findings.into_iter();
        findings.map(|one| (one.rule, one.line)).collect()
    }

    fn words(count: usize) -> String {
        vec!["word"; count].join(" ")
    }

    #[test]
    fn long_sentences_are_found_where_they_begin() {
        let (most, long) = (words(WORDS_MAX), words(WORDS_MAX + 1));
        let half = words(WORDS_MAX / 2 + 1);
        let found_in = |path: &str, text: String| found(path, &text);
        for text in [
            format!("/// {long}.\n"),
            format!("// {half}\n// {half}\n"),
            format!("f(); // {long}\n"),
        ] {
            assert_eq!(found("a.rs", &text), [("sentence", 1)], "{text}");
        }
        let paragraph = format!("# A\n\nShort. {half}\n{half}: {half}\n");
        assert_eq!(found("docs/a.md", &paragraph), [("sentence", 3)]);
        assert_eq!(found_in("docs/a.md", format!("- {most}.\n- {most}\n")), []);
        assert_eq!(
            found_in("a.rs", format!("/// {most}. {most}\n///\n/// {most}\n")),
            []
        );
        assert_eq!(
            found_in("a.rs", format!("f(); // {half}\nf(); // {half}\n")),
            []
        );
    }

    #[test]
    fn code_tables_lists_and_generated_pages_have_no_sentences() {
        let long = words(WORDS_MAX + 1);
        for text in [
            format!("```\n{long}\n```\n"),
            format!("    {long}\n"),
            format!("| {long} |\n"),
            format!("`{long}` is a [word]({long})\n"),
        ] {
            assert_eq!(found("docs/a.md", &text), [], "{text}");
        }
        assert_eq!(found("docs/results/a.md", &long), []);
        let half = words(WORDS_MAX / 2 + 1);
        let list = format!("//! **Files:** {half}, {half};\n//! {half}\n");
        assert_eq!(found("a.rs", &list), []);
    }

    #[test]
    fn phrases_without_subject_or_number_are_found() {
        for phrase in PHRASES {
            let phrase = phrase.join(" ");
            let texts = [
                ("a.rs", format!("// Here\n// {phrase} goes.\n")),
                ("a.rs", format!("\nf(\"{phrase} goes\");\n")),
                (
                    "crates/x/example.toml",
                    format!("a = 1\n# {phrase} goes.\n"),
                ),
                ("a.sh", format!("#!/bin/sh\n# {phrase} goes\n")),
            ];
            for (path, text) in texts {
                assert!(found(path, &text).contains(&("phrase", 2)), "{text}");
            }
            assert_eq!(
                found("docs/a.md", &format!("The `{phrase} goes` line\n")),
                []
            );
        }
        let text = "// The cache holds as many blocks as fit.\nfn so_many() {}\nf(\"whoever\");\n";
        assert_eq!(found("a.rs", text), []);
    }

    #[test]
    fn plurals_in_brackets_are_found() {
        for text in ["\n3 writer% ended\n", "\n(3 writer%)\n"] {
            let text = text.replace('%', "(s)");
            assert_eq!(found("docs/a.md", &text), [("plural", 2)]);
            assert_eq!(found("a.sh", &text), [("plural", 2)]);
        }
        assert_eq!(found("docs/a.md", "3 writers, `f(s)`, f (s)\n"), []);
    }
}
