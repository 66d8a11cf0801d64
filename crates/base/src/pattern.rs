//! Patterns over names with levels, as MQTT filters have them: `+` stands for one level, `#` for the rest.
//!
//! Levels are separated by `/`. A final `#` also fits the level before it: `site/#` fits `site` and `site/a/b`.
//! In a level with other characters `+` and `#` stand for themselves: `c++` is a pattern for the name `c++` alone.
//! One rule of MQTT is left to brokers: here a name that begins with `$` is like any other. Filters of topics, which
//! hold neither `+` nor `#`, have a check of their own ([`check_filter`]).

/// Bytes of the longest pattern.
pub const PATTERN_BYTES_MAX: usize = 256;

/// Checks that `pattern` is valid.
///
/// # Errors
/// What is wrong with it.
pub fn check(pattern: &str) -> Result<(), &'static str> {
    check_text(pattern)?;
    // It would match no name.
    if pattern.chars().any(is_invisible) {
        return Err(INVISIBLE);
    }
    let mut levels = pattern.split('/').peekable();
    while let Some(level) = levels.next() {
        if level == "#" && levels.peek().is_some() {
            return Err("`#` must be the whole last level");
        }
    }
    Ok(())
}

/// Checks that `filter` is one of topics: a pattern in which `+` and `#` are whole levels.
///
/// # Errors
/// What is wrong with it.
pub fn check_filter(filter: &str) -> Result<(), &'static str> {
    check_text(filter)?;
    let mut levels = filter.split('/').peekable();
    while let Some(level) = levels.next() {
        if level.contains('#') && (level != "#" || levels.peek().is_some()) {
            return Err("`#` must be the whole last level");
        }
        if level.contains('+') && level != "+" {
            return Err("`+` must be a whole level");
        }
    }
    Ok(())
}

fn check_text(pattern: &str) -> Result<(), &'static str> {
    if pattern.is_empty() {
        return Err("it is empty");
    }
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err("it is longer than 256 bytes");
    }
    if pattern.chars().any(char::is_control) {
        return Err("it holds control characters");
    }
    Ok(())
}

/// Checks that a pattern can name `name` alone, and that it holds no character that shows nothing. Length is the
/// caller's matter.
///
/// # Errors
/// What is wrong with it.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    if name.chars().any(char::is_control) {
        return Err("it holds control characters");
    }
    if name.chars().any(is_invisible) {
        return Err(INVISIBLE);
    }
    if !is_exact(name) {
        return Err("a level is `+` or `#` alone");
    }
    Ok(())
}

/// Whether `name` matches `pattern`. A pattern that [`check`] refuses matches nothing but, perhaps, itself.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    let mut wanted = pattern.split('/');
    let mut levels = name.split('/');
    loop {
        match (wanted.next(), levels.next()) {
            (Some("#"), _) => return wanted.next().is_none(),
            (Some("+"), Some(_)) => {}
            (Some(exact), Some(level)) if exact == level => {}
            (None, None) => return true,
            _ => return false,
        }
    }
}

/// Whether `pattern` stands for exactly one name: itself.
#[must_use]
pub fn is_exact(pattern: &str) -> bool {
    !pattern.split('/').any(|level| level == "+" || level == "#")
}

/// Whether a level holds `+` or `#` beside other characters, where they are no wildcards.
#[must_use]
pub fn has_mixed_level(pattern: &str) -> bool {
    pattern
        .split('/')
        .any(|level| level.len() > 1 && level.contains(['+', '#']))
}

const INVISIBLE: &str = "it holds invisible characters";

/// Characters that show nothing, or only change others: the general category Cf and the property
/// `Default_Ignorable_Code_Point` of Unicode 16.0 (`DerivedGeneralCategory.txt`, `DerivedCoreProperties.txt`). Two
/// names that differ in them alone can look the same.
const INVISIBLES: [(char, char); 25] = [
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{600}', '\u{605}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{6dd}', '\u{6dd}'),
    ('\u{70f}', '\u{70f}'),
    ('\u{890}', '\u{891}'),
    ('\u{8e2}', '\u{8e2}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{202a}', '\u{202e}'),
    ('\u{2060}', '\u{206f}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{fe00}', '\u{fe0f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{ffa0}', '\u{ffa0}'),
    ('\u{fff0}', '\u{fffb}'),
    ('\u{110bd}', '\u{110bd}'),
    ('\u{110cd}', '\u{110cd}'),
    ('\u{13430}', '\u{1343f}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0000}', '\u{e0fff}'),
];

/// Whether no name may hold this character because it shows nothing.
#[must_use]
pub fn is_invisible(letter: char) -> bool {
    // Most names are ASCII.
    !letter.is_ascii()
        && INVISIBLES
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_refused_in_names_and_patterns() {
        // A byte order mark, zero-width characters, directions, soft hyphen, fillers, a variation selector, a tag.
        for letter in
            "\u{feff}\u{200b}\u{200d}\u{2060}\u{202e}\u{ad}\u{61c}\u{3164}\u{115f}\u{fe0f}\u{e0041}"
                .chars()
        {
            for name in [
                format!("{letter}hall/t"),
                format!("hall{letter}/t"),
                format!("hall/t{letter}"),
            ] {
                assert_eq!(check_name(&name), Err(INVISIBLE), "{name:?}");
                assert_eq!(check(&name), Err(INVISIBLE), "{name:?}");
                // The publisher chooses its topics.
                assert_eq!(check_filter(&name), Ok(()), "{name:?}");
            }
        }
        for name in [
            "hall/t",
            "温度/値",
            "läge/è",
            "a\u{301}",
            "中\u{3000}b",
            "حرارة",
            "🌡",
            "\u{a0}",
        ] {
            assert_eq!(
                (check_name(name), check(name)),
                (Ok(()), Ok(())),
                "{name:?}"
            );
        }
        assert!(INVISIBLES.iter().all(|(first, last)| first <= last));
        assert!(INVISIBLES.is_sorted_by(|one, next| one.1 < next.0));
    }

    #[test]
    fn a_name_is_valid_if_a_pattern_can_match_it_alone() {
        for name in [
            "c++",
            "#1",
            "a/c++/#1",
            "+a",
            "a#b/+#",
            "##/++",
            "$SYS/load",
            "/",
            "a//b",
        ] {
            assert_eq!(check_name(name), Ok(()), "{name}");
            assert_eq!(check(name), Ok(()), "{name}");
            assert!(is_exact(name) && matches(name, name), "{name}");
        }
        for name in ["#", "+", "a/+", "a/#", "+/a", "#/a", "a/+/b", "a/#/b"] {
            assert!(check_name(name).is_err() && !is_exact(name), "{name}");
        }
        for (pattern, name) in [
            ("c++", "cxx"),
            ("#1", "a1"),
            ("#1", "1"),
            ("a/+#", "a/b"),
            ("+a", "ba"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
