//! Patterns over names with levels, as MQTT filters have them: `+` stands for one level, `#` for the rest.
//!
//! Levels are separated by `/`. A final `#` also fits the level before it: `site/#` fits `site` and `site/a/b`.
//! One rule of MQTT is left to brokers: here a name that begins with `$` is like any other.

/// Bytes of the longest pattern.
pub const PATTERN_BYTES_MAX: usize = 256;

/// Checks that `pattern` is valid.
///
/// # Errors
/// What is wrong with it.
pub fn check(pattern: &str) -> Result<(), &'static str> {
    if pattern.is_empty() {
        return Err("it is empty");
    }
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err("it is longer than 256 bytes");
    }
    if pattern.chars().any(char::is_control) {
        return Err("it holds control characters");
    }
    let mut levels = pattern.split('/').peekable();
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
