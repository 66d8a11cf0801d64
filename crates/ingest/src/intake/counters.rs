//! Counts of accepted and refused input, readable from other threads.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::Reason;

/// Size of the longest excerpt of one item, in bytes.
pub const EXCERPT_BYTES_MAX: usize = 80;

/// Size of the longest text about two series and their shared key, in bytes. It holds the beginnings of both, the whole
/// key, and the words between.
pub const EXCERPT_SHARED_BYTES_MAX: usize = 2 * (EXCERPT_BYTES_MAX + 8) + db::KEY_BYTES_MAX + 20;

const REASONS: usize = Reason::ALL.len();

/// Counters of one intake. They only grow.
#[derive(Debug, Default)]
pub struct IntakeCounters {
    readings: AtomicU64,
    shed: AtomicU64,
    messages: AtomicU64,
    lines: AtomicU64,
    retained_taken: AtomicU64,
    retained_skipped: AtomicU64,
    merged: AtomicU64,
    /// The latest two series that have one key.
    merged_last: Mutex<String>,
    refused: [AtomicU64; REASONS],
    /// The latest refused item for each reason, so that the operator can find the sender.
    excerpts: Mutex<[String; REASONS]>,
}

impl IntakeCounters {
    /// Returns the number of readings that the destination has taken.
    #[must_use]
    pub fn readings(&self) -> u64 {
        self.readings.load(Ordering::Relaxed)
    }

    /// Returns the number of readings that the destination dropped to shed load; none of them is in
    /// [`readings`](Self::readings).
    #[must_use]
    pub fn shed(&self) -> u64 {
        self.shed.load(Ordering::Relaxed)
    }

    /// Returns the number of MQTT messages that are finished, with any outcome.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    /// Returns the number of lines of line protocol that are finished, from any source; blank lines and comments do not
    /// count.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.lines.load(Ordering::Relaxed)
    }

    /// Returns the number of readings of retained messages that the destination has taken; they are in
    /// [`readings`](Self::readings).
    #[must_use]
    pub fn retained_taken(&self) -> u64 {
        self.retained_taken.load(Ordering::Relaxed)
    }

    /// Returns the number of retained messages that the subscription skips.
    #[must_use]
    pub fn retained_skipped(&self) -> u64 {
        self.retained_skipped.load(Ordering::Relaxed)
    }

    /// Returns the number of readings that were taken although another series had their key first. That series differs
    /// only in what the template leaves out. These readings are in [`readings`](Self::readings), too.
    #[must_use]
    pub fn merged(&self) -> u64 {
        self.merged.load(Ordering::Relaxed)
    }

    /// Returns the latest two series that have one key in this way, escaped, at most [`EXCERPT_SHARED_BYTES_MAX`]
    /// bytes; empty if there are none.
    #[must_use]
    pub fn merged_last(&self) -> String {
        let last = self.merged_last.lock();
        last.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns how many messages, lines or single readings of a line were refused for this reason.
    #[must_use]
    pub fn refused(&self, reason: Reason) -> u64 {
        self.refused[reason.index()].load(Ordering::Relaxed)
    }

    /// Returns how many were refused, for all reasons together.
    #[must_use]
    pub fn refused_total(&self) -> u64 {
        Reason::ALL.iter().map(|reason| self.refused(*reason)).sum()
    }

    /// Returns the beginning of the latest item refused for this reason, escaped, at most [`EXCERPT_BYTES_MAX`] bytes;
    /// empty if none was kept.
    #[must_use]
    pub fn excerpt(&self, reason: Reason) -> String {
        let excerpts = self.excerpts.lock().unwrap_or_else(PoisonError::into_inner);
        excerpts[reason.index()].clone()
    }

    pub(crate) fn add_reading(&self) {
        self.readings.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_shed(&self) {
        self.shed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_message(&self) {
        self.messages.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_line(&self) {
        self.lines.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_retained_taken(&self) {
        self.retained_taken.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_retained_skipped(&self) {
        self.retained_skipped.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_merged(&self) {
        self.merged.fetch_add(1, Ordering::Relaxed);
    }

    /// Keeps a text about two series that have one key.
    pub(crate) fn keep_merged(&self, text: &str) {
        let last = self.merged_last.lock();
        let mut last = last.unwrap_or_else(PoisonError::into_inner);
        write_excerpt(&mut last, &[text.as_bytes()], EXCERPT_SHARED_BYTES_MAX);
    }

    /// Counts a refusal. `what`: pieces of the refused item, shown in this order.
    pub(crate) fn refuse(&self, reason: Reason, what: &[&[u8]]) {
        self.refused[reason.index()].fetch_add(1, Ordering::Relaxed);
        if !what.is_empty() {
            let mut excerpts = self.excerpts.lock().unwrap_or_else(PoisonError::into_inner);
            let bytes_max = match reason {
                Reason::KeyShared => EXCERPT_SHARED_BYTES_MAX,
                _ => EXCERPT_BYTES_MAX,
            };
            write_excerpt(&mut excerpts[reason.index()], what, bytes_max);
        }
    }
}

/// Returns the beginning of some external bytes, escaped, at most [`EXCERPT_BYTES_MAX`] bytes.
#[must_use]
pub fn excerpt(bytes: &[u8]) -> String {
    let mut text = String::new();
    write_excerpt(&mut text, &[bytes], EXCERPT_BYTES_MAX);
    text
}

fn write_excerpt(text: &mut String, pieces: &[&[u8]], bytes_max: usize) {
    text.clear();
    text.reserve(bytes_max);
    // Where the text would be cut, if necessary.
    let mut fits = 0;
    for piece in pieces {
        // Every byte is shown as at least one byte; this many are more than can be shown.
        for chunk in piece[..piece.len().min(bytes_max + 4)].utf8_chunks() {
            for found in chunk.valid().chars() {
                // Most characters are plain, and a sender may send many items that are refused.
                if matches!(found, ' '..='~') && !matches!(found, '"' | '\'' | '\\') {
                    text.push(found);
                } else if base::pattern::is_invisible(found) {
                    text.extend(found.escape_unicode());
                } else {
                    text.extend(found.escape_debug());
                }
                if is_cut(text, &mut fits, bytes_max) {
                    return;
                }
            }
            for byte in chunk.invalid() {
                // Writing to a String never fails.
                let _ = write!(text, "\\x{byte:02x}");
                if is_cut(text, &mut fits, bytes_max) {
                    return;
                }
            }
        }
    }
}

/// Cuts a text that has become too long. Returns whether it did.
fn is_cut(text: &mut String, fits: &mut usize, bytes_max: usize) -> bool {
    const CUT: &str = "...";
    if text.len() > bytes_max {
        text.truncate(*fits);
        text.push_str(CUT);
        return true;
    }
    if text.len() + CUT.len() <= bytes_max {
        *fits = text.len();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpts_are_short_and_printable() {
        assert_eq!(excerpt(b"room/1: 21.5"), "room/1: 21.5");
        assert_eq!(excerpt(b"a\xff\n\"\xc3\xa9"), "a\\xff\\n\\\"é");
        let long = excerpt(&[b'x'; 1000]);
        assert_eq!((long.len(), long.ends_with("x...")), (80, true));
        assert_eq!(excerpt(&[b'x'; 80]).len(), 80);
        let escaped = excerpt(&[0xfe; 100]);
        assert_eq!(escaped, format!("{}...", "\\xfe".repeat(19)));
        assert_eq!(
            excerpt("€".repeat(50).as_bytes()),
            format!("{}...", "€".repeat(25))
        );
    }

    #[test]
    fn the_latest_of_each_reason_is_kept() {
        let counters = IntakeCounters::default();
        counters.refuse(Reason::KeyUnknown, &[b"a", b": ", b"1"]);
        counters.refuse(Reason::KeyUnknown, &[b"b", b": ", b"2"]);
        counters.refuse(Reason::KeyUnknown, &[]);
        counters.refuse(Reason::Oversized, &[]);
        assert_eq!(counters.refused(Reason::KeyUnknown), 3);
        assert_eq!(counters.refused_total(), 4);
        assert_eq!(counters.excerpt(Reason::KeyUnknown), "b: 2");
        assert_eq!(counters.excerpt(Reason::Oversized), "");
    }
}
