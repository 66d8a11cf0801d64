//! Copies the output of programs into the node's log, limited so that it does not hide other events.

use crate::log;
use std::time::{Duration, Instant};

/// Logged lines of one program within [`SPAN`]; further ones are counted.
const LINES_MAX: u32 = 20;
const SPAN: Duration = Duration::from_secs(10);

/// The output of one program.
pub(super) struct Output<'a> {
    /// `task` or `mount`.
    word: &'static str,
    name: &'a str,
    begun: Instant,
    said: u32,
    left_out: u64,
    last: Option<String>,
}

impl<'a> Output<'a> {
    pub(super) fn new(word: &'static str, name: &'a str) -> Self {
        Self {
            word,
            name,
            begun: Instant::now(),
            said: 0,
            left_out: 0,
            last: None,
        }
    }

    /// Processes a line. Returns whether it is logged.
    pub(super) fn line(&mut self, text: &str) -> bool {
        self.last = Some(text.to_owned());
        if self.begun.elapsed() >= SPAN {
            self.end_span();
        }
        if self.said >= LINES_MAX {
            self.left_out += 1;
            return false;
        }
        self.said += 1;
        log::event(self.word, format!("{}: {text}", self.name));
        true
    }

    /// Returns the last line since the previous call.
    pub(super) fn take_last(&mut self) -> Option<String> {
        self.last.take()
    }

    fn end_span(&mut self) {
        if self.left_out > 0 {
            let text = format!("{}: {} more lines were left out", self.name, self.left_out);
            log::event(self.word, text);
        }
        (self.begun, self.said, self.left_out) = (Instant::now(), 0, 0);
    }
}

impl Drop for Output<'_> {
    fn drop(&mut self) {
        self.end_span();
    }
}
