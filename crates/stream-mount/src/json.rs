//! Text in JSON.

use std::fmt::Write;

/// Escapes a text for use inside a JSON string.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '"' | '\\' => escaped.extend(['\\', letter]),
            '\0'..'\u{20}' => {
                write!(escaped, "\\u{:04x}", u32::from(letter)).ok();
            }
            _ => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_any_character_is_a_json_text() {
        assert_eq!(escaped("a\"b\\c\n"), "a\\\"b\\\\c\\u000a");
    }
}
