//! Rust source with comments and literals blanked out, so that rules about code never match prose.

/// Returns a copy of `source` with the same lines and columns, in which the content of comments, strings and character
/// literals is replaced by spaces. Delimiters of strings remain.
pub(crate) fn mask(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut masked = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let rest = &chars[at..];
        let length = if rest.starts_with(&['/', '/']) {
            blank(&mut masked, &rest[..line_length(rest)])
        } else if rest.starts_with(&['/', '*']) {
            blank(&mut masked, &rest[..block_comment_length(rest)])
        } else if let Some(length) =
            raw_string_length(rest, at.checked_sub(1).map(|before| chars[before]))
        {
            blank(&mut masked, &rest[..length])
        } else if rest[0] == '"' {
            let length = quoted_length(rest, '"');
            masked.push('"');
            blank(&mut masked, &rest[1..length]);
            length
        } else if let Some(length) = character_length(rest) {
            blank(&mut masked, &rest[..length])
        } else {
            masked.push(rest[0]);
            1
        };
        at += length;
    }
    masked
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
    use super::mask;

    #[test]
    fn prose_is_blanked_and_code_stays() {
        let source =
            "let a = \"x // y\"; // dbg\nlet b = 'c'; /* one /* two */ */ let d: &'static str;\n";
        let masked = mask(source);
        assert_eq!(masked.len(), source.len());
        assert!(!masked.contains("dbg") && !masked.contains("two") && !masked.contains('y'));
        assert!(masked.contains("let b =") && masked.contains("&'static str"));
    }

    #[test]
    fn raw_strings_and_escapes_end_where_they_end() {
        let masked = mask("f(r#\"a \" b\"#, \"\\\"q\", '\\'', b'\"'); tail");
        assert!(masked.ends_with("); tail"), "{masked}");
        assert!(!masked.contains('q'));
    }
}
