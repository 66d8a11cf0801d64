//! What the node says: one line per event on standard error, with the time, for a terminal or a journal.

use crate::time_text::format_ms;
use std::fmt;
use std::io::Write;

/// Says that something has happened. `word` names the kind of event, such as `ready`.
pub(crate) fn event(word: &str, text: impl fmt::Display) {
    // The boot's identity is not asked for here, so a default clock would read a file for nothing.
    let now_ms = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        });
    let text = text
        .to_string()
        .replace(|letter: char| letter.is_control(), " ");
    // Whoever reads this may have gone; the node goes on.
    writeln!(std::io::stderr(), "{} {word}: {text}", format_ms(now_ms)).ok();
}
