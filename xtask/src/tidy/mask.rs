//! Rust source taken apart. Code has comments and literals blanked out, so that rules about code never match prose.
//! Comments and strings are apart, so that rules about prose never match code.

/// One file, taken apart.
#[derive(Default)]
pub(crate) struct Masked {
    /// The source with the same lines and columns, in which the content of comments, strings and character literals is
    /// replaced by spaces. Opening quotes of plain strings remain.
    pub(crate) code: String,
    /// Comments that end with their line, slashes included. Other comments are left out.
    pub(crate) comments: Vec<Piece>,
    /// Strings as they are written, without their quotes.
    pub(crate) strings: Vec<Piece>,
}

/// A comment or a string, with the number of its first line.
pub(crate) struct Piece {
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// Takes Rust source apart.
pub(crate) fn mask(source: &str) -> Masked {
    let chars: Vec<char> = source.chars().collect();
    let mut masked = Masked::default();
    masked.code.reserve(source.len());
    let mut line = 1;
    let mut at = 0;
    while at < chars.len() {
        let rest = &chars[at..];
        let length = match rest[0] {
            '/' | '"' | '\'' | 'r' | 'b' | 'c' => {
                let before = at.checked_sub(1).map(|before| chars[before]);
                mask_literal(&mut masked, line, rest, before)
            }
            _ => None,
        };
        if let Some(length) = length {
            line += rest[..length]
                .iter()
                .filter(|&&letter| letter == '\n')
                .count();
            at += length;
        } else {
            masked.code.push(rest[0]);
            line += usize::from(rest[0] == '\n');
            at += 1;
        }
    }
    masked
}

/// Takes the comment or literal at the start of `rest`; returns its length, or `None` if there is none.
fn mask_literal(
    masked: &mut Masked,
    line: usize,
    rest: &[char],
    before: Option<char>,
) -> Option<usize> {
    let code = &mut masked.code;
    if rest.starts_with(&['/', '/']) {
        let length = line_length(rest);
        let text = rest[..length].iter().collect();
        masked.comments.push(Piece { line, text });
        Some(blank(code, &rest[..length]))
    } else if rest.starts_with(&['/', '*']) {
        Some(blank(code, &rest[..block_comment_length(rest)]))
    } else if let Some(length) = raw_string_length(rest, before) {
        masked.strings.push(inside(line, &rest[..length]));
        Some(blank(code, &rest[..length]))
    } else if rest[0] == '"' {
        let length = quoted_length(rest, '"');
        masked.strings.push(inside(line, &rest[..length]));
        code.push('"');
        blank(code, &rest[1..length]);
        Some(length)
    } else {
        character_length(rest).map(|length| blank(code, &rest[..length]))
    }
}

/// Returns what is between the quotes of a string.
fn inside(line: usize, literal: &[char]) -> Piece {
    let literal: String = literal.iter().collect();
    let text = literal.split_once('"').map_or("", |(_, text)| {
        text.rsplit_once('"').map_or(text, |(text, _)| text)
    });
    Piece {
        line,
        text: text.to_owned(),
    }
}

/// Appends blanks for `chars`, keeping line ends; returns their number.
fn blank(masked: &mut String, chars: &[char]) -> usize {
    masked.extend(
        chars
            .iter()
            .map(|&letter| if letter == '\n' { '\n' } else { ' ' }),
    );
    chars.len()
}

fn line_length(rest: &[char]) -> usize {
    rest.iter()
        .position(|&letter| letter == '\n')
        .unwrap_or(rest.len())
}

/// Returns the length of a block comment, which can be nested in Rust.
fn block_comment_length(rest: &[char]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with(&['/', '*']) {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(&['*', '/']) {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// Returns the length of a literal closed by `quote`, whose first letter is the opening quote.
fn quoted_length(rest: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            letter if letter == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Returns the length of `r"…"`, `r#"…"#`, `br"…"` at the start of `rest`, unless the `r` ends an identifier.
fn raw_string_length(rest: &[char], before: Option<char>) -> Option<usize> {
    if before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_') {
        return None;
    }
    let prefix = if rest.starts_with(&['r']) {
        1
    } else if rest.starts_with(&['b', 'r']) || rest.starts_with(&['c', 'r']) {
        2
    } else {
        return None;
    };
    let hashes = rest[prefix..]
        .iter()
        .take_while(|&&letter| letter == '#')
        .count();
    if rest.get(prefix + hashes) != Some(&'"') {
        return None;
    }
    let mut closing = vec!['"'];
    closing.extend(std::iter::repeat_n('#', hashes));
    let body = prefix + hashes + 1;
    let end = (body..rest.len()).find(|&at| rest[at..].starts_with(&closing));
    Some(end.map_or(rest.len(), |at| at + closing.len()))
}

/// Returns the length of a character literal; `None` for a lifetime.
fn character_length(rest: &[char]) -> Option<usize> {
    if rest[0] != '\'' {
        return None;
    }
    match rest.get(1)? {
        '\\' => Some(quoted_length(rest, '\'')),
        _ if rest.get(2) == Some(&'\'') => Some(3),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Piece, mask};

    #[test]
    fn prose_is_blanked_and_code_stays() {
        let source =
            "let a = \"x // y\"; // dbg\nlet b = 'c'; /* one /* two */ */ let d: &'static str;\n";
        let masked = mask(source);
        assert_eq!(masked.code.len(), source.len());
        for prose in ["dbg", "two", "y"] {
            assert!(!masked.code.contains(prose));
        }
        assert!(masked.code.contains("let b =") && masked.code.contains("&'static str"));
    }

    #[test]
    fn raw_strings_and_escapes_end_where_they_end() {
        let code = mask("f(r#\"a \" b\"#, \"\\\"q\", '\\'', b'\"'); tail").code;
        assert!(code.ends_with("); tail"), "{code}");
        assert!(!code.contains('q'));
    }

    #[test]
    fn comments_and_strings_are_kept_with_their_lines() {
        let masked = mask("/// Why.\nlet a = \"one\ntwo\"; // here\nf(r#\"three\"#);\n");
        let lines = |pieces: &[Piece]| -> Vec<(usize, String)> {
            let pieces = pieces.iter();
            pieces
                .map(|piece| (piece.line, piece.text.clone()))
                .collect()
        };
        let comments = [(1, "/// Why.".to_owned()), (3, "// here".to_owned())];
        assert_eq!(lines(&masked.comments), comments);
        let strings = [(2, "one\ntwo".to_owned()), (4, "three".to_owned())];
        assert_eq!(lines(&masked.strings), strings);
    }
}
