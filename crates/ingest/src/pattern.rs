//! Patterns over names with levels, as MQTT filters have them: `+` stands for one level, `#` for the rest.
//!
//! [`base::pattern`] defines patterns; this file adds what filters of subscriptions have in addition.

use crate::Error;

pub use base::pattern::{PATTERN_BYTES_MAX, is_exact, matches};

/// Prefix of the filter of a shared subscription.
const SHARED: &str = "$share/";

/// Checks that `pattern` is a valid pattern.
///
/// # Errors
/// [`Error::Pattern`] says what is wrong with it.
pub fn check(pattern: &str) -> Result<(), Error> {
    base::pattern::check(pattern).map_err(|reason| wrong(pattern, reason))
}

/// Checks that `filter` is a valid filter of topics, in which `+` and `#` are whole levels.
///
/// # Errors
/// [`Error::Pattern`] says what is wrong with it.
pub fn check_topics(filter: &str) -> Result<(), Error> {
    base::pattern::check_filter(filter).map_err(|reason| wrong(filter, reason))
}

fn wrong(pattern: &str, reason: &'static str) -> Error {
    Error::Pattern {
        pattern: crate::intake::excerpt(pattern.as_bytes()),
        reason,
    }
}

/// Returns the pattern that the topics of a subscription's messages match: brokers send them without the `$share/NAME/`
/// of shared subscriptions.
#[must_use]
pub fn topic_filter(filter: &str) -> &str {
    match filter.strip_prefix(SHARED) {
        Some(shared) => shared.split_once('/').map_or("", |(_, filter)| filter),
        None => filter,
    }
}

/// Checks that `filter` can be sent to a broker: a filter of topics, or `$share/NAME/` and such a filter.
///
/// # Errors
/// [`Error::Pattern`] says what is wrong with it.
pub fn check_filter(filter: &str) -> Result<(), Error> {
    check_topics(filter)?;
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
    Err(wrong(filter, reason))
}
