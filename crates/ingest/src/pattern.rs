//! Patterns over names with levels, as MQTT filters have them: `+` stands for one level, `#` for the rest.
//!
//! Levels are separated by `/`. A final `#` also fits the level before it: `site/#` fits `site` and `site/a/b`.
//! One rule of MQTT is left to brokers: here a name that begins with `$` is as any other.

use crate::Error;

/// Bytes of the longest pattern.
pub const PATTERN_BYTES_MAX: usize = 256;

/// How the filter of a shared subscription begins.
const SHARED: &str = "$share/";

/// Checks that `pattern` is one.
///
/// # Errors
/// [`Error::Pattern`] says what is wrong with it.
pub fn check(pattern: &str) -> Result<(), Error> {
    let fail = |reason| {
        Err(Error::Pattern {
            pattern: crate::intake::excerpt(pattern.as_bytes()),
            reason,
        })
    };
    if pattern.is_empty() {
        return fail("it is empty");
    }
    if pattern.len() > PATTERN_BYTES_MAX {
        return fail("it is longer than 256 bytes");
    }
    if pattern.chars().any(char::is_control) {
        return fail("it holds control characters");
    }
    let mut levels = pattern.split('/').peekable();
    while let Some(level) = levels.next() {
        if level.contains('#') && (level != "#" || levels.peek().is_some()) {
            return fail("`#` must be the whole last level");
        }
        if level.contains('+') && level != "+" {
            return fail("`+` must be a whole level");
        }
    }
    Ok(())
}

/// What the topics of a subscription's messages are matched with: brokers send them without the `$share/NAME/` with
/// which a subscription is shared between clients.
#[must_use]
pub fn topic_filter(filter: &str) -> &str {
    match filter.strip_prefix(SHARED) {
        Some(shared) => shared.split_once('/').map_or("", |(_, filter)| filter),
        None => filter,
    }
}

/// Checks that `filter` is one that a broker can be asked for: a pattern, or `$share/NAME/` and a pattern.
///
/// # Errors
/// [`Error::Pattern`] says what is wrong with it.
pub fn check_filter(filter: &str) -> Result<(), Error> {
    check(filter)?;
    let Some(shared) = filter.strip_prefix(SHARED) else {
        return Ok(());
    };
    let reason = match shared.split_once('/') {
        Some(("", _)) => "the name of a shared subscription is empty",
        Some((name, _)) if name.contains(['+', '#']) => {
            "the name of a shared subscription has no wildcards"
        }
        Some((_, filter)) if !filter.is_empty() => return Ok(()),
        _ => "a shared subscription is `$share/NAME/FILTER`",
    };
    Err(Error::Pattern {
        pattern: crate::intake::excerpt(filter.as_bytes()),
        reason,
    })
}

/// Whether `name` fits `pattern`. A pattern that [`check`] refuses fits nothing but, perhaps, itself.
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
